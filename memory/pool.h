/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pool.h: the regions that this process owns: written in turn, and offered to other processes of the
 * host.
 *
 *   a region  | event                                                  -> next
 *   ----------+----------------------------------------------------------------------------
 *   making    | pool_take of its taker: whole                          -> free, offered from then on
 *             | pool_give_up, pool_take of another size                -> given up
 *   given up  | pool_take that it fits                                 -> making
 *             | pool_work: whole                                       -> free
 *             | it does not fit what is in use, or is in the way       -> leaving
 *   free      | pool_take                                              -> written
 *             | far too large for what is in use, surplus for POOL_SURPLUS_US,
 *             | or in the way of another one                           -> leaving
 *   written   | memory_region_seal                                     -> wanted
 *             | pool_drop                                              -> free
 *   wanted    | pool_drop                                              -> free, or lingering if it is used
 *   lingering | the last hold ends, and is_unused                      -> free
 *   leaving   | pool_work                                              -> given back
 *
 * What is written, wanted or lingering is in use. Whether other processes use a region is asked of the kernel
 * each time: no message, count or timer decides it. So pool_take never waits for a reader, and a reader that
 * keeps an old version costs a region and no time. What this process itself may have under way in a region
 * is known to its owner alone (is_unused): such a region is neither written again nor given back.
 *
 * Several takers may ask by turns, as the adapters of a worker do: a region is made for each, and none waits
 * for another one's.
 *
 * What becomes free outside this process is no event here: while a region lingers, pool_work is due again
 * after POOL_RETRY_US. One that lingers may be free in a moment, as what was retired is let go while the next
 * version is written: so beyond the usual number (pool_usual) one is made ahead beside it when none was free
 * for POOL_LET_GO_US since the last pool_take.
 *
 * A region fits what has at least half of its bytes beyond MEMORY_STEP_BYTES: a small version does not occupy
 * the memory of a large one. A region in the way is one that is free and does not fit, at the limit or where
 * there is no memory for both: it is given back before another one is made.
 *
 * One free region is kept ahead of what is in use, which fits the largest of that: it is made in the
 * background, while a version is in use, and processes of the host map it before it is needed, that of the
 * second version too. A process whose only region was made elsewhere (pool_adopt) publishes once, and needs
 * none; where nothing is in use, none is kept, whatever its size. Before a first version that is expected
 * (pool_expect) there are two: nothing is made while it is written and held. The number of regions has a
 * limit: beyond it pool_take fails at once, and names the processes that hold the others.
 *
 * Threads: one, the owner's. Nothing blocks, but for page faults; a step takes a millisecond or less. The
 * caller owns it. In a forked child its calls do nothing. */
#ifndef MEMORY_POOL_H
#define MEMORY_POOL_H

#include "core/limits.h"
#include "memory/region.h"

#define POOL_SURPLUS_US 60000000ull
/* A region ahead where there was no memory; a look at what lingers; a guard that has to wait for a receive.
 * For what is being written a guard waits so long at most. */
#define POOL_RETRY_US 1000000ull
#define POOL_LET_GO_US 200000ull
#define POOL_ASK_BYTES ((size_t)16 << 20)
#define POOL_ROUND_BYTES ((size_t)64 << 10)

typedef struct pool pool_t;
typedef struct {
    /* Regions at most, or twice the usual number (pool_usual) where that is more: a process that hangs keeps
     * what it holds, as many versions as it has slots, and several may hang. 0: the owner bounds them itself.
     * There are as many as it takes, and none is made ahead then. What others hold of those that it dropped
     * comes on top, and memory bounds it (may_make). */
    uint32_t most;
    bool has_views;  /* each has a mapping that only reads (memory_region_view) */
    bool is_guarded; /* what is wanted is read-only here too (memory_region_guard): when nothing is written,
                      * and POOL_RETRY_US later at the latest */
    /* OK where there is memory for so many bytes, else NO_MEMORY with an error for people; NULL: always OK.
     * Asked for each region, and again every POOL_ASK_BYTES of a large one: other processes take memory
     * meanwhile. */
    int (*may_make)(void *self, size_t bytes, heddle_error_t *error);
    /* No receive of this process is open in a region that is not wanted any more; NULL: always.
     * It is asked for before a region is written again or given back. */
    bool (*is_unused)(void *self, const memory_region_t *region);
    /* Nothing of this process may still write into a region that is wanted; NULL: always. With is_guarded. */
    bool (*may_guard)(void *self, const memory_region_t *region);
    /* A region is about to be given back: what the owner has registered for it has to end. NULL: nothing. */
    void (*leaving)(void *self, memory_region_t *region);
    void *self;
} pool_opts_t;

/* NO_MEMORY. */
int pool_new(const pool_opts_t *opts, pool_t **ret_pool, heddle_error_t *error);
/* What others hold stays theirs. A region in which something of this process is still open (is_unused) stays
 * mapped, and is no longer known to the pool: a late receive then meets memory. Accepts NULL. */
void pool_destroy(pool_t **p);

/* A region of at least `bytes`, in `writing`: to be sealed, or dropped. AGAIN: it is being made, or one in
 * its way is being given back, a step of it in this call; the same taker calls again, or pool_give_up.
 * NO_SLOT: all are in use; the error names the processes that hold the oldest one, which takes milliseconds:
 * NULL where it is not needed. NO_MEMORY: nor is there a free one that could be given back; what was made of
 * it goes in the background. A region is made up to a sixteenth larger than was asked for, so that a version
 * which is a little larger needs no new one. */
int pool_take(pool_t *p, const void *taker, size_t bytes, memory_region_t **ret_region,
              heddle_error_t *error);
/* The first version will take about so many bytes: two regions are made in the background, one for it and one
 * ahead. Nothing, once there was a pool_take or pool_adopt. */
void pool_expect(pool_t *p, size_t bytes);
/* So many regions there are usually, while each version becomes active before the next one begins: what
 * others hold then, what is written, and the one ahead. 0, as it is at first: not known. */
void pool_usual(pool_t *p, uint32_t count);
/* The taker asks no more for what is being made for it. */
void pool_give_up(pool_t *p, const void *taker);
/* Takes a whole region that was made elsewhere, in any state, as one of the pool's; the pool owns it from
 * then on. One in its way is given back in the background. NO_SLOT: all are in use. NO_MEMORY. The region
 * stays the caller's then. */
int pool_adopt(pool_t *p, memory_region_t *region, heddle_error_t *error);
/* Not written or wanted any more; it may be used still (is_unused). */
void pool_drop(pool_t *p, memory_region_t *region);
/* One step in the background, which asks the kernel once of each region. Returns when to call again: `now_us`
 * while there are more steps. */
uint64_t pool_work(pool_t *p, uint64_t now_us);

/* For memory/handover.h: its find, and the list that it offers: of more than LIMIT_OFFERED regions those that
 * were taken last. True: the list differs from the last one. */
int pool_find(void *pool, const content_id_t *id);
bool pool_list_is_new(const pool_t *p);
bool pool_list(pool_t *p, region_name_t ret_names[LIMIT_OFFERED], uint32_t *ret_count);

typedef struct {
    uint32_t regions, in_use, lingering;
    uint64_t bytes;
} pool_count_t;
pool_count_t pool_count(const pool_t *p);

#endif
