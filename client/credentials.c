/* SPDX-License-Identifier: Apache-2.0 */
#include "client/credentials.h"

#include "core/errors.h"
#include "wire/greeting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ANSWER_MS = 250 }; /* a listener on this host answers in one, and one that has ended never does */

/* An empty text counts as not given, as scripts pass one for a variable that is not set. */
static const char *given_or_env(const char *given, const char *variable)
{
    const char *set = given && given[0] ? given : getenv(variable);
    return set && set[0] ? set : NULL;
}

/* All endpoints of the list must be known, since the connection may go to any of them. The first key
 * stands for those that are dialled before the ring is read again. */
static int take_known(const keyring_t *ring, const char *endpoints, char ret_key[KEY_TEXT],
                      heddle_error_t *error)
{
    char one[256], key[KEY_TEXT], first[KEY_TEXT] = "";
    for (const char *at = endpoints; at;) {
        size_t n = strcspn(at, ",");
        if (n >= sizeof one) return HEDDLE_ERR_NOT_FOUND;
        memcpy(one, at, n);
        one[n] = 0;
        int rc = keyring_known_broker(ring, one, key, error);
        if (rc) return rc;
        if (!first[0]) memcpy(first, key, sizeof first);
        at = at[n] ? at + n + 1 : NULL;
    }
    memcpy(ret_key, first, sizeof first);
    return HEDDLE_OK;
}

bool credentials_is_own_secret(const char *key_file, const char *text)
{
    const char *path = given_or_env(key_file, "HEDDLE_KEY");
    char in_ring[sizeof((keyring_t *)NULL)->dir + 16];
    keyring_t ring;
    key_pair_t own = {0};
    heddle_error_t ignored;
    if (!path && keyring_find(NULL, &ring, NULL, &ignored) == HEDDLE_OK) {
        snprintf(in_ring, sizeof in_ring, "%s/client.key", ring.dir);
        path = access(in_ring, R_OK) == 0 ? in_ring : NULL;
    }
    bool is_own = path && key_read(path, &own, &ignored) == HEDDLE_OK && !strcmp(own.secret_key, text);
    explicit_bzero(&own, sizeof own);
    return is_own;
}

void credentials_roles(const char *role, const char *const *adapters, char ret_roles[112])
{
    size_t n = 0, size = sizeof((wire_keys_t *)NULL)->roles;
    ret_roles[0] = 0;
    for (; adapters && *adapters && n < size; adapters++)
        n += (size_t)snprintf(ret_roles + n, size - n, "%s%s:%s", n ? " --role " : "", role, *adapters);
    if (n >= size) ret_roles[0] = 0;
}

/* Keys are copied into *ret_keys, and every other copy is erased before the return. */
int credentials_take(const credentials_t *c, const char *endpoints, wire_keys_t *ret_keys, bool *ret_secure,
                     heddle_error_t *error)
{
    const char *broker_key = c->join ? c->join->broker_key : given_or_env(c->broker_key, "HEDDLE_BROKER_KEY");
    wire_keys_t keys = {.is_fixed = broker_key != NULL};
    snprintf(keys.roles, sizeof keys.roles, "%s", c->roles ? c->roles : "");
    /* A ring that was named in the environment is there, or can be made; without a place for one there is
     * none. */
    bool is_chosen = false;
    struct stat st;
    int rc = keyring_find(NULL, &keys.ring, &is_chosen, error);
    if (!is_chosen) rc = HEDDLE_OK;
    if (!rc && is_chosen && stat(keys.ring.dir, &st) == 0 && !S_ISDIR(st.st_mode)) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s is not a directory of keys", keys.ring.dir);
        error_hint(error, "HEDDLE_KEYS names it");
    }
    /* Before it is taken for a path: a secret key may begin with a slash, and an error repeats paths. */
    if (!rc && broker_key && credentials_is_own_secret(c->key, broker_key)) rc = key_is_secret(error);
    else if (!rc && broker_key) rc = key_take(broker_key, keys.broker_key, error);
    else if (!rc) rc = take_known(&keys.ring, endpoints, keys.broker_key, error);
    if (!rc && broker_key && credentials_is_own_secret(c->key, keys.broker_key)) rc = key_is_secret(error);
    bool is_secure = !rc;
    if (rc == HEDDLE_ERR_NOT_FOUND && !broker_key) rc = HEDDLE_OK;
    /* The client's own key is made on first use, but never in place of a file that the user named. */
    const char *path = given_or_env(c->key, "HEDDLE_KEY");
    if (!rc && path) rc = key_read(path, &keys.own, error);
    else if (!rc && is_secure && keys.ring.dir[0])
        rc = c->makes_no_file ? keyring_pair_unkept(&keys.ring, "client.key", &keys.own, error)
                              : keyring_pair(&keys.ring, "client.key", &keys.own, error);
    if (!rc && !keys.own.secret_key[0] && (path || is_secure)) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR,
                        path ? "%.300s: has no secret line" : "there is no key to connect with",
                        path ? path : "");
        error_contrast(error, "a secret line", "none");
        error_hint(error, "name a file that heddle keygen made: opts.key or HEDDLE_KEY");
    }
    if (!rc) {
        *ret_keys = keys;
        *ret_secure = is_secure;
    }
    explicit_bzero(&keys, sizeof keys);
    return rc;
}

/* A key that was generated on this host proves nothing about the network; one that a person named does. */
bool credentials_are_named(const credentials_t *c)
{
    keyring_t ring;
    bool is_chosen = false;
    heddle_error_t ignored;
    if (c->join || given_or_env(c->broker_key, "HEDDLE_BROKER_KEY") || given_or_env(c->key, "HEDDLE_KEY"))
        return true;
    keyring_find(NULL, &ring, &is_chosen, &ignored);
    return is_chosen;
}

/* The usual cause of silence is the wrong address, and the ring often knows the right one.  It keeps those of
 * brokers that have ended: only one that answers now is named. */
void credentials_hint_elsewhere(const char *endpoint, const char *hint, heddle_error_t *error)
{
    keyring_t ring;
    char key[KEY_TEXT], others[KEYRING_OTHERS_MAX][KEYRING_ENDPOINT];
    const char *named[KEYRING_OTHERS_MAX];
    heddle_error_t ignored;
    bool is_unknown = keyring_find(NULL, &ring, NULL, &ignored) == HEDDLE_OK &&
                      keyring_known_broker(&ring, endpoint, key, &ignored) == HEDDLE_ERR_NOT_FOUND;
    size_t count = is_unknown ? keyring_other_brokers(&ring, endpoint, others, KEYRING_OTHERS_MAX) : 0;
    for (size_t i = 0; i < count; i++) named[i] = others[i];
    int first = count ? greeting_first(named, (int)count, ANSWER_MS) : -1;
    if (first < 0) error_hint(error, "%s", hint);
    else
        error_hint(error,
                   "this key ring knows a broker at %.120s, which answers: name it with opts.broker or "
                   "HEDDLE_BROKER; or start heddle-broker at the address that was asked",
                   others[first]);
}
