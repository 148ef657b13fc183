/* SPDX-License-Identifier: Apache-2.0 */
/* core/clock.h: time comes in from outside.  Pure files get `now_us` as an argument; shells read it here
 * once a turn. */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* A deadline that never comes. */
#define CLOCK_NEVER UINT64_MAX

typedef struct clock_ops {
    uint64_t (*now_us)(void *self);   /* CLOCK_BOOTTIME: goes on while the machine is suspended; leases use
                                       * it */
    uint64_t (*wall_ms)(void *self);  /* since 1970, UTC; only for what people read */
    void *self;
} clock_ops_t;

/* The machine's clock.  Any thread. */
const clock_ops_t *clock_system(void);
static inline uint64_t clock_now(const clock_ops_t *c) { return c->now_us(c->self); }
/* Of two deadlines; CLOCK_NEVER is none. */
static inline uint64_t clock_earlier(uint64_t a_us, uint64_t b_us) { return a_us < b_us ? a_us : b_us; }
static inline uint64_t clock_wall(const clock_ops_t *c) { return c->wall_ms(c->self); }
/* "2026-11-21T14:03:07.123Z" */
void clock_text(uint64_t wall_ms, char ret_text[25]);
/* An RFC 3339 time, of UTC (Z) or with an offset (+01:00), to the millisecond.  False: it is none, or before
 * 1970. */
bool clock_parse(const char *text, uint64_t *ret_wall_ms);

#endif
