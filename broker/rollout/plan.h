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
 * Members of one place can hold each other's memory instead of a copy.  There the order begins with the
 * sources of the member's own place, the publisher before the others.  Where none of them has the version,
 * one member fetches it for its place:
 *
 *   fetch of a row | its list is made           | it is done, or gone | stuck    | woken
 *   ---------------+----------------------------+---------------------+----------+----------
 *   NONE           | -> FETCHING; -> WAITING if | –                   | –        | –
 *                  |    another of its place is |                     |          |
 *                  |    FETCHING, none has it   |                     |          |
 *   WAITING        | as from NONE               | -> NONE             | –        | -> WOKEN
 *   WOKEN          | as from NONE               | -> NONE             | –        | –
 *   FETCHING       | as from NONE               | -> NONE             | -> STUCK | –
 *   STUCK          | as from NONE               | -> NONE             | –        | –
 *
 * Those that wait are woken when the row that fetches for them leaves FETCHING, and when a source of their
 * place has come; plan_next_woken names them, and their lists are to be made again.  A member without a place
 * waits for none.
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
typedef enum { PLAN_NONE, PLAN_WAITING, PLAN_WOKEN, PLAN_FETCHING, PLAN_STUCK } plan_fetch_t;

typedef struct plan_place plan_place_t;
typedef struct {
    uint64_t token;
    plan_place_t *place; /* NULL: none */
    plan_have_t have;
    bool is_held;       /* in a region, and is being loaded: a source for its place alone */
    uint64_t rate;      /* bytes per second that it fetched at; 0: unknown, taken as good */
    uint32_t load;      /* members whose list begins with it, and that are still fetching */
    uint32_t source_at; /* in plan_t.sources, while `have` is enough */
    plan_fetch_t fetch; /* FETCHING, STUCK: its list counts as load */
    uint32_t source_count;
    uint64_t sources[PLAN_SOURCES]; /* tokens, the first is asked first */
} plan_row_t;

typedef struct {
    plan_row_t **rows;
    size_t count, capacity; /* ascending by token */
    plan_row_t **sources;
    size_t source_count, source_capacity; /* rows that may be sources, in any order */
    plan_place_t **places;
    size_t place_count, place_capacity;  /* ascending by number */
    uint64_t publisher, publisher_place; /* token and place, while it serves the bytes; 0 */
    uint64_t seed;
    plan_have_t least; /* of the bytes, that a source must have */
    uint32_t waiting_count, woken_count;
    plan_place_t *woken; /* places that may have WOKEN rows */
} plan_t;

void plan_init(plan_t *p, uint64_t seed, plan_have_t least);
void plan_fini(plan_t *p);
/* A member takes part; it has nothing yet.  `place`: 0, none.  False: no memory. */
bool plan_add(plan_t *p, uint64_t token, uint64_t place);
/* It does not any more. */
void plan_remove(plan_t *p, uint64_t token);
/* The publisher serves the bytes; token 0: it does not. */
void plan_publisher(plan_t *p, uint64_t token, uint64_t place);
/* What a member has of the bytes now.  With all or nothing of them its fetch has ended. */
void plan_have(plan_t *p, uint64_t token, plan_have_t have, uint64_t rate);
/* It has all of the bytes in a region, while it loads them; its fetch goes on until then. */
void plan_hold(plan_t *p, uint64_t token, bool is_held);
/* Makes the member's list anew, without those in `lost` unless there is no other.  Returns how many: 0 also
 * where it waits. */
uint32_t plan_make(plan_t *p, uint64_t token, const uint64_t *lost, uint32_t lost_count);
/* It fetches no more: its list is no load. */
void plan_done(plan_t *p, uint64_t token);
/* Nothing comes of its fetch, as far as is known: the others of its place do not wait for it. */
void plan_stuck(plan_t *p, uint64_t token);
/* A member that waited and need not any more; each is named once.  0: none. */
uint64_t plan_next_woken(plan_t *p);
/* NULL: takes no part */
plan_row_t *plan_row(const plan_t *p, uint64_t token);
/* The member is the first source of one that is fetching. */
bool plan_is_first(const plan_t *p, uint64_t token);
/* Others of its place wait for the member. */
bool plan_is_awaited(const plan_t *p, uint64_t token);
/* The member that it waits for; 0: it waits for none. */
uint64_t plan_waits_for(const plan_t *p, uint64_t token);

/* A member that asks, or a process that is none, under any number. */
typedef struct {
    uint64_t token, place;
    const uint64_t *lost; /* sources that it does not want */
    uint32_t lost_count;
} plan_asker_t;
/* The sources for it.  Nothing is remembered.  Returns how many. */
uint32_t plan_choose(const plan_t *p, const plan_asker_t *asker, uint64_t ret_sources[PLAN_SOURCES]);

#endif
