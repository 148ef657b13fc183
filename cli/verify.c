/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <stdio.h>

typedef struct { common_t common; const char *dir; uint32_t deadline_ms; } args_t;
static const option_t OPTIONS[] = {
    {"dir", 0, OPTION_TEXT, "DIR", NULL, NULL, "compute the expected digest from these files, not from the registry", offsetof(args_t, dir)},
    {"deadline", 0, OPTION_DURATION, "DUR", NULL, "30s", "give up after this", offsetof(args_t, deadline_ms)},
    {0}};
static const char *const ARGS[] = {"REF", NULL};
static const option_set_t SET = {"heddle verify", "NAME|NAME@V [OPTION...]",
    "Every holder hashes its slot again now, and its exported directory; the digests are compared.  NAME alone: the active version.\n"
    "An exported directory that is missing or differs is told, and then written again by its worker, from its memory.", CLI_DUR, OPTIONS, CLI_COMMON, ARGS, 1,
    CLI_EXITS ", every digest is the expected one; 1 one differs; 3 there is no such version; 5 a holder did not answer in time;\n"
    "8 what is in DIR is refused.\n" CLI_EXITS_COMMON ".\n\nExamples:\n  heddle verify policy                     what is served now\n"
    "  heddle verify policy@7 --dir ./checkpoint-100    compared with your own files, not with the registry"};

static void render(const common_t *c, json_t *a)
{
    (void)c;
    printf("expected  %s\n", json_string_value(json_object_get(a, "expected")));
    const json_t *list = json_object_get(a, "workers");
    table_t t;
    table_init(&t, 6, (const char *const[]){"WORKER", ">VERSION", "DIGEST", "MATCH", "EXPORTED", ">HASH MS"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i), *code = json_object_get(w, "code");
        char s[5][64];
        table_row(&t, json_string_value(json_object_get(w, "worker")), cli_text(w, "version", s[0]), cli_short_digest(w, "digest", s[1]),
                  json_is_string(code) ? json_string_value(code) : json_is_true(json_object_get(w, "match")) ? "ok" : "DIFFERS",
                  json_is_boolean(json_object_get(w, "exported_match")) ? (json_is_true(json_object_get(w, "exported_match")) ? "ok" : "DIFFERS") : "-",
                  cli_text(w, "hash_ms", s[2]));
    }
    table_print(&t);
}

int command_verify(int argc, char **argv)
{
    args_t args = {0};
    const char *ref = NULL;
    int end = cli_parse(&SET, "verify", argc, argv, &args, &ref);
    if (end >= 0) return end;
    heddle_adapter_info_t info = {.size = sizeof info};
    if (args.dir && heddle_adapter_check(args.dir, &info) != HEDDLE_OK) return cli_fail(&args.common, "verify", heddle_last_error());
    heddle_admin_t *admin = cli_admin(&args.common, "verify", &end);
    if (!admin) return end;
    char *json = NULL;
    int rc = heddle_admin_verify(admin, ref, args.dir ? info.digest : NULL, args.deadline_ms, &json);
    end = cli_answer(&args.common, "verify", cli_error(rc), json, render);
    cli_admin_close(&admin);
    return end;
}
