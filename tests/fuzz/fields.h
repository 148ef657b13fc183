/* SPDX-License-Identifier: Apache-2.0 */
/* Messages out of fuzz bytes: the tables of proto/field.h say what a struct has, the bytes what stands
 * there, sensible or not.  Texts and lists are in the message's arena: msg_fini. */
#ifndef TESTS_FUZZ_FIELDS_H
#define TESTS_FUZZ_FIELDS_H

#include "proto/field.h"
#include "proto/msg.h"
#include "tests/fuzz/fuzz.h"

/* What names and texts are made of, besides plain bytes. */
typedef struct {
    const char *const *names, *const *texts;
    uint8_t name_count, text_count;
} words_t;

static const uint8_t FIELD_TYPES[] = {
#define X(NAME, number, name, who) number,
    MSG_TYPES(X)
#undef X
};

static inline char *fields_text(input_t *in, arena_t *arena, const char *const *words, uint8_t count)
{
    uint8_t which = input_byte(in);
    if (which < 2 * count) return arena_text(arena, words[which / 2], strlen(words[which / 2]));
    bytes_t raw = input_bytes(in, which % 16);
    return arena_text(arena, raw.data, raw.bytes); /* a NUL in it ends it */
}

/* Small ones, as versions and counts are, and all others. */
static inline uint64_t fields_number(input_t *in)
{
    uint8_t kind = input_byte(in);
    return kind < 224 ? kind % 16 : input_take(in, 1 + kind % 8);
}

static inline void fields_row(input_t *in, const table_t *table, const words_t *words, void *row,
                              arena_t *arena);

static inline void fields_list(input_t *in, const field_t *f, const words_t *words, void *row, arena_t *arena)
{
    uint32_t count = input_byte(in) % 4;
    size_t each = f->kind == FIELD_LIST ? f->rows->row_bytes : sizeof(uint64_t);
    uint8_t *items = count ? arena_alloc(arena, count * each) : NULL;
    for (uint32_t i = 0; i < count; i++) {
        void *item = items + i * each;
        char *text = NULL;
        uint64_t number = 0;
        if (f->kind == FIELD_LIST) fields_row(in, f->rows, words, item, arena);
        if (f->kind == FIELD_TEXTS) text = fields_text(in, arena, words->texts, words->text_count);
        if (f->kind == FIELD_U64S) number = fields_number(in);
        if (f->kind == FIELD_TEXTS) memcpy(item, &text, sizeof text);
        if (f->kind == FIELD_U64S) memcpy(item, &number, sizeof number);
    }
    memcpy((uint8_t *)row + f->offset, &items, sizeof items);
    memcpy((uint8_t *)row + f->count_offset, &count, sizeof count);
}

static inline void fields_set(input_t *in, const field_t *f, const words_t *words, void *row, arena_t *arena)
{
    void *at = (uint8_t *)row + f->offset;
    bool named = f->kind == FIELD_NAME;
    uint64_t number;
    char *text;
    bytes_t raw;
    switch (f->kind) {
    case FIELD_U64:
    case FIELD_I64:
        number = fields_number(in);
        memcpy(at, &number, sizeof number);
        break;
    case FIELD_BOOL: *(bool *)at = input_byte(in) & 1; break;
    case FIELD_TEXT:
    case FIELD_NAME:
        text = fields_text(in, arena, named ? words->names : words->texts,
                           named ? words->name_count : words->text_count);
        memcpy(at, &text, sizeof text);
        break;
    case FIELD_BIN:
        raw = input_bytes(in, input_byte(in) % 32);
        *(bytes_t *)at = bytes_of(arena_copy(arena, raw.data, raw.bytes), raw.bytes);
        break;
    case FIELD_KEY16:
    case FIELD_DIGEST: memset(at, input_byte(in), f->kind == FIELD_KEY16 ? 16 : 32); break;
    case FIELD_LIST:
    case FIELD_TEXTS:
    case FIELD_U64S: fields_list(in, f, words, row, arena); break;
    }
}

/* A field in four that could be left out stays as it is: zero. */
static inline void fields_row(input_t *in, const table_t *table, const words_t *words, void *row,
                              arena_t *arena)
{
    for (uint32_t i = 0; i < table->count; i++)
        if (table->fields[i].required || input_byte(in) % 4)
            fields_set(in, &table->fields[i], words, row, arena);
}

static inline msg_t fields_message(input_t *in, const words_t *words)
{
    msg_t m = {.type = (msg_type_t)FIELD_TYPES[input_below(in, sizeof FIELD_TYPES)]};
    fields_row(in, msg_table((int)m.type), words, &m.hello, &m.arena);
    return m;
}

#endif
