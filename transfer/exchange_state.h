/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/exchange_state.h: all that an exchange holds: connections, the read requests of this process,
 * those of its peers, and the events for the loop.  Included by the exchange's own files and by tests only.
 *
 *            receiver (asks.h)                           source (shares.h)
 *   ask() -> gathered -ASK-> sent ---------> standing: held (key unknown) | waiting (for bytes) | ready
 *            arrived <---------------DATA--- ready          refusing <- deadline, unshare, limit
 *            refused <------------REFUSED--- refusing
 *            dropped -UNASK-> freed -------> freed
 *
 *   exchange.c   turns, timers, frames that come      conn.c     connections: how they begin, send and end
 *   asks.c       the receiver's side                  shares.c   the source's side
 *   ring.c       events until the loop takes them
 *
 * Loop thread only; the transfer owns it.  After open nothing on the path of a range takes memory. */
#ifndef TRANSFER_EXCHANGE_STATE_H
#define TRANSFER_EXCHANGE_STATE_H

#include "transfer/asks.h"
#include "transfer/exchange.h"
#include "transfer/pace.h"
#include "transfer/ring.h"
#include "transfer/shares.h"

#define EXCHANGE_TURN_SENDS 128u   /* frames that one events() may send */
#define EXCHANGE_WORD_BEATS 4u     /* in the time of so many a live peer has said a word */
#define EXCHANGE_TURN_PROGRESS 64u /* carrier turns in one events() */
_Static_assert(RING_MAX > EXCHANGE_ASKS_MAX + EXCHANGE_PEERS_MAX, "too few");

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

    ring_t ring;
} exchange_t;

/* One timer for all: each cause asks for its time, and a run of the timers looks at every cause. */
static inline void exchange_schedule(transfer_t *t, uint64_t at_us)
{
    if (at_us < t->x->next_timer_us) t->x->next_timer_us = at_us;
}

#endif
