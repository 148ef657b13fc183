/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/plan/restored.h"

#include "broker/plan/fetch.h"
#include "broker/plan/load.h"
#include "broker/plan/shape.h"
#include "broker/plan/stations.h"

#include <stdlib.h>
#include <string.h>

/* Two trees are laid over members none of which has bytes. */
void plan_resume(plan_t *p)
{
    p->shape = plan_shape_choose(p, 0);
    p->is_begun = true;
}

/* Others may fetch from it, as from any that was there when the rollout began. */
static void to_front(plan_t *p, plan_station_t *station)
{
    if (!station->key.wave) return;
    plan_station_take(p, station);
    station->key.wave = 0;
    plan_station_put(p, station);
}

void plan_restore(plan_t *p, uint64_t token, const plan_lists_t *lists)
{
    plan_row_t *row = plan_row(p, token);
    if (!row || row->fetch >= PLAN_FETCHING || row->has != PLAN_PARTS) return;
    p->order = ORDER_UNKNOWN;
    to_front(p, row->station);
    row->half = lists->half;
    row->source_count = lists->source_count;
    row->other_count = lists->other_count;
    memcpy(row->sources, lists->sources, sizeof row->sources);
    memcpy(row->others, lists->others, sizeof row->others);
    plan_fetch_set(p, row, PLAN_FETCHING);
    plan_load_charge(p, row, true);
}

static void replace(uint64_t *tokens, uint32_t count, uint64_t token, uint64_t new_token)
{
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] == token) tokens[i] = new_token;
}

/* Its lists are restored ones, where those are not of this broker's making alone. */
static void rename_in(plan_t *p, plan_row_t *row, uint64_t former_token, uint64_t token)
{
    plan_load_charge(p, row, false);
    replace(row->sources, row->source_count, former_token, token);
    replace(row->others, row->other_count, former_token, token);
    plan_load_charge(p, row, true);
    if (p->order != ORDER_OF_KEYS) p->order = ORDER_UNKNOWN;
}

void plan_restored_rename(plan_t *p, uint64_t former_token, uint64_t token)
{
    for (plan_row_t *row; (row = absent_next(&p->absent, former_token)) != NULL; p->looks++)
        rename_in(p, row, former_token, token);
}

/* A worker renews its row as it comes back within one start of the broker (plan_renew).  The publisher has
 * none, and so any list may name a former session of it.  What takes part has no other name. */
void plan_came_back(plan_t *p, uint64_t former_token, uint64_t token)
{
    bool is_publisher = token == plan_server(p);
    if (!former_token || former_token == token || plan_row(p, former_token)) return;
    for (size_t i = 0; is_publisher && i < p->count; i++) {
        plan_row_t *row = p->rows[i];
        p->looks++;
        if (row->fetch >= PLAN_FETCHING && plan_row_names(row, former_token))
            rename_in(p, row, former_token, token);
    }
    plan_restored_rename(p, former_token, token);
}

void plan_restored_note_absent(plan_t *p, const plan_row_t *source)
{
    if (p->order == ORDER_OF_KEYS) return;
    for (const plan_naming_t *n = source->namings; n; n = n->next)
        absent_put(&p->absent, source->token, n->row);
}

/* The shape that most of the lists are of.  Last resorts have halves in a chain, too. */
static void take_shape(plan_t *p)
{
    size_t fetching = 0, halves = 0;
    for (size_t i = 0; i < p->count; i++) {
        if (plan_station_is_last_resort(p->rows[i]->station)) continue;
        fetching += p->rows[i]->fetch >= PLAN_FETCHING;
        halves += p->rows[i]->fetch >= PLAN_FETCHING && p->rows[i]->half;
    }
    plan_shape_t shape = halves * 2 > fetching ? PLAN_TWO_TREE : PLAN_CHAIN;
    if (p->shape == PLAN_STAR || p->shape == shape) return;
    for (size_t i = 0; i < p->count; i++)
        if (p->rows[i]->fetch >= PLAN_FETCHING) plan_load_charge(p, p->rows[i], false);
    p->shape = shape;
    for (size_t i = 0; i < p->count; i++)
        if (p->rows[i]->fetch >= PLAN_FETCHING) plan_load_charge(p, p->rows[i], true);
    for (size_t i = 0; i < p->station_count; i++) plan_load_note_room(p, p->chain[i]);
}

/* A source that the row reads from, and that is not behind it as far as was seen. */
static plan_row_t *unseen_parent(const plan_t *p, const plan_row_t *row)
{
    plan_row_t *first = plan_row(p, plan_asked(p, row->sources, row->source_count));
    plan_row_t *other = plan_row(p, plan_asked(p, row->others, row->other_count));
    if (first && !first->depth) return first;
    return other && !other->depth ? other : NULL;
}

static uint32_t depth_of(const plan_t *p, const uint64_t *tokens, uint32_t count)
{
    const plan_row_t *parent = plan_row(p, plan_asked(p, tokens, count));
    return parent && parent->depth != UINT32_MAX ? parent->depth : 0;
}

static size_t missing_of(const plan_t *p, const uint64_t *tokens, uint32_t count)
{
    size_t missing = 0;
    for (uint32_t i = 0; i < count; i++) missing += tokens[i] != plan_server(p) && !plan_row(p, tokens[i]);
    return missing;
}

/* All that its lists name have gone. */
static bool is_orphan(const plan_t *p, const plan_row_t *row)
{
    uint32_t count = row->source_count + row->other_count;
    return count &&
           missing_of(p, row->sources, row->source_count) + missing_of(p, row->others, row->other_count) ==
               count;
}

/* How many sources are before it; UINT32_MAX while that is looked for.  An orphan is behind all that are not
 * behind one, and behind the orphans that were found before: it will fetch from the last of those, which
 * serves no other.  `stack` has room for all rows. */
static void find_depth(const plan_t *p, plan_row_t *row, plan_row_t **stack, uint32_t *orphans)
{
    size_t used = 0;
    for (stack[used++] = row; used;) {
        row = stack[used - 1];
        bool is_fetching = row->fetch >= PLAN_FETCHING && row->has == PLAN_PARTS;
        row->depth = UINT32_MAX;
        plan_row_t *parent = is_fetching ? unseen_parent(p, row) : NULL;
        if (parent) {
            stack[used++] = parent;
            continue;
        }
        uint32_t first = is_fetching ? depth_of(p, row->sources, row->source_count) : 0;
        uint32_t other = is_fetching ? depth_of(p, row->others, row->other_count) : 0;
        row->depth = 1 + (first > other ? first : other);
        if (is_fetching && is_orphan(p, row)) row->depth += ++*orphans * (uint32_t)p->count;
        used--;
    }
}

static bool has_no_list(const plan_station_t *station)
{
    const plan_row_t *head = plan_shape_head(station);
    return head->fetch < PLAN_FETCHING && head->has != PLAN_WHOLE;
}

/* Those that wait for a list are behind all. */
void plan_restored_arrange(plan_t *p)
{
    if (p->order != ORDER_UNKNOWN) return;
    plan_row_t **stack = malloc((p->count + 1) * sizeof(plan_row_t *));
    if (!stack) return;
    p->order = ORDER_OF_LISTS;
    p->looks += p->count;
    take_shape(p);
    for (size_t i = 0; i < p->count; i++) p->rows[i]->depth = 0;
    uint32_t orphans = 0;
    for (size_t i = 0; i < p->station_count; i++)
        for (size_t k = 0; k < p->chain[i]->count; k++)
            if (!p->chain[i]->rows[k]->depth) find_depth(p, p->chain[i]->rows[k], stack, &orphans);
    free(stack);
    for (size_t i = 0; i < p->station_count && p->shape == PLAN_CHAIN; i++) {
        uint32_t wave = plan_shape_head(p->chain[i])->depth - 1;
        if (has_no_list(p->chain[i])) continue;
        p->chain[i]->key.wave = wave;
        if (wave > p->wave) p->wave = wave;
    }
    p->begun_wave = p->wave;
    for (size_t i = 0; i < p->station_count && p->shape == PLAN_CHAIN; i++)
        if (has_no_list(p->chain[i])) p->chain[i]->key.wave = ++p->wave;
    if (p->shape == PLAN_CHAIN) plan_stations_sort(p);
}
