/* SPDX-License-Identifier: Apache-2.0 */
/* Public structs of a release with fewer fields, or more. */
#include "core/sized.h"

#include <criterion/criterion.h>
#include <heddle/admin.h>
#include <heddle/publisher.h>
#include <heddle/worker.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    size_t size;
    uint32_t a, b;
} ours_t;
typedef struct {
    size_t size;
    uint32_t a;
} older_t;
typedef struct {
    size_t size;
    uint32_t a, b;
    uint64_t c;
} newer_t;

Test(sized, what_an_older_program_does_not_have_is_0)
{
    heddle_error_t error;
    ours_t got;
    older_t given = {.size = 12, .a = 7}; /* without the padding */
    cr_assert_eq(sized_take(&got, sizeof got, &given, "it", &error), HEDDLE_OK);
    cr_assert(got.a == 7 && !got.b && got.size == 12);
    cr_assert_eq(sized_take(&got, sizeof got, NULL, "it", &error), HEDDLE_ERR_USAGE);
    cr_assert(!got.a && !got.b);
}

Test(sized, what_a_newer_one_asks_for_is_not_passed_over)
{
    heddle_error_t error;
    ours_t got;
    newer_t given = {.size = sizeof given, .a = 7, .b = 8};
    cr_assert_eq(sized_take(&got, sizeof got, &given, "it", &error), HEDDLE_OK);
    cr_assert(got.a == 7 && got.b == 8);
    given.c = 1ull << 60;
    cr_assert_eq(sized_take(&got, sizeof got, &given, "it", &error), HEDDLE_ERR_USAGE);
    cr_assert(strstr(error.message, "it asks for"), "%s", error.message);
    given.size = 4;
    cr_assert_eq(sized_take(&got, sizeof got, &given, "it", &error), HEDDLE_ERR_USAGE);
}

Test(sized, nobody_is_given_more_than_there_is_room_for)
{
    ours_t from = {.size = sizeof from, .a = 7, .b = 8};
    ours_t to = {.size = 12, .a = 1, .b = 99};
    sized_give(&to, &from, sizeof from);
    cr_assert(to.a == 7 && to.b == 99 && to.size == 12);
    newer_t more = {.size = sizeof more, .c = 5};
    sized_give(&more, &from, sizeof from);
    cr_assert(more.a == 7 && more.b == 8 && more.c == 5 && more.size == sizeof more);
    to = (ours_t){0};
    sized_give(&to, &from, sizeof from);
    cr_assert(to.size == sizeof to && to.b == 8);
    to = (ours_t){.size = sizeof to.size - 1};
    sized_give(&to, &from, sizeof from);
    cr_assert(to.size == sizeof to && to.a == 7 && to.b == 8, "a size that has no room for itself is none");
    sized_give(NULL, &from, sizeof from);
}
