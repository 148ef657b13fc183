/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/tally.h (PURE): how many copies of one version are in which state.
 *
 * A tally is kept, not computed: the functions that change a copy (copy.h) count what it was and what it
 * is now (tally_move), so that one STAGED costs the same with ten copies and with ten thousand. Eligible
 * copies, those that the rollout waits for, are counted apart from the others.
 *
 * A *unit* is what serves as a whole: a worker without a group, or a group with all of its ranks.  A group
 * is staged when each of its ranks has staged the version.
 *
 * A track owns its tally and its groups.  One thread, nothing blocks. */
#ifndef BROKER_TALLY_H
#define BROKER_TALLY_H

#include <heddle/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The states of a copy; copy.h has the table of events. */
typedef enum {
    COPY_NONE,      /* the row was made, and nothing was sent yet */
    COPY_WAITING,   /* ANNOUNCE is to be sent when there is a source */
    COPY_ANNOUNCED, /* ANNOUNCE was sent */
    COPY_FETCHING,  /* a heartbeat reported progress */
    COPY_ARRIVED,   /* all bytes are at the worker, which has not reported STAGED yet */
    COPY_STAGED,    /* verified and loaded */
    COPY_COMMITTED, /* the decided version: the worker is to switch to it */
    COPY_ACTIVE,    /* the worker serves it */
    COPY_KEPT,      /* the worker has it, and serves another, or is still to switch to it */
    COPY_REFUSED,   /* the worker has it, and its application could not switch to it */
    COPY_FAILED,    /* the worker could not fetch, verify or load it */
    COPY_GONE,      /* the worker was lost or left; the row stays to say why it is missing */
    COPY_STATES,
    COPY_STALE = COPY_STATES /* shown to people, never stored: active, and the adapter's decision is later */
} copy_state_t;

/* One group of workers, as the copies of one version see it: it is there as long as one of them is of it. */
typedef struct group {
    char name[HEDDLE_NAME_MAX + 1];
    uint32_t copies; /* rows of it, GONE ones too */
    uint32_t ranks, staged_ranks;
    uint32_t *holders; /* how many workers of each rank have the version */
} group_t;

/* What of a copy is counted. */
typedef struct {
    copy_state_t state;
    bool is_eligible, has_reached;
    bool is_spare;   /* KEPT: its slot is wanted, and no reader holds it */
    bool is_ordered; /* COMMIT was sent */
    bool is_out;     /* ANNOUNCE was sent, and is not owed again */
    bool is_bad;     /* its bytes were found bad: no source */
    group_t *group;  /* NULL: none */
    uint32_t rank;
} tallied_t;

typedef struct {
    uint32_t in[2][COPY_STATES]; /* [is_eligible][state] */
    /* [is_eligible], workers with a session only.  reached: have applied the version's latest decision or a
     * later one.  done: that, or hold the version. */
    uint32_t reached[2], done[2];
    uint32_t units;     /* units that have staged it */
    uint32_t spare;     /* KEPT, and its slot is wanted */
    uint32_t switching; /* have it, COMMIT was sent, neither switched nor refused */
    uint32_t out;       /* ANNOUNCE was sent, and is not owed again */
} tally_t;

/* States up to ARRIVED are in flight, STAGED to REFUSED have the bytes: the order of copy_state_t says so. */
static inline bool state_in_flight(copy_state_t state) { return state <= COPY_ARRIVED; }
static inline bool state_holds(copy_state_t state) { return state >= COPY_STAGED && state <= COPY_REFUSED; }

/* COMMIT was sent, the worker has the bytes, and it has switched neither to the version nor to a later
 * one. */
static inline bool tallied_is_switching(const tallied_t *what)
{
    return state_holds(what->state) && what->state != COPY_REFUSED && what->is_ordered && !what->has_reached;
}

/* A copy that was counted as `was` is `now`; NULL: it was not, or is no more. */
void tally_move(tally_t *t, const tallied_t *was, const tallied_t *now);

/* ---- reading ---- */

/* Copies in the states from `first` to `last`: eligible ones, and the others too unless `eligible_only`. */
static inline uint32_t tally_sum(const tally_t *t, bool eligible_only, copy_state_t first, copy_state_t last)
{
    uint32_t count = 0;
    for (int state = (int)first; state <= (int)last; state++)
        count += t->in[true][state] + (eligible_only ? 0 : t->in[false][state]);
    return count;
}
/* The worker is there: every state but GONE. */
static inline uint32_t tally_present(const tally_t *t, bool eligible_only)
{
    return tally_sum(t, eligible_only, COPY_NONE, COPY_FAILED);
}
static inline uint32_t tally_holders(const tally_t *t, bool eligible_only)
{
    return tally_sum(t, eligible_only, COPY_STAGED, COPY_REFUSED);
}
/* Eligible ones. */
static inline uint32_t tally_in_flight(const tally_t *t)
{
    return tally_sum(t, true, COPY_NONE, COPY_ARRIVED);
}
static inline uint32_t tally_failed(const tally_t *t) { return t->in[true][COPY_FAILED]; }
static inline uint32_t tally_gone(const tally_t *t) { return t->in[true][COPY_GONE]; }
/* Eligible or not. */
static inline uint32_t tally_in(const tally_t *t, copy_state_t s) { return t->in[true][s] + t->in[false][s]; }
/* At least one unit has staged the version, and no eligible worker is still on its way. */
static inline bool tally_is_complete(const tally_t *t) { return t->units > 0 && !tally_in_flight(t); }

#endif
