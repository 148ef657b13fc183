/* SPDX-License-Identifier: Apache-2.0 */
/* broker/plan/restored.h (PURE): lists that a broker before this one has sent, and that workers restate as
 * they come back (plan_resume, plan_restore, plan_came_back of plan.h).
 *
 * They name sources by the tokens of before; those that have not come back are in plan_t.absent.  And they
 * say which station is before which, whatever it is by name.  That order is made at the first decision that
 * needs it, and not as each member comes back: so a restart costs what the lists are long.
 *
 *   order of the plan | a list is restored | a source of one has come back | a decision needs it
 *   ------------------+--------------------+-------------------------------+--------------------
 *   KEYS              | -> UNKNOWN         | –                             | –
 *   UNKNOWN           | –                  | –                             | -> LISTS
 *   LISTS             | -> UNKNOWN         | -> UNKNOWN                    | –
 *
 * Needed it is before a list is made, mended or chosen (plan_make, plan_mend, plan_leave_publisher,
 * plan_sources_choose), before the torn ones are named (plan_next_torn), before a station moves behind the
 * others (plan_demote, plan_give_way), and before the lists of a row go that say where it stands: as it is
 * done, or removed (plan_done, plan_remove).  All else leaves the order as it is.
 *
 * One thread, nothing blocks. */
#ifndef BROKER_PLAN_RESTORED_H
#define BROKER_PLAN_RESTORED_H

#include "broker/plan/plan.h"

/* Makes the order that the lists say, where it is unknown.  Without memory it stays so, and is made the next
 * time. */
void plan_restored_arrange(plan_t *p);
/* Lists that name one that has not come back name this one, under the same or another token. */
void plan_restored_rename(plan_t *p, uint64_t former_token, uint64_t token);
/* It goes, and may come back: restored lists that name it do so until they are mended. */
void plan_restored_note_absent(plan_t *p, const plan_row_t *source);

#endif
