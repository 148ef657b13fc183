/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/plan.h"

#include "core/sorted.h"

#include <stdlib.h>

/* ---- rows ---- */

void plan_init(plan_t *p, uint64_t seed, plan_have_t least) { *p = (plan_t){.seed = seed, .least = least}; }

void plan_fini(plan_t *p)
{
    for (size_t i = 0; i < p->count; i++) free(p->rows[i]);
    free(p->rows);
    free(p->sources);
    *p = (plan_t){0};
}

static int order_plan(const void *row, const void *token)
{
    uint64_t a = ((const plan_row_t *)row)->token, b = *(const uint64_t *)token;
    return (a > b) - (a < b);
}

plan_row_t *plan_row(const plan_t *p, uint64_t token)
{
    return sorted_find(p->rows, p->count, &token, order_plan);
}

bool plan_add(plan_t *p, uint64_t token)
{
    bool found;
    size_t at = sorted_place(p->rows, p->count, &token, order_plan, &found);
    if (found) return true;
    plan_row_t *row = calloc(1, sizeof *row);
    /* Each row may become a source: there is room for that from now on, so that plan_have cannot fail. */
    if (!row || !sorted_grow(&p->rows, p->count, &p->capacity) ||
        !sorted_grow(&p->sources, p->count, &p->source_capacity)) {
        free(row);
        return false;
    }
    row->token = token;
    sorted_insert(p->rows, &p->count, at, row);
    return true;
}

/* A source must have at least `least` of the bytes. */
static bool may_serve(const plan_t *p, const plan_row_t *row) { return row->have && row->have >= p->least; }

/* Sources are an array in no order, and each row knows its place there.  So a source is added and removed
 * in constant time: the last one takes the place of the removed one. */
static void set_have(plan_t *p, plan_row_t *row, plan_have_t have)
{
    bool was_source = may_serve(p, row);
    row->have = have;
    if (may_serve(p, row) == was_source) return;
    if (!was_source) {
        row->place = (uint32_t)p->source_count;
        p->sources[p->source_count++] = row;
        return;
    }
    plan_row_t *last = p->sources[--p->source_count];
    p->sources[row->place] = last;
    last->place = row->place;
}

/* Only the first source of a fetch is charged with it, because the worker reads from that one first. */
static void count_load(plan_t *p, plan_row_t *row, bool is_fetching)
{
    if (row->is_fetching == is_fetching) return;
    row->is_fetching = is_fetching;
    plan_row_t *first = row->source_count ? plan_row(p, row->sources[0]) : NULL;
    if (!first) return; /* the publisher, or it is gone */
    if (is_fetching) first->load++;
    else if (first->load) first->load--; /* 0: it was taken out meanwhile, and takes part again */
}

void plan_done(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (row) count_load(p, row, false);
}

/* A member that has all of the bytes, or has lost them, fetches no more. */
void plan_have(plan_t *p, uint64_t token, plan_have_t have, uint64_t rate)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return;
    row->rate = rate;
    if (have != PLAN_PART) count_load(p, row, false);
    set_have(p, row, have);
}

void plan_remove(plan_t *p, uint64_t token)
{
    bool found;
    size_t at = sorted_place(p->rows, p->count, &token, order_plan, &found);
    if (!found) return;
    plan_row_t *row = p->rows[at];
    count_load(p, row, false);
    set_have(p, row, PLAN_NOTHING);
    sorted_remove(p->rows, &p->count, at);
    free(row);
}

bool plan_is_first(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    return row && row->load > 0;
}

/* ---- the choice ---- */

/* splitmix64: spreads equals over the members that ask. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* What a candidate is ordered by, the most important first. */
typedef struct {
    bool is_slow;
    uint32_t load;
    uint64_t draw;
    const plan_row_t *row;
} candidate_t;

/* Fast sources come first, then those with fewer fetches; equal ones are ordered at random for each asker,
 * so that not all workers read from the same one. */
static bool is_before(const candidate_t *a, const candidate_t *b)
{
    if (a->is_slow != b->is_slow) return b->is_slow;
    if (a->load != b->load) return a->load < b->load;
    return a->draw < b->draw;
}

static bool is_among(uint64_t token, const uint64_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] == token) return true;
    return false;
}

uint32_t plan_choose(const plan_t *p, uint64_t asker, const uint64_t *lost, uint32_t lost_count,
                     uint64_t ret_sources[PLAN_SOURCES])
{
    candidate_t found[PLAN_CANDIDATES];
    uint32_t count = 0, used = 0;
    uint64_t best_rate = 0;
    bool has_publisher = p->publisher && !is_among(p->publisher, lost, lost_count);

    /* Candidates are all sources except the asker and those that it lost.  The walk starts at a place of the
     * ring that depends on the asker, because only the first PLAN_CANDIDATES are compared. */
    for (size_t k = 0; k < p->source_count && count < PLAN_CANDIDATES; k++) {
        const plan_row_t *row = p->sources[(k + asker) % p->source_count];
        if (row->token == asker || is_among(row->token, lost, lost_count)) continue;
        uint64_t draw = mix(p->seed ^ mix(asker) ^ mix(row->token * 3));
        found[count++] = (candidate_t){.load = row->load, .draw = draw, .row = row};
        if (row->rate > best_rate) best_rate = row->rate;
    }
    for (uint32_t i = 0; i < count; i++)
        found[i].is_slow = found[i].row->rate && found[i].row->rate < best_rate / PLAN_SLOW_FACTOR;

    /* The publisher always has the bytes, so it has the last place: a worker whose other sources all fail
     * ends there.  Only the first places matter, so they are filled one by one. */
    uint32_t most = has_publisher ? PLAN_SOURCES - 1 : PLAN_SOURCES;
    for (; used < count && used < most; used++) {
        uint32_t best = used;
        for (uint32_t i = used + 1; i < count; i++)
            if (is_before(&found[i], &found[best])) best = i;
        candidate_t chosen = found[best];
        found[best] = found[used];
        ret_sources[used] = chosen.row->token;
    }
    if (has_publisher) ret_sources[used++] = p->publisher;
    return used;
}

/* The member's former fetch ends here: its load is taken off before sources are chosen again. */
uint32_t plan_make(plan_t *p, uint64_t token, const uint64_t *lost, uint32_t lost_count)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return 0;
    count_load(p, row, false);
    row->source_count = plan_choose(p, token, lost, lost_count, row->sources);
    if (!row->source_count && lost_count) /* better one that failed once than none */
        row->source_count = plan_choose(p, token, NULL, 0, row->sources);
    count_load(p, row, row->source_count > 0);
    return row->source_count;
}
