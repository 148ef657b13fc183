/* SPDX-License-Identifier: Apache-2.0 */
/* bench/compare.h: compares two reports, figure by figure.
 *
 * A figure that has a reference of its unit in both reports is compared as its ratio to it, repetition by
 * repetition: a machine that is slower today is slower for both. The first such reference counts, usually
 * memcpy. Differences below the noise of the two reports' own repetitions count as no change
 * (bench/stats.h).
 *
 * The caller owns the result. Any thread. PURE but for the JSON's memory. */
#ifndef BENCH_COMPARE_H
#define BENCH_COMPARE_H

#include "bench/result.h"

enum { COMPARE_WARNINGS = 6, COMPARE_TEXT = 256 };

typedef struct {
    char row[RESULT_NAME], figure[RESULT_NAME], reference[RESULT_NAME],
        unit[16]; /* reference "": the numbers themselves */
    stats_change_t change;
} compare_row_t;
typedef struct {
    compare_row_t *rows;
    uint32_t count, worse, better, too_few;
    uint32_t missing;                                  /* figures of `before` that `after` lacks */
    char warnings[COMPARE_WARNINGS + 1][COMPARE_TEXT]; /* how the machines differ; "" ends them */
} compare_t;

/* NO_MEMORY; PROTOCOL naming row and reference where a reference took no time at all. */
int compare_make(const result_t *before, const result_t *after, compare_t *ret_compare,
                 heddle_error_t *error);
/* At least one figure was judged, none became worse, and none is missing. */
bool compare_is_ok(const compare_t *c);
void compare_fini(compare_t *c);
/* {"schema","kind":"bench_compare","ok",...}; ok: compare_is_ok.  NULL: out of memory. */
json_t *compare_encode(const compare_t *c);
void compare_text(const compare_t *c, buf_t *out);

#endif
