/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/extents.h (PURE): which bytes of a region are there: disjoint ranges, sorted, neighbours merged.
 * Bytes that come in order are one range; memory is taken only when the number of ranges grows.  Loop thread
 * only; a share owns its own. */
#ifndef TRANSFER_EXTENTS_H
#define TRANSFER_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t at, end;
} extent_t;
typedef struct {
    extent_t *ranges;
    size_t count, capacity;
} extents_t;

void extents_fini(extents_t *e);
/* False when out of memory; nothing has changed then.  at + bytes must not overflow. */
bool extents_add(extents_t *e, uint64_t at, uint64_t bytes);
bool extents_cover(const extents_t *e, uint64_t at, uint64_t bytes);

#endif
