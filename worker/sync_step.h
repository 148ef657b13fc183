/* SPDX-License-Identifier: Apache-2.0 */
/* worker/sync_step.h (PURE): one step of sync in progress: the actions that it writes, and the changes that
 * more than one event makes.  worker/sync.h has the table. */
#ifndef WORKER_SYNC_STEP_H
#define WORKER_SYNC_STEP_H

#include "worker/sync_entries.h"

typedef struct { sync_t *s; const sync_event_t *ev; uint64_t now; sync_action_t *out; int count; } step_t;

/* --- actions ---------------------------------------------------------------------------------- */

sync_action_t *step_act(step_t *st, sync_action_kind_t kind, const sync_entry_t *e);
void step_offer(step_t *st, const sync_entry_t *e, int event, int err);
void step_say_staged(step_t *st, sync_entry_t *e);
void step_say_active(step_t *st, const sync_entry_t *e);
/* Tells broker and application that this worker cannot have the version, or (decision > 0) cannot switch to
 * it. */
void step_say_nack(step_t *st, const sync_entry_t *e, uint64_t decision, const heddle_error_t *error);
/* What failed while nothing could be sent, in the order in which it failed. */
void step_say_pending(step_t *st);

/* --- changes ---------------------------------------------------------------------------------- */

/* The version is not wanted here any more. */
void step_leave(step_t *st, sync_entry_t *e);
/* A failure before the commit.  A version that is named, or that nobody waits for, is tried again after a
 * pause. */
void step_fail(step_t *st, sync_entry_t *e, const heddle_error_t *error);
void step_flip(step_t *st, sync_entry_t *e);
/* Serves what is decided and ready: of several the greatest decision. */
void step_apply(step_t *st);
/* The waiting one that comes first: the named one that has a source, else the one announced last; NULL. */
sync_entry_t *step_head(step_t *st);
/* Starts the next fetch where there is one and a slot for it. */
void step_start(step_t *st);

#endif
