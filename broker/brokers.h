/* SPDX-License-Identifier: Apache-2.0 */
/* broker/brokers.h (PURE): the brokers of one registry, as the one that leads lists them (`heddle brokers`).
 *
 * With an etcd each standby writes a row of its own there, which ends with its lease
 * (broker/store/etcd_leader.h); the leader reads these rows.  A row is a JSON object in which a release may
 * have more than this one knows.  Without state.  The loop's thread. */
#ifndef BROKER_BROKERS_H
#define BROKER_BROKERS_H

#include "core/bytes.h"
#include "core/limits.h"
#include "proto/msg.h"
#include <heddle/keys.h>
#include <stdbool.h>

#define BROKERS_MAX (LIMIT_BROKERS - 1) /* more standbys than these are not listed */
#define BROKERS_ROW_BYTES 1024u
/* Of a list that is not answered. */
#define BROKERS_UNANSWERED                                                                                   \
    "no endpoint of the etcd in --store answers and has a majority: no record can be made"
#define BROKERS_YIELDED                                                                                      \
    "etcd does not answer, this broker's lease is over, and another one may lead: no record can be made"
#define BROKERS_UNANSWERED_HINT "see that etcd runs and has a majority; the broker goes on by itself then"

typedef struct {
    char endpoint[256]; /* where clients reach it */
    char release[32];
    char key[HEDDLE_KEY_TEXT]; /* the public key that it proves; "": none, or not known */
    uint64_t pid;
    bool is_following; /* of a standby: it has the registry in memory, but for the latest */
    uint64_t behind;   /* and revisions that it has not followed yet */
} brokers_row_t;

typedef struct {
    brokers_row_t own;               /* of the broker that leads */
    brokers_row_t rows[BROKERS_MAX]; /* of the standbys, by endpoint */
    size_t count;
    bool is_answered;              /* by etcd, what was asked last */
    bool has_yielded;              /* etcd_leader_has_yielded */
    const heddle_error_t *refusal; /* why a commit waits, or would be refused: etcd_leader_refusal */
    uint64_t seen_us;              /* when the rows were read; 0: not yet */
    uint64_t revision;             /* of etcd then */
} brokers_t;

/* Appends the row.  Check out->failed. */
void brokers_write(const brokers_row_t *row, buf_t *out);
/* Adds the row, in its place.  False: it is none, or there is no room for it. */
bool brokers_add(brokers_t *to, bytes_t row);

/* All of them, for a member that knows one (HELLO_OK, HEARTBEAT_OK): how many, borrowed from `b`.  0: they
 * are not known yet; `b` NULL: there is the one. */
uint32_t brokers_tell(const brokers_t *b, msg_broker_t to[LIMIT_BROKERS]);
/* Another number for another list of those; 0: brokers_tell has none. */
uint64_t brokers_mark(const brokers_t *b);

#endif
