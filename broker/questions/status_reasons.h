/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/status_reasons.h (PURE): what is not as it should be now, for a check that runs by itself.
 *
 * A reason is a state that an operator should look at, and it goes when the state ends.  What was refused
 * (`warnings`) is none, where the broker has workers: a mistyped command elsewhere does not make a cluster
 * unhealthy.  One thread; nothing blocks. */
#ifndef BROKER_STATUS_REASONS_H
#define BROKER_STATUS_REASONS_H

#include "broker/questions/cell.h"

#define STATUS_REASONS_MAX 64u /* that are listed; the last row counts the others */
/* A worker may serve none of the versions that are active for so long (serving_t.behind_ms): the default
 * --deadline of a rollout. */
#define STATUS_REASON_LATE_US 60000000u
/* So long a worker that is to leave may wait until other processes hold what it has. */
#define STATUS_REASON_DRAIN_US 180000000u
#define STATUS_REFUSED_AGAIN 3u /* an unknown key that was refused so often comes by itself */

/* clang-format off */
#define STATUS_REASONS(X)                                                                       \
    X(READ_ONLY, "broker.read_only") X(STORE_UNANSWERED, "store.unanswered")                    \
    X(SETTLING, "broker.settling")                                                              \
    X(RESTORED, "broker.restored") X(OTHER_CLUSTER, "broker.other_cluster")                     \
    X(KEYS_REFUSED, "keys.refused") X(VERSION_LOST, "version.lost")                             \
    X(VERSION_FAILED, "version.failed") X(ADAPTER_HELD, "adapter.held")                         \
    X(WORKER_LOST, "worker.lost") X(WORKER_DAMAGED, "worker.damaged")                           \
    X(WORKER_BEHIND, "worker.behind") X(WORKER_DRAINING, "worker.draining")
/* clang-format on */
typedef enum {
#define X(NAME, name) REASON_##NAME,
    STATUS_REASONS(X)
#undef X
        REASON_MORE, /* those that are not listed */
    REASON_COUNT
} status_reason_t;
const char *status_reason_name(status_reason_t reason); /* "broker.read_only"; "more" */

/* How many there are of each, listed or not. */
void status_reasons_count(const answer_view_t *b, uint64_t ret_counts[REASON_COUNT]);
/* [{"name", "adapter", "worker", "since_at", "message"}]: those of the broker, of adapters by name, of
 * workers by name. */
json_t *status_reasons_json(const answer_view_t *b);

#endif
