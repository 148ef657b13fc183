/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/plan/load.h"

#include <stdlib.h>

static void put_naming(plan_row_t *row, plan_row_t *source)
{
    plan_naming_t *n = &row->names[row->name_count++];
    *n = (plan_naming_t){.row = row, .next = source->namings, .back = &source->namings};
    if (n->next) n->next->back = &n->next;
    source->namings = n;
}

static void take_naming(plan_naming_t *n)
{
    if (!n->back) return;
    *n->back = n->next;
    if (n->next) n->next->back = n->back;
    n->back = NULL;
}

static void take_names(plan_row_t *row)
{
    while (row->name_count) take_naming(&row->names[--row->name_count]);
}

void plan_load_forget(plan_row_t *source)
{
    while (source->namings) take_naming(source->namings);
}

static int by_station(const void *a, const void *b)
{
    const plan_row_t *row = *(plan_row_t *const *)a, *other = *(plan_row_t *const *)b;
    int order = plan_key_order(&row->station->key, &other->station->key);
    return order ? order : plan_key_order(&row->key, &other->key);
}

/* Behind the source first, and each part in the order of the chain: the same lists are torn in the same
 * order, whichever was made first. */
void plan_load_tear(plan_t *p, const plan_row_t *source)
{
    for (uint32_t before = 0; before < 2; before++) {
        size_t first = p->torn_count;
        for (const plan_naming_t *n = source->namings; n; n = n->next) {
            bool is_before = plan_key_order(&n->row->station->key, &source->station->key) <= 0;
            p->looks += !before;
            if (n->row->is_torn || is_before != before) continue;
            n->row->is_torn = true;
            p->torn[p->torn_count++] = n->row;
        }
        if (p->torn_count > first)
            qsort(p->torn + first, p->torn_count - first, sizeof(plan_row_t *), by_station);
    }
}

/* Stations that may serve more are found without a look at all of them.  Those that may not any more are left
 * out where they are found.  Those that may serve limited ones alone stand apart, or many of them would hide
 * the others. */
void plan_load_note_room(plan_t *p, plan_station_t *station)
{
    if (p->shape != PLAN_TWO_TREE || station->is_roomy) return;
    plan_roomy_t *roomy = &p->roomy[plan_station_is_limited(station)];
    station->is_roomy = true;
    roomy->stations[roomy->count++] = station;
}

void plan_load_forget_room(plan_t *p, plan_station_t *station)
{
    for (plan_roomy_t *roomy = p->roomy; roomy < p->roomy + 2 && station->is_roomy; roomy++)
        for (size_t i = 0; i < roomy->count && station->is_roomy; i++) {
            p->looks++;
            if (roomy->stations[i] != station) continue;
            roomy->stations[i] = roomy->stations[--roomy->count];
            station->is_roomy = false;
        }
}

/* One of its rows may serve others.  A last resort does not, and is noted with a row that does. */
static bool may_serve_more(const plan_t *p, const plan_station_t *station)
{
    bool may_serve = false;
    for (size_t k = 0; k < station->count && !may_serve; k++)
        may_serve = plan_serves(p, station->rows[k]) && !plan_row_is_last_resort(station->rows[k]);
    return may_serve && station->load < PLAN_HALVES;
}

/* Of the first ones, which are looked at: those that may serve no more than they do are roomy no longer.  One
 * that has become limited, or is so no more, goes where it belongs. */
void plan_load_tidy_roomy(plan_t *p)
{
    for (size_t of_limited = 0; of_limited < 2; of_limited++) {
        plan_roomy_t *roomy = &p->roomy[of_limited];
        for (size_t i = 0; i < roomy->count && i < PLAN_CANDIDATES;) {
            plan_station_t *station = roomy->stations[i];
            p->looks++;
            bool may_serve = may_serve_more(p, station),
                 is_here = plan_station_is_limited(station) == of_limited;
            if (may_serve && is_here) {
                i++;
                continue;
            }
            station->is_roomy = false;
            roomy->stations[i] = roomy->stations[--roomy->count];
            if (may_serve) plan_load_note_room(p, station);
        }
    }
}

/* One that was blamed is counted as others are: that may have been wrong, and it takes as much as any; and
 * what is taken off a load is what was put on.  So is a last resort, which gives nothing and takes all. */
static bool takes_little(const plan_station_t *station)
{
    return station->key.rank == PLAN_LIMITED && !plan_station_is_blamed(station);
}

/* What the first source of a list sends, in halves of the chunks: its load; of a star, in lists.  In trees
 * a station with a limited rate takes next to nothing from one without, and so does one that is stuck.
 * `source` NULL: it is the publisher. */
static uint32_t weight(const plan_t *p, const plan_row_t *row, const plan_row_t *source)
{
    if (p->shape == PLAN_STAR) return 1;
    if (p->shape == PLAN_CHAIN) return row->half ? 1 : PLAN_HALVES;
    bool is_for_little = takes_little(row->station) && !(source && takes_little(source->station));
    if (row->fetch == PLAN_STUCK || is_for_little) return 0;
    return row->half ? 1 : PLAN_HALVES;
}

static void charge_publisher(plan_t *p, const plan_row_t *row, bool is_fetching)
{
    if (plan_is_publishers_place(p, row->station->place)) return;
    uint32_t load = weight(p, row, NULL);
    if (is_fetching) p->publisher_load += load;
    else p->publisher_load -= load < p->publisher_load ? load : p->publisher_load;
}

static void charge_list(plan_t *p, plan_row_t *row, const uint64_t *tokens, uint32_t count, bool is_fetching)
{
    for (uint32_t i = 0; i < count; i++) {
        plan_row_t *source = plan_row(p, tokens[i]);
        bool is_publisher = tokens[i] == plan_server(p);
        if (!source && !i && is_publisher) charge_publisher(p, row, is_fetching);
        if (!is_fetching) absent_take(&p->absent, tokens[i], row);
        else if (!source && !is_publisher && p->order != ORDER_OF_KEYS)
            absent_put(&p->absent, tokens[i], row);
        if (!source) continue; /* the publisher, or it is gone */
        bool is_counted = tokens == row->others && has_number(row->sources, row->source_count, tokens[i]);
        uint32_t load = i ? 0 : weight(p, row, source);
        if (is_fetching) {
            if (!is_counted) put_naming(row, source);
            source->load += load;
            source->station->load += load;
            continue;
        }
        /* Less, where it was taken out meanwhile, and takes part again. */
        uint32_t less = load < source->load ? load : source->load;
        source->load -= less;
        source->station->load -= less;
        if (load) plan_load_note_room(p, source->station);
    }
}

void plan_load_charge(plan_t *p, plan_row_t *row, bool is_fetching)
{
    const plan_row_t *first = row->source_count ? plan_row(p, row->sources[0]) : NULL;
    if (is_fetching) row->is_served_here = first && first->station == row->station;
    else take_names(row);
    charge_list(p, row, row->sources, row->source_count, is_fetching);
    charge_list(p, row, row->others, row->other_count, is_fetching);
}

/* Lists that name it stay while it is away, and while it moves. */
void plan_load_count_publisher(plan_t *p)
{
    uint64_t server = plan_server(p);
    p->publisher_load = 0;
    for (size_t i = 0; i < p->count; i++) {
        const plan_row_t *row = p->rows[i];
        if (row->fetch < PLAN_FETCHING) continue;
        if (server && row->source_count && row->sources[0] == server) charge_publisher(p, row, true);
        if (server && row->other_count && row->others[0] == server) charge_publisher(p, row, true);
    }
}

bool plan_is_first(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    return row && row->load > 0;
}
