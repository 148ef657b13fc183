/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/asks.h: the read requests of this process, as the receiver.
 *
 *   exchange_ask --> GATHERED --ASK sent--> SENT --DATA--> RECEIVING --> RECEIVED: TR_ARRIVED
 *                                             |  REFUSED, the connection ends, another shape: TR_REFUSED
 *   exchange_drop_ask: GATHERED freed · SENT --> DROPPED --UNASK sent--> freed
 *                      RECEIVING --> DRAINING --its receive ends--> freed
 *
 * Gathered: batched for the next frame, which has up to 16 ranges of one key.  A request that is over for the
 * caller keeps its entry until its receive ends: the transport still writes into its memory.
 *
 * Entries are of one pool of the exchange; nothing on the path of a range takes memory.  Loop thread only.
 * What the backends call of this is in transfer/exchange.h. */
#ifndef TRANSFER_ASKS_H
#define TRANSFER_ASKS_H

#include "transfer/conn.h"

typedef enum {
    ASK_FREE,
    ASK_GATHERED,
    ASK_SENT,
    ASK_RECEIVING, /* its bytes come into their place */
    ASK_RECEIVED,  /* they are there, or never will be: its event is being made */
    ASK_DROPPED,   /* until UNASK is sent */
    ASK_DRAINING   /* dropped, and its receive is still open */
} ask_state_t;
typedef struct ask {
    ask_state_t state;
    bool is_digested; /* the carrier writes the leaves of its bytes too */
    uint32_t bytes;
    uint64_t id; /* generation << 16 | index: late DATA never match a reused entry */
    uint64_t offset, cookie;
    share_key_t key;
    sink_t sink; /* its part of the caller's.  leaves NULL: not wanted, or the range
                  * begins within a page, whose leaf needs the bytes before it too */
    conn_t *conn;
    struct ask *prev, *next; /* gathered, dropped: conn's; free: exchange's */
} ask_t;

/* True when a frame was sent. */
bool asks_send(transfer_t *t, conn_t *c);
bool asks_send_unasks(transfer_t *t, conn_t *c);
/* REFUSED came. */
void asks_refused(transfer_t *t, conn_t *c, const frame_t *f);
/* Ends all requests of a connection, as refused with GONE.  True while a receive is open: then the link must
 * be cut before the memory can be used. */
bool asks_end(transfer_t *t, conn_t *c);

#endif
