/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/lock.h: ensures that one process at a time exports an adapter into a directory.
 *
 *    ROOT/.heddle.lock   byte N of it is locked by the process that exports the adapter with hash N. Byte 0
 *                        guards the file itself and is locked only while a process takes or drops locks
 *
 *    none -> taken (lock_take) -> dropped (lock_drop, or the end of the process)
 *
 * The kernel's record locks end with their process, however it ends, and name it (not across containers and
 * hosts). The last process removes the file. The locks belong to the process, and closing any descriptor of
 * the file releases them all, so a process opens it once.
 *
 * The caller owns the descriptor. One thread. A call waits for byte 0 for a tenth of a second at most,
 * however many adapters it takes. */
#ifndef SIDECAR_LOCK_H
#define SIDECAR_LOCK_H

#include <heddle/error.h>

/* Takes the adapters (a list that ends with NULL) in the directory `root`, whose `path` is for messages; this
 * process must have no locks there (lock_is_of).  DATA_LOCKED: another process has one of them, or
 * keeps byte 0; the message names it.  DATA_DIR.  On a file system without locks a warning is logged, and
 * *ret_lock is -1. */
int lock_take(int root, const char *path, const char *const *adapters, heddle_error_t *error, int *ret_lock);
/* 1: `lock` is the lock file of this directory · 0: it is not, or is -1 · -1 with errno: unknown. */
int lock_is_of(int root, int lock);
/* Drops all locks; `lock` -1: there are none.  The file stays if another process holds byte 0. */
void lock_drop(int root, int lock);

#endif
