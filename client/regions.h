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
 * A version and each share of it have a reference. The pool also asks whether a receive is open in it
 * (memory/pool.h: is_unused). A source that stopped may write into memory that it was asked to fill, and the
 * end of that cannot be observed at the end of the transfer: such a region stays mapped for the life of the
 * process, because a leak is better than a write into memory of another owner.
 *
 * One pool serves all adapters of a worker: versions of equal size share one region made ahead, whichever
 * adapters they are of, and the socket at which regions are offered (memory/offer.h) has one list. The
 * worker's slots bound how many versions there are, so that its pool has no limit of its own. What other
 * processes hold of former versions comes on top: each has slots, too, or descriptors that a reader gave it.
 * Memory and descriptors bound that; a limit would end the fetches of this worker for what others do.
 * LIMIT_OFFERED bounds what is listed in advance alone.
 *
 * Threads: the loop's; the last region_unref after regions_close: any. The member's node owns it. */
#ifndef CLIENT_REGIONS_H
#define CLIENT_REGIONS_H

#include "client/node.h"
#include "memory/pool.h"

struct mappings;
struct offer;
struct hold;

typedef struct regions regions_t;
typedef struct {
    uint32_t most;   /* as in pool_opts_t */
    bool has_views;  /* region_t.view is there */
    bool is_guarded; /* what is sealed is read-only at region_t.base, too: a stray write into it faults */
} regions_opts_t;

/* Of the environment: HEDDLE_GUARD=0 ends the guard. Within opening_begin and opening_end. */
bool regions_are_guarded(void);
/* `io` is borrowed. NO_MEMORY. */
int regions_new(const node_io_t *io, const regions_opts_t *opts, regions_t **ret_regions);
/* Before the transfer is closed. What is sealed and has references left is guarded. Accepts NULL and pointers
 * to NULL. */
void regions_close(regions_t **regions);

/* A region of at least `bytes` with one reference, which is the caller's. The taker, errors and AGAIN as in
 * pool_take; what the transfer says where it cannot be registered. */
int regions_take(regions_t *m, const void *taker, size_t bytes, region_t **ret_region, heddle_error_t *error);
/* As pool_expect. */
void regions_expect(regions_t *m, size_t bytes);
void regions_usual(regions_t *m, uint32_t count);      /* as pool_usual */
void regions_give_up(regions_t *m, const void *taker); /* as pool_give_up */
/* The same for a whole region that was made elsewhere, in `writing`: it is one of the pool's then. On failure
 * it stays the caller's. */
int regions_adopt(regions_t *m, memory_region_t *own, region_t **ret_region, heddle_error_t *error);
/* A handle with one reference on what is held, which is given back to `from` with the last one, or ended
 * after regions_close. NO_MEMORY: the hold stays the caller's. */
int regions_hold(regions_t *m, struct mappings *from, struct hold *hold, region_t **ret_region,
                 heddle_error_t *error);

/* The content of a region is complete: it is sealed, if it is not held, and offered at the socket until its
 * last reference goes. No receive and no copy into it may be open. Offered already: nothing happens. Without
 * a socket it is sealed alone. Where it cannot be sealed or offered, the log has `memory.unoffered`, and
 * other processes fetch the version over the network; a later call tries again. */
typedef struct {
    digest_t manifest;
    size_t bytes;
    bool is_to_be_verified; /* by a process that holds it; false: this member has verified it */
} regions_content_t;
void regions_offer(regions_t *m, region_t *r, const regions_content_t *content);
/* Not to be relied on: the bytes have gone bad, or the version was given up. Others get them no more, and no
 * version here relies on them, until the region is taken again. Bytes that match later change nothing. */
void regions_withdraw(region_t *r);
bool regions_is_withdrawn(const region_t *r);
/* As it is offered; generation 0: it is not. */
content_id_t regions_offered(const region_t *r);
/* The file of a region that was sealed, and what is in it, for hold_open (memory/hold.h). The descriptor
 * stays the region's. Errors as memory_region_hand_over and hold_hand_on. */
typedef struct {
    int fd;
    content_id_t id;
} regions_file_t;
int regions_file(const region_t *r, regions_file_t *ret_file, heddle_error_t *error);
/* The socket at which regions are offered from then on; NULL: there is none any more. Borrowed. */
void regions_share(regions_t *m, struct offer *offer);

/* A version is on its way, or may follow soon: the background waits for REGIONS_REST_US. A step of it takes
 * memory and a core from those that fetch, verify or activate. A rest that is prolonged again and again ends
 * after REGIONS_REST_MOST_US; the next one begins after a pause, and after a change of the pool. */
#define REGIONS_REST_US 50000ull
#define REGIONS_REST_MOST_US 1000000ull
void regions_busy(regions_t *m, uint64_t now_us);
/* One step in the background; false: there is none to do now. Each member calls it, and nothing else calls
 * pool_work. */
bool regions_work(regions_t *m, uint64_t now_us);
/* When regions_work has something to do. */
uint64_t regions_deadline(const regions_t *m);
pool_count_t regions_count(const regions_t *m);
pool_t *regions_pool(regions_t *m); /* for client/sharing.h, which lists and finds its regions */

#endif
