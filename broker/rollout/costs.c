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

void costs_note_staged(costs_t *costs, const track_t *t, const copy_row_t *c, const msg_staged_t *m)
{
    const uint64_t took_us[COST_ACTIVATE] = {
        [COST_ANNOUNCE] = c->announce_us, [COST_QUEUED] = c->queued_us, [COST_WAITING] = c->wait_us,
        [COST_CONNECT] = c->connect_us,   [COST_FETCH] = c->fetch_us,   [COST_VERIFY] = c->verify_us,
        [COST_STAGE] = c->stage_us};
    for (int phase = 0; phase < COST_ACTIVATE; phase++)
        histogram_note(&costs->phases[phase], (double)took_us[phase] / 1e6);
    if (m->held) costs->bytes[COST_FROM_HOST] += t->row->data_bytes;
    for (uint32_t i = 0; i < m->source_count; i++)
        costs->bytes[m->sources[i].kind == SOURCE_WORKER ? COST_FROM_WORKER : COST_FROM_PUBLISHER] +=
            m->sources[i].bytes;
}

void costs_note_switched(costs_t *costs, const copy_row_t *c)
{
    histogram_note(&costs->phases[COST_ACTIVATE], (double)c->activate_us / 1e6);
}

void costs_note_joined(costs_t *costs, const member_t *member, uint64_t now_us)
{
    histogram_note(&costs->joins, (double)(now_us - member->came.us) / 1e6);
}
