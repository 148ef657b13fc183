/* SPDX-License-Identifier: Apache-2.0 */
/* Routing ids that a peer chose: they lend nobody another's number, and cannot be guessed. */
#include "tests/unit/loop_until.h"
#include "wire/wire.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

static loop_t *loop;
static heddle_error_t error;
static char heard[KEY_TEXT]; /* the last frame */
static peer_t from;

static void on_frame(void *self, peer_t peer, bytes_t frame)
{
    (void)self;
    cr_assert_eq(frame.bytes, sizeof heard);
    memcpy(heard, frame.data, frame.bytes);
    from = peer;
}
static void on_line(void *self, bool up) { (void)self, (void)up; }
static const wire_sink_t SINK = {.on_frame = on_frame, .on_line = on_line};
static bool allow(void *self, const char *key) { return (void)self, key[0] != 0; }

static void setup(void) { cr_assert_eq(loop_new(clock_system(), &loop), 0); }
static void teardown(void) { loop_destroy(&loop); }
TestSuite(ids, .init = setup, .fini = teardown, .timeout = 30);

static key_pair_t made(void)
{
    key_pair_t pair;
    cr_assert_eq(key_make(&pair, &error), 0, "%s", error.message);
    return pair;
}

static wire_t *listen_with(const key_pair_t *own)
{
    wire_t *w;
    wire_keys_t keys = {.own = *own, .allow = allow};
    cr_assert_eq(wire_listen_with(loop, "tcp://127.0.0.1:*", &keys, &SINK, NULL, &w, &error), 0, "%s",
                 error.message);
    return w;
}

/* One frame of a connection with this key, under the id that it chose; the connection has ended. */
static peer_t heard_of(wire_t *w, const key_pair_t *broker, const key_pair_t *own)
{
    static const uint8_t ID[5] = {0, 1, 2, 3, 4}; /* as the ROUTER makes them */
    void *context = zmq_ctx_new(), *s = zmq_socket(context, ZMQ_DEALER);
    zmq_setsockopt(s, ZMQ_LINGER, &(int){0}, sizeof(int));
    zmq_setsockopt(s, ZMQ_ROUTING_ID, ID, sizeof ID);
    zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, broker->public_key, KEY_TEXT);
    zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, own->public_key, KEY_TEXT);
    zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, own->secret_key, KEY_TEXT);
    cr_assert_eq(zmq_connect(s, wire_endpoint(w)), 0);
    cr_assert_eq(zmq_send(s, own->public_key, KEY_TEXT, 0), KEY_TEXT);
    UNTIL(!strcmp(heard, own->public_key));
    peer_t number = from;
    zmq_close(s);
    zmq_ctx_term(context);
    UNTIL(wire_send(w, number, bytes_of("gone", 4)) == HEDDLE_ERR_GONE);
    return number;
}

Test(ids, a_number_is_of_one_key_whatever_id_the_next_one_chose)
{
    key_pair_t broker = made(), first = made(), second = made();
    wire_t *w = listen_with(&broker);
    peer_t of_first = heard_of(w, &broker, &first);
    cr_assert_str_eq(wire_peer_key(w, of_first), first.public_key);
    peer_t of_second = heard_of(w, &broker, &second);
    cr_assert_neq(of_first, of_second);
    cr_assert_str_eq(wire_peer_key(w, of_second), second.public_key);
    cr_assert_null(wire_peer_key(w, of_first), "its answers would go to the second");
    wire_close(&w);
}

/* What the numbers of one listener begin with says nothing of the next, whatever the host did with rand(). */
Test(ids, begin_anywhere)
{
    int after[3];
    for (int i = 0; i < 3; i++) { /* the first of a process starts ZeroMQ, which seeds by the clock */
        wire_t *w;
        srandom(1);
        cr_assert_eq(wire_listen(loop, "tcp://127.0.0.1:*", &SINK, NULL, &w, &error), 0, "%s", error.message);
        after[i] = rand();
        wire_close(&w);
    }
    cr_assert_neq(after[1], after[2]);
}
