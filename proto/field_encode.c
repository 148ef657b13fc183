/* SPDX-License-Identifier: Apache-2.0 */
/* Structs -> msgpack, by table. */
#include "core/names.h"
#include "proto/field.h"
#include "proto/utf8.h"

#include <msgpack.h>

typedef struct { buf_t *out; msgpack_packer packer; } encoder_t;

/* msgpack-c writes through this callback, so a message needs no buffer besides the caller's. */
static int sink(void *out, const char *data, size_t bytes)
{
    buf_add(out, data, bytes);
    return ((buf_t *)out)->failed ? -1 : 0;
}

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

static int put_name(encoder_t *e, const char *name, const field_t *f)
{
    bool empty = !name || !*name;
    if (!empty && !name_is_valid(name)) return HEDDLE_ERR_PROTOCOL;
    return put_text(e, name, f->max);
}

static int put_bin(encoder_t *e, const void *data, size_t bytes, uint64_t max)
{
    if (bytes > max) return HEDDLE_ERR_LIMIT;
    msgpack_pack_bin(&e->packer, bytes);
    buf_add(e->out, data, bytes);
    return HEDDLE_OK;
}

static int put_u64(encoder_t *e, uint64_t value, uint64_t max)
{
    if (value > max) return HEDDLE_ERR_LIMIT;
    msgpack_pack_uint64(&e->packer, value);
    return HEDDLE_OK;
}

static int put_i64(encoder_t *e, int64_t value, uint64_t max)
{
    uint64_t distance = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (distance > max) return HEDDLE_ERR_LIMIT;
    msgpack_pack_int64(&e->packer, value);
    return HEDDLE_OK;
}

static int put_bool(encoder_t *e, bool value)
{
    if (value) msgpack_pack_true(&e->packer);
    else msgpack_pack_false(&e->packer);
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

static int put_value(encoder_t *e, const field_t *f, const void *row)
{
    const void *place = place_of(f, row);
    const bytes_t *bin = place;
    switch (f->kind) {
    case FIELD_U64: return put_u64(e, *(const uint64_t *)place, f->max);
    case FIELD_I64: return put_i64(e, *(const int64_t *)place, f->max);
    case FIELD_BOOL: return put_bool(e, *(const bool *)place);
    case FIELD_TEXT: return put_text(e, pointer_at(place), f->max);
    case FIELD_NAME: return put_name(e, pointer_at(place), f);
    case FIELD_BIN: return put_bin(e, bin->data, bin->bytes, f->max);
    case FIELD_KEY16: return put_bin(e, place, 16, 16);
    case FIELD_DIGEST: return put_bin(e, place, 32, 32);
    case FIELD_LIST:
    case FIELD_TEXTS:
    case FIELD_U64S: return put_list(e, f, row);
    }
    return HEDDLE_ERR_INTERNAL;
}

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

int table_encode(const table_t *table, const void *row, buf_t *out)
{
    encoder_t e = {.out = out};
    msgpack_packer_init(&e.packer, out, sink);
    return put_row(&e, table, row);
}
