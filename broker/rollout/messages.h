/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/messages.h (PURE): what the rollouts send to members.
 *
 *   to workers      ANNOUNCE    the version to fetch next, with the sources of the worker's plan
 *                   SOURCES     other sources for the same fetch
 *                   COMMIT      the version to switch to
 *                   ABORT       a version ended without a decision; the active version is lost
 *                   RETIRE      a version is dropped: everywhere, or at this worker alone
 *                   VERIFY      another worker got bad bytes: those that serve them are to look
 *   to publishers   RELEASE     others have the bytes: the region may be used again
 *                   ROLLOUT     how far a version is
 *
 * A worker is sent what follows from the adapter's active version, the version that is being rolled out, and
 * the state of the worker's copies; next.h says which of the two versions goes first.  Each message is added
 * to the outbox and noted at its track or copy.  So what was sent once is not sent again, and each event
 * wakes the workers that it may concern.  No state of its own; one thread, nothing blocks. */
#ifndef BROKER_MESSAGES_H
#define BROKER_MESSAGES_H

#include "broker/plan/sources.h"
#include "broker/rollout/step.h"

/* ---- workers ---- */

/* The sources of a version for a process that is no member, in the order to be tried.  Nothing is remembered
 * of it.  Returns how many: 0, none has the bytes. */
uint32_t messages_sources(const membership_t *members, track_t *t, const plan_asker_t *asker,
                          msg_source_t ret_sources[PLAN_SOURCES]);

void messages_send_sources(step_t *s, track_t *t, copy_row_t *c, const member_t *member);
void messages_send_abort(step_t *s, const char *adapter, const version_row_t *row, const member_t *member);
void messages_send_retire(step_t *s, const char *adapter, uint64_t version, const member_t *member);

/* PING: a send to a connection that is gone says so. */
void messages_ping(step_t *s, const member_t *member);
/* Each worker that holds the version is to compare its bytes again, once a lease at most: VERIFIED says what
 * it found, under no question's number. */
void messages_verify(step_t *s, track_t *t);
/* The rollout of the version has begun (track_begin): ANNOUNCE to each worker with a copy of it. */
void messages_announce(step_t *s, track_t *t);
/* Sends ANNOUNCE where the worker waits for one, or has no copy of the version, and there is a source. */
void messages_announce_to(step_t *s, track_t *t, const member_t *member);
/* Sends the worker what it lacks of one adapter: ANNOUNCE of the active or the newest version, or the COMMIT
 * of a version that it has staged. */
void messages_wake_worker(step_t *s, const adapter_rollout_t *a, member_t *member);
/* A decision names the version, which is the active one for this worker: the same, and COMMIT to one that may
 * be fetching it. */
void messages_decided(step_t *s, track_t *active, member_t *member);
/* messages_wake_worker for all workers of the adapter, and for all adapters of the worker. */
void messages_wake_adapter(step_t *s, const adapter_rollout_t *a);
/* messages_wake_worker for each worker that waited for another one of its host, and need not any more. */
void messages_wake_waiting(step_t *s, track_t *t);
/* SOURCES to those whose list names a member that serves the version no more, `but` to one that is sent its
 * list later in this step (NULL: to all). */
void messages_mend_lists(step_t *s, track_t *t, const member_t *but);
/* Both, for all of them: what this step has left in the version's plan. */
void messages_settle(step_t *s, track_t *t);
void messages_wake(step_t *s, member_t *member);
/* copy_add; without memory the outbox fails, and with it the step. */
copy_row_t *messages_need_copy(step_t *s, track_t *t, const member_t *member);

/* ---- publishers ---- */

#define ROLLOUT_PUSH_US 20000ull /* ROLLOUT messages that only count on are so far apart, at least */
/* Last in a turn: RELEASE and ROLLOUT to publishers that have something new (at most one of each a
 * version). */
void messages_flush(step_t *s);
/* Where a version is, to the session that publishes it again, or to a connection that asked.  A version that
 * is not known is lost. */
typedef struct {
    uint64_t peer;
    uint64_t token, req; /* of the session; of the question */
} rollout_to_t;
void messages_send_rollout(step_t *s, const char *adapter, uint64_t version, const rollout_to_t *to);

#endif
