/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sorted.h"

#include <criterion/criterion.h>
#include <stdlib.h>

typedef struct {
    int key;
} row_t;

static int order(const void *row, const void *key)
{
    int a = ((const row_t *)row)->key, b = *(const int *)key;
    return (a > b) - (a < b);
}

enum { ROWS = 100 };
static row_t ROW[ROWS];
static row_t **rows;
static size_t count, capacity;

static void add(int key)
{
    bool found;
    size_t at = sorted_place(rows, count, &key, order, &found);
    cr_assert(!found && sorted_grow(&rows, count, &capacity));
    ROW[key].key = key;
    sorted_insert(rows, &count, at, &ROW[key]);
}

Test(sorted, rows_are_found_in_whatever_order_they_came)
{
    int absent = 0;
    for (int i = 0; i < ROWS / 2; i++) add((i * 37) % (ROWS / 2) * 2);
    cr_assert_eq(count, ROWS / 2);
    for (size_t i = 1; i < count; i++) cr_assert_lt(rows[i - 1]->key, rows[i]->key);
    for (int key = 0; key < ROWS; key++) {
        const row_t *row = sorted_find(rows, count, &key, order);
        cr_assert(key % 2 ? !row : row == &ROW[key]);
        absent += !row;
    }
    cr_assert_eq(absent, ROWS / 2);
    free(rows);
}

Test(sorted, a_row_that_went_is_found_no_more_and_the_others_are)
{
    bool found;
    for (int key = 0; key < 9; key++) add(key);
    for (int key = 8; key >= 0; key -= 4) {
        size_t at = sorted_place(rows, count, &key, order, &found);
        cr_assert(found);
        sorted_remove(rows, &count, at);
    }
    cr_assert_eq(count, 6);
    for (int key = 0; key < 9; key++) {
        const row_t *row = sorted_find(rows, count, &key, order);
        cr_assert(key % 4 ? row == &ROW[key] : !row);
    }
    int beyond = 9;
    cr_assert_eq(sorted_place(rows, count, &beyond, order, &found), count);
    cr_assert(!found);
    free(rows);
}
