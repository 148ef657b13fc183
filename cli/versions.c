/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "core/units.h"

#include <stdio.h>
#include <string.h>

typedef struct { common_t common; bool all; } args_t;
static const option_t OPTIONS[] = {
    {"all", 0, OPTION_FLAG, NULL, NULL, NULL, "also older versions that ended; -o json always has all", offsetof(args_t, all)},
    {0}};
static const char *const ARGS[] = {"REF", NULL};
static const option_set_t SET = {"heddle versions", "NAME|NAME@V [OPTION...]",
    "The versions of an adapter; with NAME@V that version alone, with its configuration and who has it.", CLI_DUR, OPTIONS, CLI_COMMON, ARGS, 1,
    CLI_EXITS ", 3 there is no such adapter or version.\n" CLI_EXITS_COMMON ".\n\nExamples:\n  heddle versions policy\n"
    "  heddle versions policy@7                 who has it, from whom, and why it failed\n"
    "  heddle versions policy -o json | jq '.versions[-1].state'"};

enum { NEWEST_ROWS = 30 };                  /* shown whatever became of them */
static bool shows_all;

static void render_workers(const json_t *v)
{
    const json_t *list = json_object_get(v, "workers");
    if (json_array_size(list) == 0) return;
    table_t t;
    table_init(&t, 5, (const char *const[]){"WORKER", "STATE", "SINCE", ">BYTES", "SOURCES"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i), *sources = json_object_get(w, "sources");
        char s1[64], s2[64], s3[64], bytes[16], from[512] = "";
        units_bytes_text((uint64_t)cli_integer(w, "bytes_done"), bytes);
        for (size_t k = 0; k < json_array_size(sources); k++) {
            char one[200], n[16];
            const json_t *s = json_array_get(sources, k);
            units_bytes_text((uint64_t)cli_integer(s, "bytes"), n);
            snprintf(one, sizeof one, "%s%s from %.128s", k ? ", " : "", n, cli_text(s, "name", s3));
            strncat(from, one, sizeof from - strlen(from) - 1);
        }
        table_row(&t, json_string_value(json_object_get(w, "worker")), cli_text(w, "state", s1), cli_age(w, "since_at", s2), bytes, from[0] ? from : "-");
    }
    puts("");
    table_print(&t);
}

/* Of thousands of versions almost all have ended long ago. */
static bool is_shown(const json_t *list, size_t i)
{
    static const char *const ENDED[] = {"failed", "superseded", "retired"};
    if (shows_all || i + NEWEST_ROWS >= json_array_size(list)) return true;
    const char *state = json_string_value(json_object_get(json_array_get(list, i), "state"));
    for (size_t k = 0; state && k < sizeof ENDED / sizeof *ENDED; k++)
        if (!strcmp(state, ENDED[k])) return false;
    return true;
}

static void render(const common_t *c, json_t *answer)
{
    (void)c;
    const json_t *list = json_object_get(answer, "versions");
    size_t hidden = 0;
    char text[64];
    table_t t;
    table_init(&t, 9, (const char *const[]){">VERSION", "STATE", "DIGEST", ">STEP", "CREATED", ">BYTES", ">TENSORS", ">HOLDERS", "WHY"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!is_shown(list, i)) {
            hidden++;
            continue;
        }
        const json_t *v = json_array_get(list, i), *why = json_object_get(v, "reason");
        char s[7][64], bytes[16], reason[400] = "-";
        units_bytes_text((uint64_t)cli_integer(v, "data_bytes"), bytes);
        if (json_is_object(why)) snprintf(reason, sizeof reason, "%s: %.300s", cli_text(why, "code", s[0]), json_string_value(json_object_get(why, "message")));
        table_row(&t, cli_text(v, "version", s[1]), cli_text(v, "state", s[2]), cli_short_digest(v, "digest", s[3]), cli_text(v, "step", s[4]),
                  cli_age(v, "created_at", s[5]), bytes, cli_text(v, "tensor_count", s[6]), cli_text(v, "holder_count", s[0]), reason);
    }
    table_print(&t);
    if (hidden) printf("\n%s that ended not shown: --all shows them\n", cli_count((int64_t)hidden, "older version", text));
    for (size_t i = 0; i < json_array_size(list); i++) render_workers(json_array_get(list, i));
}

int command_versions(int argc, char **argv)
{
    args_t args = {0};
    const char *ref = NULL;
    int end = cli_parse(&SET, "versions", argc, argv, &args, &ref);
    if (end >= 0) return end;
    shows_all = args.all;
    heddle_admin_t *admin = cli_admin(&args.common, "versions", &end);
    if (!admin) return end;
    char *json = NULL;
    int rc = heddle_admin_versions(admin, ref, &json);
    end = cli_answer(&args.common, "versions", cli_error(rc), json, render);
    cli_admin_close(&admin);
    return end;
}
