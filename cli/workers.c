/* SPDX-License-Identifier: Apache-2.0 */
/* heddle workers: the workers, and for each how far its versions are.
 *
 * A worker that was lost or has left stays in the list for a while, so that a missing worker is found there
 * with its last state, and not by its absence. */
#include "cli/cli.h"

#include "core/errors.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    common_t common;
    uint32_t watch_ms;
    bool all;
    const char *name;
} args_t;
static const option_t OPTIONS[] = {{"all", 0, OPTION_FLAG, NULL, NULL, NULL,
                                    "also lost and left ones, however many; -o json always has all",
                                    offsetof(args_t, all)},
                                   CLI_WATCH(args_t),
                                   {0}};
static const char *const ARGS[] = {"WORKER", NULL};
static const option_set_t SET = {
    "heddle workers",
    "[NAME] [OPTION...]",
    "Every worker: what it serves, what it fetches, whether it is current.  Lost and left ones are listed "
    "for 10\n"
    "minutes, last; where there are more than five, only their number is.\n"
    "worker: its name.  session: ready, draining, left or lost.\n"
    "current: it serves the active version of every adapter that it subscribed to.\n"
    "adapter, version, digest: what it serves; a row for each adapter.\n"
    "state: of the version that it serves, else of the one that it fetches, else of the newest that it has\n"
    "anything of.\n"
    "since: how long it has been in that state; of a stale one, since when another version is active; -: not "
    "known.\n"
    "fetching: the version on its way, and the part of its bytes that has come; no source: that version is "
    "lost.\n"
    "heartbeat: how long ago the broker received the last one.\n"
    "fetched: the bytes of tensors that came to the worker since it started, of all adapters.\n"
    "own, held: the shared memory of its versions: what it owns, and what it uses of other processes of its "
    "host;\n"
    "not of one that is lost or has left.\n"
    "labels: where a worker has some; those without room are counted (+2), and `heddle workers NAME` has "
    "all.\n"
    "why: what is wrong; of a version on its way how fast it comes and the --max-rate that limits it, for "
    "how long\n"
    "no bytes came, which version comes after it, for how long no message of the worker came, or for how "
    "long its\n"
    "application has not switched to the active version.\n"
    "Below the table: of one worker its labels; which workers copy what another process of their host has, "
    "and "
    "why.\n"
    "-o json: lag: how many versions were chosen after the one that it serves; 0 when that is the active "
    "one, 1\n"
    "when it serves nothing.",
    CLI_WATCH_HELP CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    0,
    CLI_EXITS
    ", 3 there is no such worker.\n" CLI_EXITS_COMMON ".\n\nExamples:\n  heddle workers\n"
    "  heddle workers --watch=1s    as they fetch and switch\n"
    "  heddle workers w1 -o json | jq -e '.workers[-1].current'    is it ready to answer with the newest?"};

/* More of them are what a job leaves when it ends, and none of these is looked for. */
enum { ENDED_ROWS = 5 };

/* Its process has ended, or is silent, and what it said of its memory no longer holds. */
static bool has_ended(const json_t *w)
{
    const char *session = cli_string(w, "state");
    return session && (!strcmp(session, "lost") || !strcmp(session, "left"));
}

static bool is_labelled(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_object_size(json_object_get(json_array_get(list, i), "labels"))) return true;
    return false;
}

/* A row for each adapter of the worker; what belongs to the worker is in the first one only. */
static void add_worker(cli_table_t *t, const json_t *w, bool with_labels)
{
    char state[64], current[64], beat[64] = "-", bytes[64], own[64], held[64], labels[64];
    const json_t *adapters = json_object_get(w, "adapters");
    if (json_is_number(json_object_get(w, "heartbeat_age_ms"))) cli_ms(w, "heartbeat_age_ms", beat);
    cli_bytes(json_object_get(w, "counters"), "bytes_in", bytes);
    const json_t *memory = has_ended(w) ? NULL : json_object_get(w, "memory");
    size_t n = json_array_size(adapters);
    for (size_t i = 0; i < (n ? n : 1); i++) {
        const json_t *a = json_array_get(adapters, i), *f = json_object_get(a, "fetching");
        char s[6][64], fetching[120] = "-", why[600];
        /* A part of the bytes, not of the time: how fast they come is in the last column. */
        if (json_is_object(f)) {
            double all = (double)cli_integer(f, "data_bytes");
            const char *code = cli_string(a, "code");
            bool is_lost = code && !strcmp(code, heddle_err_name(HEDDLE_ERR_VERSION_LOST));
            snprintf(fetching, sizeof fetching, "%s, %.0f %%%s", cli_text(f, "version", s[4]),
                     all > 0 ? 100.0 * (double)cli_integer(f, "bytes_done") / all : 0.0,
                     is_lost && !cli_string(f, "source") ? ", no source" : "");
        }
        const char *own_text = i ? "" : cli_bytes(memory, "own_bytes", own);
        const char *held_text = i ? "" : cli_bytes(memory, "held_bytes", held);
        const char *cells[] = {i ? "" : cli_string(w, "name"), i ? "" : cli_text(w, "state", state),
                               i ? "" : cli_text(w, "current", current), cli_text(a, "name", s[0]),
                               cli_text(a, "version", s[1]), cli_text(a, "state", s[3]),
                               cli_age(a, "since_at", s[5]), cli_short_digest(a, "digest", s[2]), fetching,
                               i ? "" : beat, i ? "" : bytes, own_text, held_text,
                               /* the last two */
                               i ? "" : cli_labels(w, labels), cli_why(a, why, sizeof why)};
        int count = (int)(sizeof cells / sizeof *cells);
        if (!with_labels) cells[count - 2] = cells[count - 1];
        table_add(t, cells, with_labels ? count : count - 1);
    }
}

static const char *unheld_why(const json_t *w)
{
    return cli_string(json_object_get(w, "transport"), "memory_why");
}

static const char *relay_why(const json_t *w) { return cli_string(w, "relay_why"); }

/* What holds of the workers with the same reason: words for one, for several, and behind the reason. */
typedef struct {
    const char *(*why)(const json_t *w);
    const char *one, *several, *remark;
} cause_t;
static const cause_t CAUSES[] = {
    {unheld_why, "copies what its host has", "copy what their host has",
     " (this works, and takes more memory and time)"},
    {relay_why, "serves no other worker, or the last ones", "serve no other worker, or the last ones", ""}};

/* "w1, w2 copy what their host has: ...": below the table, and a line for each reason, because it is no
 * trouble, and must not hide one. */
static void print_causes(const json_t *list, const cause_t *cause)
{
    json_t *reasons = json_object(), *names;
    const char *reason;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i);
        const char *why = has_ended(w) ? NULL : cause->why(w);
        if (!why) continue;
        if (!json_object_get(reasons, why)) json_object_set_new(reasons, why, json_array());
        json_array_append(json_object_get(reasons, why), json_object_get(w, "name"));
    }
    json_object_foreach(reasons, reason, names)
    {
        char text[600];
        bool is_one = json_array_size(names) == 1;
        printf("\n%s %s: %s%s\n", cli_join(names, ", ", text, sizeof text),
               is_one ? cause->one : cause->several, reason, cause->remark);
    }
    json_decref(reasons);
}

/* "29 that ended in the last 10 minutes (27 lost, 2 left) are not shown" */
static void print_ended(const json_t *list)
{
    size_t lost = 0, left = 0;
    char text[64] = "";
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *session = cli_string(json_array_get(list, i), "state");
        lost += session && !strcmp(session, "lost");
        left += session && !strcmp(session, "left");
    }
    if (lost && left) snprintf(text, sizeof text, "%zu lost, %zu left", lost, left);
    else snprintf(text, sizeof text, "%s", lost ? "lost" : "left");
    printf("\n%zu that ended in the last 10 minutes (%s) are not shown: --all shows them\n", lost + left,
           text);
}

/* "w1: labels node=gpu-7 pod=p2", of one worker: all, where the table may have cut them. */
static void print_labels(const json_t *list)
{
    const char *key;
    json_t *value;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i), *labels = json_object_get(w, "labels");
        printf("\n%s: %s", cli_string(w, "name"), json_object_size(labels) ? "labels" : "no labels");
        json_object_foreach((json_t *)labels, key, value)
        {
            char name[HEDDLE_NAME_MAX + 1];
            error_text(name, sizeof name, key);
            printf(" %s=%s", name, json_string_value(value));
        }
        puts("");
    }
}

static void render(const common_t *c, json_t *answer)
{
    const json_t *list = json_object_get(answer, "workers");
    long long settling = (long long)cli_integer(answer, "settling_ms");
    if (settling > 0)
        printf("the broker is settling, %lld s left; members come back\n", (settling + 999) / 1000);
    else if (json_array_size(list) == 0) puts("no workers: heddle worker --adapter NAME");
    if (json_array_size(list) == 0) return;
    size_t count = json_array_size(list), ended = 0;
    for (size_t i = 0; i < count; i++) ended += has_ended(json_array_get(list, i));
    bool is_shown = ((const args_t *)c)->all || ended <= ENDED_ROWS;
    if (!is_shown && ended == count) {
        puts("no worker is there now");
        print_ended(list);
        return;
    }
    cli_table_t t;
    bool with_labels = is_labelled(list);
    if (with_labels)
        table_init(&t, "<WORKER", "SESSION", "CURRENT", "<ADAPTER", ">VERSION", "STATE", "~SINCE", "~DIGEST",
                   "FETCHING", "~>HEARTBEAT", "~>FETCHED", "~>OWN", "~>HELD", "~LABELS", "+WHY");
    else
        table_init(&t, "<WORKER", "SESSION", "CURRENT", "<ADAPTER", ">VERSION", "STATE", "~SINCE", "~DIGEST",
                   "FETCHING", "~>HEARTBEAT", "~>FETCHED", "~>OWN", "~>HELD", "+WHY");
    /* Twice over the list: those that have ended come last, since the others are what the user looks for. */
    for (size_t i = 0; i < (is_shown ? 2 : 1) * count; i++) {
        const json_t *w = json_array_get(list, i % count);
        if (has_ended(w) == (i >= count)) add_worker(&t, w, with_labels);
    }
    table_print(&t);
    if (!is_shown) print_ended(list);
    if (((const args_t *)c)->name) print_labels(list);
    for (size_t i = 0; i < sizeof CAUSES / sizeof *CAUSES; i++) print_causes(list, &CAUSES[i]);
}

static int ask(heddle_admin_t *admin, const void *args, char **ret_json)
{
    return heddle_admin_workers(admin, ((const args_t *)args)->name, ret_json);
}

int command_workers(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "workers", argc, argv, &args, &args.name);
    if (end >= 0) return end;
    if (!args.name || !strchr(args.name, '@')) return cli_watch(&args, args.watch_ms, "workers", ask, render);
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_USAGE, "a worker has no version");
    error_contrast(&error, "the name of a worker", args.name);
    error_hint(&error, "`heddle versions %.160s` shows which workers have that version", args.name);
    return cli_fail(&args.common, "workers", &error);
}
