/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/costs.h (PURE): what versions cost on their way to workers, for /metrics: how long each
 * phase took, which way the bytes came, and how long after its joining a worker served.  Totals since the
 * broker's start.  One thread, nothing blocks. */
#ifndef BROKER_COSTS_H
#define BROKER_COSTS_H

#include "broker/rollout/copy.h"
#include "core/histogram.h"

/* As in `timing` of a copy (docs/json.md). */
/* clang-format off */
#define COST_PHASES(X)                                                                          \
    X(ANNOUNCE, announce) X(QUEUED, queued) X(WAITING, waiting) X(CONNECT, connect)             \
    X(FETCH, fetch) X(VERIFY, verify) X(STAGE, stage) X(ACTIVATE, activate)
/* clang-format on */
typedef enum {
#define X(NAME, name) COST_##NAME,
    COST_PHASES(X)
#undef X
        COST_PHASE_COUNT
} cost_phase_t;

/* Over the network, and from which process; HOST: they were in the memory of another process of the host, and
 * did not move. */
typedef enum { COST_FROM_PUBLISHER, COST_FROM_WORKER, COST_FROM_HOST, COST_WAY_COUNT } cost_way_t;

typedef struct {
    histogram_t phases[COST_PHASE_COUNT];
    uint64_t bytes[COST_WAY_COUNT];
    histogram_t joins; /* until the worker served an adapter for the first time */
} costs_t;

const char *cost_phase_name(cost_phase_t phase);
const char *cost_way_name(cost_way_t way); /* "publisher" "worker" "host" */

/* The worker has staged it: all phases but the last, and the bytes of all sources that STAGED has, of which
 * the copy lists the first ones alone. */
void costs_note_staged(costs_t *costs, const track_t *t, const copy_row_t *c, const msg_staged_t *m,
                       const member_t *member, uint64_t now_us);
/* It serves the version, by a decision. */
void costs_note_switched(costs_t *costs, const copy_row_t *c, const member_t *member, uint64_t now_us);
/* It serves a version of an adapter for the first time. */
void costs_note_joined(costs_t *costs, const member_t *member, uint64_t now_us);

#endif
