/* SPDX-License-Identifier: Apache-2.0 */
/* Looks around in a directory for the reason why a file is missing, and says it in a hint. */
#include "core/errors.h"
#include "proto/peft_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#define ENTRIES_MAX 4096 /* entries that are searched; a hint is not worth more time */

static bool exists(int dir_fd, const char *name)
{
    struct stat st;
    return fstatat(dir_fd, name, &st, 0) == 0;
}

static bool has_adapter(int dir_fd, const char *sub)
{
    char path[NAME_MAX + sizeof "/" PEFT_MODEL];
    snprintf(path, sizeof path, "%s/" PEFT_MODEL, sub);
    return exists(dir_fd, path);
}

/* The first subdirectory by name that holds an adapter; PEFT saves one that is not named "default" there. */
static bool find_below(int dir_fd, char ret_name[NAME_MAX + 1], int *ret_count)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (!entries) {
        if (fd >= 0) close(fd);
        return false;
    }
    const struct dirent *entry;
    int count = 0;
    for (int i = 0; i < ENTRIES_MAX && (entry = readdir(entries)); i++) {
        if (entry->d_name[0] == '.' || !has_adapter(dir_fd, entry->d_name)) continue;
        if (count++ == 0 || strcmp(entry->d_name, ret_name) < 0) strcpy(ret_name, entry->d_name);
    }
    closedir(entries);
    *ret_count = count;
    return count > 0;
}

int peft_explain_missing(int dir_fd, const char *dir, const char *missing, heddle_error_t *error)
{
    char path[256], below[NAME_MAX + 1] = "", below_path[256];
    int count = 0;
    input_path_shown(dir, missing, path);
    struct stat link;
    bool dangling = fstatat(dir_fd, missing, &link, AT_SYMLINK_NOFOLLOW) == 0;
    int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "there is no %s", path);
    error_contrast(error, PEFT_CONFIG " and " PEFT_MODEL,
                   dangling ? "a symbolic link to nothing" : "no such file");
    if (dangling) {
        error_hint(error, "the file that the link names was removed: fetch or save the adapter again");
    } else if (!strcmp(missing, PEFT_MODEL) && exists(dir_fd, PEFT_PICKLE)) {
        error_found(error, "only " PEFT_PICKLE ", a pickle, which is never read");
        error_hint(error, "save it with model.save_pretrained(DIR, safe_serialization=True)");
    } else if (find_below(dir_fd, below, &count)) {
        input_path_shown(dir, below, below_path);
        error_found(error, count > 1 ? "adapters in %d directories below" : "an adapter one level below",
                    count);
        error_hint(error, "did you mean %s?", below_path);
    } else {
        error_hint(error, "PEFT writes " PEFT_CONFIG
                          " last: is the save over? Is this the directory of the adapter?");
    }
    return rc;
}
