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

void clock_text(uint64_t wall_ms, char ret_text[25])
{
    time_t seconds = (time_t)(wall_ms / 1000 % 253402300800u); /* years 1970..9999 */
    struct tm t;
    gmtime_r(&seconds, &t);
    snprintf(ret_text, 25, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", (unsigned)(t.tm_year + 1900) % 10000u,
             (unsigned)(t.tm_mon + 1) % 100u, (unsigned)t.tm_mday % 100u, (unsigned)t.tm_hour % 100u,
             (unsigned)t.tm_min % 100u, (unsigned)t.tm_sec % 100u, (unsigned)(wall_ms % 1000));
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
