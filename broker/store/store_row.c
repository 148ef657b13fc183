/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/store_row.h"

#include "broker/store/columns.h"

#include <sqlite3.h>
#include <string.h>

/* Each put binds the next column.  The first failure is kept, and the rest does nothing. */
void row_put_u64(store_row_t *r, uint64_t v)
{
    if (!r->code) r->code = sqlite3_bind_int64(r->sql, ++r->at, (sqlite3_int64)v);
}

void row_put_text(store_row_t *r, const char *text)
{
    if (!r->code) r->code = sqlite3_bind_text(r->sql, ++r->at, text ? text : "", -1, SQLITE_STATIC);
}

static void put_blob(store_row_t *r, const void *data, size_t bytes)
{
    if (!r->code) r->code = sqlite3_bind_blob64(r->sql, ++r->at, bytes ? data : "", bytes, SQLITE_STATIC);
}

uint64_t row_take_u64(store_row_t *r) { return (uint64_t)sqlite3_column_int64(r->sql, r->at++); }

const char *row_take_text(store_row_t *r)
{
    int at = r->at++;
    bool is_null = sqlite3_column_type(r->sql, at) == SQLITE_NULL; /* this program writes none */
    const char *text = is_null ? "" : (const char *)sqlite3_column_text(r->sql, at);
    if (!text) r->code = SQLITE_NOMEM;
    return text ? text : "";
}

bytes_t row_take_blob(store_row_t *r)
{
    int at = r->at++;
    const void *data = sqlite3_column_blob(r->sql, at); /* before its length, as SQLite asks */
    return bytes_of(data, (size_t)sqlite3_column_bytes(r->sql, at));
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void put_number(void *self, uint64_t v) { row_put_u64(self, v); }
static void put_text(void *self, const char *text) { row_put_text(self, text); }
static void put_bytes(void *self, bytes_t blob) { put_blob(self, blob.data, blob.bytes); }
static uint64_t take_number(void *self) { return row_take_u64(self); }
static const char *take_text(void *self) { return row_take_text(self); }
static bytes_t take_bytes(void *self) { return row_take_blob(self); }

void row_put(store_row_t *to, const record_t *r)
{
    static const columns_put_t PUT = {put_number, put_text, put_bytes};
    /* A writer that closed and a worker that is not ready any more lose their row.  The statement that
     * deletes it has the first column alone. */
    if (r->kind == RECORD_WRITER && !r->token) row_put_text(to, r->adapter);
    else if (r->kind == RECORD_WORKER && !*r->serves) row_put_text(to, r->worker);
    else columns_put(r, &PUT, to);
}

void row_take(store_row_t *from, record_t *r)
{
    static const columns_take_t TAKE = {take_number, take_text, take_bytes};
    if (!columns_take(r, &TAKE, from)) from->code = SQLITE_CORRUPT;
}
