/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/store_files.h"

#include "core/errors.h"
#include "core/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ASIDE_MAX = 1000, ASIDE_BYTES = PATH_MAX + 48 };

/* ---- names ----------------------------------------------------------------------------------- */

static char *path_of(const datadir_t *dir, const char *name)
{
    size_t size = strlen(dir->path) + 1 + strlen(name) + 1;
    char *path = malloc(size);
    if (path) snprintf(path, size, "%s/%s", dir->path, name);
    return path;
}

int store_files_init(store_files_t *f, const datadir_t *dir, heddle_error_t *error)
{
    f->main = path_of(dir, "registry.db");
    f->log = path_of(dir, "registry.db-wal");
    if (f->main && f->log) return HEDDLE_OK;
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "%.300s: no memory to open it", dir->path);
}

void store_files_fini(store_files_t *f)
{
    free(f->main);
    free(f->log);
    *f = (store_files_t){0};
}

/* ---- while it is open ------------------------------------------------------------------------ */

/* Looks twice, because a failed look would make our file count as a foreign one.  0, or the errno. */
static int look(const char *path, struct stat *ret_st)
{
    if (stat(path, ret_st) == 0) return 0;
    return stat(path, ret_st) == 0 ? 0 : errno;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static void note_one(const char *path, struct stat *seen)
{
    struct stat st;
    if (look(path, &st) == 0 && (!seen->st_ino || is_same(seen, &st))) *seen = st;
}

void store_files_note(store_files_t *f)
{
    note_one(f->main, &f->main_seen);
    note_one(f->log, &f->log_seen);
}

/* st_ctim is not compared: a new link or owner does not change the bytes. */
static bool is_unwritten(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

bool store_files_own_main(const store_files_t *f)
{
    struct stat st;
    return look(f->main, &st) == 0 && is_same(&st, &f->main_seen) && is_unwritten(&st, &f->main_seen);
}

static int read_failed(const char *path, int number, heddle_error_t *error)
{
    return datadir_refuse(path, "read it", number ? number : EIO, error);
}

static int refuse_moved(const char *path, const char *hint, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s is no longer the file that was opened", path);
    error_contrast(error, "the registry in its place",
                   "it was removed, moved or replaced under a running broker");
    error_hint(error, "%s", hint);
    return rc;
}

/* A directory that was removed or moved still takes our writes, but no start would find them.  So every
 * commit checks that the files are in their place. */
int store_files_in_place(const store_files_t *f, heddle_error_t *error)
{
    struct stat st;
    int number = look(f->main, &st);
    if (number && number != ENOENT) return read_failed(f->main, number, error);
    if (number || !is_same(&st, &f->main_seen))
        return refuse_moved(
            f->main,
            "put the directory back and start the broker again; what was acknowledged is in the old file",
            error);
    if (!is_unwritten(&st, &f->main_seen)) {
        int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s was written to by another program", f->main);
        error_contrast(error, "a file that only its broker writes",
                       "it was copied over, or changed, under a running broker");
        error_hint(error, "its log is put aside as registry.db-wal.EPOCH; restore a backup with the broker "
                          "stopped: docs/operations.md, Backup and restore");
        return rc;
    }
    number = look(f->log, &st);
    if (number && number != ENOENT) return read_failed(f->log, number, error);
    if (!number && is_same(&st, &f->log_seen)) return HEDDLE_OK;
    return refuse_moved(
        f->log, "start the broker again: it puts what was acknowledged into registry.db as it ends", error);
}

/* The first is named .EPOCH, the next .EPOCH.2: the same epoch may come again after an older registry was
 * put in place. */
static void aside_name(const char *log, uint64_t epoch, int i, char ret_path[ASIDE_BYTES])
{
    int n = snprintf(ret_path, ASIDE_BYTES, "%s.%llu", log, (unsigned long long)epoch);
    if (i > 1) snprintf(ret_path + n, ASIDE_BYTES - (size_t)n, ".%d", i);
}

/* Renames without replacing another file.  A file system without RENAME_NOREPLACE is checked first. */
static int move_aside(const char *log, const char *aside)
{
    bool has_call = !FAILPOINT("store.rename");
    if (has_call && renameat2(AT_FDCWD, log, AT_FDCWD, aside, RENAME_NOREPLACE) == 0) return 0;
    if (has_call && errno != EINVAL && errno != ENOSYS && errno != EPERM) return errno;
    struct stat st;
    if (look(aside, &st) == 0) return EEXIST;
    return errno != ENOENT || rename(log, aside) ? errno : 0;
}

int store_files_part(const store_files_t *f, uint64_t epoch)
{
    struct stat st;
    bool is_there = f->log_seen.st_ino && look(f->log, &st) == 0;
    bool is_foreign = is_there && store_files_own_main(f) != is_same(&st, &f->log_seen);
    char aside[ASIDE_BYTES];
    int number = is_foreign ? EEXIST : 0;
    for (int i = 1; number == EEXIST && i <= ASIDE_MAX; i++) {
        aside_name(f->log, epoch, i, aside);
        number = move_aside(f->log, aside);
    }
    return number;
}

/* ---- the log, before it is opened ------------------------------------------------------------ */

/* https://www.sqlite.org/fileformat2.html, "The Write-Ahead Log": a header, then frames, each a header and a
 * page.  A frame's sum goes on from that of the frame before; the last of a transaction has the size of the
 * database in it. */
enum { MAIN_HEADER = 100, LOG_HEADER = 32, FRAME_HEADER = 24, PAGE_MAX = 65536 };

typedef struct {
    uint32_t a, b;
} sum_t;

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static uint32_t le32(const uint8_t *p)
{
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}
static sum_t sum_at(const uint8_t *p) { return (sum_t){be32(p), be32(p + 4)}; }
static bool sum_equal(sum_t x, sum_t y) { return x.a == y.a && x.b == y.b; }

/* SQLite's checksum of the log: two running sums over pairs of words. */
static sum_t sum_over(sum_t s, const uint8_t *p, size_t bytes, bool is_big)
{
    for (const uint8_t *end = p + bytes; p < end; p += 8) {
        s.a += (is_big ? be32(p) : le32(p)) + s.b;
        s.b += (is_big ? be32(p + 4) : le32(p + 4)) + s.a;
    }
    return s;
}

typedef struct {
    bool is_big;
    bool has_salt;
    uint8_t salt[8];
    sum_t stored, counted; /* of the frame before: as it says, and as it is */
    bool is_broken;        /* something before was not whole */
    bool has_ended;        /* and a transaction ended with the frame before, which belongs to this log */
    size_t page_bytes;
} walk_t;

/* True: this frame is whole, and a transaction that lies behind a damage ended before it.  That
 * transaction was synced before this one began, so no power cut did the damage: acknowledged data would be
 * lost without a word. */
static bool see_frame(walk_t *w, const uint8_t *frame)
{
    if (!w->has_salt) memcpy(w->salt, frame + 8, 8);
    w->has_salt = true;
    bool is_ours = !memcmp(w->salt, frame + 8, 8), had_ended = w->has_ended;
    sum_t said = sum_at(frame + 16);
    sum_t from[2] = {w->stored, w->counted}, found = {0};
    bool is_whole = false;
    for (int i = 0; i < 2 && !is_whole; i++) { /* the damage may be in the sum alone */
        found = sum_over(from[i], frame, 8, w->is_big);
        found = sum_over(found, frame + FRAME_HEADER, w->page_bytes, w->is_big);
        is_whole = is_ours && sum_equal(found, said);
    }
    w->stored = said;
    w->counted = found;
    w->is_broken |= !is_whole;
    w->has_ended = w->is_broken && is_ours && be32(frame + 4);
    return had_ended && is_whole;
}

/* SQLite itself stops reading at the first frame that is not whole, and drops the rest.  So the rest is
 * checked here, before the log is opened. */
static int walk(const char *path, int fd, walk_t *w, uint8_t *frame, heddle_error_t *error)
{
    uint8_t header[LOG_HEADER];
    ssize_t n = pread(fd, header, sizeof header, 0);
    if (n < 0) return read_failed(path, errno, error);
    if (n < LOG_HEADER) return HEDDLE_OK; /* nothing was ever in it */
    w->is_big = be32(header) & 1;
    w->counted = sum_over((sum_t){0}, header, 24, w->is_big);
    w->stored = sum_at(header + 24);
    w->is_broken = !sum_equal(w->counted, w->stored);
    if (w->is_broken) w->is_big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__; /* that of this machine */
    w->has_salt = !w->is_broken;
    memcpy(w->salt, header + 16, 8);
    size_t frame_bytes = FRAME_HEADER + w->page_bytes;
    off_t at = LOG_HEADER;
    for (;; at += (off_t)frame_bytes) {
        n = pread(fd, frame, frame_bytes, at);
        if (n < 0) return read_failed(path, errno, error);
        if ((size_t)n < frame_bytes) return HEDDLE_OK;
        if (see_frame(w, frame)) break;
    }
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR,
                        "%.300s: damaged before byte %llu, and what was acknowledged later is behind it",
                        path, (unsigned long long)at);
    error_contrast(error, "a log that is whole up to where it ends", "whole records behind damaged ones");
    error_hint(error, "nothing was changed: copy the directory away, then restore a backup; "
                      "docs/operations.md, The broker does not start");
    return rc;
}

static int check_log(const char *path, size_t page_bytes, heddle_error_t *error)
{
    walk_t w = {.page_bytes = page_bytes};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? HEDDLE_OK : read_failed(path, errno, error);
    uint8_t *frame = malloc(FRAME_HEADER + page_bytes);
    int rc = frame ? walk(path, fd, &w, frame, error)
                   : error_fail(error, HEDDLE_ERR_NO_MEMORY, "%.300s: no memory to read it", path);
    free(frame);
    close(fd);
    return rc;
}

/* ---- both, before they are opened ------------------------------------------------------------ */

/* *ret_bytes 0: the file is not a registry of Heddle, or it is empty. */
static int read_page_bytes(const char *path, size_t *ret_bytes, heddle_error_t *error)
{
    uint8_t h[MAIN_HEADER];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT) return read_failed(path, errno, error);
    ssize_t n = fd < 0 ? 0 : pread(fd, h, sizeof h, 0);
    int number = errno;
    if (fd >= 0) close(fd);
    if (n < 0) return read_failed(path, number, error);
    bool is_ours =
        n == MAIN_HEADER && !memcmp(h, "SQLite format 3", 16) && be32(h + 68) == STORE_APPLICATION_ID;
    size_t bytes = is_ours ? (size_t)h[16] << 8 | h[17] : 0;
    if (bytes == 1) bytes = PAGE_MAX;
    *ret_bytes = bytes >= 512 && (bytes & (bytes - 1)) == 0 ? bytes : 0;
    return HEDDLE_OK;
}

/* The log of the run that was killed, if it was put aside; `ret_name` "" without one.  The log of another
 * run must not be used, because it would undo later commits. */
static void find_aside(const store_files_t *f, const datadir_t *dir, char *ret_name, size_t size)
{
    struct stat st;
    char path[ASIDE_BYTES];
    *ret_name = 0;
    for (int i = 1; dir->open_epoch && i <= ASIDE_MAX; i++) { /* the last is of the last run */
        aside_name(f->log, dir->open_epoch, i, path);
        if (look(path, &st)) return;
        snprintf(ret_name, size, "%s", strrchr(path, '/') + 1);
    }
}

static int refuse_missing(const store_files_t *f, const char *path, const datadir_t *dir,
                          heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR,
                        "%.300s is not there, or empty, and the broker that had it could not put its "
                        "files in order",
                        path);
    error_contrast(error, "registry.db and registry.db-wal, as that broker left them",
                   "one of the two: what was acknowledged may be in the other");
    char aside[NAME_MAX + 1];
    find_aside(f, dir, aside, sizeof aside);
    if (aside[0])
        error_hint(error,
                   "%.64s is a log that was put aside: rename it to registry.db-wal if its registry.db is in "
                   "place, or restore a backup; to go on with what is there, remove %.150s/lock",
                   aside, dir->path);
    else
        error_hint(error,
                   "put it back, or restore a backup of the directory; to go on with what is there (a look "
                   "with sqlite3 loses nothing), remove %.150s/lock",
                   dir->path);
    return rc;
}

/* The lock says how the previous broker left its files.  What does not fit to that is refused before
 * SQLite opens anything. */
int store_files_check(const store_files_t *f, const datadir_t *dir, heddle_error_t *error)
{
    size_t page_bytes = 0;
    struct stat st;
    if (dir->is_unparted) {
        int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s does not belong to the registry.db beside it",
                            f->log);
        error_contrast(error, "a log that was put aside",
                       "one that the broker before could not put aside, when one of the two had been "
                       "replaced");
        error_hint(error,
                   "is the registry.db of that log back in its place? remove %.120s/lock, and nothing else; "
                   "else restore a backup into an empty directory, or rename the log to registry.db-wal.old "
                   "and remove lock",
                   dir->path);
        return rc;
    }
    int rc = read_page_bytes(f->main, &page_bytes, error);
    if (rc) return rc;
    int number = look(f->main, &st);
    if (number && number != ENOENT) return read_failed(f->main, number, error);
    if (dir->was_open && (number || st.st_size == 0)) return refuse_missing(f, f->main, dir, error);
    number = look(f->log, &st);
    if (number && number != ENOENT) return read_failed(f->log, number, error);
    if (dir->was_open && page_bytes && number) return refuse_missing(f, f->log, dir, error);
    if (dir->was_closed && page_bytes && !number && st.st_size) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR,
                        "%.300s was not there when the registry.db beside it was closed", f->log);
        error_contrast(error,
                       "none, or an empty one: the broker that had this registry.db closed it in order",
                       "a log of another one: was a backup unpacked over the directory?");
        error_hint(error, "move the log away to go on with this registry.db as it was closed; or, if that "
                          "came from a backup, restore it into an empty directory: docs/operations.md, "
                          "Backup and restore");
        return rc;
    }
    return page_bytes ? check_log(f->log, page_bytes, error) : HEDDLE_OK;
}
