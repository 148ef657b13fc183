/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/region.h: a counted handle on the memory of one snapshot, which this process owns
 * (memory/region.h).
 *
 *   region_begin -> (region_grow, region_put) -> whole -> region_unref of the last reference
 *
 * The memory below it is in `writing` for its whole life: it is reused without a lock, and never offered.
 * Readers get a read-only mapping of the same memory.
 *
 * Threads: region_ref and region_unref on any; all else on the thread that fills it.  Ownership is counted,
 * because a fetch or a reader may outlive its caller.  The last unref unmaps, and gives the pages back even
 * if another process maps them: a share holds a reference until its sends have ended, so that no loan is
 * open then.  A forked child has neither the mappings nor the descriptor, and its unref leaves the parent's
 * pages alone. */
#ifndef TRANSFER_REGION_H
#define TRANSFER_REGION_H

#include "memory/region.h"

#include <heddle/error.h>
#include <heddle/types.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct region {
    void *base;           /* writable: the loop thread, or a publication that is being filled */
    const void *view;     /* read-only mapping for the application; NULL until region_view */
    size_t bytes;         /* rounded up to 4 KiB */
    memory_region_t *own; /* base, view and bytes are its */
    void *backend;        /* of the transfer backend that mapped it: loop thread only */
    atomic_uint refs;
    /* Called with the last reference.  A pointer, because the plugin has a copy of its own of the rooms, and
     * the list of descriptors (memory/forks.h) that the memory is in belongs to the copy that made it. */
    void (*end)(struct region *r);
} region_t;

/* NO_MEMORY with the size asked for.  begin promises the size, and each grow makes one piece of it: all of it
 * takes seconds for gigabytes.  grow: AGAIN until the region is whole, then OK; NO_MEMORY.  Both ask first
 * whether the machine has so much memory. */
int region_begin(size_t bytes, region_t **ret_region, heddle_error_t *error);
int region_grow(region_t *r, heddle_error_t *error);
/* As memory_region_put. */
int region_put(region_t *r, size_t at, const void *pages, size_t bytes, heddle_error_t *error);
/* Makes r->view once; NO_MEMORY.  Of a region that is not whole yet: grow touches the view too. */
int region_view(region_t *r);

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

/* OK where the machine has so much memory to give, else NO_MEMORY with an error for people.  Any thread. */
int memory_check(size_t bytes, heddle_error_t *error);

/* Bytes that may be taken without waking the OOM killer: what the machine has available, and what is left to
 * this process's control group (version 2) and to each above it.  The kernel gives a memory file page after
 * page and refuses only when nothing is left, so the question must be asked before.  UINT64_MAX where nothing
 * can be told.  `root` stands before /proc and /sys: "", or a test's directory.  Any thread; reads small
 * files of the kernel. */
uint64_t memory_available(const char *root);

#endif
