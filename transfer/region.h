/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/region.h: a counted handle on the memory of one content, which this process owns
 * (memory/region.h) or holds (memory/mappings.h). client/regions.h makes it.
 *
 * Threads: region_ref and region_unref on any; all else on the loop thread. Ownership is counted, because a
 * fetch or a reader may outlive its caller. The last unref ends it; a share holds a reference. A forked child
 * has neither the mappings nor the descriptor, and its unref leaves the parent's pages alone. */
#ifndef TRANSFER_REGION_H
#define TRANSFER_REGION_H

#include <heddle/error.h>
#include <heddle/types.h>
#include <stdatomic.h>
#include <stddef.h>

typedef struct region {
    void *base;       /* writable: the loop thread, or a publication that is being filled; NULL: held */
    const void *view; /* read-only mapping for the application; NULL until it is made */
    size_t bytes;     /* rounded up to 4 KiB */
    struct memory_region *own; /* base, view and bytes are its; NULL: held */
    struct hold *held;         /* or view and bytes are its; NULL: own */
    void *backend;             /* of the transfer backend that mapped it: loop thread only */
    atomic_uint refs;
    /* Called with the last reference.  A pointer, because the last one may go in the plugin, which has no
     * room memory/: the list of descriptors that the memory is in (memory/forks.h) is the program's. */
    void (*end)(struct region *r);
} region_t;

/* What is sent. */
static inline const void *region_data(const region_t *r) { return r->base ? r->base : r->view; }

static inline region_t *region_ref(region_t *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

/* Accepts NULL and pointers to NULL. */
static inline void region_unref(region_t **r)
{
    region_t *gone = r ? *r : NULL;
    if (!gone) return;
    *r = NULL;
    if (atomic_fetch_sub_explicit(&gone->refs, 1, memory_order_acq_rel) == 1) gone->end(gone);
}

#endif
