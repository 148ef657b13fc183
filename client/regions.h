/* SPDX-License-Identifier: Apache-2.0 */
/* client/regions.h: the shared memory that a member owns for its versions: the regions of a pool
 * (memory/pool.h), each with one handle (transfer/region.h) for its life, under which it is registered with
 * the transfer.
 *
 *   a handle | event                                       -> next
 *   ---------+-----------------------------------------------------------------------------
 *   (none)   | regions_take of a region that is new, adopt -> used     registered
 *   parked   | regions_take                                -> used
 *   used     | the last region_unref                       -> parked   pool_drop
 *            | regions_close                               -> left     no longer registered
 *   parked   | the pool gives it back, regions_close       -> (none)   no longer registered
 *   left     | the last region_unref                       -> (none)   the memory is given back
 *
 * A version and each share of it have a reference, so that a region is parked only when its last send is
 * over. The pool also asks whether a receive is open in it (memory/pool.h: is_unused). A source that stopped
 * may write into memory that it was asked to fill, and the end of that cannot be observed at the end of the
 * transfer: such a region stays mapped for the life of the process, because a leak is better than a write
 * into memory of another owner.
 *
 * One pool serves all adapters of a worker: versions of equal size share one spare region, whichever adapters
 * they are of, and the socket at which regions are offered (memory/source.h) has one list. How many versions
 * there are is bounded by the worker's slots, so that its pool has no limit of its own; LIMIT_OFFERED bounds
 * what is listed in advance alone.
 *
 * Threads: the loop's; the last region_unref after regions_close: any. The member's node owns it. */
#ifndef CLIENT_REGIONS_H
#define CLIENT_REGIONS_H

#include "client/node.h"
#include "memory/pool.h"

typedef struct regions regions_t;
typedef struct {
    uint32_t versions; /* as in pool_opts_t */
    bool has_views;    /* region_t.view is there */
} regions_opts_t;

/* `io` is borrowed. NO_MEMORY. */
int regions_new(const node_io_t *io, const regions_opts_t *opts, regions_t **ret_regions);
/* Before the transfer is closed. Accepts NULL and pointers to NULL. */
void regions_close(regions_t **regions);

/* A region of at least `bytes` with one reference, which is the caller's. Errors and AGAIN as pool_take; what
 * the transfer says where it cannot be registered. */
int regions_take(regions_t *m, size_t bytes, region_t **ret_region, heddle_error_t *error);
/* The same for a whole region that was made elsewhere, in `writing`: it is one of the pool's then. On failure
 * it stays the caller's. */
int regions_adopt(regions_t *m, memory_region_t *own, region_t **ret_region, heddle_error_t *error);
/* One step in the background; false: there is none to do now. */
bool regions_work(regions_t *m, uint64_t now_us);
/* When regions_work has something to do. */
uint64_t regions_deadline(const regions_t *m);
pool_count_t regions_count(const regions_t *m);
/* For client/sharing.h, which then works in the background in place of regions_work. */
pool_t *regions_pool(regions_t *m);

#endif
