/* SPDX-License-Identifier: Apache-2.0 */
/* heddle keys: lists, adds and revokes the keys that the broker accepts. */
#include "cli/cli.h"

#include "core/errors.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    common_t common;
    const char **roles, *name;
} args_t;

static const char *const ARGS[] = {"ACTION", "KEY|FILE", NULL};
static const option_t OPTIONS[] = {
    {"role", 0, OPTION_LIST, "ROLE", NULL, NULL,
     "add: admin, reader, publisher:ADAPTER or worker:ADAPTER (* any); may be given again",
     offsetof(args_t, roles)},
    {"name", 0, OPTION_TEXT, "NAME", NULL, NULL,
     "add: what it is called; default key-<its first characters>", offsetof(args_t, name)},
    {0}};
static const option_set_t SET = {
    "heddle keys",
    "list | add KEY|FILE --role ROLE [--name NAME] | revoke NAME|KEY|FILE [OPTION...]",
    "Who may do what at this broker.",
    "KEY is a public key; FILE holds one, as heddle keygen makes or prints it.  A revocation ends\n"
    "the key's sessions at once.  Needs the role admin; the first start of a broker gives it to who "
    "starts it.\n" CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS
    ", the table is as asked; 3 there is no such key or file; 4 the key is there with other roles, "
    "or its name is taken;\n"
    "6 the key that was presented is no admin's, or the last admin would go.\n" CLI_EXITS_COMMON
    ".\n\nExamples:\n"
    "  heddle keys list\n  heddle keys add 'QGid9d...' --name node7 --role worker:policy --role reader\n"
    "  heddle keys revoke node7"};

/* ---- tables ---- */

static void join_roles(const json_t *key, char *to, size_t size)
{
    const json_t *roles = json_object_get(key, "roles");
    size_t n = 0;
    to[0] = 0;
    for (size_t i = 0; i < json_array_size(roles) && n < size; i++)
        n += (size_t)snprintf(to + n, size - n, "%s%s", i ? " " : "",
                              json_string_value(json_array_get(roles, i)));
}

static void render_list(const common_t *c, json_t *answer)
{
    (void)c;
    const json_t *list = json_object_get(answer, "keys");
    table_t t;
    table_init(&t, 6,
               (const char *const[]){"NAME", "PUBLIC KEY", "ROLES", "ADDED", "REVOKED", ">SESSIONS"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *key = json_array_get(list, i);
        char s[5][64], roles[512];
        join_roles(key, roles, sizeof roles);
        table_row(&t, cli_text(key, "name", s[0]), cli_text(key, "public_key", s[1]), roles,
                  cli_age(key, "added_at", s[2]), cli_age(key, "revoked_at", s[3]),
                  cli_text(key, "session_count", s[4]));
    }
    table_print(&t);
}

static void render_change(const common_t *c, json_t *answer)
{
    (void)c;
    char s[3][64], roles[512];
    const json_t *key = json_object_get(answer, "key");
    if (!key) return;
    join_roles(key, roles, sizeof roles);
    printf("%s  %s  %s", cli_text(key, "name", s[0]), cli_text(key, "public_key", s[1]), roles);
    if (!json_is_null(json_object_get(key, "revoked_at")))
        printf("  revoked, %s ended", cli_count(cli_integer(answer, "session_count"), "session", s[2]));
    puts(json_is_true(json_object_get(answer, "changed")) ? "" : "  (as before)");
}

/* ---- actions ---- */

static int misused(const args_t *a, const char *what)
{
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_USAGE, "%s", what);
    error_expected(&error, "heddle keys %s", SET.usage);
    error_hint(&error, "see heddle keys --help");
    return cli_fail(&a->common, "keys", &error);
}

static int list(const args_t *a, heddle_admin_t *admin, const char *key)
{
    char *json = NULL;
    (void)key;
    int rc = heddle_admin_keys(admin, &json);
    return cli_answer(&a->common, "keys", cli_error(rc), json, render_list);
}

static int add(const args_t *a, heddle_admin_t *admin, const char *key)
{
    char *json = NULL;
    int rc = heddle_admin_key_add(admin, key, a->name, a->roles, &json);
    return cli_answer(&a->common, "keys", cli_error(rc), json, render_change);
}

static int revoke(const args_t *a, heddle_admin_t *admin, const char *key)
{
    char *json = NULL;
    int rc = heddle_admin_key_revoke(admin, key, &json);
    return cli_answer(&a->common, "keys", cli_error(rc), json, render_change);
}

static const struct {
    const char *name;
    bool has_key, has_options;
    int (*act)(const args_t *a, heddle_admin_t *admin, const char *key);
} ACTIONS[] = {{"list", false, false, list}, {"add", true, true, add}, {"revoke", true, false, revoke}};

static int run(const args_t *a, const char *action, const char *key)
{
    for (size_t i = 0; i < sizeof ACTIONS / sizeof *ACTIONS; i++) {
        if (strcmp(ACTIONS[i].name, action) != 0) continue;
        if (ACTIONS[i].has_key != (key != NULL))
            return misused(a, key ? "list takes no key" : "the key is missing");
        if (!ACTIONS[i].has_options && (a->roles || a->name))
            return misused(a, "--role and --name are for add");
        if (ACTIONS[i].has_options && !a->roles) return misused(a, "--role is missing");
        int end;
        heddle_admin_t *admin = cli_admin(&a->common, "keys", &end);
        if (!admin) return end;
        end = ACTIONS[i].act(a, admin, key);
        cli_admin_close(&admin);
        return end;
    }
    const char *const names[] = {"list", "add", "revoke", NULL}, *nearest = option_nearest(action, names);
    char what[64];
    snprintf(what, sizeof what, "there is no such action%s%s%s", nearest ? "; did you mean " : "",
             nearest ? nearest : "", nearest ? "?" : "");
    return misused(a, what);
}

int command_keys(int argc, char **argv)
{
    args_t args = {0};
    const char *words[2] = {NULL, NULL};
    int end = cli_parse(&SET, "keys", argc, argv, &args, words);
    if (end < 0) end = run(&args, words[0], words[1]);
    option_fini(&SET, &args);
    return end;
}
