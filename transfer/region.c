/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/region.h"

#include "core/errors.h"
#include "core/failpoint.h"
#include "core/limits.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- how much may be taken ---- */

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

/* ---- regions ---- */

/* What is free is read from several files: asked for again when so much was made, of all regions; sooner
 * where little is left. */
#define ASK_EVERY (16 * MEMORY_STEP_BYTES)
static atomic_llong unasked;

int memory_check(size_t bytes, heddle_error_t *error)
{
    uint64_t available = FAILPOINT("region.memory") ? 0 : memory_available("");
    uint64_t spare = bytes < available ? (available - bytes) / 2 : 0;
    atomic_store(&unasked, (long long)(spare < ASK_EVERY ? spare : ASK_EVERY));
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

/* The memory gives its pages back first: a mapping of another process (transfer/near.h) would keep them. */
static void end(region_t *r)
{
    memory_region_destroy(&r->own);
    free(r);
}

/* A region has at least one page, so that its base can be used. */
int region_begin(size_t bytes, region_t **ret_region, heddle_error_t *error)
{
    int rc = memory_check(bytes, error);
    if (rc) return rc;
    region_t *r = calloc(1, sizeof *r);
    if (!r) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a region");
    atomic_init(&r->refs, 1);
    r->end = end;
    rc = memory_region_new(bytes ? bytes : 1, &r->own, error);
    if (!rc) rc = memory_region_begin(r->own, error);
    if (rc) {
        region_unref(&r);
        return rc;
    }
    r->base = r->own->base;
    r->bytes = r->own->bytes;
    *ret_region = r;
    return HEDDLE_OK;
}

/* For so many bytes of what is left to be made: others take memory meanwhile. */
static int ask_for(const region_t *r, size_t bytes, heddle_error_t *error)
{
    bool is_to_ask = atomic_fetch_sub(&unasked, (long long)bytes) < (long long)bytes;
    return is_to_ask ? memory_check(r->bytes - r->own->made_bytes, error) : HEDDLE_OK;
}

int region_grow(region_t *r, heddle_error_t *error)
{
    size_t left = r->bytes - r->own->made_bytes;
    if (left == 0) return HEDDLE_OK;
    int rc = ask_for(r, left < MEMORY_STEP_BYTES ? left : MEMORY_STEP_BYTES, error);
    return rc ? rc : memory_region_grow(r->own, error);
}

int region_put(region_t *r, size_t at, const void *pages, size_t bytes, heddle_error_t *error)
{
    int rc = ask_for(r, bytes, error);
    return rc ? rc : memory_region_put(r->own, at, pages, bytes, error);
}

int region_view(region_t *r)
{
    int rc = memory_region_view(r->own, NULL);
    r->view = r->own->view;
    return rc;
}
