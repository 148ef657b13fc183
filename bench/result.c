/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and series in memory. */
#include "bench/result.h"

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
