/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/node_part.h: what the files of a publisher's node share, and nobody else sees: its state.
 *   node.c        what the broker, the line, the transfer and the clock say
 *   node_calls.c  what the application asks */
#ifndef TRAINER_CLIENT_NODE_PART_H
#define TRAINER_CLIENT_NODE_PART_H

#include "trainer_client/node.h"

typedef enum { REQUEST_NONE, REQUEST_PENDING, REQUEST_DONE } request_state_t;
typedef struct {
    request_state_t state;
    publish_request_t asked;
    uint64_t req;                       /* of the last PUBLISH */
    uint64_t resend_us;                 /* CLOCK_NEVER: sent, or waits for WELCOME */
    uint64_t base_bytes;                /* served before it was said */
    bool is_sent;                       /* in this session: the broker may record it */
    int rc;
    heddle_error_t error;
    publish_result_t result;
} request_t;

/* A request that was abandoned and may be recorded yet: its slot stays taken, and is served if it is. */
typedef struct {
    uint64_t req;                       /* 0: none */
    digest_t digest;
    uint64_t arena_bytes, base_bytes, start_us, deadline_ms;
    int activation;
} orphan_t;

/* Bytes served of the version that is being staged, less those to workers that left since; base_bytes: what
 * the transfer's counter has of others. */
typedef struct { uint64_t version, base_bytes, told_bytes, due_us; uint32_t copy_count; } progress_t;

struct publisher_node {
    const node_io_t *io;
    char adapter[HEDDLE_NAME_MAX + 1], writer[HEDDLE_NAME_MAX + 1], host[HEDDLE_NAME_MAX + 1];
    bool takeover, has_joined, is_fenced, has_left, is_changed;
    void (*changed)(void *self); void *self;
    session_t session;
    publications_t publications;
    reports_t reports;
    request_t request;
    orphan_t orphans[PUBLICATION_SLOTS]; /* of each slot */
    progress_t progress;
    inquiry_t inquiry;
    uint64_t word_us;                   /* until when a take waits for the broker's word; CLOCK_NEVER:
                                         * none does */
    bool is_word_late;                  /* it did not come */
    uint64_t settled_us;                /* until then the broker decides nothing: it had just started */
    heddle_error_t refusal;             /* why the broker refused last; code 0: it did not */
    bool is_line_refused;              /* `refusal` is of the handshake */
    heddle_error_t fence;               /* who fenced us */
    buf_t frame;
};

/* PENDING -> DONE; on failure a slot that is still TAKEN is given back. */
void request_finish(publisher_node_t *n, int rc, const heddle_error_t *error);
/* Since the transfer was opened, to all. */
uint64_t bytes_served(const publisher_node_t *n);
/* The slot of the orphan with that request, or of the oldest (0); -1: none. */
int  orphan_find(const publisher_node_t *n, uint64_t req);
/* Nobody waits for it any more, and its slot is free. */
void orphan_end(publisher_node_t *n, int slot);
/* Says PUBLISH of a PENDING request, if the session is READY. */
void request_send(publisher_node_t *n, uint64_t now_us);
/* An event of the session's own, and what comes of it. */
void publisher_node_step(publisher_node_t *n, session_event_kind_t kind, uint64_t now_us);

#endif
