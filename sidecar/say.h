/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/say.h: what heddle-worker prints: objects of JSON, one a line, on standard output. */
#ifndef SIDECAR_SAY_H
#define SIDECAR_SAY_H

#include <heddle/worker.h>

/* The ready line, of the first JOINED; `export_dir` NULL: none. */
void say_ready(heddle_worker_t *w, const heddle_event_t *joined, const char *name,
               const char *const *adapters, const char *export_dir);
/* One event, numbered from 1 by this process (origin "worker": the number is not the broker's), under the
 * name that `heddle events` has for it.  What that list does not know (a version arrived, a switch or a
 * check was asked for, a join was refused) is not printed. */
void say_event(const heddle_event_t *event, const char *worker);
/* STAGED was said for what this event told of. */
void say_stage_done(const heddle_event_t *arrived, const char *worker);
/* A line of the log: code, message, what was found and the hint; `then`: what follows from it, "" for
 * nothing. */
void say_warning(const char *id, const heddle_error_t *why, const char *then);
/* The failure, as an object too where `json` is set; gives the exit status. */
int  say_failure(const heddle_error_t *error, int json);

#endif
