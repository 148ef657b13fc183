/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/store_row.h"

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

/* ---- columns --------------------------------------------------------------------------------- */

typedef enum {
    COLUMN_END,
    COLUMN_TEXT,
    COLUMN_U64,
    COLUMN_FLAG,
    COLUMN_CODE,
    COLUMN_STATE,
    COLUMN_SCOPE,
    COLUMN_FIXED,
    COLUMN_BLOB
} column_type_t;
typedef struct {
    column_type_t type;
    size_t at, bytes;
} column_t;

#define COLUMN(type, field)                                                                                  \
    {                                                                                                        \
        COLUMN_##type, offsetof(record_t, field), sizeof((record_t *)0)->field                               \
    }
#define TEXT(field) COLUMN(TEXT, field)
#define U64(field) COLUMN(U64, field)
#define FIXED(field) COLUMN(FIXED, field)

/* One table for both directions, so that what is written is what is read.  The order is that of the columns
 * in the statements of store.c: PUT_..., and ALL_... with the same list. */
static const column_t COLUMNS[][23] = {
    [RECORD_EPOCH] = {U64(epoch)},
    [RECORD_ADAPTER] = {TEXT(adapter), U64(at_ms)},
    [RECORD_VERSION] = {TEXT(adapter),
                        U64(version),
                        U64(at_ms),
                        FIXED(digest),
                        U64(part.payload_bytes),
                        U64(part.manifest_bytes),
                        FIXED(part.manifest_digest),
                        FIXED(share_key),
                        TEXT(request_id),
                        TEXT(writer),
                        TEXT(base_model),
                        TEXT(kind_text),
                        TEXT(features),
                        U64(step),
                        U64(data_bytes),
                        U64(tensor_count),
                        U64(chunk_count),
                        U64(activation),
                        U64(deadline_ms),
                        COLUMN(BLOB, config),
                        TEXT(meta),
                        U64(asked_ms)},
    [RECORD_DECISION] = {TEXT(adapter), U64(decision), U64(version), COLUMN(FLAG, held), TEXT(by), U64(at_ms),
                         COLUMN(SCOPE, scope)},
    [RECORD_STATE] = {COLUMN(STATE, state), U64(at_ms), COLUMN(CODE, code), TEXT(message), TEXT(worker),
                      TEXT(phase), TEXT(adapter), U64(version)},
    [RECORD_WRITER] = {TEXT(adapter), U64(token), TEXT(writer), TEXT(host), U64(pid), FIXED(life),
                       U64(at_ms)},
    [RECORD_FLOOR] = {TEXT(adapter), U64(version), U64(decision)},
    [RECORD_WORKER] = {TEXT(worker), TEXT(host), U64(pid), U64(at_ms), TEXT(serves)},
    [RECORD_LOSS] = {U64(at_ms), TEXT(message), TEXT(adapter), U64(version)},
    [RECORD_STAGED] = {U64(at_ms), TEXT(adapter), U64(version)},
    [RECORD_FORGET] = {TEXT(adapter), U64(version)},
    [RECORD_KEY] = {TEXT(public_key), TEXT(name), TEXT(roles), U64(at_ms), U64(revoked_ms), U64(uses),
                    U64(used), U64(ends_ms)},
    [RECORD_KEY_DROP] = {TEXT(public_key)},
    [RECORD_ADAPTER_DROP] = {TEXT(adapter)},
    [RECORD_ADAPTER_FORGET] = {TEXT(adapter)},
};

void row_put(store_row_t *to, const record_t *r)
{
    /* A writer that closed and a worker that is not ready any more lose their row.  The statement that
     * deletes it has the first column alone. */
    bool is_dropped = (r->kind == RECORD_WRITER && !r->token) || (r->kind == RECORD_WORKER && !*r->serves);
    for (const column_t *c = COLUMNS[r->kind]; c->type; c++) {
        const void *field = (const char *)r + c->at;
        switch (c->type) {
        case COLUMN_TEXT: row_put_text(to, *(const char *const *)field); break;
        case COLUMN_U64: row_put_u64(to, *(const uint64_t *)field); break;
        case COLUMN_FLAG: row_put_u64(to, *(const bool *)field); break;
        case COLUMN_CODE: row_put_u64(to, (uint64_t)(int64_t) * (const int *)field); break;
        case COLUMN_STATE: row_put_u64(to, (uint64_t) * (const version_state_t *)field); break;
        case COLUMN_SCOPE: row_put_u64(to, (uint64_t) * (const scope_t *)field); break;
        case COLUMN_FIXED: put_blob(to, field, c->bytes); break;
        case COLUMN_BLOB: {
            const bytes_t *blob = field;
            put_blob(to, blob->data, blob->bytes);
            break;
        }
        case COLUMN_END: break;
        }
        if (is_dropped) return;
    }
}

void row_take(store_row_t *from, record_t *r)
{
    for (const column_t *c = COLUMNS[r->kind]; c->type; c++) {
        void *field = (char *)r + c->at;
        uint64_t number;
        bytes_t blob;
        switch (c->type) {
        case COLUMN_TEXT: *(const char **)field = row_take_text(from); break;
        case COLUMN_U64: *(uint64_t *)field = row_take_u64(from); break;
        case COLUMN_FLAG: *(bool *)field = row_take_u64(from) != 0; break;
        case COLUMN_CODE: *(int *)field = (int)(int64_t)row_take_u64(from); break;
        case COLUMN_STATE: /* of a state that no record has, the file is damaged */
            number = row_take_u64(from);
            if (number < VERSION_STAGING || number > VERSION_RETIRED) from->code = SQLITE_CORRUPT;
            *(version_state_t *)field = (version_state_t)number;
            break;
        case COLUMN_SCOPE: *(scope_t *)field = (scope_t)row_take_u64(from); break;
        case COLUMN_FIXED: /* a key or digest of another length means the same */
            blob = row_take_blob(from);
            if (blob.bytes != c->bytes) from->code = SQLITE_CORRUPT;
            else memcpy(field, blob.data, c->bytes);
            break;
        case COLUMN_BLOB: *(bytes_t *)field = row_take_blob(from); break;
        case COLUMN_END: break;
        }
    }
}
