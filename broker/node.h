/* SPDX-License-Identifier: Apache-2.0 */
/* broker/node.h: the broker's pure parts wired together; no thread, no socket, no clock.  The daemon
 * (main.c) and the scenario tests drive the same calls.  Types and functions are `broker_`: client/node.h
 * is in the same programs.
 *
 *   frame or tick -> decode -> decide -> records --io.commit--> apply -> sends --io.send--> ...
 *                                             failed: both are dropped, the asker hears NO_SPACE
 *
 * One event is one transaction; broker_flush, last in each turn, lets go what is sent at most once a
 * turn: ROLLOUT to publishers, answers to waiting questions.
 *
 * Who does what:
 *   registry   durable: adapters, versions, decisions, writers     events   the numbered log
 *   auth       durable: keys, and what each may do
 *   membership sessions, tokens, leases                            planner  which sources
 *   rollout    copies, sources, policy, who is sent what
 *   pending    when a waiting question is answered
 *   report.c   the JSON of every answer, read from `const broker_t *` (all state is open to it below)
 *   store.c    commit and load.   main.c  sockets, loop, signals.
 *
 * Files: node.c (a turn, commit, sends), node_session.c (HELLO to LEAVE), node_heard.c (members that know
 * more than the store), node_version.c (PUBLISH to NACK), node_query.c (questions), node_pull.c (where
 * a version is fetched from), node_keys.c (who may).
 * Nothing blocks but io.commit.  One thread. */
#ifndef BROKER_NODE_H
#define BROKER_NODE_H

#include "broker/auth.h"
#include "broker/questions/pending.h"
#include "broker/strangers.h"
#include "core/clock.h"
#include "core/owner.h"
#include <uthash.h>

/* What the broker asks of its shell. */
typedef struct broker_io {
    void *self;
    int  (*send)(void *self, uint64_t peer, bytes_t frame);        /* OK · SLOW · GONE; never blocks */
    void (*forget)(void *self, uint64_t peer);                     /* its number will not be used again */
    /* All or none, durable when it returns OK.  NO_SPACE, NO_MEMORY, INTERNAL: nothing happened.
     * DATA_DIR: unknown, the process must end (fatal is called). */
    int  (*commit)(void *self, const record_t *records, int count, heddle_error_t *error);
    /* durable and remembered state may differ: end now */
    void (*fatal)(void *self, const heddle_error_t *error);
    void (*random)(void *self, void *data, size_t bytes);
    /* a line of the log, for what is no event; NULL: none */
    void (*warn)(void *self, const char *id, const char *text);
    uint64_t (*registry_bytes)(void *self);                        /* for `status`; NULL: 0 */
    /* The config of an ended version, appended to `out` (the registry has dropped it); NULL: not
     * available. */
    int  (*config)(void *self, const char *adapter, uint64_t version, buf_t *out);
    /* The public key that the connection has proved; borrowed.  The callback NULL: there are no keys, and
     * whoever reaches the broker may do everything. */
    const char *(*key)(void *self, uint64_t peer);
} broker_io_t;

typedef struct broker_opts {
    uint64_t lease_ms, keep;           /* 0: 4000; keep as given, at most REGISTRY_KEEP_MAX */
    const char *cluster, *endpoint, *data_dir;   /* for people; borrowed for the broker's life */
    const char *public_key;            /* its own, for people; NULL: it runs without keys */
    uint64_t pid, seed;                /* seed: of plans */
} broker_opts_t;

/* A connection that said HELLO (or not yet: role 0). */
typedef struct broker_peer {
    uint64_t peer;
    role_t role;
    key16_t life;
    char host[HEDDLE_NAME_MAX + 1];
    uint64_t pid, wire, heard_us;
    uint64_t token;                    /* of its session; 0: none */
    char name[HEDDLE_NAME_MAX + 1];    /* of its latest session, "" before the first */
    char key[HEDDLE_KEY_TEXT];         /* that it has proved, "" without keys */
    uint64_t fenced_token;             /* the stale token that it was last told of: events say each once */
    UT_hash_handle hh;
} broker_peer_t;
/* Connections without a session that are remembered; the most silent goes first. */
#define BROKER_IDLE_PEERS 1024u

typedef struct broker {
    owner_t owner;                     /* of the thread that made it */
    broker_opts_t opts;
    broker_io_t io;
    registry_t registry;
    auth_t auth;
    membership_t members;
    rollout_t rollout;
    events_t events;
    pending_t pending;
    outbox_t out;
    broker_peer_t *peers; size_t idle_count;
    uint64_t started_us, started_ms;
    uint64_t start_epoch;              /* of the start; a member that knows a greater one raises it */
    uint64_t start_token;              /* the greatest of that epoch, when it was raised; none before */
    struct {
        uint64_t at_ms;                /* 0: none */
        char from[HEDDLE_NAME_MAX + 1], message[160];
    } restored;                        /* the last member that knew more than the store, and what */
    struct { uint64_t epochs, numbers; } heard;   /* by how much members raised them since the start */
    bool is_read_only;                 /* the last commit failed: `status` says read_only */
    uint64_t retry_us;                 /* then: when deciding is tried again */
    bool is_broken;                    /* fatal was called */
    /* a writer's session may have ended without its record being closed */
    bool has_abandoned;
    bool is_stirred;                   /* something happened that a waiting question may wait for */
    uint64_t seen_seq;                 /* events that waiting questions were shown */
    uint64_t askers_probed_us;         /* when their connections were last looked at, for want of places */
    uint64_t sent[32], received[32];   /* messages by type */
    uint64_t bad_frames, dropped_sends;
    strangers_t strangers;
    uint64_t denied;                   /* messages that a key was not allowed */
} broker_t;

/* NO_MEMORY, USAGE (keep out of range). */
int  broker_new(const broker_opts_t *opts, const broker_io_t *io, broker_t **ret_broker,
                heddle_error_t *error);
void broker_destroy(broker_t **broker);
/* Start-up: each stored record, the EPOCH of this run among them; then broker_start. NO_MEMORY, INTERNAL. */
int  broker_load(broker_t *b, const record_t *record);
/* After broker_start, with keys: makes a key that the table does not know an admin's, durably.  One that was
 * revoked, or has other roles, stays what it is, with a warning.  What auth_decide_add says; what the commit
 * says. */
int  broker_admit_admin(broker_t *b, const char *public_key, const char *name, instant_t now,
                        heddle_error_t *error);
/* Is it in the table, and not revoked?  For those who connect. */
bool broker_lets_in(const broker_t *b, const char *public_key);
/* Begins settling when there is anything to restore. NO_MEMORY. */
int  broker_start(broker_t *b, instant_t now);

void broker_frame(broker_t *b, uint64_t peer, bytes_t frame, instant_t now);
/* A frame that was none (multipart, empty). */
void broker_bad_frame(broker_t *b, uint64_t peer, const char *why, instant_t now);
void broker_tick(broker_t *b, instant_t now);
/* Last in a turn; returns when the next tick is due (CLOCK_NEVER: no need). */
uint64_t broker_flush(broker_t *b, instant_t now);

bool broker_is_settling(const broker_t *b, uint64_t now_us);
static inline view_t broker_view(const broker_t *b, instant_t now)
{
    return (view_t){&b->registry, &b->members, now};
}

#endif
