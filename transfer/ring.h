/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/ring.h (PURE): the events of a transfer, in their order, until the loop takes them.
 *
 * The end of a read request and the end of a connection must not be lost: room for them is reserved when the
 * request or the connection begins.  Hints have no reserved room.  One that is lost is repeated, or is not
 * needed.
 *
 * The exchange owns it.  One thread. */
#ifndef TRANSFER_RING_H
#define TRANSFER_RING_H

#include "transfer/transfer.h"

#define RING_MAX 9600u /* events; one for each request and connection is reserved */

typedef struct {
    tr_event_t events[RING_MAX];
    uint32_t head, count, reserved, gone_undrained;
} ring_t;

/* Room for one event that must not be lost; false: there is none. */
bool ring_reserve(ring_t *r);
void ring_release(ring_t *r);
/* Uses up the room that its cause has reserved. */
void ring_push(ring_t *r, const tr_event_t *event);
/* For hints and keepalives: dropped where there is no room. */
void ring_offer(ring_t *r, const tr_event_t *event);
/* TR_PEER_GONE of this peer was not taken yet. */
bool ring_has_gone(const ring_t *r, uint64_t token);
/* The oldest ones, at most `cap`; returns how many.  TR_PEER_GONE is only ever the first of
 * them. */
int ring_take(ring_t *r, tr_event_t *out, int cap);

#endif
