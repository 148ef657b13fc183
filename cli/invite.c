/* SPDX-License-Identifier: Apache-2.0 */
/* heddle invite: makes an invitation, which one string carries to other hosts.  It is a key of the broker's
 * table, listed and revoked as all others (heddle keys). */
#include "cli/cli.h"

#include "core/errors.h"

#include <stdio.h>

typedef struct {
    common_t common;
    const char **roles, *name, *address;
    int64_t uses;
    uint32_t ttl_ms;
} args_t;

static const option_t OPTIONS[] = {
    CLI_ROLE(args_t, ""),
    {"uses", 0, OPTION_INTEGER, "N", NULL, "1", "how many keys it enters: one for each user of each host",
     offsetof(args_t, uses)},
    {"ttl", 0, OPTION_DURATION, "DUR", NULL, "1h", "how long it is good", offsetof(args_t, ttl_ms)},
    CLI_NAME(args_t,
             "what it is called; its keys are NAME-1, NAME-2...; default invite-<characters of its key>"),
    {"address", 0, OPTION_TEXT, "EP[,EP]", NULL, NULL,
     "where other hosts reach the broker; default: as it was reached, or where it listens",
     offsetof(args_t, address)},
    {0}};
static const option_set_t SET = {
    "heddle invite",
    "--role ROLE [--uses N] [--ttl DUR] [OPTION...]",
    "Prints one line with which another host joins: heddle worker --join LINE.",
    "The line holds the broker's addresses and public key, and a secret.  Until it is used up, ends or is\n"
    "revoked, each process that has it can enter a key with these roles: pass it as the secret it is (a "
    "file\n"
    "of mode 0600: --join @FILE; or HEDDLE_JOIN).  `heddle keys list` shows how often it was used,\n"
    "`heddle keys revoke NAME` ends it; the keys that it entered stay, and are revoked one by one.\n"
    "Needs the role admin, as keys does.\n" CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    NULL,
    0,
    CLI_EXITS
    "; 4 the name is taken; 6 the key that was presented is not an admin's, or the broker\n"
    "runs without keys.\n" CLI_EXITS_COMMON ".\n\nExamples:\n"
    "  heddle invite --role worker:policy --uses 20 --ttl 1h\n"
    "  (umask 077; heddle invite --role worker:policy >join.txt); heddle worker --join @join.txt --adapter "
    "policy"};

/* The line alone is on stdout, so that $(heddle invite ...) is the string. */
static void render(const common_t *c, json_t *answer)
{
    const json_t *key = json_object_get(answer, "key");
    char s[2][64], roles[512], addresses[512];
    if (!cli_string(answer, "join")) return;
    puts(cli_string(answer, "join"));
    if (c->quiet) return;
    const json_t *invitation = json_object_get(key, "invitation");
    fprintf(stderr, "heddle invite: %s enters %s with %s, until %s, at %s\n", cli_text(key, "name", s[0]),
            cli_count(cli_integer(invitation, "use_count"), "key", s[1]),
            cli_join(json_object_get(key, "roles"), " ", roles, sizeof roles),
            cli_string(invitation, "ends_at"),
            cli_join(json_object_get(answer, "addresses"), " ", addresses, sizeof addresses));
    if (cli_is(answer, "loopback"))
        fprintf(stderr,
                "heddle invite: that is an address of this host alone: for other hosts the broker must "
                "listen elsewhere (heddle broker --listen), or --address must name it\n");
}

static int invite(heddle_admin_t *admin, const void *self, char **ret_json)
{
    const args_t *args = self;
    heddle_invite_opts_t opts = {.size = sizeof opts,
                                 .name = args->name,
                                 .roles = args->roles,
                                 .uses = (uint32_t)args->uses,
                                 .ttl_ms = args->ttl_ms,
                                 .address = args->address};
    return heddle_admin_invite(admin, &opts, ret_json);
}

int command_invite(int argc, char **argv)
{
    args_t args = {0};
    heddle_error_t error = {0};
    int end = cli_parse(&SET, "invite", argc, argv, &args, NULL);
    if (end < 0 && !args.roles) {
        error_fail(&error, HEDDLE_ERR_USAGE, "--role is missing");
        error_expected(&error, "--role ROLE, once or more");
        error_hint(&error, "see heddle invite --help");
    } else if (end < 0 && (args.uses < 1 || args.uses > HEDDLE_INVITE_USES_MAX)) {
        char range[32];
        snprintf(range, sizeof range, "1 to %u", HEDDLE_INVITE_USES_MAX);
        option_refuse(&SET, "--uses", range, args.uses, &error);
    } else if (end < 0 && !args.ttl_ms) option_refuse(&SET, "--ttl", "more than 0", 0, &error);
    if (end < 0)
        end =
            error.code ? cli_fail(&args.common, "invite", &error) : cli_ask(&args, "invite", invite, render);
    option_fini(&SET, &args);
    return end;
}
