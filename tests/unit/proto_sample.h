/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of messages made from the tables: every field set, and a second writer of msgpack that owes nothing
 * to the encoder under test. */
#ifndef TESTS_PROTO_SAMPLE_H
#define TESTS_PROTO_SAMPLE_H

#include "core/limits.h"
#include "proto/field.h"
#include "proto/msg.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

/* X: every message type. */
static const int TYPES[] = {
#define X(NAME, number, name, who) number,
    MSG_TYPES(X)
#undef X
};
#define TYPE_COUNT (sizeof TYPES / sizeof *TYPES)

/* --- raw msgpack: the shortest form of each object --- */

static inline void raw_head(buf_t *b, uint8_t head, uint64_t n, int width)
{
    buf_add(b, &head, 1);
    for (int i = width - 1; i >= 0; i--) {
        uint8_t byte = (uint8_t)(n >> 8 * i);
        buf_add(b, &byte, 1);
    }
}

static inline void raw_sized(buf_t *b, uint64_t n, uint8_t fix, uint64_t fix_max, const uint8_t heads[3])
{
    if (n <= fix_max) raw_head(b, (uint8_t)(fix | n), 0, 0);
    else if (n <= 0xff && heads[0]) raw_head(b, heads[0], n, 1);
    else if (n <= 0xffff) raw_head(b, heads[1], n, 2);
    else raw_head(b, heads[2], n, 4);
}

static inline void raw_array(buf_t *b, uint64_t n)
{
    raw_sized(b, n, 0x90, 15, (const uint8_t[]){0, 0xdc, 0xdd});
}
static inline void raw_map(buf_t *b, uint64_t n)
{
    raw_sized(b, n, 0x80, 15, (const uint8_t[]){0, 0xde, 0xdf});
}
static inline void raw_str_head(buf_t *b, uint64_t n)
{
    raw_sized(b, n, 0xa0, 31, (const uint8_t[]){0xd9, 0xda, 0xdb});
}
static inline void raw_text(buf_t *b, const char *text)
{
    raw_str_head(b, strlen(text));
    buf_add_text(b, text);
}
static inline void raw_bin(buf_t *b, const void *data, size_t n)
{
    if (n <= 0xff) raw_head(b, 0xc4, n, 1);
    else if (n <= 0xffff) raw_head(b, 0xc5, n, 2);
    else raw_head(b, 0xc6, n, 4);
    buf_add(b, data, n);
}
static inline void raw_u64(buf_t *b, uint64_t v)
{
    if (v < 0x80) raw_head(b, (uint8_t)v, 0, 0);
    else if (v <= 0xff) raw_head(b, 0xcc, v, 1);
    else if (v <= 0xffff) raw_head(b, 0xcd, v, 2);
    else if (v <= 0xffffffff) raw_head(b, 0xce, v, 4);
    else raw_head(b, 0xcf, v, 8);
}
static inline void raw_i64(buf_t *b, int64_t v)
{
    if (v >= 0) raw_u64(b, (uint64_t)v);
    else if (v >= -32) raw_head(b, (uint8_t)v, 0, 0);
    else if (v >= INT8_MIN) raw_head(b, 0xd0, (uint64_t)v, 1);
    else if (v >= INT16_MIN) raw_head(b, 0xd1, (uint64_t)v, 2);
    else if (v >= INT32_MIN) raw_head(b, 0xd2, (uint64_t)v, 4);
    else raw_head(b, 0xd3, (uint64_t)v, 8);
}

/* --- members of a row by field --- */

static inline void *member(const field_t *f, void *row) { return (uint8_t *)row + f->offset; }
static inline const void *member_const(const field_t *f, const void *row)
{
    return (const uint8_t *)row + f->offset;
}
static inline void *pointer_of(const field_t *f, const void *row)
{
    void *p;
    memcpy(&p, member_const(f, row), sizeof p);
    return p;
}
static inline uint32_t count_of(const field_t *f, const void *row)
{
    uint32_t n;
    memcpy(&n, (const uint8_t *)row + f->count_offset, sizeof n);
    return n;
}
static inline void set_list(const field_t *f, void *row, void *items, uint32_t count)
{
    memcpy(member(f, row), &items, sizeof items);
    memcpy((uint8_t *)row + f->count_offset, &count, sizeof count);
}
static inline bool is_list(const field_t *f) { return f->kind >= FIELD_LIST; }
static inline size_t item_bytes(const field_t *f)
{
    return f->kind == FIELD_LIST ? f->rows->row_bytes : sizeof(void *);
}

/* --- a row with every field set; `seed` counts up, so no two fields are alike --- */

static inline char *sample_text(arena_t *a, const char *key, const char *between, uint64_t max, uint32_t seed)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%s%s%u", key, between, seed);
    cr_assert(n > 0 && (uint64_t)n <= max, "the limit of %s is too small for a sample", key);
    return arena_text(a, text, (size_t)n);
}

static inline void *sample_bytes(arena_t *a, size_t n, uint32_t seed)
{
    uint8_t *p = arena_alloc(a, n);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(seed * 16 + i);
    return p;
}

static inline uint64_t sample_u64(uint64_t max, uint32_t seed)
{
    if (max == UINT64_MAX) return 7ull << 32 | seed;
    return seed * 257ull > max ? max : seed * 257ull;
}

static inline void fill_row(const table_t *t, void *row, arena_t *a, uint32_t *seed);

static inline void fill_list(const field_t *f, void *row, arena_t *a, uint32_t *seed)
{
    uint8_t *items = arena_alloc(a, 2 * item_bytes(f));
    for (uint32_t i = 0; i < 2; i++) {
        void *item = items + i * item_bytes(f);
        if (f->kind == FIELD_LIST) {
            fill_row(f->rows, item, a, seed);
            continue;
        }
        uint64_t number = sample_u64(UINT64_MAX, ++*seed);
        char *text = sample_text(a, f->key, "=", f->kind == FIELD_TEXTS ? f->text_max : 64, *seed);
        memcpy(item, f->kind == FIELD_TEXTS ? (void *)&text : (void *)&number, sizeof(void *));
    }
    set_list(f, row, items, 2);
}

static inline void fill_field(const field_t *f, void *row, arena_t *a, uint32_t *seed)
{
    void *at = member(f, row);
    uint32_t s = ++*seed;
    char *text;
    switch (f->kind) {
    case FIELD_U64: *(uint64_t *)at = sample_u64(f->max, s); break;
    case FIELD_I64: *(int64_t *)at = -(int64_t)s; break;
    case FIELD_BOOL: *(bool *)at = true; break;
    case FIELD_TEXT:
        text = sample_text(a, f->key, " \xc3\xa9 ", f->max, s);
        memcpy(at, &text, sizeof text);
        break;
    case FIELD_NAME:
        text = sample_text(a, f->key, "-", f->max, s);
        memcpy(at, &text, sizeof text);
        break;
    case FIELD_BIN: *(bytes_t *)at = bytes_of(sample_bytes(a, 5, s), 5); break;
    case FIELD_KEY16: memcpy(at, sample_bytes(a, 16, s), 16); break;
    case FIELD_DIGEST: memcpy(at, sample_bytes(a, 32, s), 32); break;
    case FIELD_LIST:
    case FIELD_TEXTS:
    case FIELD_U64S: fill_list(f, row, a, seed); break;
    }
}

static inline void fill_row(const table_t *t, void *row, arena_t *a, uint32_t *seed)
{
    for (uint32_t i = 0; i < t->count; i++) fill_field(&t->fields[i], row, a, seed);
}

/* Every field of the type set.  The texts belong to m->arena: msg_fini. */
static inline msg_t sample(int type)
{
    msg_t m = {.type = (msg_type_t)type};
    uint32_t seed = 0;
    fill_row(msg_table(type), &m.hello, &m.arena, &seed);
    return m;
}

/* --- a row as bytes, without the field `skip` --- */

static inline void raw_row(buf_t *b, const table_t *t, const void *row, const field_t *skip);

static inline void raw_field(buf_t *b, const field_t *f, const void *row)
{
    const void *at = member_const(f, row);
    const uint8_t *items = is_list(f) ? pointer_of(f, row) : NULL;
    switch (f->kind) {
    case FIELD_U64: raw_u64(b, *(const uint64_t *)at); break;
    case FIELD_I64: raw_i64(b, *(const int64_t *)at); break;
    case FIELD_BOOL: raw_head(b, *(const bool *)at ? 0xc3 : 0xc2, 0, 0); break;
    case FIELD_TEXT:
    case FIELD_NAME: raw_text(b, pointer_of(f, row)); break;
    case FIELD_BIN: raw_bin(b, ((const bytes_t *)at)->data, ((const bytes_t *)at)->bytes); break;
    case FIELD_KEY16: raw_bin(b, at, 16); break;
    case FIELD_DIGEST: raw_bin(b, at, 32); break;
    case FIELD_LIST:
    case FIELD_TEXTS:
    case FIELD_U64S:
        raw_array(b, count_of(f, row));
        for (uint32_t i = 0; i < count_of(f, row); i++) {
            if (f->kind == FIELD_LIST) raw_row(b, f->rows, items + i * f->rows->row_bytes, NULL);
            else if (f->kind == FIELD_TEXTS) raw_text(b, ((const char *const *)(const void *)items)[i]);
            else raw_u64(b, ((const uint64_t *)(const void *)items)[i]);
        }
    }
}

static inline void raw_row(buf_t *b, const table_t *t, const void *row, const field_t *skip)
{
    raw_map(b, t->count - (skip ? 1 : 0));
    for (uint32_t i = 0; i < t->count; i++) {
        if (&t->fields[i] == skip) continue;
        raw_text(b, t->fields[i].key);
        raw_field(b, &t->fields[i], row);
    }
}

static inline void raw_type(buf_t *b, int type)
{
    raw_array(b, 2);
    raw_u64(b, (uint64_t)type);
}

/* --- each field of each message, the rows of lists too --- */

/* `outer`: the list that `f` is in, NULL when it is a field of the message itself. */
typedef void (*visit_t)(int type, const field_t *outer, const field_t *f);

static inline void for_each_field(visit_t visit)
{
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        const table_t *t = msg_table(TYPES[i]);
        for (uint32_t k = 0; k < t->count; k++) {
            const field_t *f = &t->fields[k];
            visit(TYPES[i], NULL, f);
            for (uint32_t j = 0; f->kind == FIELD_LIST && j < f->rows->count; j++)
                visit(TYPES[i], f, &f->rows->fields[j]);
        }
    }
}

/* A frame up to the value of one key: [type, {key: or [type, {outer: [{key: */
static inline void raw_up_to(buf_t *b, int type, const field_t *outer, const field_t *f)
{
    raw_type(b, type);
    if (outer) {
        raw_map(b, 1);
        raw_text(b, outer->key);
        raw_array(b, 1);
    }
    raw_map(b, 1);
    raw_text(b, f->key);
}

/* Decodes from memory that ends where the frame ends, so that reading over the end is seen. */
static inline int decode_exact(bytes_t frame, msg_t *ret_msg, heddle_error_t *error, void **ret_memory)
{
    void *copy = malloc(frame.bytes ? frame.bytes : 1);
    if (frame.bytes) memcpy(copy, frame.data, frame.bytes);
    *ret_memory = copy;
    return msg_decode(bytes_of(copy, frame.bytes), ret_msg, error);
}

static inline int decode_only(bytes_t frame, heddle_error_t *error)
{
    msg_t m;
    void *memory;
    int rc = decode_exact(frame, &m, error, &memory);
    msg_fini(&m);
    free(memory);
    return rc;
}

/* A file of the source tree. */
static inline FILE *open_source(const char *path, const char *mode)
{
    char full[1024];
    const char *root = getenv("HEDDLE_SOURCE_DIR");
    const char *end = strstr(__FILE__, "tests/unit/");
    if (root) snprintf(full, sizeof full, "%s/%s", root, path);
    else snprintf(full, sizeof full, "%.*s%s", (int)(end ? end - __FILE__ : 0), __FILE__, path);
    FILE *f = fopen(full, mode);
    cr_assert(f, "cannot open %s", full);
    return f;
}

#endif
