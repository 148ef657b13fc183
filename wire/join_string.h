/* SPDX-License-Identifier: Apache-2.0 */
/* wire/join_string.h: the text that an invitation is given as.
 *
 *   heddle-join-1:  base64url( broker's public key, 32 bytes | secret key, 32 | endpoints | check, 4 )
 *
 * The secret key is that of the invitation, whose public key the broker has.  `check` is the head of
 * BLAKE2b of all bytes before it: a text that was cut or mistyped is found out here.  No error repeats any
 * of the text. Without state; any thread.  join_string_take may read a file. */
#ifndef WIRE_JOIN_STRING_H
#define WIRE_JOIN_STRING_H

#include "wire/keyring.h"

#define JOIN_STRING_PREFIX "heddle-join-1:"
#define JOIN_STRING_TEXT 1024
#define JOIN_STRING_ENDPOINTS 512

typedef struct {
    char endpoints[JOIN_STRING_ENDPOINTS]; /* "tcp://10.0.0.5:7700", several with commas */
    char broker_key[KEY_TEXT];
    key_pair_t pair;
} join_string_t; /* Overwrite it (explicit_bzero) after use. */

/* A join string, of any release, whole or not, alone or in a longer text. */
bool join_string_is_like(const char *text);
/* Of its first line: a variable that was filled from a file ends with a newline.
 * USAGE: it is none, it is cut or damaged, or of another release. */
int join_string_parse(const char *text, join_string_t *ret_string, heddle_error_t *error);
/* The same of "@FILE", whose first line it is.  NOT_FOUND, DATA_DIR. */
int join_string_read(const char *text_or_file, join_string_t *ret_string, heddle_error_t *error);
/* The same, to use it: a warning is logged where other users can read the file. */
int join_string_take(const char *text_or_file, join_string_t *ret_string, heddle_error_t *error);
/* USAGE: endpoints that nothing can dial, or too many. */
int join_string_write(const join_string_t *string, char ret_text[JOIN_STRING_TEXT], heddle_error_t *error);

#endif
