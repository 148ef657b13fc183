/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/rows.h (PURE): the rows of a registry that lies in a store of keys and values, as they are
 * there now, and what a transaction changes in them.
 *
 *   key                   value (rows_value.h)
 *   meta                  schema, cluster, epoch, as a line of text
 *   a/ADAPTER             ADAPTER                 w/ADAPTER   WRITER
 *   v/ADAPTER/NUMBER/v    VERSION                 f/ADAPTER   FLOOR
 *   v/ADAPTER/NUMBER/s    its STATE               n/WORKER    WORKER
 *   v/ADAPTER/NUMBER/l    its LOSS                k/KEY       KEY
 *   v/ADAPTER/NUMBER/p    its STAGED              r/KEY       KEYS_REVOKE: the keys that name KEY as the
 *                                                             invitation that entered them are revoked
 *   v/ADAPTER/NUMBER/f    its first DECISION      NUMBER: of the version, 16 hex digits
 *   v/ADAPTER/NUMBER/g    its latest one, where that is another
 *
 * So each record changes one key or two, or ends one range of keys and changes one, and a transaction of
 * OUTBOX_RECORDS records stays within the 128 operations that etcd takes, with the one that puts the marker
 * `last` (etcd_leader.h): KEYS_REVOKE, too, however many keys it revokes.
 * Its row goes with the last key that names the invitation.
 *
 *   settled --rows_change--> changing --rows_keep--> settled, with the change
 *                                     --rows_undo--> settled, as before
 *
 * rows_change checks what SQLite's constraints check, with the same results (store.h: INTERNAL).  Names are
 * whole rows in memory, configs among them, as the next broker needs them.  One thread; nothing blocks. */
#ifndef BROKER_ROWS_H
#define BROKER_ROWS_H

#include "broker/registry/record.h"
#include <heddle/error.h>

#define ROWS_KEY_BYTES (2 * HEDDLE_NAME_MAX + 32)
#define ROWS_OPS 127 /* and the marker */

typedef struct store_rows store_rows_t;

/* What a transaction does, in any order: no key is in two of them. */
typedef enum { ROWS_PUT, ROWS_DELETE, ROWS_DELETE_BELOW } rows_op_kind_t;
typedef struct {
    rows_op_kind_t kind;
    const char *key; /* DELETE_BELOW: all keys that begin with it */
    bytes_t value;   /* PUT */
} rows_op_t;
typedef struct {
    rows_op_t op[ROWS_OPS];
    int count;
} rows_ops_t;

/* NO_MEMORY. */
int rows_new(store_rows_t **ret_rows, heddle_error_t *error);
void rows_destroy(store_rows_t **rows);

/* A key and its value, as they were read.  DATA_DIR: none of ours, or damaged · DATA_NEWER: rows of a newer
 * release · NO_MEMORY. */
int rows_read(store_rows_t *rows, bytes_t key, bytes_t value, heddle_error_t *error);
/* What a watch says of a key that may have been read before: its value now, or that it is gone.  As
 * rows_read; after a failure the rows are those of no revision. */
int rows_follow(store_rows_t *rows, bytes_t key, bytes_t value, bool is_gone, heddle_error_t *error);
/* All are read, once: names without versions, floor and writer are dropped.  DATA_DIR: rows without meta, or
 * that contradict each other.  NO_MEMORY. */
int rows_end_read(store_rows_t *rows, heddle_error_t *error);

/* Settled. 16 hex digits, "" before there is a meta row; 0. */
const char *rows_cluster(const store_rows_t *rows);
uint64_t rows_epoch(const store_rows_t *rows);
uint64_t rows_bytes(const store_rows_t *rows); /* keys and values */
uint64_t rows_count(const store_rows_t *rows); /* but for meta */
uint64_t rows_live_keys(const store_rows_t *rows);
/* A meta row for the next run: the cluster of the rows, or a new one, and the epoch.  `to` has room for
 * ROWS_META_BYTES; rows_read takes the same. */
#define ROWS_META_BYTES 80
void rows_meta(const char *cluster, uint64_t epoch, char *to);
bool rows_is_meta(bytes_t value); /* of any release */

/* Every record in the order of store_load, borrowed until the rows change; `each` ends the walk by returning
 * other than OK.  The result of `each` · NO_MEMORY · DATA_DIR. */
int rows_walk(store_rows_t *rows, int (*each)(void *self, const record_t *record), void *self,
              heddle_error_t *error);
/* NOT_FOUND · NO_MEMORY. */
int rows_config(const store_rows_t *rows, const char *adapter, uint64_t version, buf_t *out,
                heddle_error_t *error);

/* A record of another store, in the order of store_load, is taken into the rows: settled before and after.
 * INTERNAL: it contradicts those before · NO_MEMORY. */
int rows_adopt(store_rows_t *rows, const record_t *r, heddle_error_t *error);
/* Every row but meta, in the order of their keys; `each` ends the walk by returning other than OK.  The
 * result of `each` · NO_MEMORY. */
int rows_each(store_rows_t *rows, int (*each)(void *self, bytes_t key, bytes_t value), void *self,
              heddle_error_t *error);

/* Settled.  OK: changing; ret_ops borrow until rows_keep or rows_undo.  INTERNAL, NO_MEMORY: nothing
 * changed. */
int rows_change(store_rows_t *rows, const record_t *records, int count, rows_ops_t *ret_ops,
                heddle_error_t *error);
void rows_keep(store_rows_t *rows);
void rows_undo(store_rows_t *rows);

#endif
