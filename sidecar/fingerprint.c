/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing two results of stat(); the header says what for. */
#include "sidecar/fingerprint.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What stat says of one file. A change of content changes its time, size or inode number. */
static bool look_at_file(int dir, const char *name, file_print_t *ret_file)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) return false;
    *ret_file = (file_print_t){(uint64_t)st.st_dev, (uint64_t)st.st_ino, (uint64_t)st.st_size, st.st_ctim,
                               st.st_mtim};
    return true;
}

/* Of the two files that PEFT reads, or of the one of full weights. A file that cannot be looked at makes the
 * fingerprint unusable, so that the directory is read as a whole. */
fingerprint_t fingerprint_take(int root, const char *name)
{
    fingerprint_t now = {0};
    int dir = openat(root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0) return now;
    now.is_there = (look_at_file(dir, "adapter_config.json", &now.config) &&
                    look_at_file(dir, "adapter_model.safetensors", &now.tensors)) ||
                   (faccessat(dir, "adapter_config.json", F_OK, AT_SYMLINK_NOFOLLOW) != 0 &&
                    look_at_file(dir, "model.safetensors", &now.tensors));
    close(dir);
    return now;
}

static bool is_same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool is_same_file(const file_print_t *a, const file_print_t *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           is_same_time(a->changed, b->changed) && is_same_time(a->modified, b->modified);
}

static bool is_same(const fingerprint_t *a, const fingerprint_t *b)
{
    return a->is_there && b->is_there && is_same_file(&a->config, &b->config) &&
           is_same_file(&a->tensors, &b->tensors);
}

/* Two looks, before and after the reading: a file that changed meanwhile is not known to be right. */
void fingerprint_note(noted_t *s, uint64_t version, const char *digest, const fingerprint_t *before,
                      const fingerprint_t *now)
{
    *s = (noted_t){0};
    if (!now->is_there || (before->is_there && !is_same(before, now))) return;
    s->version = version;
    s->look = *now;
    snprintf(s->digest, sizeof s->digest, "%s", digest);
}

bool fingerprint_is_noted(const noted_t *s, uint64_t version, const char *digest, const fingerprint_t *now)
{
    return s->version && s->version == version && !strcmp(s->digest, digest) && is_same(&s->look, now);
}
