/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/plan.h"

#include <criterion/criterion.h>

#define PUBLISHER 9u

static plan_t P;

static void start(void) { plan_init(&P, 2, PLAN_ALL); }

static void finish(void) { plan_fini(&P); }

TestSuite(plan, .init = start, .fini = finish);

/* A member with all bytes. */
static void holder(uint64_t token, uint64_t rate)
{
    cr_assert(plan_add(&P, token, 0));
    plan_have(&P, token, PLAN_ALL, rate);
}

/* So many members begin to fetch from it. */
static void load(uint64_t token, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t asker = token * 1000 + i, others[PLAN_CANDIDATES];
        uint32_t lost = 0;
        cr_assert(plan_add(&P, asker, 0));
        for (size_t k = 0; k < P.source_count; k++)
            if (P.sources[k]->token != token) others[lost++] = P.sources[k]->token;
        plan_make(&P, asker, others, lost);
        cr_assert_eq(plan_row(&P, asker)->sources[0], token);
    }
    cr_assert_eq(plan_row(&P, token)->load, count);
}

static const plan_row_t *made(uint64_t token)
{
    cr_assert(plan_add(&P, token, 0));
    plan_make(&P, token, NULL, 0);
    return plan_row(&P, token);
}

Test(plan, no_member_has_it)
{
    cr_assert_eq(made(1)->source_count, 0);
    cr_assert_eq(plan_make(&P, 77, NULL, 0), 0, "it takes no part");
    cr_assert_null(plan_row(&P, 77));
}

Test(plan, the_publisher_alone_before_there_are_holders)
{
    plan_publisher(&P, PUBLISHER, 0);
    const plan_row_t *row = made(1);
    cr_assert(row->source_count == 1 && row->sources[0] == PUBLISHER);
}

Test(plan, the_publisher_is_last_once_there_are_holders)
{
    plan_publisher(&P, PUBLISHER, 0);
    holder(1, 0);
    holder(2, 0);
    load(1, 7);
    load(2, 3);
    const plan_row_t *row = made(5);
    cr_assert_eq(row->source_count, 3);
    cr_assert(row->sources[0] == 2 && row->sources[1] == 1 && row->sources[2] == PUBLISHER);
}

Test(plan, the_publisher_has_the_last_place_of_three)
{
    plan_publisher(&P, PUBLISHER, 0);
    for (uint64_t token = 1; token <= 4; token++) holder(token, 0);
    const plan_row_t *row = made(50);
    cr_assert(row->source_count == 3 && row->sources[2] == PUBLISHER);
}

Test(plan, least_loaded_first_and_never_more_than_three)
{
    static const uint32_t LOADS[] = {4, 1, 3, 2, 0};
    for (uint64_t token = 1; token <= 5; token++) holder(token, 0);
    for (uint64_t token = 1; token <= 5; token++) load(token, LOADS[token - 1]);
    const plan_row_t *row = made(77);
    cr_assert_eq(row->source_count, PLAN_SOURCES);
    cr_assert(row->sources[0] == 5 && row->sources[1] == 2 && row->sources[2] == 4);
}

Test(plan, slow_ones_behind_the_others_whatever_their_load)
{
    holder(1, 100);
    holder(2, 1000);
    holder(3, 900);
    load(2, 9);
    const plan_row_t *row = made(50);
    cr_assert(row->sources[0] == 3 && row->sources[1] == 2 && row->sources[2] == 1);
}

Test(plan, the_same_input_gives_the_same_plan)
{
    plan_t other;
    plan_init(&other, 2, PLAN_ALL);
    for (uint64_t token = 1; token <= 8; token++) holder(token, 0);
    for (uint64_t token = 8; token >= 1; token--) {
        cr_assert(plan_add(&other, token, 0));
        plan_have(&other, token, PLAN_ALL, 0);
    }
    for (uint64_t asker = 100; asker < 150; asker++) {
        uint64_t a[PLAN_SOURCES], b[PLAN_SOURCES];
        cr_assert(plan_choose(&P, &(plan_asker_t){.token = asker}, a) == PLAN_SOURCES &&
                  plan_choose(&other, &(plan_asker_t){.token = asker}, b) == PLAN_SOURCES);
        cr_assert_arr_eq(a, b, sizeof a, "in any order");
    }
    plan_fini(&other);
}

Test(plan, equals_are_spread_over_the_members_that_ask)
{
    uint32_t first[9] = {0};
    for (uint64_t token = 1; token <= 8; token++) holder(token, 0);
    for (uint64_t asker = 1000; asker < 1800; asker++) {
        uint64_t sources[PLAN_SOURCES];
        plan_choose(&P, &(plan_asker_t){.token = asker}, sources);
        first[sources[0]]++;
    }
    for (uint64_t token = 1; token <= 8; token++)
        cr_assert(first[token] > 50 && first[token] < 150, "%u of 800 ask %u first", first[token],
                  (unsigned)token);
}

Test(plan, lists_of_a_wave_share_the_load)
{
    for (uint64_t token = 1; token <= 4; token++) holder(token, 0);
    for (uint64_t token = 10; token < 50; token++) made(token);
    for (uint64_t token = 1; token <= 4; token++) cr_assert_eq(plan_row(&P, token)->load, 10);
}

Test(plan, load_goes_with_the_fetch_the_list_or_the_member)
{
    holder(1, 0);
    made(10), made(11), made(12);
    cr_assert(plan_row(&P, 1)->load == 3 && plan_is_first(&P, 1));
    plan_done(&P, 10);
    plan_done(&P, 10);
    plan_make(&P, 11, NULL, 0); /* made again: counted once */
    cr_assert_eq(plan_row(&P, 1)->load, 2);
    plan_remove(&P, 11);
    plan_remove(&P, 11);
    plan_done(&P, 12);
    cr_assert(plan_row(&P, 1)->load == 0 && !plan_is_first(&P, 1));
}

Test(plan, a_list_is_repaired_without_the_lost_ones_unless_there_is_no_other)
{
    uint64_t lost[] = {1, PUBLISHER};
    plan_publisher(&P, PUBLISHER, 0);
    holder(1, 0);
    made(10);
    cr_assert(plan_make(&P, 10, lost, 1) == 1 && plan_row(&P, 10)->sources[0] == PUBLISHER);
    cr_assert_eq(plan_make(&P, 10, lost, 2), 2, "better one that failed once than none");
}

Test(plan, a_member_that_is_gone_is_chosen_no_more_and_no_list_changes)
{
    holder(1, 0);
    holder(2, 0);
    made(10);
    uint64_t gone = plan_row(&P, 10)->sources[0], left = 3 - gone;
    plan_remove(&P, gone);
    cr_assert_eq(plan_row(&P, 10)->sources[0], gone);
    cr_assert(plan_make(&P, 10, NULL, 0) == 1 && plan_row(&P, 10)->sources[0] == left);
    cr_assert(plan_add(&P, gone, 0)); /* it comes back without the bytes, and nothing underflows */
    plan_done(&P, 10);
    cr_assert_eq(plan_row(&P, gone)->load, 0);
}

Test(plan, a_member_is_no_source_of_its_own)
{
    holder(1, 0);
    cr_assert_eq(plan_make(&P, 1, NULL, 0), 0);
}

Test(plan, how_much_a_source_must_have_is_an_input)
{
    P.least = PLAN_PART;
    cr_assert(plan_add(&P, 1, 0) && plan_add(&P, 2, 0));
    cr_assert_eq(made(10)->source_count, 0, "nothing is never enough");
    plan_have(&P, 1, PLAN_PART, 0);
    cr_assert_eq(made(10)->source_count, 1);
    plan_have(&P, 1, PLAN_NOTHING, 0);
    plan_have(&P, 1, PLAN_NOTHING, 0);
    cr_assert_eq(made(10)->source_count, 0);
    P.least = PLAN_ALL;
    plan_have(&P, 2, PLAN_PART, 0);
    cr_assert_eq(made(10)->source_count, 0);
}

/* ---- members of one place ---- */

#define NEAR 500u
#define FAR 600u

TestSuite(plan_place, .init = start, .fini = finish);

static void holder_at(uint64_t token, uint64_t place, uint64_t rate)
{
    cr_assert(plan_add(&P, token, place));
    plan_have(&P, token, PLAN_ALL, rate);
}

static const plan_row_t *made_at(uint64_t token, uint64_t place)
{
    cr_assert(plan_add(&P, token, place));
    plan_make(&P, token, NULL, 0);
    return plan_row(&P, token);
}

static bool waits_for(uint64_t token, uint64_t fetcher)
{
    const plan_row_t *row = plan_row(&P, token);
    bool waits = row->fetch == PLAN_WAITING && !row->source_count;
    return plan_waits_for(&P, token) == fetcher && waits == (fetcher != 0) &&
           (!fetcher || plan_is_awaited(&P, fetcher));
}

Test(plan_place, sources_of_the_own_place_come_first_however_slow_and_loaded)
{
    plan_publisher(&P, PUBLISHER, FAR);
    holder_at(1, FAR, 1000);
    holder_at(2, NEAR, 10);
    load(2, 5);
    const plan_row_t *row = made_at(10, NEAR);
    cr_assert_eq(row->source_count, 3);
    cr_assert(row->sources[0] == 2 && row->sources[1] == 1 && row->sources[2] == PUBLISHER);
    row = made_at(11, FAR);
    cr_assert(row->sources[0] == PUBLISHER && row->sources[1] == 1 && row->sources[2] == 2);
    row = made_at(12, 0);
    cr_assert(row->sources[0] == 1 && row->sources[1] == 2 && row->sources[2] == PUBLISHER,
              "without a place it is as if there were none");
}

Test(plan_place, its_sources_are_found_among_any_number_of_others)
{
    for (uint64_t token = 1; token <= 3 * PLAN_CANDIDATES; token++) holder_at(token, FAR, 0);
    holder_at(1000, NEAR, 0);
    for (uint64_t asker = 2000; asker < 2100; asker++) cr_assert_eq(made_at(asker, NEAR)->sources[0], 1000);
}

Test(plan_place, one_fetches_and_the_others_wait_for_it)
{
    plan_publisher(&P, PUBLISHER, FAR);
    cr_assert(made_at(1, NEAR)->fetch == PLAN_FETCHING && waits_for(1, 0));
    for (uint64_t token = 2; token <= 4; token++) made_at(token, NEAR);
    for (uint64_t token = 2; token <= 4; token++) cr_assert(waits_for(token, 1));
    cr_assert_eq(P.waiting_count, 3);
    cr_assert_eq(plan_next_woken(&P), 0, "while it fetches");
    cr_assert(made_at(5, FAR)->fetch == PLAN_FETCHING, "another place has its own");
    plan_make(&P, 3, NULL, 0);
    cr_assert(waits_for(3, 1) && P.waiting_count == 3, "asked again: it still waits");
    plan_make(&P, 1, NULL, 0);
    cr_assert(waits_for(1, 0) && waits_for(2, 1), "the one that fetches asks again: it goes on");
}

Test(plan_place, without_a_place_none_waits)
{
    plan_publisher(&P, PUBLISHER, 0);
    for (uint64_t token = 1; token <= 4; token++)
        cr_assert(made_at(token, 0)->fetch == PLAN_FETCHING && waits_for(token, 0));
    cr_assert(!plan_is_awaited(&P, 1) && !P.place_count);
}

Test(plan_place, with_the_publisher_of_the_place_all_have_it_and_none_waits)
{
    plan_publisher(&P, PUBLISHER, NEAR);
    for (uint64_t token = 1; token <= 4; token++) {
        const plan_row_t *row = made_at(token, NEAR);
        cr_assert(row->source_count == 1 && row->sources[0] == PUBLISHER && waits_for(token, 0));
    }
    uint64_t lost[] = {PUBLISHER};
    plan_make(&P, 2, lost, 1);
    cr_assert(plan_waits_for(&P, 2), "it lost the publisher: one of the others may bring the version");
}

/* Each is named once, and the first that asks fetches: the others wait for it again. */
static void assert_woken(uint64_t fetcher, uint32_t count)
{
    uint64_t seen[8] = {0}, token;
    uint32_t n = 0;
    while ((token = plan_next_woken(&P)) != 0) {
        for (uint32_t i = 0; i < n; i++) cr_assert_neq(seen[i], token);
        cr_assert(n < 8);
        seen[n++] = token;
        plan_make(&P, token, NULL, 0);
    }
    cr_assert_eq(n, count);
    for (uint32_t i = 0; i < n; i++) cr_assert(waits_for(seen[i], fetcher && i ? seen[0] : 0));
}

Test(plan_place, those_that_wait_are_woken_when_it_has_the_version)
{
    plan_publisher(&P, PUBLISHER, FAR);
    for (uint64_t token = 1; token <= 4; token++) made_at(token, NEAR);
    plan_have(&P, 1, PLAN_ALL, 0);
    assert_woken(0, 3);
    for (uint64_t token = 2; token <= 4; token++)
        cr_assert(plan_row(&P, token)->sources[0] == 1 && plan_row(&P, token)->fetch == PLAN_FETCHING);
    cr_assert_eq(plan_row(&P, 1)->load, 3);
}

/* The fetch ends in each way that is no success: the next one fetches. */
static void end_it_not(int how)
{
    switch (how) {
    case 0: plan_done(&P, 1); break;
    case 1: plan_remove(&P, 1); break;
    case 2: plan_stuck(&P, 1); break;
    case 3: plan_have(&P, 1, PLAN_NOTHING, 0); break;
    }
}

Test(plan_place, another_one_fetches_when_its_fetch_ends)
{
    for (int how = 0; how < 4; how++) {
        plan_fini(&P);
        plan_init(&P, 2, PLAN_ALL);
        plan_publisher(&P, PUBLISHER, FAR);
        for (uint64_t token = 1; token <= 4; token++) made_at(token, NEAR);
        end_it_not(how);
        assert_woken(1, 3);
        cr_assert_eq(P.waiting_count, 2, "way %d", how);
        plan_stuck(&P, 2), plan_stuck(&P, 3), plan_stuck(&P, 4);
        assert_woken(1, 2);
    }
}

Test(plan_place, one_that_is_stuck_may_bring_it_after_all)
{
    plan_publisher(&P, PUBLISHER, FAR);
    for (uint64_t token = 1; token <= 3; token++) made_at(token, NEAR);
    plan_stuck(&P, 1);
    plan_stuck(&P, 1);
    assert_woken(1, 2);
    plan_have(&P, 1, PLAN_ALL, 0);
    assert_woken(0, 1);
    cr_assert_eq(P.waiting_count, 0);
}

Test(plan_place, a_source_that_comes_wakes_them_too)
{
    plan_publisher(&P, PUBLISHER, FAR);
    for (uint64_t token = 1; token <= 3; token++) made_at(token, NEAR);
    holder_at(7, NEAR, 0);
    assert_woken(0, 2);
    for (uint64_t token = 10; token <= 12; token++) made_at(token, FAR + 1);
    plan_publisher(&P, PUBLISHER, FAR + 1);
    assert_woken(0, 2);
    cr_assert(plan_row(&P, 1)->fetch == PLAN_FETCHING, "what is under way goes on");
}

Test(plan_place, while_one_loads_it_the_others_of_its_place_have_it_too)
{
    plan_publisher(&P, PUBLISHER, FAR);
    for (uint64_t token = 1; token <= 3; token++) made_at(token, NEAR);
    plan_hold(&P, 1, true);
    assert_woken(0, 2);
    const plan_row_t *row = plan_row(&P, 2);
    cr_assert(row->source_count == 2 && row->sources[0] == 1 && row->sources[1] == PUBLISHER);
    row = made_at(7, FAR);
    cr_assert(row->source_count == 1 && row->sources[0] == PUBLISHER, "it is no source for another place");
    cr_assert(made_at(8, 0)->source_count == 1);
    plan_hold(&P, 1, false);
    plan_done(&P, 2), plan_done(&P, 3);
    row = made_at(9, NEAR);
    cr_assert(waits_for(9, 1), "it fetches it anew");
}

Test(plan_place, places_are_woken_together_and_may_go_meanwhile)
{
    plan_publisher(&P, PUBLISHER, FAR);
    for (uint64_t token = 10; token < 50; token++) made_at(token, NEAR + token / 10);
    for (uint64_t fetcher = 10; fetcher < 50; fetcher += 10) plan_done(&P, fetcher);
    for (uint64_t token = 20; token < 30; token++) plan_remove(&P, token); /* a place of the middle */
    cr_assert_eq(P.woken_count, 27);
    uint64_t token, count = 0;
    while ((token = plan_next_woken(&P)) != 0) {
        cr_assert(token < 20 || token >= 30);
        plan_make(&P, token, NULL, 0);
        count++;
    }
    cr_assert(count == 27 && P.woken_count == 0 && P.waiting_count == 24, "three fetch, one a place");
}

Test(plan_place, rows_that_go_leave_nothing_behind)
{
    plan_publisher(&P, PUBLISHER, FAR);
    for (uint64_t token = 1; token <= 4; token++) made_at(token, NEAR);
    plan_remove(&P, 3);
    cr_assert(P.waiting_count == 2 && waits_for(2, 1));
    plan_done(&P, 1);
    cr_assert_eq(P.woken_count, 2);
    plan_remove(&P, 2);
    cr_assert_eq(P.woken_count, 1, "one that was woken and not named yet");
    plan_make(&P, 4, NULL, 0);
    cr_assert(P.woken_count == 0 && plan_next_woken(&P) == 0, "it has asked before it was named");
    plan_remove(&P, 4), plan_remove(&P, 1);
    cr_assert(P.place_count == 0 && P.waiting_count == 0);
}
