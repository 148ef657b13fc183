/* SPDX-License-Identifier: Apache-2.0 */
/* bench/row.h: the table of what is measured, and how each kind of row is measured.
 *
 * A row is a kind, the shape of an adapter, and a number of workers. Every kind is measured in turns: one
 * of Heddle and one of each reference. Each repetition begins one place further on, so that no one of them
 * always runs on the caches and the heat of the same predecessor.
 *
 * The table is constant; row_measure owns what it opens. One thread; blocks for the time of the
 * measurement. */
#ifndef BENCH_ROW_H
#define BENCH_ROW_H

#include "bench/cluster.h"
#include "bench/reference.h"
#include "bench/result.h"

#define ROW_REFERENCES_MAX 6u

typedef struct row_kind row_kind_t;
typedef struct {
    const char *name; /* "publish/17.6MB/4" */
    const row_kind_t *kind;
    const char *shape;
    uint32_t rank, workers, keep;
} bench_row_t;

/* All rows; a NULL name ends the table. */
extern const bench_row_t ROWS[];
/* The row as --smoke runs it: the smallest shape, few workers.  False if an earlier row of its kind is run in
 * its place. */
bool row_smoke(const bench_row_t *row, bench_row_t *ret_row, char name[RESULT_NAME]);

/* What a row runs in. */
typedef struct {
    const char *scratch, *python;
    uint32_t repeat, idle_ms;
    bool is_alone;    /* without references */
    bool owns_memory; /* workers copy what they could hold */
    json_t *machine;  /* gets the transport and the references' versions; may be NULL */
} row_env_t;

typedef struct {
    const bench_row_t *row;
    const row_env_t *env;
    result_row_t *result;
    model_t *model;
    cluster_t *cluster, *beside; /* beside: another one, for kinds that compare two */
    uint32_t turn;
    uint64_t older; /* rollback: the version to go back to */
} row_run_t;

struct row_kind {
    const char *name, *summary;
    const reference_ops_t *references[ROW_REFERENCES_MAX + 1];
    /* cluster_opts_t's fields of the same name; has_beside: a second cluster, without keys */
    bool is_app, is_tapped, has_beside;
    uint32_t warm_ups; /* publications before the first repetition: memory is made and touched in them */
    int (*prepare)(row_run_t *run, heddle_error_t *error); /* NULL: nothing */
    int (*once)(row_run_t *run, heddle_error_t *error);
};

/* The memory in bytes that Heddle's processes need for a row. */
uint64_t row_bytes(const bench_row_t *row, const model_t *m);
/* Measures a row.  One that this machine lacks the memory for is `skipped` in the result; that is no failure.
 */
int row_measure(const bench_row_t *row, const row_env_t *env, result_row_t *result, heddle_error_t *error);

#endif
