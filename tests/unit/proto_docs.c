/* SPDX-License-Identifier: Apache-2.0 */
/* docs/protocol.md tells what the tables of fields say: each message with its number and who sends it, each
 * key with its kind and limit, in order, and no key besides. */
#include "tests/lib/bytes_equal.h"
#include "proto_sample.h"

#include <ctype.h>

static char *doc;

static void load_doc(void)
{
    FILE *f = open_source("docs/protocol.md", "r");
    doc = calloc(1, 1 << 20);
    size_t n = fread(doc, 1, (1 << 20) - 1, f);
    cr_assert(n > 0 && n < (1 << 20) - 1);
    fclose(f);
}

static void free_doc(void) { free(doc); }

TestSuite(docs, .init = load_doc, .fini = free_doc);

/* The text from a heading to the next one.  The caller frees it. */
static char *section(const char *heading)
{
    char want[64];
    int n = snprintf(want, sizeof want, "\n### %s\n", heading);
    char *at = strstr(doc, want);
    cr_assert(at, "docs/protocol.md has no heading \"### %s\"", heading);
    at += n;
    char *end = strstr(at, "\n##");
    return strndup(at, end ? (size_t)(end - at) + 1 : strlen(at));
}

static void limit_cell(const field_t *f, char *ret_cell, size_t size)
{
    unsigned long long max = f->max;
    switch (f->kind) {
    case FIELD_U64:
    case FIELD_I64:
        for (int bits = 32; bits <= 64; bits++) {
            uint64_t below = bits == 64 ? UINT64_MAX : (1ull << bits) - 1;
            if (max == below) {
                snprintf(ret_cell, size, "2^%d-1", bits);
                return;
            }
            if (max == below + 1) {
                snprintf(ret_cell, size, "2^%d", bits);
                return;
            }
        }
        snprintf(ret_cell, size, "%llu", max);
        return;
    case FIELD_TEXT:
    case FIELD_NAME:
    case FIELD_BIN: snprintf(ret_cell, size, "%llu bytes", max); return;
    case FIELD_TEXTS:
        snprintf(ret_cell, size, "%llu of %llu bytes", max, (unsigned long long)f->text_max);
        return;
    case FIELD_LIST:
    case FIELD_U64S: snprintf(ret_cell, size, "%llu", max); return;
    default: *ret_cell = 0; return; /* the kind says it all */
    }
}

/* "| `key` | kind | limit |": what the table of the docs must have, with a meaning behind it. */
static void expected_row(const field_t *f, char *ret_row, size_t size)
{
    char limit[64];
    limit_cell(f, limit, sizeof limit);
    const char *of = f->kind == FIELD_LIST ? " of " : "", *rows = f->kind == FIELD_LIST ? f->rows->name : "";
    snprintf(ret_row, size, "| `%s` | %s%s%s%s | %s | ", f->key, field_kind_name(f->kind), of, rows,
             f->required ? ", required" : "", limit);
}

static void check_table(const char *heading, const table_t *t)
{
    char *text = section(heading), *at = text;
    for (uint32_t i = 0; i < t->count; i++) {
        char want[256];
        expected_row(&t->fields[i], want, sizeof want);
        at = strstr(at, want);
        cr_assert(at, "docs/protocol.md, \"%s\": no row \"%s...\" in its place", heading, want);
        at += strlen(want);
        cr_assert(isalnum((unsigned char)*at) || *at == '`' || *at == '"', "\"%s\": no meaning behind %s",
                  heading, want);
    }
    uint32_t rows = 0;
    for (char *p = text; (p = strstr(p, "\n| `")); p++) rows++;
    cr_assert_eq(rows, t->count, "\"%s\" has %u rows for %u keys", heading, rows, t->count);
    free(text);
}

Test(docs, every_message_and_key)
{
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        char heading[64];
        snprintf(heading, sizeof heading, "%d %s", TYPES[i], msg_name(TYPES[i]));
        check_table(heading, msg_table(TYPES[i]));
    }
}

static void check_rows(int type, const field_t *outer, const field_t *f)
{
    (void)type;
    if (outer || f->kind != FIELD_LIST) return;
    char heading[64];
    snprintf(heading, sizeof heading, "row `%s`", f->rows->name);
    check_table(heading, f->rows);
}

Test(docs, every_row_of_lists) { for_each_field(check_rows); }

#define X(NAME, number, name, who) {#number " " #NAME, who, "\n| " #number " | [" #NAME "](#" #number "-"},
static const struct {
    const char *heading, *who, *row;
} SENDERS[] = {MSG_TYPES(X)};
#undef X

/* Up to the anchor, whose letters are small. */
Test(docs, a_table_of_all_messages)
{
    char *at = strstr(doc, "\n## Messages\n"), *end = at ? strstr(at, "\n### ") : NULL;
    cr_assert(at && end);
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        char *row = strstr(at, SENDERS[i].row), *who = row ? strstr(row, SENDERS[i].who) : NULL;
        cr_assert(who && who < end && who < strchr(row + 1, '\n'), "no row \"%s\", from \"%s\"",
                  SENDERS[i].row + 1, SENDERS[i].who);
        at = row;
    }
}

Test(docs, who_sends_each)
{
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        char *text = section(SENDERS[i].heading);
        cr_assert(strstr(text, SENDERS[i].who), "\"### %s\" does not say \"%s\"", SENDERS[i].heading,
                  SENDERS[i].who);
        free(text);
    }
}

/* The annotated bytes of a COMMIT: the lines of hex under its heading, put together, are a frame. */
Test(docs, worked_example)
{
    char *text = section("a COMMIT, byte by byte"), *line = strtok(text, "\n");
    buf_t b = {0};
    for (; line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "    ", 4)) continue;
        unsigned byte;
        for (char *p = line + 4;
             isxdigit((unsigned char)p[0]) && isxdigit((unsigned char)p[1]) && sscanf(p, "%2x", &byte) == 1;
             p += 3)
            buf_add(&b, &(uint8_t){(uint8_t)byte}, 1);
    }
    msg_t m;
    heddle_error_t e = {0};
    cr_assert_eq(msg_decode(buf_view(&b), &m, &e), HEDDLE_OK, "%s", e.message);
    cr_assert(m.type == MSG_COMMIT && m.commit.token == 30064771074 && m.commit.version == 3 &&
              m.commit.decision == 4);
    cr_assert_str_eq(m.commit.adapter, "policy");
    buf_t again = {0};
    cr_assert_eq(msg_encode(&m, &again), HEDDLE_OK);
    cr_assert(bytes_equal(buf_view(&again), buf_view(&b)));
    buf_fini(&again);
    buf_fini(&b);
    msg_fini(&m);
    free(text);
}
