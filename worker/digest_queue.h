/* SPDX-License-Identifier: Apache-2.0 */
/* worker/digest_queue.h: leaves of memory, submitted as jobs and completed later.
 *
 *   digest_queue_submit -> pending -> digest_queue_completed
 *
 * digest_queue_completed computes the oldest ones within the call, a slice of worker/hashing.h at most, so a
 * caller bounds its turn by how often it asks.  A device kernel can take the place of this file: callers know
 * neither when a job is worked on nor in which order jobs complete.
 *
 * One thread calls everything.  The memory of a job and its leaves are borrowed until it has completed or the
 * queue is destroyed.  After digest_queue_new nothing is allocated. */
#ifndef WORKER_DIGEST_QUEUE_H
#define WORKER_DIGEST_QUEUE_H

#include "worker/hashing.h"

typedef struct digest_queue digest_queue_t;
typedef struct {
    uint64_t cookie;  /* the caller's: comes back with the completion */
    const void *data; /* NULL: the leaves were made as the bytes were copied, and are there */
    size_t bytes;     /* LIMIT_CHUNK_MAX_BYTES at most */
    uint64_t *leaves; /* one for each page (core/digest.h) */
} digest_job_t;

/* Room for `capacity` pending jobs.  `hashing` is borrowed, and may be NULL.  NULL: no memory. */
digest_queue_t *digest_queue_new(uint32_t capacity, hashing_t *hashing);
/* Pending jobs are given up; nothing is read or written after it.  Accepts NULL and pointers to NULL. */
void digest_queue_destroy(digest_queue_t **queue);
/* False when `capacity` jobs are pending. */
bool digest_queue_submit(digest_queue_t *queue, const digest_job_t *job);
bool digest_queue_is_pending(const digest_queue_t *queue);
/* True with a job whose leaves are written; each completes once. */
bool digest_queue_completed(digest_queue_t *queue, digest_job_t *ret_job);

#endif
