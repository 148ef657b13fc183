/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/exchange_state.h: both ends of every connection, whatever carries it (transfer/carrier.h): the
 * read requests that this process sends as a receiver, and those that it answers as a source.  Included by
 * exchange.c and by tests only.
 *
 *            receiver                                    source
 *   ask() -> gathered -ASK-> sent ---------> standing: held (key unknown) | waiting (for bytes) | ready
 *            arrived <---------------DATA--- ready          refusing <- deadline, unshare, limit
 *            refused <------------REFUSED--- refusing
 *            dropped -UNASK-> freed -------> freed
 *
 * gathered: batched for the next frame; standing: pending at the source; held: until its key is known.
 * A key is known from exchange_expect on: waiting may also mean that the memory is made.
 *
 * Loop thread only; the transfer owns it.  After open nothing on the path of a range takes memory. */
#ifndef TRANSFER_EXCHANGE_STATE_H
#define TRANSFER_EXCHANGE_STATE_H

#include "transfer/exchange.h"
#include "transfer/extents.h"
#include "transfer/pace.h"

#define HASH_NONFATAL_OOM 1 /* a library must not exit when memory runs out */
#include <uthash.h>

#define EXCHANGE_PEERS_MAX 1024u /* two descriptors each: a process with so many raises its limit */
#define EXCHANGE_SHARES_MAX (LIMIT_HELD + LIMIT_ADAPTERS_PER_WORKER) /* all that is held, and what comes */
#define EXCHANGE_EXPECTED_MAX (4u * LIMIT_ADAPTERS_PER_WORKER) /* versions that are announced and wait */
#define EXCHANGE_STANDING_MAX 16384u /* asks that all peers together may have standing here */
#define EXCHANGE_RING_MAX 9600u      /* events; one for each request and connection is reserved */
_Static_assert(EXCHANGE_RING_MAX > EXCHANGE_ASKS_MAX + EXCHANGE_PEERS_MAX, "too few");
#define EXCHANGE_FORGOTTEN_MAX 64u /* keys refused at once: they were unshared here */
#define EXCHANGE_CONTROL_SENDS 8u  /* other frames */
#define EXCHANGE_TURN_SENDS 128u   /* frames that one events() may send */
#define EXCHANGE_TURN_PROGRESS 64u /* carrier turns in one events() */

typedef struct conn conn_t;
typedef struct share share_t;

/* Source side: one requested range that is not answered yet.  In one queue besides its connection's list. */
typedef enum { STANDING_HELD, STANDING_WAITING, STANDING_READY, STANDING_REFUSING } standing_state_t;
typedef struct standing {
    standing_state_t state;
    int err; /* REFUSING */
    uint32_t bytes;
    uint64_t id, offset, since_us;
    share_key_t key;
    conn_t *conn;
    share_t *share;               /* NULL while HELD */
    struct standing *prev, *next; /* held: exchange's; waiting: share's; else conn's */
    struct standing *conn_prev, *conn_next;
} standing_t;

struct share {
    share_key_t key;
    region_t *region;  /* NULL: expected */
    extents_t extents; /* readable; none while it is expected */
    uint64_t moved_us; /* the last extend, or expect */
    standing_t *waiting;
    UT_hash_handle hh;
};

/* Receiver side. */
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

/* States of a connection.  Up to BROKEN it is live: found by token and line, and asked and served over.
 *
 *   ACCEPTED --connected back--> GREETING --HI sent--> OPEN
 *       |                           |                    |     (a failing link: BROKEN, which ends next turn)
 *       +------- conn_end ----------+--------------------+--> LEAVING (BYE due) --> LINGERING --> CUTTING
 *                                                             CUTTING --> DISCONNECTING --> CLOSED, freed */
typedef enum {
    CONN_ACCEPTED, /* HI came, not connected back yet */
    CONN_GREETING, /* HI is to be sent before all else */
    CONN_OPEN,
    CONN_BROKEN, /* the link failed, perhaps within a send */
    CONN_LEAVING,
    CONN_LINGERING,     /* until what is in flight is sent, or cut_us */
    CONN_CUTTING,       /* the link is cut, whatever is in flight */
    CONN_DISCONNECTING, /* until the carrier says that it is closed */
    CONN_CLOSED         /* freed when nothing is in flight */
} conn_state_t;
/* How a connection is ended: with BYE; without one, because the peer ended it or is gone; or also cut at
 * once, where the carrier can. */
typedef enum { END_BYE, END_SILENT, END_CUT } conn_end_t;

struct conn {
    endpoint_t end; /* first: the part that carriers see */
    conn_state_t state;
    bool blocked;    /* the carrier takes nothing for it now */
    bool retiring;   /* made under an older token of ours: ends when it is quiet */
    bool dirty;      /* on the list of connections with something to send */
    uint64_t answer; /* the remote line that our HI answers */
    uint64_t sent_us, heard_us, moved_us, quiet_us, cut_us;
    uint32_t asks_open, gathered_count, standing_count, in_flight;
    uint32_t draining_count; /* dropped asks whose receives are open */
    uint64_t drained_us;     /* when the last of these ended, or the first began */
    ask_t *gathered, *dropped;
    standing_t *standing, *ready, *refusing;
    send_t *free_data, *free_control;
    struct conn *dirty_prev, *dirty_next, *prev, *next;
    UT_hash_handle by_token, by_line;
    uint32_t address_bytes;
    uint8_t address[LIMIT_ADDRESS_BYTES];
    uint8_t hi_frame[FRAME_MAX];
    send_t hi, data[EXCHANGE_DATA_SENDS], control[EXCHANGE_CONTROL_SENDS];
};
static inline conn_t *conn_of(endpoint_t *e) { return (conn_t *)e; }
static inline bool conn_is_live(const conn_t *c) { return c->state <= CONN_BROKEN; }

typedef struct exchange {
    uint64_t token, next_line;
    uint64_t serve_us, beat_us, next_timer_us;
    uint32_t turn_sends;
    bool reap_due;            /* a connection ended and is not disconnected yet */
    pace_t pace_in, pace_out; /* of the bytes that are asked for, and of those that are sent */
    uint64_t paced_us; /* all that is left to send waits for the pace until then; 0: something does not */

    conn_t *conns, *closing, *dirty;
    uint32_t conn_count, dirty_count, blocked_count;
    conn_t *by_token, *by_line; /* uthash heads */

    share_t *shares;                      /* uthash head */
    uint32_t share_count, expected_count; /* with a region, without one */
    share_key_t forgotten[EXCHANGE_FORGOTTEN_MAX];
    uint32_t forgotten_next, forgotten_count;
    standing_t standing[EXCHANGE_STANDING_MAX], *standing_free, *held;
    uint32_t standing_used;

    ask_t asks[EXCHANGE_ASKS_MAX], *asks_free;
    uint32_t asks_used;
    uint64_t ask_generation;

    tr_event_t ring[EXCHANGE_RING_MAX];
    uint32_t ring_head, ring_count, ring_reserved, gone_undrained;
} exchange_t;

#endif
