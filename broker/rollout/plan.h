/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/plan.h (PURE): from where each member fetches one version.
 *
 * A plan has a row for each member that takes part in the version: what it has of the bytes, how fast it
 * was, how many others fetch from it, and the ordered list of its own sources.  Lists are made when the
 * rollout begins (or a worker joins it), and made again when a worker asks for other sources; the messages
 * only read them.  A member that is gone is taken out of the choice; lists that name it stay until their
 * owner asks.
 *
 * Which members may be sources is an input: those that have at least `least` of the bytes.  Today that is
 * all of them.  The order: fast before slow, then the ones with the least load, then an order that the seed
 * and the asking member give, so that equals are spread and the same input gives the same plan.  The
 * publisher is last once there are other sources, and alone before.
 *
 * Members are found by their token; tokens grow, so a new member is usually the last row.  A track owns its
 * plan.  One thread, nothing blocks. */
#ifndef BROKER_PLAN_H
#define BROKER_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAN_SOURCES 3u     /* in one list */
#define PLAN_CANDIDATES 64u /* members that one choice looks at, beside the publisher */
#define PLAN_SLOW_FACTOR 4u /* a source whose rate is below best / 4 goes behind the others */

typedef enum { PLAN_NOTHING, PLAN_PART, PLAN_ALL } plan_have_t;

typedef struct {
    uint64_t token;
    plan_have_t have;
    uint64_t rate;    /* bytes per second that it fetched at; 0: unknown, taken as good */
    uint32_t load;    /* members whose list begins with it, and that are still fetching */
    uint32_t place;   /* in plan_t.sources, while `have` is enough */
    bool is_fetching; /* its list counts as load */
    uint32_t source_count;
    uint64_t sources[PLAN_SOURCES]; /* tokens, the first is asked first */
} plan_row_t;

typedef struct {
    plan_row_t **rows;
    size_t count, capacity; /* ascending by token */
    plan_row_t **sources;
    size_t source_count, source_capacity; /* rows that may be sources, in any order */
    uint64_t publisher;                   /* token, while it serves the bytes; 0 */
    uint64_t seed;
    plan_have_t least; /* of the bytes, that a source must have */
} plan_t;

void plan_init(plan_t *p, uint64_t seed, plan_have_t least);
void plan_fini(plan_t *p);
/* A member takes part; it has nothing yet.  False: no memory. */
bool plan_add(plan_t *p, uint64_t token);
/* It does not any more. */
void plan_remove(plan_t *p, uint64_t token);
/* What a member has of the bytes now.  With all or nothing of them its fetch has ended. */
void plan_have(plan_t *p, uint64_t token, plan_have_t have, uint64_t rate);
/* Makes the member's list anew, without those in `lost` unless there is no other.  Returns how many. */
uint32_t plan_make(plan_t *p, uint64_t token, const uint64_t *lost, uint32_t lost_count);
/* It fetches no more: its list is no load. */
void plan_done(plan_t *p, uint64_t token);
/* NULL: takes no part */
plan_row_t *plan_row(const plan_t *p, uint64_t token);
/* The member is the first source of one that is fetching. */
bool plan_is_first(const plan_t *p, uint64_t token);
/* The sources for a member, or for a process that is none (`asker`: any number), without those in `lost`.
 * Nothing is remembered.  Returns how many. */
uint32_t plan_choose(const plan_t *p, uint64_t asker, const uint64_t *lost, uint32_t lost_count,
                     uint64_t ret_sources[PLAN_SOURCES]);

#endif
