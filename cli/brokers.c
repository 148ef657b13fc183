/* SPDX-License-Identifier: Apache-2.0 */
/* heddle brokers: which broker leads, and whether another one could take over at once.
 *
 * The broker that leads answers, whichever of them was asked: a standby sends the command there. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    common_t common;
    uint32_t watch_ms;
} args_t;
static const option_t OPTIONS[] = {CLI_WATCH(args_t), {0}};
static const option_set_t SET = {
    "heddle brokers",
    "[OPTION...]",
    "The broker that leads, its standbys (with --store), and their store.\n"
    "broker: where clients reach it.  role: leader, or standby.\n"
    "following: it has the registry in memory, and could take over at once; no: it reads the registry, or "
    "etcd\n"
    "does not answer it.\n"
    "behind: revisions of etcd that it had not followed yet, when it said so last.\n"
    "release, pid: of its process.  A standby that was killed is listed until its lease ends "
    "(--store-lease).\n"
    "store: ready; unanswered: etcd gives the leader no answer; read_only: it takes no records.",
    CLI_WATCH_HELP CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    NULL,
    0,
    CLI_EXITS ".\n" CLI_EXITS_COMMON ".\n\nExamples:\n  heddle brokers\n"
              "  heddle brokers -o json | jq -e 'any(.brokers[]; .following)'    could one take over at "
              "once?"};

enum { OLD_MS = 5000 };

static void render(const common_t *c, json_t *answer)
{
    (void)c;
    char s[4][64];
    const json_t *list = json_object_get(answer, "brokers"), *store = json_object_get(answer, "store");
    printf("cluster   %s, epoch %s\n", cli_text(answer, "cluster", s[0]), cli_text(answer, "epoch", s[1]));
    printf("store     %s, %s, registry %s in %s\n", cli_text(store, "kind", s[0]),
           cli_text(store, "state", s[1]), cli_bytes(store, "registry_bytes", s[2]),
           cli_text(store, "place", s[3]));
    if (cli_string(store, "message")) printf("warning   %s\n", cli_string(store, "message"));
    if (json_array_size(list) > 1 && cli_integer(store, "seen_age_ms") >= OLD_MS)
        printf("warning   the standbys are as they were %s ago\n", cli_ms(store, "seen_age_ms", s[0]));
    puts("");
    cli_table_t t;
    table_init(&t, "BROKER", "ROLE", "FOLLOWING", ">BEHIND", "RELEASE", ">PID");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *b = json_array_get(list, i);
        char cells[6][64];
        table_row(&t, cli_text(b, "endpoint", cells[0]), cli_text(b, "role", cells[1]),
                  cli_text(b, "following", cells[2]), cli_text(b, "behind", cells[3]),
                  cli_text(b, "heddle", cells[4]), cli_text(b, "pid", cells[5]));
    }
    table_print(&t);
}

static int ask(heddle_admin_t *admin, const void *args, char **ret_json)
{
    (void)args;
    return heddle_admin_brokers(admin, ret_json);
}

int command_brokers(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "brokers", argc, argv, &args, NULL);
    return end >= 0 ? end : cli_watch(&args, args.watch_ms, "brokers", ask, render);
}
