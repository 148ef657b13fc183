/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/costs.h"

#include "broker/rollout/track.h"

const char *cost_phase_name(cost_phase_t phase)
{
    static const char *const NAMES[] = {
#define X(NAME, name) [COST_##NAME] = #name,
        COST_PHASES(X)
#undef X
    };
    return NAMES[phase];
}

const char *cost_way_name(cost_way_t way)
{
    static const char *const NAMES[] =
        {[COST_FROM_PUBLISHER] = "publisher", [COST_FROM_WORKER] = "worker", [COST_FROM_HOST] = "host"};
    return NAMES[way];
}

/* Measured by the worker, and no longer than it is there: one wrong report would spoil the sum for good. */
static double seconds(uint64_t took_us, const member_t *member, uint64_t now_us)
{
    uint64_t most_us = now_us - member->came.us;
    return (double)(took_us < most_us ? took_us : most_us) / 1e6;
}

void costs_note_staged(costs_t *costs, const track_t *t, const copy_row_t *c, const msg_staged_t *m,
                       const member_t *member, uint64_t now_us)
{
    const uint64_t took_us[COST_ACTIVATE] = {
        [COST_ANNOUNCE] = c->announce_us, [COST_QUEUED] = c->queued_us, [COST_WAITING] = c->wait_us,
        [COST_CONNECT] = c->connect_us,   [COST_FETCH] = c->fetch_us,   [COST_VERIFY] = c->verify_us,
        [COST_STAGE] = c->stage_us};
    for (int phase = 0; phase < COST_ACTIVATE; phase++)
        histogram_note(&costs->phases[phase], seconds(took_us[phase], member, now_us));
    if (m->held) costs->bytes[COST_FROM_HOST] += t->row->data_bytes;
    for (uint32_t i = 0; i < m->source_count; i++)
        costs->bytes[m->sources[i].kind == SOURCE_WORKER ? COST_FROM_WORKER : COST_FROM_PUBLISHER] +=
            m->sources[i].bytes;
}

void costs_note_switched(costs_t *costs, const copy_row_t *c, const member_t *member, uint64_t now_us)
{
    histogram_note(&costs->phases[COST_ACTIVATE], seconds(c->activate_us, member, now_us));
}

void costs_note_joined(costs_t *costs, const member_t *member, uint64_t now_us)
{
    histogram_note(&costs->joins, (double)(now_us - member->came.us) / 1e6);
}
