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
    heddle_error_t why;                /* code 0, or why there is no ring: nobody asked to go without */
} main_keys_t;

/* `dir`: --keys, or NULL.  Makes what is missing.  With `insecure` there are no keys.  There are none either
 * where nobody named a ring, none is there and none can be made (no home, a directory that is read-only or
 * not this user's).  Whatever is there and cannot be used is an error.  DATA_DIR, USAGE, INTERNAL.  Also
 * after a failure the caller wipes *ret_keys: it may have secrets. */
int  main_keys_open(const char *dir, bool insecure, main_keys_t *ret_keys, heddle_error_t *error);
/* `is_wanted`: the registry holds keys, or somebody named one.  Warns where the broker will run without.
 * DATA_DIR: it would let in everybody where only some were to be. */
int  main_keys_check(const main_keys_t *k, const char *data_dir, bool is_wanted, heddle_error_t *error);
/* The endpoint is ours: from here on this user's programs find its key, or none.  DATA_DIR.  Nobody takes
 * the word back at the end: who listens there next is met with that key, and is no broker of ours unless he
 * has it. */
int  main_keys_tell(const main_keys_t *k, const char *endpoint, heddle_error_t *error);

#endif
