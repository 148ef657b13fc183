/* SPDX-License-Identifier: Apache-2.0 */
/* client/node.h: the two tables between a node (pure parts wired together) and its shell.  The shell
 * (client/shell.h) or a scenario test calls node_ops_t; the node acts through node_io_t.  Without state.
 * Loop thread only; the shell's owner owns both ends. */
#ifndef CLIENT_NODE_H
#define CLIENT_NODE_H

#include "client/session.h"
#include "core/bytes.h"
#include "transfer/transfer.h"
#include <heddle/types.h>

/* The calls that a node makes. */
typedef struct node_io {
    void *self;
    int (*send)(void *self, bytes_t frame); /* to the broker: OK | SLOW | GONE */
    /* "": to the next endpoint; as wire_redial_to */
    void (*redial)(void *self, const char *to, const char *key);
    void (*told)(void *self, const msg_t *m); /* of SO_TOLD; as broker_address_told.  NULL: ignored */
    void (*event)(void *self, const heddle_event_t *event); /* to the application */
    const transfer_ops_t *tr;
    transfer_t *t;
    const clock_ops_t *clock; /* wall-clock stamps of events, and times within a turn */
    const owner_t *owner;     /* of the thread that calls node and io.
                               * NULL: it is not checked */
} node_io_t;

/* What happens to the session of a node. */
typedef struct {
    session_event_kind_t kind;
    bytes_t frame;
} node_event_t; /* frame: of SE_FRAME */

/* What a shell calls. */
typedef struct node_ops {
    void (*session)(void *node, const node_event_t *event, uint64_t now_us); /* the connection, or a frame */
    void (*transfer)(void *node, const tr_event_t *event, uint64_t now_us);
    uint64_t (*tick)(void *node, uint64_t now_us); /* returns the next deadline */
    bool (*work)(void *node, uint64_t now_us);     /* one bounded piece (a digest); false:
                                                    * nothing was to do.  NULL: none */
    /* The handshake was rejected; it is tried again.  NULL: ignored. */
    void (*refused)(void *node, const heddle_error_t *why, uint64_t now_us);
    void (*readable)(void *node); /* a descriptor of its own (shell_poll), before a tick.  NULL: ignored */
} node_ops_t;

#endif
