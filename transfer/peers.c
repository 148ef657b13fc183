/* SPDX-License-Identifier: Apache-2.0 */
/* Peers of the exchange: HI, connections, their end, and what time does to them. */
#include "transfer/exchange.h"

#include <stdlib.h>
#include <utlist.h>

static peer_t *find_token(transfer_t *t, uint64_t token)
{
    peer_t *p;
    HASH_FIND(by_token, t->by_token, &token, sizeof token, p);
    return p;
}

peer_t *peer_of_line(transfer_t *t, uint64_t line)
{
    peer_t *p;
    HASH_FIND(by_line, t->by_line, &line, sizeof line, p);
    return p;
}

/* NULL when there are too many, or no memory. */
static peer_t *peer_new(transfer_t *t, uint64_t token)
{
    if (t->peer_count >= EXCHANGE_PEERS_MAX || !ring_reserve(t)) return NULL;
    peer_t *p = calloc(1, sizeof *p);
    if (p) {
        p->token = token;
        HASH_ADD(by_token, t->by_token, token, sizeof p->token, p);
    }
    if (!p || !p->by_token.tbl) {
        free(p);
        ring_release(t);
        return NULL;
    }
    p->transfer = t;
    p->line = t->next_line++;
    p->heard_us = p->moved_us = p->sent_us = t->now_us;
    for (uint32_t i = 0; i < EXCHANGE_DATA_SENDS; i++) {
        p->data[i] =
            (send_t){.peer = p, .frame = p->data[i].small, .slot = i, .data = true, .next = p->free_data};
        p->free_data = &p->data[i];
    }
    for (uint32_t i = 0; i < EXCHANGE_CONTROL_SENDS; i++) {
        p->control[i] = (send_t){.peer = p, .frame = p->control[i].small, .next = p->free_control};
        p->free_control = &p->control[i];
    }
    p->hi = (send_t){.peer = p, .frame = p->hi_frame};
    DL_APPEND(t->peers, p);
    t->peer_count++;
    return p;
}

static send_t *take(send_t **list)
{
    send_t *s = *list;
    if (s) *list = s->next;
    return s;
}

send_t *peer_send_begin(peer_t *p) { return take(&p->free_control); }
send_t *peer_data_begin(peer_t *p) { return take(&p->free_data); }

void peer_send_end(send_t *s)
{
    if (s == &s->peer->hi) return;
    send_t **list = s->data ? &s->peer->free_data : &s->peer->free_control;
    s->next = *list;
    *list = s;
}

static void set_blocked(transfer_t *t, peer_t *p, bool blocked)
{
    if (p->blocked != blocked) t->blocked_count += blocked ? 1 : -1u;
    p->blocked = blocked;
}

/* From here on the peer must take something within the serve deadline. */
static void watch(transfer_t *t, peer_t *p)
{
    if (p->in_flight > 0 || p->blocked) return;
    p->moved_us = t->now_us;
    exchange_schedule(t, t->now_us + t->serve_us);
}

bool peer_send(transfer_t *t, send_t *s, const frame_t *f)
{
    peer_t *p = s->peer;
    s->frame_bytes = (uint32_t)frame_encode(f, s->frame);
    watch(t, p);
    p->in_flight++;
    bool taken = t->carrier->send(t, p, s);
    if (!taken) {
        p->in_flight--;
        peer_send_end(s);
    }
    set_blocked(t, p, !taken);
    return taken;
}

void peers_unblock(transfer_t *t)
{
    if (t->blocked_count == 0) return;
    for (peer_t *p = t->peers; p; p = p->next)
        if (p->blocked) peer_touch(t, p);
    for (peer_t *p = t->closing; p; p = p->next) t->reap_due |= p->blocked;
}

bool peer_hi(transfer_t *t, peer_t *p)
{
    if (!p->hi_due) return false;
    frame_t f = {.kind = FRAME_HI, .line = p->line};
    f.hi.token = t->token;
    f.hi.answer = p->answer;
    f.hi.address = t->carrier->address(t);
    p->hi_due = !peer_send(t, &p->hi, &f);
    return !p->hi_due;
}

/* Connected: HI is the first frame, as soon as the carrier takes one. */
static void open_peer(transfer_t *t, peer_t *p)
{
    p->state = PEER_OPEN;
    p->hi_due = true;
    peer_hi(t, p);
    peer_touch(t, p);
}

static bool bind_line(transfer_t *t, peer_t *p, uint64_t line)
{
    if (peer_of_line(t, line)) return false;
    if (p->remote_line) HASH_DELETE(by_line, t->by_line, p);
    p->remote_line = line;
    HASH_ADD(by_line, t->by_line, remote_line, sizeof p->remote_line, p);
    if (!p->by_line.tbl) p->remote_line = 0;
    return p->remote_line != 0;
}

/* A node that has not drained TR_PEER_GONE yet would take the fresh asks for dead ones: it must see the
 * event first. */
static bool is_gone_undrained(const transfer_t *t, uint64_t token)
{
    for (uint32_t i = 0; t->gone_undrained && i < t->ring_count; i++) {
        const tr_event_t *e = &t->ring[(t->ring_head + i) % EXCHANGE_RING_MAX];
        if (e->kind == TR_PEER_GONE && e->token == token) return true;
    }
    return false;
}

static void discard(transfer_t *t, peer_t *p)
{
    HASH_DELETE(by_token, t->by_token, p);
    DL_DELETE(t->peers, p);
    t->peer_count--;
    ring_release(t);
    free(p);
}

int peer_find(transfer_t *t, const peer_ref_t *ref, peer_t **ret_peer)
{
    peer_t *p = find_token(t, ref->token);
    if (p && !p->broken) {
        *ret_peer = p;
        return HEDDLE_OK;
    }
    if (p || t->token == 0 || ref->token == 0 || is_gone_undrained(t, ref->token)) return HEDDLE_ERR_AGAIN;
    if (ref->address.bytes == 0 || ref->address.bytes > LIMIT_ADDRESS_BYTES) return HEDDLE_ERR_GONE;
    p = peer_new(t, ref->token);
    if (!p) return HEDDLE_ERR_AGAIN;
    if (t->carrier->connect(t, p, ref->address) != HEDDLE_OK) {
        discard(t, p);
        return HEDDLE_ERR_GONE;
    }
    open_peer(t, p);
    *ret_peer = p;
    return HEDDLE_OK;
}

/* The peer at the other end answers our HI: frames of its line belong to this connection. */
static void on_answer(transfer_t *t, const frame_t *f)
{
    peer_t *p;
    DL_SEARCH_SCALAR(t->peers, p, line, f->hi.answer);
    if (p) bind_line(t, p, f->line);
}

static void accept_peer(transfer_t *t, const frame_t *f)
{
    peer_t *p = t->token ? peer_new(t, f->hi.token) : NULL;
    if (!p) return;
    p->state = PEER_ACCEPTED;
    p->answer = f->line;
    p->address_bytes = (uint32_t)f->hi.address.bytes;
    memcpy(p->address, f->hi.address.data, f->hi.address.bytes);
    if (bind_line(t, p, f->line)) peer_touch(t, p);
    else discard(t, p);
}

void peers_hi(transfer_t *t, const frame_t *f)
{
    if (f->hi.answer) {
        on_answer(t, f);
        return;
    }
    peer_t *p = find_token(t, f->hi.token);
    if (p && !p->remote_line) {            /* both began at once: one connection serves both */
        bind_line(t, p, f->line);
        return;
    }
    if (p && (int64_t)(f->line - p->remote_line) <= 0)
        return; /* said again, or of a connection given up since */
    if (p) {                               /* it dropped us and came back before its end reached us */
        p->hushed = true;
        peer_cut(t, p);
    }
    accept_peer(t, f);
}

bool peer_connect_back(transfer_t *t, peer_t *p)
{
    if (t->carrier->connect(t, p, bytes_of(p->address, p->address_bytes)) != HEDDLE_OK) return false;
    open_peer(t, p);
    return true;
}

static void say_bye(transfer_t *t, peer_t *p)
{
    send_t *s = p->bye_due ? peer_send_begin(p) : NULL;
    if (s && peer_send(t, s, &(frame_t){.kind = FRAME_BYE, .line = p->line})) p->bye_due = false;
}

void peer_end(transfer_t *t, peer_t *p)
{
    if (p->state >= PEER_CLOSING) return;
    receive_end_peer(t, p);
    serve_end_peer(t, p);
    p->bye_due = t->carrier->linger_us && p->state == PEER_OPEN && !p->hi_due && !p->hushed;
    say_bye(t, p);
    ring_push(t, &(tr_event_t){.kind = TR_PEER_GONE, .token = p->token, .err = HEDDLE_ERR_GONE});
    HASH_DELETE(by_token, t->by_token, p);
    if (p->remote_line) HASH_DELETE(by_line, t->by_line, p);
    if (p->dirty) {
        DL_DELETE2(t->dirty, p, dirty_prev, dirty_next);
        t->dirty_count--;
        p->dirty = false;
    }
    DL_DELETE(t->peers, p);
    DL_APPEND(t->closing, p);
    p->state = p->link ? PEER_CLOSING : PEER_CLOSED;
    p->cut_us = t->carrier->linger_us == CLOCK_NEVER ? CLOCK_NEVER : t->now_us + t->carrier->linger_us;
    exchange_schedule(t, p->cut_us);
    t->reap_due = true;
    if (p->link && t->carrier->abandon) t->carrier->abandon(p);
}

void peer_cut(transfer_t *t, peer_t *p)
{
    if (t->carrier->linger_us != CLOCK_NEVER) p->hushed = p->force = true;
    peer_end(t, p);
}

static bool may_disconnect(const transfer_t *t, const peer_t *p)
{
    bool is_done = p->in_flight == 0 && !p->bye_due;
    return p->state == PEER_CLOSING && !p->disconnecting && (is_done || p->force || t->now_us >= p->cut_us);
}

void peers_reap(transfer_t *t)
{
    if (!t->reap_due) return;
    t->reap_due = false;
    peer_t *p, *next;
    DL_FOREACH_SAFE(t->closing, p, next) {
        if (p->state == PEER_CLOSING && !p->disconnecting && !p->force) say_bye(t, p);
        if (may_disconnect(t, p)) {
            p->disconnecting = true;
            set_blocked(t, p, false);
            t->carrier->disconnect(t, p);
        }
        if (p->state == PEER_CLOSED && p->in_flight == 0) {
            DL_DELETE(t->closing, p);
            t->peer_count--;
            if (p->link && t->carrier->release) t->carrier->release(p);
            free(p);
        }
    }
}

/* True when `due_us` has come; else the timers run then. */
static bool is_due(transfer_t *t, uint64_t due_us)
{
    if (t->now_us >= due_us) return true;
    exchange_schedule(t, due_us);
    return false;
}

static void beat(transfer_t *t, peer_t *p)
{
    send_t *s = peer_send_begin(p);
    p->sent_us = t->now_us;
    exchange_schedule(t, t->now_us + t->beat_us);
    if (s && peer_send(t, s, &(frame_t){.kind = FRAME_BEAT, .line = p->line})) t->counters.beats_out++;
}

/* Asks held back by our own pace: the source cannot answer what it was not asked, and must not be blamed
 * for it. */
static void beat_for(transfer_t *t, peer_t *p)
{
    p->heard_us = t->now_us;
    exchange_schedule(t, t->now_us + t->beat_us);
    ring_offer(t, &(tr_event_t){.kind = TR_BEAT, .token = p->token});
}

static bool is_quiet(const peer_t *p)
{
    return p->asks_open == 0 && p->draining_count == 0 && p->standing_count == 0 && p->in_flight == 0 &&
           !p->blocked;
}

/* It takes nothing, or what nobody wants any more keeps a region from being used. */
static bool is_stuck(transfer_t *t, const peer_t *p)
{
    return ((p->in_flight > 0 || p->blocked) && is_due(t, p->moved_us + t->serve_us)) ||
           (p->draining_count > 0 && is_due(t, p->drained_us + EXCHANGE_DRAIN_US));
}

static bool is_retired(transfer_t *t, peer_t *p)
{
    if (!is_quiet(p)) p->quiet_us = 0;
    else if (p->quiet_us == 0) p->quiet_us = t->now_us;
    return is_due(t, (p->quiet_us ? p->quiet_us : t->now_us) + EXCHANGE_RETIRE_US) && p->quiet_us;
}

void peers_timers(transfer_t *t)
{
    peer_t *p, *next;
    DL_FOREACH_SAFE(t->peers, p, next) {
        if (is_stuck(t, p)) {
            peer_cut(t, p);
            continue;
        }
        if (p->retiring && is_retired(t, p)) {
            peer_end(t, p);
            continue;
        }
        bool idle = p->state == PEER_OPEN && p->in_flight == 0 && !p->blocked;
        if (idle && p->standing_count > 0 && is_due(t, p->sent_us + t->beat_us)) beat(t, p);
        if (p->gathered && t->stalled && is_due(t, p->heard_us + t->beat_us)) beat_for(t, p);
    }
    DL_FOREACH(t->closing, p) {
        if (p->state == PEER_CLOSING && !p->disconnecting && p->cut_us != CLOCK_NEVER &&
            is_due(t, p->cut_us))
            t->reap_due = true;
    }
}
