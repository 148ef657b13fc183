/* SPDX-License-Identifier: Apache-2.0 */
/* bench/result.h: what was measured: a report of rows, each with its series of numbers.
 *
 *    report   { machine: what ran it, rows: [row] }
 *    row      { name, its parameters, skipped: why, series: [figure or reference] }
 *    figure   of Heddle; reference: what it is measured against.  A figure's ratio to a reference of the
 *             same unit is taken repetition by repetition.  Less is better in every unit.
 *
 * As JSON and back (result_encode, result_decode): a file may come from another machine or be damaged, so
 * decoding checks everything. As text for people. The caller owns a result_t; one thread. */
#ifndef BENCH_RESULT_H
#define BENCH_RESULT_H

#include "bench/stats.h"
#include "core/bytes.h"
#include <heddle/error.h>
#include <jansson.h>

#define RESULT_NAME 48u
#define RESULT_SERIES_MAX 24u
#define RESULT_ROWS_MAX 1000u

typedef struct {
    char name[RESULT_NAME], unit[16];
    bool is_reference;
    char skipped[160]; /* why a reference has no numbers; "" */
    series_t series;
} result_series_t;

typedef struct {
    char name[RESULT_NAME]; /* "publish/17.6MB/4" */
    char skipped[160];      /* why nothing was measured; "" */
    uint64_t data_bytes;
    uint32_t tensor_count, workers, keep, count;
    result_series_t series[RESULT_SERIES_MAX];
} result_row_t;

typedef struct {
    json_t *machine; /* owned; an object, or NULL */
    result_row_t *rows;
    uint32_t count;
} result_t;

void result_fini(result_t *r);
/* A new row at the end, zeroed; valid until the next one.  NULL: out of memory, or too many. */
result_row_t *result_add(result_t *r, const char *name);
/* The series of that name, made where it is not there yet; NULL when the row is full. */
result_series_t *result_series(result_row_t *row, const char *name, const char *unit, bool is_reference);
/* result_series and series_add.  NO_MEMORY. */
int result_note(result_row_t *row, const char *name, const char *unit, double value);
int result_refer(result_row_t *row, const char *name, const char *unit, double value);
const result_row_t *result_find(const result_t *r, const char *name);
const result_series_t *result_row_find(const result_row_t *row, const char *name);

/* {"schema","kind":"bench","ok","machine","rows":[...],"error"}; error NULL: ok.  NULL: out of memory.
 * Owned by the caller. */
json_t *result_encode(const result_t *r, const heddle_error_t *error);
/* PROTOCOL, LIMIT or NO_MEMORY; `what` names it in the message. */
int result_decode(const json_t *json, const char *what, result_t *ret_result, heddle_error_t *error);
/* One row, as people read it. */
void result_row_text(const result_row_t *row, buf_t *out);
void result_machine_text(const json_t *machine, buf_t *out);
/* A number with its unit, "9.63 ms". */
void result_number(double value, const char *unit, char text[32]);

#endif
