/* SPDX-License-Identifier: Apache-2.0 */
/* Listening and dialling wires over libzmq: frames in, frames out, reconnecting, and what a failed
 * handshake means. */
#include "wire/wire.h"

#include "core/descriptors.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/repeat.h"
#include "wire/endpoint.h"
#include "wire/accept_limit.h"
#include "wire/greeting.h"
#include "wire/handshake.h"
#include "wire/peers.h"
#include "wire/socket.h"
#include "wire/zap.h"

#include <czmq.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/un.h>

enum {
    /* ZMTP's own heartbeats only show that the peer's libzmq lives; the session's show the application. */
    HEARTBEAT_MS = 2000,
    HEARTBEAT_TIMEOUT_MS = 10000, /* less loses peers when thousands connect at once (measured) */
    RECONNECT_MS = 100,
    RECONNECT_MAX_MS = 2000,
    CONNECT_MS = 3000,
    BACKLOG = 4096,
    REFUSED_MS = 100, /* pause after a refused handshake; doubled each time */
    REFUSED_MAX_MS = 5000,
    BROKEN_OFF_MAX = 3,     /* connections in a row that end in the handshake before a reason is looked for */
    TRIES_PER_ENDPOINT = 2, /* then the next of the list; libzmq's pause lies between the two */
    DESCRIPTORS_FREE = 16,  /* more than a first socket and its context take */
    WIRES_MAX = 2048,       /* in one process */
    FAILED_EVENTS = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                    ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
    /* A dialling wire has three sockets, three more while it redials, and one for a greeting. */
    SOCKETS_MAX = 7 * WIRES_MAX + 64
};

/* One connection to a broker and the monitor of its events. Both are replaced together, so that no frame or
 * event of an old connection is taken for one of the new. */
typedef struct {
    void *dealer, *monitor;
} connection_t;

/* A broker that one of the cluster told. */
typedef struct {
    char endpoint[ENDPOINT_BYTES], key[KEY_TEXT];
} told_t;

struct wire {
    loop_t *loop;
    wire_sink_t sink;
    void *self;
    void *handle; /* of the ROUTER or the DEALER */
    char endpoint[ENDPOINT_BYTES];
    wire_keys_t *keys;       /* NULL: plain; broker_key: of this endpoint; once found, never plain again */
    char list_key[KEY_TEXT]; /* of the list: the fixed one, or that the ring named last */
    void *router;            /* listen */
    accept_limit_t *accept_limit;
    peers_t *peers;
    zap_t *zap;              /* with keys; made before the router, ended after it */
    connection_t connection; /* dial */
    void *monitor;
    greeting_t *greeting; /* asks an endpoint that ends our handshakes for its mechanism; ends with
                           * the connection; NULL: no question is open */
    int greeting_waits;   /* handshakes broken off while its answer was awaited */
    char *list;
    const char *at;              /* in the list: the endpoint that is being tried */
    const char *rest;            /* of the list, after it */
    const char *_Atomic untried; /* of the list, what was never dialled; NULL: all was */
    int tries;                   /* at this endpoint, without success */
    bool is_named;               /* this endpoint is not of the list: a broker named it */
    told_t named;                /* the next one, in place of `rest`; endpoint "": none */
    told_t *told;                /* tried after the list */
    size_t told_count, told_at;  /* told_at: the next one */
    char left[ENDPOINT_BYTES];   /* the one before, and when it was left */
    uint64_t left_us;
    bool up, redial;
    atomic_bool is_reached;   /* see wire_is_reached */
    bool had_connection;      /* since the last try */
    uint64_t connected_us;    /* when the last connection was made */
    bool lacks_key;           /* a key file is there and cannot be used: no connection until it can */
    repeat_t redial_failures; /* redials that found no descriptor or memory */
    int refused, broken_off;  /* handshakes in a row that were refused; that were broken off */
    uint64_t retry_us;        /* when to dial again after a refusal; CLOCK_NEVER: no pause runs */
    uint64_t share_us;        /* of the caller's time, for each endpoint of the list; 0: no limit */
    uint64_t pass_us;         /* when the next one is tried; CLOCK_NEVER: connected, or there is no limit */
};

static pthread_once_t zeromq_once = PTHREAD_ONCE_INIT;
static atomic_int wires_open;
static atomic_int handshake_ms = 5000; /* a connection that does not speak ZMTP by then is dropped */

void wire_set_handshake(uint32_t ms) { handshake_ms = ms < INT32_MAX ? (int)ms : INT32_MAX; }

/* A library must leave the host's signals alone, and CZMQ would install handlers for SIGINT and SIGTERM. */
static void start_zeromq(void)
{
    zsys_handler_set(NULL);
    zmq_ctx_set(zsys_init(), ZMQ_MAX_SOCKETS, SOCKETS_MAX);
}

/* CZMQ and libzmq abort the process when a socket gets no descriptor, so this is checked before. */
static bool descriptors_are_left(void) { return descriptors_count(DESCRIPTORS_FREE) == DESCRIPTORS_FREE; }

static int no_sockets(heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no descriptor or socket is left for a connection");
    error_hint(error, "raise the limit of open files (ulimit -n)");
    return rc;
}

static void set_options(void *s, const char *endpoint)
{
    zsock_set_ipv6(s, !strncmp(endpoint, "tcp://[", 7));
    zsock_set_linger(s, 0);
    zsock_set_sndtimeo(s, 0);
    zsock_set_sndhwm(s, (int)LIMIT_QUEUE_FRAMES);
    zsock_set_rcvhwm(s, (int)LIMIT_QUEUE_FRAMES);
    zsock_set_maxmsgsize(s, (int)LIMIT_FRAME_BYTES);
    zsock_set_handshake_ivl(s, handshake_ms);
    zsock_set_heartbeat_ivl(s, HEARTBEAT_MS);
    zsock_set_heartbeat_timeout(s, HEARTBEAT_TIMEOUT_MS);
}

/* ---- frames in ---- */

static bool take_part(void *handle, zmq_msg_t *ret_part)
{
    zmq_msg_init(ret_part);
    int rc;
    do rc = zmq_msg_recv(ret_part, handle, ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    if (rc < 0) zmq_msg_close(ret_part);
    return rc >= 0;
}

static void drop_parts(void *handle)
{
    zmq_msg_t part;
    while (take_part(handle, &part)) {
        bool more = zmq_msg_more(&part);
        zmq_msg_close(&part);
        if (!more) return;
    }
}

/* Each frame carries the key of its connection. (libzmq 4.3.4 loses the key on the frame of the routing
 * id.) A client can choose a routing id that looks like one of the ROUTER's, that of an ended connection
 * for instance. So a frame with another key than its number's gets a new number. Returns NULL, or what is
 * wrong. */
static const char *check_key(wire_t *w, uint32_t id, zmq_msg_t *frame, peer_t *from)
{
    const char *known = peers_key(w->peers, *from), *user = zmq_msg_gets(frame, "User-Id");
    if (!user || !key_is_valid(user)) return "a connection without a key";
    if (known && !strcmp(known, user)) return NULL;
    if (known && known[0]) {
        peers_forget(w->peers, *from);
        *from = peers_received(w->peers, id);
    }
    peers_note_key(w->peers, *from, user);
    return *from ? NULL : "no memory for one more peer";
}

/* A bounded number of messages.  Each is read whole before it is judged, so that the next one starts
 * cleanly; libzmq delivers a message whole, so that all parts of it are there. */
static void on_readable(void *self)
{
    wire_t *w = self;
    for (int i = 0; i < LOOP_TURN_FRAMES && !w->redial; i++) {
        zmq_msg_t part, frame;
        const char *bad = NULL;
        peer_t from = 0;
        if (w->peers) {
            /* A ROUTER makes ids of five bytes: a zero and 32 bits. Every other id was chosen by the peer. */
            if (!take_part(w->handle, &part)) return;
            const uint8_t *id = zmq_msg_data(&part);
            bool is_ours = zmq_msg_size(&part) == 5 && id[0] == 0;
            uint32_t routing_id = is_ours ? le32_get(id + 1) : 0;
            zmq_msg_close(&part);
            if (!take_part(w->handle, &frame)) return;
            if (is_ours) from = peers_received(w->peers, routing_id);
            if (!is_ours) bad = "a routing id of the peer's own choice";
            else if (!from) bad = "no memory for one more peer";
            else if (w->zap) bad = check_key(w, routing_id, &frame, &from);
        } else if (!take_part(w->handle, &frame)) {
            return;
        }
        if (zmq_msg_more(&frame)) {
            drop_parts(w->handle);
            bad = bad ? bad : "a message of more than one frame";
        } else if (zmq_msg_size(&frame) == 0) {
            bad = bad ? bad : "an empty frame";
        }
        if (!bad) w->sink.on_frame(w->self, from, bytes_of(zmq_msg_data(&frame), zmq_msg_size(&frame)));
        else if (w->sink.on_bad_frame) w->sink.on_bad_frame(w->self, from, bad);
        zmq_msg_close(&frame);
    }
}

/* ---- frames out ---- */

static int send_result(int rc)
{
    return rc >= 0 ? HEDDLE_OK : errno == EAGAIN ? HEDDLE_ERR_SLOW : HEDDLE_ERR_GONE;
}

int wire_send(wire_t *w, peer_t to, bytes_t frame)
{
    owner_check(loop_owner(w->loop));
    uint32_t routing_id = 0;
    if (frame.bytes == 0 || frame.bytes > LIMIT_FRAME_BYTES) return HEDDLE_ERR_LIMIT;
    if (w->peers ? !peers_find(w->peers, to, &routing_id) : !w->up) return HEDDLE_ERR_GONE;
    int rc = HEDDLE_ERR_SLOW;
    for (int attempt = 0; rc == HEDDLE_ERR_SLOW && attempt < 2; attempt++) {
        /* libzmq handles the commands of its I/O thread (room again, connected) only now and then. Reading
         * ZMQ_EVENTS makes it handle them now, so that the second attempt may find room. */
        int events;
        if (attempt) zmq_getsockopt(w->handle, ZMQ_EVENTS, &events, &(size_t){sizeof events});
        /* The frame is allocated before its routing id is sent: once the id is sent, the message must be
         * completed, or the next message would be taken for its frame. */
        zmq_msg_t part;
        if (FAILPOINT("wire.frame") || zmq_msg_init_size(&part, frame.bytes)) continue;
        memcpy(zmq_msg_data(&part), frame.data, frame.bytes);
        rc = HEDDLE_OK;
        if (w->peers) {
            uint8_t id[5] = {0};
            le32_put(id + 1, routing_id);
            rc = send_result(zmq_send(w->handle, id, sizeof id, ZMQ_SNDMORE | ZMQ_DONTWAIT));
        }
        if (!rc) rc = send_result(zmq_msg_send(&part, w->handle, ZMQ_DONTWAIT));
        zmq_msg_close(&part);
    }
    return rc;
}

void wire_forget(wire_t *w, peer_t peer)
{
    owner_check(loop_owner(w->loop));
    if (w->peers) peers_forget(w->peers, peer);
}

const char *wire_endpoint(const wire_t *w)
{
    owner_check(loop_owner(w->loop));
    return w->endpoint;
}

bool wire_is_reached(const wire_t *w) { return atomic_load(&w->is_reached); }

const char *wire_peer_key(const wire_t *w, peer_t peer)
{
    owner_check(loop_owner(w->loop));
    return w->peers ? peers_key(w->peers, peer) : NULL;
}

/* ---- dial ---- */

/* The monitor is stopped before its reader is closed: libzmq's I/O thread would wait for ever for a reader
 * that is gone, and every socket of the process with it. */
static void close_connection(connection_t *c)
{
    if (c->dealer) zmq_socket_monitor(c->dealer, NULL, 0);
    socket_close(&c->dealer);
    socket_close(&c->monitor);
}

/* Looked up at each dial, because a broker may have registered its key in the ring meanwhile. A key that
 * was found once is used wherever no other is known, for the other endpoints of the list too: a wire with a
 * key never dials plain again. Nor does it dial plain where a key is known but that key or our own cannot
 * be read; that is an error. What the ring says of an endpoint comes before the key that a broker told of
 * it, and that key stays with that endpoint. */
static int find_broker_key(wire_t *w, const told_t *to, heddle_error_t *why)
{
    char key[KEY_TEXT];
    wire_keys_t *k = w->keys;
    if (!k) return HEDDLE_OK;
    int rc = k->is_fixed ? HEDDLE_ERR_NOT_FOUND : keyring_known_broker(&k->ring, to->endpoint, key, why);
    if (!rc && !k->own.secret_key[0]) rc = keyring_pair(&k->ring, "client.key", &k->own, why);
    if (!rc) memcpy(w->list_key, key, sizeof key);
    bool is_told = rc == HEDDLE_ERR_NOT_FOUND && to->key[0];
    memcpy(k->broker_key, is_told ? to->key : w->list_key, sizeof k->broker_key);
    /* With a key found before, the connection is not plain. */
    return rc == HEDDLE_ERR_NOT_FOUND || k->broker_key[0] ? HEDDLE_OK : rc;
}

static int open_connection(const wire_t *w, const char *endpoint, connection_t *ret_connection)
{
    static atomic_uint count;
    char address[48]; /* of the monitor; in-process, so its number must be unique in the process */
    snprintf(address, sizeof address, "inproc://heddle-monitor-%u", atomic_fetch_add(&count, 1));
    if (!descriptors_are_left()) return HEDDLE_ERR_NO_MEMORY;
    connection_t c = {socket_new(ZMQ_DEALER), socket_new(ZMQ_PAIR)};
    if (!c.dealer || !c.monitor) {
        close_connection(&c);
        return HEDDLE_ERR_NO_MEMORY;
    }
    set_options(c.dealer, endpoint);
    zsock_set_immediate(c.dealer, 1);
    zsock_set_reconnect_ivl(c.dealer, RECONNECT_MS);
    zsock_set_reconnect_ivl_max(c.dealer, RECONNECT_MAX_MS);
    zsock_set_connect_timeout(c.dealer, CONNECT_MS);
    const wire_keys_t *keys = w->keys;
    if (keys && keys->broker_key[0]) {
        zsock_set_curve_serverkey(c.dealer, keys->broker_key);
        zsock_set_curve_publickey(c.dealer, keys->own.public_key);
        zsock_set_curve_secretkey(c.dealer, keys->own.secret_key);
    }
    int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                 ZMQ_EVENT_CONNECT_RETRIED | FAILED_EVENTS;
    bool has_monitor = !zmq_socket_monitor(c.dealer, address, events) && !zmq_connect(c.monitor, address);
    if (!has_monitor || zmq_connect(c.dealer, endpoint)) {
        close_connection(&c);
        return has_monitor ? HEDDLE_ERR_USAGE : HEDDLE_ERR_NO_MEMORY;
    }
    *ret_connection = c;
    return HEDDLE_OK;
}

static void retry_at(wire_t *w, uint64_t at_us)
{
    w->retry_us = at_us;
    loop_set_due(w->loop, w, clock_earlier(w->retry_us, w->pass_us));
}

/* The time of the endpoint begins anew, or ends with the connection. */
static void begin_share(wire_t *w)
{
    w->pass_us = w->share_us && !w->up ? loop_now(w->loop) + w->share_us : CLOCK_NEVER;
    loop_set_due(w->loop, w, clock_earlier(w->retry_us, w->pass_us));
}

static void set_up(wire_t *w, bool up)
{
    if (w->up == up) return;
    w->up = up;
    begin_share(w);
    w->sink.on_connection(w->self, up);
}

/* False: the list does not have it. */
static bool find_in_list(const wire_t *w, const char *endpoint, const char **ret_at, const char **ret_rest)
{
    char one[ENDPOINT_BYTES];
    for (const char *rest = w->list, *at = rest; endpoint_next(&rest, one); at = rest) {
        if (strcmp(one, endpoint) != 0) continue;
        *ret_at = at;
        *ret_rest = rest;
        return true;
    }
    return false;
}

/* What the current connection says was said by a broker that has proved its key. */
static bool is_proven(const wire_t *w) { return w->keys && w->keys->broker_key[0]; }

/* A plain connection proves nothing of the broker that names an address, so that it does not leave the host
 * unless the caller's list does. */
static bool may_leave_for(const wire_t *w, const char *endpoint)
{
    bool is_local = false, list_is_local = false;
    heddle_error_t error;
    if (wire_check_endpoint(endpoint, false, &is_local, &error)) return false;
    if (is_proven(w) || is_local) return true;
    return !wire_check_endpoints(w->list, &list_is_local, &error) && !list_is_local;
}

/* The list has it already where it is dialled with the same key there. */
static bool may_dial(const wire_t *w, const told_t *row)
{
    const char *at, *rest, *key = w->list_key;
    bool is_listed = (!row->key[0] || !strcmp(row->key, key)) && find_in_list(w, row->endpoint, &at, &rest);
    return !is_listed && may_leave_for(w, row->endpoint);
}

/* NULL: the list is begun again. */
static const told_t *next_told(wire_t *w)
{
    while (w->told_at < w->told_count)
        if (may_dial(w, &w->told[w->told_at++])) return &w->told[w->told_at - 1];
    w->told_at = 0;
    return NULL;
}

static bool has_told(const wire_t *w)
{
    bool has = false;
    for (size_t i = 0; i < w->told_count && !has; i++) has = may_dial(w, &w->told[i]);
    return has;
}

static void report_refusal(wire_t *w, const heddle_error_t *why)
{
    /* libzmq does not retry a connection that was refused: after a pause, with a jitter of a quarter, a new
     * socket dials. It does retry one that was broken off, by itself, sooner and with the old keys: those
     * failures must not restart a pause that already runs. */
    uint64_t ms = REFUSED_MS;
    uint8_t dice;
    if (w->retry_us == CLOCK_NEVER) {
        for (int i = 0; i < w->refused && ms < REFUSED_MAX_MS; i++) ms *= 2;
        if (ms > REFUSED_MAX_MS) ms = REFUSED_MAX_MS;
        w->refused++;
        random_bytes(&dice, sizeof dice);
        retry_at(w, loop_now(w->loop) + ms * 750 + ms * 500 * dice / 255);
    }
    if (w->sink.on_refused) w->sink.on_refused(w->self, why);
}

static void explain(wire_t *w, uint16_t event, uint32_t value)
{
    static const wire_keys_t none;
    const wire_keys_t *keys = w->keys ? w->keys : &none;
    heddle_error_t why;
    handshake_explain(event, value, w->endpoint, keys, &why);
    report_refusal(w, &why);
}

/* A plain connection fails, and the ring now has a key for the endpoint: the broker was started, or started
 * again, with keys.  A damaged file counts too, since a plain connection must then end as well.  The same
 * endpoint is dialled again, and nothing is reported. */
static bool redials_with_key(wire_t *w)
{
    char key[KEY_TEXT];
    heddle_error_t error;
    const wire_keys_t *k = w->keys;
    if (!k || k->is_fixed || k->broker_key[0]) return false;
    if (keyring_known_broker(&k->ring, w->endpoint, key, &error) == HEDDLE_ERR_NOT_FOUND) return false;
    w->rest = w->at;
    w->redial = true;
    return true;
}

/* Reports what libzmq would have reported if it had read the listener's greeting before the end. */
static void explain_end(void *self)
{
    wire_t *w = self;
    if (redials_with_key(w)) return;
    bool has_key = w->keys && w->keys->broker_key[0];
    const char *speaks = w->greeting ? greeting_mechanism(w->greeting) : NULL;
    if (speaks && !strcmp(speaks, has_key ? "NULL" : "CURVE"))
        explain(w, ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL, ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH);
    else explain(w, ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL, 0);
}

/* Beside the endpoint that is tried. */
static bool has_another(const wire_t *w) { return w->is_named || strchr(w->list, ',') || has_told(w); }

/* A connection that ends in the handshake may mean that the broker is stopping; libzmq retries it by
 * itself, more and more slowly. Several in a row mean that the broker has another key, or that only one
 * side has keys: the side that closes first may do so before the other has read its mechanism. So the
 * mechanism is asked for separately, and the failure is explained when the answer is there or is not to be
 * had. */
static void on_failed(wire_t *w, uint16_t event, uint32_t value)
{
    if (redials_with_key(w)) return;
    if (event != ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) {
        explain(w, event, value);
        return;
    }
    /* This side ended the handshake at its deadline.  The kernel accepts connections even for a process that
     * stands still, so that this says nothing of keys: the call reports a connection, but no answer.  A
     * second try would take as long again. */
    if (loop_now(w->loop) - w->connected_us >= (uint64_t)handshake_ms * 900) {
        w->redial = has_another(w);
        return;
    }
    if (++w->broken_off < BROKEN_OFF_MAX) return;
    bool is_expected = w->greeting ? !greeting_mechanism(w->greeting) && ++w->greeting_waits < BROKEN_OFF_MAX
                                   : descriptors_are_left() &&
                                         !greeting_ask(w->loop, w->endpoint, explain_end, w, &w->greeting);
    if (!is_expected) explain_end(w);
}

static void on_event(wire_t *w, uint16_t event, uint32_t value)
{
    if (event == ZMQ_EVENT_CONNECTED) {
        atomic_store(&w->is_reached, true);
        w->had_connection = true;
        w->connected_us = loop_now(w->loop);
        return;
    }
    if (event == ZMQ_EVENT_CONNECT_RETRIED) { /* after a connection that ended, or a try that failed */
        if (!w->had_connection) atomic_store(&w->is_reached, false);
        w->had_connection = false;
    }
    if (event & FAILED_EVENTS) {
        on_failed(w, event, value);
    } else if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        w->tries = w->refused = w->broken_off = 0;
        greeting_destroy(&w->greeting);
        retry_at(w, CLOCK_NEVER); /* libzmq's own retry succeeded first: its connection stays */
        set_up(w, true);
    } else if (event == ZMQ_EVENT_DISCONNECTED) {
        set_up(w, false);
    } else if (++w->tries >= TRIES_PER_ENDPOINT && has_another(w)) {
        w->redial = true;
    }
}

/* An event is a message of two frames: number and value, then the endpoint. */
static void on_monitor(void *self)
{
    wire_t *w = self;
    zmq_msg_t part;
    for (int i = 0; i < LOOP_TURN_FRAMES && !w->redial && take_part(w->monitor, &part); i++) {
        uint16_t event = 0;
        uint32_t value = 0;
        if (zmq_msg_size(&part) >= sizeof event + sizeof value) {
            memcpy(&event, zmq_msg_data(&part), sizeof event);
            memcpy(&value, (uint8_t *)zmq_msg_data(&part) + sizeof event, sizeof value);
        }
        if (zmq_msg_more(&part)) drop_parts(w->monitor);
        zmq_msg_close(&part);
        on_event(w, event, value);
    }
}

static void drop_connection(wire_t *w)
{
    if (w->handle) loop_remove_socket(w->loop, w->handle);
    if (w->monitor) loop_remove_socket(w->loop, w->monitor);
    w->handle = w->monitor = NULL;
    greeting_destroy(&w->greeting);
    w->greeting_waits = 0;
    atomic_store(&w->is_reached, false);
    w->had_connection = false;
    close_connection(&w->connection);
}

/* Takes the place of the current connection, if there is one. The dealer is added to the loop before the
 * monitor, so that the frames of a connection are read before the event of its end. */
static int replace_connection(wire_t *w, connection_t *next)
{
    void *handle = next->dealer, *monitor = next->monitor;
    if (loop_add_socket(w->loop, handle, on_readable, w) ||
        loop_add_socket(w->loop, monitor, on_monitor, w)) {
        loop_remove_socket(w->loop, handle);
        close_connection(next);
        return HEDDLE_ERR_NO_MEMORY;
    }
    drop_connection(w);
    w->connection = *next;
    w->handle = handle;
    w->monitor = monitor;
    w->tries = 0;
    return HEDDLE_OK;
}

/* What a plain connection told may be a stranger's: one with a key does not go by it. */
static void forget_told(wire_t *w)
{
    free(w->told);
    w->told = NULL;
    w->told_count = w->told_at = 0;
}

/* Dials the endpoint that was named, else the next one of the list or, after it, of those that were told. On
 * failure nothing has changed. The exception is a key that should be there and cannot be read: then that
 * endpoint becomes the current one, without a connection, and *why is set. */
static int connect_next(wire_t *w, heddle_error_t *why)
{
    told_t to = {0};
    const told_t *told = NULL;
    const char *at = w->rest ? w->rest : w->list, *rest = at;
    char former_key[KEY_TEXT] = "";
    connection_t next;
    bool is_named = false;
    if (w->named.endpoint[0]) {
        to = w->named;
        w->named.endpoint[0] = 0;
        is_named = !find_in_list(w, to.endpoint, &at, &rest);
        if (is_named) at = rest = w->at;
    } else if (!w->rest && (told = next_told(w)) != NULL) {
        to = *told;
        is_named = true;
        at = w->at;
        rest = NULL;
    } else {
        endpoint_next(&rest, to.endpoint);
    }
    if (w->keys) memcpy(former_key, w->keys->broker_key, sizeof former_key);
    int no_key = find_broker_key(w, &to, why), rc = no_key;
    if (!no_key) rc = open_connection(w, to.endpoint, &next);
    if (!rc) rc = replace_connection(w, &next);
    if (!rc && !former_key[0] && is_proven(w)) forget_told(w);
    if (rc && !no_key) {
        /* The old connection stays, and what fails on it is explained with the key that it has. */
        if (w->keys) memcpy(w->keys->broker_key, former_key, sizeof former_key);
        return rc;
    }
    if (no_key) {
        drop_connection(w);
        why->retriable = 1; /* the next endpoint may work, and this one is tried again after it */
    }
    w->at = at;
    w->rest = rest;
    w->is_named = is_named;
    if (!is_named && at == atomic_load(&w->untried)) atomic_store(&w->untried, rest);
    memcpy(w->left, w->endpoint, sizeof w->left);
    w->left_us = loop_now(w->loop);
    w->lacks_key = no_key;
    memcpy(w->endpoint, to.endpoint, sizeof w->endpoint);
    return HEDDLE_OK;
}

/* A work hook, because a redial is requested inside callbacks of the very sockets that it replaces. Without
 * a descriptor for the new connection the old one stays; the caller's next failure requests a redial
 * again. */
static bool redial_now(void *self)
{
    wire_t *w = self;
    uint64_t due_us = clock_earlier(w->retry_us, w->pass_us);
    if (!w->redial && (due_us == CLOCK_NEVER || loop_now(w->loop) < due_us)) return false;
    heddle_error_t why;
    if (w->redial) w->broken_off = 0; /* a redial is a fresh start; a retry goes on counting */
    w->redial = false;
    w->tries = 0;
    retry_at(w, CLOCK_NEVER);
    int rc = connect_next(w, &why);
    char scratch[REPEAT_TEXT];
    uint64_t times = rc ? repeat_note(&w->redial_failures, (uint32_t)-rc, loop_now(w->loop)) : 0;
    if (times)
        log_emit(LOG_WARN, "wire.redial", "cannot open a new connection to %s: %s%s", w->endpoint,
                 heddle_err_name(rc), repeat_text(times, scratch));
    if (!rc && repeat_over(&w->redial_failures))
        log_emit(LOG_WARN, "wire.redial", "connecting to %s again", w->endpoint);
    if (!rc) set_up(w, false);
    begin_share(w);
    if (!rc && w->lacks_key) report_refusal(w, &why);
    return !rc;
}

static bool nothing_to_redial(void *self) { return !((wire_t *)self)->redial; }

void wire_share(wire_t *w, uint64_t timeout_ms)
{
    uint64_t count = 1;
    owner_check(loop_owner(w->loop));
    for (const char *at = w->list; (at = strchr(at, ',')) != NULL; at++) count++;
    uint64_t share_ms = timeout_ms / count ? timeout_ms / count : 1;
    w->share_us = count > 1 ? share_ms * 1000 : 0;
    begin_share(w);
}

const char *wire_untried(const wire_t *w) { return atomic_load(&w->untried); }

void wire_redial(wire_t *w)
{
    owner_check(loop_owner(w->loop));
    if (!w->peers) w->redial = true;
}

static bool may_go_to(const wire_t *w, const char *endpoint)
{
    if (!strcmp(endpoint, w->endpoint)) return false;
    if (!strcmp(endpoint, w->left) && loop_now(w->loop) - w->left_us < WIRE_RETURN_US) return false;
    return may_leave_for(w, endpoint);
}

/* The key is taken only from a broker that has proved its own: a plain connection may be a stranger's.
 * False: the row has a key that was not taken. */
static bool take_told(const wire_t *w, const wire_broker_t *b, told_t *to)
{
    bool has_key = is_proven(w) && key_is_valid(b->key);
    text_printf(to->endpoint, sizeof to->endpoint, "%s", b->endpoint);
    text_printf(to->key, sizeof to->key, "%s", has_key ? b->key : "");
    return has_key || !b->key[0];
}

void wire_redial_to(wire_t *w, const char *endpoint, const char *key)
{
    owner_check(loop_owner(w->loop));
    if (w->peers || (endpoint[0] && !may_go_to(w, endpoint))) return;
    (void)take_told(w, &(wire_broker_t){endpoint, key}, &w->named);
    w->redial = true;
}

/* An address of the own host that a broker of another one told is another program's. */
static bool is_told_well(const wire_t *w, const wire_broker_t *b)
{
    bool is_local = false, is_here = false;
    heddle_error_t error;
    if (wire_check_endpoint(b->endpoint, false, &is_local, &error)) return false;
    (void)wire_check_endpoint(w->endpoint, false, &is_here, &error);
    return !is_local || is_here;
}

/* Without memory for them what was told before stays. */
void wire_told(wire_t *w, const wire_broker_t *brokers, size_t count)
{
    owner_check(loop_owner(w->loop));
    if (count > WIRE_TOLD_MAX) count = WIRE_TOLD_MAX;
    told_t *told = count ? calloc(count, sizeof *told) : NULL;
    if (w->peers || (count && !told)) return;
    forget_told(w);
    w->told = told;
    for (size_t i = 0; i < count; i++)
        if (is_told_well(w, &brokers[i]) && take_told(w, &brokers[i], &told[w->told_count])) w->told_count++;
}

void wire_present(wire_t *w, const key_pair_t *own)
{
    owner_check(loop_owner(w->loop));
    w->keys->own = *own;
}

/* ---- make and close ---- */

static void free_wire(wire_t *w)
{
    if (w->keys) explicit_bzero(w->keys, sizeof *w->keys);
    free(w->keys);
    free(w->list);
    free(w->told);
    free(w);
    atomic_fetch_sub(&wires_open, 1);
}

static int new_wire(loop_t *loop, const wire_keys_t *keys, const wire_sink_t *sink, void *self,
                    wire_t **ret_wire)
{
    owner_check(loop_owner(loop));
    pthread_once(&zeromq_once, start_zeromq);
    wire_t *w = calloc(1, sizeof *w);
    if (!w) return HEDDLE_ERR_NO_MEMORY;
    if (keys) w->keys = malloc(sizeof *keys);
    if (atomic_fetch_add(&wires_open, 1) >= WIRES_MAX || (keys && !w->keys)) {
        free_wire(w);
        return HEDDLE_ERR_NO_MEMORY;
    }
    if (keys) *w->keys = *keys;
    if (keys) memcpy(w->list_key, keys->broker_key, sizeof w->list_key);
    w->retry_us = w->pass_us = CLOCK_NEVER;
    w->loop = loop;
    w->sink = *sink;
    w->self = self;
    *ret_wire = w;
    return HEDDLE_OK;
}

int wire_dial(loop_t *loop, const char *endpoints, const wire_keys_t *keys, const wire_sink_t *sink,
              void *self, wire_t **ret_wire, heddle_error_t *error)
{
    wire_t *w = NULL;
    heddle_error_t why;
    int rc = wire_check_endpoints(endpoints, NULL, error);
    if (rc) return rc;
    if (!descriptors_are_left() || new_wire(loop, keys, sink, self, &w) || !(w->list = strdup(endpoints)))
        rc = no_sockets(error);
    if (!rc) atomic_store(&w->untried, w->list);
    if (!rc && (rc = connect_next(w, &why))) {
        if (rc == HEDDLE_ERR_USAGE) error_fail(error, rc, "cannot connect to %.200s", endpoints);
        else no_sockets(error);
    }
    if (!rc && loop_add_source(loop, -1, redial_now, nothing_to_redial, w)) rc = no_sockets(error);
    if (!rc && w->lacks_key) { /* reported by redial_now, since sinks are called in the loop's turns only */
        w->rest = NULL;
        w->redial = true;
    }
    if (rc) wire_close(&w);
    else *ret_wire = w;
    return rc;
}

/* libzmq unlinks the path of an ipc endpoint before it binds, even when another process listens there. */
static bool ipc_is_taken(const char *endpoint)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strncmp(endpoint, "ipc://", 6) != 0) return false;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", endpoint + 6);
    if (address.sun_path[0] == '@') address.sun_path[0] = 0; /* the abstract namespace */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(endpoint + 6));
    bool taken = connect(fd, (struct sockaddr *)&address, bytes) == 0;
    close(fd);
    return taken;
}

static int bind_failed(const char *endpoint, int err, heddle_error_t *error)
{
    int rc;
    switch (err) {
    case EADDRINUSE:
        rc = error_fail(error, HEDDLE_ERR_ADDRESS_IN_USE, "another program listens on %s", endpoint);
        error_contrast(error, "a free address", endpoint);
        error_hint(error, "`ss -ltnp` names the program; take another port, or * for any free one");
        return rc;
    case EACCES:
    case EPERM:
        rc = error_fail(error, HEDDLE_ERR_INTERNAL, "not allowed to listen on %s", endpoint);
        error_hint(error, "ports below 1024 need privileges; a socket file needs a writable directory");
        return rc;
    case EMFILE:
    case ENFILE:
    case ENOMEM: return no_sockets(error);
    default: /* at boot, an address may be configured a moment after this; hence retriable */
        rc = error_fail(error, HEDDLE_ERR_INTERNAL, "cannot listen on %s: %s", endpoint, zmq_strerror(err));
        error_expected(error, "an address of this machine");
        error_found(error, "%s", endpoint);
        error_hint(error, "tcp://127.0.0.1:PORT is reachable from this machine alone");
        if (error) error->retriable = 1;
        return rc;
    }
}

static int bind_router(wire_t *w, const char *endpoint, heddle_error_t *error)
{
    /* A ROUTER counts its ids up from rand(), which CZMQ seeds with the second of the start. A client that
     * can guess the next id can take it first, and libzmq aborts the process when two connections have one
     * id. */
    unsigned seed;
    random_bytes(&seed, sizeof seed);
    srandom(seed);
    w->router = w->handle = socket_new(ZMQ_ROUTER);
    if (!w->router) return no_sockets(error);
    set_options(w->router, endpoint);
    zsock_set_router_mandatory(w->router, 1);
    int backlog = accept_limit_backlog(BACKLOG);
    zsock_set_backlog(w->router, backlog);
    if (accept_limit_new(w->loop, w->handle, backlog, &w->accept_limit)) return no_sockets(error);
    if (w->keys) {
        zsock_set_curve_server(w->router, 1);
        zsock_set_curve_secretkey(w->router, w->keys->own.secret_key);
        zsock_set_zap_domain(w->router, "heddle");
    }
    if (ipc_is_taken(endpoint)) return bind_failed(endpoint, EADDRINUSE, error);
    if (zmq_bind(w->handle, endpoint)) return bind_failed(endpoint, errno, error);
    if (zmq_getsockopt(w->handle, ZMQ_LAST_ENDPOINT, w->endpoint, &(size_t){sizeof w->endpoint}))
        return bind_failed(endpoint, errno, error);
    return loop_add_socket(w->loop, w->handle, on_readable, w) ? no_sockets(error) : HEDDLE_OK;
}

int wire_listen(loop_t *loop, const char *endpoint, const wire_keys_t *keys, const wire_sink_t *sink,
                void *self, wire_t **ret_wire, heddle_error_t *error)
{
    wire_t *w = NULL;
    int rc = wire_check_endpoint(endpoint, true, NULL, error);
    if (rc) return rc;
    descriptors_raise_limit();
    if (!descriptors_are_left() || new_wire(loop, keys, sink, self, &w) ||
        !(w->peers = peers_new(LIMIT_PEERS)))
        rc = no_sockets(error);
    int guarded = !rc && keys ? zap_new(loop, keys->allow, self, &w->zap) : HEDDLE_OK;
    if (guarded == HEDDLE_ERR_NO_MEMORY) rc = no_sockets(error);
    else if (guarded)
        rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE,
                        "a process can have only one listener with keys, and this process has one");
    if (!rc) rc = bind_router(w, endpoint, error);
    if (rc) wire_close(&w);
    else *ret_wire = w;
    return rc;
}

/* libzmq would make the file, and remove one that is there. */
static int why_no_ipc(const char *path)
{
    char folder[sizeof((struct sockaddr_un *)0)->sun_path];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    bool is_abstract = path[0] == '@';
    return is_abstract || access(slash ? folder : ".", W_OK | X_OK) == 0 ? 0 : errno;
}

int wire_try_listen(const char *endpoint, heddle_error_t *error)
{
    int rc = wire_check_endpoint(endpoint, true, NULL, error), why = 0;
    if (rc) return rc;
    if (!strncmp(endpoint, "ipc://", 6)) {
        why = ipc_is_taken(endpoint) ? EADDRINUSE : why_no_ipc(endpoint + 6);
        return why ? bind_failed(endpoint, why, error) : HEDDLE_OK;
    }
    void *router = descriptors_are_left() ? socket_new(ZMQ_ROUTER) : NULL;
    if (!router) return no_sockets(error);
    set_options(router, endpoint);
    if (zmq_bind(router, endpoint)) rc = bind_failed(endpoint, errno, error);
    socket_close(&router);
    return rc;
}

void wire_close(wire_t **wire)
{
    wire_t *w = wire ? *wire : NULL;
    if (!w) return;
    *wire = NULL;
    owner_check(loop_owner(w->loop));
    loop_remove_source(w->loop, w);
    drop_connection(w);
    accept_limit_destroy(&w->accept_limit);
    socket_close(&w->router);
    zap_destroy(&w->zap);
    peers_destroy(&w->peers);
    free_wire(w);
}
