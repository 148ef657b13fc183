/* SPDX-License-Identifier: Apache-2.0 */
#include "core/listing.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define OTHERS_TEXT sizeof " and 4294967295 others"

void listing_add(listing_t *list, const char *format, ...)
{
    const char *between = !list->shown ? "" : list->between ? list->between : ", ";
    size_t gap = strlen(between), end = list->used + gap;
    bool is_full = list->others || (list->most && list->shown == list->most) || end >= list->size;
    int bytes = -1;
    if (!is_full) {
        va_list args;
        va_start(args, format);
        bytes = vsnprintf(list->text + end, list->size - end, format, args);
        va_end(args);
    }
    if (bytes < 0 || end + (size_t)bytes + OTHERS_TEXT > list->size) {
        list->others++;
        return;
    }
    memcpy(list->text + list->used, between, gap);
    list->used = end + (size_t)bytes;
    list->shown++;
}

const char *listing_text(listing_t *list)
{
    list->text[list->used] = 0;
    if (list->others)
        snprintf(list->text + list->used, list->size - list->used, "%s%u other%s", list->shown ? " and " : "",
                 list->others, list->others == 1 ? "" : "s");
    return list->text;
}
