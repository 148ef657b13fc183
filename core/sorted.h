/* SPDX-License-Identifier: Apache-2.0 */
/* core/sorted.h: an array of pointers to rows, ascending by a key that each row has once.
 *
 * The owner keeps three fields, `T **rows; size_t count, capacity`, and reads them as it likes.  It finds,
 * adds and removes rows by the functions below, so that look-up and growth are written once.  The rows stay
 * where they are in memory; only their pointers move.  No state, nothing blocks; one thread at a time per
 * array. */
#ifndef CORE_SORTED_H
#define CORE_SORTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As strcmp: where the row stands to the key. */
typedef int sorted_order_fn(const void *row, const void *key);

/* Index of the row with this key, or where it belongs; `rows` is the T **.  Here, so that `order` is compiled
 * into it: one version on ten thousand workers is ten thousand look-ups. */
static inline size_t sorted_place(const void *rows, size_t count, const void *key, sorted_order_fn *order,
                                  bool *ret_found)
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

/* The row with this key; NULL: none. */
static inline void *sorted_find(const void *rows, size_t count, const void *key, sorted_order_fn *order)
{
    bool found;
    size_t at = sorted_place(rows, count, key, order, &found);
    return found ? ((void *const *)rows)[at] : NULL;
}

/* The key of a row, where that is a number. */
typedef uint64_t sorted_number_fn(const void *row);

/* sorted_place by a number.  Numbers that were given one after the other stand almost evenly: each round
 * looks first where the number would be if they did, and then halves what is left.  So it takes one look as a
 * rule, and a few times those of sorted_place at most. */
static inline size_t sorted_place_number(const void *rows, size_t count, uint64_t number,
                                         sorted_number_fn *number_of, bool *ret_found)
{
    const void *const *list = rows;
    size_t low = 0, high = count;
    *ret_found = false;
    while (low < high) {
        uint64_t first = number_of(list[low]), last = number_of(list[high - 1]);
        if (number < first || number > last) return number < first ? low : high;
        double part = first < last ? (double)(number - first) / (double)(last - first) : 0;
        size_t at = low + (size_t)(part * (double)(high - 1 - low));
        for (int i = 0; i < 2 && low < high; i++, at = low + (high - low) / 2) {
            uint64_t found = number_of(list[at]);
            *ret_found = found == number;
            if (*ret_found) return at;
            if (found < number) low = at + 1;
            else high = at;
        }
    }
    return low;
}

/* The row with this number; NULL: none. */
static inline void *sorted_find_number(const void *rows, size_t count, uint64_t number,
                                       sorted_number_fn *number_of)
{
    bool found;
    size_t at = sorted_place_number(rows, count, number, number_of, &found);
    return found ? ((void *const *)rows)[at] : NULL;
}

/* Room for one more row; `rows` is the address of the T **.  False: no memory, and nothing changed. */
bool sorted_grow(void *rows, size_t count, size_t *capacity);
/* The row goes to that index, for which there is room. */
void sorted_insert(void *rows, size_t *count, size_t at, void *row);
/* Its pointer goes; the caller frees the row. */
void sorted_remove(void *rows, size_t *count, size_t at);

#endif
