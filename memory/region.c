/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/region.h"

#include "core/digest.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/limits.h"
#include "memory/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static int fail_memory(size_t bytes, const char *why, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_NO_MEMORY, "%zu bytes of shared memory could not be reserved: %s", bytes,
               why);
    error_hint(error, "free memory, use fewer slots, or a smaller adapter");
    return HEDDLE_ERR_NO_MEMORY;
}

static header_t *header_of(const memory_region_t *r)
{
    return (header_t *)(void *)((uint8_t *)r->base + r->bytes);
}

static int fail_state(const memory_region_t *r, const char *what, heddle_error_t *error)
{
    static const char *const STATES[] = {"idle", "locking", "being written", "sealed", "given back"};
    char name[CONTENT_TEXT];
    content_id_t id = memory_region_content(r);
    return error_fail(error, HEDDLE_ERR_USAGE, "%s cannot be %s: it is %s", content_text(&id, name), what,
                      STATES[r->state]);
}

/* ---- made and given back ---- */

/* A memory file counts as a file: beyond the limit of file sizes, fallocate raises SIGXFSZ in a process that
 * may not be ours. */
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

/* The header page is reserved at once: writing to it must not be a SIGBUS. */
static int lay_out(memory_region_t *r, heddle_error_t *error)
{
    size_t whole = r->bytes + LIMIT_PAGE_BYTES;
    int rc = check_file_limit(whole, error);
    if (rc) return rc;
    if (!forks_stop()) return fail_memory(whole, strerror(ENOMEM), error);
    forks_add(&r->file, file_new(MEMORY_REGION_FILE));
    void *base = MAP_FAILED;
    if (r->file.fd >= 0 && ftruncate(r->file.fd, (off_t)whole) == 0 &&
        fcntl(r->file.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0 &&
        fallocate(r->file.fd, 0, (off_t)r->bytes, LIMIT_PAGE_BYTES) == 0)
        base = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, r->file.fd, 0);
    int why = errno;
    if (base != MAP_FAILED) {
        (void)madvise(base, whole, MADV_DONTFORK);
        /* Where shmem_enabled allows it: 80 MB are made in 4 ms in place of 65, and mapped by a holder in
         * 0.1 ms in place of 10 (docs/benchmarks.md). */
        (void)madvise(base, whole, MADV_HUGEPAGE);
        r->base = base;
        r->mapped_bytes = whole;
    }
    forks_go();
    return r->base ? HEDDLE_OK : fail_memory(whole, strerror(why), error);
}

int memory_region_new(size_t bytes, memory_region_t **ret_region, heddle_error_t *error)
{
    if (bytes > LIMIT_REGION_BYTES) return fail_memory(bytes, "more than a region may have", error);
    memory_region_t *r = calloc(1, sizeof *r);
    if (!r) return fail_memory(bytes, strerror(ENOMEM), error);
    r->file = MEMORY_FD_NONE;
    r->process = getpid();
    r->bytes = (bytes + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES * LIMIT_PAGE_BYTES;
    int rc = lay_out(r, error);
    if (rc) {
        memory_region_destroy(&r);
        return rc;
    }
    header_t *h = header_of(r);
    random_bytes(h->identity, sizeof h->identity);
    h->layout = HEADER_LAYOUT;
    *ret_region = r;
    return HEDDLE_OK;
}

int memory_region_grow(memory_region_t *r, heddle_error_t *error)
{
    size_t left = r->bytes - r->made_bytes, bytes = left < MEMORY_STEP_BYTES ? left : MEMORY_STEP_BYTES;
    if (r->state == REGION_GONE) return fail_state(r, "grown", error);
    if (left == 0) return HEDDLE_OK;
    int rc = file_make(r->file.fd, (uint8_t *)r->base + r->made_bytes, r->made_bytes, bytes);
    if (rc) return fail_memory(r->bytes, strerror(rc), error);
    if (r->view) file_populate((uint8_t *)(uintptr_t)r->view + r->made_bytes, bytes, false);
    r->made_bytes += bytes;
    return r->made_bytes < r->bytes ? HEDDLE_ERR_AGAIN : HEDDLE_OK;
}

int memory_region_put(memory_region_t *r, size_t at, const void *pages, size_t bytes, heddle_error_t *error)
{
    if (r->process != getpid() || r->state != REGION_WRITING || r->is_handed_over)
        return fail_state(r, "written through its file", error);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(r->file.fd, (const uint8_t *)pages + done, bytes - done, (off_t)(at + done));
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EINTR) return fail_memory(r->bytes, strerror(n ? errno : ENOSPC), error);
    }
    r->made_bytes += bytes;
    return HEDDLE_OK;
}

int memory_region_view(memory_region_t *r, heddle_error_t *error)
{
    if (r->view) return HEDDLE_OK;
    if (r->process != getpid() || r->state == REGION_GONE) return fail_state(r, "mapped", error);
    if (!forks_stop()) return fail_memory(r->bytes, strerror(ENOMEM), error);
    void *view = mmap(NULL, r->mapped_bytes, PROT_READ, MAP_SHARED, r->file.fd, 0);
    int why = errno;
    if (view != MAP_FAILED) (void)madvise(view, r->mapped_bytes, MADV_DONTFORK);
    forks_go();
    if (view == MAP_FAILED) return fail_memory(r->bytes, strerror(why), error);
    file_populate(view, r->made_bytes, false);
    r->view = view;
    return HEDDLE_OK;
}

static void give_back_from(memory_region_t *r, size_t at)
{
    size_t bytes = r->mapped_bytes - at;
    if (r->view) munmap((uint8_t *)(uintptr_t)r->view + at, bytes);
    if (at == 0) r->view = NULL;
    if (!r->is_handed_over)
        (void)fallocate(r->file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)bytes);
    if (at) munmap((uint8_t *)r->base + at, bytes);
    r->mapped_bytes = at;
}

/* From the end, but for the first step. A region that was handed over cannot be punched: its pages go with
 * the last mapping. */
bool memory_region_shrink(memory_region_t *r)
{
    if (r->process != getpid() || r->mapped_bytes <= MEMORY_STEP_BYTES) return false;
    region_act_t acts[REGION_ACTS];
    (void)region_step(&r->state, REGION_SHRINK, acts);
    give_back_from(r, (r->mapped_bytes - 1) / MEMORY_STEP_BYTES * MEMORY_STEP_BYTES);
    return r->mapped_bytes > MEMORY_STEP_BYTES;
}

/* The descriptor is closed while the file is mapped still, which is quick (memory/forks.h). */
void memory_region_destroy(memory_region_t **region)
{
    memory_region_t *r = region ? *region : NULL;
    if (!r) return;
    *region = NULL;
    while (memory_region_shrink(r)) {}
    if (r->process == getpid()) {
        size_t first = r->mapped_bytes;
        give_back_from(r, 0);
        file_unlock(r->file.fd);
        forks_close(&r->file);
        if (first) file_unmap_last(r->base, first, r->bytes);
    }
    free(r);
}

/* ---- written, sealed, offered ---- */

/* 0, or errno: EAGAIN where another process holds the region. */
static int take_back(memory_region_t *r)
{
    int refused = file_lock(r->file.fd, F_WRLCK);
    if (refused) return refused;
    while (memory_region_unguard(r)) {}
    if (r->guarded_bytes == 0) return 0;
    file_unlock(r->file.fd);
    return ENOMEM;
}

/* What a step asks for, but for the lock, which has an answer. */
static void put_header(memory_region_t *r, const region_act_t acts[REGION_ACTS], const header_t *content)
{
    for (int i = 0; i < REGION_ACTS; i++) {
        if (acts[i] == REGION_UNLOCK) file_unlock(r->file.fd);
        else header_put(header_of(r), acts[i], content);
    }
}

int memory_region_begin(memory_region_t *r, heddle_error_t *error)
{
    char name[CONTENT_TEXT];
    region_act_t acts[REGION_ACTS];
    if (r->process != getpid() || !region_step(&r->state, REGION_BEGIN, acts))
        return fail_state(r, "written", error);
    int refused = acts[0] == REGION_TRY_LOCK ? take_back(r) : 0;
    (void)region_step(&r->state, refused ? REGION_REFUSED : REGION_GRANTED, acts);
    put_header(r, acts, NULL);
    if (!refused) return HEDDLE_OK;
    content_id_t id = memory_region_content(r);
    return error_fail(error, refused == EAGAIN ? HEDDLE_ERR_NO_SLOT : HEDDLE_ERR_NO_MEMORY,
                      "%s cannot be written again: %s", content_text(&id, name),
                      refused == EAGAIN ? "another process holds it" : strerror(refused));
}

int memory_region_seal(memory_region_t *r, const digest_t *manifest, size_t bytes, heddle_error_t *error)
{
    region_act_t acts[REGION_ACTS];
    header_t content = {.manifest = *manifest, .bytes = bytes};
    if (bytes > r->made_bytes)
        return error_fail(error, HEDDLE_ERR_USAGE, "%zu bytes cannot be sealed: the region has %zu", bytes,
                          r->made_bytes);
    if (FAILPOINT("region.seal")) return error_fail(error, HEDDLE_ERR_INTERNAL, "a region cannot be sealed");
    if (r->process != getpid() || !region_step(&r->state, REGION_SEAL, acts))
        return fail_state(r, "sealed", error);
    put_header(r, acts, &content);
    return HEDDLE_OK;
}

void memory_region_abort(memory_region_t *r)
{
    region_act_t acts[REGION_ACTS];
    if (r->process == getpid() && region_step(&r->state, REGION_ABORT, acts)) put_header(r, acts, NULL);
}

void memory_region_drop(memory_region_t *r)
{
    region_act_t acts[REGION_ACTS];
    if (r->process == getpid()) (void)region_step(&r->state, REGION_DROP, acts);
}

bool memory_region_is_held(const memory_region_t *r)
{
    return r->process == getpid() && file_is_held(r->file.fd);
}

bool memory_region_is_free(const memory_region_t *r)
{
    return r->process == getpid() && r->state == REGION_IDLE && !file_is_held(r->file.fd);
}

content_id_t memory_region_content(const memory_region_t *r)
{
    content_id_t id = {.generation = 0};
    if (r->process != getpid() || r->state == REGION_GONE) return id;
    const header_t *h = header_of(r);
    memcpy(id.identity, h->identity, sizeof id.identity);
    id.generation = h->generation;
    id.manifest = h->manifest;
    return id;
}

/* FUTURE_WRITE is granted while the owner's mapping exists, and nothing is granted after SEAL: the order
 * matters. */
static int seal_file(memory_region_t *r, int *ret_fd, heddle_error_t *error)
{
    if (!r->is_handed_over && (fcntl(r->file.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) < 0 ||
                               fcntl(r->file.fd, F_ADD_SEALS, F_SEAL_SEAL) < 0))
        return error_fail(error, HEDDLE_ERR_INTERNAL, "the kernel cannot seal shared memory: %s",
                          strerror(errno));
    r->is_handed_over = true;
    *ret_fd = r->file.fd;
    return HEDDLE_OK;
}

int memory_region_hand_over(memory_region_t *r, int *ret_fd, heddle_error_t *error)
{
    region_act_t acts[REGION_ACTS];
    if (r->process != getpid() || !region_step(&r->state, REGION_HAND_OVER, acts))
        return fail_state(r, "handed over", error);
    return seal_file(r, ret_fd, error);
}

int memory_region_offer(memory_region_t *r, int *ret_fd, heddle_error_t *error)
{
    region_act_t acts[REGION_ACTS];
    if (r->process != getpid() || !region_step(&r->state, REGION_OFFER, acts))
        return fail_state(r, "offered", error);
    return seal_file(r, ret_fd, error);
}

/* ---- guarded ---- */

bool memory_region_guard(memory_region_t *r)
{
    bool has_no_guard = r->state == REGION_WRITING || r->state == REGION_GONE;
    if (r->process != getpid() || has_no_guard || r->guarded_bytes == r->mapped_bytes) return false;
    size_t left = r->mapped_bytes - r->guarded_bytes;
    size_t bytes = left < MEMORY_GUARD_BYTES ? left : MEMORY_GUARD_BYTES;
    if (mprotect((uint8_t *)r->base + r->guarded_bytes, bytes, PROT_READ) < 0) return false;
    r->guarded_bytes += bytes;
    return r->guarded_bytes < r->mapped_bytes;
}

bool memory_region_unguard(memory_region_t *r)
{
    if (r->process != getpid() || r->guarded_bytes == 0) return false;
    size_t at = (r->guarded_bytes - 1) / MEMORY_GUARD_BYTES * MEMORY_GUARD_BYTES;
    if (mprotect((uint8_t *)r->base + at, r->guarded_bytes - at, PROT_READ | PROT_WRITE) < 0) return false;
    r->guarded_bytes = at;
    return at > 0;
}
