/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/rule.h"

#include <criterion/criterion.h>
#include <heddle/publisher.h>

/* ---- the rule, by what the tally has ---- */

typedef struct {
    const char *name;
    heddle_activation_t activation;
    bool held, late, sourceless, was_staged;
    uint32_t staged, in_flight, failed, gone; /* eligible copies */
    rule_verdict_t verdict;
    rule_reason_t reason;
} row_t;

#define ALL HEDDLE_ACTIVATION_ALL
#define READY HEDDLE_ACTIVATION_AS_READY
#define HAND HEDDLE_ACTIVATION_MANUAL

static const row_t ROWS[] = {
    {"nothing yet", ALL, .verdict = RULE_WAIT},
    {"all: one is missing", ALL, .staged = 9, .in_flight = 1, .verdict = RULE_WAIT},
    {"all: all are there", ALL, .staged = 10, .verdict = RULE_DECIDE},
    {"all: those that are gone do not count", ALL, .staged = 1, .gone = 3, .verdict = RULE_DECIDE},
    {"all: none is left", ALL, .gone = 3, .verdict = RULE_WAIT},
    {"all: one refused", ALL, .staged = 9, .failed = 1, .verdict = RULE_FAIL, .reason = RULE_REJECTED},
    {"all: held", ALL, .held = true, .staged = 2, .verdict = RULE_WAIT},
    {"all: held and late, staged", ALL, .held = true, .late = true, .staged = 1, .in_flight = 1,
     .verdict = RULE_WAIT},
    {"all: held and late, not staged", ALL, .held = true, .late = true, .in_flight = 1, .verdict = RULE_FAIL,
     .reason = RULE_LATE},
    {"all: late", ALL, .late = true, .staged = 9, .in_flight = 1, .verdict = RULE_FAIL, .reason = RULE_LATE},
    {"all: late, and all are there", ALL, .late = true, .staged = 2, .verdict = RULE_DECIDE},
    {"all: no source", ALL, .sourceless = true, .in_flight = 1, .verdict = RULE_FAIL,
     .reason = RULE_SOURCELESS},
    {"all: late and no source", ALL, .late = true, .sourceless = true, .verdict = RULE_FAIL,
     .reason = RULE_LATE},
    {"as-ready: the first", READY, .staged = 1, .in_flight = 9, .verdict = RULE_DECIDE},
    {"as-ready: the first, beside a refusal", READY, .staged = 1, .failed = 9, .verdict = RULE_DECIDE},
    {"as-ready: none", READY, .failed = 1, .in_flight = 1, .verdict = RULE_WAIT},
    {"as-ready: held", READY, .held = true, .late = true, .staged = 1, .verdict = RULE_WAIT},
    {"as-ready: late", READY, .late = true, .in_flight = 1, .verdict = RULE_FAIL, .reason = RULE_LATE},
    {"manual: staged", HAND, .staged = 2, .verdict = RULE_WAIT},
    {"manual: staged and late", HAND, .late = true, .staged = 1, .in_flight = 1, .verdict = RULE_WAIT},
    {"manual: late, and who staged it is away", HAND, .late = true, .was_staged = true, .gone = 1,
     .verdict = RULE_WAIT},
    {"all: late, and who staged it is away", ALL, .late = true, .was_staged = true, .gone = 1,
     .verdict = RULE_FAIL, .reason = RULE_LATE},
    {"all: held and late, and who staged it is away", ALL, .held = true, .late = true, .was_staged = true,
     .gone = 1, .verdict = RULE_WAIT},
    {"manual: late", HAND, .late = true, .in_flight = 1, .verdict = RULE_FAIL, .reason = RULE_LATE},
};

static void add(tally_t *t, copy_state_t state, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        tally_move(t, NULL, &(tallied_t){.state = state, .is_eligible = true});
}

Test(rule, rows)
{
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const row_t *r = &ROWS[i];
        tally_t t = {0};
        add(&t, COPY_STAGED, r->staged);
        add(&t, COPY_FETCHING, r->in_flight);
        add(&t, COPY_FAILED, r->failed);
        add(&t, COPY_GONE, r->gone);
        rule_t rule = {.activation = (uint64_t)r->activation,
                       .is_adapter_held = r->held,
                       .is_late = r->late,
                       .was_staged = r->was_staged,
                       .has_lost_source = r->sourceless};
        ruling_t ruling = rule_apply(&rule, &t);
        cr_expect_eq(ruling.verdict, r->verdict, "%s: verdict %d", r->name, ruling.verdict);
        cr_expect_eq(ruling.reason, r->reason, "%s: reason %d", r->name, ruling.reason);
        cr_expect_eq(ruling.scope, SCOPE_EVERYONE, "%s", r->name);
    }
}

Test(rule, its_shape)
{
    cr_assert(!rule_is_by_operator(ALL) && !rule_is_by_operator(READY) && rule_is_by_operator(HAND));
    cr_assert(!rule_takes_first(ALL) && rule_takes_first(READY) && !rule_takes_first(HAND));
}

Test(rule, joiners_never_block_and_are_enough_where_none_was_there)
{
    tally_t t = {0};
    rule_t all = {.activation = ALL};
    tally_move(&t, NULL, &(tallied_t){.state = COPY_FETCHING});
    cr_assert_eq(rule_apply(&all, &t).verdict, RULE_WAIT);
    tally_move(&t, NULL, &(tallied_t){.state = COPY_FAILED});
    tally_move(&t, NULL, &(tallied_t){.state = COPY_STAGED});
    cr_assert_eq(rule_apply(&all, &t).verdict, RULE_DECIDE);
}

Test(rule, joiners_fail_it_when_each_has_refused_and_none_else_is_there)
{
    tally_t t = {0};
    rule_t all = {.activation = ALL}, ready = {.activation = READY};
    tallied_t failed = {.state = COPY_FAILED}, fetching = {.state = COPY_FETCHING};
    tally_move(&t, NULL, &failed);
    ruling_t ruling = rule_apply(&all, &t);
    cr_assert(ruling.verdict == RULE_FAIL && ruling.reason == RULE_REJECTED);
    cr_assert_eq(rule_apply(&ready, &t).verdict, RULE_WAIT);
    tally_move(&t, NULL, &fetching);
    cr_assert_eq(rule_apply(&all, &t).verdict, RULE_WAIT, "one may still take it");
    tally_move(&t, &fetching, &(tallied_t){.state = COPY_STAGED, .is_eligible = true});
    cr_assert_eq(rule_apply(&all, &t).verdict, RULE_DECIDE, "the joiner was not waited for");
}

Test(rule, staged_is_another_question_than_to_be_committed)
{
    tally_t t = {0};
    rule_t manual = {.activation = HAND}, all = {.activation = ALL, .is_adapter_held = true};
    add(&t, COPY_STAGED, 1);
    cr_assert(rule_apply(&manual, &t).is_staged && rule_apply(&all, &t).is_staged);
    add(&t, COPY_FAILED, 1);
    cr_assert(rule_apply(&manual, &t).is_staged && !rule_apply(&all, &t).is_staged);
    add(&t, COPY_ARRIVED, 1);
    cr_assert(!rule_apply(&manual, &t).is_staged);
}

/* ---- groups ---- */

static group_t pair(uint32_t holders[2]) { return (group_t){.name = "tp", .ranks = 2, .holders = holders}; }

Test(rule, a_group_is_staged_when_each_rank_is)
{
    uint32_t holders[2] = {0};
    group_t g = pair(holders);
    tally_t t = {0};
    rule_t ready = {.activation = READY}, all = {.activation = ALL};
    tallied_t rank0 = {.state = COPY_STAGED, .is_eligible = true, .group = &g};
    tallied_t rank1 = {.state = COPY_STAGED, .is_eligible = true, .group = &g, .rank = 1};
    tally_move(&t, NULL, &rank0);
    cr_assert_eq(t.units, 0);
    cr_assert_eq(rule_apply(&ready, &t).verdict, RULE_WAIT);
    cr_assert_eq(rule_apply(&all, &t).verdict, RULE_WAIT, "the other rank has not joined");
    tally_move(&t, NULL, &rank0); /* another worker of the same rank */
    cr_assert_eq(rule_apply(&ready, &t).verdict, RULE_WAIT);
    tally_move(&t, NULL, &rank1);
    cr_assert_eq(t.units, 1);
    cr_assert_eq(rule_apply(&ready, &t).verdict, RULE_DECIDE);
    cr_assert_eq(rule_apply(&all, &t).verdict, RULE_DECIDE);
    tally_move(&t, &rank0, NULL);
    cr_assert_eq(t.units, 1, "one of rank 0 is left");
    tally_move(&t, &rank0, NULL);
    cr_assert_eq(t.units, 0);
}

Test(rule, a_group_beside_a_worker_without_one)
{
    uint32_t holders[2] = {0};
    group_t g = pair(holders);
    tally_t t = {0};
    rule_t ready = {.activation = READY, .is_late = true};
    tally_move(&t, NULL, &(tallied_t){.state = COPY_ACTIVE, .group = &g, .rank = 1});
    cr_assert_eq(rule_apply(&ready, &t).verdict, RULE_FAIL, "late, and no unit has staged it");
    tally_move(&t, NULL, &(tallied_t){.state = COPY_KEPT});
    cr_assert_eq(rule_apply(&ready, &t).verdict, RULE_DECIDE);
}

/* ---- the tally ---- */

Test(tally, what_comes_goes)
{
    tally_t t = {0}, empty = {0};
    for (int state = COPY_NONE; state < COPY_STATES; state++)
        for (int bits = 0; bits < 16; bits++) {
            tallied_t one = {.state = (copy_state_t)state,
                             .is_eligible = bits & 1,
                             .has_reached = bits & 2,
                             .is_spare = bits & 4,
                             .is_ordered = bits & 8};
            tally_move(&t, NULL, &one);
            tally_move(&t, NULL, &one);
            tally_move(&t, &one, NULL);
        }
    cr_assert_eq(tally_holders(&t, false), 5 * 16);
    cr_assert_eq(tally_holders(&t, true), 5 * 8);
    cr_assert_eq(tally_present(&t, true), 11 * 8);
    cr_assert_eq(tally_in_flight(&t), 5 * 8);
    cr_assert_eq(tally_gone(&t), 8);
    cr_assert_eq(t.spare, 8, "of kept ones alone");
    cr_assert_eq(t.switching, 4 * 4, "told, not yet there, and not refused");
    for (int state = COPY_NONE; state < COPY_STATES; state++)
        for (int bits = 0; bits < 16; bits++)
            tally_move(&t,
                       &(tallied_t){.state = (copy_state_t)state,
                                    .is_eligible = bits & 1,
                                    .has_reached = bits & 2,
                                    .is_spare = bits & 4,
                                    .is_ordered = bits & 8},
                       NULL);
    cr_assert_arr_eq(&t, &empty, sizeof t);
}
