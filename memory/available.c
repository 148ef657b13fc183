/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/available.h"

#include "core/errors.h"
#include "core/failpoint.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a file of the kernel holds behind `key` ("": at its start), to the end of that line; false where it
 * has none. */
static bool line_of(const char *root, const char *file, const char *key, char *ret_text, size_t size)
{
    char path[2 * PATH_MAX], line[PATH_MAX];
    bool is_found = false;
    snprintf(path, sizeof path, "%s%s", root, file);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    while (!is_found && fgets(line, sizeof line, f)) is_found = !strncmp(line, key, strlen(key));
    fclose(f);
    if (!is_found) return false;
    line[strcspn(line, "\n")] = 0;
    snprintf(ret_text, size, "%s", line + strlen(key));
    return true;
}

/* UINT64_MAX where there is no number: a limit of "max" is none. */
static uint64_t number_of(const char *root, const char *file, const char *key)
{
    char text[64];
    unsigned long long n;
    return line_of(root, file, key, text, sizeof text) && sscanf(text, "%llu", &n) == 1 ? n : UINT64_MAX;
}

/* As number_of, for a file of one control group. */
static uint64_t number_in_group(const char *root, const char *group, const char *name, const char *key)
{
    char file[PATH_MAX + 64];
    snprintf(file, sizeof file, "/sys/fs/cgroup%s/%s", group, name);
    return number_of(root, file, key);
}

/* Pages of files (an export that was written, say) count as used, and go as soon as there is need. */
static uint64_t cached_in(const char *root, const char *group)
{
    static const char *const KEYS[] = {"inactive_file ", "active_file "};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        uint64_t bytes = number_in_group(root, group, "memory.stat", KEYS[i]);
        if (bytes != UINT64_MAX) sum += bytes;
    }
    return sum;
}

/* What is left in one control group; UINT64_MAX where it has no limit. */
static uint64_t left_in(const char *root, const char *group)
{
    uint64_t limit = number_in_group(root, group, "memory.max", ""),
             used = number_in_group(root, group, "memory.current", ""), cached = cached_in(root, group);
    if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    used -= cached < used ? cached : used;
    return limit > used ? limit - used : 0;
}

/* The least of what the machine and each control group above this process have left: any of them may kill
 * the process. */
uint64_t memory_available(const char *root)
{
    char group[PATH_MAX];
    uint64_t kib = number_of(root, "/proc/meminfo", "MemAvailable:"), least = UINT64_MAX;
    if (kib != UINT64_MAX) least = kib * 1024u;
    if (!line_of(root, "/proc/self/cgroup", "0::", group, sizeof group)) group[0] = 0;
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) { /* its own, and those above */
        *end = 0;
        uint64_t left = left_in(root, group);
        if (left < least) least = left;
    }
    return least;
}

int memory_available_check(size_t bytes, heddle_error_t *error)
{
    uint64_t available = FAILPOINT("region.memory") ? 0 : memory_available("");
    if (bytes <= available) return HEDDLE_OK;
    error_fail(error, HEDDLE_ERR_NO_MEMORY,
               "%zu bytes of shared memory could not be reserved: more than this machine, or this process's "
               "control group, has free",
               bytes);
    error_expected(error, "at most %llu bytes", (unsigned long long)available);
    error_found(error, "%zu bytes", bytes);
    error_hint(error, "free memory, use fewer slots, or a smaller adapter");
    return HEDDLE_ERR_NO_MEMORY;
}
