/* SPDX-License-Identifier: Apache-2.0 */
/* proto/field.h: a struct as a table of fields.  One encoder and one decoder walk the tables of
 * proto/msg_table.c; tests and docs/protocol.md are checked against the same tables.
 *
 *   kind     in the struct                          on the wire            `max` is
 *   u64      uint64_t                               integer >= 0           the largest value
 *   i64      int64_t                                integer                the largest distance from 0
 *   bool     bool                                   true, false
 *   text     const char *, NUL-terminated           str, UTF-8, no NUL     bytes
 *   name     const char *                           str                    bytes; empty, or name_is_valid
 *   bin      bytes_t, borrowed                      bin                    bytes
 *   key16    key16_t                                bin of 16 bytes
 *   digest   digest_t                               bin of 32 bytes
 *   list     struct * and uint32_t                  array of maps          rows, each as `rows` says
 *   texts    const char ** and uint32_t             array of str           texts, each up to `text_max` bytes
 *   u64s     uint64_t * and uint32_t                array of integers      numbers
 *
 * Encoding writes the fields in the order of the table and leaves out those that are zero and not required,
 * so that equal structs have equal bytes.  A required text or name must not be empty, when encoding and when
 * decoding.
 * Tables are constant; the caller owns the structs; one thread at a time for a struct.  Nothing blocks. */
#ifndef PROTO_FIELD_H
#define PROTO_FIELD_H

#include "core/bytes.h"
#include <heddle/error.h>

/* X(NAME, name in docs and errors) */
/* clang-format off */
#define FIELD_KINDS(X)                                                                                     \
    X(U64, "u64") X(I64, "i64") X(BOOL, "bool") X(TEXT, "text") X(NAME, "name") X(BIN, "bin")                \
    X(KEY16, "key16") X(DIGEST, "digest") X(LIST, "list") X(TEXTS, "texts") X(U64S, "u64s")
/* clang-format on */

typedef enum {
#define X(NAME, name) FIELD_##NAME,
    FIELD_KINDS(X)
#undef X
} field_kind_t;

typedef struct field field_t;
typedef struct table {
    const char *name; /* "JOIN"; of rows: "held" */
    const field_t *fields;
    uint32_t count;   /* at most 64 */
    size_t row_bytes; /* of the struct */
} table_t;

struct field {
    const char *key;
    field_kind_t kind;
    bool required;
    size_t offset, count_offset;
    uint64_t max, text_max;
    const table_t *rows;
};

const char *field_kind_name(field_kind_t kind);

/* Appends one map.  LIMIT: a value is over its limit.  PROTOCOL: a required text is empty, or a name is none.
 * Texts that are not UTF-8 go with '?' in place of the bad bytes.  Running out of memory shows in
 * out->failed. */
int table_encode(const table_t *table, const void *row, buf_t *out);

/* Fills a zeroed row from a map that passed the scan (proto/scan.h), which is what makes its lengths safe to
 * use.  Texts, lists and rows are in the arena, bins borrow from the input.  Absent texts are "", not NULL.
 * PROTOCOL, LIMIT or NO_MEMORY with key, expected and found. */
struct msgpack_object;
int table_decode(const table_t *table, const struct msgpack_object *map, arena_t *arena, void *row,
                 heddle_error_t *error);

#endif
