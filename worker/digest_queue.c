/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/digest_queue.h"

#include "core/digest.h"

#include <stdlib.h>

struct digest_queue {
    uint32_t capacity, first, count;
    digest_job_t jobs[]; /* a ring */
};

digest_queue_t *digest_queue_new(uint32_t capacity)
{
    digest_queue_t *s = calloc(1, sizeof *s + capacity * sizeof *s->jobs);
    if (s) s->capacity = capacity;
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

/* The job is done here and not at submission: the caller decides when a turn has time for it. */
bool digest_queue_completed(digest_queue_t *s, digest_job_t *ret_job)
{
    if (s->count == 0) return false;
    const digest_job_t *job = &s->jobs[s->first];
    if (job->data) digest_leaves(job->data, job->bytes, job->leaves);
    *ret_job = *job;
    s->first = (s->first + 1) % s->capacity;
    s->count--;
    return true;
}
