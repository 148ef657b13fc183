/* SPDX-License-Identifier: Apache-2.0 */
/* heddle status: the broker, warnings, and the table of adapters. */
#include "cli/cli.h"
#include "cli/adapters.h"

#include "core/units.h"

#include <stdio.h>

static const option_set_t SET = {
    "heddle status",
    "[OPTION...]",
    "The broker, how much it knows, and every adapter.",
    CLI_DUR,
    NULL,
    CLI_COMMON,
    NULL,
    0,
    CLI_EXITS ".\n" CLI_EXITS_COMMON ".\n\nExamples:\n  heddle status\n  heddle status -o json | jq .count"};

/* Warnings come first: the table below may look healthy in spite of them. */
static void render_warnings(const json_t *restored, const json_t *warnings)
{
    char s[64];
    if (json_is_object(restored)) printf("warning   %s\n", cli_text(restored, "message", s));
    for (size_t i = 0; i < json_array_size(warnings); i++)
        printf("warning   %s\n", cli_text(json_array_get(warnings, i), "message", s));
}

static void render(const common_t *c, json_t *answer)
{
    char a[64], b[64], up[16], size[16], n[3][64];
    const char *state = a;
    const json_t *broker = json_object_get(answer, "broker"), *count = json_object_get(answer, "count");
    long long settling = (long long)cli_integer(broker, "settling_ms");
    units_ms_text((double)cli_integer(broker, "uptime_ms"), up);
    units_bytes_text((uint64_t)cli_integer(broker, "registry_bytes"), size);
    if (settling > 0)
        snprintf(a, sizeof a, "settling, %lld s left; members come back", (settling + 999) / 1000);
    else state = cli_text(broker, "state", a);
    printf("broker    %s, %s, up %s, epoch %s, pid %lld, registry %s in %s\n",
           json_string_value(json_object_get(broker, "endpoint")), state, up, cli_text(broker, "epoch", b),
           (long long)cli_integer(broker, "pid"), size,
           json_string_value(json_object_get(broker, "data_dir")));
    printf("cluster   %s: %s, %s, %s ready, %lld lost, ", cli_text(broker, "cluster", a),
           cli_count(cli_integer(count, "adapters"), "adapter", n[0]),
           cli_count(cli_integer(count, "versions"), "version", n[1]),
           cli_count(cli_integer(count, "workers_ready"), "worker", n[2]),
           (long long)cli_integer(count, "workers_lost"));
    printf("%s\n", cli_count(cli_integer(count, "writers"), "writer", n[0]));
    if (json_is_string(json_object_get(broker, "public_key")))
        printf("key       %s    (for --broker-key elsewhere)\n", cli_text(broker, "public_key", a));
    render_warnings(json_object_get(broker, "restored"), json_object_get(answer, "warnings"));
    puts("");
    adapters_render(c, answer);
}

int command_status(int argc, char **argv)
{
    common_t common = {0};
    int end = cli_parse(&SET, "status", argc, argv, &common, NULL);
    if (end >= 0) return end;
    heddle_admin_t *admin = cli_admin(&common, "status", &end);
    if (!admin) return end;
    char *json = NULL;
    int rc = heddle_admin_status(admin, &json);
    end = cli_answer(&common, "status", cli_error(rc), json, render);
    cli_admin_close(&admin);
    return end;
}
