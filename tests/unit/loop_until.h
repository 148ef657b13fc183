/* SPDX-License-Identifier: Apache-2.0 */
/* UNTIL(condition): runs `loop`, of the file that includes this, until the condition holds. */
#ifndef TESTS_UNIT_LOOP_UNTIL_H
#define TESTS_UNIT_LOOP_UNTIL_H

#include "core/clock.h"

#include <criterion/criterion.h>

enum { PATIENCE_US = 8000000 };

#define UNTIL(condition)                                                                                     \
    do {                                                                                                     \
        uint64_t end_us = clock_now(clock_system()) + PATIENCE_US;                                           \
        while (!(condition) && clock_now(clock_system()) < end_us)                                           \
            loop_turn(loop, clock_now(clock_system()) + 5000);                                               \
        cr_assert(condition, "waited in vain for " #condition);                                              \
    } while (0)

#endif
