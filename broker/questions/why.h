/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/why.h (PURE): what the column WHY of `heddle workers` and `heddle versions` shows: why a
 * worker is not where it should be, or how it gets on.
 *
 *   code, message  what is wrong: of a copy its own (broker/rollout/copy.h), of a subscription as below
 *   note           without an error: how a copy gets on (why_copy), or a subscription
 *
 * The command shows the first of these that there is (cli/show.c: cli_why).  Why a worker copies what its
 * host has is no trouble, and stands below the table (member_t.unheld; cli/workers.c).  One thread; nothing
 * blocks. */
#ifndef BROKER_WHY_H
#define BROKER_WHY_H

#include "broker/questions/cell.h"

#define WHY_NOTE_TEXT (192u + 2 * HEDDLE_NAME_MAX)
/* How a copy in flight gets on, or one that is late to switch. */
typedef struct {
    uint64_t rate_bytes;      /* a second; 0: none came, or it is not known */
    const char *source;       /* borrowed; NULL: none */
    const char *waits_for;    /* as why_awaited; borrowed; NULL: none */
    bool is_silent;           /* heartbeats are missing */
    char note[WHY_NOTE_TEXT]; /* for people; "": nothing, or copy_row_t.message says it */
} why_copy_t;
why_copy_t why_copy(const answer_view_t *b, const track_t *t, const copy_row_t *c);
/* The worker fetches this version now. */
bool why_copy_is_fetching(const track_t *t, const copy_row_t *c, const member_sub_t *sub);
/* It has nothing yet, and another worker of its host has bytes, and fetches on: it waits for that one, or was
 * woken beside it. */
bool why_place_has_bytes(const answer_view_t *b, const track_t *t, const copy_row_t *c);
/* The copy whose bytes this one waits for, as far as heartbeats report: the first one along its sources that
 * does not wait for another itself.  NULL: it waits for none; it has what holds it up. */
const copy_row_t *why_awaited(const answer_view_t *b, const track_t *t, const copy_row_t *c);

/* "no process that stays has policy@3, policy@4": why a worker that drains has not left yet, of one adapter.
 * False, and "": it does not drain, or others have what it has of this one. */
bool why_drains(const answer_view_t *b, const member_t *m, const char *adapter, char ret_text[WHY_NOTE_TEXT]);

/* What a worker has of an adapter.  Of several problems one is shown: the end of the session before a lost
 * version, and that before a slow fetch. */
typedef struct {
    const char *state, *message; /* borrowed, or `lost` */
    int code;
    uint64_t since_ms, rate_bytes;
    char note[WHY_NOTE_TEXT], lost[SUMMARY_TEXT];
} why_sub_t;
void why_sub(const answer_view_t *b, const member_t *m, const member_sub_t *sub, why_sub_t *ret_why);

#endif
