/* SPDX-License-Identifier: Apache-2.0 */
/* heddle wait: blocks until as many workers as requested have a version, or the deadline has passed.
 *
 * A worker that serves a later decision counts as well: a script that waits for version 7 wants to go on, and
 * after a roll-back to 6 a wait for 7 itself would only run into its deadline. --exact asks for that. */
#include "cli/cli.h"

#include "core/bytes.h"
#include "core/errors.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    common_t common;
    int phase;
    heddle_quorum_t quorum;
    int64_t min;
    const char **workers;
    bool exact;
    uint32_t deadline_ms;
    const char *ref;
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
static const option_set_t SET = {
    "heddle wait",
    "NAME|NAME@V|TAG [OPTION...]",
    "Waits until the workers have a version (NAME alone: the newest one now).\n"
    "Every ready subscriber counts, also one that serves a later decision, be it a roll-back.\n"
    "Where the connection to the broker is lost, the wait goes on; after 3 s a line on stderr says so.",
    CLI_TAG "\n" CLI_DUR "\n" CLI_QUORUM,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS ", the workers have it; 1 the version failed or is lost; 3 it was never published; 4 its\n"
              "adapter is held; 5 the deadline ran out.\n" CLI_EXITS_COMMON
              ".\n\nExamples:\n  heddle wait policy                       until "
              "every worker serves the newest version,\n"
              "                                           or what was "
              "activated since\n"
              "  heddle wait policy@7 --quorum 50% --deadline 2m\n  heddle wait "
              "policy@7 --phase staged --worker w1 --worker w2"};

static void render(const common_t *c, json_t *a)
{
    (void)c;
    const json_t *workers = json_object_get(a, "workers"), *missing = json_object_get(a, "missing");
    long long version = cli_integer(a, "version"), later = 0;
    /* The version that a counted worker has instead, by a later decision.  Both lists are sorted by name. */
    for (size_t i = 0, m = 0; !later && i < json_array_size(workers); i++) {
        const json_t *w = json_array_get(workers, i), *name = json_object_get(w, "worker");
        if (json_equal(name, json_object_get(json_array_get(missing, m), "worker"))) m++;
        else if (cli_integer(w, "version") != version) later = cli_integer(w, "version");
    }
    char s[3][64], instead[HEDDLE_NAME_MAX + 64] = "", needed[40] = "";
    if (later)
        text_printf(instead, sizeof instead, " or a later decision (%s@%lld)", cli_string(a, "adapter"),
                    later);
    long long have = cli_integer(a, "have_count");
    /* Those that went on to a later decision would count, but the version itself has failed. */
    bool has_ended = !cli_is(a, "ok") && have && have >= cli_integer(a, "need_count");
    if (has_ended) {
        printf("%s@%s has ended%s%s, after %s ms\n", cli_string(a, "adapter"), cli_text(a, "version", s[0]),
               later ? "; the workers are at" : "", instead + (later ? strlen(" or") : 0),
               cli_text(a, "elapsed_ms", s[1]));
        return;
    }
    /* The error follows on stderr. The first line must not read as if the wait could still end well. */
    const char *code = cli_string(json_object_get(a, "error"), "code");
    bool is_lost = code && !strcmp(code, heddle_err_name(HEDDLE_ERR_VERSION_LOST));
    bool is_over = code && !strcmp(code, heddle_err_name(HEDDLE_ERR_VERSION_FAILED)) &&
                   !cli_integer(a, "decision"); /* with one it is active, and workers refused it */
    printf("%s@%s%s %s at ", cli_string(a, "adapter"), cli_text(a, "version", s[0]),
           is_lost   ? " is lost;"
           : is_over ? " has ended;"
                     : instead,
           cli_text(a, "phase", s[1]));
    /* "2 of 3 ready workers", "1 of 3 ready workers, 4 needed", "no worker: none is ready, 1 needed" */
    long long need = cli_integer(a, "need_count"), ready = cli_integer(a, "eligible_count");
    for (size_t i = 0; i < json_array_size(missing); i++) ready -= cli_is_unknown(json_array_get(missing, i));
    if (need != ready) snprintf(needed, sizeof needed, ", %lld needed", need);
    if (!ready) printf("no worker: none is ready%s", needed);
    else printf("%lld of %s%s", have, cli_count(ready, "ready worker", s[0]), needed);
    printf(", after %s ms\n", cli_text(a, "elapsed_ms", s[0]));
    cli_show_missing(missing);
}

/* Once for each silence: without it a wait for a broker that has died looks like one for workers. */
static void print_silent(void *self, uint32_t silent_ms)
{
    const args_t *args = self;
    fprintf(stderr, "the broker at %s does not answer (for %u s); waiting for it\n", args->common.broker,
            silent_ms / 1000);
}

/* A quorum of none ready would be reached at once: --min, 1 unless it is given, prevents that. */
static int ask(heddle_admin_t *admin, const void *self, char **ret_json)
{
    const args_t *args = self;
    heddle_wait_opts_t opts = {.size = sizeof opts,
                               .phase = args->phase ? HEDDLE_PHASE_ACTIVE : HEDDLE_PHASE_STAGED,
                               .quorum = args->quorum,
                               .min = args->min > 0 ? (uint32_t)args->min : 0,
                               .workers = args->workers,
                               .exact = args->exact,
                               .deadline_ms = args->deadline_ms,
                               .silent = args->common.quiet ? NULL : print_silent,
                               .silent_self = (void *)(uintptr_t)self};
    for (const char **w = args->workers; w && *w; w++)
        cli_note_unknown(admin, &args->common, "wait", "worker", *w);
    return heddle_admin_wait(admin, args->ref, &opts, ret_json);
}

int command_wait(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "wait", argc, argv, &args, &args.ref);
    if (end < 0) end = cli_ask(&args, "wait", ask, render);
    option_fini(&SET, &args);
    return end;
}
