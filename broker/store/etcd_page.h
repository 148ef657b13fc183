/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/etcd_page.h (PURE): how many rows of a registry in an etcd are asked for at once.
 *
 *   a page came                          -> twice as many rows, up to ETCD_PAGE_MOST, unless it had more than
 *                                           ETCD_PAGE_BYTES.  Also where it was slow: etcd counts all rows
 *                                           that follow for each page, so that a large registry in small
 *                                           pages takes etcd most of a core for minutes
 *   none came                            -> half as many: it may be too large, or too slow for its time.  As
 *                                           many as failed are tried again after ETCD_PAGE_WAITS pages
 *   it was of one row, and did not come  -> stuck, until one comes
 *
 * One thread; nothing blocks. */
#ifndef BROKER_ETCD_PAGE_H
#define BROKER_ETCD_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ETCD_PAGE_ROWS 400 /* of the first page */
#define ETCD_PAGE_MOST 12800
#define ETCD_PAGE_BYTES (1u << 20) /* of an answer */
#define ETCD_PAGE_WAITS 8

typedef struct {
    uint32_t rows;
    uint32_t failed_rows; /* of the first page that did not come, of those since one came last */
    uint32_t waits;       /* so many pages come before as many are tried again */
    bool is_failing;      /* no page came since */
    bool is_stuck;
} etcd_page_t;

void etcd_page_init(etcd_page_t *p);
void etcd_page_came(etcd_page_t *p, size_t bytes);
void etcd_page_failed(etcd_page_t *p);

#endif
