/* SPDX-License-Identifier: Apache-2.0 */
/* Source side of the exchange: shares, pending read requests ("standing asks"), DATA and REFUSED.  See
 * transfer/exchange.h for the states. */
#include "core/failpoint.h"
#include "transfer/exchange.h"

#include <stdlib.h>
#include <utlist.h>

/* Requests beyond a peer's limit are refused one by one, up to this many at a time; further ones are ignored,
 * so that a faulty peer cannot use up the pool. */
#define REFUSALS_MAX 64u

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

/* Shares. */

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
    t->x->share_count--;
    extents_fini(&share->extents);
    region_unref(&share->region);
    free(share);
}

/* The last send is over: only now may the region be reused or unmapped. */
static void end_share(transfer_t *t, share_t *share)
{
    ring_push(t, &(tr_event_t){.kind = TR_UNSHARED, .key = share->key});
    free_share(t, share);
}

static bool is_inside(const share_t *share, uint64_t offset, uint64_t bytes)
{
    return offset <= share->region->bytes && bytes <= share->region->bytes - offset;
}

/* Decides the queue of a request for a live share: out of range, ready, or waiting for bytes that are not
 * verified yet. */
static void settle(transfer_t *t, standing_t *s, share_t *share)
{
    s->share = share;
    if (!is_inside(share, s->offset, s->bytes)) refuse(t, s, HEDDLE_ERR_LIMIT);
    else if (extents_cover(&share->extents, s->offset, s->bytes)) move(t, s, STANDING_READY);
    else {
        move(t, s, STANDING_WAITING);
        exchange_schedule(t, t->now_us + t->x->serve_us);
    }
}

/* Requests may arrive before the share, since the broker announces a version to several workers at once.
 * Those that were held find it here. */
int exchange_share(transfer_t *t, region_t *r, share_key_t key)
{
    exchange_enter(t);
    share_t *share = find_share(t, &key);
    if (share) return share->ending ? HEDDLE_ERR_AGAIN : HEDDLE_ERR_USAGE;
    if (t->x->share_count >= EXCHANGE_SHARES_MAX || !ring_reserve(t)) return HEDDLE_ERR_LIMIT;
    share = calloc(1, sizeof *share);
    if (share) {
        share->key = key;
        HASH_ADD(hh, t->x->shares, key, sizeof share->key, share);
    }
    if (!share || !share->hh.tbl) {
        free(share);
        ring_release(t);
        return HEDDLE_ERR_NO_MEMORY;
    }
    share->region = region_ref(r);
    share->moved_us = t->now_us;
    t->x->share_count++;
    standing_t *s, *next;
    DL_FOREACH_SAFE(t->x->held, s, next) {
        if (!memcmp(&s->key, &key, sizeof key)) settle(t, s, share);
    }
    return HEDDLE_OK;
}

/* Bytes became readable; requests that waited for them are ready. */
int exchange_extend(transfer_t *t, share_key_t key, uint64_t offset, uint64_t bytes)
{
    exchange_enter(t);
    share_t *share = find_share(t, &key);
    if (!share || share->ending) return HEDDLE_ERR_NOT_FOUND;
    if (!is_inside(share, offset, bytes)) return HEDDLE_ERR_LIMIT;
    if (!extents_add(&share->extents, offset, bytes)) return HEDDLE_ERR_NO_MEMORY;
    share->moved_us = t->now_us;
    standing_t *s, *next;
    DL_FOREACH_SAFE(share->waiting, s, next) {
        if (extents_cover(&share->extents, s->offset, s->bytes)) move(t, s, STANDING_READY);
    }
    return HEDDLE_OK;
}

/* Pending requests are refused at once. Sends in flight go on, and TR_UNSHARED comes after the last one. */
void exchange_unshare(transfer_t *t, share_key_t key)
{
    exchange_enter(t);
    share_t *share = find_share(t, &key);
    if (!share || share->ending) return;
    share->ending = true;
    t->x->forgotten[t->x->forgotten_next] = key;
    t->x->forgotten_next = (t->x->forgotten_next + 1) % EXCHANGE_FORGOTTEN_MAX;
    if (t->x->forgotten_count < EXCHANGE_FORGOTTEN_MAX) t->x->forgotten_count++;
    for (conn_t *c = t->x->conns; c; c = c->next) {
        standing_t *s, *next;
        for (s = c->standing; s; s = next) {
            next = s->conn_next;
            if (s->share == share && s->state != STANDING_REFUSING) refuse(t, s, HEDDLE_ERR_NOT_FOUND);
        }
    }
    if (share->sends == 0) end_share(t, share);
}

void serve_sent(transfer_t *t, share_t *share)
{
    if (--share->sends == 0 && share->ending) end_share(t, share);
}

/* Frames of receivers. */

/* Why a request is refused at once; 0: it is not. Every number in it comes from the network. */
static int refusal_of(const transfer_t *t, const standing_t *s, const share_t *share)
{
    if (t->refuse_err) return t->refuse_err;
    if (s->conn->standing_count > LIMIT_ASKS_PER_PEER) return HEDDLE_ERR_LIMIT;
    if (s->bytes == 0 || s->bytes > LIMIT_CHUNK_MAX_BYTES) return HEDDLE_ERR_LIMIT;
    if (share ? share->ending : is_forgotten(t, &s->key)) return HEDDLE_ERR_NOT_FOUND;
    return 0;
}

/* A request becomes pending first and is then judged, so that a refusal takes the same way as an answer. */
static void on_range(transfer_t *t, conn_t *c, const share_key_t *key, const frame_range_t *range,
                     share_t *share)
{
    t->counters.asks_in++;
    standing_t *s = c->standing_count < LIMIT_ASKS_PER_PEER + REFUSALS_MAX ? standing_take(t) : NULL;
    if (!s) return;
    *s = (standing_t){.id = range->ask,
                      .offset = range->offset,
                      .bytes = range->bytes,
                      .since_us = t->now_us,
                      .key = *key,
                      .conn = c};
    if (c->standing_count++ == 0) {
        c->sent_us = t->now_us;
        exchange_schedule(t, t->now_us + t->x->beat_us);
    }
    DL_APPEND2(c->standing, s, conn_prev, conn_next);
    enqueue(t, s, STANDING_HELD);
    int err = refusal_of(t, s, share);
    if (err) refuse(t, s, err);
    else if (share) settle(t, s, share);
    else exchange_schedule(t, t->now_us + EXCHANGE_HOLD_US);
}

/* A cancelled request is removed, whatever its state; its data may be in flight already. */
void serve_frame(transfer_t *t, conn_t *c, const frame_t *f)
{
    if (f->kind == FRAME_UNASK) {
        for (uint32_t i = 0; i < f->count; i++) {
            standing_t *s;
            for (s = c->standing; s && s->id != (f->unask.asks[i]); s = s->conn_next) continue;
            if (s) standing_free(t, s);
        }
        return;
    }
    share_t *share = find_share(t, &f->ask.key);
    for (uint32_t i = 0; i < f->count; i++) on_range(t, c, &f->ask.key, &f->ask.ranges[i], share);
}

/* What goes out. */

/* Several refusals fit in one frame. */
bool serve_refusals(transfer_t *t, conn_t *c)
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
bool serve_data(transfer_t *t, conn_t *c)
{
    standing_t *ready = c->ready;
    if (ready && ready->share->in_place && !c->end.reads_us) {    /* it said that it does, and does not */
        refuse(t, ready, HEDDLE_ERR_NOT_FOUND);
        return true;
    }
    send_t *s = ready ? conn_data_begin(c) : NULL;
    if (!s) return false;
    (void)FAILPOINT("transfer.data"); /* only to die or stop here */
    frame_t f;
    f.kind = FRAME_DATA;
    f.count = 0;
    f.line = c->end.line;
    f.data.ask = ready->id;
    f.data.offset = ready->offset;
    f.data.bytes = ready->bytes;
    share_t *share = s->share = ready->share;
    s->region = share->region;
    s->payload = (const uint8_t *)share->region->base + ready->offset;
    s->payload_bytes = ready->bytes;
    share->sends++;
    if (!conn_send(t, s, &f)) {
        s->share = NULL;
        share->sends--;
        return false;
    }
    c->sent_us = t->now_us;
    pace_take(&t->x->pace, ready->bytes);
    c->served = true;
    standing_free(t, ready);
    return true;
}

/* Who was served has shown that it knew a key; where it cannot read in place after all, it is refused. */
static bool is_told_early(const conn_t *c)
{
    return c->state == CONN_OPEN && !c->blocked && c->served && c->end.reads_us;
}

static bool share_early(transfer_t *t, region_t *r, share_key_t key, uint64_t bytes)
{
    if (exchange_share(t, r, key) != HEDDLE_OK) return false;
    find_share(t, &key)->in_place = true;
    if (exchange_extend(t, key, 0, bytes) == HEDDLE_OK) return true;
    exchange_unshare(t, key);
    return false;
}

uint32_t exchange_early(transfer_t *t, region_t *r, share_key_t key, uint64_t bytes, uint32_t most)
{
    exchange_enter(t);
    uint32_t readers = 0, told = 0;
    bool is_shared = false;
    frame_t f = {.kind = FRAME_EARLY, .early = {key, bytes}};
    for (const conn_t *c = t->x->conns; c; c = c->next) readers += is_told_early(c);
    for (conn_t *c = readers <= most ? t->x->conns : NULL; c; c = c->next) {
        send_t *s = is_told_early(c) ? conn_send_begin(c) : NULL;
        if (!s) continue;
        if (!is_shared && !(is_shared = share_early(t, r, key, bytes))) {
            conn_send_end(s);
            return 0;
        }
        f.line = c->end.line;
        told += conn_send(t, s, &f);
    }
    if (is_shared && told == 0) exchange_unshare(t, key);
    return told;
}

/* Ends. */

void serve_end_conn(transfer_t *t, conn_t *c)
{
    while (c->standing) standing_free(t, c->standing);
}

/* A share that makes no progress for the serve deadline will not serve its requests: the receivers should
 * try another source. Progress moves the deadline. */
static void expire_waiting(transfer_t *t, share_t *share)
{
    while (share->waiting) {
        uint64_t since =
            share->waiting->since_us > share->moved_us ? share->waiting->since_us : share->moved_us;
        if (t->now_us < since + t->x->serve_us) {
            exchange_schedule(t, since + t->x->serve_us);
            return;
        }
        refuse(t, share->waiting, HEDDLE_ERR_AGAIN);
    }
}

/* Requests for a key that never came are refused after EXCHANGE_HOLD_US. */
void serve_timers(transfer_t *t)
{
    while (t->x->held && t->now_us >= t->x->held->since_us + EXCHANGE_HOLD_US)
        refuse(t, t->x->held, HEDDLE_ERR_NOT_FOUND);
    if (t->x->held) exchange_schedule(t, t->x->held->since_us + EXCHANGE_HOLD_US);
    share_t *share, *next;
    HASH_ITER(hh, t->x->shares, share, next) expire_waiting(t, share);
}

void serve_fini(transfer_t *t)
{
    share_t *share, *next;
    HASH_ITER(hh, t->x->shares, share, next) free_share(t, share);
}
