/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/near.h"

#include "core/digest.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOARD_BYTES (((1u + NEAR_PINS) * sizeof(uint64_t) + 4095u) / 4096u * 4096u)

typedef struct { uint64_t file; uint32_t fd; const uint8_t *base; size_t bytes; } map_t;
struct near_view {
    uint64_t process;
    dev_t device;              /* where memfds live */
    map_t board, maps[NEAR_MAPS];
    uint32_t next;             /* of maps, to be given up */
};

/* 0: it cannot be told. */
static uint64_t network(void)
{
    struct stat s;
    return stat("/proc/self/ns/net", &s) == 0 ? (uint64_t)s.st_ino : 0;
}

/* ---- ours ---- */

bool near_board_open(near_board_t *b)
{
    *b = (near_board_t){.fd = memfd_create("heddle-board", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    if (b->fd < 0) return false;
    void *words = MAP_FAILED;
    if (fallocate(b->fd, 0, 0, BOARD_BYTES) == 0 &&
        fcntl(b->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        words = mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
    if (words == MAP_FAILED) {
        near_board_close(b);
        return false;
    }
    b->words = words;
    uint64_t proof;
    random_bytes(&proof, sizeof proof);
    atomic_store(&b->words[0], proof | 1);
    return true;
}

void near_board_close(near_board_t *b)
{
    if (b->words) {
        munmap((void *)(uintptr_t)b->words, BOARD_BYTES);
        close(b->fd);
    } else if (b->fd > 0) {
        close(b->fd);
    }
    *b = (near_board_t){0};
}

near_id_t near_board_id(const near_board_t *b)
{
    if (!b->words) return (near_id_t){0};
    return (near_id_t){network(), (uint64_t)getpid(), (uint64_t)b->fd, atomic_load(&b->words[0])};
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

/* Only what can neither shrink under us nor be another file than was meant (file 0: any). */
static bool is_sound(int fd, uint64_t file, struct stat *ret_stat)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, ret_stat) == 0 && ret_stat->st_size > 0 &&
           (file == 0 || ret_stat->st_ino == file);
}

static bool map_fd(uint64_t process, uint64_t theirs, uint64_t file, map_t *ret_map, dev_t *ret_device)
{
    char path[64];
    struct stat s;
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)process,
             (unsigned long long)theirs);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return false;
    void *base = is_sound(fd, file, &s) ? mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0)
                                        : MAP_FAILED;
    close(fd);
    if (base == MAP_FAILED) return false;
    *ret_map = (map_t){(uint64_t)s.st_ino, (uint32_t)theirs, base, (size_t)s.st_size};
    *ret_device = s.st_dev;
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
    if (who->network == 0 || who->network != network() || who->proof == 0) return NULL;
    near_view_t *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    v->process = who->process;
    if (!map_fd(who->process, who->board, 0, &v->board, &v->device) || v->board.bytes != BOARD_BYTES ||
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

/* The region of a loan; NULL when it cannot be mapped. */
static const map_t *find_map(near_view_t *v, const near_loan_t *loan)
{
    for (uint32_t i = 0; i < NEAR_MAPS; i++)
        if (v->maps[i].base && v->maps[i].file == loan->file && v->maps[i].fd == loan->fd) return &v->maps[i];
    map_t *m = &v->maps[v->next++ % NEAR_MAPS], fresh;
    dev_t device;
    if (loan->file == 0 || !map_fd(v->process, loan->fd, loan->file, &fresh, &device)) return NULL;
    unmap(m);
    *m = fresh;
    if (device == v->device) return m;
    unmap(m);
    return NULL;
}

bool near_copy(near_view_t *v, const near_loan_t *loan, void *into)
{
    if (loan->pin == 0 || loan->pin > NEAR_PINS) return false;
    const map_t *m = find_map(v, loan);
    if (!m || loan->offset > m->bytes || loan->bytes > m->bytes - loan->offset) return false;
    memcpy(into, m->base + loan->offset, loan->bytes);
    atomic_thread_fence(memory_order_seq_cst);    /* the bytes before the pin */
    return word(v, loan->pin) == loan->line;
}
