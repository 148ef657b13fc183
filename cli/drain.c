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

enum { AGAIN_MS = 200 };

typedef struct {
    common_t common;
    const char **labels;
    bool wait, dry_run, cancel;
    uint32_t deadline_ms;
    const char *name;
} args_t;

static const char *const ARGS[] = {"WORKER", NULL};
static const option_t OPTIONS[] = {
    {"label", 0, OPTION_LIST, "K=V", NULL, NULL,
     "every worker with this label; given again: with all of them", offsetof(args_t, labels)},
    {"dry-run", 0, OPTION_FLAG, NULL, NULL, NULL, "say which workers are meant, change nothing",
     offsetof(args_t, dry_run)},
    {"cancel", 0, OPTION_FLAG, NULL, NULL, NULL, "they stay: takes a drain back that has not ended",
     offsetof(args_t, cancel)},
    {"wait", 0, OPTION_FLAG, NULL, NULL, NULL, "wait until they have left", offsetof(args_t, wait)},
    {"deadline", 0, OPTION_DEADLINE, "DUR", NULL, "30s",
     "of --wait, and of a wait for a broker that has just started: give up after this",
     offsetof(args_t, deadline_ms)},
    {0}};
static const option_set_t SET = {
    "heddle drain",
    "[--cancel] WORKER|--label K=V [OPTION...]",
    "Has a worker leave: no new rollout waits for it, other workers fetch the versions that only it has, and "
    "then\n"
    "it leaves and its process ends (a program with a worker of the library goes on without it).  It serves\n"
    "on until then.  --cancel takes that back while it has not left: rollouts that begin afterwards wait for "
    "it\n"
    "again, and what others fetched of it they keep.  Not so of a worker that leaves by itself, as at a "
    "signal.  A\n"
    "worker that is started under the same name afterwards is one like any other.  Of a broker that has "
    "just\n"
    "started it waits until the workers are back.",
    "A worker that no other one can relieve drains without end: end it by SIGTERM, and what only it has is "
    "lost.\n" CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    0,
    CLI_EXITS
    ", the workers drain; with --wait they have left, or were lost; 3 there is no such worker;\n4 of "
    "--cancel: one has left, leaves now, or by its own wish; of --wait: one stays, by another --cancel;\n5 "
    "some had not left by the deadline, and go on draining.\n" CLI_EXITS_COMMON
    ".\n\nExamples:\n  heddle drain w1 --wait\n"
    "  heddle drain --label node=gpu-7 --dry-run                which workers are there?\n"
    "  heddle drain --label node=gpu-7 --wait --deadline 2m     before the node is taken down\n"
    "  heddle drain --label node=gpu-7 --cancel                 it stays after all"};

/* ---- what the broker says of them ---- */

static bool is_in(const json_t *worker, const char *wanted)
{
    const char *state = cli_string(worker, "state");
    return state && !strcmp(state, wanted);
}

static bool is_draining(const json_t *worker) { return is_in(worker, "draining"); }

/* The epoch of a session is in its token. */
static int64_t epoch_of(const json_t *worker) { return cli_integer(worker, "token") >> 32; }

static bool is_equal(const json_t *one, const json_t *other, const char *field)
{
    return json_equal(json_object_get(one, field), json_object_get(other, field));
}

/* A session that is ready where one drained belongs to another process, and the one that drained has ended.
 * Not so after a restart of the broker: if that ended before the worker received it, the same process is
 * there as if it had not been asked. */
static bool is_forgotten(const json_t *before, const json_t *now)
{
    return is_draining(before) && is_in(now, "ready") && epoch_of(now) > epoch_of(before) &&
           is_equal(now, before, "host") && is_equal(now, before, "pid");
}

/* Another operator's --cancel, while this command waits. */
static bool is_taken_back(const json_t *before, const json_t *now)
{
    return is_draining(before) && is_in(now, "ready") && epoch_of(now) == epoch_of(before) &&
           is_equal(now, before, "host") && is_equal(now, before, "pid");
}

static int fail_taken_back(const json_t *row)
{
    heddle_error_t error;
    int rc = error_fail(&error, HEDDLE_ERR_REQUEST_CONFLICT, "the drain of %s was taken back, and it stays",
                        cli_string(row, "name"));
    error_where(&error, NULL, 0, cli_string(row, "name"), NULL);
    error_expected(&error, "a worker that drains");
    error_found(&error, "ready");
    error_hint(&error, "another `heddle drain --cancel` did that: ask again to have it leave");
    error_publish(&error);
    return rc;
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

/* Of the workers that are there now, the rows of those that are meant, as new references.  NOT_FOUND. */
static int choose_now(heddle_admin_t *admin, const args_t *args, json_t *ret_rows)
{
    char *text = NULL;
    int rc = heddle_admin_workers(admin, args->name, &text);
    json_t *answer = rc ? NULL : json_loads(text, 0, NULL), *row;
    heddle_free(text);
    size_t i;
    json_array_foreach(json_object_get(answer, "workers"), i, row)
    {
        bool is_here = is_in(row, "ready") || is_draining(row);
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

static int ask_settling(heddle_admin_t *admin, int64_t *ret_ms)
{
    char *text = NULL;
    int rc = heddle_admin_status(admin, &text);
    json_t *answer = rc ? NULL : json_loads(text, 0, NULL);
    heddle_free(text);
    if (!rc) *ret_ms = cli_integer(json_object_get(answer, "broker"), "settling_ms");
    json_decref(answer);
    return rc;
}

static int fail_settling(const args_t *args, int64_t left_ms)
{
    heddle_error_t error;
    int rc = error_fail(&error, HEDDLE_ERR_DEADLINE,
                        "the broker has just started, and %s had not come back by the deadline",
                        args->name ? args->name : "not all workers");
    error_where(&error, NULL, 0, args->name, NULL);
    error_hint(&error, "they have %.1f s more; nothing was changed: ask again", (double)left_ms / 1e3);
    error_publish(&error);
    return rc;
}

/* The rows of the workers that are meant, as new references.
 *
 * While the broker settles after a start, its workers come back one by one: one that is not there is not
 * absent, and those with a label may be more.  So it is asked before the workers whether it settles, and the
 * list counts when it does not, or when the one that is meant is in it. */
static int choose(heddle_admin_t *admin, const args_t *args, uint64_t began_us, json_t *ret_rows)
{
    for (bool is_said = false;; is_said = true) {
        int64_t settling_ms;
        int rc = ask_settling(admin, &settling_ms);
        if (rc) return rc;
        if (!settling_ms || args->name) {
            rc = choose_now(admin, args, ret_rows);
            if (!settling_ms || rc != HEDDLE_ERR_NOT_FOUND) return rc;
        }
        uint32_t left_ms = cli_left_ms(args->deadline_ms, began_us);
        if (left_ms <= 1) return fail_settling(args, settling_ms);
        if (!is_said && !args->common.quiet)
            fprintf(stderr, "the broker has just started; waiting until its workers are back, in %.1f s\n",
                    (double)settling_ms / 1e3);
        int64_t pause_ms = settling_ms < AGAIN_MS ? settling_ms : AGAIN_MS;
        cli_pause(left_ms < pause_ms ? left_ms : (uint32_t)pause_ms);
    }
}

typedef int ask_fn(heddle_admin_t *admin, const char *worker, char **ret_json);

/* The row of one worker, as a new reference; NULL: there is none. */
static int ask_one(heddle_admin_t *admin, const char *name, ask_fn *ask, json_t **ret_row)
{
    char *text = NULL;
    int rc = ask(admin, name, &text);
    json_t *answer = rc ? NULL : json_loads(text, 0, NULL);
    *ret_row = json_incref(json_array_get(json_object_get(answer, "workers"), 0));
    heddle_free(text);
    json_decref(answer);
    return rc;
}

/* Puts the present row of each worker in place of the one before.  A worker that the broker does not know
 * keeps its last row: it ended long ago, or has not come back to a broker that was started again. */
static int renew(heddle_admin_t *admin, json_t *rows, ask_fn *ask)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        json_t *now;
        int rc = ask_one(admin, cli_string(row, "name"), ask, &now);
        if (!rc && is_forgotten(row, now)) {
            json_decref(now);
            rc = ask_one(admin, cli_string(row, "name"), heddle_admin_drain, &now);
        }
        if (!rc && is_taken_back(row, now)) rc = fail_taken_back(now);
        if (now) json_array_set_new(rows, i, now);
        if (rc && rc != HEDDLE_ERR_NOT_FOUND) return rc;
    }
    return HEDDLE_OK;
}

/* Each that can stay does; the first that cannot is the error. */
static int take_back(heddle_admin_t *admin, json_t *rows)
{
    size_t i;
    json_t *row;
    int first = HEDDLE_OK;
    heddle_error_t why;
    json_array_foreach(rows, i, row)
    {
        json_t *now;
        int rc = ask_one(admin, cli_string(row, "name"), heddle_admin_drain_cancel, &now);
        if (rc && !first) first = rc, why = *heddle_last_error();
        if (now) json_array_set_new(rows, i, now);
    }
    if (first) error_publish(&why);
    return first;
}

static size_t count_draining(const json_t *rows)
{
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) count += is_draining(json_array_get(rows, i));
    return count;
}

/* ---- --wait ---- */

/* "w1 is draining: no process that stays has policy@3, policy@4" */
static void print_row(FILE *to, const json_t *row)
{
    char text[300];
    const json_t *drain = json_object_get(row, "drain");
    const char *only = cli_join(json_object_get(drain, "only_here"), ", ", text, sizeof text);
    char state[64];
    fprintf(to, "%s %s%s%s\n", cli_string(row, "name"),
            is_draining(row) ? "is draining" : cli_text(row, "state", state),
            *only ? ": no process that stays has " : "", only);
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
    if (answer) {
        from->since = (uint64_t)cli_integer(answer, "next");
        from->epoch = (uint64_t)cli_integer(answer, "epoch");
    }
    json_decref(answer);
    return rc;
}

/* A broker that does not answer may be one that is started again: its workers drain on. */
static bool is_passing(int rc, bool *is_away, bool is_quiet)
{
    bool is_now = rc == HEDDLE_ERR_UNAVAILABLE;
    if (is_now && !*is_away && !is_quiet) fprintf(stderr, "%s; waiting for it\n", cli_error(rc)->message);
    *is_away = is_now;
    return is_now;
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
                   *only ? " waits: no process that stays has " : " has not answered", only);
    error_where(&error, NULL, 0, cli_string(row, "name"), NULL);
    error_hint(&error,
               *only ? "start another worker that subscribes to it; SIGTERM ends this one, and what only "
                       "it has is lost"
                     : "`heddle workers` shows when its last message came; it goes on draining");
    error_publish(&error);
    return rc;
}

static int wait_for(heddle_admin_t *admin, const args_t *args, uint64_t began_us, json_t *rows)
{
    heddle_events_opts_t from = {.size = sizeof from};
    json_t *said = json_object();
    from.worker = args->name;
    bool is_away = false;
    int rc = HEDDLE_OK;
    for (;;) {
        if (!args->common.quiet && count_draining(rows)) print_progress(rows, said);
        if (rc || !count_draining(rows)) break;
        uint32_t left_ms = cli_left_ms(args->deadline_ms, began_us);
        if (left_ms <= 1) {
            if (!is_away) rc = fail_late(rows);
            else rc = HEDDLE_ERR_UNAVAILABLE;
            break;
        }
        rc = await_event(admin, left_ms, &from);
        if (!rc) rc = renew(admin, rows, heddle_admin_workers);
        if (is_passing(rc, &is_away, args->common.quiet)) {
            cli_pause(AGAIN_MS);
            rc = HEDDLE_OK;
        }
    }
    json_decref(said);
    return rc;
}

/* ---- the command ---- */

/* "w1 would be drained: ready, node=gpu-7 pod=p2" */
static void print_meant(const json_t *row, bool is_back)
{
    char state[64];
    const char *key;
    json_t *value;
    printf("%s would %s: %s", cli_string(row, "name"), is_back ? "stay" : "be drained",
           cli_text(row, "state", state));
    const char *before = ", ";
    json_object_foreach(json_object_get(row, "labels"), key, value)
    {
        printf("%s%s=%s", before, key, json_string_value(value));
        before = " ";
    }
    putchar('\n');
}

static void render(const common_t *c, json_t *answer)
{
    (void)c;
    const json_t *rows = json_object_get(answer, "workers");
    bool is_meant = cli_is(answer, "dry_run");
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (is_meant) print_meant(json_array_get(rows, i), cli_is(answer, "cancel"));
        else print_row(stdout, json_array_get(rows, i));
}

static int ask(heddle_admin_t *admin, const void *self, char **ret_json)
{
    const args_t *args = self;
    json_t *rows = json_array();
    uint64_t began_us = clock_now(clock_system());
    int rc = choose(admin, args, began_us, rows);
    if (!rc && !args->dry_run)
        rc = args->cancel ? take_back(admin, rows) : renew(admin, rows, heddle_admin_drain);
    bool is_asked = !rc;
    if (!rc && args->wait && !args->dry_run) rc = wait_for(admin, args, began_us, rows);
    json_t *answer =
        json_pack("{s:s, s:s, s:b, s:b, s:b, s:O}", "schema", "heddle/1", "kind", "drain", "ok", rc == 0,
                  "dry_run", (int)args->dry_run, "cancel", (int)args->cancel, "workers", rows);
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
    } else if (args.cancel && args.wait) {
        error_fail(&error, HEDDLE_ERR_USAGE, "--cancel and --wait exclude each other");
        error_expected(&error, "one of the two");
        error_found(&error, "both");
        error_hint(&error, "a worker that stays is not waited for: leave --wait out");
    }
    for (const char **label = args.labels; has_labels_only && !error.code && *label; label++)
        (void)label_check(*label, &error);
    end = error.code ? cli_fail(&args.common, "drain", &error) : cli_ask(&args, "drain", ask, render);
    option_fini(&SET, &args);
    return end;
}
