/* SPDX-License-Identifier: Apache-2.0 */
/* wire/wire.h: frames of bytes between processes; knows no message.  The only room that includes
 * czmq.h and zmq.h.
 *
 * A listening wire is one ROUTER on one port; a dialling wire is a DEALER that connects, and
 * connects again, by itself.
 *
 *   dial:  down --(handshake done: on_line(true))--> up --(connection lost, redial: on_line(false))--> down
 *
 * Set on every socket: handshake interval, largest frame LIMIT_FRAME_BYTES, ZMTP heartbeats, queues
 * of LIMIT_QUEUE_FRAMES, linger 0, ROUTER_MANDATORY, IMMEDIATE.  Nothing is queued for a peer that
 * is not connected, and nothing is lost without a word: a frame was taken, or SLOW or GONE is the
 * answer.
 * A message of more than one frame (beyond the routing id), an empty one and one under a routing id
 * that the peer chose itself are refused: on_bad_frame.  A larger frame than allowed ends its
 * connection.  libzmq holds a message until its last frame is there, and counts no bytes of it: how
 * much a hostile peer can make a listener hold is not bounded here.
 *
 * With keys the wire is CURVE's: both sides prove theirs, frames are encrypted and signed; never does it
 * fall back to a plain one.  Without, plain (ZMTP's NULL).  The two do not speak to each other.
 *
 *   dial:  refused (on_refused) --(pause, doubled each time, keys read again)--> down
 *
 * Threads: those of the loop, and one at a time.  Nothing blocks but reading a small key file at a dial.
 * No signal handler is ever installed. */
#ifndef WIRE_WIRE_H
#define WIRE_WIRE_H

#include "core/bytes.h"
#include "wire/keys.h"
#include "wire/loop.h"
#include <heddle/error.h>

/* 0: the broker, seen from a client; else a number that is never reused, and never a routing id. */
typedef uint64_t peer_t;
typedef struct wire wire_t;

/* Called in the loop's turns; none may close the wire. */
typedef struct {
    void (*on_frame)(void *self, peer_t from, bytes_t frame);          /* borrowed during the call */
    void (*on_line)(void *self, bool up);                              /* dial only */
    void (*on_bad_frame)(void *self, peer_t from, const char *why);    /* 0: no number.  NULL: ignored */
    /* Dial only; NULL: ignored.  Somebody is there and there will be no connection as things stand: DENIED
     * (our key is not known there: not retriable; plain against keys), UNAVAILABLE (wrong key of the
     * broker).  Or there is a file for the broker's key, and it or our own cannot be had: DATA_DIR,
     * INTERNAL; nothing was dialled.  It is tried again. */
    void (*on_refused)(void *self, const heddle_error_t *why);
} wire_sink_t;

/* Copied by the call that takes it. */
typedef struct {
    key_pair_t own;
    /* Listen: asked in the loop's turns for each new connection.  One listener with keys a process. */
    bool (*allow)(void *self, const char *public_key);
    /* Dial: the broker's key.  Not fixed: what `ring` knows for the endpoint takes its place, looked up at
     * each dial; "": plain, until one was found.  own "" is then client.key of the ring. */
    char broker_key[KEY_TEXT];
    bool is_fixed;
    keyring_t ring;
} wire_keys_t;

/* Checks "tcp://HOST:PORT" or "ipc://PATH" without connecting; *ret_loopback (may be NULL) tells
 * whether only this host can reach it.  A listener's HOST may be `*` and its PORT `*` or 0.  USAGE. */
int  wire_check_endpoint(const char *endpoint, bool listen, bool *ret_loopback, heddle_error_t *error);
/* The same for a comma-separated list to dial; loopback when every one of them is. */
int  wire_check_endpoints(const char *endpoints, bool *ret_loopback, heddle_error_t *error);

/* Takes endpoints off a list that was checked, up to and with the first one that leads off this host:
 * ret_host is its host, without brackets.  False: there is none. */
#define WIRE_HOST_BYTES 256
bool wire_next_host(const char **list, char ret_host[WIRE_HOST_BYTES]);

/* `endpoints`: one or more, comma-separated; one is connected at a time, the next when that one
 * cannot be reached.  Returns at once: the broker may be away.  USAGE, NO_MEMORY. */
int wire_dial(loop_t *loop, const char *endpoints, const wire_sink_t *sink, void *self, wire_t **ret_wire,
              heddle_error_t *error);
/* USAGE, ADDRESS_IN_USE, NO_MEMORY, INTERNAL (not allowed to; retriable: not an address of this machine, or
 * not yet).  Raises the process's soft limit of descriptors to the hard one: a listener needs one for each
 * peer. */
int wire_listen(loop_t *loop, const char *endpoint, const wire_sink_t *sink, void *self, wire_t **ret_wire,
                heddle_error_t *error);
/* The same with keys; NULL: plain.  Listening: UNAVAILABLE, another listener of this process has keys. */
int wire_dial_with(loop_t *loop, const char *endpoints, const wire_keys_t *keys, const wire_sink_t *sink,
                   void *self, wire_t **ret_wire, heddle_error_t *error);
int wire_listen_with(loop_t *loop, const char *endpoint, const wire_keys_t *keys, const wire_sink_t *sink,
                     void *self, wire_t **ret_wire, heddle_error_t *error);
/* How long a connection made from now on, either way, may take to introduce itself (ZMTP) before it is
 * dropped: at least 1 ms, 5 s unless set.  Of the whole process, as ZeroMQ's context is. */
void wire_set_handshake(uint32_t ms);
/* Listen only: the key that the peer proved; "" on a plain wire, NULL for a number that is not in the
 * table.  Borrowed until the next turn. */
const char *wire_peer_key(const wire_t *w, peer_t peer);
/* As bound, with the port; of a dialling wire, the one being tried.  Borrowed until the next turn. */
const char *wire_endpoint(const wire_t *w);
/* Dial only: the endpoint took the last connection that was tried, whether or not anybody spoke ZMTP on it.
 * Any thread. */
bool wire_is_reached(const wire_t *w);
/* OK · SLOW (its queue is full, or no memory is left: mark the peer for a resync) · GONE (not connected; for
 * a listener: for good) · LIMIT (empty, or over LIMIT_FRAME_BYTES). */
int  wire_send(wire_t *w, peer_t to, bytes_t frame);
/* Listen only: forgets a peer's number.  Should that connection speak again, it gets a new one.  The
 * table holds LIMIT_PEERS; when it is full, the peer that was silent for longest is forgotten. */
void wire_forget(wire_t *w, peer_t peer);
/* Dial only: drops the connection, with all that was queued on it either way, and connects anew, to
 * the next endpoint of the list; done later in the turn, on_line(false) then follows if the line was
 * up. */
void wire_redial(wire_t *w);
/* Accepts NULL and pointers to NULL. */
void wire_close(wire_t **w);

#endif
