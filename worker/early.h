/* SPDX-License-Identifier: Apache-2.0 */
/* worker/early.h: bytes that were copied ahead of their announcement.
 *
 * A publisher of this host says, while the broker records a version, under which key its bytes may be read
 * already (TR_EARLY).  They are copied, and digested on the way, to where the next version will lie: the
 * slot that is reserved next.  When that is announced, its download (worker/download.h) compares them with
 * what was announced, as it does with all bytes, and fetches what is not there, or not the same.  So nothing
 * is believed, nothing is told to anybody, and where no announcement comes nothing has happened.
 *
 *   heard   -> slot, asks         the last publisher that a version was fetched from, and nobody else
 *   arrived -> here
 *   refused, gone -> no more asks; what is here stays
 *   taken   -> the download's: nothing is asked any more, and what is asked still is dropped
 *
 * Loop thread only. */
#ifndef WORKER_EARLY_H
#define WORKER_EARLY_H

#include "client/node.h"
#include "worker/slots.h"
#include "worker/announced.h"

/* As large as a range may be: they are asked for a frame at a time, of which two are open, so that the next
 * one lies here when the last one is copied.  A fetch has less open (LIMIT_WINDOW_BYTES), for what a lost
 * source had to send is asked again; of this nothing is. */
#define EARLY_PIECE_BYTES LIMIT_CHUNK_MAX_BYTES
#define EARLY_OPEN_MAX (2 * LIMIT_ASK_RANGES)

/* From the publisher's region, its first page first. */
typedef struct {
    announced_source_t from;
    uint32_t piece_count;
    uint64_t bytes, leaf_count; /* told */
    uint64_t took_us;           /* from the first ask to the last answer */
    uint64_t *leaves;           /* a page's; of the pieces that are here.  Owned; NULL: nothing */
    uint8_t *here;              /* a piece's: 1.  Owned */
} early_bytes_t;

typedef struct {
    announced_source_t publisher; /* token 0: there was none */
    slot_t *slot;                 /* NULL: nothing is copied, and the rest means nothing */
    share_key_t key;
    uint64_t cookie; /* of its asks, but for the piece: worker/download.h */
    uint64_t began_us;
    uint32_t next; /* piece to be asked for */
    struct {
        uint64_t ask;
        uint32_t piece;
    } open[EARLY_OPEN_MAX];
    uint32_t open_count;
    early_bytes_t got;
} early_t;

/* TR_EARLY; of e->publisher, or nothing.  `slot` is FREE and its region warm and mapped; NULL, or one too
 * small: nothing is copied. */
void early_heard(early_t *e, const node_io_t *io, const tr_event_t *event, slot_t *slot);
/* TR_ARRIVED, TR_REFUSED. */
void early_transfer(early_t *e, const node_io_t *io, const tr_event_t *event);
/* What is in `slot`, or nothing.  It is over, and nothing is written there any more. */
early_bytes_t early_take(early_t *e, const node_io_t *io, const slot_t *slot);
void early_end(early_t *e, const node_io_t *io);

/* Whether all of these bytes are here. */
bool early_covers(const early_bytes_t *b, uint64_t offset, uint64_t bytes);
void early_bytes_fini(early_bytes_t *b);

#endif
