/* SPDX-License-Identifier: Apache-2.0 */
/* A plan, its members by number, and memberships drawn at random: of broker_plan.c and broker_trees.c. */
#ifndef TESTS_PLAN_RIG_H
#define TESTS_PLAN_RIG_H

#include "broker/plan/sources.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define PUBLISHER 9u

static plan_t P;

static void finish(void) { plan_fini(&P); }

static void start_with(plan_shape_t shape, uint64_t bytes)
{
    plan_init(&P, 2, shape, bytes);
    plan_publisher(&P, PUBLISHER, 0);
}

/* Named after its number, so that the order of the numbers is that of the chain. */
static bool add_to(plan_t *p, uint64_t token, uint64_t place)
{
    char name[32];
    snprintf(name, sizeof name, "w%06u", (unsigned)token);
    return plan_add(p, &(plan_member_t){.token = token, .place = place, .name = name, .zone = ""});
}

static bool add(uint64_t token, uint64_t place) { return add_to(&P, token, place); }

/* The rollout of those that were added begins. */
static void begin(void)
{
    plan_begin(&P);
    plan_make_all(&P);
}

/* Members `first` to `last` without places, and their lists. */
static void wave(uint64_t first, uint64_t last)
{
    for (uint64_t token = first; token <= last; token++) cr_assert(add(token, 0));
    begin();
}

/* As the broker does after each event. */
static void settle(plan_t *p)
{
    for (uint64_t token; (token = plan_next_torn(p)) != 0;) plan_mend(p, token);
    for (uint64_t token; (token = plan_next_woken(p)) != 0;) plan_make(p, token, NULL, 0);
    for (uint64_t token; (token = plan_next_torn(p)) != 0;) plan_mend(p, token);
}

/* As the broker does where others blame it. */
static void put_last(plan_t *p, uint64_t token)
{
    plan_demote(p, token);
    settle(p);
    uint64_t last;
    for (size_t i = 0; (last = plan_put_last(p, i)) != 0; i++) plan_make(p, last, NULL, 0);
    settle(p);
}

/* Its list for this half of the chunks; without halves that for all. */
static const uint64_t *list_for(const plan_row_t *row, uint32_t half, uint32_t *ret_count)
{
    bool is_other = row->half && row->half != half;
    *ret_count = is_other ? row->other_count : row->source_count;
    return is_other ? row->others : row->sources;
}

/* "12 11 9": the tokens of that list. */
static const char *list_text(uint64_t token, uint32_t half)
{
    static char text[4][128];
    static uint32_t calls;
    char *to = text[calls++ % 4];
    size_t used = 0;
    uint32_t count;
    const uint64_t *tokens = list_for(plan_row(&P, token), half, &count);
    to[0] = 0;
    for (uint32_t i = 0; i < count; i++)
        used += (size_t)snprintf(to + used, sizeof text[0] - used, "%s%u", i ? " " : "", (unsigned)tokens[i]);
    return to;
}

/* ---- any memberships ---- */

enum { MOST = 60 };

/* What the test knows of the members, by token. */
typedef struct {
    plan_t plan;
    uint64_t seed, rng, next_token, place_of[4096];
    uint64_t alive[MOST];
    uint32_t count;
    bool has_limited;
} any_t;

static uint64_t below(any_t *a, uint64_t limit)
{
    a->rng ^= a->rng << 13;
    a->rng ^= a->rng >> 7;
    a->rng ^= a->rng << 17;
    return a->rng % limit;
}

/* In a chain most have a place, and limited ones may be leaves. */
static uint64_t join(any_t *a)
{
    char name[24], zone[8];
    uint64_t token = a->next_token++;
    bool is_chain = a->plan.wanted == PLAN_CHAIN;
    snprintf(name, sizeof name, "w%llu-%llu", (unsigned long long)below(a, 1000), (unsigned long long)token);
    snprintf(zone, sizeof zone, "z%llu", (unsigned long long)below(a, 3));
    plan_member_t m = {.token = token,
                       .place = below(a, 4) < (is_chain ? 3 : 1) ? 1 + below(a, 8) : 0,
                       .name = name,
                       .zone = zone,
                       .is_limited = a->has_limited && !below(a, 5),
                       .is_leaf = a->has_limited && is_chain && !below(a, 8)};
    cr_assert(plan_add(&a->plan, &m));
    a->place_of[token] = m.place;
    a->alive[a->count++] = token;
    return token;
}

static void leave(any_t *a, uint32_t at)
{
    plan_remove(&a->plan, a->alive[at]);
    a->alive[at] = a->alive[--a->count];
}

static void open_any(any_t *a, uint64_t seed, plan_shape_t shape, uint64_t bytes)
{
    *a = (any_t){.seed = seed, .rng = seed * 0x9e3779b97f4a7c15ull | 1, .next_token = 100};
    plan_init(&a->plan, seed, shape, bytes);
    plan_publisher(&a->plan, PUBLISHER, below(a, 2) ? 1 + below(a, 8) : 0);
    a->has_limited = !below(a, 4);
    for (uint64_t count = 1 + below(a, MOST - 20); a->count < count;) join(a);
    plan_begin(&a->plan);
    plan_make_all(&a->plan);
}

/* Something happens to one of them. */
static void end_one(any_t *a)
{
    uint32_t at = (uint32_t)below(a, a->count);
    uint64_t token = a->alive[at], lost[2] = {PUBLISHER, a->alive[below(a, a->count)]};
    switch (below(a, 9)) {
    case 0: leave(a, at); break;
    case 1: plan_done(&a->plan, token); break;
    case 2: plan_stuck(&a->plan, token); break;
    case 3: plan_have(&a->plan, token, true, 0); break;
    case 4: plan_make(&a->plan, token, lost, (uint32_t)below(a, 3)); break;
    case 5: plan_loads(&a->plan, token, true); break;
    case 6:
        a->alive[at] = a->next_token++;
        cr_assert(plan_renew(&a->plan, token, a->alive[at]));
        break;
    case 7: put_last(&a->plan, token); break;
    case 8:
        plan_give_way(&a->plan, token);
        plan_make(&a->plan, token, lost, 1);
        break;
    }
    settle(&a->plan);
}

/* One more joins, or something happens. */
static void go_on(any_t *a)
{
    if (a->count < 2 || (a->count < MOST && !below(a, 4))) plan_make(&a->plan, join(a), NULL, 0);
    else end_one(a);
}

typedef struct {
    uint64_t sources[PLAN_SOURCES], others[PLAN_SOURCES];
    uint32_t half;
} lists_t;

static lists_t lists_now(const any_t *a, uint32_t at)
{
    const plan_row_t *row = plan_row(&a->plan, a->alive[at]);
    lists_t lists = {.half = row->half};
    memcpy(lists.sources, row->sources, row->source_count * sizeof(uint64_t));
    memcpy(lists.others, row->others, row->other_count * sizeof(uint64_t));
    return lists;
}

/* One member joins: the lists of the others stay. */
static void check_join(any_t *a)
{
    lists_t before[MOST];
    uint32_t count = a->count;
    for (uint32_t i = 0; i < count; i++) before[i] = lists_now(a, i);
    plan_make(&a->plan, join(a), NULL, 0);
    settle(&a->plan);
    for (uint32_t i = 0; i < count; i++) {
        lists_t now = lists_now(a, i);
        cr_assert(!memcmp(&before[i], &now, sizeof now), "seed %llu", (unsigned long long)a->seed);
    }
}

#endif
