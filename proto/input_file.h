/* SPDX-License-Identifier: Apache-2.0 */
/* proto/input_file.h: a regular file that must stay the same while it is read.
 *
 * Opened without waiting (a FIFO must not hang us), read with pread, never mapped: a file truncated under a
 * mapping kills the process.  What it was at open is compared with what it is at the end: size, times, and
 * that the name still means this file.  That tells nothing of who writes through a mapping, or goes on with
 * one long write: so it is asked, at both ends, whether somebody has it open for writing.  Where the file
 * system does not tell all of that, what was read is to be compared with the file once more.
 * Blocking calls; one thread at a time for a file. */
#ifndef PROTO_INPUT_FILE_H
#define PROTO_INPUT_FILE_H

#include "core/bytes.h"
#include <heddle/error.h>
#include <stdbool.h>
#include <sys/stat.h>

typedef struct {
    int fd;                /* -1: closed */
    int dir_fd;            /* borrowed */
    const char *name;      /* in that directory; borrowed */
    char shown[256];       /* path as messages tell it: its end, where it is long */
    struct stat opened;
    int tells;             /* what its file system tells of writers */
    bool was_quiet;        /* at open nobody was writing, nor had just written, for sure */
} input_file_t;

/* DIR/NAME as messages tell it. */
void input_path_shown(const char *dir, const char *name, char ret_shown[256]);

/* NOT_FOUND where there is no such name · BAD_ADAPTER where it is no regular file · INTERNAL where it cannot
 * be opened.
 * On failure *ret_file is closed; input_file_close may be called on it. */
int input_file_open(int dir_fd, const char *dir, const char *name, input_file_t *ret_file,
                    heddle_error_t *error);
/* Exactly `bytes` at `offset`.  BAD_ADAPTER when the file ends before; INTERNAL when it cannot be read. */
int  input_file_read(const input_file_t *f, uint64_t offset, void *to, uint64_t bytes, heddle_error_t *error);
/* BAD_ADAPTER when it changed, or was replaced, since it was opened, or somebody may write to it now.
 * *ret_sure: nobody wrote while it was read; false: nothing shows that somebody did, and
 * input_file_compare has to tell. */
int  input_file_check_unchanged(const input_file_t *f, bool *ret_sure, heddle_error_t *error);
/* Once more, in pieces.  BAD_ADAPTER where the file says something else now. */
int  input_file_compare(const input_file_t *f, uint64_t offset, const void *with, uint64_t bytes,
                        heddle_error_t *error);
/* BAD_ADAPTER; `how`: what is other than it was. */
int  input_file_refuse_changed(const input_file_t *f, const char *how, heddle_error_t *error);
void input_file_close(input_file_t *f);

#endif
