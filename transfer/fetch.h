/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/fetch.h (PURE): which range from which source next.  state + event + now -> actions.
 *
 * One fetch_t moves one part's ranges: `count` pieces numbered 0..count-1 (the caller maps a piece to bytes:
 * first the manifest's pieces in one fetch, then the region's chunks in another).  It alone knows the state
 * of a piece:
 *
 *   todo --FA_ASK--> asked --fetch_land--> landed --FE_GOOD--> good
 *    ^                 |                     |
 *    +-- refused, gone, dropped --- FE_BAD --+
 *
 * An asked piece has one open ask, by whose number its end is told apart from the end of an ask that was
 * given up.  A landed piece lies in its place and waits for its digest; it is not asked again until that is
 * known, also when its source is lost meanwhile.
 *
 * The window limits the bytes that are asked of one source or have landed from it: LIMIT_WINDOW_BYTES, at
 * least one piece.  The deadline of a source follows its observed rate: window / rate x 4, between 1 and
 * 30 s, and 4 s until the rate is known; BEAT counts as life.
 *
 *   state    event                 action
 *   running  SOURCES (new list)    ASK of the first live source while its window has room
 *            GOOD(piece)           ASK more; DONE when all are good
 *            BAD(piece)            its source quarantined: open asks DROP_ASK, pieces back to todo,
 *                                  next source
 *            REFUSED(piece, ask)   open asks DROP_ASK, pieces back to todo, next source; err AGAIN:
 *                                  asked again after half a second; err GONE: as GONE; any other: lost
 *            GONE(token)           lost: pieces back to todo, next source
 *            BEAT(token)           deadline moves
 *            TICK                  source past its deadline: DROP_PEER, as GONE;
 *                                  no source left: NEED_SOURCES once, again every half second
 *            CANCEL                DROP_ASK for all open; then ended
 *   ended    anything              nothing
 *
 * FAILED: one piece was bad from 3 different sources, or every source of the list has been quarantined for
 * 5 s; its open asks are dropped first.  Without any source a fetch waits: its caller's deadline rules.
 *
 * One source is asked at a time, the first live one of the list, so that the load stays as it was planned.  A
 * lost source is asked again when a new list names it; a quarantined one never.  Asks of a source that a new
 * list leaves out are dropped.
 *
 * Every event costs O(1) amortized whatever `count` is; nothing is allocated after fetch_new (about 20 bytes
 * a piece).  Loop thread only; the pull that made it owns it. */
#ifndef TRANSFER_FETCH_H
#define TRANSFER_FETCH_H

#include "core/clock.h"
#include <stdbool.h>

#define FETCH_SOURCES_MAX 8

typedef struct {
    uint32_t count;       /* pieces */
    uint32_t piece_bytes; /* all but the last; only for pacing; not 0 */
    const uint64_t *bad;  /* tokens that are quarantined from the start; borrowed by fetch_new */
    uint32_t bad_count;
    const uint8_t *have; /* bitmap of pieces that are good already; NULL: none */
} fetch_plan_t;

typedef enum {
    FE_SOURCES,
    FE_GOOD,
    FE_BAD,
    FE_REFUSED,
    FE_GONE,
    FE_BEAT,
    FE_TICK,
    FE_CANCEL
} fetch_event_kind_t;
typedef struct {
    fetch_event_kind_t kind;
    uint32_t piece; /* FE_GOOD, FE_BAD: one that has landed; FE_REFUSED */
    uint64_t ask;   /* FE_REFUSED */
    uint64_t token; /* FE_GONE, FE_BEAT */
    int err;        /* FE_REFUSED */
    /* FE_SOURCES: replaces the list, keeps what is known of those that stay. */
    const uint64_t *sources;
    int source_count; /* tokens */
} fetch_event_t;

typedef enum { FA_ASK, FA_DROP_ASK, FA_DROP_PEER, FA_NEED_SOURCES, FA_DONE, FA_FAILED } fetch_action_kind_t;
typedef struct {
    fetch_action_kind_t kind;
    uint32_t piece;
    uint64_t token, ask; /* ask: of FA_DROP_ASK; 0: it was never made */
} fetch_action_t;

typedef enum { PIECE_TODO, PIECE_ASKED, PIECE_LANDED, PIECE_GOOD } piece_state_t;

typedef struct fetch fetch_t;
/* NO_MEMORY.  `have` is copied (bit p of byte p/8).  A fetch with nothing to move is DONE at its
 * first event. */
int fetch_new(const fetch_plan_t *plan, fetch_t **ret_fetch);
void fetch_destroy(fetch_t **f);
/* Writes at most `cap` actions and returns how many; when it returns `cap`, call again with FE_TICK
 * until it returns less. */
int fetch_step(fetch_t *f, const fetch_event_t *event, uint64_t now_us, fetch_action_t out[], int cap);
/* What came of FA_ASK: the number of the ask, or why the source cannot be asked now, which counts as
 * REFUSED.  After an error a step with FE_TICK is due. */
void fetch_asked(fetch_t *f, uint32_t piece, uint64_t ask, int err, uint64_t now_us);
/* The bytes of that ask lie in their place: FE_GOOD or FE_BAD of the piece follows, when its digest is known.
 * False for an ask that was given up: those bytes count as nothing. */
bool fetch_land(fetch_t *f, uint32_t piece, uint64_t ask, uint64_t now_us);
uint64_t fetch_deadline(const fetch_t *f); /* when FE_TICK is due; CLOCK_NEVER */
/* ret_token: of the source it was asked of, or came from; 0: of none.  NULL: not wanted. */
piece_state_t fetch_piece(const fetch_t *f, uint32_t piece, uint64_t *ret_token);
/* Of one source: pieces that came good from it; 0 for an unknown one. */
uint32_t fetch_from(const fetch_t *f, uint64_t token);
/* Tokens of sources that were lost or quarantined; returns how many (at most cap). */
int fetch_lost(const fetch_t *f, uint64_t out[], int cap);

#endif
