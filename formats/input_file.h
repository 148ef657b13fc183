/* SPDX-License-Identifier: Apache-2.0 */
/* formats/input_file.h: a regular file that must stay the same while it is read.
 *
 *    open (stat, writers?) -> read with pread, any number -> check_unchanged (stat, writers?) -> compare, if
 * not sure
 *
 * It is opened without waiting, because a FIFO would block, and never mapped, because a file that is
 * truncated under a mapping kills the process. Its state at open is compared with its state at the end:
 * size, times, and that the name still leads to this file.
 *
 * Those do not show a process that writes through a mapping, or that goes on with one long write. So at
 * both ends the kernel is asked whether a process has the file open for writing. Where the file system
 * cannot answer all of that, the bytes are read once more and compared.
 *
 * Calls block on the disk; the caller owns the file; one thread at a time. */
#ifndef FORMATS_INPUT_FILE_H
#define FORMATS_INPUT_FILE_H

#include "core/bytes.h"
#include <heddle/error.h>
#include <stdbool.h>
#include <sys/stat.h>

typedef struct {
    int fd;           /* -1: closed */
    int dir_fd;       /* borrowed */
    const char *name; /* in that directory; borrowed */
    char shown[256];  /* path for messages; only its end, where it is long */
    struct stat opened;
    int reports;    /* which writers its file system reports */
    bool was_quiet; /* certainly no process was writing at open, or had written just before */
} input_file_t;

/* DIR/NAME as messages show it. */
void input_file_shown(const char *dir, const char *name, char ret_shown[256]);

/* `dir` NULL: `name` is a path, as messages show it.
 * NOT_FOUND where there is no such name · BAD_ADAPTER where it is no regular file · INTERNAL where it cannot
 * be opened.
 * On failure *ret_file is closed; input_file_close may be called on it. */
int input_file_open(int dir_fd, const char *dir, const char *name, input_file_t *ret_file,
                    heddle_error_t *error);
/* Exactly `bytes` at `offset`.  BAD_ADAPTER when the file ends before; INTERNAL when it cannot be read. */
int input_file_read(const input_file_t *f, uint64_t offset, void *to, uint64_t bytes, heddle_error_t *error);
/* BAD_ADAPTER when it changed or was replaced since it was opened, or when a process may be writing to it
 * now. *ret_sure: certainly no process wrote while it was read; false: no sign of one, but the caller must
 * use input_file_compare to be sure. */
int input_file_check_unchanged(const input_file_t *f, bool *ret_sure, heddle_error_t *error);
/* Reads that part once more, in pieces.  BAD_ADAPTER where the file differs now. */
int input_file_compare(const input_file_t *f, uint64_t offset, const void *with, uint64_t bytes,
                       heddle_error_t *error);
/* Fills the error of a changed file; `how`: what changed.  BAD_ADAPTER. */
int input_file_refuse_changed(const input_file_t *f, const char *how, heddle_error_t *error);
void input_file_close(input_file_t *f);

#endif
