/* SPDX-License-Identifier: Apache-2.0 */
/* tests/process/child.h: a program under test: started, listened to, ended.  It dies with the test.
 * Its stdout comes through a pipe, its stderr goes to an unlinked file, so it never blocks on either. */
#ifndef TESTS_PROCESS_CHILD_H
#define TESTS_PROCESS_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct child {
    pid_t pid;
    int pid_fd, out_fd, err_fd;
    char out[65536]; /* what came on stdout and was not yet taken */
    size_t out_bytes;
    char err[65536]; /* filled by child_end */
} child_t;

/* `argv[0]`: a program in $HEDDLE_BIN_DIR.  `env`: "NAME=value" texts, or "NAME" to unset it; NULL-terminated; NULL: none. */
void child_start(child_t *c, const char *const argv[], const char *const env[]);
/* The next line of stdout without its newline; false at its end or after `timeout_ms`. */
bool child_line(child_t *c, char *line, size_t size, int timeout_ms);
void child_signal(const child_t *c, int number);
/* Waits for it to end: its exit status, 128 + signal, or -1 after `timeout_ms` (it is then killed).  Fills `err`. */
int child_end(child_t *c, int timeout_ms);

#endif
