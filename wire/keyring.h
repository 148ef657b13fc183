/* SPDX-License-Identifier: Apache-2.0 */
/* wire/keyring.h: CURVE keys: pairs, the files that hold them, and a user's key ring.
 *
 *  A key file is text:   # a comment
 *                        public <40 characters of Z85>
 *                        secret <40 characters of Z85>      (not in the file of another party's key)
 *                        endpoint tcp://127.0.0.1:7700      (of a known broker)
 *  A ring is a directory, 0700:
 *    broker.key        the key pair that this user's brokers prove themselves with
 *    client.key        the key pair that this user's programs present
 *    brokers/NAME.pub  known brokers, one file for each endpoint. A broker puts it there, and it stays until
 *                      another broker of this user listens at that endpoint. Of more than 1,024 files, those
 *                      written longest ago are removed, even if their brokers still run
 * Files with a secret are made 0600 and never overwritten. When two programs make the same file at once,
 * both use the one that was written first.
 *
 * No state in memory; any thread. All functions but key_is_valid and keyring_find read or write files, and so
 * block on the file system. */
#ifndef WIRE_KEYRING_H
#define WIRE_KEYRING_H

#include <heddle/error.h>
#include <stdbool.h>

#define KEY_TEXT 41 /* 40 characters and the NUL */
#define KEYRING_DIR 3840
#define KEYRING_PATH 4096 /* a file in it */

/* Both as Z85 text; secret "": not known.  Overwrite a pair (explicit_bzero) after use. */
typedef struct {
    char public_key[KEY_TEXT], secret_key[KEY_TEXT];
} key_pair_t;

bool key_is_valid(const char *text);
/* One word to a double click, without characters that a shell, a unit file or YAML interprets; it begins with
 * a letter or a digit, so it is no path and no option. */
bool key_is_word(const char *text);
/* A new pair, whose public key begins with a letter or a digit and needs no quotes in a shell.  Takes about a
 * tenth of a second.  INTERNAL: libzmq was built without CURVE. */
int key_make(key_pair_t *ret_pair, heddle_error_t *error);
/* NOT_FOUND · DATA_DIR (not readable, malformed, or the two keys are not a pair).  If other users can read a
 * secret, a warning is logged. */
int key_read(const char *path, key_pair_t *ret_pair, heddle_error_t *error);
/* DATA_DIR: the file exists already or cannot be written; NO_SPACE.  After an error no part of it is left. */
int key_write(const char *path, const key_pair_t *pair, heddle_error_t *error);
/* Takes a public key as text, or the path of a file with one: a key file, or the output of `heddle keygen`.
 * Text that begins with /, ./ or ../ is always a path.  USAGE (both a key and a file; what cannot be a public
 * key, as half of all secret ones), NOT_FOUND, DATA_DIR. */
int key_take(const char *text_or_path, char ret_key[KEY_TEXT], heddle_error_t *error);
/* USAGE: a secret key came in place of a public one.  The error does not repeat it. */
int key_is_secret(heddle_error_t *error);

typedef struct {
    char dir[KEYRING_DIR];
} keyring_t; /* "": none */
/* `given`, else $HEDDLE_KEYS, else $XDG_CONFIG_HOME/heddle/keys, else ~/.config/heddle/keys.  *ret_chosen
 * (may be NULL): the directory was named by `given` or HEDDLE_KEYS.  USAGE: none is set, or the name is too
 * long. */
int keyring_find(const char *given, keyring_t *ret_ring, bool *ret_chosen, heddle_error_t *error);
/* Makes the directory and its parents where they are missing.  DATA_DIR, NO_SPACE. */
int keyring_make(const keyring_t *r, heddle_error_t *error);
/* Reads the pair of a file in the ring; makes the file, and the ring, where it is missing.  DATA_DIR,
 * INTERNAL. */
int keyring_pair(const keyring_t *r, const char *file, key_pair_t *ret_pair, heddle_error_t *error);
/* The same; *ret_barred with DATA_DIR: the file is missing, and this user lacks the right to make it. */
int keyring_pair_unless(const keyring_t *r, const char *file, key_pair_t *ret_pair, bool *ret_barred,
                        heddle_error_t *error);
/* The same, and nothing is written: where the file is missing and could be made, a new pair that is not kept.
 * DATA_DIR: it could not be made, INTERNAL. */
int keyring_pair_unkept(const keyring_t *r, const char *file, key_pair_t *ret_pair, heddle_error_t *error);
/* Registers the key of the broker that listens at the endpoint.  localhost and 127.0.0.1 are one endpoint.  A
 * broker that listens on all addresses is found at loopback, and at each address of this machine where no
 * other broker is known.  DATA_DIR. */
int keyring_register_broker(const keyring_t *r, const char *endpoint, const char *key, heddle_error_t *error);
void keyring_forget_broker(const keyring_t *r, const char *endpoint);
/* NOT_FOUND: no key is registered · DATA_DIR: a file is there and cannot be read or is damaged, or the
 * directory cannot be searched; the caller must not connect without a key then. */
int keyring_known_broker(const keyring_t *r, const char *endpoint, char ret_key[KEY_TEXT],
                         heddle_error_t *error);
/* The addresses of brokers other than `endpoint`, the one that was recorded last first; returns how many.
 * They may have ended since. */
#define KEYRING_ENDPOINT 300
#define KEYRING_OTHERS_MAX 16
size_t keyring_other_brokers(const keyring_t *r, const char *endpoint, char ret_endpoints[][KEYRING_ENDPOINT],
                             size_t most);

#endif
