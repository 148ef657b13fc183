/* SPDX-License-Identifier: Apache-2.0 */
/* Pairing the figures of two reports, and the result as JSON and as a table.
 *
 * Both reports may be of other releases or machines. A row that only the second one has is new and judged by
 * nothing; a figure that only the first one has is missing, and counts against the second: otherwise a
 * measurement that is left out would pass as no change. */
#include "bench/compare.h"

#include "core/errors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The first reference with the figure's unit that both reports have measured. */
static const result_series_t *shared_reference(const result_row_t *before, const result_row_t *after,
                                               const char *unit)
{
    for (uint32_t i = 0; i < before->count; i++) {
        const result_series_t *b = &before->series[i],
                              *a = b->is_reference ? result_row_find(after, b->name) : NULL;
        if (a && a->is_reference && !strcmp(b->unit, unit) && !strcmp(a->unit, unit) && b->series.count &&
            a->series.count)
            return b;
    }
    return NULL;
}

/* The series to compare: the ratios to the reference, or the numbers where there is no reference. */
static bool comparable(const result_row_t *row, const result_series_t *figure,
                       const result_series_t *reference, series_t *ret_series)
{
    if (reference)
        return series_divide(&figure->series, &result_row_find(row, reference->name)->series, ret_series);
    series_t copy = {0};
    for (uint32_t i = 0; i < figure->series.count; i++)
        if (!series_add(&copy, figure->series.at[i])) {
            series_fini(&copy);
            return false;
        }
    *ret_series = copy;
    return true;
}

/* In any repetition: a median above 0 does not help, because the ratios are taken one by one. */
static bool has_zero(const result_row_t *row, const result_series_t *reference)
{
    const series_t *s = &result_row_find(row, reference->name)->series;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->at[i] == 0) return true;
    return false;
}

static bool is_finite(const series_t *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (!isfinite(s->at[i])) return false;
    return true;
}

/* Numbers that are not finite are refused: a comparison with NaN is always false, so it would count as no
 * change, and JSON cannot hold them. */
static int compare_figure(const result_row_t *before, const result_row_t *after, const result_series_t *b,
                          const result_series_t *a, compare_row_t *to, heddle_error_t *error)
{
    const result_series_t *reference = shared_reference(before, after, b->unit);
    series_t x = {0}, y = {0};
    int rc = HEDDLE_OK;
    /* A reference of 0 cannot be divided by; on a sound machine none takes no time at all. */
    if (reference && (has_zero(before, reference) || has_zero(after, reference))) {
        rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "row %s: its reference %s is 0 in a repetition",
                        before->name, reference->name);
        error_expected(error, "more than 0 %s", reference->unit);
        error_found(error, "0");
        error_hint(error, "measure again");
        return rc;
    }
    if (!comparable(before, b, reference, &x) || !comparable(after, a, reference, &y))
        rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to compare");
    stats_change_t change = stats_compare(&x, &y);
    bool is_sound = isfinite(change.before) && isfinite(change.after) && isfinite(change.change) &&
                    isfinite(change.floor) && is_finite(&x) && is_finite(&y);
    if (!rc && !is_sound) {
        rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "row %s: %s is too large, or its reference too small",
                        before->name, b->name);
        error_expected(error, "numbers that can be divided");
        error_found(error, "%g before, %g after", change.before, change.after);
        error_hint(error, "measure again");
    }
    if (!rc) {
        *to = (compare_row_t){.change = change};
        text_printf(to->row, sizeof to->row, "%s", before->name);
        text_printf(to->figure, sizeof to->figure, "%s", b->name);
        text_printf(to->reference, sizeof to->reference, "%s", reference ? reference->name : "");
        text_printf(to->unit, sizeof to->unit, "%s", reference ? "×" : b->unit);
    }
    series_fini(&x);
    series_fini(&y);
    return rc;
}

/* `after` NULL: the second report lacks the row, and so each of its figures. */
static int compare_rows(const result_row_t *before, const result_row_t *after, compare_t *c,
                        heddle_error_t *error)
{
    for (uint32_t i = 0; i < before->count; i++) {
        const result_series_t *b = &before->series[i], *a = after ? result_row_find(after, b->name) : NULL;
        if (b->is_reference || !b->series.count) continue;
        if (!a || a->is_reference || !a->series.count || strcmp(a->unit, b->unit)) {
            c->missing++;
            continue;
        }
        int rc = compare_figure(before, after, b, a, &c->rows[c->count], error);
        if (rc) return rc;
        stats_verdict_t verdict = c->rows[c->count++].change.verdict;
        c->worse += verdict == STATS_WORSE;
        c->better += verdict == STATS_BETTER;
        c->too_few += verdict == STATS_TOO_FEW;
    }
    return HEDDLE_OK;
}

/* Where no figure had enough repetitions, nothing was compared, and that must not look like success. */
bool compare_is_ok(const compare_t *c) { return !c->worse && !c->missing && c->count > c->too_few; }

int compare_make(const result_t *before, const result_t *after, compare_t *ret_compare, heddle_error_t *error)
{
    compare_t c = {.rows = calloc((size_t)before->count * RESULT_SERIES_MAX + 1, sizeof *c.rows)};
    int rc = c.rows ? HEDDLE_OK : error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to compare");
    for (uint32_t i = 0; !rc && i < before->count; i++)
        rc = compare_rows(&before->rows[i], result_find(after, before->rows[i].name), &c, error);
    /* Ratios were measured on one machine and data plane; those of another are not comparable, so that is
     * reported. */
    static const char *const FACTS[COMPARE_WARNINGS] = {"cpu",    "core_count", "transfer_mode",
                                                        "memory", "tcp",        "pinned"};
    for (uint32_t i = 0, count = 0; i < COMPARE_WARNINGS; i++) {
        const json_t *b = json_object_get(before->machine, FACTS[i]),
                     *a = json_object_get(after->machine, FACTS[i]);
        if (!b || !a || json_equal(b, a)) continue;
        char *was = json_dumps(b, JSON_ENCODE_ANY), *is = json_dumps(a, JSON_ENCODE_ANY);
        text_printf(c.warnings[count++], COMPARE_TEXT, "%s differs: %.100s before, %.100s after", FACTS[i],
                    was ? was : "", is ? is : "");
        free(was);
        free(is);
    }
    if (rc) compare_fini(&c);
    else *ret_compare = c;
    return rc;
}

void compare_fini(compare_t *c)
{
    free(c->rows);
    *c = (compare_t){0};
}

json_t *compare_encode(const compare_t *c)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < c->count; i++) {
        const compare_row_t *r = &c->rows[i];
        json_t *reference = r->reference[0] ? json_string(r->reference) : json_null();
        json_array_append_new(rows, json_pack("{s:s, s:s, s:o, s:s, s:f, s:f, s:f, s:f, s:s}", "row", r->row,
                                              "figure", r->figure, "reference", reference, "unit", r->unit,
                                              "before", r->change.before, "after", r->change.after, "change",
                                              r->change.change, "floor", r->change.floor, "verdict",
                                              stats_verdict_name(r->change.verdict)));
    }
    json_t *warnings = json_array();
    for (uint32_t i = 0; c->warnings[i][0]; i++) json_array_append_new(warnings, json_string(c->warnings[i]));
    return json_pack("{s:s, s:s, s:b, s:i, s:i, s:i, s:i, s:o, s:o}", "schema", "heddle/1", "kind",
                     "bench_compare", "ok", compare_is_ok(c), "worse_count", (int)c->worse, "better_count",
                     (int)c->better, "too_few_count", (int)c->too_few, "missing_count", (int)c->missing,
                     "warnings", warnings, "figures", rows);
}

void compare_text(const compare_t *c, buf_t *out)
{
    int width = 24;
    for (uint32_t i = 0; i < c->count; i++)
        if ((int)strlen(c->rows[i].row) + 2 > width) width = (int)strlen(c->rows[i].row) + 2;
    buf_printf(out, "%-*s%-18s%16s%16s%10s%10s  %s\n", width, "ROW", "FIGURE", "BEFORE", "AFTER", "CHANGE",
               "NOISE", "VERDICT");
    for (uint32_t i = 0; i < c->count; i++) {
        const compare_row_t *r = &c->rows[i];
        char before[32], after[32];
        result_number(r->change.before, r->reference[0] ? "" : r->unit, before);
        result_number(r->change.after, r->reference[0] ? "" : r->unit, after);
        buf_printf(out, "%-*s%-18s%16s%16s%+9.1f%%%9.1f%%  %s%s%s\n", width, r->row, r->figure, before, after,
                   100 * r->change.change, 100 * r->change.floor, stats_verdict_name(r->change.verdict),
                   r->reference[0] ? ", as a multiple of " : "", r->reference);
    }
    buf_printf(
        out,
        "%u worse, %u better, %u the same, %u with too few repetitions to say, %u not in the second report\n",
        c->worse, c->better, c->count - c->worse - c->better - c->too_few, c->too_few, c->missing);
    for (uint32_t i = 0; c->warnings[i][0]; i++) buf_printf(out, "warning: %s\n", c->warnings[i]);
}
