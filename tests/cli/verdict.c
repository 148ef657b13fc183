/* SPDX-License-Identifier: Apache-2.0 */
/* What `heddle check` makes of an answer: the level, the findings, and the line. */
#include "cli/verdict.h"

#include <criterion/criterion.h>
#include <string.h>

#define BROKER "\"broker\":{\"now_at\":\"2026-11-27T12:00:10.000Z\"},\"count\":{\"workers_ready\":3}"
#define POLICY                                                                                               \
    "{\"name\":\"policy\",\"active\":{\"version\":4,\"since_at\":\"2026-11-27T12:00:00.000Z\"},"             \
    "\"subscriber_count\":2,\"max_lag\":3}"
#define DRAFT "{\"name\":\"draft\",\"active\":null,\"subscriber_count\":1,\"max_lag\":1}"
static const char GOOD[] = "{" BROKER ",\"adapters\":[" DRAFT "," POLICY "],\"reasons\":[]}";

#define LOST                                                                                                 \
    "{\"name\":\"version.lost\",\"adapter\":\"draft\",\"worker\":null,\"message\":\"draft@1 is lost\"}"
#define BEHIND                                                                                               \
    "{\"name\":\"worker.behind\",\"adapter\":\"policy\",\"worker\":\"w1\",\"message\":\"w1 | is\\nbehind\"}"
#define GONE "{\"name\":\"worker.lost\",\"adapter\":null,\"worker\":\"w2\",\"message\":\"w2 is lost\"}"

static const verdict_limits_t NONE = {NULL, -1, -1, -1};

/* The line, without what it may end in. */
static const char *line_of(const char *status, verdict_limits_t limits, verdict_t *ret_level)
{
    static char line[1400];
    json_t *answer = json_loads(status, 0, NULL);
    cr_assert_not_null(answer);
    json_t *check = verdict_of(answer, &limits);
    cr_assert_not_null(check);
    *ret_level = verdict_level(check);
    cr_assert(json_is_true(json_object_get(check, "ok")) == (*ret_level == VERDICT_OK));
    verdict_line(check, &limits, line, sizeof line);
    json_decref(check);
    json_decref(answer);
    return line;
}

static verdict_t level_of(const char *status, verdict_limits_t limits)
{
    verdict_t level;
    line_of(status, limits, &level);
    return level;
}

Test(verdict, without_limits_and_reasons_all_is_ok)
{
    verdict_t level;
    cr_assert_str_eq(line_of(GOOD, NONE, &level),
                     "HEDDLE OK - 3 workers ready, 2 adapters | workers=3;;;0 lag=3;;;0 age=10.000s;;;0");
    cr_assert_eq(level, VERDICT_OK);
}

Test(verdict, a_limit_that_is_reached_is_not_exceeded)
{
    verdict_limits_t at = {"policy", 2, 3, 10000};
    cr_assert_eq(level_of(GOOD, at), VERDICT_OK);
    at.min_workers = 3;
    cr_assert_eq(level_of(GOOD, at), VERDICT_CRITICAL, "two subscribe to it, and three are ready");
    at.min_workers = 2;
    at.max_lag = 2;
    cr_assert_eq(level_of(GOOD, at), VERDICT_CRITICAL);
    at.max_lag = 3;
    at.max_age_ms = 9999;
    cr_assert_eq(level_of(GOOD, at), VERDICT_CRITICAL);
}

Test(verdict, a_line_has_what_is_wrong_and_each_limit)
{
    verdict_t level;
    cr_assert_str_eq(
        line_of(GOOD, (verdict_limits_t){"policy", 5, 2, 9500}, &level),
        "HEDDLE CRITICAL - policy: a worker is 3 versions behind, of 2 at most; policy: its version was "
        "activated 10.0 s ago, of 9.5 s at most; policy: 2 workers are ready, of 5 at least | "
        "workers=2;;5:;0 lag=3;;2;0 age=10.000s;;9.5;0");
}

Test(verdict, of_all_adapters_the_worst_counts)
{
    cr_assert_eq(level_of(GOOD, (verdict_limits_t){NULL, 3, 3, -1}), VERDICT_OK);
    cr_assert_eq(level_of(GOOD, (verdict_limits_t){NULL, 4, -1, -1}), VERDICT_CRITICAL);
    cr_assert_eq(level_of(GOOD, (verdict_limits_t){NULL, -1, 2, -1}), VERDICT_CRITICAL);
    cr_assert_eq(level_of(GOOD, (verdict_limits_t){NULL, -1, -1, 20000}), VERDICT_CRITICAL,
                 "draft has no active version");
}

Test(verdict, an_adapter_that_is_not_there_is_critical)
{
    verdict_t level;
    const char *line = line_of(GOOD, (verdict_limits_t){"polcy", -1, -1, -1}, &level);
    cr_assert_eq(level, VERDICT_CRITICAL);
    cr_assert_str_eq(line, "HEDDLE CRITICAL - there is no adapter \"polcy\" | workers=0;;;0 lag=0;;;0");
}

Test(verdict, reasons_are_warnings_and_some_are_critical)
{
    cr_assert_eq(level_of("{" BROKER ",\"adapters\":[],\"reasons\":[" GONE "," BEHIND "]}", NONE),
                 VERDICT_WARNING);
    verdict_t level;
    const char *line =
        line_of("{" BROKER ",\"adapters\":[],\"reasons\":[" GONE "," BEHIND "," LOST "]}", NONE, &level);
    cr_assert_eq(level, VERDICT_CRITICAL);
    cr_assert(strstr(line, "CRITICAL - draft@1 is lost; w2 is lost; w1 / is/behind | "), "%s", line);
}

Test(verdict, of_one_adapter_only_its_reasons_count_and_those_of_no_adapter)
{
    static const char STATUS[] = "{" BROKER ",\"adapters\":[" POLICY "],\"reasons\":[" LOST "]}";
    cr_assert_eq(level_of(STATUS, (verdict_limits_t){"policy", -1, -1, -1}), VERDICT_OK);
    cr_assert_eq(level_of("{" BROKER ",\"adapters\":[" POLICY "],\"reasons\":[" GONE "]}",
                          (verdict_limits_t){"policy", -1, -1, -1}),
                 VERDICT_WARNING);
}

Test(verdict, a_broker_without_reasons_is_unknown)
{
    cr_assert_eq(level_of("{" BROKER ",\"adapters\":[]}", NONE), VERDICT_UNKNOWN);
    cr_assert_eq(level_of("{}", NONE), VERDICT_UNKNOWN);
    cr_assert_eq(level_of("{\"adapters\":7,\"reasons\":[3,{}],\"broker\":[]}", NONE), VERDICT_OK,
                 "what cannot be read is no reason");
}

Test(verdict, many_findings_are_counted)
{
    verdict_t level;
    const char *line =
        line_of("{" BROKER ",\"adapters\":[],\"reasons\":[" GONE "," GONE "," GONE "," GONE "," GONE "]}",
                NONE, &level);
    cr_assert(strstr(line, "w2 is lost; w2 is lost; w2 is lost and 2 others | "), "%s", line);
}
