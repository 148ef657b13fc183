/* SPDX-License-Identifier: Apache-2.0 */
/* A directory of its own for each test of a suite: make_dir as its init, remove_dir as its fini. */
#ifndef TESTS_TEMP_DIR_H
#define TESTS_TEMP_DIR_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static char dir[64];

static inline void make_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/heddle-test-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static inline void remove_dir(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

/* Skipping ends a test before its fini. */
static inline void skip(const char *why)
{
    remove_dir();
    cr_skip("%s", why);
}

#endif
