/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/plan/plan.h"

#include "broker/plan/shape.h"
#include "broker/plan/sources.h"
#include "core/sorted.h"

#include <stdlib.h>
#include <string.h>

/* What a fast link (10 Gbit/s) carries in the time that a chunk takes through a busy relay (0.3 ms). */
#define HOP_BYTES 375000u
#define HOP_US 300u

/* ---- rows and stations ---- */

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

static void free_station(plan_station_t *station)
{
    free(station->key.text);
    free(station->rows);
    free(station);
}

void plan_fini(plan_t *p)
{
    for (size_t i = 0; i < p->count; i++) free_row(p->rows[i]);
    for (size_t i = 0; i < p->station_count; i++) free_station(p->chain[i]);
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

static int order_place(const void *station, const void *place)
{
    uint64_t a = ((const plan_station_t *)station)->place, b = *(const uint64_t *)place;
    return (a > b) - (a < b);
}

int plan_key_order(const plan_key_t *a, const plan_key_t *b)
{
    if (a->wave != b->wave) return a->wave < b->wave ? -1 : 1;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    if (a->blamed_ms != b->blamed_ms) return a->blamed_ms < b->blamed_ms ? -1 : 1;
    int order = strcmp(a->text, b->text);
    return order ? order : (a->token > b->token) - (a->token < b->token);
}

static int order_row(const void *row, const void *key)
{
    return plan_key_order(&((const plan_row_t *)row)->key, key);
}

static int order_station(const void *station, const void *key)
{
    return plan_key_order(&((const plan_station_t *)station)->key, key);
}

static int by_key(const void *a, const void *b)
{
    return plan_key_order(&(*(plan_station_t *const *)a)->key, &(*(plan_station_t *const *)b)->key);
}

plan_row_t *plan_row(const plan_t *p, uint64_t token)
{
    return sorted_find_number(p->rows, p->count, token, token_of);
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

/* Puts the station where its key belongs. */
static void insert_station(plan_t *p, plan_station_t *station)
{
    sorted_insert(p->chain, &p->station_count, plan_station_index(p, station), station);
    if (!plan_station_is_limited(station))
        sorted_insert(p->normals, &p->normal_count, plan_normal_index(p, station), station);
    p->blamed_count += plan_station_is_blamed(station);
}

/* Before its key changes, or it is blamed. */
static void take_out_station(plan_t *p, const plan_station_t *station)
{
    sorted_remove(p->chain, &p->station_count, plan_station_index(p, station));
    if (!plan_station_is_limited(station))
        sorted_remove(p->normals, &p->normal_count, plan_normal_index(p, station));
    p->blamed_count -= plan_station_is_blamed(station);
}

/* Many keys have changed. */
static void sort_stations(plan_t *p)
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

static plan_station_t *add_station(plan_t *p, uint64_t place, const plan_key_t *key)
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
    insert_station(p, station);
    bool found;
    if (place)
        sorted_insert(p->places, &p->place_count,
                      sorted_place(p->places, p->place_count, &place, order_place, &found), station);
    return station;
}

static void forget_room(plan_t *p, plan_station_t *station)
{
    for (plan_roomy_t *roomy = p->roomy; roomy < p->roomy + 2 && station->is_roomy; roomy++)
        for (size_t i = 0; i < roomy->count && station->is_roomy; i++) {
            if (roomy->stations[i] != station) continue;
            roomy->stations[i] = roomy->stations[--roomy->count];
            station->is_roomy = false;
        }
}

static void remove_station(plan_t *p, plan_station_t *station)
{
    plan_station_t **at = &p->woken;
    while (*at && *at != station) at = &(*at)->next;
    if (*at) *at = station->next;
    forget_room(p, station);
    p->put_last_count -= station->put_last != PUT_LAST_NOT;
    take_out_station(p, station);
    bool found;
    if (station->place)
        sorted_remove(p->places, &p->place_count,
                      sorted_place(p->places, p->place_count, &station->place, order_place, &found));
    free_station(station);
}

static void rename_absent(plan_t *p, uint64_t former_token, uint64_t token);

/* Before the rollout begins a place stands where its least row does, in whatever order its rows came. */
static bool move_station(plan_t *p, plan_station_t *station, const plan_key_t *key)
{
    char *text = strdup(key->text);
    if (!text) return false;
    take_out_station(p, station);
    free(station->key.text);
    station->key = *key;
    station->key.text = text;
    insert_station(p, station);
    return true;
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
    if (ok && is_new) station = add_station(p, m->place, &row->key);
    ok = ok && station && sorted_grow(&station->rows, station->count, &station->capacity);
    if (ok && !p->is_begun && plan_key_order(&row->key, &station->key) < 0)
        ok = move_station(p, station, &row->key);
    if (!ok) {
        if (is_new && station) remove_station(p, station);
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
    rename_absent(p, row->token, row->token); /* restored lists may name its present session */
    return true;
}

/* ---- lists that name a row ---- */

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

static bool names(const plan_row_t *row, uint64_t token)
{
    return has_number(row->sources, row->source_count, token) ||
           has_number(row->others, row->other_count, token);
}

/* A walk over the rows whose lists name one.  Those are right behind it, as a rule. */
typedef struct {
    const plan_row_t *source;
    uint32_t left;
    size_t at, station, row;
} naming_t;

static naming_t naming(const plan_t *p, const plan_row_t *source)
{
    size_t at = source->named ? plan_station_index(p, source->station) : 0;
    return (naming_t){.source = source, .left = source->named, .at = at + 1};
}

static plan_row_t *next_naming(const plan_t *p, naming_t *n)
{
    for (; n->left && n->station < p->station_count; n->station++, n->row = 0) {
        const plan_station_t *station = p->chain[(n->at + n->station) % p->station_count];
        while (n->row < station->count) {
            plan_row_t *row = station->rows[n->row++];
            if (row->fetch < PLAN_FETCHING || !names(row, n->source->token)) continue;
            n->left--;
            return row;
        }
    }
    return NULL;
}

static void tear(plan_t *p, const plan_row_t *source)
{
    naming_t n = naming(p, source);
    for (plan_row_t *row; (row = next_naming(p, &n)) != NULL;) {
        if (row->is_torn) continue;
        row->is_torn = true;
        p->torn[p->torn_count++] = row;
    }
}

/* Another member of the place begins anew: those that were behind its first one have more bytes, and need all
 * of their sources' rate.  What names members of the station was before it, and is behind it no more. */
static void to_tail(plan_t *p, plan_station_t *station)
{
    if (!p->is_begun) return;
    for (size_t i = 0; i < station->count; i++)
        if (station->rows[i]->has != PLAN_WHOLE) tear(p, station->rows[i]);
    take_out_station(p, station);
    station->key.wave = ++p->wave;
    station->number = 0;
    insert_station(p, station);
}

/* Stations that may serve more are found without a look at all of them.  Those that may not any more are left
 * out where they are found.  Those that may serve limited ones alone stand apart, or many of them would hide
 * the others. */
static void note_room(plan_t *p, plan_station_t *station)
{
    if (p->shape != PLAN_TWO_TREE || station->is_roomy) return;
    plan_roomy_t *roomy = &p->roomy[plan_station_is_limited(station)];
    station->is_roomy = true;
    roomy->stations[roomy->count++] = station;
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
static void tidy_roomy(plan_t *p)
{
    for (size_t of_limited = 0; of_limited < 2; of_limited++) {
        plan_roomy_t *roomy = &p->roomy[of_limited];
        for (size_t i = 0; i < roomy->count && i < PLAN_CANDIDATES;) {
            plan_station_t *station = roomy->stations[i];
            bool may_serve = may_serve_more(p, station),
                 is_here = plan_station_is_limited(station) == of_limited;
            if (may_serve && is_here) {
                i++;
                continue;
            }
            station->is_roomy = false;
            roomy->stations[i] = roomy->stations[--roomy->count];
            if (may_serve) note_room(p, station);
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
            source->named += !is_counted;
            source->load += load;
            source->station->load += load;
            continue;
        }
        /* Less, where it was taken out meanwhile, and takes part again. */
        uint32_t less = load < source->load ? load : source->load;
        source->named -= source->named && !is_counted;
        source->load -= less;
        source->station->load -= less;
        if (load) note_room(p, source->station);
    }
}

/* The lists of a fetch are load for those that they name, as long as the fetch lasts; most for the first,
 * which the worker reads from. */
static void charge(plan_t *p, plan_row_t *row, bool is_fetching)
{
    charge_list(p, row, row->sources, row->source_count, is_fetching);
    charge_list(p, row, row->others, row->other_count, is_fetching);
}

/* ---- fetches ---- */

static void set_fetch(plan_t *p, plan_row_t *row, plan_fetch_t fetch);
static void arrange(plan_t *p);

/* Those that wait in the place look again for what to do.  True: some do. */
static bool wake(plan_t *p, const plan_station_t *station)
{
    bool has_waited = false;
    for (size_t i = 0; station && i < station->count; i++) {
        if (station->rows[i]->fetch != PLAN_WAITING) continue;
        has_waited = true;
        set_fetch(p, station->rows[i], PLAN_WOKEN);
    }
    return has_waited;
}

/* Every change of a fetch goes through here, so that none that waits is forgotten, and no list that names the
 * row. */
static void set_fetch(plan_t *p, plan_row_t *row, plan_fetch_t fetch)
{
    plan_fetch_t was = row->fetch;
    bool served = plan_serves(p, row);
    p->waiting_count += (fetch == PLAN_WAITING) - (was == PLAN_WAITING);
    p->woken_count += (fetch == PLAN_WOKEN) - (was == PLAN_WOKEN);
    if (fetch == PLAN_WOKEN) row->station->first_woken = 0;
    if (fetch == PLAN_WOKEN && !row->station->is_listed) {
        row->station->is_listed = true;
        row->station->next = p->woken;
        p->woken = row->station;
    }
    row->fetch = PLAN_NONE;
    bool has_ended = was == PLAN_FETCHING && fetch != PLAN_FETCHING;
    bool has_woken = has_ended && wake(p, row->station);
    row->fetch = fetch;
    if (fetch == PLAN_FETCHING) note_room(p, row->station);
    /* One that is stuck is named where there is no other one. */
    bool was_named = served || (was == PLAN_STUCK && fetch != PLAN_STUCK);
    if (was_named && !plan_serves(p, row)) tear(p, row);
    if (has_woken && row->has != PLAN_WHOLE) to_tail(p, row->station);
}

/* Sources are an array in no order, and each row knows its place there.  So a source is added and removed
 * in constant time: the last one takes the place of the removed one. */
static void set_whole(plan_t *p, plan_row_t *row, bool is_whole)
{
    if ((row->has == PLAN_WHOLE) == is_whole) return;
    row->has = is_whole ? PLAN_WHOLE : PLAN_PARTS;
    if (is_whole) {
        row->source_at = (uint32_t)p->source_count;
        p->sources[p->source_count++] = row;
        note_room(p, row->station);
        wake(p, row->station);
        return;
    }
    plan_row_t *last = p->sources[--p->source_count];
    p->sources[row->source_at] = last;
    last->source_at = row->source_at;
}

static void end_fetch(plan_t *p, plan_row_t *row)
{
    if (row->fetch >= PLAN_FETCHING) charge(p, row, false);
    set_fetch(p, row, PLAN_NONE);
}

/* Those behind it have the order that restored lists say while it fetches. */
void plan_done(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (row && row->fetch >= PLAN_FETCHING) arrange(p);
    if (row) end_fetch(p, row);
}

void plan_stuck(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (!row || row->fetch != PLAN_FETCHING) return;
    charge(p, row, false);
    set_fetch(p, row, PLAN_STUCK);
    charge(p, row, true);
}

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
        if (row) return row->token;
    }
    return 0;
}

/* It is to get another list, behind all others. */
static void drop_lists(plan_t *p, const plan_station_t *station)
{
    plan_row_t *row = put_last_of(station);
    if (!row) return;
    charge(p, row, false);
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
    to_tail(p, station);
    for (size_t at = first ? first - 1 : 0; p->chain[at] != station; p->looks++)
        if (p->chain[at]->put_last) to_tail(p, p->chain[at]);
        else at++;
    /* It fetches from those that come last, too, as it will in the next version. */
    if (plan_station_is_limited(station)) return;
    take_out_station(p, station);
    station->put_last = PUT_LAST_DEMOTED;
    station->key.rank = PLAN_LIMITED;
    insert_station(p, station);
}

bool plan_demote(plan_t *p, uint64_t token)
{
    arrange(p);
    plan_row_t *row = plan_row(p, token);
    if (!row) return false;
    bool is_put_last = row->fetch >= PLAN_FETCHING && p->is_begun && !row->station->put_last;
    if (is_put_last) put_last(p, row->station);
    if (row->has != PLAN_WHOLE) return is_put_last;
    row->is_demoted = true;
    tear(p, row);
    return true;
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
    if (is_loading) wake(p, row->station);
    else tear(p, row);
}

static size_t missing_of(const plan_t *p, const uint64_t *tokens, uint32_t count)
{
    size_t missing = 0;
    for (uint32_t i = 0; i < count; i++) missing += tokens[i] != plan_server(p) && !plan_row(p, tokens[i]);
    return missing;
}

/* Lists that name it stay while it is away, and while it moves. */
static void count_publisher(plan_t *p)
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

void plan_publisher(plan_t *p, uint64_t token, publisher_state_t state, uint64_t place)
{
    uint64_t server = plan_server(p), former_place = p->publisher.place;
    p->publisher = (plan_publisher_t){state, token, place};
    if (plan_server(p) != server || place != former_place) count_publisher(p);
    if (plan_server(p)) wake(p, plan_place(p, place));
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
    end_fetch(p, row);
    if (was_whole && !plan_serves(p, row)) tear(p, row);
}

/* Its fetch goes on, and so do those from it.  One that had all bytes may be named by those before it, until
 * it has them again. */
bool plan_renew(plan_t *p, uint64_t token, uint64_t new_token)
{
    bool found;
    size_t at = place_of(p, token, &found);
    if (!found) return false;
    plan_row_t *row = p->rows[at];
    naming_t n = naming(p, row);
    for (plan_row_t *other; (other = next_naming(p, &n)) != NULL;)
        for (uint32_t i = 0; i < PLAN_SOURCES; i++) {
            if (i < other->source_count && other->sources[i] == token) other->sources[i] = new_token;
            if (i < other->other_count && other->others[i] == token) other->others[i] = new_token;
        }
    bool had_all = row->has != PLAN_PARTS;
    set_whole(p, row, false);
    row->has = PLAN_PARTS;
    row->is_demoted = false;
    sorted_remove(p->rows, &p->count, at);
    row->token = new_token;
    if (had_all) tear(p, row);
    sorted_insert(p->rows, &p->count, place_of(p, new_token, &found), row);
    return true;
}

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
    take_out_station(p, station);
    station->key.wave = 0;
    insert_station(p, station);
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
    set_fetch(p, row, PLAN_FETCHING);
    charge(p, row, true);
}

static void replace(uint64_t *tokens, uint32_t count, uint64_t token, uint64_t new_token)
{
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] == token) tokens[i] = new_token;
}

/* Its lists are restored ones, where those are not of this broker's making alone. */
static void rename_in(plan_t *p, plan_row_t *row, uint64_t former_token, uint64_t token)
{
    charge(p, row, false);
    replace(row->sources, row->source_count, former_token, token);
    replace(row->others, row->other_count, former_token, token);
    charge(p, row, true);
    if (p->order != ORDER_OF_KEYS) p->order = ORDER_UNKNOWN;
}

static void rename_absent(plan_t *p, uint64_t former_token, uint64_t token)
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
        if (row->fetch >= PLAN_FETCHING && names(row, former_token)) rename_in(p, row, former_token, token);
    }
    rename_absent(p, former_token, token);
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
        if (p->rows[i]->fetch >= PLAN_FETCHING) charge(p, p->rows[i], false);
    p->shape = shape;
    for (size_t i = 0; i < p->count; i++)
        if (p->rows[i]->fetch >= PLAN_FETCHING) charge(p, p->rows[i], true);
    for (size_t i = 0; i < p->station_count; i++) note_room(p, p->chain[i]);
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

/* Restored lists say which station is before which: that is the order of the chain, whatever it is by name.
 * Those that wait for a list are behind all.  Without memory it is left as it is, and tried again. */
static void arrange(plan_t *p)
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
    for (size_t i = 0; i < p->station_count && p->shape == PLAN_CHAIN; i++)
        if (has_no_list(p->chain[i])) p->chain[i]->key.wave = ++p->wave;
    if (p->shape == PLAN_CHAIN) sort_stations(p);
}

/* Restored lists that name it do so until they are mended, and it may come back. */
static void note_absent(plan_t *p, const plan_row_t *source)
{
    naming_t n = naming(p, source);
    for (plan_row_t *row; (row = next_naming(p, &n)) != NULL;) absent_put(&p->absent, source->token, row);
}

void plan_remove(plan_t *p, uint64_t token)
{
    bool found;
    size_t at = place_of(p, token, &found);
    if (!found) return;
    arrange(p); /* as in plan_done */
    plan_row_t *row = p->rows[at];
    plan_station_t *station = row->station;
    plan_loads(p, token, false);
    plan_have(p, token, false, 0);
    if (p->order != ORDER_OF_KEYS) note_absent(p, row);
    for (size_t i = 0; row->is_torn; i++)
        if (p->torn[i] == row) p->torn[i] = p->torn[--p->torn_count], row->is_torn = false;
    sorted_remove(p->rows, &p->count, at);
    sorted_remove(station->rows, &station->count,
                  sorted_place(station->rows, station->count, &row->key, order_row, &found));
    station->first_woken = 0;
    station->load -= row->load;
    p->last_resort_count -= plan_row_is_last_resort(row);
    free_row(row);
    if (station->count) note_room(p, station);
    else remove_station(p, station);
}

bool plan_is_first(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    return row && row->load > 0;
}

/* ---- one fetches for its place ---- */

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

/* The row that fetches for the others of the place: as a rule there is one; beside those that read from the
 * memory of another one of the place, it is the one that fetches over the network.  The asker is that only
 * where no other one does: it may have turned to another place by itself, as what it read from has gone.
 * NULL: none. */
static const plan_row_t *fetcher_of(const plan_t *p, const plan_station_t *station, const plan_row_t *asker)
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

/* One of its place can give the member the version without a network. */
static bool is_served_here(const plan_t *p, const plan_row_t *row, const plan_asker_t *asker)
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

bool plan_is_idle(const plan_t *p)
{
    bool is_idle = true;
    for (size_t i = 0; i < p->count; i++) is_idle &= p->rows[i]->fetch < PLAN_FETCHING;
    return is_idle;
}

bool plan_fetches(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    return row && row->fetch == PLAN_FETCHING && row->source_count + row->other_count;
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

uint64_t plan_in_place(const plan_t *p, uint64_t token, size_t i)
{
    const plan_row_t *row = plan_row(p, token);
    bool is_there = row && row->station->place && i < row->station->count;
    return is_there ? row->station->rows[i]->token : 0;
}

bool plan_is_at_place(const plan_t *p, uint64_t place)
{
    const plan_station_t *station = plan_place(p, place);
    bool is_there = plan_is_publishers_place(p, place);
    for (size_t i = 0; station && i < station->count; i++) is_there |= station->rows[i]->has != PLAN_PARTS;
    return is_there;
}

uint64_t plan_waits_for(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = p->waiting_count ? plan_row(p, token) : NULL;
    const plan_row_t *fetcher = row && row->fetch == PLAN_WAITING ? fetcher_of(p, row->station, NULL) : NULL;
    return fetcher ? fetcher->token : 0;
}

/* Costs as much as there are members in the places concerned, however many others there are. */
uint64_t plan_next_woken(plan_t *p)
{
    for (plan_station_t *station; (station = p->woken) != NULL;
         p->woken = station->next, station->is_listed = false)
        while (station->first_woken < station->count) {
            plan_row_t *row = station->rows[station->first_woken++];
            if (row->fetch != PLAN_WOKEN) continue;
            set_fetch(p, row, PLAN_NONE);
            return row->token;
        }
    return 0;
}

/* ---- lists ---- */

void plan_begin(plan_t *p) { p->is_begun = true; }

/* No list has to be kept, and the order is that of names again. */
void plan_begin_anew(plan_t *p)
{
    p->is_begun = false;
    p->wave = 0;
    for (size_t i = 0; i < p->station_count; i++) p->chain[i]->key.wave = 0;
    sort_stations(p);
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
        if (row->fetch >= PLAN_FETCHING) charge(p, row, false);
        plan_shape_lay(p, stations, count, i + 1);
        set_fetch(p, row, PLAN_FETCHING);
        charge(p, row, true);
    }
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
        tidy_roomy(p);
    }
    free(stations);
    for (size_t i = 0; i < p->station_count; i++)
        for (size_t k = 0; k < p->chain[i]->count; k++)
            if (p->chain[i]->rows[k]->has != PLAN_WHOLE) plan_make(p, p->chain[i]->rows[k]->token, NULL, 0);
}

/* The row's lists are made anew. */
static void make_lists(plan_t *p, plan_row_t *row, const plan_asker_t *asker)
{
    if (p->shape == PLAN_TWO_TREE) tidy_roomy(p);
    p->looks += plan_sources_make(p, row, asker);
}

/* The member's former fetch ends here: its load is taken off before sources are chosen again.  One that
 * fetched, and has no source now, may still have bytes that others lack. */
uint32_t plan_make(plan_t *p, uint64_t token, const uint64_t *lost, uint32_t lost_count)
{
    arrange(p);
    plan_row_t *row = plan_row(p, token);
    if (!row) return 0;
    if (row->fetch >= PLAN_FETCHING) charge(p, row, false);
    plan_asker_t asker = {token, row->station->place, lost, lost_count};
    const plan_row_t *fetcher = fetcher_of(p, row->station, row);
    if (fetcher && fetcher != row && !is_served_here(p, row, &asker)) {
        row->source_count = row->other_count = 0;
        set_fetch(p, row, PLAN_WAITING);
        return 0;
    }
    make_lists(p, row, &asker);
    asker.lost_count = 0;
    uint32_t count = row->source_count + row->other_count;
    if (!count && lost_count) make_lists(p, row, &asker); /* better one that failed once than none */
    count = row->source_count + row->other_count;
    if (count) set_fetch(p, row, PLAN_FETCHING);
    else if (row->fetch < PLAN_FETCHING) set_fetch(p, row, PLAN_NONE);
    charge(p, row, true);
    return count;
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
    arrange(p);
    const plan_row_t *row = plan_row(p, token);
    if (!row || row->fetch != PLAN_FETCHING || row->is_cut_off || p->shape == PLAN_STAR) return;
    plan_station_t *station = row->station;
    uint64_t server = plan_server(p);
    bool is_head = server && (is_all(row->sources, row->source_count, server) ||
                              is_all(row->others, row->other_count, server));
    bool may_go = is_head && !station->key.wave && !plan_is_publishers_place(p, station->place);
    if (may_go && is_followed(p, station)) to_tail(p, station);
}

/* The list is as good as it was: it began with another one than the publisher, or begins with one that has
 * all bytes, and its whole rate. */
static bool is_left(const plan_t *p, const uint64_t *before, uint32_t before_count, const uint64_t *tokens,
                    uint32_t count)
{
    if (!before_count || before[0] != plan_server(p)) return true;
    const plan_row_t *first = count ? plan_row(p, tokens[0]) : NULL;
    return first && first->has == PLAN_WHOLE && !plan_station_is_limited(first->station);
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
    arrange(p);
    const plan_row_t before = *row;
    plan_asker_t asker = {token, row->station->place, &server, 1};
    charge(p, row, false);
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
    charge(p, row, true);
    return has_left;
}

/* Those that were put last leave the choice of what has room to the others. */
uint64_t plan_next_torn(plan_t *p)
{
    if (p->torn_count) arrange(p);
    while (p->torn_count) {
        plan_row_t *row = p->torn[--p->torn_count];
        row->is_torn = false;
        if (row->fetch >= PLAN_FETCHING && plan_sources_is_torn(p, row)) return row->token;
    }
    return 0;
}

/* What was in the memory of its place is gone: one of those that held it there fetches, and the others
 * wait, so that one copy comes over the network. */
void plan_mend(plan_t *p, uint64_t token)
{
    arrange(p);
    plan_row_t *row = plan_row(p, token);
    if (!row) return;
    plan_asker_t asker = {.token = token, .place = row->station->place};
    const plan_row_t *fetcher = fetcher_of(p, row->station, row);
    if (fetcher && fetcher != row && row->fetch == PLAN_FETCHING && !is_served_here(p, row, &asker)) {
        plan_make(p, token, NULL, 0);
        return;
    }
    charge(p, row, false);
    bool is_spread = p->shape == PLAN_CHAIN && plan_station_is_last_resort(row->station);
    if (row->half || is_spread) make_lists(p, row, &asker);
    else plan_sources_mend(p, row, &asker);
    charge(p, row, true);
}
