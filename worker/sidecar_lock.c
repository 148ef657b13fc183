/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/sidecar_lock.h"

#include "core/digest.h"
#include "core/errors.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char NAME[] = ".heddle.lock";

static struct flock byte_of(const char *adapter)
{
    digest_t d = digest_blake2b(adapter, strlen(adapter));
    uint64_t hash;
    memcpy(&hash, d.b, sizeof hash);
    return (struct flock){.l_whence = SEEK_SET, .l_start = (off_t)(hash >> 2) + 1, .l_len = 1};
}

/* Byte 0: nobody else comes or goes meanwhile. */
static bool move_gate(int lock, short type)
{
    struct flock gate = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
    int rc;
    while ((rc = fcntl(lock, F_SETLKW, &gate)) != 0 && errno == EINTR) continue;
    return rc == 0;
}

static int fail(heddle_error_t *error, const char *path)
{
    int why = errno;
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "cannot lock %s/%s: %s", path, NAME, strerror(why));
    error_where(error, NULL, 0, NULL, "export");
    error_hint(error, "remove that file where no worker exports there, or name another directory with --export");
    return rc;
}

static int refuse(const char *path, const char *adapter, long pid, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_DATA_LOCKED, "%s: another worker exports %s there, with pid %ld", path,
                        adapter, pid);
    error_where(error, adapter, 0, NULL, "export");
    error_expected(error, "one worker that exports an adapter into a directory");
    error_found(error, "a worker with pid %ld", pid);
    error_hint(error, "end that worker first, or give this one a directory of its own with --export");
    return rc;
}

static int take_one(int lock, const char *path, const char *adapter, heddle_error_t *error)
{
    struct flock want = byte_of(adapter), holder = want;
    want.l_type = holder.l_type = F_WRLCK;
    while (fcntl(lock, F_SETLK, &want) != 0) {
        if (errno != EACCES && errno != EAGAIN) return fail(error, path);
        if (fcntl(lock, F_GETLK, &holder) != 0) return fail(error, path);
        if (holder.l_type != F_UNLCK) return refuse(path, adapter, (long)holder.l_pid, error);
        holder.l_type = F_WRLCK;    /* it has just ended */
    }
    return HEDDLE_OK;
}

static bool has_name(int root, int lock)
{
    struct stat mine, named;
    return fstat(lock, &mine) == 0 && fstatat(root, NAME, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

/* Opened, behind the gate, and still the file that has the name.  -1 with errno. */
static int enter(int root)
{
    for (;;) {
        int lock = openat(root, NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (lock < 0) return -1;
        if (!move_gate(lock, F_WRLCK)) {
            int why = errno;
            close(lock);
            errno = why;
            return -1;
        }
        if (has_name(root, lock)) return lock;
        close(lock);    /* the last one who had it removed it: there is another, or none */
    }
}

int export_lock_take(int root, const char *path, const char *const *adapters, heddle_error_t *error, int *ret_lock)
{
    int rc = HEDDLE_OK, lock = enter(root);
    if (lock < 0 && (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS)) {
        unlinkat(root, NAME, 0);
        log_emit(LOG_WARN, "export.lock", "%s: the file system has no locks; see that one worker exports there", path);
        *ret_lock = -1;
        return HEDDLE_OK;
    }
    if (lock < 0) return fail(error, path);
    for (; *adapters && !rc; adapters++) rc = take_one(lock, path, *adapters, error);
    move_gate(lock, F_UNLCK);
    if (rc) export_lock_drop(root, lock);
    else *ret_lock = lock;
    return rc;
}

void export_lock_drop(int root, int lock)
{
    struct flock others = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1};
    if (lock < 0) return;
    if (move_gate(lock, F_WRLCK) && fcntl(lock, F_GETLK, &others) == 0 && others.l_type == F_UNLCK &&
        has_name(root, lock))
        unlinkat(root, NAME, 0);
    close(lock);
}
