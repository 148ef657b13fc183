/* SPDX-License-Identifier: Apache-2.0 */
/* worker/unreached.h: source failure: no byte of a version arrived, and every known source is lost.
 *
 *   quiet -> (every source lost) reported, for each new one -> (shortly before the deadline) given up
 *         <- (a keepalive or a byte of a listed source)
 *
 * It is reported in this worker's heartbeats for as long as it lasts, and once in its log, when a source is
 * still lost after the broker was asked for others.  All that were asked are named, also those that a later
 * list has not.  Until it is given up another source may come, or the network may recover: one worker's
 * trouble must not end a rollout early, and a version without a deadline is never given up.  After the first
 * byte the fetch's own deadlines rule.
 *
 * Loop thread only; an intake (worker/intake.h) owns it. */
#ifndef WORKER_UNREACHED_H
#define WORKER_UNREACHED_H

#include "client/node.h"
#include "core/repeat.h"
#include "worker/announced.h"

/* Given up so long before the version's deadline that the NACK, which names the sources, arrives in time. */
#define UNREACHED_BEFORE_US 1000000u
/* Sources that are reported between two signs of life; more of them change nothing. */
#define UNREACHED_REPORTED_MAX (4 * LIMIT_SOURCES)

typedef struct {
    const node_io_t *io;
    const announced_t *what;                      /* the version that is fetched */
    uint64_t reported_to[UNREACHED_REPORTED_MAX]; /* sources by token, listed or not any more */
    uint32_t reported_count;                      /* 0: quiet */
    bool is_unwritten;                            /* the log has `error` at the next look */
    repeat_t reported;                            /* in the log; of earlier fetches too */
    int refused;          /* what the last one answered that refused; OK: none answered */
    heddle_error_t error; /* UNAVAILABLE, of phase fetch */
} unreached_t;

/* A fetch begins, or a listed source gave a sign of life.  Both are borrowed until the next one begins. */
void unreached_begin(unreached_t *u, const node_io_t *io, const announced_t *what);
/* Every source that is known was lost, and no byte came yet: `lost`, by token. */
void unreached_look(unreached_t *u, const uint64_t *lost, uint32_t count, uint64_t now_us);
/* When the version is to be given up, unless a source gives a sign of life before.  `deadline_us`: the
 * version's; CLOCK_NEVER: none. */
uint64_t unreached_end_us(const unreached_t *u, uint64_t deadline_us);
/* Why it is given up: with the sources that were asked since the last look. */
const heddle_error_t *unreached_error(unreached_t *u);

#endif
