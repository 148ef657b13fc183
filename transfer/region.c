/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/region.h"

#include "core/errors.h"
#include "core/failpoint.h"
#include "core/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

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
#define ASK_EVERY (16 * REGION_STEP_BYTES)
static atomic_llong unasked;

static int fail_memory(size_t bytes, const char *why, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_NO_MEMORY, "%zu bytes of shared memory could not be reserved: %s", bytes,
               why);
    error_hint(error, "free memory, use fewer slots, or a smaller adapter");
    return HEDDLE_ERR_NO_MEMORY;
}

static int check_available(size_t bytes, heddle_error_t *error)
{
    uint64_t available = FAILPOINT("region.memory") ? 0 : memory_available("");
    uint64_t spare = bytes < available ? (available - bytes) / 2 : 0;
    atomic_store(&unasked, (long long)(spare < ASK_EVERY ? spare : ASK_EVERY));
    if (bytes <= available) return HEDDLE_OK;
    fail_memory(bytes, "more than this machine, or this process's control group, has free", error);
    error_expected(error, "at most %llu bytes", (unsigned long long)available);
    error_found(error, "%zu bytes", bytes);
    return HEDDLE_ERR_NO_MEMORY;
}

/* A memory file counts as a file: beyond the limit a write of it is SIGXFSZ, in a process that may not be
 * ours. */
static int check_file_limit(size_t bytes, heddle_error_t *error)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) || bytes <= limit.rlim_cur) return HEDDLE_OK;
    fail_memory(bytes, "more than this process's limit of file sizes", error);
    error_expected(error, "at most %llu bytes", (unsigned long long)limit.rlim_cur);
    error_found(error, "%zu bytes", bytes);
    error_hint(error, "raise the limit (ulimit -f)");
    return HEDDLE_ERR_NO_MEMORY;
}

/* Room in the address space and in a file; no page of it yet. */
static int lay_out(region_t *r, heddle_error_t *error)
{
    int rc = check_file_limit(r->bytes, error);
    if (!rc) rc = check_available(r->bytes, error);
    if (rc) return rc;
    r->fd = memfd_create("heddle-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (r->fd < 0 || ftruncate(r->fd, (off_t)r->bytes) < 0 ||
        fcntl(r->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return fail_memory(r->bytes, strerror(errno), error);
    void *base = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    if (base == MAP_FAILED) return fail_memory(r->bytes, strerror(errno), error);
    r->base = base;
    return HEDDLE_OK;
}

/* Reserves address space and a file, and no page yet: all pages of a large region take seconds. */
int region_begin(size_t bytes, region_t **ret_region, heddle_error_t *error)
{
    if (bytes > LIMIT_REGION_BYTES) return fail_memory(bytes, "more than a region may have", error);
    region_t *r = calloc(1, sizeof *r);
    if (!r) return fail_memory(bytes, strerror(ENOMEM), error);
    r->fd = -1;
    r->process = getpid();
    r->bytes = (bytes + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES * LIMIT_PAGE_BYTES;
    if (r->bytes == 0) r->bytes = LIMIT_PAGE_BYTES;
    atomic_init(&r->refs, 1);
    int rc = lay_out(r, error);
    if (rc != HEDDLE_OK) {
        region_unref(&r);
        return rc;
    }
    *ret_region = r;
    return HEDDLE_OK;
}

/* The pages are reserved: where the kernel cannot map them in advance, each is mapped when it is used. */
static void touch(const region_t *r, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    (void)madvise((uint8_t *)r->base + r->made_bytes, bytes, MADV_POPULATE_WRITE);
    if (r->view) (void)madvise((uint8_t *)(uintptr_t)r->view + r->made_bytes, bytes, MADV_POPULATE_READ);
#else
    (void)r, (void)bytes;
#endif
}

/* For so many bytes of what is left to be made: others take memory meanwhile. */
static int ask_for(const region_t *r, size_t bytes, heddle_error_t *error)
{
    bool is_to_ask = atomic_fetch_sub(&unasked, (long long)bytes) < (long long)bytes;
    return is_to_ask ? check_available(r->bytes - r->made_bytes, error) : HEDDLE_OK;
}

/* One piece a call. fallocate reports a lack of memory as an error; touching pages without it would end
 * the process with SIGBUS. */
int region_grow(region_t *r, heddle_error_t *error)
{
    size_t left = r->bytes - r->made_bytes, bytes = left < REGION_STEP_BYTES ? left : REGION_STEP_BYTES;
    if (left == 0) return HEDDLE_OK;
    int rc = ask_for(r, bytes, error);
    if (rc) return rc;
    do rc = fallocate(r->fd, 0, (off_t)r->made_bytes, (off_t)bytes);
    while (rc < 0 && errno == EINTR);
    if (rc < 0) return fail_memory(r->bytes, strerror(errno), error);
    touch(r, bytes);
    r->made_bytes += bytes;
    return r->made_bytes < r->bytes ? HEDDLE_ERR_AGAIN : HEDDLE_OK;
}

/* Writing through the file fills new pages without clearing and mapping them first. */
int region_put(region_t *r, size_t at, const void *pages, size_t bytes, heddle_error_t *error)
{
    int rc = ask_for(r, bytes, error);
    for (size_t done = 0; !rc && done < bytes;) {
        ssize_t n = pwrite(r->fd, (const uint8_t *)pages + done, bytes - done, (off_t)(at + done));
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EINTR) rc = fail_memory(r->bytes, strerror(n ? errno : ENOSPC), error);
    }
    if (!rc) r->made_bytes += bytes;
    return rc;
}

/* Pages go back piece by piece, from the end. */
bool region_shrink(region_t *r)
{
    size_t bytes = r->made_bytes < REGION_STEP_BYTES ? r->made_bytes : REGION_STEP_BYTES;
    r->made_bytes -= bytes;
    if (bytes)
        (void)fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)r->made_bytes,
                        (off_t)bytes);
    return r->made_bytes > 0;
}

region_t *region_ref(region_t *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

/* Other processes may have the file mapped (transfer/near.h), and would keep its pages.  A child that was
 * forked has a copy of the region, of pages that its parent still needs. */
static void give_pages_back(const region_t *r)
{
    if (r->fd < 0 || r->made_bytes == 0 || r->process != getpid()) return;
    (void)fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)r->bytes);
}

/* The last reference frees the pages first: a mapping of another process would keep them otherwise. */
void region_unref(region_t **r)
{
    region_t *gone = r ? *r : NULL;
    if (!gone) return;
    *r = NULL;
    if (atomic_fetch_sub_explicit(&gone->refs, 1, memory_order_acq_rel) != 1) return;
    give_pages_back(gone);
    if (gone->base) munmap(gone->base, gone->bytes);
    if (gone->view) munmap((void *)(uintptr_t)gone->view, gone->bytes);
    if (gone->fd >= 0) close(gone->fd);
    free(gone);
}

int region_view(region_t *r)
{
    if (r->view) return HEDDLE_OK;
    int populate = r->made_bytes == r->bytes ? MAP_POPULATE : 0; /* else it would take pages */
    void *view = mmap(NULL, r->bytes, PROT_READ, MAP_SHARED | populate, r->fd, 0);
    if (view == MAP_FAILED) return HEDDLE_ERR_NO_MEMORY;
    r->view = view;
    return HEDDLE_OK;
}
