/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/planner.h (PURE): the ordered sources of one worker for one version.
 *
 * Holders first: fast before slow, then by how many fetch from them now, then in an order that the seed
 * and the worker give (so that equals are spread, and the same input gives the same plan).  The publisher
 * comes last once there are holders, and alone before.  No state; nothing blocks. */
#ifndef BROKER_PLANNER_H
#define BROKER_PLANNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLANNER_SOURCES 3              /* to one worker */
#define PLANNER_SLOW_FACTOR 4          /* a holder whose rate is below best / 4 goes behind the others */

typedef struct {
    uint64_t token;                    /* of the member */
    bool is_publisher;
    uint32_t load;                     /* workers that fetch from it now */
    /* bytes per second that it was seen to fetch at; 0: unknown, taken as good */
    uint64_t rate;
} planner_candidate_t;

/* Orders candidates[0..count) in place, best first, for the worker `token`; returns how many of them to
 * use: at most PLANNER_SOURCES, the last of them the publisher where there is one. */
size_t planner_plan(planner_candidate_t *candidates, size_t count, uint64_t token, uint64_t seed);

#endif
