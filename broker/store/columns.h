/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/columns.h (PURE): a record as a row of columns, in one order for every store.
 *
 * A column is a number, a text or a blob; the store that puts or takes a row says what it does with each of
 * these (store_row.h: SQLite; rows_value.h: bytes, as in etcd).  Texts and blobs are borrowed in both
 * directions.  Nothing blocks; any thread. */
#ifndef BROKER_COLUMNS_H
#define BROKER_COLUMNS_H

#include "broker/registry/record.h"

typedef struct {
    void (*number)(void *self, uint64_t value);
    void (*text)(void *self, const char *text); /* NULL: "" */
    void (*blob)(void *self, bytes_t blob);
} columns_put_t;

typedef struct {
    uint64_t (*number)(void *self);
    const char *(*text)(void *self); /* never NULL */
    bytes_t (*blob)(void *self);
} columns_take_t;

/* Every column of r->kind, from left to right. */
void columns_put(const record_t *r, const columns_put_t *to, void *self);
/* Sets what a row of r->kind holds.  False: a value that no record has. */
bool columns_take(record_t *r, const columns_take_t *from, void *self);

#endif
