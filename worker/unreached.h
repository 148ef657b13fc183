/* SPDX-License-Identifier: Apache-2.0 */
/* worker/unreached.h: a version of which no byte arrived, while every source that is known is lost.
 *
 *   quiet -> (every source lost) told, once for each that is new -> (shortly before the deadline) given up
 *         <- (a beat or a byte of a listed source)
 *
 * Told: in this worker's log, and in its heartbeats for as long as it lasts (node_say.c).
 * Until then another source may come, or the network: one worker's trouble ends nobody's rollout early, and
 * a version without a deadline is never given up.  Once a byte arrived it is no matter of this.  Loop
 * thread only. */
#ifndef WORKER_UNREACHED_H
#define WORKER_UNREACHED_H

#include "core/repeat.h"
#include "worker/pull.h"

/* Given up so long before the version's deadline: the answer that names the sources is there in time. */
#define UNREACHED_BEFORE_US 1000000u
/* Sources told of between two signs of life; more of them change nothing. */
#define UNREACHED_TOLD_MAX (4 * LIMIT_SOURCES)

typedef struct {
    uint64_t told[UNREACHED_TOLD_MAX];    /* sources by token, listed or not any more */
    uint32_t told_count;             /* 0: quiet */
    repeat_t reported;               /* in the log; of earlier fetches too */
    int refused;                     /* what the last one answered that refused; OK: none answered */
    heddle_error_t error;            /* UNAVAILABLE, of phase fetch */
} unreached_t;

/* A fetch begins. */
void unreached_begin(unreached_t *u);
/* What came from the transfer while `pull` went on. */
void unreached_hear(unreached_t *u, const pull_t *pull, const tr_event_t *event);
/* Why no byte of it came yet, as long as that is known; NULL. */
const heddle_error_t *unreached_error(const unreached_t *u, const pull_t *pull);
/* Every source that is known was lost: `lost`, by token.  True when the version is to be given up, for
 * u->error: it is told, and its deadline is near.  `deadline_us`: the version's; CLOCK_NEVER: none. */
bool unreached_look(unreached_t *u, const node_io_t *io, const pull_t *pull, const uint64_t *lost,
                    uint32_t count,
                    uint64_t deadline_us, uint64_t now_us);

#endif
