/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/keep.h (PURE): which of the decided versions stay, and where.
 *
 *   1. The active version stays.
 *   2. `keep` others stay, those that were decided latest.
 *   3. A version beyond that is *pinned* while a worker serves it, or loads it or switches to it.  Other
 *      workers give up their copies of it, but for those that are switching to it.
 *   4. A version beyond that is *extra* while a worker fetches it: it stays wherever there is room.
 *   5. All others are retired.
 *
 * A worker has a slot for what it serves, one for what arrives and `keep` more.  It needs room when it has
 * more versions than slots, or when its heartbeat reports that a version waits for a slot.  To make room at
 * one worker, one copy at a time goes, by rank:
 *
 *   - an extra version that other workers have too, the latest first, so that the fetch that began first
 *     comes to its end; a copy that is some worker's first source goes only after those of the next rank;
 *   - another kept version that other workers have too, the oldest first;
 *   - where only last copies are left, one of them is retired: first one that no worker fetches, the oldest
 *     first, then, of those that are fetched, the latest; never one that a worker loads or switches to.
 *
 * Readers hold slots too, also of versions that were retired long ago, which the broker cannot count.  So a
 * worker that waits for a slot lists the kept versions that no reader holds (`spare`), and one of these
 * goes. One thread, nothing blocks. */
#ifndef BROKER_KEEP_H
#define BROKER_KEEP_H

#include "broker/rollout/step.h"

#define RETIRE_AT_ONCE 16u /* of one adapter in one look; the next look takes the rest */

/* Notes which decided versions are fetched or loaded, and has copies put away where room is needed; before
 * keep_decide. */
void keep_look(step_t *s, const adapter_rollout_t *a);
/* Adds STATE retired for what the rules allow no longer, or for which there is no room. */
void keep_decide(const adapter_rollout_t *a, view_t v, outbox_t *out);
/* A time until which a worker may load the version or switch to it; ask again then.  A worker at which it
 * arrived has its bytes, though others cannot fetch them from there yet.  0: none does. */
uint64_t keep_loaded_until(view_t v, track_t *t);
/* One of those workers; "": none. */
const char *keep_loader(view_t v, track_t *t);

#endif
