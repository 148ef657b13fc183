/* SPDX-License-Identifier: Apache-2.0 */
/* proto/value.h: bodies of reports: JSON trees (jansson) <-> msgpack. Integers, reals, texts, true, false,
 * null, arrays, and objects with text keys. Both directions are limited by LIMIT_REPORT_NODES and
 * LIMIT_REPORT_DEPTH, so that everything that can be encoded can be decoded. Objects keep the order of
 * their keys. The caller owns a value; one thread at a time; nothing blocks. */
#ifndef PROTO_VALUE_H
#define PROTO_VALUE_H

#include "core/bytes.h"
#include <heddle/error.h>
#include <jansson.h>

/* Appends one value.  LIMIT, or NO_MEMORY (also for a NULL value); `out` is then as it was. */
int value_encode(const json_t *value, buf_t *out);
/* PROTOCOL, LIMIT or NO_MEMORY.  On OK the caller owns *ret_value (json_decref). */
int value_decode(bytes_t body, json_t **ret_value, heddle_error_t *error);
/* The error object of docs/json.md as JSON: {"code","exit","message","adapter",...}; unknown fields are null.
 * NULL when out of memory. */
json_t *value_from_error(const heddle_error_t *error);
/* The text of an object's member; "" where it has none: a peer of another release may have other fields.
 * Borrowed from the object. */
const char *value_text(const json_t *object, const char *key);
/* Such an object of a negative answer, as an error of this code; fields that are absent stay empty. */
void value_to_error(const json_t *value, int code, heddle_error_t *ret_error);

#endif
