/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/greeting.h"

#include "wire/socket.h"

#include <czmq.h>
#include <heddle/error.h>

/* signature 10 | major 1 | minor 1 | mechanism 20, padded with zeros | … */
enum { SIGNATURE = 10, MECHANISM_AT = 12, MECHANISM = 20, CONNECT_MS = 3000 };

struct greeting {
    loop_t *loop;
    void *stream;                    /* NULL: it is over */
    void (*on_heard)(void *self);
    void *self;
    bool is_connected;
    size_t bytes;
    uint8_t heard[MECHANISM_AT + MECHANISM];
    char mechanism[MECHANISM + 1];
};

static void end_stream(greeting_t *g)
{
    if (g->stream) loop_remove_socket(g->loop, g->stream);
    socket_close(&g->stream);
}

static void finish(greeting_t *g)
{
    const uint8_t *at = g->heard;
    bool is_whole = g->bytes == sizeof g->heard && at[0] == 0xff && at[9] == 0x7f && at[SIGNATURE] >= 3;
    if (is_whole) memcpy(g->mechanism, at + MECHANISM_AT, MECHANISM);
    end_stream(g);
    g->on_heard(g->self);
}

/* The rest is never said. */
static bool begin(greeting_t *g, zmq_msg_t *id)
{
    static const uint8_t BEGINNING[MECHANISM_AT] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0};
    if (g->is_connected) return false;
    g->is_connected = true;
    return zmq_msg_send(id, g->stream, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(g->stream, BEGINNING, sizeof BEGINNING, ZMQ_DONTWAIT) >= 0;
}

/* False when no more is to come: all was heard, or the connection ended. */
static bool take(greeting_t *g, zmq_msg_t *id, zmq_msg_t *part)
{
    size_t bytes = zmq_msg_size(part), room = sizeof g->heard - g->bytes;
    if (!bytes) return begin(g, id); /* it is up, or, the second time, down */
    if (bytes > room) bytes = room;
    memcpy(g->heard + g->bytes, zmq_msg_data(part), bytes);
    g->bytes += bytes;
    return g->bytes < sizeof g->heard;
}

/* What a stream hands over is two parts: of whom, and bytes. */
static void on_readable(void *self)
{
    greeting_t *g = self;
    zmq_msg_t id, part;
    zmq_msg_init(&id);
    zmq_msg_init(&part);
    bool more = true;
    while (more && zmq_msg_recv(&id, g->stream, ZMQ_DONTWAIT) >= 0) {
        more = zmq_msg_recv(&part, g->stream, ZMQ_DONTWAIT) >= 0 && take(g, &id, &part);
    }
    zmq_msg_close(&id);
    zmq_msg_close(&part);
    if (!more) finish(g);
}

static void *open_stream(const char *endpoint)
{
    void *s = socket_new(ZMQ_STREAM);
    if (!s) return NULL;
    zsock_set_ipv6(s, !strncmp(endpoint, "tcp://[", 7));
    zsock_set_linger(s, 0);
    zsock_set_connect_timeout(s, CONNECT_MS);
    zsock_set_reconnect_ivl(s, -1);
    if (zmq_connect(s, endpoint)) socket_close(&s);
    return s;
}

int greeting_ask(loop_t *loop, const char *endpoint, void (*on_heard)(void *self), void *self,
                 greeting_t **ret_greeting)
{
    greeting_t *g = calloc(1, sizeof *g);
    if (!g) return HEDDLE_ERR_NO_MEMORY;
    *g = (greeting_t){.loop = loop, .on_heard = on_heard, .self = self, .stream = open_stream(endpoint)};
    if (!g->stream || loop_add_socket(loop, g->stream, on_readable, g)) goto fail;
    *ret_greeting = g;
    return HEDDLE_OK;
fail:
    greeting_destroy(&g);
    return HEDDLE_ERR_NO_MEMORY;
}

const char *greeting_mechanism(const greeting_t *g) { return g->stream ? NULL : g->mechanism; }

void greeting_destroy(greeting_t **greeting)
{
    greeting_t *g = greeting ? *greeting : NULL;
    if (!g) return;
    *greeting = NULL;
    end_stream(g);
    free(g);
}
