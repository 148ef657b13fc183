/* SPDX-License-Identifier: Apache-2.0 */
/* worker/unreached.h: a version of which not a byte came, since none of its sources could be reached.
 *
 *   quiet -> (every source lost) said, once for each more -> (UNREACHED_US, or shortly before the deadline) given up
 *
 * What a source held back that was reached before is no matter of this: it may come back.  Loop thread only. */
#ifndef WORKER_UNREACHED_H
#define WORKER_UNREACHED_H

#include "worker/pull.h"

/* Longer than the default lease: a source that has ended is told by the broker first. */
#define UNREACHED_US 10000000u
/* Given up so long before the version's deadline: the answer that names the sources is there in time. */
#define UNREACHED_BEFORE_US 1000000u

typedef struct {
    uint64_t since_us;               /* 0: quiet */
    uint32_t count;                  /* sources that were told of */
    int refused;                     /* what the last one answered that refused; OK: none answered */
    heddle_error_t error;            /* UNAVAILABLE, of phase fetch */
} unreached_t;

/* A fetch begins. */
void unreached_begin(unreached_t *u);
/* What came from the transfer while `pull` went on. */
void unreached_hear(unreached_t *u, const pull_t *pull, const tr_event_t *event);
/* Every source that is known was lost: `lost`, by token.  True when the version is to be given up, for u->error.
 * `deadline_us`: the version's; CLOCK_NEVER. */
bool unreached_look(unreached_t *u, const node_io_t *io, const pull_t *pull, const uint64_t *lost, uint32_t count,
                    uint64_t deadline_us, uint64_t now_us);

#endif
