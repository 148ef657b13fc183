/* SPDX-License-Identifier: Apache-2.0 */
/* Structs <-> msgpack, by table.  Both directions are switches over the kind of a field, so that a new kind
 * is refused by the compiler until both know it. */
#include "core/errors.h"
#include "core/names.h"
#include "core/utf8.h"
#include "proto/field.h"
#include "proto/scan.h"

#include <inttypes.h>
#include <msgpack.h>
#include <stdio.h>

/* Errors and docs/protocol.md call a kind by the same name. */
const char *field_kind_name(field_kind_t kind)
{
    static const char *const NAMES[] = {
#define X(NAME, name) name,
        FIELD_KINDS(X)
#undef X
    };
    return NAMES[kind];
}

/* ---- structs -> msgpack ---- */

typedef struct {
    buf_t *out;
    msgpack_packer packer;
} encoder_t;

/* Pointers are read as bytes: the lists have many types. */
static const void *pointer_at(const void *place)
{
    const void *p;
    memcpy(&p, place, sizeof p);
    return p;
}

static const void *place_of(const field_t *f, const void *row) { return (const uint8_t *)row + f->offset; }
static uint32_t count_of(const field_t *f, const void *row)
{
    return *(const uint32_t *)(const void *)((const uint8_t *)row + f->count_offset);
}

/* A key or digest of zeros is none: no random key and no digest comes out so. */
static bool all_zero(const uint8_t *p, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && p[i] == 0) i++;
    return i == bytes;
}

/* A field that is zero and not required is left out: a message without it means the same. */
static bool is_zero(const field_t *f, const void *row)
{
    const void *place = place_of(f, row);
    switch (f->kind) {
    case FIELD_U64:
    case FIELD_I64: return *(const uint64_t *)place == 0;
    case FIELD_BOOL: return !*(const bool *)place;
    case FIELD_TEXT:
    case FIELD_NAME: return !pointer_at(place) || !*(const char *)pointer_at(place);
    case FIELD_BIN: return ((const bytes_t *)place)->bytes == 0;
    case FIELD_KEY16: return all_zero(place, 16);
    case FIELD_DIGEST: return all_zero(place, 32);
    case FIELD_LIST:
    case FIELD_TEXTS:
    case FIELD_U64S: return count_of(f, row) == 0;
    }
    return true;
}

/* Text is cleaned to valid UTF-8 on the way out. The receiver would refuse the whole message
 * otherwise. */
static int put_text(encoder_t *e, const char *text, uint64_t max)
{
    size_t bytes = text ? strlen(text) : 0;
    if (bytes > max) return HEDDLE_ERR_LIMIT;
    msgpack_pack_str(&e->packer, bytes);
    utf8_add_clean(e->out, text, bytes);
    return HEDDLE_OK;
}

/* Bytes that are longer than their limit would make the receiver refuse the whole message. */
static int put_bin(encoder_t *e, const void *data, size_t bytes, uint64_t max)
{
    if (bytes > max) return HEDDLE_ERR_LIMIT;
    msgpack_pack_bin(&e->packer, bytes);
    buf_add(e->out, data, bytes);
    return HEDDLE_OK;
}

/* Limits hold for the sender too: there is the bug, and not at the receiver that refuses the message. */
static int put_u64(encoder_t *e, uint64_t value, uint64_t max)
{
    if (value > max) return HEDDLE_ERR_LIMIT;
    msgpack_pack_uint64(&e->packer, value);
    return HEDDLE_OK;
}

static int put_row(encoder_t *e, const table_t *table, const void *row);

/* Lists longer than their limit are an error of the sender: the receiver would refuse the message. */
static int put_list(encoder_t *e, const field_t *f, const void *row)
{
    const void *items = pointer_at(place_of(f, row));
    uint32_t count = count_of(f, row);
    if (count > f->max) return HEDDLE_ERR_LIMIT;
    msgpack_pack_array(&e->packer, count);
    int rc = HEDDLE_OK;
    for (uint32_t i = 0; i < count && rc == HEDDLE_OK; i++) {
        if (f->kind == FIELD_LIST) rc = put_row(e, f->rows, (const uint8_t *)items + i * f->rows->row_bytes);
        else if (f->kind == FIELD_TEXTS) rc = put_text(e, ((const char *const *)items)[i], f->text_max);
        else rc = put_u64(e, ((const uint64_t *)items)[i], UINT64_MAX);
    }
    return rc;
}

/* A limit is an error of the sender: the receiver would refuse the whole message. */
static int put_value(encoder_t *e, const field_t *f, const void *row)
{
    const void *place = place_of(f, row);
    switch (f->kind) {
    case FIELD_U64: return put_u64(e, *(const uint64_t *)place, f->max);
    case FIELD_I64: {
        int64_t value = *(const int64_t *)place;
        uint64_t distance = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
        if (distance > f->max) return HEDDLE_ERR_LIMIT;
        msgpack_pack_int64(&e->packer, value);
        return HEDDLE_OK;
    }
    case FIELD_BOOL:
        if (*(const bool *)place) msgpack_pack_true(&e->packer);
        else msgpack_pack_false(&e->packer);
        return HEDDLE_OK;
    case FIELD_NAME: {
        const char *name = pointer_at(place);
        if (name && *name && !name_is_valid(name)) return HEDDLE_ERR_PROTOCOL;
        return put_text(e, name, f->max);
    }
    case FIELD_TEXT: return put_text(e, pointer_at(place), f->max);
    case FIELD_BIN: {
        const bytes_t *bin = place;
        return put_bin(e, bin->data, bin->bytes, f->max);
    }
    case FIELD_KEY16: return put_bin(e, place, 16, 16);
    case FIELD_DIGEST: return put_bin(e, place, 32, 32);
    case FIELD_LIST:
    case FIELD_TEXTS:
    case FIELD_U64S: return put_list(e, f, row);
    }
    return HEDDLE_ERR_INTERNAL;
}

/* The map begins with the number of its pairs, so the fields are walked twice: once to count them. */
static int put_row(encoder_t *e, const table_t *table, const void *row)
{
    uint32_t present = 0;
    for (uint32_t i = 0; i < table->count; i++)
        present += table->fields[i].required || !is_zero(&table->fields[i], row);
    msgpack_pack_map(&e->packer, present);
    for (uint32_t i = 0; i < table->count; i++) {
        const field_t *f = &table->fields[i];
        bool zero = is_zero(f, row);
        if (zero && !f->required) continue;
        if (zero && (f->kind == FIELD_TEXT || f->kind == FIELD_NAME)) return HEDDLE_ERR_PROTOCOL;
        put_text(e, f->key, SIZE_MAX);
        int rc = put_value(e, f, row);
        if (rc) return rc;
    }
    return HEDDLE_OK;
}

/* The caller takes back what a failed call has appended: it alone knows where its message began. */
int table_encode(const table_t *table, const void *row, buf_t *out)
{
    encoder_t e = {.out = out};
    msgpack_packer_init(&e.packer, out, scan_sink);
    return put_row(&e, table, row);
}

/* ---- msgpack -> structs ---- */

/* Where the decoder is, for its errors: table "JOIN", then "held", row 3, of it. */
typedef struct {
    arena_t *arena;
    heddle_error_t *error;
    const char *message, *list;
    uint32_t index;
} decoder_t;

/* The errors of a missing and of a wrong value say alike what was expected. */
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

/* An operator sees both ends of a disagreement here: what this release wants of the field, and what a
 * peer, perhaps of another release, has sent. */
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

/* The code says which side is wrong: a value of another kind is a bug or another protocol. */
static int wrong_kind(const decoder_t *d, const field_t *f, const msgpack_object *o)
{
    return refuse_value(d, HEDDLE_ERR_PROTOCOL, f, o, "wrong kind");
}

/* A value over its limit may come from a peer that is configured for more than this process takes. */
static int over_limit(const decoder_t *d, const field_t *f, const msgpack_object *o)
{
    return refuse_value(d, HEDDLE_ERR_LIMIT, f, o, "over the limit");
}

/* No fault of the peer: the message is dropped, and its sender repeats it. */
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

/* Texts are copied into the arena with a NUL. A NUL inside would cut them short without notice, so it
 * is refused. */
static int take_text(const decoder_t *d, const field_t *f, const msgpack_object *o, uint64_t max, void *place)
{
    if (o->type != MSGPACK_OBJECT_STR) return wrong_kind(d, f, o);
    const char *data = o->via.str.ptr;
    uint32_t bytes = o->via.str.size;
    if (bytes > max) return over_limit(d, f, o);
    if (bytes && memchr(data, 0, bytes))
        return refuse_value(d, HEDDLE_ERR_PROTOCOL, f, o, "the text contains a NUL");
    if (!bytes && f->required && f->kind != FIELD_TEXTS)
        return refuse_value(d, HEDDLE_ERR_PROTOCOL, f, o, "must not be empty");
    const char *text = arena_text(d->arena, data, bytes);
    if (!text) return no_memory(d, f);
    if (bytes && f->kind == FIELD_NAME && !name_is_valid(text)) {
        int rc = refuse_value(d, HEDDLE_ERR_PROTOCOL, f, o, "not an allowed name");
        error_contrast(d->error, "name: a letter or digit, then up to 127 of letters, digits, '.', '_', '-'",
                       text);
        return rc;
    }
    set_pointer(place, text);
    return HEDDLE_OK;
}

static int take_row(const decoder_t *d, const table_t *table, const msgpack_object_map *map, void *row);

/* The limit is checked before memory is taken for the items. */
static int take_list(const decoder_t *d, const field_t *f, const msgpack_object *o, void *row)
{
    if (o->type != MSGPACK_OBJECT_ARRAY) return wrong_kind(d, f, o);
    const msgpack_object_array *array = &o->via.array;
    if (array->size > f->max) return over_limit(d, f, o);
    size_t each = f->kind == FIELD_LIST ? f->rows->row_bytes : sizeof(uint64_t);
    void *items = array->size ? arena_alloc(d->arena, array->size * each) : NULL;
    if (array->size && !items) return no_memory(d, f);
    decoder_t inner = *d;
    inner.list = f->key;
    int rc = HEDDLE_OK;
    for (uint32_t i = 0; i < array->size && !rc; i++) {
        const msgpack_object *item = &array->ptr[i];
        inner.index = i;
        if (f->kind == FIELD_TEXTS) rc = take_text(d, f, item, f->text_max, (const char **)items + i);
        else if (f->kind == FIELD_U64S) rc = take_u64(d, f, item, UINT64_MAX, (uint64_t *)items + i);
        else if (item->type != MSGPACK_OBJECT_MAP) rc = wrong_kind(d, f, item);
        else rc = take_row(&inner, f->rows, &item->via.map, (uint8_t *)items + i * each);
    }
    if (rc) return rc;
    set_pointer((uint8_t *)row + f->offset, items);
    memcpy((uint8_t *)row + f->count_offset, &array->size, sizeof(uint32_t));
    return HEDDLE_OK;
}

/* Each kind has one type on the wire; a value of another type, or a key or digest of another size, is of the
 * wrong kind. */
static int take_value(const decoder_t *d, const field_t *f, const msgpack_object *o, void *row)
{
    void *place = (uint8_t *)row + f->offset;
    switch (f->kind) {
    case FIELD_U64: return take_u64(d, f, o, f->max, place);
    case FIELD_I64: {
        bool negative = o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER;
        if (!negative && o->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return wrong_kind(d, f, o);
        uint64_t distance = negative ? 0 - (uint64_t)o->via.i64 : o->via.u64;
        if (distance > f->max || distance > INT64_MAX) return over_limit(d, f, o);
        *(int64_t *)place = negative ? o->via.i64 : (int64_t)o->via.u64;
        return HEDDLE_OK;
    }
    case FIELD_BOOL:
        if (o->type != MSGPACK_OBJECT_BOOLEAN) return wrong_kind(d, f, o);
        *(bool *)place = o->via.boolean;
        return HEDDLE_OK;
    case FIELD_TEXT:
    case FIELD_NAME: return take_text(d, f, o, f->max, place);
    case FIELD_BIN:
        if (o->type != MSGPACK_OBJECT_BIN) return wrong_kind(d, f, o);
        if (o->via.bin.size > f->max) return over_limit(d, f, o);
        *(bytes_t *)place = bytes_of(o->via.bin.ptr, o->via.bin.size);
        return HEDDLE_OK;
    case FIELD_KEY16:
    case FIELD_DIGEST: {
        size_t bytes = f->kind == FIELD_KEY16 ? 16 : 32;
        if (o->type != MSGPACK_OBJECT_BIN || o->via.bin.size != bytes) return wrong_kind(d, f, o);
        memcpy(place, o->via.bin.ptr, bytes);
        return HEDDLE_OK;
    }
    case FIELD_LIST:
    case FIELD_TEXTS:
    case FIELD_U64S: return take_list(d, f, o, row);
    }
    return HEDDLE_ERR_INTERNAL;
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

/* The scan before it has bounded depth and lengths, so the recursion into rows ends. */
int table_decode(const table_t *table, const struct msgpack_object *map, arena_t *arena, void *row,
                 heddle_error_t *error)
{
    decoder_t d = {.arena = arena, .error = error, .message = table->name};
    return take_row(&d, table, &map->via.map, row);
}
