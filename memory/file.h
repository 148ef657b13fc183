/* SPDX-License-Identifier: Apache-2.0 */
/* memory/file.h: a region's file as owner and holder see it: its locks, its pages, its name in messages.
 *
 * Locks are OFD locks of the whole file. They belong to a description, which dup, fork and SCM_RIGHTS share:
 * so each holder has a description of its own, and none has the owner's.
 *
 * Without state; any thread; only page faults block. */
#ifndef MEMORY_FILE_H
#define MEMORY_FILE_H

#include "memory/rules.h"

#include <fcntl.h>

/* A new memory file: close-on-exec, sealable, never executable where the kernel has that (6.3). -1 with
 * errno. */
int file_new(const char *name);
/* `type`: F_WRLCK or F_RDLCK. Never waits. 0, or errno: EAGAIN where a lock of another description is against
 * it. */
int file_lock(int fd, short type);
void file_unlock(int fd);
/* Whether another description has a lock. */
bool file_is_held(int fd);
/* The header, which is read through the file: a mapping is not needed to judge it. False: there is none. */
bool file_header(int fd, header_t *ret_header, size_t *ret_capacity);
/* Maps pages that exist in advance. A kernel before 5.14 has no call for it: one byte of each is touched. */
void file_populate(void *at, size_t bytes, bool is_to_write);
/* Makes pages at `at`, where the file is mapped from `offset` on. 0, or errno: never SIGBUS for want of
 * memory. */
int file_make(int fd, void *at, size_t offset, size_t bytes);

/* munmap of what may be the last reference of a file of `file_bytes`: the kernel then gives all its pages
 * back, 10 to 20 ms for 80 MB. That of a large file is done on a thread of its own, which ends with it. The
 * range must not be used afterwards. */
#define FILE_LARGE_BYTES ((size_t)8 << 20)
void file_unmap_last(void *at, size_t bytes, size_t file_bytes);

#endif
