/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/conn.h"

#include "transfer/exchange_state.h"

#include <stdlib.h>
#include <utlist.h>

/* ---- frames that go out ---- */

/* Marks a connection as having something to send; pump serves the marked ones in turns. */
void conn_touch(transfer_t *t, conn_t *c)
{
    t->x->paced_us = 0;
    if (c->dirty || !conn_is_live(c)) return;
    DL_APPEND2(t->x->dirty, c, dirty_prev, dirty_next);
    t->x->dirty_count++;
    c->dirty = true;
}

bool conn_has_frames(const conn_t *c)
{
    return c->state == CONN_GREETING || c->ready || c->gathered || c->refusing || c->dropped;
}

/* The count lets a turn skip the search when no connection is blocked. */
static void set_blocked(transfer_t *t, conn_t *c, bool blocked)
{
    if (c->blocked != blocked) t->x->blocked_count += blocked ? 1 : -1u;
    c->blocked = blocked;
}

/* A peer that has taken back its requests need not take anything, so that the connection is not blocked.  One
 * whose requests wait must take what says that we are alive. */
void conn_untouch(transfer_t *t, conn_t *c)
{
    if (!conn_has_frames(c) && c->standing_count == 0) set_blocked(t, c, false);
    if (!c->dirty) return;
    DL_DELETE2(t->x->dirty, c, dirty_prev, dirty_next);
    t->x->dirty_count--;
    c->dirty = false;
}

static send_t *pop_send(send_t **list)
{
    send_t *s = *list;
    if (s) *list = s->next;
    return s;
}

send_t *conn_send_begin(conn_t *c) { return pop_send(&c->free_control); }

send_t *conn_data_begin(conn_t *c) { return pop_send(&c->free_data); }

/* The frame was not used, or has ended.  HI has a buffer of its own and is sent once, so that it has no
 * list. */
void conn_send_end(send_t *s)
{
    conn_t *c = conn_of(s->end);
    if (s->kind == SEND_HI) return;
    send_t **list = s->kind == SEND_DATA ? &c->free_data : &c->free_control;
    s->next = *list;
    *list = s;
}

/* The send deadline starts when the peer must take something, and not earlier: a quiet connection may be
 * quiet for hours. */
bool conn_send(transfer_t *t, send_t *s, const frame_t *f)
{
    conn_t *c = conn_of(s->end);
    s->frame_bytes = (uint32_t)frame_encode(f, s->frame);
    /* From here on the peer must take something within the serve deadline. */
    if (!(c->in_flight > 0 || c->blocked)) {
        c->moved_us = t->now_us;
        exchange_schedule(t, t->now_us + t->x->serve_us);
    }
    c->in_flight++;
    bool taken = t->carrier->send(t, &c->end, s);
    if (!taken) {
        c->in_flight--;
        conn_send_end(s);
    }
    set_blocked(t, c, !taken);
    return taken;
}

/* A carrier does not report which link has room again, so that every blocked one is tried when it has
 * moved. */
void conns_unblock(transfer_t *t)
{
    if (t->x->blocked_count == 0) return;
    for (conn_t *c = t->x->conns; c; c = c->next)
        if (c->blocked) conn_touch(t, c);
    for (conn_t *c = t->x->closing; c; c = c->next) t->x->reap_due |= c->blocked;
}

void conn_received(const transfer_t *t, conn_t *c)
{
    c->received_us = t->now_us;
    c->owed_us = c->asks_open > c->gathered_count ? t->now_us : 0;
}

/* ---- how connections begin ---- */

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
conn_t *conn_new(transfer_t *t, uint64_t token)
{
    if (t->x->conn_count >= EXCHANGE_PEERS_MAX || !ring_reserve(&t->x->ring)) return NULL;
    conn_t *c = calloc(1, sizeof *c);
    if (c) {
        c->end.token = token;
        HASH_ADD(by_token, t->x->by_token, end.token, sizeof c->end.token, c);
    }
    if (!c || !c->by_token.tbl) {
        free(c);
        ring_release(&t->x->ring);
        return NULL;
    }
    c->end.transfer = t;
    c->end.line = t->x->next_line++;
    c->received_us = c->moved_us = c->sent_us = t->now_us;
    for (uint32_t i = 0; i < EXCHANGE_DATA_SENDS; i++) {
        c->data[i] = (send_t){.end = &c->end,
                              .kind = SEND_DATA,
                              .slot = i,
                              .frame = c->data[i].small,
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
    if (c->state == CONN_GREETING) c->state = CONN_OPEN; /* it may have broken within the send */
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
bool conn_bind_line(transfer_t *t, conn_t *c, uint64_t line)
{
    if (conn_of_line(t, line)) return false;
    if (c->end.remote_line) HASH_DELETE(by_line, t->x->by_line, c);
    c->end.remote_line = line;
    HASH_ADD(by_line, t->x->by_line, end.remote_line, sizeof c->end.remote_line, c);
    if (!c->by_line.tbl) c->end.remote_line = 0;
    return c->end.remote_line != 0;
}

/* Frees a connection that never was in use: it has no events to report. */
void conn_discard(transfer_t *t, conn_t *c)
{
    HASH_DELETE(by_token, t->x->by_token, c);
    DL_DELETE(t->x->conns, c);
    t->x->conn_count--;
    ring_release(&t->x->ring);
    free(c);
}

/* A peer that came back by itself has a connection before the end of its former one was seen. */
int conn_find(transfer_t *t, const peer_ref_t *ref, conn_t **ret_conn)
{
    conn_t *c = conn_of_token(t, ref->token);
    if (ring_has_gone(&t->x->ring, ref->token)) return HEDDLE_ERR_GONE;
    if (c && c->state != CONN_BROKEN) {
        *ret_conn = c;
        return HEDDLE_OK;
    }
    if (c || t->x->token == 0 || ref->token == 0) return HEDDLE_ERR_AGAIN;
    if (ref->address.bytes == 0 || ref->address.bytes > LIMIT_ADDRESS_BYTES) return HEDDLE_ERR_GONE;
    c = conn_new(t, ref->token);
    if (!c) return HEDDLE_ERR_AGAIN;
    if (t->carrier->connect(t, &c->end, ref->address) != HEDDLE_OK) {
        conn_discard(t, c);
        return HEDDLE_ERR_GONE;
    }
    open_conn(t, c);
    *ret_conn = c;
    return HEDDLE_OK;
}

bool conn_connect_back(transfer_t *t, conn_t *c)
{
    if (t->carrier->connect(t, &c->end, bytes_of(c->address, c->address_bytes)) != HEDDLE_OK) return false;
    open_conn(t, c);
    return true;
}

/* ---- how connections end ---- */

/* A link may break inside a send, where ending the connection would free what the caller uses. It is
 * marked here and ended in the next turn. */
void conn_note_broken(transfer_t *t, conn_t *c)
{
    if (conn_is_live(c)) c->state = CONN_BROKEN;
    else conn_hurry(t, c);
}

/* BYE is a courtesy: without it the peer finds out by its own deadline. */
static void send_bye(transfer_t *t, conn_t *c)
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

void conn_end(transfer_t *t, conn_t *c, conn_end_t how, bool is_receiving)
{
    uint64_t linger_us = t->carrier->linger_us;
    bool is_cut = c->state == CONN_BROKEN || is_receiving || (how == END_CUT && linger_us != CLOCK_NEVER);
    bool says_bye = how == END_BYE && linger_us && c->state == CONN_OPEN;
    ring_push(&t->x->ring,
              &(tr_event_t){.kind = TR_PEER_GONE, .token = c->end.token, .err = HEDDLE_ERR_GONE});
    HASH_DELETE(by_token, t->x->by_token, c);
    if (c->end.remote_line) HASH_DELETE(by_line, t->x->by_line, c);
    conn_untouch(t, c);
    DL_DELETE(t->x->conns, c);
    DL_APPEND(t->x->closing, c);
    c->state = !c->end.link ? CONN_CLOSED : says_bye ? CONN_LEAVING : CONN_LINGERING;
    send_bye(t, c);
    if (is_cut && c->end.link) c->state = CONN_CUTTING;
    c->cut_us = linger_us == CLOCK_NEVER ? CLOCK_NEVER : t->now_us + linger_us;
    exchange_schedule(t, c->cut_us);
    t->x->reap_due = true;
}

/* Frees connections that have ended. A link is closed when all is sent or its time is over, and memory
 * goes when no frame of it is in flight. */
void conns_reap(transfer_t *t)
{
    if (!t->x->reap_due) return;
    t->x->reap_due = false;
    conn_t *c, *next;
    DL_FOREACH_SAFE(t->x->closing, c, next)
    {
        send_bye(t, c);
        bool is_over = t->now_us >= c->cut_us || (c->state == CONN_LINGERING && c->in_flight == 0);
        if (c->state == CONN_CUTTING || (c->state < CONN_CUTTING && is_over)) {
            c->state = CONN_DISCONNECTING;
            set_blocked(t, c, false);
            t->carrier->disconnect(&c->end);
        }
        if (c->state != CONN_CLOSED || c->in_flight > 0) continue;
        DL_DELETE(t->x->closing, c);
        t->x->conn_count--;
        if (c->end.link && t->carrier->release) t->carrier->release(&c->end);
        free(c);
    }
}
