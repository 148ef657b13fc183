/* SPDX-License-Identifier: Apache-2.0 */
/* heddle drain: workers that are to leave, without a rollout that waits for them and without a version that
 * is lost with them.
 *
 * The command only asks: the workers leave by themselves, when other processes hold what they alone had. With
 * --wait it follows that by the broker's events, and asks again how far they are after each. */
#include "cli/cli.h"

#include "core/bytes.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    common_t common;
    const char **labels;
    bool wait;
    uint32_t deadline_ms;
    const char *name;
} args_t;

static const char *const ARGS[] = {"WORKER", NULL};
static const option_t OPTIONS[] = {
    {"label", 0, OPTION_LIST, "K=V", NULL, NULL,
     "every worker with this label; given again: with all of them", offsetof(args_t, labels)},
    {"wait", 0, OPTION_FLAG, NULL, NULL, NULL, "wait until they have left", offsetof(args_t, wait)},
    {"deadline", 0, OPTION_DEADLINE, "DUR", NULL, "30s", "of --wait: give up after this",
     offsetof(args_t, deadline_ms)},
    {0}};
static const option_set_t SET = {
    "heddle drain",
    "WORKER|--label K=V [OPTION...]",
    "Has a worker leave: no new rollout waits for it, other workers fetch the versions that only it has, and "
    "then\n"
    "it leaves and its process ends.  It serves on until then.  That cannot be taken back; a worker that is "
    "started\n"
    "under the same name afterwards is one like any other.",
    "A worker that no other one can relieve drains without end: end it by SIGTERM, and what only it has is "
    "lost.\n" CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    0,
    CLI_EXITS
    ", the workers drain; with --wait they have left, or were lost; 3 there is no such worker;\n5 some "
    "had not left by the deadline, and go on draining.\n" CLI_EXITS_COMMON
    ".\n\nExamples:\n  heddle drain w1 --wait\n"
    "  heddle drain --label node=gpu-7 --wait --deadline 2m     before the node is taken down"};

/* ---- what the broker says of them ---- */

/* A session that drained and is ready now belongs to another process: the one that drained has ended. */
static bool is_draining(const json_t *worker)
{
    const char *state = cli_string(worker, "state");
    return state && !strcmp(state, "draining");
}

static bool has_labels(const json_t *worker, const char *const *labels)
{
    for (; *labels; labels++) {
        const char *equals = strchr(*labels, '=');
        char key[HEDDLE_NAME_MAX + 1];
        text_printf(key, sizeof key, "%.*s", (int)(equals - *labels), *labels);
        const char *value = cli_string(json_object_get(worker, "labels"), key);
        if (!value || strcmp(value, equals + 1) != 0) return false;
    }
    return true;
}

/* The rows of the workers that are meant, as new references. */
static int choose(heddle_admin_t *admin, const args_t *args, json_t *ret_rows)
{
    char *text = NULL;
    int rc = heddle_admin_workers(admin, args->name, &text);
    json_t *answer = rc ? NULL : json_loads(text, 0, NULL), *row;
    heddle_free(text);
    size_t i;
    json_array_foreach(json_object_get(answer, "workers"), i, row)
    {
        const char *state = cli_string(row, "state");
        bool is_here = state && (!strcmp(state, "ready") || !strcmp(state, "draining"));
        if (args->name || (is_here && has_labels(row, args->labels))) json_array_append(ret_rows, row);
    }
    json_decref(answer);
    if (rc || json_array_size(ret_rows)) return rc;
    heddle_error_t error;
    rc = error_fail(&error, HEDDLE_ERR_NOT_FOUND, "no worker has the label %.128s", args->labels[0]);
    error_hint(&error, "`heddle workers -o json` shows the labels of each");
    error_publish(&error);
    return rc;
}

typedef int ask_fn(heddle_admin_t *admin, const char *worker, char **ret_json);

/* Puts the present row of each worker in place of the one before.  A worker that the broker has forgotten has
 * ended long ago, and keeps its last row. */
static int renew(heddle_admin_t *admin, json_t *rows, ask_fn *ask)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        char *text = NULL;
        int rc = ask(admin, cli_string(row, "name"), &text);
        json_t *answer = rc ? NULL : json_loads(text, 0, NULL);
        json_t *now = json_array_get(json_object_get(answer, "workers"), 0);
        heddle_free(text);
        if (now) json_array_set(rows, i, now);
        json_decref(answer);
        if (rc && rc != HEDDLE_ERR_NOT_FOUND) return rc;
    }
    return HEDDLE_OK;
}

static size_t count_draining(const json_t *rows)
{
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) count += is_draining(json_array_get(rows, i));
    return count;
}

/* ---- --wait ---- */

/* "w1 drains: only it has policy@3, policy@4" */
static void print_row(FILE *to, const json_t *row)
{
    char text[300];
    const json_t *drain = json_object_get(row, "drain");
    const char *only = cli_join(json_object_get(drain, "only_here"), ", ", text, sizeof text);
    char state[64];
    fprintf(to, "%s %s%s%s\n", cli_string(row, "name"),
            is_draining(row) ? "is draining" : cli_text(row, "state", state), *only ? ": only it has " : "",
            only);
}

/* Prints what has changed since the last time. */
static void print_progress(const json_t *rows, json_t *said)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i), *now = json_array();
        json_array_append(now, json_object_get(row, "state"));
        json_array_append(now, json_object_get(json_object_get(row, "drain"), "only_here"));
        const char *name = cli_string(row, "name");
        if (!json_equal(now, json_object_get(said, name))) print_row(stderr, row);
        json_object_set_new(said, name, now);
    }
}

/* Until something has happened, for a second at most. */
static int await_event(heddle_admin_t *admin, uint32_t left_ms, heddle_events_opts_t *from)
{
    char *text = NULL;
    from->wait_ms = left_ms < 1000 ? left_ms : 1000;
    int rc = heddle_admin_events(admin, from, &text);
    json_t *answer = rc ? NULL : json_loads(text, 0, NULL);
    heddle_free(text);
    from->since = (uint64_t)cli_integer(answer, "next");
    from->epoch = (uint64_t)cli_integer(answer, "epoch");
    json_decref(answer);
    return rc;
}

static int fail_late(const json_t *rows)
{
    heddle_error_t error;
    char text[200];
    size_t count = count_draining(rows), i = 0;
    while (!is_draining(json_array_get(rows, i))) i++;
    const json_t *row = json_array_get(rows, i), *drain = json_object_get(row, "drain");
    const char *only = cli_join(json_object_get(drain, "only_here"), ", ", text, sizeof text);
    int rc =
        error_fail(&error, HEDDLE_ERR_DEADLINE, "%zu of %zu workers had not left by the deadline; %s%s%s",
                   count, json_array_size(rows), cli_string(row, "name"),
                   *only ? " waits: only it has " : " has not answered", only);
    error_where(&error, NULL, 0, cli_string(row, "name"), NULL);
    error_hint(&error,
               *only ? "start another worker that subscribes to it; SIGTERM ends this one, and what only "
                       "it has is lost"
                     : "`heddle workers` shows when it was heard last; it goes on draining");
    error_publish(&error);
    return rc;
}

static int wait_for(heddle_admin_t *admin, const args_t *args, json_t *rows)
{
    heddle_events_opts_t from = {.size = sizeof from};
    uint64_t began_us = clock_now(clock_system());
    json_t *said = json_object();
    from.worker = args->name;
    int rc = HEDDLE_OK;
    for (;;) {
        if (!args->common.quiet && count_draining(rows)) print_progress(rows, said);
        if (rc || !count_draining(rows)) break;
        uint32_t left_ms = cli_left_ms(args->deadline_ms, began_us);
        if (left_ms <= 1) {
            rc = fail_late(rows);
            break;
        }
        rc = await_event(admin, left_ms, &from);
        if (!rc) rc = renew(admin, rows, heddle_admin_workers);
    }
    json_decref(said);
    return rc;
}

/* ---- the command ---- */

static void render(const common_t *c, json_t *answer)
{
    (void)c;
    const json_t *rows = json_object_get(answer, "workers");
    for (size_t i = 0; i < json_array_size(rows); i++) print_row(stdout, json_array_get(rows, i));
}

static int ask(heddle_admin_t *admin, const void *self, char **ret_json)
{
    const args_t *args = self;
    json_t *rows = json_array();
    int rc = choose(admin, args, rows);
    if (!rc) rc = renew(admin, rows, heddle_admin_drain);
    bool is_asked = !rc;
    if (!rc && args->wait) rc = wait_for(admin, args, rows);
    json_t *answer = json_pack("{s:s, s:s, s:b, s:O}", "schema", "heddle/1", "kind", "drain", "ok", rc == 0,
                               "workers", rows);
    if (is_asked) *ret_json = json_dumps(answer, JSON_COMPACT);
    json_decref(answer);
    json_decref(rows);
    return rc;
}

int command_drain(int argc, char **argv)
{
    args_t args = {0};
    heddle_error_t error = {0};
    int end = cli_parse(&SET, "drain", argc, argv, &args, &args.name);
    if (end >= 0) return end;
    bool has_labels_only = args.labels && !args.name;
    if (!args.name == !args.labels) {
        error_fail(&error, HEDDLE_ERR_USAGE, "which workers are meant is not clear");
        error_expected(&error, "the name of a worker, or --label K=V");
        error_found(&error, args.name ? "both" : "neither");
    }
    for (const char **label = args.labels; has_labels_only && !error.code && *label; label++)
        (void)label_check(*label, &error);
    end = error.code ? cli_fail(&args.common, "drain", &error) : cli_ask(&args, "drain", ask, render);
    option_fini(&SET, &args);
    return end;
}
