/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange, in this order: its events, the frames that it sends, how connections begin, the read requests
 * of this process (receiver side), the shares and the requests of peers (source side), how connections end,
 * and its turns. */
#include "core/failpoint.h"
#include "transfer/exchange_state.h"

#include <assert.h>
#include <stdlib.h>
#include <utlist.h>

#define SERVE_DEADLINE_MS 10000u
#define BEAT_MS 50u
/* Requests beyond a peer's limit are refused one by one, up to this many at a time; further ones are ignored,
 * so that a faulty peer cannot use up the pool. */
#define REFUSALS_MAX 64u

_Static_assert(EXCHANGE_ASKS_MAX <= 1u << ASK_INDEX_BITS, "an ask's id holds its index");

/* ---- events ---- */

/* Events: a ring with room reserved for each one that must not be lost: the end of a read request and of a
 * connection. */

static bool ring_reserve(transfer_t *t)
{
    if (t->x->ring_count + t->x->ring_reserved >= EXCHANGE_RING_MAX) return false;
    t->x->ring_reserved++;
    return true;
}

static void ring_release(transfer_t *t) { t->x->ring_reserved--; }

/* Uses up the room that its cause has reserved. */
static void ring_push(transfer_t *t, const tr_event_t *event)
{
    t->x->ring_reserved--;
    t->x->ring[(t->x->ring_head + t->x->ring_count++) % EXCHANGE_RING_MAX] = *event;
    if (event->kind == TR_PEER_GONE) t->x->gone_undrained++;
}

/* Hints and keepalives have no reserved room: one that is lost is repeated, or not needed. */
static void ring_offer(transfer_t *t, const tr_event_t *event)
{
    if (ring_reserve(t)) ring_push(t, event);
}

/* ---- frames that go out ---- */

/* One timer for all: each cause asks for its time, and a run of the timers looks at every cause. */
static void exchange_schedule(transfer_t *t, uint64_t at_us)
{
    if (at_us < t->x->next_timer_us) t->x->next_timer_us = at_us;
}

/* Marks a connection as having something to send; pump serves the marked ones in turns. */
static void conn_touch(transfer_t *t, conn_t *c)
{
    t->x->paced_us = 0;
    if (c->dirty || !conn_is_live(c)) return;
    DL_APPEND2(t->x->dirty, c, dirty_prev, dirty_next);
    t->x->dirty_count++;
    c->dirty = true;
}

static void conn_untouch(transfer_t *t, conn_t *c)
{
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

static send_t *conn_send_begin(conn_t *c) { return pop_send(&c->free_control); }

/* The frame was not used, or has ended.  HI has a buffer of its own and is sent once, so that it has no
 * list. */
static void send_end(send_t *s)
{
    conn_t *c = conn_of(s->end);
    if (s->kind == SEND_HI) return;
    send_t **list = s->kind == SEND_DATA ? &c->free_data : &c->free_control;
    s->next = *list;
    *list = s;
}

/* The count lets a turn skip the search when no connection is blocked. */
static void conn_set_blocked(transfer_t *t, conn_t *c, bool blocked)
{
    if (c->blocked != blocked) t->x->blocked_count += blocked ? 1 : -1u;
    c->blocked = blocked;
}

/* The send deadline starts when the peer must take something, and not earlier: a quiet connection may be
 * quiet for hours. */
static bool conn_send(transfer_t *t, send_t *s, const frame_t *f)
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
        send_end(s);
    }
    conn_set_blocked(t, c, !taken);
    return taken;
}

/* A carrier does not report which link has room again, so that every blocked one is tried when it has
 * moved. */
static void unblock(transfer_t *t)
{
    if (t->x->blocked_count == 0) return;
    for (conn_t *c = t->x->conns; c; c = c->next)
        if (c->blocked) conn_touch(t, c);
    for (conn_t *c = t->x->closing; c; c = c->next) t->x->reap_due |= c->blocked;
}

/* ---- how connections begin ---- */

static conn_t *conn_of_token(transfer_t *t, uint64_t token)
{
    conn_t *c;
    HASH_FIND(by_token, t->x->by_token, &token, sizeof token, c);
    return c;
}

static conn_t *conn_of_line(transfer_t *t, uint64_t line)
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
static bool conn_hi(transfer_t *t, conn_t *c)
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
static int conn_find(transfer_t *t, const peer_ref_t *ref, conn_t **ret_conn)
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

static bool conn_connect_back(transfer_t *t, conn_t *c)
{
    if (t->carrier->connect(t, &c->end, bytes_of(c->address, c->address_bytes)) != HEDDLE_OK) return false;
    open_conn(t, c);
    return true;
}

/* ---- receiver: the read requests of this process ---- */

/* The entry's number changes with its next use, so that late frames of this use find nothing. */
static void ask_free(transfer_t *t, ask_t *a)
{
    a->state = ASK_FREE;
    a->conn = NULL;
    a->next = t->x->asks_free;
    t->x->asks_free = a;
}

/* What map() hung on the region that a read request writes into: the count of its open receives. */
static carrier_mapping_t *mapping_of(const ask_t *a) { return a->sink.mapping; }

/* NULL for the number of a request that has ended. */
static ask_t *find_ask(transfer_t *t, uint64_t id)
{
    uint64_t index = id & ((1u << ASK_INDEX_BITS) - 1);
    if (index >= t->x->asks_used) return NULL;
    ask_t *a = &t->x->asks[index];
    return a->id == id && a->state != ASK_FREE ? a : NULL;
}

static void ungather(ask_t *a)
{
    DL_DELETE(a->conn->gathered, a);
    a->conn->gathered_count--;
}

/* The request is over for the caller: its event is queued, or will never come. An entry with an open
 * receive is kept until the receive ends, since the transport still writes into its memory. */
static void leave(transfer_t *t, ask_t *a)
{
    conn_t *c = a->conn;
    c->asks_open--;
    if (a->state != ASK_RECEIVING) {
        ask_free(t, a);
        return;
    }
    a->state = ASK_DRAINING;
    if (c->draining_count++ > 0) return;
    c->drained_us = t->now_us;
    exchange_schedule(t, t->now_us + EXCHANGE_DRAIN_US);
}

/* Ends a request with its event. The pace gets back what a refused range has paid. */
static void end_ask(transfer_t *t, ask_t *a, tr_kind_t kind, int err)
{
    bool is_digested = kind == TR_ARRIVED && a->is_digested;
    ring_push(t, &(tr_event_t){.kind = kind,
                               .is_digested = is_digested,
                               .ask = a->id,
                               .cookie = a->cookie,
                               .token = a->conn->end.token,
                               .key = a->key,
                               .err = err});
    bool is_paid = a->state == ASK_SENT || a->state == ASK_RECEIVED;
    if (kind == TR_REFUSED && is_paid) {
        pace_refund(&t->x->pace_in, a->bytes);
        t->x->paced_us = 0;
    }
    leave(t, a);
}

/* One frame has up to 16 batched ranges of one key, as many as the pace allows.  They are paid for when they
 * are requested, since their bytes will come whole.  Where the carrier takes nothing now, the ranges stay
 * batched, and the pace gets its credit back.  True when a frame was sent, as with the three below. */
static bool send_asks(transfer_t *t, conn_t *c)
{
    send_t *s = c->gathered ? conn_send_begin(c) : NULL;
    if (!s) return false;
    frame_t f = {.kind = FRAME_ASK, .line = c->end.line, .ask = {.key = c->gathered->key}};
    uint32_t bytes = 0;
    for (const ask_t *a = c->gathered; a && f.count < LIMIT_ASK_RANGES; a = a->next) {
        if (memcmp(&a->key, &f.ask.key, sizeof a->key) != 0 || !pace_ready(&t->x->pace_in, t->now_us)) break;
        f.ask.ranges[f.count++] = (frame_range_t){a->id, a->offset, a->bytes};
        pace_take(&t->x->pace_in, a->bytes);
        bytes += a->bytes;
    }
    if (f.count == 0 || !conn_send(t, s, &f)) {
        if (f.count == 0) send_end(s);
        pace_refund(&t->x->pace_in, bytes);
        return false;
    }
    for (uint32_t i = 0; i < f.count; i++) {
        ask_t *a = c->gathered;
        ungather(a);
        a->state = ASK_SENT;
    }
    t->counters.asks_out += f.count;
    return true;
}

/* The request is only batched here, and goes out with others of its connection: one frame has up to 16
 * ranges. A full batch goes out at once. */
int exchange_ask(transfer_t *t, const peer_ref_t *from, const tr_read_t *read, uint64_t *ret_ask)
{
    exchange_enter(t);
    const sink_t *sink = read->sink;
    uint64_t at = read->at;
    uint32_t bytes = read->bytes;
    assert(sink->mapping && "map() comes before ask()");
    if (sink->memory != HEDDLE_MEMORY_HOST) return HEDDLE_ERR_USAGE;
    if (bytes == 0 || bytes > LIMIT_CHUNK_MAX_BYTES || at > sink->bytes || bytes > sink->bytes - at)
        return HEDDLE_ERR_LIMIT;
    conn_t *c;
    int rc = conn_find(t, from, &c);
    if (rc != HEDDLE_OK) return rc;
    if (c->asks_open >= LIMIT_ASKS_PER_PEER || !ring_reserve(t)) return HEDDLE_ERR_AGAIN;
    ask_t *a = t->x->asks_free;
    if (a) t->x->asks_free = a->next;
    else if (t->x->asks_used < EXCHANGE_ASKS_MAX) a = &t->x->asks[t->x->asks_used++];
    if (a) a->id = ++t->x->ask_generation << ASK_INDEX_BITS | (uint64_t)(a - t->x->asks);
    if (!a) {
        ring_release(t);
        return HEDDLE_ERR_AGAIN;
    }
    a->state = ASK_GATHERED;
    a->bytes = bytes;
    a->offset = read->offset;
    a->cookie = read->cookie;
    a->key = read->key;
    bool has_leaves = sink->leaves && at % LIMIT_PAGE_BYTES == 0;
    a->sink = (sink_t){.memory = sink->memory,
                       .base = sink->base + at,
                       .bytes = bytes,
                       .leaves = has_leaves ? sink->leaves + at / LIMIT_PAGE_BYTES : NULL,
                       .mapping = sink->mapping};
    a->conn = c;
    DL_APPEND(c->gathered, a);
    c->asks_open++;
    *ret_ask = a->id;
    conn_touch(t, c);
    if (++c->gathered_count >= LIMIT_ASK_RANGES && c->state == CONN_OPEN && !c->blocked) send_asks(t, c);
    return HEDDLE_OK;
}

/* No event follows, since the caller has given the request up. One that the source may be working on
 * needs an UNASK; a batched one was never sent. */
void exchange_drop_ask(transfer_t *t, uint64_t id)
{
    exchange_enter(t);
    ask_t *a = find_ask(t, id);
    if (!a || !(a->state == ASK_GATHERED || a->state == ASK_SENT || a->state == ASK_RECEIVING)) return;
    ring_release(t);
    if (a->state == ASK_GATHERED) ungather(a);
    if (a->state == ASK_SENT) {
        a->state = ASK_DROPPED;
        a->conn->asks_open--;
        DL_APPEND(a->conn->dropped, a);
        conn_touch(t, a->conn);
        return;
    }
    leave(t, a);
}

/* Cancelled requests are freed when the frame is on its way. Data that cross it on the way are discarded. */
static bool send_unasks(transfer_t *t, conn_t *c)
{
    send_t *s = c->dropped ? conn_send_begin(c) : NULL;
    if (!s) return false;
    frame_t f = {.kind = FRAME_UNASK, .line = c->end.line};
    for (const ask_t *a = c->dropped; a && f.count < LIMIT_ASK_RANGES; a = a->next)
        f.unask.asks[f.count++] = a->id;
    if (!conn_send(t, s, &f)) return false;
    for (uint32_t i = 0; i < f.count; i++) {
        ask_t *a = c->dropped;
        DL_DELETE(c->dropped, a);
        ask_free(t, a);
    }
    return true;
}

/* A source is not trusted: data must belong to an open request of its connection, and have exactly its
 * shape. */
const sink_t *exchange_place(transfer_t *t, const frame_t *f, size_t body_bytes, placing_t how)
{
    ask_t *a = find_ask(t, f->data.ask);
    if (!a || a->state != ASK_SENT || a->conn->end.remote_line != f->line) {
        t->counters.late++;
        return NULL;
    }
    a->conn->heard_us = t->now_us;
    if (f->data.offset != a->offset || f->data.bytes != a->bytes || body_bytes != a->bytes) {
        end_ask(t, a, TR_REFUSED, HEDDLE_ERR_PROTOCOL);
        return NULL;
    }
    a->is_digested = how == BY_COPY && a->sink.leaves;
    a->state = ASK_RECEIVING;
    mapping_of(a)->receiving++;
    return &a->sink;
}

/* A request that was dropped meanwhile only drains: its bytes count as nothing. */
void exchange_arrived(transfer_t *t, uint64_t id, bool ok)
{
    ask_t *a = find_ask(t, id);
    assert(a && (a->state == ASK_RECEIVING || a->state == ASK_DRAINING));
    mapping_of(a)->receiving--;
    if (a->state == ASK_DRAINING) {
        t->counters.late++;
        if (a->conn) {
            a->conn->draining_count--;
            a->conn->drained_us = t->now_us;
        }
        ask_free(t, a);
        return;
    }
    a->state = ASK_RECEIVED;
    if (ok) {
        t->counters.data_in++;
        t->counters.bytes_in += a->bytes;
    }
    end_ask(t, a, ok ? TR_ARRIVED : TR_REFUSED, ok ? HEDDLE_OK : HEDDLE_ERR_GONE);
}

/* Ends all requests of a connection, as refused with GONE. True while a receive is open: then the link
 * must be cut before the memory can be used. */
static bool receive_end_conn(transfer_t *t, conn_t *c)
{
    bool is_receiving = false;
    for (uint32_t i = 0; i < t->x->asks_used && (c->asks_open || c->dropped || c->draining_count); i++) {
        ask_t *a = &t->x->asks[i];
        if (a->state == ASK_FREE || a->conn != c) continue;
        if (a->state == ASK_GATHERED) ungather(a);
        if (a->state == ASK_DROPPED) {
            DL_DELETE(c->dropped, a);
            ask_free(t, a);
            continue;
        }
        if (a->state != ASK_DRAINING) end_ask(t, a, TR_REFUSED, HEDDLE_ERR_GONE);
        if (a->state != ASK_DRAINING) continue;
        is_receiving = true;
        c->draining_count--;
        a->conn = NULL;
    }
    return is_receiving;
}

/* ---- source: shares, and the requests of peers ---- */

/* Pending requests: entries of one pool, each in its connection's list and in the queue of its state. */

static standing_t *standing_take(transfer_t *t)
{
    standing_t *s = t->x->standing_free;
    if (s) t->x->standing_free = s->next;
    else if (t->x->standing_used < EXCHANGE_STANDING_MAX) s = &t->x->standing[t->x->standing_used++];
    return s;
}

/* The state alone determines the queue, so that an entry never is in two. */
static standing_t **queue_of(transfer_t *t, standing_t *s)
{
    switch (s->state) {
    case STANDING_HELD: return &t->x->held;
    case STANDING_WAITING: return &s->share->waiting;
    case STANDING_READY: return &s->conn->ready;
    case STANDING_REFUSING: break;
    }
    return &s->conn->refusing;
}

static void enqueue(transfer_t *t, standing_t *s, standing_state_t state)
{
    s->state = state;
    standing_t **queue = queue_of(t, s);
    DL_APPEND(*queue, s);
    if (state == STANDING_READY || state == STANDING_REFUSING) conn_touch(t, s->conn);
}

static void move(transfer_t *t, standing_t *s, standing_state_t state)
{
    standing_t **queue = queue_of(t, s);
    DL_DELETE(*queue, s);
    enqueue(t, s, state);
}

/* The refusal goes out in a later turn: it may be caused inside an upcall, where nothing is sent. */
static void refuse(transfer_t *t, standing_t *s, int err)
{
    s->err = err;
    move(t, s, STANDING_REFUSING);
    s->share = NULL; /* which may end before the refusal goes out */
}

static void standing_free(transfer_t *t, standing_t *s)
{
    standing_t **queue = queue_of(t, s);
    DL_DELETE(*queue, s);
    DL_DELETE2(s->conn->standing, s, conn_prev, conn_next);
    s->conn->standing_count--;
    s->next = t->x->standing_free;
    t->x->standing_free = s;
}

static share_t *find_share(transfer_t *t, const share_key_t *key)
{
    share_t *share;
    HASH_FIND(hh, t->x->shares, key, sizeof *key, share);
    return share;
}

/* A key that was unshared here is refused at once. An unknown key may be announced in a moment, and its
 * requests are held. */
static bool is_forgotten(const transfer_t *t, const share_key_t *key)
{
    for (uint32_t i = 0; i < t->x->forgotten_count; i++)
        if (!memcmp(&t->x->forgotten[i], key, sizeof *key)) return true;
    return false;
}

static void free_share(transfer_t *t, share_t *share)
{
    HASH_DELETE(hh, t->x->shares, share);
    if (share->region) t->x->share_count--;
    else t->x->expected_count--;
    extents_fini(&share->extents);
    region_unref(&share->region);
    free(share);
}

static bool is_inside(const share_t *share, uint64_t offset, uint64_t bytes)
{
    return offset <= share->region->bytes && bytes <= share->region->bytes - offset;
}

/* Decides the queue of a request: refused, held until a share of its key comes (`share` is NULL), ready, or
 * waiting for bytes that are not verified yet, or have no memory yet.  Every number in it comes from the
 * network. */
static void classify(transfer_t *t, standing_t *s, share_t *share)
{
    int err = 0;
    s->share = share;
    if (s->bytes == 0 || s->bytes > LIMIT_CHUNK_MAX_BYTES) err = HEDDLE_ERR_LIMIT;
    else if (!share && is_forgotten(t, &s->key)) err = HEDDLE_ERR_NOT_FOUND;
    else if (share && share->region && !is_inside(share, s->offset, s->bytes)) err = HEDDLE_ERR_LIMIT;
    if (err) refuse(t, s, err);
    else if (!share) exchange_schedule(t, t->now_us + EXCHANGE_HOLD_US);
    else if (extents_cover(&share->extents, s->offset, s->bytes)) move(t, s, STANDING_READY);
    else {
        move(t, s, STANDING_WAITING);
        exchange_schedule(t, t->now_us + t->x->serve_us);
    }
}

/* Requests may arrive before the key is known here, since the broker announces a version to several workers
 * at once.  Those that were held find it here.  NULL: no memory. */
static share_t *begin_share(transfer_t *t, const share_key_t *key)
{
    share_t *share = calloc(1, sizeof *share);
    if (share) {
        share->key = *key;
        HASH_ADD(hh, t->x->shares, key, sizeof share->key, share);
    }
    if (!share || !share->hh.tbl) {
        free(share);
        return NULL;
    }
    t->x->expected_count++;
    standing_t *s, *next;
    DL_FOREACH_SAFE(t->x->held, s, next)
    {
        if (!memcmp(&s->key, key, sizeof *key)) classify(t, s, share);
    }
    return share;
}

int exchange_expect(transfer_t *t, share_key_t key)
{
    exchange_enter(t);
    share_t *share = find_share(t, &key);
    if (share && share->region) return HEDDLE_OK;
    if (!share && t->x->expected_count >= EXCHANGE_EXPECTED_MAX) return HEDDLE_ERR_LIMIT;
    if (!share) share = begin_share(t, &key);
    if (!share) return HEDDLE_ERR_NO_MEMORY;
    share->moved_us = t->now_us;
    return HEDDLE_OK;
}

/* A share is expected first, if only for this moment.  Requests that came before its size was known are
 * judged by that now; none of them has its bytes yet. */
int exchange_share(transfer_t *t, region_t *r, share_key_t key)
{
    exchange_enter(t);
    share_t *share = find_share(t, &key);
    if (share && share->region) return HEDDLE_ERR_USAGE;
    if (t->x->share_count >= EXCHANGE_SHARES_MAX) return HEDDLE_ERR_LIMIT;
    if (!share) share = begin_share(t, &key);
    if (!share) return HEDDLE_ERR_NO_MEMORY;
    share->region = region_ref(r);
    share->moved_us = t->now_us;
    t->x->expected_count--;
    t->x->share_count++;
    standing_t *s, *next;
    DL_FOREACH_SAFE(share->waiting, s, next)
    {
        if (!is_inside(share, s->offset, s->bytes)) refuse(t, s, HEDDLE_ERR_LIMIT);
    }
    return HEDDLE_OK;
}

/* Bytes became readable; requests that waited for them are ready. */
int exchange_extend(transfer_t *t, share_key_t key, uint64_t offset, uint64_t bytes)
{
    exchange_enter(t);
    share_t *share = find_share(t, &key);
    if (!share || !share->region) return HEDDLE_ERR_NOT_FOUND;
    if (!is_inside(share, offset, bytes)) return HEDDLE_ERR_LIMIT;
    if (!extents_add(&share->extents, offset, bytes)) return HEDDLE_ERR_NO_MEMORY;
    share->moved_us = t->now_us;
    standing_t *s, *next;
    DL_FOREACH_SAFE(share->waiting, s, next)
    {
        if (extents_cover(&share->extents, s->offset, s->bytes)) move(t, s, STANDING_READY);
    }
    return HEDDLE_OK;
}

/* Pending requests are refused at once, so that their receivers ask another source. Sends in flight go on,
 * from copies of the carrier. */
void exchange_unshare(transfer_t *t, share_key_t key)
{
    exchange_enter(t);
    share_t *share = find_share(t, &key);
    if (!share) return;
    t->x->forgotten[t->x->forgotten_next] = key;
    t->x->forgotten_next = (t->x->forgotten_next + 1) % EXCHANGE_FORGOTTEN_MAX;
    if (t->x->forgotten_count < EXCHANGE_FORGOTTEN_MAX) t->x->forgotten_count++;
    for (conn_t *c = t->x->conns; c; c = c->next) {
        standing_t *s, *next;
        for (s = c->standing; s; s = next) {
            next = s->conn_next;
            if (s->share == share) refuse(t, s, HEDDLE_ERR_NOT_FOUND);
        }
    }
    free_share(t, share);
}

/* Several refusals fit in one frame. */
static bool send_refusals(transfer_t *t, conn_t *c)
{
    send_t *s = c->refusing ? conn_send_begin(c) : NULL;
    if (!s) return false;
    frame_t f = {.kind = FRAME_REFUSED, .line = c->end.line};
    for (const standing_t *r = c->refusing; r && f.count < LIMIT_ASK_RANGES; r = r->next)
        f.refused.rows[f.count++] = (frame_refusal_t){r->id, r->err};
    if (!conn_send(t, s, &f)) return false;
    for (uint32_t i = 0; i < f.count; i++) standing_free(t, c->refusing);
    t->counters.refused_out += f.count;
    c->sent_us = t->now_us;
    return true;
}

/* One range a call, straight from the region; the pace is paid for whole ranges. */
static bool send_data(transfer_t *t, conn_t *c)
{
    standing_t *ready = c->ready;
    send_t *s = ready ? pop_send(&c->free_data) : NULL;
    if (!s) return false;
    (void)FAILPOINT("transfer.data"); /* only to die or stop here */
    frame_t f;
    f.kind = FRAME_DATA;
    f.count = 0;
    f.line = c->end.line;
    f.data.ask = ready->id;
    f.data.offset = ready->offset;
    f.data.bytes = ready->bytes;
    s->body = (const uint8_t *)region_data(ready->share->region) + ready->offset;
    s->body_bytes = ready->bytes;
    if (!conn_send(t, s, &f)) return false;
    c->sent_us = t->now_us;
    pace_take(&t->x->pace_out, ready->bytes);
    standing_free(t, ready);
    return true;
}

/* Requests for a key that never came are refused after EXCHANGE_HOLD_US.  A share that makes no progress for
 * the serve deadline will not serve its requests: the receivers should try another source.  Progress moves
 * the deadline. */
static void expire_requests(transfer_t *t)
{
    while (t->x->held && t->now_us >= t->x->held->since_us + EXCHANGE_HOLD_US)
        refuse(t, t->x->held, HEDDLE_ERR_NOT_FOUND);
    if (t->x->held) exchange_schedule(t, t->x->held->since_us + EXCHANGE_HOLD_US);
    share_t *share, *next;
    HASH_ITER(hh, t->x->shares, share, next)
    while (share->waiting) {
        uint64_t since_us = share->waiting->since_us, due_us;
        due_us = (since_us > share->moved_us ? since_us : share->moved_us) + t->x->serve_us;
        if (t->now_us < due_us) {
            exchange_schedule(t, due_us);
            break;
        }
        refuse(t, share->waiting, HEDDLE_ERR_AGAIN);
    }
}

/* ---- how connections end ---- */

/* BYE is a courtesy: without it the peer finds out by its own deadline. */
static void send_bye(transfer_t *t, conn_t *c)
{
    send_t *s = c->state == CONN_LEAVING ? conn_send_begin(c) : NULL;
    if (!s || !conn_send(t, s, &(frame_t){.kind = FRAME_BYE, .line = c->end.line})) return;
    if (c->state == CONN_LEAVING) c->state = CONN_LINGERING;
}

/* The link is cut in the next turn, whatever is in flight. */
static void conn_hurry(transfer_t *t, conn_t *c)
{
    if (c->state < CONN_CUTTING) c->state = CONN_CUTTING;
    t->x->reap_due = true;
}

/* Requests of both sides end first, and their events come before TR_PEER_GONE: the caller may then use
 * other sources at once. */
static void conn_end(transfer_t *t, conn_t *c, conn_end_t how)
{
    if (!conn_is_live(c)) return;
    uint64_t linger_us = t->carrier->linger_us;
    bool is_receiving = receive_end_conn(t, c); /* nothing is written after a link was cut */
    bool is_cut = c->state == CONN_BROKEN || is_receiving || (how == END_CUT && linger_us != CLOCK_NEVER);
    bool says_bye = how == END_BYE && linger_us && c->state == CONN_OPEN;
    while (c->standing) standing_free(t, c->standing);
    ring_push(t, &(tr_event_t){.kind = TR_PEER_GONE, .token = c->end.token, .err = HEDDLE_ERR_GONE});
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

/* Both ends may begin at the same time; one connection then serves both.  A HI with a newer line means that
 * the peer has given up the old connection.  Connecting back happens in the next turn, and not in this
 * upcall. */
static void conns_hi(transfer_t *t, const frame_t *f)
{
    conn_t *c;
    if (f->hi.answer) { /* The peer answers our HI: frames of its line belong to this connection. */
        DL_SEARCH_SCALAR(t->x->conns, c, end.line, f->hi.answer);
        if (c) bind_line(t, c, f->line);
        return;
    }
    c = conn_of_token(t, f->hi.token);
    if (c && !c->end.remote_line) { /* both began at once: one connection serves both */
        bind_line(t, c, f->line);
        return;
    }
    if (c && (int64_t)(f->line - c->end.remote_line) <= 0)
        return;                     /* said again, or of a connection given up since */
    if (c) conn_end(t, c, END_CUT); /* it dropped us and came back before its end reached us */
    c = t->x->token ? conn_new(t, f->hi.token) : NULL;
    if (!c) return;
    c->state = CONN_ACCEPTED;
    c->answer = f->line;
    c->address_bytes = (uint32_t)f->hi.address.bytes;
    memcpy(c->address, f->hi.address.data, f->hi.address.bytes);
    if (bind_line(t, c, f->line)) conn_touch(t, c);
    else discard(t, c);
}

/* Frees connections that have ended. A link is closed when all is sent or its time is over, and memory
 * goes when no frame of it is in flight. */
static void conns_reap(transfer_t *t)
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
static void conns_timers(transfer_t *t)
{
    conn_t *c, *next;
    DL_FOREACH_SAFE(t->x->conns, c, next)
    {
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
        if (c->gathered && !pace_ready(&t->x->pace_in, t->now_us) && is_due(t, c->heard_us + t->x->beat_us)) {
            /* Asks held back by our own pace: the source cannot answer what it was not asked, and must not be
             * blamed for it. */
            c->heard_us = t->now_us;
            exchange_schedule(t, t->now_us + t->x->beat_us);
            ring_offer(t, &(tr_event_t){.kind = TR_BEAT, .token = c->end.token});
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
            conn_end(t, c, END_CUT);
            continue;
        }
        bool is_sent;
        if (c->state == CONN_GREETING) {
            is_sent = conn_hi(t, c);
        } else if (send_unasks(t, c) || send_refusals(t, c)) {
            is_sent = true;
        } else {
            bool may_ask = pace_ready(&t->x->pace_in, t->now_us),
                 may_send = pace_ready(&t->x->pace_out, t->now_us);
            is_sent = may_ask && send_asks(t, c);
            is_sent = (may_send && send_data(t, c)) || is_sent;
            bool asks_wait = c->gathered && !may_ask, data_wait = c->ready && !may_send;
            if (!is_sent && (asks_wait || data_wait) && c->state != CONN_BROKEN) {
                if (asks_wait) until_us = clock_earlier(until_us, pace_when(&t->x->pace_in, t->now_us));
                if (data_wait) until_us = clock_earlier(until_us, pace_when(&t->x->pace_out, t->now_us));
                /* A source is not blamed for what it was not asked: see the keepalive of conns_timers. */
                if (asks_wait) exchange_schedule(t, c->heard_us + t->x->beat_us);
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
    int n = 0;
    owner_check(t->owner);
    if (now_us > t->now_us) t->now_us = now_us;
    if (x->ring_count < (uint32_t)cap) {
        x->turn_sends = 0;
        for (uint32_t i = 0; i < EXCHANGE_TURN_PROGRESS && x->ring_count < (uint32_t)cap; i++) {
            unblock(t);
            pump(t);
            if (!t->carrier->progress(t)) break;
        }
        /* After progress: a process that was stopped itself finds its mail before it judges its peers. */
        if (t->now_us >= x->next_timer_us) {
            x->next_timer_us = CLOCK_NEVER;
            conns_timers(t);
            expire_requests(t);
        }
        unblock(t);
        pump(t);
        conns_reap(t);
    }
    for (; n < cap && x->ring_count > 0; n++) {
        out[n] = x->ring[x->ring_head];
        x->ring_head = (x->ring_head + 1) % EXCHANGE_RING_MAX;
        x->ring_count--;
        if (out[n].kind == TR_PEER_GONE) x->gone_undrained--;
    }
    return n;
}

/* Connections that only wait for the pace do not keep the loop awake until the pace allows more. */
bool exchange_pending(const transfer_t *t)
{
    return t->x->ring_count > 0 || t->x->reap_due || (t->x->dirty && t->x->paced_us <= t->now_us);
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
    share_t *share, *next;
    if (t->x) HASH_ITER(hh, t->x->shares, share, next) free_share(t, share);
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
    conn_end(t, c, END_BYE);
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
        conns_hi(t, f);
        return;
    }
    conn_t *c = conn_of_line(t, f->line);
    if (!c) return;
    c->heard_us = t->now_us;
    switch (f->kind) {
    case FRAME_ASK: {
        /* A request becomes pending first and is then judged, so that a refusal goes the way of an answer. */
        share_t *share = find_share(t, &f->ask.key);
        t->counters.asks_in += f->count;
        for (const frame_range_t *r = f->ask.ranges; r < f->ask.ranges + f->count; r++) {
            standing_t *s = c->standing_count < LIMIT_ASKS_PER_PEER + REFUSALS_MAX ? standing_take(t) : NULL;
            if (!s) break;
            *s = (standing_t){.id = r->ask,
                              .offset = r->offset,
                              .bytes = r->bytes,
                              .since_us = t->now_us,
                              .key = f->ask.key,
                              .conn = c};
            if (c->standing_count++ == 0) {
                c->sent_us = t->now_us;
                exchange_schedule(t, t->now_us + t->x->beat_us);
            }
            DL_APPEND2(c->standing, s, conn_prev, conn_next);
            enqueue(t, s, STANDING_HELD);
            if (c->standing_count > LIMIT_ASKS_PER_PEER) refuse(t, s, HEDDLE_ERR_LIMIT);
            else classify(t, s, share);
        }
        break;
    }
    case FRAME_UNASK: /* A request is removed whatever its state; its data may be in flight already. */
        for (uint32_t i = 0; i < f->count; i++) {
            standing_t *s;
            for (s = c->standing; s && s->id != f->unask.asks[i]; s = s->conn_next) continue;
            if (s) standing_free(t, s);
        }
        break;
    case FRAME_REFUSED: /* Of a request that was cancelled or answered meanwhile it is ignored. */
        for (uint32_t i = 0; i < f->count; i++) {
            ask_t *a = find_ask(t, f->refused.rows[i].ask);
            if (!a || a->state != ASK_SENT || a->conn != c) continue;
            t->counters.refused_in++;
            end_ask(t, a, TR_REFUSED, f->refused.rows[i].err);
        }
        break;
    case FRAME_BEAT:
        t->counters.beats_in++;
        ring_offer(t, &(tr_event_t){.kind = TR_BEAT, .token = c->end.token});
        break;
    case FRAME_BYE: conn_end(t, c, END_SILENT); break;
    case FRAME_HI:
    case FRAME_DATA: break; /* HI: above; DATA: exchange_place */
    }
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
void exchange_sent(transfer_t *t, send_t *s, bool ok)
{
    conn_t *c = conn_of(s->end);
    c->in_flight--;
    c->moved_us = t->now_us;
    if (s->kind == SEND_DATA && ok) {
        t->counters.data_out++;
        t->counters.bytes_out += s->body_bytes;
    }
    send_end(s);
    if (!ok) note_broken(t, c);
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

/* ---- what carriers ask about connections ---- */

/* A network interface lost its address: connections over it carry nothing any more, and no packet reports
 * it. */
void exchange_cut(transfer_t *t, exchange_test_t is_of, const void *arg)
{
    conn_t *c, *next;
    exchange_enter(t);
    DL_FOREACH_SAFE(t->x->conns, c, next)
    if (is_of(&c->end, arg)) conn_end(t, c, END_CUT);
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
