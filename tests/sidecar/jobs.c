/* SPDX-License-Identifier: Apache-2.0 */
/* What stands in the queue of an exporting worker, as events come; nothing of it is run. */
#include "sidecar/jobs.h"

#include <criterion/criterion.h>
#include <stdio.h>

static jobs_t jobs;

static void commit(uint64_t version, uint64_t decision)
{
    heddle_event_t e = {.type = HEDDLE_EVENT_COMMIT, .version = version, .decision = decision};
    snprintf(e.adapter, sizeof e.adapter, "policy");
    cr_assert_eq(jobs_add(&jobs, &e), HEDDLE_OK);
}

/* "8@6 7@7!": versions, by decisions; ! where it is void. */
static const char *queue(void)
{
    static char text[200];
    int n = 0;
    text[0] = 0;
    for (const job_t *job = jobs.first; job; job = job->next)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%d@%d%s", n ? " " : "", (int)job->event.version,
                      (int)job->event.decision, job->is_void ? "!" : "");
    return text;
}

static void begin(void) { jobs = (jobs_t){.exports.root = -1}; }
static void end(void) { jobs_fini(&jobs); }
TestSuite(jobs, .init = begin, .fini = end);

Test(jobs, what_is_said_again_is_answered_by_what_is_under_way)
{
    commit(8, 6);
    commit(8, 6);
    cr_assert_str_eq(queue(), "8@6");
    commit(8, 9);
    cr_assert_str_eq(queue(), "8@9");
}

Test(jobs, a_step_back_voids_what_it_takes_back_and_comes_after_it)
{
    commit(8, 6);
    commit(7, 7);
    cr_assert_str_eq(queue(), "8@6! 7@7");
    commit(8, 8);
    cr_assert_str_eq(queue(), "8@6! 7@7 8@8", "the first one is void: it answers nothing");
    commit(7, 9);
    cr_assert_str_eq(queue(), "8@6! 7@9 8@8!");
}

/* A broker with older data asked to go back to 7, and then decided 8 as it was decided before. */
Test(jobs, what_was_said_before_has_not_the_last_word)
{
    commit(8, 6);
    commit(7, 5);
    cr_assert_str_eq(queue(), "8@6 7@5");
    commit(8, 6);
    cr_assert_str_eq(queue(), "8@6 7@5!");
}
