/* SPDX-License-Identifier: Apache-2.0 */
/* heddle activate, heddle rollback and heddle resume: decide which version of an adapter is served, and wait
 * until the workers serve it.
 *
 * The decision and the wait are two things. Once the broker has decided, the decision stands: a deadline that
 * passes (exit 5) or workers that refuse (exit 1) end only the wait. To activate the same version again then
 * changes nothing and waits once more; a second roll-back is one more step back. */
#include "cli/cli.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    common_t common;
    uint32_t deadline_ms;
    heddle_quorum_t wait;
    bool dry_run;
    const char *to;  /* rollback */
    const char *ref; /* what is decided about: NAME, NAME@V or a tag */
    int (*decide)(heddle_admin_t *, const char *, const heddle_activate_opts_t *, char **);
} args_t;
/* One default of the deadline for all three: a decision moves no bytes where workers hold the version. */
#define DECIDING_OPTIONS                                                                                     \
    {"deadline",                                                                                             \
     0,                                                                                                      \
     OPTION_DEADLINE,                                                                                        \
     "DUR",                                                                                                  \
     NULL,                                                                                                   \
     "10s",                                                                                                  \
     "give up waiting after this; the decision stands",                                                      \
     offsetof(args_t, deadline_ms)},                                                                         \
        {"wait",                                                                                             \
         0,                                                                                                  \
         OPTION_QUORUM,                                                                                      \
         "all|N|P%|none",                                                                                    \
         NULL,                                                                                               \
         "all",                                                                                              \
         "how many workers must serve it; none: the decision is enough",                                     \
         offsetof(args_t, wait)},                                                                            \
    {                                                                                                        \
        "dry-run", 0, OPTION_FLAG, NULL, NULL, NULL, "say what would happen, decide nothing",                \
            offsetof(args_t, dry_run)                                                                        \
    }
static const option_t DECIDING[] = {DECIDING_OPTIONS, {0}};
static const char *const ARGS[] = {"NAME", NULL}, *const ACTIVATE_ARGS[] = {"NAME@V", NULL};

static const option_set_t ACTIVATE = {
    "heddle activate",
    "NAME@V|TAG [OPTION...]",
    "Makes a version the one to serve.  An older one than the newest is a roll-back: it moves no bytes "
    "where\n"
    "workers still hold it, and\n"
    "the adapter is held: later versions stage and do not activate until the newest is activated by hand.",
    "Where it is active already, those that are stale try again, and nothing is repaired: heddle verify has\n"
    "exported files written again.\n" CLI_TAG "\n" CLI_DUR "\n" CLI_QUORUM,
    DECIDING,
    CLI_COMMON,
    ACTIVATE_ARGS,
    1,
    CLI_EXITS ", the version is the one to serve; 1 decided, but workers refused it, or the last holder\n"
              "ended since; 3 it was never published; 4 it cannot be activated: it failed, was superseded or "
              "retired, or\n"
              "is lost; 5 decided, but the workers were not all there in time.\n" CLI_EXITS_COMMON
              ".\n\nExamples:\n"
              "  heddle activate policy@6 --dry-run       what would a roll-back do?\n  heddle activate "
              "policy@6\n  heddle activate policy@9                 the newest: ends the hold"};

static const option_t BACK_OPTIONS[] = {
    {"to", 0, OPTION_TEXT, "V|NAME@V|TAG", NULL, "0",
     "this version, instead of the one that was active before; 0: one step back", offsetof(args_t, to)},
    DECIDING_OPTIONS,
    {0}};
static const option_set_t BACK = {
    "heddle rollback",
    "NAME|NAME@V|TAG [OPTION...]",
    "Goes back to the version that was active before: of the versions below the active one that were\n"
    "active, that a worker or publisher still holds and that have other bytes, the one that was activated\n"
    "last.  Each call is one more step back.\n"
    "The adapter is held there: later versions stage and do not activate until heddle resume NAME; only the\n"
    "newest of them waits.\n"
    "NAME@V and TAG name the version to go back to, as --to does.  With --to, one that is active already is "
    "left\n"
    "as it is.",
    CLI_TAG "\n" CLI_DUR "\n" CLI_QUORUM,
    BACK_OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS
    ", the earlier version is the one to serve; 1 decided, but workers refused it, or the last\n"
    "holder ended since; 3 there is no such adapter or version; 4 there is no earlier version to go back to, "
    "or\n"
    "the one that is named cannot be activated, is newer, or (NAME@V) is active already; 5 decided, but the\n"
    "workers were not all there in time.\n" CLI_EXITS_COMMON ".\n\nExamples:\n"
    "  heddle rollback policy --dry-run         where would it go?\n"
    "  heddle rollback policy\n"
    "  heddle rollback policy --to 6\n"
    "  heddle rollback policy@6                 the same, but refused where 6 is active already\n"
    "  heddle resume policy                     ends the hold"};

static const option_set_t RESUME = {
    "heddle resume",
    "NAME [OPTION...]",
    "Ends the hold of an adapter, which a roll-back began: activates its newest version that is active, kept "
    "or\n"
    "staged.\n"
    "Versions that come later activate by themselves again.  Where the adapter is not held, nothing changes.",
    CLI_DUR "\n" CLI_QUORUM,
    DECIDING,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS
    ", the adapter is not held any more; 1 decided, but workers refused the version, or the\n"
    "last holder ended since; 3 there is no such adapter; 4 no version can be activated; 5 decided, but the\n"
    "workers were not all there in time.\n" CLI_EXITS_COMMON ".\n\nExamples:\n"
    "  heddle resume policy --dry-run           which version would be activated?\n"
    "  heddle resume policy"};

enum { FETCH_ROWS = 8 }; /* that a trial shows; of the others the bytes in all */

/* Where workers serve the same after the decision as before it, "changed" alone would say the contrary. */
static void show_same_bytes(const json_t *a)
{
    char s[2][64];
    if (!cli_is(a, "same_bytes")) return;
    printf("  %s has the same bytes as %s: the model answers as before\n", cli_text(a, "to", s[0]),
           cli_text(a, "from", s[1]));
}

/* A dry run has no times: nothing was decided, and nothing was waited for.  It shows which workers would
 * fetch the version, since until then they go on serving what they have. */
static void render_trial(const json_t *a)
{
    char s[2][64];
    const json_t *list = json_object_get(a, "would_fetch");
    int64_t workers = cli_integer(a, "eligible_count");
    size_t count = json_array_size(list);
    printf("would go from %s to %s", cli_text(a, "from", s[0]), cli_text(a, "to", s[1]));
    printf("%s%s", cli_is(a, "changed") ? "" : ", as it is",
           cli_is(a, "held") ? "; the adapter would be held" : "");
    if (cli_integer(a, "to") && !workers) printf("; no worker subscribes to it");
    else if (cli_integer(a, "to"))
        printf("; its bytes are at %lld of %s", (long long)workers - (long long)count,
               cli_count(workers, "worker", s[0]));
    puts("");
    for (size_t i = 0; i < count && i < FETCH_ROWS; i++) {
        const json_t *w = json_array_get(list, i);
        bool is_serving = json_is_integer(json_object_get(w, "version"));
        printf("  %s would fetch %s; until then it serves %s\n", cli_string(w, "worker"),
               cli_bytes(w, "bytes", s[0]), is_serving ? cli_text(w, "version", s[1]) : "nothing");
    }
    if (count > FETCH_ROWS)
        printf("  and %zu others; %s in all\n", count - FETCH_ROWS, cli_bytes(a, "would_fetch_bytes", s[0]));
    show_same_bytes(a);
}

/* Where no worker is waited for, "0 of 0" would say that nothing happens.  The answer has no count of those
 * that try again: just after a decision, workers that serve the version have not confirmed it either. */
void cli_show_decision(const json_t *a, bool is_awaited)
{
    bool is_held = cli_is(a, "held"), is_changed = cli_is(a, "changed");
    int64_t have = cli_integer(a, "have_count"), eligible = cli_integer(a, "eligible_count");
    char s[6][64];
    if (!is_awaited && !is_changed && cli_integer(a, "to")) {
        printf("%s: %s is active already%s", cli_string(a, "adapter"), cli_text(a, "to", s[0]),
               is_held ? ", the adapter is held" : "");
        if (have < eligible) puts("; workers that lack it try again (not waited for)");
        else if (!eligible) puts("; no worker subscribes to it");
        else printf("; at %lld of %s\n", (long long)have, cli_count(eligible, "worker", s[1]));
    } else if (!is_awaited && is_changed) {
        printf("%s: %s -> %s, changed%s; decided, and workers switch as they have it (not waited for)\n",
               cli_string(a, "adapter"), cli_text(a, "from", s[0]), cli_text(a, "to", s[1]),
               is_held ? ", the adapter is held" : "");
    } else {
        printf("%s: %s -> %s, %s%s; active at %s of %s after %s ms; %s moved\n", cli_string(a, "adapter"),
               cli_text(a, "from", s[0]), cli_text(a, "to", s[1]), is_changed ? "changed" : "unchanged",
               is_held ? ", the adapter is held" : "", cli_text(a, "have_count", s[2]),
               cli_count(cli_integer(a, "need_count"), "worker", s[3]), cli_text(a, "elapsed_ms", s[4]),
               cli_bytes(a, "bytes_moved", s[5]));
        cli_show_missing(json_object_get(a, "missing"));
    }
    show_same_bytes(a);
    if (is_held)
        printf("  later versions stage, and the newest of them waits: heddle resume %s activates it\n",
               cli_string(a, "adapter"));
}

static void render(const common_t *c, json_t *a)
{
    const args_t *args = (const args_t *)c;
    if (args->dry_run) render_trial(a);
    else cli_show_decision(a, args->wait.kind != HEDDLE_QUORUM_NONE);
}

/* That question has no deadline of its own, and is left out where it might outlast that of the decision. */
static int note_settling(heddle_admin_t *admin, const args_t *args)
{
    bool has_time = args->deadline_ms > args->common.timeout_ms;
    return has_time ? cli_note_settling(admin, &args->common) : HEDDLE_OK;
}

/* What took next to no time is not taken off, as the library does not take off what connecting took: texts
 * name the deadline as it was given. */
#define FREE_MS 400u
static uint32_t left_ms(const args_t *args, uint64_t began_us)
{
    uint32_t left = cli_left_ms(args->deadline_ms, began_us);
    return args->deadline_ms - left <= FREE_MS ? args->deadline_ms : left;
}

static int ask(heddle_admin_t *admin, const void *self, char **ret_json)
{
    const args_t *args = self;
    uint64_t began_us = clock_now(clock_system());
    int rc = note_settling(admin, args);
    if (rc) return rc;
    heddle_activate_opts_t opts = {.size = sizeof opts,
                                   .quorum = args->wait,
                                   .deadline_ms = left_ms(args, began_us),
                                   .dry_run = args->dry_run};
    return args->decide(admin, args->ref, &opts, ret_json);
}

int command_activate(int argc, char **argv)
{
    args_t args = {.decide = heddle_admin_activate};
    int end = cli_parse(&ACTIVATE, "activate", argc, argv, &args, &args.ref);
    if (end >= 0) return end;
    if (strchr(args.ref, '@')) return cli_ask(&args, "activate", ask, render);
    /* Elsewhere NAME alone means a version by its state. Here a guess would change what is served. */
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_USAGE, "which version of %.128s?", args.ref);
    error_contrast(&error, "NAME@V, or a tag", args.ref);
    error_hint(&error, "`heddle versions %.128s` lists them", args.ref);
    return cli_fail(&args.common, "activate", &error);
}

/* Makes the reference of the version to go back to. --to is a number, or a whole NAME@V or tag of the same
 * NAME. */
static int take_target(const char *name, const char *to, char *ret_ref, size_t size, heddle_error_t *error)
{
    size_t n = strlen(name), digits = strspn(to, "0123456789");
    bool is_number = digits > 0 && digits <= 18 && !to[digits];
    bool is_step = is_number && !strtoull(to, NULL, 10);
    bool is_of_name = !strncmp(to, name, n) && to[n] == '@';
    /* The name is checked against the version's own, because a tag that was copied from another adapter would
     * otherwise roll that one back. */
    const char *wrong = NULL;
    if (n > HEDDLE_NAME_MAX + 40) wrong = "no adapter has a name of that length";
    else if (!is_step && strchr(name, '@')) wrong = "the version is named twice";
    else if (!is_number && !is_of_name)
        wrong = strchr(to, '@') ? "--to names a version of another adapter" : "--to takes a version";
    if (wrong) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "%s", wrong);
        error_contrast(error, "1, 2, 3, ...; or NAME@V, or a tag", is_number ? name : to);
        error_hint(error, "`heddle versions NAME` lists the versions");
        return rc;
    }
    if (is_step) snprintf(ret_ref, size, "%s", name);
    else if (is_number) snprintf(ret_ref, size, "%s@%s", name, to);
    else snprintf(ret_ref, size, "%s", to);
    return HEDDLE_OK;
}

/* The version that the user names as the first word may be the bad one, which is served now.  Then the user
 * means to go back from it.  --to has no such doubt, and a script may repeat it. */
static int refuse_active(const json_t *answer, heddle_error_t *error)
{
    const char *adapter = cli_string(answer, "adapter");
    unsigned long long version = (unsigned long long)cli_integer(answer, "to");
    if (!adapter || cli_is(answer, "changed")) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_NOT_ACTIVATABLE, "%.128s@%llu is active already", adapter, version);
    error_where(error, adapter, version, NULL, "activate");
    error_hint(error, "to go back from it: `heddle rollback %.128s`", adapter);
    return rc;
}

/* A trial first, which shows what is active.  Its failure ends the command: an interrupt must not go on to
 * the decision. */
static int go_back(args_t *args)
{
    int end;
    uint64_t began_us = clock_now(clock_system());
    heddle_admin_t *admin = cli_admin(&args->common, "rollback", &end);
    if (!admin) return end;
    heddle_activate_opts_t trial = {.size = sizeof trial, .deadline_ms = args->deadline_ms, .dry_run = true};
    char *json = NULL;
    int rc = note_settling(admin, args);
    if (!rc) rc = heddle_admin_rollback(admin, args->ref, &trial, &json);
    heddle_error_t error = *cli_error(rc);
    json_t *found = rc ? NULL : json_loads(json, 0, NULL);
    heddle_free(json);
    json = NULL;
    if (!rc) rc = refuse_active(found, &error);
    json_decref(found);
    if (!rc) {
        args->deadline_ms = left_ms(args, began_us);
        rc = ask(admin, args, &json);
        error = *cli_error(rc);
    }
    end = cli_answer(&args->common, "rollback", &error, json, render);
    cli_admin_close(&admin);
    return end;
}

int command_rollback(int argc, char **argv)
{
    args_t args = {.decide = heddle_admin_rollback};
    const char *name = NULL;
    int end = cli_parse(&BACK, "rollback", argc, argv, &args, &name);
    if (end >= 0) return end;
    char ref[2 * HEDDLE_NAME_MAX + 64];
    heddle_error_t error;
    if (take_target(name, args.to, ref, sizeof ref, &error))
        return cli_fail(&args.common, "rollback", &error);
    args.ref = ref;
    return strchr(name, '@') ? go_back(&args) : cli_ask(&args, "rollback", ask, render);
}

int command_resume(int argc, char **argv)
{
    args_t args = {.decide = heddle_admin_resume};
    int end = cli_parse(&RESUME, "resume", argc, argv, &args, &args.ref);
    return end >= 0 ? end : cli_ask(&args, "resume", ask, render);
}
