/* SPDX-License-Identifier: Apache-2.0 */
/* heddle workers: the workers, and for each how far its versions are.
 *
 * A worker that was lost or has left stays in the list for a while, so that a missing worker is found there
 * with its last state, and not by its absence. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    common_t common;
    const char *name;
} args_t;
static const char *const ARGS[] = {"NAME", NULL};
static const option_set_t SET = {
    "heddle workers",
    "[NAME] [OPTION...]",
    "Every worker: what it serves, what it fetches, whether it is current.  Lost and left ones are listed "
    "for 10 minutes, last.\n"
    "worker: its name.  session: ready, draining, left or lost.\n"
    "current: it serves the active version of every adapter that it subscribed to.\n"
    "adapter, version, digest: what it serves; a row for each adapter.\n"
    "state: of the version that it serves, else of the one that it fetches, else of the newest that it "
    "has anything of.\n"
    "fetching: the version on its way, and the part of its bytes that has come.\n"
    "heartbeat: how long ago the broker heard the last one.\n"
    "fetched: the bytes of tensors that came to the worker since it started, of all adapters.\n"
    "why: what is wrong; of a version on its way how fast it comes and the --max-rate that limits it, for "
    "how long\nno bytes came, which version comes after it, or for how long no message of the worker came.\n"
    "-o json: lag: how many versions were chosen after the one that it serves; 0 when that is the active "
    "one, 1 when\nit serves nothing.",
    CLI_DUR,
    NULL,
    CLI_COMMON,
    ARGS,
    0,
    CLI_EXITS
    ", 3 there is no such worker.\n" CLI_EXITS_COMMON ".\n\nExamples:\n  heddle workers\n"
    "  heddle workers w1 -o json | jq -e '.workers[-1].current'    is it ready to answer with the newest?"};

/* A row for each adapter of the worker; what belongs to the worker is in the first one only. */
static void add_worker(table_t *t, const json_t *w)
{
    char state[64], current[64], beat[64] = "-", bytes[64];
    const json_t *adapters = json_object_get(w, "adapters");
    if (json_is_number(json_object_get(w, "heartbeat_age_ms"))) cli_ms(w, "heartbeat_age_ms", beat);
    cli_bytes(json_object_get(w, "counters"), "bytes_in", bytes);
    size_t n = json_array_size(adapters);
    for (size_t i = 0; i < (n ? n : 1); i++) {
        const json_t *a = json_array_get(adapters, i), *f = json_object_get(a, "fetching");
        char s[5][64], fetching[120] = "-", why[600];
        /* A part of the bytes, not of the time: how fast they come is in the last column. */
        if (json_is_object(f)) {
            double all = (double)cli_integer(f, "data_bytes");
            snprintf(fetching, sizeof fetching, "%s, %.0f %%", cli_text(f, "version", s[4]),
                     all > 0 ? 100.0 * (double)cli_integer(f, "bytes_done") / all : 0.0);
        }
        table_row(t, i ? "" : cli_string(w, "name"), i ? "" : cli_text(w, "state", state),
                  i ? "" : cli_text(w, "current", current), cli_text(a, "name", s[0]),
                  cli_text(a, "version", s[1]), cli_text(a, "state", s[3]),
                  cli_short_digest(a, "digest", s[2]), fetching, i ? "" : beat, i ? "" : bytes,
                  cli_why(a, why, sizeof why));
    }
}

static void render(const common_t *c, json_t *answer)
{
    (void)c;
    const json_t *list = json_object_get(answer, "workers");
    long long settling = (long long)cli_integer(answer, "settling_ms");
    if (settling > 0)
        printf("the broker is settling, %lld s left; members come back\n", (settling + 999) / 1000);
    else if (json_array_size(list) == 0) puts("no workers: heddle worker --adapter NAME");
    if (json_array_size(list) == 0) return;
    table_t t;
    table_init(&t, 11,
               (const char *const[]){"WORKER", "SESSION", "CURRENT", "ADAPTER", ">VERSION", "STATE", "DIGEST",
                                     "FETCHING", ">HEARTBEAT", ">FETCHED", "WHY"});
    size_t count = json_array_size(list);
    /* Twice over the list: those that have ended come last, since the others are what the user looks for. */
    for (size_t i = 0; i < 2 * count; i++) {
        const json_t *w = json_array_get(list, i % count);
        const char *session = cli_string(w, "state");
        bool has_ended = session && (!strcmp(session, "lost") || !strcmp(session, "left"));
        if (has_ended == (i >= count)) add_worker(&t, w);
    }
    table_print(&t);
}

static int ask(heddle_admin_t *admin, const void *args, char **ret_json)
{
    return heddle_admin_workers(admin, ((const args_t *)args)->name, ret_json);
}

int command_workers(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "workers", argc, argv, &args, &args.name);
    return end >= 0 ? end : cli_ask(&args, "workers", ask, render);
}
