/* SPDX-License-Identifier: Apache-2.0 */
/* In place of Criterion, so that the walks of tests/unit run as fuzz targets too: what does not hold ends the
 * process. */
#ifndef TESTS_FUZZ_CRITERION_H
#define TESTS_FUZZ_CRITERION_H

#include "tests/fuzz/fuzz.h"

#define cr_assert(condition, ...) MUST(condition)
#define cr_assert_eq(a, b, ...) MUST((a) == (b))
#define cr_assert_neq(a, b, ...) MUST((a) != (b))
#define cr_assert_lt(a, b, ...) MUST((a) < (b))
#define cr_assert_gt(a, b, ...) MUST((a) > (b))
#define cr_assert_leq(a, b, ...) MUST((a) <= (b))
#define cr_assert_str_eq(a, b, ...) MUST(!strcmp(a, b))
#define cr_assert_fail(...)                                                                                  \
    do {                                                                                                     \
        fprintf(stderr, __VA_ARGS__);                                                                        \
        abort();                                                                                             \
    } while (0)

#endif
