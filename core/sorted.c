/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sorted.h"

#include <stdlib.h>
#include <string.h>

size_t sorted_place(const void *rows, size_t count, const void *key, sorted_order_fn *order, bool *ret_found)
{
    const void *const *list = rows;
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (order(list[mid], key) < 0) low = mid + 1;
        else high = mid;
    }
    *ret_found = low < count && order(list[low], key) == 0;
    return low;
}

void *sorted_find(const void *rows, size_t count, const void *key, sorted_order_fn *order)
{
    bool found;
    size_t at = sorted_place(rows, count, key, order, &found);
    return found ? ((void *const *)rows)[at] : NULL;
}

bool sorted_grow(void *rows, size_t count, size_t *capacity)
{
    if (count < *capacity) return true;
    size_t more = *capacity ? *capacity * 2 : 8;
    void **list;
    memcpy(&list, rows, sizeof list); /* of another type there */
    list = realloc(list, more * sizeof *list);
    if (!list) return false;
    memcpy(rows, &list, sizeof list);
    *capacity = more;
    return true;
}

void sorted_insert(void *rows, size_t *count, size_t at, void *row)
{
    void **list = rows;
    memmove(list + at + 1, list + at, ((*count)++ - at) * sizeof *list);
    list[at] = row;
}

void sorted_remove(void *rows, size_t *count, size_t at)
{
    void **list = rows;
    memmove(list + at, list + at + 1, (--*count - at) * sizeof *list);
}
