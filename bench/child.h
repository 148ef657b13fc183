/* SPDX-License-Identifier: Apache-2.0 */
/* bench/child.h: another process: started by exec, talked to over one socket, gone with its parent.
 *
 * A fork alone would leave the parent's memory to be copied on write, which its next measurement would
 * pay for. One thread.  child_end waits for the process, CHILD_END_MS, then kills it. */
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
} child_t; /* fd: our end, closed on exec */

/* Runs argv[0] (a path, or a name to be found in PATH).  Its descriptors 0 and 1 are the other end of
 * `fd`; what it says on stderr is appended to `log`.  INTERNAL: it cannot be run. */
int child_start(const char *const *argv, const char *log, child_t *ret_child, heddle_error_t *error);
/* For a signal handler: what waits now, and whatever would wait later, ends with INTERRUPTED. */
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
