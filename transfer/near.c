/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/near.h"

#include "core/digest.h"
#include "core/failpoint.h"
#include "core/limits.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define BOARD_BYTES (((1u + NEAR_PINS) * sizeof(uint64_t) + 4095u) / 4096u * 4096u)

typedef struct {
    uint64_t file, used;
    uint32_t fd;
    const uint8_t *base;
    size_t bytes;
} map_t;
struct near_view {
    uint64_t process;
    map_t board, maps[NEAR_MAPS];
    uint64_t uses; /* of all maps: the one whose `used` is least goes first */
};

/* Where a process number means what it means here, and nobody counts what travels.  Pods of one host may
 * share a network and not the numbers; inodes of namespaces repeat from one boot, or host, to the next.
 * 0: it cannot be told. */
static uint64_t host(void)
{
    struct {
        uint64_t network, processes;
        char boot[40];
    } id = {0};
    struct stat network, processes;
    uint64_t leaf;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, id.boot, sizeof id.boot) : -1;
    if (fd >= 0) close(fd);
    if (got <= 0 || stat("/proc/self/ns/net", &network) < 0 || stat("/proc/self/ns/pid", &processes) < 0)
        return 0;
    id.network = (uint64_t)network.st_ino;
    id.processes = (uint64_t)processes.st_ino;
    digest_leaves(&id, sizeof id, &leaf);
    return leaf;
}

/* ---- ours ---- */

bool near_board_open(near_board_t *b)
{
    *b = (near_board_t){.fd = -1};
    int fd = memfd_create("heddle-board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return false;
    void *words = MAP_FAILED;
    if (fallocate(fd, 0, 0, BOARD_BYTES) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        words = mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED) {
        close(fd);
        return false;
    }
    *b = (near_board_t){fd, words};
    uint64_t proof;
    random_bytes(&proof, sizeof proof);
    atomic_store(&b->words[0], proof | 1);
    return true;
}

void near_board_close(near_board_t *b)
{
    if (!b->words) return;
    munmap((void *)(uintptr_t)b->words, BOARD_BYTES);
    close(b->fd);
    *b = (near_board_t){.fd = -1};
}

near_id_t near_board_id(const near_board_t *b)
{
    if (!b->words) return (near_id_t){0};
    return (near_id_t){host(), (uint64_t)getpid(), (uint64_t)b->fd, atomic_load(&b->words[0])};
}

uint32_t near_pin(near_board_t *b, uint64_t line)
{
    for (uint32_t i = 1; b->words && i <= NEAR_PINS; i++) {
        if (atomic_load(&b->words[i])) continue;
        atomic_store(&b->words[i], line);
        return i;
    }
    return 0;
}

void near_unpin(near_board_t *b, uint32_t pin)
{
    if (pin == 0) return;
    atomic_store(&b->words[pin], 0);
    atomic_thread_fence(memory_order_seq_cst);
}

uint64_t near_file(int fd)
{
    struct stat s;
    return fd >= 0 && fstat(fd, &s) == 0 ? (uint64_t)s.st_ino : 0;
}

/* ---- another's ---- */

/* Where it came from says a descriptor's name; only memfd_create gives this one.  One of huge pages is not
 * on tmpfs: where none is left for a hole in it, reading there is a signal. */
#define OURS "/memfd:heddle-"

/* Opens another's file by a path that the kernel resolves; -1 unless it is a memory file of ours.  What the
 * number of a peer's descriptor names may be anything, and opening a pipe or a device is felt at its other
 * end: so it is looked at first, and what was looked at is what is opened. */
static int open_memory(const char *path)
{
    char again[64], name[sizeof OURS];
    struct stat s;
    struct statfs f;
    int look = open(path, O_PATH | O_CLOEXEC), fd = -1;
    if (look < 0) return -1;
    snprintf(again, sizeof again, "/proc/self/fd/%d", look);
    bool is_file = fstat(look, &s) == 0 && S_ISREG(s.st_mode);
    bool is_memory = is_file && fstatfs(look, &f) == 0 && f.f_type == TMPFS_MAGIC;
    if (is_memory && readlink(again, name, sizeof name) == sizeof name &&
        memcmp(name, OURS, sizeof OURS - 1) == 0)
        fd = open(again, O_RDONLY | O_CLOEXEC);
    close(look);
    return fd;
}

/* Only what can neither shrink under us nor be another file than was meant (file 0: any), nor more than a
 * region. */
static bool is_sound(int fd, uint64_t file, struct stat *ret_stat)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, ret_stat) == 0 && ret_stat->st_size > 0 &&
           (uint64_t)ret_stat->st_size <= LIMIT_REGION_BYTES && (file == 0 || ret_stat->st_ino == file);
}

static bool map_fd(uint64_t process, uint64_t theirs, uint64_t file, map_t *ret_map)
{
    char path[64];
    struct stat s;
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)process,
             (unsigned long long)theirs);
    int fd = open_memory(path);
    if (fd < 0) return false;
    void *base =
        is_sound(fd, file, &s) ? mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (base == MAP_FAILED) return false;
    *ret_map =
        (map_t){.file = (uint64_t)s.st_ino, .fd = (uint32_t)theirs, .base = base, .bytes = (size_t)s.st_size};
    return true;
}

static void unmap(map_t *m)
{
    if (m->base) munmap((void *)(uintptr_t)m->base, m->bytes);
    *m = (map_t){0};
}

static uint64_t word(const near_view_t *v, uint32_t i)
{
    return atomic_load((const _Atomic uint64_t *)(const void *)v->board.base + i);
}

near_view_t *near_view_open(const near_id_t *who)
{
    if (who->host == 0 || who->host != host() || who->proof == 0) return NULL;
    near_view_t *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    v->process = who->process;
    if (!map_fd(who->process, who->board, 0, &v->board) || v->board.bytes != BOARD_BYTES ||
        word(v, 0) != who->proof)
        near_view_close(&v);
    return v;
}

void near_view_close(near_view_t **view)
{
    near_view_t *v = view ? *view : NULL;
    if (!v) return;
    *view = NULL;
    unmap(&v->board);
    for (uint32_t i = 0; i < NEAR_MAPS; i++) unmap(&v->maps[i]);
    free(v);
}

/* The one that was used longest ago; an empty one was never used. */
static map_t *oldest(near_view_t *v)
{
    map_t *m = &v->maps[0];
    for (uint32_t i = 1; i < NEAR_MAPS; i++)
        if (v->maps[i].used < m->used) m = &v->maps[i];
    return m;
}

/* All maps together are no more than the largest region: a source may make files that are large, and empty.
 */
static void make_room(near_view_t *v, size_t bytes)
{
    map_t *last;
    size_t sum;
    do {
        last = NULL, sum = bytes;
        for (map_t *m = v->maps; m < v->maps + NEAR_MAPS; m++) {
            sum += m->bytes;
            if (m->base && (!last || m->used < last->used)) last = m;
        }
        if (last && sum > LIMIT_REGION_BYTES) unmap(last);
    } while (last && sum > LIMIT_REGION_BYTES);
}

/* The region of a loan; NULL when it cannot be mapped. */
static const map_t *find_map(near_view_t *v, const near_loan_t *loan)
{
    map_t *m = NULL, fresh;
    for (uint32_t i = 0; i < NEAR_MAPS && !m; i++)
        if (v->maps[i].base && v->maps[i].file == loan->file && v->maps[i].fd == loan->fd) m = &v->maps[i];
    if (!m) {
        if (loan->file == 0 || !map_fd(v->process, loan->fd, loan->file, &fresh)) return NULL;
        make_room(v, fresh.bytes);
        m = oldest(v);
        unmap(m);
        *m = fresh;
    }
    m->used = ++v->uses;
    return m;
}

/* Where it may be copied from; NULL: nowhere. */
static const uint8_t *find(near_view_t *v, const near_loan_t *loan)
{
    if (FAILPOINT("transfer.near") || loan->pin == 0 || loan->pin > NEAR_PINS) return NULL;
    const map_t *m = find_map(v, loan);
    if (!m || loan->offset > m->bytes || loan->bytes > m->bytes - loan->offset) return NULL;
    return m->base + loan->offset;
}

/* On any thread. */
static void copy(void *self, uint32_t i)
{
    const near_copy_t *c = (near_copy_t *)self + i;
    if (c->leaves) digest_copy(c->into, c->from, c->loan.bytes, c->leaves);
    else memcpy(c->into, c->from, c->loan.bytes);
}

void near_copy(near_view_t *v, near_copy_t *copies, uint32_t count, crew_t *crew)
{
    uint32_t found = 0;
    while (found < count && (copies[found].from = find(v, &copies[found].loan))) found++;
    crew_do(crew, found, copy, copies);
    atomic_thread_fence(memory_order_seq_cst); /* the bytes before the pin */
    for (uint32_t i = 0; i < count; i++) {
        const near_loan_t *loan = &copies[i].loan;
        copies[i].result = i >= found                         ? NEAR_UNREADABLE
                           : word(v, loan->pin) == loan->line ? NEAR_COPIED
                                                              : NEAR_ENDED;
    }
}
