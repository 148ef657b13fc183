/* SPDX-License-Identifier: Apache-2.0 */
/* core/sized.h (PURE): public structs of an older or newer release. Each begins with its own size and grows
 * only at its end, so both sides can tell which fields the other one has. Any thread. */
#ifndef CORE_SIZED_H
#define CORE_SIZED_H

#include "core/errors.h"

/* Copies the caller's struct into one of this release; fields that the caller's release lacks become 0.
 * USAGE: NULL, no size, or a nonzero field that this release does not know, and would silently ignore. */
int sized_take(void *to, size_t size, const void *from, const char *what, heddle_error_t *error);
/* Copies as much of `from` as the caller's struct has room for; size 0 means that of this release.  `to`
 * NULL: does nothing. */
void sized_give(void *to, const void *from, size_t size);

#endif
