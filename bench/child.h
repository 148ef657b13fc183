/* SPDX-License-Identifier: Apache-2.0 */
/* bench/child.h: a process of its own for a part of a measurement: started by exec, connected by one
 * socket, ended with its parent.
 *
 * Exec, not a mere fork: after a fork the parent's memory is copied on write, and the parent's next
 * measurement would pay for that. The caller owns the child_t. One thread. child_end waits for the process
 * for CHILD_END_MS, then kills it. */
#ifndef BENCH_CHILD_H
#define BENCH_CHILD_H

#include <heddle/error.h>
#include <stdbool.h>
#include <sys/types.h>

#define CHILD_END_MS 5000

/* Zeroed: none. */
typedef struct {
    pid_t pid;
    int fd;
} child_t; /* fd: our end of the socket, close-on-exec */

/* From now on this thread runs on the first CPU that it may use, and each child on the second.  INTERNAL:
 * there is no second one. */
int child_pin(heddle_error_t *error);
/* Runs argv[0] (a path, or a name to be found in PATH).  Its descriptors 0 and 1 are the other end of `fd`;
 * its standard error is appended to `log`.  INTERNAL: it cannot be run. */
int child_start(const char *const *argv, const char *log, child_t *ret_child, heddle_error_t *error);
/* For a signal handler: the current wait, and each later one, ends with INTERRUPTED. */
void child_interrupt(void);
/* One line, without its end, within timeout_ms.  DEADLINE, INTERRUPTED, or GONE (it ended; the error
 * has the last words of its log). */
int child_line(const child_t *c, const char *log, int timeout_ms, char *line, size_t size,
               heddle_error_t *error);
/* Asks it to end (SIGTERM), waits; nothing for none. */
void child_end(child_t *c);
/* In a child: end with the parent. */
void child_follow_parent(void);
/* A program that is installed beside this one: its path in `path`. */
void child_beside(const char *program, char *path, size_t size);
/* CPU time that a process (0: this one) has used, all its threads, in seconds. */
double child_cpu_s(pid_t pid);

#endif
