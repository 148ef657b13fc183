/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/planner.h"

#include <criterion/criterion.h>

static planner_candidate_t worker(uint64_t token, uint32_t load)
{
    return (planner_candidate_t){.token = token, .load = load};
}
static planner_candidate_t publisher(uint64_t token)
{
    return (planner_candidate_t){.token = token, .is_publisher = true};
}

Test(planner, nobody_has_it)
{
    planner_candidate_t none[1];
    cr_assert_eq(planner_plan(none, 0, 1, 2), 0);
}

Test(planner, the_publisher_alone_before_there_are_holders)
{
    planner_candidate_t c[] = {publisher(9)};
    cr_assert_eq(planner_plan(c, 1, 1, 2), 1);
    cr_assert_eq(c[0].token, 9);
}

Test(planner, the_publisher_is_last_once_there_are_holders)
{
    planner_candidate_t c[] = {publisher(9), worker(1, 7), worker(2, 3)};
    cr_assert_eq(planner_plan(c, 3, 5, 2), 3);
    cr_assert_eq(c[0].token, 2);
    cr_assert_eq(c[1].token, 1);
    cr_assert_eq(c[2].token, 9);
}

Test(planner, the_publisher_has_the_last_place_of_three)
{
    planner_candidate_t c[] = {worker(1, 0), worker(2, 0), worker(3, 0), publisher(9), worker(4, 0)};
    cr_assert_eq(planner_plan(c, 5, 5, 2), 3);
    cr_assert(!c[0].is_publisher && !c[1].is_publisher);
    cr_assert_eq(c[2].token, 9);
}

Test(planner, least_loaded_first_and_never_more_than_three)
{
    planner_candidate_t c[] = {worker(1, 4), worker(2, 1), worker(3, 3), worker(4, 2), worker(5, 0)};
    cr_assert_eq(planner_plan(c, 5, 77, 2), PLANNER_SOURCES);
    cr_assert_eq(c[0].token, 5);
    cr_assert_eq(c[1].token, 2);
    cr_assert_eq(c[2].token, 4);
}

Test(planner, slow_ones_behind_the_others_whatever_their_load)
{
    planner_candidate_t c[] = {worker(1, 0), worker(2, 9), worker(3, 0)};
    c[0].rate = 10;
    c[1].rate = 100; /* 1 is below 100 / 4, 3 is unknown and taken as good */
    cr_assert_eq(planner_plan(c, 3, 1, 2), 3);
    cr_assert_eq(c[0].token, 3);
    cr_assert_eq(c[1].token, 2);
    cr_assert_eq(c[2].token, 1);
}

Test(planner, the_same_input_gives_the_same_plan_in_any_order)
{
    for (uint64_t seed = 0; seed < 50; seed++) {
        planner_candidate_t a[] = {worker(1, 0), worker(2, 0), worker(3, 0), worker(4, 0)};
        planner_candidate_t b[] = {worker(4, 0), worker(3, 0), worker(2, 0), worker(1, 0)};
        planner_plan(a, 4, 8, seed);
        planner_plan(b, 4, 8, seed);
        for (int i = 0; i < PLANNER_SOURCES; i++) cr_assert_eq(a[i].token, b[i].token);
    }
}

Test(planner, equals_are_spread_over_those_who_ask)
{
    unsigned first[9] = {0};
    for (uint64_t asker = 1; asker <= 800; asker++) {
        planner_candidate_t c[] = {worker(1, 0), worker(2, 0), worker(3, 0), worker(4, 0),
                                   worker(5, 0), worker(6, 0), worker(7, 0), worker(8, 0)};
        planner_plan(c, 8, asker + 1000, 3);
        first[c[0].token]++;
    }
    for (int i = 1; i <= 8; i++) { /* 100 each, expected */
        cr_assert_gt(first[i], 60u, "%d: %u", i, first[i]);
        cr_assert_lt(first[i], 150u, "%d: %u", i, first[i]);
    }
}
