/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/shares.h"

#include "core/failpoint.h"
#include "transfer/exchange_state.h"

#include <stdlib.h>
#include <utlist.h>

/* Requests beyond a peer's limit are refused one by one, up to this many at a time; further ones are ignored,
 * so that a faulty peer cannot use up the pool. */
#define REFUSALS_MAX 64u

/* ---- requests of peers ---- */

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

/* ---- shares ---- */

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

void shares_fini(transfer_t *t)
{
    share_t *share, *next;
    HASH_ITER(hh, t->x->shares, share, next) free_share(t, share);
}

/* ---- frames and time ---- */

/* A request becomes pending first and is then judged, so that a refusal goes the way of an answer. */
void shares_on_ask(transfer_t *t, conn_t *c, const frame_t *f)
{
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
}

/* A request is removed whatever its state; its data may be in flight already. */
void shares_on_unask(transfer_t *t, conn_t *c, const frame_t *f)
{
    for (uint32_t i = 0; i < f->count; i++) {
        standing_t *s;
        for (s = c->standing; s && s->id != f->unask.asks[i]; s = s->conn_next) continue;
        if (s) standing_free(t, s);
    }
}

/* Several refusals fit in one frame. */
bool shares_send_refusals(transfer_t *t, conn_t *c)
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
bool shares_send_data(transfer_t *t, conn_t *c)
{
    standing_t *ready = c->ready;
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
void shares_expire(transfer_t *t)
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

void shares_end_conn(transfer_t *t, conn_t *c)
{
    while (c->standing) standing_free(t, c->standing);
}
