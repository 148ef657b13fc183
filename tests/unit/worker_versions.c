/* SPDX-License-Identifier: Apache-2.0 */
/* The table of worker/versions.h, cell by cell; its notes; and seeded random runs against its invariants. */
#include "worker_walk.h"

#include <stdio.h>
#include <stdlib.h>

static versions_action_t out[VERSIONS_ACTIONS_MAX];
static char said[4096];

static digest_t digest_of(uint64_t version)
{
    digest_t d = {{0}};
    memcpy(d.b, &version, sizeof version);
    return d;
}

static const char *NAMES[] = {
    [VA_BRING] = "BRING",   [VA_SEND_STAGED] = "STAGED", [VA_SEND_ACTIVE] = "ACTIVE", [VA_SEND_NACK] = "NACK",
    [VA_TELL_APP] = "tell", [VA_FLIP] = "FLIP",          [VA_DROP] = "DROP"};

/* "NACK 8 no_slot, tell 10 8, BRING 7". */
static void render(versions_t *s, int count)
{
    size_t at = 0;
    said[0] = 0;
    for (int i = 0; i < count; i++) {
        const versions_action_t *a = &out[i];
        if (a->kind == VA_FORGET) continue; /* each entry that goes: see worker_walk.h */
        at += (size_t)snprintf(said + at, sizeof said - at, "%s%s", at ? ", " : "", NAMES[a->kind]);
        if (a->kind == VA_TELL_APP) at += (size_t)snprintf(said + at, sizeof said - at, " %d", a->event);
        at += (size_t)snprintf(said + at, sizeof said - at, " %d", (int)a->version);
        if (a->kind == VA_SEND_ACTIVE || (a->kind == VA_SEND_NACK && a->decision))
            at += (size_t)snprintf(said + at, sizeof said - at, " d%d", (int)a->decision);
        if (a->kind == VA_SEND_NACK)
            at += (size_t)snprintf(said + at, sizeof said - at, " %s",
                                   heddle_err_name(versions_nack(s, a->version, a->decision)->error.code));
    }
}

static uint64_t now;
static bool is_half_fetched; /* what is coming */

/* By slot: the version that was dropped there, until it is drained; 0: none. */
static uint64_t leaving[LIMIT_SLOTS];

/* As slots_next_free says it. */
static int first_free(const versions_t *s)
{
    for (int slot = 0; slot < (int)LIMIT_SLOTS; slot++) {
        bool is_used = leaving[slot] != 0;
        for (unsigned i = 0; i < VERSIONS_ENTRIES; i++) {
            const versions_entry_t *e = &s->entries[i];
            is_used |= e->state != VERSIONS_ABSENT && e->slot == slot;
        }
        if (!is_used) return slot;
    }
    return -1;
}

static versions_slots_t slots_of(const versions_t *s)
{
    versions_slots_t slots = {.next = first_free(s), .is_half_fetched = is_half_fetched};
    for (int i = 0; i < (int)LIMIT_SLOTS; i++)
        if (leaving[i]) slots.leaving[slots.leaving_count++] = leaving[i];
    return slots;
}

static int feed(versions_t *s, versions_event_t ev)
{
    heddle_error_t why;
    error_fail(&why, HEDDLE_ERR_INTERNAL, "why");
    if (!ev.error && (ev.kind == VE_BRING_FAILED || ev.kind == VE_APP_REJECT)) ev.error = &why;
    if ((ev.kind == VE_ANNOUNCE || ev.kind == VE_COMMIT || ev.kind == VE_UP) &&
        digest_equal(&ev.digest, &(digest_t){{0}}))
        ev.digest = digest_of(ev.version);
    versions_slots_t slots = slots_of(s);
    int n = versions_step(s, &ev, &slots, now, out);
    for (int i = 0; i < n; i++)
        if (out[i].kind == VA_DROP) leaving[out[i].slot] = out[i].version;
    render(s, n < 0 ? 0 : n);
    return n;
}

static int fed(versions_t *s, versions_event_kind_t kind, uint64_t version)
{
    return feed(s, (versions_event_t){.kind = kind, .version = version});
}
static void announce(versions_t *s, uint64_t v)
{
    feed(s, (versions_event_t){.kind = VE_ANNOUNCE, .version = v, .deadline_us = 60000000});
}
static void commit(versions_t *s, uint64_t v, uint64_t d)
{
    feed(s, (versions_event_t){.kind = VE_COMMIT, .version = v, .decision = d});
}
static void up(versions_t *s, uint64_t v, uint64_t d, const uint64_t *keep, uint32_t n)
{
    feed(s, (versions_event_t){.kind = VE_UP,
                               .version = v,
                               .decision = d,
                               .slot_count = 3,
                               .keep = keep,
                               .keep_count = n});
}

static versions_state_t state_of(const versions_t *s, uint64_t v)
{
    const versions_entry_t *e = versions_find(s, v);
    return e ? e->state : VERSIONS_ABSENT;
}

static bool is_any_leaving(void)
{
    for (unsigned i = 0; i < LIMIT_SLOTS; i++)
        if (leaving[i]) return true;
    return false;
}

static void drain(versions_t *s)
{
    for (unsigned i = 0; i < LIMIT_SLOTS; i++) {
        if (!leaving[i]) continue;
        leaving[i] = 0;
        fed(s, VE_DRAINED, 0);
    }
}

/* Stages (and with a decision activates) one version. */
static void stage(versions_t *s, uint64_t v)
{
    announce(s, v);
    fed(s, VE_ARRIVED, v);
    if (s->app) fed(s, VE_APP_STAGED, v);
}

static void serve(versions_t *s, uint64_t v, uint64_t d)
{
    stage(s, v);
    commit(s, v, d);
    if (s->app) fed(s, VE_APP_ACTIVATE, v);
    cr_assert_eq(state_of(s, v), VERSIONS_ACTIVE);
}

/* The column of a version that was dropped, whose slot is LEAVING. */
enum { LEFT = VERSIONS_STATE_COUNT, COLUMNS };

/* Version 7 in `state`; 3 slots. */
static void bring(versions_t *s, bool app, versions_state_t state)
{
    now = 1000;
    is_half_fetched = false;
    memset(leaving, 0, sizeof leaving);
    versions_init(s, app);
    up(s, 0, 0, NULL, 0);
    switch ((int)state) {
    case VERSIONS_WAITING: /* three slots taken: 1 active, 2 kept, 3 staged */
        serve(s, 2, 1);
        serve(s, 1, 2);
        stage(s, 3);
        announce(s, 7);
        break;
    case VERSIONS_COMING: announce(s, 7); break;
    case VERSIONS_ARRIVED:
        announce(s, 7);
        fed(s, VE_ARRIVED, 7);
        break;
    case VERSIONS_STAGED: stage(s, 7); break;
    case VERSIONS_ACTIVE: serve(s, 7, 5); break;
    case VERSIONS_KEPT:
        serve(s, 7, 5);
        serve(s, 6, 6);
        break;
    case LEFT:
        stage(s, 7);
        fed(s, VE_ABORT, 7);
        break;
    default: break;
    }
    if ((int)state != LEFT) cr_assert_eq(state_of(s, 7), state, "state %d", state);
}

/* Rows: event; columns: state.  "next|actions"; next as a letter: a w f A S V K L = absent .. leaving, N:
 * NOT_FOUND. */
typedef struct {
    versions_event_kind_t kind;
    const char *cells[8];
} row_t;

#define FAILED "tell 10 7"
#define STALE "tell 9 7"
#define RETIRED "tell 11 7"

/* With AUTO: columns absent waiting coming (arrived: none) staged active kept leaving. */
static const row_t AUTO[] = {
    {VE_ANNOUNCE, {"f|BRING 7", "w|", "f|", NULL, "S|STAGED 7", "V|ACTIVE 7 d5", "K|STAGED 7", "w|"}},
    {VE_ARRIVED, {"a|", "w|", "S|STAGED 7, tell 6 7", NULL, "S|", "V|", "K|", "L|"}},
    {VE_BRING_FAILED, {"a|", "w|", "L|NACK 7 internal, " FAILED ", DROP 7", NULL, "S|", "V|", "K|", "L|"}},
    {VE_APP_STAGED, {"N|", "N|", "N|", NULL, "S|", "V|", "K|", "N|"}},
    {VE_APP_ACTIVATE, {"N|", "N|", "N|", NULL, "N|", "V|", "N|", "N|"}},
    {VE_APP_REJECT, {"N|", "N|", "N|", NULL, "L|NACK 7 internal, " FAILED ", DROP 7", "N|", "N|", "N|"}},
    {VE_COMMIT,
     {"a|", "w|tell 9 7", "f|", NULL, "V|FLIP 7, ACTIVE 7 d9, tell 8 7", "V|ACTIVE 7 d9, tell 8 7",
      "V|FLIP 7, ACTIVE 7 d9, tell 8 7", "L|"}},
    {VE_ABORT, {"a|", "a|" FAILED, "L|" FAILED ", DROP 7", NULL, "L|" FAILED ", DROP 7", "V|", "K|", "L|"}},
    {VE_RETIRE,
     {"a|", "a|" RETIRED, "L|" RETIRED ", DROP 7", NULL, "L|" RETIRED ", DROP 7", "V|",
      "L|" RETIRED ", DROP 7", "L|"}},
    {VE_SOURCES, {"a|", "w|", "f|", NULL, "S|", "V|", "K|", "L|"}},
    {VE_HOLDABLE, {"a|", "w|", "w|DROP 7", NULL, "S|", "V|", "K|", "L|"}},
    {VE_DOWN, {"a|", "w|", "f|", NULL, "S|", "V|", "K|", "L|"}},
    {VE_TICK, {"a|", "w|", "f|", NULL, "S|", "V|", "K|", "L|"}},
    {VE_DAMAGED,
     {"a|", "w|", "f|", NULL, "L|NACK 7 digest_mismatch, " FAILED ", DROP 7", "V|",
      "L|NACK 7 digest_mismatch, " FAILED ", " RETIRED ", DROP 7", "L|"}},
    {VE_DRAINED, {"a|", "w|", "f|", NULL, "S|", "V|", "K|", "a|"}},
};

/* With an application: what differs. */
static const row_t APP[] = {
    {VE_ANNOUNCE, {"f|BRING 7", "w|", "f|", "A|", "S|STAGED 7", "V|ACTIVE 7 d5", "K|STAGED 7", "w|"}},
    {VE_ARRIVED, {"a|", "w|", "A|tell 5 7", "A|", "S|", "V|", "K|", "L|"}},
    {VE_BRING_FAILED, {"a|", "w|", "L|NACK 7 internal, " FAILED ", DROP 7", "A|", "S|", "V|", "K|", "L|"}},
    {VE_APP_STAGED, {"N|", "N|", "N|", "S|STAGED 7", "S|", "V|", "K|", "N|"}},
    {VE_APP_ACTIVATE, {"N|", "N|", "N|", "N|", "N|", "V|", "N|", "N|"}},
    {VE_APP_REJECT,
     {"N|", "N|", "N|", "L|NACK 7 internal, " FAILED ", DROP 7", "L|NACK 7 internal, " FAILED ", DROP 7",
      "N|", "N|", "N|"}},
    {VE_COMMIT,
     {"a|", "w|tell 9 7", "f|", "A|", "S|tell 7 7", "V|ACTIVE 7 d9, tell 8 7", "K|tell 7 7", "L|"}},
    {VE_ABORT,
     {"a|", "a|" FAILED, "L|" FAILED ", DROP 7", "L|" FAILED ", DROP 7", "L|" FAILED ", DROP 7", "V|", "K|",
      "L|"}},
    {VE_RETIRE,
     {"a|", "a|" RETIRED, "L|" RETIRED ", DROP 7", "L|" RETIRED ", DROP 7", "L|" RETIRED ", DROP 7", "V|",
      "L|" RETIRED ", DROP 7", "L|"}},
};

static char letter(const versions_t *s, int rc, uint64_t v)
{
    if (rc == HEDDLE_ERR_NOT_FOUND) return 'N';
    versions_state_t state = state_of(s, v);
    if (state == VERSIONS_ABSENT && is_any_leaving()) return 'L';
    return "awfASVK"[state];
}

static void check_cell(bool app, versions_event_kind_t kind, versions_state_t state, const char *cell)
{
    versions_t s;
    bring(&s, app, state);
    versions_event_t ev = {.kind = kind, .version = 7, .decision = 9, .deadline_us = 60000000};
    if (kind == VE_DRAINED) memset(leaving, 0, sizeof leaving);
    int rc = feed(&s, ev);
    char found[4200];
    snprintf(found, sizeof found, "%c|%s", letter(&s, rc, 7), said);
    cr_expect_str_eq(found, cell, "%s: event %d in state %d: found %s, expected %s", app ? "app" : "auto",
                     kind, state, found, cell);
}

Test(versions, every_cell_auto)
{
    for (size_t r = 0; r < sizeof AUTO / sizeof *AUTO; r++)
        for (int state = VERSIONS_ABSENT; state < COLUMNS; state++)
            if (AUTO[r].cells[state])
                check_cell(false, AUTO[r].kind, (versions_state_t)state, AUTO[r].cells[state]);
}

Test(versions, every_cell_app)
{
    for (size_t r = 0; r < sizeof APP / sizeof *APP; r++)
        for (int state = VERSIONS_ABSENT; state < COLUMNS; state++)
            check_cell(true, APP[r].kind, (versions_state_t)state, APP[r].cells[state]);
}

Test(versions, what_went_bad_while_it_was_served_is_not_kept)
{
    versions_t s;
    bring(&s, false, VERSIONS_ACTIVE);
    fed(&s, VE_DAMAGED, 7);
    stage(&s, 8);
    commit(&s, 8, 9);
    cr_assert_str_eq(said, "FLIP 8, ACTIVE 8 d9, tell 8 8, NACK 7 digest_mismatch, " FAILED ", " RETIRED
                           ", DROP 7");
}

/* The application was asked to switch, and has not answered. */
Test(versions, what_went_bad_before_the_switch_is_fetched_anew)
{
    versions_t s;
    bring(&s, true, VERSIONS_KEPT);
    commit(&s, 7, 9);
    fed(&s, VE_DAMAGED, 7);
    cr_assert_str_eq(said, "NACK 7 digest_mismatch, " FAILED ", DROP 7");
    cr_assert_eq(state_of(&s, 7), VERSIONS_WAITING);
    cr_assert_eq(fed(&s, VE_APP_ACTIVATE, 7), HEDDLE_ERR_NOT_FOUND);
    drain(&s);
    now += VERSIONS_RETRY_US;
    fed(&s, VE_TICK, 0);
    cr_assert_eq(state_of(&s, 7), VERSIONS_COMING);
}

Test(versions, up_drops_what_was_restated_and_is_not_kept)
{
    static const struct {
        versions_state_t state;
        const char *cell;
    } CASES[] = {{VERSIONS_ARRIVED, "L|" RETIRED ", DROP 7"},
                 {VERSIONS_STAGED, "L|" RETIRED ", DROP 7"},
                 {VERSIONS_ACTIVE, "V|"},
                 {VERSIONS_KEPT, "L|" RETIRED ", DROP 7"}};
    for (size_t i = 0; i < 4; i++) {
        versions_t s;
        bring(&s, true, CASES[i].state);
        fed(&s, VE_DOWN, 0);
        versions_restate(&s);
        up(&s, 0, 0, &(uint64_t){6}, 1);
        char found[4200];
        snprintf(found, sizeof found, "%c|%s", letter(&s, 0, 7), said);
        cr_expect_str_eq(found, CASES[i].cell, "%s", found);
    }
}

Test(versions, up_keeps_what_came_after_the_join)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    fed(&s, VE_DOWN, 0);
    versions_restate(&s);
    fed(&s, VE_ARRIVED, 7); /* between JOIN and WELCOME */
    cr_assert_str_eq(said, "tell 6 7");
    up(&s, 0, 0, NULL, 0);
    cr_assert_str_eq(said, "STAGED 7");
    cr_assert_eq(state_of(&s, 7), VERSIONS_STAGED);
}

Test(versions, what_the_join_restated_is_not_said_again)
{
    versions_t s;
    bring(&s, false, VERSIONS_KEPT);
    stage(&s, 8);
    fed(&s, VE_DOWN, 0);
    versions_restate(&s);
    up(&s, 6, 6, (uint64_t[]){7, 8}, 2);
    cr_assert_str_eq(said, "");
    fed(&s, VE_DOWN, 0); /* a WELCOME that answers no restatement: everything is said */
    up(&s, 6, 6, NULL, 0);
    cr_assert_str_eq(said, "STAGED 8, ACTIVE 6 d6");
}

Test(versions, welcome_is_a_missed_commit)
{
    versions_t s;
    bring(&s, false, VERSIONS_STAGED);
    fed(&s, VE_DOWN, 0);
    versions_restate(&s);
    up(&s, 7, 3, NULL, 0);
    cr_assert_str_eq(said, "FLIP 7, ACTIVE 7 d3, tell 8 7");
    cr_assert_eq(s.applied.decision, 3);
}

Test(versions, lapsed_session_applies_nothing_queued)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    commit(&s, 7, 4);
    fed(&s, VE_DOWN, 0);
    fed(&s, VE_ARRIVED, 7);
    cr_assert_str_eq(said, "tell 6 7"); /* staged, not active, nothing sent */
    commit(&s, 7, 4);                   /* a frame of the old session */
    cr_assert_str_eq(said, "");
    cr_assert_eq(state_of(&s, 7), VERSIONS_STAGED);
    up(&s, 0, 0, NULL, 0);
    cr_assert_str_eq(said, "STAGED 7");
    cr_assert_null(versions_active(&s));
}

Test(versions, application_cannot_activate_after_the_lapse)
{
    versions_t s;
    bring(&s, true, VERSIONS_STAGED);
    commit(&s, 7, 4);
    cr_assert_str_eq(said, "tell 7 7");
    fed(&s, VE_DOWN, 0);
    cr_assert_eq(fed(&s, VE_APP_ACTIVATE, 7), HEDDLE_ERR_FENCED);
    up(&s, 7, 4, NULL, 0);
    cr_assert_str_eq(said, "STAGED 7, tell 7 7");
}

/* At most: what did not come here may have been less. */
Test(versions, how_far_behind_it_is)
{
    versions_t s;
    bring(&s, false, VERSIONS_ACTIVE); /* 7 */
    uint64_t decision = s.applied.decision;
    cr_assert_eq(versions_lag(&s), 0);
    commit(&s, 8, decision + 1);
    cr_assert_eq(versions_lag(&s), 1);
    commit(&s, 19, decision + 3); /* others failed, or did not come */
    cr_assert_eq(versions_lag(&s), 3);
    commit(&s, 5, decision + 4); /* a roll-back */
    cr_assert_eq(versions_lag(&s), 2);
    commit(&s, 8, decision + (1 << 24)); /* numbers jump after older data were put back */
    cr_assert_eq(versions_lag(&s), 1);
    stage(&s, 8);
    cr_assert_eq(versions_lag(&s), 0);
    cr_assert_eq(versions_count(&s, VERSIONS_ACTIVE), 1);
    versions_init(&s, false);
    cr_assert_eq(versions_lag(&s), 0, "nothing is decided");
    up(&s, 7, 1, NULL, 0);
    cr_assert_eq(versions_lag(&s), 1);
}

Test(versions, decisions_never_go_back)
{
    versions_t s;
    bring(&s, false, VERSIONS_KEPT); /* 7 kept (d5), 6 active (d6) */
    commit(&s, 7, 5);
    cr_assert_str_eq(said, "");
    commit(&s, 7, 6);
    cr_assert_str_eq(said, "");
    commit(&s, 6, 6);
    cr_assert_str_eq(said, "ACTIVE 6 d6"); /* the answer was lost */
    commit(&s, 7, 8);
    commit(&s, 6, 7);
    cr_assert_str_eq(said, "");
    cr_assert_eq(versions_active(&s)->version, 7);
    fed(&s, VE_DOWN, 0);
    up(&s, 6, 7, NULL, 0); /* a registry that went back */
    cr_assert_eq(versions_active(&s)->version, 7);
}

Test(versions, a_decision_that_comes_after_a_greater_one_changes_nothing)
{
    versions_t s;
    bring(&s, false, VERSIONS_KEPT); /* 7 kept (d5), 6 active (d6) */
    commit(&s, 8, 8);                /* not here yet */
    commit(&s, 7, 7);
    cr_assert_str_eq(said, "");
    cr_assert_eq(versions_active(&s)->version, 6);
    stage(&s, 8);
    cr_assert_eq(versions_active(&s)->version, 8);
    cr_assert_eq(s.applied.decision, 8);
}

Test(versions, commit_before_staged_is_remembered)
{
    versions_t s;
    bring(&s, false, VERSIONS_ABSENT);
    serve(&s, 1, 1);
    commit(&s, 7, 2); /* before its announcement */
    cr_assert_str_eq(said, "tell 9 7");
    announce(&s, 7);
    fed(&s, VE_ABORT, 7); /* not while the decision names it */
    cr_assert_str_eq(said, "");
    fed(&s, VE_ARRIVED, 7);
    cr_assert_str_eq(said, "STAGED 7, tell 6 7, FLIP 7, ACTIVE 7 d2, tell 8 7");
}

Test(versions, later_announcement_preempts)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    announce(&s, 8);
    cr_assert_str_eq(said, "DROP 7, BRING 8");
    cr_assert_eq(state_of(&s, 7), VERSIONS_WAITING);
    drain(&s);
    fed(&s, VE_ABORT, 8);
    cr_assert_str_eq(said, "tell 10 8, DROP 8, BRING 7"); /* the older one comes back */
}

Test(versions, preempted_version_waits_for_its_own_slot_to_drain)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    announce(&s, 8);
    fed(&s, VE_ABORT, 8);
    cr_assert_str_eq(said, "tell 10 8, DROP 8"); /* 7 is still leaving another slot: its key is shared */
    drain(&s);
    cr_assert_eq(state_of(&s, 7), VERSIONS_COMING);
}

Test(versions, named_version_is_finished_first)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    commit(&s, 7, 1);
    announce(&s, 8);
    cr_assert_str_eq(said, "");
    commit(&s, 8, 2); /* a step forward: 7 is still worth finishing */
    fed(&s, VE_ARRIVED, 7);
    cr_assert_str_eq(said, "STAGED 7, tell 6 7, FLIP 7, ACTIVE 7 d1, tell 8 7, BRING 8");
    fed(&s, VE_ARRIVED, 8);
    cr_assert_eq(versions_active(&s)->version, 8);
    cr_assert_eq(s.applied.decision, 2);
}

/* A process that has just begun is sent version 7, which is active: no rollout waits for it here. */
static void join_late(versions_t *s)
{
    bring(s, false, VERSIONS_ABSENT);
    up(s, 7, 1, NULL, 0);
    feed(s, (versions_event_t){.kind = VE_ANNOUNCE, .version = 7});
    cr_assert_str_eq(said, "BRING 7");
}

Test(versions, what_was_active_at_the_start_of_the_process_gives_way_to_a_later_decision_once)
{
    versions_t s;
    join_late(&s);
    feed(&s, (versions_event_t){.kind = VE_ANNOUNCE, .version = 8});
    cr_assert_str_eq(said, "", "it may never be decided");
    commit(&s, 8, 2);
    cr_assert_str_eq(said, "DROP 7, BRING 8");
    drain(&s);
    feed(&s, (versions_event_t){.kind = VE_ANNOUNCE, .version = 9});
    commit(&s, 9, 3);
    cr_assert_str_eq(said, "", "8 is finished");
    fed(&s, VE_ARRIVED, 8);
    cr_assert_str_eq(said, "STAGED 8, tell 6 8, FLIP 8, ACTIVE 8 d2, tell 8 8, BRING 9");
}

Test(versions, what_was_active_at_the_start_of_the_process_is_finished_from_half_of_its_bytes_on)
{
    versions_t s;
    join_late(&s);
    is_half_fetched = true;
    feed(&s, (versions_event_t){.kind = VE_ANNOUNCE, .version = 8});
    commit(&s, 8, 2);
    cr_assert_str_eq(said, "");
    fed(&s, VE_ARRIVED, 7);
    cr_assert_str_eq(said, "STAGED 7, tell 6 7, FLIP 7, ACTIVE 7 d1, tell 8 7, BRING 8");
}

Test(versions, what_was_active_at_the_start_of_the_process_stays_where_the_later_one_cannot_be_fetched)
{
    versions_t s;
    join_late(&s);
    commit(&s, 8, 2);
    cr_assert_str_eq(said, "", "it was not announced: no source is known");
    cr_assert_eq(state_of(&s, 7), VERSIONS_COMING);
}

static void sources(versions_t *s, uint64_t v, uint32_t count)
{
    feed(s, (versions_event_t){.kind = VE_SOURCES, .version = v, .source_count = count});
}

Test(versions, lost_version_gives_way)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    commit(&s, 7, 1);
    sources(&s, 7, 0);
    cr_assert_str_eq(said, "");
    announce(&s, 8);
    cr_assert_str_eq(said, "DROP 7, BRING 8");
    fed(&s, VE_TICK, 0);
    cr_assert_eq(state_of(&s, 8), VERSIONS_COMING); /* and 7 does not take its place back */
    drain(&s);
    fed(&s, VE_ARRIVED, 8);
    cr_assert_str_eq(said,
                     "STAGED 8, tell 6 8, BRING 7"); /* still what was decided: somebody may come back */
    sources(&s, 7, 0);
    commit(&s, 8, 2);
    cr_assert_str_eq(said, "DROP 7, FLIP 8, ACTIVE 8 d2, tell 8 8");
}

/* Its bytes are in the memory of another process of the host. */
Test(versions, what_can_be_held_after_all_begins_anew)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    commit(&s, 7, 1);
    fed(&s, VE_HOLDABLE, 7);
    cr_assert_str_eq(said, "DROP 7");
    cr_assert_eq(versions_deadline(&s), now + 1,
                 "at once, and not in the same step: its share key is in use");
    now++;
    fed(&s, VE_TICK, 0);
    cr_assert_str_eq(said, "", "its slot is LEAVING");
    drain(&s);
    cr_assert_str_eq(said, "BRING 7");
    fed(&s, VE_ARRIVED, 7);
    cr_assert_eq(state_of(&s, 7), VERSIONS_ACTIVE);
}

Test(versions, retired_while_it_comes)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    commit(&s, 7, 1);
    announce(&s, 8);
    cr_assert_str_eq(said, "");
    fed(&s, VE_RETIRE, 7); /* nobody keeps it any more: it could only starve */
    cr_assert_str_eq(said, "tell 11 7, DROP 7, BRING 8");
}

Test(versions, found_again_it_is_finished_first)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    commit(&s, 7, 1);
    sources(&s, 7, 0);
    sources(&s, 7, 1);
    announce(&s, 8);
    cr_assert_str_eq(said, "");
}

Test(versions, overtaken_and_lost_is_dropped)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    commit(&s, 7, 1);
    announce(&s, 8);
    commit(&s, 8, 2);
    cr_assert_eq(state_of(&s, 7), VERSIONS_COMING);
    sources(&s, 7, 0);
    cr_assert_str_eq(said, "DROP 7, BRING 8");
    cr_assert_eq(state_of(&s, 7), VERSIONS_ABSENT);
}

Test(versions, step_back_takes_the_name_away)
{
    versions_t s;
    bring(&s, false, VERSIONS_ABSENT);
    serve(&s, 1, 1);
    announce(&s, 7);
    commit(&s, 7, 2);
    commit(&s, 1, 3); /* rolled back while 7 was coming */
    cr_assert_str_eq(said, "ACTIVE 1 d3, tell 8 1");
    fed(&s, VE_ARRIVED, 7);
    cr_assert_str_eq(said, "STAGED 7, tell 6 7");
    cr_assert_eq(versions_active(&s)->version, 1);
}

/* The engine may have switched before the application hears of the step back. */
Test(versions, an_application_that_is_switching_is_heard_after_a_step_back)
{
    versions_t s;
    bring(&s, true, VERSIONS_STAGED);
    commit(&s, 7, 4);
    cr_assert_str_eq(said, "tell 7 7");
    announce(&s, 3);
    commit(&s, 3, 5);
    cr_assert_gt(fed(&s, VE_APP_ACTIVATE, 7), 0);
    cr_assert_str_eq(said, "FLIP 7, ACTIVE 7 d4, tell 8 7");
    fed(&s, VE_ARRIVED, 3);
    fed(&s, VE_APP_STAGED, 3);
    cr_assert_gt(fed(&s, VE_APP_ACTIVATE, 3), 0);
    cr_assert_eq(versions_active(&s)->version, 3);
    cr_assert_eq(fed(&s, VE_APP_ACTIVATE, 7), HEDDLE_ERR_NOT_FOUND); /* once */
}

/* Nor is the version that is active here said to be served before the application is back at it. */
Test(versions, a_step_back_to_the_active_version_asks_who_may_have_switched)
{
    versions_t s;
    bring(&s, true, VERSIONS_ACTIVE); /* 7, d5 */
    stage(&s, 8);
    commit(&s, 8, 6);
    commit(&s, 7, 7);
    cr_assert_str_eq(said, "tell 7 7");
    fed(&s, VE_TICK, 0);
    cr_assert_str_eq(said, "", "once");
    cr_assert_gt(fed(&s, VE_APP_ACTIVATE, 7), 0);
    cr_assert_str_eq(said, "ACTIVE 7 d7, tell 8 7");
    commit(&s, 7, 8);
    cr_assert_str_eq(said, "ACTIVE 7 d8, tell 8 7", "it is known to be there");
    commit(&s, 8, 9);
    cr_assert_gt(fed(&s, VE_APP_ACTIVATE, 8), 0);
    commit(&s, 8, 10);
    cr_assert_str_eq(said, "ACTIVE 8 d10, tell 8 8");
}

Test(versions, who_switched_before_it_heard_of_the_step_back_is_asked_to_go_back)
{
    versions_t s;
    bring(&s, true, VERSIONS_ACTIVE);
    stage(&s, 8);
    commit(&s, 8, 6);
    commit(&s, 7, 7);
    cr_assert_gt(fed(&s, VE_APP_ACTIVATE, 8), 0);
    cr_assert_str_eq(said, "FLIP 8, ACTIVE 8 d6, tell 8 8");
    commit(&s, 8, 8); /* and forth again, before it answered */
    cr_assert_str_eq(said, "tell 7 8");
    cr_assert_gt(fed(&s, VE_APP_ACTIVATE, 8), 0);
    cr_assert_str_eq(said, "ACTIVE 8 d8, tell 8 8");
}

Test(versions, who_cannot_go_back_is_stale_and_asked_again)
{
    versions_t s;
    bring(&s, true, VERSIONS_ACTIVE);
    stage(&s, 8);
    commit(&s, 8, 6);
    commit(&s, 7, 7);
    cr_assert_gt(fed(&s, VE_APP_REJECT, 7), 0);
    cr_assert_str_eq(said, "NACK 7 d7 internal, " STALE);
    cr_assert_eq(state_of(&s, 7), VERSIONS_ACTIVE);
    commit(&s, 7, 8);
    cr_assert_str_eq(said, "tell 7 7");
    fed(&s, VE_APP_REJECT, 7);
    fed(&s, VE_DOWN, 0);
    up(&s, 7, 8, NULL, 0);
    cr_assert(strstr(said, "tell 7 7"), "by a WELCOME too: %s", said);
    cr_assert_gt(fed(&s, VE_APP_ACTIVATE, 7), 0);
    cr_assert_str_eq(said, "ACTIVE 7 d8, tell 8 7");
}

Test(versions, who_switched_while_the_broker_was_away_is_asked_to_go_back)
{
    versions_t s;
    bring(&s, true, VERSIONS_ACTIVE);
    stage(&s, 8);
    commit(&s, 8, 6);
    fed(&s, VE_DOWN, 0);
    cr_assert_eq(fed(&s, VE_APP_ACTIVATE, 8), HEDDLE_ERR_FENCED);
    const uint64_t keep[] = {7, 8};
    up(&s, 7, 7, keep, 2);
    cr_assert(strstr(said, "tell 7 7"), "%s", said);
    cr_assert_gt(fed(&s, VE_APP_ACTIVATE, 7), 0);
    cr_assert_str_eq(said, "ACTIVE 7 d7, tell 8 7");
}

/* 7 is active by d5, and 8 is being switched to by d6, when the line breaks. */
static void broken_off(versions_t *s)
{
    bring(s, true, VERSIONS_ACTIVE);
    stage(s, 8);
    commit(s, 8, 6);
    fed(s, VE_DOWN, 0);
    versions_restate(s);
}

/* Then older data were put back there, which know nothing of d6. */
static void up_with_older_data(versions_t *s)
{
    const uint64_t keep[] = {7};
    up(s, 7, 5, keep, 1);
}

Test(versions, who_switched_is_asked_to_go_back_by_a_broker_that_knows_nothing_of_it)
{
    versions_t s;
    broken_off(&s);
    up_with_older_data(&s);
    cr_assert(strstr(said, "tell 7 7"), "%s", said);
    cr_assert_eq(fed(&s, VE_APP_ACTIVATE, 7), 0);
    fed(&s, VE_DOWN, 0);
    versions_restate(&s);
    up_with_older_data(&s);
    cr_assert(!strstr(said, "tell 7 7"), "once: %s", said);
}

Test(versions, who_cannot_go_back_to_what_that_broker_knows_says_so)
{
    versions_t s;
    broken_off(&s);
    up_with_older_data(&s);
    cr_assert_gt(fed(&s, VE_APP_REJECT, 7), 0);
    cr_assert_str_eq(said, "NACK 7 d5 internal, " STALE);
    cr_assert_gt(fed(&s, VE_APP_ACTIVATE, 7), 0);
    cr_assert_str_eq(said, "ACTIVE 7 d5", "then it did");
    cr_assert_eq(fed(&s, VE_APP_REJECT, 7), HEDDLE_ERR_NOT_FOUND);
}

/* JOIN restates the age: a message that is repeated does not make a version younger. */
Test(versions, the_time_of_a_state_is_that_of_its_beginning)
{
    versions_t s;
    versions_init(&s, false);
    up(&s, 0, 0, NULL, 0);
    now = 1000;
    serve(&s, 7, 1);
    now = 2000;
    stage(&s, 8);
    cr_assert(versions_find(&s, 7)->since_us == 1000 && versions_find(&s, 8)->since_us == 2000);
    now = 3000;
    commit(&s, 7, 1);
    announce(&s, 8);
    cr_assert(versions_find(&s, 7)->since_us == 1000 && versions_find(&s, 8)->since_us == 2000, "said again");
    now = 4000;
    commit(&s, 8, 2);
    cr_assert(versions_find(&s, 7)->since_us == 4000 && versions_find(&s, 8)->since_us == 4000,
              "it is kept now");
    now = 5000;
    commit(&s, 8, 3);
    cr_assert_eq(versions_find(&s, 8)->since_us, 5000, "as the broker has it: by its last decision");
}

Test(versions, who_refused_and_then_went_back_while_nobody_heard_it_has_not_refused)
{
    versions_t s;
    broken_off(&s);
    up_with_older_data(&s);
    fed(&s, VE_DOWN, 0);
    fed(&s, VE_APP_REJECT, 7);
    cr_assert_eq(fed(&s, VE_APP_ACTIVATE, 7), 0);
    versions_restate(&s);
    up_with_older_data(&s);
    cr_assert_str_eq(said, "", "JOIN has said that it serves 7");
}

Test(versions, who_has_not_answered_yet_whether_it_goes_back_is_not_spoken_for)
{
    versions_t s;
    broken_off(&s);
    up_with_older_data(&s);
    commit(&s, 7, 5);
    cr_assert_str_eq(said, "", "its engine may be at 8");
    cr_assert_eq(fed(&s, VE_APP_ACTIVATE, 7), 0);
}

Test(versions, who_refused_to_go_back_does_not_say_so_for_its_application)
{
    versions_t s;
    broken_off(&s);
    up_with_older_data(&s);
    fed(&s, VE_APP_REJECT, 7);
    commit(&s, 7, 5); /* the broker asks once more */
    cr_assert_str_eq(said, "tell 7 7");
    fed(&s, VE_DOWN, 0);
    fed(&s, VE_APP_REJECT, 7);
    versions_restate(&s);
    up_with_older_data(&s);
    cr_assert(strstr(said, "NACK 7 d5") && strstr(said, "tell 7 7"), "%s", said);
    cr_assert_gt(fed(&s, VE_APP_ACTIVATE, 7), 0);
    cr_assert_str_eq(said, "ACTIVE 7 d5");
}

Test(versions, nobody_is_sent_back_on_the_way_to_what_is_decided)
{
    versions_t s;
    broken_off(&s);
    const uint64_t keep[] = {7, 8, 9};
    up(&s, 9, 7, keep, 3); /* decided meanwhile, and not announced here yet */
    cr_assert(!strstr(said, "tell 7 7"), "%s", said);
}

Test(versions, an_answer_that_comes_after_a_later_switch_is_too_late)
{
    versions_t s;
    bring(&s, true, VERSIONS_KEPT); /* 7 kept (d5), 6 active (d6) */
    stage(&s, 8);
    commit(&s, 8, 8);
    commit(&s, 7, 9);
    cr_assert_gt(fed(&s, VE_APP_ACTIVATE, 7), 0);
    cr_assert_eq(fed(&s, VE_APP_ACTIVATE, 8), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(versions_active(&s)->version, 7);
}

Test(versions, step_back_to_a_version_that_is_not_here_preempts)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    commit(&s, 7, 1);
    announce(&s, 3);
    commit(&s, 3, 2);
    cr_assert_str_eq(said, "DROP 7, BRING 3");
    cr_assert_eq(state_of(&s, 7), VERSIONS_WAITING); /* later than the decision: it may be staged again */
}

Test(versions, overtaken_versions_do_not_wait)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    announce(&s, 8);
    cr_assert_eq(state_of(&s, 7), VERSIONS_WAITING);
    commit(&s, 8, 1);
    cr_assert_eq(state_of(&s, 7), VERSIONS_ABSENT);
    announce(&s, 9);
    fed(&s, VE_ARRIVED, 8);
    announce(&s, 10);
    commit(&s, 10, 2);
    cr_assert_eq(state_of(&s, 9), VERSIONS_ABSENT);
}

Test(versions, no_slot_waits_a_little_and_fails)
{
    versions_t s;
    bring(&s, false, VERSIONS_WAITING);
    serve(&s, 1, 10); /* nothing to evict: 3 is named and refused by nobody */
    commit(&s, 3, 11);
    cr_assert_eq(versions_active(&s)->version, 3);
    cr_assert_eq(versions_deadline(&s), 1000 + VERSIONS_SLOT_WAIT_US);
    now = versions_deadline(&s) - 1;
    fed(&s, VE_TICK, 0);
    cr_assert_str_eq(said, "");
    now++;
    fed(&s, VE_TICK, 0);
    cr_assert_str_eq(said, "NACK 7 no_slot, tell 10 7");
    cr_assert_str_eq(versions_nack(&s, 7, 0)->error.phase, "announce");
    cr_assert_eq(state_of(&s, 7), VERSIONS_ABSENT);
    cr_assert_eq(versions_deadline(&s), CLOCK_NEVER);
}

Test(versions, released_slot_is_taken)
{
    versions_t s;
    bring(&s, false, VERSIONS_WAITING); /* 1 active, 2 kept, 3 staged */
    fed(&s, VE_RETIRE, 2);
    cr_assert_str_eq(said, "tell 11 2, DROP 2");
    drain(&s);
    cr_assert_str_eq(said, "BRING 7");
}

Test(versions, overtaken_staged_version_makes_room)
{
    versions_t s;
    bring(&s, false, VERSIONS_WAITING);
    now = versions_deadline(&s);
    fed(&s, VE_TICK, 0);
    cr_assert_str_eq(said, "DROP 3");
    drain(&s);
    cr_assert_eq(state_of(&s, 7), VERSIONS_COMING);
}

/* The broker counts a version that was decided and refused as one that this worker holds. */
Test(versions, a_refused_version_that_makes_room_is_a_failure)
{
    versions_t s;
    bring(&s, true, VERSIONS_WAITING); /* 3 is staged */
    commit(&s, 3, 9);
    fed(&s, VE_APP_REJECT, 3);
    now = versions_deadline(&s);
    fed(&s, VE_TICK, 0);
    cr_assert_str_eq(said, "NACK 3 no_slot, tell 10 3, DROP 3");
}

Test(versions, late_joiner_waits_for_a_slot_for_ever)
{
    versions_t s;
    bring(&s, false, VERSIONS_ABSENT);
    serve(&s, 1, 1);
    serve(&s, 2, 2);
    serve(&s, 3, 3);
    feed(&s, (versions_event_t){.kind = VE_ANNOUNCE, .version = 7});
    now = versions_deadline(&s);
    fed(&s, VE_TICK, 0);
    cr_assert_str_eq(said, "NACK 7 no_slot, tell 10 7");
    cr_assert_eq(versions_deadline(&s), CLOCK_NEVER);
    fed(&s, VE_RETIRE, 1);
    drain(&s);
    cr_assert_str_eq(said, "BRING 7");
}

Test(versions, patience_is_a_quarter_of_a_short_deadline)
{
    versions_t s;
    bring(&s, false, VERSIONS_ABSENT);
    serve(&s, 1, 1);
    serve(&s, 2, 2);
    serve(&s, 3, 3);
    feed(&s, (versions_event_t){.kind = VE_ANNOUNCE, .version = 7, .deadline_us = 400000});
    cr_assert_eq(versions_deadline(&s), now + 100000);
}

Test(versions, a_named_version_is_tried_again)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    commit(&s, 7, 1);
    uint64_t pause = VERSIONS_RETRY_US;
    for (int i = 0; i < 7; i++, pause = i < 5 ? VERSIONS_RETRY_US << i : VERSIONS_RETRY_US << 4) {
        fed(&s, VE_BRING_FAILED, 7);
        cr_assert_str_eq(said, "NACK 7 internal, tell 10 7, DROP 7");
        drain(&s);
        cr_assert_eq(versions_deadline(&s), now + pause, "%d", i);
        now += pause;
        fed(&s, VE_TICK, 0);
        cr_assert_str_eq(said, "BRING 7");
    }
    fed(&s, VE_ARRIVED, 7);
    cr_assert_eq(versions_active(&s)->version, 7);
}

Test(versions, no_memory_for_a_named_version_is_tried_again)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    commit(&s, 7, 1);
    fed(&s, VE_BRING_FAILED, 7);
    cr_assert_str_eq(said, "NACK 7 internal, tell 10 7, DROP 7");
    memset(leaving, 0, sizeof leaving); /* it was free at once, and no DRAINED comes */
    cr_assert_eq(state_of(&s, 7), VERSIONS_WAITING);
    now = versions_deadline(&s);
    fed(&s, VE_TICK, 0);
    cr_assert_str_eq(said, "BRING 7");
}

Test(versions, own_deadline_when_the_abort_is_lost)
{
    static const struct {
        versions_state_t state;
        const char *said, *phase;
    } CASES[] = {{VERSIONS_COMING, "NACK 7 deadline, tell 10 7, DROP 7", "fetch"},
                 {VERSIONS_COMING, "NACK 7 deadline, tell 10 7, DROP 7", "fetch"},
                 {VERSIONS_ARRIVED, "NACK 7 deadline, tell 10 7, DROP 7", "stage"}};
    for (size_t i = 0; i < 3; i++) {
        versions_t s;
        bring(&s, true, CASES[i].state);
        cr_assert_eq(versions_deadline(&s), 1000 + 60000000 + VERSIONS_GRACE_US);
        fed(&s, VE_DOWN, 0); /* not while the broker is away */
        cr_assert_eq(versions_deadline(&s), CLOCK_NEVER);
        now = 100000000;
        fed(&s, VE_TICK, 0);
        cr_assert_str_eq(said, "");
        up(&s, 0, 0, NULL, 0); /* and then it has time to say its word */
        cr_assert_eq(versions_deadline(&s), now + VERSIONS_GRACE_US);
        now += VERSIONS_GRACE_US;
        fed(&s, VE_TICK, 0);
        cr_assert_str_eq(said, CASES[i].said);
        cr_assert_str_eq(versions_nack(&s, 7, 0)->error.phase, CASES[i].phase);
    }
}

Test(versions, staged_versions_do_not_expire)
{
    versions_t s;
    bring(&s, false, VERSIONS_STAGED);
    cr_assert_eq(versions_deadline(&s), CLOCK_NEVER);
}

Test(versions, nack_is_said_after_the_broker_came_back)
{
    versions_t s;
    bring(&s, false, VERSIONS_COMING);
    fed(&s, VE_DOWN, 0);
    fed(&s, VE_BRING_FAILED, 7);
    cr_assert_str_eq(said, "tell 10 7, DROP 7");
    versions_restate(&s);
    up(&s, 0, 0, NULL, 0);
    cr_assert_str_eq(said, "NACK 7 internal");
    fed(&s, VE_DOWN, 0);
    up(&s, 0, 0, NULL, 0);
    cr_assert_str_eq(said, "");
}

Test(versions, every_nack_is_said_after_the_broker_came_back)
{
    versions_t s;
    bring(&s, true, VERSIONS_ARRIVED);
    announce(&s, 8);
    fed(&s, VE_ARRIVED, 8);
    heddle_error_t first, second;
    error_fail(&first, HEDDLE_ERR_VERSION_FAILED, "the first");
    error_fail(&second, HEDDLE_ERR_NO_MEMORY, "the second");
    fed(&s, VE_DOWN, 0);
    feed(&s, (versions_event_t){.kind = VE_APP_REJECT, .version = 7, .error = &first});
    feed(&s, (versions_event_t){.kind = VE_APP_REJECT, .version = 8, .error = &second});
    up(&s, 0, 0, NULL, 0);
    cr_assert_str_eq(said, "NACK 7 version_failed, NACK 8 no_memory");
    cr_assert_str_eq(versions_nack(&s, 7, 0)->error.message, "the first");
    fed(&s, VE_DOWN, 0);
    up(&s, 0, 0, NULL, 0);
    cr_assert_str_eq(said, "");
}

Test(versions, failures_that_were_not_said_are_bounded_and_the_oldest_make_room)
{
    versions_t s;
    bring(&s, true, VERSIONS_STAGED);
    heddle_error_t why;
    error_fail(&why, HEDDLE_ERR_VERSION_FAILED, "no");
    for (uint64_t v = 100; v < 100 + 2 * VERSIONS_NACKS; v++) {
        up(&s, 0, 0, NULL, 0);
        announce(&s, v);
        fed(&s, VE_ARRIVED, v);
        fed(&s, VE_DOWN, 0);
        feed(&s, (versions_event_t){.kind = VE_APP_REJECT, .version = v, .error = &why});
        for (uint64_t k = 100; k <= v; k++) /* as if none could be sent */
            if (versions_nack(&s, k, 0)) versions_nack(&s, k, 0)->pending = true;
        drain(&s);
    }
    up(&s, 0, 0, NULL, 0);
    uint32_t count = 0;
    for (const char *at = said; (at = strstr(at, "NACK")); at++) count++;
    cr_assert_eq(count, VERSIONS_NACKS);
    cr_assert_null(versions_nack(&s, 100, 0));
    cr_assert_not_null(versions_nack(&s, 100 + 2 * VERSIONS_NACKS - 1, 0));
}

Test(versions, failure_that_was_made_good_is_not_said)
{
    versions_t s;
    now = 1000;
    versions_init(&s, false);
    up(&s, 0, 0, NULL, 0);
    feed(&s,
         (versions_event_t){.kind = VE_ANNOUNCE, .version = 7}); /* nobody waits for it: it is tried again */
    fed(&s, VE_DOWN, 0);
    fed(&s, VE_BRING_FAILED, 7);
    drain(&s);
    now += VERSIONS_RETRY_US;
    fed(&s, VE_TICK, 0);
    fed(&s, VE_ARRIVED, 7);
    up(&s, 0, 0, NULL, 0);
    cr_assert_str_eq(said, "STAGED 7");
}

Test(versions, activation_is_said_after_the_broker_came_back)
{
    versions_t s;
    bring(&s, true, VERSIONS_STAGED);
    commit(&s, 7, 4);
    cr_assert_eq(fed(&s, VE_APP_ACTIVATE, 7) >= 0, true);
    cr_assert_str_eq(said, "FLIP 7, ACTIVE 7 d4, tell 8 7");
    fed(&s, VE_DOWN, 0);
    up(&s, 7, 4, NULL, 0);
    cr_assert_str_eq(said, "ACTIVE 7 d4");
}

Test(versions, rejected_commit_is_offered_again_by_a_welcome)
{
    versions_t s;
    bring(&s, true, VERSIONS_KEPT);
    commit(&s, 7, 7);
    fed(&s, VE_APP_REJECT, 7);
    versions_restate(&s);
    fed(&s, VE_DOWN, 0);
    up(&s, 7, 7, (const uint64_t[]){6, 7}, 2);
    cr_assert_str_eq(said, "ACTIVE 6 d6, tell 7 7");
    fed(&s, VE_APP_ACTIVATE, 7);
    cr_assert_str_eq(said, "FLIP 7, ACTIVE 7 d7, tell 8 7");
}

Test(versions, rejected_commit_leaves_the_version_and_stays_stale)
{
    versions_t s;
    bring(&s, true, VERSIONS_KEPT); /* 6 active (d6), 7 kept */
    commit(&s, 7, 7);
    fed(&s, VE_APP_REJECT, 7);
    cr_assert_str_eq(said, "NACK 7 d7 internal, " STALE);
    cr_assert_eq(versions_active(&s)->version, 6);
    commit(&s, 7, 7);
    cr_assert_str_eq(said, "");
    cr_assert_eq(fed(&s, VE_APP_ACTIVATE, 7), HEDDLE_ERR_NOT_FOUND);
    commit(&s, 7, 8); /* a new decision is a new chance */
    cr_assert_str_eq(said, "tell 7 7");
    fed(&s, VE_APP_ACTIVATE, 7);
    cr_assert_str_eq(said, "FLIP 7, ACTIVE 7 d8, tell 8 7");
}

Test(versions, retired_active_version_is_served_until_another_is)
{
    versions_t s;
    bring(&s, false, VERSIONS_ACTIVE);
    fed(&s, VE_RETIRE, 7);
    cr_assert_eq(versions_active(&s)->version, 7);
    stage(&s, 8);
    commit(&s, 8, 9);
    cr_assert_str_eq(said, "FLIP 8, DROP 7, ACTIVE 8 d9, tell 8 8");
    drain(&s);
    cr_assert_eq(state_of(&s, 7), VERSIONS_ABSENT);
}

Test(versions, retired_mark_is_taken_back_by_a_welcome_that_keeps_it)
{
    versions_t s;
    bring(&s, false, VERSIONS_ACTIVE);
    fed(&s, VE_RETIRE, 7);
    up(&s, 7, 5, NULL, 0);
    stage(&s, 8);
    commit(&s, 8, 9);
    cr_assert_str_eq(said, "FLIP 8, ACTIVE 8 d9, tell 8 8");
}

Test(versions, one_version_has_one_digest)
{
    versions_t s;
    bring(&s, false, VERSIONS_STAGED);
    digest_t other = digest_of(99);
    feed(&s, (versions_event_t){.kind = VE_ANNOUNCE, .version = 7, .digest = other});
    cr_assert_str_eq(said, "NACK 7 digest_mismatch, tell 10 7");
    cr_assert(versions_nack(&s, 7, 0)->error.expected[0] && versions_nack(&s, 7, 0)->error.found[0]);
    feed(&s, (versions_event_t){.kind = VE_COMMIT, .version = 7, .decision = 4, .digest = other});
    cr_assert_str_eq(said, "NACK 7 d4 digest_mismatch, tell 9 7");
    cr_assert_null(versions_active(&s));
}

Test(versions, application_is_offered_a_commit_once)
{
    versions_t s;
    bring(&s, true, VERSIONS_STAGED);
    commit(&s, 7, 4);
    cr_assert_str_eq(said, "tell 7 7");
    fed(&s, VE_TICK, 0);
    announce(&s, 8);
    cr_assert_str_eq(said, "BRING 8");
}

Test(versions, too_many_announcements_refuse_the_oldest)
{
    versions_t s;
    bring(&s, false, VERSIONS_ABSENT);
    serve(&s, 1, 1);
    serve(&s, 2, 2);
    serve(&s, 3, 3);
    for (uint64_t v = 10; v < 10 + VERSIONS_WAITING_MAX; v++) announce(&s, v);
    cr_assert_str_eq(said, "");
    announce(&s, 50);
    cr_assert_str_eq(said, "NACK 10 limit, tell 10 10");
    fed(&s, VE_RETIRE, 1);
    drain(&s);
    cr_assert_str_eq(said, "BRING 50");
}

/* --- random runs ------------------------------------------------------------------------------ */

static uint64_t rng;

static uint64_t roll(uint64_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % n;
}

static void random_run(uint64_t seed, bool app)
{
    world_t w;
    rng = seed * 2654435761u + 1;
    walk_begin(&w, app);
    for (int i = 0; i < 2000; i++) walk_step(&w);
}

Test(versions, random_runs_keep_the_invariants)
{
    const char *text = getenv("HEDDLE_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : 1;
    fprintf(stderr, "versions: seeds %llu..%llu\n", (unsigned long long)seed, (unsigned long long)seed + 199);
    for (uint64_t i = 0; i < 200; i++) random_run(seed + i, i & 1);
}
