/* SPDX-License-Identifier: Apache-2.0 */
/* What a series says, and when two of them differ. */
#include "bench/stats.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stddef.h>

#define SERIES(...)                                                                                          \
    series_of((const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))
#define NEAR(a, b) cr_assert_float_eq(a, b, 1e-9)

static series_t series_of(const double *values, size_t count)
{
    series_t s = {0};
    for (size_t i = 0; i < count; i++) cr_assert(series_add(&s, values[i]));
    return s;
}

/* The same spread around any middle: an odd number of values, in an order without drift. */
static series_t around(double middle, double spread, int count)
{
    series_t s = {0};
    for (int i = 0; i < count; i++) cr_assert(series_add(&s, middle + spread * ((i * 7) % 5 - 2) / 2));
    return s;
}

Test(stats, median_and_worst)
{
    series_t empty = {0}, one = SERIES(4), odd = SERIES(9, 1, 5), even = SERIES(4, 1, 3, 2);
    NEAR(series_median(&empty), 0);
    NEAR(series_worst(&empty), 0);
    NEAR(series_median(&one), 4);
    NEAR(series_median(&odd), 5);
    NEAR(series_worst(&odd), 9);
    NEAR(series_median(&even), 2.5);
    NEAR(odd.at[0], 9); /* the order stays that of the repetitions */
    series_fini(&one);
    series_fini(&odd);
    series_fini(&even);
}

Test(stats, p99_is_one_that_was_measured_and_needs_enough_of_them)
{
    series_t s = {0};
    for (int i = 100; i > 0; i--) cr_assert(series_add(&s, i));
    cr_assert(isnan(series_p99(&s)), "it would be the worst");
    cr_assert(series_add(&s, 101));
    NEAR(series_p99(&s), 100);
    for (int i = 102; i <= 301; i++) cr_assert(series_add(&s, i));
    NEAR(series_p99(&s), 298);
    series_fini(&s);
}

Test(stats, ratio_is_the_median_of_the_pairs_not_of_the_medians)
{
    series_t a = SERIES(10, 1, 100), b = SERIES(1, 2, 10), longer = SERIES(1, 1, 1, 1, 1), none = {0},
             zero = SERIES(1, 0, 1);
    NEAR(series_ratio(&a, &b), 10);
    NEAR(series_ratio(&a, &longer), 10);
    cr_assert(isnan(series_ratio(&a, &none)));
    cr_assert(isnan(series_ratio(&a, &zero)));
    series_fini(&a);
    series_fini(&b);
    series_fini(&longer);
    series_fini(&zero);
}

Test(stats, error_shrinks_with_the_root_of_the_repetitions_and_ignores_outliers)
{
    series_t few = around(100, 10, 25), many = around(100, 10, 100), constant = SERIES(3, 3, 3, 3, 3);
    cr_assert_float_eq(series_error(&few) / series_error(&many), 2, 0.01);
    double before = series_error(&few);
    few.at[0] = 1e9;
    cr_assert_float_eq(series_error(&few), before, before / 2);
    NEAR(series_error(&constant), 0);
    series_fini(&few);
    series_fini(&many);
    series_fini(&constant);
}

Test(stats, drift_is_seen_between_the_halves)
{
    series_t steady = SERIES(1, 2, 1, 2), drifting = SERIES(1, 1, 1, 5, 5, 5), odd = SERIES(1, 9, 1),
             one = SERIES(3);
    NEAR(series_drift(&steady), 0);
    NEAR(series_drift(&drifting), 4);
    NEAR(series_drift(&odd), 0); /* the middle belongs to neither half */
    NEAR(series_drift(&one), 0);
    series_fini(&steady);
    series_fini(&drifting);
    series_fini(&odd);
    series_fini(&one);
}

static const struct {
    double before, after, spread;
    int count;
    stats_verdict_t verdict;
} VERDICTS[] = {
    {100, 100, 5, 25, STATS_SAME},  {100, 101, 5, 25, STATS_SAME},  {100, 120, 5, 25, STATS_WORSE},
    {100, 80, 5, 25, STATS_BETTER}, {100, 120, 60, 25, STATS_SAME}, {100, 200, 5, 4, STATS_TOO_FEW},
    {20, 20, 0, 5, STATS_SAME},     {20, 21, 0, 5, STATS_WORSE},    {20, 19, 0, 5, STATS_BETTER},
    {0, 0, 0, 9, STATS_SAME},       {0, 5, 0, 9, STATS_WORSE},      {5, 0, 0, 9, STATS_BETTER},
};

Test(stats, a_change_is_one_where_it_is_more_than_both_series_noise)
{
    for (size_t i = 0; i < sizeof VERDICTS / sizeof *VERDICTS; i++) {
        series_t a = around(VERDICTS[i].before, VERDICTS[i].spread, VERDICTS[i].count);
        series_t b = around(VERDICTS[i].after, VERDICTS[i].spread, VERDICTS[i].count);
        stats_change_t c = stats_compare(&a, &b);
        cr_assert_eq(c.verdict, VERDICTS[i].verdict, "row %zu: %s, change %g, floor %g", i,
                     stats_verdict_name(c.verdict), c.change, c.floor);
        series_fini(&a);
        series_fini(&b);
    }
}

Test(stats, what_drifts_within_a_report_is_no_change_between_two)
{
    series_t a = SERIES(100, 100, 100, 130, 130, 130), b = SERIES(125, 125, 125, 125, 125, 125);
    stats_change_t c = stats_compare(&a, &b);
    cr_assert_eq(c.verdict, STATS_SAME);
    cr_assert_geq(c.floor, 0.26);
    series_fini(&a);
    series_fini(&b);
}
