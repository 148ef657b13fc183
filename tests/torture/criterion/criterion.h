/* SPDX-License-Identifier: Apache-2.0 */
/* In place of Criterion, so that the world of tests/scenario runs in a program of its own: what does not
 * hold is said, and ends the process. */
#ifndef TESTS_TORTURE_CRITERION_H
#define TESTS_TORTURE_CRITERION_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TORTURE_MUST(condition)                                                                              \
    ((condition) ? (void)0                                                                                   \
                 : (fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition), abort()))
#define cr_assert(condition, ...) TORTURE_MUST(condition)
#define cr_assert_eq(a, b, ...) TORTURE_MUST((a) == (b))
#define cr_assert_neq(a, b, ...) TORTURE_MUST((a) != (b))
#define cr_assert_lt(a, b, ...) TORTURE_MUST((a) < (b))
#define cr_assert_leq(a, b, ...) TORTURE_MUST((a) <= (b))
#define cr_assert_gt(a, b, ...) TORTURE_MUST((a) > (b))
#define cr_assert_null(a, ...) TORTURE_MUST(!(a))
#define cr_assert_not_null(a, ...) TORTURE_MUST(a)
#define cr_assert_fail(...)                                                                                  \
    do {                                                                                                     \
        fprintf(stderr, __VA_ARGS__);                                                                        \
        fprintf(stderr, "\n");                                                                               \
        abort();                                                                                             \
    } while (0)

#endif
