/* SPDX-License-Identifier: Apache-2.0 */
/* heddle adapters: the table of adapters. */
#include "cli/adapters.h"

#include <stdio.h>
#include <string.h>

static const option_set_t SET = {
    "heddle adapters",
    "[OPTION...]",
    "Every adapter: active and newest version, writer, how many workers are current.\n"
    "ACTIVE says lost where no process holds the bytes of the active version.\n"
    "Adapters that have subscribers and no version yet are listed too.\n"
    "LAG (max_lag): how many versions were chosen after the one that the worker farthest behind serves; 0 "
    "when all serve the active one.",
    CLI_DUR,
    NULL,
    CLI_COMMON,
    NULL,
    0,
    CLI_EXITS ".\n" CLI_EXITS_COMMON ".\n\nExamples:\n  heddle adapters\n"
              "  heddle adapters -o json | jq -r '.adapters[] | select(.max_lag > 0) | .name'    those with "
              "workers that are behind"};

void adapters_render(const common_t *c, json_t *answer)
{
    (void)c;
    const json_t *list = json_object_get(answer, "adapters");
    if (json_array_size(list) == 0) {
        puts("no adapters yet: heddle publish DIR --adapter NAME");
        return;
    }
    table_t t;
    table_init(&t, 9,
               (const char *const[]){"ADAPTER", ">ACTIVE", ">DECISION", "DIGEST", "NEWEST", ">CURRENT",
                                     ">LAG", "WRITER", "HELD"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *a = json_array_get(list, i);
        char active[160], decision[64], digest[64], newest[160], current[64], lag[64];
        char s1[64], s2[64], writer[300], held[300];
        const json_t *live = json_object_get(a, "active"), *last = json_object_get(a, "newest");
        const json_t *w = json_object_get(a, "writer"), *h = json_object_get(a, "held");
        bool is_lost = !strcmp(cli_text(live, "state", s1), "lost");
        snprintf(active, sizeof active, "%s%s", cli_text(live, "version", s2), is_lost ? " lost" : "");
        snprintf(newest, sizeof newest, "%s %s", cli_text(last, "version", s1),
                 json_is_object(last) ? cli_text(last, "state", s2) : "");
        snprintf(current, sizeof current, "%lld/%lld", (long long)cli_integer(a, "current_count"),
                 (long long)cli_integer(a, "subscriber_count"));
        if (json_is_object(w)) snprintf(writer, sizeof writer, "%.128s", cli_text(w, "name", s1));
        else snprintf(writer, sizeof writer, "-");
        if (json_is_object(h))
            snprintf(held, sizeof held, "at %lld by %.128s", (long long)cli_integer(h, "version"),
                     cli_text(h, "by", s2));
        else snprintf(held, sizeof held, "-");
        table_row(&t, json_string_value(json_object_get(a, "name")), active,
                  cli_text(live, "decision", decision), cli_short_digest(live, "digest", digest), newest,
                  current, cli_text(a, "max_lag", lag), writer, held);
    }
    table_print(&t);
}

int command_adapters(int argc, char **argv)
{
    common_t common = {0};
    int end = cli_parse(&SET, "adapters", argc, argv, &common, NULL);
    if (end >= 0) return end;
    heddle_admin_t *admin = cli_admin(&common, "adapters", &end);
    if (!admin) return end;
    char *json = NULL;
    int rc = heddle_admin_adapters(admin, &json);
    end = cli_answer(&common, "adapters", cli_error(rc), json, adapters_render);
    cli_admin_close(&admin);
    return end;
}
