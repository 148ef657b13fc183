/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/query.h: the message QUERY: a question is answered at once from a page (answer.h), waits
 * until it can be answered (pending.h), or changes keys (broker/keys/client_keys.h).  Loop thread;
 * nothing blocks but a commit (broker/txn.h), and the read of an ended version's config (answer.h). */
#ifndef BROKER_QUERY_H
#define BROKER_QUERY_H

#include "broker/call.h"
#include "broker/questions/answer.h"

void on_query(const call_t *c);
void on_pull(const call_t *c);
void on_reach(const call_t *c);
/* What a body may show of the broker. */
answer_view_t query_view(const broker_t *b, instant_t now);
void query_answer(broker_t *b, uint64_t peer, uint64_t req, const json_t *body);
/* Waiting questions whose answer has come; last in a turn. */
void query_answer_pending(broker_t *b, instant_t now);
/* Questions about an adapter that is gone: all that wait but those for events end with this error. */
void query_refuse(broker_t *b, const char *adapter, const heddle_error_t *error);
/* The decision of an activation is recorded (error NULL), or was refused. */
void query_activation_ended(broker_t *b, uint64_t question, const heddle_error_t *error);

#endif
