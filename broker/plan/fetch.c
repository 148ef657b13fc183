/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/plan/fetch.h"

#include "broker/plan/load.h"
#include "broker/plan/restored.h"
#include "broker/plan/stations.h"

bool plan_fetch_wake(plan_t *p, plan_station_t *station)
{
    bool has_waited = false;
    for (size_t i = 0; station && i < station->count; i++) {
        if (station->rows[i]->fetch != PLAN_WAITING) continue;
        has_waited = true;
        plan_fetch_set(p, station->rows[i], PLAN_WOKEN);
    }
    if (has_waited) plan_station_note_woken(p, station);
    return has_waited;
}

void plan_fetch_set(plan_t *p, plan_row_t *row, plan_fetch_t fetch)
{
    plan_fetch_t was = row->fetch;
    bool served = plan_serves(p, row);
    p->waiting_count += (fetch == PLAN_WAITING) - (was == PLAN_WAITING);
    p->woken_count += (fetch == PLAN_WOKEN) - (was == PLAN_WOKEN);
    if (fetch == PLAN_WOKEN) row->station->first_woken = 0;
    row->fetch = PLAN_NONE;
    bool has_ended = was == PLAN_FETCHING && fetch != PLAN_FETCHING;
    bool has_woken = has_ended && plan_fetch_wake(p, row->station);
    row->fetch = fetch;
    if (fetch == PLAN_FETCHING) plan_load_note_room(p, row->station);
    /* One that is stuck is named where there is no other one. */
    bool was_named = served || (was == PLAN_STUCK && fetch != PLAN_STUCK);
    if (was_named && !plan_serves(p, row)) plan_load_tear(p, row);
    if (has_woken && row->has != PLAN_WHOLE) plan_station_to_tail(p, row->station);
}

void plan_fetch_end(plan_t *p, plan_row_t *row)
{
    if (row->fetch >= PLAN_FETCHING) plan_load_charge(p, row, false);
    plan_fetch_set(p, row, PLAN_NONE);
}

/* Those behind it have the order that restored lists say while it fetches. */
void plan_done(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (row && row->fetch >= PLAN_FETCHING) plan_restored_arrange(p);
    if (row) plan_fetch_end(p, row);
}

void plan_stuck(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (!row || row->fetch != PLAN_FETCHING) return;
    plan_load_charge(p, row, false);
    plan_fetch_set(p, row, PLAN_STUCK);
    plan_load_charge(p, row, true);
}

/* The source is of another place than the row: the bytes come over the network. */
static bool is_afar(const plan_t *p, const plan_row_t *row, uint64_t token)
{
    const plan_row_t *source = plan_row(p, token);
    if (source) return source->station != row->station;
    return token && !plan_is_publishers_place(p, row->station->place);
}

static bool fetches_from_afar(const plan_t *p, const plan_row_t *row)
{
    return is_afar(p, row, plan_asked(p, row->sources, row->source_count)) ||
           is_afar(p, row, plan_asked(p, row->others, row->other_count));
}

const plan_row_t *plan_fetch_of_place(const plan_t *p, const plan_station_t *station, const plan_row_t *asker)
{
    const plan_row_t *first = NULL;
    for (size_t i = 0; station->place && i < station->count; i++) {
        const plan_row_t *row = station->rows[i];
        if (row->fetch != PLAN_FETCHING) continue;
        bool is_from_afar = fetches_from_afar(p, row);
        if (is_from_afar && row != asker) return row;
        if (is_from_afar || !first) first = row;
    }
    return first;
}

bool plan_fetch_is_served_here(const plan_t *p, const plan_row_t *row, const plan_asker_t *asker)
{
    const plan_station_t *station = row->station;
    if (plan_is_publishers_place(p, station->place) &&
        !has_number(asker->lost, asker->lost_count, plan_server(p)))
        return true;
    for (size_t i = 0; i < station->count; i++) {
        const plan_row_t *other = station->rows[i];
        bool has_it = other->has != PLAN_PARTS;
        if (other != row && has_it && !has_number(asker->lost, asker->lost_count, other->token)) return true;
    }
    return false;
}

/* Costs as much as there are members in the places concerned, however many others there are. */
uint64_t plan_next_woken(plan_t *p)
{
    for (plan_station_t *station; (station = p->woken) != NULL; plan_station_forget_woken(p, station))
        while (station->first_woken < station->count) {
            plan_row_t *row = station->rows[station->first_woken++];
            if (row->fetch != PLAN_WOKEN) continue;
            plan_fetch_set(p, row, PLAN_NONE);
            return row->token;
        }
    return 0;
}

bool plan_fetches(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    return row && row->fetch == PLAN_FETCHING && row->source_count + row->other_count;
}

bool plan_is_idle(const plan_t *p)
{
    bool is_idle = true;
    for (size_t i = 0; i < p->count; i++) is_idle &= p->rows[i]->fetch < PLAN_FETCHING;
    return is_idle;
}

bool plan_is_second(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    for (size_t i = 0; row && row->station->place && i < row->station->count; i++)
        if (row->station->rows[i] != row && row->station->rows[i]->fetch == PLAN_STUCK) return true;
    return false;
}

bool plan_is_awaited(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = p->waiting_count ? plan_row(p, token) : NULL;
    if (!row || row->fetch != PLAN_FETCHING) return false;
    for (size_t i = 0; i < row->station->count; i++)
        if (row->station->rows[i]->fetch == PLAN_WAITING) return true;
    return false;
}

uint64_t plan_waits_for(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = p->waiting_count ? plan_row(p, token) : NULL;
    const plan_row_t *fetcher =
        row && row->fetch == PLAN_WAITING ? plan_fetch_of_place(p, row->station, NULL) : NULL;
    return fetcher ? fetcher->token : 0;
}

bool plan_is_at_place(const plan_t *p, uint64_t place)
{
    const plan_station_t *station = plan_place(p, place);
    bool is_there = plan_is_publishers_place(p, place);
    for (size_t i = 0; station && i < station->count; i++) is_there |= station->rows[i]->has != PLAN_PARTS;
    return is_there;
}
