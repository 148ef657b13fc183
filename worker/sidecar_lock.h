/* SPDX-License-Identifier: Apache-2.0 */
/* worker/sidecar_lock.h: who exports which adapter into a directory: one process each.
 *
 *   ROOT/.heddle.lock   one byte of it an adapter, by hash, locked by the process that exports it; byte 0 for moments,
 *                       while somebody comes or goes
 *
 * Record locks of the kernel: they end with their process, however it ends, and name it.  The last who goes
 * removes the file.  The locks belong to the process: the file is opened once in it.
 *
 * One thread; waits for who comes or goes at the same moment. */
#ifndef WORKER_SIDECAR_LOCK_H
#define WORKER_SIDECAR_LOCK_H

#include <heddle/error.h>

/* Takes the adapters (a list that ends with NULL) in the directory `root`, whose `path` is for messages.
 * DATA_LOCKED: another process has one, and is named; DATA_DIR.  A file system without locks is said, and left
 * without: *ret_lock is -1. */
int  export_lock_take(int root, const char *path, const char *const *adapters, heddle_error_t *error, int *ret_lock);
/* Gives all of them back; `lock` -1: there is none. */
void export_lock_drop(int root, int lock);

#endif
