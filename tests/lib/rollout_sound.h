/* SPDX-License-Identifier: Apache-2.0 */
/* tests/lib/rollout_sound.h: the tally, the groups and the plan of each track are what counting all of its
 * copies again gives. */
#ifndef TESTS_ROLLOUT_SOUND_H
#define TESTS_ROLLOUT_SOUND_H

#include "broker/rollout/track.h"
#include "core/clock.h"

#include <string.h>

static inline uint32_t complete_groups(const track_t *t)
{
    uint32_t complete = 0;
    for (size_t i = 0; i < t->group_count; i++) {
        const group_t *g = t->groups[i];
        uint32_t there = 0;
        for (uint32_t rank = 0; rank < g->ranks; rank++) {
            bool has_it = false;
            for (size_t k = 0; !has_it && k < t->copy_count; k++)
                has_it = t->copies[k]->group == g && t->copies[k]->rank == rank && copy_holds(t->copies[k]);
            there += has_it;
        }
        complete += there == g->ranks;
    }
    return complete;
}

/* Each group is there for its copies, and only as long as it has one. */
static inline bool groups_are_sound(const track_t *t)
{
    for (size_t i = 0; i < t->group_count; i++) {
        uint32_t copies = 0;
        for (size_t k = 0; k < t->copy_count; k++) copies += t->copies[k]->group == t->groups[i];
        if (!copies || copies != t->groups[i]->copies) return false;
    }
    return true;
}

/* One that waits has another one of its place that fetches; and what woke it was seen. */
static inline bool waits_are_sound(const track_t *t)
{
    uint32_t waiting = 0;
    for (size_t i = 0; i < t->plan.count; i++) {
        const plan_row_t *row = t->plan.rows[i];
        if (row->fetch != PLAN_WAITING) continue;
        if (row->source_count || !plan_waits_for(&t->plan, row->token)) return false;
        waiting++;
    }
    return waiting == t->plan.waiting_count && (track_is_ended(t) || !t->plan.woken_count);
}

static inline size_t station_index(const plan_t *p, const plan_station_t *station)
{
    size_t i = 0;
    while (p->chain[i] != station) i++;
    return i;
}

/* The way of a half of the chunks to this row, over first sources, ends. */
static inline bool way_ends(const plan_t *p, const plan_row_t *row, uint32_t half)
{
    for (size_t steps = 0; row && row->has == PLAN_PARTS && row->fetch >= PLAN_FETCHING; steps++) {
        bool is_other = row->half && row->half != half;
        if (steps > p->count) return false;
        if (!(is_other ? row->other_count : row->source_count)) return true;
        row = plan_row(p, is_other ? row->others[0] : row->sources[0]);
    }
    return true;
}

/* No members wait for each other in a circle.  In a chain one that has not all bytes is named to later stations
 * alone. */
static inline bool lists_are_sound(const track_t *t)
{
    const plan_t *p = &t->plan;
    for (size_t i = 0; !track_is_ended(t) && i < p->count; i++) {
        const plan_row_t *row = p->rows[i];
        if (!way_ends(p, row, 1) || !way_ends(p, row, 2)) return false;
        if (row->half && p->shape == PLAN_STAR) return false;
        bool has_order = p->shape != PLAN_TWO_TREE && row->fetch >= PLAN_FETCHING;
        for (uint32_t k = 0; has_order && k < row->source_count + row->other_count; k++) {
            uint32_t count = row->source_count;
            const plan_row_t *source = plan_row(p, k < count ? row->sources[k] : row->others[k - count]);
            if (!source || source->has != PLAN_PARTS) continue;
            if (station_index(p, source->station) >= station_index(p, row->station)) return false;
        }
    }
    return true;
}

static inline bool loads_are_sound(const plan_t *p)
{
    for (size_t i = 0; i < p->station_count; i++) {
        uint32_t load = 0;
        for (size_t k = 0; k < p->chain[i]->count; k++) load += p->chain[i]->rows[k]->load;
        if (load != p->chain[i]->load) return false;
    }
    return true;
}

static inline bool track_is_sound(const track_t *t)
{
    tally_t again = {0};
    size_t sources = 0;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        const plan_row_t *row = plan_row(&t->plan, c->token);
        tally_move(&again, NULL,
                   &(tallied_t){.state = c->state,
                                .is_eligible = c->is_eligible,
                                .has_reached = c->has_reached,
                                .is_spare = c->is_spare,
                                .is_ordered = c->switch_us != 0,
                                .is_out = copy_is_out(c)});
        again.units -= copy_holds(c) && c->group; /* counted below, as a whole */
        sources += copy_holds(c);
        if (copy_is_sent(c) && !(c->sent_us && copy_in_flight(c) && c->state >= COPY_ANNOUNCED)) return false;
        if ((c->token != 0) != (c->state != COPY_GONE) || (row != NULL) != (c->token != 0)) return false;
        if (row && row->copy != c) return false;
        if (c->state == COPY_FAILED && c->retry_us && t->retry_us == CLOCK_NEVER) return false;
        if (row && (row->has == PLAN_LOADING) != (c->state == COPY_ARRIVED && c->region.generation))
            return false;
        if (row && ((row->has == PLAN_WHOLE) != copy_holds(c) || (row->fetch && !copy_in_flight(c))))
            return false;
    }
    again.units += complete_groups(t);
    return !memcmp(&again, &t->tally, sizeof again) && sources == t->plan.source_count &&
           groups_are_sound(t) && waits_are_sound(t) && lists_are_sound(t) && loads_are_sound(&t->plan);
}

static inline bool rollout_is_sound(const rollout_t *ro)
{
    for (size_t i = 0; i < ro->adapter_count; i++)
        for (size_t k = 0; k < ro->adapters[i]->track_count; k++)
            if (!track_is_sound(ro->adapters[i]->tracks[k])) return false;
    return true;
}

#endif
