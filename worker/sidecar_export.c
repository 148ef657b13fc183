/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/sidecar.h"

#include "core/errors.h"
#include "core/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void export_path(const char *dir, const char *adapter, uint64_t version, char ret_path[4096])
{
    snprintf(ret_path, 4096, "%s/%s@%llu", dir, adapter, (unsigned long long)version);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void remove_tree(const char *path)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        log_emit(LOG_WARN, "export.remove", "cannot remove %s: %s", path, strerror(errno));
}

static int fail_path(heddle_error_t *error, const char *what, const char *path)
{
    int why = errno;
    int rc = error_fail(error, why == ENOSPC || why == EDQUOT ? HEDDLE_ERR_NO_SPACE : HEDDLE_ERR_INTERNAL, "cannot %s %s: %s", what, path, strerror(why));
    error_where(error, NULL, 0, NULL, "export");
    error_hint(error, "--export needs a directory that uid %u may write to", (unsigned)geteuid());
    return rc;
}

/* A name that only a killed run leaves: ".policy@3.tmp-1234" or ".policy.link-1234". */
static bool is_leftover(const char *name) { return name[0] == '.' && (strstr(name, ".tmp-") || strstr(name, ".link-")); }

int export_open(const char *dir, heddle_error_t *error)
{
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) return fail_path(error, "make", dir);
    if (access(dir, W_OK | X_OK) != 0) return fail_path(error, "write to", dir);
    DIR *d = opendir(dir);
    if (!d) return fail_path(error, "open", dir);
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        if (!is_leftover(e->d_name) || snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path) continue;
        remove_tree(path);
    }
    closedir(d);
    return HEDDLE_OK;
}

static bool holds(const char *path, const char *digest)
{
    heddle_adapter_info_t info = {.size = sizeof info};
    return heddle_adapter_check(path, &info) == HEDDLE_OK && !strcmp(info.digest, digest);
}

int export_write(const char *dir, const heddle_snapshot_t *s, heddle_error_t *error)
{
    const heddle_manifest_t *m = heddle_snapshot_manifest(s);
    char path[4096];
    export_path(dir, m->adapter, m->version, path);
    if (access(path, F_OK) == 0) {
        if (holds(path, m->digest)) return HEDDLE_OK;
        remove_tree(path); /* of another registry, or damaged: the name belongs to these bytes */
    }
    int rc = heddle_snapshot_export(s, path);
    if (rc && error) *error = *heddle_last_error();
    return rc;
}

int export_link(const char *dir, const char *adapter, uint64_t version, heddle_error_t *error)
{
    char target[256], temporary[4096], link[4096];
    snprintf(target, sizeof target, "%s@%llu", adapter, (unsigned long long)version);
    snprintf(temporary, sizeof temporary, "%s/.%s.link-%ld", dir, adapter, (long)getpid());
    snprintf(link, sizeof link, "%s/%s", dir, adapter);
    unlink(temporary);
    if (symlink(target, temporary) != 0) return fail_path(error, "make the link", temporary);
    if (rename(temporary, link) != 0) {
        int rc = fail_path(error, "move the link", link);
        unlink(temporary);
        return rc;
    }
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    return HEDDLE_OK;
}

/* "policy@3" -> 3 when it is a directory of this adapter, else 0. */
static uint64_t version_of(const char *name, const char *adapter)
{
    size_t n = strlen(adapter);
    if (strncmp(name, adapter, n) != 0 || name[n] != '@') return 0;
    char *end;
    unsigned long long v = strtoull(name + n + 1, &end, 10);
    return *end ? 0 : v;
}

static uint64_t linked_version(const char *dir, const char *adapter)
{
    char link[4096], target[256];
    snprintf(link, sizeof link, "%s/%s", dir, adapter);
    ssize_t n = readlink(link, target, sizeof target - 1);
    if (n < 0) return 0;
    target[n] = 0;
    return version_of(target, adapter);
}

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

void export_prune(const char *dir, const char *adapter, int64_t keep)
{
    enum { MAX = 4096 };
    uint64_t *old = malloc(MAX * sizeof *old), linked = linked_version(dir, adapter), newest = linked;
    DIR *d = opendir(dir);
    size_t n = 0;
    for (struct dirent *e; old && d && (e = readdir(d)) && n < MAX;) {
        uint64_t v = version_of(e->d_name, adapter);
        if (v && v != linked) old[n++] = v;
    }
    if (d) closedir(d);
    qsort(old, n, sizeof *old, descending);
    for (size_t i = 0; i < n; i++) {
        if (old[i] > newest || keep-- > 0) continue; /* staged, waiting for a decision; or among those to keep */
        char path[4096];
        export_path(dir, adapter, old[i], path);
        remove_tree(path);
    }
    free(old);
}
