/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sized.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static bool is_zero(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i]) return false;
    return true;
}

static int fail_newer(const char *what, size_t size, size_t given, heddle_error_t *error)
{
    int rc =
        error_fail(error, HEDDLE_ERR_USAGE, "%s asks for something that this library does not know", what);
    error_expected(error, "at most %zu bytes, or zeros after them", size);
    error_found(error, "%zu bytes", given);
    error_hint(error, "the program was built against a newer heddle: install that release, or leave new "
                      "fields 0");
    return rc;
}

/* A program that was built against an older header gives fewer bytes: the rest is zero, which means "default"
 * for every field. One that was built against a newer header may give more, as long as they say nothing. */
int sized_take(void *to, size_t size, const void *from, const char *what, heddle_error_t *error)
{
    size_t given = 0;
    memset(to, 0, size);
    if (from) memcpy(&given, from, sizeof given);
    if (given < sizeof given) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "%s has no size", what);
        error_hint(error, "set its size to sizeof, and zero the rest");
        return rc;
    }
    if (given > size && !is_zero((const uint8_t *)from + size, given - size))
        return fail_newer(what, size, given, error);
    memcpy(to, from, given < size ? given : size);
    return HEDDLE_OK;
}

/* Never more than the caller has room for, and its size stays as the caller set it. */
void sized_give(void *to, const void *from, size_t size)
{
    if (!to) return;
    size_t given;
    memcpy(&given, to, sizeof given);
    if (given < sizeof given) given = size;
    memcpy(to, from, given < size ? given : size);
    memcpy(to, &given, sizeof given);
}
