/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/plan.h"

#include "core/sorted.h"

#include <stdlib.h>

/* The rows of the members of one place, in any order. */
struct plan_place {
    uint64_t number;
    plan_place_t *next; /* of plan_t.woken */
    bool is_listed;     /* there */
    plan_row_t **rows;
    size_t count, capacity;
};

/* ---- rows ---- */

void plan_init(plan_t *p, uint64_t seed, plan_have_t least) { *p = (plan_t){.seed = seed, .least = least}; }

void plan_fini(plan_t *p)
{
    for (size_t i = 0; i < p->count; i++) free(p->rows[i]);
    for (size_t i = 0; i < p->place_count; i++) {
        free(p->places[i]->rows);
        free(p->places[i]);
    }
    free(p->rows);
    free(p->sources);
    free(p->places);
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

static int order_place(const void *place, const void *number)
{
    uint64_t a = ((const plan_place_t *)place)->number, b = *(const uint64_t *)number;
    return (a > b) - (a < b);
}

static plan_place_t *place_of(const plan_t *p, uint64_t number)
{
    return number ? sorted_find(p->places, p->place_count, &number, order_place) : NULL;
}

/* Found or new, with room for one more row; NULL: no memory. */
static plan_place_t *need_place(plan_t *p, uint64_t number)
{
    bool found;
    size_t at = sorted_place(p->places, p->place_count, &number, order_place, &found);
    plan_place_t *place = found ? p->places[at] : calloc(1, sizeof *place);
    if (place && (found || sorted_grow(&p->places, p->place_count, &p->place_capacity)) &&
        sorted_grow(&place->rows, place->count, &place->capacity)) {
        place->number = number;
        if (!found) sorted_insert(p->places, &p->place_count, at, place);
        return place;
    }
    if (!found) free(place);
    return NULL;
}

static void leave_place(plan_t *p, const plan_row_t *row)
{
    plan_place_t *place = row->place;
    size_t at = 0;
    if (!place) return;
    while (place->rows[at] != row) at++;
    place->rows[at] = place->rows[--place->count];
    if (place->count) return;
    plan_place_t **link = &p->woken;
    while (*link && *link != place) link = &(*link)->next;
    if (*link) *link = place->next;
    bool found;
    at = sorted_place(p->places, p->place_count, &place->number, order_place, &found);
    sorted_remove(p->places, &p->place_count, at);
    free(place->rows);
    free(place);
}

bool plan_add(plan_t *p, uint64_t token, uint64_t place)
{
    bool found;
    size_t at = sorted_place(p->rows, p->count, &token, order_plan, &found);
    if (found) return true;
    plan_row_t *row = calloc(1, sizeof *row);
    /* Each row may become a source: there is room for that from now on, so that plan_have cannot fail. */
    if (!row || !sorted_grow(&p->rows, p->count, &p->capacity) ||
        !sorted_grow(&p->sources, p->count, &p->source_capacity) ||
        (place && !(row->place = need_place(p, place)))) {
        free(row);
        return false;
    }
    row->token = token;
    sorted_insert(p->rows, &p->count, at, row);
    if (place) row->place->rows[row->place->count++] = row;
    return true;
}

/* ---- fetches ---- */

static void set_fetch(plan_t *p, plan_row_t *row, plan_fetch_t fetch);

/* Those that wait in the place look again for what to do. */
static void wake(plan_t *p, const plan_place_t *place)
{
    for (size_t i = 0; place && i < place->count; i++)
        if (place->rows[i]->fetch == PLAN_WAITING) set_fetch(p, place->rows[i], PLAN_WOKEN);
}

/* Every change of a fetch goes through here, so that none that waits is forgotten. */
static void set_fetch(plan_t *p, plan_row_t *row, plan_fetch_t fetch)
{
    plan_fetch_t was = row->fetch;
    p->waiting_count += (fetch == PLAN_WAITING) - (was == PLAN_WAITING);
    p->woken_count += (fetch == PLAN_WOKEN) - (was == PLAN_WOKEN);
    if (fetch == PLAN_WOKEN && !row->place->is_listed) {
        row->place->is_listed = true;
        row->place->next = p->woken;
        p->woken = row->place;
    }
    row->fetch = PLAN_NONE;
    if (was == PLAN_FETCHING && fetch != PLAN_FETCHING) wake(p, row->place);
    row->fetch = fetch;
}

/* A source must have at least `least` of the bytes. */
static bool may_serve(const plan_t *p, const plan_row_t *row) { return row->have && row->have >= p->least; }

static bool may_serve_place(const plan_t *p, const plan_row_t *row)
{
    return row->is_held || may_serve(p, row);
}

/* Sources are an array in no order, and each row knows its place there.  So a source is added and removed
 * in constant time: the last one takes the place of the removed one. */
static void set_have(plan_t *p, plan_row_t *row, plan_have_t have)
{
    bool was_source = may_serve(p, row);
    row->have = have;
    if (may_serve(p, row) == was_source) return;
    if (!was_source) {
        row->source_at = (uint32_t)p->source_count;
        p->sources[p->source_count++] = row;
        wake(p, row->place);
        return;
    }
    plan_row_t *last = p->sources[--p->source_count];
    p->sources[row->source_at] = last;
    last->source_at = row->source_at;
}

/* Only the first source of a fetch is charged with it, because the worker reads from that one first. */
static void charge(plan_t *p, const plan_row_t *row, bool is_fetching)
{
    plan_row_t *first = row->source_count ? plan_row(p, row->sources[0]) : NULL;
    if (!first) return; /* the publisher, or it is gone */
    if (is_fetching) first->load++;
    else if (first->load) first->load--; /* 0: it was taken out meanwhile, and takes part again */
}

static void end_fetch(plan_t *p, plan_row_t *row)
{
    if (row->fetch >= PLAN_FETCHING) charge(p, row, false);
    set_fetch(p, row, PLAN_NONE);
}

void plan_done(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (row) end_fetch(p, row);
}

void plan_stuck(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (row && row->fetch == PLAN_FETCHING) set_fetch(p, row, PLAN_STUCK);
}

void plan_hold(plan_t *p, uint64_t token, bool is_held)
{
    plan_row_t *row = plan_row(p, token);
    if (!row || row->is_held == is_held) return;
    row->is_held = is_held;
    if (is_held) wake(p, row->place);
}

void plan_publisher(plan_t *p, uint64_t token, uint64_t place)
{
    p->publisher = token;
    p->publisher_place = token ? place : 0;
    wake(p, place_of(p, p->publisher_place));
}

/* A member that has all of the bytes, or has lost them, fetches no more. */
void plan_have(plan_t *p, uint64_t token, plan_have_t have, uint64_t rate)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return;
    row->rate = rate;
    set_have(p, row, have);
    if (have != PLAN_PART) end_fetch(p, row);
}

void plan_remove(plan_t *p, uint64_t token)
{
    bool found;
    size_t at = sorted_place(p->rows, p->count, &token, order_plan, &found);
    if (!found) return;
    plan_row_t *row = p->rows[at];
    set_have(p, row, PLAN_NOTHING);
    end_fetch(p, row);
    leave_place(p, row);
    sorted_remove(p->rows, &p->count, at);
    free(row);
}

bool plan_is_first(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    return row && row->load > 0;
}

/* ---- one fetches for its place ---- */

/* The row that fetches for the others of the place; NULL: none. */
static const plan_row_t *fetcher_of(const plan_place_t *place)
{
    for (size_t i = 0; place && i < place->count; i++)
        if (place->rows[i]->fetch == PLAN_FETCHING) return place->rows[i];
    return NULL;
}

bool plan_is_awaited(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = p->waiting_count ? plan_row(p, token) : NULL;
    if (!row || row->fetch != PLAN_FETCHING) return false;
    for (size_t i = 0; row->place && i < row->place->count; i++)
        if (row->place->rows[i]->fetch == PLAN_WAITING) return true;
    return false;
}

uint64_t plan_waits_for(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = p->waiting_count ? plan_row(p, token) : NULL;
    const plan_row_t *fetcher = row && row->fetch == PLAN_WAITING ? fetcher_of(row->place) : NULL;
    return fetcher ? fetcher->token : 0;
}

/* Costs as much as there are members in the places concerned, however many others there are. */
uint64_t plan_next_woken(plan_t *p)
{
    for (plan_place_t *place; (place = p->woken) != NULL; p->woken = place->next, place->is_listed = false)
        for (size_t i = 0; i < place->count; i++) {
            plan_row_t *row = place->rows[i];
            if (row->fetch != PLAN_WOKEN) continue;
            set_fetch(p, row, PLAN_NONE);
            return row->token;
        }
    return 0;
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
    bool is_far; /* of another place than the asker */
    bool is_slow;
    uint32_t load;
    uint64_t draw;
    const plan_row_t *row;
} candidate_t;

/* Sources of the same place come first, because their memory need not be copied.  Then fast ones, then those
 * with fewer fetches; equal ones are ordered at random for each asker,
 * so that not all workers read from the same one. */
static bool is_before(const candidate_t *a, const candidate_t *b)
{
    if (a->is_far != b->is_far) return b->is_far;
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

/* The sources of one asker are collected, then ordered. */
typedef struct {
    candidate_t found[PLAN_CANDIDATES];
    uint32_t count;
} choice_t;

static void add_candidate(const plan_t *p, const plan_asker_t *asker, const plan_row_t *row, bool is_far,
                          choice_t *choice)
{
    bool is_wanted = row->token != asker->token && !is_among(row->token, asker->lost, asker->lost_count);
    if (!is_wanted || choice->count == PLAN_CANDIDATES) return;
    choice->found[choice->count++] =
        (candidate_t){.is_far = is_far,
                      .load = row->load,
                      .draw = mix(p->seed ^ mix(asker->token) ^ mix(row->token * 3)),
                      .row = row};
}

/* A source whose rate is far below the best one's is slow. */
static void find_slow(choice_t *choice)
{
    uint64_t best_rate = 0;
    for (uint32_t i = 0; i < choice->count; i++)
        if (choice->found[i].row->rate > best_rate) best_rate = choice->found[i].row->rate;
    for (uint32_t i = 0; i < choice->count; i++) {
        uint64_t rate = choice->found[i].row->rate;
        choice->found[i].is_slow = rate && rate < best_rate / PLAN_SLOW_FACTOR;
    }
}

static bool has_publisher(const plan_t *p, const plan_asker_t *asker)
{
    return p->publisher && !is_among(p->publisher, asker->lost, asker->lost_count);
}

static bool is_publishers_place(const plan_t *p, uint64_t place)
{
    return place && place == p->publisher_place;
}

uint32_t plan_choose(const plan_t *p, const plan_asker_t *asker, uint64_t ret_sources[PLAN_SOURCES])
{
    choice_t choice = {.count = 0};
    uint32_t used = 0;

    /* Candidates are all sources except the asker and those that it lost.  Those of its own place come first;
     * the walk over the others starts at a place of the ring that depends on the asker, because only the
     * first PLAN_CANDIDATES are compared. */
    const plan_place_t *near = place_of(p, asker->place);
    for (size_t i = 0; near && i < near->count; i++)
        if (may_serve_place(p, near->rows[i])) add_candidate(p, asker, near->rows[i], false, &choice);
    for (size_t k = 0; k < p->source_count && choice.count < PLAN_CANDIDATES; k++) {
        const plan_row_t *row = p->sources[(k + asker->token) % p->source_count];
        if (!near || row->place != near) add_candidate(p, asker, row, true, &choice);
    }
    find_slow(&choice);

    /* The publisher always has the bytes, so it has the last place: a worker whose other sources all fail
     * ends there.  In its own place it has the first one: a region of it is held by all, and costs it
     * nothing.  Only the first places matter, so they are filled one by one. */
    bool has_last = has_publisher(p, asker);
    if (has_last && is_publishers_place(p, asker->place)) {
        ret_sources[used++] = p->publisher;
        has_last = false;
    }
    uint32_t most = has_last ? PLAN_SOURCES - 1 : PLAN_SOURCES;
    for (uint32_t next = 0; next < choice.count && used < most; next++, used++) {
        uint32_t best = next;
        for (uint32_t i = next + 1; i < choice.count; i++)
            if (is_before(&choice.found[i], &choice.found[best])) best = i;
        candidate_t chosen = choice.found[best];
        choice.found[best] = choice.found[next];
        ret_sources[used] = chosen.row->token;
    }
    if (has_last) ret_sources[used++] = p->publisher;
    return used;
}

/* One of its place can give the member the version without a network. */
static bool is_served_here(const plan_t *p, const plan_row_t *row, const plan_asker_t *asker)
{
    if (has_publisher(p, asker) && is_publishers_place(p, asker->place)) return true;
    for (size_t i = 0; i < row->place->count; i++) {
        const plan_row_t *other = row->place->rows[i];
        if (other != row && may_serve_place(p, other) &&
            !is_among(other->token, asker->lost, asker->lost_count))
            return true;
    }
    return false;
}

/* The member's former fetch ends here: its load is taken off before sources are chosen again. */
uint32_t plan_make(plan_t *p, uint64_t token, const uint64_t *lost, uint32_t lost_count)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return 0;
    if (row->fetch >= PLAN_FETCHING) charge(p, row, false);
    row->source_count = 0;
    plan_asker_t asker = {token, row->place ? row->place->number : 0, lost, lost_count};
    const plan_row_t *fetcher = fetcher_of(row->place);
    if (fetcher && fetcher != row && !is_served_here(p, row, &asker)) {
        set_fetch(p, row, PLAN_WAITING);
        return 0;
    }
    row->source_count = plan_choose(p, &asker, row->sources);
    asker.lost_count = 0;
    if (!row->source_count && lost_count) /* better one that failed once than none */
        row->source_count = plan_choose(p, &asker, row->sources);
    set_fetch(p, row, row->source_count ? PLAN_FETCHING : PLAN_NONE);
    if (row->source_count) charge(p, row, true);
    return row->source_count;
}
