/* SPDX-License-Identifier: Apache-2.0 */
/* How many rows of a registry in an etcd are asked for at once. */
#include "broker/store/etcd_page.h"

#include <criterion/criterion.h>

static etcd_page_t new_page(void)
{
    etcd_page_t p;
    etcd_page_init(&p);
    return p;
}

Test(etcd_page, doubles_up_to_the_most)
{
    etcd_page_t p = new_page();
    for (uint32_t rows = ETCD_PAGE_ROWS; rows <= ETCD_PAGE_MOST; rows *= 2) {
        cr_assert_eq(p.rows, rows);
        etcd_page_came(&p, 1000);
    }
    cr_assert_eq(p.rows, ETCD_PAGE_MOST);
}

Test(etcd_page, of_many_bytes_stays_as_large)
{
    etcd_page_t p = new_page();
    etcd_page_came(&p, ETCD_PAGE_BYTES + 1);
    cr_assert_eq(p.rows, ETCD_PAGE_ROWS);
    etcd_page_came(&p, ETCD_PAGE_BYTES);
    cr_assert_eq(p.rows, 2 * ETCD_PAGE_ROWS);
}

/* A request that fails costs the whole of its time. */
Test(etcd_page, as_many_as_failed_are_tried_again_after_a_while)
{
    etcd_page_t p = new_page();
    etcd_page_failed(&p);
    for (int i = 0; i < ETCD_PAGE_WAITS; i++) {
        cr_assert_eq(p.rows, ETCD_PAGE_ROWS / 2, "after %d", i);
        etcd_page_came(&p, 1000);
    }
    etcd_page_came(&p, 1000);
    cr_assert_eq(p.rows, ETCD_PAGE_ROWS);
    etcd_page_came(&p, 1000);
    cr_assert_eq(p.rows, 2 * ETCD_PAGE_ROWS);
}

/* Where etcd was slow for a moment, small pages failed too: they are not what was too large. */
Test(etcd_page, small_ones_grow_at_once)
{
    etcd_page_t p = new_page();
    for (int i = 0; i < 4; i++) etcd_page_failed(&p);
    for (uint32_t rows = ETCD_PAGE_ROWS / 16; rows < ETCD_PAGE_ROWS; rows *= 2) {
        cr_assert_eq(p.rows, rows);
        etcd_page_came(&p, 1000);
    }
    cr_assert_eq(p.rows, ETCD_PAGE_ROWS / 2);
}

Test(etcd_page, of_one_row_that_fails_is_stuck_until_one_comes)
{
    etcd_page_t p = new_page();
    while (p.rows > 1) {
        cr_assert(!p.is_stuck);
        etcd_page_failed(&p);
    }
    cr_assert(!p.is_stuck);
    etcd_page_failed(&p);
    cr_assert(p.is_stuck);
    cr_assert_eq(p.rows, 1);
    etcd_page_came(&p, 1000);
    cr_assert(!p.is_stuck);
}
