/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/plan_rig.h"

static void start(void) { plan_init(&P, 2, PLAN_STAR, 0); }

/* ---- a star ---- */

TestSuite(plan, .init = start, .fini = finish);

/* A member with all bytes. */
static void holder(uint64_t token, uint64_t rate)
{
    cr_assert(add(token, 0));
    plan_have(&P, token, true, rate);
}

/* So many members begin to fetch from it. */
static void load(uint64_t token, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t asker = token * 1000 + i, others[PLAN_CANDIDATES];
        uint32_t lost = 0;
        cr_assert(add(asker, 0));
        for (size_t k = 0; k < P.source_count; k++)
            if (P.sources[k]->token != token) others[lost++] = P.sources[k]->token;
        plan_make(&P, asker, others, lost);
        cr_assert_eq(plan_row(&P, asker)->sources[0], token);
    }
    cr_assert_eq(plan_row(&P, token)->load, count);
}

static const plan_row_t *made(uint64_t token)
{
    cr_assert(add(token, 0));
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
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 0);
    const plan_row_t *row = made(1);
    cr_assert(row->source_count == 1 && row->sources[0] == PUBLISHER);
}

Test(plan, the_publisher_is_last_once_there_are_holders)
{
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 0);
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
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 0);
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

/* It has the bytes from its own host, so that nothing is known of its rate. */
Test(plan, so_are_those_with_a_limited_rate)
{
    cr_assert(plan_add(&P, &(plan_member_t){.token = 1, .name = "a", .zone = "", .is_limited = true}));
    plan_have(&P, 1, true, 0);
    holder(2, 1000);
    load(2, 9);
    const plan_row_t *row = made(50);
    cr_assert(row->sources[0] == 2 && row->sources[1] == 1);
}

Test(plan, the_same_input_gives_the_same_plan)
{
    plan_t other;
    plan_init(&other, 2, PLAN_STAR, 0);
    for (uint64_t token = 1; token <= 8; token++) holder(token, 0);
    for (uint64_t token = 8; token >= 1; token--) {
        cr_assert(add_to(&other, token, 0));
        plan_have(&other, token, true, 0);
    }
    for (uint64_t asker = 100; asker < 150; asker++) {
        uint64_t a[PLAN_SOURCES], b[PLAN_SOURCES];
        cr_assert(plan_sources_choose(&P, &(plan_asker_t){.token = asker}, a) == PLAN_SOURCES &&
                  plan_sources_choose(&other, &(plan_asker_t){.token = asker}, b) == PLAN_SOURCES);
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
        plan_sources_choose(&P, &(plan_asker_t){.token = asker}, sources);
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
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 0);
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
    cr_assert(add(gone, 0)); /* it comes back without the bytes, and nothing underflows */
    plan_done(&P, 10);
    cr_assert_eq(plan_row(&P, gone)->load, 0);
}

Test(plan, a_member_is_no_source_of_its_own)
{
    holder(1, 0);
    cr_assert_eq(plan_make(&P, 1, NULL, 0), 0);
}

Test(plan, one_that_still_fetches_is_no_source)
{
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 0);
    made(1);
    const plan_row_t *row = made(10);
    cr_assert(row->source_count == 1 && row->sources[0] == PUBLISHER);
}

/* ---- members of one place ---- */

#define NEAR 500u
#define FAR 600u

TestSuite(plan_place, .init = start, .fini = finish);

static void holder_at(uint64_t token, uint64_t place, uint64_t rate)
{
    cr_assert(add(token, place));
    plan_have(&P, token, true, rate);
}

static const plan_row_t *made_at(uint64_t token, uint64_t place)
{
    cr_assert(add(token, place));
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
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR);
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
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR);
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
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 0);
    for (uint64_t token = 1; token <= 4; token++)
        cr_assert(made_at(token, 0)->fetch == PLAN_FETCHING && waits_for(token, 0));
    cr_assert(!plan_is_awaited(&P, 1) && !P.place_count);
}

Test(plan_place, with_the_publisher_of_the_place_all_have_it_and_none_waits)
{
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, NEAR);
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
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR);
    for (uint64_t token = 1; token <= 4; token++) made_at(token, NEAR);
    plan_have(&P, 1, true, 0);
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
    case 3: plan_have(&P, 1, false, 0); break;
    }
}

Test(plan_place, another_one_fetches_when_its_fetch_ends)
{
    for (int how = 0; how < 4; how++) {
        plan_fini(&P);
        plan_init(&P, 2, PLAN_STAR, 0);
        plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR);
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
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR);
    for (uint64_t token = 1; token <= 3; token++) made_at(token, NEAR);
    plan_stuck(&P, 1);
    plan_stuck(&P, 1);
    assert_woken(1, 2);
    plan_have(&P, 1, true, 0);
    assert_woken(0, 1);
    cr_assert_eq(P.waiting_count, 0);
}

Test(plan_place, a_source_that_comes_wakes_them_too)
{
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR);
    for (uint64_t token = 1; token <= 3; token++) made_at(token, NEAR);
    holder_at(7, NEAR, 0);
    assert_woken(0, 2);
    for (uint64_t token = 10; token <= 12; token++) made_at(token, FAR + 1);
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR + 1);
    assert_woken(0, 2);
    cr_assert(plan_row(&P, 1)->fetch == PLAN_FETCHING, "what is under way goes on");
}

Test(plan_place, while_one_loads_it_the_others_of_its_place_have_it_too)
{
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR);
    for (uint64_t token = 1; token <= 3; token++) made_at(token, NEAR);
    plan_loads(&P, 1, true);
    assert_woken(0, 2);
    const plan_row_t *row = plan_row(&P, 2);
    cr_assert(row->source_count == 2 && row->sources[0] == 1 && row->sources[1] == PUBLISHER);
    row = made_at(7, FAR);
    cr_assert(row->source_count == 1 && row->sources[0] == PUBLISHER, "it is no source for another place");
    cr_assert(made_at(8, 0)->source_count == 1);
    plan_loads(&P, 1, false);
    plan_done(&P, 2), plan_done(&P, 3);
    row = made_at(9, NEAR);
    cr_assert(waits_for(9, 1), "it fetches it anew");
}

/* Those that hold its memory, or are about to, lose it: one fetches, and the others wait for that one. */
Test(plan_place, where_the_one_that_loads_it_goes_one_of_the_others_fetches)
{
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR);
    for (uint64_t token = 1; token <= 4; token++) made_at(token, NEAR);
    plan_loads(&P, 1, true);
    settle(&P);
    for (uint64_t token = 2; token <= 4; token++) cr_assert_eq(plan_row(&P, token)->sources[0], 1);
    plan_remove(&P, 1);
    settle(&P);
    uint64_t fetcher = 0;
    for (uint64_t token = 2; token <= 4; token++) {
        if (!plan_fetches(&P, token)) continue;
        cr_assert_eq(fetcher, 0, "one copy crosses the network");
        fetcher = token;
    }
    cr_assert_neq(fetcher, 0);
    cr_assert_eq(plan_row(&P, fetcher)->sources[0], PUBLISHER);
    for (uint64_t token = 2; token <= 4; token++) cr_assert(token == fetcher || waits_for(token, fetcher));
}

/* One copy comes over the network: what it read from goes, or it asks for another one by itself. */
Test(plan_chain, those_that_read_from_one_that_goes_wait_for_the_one_that_fetches_beside_them)
{
    for (int asks = 0; asks < 2; asks++) {
        plan_fini(&P);
        start_with(PLAN_CHAIN, 0);
        for (uint64_t token = 11; token <= 13; token++) cr_assert(add(token, 5));
        begin();
        plan_stuck(&P, 11);
        settle(&P);
        cr_assert(plan_fetches(&P, 12) && waits_for(13, 12));
        plan_loads(&P, 13, true);
        made(11);
        cr_assert_str_eq(list_text(11, 1), "13 9");
        plan_remove(&P, 13);
        if (asks) plan_make(&P, 11, &(uint64_t){13}, 1);
        settle(&P);
        cr_assert(plan_fetches(&P, 12) && waits_for(11, 12));
    }
}

/* Beside it another one loads it: what is left of their lists stays, behind that. */
Test(plan_place, where_one_that_has_it_goes_the_others_have_it_from_the_next_one)
{
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR);
    for (uint64_t token = 1; token <= 4; token++) made_at(token, NEAR);
    plan_have(&P, 1, true, 0);
    settle(&P);
    plan_loads(&P, 2, true);
    plan_remove(&P, 1);
    settle(&P);
    for (uint64_t token = 3; token <= 4; token++) cr_assert_eq(plan_row(&P, token)->sources[0], 2);
    cr_assert_eq(plan_row(&P, 3)->sources[1], PUBLISHER);
}

Test(plan_place, places_are_woken_together_and_may_go_meanwhile)
{
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR);
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
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, FAR);
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

/* ---- a chain ---- */

static void start_chain(void) { start_with(PLAN_CHAIN, 0); }

TestSuite(plan_chain, .init = start_chain, .fini = finish);

static const char *list_of(uint64_t token) { return list_text(token, 1); }

static void mend_all(void)
{
    for (uint64_t token; (token = plan_next_torn(&P)) != 0;) plan_mend(&P, token);
}

Test(plan_chain, each_names_those_before_it_and_the_first_ones_the_publisher)
{
    wave(11, 16);
    cr_assert_str_eq(list_of(11), "9");
    cr_assert_str_eq(list_of(12), "11 9");
    cr_assert_str_eq(list_of(13), "12 11 9");
    cr_assert_str_eq(list_of(14), "13 12 11");
    cr_assert_str_eq(list_of(16), "15 14 13");
}

Test(plan_chain, a_later_one_goes_to_the_tail_whatever_its_name)
{
    wave(20, 23);
    made(10);
    cr_assert_str_eq(list_of(10), "23 22 21");
    cr_assert_str_eq(list_of(20), "9");
    made(15);
    cr_assert_str_eq(list_of(15), "10 23 22");
}

Test(plan_chain, those_behind_one_that_goes_get_another_list_and_no_others)
{
    wave(11, 17);
    plan_remove(&P, 13);
    uint64_t torn[8];
    uint32_t count = 0;
    for (uint64_t token; (token = plan_next_torn(&P)) != 0; plan_mend(&P, token)) torn[count++] = token;
    cr_assert(count == 3 && has_number(torn, 3, 14) && has_number(torn, 3, 15) && has_number(torn, 3, 16));
    cr_assert_str_eq(list_of(14), "12 11 9");
    cr_assert_str_eq(list_of(15), "14 12 11");
    cr_assert_str_eq(list_of(17), "16 15 14");
}

/* Each way in which a fetch ends without the bytes. */
Test(plan_chain, one_whose_fetch_ends_serves_no_more)
{
    for (int how = 0; how < 4; how++) {
        plan_fini(&P);
        start_chain();
        wave(1, 4);
        end_it_not(how);
        mend_all();
        cr_assert_str_eq(list_of(2), "9", "way %d", how);
        cr_assert_str_eq(list_of(4), how == 1 ? "3 2 9" : "3 2", "way %d", how);
    }
    plan_fini(&P);
    start_chain();
    wave(1, 4);
    plan_have(&P, 1, true, 0);
    cr_assert_eq(plan_next_torn(&P), 0, "it has all bytes");
    plan_remove(&P, 1);
    cr_assert_neq(plan_next_torn(&P), 0);
}

Test(plan_chain, one_that_asks_gets_those_further_in_front)
{
    wave(11, 17);
    uint64_t lost[] = {16, 15, 14, 13, 12, 11, PUBLISHER};
    cr_assert_eq(plan_make(&P, 17, lost, 2), 3);
    cr_assert_str_eq(list_of(17), "14 13 12");
    plan_make(&P, 17, lost, 4);
    cr_assert_str_eq(list_of(17), "12 11", "two are enough where the publisher is far");
    plan_make(&P, 17, lost, 5);
    cr_assert_str_eq(list_of(17), "11 9", "the publisher, which is for the first ones, where 11 goes, too");
    plan_make(&P, 17, lost, 6);
    cr_assert_str_eq(list_of(17), "9", "but for one that no other reaches");
    plan_make(&P, 17, lost, 7);
    cr_assert_str_eq(list_of(17), "16 15 14", "better those that failed once than none");
}

Test(plan_chain, one_that_is_stuck_is_a_source_where_there_is_no_other)
{
    plan_publisher(&P, 0, PUBLISHER_LOST, 0);
    cr_assert(add(11, 0) && add(12, 0));
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 0);
    plan_make_all(&P);
    plan_stuck(&P, 11);
    plan_publisher(&P, 0, PUBLISHER_LOST, 0);
    mend_all();
    cr_assert_str_eq(list_of(12), "11");
}

Test(plan_chain, one_without_a_source_serves_what_it_has)
{
    wave(11, 13);
    plan_publisher(&P, 0, PUBLISHER_LOST, 0);
    cr_assert_eq(plan_make(&P, 11, NULL, 0), 0);
    cr_assert(!plan_fetches(&P, 11) && !plan_next_torn(&P));
    plan_make(&P, 12, NULL, 0);
    cr_assert_str_eq(list_of(12), "11");
}

/* Members whose lists name it. */
static uint32_t namings_of(uint64_t token)
{
    uint32_t count = 0;
    for (const plan_naming_t *n = plan_row(&P, token)->namings; n; n = n->next) count++;
    return count;
}

Test(plan_chain, a_new_session_keeps_its_place_and_those_behind_it_go_on)
{
    wave(11, 14);
    cr_assert(plan_renew(&P, 12, 112) && !plan_renew(&P, 12, 113));
    cr_assert_eq(plan_next_torn(&P), 0);
    cr_assert_str_eq(list_of(13), "112 11 9");
    plan_make(&P, 112, NULL, 0);
    cr_assert_str_eq(list_of(112), "11 9");
    cr_assert(plan_row(&P, 112)->load == 2 && namings_of(112) == 2 && !plan_row(&P, 12));
    plan_have(&P, 13, true, 0), plan_have(&P, 14, true, 0);
    cr_assert(!plan_row(&P, 112)->load && !namings_of(112));
}

/* 11 stood still, and the others went on without it. */
Test(plan_chain, one_that_fetches_from_the_publisher_turns_to_a_holder)
{
    wave(11, 14);
    cr_assert_not(plan_leave_publisher(&P, 11), "none has all bytes");
    plan_have(&P, 13, true, 0);
    cr_assert_not(plan_leave_publisher(&P, 12), "it fetches from 11");
    cr_assert(plan_leave_publisher(&P, 11));
    cr_assert_str_eq(list_of(11), "13 9");
    cr_assert_eq(plan_row(&P, 13)->load, 4, "14 has it, too");
    cr_assert_not(plan_leave_publisher(&P, 11), "it has");
    plan_done(&P, 11);
    cr_assert_eq(plan_row(&P, 13)->load, 2);
}

Test(plan_chain, one_with_a_limited_rate_is_not_better_than_the_publisher)
{
    cr_assert(add(11, 0));
    cr_assert(plan_add(&P, &(plan_member_t){.token = 12, .name = "l", .zone = "", .is_limited = true}));
    begin();
    plan_have(&P, 12, true, 0);
    cr_assert_not(plan_leave_publisher(&P, 11));
    cr_assert_str_eq(list_of(11), "9");
    cr_assert_eq(plan_row(&P, 12)->load, 0);
}

/* 12 is on the publisher's host: what it sends goes over the same uplink. */
Test(plan_chain, one_on_the_publishers_host_is_not_better_than_the_publisher)
{
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 7);
    cr_assert(add(11, 0) && add(12, 7) && add(13, 0) && add(14, 0));
    begin();
    plan_have(&P, 12, true, 0);
    cr_assert_not(plan_leave_publisher(&P, 11));
    cr_assert_str_eq(list_of(11), "9");
    cr_assert_eq(plan_row(&P, 12)->load, 0);
    plan_have(&P, 14, true, 0);
    cr_assert(plan_leave_publisher(&P, 11));
    cr_assert_str_eq(list_of(11), "14 9");
}

Test(plan_chain, holders_that_serve_none_come_before_the_tail)
{
    wave(11, 14);
    for (uint64_t token = 11; token <= 14; token++) plan_have(&P, token, true, 0);
    uint64_t first[5], seen = 0;
    for (uint64_t token = 20; token < 25; token++) first[token - 20] = made(token)->sources[0];
    for (int i = 0; i < 4; i++) seen |= 1u << first[i];
    cr_assert_eq(seen, 0xfu << 11, "one each");
    cr_assert_eq(first[4], 23, "all of them serve one");
    cr_assert_eq(plan_row(&P, 20)->sources[2], PUBLISHER);
}

/* One with a limited rate has taken the holder that came last. */
Test(plan_chain, one_that_joins_behind_a_holder_that_serves_another_turns_to_one_that_does_not)
{
    wave(11, 13);
    made(20);
    plan_have(&P, 20, true, 0);
    cr_assert(plan_add(&P, &(plan_member_t){.token = 21, .name = "l", .zone = "", .is_limited = true}));
    cr_assert(plan_make(&P, 21, NULL, 0));
    cr_assert_str_eq(list_of(21), "20 9");
    made(22);
    cr_assert_str_eq(list_of(22), "13 20 12");
    cr_assert_eq(plan_row(&P, 20)->load, PLAN_HALVES);
}

/* One that was second in its list has all bytes to send, and the publisher has those of all. */
Test(plan_chain, one_that_lost_its_source_turns_to_a_free_holder_before_the_publisher)
{
    wave(11, 14);
    cr_assert(add(20, 0));
    plan_have(&P, 20, true, 0);
    cr_assert_str_eq(list_of(12), "11 9");
    plan_remove(&P, 11);
    mend_all();
    cr_assert_str_eq(list_of(12), "20 9");
    cr_assert_str_eq(list_of(13), "12 20 9");
    plan_remove(&P, 12);
    mend_all();
    cr_assert_str_eq(list_of(13), "20 9");
    cr_assert_str_eq(list_of(14), "13 20 9");
}

Test(plan_chain, what_is_on_the_publishers_host_has_its_bytes_and_is_no_link)
{
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, NEAR);
    cr_assert(add(11, 0) && add(12, NEAR) && add(13, NEAR) && add(14, 0) && add(15, 0) && add(16, 0));
    begin();
    cr_assert_str_eq(list_of(12), "9");
    cr_assert_str_eq(list_of(13), "9");
    cr_assert_str_eq(list_of(14), "11 9");
    cr_assert_str_eq(list_of(15), "14 11 9");
    cr_assert_str_eq(list_of(16), "15 14 11");
    plan_have(&P, 12, true, 0);
    made(17);
    cr_assert_str_eq(list_of(17), "16 15 14", "its uplink carries the bytes once");
    plan_publisher(&P, 0, PUBLISHER_LOST, 0);
    made(18);
    cr_assert_eq(plan_row(&P, 18)->sources[0], 12, "it stands for the publisher");
}

Test(plan_chain, a_holder_at_the_place_of_a_lost_publisher_is_better_than_none)
{
    uint64_t lost[] = {PUBLISHER};
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, NEAR);
    cr_assert(add(11, 0) && add(12, NEAR));
    begin();
    plan_have(&P, 12, true, 0);
    cr_assert_eq(plan_make(&P, 11, lost, 1), 1);
    cr_assert_str_eq(list_of(11), "12", "its region of this version is in use again");
}

Test(plan_chain, one_of_each_place_fetches_and_the_places_are_a_chain)
{
    for (uint64_t token = 10; token < 40; token++) cr_assert(add(token, NEAR + token % 3));
    begin();
    cr_assert(P.station_count == 3 && P.waiting_count == 27);
    cr_assert_str_eq(list_of(10), "9");
    cr_assert_str_eq(list_of(11), "10 9");
    cr_assert_str_eq(list_of(12), "11 10 9");
    plan_have(&P, 10, true, 0);
    for (uint64_t token; (token = plan_next_woken(&P)) != 0;) plan_make(&P, token, NULL, 0);
    cr_assert(P.waiting_count == 18 && plan_row(&P, 13)->sources[0] == 10);
    cr_assert_eq(plan_row(&P, 11)->sources[0], 10, "its list is as it was");
}

/* The next one of its place begins anew, and those behind have more bytes already. */
Test(plan_chain, a_place_whose_head_goes_begins_anew_at_the_tail)
{
    cr_assert(add(11, 0) && add(12, NEAR) && add(13, NEAR) && add(14, 0) && add(15, 0));
    begin();
    cr_assert_str_eq(list_of(14), "12 11 9");
    plan_remove(&P, 12);
    cr_assert_eq(plan_next_woken(&P), 13);
    plan_make(&P, 13, NULL, 0);
    mend_all();
    cr_assert_str_eq(list_of(13), "15 14 11");
    cr_assert_str_eq(list_of(14), "11 9");
    cr_assert_str_eq(list_of(15), "14 11 9");
}

Test(plan_chain, heads_of_several_places_that_go_at_once_leave_a_chain)
{
    check_heads_that_go_at_once(false);
    cr_assert_str_eq(list_of(12), "9");
    cr_assert_str_eq(list_of(16), "12 9");
    cr_assert_str_eq(list_of(20), "16 12 9");
    cr_assert_str_eq(list_of(24), "20 16 12");
}

Test(plan_chain, heads_of_several_places_that_go_as_they_load_leave_a_chain)
{
    check_heads_that_go_at_once(true);
}

Test(plan_chain, zones_are_entered_once_and_limited_ones_come_last)
{
    static const char *const ZONES[] = {"b", "a", "b", "a", "a"};
    for (uint64_t i = 0; i < 5; i++) {
        char name[8] = {(char)('a' + i)};
        cr_assert(plan_add(
            &P, &(plan_member_t){.token = 10 + i, .name = name, .zone = ZONES[i], .is_limited = i == 3}));
    }
    begin();
    cr_assert_str_eq(list_of(11), "9");
    cr_assert_str_eq(list_of(14), "11 9");
    cr_assert_str_eq(list_of(10), "14 11 9");
    cr_assert_str_eq(list_of(12), "10 14 11");
    cr_assert_str_eq(list_of(13), "12 10 14");
    made(20);
    cr_assert_str_eq(list_of(20), "12 10 14", "not behind one with a limited rate");
}

Test(plan_chain, others_fetch_from_a_last_resort_where_nothing_else_has_the_bytes)
{
    for (uint64_t i = 0; i < 4; i++) {
        char name[8] = {(char)('a' + i)};
        cr_assert(plan_add(
            &P, &(plan_member_t){.token = 10 + i, .name = name, .zone = "", .is_last_resort = i % 2}));
    }
    begin();
    cr_assert_str_eq(list_of(12), "10 9");
    cr_assert_str_eq(list_of(11), "12 10 9");
    cr_assert_str_eq(list_of(13), "12 10", "not behind another last resort");
    plan_have(&P, 11, true, 0);
    made(20);
    cr_assert_str_eq(list_of(20), "12 10");
    plan_remove(&P, 10);
    plan_remove(&P, 12);
    plan_publisher(&P, 0, PUBLISHER_LOST, 0);
    made(20);
    cr_assert_str_eq(list_of(20), "11");
}

/* It had lost the publisher, and there was no other one. */
Test(plan_chain, one_that_reads_from_one_that_is_stuck_has_another_one_when_that_ends)
{
    for (int is_gone = 0; is_gone < 2; is_gone++) {
        plan_fini(&P);
        start_chain();
        wave(11, 12);
        plan_stuck(&P, 11);
        settle(&P);
        cr_assert_str_eq(list_of(12), "9");
        plan_make(&P, 12, &(uint64_t){PUBLISHER}, 1);
        cr_assert_str_eq(list_of(12), "11");
        if (is_gone) plan_remove(&P, 11);
        else plan_done(&P, 11);
        settle(&P);
        cr_assert_str_eq(list_of(12), "9", "%s", is_gone ? "it has gone" : "it has given up");
    }
}

/* They take all bytes and give none: each half is from another station, so that a few cost none twice. */
Test(plan_chain, last_resorts_are_spread_over_all_stations)
{
    for (uint32_t relays = 1; relays <= 20; relays++)
        for (uint32_t last = 1; last <= 20; last++) {
            plan_fini(&P);
            start_chain();
            wave_with_last_resorts(relays, last);
            check_shares(relays, last, PLAN_HALVES * (relays - 1 + last));
        }
    plan_fini(&P);
    start_chain();
    wave_with_last_resorts(16, 8);
    cr_assert_str_eq(list_of(1011), "26 25 24", "the last relay serves no other");
    cr_assert_str_eq(list_of(1012), "26 25 24");
    cr_assert_str_eq(list_text(1012, 2), "25 24 23");
    cr_assert_str_eq(list_text(1013, 1), "24 23 22");
}

/* One that it reads from goes: it has another one with the least load, and the others theirs. */
Test(plan_chain, a_last_resort_goes_on_from_another_station)
{
    plan_fini(&P);
    start_chain();
    wave_with_last_resorts(8, 4);
    cr_assert_str_eq(list_text(1014, 1), "14 13 12");
    cr_assert_str_eq(list_text(1014, 2), "13 12 11");
    plan_make(&P, 1014, NULL, 0);
    cr_assert_str_eq(list_text(1014, 1), "14 13 12", "none sends less");
    plan_remove(&P, 14);
    settle(&P);
    cr_assert_str_eq(list_text(1012, 1), "18 17 16");
    for (uint64_t token = 11; token <= 18; token++)
        cr_assert(token == 14 || halves_of(token) <= PLAN_HALVES + 2, "%u", (unsigned)token);
    cr_assert_eq(halves_of(PUBLISHER), PLAN_HALVES);
}

/* Its source serves a last resort: it would send all bytes twice. */
Test(plan_chain, one_that_joins_beside_last_resorts_gets_halves)
{
    plan_fini(&P);
    start_chain();
    wave_with_last_resorts(8, 2);
    made(20);
    for (uint64_t token = 11; token <= 18; token++) cr_assert_leq(halves_of(token), PLAN_HALVES + 1);
    made(21);
    cr_assert_str_eq(list_text(21, 1), "20 18 17", "that one serves no other");
}

/* It was there when the list was restored, so that it was not one of those that were to come back. */
Test(plan_chain, one_that_came_back_goes_and_comes_back)
{
    plan_lists_t lists = {.source_count = 3, .sources = {20, 5, PUBLISHER}};
    plan_fini(&P);
    start_chain();
    plan_resume(&P);
    cr_assert(add(11, 0) && add(20, 0));
    plan_restore(&P, 11, &lists);
    plan_remove(&P, 20);
    cr_assert(add(21, 0));
    plan_came_back(&P, 20, 21);
    cr_assert_str_eq(list_of(11), "21 5 9");
    cr_assert(add(6, 0));
    plan_came_back(&P, 5, 6);
    cr_assert_str_eq(list_of(11), "21 6 9");
}

/* Most lists are in halves, and those of the relays are not. */
Test(plan_chain, after_a_restart_last_resorts_in_halves_leave_it_a_chain)
{
    plan_lists_t relay = {.source_count = 1, .sources = {PUBLISHER}},
                 last = {.half = 1, .source_count = 1, .other_count = 1, .sources = {11}, .others = {12}};
    plan_fini(&P);
    start_chain();
    plan_resume(&P);
    cr_assert(add(11, 0) && add(12, 0));
    plan_restore(&P, 11, &relay);
    relay.sources[0] = 11;
    plan_restore(&P, 12, &relay);
    for (uint64_t token = 1011; token <= 1014; token++) {
        add_last_resort(token);
        plan_restore(&P, token, &last);
    }
    made(20);
    cr_assert_eq(P.shape, PLAN_CHAIN);
}

Test(plan_chain, one_that_is_demoted_goes_to_the_tail)
{
    wave(11, 14);
    plan_demote(&P, 12);
    plan_make(&P, 12, NULL, 0);
    mend_all();
    cr_assert_str_eq(list_of(12), "14 13 11");
    cr_assert_str_eq(list_of(13), "11 9");
    cr_assert_str_eq(list_of(14), "13 11 9");
    plan_have(&P, 13, true, 0);
    plan_demote(&P, 13);
    mend_all();
    cr_assert_str_eq(list_of(14), "11 9", "one that has all bytes serves where there is no other one");
}

/* So each uplink there carries the bytes once. */
Test(plan_chain, one_that_is_demoted_goes_behind_those_that_came_last_before)
{
    plan_init(&P, 1, PLAN_CHAIN, 0);
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 0);
    for (uint64_t i = 0; i < 5; i++) {
        char name[8] = {(char)('a' + i)};
        cr_assert(plan_add(&P, &(plan_member_t){.token = 11 + i,
                                                .name = name,
                                                .zone = "",
                                                .is_limited = i == 4,
                                                .blamed_ms = i == 4 ? 7 : 0}));
    }
    begin();
    cr_assert_str_eq(list_of(15), "14 13 12");
    put_last(&P, 12);
    cr_assert_str_eq(list_of(12), "15 14 13");
    put_last(&P, 13);
    cr_assert_str_eq(list_of(13), "15 14 11", "it is blamed for what 12 gave it, as a rule");
    cr_assert_str_eq(list_of(12), "13 15 14");
    put_last(&P, 12);
    cr_assert_str_eq(list_of(12), "13 15 14", "that is known");
    cr_assert_str_eq(list_of(14), "11 9");
    made(20);
    cr_assert_str_eq(list_of(20), "14 11", "one that joins is not behind them");
    cr_assert_str_eq(list_text(20, 2), "11 14", "14 serves 15, and so each of two sends half as much again");
}

/* It has a limited rate by its own wish, so it takes little. */
Test(plan_chain, one_that_joins_behind_a_limited_one_gets_all_from_the_tail)
{
    wave(11, 13);
    cr_assert(plan_add(&P, &(plan_member_t){.token = 14, .name = "z", .zone = "", .is_limited = true}));
    plan_make(&P, 14, NULL, 0);
    made(20);
    cr_assert_str_eq(list_of(20), "13 12 11");
    cr_assert_eq(plan_row(&P, 20)->half, 0);
}

/* Where one of the two goes it gets both halves from others, and a station with room has all of it. */
Test(plan_chain, one_that_gets_halves_of_a_chain_goes_on_without_one_of_the_two)
{
    wave(11, 16);
    put_last(&P, 12);
    made(20);
    cr_assert_str_eq(list_of(20), "16 15 14");
    cr_assert_str_eq(list_text(20, 2), "15 16 14");
    made(21);
    cr_assert_str_eq(list_of(21), "20 16 15");
    cr_assert_eq(plan_row(&P, 21)->half, 0);
    plan_remove(&P, 16);
    settle(&P);
    cr_assert_str_eq(list_of(20), "15 14 13");
    cr_assert_str_eq(list_text(20, 2), "14 15 13");
    plan_remove(&P, 12);
    plan_make(&P, 20, NULL, 0);
    cr_assert_eq(plan_row(&P, 20)->half, 0, "the tail serves no other any more");
    cr_assert_str_eq(list_of(20), "15 14 13");
}

/* Until the rollout begins the order is that of zones and names. */
Test(plan_chain, one_that_is_demoted_before_the_rollout_begins_keeps_its_place)
{
    for (uint64_t token = 11; token <= 14; token++) cr_assert(add(token, 0));
    cr_assert(plan_make(&P, 12, NULL, 0));
    plan_demote(&P, 12);
    for (size_t i = 0; i < P.station_count; i++) cr_assert_eq(plan_station_index(&P, P.chain[i]), i);
    begin();
    cr_assert_str_eq(list_of(13), "12 11 9");
    plan_remove(&P, 12);
    mend_all();
    cr_assert_str_eq(list_of(14), "13 11 9");
}

Test(plan_chain, a_process_that_is_no_member_gets_the_tail_and_the_publisher)
{
    wave(11, 16);
    uint64_t sources[PLAN_SOURCES];
    cr_assert_eq(plan_sources_choose(&P, &(plan_asker_t){.token = 5}, sources), 3);
    cr_assert(sources[0] == 16 && sources[1] == 15 && sources[2] == PUBLISHER);
}

static plan_shape_t shape_of(plan_shape_t wanted, uint64_t rate)
{
    enum { BYTES = 300000 };
    plan_fini(&P);
    plan_init(&P, 2, wanted, BYTES);
    plan_uplink(&P, rate);
    begin();
    return P.shape;
}

/* The members came back behind each other, the last one by name first, and none asked for a list since. */
Test(plan_chain, a_process_that_is_no_member_gets_the_tail_of_the_order_that_restored_lists_say)
{
    plan_resume(&P);
    for (uint64_t token = 11; token <= 13; token++) cr_assert(add(token, 0));
    plan_restore(&P, 13, &(plan_lists_t){.source_count = 1, .sources = {PUBLISHER}});
    plan_restore(&P, 12, &(plan_lists_t){.source_count = 2, .sources = {13, PUBLISHER}});
    plan_restore(&P, 11, &(plan_lists_t){.source_count = 3, .sources = {12, 13, PUBLISHER}});
    uint64_t sources[PLAN_SOURCES];
    cr_assert_eq(plan_sources_choose(&P, &(plan_asker_t){.token = 5}, sources), 3);
    cr_assert(sources[0] == 11 && sources[1] == 12 && sources[2] == PUBLISHER, "%u first",
              (unsigned)sources[0]);
}

Test(plan, the_rate_of_the_publisher_counts_for_the_choice)
{
    cr_assert_eq(shape_of(PLAN_AUTO, 10 * 1000 * 1000), PLAN_CHAIN, "that takes 30 ms");
    cr_assert_eq(shape_of(PLAN_AUTO, 0), PLAN_STAR, "sent before one hop is over");
    plan_uplink(&P, 10 * 1000 * 1000);
    cr_assert_eq(P.shape, PLAN_STAR, "a rollout that has begun keeps its plan");
    cr_assert_eq(shape_of(PLAN_STAR, 10 * 1000 * 1000), PLAN_STAR, "by choice");
}

/* ---- relays that go with the broker ---- */

/* The one that is left of its list, and that it reads from. */
static uint64_t reads_from(const plan_row_t *row)
{
    uint32_t i = 0;
    while (i < row->source_count && row->sources[i] != PUBLISHER && !plan_row(&P, row->sources[i])) i++;
    return i < row->source_count ? row->sources[i] : 0;
}

/* Of 16, one behind the other, those that a bit of `gone` names do not come back.  All that are named then turn to
 * the next one of their lists by themselves, and those that have none there ask. */
static void come_back_without(uint32_t gone)
{
    plan_lists_t lists[16] = {0};
    plan_fini(&P);
    plan_init(&P, 1, PLAN_CHAIN, 0);
    plan_resume(&P);
    plan_publisher(&P, PUBLISHER, PUBLISHER_SERVES, 0);
    for (uint64_t i = 0; i < 16; i++) {
        lists[i].source_count = i < 2 ? (uint32_t)i + 1 : PLAN_SOURCES;
        for (uint64_t k = 0; k < lists[i].source_count; k++)
            lists[i].sources[k] = i > k ? 10 + i - k : PUBLISHER;
        if (gone & 1u << i) continue;
        cr_assert(add(11 + i, 0));
        plan_restore(&P, 11 + i, &lists[i]);
    }
    for (uint64_t i = 0; i < 16; i++) {
        const plan_row_t *row = plan_row(&P, 11 + i);
        if (row && !reads_from(row)) plan_make(&P, 11 + i, row->sources, row->source_count);
    }
    settle(&P);
}

/* Each that is left is read from by one alone, the publisher too. */
static void check_a_chain(uint32_t gone)
{
    uint64_t readers[32] = {0};
    for (size_t i = 0; i < P.count; i++) {
        uint64_t token = reads_from(P.rows[i]);
        const plan_row_t *row = P.rows[i], *source = plan_row(&P, token);
        cr_assert_leq(++readers[token], 1, "without %#x: two read from %llu", gone,
                      (unsigned long long)token);
        cr_assert(!source || plan_key_order(&source->station->key, &row->station->key) < 0, "without %#x",
                  gone);
    }
}

Test(plan_chain, whatever_goes_with_the_broker_the_rest_is_one_chain)
{
    for (uint32_t first = 0; first < 13; first++)
        for (uint32_t count = 1; count <= 3; count++)
            for (uint32_t other = first + count + 1; other < 14; other++) {
                uint32_t gone = ((1u << count) - 1) << first;
                come_back_without(gone);
                check_a_chain(gone);
                gone |= 7u << other;
                come_back_without(gone & 0xffff);
                check_a_chain(gone & 0xffff);
            }
}

/* ---- any memberships ---- */

/* Depth first along all lists, from the asker to its sources; a source with all bytes asks none. */
static bool is_circle(const plan_t *p, const plan_row_t *row, uint8_t *state)
{
    for (uint32_t i = 0; row->fetch >= PLAN_FETCHING && i < row->source_count + row->other_count; i++) {
        uint32_t own = row->source_count;
        const plan_row_t *source = plan_row(p, i < own ? row->sources[i] : row->others[i - own]);
        if (!source || source->has != PLAN_PARTS) continue;
        uint8_t *its = &state[source->token];
        if (*its == 1) return true;
        if (*its == 2) continue;
        *its = 1;
        if (is_circle(p, source, state)) return true;
        *its = 2;
    }
    return false;
}

static void check_no_circle(const any_t *a)
{
    static uint8_t state[4096];
    memset(state, 0, sizeof state);
    for (size_t i = 0; i < a->plan.count; i++) {
        const plan_row_t *row = a->plan.rows[i];
        if (state[row->token]) continue;
        state[row->token] = 1;
        cr_assert(!is_circle(&a->plan, row, state), "seed %llu: members wait for each other in a circle",
                  (unsigned long long)a->seed);
        state[row->token] = 2;
    }
}

/* Over first sources each member comes to the publisher, or to one with all bytes. */
static void check_reached(const any_t *a)
{
    for (size_t i = 0; i < a->plan.count; i++) {
        const plan_row_t *row = a->plan.rows[i];
        for (uint32_t steps = 0; row->has == PLAN_PARTS; steps++) {
            cr_assert_lt(steps, 2 * MOST, "seed %llu", (unsigned long long)a->seed);
            uint64_t next =
                row->fetch == PLAN_WAITING ? plan_waits_for(&a->plan, row->token) : row->sources[0];
            cr_assert(row->fetch == PLAN_WAITING || row->source_count, "seed %llu: %s has no source",
                      (unsigned long long)a->seed, row->key.text);
            if (next == plan_server(&a->plan)) break;
            row = plan_row(&a->plan, next);
            cr_assert(row, "seed %llu: the source is gone", (unsigned long long)a->seed);
        }
    }
}

/* Halves of the chunks over the network: those of one copy into a station, and out of it those of one, and
 * its share of what last resorts take, where so many have joined.  Those that join beside blamed ones cost half
 * as much again.  Those of limited ones count for nothing: by their own wish they take little. */
static void check_edges(const any_t *a, uint32_t joined)
{
    uint32_t more = more_of(&a->plan, joined), most = joined ? most_halves(a) : PLAN_HALVES;
    check_uplinks(a, most + more, PLAN_HALVES + (has_relay(&a->plan) ? 0 : most - PLAN_HALVES + more));
}

/* The zone of a station, with its length. */
static const char *zone_of(const plan_station_t *station, size_t *ret_bytes)
{
    const char *zone = station->key.text;
    *ret_bytes = (size_t)(strchr(zone, '\x01') - zone);
    return zone;
}

/* Of members that are well, however many and from whatever zones: from each station the chain goes on in its
 * own zone as long as there is one, and comes back to none. */
Test(plan_any, each_zone_is_entered_once)
{
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        static any_t a;
        open_any(&a, seed, PLAN_CHAIN, 0);
        char left[MOST][8] = {0};
        size_t left_count = 0, before_bytes = 0;
        const char *before = NULL;
        for (size_t i = 0; i < a.plan.station_count; i++) {
            const plan_station_t *station = a.plan.chain[i];
            if (plan_station_is_limited(station)) continue;
            size_t bytes;
            const char *zone = zone_of(station, &bytes);
            for (size_t k = 0; k < left_count; k++)
                cr_assert(strlen(left[k]) != bytes || memcmp(left[k], zone, bytes) != 0, "seed %llu",
                          (unsigned long long)seed);
            bool is_other = before && (before_bytes != bytes || memcmp(before, zone, bytes) != 0);
            if (is_other) memcpy(left[left_count++], before, before_bytes);
            before = zone;
            before_bytes = bytes;
        }
        cr_assert_leq(left_count, 2);
        plan_fini(&a.plan);
    }
}

/* All are well, and stay so: they come and go, some say that they lost their source, and none sends more than
 * all bytes. */
Test(plan_any, where_all_are_well_no_uplink_carries_more_than_all_bytes)
{
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        static any_t a;
        open_with(&a, seed, PLAN_CHAIN, 0, true);
        check_uplinks(&a, PLAN_HALVES, PLAN_HALVES);
        for (int i = 0; i < 30; i++) {
            come_and_go(&a);
            check_no_circle(&a);
            check_ways(&a);
            check_uplinks(&a, PLAN_HALVES, PLAN_HALVES);
            check_load_of_publisher(&a);
        }
        plan_fini(&a.plan);
    }
}

/* All are well; several go in one turn, whole hosts and heads of others among them. */
Test(plan_any, however_many_go_at_once_no_uplink_carries_more_than_all_bytes)
{
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        static any_t a;
        open_with(&a, seed, PLAN_CHAIN, 0, true);
        for (int i = 0; i < 15; i++) {
            go_at_once(&a);
            check_no_circle(&a);
            check_ways(&a);
            check_uplinks(&a, PLAN_HALVES, PLAN_HALVES);
            check_load_of_publisher(&a);
        }
        plan_fini(&a.plan);
    }
}

/* 3,000 memberships, and what may happen to them.  Whatever goes, is put last or stuck, one after the other: in one
 * step of a hundred a station sends all bytes more than twice. */
Test(plan_any, no_circle_and_a_source_for_all)
{
    uint32_t steps = 0, beyond = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        static any_t a;
        open_any(&a, seed, PLAN_CHAIN, 0);
        check_reached(&a);
        check_edges(&a, 0);
        check_no_circle(&a);
        for (int i = 0; i < 3 && a.count < MOST; i++) {
            check_join(&a);
            check_reached(&a);
            check_edges(&a, (uint32_t)i + 1);
        }
        check_seconds(&a);
        for (int i = 0; i < 30; i++) {
            go_on(&a);
            check_no_circle(&a);
            check_ways(&a);
            check_load_of_publisher(&a);
            uint32_t more = more_of(&a.plan, 3);
            beyond += check_uplinks(&a, 7 + more, 8) > 2 * PLAN_HALVES + more;
            steps++;
        }
        plan_fini(&a.plan);
    }
    printf("more than 2 M out of a station in %u of %u steps\n", beyond, steps);
    cr_assert(beyond * 100 <= steps);
}

/* Stations that serve others, before the first one that was blamed. */
static uint32_t relays_of(const any_t *a)
{
    uint32_t relays = 0;
    for (size_t i = 0; i < a->plan.station_count; i++) {
        const plan_station_t *station = a->plan.chain[i];
        if (plan_station_is_blamed(station)) break;
        bool is_relay = false;
        for (size_t k = 0; k < station->count; k++) is_relay |= station->rows[k]->fetch == PLAN_FETCHING;
        relays += is_relay && !plan_station_is_limited(station) &&
                  !plan_is_publishers_place(&a->plan, station->place);
    }
    return relays;
}

/* Any of them is put last, comes or goes.  As long as two serve others before those that were blamed, the publisher
 * sends the bytes once, and a station half as much again at most; but for one time in 200, where one that
 * fetched all from one source lost that, and the next one in front serves those that were blamed already. */
Test(plan_any, whatever_happens_no_uplink_carries_much_more)
{
    uint32_t steps = 0, beyond = 0, beyond_all = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        static any_t a;
        open_any(&a, seed, PLAN_CHAIN, 0);
        bool has_two = relays_of(&a) > 1;
        uint32_t joined = 0;
        for (int i = 0; i < 10 && a.count > 2 && has_two; i++) {
            uint32_t at = (uint32_t)below(&a, a.count);
            uint64_t what = below(&a, 3);
            if (what == 0) put_last(&a.plan, a.alive[at]);
            if (what == 1 && a.count < MOST) plan_make(&a.plan, join(&a), NULL, 0), joined++;
            if (what == 2) leave(&a, at);
            settle(&a.plan);
            has_two = relays_of(&a) > 1;
            check_no_circle(&a);
            check_ways(&a);
            if (!has_two) continue;
            uint32_t more = more_of(&a.plan, joined), most = check_uplinks(&a, 8 + more, PLAN_HALVES);
            beyond += most > PLAN_HALVES + 1 + more;
            beyond_all += most > 2 * PLAN_HALVES + more;
            steps++;
        }
        plan_fini(&a.plan);
    }
    printf("more than 1.5 M out of a station in %u of %u steps, and 2 M in %u\n", beyond, steps, beyond_all);
    cr_assert(beyond * 200 <= steps && beyond_all * 5000 <= steps);
}

/* The same members under other tokens, which came in another order. */
static void add_in_any_order(any_t *a, plan_t *other)
{
    for (uint32_t i = a->count; i-- > 0;) {
        uint32_t at = (uint32_t)below(a, i + 1);
        uint64_t token = a->alive[at];
        a->alive[at] = a->alive[i];
        const plan_key_t *key = &plan_row(&a->plan, token)->key;
        char text[64], *name;
        snprintf(text, sizeof text, "%s", key->text);
        name = strchr(text, '\x01');
        *name++ = 0;
        cr_assert(plan_add(other, &(plan_member_t){.token = 9999 - token,
                                                   .place = a->place_of[token],
                                                   .name = name,
                                                   .zone = text,
                                                   .is_limited = key->rank == PLAN_LIMITED,
                                                   .blamed_ms = key->blamed_ms,
                                                   .is_last_resort = key->rank == PLAN_LAST_RESORT}));
    }
}

static void check_same_list(const any_t *a, const uint64_t *tokens, uint32_t count, const uint64_t *others,
                            uint32_t other_count)
{
    cr_assert_eq(count, other_count, "seed %llu", (unsigned long long)a->seed);
    for (uint32_t i = 0; i < count; i++)
        cr_assert_eq(others[i], tokens[i] == PUBLISHER ? PUBLISHER : 9999 - tokens[i], "seed %llu",
                     (unsigned long long)a->seed);
}

/* Under other tokens, and in another order: the lists are the same by name, of a chain and of two trees. */
Test(plan_any, the_order_is_that_of_names_and_places)
{
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        static any_t a;
        plan_shape_t shape = seed % 2 ? PLAN_CHAIN : PLAN_TWO_TREE;
        open_any(&a, seed, shape, 40000000);
        plan_t other;
        plan_init(&other, seed + 1, shape, 40000000);
        plan_publisher(&other, PUBLISHER, PUBLISHER_SERVES, a.plan.publisher.place);
        add_in_any_order(&a, &other);
        plan_begin(&other);
        plan_make_all(&other);
        cr_assert_eq(a.plan.shape, other.shape);
        for (size_t i = 0; i < a.plan.count; i++) {
            const plan_row_t *row = a.plan.rows[i], *same = plan_row(&other, 9999 - row->token);
            cr_assert(row->fetch == same->fetch && row->half == same->half, "seed %llu",
                      (unsigned long long)seed);
            check_same_list(&a, row->sources, row->source_count, same->sources, same->source_count);
            check_same_list(&a, row->others, row->other_count, same->others, same->other_count);
        }
        plan_fini(&other);
        plan_fini(&a.plan);
    }
}

/* Counted, not timed. */
Test(plan_any, ten_thousand_members_cost_what_they_are)
{
    for (uint32_t limited_of_four = 0; limited_of_four < 4; limited_of_four++) {
        printf("%u %% with a limited rate: ", limited_of_four * 25);
        start_chain();
        begin_many(limited_of_four);
        check_looks("to begin", 2);
        /* A list that is mended costs what is named there, and the look that finds it. */
        uint64_t of_lists = (PLAN_SOURCES + 1) * end_many();
        cr_assert_leq(of_lists, (PLAN_SOURCES + 1) * PLAN_SOURCES * MANY);
        P.looks -= of_lists < P.looks ? of_lists : P.looks;
        check_looks("as most go, beside those of the lists that are mended", 2);
        finish();
    }
}

/* Counted, not timed: none is looked for in all of them. */
Test(plan_any, twenty_of_ten_thousand_that_are_blamed_cost_what_they_are)
{
    start_chain();
    begin_many(0);
    P.looks = 0;
    blame_many();
    check_looks("as twenty are blamed", 1);
    finish();
}

/* Counted, not timed: all fail, and try again in any order. */
Test(plan_any, ten_thousand_that_begin_anew_cost_what_they_are)
{
    for (many_order_t order = IN_ORDER; order <= ANY_ORDER; order++) {
        start_chain();
        begin_many(0);
        for (uint64_t token = 100; token < 100 + MANY; token++) plan_done(&P, token);
        settle(&P);
        P.looks = 0;
        for (uint64_t i = 0; i < MANY; i++) plan_make(&P, nth_back(order, i), NULL, 0);
        settle(&P);
        check_looks("as all begin anew", 3);
        cr_assert_eq(P.publisher_load, PLAN_HALVES);
        finish();
    }
}

/* Counted, not timed: each costs what its list is long, in whatever order they come. */
Test(plan_any, ten_thousand_that_come_back_cost_what_they_are)
{
    for (many_order_t order = IN_ORDER; order <= ANY_ORDER; order++) {
        start_chain();
        begin_many(0);
        come_back_many(order);
        finish();
    }
}
