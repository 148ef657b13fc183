/* SPDX-License-Identifier: Apache-2.0 */
/* When a wait is over, as a table; and what is remembered. */
#include "trainer_client/outcomes.h"

#include "core/errors.h"

#include <criterion/criterion.h>
#include <stdio.h>

static outcomes_t r;
static const heddle_publish_opts_t OPTS = {.deadline_ms = 60000};

static void start(void) { cr_assert_eq(outcomes_init(&r, "policy"), HEDDLE_OK); }
static void stop(void) { outcomes_fini(&r); }

static outcome_row_t *row_with(const char *state, const char *code, uint32_t eligible, uint32_t staged,
                               uint32_t active)
{
    outcomes_begin(&r, 7, &OPTS, 1000);
    msg_missing_t missing = {.worker = "w2", .phase = "fetch", .code = "no_slot", .message = "held"};
    msg_rollout_t m = {.version = 7,
                       .eligible_count = eligible,
                       .staged_count = staged,
                       .active_count = active,
                       .adapter = "policy",
                       .state = state,
                       .code = code,
                       .message = *code ? "said so" : "",
                       .missing = &missing,
                       .missing_count = staged < eligible};
    outcome_row_t *row = outcomes_find(&r, 7);
    outcomes_update(row, &m, 5000);
    return row;
}

#define ALL                                                                                                  \
    {                                                                                                        \
        HEDDLE_QUORUM_ALL, 0                                                                                 \
    }
#define COUNT(n)                                                                                             \
    {                                                                                                        \
        HEDDLE_QUORUM_COUNT, n                                                                               \
    }
#define PERCENT(n)                                                                                           \
    {                                                                                                        \
        HEDDLE_QUORUM_PERCENT, n                                                                             \
    }
#define NONE                                                                                                 \
    {                                                                                                        \
        HEDDLE_QUORUM_NONE, 0                                                                                \
    }
#define S HEDDLE_PHASE_STAGED
#define A HEDDLE_PHASE_ACTIVE
#define E(NAME) HEDDLE_ERR_##NAME

static const struct {
    const char *state, *code;
    uint32_t eligible, staged, active;
    heddle_phase_t phase;
    heddle_quorum_t quorum;
    int expected;
} ROWS[] = {
    /* how many are enough */
    {"staging", "", 4, 3, 0, S, ALL, E(AGAIN)},
    {"staged", "", 4, 4, 0, S, ALL, 0},
    {"staging", "", 4, 1, 0, S, COUNT(2), E(AGAIN)},
    {"staging", "", 4, 2, 0, S, COUNT(2), 0},
    {"staging", "", 4, 1, 0, S, PERCENT(50), E(AGAIN)},
    {"staging", "", 4, 2, 0, S, PERCENT(50), 0},
    {"staging", "", 4, 2, 0, S, PERCENT(51), E(AGAIN)},
    {"staging", "", 4, 0, 0, S, COUNT(0), E(AGAIN)},
    {"staging", "", 4, 1, 0, S, COUNT(0), 0},
    {"staging", "", 4, 4, 0, S, COUNT(5), E(AGAIN)},
    {"staging", "", 0, 0, 0, S, ALL, E(AGAIN)},
    {"staging", "", 0, 1, 0, S, ALL, 0},
    {"staging", "", 0, 0, 0, A, NONE, 0},
    {"failed", "no_slot", 4, 0, 0, A, NONE, 0},
    {"staged", "", 4, 4, 0, A, ALL, E(AGAIN)},
    {"active", "", 4, 4, 3, A, ALL, E(AGAIN)},
    {"active", "", 4, 4, 4, A, ALL, 0},
    {"active", "", 4, 0, 4, S, ALL, 0},
    {"active", "", 4, 4, 1, A, COUNT(1), 0},
    {"kept", "", 4, 4, 4, A, ALL, 0},
    {"kept", "", 4, 4, 1, A, ALL, E(AGAIN)},
    /* why it will not be */
    {"failed", "deadline", 4, 3, 0, S, ALL, E(DEADLINE)},
    {"failed", "no_workers", 0, 0, 0, S, ALL, E(NO_WORKERS)},
    {"failed", "version_lost", 4, 0, 0, S, ALL, E(VERSION_LOST)},
    {"failed", "no_slot", 4, 3, 0, S, ALL, E(VERSION_FAILED)},
    {"failed", "", 4, 3, 0, A, ALL, E(VERSION_FAILED)},
    {"failed", "no_slot", 4, 3, 0, S, COUNT(1), E(VERSION_FAILED)},
    {"lost", "version_lost", 4, 4, 4, A, ALL, E(VERSION_LOST)},
    {"superseded", "", 4, 1, 0, A, ALL, E(VERSION_FAILED)},
    {"retired", "", 4, 4, 2, A, ALL, E(VERSION_FAILED)},
    {"retired", "", 4, 4, 4, A, ALL, 0},
    {"retired", "", 4, 4, 4, A, COUNT(4), 0},
    {"retired", "", 4, 4, 2, A, COUNT(2), 0},
    {"retired", "", 4, 4, 4, A, COUNT(5), E(VERSION_FAILED)},
    {"retired", "", 4, 4, 4, S, COUNT(4), 0},
    {"retired", "", 4, 4, 4, S, COUNT(5), E(VERSION_FAILED)},
    {"staged", "held", 4, 4, 0, A, ALL, E(HELD)},
    {"staged", "held", 4, 4, 0, S, ALL, 0},
    {"staging", "held", 4, 3, 0, S, ALL, E(AGAIN)},
    {"kept", "held", 4, 4, 3, A, ALL, E(HELD)},
    {"kept", "held", 4, 4, 4, A, ALL, 0},
    {"kept", "held", 4, 4, 3, A, COUNT(3), 0},
};

Test(outcomes, a_version_that_waits_for_another_is_not_without_workers, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("staging", "", 0, 0, 0);
    msg_rollout_t m = {.version = 7,
                       .adapter = "policy",
                       .state = "staging",
                       .code = "",
                       .message = "waits for policy@6 (staged on 1 of 2)"};
    outcomes_update(row, &m, 6000);
    cr_assert_eq(outcomes_late(&r, row, &(wait_for_t){S, ALL}, 30000, &error), HEDDLE_ERR_DEADLINE);
    cr_assert_str_eq(error.found, "waits for policy@6 (staged on 1 of 2)");
    cr_assert_not_null(strstr(error.hint, "policy@7 waits for policy@6 (staged on 1 of 2)"), "%s",
                       error.hint);
    m.state = "failed", m.code = "deadline";
    m.message = "policy@7 waited for policy@6, which was not decided within 300 ms";
    outcomes_update(row, &m, 7000);
    cr_assert_eq(outcomes_judge(&r, row, &(wait_for_t){S, ALL}, &error), HEDDLE_ERR_DEADLINE);
    cr_assert_not_null(strstr(error.hint, "policy@7 waits for policy@6 (staged on 1 of 2)"), "%s",
                       error.hint);
}

/* A slow worker takes the versions one after the other, also those that were overtaken. */
Test(outcomes, a_worker_that_is_queued_may_be_restarted, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("staging", "", 2, 1, 0);
    msg_rollout_t m = {.version = 7,
                       .eligible_count = 2,
                       .staged_count = 1,
                       .adapter = "policy",
                       .state = "failed",
                       .code = "deadline",
                       .message = "1 of 2 workers staged policy@7 within 300 ms; missing: w2 in phase "
                                  "announce (queued behind policy@6)"};
    outcomes_update(row, &m, 6000);
    cr_assert_eq(outcomes_judge(&r, row, &(wait_for_t){S, ALL}, &error), HEDDLE_ERR_DEADLINE);
    cr_assert(strstr(error.hint, "restart it, and it skips that one; a longer opts.deadline_ms"), "%s",
              error.hint);
}

Test(outcomes, a_mistyped_adapter_is_near_another, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("staging", "", 0, 0, 0);
    msg_rollout_t m = {.version = 7,
                       .adapter = "policy",
                       .state = "staging",
                       .code = "no_workers",
                       .message = "did you mean politics? workers subscribe to it, and none to policy"};
    outcomes_update(row, &m, 6000);
    cr_assert_eq(row->report.code, HEDDLE_OK, "nothing has failed yet");
    cr_assert_eq(outcomes_late(&r, row, &(wait_for_t){S, ALL}, 30000, &error), HEDDLE_ERR_NO_WORKERS);
    cr_assert_str_eq(error.hint, m.message);
    m.state = "failed", m.message = "no worker took policy@7 within 300 ms";
    outcomes_update(row, &m, 7000);
    cr_assert_eq(outcomes_judge(&r, row, &(wait_for_t){S, ALL}, &error), HEDDLE_ERR_NO_WORKERS);
    cr_assert_not_null(strstr(error.hint, "did you mean politics?"), "%s", error.hint);
}

Test(outcomes, judged_by_a_table)
{
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        heddle_error_t error = {0};
        start();
        outcome_row_t *row =
            row_with(ROWS[i].state, ROWS[i].code, ROWS[i].eligible, ROWS[i].staged, ROWS[i].active);
        wait_for_t want = {ROWS[i].phase, ROWS[i].quorum};
        int rc = outcomes_judge(&r, row, &want, &error);
        cr_assert_eq(rc, ROWS[i].expected, "row %zu: %s, not %s", i, heddle_err_name(rc),
                     heddle_err_name(ROWS[i].expected));
        if (rc && rc != HEDDLE_ERR_AGAIN) {
            cr_assert_eq(error.code, rc);
            cr_assert_eq(error.version, 7);
            cr_assert_str_eq(error.adapter, "policy");
            if (ROWS[i].staged < ROWS[i].eligible) cr_assert_str_eq(error.worker, "w2");
        }
        stop();
    }
}

Test(outcomes, a_failure_names_its_version_once, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("failed", "no_slot", 4, 3, 0);
    error_text(row->report.message, sizeof row->report.message, "policy@7 failed at w2 in phase fetch: held");
    outcomes_judge(&r, row, &(wait_for_t){A, ALL}, &error);
    cr_assert_str_eq(error.message, "policy@7 failed at w2 in phase fetch: held");
}

Test(outcomes, the_cause_is_told, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("failed", "no_slot", 4, 3, 0);
    wait_for_t want = {A, ALL};
    outcomes_judge(&r, row, &want, &error);
    cr_assert_str_eq(error.message, "policy@7 failed: said so");
    cr_assert_str_eq(error.found, "staged on 3 of 4 workers");
    cr_assert_str_eq(error.phase, "fetch");
}

/* After a restart of the broker its members are not back yet: of how many is not known. */
Test(outcomes, counts_that_are_not_known_are_left_out, .init = start, .fini = stop)
{
    heddle_error_t error;
    wait_for_t want = {A, ALL};
    outcomes_judge(&r, row_with("failed", "no_slot", 0, 3, 0), &want, &error);
    cr_assert_str_eq(error.found, "staged on 3 workers");
    outcomes_judge(&r, row_with("failed", "no_slot", 0, 0, 0), &want, &error);
    cr_assert_str_eq(error.found, "staged on no worker");
}

/* A version that is staging, without a worker that has it: begun where it is not, else reported again. */
static outcome_row_t *row_that_misses(uint32_t eligible, msg_missing_t *missing, uint32_t count)
{
    msg_rollout_t m = {.version = 7,
                       .eligible_count = eligible,
                       .adapter = "policy",
                       .state = "staging",
                       .code = "",
                       .message = "",
                       .missing = missing,
                       .missing_count = count};
    if (!outcomes_find(&r, 7)) outcomes_begin(&r, 7, &OPTS, 1000);
    outcomes_update(outcomes_find(&r, 7), &m, 5000);
    return outcomes_find(&r, 7);
}

Test(outcomes, late_names_who_is_missing, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("staging", "", 4, 3, 0);
    wait_for_t want = {S, ALL};
    cr_assert_eq(outcomes_late(&r, row, &want, 250, &error), HEDDLE_ERR_DEADLINE);
    cr_assert_str_eq(error.expected, "staged on 4 of 4 workers");
    cr_assert_str_eq(error.found, "on 3");
    cr_assert_str_eq(error.worker, "w2");
    cr_assert(strstr(error.message, "250 ms"));
    cr_assert_str_eq(error.message, "policy@7 was not staged on enough workers within 250 ms; w2: held");
    cr_assert(strstr(error.hint, "a longer timeout_ms gives more time"), "%s", error.hint);
}

/* No time helps. */
Test(outcomes, late_with_all_lost_is_no_workers, .init = start, .fini = stop)
{
    heddle_error_t error;
    msg_missing_t missing[] = {
        {.worker = "w1", .phase = "announce", .code = "unavailable", .message = "lost, its lease ended"},
        {.worker = "w2", .phase = "fetch", .code = "", .message = ""}};
    outcome_row_t *row = row_that_misses(0, missing, 1);
    cr_assert_eq(outcomes_late(&r, row, &(wait_for_t){S, ALL}, 250, &error), HEDDLE_ERR_NO_WORKERS);
    cr_assert(strstr(error.message, "w1: lost, its lease ended"), "%s", error.message);
    cr_assert(strstr(error.hint, "heddle worker --adapter policy"), "%s", error.hint);
    row_that_misses(0, missing, 2); /* of how many is not known yet, and one still fetches */
    cr_assert_eq(outcomes_late(&r, row, &(wait_for_t){S, ALL}, 250, &error), HEDDLE_ERR_DEADLINE);
}

Test(outcomes, late_tells_what_the_first_that_speaks_said, .init = start, .fini = stop)
{
    heddle_error_t error;
    msg_missing_t missing[] = {{.worker = "w1", .phase = "fetch", .code = "", .message = ""},
                               {.worker = "w2",
                                .phase = "stage",
                                .code = "slow",
                                .message = "rank 64 is more than max_lora_rank 16"}};
    outcome_row_t *row = row_that_misses(2, missing, 2);
    cr_assert_eq(outcomes_late(&r, row, &(wait_for_t){S, COUNT(3)}, 0, &error), HEDDLE_ERR_DEADLINE);
    cr_assert(strstr(error.message, "w2: rank 64 is more than max_lora_rank 16"), "%s", error.message);
    cr_assert_str_eq(error.worker, "w2");
    cr_assert_str_eq(error.expected, "staged on 3 workers");
    row_that_misses(2, missing, 1);
    outcomes_late(&r, row, &(wait_for_t){S, ALL}, 0, &error);
    cr_assert(strstr(error.message, "w1: has not answered"), "%s", error.message);
}

/* The broker may have spoken between the question whether it is over and this one. */
Test(outcomes, late_is_no_deadline_where_it_is_over, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("failed", "", 1, 0, 0);
    cr_assert_eq(outcomes_late(&r, row, &(wait_for_t){A, ALL}, 0, &error), HEDDLE_ERR_VERSION_FAILED);
    cr_assert_eq(error.code, HEDDLE_ERR_VERSION_FAILED);
    row = row_with("active", "", 1, 1, 1);
    cr_assert_eq(outcomes_late(&r, row, &(wait_for_t){A, ALL}, 0, &error), HEDDLE_OK);
}

/* The broker may tell that a version was active, and not how many had it. */
Test(outcomes, one_that_retired_unheard_was_active, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("retired", "", 0, 0, 0);
    outcomes_was_active(row);
    cr_assert_eq(outcomes_judge(&r, row, &(wait_for_t){A, COUNT(5)}, &error), HEDDLE_OK);
}

Test(outcomes, late_with_nobody_there_is_no_workers, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("staging", "", 0, 0, 0);
    cr_assert_eq(outcomes_late(&r, row, &(wait_for_t){S, ALL}, 30000, &error), HEDDLE_ERR_NO_WORKERS);
    cr_assert_eq(error.code, HEDDLE_ERR_NO_WORKERS);
    cr_assert_str_eq(error.expected, "staged on 1 worker");
    cr_assert_str_eq(error.found, "no worker of policy");
    cr_assert(strstr(error.hint, "heddle worker --adapter policy"));
    cr_assert(strstr(error.hint, "python -m heddle.engine"), "a plain worker serves no engine");
}

/* A broker that stands still has not said that nobody is there. */
Test(outcomes, late_without_a_word_is_the_deadline, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("staging", "", 0, 0, 0);
    row->received_us = 0;
    cr_assert_eq(outcomes_late(&r, row, &(wait_for_t){S, ALL}, 30000, &error), HEDDLE_ERR_DEADLINE);
    cr_assert_str_eq(error.found, "the broker has not reported which workers take it");
}

Test(outcomes, a_smaller_quorum_stamps_the_time_when_it_was_heard_of, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("staging", "", 4, 2, 0);
    wait_for_t want = {S, COUNT(2)};
    cr_assert_eq(row->report.staged_ms, -1);
    cr_assert_eq(outcomes_judge(&r, row, &want, &error), HEDDLE_OK);
    static heddle_report_t copy;
    outcomes_copy(row, &copy);
    cr_assert_float_eq(copy.staged_ms, 4.0, 1e-9);
    cr_assert_eq(copy.active_ms, -1);
    msg_rollout_t all = {.version = 7,
                         .eligible_count = 4,
                         .staged_count = 4,
                         .adapter = "policy",
                         .state = "staged",
                         .code = "",
                         .message = ""};
    outcomes_update(row, &all, 9000);
    outcomes_copy(row, &copy);
    cr_assert_float_eq(copy.staged_ms, 8.0, 1e-9, "when all are there, that is the time");
}

/* The broker was away, and counts the workers as they come back: not as they stage. */
Test(outcomes, what_was_missed_has_no_time, .init = start, .fini = stop)
{
    static heddle_report_t copy;
    msg_rollout_t all = {.version = 7,
                         .eligible_count = 4,
                         .staged_count = 4,
                         .adapter = "policy",
                         .state = "staged",
                         .code = "",
                         .message = ""};
    outcome_row_t *row = row_with("staging", "", 4, 2, 0);
    outcomes_missed(&r, 8000);
    outcomes_update(row, &all, 9000);
    outcomes_copy(row, &copy);
    cr_assert_eq(copy.staged_ms, -1);
    all.decision = 1;
    all.active_count = 4;
    outcomes_update(row, &all, 11000);
    outcomes_copy(row, &copy);
    cr_assert_float_eq(copy.active_ms, 10.0, 1e-9, "decided since");
    row = row_with("staging", "", 4, 2, 0);
    outcomes_missed(&r, 8000);
    outcomes_update(row, &all, 9000);
    outcomes_copy(row, &copy);
    cr_assert_eq(copy.active_ms, -1, "decided meanwhile");
    cr_assert_eq(outcomes_judge(&r, row, &(wait_for_t){A, ALL}, &(heddle_error_t){0}), HEDDLE_OK);
    row = row_with("staging", "", 4, 4, 0);
    outcomes_missed(&r, 8000);
    outcomes_update(row, &all, 9000);
    outcomes_copy(row, &copy);
    cr_assert_float_eq(copy.staged_ms, 4.0, 1e-9, "that was before");
    row = row_with("staging", "", 4, 1, 0);
    cr_assert_eq(outcomes_judge(&r, row, &(wait_for_t){S, COUNT(1)}, &(heddle_error_t){0}), HEDDLE_OK);
    outcomes_missed(&r, 8000);
    outcomes_update(row, &all, 9000);
    outcomes_copy(row, &copy);
    cr_assert_eq(copy.staged_ms, -1, "nor has it that of one");
    row = row_with("staging", "", 1, 1, 0);
    outcomes_missed(&r, 8000);
    outcomes_update(row, &all, 9000);
    outcomes_copy(row, &copy);
    cr_assert_eq(copy.staged_ms, -1, "of one worker, and not of these four");
}

/* Who left is not among the eligible any more, and nobody would take its place. */
Test(outcomes, a_count_that_was_active_stays_reached, .init = start, .fini = stop)
{
    heddle_error_t error;
    outcome_row_t *row = row_with("active", "", 3, 3, 2);
    msg_rollout_t left = {.version = 7,
                          .eligible_count = 2,
                          .staged_count = 2,
                          .active_count = 1,
                          .adapter = "policy",
                          .state = "active",
                          .code = "",
                          .message = ""};
    outcomes_update(row, &left, 9000);
    wait_for_t two = {A, COUNT(2)}, three = {A, COUNT(3)}, all = {A, ALL};
    cr_assert_eq(outcomes_judge(&r, row, &two, &error), HEDDLE_OK);
    cr_assert_eq(outcomes_judge(&r, row, &three, &error), HEDDLE_ERR_AGAIN);
    cr_assert_eq(outcomes_judge(&r, row, &all, &error), HEDDLE_ERR_AGAIN, "all are those who are here");
    outcomes_begin(&r, 8, &OPTS, 0);
    cr_assert_eq(outcomes_find(&r, 8)->active_most, 0);
}

Test(outcomes, before_the_first_word_the_deadline_is_the_one_that_was_asked_for, .init = start, .fini = stop)
{
    heddle_publish_opts_t opts = {.deadline_ms = 1000, .asked_ms = 5000};
    outcomes_begin(&r, 7, &opts, 0);
    cr_assert_eq(outcomes_find(&r, 7)->report.deadline_ms, 5000);
    outcomes_begin(&r, 8, &OPTS, 0);
    cr_assert_eq(outcomes_find(&r, 8)->report.deadline_ms, 60000, "not told: the same");
}

Test(outcomes, the_newest_are_remembered, .init = start, .fini = stop)
{
    for (uint64_t v = 1; v <= OUTCOMES_MAX + 5; v++) outcomes_begin(&r, v, &OPTS, 0);
    cr_assert_null(outcomes_find(&r, 5));
    cr_assert_not_null(outcomes_find(&r, 6));
    cr_assert_null(outcomes_find(&r, 0));
    outcomes_begin(&r, OUTCOMES_MAX, &OPTS, 9);
    cr_assert_eq(outcomes_find(&r, OUTCOMES_MAX)->start_us, 9);
    cr_assert_not_null(outcomes_find(&r, 6), "begun again: nothing is forgotten for it");
}

Test(outcomes, more_missing_than_rows_are_counted, .init = start, .fini = stop)
{
    static msg_missing_t missing[HEDDLE_MISSING_MAX + 3];
    for (size_t i = 0; i < HEDDLE_MISSING_MAX + 3; i++)
        missing[i] = (msg_missing_t){.worker = "w", .phase = "fetch", .code = "", .message = ""};
    const outcome_row_t *row = row_that_misses(0, missing, HEDDLE_MISSING_MAX + 3);
    cr_assert_eq(row->report.missing_count, HEDDLE_MISSING_MAX + 3);
    cr_assert_eq(row->report.missing[0].code, HEDDLE_OK);
}

/* -- refusals --------------------------------------------------------------------------------- */

typedef struct {
    const char *state;
    uint32_t eligible, staged, active;
    const char *missing;
    heddle_phase_t phase;
    heddle_quorum_t quorum;
    int expected;
} refused_t;

/* missing: a letter each: r refused to switch, s refused the bytes, f may come back to them, w still works, l was lost */
static outcome_row_t *row_missing(const refused_t *row)
{
    static const struct {
        char letter;
        msg_missing_t m;
    } KINDS[] = {{'r', {"w1", "activate", "version_failed", "no such engine"}},
                 {'s', {"w2", "stage", "version_failed", "no room in it"}},
                 {'f', {"w3", "fetch", "no_slot", "held"}},
                 {'w', {"w4", "activate", "", "committed"}},
                 {'l', {"w5", "activate", "unavailable", "lost"}}};
    msg_missing_t missing[8];
    uint32_t count = 0;
    for (const char *at = row->missing; *at; at++)
        for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++)
            if (KINDS[k].letter == *at) missing[count++] = KINDS[k].m;
    outcomes_begin(&r, 7, &OPTS, 1000);
    msg_rollout_t m = {.version = 7,
                       .eligible_count = row->eligible,
                       .staged_count = row->staged,
                       .active_count = row->active,
                       .adapter = "policy",
                       .state = row->state,
                       .code = "",
                       .message = "",
                       .missing = missing,
                       .missing_count = count};
    outcomes_update(outcomes_find(&r, 7), &m, 5000);
    return outcomes_find(&r, 7);
}

static const refused_t REFUSED[] = {
    {"active", 1, 1, 0, "r", A, ALL, E(VERSION_FAILED)},
    {"active", 1, 1, 0, "w", A, ALL, E(AGAIN)},
    {"active", 2, 2, 1, "r", A, ALL, E(VERSION_FAILED)},
    {"active", 2, 2, 1, "r", A, COUNT(1), 0},
    {"active", 2, 2, 0, "rw", A, COUNT(1), E(AGAIN)},
    {"active", 2, 2, 0, "rr", A, COUNT(1), E(VERSION_FAILED)},
    {"active", 4, 4, 0, "rrww", A, PERCENT(50), E(AGAIN)},
    {"active", 4, 4, 0, "rrrw", A, PERCENT(50), E(VERSION_FAILED)},
    /* a retriable code is announced again */
    {"active", 1, 0, 0, "f", A, ALL, E(AGAIN)},
    /* of two that are missing one is gone: it may be the one that refused */
    {"active", 1, 1, 0, "rl", A, ALL, E(AGAIN)},
    {"active", 2, 2, 0, "rrl", A, ALL, E(VERSION_FAILED)},
    /* who refuses to switch has the bytes */
    {"active", 1, 1, 0, "r", S, ALL, 0},
    {"staging", 2, 0, 0, "sw", S, ALL, E(VERSION_FAILED)},
    {"staging", 2, 0, 0, "sw", S, COUNT(1), E(AGAIN)},
    {"active", 2, 1, 0, "rs", S, ALL, E(VERSION_FAILED)},
    {"active", 2, 0, 0, "ss", S, COUNT(1), E(VERSION_FAILED)},
    {"active", 1, 1, 0, "r", A, NONE, 0},
};

Test(outcomes, too_many_refusals_end_a_wait)
{
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        heddle_error_t error = {0};
        start();
        wait_for_t want = {REFUSED[i].phase, REFUSED[i].quorum};
        int rc = outcomes_judge(&r, row_missing(&REFUSED[i]), &want, &error);
        cr_assert_eq(rc, REFUSED[i].expected, "row %zu: %s, not %s", i, heddle_err_name(rc),
                     heddle_err_name(REFUSED[i].expected));
        stop();
    }
}

Test(outcomes, a_refusal_is_told_with_what_to_do, .init = start, .fini = stop)
{
    heddle_error_t error = {0};
    wait_for_t want = {A, ALL};
    refused_t row = {"active", 3, 3, 1, "wr", A, ALL, 0};
    outcomes_judge(&r, row_missing(&row), &want, &error);
    cr_assert_str_eq(error.message, "policy@7 was refused by w1: no such engine");
    cr_assert_str_eq(error.worker, "w1");
    cr_assert_str_eq(error.phase, "activate");
    cr_assert_str_eq(error.expected, "active on 3 of 3 workers");
    cr_assert_str_eq(error.found, "on 1; refused by 1");
    cr_assert(strstr(error.hint, "heddle activate policy@7"));
}
