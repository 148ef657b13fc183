/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/plan/sources.h"

#include "broker/plan/restored.h"
#include "broker/plan/shape.h"

#include <string.h>

/* Stations that last resorts are spread over, and that are looked at for those before one. */
#define MOST_SPREAD (16 * PLAN_CANDIDATES)

/* ---- the choice ---- */

/* A list that is being made. */
typedef struct {
    const plan_t *p;
    const plan_asker_t *asker;
    const plan_station_t *station; /* of the asker's place, or its own; NULL: none */
    bool is_member;
    bool is_split;   /* the asker fetches in halves */
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
                      .load = is_far ? row->station->load : row->load,
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
    if (plan_row_is_last_resort(row) || row->is_demoted) return false;
    return p->shape == PLAN_STAR ||
           (!row->station->load && !plan_is_publishers_place(p, row->station->place));
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
static plan_row_t *head_of(const list_t *l, const plan_station_t *station, bool any)
{
    plan_row_t *best = NULL;
    for (size_t i = 0; i < station->count; i++) {
        plan_row_t *row = station->rows[i];
        bool is_last = plan_row_is_last_resort(row) || row->is_demoted;
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

/* The token of the source that the row gets a half of the chunks from: where its first one has gone, the next
 * one, though its list may not be repaired yet.  0: it has them, or has no source. */
static uint64_t asked_by(const plan_t *p, const plan_row_t *row, uint32_t half)
{
    uint32_t count;
    const uint64_t *tokens = list_for(row, half, &count);
    bool is_fetching = row->fetch >= PLAN_FETCHING && row->has == PLAN_PARTS;
    return is_fetching ? plan_asked(p, tokens, count) : 0;
}

/* The row of that source.  NULL: none, or it is the publisher. */
static plan_row_t *parent_of(const plan_t *p, const plan_row_t *row, uint32_t half)
{
    return plan_row(p, asked_by(p, row, half));
}

/* How many stations the half of the chunks passes on its way to this row.  UINT32_MAX: the asker's is one of
 * them, or the row's, or the row waits for itself.  Ways meet: each row passes on what a walk for the same
 * asker has found.  A station that came later serves none that was there before: so the way of those that
 * came later, which may be long, is not followed, but where lists of a former broker may say otherwise. */
static uint32_t depth_below(list_t *l, plan_row_t *row, uint32_t half)
{
    const plan_t *p = l->p;
    if (row->station->key.wave && p->order == ORDER_OF_KEYS)
        return row->station == l->station ? UINT32_MAX : 0;
    plan_row_t *at = row;
    uint32_t steps = 0;
    for (; at && at->station != l->station && at->ways[half - 1].walk != p->walks; steps++) {
        at->ways[half - 1] = (plan_way_t){p->walks, UINT32_MAX}; /* it stays so in a circle */
        at = parent_of(p, at, half);
        l->looks++;
    }
    uint32_t depth = !at ? 0 : at->station == l->station ? UINT32_MAX : at->ways[half - 1].depth;
    if (depth == UINT32_MAX) return depth;
    depth += steps;
    for (uint32_t left = depth; row != at; row = parent_of(p, row, half)) row->ways[half - 1].depth = left--;
    return depth;
}

/* In a chain that is so by the order of the stations. */
static bool is_below(list_t *l, plan_row_t *row, uint32_t half)
{
    return l->p->shape == PLAN_TWO_TREE && depth_below(l, row, half) == UINT32_MAX;
}

/* The row gets the half of the chunks by way of the other one's station, as far as walks have found both: it
 * is that many stations behind it then. */
static bool passes(list_t *l, const plan_row_t *row, uint32_t half, const plan_row_t *other)
{
    const plan_way_t *end = &other->ways[half - 1];
    if (row->ways[half - 1].walk != l->p->walks || end->walk != l->p->walks) return false;
    for (; row && row->ways[half - 1].depth > end->depth; row = parent_of(l->p, row, half)) l->looks++;
    return row && row->station == other->station;
}

/* Of the stations before number `at` the nearest one that sends less than all bytes, where the nearest of all
 * has them and sends them to others by now.  NULL: that does not, or there is none. */
static const plan_row_t *find_idle(list_t *l, plan_station_t *const *stations, size_t at)
{
    const plan_row_t *idle = NULL;
    bool is_first = true;
    for (size_t i = at; i-- > 0 && at - i <= PLAN_CANDIDATES && !idle;) {
        const plan_station_t *station = stations[i];
        l->looks++;
        const plan_row_t *head =
            plan_is_publishers_place(l->p, station->place) ? NULL : head_of(l, station, false);
        if (!head) continue;
        if (is_first && (head->has != PLAN_WHOLE || station->load < PLAN_HALVES)) return NULL;
        is_first = false;
        if (station->load < PLAN_HALVES) idle = head;
    }
    return idle;
}

/* The heads of the stations before this one (NULL: of all), the nearest first.  A member with a limited rate
 * serves others like it, and with `any` all. */
static void add_before_station(list_t *l, const plan_station_t *before, uint32_t most, bool any)
{
    const plan_t *p = l->p;
    bool is_for_all = any || (l->is_member && plan_station_is_limited(l->station));
    plan_station_t **stations = is_for_all ? p->chain : p->normals;
    size_t at = is_for_all ? p->station_count : p->normal_count, seen = 0;
    if (before) at = is_for_all ? plan_station_index(p, before) : plan_normal_index(p, before);
    bool may_be_idle = p->shape == PLAN_CHAIN && p->source_count && !l->count && !any;
    const plan_row_t *idle = may_be_idle ? find_idle(l, stations, at) : NULL;
    if (idle) list_add(l, idle->token, most);
    while (at-- > 0 && l->count < most && (any || seen++ < MOST_SPREAD)) {
        const plan_station_t *station = stations[at];
        l->looks++;
        if (plan_is_publishers_place(p, station->place)) continue;
        plan_row_t *head = head_of(l, station, any);
        if (head && !is_below(l, head, 1) && !is_below(l, head, 2)) list_add(l, head->token, most);
    }
}

/* The same before the asker's station; a process that is no member is behind all. */
static void add_before(list_t *l, uint32_t most, bool any)
{
    add_before_station(l, l->is_member ? l->station : NULL, most, any);
}

/* The publisher stands before the first station. */
static bool is_near_publisher(const list_t *l)
{
    size_t before = 0, at = plan_station_index(l->p, l->station);
    for (size_t i = 0; i < at && before < PLAN_SOURCES; i++)
        before += !plan_is_publishers_place(l->p, l->p->chain[i]->place);
    return before < PLAN_SOURCES;
}

/* ---- two trees, and last resorts ---- */

/* Halves of the chunks that the station, or the publisher (NULL), sends, with what it is to give the
 * asker. */
static uint32_t load_of(const list_t *l, const plan_station_t *station)
{
    const plan_row_t *beside = plan_row(l->p, l->beside);
    bool is_beside =
        station ? beside && beside->station == station : l->beside && l->beside == plan_server(l->p);
    return (station ? station->load : l->p->publisher_load) + is_beside;
}

/* It may serve a half of the chunks more, and so `halves` at most. */
static bool has_room(const list_t *l, const plan_station_t *station, uint32_t halves)
{
    return load_of(l, station) < halves;
}

/* A station that may serve the asker's station more than it does: it has as much as that, or more. */
static plan_row_t *head_with_room(const list_t *l, const plan_station_t *station, uint32_t halves)
{
    const plan_t *p = l->p;
    bool is_for_limited = l->station && l->station->key.rank == PLAN_LIMITED;
    if (station == l->station || plan_is_publishers_place(p, station->place) || !has_room(l, station, halves))
        return NULL;
    if (plan_station_is_limited(station) && !is_for_limited) return NULL;
    plan_row_t *head = head_of(l, station, false);
    bool is_behind =
        l->station && head && head->has != PLAN_WHOLE && station->key.wave > l->station->key.wave;
    return is_behind ? NULL : head;
}

/* Which one comes first, whatever their depths; 0: the one that is less deep. */
static int relay_order(const plan_row_t *a, const plan_row_t *b)
{
    bool is_whole = a->has == PLAN_WHOLE;
    uint32_t wave = a->station->key.wave, other = b->station->key.wave;
    if (is_whole != (b->has == PLAN_WHOLE)) return is_whole ? -1 : 1;
    return (wave > other) - (wave < other);
}

/* By its turn in the tree of the half the source does not wait for the row, whatever goes (shape.h). */
static bool has_earlier_turn(const plan_row_t *source, const plan_row_t *row, uint32_t half)
{
    const plan_station_t *before = source->station, *station = row->station;
    return !before->number || !station->number || before->turns[half - 1] < station->turns[half - 1];
}

/* Of these the station with room that gets the bytes first and is not below the asker's, for one half of the
 * chunks or for both (half 0).  `before`: not one that may wait for this row; NULL: any.  NULL: none. */
static const plan_row_t *find_relay_of(list_t *l, const plan_roomy_t *roomy, uint32_t half,
                                       const plan_row_t *before)
{
    const plan_row_t *best = NULL;
    uint32_t best_depth = 0;
    for (size_t i = 0; i < roomy->count && i < PLAN_CANDIDATES; i++) {
        const plan_station_t *station = roomy->stations[i];
        plan_row_t *head = head_with_room(l, station, PLAN_HALVES);
        l->looks++;
        int order = head && best ? relay_order(head, best) : -1;
        if (!head || order > 0 || (before && !has_earlier_turn(head, before, half))) continue;
        uint32_t depth = depth_below(l, head, half ? half : 1);
        uint32_t other = half || depth == UINT32_MAX ? depth : depth_below(l, head, 2);
        if (other == UINT32_MAX) continue;
        if (other > depth) depth = other;
        bool is_better = order < 0 || depth < best_depth ||
                         (depth == best_depth && plan_key_order(&station->key, &best->station->key) < 0);
        if (!is_better) continue;
        best = head;
        best_depth = depth;
    }
    return best;
}

/* One with a limited rate is found for others like it alone, and they leave the rest to the others. */
static const plan_row_t *find_relay(list_t *l, uint32_t half, const plan_row_t *before)
{
    bool is_limited = l->station && l->station->key.rank == PLAN_LIMITED;
    const plan_row_t *relay = is_limited ? find_relay_of(l, &l->p->roomy[1], half, before) : NULL;
    return relay ? relay : find_relay_of(l, &l->p->roomy[0], half, before);
}

/* Where the choice of one that sends least begins: in a chain behind the nearest station; in trees at the
 * middle ones, which are deep, so that few wait for them. */
static size_t first_to_serve(const list_t *l)
{
    const plan_t *p = l->p;
    if (p->shape == PLAN_CHAIN) return plan_normal_index(p, l->station);
    return (p->tree_count ? p->tree_count : p->normal_count) / 2;
}

/* Number `i` of the stations from there: in a chain to the front, in trees to both sides.  NULL: there are
 * no more. */
static const plan_station_t *nth_to_serve(const plan_t *p, size_t first, size_t i)
{
    size_t count = p->normal_count, away = (i + 1) / 2;
    if (p->shape == PLAN_CHAIN) return i < first ? p->normals[first - 1 - i] : NULL;
    return i < count ? p->normals[(first + (i % 2 ? away : count - away)) % count] : NULL;
}

/* The head of a station that sends least, and is not below the asker's: so those that give nothing are
 * spread over all.  Of equals `now`, which the asker reads from.  One with a limited rate is none.  NULL:
 * there is none. */
static const plan_row_t *find_least(list_t *l, uint32_t half, uint64_t now)
{
    const plan_t *p = l->p;
    const plan_row_t *best = NULL, *source = plan_row(p, now);
    const plan_station_t *station, *own = source ? source->station : NULL;
    size_t most = plan_station_is_last_resort(l->station) ? MOST_SPREAD : PLAN_CANDIDATES,
           first = first_to_serve(l);
    uint32_t least = UINT32_MAX,
             enough = p->shape == PLAN_CHAIN ? 0 : PLAN_HALVES; /* none has room in trees */
    for (size_t i = 0; i < most && (station = nth_to_serve(p, first, i)) != NULL && least > enough; i++) {
        l->looks++;
        uint32_t load = load_of(l, station);
        bool is_better = load < least || (load == least && station == own);
        plan_row_t *head = is_better ? head_with_room(l, station, UINT32_MAX) : NULL;
        if (!head || is_below(l, head, half)) continue;
        best = head;
        least = load;
    }
    return best;
}

/* Whether one may serve the row. */
typedef enum {
    SERVES_NOT,
    SERVES_UNLESS_BELOW, /* in two trees: if it does not get the bytes from the row itself */
    SERVES
} serves_t;

static serves_t serving(const plan_t *p, const plan_row_t *row, uint64_t token)
{
    const plan_row_t *source = plan_row(p, token);
    if (!source) return token && token == plan_server(p) ? SERVES : SERVES_NOT;
    bool is_here = source->station == row->station, is_chain = p->shape != PLAN_TWO_TREE;
    const plan_key_t *key = &source->station->key, *own = &row->station->key;
    if (is_here && source->has != PLAN_PARTS) return SERVES;
    if (source->has == PLAN_WHOLE) return source->is_demoted ? SERVES_NOT : SERVES;
    if (!plan_serves(p, source)) return SERVES_NOT;
    if (is_chain) return plan_key_order(key, own) < 0 ? SERVES : SERVES_NOT;
    return is_here || key->wave > own->wave ? SERVES_NOT : SERVES_UNLESS_BELOW;
}

/* It serves, and may serve the row this half of the chunks, or both (half 0): no members wait for each other
 * in a circle. */
static bool is_source(list_t *l, const plan_row_t *row, uint64_t token, uint32_t half)
{
    serves_t serves = serving(l->p, row, token);
    plan_row_t *source = plan_row(l->p, token);
    bool is_below_it = false;
    for (uint32_t each = 1; serves == SERVES_UNLESS_BELOW && each <= 2 && !is_below_it; each++)
        is_below_it = (!half || half == each) && is_below(l, source, each);
    return serves != SERVES_NOT && !is_below_it;
}

/* One of the member's own place that has all bytes: they are in memory that it can hold. */
static void add_holder_here(list_t *l)
{
    for (size_t i = 0; i < l->station->count; i++) {
        const plan_row_t *holder = l->station->rows[i];
        l->looks++;
        if (holder->has != PLAN_PARTS) list_add(l, holder->token, 1);
    }
}

/* Both are of one station, or the publisher. */
static bool is_same(const plan_t *p, uint64_t token, uint64_t other)
{
    const plan_row_t *row = plan_row(p, token), *other_row = plan_row(p, other);
    return token == other || (row && other_row && row->station == other_row->station);
}

/* The asker has lost the one before number `at` of its list, which this one serves, the publisher too.  So
 * many halves that it sends there are for the asker from now on, though the broker may not know yet that the
 * lost one has gone.  One that is stuck is no load any more. */
static uint32_t halves_of_lost(const list_t *l, const uint64_t *tokens, uint32_t at)
{
    const plan_t *p = l->p;
    bool has_lost = at && has_number(l->asker->lost, l->asker->lost_count, tokens[at - 1]);
    const plan_row_t *lost = has_lost ? plan_row(p, tokens[at - 1]) : NULL;
    if (!lost || lost->fetch != PLAN_FETCHING) return 0;
    return is_same(p, asked_by(p, lost, 1), tokens[at]) + is_same(p, asked_by(p, lost, 2), tokens[at]);
}

/* A station with room has all bytes, and its whole rate: it is better than the publisher. */
static bool has_free_holder(list_t *l, uint32_t half)
{
    const plan_row_t *holder = l->p->source_count ? find_relay(l, half, NULL) : NULL;
    return holder && holder->has == PLAN_WHOLE && !plan_station_is_limited(holder->station);
}

/* The parent of a half: one of its own place that has all bytes; the one that it has, as long as that serves
 * the row; then the next one of its list that has room, which the worker turns to by itself, but for the
 * publisher where a station with room has all bytes; then a station with room.  The third one of its list is
 * for where the second one has gone, too.  A station that sends half as much again is better than the
 * publisher without room, whose uplink is that of all; so is any where there are last resorts. */
static void add_parent(list_t *l, const plan_row_t *row, uint32_t half)
{
    add_holder_here(l);
    uint32_t count;
    const uint64_t *tokens = list_for(row, half, &count);
    for (uint32_t i = 0; i < count && !l->count; i++) {
        const plan_row_t *source = plan_row(l->p, tokens[i]);
        uint32_t left = halves_of_lost(l, tokens, i), halves = PLAN_HALVES + left;
        bool is_far_up = i > 1 && !left && is_source(l, row, tokens[1], half);
        bool may_serve = !i || (!is_far_up && has_room(l, source ? source->station : NULL, halves));
        may_serve = may_serve && !(i && !source && has_free_holder(l, half));
        if (may_serve && is_source(l, row, tokens[i], half)) list_add(l, tokens[i], 1);
    }
    const plan_row_t *relay = l->count ? NULL : find_relay(l, half, NULL);
    if (relay) list_add(l, relay->token, 1);
    for (uint32_t i = 0; i < count && !l->count; i++) {
        const plan_row_t *source = plan_row(l->p, tokens[i]);
        if (source && has_room(l, source->station, PLAN_HALVES + 1) && is_source(l, row, tokens[i], half))
            list_add(l, tokens[i], 1);
    }
    bool is_spread = l->p->last_resort_count > 0;
    bool is_beside = !l->count && (is_spread || !has_room(l, NULL, PLAN_HALVES));
    const plan_row_t *least = is_beside ? find_least(l, half, 0) : NULL;
    if (least && (is_spread || has_room(l, least->station, PLAN_HALVES + 1))) list_add(l, least->token, 1);
    list_add(l, plan_server(l->p), 1);
}

/* A list of one source is made longer where another one may serve the row: one with all bytes, else a
 * station near its own, else the publisher.  So no member stands still when a single one goes. */
static void add_second(list_t *l, const plan_row_t *row, uint32_t half)
{
    const plan_t *p = l->p;
    bool is_limited = plan_station_is_limited(l->station);
    bool is_of_publisher = l->count && l->sources[0] == plan_server(p); /* none of the others is before it */
    for (size_t i = 0; i < p->source_count && i < PLAN_CANDIDATES && l->count == 1; i++) {
        const plan_row_t *holder = p->sources[(i + l->asker->token) % p->source_count];
        bool may_serve =
            !plan_row_is_last_resort(holder) && (is_limited || !plan_station_is_limited(holder->station));
        l->looks++;
        if (may_serve && is_source(l, row, holder->token, half)) list_add(l, holder->token, PLAN_SOURCES);
    }
    size_t count = p->station_count, at = plan_station_index(p, l->station);
    for (size_t i = 1; i < count && i <= PLAN_CANDIDATES && l->count == 1; i++) {
        const plan_station_t *station = p->chain[(at + count - i) % count];
        l->looks++;
        if (plan_is_publishers_place(p, station->place) || (plan_station_is_limited(station) && !is_limited))
            continue;
        const plan_row_t *head = head_of(l, station, false);
        bool is_before = head && (is_of_publisher || has_earlier_turn(head, row, half));
        if (is_before && is_source(l, row, head->token, half)) list_add(l, head->token, PLAN_SOURCES);
    }
    if (l->count == 1) list_add(l, plan_server(p), PLAN_SOURCES);
}

/* The first source of the parent for a half of the chunks; NULL: there is none, or it is the publisher. */
static const plan_row_t *grandparent(const plan_t *p, const plan_row_t *parent, uint32_t half)
{
    uint32_t count;
    const uint64_t *tokens = list_for(parent, half, &count);
    return count ? plan_row(p, tokens[0]) : NULL;
}

/* The same for this half, if it serves the row. */
static const plan_row_t *find_above(list_t *l, const plan_row_t *parent, const plan_row_t *row, uint32_t half)
{
    const plan_row_t *above = grandparent(l->p, parent, half);
    bool may_serve = above && has_earlier_turn(above, row, half) && is_source(l, row, above->token, half);
    return may_serve ? above : NULL;
}

/* What gives the parent the other half, if that serves the row. */
static const plan_row_t *find_aside(list_t *l, const plan_row_t *parent, const plan_row_t *row, uint32_t half)
{
    const plan_row_t *aside = grandparent(l->p, parent, 3 - half);
    bool may_serve = aside && has_earlier_turn(aside, row, half) && is_source(l, row, aside->token, half);
    return may_serve ? aside : NULL;
}

/* The parent's parent in the tree of the half (`above`); where there is none, the publisher is that. */
static void add_above(list_t *l, const plan_row_t *parent, const plan_row_t *above, uint32_t half)
{
    uint32_t count;
    const uint64_t *tokens = list_for(parent, half, &count);
    if (above) list_add(l, above->token, PLAN_SOURCES);
    else if (count && tokens[0] == plan_server(l->p)) list_add(l, tokens[0], PLAN_SOURCES);
}

/* The list of a half: the parent, and what there is without it.  Where the parent goes, both that served it
 * have room: its own parent, and the one that gave it the other half.  Of its two children one has the former
 * first, and the other one the latter, which must not wait for it: so none sends more than all bytes, and
 * neither waits for the other in a circle.  Where the latter has changed, and may wait for it now, a station
 * with room is that. */
static void fill_half(list_t *l, const plan_row_t *row, uint32_t half)
{
    const plan_t *p = l->p;
    add_parent(l, row, half);
    const plan_row_t *parent = l->count ? plan_row(p, l->sources[0]) : NULL;
    if (!parent || parent->has != PLAN_PARTS) {
        add_second(l, row, half);
        return;
    }
    const plan_row_t *above = find_above(l, parent, row, half);
    bool is_second = l->station->number && l->station->is_second[half - 1];
    const plan_row_t *aside = find_aside(l, parent, row, half);
    if (aside && (is_second || passes(l, aside, half, parent))) list_add(l, aside->token, PLAN_SOURCES);
    const plan_row_t *relay = is_second && !aside ? find_relay(l, half, row) : NULL;
    if (relay) list_add(l, relay->token, PLAN_SOURCES);
    add_above(l, parent, above, half);
    if (aside) list_add(l, aside->token, PLAN_SOURCES);
    if (above && l->count < PLAN_SOURCES) add_above(l, above, find_above(l, above, row, half), half);
    add_second(l, row, half);
}

/* ---- last resorts in a chain ---- */

/* The asker takes all bytes and gives none. */
static bool is_spread(const list_t *l)
{
    return l->p->shape == PLAN_CHAIN && l->is_member && plan_station_is_last_resort(l->station);
}

/* The head of a station with the least load, and those of the stations before that one.  A fetch goes on from
 * the first one of `tokens`, its list so far, where no other station sends less. */
static void add_spread(list_t *l, uint32_t half, const uint64_t *tokens, uint32_t count)
{
    const plan_t *p = l->p;
    bool is_fetching = plan_row(p, l->asker->token)->fetch >= PLAN_FETCHING;
    const plan_row_t *least = find_least(l, half, is_fetching && count ? tokens[0] : 0);
    if (!least) {
        add_before(l, PLAN_SOURCES, false);
        return;
    }
    list_add(l, least->token, PLAN_SOURCES);
    add_before_station(l, least->station, PLAN_SOURCES, false);
}

/* The second half is from a station with the least load beside the first one.  Where that is the same, all
 * bytes are from there.  `l` is its list for all. */
static void spread_list(list_t *l, list_t *other)
{
    const plan_t *p = l->p;
    const plan_row_t *first = l->count ? plan_row(p, l->sources[0]) : NULL;
    const plan_row_t *row = plan_row(p, l->asker->token);
    if (!is_spread(l) || !first || first->has != PLAN_PARTS || first->station == l->station) return;
    other->beside = first->token;
    add_spread(other, 2, row->others, row->other_count);
    const plan_row_t *second = other->count ? plan_row(p, other->sources[0]) : NULL;
    if (!second || second->station == first->station) {
        other->count = 0;
        return;
    }
    if (other->count < 2) list_add(other, first->token, PLAN_SOURCES);
}

/* In its own place the publisher is first: a region of it is held by all, and costs it nothing.  It is first
 * for a member that reaches no other one, too.  Elsewhere it is last, as it always has the bytes. */
static void fill_list(list_t *l)
{
    const plan_t *p = l->p;
    choice_t choice = {.count = 0};
    const plan_row_t *row = l->is_member ? plan_row(p, l->asker->token) : NULL;
    bool is_here = plan_is_publishers_place(p, l->asker->place) || (row && row->is_cut_off);
    if (is_here) list_add(l, plan_server(p), PLAN_SOURCES);
    bool has_last = !is_here && is_wanted(l, plan_server(p));
    uint32_t most = has_last ? PLAN_SOURCES - 1 : PLAN_SOURCES;
    find_holders(l, &choice, false);
    add_best(l, &choice, most);
    bool is_relayed = p->shape != PLAN_STAR && !choice.has_far && !(is_here && l->count);
    if (is_relayed && p->shape == PLAN_TWO_TREE)
        for (const plan_row_t *relay; l->count < most && (relay = find_relay(l, 0, NULL));)
            list_add(l, relay->token, most);
    else if (is_relayed && is_spread(l)) add_spread(l, 1, row->sources, row->source_count);
    else if (is_relayed) add_before(l, l->is_member ? PLAN_SOURCES : most, false);
    bool is_chain = p->shape == PLAN_CHAIN && !choice.has_far;
    if (has_last && (!is_chain || l->count < 2 || !l->is_member || is_near_publisher(l)))
        list_add(l, plan_server(p), PLAN_SOURCES);
    if (l->count) return;
    /* A holder that serves others, is at the place of a publisher that was lost, or is a last resort, is
     * better than none. */
    find_holders(l, &choice, true);
    add_best(l, &choice, PLAN_SOURCES);
    if (!l->count && p->shape != PLAN_STAR) add_before(l, PLAN_SOURCES, true);
}

/* ---- one that joins a chain behind those that were blamed ---- */

/* A station that was blamed, or a last resort, fetches from this one, or may when its source has gone.  It
 * takes as much as any, where it was blamed wrongly. */
static bool serves_blamed(list_t *l, const plan_station_t *station)
{
    const plan_t *p = l->p;
    bool serves = false;
    size_t count = p->blamed_count || p->last_resort_count ? p->station_count : 0;
    for (size_t i = count; i-- > 0 && count - i <= PLAN_CANDIDATES && !serves;) {
        const plan_station_t *last = p->chain[i];
        l->looks++;
        bool gives_nothing = plan_station_is_blamed(last) || plan_station_is_last_resort(last);
        if (!gives_nothing || last == l->station) continue;
        const plan_row_t *head = plan_shape_head(last);
        uint64_t token = head->source_count ? head->sources[0] : 0;
        const plan_row_t *source = plan_row(p, token), *other = parent_of(p, head, 2);
        bool is_fetching = head->fetch >= PLAN_FETCHING && head->has == PLAN_PARTS;
        serves = is_fetching && ((source ? source->station == station : token != plan_server(p)) ||
                                 (other && other->station == station));
    }
    return serves;
}

/* The heads of the two nearest stations before the asker's that may send half as much again; where last
 * resorts leave no two of these, of the two that send least.  False: there are no two. */
static bool find_pair(list_t *l, const plan_row_t *ret_pair[PLAN_HALVES])
{
    const plan_t *p = l->p;
    uint32_t found = 0;
    size_t at = plan_normal_index(p, l->station);
    for (size_t i = at; i-- > 0 && at - i <= PLAN_CANDIDATES && found < PLAN_HALVES;) {
        const plan_station_t *station = p->normals[i];
        l->looks++;
        if (plan_is_publishers_place(p, station->place)) continue;
        const plan_row_t *head = station->load <= PLAN_HALVES ? head_of(l, station, false) : NULL;
        if (head) ret_pair[found++] = head;
    }
    if (found == PLAN_HALVES || !p->last_resort_count) return found == PLAN_HALVES;
    ret_pair[0] = find_least(l, 1, 0);
    l->beside = ret_pair[0] ? ret_pair[0]->token : 0;
    ret_pair[1] = find_least(l, 2, 0);
    l->beside = 0;
    return ret_pair[0] && ret_pair[0]->station != ret_pair[1]->station;
}

/* The last station of a chain serves those that were blamed, which may be as fast as any: one that joins
 * behind it would cost it all bytes a second time.  So it gets a half of the chunks from there, and the
 * other one from the station before.  `l` is its list for all. */
static void split_list(list_t *l, list_t *other)
{
    const plan_t *p = l->p;
    const plan_row_t *first = l->count ? plan_row(p, l->sources[0]) : NULL, *pair[PLAN_HALVES];
    bool is_of_tail = p->shape == PLAN_CHAIN && l->is_member && first && first->has == PLAN_PARTS &&
                      first->station != l->station && !plan_station_is_limited(l->station);
    bool may_serve_blamed = is_of_tail && (first->station->load || l->is_split);
    if (!may_serve_blamed || !serves_blamed(l, first->station)) return;
    const uint32_t count = l->count;
    uint64_t all[PLAN_SOURCES];
    memcpy(all, l->sources, count * sizeof *all);
    l->count = 0;
    if (find_pair(l, pair)) {
        for (uint32_t i = 0; i < PLAN_HALVES; i++) {
            list_add(l, pair[i]->token, PLAN_SOURCES);
            list_add(other, pair[PLAN_HALVES - 1 - i]->token, PLAN_SOURCES);
        }
        for (uint32_t i = 0; i < count; i++) list_add(other, all[i], PLAN_SOURCES);
    }
    for (uint32_t i = 0; i < count; i++) list_add(l, all[i], PLAN_SOURCES);
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

uint32_t plan_sources_choose(plan_t *p, const plan_asker_t *asker, uint64_t ret_sources[PLAN_SOURCES])
{
    plan_restored_arrange(p);
    p->walks++;
    list_t l = list_of(p, asker, ret_sources);
    fill_list(&l);
    return l.count;
}

/* ---- the lists of a row ---- */

/* A list for each half of the chunks.  A fetch that began with one list for all goes on with one: the worker
 * asks for the halves by themselves only where it has begun with two.  So does one that a holder can serve
 * alone. */
static bool is_in_halves(list_t *l, const plan_row_t *row)
{
    const plan_t *p = l->p;
    bool is_of_publisher = row->is_cut_off || plan_is_publishers_place(p, row->station->place);
    if (p->shape != PLAN_TWO_TREE || is_of_publisher) return false;
    if (row->fetch >= PLAN_FETCHING) return row->half != 0;
    choice_t choice = {.count = 0};
    find_holders(l, &choice, false);
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

void plan_sources_make(plan_t *p, plan_row_t *row, const plan_asker_t *asker)
{
    p->walks++;
    uint64_t sources[PLAN_SOURCES], others[PLAN_SOURCES];
    list_t l = list_of(p, asker, sources), other = list_of(p, asker, others);
    uint32_t half = row->half ? row->half : 1;
    if (is_in_halves(&l, row)) {
        if (row->fetch < PLAN_FETCHING) row->source_count = row->other_count = 0;
        if (row->other_count && is_source(&l, row, row->others[0], 3 - half))
            l.beside = row->others[0]; /* it goes on with that, as a rule */
        make_half(&l, row, half);
        other.beside = l.count ? sources[0] : 0;
        make_half(&other, row, 3 - half);
    }
    bool may_begin = row->fetch < PLAN_FETCHING || row->half;
    row->half = l.count + other.count ? half : 0;
    if (!row->half) {
        fill_list(&l);
        l.is_split = row->fetch >= PLAN_FETCHING;
        if (may_begin) split_list(&l, &other);
        if (may_begin) spread_list(&l, &other);
        if (other.count) row->half = half;
    }
    memcpy(row->sources, sources, l.count * sizeof *sources);
    memcpy(row->others, others, other.count * sizeof *others);
    row->source_count = l.count;
    row->other_count = other.count;
    p->looks += l.looks + other.looks;
}

/* Those that serve it no more, whatever they wait for, are found without a walk. */
bool plan_sources_is_torn(plan_t *p, const plan_row_t *row)
{
    p->walks++;
    list_t l = {.p = p, .station = row->station};
    bool is_torn = false;
    for (uint32_t i = 0; i < row->source_count; i++) is_torn |= !serving(p, row, row->sources[i]);
    for (uint32_t i = 0; i < row->other_count; i++) is_torn |= !serving(p, row, row->others[i]);
    for (uint32_t i = 0; i < row->source_count && !is_torn; i++)
        is_torn = !is_source(&l, row, row->sources[i], row->half);
    for (uint32_t i = 0; i < row->other_count && !is_torn; i++)
        is_torn = !is_source(&l, row, row->others[i], 3 - row->half);
    p->looks += l.looks;
    return is_torn;
}

/* Those that are left stay in front, behind those of its place: the member reads from one of them by now, and
 * what it lost before is not among them.  The publisher does not where the list made anew begins with one
 * that has all bytes and serves no other: that sends them as fast, and the publisher's uplink is that of all.
 * */
void plan_sources_mend(plan_t *p, plan_row_t *row, const plan_asker_t *asker)
{
    p->walks++;
    uint64_t sources[PLAN_SOURCES], more[PLAN_SOURCES];
    list_t l = list_of(p, asker, sources), anew = list_of(p, asker, more);
    fill_list(&anew);
    const plan_row_t *first = anew.count ? plan_row(p, more[0]) : NULL;
    bool is_free_first =
        first && first->has == PLAN_WHOLE && is_free(p, first) && !plan_station_is_limited(first->station);
    for (uint32_t i = 0; i < anew.count; i++) {
        const plan_row_t *source = plan_row(p, more[i]);
        if (source && source->station == row->station) list_add(&l, more[i], PLAN_SOURCES);
    }
    for (uint32_t i = 0; i < row->source_count; i++) {
        bool is_left = is_source(&l, row, row->sources[i], 0);
        if (is_left && !(is_free_first && row->sources[i] == plan_server(p)))
            list_add(&l, row->sources[i], PLAN_SOURCES);
    }
    for (uint32_t i = 0; i < anew.count; i++) list_add(&l, more[i], PLAN_SOURCES);
    memcpy(row->sources, sources, l.count * sizeof *sources);
    row->source_count = l.count;
    p->looks += l.looks + anew.looks;
}
