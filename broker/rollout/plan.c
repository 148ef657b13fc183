/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/plan.h"

#include "broker/rollout/plan_list.h"
#include "broker/rollout/plan_shape.h"
#include "core/sorted.h"

#include <stdlib.h>
#include <string.h>

/* What a fast link (10 Gbit/s) carries in the time that a chunk takes through a busy relay (0.3 ms). */
#define HOP_BYTES 375000u
#define HOP_US 300u

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

int plan_key_order(const plan_key_t *a, const plan_key_t *b)
{
    if (a->wave != b->wave) return a->wave < b->wave ? -1 : 1;
    int order = strcmp(a->text, b->text);
    return order ? order : (a->token > b->token) - (a->token < b->token);
}

static int order_row(const void *row, const void *key)
{
    return plan_key_order(&((const plan_row_t *)row)->key, key);
}

static int order_link(const void *link, const void *key)
{
    return plan_key_order(&((const plan_link_t *)link)->key, key);
}

plan_row_t *plan_row(const plan_t *p, uint64_t token)
{
    return sorted_find(p->rows, p->count, &token, order_token);
}

plan_link_t *plan_place(const plan_t *p, uint64_t place)
{
    return place ? sorted_find(p->places, p->place_count, &place, order_place) : NULL;
}

size_t plan_link_index(const plan_t *p, const plan_link_t *link)
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

/* Puts the link where its key belongs. */
static void insert_link(plan_t *p, plan_link_t *link)
{
    sorted_insert(p->chain, &p->link_count, plan_link_index(p, link), link);
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
    sorted_remove(p->chain, &p->link_count, plan_link_index(p, link));
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
    sorted_remove(p->chain, &p->link_count, plan_link_index(p, link));
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
    plan_link_t *link = plan_place(p, m->place);
    bool is_new = !link;
    if (row) row->key = (plan_key_t){p->is_begun ? ++p->wave : 0, key_text(m), m->token};
    /* Each row may become a source, or be torn: there is room for that from now on, so that what happens
     * later cannot fail. */
    bool ok = row && row->key.text && sorted_grow(&p->rows, p->count, &p->capacity) &&
              sorted_grow(&p->sources, p->count, &p->source_capacity) &&
              sorted_grow(&p->torn, p->count, &p->torn_capacity);
    if (ok && is_new) link = new_link(p, m->place, &row->key);
    ok = ok && link && sorted_grow(&link->rows, link->count, &link->capacity);
    if (ok && !p->is_begun && plan_key_order(&row->key, &link->key) < 0) ok = move_link(p, link, &row->key);
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

uint32_t plan_link_load(const plan_link_t *link)
{
    uint32_t load = 0;
    for (size_t i = 0; i < link->count; i++) load += link->rows[i]->load;
    return load;
}

bool plan_serves(const plan_t *p, const plan_row_t *row)
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
    size_t at = source->named ? plan_link_index(p, source->link) : 0;
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
    sorted_remove(p->chain, &p->link_count, plan_link_index(p, link));
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

/* Of the first ones, which are looked at: those that may serve no more than they do are roomy no longer. */
static void tidy_roomy(plan_t *p)
{
    for (size_t i = 0; i < p->roomy_count && i < PLAN_CANDIDATES;) {
        plan_link_t *link = p->roomy[i];
        bool may_serve = false;
        for (size_t k = 0; k < link->count; k++) may_serve |= plan_serves(p, link->rows[k]);
        if (may_serve && plan_link_load(link) < PLAN_HALVES) {
            i++;
            continue;
        }
        link->is_roomy = false;
        p->roomy[i] = p->roomy[--p->roomy_count];
    }
}

/* What the first source of a list sends, in halves of the chunks: its load.  A link with a limited rate takes
 * next to nothing from one without, and so does one that is stuck. */
static uint32_t weight(const plan_t *p, const plan_row_t *row, const plan_row_t *source)
{
    if (p->shape != PLAN_TWO_TREE) return 1;
    if (row->fetch == PLAN_STUCK || (plan_link_is_limited(row->link) && !plan_link_is_limited(source->link)))
        return 0;
    return row->half ? 1 : PLAN_HALVES;
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
    bool served = plan_serves(p, row);
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
    if (served && !plan_serves(p, row)) tear(p, row);
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
    else if (!plan_serves(p, row)) tear(p, row);
}

void plan_publisher(plan_t *p, uint64_t token, uint64_t place)
{
    p->publisher = token;
    p->publisher_place = token ? place : 0;
    wake(p, plan_place(p, p->publisher_place));
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

/* One of its place can give the member the version without a network. */
static bool is_served_here(const plan_t *p, const plan_row_t *row, const plan_asker_t *asker)
{
    const plan_link_t *link = row->link;
    if (plan_is_publishers_place(p, link->place) && !has_number(asker->lost, asker->lost_count, p->publisher))
        return true;
    for (size_t i = 0; i < link->count; i++) {
        const plan_row_t *other = link->rows[i];
        bool has_it = other->is_whole || other->is_loading;
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

/* ---- lists ---- */

void plan_begin(plan_t *p) { p->is_begun = true; }

/* The trees are laid over the links, in the order of the chain. */
static void lay_trees(plan_t *p, plan_link_t **links, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        plan_row_t *row = plan_shape_head(links[i]);
        if (row->fetch >= PLAN_FETCHING) charge(p, row, false);
        plan_shape_lay(p, links, count, i + 1);
        set_fetch(p, row, PLAN_FETCHING);
        charge(p, row, true);
    }
}

/* Where memory lacks, it is a chain. */
void plan_make_all(plan_t *p)
{
    size_t count = plan_shape_links(p, NULL);
    plan_shape_t shape = p->is_begun ? plan_shape_choose(p, count) : p->shape;
    plan_link_t **links = shape == PLAN_TWO_TREE ? calloc(count, sizeof(plan_link_t *)) : NULL;
    p->shape = shape == PLAN_TWO_TREE && !links ? PLAN_CHAIN : shape;
    if (links) {
        plan_shape_links(p, links);
        lay_trees(p, links, count);
        tidy_roomy(p);
        free(links);
    }
    for (size_t i = 0; i < p->link_count; i++)
        for (size_t k = 0; k < p->chain[i]->count; k++)
            if (!p->chain[i]->rows[k]->is_whole) plan_make(p, p->chain[i]->rows[k]->token, NULL, 0);
}

/* The row's lists are made anew. */
static void make_lists(plan_t *p, plan_row_t *row, const plan_asker_t *asker)
{
    if (p->shape == PLAN_TWO_TREE) tidy_roomy(p);
    p->looks += plan_list_make(p, row, asker);
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
        if (other == link || plan_is_publishers_place(p, other->place)) continue;
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
    plan_link_t *link = row->link;
    bool is_head = p->publisher && (is_all(row->sources, row->source_count, p->publisher) ||
                                    is_all(row->others, row->other_count, p->publisher));
    bool may_go = is_head && !link->key.wave && !plan_is_publishers_place(p, link->place);
    if (may_go && is_followed(p, link)) to_tail(p, link);
}

uint64_t plan_next_torn(plan_t *p)
{
    while (p->torn_count) {
        plan_row_t *row = p->torn[--p->torn_count];
        row->is_torn = false;
        if (row->fetch >= PLAN_FETCHING && plan_list_is_torn(p, row)) return row->token;
    }
    return 0;
}

void plan_mend(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return;
    plan_asker_t asker = {.token = token, .place = row->link->place};
    charge(p, row, false);
    if (row->half) make_lists(p, row, &asker);
    else plan_list_mend(p, row, &asker);
    charge(p, row, true);
}
