/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/cell.h (PURE): what the bodies of answers are made of: cells, each one value of JSON,
 * and the rows of a page.
 *
 * Each call returns a new tree that the caller owns, or NULL when memory ran out.  NULL goes upwards by
 * itself: json_pack fails on it and frees the rest, so a body is whole or NULL.  Numbers are cut at 2^53 - 1.
 *
 * Loop thread; nothing blocks. */
#ifndef BROKER_CELL_H
#define BROKER_CELL_H

#include "broker/questions/answer.h"

json_t *cell_count(uint64_t n);
json_t *cell_number(uint64_t n);        /* null for 0: versions, decisions */
json_t *cell_text(const char *text);    /* null for "" and NULL */
json_t *cell_time(uint64_t wall_ms);    /* RFC 3339 with milliseconds; null for 0 */
json_t *cell_ms(uint64_t us);           /* milliseconds with a fraction */
json_t *cell_span(uint64_t us);         /* the same; null for 0: not yet */
json_t *cell_digest(const digest_t *d); /* NULL: null */
json_t *cell_tag(const char *adapter, uint64_t version, const digest_t *d);
json_t *cell_code(int code);          /* its stable name; null for 0 */
json_t *cell_words(const char *text); /* "dora,rslora": ["dora","rslora"] */
/* {"schema", "kind", "ok"} and then `fields`, which it takes. */
json_t *cell_body(const char *kind, bool ok, json_t *fields);

/* The rows of one page: ends at `limit` rows, or before ANSWER_PAGE_BYTES. */
typedef struct {
    json_t *list;
    uint64_t limit;
    size_t bytes;
    bool full, failed;
    buf_t scratch;
} rows_t;
void rows_init(rows_t *r, uint64_t asked, uint64_t usual); /* asked 0: the usual limit */
/* Takes the row (NULL: memory ran out).  False: no room, this row begins the next page; or failed. */
bool rows_add(rows_t *r, json_t *row);
/* Frees what rows_init took; the list goes to the caller, NULL when something failed. */
json_t *rows_end(rows_t *r);

/* Borrowed texts, each once; begins with 0. */
typedef struct {
    const char **list;
    size_t count, capacity;
    bool failed; /* memory ran out: there is nothing in it */
} texts_t;
void texts_add(texts_t *t, const char *text);
void texts_sort(texts_t *t); /* after the last one: by bytes, and each once from here on */
void texts_fini(texts_t *t);

int cell_no_memory(heddle_error_t *error);
json_t *cell_settling(const answer_view_t *b); /* milliseconds until it decides again; 0 */

#endif
