/* SPDX-License-Identifier: Apache-2.0 */
/* http/token.h: the secret that a client of HTTP has to show: "Authorization: Bearer SECRET".  It is the one
 * line of a file that its owner alone can read.  Any thread; reads a file. */
#ifndef HTTP_TOKEN_H
#define HTTP_TOKEN_H

#include <heddle/error.h>
#include <stdbool.h>

#define TOKEN_MIN 16u
#define TOKEN_MAX 512u

/* DATA_DIR: the file cannot be read, others may read it, or its line is not a token.  The caller wipes the
 * token. */
int token_read(const char *path, char ret_token[TOKEN_MAX + 1], heddle_error_t *error);
/* `authorization`: the header's value; NULL: there is none. */
bool token_is_shown(const char *token, const char *authorization);

#endif
