/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/plan/stations.h"

#include "broker/plan/load.h"
#include "core/sorted.h"

#include <stdlib.h>
#include <string.h>

int plan_key_order(const plan_key_t *a, const plan_key_t *b)
{
    if (a->wave != b->wave) return a->wave < b->wave ? -1 : 1;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    if (a->blamed_ms != b->blamed_ms) return a->blamed_ms < b->blamed_ms ? -1 : 1;
    int order = strcmp(a->text, b->text);
    return order ? order : (a->token > b->token) - (a->token < b->token);
}

static int order_place(const void *station, const void *place)
{
    uint64_t a = ((const plan_station_t *)station)->place, b = *(const uint64_t *)place;
    return (a > b) - (a < b);
}

static int order_station(const void *station, const void *key)
{
    return plan_key_order(&((const plan_station_t *)station)->key, key);
}

static int by_key(const void *a, const void *b)
{
    return plan_key_order(&(*(plan_station_t *const *)a)->key, &(*(plan_station_t *const *)b)->key);
}

plan_station_t *plan_place(const plan_t *p, uint64_t place)
{
    return place ? sorted_find(p->places, p->place_count, &place, order_place) : NULL;
}

size_t plan_station_index(const plan_t *p, const plan_station_t *station)
{
    bool found;
    return sorted_place(p->chain, p->station_count, &station->key, order_station, &found);
}

size_t plan_normal_index(const plan_t *p, const plan_station_t *station)
{
    bool found;
    return sorted_place(p->normals, p->normal_count, &station->key, order_station, &found);
}

void plan_station_put(plan_t *p, plan_station_t *station)
{
    sorted_insert(p->chain, &p->station_count, plan_station_index(p, station), station);
    if (!plan_station_is_limited(station))
        sorted_insert(p->normals, &p->normal_count, plan_normal_index(p, station), station);
    p->blamed_count += plan_station_is_blamed(station);
}

void plan_station_take(plan_t *p, const plan_station_t *station)
{
    sorted_remove(p->chain, &p->station_count, plan_station_index(p, station));
    if (!plan_station_is_limited(station))
        sorted_remove(p->normals, &p->normal_count, plan_normal_index(p, station));
    p->blamed_count -= plan_station_is_blamed(station);
}

void plan_stations_sort(plan_t *p)
{
    if (p->station_count) qsort(p->chain, p->station_count, sizeof(plan_station_t *), by_key);
    if (p->normal_count) qsort(p->normals, p->normal_count, sizeof(plan_station_t *), by_key);
}

/* Each station may be of normal rank, and become roomy: there is memory for that from now on. */
static bool grow_chain(plan_t *p)
{
    size_t before = p->station_capacity;
    if (!sorted_grow(&p->chain, p->station_count, &p->station_capacity)) return false;
    if (p->station_capacity == before) return true;
    plan_station_t ***lists[] = {&p->normals, &p->roomy[0].stations, &p->roomy[1].stations};
    bool is_grown = true;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        plan_station_t **grown = realloc(*lists[i], p->station_capacity * sizeof *grown);
        if (grown) *lists[i] = grown;
        is_grown &= grown != NULL;
    }
    if (!is_grown) p->station_capacity = before;
    return is_grown;
}

void plan_station_free(plan_station_t *station)
{
    free(station->key.text);
    free(station->rows);
    free(station);
}

plan_station_t *plan_station_add(plan_t *p, uint64_t place, const plan_key_t *key)
{
    plan_station_t *station = calloc(1, sizeof *station);
    char *text = strdup(key->text);
    if (!station || !text || !grow_chain(p) ||
        (place && !sorted_grow(&p->places, p->place_count, &p->place_capacity))) {
        free(station);
        free(text);
        return NULL;
    }
    station->place = place;
    station->key = *key;
    station->key.text = text;
    plan_station_put(p, station);
    bool found;
    if (place)
        sorted_insert(p->places, &p->place_count,
                      sorted_place(p->places, p->place_count, &place, order_place, &found), station);
    return station;
}

void plan_station_forget_woken(plan_t *p, plan_station_t *station)
{
    if (!station->is_listed) return;
    plan_station_t *before = NULL;
    for (plan_station_t *at = p->woken; at != station; at = at->next) before = at;
    if (before) before->next = station->next;
    else p->woken = station->next;
    if (p->last_woken == station) p->last_woken = before;
    station->is_listed = false;
}

/* One that begins anew goes to the tail as it is woken.  In that order each finds the one before it fetching,
 * however many begin anew in one turn; else all would take one and the same place as their source. */
void plan_station_note_woken(plan_t *p, plan_station_t *station)
{
    plan_station_forget_woken(p, station);
    if (p->woken) p->last_woken->next = station;
    else p->woken = station;
    p->last_woken = station;
    station->next = NULL;
    station->is_listed = true;
}

void plan_station_remove(plan_t *p, plan_station_t *station)
{
    plan_station_forget_woken(p, station);
    plan_load_forget_room(p, station);
    p->put_last_count -= station->put_last != PUT_LAST_NOT;
    plan_station_take(p, station);
    bool found;
    if (station->place)
        sorted_remove(p->places, &p->place_count,
                      sorted_place(p->places, p->place_count, &station->place, order_place, &found));
    plan_station_free(station);
}

/* Before the rollout begins a place stands where its least row does, in whatever order its rows came. */
bool plan_station_move(plan_t *p, plan_station_t *station, const plan_key_t *key)
{
    char *text = strdup(key->text);
    if (!text) return false;
    plan_station_take(p, station);
    free(station->key.text);
    station->key = *key;
    station->key.text = text;
    plan_station_put(p, station);
    return true;
}

/* Another member of the place begins anew: those that were behind its first one have more bytes, and need all
 * of their sources' rate.  What names members of the station was before it, and is behind it no more. */
void plan_station_to_tail(plan_t *p, plan_station_t *station)
{
    if (!p->is_begun) return;
    for (size_t i = 0; i < station->count; i++)
        if (station->rows[i]->has != PLAN_WHOLE) plan_load_tear(p, station->rows[i]);
    plan_station_take(p, station);
    station->key.wave = ++p->wave;
    station->number = 0;
    plan_station_put(p, station);
}

uint64_t plan_in_place(const plan_t *p, uint64_t token, size_t i)
{
    const plan_row_t *row = plan_row(p, token);
    bool is_there = row && row->station->place && i < row->station->count;
    return is_there ? row->station->rows[i]->token : 0;
}
