/* SPDX-License-Identifier: Apache-2.0 */
/* broker/broker.h: the broker's pure parts wired together; no thread, no socket, no clock.  The daemon
 * (main_daemon.c) and the scenario tests drive the same calls.
 *
 *   frame or tick -> decide -> records and replies --io.commit--> confirmed: apply -> messages leave
 *                                                             --> refused: both are dropped, ERROR
 *                                                             --> later: broker_committed
 *
 * One event is one transaction at most (broker/txn.h).  broker_flush, last in each turn, sends what is sent
 * at most once a turn: ROLLOUT to publishers, answers to waiting questions.
 *
 *   broker.c       a turn: frames, ticks                       txn.c        records until they are confirmed,
 *   inbox/         each message: on_HELLO to on_VERIFIED                    and what follows from each
 *   keys/          keys, and what they allow                   events.c     the numbered log
 *   restored_numbers.c  numbers above those of an older store
 *   members/       connections, sessions, tokens, leases       registry/    adapters, versions, decisions
 *   rollout/       copies, rules, what members are sent        store/       the same on disk
 *   plan/          which member fetches from which             questions/   what `heddle` asks, and the JSON
 *                                                                           of the answers
 *
 * The functions are in broker.c, but for what takes records (broker_apply, broker_committed: txn.c) and what
 * keys allow (keys/client_keys.c).  Nothing blocks but io.commit, with a store that confirms at once.  One
 * thread. */
#ifndef BROKER_BROKER_H
#define BROKER_BROKER_H

#include "broker/brokers.h"
#include "broker/events.h"
#include "broker/plan/plan.h"
#include "core/clock.h"

typedef struct broker broker_t;

/* What the broker asks of its shell. */
typedef struct broker_io {
    void *self;
    int (*send)(void *self, uint64_t peer, bytes_t frame); /* OK · SLOW · GONE; never blocks */
    void (*forget)(void *self, uint64_t peer);             /* its number will not be used again */
    /* All or none.  OK: durable.  AGAIN: begun; broker_committed says how it ended, and until then the
     * records stay where they are.  NO_SPACE, NO_MEMORY, INTERNAL: nothing happened.  DATA_DIR: unknown,
     * the process must end (fatal is called).  There is at most one at a time. */
    int (*commit)(void *self, const record_t *records, int count, heddle_error_t *error);
    /* durable and remembered state may differ: end now */
    void (*fatal)(void *self, const heddle_error_t *error);
    void (*random)(void *self, void *data, size_t bytes);
    /* a line of the log, for what is no event; NULL: none */
    void (*warn)(void *self, const char *id, const char *text);
    uint64_t (*registry_bytes)(void *self); /* for `status`; NULL: 0 */
    /* For `brokers`; borrowed until the next turn.  The callback or its answer NULL: this broker is the only
     * one, because its registry is on its disk. */
    const brokers_t *(*brokers)(void *self);
    /* The config of an ended version, appended to `out` (the registry has dropped it); NULL: not
     * available. */
    int (*config)(void *self, const char *adapter, uint64_t version, buf_t *out);
    /* The public key that the connection has proved; borrowed.  The callback NULL: there are no keys, and
     * any client that reaches the broker may do everything. */
    const char *(*key)(void *self, uint64_t peer);
} broker_io_t;

typedef struct broker_opts {
    uint64_t lease_ms, keep;                   /* 0: 4000; keep as given, at most REGISTRY_KEEP_MAX */
    const char *cluster, *endpoint, *data_dir; /* for people; borrowed for the broker's life */
    const char *public_key;                    /* its own, for people; NULL: it runs without keys */
    const char *former; /* the address of the broker that led before, of another host or
                         * process; NULL, "": none; borrowed as the others */
    plan_shape_t shape; /* of plans */
    uint64_t pid, seed; /* seed: of plans */
} broker_opts_t;

/* Connections without a session that are remembered; the most silent goes first. */
#define BROKER_IDLE_PEERS 1024u

/* NO_MEMORY, USAGE (keep out of range). */
int broker_new(const broker_opts_t *opts, const broker_io_t *io, broker_t **ret_broker,
               heddle_error_t *error);
void broker_destroy(broker_t **broker);
/* The last turn of a clean end, before broker_destroy: writes what is due of the roster. */
void broker_end(broker_t *b, instant_t now);
/* Takes a record that is on disk into memory.  At the start each stored one, the EPOCH of this run among
 * them, and then broker_start.  NO_MEMORY, INTERNAL. */
int broker_apply(broker_t *b, const record_t *record);
/* After broker_start, with keys: makes a key that the table does not know an admin's, durably.  One that was
 * revoked, or has other roles, stays what it is, with a warning.  What auth_decide_add says; what the commit
 * says, with AGAIN until it is confirmed: to be called again then. */
int broker_admit_admin(broker_t *b, const char *public_key, const char *name, instant_t now,
                       heddle_error_t *error);
/* True for a key that is in the table and not revoked.  Asked for each new connection. */
bool broker_lets_in(const broker_t *b, const char *public_key, instant_t now);
/* A connection was refused for its key: `status` lists it, and the log gets a line at a bounded rate. */
void broker_refused_key(broker_t *b, const char *public_key, instant_t now);
/* Begins settling when there is anything to restore. NO_MEMORY. */
int broker_start(broker_t *b, instant_t now);

void broker_frame(broker_t *b, uint64_t from, bytes_t frame, instant_t now);
/* A frame that was none (multipart, empty). */
void broker_bad_frame(broker_t *b, uint64_t peer, const char *why);
void broker_tick(broker_t *b, instant_t now);
/* The records of a commit that was begun are durable (OK), or nothing happened, or it is not known: the codes
 * of io.commit.  `error` says why; NULL with OK. */
void broker_committed(broker_t *b, int rc, const heddle_error_t *error, instant_t now);
/* Last in a turn; returns when the next tick is due (CLOCK_NEVER: no need). */
uint64_t broker_flush(broker_t *b, instant_t now);

/* The life of the admin on the connection of that number; borrowed.  NULL: none. */
const key16_t *broker_admin(const broker_t *b, uint64_t number);
/* A question that waits: of which connection, and its number there.  True: it was answered elsewhere. */
typedef bool broker_takes_t(void *self, uint64_t peer, uint64_t req);
/* Drops the questions that wait, longer than until `until_us`, and that `takes` says have been answered.  It
 * calls nothing of the broker but broker_admin. */
void broker_offer_questions(broker_t *b, uint64_t until_us, broker_takes_t *takes, void *self);

/* For the daemon's log.  Borrowed. */
const events_t *broker_events(const broker_t *b);
bool broker_knows_keys(const broker_t *b); /* false: the table is empty, as at the very first start */

#endif
