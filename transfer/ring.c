/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/ring.h"

bool ring_reserve(ring_t *r)
{
    if (r->taken + r->count + r->reserved >= RING_MAX) return false;
    r->reserved++;
    return true;
}

void ring_release(ring_t *r) { r->reserved--; }

void ring_push(ring_t *r, const tr_event_t *event)
{
    r->reserved--;
    r->events[(r->head + r->count++) % RING_MAX] = *event;
    r->gone_count += event->kind == TR_PEER_GONE;
}

void ring_offer(ring_t *r, const tr_event_t *event)
{
    if (ring_reserve(r)) ring_push(r, event);
}

static const tr_event_t *at(const ring_t *r, uint32_t index)
{
    return &r->events[(r->head + RING_MAX - r->taken + index) % RING_MAX];
}

/* A node that has not seen TR_PEER_GONE yet would take the fresh asks for dead ones: they would be asked of
 * another peer, and stay open here, with the memory that their bytes go to. */
bool ring_has_gone(const ring_t *r, uint64_t token)
{
    for (uint32_t i = 0; r->gone_count && i < r->taken + r->count; i++)
        if (at(r, i)->kind == TR_PEER_GONE && at(r, i)->token == token) return true;
    return false;
}

int ring_take(ring_t *r, tr_event_t *out, int cap)
{
    for (; r->taken > 0; r->taken--) r->gone_count -= at(r, 0)->kind == TR_PEER_GONE;
    for (; (int)r->taken < cap && r->count > 0; r->taken++, r->count--) {
        out[r->taken] = r->events[r->head];
        r->head = (r->head + 1) % RING_MAX;
    }
    return (int)r->taken;
}
