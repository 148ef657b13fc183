/* SPDX-License-Identifier: Apache-2.0 */
/* formats/tensor.h: the rules for a single tensor, the same for descriptions from files, callers and
 * manifests.  Pure functions without state; any thread. */
#ifndef FORMATS_TENSOR_H
#define FORMATS_TENSOR_H

#include "core/bytes.h"
#include "core/limits.h"
#include <heddle/types.h>

/* What is wrong with a name ("is empty", ...), or NULL: UTF-8, 1..LIMIT_TENSOR_NAME_BYTES, no NUL. */
const char *tensor_name_problem(bytes_t name);
/* Sets *ret_bytes to product of dims x bits / 8, or returns what is wrong with the shape.  dims:
 * little-endian, at any alignment.  At most LIMIT_PAYLOAD_BYTES. */
const char *tensor_shape_problem(int dtype, uint32_t ndim, const void *dims, uint64_t *ret_bytes);

/* The bytes that a tensor takes in a payload: whole pages, so that no leaf spans two tensors. */
static inline uint64_t tensor_room(uint64_t bytes)
{
    return (bytes + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES * LIMIT_PAGE_BYTES;
}

/* A name as messages show it: short, printable. */
typedef struct {
    char text[132];
} tensor_shown_t;
tensor_shown_t tensor_shown(bytes_t name);

#endif
