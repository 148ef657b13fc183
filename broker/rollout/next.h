/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/next.h (PURE): which version of an adapter a worker is sent next, and why.
 *
 * Two versions may be of use to it: the active one, and the newest, which is being rolled out.  It fetches
 * one at a time, so the order matters.  Rows are tried from the top:
 *
 *   first     what holds                                              what is sent
 *   AWAITED   the newest's rollout waits for this worker's copy       newest; the active one when the newest
 *                                                                     is here or not to be had
 *   AS_SOON   the worker serves nothing, and the newest comes to it   newest; the active one only where the
 *             about as soon as the active one would                   newest has no source
 *   ACTIVE    else: until it has the active version the worker        active; the newest when the active one
 *             serves an older one                                     is here, or cannot be had now
 *
 * A worker that holds the active version is sent COMMIT of it, whatever comes first.
 *
 * The caller (messages.h) sends what is said here and asks the next question with what became of that: a
 * version whose sources have ended is not sent.  No state; one thread, nothing blocks. */
#ifndef BROKER_NEXT_H
#define BROKER_NEXT_H

#include "broker/rollout/track.h"

typedef enum { NEXT_ACTIVE, NEXT_AWAITED, NEXT_AS_SOON } next_first_t;
typedef enum { NEXT_NOTHING, NEXT_ANNOUNCE, NEXT_COMMIT } next_send_t;

/* The version that is sent first.  newest, active: NULL: there is none. */
next_first_t next_first(const track_t *newest, const track_t *active, const member_t *member, uint64_t now_us,
                        uint64_t lease_us);
/* What is sent of the active version, after the newest where that comes first. */
next_send_t next_of_active(next_first_t first, const track_t *newest, const track_t *active,
                           const member_t *member);
/* After `sent` of the active version: the newest is announced now, as the active one is not on its way. */
bool next_newest_follows(next_first_t first, next_send_t sent, const track_t *active, const member_t *member);

#endif
