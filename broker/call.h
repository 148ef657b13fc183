/* SPDX-License-Identifier: Apache-2.0 */
/* broker/call.h: one message in hand: from which connection it came, and what it may do.  It lives for one
 * event; what a transaction needs of it later is copied (broker/txn.h). */
#ifndef BROKER_CALL_H
#define BROKER_CALL_H

#include "broker/state.h"

struct call {
    broker_t *b;
    const msg_t *m;
    bytes_t frame;                 /* that m was decoded from */
    uint64_t from;
    broker_peer_t *peer;           /* NULL: it has not said HELLO */
    const auth_key_t *key;         /* live, and allowed to say this; NULL: there are no keys */
    member_t *member;              /* whose token the message has; NULL where that is not needed */
    const request_t *again;        /* it waited, or its numbers were recorded first; NULL: it came just now */
    instant_t now;
};

asker_t asker_of(const call_t *c);
/* When the asker is answered, whatever the store does: a publication has its own deadline, all else a
 * lease. */
uint64_t request_deadline_us(const call_t *c);

/* ERROR to the asker of the message. */
void broker_refuse(const call_t *c, const heddle_error_t *error, uint64_t retry_ms);
void broker_refuse_asker(broker_t *b, const asker_t *asker, const heddle_error_t *error, uint64_t retry_ms);
/* ERROR fenced: to the asker, whose token is stale; to the peer whose session was replaced just now. */
void broker_tell_fenced(const call_t *c, uint64_t token);
void broker_tell_replaced(broker_t *b, uint64_t peer, uint64_t token, const char *name);

#endif
