/* SPDX-License-Identifier: Apache-2.0 */
/* wire/keys.h: CURVE keys: pairs, the files that hold them, and a user's ring of them.
 *
 * A key file is text:   # a comment
 *                       public <40 characters of Z85>
 *                       secret <40 characters of Z85>      (not in the file of somebody else's key)
 *                       endpoint tcp://127.0.0.1:7700      (of a known broker)
 * A ring is a directory, 0700:
 *   broker.key        what this user's brokers prove themselves with
 *   client.key        what this user's programs present
 *   brokers/NAME.pub  known brokers, a file an endpoint: put there by a broker, and there until another
 *                     broker of this user listens at that endpoint; of more than 1,024 those written
 *                     longest ago go, though their brokers may be running
 * Files with a secret are made 0600 and never overwritten; two programs that make the same one agree on
 * the first.
 *
 * keys.c: files; keyring.c: the ring; known_brokers.c.  Any thread.  Everything but key_is_valid and
 * keyring_find reads or writes files. */
#ifndef WIRE_KEYS_H
#define WIRE_KEYS_H

#include <heddle/error.h>
#include <stdbool.h>

#define KEY_TEXT 41            /* 40 characters and the NUL */
#define KEYRING_DIR 3840
#define KEYRING_PATH 4096      /* a file in it */

typedef struct { char public_key[KEY_TEXT], secret_key[KEY_TEXT]; } key_pair_t;   /* secret "": not known */

bool key_is_valid(const char *text);
/* A new pair; its public key begins with a letter or a digit and needs no quotes in a shell.  Takes a tenth
 * of a second.  INTERNAL (a libzmq without CURVE). */
int  key_make(key_pair_t *ret_pair, heddle_error_t *error);
/* NOT_FOUND · DATA_DIR (not readable, malformed, the two keys do not belong together).  Others who may
 * read a secret: a warning in the log. */
int  key_read(const char *path, key_pair_t *ret_pair, heddle_error_t *error);
/* DATA_DIR: it is there already, or cannot be written; NO_SPACE; nothing is left then. */
int  key_write(const char *path, const key_pair_t *pair, heddle_error_t *error);
/* A public key as text, or the file that has one, be it a key file or what `heddle keygen` printed; what
 * begins with /, ./ or ../ is a path.  USAGE (both a key and a file), NOT_FOUND, DATA_DIR. */
int  key_take(const char *text_or_path, char ret_key[KEY_TEXT], heddle_error_t *error);

typedef struct { char dir[KEYRING_DIR]; } keyring_t;   /* "": none */
/* `given`, else $HEDDLE_KEYS, else $XDG_CONFIG_HOME/heddle/keys, else ~/.config/heddle/keys.  *ret_chosen
 * (may be NULL): somebody named it.  USAGE: there is no such place, or its name is too long. */
int  keyring_find(const char *given, keyring_t *ret_ring, bool *ret_chosen, heddle_error_t *error);
/* The directory, with all above it, where it is missing.  DATA_DIR, NO_SPACE. */
int  keyring_make(const keyring_t *r, heddle_error_t *error);
/* The pair of a file in the ring, made (and the ring with it) where it is missing.  DATA_DIR, INTERNAL. */
int  keyring_pair(const keyring_t *r, const char *file, key_pair_t *ret_pair, heddle_error_t *error);
/* The same; *ret_barred with DATA_DIR: the file is not there, and this user may not put one there. */
int  keyring_pair_unless(const keyring_t *r, const char *file, key_pair_t *ret_pair, bool *ret_barred,
                         heddle_error_t *error);
/* localhost and 127.0.0.1 are one endpoint; one that listens everywhere is known as loopback, and, where no
 * broker is known at it, as each address of this machine.  DATA_DIR. */
int  keyring_tell_broker(const keyring_t *r, const char *endpoint, const char *key, heddle_error_t *error);
void keyring_forget_broker(const keyring_t *r, const char *endpoint);
/* NOT_FOUND: nobody told · DATA_DIR: somebody did, and the file cannot be read or is damaged; or it cannot
 * be seen whether somebody did. */
int  keyring_known_broker(const keyring_t *r, const char *endpoint, char ret_key[KEY_TEXT],
                          heddle_error_t *error);

#endif
