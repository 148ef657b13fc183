/* SPDX-License-Identifier: Apache-2.0 */
/* cli/reach.h: which workers this host reaches, asked by a process of its own.
 *
 *   doctor: start `heddle reach` -> a line before each worker is asked -> the answer
 *             \-> it ended without one: a worker at a time, and without those at which it ended
 *
 * UCX ends the process that reads an address which is damaged, or which a member made to harm it.  This is a
 * finding about that worker, and no end of `heddle doctor`.
 *
 * Main thread; blocks for as long as the workers take to answer. */
#ifndef CLI_REACH_H
#define CLI_REACH_H

#include "cli/facts.h"

/* Writes into the rows how each worker was reached: "reach" ("yes", "no", "untested"; "unreadable": the
 * process that asked it ended), "reach_ms" and "reach_why".  INTERRUPTED, NO_MEMORY and INTERNAL (no process
 * can be started) are in heddle_last_error(). */
int reach_ask(const facts_opts_t *opts, json_t *rows);

#endif
