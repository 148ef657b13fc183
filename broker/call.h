/* SPDX-License-Identifier: Apache-2.0 */
/* broker/call.h: one message in hand: from which connection it came, and what it may do.  It lives for one
 * event, on the stack of the loop's thread; what a transaction needs of it later is copied (broker/txn.h). */
#ifndef BROKER_CALL_H
#define BROKER_CALL_H

#include "broker/state.h"

struct call {
    broker_t *b;
    const msg_t *m;
    bytes_t frame; /* that m was decoded from */
    uint64_t from;
    asker_t asker;              /* which gets the answer, or the error */
    uint64_t deadline_us;       /* when the asker is answered, whatever the store does */
    broker_peer_t *peer;        /* NULL: it has not said HELLO */
    const auth_key_t *key;      /* live, and allowed to say this; NULL: there are no keys */
    member_t *member;           /* whose token the message has; NULL where that is not needed */
    const saved_frame_t *again; /* it waited, or its numbers were recorded first; NULL: it came just now */
    instant_t now;
};

/* ERROR to the asker. */
void broker_refuse_asker(broker_t *b, const asker_t *asker, const heddle_error_t *error, uint64_t retry_ms);
static inline void broker_refuse(const call_t *c, const heddle_error_t *error, uint64_t retry_ms)
{
    broker_refuse_asker(c->b, &c->asker, error, retry_ms);
}

#endif
