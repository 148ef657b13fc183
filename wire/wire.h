/* SPDX-License-Identifier: Apache-2.0 */
/* wire/wire.h: frames of bytes between processes; knows no message.  The only room that includes czmq.h and zmq.h.
 *
 * A listening wire is one ROUTER on one port; a dialling wire is a DEALER that reconnects by itself.  Set on every
 * socket: handshake interval 5 s, largest message LIMIT_FRAME_BYTES, ZMTP heartbeats, linger 0, ROUTER_MANDATORY.
 * A message of more than one frame (beyond the routing id) is a protocol error: the peer's on_bad_frame is called.
 * Loop thread only.  Nothing blocks. */
#ifndef WIRE_WIRE_H
#define WIRE_WIRE_H

#include "core/bytes.h"
#include "wire/loop.h"
#include <heddle/error.h>

typedef uint64_t peer_t;   /* 0: the broker, seen from a client; else a number that is never reused; never a routing id */
typedef struct wire wire_t;

typedef struct {
    void (*on_frame)(void *self, peer_t from, bytes_t frame);          /* borrowed during the call */
    void (*on_line)(void *self, bool up);                              /* dial only: the connection came up, or went down */
    void (*on_bad_frame)(void *self, peer_t from, const char *why);    /* multipart or empty; NULL: ignored */
} wire_sink_t;

/* Checks "tcp://host:port" or "ipc://path" without connecting; *ret_loopback tells whether only this host can reach it. */
int  wire_check_endpoint(const char *endpoint, bool listen, bool *ret_loopback, heddle_error_t *error);
/* `endpoints`: one or more, comma-separated: all are connected, the first that answers is used by the session. */
int  wire_dial(loop_t *loop, const char *endpoints, const wire_sink_t *sink, void *self, wire_t **ret_wire, heddle_error_t *error);
/* ADDRESS_IN_USE with the address; `*` as port takes any free one. */
int  wire_listen(loop_t *loop, const char *endpoint, const wire_sink_t *sink, void *self, wire_t **ret_wire, heddle_error_t *error);
const char *wire_endpoint(const wire_t *w);                             /* as bound, with the port */
/* OK · SLOW (high-water mark: mark the peer for a resync) · GONE.  Never blocks. */
int  wire_send(wire_t *w, peer_t to, bytes_t frame);
/* Forgets a peer's number (its routing id is dropped). */
void wire_forget(wire_t *w, peer_t peer);
/* Dial only: drops the connection and connects anew, to the next endpoint of the list. */
void wire_redial(wire_t *w);
void wire_close(wire_t **w);

#endif
