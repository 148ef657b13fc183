/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/rows_file.h (PURE): the rows of a registry (rows.h) as the bytes of one file, by which a
 * registry goes from one store to another.
 *
 *   text    "heddle registry export 1\n"
 *   text    what the key meta has: schema, cluster, epoch; "\n"
 *   a row   4 bytes of length, the key · 4 bytes of length, the value      for each, in the order of the keys
 *   end     4 bytes, 0 · 8 bytes: how many rows · 32 bytes: BLAKE2b-256 of all before them
 *
 * Numbers are little-endian.  The same rows are the same bytes, whatever store they come from: what differs
 * between stores, as how the keys of an invitation are revoked, is written as its records say it.  A file is
 * taken as a whole or not at all: each of its rows is said again as a record, as a store will get it, so that
 * rows which contradict each other are found before anything is written.  It holds the share keys of
 * versions.  Nothing blocks; any thread. */
#ifndef BROKER_ROWS_FILE_H
#define BROKER_ROWS_FILE_H

#include "broker/store/rows.h"

#define ROWS_FILE_FORMAT 1

typedef struct {
    uint64_t rows;
    digest_t digest;
} rows_file_t;

/* `from` must have a meta row.  Appends to `out`, `limit` bytes at most.  LIMIT: they are more ·
 * NO_MEMORY, INTERNAL. */
int rows_file_put(store_rows_t *from, size_t limit, buf_t *out, rows_file_t *ret_file, heddle_error_t *error);
/* What rows_file_put says of them, without the bytes. */
int rows_file_sum(store_rows_t *from, rows_file_t *ret_file, heddle_error_t *error);
/* Any bytes are allowed.  DATA_DIR: no such file, cut, changed, rows that contradict each other, names that
 * are none, or an epoch after which there is no other · DATA_NEWER: of a newer release · NO_MEMORY. */
int rows_file_take(bytes_t file, store_rows_t **ret_rows, rows_file_t *ret_file, heddle_error_t *error);

#endif
