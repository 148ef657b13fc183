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

static uint64_t number_of(const void *row) { return *(const uint64_t *)row; }

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

/* Steps that are even, that are not, and that a double cannot tell apart. */
Test(sorted, a_row_is_found_by_its_number)
{
    static uint64_t numbers[64];
    static uint64_t *list[64];
    bool found;
    for (int kind = 0; kind < 4; kind++) {
        for (uint64_t n = 0; n <= 64; n++) {
            if (n) {
                uint64_t i = n - 1;
                numbers[i] = kind == 0   ? 10 + i * 2
                             : kind == 1 ? i * i * i * 2 + 2
                             : kind == 2 ? (i < 60 ? i * 2 + 2 : UINT64_MAX - 1000 + i * 2)
                                         : UINT64_MAX - 200 + i * 2;
                list[i] = &numbers[i];
            }
            cr_assert_eq(sorted_place_number(list, n, 1, number_of, &found), 0);
            cr_assert(!found && !sorted_find_number(list, n, 1, number_of));
            for (uint64_t i = 0; i < n; i++) {
                cr_assert_eq(sorted_find_number(list, n, numbers[i], number_of), list[i]);
                cr_assert_eq(sorted_place_number(list, n, numbers[i], number_of, &found), i);
                cr_assert(found);
                cr_assert_eq(sorted_place_number(list, n, numbers[i] + 1, number_of, &found), i + 1);
                cr_assert_not(found);
            }
        }
    }
}

static unsigned looks;

static uint64_t counted(const void *row)
{
    looks++;
    return *(const uint64_t *)row;
}

/* Each is twice the one before: nothing stands where it would if all stood evenly. */
Test(sorted, numbers_that_stand_unevenly_take_no_walk)
{
    static uint64_t numbers[60], *list[60];
    for (int i = 0; i < 60; i++) numbers[i] = 1ull << i, list[i] = &numbers[i];
    for (int i = 0; i < 60; i++) {
        looks = 0;
        cr_assert_eq(sorted_find_number(list, 60, numbers[i], counted), list[i]);
        cr_assert_leq(looks, 4u * 6, "%d", i);
    }
}
