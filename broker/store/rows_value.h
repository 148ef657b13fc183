/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/rows_value.h (PURE): a record as bytes: its columns (columns.h), one behind the other.
 *
 *   number  8 bytes, little-endian
 *   text    4 bytes of length, the text, a NUL that is not counted
 *   blob    4 bytes of length, the bytes
 *
 * Columns that an older release did not have are missing at the end, and are 0 or "".  The bytes come from
 * outside: any are allowed, and texts and blobs that are taken borrow from them.  Nothing blocks; any
 * thread. */
#ifndef BROKER_ROWS_VALUE_H
#define BROKER_ROWS_VALUE_H

#include "broker/store/columns.h"

/* Appends; check to->failed. */
void rows_value_put(buf_t *to, const record_t *r);
/* Sets what the row holds of r->kind.  False: cut off, too long, or a value that no record has. */
bool rows_value_take(bytes_t value, record_t *r);

#endif
