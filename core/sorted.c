/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sorted.h"

#include <stdlib.h>
#include <string.h>

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
