/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/plan.h"

#include "core/limits.h"
#include "core/sorted.h"
#include "formats/manifest.h"

#include <stdlib.h>
#include <string.h>

/* What a fast link (10 Gbit/s) carries in the time that a chunk takes through a busy relay (0.3 ms). */
#define HOP_BYTES 375000u
#define HOP_US 300u
/* Halves of the chunks that one link sends on: its uplink carries the bytes once. */
#define MOST_HALVES 2u

/* ---- rows and links ---- */

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
    p->hop_bytes = bytes_per_s && hop_bytes < HOP_BYTES ? hop_bytes : HOP_BYTES;
}

static void free_row(plan_row_t *row)
{
    if (row) free(row->key.text);
    free(row);
}

static void free_link(plan_link_t *link)
{
    free(link->key.text);
    free(link->rows);
    free(link);
}

void plan_fini(plan_t *p)
{
    for (size_t i = 0; i < p->count; i++) free_row(p->rows[i]);
    for (size_t i = 0; i < p->link_count; i++) free_link(p->chain[i]);
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

static int order_place(const void *link, const void *place)
{
    uint64_t a = ((const plan_link_t *)link)->place, b = *(const uint64_t *)place;
    return (a > b) - (a < b);
}

static int order_keys(const plan_key_t *a, const plan_key_t *b)
{
    if (a->wave != b->wave) return a->wave < b->wave ? -1 : 1;
    int order = strcmp(a->text, b->text);
    return order ? order : (a->token > b->token) - (a->token < b->token);
}

static int order_row(const void *row, const void *key)
{
    return order_keys(&((const plan_row_t *)row)->key, key);
}

static int order_link(const void *link, const void *key)
{
    return order_keys(&((const plan_link_t *)link)->key, key);
}

plan_row_t *plan_row(const plan_t *p, uint64_t token)
{
    return sorted_find(p->rows, p->count, &token, order_token);
}

static plan_link_t *place_of(const plan_t *p, uint64_t place)
{
    return place ? sorted_find(p->places, p->place_count, &place, order_place) : NULL;
}

static size_t index_of(const plan_t *p, const plan_link_t *link)
{
    bool found;
    return sorted_place(p->chain, p->link_count, &link->key, order_link, &found);
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

static bool is_limited(const plan_link_t *link) { return link->key.text[0] != '0'; }
static bool is_leaf(const plan_row_t *row) { return row->key.text[0] == '2'; }

/* Puts the link where its key belongs. */
static void insert_link(plan_t *p, plan_link_t *link)
{
    sorted_insert(p->chain, &p->link_count, index_of(p, link), link);
}

/* Each link may become roomy: there is memory for that from now on. */
static bool grow_chain(plan_t *p)
{
    size_t before = p->link_capacity;
    if (!sorted_grow(&p->chain, p->link_count, &p->link_capacity)) return false;
    if (p->link_capacity == before) return true;
    plan_link_t **roomy = realloc(p->roomy, p->link_capacity * sizeof *roomy);
    if (roomy) p->roomy = roomy;
    else p->link_capacity = before;
    return roomy != NULL;
}

static plan_link_t *new_link(plan_t *p, uint64_t place, const plan_key_t *key)
{
    plan_link_t *link = calloc(1, sizeof *link);
    char *text = strdup(key->text);
    if (!link || !text || !grow_chain(p) ||
        (place && !sorted_grow(&p->places, p->place_count, &p->place_capacity))) {
        free(link);
        free(text);
        return NULL;
    }
    link->place = place;
    link->key = *key;
    link->key.text = text;
    insert_link(p, link);
    bool found;
    if (place)
        sorted_insert(p->places, &p->place_count,
                      sorted_place(p->places, p->place_count, &place, order_place, &found), link);
    return link;
}

static void remove_link(plan_t *p, plan_link_t *link)
{
    plan_link_t **at = &p->woken;
    while (*at && *at != link) at = &(*at)->next;
    if (*at) *at = link->next;
    for (size_t i = 0; link->is_roomy; i++)
        if (p->roomy[i] == link) p->roomy[i] = p->roomy[--p->roomy_count], link->is_roomy = false;
    sorted_remove(p->chain, &p->link_count, index_of(p, link));
    bool found;
    if (link->place)
        sorted_remove(p->places, &p->place_count,
                      sorted_place(p->places, p->place_count, &link->place, order_place, &found));
    free_link(link);
}

/* Before the rollout begins a place stands where its least row does, in whatever order its rows came. */
static bool move_link(plan_t *p, plan_link_t *link, const plan_key_t *key)
{
    char *text = strdup(key->text);
    if (!text) return false;
    sorted_remove(p->chain, &p->link_count, index_of(p, link));
    free(link->key.text);
    link->key = *key;
    link->key.text = text;
    insert_link(p, link);
    return true;
}

bool plan_add(plan_t *p, const plan_member_t *m)
{
    bool found;
    size_t at = sorted_place(p->rows, p->count, &m->token, order_token, &found);
    if (found) return true;
    plan_row_t *row = calloc(1, sizeof *row);
    plan_link_t *link = place_of(p, m->place);
    bool is_new = !link;
    if (row) row->key = (plan_key_t){p->is_begun ? ++p->wave : 0, key_text(m), m->token};
    /* Each row may become a source, or be torn: there is room for that from now on, so that what happens
     * later cannot fail. */
    bool ok = row && row->key.text && sorted_grow(&p->rows, p->count, &p->capacity) &&
              sorted_grow(&p->sources, p->count, &p->source_capacity) &&
              sorted_grow(&p->torn, p->count, &p->torn_capacity);
    if (ok && is_new) link = new_link(p, m->place, &row->key);
    ok = ok && link && sorted_grow(&link->rows, link->count, &link->capacity);
    if (ok && !p->is_begun && order_keys(&row->key, &link->key) < 0) ok = move_link(p, link, &row->key);
    if (!ok) {
        if (is_new && link) remove_link(p, link);
        free_row(row);
        return false;
    }
    row->is_cut_off = m->is_cut_off;
    row->token = m->token;
    row->link = link;
    sorted_insert(p->rows, &p->count, at, row);
    sorted_insert(link->rows, &link->count,
                  sorted_place(link->rows, link->count, &row->key, order_row, &found), row);
    link->first_woken = 0;
    return true;
}

/* ---- lists that name a row ---- */

/* It is named in the lists of others; one that is loading them in those of its place alone. */
static bool serves(const plan_t *p, const plan_row_t *row)
{
    return row->is_whole || row->is_loading || (p->shape != PLAN_STAR && row->fetch == PLAN_FETCHING);
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
    size_t at, link, row;
} naming_t;

static naming_t naming(const plan_t *p, const plan_row_t *source)
{
    size_t at = source->named ? index_of(p, source->link) : 0;
    return (naming_t){.source = source, .left = source->named, .at = at + 1};
}

static plan_row_t *next_naming(const plan_t *p, naming_t *n)
{
    for (; n->left && n->link < p->link_count; n->link++, n->row = 0) {
        const plan_link_t *link = p->chain[(n->at + n->link) % p->link_count];
        while (n->row < link->count) {
            plan_row_t *row = link->rows[n->row++];
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
 * of their sources' rate.  What names members of the link was before it, and is behind it no more. */
static void to_tail(plan_t *p, plan_link_t *link)
{
    if (!p->is_begun) return;
    for (size_t i = 0; i < link->count; i++)
        if (!link->rows[i]->is_whole) tear(p, link->rows[i]);
    sorted_remove(p->chain, &p->link_count, index_of(p, link));
    link->key.wave = ++p->wave;
    insert_link(p, link);
}

/* Links that may serve more are found without a look at all of them.  Those that may not any more are left
 * out where they are found. */
static void note_room(plan_t *p, plan_link_t *link)
{
    if (p->shape != PLAN_TWO_TREE || link->is_roomy) return;
    link->is_roomy = true;
    p->roomy[p->roomy_count++] = link;
}

/* What the first source of a list sends, in halves of the chunks: its load.  A link with a limited rate takes
 * next to nothing from one without, and so does one that is stuck. */
static uint32_t weight(const plan_t *p, const plan_row_t *row, const plan_row_t *source)
{
    if (p->shape != PLAN_TWO_TREE) return 1;
    if (row->fetch == PLAN_STUCK || (is_limited(row->link) && !is_limited(source->link))) return 0;
    return row->half ? 1 : MOST_HALVES;
}

static void charge_list(plan_t *p, const plan_row_t *row, const uint64_t *tokens, uint32_t count,
                        bool is_fetching)
{
    for (uint32_t i = 0; i < count; i++) {
        plan_row_t *source = plan_row(p, tokens[i]);
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
        if (load) note_room(p, source->link);
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
static bool wake(plan_t *p, const plan_link_t *link)
{
    bool has_waited = false;
    for (size_t i = 0; link && i < link->count; i++) {
        if (link->rows[i]->fetch != PLAN_WAITING) continue;
        has_waited = true;
        set_fetch(p, link->rows[i], PLAN_WOKEN);
    }
    return has_waited;
}

/* Every change of a fetch goes through here, so that none that waits is forgotten, and no list that names the
 * row. */
static void set_fetch(plan_t *p, plan_row_t *row, plan_fetch_t fetch)
{
    plan_fetch_t was = row->fetch;
    bool served = serves(p, row);
    p->waiting_count += (fetch == PLAN_WAITING) - (was == PLAN_WAITING);
    p->woken_count += (fetch == PLAN_WOKEN) - (was == PLAN_WOKEN);
    if (fetch == PLAN_WOKEN) row->link->first_woken = 0;
    if (fetch == PLAN_WOKEN && !row->link->is_listed) {
        row->link->is_listed = true;
        row->link->next = p->woken;
        p->woken = row->link;
    }
    row->fetch = PLAN_NONE;
    bool has_ended = was == PLAN_FETCHING && fetch != PLAN_FETCHING;
    bool has_woken = has_ended && wake(p, row->link);
    row->fetch = fetch;
    if (fetch == PLAN_FETCHING) note_room(p, row->link);
    if (served && !serves(p, row)) tear(p, row);
    if (has_woken && !row->is_whole) to_tail(p, row->link);
}

/* Sources are an array in no order, and each row knows its place there.  So a source is added and removed
 * in constant time: the last one takes the place of the removed one. */
static void set_whole(plan_t *p, plan_row_t *row, bool is_whole)
{
    if (row->is_whole == is_whole) return;
    row->is_whole = is_whole;
    if (is_whole) {
        row->source_at = (uint32_t)p->source_count;
        p->sources[p->source_count++] = row;
        note_room(p, row->link);
        wake(p, row->link);
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

void plan_demote(plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    if (row && row->fetch >= PLAN_FETCHING) to_tail(p, row->link);
}

void plan_cut_off(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (row) row->is_cut_off = true;
}

void plan_loads(plan_t *p, uint64_t token, bool is_loading)
{
    plan_row_t *row = plan_row(p, token);
    if (!row || row->is_loading == is_loading) return;
    row->is_loading = is_loading;
    if (is_loading) wake(p, row->link);
    else if (!serves(p, row)) tear(p, row);
}

void plan_publisher(plan_t *p, uint64_t token, uint64_t place)
{
    p->publisher = token;
    p->publisher_place = token ? place : 0;
    wake(p, place_of(p, p->publisher_place));
}

/* A member that has all of the bytes, or has lost them, fetches no more. */
void plan_have(plan_t *p, uint64_t token, bool is_whole, uint64_t rate)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return;
    bool was_whole = row->is_whole;
    row->rate = rate;
    set_whole(p, row, is_whole);
    end_fetch(p, row);
    if (was_whole && !serves(p, row)) tear(p, row);
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
    bool had_all = row->is_whole || row->is_loading;
    set_whole(p, row, false);
    row->is_loading = false;
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
    plan_link_t *link = row->link;
    row->is_loading = false;
    plan_have(p, token, false, 0);
    for (size_t i = 0; row->is_torn; i++)
        if (p->torn[i] == row) p->torn[i] = p->torn[--p->torn_count], row->is_torn = false;
    sorted_remove(p->rows, &p->count, at);
    sorted_remove(link->rows, &link->count,
                  sorted_place(link->rows, link->count, &row->key, order_row, &found));
    link->first_woken = 0;
    free_row(row);
    if (!link->count) remove_link(p, link);
}

bool plan_is_first(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    return row && row->load > 0;
}

/* ---- one fetches for its place ---- */

/* The row that fetches for the others of the place; NULL: none. */
static const plan_row_t *fetcher_of(const plan_link_t *link)
{
    for (size_t i = 0; link->place && i < link->count; i++)
        if (link->rows[i]->fetch == PLAN_FETCHING) return link->rows[i];
    return NULL;
}

bool plan_fetches(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    return row && row->fetch == PLAN_FETCHING && row->source_count + row->other_count;
}

bool plan_is_second(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    for (size_t i = 0; row && row->link->place && i < row->link->count; i++)
        if (row->link->rows[i] != row && row->link->rows[i]->fetch == PLAN_STUCK) return true;
    return false;
}

bool plan_is_awaited(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = p->waiting_count ? plan_row(p, token) : NULL;
    if (!row || row->fetch != PLAN_FETCHING) return false;
    for (size_t i = 0; i < row->link->count; i++)
        if (row->link->rows[i]->fetch == PLAN_WAITING) return true;
    return false;
}

uint64_t plan_waits_for(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = p->waiting_count ? plan_row(p, token) : NULL;
    const plan_row_t *fetcher = row && row->fetch == PLAN_WAITING ? fetcher_of(row->link) : NULL;
    return fetcher ? fetcher->token : 0;
}

/* Costs as much as there are members in the places concerned, however many others there are. */
uint64_t plan_next_woken(plan_t *p)
{
    for (plan_link_t *link; (link = p->woken) != NULL; p->woken = link->next, link->is_listed = false)
        while (link->first_woken < link->count) {
            plan_row_t *row = link->rows[link->first_woken++];
            if (row->fetch != PLAN_WOKEN) continue;
            set_fetch(p, row, PLAN_NONE);
            return row->token;
        }
    return 0;
}

/* ---- the choice ---- */

/* A list that is being made. */
typedef struct {
    const plan_t *p;
    const plan_asker_t *asker;
    const plan_link_t *link; /* of the asker's place, or its own; NULL: none */
    bool is_member;
    const plan_row_t *beside; /* it is to give the asker the other half of the chunks; NULL: none */
    uint64_t *sources;
    uint32_t count;
    uint64_t looks;
} list_t;

static bool is_wanted(const list_t *l, uint64_t token)
{
    return token && token != l->asker->token && !has_number(l->asker->lost, l->asker->lost_count, token) &&
           !has_number(l->sources, l->count, token);
}

static void list_add(list_t *l, uint64_t token, uint32_t most)
{
    if (l->count < most && is_wanted(l, token)) l->sources[l->count++] = token;
}

static bool is_publishers_place(const plan_t *p, uint64_t place)
{
    return place && place == p->publisher_place;
}

/* Fetches from all members of the link. */
static uint32_t load_of(const plan_link_t *link)
{
    uint32_t load = 0;
    for (size_t i = 0; i < link->count; i++) load += link->rows[i]->load;
    return load;
}

/* splitmix64: spreads equals over the members that ask. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* One that has all bytes.  What it is ordered by, the most important first. */
typedef struct {
    bool is_far; /* of another place than the asker */
    bool is_slow;
    uint32_t load;
    uint64_t draw;
    const plan_row_t *row;
} candidate_t;

typedef struct {
    candidate_t found[PLAN_CANDIDATES];
    uint32_t count;
    bool has_far;
} choice_t;

/* Sources of the same place come first, because their memory need not be copied.  Then fast ones, then those
 * with fewer fetches; equal ones are ordered at random for each asker, so that not all workers read from the
 * same one. */
static bool is_before(const candidate_t *a, const candidate_t *b)
{
    if (a->is_far != b->is_far) return b->is_far;
    if (a->is_slow != b->is_slow) return b->is_slow;
    if (a->load != b->load) return a->load < b->load;
    return a->draw < b->draw;
}

static void add_candidate(list_t *l, const plan_row_t *row, choice_t *choice)
{
    bool is_far = row->link != l->link;
    l->looks++;
    if (!is_wanted(l, row->token) || choice->count == PLAN_CANDIDATES) return;
    choice->has_far |= is_far;
    choice->found[choice->count++] =
        (candidate_t){.is_far = is_far,
                      .load = is_far ? load_of(row->link) : row->load,
                      .draw = mix(l->p->seed ^ mix(l->asker->token) ^ mix(row->token * 3)),
                      .row = row};
}

/* A source whose rate is far below the best one's is slow, and so is one with a limited rate: that one may
 * have the bytes from its own host, or under another number, and no rate of a fetch. */
static void find_slow(choice_t *choice)
{
    uint64_t best_rate = 0;
    for (uint32_t i = 0; i < choice->count; i++)
        if (choice->found[i].row->rate > best_rate) best_rate = choice->found[i].row->rate;
    for (uint32_t i = 0; i < choice->count; i++) {
        uint64_t rate = choice->found[i].row->rate;
        choice->found[i].is_slow =
            is_limited(choice->found[i].row->link) || (rate && rate < best_rate / PLAN_SLOW_FACTOR);
    }
}

/* In a chain a holder of another link serves one link at a time: more of them would share its uplink, and a
 * member at the tail has all of it.  What is at the publisher's place leaves by the publisher's uplink. */
static bool is_free(const plan_t *p, const plan_row_t *row)
{
    if (is_leaf(row)) return false;
    return p->shape == PLAN_STAR || (!load_of(row->link) && !is_publishers_place(p, row->link->place));
}

/* The walk over the holders starts at a place of the ring that depends on the asker, because only the first
 * PLAN_CANDIDATES are compared.  With `any` also those that are not free. */
static void find_holders(list_t *l, choice_t *choice, bool any)
{
    const plan_t *p = l->p;
    for (size_t i = 0; l->link && i < l->link->count; i++) {
        const plan_row_t *row = l->link->rows[i];
        if (row->is_whole || row->is_loading) add_candidate(l, row, choice);
    }
    size_t most = p->source_count < PLAN_CANDIDATES ? p->source_count : PLAN_CANDIDATES;
    for (size_t k = 0; k < most; k++) {
        const plan_row_t *row = p->sources[(k + l->asker->token) % p->source_count];
        if (row->link != l->link && (any || is_free(p, row))) add_candidate(l, row, choice);
    }
    find_slow(choice);
}

/* Only the first places matter, so they are filled one by one. */
static void add_best(list_t *l, choice_t *choice, uint32_t most)
{
    for (uint32_t next = 0; next < choice->count && l->count < most; next++) {
        uint32_t best = next;
        for (uint32_t i = next + 1; i < choice->count; i++)
            if (is_before(&choice->found[i], &choice->found[best])) best = i;
        candidate_t chosen = choice->found[best];
        choice->found[best] = choice->found[next];
        list_add(l, chosen.row->token, most);
    }
}

/* The row of the link that others fetch from: one that has all bytes, else the one that fetches, else, where
 * there is nothing better, one that is stuck.  NULL: none. */
static const plan_row_t *head_of(const list_t *l, const plan_link_t *link, bool any)
{
    const plan_row_t *best = NULL;
    for (size_t i = 0; i < link->count; i++) {
        const plan_row_t *row = link->rows[i];
        if (!is_wanted(l, row->token) || (is_leaf(row) && !any)) continue;
        if (row->is_whole) return row;
        bool is_better = row->fetch == PLAN_FETCHING || (any && row->fetch == PLAN_STUCK);
        if (is_better && (!best || best->fetch == PLAN_STUCK)) best = row;
    }
    return best;
}

/* ---- the way of a half of the chunks ---- */

/* The tokens of the row's list for a half of the chunks. */
static const uint64_t *list_for(const plan_row_t *row, uint32_t half, uint32_t *ret_count)
{
    bool is_other = row->half && row->half != half;
    *ret_count = is_other ? row->other_count : row->source_count;
    return is_other ? row->others : row->sources;
}

/* The row that this one gets a half of the chunks from.  NULL: it has them, or none or the publisher is its
 * source. */
static const plan_row_t *parent_of(const plan_t *p, const plan_row_t *row, uint32_t half)
{
    uint32_t count;
    const uint64_t *tokens = list_for(row, half, &count);
    bool is_fetching = row->fetch >= PLAN_FETCHING && !row->is_whole && !row->is_loading;
    return is_fetching && count ? plan_row(p, tokens[0]) : NULL;
}

/* How many links the half of the chunks passes on its way to this row.  UINT32_MAX: `top` is one of them, or
 * the row's.  A link that came later serves none that was there before: so the way of those that came
 * later, which may be long, is not followed. */
static uint32_t depth_below(list_t *l, const plan_row_t *row, uint32_t half, const plan_link_t *top)
{
    uint32_t depth = 0;
    if (row->link->key.wave) return row->link == top ? UINT32_MAX : 0;
    for (; row; row = parent_of(l->p, row, half)) {
        l->looks++;
        if (row->link == top || depth > l->p->count) return UINT32_MAX;
        depth++;
    }
    return depth;
}

/* In a chain that is so by the order of the links. */
static bool is_below(list_t *l, const plan_row_t *row, uint32_t half, const plan_link_t *top)
{
    return l->p->shape == PLAN_TWO_TREE && depth_below(l, row, half, top) == UINT32_MAX;
}

/* The heads of the links before the asker's, the nearest first; a process that is no member is behind all.  A
 * member with a limited rate serves others like it, and with `any` all. */
static void add_before(list_t *l, uint32_t most, bool any)
{
    const plan_t *p = l->p;
    for (size_t i = l->is_member ? index_of(p, l->link) : p->link_count; i-- > 0 && l->count < most;) {
        const plan_link_t *link = p->chain[i];
        l->looks++;
        if (is_publishers_place(p, link->place)) continue;
        if (!any && is_limited(link) && !(l->is_member && is_limited(l->link))) continue;
        const plan_row_t *head = head_of(l, link, any);
        if (head && !is_below(l, head, 1, l->link) && !is_below(l, head, 2, l->link))
            list_add(l, head->token, most);
    }
}

/* The publisher stands before the first link. */
static bool is_near_publisher(const list_t *l)
{
    size_t before = 0, at = index_of(l->p, l->link);
    for (size_t i = 0; i < at && before < PLAN_SOURCES; i++)
        before += !is_publishers_place(l->p, l->p->chain[i]->place);
    return before < PLAN_SOURCES;
}

/* ---- two trees ---- */

/* It may serve a half of the chunks more. */
static bool has_room(const list_t *l, const plan_link_t *link)
{
    return load_of(link) + (l->beside && l->beside->link == link) < MOST_HALVES;
}

/* A link that may serve the asker's link more than it does: it has as much as that, or more. */
static const plan_row_t *head_with_room(const list_t *l, const plan_link_t *link)
{
    const plan_t *p = l->p;
    bool is_for_limited = l->link && is_limited(l->link);
    if (link == l->link || is_publishers_place(p, link->place) || !has_room(l, link)) return NULL;
    if (is_limited(link) && !is_for_limited) return NULL;
    const plan_row_t *head = head_of(l, link, false);
    bool is_behind = l->link && head && !head->is_whole && link->key.wave > l->link->key.wave;
    return is_behind ? NULL : head;
}

/* One with a limited rate is found for others like it alone, and they leave the rest to the others. */
static bool is_better_relay(const plan_row_t *a, uint32_t a_depth, const plan_row_t *b, uint32_t b_depth)
{
    if (is_limited(a->link) != is_limited(b->link)) return is_limited(a->link);
    if (a->is_whole != b->is_whole) return a->is_whole;
    if (a->link->key.wave != b->link->key.wave) return a->link->key.wave < b->link->key.wave;
    if (a_depth != b_depth) return a_depth < b_depth;
    return order_keys(&a->link->key, &b->link->key) < 0;
}

/* The link with room that gets the bytes first and is not below `top`, for one half of the chunks or for both
 * (half 0).  For one with a limited rate others like it come first.  NULL: none. */
static const plan_row_t *find_relay(list_t *l, uint32_t half, const plan_link_t *top)
{
    const plan_t *p = l->p;
    const plan_row_t *best = NULL;
    uint32_t best_depth = 0;
    for (size_t i = 0; i < p->roomy_count && i < PLAN_CANDIDATES; i++) {
        const plan_link_t *link = p->roomy[i];
        const plan_row_t *head = head_with_room(l, link);
        l->looks++;
        if (!head) continue;
        uint32_t depth = depth_below(l, head, half ? half : 1, top);
        uint32_t other = half ? depth : depth_below(l, head, 2, top);
        if (depth == UINT32_MAX || other == UINT32_MAX) continue;
        if (other > depth) depth = other;
        if (best && !is_better_relay(head, depth, best, best_depth)) continue;
        best = head;
        best_depth = depth;
    }
    return best;
}

/* Of the first ones, which are looked at: those that may serve no more than they do are roomy no longer. */
static void tidy_roomy(plan_t *p)
{
    for (size_t i = 0; i < p->roomy_count && i < PLAN_CANDIDATES;) {
        plan_link_t *link = p->roomy[i];
        bool may_serve = false;
        for (size_t k = 0; k < link->count; k++) may_serve |= serves(p, link->rows[k]);
        if (may_serve && load_of(link) < MOST_HALVES) {
            i++;
            continue;
        }
        link->is_roomy = false;
        p->roomy[i] = p->roomy[--p->roomy_count];
    }
}

static bool is_source(const plan_t *p, const plan_row_t *row, uint64_t token, uint32_t half);

/* The parent of a half: the one that it has, as long as that serves the row; then the next one of its list
 * that has room, which the worker turns to by itself; then a link with room.  One without room is better than
 * the publisher, whose uplink is that of all. */
static void add_parent(list_t *l, const plan_row_t *row, uint32_t half)
{
    uint32_t count;
    const uint64_t *tokens = list_for(row, half, &count);
    for (uint32_t i = 0; i < count && !l->count; i++) {
        const plan_row_t *source = plan_row(l->p, tokens[i]);
        if (is_source(l->p, row, tokens[i], half) && (!i || !source || has_room(l, source->link)))
            list_add(l, tokens[i], 1);
    }
    const plan_row_t *relay = l->count ? NULL : find_relay(l, half, l->link);
    if (relay) list_add(l, relay->token, 1);
    for (uint32_t i = 0; i < count && !l->count; i++)
        if (is_source(l->p, row, tokens[i], half)) list_add(l, tokens[i], 1);
    list_add(l, l->p->publisher, 1);
}

/* The list of a half: the parent, and what there is without it.  Where the parent goes, both that served it
 * have room: its own parent, and the one that gave it the other half.  Of its two children one has the former
 * first, and the other one the latter, which must not be below it: so none sends more than all bytes, and
 * neither waits for the other in a circle. */
static void fill_half(list_t *l, const plan_row_t *row, uint32_t half)
{
    const plan_t *p = l->p;
    add_parent(l, row, half);
    const plan_row_t *parent = l->count ? plan_row(p, l->sources[0]) : NULL;
    if (!parent || parent->is_whole) return;
    uint32_t up_count, aside_count;
    const uint64_t *up = list_for(parent, half, &up_count), *aside = list_for(parent, 3 - half, &aside_count);
    const plan_row_t *next = aside_count ? plan_row(p, aside[0]) : NULL;
    if (next && !is_source(p, row, next->token, half)) next = NULL;
    bool is_first_child = l->link->number % 2 == 0;
    bool is_below_other = next && is_below(l, next, half, parent->link);
    bool is_aside_first = next && (is_below_other || !is_first_child);
    if (is_aside_first) list_add(l, next->token, PLAN_SOURCES);
    if (up_count) list_add(l, up[0], PLAN_SOURCES);
    if (next) list_add(l, next->token, PLAN_SOURCES);
}

/* In its own place the publisher is first: a region of it is held by all, and costs it nothing.  It is first
 * for a member that reaches no other one, too.  Elsewhere it is last, as it always has the bytes. */
static void fill_list(list_t *l)
{
    const plan_t *p = l->p;
    choice_t choice = {.count = 0};
    const plan_row_t *row = l->is_member ? plan_row(p, l->asker->token) : NULL;
    bool is_here = is_publishers_place(p, l->asker->place) || (row && row->is_cut_off);
    if (is_here) list_add(l, p->publisher, PLAN_SOURCES);
    bool has_last = !is_here && is_wanted(l, p->publisher);
    uint32_t most = has_last ? PLAN_SOURCES - 1 : PLAN_SOURCES;
    find_holders(l, &choice, false);
    add_best(l, &choice, most);
    bool is_relayed = p->shape != PLAN_STAR && !choice.has_far && !(is_here && l->count);
    if (is_relayed && p->shape == PLAN_TWO_TREE)
        for (const plan_row_t *relay; l->count < most && (relay = find_relay(l, 0, l->link));)
            list_add(l, relay->token, most);
    else if (is_relayed) add_before(l, l->is_member ? PLAN_SOURCES : most, false);
    bool is_chain = p->shape == PLAN_CHAIN && !choice.has_far;
    if (has_last && (!is_chain || !l->count || !l->is_member || is_near_publisher(l)))
        list_add(l, p->publisher, PLAN_SOURCES);
    if (l->count) return;
    /* A holder that serves others, is at the place of a publisher that was lost, or is a leaf, is better than
     * none. */
    find_holders(l, &choice, true);
    add_best(l, &choice, PLAN_SOURCES);
    if (!l->count && p->shape != PLAN_STAR) add_before(l, PLAN_SOURCES, true);
}

static list_t list_of(const plan_t *p, const plan_asker_t *asker, uint64_t *sources)
{
    const plan_row_t *row = plan_row(p, asker->token);
    return (list_t){.p = p,
                    .asker = asker,
                    .link = row ? row->link : place_of(p, asker->place),
                    .is_member = row != NULL,
                    .sources = sources};
}

uint32_t plan_choose(const plan_t *p, const plan_asker_t *asker, uint64_t ret_sources[PLAN_SOURCES])
{
    list_t l = list_of(p, asker, ret_sources);
    fill_list(&l);
    return l.count;
}

/* ---- lists ---- */

void plan_begin(plan_t *p) { p->is_begun = true; }

static plan_row_t *head_to_be(const plan_link_t *link)
{
    for (size_t i = 0; i < link->count; i++)
        if (link->rows[i]->fetch == PLAN_FETCHING) return link->rows[i];
    return link->rows[0];
}

/* The links of the trees: those of the publisher's place get the bytes without a network, and those with a
 * limited rate serve none of the others.  Returns how many. */
static size_t find_nodes(const plan_t *p, plan_link_t **ret_nodes)
{
    size_t count = 0;
    for (size_t i = 0; i < p->link_count; i++) {
        plan_link_t *link = p->chain[i];
        if (is_publishers_place(p, link->place) || is_limited(link) || head_to_be(link)->is_cut_off) continue;
        if (ret_nodes) ret_nodes[count] = link;
        count++;
    }
    return count;
}

/* They stand in the order of their zones. */
static bool has_zones(const plan_t *p)
{
    for (size_t i = 1; i < p->link_count; i++) {
        const char *text = p->chain[i]->key.text + 1, *before = p->chain[i - 1]->key.text + 1;
        size_t zone_bytes = (size_t)(strchr(text, '\x01') - text);
        if (strncmp(text, before, zone_bytes + 1) != 0) return true;
    }
    return false;
}

/* For N links and n chunks a star takes N n τ + α, a chain (n + N - 1) τ + N α, and two trees (n + 2 d) τ +
 * (d + 1) α with d = log2 N, rounded down.  τ, the time of a chunk, is taken as on a fast link, or by the
 * publisher's --max-rate; α is the time of a hop.  The chain is left for trees only where they are a
 * quarter better: on real links a chain took the time of its estimate, and trees up to 15 % more, because
 * each link is shared by two transfers (docs/benchmarks.md, "Shaped links").  Nor is it left where there
 * are several zones: it enters each of them once. */
static plan_shape_t choose_shape(const plan_t *p, size_t nodes)
{
    bool may_be_trees = nodes > 1 && p->publisher && !p->source_count;
    if (p->wanted == PLAN_TWO_TREE) return may_be_trees ? PLAN_TWO_TREE : PLAN_CHAIN;
    if (p->wanted != PLAN_AUTO) return p->wanted;
    uint64_t count = nodes > 1 ? nodes : 2, chunk = manifest_chunk_bytes(p->bytes), d = 0;
    while (count >> (d + 1)) d++;
    uint64_t star = count * p->bytes + p->hop_bytes;
    uint64_t chain = p->bytes + (count - 1) * chunk + count * p->hop_bytes;
    uint64_t trees = p->bytes + 2 * d * chunk + (d + 1) * p->hop_bytes;
    bool is_best = trees < star && trees * 5 < chain * 4;
    if (may_be_trees && is_best && !has_zones(p)) return PLAN_TWO_TREE;
    return chain < star ? PLAN_CHAIN : PLAN_STAR;
}

/* Number 0 stands for the publisher. */
static uint64_t token_at(const plan_t *p, plan_link_t **nodes, size_t number)
{
    return number ? head_to_be(nodes[number - 1])->token : p->publisher;
}

/* Links 1 to N in the order of the chain: the parent of link k is k / 2 for the first half of the chunks, and
 * for the second half the same counted from the other end.  So a link has children in one of the trees
 * alone. */
static void lay_trees(plan_t *p, plan_link_t **nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        plan_row_t *row = head_to_be(nodes[i]);
        if (row->fetch >= PLAN_FETCHING) charge(p, row, false);
        size_t k = nodes[i]->number = i + 1, mirrored = count - i;
        uint64_t first = token_at(p, nodes, k / 2);
        uint64_t second = token_at(p, nodes, mirrored / 2 ? count + 1 - mirrored / 2 : 0);
        row->half = 2 * mirrored <= count ? 2 : 1;
        row->source_count = row->other_count = 1;
        row->sources[0] = row->half == 1 ? first : second;
        row->others[0] = row->half == 1 ? second : first;
        set_fetch(p, row, PLAN_FETCHING);
        charge(p, row, true);
    }
}

/* Where memory lacks, it is a chain. */
void plan_make_all(plan_t *p)
{
    size_t count = find_nodes(p, NULL);
    plan_shape_t shape = p->is_begun ? choose_shape(p, count) : p->shape;
    plan_link_t **nodes = shape == PLAN_TWO_TREE ? calloc(count, sizeof(plan_link_t *)) : NULL;
    p->shape = shape == PLAN_TWO_TREE && !nodes ? PLAN_CHAIN : shape;
    if (nodes) {
        find_nodes(p, nodes);
        lay_trees(p, nodes, count);
        tidy_roomy(p);
        free(nodes);
    }
    for (size_t i = 0; i < p->link_count; i++)
        for (size_t k = 0; k < p->chain[i]->count; k++)
            if (!p->chain[i]->rows[k]->is_whole) plan_make(p, p->chain[i]->rows[k]->token, NULL, 0);
}

/* One of its place can give the member the version without a network. */
static bool is_served_here(const plan_t *p, const plan_row_t *row, const plan_asker_t *asker)
{
    const plan_link_t *link = row->link;
    if (is_publishers_place(p, link->place) && !has_number(asker->lost, asker->lost_count, p->publisher))
        return true;
    for (size_t i = 0; i < link->count; i++) {
        const plan_row_t *other = link->rows[i];
        bool has_it = other->is_whole || other->is_loading;
        if (other != row && has_it && !has_number(asker->lost, asker->lost_count, other->token)) return true;
    }
    return false;
}

/* A list for each half of the chunks.  A fetch that began with one list for all goes on with one: the worker
 * asks for the halves by themselves only where it has begun with two.  So does one that a holder can serve
 * alone. */
static bool is_in_halves(const plan_t *p, const plan_row_t *row, const plan_asker_t *asker)
{
    bool is_of_publisher = row->is_cut_off || is_publishers_place(p, row->link->place);
    if (p->shape != PLAN_TWO_TREE || is_of_publisher) return false;
    if (row->fetch >= PLAN_FETCHING) return row->half != 0;
    choice_t choice = {.count = 0};
    uint64_t none[PLAN_SOURCES];
    list_t l = list_of(p, asker, none);
    find_holders(&l, &choice, false);
    return !choice.count;
}

/* Better one that failed once than none. */
static void make_half(list_t *l, const plan_row_t *row, uint32_t half)
{
    const plan_asker_t *asker = l->asker;
    plan_asker_t any = {.token = asker->token, .place = asker->place};
    fill_half(l, row, half);
    if (l->count) return;
    l->asker = &any;
    fill_half(l, row, half);
    l->asker = asker;
}

/* Replaces the lists of the row. */
static void make_lists(plan_t *p, plan_row_t *row, const plan_asker_t *asker)
{
    uint64_t sources[PLAN_SOURCES], others[PLAN_SOURCES];
    list_t l = list_of(p, asker, sources), other = list_of(p, asker, others);
    uint32_t half = row->half ? row->half : 1;
    if (p->shape == PLAN_TWO_TREE) tidy_roomy(p);
    if (is_in_halves(p, row, asker)) {
        if (row->fetch < PLAN_FETCHING) row->source_count = row->other_count = 0;
        make_half(&l, row, half);
        other.beside = l.count ? plan_row(p, sources[0]) : NULL;
        make_half(&other, row, 3 - half);
    }
    row->half = l.count + other.count ? half : 0;
    if (!row->half) fill_list(&l);
    p->looks += l.looks + other.looks;
    memcpy(row->sources, sources, l.count * sizeof *sources);
    memcpy(row->others, others, other.count * sizeof *others);
    row->source_count = l.count;
    row->other_count = other.count;
}

/* The member's former fetch ends here: its load is taken off before sources are chosen again.  One that
 * fetched, and has no source now, may still have bytes that others lack. */
uint32_t plan_make(plan_t *p, uint64_t token, const uint64_t *lost, uint32_t lost_count)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return 0;
    if (row->fetch >= PLAN_FETCHING) charge(p, row, false);
    plan_asker_t asker = {token, row->link->place, lost, lost_count};
    const plan_row_t *fetcher = fetcher_of(row->link);
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

/* A member of another link fetches, and could have this one behind it. */
static bool is_followed(const plan_t *p, const plan_link_t *link)
{
    for (size_t i = 0; i < p->link_count; i++) {
        const plan_link_t *other = p->chain[i];
        if (other == link || is_publishers_place(p, other->place)) continue;
        for (size_t k = 0; k < other->count; k++) {
            const plan_row_t *row = other->rows[k];
            if (row->fetch == PLAN_FETCHING && !row->is_cut_off && !is_leaf(row)) return true;
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
    plan_link_t *link = row->link;
    bool is_head = p->publisher && (is_all(row->sources, row->source_count, p->publisher) ||
                                    is_all(row->others, row->other_count, p->publisher));
    bool may_go = is_head && !link->key.wave && !is_publishers_place(p, link->place);
    if (may_go && is_followed(p, link)) to_tail(p, link);
}

/* It serves, and may serve the row this half of the chunks, or both (half 0): no members wait for each other
 * in a circle. */
static bool is_source(const plan_t *p, const plan_row_t *row, uint64_t token, uint32_t half)
{
    const plan_row_t *source = plan_row(p, token);
    if (!source) return token && token == p->publisher;
    if (source->is_whole || (source->is_loading && source->link == row->link)) return true;
    if (!serves(p, source)) return false;
    if (p->shape != PLAN_TWO_TREE) return order_keys(&source->link->key, &row->link->key) < 0;
    list_t l = {.p = p};
    bool is_behind = source->link == row->link || source->link->key.wave > row->link->key.wave;
    for (uint32_t each = 1; each <= 2 && !is_behind; each++)
        is_behind = (!half || half == each) && is_below(&l, source, each, row->link);
    return !is_behind;
}

static bool has_torn(const plan_t *p, const plan_row_t *row)
{
    bool is_torn = false;
    for (uint32_t i = 0; i < row->source_count; i++)
        is_torn |= !is_source(p, row, row->sources[i], row->half);
    for (uint32_t i = 0; i < row->other_count; i++)
        is_torn |= !is_source(p, row, row->others[i], 3 - row->half);
    return is_torn;
}

uint64_t plan_next_torn(plan_t *p)
{
    while (p->torn_count) {
        plan_row_t *row = p->torn[--p->torn_count];
        row->is_torn = false;
        if (row->fetch >= PLAN_FETCHING && has_torn(p, row)) return row->token;
    }
    return 0;
}

/* Those that are left stay in front: the member reads from one of them by now, and what it lost before is not
 * among them. */
static void mend_list(plan_t *p, plan_row_t *row, const plan_asker_t *asker)
{
    uint64_t sources[PLAN_SOURCES], more[PLAN_SOURCES];
    list_t l = list_of(p, asker, sources);
    for (uint32_t i = 0; i < row->source_count; i++)
        if (is_source(p, row, row->sources[i], 0)) list_add(&l, row->sources[i], PLAN_SOURCES);
    uint32_t more_count = plan_choose(p, asker, more);
    for (uint32_t i = 0; i < more_count; i++) list_add(&l, more[i], PLAN_SOURCES);
    memcpy(row->sources, sources, l.count * sizeof *sources);
    row->source_count = l.count;
}

void plan_mend(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return;
    plan_asker_t asker = {.token = token, .place = row->link->place};
    charge(p, row, false);
    if (row->half) make_lists(p, row, &asker);
    else mend_list(p, row, &asker);
    charge(p, row, true);
}
