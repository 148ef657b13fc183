/* SPDX-License-Identifier: Apache-2.0 */
/* client/query.h: questions to the broker, asked and answered on the caller's thread, over a connection with
 * a loop that runs only inside query_ask.
 *
 *   not asked --(greeted by the broker)--> asked --(REPORT, ERROR)--> answered
 *   asked --(connection lost, broker restarted)--> not asked: asked again with what is left of its patience
 *   a question on a quiet connection --> not asked: greeted first, and dialled anew without an answer
 *
 * Threads: one at a time; query_interrupt by any, signal handlers too.  The caller owns a query.  query_ask
 * blocks at most for the timeout plus the question's own wait; with a deadline, which counts from the call,
 * at most until 2 s after it. */
#ifndef CLIENT_QUERY_H
#define CLIENT_QUERY_H

#include "client/credentials.h"
#include "proto/msg.h"
#include "wire/loop.h"
#include <jansson.h>

#define QUERY_QUIET_US 1000000u /* a connection without a frame for longer is greeted before it is used */

#define QUERY_SILENT_US 3000000u /* as a publisher has it: without a broker for longer, this is reported */

typedef struct query query_t;

/* Begins to connect.  USAGE, NOT_FOUND and DATA_DIR (a key), NO_MEMORY. */
int query_open(const char *broker, const credentials_t *keys, uint32_t timeout_ms, query_t **ret_query,
               heddle_error_t *error);
/* `question`: req and page cursors are set here; deadline_ms or wait_ms is how long the broker may
 * think.  Pages are put together, up to question->limit rows of events (0: as many as there are).
 * OK: the caller owns *ret_body.  An answer that is no: its code, error filled, and *ret_body too.
 * Else an error without it: that of the broker, UNAVAILABLE, DEADLINE, INTERRUPTED, PROTOCOL,
 * NO_MEMORY. */
int query_ask(query_t *q, const msg_query_t *question, json_t **ret_body, heddle_error_t *error);
/* From now on `on_report` sees each REPORT that answers a question, before its body is read; the message is
 * gone when it returns.  NULL: nothing does. */
void query_on_report(query_t *q, void (*on_report)(void *self, const msg_report_t *m), void *self);
/* Calls `silent` when the broker that has the question was lost QUERY_SILENT_US ago, once for each time that
 * it is lost.  NULL: not. */
void query_on_silence(query_t *q, void (*silent)(void *self, uint32_t silent_ms), void *self);
/* For work beside the questions, between calls: the caller turns it, adds sources and takes them away. */
loop_t *query_loop(query_t *q);
/* True once after query_interrupt. */
bool query_take_interrupt(query_t *q);
void query_interrupt(query_t *q);
/* Accepts NULL and pointers to NULL. */
void query_close(query_t **q);

#endif
