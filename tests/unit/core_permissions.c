/* SPDX-License-Identifier: Apache-2.0 */
/* A directory that others can change is warned of, once for each reason; one's own is not. */
#include "core/permissions.h"

#include "captured.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64];

static const char *said(void)
{
    captured_t stderr_now = captured_begin();
    permissions_warn("keys.others", dir, "the keys there");
    return captured_end(&stderr_now);
}

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/heddle-permissions-XXXXXX");
    cr_assert(mkdtemp(dir));
}
static void teardown(void) { rmdir(dir); }
TestSuite(permissions, .init = setup, .fini = teardown);

Test(permissions, may_write_or_not)
{
    cr_assert_str_eq(said(), "");
    cr_assert_eq(chmod(dir, 0755), 0);
    cr_assert_str_eq(said(), "");
    cr_assert_eq(chmod(dir, 0777), 0);
    cr_assert(strstr(said(), "keys.others: ") && strstr(said(), "mode 777"), "%s", said());
    cr_assert_eq(chmod(dir, 0720), 0);
    cr_assert(strstr(said(), "mode 720"), "%s", said());
}

Test(permissions, own_it)
{
    if (geteuid() != 0) cr_skip_test("needs root to give a directory away");
    cr_assert_eq(chown(dir, 12345, 12345), 0);
    cr_assert_str_eq(said(), "", "root looks after others' things");
    cr_assert_eq(chmod(dir, 0755), 0);
    cr_assert_eq(seteuid(54321), 0);
    cr_assert(strstr(said(), "belongs to uid 12345, who can change the keys there"), "%s", said());
    cr_assert_eq(seteuid(0), 0);
    cr_assert_eq(chown(dir, 0, 12345), 0);
    cr_assert_eq(seteuid(54321), 0);
    cr_assert_str_eq(said(), "");
    cr_assert_eq(seteuid(0), 0);
}
