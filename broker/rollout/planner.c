/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/planner.h"

/* What a candidate is ordered by, the most important first. */
typedef struct {
    bool is_publisher, is_slow;
    uint32_t load;
    uint64_t draw;
} rank_t;

/* splitmix64: spreads equals over the workers that ask. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static rank_t rank_of(const planner_candidate_t *c, uint64_t best_rate, uint64_t token, uint64_t seed)
{
    return (rank_t){.is_publisher = c->is_publisher,
                    .is_slow = c->rate && c->rate < best_rate / PLANNER_SLOW_FACTOR,
                    .load = c->load,
                    .draw = mix(seed ^ mix(token) ^ mix(c->token * 3))};
}

static bool is_before(const rank_t *a, const rank_t *b)
{
    if (a->is_publisher != b->is_publisher) return b->is_publisher;
    if (a->is_slow != b->is_slow) return b->is_slow;
    if (a->load != b->load) return a->load < b->load;
    return a->draw < b->draw;
}

static uint64_t best_rate_of(const planner_candidate_t *candidates, size_t count)
{
    uint64_t best = 0;
    for (size_t i = 0; i < count; i++)
        if (candidates[i].rate > best) best = candidates[i].rate;
    return best;
}

static void swap(planner_candidate_t *a, planner_candidate_t *b)
{
    planner_candidate_t t = *a;
    *a = *b;
    *b = t;
}

/* Only the first few places matter: select them one by one. */
size_t planner_plan(planner_candidate_t *candidates, size_t count, uint64_t token, uint64_t seed)
{
    uint64_t best_rate = best_rate_of(candidates, count);
    size_t use = count < PLANNER_SOURCES ? count : PLANNER_SOURCES;
    for (size_t place = 0; place < use; place++) {
        size_t best = place;
        rank_t best_rank = rank_of(&candidates[best], best_rate, token, seed);
        for (size_t i = place + 1; i < count; i++) {
            rank_t rank = rank_of(&candidates[i], best_rate, token, seed);
            if (!is_before(&rank, &best_rank)) continue;
            best = i;
            best_rank = rank;
        }
        swap(&candidates[place], &candidates[best]);
    }
    for (size_t i = use; i < count;
         i++) /* the last place is the publisher's: it has the bytes for sure */
        if (candidates[i].is_publisher) swap(&candidates[use - 1], &candidates[i]);
    return use;
}
