/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/columns.h"

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
 * in the statements of store.c, PUT_... and ALL_... with the same list, and of the values in etcd
 * (rows_value.h).  A column is only ever added at the end. */
static const column_t COLUMNS[][23] = {
    [RECORD_EPOCH] = {U64(epoch)},
    [RECORD_ADAPTER] = {TEXT(adapter), U64(at_ms)},
    [RECORD_VERSION] = {TEXT(adapter),
                        U64(version),
                        U64(at_ms),
                        FIXED(digest),
                        U64(parts.part[0].payload_bytes),
                        U64(parts.part[0].manifest_bytes),
                        FIXED(parts.part[0].manifest_digest),
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
                    U64(used), U64(ends_ms), TEXT(entered_by)},
    [RECORD_KEY_DROP] = {TEXT(public_key)},
    [RECORD_KEYS_REVOKE] = {TEXT(public_key), U64(revoked_ms)},
    [RECORD_ADAPTER_DROP] = {TEXT(adapter)},
    [RECORD_ADAPTER_FORGET] = {TEXT(adapter)},
};

void columns_put(const record_t *r, const columns_put_t *to, void *self)
{
    for (const column_t *c = COLUMNS[r->kind];; c++) {
        const void *field = (const char *)r + c->at;
        switch (c->type) {
        case COLUMN_TEXT: to->text(self, *(const char *const *)field); break;
        case COLUMN_U64: to->number(self, *(const uint64_t *)field); break;
        case COLUMN_FLAG: to->number(self, *(const bool *)field); break;
        case COLUMN_CODE: to->number(self, (uint64_t)(int64_t) * (const int *)field); break;
        case COLUMN_STATE: to->number(self, (uint64_t) * (const version_state_t *)field); break;
        case COLUMN_SCOPE: to->number(self, (uint64_t) * (const scope_t *)field); break;
        case COLUMN_FIXED: to->blob(self, bytes_of(field, c->bytes)); break;
        case COLUMN_BLOB: to->blob(self, *(const bytes_t *)field); break;
        case COLUMN_END: return;
        }
    }
}

bool columns_take(record_t *r, const columns_take_t *from, void *self)
{
    bool is_good = true;
    if (r->kind == RECORD_VERSION) r->parts.count = 1;
    for (const column_t *c = COLUMNS[r->kind];; c++) {
        void *field = (char *)r + c->at;
        uint64_t number;
        bytes_t blob;
        switch (c->type) {
        case COLUMN_TEXT: *(const char **)field = from->text(self); break;
        case COLUMN_U64: *(uint64_t *)field = from->number(self); break;
        case COLUMN_FLAG: *(bool *)field = from->number(self) != 0; break;
        case COLUMN_CODE: *(int *)field = (int)(int64_t)from->number(self); break;
        case COLUMN_STATE: /* of a state that no record has, the row is damaged */
            number = from->number(self);
            if (number < VERSION_STAGING || number > VERSION_RETIRED) is_good = false;
            *(version_state_t *)field = (version_state_t)number;
            break;
        case COLUMN_SCOPE: *(scope_t *)field = (scope_t)from->number(self); break;
        case COLUMN_FIXED: /* a key or digest of another length means the same */
            blob = from->blob(self);
            if (blob.bytes != c->bytes) is_good = false;
            else memcpy(field, blob.data, c->bytes);
            break;
        case COLUMN_BLOB: *(bytes_t *)field = from->blob(self); break;
        case COLUMN_END: return is_good;
        }
    }
}
