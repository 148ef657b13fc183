/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LIB_BYTES_EQUAL_H
#define TESTS_LIB_BYTES_EQUAL_H

#include "core/bytes.h"

static inline bool bytes_equal(bytes_t a, bytes_t b)
{
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

#endif
