/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/carrier.h: what a backend is to the exchange: a carrier of frames, and what it sees of the rest.
 *
 *   exchange --connect, send, progress, disconnect--> carrier
 *   exchange <--frame, place, arrived, sent, closed-- carrier
 *
 * A carrier connects, sends frames and calls the upcalls of transfer/exchange.h.  All else (the right to
 * read, standing asks, refusals, deadlines, beats, pacing, the order of events) is in the exchange
 * (transfer/exchange_state.h), so that every backend keeps the same contract.  `struct transfer` is the
 * first member of each backend's own struct.
 *
 * Loop thread only.  Upcalls only change state and may come from inside the carrier's callbacks.  Sends,
 * connects and disconnects happen in ask(), greet(), drop_peer() and events(), never in an upcall.  So a
 * callback of the carrier never finds the exchange in the middle of a change. */
#ifndef TRANSFER_CARRIER_H
#define TRANSFER_CARRIER_H

#include "transfer/frame.h"
#include "transfer/transfer.h"

#define EXCHANGE_ASKS_MAX 4096u /* open asks: 128 windows of 2 MB in chunks of 64 KiB */
/* DATA that a carrier may keep for one connection: a window of small chunks */
#define EXCHANGE_DATA_SENDS 32u
#define EXCHANGE_HOLD_US 2000000u   /* an ask may come this long before its own announcement */
#define EXCHANGE_RETIRE_US 1000000u /* quiet connections made under an older token are closed */
#define EXCHANGE_DRAIN_US 2000000u  /* unwanted receives may stay open so long; then the peer goes */
#define ASK_INDEX_BITS 16u          /* of an ask's number: below EXCHANGE_ASKS_MAX */

/* What map() hangs on a region: its open receives, and what the carrier registered. */
typedef struct {
    uint32_t receiving;
    void *registration;
} carrier_mapping_t;

/* Our end of a connection: the part of it that its carrier sees.  The exchange owns it. */
typedef struct {
    transfer_t *transfer;
    void *link;                 /* the carrier's; NULL: not connected back yet */
    uint64_t token;             /* of the peer */
    uint64_t line, remote_line; /* ours and theirs; remote 0: no HI came yet */
} endpoint_t;

/* One frame on its way.  From a fixed pool of its connection; the carrier keeps it, and with it the frame's
 * bytes (UCX 1.13 does not copy headers), until exchange_sent.  The body lies in a region that may be
 * written again as soon as send() has returned: what goes out later, goes from a copy. */
typedef enum { SEND_CONTROL, SEND_HI, SEND_DATA } send_kind_t;
typedef struct send {
    endpoint_t *end;
    send_kind_t kind;
    uint32_t slot;     /* of DATA: 0..EXCHANGE_DATA_SENDS-1, each in flight once */
    struct send *next; /* free list */
    const void *body;  /* NULL: no DATA */
    uint32_t body_bytes, frame_bytes;
    uint8_t *frame; /* `small`, but for HI */
    uint8_t small[FRAME_SMALL_MAX];
} send_t;

typedef struct carrier_ops {
    /* How long the link of a connection that ended stays, out of sight, until what is in flight and a BYE
     * are sent.  0: it is cut at once, and the other end sees it.  CLOCK_NEVER: it is cut only when it
     * has failed. */
    uint64_t linger_us;
    /* Sets e->link; GONE when it cannot. */
    int (*connect)(transfer_t *t, endpoint_t *e, bytes_t address);
    /* By force; in-flight sends end with exchange_sent(false), then exchange_closed.  May do
     * both at once. */
    void (*disconnect)(endpoint_t *e);
    /* Takes `s`: exchange_sent follows, or was called before it returns.  False: not now; it is
     * tried again when the carrier has moved. */
    bool (*send)(transfer_t *t, endpoint_t *e, send_t *s);
    /* One bounded turn; false when nothing moved. */
    bool (*progress)(transfer_t *t);
    bytes_t (*address)(transfer_t *t);
    /* The peer goes; nothing of it is in flight.  Frees e->link.  NULL: nothing to do. */
    void (*release)(endpoint_t *e);
} carrier_ops_t;

struct transfer {
    const carrier_ops_t *carrier;
    const owner_t *owner;
    const clock_ops_t *clock;
    uint64_t now_us; /* of the last turn */
    tr_counters_t counters;
    struct exchange *x; /* all else (transfer/exchange_state.h); private to the exchange */
};

#endif
