/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/etcd_page.h"

void etcd_page_init(etcd_page_t *p) { *p = (etcd_page_t){.rows = ETCD_PAGE_ROWS}; }

void etcd_page_came(etcd_page_t *p, size_t bytes)
{
    uint32_t more = p->rows * 2 < ETCD_PAGE_MOST ? p->rows * 2 : ETCD_PAGE_MOST;
    p->is_failing = p->is_stuck = false;
    if (bytes > ETCD_PAGE_BYTES) return;
    if (p->waits && more >= p->failed_rows) p->waits--;
    else p->rows = more;
}

void etcd_page_failed(etcd_page_t *p)
{
    if (!p->is_failing) {
        p->failed_rows = p->rows;
        p->waits = ETCD_PAGE_WAITS;
    }
    p->is_failing = true;
    p->is_stuck = p->rows == 1;
    if (p->rows > 1) p->rows /= 2;
}
