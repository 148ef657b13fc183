/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/sidecar_export.h"

#include "core/errors.h"
#include "core/log.h"
#include "core/names.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <heddle/adapter.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(heddle_error_t *error, const char *what, const char *where)
{
    int code = errno == ENOSPC || errno == EDQUOT ? HEDDLE_ERR_NO_SPACE : HEDDLE_ERR_INTERNAL;
    int rc = error_fail(error, code, "%s %s: %s", what, where, strerror(errno));
    error_where(error, NULL, 0, NULL, "export");
    return rc;
}

/* --- removing --------------------------------------------------------------------------------- */

static bool is_dot(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

/* One level: a PEFT directory holds files.  What is not a file stays, and the directory with it. */
static bool remove_files(int parent, const char *name)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0) close(fd);
        return false;
    }
    for (struct dirent *e; (e = readdir(dir));)
        if (!is_dot(e->d_name)) unlinkat(fd, e->d_name, 0);
    closedir(dir);
    return unlinkat(parent, name, AT_REMOVEDIR) == 0;
}

/* Under a temporary name first: a reader sees the whole directory, or none. */
static bool remove_directory(int parent, const char *name)
{
    char temporary[400];
    snprintf(temporary, sizeof temporary, ".%s.tmp-%ld.gone", name, (long)getpid());
    if (renameat(parent, name, parent, temporary) != 0) return errno == ENOENT;
    if (remove_files(parent, temporary)) return true;
    log_emit(LOG_WARN, "export.remove", "%s cannot be removed: %s", temporary, strerror(errno));
    return false;
}

/* ".policy@3.tmp-4711.0", ".policy.link-4711": pid of the process that made it; 0: another name. */
static pid_t maker_of(const char *name)
{
    if (name[0] != '.') return 0;
    const char *at = strstr(name, ".tmp-");
    if (!at) at = strstr(name, ".link-");
    return at ? (pid_t)atol(strchr(at, '-') + 1) : 0;
}

static void clean_up(int root)
{
    int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0) close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        pid_t maker = maker_of(e->d_name);
        bool is_alive = maker > 0 && maker != getpid() && (kill(maker, 0) == 0 || errno == EPERM);
        if (maker <= 0 || is_alive) continue;
        if (unlinkat(root, e->d_name, 0) != 0) remove_files(root, e->d_name);
    }
    closedir(dir);
}

/* --- life ------------------------------------------------------------------------------------- */

static int make_path(const char *path)
{
    char part[4096];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = part + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return -1;
    }
    return mkdir(part, 0777) != 0 && errno != EEXIST ? -1 : 0;
}

int exports_open(exports_t *x, const char *root, uint32_t keep, heddle_error_t *error)
{
    *x = (exports_t){.root = -1, .keep = keep};
    if (strlen(root) >= sizeof x->path || make_path(root) != 0) return fail(error, "cannot make", root);
    x->root = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char *absolute = x->root < 0 ? NULL : realpath(root, NULL);
    if (!absolute || faccessat(x->root, ".", W_OK | X_OK, AT_EACCESS) != 0) {
        free(absolute);
        return fail(error, "cannot write to", root);
    }
    snprintf(x->path, sizeof x->path, "%s", absolute);
    free(absolute);
    clean_up(x->root);
    return HEDDLE_OK;
}

void exports_close(exports_t *x)
{
    if (x->root >= 0) close(x->root);
    x->root = -1;
}

/* --- one version ------------------------------------------------------------------------------ */

static void name_of(const char *adapter, uint64_t version, char ret_name[200])
{
    if (version == 0) snprintf(ret_name, 200, "%s", adapter);
    else snprintf(ret_name, 200, "%s@%llu", adapter, (unsigned long long)version);
}

void exports_path(const exports_t *x, const char *adapter, uint64_t version, char ret_path[4400])
{
    char name[200];
    name_of(adapter, version, name);
    ret_path[0] = 0;
    if (x->root >= 0) snprintf(ret_path, 4400, "%s/%s", x->path, name);
}

bool exports_has(const exports_t *x, const char *adapter, uint64_t version)
{
    char name[200];
    name_of(adapter, version, name);
    return faccessat(x->root, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool is_same(const char *path, const char *digest)
{
    heddle_adapter_info_t info = {.size = sizeof info};
    return heddle_adapter_check(path, &info) == HEDDLE_OK && !strcmp(info.digest, digest);
}

int exports_write(exports_t *x, const heddle_snapshot_t *snapshot, heddle_error_t *error)
{
    const heddle_manifest_t *m = heddle_snapshot_manifest(snapshot);
    char path[4400], name[200];
    exports_path(x, m->adapter, m->version, path);
    name_of(m->adapter, m->version, name);
    if (exports_has(x, m->adapter, m->version)) {    /* of an earlier run */
        if (is_same(path, m->digest)) return HEDDLE_OK;
        if (!remove_directory(x->root, name)) return fail(error, "cannot replace", path);
    }
    int rc = heddle_snapshot_export(snapshot, path);
    if (rc) *error = *heddle_last_error();
    return rc;
}

static int unlink_adapter(exports_t *x, const char *adapter, heddle_error_t *error)
{
    if (unlinkat(x->root, adapter, 0) != 0 && errno != ENOENT)
        return fail(error, "cannot remove the link", adapter);
    return fsync(x->root) == 0 ? HEDDLE_OK : fail(error, "cannot sync", x->path);
}

int exports_link(exports_t *x, const char *adapter, uint64_t version, heddle_error_t *error)
{
    char name[200], temporary[300];
    if (version == 0) return unlink_adapter(x, adapter, error);
    name_of(adapter, version, name);
    snprintf(temporary, sizeof temporary, ".%s.link-%ld", adapter, (long)getpid());
    unlinkat(x->root, temporary, 0);
    if (symlinkat(name, x->root, temporary) != 0) return fail(error, "cannot make a link in", x->path);
    if (renameat(x->root, temporary, x->root, adapter) == 0)
        return fsync(x->root) == 0 ? HEDDLE_OK : fail(error, "cannot sync", x->path);
    int rc = fail(error, "cannot move the link", adapter);
    unlinkat(x->root, temporary, 0);
    return rc;
}

uint64_t exports_linked(const exports_t *x, const char *adapter)
{
    char target[300];
    ref_t ref;
    ssize_t n = readlinkat(x->root, adapter, target, sizeof target - 1);
    if (n < 0) return 0;
    target[n] = 0;
    if (!strchr(target, '@') || ref_parse(target, &ref, NULL) || strcmp(ref.name, adapter) != 0) return 0;
    return ref.version;
}

void exports_remove(exports_t *x, const char *adapter, uint64_t version)
{
    char name[200];
    name_of(adapter, version, name);
    if (x->root >= 0 && exports_linked(x, adapter) != version) remove_directory(x->root, name);
}

/* --- old ones --------------------------------------------------------------------------------- */

typedef struct { uint64_t *versions; size_t count, capacity; } list_t;

static bool add(list_t *l, uint64_t version)
{
    if (l->count == l->capacity) {
        size_t capacity = l->capacity ? l->capacity * 2 : 16;
        uint64_t *grown = realloc(l->versions, capacity * sizeof *grown);
        if (!grown) return false;
        l->versions = grown;
        l->capacity = capacity;
    }
    l->versions[l->count++] = version;
    return true;
}

static int later_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

static void list_versions(const exports_t *x, const char *adapter, list_t *ret_list)
{
    int fd = openat(x->root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0) close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        ref_t ref;
        if (!strchr(e->d_name, '@') || ref_parse(e->d_name, &ref, NULL) || strcmp(ref.name, adapter) != 0)
            continue;
        if (!add(ret_list, ref.version)) break;
    }
    closedir(dir);
    if (ret_list->count) qsort(ret_list->versions, ret_list->count, sizeof *ret_list->versions, later_first);
}

void exports_prune(exports_t *x, const char *adapter,
                   bool (*is_needed)(void *self, const char *adapter, uint64_t version), void *self)
{
    list_t list = {0};
    uint32_t kept = 0;
    if (x->root < 0) return;
    list_versions(x, adapter, &list);
    uint64_t linked = exports_linked(x, adapter);
    for (size_t i = 0; i < list.count; i++) {
        char name[200];
        name_of(adapter, list.versions[i], name);
        bool is_linked = list.versions[i] == linked;
        if (is_linked || kept++ < x->keep || is_needed(self, adapter, list.versions[i])) continue;
        remove_directory(x->root, name);
    }
    free(list.versions);
}
