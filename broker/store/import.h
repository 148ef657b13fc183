/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/import.h: puts the rows of an export (rows_file.h) into a store that has no data: all of them,
 * or none.  Before the first write they are taken into the memory of a broker, as at its start; and they are
 * read back and compared before they count.  The registry has the cluster id and the epoch
 * of the rows then; the next broker raises the epoch.
 *
 *   a directory   the registry is made beside its place, in DIR/.import, and moved there when it is whole.
 *                 What an import that was killed left there is deleted by the next one, also where that
 *                 is refused because the registry is in its place; a DIR/.import that no import has made
 *                 stays, and the import is refused.
 *   an etcd       the key `import` marks what is not whole (etcd_leader.h)
 *
 * One thread.  Everything blocks, on the disk or on etcd. */
#ifndef BROKER_IMPORT_H
#define BROKER_IMPORT_H

#include "broker/store/etcd.h"
#include "broker/store/rows.h"

/* DATA_LOCKED: a broker has the directory · DATA_DIR: a row that no broker starts with, there is a registry,
 * the directory cannot be used, or is another user's and this is root, or what is read back is something
 * else ·
 * NO_SPACE, NO_MEMORY, INTERNAL. */
int import_to_dir(store_rows_t *rows, const char *path, heddle_error_t *error);
/* `opts` as of etcd_open; purpose, cluster and epoch are set here.  DATA_DIR: a row that no broker starts
 * with · what etcd_open and etcd_write say. */
int import_to_etcd(store_rows_t *rows, const etcd_opts_t *opts, heddle_error_t *error);

#endif
