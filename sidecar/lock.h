/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/lock.h: who exports which adapter into a directory: one process each.
 *
 *   ROOT/.heddle.lock   one byte of it an adapter, by hash, locked by the process that exports it; byte 0 for
 *                       moments, while somebody comes or goes
 *
 * Record locks of the kernel: they end with their process, however it ends, and name it (not across
 * containers and hosts).  The last who goes removes the file.  The locks belong to the process, and closing
 * any descriptor of the file ends them all: it is opened once in it.
 *
 * One thread; a call waits for who comes or goes at the same moment, for a tenth of a second at most,
 * however many adapters it takes. */
#ifndef SIDECAR_LOCK_H
#define SIDECAR_LOCK_H

#include <heddle/error.h>

/* Takes the adapters (a list that ends with NULL) in the directory `root`, whose `path` is for messages;
 * this process has none there (export_lock_is_of).  DATA_LOCKED: another process has one, or stays at the
 * gate, and is named; DATA_DIR.  A file system without locks is said, and left without: *ret_lock is -1. */
int  export_lock_take(int root, const char *path, const char *const *adapters, heddle_error_t *error,
                      int *ret_lock);
/* 1: `lock` is of this directory · 0: it is not, or is -1 · -1 with errno: it cannot be told. */
int  export_lock_is_of(int root, int lock);
/* Gives all of them back; `lock` -1: there is none.  The file stays where somebody else is at the gate. */
void export_lock_drop(int root, int lock);

#endif
