/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/torture/vfs.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>
#include <utlist.h>

/* What a write or truncation took away, until the next sync of its file. */
typedef struct undo {
    off_t at, size; /* size: of the file before it */
    size_t bytes;
    struct undo *next;
    uint8_t before[];
} undo_t;

typedef struct {
    const char *name; /* in the directory */
    int fd;           /* our own look at the file; -1: never opened */
    undo_t *undo;     /* newest first */
    uint8_t *image;   /* at the moment of death */
    off_t image_bytes;
} disk_file_t;

static struct {
    sqlite3_vfs own;
    const sqlite3_vfs *below;
    sqlite3_io_methods methods[2];
    const sqlite3_io_methods *methods_below[2];
    disk_file_t files[2]; /* the database, its log */
    fault_t fault;
    bool is_armed, is_dead;
    uint64_t count, first, length, failed;
} disk = {.files = {{.name = "registry.db", .fd = -1}, {.name = "registry.db-wal", .fd = -1}}};

/* ---- which file ---- */

static int index_of(const sqlite3_file *f) { return f->pMethods == &disk.methods[1]; }
static const sqlite3_io_methods *below(const sqlite3_file *f) { return disk.methods_below[index_of(f)]; }

/* ---- death ---- */

static void forget_undo(disk_file_t *d)
{
    undo_t *u, *next;
    LL_FOREACH_SAFE(d->undo, u, next) free(u);
    d->undo = NULL;
}

static void keep_undo(disk_file_t *d, off_t at, size_t bytes)
{
    off_t size = lseek(d->fd, 0, SEEK_END);
    size_t there = at < size ? (size_t)(size - at) : 0;
    if (there > bytes) there = bytes;
    undo_t *u = malloc(sizeof *u + there);
    *u = (undo_t){.at = at, .size = size, .bytes = there};
    cr_assert_eq(pread(d->fd, u->before, there, at), (ssize_t)there);
    LL_PREPEND(d->undo, u);
}

static void take_image(disk_file_t *d, bool loses_unsynced)
{
    off_t size = d->fd < 0 ? -1 : lseek(d->fd, 0, SEEK_END), room = size;
    undo_t *u;
    LL_FOREACH(d->undo, u)
    if (u->size > room) room = u->size;
    free(d->image);
    d->image = NULL;
    d->image_bytes = size;
    if (size < 0) return;
    d->image = calloc(1, (size_t)room + 1);
    cr_assert_eq(pread(d->fd, d->image, (size_t)size, 0), (ssize_t)size);
    if (!loses_unsynced) return;
    LL_FOREACH(d->undo, u)
    {
        memcpy(d->image + u->at, u->before, u->bytes);
        d->image_bytes = u->size;
    }
}

static void die(void)
{
    disk.is_dead = true;
    for (int i = 0; i < 2; i++) take_image(&disk.files[i], disk.fault == FAULT_POWER);
}

void vfs_image(const char *to_dir)
{
    for (int i = 0; i < 2; i++) {
        char path[256];
        const disk_file_t *d = &disk.files[i];
        if (d->image_bytes < 0 || !d->image) continue;
        snprintf(path, sizeof path, "%s/%s", to_dir, d->name);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        cr_assert_eq(write(fd, d->image, (size_t)d->image_bytes), (ssize_t)d->image_bytes);
        close(fd);
    }
}

/* ---- when ---- */

static bool is_deadly(void) { return disk.fault == FAULT_POWER || disk.fault == FAULT_KILL; }

static bool fails(fault_t call)
{
    if (!disk.is_armed) return false;
    if (disk.is_dead) return true;
    bool is_change = call == FAULT_FULL || call == FAULT_SYNC || call == FAULT_TRUNCATE;
    bool counts =
        is_deadly() ? is_change : disk.fault == call || (disk.fault == FAULT_TORN && call == FAULT_FULL);
    if (!counts) return false;
    disk.count++;
    if (!disk.first || disk.count < disk.first || disk.count >= disk.first + disk.length) return false;
    if (is_deadly()) die();
    return ++disk.failed > 0; /* counted where it is told: a run asks */
}

/* ---- calls ---- */

static int on_write(sqlite3_file *f, const void *data, int bytes, sqlite3_int64 at)
{
    disk_file_t *d = &disk.files[index_of(f)];
    bool bad = fails(FAULT_FULL);
    if (bad && disk.fault == FAULT_FULL) return errno = ENOSPC, SQLITE_FULL;
    if (bad && disk.is_dead) return errno = EIO, SQLITE_IOERR_WRITE;
    keep_undo(d, at, (size_t)bytes);
    int code = below(f)->xWrite(f, data, bad ? bytes / 2 : bytes, at);
    return bad ? (errno = EIO, SQLITE_IOERR_WRITE) : code;
}

static int on_sync(sqlite3_file *f, int flags)
{
    if (fails(FAULT_SYNC)) return errno = EIO, SQLITE_IOERR_FSYNC;
    int code = below(f)->xSync(f, flags);
    if (!code) forget_undo(&disk.files[index_of(f)]);
    return code;
}

static int on_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    disk_file_t *d = &disk.files[index_of(f)];
    if (fails(FAULT_TRUNCATE)) return errno = EIO, SQLITE_IOERR_TRUNCATE;
    off_t now = lseek(d->fd, 0, SEEK_END);
    if (now > size) keep_undo(d, size, (size_t)(now - size));
    return below(f)->xTruncate(f, size);
}

static int on_read(sqlite3_file *f, void *data, int bytes, sqlite3_int64 at)
{
    return fails(FAULT_READ) ? (errno = EIO, SQLITE_IOERR_READ) : below(f)->xRead(f, data, bytes, at);
}

static int on_close(sqlite3_file *f)
{
    disk_file_t *d = &disk.files[index_of(f)];
    const sqlite3_io_methods *io = below(f);
    if (d->fd >= 0) close(d->fd);
    d->fd = -1;
    forget_undo(d);
    return io->xClose(f);
}

static void look_at(sqlite3_file *f, int i, const char *name)
{
    disk_file_t *d = &disk.files[i];
    disk.methods_below[i] = f->pMethods;
    disk.methods[i] = *f->pMethods;
    disk.methods[i].xWrite = on_write;
    disk.methods[i].xSync = on_sync;
    disk.methods[i].xTruncate = on_truncate;
    disk.methods[i].xRead = on_read;
    disk.methods[i].xClose = on_close;
    f->pMethods = &disk.methods[i];
    d->fd = open(name, O_RDONLY | O_CLOEXEC);
    cr_assert(d->fd >= 0);
}

static int on_open(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *f, int flags, int *ret_flags)
{
    if (fails(FAULT_OPEN)) {
        f->pMethods = NULL;
        return errno = EIO, SQLITE_CANTOPEN;
    }
    int code = disk.below->xOpen(vfs, name, f, flags, ret_flags);
    if (code) return code;
    if (flags & SQLITE_OPEN_WAL) look_at(f, 1, name);
    else if (flags & SQLITE_OPEN_MAIN_DB) look_at(f, 0, name);
    return SQLITE_OK;
}

/* ---- from outside ---- */

void vfs_install(void)
{
    cr_assert_eq(sqlite3_initialize(), SQLITE_OK);
    disk.below = sqlite3_vfs_find(NULL);
    disk.own = *disk.below;
    disk.own.zName = "torture";
    disk.own.pNext = NULL;
    disk.own.xOpen = on_open;
    cr_assert_eq(sqlite3_vfs_register(&disk.own, 1), SQLITE_OK);
}

void vfs_arm(fault_t fault, uint64_t first, uint64_t length)
{
    disk.is_armed = true;
    disk.is_dead = false;
    disk.fault = fault;
    disk.first = first;
    disk.length = length;
    disk.count = disk.failed = 0;
}

uint64_t vfs_disarm(void)
{
    disk.is_armed = disk.is_dead = false;
    for (int i = 0; i < 2; i++) {
        free(disk.files[i].image);
        disk.files[i].image = NULL;
    }
    return disk.count;
}

uint64_t vfs_failed(void) { return disk.failed; }
bool vfs_is_dead(void) { return disk.is_dead; }
