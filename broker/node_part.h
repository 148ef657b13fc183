/* SPDX-License-Identifier: Apache-2.0 */
/* broker/node_part.h: what the files of the node share; for node*.c alone. */
#ifndef BROKER_NODE_PART_H
#define BROKER_NODE_PART_H

#include "broker/node.h"
#include <jansson.h>

/* One message being handled: from whom, and who that is. */
typedef struct {
    broker_t *b;
    const msg_t *m;
    uint64_t from;
    broker_peer_t *peer;       /* NULL: it has not said HELLO */
    const auth_key_t *key;     /* live, and allowed to say this; NULL: there are no keys */
    member_t *member;          /* whose token the message has; NULL where that is not needed */
    instant_t now;
} call_t;

/* ---- node.c ---- */
/* Commits the outbox's records, applies them; false: neither they nor the sends of the outbox happened,
 * *ret_error says why. */
bool broker_make_durable(broker_t *b, instant_t now, heddle_error_t *ret_error);
void broker_let_go(broker_t *b);                      /* the outbox's sends leave; it is empty then */
/* What follows from a change: rollouts are looked at and decided, until nothing more comes of it. */
void broker_settle(broker_t *b, instant_t now);
/* ERROR to the asker of the message. */
void broker_refuse(const call_t *c, const heddle_error_t *error, uint64_t retry_ms);
/* ERROR fenced: to the asker, whose token is stale; to the peer whose session was replaced just now. */
void broker_tell_fenced(const call_t *c, uint64_t token);
/* Is the member's connection still there?  A send tells; sets is_gone. */
void broker_probe(broker_t *b, member_t *member);
bool broker_is_gone(broker_t *b, uint64_t peer);      /* the same of any connection */
void broker_tell_replaced(broker_t *b, uint64_t peer, uint64_t token, const char *name);
/* A session ended, for whatever reason but a new one of its name: events, copies, questions. */
void broker_end_member(broker_t *b, member_t *member, member_state_t state, instant_t now);
/* The same at once, for a reason of ours: as if its lease had ended. */
void broker_end_member_because(broker_t *b, member_t *member, const char *why, instant_t now);
void broker_close_writers(broker_t *b, instant_t now);

/* ---- node_session.c ---- */
broker_peer_t *broker_peer(const broker_t *b, uint64_t peer);
void broker_forget_peer(broker_t *b, broker_peer_t *peer);
void on_hello(const call_t *c);
void on_join(const call_t *c);
void on_open(const call_t *c);
void on_heartbeat(const call_t *c);
void on_leave(const call_t *c);

/* ---- node_heard.c ---- */
/* What JOIN and OPEN restate, against the store: where a member knows greater numbers, an older copy of the
 * data was put back, and all numbers are raised above them, on disk.  False: that failed, or is not
 * believed; it was refused. */
bool broker_hear_join(const call_t *c);
bool broker_hear_open(const call_t *c);

/* ---- node_version.c ---- */
void on_publish(const call_t *c);
void on_staged(const call_t *c);
void on_active(const call_t *c);
void on_nack(const call_t *c);
void on_need_sources(const call_t *c);

/* ---- node_keys.c ---- */
/* May the connection's key say this?  Sets c->key.  False: it was answered, or dropped. */
bool broker_allows(call_t *c);
/* A worker's name is its key's while the worker lives: false where that was said. */
bool broker_may_take_name(const call_t *c, const member_t *holder);
bool on_keys(const call_t *c);     /* false: the question is for a page, or not about keys */

/* ---- node_pull.c ---- */
void on_pull(const call_t *c);

/* ---- node_query.c ---- */
void on_query(const call_t *c);
void on_verified(const call_t *c);
void broker_report(broker_t *b, uint64_t peer, uint64_t req, const json_t *body);
void broker_answer_pending(broker_t *b, instant_t now);

#endif
