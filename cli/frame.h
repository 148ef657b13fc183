/* SPDX-License-Identifier: Apache-2.0 */
/* cli/frame.h: a text as one frame of a terminal, drawn over the frame before.
 *
 * Lines that are longer than the terminal is wide are cut, and so is what does not fit its height; the last
 * row says how many lines that are.  The screen is not scrolled, and nothing of the frame before stays.
 *
 * PURE; any thread. */
#ifndef CLI_FRAME_H
#define CLI_FRAME_H

#include "core/bytes.h"

/* Adds to `out`: the line `head`, then `text`, whose control characters but line ends were removed before. */
void frame_draw(const char *head, const char *text, int rows, int columns, buf_t *out);

#endif
