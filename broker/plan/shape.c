/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/plan/shape.h"

#include "formats/manifest.h"

#include <stdlib.h>
#include <string.h>

plan_row_t *plan_shape_head(const plan_station_t *station)
{
    for (size_t i = 0; i < station->count; i++)
        if (station->rows[i]->fetch == PLAN_FETCHING) return station->rows[i];
    return station->rows[0];
}

/* The stations of the trees: those of the publisher's place get the bytes without a network, and those with a
 * limited rate serve none of the others.  Returns how many. */
size_t plan_shape_stations(const plan_t *p, plan_station_t **ret_stations)
{
    size_t count = 0;
    for (size_t i = 0; i < p->station_count; i++) {
        plan_station_t *station = p->chain[i];
        if (plan_is_publishers_place(p, station->place) || plan_station_is_limited(station) ||
            plan_shape_head(station)->is_cut_off)
            continue;
        if (ret_stations) ret_stations[count] = station;
        count++;
    }
    return count;
}

/* They stand in the order of their zones. */
static bool has_zones(const plan_t *p)
{
    for (size_t i = 1; i < p->station_count; i++) {
        const char *text = p->chain[i]->key.text, *before = p->chain[i - 1]->key.text;
        size_t zone_bytes = (size_t)(strchr(text, '\x01') - text);
        if (strncmp(text, before, zone_bytes + 1) != 0) return true;
    }
    return false;
}

/* For N stations and n chunks a star takes N n τ + α, a chain (n + N - 1) τ + N α, and two trees (n + 2 d) τ
 * + (d + 1) α with d = log2 N, rounded down.  τ, the time of a chunk, is taken as on a fast link, by the
 * publisher's --max-rate, or by the rate of the version before; α is the time of a hop.  The chain is
 * left for trees only where they are a quarter better: on real links a chain took up to 8 % more than its
 * estimate, and trees 7 to 26 % more, because each link is shared by two transfers (docs/benchmarks.md,
 * "Shaped links").  Nor is it left where there are several zones: it enters each of them once. */
plan_shape_t plan_shape_choose(const plan_t *p, size_t stations)
{
    bool may_be_trees = stations > 1 && plan_server(p) && !p->source_count;
    if (p->wanted == PLAN_TWO_TREE) return may_be_trees ? PLAN_TWO_TREE : PLAN_CHAIN;
    if (p->wanted != PLAN_AUTO) return p->wanted;
    uint64_t count = stations > 1 ? stations : 2, chunk = manifest_chunk_bytes(p->bytes), d = 0;
    while (count >> (d + 1)) d++;
    uint64_t star = count * p->bytes + p->hop_bytes;
    uint64_t chain = p->bytes + (count - 1) * chunk + count * p->hop_bytes;
    uint64_t trees = p->bytes + 2 * d * chunk + (d + 1) * p->hop_bytes;
    bool is_best = trees < star && trees * 5 < chain * 4;
    if (may_be_trees && is_best && !has_zones(p)) return PLAN_TWO_TREE;
    return chain < star ? PLAN_CHAIN : PLAN_STAR;
}

/* Number 0 stands for the publisher. */
static uint64_t token_at(const plan_t *p, plan_station_t **stations, size_t number)
{
    return number ? plan_shape_head(stations[number - 1])->token : plan_server(p);
}

/* The parent of station k is k / 2 for the first half of the chunks, and for the second half the same counted
 * from the other end.  So a station has children in one of the trees alone. */
static size_t other_parent(size_t count, size_t k)
{
    size_t parent = (count + 1 - k) / 2;
    return parent ? count + 1 - parent : 0;
}

/* ---- the turns ---- */

#define MOST_TRIES 12u
#define MOST_TRIED 4096u /* stations, in all tries but the first one */

/* A walk over numbers, each once. */
typedef struct {
    uint32_t *stack, *seen; /* seen: in which walk last */
    size_t used;
} trail_t;

/* The tree of the first half, by the numbers of stations. */
typedef struct {
    size_t count;
    uint32_t *parents; /* those with two children, in the order in which these are given their substitutes */
    size_t parent_count;
    uint32_t *asides; /* of a second child: the other grandparent, which comes first where the parent goes */
    uint32_t *turns;
    trail_t up, down; /* to what a number waits for, and to what waits for it */
    uint32_t walks;
    uint64_t looks;
} tree_t;

static void walk_to(tree_t *t, trail_t *trail, size_t k)
{
    if (!k || k > t->count || trail->seen[k] == t->walks) return;
    trail->seen[k] = t->walks;
    trail->stack[trail->used++] = (uint32_t)k;
    t->looks++;
}

static void walk_up(tree_t *t)
{
    size_t k = t->up.stack[--t->up.used];
    walk_to(t, &t->up, k / 2);
    walk_to(t, &t->up, t->asides[k]);
}

/* To its children, and to those of its children in the other tree that it is the other grandparent for. */
static void walk_down(tree_t *t)
{
    size_t k = t->down.stack[--t->down.used], mirrored = 2 * (t->count + 1 - k);
    walk_to(t, &t->down, 2 * k);
    walk_to(t, &t->down, 2 * k + 1);
    for (size_t i = mirrored; i <= mirrored + 1 && i <= t->count; i++)
        for (size_t child = 2 * (t->count + 1 - i); child <= 2 * (t->count + 1 - i) + 1; child++)
            if (child <= t->count && t->asides[child] == k) walk_to(t, &t->down, child);
}

/* Number k may wait for number `other`, whatever goes.  Most numbers wait for few, or few wait for them: the
 * walk from either end that is over first says so. */
static bool waits_for(tree_t *t, size_t k, size_t other)
{
    t->walks++;
    t->up.used = t->down.used = 0;
    walk_to(t, &t->up, k);
    walk_to(t, &t->down, other);
    while (t->up.used && t->down.used && t->up.seen[other] != t->walks && t->down.seen[k] != t->walks) {
        walk_up(t);
        walk_down(t);
    }
    return t->up.seen[other] == t->walks || t->down.seen[k] == t->walks;
}

/* One child of each parent gets the other grandparent, if that does not wait for it.  The parents of which no
 * child may are moved to the front, for another try.  Returns how many there are. */
static size_t try_substitutes(tree_t *t)
{
    size_t left = 0;
    memset(t->asides, 0, (t->count + 1) * sizeof *t->asides);
    for (size_t i = 0; i < t->parent_count; i++) {
        uint32_t parent = t->parents[i], child = 2 * parent + 1;
        size_t aside = other_parent(t->count, parent);
        if (waits_for(t, aside, child)) child--;
        if (child % 2 || !waits_for(t, aside, child)) {
            t->asides[child] = (uint32_t)aside;
            continue;
        }
        memmove(t->parents + left + 1, t->parents + left, (i - left) * sizeof *t->parents);
        t->parents[left++] = parent;
    }
    return left;
}

/* As each has its sources before it. */
static void take_turns(tree_t *t)
{
    uint32_t last = 0;
    for (size_t k = 1; k <= t->count; k++) {
        size_t used = 0;
        uint32_t *stack = t->up.stack;
        for (stack[used++] = (uint32_t)k; used;) {
            uint32_t at = stack[used - 1], parent = at / 2, aside = t->asides[at];
            if (parent && !t->turns[parent]) stack[used++] = parent;
            else if (aside && !t->turns[aside]) stack[used++] = aside;
            else if (used--, !t->turns[at]) t->turns[at] = ++last;
        }
    }
}

uint64_t plan_shape_number(plan_station_t **stations, size_t count)
{
    size_t room = count + 1;
    uint32_t *numbers = calloc(7 * room, sizeof *numbers);
    if (!numbers) return 0;
    tree_t t = {.count = count,
                .parents = numbers,
                .asides = numbers + room,
                .turns = numbers + 2 * room,
                .up = {.stack = numbers + 3 * room, .seen = numbers + 4 * room},
                .down = {.stack = numbers + 5 * room, .seen = numbers + 6 * room}};
    for (size_t k = 1; 2 * k + 1 <= count; k++) t.parents[t.parent_count++] = (uint32_t)k;
    size_t tries = 1;
    while (try_substitutes(&t) && tries < MOST_TRIES && tries * count < MOST_TRIED) tries++;
    take_turns(&t);
    for (size_t k = 1; k <= count; k++) {
        plan_station_t *station = stations[k - 1], *mirrored = stations[count - k];
        station->number = k;
        station->turns[0] = mirrored->turns[1] = t.turns[k];
        station->is_second[0] = mirrored->is_second[1] = t.asides[k] != 0;
    }
    free(numbers);
    return t.looks + count;
}

/* ---- the parents ---- */

void plan_shape_lay(const plan_t *p, plan_station_t **stations, size_t count, size_t k)
{
    plan_row_t *row = plan_shape_head(stations[k - 1]);
    uint64_t first = token_at(p, stations, k / 2), second = token_at(p, stations, other_parent(count, k));
    row->half = 2 * (count + 1 - k) <= count ? 2 : 1;
    row->source_count = row->other_count = 1;
    row->sources[0] = row->half == 1 ? first : second;
    row->others[0] = row->half == 1 ? second : first;
}
