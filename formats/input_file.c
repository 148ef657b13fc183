/* SPDX-License-Identifier: Apache-2.0 */
/* Which writers each file system reports, and the comparison of a file's state at open and at the end. */
#include "formats/input_file.h"

#include "core/errors.h"
#include "core/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#define READ_MAX (1u << 30)        /* for one call: Linux reads at most 2 GiB at once */
#define COMPARED_BYTES (16u << 10) /* compared at a time; the buffer is on the stack */

static const char WAIT_FOR_SAVE[] =
    "publish when the save is over; a trainer should save into a new directory and rename it";

/* The end of a path tells files apart, so that its beginning is what is cut off. */
void input_file_shown(const char *dir, const char *name, char ret_shown[256])
{
    size_t dir_bytes = strlen(dir), room = 255 - sizeof ".../" - strlen(name);
    while (dir_bytes > 1 && dir[dir_bytes - 1] == '/') dir_bytes--;
    size_t cut = dir_bytes > room ? dir_bytes - room : 0;
    while (cut && cut < dir_bytes && ((unsigned char)dir[cut] & 0xc0) == 0x80)
        cut++; /* not inside a UTF-8 sequence */
    char path[256];
    snprintf(path, sizeof path, "%s%.*s/%s", cut ? "..." : "", (int)(dir_bytes - cut), dir + cut, name);
    error_text(ret_shown, 256, path);
}

/* The same of a path whose directory was not opened. */
static void show_path(const char *path, char ret_shown[256])
{
    size_t bytes = strlen(path), cut = bytes > 255 - sizeof "..." ? bytes - (255 - sizeof "...") : 0;
    while (cut && ((unsigned char)path[cut] & 0xc0) == 0x80) cut++;
    char shown[256];
    snprintf(shown, sizeof shown, "%s%s", cut ? "..." : "", path + cut);
    error_text(ret_shown, 256, shown);
}

/* Opening a FIFO or device may block or have effects, so that nothing but regular files is read. */
static int refuse_type(const char *shown, const char *found, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "%s is not a regular file", shown);
    error_contrast(error, "a regular file", found);
    error_hint(error, "give a directory that PEFT's save_pretrained wrote");
    return rc;
}

/* The usual reason is the mode that PEFT saves with, which the hint names. */
static int fail_system(const char *what, const char *shown, int err, heddle_error_t *error)
{
    int rc = error_fail(error, err == ENOMEM ? HEDDLE_ERR_NO_MEMORY : HEDDLE_ERR_INTERNAL, "cannot %s %s: %s",
                        what, shown, strerror(err));
    error_contrast(error, "a file that can be read", strerror(err));
    error_hint(error, err == EACCES || err == EPERM
                          ? "PEFT saves with mode 0600: run as the user who saved it, or chmod it"
                          : "check the file system, then publish again");
    return rc;
}

/* A link that leads nowhere is its own case: its name is there, and a listing of the directory misleads. */
static int fail_open(const input_file_t *f, int err, heddle_error_t *error)
{
    if (err == ENOENT || err == ENOTDIR) {
        struct stat link;
        bool dangling = fstatat(f->dir_fd, f->name, &link, AT_SYMLINK_NOFOLLOW) == 0;
        int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no %s", f->shown);
        error_contrast(error, f->name, dangling ? "a symbolic link to nothing" : "no such file");
        return rc;
    }
    if (err == ENXIO || err == ENODEV) return refuse_type(f->shown, "a socket or device", error);
    if (err == ELOOP) return refuse_type(f->shown, "symbolic links in a circle", error);
    return fail_system("open", f->shown, err, error);
}

/* ---- other processes that have the file ---- */

/* Which writers a file system reports. REPORTS_OPEN: all processes that have the file open, on this host
 * only. REPORTS_MAPPED: also those that mapped it and closed it. REPORTS_WRITES: also those that have
 * finished, because every write moves the times; on tmpfs, a write through a mapping does not. */
enum { REPORTS_OPEN = 1, REPORTS_MAPPED = 2, REPORTS_WRITES = 4 };

/* File systems that are not listed here get the comparison of all bytes, which always works. */
static int reports_of(int fd)
{
    static const struct {
        uint32_t magic;
        int reports;
    } KNOWN[] = {
        {EXT4_SUPER_MAGIC, REPORTS_OPEN | REPORTS_MAPPED | REPORTS_WRITES},
        {XFS_SUPER_MAGIC, REPORTS_OPEN | REPORTS_MAPPED | REPORTS_WRITES},
        {BTRFS_SUPER_MAGIC, REPORTS_OPEN | REPORTS_MAPPED | REPORTS_WRITES},
        {F2FS_SUPER_MAGIC, REPORTS_OPEN | REPORTS_MAPPED | REPORTS_WRITES},
        {TMPFS_MAGIC, REPORTS_OPEN | REPORTS_MAPPED},
        {OVERLAYFS_SUPER_MAGIC, REPORTS_OPEN}, /* a mapping is of the file in the layer below */
    };
    struct statfs fs;
    if (fstatfs(fd, &fs)) return 0;
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (KNOWN[i].magic == (uint32_t)fs.f_type) return KNOWN[i].reports;
    return 0;
}

typedef enum { WRITER_NONE, WRITER_THERE, WRITER_UNKNOWN } writer_t;

/* Asks the kernel by a read lease, which it refuses while a process has the file open or mapped for
 * writing. The lease is dropped at once, so that it delays no other process. If one opens the file in that
 * moment, the kernel sends us a signal: SIGIO by default, which would end the process, so SIGURG is chosen,
 * which is ignored. Network file systems refuse leases for reasons of their own, and so does the kernel for
 * files of other users. */
static writer_t find_writer(const input_file_t *f)
{
    if (!(f->reports & REPORTS_OPEN) || FAILPOINT("peft.lease")) return WRITER_UNKNOWN;
    if (fcntl(f->fd, F_SETSIG, SIGURG)) return WRITER_UNKNOWN;
    if (fcntl(f->fd, F_SETLEASE, F_RDLCK)) return errno == EAGAIN ? WRITER_THERE : WRITER_UNKNOWN;
    (void)fcntl(f->fd, F_SETLEASE, F_UNLCK);
    return f->reports & REPORTS_MAPPED ? WRITER_NONE : WRITER_UNKNOWN;
}

/* The clock of a file system advances in steps of some milliseconds, and a second write within one step
 * leaves the time as it is. So the times of a file that was written just now prove nothing. */
static bool is_past(const struct timespec *at, const struct timespec *now)
{
    if (at->tv_sec < now->tv_sec - 3 || at->tv_sec > now->tv_sec) return at->tv_sec < now->tv_sec;
    int64_t age_ns = (now->tv_sec - at->tv_sec) * 1000000000ll + now->tv_nsec - at->tv_nsec;
    return age_ns > (at->tv_nsec ? 20000000 : 2000000000);
}

/* ---- from open to close ---- */

/* A writer is looked for here and again at the end: only a file that was quiet at both ends is certain to
 * have been quiet between them. */
int input_file_open(int dir_fd, const char *dir, const char *name, input_file_t *ret_file,
                    heddle_error_t *error)
{
    *ret_file = (input_file_t){.fd = -1, .dir_fd = dir_fd, .name = name};
    if (dir) input_file_shown(dir, name, ret_file->shown);
    else show_path(name, ret_file->shown);
    int fd = openat(dir_fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return fail_open(ret_file, errno, error);
    ret_file->fd = fd;
    int rc = HEDDLE_OK;
    if (fstat(fd, &ret_file->opened)) rc = fail_system("stat", ret_file->shown, errno, error);
    mode_t mode = ret_file->opened.st_mode;
    if (!rc && !S_ISREG(mode)) {
        const char *found = S_ISDIR(mode)                    ? "a directory"
                            : S_ISFIFO(mode)                 ? "a FIFO"
                            : S_ISSOCK(mode)                 ? "a socket"
                            : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                                             : "something else";
        rc = refuse_type(ret_file->shown, found, error);
    }
    if (rc) {
        input_file_close(ret_file);
        return rc;
    }
    ret_file->reports = reports_of(fd);
    /* Both times are looked at: a writer that sets the modification time back moves the change time. */
    struct timespec now;
    ret_file->was_quiet = find_writer(ret_file) == WRITER_NONE && !clock_gettime(CLOCK_REALTIME, &now) &&
                          is_past(&ret_file->opened.st_mtim, &now) &&
                          is_past(&ret_file->opened.st_ctim, &now);
    return HEDDLE_OK;
}

/* Short reads and signals are normal on network file systems; an end is not, since the size was known. */
int input_file_read(const input_file_t *f, uint64_t offset, void *to, uint64_t bytes, heddle_error_t *error)
{
    for (uint8_t *at = to; bytes > 0;) {
        ssize_t n = pread(f->fd, at, bytes < READ_MAX ? (size_t)bytes : READ_MAX, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_system("read", f->shown, errno, error);
        if (n == 0) {
            int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER,
                                "%s is shorter than it was: it changed while it was read", f->shown);
            error_expected(error, "%" PRIu64 " bytes", (uint64_t)f->opened.st_size);
            error_found(error, "an end at byte %" PRIu64, offset);
            error_hint(error, "%s", WAIT_FOR_SAVE);
            return rc;
        }
        at += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return HEDDLE_OK;
}

/* Seconds alone would miss a second write within the same second. */
static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* How the file differs from its state at open, or NULL. */
static const char *difference(const input_file_t *f, const struct stat *now, const struct stat *named)
{
    const struct stat *then = &f->opened;
    if (now->st_size != then->st_size) return now->st_size > then->st_size ? "it grew" : "it shrank";
    if (!same_time(now->st_mtim, then->st_mtim)) return "it was written to";
    if (named->st_ino != then->st_ino || named->st_dev != then->st_dev) return "another file took its name";
    if (!same_time(now->st_ctim, then->st_ctim)) return "its name, mode or owner changed";
    return NULL;
}

/* One text for all ways to find a change, so that the hint is the same. */
int input_file_refuse_changed(const input_file_t *f, const char *how, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "%s changed while it was read", f->shown);
    error_contrast(error, "a file that stays as it is", how);
    error_hint(error, "%s", WAIT_FOR_SAVE);
    return rc;
}

/* The lease is tried before the times are read: a writer that closed the file before the lease has moved
 * them. */
int input_file_check_unchanged(const input_file_t *f, bool *ret_sure, heddle_error_t *error)
{
    struct stat now, named;
    writer_t writer = find_writer(f);
    if (fstat(f->fd, &now)) return fail_system("stat", f->shown, errno, error);
    const char *how =
        fstatat(f->dir_fd, f->name, &named, 0) ? "its name is gone" : difference(f, &now, &named);
    if (how) return input_file_refuse_changed(f, how, error);
    if (writer == WRITER_THERE) {
        int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "%s is still open for writing", f->shown);
        error_contrast(error, "a file that no process has open for writing",
                       "a process that has it open for writing, or mapped so");
        error_hint(error, "close it, and unmap a writable mapping of it (np.memmap, mode r+), before it is "
                          "published; fuser -v names the process: maybe a child, forked during the save");
        return rc;
    }
    *ret_sure = f->was_quiet && writer == WRITER_NONE && f->reports & REPORTS_WRITES;
    return HEDDLE_OK;
}

/* The bytes are compared where they are read: a second copy of the tensors would not fit beside the first. */
int input_file_compare(const input_file_t *f, uint64_t offset, const void *with, uint64_t bytes,
                       heddle_error_t *error)
{
    uint8_t piece[COMPARED_BYTES];
    for (const uint8_t *at = with; bytes > 0;) {
        size_t n = bytes < sizeof piece ? (size_t)bytes : sizeof piece;
        int rc = input_file_read(f, offset, piece, n, error);
        if (rc) return rc;
        if (memcmp(piece, at, n) != 0)
            return input_file_refuse_changed(f, "other bytes when it was read again", error);
        at += n;
        offset += n;
        bytes -= n;
    }
    return HEDDLE_OK;
}

void input_file_close(input_file_t *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}
