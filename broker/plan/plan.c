/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/plan/plan.h"

#include "broker/plan/fetch.h"
#include "broker/plan/load.h"
#include "broker/plan/restored.h"
#include "broker/plan/shape.h"
#include "broker/plan/sources.h"
#include "broker/plan/stations.h"
#include "core/sorted.h"

#include <stdlib.h>
#include <string.h>

/* What a fast link (10 Gbit/s) carries in the time that a chunk takes through a busy relay (0.3 ms). */
#define HOP_BYTES 375000u
#define HOP_US 300u

/* ---- rows ---- */

/* Until the shape is chosen a source has all bytes. */
void plan_init(plan_t *p, uint64_t seed, plan_shape_t shape, uint64_t bytes)
{
    bool is_chain = shape == PLAN_CHAIN;
    *p = (plan_t){.seed = seed,
                  .wanted = shape,
                  .shape = is_chain ? PLAN_CHAIN : PLAN_STAR,
                  .bytes = bytes,
                  .hop_bytes = HOP_BYTES};
}

void plan_uplink(plan_t *p, uint64_t bytes_per_s)
{
    uint64_t hop_bytes = bytes_per_s * HOP_US / 1000000u;
    if (bytes_per_s && hop_bytes < p->hop_bytes) p->hop_bytes = hop_bytes;
}

static void free_row(plan_row_t *row)
{
    if (row) free(row->key.text);
    free(row);
}

void plan_fini(plan_t *p)
{
    for (size_t i = 0; i < p->count; i++) free_row(p->rows[i]);
    for (size_t i = 0; i < p->station_count; i++) plan_station_free(p->chain[i]);
    free(p->rows);
    free(p->sources);
    free(p->chain);
    free(p->normals);
    free(p->places);
    free(p->torn);
    absent_fini(&p->absent);
    for (size_t i = 0; i < 2; i++) free(p->roomy[i].stations);
    *p = (plan_t){0};
}

static uint64_t token_of(const void *row) { return ((const plan_row_t *)row)->token; }

/* Index of the row, or where it belongs. */
static size_t place_of(const plan_t *p, uint64_t token, bool *ret_found)
{
    return sorted_place_number(p->rows, p->count, token, token_of, ret_found);
}

static int order_row(const void *row, const void *key)
{
    return plan_key_order(&((const plan_row_t *)row)->key, key);
}

plan_row_t *plan_row(const plan_t *p, uint64_t token)
{
    return sorted_find_number(p->rows, p->count, token, token_of);
}

/* The zone comes before the name, so that the chain enters each zone once.  The byte between them is less
 * than any that is in a label. */
static char *key_text(const plan_member_t *m)
{
    size_t zone_bytes = strlen(m->zone), name_bytes = strlen(m->name) + 1;
    char *text = malloc(zone_bytes + 1 + name_bytes);
    if (!text) return NULL;
    memcpy(text, m->zone, zone_bytes);
    text[zone_bytes] = '\x01';
    memcpy(text + zone_bytes + 1, m->name, name_bytes);
    return text;
}

bool plan_add(plan_t *p, const plan_member_t *m)
{
    bool found;
    size_t at = place_of(p, m->token, &found);
    if (found) return true;
    plan_row_t *row = calloc(1, sizeof *row);
    plan_station_t *station = plan_place(p, m->place);
    bool is_new = !station;
    if (row)
        row->key = (plan_key_t){.wave = p->is_begun ? ++p->wave : 0,
                                .rank = m->is_last_resort ? PLAN_LAST_RESORT
                                        : m->is_limited   ? PLAN_LIMITED
                                                          : PLAN_NORMAL,
                                .blamed_ms = m->blamed_ms,
                                .text = key_text(m),
                                .token = m->token};
    /* Each row may become a source, or be torn: there is room for that from now on, so that what happens
     * later cannot fail. */
    bool ok = row && row->key.text && sorted_grow(&p->rows, p->count, &p->capacity) &&
              sorted_grow(&p->sources, p->count, &p->source_capacity) &&
              sorted_grow(&p->torn, p->count, &p->torn_capacity);
    if (ok && is_new) station = plan_station_add(p, m->place, &row->key);
    ok = ok && station && sorted_grow(&station->rows, station->count, &station->capacity);
    if (ok && !p->is_begun && plan_key_order(&row->key, &station->key) < 0)
        ok = plan_station_move(p, station, &row->key);
    if (!ok) {
        if (is_new && station) plan_station_remove(p, station);
        free_row(row);
        return false;
    }
    row->is_cut_off = m->is_cut_off;
    row->token = m->token;
    row->station = station;
    sorted_insert(p->rows, &p->count, at, row);
    sorted_insert(station->rows, &station->count,
                  sorted_place(station->rows, station->count, &row->key, order_row, &found), row);
    station->first_woken = 0;
    p->last_resort_count += plan_row_is_last_resort(row);
    plan_restored_rename(p, row->token, row->token); /* restored lists may name its present session */
    return true;
}

bool plan_serves(const plan_t *p, const plan_row_t *row)
{
    return row->has != PLAN_PARTS || (p->shape != PLAN_STAR && row->fetch == PLAN_FETCHING);
}

/* Where those before it have gone the worker turns to it by itself. */
uint64_t plan_asked(const plan_t *p, const uint64_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (plan_row(p, tokens[i]) || (tokens[i] && tokens[i] == plan_server(p))) return tokens[i];
    return 0;
}

/* ---- what a member and the publisher have ---- */

/* Sources are an array in no order, and each row knows its place there.  So a source is added and removed
 * in constant time: the last one takes the place of the removed one. */
static void set_whole(plan_t *p, plan_row_t *row, bool is_whole)
{
    if ((row->has == PLAN_WHOLE) == is_whole) return;
    row->has = is_whole ? PLAN_WHOLE : PLAN_PARTS;
    if (is_whole) {
        row->source_at = (uint32_t)p->source_count;
        p->sources[p->source_count++] = row;
        plan_load_note_room(p, row->station);
        plan_fetch_wake(p, row->station);
        return;
    }
    plan_row_t *last = p->sources[--p->source_count];
    p->sources[row->source_at] = last;
    last->source_at = row->source_at;
}

void plan_cut_off(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (row) row->is_cut_off = true;
}

/* Where it has them no more, those of its place that it served may be before it on the way of the chunks. */
void plan_loads(plan_t *p, uint64_t token, bool is_loading)
{
    plan_row_t *row = plan_row(p, token);
    if (!row || row->has == PLAN_WHOLE || (row->has == PLAN_LOADING) == is_loading) return;
    row->has = is_loading ? PLAN_LOADING : PLAN_PARTS;
    if (is_loading) plan_fetch_wake(p, row->station);
    else plan_load_tear(p, row);
}

void plan_publisher(plan_t *p, uint64_t token, publisher_state_t state, uint64_t place)
{
    uint64_t server = plan_server(p), former_place = p->publisher.place;
    p->publisher = (plan_publisher_t){state, token, place};
    if (plan_server(p) != server || place != former_place) plan_load_count_publisher(p);
    if (plan_server(p)) plan_fetch_wake(p, plan_place(p, place));
}

/* A member that has all of the bytes, or has lost them, fetches no more. */
void plan_have(plan_t *p, uint64_t token, bool is_whole, uint64_t rate)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return;
    bool was_whole = row->has == PLAN_WHOLE;
    row->rate = rate;
    if (is_whole && rate > p->best_rate) p->best_rate = rate;
    set_whole(p, row, is_whole);
    plan_fetch_end(p, row);
    if (was_whole && !plan_serves(p, row)) plan_load_tear(p, row);
}

/* Its fetch goes on, and so do those from it.  One that had all bytes may be named by those before it, until
 * it has them again. */
bool plan_renew(plan_t *p, uint64_t token, uint64_t new_token)
{
    bool found;
    size_t at = place_of(p, token, &found);
    if (!found) return false;
    plan_row_t *row = p->rows[at];
    for (const plan_naming_t *n = row->namings; n; n = n->next) {
        plan_row_t *other = n->row;
        for (uint32_t i = 0; i < other->source_count; i++)
            if (other->sources[i] == token) other->sources[i] = new_token;
        for (uint32_t i = 0; i < other->other_count; i++)
            if (other->others[i] == token) other->others[i] = new_token;
    }
    bool had_all = row->has != PLAN_PARTS;
    set_whole(p, row, false);
    row->has = PLAN_PARTS;
    row->is_demoted = false;
    sorted_remove(p->rows, &p->count, at);
    row->token = new_token;
    if (had_all) plan_load_tear(p, row);
    sorted_insert(p->rows, &p->count, place_of(p, new_token, &found), row);
    return true;
}

void plan_remove(plan_t *p, uint64_t token)
{
    bool found;
    size_t at = place_of(p, token, &found);
    if (!found) return;
    plan_restored_arrange(p); /* as in plan_done */
    plan_row_t *row = p->rows[at];
    plan_station_t *station = row->station;
    plan_loads(p, token, false);
    plan_have(p, token, false, 0);
    plan_restored_note_absent(p, row);
    plan_load_forget(row);
    for (size_t i = 0; row->is_torn; i++)
        if (p->torn[i] == row) p->torn[i] = p->torn[--p->torn_count], row->is_torn = false;
    sorted_remove(p->rows, &p->count, at);
    sorted_remove(station->rows, &station->count,
                  sorted_place(station->rows, station->count, &row->key, order_row, &found));
    station->first_woken = 0;
    station->load -= row->load;
    p->last_resort_count -= plan_row_is_last_resort(row);
    free_row(row);
    if (station->count) plan_load_note_room(p, station);
    else plan_station_remove(p, station);
}

/* ---- those that were put last ---- */

/* The row of the station that fetches, where it was put last; NULL: none. */
static plan_row_t *put_last_of(const plan_station_t *station)
{
    for (size_t i = 0; station->put_last && i < station->count; i++)
        if (station->rows[i]->fetch >= PLAN_FETCHING) return station->rows[i];
    return NULL;
}

/* Index of the first station that was put last.  Behind these are only those that have come since, as a
 * rule. */
static size_t first_put_last(plan_t *p)
{
    size_t at = p->station_count;
    for (size_t left = p->put_last_count; left; p->looks++) left -= p->chain[--at]->put_last != PUT_LAST_NOT;
    return at;
}

uint64_t plan_put_last(plan_t *p, size_t *at)
{
    if (!*at) *at = first_put_last(p);
    for (; *at < p->station_count; p->looks++) {
        const plan_row_t *row = put_last_of(p->chain[(*at)++]);
        if (row && !row->source_count && !row->other_count) return row->token;
    }
    return 0;
}

/* It is to get another list, behind all others. */
static void drop_lists(plan_t *p, const plan_station_t *station)
{
    plan_row_t *row = put_last_of(station);
    if (!row) return;
    plan_load_charge(p, row, false);
    row->source_count = row->other_count = 0;
}

/* It goes behind all others, and those that were put last before go behind it: as a rule these are the reason
 * for what it was blamed for.  The stations that it served have room where it had its place: there is as much
 * as they need, and none sends more than all bytes. */
static void put_last(plan_t *p, plan_station_t *station)
{
    size_t first = first_put_last(p);
    for (size_t at = first; at < p->station_count; at++) drop_lists(p, p->chain[at]);
    station->put_last = PUT_LAST_LIMITED;
    p->put_last_count++;
    drop_lists(p, station);
    plan_station_to_tail(p, station);
    for (size_t at = first ? first - 1 : 0; p->chain[at] != station; p->looks++)
        if (p->chain[at]->put_last) plan_station_to_tail(p, p->chain[at]);
        else at++;
    /* It fetches from those that come last, too, as it will in the next version. */
    if (plan_station_is_limited(station)) return;
    plan_station_take(p, station);
    station->put_last = PUT_LAST_DEMOTED;
    station->key.rank = PLAN_LIMITED;
    plan_station_put(p, station);
}

bool plan_demote(plan_t *p, uint64_t token)
{
    plan_restored_arrange(p);
    plan_row_t *row = plan_row(p, token);
    if (!row) return false;
    bool is_put_last = row->fetch >= PLAN_FETCHING && p->is_begun && !row->station->put_last;
    if (is_put_last) put_last(p, row->station);
    if (row->has != PLAN_WHOLE) return is_put_last;
    row->is_demoted = true;
    plan_load_tear(p, row);
    return true;
}

/* ---- lists ---- */

void plan_begin(plan_t *p) { p->is_begun = true; }

/* No list has to be kept, and the order is that of names again. */
void plan_begin_anew(plan_t *p)
{
    p->is_begun = false;
    p->wave = p->begun_wave = 0;
    for (size_t i = 0; i < p->station_count; i++) p->chain[i]->key.wave = 0;
    plan_stations_sort(p);
}

/* Those with a limited rate serve later ones alone, as those that join do: what is before them is found
 * without a look at the way of their bytes, which may be long. */
static void put_behind_trees(plan_t *p)
{
    uint32_t wave = 0;
    for (size_t i = 0; i < p->station_count; i++)
        if (wave || plan_station_is_limited(p->chain[i])) p->chain[i]->key.wave = ++wave;
    if (wave > p->wave) p->wave = wave;
}

/* The trees are laid over the stations, in the order of the chain. */
static void lay_trees(plan_t *p, plan_station_t **stations, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        plan_row_t *row = plan_shape_head(stations[i]);
        if (row->fetch >= PLAN_FETCHING) plan_load_charge(p, row, false);
        plan_shape_lay(p, stations, count, i + 1);
        plan_fetch_set(p, row, PLAN_FETCHING);
        plan_load_charge(p, row, true);
    }
}

/* The row's lists are made anew. */
static void make_lists(plan_t *p, plan_row_t *row, const plan_asker_t *asker)
{
    if (p->shape == PLAN_TWO_TREE) plan_load_tidy_roomy(p);
    plan_sources_make(p, row, asker);
}

/* The member's former fetch ends here: its load is taken off before sources are chosen again.  One that
 * fetched, and has no source now, may still have bytes that others lack. */
static uint32_t make(plan_t *p, plan_row_t *row, plan_asker_t asker)
{
    bool has_lost = asker.lost_count > 0;
    if (row->fetch >= PLAN_FETCHING) plan_load_charge(p, row, false);
    const plan_row_t *fetcher = plan_fetch_of_place(p, row->station, row);
    if (fetcher && fetcher != row && !plan_fetch_is_served_here(p, row, &asker)) {
        row->source_count = row->other_count = 0;
        plan_fetch_set(p, row, PLAN_WAITING);
        return 0;
    }
    make_lists(p, row, &asker);
    asker.lost_count = 0;
    uint32_t count = row->source_count + row->other_count;
    if (!count && has_lost) make_lists(p, row, &asker); /* better one that failed once than none */
    count = row->source_count + row->other_count;
    if (count) plan_fetch_set(p, row, PLAN_FETCHING);
    else if (row->fetch < PLAN_FETCHING) plan_fetch_set(p, row, PLAN_NONE);
    plan_load_charge(p, row, true);
    return count;
}

/* Where memory lacks, it is a chain. */
void plan_make_all(plan_t *p)
{
    size_t count = plan_shape_stations(p, NULL);
    plan_shape_t shape = p->is_begun ? plan_shape_choose(p, count) : p->shape;
    plan_station_t **stations = shape == PLAN_TWO_TREE ? calloc(count, sizeof(plan_station_t *)) : NULL;
    if (stations) plan_shape_stations(p, stations);
    uint64_t looks = stations ? plan_shape_number(stations, count) : 0;
    bool has_turns = looks > 0;
    p->looks += looks;
    p->shape = shape == PLAN_TWO_TREE && !has_turns ? PLAN_CHAIN : shape;
    if (has_turns) {
        p->tree_count = count;
        put_behind_trees(p);
        lay_trees(p, stations, count);
        plan_load_tidy_roomy(p);
    }
    free(stations);
    for (size_t i = 0; i < p->station_count; i++)
        for (size_t k = 0; k < p->chain[i]->count; k++) {
            plan_row_t *row = p->chain[i]->rows[k];
            if (row->has != PLAN_WHOLE)
                make(p, row, (plan_asker_t){.token = row->token, .place = row->station->place});
        }
}

/* None of its place fetches, or has the bytes. */
static bool begins_anew(const plan_t *p, const plan_row_t *row, const plan_asker_t *asker)
{
    return row->fetch < PLAN_FETCHING && row->has == PLAN_PARTS &&
           !plan_fetch_of_place(p, row->station, row) && !plan_fetch_is_served_here(p, row, asker);
}

/* It begins behind those that have begun: they have more bytes, and need all of their sources' rate.  So
 * several that begin in one turn, in any order, are a chain. */
static void begin_behind(plan_t *p, plan_station_t *station)
{
    if (!station->key.wave || station->key.wave < p->begun_wave) plan_station_to_tail(p, station);
    p->begun_wave = station->key.wave;
}

uint32_t plan_make(plan_t *p, uint64_t token, const uint64_t *lost, uint32_t lost_count)
{
    plan_restored_arrange(p);
    plan_row_t *row = plan_row(p, token);
    if (!row) return 0;
    plan_asker_t asker = {token, row->station->place, lost, lost_count};
    if (begins_anew(p, row, &asker)) begin_behind(p, row->station);
    return make(p, row, asker);
}

/* A member of another station fetches, and could have this one behind it. */
static bool is_followed(const plan_t *p, const plan_station_t *station)
{
    for (size_t i = 0; i < p->station_count; i++) {
        const plan_station_t *other = p->chain[i];
        if (other == station || plan_is_publishers_place(p, other->place)) continue;
        for (size_t k = 0; k < other->count; k++) {
            const plan_row_t *row = other->rows[k];
            if (row->fetch == PLAN_FETCHING && !row->is_cut_off && !plan_row_is_last_resort(row)) return true;
        }
    }
    return false;
}

static bool is_all(const uint64_t *tokens, uint32_t count, uint64_t token)
{
    return count == 1 && tokens[0] == token;
}

/* Once in a rollout, so that the heads do not go round where the publisher itself stands still. */
void plan_give_way(plan_t *p, uint64_t token)
{
    plan_restored_arrange(p);
    const plan_row_t *row = plan_row(p, token);
    if (!row || row->fetch != PLAN_FETCHING || row->is_cut_off || p->shape == PLAN_STAR) return;
    plan_station_t *station = row->station;
    uint64_t server = plan_server(p);
    bool is_head = server && (is_all(row->sources, row->source_count, server) ||
                              is_all(row->others, row->other_count, server));
    bool may_go = is_head && !station->key.wave && !plan_is_publishers_place(p, station->place);
    if (may_go && is_followed(p, station)) plan_station_to_tail(p, station);
}

/* The list is as good as it was: it began with another one than the publisher, or begins with one that has
 * all bytes, and its whole rate, and does not send by the publisher's uplink. */
static bool is_left(const plan_t *p, const uint64_t *before, uint32_t before_count, const uint64_t *tokens,
                    uint32_t count)
{
    if (!before_count || before[0] != plan_server(p)) return true;
    const plan_row_t *first = count ? plan_row(p, tokens[0]) : NULL;
    return first && first->has == PLAN_WHOLE && !plan_station_is_limited(first->station) &&
           !plan_is_publishers_place(p, first->station->place);
}

bool plan_leave_publisher(plan_t *p, uint64_t token)
{
    uint64_t server = plan_server(p);
    plan_row_t *row = server && p->source_count ? plan_row(p, token) : NULL;
    if (!row || row->fetch < PLAN_FETCHING || p->shape == PLAN_STAR || row->is_cut_off ||
        plan_is_publishers_place(p, row->station->place))
        return false;
    bool is_of_it =
        (row->source_count && row->sources[0] == server) || (row->other_count && row->others[0] == server);
    if (!is_of_it) return false;
    plan_restored_arrange(p);
    const plan_row_t before = *row;
    plan_asker_t asker = {token, row->station->place, &server, 1};
    plan_load_charge(p, row, false);
    make_lists(p, row, &asker);
    bool has_left = is_left(p, before.sources, before.source_count, row->sources, row->source_count) &&
                    is_left(p, before.others, before.other_count, row->others, row->other_count);
    /* It has all bytes, and is there where the other one goes. */
    if (has_left && row->source_count == 1) row->sources[row->source_count++] = server;
    if (has_left && row->other_count == 1) row->others[row->other_count++] = server;
    if (!has_left) {
        memcpy(row->sources, before.sources, sizeof before.sources);
        memcpy(row->others, before.others, sizeof before.others);
        row->source_count = before.source_count;
        row->other_count = before.other_count;
        row->half = before.half;
    }
    plan_load_charge(p, row, true);
    return has_left;
}

/* Those that were put last leave the choice of what has room to the others. */
uint64_t plan_next_torn(plan_t *p)
{
    if (p->torn_count) plan_restored_arrange(p);
    while (p->torn_count) {
        plan_row_t *row = p->torn[--p->torn_count];
        row->is_torn = false;
        if (row->fetch >= PLAN_FETCHING && plan_sources_is_torn(p, row)) return row->token;
    }
    return 0;
}

/* What it held in the memory of its place is gone: as the others that held it there, it looks again for what
 * to do.  So one of them fetches, behind all others, and one copy comes over the network. */
static bool has_lost_place(const plan_t *p, const plan_row_t *row, const plan_asker_t *asker)
{
    return row->is_served_here && row->fetch == PLAN_FETCHING && !plan_fetch_is_served_here(p, row, asker);
}

void plan_mend(plan_t *p, uint64_t token)
{
    plan_restored_arrange(p);
    plan_row_t *row = plan_row(p, token);
    if (!row || row->fetch < PLAN_FETCHING) return;
    plan_asker_t asker = {.token = token, .place = row->station->place};
    plan_load_charge(p, row, false);
    if (has_lost_place(p, row, &asker)) {
        row->source_count = row->other_count = 0;
        plan_fetch_set(p, row, PLAN_WAITING);
        plan_fetch_wake(p, row->station);
        return;
    }
    bool is_spread = p->shape == PLAN_CHAIN && plan_station_is_last_resort(row->station);
    if (row->half || is_spread) make_lists(p, row, &asker);
    else plan_sources_mend(p, row, &asker);
    plan_load_charge(p, row, true);
}
