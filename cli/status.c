/* SPDX-License-Identifier: Apache-2.0 */
/* heddle status and heddle adapters: the table of adapters, with and without the broker above it.
 *
 * The table is the answer to "does every worker serve the newest": ACTIVE and NEWEST beside each other, and
 * CURRENT as a part of the subscribers. What explains a difference is in heddle versions and heddle workers.
 */
#include "cli/cli.h"

#include "core/errors.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    common_t common;
    uint32_t watch_ms;
    bool check;
} args_t;
static const option_t OPTIONS[] = {{"check", 0, OPTION_FLAG, NULL, NULL, NULL,
                                    "exit status 1 where something needs an operator; lists what",
                                    offsetof(args_t, check)},
                                   CLI_WATCH(args_t),
                                   {0}};

/* The table is the same in both commands. */
#define COLUMNS                                                                                              \
    "adapter: its name.  active: the version that the latest decision names; lost: no process holds its "    \
    "bytes.\n"                                                                                               \
    "decision: the number of that decision.  digest: of the active version.\n"                               \
    "newest: the version of the greatest number, and its state.\n"                                           \
    "current: of the ready workers that subscribe to it, how many serve the active version.\n"               \
    "lag: how many versions were chosen after the one that the worker farthest behind serves; 0 when all "   \
    "serve the\nactive one.  -o json: max_lag.\n"                                                            \
    "writer: the publisher that may publish now.\n"                                                          \
    "held: at which version, and by whom it was activated by hand; later ones wait for `heddle resume`."
static const option_set_t STATUS = {
    "heddle status",
    "[OPTION...]",
    "The broker, how much it knows, and every adapter.",
    "--check: the broker takes no records, has just started (settling), or has older data than its members;\n"
    "a member of another cluster came; the active or the newest version of an adapter is lost, or the "
    "newest\n"
    "has failed; an adapter is held; a worker was lost within 10 minutes, or has served no active version "
    "for\n"
    "more than a minute, or has drained for three, since no process that stays has a version of it.\n"
    "-o json: reasons.\n" COLUMNS "\n" CLI_WATCH_HELP CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    NULL,
    0,
    CLI_EXITS
    "; with --check 1: there are reasons, which are listed.\n" CLI_EXITS_COMMON
    ".\n\nExamples:\n  heddle status\n  heddle status --watch\n  heddle status -o json | jq .count\n"
    "  heddle status --check --timeout 2s >/dev/null     for cron: silent while all is well"};

static const option_t ADAPTERS_OPTIONS[] = {CLI_WATCH(args_t), {0}};
static const option_set_t ADAPTERS = {
    "heddle adapters",
    "[OPTION...]",
    "Every adapter: active and newest version, writer, how many workers are current.\n"
    "Adapters that have subscribers and no version yet are listed too.\n" COLUMNS,
    CLI_WATCH_HELP CLI_DUR,
    ADAPTERS_OPTIONS,
    CLI_COMMON,
    NULL,
    0,
    CLI_EXITS ".\n" CLI_EXITS_COMMON ".\n\n"
              "Examples:\n"
              "  heddle adapters\n"
              "  heddle adapters -o json | jq -r '.adapters[] | select(.max_lag > 0) | .name'    which "
              "are behind"};

void cli_show_adapters(const common_t *c, json_t *answer)
{
    (void)c;
    const json_t *list = json_object_get(answer, "adapters");
    if (json_array_size(list) == 0) {
        puts("no adapters yet: heddle publish DIR --adapter NAME");
        return;
    }
    cli_table_t t;
    table_init(&t, "<ADAPTER", ">ACTIVE", "~>DECISION", "~DIGEST", "NEWEST", ">CURRENT", ">LAG", "~WRITER",
               "+HELD");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *a = json_array_get(list, i), *held = json_object_get(a, "held"),
                     *live = json_object_get(a, "active"), *newest = json_object_get(a, "newest");
        char s[8][64], active[160], last[160], current[64], hold[300] = "-";
        /* No process holds the bytes of the active version any more: no worker can fetch it. */
        bool is_lost = !strcmp(cli_text(live, "state", s[0]), "lost");
        snprintf(active, sizeof active, "%s%s", cli_text(live, "version", s[1]), is_lost ? " lost" : "");
        snprintf(last, sizeof last, "%s %s", cli_text(newest, "version", s[2]),
                 json_is_object(newest) ? cli_text(newest, "state", s[3]) : "");
        snprintf(current, sizeof current, "%lld/%lld", (long long)cli_integer(a, "current_count"),
                 (long long)cli_integer(a, "subscriber_count"));
        if (json_is_object(held))
            snprintf(hold, sizeof hold, "at %lld by %.128s", (long long)cli_integer(held, "version"),
                     cli_text(held, "by", s[4]));
        table_row(&t, cli_string(a, "name"), active, cli_text(live, "decision", s[5]),
                  cli_short_digest(live, "digest", s[6]), last, current, cli_text(a, "max_lag", s[7]),
                  cli_text(json_object_get(a, "writer"), "name", s[4]), hold);
    }
    table_print(&t);
}

static void render(const common_t *c, json_t *answer)
{
    char s[4][64], state[64];
    const json_t *broker = json_object_get(answer, "broker"), *count = json_object_get(answer, "count"),
                 *restored = json_object_get(broker, "restored"),
                 *warnings = json_object_get(answer, "warnings");
    /* Rounded up: "0 s left" would read as if it were over. */
    long long settling = (long long)cli_integer(broker, "settling_ms");
    snprintf(state, sizeof state, "settling, %lld s left; members come back", (settling + 999) / 1000);
    printf("broker    %s, %s, up %s, epoch %s, pid %lld, ", cli_string(broker, "endpoint"),
           settling > 0 ? state : cli_text(broker, "state", s[0]), cli_ms(broker, "uptime_ms", s[1]),
           cli_text(broker, "epoch", s[2]), (long long)cli_integer(broker, "pid"));
    printf("registry %s in %s\n", cli_bytes(broker, "registry_bytes", s[0]), cli_string(broker, "data_dir"));
    printf("cluster   %s: %s, %s, %s ready, %lld lost, ", cli_text(broker, "cluster", s[0]),
           cli_count(cli_integer(count, "adapters"), "adapter", s[1]),
           cli_count(cli_integer(count, "versions"), "version", s[2]),
           cli_count(cli_integer(count, "workers_ready"), "worker", s[3]),
           (long long)cli_integer(count, "workers_lost"));
    printf("%s\n", cli_count(cli_integer(count, "writers"), "writer", s[0]));
    if (c->context) printf("context   %s\n", c->context);
    /* A broker without keys has no such line. It says where the text is needed, since it is looked for when a
     * second host is set up. */
    if (cli_string(broker, "public_key"))
        printf("key       %s    (for --broker-key elsewhere)\n", cli_text(broker, "public_key", s[0]));
    /* Warnings come before the table, which may look healthy in spite of them. */
    if (json_is_object(restored)) printf("warning   %s\n", cli_text(restored, "message", s[0]));
    const json_t *reasons = ((const args_t *)c)->check ? json_object_get(answer, "reasons") : NULL;
    for (size_t i = 0; i < json_array_size(warnings); i++) {
        const json_t *w = json_array_get(warnings, i);
        /* All other warnings are among the reasons. */
        bool is_shown = !reasons || !strcmp(cli_text(w, "name", s[0]), "keys.refused");
        if (is_shown) printf("warning   %s\n", cli_text(w, "message", s[0]));
    }
    for (size_t i = 0; i < json_array_size(reasons); i++)
        printf("reason    %s\n", cli_text(json_array_get(reasons, i), "message", s[0]));
    puts("");
    cli_show_adapters(c, answer);
}

/* What ends a reason, as the table of operations.md, Watching, has it: a section there, or a command. */
static const struct {
    const char *reason, *section, *command;
} CURES[] = {{"broker.read_only", "operations.md, A full disk", NULL},
             {"store.unanswered", "operations.md, etcd does not answer", NULL},
             {"broker.restored", "operations.md, Older data were put back", NULL},
             {"broker.other_cluster", "operations.md, A worker is not there", NULL},
             {"keys.refused", "operations.md, A worker is not there", NULL},
             {"version.lost", "operations.md, A version is lost", NULL},
             {"version.failed", "operations.md, A publish is stuck or failed", NULL},
             {"adapter.held", NULL, "heddle resume"},
             {"worker.lost", "operations.md, A worker is not there", NULL},
             {"worker.damaged", "operations.md, Digests differ", NULL},
             {"worker.behind", NULL, "heddle workers"},
             {"worker.draining", "operations.md, A worker is to leave", NULL}};

/* Of the reason that the message has.  Without one the hint of all stands. */
static void hint_cure(heddle_error_t *error, const json_t *reason, bool has_others)
{
    const char *name = cli_string(reason, "name"), *worker = cli_string(reason, "worker");
    const char *others = has_others ? "; for the other reasons: operations.md, Watching" : "";
    for (size_t i = 0; name && i < sizeof CURES / sizeof *CURES; i++) {
        if (strcmp(CURES[i].reason, name) != 0) continue;
        if (CURES[i].section) error_hint(error, "%s%s", CURES[i].section, others);
        else
            error_hint(error, "`%s %.128s`%s", CURES[i].command,
                       worker ? worker : cli_string(reason, "adapter"), others);
    }
}

/* Code 0: there is no reason.  A cron job may keep stderr alone, so the error has the first of them. */
static heddle_error_t check(const char *json)
{
    heddle_error_t error = {0};
    char s[64];
    json_t *answer = json_loads(json, 0, NULL), *reasons = json_object_get(answer, "reasons");
    size_t count = json_array_size(reasons);
    const char *first = cli_text(json_array_get(reasons, 0), "message", s);
    if (!json_is_array(reasons))
        error_fail(&error, HEDDLE_ERR_UNHEALTHY,
                   "this broker is of an earlier release, and gives no reasons");
    else if (count == 1) error_fail(&error, HEDDLE_ERR_UNHEALTHY, "%s", first);
    else if (count)
        error_fail(&error, HEDDLE_ERR_UNHEALTHY, "%s; and %zu more reason%s", first, count - 1,
                   count > 2 ? "s" : "");
    if (count) hint_cure(&error, json_array_get(reasons, 0), count > 1);
    json_decref(answer);
    return error;
}

static int ask_status(heddle_admin_t *admin, const void *args, char **ret_json)
{
    (void)args;
    return heddle_admin_status(admin, ret_json);
}

int command_status(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&STATUS, "status", argc, argv, &args, NULL);
    if (end < 0 && args.watch_ms) return cli_watch(&args, args.watch_ms, "status", ask_status, render);
    heddle_admin_t *admin = end >= 0 ? NULL : cli_admin(&args.common, "status", &end);
    if (!admin) return end;
    char *json = NULL;
    int rc = heddle_admin_status(admin, &json);
    heddle_error_t error = *cli_error(rc);
    if (!rc && args.check) error = check(json);
    end = cli_answer(&args.common, "status", &error, json, render);
    cli_admin_close(&admin);
    return end;
}

static int ask_adapters(heddle_admin_t *admin, const void *args, char **ret_json)
{
    (void)args;
    return heddle_admin_adapters(admin, ret_json);
}

int command_adapters(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&ADAPTERS, "adapters", argc, argv, &args, NULL);
    return end >= 0 ? end : cli_watch(&args, args.watch_ms, "adapters", ask_adapters, cli_show_adapters);
}
