/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/main_keys.h"

#include "core/log.h"

static int open_ring(const char *dir, main_keys_t *k, heddle_error_t *error)
{
    int rc = keyring_find(dir, &k->ring, &k->is_chosen, error);
    if (!rc) rc = keyring_pair(&k->ring, "broker.key", &k->broker, error);
    if (!rc) rc = keyring_pair(&k->ring, "client.key", &k->client, error);
    return rc;
}

int main_keys_open(const char *dir, bool insecure, main_keys_t *ret_keys, heddle_error_t *error)
{
    heddle_error_t why;
    *ret_keys = (main_keys_t){0};
    if (insecure) {
        keyring_find(dir, &ret_keys->ring, NULL, &why);
        return HEDDLE_OK;
    }
    int rc = open_ring(dir, ret_keys, &why);
    ret_keys->has_keys = !rc;
    if (!rc) return HEDDLE_OK;
    if (ret_keys->is_chosen) {
        *error = why;
        return rc;
    }
    log_emit(LOG_WARN, "broker.plain",
             "no keys: %s; on loopback, whoever reaches this host may do everything", why.message);
    ret_keys->ring.dir[0] = 0;
    return HEDDLE_OK;
}

int main_keys_tell(const main_keys_t *k, const char *endpoint, heddle_error_t *error)
{
    if (k->has_keys) return keyring_tell_broker(&k->ring, endpoint, k->broker.public_key, error);
    keyring_forget_broker(&k->ring,
                          endpoint); /* of one with keys that was here, and did not end cleanly */
    return HEDDLE_OK;
}

void main_keys_untell(const main_keys_t *k, const char *endpoint)
{
    if (k->has_keys) keyring_forget_broker(&k->ring, endpoint);
}
