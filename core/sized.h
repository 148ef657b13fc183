/* SPDX-License-Identifier: Apache-2.0 */
/* core/sized.h (PURE): public structs of an older or newer release.  Each begins with its own size, and
 * grows at its end alone. */
#ifndef CORE_SIZED_H
#define CORE_SIZED_H

#include "core/errors.h"

/* What the caller filled in, as this release knows it: what it does not have is 0.
 * USAGE: NULL, no size, or something beyond `size` that this release does not know and would pass over. */
int  sized_take(void *to, size_t size, const void *from, const char *what, heddle_error_t *error);
/* As much of `from` as the caller has room for; a size of 0 is that of this release.  NULL: nothing. */
void sized_give(void *to, const void *from, size_t size);

#endif
