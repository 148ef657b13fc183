/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/etcd_page.h"

void etcd_page_init(etcd_page_t *p) { *p = (etcd_page_t){.rows = ETCD_PAGE_ROWS}; }

void etcd_page_came(etcd_page_t *p)
{
    p->is_stuck = false;
    p->rows = p->rows * 2 < ETCD_PAGE_ROWS ? p->rows * 2 : ETCD_PAGE_ROWS;
}

void etcd_page_failed(etcd_page_t *p)
{
    p->is_stuck = p->rows == 1;
    if (p->rows > 1) p->rows /= 2;
}
