/* SPDX-License-Identifier: Apache-2.0 */
/* worker/fetch.h (PURE): which range from which source next.  state + event + now -> calls of its ops.
 *
 * One fetch_t moves one part's ranges: `count` pieces numbered 0..count-1 (the caller maps a piece to bytes:
 * first the manifest's pieces in one fetch, then those of the payload in another).  It alone knows the state
 * of a piece:
 *
 *   todo --ops.ask--> asked --fetch_land--> landed --fetch_good--> good
 *    ^                  |                     |
 *    +--- refused, gone, dropped - fetch_bad -+
 *
 * An asked piece has one open ask, by whose number its end is told apart from the end of an ask that was
 * given up.  A landed piece lies in its place and waits for its digest; it is not asked again until that is
 * known, also when its source is lost meanwhile.
 *
 * The window limits the bytes that are asked of one source or have landed from it: LIMIT_WINDOW_BYTES.  Each
 * fetch of this process that asks the same source has an equal part of it (ops.sharers), at least one piece.
 * So what several of them ask of it together waits there no longer than what one asks alone.
 *
 * The deadline of a source follows its observed rate: window / rate, between 0.2 and 30 s, and 0.8 s
 * until the rate is known.  BEAT counts as life, for 30 s until the first piece, then for 12 s without one
 * (or the deadline).  A source that is late is not dead: its asks stand where they are until
 * another source can be asked, and its connection stays.  One ask stays open there while other pieces remain:
 * if the source answers it, or sends a BEAT that counts, it has its place in the list again.
 *
 *   state    event                 calls
 *   running  sources (new list)    ask of the first live source while its window has room
 *            good(piece)           ask more; end when all are good
 *            bad(piece)            its source is quarantined: drop_ask of what is open there, whose pieces
 *                                  are todo again; next source; where all that are listed are quarantined,
 *                                  the first one that was bad once is asked once more
 *            refused(piece, ask)   drop_ask of what is open there, next source; err AGAIN: asked again after
 *                                  half a second; any other: lost
 *            gone(token)           lost: pieces back to todo, next source; need_sources at once, where it
 *                                  was read from and has sent since a list named it anew
 *            beat(token)           deadline moves; a late source is live again, and after its deadline as
 *                                  if it had never been late; landed(piece): the same
 *            tick                  source past its deadline: late, and its next deadline is twice as far;
 *                                  drop_ask of all but the last that is open there as soon as another one
 *                                  is asked, and of that one when no piece is left to be asked for;
 *                                  20 ms after that was due, once: this process stood still, and its
 *                                  sources have 0.2 s more; need_sources;
 *                                  no live source left: need_sources once, again every half second
 *            good(piece)           and now and then a lent piece, below: drop_ask, ask of another source
 *            cancel                drop_ask for all open; then over
 *   over     anything              none
 *
 * It fails when one piece was bad 3 times, or when every source of the list has been quarantined for 5 s; its
 * open asks are dropped first.  Without any source a fetch waits: its caller's deadline decides.  A source
 * that cannot be asked (ops.ask fails) has refused the piece; but for SLOW, which is a limit of this process
 * itself: nothing more is asked until the next event, or for 10 ms, and nothing is held against the source.
 *
 * One source is asked at a time, the first live one of the list, so that the load stays as it was planned;
 * else the late ones in turns.  A lost source is asked again when a new list names it; one that was bad twice
 * never.  Asks of a source that a new list leaves out are dropped.
 *
 * A slow source is left.  What another one can do is seen by lending it an ask now and then (ops.lend):
 *   - to the next source of the list that still fetches itself, which has little more, as a rule, than the
 *     one in front of it: for a piece that is half a window ahead or more, and at least 8 pieces.  If the
 *     piece comes before a quarter of that distance has come, that source is far ahead.  If it has not come
 *     after half of that distance, it is asked of the usual source;
 *   - to one that has all bytes, which costs its uplink a piece: for the last piece that is asked for, and
 *     only where a second or more is left at the rate at which pieces come.  If it comes in a quarter of the
 *     time that a piece takes at that rate, that source may be faster.
 * A source whose uplink is full sends a single piece at once, too.  So the last pieces of the window are lent
 * to it then, up to 8 or a quarter of the window, while the other one goes on.  If they all come before a
 * third as many from that one, and in a third of the time that it took for as many before, all asks move, and
 * that one is slow; if not, what has not come goes back.  The next piece is lent later.
 *
 * At the end the source that is asked may be idle while others still owe pieces.  After twice the time that
 * it would need for them, it is asked for these pieces, and the others count as slow.
 *
 * Every event costs O(1) amortized whatever `count` is, and so many calls of its ops; nothing is allocated
 * after fetch_new (about 20 bytes a piece).  Loop thread only; the download that made it owns it.  Its ops
 * must not call it. */
#ifndef WORKER_FETCH_H
#define WORKER_FETCH_H

#include "core/clock.h"
#include <stdbool.h>

#define FETCH_SOURCES_MAX 8

typedef struct {
    uint32_t count;             /* pieces */
    uint32_t piece_bytes;       /* all but the last; only for pacing; not 0 */
    const struct fetch *before; /* what it found out of late sources is known from the start; NULL: none */
    const uint64_t *bad; /* tokens that are quarantined from the start; borrowed by fetch_new, as `before` */
    uint32_t bad_count;
} fetch_plan_t;

/* Why a read request is taken back from a source. */
typedef enum {
    MOVED_LATE,    /* it did not answer in time */
    MOVED_GONE,    /* its connection ended, or it was silent for too long, or a new list leaves it out */
    MOVED_REFUSED, /* it answered with an error */
    MOVED_BAD,     /* it sent wrong bytes */
    MOVED_SLOW,    /* another source has the bytes sooner */
    MOVED_REASONS
} moved_t;

/* PARTIAL: it may still lack bytes.  WHOLE: it has all. */
typedef enum { LEND_NOT, LEND_PARTIAL, LEND_WHOLE } lend_t;

/* What a fetch asks of its owner, who gives `self`. */
typedef struct {
    /* OK with the number of the read request, not 0; SLOW: this process has as many open as it may; else why
     * the source cannot be asked now. */
    int (*ask)(void *self, uint32_t piece, uint64_t token, uint64_t *ret_ask);
    void (*drop_ask)(void *self, uint64_t ask);
    void (*need_sources)(void *self);
    /* A piece that was asked of this source, or came wrong from it, is to be asked for again.  NULL: not
     * wanted. */
    void (*moved)(void *self, uint64_t token, moved_t why);
    /* Whether a piece may be lent to the source, and as what.  NULL: to none. */
    lend_t (*lend)(void *self, uint64_t token);
    /* It asks this source from now on; 0: none.  Said again at each event.  NULL: not wanted. */
    void (*asks)(void *self, uint64_t token);
    /* Fetches of this process that ask that source, with this one.  NULL: it is alone. */
    uint32_t (*sharers)(void *self, uint64_t token);
    /* All pieces are good, or it has failed: no other call follows. */
    void (*end)(void *self, bool is_good, uint64_t now_us);
} fetch_ops_t;

typedef enum { PIECE_TODO, PIECE_ASKED, PIECE_LANDED, PIECE_GOOD } piece_state_t;

typedef struct fetch fetch_t;
/* NO_MEMORY.  A fetch of no pieces ends at its first event. */
int fetch_new(const fetch_plan_t *plan, const fetch_ops_t *ops, void *self, fetch_t **ret_fetch);
void fetch_destroy(fetch_t **f);
/* Tokens: the list replaces the one before, and keeps what is known of those that stay. */
void fetch_sources(fetch_t *f, const uint64_t *tokens, int count, uint64_t now_us);
/* The bytes of that ask lie in their place: fetch_good or fetch_bad of the piece follows, when its digest is
 * known.  False for an ask that was given up: those bytes count as nothing. */
bool fetch_land(fetch_t *f, uint32_t piece, uint64_t ask, uint64_t now_us);
/* The digest of a piece that has landed is known.  Good returns the token of its source; 0: it had not
 * landed. */
uint64_t fetch_good(fetch_t *f, uint32_t piece, uint64_t now_us);
void fetch_bad(fetch_t *f, uint32_t piece, uint64_t now_us);
/* The source answered that ask with an error. */
void fetch_refused(fetch_t *f, uint32_t piece, uint64_t ask, int err, uint64_t now_us);
/* The connection to that source ended. */
void fetch_gone(fetch_t *f, uint64_t token, uint64_t now_us);
void fetch_beat(fetch_t *f, uint64_t token, uint64_t now_us);
void fetch_tick(fetch_t *f, uint64_t now_us);
void fetch_cancel(fetch_t *f);
uint64_t fetch_deadline(const fetch_t *f); /* when fetch_tick is due; CLOCK_NEVER */
/* ret_token: of the source it was asked of, or came from; 0: of none.  NULL: not wanted. */
piece_state_t fetch_piece(const fetch_t *f, uint32_t piece, uint64_t *ret_token);
/* Of one source: pieces that came good from it; 0 for an unknown one. */
uint32_t fetch_from(const fetch_t *f, uint64_t token);
/* It did not answer in time, and its connection still stands. */
bool fetch_is_late(const fetch_t *f, uint64_t token);
/* Tokens of sources that are late, lost or quarantined, those of the list first; returns how many (at most
 * cap). */
int fetch_lost(const fetch_t *f, uint64_t out[], int cap);
typedef enum { BLAME_BAD, BLAME_SLOW } blame_t;
/* The same of sources that are quarantined, or slow. */
int fetch_blamed(const fetch_t *f, blame_t blame, uint64_t out[], int cap);

#endif
