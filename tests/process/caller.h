/* SPDX-License-Identifier: Apache-2.0 */
/* tests/process/caller.h: a client that speaks messages and nothing else: no session, no heartbeats, no retries. */
#ifndef TESTS_PROCESS_CALLER_H
#define TESTS_PROCESS_CALLER_H

#include "proto/msg.h"
#include "wire/wire.h"

#include <jansson.h>

typedef struct caller {
    loop_t *loop;
    wire_t *wire;
    bool is_up, is_lost; /* lost: was up once */
    buf_t frames[64];    /* came, not yet read */
    int frame_count;
    uint64_t token; /* after caller_open */
} caller_t;

/* Connects and says HELLO; false when nobody answers within `timeout_ms`. */
bool caller_dial(caller_t *l, const char *endpoint, role_t role, int timeout_ms);
void caller_hang_up(caller_t *l);
void caller_send(caller_t *l, const msg_t *m);
void caller_send_raw(caller_t *l, bytes_t frame);
/* The next message of one of two types (the same twice for one); others are dropped.  False when
 * it was disconnected, or after 5 s.  On true the
 * caller calls msg_fini. */
bool caller_read(caller_t *l, msg_type_t type, msg_type_t or_type, msg_t *ret_msg);

/* OPEN as the writer of an adapter. */
void caller_open(caller_t *l, const char *adapter);
/* PUBLISH of made-up bytes: 0 and *ret_version, or the code of the ERROR that came. */
int caller_publish(caller_t *l, const char *adapter, uint8_t content, uint64_t *ret_version);
/* QUERY -> the body; fails the test on an error.  The caller frees it. */
json_t *caller_ask(caller_t *l, const msg_query_t *q);

#endif
