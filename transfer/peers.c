/* SPDX-License-Identifier: Apache-2.0 */
/* Peers of the exchange: HI, connections, their end, and what time does to them. */
#include "core/failpoint.h"
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
        p->data[i] = (send_t){.peer = p, .frame = p->data[i].small, .slot = i, .data = true, .next = p->free_data};
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

void peer_send(transfer_t *t, send_t *s, const frame_t *f)
{
    peer_t *p = s->peer;
    s->frame_bytes = (uint32_t)frame_encode(f, s->frame);
    if (FAILPOINT("transfer.mangle")) s->frame[1] ^= 0xff;
    if (p->in_flight++ == 0) {
        p->moved_us = t->now_us;
        exchange_schedule(t, t->now_us + t->serve_us);
    }
    t->carrier->send(t, p, s);
}

static void say_hi(transfer_t *t, peer_t *p)
{
    frame_t f = {.kind = FRAME_HI, .line = p->line};
    f.hi.token = t->token;
    f.hi.answer = p->answer;
    f.hi.address = t->carrier->address(t);
    peer_send(t, &p->hi, &f);
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

/* A node that has not drained TR_PEER_GONE yet would take the fresh asks for dead ones: it must see the event first. */
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
    p->state = PEER_OPEN;
    say_hi(t, p);
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
    if (p && (int64_t)(f->line - p->remote_line) <= 0) return;    /* said again, or of a connection given up since */
    if (p) peer_end(t, p);                 /* it dropped us and came back before its end reached us */
    accept_peer(t, f);
}

bool peer_connect_back(transfer_t *t, peer_t *p)
{
    if (t->carrier->connect(t, p, bytes_of(p->address, p->address_bytes)) != HEDDLE_OK) return false;
    p->state = PEER_OPEN;
    say_hi(t, p);
    return true;
}

void peer_end(transfer_t *t, peer_t *p)
{
    if (p->state >= PEER_CLOSING) return;
    receive_end_peer(t, p);
    serve_end_peer(t, p);
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
    t->reap_due = true;
}

/* A peer that takes nothing keeps its link: cutting it in the middle of a message would leave a torn one behind. */
static bool may_disconnect(const transfer_t *t, const peer_t *p)
{
    return p->state == PEER_CLOSING && !p->disconnecting && (!t->carrier->lingers || p->force || p->in_flight == 0);
}

void peers_reap(transfer_t *t)
{
    if (!t->reap_due) return;
    t->reap_due = false;
    peer_t *p, *next;
    DL_FOREACH_SAFE(t->closing, p, next) {
        if (may_disconnect(t, p)) {
            p->disconnecting = true;
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
    if (!s) return;
    t->counters.beats_out++;
    peer_send(t, s, &(frame_t){.kind = FRAME_BEAT, .line = p->line});
}

/* Asks held back by our own pace: the source cannot answer what it was not asked, and must not be blamed for it. */
static void beat_for(transfer_t *t, peer_t *p)
{
    p->heard_us = t->now_us;
    exchange_schedule(t, t->now_us + t->beat_us);
    ring_offer(t, &(tr_event_t){.kind = TR_BEAT, .token = p->token});
}

static bool is_quiet(const peer_t *p)
{
    return p->asks_open == 0 && p->draining_count == 0 && p->standing_count == 0 && p->in_flight == 0;
}

/* It takes nothing, or what nobody wants any more keeps a region from being used. */
static bool is_stuck(transfer_t *t, const peer_t *p)
{
    return (p->in_flight > 0 && is_due(t, p->moved_us + t->serve_us)) ||
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
        if (is_stuck(t, p) || (p->retiring && is_retired(t, p))) {
            peer_end(t, p);
            continue;
        }
        if (p->standing_count > 0 && p->in_flight == 0 && p->state == PEER_OPEN && is_due(t, p->sent_us + t->beat_us)) beat(t, p);
        if (p->gathered && t->stalled && is_due(t, p->heard_us + t->beat_us)) beat_for(t, p);
    }
}
