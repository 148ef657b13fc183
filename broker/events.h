/* SPDX-License-Identifier: Apache-2.0 */
/* broker/events.h (PURE): the numbered, bounded log that `heddle events` reads.  seq counts from 1 in
 * each epoch; the last LIMIT_EVENTS are kept; a later reader gets an event for the gap.  All memory
 * is taken at the start.  One thread. */
#ifndef BROKER_EVENTS_H
#define BROKER_EVENTS_H

#include "broker/outbox.h"

/* clang-format off */
#define EVENT_TYPES(X)                                                                          \
    X(BROKER_STARTED, "broker.started") X(WORKER_JOINED, "worker.joined")                       \
    X(WORKER_LEFT, "worker.left") X(WORKER_LOST, "worker.lost")                                 \
    X(WORKER_FENCED, "worker.fenced") X(WRITER_OPENED, "writer.opened")                         \
    X(WRITER_CLOSED, "writer.closed") X(WRITER_FENCED, "writer.fenced")                         \
    X(VERSION_PUBLISHED, "version.published") X(VERSION_STAGED, "version.staged")               \
    X(VERSION_ACTIVATED, "version.activated") X(VERSION_FAILED, "version.failed")               \
    X(VERSION_SUPERSEDED, "version.superseded") X(VERSION_RETIRED, "version.retired")           \
    X(VERSION_LOST, "version.lost") X(VERSION_RELEASED, "version.released")                     \
    X(STAGE_STARTED, "stage.started") X(STAGE_DONE, "stage.done")                               \
    X(STAGE_FAILED, "stage.failed") X(ACTIVATE_DONE, "activate.done")                           \
    X(ACTIVATE_FAILED, "activate.failed") X(SOURCE_LOST, "source.lost")                         \
    X(SOURCE_BAD, "source.bad") X(SOURCE_SLOW, "source.slow")                                   \
    X(ADAPTER_HELD, "adapter.held") X(ADAPTER_RESUMED, "adapter.resumed") X(GAP, "gap")         \
    X(KEY_ADDED, "key.added") X(KEY_REVOKED, "key.revoked")                                     \
    X(INVITATION_MADE, "invitation.made") X(INVITATION_USED, "invitation.used")                 \
    X(ADAPTER_FORGOTTEN, "adapter.forgotten") X(STORE_REFUSED, "store.refused")                 \
    X(STORE_RECOVERED, "store.recovered") X(VERIFY_FAILED, "verify.failed")                  \
    X(WORKER_DRAINING, "worker.draining") X(WORKER_STAYING, "worker.staying")   \
    X(LEADER_CHANGED, "leader.changed")
/* clang-format on */
typedef enum {
    EVENT_NONE,
#define X(NAME, name) EVENT_##NAME,
    EVENT_TYPES(X)
#undef X
        EVENT_TYPE_COUNT
} event_type_t;

/* `data` of the JSON has only what is not -1 or 0 here. */
typedef struct event_row {
    uint64_t seq, at_ms, version, decision, token; /* 0: none */
    int64_t bytes, duration_ms;                    /* -1: none */
    event_type_t type;
    int code; /* heddle_err_t, 0 */
    /* "" none; worker: also a writer's name */
    char adapter[HEDDLE_NAME_MAX + 1], worker[HEDDLE_NAME_MAX + 1];
    /* the second one that it is about: the new session (*.fenced), which source (source.*); "" none */
    char other[HEDDLE_NAME_MAX + 1];
    char message[160];
} event_row_t;

typedef struct events {
    event_row_t *rows;                 /* ring: seq s is at rows[(s - 1) % LIMIT_EVENTS] */
    uint64_t epoch, last_seq;          /* 0: nothing yet */
    uint64_t counts[EVENT_TYPE_COUNT]; /* since the start, those that are no longer kept too */
} events_t;

int events_init(events_t *e, uint64_t epoch); /* NO_MEMORY */
void events_fini(events_t *e);
const char *events_name(event_type_t type); /* "worker.joined"; "unknown" out of range */
/* Appends a row of that type: zeroed, bytes and duration_ms -1, for the caller to fill.  Never NULL. */
event_row_t *events_add(events_t *e, event_type_t type, const char *adapter, uint64_t version,
                        const char *worker, instant_t now);
void events_message(event_row_t *row, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
uint64_t events_first(const events_t *e);                      /* lowest seq kept; last_seq + 1 when empty */
const event_row_t *events_at(const events_t *e, uint64_t seq); /* NULL: not kept */

/* What a reader wants.  `after`: the first seq wanted, 0: the oldest kept; one that has not been yet is
 * waited for.  `epoch`: which epoch that belongs to, 0: this one; a reader that names it has read all before
 * `after`.  Names: "" or NULL is all. */
typedef struct {
    uint64_t epoch, after;
    const char *adapter, *worker;
} events_filter_t;
/* Where reading begins; *ret_gap: something between what was asked for and that is gone (or is of another
 * epoch, or of another registry in the same one). */
uint64_t events_begin(const events_t *e, const events_filter_t *f, bool *ret_gap);
bool events_match(const event_row_t *row, const events_filter_t *f);
/* Is there a gap, or a row that matches? */
bool events_ready(const events_t *e, const events_filter_t *f);

#endif
