/* SPDX-License-Identifier: Apache-2.0 */
/* broker/foreign.h: members of another cluster that said HELLO here, and will not join: nothing else tells
 * the operator why they are missing.
 *
 *   unknown --HELLO--> listed --10 minutes without HELLO--> unknown
 *
 * Bounded: FOREIGN_MAX processes; the one that was heard of longest ago makes room.  The log too: however
 * many say HELLO, it gets a line a second at most, with the number of those that were left out.  No clock, no
 * I/O; one thread. */
#ifndef BROKER_FOREIGN_H
#define BROKER_FOREIGN_H

#include "broker/outbox.h"
#include "proto/msg.h"

#define FOREIGN_MAX 32u
#define FOREIGN_US 600000000ull     /* listed after its last HELLO; said again in the log */
#define FOREIGN_PAUSE_US 1000000ull /* between two lines of the log, about any process */

/* One process.  heard_us 0: a free row. */
typedef struct {
    key16_t life;
    uint64_t heard_us, heard_ms, said_us;
    char text[512];
} foreign_member_t;
typedef struct {
    foreign_member_t rows[FOREIGN_MAX];
    uint64_t said_us, unsaid_count; /* the last line; HELLOs since, that none was said of */
    char line[600];
} foreign_t;

/* A HELLO came.  NULL: it is no stranger, or was said lately, or another was just now; else what the log
 * should say, valid until the next call. */
const char *foreign_heard(foreign_t *s, const msg_hello_t *m, const char *cluster, instant_t now);
bool foreign_is_listed(const foreign_member_t *row, uint64_t now_us);

#endif
