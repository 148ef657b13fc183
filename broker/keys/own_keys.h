/* SPDX-License-Identifier: Apache-2.0 */
/* broker/keys/own_keys.h: the broker's side of a key ring: its own pair, the user's, and the word to this
 * user's programs which key listens where.  One thread; reads and writes files. */
#ifndef BROKER_OWN_KEYS_H
#define BROKER_OWN_KEYS_H

#include "wire/keyring.h"

typedef struct {
    keyring_t ring; /* "": there is none */
    bool has_keys;  /* the listener is to have them */
    bool is_chosen; /* the directory was named: nothing is generated */
    key_pair_t broker, client;
    heddle_error_t why; /* code 0, or why there is no ring, though keys were wanted */
} own_keys_t;

/* `dir`: --keys, or NULL.  Makes what is missing.  With `insecure` there are no keys.  There are none
 * either where no directory was named, none exists and none can be made (no home, or a directory that is
 * read-only or not this user's).  Keys that exist and cannot be used are an error.  DATA_DIR, USAGE,
 * INTERNAL.  The caller wipes *ret_keys after a failure too, because it may hold secrets. */
int own_keys_open(const char *dir, bool insecure, own_keys_t *ret_keys, heddle_error_t *error);
/* `is_wanted`: the registry holds keys, or an admin's key was named.  Warns if the broker will run without
 * keys.  DATA_DIR: the registry has keys, so without them every client would be admitted where only some
 * were to be. */
int own_keys_check(const own_keys_t *k, const char *data_dir, bool is_wanted, heddle_error_t *error);
/* The broker listens on the endpoint, so from now on this user's programs find its key there.  That note
 * is not removed at the end: another process that listens there later is met with that key, and is refused
 * unless it has it.  DATA_DIR. */
int own_keys_register(const own_keys_t *k, const char *endpoint, heddle_error_t *error);

#endif
