/* SPDX-License-Identifier: Apache-2.0 */
/* broker/members/membership.h (PURE): which members are there: sessions of workers and publishers, their
 * tokens, leases and subscriptions.  Soft state: it is gone with the process, and members restate it.
 *
 *   state       event                                   -> next      said
 *   -           JOIN, OPEN                              -> READY     WELCOME(token)
 *   READY       HEARTBEAT, any frame of the token       -> READY     the lease counts from its receipt
 *   READY       lease over (not while settling,
 *               not in the grace after a late tick)     -> LOST
 *   READY       its key was revoked                     -> LOST      ERROR denied
 *   READY       LEAVE, or its connection joins or opens
 *               under another name                      -> LEFT      BYE, to a LEAVE
 *   (of before  did not come back within the grace
 *   a start)    after the start                         -> LOST
 *   READY       it is to leave: HEARTBEAT and JOIN with
 *               `draining`, or an operator's command    -> DRAINING  HEARTBEAT_OK(drain)
 *   DRAINING    an operator takes the drain back        -> READY     HEARTBEAT_OK(stays)
 *   READY       same life joins again                   -> replaced by the new session, at once
 *   READY       another life joins under the name:
 *                 connection gone, or silent for two
 *                 heartbeats                            -> fenced, replaced     ERROR fenced to the old one
 *                 live                                  -> READY     ERROR worker_alive, retriable
 *   LOST LEFT   a join under the name                   -> replaced
 *   LOST LEFT   10 minutes                              -> forgotten
 *
 * DRAINING is as READY but for what follows of it: no rollout waits for the worker, and others fetch what
 * only it holds (rollout/drain.h), until it leaves.  It ends with the process: a new session of the same one
 * is DRAINING at once, and one of another process is READY.  The worker restates what an operator asked for,
 * until it has the answer that this was taken back: by itself that begins no drain again (drain_undone).
 *
 * This file keeps the rows, says which lease is over (membership_lapsed), and has the state and reason of
 * each end (member_end_t).  What else follows is in sessions.c: sessions_end_member, and end_replaced.
 *
 * Nothing here looks at every row for each message: rows with a session are queued by the end of their
 * lease, ended rows by when they are forgotten, and what all members must have in common is counted.
 *
 * token = epoch << 32 | counter.  Two tokens of one name never both count: only rows with a session are
 * found by token. Rows are stable in memory until membership_tick forgets them or the next join under the
 * same name.
 * One thread, nothing blocks. */
#ifndef BROKER_MEMBERSHIP_H
#define BROKER_MEMBERSHIP_H

#include "broker/members/serving.h"
#include "broker/outbox.h"

#define CUT_OFF_MS 600000ull /* a worker that reached no other one is served by the publisher so long */
#define BLAME_MS 600000ull   /* a worker comes last so long after another one blamed it */
#define MEMBER_LISTED_US 600000000ull /* lost and left ones are listed for 10 minutes */
#define MEMBER_ENDED_MAX 4096u        /* and at most so many of them */

typedef enum { MEMBER_READY = 1, MEMBER_DRAINING, MEMBER_LEFT, MEMBER_LOST } member_state_t;

/* How a session ends, unless a new one of its name replaces it. */
typedef enum {
    END_LEFT,         /* -> LEFT */
    END_LAPSED,       /* -> LOST: unavailable */
    END_SHUT_OUT,     /* -> LOST: denied */
    END_NOT_RETURNED, /* -> LOST: unavailable */
} member_end_t;

typedef struct member_sub {
    char adapter[HEDDLE_NAME_MAX + 1];
    serving_t serving;
    uint64_t fetching, bytes_done, data_bytes, source, held_count; /* of the last heartbeat */
    uint64_t beat_us; /* when that came; 0: none since it fetches */
    /* bytes a second since an earlier heartbeat of this fetch, which had from_bytes; 0: none came */
    uint64_t rate_bytes, from_us, from_bytes;
    uint64_t sent_lost; /* the active version, which this session was sent to be lost; 0: none */
    bool lacks_slot;    /* and no RETIRE was sent since: a version waits there */
} member_sub_t;

/* What was reported of a process as a source of others, by these or by itself (rollout/trust.h).  It holds
 * until the process ends. */
typedef struct {
    char blamed_by[HEDDLE_NAME_MAX + 1]; /* the worker that it sent wrong bytes to */
    uint64_t blamed_ms, slow_ms;         /* when; 0: never */
    uint64_t order_ms;                   /* of those that were, ascending: the last one comes last */
    bool sends_bad;                      /* two workers got wrong bytes */
    bool is_suspect;                     /* it blamed two for one version: its reports count no more */
    uint64_t cut_off_ms;                 /* it reached no other worker, as it reported last; 0: never */
    bool is_unmet;                       /* one of those that such a worker did not reach */
} member_trust_t;

/* One that the process of a member had before. */
typedef struct {
    uint64_t token;
    struct member *member;
} former_token_t;

typedef struct member {
    uint64_t token, peer;
    /* as it says: of the session before, then the last one of each earlier start of the broker */
    former_token_t former[1 + LIMIT_FORMER_TOKENS];
    uint32_t former_count;
    role_t role; /* ROLE_WORKER or ROLE_PUBLISHER */
    member_state_t state;
    key16_t life;
    char name[HEDDLE_NAME_MAX + 1], host[HEDDLE_NAME_MAX + 1];
    uint64_t pid;
    uint64_t joined_ms, joined_us;
    instant_t came; /* when it joined, or the sessions that went over into this one did */
    uint64_t received_us, lease_end_us, ended_us, ended_ms;
    uint64_t beat_seq; /* of its last heartbeat in this session; 0: there was none */
    uint64_t drain_ms; /* since when it is DRAINING, or was before it ended; 0: it was not */
    drain_t drain;     /* as HEARTBEAT_OK said last in this session */
    bool drain_undone; /* taken back, and not asked for since */
    bool own_wish;     /* its application wants to leave */
    int end_code;
    char end_message[96]; /* LOST: why; 0, "" */
    bool is_gone;         /* a send to its connection said GONE */
    /* a send was refused (queue full): it is called to join again at its next heartbeat */
    bool needs_resync;
    char backend[16], ucx[32];
    uint8_t *address;
    size_t address_bytes; /* data plane, opaque */
    char *export_dir;     /* never NULL; "" none */
    char *host_share;     /* as in JOIN; never NULL */
    char **labels;
    uint32_t label_count; /* "k=v" */
    char **devices;
    uint32_t device_count;
    char **addresses;
    uint32_t address_count;               /* of the data plane, for people */
    uint64_t network, place;              /* as in JOIN; 0: not known, and none */
    char moved_from[HEDDLE_NAME_MAX + 1]; /* its addresses before this session, if they were others;
                                           * "" */
    member_sub_t *subs;
    uint32_t sub_count; /* a publisher has one: its adapter */
    uint64_t slots;     /* for each adapter */
    /* workers that serve as one: "" none; rank 0 to ranks - 1, each in a process of its own */
    char group[HEDDLE_NAME_MAX + 1];
    uint32_t rank, ranks;
    msg_counts_t counts; /* as the worker counts them: 0 until it does */
    /* the session of this name that ended last, not by a LEAVE, if its process sent no message since; 0 */
    uint64_t ended_token;
    uint64_t max_rate_bytes; /* of its --max-rate; 0: no limit */
    member_trust_t trust;
    bool no_relay;                 /* as in JOIN */
    char unheld[200];              /* as in HEARTBEAT */
    struct member *before, *after; /* in the queue of leases or of ended ones */
} member_t;

/* One worker got wrong bytes from it: it comes last. */
static inline bool member_is_blamed(const member_t *m, uint64_t at_ms)
{
    return m->trust.blamed_ms && at_ms < m->trust.blamed_ms + BLAME_MS;
}

/* It was slower than another source: it comes last. */
static inline bool member_is_slow(const member_t *m, uint64_t at_ms)
{
    return m->trust.slow_ms && at_ms < m->trust.slow_ms + BLAME_MS;
}

static inline bool member_is_cut_off(const member_t *m, uint64_t at_ms)
{
    return m->trust.cut_off_ms && at_ms < m->trust.cut_off_ms + CUT_OFF_MS;
}

/* It is a source of others only where there is no other one. */
static inline bool member_is_last_resort(const member_t *m, uint64_t at_ms)
{
    bool is_going = m->state == MEMBER_DRAINING;
    return m->trust.sends_bad || m->trust.is_suspect || m->no_relay || is_going ||
           member_is_cut_off(m, at_ms);
}

/* The first one is due first. */
typedef struct {
    member_t *first, *last;
} member_queue_t;

/* How many READY members have a value that all must have in common. */
typedef struct trait trait_t;

typedef struct membership {
    uint64_t epoch, counter, lease_us, keep;
    /* No lease ends before: the broker has started, or was late itself.  What waits after a start for those
     * that may return (rollout.h, roster.h) waits until then. */
    uint64_t grace_end_us;
    uint64_t tick_us;      /* last tick, to notice lateness; 0: none yet */
    member_queue_t leases; /* READY ones, by the end of their lease */
    member_queue_t ended;  /* LOST and LEFT ones, by when they are forgotten */
    trait_t *traits;
    /* READY rows, ascending by token: tokens only go up, so a new one is the last */
    member_t **tokens;
    size_t token_count, token_capacity;
    /* the tokens of sessions before that members named, ascending */
    former_token_t **former;
    size_t former_count, former_capacity;
    member_t **workers;
    size_t worker_count, worker_capacity; /* ascending by name, all states */
    /* ascending by adapter, READY only */
    member_t **publishers;
    size_t publisher_count, publisher_capacity;
    member_t *closed;      /* the publisher that ended last */
    size_t ended_count;    /* in `ended` */
    uint64_t fenced_count; /* messages under a stale token, in total */
} membership_t;

void membership_init(membership_t *m, uint64_t lease_us, uint64_t keep);
void membership_fini(membership_t *m);
/* A start: tokens of this epoch from now on; no lease ends before grace_end_us. */
void membership_start(membership_t *m, uint64_t epoch, uint64_t now_us, uint64_t grace_end_us);

/* Tokens of a greater epoch from now on; those of sessions that are here stay good. */
void membership_raise_epoch(membership_t *m, uint64_t epoch);

/* ---- reading ---- */
/* READY or DRAINING, else NULL: so in all that follows where READY is said */
member_t *membership_by_token(const membership_t *m, uint64_t token);
/* A member of this epoch, or of an earlier one, may have had this token. */
bool membership_gave(const membership_t *m, uint64_t token);
/* The member that a worker names as its source: by its token, or by one that it had before, which the worker
 * still uses after a start of the broker, also after some of them.  READY only, else NULL. */
const member_t *membership_source(const membership_t *m, uint64_t token);
member_t *membership_worker(const membership_t *m, const char *name);       /* any state */
member_t *membership_publisher(const membership_t *m, const char *adapter); /* READY only */
/* NULL: not subscribed */
member_sub_t *member_sub(const member_t *member, const char *adapter);
bool member_is_ready(const member_t *member);    /* READY or DRAINING; accepts NULL */
bool member_is_draining(const member_t *member); /* accepts NULL */
/* A fetch at that rate is limited by the member's --max-rate; accepts NULL. */
bool member_limits(const member_t *member, uint64_t rate_bytes);
/* The same rate, at most its --max-rate.  A limited fetch is ahead of its limit by a range that was asked for
 * whole, and by what the pace saves up in a pause (transfer/pace.h).  It waits for that afterwards.  So a
 * short time has more bytes than it may take.  Accepts NULL. */
uint64_t member_paced(const member_t *member, uint64_t rate_bytes);
/* "": it has none */
const char *member_label(const member_t *member, const char *key);
bool member_subscribes(const member_t *member, const char *adapter); /* and is READY; accepts NULL */
/* Two heartbeats are missing: its link may be cut, or the process stands still. */
bool member_is_silent(const membership_t *m, const member_t *member, uint64_t now_us);
uint64_t member_silent_ms(const member_t *member, uint64_t now_us); /* heartbeat age */
const char *member_state_name(member_state_t state);
/* Of its data plane: "10.0.0.5, fd00::5"; "" where it reported none. */
void member_addresses(const member_t *member, char *ret_text, size_t size);
/* How many workers subscribe to the publisher's adapter, if none of them can reach it.  Its data plane is on
 * loopback alone then, and none of theirs is there, nor do they share memory with it. 0: one may, or it is
 * not known. */
size_t membership_cut_off(const membership_t *m, const member_t *publisher);

/* ---- changing ---- */

/* What HELLO said of the connection. */
typedef struct {
    uint64_t peer;
    role_t role;
    key16_t life;
    const char *host;
    uint64_t pid;
} member_hello_t;

/* Checks a JOIN: names, labels, subscriptions, slots, UCX version, a live holder of the name.  OK ·
 * BAD_NAME · USAGE · LIMIT · TOO_FEW_SLOTS · UCX_VERSION · WORKER_ALIVE (error->retriable, *ret_retry_ms
 * set). */
int membership_decide_join(const membership_t *m, const msg_join_t *join, const member_hello_t *hello,
                           uint64_t now_us, uint64_t *ret_retry_ms, heddle_error_t *error);
typedef struct {
    member_t *member;
    /* The session that was READY until now under the same name; 0: none. */
    uint64_t replaced_peer, replaced_token;
    bool is_fenced; /* it was of another process */
    bool was_gone;  /* and its connection had ended: that process was killed, as a rule */
} admitted_t;

/* Admits the worker, which membership_decide_join has checked.  NO_MEMORY: nothing changed. */
int membership_join(membership_t *m, const msg_join_t *join, const member_hello_t *hello, instant_t now,
                    admitted_t *ret);
/* END_NOT_RETURNED: a worker that was ready before the broker's start.  Its row, which the caller completes.
 * NULL: no memory, or no room. */
member_t *membership_add_lost(membership_t *m, const msg_join_t *past, const member_hello_t *hello,
                              instant_t now);
/* The same for a publisher; the registry has decided that it may write. `token`: of
 * membership_next_token. */
int membership_decide_open(const membership_t *m, const msg_open_t *open, heddle_error_t *error);
int membership_open(membership_t *m, const msg_open_t *open, const member_hello_t *hello, uint64_t token,
                    instant_t now, admitted_t *ret);
uint64_t membership_next_token(membership_t *m);
void membership_heartbeat(membership_t *m, member_t *member, const msg_heartbeat_t *hb, uint64_t now_us);
/* READY -> DRAINING.  False: it was so before, or has ended. */
bool membership_drain(member_t *member, instant_t now);
/* What JOIN or a heartbeat says of a drain.  True: the worker is to drain, by its own wish or as it was told
 * before the broker's start. */
bool membership_hear_drain(member_t *member, bool draining, bool own_wish);
/* DRAINING -> READY.  False: it does not drain.  REQUEST_CONFLICT, in *ret_code: it leaves by its own wish,
 * or does so already, or has ended. */
bool membership_undrain(member_t *member, int *ret_code, heddle_error_t *error);
/* STAGED says what the next heartbeat would: that fetch has ended, and the worker's counters. */
void membership_staged(member_t *member, const msg_staged_t *m);
/* The worker has finished fetching that version, well or not: what its last heartbeat said of it does not
 * hold any more. */
void member_clear_fetch(member_t *member, const char *adapter, uint64_t version);
/* A process under this name says something with that token, or names it as its former one.  Where the session
 * had ended for another process, both run under one name: counted as fenced, and true, once for each
 * session. */
bool membership_note_rival(member_t *worker, uint64_t token);
/* A frame with a live token was received: the lease is renewed. */
void membership_received(membership_t *m, member_t *member, uint64_t now_us);
/* READY -> LEFT or LOST, with end_code and end_message.  A worker's row is listed for a while, so that
 * operators see what became of it.  A publisher's is not listed, because the registry has its name; it is
 * freed when the next publisher ends. */
void membership_end(membership_t *m, member_t *member, member_end_t end, instant_t now);
/* Time passed.  Ticks are due every quarter of a lease (membership_deadline).  A tick that is late by more
 * than half a lease grants every member a lease of grace, because the broker may not have read their
 * heartbeats; the grace after a start goes on by each delay.  Forgets lost and left members that were listed
 * long enough. */
void membership_tick(membership_t *m, instant_t now);
/* No lease ends before members have had a lease of time. */
void membership_give_grace(membership_t *m, uint64_t now_us);
/* A READY member whose lease is over, NULL when there is none (or grace is on): the caller ends it and
 * asks again. */
member_t *membership_lapsed(const membership_t *m, uint64_t now_us);
/* When the next tick is due: a lease ends, or a quarter of a lease has passed; CLOCK_NEVER without
 * members. */
uint64_t membership_deadline(const membership_t *m);

#endif
