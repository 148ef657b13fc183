/* SPDX-License-Identifier: Apache-2.0 */
/* Which version a worker is sent next: rows of what it serves and has of the active and the newest version. */
#include "broker/rollout/next.h"

#include <criterion/criterion.h>
#include <heddle/publisher.h>
#include <string.h>

#define LEASE_US 3000000u
#define RATE 1000000u /* bytes per second: a payload of RATE bytes takes a second */

/* One adapter: version 1 is active, version 2 is rolled out; and the worker, with a copy of each. */
typedef struct {
    adapter_row_t row;
    adapter_rollout_t of;
    version_row_t rows[2];
    copy_row_t copies[2], *listed[2];
    plan_row_t places[2], *placed[2]; /* the worker's in the plan of each */
    track_t active, newest;
    member_sub_t sub;
    member_t member;
} case_t;
static case_t C;

static void init(void)
{
    C = (case_t){.of.row = &C.row, .member = {.token = 7, .name = "w", .subs = &C.sub, .sub_count = 1}};
    strcpy(C.row.name, "policy");
    strcpy(C.sub.adapter, "policy");
    track_t *tracks[] = {&C.active, &C.newest};
    for (unsigned i = 0; i < 2; i++) {
        C.rows[i] =
            (version_row_t){.version = i + 1, .parts = {.count = 1, .part = {{.payload_bytes = RATE}}}};
        C.copies[i] = (copy_row_t){.worker = "w", .token = 7};
        C.listed[i] = &C.copies[i];
        C.places[i] = (plan_row_t){.token = 7, .copy = &C.copies[i]};
        C.placed[i] = &C.places[i];
        *tracks[i] = (track_t){.of = &C.of,
                               .adapter = C.row.name,
                               .version = i + 1,
                               .row = &C.rows[i],
                               .copies = &C.listed[i],
                               .plan.rows = &C.placed[i],
                               .phase = TRACK_BEGUN,
                               .plan.publisher = {.state = PUBLISHER_SERVES, .token = 9}};
    }
    C.active.plan.best_rate = RATE;
}
TestSuite(next, .init = init);

static void serves(uint64_t version) { C.sub.serving.version = version; }
static void has(track_t *t, copy_state_t state, announce_t announce)
{
    t->copy_count = t->plan.count = 1;
    t->copies[0]->state = state;
    t->copies[0]->announce = announce;
}
static void is_awaited(void)
{
    has(&C.newest, COPY_WAITING, ANNOUNCE_NONE);
    C.newest.copies[0]->is_eligible = true;
}

static next_first_t first_at(uint64_t now_us)
{
    return next_first(&C.newest, &C.active, &C.member, now_us, LEASE_US);
}
static next_send_t send(next_first_t first) { return next_of_active(first, &C.newest, &C.active, &C.member); }
static bool follows(next_first_t first, next_send_t sent)
{
    return next_newest_follows(first, sent, &C.active, &C.member);
}

/* ---- what is first ---- */

Test(next, what_a_rollout_waits_for_is_first)
{
    is_awaited();
    serves(1);
    cr_assert_eq(first_at(0), NEXT_AWAITED);
    serves(0);
    cr_assert_eq(first_at(60 * LEASE_US), NEXT_AWAITED, "whatever the time");
}

Test(next, the_active_version_is_first_for_one_that_serves_another)
{
    serves(1);
    cr_assert_eq(first_at(0), NEXT_ACTIVE);
}

Test(next, without_one_of_the_two_there_is_no_choice)
{
    cr_assert_eq(next_first(NULL, &C.active, &C.member, 0, LEASE_US), NEXT_ACTIVE);
    cr_assert_eq(next_first(&C.newest, NULL, &C.member, 0, LEASE_US), NEXT_ACTIVE);
    cr_assert_eq(next_of_active(NEXT_ACTIVE, &C.newest, NULL, &C.member), NEXT_NOTHING);
    C.active.row = NULL; /* forgotten */
    cr_assert_eq(send(NEXT_ACTIVE), NEXT_NOTHING);
}

Test(next, one_that_joins_gets_what_comes_as_soon)
{
    cr_assert_eq(first_at(0), NEXT_AS_SOON);
    cr_assert_eq(first_at(1999999), NEXT_AS_SOON, "twice the second that it takes");
    cr_assert_eq(first_at(2000000), NEXT_ACTIVE, "it is held up");
}

Test(next, the_time_counts_from_the_first_announcement_to_this_worker)
{
    has(&C.newest, COPY_ANNOUNCED, ANNOUNCE_OUT);
    cr_assert_eq(first_at(2500000), NEXT_ACTIVE, "not announced to this session yet");
    C.newest.copies[0]->first_sent_us = 1000000;
    cr_assert_eq(first_at(2500000), NEXT_AS_SOON);
    cr_assert_eq(first_at(3000000), NEXT_ACTIVE);
}

/* Each row alone makes it uncertain that the newest is served as soon. */
typedef struct {
    const char *name;
    uint64_t activation, rate, bytes, place;
    bool held;
    track_phase_t phase;
} late_t;
static const late_t LATE[] = {
    {"an operator activates it", HEDDLE_ACTIVATION_MANUAL, RATE, RATE, 0, false, TRACK_BEGUN},
    {"the adapter is held", 0, RATE, RATE, 0, true, TRACK_BEGUN},
    {"it waits for the version before it", 0, RATE, RATE, 0, false, TRACK_WAITING},
    {"the active version is at its place", 0, RATE, RATE, 5, false, TRACK_BEGUN},
    {"no rate is known", 0, 0, RATE, 0, false, TRACK_BEGUN},
    {"it takes more than a lease", 0, RATE, 4 * RATE, 0, false, TRACK_BEGUN},
};

Test(next, what_may_come_later_is_not_first)
{
    for (size_t i = 0; i < sizeof LATE / sizeof *LATE; i++) {
        init();
        C.rows[1].activation = LATE[i].activation;
        C.rows[1].parts.part[0].payload_bytes = LATE[i].bytes;
        C.active.plan.best_rate = LATE[i].rate;
        C.active.plan.publisher.place = 5;
        C.member.place = LATE[i].place;
        C.row.held = LATE[i].held;
        C.newest.phase = LATE[i].phase;
        cr_assert_eq(first_at(0), NEXT_ACTIVE, "%s", LATE[i].name);
    }
}

/* ---- what becomes of the active version ---- */

/* State of its copy, and whether there is a source -> what is sent. */
Test(next, the_active_version_is_announced_or_switched_to)
{
    for (int state = COPY_NONE; state < COPY_STATES; state++) {
        has(&C.active, (copy_state_t)state, ANNOUNCE_NONE);
        bool is_ordered = state == COPY_COMMITTED || state == COPY_ACTIVE;
        next_send_t expected = is_ordered                 ? NEXT_NOTHING
                               : copy_holds(&C.copies[0]) ? NEXT_COMMIT
                                                          : NEXT_ANNOUNCE;
        C.active.plan.publisher.state = PUBLISHER_SERVES;
        cr_assert_eq(send(NEXT_ACTIVE), expected, "state %d", state);
        cr_assert_eq(send(NEXT_AWAITED), expected, "state %d", state);
        C.active.plan.publisher.state = PUBLISHER_WITHOUT;
        cr_assert_eq(send(NEXT_ACTIVE), expected == NEXT_ANNOUNCE ? NEXT_NOTHING : expected, "state %d",
                     state);
    }
}

typedef struct {
    const char *name;
    next_first_t first;
    uint64_t serving;
    copy_state_t state; /* of the newest */
    announce_t announce;
    next_send_t sent;
} beside_t;
static const beside_t BESIDE[] = {
    {"awaited, on its way", NEXT_AWAITED, 0, COPY_FETCHING, ANNOUNCE_OUT, NEXT_NOTHING},
    {"awaited, without a source", NEXT_AWAITED, 0, COPY_WAITING, ANNOUNCE_OWED, NEXT_ANNOUNCE},
    {"awaited, staged", NEXT_AWAITED, 0, COPY_STAGED, ANNOUNCE_NONE, NEXT_ANNOUNCE},
    {"as soon, on its way", NEXT_AS_SOON, 0, COPY_FETCHING, ANNOUNCE_OUT, NEXT_NOTHING},
    {"as soon, staged: decided in a moment", NEXT_AS_SOON, 0, COPY_STAGED, ANNOUNCE_NONE, NEXT_NOTHING},
    {"as soon, without a source", NEXT_AS_SOON, 0, COPY_WAITING, ANNOUNCE_OWED, NEXT_ANNOUNCE},
    {"serves another, the newest is on its way", NEXT_ACTIVE, 9, COPY_FETCHING, ANNOUNCE_OUT, NEXT_NOTHING},
    {"serves nothing, the newest is held up", NEXT_ACTIVE, 0, COPY_FETCHING, ANNOUNCE_OUT, NEXT_ANNOUNCE},
    {"serves nothing, the newest is here, not decided", NEXT_ACTIVE, 0, COPY_STAGED, ANNOUNCE_NONE,
     NEXT_ANNOUNCE},
};

Test(next, a_fetch_of_the_newest_goes_before_the_active_version)
{
    for (size_t i = 0; i < sizeof BESIDE / sizeof *BESIDE; i++) {
        init();
        serves(BESIDE[i].serving);
        has(&C.newest, BESIDE[i].state, BESIDE[i].announce);
        cr_assert_eq(send(BESIDE[i].first), BESIDE[i].sent, "%s", BESIDE[i].name);
    }
}

/* ---- and then the newest ---- */

Test(next, the_newest_follows_when_the_active_version_is_not_on_its_way)
{
    cr_assert(follows(NEXT_ACTIVE, NEXT_NOTHING));
    cr_assert(follows(NEXT_ACTIVE, NEXT_COMMIT), "it is here");
    cr_assert(!follows(NEXT_AWAITED, NEXT_NOTHING) && !follows(NEXT_AS_SOON, NEXT_NOTHING), "it was first");
    has(&C.active, COPY_ANNOUNCED, ANNOUNCE_OUT);
    cr_assert(!follows(NEXT_ACTIVE, NEXT_ANNOUNCE));
    has(&C.active, COPY_FAILED, ANNOUNCE_NONE);
    cr_assert(follows(NEXT_ACTIVE, NEXT_ANNOUNCE), "it failed there");
}
