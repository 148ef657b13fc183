/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/print.h: the output of heddle-worker: JSON objects on standard output, one on each line. Main
 * thread only. A line that the reader does not take is dropped, never waited for. */
#ifndef SIDECAR_PRINT_H
#define SIDECAR_PRINT_H

#include <heddle/worker.h>

/* The ready line, printed after the first JOINED; `export_dir`, `http` (its URL) NULL: none. */
void print_ready(heddle_worker_t *w, const heddle_event_t *joined, const char *name,
                 const char *const *adapters, const char *export_dir, const char *http);
/* Prints one event under the name that `heddle events` has for it, numbered from 1 by this process (origin
 * "worker": the number is not the broker's).  Events without such a name (a version arrived, a switch or a
 * check was requested, a join was refused) are not printed. */
void print_event(const heddle_event_t *event, const char *worker);
/* Prints that the version of this ARRIVED event is staged. */
void print_stage_done(const heddle_event_t *arrived, const char *worker);
/* Logs an error as one line: code, message and hint; `then`: the consequence, "" for none. */
void print_log_error(const char *id, const heddle_error_t *why, const char *then);
/* Prints the failure of `program` on standard error, and as an object where `json` is set; returns the exit
 * status. */
int print_failure(const char *program, const heddle_error_t *error, int json);

#endif
