/* SPDX-License-Identifier: Apache-2.0 */
/* memory/provider.h: what a process provides to others of its host: the socket at which the regions of its
 * pool are offered and handed over, and a round of verification for each content that may be held from here.
 *
 *   content    | provider_add              | provider_turn                   | provider_remove
 *   -----------+---------------------------+---------------------------------+----------------
 *   (none)     | -> verifying, or verified | –                               | –
 *   verifying  | –                         | -> verified, doubted            | -> (none)
 *              |                           |    (memory/rounds.h)            |
 *   verified   | –                         | handed over, and called good;   | -> (none)
 *              |                           | -> doubted                      |
 *   doubted    | –                         | handed over, and called nothing;| -> (none)
 *              |                           | -> spoiled                      |
 *   spoiled    | –                         | no longer handed over           | -> (none)
 *
 * The log has `memory.doubted` when a process finds the content bad, and `memory.spoiled` when a second one
 * does. A provider that holds the content of another one hears of its doubt as of a request to verify.
 *
 * A content is one of the pool's, sealed; or one that this process holds itself and hands on. It hands on
 * a content only after it, or the process that it came from, has verified it: then it is added as verified.
 *
 * Publishers and workers have one (client/sharing.h).
 *
 * The pool's work in the background is its owner's (client/regions.h): here its regions are listed and found.
 *
 * Threads: one, a loop's. Nothing blocks. The caller owns it. */
#ifndef MEMORY_PROVIDER_H
#define MEMORY_PROVIDER_H

#include "memory/handover.h"
#include "memory/pool.h"

typedef struct provider provider_t;
typedef struct {
    const char *directory, *name; /* as in handover_listen */
    pool_t *pool;                 /* borrowed */
} provider_opts_t;

/* NO_MEMORY, and the errors of handover_listen. */
int provider_new(const provider_opts_t *opts, provider_t **ret_provider, heddle_error_t *error);
/* What others hold stays theirs. Accepts NULL. */
void provider_destroy(provider_t **p);

bool provider_is_there(const provider_t *p); /* as handover_is_there */
/* Readable when there is something to do. */
int provider_fd(const provider_t *p);
/* Does it, and offers the regions that the pool has made. Returns provider_deadline. */
uint64_t provider_turn(provider_t *p, uint64_t now_us);
/* When a turn is due at the latest: 0 where the pool has made regions since the last one. */
uint64_t provider_deadline(const provider_t *p);

/* `hold`: NULL for a content of the pool; else it stays the caller's, which removes the content before it
 * ends the hold. Their number is the caller's to bound. Again: nothing changes. NO_MEMORY. */
typedef struct {
    content_id_t id;
    uint64_t bytes;
    hold_t *hold;
    bool is_verified;
    uint64_t verified_us; /* since when */
} provider_content_t;
int provider_add(provider_t *p, const provider_content_t *content, heddle_error_t *error);
/* What others hold of it stays theirs. No round answers them any more, so that each of those that wait, or
 * come later, is asked to verify it. */
void provider_remove(provider_t *p, const content_id_t *id);
/* Another provider doubts it: each process verifies it for itself from now on. */
void provider_doubt(provider_t *p, const content_id_t *id);

#endif
