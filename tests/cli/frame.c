/* SPDX-License-Identifier: Apache-2.0 */
/* What a frame is for a terminal. */
#include "cli/frame.h"

#include <criterion/criterion.h>

static const char *drawn(const char *text, int rows, int columns)
{
    static buf_t out;
    buf_clear(&out);
    frame_draw("head of it", text, rows, columns, &out);
    return buf_text(&out);
}

#define END "\033[K"

Test(frame, begins_in_the_corner_and_erases_what_was_there)
{
    cr_assert_str_eq(drawn("one\ntwo\n", 24, 80),
                     "\033[Hhead of it" END "\r\none" END "\r\ntwo" END "\033[J");
    cr_assert_str_eq(drawn("", 24, 80), "\033[Hhead of it" END "\033[J");
}

/* A line that wraps, or one after the last row, would move the whole screen. */
Test(frame, is_cut_at_the_borders)
{
    cr_assert_str_eq(drawn("123456\n12345\n\n", 24, 5),
                     "\033[Hhead " END "\r\n12345" END "\r\n6" END "\r\n12345" END "\r\n" END "\033[J");
    cr_assert_str_eq(drawn("1\n2\n3\n", 4, 80),
                     "\033[Hhead of it" END "\r\n1" END "\r\n2" END "\r\n3" END "\033[J");
    cr_assert_str_eq(drawn("1\n2\n3\n4\n", 4, 80),
                     "\033[Hhead of it" END "\r\n1" END "\r\n2" END "\r\n... 2 more lines" END "\033[J");
    cr_assert_str_eq(drawn("1\n2\n", 2, 80), "\033[Hhead of it" END "\r\n... 2 more lines" END "\033[J");
    cr_assert_str_eq(drawn("1\n2\n", 1, 80), "\033[Hhead of it" END "\033[J");
}

/* A reason is of no use without its end. */
Test(frame, a_long_line_goes_on_between_words)
{
    cr_assert_str_eq(drawn("why    no route to host\nnext\n", 24, 12),
                     "\033[Hhead of it" END "\r\nwhy    no" END "\r\n  route to" END "\r\n  host" END
                     "\r\nnext" END "\033[J");
    cr_assert_str_eq(drawn("  --on-stage: not found\n", 24, 12),
                     "\033[Hhead of it" END "\r\n  --on-stage" END "\r\n    : not" END "\r\n    found" END
                     "\033[J");
    cr_assert_str_eq(drawn("one two three\nfour\n", 3, 8),
                     "\033[Hhead of " END "\r\none two" END "\r\n... 2 mo" END "\033[J");
    cr_assert_str_eq(drawn("ab  \n     \nc", 24, 4),
                     "\033[Hhead" END "\r\nab" END "\r\n    " END "\r\nc" END "\033[J");
    cr_assert_str_eq(drawn("abc", 24, 0), "\033[H" END "\r\na" END "\r\nb" END "\r\nc" END "\033[J");
}

Test(frame, counts_characters_and_not_bytes)
{
    cr_assert_str_eq(drawn("caf\u00e9s\n", 24, 4), "\033[Hhead" END "\r\ncaf\u00e9" END "\r\ns" END "\033[J");
}
