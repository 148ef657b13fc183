/* SPDX-License-Identifier: Apache-2.0 */
#include "client/query.h"

#include "client/broker_address.h"
#include "client/opening.h"
#include "proto/pages.h"
#include "client/session.h"
#include "core/digest.h"
#include "core/errors.h"
#include "proto/value.h"
#include "wire/wire.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    RESEND_US = 20000,            /* before a question that could not be sent is tried again */
    ANSWER_MS = 1500,             /* how long the answer at a deadline's end may be on its way */
    FREE_MS = 400,                /* what connecting may take of a deadline for nothing: the answer names
                                   * that deadline */
    LATE_MS = FREE_MS + ANSWER_MS /* after a deadline there is nothing to wait for */
};

typedef enum {
    QUESTION_UNASKED,
    QUESTION_ASKED, /* on this connection */
    QUESTION_ANSWERED
} question_state_t;

struct query {
    loop_t *loop;
    wire_t *wire;
    char *endpoints;
    session_t session;
    char host[HEDDLE_NAME_MAX + 1];
    uint32_t timeout_ms;
    atomic_bool interrupted;
    buf_t frame;
    heddle_error_t refusal; /* of the last HELLO or handshake; code 0: none */
    bool is_shut;           /* it was the handshake */
    uint64_t received_us;   /* when the last frame came */
    /* the question */
    msg_query_t page; /* as asked: with the request's number and the cursor */
    uint64_t req;
    char cursor[HEDDLE_NAME_MAX + 1];
    uint64_t started_us, asked_us; /* asked_us: first time; 0: not yet */
    uint64_t asked_ms;             /* what was left of the deadline then */
    question_state_t state;
    bool is_repeated; /* asked on an earlier connection too: another broker counts its time anew */
    /* its answer */
    bool has_more;
    int code;
    json_t *body;
    uint64_t next;
    char next_name[HEDDLE_NAME_MAX + 1];
    heddle_error_t failure;
    void (*on_report)(void *self, const msg_report_t *m);
    void *report_self;
    void (*silent)(void *self, uint32_t silent_ms);
    void *silent_self;
    uint64_t silent_us; /* since when the broker that had the question is away; 0: it is not */
    bool is_silence_said;
};

static int send_msg(query_t *q, const msg_t *msg)
{
    buf_clear(&q->frame);
    int rc = msg_encode(msg, &q->frame);
    return rc ? rc : wire_send(q->wire, 0, buf_view(&q->frame));
}

/* ---- the answer ---- */

/* An answer that cannot be read is an answer: asking again would bring the same one. */
static void fail(query_t *q, const heddle_error_t *error)
{
    q->failure = *error;
    q->state = QUESTION_ANSWERED;
}

/* The broker's body is checked to be an object before any part of it is used. */
static void take_report(query_t *q, const msg_report_t *m)
{
    heddle_error_t error;
    json_t *body = NULL;
    if (q->on_report) q->on_report(q->report_self, m);
    if (value_decode(m->body, &body, &error)) {
        fail(q, &error);
        return;
    }
    if (!json_is_object(body)) {
        error_fail(&error, HEDDLE_ERR_PROTOCOL, "the broker's answer is not an object");
        error_hint(&error, "compare `heddle --version` with the broker's in `heddle status`");
        fail(q, &error);
        json_decref(body);
        return;
    }
    q->body = body;
    q->code = m->code[0] ? heddle_err_from_name(m->code) : HEDDLE_OK;
    q->has_more = m->more;
    q->next = m->next;
    error_text(q->next_name, sizeof q->next_name, m->next_name);
    q->state = QUESTION_ANSWERED;
}

/* ---- the session ---- */

static void lose_question(query_t *q)
{
    if (q->state == QUESTION_ASKED) q->state = QUESTION_UNASKED;
}

/* Does what the session asks for. */
static void act(query_t *q, unsigned out, const msg_t *m)
{
    if (out & SO_HELLO) {
        msg_t hello;
        lose_question(q); /* a broker that is greeted anew does not know it */
        session_hello(&q->session, &hello);
        send_msg(q, &hello);
    }
    if (out & SO_JOINED) q->refusal = (heddle_error_t){0}, q->is_shut = false;
    if (out & SO_REFUSED) msg_to_error(&m->error, &q->refusal);
    if (out & SO_REDIAL) wire_redial_to(q->wire, q->session.leader, q->session.leader_key);
    if (out & SO_TOLD) broker_address_told(q->wire, m);
    if (!(out & SO_DELIVER) || q->state != QUESTION_ASKED) return;
    /* An answer to an earlier question may come late, and has another number; 0: the broker could not read
     * so far. */
    if (m->type == MSG_REPORT && m->report.req == q->req) take_report(q, &m->report);
    if (m->type == MSG_ERROR && (!m->error.req || m->error.req == q->req)) {
        heddle_error_t error;
        msg_to_error(&m->error, &error);
        fail(q, &error);
    }
}

/* A connection that was lost has lost the question with it. */
static void on_connection(void *self, bool up)
{
    query_t *q = self;
    session_event_t event = {.kind = up ? SE_CONNECTED : SE_DISCONNECTED};
    if (!up) lose_question(q);
    act(q, session_step(&q->session, &event, loop_now(q->loop)), NULL);
}

/* A refusal for lack of a valid key explains more than a broken connection after it, and is kept. */
static void on_refused(void *self, const heddle_error_t *why)
{
    query_t *q = self;
    if (q->refusal.code != HEDDLE_ERR_DENIED || why->code == HEDDLE_ERR_DENIED) q->refusal = *why;
    q->is_shut = true;
}

/* Any frame is a sign of life of the connection, also one that cannot be read. */
static void on_frame(void *self, peer_t from, bytes_t frame)
{
    query_t *q = self;
    msg_t m;
    heddle_error_t error;
    (void)from;
    q->received_us = loop_now(q->loop);
    if (msg_decode(frame, &m, &error)) {
        if (q->state == QUESTION_ASKED) fail(q, &error);
        return;
    }
    session_event_t event = {.kind = SE_FRAME, .msg = &m};
    act(q, session_step(&q->session, &event, loop_now(q->loop)), &m);
    msg_fini(&m);
}

static uint64_t tick(void *self, uint64_t now_us)
{
    query_t *q = self;
    session_event_t event = {.kind = SE_TICK};
    act(q, session_step(&q->session, &event, now_us), NULL);
    return session_deadline(&q->session);
}

/* ---- open, close ---- */

/* Only begins to connect: the first question waits for the broker. */
int query_open(const char *broker, const credentials_t *keys, uint32_t timeout_ms, query_t **ret_query,
               heddle_error_t *error)
{
    query_t *q = calloc(1, sizeof *q);
    if (!q || loop_new(clock_system(), &q->loop)) {
        query_close(&q);
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory or descriptor is left for a client");
    }
    q->timeout_ms = timeout_ms;
    session_opts_t session = {.role = ROLE_ADMIN, .host = q->host, .pid = (uint64_t)getpid()};
    name_host(q->host);
    random_bytes(&session.life, sizeof session.life);
    random_bytes(&session.seed, sizeof session.seed);
    session_init(&q->session, &session);
    loop_set_tick(q->loop, tick, q);
    static const wire_sink_t SINK = {.on_frame = on_frame,
                                     .on_connection = on_connection,
                                     .on_refused = on_refused};
    wire_keys_t with;
    bool is_secure;
    opening_begin();
    const char *endpoints = broker_address(broker);
    int rc = wire_check_endpoints(endpoints, NULL, error);
    if (!rc && !(q->endpoints = strdup(endpoints)))
        rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory is left for a client");
    if (!rc) rc = credentials_take(keys, endpoints, &with, &is_secure, error);
    if (!rc && keys->join) with.own = keys->join->pair; /* the invitation itself asks */
    if (!rc) rc = wire_dial(q->loop, endpoints, &with, &SINK, q, &q->wire, error);
    explicit_bzero(&with, sizeof with); /* the connection has its own copy of the secret key */
    opening_end();
    if (rc) {
        query_close(&q);
        return rc;
    }
    loop_hand_over(q->loop); /* each call may be on another thread, one at a time */
    *ret_query = q;
    return HEDDLE_OK;
}

void query_on_report(query_t *q, void (*on_report)(void *self, const msg_report_t *m), void *self)
{
    q->on_report = on_report;
    q->report_self = self;
}

void query_on_silence(query_t *q, void (*silent)(void *self, uint32_t silent_ms), void *self)
{
    q->silent = silent;
    q->silent_self = self;
}

loop_t *query_loop(query_t *q) { return q->loop; }
bool query_take_interrupt(query_t *q) { return atomic_exchange(&q->interrupted, false); }

void query_interrupt(query_t *q)
{
    atomic_store(&q->interrupted, true);
    loop_wake(q->loop);
}

void query_close(query_t **query)
{
    query_t *q = query ? *query : NULL;
    if (!q) return;
    *query = NULL;
    wire_close(&q->wire);
    loop_destroy(&q->loop);
    buf_fini(&q->frame);
    free(q->endpoints);
    free(q);
}

/* ---- one page ---- */

static bool is_greeted(const query_t *q)
{
    return q->session.state == SESSION_READY && q->session.is_connected;
}

/* At least 1 where there was a time at all: 0 stands for "none". */
static uint64_t left_ms(uint64_t ms, uint64_t since_ms) { return ms > since_ms ? ms - since_ms : ms ? 1 : 0; }

/* The broker gets what is left of the caller's time, and not the whole of it again. */
static void ask(query_t *q)
{
    uint64_t now_us = loop_now(q->loop), since_ms = q->asked_us ? (now_us - q->asked_us) / 1000 : 0;
    uint64_t spent_ms = (now_us - q->started_us) / 1000;
    msg_t m = {.type = MSG_QUERY, .query = q->page};
    m.query.req = ++q->req; /* an answer to the question before is not ours */
    m.query.deadline_ms = left_ms(q->page.deadline_ms, q->asked_us || spent_ms > FREE_MS ? spent_ms : 0);
    if (!m.query.asked_ms && m.query.deadline_ms != q->page.deadline_ms)
        m.query.asked_ms = q->page.deadline_ms;
    m.query.wait_ms = left_ms(q->page.wait_ms, since_ms);
    int rc = send_msg(q, &m);
    if (rc == HEDDLE_OK) {
        q->state = QUESTION_ASKED;
        q->is_repeated = q->is_repeated || q->asked_us;
        if (!q->asked_us) q->asked_us = now_us, q->asked_ms = m.query.deadline_ms;
    } else if (rc != HEDDLE_ERR_SLOW && rc != HEDDLE_ERR_GONE) {
        heddle_error_t error;
        error_fail(&error, rc, "the question does not fit a message");
        error_hint(&error, "name fewer workers, or ask for all of them");
        fail(q, &error);
    }
}

/* Until the question was sent once, the timeout counts alone, and a deadline, which may be "now". A
 * broker that has the question and a deadline keeps it, so that little time is added after it. */
static uint64_t give_up_us(const query_t *q)
{
    uint64_t timeout_ms = q->timeout_ms, deadline_ms = q->page.deadline_ms;
    if (!q->asked_us && deadline_ms) {
        uint64_t most_ms = deadline_ms > ANSWER_MS ? deadline_ms : ANSWER_MS;
        timeout_ms = clock_earlier(timeout_ms, most_ms);
    }
    if (!q->asked_us) return q->started_us + timeout_ms * 1000;
    if (!deadline_ms) return q->asked_us + (q->page.wait_ms + timeout_ms) * 1000;
    return clock_earlier(q->asked_us + (q->asked_ms + clock_earlier(timeout_ms, ANSWER_MS)) * 1000,
                         q->started_us + (deadline_ms + LATE_MS) * 1000);
}

/* The error depends on how far the question came: refused, asked without an answer, connected, or no
 * connection. */
static int give_up(query_t *q, heddle_error_t *error)
{
    const char *endpoint = wire_endpoint(q->wire), *list = q->endpoints;
    uint64_t waited_ms = (loop_now(q->loop) - q->started_us) / 1000;
    if (q->refusal.code) {
        *error = q->refusal;
        return error->code;
    }
    if (q->state == QUESTION_ASKED && (q->page.deadline_ms || q->page.wait_ms)) { /* it may think about it */
        int rc = error_fail(error, HEDDLE_ERR_DEADLINE,
                            "the broker at %s has the question and did not answer in %llu ms", endpoint,
                            (unsigned long long)waited_ms);
        error_hint(error, "`heddle status` tells whether it still answers");
        return rc;
    }
    int rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE, "no answer from the broker at %s in %llu ms", list,
                        (unsigned long long)waited_ms);
    if (strchr(list, ',')) error_expected(error, "heddle-broker listening on one of them");
    else error_expected(error, "heddle-broker listening on %s", list);
    broker_address_unreached(list, wire_untried(q->wire), wire_is_reached(q->wire),
                             "is heddle-broker running there? see `heddle broker --help`; opts.broker or "
                             "HEDDLE_BROKER names another address",
                             error);
    return rc;
}

/* A question that is out, and whose broker is away.  Returns when to look again; CLOCK_NEVER: no need. */
static uint64_t note_silence(query_t *q)
{
    uint64_t now_us = loop_now(q->loop);
    if (!q->silent || !q->asked_us || is_greeted(q)) {
        q->silent_us = 0;
        q->is_silence_said = false;
        return CLOCK_NEVER;
    }
    if (!q->silent_us) q->silent_us = now_us;
    if (q->is_silence_said) return CLOCK_NEVER;
    uint64_t due_us = q->silent_us + QUERY_SILENT_US;
    if (now_us < due_us) return due_us;
    q->is_silence_said = true;
    q->silent(q->silent_self, (uint32_t)((now_us - q->silent_us) / 1000));
    return CLOCK_NEVER;
}

/* Asks for q->page; the answer's body is then in q->body, its code in q->code. */
static int ask_page(query_t *q, heddle_error_t *error)
{
    json_decref(q->body);
    q->body = NULL;
    q->state = QUESTION_UNASKED;
    q->failure = (heddle_error_t){0};
    while (q->state != QUESTION_ANSWERED) {
        uint64_t end_us = give_up_us(q);
        if (query_take_interrupt(q))
            return error_fail(error, HEDDLE_ERR_INTERRUPTED, "interrupted while waiting for the broker");
        bool is_refused = q->is_shut || q->session.state == SESSION_REFUSED;
        bool is_turned_away = is_refused && q->refusal.code && !q->refusal.retriable;
        if (loop_now(q->loop) >= end_us || is_turned_away) return give_up(q, error);
        if (q->state == QUESTION_UNASKED && is_greeted(q)) ask(q);
        end_us = clock_earlier(give_up_us(q), note_silence(q)); /* the first asking changes it */
        uint64_t retry_us = loop_now(q->loop) + RESEND_US;
        bool is_unsent = q->state == QUESTION_UNASKED && is_greeted(q);
        if (q->state != QUESTION_ANSWERED)
            loop_turn(q->loop, is_unsent && retry_us < end_us ? retry_us : end_us);
    }
    if (q->failure.code) *error = q->failure;
    return q->failure.code;
}

/* ---- all pages ---- */

/* Sets q->page to the page after the one that just came. *ret_more false at the end. A page that ends
 * where it began would be asked for without end. */
static int next_page(query_t *q, const msg_query_t *question, const json_t *whole, bool *ret_more,
                     heddle_error_t *error)
{
    size_t events = json_array_size(json_object_get(whole, "events"));
    *ret_more = q->has_more && !(question->limit && events >= question->limit);
    if (!*ret_more) return HEDDLE_OK;
    if (q->next == q->page.after && !strcmp(q->next_name, q->page.after_name ? q->page.after_name : "")) {
        error_fail(error, HEDDLE_ERR_PROTOCOL, "the broker's pages do not come to an end");
        error_hint(error, "compare `heddle --version` with the broker's in `heddle status`");
        return HEDDLE_ERR_PROTOCOL;
    }
    memcpy(q->cursor, q->next_name, sizeof q->cursor);
    q->page.after = q->next;
    q->page.after_name = q->cursor;
    if (strcmp(q->page.op, "events") != 0) return HEDDLE_OK;
    q->page.limit = question->limit ? question->limit - events : 0;
    q->page.wait_ms = 0;
    /* A restart in between shows as a gap. */
    q->page.epoch = (uint64_t)json_integer_value(json_object_get(whole, "epoch"));
    return HEDDLE_OK;
}

/* One answer may have many pages, which are put together here: a caller never sees a part of a report. */
int query_ask(query_t *q, const msg_query_t *question, json_t **ret_body, heddle_error_t *error)
{
    json_t *whole = NULL;
    owner_check(loop_owner(q->loop));
    /* Before the turns: a frame that they read may have come any time since the last question, and says
     * nothing about the connection of now. */
    uint64_t received_us = q->received_us;
    loop_turn(q->loop, 0); /* twice: the first turn notices what happened since, the second handles it */
    loop_turn(q->loop, 0);
    /* A connection whose local address has left the host, or whose broker's host has, stays open for ten
     * seconds and carries nothing.  As no question was sent on it yet, it can be replaced without asking
     * twice: the session greets the broker again, and dials anew where no answer comes. */
    session_event_t event = {.kind = SE_CONNECTED};
    if (is_greeted(q) && loop_now(q->loop) - received_us > QUERY_QUIET_US)
        act(q, session_step(&q->session, &event, loop_now(q->loop)), NULL);
    q->page = *question;
    q->started_us = loop_now(q->loop);
    q->asked_us = 0;
    q->is_repeated = false;
    wire_share(q->wire, (give_up_us(q) - q->started_us) / 1000);
    int rc = HEDDLE_OK;
    for (bool more = true; more && !rc;) {
        bool is_inside = question->version && !strcmp(question->op, "versions");
        rc = ask_page(q, error);
        if (!rc && whole) rc = pages_append(whole, q->body, is_inside, error);
        if (!whole) whole = json_incref(q->body);
        if (!rc) rc = next_page(q, question, whole, &more, error);
    }
    if (q->is_repeated && json_is_number(json_object_get(whole, "elapsed_ms"))) {
        double ms = (double)(loop_now(q->loop) - q->started_us) / 1000.0;
        json_object_set_new(whole, "elapsed_ms", json_real(ms));
    }
    json_decref(q->body);
    q->body = NULL;
    loop_hand_over(q->loop);
    if (rc) {
        json_decref(whole);
        return rc;
    }
    *ret_body = whole;
    if (q->code) value_to_error(json_object_get(whole, "error"), q->code, error);
    return q->code;
}
