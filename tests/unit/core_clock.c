/* SPDX-License-Identifier: Apache-2.0 */
/* core/clock: times as text, and back. */
#include "core/clock.h"

#include <criterion/criterion.h>
#include <string.h>
#include <time.h>

Test(clock, a_time_is_read_as_it_is_written)
{
    static const uint64_t TIMES[] = {0, 1, 951782400123, 1764085800000, 253402300799999};
    for (size_t i = 0; i < sizeof TIMES / sizeof *TIMES; i++) {
        char text[25];
        uint64_t found = 7;
        clock_text(TIMES[i], text);
        cr_assert(clock_parse(text, &found), "%s", text);
        cr_assert_eq(found, TIMES[i], "%s", text);
    }
}

/* As libc has it, from 1970 to 9999. */
Test(clock, each_day_has_its_date)
{
    for (uint64_t day = 0; day < 2932897; day += day < 150000 ? 1 : 97) {
        time_t seconds = (time_t)(day * 86400 + day % 86400);
        struct tm t;
        char text[25], expected[25];
        clock_text((uint64_t)seconds * 1000, text);
        gmtime_r(&seconds, &t);
        strftime(expected, sizeof expected, "%Y-%m-%dT%H:%M:%S.000Z", &t);
        if (strcmp(text, expected) != 0) cr_assert_fail("%s, expected %s", text, expected);
    }
}

Test(clock, offsets_and_fractions)
{
    static const struct {
        const char *text;
        uint64_t ms;
    } ROWS[] = {{"2026-11-25T15:50:00Z", 1795621800000},
                {"2026-11-25T16:50:00+01:00", 1795621800000},
                {"2026-11-25T10:20:00-05:30", 1795621800000},
                {"2026-11-25T15:50:00.5Z", 1795621800500},
                {"2026-11-25T15:50:00.123456Z", 1795621800123},
                {"1970-01-01T00:00:00Z", 0},
                {"2024-02-29T00:00:00Z", 1709164800000},
                {"2026-11-25T15:50:00", 1795621800000},
                {"2026-11-25T15:50", 1795621800000},
                {"2026-11-25 15:50", 1795621800000},
                {"2026-11-25 15:50:00Z", 1795621800000},
                {"2026-11-25T16:50+01:00", 1795621800000},
                {"2026-11-25T15:50:00.25", 1795621800250},
                {"2026-11-25", 1795564800000}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        uint64_t found = 7;
        cr_assert(clock_parse(ROWS[i].text, &found), "%s", ROWS[i].text);
        cr_assert_eq(found, ROWS[i].ms, "%s: %llu", ROWS[i].text, (unsigned long long)found);
    }
}

Test(clock, what_is_no_time_is_refused)
{
    static const char *const WRONG[] = {"",
                                        "5m",
                                        "2026-11",
                                        "2026-11-25Z",
                                        "2026-11-25T",
                                        "2026-11-25T15",
                                        "2026-11-25T15:5",
                                        "2026-11-25T15:50:",
                                        "2026-11-25T15:50.5",
                                        "2026-11-25  15:50",
                                        "2026-11-25t15:50",
                                        "26-11-25",
                                        "15:50",
                                        "2026-11-25T15:50:00.Z",
                                        "2026-11-25T15:50:00Z ",
                                        "2026-11-25T15:50:00+1:00",
                                        "2026-11-25T15:50:00+01:60",
                                        "2026-11-25T15:50:00+24:00",
                                        "2026-11-25T25:50:00Z",
                                        "2026-02-30T00:00:00Z",
                                        "1970-01-01T00:00:00+00:01",
                                        "1969-12-31T23:59:59Z"};
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        uint64_t found = 7;
        cr_assert(!clock_parse(WRONG[i], &found), "%s", WRONG[i]);
        cr_assert_eq(found, 7, "%s", WRONG[i]);
    }
}
