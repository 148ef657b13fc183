/* SPDX-License-Identifier: Apache-2.0 */
/* broker/plan/load.h (PURE): lists as load: which members each row is named by, and what it sends for them.
 *
 * The lists of a fetch are load for those that they name, as long as the fetch lasts; most of it for the
 * first one of a list, which the worker reads from.  It is counted in halves of the chunks, for a row, for
 * its station and for the publisher.
 *
 *   a list is | its fetch, or the list
 *   ----------+--------------------------------------------------------------------------------------------
 *   charged   | has begun (FETCHING, STUCK): each source has it in `namings`, the first in `load`
 *   taken off | changes, changes its state or ends: it is charged again afterwards, if the fetch goes on
 *
 * So each caller that makes a list, or changes a fetch that has one, takes it off before and charges it
 * behind: what was put on is what is taken off.
 *
 * A *naming* is one entry of such a list.  Each source has a list of its namings, so that those that it
 * serves are found without a look at any others.  Their lists are *torn* when it serves no more, or others:
 * the rows wait in plan_t.torn until plan_next_torn names them, and plan_mend makes their lists.
 *
 * A station of two trees is *roomy* when it may send more.  It is noted as its load falls, as it begins to
 * fetch or has all bytes, and left out where a list that is to be made finds that it may not.
 *
 * One thread, nothing blocks. */
#ifndef BROKER_PLAN_LOAD_H
#define BROKER_PLAN_LOAD_H

#include "broker/plan/plan.h"

/* Puts the load of the row's lists on those that they name, or takes it off. */
void plan_load_charge(plan_t *p, plan_row_t *row, bool is_fetching);
/* What the publisher sends is counted anew: it serves now, or no more, or has moved. */
void plan_load_count_publisher(plan_t *p);
/* The station may send more than it does, as far as is known. */
void plan_load_note_room(plan_t *p, plan_station_t *station);
void plan_load_forget_room(plan_t *p, plan_station_t *station);
/* Of the first ones of each list, which are looked at, leaves those that may. */
void plan_load_tidy_roomy(plan_t *p);

/* Lists that name it may name one that serves no more. */
void plan_load_tear(plan_t *p, const plan_row_t *source);
/* It goes: what names it does so by its token alone. */
void plan_load_forget(plan_row_t *source);

#endif
