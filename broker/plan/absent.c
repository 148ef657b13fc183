/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/plan/absent.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void absent_fini(absent_t *a)
{
    free(a->namings);
    *a = (absent_t){0};
}

/* Index of the first one that is not before this one. */
static size_t place_of(const absent_t *a, uint64_t token, const struct plan_row *row)
{
    size_t low = 0, high = a->count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        const absent_naming_t *n = &a->namings[mid];
        if (n->token < token || (n->token == token && (uintptr_t)n->row < (uintptr_t)row)) low = mid + 1;
        else high = mid;
    }
    return low;
}

static bool is_at(const absent_t *a, size_t at, uint64_t token, const struct plan_row *row)
{
    return at < a->count && a->namings[at].token == token && a->namings[at].row == row;
}

void absent_put(absent_t *a, uint64_t token, struct plan_row *row)
{
    size_t at = place_of(a, token, row);
    if (is_at(a, at, token, row)) return;
    if (a->count == a->capacity) {
        size_t more = a->capacity ? a->capacity * 2 : 8;
        absent_naming_t *grown = realloc(a->namings, more * sizeof *grown);
        if (!grown) return;
        a->namings = grown;
        a->capacity = more;
    }
    memmove(a->namings + at + 1, a->namings + at, (a->count++ - at) * sizeof *a->namings);
    a->namings[at] = (absent_naming_t){token, row};
}

void absent_take(absent_t *a, uint64_t token, const struct plan_row *row)
{
    size_t at = place_of(a, token, row);
    if (!is_at(a, at, token, row)) return;
    memmove(a->namings + at, a->namings + at + 1, (--a->count - at) * sizeof *a->namings);
}

struct plan_row *absent_next(absent_t *a, uint64_t token)
{
    size_t at = place_of(a, token, NULL);
    if (at == a->count || a->namings[at].token != token) return NULL;
    struct plan_row *row = a->namings[at].row;
    absent_take(a, token, row);
    return row;
}
