/* SPDX-License-Identifier: Apache-2.0 */
/* How a client has its key entered: each answer of the broker, and none. */
#include "client/entering.h"

#include "core/errors.h"

#include <criterion/criterion.h>
#include <string.h>

static const char OWN[] = "1aaaaaaaaaabbbbbbbbbbccccccccccddddddddd";
static entering_t e;
static msg_t sent;
static heddle_error_t why;
static uint64_t now_us = 1000000000;

static unsigned step(session_event_kind_t kind, const msg_t *msg)
{
    sent = (msg_t){0};
    return entering_step(&e, kind, msg, now_us, &sent, &why);
}
static unsigned answer_hello(void)
{
    msg_t ok = {.type = MSG_HELLO_OK, .hello_ok = {.wire = 1, .epoch = 3, .lease_ms = 4000, .cluster = "c"}};
    return step(SE_FRAME, &ok);
}
static unsigned answer_error(const char *code, uint64_t req, bool retriable, uint64_t retry_ms)
{
    msg_t m = {.type = MSG_ERROR};
    m.error = (msg_error_t){.req = req,
                            .of = MSG_QUERY,
                            .code = code,
                            .message = "no",
                            .adapter = "",
                            .worker = "",
                            .phase = "",
                            .expected = "",
                            .found = "",
                            .hint = "",
                            .retriable = retriable,
                            .retry_ms = retry_ms};
    return step(SE_FRAME, &m);
}
static unsigned answer_report(uint64_t req)
{
    return step(SE_FRAME, &(msg_t){.type = MSG_REPORT, .report = {.req = req}});
}

static void ask(void)
{
    entering_init(&e, OWN, 5, 1);
    cr_assert_eq(step(SE_CONNECTED, NULL), EN_SEND);
    cr_assert(sent.type == MSG_HELLO && sent.hello.role == ROLE_ADMIN);
    cr_assert_eq(answer_hello(), EN_SEND);
    cr_assert(sent.type == MSG_QUERY && !strcmp(sent.query.op, "enter") && !strcmp(sent.query.key, OWN));
}
TestSuite(entering, .init = ask);

Test(entering, ends_when_the_key_is_in)
{
    cr_assert_eq(answer_report(77), 0, "the answer to another question");
    cr_assert_eq(answer_report(sent.query.req), 0, "nothing was sent since");
    cr_assert_eq(answer_report(e.req), EN_ENTERED);
    cr_assert(entering_is_over(&e) && entering_deadline(&e) == CLOCK_NEVER);
    cr_assert_eq(step(SE_TICK, NULL), 0);
}

Test(entering, ends_when_the_invitation_is_no_good)
{
    cr_assert_eq(answer_error("denied", e.req, false, 0), EN_REFUSED);
    cr_assert(entering_is_over(&e) && why.code == HEDDLE_ERR_DENIED);
}

Test(entering, asks_again_when_the_broker_says_so)
{
    uint64_t first = e.req;
    cr_assert_eq(answer_error("unavailable", e.req, true, 250), EN_REFUSED | EN_AGAIN);
    cr_assert_eq(step(SE_TICK, NULL), 0, "not yet");
    cr_assert_eq(entering_deadline(&e), now_us + 250000);
    now_us += 250000;
    cr_assert_eq(step(SE_TICK, NULL), EN_SEND);
    cr_assert(sent.type == MSG_QUERY && sent.query.req > first);
    cr_assert_eq(answer_report(first), 0, "an answer to the question before");
    cr_assert_eq(answer_report(e.req), EN_ENTERED);
}

Test(entering, asks_on_the_next_connection_when_one_is_lost)
{
    cr_assert_eq(step(SE_DISCONNECTED, NULL), 0);
    cr_assert_eq(step(SE_CONNECTED, NULL), EN_SEND);
    cr_assert_eq(sent.type, MSG_HELLO);
    cr_assert_eq(answer_report(e.req), 0, "not asked on this one");
    cr_assert_eq(answer_hello(), EN_SEND);
    cr_assert_eq(sent.type, MSG_QUERY);
}

Test(entering, goes_where_a_standby_says)
{
    cr_assert_eq(step(SE_DISCONNECTED, NULL), 0);
    cr_assert_eq(step(SE_CONNECTED, NULL), EN_SEND);
    msg_t m = {
        .type = MSG_ERROR,
        .error = {.of = MSG_HELLO, .retriable = true, .code = "unavailable", .leader = "tcp://other:7700"}};
    cr_assert_eq(step(SE_FRAME, &m), EN_REFUSED | EN_AGAIN | EN_REDIAL);
    cr_assert_str_eq(e.session.leader, "tcp://other:7700");
}

Test(entering, connects_anew_when_no_answer_comes)
{
    now_us += ENTERING_ANSWER_US - 1;
    cr_assert_eq(step(SE_TICK, NULL), 0);
    now_us++;
    cr_assert_eq(step(SE_TICK, NULL), EN_REDIAL);
    cr_assert_eq(step(SE_DISCONNECTED, NULL), 0);
    cr_assert_eq(step(SE_CONNECTED, NULL), EN_SEND);
}

/* A broker that is older than the question answers it with an error about the frame, or as one that it does not
 * have. */
Test(entering, ends_at_a_broker_that_does_not_know_the_question)
{
    cr_assert_eq(answer_error("usage", 0, false, 0), EN_REFUSED);
    cr_assert(entering_is_over(&e));
}
