/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/members/serving.h"

void serving_restated(serving_t *s, uint64_t decision, uint64_t version)
{
    *s = (serving_t){.decision = decision, .version = version};
}

/* A worker that was lost meanwhile counts as behind from its return: it had no chance to follow. */
void serving_renewed(serving_t *s, const serving_t *before, bool was_ready)
{
    if (before->version != s->version || before->decision != s->decision) return;
    s->since_ms = before->since_ms;
    if (was_ready) s->behind_ms = before->behind_ms;
}

void serving_forgotten(serving_t *s) { s->decision = s->version = 0; }

/* The broker's own time, of ACTIVE or a former session, comes first. */
void serving_dated(serving_t *s, uint64_t since_ms)
{
    if (!s->since_ms) s->since_ms = since_ms;
}

void serving_switched(serving_t *s, uint64_t decision, uint64_t version, uint64_t now_ms)
{
    s->decision = decision;
    s->version = version;
    s->since_ms = now_ms;
    s->is_refused = false;
    s->was_behind_ms = s->behind_ms;
    s->behind_ms = now_ms;
}

void serving_refused(serving_t *s, uint64_t now_ms)
{
    s->is_refused = true;
    s->behind_ms = s->was_behind_ms ? s->was_behind_ms : now_ms;
}

void serving_caught_up(serving_t *s) { s->behind_ms = 0; }

void serving_fell_behind(serving_t *s, uint64_t since_ms)
{
    if (!s->behind_ms) s->behind_ms = since_ms;
}
