/* SPDX-License-Identifier: Apache-2.0 */
/* Each piece is in one place: good (bit set), asked (in the list of its source), landed, returned (in its
 * stripe's AGAIN list: it was asked for once, and must be again), or fresh: at or behind its stripe's cursor
 * and never asked for.  Cursors only move forward and the lists are linked through two arrays, so that no
 * event scans the pieces. */
#include "transfer/fetch.h"

#include "core/limits.h"
#include <heddle/error.h>

#include <stdlib.h>
#include <string.h>

/* Places of a piece: the list of a source (0..KNOWN_MAX-1), of what a stripe asks for again, or none. */
enum { KNOWN_MAX = 64, AGAIN = KNOWN_MAX, LISTS = AGAIN + FETCH_STRIPES_MAX, LANDED = 0xfe, NOWHERE = 0xff };
#define NO_PIECE UINT32_MAX
#define SAMPLE_US 10000u      /* a rate is taken over at least so long: arrivals come in bursts */
#define DEADLINE_FACTOR 4u

typedef enum { SOURCE_LIVE, SOURCE_RESTING, SOURCE_LOST, SOURCE_BAD } source_state_t;
typedef enum { GOING, ENDING_DONE, ENDING_FAILED, ENDING_SILENT, ENDED } course_t;

typedef struct { uint32_t first, last, count; } list_t;
typedef struct {
    uint64_t token;
    source_state_t state;
    bool listed;
    uint32_t stripe;
    uint32_t landed_count, good_count;
    uint64_t life_us;                    /* last arrival or BEAT, or when it was asked after a pause */
    uint64_t rest_us;                    /* RESTING: until then */
    uint64_t rate;                       /* bytes a second, EWMA; 0: not known yet */
    uint64_t sample_us, sample_bytes;    /* since when, and how much came since */
} source_t;

/* Pieces from where the stripe before ends to `end`; what is behind the cursor was never asked for. */
typedef struct { uint32_t cursor, end; } stripe_t;

struct fetch {
    fetch_plan_t plan;
    course_t course;
    int err;                             /* ENDING_FAILED */
    uint32_t window_count;               /* pieces in flight per source */
    uint32_t good_count;
    stripe_t stripes[FETCH_STRIPES_MAX];
    source_t known[KNOWN_MAX];           /* never forgets a quarantined one */
    unsigned known_count;
    uint8_t order[FETCH_SOURCES_MAX];    /* the current list: indices into known */
    unsigned order_count;
    uint64_t dropping, closing;          /* bits of known: DROP_ASK for what is open; DROP_PEER */
    uint64_t starved_us;    /* since when there has been no good source; CLOCK_NEVER: there is one */
    uint64_t need_us;       /* not before then is NEED_SOURCES said */
    uint64_t all_bad_us;    /* since when all that are listed are quarantined; CLOCK_NEVER: they are not */
    list_t lists[LISTS];
    /* One of each a piece. */
    uint64_t *ask;                       /* ASKED: its number, 0 until it is made */
    uint32_t *next, *prev;
    uint8_t *where, *from;               /* from: index into known, of what has landed */
    uint8_t *bad_counts;
    uint64_t *good;                      /* a bit a piece */
};

typedef struct { fetch_action_t *at; int count, cap; uint32_t part; } out_t;

static bool has_room(const out_t *o) { return o->count < o->cap; }

/* The caller has checked that there is room; actions that have none come in the next step. */
static void put(out_t *o, fetch_action_t action)
{
    action.part = o->part;
    o->at[o->count++] = action;
}

/* -- pieces ----------------------------------------------------------------------------------- */

static bool is_good(const fetch_t *f, uint32_t piece) { return f->good[piece / 64] >> (piece % 64) & 1; }

/* Lists are linked by index in both directions, so that a piece can leave the middle of one at once. */
static void unlink_piece(fetch_t *f, uint32_t piece)
{
    if (f->where[piece] < LISTS) {
        list_t *l = &f->lists[f->where[piece]];
        uint32_t next = f->next[piece], prev = f->prev[piece];
        if (prev == NO_PIECE) l->first = next; else f->next[prev] = next;
        if (next == NO_PIECE) l->last = prev; else f->prev[next] = prev;
        l->count--;
    }
    f->where[piece] = NOWHERE;
}

/* A piece that moves has no read request any more; its number would match a late answer. */
static void move_piece(fetch_t *f, uint32_t piece, unsigned list)
{
    unlink_piece(f, piece);
    list_t *l = &f->lists[list];
    f->prev[piece] = l->last;
    f->next[piece] = NO_PIECE;
    if (l->last == NO_PIECE) l->first = piece; else f->next[l->last] = piece;
    l->last = piece;
    l->count++;
    f->where[piece] = (uint8_t)list;
    f->ask[piece] = 0;
}

/* Goes to the list of its own stripe, so that the stripe's source requests it again. */
static void return_piece(fetch_t *f, uint32_t piece)
{
    unsigned stripe = 0;
    while (piece >= f->stripes[stripe].end) stripe++;
    move_piece(f, piece, AGAIN + stripe);
}

/* The next piece to ask for, NO_PIECE when all of the stripe are open or good.  What was returned comes
 * first: receivers that fetch from this process may wait for it. */
static uint32_t next_todo(fetch_t *f, unsigned stripe)
{
    stripe_t *s = &f->stripes[stripe];
    if (f->lists[AGAIN + stripe].count) return f->lists[AGAIN + stripe].first;
    while (s->cursor < s->end && is_good(f, s->cursor))
        s->cursor = f->good[s->cursor / 64] == UINT64_MAX ? (s->cursor / 64 + 1) * 64 : s->cursor + 1;
    return s->cursor < s->end ? s->cursor : NO_PIECE;
}

/* Derived from the place of the piece; nothing stores it a second time. */
piece_state_t fetch_piece(const fetch_t *f, uint32_t piece, uint64_t *ret_token)
{
    unsigned where = piece < f->plan.count ? f->where[piece] : NOWHERE;
    bool is_landed = where == LANDED;
    unsigned source = is_landed ? f->from[piece] : where;
    if (ret_token) *ret_token = source < KNOWN_MAX ? f->known[source].token : 0;
    if (is_landed) return PIECE_LANDED;
    if (where < KNOWN_MAX) return PIECE_ASKED;
    return piece < f->plan.count && is_good(f, piece) ? PIECE_GOOD : PIECE_TODO;
}

/* -- sources ---------------------------------------------------------------------------------- */

/* At most 64 sources are known, and the list is short: a search is faster than an index. */
static int find(const fetch_t *f, uint64_t token)
{
    for (unsigned i = 0; i < f->known_count; i++)
        if (f->known[i].token == token) return (int)i;
    return -1;
}

/* Room for one more: at the end, or in place of the least useful one that is neither listed nor
 * quarantined, and of which nothing is open or waits for its digest. */
static int admit(fetch_t *f, uint64_t token)
{
    int at = -1;
    if (f->known_count < KNOWN_MAX) at = (int)f->known_count++;
    else
        for (unsigned i = 0; i < KNOWN_MAX; i++) {
            const source_t *s = &f->known[i];
            bool is_in_use = s->listed || f->lists[i].count || s->landed_count || f->closing >> i & 1;
            if (is_in_use || s->state == SOURCE_BAD) continue;
            if (at < 0 || s->good_count < f->known[at].good_count) at = (int)i;
        }
    if (at >= 0) f->known[at] = (source_t){.token = token, .state = SOURCE_LIVE};
    return at;
}

/* How long a source may take to deliver: four times what a full window needs at its observed rate, within
 * bounds. Without a rate it is four times the lower bound. */
static uint64_t patience(const fetch_t *f, const source_t *s)
{
    uint64_t us = f->plan.deadline_min_us * DEADLINE_FACTOR;
    if (s->rate) us = (uint64_t)((double)f->plan.window_bytes * 1e6 / (double)s->rate * DEADLINE_FACTOR);
    if (us < f->plan.deadline_min_us) us = f->plan.deadline_min_us;
    return us < f->plan.deadline_max_us ? us : f->plan.deadline_max_us;
}

/* A rate is measured only over time in which something was requested. */
static void restart_sample(source_t *s, uint64_t now_us)
{
    s->life_us = s->sample_us = now_us;
    s->sample_bytes = 0;
}

/* A moving average, so that one burst or one pause does not change the deadline by much. */
static void note_arrival(const fetch_t *f, source_t *s, uint64_t now_us)
{
    s->good_count++;
    s->life_us = now_us;
    s->sample_bytes += f->plan.piece_bytes;
    uint64_t elapsed_us = now_us - s->sample_us;
    if (elapsed_us < SAMPLE_US) return;
    uint64_t rate = (uint64_t)((double)s->sample_bytes * 1e6 / (double)elapsed_us) + 1;
    s->rate = s->rate ? s->rate - s->rate / 4 + rate / 4 : rate;
    restart_sample(s, now_us);
}

/* The source is out in `state`.  Its open asks go back at once when it is gone itself, else as
 * DROP_ASK goes out. */
static void put_out(fetch_t *f, unsigned source, source_state_t state, bool drop_asks)
{
    if (f->known[source].state != SOURCE_BAD) f->known[source].state = state;
    if (drop_asks) f->dropping |= 1ull << source;
    else
        while (f->lists[source].count) return_piece(f, f->lists[source].first);
}

/* The source of a stripe; one that rested is tried again when its pause is over. -1: no source is live. */
static int choose(fetch_t *f, unsigned stripe, uint64_t now_us)
{
    int other = -1;
    for (unsigned i = 0; i < f->order_count; i++) {
        source_t *s = &f->known[f->order[i]];
        if (s->state == SOURCE_RESTING && now_us >= s->rest_us) s->state = SOURCE_LIVE;
        if (s->state != SOURCE_LIVE) continue;
        if (s->stripe == stripe) return f->order[i];
        if (other < 0) other = f->order[i];
    }
    return other;
}

static void give_up(fetch_t *f, int err)
{
    f->course = ENDING_FAILED;
    f->err = err;
}

/* -- events ----------------------------------------------------------------------------------- */

/* A new list replaces the old one and keeps what is known of its sources. A lost source that is listed
 * again is tried again: the broker may know that it is back. */
static void on_sources(fetch_t *f, const fetch_source_t *sources, int count)
{
    for (unsigned i = 0; i < f->order_count; i++) f->known[f->order[i]].listed = false;
    uint8_t before[FETCH_SOURCES_MAX];
    unsigned before_count = f->order_count;
    memcpy(before, f->order, sizeof before);
    f->order_count = 0;
    for (int i = 0; i < count && f->order_count < FETCH_SOURCES_MAX; i++) {
        int at = find(f, sources[i].token);
        if (at < 0) at = admit(f, sources[i].token);
        if (at < 0 || f->known[at].listed) continue;
        source_t *s = &f->known[at];
        s->listed = true;
        s->stripe = sources[i].stripe;
        if (s->state == SOURCE_LOST) s->state = SOURCE_LIVE;
        f->order[f->order_count++] = (uint8_t)at;
    }
    for (unsigned i = 0; i < before_count; i++)
        if (!f->known[before[i]].listed) f->dropping |= 1ull << before[i];
}

/* The digest of the piece is known: it is good, or must be requested again. */
static source_t *take_landed(fetch_t *f, uint32_t piece)
{
    source_t *s = &f->known[f->from[piece]];
    s->landed_count--;
    unlink_piece(f, piece);
    return s;
}

/* A good piece is proof of a working source, which ends the count of the time without one. */
static void on_good(fetch_t *f, uint32_t piece, uint64_t now_us)
{
    note_arrival(f, take_landed(f, piece), now_us);
    f->starved_us = CLOCK_NEVER;
    f->good[piece / 64] |= 1ull << (piece % 64);
    if (++f->good_count == f->plan.count) f->course = ENDING_DONE;
}

/* A source that sent wrong bytes is quarantined for the rest of the fetch. It counts once against the
 * piece, whatever else of it turns out bad. */
static void on_bad(fetch_t *f, uint32_t piece)
{
    source_t *s = take_landed(f, piece);
    return_piece(f, piece);
    if (s->state == SOURCE_BAD) return;
    s->state = SOURCE_BAD;
    f->dropping |= 1ull << (s - f->known);
    if (++f->bad_counts[piece] >= f->plan.bad_limit) give_up(f, HEDDLE_ERR_DIGEST_MISMATCH);
}

/* The number tells an answer to the current request from one to a request that was given up. */
static bool is_asked(const fetch_t *f, uint32_t piece, uint64_t ask)
{
    return piece < f->plan.count && f->where[piece] < KNOWN_MAX && f->ask[piece] == ask;
}

/* Only of an ask that is open: the rest are echoes of asks that were given up already. */
static void on_refused(fetch_t *f, uint32_t piece, uint64_t ask, int err, uint64_t now_us)
{
    if (!is_asked(f, piece, ask)) return;
    unsigned source = f->where[piece];
    return_piece(f, piece);
    f->known[source].rest_us = now_us + f->plan.need_us;
    put_out(f, source, err == HEDDLE_ERR_AGAIN ? SOURCE_RESTING : SOURCE_LOST, err != HEDDLE_ERR_GONE);
}

void fetch_asked(fetch_t *f, uint32_t piece, uint64_t ask, int err, uint64_t now_us)
{
    if (!is_asked(f, piece, 0)) return;
    if (err) on_refused(f, piece, 0, err, now_us);
    else f->ask[piece] = ask;
}

/* A piece that landed leaves the list of its source, so that the source's window has no gap in it; it
 * still counts there until its digest is known. */
bool fetch_land(fetch_t *f, uint32_t piece, uint64_t ask, uint64_t now_us)
{
    if (f->course != GOING || !is_asked(f, piece, ask)) return false;
    source_t *s = &f->known[f->where[piece]];
    unlink_piece(f, piece);
    f->where[piece] = LANDED;
    f->from[piece] = (uint8_t)(s - f->known);
    s->landed_count++;
    s->life_us = now_us;
    return true;
}

/* Only a source with open requests can be late. */
static bool is_late(const fetch_t *f, unsigned source, uint64_t now_us)
{
    const source_t *s = &f->known[source];
    return s->state == SOURCE_LIVE && f->lists[source].count && now_us - s->life_us >= patience(f, s);
}

/* Applies one event to the state; actions follow from the state in fetch_step. */
static void take(fetch_t *f, const fetch_event_t *e, uint64_t now_us)
{
    if (f->course != GOING) return;
    int from = find(f, e->token);
    switch (e->kind) {
    case FE_SOURCES: on_sources(f, e->sources, e->source_count); break;
    case FE_GOOD:
        if (fetch_piece(f, e->piece, NULL) == PIECE_LANDED) on_good(f, e->piece, now_us);
        break;
    case FE_BAD:
        if (fetch_piece(f, e->piece, NULL) == PIECE_LANDED) on_bad(f, e->piece);
        break;
    case FE_REFUSED: on_refused(f, e->piece, e->ask, e->err, now_us); break;
    case FE_GONE:
        if (from >= 0) put_out(f, (unsigned)from, SOURCE_LOST, false);
        break;
    case FE_BEAT:
        if (from < 0 || f->known[from].state != SOURCE_LIVE) break;
        restart_sample(&f->known[from], now_us);
        f->starved_us = CLOCK_NEVER;
        break;
    case FE_TICK:
        for (unsigned i = 0; i < f->order_count; i++) {
            if (!is_late(f, f->order[i], now_us)) continue;
            put_out(f, f->order[i], SOURCE_LOST, false);
            f->closing |= 1ull << f->order[i];
        }
        break;
    case FE_CANCEL: f->course = ENDING_SILENT; break;
    }
}

/* -- actions ---------------------------------------------------------------------------------- */

/* Cancels the open requests of sources that are out. Where there is no room for all actions, the next
 * step goes on. */
static void emit_drops(fetch_t *f, out_t *o)
{
    while (f->dropping && has_room(o)) {
        unsigned source = (unsigned)__builtin_ctzll(f->dropping);
        uint64_t token = f->known[source].token;
        list_t *open = &f->lists[source];
        for (; open->count && has_room(o); return_piece(f, open->first))
            put(o, (fetch_action_t){.kind = FA_DROP_ASK, .piece = open->first, .token = token,
                                    .ask = f->ask[open->first]});
        if (!open->count) f->dropping &= ~(1ull << source);
    }
    for (; f->closing && has_room(o); f->closing &= f->closing - 1)
        put(o, (fetch_action_t){.kind = FA_DROP_PEER, .token = f->known[__builtin_ctzll(f->closing)].token});
}

/* Fills the window of one source with pieces of a stripe. Landed pieces count: they were requested, and
 * their digest may be slow. */
static void emit_asks(fetch_t *f, unsigned stripe, unsigned source, uint64_t now_us, out_t *o)
{
    list_t *open = &f->lists[source];
    source_t *s = &f->known[source];
    if (open->count + s->landed_count == 0) restart_sample(s, now_us);
    while (open->count + s->landed_count < f->window_count && has_room(o)) {
        uint32_t piece = next_todo(f, stripe);
        if (piece == NO_PIECE) return;
        if (f->where[piece] == NOWHERE) f->stripes[stripe].cursor++;
        move_piece(f, piece, source);
        put(o, (fetch_action_t){.kind = FA_ASK, .piece = piece, .token = s->token});
    }
}

/* True when every listed source sent wrong bytes: then no one will ever deliver. */
static bool is_all_bad(const fetch_t *f)
{
    for (unsigned i = 0; i < f->order_count; i++)
        if (f->known[f->order[i]].state != SOURCE_BAD) return false;
    return f->order_count > 0;
}

/* The end is an action too, and comes after all open requests were cancelled. */
static void emit_end(fetch_t *f, out_t *o)
{
    for (unsigned i = 0; i < f->known_count; i++)
        if (f->lists[i].count) f->dropping |= 1ull << i;
    emit_drops(f, o);
    if (f->dropping || f->closing || !has_room(o)) return;
    if (f->course == ENDING_DONE) put(o, (fetch_action_t){.kind = FA_DONE});
    if (f->course == ENDING_FAILED) put(o, (fetch_action_t){.kind = FA_FAILED, .err = f->err});
    f->course = ENDED;
}

/* One event, then the actions that follow from the new state. A fetch without any live source asks for a
 * new list, and fails only when its plan has a limit. */
int fetch_step(fetch_t *f, const fetch_event_t *event, uint64_t now_us, fetch_action_t out[], int cap)
{
    out_t o = {out, 0, cap, f->plan.part};
    if (cap <= 0 || f->course == ENDED) return 0;
    if (f->good_count == f->plan.count && f->course == GOING && event->kind != FE_CANCEL)
        f->course = ENDING_DONE;
    take(f, event, now_us);
    emit_drops(f, &o);
    bool is_starved = false;
    for (unsigned stripe = 0; stripe < f->plan.stripes && f->course == GOING && !is_starved; stripe++) {
        int source = choose(f, stripe, now_us);
        is_starved = source < 0;
        if (!is_starved) f->all_bad_us = CLOCK_NEVER;
        if (!is_starved) emit_asks(f, stripe, (unsigned)source, now_us, &o);
    }
    if (is_starved) {
        if (f->starved_us == CLOCK_NEVER) f->starved_us = now_us;
        if (!is_all_bad(f)) f->all_bad_us = CLOCK_NEVER;
        else if (f->all_bad_us == CLOCK_NEVER) f->all_bad_us = now_us;
        if (f->all_bad_us != CLOCK_NEVER && now_us - f->all_bad_us >= f->plan.bad_us) {
            give_up(f, HEDDLE_ERR_DIGEST_MISMATCH);
        } else if (f->plan.fail_us && now_us - f->starved_us >= f->plan.fail_us) {
            give_up(f, HEDDLE_ERR_GONE);
        } else if (now_us >= f->need_us && has_room(&o)) {
            put(&o, (fetch_action_t){.kind = FA_NEED_SOURCES});
            f->need_us = now_us + f->plan.need_us;
        }
    }
    if (f->course != GOING) emit_end(f, &o);
    return o.count;
}

/* -- questions about the state ---------------------------------------------------------------- */

/* With a live source its own deadline counts; without any, the times at which to ask for sources and to
 * fail. */
uint64_t fetch_deadline(const fetch_t *f)
{
    if (f->course == ENDED) return CLOCK_NEVER;
    if (f->course != GOING || f->dropping || f->closing) return 0;
    uint64_t at = CLOCK_NEVER;
    bool live = false;
    for (unsigned i = 0; i < f->order_count; i++) {
        const source_t *s = &f->known[f->order[i]];
        if (s->state == SOURCE_RESTING && !live) at = clock_earlier(at, s->rest_us);
        if (s->state != SOURCE_LIVE) continue;
        live = true;
        if (f->lists[f->order[i]].count) at = clock_earlier(at, s->life_us + patience(f, s));
    }
    if (live) return at;
    at = clock_earlier(at, f->need_us);
    if (f->all_bad_us != CLOCK_NEVER) at = clock_earlier(at, f->all_bad_us + f->plan.bad_us);
    return f->plan.fail_us ? clock_earlier(at, f->starved_us + f->plan.fail_us) : at;
}

/* Tells which sources took part in a manifest that turned out wrong. */
uint32_t fetch_from(const fetch_t *f, uint64_t token)
{
    int at = find(f, token);
    return at < 0 ? 0 : f->known[at].good_count;
}

int fetch_lost(const fetch_t *f, uint64_t out[], int cap)
{
    int n = 0;
    for (unsigned i = 0; i < f->known_count && n < cap; i++)
        if (f->known[i].state == SOURCE_LOST || f->known[i].state == SOURCE_BAD)
            out[n++] = f->known[i].token;
    return n;
}

/* -- making ----------------------------------------------------------------------------------- */

/* One allocation for all, whose size depends on the number of pieces alone. */
int fetch_new(const fetch_plan_t *plan, uint64_t now_us, fetch_t **ret_fetch)
{
    size_t n = plan->count, words = n / 64 + 1;
    fetch_t *f = calloc(1, sizeof *f + words * 8 + n * (sizeof *f->ask + 2 * sizeof *f->next + 3));
    if (!f) return HEDDLE_ERR_NO_MEMORY;
    f->plan = *plan;
    if (!f->plan.piece_bytes) f->plan.piece_bytes = 1;
    if (!f->plan.stripes) f->plan.stripes = 1;
    if (f->plan.stripes > FETCH_STRIPES_MAX) f->plan.stripes = FETCH_STRIPES_MAX;
    if (!f->plan.window_bytes) f->plan.window_bytes = LIMIT_WINDOW_BYTES;
    if (!f->plan.deadline_min_us) f->plan.deadline_min_us = 1000000;
    if (!f->plan.deadline_max_us) f->plan.deadline_max_us = 30000000;
    if (!f->plan.need_us) f->plan.need_us = 500000;
    if (!f->plan.bad_limit) f->plan.bad_limit = 3;
    if (!f->plan.bad_us) f->plan.bad_us = 5000000;
    uint64_t window = f->plan.window_bytes / f->plan.piece_bytes;
    f->window_count = window < 1 ? 1 : window > UINT32_MAX ? UINT32_MAX : (uint32_t)window;
    f->starved_us = now_us;
    f->all_bad_us = CLOCK_NEVER;
    f->good = (uint64_t *)(f + 1);
    f->ask = f->good + words;
    f->next = (uint32_t *)(f->ask + n);
    f->prev = f->next + n;
    f->where = (uint8_t *)(f->prev + n);
    f->from = f->where + n;
    f->bad_counts = f->from + n;
    memset(f->where, NOWHERE, n);
    for (unsigned i = 0; i < LISTS; i++) f->lists[i] = (list_t){NO_PIECE, NO_PIECE, 0};
    for (uint32_t i = 0; i < f->plan.stripes; i++)
        f->stripes[i] = (stripe_t){.cursor = (uint32_t)((uint64_t)n * i / f->plan.stripes),
                                   .end = (uint32_t)((uint64_t)n * (i + 1) / f->plan.stripes)};
    for (uint32_t p = 0; plan->have && p < plan->count; p++) {
        if (!(plan->have[p / 8] >> (p % 8) & 1)) continue;
        f->good[p / 64] |= 1ull << (p % 64);
        f->good_count++;
    }
    for (uint32_t i = 0; i < plan->bad_count && i < KNOWN_MAX / 2; i++)
        f->known[admit(f, plan->bad[i])].state = SOURCE_BAD;
    f->plan.have = NULL; /* borrowed until here */
    f->plan.bad = NULL;
    *ret_fetch = f;
    return HEDDLE_OK;
}

void fetch_destroy(fetch_t **f)
{
    if (!f) return;
    free(*f);
    *f = NULL;
}
