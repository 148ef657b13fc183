/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/plan/sources.h"

#include "broker/plan/shape.h"

#include <string.h>

/* ---- the choice ---- */

/* A list that is being made. */
typedef struct {
    const plan_t *p;
    const plan_asker_t *asker;
    const plan_station_t *station; /* of the asker's place, or its own; NULL: none */
    bool is_member;
    uint64_t beside; /* token of what is to give the asker the other half of the chunks; 0: none */
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
    bool is_far = row->station != l->station;
    l->looks++;
    if (!is_wanted(l, row->token) || choice->count == PLAN_CANDIDATES) return;
    choice->has_far |= is_far;
    choice->found[choice->count++] =
        (candidate_t){.is_far = is_far,
                      .load = is_far ? plan_station_load(row->station) : row->load,
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
        choice->found[i].is_slow = plan_station_is_limited(choice->found[i].row->station) ||
                                   (rate && rate < best_rate / PLAN_SLOW_FACTOR);
    }
}

/* In a chain a holder of another station serves one station at a time: more of them would share its uplink,
 * and a member at the tail has all of it.  What is at the publisher's place leaves by the publisher's uplink.
 * */
static bool is_free(const plan_t *p, const plan_row_t *row)
{
    if (plan_row_is_leaf(row) || row->is_demoted) return false;
    return p->shape == PLAN_STAR ||
           (!plan_station_load(row->station) && !plan_is_publishers_place(p, row->station->place));
}

/* The walk over the holders starts at a place of the ring that depends on the asker, because only the first
 * PLAN_CANDIDATES are compared.  With `any` also those that are not free. */
static void find_holders(list_t *l, choice_t *choice, bool any)
{
    const plan_t *p = l->p;
    for (size_t i = 0; l->station && i < l->station->count; i++) {
        const plan_row_t *row = l->station->rows[i];
        if (row->has != PLAN_PARTS) add_candidate(l, row, choice);
    }
    size_t most = p->source_count < PLAN_CANDIDATES ? p->source_count : PLAN_CANDIDATES;
    for (size_t k = 0; k < most; k++) {
        const plan_row_t *row = p->sources[(k + l->asker->token) % p->source_count];
        if (row->station != l->station && (any || is_free(p, row))) add_candidate(l, row, choice);
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

/* The row of the station that others fetch from: one that has all bytes, else the one that fetches, else,
 * where there is nothing better, one that is stuck.  NULL: none. */
static const plan_row_t *head_of(const list_t *l, const plan_station_t *station, bool any)
{
    const plan_row_t *best = NULL;
    for (size_t i = 0; i < station->count; i++) {
        const plan_row_t *row = station->rows[i];
        bool is_last = plan_row_is_leaf(row) || row->is_demoted;
        if (!is_wanted(l, row->token) || (is_last && !any)) continue;
        if (row->has == PLAN_WHOLE) return row;
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
    bool is_fetching = row->fetch >= PLAN_FETCHING && row->has == PLAN_PARTS;
    return is_fetching && count ? plan_row(p, tokens[0]) : NULL;
}

/* How many stations the half of the chunks passes on its way to this row.  UINT32_MAX: `top` is one of them,
 * or the row's.  A station that came later serves none that was there before: so the way of those that came
 * later, which may be long, is not followed. */
static uint32_t depth_below(list_t *l, const plan_row_t *row, uint32_t half, const plan_station_t *top)
{
    uint32_t depth = 0;
    if (row->station->key.wave) return row->station == top ? UINT32_MAX : 0;
    for (; row; row = parent_of(l->p, row, half)) {
        l->looks++;
        if (row->station == top || depth > l->p->count) return UINT32_MAX;
        depth++;
    }
    return depth;
}

/* In a chain that is so by the order of the stations. */
static bool is_below(list_t *l, const plan_row_t *row, uint32_t half, const plan_station_t *top)
{
    return l->p->shape == PLAN_TWO_TREE && depth_below(l, row, half, top) == UINT32_MAX;
}

/* The heads of the stations before the asker's, the nearest first; a process that is no member is behind
 * all.  A member with a limited rate serves others like it, and with `any` all. */
static void add_before(list_t *l, uint32_t most, bool any)
{
    const plan_t *p = l->p;
    for (size_t i = l->is_member ? plan_station_index(p, l->station) : p->station_count;
         i-- > 0 && l->count < most;) {
        const plan_station_t *station = p->chain[i];
        l->looks++;
        if (plan_is_publishers_place(p, station->place)) continue;
        if (!any && plan_station_is_limited(station) &&
            !(l->is_member && plan_station_is_limited(l->station)))
            continue;
        const plan_row_t *head = head_of(l, station, any);
        if (head && !is_below(l, head, 1, l->station) && !is_below(l, head, 2, l->station))
            list_add(l, head->token, most);
    }
}

/* The publisher stands before the first station. */
static bool is_near_publisher(const list_t *l)
{
    size_t before = 0, at = plan_station_index(l->p, l->station);
    for (size_t i = 0; i < at && before < PLAN_SOURCES; i++)
        before += !plan_is_publishers_place(l->p, l->p->chain[i]->place);
    return before < PLAN_SOURCES;
}

/* ---- two trees ---- */

/* The station, or the publisher (NULL), may serve a half of the chunks more, and so `halves` at most. */
static bool has_room(const list_t *l, const plan_station_t *station, uint32_t halves)
{
    const plan_row_t *beside = plan_row(l->p, l->beside);
    bool is_beside =
        station ? beside && beside->station == station : l->beside && l->beside == l->p->publisher;
    return (station ? plan_station_load(station) : l->p->publisher_load) + is_beside < halves;
}

/* A station that may serve the asker's station more than it does: it has as much as that, or more. */
static const plan_row_t *head_with_room(const list_t *l, const plan_station_t *station, uint32_t halves)
{
    const plan_t *p = l->p;
    bool is_for_limited = l->station && plan_station_is_limited(l->station);
    if (station == l->station || plan_is_publishers_place(p, station->place) || !has_room(l, station, halves))
        return NULL;
    if (plan_station_is_limited(station) && !is_for_limited) return NULL;
    const plan_row_t *head = head_of(l, station, false);
    bool is_behind =
        l->station && head && head->has != PLAN_WHOLE && station->key.wave > l->station->key.wave;
    return is_behind ? NULL : head;
}

/* One with a limited rate is found for others like it alone, and they leave the rest to the others. */
static bool is_better_relay(const plan_row_t *a, uint32_t a_depth, const plan_row_t *b, uint32_t b_depth)
{
    if (plan_station_is_limited(a->station) != plan_station_is_limited(b->station))
        return plan_station_is_limited(a->station);
    bool is_whole = a->has == PLAN_WHOLE;
    if (is_whole != (b->has == PLAN_WHOLE)) return is_whole;
    if (a->station->key.wave != b->station->key.wave) return a->station->key.wave < b->station->key.wave;
    if (a_depth != b_depth) return a_depth < b_depth;
    return plan_key_order(&a->station->key, &b->station->key) < 0;
}

/* The station with room that gets the bytes first and is not below `top`, for one half of the chunks or for
 * both (half 0).  For one with a limited rate others like it come first.  NULL: none. */
static const plan_row_t *find_relay(list_t *l, uint32_t half, const plan_station_t *top)
{
    const plan_t *p = l->p;
    const plan_row_t *best = NULL;
    uint32_t best_depth = 0;
    for (size_t i = 0; i < p->roomy_count && i < PLAN_CANDIDATES; i++) {
        const plan_station_t *station = p->roomy[i];
        const plan_row_t *head = head_with_room(l, station, PLAN_HALVES);
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

/* One that was put last takes as much as before, and gives nothing: so those that come after it find no room.
 * It was blamed, and takes little as a rule: its parent serves a half more.  Else a station near that one
 * does, which is deep in the trees: it sends half as much again, and few wait for it.  NULL: none was put
 * last, or all such stations send as much already. */
static const plan_row_t *find_beside_last(list_t *l, uint32_t half)
{
    const plan_t *p = l->p;
    const plan_row_t *parent = NULL;
    size_t count = p->station_count;
    for (size_t i = count; i-- > 0 && count - i <= PLAN_CANDIDATES && !parent;) {
        const plan_station_t *last = p->chain[i];
        l->looks++;
        if (last->is_put_last && last != l->station) parent = parent_of(p, plan_shape_head(last), half);
    }
    size_t at = parent ? plan_station_index(p, parent->station) : 0;
    for (size_t i = 0; parent && i < count && i < PLAN_CANDIDATES; i++) {
        const plan_row_t *head = head_with_room(l, p->chain[(at + count - i) % count], PLAN_HALVES + 1);
        l->looks++;
        if (head && !is_below(l, head, half, l->station)) return head;
    }
    return NULL;
}

/* It serves, and may serve the row this half of the chunks, or both (half 0): no members wait for each other
 * in a circle. */
static bool is_source(const plan_t *p, const plan_row_t *row, uint64_t token, uint32_t half)
{
    const plan_row_t *source = plan_row(p, token);
    if (!source) return token && token == p->publisher;
    if (source->station == row->station && source->has != PLAN_PARTS) return true;
    if (source->has == PLAN_WHOLE) return !source->is_demoted;
    if (!plan_serves(p, source)) return false;
    if (p->shape != PLAN_TWO_TREE) return plan_key_order(&source->station->key, &row->station->key) < 0;
    list_t l = {.p = p};
    bool is_behind = source->station == row->station || source->station->key.wave > row->station->key.wave;
    for (uint32_t each = 1; each <= 2 && !is_behind; each++)
        is_behind = (!half || half == each) && is_below(&l, source, each, row->station);
    return !is_behind;
}

/* The parent of a half: the one that it has, as long as that serves the row; then the next one of its list
 * that has room, which the worker turns to by itself; then a station with room.  One without room is better
 * than the publisher, whose uplink is that of all. */
static void add_parent(list_t *l, const plan_row_t *row, uint32_t half)
{
    uint32_t count;
    const uint64_t *tokens = list_for(row, half, &count);
    for (uint32_t i = 0; i < count && !l->count; i++) {
        const plan_row_t *source = plan_row(l->p, tokens[i]);
        bool may_serve = !i || has_room(l, source ? source->station : NULL, PLAN_HALVES);
        if (may_serve && is_source(l->p, row, tokens[i], half)) list_add(l, tokens[i], 1);
    }
    const plan_row_t *relay = l->count ? NULL : find_relay(l, half, l->station);
    if (!relay && !l->count) relay = find_beside_last(l, half);
    if (relay) list_add(l, relay->token, 1);
    for (uint32_t i = 0; i < count && !l->count; i++) {
        const plan_row_t *source = plan_row(l->p, tokens[i]);
        if (source && has_room(l, source->station, PLAN_HALVES + 1) && is_source(l->p, row, tokens[i], half))
            list_add(l, tokens[i], 1);
    }
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
    if (!parent || parent->has == PLAN_WHOLE) return;
    uint32_t up_count, aside_count;
    const uint64_t *up = list_for(parent, half, &up_count), *aside = list_for(parent, 3 - half, &aside_count);
    const plan_row_t *next = aside_count ? plan_row(p, aside[0]) : NULL;
    if (next && !is_source(p, row, next->token, half)) next = NULL;
    bool is_first_child = l->station->number % 2 == 0;
    bool is_below_other = next && is_below(l, next, half, parent->station);
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
    bool is_here = plan_is_publishers_place(p, l->asker->place) || (row && row->is_cut_off);
    if (is_here) list_add(l, p->publisher, PLAN_SOURCES);
    bool has_last = !is_here && is_wanted(l, p->publisher);
    uint32_t most = has_last ? PLAN_SOURCES - 1 : PLAN_SOURCES;
    find_holders(l, &choice, false);
    add_best(l, &choice, most);
    bool is_relayed = p->shape != PLAN_STAR && !choice.has_far && !(is_here && l->count);
    if (is_relayed && p->shape == PLAN_TWO_TREE)
        for (const plan_row_t *relay; l->count < most && (relay = find_relay(l, 0, l->station));)
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
                    .station = row ? row->station : plan_place(p, asker->place),
                    .is_member = row != NULL,
                    .sources = sources};
}

uint32_t plan_sources_choose(const plan_t *p, const plan_asker_t *asker, uint64_t ret_sources[PLAN_SOURCES])
{
    list_t l = list_of(p, asker, ret_sources);
    fill_list(&l);
    return l.count;
}

/* ---- the lists of a row ---- */

/* A list for each half of the chunks.  A fetch that began with one list for all goes on with one: the worker
 * asks for the halves by themselves only where it has begun with two.  So does one that a holder can serve
 * alone. */
static bool is_in_halves(const plan_t *p, const plan_row_t *row, const plan_asker_t *asker)
{
    bool is_of_publisher = row->is_cut_off || plan_is_publishers_place(p, row->station->place);
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

uint64_t plan_sources_make(const plan_t *p, plan_row_t *row, const plan_asker_t *asker)
{
    uint64_t sources[PLAN_SOURCES], others[PLAN_SOURCES];
    list_t l = list_of(p, asker, sources), other = list_of(p, asker, others);
    uint32_t half = row->half ? row->half : 1;
    if (is_in_halves(p, row, asker)) {
        if (row->fetch < PLAN_FETCHING) row->source_count = row->other_count = 0;
        if (row->other_count && is_source(p, row, row->others[0], 3 - half))
            l.beside = row->others[0]; /* it goes on with that, as a rule */
        make_half(&l, row, half);
        other.beside = l.count ? sources[0] : 0;
        make_half(&other, row, 3 - half);
    }
    row->half = l.count + other.count ? half : 0;
    if (!row->half) fill_list(&l);
    memcpy(row->sources, sources, l.count * sizeof *sources);
    memcpy(row->others, others, other.count * sizeof *others);
    row->source_count = l.count;
    row->other_count = other.count;
    return l.looks + other.looks;
}

bool plan_sources_is_torn(const plan_t *p, const plan_row_t *row)
{
    bool is_torn = false;
    for (uint32_t i = 0; i < row->source_count; i++)
        is_torn |= !is_source(p, row, row->sources[i], row->half);
    for (uint32_t i = 0; i < row->other_count; i++)
        is_torn |= !is_source(p, row, row->others[i], 3 - row->half);
    return is_torn;
}

/* Those that are left stay in front: the member reads from one of them by now, and what it lost before is not
 * among them. */
void plan_sources_mend(const plan_t *p, plan_row_t *row, const plan_asker_t *asker)
{
    uint64_t sources[PLAN_SOURCES], more[PLAN_SOURCES];
    list_t l = list_of(p, asker, sources);
    for (uint32_t i = 0; i < row->source_count; i++)
        if (is_source(p, row, row->sources[i], 0)) list_add(&l, row->sources[i], PLAN_SOURCES);
    uint32_t more_count = plan_sources_choose(p, asker, more);
    for (uint32_t i = 0; i < more_count; i++) list_add(&l, more[i], PLAN_SOURCES);
    memcpy(row->sources, sources, l.count * sizeof *sources);
    row->source_count = l.count;
}
