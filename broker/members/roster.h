/* SPDX-License-Identifier: Apache-2.0 */
/* broker/members/roster.h: the workers that the registry remembers, so that one that ended while the
 * broker was down is listed as lost after the restart.
 *
 *   remembered (registry)   worker (membership)      -> what happens
 *   no                      READY                    -> WORKER record
 *   yes                     READY, serves another    -> WORKER record, with what it serves
 *   yes                     LEFT, LOST, forgotten    -> WORKER record without what it serves: the row goes
 *   yes, since a start      did not return           -> listed as LOST, event; the row goes
 *
 * JOIN writes nothing and waits for nothing: records are made later, in transactions of the broker's own, for
 * all workers that changed meanwhile.  So a worker that joined less than ROSTER_SOON_US before the broker's
 * end (unless that is a clean one) may be unknown after it, and what is known of a version is up to
 * ROSTER_LATE_US old.
 *
 * One round compares both lists, which are in the order of names, and takes as many transactions as it needs:
 * each goes on where the one before it ended.  What changes meanwhile is for the next round, and so are
 * records that the store refused.  Loop thread. */
#ifndef BROKER_ROSTER_H
#define BROKER_ROSTER_H

#include "broker/outbox.h"

#define ROSTER_SOON_US 2000000ull  /* a worker came or went: so many at once are one transaction */
#define ROSTER_LATE_US 60000000ull /* a worker switched to another version */

typedef struct broker broker_t;

typedef struct roster {
    uint64_t write_us; /* when the next round begins; CLOCK_NEVER: nothing changed */
    bool awaits;       /* workers of before the start, until the members' grace is over */
    bool is_on;        /* a round has begun, and the workers up to this name were compared; "": none was */
    char done[HEDDLE_NAME_MAX + 1];
    uint64_t compared; /* names in all rounds: what they cost */
} roster_t;

void roster_start(broker_t *b);
/* The record can be taken into memory.  A damaged one cannot, and is warned of: the broker goes on without
 * it. */
bool roster_takes(const broker_t *b, const record_t *record);
/* Something changed: it is recorded within that time. */
void roster_touch(broker_t *b, uint64_t within_us, instant_t now);
/* After the start, when the time to return is over: who did not is lost. */
void roster_end_grace(broker_t *b, instant_t now);
/* Adds the records that are due, as many as the outbox has room for; the caller commits, and calls again. */
void roster_decide(broker_t *b, instant_t now);
/* The next of these. */
uint64_t roster_deadline(const broker_t *b);

#endif
