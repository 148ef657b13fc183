/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/digest_queue.h"

#include "core/limits.h"

#include <stdlib.h>

#define BATCH 16u /* jobs that are hashed at once; each has a chunk at most */
_Static_assert(HASHING_SLICE_BYTES / LIMIT_CHUNK_MAX_BYTES >= BATCH, "a batch is a slice at most");

struct digest_queue {
    hashing_t *hashing;
    uint32_t capacity, first, count;
    uint32_t done;       /* the oldest ones */
    digest_job_t jobs[]; /* a ring */
};

digest_queue_t *digest_queue_new(uint32_t capacity, hashing_t *hashing)
{
    digest_queue_t *s = calloc(1, sizeof *s + capacity * sizeof *s->jobs);
    if (!s) return NULL;
    s->capacity = capacity;
    s->hashing = hashing;
    return s;
}

void digest_queue_destroy(digest_queue_t **queue)
{
    if (!queue) return;
    free(*queue);
    *queue = NULL;
}

bool digest_queue_submit(digest_queue_t *s, const digest_job_t *job)
{
    if (s->count == s->capacity) return false;
    s->jobs[(s->first + s->count++) % s->capacity] = *job;
    return true;
}

bool digest_queue_is_pending(const digest_queue_t *s) { return s->count > 0; }

/* Jobs are done here and not at submission: the caller decides when a turn has time for them. */
bool digest_queue_completed(digest_queue_t *s, digest_job_t *ret_job)
{
    if (s->count == 0) return false;
    if (s->done == 0) {
        hashing_extent_t extents[BATCH];
        uint32_t count = 0;
        while (s->done < s->count && count < BATCH) {
            const digest_job_t *job = &s->jobs[(s->first + s->done) % s->capacity];
            s->done++;
            if (!job->data) continue;
            extents[count++] = (hashing_extent_t){job->data, job->bytes, job->leaves};
        }
        hashing_leaves(s->hashing, extents, count);
    }
    *ret_job = s->jobs[s->first];
    s->first = (s->first + 1) % s->capacity;
    s->count--;
    s->done--;
    return true;
}
