/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/keys/own_keys.h"

#include "core/errors.h"
#include "core/log.h"

#include <string.h>

/* *ret_plain: the broker may run without keys, because there is not a directory of keys and none can be made.
 * Keys that exist and cannot be used are an error instead. */
static int open_ring(const char *dir, own_keys_t *k, bool *ret_plain, heddle_error_t *error)
{
    heddle_error_t ignored;
    bool has_none = false;
    *ret_plain = false;
    int rc = keyring_find(dir, &k->ring, &k->is_chosen, error);
    if (rc) {
        *ret_plain = !k->is_chosen;
        return rc;
    }
    rc = keyring_pair_unless(&k->ring, "broker.key", &k->broker, ret_plain, error);
    if (!rc) return keyring_pair(&k->ring, "client.key", &k->client, error);
    keyring_pair_unless(&k->ring, "client.key", &k->client, &has_none, &ignored);
    *ret_plain &= has_none && !k->is_chosen;
    return rc;
}

int own_keys_open(const char *dir, bool insecure, own_keys_t *ret_keys, heddle_error_t *error)
{
    heddle_error_t why;
    bool may_be_plain = true;
    *ret_keys = (own_keys_t){0};
    if (insecure) {
        keyring_find(dir, &ret_keys->ring, NULL, &why);
        return HEDDLE_OK;
    }
    int rc = open_ring(dir, ret_keys, &may_be_plain, &why);
    ret_keys->has_keys = !rc;
    if (!rc) return HEDDLE_OK;
    explicit_bzero(&ret_keys->broker, sizeof ret_keys->broker);
    explicit_bzero(&ret_keys->client, sizeof ret_keys->client);
    if (!may_be_plain) {
        *error = why;
        return rc;
    }
    ret_keys->ring.dir[0] = 0;
    ret_keys->why = why;
    return HEDDLE_OK;
}

/* A cluster that was given keys must not come up without them because a directory is missing. */
int own_keys_check(const own_keys_t *k, const char *data_dir, bool is_wanted, heddle_error_t *error)
{
    if (k->has_keys || !k->why.code) return HEDDLE_OK;
    if (!is_wanted) {
        log_emit(LOG_WARN, "broker.plain", "no keys: %s; every process on this host may do everything",
                 k->why.message);
        return HEDDLE_OK;
    }
    int rc =
        error_fail(error, HEDDLE_ERR_DATA_DIR,
                   "%.200s: keys of clients are registered, but the broker has no key of its own: %.200s",
                   data_dir, k->why.message);
    error_expected(error, "the directory with the broker's own key");
    error_found(error, "none");
    error_hint(error, "name it with --keys or HEDDLE_KEYS; with --insecure every client may do everything");
    return rc;
}

/* Programs of this user find the broker's key by its endpoint, so that no operator has to copy it. */
int own_keys_register(const own_keys_t *k, const char *endpoint, heddle_error_t *error)
{
    if (k->has_keys) return keyring_register_broker(&k->ring, endpoint, k->broker.public_key, error);
    keyring_forget_broker(&k->ring, endpoint); /* of one with keys that was here before */
    return HEDDLE_OK;
}
