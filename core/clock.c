/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the system's clocks, and RFC 3339 times as text. */
#include "core/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* It goes on while the machine is suspended: a lease that ended meanwhile must not be believed. */
static uint64_t boot_us(void *self)
{
    (void)self;
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static uint64_t wall(void *self)
{
    (void)self;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

const clock_ops_t *clock_system(void)
{
    static const clock_ops_t ops = {boot_us, wall, NULL};
    return &ops;
}

static void put_number(unsigned number, unsigned digits, char *to)
{
    for (; digits-- > 0; number /= 10) to[digits] = (char)('0' + number % 10);
}

/* The date so many days after 1970-01-01.  Years begin in March here, so that a leap day is the last one of
 * its year, of its four years, and of its 400: 719,468 days are between 0000-03-01 and 1970-01-01. */
static void take_date(unsigned days, unsigned *ret_year, unsigned *ret_month, unsigned *ret_day)
{
    unsigned since = days + 719468, era = since / 146097, of_era = since % 146097;
    unsigned year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    unsigned of_year = of_era - (365 * year + year / 4 - year / 100);
    unsigned month = (5 * of_year + 2) / 153; /* 0: March */
    *ret_day = of_year - (153 * month + 2) / 5 + 1;
    *ret_month = month < 10 ? month + 3 : month - 9;
    *ret_year = 400 * era + year + (month >= 10);
}

/* Without printf and gmtime_r: a page of answers has hundreds of times, and that one takes a lock of all
 * threads. */
void clock_text(uint64_t wall_ms, char ret_text[25])
{
    uint64_t seconds = wall_ms / 1000 % 253402300800u; /* years 1970..9999 */
    unsigned year, month, day, of_day = (unsigned)(seconds % 86400);
    take_date((unsigned)(seconds / 86400), &year, &month, &day);
    memcpy(ret_text, "0000-00-00T00:00:00.000Z", 25);
    put_number(year, 4, ret_text);
    put_number(month, 2, ret_text + 5);
    put_number(day, 2, ret_text + 8);
    put_number(of_day / 3600, 2, ret_text + 11);
    put_number(of_day / 60 % 60, 2, ret_text + 14);
    put_number(of_day % 60, 2, ret_text + 17);
    put_number((unsigned)(wall_ms % 1000), 3, ret_text + 20);
}

/* "Z", "+01:00", "-05:30": minutes ahead of UTC. */
static bool parse_offset(const char *text, int *ret_minutes)
{
    int hours = 0, minutes = 0, length = 0;
    *ret_minutes = 0;
    if (!strcmp(text, "Z")) return true;
    bool is_read = (*text == '+' || *text == '-') && text[1] >= '0' && text[1] <= '2' && strlen(text) == 6 &&
                   text[4] >= '0' && sscanf(text + 1, "%2d:%2d%n", &hours, &minutes, &length) == 2;
    if (!is_read || length != 5 || hours > 23 || minutes < 0 || minutes > 59) return false;
    *ret_minutes = (*text == '-' ? -1 : 1) * (hours * 60 + minutes);
    return true;
}

bool clock_parse(const char *text, uint64_t *ret_wall_ms)
{
    enum { DATE = 10, MINUTES = 16, SECONDS = 19 };
    struct tm t = {0};
    int offset = 0, ms = 0;
    const char *rest = strptime(text, "%Y-%m-%d", &t);
    if (!rest || rest - text != DATE) return false;
    if (*rest == 'T' || *rest == ' ') {
        bool has_seconds = strlen(text) > MINUTES && text[MINUTES] == ':';
        rest = strptime(rest + 1, has_seconds ? "%H:%M:%S" : "%H:%M", &t);
        if (!rest || rest - text != (has_seconds ? SECONDS : MINUTES)) return false;
        if (has_seconds && *rest == '.') {
            size_t digits = strspn(++rest, "0123456789");
            if (digits == 0) return false;
            for (size_t i = 0; i < 3; i++) ms = ms * 10 + (i < digits ? rest[i] - '0' : 0);
            rest += digits;
        }
        if (*rest && !parse_offset(rest, &offset)) return false;
    } else if (*rest) {
        return false;
    }
    int day = t.tm_mday;
    int64_t seconds = (int64_t)timegm(&t) - (int64_t)offset * 60;
    if (t.tm_mday != day || seconds < 0) return false; /* timegm() turns 30 February into a day of March */
    *ret_wall_ms = (uint64_t)seconds * 1000 + (uint64_t)ms;
    return true;
}
