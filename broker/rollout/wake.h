/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/wake.h (PURE): what a worker lacks of an adapter is sent to it.
 *
 * A worker lacks the active version, the newest one, or the COMMIT of a version that it has staged.  Which of
 * them is sent first follows from its copies (track.h): the active version, except where the worker fetches
 * the newest already or a rollout waits for it.  To wake a worker twice sends nothing twice, so each event
 * that may have changed something wakes the workers that it concerns.  No state; one thread, nothing
 * blocks. */
#ifndef BROKER_WAKE_H
#define BROKER_WAKE_H

#include "broker/rollout/messages.h"

/* Sends the worker what it lacks of one adapter. */
void wake_member(step_t *s, const adapter_rollout_t *a, member_t *member);
/* The same for every subscriber that is READY. */
void wake_adapter(step_t *s, const adapter_rollout_t *a);
/* READY, and subscribed to the adapter. */
bool member_is_subscriber(const member_t *m, const adapter_rollout_t *a);
/* copy_add; without memory the outbox fails, and with it the step. */
copy_row_t *copy_need(step_t *s, track_t *t, const member_t *member);

#endif
