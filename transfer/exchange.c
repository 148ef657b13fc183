/* SPDX-License-Identifier: Apache-2.0 */
/* Life, turns and events of the exchange. */
#include "transfer/exchange.h"

#include <stdlib.h>
#include <utlist.h>

#define SERVE_DEADLINE_MS 10000u
#define BEAT_MS 250u

/* Events: a ring with room reserved for each one that must not be lost: the end of a read request, of a
 * connection and of a share. */

bool ring_reserve(transfer_t *t)
{
    if (t->x->ring_count + t->x->ring_reserved >= EXCHANGE_RING_MAX) return false;
    t->x->ring_reserved++;
    return true;
}

void ring_release(transfer_t *t) { t->x->ring_reserved--; }

/* Uses up the room that its cause has reserved. */
void ring_push(transfer_t *t, const tr_event_t *event)
{
    t->x->ring_reserved--;
    t->x->ring[(t->x->ring_head + t->x->ring_count++) % EXCHANGE_RING_MAX] = *event;
    if (event->kind == TR_PEER_GONE) t->x->gone_undrained++;
}

/* Hints and keepalives have no reserved room: one that is lost is repeated, or not needed. */
void ring_offer(transfer_t *t, const tr_event_t *event)
{
    if (ring_reserve(t)) ring_push(t, event);
}

/* Hands events to the caller, who acts on them between two turns and never inside one. */
static int drain(transfer_t *t, tr_event_t *out, int cap)
{
    int n = 0;
    while (n < cap && t->x->ring_count > 0) {
        out[n] = t->x->ring[t->x->ring_head];
        t->x->ring_head = (t->x->ring_head + 1) % EXCHANGE_RING_MAX;
        t->x->ring_count--;
        if (out[n++].kind == TR_PEER_GONE) t->x->gone_undrained--;
    }
    return n;
}

/* Life. */

/* The clock is read once here: the first call may come long before the first turn. */
int exchange_init(transfer_t *t, const carrier_ops_t *carrier, const transfer_opts_t *opts,
                  uint64_t first_line)
{
    t->carrier = carrier;
    t->owner = opts->owner;
    t->clock = opts->clock ? opts->clock : clock_system();
    t->now_us = clock_now(t->clock);
    exchange_t *x = t->x = calloc(1, sizeof *x);
    if (!x) return HEDDLE_ERR_NO_MEMORY;
    x->next_line = first_line;
    x->serve_us = 1000ull * (opts->serve_deadline_ms ? opts->serve_deadline_ms : SERVE_DEADLINE_MS);
    x->beat_us = 1000ull * (opts->beat_ms ? opts->beat_ms : BEAT_MS);
    x->next_timer_us = CLOCK_NEVER;
    pace_set(&x->pace, opts->max_rate_bytes, t->now_us);
    return HEDDLE_OK;
}

/* A call from outside a turn reads the clock: what it sends must not look older than it is. */
void exchange_enter(transfer_t *t)
{
    owner_check(t->owner);
    uint64_t now_us = clock_now(t->clock);
    if (now_us > t->now_us) t->now_us = now_us;
}

/* Ends every connection. Those that already ended and linger are cut too, unless the carrier cannot cut. */
void exchange_shut(transfer_t *t)
{
    if (!t->x) return;
    exchange_enter(t);
    while (t->x->conns) conn_end(t, t->x->conns, END_CUT);
    if (t->carrier->linger_us != CLOCK_NEVER)
        for (conn_t *c = t->x->closing; c; c = c->next) conn_hurry(t, c);
    t->x->reap_due = true;
    conns_reap(t);
}

bool exchange_quiet(transfer_t *t)
{
    if (!t->x) return true;
    conns_reap(t);
    return t->x->closing == NULL;
}

void exchange_fini(transfer_t *t)
{
    if (t->x) serve_fini(t);
    free(t->x);
    t->x = NULL;
}

/* Turns. */

typedef enum { STEP_IDLE, STEP_SENT, STEP_PACED, STEP_ENDED } step_t;

/* Sends at most one frame of each direction for `c`, so that no connection takes a whole turn. Cancels
 * and refusals come first: they are small, and free memory at the other end. */
static step_t step(transfer_t *t, conn_t *c)
{
    if (c->state == CONN_BROKEN || (c->state == CONN_ACCEPTED && !conn_connect_back(t, c))) {
        conn_end(t, c, END_CUT);
        return STEP_ENDED;
    }
    if (c->state == CONN_GREETING) return conn_hi(t, c) ? STEP_SENT : STEP_IDLE;
    if (receive_unasks(t, c) || serve_refusals(t, c)) return STEP_SENT;
    if (!c->gathered && !c->ready) return STEP_IDLE;
    if (!pace_ready(&t->x->pace, t->now_us)) {
        if (c->gathered) exchange_schedule(t, c->heard_us + t->x->beat_us);
        return STEP_PACED;
    }
    bool asked = receive_asks(t, c), served = serve_data(t, c);
    return asked || served ? STEP_SENT : STEP_IDLE;
}

/* Marks a connection as having something to send; pump serves the marked ones in turns. */
void conn_touch(transfer_t *t, conn_t *c)
{
    t->x->stalled = false;
    if (c->dirty || !conn_is_live(c)) return;
    DL_APPEND2(t->x->dirty, c, dirty_prev, dirty_next);
    t->x->dirty_count++;
    c->dirty = true;
}

/* Serves the connections with something to send in turns, until they have nothing, the pace stops all of
 * them, or the turn is full. A full turn ends so that the loop gets to heartbeats. */
static void pump(transfer_t *t)
{
    uint32_t paced = 0;
    while (t->x->dirty && paced < t->x->dirty_count && t->x->turn_sends < EXCHANGE_TURN_SENDS) {
        conn_t *c = t->x->dirty;
        DL_DELETE2(t->x->dirty, c, dirty_prev, dirty_next);
        DL_APPEND2(t->x->dirty, c, dirty_prev, dirty_next);
        switch (step(t, c)) {
        case STEP_IDLE:
            if (c->state != CONN_BROKEN) {
                DL_DELETE2(t->x->dirty, c, dirty_prev, dirty_next);
                t->x->dirty_count--;
                c->dirty = false;
            }
            break;
        case STEP_SENT: t->x->turn_sends++; paced = 0; break;
        case STEP_PACED: paced++; break;
        case STEP_ENDED: break;
        }
    }
    t->x->stalled = t->x->dirty && paced >= t->x->dirty_count;
}

/* One timer for all: each cause asks for its time, and a run of the timers looks at every cause. */
void exchange_schedule(transfer_t *t, uint64_t at_us)
{
    if (at_us < t->x->next_timer_us) t->x->next_timer_us = at_us;
}

/* Events that were left over come first; new work starts only when there is room for more events. */
int exchange_events(transfer_t *t, uint64_t now_us, tr_event_t *out, int cap)
{
    owner_check(t->owner);
    if (now_us > t->now_us) t->now_us = now_us;
    int n = drain(t, out, cap);
    if (n == cap) return n;
    t->x->turn_sends = 0;
    for (uint32_t i = 0; i < EXCHANGE_TURN_PROGRESS && t->x->ring_count < (uint32_t)(cap - n); i++) {
        conns_unblock(t);
        pump(t);
        if (!t->carrier->progress(t)) break;
    }
    /* After progress: a process that was stopped itself finds its mail before it judges its peers. */
    if (t->now_us >= t->x->next_timer_us) {
        t->x->next_timer_us = CLOCK_NEVER;
        conns_timers(t);
        serve_timers(t);
    }
    conns_unblock(t);
    pump(t);
    conns_reap(t);
    return n + drain(t, out + n, cap - n);
}

/* Connections that only wait for the pace do not keep the loop awake until the pace allows more. */
bool exchange_pending(const transfer_t *t)
{
    return t->x->ring_count > 0 || t->x->reap_due ||
           (t->x->dirty && (!t->x->stalled || pace_when(&t->x->pace, t->now_us) <= t->now_us));
}

uint64_t exchange_deadline(transfer_t *t)
{
    owner_check(t->owner);
    if (exchange_pending(t)) return t->now_us;
    uint64_t paced = t->x->dirty ? pace_when(&t->x->pace, t->now_us) : CLOCK_NEVER;
    return clock_earlier(paced, t->x->next_timer_us);
}

/* Rows of the table. */

int exchange_address(transfer_t *t, bytes_t *ret_address)
{
    *ret_address = t->carrier->address(t);
    return HEDDLE_OK;
}

/* Connections keep the token that they were made under, so that transfers in flight finish. They close
 * when they are quiet. */
void exchange_set_token(transfer_t *t, uint64_t token)
{
    exchange_enter(t);
    if (token == t->x->token) return;
    t->x->token = token;
    for (conn_t *c = t->x->conns; c; c = c->next) c->retiring = true;
    exchange_schedule(t, t->now_us);
}

void exchange_set_rate(transfer_t *t, uint64_t max_rate_bytes)
{
    exchange_enter(t);
    pace_set(&t->x->pace, max_rate_bytes, t->now_us);
    t->x->stalled = false;
}

void exchange_counters(transfer_t *t, tr_counters_t *ret_counters)
{
    owner_check(t->owner);
    *ret_counters = t->counters;
}

int exchange_greet(transfer_t *t, const peer_ref_t *peer)
{
    exchange_enter(t);
    conn_t *c;
    return conn_find(t, peer, &c);
}

/* The peer gets a BYE: it is alive as far as is known, and only too slow for the caller. */
void exchange_drop_peer(transfer_t *t, uint64_t token)
{
    exchange_enter(t);
    conn_t *c;
    HASH_FIND(by_token, t->x->by_token, &token, sizeof token, c);
    if (!c) return;
    conn_end(t, c, END_BYE);
    conns_reap(t);
}

/* The count of open receives lives with the region, and not with a request: requests end earlier. */
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

/* A region without a mapping was never given to the transfer. */
bool exchange_idle(transfer_t *t, const region_t *r)
{
    owner_check(t->owner);
    (void)t;
    const mapping_t *m = r->backend;
    return !m || m->receiving == 0;
}

/* Upcalls. */

/* A frame of an unknown line is ignored: its connection has ended, or never began. */
void exchange_frame(transfer_t *t, const frame_t *f)
{
    if (f->kind == FRAME_HI) {
        conns_hi(t, f);
        return;
    }
    conn_t *c = conn_of_line(t, f->line);
    if (!c) return;
    c->heard_us = t->now_us;
    switch (f->kind) {
    case FRAME_ASK:
    case FRAME_UNASK:
        serve_frame(t, c, f);
        break;
    case FRAME_BEAT:
        t->counters.beats_in++;
        ring_offer(t, &(tr_event_t){.kind = TR_BEAT, .token = c->end.token});
        break;
    case FRAME_REFUSED:
        receive_refused(t, c, f);
        break;
    case FRAME_EARLY:
        ring_offer(t, &(tr_event_t){.kind = TR_EARLY, .token = c->end.token, .key = f->early.key,
                                    .bytes = f->early.bytes});
        break;
    case FRAME_BYE:
        conn_end(t, c, END_SILENT);
        break;
    case FRAME_HI:
    case FRAME_DATA:
    case FRAME_NEAR:
    case FRAME_LENT:
    case FRAME_TAKEN:
        break;    /* HI: above; the others are the carrier's */
    }
}

/* From here on the region may change. The frame itself may still be in flight. */
void exchange_copied(transfer_t *t, send_t *s)
{
    share_t *share = s->share;
    s->share = NULL;
    if (share) serve_sent(t, share);
}

/* A link may break inside a send, where ending the connection would free what the caller uses. It is
 * marked here and ended in the next turn. */
static void note_broken(transfer_t *t, conn_t *c)
{
    if (conn_is_live(c)) c->state = CONN_BROKEN;
    else conn_hurry(t, c);
}

/* The end of a send makes room: for the next frame, for the end of a share, or for a connection that
 * waits to be freed. */
void exchange_sent(transfer_t *t, send_t *s, sent_t how)
{
    conn_t *c = conn_of(s->end);
    c->in_flight--;
    c->moved_us = t->now_us;
    if (s->kind == SEND_DATA && how == SENT) {
        t->counters.data_out++;
        t->counters.bytes_out += s->payload_bytes;
    }
    exchange_copied(t, s);
    conn_send_end(s);
    if (how == SENT_FAILED) note_broken(t, c);
    if (c->in_flight == 0 && c->standing_count > 0) exchange_schedule(t, c->sent_us + t->x->beat_us);
    bool is_due = c->state == CONN_BROKEN || c->state == CONN_GREETING;
    if (is_due || c->ready || c->gathered || c->refusing || c->dropped) conn_touch(t, c);
    if (!conn_is_live(c)) t->x->reap_due = true;
}

void exchange_broken(endpoint_t *e)
{
    conn_t *c = conn_of(e);
    note_broken(e->transfer, c);
    if (conn_is_live(c)) conn_touch(e->transfer, c);
    else e->transfer->x->reap_due = true;
}

void exchange_closed(endpoint_t *e)
{
    conn_of(e)->state = CONN_CLOSED;
    e->transfer->x->reap_due = true;
}

/* What carriers ask about connections. */

endpoint_t *exchange_of_line(transfer_t *t, uint64_t remote_line)
{
    conn_t *c = conn_of_line(t, remote_line);
    return c ? &c->end : NULL;
}

endpoint_t *exchange_next(transfer_t *t, const endpoint_t *e)
{
    conn_t *c = e ? ((const conn_t *)e)->next : t->x->conns;
    return c ? &c->end : NULL;
}

/* A network interface lost its address: connections over it carry nothing any more, and no packet reports
 * it. */
void exchange_cut(transfer_t *t, exchange_test_t is_of, const void *arg)
{
    conn_t *c, *next;
    exchange_enter(t);
    DL_FOREACH_SAFE(t->x->conns, c, next)
        if (is_of(&c->end, arg)) conn_end(t, c, END_CUT);
    if (t->carrier->linger_us != CLOCK_NEVER)
        DL_FOREACH(t->x->closing, c)
            if (is_of(&c->end, arg)) conn_hurry(t, c);
    t->x->reap_due = true;
}

bool exchange_any(transfer_t *t, exchange_test_t is_of, const void *arg)
{
    const conn_t *c;
    DL_FOREACH(t->x->conns, c)
        if (is_of(&c->end, arg)) return true;
    DL_FOREACH(t->x->closing, c)
        if (is_of(&c->end, arg)) return true;
    return false;
}
