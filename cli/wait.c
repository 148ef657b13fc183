/* SPDX-License-Identifier: Apache-2.0 */
/* heddle wait: blocks until as many workers as requested have a version, or the deadline has passed. */
#include "cli/cli.h"

#include "core/bytes.h"

#include <stdio.h>

typedef struct {
    common_t common;
    int phase;
    heddle_quorum_t quorum;
    int64_t min;
    const char **workers;
    bool exact;
    uint32_t deadline_ms;
} args_t;
static const option_t OPTIONS[] = {
    {"phase", 0, OPTION_CHOICE, "staged|active", NULL, "active", "what to wait for", offsetof(args_t, phase)},
    {"quorum", 0, OPTION_QUORUM, "all|N|P%", NULL, "all", "how many of the ready subscribers, or of --worker",
     offsetof(args_t, quorum)},
    {"min", 0, OPTION_INTEGER, "N", NULL, "1", "at least so many, however few are ready",
     offsetof(args_t, min)},
    {"worker", 0, OPTION_LIST, "NAME", NULL, NULL, "only this worker; may be given again",
     offsetof(args_t, workers)},
    {"exact", 0, OPTION_FLAG, NULL, NULL, NULL, "this version itself; without it a later decision counts too",
     offsetof(args_t, exact)},
    {"deadline", 0, OPTION_DEADLINE, "DUR", NULL, "30s", "give up after this", offsetof(args_t, deadline_ms)},
    {0}};
static const char *const ARGS[] = {"REF", NULL};
static const option_set_t SET = {"heddle wait",
                                 "NAME|NAME@V|TAG [OPTION...]",
                                 "Waits until the workers have a version (NAME alone: the newest one now).\n"
                                 "Every ready subscriber counts, also one that serves "
                                 "a later decision, be it a roll-back.",
                                 CLI_TAG "\n" CLI_DUR "\n" CLI_QUORUM,
                                 OPTIONS,
                                 CLI_COMMON,
                                 ARGS,
                                 1,
                                 CLI_EXITS ", the workers have it; 1 the version failed or is lost; 3 it was "
                                           "never published; 4 its adapter is held;\n"
                                           "5 the deadline ran out.\n" CLI_EXITS_COMMON
                                           ".\n\nExamples:\n  heddle wait policy                       until "
                                           "every worker serves the newest version,\n"
                                           "                                           or what was "
                                           "activated since\n"
                                           "  heddle wait policy@7 --quorum 50% --deadline 2m\n  heddle wait "
                                           "policy@7 --phase staged --worker w1 --worker w2"};

/* The version that a counted worker has instead, by a later decision; 0: none.  Both lists are sorted by
 * name. */
static int64_t later_version(const json_t *a)
{
    const json_t *workers = json_object_get(a, "workers"), *missing = json_object_get(a, "missing");
    for (size_t i = 0, m = 0; i < json_array_size(workers); i++) {
        const json_t *w = json_array_get(workers, i);
        bool is_missing = json_equal(json_object_get(w, "worker"),
                                     json_object_get(json_array_get(missing, m), "worker"));
        m += is_missing;
        if (!is_missing && cli_integer(w, "version") != cli_integer(a, "version"))
            return cli_integer(w, "version");
    }
    return 0;
}

/* "2 of 3 ready workers", "1 of 3 ready workers, 4 needed", "no worker: none is ready, 1 needed" */
static const char *ready_text(const json_t *a, char to[64])
{
    long long need = cli_integer(a, "need_count"), ready = cli_integer(a, "eligible_count");
    char needed[40] = "";
    if (need != ready) snprintf(needed, sizeof needed, ", %lld needed", need);
    if (!ready) snprintf(to, 64, "no worker: none is ready%s", needed);
    else
        snprintf(to, 64, "%lld of %lld ready worker%s%s", (long long)cli_integer(a, "have_count"), ready,
                 ready == 1 ? "" : "s", needed);
    return to;
}

static void render(const common_t *c, json_t *a)
{
    (void)c;
    char s[3][64], at[64], later[HEDDLE_NAME_MAX + 64] = "";
    int64_t version = later_version(a);
    if (version)
        text_printf(later, sizeof later, " or a later decision (%s@%lld)",
                    json_string_value(json_object_get(a, "adapter")), (long long)version);
    printf("%s@%s%s %s at %s, after %s ms\n", json_string_value(json_object_get(a, "adapter")),
           cli_text(a, "version", s[0]), later, cli_text(a, "phase", s[1]),
           ready_text(a, at), cli_text(a, "elapsed_ms", s[2]));
    const json_t *missing = json_object_get(a, "missing");
    for (size_t i = 0; i < json_array_size(missing); i++) {
        const json_t *m = json_array_get(missing, i);
        const char *worker = json_string_value(json_object_get(m, "worker")),
                   *code = cli_text(m, "code", s[1]);
        if (!json_is_number(json_object_get(m, "heartbeat_age_ms")))
            printf("  missing: %s, no such worker is known\n", worker);
        else
            printf("  missing: %s, %s, %s, last heartbeat %s ms ago\n", worker, cli_text(m, "phase", s[0]),
                   code, cli_text(m, "heartbeat_age_ms", s[2]));
    }
}

int command_wait(int argc, char **argv)
{
    args_t args = {0};
    const char *ref = NULL;
    int end = cli_parse(&SET, "wait", argc, argv, &args, &ref);
    heddle_admin_t *admin = end < 0 ? cli_admin(&args.common, "wait", &end) : NULL;
    if (admin) {
        heddle_wait_opts_t opts = {.size = sizeof opts,
                                   .phase = args.phase ? HEDDLE_PHASE_ACTIVE : HEDDLE_PHASE_STAGED,
                                   .quorum = args.quorum,
                                   .min = args.min > 0 ? (uint32_t)args.min : 0,
                                   .workers = args.workers,
                                   .exact = args.exact,
                                   .deadline_ms = args.deadline_ms};
        char *json = NULL;
        int rc = heddle_admin_wait(admin, ref, &opts, &json);
        end = cli_answer(&args.common, "wait", cli_error(rc), json, render);
        cli_admin_close(&admin);
    }
    option_fini(&SET, &args);
    return end;
}
