/* SPDX-License-Identifier: Apache-2.0 */
/* tests/torture/vfs.h: a disk under SQLite that fails at a chosen call, or loses power before it.
 *
 * A VFS over the system's own.  Counted are the calls of one kind to the database and its log, from 1.  At
 * the chosen one:
 *
 *   FAULT_FULL      writes: SQLITE_FULL, errno ENOSPC       FAULT_TORN    a write does its first half only: EIO
 *   FAULT_SYNC      a sync says EIO                         FAULT_TRUNCATE, FAULT_OPEN, FAULT_READ the same
 *   FAULT_POWER     power goes before this write, sync or truncation: what was not synced is lost
 *   FAULT_KILL      the process goes there: what was written stays
 *
 * After the last two every call fails, and vfs_image writes the files as a machine would find them then.
 * One database at a time, one thread. */
#ifndef TESTS_TORTURE_VFS_H
#define TESTS_TORTURE_VFS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    FAULT_FULL,
    FAULT_TORN,
    FAULT_SYNC,
    FAULT_TRUNCATE,
    FAULT_OPEN,
    FAULT_READ,
    FAULT_POWER,
    FAULT_KILL
} fault_t;

void vfs_install(void);
/* From now on; `first` 0: only counts; `length` calls fail (of FAULT_POWER and FAULT_KILL all that follow). */
void vfs_arm(fault_t fault, uint64_t first, uint64_t length);
uint64_t vfs_disarm(void); /* how many calls there were of that kind */
uint64_t vfs_failed(void); /* how many of them failed since vfs_arm; those after death are not counted */
bool vfs_is_dead(void);    /* power or process went */
/* The directory as it was at that moment, in another one. */
void vfs_image(const char *to_dir);

#endif
