/* SPDX-License-Identifier: Apache-2.0 */
/* bench/stats.h: what a series of repetitions says about a machine and its noise. A series holds one number
 * for each repetition, in the order in which they were measured. The caller owns it. Pure functions over
 * borrowed numbers; any thread. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include <stdbool.h>
#include <stdint.h>

#define STATS_REPEAT_MAX 10000u
/* With fewer repetitions their own spread cannot be estimated. */
#define STATS_REPEAT_TO_JUDGE 5u
/* With fewer the greatest of all would be it. */
#define STATS_REPEAT_FOR_P99 101u

typedef struct {
    double *at;
    uint32_t count, capacity;
} series_t;

/* False when out of memory: the series is as it was. */
bool series_add(series_t *s, double value);
void series_fini(series_t *s);

/* All of them: 0 for an empty series.  NAN when out of memory. */
double series_median(const series_t *s);
double series_worst(const series_t *s); /* the greatest: less is better everywhere here */
/* All but one in a hundred are no greater.  NAN with fewer than STATS_REPEAT_FOR_P99. */
double series_p99(const series_t *s);
/* Median of a[i] / b[i] over the repetitions that both have; NAN where there is none, or a divisor is 0. */
double series_ratio(const series_t *a, const series_t *b);
/* a[i] / b[i] as a series of its own.  False when out of memory, or a divisor is 0. */
bool series_divide(const series_t *a, const series_t *b, series_t *ret_quotients);

/* Standard error of the median, out of the median absolute deviation: outliers do not widen it. */
double series_error(const series_t *s);
/* How far the median of the first half lies from that of the second: a slow change that the spread hides. */
double series_drift(const series_t *s);

typedef enum { STATS_SAME, STATS_BETTER, STATS_WORSE, STATS_TOO_FEW } stats_verdict_t;
typedef struct {
    double before, after; /* medians */
    double change;        /* after / before - 1 */
    double floor;         /* changes below it are noise; same unit as change */
    stats_verdict_t verdict;
} stats_change_t;
/* Less is better.  The floor comes from the two series themselves: STATS_ERRORS standard errors of both
 * together, or the drift within one of them, whichever is more. */
#define STATS_ERRORS 4.0
stats_change_t stats_compare(const series_t *before, const series_t *after);
const char *stats_verdict_name(stats_verdict_t v);

#endif
