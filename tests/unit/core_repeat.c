/* SPDX-License-Identifier: Apache-2.0 */
/* A condition that repeats: reported at once, then counted, and its end reported once. */
#include "core/repeat.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SECOND = 1000000 };

Test(repeat, first_at_once_then_counted_once_a_minute)
{
    repeat_t r = {0};
    cr_assert_eq(repeat_note(&r, 0, 0), 1, "the clock may begin at 0");
    for (uint64_t now_us = SECOND / 4; now_us < REPEAT_US; now_us += SECOND / 4)
        cr_assert_eq(repeat_note(&r, 0, now_us), 0);
    cr_assert_eq(repeat_note(&r, 0, REPEAT_US), 240);
    cr_assert_eq(repeat_note(&r, 0, REPEAT_US + SECOND), 0);
    cr_assert_eq(repeat_note(&r, 0, 3 * REPEAT_US), 2);
}

Test(repeat, another_reason_is_reported_at_once_and_alternating_ones_are_counted)
{
    repeat_t r = {0};
    for (uint32_t key = 1; key <= REPEAT_KEYS; key++) cr_assert_eq(repeat_note(&r, key, key), 1);
    for (uint64_t i = 0; i < 100; i++) cr_assert_eq(repeat_note(&r, 1 + i % REPEAT_KEYS, SECOND + i), 0);
    cr_assert_eq(repeat_note(&r, 1, REPEAT_US + 1), 26);
    cr_assert_eq(repeat_note(&r, 99, REPEAT_US + 2), 1, "in the place of the oldest");
    cr_assert_eq(repeat_note(&r, 1, REPEAT_US + 3), 0);
    cr_assert_eq(repeat_note(&r, 2, REPEAT_US + 4), 1, "which was forgotten");
}

Test(repeat, the_end_is_reported_where_the_condition_was)
{
    repeat_t r = {0};
    cr_assert_not(repeat_over(&r), "nothing began");
    cr_assert_eq(repeat_note(&r, 0, SECOND), 1);
    cr_assert(repeat_over(&r));
    cr_assert_not(repeat_over(&r), "once");
    for (int i = 2; i < 60; i++) { /* comes and goes */
        cr_assert_eq(repeat_note(&r, 0, (uint64_t)i * SECOND), 0);
        cr_assert_not(repeat_over(&r));
    }
    cr_assert_eq(repeat_note(&r, 0, SECOND + REPEAT_US), 59);
    cr_assert(repeat_over(&r));
}

Test(repeat, the_count_in_words)
{
    char scratch[REPEAT_TEXT];
    cr_assert_str_eq(repeat_text(1, scratch), "");
    cr_assert_str_eq(repeat_text(12, scratch), " (12 times since it was last reported)");
    cr_assert_lt(strlen(repeat_text(UINT64_MAX, scratch)), sizeof scratch - 1);
}
