/* SPDX-License-Identifier: Apache-2.0 */
/* core/stop.h: work that takes long ends early when its caller's time is up, or its user has had enough.
 *
 *   stop_begin(&stop) --> loops far below ask stop_check now and then --> stop_end()
 *
 * Reading and digesting an adapter of gigabytes takes seconds on the caller's thread, several layers
 * below the call that has a deadline and can be interrupted.  That call says once what ends it; loops
 * that may run long ask every few milliseconds, and return what the answer was.
 *
 * One at a time for a thread, its own; without one nothing is stopped.  Nothing blocks. */
#ifndef CORE_STOP_H
#define CORE_STOP_H

#include <heddle/error.h>

/* `check` gives OK, or the code to end with, and fills `error` (NULL: the code is enough).  What it
 * said once it says again, until stop_end. */
typedef struct stop { int (*check)(const struct stop *self, heddle_error_t *error); } stop_t;

/* Borrowed until stop_end. */
void stop_begin(const stop_t *stop);
void stop_end(void);
/* OK: go on. */
int  stop_check(heddle_error_t *error);

#endif
