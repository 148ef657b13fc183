/* SPDX-License-Identifier: Apache-2.0 */
/* Who is there: the table of membership.h, cell by cell, with the refusals of a join. */
#include "broker/members/membership.h"

#include "core/clock.h"
#include "core/limits.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#define LEASE_US 4000000ull
#define MS 1000ull

static membership_t mem;
static heddle_error_t error;
static instant_t now;
static uint64_t retry_ms;
static admitted_t got;

static void start(void)
{
    now = (instant_t){.us = 1000000000, .wall_ms = 1780000000000};
    membership_init(&mem, LEASE_US, 1);
    membership_start(&mem, 3, now.us, now.us);
}
static void stop(void) { membership_fini(&mem); }
TestSuite(membership, .init = start, .fini = stop);

static member_hello_t hello(uint64_t peer, uint8_t life)
{
    return (member_hello_t){.peer = peer,
                            .role = ROLE_WORKER,
                            .life = {{life}},
                            .host = "host",
                            .pid = 100 + life};
}

typedef struct {
    const char *name;
    uint64_t peer, slots;
    uint8_t life;
    const char *ucx, *backend;
} join_t;

static msg_subscription_t SUBS[] = {{.adapter = "policy", .decision = 2, .version = 1},
                                    {.adapter = "critic"}};

static msg_join_t join_of(join_t j)
{
    return (msg_join_t){.name = j.name,
                        .slots = j.slots,
                        .adapters = SUBS,
                        .adapter_count = 2,
                        .backend = j.backend ? j.backend : "ucx",
                        .ucx = j.ucx ? j.ucx : "1.13.1",
                        .address = bytes_of("addr", 4),
                        .export_dir = "/x"};
}

static int decide(join_t j)
{
    msg_join_t join = join_of(j);
    member_hello_t h = hello(j.peer, j.life);
    return membership_decide_join(&mem, &join, &h, now.us, &retry_ms, &error);
}

static member_t *admit(join_t j)
{
    msg_join_t join = join_of(j);
    member_hello_t h = hello(j.peer, j.life);
    cr_assert_eq(membership_join(&mem, &join, &h, now, &got), HEDDLE_OK);
    return got.member;
}

static member_t *open_as(const char *adapter, const char *writer, uint64_t peer, uint8_t life,
                         const char *ucx)
{
    msg_open_t open = {.adapter = adapter,
                       .writer = writer,
                       .backend = "ucx",
                       .ucx = ucx,
                       .address = bytes_of("p", 1)};
    member_hello_t h = hello(peer, life);
    if (membership_decide_open(&mem, &open, &error)) return NULL;
    cr_assert_eq(membership_open(&mem, &open, &h, membership_next_token(&mem), now, &got), HEDDLE_OK);
    return got.member;
}

static void pass(uint64_t ms)
{
    now.us += ms * MS;
    now.wall_ms += ms;
}

static member_t *admit_former(const char *name, uint64_t peer, uint64_t former_token)
{
    msg_join_t join = join_of((join_t){.name = name});
    member_hello_t h = hello(peer, (uint8_t)peer);
    join.prev_token = former_token;
    cr_assert_eq(membership_join(&mem, &join, &h, now, &got), HEDDLE_OK);
    return got.member;
}

/* ---- coming in ---- */

Test(membership, a_source_is_found_by_the_token_that_it_had_before)
{
    const uint64_t before = 2ull << 32;
    member_t *w1 = admit_former("w1", 1, before | 7), *w2 = admit_former("w2", 2, before | 5);
    member_t *w3 = admit_former("w3", 3, before | 7), *w4 = admit_former("w4", 4, 0);
    cr_assert_eq(membership_source(&mem, w3->token), w3);
    cr_assert_eq(membership_source(&mem, before | 5), w2);
    cr_assert_eq(membership_source(&mem, before | 7), w1, "w3 named it too, and later");
    cr_assert_null(membership_source(&mem, before | 6));
    cr_assert_null(membership_source(&mem, 0), "w4 named none");
    membership_end(&mem, w3, END_LEFT, now);
    cr_assert_eq(membership_source(&mem, before | 7), w1);
    membership_end(&mem, w1, END_LAPSED, now);
    cr_assert_null(membership_source(&mem, before | 7), "READY only");
    cr_assert(member_is_ready(w4));
}

Test(membership, a_source_is_found_by_tokens_of_earlier_starts)
{
    const uint64_t first = 1ull << 32, second = 2ull << 32;
    enum { ROUNDS = 3 * LIMIT_FORMER_TOKENS };
    uint64_t tokens[LIMIT_FORMER_TOKENS];
    msg_join_t join = join_of((join_t){.name = "w"});
    char name[8];
    join.name = name;
    join.former_tokens = tokens;
    join.former_count = LIMIT_FORMER_TOKENS;
    for (uint64_t w = 0; w < ROUNDS; w++) { /* the list of them grows often enough */
        member_hello_t h = hello(w + 1, (uint8_t)(w + 1));
        snprintf(name, sizeof name, "w%02u", (unsigned)w);
        join.prev_token = second | (w + 1);
        for (uint64_t i = 0; i < LIMIT_FORMER_TOKENS; i++) tokens[i] = first | (w + 1) << 8 | i;
        cr_assert_eq(membership_join(&mem, &join, &h, now, &got), HEDDLE_OK);
    }
    for (uint64_t w = 0; w < ROUNDS; w++) {
        snprintf(name, sizeof name, "w%02u", (unsigned)w);
        member_t *member = membership_worker(&mem, name);
        cr_assert_eq(membership_source(&mem, second | (w + 1)), member);
        for (uint64_t i = 0; i < LIMIT_FORMER_TOKENS; i++)
            cr_assert_eq(membership_source(&mem, first | (w + 1) << 8 | i), member);
        membership_end(&mem, member, END_LEFT, now);
        cr_assert_null(membership_source(&mem, first | (w + 1) << 8));
    }
    cr_assert_eq(mem.former_count, 0);
}

Test(membership, one_without_a_session_before_has_no_earlier_tokens)
{
    uint64_t token = 1ull << 32 | 5;
    msg_join_t join = join_of((join_t){.name = "w"});
    member_hello_t h = hello(1, 1);
    join.former_tokens = &token;
    join.former_count = 1;
    cr_assert_eq(membership_join(&mem, &join, &h, now, &got), HEDDLE_OK);
    cr_assert_null(membership_source(&mem, token));
}

Test(membership, a_join_makes_a_ready_row_with_a_token_of_the_epoch)
{
    cr_assert_eq(decide((join_t){"w1", 9, 0, 1}), HEDDLE_OK);
    member_t *m = admit((join_t){"w1", 9, 0, 1});
    cr_assert_eq(m->token, 3ull << 32 | 1);
    cr_assert(member_is_ready(m));
    cr_assert_eq(membership_by_token(&mem, m->token), m);
    cr_assert_eq(membership_worker(&mem, "w1"), m);
    cr_assert_null(membership_worker(&mem, "w2"));
    cr_assert_eq(m->peer, 9);
    cr_assert_eq(m->slots, 3, "2 + keep");
    cr_assert_str_eq(m->export_dir, "/x");
    cr_assert_eq(member_sub(m, "policy")->serving.decision, 2);
    cr_assert_not_null(member_sub(m, "critic"));
    cr_assert_null(member_sub(m, "other"));
    cr_assert_eq(m->lease_end_us, now.us + LEASE_US);
    cr_assert_eq(got.replaced_token, 0);
    cr_assert_eq(admit((join_t){"w0", 10, 4, 2})->token, 3ull << 32 | 2, "tokens only go up");
    cr_assert_str_eq(mem.workers[0]->name, "w0");
}

Test(membership, bad_joins_are_refused)
{
    msg_subscription_t twice[] = {{.adapter = "policy"}, {.adapter = "policy"}}, bad = {.adapter = ".."};
    msg_subscription_t many[LIMIT_ADAPTERS_PER_WORKER + 1];
    for (size_t i = 0; i <= LIMIT_ADAPTERS_PER_WORKER; i++) many[i] = (msg_subscription_t){.adapter = "a"};
    const char *label = "no equals";
    member_hello_t h = hello(1, 1);
    const struct {
        msg_join_t join;
        int code;
    } ROWS[] = {
        {{.name = "..", .adapters = SUBS, .adapter_count = 2}, HEDDLE_ERR_BAD_NAME},
        {{.name = "w1", .adapters = SUBS, .adapter_count = 2, .labels = &label, .label_count = 1},
         HEDDLE_ERR_BAD_NAME},
        {{.name = "w1", .adapters = &bad, .adapter_count = 1}, HEDDLE_ERR_BAD_NAME},
        {{.name = "w1"}, HEDDLE_ERR_USAGE},
        {{.name = "w1", .adapters = many, .adapter_count = LIMIT_ADAPTERS_PER_WORKER + 1}, HEDDLE_ERR_USAGE},
        {{.name = "w1", .adapters = twice, .adapter_count = 2}, HEDDLE_ERR_USAGE},
        {{.name = "w1", .adapters = SUBS, .adapter_count = 2, .group = "a b", .ranks = 1},
         HEDDLE_ERR_BAD_NAME},
        {{.name = "w1", .adapters = SUBS, .adapter_count = 2, .group = "tp"}, HEDDLE_ERR_USAGE},
        {{.name = "w1", .adapters = SUBS, .adapter_count = 2, .group = "tp", .rank = 2, .ranks = 2},
         HEDDLE_ERR_USAGE},
        {{.name = "w1", .adapters = SUBS, .adapter_count = 2, .group = "tp", .ranks = LIMIT_RANKS + 1},
         HEDDLE_ERR_USAGE},
        {{.name = "w1", .adapters = SUBS, .adapter_count = 2, .group = "", .ranks = 2}, HEDDLE_ERR_USAGE},
        {{.name = "w1", .adapters = SUBS, .adapter_count = 2, .rank = 1}, HEDDLE_ERR_USAGE},
        {{.name = "w1", .adapters = SUBS, .adapter_count = 2, .slots = 2}, HEDDLE_ERR_TOO_FEW_SLOTS},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        int rc = membership_decide_join(&mem, &ROWS[i].join, &h, now.us, &retry_ms, &error);
        cr_assert_eq(rc, ROWS[i].code, "row %zu: %d %s", i, rc, error.message);
    }
    cr_assert_not_null(strstr(error.message, "2 slots"));
    cr_assert_not_null(strstr(error.message, "3 are needed"), "both numbers: %s", error.message);
    cr_assert_eq(mem.worker_count, 0);
}

Test(membership, enough_slots)
{
    cr_assert_eq(decide((join_t){"w1", 1, 3, 1}), HEDDLE_OK);
    cr_assert_eq(admit((join_t){"w1", 1, 5, 1})->slots, 5);
}

Test(membership, unequal_ucx_versions_are_refused_with_both_and_the_fix)
{
    admit((join_t){"w1", 1, 0, 1, "1.13.1"});
    cr_assert_eq(decide((join_t){"w2", 2, 0, 2, "1.22.0"}), HEDDLE_ERR_UCX_VERSION);
    cr_assert_str_eq(error.expected, "1.13.1");
    cr_assert_str_eq(error.found, "1.22.0");
    cr_assert_not_null(strstr(error.hint, "same UCX version"));
    cr_assert_eq(decide((join_t){"w2", 2, 0, 2, "1.22.0", "mem"}), HEDDLE_OK, "only where UCX is used");
    cr_assert_eq(decide((join_t){"w1", 3, 0, 1, "1.22.0"}), HEDDLE_OK,
                 "w1 itself may come back with another");
    cr_assert_null(open_as("policy", "t", 4, 9, "1.22.0"));
    cr_assert_eq(error.code, HEDDLE_ERR_UCX_VERSION);
    membership_end(&mem, membership_worker(&mem, "w1"), END_LEFT, now);
    cr_assert_eq(decide((join_t){"w2", 2, 0, 2, "1.22.0"}), HEDDLE_OK, "who left does not count");
    cr_assert_not_null(open_as("policy", "t", 4, 9, "1.22.0"));
    cr_assert_eq(decide((join_t){"w3", 5, 0, 3, "1.13.1"}), HEDDLE_ERR_UCX_VERSION, "publishers count too");
}

Test(membership, bad_names_of_writers)
{
    cr_assert_null(open_as("a b", "t", 1, 1, "1.13.1"));
    cr_assert_eq(error.code, HEDDLE_ERR_BAD_NAME);
    cr_assert_null(open_as("policy", "", 1, 1, "1.13.1"));
    cr_assert_eq(error.code, HEDDLE_ERR_BAD_NAME);
}

/* ---- the same name ---- */

Test(membership, a_live_holder_is_named)
{
    admit((join_t){"w1", 1, 0, 1});
    pass(500);
    cr_assert_eq(decide((join_t){"w1", 2, 0, 2}), HEDDLE_ERR_WORKER_ALIVE);
    cr_assert_not_null(strstr(error.message, "on host, pid 101"), "%s", error.message);
    cr_assert_not_null(strstr(error.message, "500 ms ago"));
    cr_assert_str_eq(error.hint,
                     "choose another opts.name, or end that worker; opts.join_timeout_ms bounds this wait");
    cr_assert_eq(error.retriable, 1);
    cr_assert_eq(retry_ms, 1000);
}

Test(membership, a_silent_holder_is_fenced)
{
    member_t *old = admit((join_t){"w1", 1, 0, 1});
    uint64_t old_token = old->token;
    pass(1999);
    cr_assert_eq(decide((join_t){"w1", 2, 0, 2}), HEDDLE_ERR_WORKER_ALIVE);
    pass(1); /* two heartbeats */
    cr_assert_eq(decide((join_t){"w1", 2, 0, 2}), HEDDLE_OK);
    member_t *new = admit((join_t){"w1", 2, 0, 2});
    cr_assert_eq(got.replaced_peer, 1);
    cr_assert_eq(got.replaced_token, old_token);
    cr_assert(got.is_fenced);
    cr_assert_null(membership_by_token(&mem, old_token), "I11");
    cr_assert_eq(membership_by_token(&mem, new->token), new);
    cr_assert_eq(mem.worker_count, 1);
    cr_assert_eq(new->counts.fenced, 1);
}

Test(membership, a_holder_whose_connection_is_gone_is_fenced_at_once)
{
    admit((join_t){"w1", 1, 0, 1})->is_gone = true;
    cr_assert_eq(decide((join_t){"w1", 2, 0, 2}), HEDDLE_OK);
    const member_t *new = admit((join_t){"w1", 2, 0, 2});
    cr_assert(got.replaced_peer == 1 && got.is_fenced);
    cr_assert_eq(new->counts.fenced, 0, "a process that was killed and started again is no rival");
}

Test(membership, the_same_life_replaces_itself_at_once_and_fences_nobody)
{
    uint64_t old_token = admit((join_t){"w1", 1, 0, 1})->token;
    cr_assert_eq(decide((join_t){"w1", 2, 0, 1}), HEDDLE_OK);
    member_t *new = admit((join_t){"w1", 2, 0, 1});
    cr_assert(got.replaced_token == old_token && !got.is_fenced);
    cr_assert_null(membership_by_token(&mem, old_token));
    cr_assert_eq(new->counts.fenced, 0);
    cr_assert_gt(new->token, old_token);
}

Test(membership, lost_and_left_rows_make_place)
{
    member_t *m = admit((join_t){"w1", 1, 0, 1});
    membership_end(&mem, m, END_LAPSED, now);
    cr_assert_eq(membership_worker(&mem, "w1")->state, MEMBER_LOST);
    cr_assert_eq(mem.ended_count, 1);
    cr_assert_eq(decide((join_t){"w1", 2, 0, 2}), HEDDLE_OK);
    m = admit((join_t){"w1", 2, 0, 2});
    cr_assert_eq(got.replaced_token, 0, "there was no session to fence");
    cr_assert_eq(m->counts.fenced, 0, "another process: the lost one is not there any more");
    cr_assert_eq(mem.ended_count, 0);
    membership_end(&mem, m, END_LAPSED, now);
    m = admit((join_t){"w1", 3, 0, 2});
    cr_assert_eq(m->counts.fenced, 1, "the same process: it stood still past its lease");
    membership_end(&mem, m, END_LEFT, now);
    m = admit((join_t){"w1", 4, 0, 3});
    cr_assert_eq(m->counts.fenced, 0, "another process: the name had become free");
}

Test(membership, each_end_has_a_state_and_a_reason)
{
    static const struct {
        member_end_t end;
        member_state_t state;
        int code;
        const char *why;
    } ROWS[] = {
        {END_LEFT, MEMBER_LEFT, HEDDLE_OK, ""},
        {END_LAPSED, MEMBER_LOST, HEDDLE_ERR_UNAVAILABLE, "its lease ended: no message for 2500 ms"},
        {END_SHUT_OUT, MEMBER_LOST, HEDDLE_ERR_DENIED, "its key was revoked"},
        {END_NOT_RETURNED, MEMBER_LOST, HEDDLE_ERR_UNAVAILABLE, "did not return after the broker's restart"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        member_t *m = admit((join_t){"w1", i + 1, 0, i + 1});
        pass(2500);
        membership_end(&mem, m, ROWS[i].end, now);
        cr_assert(m->state == ROWS[i].state && m->end_code == ROWS[i].code, "row %zu", i);
        cr_assert_str_eq(m->end_message, ROWS[i].why);
    }
}

Test(membership, one_publisher_an_adapter)
{
    member_t *p = open_as("policy", "t1", 1, 1, "1.13.1");
    uint64_t first = p->token;
    cr_assert_eq(membership_publisher(&mem, "policy"), p);
    cr_assert_null(membership_publisher(&mem, "critic"));
    p = open_as("policy", "t2", 2, 2, "1.13.1");
    cr_assert_eq(got.replaced_token, first);
    cr_assert(got.replaced_peer == 1 && got.is_fenced);
    cr_assert_eq(mem.publisher_count, 1);
    open_as("critic", "t2", 2, 2, "1.13.1");
    cr_assert_str_eq(mem.publishers[0]->subs[0].adapter, "critic");
    membership_end(&mem, p, END_LAPSED, now);
    cr_assert_str_eq(p->subs[0].adapter, "policy", "its row can still be read");
    cr_assert_null(membership_publisher(&mem, "policy"), "publishers are not listed when gone");
    cr_assert_eq(mem.ended_count, 0);
}

/* ---- where their data planes are ---- */

static member_t *place(member_t *m, const char *address, uint64_t network)
{
    m->addresses = calloc(2, sizeof *m->addresses);
    m->addresses[0] = strdup(address);
    m->address_count = 1;
    m->network = network;
    return m;
}

/* As place, of a member that told none. */
static void move(member_t *m, const char *address, uint64_t network)
{
    free(m->addresses[0]);
    free(m->addresses);
    place(m, address, network);
}

Test(membership, a_publisher_on_loopback_that_no_worker_reaches)
{
    member_t *p = open_as("policy", "t1", 9, 9, "1.13.1");
    free(p->addresses);
    place(p, "127.0.0.1", 7);
    cr_assert_eq(membership_cut_off(&mem, p), 0, "there is no worker yet");
    member_t *far = admit((join_t){.name = "far", .peer = 1, .life = 1});
    cr_assert_eq(membership_cut_off(&mem, p), 0, "where it is was not told");
    free(far->addresses);
    place(far, "10.0.0.2", 8);
    cr_assert_eq(membership_cut_off(&mem, p), 1);
    member_t *here = admit((join_t){.name = "here", .peer = 2, .life = 2});
    free(here->addresses);
    place(here, "10.0.0.1", 7);
    cr_assert_eq(membership_cut_off(&mem, p), 2, "of the same host, and not on its loopback");
    here->place = 5;
    cr_assert_eq(membership_cut_off(&mem, p), 2, "it shares memory with others");
    p->place = 5;
    cr_assert_eq(membership_cut_off(&mem, p), 0, "it holds the publisher's memory, whatever the networks");
    here->place = p->place = 0;
    cr_assert_eq(membership_cut_off(&mem, p), 2, "neither shares memory");
    move(here, "127.0.0.1", 7);
    cr_assert_eq(membership_cut_off(&mem, p), 0, "one reaches it, and others from there");
    move(here, "127.0.0.1", 8);
    cr_assert_eq(membership_cut_off(&mem, p), 2, "the loopback of another host");
    membership_end(&mem, here, END_LAPSED, now);
    cr_assert_eq(membership_cut_off(&mem, p), 1);
    move(p, "10.0.0.9", 7);
    cr_assert_eq(membership_cut_off(&mem, p), 0);
}

Test(membership, a_session_at_other_addresses_says_where_it_was)
{
    const char *first[] = {"10.0.0.1", "fd00::1"}, *second[] = {"10.0.0.2"};
    char text[64];
    msg_join_t join = join_of((join_t){.name = "w", .slots = 3});
    static const struct {
        uint8_t life;
        bool is_second;
        const char *moved_from;
    } ROWS[] = {{1, false, ""},
                {1, false, ""},
                {1, true, "10.0.0.1, fd00::1"},
                {1, true, ""},
                {2, false, ""}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        member_hello_t h = hello(1 + i, ROWS[i].life);
        join.addresses = ROWS[i].is_second ? second : first;
        join.address_count = ROWS[i].is_second ? 1 : 2;
        cr_assert_eq(membership_join(&mem, &join, &h, now, &got), HEDDLE_OK);
        const member_t *m = got.member;
        cr_expect_str_eq(m->moved_from, ROWS[i].moved_from, "row %zu", i);
        member_addresses(m, text, sizeof text);
        cr_expect_str_eq(text, ROWS[i].is_second ? "10.0.0.2" : "10.0.0.1, fd00::1");
    }
}

/* ---- leases ---- */

Test(membership, the_lease_counts_from_the_last_word)
{
    member_t *m = admit((join_t){"w1", 1, 0, 1});
    msg_heartbeat_t hb = {.counts.slots_total = 6,
                          .counts.slots_free = 2,
                          .counts.slots_held = 1,
                          .counts.bytes_in = 10,
                          .counts.fenced = 4};
    for (int i = 0; i < 10; i++) {
        pass(1000);
        membership_tick(&mem, now);
        cr_assert_null(membership_lapsed(&mem, now.us));
        membership_heartbeat(&mem, m, &hb, now.us);
    }
    cr_assert_eq(m->counts.slots_free, 2);
    cr_assert_eq(m->counts.bytes_in, 10);
    cr_assert_eq(m->counts.fenced, 4);
    for (int i = 0; i < 3; i++) {
        pass(1000);
        membership_tick(&mem, now);
    }
    membership_received(&mem, m, now.us); /* any frame of the token */
    for (int i = 0; i < 4; i++) {
        cr_assert_null(membership_lapsed(&mem, now.us));
        pass(1000);
        membership_tick(&mem, now);
    }
    cr_assert_eq(member_silent_ms(m, now.us), 4000);
    cr_assert_eq(membership_lapsed(&mem, now.us), m);
    membership_end(&mem, m, END_LAPSED, now);
    cr_assert_null(membership_by_token(&mem, m->token), "found by token only while READY");
    cr_assert_null(membership_lapsed(&mem, now.us));
    cr_assert(!member_is_ready(m) && !member_is_ready(NULL));
}

Test(membership, what_a_worker_has_counted_comes_with_join)
{
    member_t *m = admit((join_t){"w1", 1, 0, 1});
    cr_assert_eq(m->counts.slots_total, 0, "not known before it says so");
    msg_join_t j = join_of((join_t){"w1", 1, 0, 1});
    j.counts.slots_total = 6, j.counts.slots_free = 2, j.counts.slots_held = 1;
    j.counts.bytes_in = 10, j.counts.bytes_out = 11, j.counts.chunks_bad = 12, j.counts.retries = 13,
    j.counts.fenced = 4;
    member_hello_t h = hello(2, 1);
    cr_assert_eq(membership_join(&mem, &j, &h, now, &got), HEDDLE_OK);
    m = got.member;
    cr_assert(m->counts.slots_total == 6 && m->counts.slots_free == 2 && m->counts.slots_held == 1);
    cr_assert(m->counts.bytes_in == 10 && m->counts.bytes_out == 11 && m->counts.chunks_bad == 12 &&
              m->counts.retries == 13);
    cr_assert_eq(m->counts.fenced, 4);
    j.counts.fenced = 0;
    cr_assert_eq(membership_join(&mem, &j, &h, now, &got), HEDDLE_OK);
    cr_assert_eq(got.member->counts.fenced, 4, "what the broker has counted itself stays");
}

Test(membership, progress_of_known_subscriptions)
{
    member_t *m = admit((join_t){"w1", 1, 0, 1});
    msg_progress_t p[] = {
        {.adapter = "policy", .fetching = 3, .bytes_done = 5, .data_bytes = 9, .source = 7, .held_count = 2},
        {.adapter = "x"}};
    msg_heartbeat_t hb = {.adapters = p, .adapter_count = 2};
    membership_heartbeat(&mem, m, &hb, now.us);
    const member_sub_t *sub = member_sub(m, "policy");
    cr_assert(sub->fetching == 3 && sub->bytes_done == 5 && sub->data_bytes == 9 && sub->source == 7 &&
              sub->held_count == 2);
    member_t *t = open_as("policy", "t", 2, 2, "1.13.1");
    membership_heartbeat(&mem, t, &hb, now.us);
    cr_assert_eq(t->subs[0].fetching, 0, "publishers fetch nothing");
}

Test(membership, publishers_lapse_too)
{
    member_t *p = open_as("policy", "t", 1, 1, "1.13.1");
    for (int i = 0; i < 4; i++) {
        pass(1000);
        membership_tick(&mem, now);
    }
    cr_assert_eq(membership_lapsed(&mem, now.us), p);
}

Test(membership, nobody_lapses_while_settling)
{
    membership_start(&mem, 4, now.us, now.us + 2 * LEASE_US);
    member_t *m = admit((join_t){"w1", 1, 0, 1});
    for (int i = 0; i < 7; i++) {
        pass(1000);
        membership_tick(&mem, now);
        cr_assert_null(membership_lapsed(&mem, now.us));
    }
    pass(1000);
    cr_assert_eq(membership_lapsed(&mem, now.us), m);
}

Test(membership, a_broker_that_was_late_itself_grants_a_lease)
{
    member_t *m = admit((join_t){"w1", 1, 0, 1});
    membership_tick(&mem, now);
    pass(30000); /* stopped, or the machine slept */
    membership_tick(&mem, now);
    cr_assert_null(membership_lapsed(&mem, now.us));
    for (int i = 0; i < 3; i++) {
        pass(1000);
        membership_tick(&mem, now);
        cr_assert_null(membership_lapsed(&mem, now.us), "second %d", i);
    }
    pass(1000);
    membership_tick(&mem, now);
    cr_assert_eq(membership_lapsed(&mem, now.us), m);
}

Test(membership, three_quarters_of_a_lease_late_is_not_late)
{
    member_t *m = admit((join_t){"w1", 1, 0, 1});
    membership_tick(&mem, now);
    pass(3000);
    membership_tick(&mem, now);
    pass(1000);
    cr_assert_eq(membership_lapsed(&mem, now.us), m);
}

Test(membership, time_that_passed_alone_is_not_lateness)
{
    pass(100000); /* no tick was due: nobody was here */
    member_t *m = admit((join_t){"w1", 1, 0, 1});
    pass(1000);
    membership_tick(&mem, now);
    cr_assert_leq(mem.grace_end_us, now.us - 1000 * MS);
    cr_assert_eq(membership_deadline(&mem), now.us + LEASE_US / 4);
    cr_assert_not_null(m);
}

/* Leases end in the order in which the members were last heard, whatever their names and roles. */
Test(membership, the_lease_that_ends_first_is_found)
{
    member_t *w1 = admit((join_t){"w1", 1, 0, 1}), *w2 = admit((join_t){"w2", 2, 0, 2});
    member_t *p = open_as("policy", "t", 3, 3, "1.13.1");
    pass(500);
    membership_received(&mem, w1, now.us);
    pass(500);
    membership_received(&mem, w2, now.us - 700 * MS); /* it was received before w1's, and handled after it */
    for (int i = 0; i < 3; i++) {
        pass(i ? 1000 : 900);
        membership_tick(&mem, now);
    }
    member_t *const order[] = {p, w2, w1};
    const uint64_t end_ms[] = {4000, 4300, 4500};
    uint64_t began_us = w1->received_us - 500 * MS;
    for (size_t i = 0; i < 3; i++) {
        uint64_t end_us = began_us + end_ms[i] * MS;
        cr_assert_eq(membership_deadline(&mem), end_us, "row %zu", i);
        cr_assert_null(membership_lapsed(&mem, end_us - 1), "row %zu", i);
        cr_assert_eq(membership_lapsed(&mem, end_us), order[i], "row %zu", i);
        membership_end(&mem, order[i], END_LAPSED, now);
    }
    cr_assert_null(membership_lapsed(&mem, UINT64_MAX));
}

/* A random walk: what the queues and counts say is what a look at every row finds. */
Test(membership, queues_and_counts_are_those_of_the_rows)
{
    static const char *const UCX[] = {"1.13.1", "1.22.0"};
    uint64_t seed = 20261125;
    for (int step = 0; step < 4000; step++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t dice = (uint32_t)(seed >> 33);
        char name[16], group[16];
        snprintf(name, sizeof name, "w%u", dice % 12);
        snprintf(group, sizeof group, "g%u", dice / 12 % 3);
        msg_join_t join = join_of((join_t){.name = name, .ucx = UCX[dice / 36 % 2]});
        member_hello_t h = hello(1, (uint8_t)(dice / 72 % 2));
        join.group = group;
        join.ranks = 1 + dice / 144 % 2;
        pass(dice / 288 % 500);
        membership_tick(&mem, now);
        member_t *m = membership_worker(&mem, name), *other_ucx = NULL, *other_ranks = NULL, *due = NULL;
        for (size_t i = 0; i < mem.worker_count; i++) {
            member_t *w = mem.workers[i];
            if (!member_is_ready(w)) continue;
            if (!due || w->lease_end_us < due->lease_end_us) due = w;
            if (w != m && strcmp(w->ucx, join.ucx)) other_ucx = w;
            if (w != m && !strcmp(w->group, group) && w->ranks != join.ranks) other_ranks = w;
        }
        if (due) {
            uint64_t end_us = clock_earlier(due->lease_end_us, mem.tick_us + LEASE_US / 4);
            cr_assert_leq(membership_deadline(&mem), end_us > mem.grace_end_us ? end_us : mem.grace_end_us);
            cr_assert_eq(mem.leases.first->lease_end_us, due->lease_end_us, "step %d", step);
        }
        int rc = membership_decide_join(&mem, &join, &h, now.us, &retry_ms, &error);
        bool is_refused = rc == HEDDLE_ERR_UCX_VERSION || rc == HEDDLE_ERR_USAGE;
        cr_assert_eq(is_refused, other_ucx || other_ranks, "step %d: %s", step, error.message);
        if (!rc) cr_assert_eq(membership_join(&mem, &join, &h, now, &got), HEDDLE_OK);
        else if (member_is_ready(m) && dice % 3 == 0) membership_end(&mem, m, END_LEFT, now);
        else if (member_is_ready(m)) membership_received(&mem, m, now.us);
        member_t *lapsed;
        while ((lapsed = membership_lapsed(&mem, now.us))) membership_end(&mem, lapsed, END_LAPSED, now);
    }
}

/* ---- when to tick, when to forget ---- */

Test(membership, the_next_tick)
{
    cr_assert_eq(membership_deadline(&mem), CLOCK_NEVER);
    member_t *m = admit((join_t){"w1", 1, 0, 1});
    cr_assert_eq(membership_deadline(&mem), now.us + LEASE_US / 4);
    for (int i = 0; i < 3; i++) {
        pass(1000);
        membership_tick(&mem, now);
    }
    pass(500);
    membership_tick(&mem, now);
    cr_assert_eq(membership_deadline(&mem), m->lease_end_us, "the lease ends before the next quarter");
    membership_end(&mem, m, END_LEFT, now);
    cr_assert_eq(membership_deadline(&mem), now.us + MEMBER_LISTED_US);
}

Test(membership, gone_ones_are_listed_for_ten_minutes)
{
    member_t *m = admit((join_t){"w1", 1, 0, 1});
    membership_end(&mem, m, END_LAPSED, now);
    admit((join_t){"w2", 1, 0, 1});
    pass(1000);
    membership_end(&mem, membership_worker(&mem, "w2"), END_LEFT, now);
    pass(598999);
    membership_tick(&mem, now);
    cr_assert_not_null(membership_worker(&mem, "w1"));
    pass(1);
    membership_tick(&mem, now);
    cr_assert_null(membership_worker(&mem, "w1"));
    cr_assert_not_null(membership_worker(&mem, "w2"));
    pass(1000);
    membership_tick(&mem, now);
    cr_assert_null(membership_worker(&mem, "w2"));
    cr_assert_eq(mem.ended_count, 0);
    cr_assert_eq(membership_deadline(&mem), CLOCK_NEVER);
}

Test(membership, gone_ones_are_bounded)
{
    char name[16];
    for (unsigned i = 0; i < MEMBER_ENDED_MAX + 3; i++) {
        snprintf(name, sizeof name, "w%05u", i);
        pass(1);
        membership_end(&mem, admit((join_t){name, 1, 0, 1}), END_LEFT, now);
    }
    membership_tick(&mem, now);
    cr_assert_eq(mem.ended_count, MEMBER_ENDED_MAX);
    cr_assert_null(membership_worker(&mem, "w00002"));
    cr_assert_not_null(membership_worker(&mem, "w00003"));
}

Test(membership, names_of_states)
{
    cr_assert_str_eq(member_state_name(MEMBER_READY), "ready");
    cr_assert_str_eq(member_state_name(MEMBER_LEFT), "left");
    cr_assert_str_eq(member_state_name(MEMBER_LOST), "lost");
    cr_assert_str_eq(member_state_name((member_state_t)0), "unknown");
}

static int join_group(const char *name, uint64_t peer, uint64_t rank, uint64_t ranks)
{
    msg_join_t join = join_of((join_t){.name = name});
    member_hello_t h = hello(peer, (uint8_t)peer);
    join.group = "tp";
    join.rank = rank;
    join.ranks = ranks;
    int rc = membership_decide_join(&mem, &join, &h, now.us, &retry_ms, &error);
    if (!rc) rc = membership_join(&mem, &join, &h, now, &got);
    return rc;
}

Test(membership, the_ranks_of_a_group_agree_on_how_many_they_are)
{
    cr_assert_eq(join_group("w0", 1, 0, 2), HEDDLE_OK);
    cr_assert_eq(join_group("w1", 2, 1, 4), HEDDLE_ERR_USAGE);
    cr_assert(strstr(error.message, "w0") && strstr(error.expected, "2 ranks") && error.hint[0]);
    cr_assert_eq(join_group("w1", 2, 1, 2), HEDDLE_OK);
    cr_assert_eq(join_group("w9", 3, 1, 2), HEDDLE_OK, "a second one of a rank, before the first goes");
    const member_t *m = membership_worker(&mem, "w1");
    cr_assert(!strcmp(m->group, "tp") && m->rank == 1 && m->ranks == 2);
    membership_end(&mem, membership_worker(&mem, "w1"), END_LEFT, now);
    membership_end(&mem, membership_worker(&mem, "w9"), END_LEFT, now);
    cr_assert_eq(join_group("w0", 1, 0, 3), HEDDLE_OK, "a lone worker may change its own mind");
}

Test(membership, a_label_is_found_by_its_whole_key)
{
    char *labels[] = {"zone2=b", "zon=c", "zone=a=b", "zone=d"};
    member_t m = {.labels = labels, .label_count = 4};
    cr_assert_str_eq(member_label(&m, "zone"), "a=b");
    cr_assert_str_eq(member_label(&m, "rack"), "");
}

/* ---- draining ---- */

Test(membership, a_worker_that_drains_has_its_session)
{
    member_t *m = admit((join_t){.name = "w1", .peer = 1, .life = 1});
    cr_assert(membership_drain(m, now));
    cr_assert_not(membership_drain(m, now), "once");
    cr_assert(member_is_ready(m) && member_is_draining(m));
    cr_assert_eq(membership_by_token(&mem, m->token), m);
    cr_assert(member_is_last_resort(m, now.wall_ms), "others fetch from it last");
    membership_end(&mem, m, END_LEFT, now);
    cr_assert_not(member_is_ready(m));
    cr_assert_not(membership_drain(m, now), "it has ended");
}

Test(membership, a_session_of_the_same_process_drains_on)
{
    cr_assert(membership_drain(admit((join_t){.name = "w1", .peer = 1, .life = 1}), now));
    cr_assert(member_is_draining(admit((join_t){.name = "w1", .peer = 2, .life = 1})));
    membership_end(&mem, membership_worker(&mem, "w1"), END_LAPSED, now);
    cr_assert(member_is_draining(admit((join_t){.name = "w1", .peer = 3, .life = 1})));
    membership_end(&mem, membership_worker(&mem, "w1"), END_LEFT, now);
    member_t *other = admit((join_t){.name = "w1", .peer = 4, .life = 2});
    cr_assert_eq(other->state, MEMBER_READY);
}
