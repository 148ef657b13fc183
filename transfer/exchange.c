/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange: the frames of its connections to the side that they are for, its turns, and its life. */
#include "transfer/exchange_state.h"

#include <stdlib.h>
#include <utlist.h>

#define SERVE_DEADLINE_MS 10000u
#define BEAT_MS 50u

/* ---- connections ---- */

/* Requests of both sides end first, and their events come before TR_PEER_GONE: the caller may then use
 * other sources at once. */
static void end_conn(transfer_t *t, conn_t *c, conn_end_t how)
{
    if (!conn_is_live(c)) return;
    bool is_receiving = asks_end(t, c); /* nothing is written after a link was cut */
    shares_end_conn(t, c);
    conn_end(t, c, how, is_receiving);
}

/* Both ends may begin at the same time; one connection then serves both.  A HI with a newer line means that
 * the peer has given up the old connection.  Connecting back happens in the next turn, and not in this
 * upcall. */
static void on_hi(transfer_t *t, const frame_t *f)
{
    conn_t *c;
    if (f->hi.answer) { /* The peer answers our HI: frames of its line belong to this connection. */
        DL_SEARCH_SCALAR(t->x->conns, c, end.line, f->hi.answer);
        if (c) conn_bind_line(t, c, f->line);
        return;
    }
    c = conn_of_token(t, f->hi.token);
    if (c && !c->end.remote_line) { /* both began at once: one connection serves both */
        conn_bind_line(t, c, f->line);
        return;
    }
    if (c && (int64_t)(f->line - c->end.remote_line) <= 0)
        return;                     /* said again, or of a connection given up since */
    if (c) end_conn(t, c, END_CUT); /* it dropped us and came back before its end reached us */
    c = t->x->token ? conn_new(t, f->hi.token) : NULL;
    if (!c) return;
    c->state = CONN_ACCEPTED;
    c->answer = f->line;
    c->address_bytes = (uint32_t)f->hi.address.bytes;
    memcpy(c->address, f->hi.address.data, f->hi.address.bytes);
    if (conn_bind_line(t, c, f->line)) conn_touch(t, c);
    else conn_discard(t, c);
}

/* True when `due_us` has come; else the timers run then. */
static bool is_due(transfer_t *t, uint64_t due_us)
{
    if (t->now_us >= due_us) return true;
    exchange_schedule(t, due_us);
    return false;
}

/* The peer takes nothing, or a receive of a cancelled request stays open and keeps a region from being
 * used. */
static bool is_stuck(transfer_t *t, const conn_t *c)
{
    return ((c->in_flight > 0 || c->blocked) && is_due(t, c->moved_us + t->x->serve_us)) ||
           (c->draining_count > 0 && is_due(t, c->drained_us + EXCHANGE_DRAIN_US));
}

/* Something was requested of the peer, and it has not even said that it is alive.  It may have ended the
 * connection without a sign, as its own deadline had passed while this process stood still; then the next
 * request makes a new one. */
static bool is_deaf(transfer_t *t, const conn_t *c)
{
    return c->owed_us && is_due(t, c->owed_us + t->x->serve_us);
}

/* A connection of an older token closes after a second without any traffic, so that nothing in flight is
 * cut. */
static bool is_retired(transfer_t *t, conn_t *c)
{
    if (!(c->asks_open == 0 && c->draining_count == 0 && c->standing_count == 0 && c->in_flight == 0 &&
          !c->blocked))
        c->quiet_us = 0;
    else if (c->quiet_us == 0) c->quiet_us = t->now_us;
    return is_due(t, (c->quiet_us ? c->quiet_us : t->now_us) + EXCHANGE_RETIRE_US) && c->quiet_us;
}

/* Keepalives are sent only while the peer waits for bytes: then silence would look like a failure. */
static void run_timers(transfer_t *t)
{
    conn_t *c, *next;
    DL_FOREACH_SAFE(t->x->conns, c, next)
    {
        if (is_stuck(t, c)) {
            end_conn(t, c, t->carrier->linger_us == CLOCK_NEVER ? END_BYE : END_CUT);
            continue;
        }
        if (is_deaf(t, c) || (c->retiring && is_retired(t, c))) {
            end_conn(t, c, END_BYE);
            continue;
        }
        bool idle = c->state == CONN_OPEN && c->in_flight == 0;
        if (idle && c->standing_count > 0 && is_due(t, c->sent_us + t->x->beat_us)) {
            send_t *s = conn_send_begin(c);
            c->sent_us = t->now_us;
            exchange_schedule(t, t->now_us + t->x->beat_us);
            if (s && conn_send(t, s, &(frame_t){.kind = FRAME_BEAT, .line = c->end.line}))
                t->counters.beats_out++;
        }
        if (c->gathered && !pace_ready(&t->x->pace_in, t->now_us) &&
            is_due(t, c->received_us + t->x->beat_us)) {
            /* Asks held back by our own pace: the source cannot answer what it was not asked, and must not be
             * blamed for it. */
            c->received_us = t->now_us;
            exchange_schedule(t, t->now_us + t->x->beat_us);
            ring_offer(&t->x->ring, &(tr_event_t){.kind = TR_BEAT, .token = c->end.token});
        }
    }
    DL_FOREACH(t->x->closing, c)
    {
        if (c->state < CONN_CUTTING && c->cut_us != CLOCK_NEVER && is_due(t, c->cut_us))
            t->x->reap_due = true;
    }
}

/* ---- turns ---- */

/* Serves the connections with something to send in turns, until they have nothing, the pace stops all of
 * them, or the turn is full.  A full turn ends so that the loop gets to heartbeats.  Each turn sends at most
 * one frame of each direction for a connection.  Cancels and refusals come first: they are small, and free
 * memory at the other end. */
static void pump(transfer_t *t)
{
    uint32_t paced = 0;
    uint64_t until_us = CLOCK_NEVER;
    while (t->x->dirty && paced < t->x->dirty_count && t->x->turn_sends < EXCHANGE_TURN_SENDS) {
        conn_t *c = t->x->dirty;
        DL_DELETE2(t->x->dirty, c, dirty_prev, dirty_next);
        DL_APPEND2(t->x->dirty, c, dirty_prev, dirty_next);
        if (c->state == CONN_BROKEN || (c->state == CONN_ACCEPTED && !conn_connect_back(t, c))) {
            end_conn(t, c, END_CUT);
            continue;
        }
        bool is_sent;
        if (c->state == CONN_GREETING) {
            is_sent = conn_hi(t, c);
        } else if (asks_send_unasks(t, c) || shares_send_refusals(t, c)) {
            is_sent = true;
        } else {
            bool may_ask = pace_ready(&t->x->pace_in, t->now_us),
                 may_send = pace_ready(&t->x->pace_out, t->now_us);
            is_sent = may_ask && asks_send(t, c);
            is_sent = (may_send && shares_send_data(t, c)) || is_sent;
            bool asks_wait = c->gathered && !may_ask, data_wait = c->ready && !may_send;
            if (!is_sent && (asks_wait || data_wait) && c->state != CONN_BROKEN) {
                if (asks_wait) until_us = clock_earlier(until_us, pace_when(&t->x->pace_in, t->now_us));
                if (data_wait) until_us = clock_earlier(until_us, pace_when(&t->x->pace_out, t->now_us));
                /* A source is not blamed for what it was not asked: see the keepalive of run_timers. */
                if (asks_wait) exchange_schedule(t, c->received_us + t->x->beat_us);
                paced++;
                continue;
            }
        }
        if (is_sent) t->x->turn_sends++, paced = 0;
        else if (c->state != CONN_BROKEN) conn_untouch(t, c);
    }
    t->x->paced_us = t->x->dirty && paced >= t->x->dirty_count ? until_us : 0;
}

/* Events that were left over come first; new work starts only when there is room for more events.  The caller
 * acts on events between two turns and never inside one. */
int exchange_events(transfer_t *t, uint64_t now_us, tr_event_t *out, int cap)
{
    exchange_t *x = t->x;
    owner_check(t->owner);
    if (now_us > t->now_us) t->now_us = now_us;
    if (x->ring.count < (uint32_t)cap) {
        x->turn_sends = 0;
        for (uint32_t i = 0; i < EXCHANGE_TURN_PROGRESS && x->ring.count < (uint32_t)cap; i++) {
            conns_unblock(t);
            pump(t);
            if (!t->carrier->progress(t)) break;
        }
        /* After progress: a process that was stopped itself finds its mail before it judges its peers. */
        if (t->now_us >= x->next_timer_us) {
            x->next_timer_us = CLOCK_NEVER;
            run_timers(t);
            shares_expire(t);
        }
        conns_unblock(t);
        pump(t);
        conns_reap(t);
    }
    return ring_take(&x->ring, out, cap);
}

/* Connections that only wait for the pace do not keep the loop awake until the pace allows more. */
bool exchange_pending(const transfer_t *t)
{
    return t->x->ring.count > 0 || t->x->reap_due || (t->x->dirty && t->x->paced_us <= t->now_us);
}

uint64_t exchange_deadline(transfer_t *t)
{
    owner_check(t->owner);
    if (exchange_pending(t)) return t->now_us;
    return clock_earlier(t->x->dirty ? t->x->paced_us : CLOCK_NEVER, t->x->next_timer_us);
}

/* ---- life ---- */

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
    pace_set(&x->pace_in, opts->max_rate_bytes, t->now_us);
    pace_set(&x->pace_out, opts->max_rate_bytes, t->now_us);
    return HEDDLE_OK;
}

/* A call from outside a turn reads the clock: what it sends must not look older than it is. */
void exchange_enter(transfer_t *t)
{
    owner_check(t->owner);
    uint64_t now_us = clock_now(t->clock);
    if (now_us > t->now_us) t->now_us = now_us;
}

/* Ends every connection, and accepts none any more: nothing would end one that a peer begins while the
 * carrier ends.  Those that already ended and linger are cut too, unless the carrier cannot cut. */
void exchange_shut(transfer_t *t)
{
    if (!t->x) return;
    exchange_enter(t);
    t->x->token = 0;
    while (t->x->conns) end_conn(t, t->x->conns, END_CUT);
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
    if (t->x) shares_fini(t);
    free(t->x);
    t->x = NULL;
}

/* ---- rows of the table ---- */

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
    pace_set(&t->x->pace_in, max_rate_bytes, t->now_us);
    pace_set(&t->x->pace_out, max_rate_bytes, t->now_us);
    t->x->paced_us = 0;
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
    conn_t *c = conn_of_token(t, token);
    if (!c) return;
    end_conn(t, c, END_BYE);
    conns_reap(t);
}

/* The count of open receives lives with the region, and not with a request: requests end earlier. */
int exchange_map(transfer_t *t, region_t *r)
{
    owner_check(t->owner);
    carrier_mapping_t *m = calloc(1, sizeof *m);
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
    const carrier_mapping_t *m = r->backend;
    return !m || m->receiving == 0;
}

/* ---- upcalls of the carrier ---- */

/* A frame of an unknown line is ignored: its connection has ended, or never began. */
void exchange_frame(transfer_t *t, const frame_t *f)
{
    if (f->kind == FRAME_HI) {
        on_hi(t, f);
        return;
    }
    conn_t *c = conn_of_line(t, f->line);
    if (!c) return;
    conn_received(t, c);
    switch (f->kind) {
    case FRAME_ASK: shares_on_ask(t, c, f); break;
    case FRAME_UNASK: shares_on_unask(t, c, f); break;
    case FRAME_REFUSED: asks_refused(t, c, f); break;
    case FRAME_BEAT:
        t->counters.beats_in++;
        ring_offer(&t->x->ring, &(tr_event_t){.kind = TR_BEAT, .token = c->end.token});
        break;
    case FRAME_BYE: end_conn(t, c, END_SILENT); break;
    case FRAME_HI:
    case FRAME_DATA: break; /* HI: above; DATA: exchange_place */
    }
}

/* The end of a send makes room: for the next frame, for the end of a share, or for a connection that
 * waits to be freed. */
void exchange_sent(transfer_t *t, send_t *s, bool ok)
{
    conn_t *c = conn_of(s->end);
    c->in_flight--;
    c->moved_us = t->now_us;
    if (s->kind == SEND_DATA && ok) {
        t->counters.data_out++;
        t->counters.bytes_out += s->body_bytes;
    }
    conn_send_end(s);
    if (!ok) conn_note_broken(t, c);
    if (c->in_flight == 0 && c->standing_count > 0) exchange_schedule(t, c->sent_us + t->x->beat_us);
    if (c->state == CONN_BROKEN || conn_has_frames(c)) conn_touch(t, c);
    if (!conn_is_live(c)) t->x->reap_due = true;
}

void exchange_broken(endpoint_t *e)
{
    conn_t *c = conn_of(e);
    conn_note_broken(e->transfer, c);
    if (conn_is_live(c)) conn_touch(e->transfer, c);
    else e->transfer->x->reap_due = true;
}

void exchange_closed(endpoint_t *e)
{
    conn_of(e)->state = CONN_CLOSED;
    e->transfer->x->reap_due = true;
}

/* ---- what carriers ask about connections ---- */

/* A network interface lost its address: connections over it carry nothing any more, and no packet reports
 * it. */
void exchange_cut(transfer_t *t, exchange_test_t is_of, const void *arg)
{
    conn_t *c, *next;
    exchange_enter(t);
    DL_FOREACH_SAFE(t->x->conns, c, next)
    if (is_of(&c->end, arg)) end_conn(t, c, END_CUT);
    if (t->carrier->linger_us != CLOCK_NEVER) DL_FOREACH(t->x->closing, c)
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
