/* SPDX-License-Identifier: Apache-2.0 */
/* core/process.h: what every program does first and last; not for a library inside somebody's process.
 * Main thread. */
#ifndef CORE_PROCESS_H
#define CORE_PROCESS_H

#include <stdbool.h>

/* Before anything is opened.  Descriptors 0 to 2 that the caller closed become /dev/null, so that no file,
 * socket or region of ours takes their place and gets what is printed; what is then written to stdout fails.
 * A limit of file sizes (ulimit -f) is an error of the call that meets it, not a death. */
void process_settle(void);
/* A line of a daemon, at once.  False: it could not be written and is lost, which is logged
 * (core/repeat.h). */
bool process_print(const char *line);
/* A command's last word: `end`, or 9 when it would be 0 and its answer could not be written to stdout, which
 * is said on stderr. */
int process_end(int end);

#endif
