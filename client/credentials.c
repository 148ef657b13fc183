/* SPDX-License-Identifier: Apache-2.0 */
#include "client/credentials.h"

#include "core/errors.h"

#include <stdlib.h>
#include <string.h>

static const char *given_or_env(const char *given, const char *variable)
{
    const char *set = given && given[0] ? given : getenv(variable);
    return set && set[0] ? set : NULL;
}

/* Of each endpoint; the first one's stands for those that are dialled before it is looked up again. */
static bool is_known(const keyring_t *ring, const char *endpoints, char ret_key[KEY_TEXT])
{
    char one[256], key[KEY_TEXT], first[KEY_TEXT] = "";
    for (const char *at = endpoints; at;) {
        size_t n = strcspn(at, ",");
        if (n >= sizeof one) return false;
        memcpy(one, at, n);
        one[n] = 0;
        if (!keyring_known_broker(ring, one, key)) return false;
        if (!first[0]) memcpy(first, key, sizeof first);
        at = at[n] ? at + n + 1 : NULL;
    }
    memcpy(ret_key, first, sizeof first);
    return true;
}

static int take_own(const char *path, bool is_needed, wire_keys_t *keys, heddle_error_t *error)
{
    int rc = HEDDLE_OK;
    if (path) rc = key_read(path, &keys->own, error);
    else if (is_needed && keys->ring.dir[0])
        rc = keyring_pair(&keys->ring, "client.key", &keys->own, error);
    if (rc || keys->own.secret_key[0] || (!path && !is_needed)) return rc;
    rc = error_fail(error, HEDDLE_ERR_DATA_DIR,
                    path ? "%.300s: has no secret line" : "there is no key to connect with",
                    path ? path : "");
    error_hint(error, "name a file that heddle keygen made: --key or HEDDLE_KEY");
    return rc;
}

int credentials_take(const credentials_t *c, const char *endpoints, wire_keys_t *ret_keys,
                     bool *ret_secure, heddle_error_t *error)
{
    const char *broker_key = given_or_env(c->broker_key, "HEDDLE_BROKER_KEY");
    wire_keys_t keys = {0};
    heddle_error_t ignored; /* no place for a ring: then there is none */
    keyring_find(NULL, &keys.ring, NULL, &ignored);
    int rc = broker_key ? key_take(broker_key, keys.broker_key, error) : HEDDLE_OK;
    bool is_secure = broker_key || is_known(&keys.ring, endpoints, keys.broker_key);
    if (!rc) rc = take_own(given_or_env(c->key, "HEDDLE_KEY"), is_secure, &keys, error);
    if (!rc) {
        keys.is_fixed = broker_key != NULL;
        *ret_keys = keys;
        *ret_secure = is_secure;
    }
    explicit_bzero(&keys, sizeof keys);
    return rc;
}
