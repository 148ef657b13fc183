/* SPDX-License-Identifier: Apache-2.0 */
/* worker/verify_fetched.h: received bytes compared with the digests that were announced.
 *
 *   manifest  its BLAKE2b-256 with the announcement, before anything of it is decoded
 *   chunks    their leaves with the digests that the manifest has of them
 *   whole     h1 over all leaves with the announcement
 *
 * What follows from a difference is decided by the download (worker/download.h).  No state, any thread. */
#ifndef WORKER_VERIFY_FETCHED_H
#define WORKER_VERIFY_FETCHED_H

#include "worker/announced.h"
#include "worker/digest_queue.h"

/* Reads the manifest from `view`, the memory of the part's region.  DIGEST_MISMATCH; PROTOCOL or LIMIT: it
 * cannot be decoded, or has another payload size or kind than the announcement; NO_MEMORY.  On OK the caller
 * calls manifest_fini. */
int verify_fetched_manifest(const announced_part_t *part, const void *view, manifest_t *ret_manifest,
                            heddle_error_t *error);
/* True when the leaves fold to the digests that the manifest has of the chunks, of which the first lies at
 * job->cookie of the payload. */
bool verify_fetched_chunks(const manifest_t *m, const digest_job_t *job);
/* `leaves`: of the whole payload, so that its bytes are not read again.  DIGEST_MISMATCH. */
int verify_fetched_whole(const manifest_t *m, const uint64_t *leaves, const digest_t *announced,
                         heddle_error_t *error);

/* The last leaf may be shorter than a page, and counts. */
static inline uint64_t leaf_count(uint64_t bytes)
{
    return (bytes + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES;
}

#endif
