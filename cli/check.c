/* SPDX-License-Identifier: Apache-2.0 */
/* heddle check: one line and an exit status for a monitoring system, as Nagios and Icinga want them.
 *
 * The exit statuses are those of their plugins, and not those of the other commands: whatever keeps the check
 * from an answer is 3, unknown. */
#include "cli/cli.h"

#include "cli/verdict.h"
#include "core/errors.h"
#include "core/option_json.h"

#include <stdio.h>

typedef struct {
    common_t common;
    int64_t min_workers, max_lag;
    uint32_t max_age_ms;
    const char *adapter;
} args_t;
static const option_t OPTIONS[] = {
    {"min-workers", 0, OPTION_INTEGER, "N", NULL, "0",
     "critical where fewer workers are ready (with ADAPTER: of those that subscribe to it)",
     offsetof(args_t, min_workers)},
    {"max-lag", 0, OPTION_INTEGER, "N", NULL, NULL,
     "critical where a worker is more versions behind (`lag` of heddle workers); default no limit",
     offsetof(args_t, max_lag)},
    {"max-age", 0, OPTION_DURATION, "DUR", NULL, NULL,
     "critical where no version was activated for so long, or none is active; default no limit",
     offsetof(args_t, max_age_ms)},
    {0}};
static const char *const ARGS[] = {"ADAPTER", NULL};
static const option_set_t SET = {
    "heddle check",
    "[ADAPTER] [OPTION...]",
    "One line and an exit status for a monitoring system, as the plugins of Nagios have them.\n"
    "critical: a limit is exceeded; there is no such ADAPTER; the active or the newest version of an adapter "
    "is\n"
    "lost, the broker takes no records, or a worker serves damaged bytes.\n"
    "warning: another reason that `heddle status --check` lists.  unknown: no answer, or wrong usage.\n"
    "With ADAPTER: its reasons, and those of the broker and of lost workers.\n"
    "The line ends in performance data: workers, lag and age, each with its limit.",
    CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    0,
    "Exit status: 0 ok; 1 warning; 2 critical; 3 unknown: no broker answers, denied, or wrong usage.\n"
    "Interrupted as everywhere: 129, 130 or 143.\n\nExamples:\n"
    "  heddle check\n"
    "  heddle check policy --min-workers 4 --max-lag 2 --max-age 10m     of one adapter, with limits\n"
    "  heddle check -o json | jq -r '.findings[].message'     every finding"};

static int unknown(const args_t *args, const char *why, int end)
{
    if (args->common.output == OUTPUT_TABLE && end == VERDICT_UNKNOWN)
        printf("HEDDLE UNKNOWN - %.500s\n", why);
    return end;
}

/* With -o json what is not ok has an error, as every answer. */
static void print_json(const json_t *check)
{
    verdict_t level = verdict_level(check);
    json_t *answer = json_deep_copy(check);
    if (level != VERDICT_OK) {
        heddle_error_t error;
        char text[sizeof error.message];
        verdict_text(check, text, sizeof text);
        error_fail(&error, HEDDLE_ERR_UNHEALTHY, "%s", text);
        json_t *object = cli_error_object("check", &error);
        json_object_set_new(object, "exit", json_integer(level));
        json_object_set_new(answer, "error", object);
    }
    cli_print_json(answer);
    json_decref(answer);
}

static int print(const args_t *args, const char *json)
{
    verdict_limits_t limits = {args->adapter, args->min_workers ? args->min_workers : -1, args->max_lag,
                               args->max_age_ms ? (int64_t)args->max_age_ms : -1};
    json_t *status = json_loads(json, 0, NULL);
    option_json_words(status);
    json_t *check = verdict_of(status, &limits);
    verdict_t level = verdict_level(check);
    json_decref(status);
    if (args->common.output == OUTPUT_JSON) print_json(check);
    else {
        char line[1400];
        cli_clean_texts(check);
        verdict_line(check, &limits, line, sizeof line);
        puts(line);
    }
    json_decref(check);
    return (int)level;
}

int command_check(int argc, char **argv)
{
    args_t args = {.max_lag = -1};
    heddle_error_t error;
    int end = cli_parse(&SET, "check", argc, argv, &args, &args.adapter);
    if (end >= 0) return unknown(&args, "wrong usage: see heddle check --help", end);
    int wrong = args.min_workers < 0
                    ? option_refuse(&SET, "--min-workers", "0 or more", args.min_workers, &error)
                : args.max_lag < -1 ? option_refuse(&SET, "--max-lag", "0 or more", args.max_lag, &error)
                                    : HEDDLE_OK;
    if (wrong) return unknown(&args, error.message, cli_fail(&args.common, "check", &error));
    heddle_admin_t *admin = cli_admin(&args.common, "check", &end);
    if (!admin) return unknown(&args, heddle_last_error()->message, end);
    char *json = NULL;
    if (heddle_admin_status(admin, &json))
        end = unknown(&args, heddle_last_error()->message,
                      cli_fail(&args.common, "check", heddle_last_error()));
    else end = print(&args, json);
    heddle_free(json);
    cli_admin_close(&admin);
    return end;
}
