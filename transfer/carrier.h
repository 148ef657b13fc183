/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/carrier.h: what a backend is to the exchange: a carrier of frames, and what it sees of the rest.
 *
 *   exchange --connect, send, progress, disconnect--> carrier
 *   exchange <--frame, place, arrived, sent, closed-- carrier
 *
 * A carrier connects, sends frames and calls the upcalls below.  All else (the right to read, standing asks,
 * refusals, deadlines, beats, pacing, the order of events) is in the exchange (transfer/exchange.h), so that
 * every backend keeps the same contract.  `struct transfer` is the first member of each backend's own struct.
 *
 * Loop thread only.  Upcalls only change state and may come from inside the carrier's callbacks; sends,
 * connects and disconnects happen in ask(), greet(), drop_peer() and events(), never in an upcall, so that
 * a callback of the carrier never finds the exchange in the middle of a change. */
#ifndef TRANSFER_CARRIER_H
#define TRANSFER_CARRIER_H

#include "transfer/frame.h"
#include "transfer/transfer.h"

#define EXCHANGE_ASKS_MAX 4096u /* open asks: 128 windows of 2 MB in chunks of 64 KiB */
#define EXCHANGE_DATA_SENDS                                                                                  \
    32u                             /* DATA that a carrier may keep for one connection: a window of small
                                     * chunks */
#define EXCHANGE_HOLD_US 2000000u   /* an ask may come this long before its own announcement */
#define EXCHANGE_RETIRE_US 1000000u /* quiet connections made under an older token are closed */
#define EXCHANGE_DRAIN_US 2000000u  /* unwanted receives may stay open so long; then the peer goes */
#define ASK_INDEX_BITS 16u          /* of an ask's number: below EXCHANGE_ASKS_MAX */

/* What map() hangs on a region: its open receives, and what the carrier registered. */
typedef struct {
    uint32_t receiving;
    void *registration;
} mapping_t;

/* Our end of a connection: the part of it that its carrier sees.  The exchange owns it. */
typedef struct {
    transfer_t *transfer;
    void *link;                 /* the carrier's; NULL: not connected back yet */
    uint64_t token;             /* of the peer */
    uint64_t line, remote_line; /* ours and theirs; remote 0: no HI came yet */
    bool reads_us;              /* the carrier's: the peer reads our memory in place */
} endpoint_t;

/* One frame on its way.  From a fixed pool of its connection; the carrier keeps it, and with it the frame's
 * bytes (UCX 1.13 does not copy headers) and the region, until exchange_sent; the region only until
 * exchange_copied, if it says so. */
typedef enum { SEND_CONTROL, SEND_HI, SEND_DATA } send_kind_t;
typedef struct send {
    endpoint_t *end;
    send_kind_t kind;
    struct share *share;    /* of DATA, while the carrier reads its region: the exchange's */
    const region_t *region; /* of DATA: `payload` lies in it */
    uint32_t slot;          /* of DATA: 0..EXCHANGE_DATA_SENDS-1, each in flight once */
    struct send *next;      /* free list */
    const void *payload;    /* NULL: no DATA */
    uint32_t payload_bytes, frame_bytes;
    uint8_t *frame; /* `small`, but for HI */
    uint8_t small[FRAME_SMALL_MAX];
} send_t;

/* How a send ended.  UNREAD: its bytes were there to be read in place, and were not. */
typedef enum { SENT, SENT_UNREAD, SENT_FAILED } sent_t;

typedef struct carrier_ops {
    /* How long the link of a connection that ended stays, out of sight, until what is in flight and a BYE
     * are sent.  0: it is cut at once, and the other end sees it.  CLOCK_NEVER: it is cut only when it
     * has failed. */
    uint64_t linger_us;
    /* Sets e->link; GONE when it cannot. */
    int (*connect)(transfer_t *t, endpoint_t *e, bytes_t address);
    /* By force; in-flight sends end with exchange_sent(SENT_FAILED), then exchange_closed.  May do
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
    /* The peer has ended: what it has not taken of what is in flight it will not take.  Calls
     * exchange_sent for it.  NULL: what is in flight ends by itself, or with the link. */
    void (*abandon)(endpoint_t *e);
} carrier_ops_t;

struct transfer {
    const carrier_ops_t *carrier;
    const owner_t *owner;
    const clock_ops_t *clock;
    uint64_t now_us; /* of the last turn */
    tr_counters_t counters;
    struct exchange *x; /* all else; private to the exchange */
};

/* Life.  `first_line` grows from one incarnation of a process to the next, or is random. */
int exchange_init(transfer_t *t, const carrier_ops_t *carrier, const transfer_opts_t *opts,
                  uint64_t first_line);
/* Ends every peer; no events.  Then: carrier progress until exchange_quiet, then exchange_fini. */
void exchange_shut(transfer_t *t);
bool exchange_quiet(transfer_t *t);
void exchange_fini(transfer_t *t);

/* A call from outside a turn: the time of the last turn may be long ago, and what is sent now would look as
 * if the peer had not taken it since. */
void exchange_enter(transfer_t *t);

/* Rows of every backend's table that are the same. */
int exchange_address(transfer_t *t, bytes_t *ret_address);
void exchange_set_token(transfer_t *t, uint64_t token);
void exchange_set_rate(transfer_t *t, uint64_t max_rate_bytes);
int exchange_events(transfer_t *t, uint64_t now_us, tr_event_t *out, int cap);
uint64_t exchange_deadline(transfer_t *t);
void exchange_counters(transfer_t *t, tr_counters_t *ret_counters);
int exchange_greet(transfer_t *t, const peer_ref_t *peer);
void exchange_drop_peer(transfer_t *t, uint64_t token);
int exchange_map(transfer_t *t, region_t *r);
void exchange_unmap(transfer_t *t, region_t *r);
bool exchange_idle(transfer_t *t, const region_t *r);
int exchange_share(transfer_t *t, region_t *r, share_key_t key);
int exchange_extend(transfer_t *t, share_key_t key, uint64_t offset, uint64_t bytes);
void exchange_unshare(transfer_t *t, share_key_t key);
int exchange_ask(transfer_t *t, const peer_ref_t *from, const tr_read_t *read, uint64_t *ret_ask);
void exchange_drop_ask(transfer_t *t, uint64_t id);
/* True when events() has something to do now. */
bool exchange_pending(const transfer_t *t);

/* Upcalls of the carrier. */
void exchange_frame(transfer_t *t, const frame_t *f); /* all kinds but DATA and the carrier's own */
/* DATA begins, and its bytes come into their place BY_COPY, or the transport writes them BY_ITSELF at any
 * later time, perhaps after the read request was dropped.  Returns where these bytes go: `base` and `leaves`
 * are those of the first of them, and the sink is valid until exchange_arrived or exchange_again.  A carrier
 * that copies also digests them (digest_copy) into `leaves`, unless that is NULL.  NULL: the carrier discards
 * the bytes, because no read request waits for them, or they have another shape than it; where a request
 * waited, it has ended. */
typedef enum { BY_COPY, BY_ITSELF } placing_t;
const sink_t *exchange_place(transfer_t *t, const frame_t *f, size_t payload_bytes, placing_t how);
/* The bytes of an exchange_place that was not NULL are there, or will never come (ok false). */
void exchange_arrived(transfer_t *t, uint64_t id, bool ok);
/* Or the bytes lie where they cannot be read: the same peer is asked again, without an event. */
void exchange_again(transfer_t *t, uint64_t id);
/* DATA: the region is not read any more.  Then, or at once: the send has ended. */
void exchange_copied(transfer_t *t, send_t *s);
void exchange_sent(transfer_t *t, send_t *s, sent_t how);
void exchange_broken(endpoint_t *e); /* the link failed */
void exchange_closed(endpoint_t *e); /* a disconnected link is no more */

/* Connections of a carrier.  Of this line of the peer; NULL: none that is live. */
endpoint_t *exchange_of_line(transfer_t *t, uint64_t remote_line);
/* The live one after `e`; of NULL the first.  NULL: there are no more. */
endpoint_t *exchange_next(transfer_t *t, const endpoint_t *e);
/* Cuts those whose link `is_of`, live or ended, without BYE; where the carrier lingers for ever, live ones
 * end and what is in flight goes on. */
typedef bool (*exchange_test_t)(const endpoint_t *e, const void *arg);
void exchange_cut(transfer_t *t, exchange_test_t is_of, const void *arg);
/* One whose link `is_of` is left, live or ended. */
bool exchange_any(transfer_t *t, exchange_test_t is_of, const void *arg);

#endif
