/* SPDX-License-Identifier: Apache-2.0 */
/* A command: one question at a time, over a connection of its own. */
#include "tests/scenario/world.h"

#include "core/errors.h"
#include "proto/value.h"

#include <stdlib.h>

static void put(actor_t *a, const msg_t *m)
{
    buf_t frame = {0};
    cr_assert_eq(msg_encode(m, &frame), HEDDLE_OK);
    actor_send(a, buf_view(&frame));
    buf_fini(&frame);
}

static void say_hello(actor_t *a)
{
    msg_t m = {.type = MSG_HELLO};
    m.hello = (msg_hello_t){.wire_min = WIRE_VERSION_MIN,
                            .wire_max = WIRE_VERSION_MAX,
                            .role = ROLE_ADMIN,
                            .pid = 9,
                            .life = {{9}},
                            .heddle = "0",
                            .host = "host"};
    put(a, &m);
}

static void on_connection(void *self, bool up, uint64_t now_us)
{
    (void)now_us;
    bool was = world_product(false); /* a command of the world's own */
    if (up) say_hello(self);
    world_product(was);
}

static void ask(actor_t *a)
{
    msg_t m = {.type = MSG_QUERY, .query = a->query};
    put(a, &m);
}

static void take_report(actor_t *a, const msg_report_t *m)
{
    if (m->req != a->query.req) return;
    a->is_replied = true;
    a->reply_code = m->code[0] ? heddle_err_from_name(m->code) : HEDDLE_OK;
    world_note(a->w, "admin: %s %llu: %s", a->query.op, (unsigned long long)a->query.version,
               heddle_err_name(a->reply_code));
    cr_assert_eq(value_decode(m->body, &a->reply, NULL), HEDDLE_OK);
}

static void take_error(actor_t *a, const msg_error_t *m)
{
    if (m->req != a->query.req || m->of != MSG_QUERY) return;
    a->is_replied = true;
    a->reply_code = heddle_err_from_name(m->code);
    world_note(a->w, "admin: %s %llu: %s %s", a->query.op, (unsigned long long)a->query.version, m->code,
               m->message);
}

static void take_frame(actor_t *a, bytes_t frame)
{
    msg_t m;
    cr_assert_eq(msg_decode(frame, &m, NULL), HEDDLE_OK);
    if (m.type == MSG_HELLO_OK && a->is_asked && !a->is_replied) ask(a);
    if (m.type == MSG_REPORT) take_report(a, &m.report);
    if (m.type == MSG_ERROR) take_error(a, &m.error);
    msg_fini(&m);
}

static void on_frame(void *self, bytes_t frame, uint64_t now_us)
{
    (void)now_us;
    bool was = world_product(false);
    take_frame(self, frame);
    world_product(was);
}

static void on_session(void *self, const node_event_t *event, uint64_t now_us)
{
    if (event->kind == SE_FRAME) on_frame(self, event->frame, now_us);
    else on_connection(self, event->kind == SE_CONNECTED, now_us);
}

static uint64_t on_tick(void *self, uint64_t now_us)
{
    (void)self;
    (void)now_us;
    return CLOCK_NEVER;
}

void admin_boot(actor_t *a)
{
    static const node_ops_t OPS = {.session = on_session, .tick = on_tick};
    a->ops = &OPS;
    a->node = a;
}

void admin_ask(actor_t *a, msg_query_t query)
{
    json_decref(a->reply);
    a->reply = NULL;
    a->is_asked = true;
    a->is_replied = false;
    query.req = ++a->reply_req;
    a->query = query;
    if (!strcmp(query.op, "activate") && query.version <= 64) a->w->by_hand |= 1ull << (query.version - 1);
    if (a->is_up) ask(a);
}

static int answer_of(actor_t *a)
{
    UNTIL(a->w, 120 * SECOND, a->is_replied);
    return a->reply_code;
}

int admin_activates(actor_t *a, uint64_t version)
{
    admin_ask(a, (msg_query_t){.op = "activate",
                               .name = ADAPTER,
                               .version = version,
                               .phase = HEDDLE_PHASE_ACTIVE,
                               .min = 1,
                               .deadline_ms = 10000,
                               .by = "ann"});
    return answer_of(a);
}

int admin_waits_for(actor_t *a, uint64_t version, uint64_t min, uint32_t deadline_ms)
{
    admin_ask(a, (msg_query_t){.op = "wait",
                               .name = ADAPTER,
                               .version = version,
                               .phase = HEDDLE_PHASE_ACTIVE,
                               .min = min,
                               .deadline_ms = deadline_ms});
    return answer_of(a);
}

int64_t admin_integer(const actor_t *a, const char *key)
{
    const json_t *value = json_object_get(a->reply, key);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}
