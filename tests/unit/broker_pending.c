/* SPDX-License-Identifier: Apache-2.0 */
/* Questions that wait: when each is answered, and how. */
#include "broker_rig.h"

static json_t *body;
static uint64_t asked; /* req of the last question */

static void stop(void)
{
    json_decref(body);
    body = NULL;
    rig_stop();
}
static void start(void)
{
    rig_start();
    rig_hello(ADMIN, ROLE_ADMIN);
}
TestSuite(pending, .init = start, .fini = stop);

static void ask(msg_query_t q)
{
    rig_drop_letters();
    rig_query(ADMIN, q);
    asked = R.req;
}

static bool answered(void) { return rig_has(ADMIN, MSG_REPORT); }

/* The one answer: its code ("" for ok); the body is decoded into `body`. */
static const char *answer(void)
{
    const msg_report_t *r = &rig_last(ADMIN, MSG_REPORT)->report;
    heddle_error_t e;
    json_decref(body);
    cr_assert_eq(value_decode(r->body, &body, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(r->req, asked);
    cr_assert_eq(json_is_true(json_object_get(body, "ok")), r->code[0] == 0);
    cr_assert_eq(R.b->pending.count, 0);
    return r->code;
}

static const char *hint_of_answer(void)
{
    return json_string_value(json_object_get(json_object_get(body, "error"), "hint"));
}

static json_int_t number(const char *field) { return json_integer_value(json_object_get(body, field)); }

static void version_1_active(int count)
{
    workers(count);
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    roll_out(count, 1, 1, 1);
}

static const msg_query_t WAIT = {.op = "wait", .name = "policy"};

static msg_query_t wait_for(uint64_t version)
{
    msg_query_t q = WAIT;
    q.version = version;
    return q;
}

/* ---- of a broker that yields ---- */

static bool takes_those_of_admin(void *self, uint64_t peer, uint64_t req)
{
    uint64_t *taken = self;
    if (peer != ADMIN) return false;
    taken[0]++;
    taken[1] = req;
    return true;
}

Test(pending, a_question_that_another_broker_answers_is_dropped)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_hello(ADMIN + 1, ROLE_ADMIN);
    rig_query(ADMIN + 1, wait_for(2));
    ask(wait_for(2));
    cr_assert_eq(R.b->pending.count, 2);
    uint64_t taken[2] = {0};
    broker_offer_questions(R.b, R.now.us, takes_those_of_admin, taken);
    cr_assert_eq(taken[0], 1);
    cr_assert_eq(taken[1], asked);
    cr_assert_eq(R.b->pending.count, 1);
    cr_assert_eq(R.b->pending.rows->peer, ADMIN + 1);
    rig_pass(120000);
    cr_assert_not(answered());
    cr_assert(rig_has(ADMIN + 1, MSG_REPORT));
}

static const brokers_t *yielded(void *self)
{
    static const brokers_t LIST = {.has_yielded = true};
    return (void)self, &LIST;
}

/* They ask other brokers whether one leads, and serve meanwhile. */
Test(pending, workers_that_were_sent_away_serve_what_they_served)
{
    version_1_active(1);
    R.is_gone[W1] = true;
    R.b->io.brokers = yielded;
    ask(wait_for(1));
    cr_assert_str_eq(answer(), "");
    R.b->io.brokers = NULL;
    ask(wait_for(1));
    cr_assert_not(answered(), "one whose connection is gone is not there");
}

Test(pending, a_question_that_ends_soon_is_answered_here)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    msg_query_t q = wait_for(2);
    q.deadline_ms = 2000;
    ask(q);
    uint64_t taken[2] = {0};
    broker_offer_questions(R.b, R.now.us + 2000000, takes_those_of_admin, taken);
    cr_assert_eq(taken[0], 0);
    rig_pass(2000);
    cr_assert_str_eq(answer(), "deadline");
}

Test(pending, an_admin_is_known_by_its_connection)
{
    key16_t life = rig_life(ADMIN);
    rig_hello(T, ROLE_PUBLISHER);
    cr_assert_eq(memcmp(broker_admin(R.b, ADMIN), &life, sizeof life), 0);
    cr_assert_null(broker_admin(R.b, T));
    cr_assert_null(broker_admin(R.b, 12345));
}

/* ---- wait ---- */

Test(pending, a_wait_that_is_true_is_answered_at_once)
{
    version_1_active(2);
    ask(WAIT);
    cr_assert_str_eq(answer(), "");
    cr_assert(number("version") == 1 && number("need_count") == 2 && number("have_count") == 2 &&
              number("eligible_count") == 2);
    cr_assert_str_eq(json_string_value(json_object_get(body, "phase")), "active");
    cr_assert_eq(json_array_size(json_object_get(body, "missing")), 0);
}

Test(pending, a_wait_is_answered_when_it_becomes_true)
{
    version_1_active(2);
    rig_publish(T, (rig_publish_t){.digest = 2});
    ask(wait_for(2));
    msg_query_t staged = wait_for(2);
    cr_assert(!answered());
    rig_staged(W1, 2, 2);
    rig_staged(W2, 2, 2);
    rig_active(W1, 2, 2, 2);
    cr_assert(!answered());
    rig_active(W2, 2, 2, 2);
    cr_assert_str_eq(answer(), "");
    staged.phase = HEDDLE_PHASE_STAGED;
    ask(staged);
    cr_assert_str_eq(answer(), "");
    cr_assert_str_eq(json_string_value(json_object_get(body, "phase")), "staged");
}

Test(pending, quorums)
{
    version_1_active(4);
    rig_publish(T, (rig_publish_t){.digest = 2, .activation = HEDDLE_ACTIVATION_AS_READY});
    rig_staged(W1, 2, 2);
    rig_active(W1, 2, 2, 2);
    rig_staged(W2, 2, 2);
    const struct {
        heddle_quorum_t quorum;
        uint64_t min;
        heddle_phase_t phase;
        bool yes;
    } ROWS[] = {{{HEDDLE_QUORUM_ALL, 0}, 0, HEDDLE_PHASE_ACTIVE, false},
                {{HEDDLE_QUORUM_COUNT, 1}, 0, HEDDLE_PHASE_ACTIVE, true},
                {{HEDDLE_QUORUM_COUNT, 2}, 0, HEDDLE_PHASE_ACTIVE, false},
                {{HEDDLE_QUORUM_COUNT, 2}, 0, HEDDLE_PHASE_STAGED, true},
                {{HEDDLE_QUORUM_PERCENT, 25}, 0, HEDDLE_PHASE_ACTIVE, true},
                {{HEDDLE_QUORUM_PERCENT, 26}, 0, HEDDLE_PHASE_ACTIVE, false},
                {{HEDDLE_QUORUM_PERCENT, 25}, 2, HEDDLE_PHASE_ACTIVE, false},
                {{HEDDLE_QUORUM_NONE, 0}, 9, HEDDLE_PHASE_ACTIVE, true},
                {{HEDDLE_QUORUM_PERCENT, 50}, 0, HEDDLE_PHASE_STAGED, true}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        msg_query_t q = wait_for(2);
        q.quorum_kind = ROWS[i].quorum.kind;
        q.quorum_n = ROWS[i].quorum.n;
        q.min = ROWS[i].min;
        q.phase = ROWS[i].phase;
        q.deadline_ms = 10;
        ask(q);
        cr_assert_eq(answered(), ROWS[i].yes, "row %zu", i);
        if (!ROWS[i].yes) rig_pass(20);
        cr_assert_str_eq(answer(), ROWS[i].yes ? "" : "deadline", "row %zu", i);
    }
}

Test(pending, a_wait_counts_who_is_ready_when_it_is_answered)
{
    version_1_active(2);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    ask(wait_for(2));
    rig_leave(W2);
    R.tokens[W2] = 0;
    cr_assert(!answered());
    rig_active(W1, 2, 2, 2);
    cr_assert_str_eq(answer(), "");
    cr_assert_eq(number("eligible_count"), 1);
}

Test(pending, an_overtaken_version_counts_unless_exactly_it_was_asked_for)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2, .activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 2, 2);
    rig_publish(T, (rig_publish_t){.digest = 3}); /* supersedes 2 */
    ask(wait_for(2));
    cr_assert(!answered());
    roll_out(1, 3, 2, 3);
    cr_assert_str_eq(answer(), "");
    ask(wait_for(1));
    cr_assert_str_eq(answer(), "", "3 was chosen after 1");
    msg_query_t q = wait_for(2);
    q.exact = true;
    ask(q);
    cr_assert_str_eq(answer(), "version_failed", "superseded: it will never be active");
    q = wait_for(1);
    q.exact = true;
    q.deadline_ms = 100;
    ask(q);
    cr_assert(!answered(), "it is kept, and may be activated again");
    rig_pass(200);
    cr_assert_str_eq(answer(), "deadline");
}

/* The rest of the time went by before the question came. */
Test(pending, a_wait_that_ran_out_names_the_deadline_as_it_was_given)
{
    version_1_active(1);
    msg_query_t q = wait_for(1);
    q.min = 2;
    q.deadline_ms = 100;
    for (q.asked_ms = 0; q.asked_ms <= 5000; q.asked_ms += 5000) {
        ask(q);
        rig_pass(200);
        cr_assert_str_eq(answer(), "deadline");
        const char *expected = json_string_value(json_object_get(json_object_get(body, "error"), "expected"));
        cr_assert_str_eq(expected, q.asked_ms ? "2 workers within 5000 ms" : "2 workers within 100 ms");
    }
}

Test(pending, newer_is_by_decision_not_by_number)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_query(
        ADMIN,
        (msg_query_t){.op = "activate", .name = "policy", .version = 1, .quorum_kind = HEDDLE_QUORUM_NONE});
    ask(wait_for(1));
    cr_assert(!answered(), "w1 serves 2, by an earlier decision");
    rig_active(W1, 1, 3, 1);
    cr_assert_str_eq(answer(), "");
    ask(wait_for(2));
    cr_assert_str_eq(answer(), "", "1 was chosen after 2");
}

Test(pending, a_failed_version_ends_a_wait_at_once)
{
    version_1_active(2);
    rig_publish(T, (rig_publish_t){.digest = 2});
    ask(wait_for(2));
    rig_nack(W1, 2, 0, "stage", "version_failed");
    cr_assert_str_eq(answer(), "version_failed");
    const json_t *error = json_object_get(body, "error");
    cr_assert_eq(json_integer_value(json_object_get(error, "exit")), 1);
    cr_assert_str_eq(json_string_value(json_object_get(error, "worker")), "w1");
    ask(wait_for(2));
    cr_assert_str_eq(answer(), "version_failed", "had failed before");
}

/* A script that names no version asks about the newest, and may not know that it has failed. */
Test(pending, of_a_name_whose_newest_version_failed_the_active_one_is_named)
{
    workers(1);
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    rig_nack(W1, 1, 0, "stage", "version_failed");
    ask(WAIT);
    cr_assert_str_eq(answer(), "version_failed");
    cr_assert_str_eq(hint_of_answer(), "`heddle versions policy@1` shows where it ended", "none is active");
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 1, 2);
    rig_publish(T, (rig_publish_t){.digest = 3});
    rig_nack(W1, 3, 0, "stage", "version_failed");
    ask(WAIT);
    cr_assert_str_eq(answer(), "version_failed");
    cr_assert_str_eq(hint_of_answer(), "`heddle versions policy@3` shows where it ended; "
                                       "`heddle wait policy@2` waits for the active version");
    ask(wait_for(3));
    cr_assert_str_eq(answer(), "version_failed");
    cr_assert_str_eq(hint_of_answer(), "`heddle versions policy@3` shows where it ended", "it was named");
    rig_leave(T);
    rig_leave(W1);
    R.tokens[T] = R.tokens[W1] = 0;
    ask(WAIT);
    cr_assert_str_eq(answer(), "version_failed");
    cr_assert_str_eq(hint_of_answer(), "`heddle versions policy@3` shows where it ended; publish again",
                     "a wait for the active one would end with version_lost");
}

Test(pending, too_few_workers_are_counted_in_the_hint)
{
    static const char *const HINTS[] = {"1 ready worker subscribes to it: start more ",
                                        "2 ready workers subscribe to it: start more "};
    for (int i = 0; i < 2; i++) {
        if (i == 0) version_1_active(1);
        else rig_worker(W2, "w2");
        msg_query_t q = WAIT;
        q.min = 3;
        q.deadline_ms = 100;
        ask(q);
        rig_pass(200);
        cr_assert_str_eq(answer(), "deadline");
        cr_assert(!strncmp(hint_of_answer(), HINTS[i], strlen(HINTS[i])), "%s", hint_of_answer());
    }
}

Test(pending, a_version_that_failed_by_its_deadline_is_1_for_a_wait)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2, .deadline_ms = 1000});
    ask(wait_for(2));
    rig_pass(1200);
    cr_assert_str_eq(answer(), "version_failed");
    cr_assert(strstr(json_string_value(json_object_get(json_object_get(body, "error"), "message")),
                     "staged policy@2 within 1000 ms"));
}

Test(pending, a_lost_version_ends_a_wait)
{
    version_1_active(1);
    rig_leave(T);
    R.tokens[T] = 0;
    ask((msg_query_t){.op = "wait", .name = "policy", .version = 1, .min = 2});
    cr_assert(!answered());
    rig_leave(W1);
    R.tokens[W1] = 0;
    cr_assert_str_eq(answer(), "version_lost");
    ask(WAIT);
    cr_assert_str_eq(answer(), "version_lost");
}

static const char *message_of_answer(void)
{
    return json_string_value(json_object_get(json_object_get(body, "error"), "message"));
}

/* The workers are at no later decision, and none reaches the active version: to wait for that helps nothing. */
Test(pending, a_lost_version_before_a_lost_one_ends_a_wait)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_leave(T);
    rig_leave(W1);
    R.tokens[T] = R.tokens[W1] = 0;
    rig_worker(W2, "w2");
    for (int phase = HEDDLE_PHASE_STAGED; phase <= HEDDLE_PHASE_ACTIVE; phase++) {
        msg_query_t q = wait_for(1);
        q.phase = (heddle_phase_t)phase;
        ask(q);
        cr_assert(answered(), "phase %d", phase);
        cr_assert_str_eq(answer(), "version_lost");
        cr_assert(strstr(message_of_answer(), "no connected process holds the bytes of policy@1"), "%s",
                  message_of_answer());
    }
}

Test(pending, a_wait_that_ran_out_beside_workers_that_drain_says_so)
{
    version_1_active(2);
    rig_query(ADMIN, (msg_query_t){.op = "drain", .name = "w1"});
    rig_query(ADMIN, (msg_query_t){.op = "drain", .name = "w2"});
    msg_query_t q = WAIT;
    q.deadline_ms = 100;
    ask(q);
    rig_pass(200);
    cr_assert_str_eq(answer(), "no_workers");
    cr_assert_str_eq(hint_of_answer(), "2 workers of it drain, and count no more: start another one (`heddle "
                                       "worker --adapter policy`)");
}

/* One that is there may be served again, by hand: the wait goes on, and says at its end what is lost. */
Test(pending, a_wait_that_ran_out_names_the_active_version_that_is_lost)
{
    version_1_active(1);
    rig_open(5, "policy", "trainer", 0, true);
    rig_publish(5, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    rig_leave(5);
    R.tokens[5] = 0;
    rig_nack(W1, 2, 0, "activate", "version_failed");
    msg_query_t q = wait_for(1);
    q.deadline_ms = 100;
    q.min = 2;
    ask(q);
    rig_pass(200);
    cr_assert_str_eq(answer(), "deadline");
    const char *found = json_string_value(json_object_get(json_object_get(body, "error"), "found"));
    cr_assert(strstr(found, "no connected process holds the bytes of policy@2"), "%s", found);
}

Test(pending, what_was_never_assigned_is_not_found)
{
    ask(WAIT);
    rig_error(ADMIN, "not_found");
    version_1_active(1);
    ask(wait_for(2));
    cr_assert_str_eq(rig_error(ADMIN, "not_found")->expected, "a version up to 1");
    cr_assert_eq(rig_error(ADMIN, "not_found")->req, R.req);
    cr_assert_eq(R.b->pending.count, 0);
    rig_open(5, "critic", "t", 0, false); /* opened, nothing published */
    ask((msg_query_t){.op = "wait", .name = "critic"});
    rig_error(ADMIN, "not_found");
}

Test(pending, nobody_to_wait_for)
{
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    msg_query_t q = WAIT;
    q.deadline_ms = 500;
    ask(q);
    rig_pass(600);
    cr_assert_str_eq(answer(), "no_workers");
    cr_assert_eq(number("eligible_count"), 0);
}

Test(pending, a_version_that_waits_for_another)
{
    rig_open(T, "policy", "trainer", 0, false);
    rig_worker(W1, "w1");
    rig_publish(T, (rig_publish_t){.digest = 1});
    rig_publish(T, (rig_publish_t){.digest = 2});
    msg_query_t q = wait_for(2);
    q.deadline_ms = 500;
    ask(q);
    rig_pass(600);
    cr_assert_str_eq(answer(), "deadline");
    const json_t *error = json_object_get(body, "error");
    cr_assert_str_eq(json_string_value(json_object_get(error, "found")),
                     "0; waits for policy@1 (staged on 0 of 1)");
    cr_assert_not_null(
        strstr(json_string_value(json_object_get(error, "hint")), "`heddle versions policy@1`"));
}

Test(pending, named_workers_alone)
{
    version_1_active(2);
    rig_worker(W3, "w3");
    const char *names[] = {"w2", "w1", "w2"};
    ask((msg_query_t){.op = "wait", .name = "policy", .workers = names, .worker_count = 3});
    cr_assert_str_eq(answer(), "");
    cr_assert_eq(number("need_count"), 2, "named twice counts once");
    const char *absent[] = {"w1", "w9"};
    ask((msg_query_t){.op = "wait",
                      .name = "policy",
                      .workers = absent,
                      .worker_count = 2,
                      .deadline_ms = 300});
    cr_assert(!answered());
    rig_pass(400);
    cr_assert_str_eq(answer(), "deadline");
    const json_t *missing = json_object_get(body, "missing");
    cr_assert_eq(json_array_size(missing), 1);
    cr_assert_str_eq(json_string_value(json_object_get(json_array_get(missing, 0), "worker")), "w9");
    const char *bad[] = {"a b"};
    msg_query_t q = WAIT;
    q.workers = bad;
    q.worker_count = 1;
    ask(q);
    rig_error(ADMIN, "bad_name");
}

Test(pending, a_staged_version_of_a_held_adapter_ends_with_held)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann"});
    rig_active(W1, 1, 3, 1);
    rig_publish(T, (rig_publish_t){.digest = 3});
    ask(wait_for(3));
    cr_assert(!answered());
    rig_staged(W1, 3, 3);
    cr_assert_str_eq(answer(), "held");
    cr_assert_not_null(
        strstr(json_string_value(json_object_get(json_object_get(body, "error"), "message")), "ann"));
    const char *hint = json_string_value(json_object_get(json_object_get(body, "error"), "hint"));
    cr_assert_str_eq(hint, "`heddle resume policy` ends the hold", "as a publisher of it reads");
    msg_query_t q = wait_for(3);
    q.phase = HEDDLE_PHASE_STAGED;
    ask(q);
    cr_assert_str_eq(answer(), "");
}

Test(pending, exactly_what_was_taken_back_ends_with_held)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    msg_query_t q = wait_for(2);
    q.exact = true;
    rig_query(ADMIN, (msg_query_t){.op = "activate",
                                   .name = "policy",
                                   .version = 1,
                                   .by = "ann",
                                   .quorum_kind = HEDDLE_QUORUM_NONE});
    ask(q);
    cr_assert_str_eq(answer(), "", "w1 serves it still");
    rig_active(W1, 1, 3, 1);
    ask(q);
    cr_assert_str_eq(answer(), "held", "nothing but another decision by hand brings it back");
    const char *message = json_string_value(json_object_get(json_object_get(body, "error"), "message"));
    cr_assert(strstr(message, "policy@2 is kept, but") && strstr(message, "policy@1 by ann"), "%s", message);
    cr_assert_str_eq(hint_of_answer(), "`heddle resume policy` ends the hold", "it is the newest");
    rig_publish(T, (rig_publish_t){.digest = 3});
    rig_staged(W1, 3, 3);
    ask(q);
    cr_assert_str_eq(answer(), "held");
    cr_assert_str_eq(hint_of_answer(), "`heddle activate policy@2` makes it the one to serve");
    ask(wait_for(2));
    cr_assert_str_eq(answer(), "", "1 was chosen after 2");
    q.phase = HEDDLE_PHASE_STAGED;
    ask(q);
    cr_assert_str_eq(answer(), "");
}

Test(pending, nothing_is_answered_yes_while_settling)
{
    version_1_active(1);
    rig_restart();
    rig_hello(ADMIN, ROLE_ADMIN);
    msg_subscription_t sub = {.adapter = "policy", .decision = 1, .version = 1};
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_ACTIVE, .digest = rig_digest(1)};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    ask(WAIT);
    rig_pass(3500);
    cr_assert(!answered());
    rig_pass(1000);
    cr_assert_str_eq(answer(), "");
}

Test(pending, a_wait_that_ends_while_settling_says_that_it_settles)
{
    version_1_active(1);
    rig_restart();
    rig_hello(ADMIN, ROLE_ADMIN);
    msg_query_t q = WAIT;
    q.deadline_ms = 1000;
    ask(q);
    rig_pass(1100);
    cr_assert_str_eq(answer(), "deadline"); /* and not that nobody subscribes */
    cr_assert_not_null(strstr(json_string_value(json_object_get(json_object_get(body, "error"), "message")),
                              "the broker started a moment ago"));
}

/* ---- activate ---- */

Test(pending, activate_moves_no_bytes_where_they_are)
{
    version_1_active(2);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(2, 2, 2, 2);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann"});
    cr_assert(!answered());
    rig_active(W1, 1, 3, 1);
    rig_active(W2, 1, 3, 1);
    cr_assert_str_eq(answer(), "");
    cr_assert(number("from") == 2 && number("to") == 1 && number("bytes_moved") == 0);
    cr_assert(json_is_true(json_object_get(body, "changed")) && json_is_true(json_object_get(body, "held")));
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "bob"});
    cr_assert_str_eq(answer(), "");
    cr_assert(json_is_false(json_object_get(body, "changed")));
    cr_assert_str_eq(rig_adapter()->held_by, "ann");
}

Test(pending, activate_counts_what_had_to_be_fetched)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_worker(W2, "w2");
    rig_staged(W2, 2, 2);
    rig_active(W2, 2, 2, 2);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1});
    rig_active(W1, 1, 3, 1);
    rig_staged(W2, 1, 1);
    cr_assert(!answered());
    rig_active(W2, 1, 3, 1);
    cr_assert_str_eq(answer(), "");
    cr_assert_eq(number("bytes_moved"), 5000);
}

static const char *refused(const char *op, uint64_t version)
{
    ask((msg_query_t){.op = op, .name = "policy", .version = version});
    const msg_error_t *e = &rig_last(ADMIN, MSG_ERROR)->error;
    cr_assert_str_eq(e->code, "not_activatable");
    return e->hint;
}
static const char *refused_hint(uint64_t version) { return refused("activate", version); }

/* keep 1 */
Test(pending, an_activation_that_is_refused_names_what_can_be_activated)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_nack(W1, 2, 0, "announce", "no_memory");
    cr_assert_str_eq(refused_hint(2), "publish its bytes again; no other version can be activated");
    for (uint64_t v = 3; v <= 5; v++) {
        rig_publish(T, (rig_publish_t){.digest = (uint8_t)v});
        roll_out(1, v, v - 1, (uint8_t)v);
    }
    cr_assert_str_eq(refused_hint(1), "activate one of 4, or publish its bytes again; "
                                      "a broker with --keep above 1 keeps more");
    cr_assert_str_eq(refused_hint(2), "activate one of 4, or publish its bytes again");
    rig_publish(T, (rig_publish_t){.digest = 6, .activation = HEDDLE_ACTIVATION_MANUAL});
    cr_assert_str_eq(refused_hint(6), "`heddle wait --phase staged` waits until it is");
    rig_staged(W1, 6, 6);
    cr_assert_str_eq(refused_hint(2), "activate one of 4, 6, or publish its bytes again");
    cr_assert_str_eq(refused("rollback", 2), "roll back to one of 4, or publish its bytes again");
}

Test(pending, activate_refusals_are_errors)
{
    version_1_active(1);
    ask((msg_query_t){.op = "activate", .name = "policy"});
    rig_error(ADMIN, "usage");
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 7});
    rig_error(ADMIN, "not_found");
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_nack(W1, 2, 0, "stage", "version_failed");
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 2});
    cr_assert_str_eq(rig_error(ADMIN, "not_activatable")->found, "failed");
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    rig_publish(T, (rig_publish_t){.digest = 3});
    R.commit_error = 0;
    rig_publish(T, (rig_publish_t){.digest = 3, .activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 3, 3);
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 3});
    cr_assert(rig_error(ADMIN, "no_space")->retriable);
    cr_assert_eq(rig_adapter()->active, 1);
    cr_assert_eq(R.b->pending.count, 0);
}

Test(pending, who_activates_is_unknown_where_the_name_is_empty)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = ""});
    cr_assert_str_eq(registry_adapter(&R.b->registry, "policy")->held_by, "unknown");
}

Test(pending, activate_dry_run_and_none)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .dry_run = true});
    cr_assert_str_eq(answer(), "");
    cr_assert(json_is_true(json_object_get(body, "changed")) && json_is_true(json_object_get(body, "held")));
    cr_assert_eq(rig_adapter()->active, 2);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .quorum_kind = HEDDLE_QUORUM_NONE});
    cr_assert_str_eq(answer(), "");
    cr_assert_eq(rig_adapter()->active, 1);
}

/* What the workers were when it ended outlives their sessions: w1 had staged it, and w2 had not. */
Test(pending, of_a_version_that_failed_what_each_worker_had_is_told)
{
    version_1_active(2);
    rig_publish(T, (rig_publish_t){.digest = 2, .deadline_ms = 1000});
    rig_staged(W1, 2, 2);
    rig_pass(1500);
    rig_worker(W1, "w1");
    rig_worker(W3, "w3");
    msg_query_t q = WAIT;
    q.min = 9;
    ask(q);
    cr_assert_str_eq(answer(), "version_failed");
    static const char *const WANT[][3] = {{"w1", "activate", "had all of it, and dropped it: deadline"},
                                          {"w2", "announce", "given up before it began: deadline"},
                                          {"w3", NULL, NULL}};
    const json_t *missing = json_object_get(body, "missing");
    cr_assert_eq(json_array_size(missing), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(missing, i);
        static const char *const KEYS[] = {"worker", "phase", "note"};
        for (size_t k = 0; k < 3; k++) {
            const char *found = json_string_value(json_object_get(row, KEYS[k]));
            cr_assert(WANT[i][k] ? found && !strcmp(found, WANT[i][k]) : !found, "%s of %s: %s", KEYS[k],
                      WANT[i][0], found ? found : "none");
        }
    }
}

/* The trial of a roll-back: w1 has the bytes still, and w2, which came later, has them not. */
Test(pending, a_trial_says_which_workers_would_fetch)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_worker(W2, "w2");
    rig_staged(W2, 2, 2);
    rig_active(W2, 2, 2, 2);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .dry_run = true});
    cr_assert_str_eq(answer(), "");
    uint64_t bytes = registry_version(rig_adapter(), 1)->data_bytes;
    char want[96], *found = json_dumps(json_object_get(body, "would_fetch"), JSON_COMPACT);
    snprintf(want, sizeof want, "[{\"worker\":\"w2\",\"bytes\":%llu,\"version\":2}]",
             (unsigned long long)bytes);
    cr_assert_str_eq(found, want);
    free(found);
    cr_assert(json_is_true(json_object_get(body, "dry_run")));
    cr_assert(bytes && (uint64_t)number("would_fetch_bytes") == bytes && number("bytes_moved") == 0);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .quorum_kind = HEDDLE_QUORUM_NONE});
    cr_assert_str_eq(answer(), "");
    cr_assert(json_is_false(json_object_get(body, "dry_run")));
    cr_assert(json_is_null(json_object_get(body, "would_fetch_bytes")));
    cr_assert_eq(json_array_size(json_object_get(body, "would_fetch")), 0);
}

/* The same content under another number is taken over in place: no byte moves for it. */
Test(pending, a_trial_knows_what_is_there_under_another_number)
{
    R.keep = R.b->rollout.keep = R.b->opts.keep = 8;
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_publish(T, (rig_publish_t){.digest = 1});
    roll_out(1, 3, 3, 1);
    rig_worker(W2, "w2");
    rig_staged(W2, 3, 1);
    rig_active(W2, 3, 3, 1);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .dry_run = true});
    cr_assert_str_eq(answer(), "");
    cr_assert(number("to") == 1 && number("would_fetch_bytes") == 0);
    cr_assert_eq(json_array_size(json_object_get(body, "would_fetch")), 0);
}

/* The deadline ends the wait in the middle of a fetch. */
Test(pending, an_activation_counts_the_bytes_that_are_on_their_way)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_worker(W2, "w2");
    rig_staged(W2, 2, 2);
    rig_active(W2, 2, 2, 2);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .deadline_ms = 1000});
    rig_active(W1, 1, 3, 1);
    msg_progress_t p = {.adapter = "policy", .fetching = 1, .bytes_done = 2000, .data_bytes = 5000};
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = R.tokens[W2], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(W2, &m);
    rig_pass(1100);
    cr_assert_str_eq(answer(), "deadline");
    cr_assert_eq(number("bytes_moved"), 2000);
}

Test(pending, activate_waits_for_the_end_of_settling)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_restart();
    rig_hello(ADMIN, ROLE_ADMIN);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .deadline_ms = 1000});
    rig_pass(1100);
    cr_assert_str_eq(answer(), "deadline");
    cr_assert_eq(rig_adapter()->active, 2);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1});
    rig_pass(3500);
    rig_error(ADMIN, "not_activatable"); /* nobody brought the bytes back */
    cr_assert_eq(R.b->pending.count, 0);
}

/* ---- verify ---- */

static void verified(uint64_t peer, uint64_t digest, const char *code, exported_t exported)
{
    msg_t m = {.type = MSG_VERIFIED};
    m.verified = (msg_verified_t){.token = R.tokens[peer],
                                  .req = rig_last(peer, MSG_VERIFY)->verify.req,
                                  .version = 1,
                                  .hash_us = 7,
                                  .exported = exported,
                                  .adapter = "policy",
                                  .code = code,
                                  .digest = rig_digest(digest)};
    rig_frame(peer, &m);
}

static const msg_query_t VERIFY = {.op = "verify", .name = "policy", .version = 1};

Test(pending, verify_asks_every_holder)
{
    version_1_active(2);
    rig_worker(W3, "w3"); /* holds nothing yet */
    ask(VERIFY);
    cr_assert_eq(rig_count(MSG_VERIFY), 2);
    verified(W1, 1, "", EXPORTED_MATCH);
    cr_assert(!answered());
    verified(W1, 9, "", EXPORTED_UNKNOWN); /* said twice: the first counts */
    verified(W2, 1, "", EXPORTED_UNKNOWN);
    cr_assert_str_eq(answer(), "");
    cr_assert_eq(json_array_size(json_object_get(body, "workers")), 2);
}

static void back_with_1(uint64_t peer, const char *name)
{
    msg_subscription_t sub = {.adapter = "policy", .decision = 1, .version = 1};
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_ACTIVE, .digest = rig_digest(1)};
    rig_hello(peer, ROLE_WORKER);
    rig_join_with(peer, name, &sub, 1, &held, 1);
}

Test(pending, verify_asks_when_all_had_time_to_come_back)
{
    version_1_active(2);
    rig_restart();
    rig_hello(ADMIN, ROLE_ADMIN);
    back_with_1(W1, "w1");
    ask(VERIFY);
    rig_pass(1000);
    cr_assert(!answered());
    back_with_1(W2, "w2");
    rig_pass(3500);
    cr_assert(!answered());
    verified(W1, 1, "", EXPORTED_UNKNOWN);
    cr_assert(!answered());
    verified(W2, 1, "", EXPORTED_UNKNOWN);
    cr_assert_str_eq(answer(), "");
}

Test(pending, verify_calls_nothing_lost_while_settling)
{
    version_1_active(1);
    rig_restart();
    rig_hello(ADMIN, ROLE_ADMIN);
    msg_query_t q = VERIFY;
    q.deadline_ms = 1000;
    ask(q);
    rig_pass(1100);
    cr_assert_str_eq(answer(), "deadline");
    ask(VERIFY);
    rig_pass(3500);
    rig_error(ADMIN, "version_lost");
    cr_assert_eq(R.b->pending.count, 0);
}

Test(pending, verify_says_no)
{
    const struct {
        uint64_t digest;
        const char *code;
        exported_t exported;
        const char *verdict;
    } ROWS[] = {
        {2, "", EXPORTED_UNKNOWN, "digest_mismatch"},
        {1, "", EXPORTED_DIFFERS, "digest_mismatch"},
        {1, "not_found", EXPORTED_DIFFERS, "digest_mismatch"},       /* of the directory */
        {1, "digest_mismatch", EXPORTED_UNKNOWN, "digest_mismatch"}, /* of the manifest */
        {1, "not_found", EXPORTED_UNKNOWN, "deadline"},
    };
    version_1_active(2);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        ask(VERIFY);
        verified(W2, 1, "", EXPORTED_UNKNOWN);
        verified(W1, ROWS[i].digest, ROWS[i].code, ROWS[i].exported);
        cr_assert_str_eq(answer(), ROWS[i].verdict, "row %zu", i);
        cr_assert_str_eq(json_string_value(json_object_get(json_object_get(body, "error"), "worker")), "w1");
    }
    cr_assert_eq(rig_event_count(EVENT_VERIFY_FAILED), 4, "a silent holder has no other bytes");
    const event_row_t *e = rig_event(EVENT_VERIFY_FAILED);
    cr_assert(!strcmp(e->worker, "w1") && !strcmp(e->adapter, "policy") && e->version == 1);
    cr_assert_eq(e->code, HEDDLE_ERR_DIGEST_MISMATCH);
    cr_assert_eq(strncmp(e->message, "1 of 2 holders have other bytes as policy@1", 43), 0, "%s", e->message);
}

/* Whatever the order of the answers: the worst first, and each is named. */
Test(pending, verify_names_all_that_differ_the_worst_first)
{
    const uint64_t HOLDERS[] = {W1, W2, W3};
    version_1_active(3);
    for (int first = 0; first < 3; first++) {
        ask(VERIFY);
        for (int i = 0; i < 3; i++) {
            uint64_t peer = HOLDERS[(first + i) % 3];
            if (peer == W1) verified(W1, 1, "not_found", EXPORTED_DIFFERS);
            if (peer == W2) verified(W2, 1, "", EXPORTED_DIFFERS);
            if (peer == W3) verified(W3, 2, "", EXPORTED_UNKNOWN);
        }
        cr_assert_str_eq(answer(), "digest_mismatch");
        const json_t *error = json_object_get(body, "error");
        const char *message = json_string_value(json_object_get(error, "message"));
        cr_assert_str_eq(message,
                         "3 of 3 holders have other bytes as policy@1: w3, in its memory; w2, in its "
                         "exported directory; w1, in its exported directory, which is incomplete");
        cr_assert_str_eq(json_string_value(json_object_get(error, "worker")), "w3");
    }
}

Test(pending, verify_names_the_first_of_those_that_are_as_bad)
{
    version_1_active(2);
    ask(VERIFY);
    verified(W2, 2, "", EXPORTED_UNKNOWN);
    verified(W1, 2, "", EXPORTED_UNKNOWN);
    cr_assert_str_eq(answer(), "digest_mismatch");
    cr_assert_str_eq(json_string_value(json_object_get(json_object_get(body, "error"), "worker")), "w1");
}

Test(pending, verify_ends_with_its_deadline_and_with_those_who_go)
{
    version_1_active(3);
    msg_query_t q = VERIFY;
    q.deadline_ms = 1000;
    ask(q);
    uint64_t req = rig_last(W1, MSG_VERIFY)->verify.req;
    rig_pass(1100);
    cr_assert_str_eq(answer(), "deadline");
    msg_t late = {.type = MSG_VERIFIED};
    late.verified = (msg_verified_t){.token = R.tokens[W1], .req = req, .version = 1, .adapter = "policy"};
    rig_frame(W1, &late);
    ask(VERIFY);
    verified(W1, 1, "", EXPORTED_UNKNOWN);
    rig_leave(W2);
    R.tokens[W2] = 0;
    cr_assert(!answered());
    rig_worker(W3, "w3"); /* its old session will not answer */
    cr_assert_str_eq(answer(), "deadline");
}

Test(pending, verify_against_a_digest_from_outside)
{
    version_1_active(1);
    msg_query_t q = VERIFY;
    char text[HEDDLE_DIGEST_TEXT];
    digest_t d = rig_digest(5);
    digest_text(&d, text);
    q.expected = text;
    ask(q);
    verified(W1, 1, "", EXPORTED_UNKNOWN);
    cr_assert_str_eq(answer(), "digest_mismatch");
    cr_assert_eq(rig_event_count(EVENT_VERIFY_FAILED), 0, "the worker has what was published");
    q.expected = "h1:zz";
    ask(q);
    rig_error(ADMIN, "usage");
}

Test(pending, verify_of_what_nobody_holds)
{
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    ask(VERIFY);
    rig_error(ADMIN, "version_lost");
    ask((msg_query_t){.op = "verify", .name = "policy", .version = 3});
    rig_error(ADMIN, "not_found");
}

/* ---- a hold, told to who publishes ---- */

static const char *published_held(rig_publish_t o)
{
    rig_drop_letters();
    rig_publish(T, o);
    return rig_last(T, MSG_PUBLISHED)->published.held;
}

Test(pending, a_publication_to_a_held_adapter_is_told)
{
    version_1_active(1);
    cr_assert_str_empty(published_held((rig_publish_t){.digest = 2}));
    roll_out(1, 2, 2, 2);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann"});
    rig_active(W1, 1, 3, 1);
    const char *held = published_held((rig_publish_t){.digest = 3, .request_id = "again"});
    cr_assert(!strncmp(held, "policy is held at policy@1 by ann since 20", 42), "%s", held);
    cr_assert_not_null(strstr(published_held((rig_publish_t){.digest = 3, .request_id = "again"}), "by ann"),
                       "a replay");
    rig_staged(W1, 3, 3);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 3});
    rig_active(W1, 3, 4, 3);
    cr_assert_str_empty(published_held((rig_publish_t){.digest = 4}));
}

Test(pending, the_version_that_an_adapter_is_held_at_is_not_told_as_held)
{
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2, .request_id = "again"});
    roll_out(1, 2, 2, 2);
    rig_publish(T, (rig_publish_t){.digest = 3});
    roll_out(1, 3, 3, 3);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 2, .by = "ann"});
    rig_active(W1, 2, 4, 2);
    cr_assert_str_empty(published_held((rig_publish_t){.digest = 2, .request_id = "again"}), "a replay");
}

/* ---- tags ---- */

Test(pending, a_tag_of_other_bytes_is_not_found_and_nothing_is_done)
{
    static const char *const OPS[] = {"versions", "wait", "verify", "activate"};
    version_1_active(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    uint64_t decision = rig_adapter()->decision;
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++) {
        ask((msg_query_t){.op = OPS[i], .name = "policy", .version = 1, .digest_head = "3f9a1c20d4e1"});
        const msg_error_t *e = rig_error(ADMIN, "not_found");
        cr_assert_str_eq(e->expected, "policy@1:3f9a1c20d4e1");
        cr_assert(!strncmp(e->found, "policy@1:01", 11) && e->version == 1, "%s", e->found);
        cr_assert(!rig_has(W1, MSG_COMMIT) && !rig_has(W1, MSG_VERIFY), "%s", OPS[i]);
    }
    cr_assert(rig_adapter()->active == 2 && rig_adapter()->decision == decision);
    cr_assert_eq(R.b->pending.count, 0);
}

Test(pending, the_tag_of_a_version_is_that_version)
{
    digest_t d = rig_digest(1);
    char head[DIGEST_HEAD + 1];
    digest_head(&d, head);
    version_1_active(1);
    msg_query_t q = wait_for(1);
    q.digest_head = head;
    ask(q);
    cr_assert_str_eq(answer(), "");
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .digest_head = head});
    cr_assert_str_eq(answer(), "");
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 7, .digest_head = head});
    cr_assert_not_null(strstr(rig_error(ADMIN, "not_found")->message, "policy@7 was never published"));
}

/* ---- events ---- */

Test(pending, events_wait_for_the_first_that_matches)
{
    ask((msg_query_t){.op = "events", .wait_ms = 5000, .name = "policy", .after = R.b->events.last_seq + 1});
    cr_assert(!answered());
    workers(1);
    cr_assert(!answered(), "not of this adapter");
    rig_open(T, "policy", "trainer", 0, false);
    cr_assert(answered());
    cr_assert_str_eq(answer(), "");
    cr_assert_eq(json_array_size(json_object_get(body, "events")), 1);
}

/* A follower prints the rows as they come: their times rise, as their numbers do. */
Test(pending, a_gap_is_as_old_as_the_event_after_it)
{
    rig_pass(3000);
    ask((msg_query_t){.op = "events", .epoch = 99, .after = 1});
    cr_assert_str_eq(answer(), "");
    const json_t *list = json_object_get(body, "events");
    cr_assert_str_eq(json_string_value(json_object_get(json_array_get(list, 0), "type")), "gap");
    cr_assert(json_equal(json_object_get(json_array_get(list, 0), "at"),
                         json_object_get(json_array_get(list, 1), "at")));
}

Test(pending, events_end_with_nothing_when_nothing_comes)
{
    ask((msg_query_t){.op = "events", .wait_ms = 1000, .worker = "w9"});
    rig_pass(1100);
    cr_assert_str_eq(answer(), "");
    cr_assert_eq(json_array_size(json_object_get(body, "events")), 0);
    ask((msg_query_t){.op = "events", .wait_ms = 1000});
    cr_assert(answered(), "there are some");
    ask((msg_query_t){.op = "events", .worker = "w9"});
    cr_assert(answered(), "without wait_ms at once");
}

Test(pending, events_from_a_number_that_is_to_come)
{
    msg_query_t q = {.op = "events", .after = R.b->events.last_seq + 3};
    ask(q);
    cr_assert_str_eq(answer(), "");
    cr_assert_eq(json_array_size(json_object_get(body, "events")), 0, "nothing old is said again");
    q.wait_ms = 5000;
    ask(q);
    rig_worker(20, "x1");
    rig_worker(21, "x2");
    cr_assert(!answered(), "two more came, and the third is asked for");
    rig_worker(22, "x3");
    cr_assert_str_eq(answer(), "");
    const json_t *first = json_array_get(json_object_get(body, "events"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(first, "worker")), "x3");
}

Test(pending, events_of_another_epoch_are_a_gap_at_once)
{
    ask((msg_query_t){.op = "events", .wait_ms = 5000, .epoch = 77, .after = 3, .worker = "w9"});
    cr_assert_str_eq(answer(), "");
    const json_t *first = json_array_get(json_object_get(body, "events"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(first, "type")), "gap");
    cr_assert_str_eq(json_string_value(json_object_get(first, "message")),
                     "the broker was started again: the events of epoch 77 from 3 on are gone");
}

/* A registry that was restored or made anew comes to the same epochs. */
Test(pending, events_of_another_registry_are_a_gap_at_once)
{
    const events_t *e = &R.b->events;
    msg_query_t q = {.op = "events", .wait_ms = 1000, .epoch = e->epoch, .after = e->last_seq + 2};
    ask(q);
    cr_assert_str_eq(answer(), "");
    const json_t *first = json_array_get(json_object_get(body, "events"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(first, "type")), "gap");
    cr_assert(strstr(json_string_value(json_object_get(first, "message")), "another registry"));
    q.after = e->last_seq + 1;
    ask(q);
    cr_assert(!answered(), "the next one is waited for");
    rig_pass(1100);
    cr_assert_str_eq(answer(), "");
}

/* ---- bounds ---- */

Test(pending, questions_are_bounded)
{
    version_1_active(1);
    for (unsigned i = 0; i <= PENDING_PER_PEER; i++)
        rig_query(ADMIN, (msg_query_t){.op = "events", .wait_ms = 60000, .name = "nobody"});
    cr_assert(rig_error(ADMIN, "limit")->retriable);
    cr_assert_eq(R.b->pending.count, PENDING_PER_PEER);
    rig_query(ADMIN, WAIT);
    rig_error(ADMIN, "limit");
    rig_query(ADMIN, VERIFY);
    rig_error(ADMIN, "limit");
    for (uint64_t peer = 20; R.b->pending.count < LIMIT_PENDING_QUERIES; peer++) {
        rig_hello(peer, ROLE_ADMIN);
        for (unsigned i = 0; i < PENDING_PER_PEER; i++)
            rig_query(peer, (msg_query_t){.op = "events", .wait_ms = 60000, .name = "nobody"});
    }
    rig_hello(60, ROLE_ADMIN);
    rig_query(60, (msg_query_t){.op = "events", .wait_ms = 60000, .name = "nobody"});
    rig_error(60, "limit");
    R.is_quiet[W1] = true;
    rig_pass(61000);
    cr_assert_eq(R.b->pending.count, 0);
}

static const msg_query_t LONG = {.op = "events", .wait_ms = 4000000000, .name = "nobody"};

/* 16 connections, 20 and on: every place is taken. */
static void fill_places(void)
{
    for (uint64_t peer = 20; R.b->pending.count < LIMIT_PENDING_QUERIES; peer++) {
        rig_hello(peer, ROLE_ADMIN);
        for (unsigned i = 0; i < PENDING_PER_PEER; i++) rig_query(peer, LONG);
    }
}

Test(pending, places_of_connections_that_ended_are_given_to_others)
{
    fill_places();
    rig_query(ADMIN, LONG);
    cr_assert(rig_error(ADMIN, "limit")->retriable); /* everybody is still there */
    R.is_gone[20] = R.is_gone[33] = true;
    uint64_t pings = R.b->sent[MSG_PING];
    rig_query(ADMIN, WAIT);
    rig_error(ADMIN, "limit");
    cr_assert_eq(R.b->sent[MSG_PING], pings); /* they were asked within the last second */
    rig_pass(1000);
    rig_query(ADMIN, LONG);
    cr_assert_eq(R.b->pending.count, LIMIT_PENDING_QUERIES - 2 * PENDING_PER_PEER + 1);
    cr_assert_eq(R.b->sent[MSG_PING], pings + 16);
    cr_assert(!pending_has_peer(&R.b->pending, 20) && pending_has_peer(&R.b->pending, 21));
    cr_assert(!pending_has_peer(&R.b->pending, 33) && pending_has_peer(&R.b->pending, 35));
}

Test(pending, pages_and_unknown_questions)
{
    ask((msg_query_t){.op = "adapters"});
    cr_assert_str_eq(answer(), "");
    ask((msg_query_t){.op = "dance"});
    cr_assert_str_eq(rig_error(ADMIN, "usage")->expected,
                     "status, brokers, adapters, versions, workers, events, wait, activate or verify");
    ask((msg_query_t){.op = "versions", .name = "policy"});
    rig_error(ADMIN, "not_found");
}
