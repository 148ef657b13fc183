/* SPDX-License-Identifier: Apache-2.0 */
/* JSON lines by jansson, and the error text of the program. */
#include "sidecar/print.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/option.h"
#include "core/process.h"

#include <heddle/error.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Takes the object. False: the line was not written, for lack of memory or because stdout took it not. */
static bool write_line(json_t *object)
{
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    bool is_written = text && process_print(text);
    free(text);
    json_decref(object);
    return is_written;
}

/* A reader that has stopped reading must not block the worker. Its lines are dropped and counted, like
 * lines that a full disk did not take; when lines are accepted again, a "gap" event reports the number. A
 * pipe that polls writable takes PIPE_BUF bytes without blocking, and an event is shorter. */
static void print_line(json_t *object)
{
    static uint64_t dropped;
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    bool is_taken = poll(&out, 1, 0) != 0;
    if (is_taken && dropped)
        is_taken = write_line(json_pack("{s:s, s:s, s:b, s:s, s:s, s:{s:I}}", "schema", "heddle/1", "kind",
                                        "event", "ok", 1, "origin", "worker", "type", "gap", "data",
                                        "dropped", (json_int_t)dropped));
    if (!is_taken) {
        dropped++;
        json_decref(object);
        return;
    }
    dropped = write_line(object) ? 0 : 1;
}

/* Parses and frees a text that the library allocated; NULL: it had no memory for one. */
static json_t *parse(char *text)
{
    json_t *value = text ? json_loads(text, 0, NULL) : NULL;
    heddle_free(text);
    return value ? value : json_null();
}

/* Fields that every event has are null where nothing is known, so that readers need no test for a key. */
static json_t *text_or_null(const char *text) { return text && *text ? json_string(text) : json_null(); }
static json_t *number_or_null(uint64_t n) { return n ? json_integer((json_int_t)n) : json_null(); }

/* The first line: what a program that started this worker needs to reach it and its exports. */
void print_ready(heddle_worker_t *w, const heddle_event_t *joined, const char *name,
                 const char *const *adapters, const char *export_dir, const char *http)
{
    char *text = NULL;
    heddle_worker_transport(w, &text);
    json_t *transport = parse(text), *names = json_array();
    for (; *adapters; adapters++) json_array_append_new(names, json_string(*adapters));
    print_line(json_pack("{s:s, s:s, s:b, s:s, s:I, s:s, s:I, s:o, s:o, s:o, s:s?, s:o}", "schema",
                         "heddle/1", "kind", "ready", "ok", 1, "role", "worker", "pid", (json_int_t)getpid(),
                         "name", name, "token", (json_int_t)joined->token, "cluster",
                         text_or_null(joined->cluster), "adapters", names, "export_dir",
                         text_or_null(export_dir), "http", http, "transport", transport));
}

/* The library reports STAGED only to a worker that stages at once; with hooks it is this program that knows
 * when a version is staged. */
void print_stage_done(const heddle_event_t *arrived, const char *worker)
{
    heddle_event_t staged = *arrived;
    staged.type = HEDDLE_EVENT_STAGED;
    staged.at_ms = clock_wall(clock_system());
    print_event(&staged, worker);
}

/* `seq` counts the lines of this process: the broker numbers its events on its own. */
void print_event(const heddle_event_t *e, const char *worker)
{
    static json_int_t seq;
    char at[25];
    static const char *const TYPES[] = {
        [HEDDLE_EVENT_JOINED] = "worker.joined",     [HEDDLE_EVENT_LOST_BROKER] = "worker.lost",
        [HEDDLE_EVENT_FENCED] = "worker.fenced",     [HEDDLE_EVENT_LEFT] = "worker.left",
        [HEDDLE_EVENT_FETCHING] = "stage.started",   [HEDDLE_EVENT_STAGED] = "stage.done",
        [HEDDLE_EVENT_FAILED] = "stage.failed",      [HEDDLE_EVENT_ACTIVE] = "activate.done",
        [HEDDLE_EVENT_STALE] = "activate.failed",    [HEDDLE_EVENT_RETIRED] = "version.retired",
        [HEDDLE_EVENT_DRAINING] = "worker.draining", [HEDDLE_EVENT_STAYING] = "worker.staying"};
    /* Events that are not in this list stand for nothing that readers of the broker's events see. A STALE
     * without a code is a switch that is still in progress. */
    const char *type = (size_t)e->type < sizeof TYPES / sizeof *TYPES ? TYPES[e->type] : NULL;
    if (!type || (e->type == HEDDLE_EVENT_STALE && !e->code)) return;
    /* Fields that the event does not have are left out, as in the broker's events. */
    json_t *data = json_object();
    if (e->digest[0]) json_object_set_new(data, "digest", json_string(e->digest));
    if (e->tag[0]) json_object_set_new(data, "tag", json_string(e->tag));
    if (e->decision) json_object_set_new(data, "decision", json_integer((json_int_t)e->decision));
    if (e->data_bytes) json_object_set_new(data, "bytes", json_integer((json_int_t)e->data_bytes));
    if (e->step >= 0) json_object_set_new(data, "step", json_integer((json_int_t)e->step));
    if (e->type == HEDDLE_EVENT_JOINED)
        json_object_set_new(data, "token", json_integer((json_int_t)e->token));
    if (e->code) json_object_set_new(data, "retriable", json_boolean(e->retriable));
    clock_text(e->at_ms, at);
    print_line(json_pack("{s:s, s:s, s:b, s:s, s:I, s:o, s:s, s:s, s:o, s:o, s:s, s:o, s:o, s:o}", "schema",
                         "heddle/1", "kind", "event", "ok", 1, "origin", "worker", "seq", ++seq, "epoch",
                         number_or_null(e->epoch), "at", at, "type", type, "adapter",
                         text_or_null(e->adapter), "version", number_or_null(e->version), "worker", worker,
                         "code", e->code ? json_string(heddle_err_name(e->code)) : json_null(), "message",
                         text_or_null(e->message), "data", data));
}

void print_log_error(const char *id, const heddle_error_t *why, const char *then)
{
    log_emit(LOG_WARN, id, "%s: %s%s%s%s%s", heddle_err_name(why->code), why->message, *then ? "; " : "",
             then, why->hint[0] ? "; " : "", why->hint);
}

int print_failure(const char *program, const heddle_error_t *error, int json)
{
    heddle_error_t said = *error, *e = &said;
    char *text = NULL;
    option_error_words(e);
    if (json) {
        heddle_error_json(e, &text);
        print_line(json_pack("{s:s, s:s, s:b, s:o}", "schema", "heddle/1", "kind", "worker", "ok", 0, "error",
                             parse(text)));
    }
    return process_fail(program, e);
}
