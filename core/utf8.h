/* SPDX-License-Identifier: Apache-2.0 */
/* core/utf8.h: validation of UTF-8 (RFC 3629): no overlong form, no surrogate, nothing above U+10FFFF.  NUL
 * is a character like any other.  Pure functions without state; any thread. */
#ifndef CORE_UTF8_H
#define CORE_UTF8_H

#include "core/bytes.h"
#include <jansson.h>

/* Bytes of the longest valid beginning; equal to `bytes` when all of it is valid. */
size_t utf8_prefix(const void *data, size_t bytes);
static inline bool utf8_is_valid(const void *data, size_t bytes) { return utf8_prefix(data, bytes) == bytes; }
/* Appends the text with '?' for each byte that is not part of a valid character: as many bytes as came in. */
void utf8_add_clean(buf_t *out, const void *data, size_t bytes);
/* A text of the system, of a user, or one that was cut, cleaned like this: jansson makes no string of another
 * one, and json_pack then nothing at all.  NULL: no memory. */
json_t *utf8_json(const char *text);
json_t *utf8_json_or_null(const char *text); /* JSON's null of NULL and "" */

#endif
