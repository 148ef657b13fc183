/* SPDX-License-Identifier: Apache-2.0 */
/* The pace, and the ranges that are there: both pure. */
#include "transfer/extents.h"
#include "transfer/pace.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that pass in `us`, in pieces, asked for every `step_us`. */
static uint64_t passed(uint64_t rate, uint32_t piece, uint64_t us, uint64_t step_us)
{
    pace_t p;
    uint64_t bytes = 0;
    pace_set(&p, rate, 1000);
    for (uint64_t now = 1000; now <= 1000 + us; now += step_us)
        while (pace_ready(&p, now)) {
            pace_take(&p, piece);
            bytes += piece;
        }
    return bytes;
}

Test(pace, keeps_its_rate_at_any_size_and_step)
{
    const uint64_t rates[] = {1000, 64000, 20000000, 3000000000};
    const uint32_t pieces[] = {4096, 65536, 262144};
    const uint64_t steps[] = {50, 1000, 20000};
    for (int r = 0; r < 4; r++)
        for (int k = 0; k < 3; k++)
            for (int s = 0; s < 3; s++) {
                uint64_t us = 2000000, burst = rates[r] / 20 > 65536 ? rates[r] / 20 : 65536;
                uint64_t got = passed(rates[r], pieces[k], us, steps[s]), due = rates[r] * us / 1000000;
                cr_assert_leq(got, due + burst + pieces[k]);
                cr_assert_geq(got + rates[r] * steps[s] / 1000000 + pieces[k], due,
                              "rate %d piece %d step %d", r, k, s);
            }
}

Test(pace, nothing_limits_rate_0)
{
    pace_t p;
    pace_set(&p, 0, 5);
    pace_take(&p, UINT32_MAX);
    cr_assert(pace_ready(&p, 5));
    cr_assert_eq(pace_when(&p, 5), 5);
}

Test(pace, says_when)
{
    pace_t p;
    pace_set(&p, 1000000, 0);
    cr_assert(pace_ready(&p, 0));
    while (pace_ready(&p, 0)) pace_take(&p, 100000);
    uint64_t when = pace_when(&p, 0);
    cr_assert_gt(when, 0);
    cr_assert_not(pace_ready(&p, when - 2));
    cr_assert(pace_ready(&p, when));
}

Test(pace, a_long_sleep_gives_one_burst)
{
    pace_t p;
    pace_set(&p, 1000000000000ull, 0);
    pace_take(&p, 1000);
    cr_assert(pace_ready(&p, UINT64_MAX / 2));
    pace_set(&p, 1000, 0);
    pace_take(&p, 100000000); /* a debt of 28 hours */
    cr_assert_not(pace_ready(&p, 3600000000u));
    cr_assert(pace_ready(&p, 110000000000ull));
    uint64_t bytes = 0;
    for (; pace_ready(&p, 220000000000ull); bytes += 1024) pace_take(&p, 1024);
    cr_assert_leq(bytes, 65536 + 1024);
}

Test(pace, a_refund_is_never_more_than_the_burst)
{
    pace_t p;
    pace_set(&p, 1000, 0);
    for (int i = 0; i < 100; i++) pace_refund(&p, 1u << 30);
    uint64_t bytes = 0;
    for (; pace_ready(&p, 0); bytes += 1024) pace_take(&p, 1024);
    cr_assert_leq(bytes, 65536);
    pace_refund(&p, 1024);
    cr_assert(pace_ready(&p, 0));
}

Test(pace, time_that_goes_back_changes_nothing)
{
    pace_t p;
    pace_set(&p, 1000, 5000000);
    while (pace_ready(&p, 5000000)) pace_take(&p, 65536);
    cr_assert_not(pace_ready(&p, 1));
    cr_assert_not(pace_ready(&p, 5000000));
}

Test(extents, neighbours_become_one)
{
    extents_t e = {0};
    cr_assert(extents_add(&e, 100, 50) && extents_add(&e, 200, 50) && e.count == 2);
    cr_assert(extents_add(&e, 150, 50) && e.count == 1);
    cr_assert(e.ranges[0].at == 100 && e.ranges[0].end == 250);
    cr_assert(extents_add(&e, 100, 150) && extents_add(&e, 120, 5) && extents_add(&e, 0, 0) && e.count == 1);
    cr_assert(extents_add(&e, 0, 10) && extents_add(&e, 300, 10) && extents_add(&e, 5, 400) && e.count == 1);
    cr_assert(e.ranges[0].at == 0 && e.ranges[0].end == 405);
    extents_fini(&e);
    cr_assert_not(extents_cover(&e, 0, 1));
}

#define SPACE 400

Test(extents, are_what_a_bitmap_says)
{
    srand(7);
    for (int round = 0; round < 300; round++) {
        extents_t e = {0};
        bool map[SPACE] = {false};
        for (int i = 0; i < 40; i++) {
            uint64_t at = (uint64_t)rand() % SPACE, bytes = (uint64_t)rand() % (SPACE - at) % 30;
            cr_assert(extents_add(&e, at, bytes));
            memset(map + at, true, bytes);
            uint64_t a = (uint64_t)rand() % SPACE, n = 1 + (uint64_t)rand() % (SPACE - a) % 20;
            bool all = a + n <= SPACE && !memchr(map + a, false, n);
            cr_assert_eq(extents_cover(&e, a, n), all, "round %d: %d + %d", round, (int)a, (int)n);
            for (size_t k = 1; k < e.count; k++)
                cr_assert_lt(e.ranges[k - 1].end, e.ranges[k].at, "sorted, apart");
        }
        extents_fini(&e);
    }
}

Test(extents, in_order_takes_no_more_memory)
{
    extents_t e = {0};
    cr_assert(extents_add(&e, 0, 65536));
    const extent_t *ranges = e.ranges;
    for (uint64_t i = 1; i < 100000; i++) cr_assert(extents_add(&e, i * 65536, 65536));
    cr_assert(e.count == 1 && e.ranges == ranges);
    extents_fini(&e);
}
