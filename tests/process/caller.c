/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/process/caller.h"

#include "client/credentials.h"
#include "core/errors.h"
#include "proto/value.h"

#include <criterion/criterion.h>
#include <heddle/publisher.h>
#include <stdio.h>
#include <unistd.h>

enum { PATIENCE_US = 5000000 };

static void on_frame(void *self, peer_t from, bytes_t frame)
{
    caller_t *l = self;
    (void)from;
    cr_assert_lt(l->frame_count, 64);
    buf_add(&l->frames[l->frame_count++], frame.data, frame.bytes);
}

static void on_connection(void *self, bool up)
{
    caller_t *l = self;
    l->is_lost |= !up;
    l->is_up = up;
}

/* Turns until there is a frame (or it is connected, with `frame` false); false when it went down or time is over. */
static bool turn(caller_t *l, bool frame, uint64_t until_us)
{
    while (frame ? l->frame_count == 0 : !l->is_up) {
        if (l->is_lost || clock_now(clock_system()) >= until_us) return false;
        loop_turn(l->loop, until_us);
    }
    return true;
}

bool caller_dial(caller_t *l, const char *endpoint, role_t role, int timeout_ms)
{
    static const wire_sink_t SINK = {.on_frame = on_frame, .on_connection = on_connection};
    heddle_error_t e;
    *l = (caller_t){0};
    cr_assert_eq(loop_new(clock_system(), &l->loop), HEDDLE_OK);
    wire_keys_t keys;
    bool is_secure;
    cr_assert_eq(credentials_take(&(credentials_t){0}, endpoint, &keys, &is_secure, &e), HEDDLE_OK, "%s",
                 e.message);
    cr_assert_eq(wire_dial(l->loop, endpoint, &keys, &SINK, l, &l->wire, &e), HEDDLE_OK, "%s", e.message);
    if (!turn(l, false, clock_now(clock_system()) + (uint64_t)timeout_ms * 1000)) return false;
    msg_t hello = {.type = MSG_HELLO,
                   .hello = {.wire_min = WIRE_VERSION_MIN,
                             .wire_max = WIRE_VERSION_MAX,
                             .role = role,
                             .pid = (uint64_t)getpid(),
                             .life = {{(uint8_t)role, 7}},
                             .heddle = "test",
                             .host = "here"}};
    caller_send(l, &hello);
    msg_t m;
    if (!caller_read(l, MSG_HELLO_OK, MSG_HELLO_OK, &m)) return false;
    msg_fini(&m);
    return true;
}

void caller_hang_up(caller_t *l)
{
    wire_close(&l->wire);
    loop_destroy(&l->loop);
    for (int i = 0; i < 64; i++) buf_fini(&l->frames[i]);
}

void caller_send_raw(caller_t *l, bytes_t frame) { cr_assert_eq(wire_send(l->wire, 0, frame), HEDDLE_OK); }

void caller_send(caller_t *l, const msg_t *m)
{
    buf_t frame = {0};
    cr_assert_eq(msg_encode(m, &frame), HEDDLE_OK);
    caller_send_raw(l, buf_view(&frame));
    buf_fini(&frame);
}

static void take_frame(caller_t *l, buf_t *ret_frame)
{
    *ret_frame = l->frames[0];
    l->frame_count--;
    memmove(l->frames, l->frames + 1, (size_t)l->frame_count * sizeof *l->frames);
    l->frames[l->frame_count] = (buf_t){0};
}

/* A decoded message may borrow from its frame: those are kept until the next read. */
bool caller_read(caller_t *l, msg_type_t type, msg_type_t or_type, msg_t *ret_msg)
{
    static buf_t frame;
    heddle_error_t e;
    uint64_t until = clock_now(clock_system()) + PATIENCE_US;
    while (turn(l, true, until)) {
        buf_fini(&frame);
        take_frame(l, &frame);
        cr_assert_eq(msg_decode(buf_view(&frame), ret_msg, &e), HEDDLE_OK, "%s", e.message);
        if (ret_msg->type == type || ret_msg->type == or_type) return true;
        msg_fini(ret_msg);
    }
    return false;
}

void caller_open(caller_t *l, const char *adapter)
{
    msg_t open = {.type = MSG_OPEN,
                  .open = {.req = 1,
                           .adapter = adapter,
                           .writer = "test-writer",
                           .backend = "mem",
                           .ucx = "",
                           .address = {"here", 4},
                           .takeover = true}};
    caller_send(l, &open);
    msg_t m;
    cr_assert(caller_read(l, MSG_WELCOME, MSG_ERROR, &m));
    cr_assert_eq((int)m.type, MSG_WELCOME, "%s", m.type == MSG_ERROR ? m.error.message : "");
    l->token = m.welcome.token;
    msg_fini(&m);
}

int caller_publish(caller_t *l, const char *adapter, uint8_t content, uint64_t *ret_version)
{
    char id[16];
    snprintf(id, sizeof id, "content-%u", content);
    msg_part_t part = {.payload_bytes = 65536, .manifest_bytes = 300};
    msg_t publish = {.type = MSG_PUBLISH,
                     .publish = {.token = l->token,
                                 .req = content,
                                 .deadline_ms = 60000,
                                 .activation = HEDDLE_ACTIVATION_MANUAL,
                                 .adapter = adapter,
                                 .request_id = id,
                                 .digest = {{content}},
                                 .parts = &part,
                                 .part_count = 1,
                                 .step = -1,
                                 .data_bytes = 4096,
                                 .tensor_count = 1,
                                 .chunk_count = 1,
                                 .kind = "lora",
                                 .base_model = "",
                                 .config = {"{}", 2}}};
    caller_send(l, &publish);
    msg_t m;
    if (!caller_read(l, MSG_PUBLISHED, MSG_ERROR, &m)) return HEDDLE_ERR_DEADLINE;
    int code = m.type == MSG_ERROR ? heddle_err_from_name(m.error.code) : HEDDLE_OK;
    if (!code) *ret_version = m.published.version;
    msg_fini(&m);
    return code;
}

json_t *caller_ask(caller_t *l, const msg_query_t *q)
{
    msg_t query = {.type = MSG_QUERY, .query = *q}, m;
    caller_send(l, &query);
    cr_assert(caller_read(l, MSG_REPORT, MSG_ERROR, &m), "no answer");
    cr_assert_eq((int)m.type, MSG_REPORT, "%s", m.type == MSG_ERROR ? m.error.message : "");
    json_t *body = NULL;
    heddle_error_t e;
    cr_assert_eq(value_decode(m.report.body, &body, &e), HEDDLE_OK, "%s", e.message);
    msg_fini(&m);
    return body;
}
