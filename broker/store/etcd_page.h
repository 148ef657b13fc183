/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/etcd_page.h (PURE): how many rows of a registry in an etcd are asked for at once.
 *
 *   a page came                          -> twice as many rows.  Also where it was slow: etcd counts all rows
 *                                           that follow for each page, so that small ones are no faster
 *   none came                            -> half as many: it may be too large, or too slow for its time
 *   it was of one row, and did not come  -> stuck, until one comes
 *
 * One thread; nothing blocks. */
#ifndef BROKER_ETCD_PAGE_H
#define BROKER_ETCD_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#define ETCD_PAGE_ROWS 400

typedef struct {
    uint32_t rows;
    bool is_stuck;
} etcd_page_t;

void etcd_page_init(etcd_page_t *p);
void etcd_page_came(etcd_page_t *p);
void etcd_page_failed(etcd_page_t *p);

#endif
