/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/asks.h"

#include "transfer/exchange_state.h"

#include <assert.h>
#include <utlist.h>

_Static_assert(EXCHANGE_ASKS_MAX <= 1u << ASK_INDEX_BITS, "an ask's id holds its index");

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

/* ---- receiver: the read requests of this process ---- */

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
    bool is_answered = a->state != ASK_GATHERED;
    if (is_answered && c->asks_open == c->gathered_count) c->owed_us = 0;
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
    ring_push(&t->x->ring, &(tr_event_t){.kind = kind,
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
bool asks_send(transfer_t *t, conn_t *c)
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
        if (f.count == 0) conn_send_end(s);
        pace_refund(&t->x->pace_in, bytes);
        return false;
    }
    for (uint32_t i = 0; i < f.count; i++) {
        ask_t *a = c->gathered;
        ungather(a);
        a->state = ASK_SENT;
    }
    t->counters.asks_out += f.count;
    /* It may owe a word about what was taken back long ago; for this it has the time of some BEATs. */
    uint64_t word_us = t->now_us + EXCHANGE_WORD_BEATS * t->x->beat_us;
    bool is_first = c->asks_open == c->gathered_count + f.count;
    if (!c->owed_us) c->owed_us = t->now_us;
    else if (is_first && c->owed_us + t->x->serve_us < word_us) c->owed_us = word_us - t->x->serve_us;
    exchange_schedule(t, c->owed_us + t->x->serve_us);
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
    if (c->asks_open >= LIMIT_ASKS_PER_PEER || !ring_reserve(&t->x->ring)) return HEDDLE_ERR_SLOW;
    ask_t *a = t->x->asks_free;
    if (a) t->x->asks_free = a->next;
    else if (t->x->asks_used < EXCHANGE_ASKS_MAX) a = &t->x->asks[t->x->asks_used++];
    if (a) a->id = ++t->x->ask_generation << ASK_INDEX_BITS | (uint64_t)(a - t->x->asks);
    if (!a) {
        ring_release(&t->x->ring);
        return HEDDLE_ERR_SLOW;
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
    if (++c->gathered_count >= LIMIT_ASK_RANGES && c->state == CONN_OPEN && !c->blocked) asks_send(t, c);
    return HEDDLE_OK;
}

/* No event follows, since the caller has given the request up. One that the source may be working on
 * needs an UNASK; a batched one was never sent. */
void exchange_drop_ask(transfer_t *t, uint64_t id)
{
    exchange_enter(t);
    ask_t *a = find_ask(t, id);
    if (!a || !(a->state == ASK_GATHERED || a->state == ASK_SENT || a->state == ASK_RECEIVING)) return;
    ring_release(&t->x->ring);
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
bool asks_send_unasks(transfer_t *t, conn_t *c)
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
    /* It had no time to say that it is alive. */
    bool is_soon = t->now_us < c->owed_us + EXCHANGE_WORD_BEATS * t->x->beat_us;
    if (is_soon && c->asks_open == c->gathered_count) c->owed_us = 0;
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
    conn_received(t, a->conn);
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

/* Of a request that was cancelled or answered meanwhile it is ignored. */
void asks_refused(transfer_t *t, conn_t *c, const frame_t *f)
{
    for (uint32_t i = 0; i < f->count; i++) {
        ask_t *a = find_ask(t, f->refused.rows[i].ask);
        if (!a || a->state != ASK_SENT || a->conn != c) continue;
        t->counters.refused_in++;
        end_ask(t, a, TR_REFUSED, f->refused.rows[i].err);
    }
}

/* Ends all requests of a connection, as refused with GONE. True while a receive is open: then the link
 * must be cut before the memory can be used. */
bool asks_end(transfer_t *t, conn_t *c)
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
