/* SPDX-License-Identifier: Apache-2.0 */
/* Tables for people, with columns as wide as their widest cell. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_cell(table_t *t, const char *text)
{
    if (t->count == t->capacity) {
        int capacity = t->capacity ? 2 * t->capacity : 64;
        char **cells = realloc(t->cells, (size_t)capacity * sizeof *cells);
        if (!cells) return;
        t->cells = cells;
        t->capacity = capacity;
    }
    t->cells[t->count++] = strdup(text ? text : "-");
}

void table_init(table_t *t, int columns, const char *const *headings)
{
    *t = (table_t){.columns = columns};
    for (int i = 0; i < columns; i++) add_cell(t, headings[i]);
}

void table_row(table_t *t, ...)
{
    va_list args;
    va_start(args, t);
    for (int i = 0; i < t->columns; i++) add_cell(t, va_arg(args, const char *));
    va_end(args);
}

/* The width in characters: names may hold UTF-8 of several bytes each. */
static int width_of(const char *text)
{
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static int column_width(const table_t *t, int column)
{
    int widest = 0;
    for (int i = column; i < t->count; i += t->columns) {
        int w = width_of(t->cells[i]) - (i < t->columns && t->cells[i][0] == '>');
        if (w > widest) widest = w;
    }
    return widest;
}

void table_print(table_t *t)
{
    int widths[16] = {0};
    for (int c = 0; c < t->columns && c < 16; c++) widths[c] = column_width(t, c);
    for (int i = 0; i < t->count; i++) {
        int c = i % t->columns;
        bool right = t->cells[c][0] == '>', last = c == t->columns - 1;
        const char *text = t->cells[i] + (i < t->columns && right);
        int pad = widths[c] - width_of(text);
        printf("%*s%s%*s%s", right ? pad : 0, "", text, right || last ? 0 : pad, "", last ? "\n" : "  ");
    }
    for (int i = 0; i < t->count; i++) free(t->cells[i]);
    free(t->cells);
    *t = (table_t){0};
}
