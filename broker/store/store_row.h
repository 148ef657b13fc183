/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/store_row.h: a record as the columns of one row; for store*.c alone, as SQLite is.
 *
 * A row is filled or read from left to right.  The first failure stays in `code` (a SQLite code) and makes
 * every later put a no-op; what is taken after one is zero or "".  Texts and blobs borrow: those put, from
 * the record until the statement's bindings are cleared; those taken, from the statement until its next
 * step.  The thread of the store; the statement belongs to it. */
#ifndef BROKER_STORE_ROW_H
#define BROKER_STORE_ROW_H

#include "broker/registry/record.h"

typedef struct {
    struct sqlite3_stmt *sql;
    int at, code;
} store_row_t;

/* Columns of `versions`, in the order of row_put and row_take. */
#define ROW_VERSION_COLUMNS                                                                                  \
    "adapter, version, created_at, digest, payload_bytes, manifest_bytes, manifest_digest, share_key, "      \
    "request_id, writer, base_model, kind, features, step, data_bytes, tensor_count, chunk_count, "          \
    "activation, deadline_ms, config, meta, asked_ms"

void row_put(store_row_t *to, const record_t *r);
/* Sets what a row of r->kind holds.  SQLITE_CORRUPT: a value that no record has. */
void row_take(store_row_t *from, record_t *r);

void row_put_u64(store_row_t *r, uint64_t v);
void row_put_text(store_row_t *r, const char *text); /* NULL: "" */
uint64_t row_take_u64(store_row_t *r);
const char *row_take_text(store_row_t *r); /* never NULL */
bytes_t row_take_blob(store_row_t *r);

#endif
