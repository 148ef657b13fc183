/* SPDX-License-Identifier: Apache-2.0 */
/* Medians throughout, because single repetitions are slow for reasons outside of what is measured.
 *
 * A repetition can be slower than the machine allows, never faster, so the distribution has a long tail on
 * one side only. A mean and its deviation would follow the tail. */
#include "bench/stats.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

bool series_add(series_t *s, double value)
{
    if (s->count == s->capacity) {
        uint32_t capacity = s->capacity ? 2 * s->capacity : 16;
        double *grown = realloc(s->at, capacity * sizeof *grown);
        if (!grown) return false;
        s->at = grown;
        s->capacity = capacity;
    }
    s->at[s->count++] = value;
    return true;
}

void series_fini(series_t *s)
{
    free(s->at);
    *s = (series_t){0};
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* NULL when out of memory. */
static double *sorted_of(const double *at, uint32_t count)
{
    double *sorted = malloc(count * sizeof *sorted);
    if (!sorted) return NULL;
    memcpy(sorted, at, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_value);
    return sorted;
}

static double median_of(const double *at, uint32_t count)
{
    double *sorted = count ? sorted_of(at, count) : NULL;
    if (!sorted) return count ? NAN : 0;
    double middle = count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
    free(sorted);
    return middle;
}

double series_median(const series_t *s) { return median_of(s->at, s->count); }

double series_worst(const series_t *s)
{
    double worst = s->count ? s->at[0] : 0;
    for (uint32_t i = 1; i < s->count; i++)
        if (s->at[i] > worst) worst = s->at[i];
    return worst;
}

/* The smallest value that so many are not greater than: no value between two that were measured. */
double series_p99(const series_t *s)
{
    double *sorted = s->count < STATS_REPEAT_FOR_P99 ? NULL : sorted_of(s->at, s->count);
    if (!sorted) return NAN;
    double p99 = sorted[(99 * s->count + 99) / 100 - 1];
    free(sorted);
    return p99;
}

bool series_divide(const series_t *a, const series_t *b, series_t *ret_quotients)
{
    series_t quotients = {0};
    uint32_t count = a->count < b->count ? a->count : b->count;
    for (uint32_t i = 0; i < count; i++)
        if (b->at[i] == 0 || !series_add(&quotients, a->at[i] / b->at[i])) {
            series_fini(&quotients);
            return false;
        }
    *ret_quotients = quotients;
    return true;
}

double series_ratio(const series_t *a, const series_t *b)
{
    series_t quotients;
    if (!a->count || !b->count || !series_divide(a, b, &quotients)) return NAN;
    double ratio = series_median(&quotients);
    series_fini(&quotients);
    return ratio;
}

double series_error(const series_t *s)
{
    /* For a normal distribution, sigma is 1.4826 median absolute deviations, and the standard error of a
     * median is 1.2533 sigma / sqrt(n). */
    double middle = series_median(s);
    series_t away = {0};
    for (uint32_t i = 0; i < s->count; i++)
        if (!series_add(&away, fabs(s->at[i] - middle))) {
            series_fini(&away);
            return NAN;
        }
    double error = s->count ? 1.2533 * 1.4826 * series_median(&away) / sqrt(s->count) : 0;
    series_fini(&away);
    return error;
}

/* A machine that gets warm, or a leak: each half may be quiet and the halves differ. */
double series_drift(const series_t *s)
{
    uint32_t half = s->count / 2;
    return half ? fabs(median_of(s->at, half) - median_of(s->at + s->count - half, half)) : 0;
}

stats_change_t stats_compare(const series_t *before, const series_t *after)
{
    stats_change_t c = {.before = series_median(before), .after = series_median(after)};
    /* A change from 0 has no relative size: it is then taken relative to the new value. */
    double base = c.before != 0 ? fabs(c.before) : fabs(c.after);
    if (base > 0) {
        double error = STATS_ERRORS * hypot(series_error(before), series_error(after));
        double drift = fmax(series_drift(before), series_drift(after));
        c.change = (c.after - c.before) / base;
        c.floor = fmax(error, drift) / base;
    }
    if (before->count < STATS_REPEAT_TO_JUDGE || after->count < STATS_REPEAT_TO_JUDGE)
        c.verdict = STATS_TOO_FEW;
    else if (c.change > c.floor) c.verdict = STATS_WORSE;
    else if (c.change < -c.floor) c.verdict = STATS_BETTER;
    return c;
}

const char *stats_verdict_name(stats_verdict_t v)
{
    static const char *const NAMES[] = {"same", "better", "worse", "too_few"};
    return NAMES[v];
}
