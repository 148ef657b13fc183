/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/digest_stage.h"

#include "core/digest.h"

#include <stdlib.h>

struct digest_stage {
    uint32_t capacity, first, count;
    digest_job_t jobs[]; /* a ring */
};

digest_stage_t *digest_stage_new(uint32_t capacity)
{
    digest_stage_t *s = calloc(1, sizeof *s + capacity * sizeof *s->jobs);
    if (s) s->capacity = capacity;
    return s;
}

void digest_stage_destroy(digest_stage_t **stage)
{
    if (!stage) return;
    free(*stage);
    *stage = NULL;
}

bool digest_submit(digest_stage_t *s, const digest_job_t *job)
{
    if (s->count == s->capacity) return false;
    s->jobs[(s->first + s->count++) % s->capacity] = *job;
    return true;
}

bool digest_is_pending(const digest_stage_t *s) { return s->count > 0; }

/* The job is done here and not at submission: the caller decides when a turn has time for it. */
bool digest_completed(digest_stage_t *s, digest_job_t *ret_job)
{
    if (s->count == 0) return false;
    const digest_job_t *job = &s->jobs[s->first];
    if (job->data) digest_leaves(job->data, job->bytes, job->leaves);
    *ret_job = *job;
    s->first = (s->first + 1) % s->capacity;
    s->count--;
    return true;
}
