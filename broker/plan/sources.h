/* SPDX-License-Identifier: Apache-2.0 */
/* broker/plan/sources.h (PURE): the sources that are named to one asker, chosen from the plan as it is.
 *
 *   star        holders: members with all bytes, those of its place first; the publisher last
 *   chain       holders; where no other station has one, the heads of the stations before it, the nearest
 *               first; for a last resort the one that sends least, and those before it; each half by itself,
 *               where that is another one
 *   two trees   the same for all chunks, of the stations with room; or a list for each half: its parent in
 *               the tree of that half, and what serves it where the parent goes
 *
 * A list changes neither the load nor the fetch of a row: the plan does that (plan.c).  One thread, nothing
 * blocks. */
#ifndef BROKER_PLAN_SOURCES_H
#define BROKER_PLAN_SOURCES_H

#include "broker/plan/plan.h"

/* A member that asks, or a process that is none, under any number. */
typedef struct {
    uint64_t token, place;
    const uint64_t *lost; /* sources that it does not want */
    uint32_t lost_count;
} plan_asker_t;
/* The sources for it.  No load is put on them.  Returns how many. */
uint32_t plan_sources_choose(plan_t *p, const plan_asker_t *asker, uint64_t ret_sources[PLAN_SOURCES]);

/* Makes the lists of the row anew.  What is looked at is counted in the plan. */
void plan_sources_make(plan_t *p, plan_row_t *row, const plan_asker_t *asker);
/* A list of the row names one that may not serve it. */
bool plan_sources_is_torn(plan_t *p, const plan_row_t *row);
/* Fills up the row's list for all chunks, behind what is left of it.  Looks are counted as by
 * plan_sources_make. */
void plan_sources_mend(plan_t *p, plan_row_t *row, const plan_asker_t *asker);

#endif
