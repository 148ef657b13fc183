/* SPDX-License-Identifier: Apache-2.0 */
/* broker/plan/fetch.h (PURE): the fetch of a row.  One row fetches for its place, and the others wait for it.
 *
 *   fetch of a row | its list is made           | it is done, or gone | stuck    | woken
 *   ---------------+----------------------------+---------------------+----------+----------
 *   NONE           | -> FETCHING; -> WAITING if | –                   | –        | –
 *                  |    another of its place is |                     |          |
 *                  |    FETCHING, none has it   |                     |          |
 *   WAITING        | as from NONE               | -> NONE             | –        | -> WOKEN
 *   WOKEN          | as from NONE               | -> NONE             | –        | –
 *   FETCHING       | as from NONE; stays        | -> NONE             | -> STUCK | -> WOKEN
 *                  |    without a source        |                     |          |
 *   STUCK          | as from NONE               | -> NONE             | –        | –
 *
 * A fetch that is too slow is stuck too (fetches.c): the next one of its place begins beside it.
 *
 * Those that wait are *woken* when the row that fetches for them leaves FETCHING, and when a source of their
 * place has come: a member of it, or the publisher.  So are those that held the memory of one of their place,
 * when no other one there has the bytes (plan_mend).  plan_next_woken names them, those of the place that was
 * woken first come first, and their lists are to be made again in that order.
 *
 * Lists of plan.c and of the restored ones (restored.h) begin a fetch, and what becomes of the bytes ends it.
 * One thread, nothing blocks. */
#ifndef BROKER_PLAN_FETCH_H
#define BROKER_PLAN_FETCH_H

#include "broker/plan/sources.h"

/* Every change of a fetch goes through here, so that none that waits is forgotten, and no list that names the
 * row.  The load of its lists is that of the caller (load.h). */
void plan_fetch_set(plan_t *p, plan_row_t *row, plan_fetch_t fetch);
/* Its list is no load any more, and it fetches no more. */
void plan_fetch_end(plan_t *p, plan_row_t *row);
/* Those that wait in the place look again for what to do.  True: some do. */
bool plan_fetch_wake(plan_t *p, plan_station_t *station);

/* The row that fetches for the others of the place: as a rule there is one; beside those that read from the
 * memory of another one of the place, it is the one that fetches over the network.  The asker is that only
 * where no other one does: it may have turned to another place by itself, as what it read from has gone.
 * NULL: none. */
const plan_row_t *plan_fetch_of_place(const plan_t *p, const plan_station_t *station,
                                      const plan_row_t *asker);
/* One of its place can give the member the version without a network. */
bool plan_fetch_is_served_here(const plan_t *p, const plan_row_t *row, const plan_asker_t *asker);

#endif
