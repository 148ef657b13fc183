/* SPDX-License-Identifier: Apache-2.0 */
/* Escape sequences that every terminal since the VT100 has: to the corner, and erase to the end of the line
 * or of the screen.  A line is drawn before its rest is erased, so that nothing flickers. */
#include "cli/frame.h"

#include <string.h>

#define TO_CORNER "\033[H"
#define ERASE_LINE "\033[K"
#define ERASE_BELOW "\033[J"

/* A character may have several bytes. */
static bool begins(char byte) { return ((unsigned char)byte & 0xc0) != 0x80; }

size_t frame_cut(const char *line, size_t bytes, int columns)
{
    size_t n = 0;
    for (; n < bytes; n++)
        if (begins(line[n]) && columns-- <= 0) break;
    return n;
}

int frame_width(const char *text)
{
    int n = 0;
    for (; *text; text++) n += begins(*text);
    return n;
}

const char *frame_tail(const char *text, int columns, char *ret_text, size_t size)
{
    static const char CUT[] = "..";
    int width = frame_width(text), room = columns - (int)strlen(CUT);
    if (room <= 0 || width <= columns) return text;
    for (int skip = width - room; skip > 0 || !begins(*text); text++) skip -= begins(*text);
    text_printf(ret_text, size, "%s%s", CUT, text);
    return ret_text;
}

size_t frame_wrap(const char *line, size_t bytes, int columns, size_t *ret_next)
{
    size_t n = frame_cut(line, bytes, columns > 1 ? columns : 1), word = n, first = 0;
    while (first < n && line[first] == ' ') first++;
    if (n < bytes && line[n] != ' ')
        while (word > first && line[word - 1] != ' ') word--;
    if (word > first) n = word; /* else one word is longer than the row */
    *ret_next = n;
    while (*ret_next < bytes && line[*ret_next] == ' ') ++*ret_next;
    while (n > first && line[n - 1] == ' ') n--;
    return n;
}

/* ---- the rows of a frame ---- */

bool frame_next(frame_rows_t *r, const char **at)
{
    size_t next;
    bool is_first = !r->rest;
    if (is_first) {
        if (!**at) return false;
        r->rest = *at;
        r->rest_bytes = strcspn(*at, "\n");
        /* What a line goes on with stands under its text, a little to the right. */
        size_t n = 0;
        while (n < r->rest_bytes && r->rest[n] == ' ') n++;
        r->indent = (int)n + 2 < r->columns / 2 ? (int)n + 2 : 0;
    }
    r->row_indent = is_first ? 0 : r->indent;
    r->row = r->rest;
    r->row_bytes = frame_wrap(r->rest, r->rest_bytes, r->columns - r->row_indent, &next);
    r->rest += next;
    r->rest_bytes -= next;
    if (r->rest_bytes) return true;
    *at = r->rest + (*r->rest == '\n');
    r->rest = NULL;
    return true;
}

static void add_row(buf_t *out, const char *row, size_t bytes, int indent)
{
    buf_printf(out, "%*s", indent, "");
    buf_add(out, row, bytes);
    buf_add_text(out, ERASE_LINE);
}

static size_t count_rows(const char *text, int columns)
{
    frame_rows_t rows = {.columns = columns};
    size_t count = 0;
    while (frame_next(&rows, &text)) count++;
    return count;
}

void frame_draw(const char *head, const char *text, int rows, int columns, buf_t *out)
{
    size_t lines = count_rows(text, columns), room = rows > 1 ? (size_t)rows - 1 : 0;
    size_t shown = lines <= room ? lines : room ? room - 1 : 0;
    frame_rows_t all = {.columns = columns};
    buf_add_text(out, TO_CORNER);
    add_row(out, head, frame_cut(head, strlen(head), columns), 0);
    for (size_t i = 0; i < shown && frame_next(&all, &text); i++) {
        buf_add_text(out, "\r\n");
        add_row(out, all.row, all.row_bytes, all.row_indent);
    }
    if (room && shown < lines) {
        char more[64];
        text_printf(more, sizeof more, "... %zu more line%s", lines - shown, lines - shown == 1 ? "" : "s");
        buf_add_text(out, "\r\n");
        add_row(out, more, frame_cut(more, strlen(more), columns), 0);
    }
    buf_add_text(out, ERASE_BELOW);
}
