/* SPDX-License-Identifier: Apache-2.0 */
/* worker/sync_broker.h (PURE): what the broker says, and what follows from it.  worker/sync.h has the
 * table. */
#ifndef WORKER_SYNC_BROKER_H
#define WORKER_SYNC_BROKER_H

#include "worker/sync_step.h"

/* `e`: the entry of the event's version; NULL for the first two: there is none yet. */
void heard_announce(step_t *st, sync_entry_t *e);
void heard_commit(step_t *st, sync_entry_t *e);
void heard_sources(step_t *st, sync_entry_t *e);
void heard_abort(step_t *st, sync_entry_t *e);
void heard_retire(step_t *st, sync_entry_t *e);
void heard_down(step_t *st);
/* What was restated and is not kept leaves; what happened since the restatement is said. */
void heard_up(step_t *st);

#endif
