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
    cr_assert(plan_add(&P, token));
    plan_have(&P, token, PLAN_ALL, rate);
}

/* So many members begin to fetch from it. */
static void load(uint64_t token, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t asker = token * 1000 + i, others[PLAN_CANDIDATES];
        uint32_t lost = 0;
        cr_assert(plan_add(&P, asker));
        for (size_t k = 0; k < P.source_count; k++)
            if (P.sources[k]->token != token) others[lost++] = P.sources[k]->token;
        plan_make(&P, asker, others, lost);
        cr_assert_eq(plan_row(&P, asker)->sources[0], token);
    }
    cr_assert_eq(plan_row(&P, token)->load, count);
}

static const plan_row_t *made(uint64_t token)
{
    cr_assert(plan_add(&P, token));
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
    P.publisher = PUBLISHER;
    const plan_row_t *row = made(1);
    cr_assert(row->source_count == 1 && row->sources[0] == PUBLISHER);
}

Test(plan, the_publisher_is_last_once_there_are_holders)
{
    P.publisher = PUBLISHER;
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
    P.publisher = PUBLISHER;
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
        cr_assert(plan_add(&other, token));
        plan_have(&other, token, PLAN_ALL, 0);
    }
    for (uint64_t asker = 100; asker < 150; asker++) {
        uint64_t a[PLAN_SOURCES], b[PLAN_SOURCES];
        cr_assert(plan_choose(&P, asker, NULL, 0, a) == PLAN_SOURCES &&
                  plan_choose(&other, asker, NULL, 0, b) == PLAN_SOURCES);
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
        plan_choose(&P, asker, NULL, 0, sources);
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
    P.publisher = PUBLISHER;
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
    cr_assert(plan_add(&P, gone)); /* it comes back without the bytes, and nothing underflows */
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
    cr_assert(plan_add(&P, 1) && plan_add(&P, 2));
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
