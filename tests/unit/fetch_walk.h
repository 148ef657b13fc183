/* SPDX-License-Identifier: Apache-2.0 */
/* Whole fetches from lossy, rotten, slow, dying, stopping and late sources, in virtual time.  Who
 * includes this says where the numbers come from: a seed (worker_fetch.c) or a fuzzer's bytes
 * (tests/fuzz/worker_core.c).
 *
 * What must hold: a piece is asked of one source at a time, never of one that was rotten twice, and not when it is
 * there; no more is in flight than the window allows; only a source that is silent or slow is given up;
 * every fetch ends, with every piece good, counted once, and asked once more for each time that it was
 * reported as moved; or because one piece came bad three times, or every source that is left was
 * rotten twice. */
#ifndef TESTS_UNIT_FETCH_WALK_H
#define TESTS_UNIT_FETCH_WALK_H

#include "core/limits.h"
#include "worker/fetch.h"

#include <criterion/criterion.h>
#include <heddle/error.h>
#include <stdlib.h>
#include <string.h>

/* 0 .. n-1 */
static uint64_t roll(uint64_t n);

#define PIECE 65536u
#define MS 1000ull
#define SECOND 1000000ull

/* What a fetch asked of its owner, in order. */
typedef enum { FA_ASK, FA_DROP_ASK, FA_NEED_SOURCES, FA_DONE, FA_FAILED } action_kind_t;
typedef struct {
    action_kind_t kind;
    uint32_t piece;      /* ASK, DROP_ASK */
    uint64_t token, ask; /* token: but for NEED_SOURCES and the end */
} action_t;
enum { ACTIONS = 1024 };

typedef enum { FE_SOURCES, FE_GOOD, FE_BAD, FE_REFUSED, FE_GONE, FE_BEAT, FE_TICK, FE_CANCEL } event_kind_t;
typedef struct {
    event_kind_t kind;
    uint32_t piece;      /* GOOD, BAD, REFUSED */
    uint64_t ask, token; /* REFUSED; GONE, BEAT */
    int err;             /* REFUSED */
    const uint64_t *sources;
    int source_count;
} event_t;

static fetch_t *f;
static uint64_t now;
static action_t acts[ACTIONS]; /* of the last step */
static int act_count;
static uint64_t steps;                        /* of all walks */
static uint64_t ask_count, ask_of[65536];     /* the number of a piece's last ask ends with the piece */
static uint64_t source_of[65536];             /* and the source that it was made to */
static int (*try_ask)(uint32_t, uint64_t);    /* whether an ask can be made; NULL: each can */
static uint64_t moved_from[8][MOVED_REASONS]; /* since the start, by token & 7 */
static uint64_t partials;                     /* sources that a piece may be lent to: a bit each, by token */
static uint64_t wholes;                       /* and of these, those that have all pieces */
static uint32_t sharer_count = 1;             /* fetches that share a window */
static uint64_t shared;                       /* the source that they ask; 0: each of them */
static uint64_t asks_now;                     /* the source that it said last that it asks; 0: none */
static void (*watch)(const action_t *);       /* sees each action at once; NULL: acts is looked at later */

/* The size of a piece of which so many fit into the window. */
static uint32_t piece_of(uint32_t window) { return LIMIT_WINDOW_BYTES / window; }

static void note(action_t action)
{
    cr_assert_lt(act_count, ACTIONS);
    acts[act_count++] = action;
    if (watch) watch(&action);
}

static int on_ask(void *self, uint32_t piece, uint64_t token, uint64_t *ret_ask)
{
    (void)self;
    int rc = try_ask ? try_ask(piece, token) : HEDDLE_OK;
    if (rc) return rc;
    source_of[piece] = token;
    *ret_ask = ask_of[piece] = ++ask_count << 16 | piece;
    note((action_t){FA_ASK, piece, token, *ret_ask});
    return HEDDLE_OK;
}

static void on_drop_ask(void *self, uint64_t ask)
{
    (void)self;
    uint32_t piece = ask & 0xffff;
    cr_assert_eq(ask_of[piece], ask);
    note((action_t){FA_DROP_ASK, piece, source_of[piece], ask});
}

static void on_need_sources(void *self)
{
    (void)self;
    note((action_t){.kind = FA_NEED_SOURCES});
}

static void on_moved(void *self, uint64_t token, moved_t why)
{
    (void)self;
    moved_from[token & 7][why]++;
}

static uint64_t moved_count(void)
{
    uint64_t count = 0;
    for (int i = 0; i < 8 * MOVED_REASONS; i++) count += (&moved_from[0][0])[i];
    return count;
}

static lend_t on_lend(void *self, uint64_t token)
{
    (void)self;
    if (token >= 64) return LEND_NOT;
    return wholes >> token & 1 ? LEND_WHOLE : partials >> token & 1 ? LEND_PARTIAL : LEND_NOT;
}

static void on_asks(void *self, uint64_t token)
{
    (void)self;
    asks_now = token;
}

static uint32_t on_sharers(void *self, uint64_t token)
{
    (void)self;
    return !shared || token == shared ? sharer_count : 1;
}

static void on_end(void *self, bool is_good, uint64_t at_us)
{
    (void)self;
    cr_assert_eq(at_us, now);
    note((action_t){.kind = is_good ? FA_DONE : FA_FAILED});
}

static void start_with(fetch_plan_t plan)
{
    static const fetch_ops_t OPS = {.ask = on_ask,
                                    .drop_ask = on_drop_ask,
                                    .need_sources = on_need_sources,
                                    .moved = on_moved,
                                    .lend = on_lend,
                                    .asks = on_asks,
                                    .sharers = on_sharers,
                                    .end = on_end};
    if (!plan.piece_bytes) plan.piece_bytes = piece_of(4);
    now = 1000;
    asks_now = 0;
    memset(moved_from, 0, sizeof moved_from);
    memset(ask_of, 0, plan.count * sizeof *ask_of);
    cr_assert_eq(fetch_new(&plan, &OPS, NULL, &f), HEDDLE_OK);
}

static void stop(void) { fetch_destroy(&f); }

static int step(event_t e)
{
    steps++;
    act_count = 0;
    switch (e.kind) {
    case FE_SOURCES: fetch_sources(f, e.sources, e.source_count, now); break;
    case FE_GOOD: fetch_good(f, e.piece, now); break;
    case FE_BAD: fetch_bad(f, e.piece, now); break;
    case FE_REFUSED: fetch_refused(f, e.piece, e.ask, e.err, now); break;
    case FE_GONE: fetch_gone(f, e.token, now); break;
    case FE_BEAT: fetch_beat(f, e.token, now); break;
    case FE_TICK: fetch_tick(f, now); break;
    case FE_CANCEL: fetch_cancel(f); break;
    }
    return act_count;
}
/* The number of the ask that is open at that source; of none, one that never was. */
static uint64_t open_ask(uint32_t piece, uint64_t token)
{
    uint64_t at;
    return fetch_piece(f, piece, &at) == PIECE_ASKED && at == token ? ask_of[piece] : UINT64_MAX;
}
static bool land(uint32_t piece, uint64_t token) { return fetch_land(f, piece, open_ask(piece, token), now); }
/* Asks moved from it to a faster one. */
static bool was_left(uint64_t token)
{
    uint64_t slow[64];
    int count = fetch_blamed(f, BLAME_SLOW, slow, 64);
    while (count > 0 && slow[count - 1] != token) count--;
    return count > 0;
}
static bool is_good(uint32_t piece) { return fetch_piece(f, piece, NULL) == PIECE_GOOD; }
static uint32_t count_good(uint32_t count)
{
    uint32_t good_ones = 0;
    for (uint32_t p = 0; p < count; p++) good_ones += is_good(p);
    return good_ones;
}
static int tick(void) { return step((event_t){.kind = FE_TICK}); }
static int good(uint32_t piece, uint64_t token)
{
    land(piece, token);
    return step((event_t){.kind = FE_GOOD, .piece = piece});
}
static int bad(uint32_t piece, uint64_t token)
{
    land(piece, token);
    return step((event_t){.kind = FE_BAD, .piece = piece});
}
static int gone(uint64_t token) { return step((event_t){.kind = FE_GONE, .token = token}); }
static int beat(uint64_t token) { return step((event_t){.kind = FE_BEAT, .token = token}); }
static int refused(uint32_t piece, uint64_t token, int err)
{
    return step((event_t){.kind = FE_REFUSED, .piece = piece, .ask = open_ask(piece, token), .err = err});
}

static int sources(int n, const uint64_t *tokens)
{
    return step((event_t){.kind = FE_SOURCES, .sources = tokens, .source_count = n});
}

enum { PEERS = 6, WINDOW_MAX = 32, WORLD_MAX = PEERS * WINDOW_MAX };
typedef enum { HONEST, LOSSY, ROTTEN, SLOW, MORTAL, STOPPING, BEHIND } temper_t;
typedef struct {
    uint64_t at_us, token;
    uint32_t piece;
    bool used;
} parcel_t;

typedef struct {
    uint64_t seed;
    uint32_t count, window;
    uint8_t *open;      /* peer (1..) that has an open ask for the piece, 0: none */
    uint8_t *bad_count; /* how often it was delivered bad: a fetch gives up a piece after the third */
    bool is_hopeless;
    temper_t temper[PEERS];
    bool out[PEERS], listed[PEERS];
    uint32_t rotten[PEERS]; /* how often it sent wrong bytes */
    uint32_t in_flight[PEERS];
    uint64_t busy_us[PEERS]; /* a link sends one piece after the other */
    parcel_t parcels[WORLD_MAX];
    uint64_t asks, losses, drops, answer_us; /* drops: but of late ones and of slow ones, which are losses */
    bool done, failed;
} world_t;

#define HOLDS(cond) cr_assert(cond, "seed %llu: %s", (unsigned long long)w->seed, #cond)

static void take_ask(world_t *w, uint32_t piece, uint64_t token)
{
    unsigned peer = (unsigned)token - 1;
    HOLDS(peer < PEERS && piece < w->count);
    HOLDS(w->rotten[peer] < 2);
    HOLDS(!w->open[piece] && !is_good(piece));
    HOLDS(++w->in_flight[peer] <= w->window);
    w->open[piece] = (uint8_t)token;
    w->asks++;
    uint64_t cost_us = w->temper[peer] == SLOW ? 200 * MS : 1 + roll(2 * MS);
    if (w->busy_us[peer] < now) w->busy_us[peer] = now;
    w->busy_us[peer] += cost_us;
    /* Says no more, not even goodbye. */
    if (w->temper[peer] == STOPPING && roll(20) == 0) w->out[peer] = true;
    for (unsigned i = 0; i < WORLD_MAX; i++)
        if (!w->parcels[i].used) {
            w->parcels[i] = (parcel_t){w->busy_us[peer], token, piece, true};
            return;
        }
    HOLDS(!"parcels are bounded by the windows");
}

static void close_ask(world_t *w, uint32_t piece)
{
    w->in_flight[w->open[piece] - 1]--;
    w->open[piece] = 0;
}

static void lose(world_t *w, uint64_t token)
{
    w->losses++;
    for (uint32_t p = 0; p < w->count; p++)
        if (w->open[p] == token) close_ask(w, p);
    for (unsigned i = 0; i < WORLD_MAX; i++)
        if (w->parcels[i].used && w->parcels[i].token == token) w->parcels[i].used = false;
}

static void take_actions(world_t *w)
{
    uint32_t late = 0; /* a bit for each: several may be late, or left, at a time */
    for (int i = 0; i < act_count; i++) {
        const action_t *a = &acts[i];
        bool is_of_late = a->kind == FA_DROP_ASK && (fetch_is_late(f, a->token) || was_left(a->token));
        if (is_of_late) late |= 1u << (a->token - 1);
        w->drops += a->kind == FA_DROP_ASK && !is_of_late;
        HOLDS(!w->done && !w->failed);
        switch (a->kind) {
        case FA_ASK: take_ask(w, a->piece, a->token); break;
        case FA_DROP_ASK:
            HOLDS(w->open[a->piece] == a->token);
            close_ask(w, a->piece);
            for (unsigned k = 0; k < WORLD_MAX; k++)
                if (w->parcels[k].piece == a->piece && w->parcels[k].token == a->token)
                    w->parcels[k].used = false;
            break;
        case FA_NEED_SOURCES:
            if (!w->answer_us) w->answer_us = now + roll(300 * MS);
            break;
        case FA_DONE: w->done = true; break;
        case FA_FAILED: w->failed = true; break;
        }
    }
    w->losses += (unsigned)__builtin_popcount(late);
}

static void deliver(world_t *w, parcel_t *parcel)
{
    parcel_t p = *parcel;
    unsigned peer = (unsigned)p.token - 1;
    temper_t temper = w->temper[peer];
    if (temper == MORTAL && roll(40) == 0) {
        lose(w, p.token); /* before the event: what was open there ended with it */
        gone(p.token);
        return;
    }
    parcel->used = false;
    if (temper == BEHIND && roll(4) == 0) { /* has not got it yet */
        *parcel = (parcel_t){now + 250 * MS, p.token, p.piece, true};
        beat(p.token);
        return;
    }
    close_ask(w, p.piece);
    if (temper == LOSSY && roll(20) == 0) {
        w->losses++;
        refused(p.piece, p.token, roll(2) ? HEDDLE_ERR_AGAIN : HEDDLE_ERR_NOT_FOUND);
    } else if (temper == ROTTEN && roll(30) == 0) {
        w->losses++;
        w->rotten[peer]++;
        w->is_hopeless |= ++w->bad_count[p.piece] == 3;
        bad(p.piece, p.token);
    } else {
        good(p.piece, p.token);
    }
}

/* The broker: some of the peers in some order, an honest one among them most of the time. */
static void name_sources(world_t *w)
{
    uint64_t list[PEERS];
    int n = 0;
    for (uint64_t t = 1; t <= PEERS; t++)
        if (roll(2) || (t == 1 && roll(4))) list[n++] = t;
    for (int i = n - 1; i > 0; i--) {
        int k = (int)roll((uint64_t)i + 1);
        uint64_t swap = list[i];
        list[i] = list[k];
        list[k] = swap;
    }
    memset(w->listed, 0, sizeof w->listed);
    for (int i = 0; i < n; i++) w->listed[list[i] - 1] = true;
    w->answer_us = 0;
    w->losses++; /* what the list leaves out */
    sources(n, list);
}

static void check_done(const world_t *w)
{
    uint64_t from = 0;
    HOLDS(count_good(w->count) == w->count);
    for (uint32_t p = 0; p < w->count; p++) HOLDS(is_good(p) && !w->open[p]);
    for (uint64_t t = 1; t <= PEERS; t++) from += fetch_from(f, t);
    HOLDS(from == w->count);
    HOLDS(w->asks <= w->count + w->losses * w->window + w->drops);
    /* A piece that is lent, or comes back, is asked for once more too. */
    HOLDS(w->asks >= w->count + moved_count() && w->asks <= w->count + moved_count() + w->drops);
}

static void check_all_rotten(const world_t *w)
{
    unsigned listed = 0;
    for (unsigned p = 0; p < PEERS; p++) {
        HOLDS(!w->listed[p] || w->rotten[p] == 2);
        listed += w->listed[p];
    }
    HOLDS(listed > 0);
}

/* Siblings have all the requests that this process may have open. */
static int may_ask(uint32_t piece, uint64_t token)
{
    (void)piece;
    (void)token;
    return roll(64) ? HEDDLE_OK : HEDDLE_ERR_SLOW;
}

static void run_one(uint64_t seed, uint32_t count)
{
    world_t *w = calloc(1, sizeof *w);
    w->seed = seed;
    w->count = count;
    w->window = 1 + (uint32_t)roll(WINDOW_MAX);
    w->open = calloc(count, 1);
    w->bad_count = calloc(count, 1);
    for (unsigned p = 1; p < PEERS; p++) w->temper[p] = (temper_t)roll(BEHIND + 1);
    partials = roll(2) ? roll(1 << (PEERS + 1)) : 0;
    wholes = roll(2) ? roll(1 << (PEERS + 1)) : 0;
    try_ask = may_ask;
    start_with((fetch_plan_t){.count = count, .piece_bytes = piece_of(w->window)});
    name_sources(w);
    take_actions(w);
    while (!w->done && !w->failed) {
        uint64_t at = fetch_deadline(f);
        parcel_t *next = NULL;
        for (unsigned i = 0; i < WORLD_MAX; i++) {
            parcel_t *p = &w->parcels[i];
            if (p->used && !w->out[p->token - 1] && p->at_us < at) {
                at = p->at_us;
                next = p;
            }
        }
        bool asked = w->answer_us && w->answer_us <= at;
        if (asked) at = w->answer_us;
        HOLDS(at != CLOCK_NEVER);
        if (at > now) now = at;
        if (roll(16) == 0) sharer_count = 1 + (uint32_t)roll(4); /* siblings come and go */
        HOLDS(now < 4 * 3600 * SECOND);
        if (asked) name_sources(w);
        else if (next) deliver(w, next);
        else tick();
        take_actions(w);
    }
    if (w->done) check_done(w);
    else if (!w->is_hopeless) check_all_rotten(w);
    HOLDS(fetch_deadline(f) == CLOCK_NEVER && asks_now == 0);
    partials = wholes = 0;
    try_ask = NULL;
    sharer_count = 1;
    stop();
    free(w->open);
    free(w->bad_count);
    free(w);
}

#endif
