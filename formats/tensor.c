/* SPDX-License-Identifier: Apache-2.0 */
/* Shared checks, so that a tensor that one way in accepts is never refused by another. */
#include "formats/tensor.h"

#include "core/errors.h"
#include "core/utf8.h"

/* The names become keys of a JSON object and of Python dictionaries: what either would mangle is refused. */
const char *tensor_name_problem(bytes_t name)
{
    if (name.bytes == 0) return "is empty";
    if (name.bytes > LIMIT_TENSOR_NAME_BYTES) return "is too long";
    if (memchr(name.data, 0, name.bytes)) return "contains a NUL";
    if (name.bytes == 12 && !memcmp(name.data, "__metadata__", 12)) return "is reserved by safetensors";
    if (!utf8_is_valid(name.data, name.bytes)) return "is not UTF-8";
    return NULL;
}

/* The product is made with checks for overflow, since an extent from a file may be any 64-bit number. */
const char *tensor_shape_problem(int dtype, uint32_t ndim, const void *dims, uint64_t *ret_bytes)
{
    uint32_t element_bits = heddle_dtype_bits(dtype);
    if (element_bits == 0) return "has an unknown dtype";
    if (ndim > LIMIT_TENSOR_DIMS) return "has too many dimensions";
    uint64_t bits = element_bits;
    for (uint32_t d = 0; d < ndim; d++) {
        uint64_t extent = le64_get((const uint8_t *)dims + 8 * (size_t)d);
        if (__builtin_mul_overflow(bits, extent, &bits)) return "has a shape whose size overflows 64 bits";
        if (extent > LIMIT_EXACT) return "has a dimension that is too large"; /* beside one of 0 */
    }
    if (bits % 8) return "does not fill whole bytes";
    if (bits / 8 > LIMIT_PAYLOAD_BYTES) return "is larger than any payload";
    *ret_bytes = bits / 8;
    return NULL;
}

/* A name that is cut within a character would not be UTF-8, and the message with it. */
tensor_shown_t tensor_shown(bytes_t name)
{
    tensor_shown_t shown;
    char text[sizeof shown.text] = {0};
    size_t room = sizeof text - sizeof "...", valid = utf8_prefix(name.data, name.bytes);
    if (valid) memcpy(text, name.data, valid < room ? valid : room);
    error_text(shown.text, room, text);
    if (name.bytes > strlen(shown.text)) strcat(shown.text, "...");
    return shown;
}
