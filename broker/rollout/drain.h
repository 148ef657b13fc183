/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/drain.h (PURE): a worker that is to leave (MEMBER_DRAINING) gives up nothing that only it
 * has.
 *
 * Of the versions that it holds, those are *needed* that have not ended and are not beyond `keep` (keep.h).
 * A needed version is *only here* while no other worker that stays, and can be reached as far as is known,
 * holds its good bytes, nor does the publisher serve it.
 *
 *   at each heartbeat of the worker            -> what is done
 *   a version is only here, and one that stays
 *   is fetching it                             -> it is waited for
 *   the same, none is                          -> ANNOUNCE to one that stays and fetches nothing else
 *   no version is only here                    -> DRAIN_DONE: the worker leaves
 *   the broker settles                         -> nothing: what others hold is not known
 *
 * All of it follows from the copies as they are, so a death on either side needs no case of its own: the next
 * heartbeat finds another holder, or none.  One thread, nothing blocks. */
#ifndef BROKER_DRAIN_H
#define BROKER_DRAIN_H

#include "broker/rollout/step.h"

/* The worker was READY until now: what is rolled out waits for it no more. */
void drain_begin(step_t *s, const member_t *member);
/* A heartbeat of a worker that drains: others fetch what is only there.  Returns how far it is. */
drain_t drain_look(step_t *s, const member_t *member);
/* The needed versions that are only at this worker, by adapter in the worker's order and version; at most
 * `most` of them are written.  Returns how many there are. */
size_t drain_only_here(const rollout_t *ro, view_t v, const member_t *member, const track_t **ret_tracks,
                       size_t most);

#endif
