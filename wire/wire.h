/* SPDX-License-Identifier: Apache-2.0 */
/* wire/wire.h: frames of bytes between processes, without any idea of their content. The only room that
 * includes czmq.h and zmq.h.
 *
 * A listening wire is one ROUTER on one port. A dialling wire is one DEALER, which connects and reconnects
 * by itself.
 *
 *    dial:  down --(handshake done: on_connection(true))--> up
 *             up --(connection lost, redial: on_connection(false))--> down
 *
 * Set on every socket: handshake interval, largest frame LIMIT_FRAME_BYTES, ZMTP heartbeats, queues of
 * LIMIT_QUEUE_FRAMES, linger 0, ROUTER_MANDATORY, IMMEDIATE. Nothing is queued for a peer that is not
 * connected, and no frame is lost silently: wire_send takes it, or returns SLOW or GONE.
 *
 * Refused by on_bad_frame: a message of more than one frame (beyond the routing id), an empty frame, and a
 * frame under a routing id that the peer chose itself. A frame over the limit ends its connection. libzmq
 * holds a message until its last frame has come and does not count its bytes, so the memory that a hostile
 * peer can make a listener hold is not bounded here.
 *
 * With keys, a wire uses CURVE: both sides prove their keys, and frames are encrypted and authenticated. It
 * never falls back to a plain connection. Without keys it uses ZMTP's NULL mechanism. The two do not
 * interwork.
 *
 *    dial:  refused (on_refused) --(pause, doubled each time, keys read again)--> down
 *
 * Threads: those of the loop, one at a time. Nothing blocks, except that a dial reads a small key file. No
 * signal handler is ever installed. The caller owns the wire. */
#ifndef WIRE_WIRE_H
#define WIRE_WIRE_H

#include "core/bytes.h"
#include "wire/keyring.h"
#include "wire/loop.h"
#include <heddle/error.h>

/* 0: the broker, seen from a client; else a number that is never reused, and never a routing id. */
typedef uint64_t peer_t;
typedef struct wire wire_t;

/* Called in the loop's turns; none may close the wire. */
typedef struct {
    void (*on_frame)(void *self, peer_t from, bytes_t frame);       /* borrowed during the call */
    void (*on_connection)(void *self, bool up);                     /* dial only */
    void (*on_bad_frame)(void *self, peer_t from, const char *why); /* 0: no number.  NULL: ignored */
    /* Dial only; NULL: ignored.  The handshake was rejected: DENIED (our key is not registered there: not
     * retriable; or one side has keys and the other has none), UNAVAILABLE (another key of the broker than
     * the expected one).  Or nothing was dialled, because the file of the broker's key or our own key cannot
     * be read: DATA_DIR, INTERNAL.  The wire retries by itself. */
    void (*on_refused)(void *self, const heddle_error_t *why);
} wire_sink_t;

/* Copied by the call that takes it. */
typedef struct {
    key_pair_t own;
    /* Listen: called in the loop's turns for each new connection.  At most one listener with keys in a
     * process. */
    bool (*allow)(void *self, const char *public_key);
    /* Dial: the broker's key.  Unless it is fixed, each dial looks the endpoint up in `ring` and uses the key
     * found there instead.  "": plain, until a key was found.  own "" is then client.key of the ring. */
    char broker_key[KEY_TEXT];
    bool is_fixed;
    /* Dial: the roles that our key needs, as `heddle keys add --role` takes them, for the hint of a refusal.
     * "": it depends. */
    char roles[112];
    keyring_t ring;
} wire_keys_t;

/* Checks "tcp://HOST:PORT" or "ipc://PATH" without connecting; *ret_loopback (may be NULL) tells
 * whether only this host can reach it.  A listener's HOST may be `*` and its PORT `*` or 0.  USAGE. */
int wire_check_endpoint(const char *endpoint, bool listen, bool *ret_loopback, heddle_error_t *error);
/* The same for a comma-separated list to dial; loopback when every one of them is. */
int wire_check_endpoints(const char *endpoints, bool *ret_loopback, heddle_error_t *error);

/* Takes endpoints off a list that was checked, up to and with the first one that leads off this host:
 * ret_host is its host, without brackets.  False: there is none. */
#define WIRE_HOST_BYTES 256
bool wire_next_host(const char **list, char ret_host[WIRE_HOST_BYTES]);

/* `keys` NULL: plain.  `endpoints`: one or more, comma-separated; one is connected at a time, the next when
 * that one cannot be reached.  Returns at once: the broker may be away.  USAGE, NO_MEMORY. */
int wire_dial(loop_t *loop, const char *endpoints, const wire_keys_t *keys, const wire_sink_t *sink,
              void *self, wire_t **ret_wire, heddle_error_t *error);
/* USAGE, ADDRESS_IN_USE, NO_MEMORY, INTERNAL (not allowed to; retriable: not an address of this machine, or
 * not yet).  Raises the process's soft limit of descriptors to the hard one: a listener needs one for each
 * peer.  UNAVAILABLE: with keys, where another listener of this process has keys. */
int wire_listen(loop_t *loop, const char *endpoint, const wire_keys_t *keys, const wire_sink_t *sink,
                void *self, wire_t **ret_wire, heddle_error_t *error);
/* Whether wire_listen would listen there now, for the same reasons; nothing is kept.  An ipc socket is not
 * made for it. */
int wire_try_listen(const char *endpoint, heddle_error_t *error);
/* The time that a connection made from now on, in either direction, may take for the ZMTP handshake before it
 * is dropped: at least 1 ms, by default 5 s.  It counts for the whole process, as ZeroMQ's context does. */
void wire_set_handshake(uint32_t ms);
/* Listen only: the key that the peer proved; "" on a plain wire, NULL for a number that is not in the
 * table.  Borrowed until the next turn. */
const char *wire_peer_key(const wire_t *w, peer_t peer);
/* As bound, with the port; of a dialling wire, the one being tried.  Borrowed until the next turn. */
const char *wire_endpoint(const wire_t *w);
/* Dial only, for a caller that waits for a connection so long: each endpoint of a list gets its part of that
 * time, from now on, until it is connected; then the next one is tried.  Without this call an endpoint that
 * answers nothing is tried twice for 3 s; one that takes the connection and says nothing, once for as long as
 * a handshake may take. */
void wire_share(wire_t *w, uint64_t timeout_ms);
/* Dial only: the rest of the list that was not tried yet; NULL: all of it was.  Any thread, until
 * wire_close. */
const char *wire_untried(const wire_t *w);
/* Dial only: the endpoint accepted the last connection attempt, whether or not it then spoke ZMTP.  Any
 * thread. */
bool wire_is_reached(const wire_t *w);
/* OK · SLOW (its queue is full, or no memory is left: mark the peer for a resync) · GONE (not connected; for
 * a listener: for good) · LIMIT (empty, or over LIMIT_FRAME_BYTES). */
int wire_send(wire_t *w, peer_t to, bytes_t frame);
/* Listen only: forgets a peer's number.  If that connection sends again, it gets a new number.  The table
 * holds LIMIT_PEERS; when it is full, the peer that was silent for longest is forgotten. */
void wire_forget(wire_t *w, peer_t peer);
/* Dial only: drops the connection, with all that was queued on it either way, and connects anew, to
 * the next endpoint of the list; done later in the turn, on_connection(false) then follows if it was
 * connected. */
void wire_redial(wire_t *w);
/* Dial only: the same, to `endpoint`, which the broker has named; the list goes on after it, or, where the
 * list does not have it, at the endpoint of that broker.  "": wire_redial.  Nothing happens where it is no
 * address, where the connection was there less than WIRE_RETURN_US ago, and where a plain connection would
 * leave the host with a list that does not.  `key`: that the broker there proves, as in wire_told. */
#define WIRE_RETURN_US 2000000u
void wire_redial_to(wire_t *w, const char *endpoint, const char *key);
/* Dial only: the brokers of the cluster, as one of them told; it replaces what was told before.  They are
 * tried after the whole list, where that does not have them, each with the key of its row; then the list is
 * begun again.  Left out are what is no address or no key, an address of the own host where the broker that
 * told it is on another one, and on a plain connection those with a key, and another host unless the list
 * has one.  What a plain connection told is forgotten when the wire is given a key.  A key counts for that
 * address alone, on this wire alone, and where the ring has none for it. */
typedef struct {
    const char *endpoint, *key; /* key "": that of the connection */
} wire_broker_t;
#define WIRE_TOLD_MAX 32u /* rows that are kept */
void wire_told(wire_t *w, const wire_broker_t *brokers, size_t count);
/* Dial only, of a wire with keys: from the next dial on it proves this pair in place of the one before. */
void wire_present(wire_t *w, const key_pair_t *own);
/* Accepts NULL and pointers to NULL. */
void wire_close(wire_t **w);

#endif
