/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/status_reasons.h (PURE): what is not as it should be now, for a check that runs by itself.
 *
 * A reason is a state that an operator should look at, and it goes when the state ends.  What was refused
 * (`warnings`) is none, where the broker has workers: a mistyped command elsewhere does not make a cluster
 * unhealthy.  One thread; nothing blocks. */
#ifndef BROKER_STATUS_REASONS_H
#define BROKER_STATUS_REASONS_H

#include "broker/questions/json_parts.h"

#define STATUS_REASONS_MAX 64u /* that are listed; the last row counts the others */
/* A worker may serve none of the versions that are active for so long (member_sub_t.behind_ms): the default
 * --deadline of a rollout. */
#define STATUS_REASON_LATE_US 60000000u
#define STATUS_REFUSED_AGAIN 3u /* an unknown key that was refused so often comes by itself */

/* [{"name", "adapter", "worker", "since_at", "message"}]: those of the broker, of adapters by name, of
 * workers by name. */
json_t *status_reasons_part(const answer_view_t *b);

#endif
