/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/registry/store_row.h"

#include <string.h>

/* Each put binds the next column.  The first failure is kept, and the rest does nothing. */
void row_put_u64(row_t *r, uint64_t v)
{
    if (!r->code) r->code = sqlite3_bind_int64(r->sql, ++r->at, (sqlite3_int64)v);
}

void row_put_text(row_t *r, const char *text)
{
    if (!r->code) r->code = sqlite3_bind_text(r->sql, ++r->at, text ? text : "", -1, SQLITE_STATIC);
}

static void put_blob(row_t *r, const void *data, size_t bytes)
{
    if (!r->code) r->code = sqlite3_bind_blob64(r->sql, ++r->at, bytes ? data : "", bytes, SQLITE_STATIC);
}

uint64_t row_take_u64(row_t *r) { return (uint64_t)sqlite3_column_int64(r->sql, r->at++); }

const char *row_take_text(row_t *r)
{
    const char *text = (const char *)sqlite3_column_text(r->sql, r->at++);
    if (!text) r->code = SQLITE_NOMEM; /* every text that is read is there */
    return text ? text : "";
}

bytes_t row_take_blob(row_t *r)
{
    int at = r->at++;
    const void *data = sqlite3_column_blob(r->sql, at); /* before its length, as SQLite asks */
    return bytes_of(data, (size_t)sqlite3_column_bytes(r->sql, at));
}

/* A key or digest of another length means that the file is damaged. */
static void take_fixed(row_t *r, void *to, size_t bytes)
{
    bytes_t blob = row_take_blob(r);
    if (blob.bytes != bytes) r->code = SQLITE_CORRUPT;
    else memcpy(to, blob.data, bytes);
}

/* The order is that of ROW_VERSION_COLUMNS, as in take_version. */
static void put_version(row_t *to, const record_t *r)
{
    row_put_text(to, r->adapter);
    row_put_u64(to, r->version);
    row_put_u64(to, r->at_ms);
    put_blob(to, r->digest.b, sizeof r->digest.b);
    row_put_u64(to, r->part.region_bytes);
    row_put_u64(to, r->part.manifest_bytes);
    put_blob(to, r->part.manifest_digest.b, sizeof r->part.manifest_digest.b);
    put_blob(to, r->share_key.b, sizeof r->share_key.b);
    row_put_text(to, r->request_id);
    row_put_text(to, r->writer);
    row_put_text(to, r->base_model);
    row_put_text(to, r->kind_text);
    row_put_text(to, r->features);
    row_put_u64(to, (uint64_t)r->step);
    row_put_u64(to, r->data_bytes);
    row_put_u64(to, r->tensor_count);
    row_put_u64(to, r->chunk_count);
    row_put_u64(to, r->activation);
    row_put_u64(to, r->deadline_ms);
    put_blob(to, r->config.data, r->config.bytes);
    row_put_text(to, r->meta);
    row_put_u64(to, r->asked_ms);
}

static void take_version(row_t *from, record_t *r)
{
    r->adapter = row_take_text(from);
    r->version = row_take_u64(from);
    r->at_ms = row_take_u64(from);
    take_fixed(from, r->digest.b, sizeof r->digest.b);
    r->part.region_bytes = row_take_u64(from);
    r->part.manifest_bytes = row_take_u64(from);
    take_fixed(from, r->part.manifest_digest.b, sizeof r->part.manifest_digest.b);
    take_fixed(from, r->share_key.b, sizeof r->share_key.b);
    r->request_id = row_take_text(from);
    r->writer = row_take_text(from);
    r->base_model = row_take_text(from);
    r->kind_text = row_take_text(from);
    r->features = row_take_text(from);
    r->step = (int64_t)row_take_u64(from);
    r->data_bytes = row_take_u64(from);
    r->tensor_count = row_take_u64(from);
    r->chunk_count = row_take_u64(from);
    r->activation = row_take_u64(from);
    r->deadline_ms = row_take_u64(from);
    r->config = row_take_blob(from);
    r->meta = row_take_text(from);
    r->asked_ms = row_take_u64(from);
}

/* The columns of each case have the order of the statement that it is bound to (PUT_... in store.c), and so
 * has row_take: a column that moves must move in all three. */
void row_put(row_t *to, const record_t *r)
{
    switch (r->kind) {
    case RECORD_EPOCH: row_put_u64(to, r->epoch); break;
    case RECORD_ADAPTER:
        row_put_text(to, r->adapter);
        row_put_u64(to, r->at_ms);
        break;
    case RECORD_VERSION: put_version(to, r); break;
    case RECORD_DECISION:
        row_put_text(to, r->adapter);
        row_put_u64(to, r->decision);
        row_put_u64(to, r->version);
        row_put_u64(to, r->held);
        row_put_text(to, r->by);
        row_put_u64(to, r->at_ms);
        row_put_u64(to, (uint64_t)r->scope);
        break;
    case RECORD_STATE:
        row_put_u64(to, r->state);
        row_put_u64(to, r->at_ms);
        row_put_u64(to, (uint64_t)(int64_t)r->code);
        row_put_text(to, r->message);
        row_put_text(to, r->worker);
        row_put_text(to, r->phase);
        row_put_text(to, r->adapter);
        row_put_u64(to, r->version);
        break;
    case RECORD_WRITER:
        row_put_text(to, r->adapter);
        if (!r->token) break; /* closed: the row goes */
        row_put_u64(to, r->token);
        row_put_text(to, r->writer);
        row_put_text(to, r->host);
        row_put_u64(to, r->pid);
        put_blob(to, r->life.b, sizeof r->life.b);
        row_put_u64(to, r->at_ms);
        break;
    case RECORD_FLOOR:
        row_put_text(to, r->adapter);
        row_put_u64(to, r->version);
        row_put_u64(to, r->decision);
        break;
    case RECORD_WORKER:
        row_put_text(to, r->worker);
        if (!*r->serves) break; /* not ready any more: the row goes */
        row_put_text(to, r->host);
        row_put_u64(to, r->pid);
        row_put_u64(to, r->at_ms);
        row_put_text(to, r->serves);
        break;
    case RECORD_LOSS:
        row_put_u64(to, r->at_ms);
        row_put_text(to, r->message);
        row_put_text(to, r->adapter);
        row_put_u64(to, r->version);
        break;
    case RECORD_FORGET:
        row_put_text(to, r->adapter);
        row_put_u64(to, r->version);
        break;
    case RECORD_KEY:
        row_put_text(to, r->public_key);
        row_put_text(to, r->name);
        row_put_text(to, r->roles);
        row_put_u64(to, r->at_ms);
        row_put_u64(to, r->revoked_ms);
        break;
    case RECORD_KEY_DROP: row_put_text(to, r->public_key); break;
    }
}

void row_take(row_t *from, record_t *r)
{
    switch (r->kind) {
    case RECORD_EPOCH: r->epoch = row_take_u64(from); break;
    case RECORD_ADAPTER:
        r->adapter = row_take_text(from);
        r->at_ms = row_take_u64(from);
        break;
    case RECORD_VERSION: take_version(from, r); break;
    case RECORD_DECISION:
        r->adapter = row_take_text(from);
        r->decision = row_take_u64(from);
        r->version = row_take_u64(from);
        r->held = row_take_u64(from) != 0;
        r->by = row_take_text(from);
        r->at_ms = row_take_u64(from);
        r->scope = (scope_t)row_take_u64(from);
        break;
    case RECORD_STATE: {
        uint64_t state = row_take_u64(from);
        if (state < VERSION_STAGING || state > VERSION_RETIRED) from->code = SQLITE_CORRUPT;
        r->state = (version_state_t)state;
        r->at_ms = row_take_u64(from);
        r->code = (int)(int64_t)row_take_u64(from);
        r->message = row_take_text(from);
        r->worker = row_take_text(from);
        r->phase = row_take_text(from);
        r->adapter = row_take_text(from);
        r->version = row_take_u64(from);
        break;
    }
    case RECORD_WRITER:
        r->adapter = row_take_text(from);
        r->token = row_take_u64(from);
        r->writer = row_take_text(from);
        r->host = row_take_text(from);
        r->pid = row_take_u64(from);
        take_fixed(from, r->life.b, sizeof r->life.b);
        r->at_ms = row_take_u64(from);
        break;
    case RECORD_FLOOR:
        r->adapter = row_take_text(from);
        r->version = row_take_u64(from);
        r->decision = row_take_u64(from);
        break;
    case RECORD_WORKER:
        r->worker = row_take_text(from);
        r->host = row_take_text(from);
        r->pid = row_take_u64(from);
        r->at_ms = row_take_u64(from);
        r->serves = row_take_text(from);
        break;
    case RECORD_LOSS:
        r->at_ms = row_take_u64(from);
        r->message = row_take_text(from);
        r->adapter = row_take_text(from);
        r->version = row_take_u64(from);
        break;
    case RECORD_KEY:
        r->public_key = row_take_text(from);
        r->name = row_take_text(from);
        r->roles = row_take_text(from);
        r->at_ms = row_take_u64(from);
        r->revoked_ms = row_take_u64(from);
        break;
    case RECORD_FORGET:
    case RECORD_KEY_DROP: break; /* have no row */
    }
}
