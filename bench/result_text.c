/* SPDX-License-Identifier: Apache-2.0 */
/* Reports as text: a table for each row, with a column of ratios for each reference. */
#include "bench/result.h"

#include "core/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_WIDTH = 15, CELL_WIDTH = 18 };

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
    char median[32], worst[32];
    result_number(series_median(&s->series), s->unit, median);
    result_number(series_worst(&s->series), s->unit, worst);
    buf_printf(out, "  %-*s%*s%*s", NAME_WIDTH, s->name, CELL_WIDTH, median, CELL_WIDTH, worst);
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
    buf_printf(out, "  %-*s%*s%*s", NAME_WIDTH, "", CELL_WIDTH, "median", CELL_WIDTH, "worst");
    for (uint32_t i = 0; i < row->count; i++)
        if (has_column(&row->series[i])) buf_printf(out, "   × %s", row->series[i].name);
    buf_add_text(out, "\n");
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
