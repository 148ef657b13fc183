/* SPDX-License-Identifier: Apache-2.0 */
/* The key ring of a user: where it is, and the key pairs in it. */
#include "wire/keys_part.h"

#include "core/errors.h"
#include "core/others.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The base of the default ring, and the path below it, as the XDG directory specification has them. */
static int find_home(char buffer[KEYRING_PATH], const char **ret_base, const char **ret_below)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (!home || !*home) {
        /* Daemons are often started without HOME; the password file has it too. */
        struct passwd entry, *found = NULL;
        home =
            getpwuid_r(geteuid(), &entry, buffer, KEYRING_PATH, &found) == 0 && found ? found->pw_dir : NULL;
    }
    bool has_config = config && *config == '/'; /* the specification says to ignore a relative path */
    *ret_base = has_config ? config : home;
    *ret_below = has_config ? "heddle/keys" : ".config/heddle/keys";
    return *ret_base && **ret_base == '/' ? HEDDLE_OK : HEDDLE_ERR_USAGE;
}

int keyring_find(const char *given, keyring_t *ret_ring, bool *ret_chosen, heddle_error_t *error)
{
    const char *set = given && *given ? given : getenv("HEDDLE_KEYS"), *below = NULL;
    char buffer[KEYRING_PATH];
    bool is_chosen = set && *set;
    if (ret_chosen) *ret_chosen = is_chosen;
    int n = -1;
    if (is_chosen) n = snprintf(ret_ring->dir, sizeof ret_ring->dir, "%s", set);
    else if (find_home(buffer, &set, &below) == HEDDLE_OK)
        n = snprintf(ret_ring->dir, sizeof ret_ring->dir, "%s/%s", set, below);
    if (n > 0 && (size_t)n < sizeof ret_ring->dir - 16) return HEDDLE_OK;
    ret_ring->dir[0] = 0;
    int rc = error_fail(
        error, HEDDLE_ERR_USAGE,
        "no place for keys: neither HEDDLE_KEYS nor XDG_CONFIG_HOME nor HOME is a usable path");
    error_hint(error, "name a directory of your own with HEDDLE_KEYS");
    return rc;
}

/* The directory and its missing parents, each 0700: they are to hold secrets. */
static int make_ring(const keyring_t *r, int *ret_number, heddle_error_t *error)
{
    char path[KEYRING_DIR];
    snprintf(path, sizeof path, "%s", r->dir);
    for (char *at = path + 1;; at++) {
        bool is_end = !*at;
        if (*at != '/' && !is_end) continue;
        *at = 0;
        if (mkdir(path, 0700) && errno != EEXIST) {
            *ret_number = errno;
            int rc = key_file_fail(path, "cannot be made for keys", errno, error);
            if (rc == HEDDLE_ERR_DATA_DIR)
                error_hint(error, "name a directory that uid %u may make: HEDDLE_KEYS",
                           (unsigned)geteuid());
            return rc;
        }
        if (is_end) return HEDDLE_OK;
        *at = '/';
    }
}

int keyring_make(const keyring_t *r, heddle_error_t *error)
{
    int number;
    return make_ring(r, &number, error);
}

int keyring_pair(const keyring_t *r, const char *file, key_pair_t *ret_pair, heddle_error_t *error)
{
    bool barred;
    return keyring_pair_unless(r, file, ret_pair, &barred, error);
}

int keyring_pair_unless(const keyring_t *r, const char *file, key_pair_t *ret_pair, bool *ret_barred,
                        heddle_error_t *error)
{
    char path[KEYRING_PATH];
    int number = 0;
    /* The names of ring files are short constants, and KEYRING_DIR leaves room for them. */
    snprintf(path, KEYRING_PATH, "%s/%.60s", r->dir, file);
    int rc = key_read(path, ret_pair, error);
    if (rc == HEDDLE_ERR_NOT_FOUND) {
        key_pair_t pair;
        rc = make_ring(r, &number, error);
        if (!rc) rc = key_make(&pair, error);
        if (!rc) rc = key_file_write(path, &pair, &number, error);
        explicit_bzero(&pair, sizeof pair);
        /* Another program may have made the file first; then its pair is the one to use. */
        if (!rc || access(path, F_OK) == 0) rc = key_read(path, ret_pair, error);
    }
    if (!rc) others_warn("keys.others", r->dir, "the keys there");
    /* Barred: there is no file, and this user has no right to make one. */
    struct stat st;
    bool is_missing = rc == HEDDLE_ERR_DATA_DIR && lstat(path, &st) != 0;
    if (is_missing && errno != ENOENT) number = errno;
    *ret_barred = is_missing && (number == EACCES || number == EPERM || number == EROFS || number == ENOTDIR);
    if (rc || ret_pair->secret_key[0]) return rc == HEDDLE_ERR_NOT_FOUND ? HEDDLE_ERR_DATA_DIR : rc;
    return key_file_refuse(path, "has no secret line", 0, error);
}
