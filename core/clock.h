/* SPDX-License-Identifier: Apache-2.0 */
/* core/clock.h: the two clocks: a monotonic one for deadlines, and wall time for people. Without state; any
 * thread. Pure code never reads a clock: it gets `now_us` as an argument, which its caller reads once a
 * turn, so that tests can set the time. */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* A deadline that never comes. */
#define CLOCK_NEVER UINT64_MAX

typedef struct clock_ops {
    uint64_t (*now_us)(void *self);  /* CLOCK_BOOTTIME: counts while the machine is suspended, as leases
                                      * must */
    uint64_t (*wall_ms)(void *self); /* since 1970, UTC; only for output: it may jump */
    void *self;
} clock_ops_t;

/* The machine's clock.  Any thread. */
const clock_ops_t *clock_system(void);
static inline uint64_t clock_now(const clock_ops_t *c) { return c->now_us(c->self); }
/* The earlier of two deadlines; CLOCK_NEVER means none. */
static inline uint64_t clock_earlier(uint64_t a_us, uint64_t b_us) { return a_us < b_us ? a_us : b_us; }
static inline uint64_t clock_wall(const clock_ops_t *c) { return c->wall_ms(c->self); }
/* "2026-11-21T14:03:07.123Z" */
void clock_text(uint64_t wall_ms, char ret_text[25]);
/* Parses an RFC 3339 time, in UTC (Z) or with an offset (+01:00), to the millisecond.  What a user types may
 * leave out the offset (then it is UTC, as in all output), the seconds, or the time of day, and may have a
 * blank for the T.  False: malformed, or before 1970. */
bool clock_parse(const char *text, uint64_t *ret_wall_ms);

#endif
