/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/region.h: memory that holds one arena: a memfd with one writable mapping (the loop's).
 *
 * Reserved with fallocate (no memory is an error here, not a SIGBUS inside UCX), touched, sealed against shrinking and
 * growing, never F_SEAL_WRITE (it is reused).  Readers get a read-only mapping of the same memory.
 * Refcounted: a fetch or a reader outlives its caller; the last unref unmaps.  ref/unref on any thread. */
#ifndef TRANSFER_REGION_H
#define TRANSFER_REGION_H

#include <heddle/error.h>
#include <heddle/types.h>
#include <stdatomic.h>

typedef struct region {
    void *base;               /* writable: the loop thread, or a publication that is being filled */
    const void *view;         /* read-only mapping for the application; NULL until region_view */
    size_t bytes;             /* rounded up to 4 KiB */
    int fd;
    int memory, device;       /* heddle_memory_t */
    void *backend;            /* of the transfer backend that mapped it: loop thread only */
    atomic_uint refs;
} region_t;

/* NO_MEMORY with the size asked for. */
int  region_new(size_t bytes, region_t **ret_region, heddle_error_t *error);
region_t *region_ref(region_t *r);
void region_unref(region_t **r);
/* Makes r->view once; NO_MEMORY. */
int  region_view(region_t *r);

#endif
