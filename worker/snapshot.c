/* SPDX-License-Identifier: Apache-2.0 */
/* What a hold on a version offers: its table, its bytes, its digest, its memory for another process, and a
 * PEFT directory made of it. */
#include "core/errors.h"
#include "core/sized.h"
#include "formats/peft.h"
#include "memory/file.h"
#include "memory/hold.h"
#include "worker/hashing.h"
#include "worker/slots.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

void heddle_snapshot_release(heddle_snapshot_t **snapshot) { slot_release(snapshot); }
const heddle_manifest_t *heddle_snapshot_manifest(const heddle_snapshot_t *s) { return &s->view; }

/* Names and extents were made when the slot was sealed, and nothing changes them: any thread may ask. */
int heddle_snapshot_tensor(const heddle_snapshot_t *s, uint32_t index, heddle_tensor_t *ret_tensor)
{
    heddle_error_t error;
    if (index >= s->parts[0].manifest.tensor_count) {
        error_fail(&error, HEDDLE_ERR_USAGE, "there is no tensor %u in %s", index, s->tag);
        error_expected(&error, "0 to %u", s->parts[0].manifest.tensor_count - 1);
        return error_publish(&error);
    }
    manifest_row_t row;
    manifest_row(&s->parts[0].manifest, index, &row);
    heddle_tensor_t tensor = {.size = sizeof tensor,
                              .name = s->names + s->name_starts[index],
                              .dtype = row.dtype,
                              .memory = HEDDLE_MEMORY_HOST,
                              .ndim = row.ndim,
                              .dims = s->dims + s->parts[0].manifest.dim_starts[index],
                              .data_bytes = row.bytes,
                              .data = (const uint8_t *)s->parts[0].region->view + row.offset};
    sized_give(ret_tensor, &tensor, sizeof tensor);
    return HEDDLE_OK;
}

void heddle_snapshot_table_digest(const heddle_snapshot_t *s, uint8_t ret_digest[32])
{
    digest_t d = manifest_table_digest(&s->parts[0].manifest);
    memcpy(ret_digest, d.b, sizeof d.b);
}

/* In a forked child to read the bytes is SIGSEGV (memory/forks.h). */
static int check_process(const heddle_snapshot_t *s, heddle_error_t *error)
{
    if (slot_is_of_this_process(s)) return HEDDLE_OK;
    return error_fail(error, HEDDLE_ERR_USAGE, "the memory of %s is not in a forked child", s->tag);
}

/* Hashes the bytes as they are now, and does not return the digest that was stored: it is what finds memory
 * that went bad. */
int heddle_snapshot_digest(const heddle_snapshot_t *s, char ret_digest[HEDDLE_DIGEST_TEXT])
{
    digest_t found;
    hashing_job_t job;
    heddle_error_t error;
    if (check_process(s, &error)) return error_publish(&error);
    hashing_t *hashing = hashing_new();
    hashing_begin(&job, &s->parts[0].manifest, s->parts[0].region->view);
    while (!hashing_work(hashing, &job, &found)) {}
    hashing_destroy(&hashing);
    digest_text(&found, ret_digest);
    return HEDDLE_OK;
}

/* The descriptor is in no list of memory/forks.h from here on: it is the caller's, as any other file. */
static int open_file(const heddle_snapshot_t *s, heddle_shared_t *shared, heddle_error_t *error)
{
    header_t header;
    size_t capacity;
    if (!s->parts[0].file.id.generation)
        return error_fail(error, HEDDLE_ERR_INTERNAL, "the memory of %s cannot be given to another process",
                          s->tag);
    if (!forks_stop())
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to open the memory of %s again", s->tag);
    int rc = hold_open(s->parts[0].file.fd, &s->parts[0].file.id, &shared->fd, error);
    forks_go();
    if (rc == HEDDLE_ERR_NO_MEMORY) error_hint(error, "close descriptors, or raise their limit (ulimit -n)");
    if (rc) return rc;
    (void)file_header(shared->fd, &header, &capacity); /* as hold_open has just read it */
    shared->mark_offset = capacity;
    memcpy(shared->mark, &header, sizeof header);
    return HEDDLE_OK;
}

/* The lock is taken here, while the snapshot holds the region: there is no moment at which its owner could
 * write. */
int heddle_snapshot_fd(const heddle_snapshot_t *s, heddle_shared_t *ret_shared)
{
    _Static_assert(sizeof(header_t) == HEDDLE_MARK_BYTES, "a mark is the header of its region");
    heddle_error_t error;
    heddle_shared_t shared = {.size = sizeof shared,
                              .fd = -1,
                              .base = s->parts[0].region->view,
                              .bytes = s->parts[0].manifest.payload_bytes};
    int rc = check_process(s, &error);
    if (!rc) rc = open_file(s, &shared, &error);
    if (rc) {
        error_where(&error, s->view.adapter, s->view.version, NULL, NULL);
        return error_publish(&error);
    }
    sized_give(ret_shared, &shared, sizeof shared);
    return HEDDLE_OK;
}

/* --- export: a directory beside its final place, synced, then renamed ------------------------- */

typedef struct {
    int parent, dir; /* descriptors; -1: none */
    char name[256], temporary[300];
} export_t;

/* A full disk has a code of its own: its remedy is another one than that of a wrong path. */
static int fail_errno(heddle_error_t *error, const char *what, const char *where)
{
    int why = errno;
    bool is_full = why == ENOSPC || why == EDQUOT, is_denied = why == EACCES || why == EPERM || why == EROFS;
    int rc = error_fail(error, is_full ? HEDDLE_ERR_NO_SPACE : HEDDLE_ERR_INTERNAL, "%s %s: %s", what, where,
                        strerror(why));
    if (is_full) error_hint(error, "make room on that disk, or name another path");
    else if (is_denied) error_hint(error, "see that uid %u may write there, or name another path", geteuid());
    else error_hint(error, "look at that directory and its file system, or name another path");
    return rc;
}

/* "a/b/c/" -> "a/b" and "c". */
static int split_path(const char *dir, char parent[PATH_MAX], char name[256], heddle_error_t *error)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    size_t at = n;
    while (at > 0 && dir[at - 1] != '/') at--;
    bool fits = n > at && n - at < 200 && at < PATH_MAX - 2;
    if (!fits || (dir[at] == '.' && (n - at == 1 || (n - at == 2 && dir[at + 1] == '.'))))
        return error_fail(error, HEDDLE_ERR_USAGE, "\"%.300s\" is not a name for a directory to be made",
                          dir);
    memcpy(name, dir + at, n - at);
    name[n - at] = 0;
    memcpy(parent, at ? dir : ".", at ? at : 1);
    parent[at ? at : 1] = 0;
    return HEDDLE_OK;
}

/* An export never replaces data: it stops where a directory has content, or something else has the name. */
static int fail_occupied(heddle_error_t *error, const export_t *e, const char *dir)
{
    struct stat st = {.st_mode = S_IFDIR};
    fstatat(e->parent, e->name, &st, AT_SYMLINK_NOFOLLOW);
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "cannot export to %.300s: it is there already", dir);
    error_contrast(error, "a path that does not exist, or an empty directory",
                   S_ISDIR(st.st_mode)   ? "a directory that is not empty"
                   : S_ISLNK(st.st_mode) ? "a symbolic link"
                                         : "a file");
    error_where(error, NULL, 0, NULL, "export");
    error_hint(error, "move it away, or name another path");
    return rc;
}

/* Nothing, or an empty directory, which the new one replaces. */
static bool is_free(int parent, const char *name)
{
    if (faccessat(parent, name, F_OK, AT_SYMLINK_NOFOLLOW) != 0) return true;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir && fd >= 0) close(fd);
    int entries = 0;
    while (dir && readdir(dir)) entries++; /* "." and ".." are two */
    if (dir) closedir(dir);
    return dir && entries <= 2;
}

/* Opens the parent. */
static int find_place(export_t *e, const char *dir, heddle_error_t *error)
{
    char parent[PATH_MAX];
    int rc = split_path(dir, parent, e->name, error);
    if (rc) return rc;
    e->parent = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (e->parent < 0) {
        rc = fail_errno(error, "cannot open", parent);
        error_hint(error, "make that directory first, or name another path");
        return rc;
    }
    return is_free(e->parent, e->name) ? HEDDLE_OK : fail_occupied(error, e, dir);
}

/* The new directory is written under another name beside its place, so that a reader never sees half of
 * it. */
static int begin(export_t *e, const char *dir, heddle_error_t *error)
{
    static atomic_uint count;
    int rc = find_place(e, dir, error);
    if (rc) return rc;
    snprintf(e->temporary, sizeof e->temporary, ".%s.tmp-%ld.%u", e->name, (long)getpid(),
             atomic_fetch_add(&count, 1));
    if (mkdirat(e->parent, e->temporary, 0755) != 0) {
        e->temporary[0] = 0; /* not ours to remove */
        return fail_errno(error, "cannot make a directory beside", dir);
    }
    e->dir = openat(e->parent, e->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (e->dir < 0) return fail_errno(error, "cannot open the new directory beside", dir);
    return HEDDLE_OK;
}

/* rename replaces an empty directory, and nothing else. */
static int finish(export_t *e, const char *dir, heddle_error_t *error)
{
    struct stat replaced; /* an empty one: what it grants stays */
    bool replaces = !fstatat(e->parent, e->name, &replaced, AT_SYMLINK_NOFOLLOW);
    if (replaces && fchmod(e->dir, replaced.st_mode & 07777))
        return fail_errno(error, "cannot set the mode of", dir);
    if (fsync(e->dir) != 0) return fail_errno(error, "cannot sync", dir);
    if (renameat(e->parent, e->temporary, e->parent, e->name) != 0) {
        bool is_occupied = errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR;
        return is_occupied ? fail_occupied(error, e, dir) : fail_errno(error, "cannot rename to", dir);
    }
    e->temporary[0] = 0;
    return fsync(e->parent) != 0 ? fail_errno(error, "cannot sync the parent of", dir) : HEDDLE_OK;
}

/* Removes only what this export made, and only while it still has its temporary name. */
static void clean_up(export_t *e)
{
    if (e->temporary[0] && e->dir >= 0) {
        unlinkat(e->dir, KIND_LORA.config_file, 0);
        unlinkat(e->dir, KIND_LORA.model_file, 0);
        unlinkat(e->dir, KIND_TENSORS.model_file, 0);
    }
    if (e->temporary[0] && e->parent >= 0) unlinkat(e->parent, e->temporary, AT_REMOVEDIR);
    if (e->dir >= 0) close(e->dir);
    if (e->parent >= 0) close(e->parent);
}

/* The same checks as those of an export, without writing: a fetch asks before it starts. */
int snapshot_check_place(const char *dir, heddle_error_t *error)
{
    export_t e = {.parent = -1, .dir = -1};
    int rc = find_place(&e, dir, error);
    if (!rc && faccessat(e.parent, ".", W_OK | X_OK, AT_EACCESS) != 0)
        rc = fail_errno(error, "cannot write beside", dir);
    clean_up(&e);
    if (rc) error_where(error, NULL, 0, NULL, "export");
    return rc;
}

/* The files are written beside their place and renamed at the end: a reader finds a whole directory or
 * none. */
int heddle_snapshot_export(const heddle_snapshot_t *s, const char *dir)
{
    heddle_error_t error;
    export_t e = {.parent = -1, .dir = -1};
    int rc = check_process(s, &error);
    if (!rc) rc = begin(&e, dir, &error);
    if (!rc) rc = peft_write(e.dir, &s->parts[0].manifest, s->parts[0].region->view, &error);
    if (!rc) rc = finish(&e, dir, &error);
    clean_up(&e);
    if (!rc) return HEDDLE_OK;
    error_where(&error, s->view.adapter, s->view.version, NULL, "export");
    return error_publish(&error);
}
