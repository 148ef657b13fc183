/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/fetches.h (PURE): the fetches of a version that other workers wait for.
 *
 * Of the workers of one place one fetches a version, and the others wait for it (broker/plan/plan.h).  This
 * file finds that they wait in vain, or too long:
 *   - its connection is gone: a message finds that, and one is sent now and then;
 *   - it stands still, and no source of its list does;
 *   - it is too slow, and another worker of the place would have the bytes sooner.
 * Then another one of the place fetches, too, and those whose lists change get other SOURCES.
 *
 * The state is the plan's, and the times of the track.  Nothing blocks; one thread. */
#ifndef BROKER_FETCHES_H
#define BROKER_FETCHES_H

#include "broker/rollout/step.h"

/* One look at the fetches of a version that has not ended.  Notes when the next one is due. */
void fetches_look(step_t *s, track_t *t);
/* A worker that fetched from the member could not go on: a message to it finds whether it is there. */
void fetches_missed(step_t *s, track_t *t, uint64_t token);
/* A message found that the member's connection is gone: those that wait for it wait no longer, from the next
 * turn on, and where another worker missed it none is to fetch from it. */
void fetches_unreached(rollout_t *ro, const member_t *member);

#endif
