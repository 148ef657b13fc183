/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/messages.h (PURE): the messages of a rollout, to workers and to publishers.  Each function
 * adds one to the outbox, and notes at track or copy that it was sent.  Lists of sources are read from the
 * track's plan, never made here.  One thread, nothing blocks. */
#ifndef BROKER_MESSAGES_H
#define BROKER_MESSAGES_H

#include "broker/events.h"
#include "broker/rollout/rollout.h"

/* ANNOUNCE with the sources of the member's plan.  Without one the copy waits. */
void send_announce(step_t *s, track_t *t, copy_row_t *c, const member_t *member);
/* SOURCES of the member's plan; false: there is none, ANNOUNCE is owed. */
bool send_sources(step_t *s, const track_t *t, copy_row_t *c, const member_t *member);
/* COMMIT of the version that is active for this member. */
void send_commit(step_t *s, const adapter_rollout_t *a, const member_t *member);
void send_abort(step_t *s, const char *adapter, const version_row_t *row, const member_t *member);
void send_retire(step_t *s, const char *adapter, uint64_t version, const member_t *member);
void send_release(step_t *s, track_t *t, const member_t *publisher);
void send_rollout(const rollout_t *ro, const adapter_row_t *a, const version_row_t *row,
                  const member_t *publisher, outbox_t *out);

#endif
