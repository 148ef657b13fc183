/* SPDX-License-Identifier: Apache-2.0 */
/* Record locks on one file: byte 0 orders the arrival and departure of processes, the others stand for
 * adapters. */
#include "sidecar/lock.h"

#include "core/clock.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char NAME[] = ".heddle.lock";

/* The whole wait of a call, and the pause between two tries: a process at byte 0 needs a few system calls
 * only. */
enum { PATIENCE_MS = 100, PAUSE_MS = 5 };

/* POSIX allows both errno values for a lock that another process holds. */
static bool is_held(int number) { return number == EACCES || number == EAGAIN; }

/* One end for all waits of a call, so that many adapters do not add up. */
static uint64_t patience_end(void) { return clock_now(clock_system()) + PATIENCE_MS * 1000ull; }

/* False when the time is over. */
static bool wait_a_moment(uint64_t end_us)
{
    if (clock_now(clock_system()) >= end_us) return false;
    poll(NULL, 0, PAUSE_MS);
    return true;
}

/* Locks byte 0, so that no other process takes or drops locks meanwhile. It polls instead of waiting in the
 * kernel (F_SETLKW): a process that hangs while it holds the byte would make that wait endless. False with
 * errno. */
static bool take_guard(int lock, uint64_t end_us)
{
    const struct flock guard = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    while (fcntl(lock, F_SETLK, &guard) != 0) {
        int why = errno;
        bool may_end = is_held(why) || why == EINTR;
        if (may_end && wait_a_moment(end_us)) continue;
        errno = why;
        return false;
    }
    return true;
}

/* Not retriable: what is wrong with the file stays wrong until an operator acts. */
static int fail(heddle_error_t *error, const char *path)
{
    int why = errno;
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "cannot lock %s/%s: %s", path, NAME, strerror(why));
    error_where(error, NULL, 0, NULL, "export");
    error_hint(error,
               "remove that file where no worker exports there, or name another directory with --export");
    return rc;
}

/* A process that stands still at byte 0 blocks all others; its pid is what an operator needs. */
static int refuse_guard(const char *path, int lock, heddle_error_t *error)
{
    struct flock holder = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    char who[64] = "a process in another container or on another host";
    if (fcntl(lock, F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK && holder.l_pid > 0)
        snprintf(who, sizeof who, "the process with pid %ld", (long)holder.l_pid);
    int rc = error_fail(error, HEDDLE_ERR_DATA_LOCKED, "%s holds the start lock of %s/%s for too long", who,
                        path, NAME);
    error_where(error, NULL, 0, NULL, "export");
    error_expected(error, "workers hold this lock for a moment only");
    error_found(error, "%s", who);
    error_hint(error, "end that process, or name another directory with --export");
    if (error) error->retriable = 1;
    return rc;
}

/* Locks the byte of one adapter. A conflict of two names with one hash would refuse an export that is
 * allowed; with 62 bits of hash that does not happen in practice. */
static int take_one(int lock, const char *path, const char *adapter, uint64_t end_us, heddle_error_t *error)
{
    digest_t d = digest_blake2b(adapter, strlen(adapter));
    uint64_t hash;
    memcpy(&hash, d.b, sizeof hash);
    struct flock want = {.l_whence = SEEK_SET, .l_start = (off_t)(hash >> 2) + 1, .l_len = 1}, holder = want;
    want.l_type = holder.l_type = F_WRLCK;
    while (fcntl(lock, F_SETLK, &want) != 0) {
        if (!is_held(errno)) return fail(error, path);
        if (fcntl(lock, F_GETLK, &holder) != 0) return fail(error, path);
        bool has_ended = holder.l_type == F_UNLCK;
        if (!has_ended || !wait_a_moment(end_us)) {
            /* A process of another container or host has no pid here. */
            long pid = has_ended ? 0 : (long)holder.l_pid;
            char who[64] = "in another container or on another host";
            if (pid > 0) snprintf(who, sizeof who, "with pid %ld", pid);
            int rc = error_fail(error, HEDDLE_ERR_DATA_LOCKED, "%s: another worker exports %s there, %s",
                                path, adapter, who);
            error_where(error, adapter, 0, NULL, "export");
            error_expected(error, "one worker that exports an adapter into a directory");
            error_found(error, "a worker %s", who);
            error_hint(error, "end that worker first, or give this one a directory of its own with --export");
            if (error) error->retriable = 1; /* the other worker may end */
            return rc;
        }
        holder.l_type = F_WRLCK;
    }
    return HEDDLE_OK;
}

/* 1: the lock file of this directory; 0: another file has its name, or none; -1 with errno. */
int lock_is_of(int root, int lock)
{
    struct stat mine, named;
    if (lock < 0) return 0;
    if (fstat(lock, &mine) != 0) return -1;
    if (fstatat(root, NAME, &named, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT ? 0 : -1;
    return mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

/* Opens the lock file and takes byte 0 of it; tries again if the file was removed in between. -1 in
 * *ret_lock: the file system has no locks. Write access is what locking needs, and the mode 0622 denies
 * reading: otherwise any reader of the directory could lock out the workers. O_NONBLOCK keeps a FIFO in
 * place of the file from blocking the open. */
static int enter(int root, const char *path, uint64_t end_us, heddle_error_t *error, int *ret_lock)
{
    const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int tries = 0, rc = HEDDLE_OK;
    do {
        int lock = openat(root, NAME, flags | O_EXCL, 0622);
        bool is_new = lock >= 0;
        if (lock < 0 && errno == EEXIST) lock = openat(root, NAME, flags, 0622);
        if (lock < 0) return fail(error, path);
        if (!take_guard(lock, end_us)) {
            bool has_locks = errno != ENOLCK && errno != EOPNOTSUPP && errno != ENOSYS;
            if (has_locks) rc = is_held(errno) ? refuse_guard(path, lock, error) : fail(error, path);
            close(lock);
            if (has_locks) return rc;
            /* Only a file that was made here is removed: another worker may hold a lock on an older one, and
             * without that file a third worker would get a lock too. */
            if (is_new) unlinkat(root, NAME, 0);
            log_emit(LOG_WARN, "export.lock",
                     "%s: the file system has no locks; see that one worker exports there", path);
            *ret_lock = -1;
            return HEDDLE_OK;
        }
        int is_in = lock_is_of(root, lock);
        if (is_in > 0) {
            *ret_lock = lock;
            return HEDDLE_OK;
        }
        if (is_in < 0) rc = fail(error, path);
        close(lock);
        if (rc) return rc;
        tries++; /* the last process removed the file meanwhile */
    } while (wait_a_moment(end_us));
    /* Either workers come and go at every try, or the file system reports another inode number each time. */
    rc = error_fail(error, HEDDLE_ERR_DATA_LOCKED, "%s: %s was another file at each of %d tries to lock it",
                    path, NAME, tries);
    error_where(error, NULL, 0, NULL, "export");
    error_expected(error, "a file that keeps its inode number while it is open");
    error_found(error, "another number each time, or workers that come and go without a pause");
    error_hint(error, "name a directory with --export on a file system whose inode numbers stay");
    if (error) error->retriable = 1;
    return rc;
}

/* With byte 0 held, so that no process takes a lock on the file while it is removed. Closing releases byte
 * 0. */
static void leave(int root, int lock)
{
    struct flock others = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1};
    if (fcntl(lock, F_GETLK, &others) == 0 && others.l_type == F_UNLCK && lock_is_of(root, lock) == 1)
        unlinkat(root, NAME, 0);
    close(lock);
}

/* All adapters or none: a worker that exports only some of its adapters would serve the others from memory
 * alone, and a reader of the directory could not tell. */
int lock_take(int root, const char *path, const char *const *adapters, heddle_error_t *error, int *ret_lock)
{
    uint64_t end_us = patience_end();
    int lock = -1, rc = enter(root, path, end_us, error, &lock);
    if (rc) return rc;
    for (; lock >= 0 && *adapters && !rc; adapters++) rc = take_one(lock, path, *adapters, end_us, error);
    if (rc) {
        leave(root, lock);
        return rc;
    }
    if (lock >= 0) {
        fcntl(lock, F_SETLK, &(struct flock){.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_len = 1});
    }
    *ret_lock = lock;
    return HEDDLE_OK;
}

void lock_drop(int root, int lock)
{
    if (lock < 0) return;
    if (take_guard(lock, patience_end())) leave(root, lock);
    else close(lock);
}
