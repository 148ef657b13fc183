/* SPDX-License-Identifier: Apache-2.0 */
/* cli/frame.h: a text as one frame of a terminal, drawn over the frame before.
 *
 * Lines that are longer than the terminal is wide go on in the next row, and what does not fit its height is
 * cut; the last row says how many rows that are.  The screen is not scrolled, and nothing of the frame
 * before stays.
 *
 * PURE; any thread. */
#ifndef CLI_FRAME_H
#define CLI_FRAME_H

#include "core/bytes.h"

/* How many bytes of the line have room in so many columns, at least one character; it ends after a word,
 * where one ends there.  UTF-8 counts as many columns as it has characters.  Of what is left the spaces in
 * front are not shown: *ret_next is where the next row begins. */
size_t frame_wrap(const char *line, size_t bytes, int columns, size_t *ret_next);
/* Cut: no more than fits. */
size_t frame_cut(const char *line, size_t bytes, int columns);

/* In columns. */
int frame_width(const char *text);
/* "..-ccccc": a name that is too long keeps its end, since names of one deployment differ there.  Borrowed
 * from `text`, or it is `ret_text`; what has no room for a sign of that is left to be cut. */
const char *frame_tail(const char *text, int columns, char *ret_text, size_t size);

/* The rows of a text with lines: the first of a line, and those with what had no room in it, under its text
 * and a little to the right. */
typedef struct {
    int columns; /* of the terminal; all else begins with 0 */
    const char *row;
    size_t row_bytes;
    int row_indent;   /* spaces before it */
    const char *rest; /* of the line; NULL: another one begins */
    size_t rest_bytes;
    int indent;
} frame_rows_t;
/* The next one, from *at on, which it moves; false: there is none. */
bool frame_next(frame_rows_t *r, const char **at);

/* Adds to `out`: the line `head`, which is cut, then `text`, whose control characters but line ends were
 * removed before. */
void frame_draw(const char *head, const char *text, int rows, int columns, buf_t *out);

#endif
