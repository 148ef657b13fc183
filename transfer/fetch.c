/* SPDX-License-Identifier: Apache-2.0 */
/* A piece is good (bit set), open (in the list of the source it was asked of), returned (in the
 * AGAIN list: was open once, must be asked again), or fresh: at or behind the cursor and never
 * asked.  The cursor only moves forward and the lists are linked through two arrays, so that no
 * event scans the pieces. */
#include "transfer/fetch.h"

#include "core/limits.h"
#include <heddle/error.h>

#include <stdlib.h>
#include <string.h>

enum { KNOWN_MAX = 64, AGAIN = KNOWN_MAX, NOWHERE = 0xff };
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
    uint32_t good_count;
    uint64_t life_us;                    /* last arrival or BEAT, or when it was asked after a pause */
    uint64_t rest_us;                    /* RESTING: until then */
    uint64_t rate;                       /* bytes a second, EWMA; 0: not known yet */
    uint64_t sample_us, sample_bytes;    /* since when, and how much came since */
} source_t;

struct fetch {
    fetch_plan_t plan;
    course_t course;
    int err;                             /* ENDING_FAILED */
    uint32_t window_count;               /* pieces in flight per source */
    uint32_t cursor, good_count;
    source_t known[KNOWN_MAX];           /* never forgets a quarantined one */
    unsigned known_count;
    uint8_t order[FETCH_SOURCES_MAX];    /* the current list: indices into known */
    unsigned order_count;
    uint64_t dropping, closing;          /* bits of known: DROP_ASK for what is open; DROP_PEER */
    uint64_t starved_us;    /* since when there has been no good source; CLOCK_NEVER: there is one */
    uint64_t need_us;       /* not before then is NEED_SOURCES said */
    uint64_t all_bad_us;    /* since when all that are listed are quarantined; CLOCK_NEVER: they are not */
    list_t lists[KNOWN_MAX + 1];
    uint32_t *next, *prev;               /* count each */
    uint8_t *where;                      /* list of each piece, or NOWHERE */
    uint8_t *bad_counts;
    uint64_t *good;
};

typedef struct { fetch_action_t *at; int count, cap; } out_t;

static bool has_room(const out_t *o) { return o->count < o->cap; }

static void put(out_t *o, fetch_action_kind_t kind, uint32_t piece, uint64_t token, int err)
{
    o->at[o->count++] = (fetch_action_t){.kind = kind, .piece = piece, .token = token, .err = err};
}

/* -- pieces ----------------------------------------------------------------------------------- */

static bool is_good(const fetch_t *f, uint32_t piece) { return f->good[piece / 64] >> (piece % 64) & 1; }

static void unlink_piece(fetch_t *f, uint32_t piece)
{
    if (f->where[piece] == NOWHERE) return;
    list_t *l = &f->lists[f->where[piece]];
    uint32_t next = f->next[piece], prev = f->prev[piece];
    if (prev == NO_PIECE) l->first = next; else f->next[prev] = next;
    if (next == NO_PIECE) l->last = prev; else f->prev[next] = prev;
    l->count--;
    f->where[piece] = NOWHERE;
}

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
}

static void return_pieces(fetch_t *f, unsigned source)
{
    while (f->lists[source].count) move_piece(f, f->lists[source].first, AGAIN);
}

/* The next piece to ask for, NO_PIECE when all are open or good.  What was returned comes first:
 * others wait for it. */
static uint32_t next_todo(fetch_t *f)
{
    if (f->lists[AGAIN].count) return f->lists[AGAIN].first;
    while (f->cursor < f->plan.count && is_good(f, f->cursor))
        f->cursor = f->good[f->cursor / 64] == UINT64_MAX ? (f->cursor / 64 + 1) * 64 : f->cursor + 1;
    return f->cursor < f->plan.count ? f->cursor : NO_PIECE;
}

static bool mark_good(fetch_t *f, uint32_t piece)
{
    if (is_good(f, piece)) return false;
    f->good[piece / 64] |= 1ull << (piece % 64);
    f->good_count++;
    return true;
}

/* -- sources ---------------------------------------------------------------------------------- */

static int find(const fetch_t *f, uint64_t token)
{
    for (unsigned i = 0; i < f->known_count; i++)
        if (f->known[i].token == token) return (int)i;
    return -1;
}

/* Room for one more: at the end, or in place of the least useful one that is neither listed nor
 * quarantined. */
static int admit(fetch_t *f, uint64_t token)
{
    int at = -1;
    if (f->known_count < KNOWN_MAX) at = (int)f->known_count++;
    else
        for (unsigned i = 0; i < KNOWN_MAX; i++) {
            const source_t *s = &f->known[i];
            if (s->listed || s->state == SOURCE_BAD || f->lists[i].count || f->closing >> i & 1)
                continue;
            if (at < 0 || s->good_count < f->known[at].good_count) at = (int)i;
        }
    if (at >= 0) f->known[at] = (source_t){.token = token, .state = SOURCE_LIVE};
    return at;
}

static uint64_t patience(const fetch_t *f, const source_t *s)
{
    uint64_t us = f->plan.deadline_min_us * DEADLINE_FACTOR;
    if (s->rate) us = (uint64_t)((double)f->plan.window_bytes * 1e6 / (double)s->rate * DEADLINE_FACTOR);
    if (us < f->plan.deadline_min_us) us = f->plan.deadline_min_us;
    return us < f->plan.deadline_max_us ? us : f->plan.deadline_max_us;
}

static void restart_sample(source_t *s, uint64_t now_us)
{
    s->life_us = s->sample_us = now_us;
    s->sample_bytes = 0;
}

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
static void put_out(fetch_t *f, int source, source_state_t state, bool drop_asks)
{
    if (f->known[source].state != SOURCE_BAD) f->known[source].state = state;
    if (drop_asks) f->dropping |= 1ull << source;
    else return_pieces(f, (unsigned)source);
}

/* The source to ask: the first live one of the list, after waking those that have rested. */
static int primary(fetch_t *f, uint64_t now_us)
{
    for (unsigned i = 0; i < f->order_count; i++) {
        source_t *s = &f->known[f->order[i]];
        if (s->state == SOURCE_RESTING && now_us >= s->rest_us) s->state = SOURCE_LIVE;
        if (s->state == SOURCE_LIVE) return f->order[i];
    }
    return -1;
}

static void give_up(fetch_t *f, int err)
{
    f->course = ENDING_FAILED;
    f->err = err;
}

/* -- events ----------------------------------------------------------------------------------- */

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
        if (s->state == SOURCE_LOST) s->state = SOURCE_LIVE;
        f->order[f->order_count++] = (uint8_t)at;
    }
    for (unsigned i = 0; i < before_count; i++)
        if (!f->known[before[i]].listed) f->dropping |= 1ull << before[i];
}

static void on_good(fetch_t *f, const fetch_event_t *e, uint64_t now_us, out_t *o)
{
    if (e->piece >= f->plan.count || !mark_good(f, e->piece)) return;
    f->starved_us = CLOCK_NEVER;
    unsigned owner = f->where[e->piece];
    int from = find(f, e->token);
    if (owner < KNOWN_MAX && e->token && owner != (unsigned)from)
        put(o, FA_DROP_ASK, e->piece, f->known[owner].token, 0);
    unlink_piece(f, e->piece);
    if (!e->token && owner < KNOWN_MAX) from = (int)owner;
    if (from >= 0) note_arrival(f, &f->known[from], now_us);
    if (f->good_count == f->plan.count) f->course = ENDING_DONE;
}

/* A source counts once against a piece: it is never asked again after its first bad one. */
static void on_bad(fetch_t *f, const fetch_event_t *e)
{
    int from = find(f, e->token);
    if (e->piece >= f->plan.count || from < 0) return;
    if (f->where[e->piece] == from) move_piece(f, e->piece, AGAIN);
    if (f->known[from].state == SOURCE_BAD) return;
    f->known[from].state = SOURCE_BAD;
    f->dropping |= 1ull << from;
    if (++f->bad_counts[e->piece] >= f->plan.bad_limit) give_up(f, HEDDLE_ERR_DIGEST_MISMATCH);
}

/* Only for a piece that is still open there: the rest are echoes of asks that were given up already. */
static void on_refused(fetch_t *f, const fetch_event_t *e, uint64_t now_us)
{
    int from = find(f, e->token);
    if (e->piece >= f->plan.count || from < 0 || f->where[e->piece] != from) return;
    move_piece(f, e->piece, AGAIN);
    f->known[from].rest_us = now_us + f->plan.need_us;
    put_out(f, from, e->err == HEDDLE_ERR_AGAIN ? SOURCE_RESTING : SOURCE_LOST,
            e->err != HEDDLE_ERR_GONE);
}

static void on_beat(fetch_t *f, uint64_t token, uint64_t now_us)
{
    int from = find(f, token);
    if (from < 0 || f->known[from].state != SOURCE_LIVE) return;
    restart_sample(&f->known[from], now_us);
    f->starved_us = CLOCK_NEVER;
}

static bool is_late(const fetch_t *f, unsigned source, uint64_t now_us)
{
    const source_t *s = &f->known[source];
    return s->state == SOURCE_LIVE && f->lists[source].count && now_us - s->life_us >= patience(f, s);
}

static void on_tick(fetch_t *f, uint64_t now_us)
{
    for (unsigned i = 0; i < f->order_count; i++) {
        if (!is_late(f, f->order[i], now_us)) continue;
        put_out(f, f->order[i], SOURCE_LOST, false);
        f->closing |= 1ull << f->order[i];
    }
}

static void take(fetch_t *f, const fetch_event_t *e, uint64_t now_us, out_t *o)
{
    if (f->course != GOING) return;
    int from = find(f, e->token);
    switch (e->kind) {
    case FE_SOURCES: on_sources(f, e->sources, e->source_count); break;
    case FE_GOOD:    on_good(f, e, now_us, o); break;
    case FE_BAD:     on_bad(f, e); break;
    case FE_REFUSED: on_refused(f, e, now_us); break;
    case FE_GONE:    if (from >= 0) put_out(f, from, SOURCE_LOST, false); break;
    case FE_BEAT:    on_beat(f, e->token, now_us); break;
    case FE_TICK:    on_tick(f, now_us); break;
    case FE_CANCEL:  f->course = ENDING_SILENT; break;
    }
}

/* -- actions ---------------------------------------------------------------------------------- */

static void emit_drops(fetch_t *f, out_t *o)
{
    while (f->dropping && has_room(o)) {
        unsigned source = (unsigned)__builtin_ctzll(f->dropping);
        list_t *open = &f->lists[source];
        for (; open->count && has_room(o); move_piece(f, open->first, AGAIN))
            put(o, FA_DROP_ASK, open->first, f->known[source].token, 0);
        if (!open->count) f->dropping &= ~(1ull << source);
    }
    for (; f->closing && has_room(o); f->closing &= f->closing - 1)
        put(o, FA_DROP_PEER, 0, f->known[__builtin_ctzll(f->closing)].token, 0);
}

static void emit_asks(fetch_t *f, unsigned source, uint64_t now_us, out_t *o)
{
    list_t *open = &f->lists[source];
    if (!open->count) restart_sample(&f->known[source], now_us);
    while (open->count < f->window_count && has_room(o)) {
        uint32_t piece = next_todo(f);
        if (piece == NO_PIECE) return;
        if (f->where[piece] == NOWHERE) f->cursor++;
        move_piece(f, piece, source);
        put(o, FA_ASK, piece, f->known[source].token, 0);
    }
}

static bool is_all_bad(const fetch_t *f)
{
    for (unsigned i = 0; i < f->order_count; i++)
        if (f->known[f->order[i]].state != SOURCE_BAD) return false;
    return f->order_count > 0;
}

static void starve(fetch_t *f, uint64_t now_us, out_t *o)
{
    if (f->starved_us == CLOCK_NEVER) f->starved_us = now_us;
    if (!is_all_bad(f)) f->all_bad_us = CLOCK_NEVER;
    else if (f->all_bad_us == CLOCK_NEVER) f->all_bad_us = now_us;
    if (f->all_bad_us != CLOCK_NEVER && now_us - f->all_bad_us >= f->plan.bad_us) {
        give_up(f, HEDDLE_ERR_DIGEST_MISMATCH);
    } else if (f->plan.fail_us && now_us - f->starved_us >= f->plan.fail_us) {
        give_up(f, HEDDLE_ERR_GONE);
    } else if (now_us >= f->need_us && has_room(o)) {
        put(o, FA_NEED_SOURCES, 0, 0, 0);
        f->need_us = now_us + f->plan.need_us;
    }
}

static void emit_end(fetch_t *f, out_t *o)
{
    for (unsigned i = 0; i < f->known_count; i++)
        if (f->lists[i].count) f->dropping |= 1ull << i;
    emit_drops(f, o);
    if (f->dropping || f->closing || !has_room(o)) return;
    if (f->course == ENDING_DONE) put(o, FA_DONE, 0, 0, 0);
    if (f->course == ENDING_FAILED) put(o, FA_FAILED, 0, 0, f->err);
    f->course = ENDED;
}

int fetch_step(fetch_t *f, const fetch_event_t *event, uint64_t now_us, fetch_action_t out[], int cap)
{
    out_t o = {out, 0, cap};
    if (cap <= 0 || f->course == ENDED) return 0;
    if (f->good_count == f->plan.count && f->course == GOING && event->kind != FE_CANCEL)
        f->course = ENDING_DONE;
    take(f, event, now_us, &o);
    emit_drops(f, &o);
    if (f->course == GOING) {
        int source = primary(f, now_us);
        if (source >= 0) {
            f->all_bad_us = CLOCK_NEVER;
            emit_asks(f, (unsigned)source, now_us, &o);
        } else {
            starve(f, now_us, &o);
        }
    }
    if (f->course != GOING) emit_end(f, &o);
    return o.count;
}

/* -- what it knows ---------------------------------------------------------------------------- */

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t fetch_deadline(const fetch_t *f)
{
    if (f->course == ENDED) return CLOCK_NEVER;
    if (f->course != GOING || f->dropping || f->closing) return 0;
    uint64_t at = CLOCK_NEVER;
    bool live = false;
    for (unsigned i = 0; i < f->order_count; i++) {
        const source_t *s = &f->known[f->order[i]];
        if (s->state == SOURCE_RESTING && !live) at = earlier(at, s->rest_us);
        if (s->state != SOURCE_LIVE) continue;
        live = true;
        if (f->lists[f->order[i]].count) at = earlier(at, s->life_us + patience(f, s));
    }
    if (live) return at;
    at = earlier(at, f->need_us);
    if (f->all_bad_us != CLOCK_NEVER) at = earlier(at, f->all_bad_us + f->plan.bad_us);
    return f->plan.fail_us ? earlier(at, f->starved_us + f->plan.fail_us) : at;
}

uint32_t fetch_good_count(const fetch_t *f) { return f->good_count; }
bool fetch_is_good(const fetch_t *f, uint32_t piece)
{
    return piece < f->plan.count && is_good(f, piece);
}

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

static void fill_defaults(fetch_plan_t *p)
{
    if (!p->piece_bytes) p->piece_bytes = 1;
    if (!p->window_bytes) p->window_bytes = LIMIT_WINDOW_BYTES;
    if (!p->deadline_min_us) p->deadline_min_us = 1000000;
    if (!p->deadline_max_us) p->deadline_max_us = 30000000;
    if (!p->need_us) p->need_us = 500000;
    if (!p->bad_limit) p->bad_limit = 3;
    if (!p->bad_us) p->bad_us = 5000000;
}

int fetch_new(const fetch_plan_t *plan, uint64_t now_us, fetch_t **ret_fetch)
{
    size_t n = plan->count, words = n / 64 + 1;
    fetch_t *f = calloc(1, sizeof *f + words * 8 + n * (2 * sizeof(uint32_t) + 2));
    if (!f) return HEDDLE_ERR_NO_MEMORY;
    f->plan = *plan;
    fill_defaults(&f->plan);
    uint64_t window = f->plan.window_bytes / f->plan.piece_bytes;
    f->window_count = window < 1 ? 1 : window > UINT32_MAX ? UINT32_MAX : (uint32_t)window;
    f->starved_us = now_us;
    f->all_bad_us = CLOCK_NEVER;
    f->good = (uint64_t *)(f + 1);
    f->next = (uint32_t *)(f->good + words);
    f->prev = f->next + n;
    f->where = (uint8_t *)(f->prev + n);
    f->bad_counts = f->where + n;
    memset(f->where, NOWHERE, n);
    for (unsigned i = 0; i <= KNOWN_MAX; i++) f->lists[i] = (list_t){NO_PIECE, NO_PIECE, 0};
    for (uint32_t p = 0; plan->have && p < plan->count; p++)
        if (plan->have[p / 8] >> (p % 8) & 1) mark_good(f, p);
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
