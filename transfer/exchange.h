/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/exchange.h: both ends of every conversation, whatever carries it.
 *
 * A backend is a carrier: it connects, sends frames, and calls the upcalls below.  All else (who
 * may read what, standing asks, refusals, deadlines, beats, pacing, which event comes before
 * which) is here once, so that every backend keeps the same contract.  `struct transfer` is the
 * first member of each backend's own struct.
 *
 *            receive.c                                   serve.c
 *   ask() -> gathered -ASK-> sent ---------> standing: held (key unknown) | waiting (for bytes) | ready
 *            arrived <---------------DATA--- ready          refusing <- deadline, unshare, limit
 *            refused <------------REFUSED--- refusing
 *            dropped -UNASK-> freed -------> freed
 *
 * One thread.  Upcalls only change state and may come from inside the carrier's callbacks; sends,
 * connects and disconnects happen in ask(), greet(), drop_peer() and events(), never in an
 * upcall.  After open nothing on the path of a range takes memory, but for a receiver's crew, which comes
 * with the first ranges that are read in place together. */
#ifndef TRANSFER_EXCHANGE_H
#define TRANSFER_EXCHANGE_H

#include "transfer/extents.h"
#include "transfer/frame.h"
#include "transfer/pace.h"
#include "transfer/transfer.h"

#define HASH_NONFATAL_OOM 1   /* a library must not exit when memory runs out */
#include <uthash.h>

#define EXCHANGE_PEERS_MAX 1024u        /* two descriptors each: a process with so many raises its limit */
#define EXCHANGE_SHARES_MAX (LIMIT_HELD + LIMIT_ADAPTERS_PER_WORKER) /* all that is held, and what comes */
#define EXCHANGE_ASKS_MAX 4096u         /* open asks: 128 windows of 2 MB in chunks of 64 KiB */
#define EXCHANGE_STANDING_MAX 16384u    /* asks that all peers together may have standing here */
#define EXCHANGE_RING_MAX 9600u         /* no event is lost */
_Static_assert(EXCHANGE_RING_MAX > EXCHANGE_ASKS_MAX + EXCHANGE_PEERS_MAX + EXCHANGE_SHARES_MAX, "too few");
#define EXCHANGE_FORGOTTEN_MAX 64u      /* keys refused at once: they were unshared here */
#define EXCHANGE_HOLD_US 2000000u       /* an ask may come this long before its own announcement */
#define EXCHANGE_RETIRE_US 1000000u     /* quiet connections made under an older token are closed */
#define EXCHANGE_DRAIN_US 2000000u      /* receives that nobody wants may stay open; then the peer goes */
#define EXCHANGE_DATA_SENDS 32u         /* DATA that a carrier may keep for one peer: a window of small
                                         * chunks */
#define EXCHANGE_CONTROL_SENDS 8u       /* other frames */
#define EXCHANGE_TURN_SENDS 128u        /* frames that one events() may send */
#define EXCHANGE_TURN_PROGRESS 64u      /* carrier turns in one events() */

typedef struct peer peer_t;
typedef struct share share_t;

/* One frame on its way.  From a fixed pool of its peer; the carrier keeps it, and with it the
 * frame's bytes (UCX 1.13 does not copy headers) and the share's region, until exchange_sent; the
 * region only until exchange_copied, if it says so. */
typedef struct send {
    peer_t *peer;
    share_t *share;                     /* of DATA, while the carrier reads its region */
    uint32_t slot;                      /* of DATA: 0..EXCHANGE_DATA_SENDS-1, each in flight once */
    bool data;
    struct send *next;                  /* free list */
    const void *payload;
    uint32_t payload_bytes, frame_bytes;
    uint8_t *frame;                     /* `small`, but for HI */
    uint8_t small[FRAME_SMALL_MAX];
} send_t;

/* Source side: one asked range that is not answered yet.  In one queue besides its peer's list. */
typedef enum { STANDING_HELD, STANDING_WAITING, STANDING_READY, STANDING_REFUSING } standing_state_t;
typedef struct standing {
    standing_state_t state;
    int err;                            /* REFUSING */
    uint32_t bytes;
    uint64_t id, offset, since_us;
    share_key_t key;
    peer_t *peer;
    share_t *share;                     /* NULL while HELD */
    struct standing *prev, *next;       /* held: transfer's; waiting: share's; ready, refusing: peer's */
    struct standing *peer_prev, *peer_next;
} standing_t;

struct share {
    share_key_t key;
    region_t *region;
    extents_t extents;
    uint32_t sends;                     /* in flight */
    bool ending;                        /* unshared: TR_UNSHARED when sends is 0 */
    bool in_place;                      /* early: read in place, or not at all */
    uint64_t moved_us;                  /* last extend */
    standing_t *waiting;
    UT_hash_handle hh;
};

/* What map() hangs on a region. */
typedef struct { uint32_t receiving; void *registration; } mapping_t;

/* Receiver side. */
#define ASK_INDEX_BITS 16u
typedef enum { ASK_FREE, ASK_GATHERED, ASK_SENT, ASK_RECEIVING, ASK_DROPPED, ASK_DRAINING } ask_state_t;
typedef struct ask {
    ask_state_t state;                  /* DROPPED: until UNASK is sent; DRAINING: its receive is open */
    bool is_digested;                   /* its bytes lie there, and `leaves` has theirs */
    bool only_copied;
    uint32_t bytes;
    uint64_t id;                        /* generation << 16 | index: stale DATA find no reused entry */
    uint64_t offset, cookie;
    share_key_t key;
    uint8_t *place;                     /* in the sink */
    uint64_t *leaves;                   /* of `place`; NULL: not wanted, or it begins within a page */
    mapping_t *mapping;
    peer_t *peer;
    struct ask *prev, *next;            /* gathered, dropped: peer's; free: transfer's */
} ask_t;

/* How a send ended.  UNREAD: its bytes were there to be read, and nobody read them. */
typedef enum { SENT, SENT_UNREAD, SENT_FAILED } sent_t;

typedef enum { PEER_ACCEPTED, PEER_OPEN, PEER_CLOSING, PEER_CLOSED } peer_state_t;
struct peer {
    peer_state_t state;                 /* ACCEPTED: HI came, not connected back yet */
    bool broken;                        /* the link failed, perhaps within a send: ends in the next turn */
    bool force;                         /* cut the link, whatever is in flight */
    bool hushed;                        /* end without BYE */
    bool hi_due, bye_due;
    bool blocked;                       /* the carrier takes nothing for it now */
    bool retiring;
    bool disconnecting;
    bool reads_us;                      /* the carrier's: it reads our memory in place */
    bool served;                        /* it knew a key, and was sent bytes */
    void *link;                         /* the carrier's */
    transfer_t *transfer;
    uint64_t token;
    uint64_t line, remote_line;         /* remote 0: no HI came yet */
    uint64_t answer;                    /* the remote line that our HI answers */
    uint64_t sent_us, heard_us, moved_us, quiet_us, cut_us;
    uint32_t asks_open, gathered_count, standing_count, in_flight;
    uint32_t draining_count;            /* dropped asks whose receives are open */
    uint64_t drained_us;                /* when the last of these ended, or the first began */
    ask_t *gathered, *dropped;
    standing_t *standing, *ready, *refusing;
    send_t *free_data, *free_control;
    bool dirty;                         /* on the transfer's list of peers with something to send */
    struct peer *dirty_prev, *dirty_next, *prev, *next;
    UT_hash_handle by_token, by_line;
    uint32_t address_bytes;
    uint8_t address[LIMIT_ADDRESS_BYTES];
    uint8_t hi_frame[FRAME_MAX];
    send_t hi, data[EXCHANGE_DATA_SENDS], control[EXCHANGE_CONTROL_SENDS];
};

typedef struct carrier_ops {
    /* How long the link of a peer that ended stays, out of sight, until what is in flight and a BYE
     * are sent.  0: it is cut at once, and the other end sees it.  CLOCK_NEVER: it is cut only when it
     * has failed. */
    uint64_t linger_us;
    /* Sets p->link; GONE when it cannot. */
    int  (*connect)(transfer_t *t, peer_t *p, bytes_t address);
    /* By force; in-flight sends end with exchange_sent(SENT_FAILED), then exchange_closed.  May do
     * both at once. */
    void (*disconnect)(transfer_t *t, peer_t *p);
    /* Takes `s`: exchange_sent follows, or was called before it returns.  False: not now; it is
     * tried again when the carrier has moved. */
    bool (*send)(transfer_t *t, peer_t *p, send_t *s);
    /* One bounded turn; false when nothing moved. */
    bool (*progress)(transfer_t *t);
    bytes_t (*address)(transfer_t *t);
    /* The peer goes; nothing of it is in flight.  Frees p->link.  NULL: nothing to do. */
    void (*release)(peer_t *p);
    /* The peer has ended: what it has not taken of what is in flight it will not take.  Calls
     * exchange_sent for it.  NULL: what is in flight ends by itself, or with the link. */
    void (*abandon)(peer_t *p);
} carrier_ops_t;

struct transfer {
    const carrier_ops_t *carrier;
    const owner_t *owner;
    const clock_ops_t *clock;
    uint64_t token, next_line, now_us;
    uint64_t serve_us, beat_us, next_timer_us;
    uint32_t turn_sends;
    bool stalled;                       /* all that is left to send waits for the pace */
    bool reap_due;                      /* a peer ended and is not disconnected yet */
    int refuse_err;                     /* test knob: refuse every ask with this */
    pace_t pace;
    tr_counters_t counters;

    peer_t *peers, *closing, *dirty;
    uint32_t peer_count, dirty_count, blocked_count;
    peer_t *by_token, *by_line;         /* uthash heads */

    share_t *shares;                    /* uthash head */
    uint32_t share_count;
    share_key_t forgotten[EXCHANGE_FORGOTTEN_MAX];
    uint32_t forgotten_next, forgotten_count;
    standing_t *standing, *standing_free, *held;
    uint32_t standing_used;

    ask_t *asks, *asks_free;
    uint32_t asks_used;
    uint64_t ask_generation;

    tr_event_t *ring;
    uint32_t ring_head, ring_count, ring_reserved, gone_undrained;
};

/* Life (exchange.c).  `first_line` grows from one incarnation of a process to the next, or is random. */
int  exchange_init(transfer_t *t, const carrier_ops_t *carrier, const transfer_opts_t *opts,
                   uint64_t first_line);
/* Ends every peer; no events.  Then: carrier progress until exchange_quiet, then exchange_fini. */
void exchange_shut(transfer_t *t);
bool exchange_quiet(transfer_t *t);
void exchange_fini(transfer_t *t);

/* A call from outside a turn: the time of the last turn may be long ago, and what is sent now would look as
 * if the peer had not taken it since. */
void exchange_enter(transfer_t *t);

/* Rows of every backend's table that are the same. */
int  exchange_address(transfer_t *t, bytes_t *ret_address);
void exchange_set_token(transfer_t *t, uint64_t token);
void exchange_set_rate(transfer_t *t, uint64_t max_rate_bytes);
int  exchange_events(transfer_t *t, uint64_t now_us, tr_event_t *out, int cap);
uint64_t exchange_deadline(transfer_t *t);
void exchange_counters(transfer_t *t, tr_counters_t *ret_counters);
int  exchange_greet(transfer_t *t, const peer_ref_t *peer);
void exchange_drop_peer(transfer_t *t, uint64_t token);
int  exchange_map(transfer_t *t, region_t *r);
void exchange_unmap(transfer_t *t, region_t *r);
bool exchange_idle(transfer_t *t, const region_t *r);
int  exchange_share(transfer_t *t, region_t *r, share_key_t key);
int  exchange_extend(transfer_t *t, share_key_t key, uint64_t offset, uint64_t bytes);
void exchange_unshare(transfer_t *t, share_key_t key);
uint32_t exchange_early(transfer_t *t, region_t *r, share_key_t key, uint64_t bytes, uint32_t most);
int  exchange_ask(transfer_t *t, const peer_ref_t *from, const tr_read_t *read, uint64_t *ret_ask);
void exchange_drop_ask(transfer_t *t, uint64_t ask);
/* True when events() has something to do now. */
bool exchange_pending(const transfer_t *t);

/* Upcalls of the carrier. */
void exchange_frame(transfer_t *t, const frame_t *f);                       /* all kinds but DATA */
/* DATA begins: where its bytes belong, or NULL: late, unasked or out of shape; discard it.  How they come
 * there is said next, by one of the two after this. */
void *exchange_place(transfer_t *t, const frame_t *f, size_t payload_bytes);
/* Who copies those bytes to their place says so, and digests them (digest_copy) into what this returns,
 * before exchange_arrived.  NULL: nobody wants their leaves, or they begin within a page. */
uint64_t *exchange_leaves(transfer_t *t, uint64_t ask);
/* Or the transport places them, when it likes, perhaps after the ask was dropped.  False: not into that sink
 * (sink_t.only_copied); it is to discard them, and the ask has ended. */
bool exchange_placing(transfer_t *t, uint64_t ask);
/* The bytes of an exchange_place that was not NULL are there, or will never come (ok false). */
void exchange_arrived(transfer_t *t, uint64_t ask, bool ok);
/* Or: they lie where they cannot be read.  The same peer is asked again, and nobody is told. */
void exchange_again(transfer_t *t, uint64_t ask);
/* DATA: the region is not read any more.  Then, or at once: the send has ended. */
void exchange_copied(transfer_t *t, send_t *s);
void exchange_sent(transfer_t *t, send_t *s, sent_t how);
void exchange_broken(transfer_t *t, peer_t *p);                             /* the link failed */
void exchange_closed(transfer_t *t, peer_t *p);                      /* a disconnected link is no more */

/* Between the files of the exchange. */
bool ring_reserve(transfer_t *t);                       /* room for one event that must come */
void ring_release(transfer_t *t);                       /* it will not come after all */
void ring_push(transfer_t *t, const tr_event_t *event); /* uses up one reservation */
void ring_offer(transfer_t *t, const tr_event_t *event);/* dropped when there is no room */
void exchange_schedule(transfer_t *t, uint64_t at_us);  /* the timers run at `at_us` or before */
void peer_touch(transfer_t *t, peer_t *p);              /* has something to send */
send_t *peer_send_begin(peer_t *p);                     /* NULL: all are in flight; the same for DATA: */
send_t *peer_data_begin(peer_t *p);
void peer_send_end(send_t *s);                          /* it was not used, or has ended */
bool peer_send(transfer_t *t, send_t *s, const frame_t *f);   /* false: not now, and `s` has ended */
bool peer_hi(transfer_t *t, peer_t *p);                 /* HI, while it is due; true when it was sent */
void peers_unblock(transfer_t *t);                      /* the carrier has moved */
int  peer_find(transfer_t *t, const peer_ref_t *ref, peer_t **ret_peer);   /* connects; GONE, AGAIN */
peer_t *peer_of_line(transfer_t *t, uint64_t line);
void peer_end(transfer_t *t, peer_t *p);                /* says BYE, unless hushed: safe in upcalls then */
void peer_cut(transfer_t *t, peer_t *p);                /* the same, not lingering if the carrier can */
void peers_hi(transfer_t *t, const frame_t *f);
bool peer_connect_back(transfer_t *t, peer_t *p);
void peers_reap(transfer_t *t);
void peers_timers(transfer_t *t);
void serve_frame(transfer_t *t, peer_t *p, const frame_t *f);              /* ASK, UNASK */
bool serve_refusals(transfer_t *t, peer_t *p);          /* true when it sent one frame; the next ones too */
bool serve_data(transfer_t *t, peer_t *p);
void serve_sent(transfer_t *t, share_t *s);             /* one DATA of it is no longer in flight */
void serve_end_peer(transfer_t *t, peer_t *p);
void serve_timers(transfer_t *t);
void serve_fini(transfer_t *t);
void receive_refused(transfer_t *t, peer_t *p, const frame_t *f);
bool receive_unasks(transfer_t *t, peer_t *p);
bool receive_asks(transfer_t *t, peer_t *p);
void receive_end_peer(transfer_t *t, peer_t *p);

#endif
