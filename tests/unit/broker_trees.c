/* SPDX-License-Identifier: Apache-2.0 */
/* Two trees, each for half of the chunks: who serves whom, and what is left when members go and come. */
#include "tests/unit/plan_rig.h"

#define MB 1000000u

static void start(void) { start_with(PLAN_TWO_TREE, 40 * MB); }

TestSuite(plan_trees, .init = start, .fini = finish);

/* "1 9 | 12 11": its sources for the first half of the chunks, and for the second. */
static const char *lists_of(uint64_t token)
{
    static char text[128];
    snprintf(text, sizeof text, "%s | %s", list_text(token, 1), list_text(token, 2));
    return text;
}

/* Of seven: 11 and 17 are the roots, 14 in the middle serves none.  Behind the parent are those that have room
 * when it goes: its own parent, and the one that gives it the other half. */
Test(plan_trees, each_half_goes_down_a_tree_and_its_mirror_image)
{
    wave(11, 17);
    cr_assert_eq(P.shape, PLAN_TWO_TREE);
    cr_assert_str_eq(lists_of(11), "9 | 15 12 17");
    cr_assert_str_eq(lists_of(12), "11 9 | 15 17");
    cr_assert_str_eq(lists_of(13), "11 15 9 | 16 17");
    cr_assert_str_eq(lists_of(14), "12 15 11 | 16 13 17");
    cr_assert_str_eq(lists_of(15), "12 11 | 17 13 9");
    cr_assert_str_eq(lists_of(16), "13 11 | 17 9");
    cr_assert_str_eq(lists_of(17), "13 16 11 | 9");
    for (uint64_t token = 11; token <= 17; token++)
        cr_assert_eq(plan_row(&P, token)->half, token < 15 ? 1 : 2, "what it serves others comes first");
}

static plan_shape_t shape_of(plan_shape_t wanted, uint64_t members, uint64_t bytes)
{
    finish();
    start_with(wanted, bytes);
    wave(11, 10 + members);
    return P.shape;
}

/* By the time of a hop: a chain has more of them, and a star none. */
Test(plan_trees, the_shape_is_what_takes_the_least_time)
{
    cr_assert_eq(shape_of(PLAN_AUTO, 1, 40 * MB), PLAN_CHAIN);
    cr_assert_eq(shape_of(PLAN_AUTO, 16, 40 * MB), PLAN_CHAIN, "not a quarter better");
    cr_assert_eq(shape_of(PLAN_AUTO, 64, 40 * MB), PLAN_TWO_TREE);
    cr_assert_eq(shape_of(PLAN_AUTO, 16, 4000 * (uint64_t)MB), PLAN_CHAIN, "hops are next to nothing");
    cr_assert_eq(shape_of(PLAN_AUTO, 3, MB / 4), PLAN_STAR);
    cr_assert_eq(shape_of(PLAN_AUTO, 64, MB / 4), PLAN_TWO_TREE, "a star takes the time of each");
    cr_assert_eq(shape_of(PLAN_TWO_TREE, 2, MB), PLAN_TWO_TREE);
    cr_assert_eq(shape_of(PLAN_TWO_TREE, 1, MB), PLAN_CHAIN, "the same");
    cr_assert_eq(shape_of(PLAN_CHAIN, 64, MB / 4), PLAN_CHAIN);
    cr_assert_eq(shape_of(PLAN_STAR, 64, 40 * MB), PLAN_STAR);
}

/* A chain enters each zone once. */
Test(plan_trees, several_zones_are_a_chain)
{
    finish();
    start_with(PLAN_AUTO, 40 * MB);
    cr_assert(plan_add(&P, &(plan_member_t){.token = 5, .name = "a", .zone = "rack1"}));
    wave(11, 26);
    cr_assert_eq(P.shape, PLAN_CHAIN);
}

/* A late wave fetches from those, and a version without a publisher too. */
Test(plan_trees, where_others_have_all_bytes_there_are_none)
{
    cr_assert(add(5, 0));
    plan_have(&P, 5, true, 0);
    wave(11, 26);
    cr_assert_eq(P.shape, PLAN_CHAIN);
}

Test(plan_trees, those_of_one_that_goes_turn_to_two_others)
{
    wave(11, 17);
    plan_remove(&P, 12);
    uint64_t torn[16];
    uint32_t count = 0;
    for (uint64_t token; (token = plan_next_torn(&P)) != 0; plan_mend(&P, token)) torn[count++] = token;
    cr_assert(count == 3 && has_number(torn, 3, 11) && has_number(torn, 3, 14) && has_number(torn, 3, 15));
    cr_assert_str_eq(lists_of(14), "15 11 17 | 16 13 17");
    cr_assert_str_eq(lists_of(15), "11 9 | 17 13 9");
    plan_remove(&P, 11);
    settle(&P);
    cr_assert_str_eq(lists_of(13), "15 9 | 16 17");
    cr_assert_str_eq(lists_of(15), "9 | 17 13 9");
}

/* The other half goes on as it was. */
Test(plan_trees, a_half_that_lost_its_only_source_has_it_again)
{
    uint64_t lost[] = {PUBLISHER};
    wave(11, 17);
    cr_assert(plan_make(&P, 11, lost, 1));
    cr_assert_str_eq(lists_of(11), "9 | 15 12 17");
}

/* The next one of its place, and those that it served, find room where it had its place. */
Test(plan_trees, one_that_is_stuck_takes_no_room)
{
    wave(11, 17);
    cr_assert(plan_row(&P, 11)->load == 2 && plan_row(&P, 15)->load == 2);
    plan_stuck(&P, 12);
    cr_assert(plan_row(&P, 11)->load == 1 && plan_row(&P, 15)->load == 1);
    settle(&P);
    cr_assert(plan_row(&P, 11)->load == 2 && plan_row(&P, 15)->load == 2, "14 and 15 have it");
    plan_make(&P, 12, NULL, 0);
    plan_remove(&P, 12);
    settle(&P);
    for (uint64_t token = 11; token <= 17; token++)
        cr_assert(token == 12 || plan_row(&P, token)->load <= 2, "%u", (unsigned)token);
}

/* How many lists for a half begin with the member. */
static uint32_t first_of(uint64_t token)
{
    uint32_t lists = 0;
    for (size_t i = 0; i < P.count; i++)
        for (uint32_t half = 1; half <= 2 && P.rows[i]->fetch >= PLAN_FETCHING; half++) {
            uint32_t count;
            const uint64_t *tokens = list_for(P.rows[i], half, &count);
            lists += count && tokens[0] == token;
        }
    return lists;
}

static void demote(uint64_t token)
{
    put_last(&P, token);
    cr_assert(plan_fetches(&P, token));
}

/* Those that one served have its place, and it has both halves from a station that served none. */
Test(plan_trees, where_one_is_demoted_no_other_sends_more_than_all_bytes)
{
    wave(11, 17);
    demote(12);
    cr_assert_str_eq(lists_of(12), "14 15 16 | 14 16 15");
    for (uint64_t count = 2; count <= 40; count++)
        for (uint64_t demoted = 11; demoted <= 10 + count; demoted++) {
            finish();
            start();
            wave(11, 10 + count);
            demote(demoted);
            for (uint64_t token = 11; token <= 10 + count; token++)
                cr_assert(first_of(token) <= PLAN_HALVES, "%u of %u: %u halves out of %u",
                          (unsigned)demoted - 10, (unsigned)count, first_of(token), (unsigned)token - 10);
            cr_assert(first_of(demoted) == 0 && first_of(PUBLISHER) <= PLAN_HALVES, "%u of %u",
                      (unsigned)demoted - 10, (unsigned)count);
        }
}

/* It takes as much as before and gives nothing, so that there is no room for one more: the uplink of the publisher
 * is that of all, and stations that few wait for send half as much again. */
Test(plan_trees, one_that_joins_behind_one_that_was_demoted_costs_the_publisher_nothing)
{
    for (uint64_t count = 3; count <= 40; count++)
        for (uint64_t demoted = 11; demoted <= 10 + count; demoted++) {
            finish();
            start();
            wave(11, 10 + count);
            demote(demoted);
            for (uint64_t token = 11 + count; token <= 13 + count; token++) {
                cr_assert(add(token, 0));
                plan_make(&P, token, NULL, 0);
                settle(&P);
            }
            for (uint64_t token = 11; token <= 13 + count; token++)
                cr_assert(first_of(token) <= PLAN_HALVES + 1, "%u of %u: %u halves out of %u",
                          (unsigned)demoted - 10, (unsigned)count, first_of(token), (unsigned)token - 10);
            cr_assert(first_of(demoted) == 0 && first_of(PUBLISHER) <= PLAN_HALVES, "%u of %u",
                      (unsigned)demoted - 10, (unsigned)count);
        }
}

/* It may be well, and takes as much from its parents as any other one.  When all have the bytes none sends any. */
Test(plan_trees, one_that_is_demoted_takes_the_room_that_it_took)
{
    wave(11, 17);
    demote(12);
    cr_assert_eq(first_of(12), 0);
    for (uint64_t token = 11; token <= 17; token++)
        cr_assert_eq(plan_row(&P, token)->load, first_of(token), "%u", (unsigned)token);
    for (uint64_t token = 11; token <= 17; token++) plan_have(&P, token, true, 0);
    for (uint64_t token = 11; token <= 17; token++) cr_assert_not(plan_is_first(&P, token));
}

/* The root of a tree has lost the publisher: another one is nearest to it from now on, and the root has its
 * half from one that has room. */
Test(plan_trees, a_root_without_the_publisher_goes_behind_all)
{
    uint64_t lost[] = {PUBLISHER};
    wave(11, 17);
    plan_give_way(&P, 14);
    cr_assert_eq(plan_next_torn(&P), 0, "it does not fetch from the publisher");
    plan_give_way(&P, 11);
    settle(&P);
    cr_assert_str_eq(lists_of(12), "9 | 15 17");
    cr_assert(plan_make(&P, 11, lost, 1));
    cr_assert_str_eq(lists_of(11), "14 16 12 | 15 12 17");
    plan_give_way(&P, 11);
    cr_assert_eq(plan_next_torn(&P), 0, "once in a rollout");
}

/* Each root from the publisher gets a half, and from others the other one. */
Test(plan_trees, a_root_turns_to_one_that_has_all_bytes)
{
    wave(11, 17);
    cr_assert_not(plan_leave_publisher(&P, 11));
    plan_have(&P, 14, true, 0);
    cr_assert_not(plan_leave_publisher(&P, 12), "it is no root");
    cr_assert(plan_leave_publisher(&P, 11));
    cr_assert_str_eq(lists_of(11), "14 | 15 12 17");
    cr_assert_eq(plan_row(&P, 14)->load, 1);
    cr_assert(plan_leave_publisher(&P, 17));
    cr_assert_str_eq(lists_of(17), "13 16 11 | 14");
    settle(&P);
}

Test(plan_trees, a_later_one_gets_both_halves_from_those_with_room)
{
    wave(11, 17);
    for (uint64_t token = 18; token <= 20; token++) {
        cr_assert(add(token, 0));
        plan_make(&P, token, NULL, 0);
    }
    cr_assert_str_eq(lists_of(18), "14 12 16 | 14 16 12");
    cr_assert_str_eq(lists_of(19), "18 14 | 18 14");
    cr_assert_str_eq(lists_of(20), "19 18 | 19 18");
}

Test(plan_trees, a_holder_that_serves_none_gives_a_later_one_all)
{
    wave(11, 17);
    for (uint64_t token = 11; token <= 17; token++) plan_have(&P, token, true, 0);
    cr_assert(add(20, 0));
    plan_make(&P, 20, NULL, 0);
    const plan_row_t *row = plan_row(&P, 20);
    cr_assert(!row->half && !row->other_count && row->source_count == 3 && row->sources[2] == PUBLISHER);
    cr_assert_eq(plan_row(&P, row->sources[0])->load, 2, "both halves");
}

/* ---- any memberships ---- */

enum { TOKENS = 4096 };

/* The row that the member reads this half from: of its list the first one that has not gone.  NULL: it has
 * all bytes, or reads from the publisher, or has no source (`*ret_is_left`). */
static const plan_row_t *read_from(const any_t *a, const plan_row_t *row, uint32_t half, uint64_t gone,
                                   bool *ret_is_left)
{
    *ret_is_left = false;
    if (row->has != PLAN_PARTS) return NULL;
    if (row->fetch == PLAN_WAITING) return plan_row(&a->plan, plan_waits_for(&a->plan, row->token));
    uint32_t count, i = 0;
    const uint64_t *tokens = list_for(row, half, &count);
    while (i < count && tokens[i] == gone) i++;
    *ret_is_left = i == count;
    return i < count && tokens[i] != PUBLISHER ? plan_row(&a->plan, tokens[i]) : NULL;
}

/* Each half comes to each member, also when one has gone and each goes on by its own list. */
static void check_reached(const any_t *a, uint64_t gone)
{
    for (uint32_t half = 1; half <= 2; half++)
        for (uint32_t i = 0; i < a->count; i++) {
            uint32_t steps = 0;
            bool is_left;
            for (const plan_row_t *row = plan_row(&a->plan, a->alive[i]); row && row->token != gone;) {
                const plan_row_t *next = read_from(a, row, half, gone, &is_left);
                cr_assert(++steps <= 2 * MOST, "seed %llu: a circle in half %u, %llu has gone",
                          (unsigned long long)a->seed, half, (unsigned long long)gone);
                cr_assert(gone || !is_left, "seed %llu: %s has no source of half %u",
                          (unsigned long long)a->seed, row->key.text, half);
                row = next;
            }
        }
}

/* Halves that go into a station over the network, and out of it: `most`, and out of the publisher `of_it`.  Those
 * of limited ones count for nothing. */
static void check_edges(const any_t *a, uint64_t gone, uint32_t most, uint32_t of_it)
{
    const plan_t *p = &a->plan;
    uint32_t out[TOKENS] = {0}, of_publisher = 0;
    for (size_t i = 0; i < p->station_count; i++) {
        const plan_station_t *station = p->chain[i];
        uint32_t in = 0;
        for (size_t k = 0; k < station->count; k++) {
            const plan_row_t *row = station->rows[k];
            for (uint32_t half = 1; half <= 2 && row->fetch >= PLAN_FETCHING; half++) {
                uint32_t count;
                const uint64_t *tokens = list_for(row, half, &count);
                uint32_t at = count && tokens[0] == gone;
                const plan_row_t *source = at < count ? plan_row(p, tokens[at]) : NULL;
                bool is_here = source ? source->station == station
                                      : p->publisher_place && station->place == p->publisher_place;
                if (row->token == gone || at >= count || is_here) continue;
                in++;
                if (plan_station_is_limited(station) && !station->is_put_last) continue;
                if (source) out[source->station->rows[0]->token]++;
                else of_publisher++;
            }
        }
        cr_assert_leq(in, 2, "seed %llu: %u halves into a station", (unsigned long long)a->seed, in);
    }
    for (uint64_t i = 0; i < a->next_token; i++)
        cr_assert(out[i] <= most, "seed %llu: %u halves out of a station", (unsigned long long)a->seed,
                  out[i]);
    cr_assert(of_publisher <= of_it, "seed %llu: %u halves out of the publisher", (unsigned long long)a->seed,
              of_publisher);
}

/* In the trees as they are laid each station has children for one half alone, and none is deeper than log2 N. */
static void check_trees(const any_t *a)
{
    const plan_t *p = &a->plan;
    uint32_t depths = 1, nodes = 0;
    uint8_t serves[TOKENS] = {0};
    for (size_t i = 0; i < p->station_count; i++)
        nodes += p->chain[i]->key.text[0] == '0' &&
                 (!p->publisher_place || p->chain[i]->place != p->publisher_place);
    while (nodes >> depths) depths++;
    for (uint32_t i = 0; i < a->count; i++)
        for (uint32_t half = 1; half <= 2; half++) {
            const plan_row_t *row = plan_row(p, a->alive[i]);
            uint32_t depth = 0;
            bool is_left;
            if (row->fetch != PLAN_FETCHING || !row->half || row->key.text[0] == '1') continue;
            for (const plan_row_t *at = row; at; depth++) {
                at = read_from(a, at, half, 0, &is_left);
                if (at) serves[at->token] |= (uint8_t)half;
            }
            cr_assert_leq(depth, depths, "seed %llu", (unsigned long long)a->seed);
        }
    for (uint32_t i = 0; i < a->count && !a->has_limited; i++)
        cr_assert_neq(serves[a->alive[i]], 3, "seed %llu: it serves both halves",
                      (unsigned long long)a->seed);
}

/* Over first sources, whatever has happened: a half of the chunks never waits for itself. */
static void check_no_circle(const any_t *a)
{
    for (uint32_t half = 1; half <= 2; half++)
        for (uint32_t i = 0; i < a->count; i++) {
            uint32_t steps = 0;
            bool is_left;
            for (const plan_row_t *row = plan_row(&a->plan, a->alive[i]); row; steps++) {
                cr_assert(steps <= 2 * MOST, "seed %llu: a circle in half %u", (unsigned long long)a->seed,
                          half);
                row = row->fetch >= PLAN_WAITING ? read_from(a, row, half, 0, &is_left) : NULL;
            }
        }
}

Test(plan_trees, each_half_comes_to_all_and_no_uplink_carries_more_than_all_bytes)
{
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        static any_t a;
        open_any(&a, seed, PLAN_TWO_TREE, 40 * MB);
        check_reached(&a, 0);
        check_edges(&a, 0, 2, 2);
        check_trees(&a);
        for (uint32_t i = (uint32_t)seed % 3; i < a.count; i += 3) {
            check_reached(&a, a.alive[i]);
            check_edges(&a, a.alive[i], 2, 2);
        }
        for (int i = 0; i < 3; i++) {
            check_join(&a);
            check_reached(&a, 0);
            check_edges(&a, 0, 2, 2);
        }
        leave(&a, (uint32_t)below(&a, a.count));
        settle(&a.plan);
        check_reached(&a, 0);
        check_edges(&a, 0, 2, 2);
        for (int i = 0; i < 30; i++) {
            go_on(&a);
            check_no_circle(&a);
        }
        plan_fini(&a.plan);
    }
}

/* Any of them is put last, comes or goes: a station sends half as much again at most, and so does the publisher
 * while two are left of those that the trees were laid over and that serve others. */
Test(plan_trees, whatever_happens_no_uplink_carries_much_more)
{
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        static any_t a;
        open_any(&a, seed, PLAN_TWO_TREE, 40 * MB);
        for (int i = 0; i < 10 && a.count > 2 && a.plan.shape == PLAN_TWO_TREE; i++) {
            uint32_t at = (uint32_t)below(&a, a.count), relays = 0;
            uint64_t what = below(&a, 3);
            if (what == 0) put_last(&a.plan, a.alive[at]);
            if (what == 1 && a.count < MOST) plan_make(&a.plan, join(&a), NULL, 0);
            if (what == 2) leave(&a, at);
            settle(&a.plan);
            for (size_t k = 0; k < a.plan.station_count; k++)
                relays += a.plan.chain[k]->number && !plan_station_is_limited(a.plan.chain[k]);
            check_edges(&a, 0, 3, relays < 2 ? 4 : 3);
        }
        plan_fini(&a.plan);
    }
}

/* Counted, not timed: ten thousand members, on hosts of eight, then all but every tenth go. */
Test(plan_trees, ten_thousand_members_cost_what_they_are)
{
    enum { MEMBERS = 10000, LOG = 14 };
    for (uint64_t token = 100; token < 100 + MEMBERS; token++)
        cr_assert(add(token, token % 2 ? token / 16 : 0));
    begin();
    cr_assert_leq(P.looks, 20 * MEMBERS * LOG);
    P.looks = 0;
    for (uint64_t token = 100; token < 100 + MEMBERS; token++) {
        if (token % 10 == 0) continue;
        plan_remove(&P, token);
        settle(&P);
    }
    cr_assert_leq(P.looks, 200 * MEMBERS * LOG);
}
