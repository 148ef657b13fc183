/* SPDX-License-Identifier: Apache-2.0 */
/* formats/json_text.h: JSON of files, guarded: nesting at most LIMIT_JSON_DEPTH, no name twice in an object.
 *
 * A safetensors header of 90,000 tensors is one object of 12 MB.  Its tree would take many times that, so it
 * is never built: a walk yields the members of the outer object one after the other, and jansson parses each
 * member alone. Pure functions over borrowed text; the caller owns the walk; any thread. */
#ifndef FORMATS_JSON_TEXT_H
#define FORMATS_JSON_TEXT_H

#include "core/bytes.h"
#include <heddle/error.h>
#include <jansson.h>

/* Any JSON value; the caller owns *ret_value (json_decref).  BAD_ADAPTER (not JSON, a name twice) or LIMIT
 * (too deep);
 * the message begins with `what` ("the config"). */
int json_text_load(bytes_t text, const char *what, json_t **ret_value, heddle_error_t *error);

/* The walk over the members of an object.  `key` with its quotes, `value` without the blanks around it:
 * spans of the text, brackets and quotes balanced, otherwise unchecked until json_member_load reads them. */
typedef struct {
    bytes_t text;
    size_t at;
    uint32_t seen;
    const char *what;
} json_members_t;
typedef struct {
    bytes_t key, value;
} json_member_t;

/* BAD_ADAPTER when the text does not begin with '{': no blank before it. */
int json_members_begin(bytes_t text, const char *what, json_members_t *ret_members, heddle_error_t *error);
/* OK with a member, or with *ret_more false after the last one; BAD_ADAPTER or LIMIT. */
int json_members_next(json_members_t *m, json_member_t *ret_member, bool *ret_more, heddle_error_t *error);
/* Parses a key or value of the walk like json_text_load; errors give the position in the whole text. */
int json_member_load(const json_members_t *m, bytes_t span, json_t **ret_value, heddle_error_t *error);

#endif
