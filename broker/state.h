/* SPDX-License-Identifier: Apache-2.0 */
/* broker/state.h: all that the broker knows: for the files that handle its messages.  What only reads gets
 * a view of what it reads instead (broker/questions/answer.h), and the pure files cannot see this at all.
 *
 * Durable: registry, keys.  Soft, gone with the process: the rest.  Between two events `out` is empty; what
 * an event leads to is collected there, and becomes the transaction when it has records (broker/txn.h).
 * Loop thread alone, which each entry asserts (core/owner.h). */
#ifndef BROKER_STATE_H
#define BROKER_STATE_H

#include "broker/keys/auth.h"
#include "broker/broker.h"
#include "broker/members/roster.h"
#include "broker/members/strangers.h"
#include "broker/questions/pending.h"
#include "broker/txn.h"
#include "core/owner.h"

#define FENCED_EVERY_US 60000000ull /* between two events about stale tokens of one connection, at least */

/* What it can do with requests.  BROKEN is for ever. */
typedef enum {
    BROKER_READY,
    BROKER_READ_ONLY, /* the store refused the last commit */
    BROKER_BROKEN     /* memory and store may differ: the process ends */
} broker_state_t;

/* A connection that said HELLO (or not yet: role 0). */
typedef struct broker_peer {
    uint64_t peer;
    role_t role;
    key16_t life;
    char host[HEDDLE_NAME_MAX + 1];
    uint64_t pid, wire, received_us;
    uint64_t resumed_us;              /* its session was silent for half a lease until then; 0: it was not */
    uint64_t token;                   /* of its session; 0: none */
    char name[HEDDLE_NAME_MAX + 1];   /* of its latest session, "" before the first */
    char key[HEDDLE_KEY_TEXT];        /* that it has proved, "" without keys */
    uint64_t fenced_token, fenced_us; /* the stale token of its last event, and when that was; 0: none yet */
    uint64_t fenced_unreported;       /* messages under other stale tokens since then */
    uint64_t told_brokers;            /* brokers_mark of what it was told last */
    bool is_ending;                   /* it is forgotten when the messages to it have left */
} broker_peer_t;

struct broker {
    owner_t owner; /* of the thread that made it */
    broker_opts_t opts;
    broker_io_t io;
    registry_t registry;
    auth_t auth;
    membership_t members;
    rollout_t rollout;
    events_t events;
    pending_t pending;
    roster_t roster;
    outbox_t outboxes[2];
    outbox_t *out; /* of the event in hand; the other one is an open transaction's */
    txn_t txn;
    saved_frame_t *waiting;
    size_t waiting_count, waiting_bytes; /* frames that wait for it, in their order */
    broker_peer_t **peers;
    size_t peer_count, peer_capacity; /* ascending by number, which a new one has the greatest of */
    size_t idle_count, ending_count;
    uint64_t started_us, started_ms;
    uint64_t start_epoch; /* of the start; a member that knows a greater one raises it */
    uint64_t start_token; /* the greatest of that epoch, when it was raised; none before */
    struct {
        uint64_t at_ms; /* 0: none */
        char from[HEDDLE_NAME_MAX + 1], message[960];
    } restored; /* the last member that knew more than the store, and what */
    struct {
        uint64_t epochs, numbers;
    } raised; /* by how much members raised them since the start */
    broker_state_t state;
    uint64_t read_only_ms; /* READ_ONLY: since when, and why at last, and what the store says to do */
    int read_only_code;
    char read_only_why[256], read_only_hint[256];
    uint64_t retry_us; /* after a failed transaction: when deciding is tried again; 0: it may go on now */
    /* a writer's session may have ended without its record being closed */
    bool has_abandoned;
    bool has_news;                   /* something happened that a waiting question may wait for */
    uint64_t seen_seq;               /* events that waiting questions were shown */
    uint64_t askers_probed_us;       /* when their connections were last looked at, for want of places */
    uint64_t sent[32], received[32]; /* messages by type */
    uint64_t bad_frames, dropped_sends;
    strangers_t foreign, refused; /* processes of another cluster; keys */
    uint64_t denied;              /* messages that a key was not allowed */
};

/* Its members were sent to other brokers: that one is silent, or its connection is gone, says nothing of
 * it. */
static inline bool broker_has_yielded(const broker_t *b)
{
    const brokers_t *brokers = b->io.brokers ? b->io.brokers(b->io.self) : NULL;
    return brokers && brokers->has_yielded;
}

static inline view_t broker_view(const broker_t *b, instant_t now)
{
    return (view_t){&b->registry, &b->members, now};
}

static inline step_t broker_step(broker_t *b, instant_t now)
{
    return (step_t){&b->rollout, broker_view(b, now), &b->events, b->out};
}

/* The connection of that number; NULL: it has not said HELLO. */
broker_peer_t *broker_peer(const broker_t *b, uint64_t peer);
/* Its key in b->peers (core/sorted.h). */
uint64_t broker_peer_number(const void *row);
/* The messages of the outbox leave; it is empty then.  Connections that are ending are forgotten. */
void broker_send_outbox(broker_t *b);
/* Rollouts are looked at and decided, abandoned writers closed and workers recorded, until nothing more comes
 * of it. */
void broker_decide(broker_t *b, instant_t now);
/* The last step of each event: broker_decide, and the requests that waited for the transaction. */
void broker_go_on(broker_t *b, instant_t now);
/* Memory and the store may differ: the process must end.  `what` NULL: *error says it already. */
void broker_end_broken(broker_t *b, int code, const char *what, heddle_error_t *error);
/* A message that is out of its own limits was not sent: the log says so. */
void broker_note_unsendable(broker_t *b);

#endif
