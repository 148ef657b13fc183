/* SPDX-License-Identifier: Apache-2.0 */
/* http/secret.h: a small file, as an option names it: a token, a key, a certificate.  Any thread; reads a
 * file. */
#ifndef HTTP_SECRET_H
#define HTTP_SECRET_H

#include <heddle/error.h>
#include <stdbool.h>
#include <stddef.h>

/* `what` is in it: "the token".  `is_secret`: others than its owner must not be able to read it.  Copies up
 * to `size` bytes: a file that fills it may have more.  The caller wipes them, also on failure.
 * DATA_DIR: it cannot be read, or others may read it. */
int secret_read(const char *path, const char *what, bool is_secret, char *to, size_t size, size_t *ret_bytes,
                heddle_error_t *error);

#endif
