/* SPDX-License-Identifier: Apache-2.0 */
/* broker/outbox.h (PURE): what one event leads to: records to be made durable, and messages to be sent
 * once they are.
 *
 *   event -> decide ... -> records + sends -> commit -> apply -> the sends leave
 *   (commit failed: both are dropped)
 *
 * Messages are encoded when they are added, so a send borrows nothing.  Texts of records borrow from the
 * message or the state that they were made from, or from outbox_text(), all of which live until
 * outbox_clear(). Bounded: OUTBOX_RECORDS records (decide leaves the rest for its next call), and as many
 * sends as there are members. Memory is kept between events.  One thread, nothing blocks. */
#ifndef BROKER_OUTBOX_H
#define BROKER_OUTBOX_H

#include "broker/registry/record.h"

/* Now, as it came in from outside: leases and deadlines count in `us`, people read `wall_ms`. */
typedef struct {
    uint64_t us, wall_ms;
} instant_t;

/* With two operations for each, and one for its marker, a transaction has at most the 128 that etcd takes. */
#define OUTBOX_RECORDS 63

/* frame = frames.data + at */
typedef struct {
    uint64_t peer;
    msg_type_t type;
    size_t at, bytes;
} outbox_send_t;

typedef struct outbox {
    record_t records[OUTBOX_RECORDS];
    int record_count;
    outbox_send_t *sends;
    size_t send_count, send_capacity;
    buf_t frames;
    arena_t texts;
    bool failed; /* memory ran out: what is in here is not whole and must be dropped */
    /* the first message that was out of its own limits, an error of ours, and is not in here; 0: none */
    msg_type_t unsendable;
} outbox_t;

void outbox_fini(outbox_t *o);
void outbox_clear(outbox_t *o);
/* Zeroed but for kind, adapter and at_ms; NULL (and nothing added) when OUTBOX_RECORDS are in. */
record_t *outbox_record(outbox_t *o, record_kind_t kind, const char *adapter, instant_t now);
/* Room for that many more records? */
bool outbox_has_room(const outbox_t *o, int records);
void outbox_send(outbox_t *o, uint64_t peer, const msg_t *m);
/* A copy that lives until outbox_clear; "" when memory ran out (and `failed` is set). */
const char *outbox_text(outbox_t *o, const char *text);
/* Copies what the records borrow, so that they stay whole when their event is over.  False: no memory. */
bool outbox_own(outbox_t *o);
static inline bytes_t outbox_frame(const outbox_t *o, size_t i)
{
    return bytes_of(o->frames.data + o->sends[i].at, o->sends[i].bytes);
}

#endif
