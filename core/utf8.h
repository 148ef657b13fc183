/* SPDX-License-Identifier: Apache-2.0 */
/* core/utf8.h: is it UTF-8?  Any thread; no allocation. */
#ifndef CORE_UTF8_H
#define CORE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Well-formed by RFC 3629: no overlong form, no surrogate, nothing past U+10FFFF.  NUL is a character like others. */
bool utf8_valid(const void *data, size_t bytes);

#endif
