/* SPDX-License-Identifier: Apache-2.0 */
/* Life, turns and events of the exchange. */
#include "transfer/exchange.h"

#include <stdlib.h>
#include <utlist.h>

#define SERVE_DEADLINE_MS 10000u
#define BEAT_MS 250u

/* Events: a ring with room reserved for each one that must come (an open ask, a peer, a share), so none is
 * ever lost. */

bool ring_reserve(transfer_t *t)
{
    if (t->ring_count + t->ring_reserved >= EXCHANGE_RING_MAX) return false;
    t->ring_reserved++;
    return true;
}

void ring_release(transfer_t *t) { t->ring_reserved--; }

void ring_push(transfer_t *t, const tr_event_t *event)
{
    t->ring_reserved--;
    t->ring[(t->ring_head + t->ring_count++) % EXCHANGE_RING_MAX] = *event;
    if (event->kind == TR_PEER_GONE) t->gone_undrained++;
}

void ring_offer(transfer_t *t, const tr_event_t *event)
{
    if (ring_reserve(t)) ring_push(t, event);
}

static int drain(transfer_t *t, tr_event_t *out, int cap)
{
    int n = 0;
    while (n < cap && t->ring_count > 0) {
        out[n] = t->ring[t->ring_head];
        t->ring_head = (t->ring_head + 1) % EXCHANGE_RING_MAX;
        t->ring_count--;
        if (out[n++].kind == TR_PEER_GONE) t->gone_undrained--;
    }
    return n;
}

/* Life. */

int exchange_init(transfer_t *t, const carrier_ops_t *carrier, const transfer_opts_t *opts,
                  uint64_t first_line)
{
    t->carrier = carrier;
    t->owner = opts->owner;
    t->next_line = first_line;
    t->serve_us = 1000ull * (opts->serve_deadline_ms ? opts->serve_deadline_ms : SERVE_DEADLINE_MS);
    t->beat_us = 1000ull * (opts->beat_ms ? opts->beat_ms : BEAT_MS);
    t->next_timer_us = CLOCK_NEVER;
    t->clock = opts->clock ? opts->clock : clock_system();
    t->now_us = clock_now(t->clock);
    pace_set(&t->pace, opts->max_rate_bytes, t->now_us);
    t->standing = calloc(EXCHANGE_STANDING_MAX, sizeof *t->standing);
    t->asks = calloc(EXCHANGE_ASKS_MAX, sizeof *t->asks);
    t->ring = calloc(EXCHANGE_RING_MAX, sizeof *t->ring);
    return t->standing && t->asks && t->ring ? HEDDLE_OK : HEDDLE_ERR_NO_MEMORY;
}

void exchange_enter(transfer_t *t)
{
    owner_check(t->owner);
    uint64_t now_us = clock_now(t->clock);
    if (now_us > t->now_us) t->now_us = now_us;
}

void exchange_shut(transfer_t *t)
{
    exchange_enter(t);
    while (t->peers) {
        t->peers->hushed = true;
        peer_cut(t, t->peers);
    }
    for (peer_t *p = t->closing; p; p = p->next) p->force |= t->carrier->linger_us != CLOCK_NEVER;
    t->reap_due = true;
    peers_reap(t);
}

bool exchange_quiet(transfer_t *t)
{
    peers_reap(t);
    return t->closing == NULL;
}

void exchange_fini(transfer_t *t)
{
    serve_fini(t);
    free(t->standing);
    free(t->asks);
    free(t->ring);
}

/* Turns. */

typedef enum { STEP_IDLE, STEP_SENT, STEP_PACED, STEP_ENDED } step_t;

/* Sends at most one frame of each direction for `p`. */
static step_t step(transfer_t *t, peer_t *p)
{
    if (p->broken || (p->state == PEER_ACCEPTED && !peer_connect_back(t, p))) {
        p->hushed = true;
        peer_cut(t, p);
        return STEP_ENDED;
    }
    if (p->hi_due) return peer_hi(t, p) ? STEP_SENT : STEP_IDLE;
    if (receive_unasks(t, p) || serve_refusals(t, p)) return STEP_SENT;
    if (!p->gathered && !p->ready) return STEP_IDLE;
    if (!pace_ready(&t->pace, t->now_us)) {
        if (p->gathered) exchange_schedule(t, p->heard_us + t->beat_us);
        return STEP_PACED;
    }
    bool asked = receive_asks(t, p), served = serve_data(t, p);
    return asked || served ? STEP_SENT : STEP_IDLE;
}

static void forget_dirty(transfer_t *t, peer_t *p)
{
    DL_DELETE2(t->dirty, p, dirty_prev, dirty_next);
    t->dirty_count--;
    p->dirty = false;
}

void peer_touch(transfer_t *t, peer_t *p)
{
    t->stalled = false;
    if (p->dirty || p->state >= PEER_CLOSING) return;
    DL_APPEND2(t->dirty, p, dirty_prev, dirty_next);
    t->dirty_count++;
    p->dirty = true;
}

/* Round robin over the peers that have something to send, until they have nothing, the pace says stop, or
 * the turn is full. */
static void pump(transfer_t *t)
{
    uint32_t paced = 0;
    while (t->dirty && paced < t->dirty_count && t->turn_sends < EXCHANGE_TURN_SENDS) {
        peer_t *p = t->dirty;
        DL_DELETE2(t->dirty, p, dirty_prev, dirty_next);
        DL_APPEND2(t->dirty, p, dirty_prev, dirty_next);
        switch (step(t, p)) {
        case STEP_IDLE:
            if (!p->broken) forget_dirty(t, p);
            break;
        case STEP_SENT: t->turn_sends++; paced = 0; break;
        case STEP_PACED: paced++; break;
        case STEP_ENDED: break;
        }
    }
    t->stalled = t->dirty && paced >= t->dirty_count;
}

void exchange_schedule(transfer_t *t, uint64_t at_us)
{
    if (at_us < t->next_timer_us) t->next_timer_us = at_us;
}

static void run_timers(transfer_t *t)
{
    if (t->now_us < t->next_timer_us) return;
    t->next_timer_us = CLOCK_NEVER;
    peers_timers(t);
    serve_timers(t);
}

int exchange_events(transfer_t *t, uint64_t now_us, tr_event_t *out, int cap)
{
    owner_check(t->owner);
    if (now_us > t->now_us) t->now_us = now_us;
    int n = drain(t, out, cap);
    if (n == cap) return n;
    t->turn_sends = 0;
    for (uint32_t i = 0; i < EXCHANGE_TURN_PROGRESS && t->ring_count < (uint32_t)(cap - n); i++) {
        peers_unblock(t);
        pump(t);
        if (!t->carrier->progress(t)) break;
    }
    /* After progress: a process that was stopped itself finds its mail before it judges its peers. */
    run_timers(t);
    peers_unblock(t);
    pump(t);
    peers_reap(t);
    return n + drain(t, out + n, cap - n);
}

bool exchange_pending(const transfer_t *t)
{
    return t->ring_count > 0 || t->reap_due ||
           (t->dirty && (!t->stalled || pace_when(&t->pace, t->now_us) <= t->now_us));
}

uint64_t exchange_deadline(transfer_t *t)
{
    owner_check(t->owner);
    if (exchange_pending(t)) return t->now_us;
    uint64_t paced = t->dirty ? pace_when(&t->pace, t->now_us) : CLOCK_NEVER;
    return paced < t->next_timer_us ? paced : t->next_timer_us;
}

/* Rows of the table. */

int exchange_address(transfer_t *t, bytes_t *ret_address)
{
    *ret_address = t->carrier->address(t);
    return HEDDLE_OK;
}

/* Connections keep the token that they were made under, so that transfers in flight finish; they close when
 * quiet. */
void exchange_set_token(transfer_t *t, uint64_t token)
{
    exchange_enter(t);
    if (token == t->token) return;
    t->token = token;
    for (peer_t *p = t->peers; p; p = p->next) p->retiring = true;
    exchange_schedule(t, t->now_us);
}

void exchange_set_rate(transfer_t *t, uint64_t max_rate_bytes)
{
    exchange_enter(t);
    pace_set(&t->pace, max_rate_bytes, t->now_us);
    t->stalled = false;
}

void exchange_counters(transfer_t *t, tr_counters_t *ret_counters)
{
    owner_check(t->owner);
    *ret_counters = t->counters;
}

int exchange_greet(transfer_t *t, const peer_ref_t *peer)
{
    exchange_enter(t);
    peer_t *p;
    return peer_find(t, peer, &p);
}

void exchange_drop_peer(transfer_t *t, uint64_t token)
{
    exchange_enter(t);
    peer_t *p;
    HASH_FIND(by_token, t->by_token, &token, sizeof token, p);
    if (!p) return;
    peer_end(t, p);
    peers_reap(t);
}

int exchange_map(transfer_t *t, region_t *r)
{
    owner_check(t->owner);
    mapping_t *m = calloc(1, sizeof *m);
    if (!m) return HEDDLE_ERR_NO_MEMORY;
    r->backend = m;
    t->counters.maps++;
    return HEDDLE_OK;
}

void exchange_unmap(transfer_t *t, region_t *r)
{
    (void)t;
    free(r->backend);
    r->backend = NULL;
}

bool exchange_idle(transfer_t *t, const region_t *r)
{
    owner_check(t->owner);
    (void)t;
    const mapping_t *m = r->backend;
    return !m || m->receiving == 0;
}

/* Upcalls. */

void exchange_frame(transfer_t *t, const frame_t *f)
{
    if (f->kind == FRAME_HI) {
        peers_hi(t, f);
        return;
    }
    peer_t *p = peer_of_line(t, f->line);
    if (!p) return;
    p->heard_us = t->now_us;
    switch (f->kind) {
    case FRAME_ASK:
    case FRAME_UNASK:
        serve_frame(t, p, f);
        break;
    case FRAME_BEAT:
        t->counters.beats_in++;
        ring_offer(t, &(tr_event_t){.kind = TR_BEAT, .token = p->token});
        break;
    case FRAME_REFUSED:
        receive_refused(t, p, f);
        break;
    case FRAME_EARLY:
        ring_offer(t, &(tr_event_t){.kind = TR_EARLY, .token = p->token, .key = f->early.key,
                                    .bytes = f->early.bytes});
        break;
    case FRAME_BYE:
        p->hushed = true;
        peer_end(t, p);
        break;
    case FRAME_HI:
    case FRAME_DATA:
    case FRAME_NEAR:
    case FRAME_LENT:
    case FRAME_TAKEN:
        break;    /* HI: above; the others are the carrier's */
    }
}

void exchange_copied(transfer_t *t, send_t *s)
{
    share_t *share = s->share;
    s->share = NULL;
    if (share) serve_sent(t, share);
}

void exchange_sent(transfer_t *t, send_t *s, sent_t how)
{
    peer_t *p = s->peer;
    p->in_flight--;
    p->moved_us = t->now_us;
    if (s->data && how == SENT) {
        t->counters.data_out++;
        t->counters.bytes_out += s->payload_bytes;
    }
    exchange_copied(t, s);
    peer_send_end(s);
    if (how == SENT_FAILED) p->broken = p->force = p->hushed = true;
    if (p->in_flight == 0 && p->standing_count > 0) exchange_schedule(t, p->sent_us + t->beat_us);
    if (p->broken || p->hi_due || p->ready || p->gathered || p->refusing || p->dropped) peer_touch(t, p);
    if (p->state >= PEER_CLOSING) t->reap_due = true;
}

void exchange_broken(transfer_t *t, peer_t *p)
{
    p->force = p->hushed = p->broken = true;
    if (p->state < PEER_CLOSING) peer_touch(t, p);
    else t->reap_due = true;
}

void exchange_closed(transfer_t *t, peer_t *p)
{
    p->state = PEER_CLOSED;
    t->reap_due = true;
}
