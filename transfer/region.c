/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/region.h"

#include "core/errors.h"
#include "core/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A number that a kernel file holds after `key` ("" = at its start); UINT64_MAX where there is none ("max"). */
static uint64_t number_in(const char *path, const char *key)
{
    char line[160];
    uint64_t value = UINT64_MAX;
    FILE *f = fopen(path, "re");
    if (!f) return value;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        unsigned long long n;
        if (sscanf(line + strlen(key), "%llu", &n) == 1) value = n;
        break;
    }
    fclose(f);
    return value;
}

/* What may be taken without waking the OOM killer.  fallocate on a memfd takes page after page and is refused only when
 * nothing is left, so the question must be asked before. */
static uint64_t memory_available(void)
{
    uint64_t kib = number_in("/proc/meminfo", "MemAvailable:");
    uint64_t machine = kib == UINT64_MAX ? kib : kib * 1024u;
    uint64_t limit = number_in("/sys/fs/cgroup/memory.max", ""), used = number_in("/sys/fs/cgroup/memory.current", "");
    uint64_t group = limit == UINT64_MAX || used == UINT64_MAX ? UINT64_MAX : limit > used ? limit - used : 0;
    return machine < group ? machine : group;
}

static int fail_memory(size_t bytes, const char *why, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_NO_MEMORY, "%zu bytes of shared memory could not be reserved: %s", bytes, why);
    error_hint(error, "free memory, use fewer slots, or a smaller adapter");
    return HEDDLE_ERR_NO_MEMORY;
}

static int reserve(region_t *r, heddle_error_t *error)
{
    uint64_t available = memory_available();
    if (r->bytes > available) {
        fail_memory(r->bytes, "more than this machine has free", error);
        error_expected(error, "at most %llu bytes", (unsigned long long)available);
        error_found(error, "%zu bytes", r->bytes);
        return HEDDLE_ERR_NO_MEMORY;
    }
    r->fd = memfd_create("heddle-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (r->fd < 0) return fail_memory(r->bytes, strerror(errno), error);
    int rc;
    do rc = fallocate(r->fd, 0, 0, (off_t)r->bytes);
    while (rc < 0 && errno == EINTR);
    if (rc < 0 || fcntl(r->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return fail_memory(r->bytes, strerror(errno), error);
    void *base = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, 0);
    if (base == MAP_FAILED) return fail_memory(r->bytes, strerror(errno), error);
    r->base = base;
    return HEDDLE_OK;
}

int region_new(size_t bytes, region_t **ret_region, heddle_error_t *error)
{
    if (bytes > LIMIT_REGION_BYTES) return fail_memory(bytes, "more than a region may have", error);
    region_t *r = calloc(1, sizeof *r);
    if (!r) return fail_memory(bytes, strerror(ENOMEM), error);
    r->fd = -1;
    r->memory = HEDDLE_MEMORY_HOST;
    r->bytes = (bytes + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES * LIMIT_PAGE_BYTES;
    if (r->bytes == 0) r->bytes = LIMIT_PAGE_BYTES;
    atomic_init(&r->refs, 1);
    int rc = reserve(r, error);
    if (rc != HEDDLE_OK) {
        region_unref(&r);
        return rc;
    }
    *ret_region = r;
    return HEDDLE_OK;
}

region_t *region_ref(region_t *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

void region_unref(region_t **r)
{
    region_t *gone = r ? *r : NULL;
    if (!gone) return;
    *r = NULL;
    if (atomic_fetch_sub_explicit(&gone->refs, 1, memory_order_acq_rel) != 1) return;
    if (gone->base) munmap(gone->base, gone->bytes);
    if (gone->view) munmap((void *)(uintptr_t)gone->view, gone->bytes);
    if (gone->fd >= 0) close(gone->fd);
    free(gone);
}

int region_view(region_t *r)
{
    if (r->view) return HEDDLE_OK;
    void *view = mmap(NULL, r->bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, r->fd, 0);
    if (view == MAP_FAILED) return HEDDLE_ERR_NO_MEMORY;
    r->view = view;
    return HEDDLE_OK;
}
