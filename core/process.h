/* SPDX-License-Identifier: Apache-2.0 */
/* core/process.h: the first and last steps of every program. Not for the library, whose host owns the
 * process. Main thread. */
#ifndef CORE_PROCESS_H
#define CORE_PROCESS_H

#include <heddle/error.h>
#include <stdbool.h>

/* Call it before anything is opened.  Descriptors 0 to 2 that are closed become /dev/null: otherwise the next
 * file or socket would get one of those numbers, and then the program's output.  Writing to stdout fails
 * then. Exceeding a limit of file sizes (ulimit -f), or a pipe without a reader, becomes an error of the call
 * in place of a signal, so that the process can leave its broker before it ends.  A stack limit below
 * PROCESS_STACK_BYTES (ulimit -s) is raised; NO_MEMORY if the hard limit forbids that. */
#define PROCESS_STACK_BYTES (1u << 20)
int process_begin(heddle_error_t *error);
/* Calls `handler` on SIGINT and SIGTERM, and on SIGHUP unless that is ignored: under nohup it stays so. */
void process_on_signal(void (*handler)(int number));
/* Has the log in the format of a --log-format among the arguments, before these are parsed: errors of the
 * parser go there, too. */
void process_take_log_format(int argc, char **argv);
/* The name that help and errors have for this program: as it was typed.  `heddle worker` runs heddle-worker
 * and gives it that name as argv[0]; started by its own name it is `own`. */
const char *process_name(const char *argv0, const char *own);
/* Prints a failure on stderr, in the form of every program: name, code and message, then what was expected,
 * found, and a hint, as far as they are there.  Where the log has another format than text (core/log.h) it is
 * a line of the log, "process.failed".  Returns the exit status. */
int process_fail(const char *program, const heddle_error_t *error);
/* Prints a line of a daemon and flushes it.  False: it could not be written and is lost; that is logged at a
 * bounded rate (core/repeat.h). */
bool process_print(const char *line);
/* The exit status of a command: `end`, or 9 if that is 0 and the output could not be written to stdout, which
 * is reported on stderr.  If the reader of stdout has gone (`| head -1`), the process ends by SIGPIPE
 * instead, as other commands do. */
int process_end(int end);

#endif
