/* SPDX-License-Identifier: Apache-2.0 */
/* The admin client against a broker of a few lines on loopback: pages, refusals, silence, restarts,
 * interrupts. */
#include "core/errors.h"
#include "client/query.h"
#include "proto/msg.h"
#include "proto/value.h"
#include "tests/unit/other_thread.h"
#include "wire/wire.h"

#include <criterion/criterion.h>
#include <heddle/admin.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_US = 8000000 };

typedef struct fake fake_t;
struct fake {
    loop_t *loop;
    wire_t *wire;
    pthread_t thread;
    char endpoint[128];
    atomic_int hellos, queries;
    atomic_ullong asker, deaf_to; /* connections: of the last question; whose frames are lost; 0: none */
    /* Of the test's thread and the broker's, as what passes between them over a socket orders nothing. */
    void (*_Atomic on_query)(fake_t *f, peer_t from, const msg_query_t *q);
    atomic_int hello_code; /* HELLO is refused with it */
    atomic_bool hello_retriable;
    atomic_ullong last_deadline_ms, last_asked_ms, last_epoch, last_limit, last_phase, last_min;
    atomic_bool last_by_has_host, last_is_tag;
    atomic_uint last_workers;
    const char *other; /* send_on: the endpoint of the broker that leads */
};

static uint64_t now_us(void) { return clock_now(clock_system()); }
#define UNTIL(condition)                                                                                     \
    do {                                                                                                     \
        uint64_t end_us = now_us() + PATIENCE_US;                                                            \
        while (!(condition) && now_us() < end_us) sched_yield();                                             \
        cr_assert(condition, "waited in vain for " #condition);                                              \
    } while (0)

/* ---- the broker ---- */

static void say(fake_t *f, peer_t to, const msg_t *m)
{
    buf_t frame = {0};
    cr_assert_eq(msg_encode(m, &frame), 0);
    wire_send(f->wire, to, buf_view(&frame));
    buf_fini(&frame);
}

typedef struct {
    const char *body, *code, *next_name;
    uint64_t next;
    bool more;
} page_t;

static void report(fake_t *f, peer_t to, uint64_t req, page_t page)
{
    buf_t body = {0};
    json_t *value = json_loads(page.body, JSON_DECODE_ANY, NULL);
    cr_assert_not_null(value, "%s", page.body);
    cr_assert_eq(value_encode(value, &body), 0);
    say(f, to,
        &(msg_t){.type = MSG_REPORT,
                 .report = {.req = req,
                            .next = page.next,
                            .more = page.more,
                            .next_name = page.next_name,
                            .body = buf_view(&body),
                            .code = page.code}});
    json_decref(value);
    buf_fini(&body);
}

static void refuse(fake_t *f, peer_t to, uint64_t req, msg_type_t of, int code, bool retriable)
{
    heddle_error_t error;
    msg_t m;
    error_fail(&error, code, "no: %s", heddle_err_text(code));
    error_hint(&error, "try something else");
    error.retriable = retriable;
    msg_from_error(&error, req, of, &m);
    if (retriable) m.error.retry_ms = 50;
    say(f, to, &m);
}

static void on_hello(fake_t *f, peer_t from)
{
    f->hellos++;
    if (f->hello_code) refuse(f, from, 0, MSG_HELLO, f->hello_code, f->hello_retriable);
    else
        say(f, from,
            &(msg_t){.type = MSG_HELLO_OK,
                     .hello_ok = {.wire = 1, .epoch = 1, .lease_ms = 4000, .cluster = "c", .heddle = "0"}});
}

static void on_frame(void *self, peer_t from, bytes_t frame)
{
    fake_t *f = self;
    msg_t m;
    if (from == f->deaf_to) return;
    cr_assert_eq(msg_decode(frame, &m, NULL), 0);
    if (m.type == MSG_HELLO) {
        cr_assert_eq(m.hello.role, ROLE_ADMIN);
        on_hello(f, from);
    } else if (m.type == MSG_QUERY) {
        f->asker = from;
        f->last_deadline_ms = m.query.deadline_ms;
        f->last_asked_ms = m.query.asked_ms;
        f->last_epoch = m.query.epoch;
        f->last_limit = m.query.limit;
        f->last_phase = m.query.phase;
        f->last_min = m.query.min;
        f->last_workers = m.query.worker_count;
        f->last_is_tag = !strcmp(m.query.digest_head, "3f9a1c20d4e1");
        f->last_by_has_host = strchr(m.query.by, '@') != NULL;
        atomic_load (&f->on_query)(f, from, &m.query);
        f->queries++;
    }
    msg_fini(&m);
}

static void *run(void *self)
{
    loop_run(((fake_t *)self)->loop);
    return NULL;
}

static void start(fake_t *f, const char *endpoint)
{
    static const wire_sink_t SINK = {.on_frame = on_frame};
    uint64_t end_us = now_us() + PATIENCE_US;
    cr_assert_eq(loop_new(clock_system(), &f->loop), 0);
    int rc;
    do rc = wire_listen(f->loop, endpoint, NULL, &SINK, f, &f->wire, NULL);
    while (rc == HEDDLE_ERR_ADDRESS_IN_USE && now_us() < end_us);
    cr_assert_eq(rc, 0);
    snprintf(f->endpoint, sizeof f->endpoint, "%s", wire_endpoint(f->wire));
    loop_hand_over(f->loop);
    pthread_create(&f->thread, NULL, run, f);
}
static void stop(fake_t *f)
{
    loop_stop(f->loop);
    pthread_join(f->thread, NULL);
    wire_close(&f->wire);
    loop_destroy(&f->loop);
}

static heddle_admin_t *open_admin(const fake_t *f, uint32_t timeout_ms)
{
    heddle_admin_t *a = NULL;
    heddle_admin_opts_t opts = {.size = sizeof opts, .broker = f->endpoint, .timeout_ms = timeout_ms};
    cr_assert_eq(heddle_admin_open(&opts, &a), 0, "%s", heddle_last_error()->message);
    return a;
}

TestSuite(admin, .timeout = 30);

/* ---- answers ---- */

static void answer_once(fake_t *f, peer_t from, const msg_query_t *q)
{
    char body[256];
    snprintf(body, sizeof body,
             "{\"schema\":\"heddle/1\",\"kind\":\"%s\",\"ok\":true,\"x\":2.1,\"name\":\"%s\",\"version\":%d}",
             q->op, q->name, (int)q->version);
    report(f, from, q->req - 1000, (page_t){.body = "{\"answer\":\"to another question\"}"});
    report(f, from, q->req, (page_t){.body = body});
    report(f, from, q->req, (page_t){.body = "{\"answer\":\"too late\"}"});
}

Test(admin, each_question_is_asked_and_answered)
{
    fake_t f = {.on_query = answer_once};
    start(&f, "tcp://127.0.0.1:*");
    heddle_admin_t *a = open_admin(&f, 5000);
    char *json = NULL;
#define ANSWERED(call, text)                                                                                 \
    cr_assert_eq(call, 0, "%s", heddle_last_error()->message);                                               \
    cr_assert_str_eq(json, "{\"schema\":\"heddle/1\",\"kind\":" text "}");                                   \
    heddle_free(json);                                                                                       \
    json = NULL
    ANSWERED(heddle_admin_status(a, &json), "\"status\",\"ok\":true,\"x\":2.1,\"name\":\"\",\"version\":0");
    ANSWERED(heddle_admin_adapters(a, &json),
             "\"adapters\",\"ok\":true,\"x\":2.1,\"name\":\"\",\"version\":0");
    ANSWERED(heddle_admin_brokers(a, &json), "\"brokers\",\"ok\":true,\"x\":2.1,\"name\":\"\",\"version\":0");
    ANSWERED(heddle_admin_versions(a, "p@3", &json),
             "\"versions\",\"ok\":true,\"x\":2.1,\"name\":\"p\",\"version\":3");
    ANSWERED(heddle_admin_workers(a, NULL, &json),
             "\"workers\",\"ok\":true,\"x\":2.1,\"name\":\"\",\"version\":0");
    ANSWERED(heddle_admin_workers(a, "w1", &json),
             "\"workers\",\"ok\":true,\"x\":2.1,\"name\":\"w1\",\"version\":0");
    heddle_wait_opts_t wait = {.size = sizeof wait, .workers = (const char *const[]){"w1", "w2", NULL}};
    ANSWERED(heddle_admin_wait(a, "p", &wait, &json),
             "\"wait\",\"ok\":true,\"x\":2.1,\"name\":\"p\",\"version\":0");
    cr_assert(f.last_deadline_ms == 30000 && f.last_phase == HEDDLE_PHASE_ACTIVE && f.last_min == 1 &&
              f.last_workers == 2);
    ANSWERED(heddle_admin_activate(a, "p@2", NULL, &json),
             "\"activate\",\"ok\":true,\"x\":2.1,\"name\":\"p\",\"version\":2");
    cr_assert(f.last_deadline_ms == 10000 && f.last_by_has_host);
    ANSWERED(heddle_admin_verify(a, "p@2", NULL, 700, &json),
             "\"verify\",\"ok\":true,\"x\":2.1,\"name\":\"p\",\"version\":2");
    cr_assert_eq(f.last_deadline_ms, 700u);
    cr_assert(!f.last_is_tag);
    ANSWERED(heddle_admin_versions(a, "p@3:3f9a1c20d4e1", &json),
             "\"versions\",\"ok\":true,\"x\":2.1,\"name\":\"p\",\"version\":3");
    cr_assert(f.last_is_tag);
    ANSWERED(heddle_admin_wait(a, "p@4", &wait, &json),
             "\"wait\",\"ok\":true,\"x\":2.1,\"name\":\"p\",\"version\":4");
    cr_assert(!f.last_is_tag);
    ANSWERED(heddle_admin_wait(a, "p@4:3f9a1c20d4e1", &wait, &json),
             "\"wait\",\"ok\":true,\"x\":2.1,\"name\":\"p\",\"version\":4");
    cr_assert(f.last_is_tag);
    ANSWERED(heddle_admin_activate(a, "p@2", NULL, &json),
             "\"activate\",\"ok\":true,\"x\":2.1,\"name\":\"p\",\"version\":2");
    cr_assert(!f.last_is_tag);
    ANSWERED(heddle_admin_activate(a, "p@2:3f9a1c20d4e1", NULL, &json),
             "\"activate\",\"ok\":true,\"x\":2.1,\"name\":\"p\",\"version\":2");
    cr_assert(f.last_is_tag);
    ANSWERED(heddle_admin_verify(a, "p@2", NULL, 700, &json),
             "\"verify\",\"ok\":true,\"x\":2.1,\"name\":\"p\",\"version\":2");
    cr_assert(!f.last_is_tag);
    ANSWERED(heddle_admin_verify(a, "p@2:3f9a1c20d4e1", NULL, 700, &json),
             "\"verify\",\"ok\":true,\"x\":2.1,\"name\":\"p\",\"version\":2");
    cr_assert(f.last_is_tag);
    ANSWERED(heddle_admin_events(a, NULL, &json),
             "\"events\",\"ok\":true,\"x\":2.1,\"name\":\"\",\"version\":0");
    cr_assert_eq(f.last_limit, 500u);
    cr_assert_eq(f.hellos, 1);
    heddle_admin_close(&a);
    heddle_admin_close(&a);
    stop(&f);
}

static char asked[128];

/* What was asked for, in order; the first try finds version 2. */
static void answer_rollback(fake_t *f, peer_t from, const msg_query_t *q)
{
    size_t n = strlen(asked);
    snprintf(asked + n, sizeof asked - n, "%s %d%s; ", q->op, (int)q->version, q->dry_run ? " dry" : "");
    report(f, from, q->req, (page_t){.body = "{\"kind\":\"rollback\",\"from\":3,\"to\":2}"});
}

/* A question may reach the broker twice, and one that says "one step back" would go two. */
Test(admin, a_rollback_names_its_version_before_it_is_decided)
{
    fake_t f = {.on_query = answer_rollback};
    char *json = NULL;
    start(&f, "tcp://127.0.0.1:*");
    heddle_admin_t *a = open_admin(&f, 5000);
    cr_assert_eq(heddle_admin_rollback(a, "p", NULL, &json), 0);
    heddle_free(json);
    cr_assert(f.last_by_has_host && f.last_deadline_ms <= 10000);
    cr_assert_eq(heddle_admin_rollback(a, "p@1", NULL, &json), 0);
    heddle_free(json);
    heddle_activate_opts_t trial = {.size = sizeof trial, .dry_run = 1};
    cr_assert_eq(heddle_admin_rollback(a, "p", &trial, &json), 0);
    heddle_free(json);
    cr_assert_eq(heddle_admin_resume(a, "p", NULL, &json), 0);
    heddle_free(json);
    cr_assert_eq(heddle_admin_resume(a, "p@2", NULL, &json), HEDDLE_ERR_USAGE);
    f.last_by_has_host = false;
    cr_assert_eq(heddle_admin_forget(a, "p", true, &json), 0);
    heddle_free(json);
    cr_assert(f.last_by_has_host);
    cr_assert_eq(heddle_admin_forget(a, "p@2", false, &json), HEDDLE_ERR_USAGE);
    cr_assert_eq(heddle_admin_forget(a, "p q", false, &json), HEDDLE_ERR_BAD_NAME);
    cr_assert_eq(heddle_admin_forget(a, NULL, false, &json), HEDDLE_ERR_USAGE);
    stop(&f);
    cr_assert_str_eq(asked,
                     "rollback 0 dry; rollback 2; rollback 1; rollback 0 dry; resume 0; forget 0 dry; ");
    heddle_admin_close(&a);
}

/* Three pages: "a", "b", "c"; the cursor is the name of the last row. */
static void answer_names(fake_t *f, peer_t from, const msg_query_t *q)
{
    const char *row = !q->after_name[0] ? "a" : !strcmp(q->after_name, "a") ? "b" : "c";
    char body[200];
    bool last = row[0] == 'c';
    snprintf(body, sizeof body,
             "{\"kind\":\"status\",\"adapters\":[{\"name\":\"%s\",\"workers\":[1]}],\"count\":{\"pages\":"
             "\"%s\"},\"list\":[\"%s\"]}",
             row, row, row);
    report(f, from, q->req, (page_t){.body = body, .more = !last, .next_name = last ? "" : row});
}

static void answer_version(fake_t *f, peer_t from, const msg_query_t *q)
{
    bool first = !q->after_name[0];
    report(f, from, q->req,
           (page_t){
               .body = first ? "{\"versions\":[{\"version\":3,\"features\":[\"dora\"],\"workers\":[\"w1\"]}]}"
                             : "{\"versions\":[{\"version\":3,\"features\":[\"dora\"],\"workers\":[\"w2\","
                               "\"w3\"]}]}",
               .more = first,
               .next_name = first ? "w1" : ""});
}

/* Numbers from `after` on, two a page, for ever. */
static void answer_events(fake_t *f, peer_t from, const msg_query_t *q)
{
    char body[200];
    uint64_t seq = q->after, count = q->limit < 2 ? q->limit : 2;
    if (seq > 1) cr_assert_eq(q->epoch, 7);
    snprintf(body, sizeof body,
             count == 2 ? "{\"events\":[%d,%d],\"next\":%d,\"epoch\":7}"
                        : "{\"events\":[%d],\"next\":%d,\"epoch\":7}",
             (int)seq, (int)seq + 1, (int)seq + 2);
    report(f, from, q->req, (page_t){.body = body, .more = true, .next = seq + count});
}

Test(admin, pages_become_one_answer)
{
    fake_t f = {.on_query = answer_names};
    char *json = NULL;
    start(&f, "tcp://127.0.0.1:*");
    heddle_admin_t *a = open_admin(&f, 5000);
    cr_assert_eq(heddle_admin_status(a, &json), 0);
    cr_assert_str_eq(json,
                     "{\"kind\":\"status\",\"adapters\":[{\"name\":\"a\",\"workers\":[1]},{\"name\":\"b\","
                     "\"workers\":[1]},"
                     "{\"name\":\"c\",\"workers\":[1]}],\"count\":{\"pages\":\"c\"},\"list\":[\"c\"]}");
    heddle_free(json);
    f.on_query = answer_version;
    cr_assert_eq(heddle_admin_versions(a, "p@3", &json), 0);
    cr_assert_str_eq(
        json, "{\"versions\":[{\"version\":3,\"features\":[\"dora\"],\"workers\":[\"w1\",\"w2\",\"w3\"]}]}");
    heddle_free(json);
    f.on_query = answer_events;
    heddle_events_opts_t opts = {.size = sizeof opts, .since = 1, .limit = 5};
    cr_assert_eq(heddle_admin_events(a, &opts, &json), 0);
    cr_assert_str_eq(json, "{\"events\":[1,2,3,4,5],\"next\":6,\"epoch\":7}");
    heddle_free(json);
    heddle_admin_close(&a);
    stop(&f);
}

static void answer_bad(fake_t *f, peer_t from, const msg_query_t *q)
{
    static const page_t BAD[] = {
        {.body = "[1]"},
        {.body = "{\"adapters\":[]}", .more = true, .next_name = ""},
        {.body = "{\"adapters\":[]}", .more = true, .next_name = "same"},
        {.body = "{\"adapters\":3}", .more = true, .next_name = "x"},
    };
    int mode = atoi(q->name + 1);
    if (mode < 4) {
        report(f, from, q->req, BAD[mode]);
    } else if (mode == 4) {
        say(f, from,
            &(msg_t){.type = MSG_REPORT,
                     .report = {.req = q->req, .body = bytes_of("\xdd\xff\xff\xff\xff", 5)}});
    } else {
        wire_send(f->wire, from, bytes_of("\x92\xcd\xff", 3));
    }
}

Test(admin, malformed_answers_are_errors)
{
    fake_t f = {.on_query = answer_bad};
    char *json = NULL;
    start(&f, "tcp://127.0.0.1:*");
    heddle_admin_t *a = open_admin(&f, 5000);
    for (int mode = 0; mode < 6; mode++) {
        char name[16];
        snprintf(name, sizeof name, "m%d", mode);
        int rc = heddle_admin_workers(a, name, &json);
        cr_expect(rc == HEDDLE_ERR_PROTOCOL || rc == HEDDLE_ERR_LIMIT, "mode %d: %s", mode,
                  heddle_err_name(rc));
        cr_expect_null(json);
        cr_expect(heddle_last_error()->message[0]);
    }
    f.on_query = answer_once;
    cr_assert_eq(heddle_admin_status(a, &json), 0, "the next question is answered");
    heddle_free(json);
    heddle_admin_close(&a);
    stop(&f);
}

static void answer_no(fake_t *f, peer_t from, const msg_query_t *q)
{
    if (!strcmp(q->op, "versions")) refuse(f, from, q->req, MSG_QUERY, HEDDLE_ERR_NOT_FOUND, false);
    else
        report(f, from, q->req,
               (page_t){.code = "version_failed",
                        .body = "{\"ok\":false,\"error\":{\"message\":\"p@3 "
                                "failed\",\"adapter\":\"p\",\"version\":3,\"worker\":\"w1\",\"phase\":"
                                "\"stage\",\"hint\":\"look\"}}"});
}

Test(admin, answers_that_are_no)
{
    fake_t f = {.on_query = answer_no};
    char *json = NULL;
    start(&f, "tcp://127.0.0.1:*");
    heddle_admin_t *a = open_admin(&f, 5000);
    cr_assert_eq(heddle_admin_versions(a, "p", &json), HEDDLE_ERR_NOT_FOUND);
    cr_assert_null(json);
    cr_assert_str_eq(heddle_last_error()->hint, "try something else");
    cr_assert_eq(heddle_admin_wait(a, "p@3", NULL, &json), HEDDLE_ERR_VERSION_FAILED);
    cr_assert_not_null(strstr(json, "\"ok\":false"));
    const heddle_error_t *e = heddle_last_error();
    cr_assert(e->code == HEDDLE_ERR_VERSION_FAILED && e->version == 3 && !strcmp(e->adapter, "p") &&
              !strcmp(e->worker, "w1"));
    cr_assert(!strcmp(e->message, "p@3 failed") && !strcmp(e->phase, "stage") && !strcmp(e->hint, "look"));
    heddle_free(json);
    heddle_admin_close(&a);
    stop(&f);
}

Test(admin, bad_arguments_are_refused_before_anything_is_sent)
{
    fake_t f = {.endpoint = "tcp://127.0.0.1:9"};
    char *json = NULL;
    heddle_admin_t *a = open_admin(&f, 5000), *other = NULL;
    uint64_t begin_us = now_us();
    cr_expect_eq(heddle_admin_versions(a, "..", &json), HEDDLE_ERR_BAD_NAME);
    cr_expect_eq(heddle_admin_versions(a, NULL, &json), HEDDLE_ERR_USAGE);
    cr_expect_eq(heddle_admin_versions(a, "p@x", &json), HEDDLE_ERR_USAGE);
    cr_expect_eq(heddle_admin_workers(a, "a/b", &json), HEDDLE_ERR_BAD_NAME);
    cr_expect_eq(heddle_admin_activate(a, "p", NULL, &json), HEDDLE_ERR_USAGE);
    cr_expect_eq(heddle_admin_verify(a, "p", "h1:xyz", 0, &json), HEDDLE_ERR_USAGE);
    heddle_wait_opts_t wait = {.size = sizeof wait, .workers = (const char *const[]){"w1", " ", NULL}};
    cr_expect_eq(heddle_admin_wait(a, "p", &wait, &json), HEDDLE_ERR_BAD_NAME);
    cr_expect_eq(heddle_admin_wait(a, "p", &(heddle_wait_opts_t){0}, &json), HEDDLE_ERR_USAGE);
    heddle_events_opts_t events = {.size = sizeof events, .adapter = "-"};
    cr_expect_eq(heddle_admin_events(a, &events, &json), HEDDLE_ERR_BAD_NAME);
    cr_expect_eq(heddle_admin_status(a, NULL), HEDDLE_ERR_USAGE);
    heddle_admin_opts_t opts = {.size = sizeof opts, .broker = "127.0.0.1:7700"};
    cr_expect_eq(heddle_admin_open(&opts, &other), HEDDLE_ERR_USAGE);
    cr_expect(json == NULL && other == NULL);
    cr_expect_lt(now_us() - begin_us, 5000000u);
    heddle_admin_close(&a);
}

/* ---- time ---- */

static void stay_silent(fake_t *f, peer_t from, const msg_query_t *q) { (void)f, (void)from, (void)q; }

Test(admin, without_a_broker_and_without_an_answer)
{
    fake_t f = {.on_query = stay_silent}, nobody = {.endpoint = "tcp://127.0.0.1:9"};
    char *json = NULL;
    heddle_admin_t *a = open_admin(&nobody, 300);
    heddle_wait_opts_t wait = {.size = sizeof wait, .deadline_ms = 20000};
    uint64_t begin_us = now_us();
    cr_assert_eq(heddle_admin_wait(a, "p", &wait, &json), HEDDLE_ERR_UNAVAILABLE);
    cr_assert_lt(now_us() - begin_us, 20000000u,
                 "a deadline for the broker does not make us wait for a broker");
    cr_assert(strstr(heddle_last_error()->message, "tcp://127.0.0.1:9") &&
              strstr(heddle_last_error()->hint, "heddle broker"));
    heddle_admin_close(&a);
    start(&f, "tcp://127.0.0.1:*");
    a = open_admin(&f, 300);
    cr_assert_eq(heddle_admin_status(a, &json), HEDDLE_ERR_UNAVAILABLE);
    wait.deadline_ms = 200;
    begin_us = now_us();
    cr_assert_eq(heddle_admin_wait(a, "p", &wait, &json), HEDDLE_ERR_DEADLINE);
    cr_assert_geq(now_us() - begin_us, 450000u);
    cr_assert_null(json);
    heddle_admin_close(&a);
    a = open_admin(&f, 20000);
    begin_us = now_us();
    cr_assert_eq(heddle_admin_wait(a, "p", &wait, &json), HEDDLE_ERR_DEADLINE);
    cr_assert_lt(now_us() - begin_us, 20000000u, "a deadline is not the timeout longer");
    heddle_admin_close(&a);
    stop(&f);
}

Test(admin, refused_hello_ends_at_once_or_is_tried_again)
{
    fake_t f = {.on_query = answer_once, .hello_code = HEDDLE_ERR_WIRE_VERSION};
    char *json = NULL;
    start(&f, "tcp://127.0.0.1:*");
    heddle_admin_t *a = open_admin(&f, 20000);
    uint64_t begin_us = now_us();
    cr_assert_eq(heddle_admin_status(a, &json), HEDDLE_ERR_WIRE_VERSION);
    cr_assert_lt(now_us() - begin_us, 20000000u);
    heddle_admin_close(&a);
    f.hello_code = HEDDLE_ERR_UNAVAILABLE;
    f.hello_retriable = true;
    a = open_admin(&f, 1000);
    cr_assert_eq(heddle_admin_status(a, &json), HEDDLE_ERR_UNAVAILABLE);
    cr_assert_gt(f.hellos, 2);
    f.hello_code = 0;
    cr_assert_eq(heddle_admin_status(a, &json), 0);
    heddle_free(json);
    heddle_admin_close(&a);
    stop(&f);
}

typedef struct {
    heddle_admin_t *admin;
    int rc;
    char *json;
    heddle_error_t error;
} waiter_t;

static void *wait_for_p(void *arg)
{
    waiter_t *w = arg;
    heddle_wait_opts_t opts = {.size = sizeof opts, .deadline_ms = 20000};
    w->rc = heddle_admin_wait(w->admin, "p@1", &opts, &w->json);
    w->error = *heddle_last_error();
    return NULL;
}

Test(admin, broker_restarted_during_a_wait_is_asked_again)
{
    fake_t f = {.on_query = stay_silent};
    start(&f, "tcp://127.0.0.1:*");
    waiter_t w = {.admin = open_admin(&f, 5000)};
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_p, &w);
    UNTIL(f.queries == 1);
    stop(&f);
    f.on_query = answer_once;
    start(&f, f.endpoint);
    pthread_join(thread, NULL);
    cr_assert_eq(w.rc, 0, "%s", w.error.message);
    UNTIL(f.queries == 2);
    cr_assert_eq(f.hellos, 2);
    cr_assert(f.last_deadline_ms < 20000 && f.last_deadline_ms > 10000, "what is left of it: %d ms",
              (int)f.last_deadline_ms);
    cr_assert_eq(f.last_asked_ms, 20000u, "messages name the deadline as it was given");
    heddle_free(w.json);
    heddle_admin_close(&w.admin);
    stop(&f);
}

/* As a broker that led until now: the other one leads. */
static void send_on(fake_t *f, peer_t from, const msg_query_t *q)
{
    msg_t m;
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_UNAVAILABLE, "another one may lead");
    msg_from_error(&error, q->req, MSG_QUERY, &m);
    m.error.retriable = true;
    m.error.retry_ms = 50;
    m.error.leader = f->other;
    say(f, from, &m);
}

/* It is not on the list of the client, and nothing is lost but the time. */
Test(admin, a_wait_goes_on_at_the_broker_that_leads_now)
{
    fake_t f = {.on_query = send_on}, next = {.on_query = answer_once};
    start(&next, "tcp://127.0.0.1:*");
    f.other = next.endpoint;
    start(&f, "tcp://127.0.0.1:*");
    waiter_t w = {.admin = open_admin(&f, 5000)};
    wait_for_p(&w);
    cr_assert_eq(w.rc, 0, "%s", w.error.message);
    UNTIL(f.queries == 1 && next.queries == 1);
    cr_assert(next.last_deadline_ms <= 20000 && next.last_deadline_ms > 10000);
    cr_assert(next.last_asked_ms == 20000u || next.last_deadline_ms == 20000u);
    heddle_free(w.json);
    heddle_admin_close(&w.admin);
    stop(&f);
    stop(&next);
}

/* No other one is there, and this one sends it away for as long: it is asked at the pace that it names. */
Test(admin, a_wait_that_no_broker_takes_ends_and_does_not_spin)
{
    fake_t f = {.on_query = send_on, .other = "tcp://127.0.0.1:9"};
    start(&f, "tcp://127.0.0.1:*");
    heddle_admin_t *a = open_admin(&f, 1000);
    char *json = NULL;
    bool is_said = false;
    uint64_t begin_us = now_us();
    while (!is_said) { /* on a busy machine the last question may have no answer when the time is over */
        cr_assert_lt(now_us() - begin_us, 60000000u);
        cr_assert_eq(heddle_admin_status(a, &json), HEDDLE_ERR_UNAVAILABLE);
        is_said = strstr(heddle_last_error()->message, "another one may lead") != NULL;
    }
    uint64_t took_ms = (now_us() - begin_us) / 1000;
    cr_assert_leq((uint64_t)f.queries, took_ms / 10 + 1);
    heddle_admin_close(&a);
    stop(&f);
}

static void answer_with_its_time(fake_t *f, peer_t from, const msg_query_t *q)
{
    report(f, from, q->req, (page_t){.body = "{\"kind\":\"wait\",\"elapsed_ms\":0.5}"});
}

/* The new broker counts from when it was asked. */
Test(admin, a_wait_over_a_restart_took_all_of_its_time)
{
    fake_t f = {.on_query = stay_silent};
    start(&f, "tcp://127.0.0.1:*");
    waiter_t w = {.admin = open_admin(&f, 5000)};
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_p, &w);
    UNTIL(f.queries == 1);
    uint64_t from_us = now_us();
    stop(&f);
    f.on_query = answer_with_its_time;
    start(&f, f.endpoint);
    uint64_t until_us = now_us();
    pthread_join(thread, NULL);
    cr_assert_eq(w.rc, 0, "%s", w.error.message);
    json_t *answer = json_loads(w.json, 0, NULL);
    double ms = json_number_value(json_object_get(answer, "elapsed_ms"));
    cr_assert_geq(ms * 1000, (double)(until_us - from_us));
    json_decref(answer);
    heddle_free(w.json);
    heddle_admin_close(&w.admin);
    w = (waiter_t){.admin = open_admin(&f, 5000)};
    wait_for_p(&w);
    cr_assert_not_null(strstr(w.json, "\"elapsed_ms\":0.5"), "%s: it was asked once", w.json);
    heddle_free(w.json);
    heddle_admin_close(&w.admin);
    stop(&f);
}

/* Between two questions, unnoticed: the next one greets the new broker first. */
Test(admin, broker_restarted_between_questions)
{
    fake_t f = {.on_query = answer_once};
    char *json;
    start(&f, "tcp://127.0.0.1:*");
    heddle_admin_t *a = open_admin(&f, 5000);
    for (int i = 1; i <= 3; i++) {
        cr_assert_eq(heddle_admin_status(a, &json), 0, "%s", heddle_last_error()->message);
        heddle_free(json);
        cr_assert_eq(f.hellos, i);
        stop(&f);
        start(&f, f.endpoint);
    }
    heddle_admin_close(&a);
    stop(&f);
}

/* A frame to the deaf connection, while another one asks. */
static void answer_and_send_a_late_frame(fake_t *f, peer_t from, const msg_query_t *q)
{
    peer_t deaf = f->deaf_to;
    if (deaf && deaf != from) report(f, deaf, q->req, (page_t){.body = "{\"answer\":\"too late\"}"});
    answer_once(f, from, q);
}

/* As when the address that it was made from has left this host: nothing ends it, and nothing arrives. A frame
 * that came before that, and is read only now, is no sign of life. */
Test(admin, a_connection_that_leads_nowhere_is_dialled_anew)
{
    fake_t f = {.on_query = answer_and_send_a_late_frame};
    char *json;
    start(&f, "tcp://127.0.0.1:*");
    heddle_admin_t *a = open_admin(&f, 30000);
    cr_assert_eq(heddle_admin_status(a, &json), 0, "%s", heddle_last_error()->message);
    heddle_free(json);
    UNTIL(f.queries == 1);
    f.deaf_to = atomic_load(&f.asker);
    heddle_admin_t *other = open_admin(&f, 30000);
    cr_assert_eq(heddle_admin_status(other, &json), 0, "%s", heddle_last_error()->message);
    heddle_free(json);
    heddle_admin_close(&other);
    uint64_t quiet_us = now_us() + QUERY_QUIET_US + 100000;
    UNTIL(now_us() >= quiet_us);
    cr_assert_eq(heddle_admin_status(a, &json), 0, "%s", heddle_last_error()->message);
    heddle_free(json);
    UNTIL(f.queries == 3);
    cr_assert_neq(f.asker, f.deaf_to);
    heddle_admin_close(&a);
    stop(&f);
}

static heddle_admin_t *interrupted;
static atomic_ullong interrupted_us;
static void on_alarm(int number)
{
    (void)number;
    interrupted_us = now_us();
    heddle_admin_interrupt(interrupted);
}

Test(admin, interrupt_from_a_signal_handler)
{
    fake_t f = {.on_query = stay_silent};
    char *json = NULL;
    start(&f, "tcp://127.0.0.1:*");
    interrupted = open_admin(&f, 20000);
    signal(SIGALRM, on_alarm);
    ualarm(100000, 0);
    cr_assert_eq(heddle_admin_wait(interrupted, "p", NULL, &json), HEDDLE_ERR_INTERRUPTED);
    cr_assert_lt(now_us() - interrupted_us, 20000000u);
    f.on_query = answer_once;
    cr_assert_eq(heddle_admin_status(interrupted, &json), 0, "only one call is interrupted");
    heddle_free(json);
    heddle_admin_close(&interrupted);
    stop(&f);
}

/* ---- whose it is ---- */

static void ask_status(void *handle)
{
    char *json = NULL;
    cr_assert_eq(heddle_admin_status(handle, &json), HEDDLE_OK);
    heddle_free(json);
}

Test(admin, each_call_may_be_on_another_thread)
{
    fake_t f = {.on_query = answer_once};
    start(&f, "tcp://127.0.0.1:*");
    heddle_admin_t *a = open_admin(&f, 20000);
    on_another_thread(ask_status, a);
    on_another_thread(ask_status, a);
    ask_status(a);
    heddle_admin_close(&a);
    stop(&f);
}

Test(admin, two_threads_may_not_ask_at_once, ENDS_THE_PROCESS)
{
    fake_t f = {.on_query = stay_silent};
    start(&f, "tcp://127.0.0.1:*");
    waiter_t w = {.admin = open_admin(&f, 20000)};
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_p, &w);
    UNTIL(f.queries == 1);
    ask_status(w.admin);
}
