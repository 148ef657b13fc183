/* SPDX-License-Identifier: Apache-2.0 */
/* broker/strangers.h: members of another cluster that said HELLO here, and will not join: nothing else tells
 * the operator why they are missing.
 *
 *   unknown --HELLO--> listed --10 minutes without HELLO--> unknown
 *
 * Bounded: STRANGERS_MAX processes; the one that was heard of longest ago makes room.  The log too: however
 * many say HELLO, it gets a line a second at most, with the number of those that were left out.  No clock, no
 * I/O; one thread. */
#ifndef BROKER_STRANGERS_H
#define BROKER_STRANGERS_H

#include "broker/outbox.h"
#include "proto/msg.h"

#define STRANGERS_MAX 32u
#define STRANGERS_US 600000000ull      /* listed after its last HELLO; said again in the log */
#define STRANGERS_PAUSE_US 1000000ull  /* between two lines of the log, whoever they are about */

/* One process.  heard_us 0: a free row. */
typedef struct {
    key16_t life;
    uint64_t heard_us, heard_ms, said_us;
    char text[512];
} stranger_t;
typedef struct {
    stranger_t rows[STRANGERS_MAX];
    uint64_t said_us, unsaid_count;    /* the last line; HELLOs since, that none was said of */
    char line[600];
} strangers_t;

/* A HELLO came.  NULL: it is no stranger, or was said lately, or another was just now; else what the log
 * should say, valid until the next call. */
const char *strangers_heard(strangers_t *s, const msg_hello_t *m, const char *cluster, instant_t now);
bool stranger_is_listed(const stranger_t *row, uint64_t now_us);

#endif
