/* SPDX-License-Identifier: Apache-2.0 */
/* client/credentials.h: the keys that a client dials with.
 *
 *   the broker's: the one given, else $HEDDLE_BROKER_KEY, else what the user's ring knows of the endpoint,
 *   else none
 *   its own:      the file given, else $HEDDLE_KEY, else client.key of the ring, made when it is needed first
 *
 * With a key of the broker the connection is CURVE's, and may go over a network; without, plain.  Any
 * thread; reads files, and may make client.key. */
#ifndef CLIENT_CREDENTIALS_H
#define CLIENT_CREDENTIALS_H

#include "wire/join_string.h"
#include "wire/wire.h"

/* A key or a file; a file; NULL: see above.  `roles`: what the key needs, for a hint; NULL: it depends. */
typedef struct {
    const char *broker_key, *key, *roles;
    const join_string_t *join; /* names the broker's key; NULL: not invited */
    bool makes_no_file;        /* an own key that is missing is made in memory, and not kept */
} credentials_t;

/* "worker:a --role worker:b", of a list that NULL ends; "" where that is too long to be read. */
void credentials_roles(const char *role, const char *const *adapters, char ret_roles[112]);

/* `endpoints`: those that will be dialled.  *ret_secure: CURVE with each of them.
 * NOT_FOUND, DATA_DIR, USAGE: what was named is not a public key; the ring's own cannot be made. */
int credentials_take(const credentials_t *c, const char *endpoints, wire_keys_t *ret_keys, bool *ret_secure,
                     heddle_error_t *error);
/* The text is the secret of the client's own key (`key_file` NULL: see above).  A secret key looks like a
 * public one: where a public one is asked for, it must not be taken for that. */
bool credentials_is_own_secret(const char *key_file, const char *text);
/* A key, a ring or an invitation was named, here or in the environment: then it is not one that was
 * generated on this host without a person. */
bool credentials_are_named(const credentials_t *c);
/* For an error about a connection without an answer.  Where the ring has no broker at that address, and one
 * at another answers now, the hint names that one; else it is `hint`.  Blocks for a quarter of a second at
 * most. */
void credentials_hint_elsewhere(const char *endpoint, const char *hint, heddle_error_t *error);

#endif
