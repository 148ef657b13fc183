/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors: looked for before they are needed, kept back, lent near the limit and taken back. */
#include "client/descriptors.h"

#include <criterion/criterion.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

/* The limit from now on: `left` more can be opened. */
static void leave(int left)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 1024;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    int fds[200], last = -1;
    for (int i = 0; i <= left; i++) last = fds[i] = dup(0); /* the lowest that are free, in order */
    for (int i = 0; i <= left; i++) close(fds[i]);
    limit.rlim_cur = (rlim_t)last;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static bool can_open(void)
{
    int fd = eventfd(0, 0);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

Test(descriptors, too_few_are_told_and_none_is_lost)
{
    heddle_error_t error = {0};
    cr_assert_eq(descriptors_check(DESCRIPTORS_START, &error), HEDDLE_OK);
    leave(10);
    for (int i = 0; i < 100; i++) cr_assert_eq(descriptors_check(10, NULL), HEDDLE_OK);
    cr_assert_eq(descriptors_check(11, &error), HEDDLE_ERR_NO_MEMORY);
    cr_assert_str_eq(error.expected, "at least 11");
    cr_assert_str_eq(error.found, "10");
    cr_assert(error.hint[0] && error.retriable);
}

Test(descriptors, kept_back_lent_and_taken_back)
{
    descriptors_keep_t k = {0};
    leave(DESCRIPTORS_KEPT + DESCRIPTORS_LOW - 1);
    descriptors_look(&k, 1000000);
    cr_assert_eq(k.count, 0, "not where it would be missing");
    leave(DESCRIPTORS_KEPT + DESCRIPTORS_LOW);
    descriptors_look(&k, 1050000);
    cr_assert_eq(k.count, 0, "it looks ten times a second");
    descriptors_look(&k, 1100000);
    cr_assert_eq(k.count, DESCRIPTORS_KEPT);
    cr_assert_eq(descriptors_check(DESCRIPTORS_LOW + 1, NULL), HEDDLE_ERR_NO_MEMORY);
    descriptors_look(&k, 1200000);
    cr_assert_eq(k.count, DESCRIPTORS_KEPT);
    leave(0);
    cr_assert_not(can_open());
    descriptors_look(&k, 1300000);
    cr_assert_eq(k.count, 0);
    cr_assert_eq(descriptors_check(DESCRIPTORS_KEPT, NULL), HEDDLE_OK, "lent");
    leave(100);
    descriptors_look(&k, 1400000);
    cr_assert_eq(k.count, DESCRIPTORS_KEPT, "and taken back");
    descriptors_fini(&k);
    cr_assert_eq(descriptors_check(DESCRIPTORS_START, NULL), HEDDLE_OK);
}
