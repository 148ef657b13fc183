/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/aim.h (PURE): which version a decision by hand names.
 *
 *   AIM_VERSION  the one in the question
 *   AIM_BACK     roll back: of the versions below the active one that were active, still have a source and
 *                have other bytes than the active one, the one whose decision is the latest; or the one in
 *                the question, which must not be newer than the active one
 *   AIM_RESUME   end the hold: the newest version that is active, kept or staged everywhere and has a
 *                source; without one the active version, or, where that is lost, the newest of the lost
 *                ones; the active one where the adapter is not held
 *
 * No state; any thread; nothing blocks. */
#ifndef BROKER_AIM_H
#define BROKER_AIM_H

#include "broker/rollout/rollout.h"

typedef enum { AIM_VERSION, AIM_BACK, AIM_RESUME } aim_t;

/* The aim of a question of this name; false: it is none. */
bool aim_of_op(const char *op, aim_t *ret_aim);
/* "activate" "rollback" "resume" */
const char *aim_name(aim_t aim);
/* `named`: in the question; 0: none.  *ret_version 0: AIM_RESUME, and nothing was ever active.
 * Not while the broker settles: sources are not back yet.  NOT_ACTIVATABLE. */
int aim_version(const rollout_t *ro, const adapter_row_t *a, aim_t aim, uint64_t named, uint64_t *ret_version,
                heddle_error_t *error);

#endif
