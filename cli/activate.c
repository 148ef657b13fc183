/* SPDX-License-Identifier: Apache-2.0 */
/* heddle activate: makes a version active on the workers, and waits until it is. */
#include "cli/cli.h"

#include "core/errors.h"
#include "core/units.h"

#include <stdio.h>
#include <string.h>

typedef struct { common_t common; uint32_t deadline_ms; heddle_quorum_t wait; bool dry_run; } args_t;
static const option_t OPTIONS[] = {
    {"deadline", 0, OPTION_DEADLINE, "DUR", NULL, "10s", "give up waiting after this; the decision stands",
     offsetof(args_t, deadline_ms)},
    {"wait", 0, OPTION_QUORUM, "all|N|P%|none", NULL, "all",
     "how many workers must serve it; none: the decision is enough", offsetof(args_t, wait)},
    {"dry-run", 0, OPTION_FLAG, NULL, NULL, NULL, "say what would happen, decide nothing",
     offsetof(args_t, dry_run)},
    {0}};
static const char *const ARGS[] = {"NAME@V", NULL};
static const option_set_t SET = {
    "heddle activate",
    "NAME@V|TAG [OPTION...]",
    "Makes a version the one to serve.  An older one than the newest is a roll-back: it moves no bytes where "
    "workers still hold it, and\n"
    "the adapter is held: later versions stage and do not activate until the newest is activated by hand.",
    "Where it is active already, those that are stale try again, and nothing is repaired: heddle verify has "
    "exported files written again.\n" CLI_TAG "\n" CLI_DUR "\n" CLI_QUORUM,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS ", the version is the one to serve; 1 decided, but workers refused it, or the last holder "
              "ended since;\n"
              "3 it was never published; 4 it cannot be activated: it failed, was superseded or retired, "
              "or is lost;\n"
              "5 decided, but the workers were not all there in time.\n" CLI_EXITS_COMMON ".\n\nExamples:\n"
              "  heddle activate policy@6 --dry-run       what would a roll-back do?\n  heddle activate "
              "policy@6\n  heddle activate policy@9                 the newest: ends the hold"};

static bool is_dry_run;

void cli_show_activation(const json_t *a, bool is_dry)
{
    bool is_held = json_is_true(json_object_get(a, "held"));
    if (is_dry) {
        char t[2][64];
        printf("would go from %s to %s%s%s\n", cli_text(a, "from", t[0]), cli_text(a, "to", t[1]),
               json_is_true(json_object_get(a, "changed")) ? "" : ", as it is",
               is_held ? "; the adapter would be held" : "");
        return;
    }
    char s[6][64], moved[16];
    units_bytes_text((uint64_t)cli_integer(a, "bytes_moved"), moved);
    printf("%s: %s -> %s, %s%s; active at %s of %s after %s ms; %s moved\n",
           json_string_value(json_object_get(a, "adapter")), cli_text(a, "from", s[0]),
           cli_text(a, "to", s[1]), json_is_true(json_object_get(a, "changed")) ? "changed" : "unchanged",
           is_held ? ", the adapter is held" : "", cli_text(a, "have_count", s[2]),
           cli_count(cli_integer(a, "need_count"), "worker", s[3]), cli_text(a, "elapsed_ms", s[4]), moved);
    if (is_held)
        printf("  later versions stage and wait: heddle resume %s activates the newest\n",
               json_string_value(json_object_get(a, "adapter")));
}

static void render(const common_t *c, json_t *a)
{
    (void)c;
    cli_show_activation(a, is_dry_run);
}

int command_activate(int argc, char **argv)
{
    args_t args = {0};
    const char *ref = NULL;
    int end = cli_parse(&SET, "activate", argc, argv, &args, &ref);
    if (end >= 0) return end;
    if (!strchr(ref, '@')) {
        heddle_error_t error;
        error_fail(&error, HEDDLE_ERR_USAGE, "which version of %.128s?", ref);
        error_contrast(&error, "NAME@V, or a tag", ref);
        error_hint(&error, "heddle versions %.128s lists them", ref);
        return cli_fail(&args.common, "activate", &error);
    }
    heddle_admin_t *admin = cli_admin(&args.common, "activate", &end);
    if (!admin) return end;
    is_dry_run = args.dry_run;
    heddle_activate_opts_t opts = {
        .size = sizeof opts, .quorum = args.wait, .deadline_ms = args.deadline_ms, .dry_run = args.dry_run};
    char *json = NULL;
    int rc = heddle_admin_activate(admin, ref, &opts, &json);
    end = cli_answer(&args.common, "activate", cli_error(rc), json, render);
    cli_admin_close(&admin);
    return end;
}
