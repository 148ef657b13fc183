/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/region.h: memory that holds one snapshot: a memfd with one writable mapping.
 *
 *   region_begin -> (region_grow, region_put) -> whole -> region_unref of the last reference
 *
 * Reserved with fallocate (no memory is an error here, not a SIGBUS inside UCX), touched, sealed
 * against shrinking and growing, never F_SEAL_WRITE (it is reused).  Readers get a read-only
 * mapping of the same memory.
 *
 * Threads: region_ref and region_unref on any; all else on the thread that fills it.  Ownership is counted,
 * because a fetch or a reader may outlive its caller.  The last unref unmaps, and gives the pages back even
 * if another process maps them: a share holds a reference until its sends have ended, so that no loan is
 * open then.  A forked child's unref leaves the pages alone. */
#ifndef TRANSFER_REGION_H
#define TRANSFER_REGION_H

#include <heddle/error.h>
#include <heddle/types.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct region {
    void *base;        /* writable: the loop thread, or a publication that is being filled */
    const void *view;  /* read-only mapping for the application; NULL until region_view */
    size_t bytes;      /* rounded up to 4 KiB */
    size_t made_bytes; /* reserved and touched; nothing may read or write beyond */
    int fd;
    void *backend; /* of the transfer backend that mapped it: loop thread only */
    pid_t process; /* of the process that made it */
    atomic_uint refs;
} region_t;

/* A millisecond or a few: the loop does several in a turn. */
#define REGION_STEP_BYTES ((size_t)1 << 20)

/* NO_MEMORY with the size asked for.  begin promises the size, and each grow makes one piece of it: all of it
 * takes seconds for gigabytes.  grow: AGAIN until the region is whole, then OK; NO_MEMORY. */
int region_begin(size_t bytes, region_t **ret_region, heddle_error_t *error);
int region_grow(region_t *r, heddle_error_t *error);
/* Makes and fills whole pages, written through the file: half of what grow and a copy take, for nothing is
 * cleared first, and nothing mapped.  Every page before some point is put once, in any order, and grow makes
 * the rest.  NO_MEMORY. */
int region_put(region_t *r, size_t at, const void *pages, size_t bytes, heddle_error_t *error);
/* Gives pieces back, one a call; true while there are more.  The caller has the only reference.  For an unref
 * that must not take long. */
bool region_shrink(region_t *r);
region_t *region_ref(region_t *r);
void region_unref(region_t **r);
/* Makes r->view once; NO_MEMORY.  Of a region that is not whole yet: grow touches the view too. */
int region_view(region_t *r);

/* Bytes that may be taken without waking the OOM killer: what the machine has available, and what is left to
 * this process's control group (version 2) and to each above it.  fallocate on a memfd takes page after page
 * and is refused only when nothing is left, so the question must be asked before.  UINT64_MAX where nothing
 * can be told.  `root` stands before /proc and /sys: "", or a test's directory.  Any thread; reads small
 * files of the kernel. */
uint64_t memory_available(const char *root);

#endif
