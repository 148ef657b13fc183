/* SPDX-License-Identifier: Apache-2.0 */
/* broker/main_keys.h: the broker's side of a key ring: its own pair, the user's, and the word to this
 * user's programs which key listens where.  One thread; reads and writes files. */
#ifndef BROKER_MAIN_KEYS_H
#define BROKER_MAIN_KEYS_H

#include "wire/keys.h"

typedef struct {
    keyring_t ring;                    /* "": there is none */
    bool has_keys;                     /* the listener is to have them */
    bool is_chosen;                    /* somebody named the ring: nothing made by itself */
    key_pair_t broker, client;
} main_keys_t;

/* `dir`: --keys, or NULL.  Makes what is missing.  With `insecure` there are no keys; without a ring that
 * can be made there are none either, and a warning says so, unless somebody named one.  DATA_DIR, USAGE,
 * INTERNAL. */
int  main_keys_open(const char *dir, bool insecure, main_keys_t *ret_keys, heddle_error_t *error);
/* The endpoint is ours: from here on this user's programs find its key, or none.  DATA_DIR. */
int  main_keys_tell(const main_keys_t *k, const char *endpoint, heddle_error_t *error);
/* While it is still bound: nobody else's word is taken away. */
void main_keys_untell(const main_keys_t *k, const char *endpoint);

#endif
