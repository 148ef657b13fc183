/* SPDX-License-Identifier: Apache-2.0 */
/* heddle keys: lists, adds and revokes the keys that the broker accepts.
 *
 * An action is a row of ACTIONS, which says what it takes. All of that is checked before a session is opened,
 * so that a mistyped command has no effect and needs no broker. */
#include "cli/cli.h"

#include "core/errors.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    common_t common;
    const char **roles, *name;
    bool entered;
    const char *words[2]; /* the action, its key */
} args_t;

static const char *const ARGS[] = {"ACTION", "KEY|FILE", NULL};
static const option_t OPTIONS[] = {
    CLI_ROLE(args_t, "add: admin, "),
    CLI_NAME(args_t, "add: what it is called; default its former name, else key-<its first characters>"),
    {"entered", 0, OPTION_FLAG, NULL, NULL, NULL, "revoke: an invitation, and every key that it entered",
     offsetof(args_t, entered)},
    {0}};
static const option_set_t SET = {
    "heddle keys",
    "list | add KEY|FILE --role ROLE | revoke [--entered] NAME|KEY|FILE [OPTION...]",
    "Who may do what at this broker.",
    "KEY is a public key; FILE holds one, as heddle keygen makes or prints it.  add of a key that is there\n"
    "gives it the roles that it lacks, takes none away, and ends no session.  A revocation ends the key's\n"
    "sessions at once.  Needs the role admin; the first start of a broker gives it to the user that starts "
    "it.\n"
    "An invitation (heddle invite) is in the list, with how many keys it entered of how many, or why it "
    "enters\n"
    "no more, and it is revoked as a key is; the keys that it entered stay.  With --entered they are "
    "revoked\n"
    "with it, all or none; not a key that was there before it got more roles by the invitation.\n"
    "name, public key: what the key is called, and the key itself.  roles: what it may do.\n"
    "added, revoked: how long ago; -: it is not revoked.  sessions: how many it has now.\n"
    "invites: of an invitation, how many keys it entered of how many.  entered by: the invitation that "
    "entered the\n"
    "key.\n" CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS
    ", the key has the roles, or is revoked; 3 there is no such key or file; 4 the key is there\n"
    "under another name, or its name is taken; 6 the key that was presented is not an admin's, or the last "
    "admin\n"
    "would go.\n" CLI_EXITS_COMMON ".\n\nExamples:\n"
    "  heddle keys list\n  heddle keys add 'QGid9d...' --name node7 --role worker:policy --role reader\n"
    "  heddle keys revoke node7\n"
    "  heddle keys revoke --entered key-QGid9d     the invitation of a stolen join string, and its keys"};

/* "3 of 20, to 2026-11-27 16:40Z"; "-" for a key that is no invitation. */
static const char *invitation_text(const json_t *key, char scratch[64])
{
    const json_t *i = json_object_get(key, "invitation");
    const char *state = cli_string(i, "state"), *ends = cli_string(i, "ends_at");
    if (!state || !ends) return "-";
    long long used = cli_integer(i, "used_count"), uses = cli_integer(i, "use_count");
    if (!strcmp(state, "open")) /* the date and the minute of an RFC 3339 time */
        snprintf(scratch, 64, "%lld of %lld, to %.10s %.5sZ", used, uses, ends, ends + 11);
    else snprintf(scratch, 64, "%lld of %lld, %s", used, uses, strcmp(state, "used_up") ? state : "used up");
    return scratch;
}

static void render_list(const common_t *c, json_t *answer)
{
    (void)c;
    const json_t *list = json_object_get(answer, "keys");
    cli_table_t t;
    table_init(&t, "NAME", "PUBLIC KEY", "ROLES", "ADDED", "REVOKED", ">SESSIONS", "INVITES", "ENTERED BY");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *key = json_array_get(list, i);
        char s[6][64], roles[512], invites[64];
        table_row(&t, cli_text(key, "name", s[0]), cli_text(key, "public_key", s[1]),
                  cli_join(json_object_get(key, "roles"), " ", roles, sizeof roles),
                  cli_age(key, "added_at", s[2]), cli_age(key, "revoked_at", s[3]),
                  cli_text(key, "session_count", s[4]), invitation_text(key, invites),
                  cli_text(key, "entered_by", s[5]));
    }
    table_print(&t);
}

static void render_change(const common_t *c, json_t *answer)
{
    (void)c;
    char s[3][64], roles[512];
    const json_t *key = json_object_get(answer, "key"), *entered = json_object_get(answer, "entered_count");
    if (!key) return;
    if (json_is_integer(entered)) {
        printf("%s  revoked, with %s that it entered, %s ended%s\n",
               json_is_null(key) ? "the invitation" : cli_text(key, "name", s[0]),
               cli_count(json_integer_value(entered), "key", s[1]),
               cli_count(cli_integer(answer, "session_count"), "session", s[2]),
               cli_is(answer, "changed") ? "" : "  (as before)");
        return;
    }
    /* One line, without headings: the user has named the key, and it is a confirmation. */
    printf("%s  %s  %s", cli_text(key, "name", s[0]), cli_text(key, "public_key", s[1]),
           cli_join(json_object_get(key, "roles"), " ", roles, sizeof roles));
    if (!json_is_null(json_object_get(key, "revoked_at")))
        printf("  revoked, %s ended", cli_count(cli_integer(answer, "session_count"), "session", s[2]));
    /* A key that is new has no other roles than those that were added. */
    const json_t *added = json_object_get(answer, "added_roles");
    bool is_wider =
        json_array_size(added) && json_array_size(added) < json_array_size(json_object_get(key, "roles"));
    if (is_wider) printf("  (added %s; its sessions go on)", cli_join(added, " ", roles, sizeof roles));
    puts(cli_is(answer, "changed") ? "" : "  (as before)");
}

static int list(heddle_admin_t *admin, const void *args, char **ret_json)
{
    (void)args;
    return heddle_admin_keys(admin, ret_json);
}

static int add(heddle_admin_t *admin, const void *self, char **ret_json)
{
    const args_t *args = self;
    return heddle_admin_key_add(admin, args->words[1], args->name, args->roles, ret_json);
}

static int revoke(heddle_admin_t *admin, const void *self, char **ret_json)
{
    const args_t *args = self;
    return args->entered ? heddle_admin_key_revoke_entered(admin, args->words[1], ret_json)
                         : heddle_admin_key_revoke(admin, args->words[1], ret_json);
}

/* An option that an action does not take is an error: `keys revoke node7 --role reader` would otherwise take
 * more away than the user meant. */
static const struct {
    const char *name;
    bool has_key, has_options;
    const char *kind; /* of its answer */
    call_t *call;
    render_t *render;
} ACTIONS[] = {{"list", false, false, "keys list", list, render_list},
               {"add", true, true, "keys add", add, render_change},
               {"revoke", true, false, "keys revoke", revoke, render_change}};

int command_keys(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "keys", argc, argv, &args, args.words);
    if (end >= 0) { /* the lists that were parsed before the error are there */
        option_fini(&SET, &args);
        return end;
    }
    const char *const names[] = {"list", "add", "revoke", NULL};
    const char *action = args.words[0], *key = args.words[1], *wrong = NULL;
    char unknown[64];
    size_t i = 0;
    while (names[i] && strcmp(names[i], action)) i++;
    if (!names[i]) {
        const char *nearest = option_nearest(action, names);
        snprintf(unknown, sizeof unknown, "there is no such action%s%s%s", nearest ? "; did you mean " : "",
                 nearest ? nearest : "", nearest ? "?" : "");
        wrong = unknown;
    } else if (ACTIONS[i].has_key != (key != NULL)) wrong = key ? "list takes no key" : "the key is missing";
    else if (!ACTIONS[i].has_options && (args.roles || args.name)) wrong = "--role and --name are for add";
    else if (args.entered && ACTIONS[i].call != revoke) wrong = "--entered is for revoke";
    else if (ACTIONS[i].has_options && !args.roles) wrong = "--role is missing";
    if (wrong) {
        heddle_error_t error;
        error_fail(&error, HEDDLE_ERR_USAGE, "%s", wrong);
        error_expected(&error, "heddle keys %s", SET.usage);
        error_hint(&error, "see heddle keys --help");
        end = cli_fail(&args.common, names[i] ? ACTIONS[i].kind : "keys", &error);
    } else end = cli_ask(&args, ACTIONS[i].kind, ACTIONS[i].call, ACTIONS[i].render);
    option_fini(&SET, &args);
    return end;
}
