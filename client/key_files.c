/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/keys.h: the calls about files.  Those about a broker's table are in admin.c. */
#include <heddle/keys.h>

#include "client/opening.h"
#include "core/errors.h"
#include "wire/keyring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file that is meant: `path`, or client.key of the ring. The environment is read under the lock of
 * opening, since UCX changes it meanwhile. */
static int resolve_path(const char *path, char ret_path[KEYRING_PATH], keyring_t *ring, heddle_error_t *error)
{
    ring->dir[0] = 0;
    opening_begin(); /* it reads the environment */
    int rc = path ? HEDDLE_OK : keyring_find(NULL, ring, NULL, error);
    opening_end();
    if (!rc) snprintf(ret_path, KEYRING_PATH, "%s%s", path ? path : ring->dir, path ? "" : "/client.key");
    return rc;
}

static int misused(heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_USAGE, "there is nowhere to put the public key");
    return error_publish(error);
}

/* The secret key stays in its file: only the public one is returned, and the copy in memory is erased. */
int heddle_key_generate(const char *path, char ret_public[HEDDLE_KEY_TEXT], char **ret_path)
{
    char file[KEYRING_PATH];
    keyring_t ring;
    key_pair_t pair;
    heddle_error_t error;
    if (!ret_public) return misused(&error);
    int rc = resolve_path(path, file, &ring, &error);
    char *copy = !rc && ret_path ? strdup(file) : NULL;
    if (!rc && ret_path && !copy) rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for a path");
    if (!rc && !path) rc = keyring_make(&ring, &error);
    if (!rc) rc = key_make(&pair, &error);
    if (!rc) rc = key_write(file, &pair, &error);
    if (rc) {
        free(copy);
        return error_publish(&error);
    }
    memcpy(ret_public, pair.public_key, HEDDLE_KEY_TEXT);
    explicit_bzero(&pair, sizeof pair);
    if (ret_path) *ret_path = copy;
    return HEDDLE_OK;
}

int heddle_key_public(const char *path, char ret_public[HEDDLE_KEY_TEXT], char **ret_path)
{
    char file[KEYRING_PATH];
    keyring_t ring;
    key_pair_t pair;
    heddle_error_t error;
    if (!ret_public) return misused(&error);
    int rc = resolve_path(path, file, &ring, &error);
    char *copy = !rc && ret_path ? strdup(file) : NULL;
    if (!rc && ret_path && !copy) rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for a path");
    if (!rc) rc = key_read(file, &pair, &error);
    if (rc) {
        free(copy);
        return error_publish(&error);
    }
    memcpy(ret_public, pair.public_key, HEDDLE_KEY_TEXT);
    explicit_bzero(&pair, sizeof pair);
    if (ret_path) *ret_path = copy;
    return HEDDLE_OK;
}
