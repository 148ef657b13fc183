/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/took.h (PURE): which worker took longest until a version was active, and then to switch.
 *
 * It is found out once, from the copies as they are when the rule is met, and is final then: a copy goes when
 * its worker leaves, and other workers come.  Soft state: a start of the broker loses it.
 *
 *   activation     final when                     the workers that count
 *   all, manual    the first decision names it    eligible ones; where none is there, those that hold it
 *   as-ready       the first unit has staged it   the ranks of that unit
 *
 * A track (track.h) owns it.  One thread, nothing blocks. */
#ifndef BROKER_TOOK_H
#define BROKER_TOOK_H

#include "broker/rollout/copy.h"

/* One worker's part of the time.  worker "": none has measured anything. */
typedef struct {
    char worker[HEDDLE_NAME_MAX + 1];
    const char *phase;   /* the longest: connect, fetch or stage */
    uint64_t us, sum_us; /* of that phase, and of all three */
    uint64_t rate_bytes; /* phase fetch, from another process: bytes a second; 0 */
    /* its --max-rate, where that limited it; 0 */
    uint64_t max_rate_bytes;
    /* in none of the three: until it was announced; until it was queued behind a version no more */
    uint64_t announce_us, queued_us, behind;
    /* its application was busy with its switch to that version; 0: with others */
    uint64_t busy_us, busy_with;
    uint64_t sourceless_us; /* until its version ended: it had no source */
    /* the worker that waited longest in none of its phases, which may be another one: it was stopped, say */
    char waited[HEDDLE_NAME_MAX + 1];
    uint64_t waited_us;
} slowest_t;

typedef struct {
    bool is_final;
    bool is_of_eligible; /* eligible workers count, and no others; final with the decision */
    slowest_t slowest;
    /* the slowest switch by the first decision; switch_us 0: none yet */
    char switched[HEDDLE_NAME_MAX + 1];
    uint64_t switch_us;
} took_t;

/* What the worker of this copy has measured; m: its session, for the --max-rate (NULL: none). */
slowest_t took_measured(const track_t *t, const copy_row_t *c, const member_t *m);
/* Sets phase and time, with the rate of a fetch. */
void took_set_phase(slowest_t *s, const char *phase, uint64_t us, const copy_row_t *c, const member_t *m);
/* Of the copies as they are now. */
slowest_t took_slowest(const track_t *t, const membership_t *members);

/* The first unit has staged the version. */
void took_staged(track_t *t, const membership_t *members);
/* A decision names it. */
void took_decided(track_t *t, const membership_t *members);
/* The worker of this copy has switched to it. */
void took_switched(track_t *t, const copy_row_t *c);

#endif
