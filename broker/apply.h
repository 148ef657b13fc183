/* SPDX-License-Identifier: Apache-2.0 */
/* broker/apply.h: what follows from a record that the store has confirmed, kind by kind, and nowhere else:
 *
 *   EPOCH             tokens and events of the new epoch
 *   VERSION           its track, ANNOUNCE             (rollout_apply)
 *   DECISION, STATE   COMMIT, ABORT, RETIRE           (rollout_apply)
 *   FLOOR             its adapter is decided anew     (rollout_apply)
 *   WRITER            the session of the writer begins, WELCOME; or the event that it is closed
 *   KEY               an event; of a revoked key all sessions and connections end
 *   ADAPTER, FORGET, KEY_DROP   nothing beyond the tables
 *
 * Messages that follow are added to the broker's outbox, behind the replies of the transaction. */
#ifndef BROKER_APPLY_H
#define BROKER_APPLY_H

#include "broker/outbox.h"

typedef struct broker broker_t;

/* Takes the records of the outbox into memory, with all that follows.  What fails here ends the process:
 * memory would be behind the store. */
int broker_apply(broker_t *b, instant_t now, heddle_error_t *error);
/* One record into the tables alone, as at a start.  NO_MEMORY, INTERNAL. */
int broker_apply_row(broker_t *b, const record_t *record);

#endif
