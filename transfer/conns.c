/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of the exchange: how they begin (HI), their states, their keepalives and deadlines, and how
 * they end.  See transfer/exchange.h for the states. */
#include "transfer/exchange.h"

#include <stdlib.h>
#include <utlist.h>

conn_t *conn_of_token(transfer_t *t, uint64_t token)
{
    conn_t *c;
    HASH_FIND(by_token, t->x->by_token, &token, sizeof token, c);
    return c;
}

conn_t *conn_of_line(transfer_t *t, uint64_t line)
{
    conn_t *c;
    HASH_FIND(by_line, t->x->by_line, &line, sizeof line, c);
    return c;
}

/* All frames of a connection are allocated with it, so that no send can fail for lack of memory later.
 * NULL when there are too many, or no memory. */
static conn_t *conn_new(transfer_t *t, uint64_t token)
{
    if (t->x->conn_count >= EXCHANGE_PEERS_MAX || !ring_reserve(t)) return NULL;
    conn_t *c = calloc(1, sizeof *c);
    if (c) {
        c->end.token = token;
        HASH_ADD(by_token, t->x->by_token, end.token, sizeof c->end.token, c);
    }
    if (!c || !c->by_token.tbl) {
        free(c);
        ring_release(t);
        return NULL;
    }
    c->end.transfer = t;
    c->end.line = t->x->next_line++;
    c->heard_us = c->moved_us = c->sent_us = t->now_us;
    for (uint32_t i = 0; i < EXCHANGE_DATA_SENDS; i++) {
        c->data[i] = (send_t){.end = &c->end, .kind = SEND_DATA, .slot = i, .frame = c->data[i].small,
                              .next = c->free_data};
        c->free_data = &c->data[i];
    }
    for (uint32_t i = 0; i < EXCHANGE_CONTROL_SENDS; i++) {
        c->control[i] = (send_t){.end = &c->end, .frame = c->control[i].small, .next = c->free_control};
        c->free_control = &c->control[i];
    }
    c->hi = (send_t){.end = &c->end, .kind = SEND_HI, .frame = c->hi_frame};
    DL_APPEND(t->x->conns, c);
    t->x->conn_count++;
    return c;
}

/* HI carries our address, so that the peer can connect back. */
bool conn_hi(transfer_t *t, conn_t *c)
{
    frame_t f = {.kind = FRAME_HI, .line = c->end.line};
    f.hi.token = t->x->token;
    f.hi.answer = c->answer;
    f.hi.address = t->carrier->address(t);
    if (!conn_send(t, &c->hi, &f)) return false;
    if (c->state == CONN_GREETING) c->state = CONN_OPEN;    /* it may have broken within the send */
    return true;
}

/* HI is the first frame, and goes out as soon as the carrier takes one: other frames mean nothing to the
 * peer before it. */
static void open_conn(transfer_t *t, conn_t *c)
{
    c->state = CONN_GREETING;
    conn_hi(t, c);
    conn_touch(t, c);
}

/* From now on frames of this line belong to the connection. False: the line is in use, or no memory. */
static bool bind_line(transfer_t *t, conn_t *c, uint64_t line)
{
    if (conn_of_line(t, line)) return false;
    if (c->end.remote_line) HASH_DELETE(by_line, t->x->by_line, c);
    c->end.remote_line = line;
    HASH_ADD(by_line, t->x->by_line, end.remote_line, sizeof c->end.remote_line, c);
    if (!c->by_line.tbl) c->end.remote_line = 0;
    return c->end.remote_line != 0;
}

/* A node that has not drained TR_PEER_GONE yet would take the fresh asks for dead ones: it must see the
 * event first. */
static bool is_gone_undrained(const transfer_t *t, uint64_t token)
{
    for (uint32_t i = 0; t->x->gone_undrained && i < t->x->ring_count; i++) {
        const tr_event_t *e = &t->x->ring[(t->x->ring_head + i) % EXCHANGE_RING_MAX];
        if (e->kind == TR_PEER_GONE && e->token == token) return true;
    }
    return false;
}

/* Frees a connection that never was in use: it has no events to report. */
static void discard(transfer_t *t, conn_t *c)
{
    HASH_DELETE(by_token, t->x->by_token, c);
    DL_DELETE(t->x->conns, c);
    t->x->conn_count--;
    ring_release(t);
    free(c);
}

/* Finds the connection to a peer, or begins one. AGAIN: not now, ask again later; GONE: it cannot be
 * reached. */
int conn_find(transfer_t *t, const peer_ref_t *ref, conn_t **ret_conn)
{
    conn_t *c = conn_of_token(t, ref->token);
    if (c && c->state != CONN_BROKEN) {
        *ret_conn = c;
        return HEDDLE_OK;
    }
    if (c || t->x->token == 0 || ref->token == 0 || is_gone_undrained(t, ref->token)) return HEDDLE_ERR_AGAIN;
    if (ref->address.bytes == 0 || ref->address.bytes > LIMIT_ADDRESS_BYTES) return HEDDLE_ERR_GONE;
    c = conn_new(t, ref->token);
    if (!c) return HEDDLE_ERR_AGAIN;
    if (t->carrier->connect(t, &c->end, ref->address) != HEDDLE_OK) {
        discard(t, c);
        return HEDDLE_ERR_GONE;
    }
    open_conn(t, c);
    *ret_conn = c;
    return HEDDLE_OK;
}

/* Both ends may begin at the same time; one connection then serves both.  A HI with a newer line means that
 * the peer has given up the old connection.  Connecting back happens in the next turn, and not in this
 * upcall. */
void conns_hi(transfer_t *t, const frame_t *f)
{
    conn_t *c;
    if (f->hi.answer) {    /* The peer answers our HI: frames of its line belong to this connection. */
        DL_SEARCH_SCALAR(t->x->conns, c, end.line, f->hi.answer);
        if (c) bind_line(t, c, f->line);
        return;
    }
    c = conn_of_token(t, f->hi.token);
    if (c && !c->end.remote_line) {            /* both began at once: one connection serves both */
        bind_line(t, c, f->line);
        return;
    }
    if (c && (int64_t)(f->line - c->end.remote_line) <= 0)
        return;                                /* said again, or of a connection given up since */
    if (c) conn_end(t, c, END_CUT);            /* it dropped us and came back before its end reached us */
    c = t->x->token ? conn_new(t, f->hi.token) : NULL;
    if (!c) return;
    c->state = CONN_ACCEPTED;
    c->answer = f->line;
    c->address_bytes = (uint32_t)f->hi.address.bytes;
    memcpy(c->address, f->hi.address.data, f->hi.address.bytes);
    if (bind_line(t, c, f->line)) conn_touch(t, c);
    else discard(t, c);
}

bool conn_connect_back(transfer_t *t, conn_t *c)
{
    if (t->carrier->connect(t, &c->end, bytes_of(c->address, c->address_bytes)) != HEDDLE_OK) return false;
    open_conn(t, c);
    return true;
}

/* BYE is a courtesy: without it the peer finds out by its own deadline. */
static void say_bye(transfer_t *t, conn_t *c)
{
    send_t *s = c->state == CONN_LEAVING ? conn_send_begin(c) : NULL;
    if (!s || !conn_send(t, s, &(frame_t){.kind = FRAME_BYE, .line = c->end.line})) return;
    if (c->state == CONN_LEAVING) c->state = CONN_LINGERING;
}

/* The link is cut in the next turn, whatever is in flight. */
void conn_hurry(transfer_t *t, conn_t *c)
{
    if (c->state < CONN_CUTTING) c->state = CONN_CUTTING;
    t->x->reap_due = true;
}

/* Requests of both sides end first, and their events come before TR_PEER_GONE: the caller may then use
 * other sources at once. */
void conn_end(transfer_t *t, conn_t *c, conn_end_t how)
{
    if (!conn_is_live(c)) return;
    uint64_t linger_us = t->carrier->linger_us;
    bool is_receiving = receive_end_conn(t, c);    /* nothing is written after a link was cut */
    bool is_cut = c->state == CONN_BROKEN || is_receiving || (how == END_CUT && linger_us != CLOCK_NEVER);
    bool says_bye = how == END_BYE && linger_us && c->state == CONN_OPEN;
    serve_end_conn(t, c);
    ring_push(t, &(tr_event_t){.kind = TR_PEER_GONE, .token = c->end.token, .err = HEDDLE_ERR_GONE});
    HASH_DELETE(by_token, t->x->by_token, c);
    if (c->end.remote_line) HASH_DELETE(by_line, t->x->by_line, c);
    conn_untouch(t, c);
    DL_DELETE(t->x->conns, c);
    DL_APPEND(t->x->closing, c);
    c->state = !c->end.link ? CONN_CLOSED : says_bye ? CONN_LEAVING : CONN_LINGERING;
    say_bye(t, c);
    if (is_cut && c->end.link) c->state = CONN_CUTTING;
    c->cut_us = linger_us == CLOCK_NEVER ? CLOCK_NEVER : t->now_us + linger_us;
    exchange_schedule(t, c->cut_us);
    t->x->reap_due = true;
    if (c->end.link && t->carrier->abandon) t->carrier->abandon(&c->end);
}

/* Frees connections that have ended. A link is closed when all is sent or its time is over, and memory
 * goes when no frame of it is in flight. */
void conns_reap(transfer_t *t)
{
    if (!t->x->reap_due) return;
    t->x->reap_due = false;
    conn_t *c, *next;
    DL_FOREACH_SAFE(t->x->closing, c, next) {
        say_bye(t, c);
        bool is_over = t->now_us >= c->cut_us || (c->state == CONN_LINGERING && c->in_flight == 0);
        if (c->state == CONN_CUTTING || (c->state < CONN_CUTTING && is_over)) {
            c->state = CONN_DISCONNECTING;
            conn_set_blocked(t, c, false);
            t->carrier->disconnect(&c->end);
        }
        if (c->state != CONN_CLOSED || c->in_flight > 0) continue;
        DL_DELETE(t->x->closing, c);
        t->x->conn_count--;
        if (c->end.link && t->carrier->release) t->carrier->release(&c->end);
        free(c);
    }
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
void conns_timers(transfer_t *t)
{
    conn_t *c, *next;
    DL_FOREACH_SAFE(t->x->conns, c, next) {
        if (is_stuck(t, c)) {
            conn_end(t, c, t->carrier->linger_us == CLOCK_NEVER ? END_BYE : END_CUT);
            continue;
        }
        if (c->retiring && is_retired(t, c)) {
            conn_end(t, c, END_BYE);
            continue;
        }
        bool idle = c->state == CONN_OPEN && c->in_flight == 0 && !c->blocked;
        if (idle && c->standing_count > 0 && is_due(t, c->sent_us + t->x->beat_us)) {
            send_t *s = conn_send_begin(c);
            c->sent_us = t->now_us;
            exchange_schedule(t, t->now_us + t->x->beat_us);
            if (s && conn_send(t, s, &(frame_t){.kind = FRAME_BEAT, .line = c->end.line}))
                t->counters.beats_out++;
        }
        if (c->gathered && t->x->stalled && is_due(t, c->heard_us + t->x->beat_us)) {
            /* Asks held back by our own pace: the source cannot answer what it was not asked, and must not be
             * blamed for it. */
            c->heard_us = t->now_us;
            exchange_schedule(t, t->now_us + t->x->beat_us);
            ring_offer(t, &(tr_event_t){.kind = TR_BEAT, .token = c->end.token});
        }
    }
    DL_FOREACH(t->x->closing, c) {
        if (c->state < CONN_CUTTING && c->cut_us != CLOCK_NEVER && is_due(t, c->cut_us))
            t->x->reap_due = true;
    }
}
