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
    plan_publisher(&P, PUBLISHER, 0);
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
    plan_have(&P, 1, true, 0);
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
    plan_make(&P, 17, lost, 5);
    cr_assert_str_eq(list_of(17), "11", "not the publisher, which is for the first ones");
    plan_make(&P, 17, lost, 6);
    cr_assert_str_eq(list_of(17), "9", "but for one that no other reaches");
    plan_make(&P, 17, lost, 7);
    cr_assert_str_eq(list_of(17), "16 15 14", "better those that failed once than none");
}

Test(plan_chain, one_that_is_stuck_is_a_source_where_there_is_no_other)
{
    plan_publisher(&P, 0, 0);
    cr_assert(add(11, 0) && add(12, 0));
    plan_publisher(&P, PUBLISHER, 0);
    plan_make_all(&P);
    plan_stuck(&P, 11);
    plan_publisher(&P, 0, 0);
    mend_all();
    cr_assert_str_eq(list_of(12), "11");
}

Test(plan_chain, one_without_a_source_serves_what_it_has)
{
    wave(11, 13);
    plan_publisher(&P, 0, 0);
    cr_assert_eq(plan_make(&P, 11, NULL, 0), 0);
    cr_assert(!plan_fetches(&P, 11) && !plan_next_torn(&P));
    plan_make(&P, 12, NULL, 0);
    cr_assert_str_eq(list_of(12), "11");
}

Test(plan_chain, a_new_session_keeps_its_place_and_those_behind_it_go_on)
{
    wave(11, 14);
    cr_assert(plan_renew(&P, 12, 112) && !plan_renew(&P, 12, 113));
    cr_assert_eq(plan_next_torn(&P), 0);
    cr_assert_str_eq(list_of(13), "112 11 9");
    plan_make(&P, 112, NULL, 0);
    cr_assert_str_eq(list_of(112), "11 9");
    cr_assert(plan_row(&P, 112)->load == 1 && plan_row(&P, 112)->named == 2 && !plan_row(&P, 12));
    plan_have(&P, 13, true, 0), plan_have(&P, 14, true, 0);
    cr_assert(!plan_row(&P, 112)->load && !plan_row(&P, 112)->named);
}

/* 11 stood still, and the others went on without it. */
Test(plan_chain, one_that_fetches_from_the_publisher_turns_to_a_holder)
{
    wave(11, 14);
    cr_assert_not(plan_leave_publisher(&P, 11), "none has all bytes");
    plan_have(&P, 13, true, 0);
    cr_assert_not(plan_leave_publisher(&P, 12), "it fetches from 11");
    cr_assert(plan_leave_publisher(&P, 11));
    cr_assert_str_eq(list_of(11), "13");
    cr_assert_eq(plan_row(&P, 13)->load, 2, "14 has it, too");
    cr_assert_not(plan_leave_publisher(&P, 11), "it has");
    plan_done(&P, 11);
    cr_assert_eq(plan_row(&P, 13)->load, 1);
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

Test(plan_chain, what_is_on_the_publishers_host_has_its_bytes_and_is_no_link)
{
    plan_publisher(&P, PUBLISHER, NEAR);
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
    plan_publisher(&P, 0, 0);
    made(18);
    cr_assert_eq(plan_row(&P, 18)->sources[0], 12, "it stands for the publisher");
}

Test(plan_chain, a_holder_at_the_place_of_a_lost_publisher_is_better_than_none)
{
    uint64_t lost[] = {PUBLISHER};
    plan_publisher(&P, PUBLISHER, NEAR);
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

Test(plan_chain, others_fetch_from_a_leaf_where_nothing_else_has_the_bytes)
{
    for (uint64_t i = 0; i < 4; i++) {
        char name[8] = {(char)('a' + i)};
        cr_assert(
            plan_add(&P, &(plan_member_t){.token = 10 + i, .name = name, .zone = "", .is_leaf = i % 2}));
    }
    begin();
    cr_assert_str_eq(list_of(12), "10 9");
    cr_assert_str_eq(list_of(11), "12 10 9");
    cr_assert_str_eq(list_of(13), "12 10", "not behind another leaf");
    plan_have(&P, 11, true, 0);
    made(20);
    cr_assert_str_eq(list_of(20), "12 10");
    plan_remove(&P, 10);
    plan_remove(&P, 12);
    plan_publisher(&P, 0, 0);
    made(20);
    cr_assert_str_eq(list_of(20), "11");
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
    plan_publisher(&P, PUBLISHER, 0);
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

Test(plan, the_rate_of_the_publisher_counts_for_the_choice)
{
    cr_assert_eq(shape_of(PLAN_AUTO, 10 * 1000 * 1000), PLAN_CHAIN, "that takes 30 ms");
    cr_assert_eq(shape_of(PLAN_AUTO, 0), PLAN_STAR, "sent before one hop is over");
    plan_uplink(&P, 10 * 1000 * 1000);
    cr_assert_eq(P.shape, PLAN_STAR, "a rollout that has begun keeps its plan");
    cr_assert_eq(shape_of(PLAN_STAR, 10 * 1000 * 1000), PLAN_STAR, "by choice");
}

/* ---- any memberships ---- */

/* Depth first along all lists, from the asker to its sources; a source with all bytes asks none. */
static bool is_circle(const plan_t *p, const plan_row_t *row, uint8_t *state)
{
    for (uint32_t i = 0; row->fetch >= PLAN_FETCHING && i < row->source_count; i++) {
        const plan_row_t *source = plan_row(p, row->sources[i]);
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
            if (next == a->plan.publisher) break;
            row = plan_row(&a->plan, next);
            cr_assert(row, "seed %llu: the source is gone", (unsigned long long)a->seed);
        }
    }
}

/* Fetches over the network: at most one into a station, and one out of it. */
static void check_edges(const any_t *a)
{
    uint32_t out_of_publisher = 0;
    for (size_t i = 0; i < a->plan.station_count; i++) {
        const plan_station_t *station = a->plan.chain[i];
        uint32_t in = 0, out = 0;
        for (size_t k = 0; k < a->plan.count; k++) {
            const plan_row_t *row = a->plan.rows[k];
            if (row->fetch < PLAN_FETCHING) continue;
            const plan_row_t *source = plan_row(&a->plan, row->sources[0]);
            bool is_far = source ? source->station != row->station
                                 : !a->plan.publisher_place || row->station->place != a->plan.publisher_place;
            in += is_far && row->station == station;
            out += is_far && source && source->station == station;
            out_of_publisher += is_far && !source && row->station == station;
        }
        cr_assert(in <= 1 && (out <= 1 || a->has_limited),
                  "seed %llu: %u fetches into a station, %u out of it", (unsigned long long)a->seed, in, out);
    }
    cr_assert(out_of_publisher <= 1 || a->has_limited, "seed %llu", (unsigned long long)a->seed);
}

/* 3,000 memberships, and what may happen to them. */
/* The zone of a station, with its length. */
static const char *zone_of(const plan_station_t *station, size_t *ret_bytes)
{
    const char *zone = station->key.text + 1;
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

Test(plan_any, no_circle_and_a_source_for_all)
{
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        static any_t a;
        open_any(&a, seed, PLAN_CHAIN, 0);
        check_reached(&a);
        check_edges(&a);
        check_no_circle(&a);
        for (int i = 0; i < 3 && a.count < MOST; i++) {
            check_join(&a);
            check_reached(&a);
            check_edges(&a);
        }
        for (int i = 0; i < 30; i++) {
            go_on(&a);
            check_no_circle(&a);
        }
        plan_fini(&a.plan);
    }
}

/* Under other tokens, and in another order: the lists are the same by name. */
Test(plan_any, the_order_is_that_of_names_and_places)
{
    for (uint64_t seed = 1; seed <= 500; seed++) {
        static any_t a;
        open_any(&a, seed, PLAN_CHAIN, 0);
        plan_t other;
        plan_init(&other, seed + 1, PLAN_CHAIN, 0);
        plan_publisher(&other, PUBLISHER, a.plan.publisher_place);
        for (uint32_t i = a.count; i-- > 0;) {
            uint32_t at = (uint32_t)below(&a, i + 1);
            uint64_t token = a.alive[at];
            a.alive[at] = a.alive[i];
            char text[64], *name;
            snprintf(text, sizeof text, "%s", plan_row(&a.plan, token)->key.text);
            name = strchr(text, '\x01');
            *name++ = 0;
            cr_assert(plan_add(&other, &(plan_member_t){.token = 9999 - token,
                                                        .place = a.place_of[token],
                                                        .name = name,
                                                        .zone = text + 1,
                                                        .is_limited = text[0] == '1',
                                                        .is_leaf = text[0] == '2'}));
        }
        plan_begin(&other);
        plan_make_all(&other);
        for (size_t i = 0; i < a.plan.count; i++) {
            const plan_row_t *row = a.plan.rows[i], *same = plan_row(&other, 9999 - row->token);
            cr_assert(row->fetch == same->fetch && row->source_count == same->source_count, "seed %llu",
                      (unsigned long long)seed);
            for (uint32_t k = 0; k < row->source_count; k++)
                cr_assert(row->sources[k] == PUBLISHER ? same->sources[k] == PUBLISHER
                                                       : same->sources[k] == 9999 - row->sources[k]);
        }
        plan_fini(&other);
        plan_fini(&a.plan);
    }
}

/* Counted, not timed: ten thousand members, on hosts of eight, then all but every tenth go. */
Test(plan_any, ten_thousand_members_cost_what_they_are)
{
    enum { MEMBERS = 10000 };
    start_chain();
    for (uint64_t token = 100; token < 100 + MEMBERS; token++)
        cr_assert(add(token, token % 2 ? token / 16 : 0));
    begin();
    cr_assert_leq(P.looks, 8 * MEMBERS);
    P.looks = 0;
    for (uint64_t token = 100; token < 100 + MEMBERS; token++) {
        if (token % 10 == 0) continue;
        plan_remove(&P, token);
        for (uint64_t woken; (woken = plan_next_woken(&P)) != 0;) plan_make(&P, woken, NULL, 0);
        mend_all();
    }
    cr_assert_leq(P.looks, 40 * MEMBERS);
    finish();
}
