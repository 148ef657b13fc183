/* SPDX-License-Identifier: Apache-2.0 */
/* tests/process/line.h: a client that speaks messages and nothing else: no session, no heartbeats, no retries. */
#ifndef TESTS_PROCESS_LINE_H
#define TESTS_PROCESS_LINE_H

#include "proto/msg.h"
#include "wire/wire.h"

#include <jansson.h>

typedef struct line {
    loop_t *loop;
    wire_t *wire;
    bool is_up, is_lost; /* lost: was up once */
    buf_t frames[64];    /* came, not yet read */
    int frame_count;
    uint64_t token; /* after line_open */
} line_t;

/* Connects and says HELLO; false when nobody answers within `timeout_ms`. */
bool line_dial(line_t *l, const char *endpoint, role_t role, int timeout_ms);
void line_hang_up(line_t *l);
void line_send(line_t *l, const msg_t *m);
void line_send_raw(line_t *l, bytes_t frame);
/* The next message of one of two types (the same twice for one); others are dropped.  False when
 * the line went down, or after 5 s.  On true the
 * caller calls msg_fini. */
bool line_read(line_t *l, msg_type_t type, msg_type_t or_type, msg_t *ret_msg);

/* OPEN as the writer of an adapter. */
void line_open(line_t *l, const char *adapter);
/* PUBLISH of made-up bytes: 0 and *ret_version, or the code of the ERROR that came. */
int line_publish(line_t *l, const char *adapter, uint8_t content, uint64_t *ret_version);
/* QUERY -> the body; fails the test on an error.  The caller frees it. */
json_t *line_ask(line_t *l, const msg_query_t *q);

#endif
