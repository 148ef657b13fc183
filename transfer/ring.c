/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/ring.h"

bool ring_reserve(ring_t *r)
{
    if (r->count + r->reserved >= RING_MAX) return false;
    r->reserved++;
    return true;
}

void ring_release(ring_t *r) { r->reserved--; }

void ring_push(ring_t *r, const tr_event_t *event)
{
    r->reserved--;
    r->events[(r->head + r->count++) % RING_MAX] = *event;
    if (event->kind == TR_PEER_GONE) r->gone_undrained++;
}

void ring_offer(ring_t *r, const tr_event_t *event)
{
    if (ring_reserve(r)) ring_push(r, event);
}

/* A node that has not taken TR_PEER_GONE yet would take the fresh asks for dead ones: they would be asked of
 * another peer, and stay open here, with the memory that their bytes go to. */
bool ring_has_gone(const ring_t *r, uint64_t token)
{
    for (uint32_t i = 0; r->gone_undrained && i < r->count; i++) {
        const tr_event_t *e = &r->events[(r->head + i) % RING_MAX];
        if (e->kind == TR_PEER_GONE && e->token == token) return true;
    }
    return false;
}

int ring_take(ring_t *r, tr_event_t *out, int cap)
{
    int n = 0;
    /* The node asks peers while it goes through what it took: an end that it has not come to is not taken. */
    for (; n < cap && r->count > 0; n++) {
        if (n > 0 && r->events[r->head].kind == TR_PEER_GONE) break;
        out[n] = r->events[r->head];
        r->head = (r->head + 1) % RING_MAX;
        r->count--;
        if (out[n].kind == TR_PEER_GONE) r->gone_undrained--;
    }
    return n;
}
