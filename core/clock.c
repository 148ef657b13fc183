/* SPDX-License-Identifier: Apache-2.0 */
#include "core/clock.h"

#include <stdio.h>
#include <time.h>

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
