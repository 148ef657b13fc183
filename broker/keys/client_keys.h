/* SPDX-License-Identifier: Apache-2.0 */
/* broker/keys/client_keys.h: what the key of a connection lets it do, and the questions that change keys.
 * auth.h has the table.  Without io.key there are no keys, and every client may do everything.
 * Loop thread; nothing blocks but a commit (broker/txn.h). */
#ifndef BROKER_CLIENT_KEYS_H
#define BROKER_CLIENT_KEYS_H

#include "broker/call.h"

/* The connection's key may not say this; *error has auth_check's word of a live key.  Of a revoked or unknown
 * key only HELLO is answered: everything else is dropped. */
void keys_deny(const call_t *c, const char *proved, heddle_error_t *error);
/* A worker's name is its key's while the worker lives: false where that was said. */
bool keys_may_take_name(const call_t *c, const member_t *holder);
bool on_keys(const call_t *c); /* false: the question is for a page, or not about keys */
/* A KEY record was applied. */
/* Of an invitation and all keys that it entered: their sessions end. */
void keys_apply_entered(broker_t *b, const record_t *rec, instant_t now);
void keys_apply(broker_t *b, const record_t *rec, instant_t now);
/* The answer to the question that the transaction was for. */
void keys_answer(broker_t *b, const txn_t *txn, instant_t now);

#endif
