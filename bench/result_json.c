/* SPDX-License-Identifier: Apache-2.0 */
/* Reports as JSON, and back. */
#include "bench/result.h"

#include "core/errors.h"

#include <heddle/types.h>
#include <math.h>
#include <stdio.h>

/* ---- to JSON --------------------------------------------------------------------------------- */

static json_t *text_or_null(const char *text) { return *text ? json_string(text) : json_null(); }
/* {"memcpy": 1.9, ...}: the figure as a multiple of each reference of its unit. null where a reference was
 * 0. */
static json_t *ratios(const result_row_t *row, const result_series_t *figure)
{
    json_t *object = json_object();
    for (uint32_t i = 0; object && i < row->count; i++) {
        const result_series_t *s = &row->series[i];
        if (s->is_reference && !strcmp(s->unit, figure->unit) && s->series.count) {
            double ratio = series_ratio(&figure->series, &s->series);
            json_object_set_new(object, s->name, isfinite(ratio) ? json_real(ratio) : json_null());
        }
    }
    return object;
}

static json_t *series_json(const result_row_t *row, const result_series_t *s)
{
    bool is_empty = !s->series.count;
    json_t *samples = json_array();
    for (uint32_t i = 0; i < s->series.count; i++) json_array_append_new(samples, json_real(s->series.at[i]));
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "name", s->name, "unit", s->unit, "skipped",
                     text_or_null(s->skipped), "median",
                     is_empty ? json_null() : json_real(series_median(&s->series)), "worst",
                     is_empty ? json_null() : json_real(series_worst(&s->series)), "ratio",
                     s->is_reference ? json_null() : ratios(row, s), "samples", samples);
}

static json_t *row_json(const result_row_t *row)
{
    json_t *figures = json_array(), *references = json_array();
    uint32_t repeat = 0;
    for (uint32_t i = 0; i < row->count; i++) {
        const result_series_t *s = &row->series[i];
        json_array_append_new(s->is_reference ? references : figures, series_json(row, s));
        if (s->series.count > repeat) repeat = s->series.count;
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

/* A file that is no report, or one that this program did not write to its end. */
static int refuse(const char *what, const char *expected, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "%s is no report of heddle-bench", what);
    error_expected(error, "%s", expected);
    error_hint(error, "heddle-bench -o json writes them");
    return rc;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool copy_text(char *to, size_t size, const json_t *object, const char *key)
{
    const char *text = text_of(object, key);
    return snprintf(to, size, "%s", text) < (int)size;
}

/* Names are unique in a row, since ratios and comparisons look series up by name. */
static int decode_series(const json_t *json, bool is_reference, const char *what, result_row_t *row,
                         heddle_error_t *error)
{
    const json_t *samples = json_object_get(json, "samples");
    const char *name = text_of(json, "name");
    result_series_t *s = !*name || result_row_find(row, name)
                             ? NULL
                             : result_series(row, name, text_of(json, "unit"), is_reference);
    if (!s || strlen(name) >= RESULT_NAME || !json_is_array(samples) ||
        json_array_size(samples) > STATS_REPEAT_MAX)
        return refuse(what, "figures with a name of their own each, and samples", error);
    copy_text(s->skipped, sizeof s->skipped, json, "skipped");
    for (size_t i = 0; i < json_array_size(samples); i++) {
        const json_t *v = json_array_get(samples, i);
        if (!json_is_number(v)) return refuse(what, "samples that are numbers", error);
        if (!series_add(&s->series, json_number_value(v)))
            return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for %s", what);
    }
    return HEDDLE_OK;
}

static int decode_list(const json_t *row_json_, const char *key, bool is_reference, const char *what,
                       result_row_t *row, heddle_error_t *error)
{
    const json_t *list = json_object_get(row_json_, key);
    if (!json_is_array(list)) return refuse(what, "rows with figures and references", error);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int rc = decode_series(json_array_get(list, i), is_reference, what, row, error);
        if (rc) return rc;
    }
    return HEDDLE_OK;
}

static int decode_row(const json_t *json, const char *what, result_t *r, heddle_error_t *error)
{
    const char *name = text_of(json, "name");
    if (!*name || strlen(name) >= RESULT_NAME || result_find(r, name))
        return refuse(what, "rows with a name of their own each", error);
    result_row_t *row = result_add(r, name);
    if (!row) return error_fail(error, HEDDLE_ERR_LIMIT, "%s has more than %u rows", what, RESULT_ROWS_MAX);
    copy_text(row->skipped, sizeof row->skipped, json, "skipped");
    row->data_bytes = (uint64_t)json_integer_value(json_object_get(json, "data_bytes"));
    row->tensor_count = (uint32_t)json_integer_value(json_object_get(json, "tensor_count"));
    row->workers = (uint32_t)json_integer_value(json_object_get(json, "worker_count"));
    row->keep = (uint32_t)json_integer_value(json_object_get(json, "keep"));
    int rc = decode_list(json, "figures", false, what, row, error);
    return rc ? rc : decode_list(json, "references", true, what, row, error);
}

int result_decode(const json_t *json, const char *what, result_t *ret_result, heddle_error_t *error)
{
    result_t r = {0};
    const json_t *rows = json_object_get(json, "rows");
    json_t *machine = json_object_get(json, "machine");
    if (strcmp(text_of(json, "kind"), "bench") || !json_is_array(rows))
        return refuse(what, "kind bench, with rows", error);
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
