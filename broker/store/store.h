/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/store.h: the broker's durable memory, DIR/registry.db (SQLite: WAL, synchronous=FULL).
 *
 * A store is open or gone.  Opening locks the directory, makes or checks the file, and raises the epoch on
 * disk: no two runs of a broker ever have the same one.  What a commit returned OK for survives any crash of
 * process or machine; what it failed for never happened.  A file that is damaged, foreign or newer is
 * refused and left as it is; so is one that misses its log (store_files.h), which has what was committed
 * since the start or since SQLite put it into the registry.
 *
 *   meta       one row: cluster (made once, 16 random hex), epoch
 *   adapters   name, created_at                           versions   one row a version: what it is, and how
 *                                                                    it ended
 *   floors     one row an adapter whose members knew greater numbers than the store
 *   decisions  the last one for each version              writers    one row an adapter with an open writer
 *   keys       one row a key, live or revoked (from schema 2; a file of schema 1 gets the table)
 *
 * From schema 5 on:
 *
 *   workers    one row a worker that was ready
 *   versions   lost_at and lost_why of one whose bytes no process has
 *
 * From schema 6 on:
 *
 *   versions   staged_at of one that is staged and waits for an operator
 *
 * From schema 8 on a key may be an invitation (uses, used, ends_at), from schema 9 on a key has the
 * invitation that entered it (entered_by).
 *
 * From schema 7 on versions.payload_bytes is called so; it was region_bytes.
 *
 * From schema 3 a version has the deadline that was asked for; rows of before have 0 there.
 *
 * Bounded: FORGET takes a version and its decisions away, but never the greatest number of either.
 *
 * One thread.  Everything blocks on the disk (a commit: one sync, 0.4 to 2 ms; one that raises
 * the epoch empties the log as well).  Only store*.c know SQLite.
 */
#ifndef BROKER_STORE_H
#define BROKER_STORE_H

#include "broker/registry/record.h"
#include "broker/store/schema.h"

typedef struct store store_t;

/* DATA_LOCKED (names the pid) · DATA_DIR (path, uid, mode, fix; also a damaged or foreign file, or
 * datadir_check_moved) · DATA_NEWER (both schema numbers) · NO_SPACE · NO_MEMORY.  On failure nothing is open
 * and nothing is locked. */
int store_open(const char *dir, store_t **ret_store, heddle_error_t *error);
/* Also one that was moved: an export may be repeated. */
int store_open_moved(const char *dir, store_t **ret_store, heddle_error_t *error);
void store_close(store_t **store);

/* Every stored record, in the order EPOCH, ADAPTER, VERSION, DECISION, STATE, WRITER, FLOOR, KEY, within a
 * kind by adapter, then by number (keys: by key).  Records and their texts are borrowed during the call of
 * `each`, which ends the walk by returning other than OK.
 * The result of `each` · DATA_DIR · NO_MEMORY. */
int store_load(store_t *s, int (*each)(void *self, const record_t *record), void *self,
               heddle_error_t *error);

/* All records or none, on disk when it returns OK; none: OK without touching the disk.
 * NO_SPACE or NO_MEMORY: nothing happened, the same call works again later · INTERNAL: records that
 * contradict what is stored (a version number used twice, a decision for an unknown version): nothing
 * happened · DATA_DIR: the disk failed under us, or another process took or changed the files: whether it
 * happened is unknown, end the process. */
int store_commit(store_t *s, const record_t *records, int count, heddle_error_t *error);

/* Appends the adapter_config.json of a version as it was published.  NOT_FOUND · DATA_DIR · NO_MEMORY. */
int store_config(store_t *s, const char *adapter, uint64_t version, buf_t *out, heddle_error_t *error);

/* A store without records becomes that of another cluster: an import does this before all else.  What
 * store_commit says. */
int store_rename(store_t *s, const char *cluster, heddle_error_t *error);

/* datadir_mark_moved */
int store_mark_moved(const store_t *s, heddle_error_t *error);

const char *store_dir(const store_t *s); /* absolute */
const char *store_cluster(const store_t *s);
uint64_t store_epoch(const store_t *s); /* the highest so far; from 1 */
uint64_t store_bytes(const store_t *s); /* on disk now */
/* Live keys in the table.  OK · DATA_DIR. */
int store_key_count(store_t *s, uint64_t *ret_count, heddle_error_t *error);

/* Where SQLite's codes end: the code of ours for a result of SQLite (extended or not) and the errno below it
 * (0: none). */
int store_code(int sqlite_code, int number);

#endif
