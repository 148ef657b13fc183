/* SPDX-License-Identifier: Apache-2.0 */
/* broker/members/strangers.h (PURE): processes that reached this broker and do not belong to it: members of
 * another cluster that said HELLO, and keys that were refused, as unknown or for want of a role.  Nothing
 * else tells the operator why a member is missing.
 *
 *   unknown --it came--> listed --10 minutes without it--> unknown
 *
 * The broker has two tables, one of processes and one of keys.  Each is bounded: of STRANGERS_MAX rows the
 * one that came longest ago makes room.  The log is bounded too, however many come: a line for each row in
 * 10 minutes, and one a second at most, with the number of those that were left out.  One thread, nothing
 * blocks. */
#ifndef BROKER_STRANGERS_H
#define BROKER_STRANGERS_H

#include "broker/outbox.h"
#include <heddle/keys.h>

#define STRANGERS_MAX 32u
#define STRANGERS_US 600000000ull     /* listed so long after it came; after that it is logged again */
#define STRANGERS_PAUSE_US 1000000ull /* between two lines of the log, about any of the table */

/* received_us 0: a free row */
typedef struct {
    char id[HEDDLE_KEY_TEXT]; /* a public key, or the bytes of a process's life */
    uint64_t count, received_us, received_ms, logged_us;
    bool lacks_role; /* the key is in the table, without the role that was asked for */
    char text[512];  /* for people */
} stranger_t;
typedef struct {
    stranger_t rows[STRANGERS_MAX];
    uint64_t logged_us, unlogged_count; /* the last line; how many were left out since */
    char line[600];
} strangers_t;

bool stranger_is_listed(const stranger_t *row, uint64_t now_us);
/* Each returns what the log should say, valid until the next call; NULL: nothing.  A HELLO of this cluster is
 * no stranger's.  `command`: what admits the key. */
const char *strangers_hello(strangers_t *s, const msg_hello_t *m, const char *cluster, instant_t now);
const char *strangers_key(strangers_t *s, const char *public_key, bool is_revoked, const char *command,
                          instant_t now);
/* The same of a key that lacks a role: why, in words, and the roles that it has. */
const char *strangers_role(strangers_t *s, const char *public_key, const heddle_error_t *why, instant_t now);
/* The key has other roles now. */
void strangers_forget(strangers_t *s, const char *public_key);

#endif
