/* SPDX-License-Identifier: Apache-2.0 */
/* The first half of a ZMTP greeting over a raw (STREAM) socket; the header says what it is for. */
#include "wire/greeting.h"

#include "wire/socket.h"

#include <czmq.h>
#include <heddle/error.h>

/* A ZMTP 3 greeting (RFC 23): signature 10 | major 1 | minor 1 | mechanism 20, padded with zeros | … */
enum { SIGNATURE = 10, MECHANISM_AT = 12, CONNECT_MS = 3000 };

struct greeting {
    loop_t *loop;
    void *stream; /* NULL: it is over */
    void (*on_answer)(void *self);
    void *self;
    bool is_connected;
    greeting_answer_t answer;
    char mechanism[GREETING_MECHANISM + 1];
};

bool greeting_take(greeting_answer_t *h, bytes_t part)
{
    size_t room = sizeof h->at - h->bytes, bytes = part.bytes < room ? part.bytes : room;
    memcpy(h->at + h->bytes, part.data, bytes);
    h->bytes += bytes;
    return h->bytes < sizeof h->at;
}

void greeting_read(const greeting_answer_t *h, char ret_mechanism[GREETING_MECHANISM + 1])
{
    bool is_whole = h->bytes == sizeof h->at && h->at[0] == 0xff && h->at[9] == 0x7f && h->at[SIGNATURE] >= 3;
    memset(ret_mechanism, 0, GREETING_MECHANISM + 1);
    if (is_whole) memcpy(ret_mechanism, h->at + MECHANISM_AT, GREETING_MECHANISM);
}

static void end_stream(greeting_t *g)
{
    if (g->stream) loop_remove_socket(g->loop, g->stream);
    socket_close(&g->stream);
}

/* A STREAM socket hands over messages of two parts: the id of the connection, and bytes. An empty part
 * reports that the connection was made, and a second one that it has ended. Our greeting stops before the
 * mechanism. */
static void on_readable(void *self)
{
    greeting_t *g = self;
    static const uint8_t BEGINNING[MECHANISM_AT] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0};
    zmq_msg_t id, part;
    zmq_msg_init(&id);
    zmq_msg_init(&part);
    bool more = true;
    while (more && zmq_msg_recv(&id, g->stream, ZMQ_DONTWAIT) >= 0) {
        more = zmq_msg_recv(&part, g->stream, ZMQ_DONTWAIT) >= 0;
        if (more && zmq_msg_size(&part)) {
            more = greeting_take(&g->answer, bytes_of(zmq_msg_data(&part), zmq_msg_size(&part)));
        } else if (more) {
            more = !g->is_connected && zmq_msg_send(&id, g->stream, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
                   zmq_send(g->stream, BEGINNING, sizeof BEGINNING, ZMQ_DONTWAIT) >= 0;
            g->is_connected = true;
        }
    }
    zmq_msg_close(&id);
    zmq_msg_close(&part);
    if (!more) {
        greeting_read(&g->answer, g->mechanism);
        end_stream(g);
        g->on_answer(g->self);
    }
}

int greeting_ask(loop_t *loop, const char *endpoint, void (*on_answer)(void *self), void *self,
                 greeting_t **ret_greeting)
{
    greeting_t *g = calloc(1, sizeof *g);
    if (!g) return HEDDLE_ERR_NO_MEMORY;
    *g = (greeting_t){.loop = loop, .on_answer = on_answer, .self = self, .stream = socket_new(ZMQ_STREAM)};
    if (!g->stream) goto fail;
    zsock_set_ipv6(g->stream, !strncmp(endpoint, "tcp://[", 7));
    zsock_set_linger(g->stream, 0);
    zsock_set_connect_timeout(g->stream, CONNECT_MS);
    zsock_set_reconnect_ivl(g->stream, -1); /* it would be a second question, and the caller asked once */
    if (zmq_connect(g->stream, endpoint) || loop_add_socket(loop, g->stream, on_readable, g)) goto fail;
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

static void note_answer(void *self) { (void)self; } /* the turn of the loop ends with it */

int greeting_first(const char *const *endpoints, int count, uint32_t timeout_ms)
{
    loop_t *loop;
    greeting_t *asked[GREETING_FIRST_MAX] = {NULL};
    int first = -1;
    if (count > GREETING_FIRST_MAX) count = GREETING_FIRST_MAX;
    if (loop_new(clock_system(), &loop)) return -1;
    for (int i = 0; i < count; i++)
        if (greeting_ask(loop, endpoints[i], note_answer, NULL, &asked[i])) asked[i] = NULL;
    uint64_t until_us = loop_now(loop) + timeout_ms * 1000ull;
    while (first < 0 && loop_now(loop) < until_us) {
        loop_turn(loop, until_us);
        for (int i = 0; first < 0 && i < count; i++) {
            const char *mechanism = asked[i] ? greeting_mechanism(asked[i]) : NULL;
            if (mechanism && mechanism[0]) first = i;
        }
    }
    for (int i = 0; i < count; i++) greeting_destroy(&asked[i]);
    loop_destroy(&loop);
    return first;
}
