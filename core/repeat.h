/* SPDX-License-Identifier: Apache-2.0 */
/* core/repeat.h: a condition that comes again and again, reported at a bounded rate.
 *
 *   first time          -> report it
 *   again, same key     -> count it; report it once a minute, with the count
 *   over                -> report that, if the condition was reported
 *
 * The key distinguishes reasons (an error code; 0 if there is only one): a new reason is reported at once.
 * REPEAT_KEYS reasons are remembered, so that two that alternate are counted too.  A condition that comes and
 * goes within a minute is also only counted.  Zeroed, it is at its beginning.  The caller owns it.  One
 * thread; nothing blocks. */
#ifndef CORE_REPEAT_H
#define CORE_REPEAT_H

#include <stdbool.h>
#include <stdint.h>

#define REPEAT_US 60000000ull /* between two reports of one reason */
#define REPEAT_KEYS 4
#define REPEAT_TEXT 64u

typedef struct {
    struct {
        uint32_t key;
        uint64_t said_us, count;
        bool is_used;
    } seen[REPEAT_KEYS];
    bool is_said; /* reported, and not over yet */
} repeat_t;

/* Counts the condition.  0: do not report it now; else report it, with this number of times since the last
 * report, this time included. */
uint64_t repeat_note(repeat_t *r, uint32_t key, uint64_t now_us);
/* The condition is over.  True: it was reported, so its end must be reported too. */
bool repeat_over(repeat_t *r);
/* A key for a text: its hash. */
uint32_t repeat_key(const char *text);
/* " (12 times since it was last reported)"; "" for once. */
const char *repeat_text(uint64_t times, char scratch[REPEAT_TEXT]);

#endif
