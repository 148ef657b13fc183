/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/hold.h"

#include "core/errors.h"
#include "core/limits.h"
#include "memory/file.h"
#include "memory/region.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* ---- the file ---- */

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

/* Reading a mapping of another file may be SIGBUS, for one that can shrink; or may never end the lock, for
 * one whose description is the owner's. Only a memory file has seals. They are read first: only the size of a
 * file that has them all is final. */
static int check_file(int fd, size_t *ret_bytes, heddle_error_t *error)
{
    struct stat s;
    struct statfs f;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "a file from another process is not shared memory");
    if ((seals & SEALS) != SEALS) {
        error_fail(error, HEDDLE_ERR_PROTOCOL, "shared memory from another process is not sealed");
        error_expected(error, "seals %#x", SEALS);
        error_found(error, "seals %#x", seals);
        return HEDDLE_ERR_PROTOCOL;
    }
    if (fstat(fd, &s) < 0 || fstatfs(fd, &f) < 0)
        return error_fail(error, HEDDLE_ERR_INTERNAL, "a file from another process cannot be looked at: %s",
                          strerror(errno));
    if (f.f_type != TMPFS_MAGIC) /* huge pages have seals, too */
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "a file from another process is not shared memory");
    if (s.st_uid != geteuid()) {
        error_fail(error, HEDDLE_ERR_DENIED, "shared memory from another process belongs to another user");
        error_expected(error, "user %u", (unsigned)geteuid());
        error_found(error, "user %u", (unsigned)s.st_uid);
        return HEDDLE_ERR_DENIED;
    }
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "shared memory from another process came writable");
    if (s.st_size == 0 || s.st_size % LIMIT_PAGE_BYTES ||
        (uint64_t)s.st_size > LIMIT_REGION_BYTES + LIMIT_PAGE_BYTES)
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "shared memory from another process has %lld bytes",
                          (long long)s.st_size);
    *ret_bytes = (size_t)s.st_size;
    return HEDDLE_OK;
}

int hold_new(memory_fd_t *file, hold_t **ret_hold, heddle_error_t *error)
{
    size_t bytes;
    int rc = check_file(file->fd, &bytes, error);
    hold_t *h = rc ? NULL : calloc(1, sizeof *h);
    if (!rc && !h) rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a hold");
    if (rc) {
        file_unlock(file->fd);
        forks_close(file);
        return rc;
    }
    forks_move(&h->file, file);
    h->file_bytes = bytes;
    h->process = getpid();
    *ret_hold = h;
    return HEDDLE_OK;
}

/* ---- held ---- */

static int fail_verdict(header_verdict_t verdict, const content_id_t *id, const header_t *found,
                        heddle_error_t *error)
{
    static const char *const WHY[] = {
        [HEADER_UNKNOWN] = "its header is not one of this release",
        [HEADER_OTHER_REGION] = "the memory is another region",
        [HEADER_UNSEALED] = "it was not written to its end",
        [HEADER_OTHER_GENERATION] = "the memory has been written again",
        [HEADER_OTHER_MANIFEST] = "its manifest is another",
        [HEADER_TOO_LARGE] = "its header has more bytes than its memory",
    };
    char name[CONTENT_TEXT];
    error_fail(error, HEDDLE_ERR_NOT_FOUND, "%s cannot be held: %s", content_text(id, name), WHY[verdict]);
    if (verdict == HEADER_OTHER_GENERATION)
        error_found(error, "generation %llu", (unsigned long long)found->generation);
    return HEDDLE_ERR_NOT_FOUND;
}

static int fail_lock(int why, const content_id_t *id, heddle_error_t *error)
{
    char name[CONTENT_TEXT];
    return error_fail(error, why == EAGAIN ? HEDDLE_ERR_NOT_FOUND : HEDDLE_ERR_INTERNAL,
                      "%s cannot be held: %s", content_text(id, name),
                      why == EAGAIN ? "its owner is writing the memory" : strerror(why));
}

/* From none to checked, in the order of the table; or back to none, without a lock. */
static int reach(int fd, const content_id_t *id, hold_state_t *state, header_t *ret_header,
                 heddle_error_t *error)
{
    header_verdict_t verdict = HEADER_UNKNOWN;
    int refused = 0;
    size_t capacity;
    hold_act_t act;
    if (!hold_step(state, HOLD_ASK, &act))
        return error_fail(error, HEDDLE_ERR_USAGE, "a region that is held cannot be taken again");
    while (act != HOLD_DO_NOTHING) {
        if (act == HOLD_TRY_LOCK) {
            refused = file_lock(fd, F_RDLCK);
            (void)hold_step(state, refused ? HOLD_REFUSED : HOLD_GRANTED, &act);
        } else if (act == HOLD_READ_HEADER) {
            if (file_header(fd, ret_header, &capacity)) verdict = header_check(ret_header, id, capacity);
            (void)hold_step(state, verdict == HEADER_MATCHES ? HOLD_FOUND : HOLD_FOUND_OTHER, &act);
        } else {
            file_unlock(fd);
            act = HOLD_DO_NOTHING;
        }
    }
    if (refused) return fail_lock(refused, id, error);
    return *state == HOLD_CHECKED ? HEDDLE_OK : fail_verdict(verdict, id, ret_header, error);
}

int hold_take(hold_t *h, const content_id_t *id, heddle_error_t *error)
{
    hold_act_t act;
    if (h->process != getpid()) return error_fail(error, HEDDLE_ERR_USAGE, "a hold is not usable after fork");
    int rc = reach(h->file.fd, id, &h->state, &h->header, error);
    if (rc) return rc;
    if (h->header.bytes > h->file_bytes - LIMIT_PAGE_BYTES) { /* what is mapped is what may be read */
        hold_release(h);
        return fail_verdict(HEADER_TOO_LARGE, id, &h->header, error);
    }
    rc = hold_map(h, error);
    (void)hold_step(&h->state, rc ? HOLD_MAP_FAILED : HOLD_MAP, &act);
    if (act == HOLD_UNLOCK) file_unlock(h->file.fd);
    return rc;
}

void hold_release(hold_t *h)
{
    hold_act_t act;
    if (h->process != getpid()) return;
    if (hold_step(&h->state, HOLD_RELEASE, &act) && act == HOLD_UNLOCK) file_unlock(h->file.fd);
}

int hold_hand_on(hold_t *h, int *ret_fd, heddle_error_t *error)
{
    hold_act_t act;
    if (h->process != getpid() || !hold_step(&h->state, HOLD_HAND_ON, &act))
        return error_fail(error, HEDDLE_ERR_USAGE, "a region that is not held cannot be handed on");
    *ret_fd = h->file.fd;
    return HEDDLE_OK;
}

/* The identity never changes, and needs no lock. */
static int check_identity(int fd, const content_id_t *id, heddle_error_t *error)
{
    header_t header;
    size_t capacity;
    header_verdict_t verdict = file_header(fd, &header, &capacity) ? HEADER_OTHER_REGION : HEADER_UNKNOWN;
    if (verdict != HEADER_UNKNOWN && !memcmp(header.identity, id->identity, sizeof header.identity))
        return HEDDLE_OK;
    return fail_verdict(verdict, id, &header, error);
}

/* O_RDONLY: an exclusive lock cannot be taken through it. */
int hold_open(int fd, const content_id_t *id, int *ret_fd, heddle_error_t *error)
{
    char path[32];
    hold_state_t state = HOLD_NONE;
    header_t header;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0)
        return error_fail(error,
                          errno == ENOENT || errno == EACCES ? HEDDLE_ERR_INTERNAL : HEDDLE_ERR_NO_MEMORY,
                          "shared memory cannot be opened again (/proc/self/fd): %s", strerror(errno));
    int rc = id->generation ? reach(own, id, &state, &header, error) : check_identity(own, id, error);
    if (rc) close(own);
    else *ret_fd = own;
    return rc;
}

/* ---- mapped ---- */

static void unmap_from(hold_t *h, size_t at)
{
    if (h->mapped_bytes > at) munmap((uint8_t *)(uintptr_t)h->base + at, h->mapped_bytes - at);
    h->mapped_bytes = at;
    if (at == 0) h->base = NULL;
}

int hold_map(hold_t *h, heddle_error_t *error)
{
    if (h->mapped_bytes == h->file_bytes) return HEDDLE_OK;
    unmap_from(h, 0); /* what is left of one that was to go, and is wanted again */
    if (h->process != getpid() || !forks_stop())
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "shared memory cannot be mapped in this process");
    void *base = mmap(NULL, h->file_bytes, PROT_READ, MAP_SHARED, h->file.fd, 0);
    int why = errno;
    if (base != MAP_FAILED) (void)madvise(base, h->file_bytes, MADV_DONTFORK);
    forks_go();
    if (base == MAP_FAILED)
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "%zu bytes of shared memory could not be mapped: %s",
                          h->file_bytes, strerror(why));
    h->base = base;
    h->mapped_bytes = h->file_bytes;
    h->populated_bytes = 0;
    return HEDDLE_OK;
}

bool hold_populate(hold_t *h)
{
    size_t left = h->mapped_bytes - h->populated_bytes,
           bytes = left < MEMORY_STEP_BYTES ? left : MEMORY_STEP_BYTES;
    if (left == 0 || h->process != getpid()) return false;
    file_populate((uint8_t *)(uintptr_t)h->base + h->populated_bytes, bytes, false);
    h->populated_bytes += bytes;
    return h->populated_bytes < h->mapped_bytes;
}

bool hold_unmap(hold_t *h)
{
    if (h->state != HOLD_NONE || h->process != getpid() || h->mapped_bytes <= MEMORY_STEP_BYTES) return false;
    unmap_from(h, (h->mapped_bytes - 1) / MEMORY_STEP_BYTES * MEMORY_STEP_BYTES);
    return h->mapped_bytes > MEMORY_STEP_BYTES;
}

/* The descriptor is closed while the file is mapped still, which is quick (memory/forks.h). */
void hold_destroy(hold_t **hold)
{
    hold_t *h = hold ? *hold : NULL;
    if (!h) return;
    *hold = NULL;
    hold_release(h);
    while (hold_unmap(h)) {}
    if (h->process == getpid()) {
        forks_close(&h->file);
        if (h->mapped_bytes) file_unmap_last((void *)(uintptr_t)h->base, h->mapped_bytes, h->file_bytes);
    }
    free(h);
}
