/* SPDX-License-Identifier: Apache-2.0 */
/* core/stop.h: ends long work early when the caller's deadline has passed, or its user has interrupted it.
 *
 *    stop_begin(&stop) --> loops far below call stop_check now and then --> stop_end()
 *
 * Reading and digesting an adapter of gigabytes takes seconds on the caller's thread, several layers below
 * the call that has a deadline and can be interrupted. That call states once what ends the work. Loops that
 * may run long check every few milliseconds, and return the code that they get.
 *
 * Each thread has at most one stop at a time, of its own; without one nothing is stopped. Nothing blocks. */
#ifndef CORE_STOP_H
#define CORE_STOP_H

#include <heddle/error.h>

/* `check` returns OK, or the code to end with and fills `error` (NULL: only the code is needed).  After an
 * error it must return that error at each call until stop_end, so that no layer goes on. */
typedef struct stop {
    int (*check)(const struct stop *self, heddle_error_t *error);
} stop_t;

/* Borrowed until stop_end. */
void stop_begin(const stop_t *stop);
void stop_end(void);
/* OK: go on. */
int stop_check(heddle_error_t *error);

#endif
