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

/* Until the shape is chosen, and for good after a restart of the broker, a source has all bytes.  Which shape
 * was chosen before is not known then, and two members of which one began with the one and one with the other
 * might wait for each other in a circle. */
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
    free(p->places);
    free(p->torn);
    free(p->roomy);
    *p = (plan_t){0};
}

static int order_token(const void *row, const void *token)
{
    uint64_t a = ((const plan_row_t *)row)->token, b = *(const uint64_t *)token;
    return (a > b) - (a < b);
}

static int order_place(const void *station, const void *place)
{
    uint64_t a = ((const plan_station_t *)station)->place, b = *(const uint64_t *)place;
    return (a > b) - (a < b);
}

int plan_key_order(const plan_key_t *a, const plan_key_t *b)
{
    if (a->wave != b->wave) return a->wave < b->wave ? -1 : 1;
    if (a->text[0] == b->text[0] && a->blamed_ms != b->blamed_ms) return a->blamed_ms < b->blamed_ms ? -1 : 1;
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

plan_row_t *plan_row(const plan_t *p, uint64_t token)
{
    return sorted_find(p->rows, p->count, &token, order_token);
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

/* The zone comes before the name, so that the chain enters each zone once.  The byte between them is less
 * than any that is in a label. */
static char *key_text(const plan_member_t *m)
{
    size_t zone_bytes = strlen(m->zone), name_bytes = strlen(m->name) + 1;
    char *text = malloc(1 + zone_bytes + 1 + name_bytes);
    if (!text) return NULL;
    text[0] = m->is_leaf ? '2' : m->is_limited ? '1' : '0';
    memcpy(text + 1, m->zone, zone_bytes);
    text[1 + zone_bytes] = '\x01';
    memcpy(text + 2 + zone_bytes, m->name, name_bytes);
    return text;
}

/* Puts the station where its key belongs. */
static void insert_station(plan_t *p, plan_station_t *station)
{
    sorted_insert(p->chain, &p->station_count, plan_station_index(p, station), station);
}

/* Each station may become roomy: there is memory for that from now on. */
static bool grow_chain(plan_t *p)
{
    size_t before = p->station_capacity;
    if (!sorted_grow(&p->chain, p->station_count, &p->station_capacity)) return false;
    if (p->station_capacity == before) return true;
    plan_station_t **roomy = realloc(p->roomy, p->station_capacity * sizeof *roomy);
    if (roomy) p->roomy = roomy;
    else p->station_capacity = before;
    return roomy != NULL;
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

static void remove_station(plan_t *p, plan_station_t *station)
{
    plan_station_t **at = &p->woken;
    while (*at && *at != station) at = &(*at)->next;
    if (*at) *at = station->next;
    for (size_t i = 0; station->is_roomy; i++)
        if (p->roomy[i] == station) p->roomy[i] = p->roomy[--p->roomy_count], station->is_roomy = false;
    sorted_remove(p->chain, &p->station_count, plan_station_index(p, station));
    bool found;
    if (station->place)
        sorted_remove(p->places, &p->place_count,
                      sorted_place(p->places, p->place_count, &station->place, order_place, &found));
    free_station(station);
}

/* Before the rollout begins a place stands where its least row does, in whatever order its rows came. */
static bool move_station(plan_t *p, plan_station_t *station, const plan_key_t *key)
{
    char *text = strdup(key->text);
    if (!text) return false;
    sorted_remove(p->chain, &p->station_count, plan_station_index(p, station));
    free(station->key.text);
    station->key = *key;
    station->key.text = text;
    insert_station(p, station);
    return true;
}

bool plan_add(plan_t *p, const plan_member_t *m)
{
    bool found;
    size_t at = sorted_place(p->rows, p->count, &m->token, order_token, &found);
    if (found) return true;
    plan_row_t *row = calloc(1, sizeof *row);
    plan_station_t *station = plan_place(p, m->place);
    bool is_new = !station;
    if (row) row->key = (plan_key_t){p->is_begun ? ++p->wave : 0, m->blamed_ms, key_text(m), m->token};
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
    return true;
}

/* ---- lists that name a row ---- */

uint32_t plan_station_load(const plan_station_t *station)
{
    uint32_t load = 0;
    for (size_t i = 0; i < station->count; i++) load += station->rows[i]->load;
    return load;
}

bool plan_serves(const plan_t *p, const plan_row_t *row)
{
    return row->has != PLAN_PARTS || (p->shape != PLAN_STAR && row->fetch == PLAN_FETCHING);
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
    sorted_remove(p->chain, &p->station_count, plan_station_index(p, station));
    station->key.wave = ++p->wave;
    insert_station(p, station);
}

/* Stations that may serve more are found without a look at all of them.  Those that may not any more are left
 * out where they are found. */
static void note_room(plan_t *p, plan_station_t *station)
{
    if (p->shape != PLAN_TWO_TREE || station->is_roomy) return;
    station->is_roomy = true;
    p->roomy[p->roomy_count++] = station;
}

/* Of the first ones, which are looked at: those that may serve no more than they do are roomy no longer. */
static void tidy_roomy(plan_t *p)
{
    for (size_t i = 0; i < p->roomy_count && i < PLAN_CANDIDATES;) {
        plan_station_t *station = p->roomy[i];
        bool may_serve = false;
        for (size_t k = 0; k < station->count; k++) may_serve |= plan_serves(p, station->rows[k]);
        if (may_serve && plan_station_load(station) < PLAN_HALVES) {
            i++;
            continue;
        }
        station->is_roomy = false;
        p->roomy[i] = p->roomy[--p->roomy_count];
    }
}

/* One that was put last is counted as before: it may have been blamed wrongly and take as much as any, and
 * what is taken off a load is what was put on. */
static bool takes_little(const plan_station_t *station)
{
    return plan_station_is_limited(station) && !station->is_put_last;
}

/* What the first source of a list sends, in halves of the chunks: its load.  A station with a limited rate
 * takes next to nothing from one without, and so does one that is stuck.  `source` NULL: it is the
 * publisher. */
static uint32_t weight(const plan_t *p, const plan_row_t *row, const plan_row_t *source)
{
    if (p->shape != PLAN_TWO_TREE) return 1;
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

static void charge_list(plan_t *p, const plan_row_t *row, const uint64_t *tokens, uint32_t count,
                        bool is_fetching)
{
    for (uint32_t i = 0; i < count; i++) {
        plan_row_t *source = plan_row(p, tokens[i]);
        if (!source && !i && tokens[i] == p->publisher) charge_publisher(p, row, is_fetching);
        if (!source) continue; /* the publisher, or it is gone */
        bool is_counted = tokens == row->others && has_number(row->sources, row->source_count, tokens[i]);
        uint32_t load = i ? 0 : weight(p, row, source);
        if (is_fetching) {
            source->named += !is_counted;
            source->load += load;
            continue;
        }
        /* Less, where it was taken out meanwhile, and takes part again. */
        source->named -= source->named && !is_counted;
        source->load -= load < source->load ? load : source->load;
        if (load) note_room(p, source->station);
    }
}

/* The lists of a fetch are load for those that they name, as long as the fetch lasts; most for the first,
 * which the worker reads from. */
static void charge(plan_t *p, const plan_row_t *row, bool is_fetching)
{
    charge_list(p, row, row->sources, row->source_count, is_fetching);
    charge_list(p, row, row->others, row->other_count, is_fetching);
}

/* ---- fetches ---- */

static void set_fetch(plan_t *p, plan_row_t *row, plan_fetch_t fetch);

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
    if (served && !plan_serves(p, row)) tear(p, row);
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

void plan_done(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
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
    for (size_t i = 0; station->is_last && i < station->count; i++)
        if (station->rows[i]->fetch >= PLAN_FETCHING) return station->rows[i];
    return NULL;
}

uint64_t plan_put_last(const plan_t *p, size_t i)
{
    for (size_t at = 0; at < p->station_count; at++) {
        const plan_row_t *row = put_last_of(p->chain[at]);
        if (row && !i--) return row->token;
    }
    return 0;
}

/* It goes behind all others, and those that were put last before go behind it: as a rule these are the reason
 * for what it was blamed for.  The stations that it served have room where it had its place: there is as much
 * as they need, and none sends more than all bytes. */
static void put_last(plan_t *p, plan_station_t *station)
{
    station->is_last = true;
    for (size_t at = 0; at < p->station_count; at++) {
        plan_row_t *row = put_last_of(p->chain[at]);
        if (!row) continue;
        charge(p, row, false);
        row->source_count = row->other_count = 0;
    }
    to_tail(p, station);
    for (size_t at = 0; p->chain[at] != station;)
        if (p->chain[at]->is_last) to_tail(p, p->chain[at]);
        else at++;
    /* It fetches from those that come last, too, as it will in the next version. */
    station->is_put_last |= !plan_station_is_limited(station);
    if (station->is_put_last) station->key.text[0] = '1';
}

bool plan_demote(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return false;
    bool is_put_last = row->fetch >= PLAN_FETCHING && p->is_begun && !row->station->is_last;
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

void plan_loads(plan_t *p, uint64_t token, bool is_loading)
{
    plan_row_t *row = plan_row(p, token);
    if (!row || row->has == PLAN_WHOLE || (row->has == PLAN_LOADING) == is_loading) return;
    row->has = is_loading ? PLAN_LOADING : PLAN_PARTS;
    if (is_loading) wake(p, row->station);
    else if (!plan_serves(p, row)) tear(p, row);
}

void plan_publisher(plan_t *p, uint64_t token, uint64_t place)
{
    if (token != p->publisher) p->publisher_load = 0;
    p->publisher = token;
    p->publisher_place = token ? place : 0;
    wake(p, plan_place(p, p->publisher_place));
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
    size_t at = sorted_place(p->rows, p->count, &token, order_token, &found);
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
    sorted_insert(p->rows, &p->count, sorted_place(p->rows, p->count, &new_token, order_token, &found), row);
    return true;
}

void plan_remove(plan_t *p, uint64_t token)
{
    bool found;
    size_t at = sorted_place(p->rows, p->count, &token, order_token, &found);
    if (!found) return;
    plan_row_t *row = p->rows[at];
    plan_station_t *station = row->station;
    if (row->has == PLAN_LOADING) row->has = PLAN_PARTS;
    plan_have(p, token, false, 0);
    for (size_t i = 0; row->is_torn; i++)
        if (p->torn[i] == row) p->torn[i] = p->torn[--p->torn_count], row->is_torn = false;
    sorted_remove(p->rows, &p->count, at);
    sorted_remove(station->rows, &station->count,
                  sorted_place(station->rows, station->count, &row->key, order_row, &found));
    station->first_woken = 0;
    free_row(row);
    if (!station->count) remove_station(p, station);
}

bool plan_is_first(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    return row && row->load > 0;
}

/* ---- one fetches for its place ---- */

/* The row that fetches for the others of the place; NULL: none. */
static const plan_row_t *fetcher_of(const plan_station_t *station)
{
    for (size_t i = 0; station->place && i < station->count; i++)
        if (station->rows[i]->fetch == PLAN_FETCHING) return station->rows[i];
    return NULL;
}

/* One of its place can give the member the version without a network. */
static bool is_served_here(const plan_t *p, const plan_row_t *row, const plan_asker_t *asker)
{
    const plan_station_t *station = row->station;
    if (plan_is_publishers_place(p, station->place) &&
        !has_number(asker->lost, asker->lost_count, p->publisher))
        return true;
    for (size_t i = 0; i < station->count; i++) {
        const plan_row_t *other = station->rows[i];
        bool has_it = other->has != PLAN_PARTS;
        if (other != row && has_it && !has_number(asker->lost, asker->lost_count, other->token)) return true;
    }
    return false;
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
    const plan_row_t *fetcher = row && row->fetch == PLAN_WAITING ? fetcher_of(row->station) : NULL;
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
    p->shape = shape == PLAN_TWO_TREE && !stations ? PLAN_CHAIN : shape;
    if (stations) {
        plan_shape_stations(p, stations);
        lay_trees(p, stations, count);
        tidy_roomy(p);
        free(stations);
    }
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
    plan_row_t *row = plan_row(p, token);
    if (!row) return 0;
    if (row->fetch >= PLAN_FETCHING) charge(p, row, false);
    plan_asker_t asker = {token, row->station->place, lost, lost_count};
    const plan_row_t *fetcher = fetcher_of(row->station);
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
            if (row->fetch == PLAN_FETCHING && !row->is_cut_off && !plan_row_is_leaf(row)) return true;
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
    const plan_row_t *row = plan_row(p, token);
    if (!row || row->fetch != PLAN_FETCHING || row->is_cut_off || p->shape == PLAN_STAR) return;
    plan_station_t *station = row->station;
    bool is_head = p->publisher && (is_all(row->sources, row->source_count, p->publisher) ||
                                    is_all(row->others, row->other_count, p->publisher));
    bool may_go = is_head && !station->key.wave && !plan_is_publishers_place(p, station->place);
    if (may_go && is_followed(p, station)) to_tail(p, station);
}

/* The list is as good as it was: it began with another one than the publisher, or begins with one that has
 * all bytes, and its whole rate. */
static bool is_left(const plan_t *p, const uint64_t *before, uint32_t before_count, const uint64_t *tokens,
                    uint32_t count)
{
    if (!before_count || before[0] != p->publisher) return true;
    const plan_row_t *first = count ? plan_row(p, tokens[0]) : NULL;
    return first && first->has == PLAN_WHOLE && !plan_station_is_limited(first->station);
}

bool plan_leave_publisher(plan_t *p, uint64_t token)
{
    plan_row_t *row = p->publisher && p->source_count ? plan_row(p, token) : NULL;
    if (!row || row->fetch < PLAN_FETCHING || p->shape == PLAN_STAR || row->is_cut_off ||
        plan_is_publishers_place(p, row->station->place))
        return false;
    bool is_of_it = (row->source_count && row->sources[0] == p->publisher) ||
                    (row->other_count && row->others[0] == p->publisher);
    if (!is_of_it) return false;
    const plan_row_t before = *row;
    plan_asker_t asker = {token, row->station->place, &p->publisher, 1};
    charge(p, row, false);
    make_lists(p, row, &asker);
    bool has_left = is_left(p, before.sources, before.source_count, row->sources, row->source_count) &&
                    is_left(p, before.others, before.other_count, row->others, row->other_count);
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
    while (p->torn_count) {
        size_t at = p->torn_count - 1;
        while (at > 0 && p->torn[at]->station->is_last) at--;
        plan_row_t *row = p->torn[at];
        p->torn[at] = p->torn[--p->torn_count];
        row->is_torn = false;
        if (row->fetch >= PLAN_FETCHING && plan_sources_is_torn(p, row)) return row->token;
    }
    return 0;
}

void plan_mend(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return;
    plan_asker_t asker = {.token = token, .place = row->station->place};
    charge(p, row, false);
    if (row->half) make_lists(p, row, &asker);
    else plan_sources_mend(p, row, &asker);
    charge(p, row, true);
}
