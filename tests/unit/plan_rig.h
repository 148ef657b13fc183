/* SPDX-License-Identifier: Apache-2.0 */
/* A plan, its members by number, and memberships drawn at random: of broker_plan.c and broker_trees.c. */
#ifndef TESTS_PLAN_RIG_H
#define TESTS_PLAN_RIG_H

#include "broker/plan/sources.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define PUBLISHER 9u

static plan_t P;

static void finish(void) { plan_fini(&P); }

static void start_with(plan_shape_t shape, uint64_t bytes)
{
    plan_init(&P, 2, shape, bytes);
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 0);
}

/* Named after its number, so that the order of the numbers is that of the chain. */
static bool add_to(plan_t *p, uint64_t token, uint64_t place)
{
    char name[32];
    snprintf(name, sizeof name, "w%06u", (unsigned)token);
    return plan_add(p, &(plan_member_t){.token = token, .place = place, .name = name, .zone = ""});
}

static bool add(uint64_t token, uint64_t place) { return add_to(&P, token, place); }

/* The rollout of those that were added begins. */
static void begin(void)
{
    plan_begin(&P);
    plan_make_all(&P);
}

/* Members `first` to `last` without places, and their lists. */
static void wave(uint64_t first, uint64_t last)
{
    for (uint64_t token = first; token <= last; token++) cr_assert(add(token, 0));
    begin();
}

static void add_last_resort(uint64_t token)
{
    char name[32];
    snprintf(name, sizeof name, "x%06u", (unsigned)token);
    cr_assert(
        plan_add(&P, &(plan_member_t){.token = token, .name = name, .zone = "", .is_last_resort = true}));
}

/* Relays from number 11 on, and behind them last resorts from number 1011 on: a rollout begins. */
static void wave_with_last_resorts(uint32_t relays, uint32_t last)
{
    for (uint64_t i = 0; i < relays; i++) cr_assert(add(11 + i, 0));
    for (uint64_t i = 0; i < last; i++) add_last_resort(1011 + i);
    begin();
}

enum { MANY = 10000 };

/* Ten thousand members from number 100 on, half of them on hosts of eight; so many of four hosts, and of four
 * others, have a limited rate.  A rollout begins. */
static inline void begin_many(uint32_t limited_of_four)
{
    char name[32];
    for (uint64_t token = 100; token < 100 + MANY; token++) {
        snprintf(name, sizeof name, "w%06u", (unsigned)token);
        cr_assert(plan_add(&P, &(plan_member_t){.token = token,
                                                .place = token % 2 ? token / 16 : 0,
                                                .name = name,
                                                .zone = "",
                                                .is_limited = token / 16 % 4 < limited_of_four}));
    }
    begin();
}

/* Returns how many lists it gives. */
static size_t mend(plan_t *p)
{
    size_t count = 0;
    for (uint64_t token; (token = plan_next_torn(p)) != 0; count++) plan_mend(p, token);
    return count;
}

/* As the broker does after each event. */
static size_t settle(plan_t *p)
{
    size_t count = mend(p);
    for (uint64_t token; (token = plan_next_woken(p)) != 0;) plan_make(p, token, NULL, 0);
    return count + mend(p);
}

/* Of those all but every tenth go, one after the other.  Returns how many lists that mends. */
static inline size_t end_many(void)
{
    size_t count = 0;
    for (uint64_t token = 100; token < 100 + MANY; token++) {
        if (token % 10 == 0) continue;
        plan_remove(&P, token);
        count += settle(&P);
    }
    return count;
}

/* Looks a member since the last call; they are bounded. */
static inline void check_looks(const char *what, uint64_t most)
{
    printf("%.1f looks a member %s\n", (double)P.looks / MANY, what);
    cr_assert_leq(P.looks, most * MANY, "%llu looks %s", (unsigned long long)P.looks, what);
    P.looks = 0;
}

/* ---- ten thousand come back ---- */

enum { FORMER_PUBLISHER = 7, NOW = 1000000 };
typedef enum { IN_ORDER, LAST_FIRST, ANY_ORDER } many_order_t;

/* Number `i` of those that come back. */
static inline uint64_t nth_back(many_order_t order, uint64_t i)
{
    uint64_t at = order == IN_ORDER ? i : order == LAST_FIRST ? MANY - 1 - i : i * 7919 % MANY;
    return 100 + at;
}

/* Under the tokens that its sources have by now. */
static inline uint32_t restate_many(const uint64_t *tokens, uint32_t count, uint64_t *ret_tokens)
{
    for (uint32_t i = 0; i < count; i++) {
        bool is_publisher = tokens[i] == PUBLISHER && P.publisher.state == PUBLISHER_NONE;
        uint64_t now = plan_row(&P, NOW + tokens[i]) ? NOW + tokens[i] : tokens[i];
        ret_tokens[i] = is_publisher ? FORMER_PUBLISHER : now;
    }
    return count;
}

/* As the broker does where it joins again: it fetches on, and has had ten tokens; a heartbeat follows. */
static inline void come_back(const plan_t *before, uint64_t token)
{
    const plan_row_t *row = plan_row(before, token);
    uint64_t now = NOW + token;
    plan_lists_t lists = {.half = row->half};
    lists.source_count = restate_many(row->sources, row->source_count, lists.sources);
    lists.other_count = restate_many(row->others, row->other_count, lists.others);
    cr_assert(plan_add(&P, &(plan_member_t){.token = now,
                                            .place = row->station->place,
                                            .name = strchr(row->key.text, '\x01') + 1,
                                            .zone = ""}));
    if (row->has == PLAN_WHOLE) plan_have(&P, now, true, 0);
    else if (row->fetch == PLAN_FETCHING) plan_restore(&P, now, &lists);
    for (uint64_t former = 0; former < 10; former++) plan_came_back(&P, token + former * NOW * 10, now);
    settle(&P);
    plan_leave_publisher(&P, now);
    settle(&P);
}

/* One has all bytes, and the broker is started again.  The publisher comes in the middle, and one that is new
 * after all others. */
static inline void come_back_many(many_order_t order)
{
    plan_have(&P, 100 + MANY / 2, true, 0);
    settle(&P);
    plan_t before = P;
    plan_init(&P, before.seed, before.wanted, before.bytes);
    plan_resume(&P);
    P.looks = 0;
    for (uint64_t i = 0; i < MANY; i++) {
        if (i == MANY / 2) {
            plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 0);
            plan_came_back(&P, FORMER_PUBLISHER, PUBLISHER);
            settle(&P);
        }
        come_back(&before, nth_back(order, i));
    }
    cr_assert_eq(P.absent.count, 0);
    check_looks("to come back", PLAN_HALVES * PLAN_SOURCES + 1);
    cr_assert(add(NOW - 1, 0));
    cr_assert(plan_make(&P, NOW - 1, NULL, 0));
    check_looks("as one joins", 2);
    plan_fini(&before);
}

/* As the broker does where others blame it: one that gets nothing, and has not all bytes, stays where it is. */
static void put_last(plan_t *p, uint64_t token)
{
    bool may_serve = plan_fetches(p, token) || plan_row(p, token)->has == PLAN_WHOLE;
    if (!may_serve || !plan_demote(p, token)) return;
    settle(p);
    size_t at = 0;
    for (uint64_t last; (last = plan_put_last(p, &at)) != 0;) plan_make(p, last, NULL, 0);
    settle(p);
}

/* Twenty of ten thousand are, one after the other. */
static inline void blame_many(void)
{
    for (uint64_t i = 0; i < 20; i++) put_last(&P, 100 + i * MANY / 25);
}

/* Its list for this half of the chunks; without halves that for all. */
static const uint64_t *list_for(const plan_row_t *row, uint32_t half, uint32_t *ret_count)
{
    bool is_other = row->half && row->half != half;
    *ret_count = is_other ? row->other_count : row->source_count;
    return is_other ? row->others : row->sources;
}

/* "12 11 9": the tokens of that list. */
static const char *list_text(uint64_t token, uint32_t half)
{
    static char text[4][128];
    static uint32_t calls;
    char *to = text[calls++ % 4];
    size_t used = 0;
    uint32_t count;
    const uint64_t *tokens = list_for(plan_row(&P, token), half, &count);
    to[0] = 0;
    for (uint32_t i = 0; i < count; i++)
        used += (size_t)snprintf(to + used, sizeof text[0] - used, "%s%u", i ? " " : "", (unsigned)tokens[i]);
    return to;
}

/* Halves of the chunks that lists begin with the member for. */
static uint32_t halves_of(uint64_t token)
{
    uint32_t halves = 0;
    for (size_t i = 0; i < P.count; i++)
        for (uint32_t half = 1; half <= 2 && P.rows[i]->fetch >= PLAN_FETCHING; half++) {
            uint32_t count;
            const uint64_t *tokens = list_for(P.rows[i], half, &count);
            halves += count && tokens[0] == token;
        }
    return halves;
}

/* Relays send `halves` in all, and none more than its share of them, or than all bytes. */
static void check_shares(uint32_t relays, uint32_t last, uint32_t halves)
{
    uint32_t share = (halves + relays - 1) / relays;
    if (share < PLAN_HALVES) share = PLAN_HALVES;
    for (uint64_t token = 11; token < 11 + relays; token++) {
        cr_assert_leq(halves_of(token), share, "%u halves out of one of %u, %u last resorts",
                      halves_of(token), relays, last);
        cr_assert_eq(plan_row(&P, token)->load, halves_of(token));
    }
    for (uint64_t token = 1011; token < 1011 + last; token++) cr_assert_eq(halves_of(token), 0);
    cr_assert_eq(halves_of(PUBLISHER), PLAN_HALVES, "%u relays, %u last resorts", relays, last);
}

/* The heads of four hosts of four go in one turn of the broker, before any list is made.  The next ones of these
 * hosts have the shape again: the publisher sends the bytes once, and so does each of them at most.  They waited for
 * the heads, or held what these were loading. */
static inline void check_heads_that_go_at_once(bool are_loading)
{
    for (uint64_t token = 11; token <= 26; token++) cr_assert(add(token, 1 + (token - 11) / 4));
    begin();
    for (uint64_t token = 11; token <= 26 && are_loading; token += 4) plan_loads(&P, token, true);
    settle(&P);
    cr_assert_eq(P.waiting_count, are_loading ? 0 : 12);
    for (uint64_t token = 11; token <= 26; token += 4) plan_remove(&P, token);
    settle(&P);
    cr_assert_eq(halves_of(PUBLISHER), PLAN_HALVES);
    for (size_t i = 0; i < P.count; i++)
        cr_assert_leq(halves_of(P.rows[i]->token), PLAN_HALVES, "%u", (unsigned)P.rows[i]->token);
    cr_assert_eq(P.waiting_count, 8, "one of each host fetches");
}

/* ---- any memberships ---- */

enum { MOST = 60 };

/* What the test knows of the members, by token. */
typedef struct {
    plan_t plan;
    uint64_t seed, rng, next_token, publisher, place_of[4096];
    uint64_t alive[MOST];
    uint32_t count;
    bool is_well;                 /* each of them is, and stays so */
    bool has_publisher_gone;      /* at times it goes, and comes back */
    bool has_limited, has_blamed; /* in a version before */
    bool has_lost[4096];          /* it asked for sources without some, and may be named one that is stuck */
} any_t;

static uint64_t below(any_t *a, uint64_t limit)
{
    a->rng ^= a->rng << 13;
    a->rng ^= a->rng >> 7;
    a->rng ^= a->rng << 17;
    return a->rng % limit;
}

/* In a chain most have a place.  Where some have a limited rate, some are last resorts. */
static uint64_t join(any_t *a)
{
    char name[24], zone[8];
    uint64_t token = a->next_token++;
    bool is_chain = a->plan.wanted == PLAN_CHAIN;
    snprintf(name, sizeof name, "w%llu-%llu", (unsigned long long)below(a, 1000), (unsigned long long)token);
    snprintf(zone, sizeof zone, "z%llu", (unsigned long long)below(a, 3));
    plan_member_t m = {.token = token,
                       .place = below(a, 4) < (is_chain ? 3 : 1) ? 1 + below(a, 8) : 0,
                       .name = name,
                       .zone = zone,
                       .is_limited = a->has_limited && !below(a, 5),
                       .blamed_ms = a->has_blamed && !below(a, 6) ? 1 + below(a, 9) : 0,
                       .is_last_resort =
                           a->has_limited && (is_chain ? !below(a, 8) : (token * 7 + a->seed) % 8 == 0)};
    m.is_limited |= m.blamed_ms != 0;
    cr_assert(plan_add(&a->plan, &m));
    a->place_of[token] = m.place;
    a->alive[a->count++] = token;
    return token;
}

static void leave(any_t *a, uint32_t at)
{
    plan_remove(&a->plan, a->alive[at]);
    a->alive[at] = a->alive[--a->count];
}

static void open_with(any_t *a, uint64_t seed, plan_shape_t shape, uint64_t bytes, bool is_well)
{
    *a = (any_t){.seed = seed,
                 .rng = seed * 0x9e3779b97f4a7c15ull | 1,
                 .next_token = 100,
                 .publisher = PUBLISHER,
                 .is_well = is_well};
    plan_init(&a->plan, seed, shape, bytes);
    plan_publisher(&a->plan, PUBLISHER, PUBLISHER_SERVES, below(a, 2) ? 1 + below(a, 8) : 0);
    a->has_limited = !below(a, 4) && !is_well;
    a->has_blamed = !below(a, 4) && !is_well;
    for (uint64_t count = 1 + below(a, MOST - 20); a->count < count;) join(a);
    plan_begin(&a->plan);
    plan_make_all(&a->plan);
}

static void open_any(any_t *a, uint64_t seed, plan_shape_t shape, uint64_t bytes)
{
    open_with(a, seed, shape, bytes, false);
}

/* It has no source of a half, or one that is stuck: it was all that there was. */
static bool has_none(const plan_t *p, const plan_row_t *row)
{
    bool is_without = false;
    for (uint32_t half = 1; half <= 2; half++) {
        uint32_t count;
        const uint64_t *tokens = list_for(row, half, &count);
        const plan_row_t *first = count ? plan_row(p, tokens[0]) : NULL;
        is_without |= !count || (first && first->has == PLAN_PARTS && first->fetch != PLAN_FETCHING);
    }
    return is_without && (row->has == PLAN_PARTS || row->fetch >= PLAN_FETCHING) &&
           row->fetch != PLAN_WAITING;
}

/* It asks for other sources.  One that has all bytes fetches none: the list is no load. */
static void ask(any_t *a, uint64_t token, const uint64_t *lost, uint32_t lost_count)
{
    plan_make(&a->plan, token, lost, lost_count);
    if (plan_row(&a->plan, token)->has == PLAN_WHOLE) plan_done(&a->plan, token);
    a->has_lost[token] = true;
}

/* The publisher goes, one that lacks it may say so, and it comes back, in a new session.  Those that have no source then
 * ask. */
static void lose_publisher(any_t *a, uint64_t token)
{
    uint64_t place = a->plan.publisher.place, lost = a->publisher;
    plan_publisher(&a->plan, 0, PUBLISHER_LOST, place);
    settle(&a->plan);
    if (below(a, 2)) {
        ask(a, token, &lost, 1);
        settle(&a->plan);
    }
    a->publisher = a->next_token++;
    plan_publisher(&a->plan, a->publisher, PUBLISHER_SERVES, place);
    plan_came_back(&a->plan, lost, a->publisher);
    for (uint32_t i = 0; i < a->count; i++)
        if (has_none(&a->plan, plan_row(&a->plan, a->alive[i]))) plan_make(&a->plan, a->alive[i], NULL, 0);
    settle(&a->plan);
}

/* Something happens to one of them. */
static void end_one(any_t *a)
{
    uint32_t at = (uint32_t)below(a, a->count);
    uint64_t token = a->alive[at], lost[2] = {a->publisher, a->alive[below(a, a->count)]};
    switch (below(a, a->has_publisher_gone ? 10 : 9)) {
    case 0: leave(a, at); break;
    case 1: plan_done(&a->plan, token); break;
    case 2: plan_stuck(&a->plan, token); break;
    case 3: plan_have(&a->plan, token, true, 0); break;
    case 4: ask(a, token, lost, (uint32_t)below(a, 3)); break;
    case 5: plan_loads(&a->plan, token, plan_row(&a->plan, token)->has != PLAN_LOADING); break;
    case 6:
        a->alive[at] = a->next_token++;
        cr_assert(plan_renew(&a->plan, token, a->alive[at]));
        a->has_lost[a->alive[at]] = a->has_lost[token];
        break;
    case 7: put_last(&a->plan, token); break;
    case 8:
        plan_give_way(&a->plan, token);
        ask(a, token, lost, 1);
        break;
    case 9: lose_publisher(a, token); break;
    }
    settle(&a->plan);
}

/* One joins, or goes (false): the plan knows that at once, or first from one that read from it. */
static inline bool come_and_go(any_t *a)
{
    if (a->count < 3 || (a->count < MOST && below(a, 2))) {
        plan_make(&a->plan, join(a), NULL, 0);
        settle(&a->plan);
        return true;
    }
    uint32_t at = (uint32_t)below(a, a->count);
    uint64_t gone = a->alive[at];
    for (uint32_t i = 0; i < a->count; i++) {
        const plan_row_t *row = plan_row(&a->plan, a->alive[i]);
        if (row->fetch != PLAN_FETCHING || !row->source_count || row->sources[0] != gone || below(a, 2))
            continue;
        plan_make(&a->plan, row->token, &gone, 1);
        a->has_lost[row->token] = true;
        settle(&a->plan);
    }
    leave(a, at);
    settle(&a->plan);
    return false;
}

/* Some go in one turn of the broker, and as many join, as a rule. */
static inline void go_at_once(any_t *a)
{
    for (uint64_t count = 1 + below(a, 5); count && a->count > 3; count--)
        leave(a, (uint32_t)below(a, a->count));
    settle(&a->plan);
    for (uint64_t count = below(a, 6); count && a->count < MOST; count--) {
        plan_make(&a->plan, join(a), NULL, 0);
        settle(&a->plan);
    }
}

/* One more joins, or something happens. */
static void go_on(any_t *a)
{
    if (a->count < 2 || (a->count < MOST && !below(a, 4))) plan_make(&a->plan, join(a), NULL, 0);
    else end_one(a);
}

typedef struct {
    uint64_t sources[PLAN_SOURCES], others[PLAN_SOURCES];
    uint32_t half;
} lists_t;

static lists_t lists_now(const any_t *a, uint32_t at)
{
    const plan_row_t *row = plan_row(&a->plan, a->alive[at]);
    lists_t lists = {.half = row->half};
    memcpy(lists.sources, row->sources, row->source_count * sizeof(uint64_t));
    memcpy(lists.others, row->others, row->other_count * sizeof(uint64_t));
    return lists;
}

/* ---- what holds after each step ---- */

/* The row that the member gets this half from; *ret_is_there: that is the publisher, or one that has all bytes. */
static const plan_row_t *next_on_way(const any_t *a, const plan_row_t *row, uint32_t half, bool *ret_is_there)
{
    *ret_is_there = false;
    if (row->fetch == PLAN_WAITING) return plan_row(&a->plan, plan_waits_for(&a->plan, row->token));
    uint32_t count;
    const uint64_t *tokens = list_for(row, half, &count);
    *ret_is_there = count && tokens[0] == plan_server(&a->plan);
    const plan_row_t *next = count ? plan_row(&a->plan, tokens[0]) : NULL;
    *ret_is_there |= next && next->has != PLAN_PARTS;
    *ret_is_there |= next && next->fetch == PLAN_STUCK && a->has_lost[row->token];
    return next;
}

/* Over first sources each half of the chunks comes to each member that fetches or waits, and none of those that it
 * passes is stuck or has given up. */
static void check_ways(const any_t *a)
{
    for (size_t i = 0; i < a->plan.count; i++)
        for (uint32_t half = 1; half <= 2; half++) {
            const plan_row_t *row = a->plan.rows[i];
            bool is_there = row->has != PLAN_PARTS || row->fetch < PLAN_WAITING;
            for (uint32_t steps = 0; !is_there; steps++) {
                row = next_on_way(a, row, half, &is_there);
                cr_assert(steps <= 2 * MOST, "seed %llu: a circle", (unsigned long long)a->seed);
                cr_assert(is_there || (row && row->fetch == PLAN_FETCHING),
                          "seed %llu: half %u comes to %s from nowhere, by %s", (unsigned long long)a->seed,
                          half, a->plan.rows[i]->key.text, row ? row->key.text : "none");
            }
        }
}

/* It is, or its place, by its own wish, not as it was blamed. */
static bool takes_little(const plan_row_t *row)
{
    bool is_limited = row->key.rank == PLAN_LIMITED || row->station->key.rank == PLAN_LIMITED;
    return is_limited && !plan_station_is_blamed(row->station);
}

/* It takes as much as any: it has no limited rate, or it was blamed, maybe wrongly, and it is not stuck. */
static bool takes_all(const plan_row_t *row) { return row->fetch == PLAN_FETCHING && !takes_little(row); }

/* Halves of the chunks that come into the station over the network: one copy, beside those of fetches that are
 * stuck. */
static void check_inlet(const any_t *a, const plan_station_t *station)
{
    uint32_t halves = 0;
    for (size_t i = 0; i < station->count; i++)
        for (uint32_t half = 1; half <= 2; half++) {
            const plan_row_t *row = station->rows[i];
            if (row->fetch != PLAN_FETCHING) continue;
            uint32_t count;
            const uint64_t *tokens = list_for(row, half, &count);
            const plan_row_t *source = count ? plan_row(&a->plan, tokens[0]) : NULL;
            bool is_here =
                source ? source->station == station : plan_is_publishers_place(&a->plan, station->place);
            halves += count && !is_here;
        }
    cr_assert_leq(halves, PLAN_HALVES, "seed %llu: %u halves into %s", (unsigned long long)a->seed, halves,
                  station->key.text);
}

/* Halves more than those of all bytes that leave a station, where those that give nothing take all bytes,
 * last resorts among them, and the others send the same.  Of those so many have joined, and serve later
 * ones alone. */
static uint32_t more_of(const plan_t *p, uint32_t joined)
{
    uint32_t relays = 0, takers = 0, last = 0;
    for (size_t i = 0; i < p->station_count; i++) {
        const plan_station_t *station = p->chain[i];
        if (plan_is_publishers_place(p, station->place)) continue;
        relays += !plan_station_is_limited(station);
        last += plan_station_is_last_resort(station);
        takers += !plan_station_is_limited(station) || plan_station_is_last_resort(station) ||
                  plan_station_is_blamed(station);
    }
    uint32_t least = relays > joined ? relays - joined : 1;
    return last ? (PLAN_HALVES * takers + least - 1) / least - PLAN_HALVES : 0;
}

/* What the publisher is counted to send is what lists begin with it for. */
static void check_load_of_publisher(const any_t *a)
{
    const plan_t *p = &a->plan;
    uint32_t load = 0;
    for (size_t i = 0; i < p->count; i++) {
        const plan_row_t *row = p->rows[i];
        bool takes_next_to_nothing = p->shape == PLAN_TWO_TREE &&
                                     (row->fetch == PLAN_STUCK || (row->station->key.rank == PLAN_LIMITED &&
                                                                   !plan_station_is_blamed(row->station)));
        if (row->fetch < PLAN_FETCHING || takes_next_to_nothing ||
            plan_is_publishers_place(p, row->station->place))
            continue;
        for (uint32_t half = 1; half <= 2; half++) {
            uint32_t count;
            const uint64_t *tokens = list_for(row, half, &count);
            load += count && tokens[0] == plan_server(p);
        }
    }
    cr_assert_eq(p->publisher_load, load, "seed %llu: %u halves out of the publisher, counted as %u",
                 (unsigned long long)a->seed, load, p->publisher_load);
}

static inline uint32_t most_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Of those that were there at the beginning so many serve others.  Where none does, the publisher serves all that
 * come. */
static inline uint32_t first_relays(const plan_t *p)
{
    uint32_t relays = 0;
    for (size_t i = 0; i < p->station_count; i++)
        relays += !p->chain[i]->key.wave && !plan_station_is_limited(p->chain[i]) &&
                  !plan_is_publishers_place(p, p->chain[i]->place);
    return relays;
}

static inline bool has_relay(const plan_t *p) { return first_relays(p) > 0; }

/* Halves that may leave a station, or the publisher.  Those that were blamed take as much as any and give nothing:
 * others send half as much again for them, and all bytes twice where fewer than two of those that were there at the
 * beginning serve others. */
static inline uint32_t most_halves(const any_t *a)
{
    if (!a->has_blamed) return PLAN_HALVES;
    return first_relays(&a->plan) < 2 ? 2 * PLAN_HALVES : PLAN_HALVES + 1;
}

/* Halves that may leave the publisher, where `more` may leave a station for last resorts. */
static inline uint32_t most_of_publisher(const any_t *a, uint32_t more)
{
    return most_halves(a) + (has_relay(&a->plan) ? 0 : more);
}

/* Halves of the chunks that leave each station over the network, by their first sources: at most so many; and the
 * publisher.  Returns what leaves the one that sends most. */
static uint32_t check_uplinks(const any_t *a, uint32_t most, uint32_t most_of_publisher)
{
    const plan_t *p = &a->plan;
    static uint32_t out[4096];
    uint32_t of_publisher = 0, found = 0;
    memset(out, 0, sizeof out);
    for (size_t i = 0; i < p->count; i++)
        for (uint32_t half = 1; half <= 2 && takes_all(p->rows[i]); half++) {
            const plan_row_t *row = p->rows[i];
            uint32_t count;
            const uint64_t *tokens = list_for(row, half, &count);
            const plan_row_t *source = count ? plan_row(p, tokens[0]) : NULL;
            bool is_of_publisher = count && !source && !plan_is_publishers_place(p, row->station->place);
            of_publisher += is_of_publisher;
            if (source && source->station != row->station) out[source->station->rows[0]->token]++;
        }
    for (size_t i = 0; i < p->station_count; i++) {
        uint32_t halves = out[p->chain[i]->rows[0]->token];
        check_inlet(a, p->chain[i]);
        cr_assert_leq(halves, most, "seed %llu: %u halves out of %s", (unsigned long long)a->seed, halves,
                      p->chain[i]->key.text);
        if (halves > found) found = halves;
    }
    cr_assert_leq(of_publisher, most_of_publisher, "seed %llu: %u halves out of the publisher",
                  (unsigned long long)a->seed, of_publisher);
    return found;
}

/* The source may be named to the member for this half. */
static bool may_serve(plan_t *p, const plan_row_t *row, uint64_t token, uint32_t half)
{
    plan_row_t probe = *row;
    probe.half = row->half ? half : 0;
    probe.sources[0] = token;
    probe.source_count = 1;
    probe.other_count = 0;
    return !plan_sources_is_torn(p, &probe);
}

/* One of another place that serves others without need, and may serve the member. */
static bool is_possible(plan_t *p, const plan_row_t *row, const plan_row_t *source, uint32_t half)
{
    bool is_well = source->station != row->station && !plan_row_is_last_resort(source) &&
                   !source->is_demoted && !plan_is_publishers_place(p, source->station->place) &&
                   (source->has == PLAN_WHOLE || source->fetch == PLAN_FETCHING);
    bool is_behind_limited =
        plan_station_is_limited(source->station) && !plan_station_is_limited(row->station);
    return is_well && !is_behind_limited && may_serve(p, row, source->token, half);
}

/* Its list has a second source for each half, where there is one. */
static void check_second(any_t *a, const plan_row_t *row)
{
    plan_t *p = &a->plan;
    bool is_of_publisher = row->is_cut_off || plan_is_publishers_place(p, row->station->place);
    for (uint32_t half = 1; half <= 2 && row->fetch == PLAN_FETCHING && !is_of_publisher; half++) {
        uint32_t count;
        const uint64_t *tokens = list_for(row, half, &count);
        if (count != 1) continue;
        cr_assert_eq(tokens[0], plan_server(p), "seed %llu: %s has one source of half %u",
                     (unsigned long long)a->seed, row->key.text, half);
        for (size_t i = 0; i < p->count; i++)
            cr_assert_not(is_possible(p, row, p->rows[i], half),
                          "seed %llu: %s may fetch from %s too, half %u", (unsigned long long)a->seed,
                          row->key.text, p->rows[i]->key.text, half);
    }
}

/* Each list as it is when it is made anew. */
static void check_seconds(any_t *a)
{
    for (uint32_t i = 0; i < a->count; i++) {
        const plan_row_t *row = plan_row(&a->plan, a->alive[i]);
        if (row->fetch != PLAN_FETCHING) continue;
        plan_make(&a->plan, row->token, NULL, 0);
        check_second(a, row);
        settle(&a->plan);
    }
}

/* One member joins: the lists of the others stay. */
static void check_join(any_t *a)
{
    lists_t before[MOST];
    uint32_t count = a->count;
    for (uint32_t i = 0; i < count; i++) before[i] = lists_now(a, i);
    plan_make(&a->plan, join(a), NULL, 0);
    settle(&a->plan);
    for (uint32_t i = 0; i < count; i++) {
        lists_t now = lists_now(a, i);
        cr_assert(!memcmp(&before[i], &now, sizeof now), "seed %llu", (unsigned long long)a->seed);
    }
}

#endif
