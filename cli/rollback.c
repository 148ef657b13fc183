/* SPDX-License-Identifier: Apache-2.0 */
/* heddle rollback and heddle resume: decisions that are named relative to the active version. */
#include "cli/cli.h"

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
    const char *to;
} args_t;
#define DECIDING                                                                                             \
    {"deadline", 0, OPTION_DEADLINE, "DUR", NULL, "10s", "give up waiting after this; the decision stands",  \
     offsetof(args_t, deadline_ms)},                                                                         \
    {"wait", 0, OPTION_QUORUM, "all|N|P%|none", NULL, "all",                                                 \
     "how many workers must serve it; none: the decision is enough", offsetof(args_t, wait)},                \
    {"dry-run", 0, OPTION_FLAG, NULL, NULL, NULL, "say what would happen, decide nothing",                   \
     offsetof(args_t, dry_run)}
static const char *const ARGS[] = {"NAME", NULL};

static const option_t BACK_OPTIONS[] = {
    {"to", 0, OPTION_TEXT, "V|NAME@V|TAG", NULL, "0",
     "this version, instead of the one that was active before; 0: one step back", offsetof(args_t, to)},
    DECIDING,
    {0}};
static const option_set_t BACK = {
    "heddle rollback",
    "NAME [OPTION...]",
    "Goes back to the version that was active before: of the versions below the active one that were active "
    "and that a worker\n"
    "or publisher still holds, the one that was activated last.  Each call is one more step back.  The "
    "adapter is held there:\n"
    "later versions stage and do not activate until heddle resume NAME.",
    CLI_TAG "\n" CLI_DUR "\n" CLI_QUORUM,
    BACK_OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS ", the earlier version is the one to serve; 1 decided, but workers refused it, or the last "
              "holder ended since;\n"
              "3 there is no such adapter or version; 4 there is no earlier version to go back to, or --to "
              "names one that cannot be\n"
              "activated or is newer; 5 decided, but the workers were not all there in time.\n"
              CLI_EXITS_COMMON ".\n\nExamples:\n"
              "  heddle rollback policy --dry-run         where would it go?\n"
              "  heddle rollback policy\n"
              "  heddle rollback policy --to 6\n"
              "  heddle resume policy                     ends the hold"};

static const option_t RESUME_OPTIONS[] = {DECIDING, {0}};
static const option_set_t RESUME = {
    "heddle resume",
    "NAME [OPTION...]",
    "Ends the hold of an adapter, which a roll-back began: activates its newest version that is active, kept "
    "or staged.\n"
    "Versions that come later activate by themselves again.  Where the adapter is not held, nothing changes.",
    CLI_DUR "\n" CLI_QUORUM,
    RESUME_OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS ", the adapter is not held any more; 1 decided, but workers refused the version, or the "
              "last holder ended since;\n"
              "3 there is no such adapter; 4 no version can be activated; 5 decided, but the workers were "
              "not all there in time.\n"
              CLI_EXITS_COMMON ".\n\nExamples:\n"
              "  heddle resume policy --dry-run           which version would be activated?\n"
              "  heddle resume policy"};

static bool is_dry_run;

static void render(const common_t *c, json_t *a)
{
    (void)c;
    cli_show_activation(a, is_dry_run);
}

typedef int decide_t(heddle_admin_t *, const char *, const heddle_activate_opts_t *, char **);

static int decide(const char *kind, const args_t *args, const char *ref, decide_t *call)
{
    int end = 0;
    heddle_admin_t *admin = cli_admin(&args->common, kind, &end);
    if (!admin) return end;
    is_dry_run = args->dry_run;
    heddle_activate_opts_t opts = {.size = sizeof opts,
                                   .quorum = args->wait,
                                   .deadline_ms = args->deadline_ms,
                                   .dry_run = args->dry_run};
    char *json = NULL;
    int rc = call(admin, ref, &opts, &json);
    end = cli_answer(&args->common, kind, cli_error(rc), json, render);
    cli_admin_close(&admin);
    return end;
}

/* Makes the reference of the version to go back to. --to is a number, or a whole NAME@V or tag of the same
 * NAME. */
static int take_target(const char *name, const char *to, char *ret_ref, size_t size, heddle_error_t *error)
{
    size_t n = strlen(name), digits = strspn(to, "0123456789");
    bool is_number = digits > 0 && digits <= 18 && !to[digits];
    bool is_step = is_number && !strtoull(to, NULL, 10);
    bool is_of_name = !strncmp(to, name, n) && to[n] == '@';
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

int command_rollback(int argc, char **argv)
{
    args_t args = {0};
    const char *name = NULL;
    int end = cli_parse(&BACK, "rollback", argc, argv, &args, &name);
    if (end >= 0) return end;
    char ref[2 * HEDDLE_NAME_MAX + 64];
    heddle_error_t error;
    int rc = take_target(name, args.to, ref, sizeof ref, &error);
    return rc ? cli_fail(&args.common, "rollback", &error)
              : decide("rollback", &args, ref, heddle_admin_rollback);
}

int command_resume(int argc, char **argv)
{
    args_t args = {0};
    const char *name = NULL;
    int end = cli_parse(&RESUME, "resume", argc, argv, &args, &name);
    return end >= 0 ? end : decide("resume", &args, name, heddle_admin_resume);
}
