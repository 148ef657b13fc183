/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/hashing.h"

#include "core/crew.h"
#include "core/digest.h"

#include <stdlib.h>

#define PIECE_BYTES LIMIT_CHUNK_MAX_BYTES /* what a thread takes at a time */

struct hashing {
    crew_t *crew;   /* NULL: not started, or it cannot be */
    bool has_hired; /* it was tried */
};

hashing_t *hashing_new(void) { return calloc(1, sizeof(hashing_t)); }

void hashing_destroy(hashing_t **hashing)
{
    if (!hashing || !*hashing) return;
    crew_end(&(*hashing)->crew);
    free(*hashing);
    *hashing = NULL;
}

/* The helper, for so many bytes; NULL: the caller does it alone. */
static crew_t *help_with(hashing_t *s, uint64_t bytes)
{
    if (!s || bytes < HASHING_SHARED_BYTES) return NULL;
    if (!s->has_hired) s->crew = crew_cores() > 1 ? crew_new(1) : NULL;
    s->has_hired = true;
    return s->crew;
}

static uint32_t pieces_of(const hashing_extent_t *e)
{
    return (uint32_t)((e->bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}

static void hash_piece(void *self, uint32_t i)
{
    const hashing_extent_t *e = self;
    for (; i >= pieces_of(e); e++) i -= pieces_of(e);
    size_t at = (size_t)i * PIECE_BYTES, left = e->bytes - at;
    digest_leaves((const uint8_t *)e->data + at, left < PIECE_BYTES ? left : PIECE_BYTES,
                  e->leaves + at / LIMIT_PAGE_BYTES);
}

static void share_pieces(crew_t *crew, const hashing_extent_t *extents, uint32_t count)
{
    uint32_t pieces = 0;
    for (uint32_t i = 0; i < count; i++) pieces += pieces_of(&extents[i]);
    crew_do(crew, pieces, hash_piece, (void *)extents);
}

void hashing_leaves(hashing_t *s, const hashing_extent_t *extents, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) bytes += extents[i].bytes;
    share_pieces(help_with(s, bytes), extents, count);
}

void hashing_begin(hashing_job_t *job, const manifest_t *manifest, const void *payload)
{
    *job = (hashing_job_t){.payload = payload, .bytes = manifest->payload_bytes};
    manifest_h1_begin(manifest, &job->h);
}

/* The leaves of a slice are added in order, whichever thread made them. */
bool hashing_work(hashing_t *s, hashing_job_t *job, digest_t *ret_found)
{
    uint64_t leaves[HASHING_SLICE_BYTES / LIMIT_PAGE_BYTES];
    crew_t *crew = help_with(s, job->bytes);
    size_t most = crew ? HASHING_SLICE_BYTES : HASHING_ALONE_BYTES;
    hashing_extent_t slice = {.data = job->payload + job->at, .bytes = most, .leaves = leaves};
    if (job->bytes - job->at < most) slice.bytes = (size_t)(job->bytes - job->at);
    share_pieces(crew, &slice, 1);
    h1_add_leaves(&job->h, leaves, (slice.bytes + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES);
    job->at += slice.bytes;
    if (job->at < job->bytes) return false;
    *ret_found = h1_final(&job->h);
    return true;
}
