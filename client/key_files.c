/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/keys.h: the calls about files, and about what a client connects with.  Those about a broker's table
 * are in admin.c. */
#include <heddle/keys.h>

#include "client/credentials.h"
#include "client/opening.h"
#include "core/errors.h"
#include "wire/join_string.h"
#include "wire/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The public key of the file `path`, or of client.key of the ring; `is_new`: the file is made.  The secret
 * key stays in its file, and the copy in memory is erased. */
static int key_of_file(const char *path, bool is_new, char ret_public[HEDDLE_KEY_TEXT], char **ret_path)
{
    char file[KEYRING_PATH], *copy = NULL;
    keyring_t ring;
    key_pair_t pair;
    heddle_error_t error;
    ring.dir[0] = 0;
    opening_begin(); /* the environment is read under its lock, since UCX changes it meanwhile */
    int rc = !ret_public ? error_fail(&error, HEDDLE_ERR_USAGE, "there is nowhere to put the public key")
             : path      ? HEDDLE_OK
                         : keyring_find(NULL, &ring, NULL, &error);
    opening_end();
    snprintf(file, sizeof file, "%s%s", path ? path : ring.dir, path ? "" : "/client.key");
    if (!rc && ret_path && !(copy = strdup(file)))
        rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for a path");
    if (!rc && is_new && !path) rc = keyring_make(&ring, &error);
    if (!rc) rc = is_new ? key_make(&pair, &error) : key_read(file, &pair, &error);
    if (!rc && is_new) rc = key_write(file, &pair, &error);
    if (rc) {
        free(copy);
        return error_publish(&error);
    }
    memcpy(ret_public, pair.public_key, HEDDLE_KEY_TEXT);
    explicit_bzero(&pair, sizeof pair);
    if (ret_path) *ret_path = copy;
    return HEDDLE_OK;
}

/* Here the secret of an invitation would be kept, and repeated, as an address. */
static int check_address(const char *broker, heddle_error_t *error)
{
    if (!join_string_is_like(broker)) return wire_check_endpoints(broker, NULL, error);
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "this is a join string, not the address of a broker");
    error_contrast(error, "tcp://HOST:PORT or ipc:///PATH", "a join string");
    error_hint(error,
               "a worker joins with it (opts.join, @FILE); the address is that which `heddle invite` asked");
    return rc;
}

/* A client presents the key of such a file, so its secret must be in it. */
static int check_own_key(const char *key, heddle_error_t *error)
{
    key_pair_t pair;
    int rc = key_read(key, &pair, error);
    if (!rc && !pair.secret_key[0]) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s: has no secret line", key);
        error_contrast(error, "a key file with a secret line", "a public key alone");
        error_hint(error, "name a file that `heddle keygen` made");
    }
    explicit_bzero(&pair, sizeof pair);
    return rc;
}

int heddle_broker_check(const char *broker, const char *broker_key, const char *key)
{
    char public_key[KEY_TEXT];
    heddle_error_t error;
    int rc = broker ? check_address(broker, &error) : HEDDLE_OK;
    if (!rc && key) rc = check_own_key(key, &error);
    if (!rc && broker_key && key && credentials_is_own_secret(key, broker_key)) rc = key_is_secret(&error);
    else if (!rc && broker_key) rc = key_take(broker_key, public_key, &error);
    return rc ? error_publish(&error) : HEDDLE_OK;
}

int heddle_key_generate(const char *path, char ret_public[HEDDLE_KEY_TEXT], char **ret_path)
{
    return key_of_file(path, true, ret_public, ret_path);
}

int heddle_key_public(const char *path, char ret_public[HEDDLE_KEY_TEXT], char **ret_path)
{
    return key_of_file(path, false, ret_public, ret_path);
}
