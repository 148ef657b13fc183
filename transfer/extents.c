/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/extents.h"

#include <stdlib.h>
#include <string.h>

void extents_fini(extents_t *e)
{
    free(e->ranges);
    *e = (extents_t){0};
}

/* Index of the first range that ends at `at` or later. */
static size_t first_reaching(const extents_t *e, uint64_t at)
{
    size_t low = 0, high = e->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (e->ranges[middle].end < at) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* All ranges that touch the new one become one with it. */
bool extents_add(extents_t *e, uint64_t at, uint64_t bytes)
{
    if (bytes == 0) return true;
    extent_t added = {at, at + bytes};
    size_t first = first_reaching(e, at), last = first;
    while (last < e->count && e->ranges[last].at <= added.end) {
        if (e->ranges[last].at < added.at) added.at = e->ranges[last].at;
        if (e->ranges[last].end > added.end) added.end = e->ranges[last].end;
        last++;
    }
    if (first == last && e->count == e->capacity) {
        /* Doubling keeps the cost of chunks that arrive out of order low. */
        size_t capacity = e->capacity ? e->capacity * 2 : 8;
        extent_t *ranges = realloc(e->ranges, capacity * sizeof *ranges);
        if (!ranges) return false;
        e->ranges = ranges;
        e->capacity = capacity;
    }
    memmove(&e->ranges[first + 1], &e->ranges[last], (e->count - last) * sizeof *e->ranges);
    e->ranges[first] = added;
    e->count = e->count - (last - first) + 1;
    return true;
}

/* Neighbours are always merged, so that one range has all of the bytes or they are not all there. */
bool extents_cover(const extents_t *e, uint64_t at, uint64_t bytes)
{
    size_t i = first_reaching(e, at + bytes);
    return i < e->count && e->ranges[i].at <= at;
}
