/* SPDX-License-Identifier: Apache-2.0 */
/* Routing ids that a peer chose: they lend nobody another's number, and cannot be guessed. */
#include "core/failpoint.h"
#include "tests/unit/loop_until.h"
#include "wire/wire.h"

#include <criterion/criterion.h>
#include <stdio.h>
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
static void on_connection(void *self, bool up) { (void)self, (void)up; }
static const wire_sink_t SINK = {.on_frame = on_frame, .on_connection = on_connection};
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
    cr_assert_eq(wire_listen(loop, "tcp://127.0.0.1:*", &keys, &SINK, NULL, &w, &error), 0, "%s",
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
        cr_assert_eq(wire_listen(loop, "tcp://127.0.0.1:*", NULL, &SINK, NULL, &w, &error), 0, "%s",
                     error.message);
        after[i] = rand();
        wire_close(&w);
    }
    cr_assert_neq(after[1], after[2]);
}

static void *greets(wire_t *w, void *context, const char *name, peer_t *ret_number)
{
    char text[KEY_TEXT] = "";
    void *s = zmq_socket(context, ZMQ_DEALER);
    snprintf(text, sizeof text, "%s", name);
    cr_assert_eq(zmq_setsockopt(s, ZMQ_LINGER, &(int){0}, sizeof(int)), 0);
    cr_assert_eq(zmq_setsockopt(s, ZMQ_RCVTIMEO, &(int){PATIENCE_US / 1000}, sizeof(int)), 0);
    cr_assert_eq(zmq_connect(s, wire_endpoint(w)), 0);
    cr_assert_eq(zmq_send(s, text, sizeof text, 0), sizeof text);
    UNTIL(!strcmp(heard, name));
    *ret_number = from;
    return s;
}

static void gets(void *s, const char *text)
{
    char frame[16] = "";
    int more = 1;
    cr_assert_eq(zmq_recv(s, frame, sizeof frame, 0), (int)strlen(text), "%s, not %s", frame, text);
    cr_assert_str_eq(frame, text);
    cr_assert_eq(zmq_getsockopt(s, ZMQ_RCVMORE, &more, &(size_t){sizeof more}), 0);
    cr_assert_not(more);
}

/* Where memory runs out between the two parts of a message, what comes next would be taken for the second. */
Test(ids, a_frame_that_finds_no_memory_goes_whole_or_not_at_all)
{
    wire_t *w;
    peer_t a, b;
    cr_assert_eq(wire_listen(loop, "tcp://127.0.0.1:*", NULL, &SINK, NULL, &w, &error), 0, "%s",
                 error.message);
    void *context = zmq_ctx_new(), *to_a = greets(w, context, "a", &a), *to_b = greets(w, context, "b", &b);
    failpoint_arm("wire.frame", 1);
    cr_assert_eq(wire_send(w, a, bytes_of("again", 5)), HEDDLE_OK, "it is tried twice");
    cr_assert(failpoint_has_failed());
    failpoint_disarm();
    cr_assert_eq(wire_send(w, b, bytes_of("other", 5)), HEDDLE_OK);
    gets(to_a, "again");
    gets(to_b, "other");
    zmq_close(to_a);
    zmq_close(to_b);
    zmq_ctx_term(context);
    wire_close(&w);
}
