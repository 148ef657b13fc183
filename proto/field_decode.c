/* SPDX-License-Identifier: Apache-2.0 */
/* msgpack -> structs, by table. */
#include "core/errors.h"
#include "core/names.h"
#include "proto/field.h"

#include <inttypes.h>
#include <msgpack.h>
#include <stdio.h>

/* Where the decoder is, for its errors: table "JOIN", then "held", row 3, of it. */
typedef struct {
    arena_t *arena;
    heddle_error_t *error;
    const char *message, *list;
    uint32_t index;
} decoder_t;

const char *field_kind_name(field_kind_t kind)
{
    static const char *const NAMES[] = {
#define X(NAME, name) name,
        FIELD_KINDS(X)
#undef X
    };
    return NAMES[kind];
}

static void describe_wanted(const field_t *f, heddle_error_t *error)
{
    const char *kind = field_kind_name(f->kind);
    switch (f->kind) {
    case FIELD_U64: error_expected(error, "%s: an integer from 0 to %" PRIu64, kind, f->max); break;
    case FIELD_I64: error_expected(error, "%s: an integer, at most %" PRIu64 " from 0", kind, f->max); break;
    case FIELD_BOOL: error_expected(error, "%s: true or false", kind); break;
    case FIELD_TEXT:
    case FIELD_NAME:
    case FIELD_BIN:
        error_expected(error, "%s: %s%" PRIu64 " bytes", kind, f->required ? "1 to " : "up to ", f->max);
        break;
    case FIELD_KEY16: error_expected(error, "%s: a bin of 16 bytes", kind); break;
    case FIELD_DIGEST: error_expected(error, "%s: a bin of 32 bytes", kind); break;
    case FIELD_LIST: error_expected(error, "%s: up to %" PRIu64 " maps", kind, f->max); break;
    case FIELD_TEXTS:
        error_expected(error, "%s: up to %" PRIu64 " texts of up to %" PRIu64 " bytes", kind, f->max,
                       f->text_max);
        break;
    case FIELD_U64S: error_expected(error, "%s: up to %" PRIu64 " integers >= 0", kind, f->max); break;
    }
}

/* "JOIN: held[3].version: why" */
static int refuse(const decoder_t *d, int code, const field_t *f, const char *why)
{
    if (!d->list) return error_fail(d->error, code, "%s: %s: %s", d->message, f->key, why);
    return error_fail(d->error, code, "%s: %s[%" PRIu32 "].%s: %s", d->message, d->list, d->index, f->key,
                      why);
}

static int refuse_value(const decoder_t *d, int code, const field_t *f, const msgpack_object *o,
                        const char *why)
{
    int rc = refuse(d, code, f, why);
    describe_wanted(f, d->error);
    heddle_error_t *error = d->error;
    switch (o->type) {
    case MSGPACK_OBJECT_NIL: error_found(error, "nil"); break;
    case MSGPACK_OBJECT_BOOLEAN: error_found(error, "%s", o->via.boolean ? "true" : "false"); break;
    case MSGPACK_OBJECT_POSITIVE_INTEGER: error_found(error, "%" PRIu64, o->via.u64); break;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER: error_found(error, "%" PRId64, o->via.i64); break;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64: error_found(error, "the real %g", o->via.f64); break;
    case MSGPACK_OBJECT_STR: error_found(error, "a text of %" PRIu32 " bytes", o->via.str.size); break;
    case MSGPACK_OBJECT_BIN: error_found(error, "a bin of %" PRIu32 " bytes", o->via.bin.size); break;
    case MSGPACK_OBJECT_ARRAY: error_found(error, "an array of %" PRIu32, o->via.array.size); break;
    case MSGPACK_OBJECT_MAP: error_found(error, "a map of %" PRIu32, o->via.map.size); break;
    case MSGPACK_OBJECT_EXT: error_found(error, "an ext type"); break;
    }
    return rc;
}

static int wrong_kind(const decoder_t *d, const field_t *f, const msgpack_object *o)
{
    return refuse_value(d, HEDDLE_ERR_PROTOCOL, f, o, "wrong kind");
}

static int over_limit(const decoder_t *d, const field_t *f, const msgpack_object *o)
{
    return refuse_value(d, HEDDLE_ERR_LIMIT, f, o, "over the limit");
}

static int no_memory(const decoder_t *d, const field_t *f)
{
    return refuse(d, HEDDLE_ERR_NO_MEMORY, f, "no memory for it");
}

/* Pointers are written as bytes: the lists have many types. */
static void set_pointer(void *place, const void *p) { memcpy(place, &p, sizeof p); }

/* A negative number is a wrong kind, and not a large one: msgpack keeps the two apart. */
static int take_u64(const decoder_t *d, const field_t *f, const msgpack_object *o, uint64_t max,
                    uint64_t *place)
{
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return wrong_kind(d, f, o);
    if (o->via.u64 > max) return over_limit(d, f, o);
    *place = o->via.u64;
    return HEDDLE_OK;
}

static int take_i64(const decoder_t *d, const field_t *f, const msgpack_object *o, int64_t *place)
{
    bool negative = o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER;
    if (!negative && o->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return wrong_kind(d, f, o);
    uint64_t distance = negative ? 0 - (uint64_t)o->via.i64 : o->via.u64;
    if (distance > f->max || distance > INT64_MAX) return over_limit(d, f, o);
    *place = negative ? o->via.i64 : (int64_t)o->via.u64;
    return HEDDLE_OK;
}

static int take_bool(const decoder_t *d, const field_t *f, const msgpack_object *o, bool *place)
{
    if (o->type != MSGPACK_OBJECT_BOOLEAN) return wrong_kind(d, f, o);
    *place = o->via.boolean;
    return HEDDLE_OK;
}

/* Texts are copied into the arena with a NUL. A NUL inside would cut them short without notice, so it
 * is refused. */
static int take_text(const decoder_t *d, const field_t *f, const msgpack_object *o, uint64_t max, void *place)
{
    if (o->type != MSGPACK_OBJECT_STR) return wrong_kind(d, f, o);
    const char *data = o->via.str.ptr;
    uint32_t bytes = o->via.str.size;
    if (bytes > max) return over_limit(d, f, o);
    if (bytes && memchr(data, 0, bytes))
        return refuse_value(d, HEDDLE_ERR_PROTOCOL, f, o, "a NUL is in the text");
    if (!bytes && f->required && f->kind != FIELD_TEXTS)
        return refuse_value(d, HEDDLE_ERR_PROTOCOL, f, o, "must not be empty");
    const char *text = arena_text(d->arena, data, bytes);
    if (!text) return no_memory(d, f);
    if (bytes && f->kind == FIELD_NAME && !name_is_valid(text)) {
        int rc = refuse_value(d, HEDDLE_ERR_PROTOCOL, f, o, "no allowed name");
        error_contrast(d->error, "name: a letter or digit, then up to 127 of letters, digits, '.', '_', '-'",
                       text);
        return rc;
    }
    set_pointer(place, text);
    return HEDDLE_OK;
}

static int take_bin(const decoder_t *d, const field_t *f, const msgpack_object *o, bytes_t *place)
{
    if (o->type != MSGPACK_OBJECT_BIN) return wrong_kind(d, f, o);
    if (o->via.bin.size > f->max) return over_limit(d, f, o);
    *place = bytes_of(o->via.bin.ptr, o->via.bin.size);
    return HEDDLE_OK;
}

/* Keys and digests have one size. Anything else is another kind of value. */
static int take_fixed(const decoder_t *d, const field_t *f, const msgpack_object *o, size_t bytes,
                      void *place)
{
    if (o->type != MSGPACK_OBJECT_BIN || o->via.bin.size != bytes) return wrong_kind(d, f, o);
    memcpy(place, o->via.bin.ptr, bytes);
    return HEDDLE_OK;
}

static int take_row(const decoder_t *d, const table_t *table, const msgpack_object_map *map, void *row);

static int take_item(const decoder_t *d, const field_t *f, const msgpack_object *o, uint32_t index,
                     void *items)
{
    if (f->kind == FIELD_TEXTS) return take_text(d, f, o, f->text_max, (const char **)items + index);
    if (f->kind == FIELD_U64S) return take_u64(d, f, o, UINT64_MAX, (uint64_t *)items + index);
    if (o->type != MSGPACK_OBJECT_MAP) return wrong_kind(d, f, o);
    decoder_t inner = *d;
    inner.list = f->key;
    inner.index = index;
    return take_row(&inner, f->rows, &o->via.map, (uint8_t *)items + index * f->rows->row_bytes);
}

/* The limit is checked before memory is taken for the items. */
static int take_list(const decoder_t *d, const field_t *f, const msgpack_object *o, void *row)
{
    if (o->type != MSGPACK_OBJECT_ARRAY) return wrong_kind(d, f, o);
    const msgpack_object_array *array = &o->via.array;
    if (array->size > f->max) return over_limit(d, f, o);
    size_t each = f->kind == FIELD_LIST ? f->rows->row_bytes : sizeof(uint64_t);
    void *items = array->size ? arena_alloc(d->arena, array->size * each) : NULL;
    if (array->size && !items) return no_memory(d, f);
    for (uint32_t i = 0; i < array->size; i++) {
        int rc = take_item(d, f, &array->ptr[i], i, items);
        if (rc) return rc;
    }
    set_pointer((uint8_t *)row + f->offset, items);
    memcpy((uint8_t *)row + f->count_offset, &array->size, sizeof(uint32_t));
    return HEDDLE_OK;
}

static int take_value(const decoder_t *d, const field_t *f, const msgpack_object *o, void *row)
{
    void *place = (uint8_t *)row + f->offset;
    switch (f->kind) {
    case FIELD_U64: return take_u64(d, f, o, f->max, place);
    case FIELD_I64: return take_i64(d, f, o, place);
    case FIELD_BOOL: return take_bool(d, f, o, place);
    case FIELD_TEXT:
    case FIELD_NAME: return take_text(d, f, o, f->max, place);
    case FIELD_BIN: return take_bin(d, f, o, place);
    case FIELD_KEY16: return take_fixed(d, f, o, 16, place);
    case FIELD_DIGEST: return take_fixed(d, f, o, 32, place);
    case FIELD_LIST:
    case FIELD_TEXTS:
    case FIELD_U64S: return take_list(d, f, o, row);
    }
    return HEDDLE_ERR_INTERNAL;
}

static int check_required(const decoder_t *d, const table_t *table, uint64_t seen)
{
    for (uint32_t i = 0; i < table->count; i++) {
        const field_t *f = &table->fields[i];
        if (!f->required || seen >> i & 1) continue;
        int rc = refuse(d, HEDDLE_ERR_PROTOCOL, f, "the key is required");
        describe_wanted(f, d->error);
        error_found(d->error, "no such key");
        return rc;
    }
    return HEDDLE_OK;
}

static int take_row(const decoder_t *d, const table_t *table, const msgpack_object_map *map, void *row)
{
    uint64_t seen = 0;
    /* A missing text reads as "" and never as NULL, so that handlers need no check. */
    for (uint32_t i = 0; i < table->count; i++) {
        const field_t *f = &table->fields[i];
        if (f->kind == FIELD_TEXT || f->kind == FIELD_NAME) set_pointer((uint8_t *)row + f->offset, "");
    }
    for (uint32_t i = 0; i < map->size; i++) {
        /* Tables are short (at most some thirty fields), so a linear search is faster than a hash. */
        const msgpack_object_str *key = &map->ptr[i].key.via.str;
        const field_t *f = table->fields, *end = f + table->count;
        while (f < end && (strlen(f->key) != key->size || memcmp(f->key, key->ptr, key->size) != 0)) f++;
        if (f == end) continue; /* a key of a later release */
        int rc = take_value(d, f, &map->ptr[i].val, row);
        if (rc) return rc;
        seen |= 1ull << (f - table->fields);
    }
    return check_required(d, table, seen);
}

int table_decode(const table_t *table, const struct msgpack_object *map, arena_t *arena, void *row,
                 heddle_error_t *error)
{
    decoder_t d = {.arena = arena, .error = error, .message = table->name};
    return take_row(&d, table, &map->via.map, row);
}
