/* SPDX-License-Identifier: Apache-2.0 */
/* Writing, replacing and removing exported directories, so that a reader of the link finds a whole one at
 * any time. */
#include "sidecar/export.h"

#include "core/errors.h"
#include "core/log.h"
#include "core/names.h"
#include "sidecar/lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <heddle/adapter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

/* Maps errno, which the call before has set. A full disk and missing descriptors have codes of their own,
 * since their remedies differ. */
static int fail(heddle_error_t *error, const char *what, const char *where)
{
    int why = errno, code = HEDDLE_ERR_DATA_DIR;
    bool has_no_space = why == ENOSPC || why == EDQUOT, has_no_files = why == EMFILE || why == ENFILE;
    if (has_no_space) code = HEDDLE_ERR_NO_SPACE;
    if (has_no_files || why == ENOMEM) code = HEDDLE_ERR_NO_MEMORY;
    int rc = error_fail(error, code, "%s %s: %s", what, where, strerror(why));
    error_where(error, NULL, 0, NULL, "export");
    if (has_no_space) error_hint(error, "make room on the disk of the export directory");
    else if (has_no_files) error_hint(error, "raise the limit of open files (ulimit -n)");
    else error_hint(error, "look at that directory and its file system, or name another with --export");
    return rc;
}

/* The name is taken by files that this program did not write. They are reported and left as they are. */
static int fail_taken(heddle_error_t *error, const char *path, const char *expected, const char *found)
{
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%s is in the way: %s", path, found);
    error_where(error, NULL, 0, NULL, "export");
    error_contrast(error, expected, found);
    error_hint(error, "move it away, or name another directory with --export");
    return rc;
}

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)   ? "a directory"
           : S_ISREG(mode) ? "a file"
           : S_ISLNK(mode) ? "a link"
                           : "no directory";
}

/* --- removing --------------------------------------------------------------------------------- */

static bool is_dot(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

/* NULL with errno. A link in place of the directory is not followed: it could lead to files that this program
 * did not write. */
static DIR *open_directory(int parent, const char *name)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir && fd >= 0) close(fd);
    return dir;
}

/* Whether the directory may be removed: it holds files only, and is empty or has a file with one of the names
 * that an export has. An engine may have added files of its own. A directory that cannot be read to its end
 * is kept. False with errno. */
static bool is_export(int parent, const char *name)
{
    DIR *dir = open_directory(parent, name);
    const struct dirent *e;
    bool is_flat = true, is_empty = true, is_ours = false;
    while (dir && is_flat && (errno = 0, e = readdir(dir))) {
        if (is_dot(e->d_name)) continue;
        is_empty = false;
        is_ours = is_ours || !strncmp(e->d_name, "adapter_", 8) || !strcmp(e->d_name, "model.safetensors");
        struct stat st;
        bool is_known = fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0;
        if (is_known) errno = 0;
        is_flat = is_known ? !S_ISDIR(st.st_mode) : errno == ENOENT; /* ENOENT: removed since readdir */
    }
    int why = errno;
    if (dir) closedir(dir);
    errno = why ? why : EEXIST;
    return !why && is_flat && (is_empty || is_ours);
}

/* One level only, since a PEFT directory holds files. A subdirectory stays, and the directory with it.
 * False with errno; *ret_whole: nothing was removed. */
static bool remove_files(int parent, const char *name, bool *ret_whole)
{
    DIR *dir = open_directory(parent, name);
    *ret_whole = true;
    if (!dir) return false;
    for (struct dirent *e; (e = readdir(dir));)
        if (!is_dot(e->d_name) && unlinkat(dirfd(dir), e->d_name, 0) == 0) *ret_whole = false;
    closedir(dir);
    return unlinkat(parent, name, AT_REMOVEDIR) == 0;
}

/* The directory gets a temporary name first, so that a reader sees all of it or none. If it cannot be
 * removed, it gets its name back while it is whole; a partly removed one is cleaned up at the next start.
 * False with errno. */
static bool remove_directory(int parent, const char *name)
{
    char temporary[400];
    struct stat st;
    bool is_whole;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT;
    if (!is_export(parent, name)) return false;
    snprintf(temporary, sizeof temporary, ".%s.tmp-%ld.gone", name, (long)getpid());
    if (renameat(parent, name, parent, temporary) != 0) return false;
    if (remove_files(parent, temporary, &is_whole)) return true;
    int why = errno;
    if (!is_whole || renameat(parent, temporary, parent, name) != 0)
        log_emit(LOG_WARN, "export.remove", "%s is left behind: %s", temporary,
                 strerror(is_whole ? errno : why));
    errno = why;
    return false;
}

/* Removes a directory that is beyond `keep`; a failure is only logged, because no version depends on it. */
static void remove_old(const exports_t *x, const char *name)
{
    if (!remove_directory(x->root, name))
        log_emit(LOG_WARN, "export.remove", "%s/%s stays: %s", x->path, name,
                 errno == EEXIST ? "it holds more than an exported adapter" : strerror(errno));
}

/* ".policy@3.tmp-4711.0", ".policy.link-4711", or "..policy@3.tmp-4711.new.tmp-4711.1", of the adapter
 * `policy`. */
static bool is_temporary(const char *name, const char *adapter)
{
    size_t n = strlen(adapter);
    if (name[0] != '.') return false;
    if (name[1] == '.') name++;
    if (strncmp(name + 1, adapter, n) != 0) return false;
    const char *rest = name + 1 + n;
    if (!strncmp(rest, ".link-", 6)) return rest[6] && !rest[6 + strspn(rest + 6, "0123456789")];
    size_t digits = *rest == '@' ? strspn(rest + 1, "0123456789") : 0;
    return digits > 0 && !strncmp(rest + 1 + digits, ".tmp-", 5);
}

/* --- life ------------------------------------------------------------------------------------- */

/* Opens a directory for writing in it; makes it and its parents where they are missing. */
static int open_root(const char *path, heddle_error_t *error, int *ret_root)
{
    if (strlen(path) >= sizeof((exports_t *)0)->path) {
        errno = ENAMETOOLONG;
        return fail(error, "cannot make", path);
    }
    char part[4096];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = part + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        if (mkdir(part, 0755) != 0 && errno != EEXIST) return fail(error, "cannot make", path);
    }
    if (mkdir(part, 0755) != 0 && errno != EEXIST) return fail(error, "cannot make", path);
    int root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) return fail(error, "cannot open", path);
    if (faccessat(root, ".", W_OK | X_OK, AT_EACCESS) != 0) {
        int rc = fail(error, "cannot write to", path);
        close(root);
        return rc;
    }
    *ret_root = root;
    return HEDDLE_OK;
}

/* The path is made absolute at once, because events and hooks name it, and a hook may run elsewhere. */
int exports_open(exports_t *x, const char *root, uint32_t keep, heddle_error_t *error)
{
    *x = (exports_t){.root = -1, .lock = -1, .keep = keep};
    int rc = open_root(root, error, &x->root);
    char *absolute = rc ? NULL : realpath(root, NULL);
    if (!rc && (!absolute || strlen(absolute) >= sizeof x->path)) {
        rc = fail(error, "cannot tell the whole path of", root);
        exports_close(x);
    }
    if (!rc) snprintf(x->path, sizeof x->path, "%s", absolute);
    free(absolute);
    return rc;
}

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

/* Uses the directory that has the path now, because the old one may have been removed or replaced. A lock
 * that is of the new directory already is kept: closing and reopening the lock file would release it. */
int exports_find(exports_t *x, const char *adapter, heddle_error_t *error)
{
    struct stat mine, now;
    int rc = HEDDLE_OK;
    bool is_same = fstat(x->root, &mine) == 0 && stat(x->path, &now) == 0 && is_same_file(&mine, &now);
    if (!is_same) {
        int root, lock = x->lock;
        rc = open_root(x->path, error, &root);
        if (rc) return rc;
        if (fstat(x->root, &mine) != 0 || fstat(root, &now) != 0) rc = fail(error, "cannot look at", x->path);
        else is_same = is_same_file(&mine, &now); /* only the first look at it had failed */
        if (!rc && !is_same && x->adapters) {
            int is_ours = lock_is_of(root, x->lock);
            if (is_ours < 0) rc = fail(error, "cannot look at the lock in", x->path);
            else if (!is_ours) rc = lock_take(root, x->path, x->adapters, error, &lock);
        }
        if (rc || is_same) {
            close(root);
        } else {
            log_emit(LOG_WARN, "export.root", "%s was removed or replaced: it is used as it is now", x->path);
            if (lock == x->lock) x->lock = -1;
            exports_close(x);
            x->root = root;
            x->lock = lock;
        }
    }
    if (rc) return rc;
    /* If the lock file was removed, another worker may have made a new one and locked it: that worker then
     * has the adapter. Locks on the removed file exclude no process any more, so they are taken anew. */
    int is_ours = x->lock < 0 || !is_same ? 1 : lock_is_of(x->root, x->lock);
    if (is_ours < 0) return fail(error, "cannot look at the lock in", x->path);
    if (!is_ours) {
        int lock = -1;
        rc = lock_take(x->root, x->path, x->adapters, error, &lock);
        if (rc) return rc;
        if (lock >= 0)
            log_emit(LOG_WARN, "export.lock", "%s: the lock file was removed or replaced: it is locked again",
                     x->path);
        lock_drop(x->root, x->lock);
        x->lock = lock;
    }
    return exports_check_link(x, adapter, error);
}

/* With the locks, the temporary files that a killed process left are removed: no other process is writing
 * them, in this container or in another. Without locks that cannot be known, and they stay. */
int exports_lock(exports_t *x, const char *const *adapters, heddle_error_t *error)
{
    int rc = lock_take(x->root, x->path, adapters, error, &x->lock);
    if (rc) return rc;
    x->adapters = adapters;
    for (; x->lock >= 0 && *adapters; adapters++) {
        DIR *dir = open_directory(x->root, ".");
        for (struct dirent *e; dir && (e = readdir(dir));)
            if (is_temporary(e->d_name, *adapters) && unlinkat(x->root, e->d_name, 0) != 0)
                remove_files(x->root, e->d_name, &(bool){false});
        if (dir) closedir(dir);
    }
    return HEDDLE_OK;
}

/* Directories and link stay: they are what the readers go on using. */
void exports_close(exports_t *x)
{
    if (x->root >= 0) {
        lock_drop(x->root, x->lock);
        close(x->root);
    }
    x->root = x->lock = -1;
}

/* --- one version ------------------------------------------------------------------------------ */

static void name_of(const char *adapter, uint64_t version, char ret_name[200])
{
    if (version == 0) snprintf(ret_name, 200, "%s", adapter);
    else snprintf(ret_name, 200, "%s@%llu", adapter, (unsigned long long)version);
}

/* Empty where nothing is exported, so that callers need not ask first. */
void exports_path(const exports_t *x, const char *adapter, uint64_t version, char ret_path[4400])
{
    char name[200];
    name_of(adapter, version, name);
    ret_path[0] = 0;
    if (x->root >= 0) snprintf(ret_path, 4400, "%s/%s", x->path, name);
}

/* A link that leads nowhere has its name all the same, hence no follow. */
bool exports_has(const exports_t *x, const char *adapter, uint64_t version)
{
    char name[200];
    name_of(adapter, version, name);
    return faccessat(x->root, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool has_file(const char *dir, const char *name)
{
    char path[4400 + NAME_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* A failure for want of a descriptor or memory, or a failing disk, says nothing about the content, so it is
 * returned as it is and not as a mismatch. */
int exports_look(const char *path, const char *digest, char ret_found[HEDDLE_DIGEST_TEXT],
                 heddle_error_t *error)
{
    heddle_adapter_info_t info = {.size = sizeof info};
    int rc = heddle_adapter_check(path, &info);
    ret_found[0] = 0;
    if (rc && rc != HEDDLE_ERR_NOT_FOUND && heddle_err_exit(rc) != heddle_err_exit(HEDDLE_ERR_BAD_ADAPTER)) {
        if (error) *error = *heddle_last_error();
        return rc;
    }
    if (!rc) snprintf(ret_found, HEDDLE_DIGEST_TEXT, "%s", info.digest);
    /* Files that are damaged have no digest, and are not missing.  No version has the digest of zeros. */
    else if ((has_file(path, "adapter_config.json") && has_file(path, "adapter_model.safetensors")) ||
             has_file(path, "model.safetensors"))
        digest_text(&(digest_t){0}, ret_found);
    return strcmp(ret_found, digest) ? HEDDLE_ERR_DIGEST_MISMATCH : HEDDLE_OK;
}

/* The whole content; the directory appears under its name at once. */
static int write_new(const heddle_snapshot_t *snapshot, const char *path, heddle_error_t *error)
{
    int rc = heddle_snapshot_export(snapshot, path);
    if (rc && error) *error = *heddle_last_error();
    return rc;
}

/* The new directory is complete beside the old one before the two are exchanged, so that a reader of the
 * link finds a directory at any time. A file system without exchange has a moment between removing and
 * renaming. */
static int replace(exports_t *x, const heddle_snapshot_t *snapshot, const char *path, heddle_error_t *error)
{
    const heddle_manifest_t *m = heddle_snapshot_manifest(snapshot);
    char name[200], fresh[300], fresh_path[4400];
    name_of(m->adapter, m->version, name);
    snprintf(fresh, sizeof fresh, ".%s.tmp-%ld.new", name, (long)getpid());
    if ((size_t)snprintf(fresh_path, sizeof fresh_path, "%s/%s", x->path, fresh) >= sizeof fresh_path) {
        errno = ENAMETOOLONG;
        return fail(error, "cannot replace", path);
    }
    remove_files(x->root, fresh, &(bool){false});
    int rc = write_new(snapshot, fresh_path, error);
    if (rc) return rc;
    /* After the exchange the temporary name is the old directory's, which is removed below. */
    bool is_swapped = syscall(SYS_renameat2, x->root, fresh, x->root, name, RENAME_EXCHANGE) == 0;
    if (!is_swapped && (errno == EINVAL || errno == ENOSYS))
        is_swapped = remove_directory(x->root, name) && renameat(x->root, fresh, x->root, name) == 0;
    if (!is_swapped) rc = fail(error, "cannot replace", path);
    if (!rc && fsync(x->root) != 0) rc = fail(error, "cannot sync", x->path);
    if (faccessat(x->root, fresh, F_OK, AT_SYMLINK_NOFOLLOW) == 0 &&
        !remove_files(x->root, fresh, &(bool){false}))
        log_emit(LOG_WARN, "export.remove", "%s is left behind: %s", fresh, strerror(errno));
    return rc;
}

/* The name may be free, or hold the right directory already, or another export: one of an earlier run or a
 * damaged one, which is replaced. Anything else was not written by this program, and is never touched. */
int exports_write(exports_t *x, const heddle_snapshot_t *snapshot, heddle_error_t *error)
{
    const heddle_manifest_t *m = heddle_snapshot_manifest(snapshot);
    char path[4400], name[200], found[HEDDLE_DIGEST_TEXT];
    struct stat st;
    int rc = exports_find(x, m->adapter, error);
    if (rc) return rc;
    exports_path(x, m->adapter, m->version, path);
    name_of(m->adapter, m->version, name);
    if (fstatat(x->root, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return write_new(snapshot, path, error);
    if (!S_ISDIR(st.st_mode)) return fail_taken(error, path, "a free name", kind_of(st.st_mode));
    rc = exports_look(path, m->digest, found, error);
    if (rc != HEDDLE_ERR_DIGEST_MISMATCH) return rc;
    if (is_export(x->root, name)) return replace(x, snapshot, path, error);
    if (errno != EEXIST) return fail(error, "cannot read", path);
    return fail_taken(error, path, "a free name, or a directory of an earlier run",
                      "a directory with other things in it");
}

/* The link has the adapter's bare name, which may be taken by a file of the user's. */
int exports_check_link(exports_t *x, const char *adapter, heddle_error_t *error)
{
    char path[4400];
    struct stat st;
    exports_path(x, adapter, 0, path);
    if (fstatat(x->root, adapter, &st, AT_SYMLINK_NOFOLLOW) != 0 || S_ISLNK(st.st_mode)) return HEDDLE_OK;
    return fail_taken(error, path, "a free name, or the link to the active version", kind_of(st.st_mode));
}

/* A rename is on the disk only when its directory is: without this a crash could bring the old link back. */
static int sync_root(exports_t *x, heddle_error_t *error)
{
    return fsync(x->root) == 0 ? HEDDLE_OK : fail(error, "cannot sync", x->path);
}

/* A link cannot be changed in place: a new one is made under a temporary name and renamed over the old one,
 * so that the name always leads to a whole directory. */
int exports_link(exports_t *x, const char *adapter, uint64_t version, heddle_error_t *error)
{
    char name[200], temporary[300];
    int rc = exports_check_link(x, adapter, error);
    if (rc) return rc;
    if (version == 0) {
        if (unlinkat(x->root, adapter, 0) != 0 && errno != ENOENT)
            return fail(error, "cannot remove the link", adapter);
        return sync_root(x, error);
    }
    name_of(adapter, version, name);
    /* A link of a process that was killed may have this pid, and with it this name. */
    snprintf(temporary, sizeof temporary, ".%s.link-%ld", adapter, (long)getpid());
    unlinkat(x->root, temporary, 0);
    if (symlinkat(name, x->root, temporary) != 0) return fail(error, "cannot make a link in", x->path);
    if (renameat(x->root, temporary, x->root, adapter) == 0) return sync_root(x, error);
    rc = fail(error, "cannot move the link", adapter);
    unlinkat(x->root, temporary, 0);
    return rc;
}

/* Only ADAPTER@VERSION is the name of an export: ADAPTER@TAG, or another adapter's name, is not. */
static bool is_export_of(const char *adapter, const char *name, ref_t *ret_ref)
{
    return !ref_parse(name, ret_ref, NULL) && ret_ref->version && !ret_ref->head[0] &&
           !strcmp(ret_ref->name, adapter);
}

/* Only a link that this program could have made counts: any other target is reported as none. */
uint64_t exports_linked(const exports_t *x, const char *adapter)
{
    char target[300];
    ref_t ref;
    ssize_t n = readlinkat(x->root, adapter, target, sizeof target - 1);
    if (n < 0) return 0;
    target[n] = 0;
    return is_export_of(adapter, target, &ref) ? ref.version : 0;
}

/* The version that the link names is never removed: a reader may open it at any time. */
void exports_remove(exports_t *x, const char *adapter, uint64_t version)
{
    char name[200];
    name_of(adapter, version, name);
    if (x->root >= 0 && exports_linked(x, adapter) != version) remove_old(x, name);
}

/* --- old ones --------------------------------------------------------------------------------- */

/* In order of versions, not of times: a directory that was written again is not a newer version. */
static int later_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* Keeps the linked version, the `keep` newest beside it, and those that are needed still. The list is taken
 * from the disk and not from memory, because directories of earlier runs are there too. */
void exports_prune(exports_t *x, const char *adapter,
                   bool (*is_needed)(void *self, const char *adapter, uint64_t version), void *self)
{
    uint64_t *versions = NULL;
    size_t count = 0, capacity = 0;
    uint32_t kept = 0;
    if (x->root < 0) return;
    DIR *dir = open_directory(x->root, ".");
    if (dir) {
        for (struct dirent *e; (e = readdir(dir));) {
            ref_t ref;
            if (!is_export_of(adapter, e->d_name, &ref)) continue;
            if (count == capacity) {
                uint64_t *grown =
                    realloc(versions, (capacity = capacity ? capacity * 2 : 16) * sizeof *grown);
                if (!grown) break; /* without memory fewer old ones are noted, and fewer are removed */
                versions = grown;
            }
            versions[count++] = ref.version;
        }
        closedir(dir);
        if (count) qsort(versions, count, sizeof *versions, later_first);
    }
    /* The linked one does not count among those that are kept. */
    uint64_t linked = exports_linked(x, adapter);
    for (size_t i = 0; i < count; i++) {
        char name[200];
        name_of(adapter, versions[i], name);
        bool is_linked = versions[i] == linked;
        if (is_linked || kept++ < x->keep || is_needed(self, adapter, versions[i])) continue;
        remove_old(x, name);
    }
    free(versions);
}
