/* SPDX-License-Identifier: Apache-2.0 */
/* Escape sequences that every terminal since the VT100 has: to the corner, and erase to the end of the line
 * or of the screen.  A line is drawn before its rest is erased, so that nothing flickers. */
#include "cli/frame.h"

#define TO_CORNER "\033[H"
#define ERASE_LINE "\033[K"
#define ERASE_BELOW "\033[J"

/* The bytes of the line's first `columns` characters: one may have several bytes. */
static size_t cut(const char *line, size_t bytes, int columns)
{
    size_t n = 0;
    for (; n < bytes; n++) {
        bool begins = ((unsigned char)line[n] & 0xc0) != 0x80;
        if (begins && columns-- <= 0) break;
    }
    return n;
}

static void add_line(buf_t *out, const char *line, size_t bytes, int columns)
{
    buf_add(out, line, cut(line, bytes, columns));
    buf_add_text(out, ERASE_LINE);
}

void frame_draw(const char *head, const char *text, int rows, int columns, buf_t *out)
{
    size_t lines = 0, room = rows > 1 ? (size_t)rows - 1 : 0;
    for (const char *c = text; *c; c++) lines += *c == '\n';
    size_t shown = lines <= room ? lines : room ? room - 1 : 0;
    buf_add_text(out, TO_CORNER);
    add_line(out, head, strlen(head), columns);
    for (size_t i = 0; i < shown; i++) {
        size_t n = strcspn(text, "\n");
        buf_add_text(out, "\r\n");
        add_line(out, text, n, columns);
        text += n + 1;
    }
    if (room && shown < lines) {
        char more[64];
        text_printf(more, sizeof more, "... %zu more line%s", lines - shown, lines - shown == 1 ? "" : "s");
        buf_add_text(out, "\r\n");
        add_line(out, more, strlen(more), columns);
    }
    buf_add_text(out, ERASE_BELOW);
}
