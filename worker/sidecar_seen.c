/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/sidecar_seen.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool look_at_file(int dir, const char *name, seen_file_t *ret_file)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) return false;
    *ret_file = (seen_file_t){(uint64_t)st.st_dev, (uint64_t)st.st_ino, (uint64_t)st.st_size, st.st_ctim, st.st_mtim};
    return true;
}

static bool look(const char *path, seen_t *ret_seen)
{
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0) return false;
    bool is_there = look_at_file(dir, "adapter_config.json", &ret_seen->config) &&
                    look_at_file(dir, "adapter_model.safetensors", &ret_seen->tensors);
    close(dir);
    return is_there;
}

static bool is_same_time(struct timespec a, struct timespec b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

static bool is_same_file(const seen_file_t *a, const seen_file_t *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes && is_same_time(a->changed, b->changed) &&
           is_same_time(a->modified, b->modified);
}

void seen_note(seen_t *s, uint64_t version, const char *path)
{
    seen_t now = {.version = version};
    *s = look(path, &now) ? now : (seen_t){0};
}

bool seen_is_same(const seen_t *s, uint64_t version, const char *path)
{
    seen_t now;
    return s->version && s->version == version && look(path, &now) && is_same_file(&s->config, &now.config) &&
           is_same_file(&s->tensors, &now.tensors);
}
