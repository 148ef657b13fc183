/* SPDX-License-Identifier: Apache-2.0 */
/* client/session.h (PURE): the session of one client with the broker: hello, join, a lease by the client's
 * own clock, join again.
 *
 *   state     event                      -> next     sends / reports
 *   DOWN      CONNECTED                  -> GREETING HELLO
 *   GREETING  HELLO_OK                   -> JOINING  SO_JOIN: the caller's JOIN or OPEN
 *             HELLO_OK, another cluster  -> JOINING  SO_ELSEWHERE: nothing is sent, and HELLO follows again
 *             HELLO_OK, admin            -> READY    SO_JOINED
 *             ERROR(of HELLO)            -> REFUSED  SO_REFUSED; retriable, or a worker that was READY
 *                                                    before: again after its retry_ms
 *             the same, of a standby     -> REFUSED  and SO_REDIAL: to `leader`; not when SESSION_FOLLOWS
 *                                                    in a row led to no HELLO_OK
 *             the same, retriable, without a leader for SESSION_UNLED_US
 *                                        -> REFUSED  and SO_REDIAL: to the next endpoint
 *             silence, SESSION_HELLO_US  -> GREETING HELLO again; the third time -> DOWN, SO_REDIAL
 *   DOWN      after SO_REDIAL, neither CONNECTED nor DISCONNECTED for SESSION_RETRY_US
 *                                      -> GREETING HELLO: the old connection stayed
 *   JOINING   WELCOME(req)               -> READY    SO_JOINED; lease from when JOIN was SENT
 *             ERROR(req, of JOIN, OPEN)  -> REFUSED  SO_REFUSED
 *             silence                    as GREETING
 *   these and REFUSED: DISCONNECTED      -> DOWN     CONNECTED -> GREETING, HELLO
 *   READY     lease / 4, connected       -> READY    SO_HEARTBEAT
 *             HEARTBEAT_OK(seq)          -> READY    lease from when that heartbeat was SENT; takes `drain`
 *             lease over                 -> GREETING SO_LAPSED: what was queued is dropped; HELLO
 *                                                    (without a connection: -> DOWN)
 *             DISCONNECTED               -> READY    until the lease is over
 *             CONNECTED                  -> GREETING HELLO: the broker does not know the connection;
 *                                                    the token is kept, for prev_token
 *             ERROR(own token, version 0, fenced, denied or not_found)
 *                                        -> GREETING SO_LAPSED, HELLO
 *               the same, fenced, of a publisher
 *                                        -> LEFT     SO_FENCED, SO_LEFT: another one writes the adapter
 *             ERROR(of QUERY, with `leader`), admin
 *                                        -> REFUSED  as that of HELLO: a broker that led names the next one
 *             LEAVE                      -> LEAVING  SO_LEAVE (no connection, admin: -> LEFT)
 *   LEAVING   BYE, DISCONNECTED, CONNECTED, or SESSION_LEAVE_US over
 *                                        -> LEFT     SO_LEFT
 *   any other LEAVE                      -> LEFT     SO_LEFT
 *   LEFT      anything                               nothing
 *
 * A lease that ends in any state before LEAVING is reported once, as SO_LAPSED, and before the
 * event is looked at: a frame that was queued behind it is never delivered.  Frames of another
 * token, answers to another request and frames that a client does not get are dropped.  Waits are jittered by
 * a quarter either way.  HELLO_OK of its cluster names the brokers, or none, and HEARTBEAT_OK may: SO_TOLD,
 * beside what else is to be done.  Loop thread only; the member or the query that has it owns it. */
#ifndef CLIENT_SESSION_H
#define CLIENT_SESSION_H

#include "core/clock.h"
#include "core/limits.h"
#include "proto/msg.h"
#include <heddle/keys.h>

#define SESSION_HELLO_US 1000000u /* for the answer to HELLO, JOIN or OPEN */
#define SESSION_HELLOS 3u
#define SESSION_RETRY_US 1000000u /* where the ERROR names no retry_ms; after SO_REDIAL */
#define SESSION_FOLLOWS 2u        /* so many brokers in a row that each name another one, then a pause */
#define SESSION_UNLED_US 1000000u /* so long HELLO is refused for now, and no leader is named: the next one */
#define SESSION_LEAVE_US 1000000u
#define SESSION_BEATS 16u

typedef enum {
    SESSION_DOWN,
    SESSION_GREETING,
    SESSION_JOINING,
    SESSION_READY,
    SESSION_REFUSED,
    SESSION_LEAVING,
    SESSION_LEFT
} session_state_t;

typedef struct {
    role_t role;
    key16_t life;
    const char *host;
    uint64_t pid;  /* borrowed for the session's life */
    uint64_t seed; /* jitter */
} session_opts_t;

typedef struct session {
    session_opts_t opts;
    session_state_t state;
    uint64_t token, epoch, lease_us, keep, wire;
    /* the last one of each start of the broker before `token`'s, newest first: as in JOIN */
    uint64_t former_tokens[LIMIT_FORMER_TOKENS];
    uint32_t former_count;
    char cluster[HEDDLE_NAME_MAX + 1];
    char joined[HEDDLE_NAME_MAX + 1]; /* the cluster of the last WELCOME; "" none */
    char leader[256]; /* where to, with SO_REDIAL: what a standby named; "": the next endpoint */
    char leader_key[HEDDLE_KEY_TEXT]; /* that the broker there proves, as the standby said; "": not known */
    uint64_t join_count;              /* WELCOMEs so far */
    uint64_t unled_us;                /* since when this broker asks to try again, and names no leader */
    uint64_t next_us;                 /* next thing to do in this state */
    uint64_t lease_end_us;            /* by own clock; 0: no lease */
    uint64_t asked_us;                /* when the JOIN or OPEN of `req` was sent */
    uint64_t heartbeat_seq, req;
    struct {
        uint64_t seq, sent_us;
    } beats[SESSION_BEATS]; /* when each recent heartbeat was sent */
    /* follow_count: by `leader`, since HELLO_OK (admin: since an answer), or a pause */
    unsigned hello_count, follow_count;
    bool follows; /* SO_REDIAL to `leader`, and no connection since */
    /* sessions that the same broker ended while this process went on: it gave the name to another process, or
     * this one had stood still past its lease */
    uint64_t fenced_count, rng;
    bool is_connected, has_lapsed; /* has_lapsed: the session ended so, and no other was given yet */
    drain_t drain;                 /* as the broker said last in this session; a worker's */
    bool stays;                    /* as the broker said last: a drain was taken back */
} session_t;

typedef enum { SE_CONNECTED, SE_DISCONNECTED, SE_FRAME, SE_TICK, SE_LEAVE } session_event_kind_t;
typedef struct {
    session_event_kind_t kind;
    const msg_t *msg;
} session_event_t;

/* What the caller is to do, in this order of bits. */
typedef enum {
    SO_LAPSED = 1 << 0,     /* the token is void: drop queued frames, timers of it; serve on */
    SO_HELLO = 1 << 1,      /* send session_hello() */
    SO_JOIN = 1 << 2,       /* build and send JOIN or OPEN with req = session->req */
    SO_JOINED = 1 << 3,     /* WELCOME accepted: read it from the event's msg */
    SO_REFUSED = 1 << 4,    /* the ERROR of the event's msg refuses the hello or the join */
    SO_HEARTBEAT = 1 << 5,  /* build and send HEARTBEAT with seq = session->heartbeat_seq */
    SO_LEAVE = 1 << 6,      /* send LEAVE with the token */
    SO_LEFT = 1 << 7,       /* over: close */
    SO_REDIAL = 1 << 8,     /* no answer comes: connect anew, to the next endpoint; or to `leader` */
    SO_DELIVER = 1 << 9,    /* the frame is for the caller */
    SO_ELSEWHERE = 1 << 10, /* in place of SO_JOIN: the broker that was greeted has the registry of another
                             * cluster than the one that was joined before */
    SO_FENCED = 1 << 11,    /* the broker gave the token of this publisher to another session */
    SO_TOLD = 1 << 12       /* the event's msg, HELLO_OK or HEARTBEAT_OK, has the brokers of the cluster; of
                             * HELLO_OK, which may have none, that counts too */
} session_out_t;

void session_init(session_t *s, const session_opts_t *opts);
/* Returns bits of session_out_t. */
unsigned session_step(session_t *s, const session_event_t *event, uint64_t now_us);
uint64_t session_deadline(const session_t *s);
/* In READY the next heartbeat is due now: it says something that must not wait. */
void session_beat_soon(session_t *s, uint64_t now_us);
void session_hello(const session_t *s, msg_t *ret_msg);
/* It was refused, and does not try again before it was disconnected. */
bool session_is_barred(const session_t *s);

#endif
