/* SPDX-License-Identifier: Apache-2.0 */
/* Facts from /proc and uname; a fact that cannot be read is null, so that a report never fails for one.
 *
 * The load is taken before and after: a report that was measured beside other work can be told by it. */
#include "bench/machine.h"

#include "core/clock.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The rest of the first line that begins with `key`, past blanks and a colon. */
static json_t *line_of(const char *path, const char *key)
{
    char line[512];
    json_t *found = NULL;
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        size_t n = strlen(key);
        if (strncmp(line, key, n) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        found = json_string(line + n + strspn(line + n, " \t:"));
    }
    if (f) fclose(f);
    return found ? found : json_null();
}

static double load_now(void)
{
    double load = 0;
    return getloadavg(&load, 1) == 1 ? load : -1;
}

/* What can be had without swapping, page cache included: MemFree alone would skip rows that fit. */
uint64_t machine_available_bytes(void)
{
    json_t *text = line_of("/proc/meminfo", "MemAvailable");
    uint64_t kib = json_is_string(text) ? strtoull(json_string_value(text), NULL, 10) : 0;
    json_decref(text);
    return kib * 1024;
}

json_t *machine_facts(const char *data_dir)
{
    struct utsname u = {0};
    char at[25];
    const char *mode = getenv("HEDDLE_TRANSFER_MODE");
    /* The file system by its magic number. It matters because a sync costs nothing on tmpfs. */
    static const struct {
        long magic;
        const char *name;
    } KNOWN[] = {{0x01021994, "tmpfs"}, {0xef53, "ext4"},          {0x58465342, "xfs"},
                 {0x9123683e, "btrfs"}, {0x794c7630, "overlayfs"}, {0x2fc12fc1, "zfs"}};
    struct statfs s;
    const char *data_on = statfs(data_dir, &s) == 0 ? "another" : NULL;
    for (size_t i = 0; data_on && i < sizeof KNOWN / sizeof *KNOWN; i++)
        if ((long)s.f_type == KNOWN[i].magic) data_on = KNOWN[i].name;
    uname(&u);
    clock_text(clock_wall(clock_system()), at);
    return json_pack("{s:s, s:s, s:o, s:I, s:I, s:s, s:o, s:s?, s:s, s:s, s:f}", "at", at, "host", u.nodename,
                     "cpu", line_of("/proc/cpuinfo", "model name"), "core_count",
                     (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "memory_bytes",
                     (json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE), "kernel",
                     u.release, "tcp", line_of("/proc/sys/net/ipv4/tcp_congestion_control", ""), "data_on",
                     data_on, "heddle", heddle_version(), "transfer_mode", mode && *mode ? mode : "eager",
                     "load_before", load_now());
}

void machine_finish(json_t *facts) { json_object_set_new(facts, "load_after", json_real(load_now())); }
