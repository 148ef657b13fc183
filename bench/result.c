/* SPDX-License-Identifier: Apache-2.0 */
/* A report in memory, as JSON and back, and as text for people.
 *
 * The JSON has every sample: medians and ratios are in it for readers, and are computed again from the
 * samples when a report is read. */
#include "bench/result.h"

#include "core/errors.h"
#include "core/units.h"

#include <heddle/types.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void result_fini(result_t *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        for (uint32_t k = 0; k < r->rows[i].count; k++) series_fini(&r->rows[i].series[k].series);
    free(r->rows);
    json_decref(r->machine);
    *r = (result_t){0};
}

result_row_t *result_add(result_t *r, const char *name)
{
    if (r->count == RESULT_ROWS_MAX) return NULL;
    result_row_t *rows = realloc(r->rows, (r->count + 1) * sizeof *rows);
    if (!rows) return NULL;
    r->rows = rows;
    result_row_t *row = &rows[r->count++];
    memset(row, 0, sizeof *row);
    snprintf(row->name, sizeof row->name, "%s", name);
    return row;
}

/* A series is made where it is first named, so the order of the rows is that of the first repetition. */
result_series_t *result_series(result_row_t *row, const char *name, const char *unit, bool is_reference)
{
    for (uint32_t i = 0; i < row->count; i++)
        if (!strcmp(row->series[i].name, name)) return &row->series[i];
    if (row->count == RESULT_SERIES_MAX) return NULL;
    result_series_t *s = &row->series[row->count++];
    s->is_reference = is_reference;
    snprintf(s->name, sizeof s->name, "%s", name);
    snprintf(s->unit, sizeof s->unit, "%s", unit);
    return s;
}

static int add(result_series_t *s, double value)
{
    return s && series_add(&s->series, value) ? HEDDLE_OK : HEDDLE_ERR_NO_MEMORY;
}

int result_note(result_row_t *row, const char *name, const char *unit, double value)
{
    return add(result_series(row, name, unit, false), value);
}

int result_refer(result_row_t *row, const char *name, const char *unit, double value)
{
    return add(result_series(row, name, unit, true), value);
}

const result_row_t *result_find(const result_t *r, const char *name)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (!strcmp(r->rows[i].name, name)) return &r->rows[i];
    return NULL;
}

const result_series_t *result_row_find(const result_row_t *row, const char *name)
{
    for (uint32_t i = 0; i < row->count; i++)
        if (!strcmp(row->series[i].name, name)) return &row->series[i];
    return NULL;
}

/* ---- to JSON --------------------------------------------------------------------------------- */

static json_t *text_or_null(const char *text) { return *text ? json_string(text) : json_null(); }
/* JSON has no NaN: a median without memory, a ratio to 0. */
static json_t *number_or_null(bool is_known, double x)
{
    return is_known && isfinite(x) ? json_real(x) : json_null();
}

static json_t *row_json(const result_row_t *row)
{
    json_t *figures = json_array(), *references = json_array();
    uint32_t repeat = 0;
    for (uint32_t i = 0; i < row->count; i++) {
        const result_series_t *s = &row->series[i];
        uint32_t count = s->series.count;
        json_t *samples = json_array(), *ratios = s->is_reference ? json_null() : json_object();
        for (uint32_t k = 0; k < count; k++) json_array_append_new(samples, json_real(s->series.at[k]));
        /* {"memcpy": 1.9, ...}: the figure as a multiple of each reference of its unit. null where a
         * reference was 0. */
        for (uint32_t k = 0; !s->is_reference && k < row->count; k++) {
            const result_series_t *r = &row->series[k];
            if (r->is_reference && r->series.count && !strcmp(r->unit, s->unit))
                json_object_set_new(ratios, r->name,
                                    number_or_null(true, series_ratio(&s->series, &r->series)));
        }
        json_array_append_new(s->is_reference ? references : figures,
                              json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "name", s->name, "unit",
                                        s->unit, "skipped", text_or_null(s->skipped), "median",
                                        number_or_null(count > 0, series_median(&s->series)), "p99",
                                        number_or_null(true, series_p99(&s->series)), "worst",
                                        number_or_null(count > 0, series_worst(&s->series)), "ratio", ratios,
                                        "samples", samples));
        if (count > repeat) repeat = count;
    }
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "name", row->name, "skipped",
                     text_or_null(row->skipped), "data_bytes", (json_int_t)row->data_bytes, "tensor_count",
                     (json_int_t)row->tensor_count, "worker_count", (json_int_t)row->workers, "keep",
                     (json_int_t)row->keep, "repeat_count", (json_int_t)repeat, "figures", figures,
                     "references", references);
}

json_t *result_encode(const result_t *r, const heddle_error_t *error)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < r->count; i++) json_array_append_new(rows, row_json(&r->rows[i]));
    char *text = NULL;
    json_t *why = error && heddle_error_json(error, &text) == HEDDLE_OK ? json_loads(text, 0, NULL) : NULL;
    heddle_free(text);
    return json_pack("{s:s, s:s, s:b, s:O?, s:o, s:o}", "schema", "heddle/1", "kind", "bench", "ok",
                     error == NULL, "machine", r->machine, "rows", rows, "error", why ? why : json_null());
}

/* ---- and back -------------------------------------------------------------------------------- */

/* A file that is not a report, or one that this program did not write to its end. */
static int refuse(const char *what, const char *expected, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "%s is not a report of heddle-bench", what);
    error_expected(error, "%s", expected);
    error_hint(error, "heddle-bench -o json writes them");
    return rc;
}

/* "" also for what is not text: the checks that follow refuse an empty name. */
static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* Names are unique in a row, since ratios and comparisons look series up by name. */
static int decode_list(const json_t *json, bool is_reference, const char *what, result_row_t *row,
                       heddle_error_t *error)
{
    const json_t *list = json_object_get(json, is_reference ? "references" : "figures");
    if (!json_is_array(list)) return refuse(what, "rows with figures and references", error);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *figure = json_array_get(list, i), *samples = json_object_get(figure, "samples");
        const char *name = text_of(figure, "name");
        result_series_t *s = !*name || result_row_find(row, name)
                                 ? NULL
                                 : result_series(row, name, text_of(figure, "unit"), is_reference);
        if (!s || strlen(name) >= RESULT_NAME || !json_is_array(samples) ||
            json_array_size(samples) > STATS_REPEAT_MAX)
            return refuse(what, "figures with a name of their own each, and samples", error);
        snprintf(s->skipped, sizeof s->skipped, "%s", text_of(figure, "skipped"));
        for (size_t k = 0; k < json_array_size(samples); k++) {
            const json_t *v = json_array_get(samples, k);
            if (!json_is_number(v)) return refuse(what, "samples that are numbers", error);
            if (!series_add(&s->series, json_number_value(v)))
                return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for %s", what);
        }
    }
    return HEDDLE_OK;
}

/* What is wrong is described as what a report has: the reader of the message has a file, not this code. */
static int decode_row(const json_t *json, const char *what, result_t *r, heddle_error_t *error)
{
    const char *name = text_of(json, "name");
    if (!*name || strlen(name) >= RESULT_NAME || result_find(r, name))
        return refuse(what, "rows with a name of their own each", error);
    result_row_t *row = result_add(r, name);
    if (!row) return error_fail(error, HEDDLE_ERR_LIMIT, "%s has more than %u rows", what, RESULT_ROWS_MAX);
    snprintf(row->skipped, sizeof row->skipped, "%s", text_of(json, "skipped"));
    row->data_bytes = (uint64_t)json_integer_value(json_object_get(json, "data_bytes"));
    row->tensor_count = (uint32_t)json_integer_value(json_object_get(json, "tensor_count"));
    row->workers = (uint32_t)json_integer_value(json_object_get(json, "worker_count"));
    row->keep = (uint32_t)json_integer_value(json_object_get(json, "keep"));
    int rc = decode_list(json, false, what, row, error);
    return rc ? rc : decode_list(json, true, what, row, error);
}

int result_decode(const json_t *json, const char *what, result_t *ret_result, heddle_error_t *error)
{
    result_t r = {0};
    const json_t *rows = json_object_get(json, "rows");
    json_t *machine = json_object_get(json, "machine");
    if (strcmp(text_of(json, "kind"), "bench") || !json_is_array(rows))
        return refuse(what, "kind bench, with rows", error);
    /* A run that failed has rows too, but those that are not there would count as missing. */
    if (json_is_false(json_object_get(json, "ok")))
        return refuse(what, "a report that ended well (\"ok\": true)", error);
    r.machine = json_is_object(machine) ? json_incref(machine) : NULL;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        int rc = decode_row(json_array_get(rows, i), what, &r, error);
        if (!rc) continue;
        result_fini(&r);
        return rc;
    }
    *ret_result = r;
    return HEDDLE_OK;
}

/* ---- as text: a table for each row, with a column of ratios for each reference ---------------- */

enum { NAME_WIDTH = 15, CELL_WIDTH = 16 };

void result_number(double value, const char *unit, char text[32])
{
    /* Messages and bytes come in whole numbers; the rest gets about three digits that count. */
    int digits = value == 0 || fabs(value) >= 100 || (!strcmp(unit, "messages") || !strcmp(unit, "bytes")) ? 0
                 : fabs(value) >= 10                                                                       ? 1
                 : fabs(value) >= 0.01                                                                     ? 2
                                       : 4;
    if (!isfinite(value)) snprintf(text, 32, "-");
    else snprintf(text, 32, "%.*f %s", digits, value, unit);
}

/* Each reference has a column, as wide as its heading. */
static int column_width(const result_series_t *reference) { return (int)strlen(reference->name) + 5; }
static bool has_column(const result_series_t *s) { return s->is_reference && s->series.count; }

static void add_row(buf_t *out, const result_row_t *row, const result_series_t *s)
{
    char median[32], p99[32], worst[32];
    result_number(series_median(&s->series), s->unit, median);
    result_number(series_p99(&s->series), s->unit, p99);
    result_number(series_worst(&s->series), s->unit, worst);
    buf_printf(out, "  %-*s%*s%*s%*s", NAME_WIDTH, s->name, CELL_WIDTH, median, CELL_WIDTH, p99, CELL_WIDTH,
               worst);
    for (uint32_t i = 0; !s->is_reference && i < row->count; i++)
        if (has_column(&row->series[i])) {
            const result_series_t *reference = &row->series[i];
            double ratio =
                strcmp(reference->unit, s->unit) ? NAN : series_ratio(&s->series, &reference->series);
            int digits = ratio >= 100 ? 0 : ratio >= 10 ? 1 : ratio >= 0.1 ? 2 : ratio > 0 ? 4 : 0;
            if (isfinite(ratio)) buf_printf(out, "%*.*f", column_width(reference), digits, ratio);
            else buf_printf(out, "%*s", column_width(reference), "");
        }
    buf_add_text(out, "\n");
}

void result_row_text(const result_row_t *row, buf_t *out)
{
    char size[16];
    uint32_t repeat = 0;
    for (uint32_t i = 0; i < row->count; i++)
        if (row->series[i].series.count > repeat) repeat = row->series[i].series.count;
    units_bytes_text(row->data_bytes, size);
    buf_printf(out, "%s: %s in %u tensors, %u worker%s, keep %u", row->name, size, row->tensor_count,
               row->workers, row->workers == 1 ? "" : "s", row->keep);
    if (row->skipped[0]) {
        buf_printf(out, "\n  skipped: %s\n\n", row->skipped);
        return;
    }
    buf_printf(out, ", %u repetitions; × is the median of the ratios, repetition by repetition\n", repeat);
    buf_printf(out, "  %-*s%*s%*s%*s", NAME_WIDTH, "", CELL_WIDTH, "median", CELL_WIDTH, "p99", CELL_WIDTH,
               "worst");
    for (uint32_t i = 0; i < row->count; i++)
        if (has_column(&row->series[i])) buf_printf(out, "   × %s", row->series[i].name);
    buf_add_text(out, "\n");
    /* Figures first, then what they are measured against. */
    for (int references = 0; references < 2; references++)
        for (uint32_t i = 0; i < row->count; i++) {
            const result_series_t *s = &row->series[i];
            if (s->is_reference != (references == 1)) continue;
            if (s->skipped[0]) buf_printf(out, "  %-*s  skipped: %s\n", NAME_WIDTH, s->name, s->skipped);
            else add_row(out, row, s);
        }
    buf_add_text(out, "\n");
}

void result_machine_text(const json_t *machine, buf_t *out)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)machine, key, value)
    {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        bool is_text = json_is_string(value);
        buf_printf(out, "%-14s%s\n", key, is_text ? json_string_value(value) : text ? text : "");
        free(text);
    }
    buf_add_text(out, "\n");
}
