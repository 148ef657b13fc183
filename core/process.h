/* SPDX-License-Identifier: Apache-2.0 */
/* core/process.h: what every program does first and last; not for a library inside somebody's process.
 * Main thread. */
#ifndef CORE_PROCESS_H
#define CORE_PROCESS_H

#include <heddle/error.h>
#include <stdbool.h>

/* Before anything is opened.  Descriptors 0 to 2 that the caller closed become /dev/null, so that no file,
 * socket or region of ours takes their place and gets what is printed; what is then written to stdout fails.
 * A limit of file sizes (ulimit -f) is an error of the call that meets it, and so is a pipe whose reader has
 * gone: neither ends the process before it has left its broker.  A stack of less than PROCESS_STACK_BYTES
 * (ulimit -s) is raised; NO_MEMORY where the hard limit forbids that. */
#define PROCESS_STACK_BYTES (1u << 20)
int  process_settle(heddle_error_t *error);
/* A line of a daemon, at once.  False: it could not be written and is lost, which is logged
 * (core/repeat.h). */
bool process_print(const char *line);
/* A command's last word: `end`, or 9 when it would be 0 and its answer could not be written to stdout, which
 * is said on stderr.  Where the reader of stdout has gone (`| head -1`) the process ends by SIGPIPE instead,
 * as other commands do. */
int process_end(int end);

#endif
