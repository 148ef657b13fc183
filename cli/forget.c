/* SPDX-License-Identifier: Apache-2.0 */
/* heddle forget: removes an adapter that is not used any more, or whose name was mistyped. */
#include "cli/cli.h"

#include <stdio.h>

typedef struct {
    common_t common;
    bool dry_run;
    const char *name;
} args_t;

static const char *const ARGS[] = {"NAME", NULL};
static const option_t OPTIONS[] = {{"dry-run", 0, OPTION_FLAG, NULL, NULL, NULL,
                                    "say what would be forgotten, change nothing", offsetof(args_t, dry_run)},
                                   {0}};
static const option_set_t SET = {
    "heddle forget",
    "NAME [OPTION...]",
    "Forgets an adapter, with all its versions: one whose name was mistyped, or that is not used any more.\n"
    "Refused while a publisher has it open, or a worker subscribes to it.  The name can be used again: its "
    "next\n"
    "version goes on above the old numbers.",
    "Nothing is removed on the hosts of workers: exported directories stay.\n" CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS ", the broker knows the adapter no more; 3 there is no such adapter;\n"
              "4 it has a writer, or a worker that subscribes to it or was lost less than 10 minutes "
              "ago.\n" CLI_EXITS_COMMON ";\n7 also in the first seconds of a broker.\n\nExamples:\n"
              "  heddle forget polcy --dry-run            what would go?\n"
              "  heddle forget polcy"};

static void render(const common_t *c, json_t *answer)
{
    (void)c;
    char s[64];
    printf("%s %s forgotten, with %s\n", cli_string(answer, "adapter"),
           cli_is(answer, "dry_run") ? "would be" : "is",
           cli_count(cli_integer(answer, "version_count"), "version", s));
}

static int ask(heddle_admin_t *admin, const void *self, char **ret_json)
{
    const args_t *args = self;
    return heddle_admin_forget(admin, args->name, args->dry_run, ret_json);
}

int command_forget(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "forget", argc, argv, &args, &args.name);
    return end >= 0 ? end : cli_ask(&args, "forget", ask, render);
}
