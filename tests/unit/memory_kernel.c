/* SPDX-License-Identifier: Apache-2.0 */
/* What the room memory/ relies on, of the kernel alone: seals, locks of open file descriptions, mappings. A
 * kernel that does otherwise fails here, and not in a cluster. */
#include "tests/unit/memory_rig.h"

#include <sched.h>

enum { SEALS_AT_FIRST = F_SEAL_SHRINK | F_SEAL_GROW };

static int file;
static uint8_t *base; /* the owner's mapping */

static void set_up(void)
{
    file = file_new("heddle-test");
    cr_assert_geq(file, 0);
    cr_assert_eq(ftruncate(file, RIG_BYTES), 0);
    base = mmap(NULL, RIG_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    cr_assert_neq((void *)base, MAP_FAILED);
    memset(base, 1, RIG_BYTES);
    cr_assert_eq(fcntl(file, F_ADD_SEALS, SEALS_AT_FIRST), 0);
}

TestSuite(memory_kernel, .init = set_up);

static bool is_lockable(int fd, short type)
{
    int rc = file_lock(fd, type);
    cr_assert(rc == 0 || rc == EAGAIN, "%s", strerror(rc));
    if (rc == 0) file_unlock(fd);
    return rc == 0;
}

static bool owner_may_write(void) { return is_lockable(file, F_WRLCK); }

static int reader(void)
{
    int fd = rig_open(file, O_RDONLY);
    cr_assert_geq(fd, 0);
    cr_assert_eq(file_lock(fd, F_RDLCK), 0);
    return fd;
}

static _Noreturn void wait_for_ever(void)
{
    for (;;) pause();
}

/* ---- seals ---- */

Test(memory_kernel, nothing_is_sealed_after_the_seal_of_seals)
{
    cr_assert_eq(fcntl(file, F_ADD_SEALS, F_SEAL_SEAL), 0);
    cr_assert(fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) < 0 && errno == EPERM);
}

Test(memory_kernel, future_writes_are_sealed_under_a_mapping_that_writes)
{
    cr_assert(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EBUSY);
    cr_assert_eq(fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
    base[5] = 9;
    cr_assert_eq(base[5], 9);
}

Test(memory_kernel, after_it_nothing_takes_pages_and_nothing_new_writes)
{
    cr_assert_eq(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0, "before it");
    memset(base, 1, RIG_BYTES);
    size_t bytes = rig_file_bytes(file);
    cr_assert_eq(fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
    cr_assert(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0 && errno == EPERM);
    cr_assert(madvise(base, 4096, MADV_REMOVE) < 0 && errno == EPERM);
    cr_assert(ftruncate(file, 0) < 0 && errno == EPERM);
    cr_assert(pwrite(file, "x", 1, 0) < 0 && errno == EPERM);
    cr_assert(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED && errno == EPERM);
    cr_assert_eq(rig_file_bytes(file), bytes);
    cr_assert(rig_is_whole(base, 1, RIG_BYTES));
}

Test(memory_kernel, after_it_the_old_mapping_is_populated_guarded_and_written)
{
    cr_assert_eq(fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
    cr_assert_eq(fallocate(file, 0, 0, RIG_BYTES), 0);
    file_populate(base, RIG_BYTES, true);
    cr_assert_eq(mprotect(base, RIG_BYTES, PROT_READ), 0);
    cr_assert_eq(mprotect(base, RIG_BYTES, PROT_READ | PROT_WRITE), 0);
    memset(base, 2, RIG_BYTES);
}

Test(memory_kernel, a_mapping_that_reads_does_not_learn_to_write)
{
    cr_assert_eq(fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
    void *view = mmap(NULL, RIG_BYTES, PROT_READ, MAP_SHARED, file, 0);
    cr_assert_neq(view, MAP_FAILED);
    cr_assert(mprotect(view, RIG_BYTES, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
}

/* Why a private mapping is no protection against a rewrite. */
Test(memory_kernel, a_private_mapping_shows_what_is_written_later)
{
    int fd = rig_open(file, O_RDONLY);
    uint8_t *view = mmap(NULL, RIG_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    cr_assert_neq((void *)view, MAP_FAILED);
    view[0] = 7;
    base[0] = base[4096] = 9;
    cr_assert(view[0] == 7 && view[4096] == 9);
}

/* ---- locks ---- */

Test(memory_kernel, a_mapping_keeps_the_lock_of_a_closed_descriptor)
{
    int fd = reader();
    void *view = mmap(NULL, RIG_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    cr_assert_not(owner_may_write());
    munmap(view, RIG_BYTES);
    cr_assert(owner_may_write());
}

Test(memory_kernel, a_forked_child_keeps_a_lock_until_it_is_unlocked)
{
    int fd = reader(), again = reader();
    file_unlock(again);
    pid_t child = fork();
    if (child == 0) wait_for_ever();
    close(fd);
    cr_assert_not(owner_may_write(), "closed, and the child has it");
    rig_reap(child, SIGKILL);
    cr_assert(owner_may_write());
    cr_assert_eq(file_lock(again, F_RDLCK), 0);
    child = fork();
    if (child == 0) wait_for_ever();
    file_unlock(again);
    cr_assert(owner_may_write(), "unlocked, and the child has the descriptor");
    rig_reap(child, SIGKILL);
}

static int unlock(void *fd)
{
    file_unlock(*(int *)fd);
    return 0;
}

Test(memory_kernel, a_forked_childs_unlock_is_its_parents)
{
    int fd = reader();
    cr_assert_not(owner_may_write());
    cr_assert_eq(rig_in_child(unlock, &fd), 0);
    cr_assert(owner_may_write());
}

Test(memory_kernel, a_child_of_a_dead_owner_keeps_the_exclusive_lock)
{
    int pipes[2], fd = rig_open(file, O_RDONLY);
    pid_t grandchild;
    cr_assert_eq(pipe(pipes), 0);
    pid_t owner = fork();
    if (owner == 0) {
        int own = rig_open(file, O_RDWR);
        if (file_lock(own, F_WRLCK)) _exit(1);
        grandchild = fork();
        if (grandchild == 0) wait_for_ever();
        _exit(write(pipes[1], &grandchild, sizeof grandchild) != (ssize_t)sizeof grandchild);
    }
    cr_assert_eq(read(pipes[0], &grandchild, sizeof grandchild), (ssize_t)sizeof grandchild);
    rig_reap(owner, 0);
    cr_assert_eq(file_lock(fd, F_RDLCK), EAGAIN);
    kill(grandchild, SIGKILL);
    uint64_t end_us = clock_now(clock_system()) + RIG_PATIENCE_US;
    while (file_lock(fd, F_RDLCK) && clock_now(clock_system()) < end_us) sched_yield();
    cr_assert_eq(file_lock(fd, F_RDLCK), 0);
}

Test(memory_kernel, a_duplicate_unlocks_the_description)
{
    int copy = dup(file), fd = rig_open(file, O_RDONLY);
    cr_assert_eq(file_lock(file, F_WRLCK), 0);
    cr_assert_eq(file_lock(fd, F_RDLCK), EAGAIN);
    file_unlock(copy);
    cr_assert_eq(file_lock(fd, F_RDLCK), 0);
}

Test(memory_kernel, a_lock_in_flight_is_kept_until_both_ends_are_closed)
{
    int pair[2], fd = reader();
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    cr_assert(rig_send_descriptor(pair[0], fd));
    close(fd);
    cr_assert_not(owner_may_write());
    close(pair[0]);
    cr_assert_not(owner_may_write());
    close(pair[1]);
    cr_assert(owner_may_write());
}

/* Why a receiver has a read-only description. */
Test(memory_kernel, an_exclusive_lock_needs_a_description_that_writes)
{
    int fd = rig_open(file, O_RDONLY), other = rig_open(file, O_RDWR);
    cr_assert_eq(file_lock(fd, F_WRLCK), EBADF);
    cr_assert_eq(file_lock(other, F_WRLCK), 0);
    cr_assert_not(owner_may_write());
}

Test(memory_kernel, a_holder_is_found_in_fdinfo_and_not_by_the_lock)
{
    struct flock lock = {.l_type = F_WRLCK};
    char path[64], text[512] = "";
    int fd = reader();
    cr_assert_eq(fcntl(file, F_OFD_GETLK, &lock), 0);
    cr_assert(lock.l_type == F_RDLCK && lock.l_pid == -1);
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    int info = open(path, O_RDONLY);
    cr_assert_gt(read(info, text, sizeof text - 1), 0);
    cr_assert(strstr(text, "lock:"), "%s", text);
    close(info);
}

Test(memory_kernel, an_exclusive_lock_becomes_a_shared_one)
{
    int fd = rig_open(file, O_RDONLY);
    cr_assert_eq(file_lock(file, F_WRLCK), 0);
    cr_assert_eq(file_lock(fd, F_RDLCK), EAGAIN);
    cr_assert_eq(file_lock(file, F_RDLCK), 0);
    cr_assert_eq(file_lock(fd, F_RDLCK), 0);
    cr_assert_eq(file_lock(file, F_WRLCK), EAGAIN);
}

Test(memory_kernel, a_memory_file_is_never_executable_where_the_kernel_has_that)
{
    int probe = memfd_create("heddle-test", MFD_CLOEXEC | 8u /* MFD_NOEXEC_SEAL */);
    if (probe < 0) cr_skip_test("a kernel before 6.3");
    struct stat s;
    cr_assert_eq(fstat(file, &s), 0);
    cr_assert_eq(s.st_mode & 0111, 0);
    cr_assert(fchmod(file, 0777) < 0 && errno == EPERM);
}

/* A kernel before 5.14 says EINVAL, as every one does for an address within a page. */
Test(memory_kernel, pages_are_touched_one_by_one_where_the_kernel_has_no_call_for_it)
{
    for (int is_to_write = 0; is_to_write <= 1; is_to_write++) {
        int fd = file_new("heddle-test");
        cr_assert_eq(ftruncate(fd, RIG_BYTES), 0);
        uint8_t *at = mmap(NULL, RIG_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        cr_assert_eq(rig_file_bytes(fd), 0);
        file_populate(at + 1, RIG_BYTES - 1, is_to_write);
        cr_assert_eq(rig_file_bytes(fd), RIG_BYTES);
        munmap(at, RIG_BYTES);
        close(fd);
    }
}
