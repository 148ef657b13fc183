/* SPDX-License-Identifier: Apache-2.0 */
/* The way between the HTTP thread and a loop: order, bounds, and places that are kept for probes. */
#include "http/mailbox.h"

#include "core/clock.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>

static bool is_readable(int fd) { return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1; }

static bool ask(mailbox_t *m, uint64_t ticket, request_kind_t kind)
{
    return mailbox_ask(m, &(question_t){.ticket = ticket, .request.kind = kind, .due_us = CLOCK_NEVER});
}

static bool next(mailbox_t *m, question_t *q) { return mailbox_next(m, 1, q); }

Test(mailbox, questions_come_in_their_order_and_one_at_a_time)
{
    mailbox_t *m;
    question_t q;
    reply_t r;
    cr_assert_eq(mailbox_new(&m), HEDDLE_OK);
    cr_expect_not(next(m, &q));
    for (uint64_t i = 1; i <= 3; i++) cr_expect(ask(m, i, REQUEST_API));
    for (uint64_t i = 1; i <= 3; i++) {
        cr_expect(is_readable(mailbox_question_fd(m)), "%llu", (unsigned long long)i);
        cr_assert(next(m, &q));
        cr_expect_eq(q.ticket, i);
        mailbox_reply(m, &(reply_t){.ticket = i, .body = json_object()});
    }
    cr_expect_not(is_readable(mailbox_question_fd(m)));
    cr_expect(is_readable(mailbox_reply_fd(m)));
    cr_assert(mailbox_take(m, &r));
    cr_expect_eq(r.ticket, 1);
    reply_fini(&r);
    mailbox_destroy(&m); /* with two answers in it */
    cr_expect_null(m);
}

Test(mailbox, a_question_has_its_place_until_its_answer_is_taken)
{
    mailbox_t *m;
    question_t q;
    reply_t r;
    uint64_t ticket = 0;
    cr_assert_eq(mailbox_new(&m), HEDDLE_OK);
    while (ask(m, ticket + 1, REQUEST_API)) ticket++;
    cr_expect_eq(ticket, MAILBOX_PLACES - MAILBOX_FOR_PROBES);
    while (ask(m, ticket + 1, REQUEST_LIVEZ)) ticket++;
    cr_expect_eq(ticket, MAILBOX_PLACES, "the rest is for probes");
    cr_assert(next(m, &q));
    cr_expect_not(ask(m, 0, REQUEST_READYZ), "it is being answered");
    mailbox_reply(m, &(reply_t){.ticket = q.ticket});
    cr_expect_not(ask(m, 0, REQUEST_READYZ), "it was answered");
    cr_assert(mailbox_take(m, &r));
    cr_expect(ask(m, ++ticket, REQUEST_READYZ), "its answer is taken");
    mailbox_destroy(&m);
}

Test(mailbox, probes_come_first_and_a_question_after_each)
{
    mailbox_t *m;
    question_t q;
    static const uint64_t ORDER[] = {3, 1, 4, 2};
    cr_assert_eq(mailbox_new(&m), HEDDLE_OK);
    cr_expect(ask(m, 1, REQUEST_API));
    cr_expect(ask(m, 2, REQUEST_METRICS));
    cr_expect(ask(m, 3, REQUEST_READYZ));
    cr_expect(ask(m, 4, REQUEST_LIVEZ));
    for (size_t i = 0; i < sizeof ORDER / sizeof *ORDER; i++) {
        cr_assert(next(m, &q));
        cr_expect_eq(q.ticket, ORDER[i]);
    }
    mailbox_destroy(&m);
}

/* Its client had its 504. */
Test(mailbox, what_is_late_is_not_answered)
{
    mailbox_t *m;
    question_t q;
    reply_t r;
    cr_assert_eq(mailbox_new(&m), HEDDLE_OK);
    for (uint64_t i = 1; i <= 3; i++)
        cr_expect(mailbox_ask(m, &(question_t){.ticket = i, .request.kind = REQUEST_API, .due_us = 10 * i}));
    cr_expect(ask(m, 4, REQUEST_LIVEZ));
    cr_assert(mailbox_next(m, 20, &q));
    cr_expect_eq(q.ticket, 4, "it has no end");
    cr_assert(mailbox_next(m, 20, &q));
    cr_expect_eq(q.ticket, 3);
    cr_expect_not(is_readable(mailbox_question_fd(m)));
    for (uint64_t i = 1; i <= 2; i++) {
        cr_assert(mailbox_take(m, &r), "their places are free again");
        cr_expect(r.is_late && r.ticket == i && !r.body);
    }
    cr_expect_not(mailbox_take(m, &r));
    mailbox_destroy(&m);
}

Test(mailbox, news_wake_one_that_listens_once)
{
    mailbox_t *m;
    reply_t r;
    cr_assert_eq(mailbox_new(&m), HEDDLE_OK);
    mailbox_note(m, 3);
    cr_expect_not(is_readable(mailbox_reply_fd(m)), "it does not listen");
    cr_expect_eq(mailbox_noted(m), 3);
    mailbox_listen(m, 3);
    mailbox_note(m, 3);
    cr_expect_not(is_readable(mailbox_reply_fd(m)), "nothing is new");
    mailbox_note(m, 4);
    cr_expect(is_readable(mailbox_reply_fd(m)));
    cr_expect_not(mailbox_take(m, &r));
    mailbox_note(m, 5);
    cr_expect_not(is_readable(mailbox_reply_fd(m)), "it knows that there are some");
    cr_expect_eq(mailbox_noted(m), 5);
    mailbox_listen(m, 4);
    cr_expect(is_readable(mailbox_reply_fd(m)), "what came before it listened");
    mailbox_destroy(&m);
}

enum { ROUNDS = 20000 };

static void *answer_all(void *mailbox)
{
    question_t q;
    for (int answered = 0; answered < ROUNDS;) {
        poll(&(struct pollfd){.fd = mailbox_question_fd(mailbox), .events = POLLIN}, 1, -1);
        if (!next(mailbox, &q)) continue;
        mailbox_reply(mailbox, &(reply_t){.ticket = q.ticket, .body = json_integer((json_int_t)q.ticket)});
        answered++;
    }
    return NULL;
}

/* Two threads: each question has its answer, once. */
Test(mailbox, threads_share_nothing_else, .timeout = 60)
{
    mailbox_t *m;
    reply_t r;
    pthread_t loop;
    uint64_t asked = 0, taken = 0;
    cr_assert_eq(mailbox_new(&m), HEDDLE_OK);
    cr_assert_eq(pthread_create(&loop, NULL, answer_all, m), 0);
    while (taken < ROUNDS) {
        while (asked < ROUNDS && ask(m, asked + 1, REQUEST_API)) asked++;
        poll(&(struct pollfd){.fd = mailbox_reply_fd(m), .events = POLLIN}, 1, -1);
        while (mailbox_take(m, &r)) {
            cr_assert_eq(r.ticket, ++taken);
            cr_assert_eq(json_integer_value(r.body), (json_int_t)taken);
            reply_fini(&r);
        }
    }
    pthread_join(loop, NULL);
    mailbox_destroy(&m);
}
