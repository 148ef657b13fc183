/* SPDX-License-Identifier: Apache-2.0 */
/* memory/source.h: this process as a source of its host: the socket at which the regions of its pool are
 * offered and handed over, and a round of verification for each content that may be held from here.
 *
 *   content    | source_add                | source_turn                     | source_remove
 *   -----------+---------------------------+---------------------------------+---------------
 *   (none)     | -> verifying, or verified | –                               | –
 *   verifying  | –                         | -> verified, spoiled            | -> (none)
 *              |                           |    (memory/rounds.h)            |
 *   verified   | –                         | handed over, and called good    | -> (none)
 *   spoiled    | –                         | no longer handed over           | -> (none)
 *
 * A content is one of the pool's, sealed; or one that this process holds itself and hands on. It hands on
 * only what it has verified, or was told to be verified: such a content is added as verified.
 *
 * A publisher offers its regions; no member holds any yet (client/sharing.h).
 *
 * Threads: one, a loop's. Nothing blocks, but for page faults in a region that is made. The caller owns it.
 */
#ifndef MEMORY_SOURCE_H
#define MEMORY_SOURCE_H

#include "memory/handover.h"
#include "memory/pool.h"

/* What is done in the background waits until nothing was added and no note came for so long: a step of it
 * would delay those that wait for a version. */
#define SOURCE_QUIET_US 5000ull

typedef struct source source_t;
typedef struct {
    const char *directory, *name; /* as in handover_listen */
    pool_t *pool;                 /* borrowed; pool_work is called by source_turn alone */
} source_opts_t;

/* NO_MEMORY, and the errors of handover_listen. */
int source_new(const source_opts_t *opts, source_t **ret_source, heddle_error_t *error);
/* What others hold stays theirs. Accepts NULL. */
void source_destroy(source_t **s);

/* Readable when there is something to do. */
int source_fd(const source_t *s);
/* Does it, and one step in the background. Returns when to call again at the latest. */
uint64_t source_turn(source_t *s, uint64_t now_us);

/* `hold`: NULL for a content of the pool; else it stays the caller's, which removes the content before it
 * ends the hold. Again: nothing changes. LIMIT: there are LIMIT_OFFERED. NO_MEMORY. */
typedef struct {
    content_id_t id;
    uint64_t bytes;
    hold_t *hold;
    bool is_verified;
} source_content_t;
int source_add(source_t *s, const source_content_t *content, uint64_t now_us, heddle_error_t *error);
void source_remove(source_t *s, const content_id_t *id);
/* Where the round of a content is; SPOILED also for one that was never added. */
round_state_t source_state(const source_t *s, const content_id_t *id);

#endif
