/* SPDX-License-Identifier: Apache-2.0 */
/* memory/offer.h: what a process offers to others of its host: the socket at which the regions of its pool
 * are listed and handed over, and a round of verification for each content that may be held from here.
 *
 *   content    | offer_add              | offer_turn                   | offer_remove
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
 * does. A process that holds the content of another one passes its doubt on to those that hold it from there.
 *
 * A content is one of the pool's, sealed; or one that this process holds itself and hands on. It hands on
 * a content only after it, or the process that it came from, has verified it: then it is added as verified.
 *
 * Publishers and workers have one (client/sharing.h).
 *
 * The pool's work in the background is its owner's (client/regions.h): here its regions are listed and found.
 *
 * Threads: one, a loop's. Nothing blocks. The caller owns it. */
#ifndef MEMORY_OFFER_H
#define MEMORY_OFFER_H

#include "memory/handover.h"
#include "memory/pool.h"

typedef struct offer offer_t;
typedef struct {
    const char *directory, *name; /* as in handover_listen */
    pool_t *pool;                 /* borrowed */
} offer_opts_t;

/* NO_MEMORY, and the errors of handover_listen. */
int offer_new(const offer_opts_t *opts, offer_t **ret_offer, heddle_error_t *error);
/* What others hold stays theirs. Accepts NULL. */
void offer_destroy(offer_t **o);

bool offer_is_there(const offer_t *o); /* as handover_is_there */
/* Readable when there is something to do. */
int offer_fd(const offer_t *o);
/* Does it, and offers the regions that the pool has made. Returns offer_deadline. */
uint64_t offer_turn(offer_t *o, uint64_t now_us);
/* When a turn is due at the latest: 0 where the pool has made regions since the last one. */
uint64_t offer_deadline(const offer_t *o);

/* `hold`: NULL for a content of the pool; else it stays the caller's, which removes the content before it
 * ends the hold. Their number is the caller's to bound. Again: nothing changes. NO_MEMORY. */
typedef struct {
    content_id_t id;
    uint64_t bytes;
    hold_t *hold;
    bool is_verified;
    uint64_t verified_us; /* since when */
} offer_content_t;
int offer_add(offer_t *o, const offer_content_t *content, heddle_error_t *error);
/* What others hold of it stays theirs. No round answers them any more, so that each of those that wait, or
 * come later, is asked to verify it. */
void offer_remove(offer_t *o, const content_id_t *id);
/* Another process that offers it doubts it: each process verifies it for itself from now on. */
void offer_doubt(offer_t *o, const content_id_t *id);

#endif
