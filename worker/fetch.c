/* SPDX-License-Identifier: Apache-2.0 */
/* Each piece is in one place: good (bit set), asked (in the list of its source), landed, returned (in the
 * AGAIN list: it was asked for once, and must be again), or fresh: at or behind the cursor and never asked
 * for.  The cursor only moves forward and the lists are linked through two arrays, so that no event scans the
 * pieces. */
#include "worker/fetch.h"

#include "core/limits.h"
#include <heddle/error.h>

#include <stdlib.h>
#include <string.h>

/* Places of a piece: the list of a source (0..KNOWN_MAX-1), of what is asked for again, or none. */
enum { LENT_MAX = 8 };
enum { KNOWN_MAX = 64, AGAIN = KNOWN_MAX, LISTS, LANDED = 0xfe, NOWHERE = 0xff };
#define NO_PIECE UINT32_MAX
#define SAMPLE_US 10000u            /* a rate is taken over at least so long: arrivals come in bursts */
#define DEADLINE_MIN_US 200000u     /* four keepalives */
#define DEADLINE_UNKNOWN_US 800000u /* no rate is known */
#define DEADLINE_MAX_US 30000000u
#define STOOD_US 20000u     /* a tick that comes so much later than it was due: this process stood still */
#define STILL_US 12000000u  /* a source that has nothing to send refuses after 10 s */
#define NEED_US 500000u     /* between two need_sources, and how long a busy source rests */
#define FULL_US 10000u      /* until it is tried again whether this process may ask for more */
#define BAD_LIMIT 3u        /* times that one piece may be bad */
#define BAD_TWICE 2u        /* a source that sent wrong bytes so often is asked no more */
#define ALL_BAD_US 5000000u /* others may come to hold the version meanwhile */
#define LEND_US 50000u      /* until a piece is lent */
#define LEND_FACTOR 16u     /* after each that says nothing so many times as long, up to: */
#define LEND_PAUSE_US 1000000u
/* the time of so many, where that is more: of a good source's bytes no more are lent */
#define LEND_PIECES 128u
#define LEND_MAX_US 10000000u
#define LEND_WORTH_US 1000000u /* left of the fetch, where a source that has all bytes is lent one */
#define AT_ONCE 4u /* a source that has all bytes sends one so much sooner than the one before it */
/* one that all asks move to sends several so much sooner, while the one before it goes on */
#define FASTER 3u
#define END_US 50000u     /* the last pieces of a fetch may come so much later than from another source */
#define LEND_AHEAD_MIN 8u /* pieces: a good chain is a few pieces deep between two of its members */

typedef enum { SOURCE_LIVE, SOURCE_LATE, SOURCE_RESTING, SOURCE_LOST, SOURCE_BAD } source_state_t;

typedef struct {
    uint32_t first, last, count;
} piece_list_t;
typedef struct {
    uint64_t token;
    source_state_t state;
    bool listed;
    bool is_slow; /* another one is faster: asked only where no other one is live */
    bool has_sent;
    uint8_t bad_count;
    uint32_t landed_count, good_count, late_count;
    uint64_t life_us;  /* last arrival or BEAT, or when it was asked after a pause */
    uint64_t came_us;  /* last arrival, or when it was asked after a pause, not being LATE */
    uint64_t gap_us;   /* between its last two arrivals; 0: not known */
    uint64_t late_us;  /* LATE: when its deadline passed last; then when it spoke again */
    uint64_t again_us; /* not late before: its deadline passed as this process stood still; 0 */
    uint64_t rest_us;  /* RESTING: until then */
    uint64_t rate;     /* bytes a second, EWMA; 0: not known yet */
    uint64_t sample_us, sample_bytes; /* since when, and how much came since */
} known_t;

/* NONE -> ONE piece is lent -> it comes at once -> SOME more -> these come much sooner than as many of the
 * lender's: all asks move -> NONE; anything else: NONE, and a pause. */
typedef enum { LENDING_NONE, LENDING_ONE, LENDING_SOME } lending_state_t;
typedef struct {
    lending_state_t state;
    lend_t as;
    uint64_t lender, other;    /* tokens: of the source that was asked before, and of the one that has them */
    uint32_t pieces[LENT_MAX]; /* those that have not come; NO_PIECE */
    uint64_t asks[LENT_MAX];   /* their numbers */
    uint32_t count, came_count; /* of these, and of what has come of them */
    uint32_t lender_count;      /* what the lender sent since */
    uint32_t good_count;        /* of the fetch, when the first one was lent */
    uint32_t tries;
    uint64_t due_us, pause_us, lent_us;
    double each_us; /* the time of a piece from the lender, when the first one was lent */
} lending_t;

struct fetch {
    fetch_ops_t ops;
    void *self;                  /* of ops */
    uint32_t count, piece_bytes; /* of the plan */
    bool is_over;
    bool is_late_asked;    /* asks may stand at a late source */
    uint32_t window_count; /* pieces in flight per source, for all who share the window */
    uint32_t good_count;
    uint32_t cursor;          /* pieces from here on were never asked for */
    known_t known[KNOWN_MAX]; /* never forgets a quarantined one */
    unsigned known_count;
    uint8_t order[FETCH_SOURCES_MAX]; /* the current list: indices into known */
    unsigned order_count;
    uint64_t need_us;    /* need_sources is not called before */
    uint64_t all_bad_us; /* since when all that are listed are quarantined; CLOCK_NEVER: they are not */
    uint64_t full_us;    /* this process may ask for no more, and tries again then; CLOCK_NEVER: it may */
    uint64_t end_us;     /* when the last pieces go to the source that has sent all others; CLOCK_NEVER */
    lending_t lending;
    piece_list_t lists[LISTS];
    /* One of each a piece. */
    uint64_t *ask; /* ASKED: its number */
    uint32_t *next, *prev;
    uint8_t *where, *from; /* from: index into known, of what has landed */
    uint8_t *bad_counts;
    uint64_t *good; /* a bit a piece */
};

/* -- pieces ----------------------------------------------------------------------------------- */

static bool is_good(const fetch_t *f, uint32_t piece) { return f->good[piece / 64] >> (piece % 64) & 1; }

/* It was never asked for. */
static bool is_fresh(const fetch_t *f, uint32_t piece)
{
    return f->where[piece] == NOWHERE && !is_good(f, piece);
}

/* Lists are linked by index in both directions, so that a piece can leave the middle of one at once. */
static void unlink_piece(fetch_t *f, uint32_t piece)
{
    if (f->where[piece] < LISTS) {
        piece_list_t *l = &f->lists[f->where[piece]];
        uint32_t next = f->next[piece], prev = f->prev[piece];
        if (prev == NO_PIECE) l->first = next;
        else f->next[prev] = next;
        if (next == NO_PIECE) l->last = prev;
        else f->prev[next] = prev;
        l->count--;
    }
    f->where[piece] = NOWHERE;
}

/* A piece that moves has no read request any more; its number would match a late answer. */
static void move_piece(fetch_t *f, uint32_t piece, unsigned list)
{
    unlink_piece(f, piece);
    piece_list_t *l = &f->lists[list];
    f->prev[piece] = l->last;
    f->next[piece] = NO_PIECE;
    if (l->last == NO_PIECE) l->first = piece;
    else f->next[l->last] = piece;
    l->last = piece;
    l->count++;
    f->where[piece] = (uint8_t)list;
    f->ask[piece] = 0;
}

/* The next piece to ask for, NO_PIECE when all are open or good.  What was asked for before comes first:
 * receivers that fetch from this process may wait for it. */
static uint32_t next_todo(fetch_t *f)
{
    if (f->lists[AGAIN].count) return f->lists[AGAIN].first;
    while (f->cursor < f->count && !is_fresh(f, f->cursor))
        f->cursor = f->good[f->cursor / 64] == UINT64_MAX ? (f->cursor / 64 + 1) * 64 : f->cursor + 1;
    return f->cursor < f->count ? f->cursor : NO_PIECE;
}

/* Derived from the place of the piece; nothing stores it a second time. */
piece_state_t fetch_piece(const fetch_t *f, uint32_t piece, uint64_t *ret_token)
{
    unsigned where = piece < f->count ? f->where[piece] : NOWHERE;
    bool is_landed = where == LANDED;
    unsigned source = is_landed ? f->from[piece] : where;
    if (ret_token) *ret_token = source < KNOWN_MAX ? f->known[source].token : 0;
    if (is_landed) return PIECE_LANDED;
    if (where < KNOWN_MAX) return PIECE_ASKED;
    return piece < f->count && is_good(f, piece) ? PIECE_GOOD : PIECE_TODO;
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
            const known_t *s = &f->known[i];
            bool is_in_use = s->listed || f->lists[i].count || s->landed_count;
            if (is_in_use || s->bad_count) continue;
            if (at < 0 || s->good_count < f->known[at].good_count) at = (int)i;
        }
    if (at >= 0) f->known[at] = (known_t){.token = token, .state = SOURCE_LIVE};
    return at;
}

/* How long a source may be silent: what a full window takes at its observed rate, within bounds.  A piece of
 * it comes many times in that time, or a BEAT.  It doubles each time that the source was late: where all are
 * slow, asks that move on too early would never bring anything. */
static uint64_t patience(const known_t *s)
{
    uint64_t us = DEADLINE_UNKNOWN_US;
    if (s->rate) us = (uint64_t)((double)LIMIT_WINDOW_BYTES * 1e6 / (double)s->rate);
    if (us < DEADLINE_MIN_US) us = DEADLINE_MIN_US;
    for (uint32_t i = 0; i < s->late_count && us < DEADLINE_MAX_US; i++) us *= 2;
    return us < DEADLINE_MAX_US ? us : DEADLINE_MAX_US;
}

/* How long a source lives by BEAT alone.  Before its first piece it may make memory for all of them, which it
 * does not refuse as long as that gets further. */
static uint64_t still_us(const known_t *s)
{
    if (!s->has_sent) return DEADLINE_MAX_US;
    return patience(s) > STILL_US ? patience(s) : STILL_US;
}

/* When a source with open asks is late, or late again. */
static uint64_t due_us(const known_t *s)
{
    uint64_t life_us = s->life_us > s->late_us ? s->life_us : s->late_us;
    uint64_t came_us = s->came_us > s->late_us ? s->came_us : s->late_us;
    return clock_earlier(life_us + patience(s), came_us + still_us(s));
}

/* The source's deadline starts anew, and so does its sample: a rate is measured only over time in which
 * something was requested. */
static void note_life(known_t *s, uint64_t now_us)
{
    s->life_us = s->sample_us = now_us;
    s->sample_bytes = 0;
}

/* It speaks: it is late no more.  Its deadline is as short as before when it has spoken for as long as the
 * longer one lasts, so that a source that comes and goes moves asks ever more seldom. */
static void revive(known_t *s, uint64_t now_us)
{
    if (s->state == SOURCE_LATE) {
        s->state = SOURCE_LIVE;
        s->late_us = now_us;
    } else if (s->late_count && now_us - s->late_us >= patience(s)) {
        s->late_count = 0;
    }
}

/* A piece is to be asked for again, and that is reported.  One without a number was not asked for yet. */
static void take_back(fetch_t *f, uint32_t piece, moved_t why)
{
    if (f->ask[piece] && f->ops.moved) f->ops.moved(f->self, f->known[f->where[piece]].token, why);
    move_piece(f, piece, AGAIN);
}

/* Gives up what is open at a source, but for its last `kept` asks; these pieces go to another one. */
static void drop_asks(fetch_t *f, unsigned source, uint32_t kept, moved_t why)
{
    piece_list_t *open = &f->lists[source];
    for (; open->count > kept; take_back(f, open->first, why)) f->ops.drop_ask(f->self, f->ask[open->first]);
}

static void say_asked(const fetch_t *f, uint64_t token)
{
    if (f->ops.asks) f->ops.asks(f->self, token);
}

/* The fetch is over: what is open is asked of no other source. */
static void drop_all(fetch_t *f)
{
    say_asked(f, 0);
    for (unsigned i = 0; i < f->known_count; i++)
        for (piece_list_t *open = &f->lists[i]; open->count; move_piece(f, open->first, AGAIN))
            f->ops.drop_ask(f->self, f->ask[open->first]);
}

/* A source whose connection is gone has nothing open that could be dropped. */
static void put_out(fetch_t *f, unsigned source, source_state_t state)
{
    if (f->known[source].state != SOURCE_BAD) f->known[source].state = state;
    while (f->lists[source].count) take_back(f, f->lists[source].first, MOVED_GONE);
}

/* The source does not deliver this piece, or cannot be asked for it.  Its other asks are dropped, with GONE
 * too: one receive may fail on a connection that stays, and what the others bring later would be written over
 * pieces that come from elsewhere. */
static void refuse_piece(fetch_t *f, uint32_t piece, int err, uint64_t now_us)
{
    unsigned source = f->where[piece];
    moved_t why = err == HEDDLE_ERR_GONE ? MOVED_GONE : MOVED_REFUSED;
    take_back(f, piece, why);
    f->known[source].rest_us = now_us + NEED_US;
    drop_asks(f, source, 0, why);
    put_out(f, source, err == HEDDLE_ERR_AGAIN ? SOURCE_RESTING : SOURCE_LOST);
}

/* -- what every event ends with --------------------------------------------------------------- */

/* Open asks are dropped first: after the end no event of them may come. */
static void conclude(fetch_t *f, bool is_good, uint64_t now_us)
{
    f->is_over = true;
    drop_all(f);
    f->ops.end(f->self, is_good, now_us);
}

/* The source to ask: the first live one of the list that is not slow, else one that is, else the late one
 * whose deadline passed longest ago.  NULL: there is none. */
static known_t *choose(fetch_t *f, uint64_t now_us)
{
    known_t *late = NULL, *slow = NULL;
    for (unsigned i = 0; i < f->order_count; i++) {
        known_t *s = &f->known[f->order[i]];
        if (s->state == SOURCE_RESTING && now_us >= s->rest_us) s->state = SOURCE_LIVE;
        if (s->state == SOURCE_LIVE && !s->is_slow && !s->bad_count) return s;
        if (s->state == SOURCE_LIVE && !slow) slow = s;
        if (s->state == SOURCE_LATE && (!late || s->late_us < late->late_us)) late = s;
    }
    return slow ? slow : late;
}

/* Where every listed source is quarantined: of those that sent wrong bytes once the first one, which is asked
 * once more.  One bit may have changed on its way; twice is damage.  NULL: there is none. */
static known_t *forgive(fetch_t *f)
{
    known_t *first = NULL;
    for (unsigned i = 0; i < f->order_count; i++) {
        known_t *s = &f->known[f->order[i]];
        if (s->state != SOURCE_BAD) return NULL;
        if (!first && s->bad_count < BAD_TWICE) first = s;
    }
    if (first) first->state = SOURCE_LIVE;
    return first;
}

static uint32_t sharers(const fetch_t *f, uint64_t token)
{
    uint32_t count = f->ops.sharers ? f->ops.sharers(f->self, token) : 1;
    return count ? count : 1;
}

/* Of the window of a source, the part of this fetch: what siblings ask of the same source waits there too.
 * It is looked up each time: siblings come and go. */
static uint32_t window_part(const fetch_t *f, uint64_t token)
{
    uint32_t count = f->window_count / sharers(f, token);
    return count ? count : 1;
}

/* One that cannot be asked is out, unless it is this process that may not ask for more. */
static void request_piece(fetch_t *f, known_t *s, uint32_t piece, uint64_t now_us)
{
    uint64_t ask = 0;
    unsigned source = (unsigned)(s - f->known);
    /* Landed pieces count: they were requested, and their digest may be slow. */
    if (f->lists[source].count + s->landed_count == 0) {
        note_life(s, now_us);
        if (s->state != SOURCE_LATE) s->came_us = now_us;
    }
    move_piece(f, piece, source);
    int rc = f->ops.ask(f->self, piece, s->token, &ask);
    if (rc == HEDDLE_ERR_SLOW) {
        move_piece(f, piece, AGAIN);
        f->full_us = now_us + FULL_US;
    } else if (rc) refuse_piece(f, piece, rc, now_us);
    else f->ask[piece] = ask;
}

/* Which of the lent pieces it is; LENT_MAX: none, or it was asked for elsewhere since. */
static unsigned lent_at(const fetch_t *f, uint32_t piece)
{
    const lending_t *l = &f->lending;
    unsigned i = 0;
    while (i < l->count && !(l->pieces[i] == piece && l->asks[i] == f->ask[piece])) i++;
    return l->state == LENDING_NONE || i == l->count ? LENT_MAX : i;
}

/* Of a source's window, so much is left to it while another one is lent pieces for a comparison: where that
 * turns out well for it, these come back, and others that were asked for meanwhile would come before them.
 * What was lent to one that has gone since is no part of it.  It goes on with one piece at least. */
static uint32_t window_left(const fetch_t *f, const known_t *s)
{
    const lending_t *l = &f->lending;
    uint32_t window = window_part(f, s->token), lent = 0;
    if (l->state != LENDING_SOME || s->token != l->lender) return window;
    for (uint32_t i = 0; i < l->count; i++)
        lent += l->pieces[i] != NO_PIECE && lent_at(f, l->pieces[i]) < LENT_MAX;
    return lent < window ? window - lent : 1;
}

/* Asks a source for as many pieces as its window lets. */
static void ask_source(fetch_t *f, known_t *s, uint64_t now_us)
{
    unsigned source = (unsigned)(s - f->known);
    source_state_t state = s->state;
    const piece_list_t *open = &f->lists[source];
    uint32_t piece, window = window_left(f, s);
    while (s->state == state && f->full_us == CLOCK_NEVER && open->count + s->landed_count < window &&
           (piece = next_todo(f)) != NO_PIECE) {
        if (is_fresh(f, piece)) f->cursor++;
        request_piece(f, s, piece, now_us);
    }
}

/* A late source of which nothing is asked, as the fetch has just begun, or its list: one piece, which `s`
 * would be asked for within a window. */
static void ask_late(fetch_t *f, unsigned at, const known_t *s, uint32_t before_end, uint64_t now_us)
{
    uint32_t next = next_todo(f), window = window_part(f, s->token);
    uint32_t piece = f->cursor + window - 1 - before_end;
    bool is_there = before_end < window && piece < f->count;
    if (f->lists[at].count || next == NO_PIECE || !is_there || piece == next || !is_fresh(f, piece)) return;
    request_piece(f, &f->known[at], piece, now_us);
}

/* What stands at late sources is asked of `s` instead.  One ask stays at each as long as other pieces are to
 * be asked for: a source says nothing to a receiver that has asked it nothing. */
static void take_from_late(fetch_t *f, const known_t *s, uint32_t kept, uint64_t now_us)
{
    f->is_late_asked = s->state == SOURCE_LATE;
    for (unsigned i = 0; i < f->order_count; i++) {
        unsigned at = f->order[i];
        if (f->known[at].state != SOURCE_LATE || &f->known[at] == s) continue;
        drop_asks(f, at, kept, MOVED_LATE);
        if (kept) ask_late(f, at, s, i, now_us);
        f->is_late_asked |= f->lists[at].count > 0;
    }
}

/* Nothing is left to ask for, and `s` has sent all that was asked of it: how many pieces others have not.  0
 * also where `s` is not at its end. */
static uint32_t open_elsewhere(fetch_t *f, const known_t *s)
{
    unsigned at = (unsigned)(s - f->known);
    uint32_t count = 0;
    if (s->state != SOURCE_LIVE || !s->rate || s->landed_count || f->lists[at].count) return 0;
    if (next_todo(f) != NO_PIECE) return 0;
    for (unsigned i = 0; i < f->known_count; i++) count += f->lists[i].count;
    return count;
}

/* At the end of a fetch no source keeps what another one would have sent by now, twice over. */
static void take_from_slow(fetch_t *f, known_t *s, uint64_t now_us)
{
    uint32_t count = open_elsewhere(f, s);
    if (!count) f->end_us = CLOCK_NEVER;
    else if (f->end_us == CLOCK_NEVER)
        f->end_us = now_us + END_US + (uint64_t)(2e6 * count * f->piece_bytes / (double)s->rate);
    if (now_us < f->end_us) return;
    for (unsigned i = 0; i < f->known_count; i++) {
        const piece_list_t *open = &f->lists[i];
        /* What is lent stands there in place of another source. */
        for (uint32_t p = open->first; p != NO_PIECE; p = f->next[p])
            f->known[i].is_slow |= lent_at(f, p) == LENT_MAX;
        drop_asks(f, i, 0, MOVED_SLOW);
    }
    f->end_us = CLOCK_NEVER;
    ask_source(f, s, now_us);
}

/* At most each half second. */
static void need_sources(fetch_t *f, uint64_t now_us)
{
    if (now_us < f->need_us) return;
    f->ops.need_sources(f->self);
    f->need_us = now_us + NEED_US;
}

/* Asks one source; what stands at late ones comes to it.  Without a live one a new list is needed. */
static void go_on(fetch_t *f, uint64_t now_us)
{
    if (f->is_over) return;
    if (f->good_count == f->count) {
        conclude(f, true, now_us);
        return;
    }
    known_t *s;
    bool is_asked = false;
    f->full_us = CLOCK_NEVER;
    while (!is_asked && ((s = choose(f, now_us)) || (s = forgive(f)))) {
        if (f->is_late_asked) take_from_late(f, s, 1, now_us);
        ask_source(f, s, now_us);
        if (f->is_late_asked && next_todo(f) == NO_PIECE) {
            take_from_late(f, s, 0, now_us);
            ask_source(f, s, now_us);
        }
        is_asked = s->state <= SOURCE_LATE;
    }
    say_asked(f, is_asked ? s->token : 0);
    if (is_asked) take_from_slow(f, s, now_us);
    else f->end_us = CLOCK_NEVER;
    if (is_asked) f->all_bad_us = CLOCK_NEVER;
    if (is_asked && s->state == SOURCE_LIVE) return;
    /* Where every listed source sent wrong bytes, another one may still come to hold the version. */
    bool is_all_bad = f->order_count > 0;
    for (unsigned i = 0; i < f->order_count; i++)
        is_all_bad = is_all_bad && f->known[f->order[i]].state == SOURCE_BAD;
    if (!is_all_bad) f->all_bad_us = CLOCK_NEVER;
    else if (f->all_bad_us == CLOCK_NEVER) f->all_bad_us = now_us;
    if (f->all_bad_us != CLOCK_NEVER && now_us - f->all_bad_us >= ALL_BAD_US) conclude(f, false, now_us);
    else need_sources(f, now_us);
}

/* -- a slow source ---------------------------------------------------------------------------- */

/* The time of a piece from this source: by its rate, or between its last two, as one that sends now and then,
 * and says BEAT meanwhile, has no rate, or one of moments.  It sends to the siblings of this fetch meanwhile:
 * a source that they load is not slow.  0: not known. */
static double piece_us(const fetch_t *f, const known_t *s)
{
    double at_rate_us = s->rate ? f->piece_bytes * 1e6 / (double)s->rate : 0, each_us = (double)s->gap_us;
    return (at_rate_us > each_us ? at_rate_us : each_us) / sharers(f, s->token);
}

static void lend_later(fetch_t *f, uint64_t now_us)
{
    lending_t *l = &f->lending;
    int lender = find(f, l->lender);
    double most_us = lender < 0 ? 0 : LEND_PIECES * piece_us(f, &f->known[lender]);
    if (most_us < LEND_PAUSE_US) most_us = LEND_PAUSE_US;
    if (most_us > LEND_MAX_US) most_us = LEND_MAX_US;
    l->state = LENDING_NONE;
    l->pause_us = (double)l->pause_us * LEND_FACTOR < most_us ? l->pause_us * LEND_FACTOR : (uint64_t)most_us;
    l->due_us = now_us + l->pause_us;
}

/* What is left of the fetch is worth a piece of the uplink of a source that has all bytes. */
static bool is_worth_asking(const fetch_t *f, const known_t *s)
{
    return (double)(f->count - f->good_count) * piece_us(f, s) >= LEND_WORTH_US;
}

/* The next live source behind `s` in the list that may be lent a piece. */
static known_t *next_to_lend(fetch_t *f, const known_t *s, lend_t *ret_as)
{
    bool is_behind = false;
    for (unsigned i = 0; f->ops.lend && i < f->order_count; i++) {
        known_t *next = &f->known[f->order[i]];
        bool may_lend = is_behind && next->state == SOURCE_LIVE && !next->is_slow && !next->bad_count;
        *ret_as = may_lend ? f->ops.lend(f->self, next->token) : LEND_NOT;
        if (*ret_as == LEND_PARTIAL || (*ret_as == LEND_WHOLE && is_worth_asking(f, s))) return next;
        is_behind |= next == s;
    }
    return NULL;
}

/* How many pieces ahead a lent one is, at least; half of the lender's window, where that is more. */
static uint32_t near(const fetch_t *f, uint64_t lender)
{
    uint32_t half = window_part(f, lender) / 2;
    return half > LEND_AHEAD_MIN ? half : LEND_AHEAD_MIN;
}

/* How far ahead, up to twice as far.  Members behind a slow source have equally much, and a piece that one of
 * them was lent is no sign that it has those before it: so each pair of members lends another one. */
static uint32_t distance(const fetch_t *f, const known_t *s, const known_t *other)
{
    uint64_t x = (other->token + f->lending.tries + 1) * 0x9e3779b97f4a7c15ull;
    uint32_t least = near(f, s->token);
    return least + (uint32_t)(x >> 32) % least;
}

/* How many pieces more it may be asked for. */
static uint32_t room(const fetch_t *f, const known_t *s)
{
    uint32_t used = f->lists[s - f->known].count + s->landed_count, window = window_part(f, s->token);
    return used < window ? window - used : 0;
}

/* One that would come last: the last one that is open at the lender, which goes on with those before it;
 * where its window is no more than a piece, the next one that is to be asked for. */
static uint32_t last_of(fetch_t *f, const known_t *lender)
{
    const piece_list_t *open = &f->lists[lender - f->known];
    return open->count > 1 ? open->last : next_todo(f);
}

/* The piece to lend, where `s` has just delivered `piece`; NO_PIECE: none. */
static uint32_t piece_to_lend(fetch_t *f, const known_t *s, uint32_t piece, const known_t *other, lend_t as)
{
    unsigned at = (unsigned)(s - f->known);
    if (!room(f, other)) return NO_PIECE;
    if (as == LEND_WHOLE) return last_of(f, s);
    uint32_t far = piece + distance(f, s, other);
    return far < f->count && (f->where[far] == at || is_fresh(f, far)) ? far : NO_PIECE;
}

/* False: it cannot be asked. */
static bool lend_piece(fetch_t *f, known_t *other, uint32_t piece, uint64_t now_us)
{
    lending_t *l = &f->lending;
    if (f->ask[piece]) f->ops.drop_ask(f->self, f->ask[piece]);
    request_piece(f, other, piece, now_us);
    if (f->where[piece] != other - f->known) return false;
    l->pieces[l->count] = piece;
    l->asks[l->count++] = f->ask[piece];
    return true;
}

/* `from` has just delivered `piece`. */
static void lend(fetch_t *f, const known_t *from, uint32_t piece, uint64_t now_us)
{
    lending_t *l = &f->lending;
    if (l->state != LENDING_NONE) return;
    if (l->due_us == 0) l->due_us = now_us + LEND_US;
    const known_t *s = now_us < l->due_us ? NULL : choose(f, now_us);
    if (!s || s->state != SOURCE_LIVE || piece_us(f, s) <= 0) return;
    lend_t as = LEND_NOT;
    known_t *other = next_to_lend(f, s, &as);
    if (as == LEND_PARTIAL && from != s) return;
    uint32_t far = other ? piece_to_lend(f, s, piece, other, as) : NO_PIECE;
    if (far == NO_PIECE) return;
    l->count = l->came_count = l->lender_count = 0;
    l->tries++;
    l->lender = s->token;
    l->other = other->token;
    l->as = as;
    l->lent_us = now_us;
    l->each_us = piece_us(f, s);
    l->good_count = f->good_count;
    if (lend_piece(f, other, far, now_us)) l->state = LENDING_ONE;
}

/* A quarter of the lender's window, as far as the other one has room. */
static uint32_t some(const fetch_t *f, const known_t *lender, const known_t *other)
{
    uint32_t quarter = window_part(f, lender->token) / 4, free = room(f, other);
    uint32_t most = quarter > LENT_MAX ? LENT_MAX : quarter > 2 ? quarter : 2;
    return most < free ? most : free;
}

/* Lends so many in the order in which they are open; where that leaves the lender none, such that are to be
 * asked for next. */
static void lend_some(fetch_t *f, const known_t *lender, known_t *other, uint64_t now_us)
{
    lending_t *l = &f->lending;
    const piece_list_t *open = &f->lists[lender - f->known];
    uint32_t count = some(f, lender, other), piece = open->last;
    bool is_open = open->count > count;
    l->state = LENDING_NONE;
    l->count = l->came_count = l->lender_count = 0;
    for (uint32_t i = 1; is_open && i < count; i++) piece = f->prev[piece];
    while (l->count < count) {
        uint32_t next = is_open ? f->next[piece] : NO_PIECE;
        if (!is_open) piece = next_todo(f);
        if (piece == NO_PIECE || !lend_piece(f, other, piece, now_us)) break;
        piece = next;
    }
    l->lent_us = now_us;
    if (l->count) l->state = LENDING_SOME;
    else lend_later(f, now_us);
}

/* A lent piece has come: so soon that the other source is far ahead, or faster than the lender. */
static bool came_at_once(const fetch_t *f, const known_t *lender, uint64_t now_us)
{
    const lending_t *l = &f->lending;
    if (l->as == LEND_PARTIAL) return f->good_count - l->good_count < near(f, l->lender) / 4;
    return (double)(now_us - l->lent_us) * AT_ONCE <= piece_us(f, lender);
}

/* They came sooner than the lender's meanwhile, and than these came before: a new connection may take most of
 * a slow link of this process for itself. */
static bool is_faster(const lending_t *l, uint64_t now_us)
{
    return l->lender_count * FASTER < l->count &&
           (double)(now_us - l->lent_us) * FASTER <= l->count * l->each_us;
}

/* All that was lent has come.  A single piece may come at once from a source whose uplink is full: it is lent
 * some more, and they are compared with what the lender sends meanwhile. */
static void compare(fetch_t *f, uint64_t now_us)
{
    lending_t *l = &f->lending;
    known_t *lender = choose(f, now_us);
    int other = find(f, l->other);
    if (!lender || lender->token != l->lender || other < 0) l->state = LENDING_NONE;
    else if (l->state == LENDING_ONE && came_at_once(f, lender, now_us))
        lend_some(f, lender, &f->known[other], now_us);
    else if (l->state == LENDING_SOME && is_faster(l, now_us)) {
        lender->is_slow = true;
        drop_asks(f, (unsigned)(lender - f->known), 0, MOVED_SLOW);
        *l = (lending_t){.pause_us = LEND_US, .tries = l->tries};
    } else lend_later(f, now_us);
}

/* They did not come soon.  A source that is well has them only later: that is no reason to report. */
static void take_lent_back(fetch_t *f, uint64_t now_us)
{
    lending_t *l = &f->lending;
    for (uint32_t i = 0; i < l->count; i++) {
        uint32_t piece = l->pieces[i];
        if (piece == NO_PIECE || f->where[piece] == LANDED) continue;
        f->ops.drop_ask(f->self, l->asks[i]);
        if (f->known[f->where[piece]].state == SOURCE_LATE) take_back(f, piece, MOVED_LATE);
        else move_piece(f, piece, AGAIN);
    }
    lend_later(f, now_us);
}

/* `s` has sent a piece, which may be one that was lent. */
static void follow_lending(fetch_t *f, const known_t *s, uint32_t piece, uint64_t now_us)
{
    lending_t *l = &f->lending;
    if (l->state == LENDING_NONE) return;
    for (uint32_t i = 0; i < l->count; i++)
        if (l->pieces[i] != NO_PIECE && lent_at(f, l->pieces[i]) == LENT_MAX) {
            l->state = LENDING_NONE; /* they were asked for elsewhere: that source has gone, for one */
            return;
        }
    unsigned at = lent_at(f, piece);
    if (at < LENT_MAX) {
        l->pieces[at] = NO_PIECE;
        if (++l->came_count == l->count) compare(f, now_us);
        return;
    }
    l->lender_count += s->token == l->lender;
    bool is_late = l->state == LENDING_SOME
                       ? l->lender_count * FASTER >= l->count
                       : l->as == LEND_PARTIAL && f->good_count - l->good_count >= near(f, l->lender) / 2;
    if (is_late) take_lent_back(f, now_us);
}

/* -- events ----------------------------------------------------------------------------------- */

/* A lost source that is listed again is tried again: the broker may know that it is back.  It counts as one
 * that has sent nothing, so that where the broker does not know yet that it has gone, that is reported at the
 * pace of need_sources and not again at once. */
void fetch_sources(fetch_t *f, const uint64_t *tokens, int count, uint64_t now_us)
{
    if (f->is_over) return;
    for (unsigned i = 0; i < f->known_count; i++) f->known[i].listed = false;
    f->order_count = 0;
    for (int i = 0; i < count && f->order_count < FETCH_SOURCES_MAX; i++) {
        int at = find(f, tokens[i]);
        if (at < 0) at = admit(f, tokens[i]);
        if (at < 0 || f->known[at].listed) continue;
        known_t *s = &f->known[at];
        s->listed = true;
        if (s->state == SOURCE_LOST) s->state = SOURCE_LIVE, s->has_sent = false;
        f->is_late_asked |= s->state == SOURCE_LATE;
        f->order[f->order_count++] = (uint8_t)at;
    }
    for (unsigned i = 0; i < f->known_count; i++)
        if (!f->known[i].listed)
            drop_asks(f, i, 0, f->known[i].state == SOURCE_LATE ? MOVED_LATE : MOVED_GONE);
    go_on(f, now_us);
}

/* The number tells an answer to the current request from one to a request that was given up. */
static bool is_asked(const fetch_t *f, uint32_t piece, uint64_t ask)
{
    return piece < f->count && f->where[piece] < KNOWN_MAX && f->ask[piece] == ask;
}

/* A piece that landed leaves the list of its source, so that the source's window has no gap in it; it
 * still counts there until its digest is known. */
bool fetch_land(fetch_t *f, uint32_t piece, uint64_t ask, uint64_t now_us)
{
    if (f->is_over || !is_asked(f, piece, ask)) return false;
    known_t *s = &f->known[f->where[piece]];
    unlink_piece(f, piece);
    f->where[piece] = LANDED;
    f->from[piece] = (uint8_t)(s - f->known);
    s->landed_count++;
    s->gap_us = s->has_sent ? now_us - s->came_us : 0;
    s->has_sent = true;
    s->life_us = s->came_us = now_us;
    revive(s, now_us);
    return true;
}

/* The source of a piece whose digest is known now; NULL: it has not landed. */
static known_t *end_landed(fetch_t *f, uint32_t piece)
{
    if (f->is_over || piece >= f->count || f->where[piece] != LANDED) return NULL;
    known_t *s = &f->known[f->from[piece]];
    s->landed_count--;
    unlink_piece(f, piece);
    return s;
}

/* The rate is a moving average: one burst or one pause does not change the deadline by much. */
uint64_t fetch_good(fetch_t *f, uint32_t piece, uint64_t now_us)
{
    known_t *s = end_landed(f, piece);
    if (s) {
        s->good_count++;
        s->life_us = now_us;
        s->sample_bytes += f->piece_bytes;
        uint64_t elapsed_us = now_us - s->sample_us;
        if (elapsed_us >= SAMPLE_US) {
            uint64_t rate = (uint64_t)((double)s->sample_bytes * 1e6 / (double)elapsed_us) + 1;
            s->rate = s->rate ? s->rate - s->rate / 4 + rate / 4 : rate;
            note_life(s, now_us);
        }
        f->good[piece / 64] |= 1ull << (piece % 64);
        f->good_count++;
        follow_lending(f, s, piece, now_us);
    }
    go_on(f, now_us);
    if (s && !f->is_over) lend(f, s, piece, now_us);
    return s ? s->token : 0;
}

/* A source that sent wrong bytes is quarantined for the rest of the fetch.  It counts once against the piece,
 * whatever else of it turns out bad. */
void fetch_bad(fetch_t *f, uint32_t piece, uint64_t now_us)
{
    known_t *s = end_landed(f, piece);
    if (s && f->ops.moved) f->ops.moved(f->self, s->token, MOVED_BAD);
    if (s) move_piece(f, piece, AGAIN);
    if (s && s->state != SOURCE_BAD) {
        s->state = SOURCE_BAD;
        s->bad_count++;
        drop_asks(f, (unsigned)(s - f->known), 0, MOVED_BAD);
        if (++f->bad_counts[piece] >= BAD_LIMIT) conclude(f, false, now_us);
    }
    go_on(f, now_us);
}

/* The one that it reads from has gone.  That is reported at once, though the fetch goes on at the next source
 * by itself: the broker's plan has to follow, so that what it names to others closes no circle. */
static void report_gone(fetch_t *f, const known_t *s)
{
    if (!f->is_over && s->has_sent) f->ops.need_sources(f->self);
}

/* Only of an ask that is open: the rest are echoes of asks that were given up already. */
void fetch_refused(fetch_t *f, uint32_t piece, uint64_t ask, int err, uint64_t now_us)
{
    known_t *s = !f->is_over && is_asked(f, piece, ask) ? &f->known[f->where[piece]] : NULL;
    if (s) refuse_piece(f, piece, err, now_us);
    go_on(f, now_us);
    if (s && err == HEDDLE_ERR_GONE) report_gone(f, s);
}

void fetch_gone(fetch_t *f, uint64_t token, uint64_t now_us)
{
    int from = find(f, token);
    bool was_read = !f->is_over && from >= 0 && f->lists[from].count;
    if (!f->is_over && from >= 0) put_out(f, (unsigned)from, SOURCE_LOST);
    go_on(f, now_us);
    if (was_read) report_gone(f, &f->known[from]);
}

void fetch_beat(fetch_t *f, uint64_t token, uint64_t now_us)
{
    int from = find(f, token);
    known_t *s = from < 0 ? NULL : &f->known[from];
    if (s && now_us < s->came_us + still_us(s)) revive(s, now_us);
    if (s && s->state <= SOURCE_LATE) note_life(s, now_us);
    go_on(f, now_us);
}

/* The tick comes long after the deadline of a source, so that this process stood still: what came meanwhile
 * is not read yet.  The source has a moment more, once for each deadline. */
static bool give_a_moment(known_t *s, uint64_t now_us)
{
    if (s->again_us > due_us(s) || now_us < due_us(s) + STOOD_US) return false;
    s->again_us = now_us + DEADLINE_MIN_US;
    s->sample_us = now_us;
    s->sample_bytes = 0;
    return true;
}

/* Only a source with open asks can be late.  Its connection stays, for the same process may be fetching over
 * it; the transfer ends it when nothing has come over it for long.  When this process has stood still, other
 * sources may be better by now. */
void fetch_tick(fetch_t *f, uint64_t now_us)
{
    bool stood_still = false;
    for (unsigned i = 0; i < f->order_count && !f->is_over; i++) {
        unsigned at = f->order[i];
        known_t *s = &f->known[at];
        if (s->state > SOURCE_LATE || !f->lists[at].count || now_us < s->again_us) continue;
        if (give_a_moment(s, now_us)) {
            stood_still = true;
        } else if (now_us >= due_us(s)) {
            s->state = SOURCE_LATE;
            s->late_us = now_us;
            s->late_count++;
            f->is_late_asked = true;
        }
    }
    if (stood_still) need_sources(f, now_us);
    go_on(f, now_us);
}

/* Its owner gives up: nothing is reported to it any more. */
void fetch_cancel(fetch_t *f)
{
    drop_all(f);
    f->is_over = true;
}

/* -- questions about the state ---------------------------------------------------------------- */

/* With a live source its own deadline counts; without any, the times at which to ask for sources and to
 * fail. */
uint64_t fetch_deadline(const fetch_t *f)
{
    if (f->is_over) return CLOCK_NEVER;
    uint64_t at = clock_earlier(f->end_us, f->full_us);
    bool live = false;
    for (unsigned i = 0; i < f->order_count; i++) {
        const known_t *s = &f->known[f->order[i]];
        if (s->state == SOURCE_RESTING && !live) at = clock_earlier(at, s->rest_us);
        if (s->state > SOURCE_LATE) continue;
        live = live || s->state == SOURCE_LIVE;
        if (!f->lists[f->order[i]].count) continue;
        at = clock_earlier(at, due_us(s) > s->again_us ? due_us(s) : s->again_us);
    }
    if (live) return at;
    at = clock_earlier(at, f->need_us);
    return f->all_bad_us == CLOCK_NEVER ? at : clock_earlier(at, f->all_bad_us + ALL_BAD_US);
}

/* Tells which sources took part in a manifest that turned out wrong. */
uint32_t fetch_from(const fetch_t *f, uint64_t token)
{
    int at = find(f, token);
    return at < 0 ? 0 : f->known[at].good_count;
}

bool fetch_is_late(const fetch_t *f, uint64_t token)
{
    int at = find(f, token);
    return at >= 0 && f->known[at].state == SOURCE_LATE;
}
static bool is_lost(const known_t *s) { return s->state != SOURCE_LIVE && s->state != SOURCE_RESTING; }

/* Those of the list, which the broker would name again, then the others from the end: most of them became
 * known later. */
int fetch_lost(const fetch_t *f, uint64_t out[], int cap)
{
    int n = 0;
    for (unsigned i = 0; i < f->order_count && n < cap; i++)
        if (is_lost(&f->known[f->order[i]])) out[n++] = f->known[f->order[i]].token;
    for (unsigned i = f->known_count; i-- > 0 && n < cap;)
        if (is_lost(&f->known[i]) && !f->known[i].listed) out[n++] = f->known[i].token;
    return n;
}

int fetch_blamed(const fetch_t *f, blame_t blame, uint64_t out[], int cap)
{
    int n = 0;
    for (unsigned i = 0; i < f->known_count && n < cap; i++) {
        const known_t *s = &f->known[i];
        if (blame == BLAME_BAD ? s->bad_count > 0 : s->is_slow) out[n++] = s->token;
    }
    return n;
}

/* -- making ----------------------------------------------------------------------------------- */

/* One allocation for all, whose size depends on the number of pieces alone. */
int fetch_new(const fetch_plan_t *plan, const fetch_ops_t *ops, void *self, fetch_t **ret_fetch)
{
    size_t n = plan->count, words = n / 64 + 1;
    fetch_t *f = calloc(1, sizeof *f + words * 8 + n * (sizeof *f->ask + 2 * sizeof *f->next + 3));
    if (!f) return HEDDLE_ERR_NO_MEMORY;
    f->ops = *ops;
    f->self = self;
    f->count = plan->count;
    f->piece_bytes = plan->piece_bytes;
    f->window_count = LIMIT_WINDOW_BYTES / plan->piece_bytes;
    if (f->window_count == 0) f->window_count = 1;
    f->all_bad_us = f->end_us = f->full_us = CLOCK_NEVER;
    f->lending = (lending_t){.pause_us = LEND_US};
    f->good = (uint64_t *)(f + 1);
    f->ask = f->good + words;
    f->next = (uint32_t *)(f->ask + n);
    f->prev = f->next + n;
    f->where = (uint8_t *)(f->prev + n);
    f->from = f->where + n;
    f->bad_counts = f->from + n;
    memset(f->where, NOWHERE, n);
    for (unsigned i = 0; i < LISTS; i++) f->lists[i] = (piece_list_t){NO_PIECE, NO_PIECE, 0};
    if (plan->before) {
        /* A source that was late is late in the fetch that follows: it is not waited for as long again. */
        for (unsigned i = 0; i < plan->before->known_count; i++) {
            const known_t *s = &plan->before->known[i];
            f->known[f->known_count++] =
                (known_t){.token = s->token,
                          .state = s->state == SOURCE_LATE ? SOURCE_LATE : SOURCE_LIVE,
                          .has_sent = s->has_sent,
                          .late_count = s->late_count,
                          .life_us = s->life_us,
                          .came_us = s->came_us,
                          .late_us = s->late_us};
        }
    }
    for (uint32_t i = 0; i < plan->bad_count && i < KNOWN_MAX / 2; i++) {
        int at = find(f, plan->bad[i]);
        known_t *s = &f->known[at < 0 ? admit(f, plan->bad[i]) : at];
        s->state = SOURCE_BAD;
        s->bad_count++;
    }
    *ret_fetch = f;
    return HEDDLE_OK;
}

void fetch_destroy(fetch_t **f)
{
    if (!f) return;
    free(*f);
    *f = NULL;
}
