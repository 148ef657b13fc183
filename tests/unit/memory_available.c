/* SPDX-License-Identifier: Apache-2.0 */
/* What may be taken, as files of the kernel have it. */
#include "core/failpoint.h"
#include "memory/available.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char root[64];

static void put(const char *file, const char *text)
{
    char command[512], path[256];
    snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s%s')\"", root, file);
    cr_assert_eq(system(command), 0);
    snprintf(path, sizeof path, "%s%s", root, file);
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void setup(void)
{
    snprintf(root, sizeof root, "/tmp/heddle-memory-XXXXXX");
    cr_assert(mkdtemp(root));
    put("/proc/meminfo", "MemTotal:       9000 kB\nMemAvailable:   8000 kB\n");
}
static void teardown(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    cr_assert_eq(system(command), 0);
}
TestSuite(memory, .init = setup, .fini = teardown);

Test(memory, of_the_machine_where_there_are_no_groups)
{
    cr_assert_eq(memory_available(root), 8000 * 1024);
    cr_assert_eq(memory_available("/nowhere"), UINT64_MAX);
    cr_assert_lt(memory_available(""), UINT64_MAX, "of this machine it can be told");
}

/* A unit with MemoryMax=, in a slice with one, in a container with one. */
Test(memory, of_the_group_and_of_each_above_it)
{
    put("/proc/self/cgroup", "1:name=systemd:/other\n0::/system.slice/heddle-worker@policy.service\n");
    cr_assert_eq(memory_available(root), 8000 * 1024);
    put("/sys/fs/cgroup/memory.max", "5000000\n");
    put("/sys/fs/cgroup/memory.current", "1000000\n");
    cr_assert_eq(memory_available(root), 4000000, "as in a container, where it is the root");
    put("/sys/fs/cgroup/system.slice/memory.max", "max\n");
    put("/sys/fs/cgroup/system.slice/memory.current", "1\n");
    cr_assert_eq(memory_available(root), 4000000);
    put("/sys/fs/cgroup/system.slice/heddle-worker@policy.service/memory.max", "3000000\n");
    put("/sys/fs/cgroup/system.slice/heddle-worker@policy.service/memory.current", "2000000\n");
    cr_assert_eq(memory_available(root), 1000000);
    put("/sys/fs/cgroup/system.slice/heddle-worker@policy.service/memory.stat",
        "anon 400000\nfile 1600000\nshmem 100000\ninactive_file 1000000\nactive_file 500000\n");
    cr_assert_eq(memory_available(root), 2500000, "pages of files are there to be taken");
    put("/sys/fs/cgroup/system.slice/memory.max", "1\n");
    cr_assert_eq(memory_available(root), 0);
}

Test(memory, what_is_not_there_is_refused_with_the_size)
{
    heddle_error_t e = {0};
    cr_assert_eq(memory_available_check(1, &e), HEDDLE_OK);
    cr_assert_eq(memory_available_check((size_t)1 << 50, &e), HEDDLE_ERR_NO_MEMORY);
    cr_assert(strstr(e.message, "1125899906842624 bytes") && strstr(e.message, "control group") && e.hint[0]);
    failpoint_arm("region.memory", 1);
    cr_assert_eq(memory_available_check(1, &e), HEDDLE_ERR_NO_MEMORY);
    cr_assert(failpoint_has_failed());
    failpoint_disarm();
    cr_assert_str_eq(e.expected, "at most 0 bytes");
}
