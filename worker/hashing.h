/* SPDX-License-Identifier: Apache-2.0 */
/* worker/hashing.h: digests of memory: extents are given, and complete.
 *
 *   hashing_leaves(extents)         ->  the leaves of all of them
 *   hashing_begin(job), of content  ->  hashing_work, a slice a call  ->  complete: its digest
 *
 * Two threads share what is large, where this process may use two cores: the caller, and one helper
 * (core/crew.h).  The helper is started for the first job of HASHING_SHARED_BYTES and sleeps between slices.
 * It never runs while no call is under way, so the caller may release the memory after any call.  A slice
 * bounds what a turn of a loop waits for: the loop answers between two of them.
 *
 * One thread at a time calls; the owner's loop, as a rule.  NULL in place of the handle: without a helper.
 * Nothing is allocated, but for the helper's start. */
#ifndef WORKER_HASHING_H
#define WORKER_HASHING_H

#include "core/limits.h"
#include "formats/manifest.h"

#include <stdbool.h>

#define HASHING_SHARED_BYTES (2u << 20) /* less is not worth the waking of a thread */
#define HASHING_SLICE_BYTES (8u << 20)  /* of a job with a helper: 0.3 to 0.5 ms */
#define HASHING_ALONE_BYTES (1u << 20)  /* and of one without */

typedef struct hashing hashing_t;
typedef struct {
    const void *data;
    size_t bytes;
    uint64_t *leaves; /* one for each page (core/digest.h) */
} hashing_extent_t;
/* The digest of a payload with its manifest: h1.  The payload is borrowed until the job is complete or
 * dropped; a job needs no end. */
typedef struct {
    const uint8_t *payload;
    uint64_t bytes, at; /* `at` of them are hashed */
    h1_t h;
} hashing_job_t;

/* NULL: no memory. */
hashing_t *hashing_new(void);
/* The helper has ended when it returns.  Accepts NULL and pointers to NULL. */
void hashing_destroy(hashing_t **hashing);

/* Computes the leaves of all extents, which begin where a leaf does. */
void hashing_leaves(hashing_t *s, const hashing_extent_t *extents, uint32_t count);
void hashing_begin(hashing_job_t *job, const manifest_t *manifest, const void *payload);
/* One slice; true: the job is complete, once. */
bool hashing_work(hashing_t *s, hashing_job_t *job, digest_t *ret_found);

#endif
