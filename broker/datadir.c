/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/datadir.h"

#include "core/errors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The error shows uid, owner and mode, because nearly all failures here are wrong rights. */
int datadir_refuse(const char *path, const char *what, int number, heddle_error_t *error)
{
    /* Only a full disk and missing memory can pass by themselves.  Everything else needs an operator. */
    int code = number == ENOSPC || number == EDQUOT ? HEDDLE_ERR_NO_SPACE
               : number == ENOMEM                   ? HEDDLE_ERR_NO_MEMORY
                                                    : HEDDLE_ERR_DATA_DIR;
    int rc = error_fail(error, code, "%.300s: cannot %s: %s", path, what, strerror(number));
    struct stat st;
    if (stat(path, &st) == 0)
        error_found(error, "uid %u; owner %u, mode %04o, %s", (unsigned)geteuid(), (unsigned)st.st_uid,
                    (unsigned)(st.st_mode & 07777), S_ISDIR(st.st_mode) ? "a directory" : "not a directory");
    else error_found(error, "uid %u; %s", (unsigned)geteuid(), strerror(errno));
    error_expected(error, "a directory that uid %u can read and write", (unsigned)geteuid());
    unsigned uid = (unsigned)geteuid();
    switch (number) {
    case ENOSPC:
    case EDQUOT: error_hint(error, "make room on the file system of %.150s; no data were lost", path); break;
    case EACCES:
    case EPERM:
        error_hint(error, "chown %u %.120s, or choose another directory with --data", uid, path);
        break;
    case EROFS: error_hint(error, "mount it writable, or choose another directory with --data"); break;
    case ENOTDIR:
    case EEXIST: error_hint(error, "choose a directory with --data"); break;
    default: error_hint(error, "choose a directory on a healthy local file system with --data");
    }
    return rc;
}

static int make_one(const char *path, heddle_error_t *error)
{
    struct stat st;
    if (stat(path, &st) == 0)
        return S_ISDIR(st.st_mode) ? HEDDLE_OK
                                   : datadir_refuse(path, "use it as a directory", ENOTDIR, error);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return datadir_refuse(path, "make the directory", errno, error);
    /* The entry `path` itself becomes durable by a sync of the directory above it. */
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash) slash[slash == parent] = 0;
    int fd = open(slash ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int number = fd < 0 || (fsync(fd) != 0 && errno != EINVAL) ? errno : 0; /* EINVAL: no sync here */
    if (fd >= 0) close(fd);
    return number ? datadir_refuse(path, "sync the directory above", number, error) : HEDDLE_OK;
}

/* Like mkdir -p, but each new entry is synced: a directory that vanishes in a crash would take the
 * registry with it. */
static int make_all(const char *path, heddle_error_t *error)
{
    char at[PATH_MAX];
    if (!*path || strlen(path) >= sizeof at)
        return datadir_refuse(path, "use the path", *path ? ENAMETOOLONG : ENOENT, error);
    snprintf(at, sizeof at, "%s", path);
    for (char *end = at + strlen(at) - 1; end > at && *end == '/'; end--) *end = 0;
    int rc = HEDDLE_OK;
    for (char *slash = strchr(at + 1, '/'); slash && !rc; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        rc = make_one(at, error);
        *slash = '/';
    }
    return rc ? rc : make_one(at, error);
}

static const char OPEN[] = " open ", CLOSED[] = " closed", UNPARTED[] = " unparted";

typedef struct {
    bool is_open, is_closed, is_unparted;
    uint64_t epoch;
} words_t;

/* The line is "PID\n", with " open EPOCH" or " closed", and " unparted", before its end.  A longer line of
 * before is cut off last: until then its rest stands on a line of its own. */
static int write_lock(const datadir_t *dir, words_t words)
{
    char text[80], open[40] = "";
    if (words.is_open) snprintf(open, sizeof open, "%s%" PRIu64, OPEN, words.epoch);
    int n = snprintf(text, sizeof text, "%ld%s%s%s\n", (long)getpid(), open, words.is_closed ? CLOSED : "",
                     words.is_unparted ? UNPARTED : "");
    errno = 0; /* a short write sets none */
    if (pwrite(dir->lock_fd, text, (size_t)n, 0) != n || ftruncate(dir->lock_fd, n) != 0)
        return errno ? errno : ENOSPC;
    return 0;
}

/* The kernel releases the lock when its process ends, however it ends.  So a lock file that lies there
 * says nothing. */
static int take_lock(datadir_t *dir, heddle_error_t *error)
{
    dir->lock_fd = openat(dir->fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (dir->lock_fd < 0)
        return datadir_refuse(dir->path, "open its file \"lock\" for writing", errno, error);
    char line[80] = "";
    if (flock(dir->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return datadir_refuse(dir->path, "lock it", errno, error);
        /* The pid in the lock helps to find the other broker.  It is unknown only in the moment before that
         * broker wrote it. */
        char owner[32] = "of unknown pid";
        ssize_t n = pread(dir->lock_fd, line, sizeof line - 1, 0);
        long pid = n > 0 ? strtol(line, NULL, 10) : 0;
        if (pid > 0) snprintf(owner, sizeof owner, "with pid %ld", pid);
        int rc = error_fail(error, HEDDLE_ERR_DATA_LOCKED, "%.300s: in use by another broker, %s", dir->path,
                            owner);
        error_expected(error, "one broker a data directory");
        error_found(error, "a broker %s", owner);
        error_hint(error, "end that broker first, or give this one a directory of its own with --data");
        return rc;
    }

    /* What the previous broker wrote last says how it left the files. */
    if (pread(dir->lock_fd, line, sizeof line - 1, 0) < 0)
        return datadir_refuse(dir->path, "read its file \"lock\"", errno, error);
    line[strcspn(line, "\n")] = 0;
    const char *word = strstr(line, OPEN);
    dir->was_open = word;
    dir->open_epoch = word ? strtoull(word + strlen(OPEN), NULL, 10) : 0;
    dir->was_closed = strstr(line, CLOSED);
    dir->is_unparted = strstr(line, UNPARTED);
    int number =
        write_lock(dir, (words_t){dir->was_open, dir->was_closed, dir->is_unparted, dir->open_epoch});
    return number ? datadir_refuse(dir->path, "write its file \"lock\"", number, error) : HEDDLE_OK;
}

/* Words are synced before the files that they describe change. */
static int mark(const datadir_t *dir, words_t words, heddle_error_t *error)
{
    int number = write_lock(dir, words);
    if (!number && fdatasync(dir->lock_fd) != 0 && errno != EINVAL) number = errno;
    return number ? datadir_refuse(dir->path, "write its file \"lock\"", number, error) : HEDDLE_OK;
}

int datadir_mark_open(const datadir_t *dir, uint64_t epoch, heddle_error_t *error)
{
    return mark(dir, (words_t){.is_open = true, .epoch = epoch}, error);
}

int datadir_mark_begun(datadir_t *dir, heddle_error_t *error)
{
    if (!dir->was_closed) return HEDDLE_OK;
    dir->was_closed = false;
    return mark(dir, (words_t){0}, error);
}

int datadir_mark_closed(const datadir_t *dir, heddle_error_t *error)
{
    return mark(dir, (words_t){.is_closed = true}, error);
}

int datadir_mark_unparted(const datadir_t *dir, bool is_open, uint64_t epoch, heddle_error_t *error)
{
    return mark(dir, (words_t){.is_open = is_open, .is_unparted = true, .epoch = epoch}, error);
}

static const char MOVED[] = "moved";

int datadir_mark_moved(const datadir_t *dir, heddle_error_t *error)
{
    int fd = openat(dir->fd, MOVED, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int number = fd < 0 ? errno : 0;
    if (fd >= 0) close(fd);
    return number ? datadir_refuse(dir->path, "make its file \"moved\"", number, error)
                  : datadir_sync(dir, error);
}

int datadir_check_moved(const datadir_t *dir, heddle_error_t *error)
{
    struct stat st;
    bool is_moved = fstatat(dir->fd, MOVED, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!is_moved && errno == ENOENT) return HEDDLE_OK;
    if (!is_moved) return datadir_refuse(dir->path, "look for its file \"moved\"", errno, error);
    int rc =
        error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s: its registry was moved to another store", dir->path);
    error_contrast(error, "the registry that the cluster goes on with",
                   "the mark of heddle registry export --move");
    error_hint(error,
               "start the broker with the store that it was imported into; to go on with this registry, see "
               "that no broker has the other one, and remove %.200s/moved",
               dir->path);
    return rc;
}

int datadir_open(const char *path, datadir_t *ret_dir, heddle_error_t *error)
{
    datadir_t dir = {.fd = -1, .lock_fd = -1};
    int rc = make_all(path, error);
    if (rc) return rc;
    dir.path = realpath(path, NULL);
    if (!dir.path) return datadir_refuse(path, "resolve the path", errno, error);
    dir.fd = open(dir.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir.fd < 0) rc = datadir_refuse(dir.path, "open it", errno, error);
    else rc = take_lock(&dir, error);
    if (rc) datadir_close(&dir);
    else *ret_dir = dir;
    return rc;
}

void datadir_close(datadir_t *dir)
{
    if (!dir->path) return;
    if (dir->lock_fd >= 0) close(dir->lock_fd);
    if (dir->fd >= 0) close(dir->fd);
    free(dir->path);
    *dir = (datadir_t){.fd = -1, .lock_fd = -1};
}

int datadir_sync(const datadir_t *dir, heddle_error_t *error)
{
    if (fsync(dir->fd) == 0 || errno == EINVAL) return HEDDLE_OK;
    return datadir_refuse(dir->path, "sync it", errno, error);
}
