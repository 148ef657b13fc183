/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/conn.h: a connection with a peer, over whatever carries it (transfer/carrier.h): it sends frames,
 * begins with HI, and ends with BYE or a cut.  What the frames ask for is in asks.h (receiver) and shares.h
 * (source).
 *
 *   ACCEPTED --connected back--> GREETING --HI sent--> OPEN
 *       |                           |                    |     (a failing link: BROKEN, which ends next turn)
 *       +------- conn_end ----------+--------------------+--> LEAVING (BYE due) --> LINGERING --> CUTTING
 *                                                             CUTTING --> DISCONNECTING --> CLOSED, freed
 *
 * Up to BROKEN a connection is live: found by token and line, and asked and served over.  All its frames are
 * allocated with it.  Loop thread only; the exchange owns them (transfer/exchange_state.h). */
#ifndef TRANSFER_CONN_H
#define TRANSFER_CONN_H

#include "transfer/carrier.h"

#define HASH_NONFATAL_OOM 1 /* a library must not exit when memory runs out */
#include <uthash.h>

#define EXCHANGE_PEERS_MAX 1024u  /* two descriptors each: a process with so many raises its limit */
#define EXCHANGE_CONTROL_SENDS 8u /* frames of a connection other than DATA */

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

typedef struct conn {
    endpoint_t end; /* first: the part that carriers see */
    conn_state_t state;
    bool blocked;    /* the carrier takes nothing for it now */
    bool retiring;   /* made under an older token of ours: ends when it is quiet */
    bool dirty;      /* on the list of connections with something to send */
    uint64_t answer; /* the remote line that our HI answers */
    uint64_t sent_us, received_us, moved_us, quiet_us, cut_us;
    uint64_t owed_us; /* since when the peer has not said a word about what was requested of it; 0: it has */
    uint32_t asks_open, gathered_count, standing_count, in_flight;
    uint32_t draining_count; /* dropped asks whose receives are open */
    uint64_t drained_us;     /* when the last of these ended, or the first began */
    struct ask *gathered, *dropped;
    struct standing *standing, *ready, *refusing;
    send_t *free_data, *free_control;
    struct conn *dirty_prev, *dirty_next, *prev, *next;
    UT_hash_handle by_token, by_line;
    uint32_t address_bytes;
    uint8_t address[LIMIT_ADDRESS_BYTES];
    uint8_t hi_frame[FRAME_MAX];
    send_t hi, data[EXCHANGE_DATA_SENDS], control[EXCHANGE_CONTROL_SENDS];
} conn_t;
static inline conn_t *conn_of(endpoint_t *e) { return (conn_t *)e; }
static inline bool conn_is_live(const conn_t *c) { return c->state <= CONN_BROKEN; }

/* ---- frames that go out ---- */

/* Frames are due. */
bool conn_has_frames(const conn_t *c);
/* Marks it as having something to send; untouched, it is left alone until then. */
void conn_touch(transfer_t *t, conn_t *c);
void conn_untouch(transfer_t *t, conn_t *c);
/* A frame to fill in and send; NULL: all are in flight.  Of control frames, and of DATA. */
send_t *conn_send_begin(conn_t *c);
send_t *conn_data_begin(conn_t *c);
/* The frame was not used, or has ended. */
void conn_send_end(send_t *s);
/* False: the carrier takes nothing now, and the frame has ended. */
bool conn_send(transfer_t *t, send_t *s, const frame_t *f);
/* Each blocked connection is tried again. */
void conns_unblock(transfer_t *t);
/* A frame of the peer has come. */
void conn_received(const transfer_t *t, conn_t *c);

/* ---- how connections begin ---- */

/* NULL: there is none. */
conn_t *conn_of_token(transfer_t *t, uint64_t token);
conn_t *conn_of_line(transfer_t *t, uint64_t line);
/* The connection to a peer, found or begun.  AGAIN: not now, ask again later; GONE: it cannot be
 * reached, or its end was not seen yet. */
int conn_find(transfer_t *t, const peer_ref_t *ref, conn_t **ret_conn);
/* NULL: there are too many, or no memory. */
conn_t *conn_new(transfer_t *t, uint64_t token);
/* Frees one that never was in use. */
void conn_discard(transfer_t *t, conn_t *c);
/* From now on frames of this line belong to the connection.  False: the line is in use, or no memory. */
bool conn_bind_line(transfer_t *t, conn_t *c, uint64_t line);
/* Sends HI; false: not yet. */
bool conn_hi(transfer_t *t, conn_t *c);
/* ACCEPTED: a link to the peer, and HI; false: it cannot be reached. */
bool conn_connect_back(transfer_t *t, conn_t *c);

/* ---- how connections end ---- */

/* A link broke inside a send, where ending the connection would free what the caller uses. */
void conn_note_broken(transfer_t *t, conn_t *c);
/* The link is cut in the next turn, whatever is in flight. */
void conn_hurry(transfer_t *t, conn_t *c);
/* A live one ends: TR_PEER_GONE.  Its requests have ended before; `is_receiving`: a receive of one is still
 * open, so that the link must be cut before the memory can be used. */
void conn_end(transfer_t *t, conn_t *c, conn_end_t how, bool is_receiving);
/* Frees those that have ended. */
void conns_reap(transfer_t *t);

#endif
