/* SPDX-License-Identifier: Apache-2.0 */
/* The table of client/session.h, cell by cell, under a virtual clock. */
#include "client/session.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#define MS 1000ull
#define SECOND 1000000ull
#define LEASE_MS 4000u
enum { TOKEN = 700 };

static session_t s;
static uint64_t now;

/* The lease of the current token. */
static bool is_live(uint64_t at_us) { return at_us < s.lease_end_us; }

static void start_as(role_t role)
{
    now = 50 * SECOND;
    session_opts_t opts = {.role = role, .life = {{1, 2}}, .host = "host-1", .pid = 42, .seed = 9};
    session_init(&s, &opts);
}
static void start(void) { start_as(ROLE_WORKER); }

static unsigned step(session_event_kind_t kind)
{
    return session_step(&s, &(session_event_t){kind, NULL}, now);
}
static unsigned frame(const msg_t *m) { return session_step(&s, &(session_event_t){SE_FRAME, m}, now); }

static unsigned hello_ok(uint64_t wire)
{
    msg_t m = {.type = MSG_HELLO_OK,
               .hello_ok = {.wire = wire, .epoch = 3, .lease_ms = LEASE_MS, .keep = 2, .cluster = "lab"}};
    unsigned out = frame(&m);
    /* It names no brokers, and that replaces what an earlier one named. */
    cr_assert_eq((out & SO_TOLD) != 0, (out & (SO_JOIN | SO_JOINED)) != 0);
    return out & ~(unsigned)SO_TOLD;
}
static unsigned welcome(uint64_t req, uint64_t token, uint64_t lease_ms)
{
    msg_t m = {.type = MSG_WELCOME,
               .welcome = {.req = req, .token = token, .epoch = 3, .lease_ms = lease_ms}};
    return frame(&m);
}
static unsigned refusal(msg_type_t of, uint64_t req, bool retriable, uint64_t retry_ms)
{
    msg_t m = {.type = MSG_ERROR,
               .error = {.of = of,
                         .req = req,
                         .retriable = retriable,
                         .retry_ms = retry_ms,
                         .code = "worker_alive"}};
    return frame(&m);
}
static unsigned token_error(uint64_t token, uint64_t version, const char *code)
{
    msg_t m = {.type = MSG_ERROR,
               .error = {.token = token, .version = version, .code = code, .of = MSG_HEARTBEAT}};
    return frame(&m);
}
static unsigned heartbeat_ok(uint64_t token, uint64_t seq)
{
    msg_t m = {.type = MSG_HEARTBEAT_OK, .heartbeat_ok = {token, seq}};
    return frame(&m);
}
static unsigned bye(uint64_t token)
{
    msg_t m = {.type = MSG_BYE, .bye = {.token = token, .req = s.req}};
    return frame(&m);
}
static unsigned commit(uint64_t token)
{
    msg_t m = {.type = MSG_COMMIT,
               .commit = {.token = token, .version = 5, .decision = 1, .adapter = "policy"}};
    return frame(&m);
}

static void to_greeting(void)
{
    start();
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
}
static void to_joining(void)
{
    to_greeting();
    cr_assert_eq(hello_ok(1), SO_JOIN);
}
static void to_ready(void)
{
    to_joining();
    cr_assert_eq(welcome(s.req, TOKEN, LEASE_MS), SO_JOINED);
}
static void to_refused(bool retriable)
{
    to_joining();
    cr_assert_eq(refusal(MSG_JOIN, s.req, retriable, 0), SO_REFUSED);
    cr_assert_eq(s.state, SESSION_REFUSED);
}
static void to_leaving(void)
{
    to_ready();
    cr_assert_eq(step(SE_LEAVE), SO_LEAVE);
}

/* To just before, then to the moment itself: `bits` come then and not earlier. */
static void comes_at(uint64_t at, unsigned bits)
{
    now = at - 1;
    cr_assert_eq(step(SE_TICK), 0);
    now = at;
    cr_assert_eq(step(SE_TICK), bits);
}
static void is_jittered(uint64_t at, uint64_t around_us)
{
    cr_assert(at >= now + around_us - around_us / 4 && at <= now + around_us + around_us / 4);
}

/* -- DOWN ------------------------------------------------------------------------------------- */

Test(session, down_waits_for_the_line)
{
    start();
    cr_assert_eq(session_deadline(&s), CLOCK_NEVER);
    cr_assert_eq(step(SE_TICK), 0);
    cr_assert_eq(step(SE_DISCONNECTED), 0);
    cr_assert_eq(hello_ok(1), 0);
    cr_assert_eq(commit(0), 0);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    cr_assert_eq(s.state, SESSION_GREETING);
}

Test(session, another_cluster_is_noticed)
{
    msg_t hello, other = {.type = MSG_HELLO_OK,
                          .hello_ok = {.wire = 1, .epoch = 9, .lease_ms = LEASE_MS, .cluster = "garage"}};
    to_joining();
    session_hello(&s, &hello);
    cr_assert(!*hello.hello.cluster, "it never joined one");
    cr_assert_eq(welcome(s.req, TOKEN, LEASE_MS), SO_JOINED);
    step(SE_DISCONNECTED);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    session_hello(&s, &hello);
    cr_assert_str_eq(hello.hello.cluster, "lab");
    cr_assert_eq(frame(&other), SO_ELSEWHERE);
    step(SE_DISCONNECTED);
    step(SE_CONNECTED);
    cr_assert_eq(hello_ok(1), SO_JOIN, "it is back");
}

Test(session, hello_says_who_we_are)
{
    start();
    msg_t m;
    session_hello(&s, &m);
    cr_assert_eq(m.type, MSG_HELLO);
    cr_assert_eq(m.hello.role, ROLE_WORKER);
    cr_assert_eq(m.hello.wire_min, WIRE_VERSION_MIN);
    cr_assert_eq(m.hello.wire_max, WIRE_VERSION_MAX);
    cr_assert_eq(m.hello.pid, 42);
    cr_assert_eq(m.hello.life.b[1], 2);
    cr_assert_str_eq(m.hello.host, "host-1");
}

/* -- GREETING --------------------------------------------------------------------------------- */

Test(session, hello_ok_leads_to_join)
{
    to_greeting();
    cr_assert_eq(hello_ok(1), SO_JOIN);
    cr_assert_eq(s.state, SESSION_JOINING);
    cr_assert_eq(s.req, 1);
    cr_assert_eq(s.keep, 2);
    cr_assert_eq(s.wire, 1);
    cr_assert_eq(s.epoch, 0, "JOIN names the epoch of the last WELCOME");
    cr_assert_str_eq(s.cluster, "lab");
}

Test(session, hello_ok_of_a_wire_that_we_do_not_speak_is_no_answer)
{
    to_greeting();
    cr_assert_eq(hello_ok(0), 0);
    cr_assert_eq(hello_ok(WIRE_VERSION_MAX + 1), 0);
    cr_assert_eq(s.state, SESSION_GREETING);
}

Test(session, hello_may_be_refused)
{
    to_greeting();
    cr_assert_eq(refusal(MSG_JOIN, 0, true, 0), 0, "not of this HELLO");
    cr_assert_eq(refusal(MSG_HELLO, 0, true, 3000), SO_REFUSED);
    cr_assert_eq(s.state, SESSION_REFUSED);
    is_jittered(session_deadline(&s), 3 * SECOND);
    comes_at(session_deadline(&s), SO_HELLO);
}

static unsigned standby(const char *leader)
{
    msg_t m = {.type = MSG_ERROR,
               .error = {.of = MSG_HELLO,
                         .retriable = true,
                         .retry_ms = 300,
                         .code = "unavailable",
                         .leader = leader}};
    return frame(&m);
}

Test(session, a_standby_says_where_the_leader_is)
{
    to_greeting();
    cr_assert_eq(standby("tcp://other:7700"), SO_REFUSED | SO_REDIAL);
    cr_assert_str_eq(s.leader, "tcp://other:7700");
    cr_assert_eq(s.state, SESSION_REFUSED);
    cr_assert_eq(step(SE_DISCONNECTED), 0);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    cr_assert_eq(hello_ok(1), SO_JOIN);
}

/* The wire does not go there: the session asks the standby again, which may lead by then. */
Test(session, a_standby_is_asked_again)
{
    to_greeting();
    cr_assert_eq(standby("tcp://other:7700"), SO_REFUSED | SO_REDIAL);
    is_jittered(session_deadline(&s), 300 * MS);
    comes_at(session_deadline(&s), SO_HELLO);
    cr_assert_str_eq(s.leader, "", "a later redial is to the next endpoint");
    cr_assert_eq(standby(""), SO_REFUSED, "none leads");
    comes_at(session_deadline(&s), SO_HELLO);
    char longer[300];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    cr_assert_eq(standby(longer), SO_REFUSED);
    cr_assert_str_eq(s.leader, "");
    comes_at(session_deadline(&s), SO_HELLO);
    cr_assert_eq(hello_ok(1), SO_JOIN);
}

static void follow(const char *leader)
{
    cr_assert_eq(standby(leader), SO_REFUSED | SO_REDIAL);
    cr_assert_eq(step(SE_DISCONNECTED), 0);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
}

Test(session, brokers_that_name_each_other_in_a_circle_are_not_followed_without_a_pause)
{
    to_greeting();
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < SESSION_FOLLOWS; i++) follow("tcp://other:7700");
        cr_assert_eq(standby("tcp://other:7700"), SO_REFUSED);
        cr_assert_eq(step(SE_TICK), 0);
        cr_assert_geq(session_deadline(&s), now + 100 * MS);
        now = session_deadline(&s);
        cr_assert_eq(step(SE_TICK), SO_HELLO);
    }
    follow("tcp://other:7700");
    cr_assert_eq(hello_ok(1), SO_JOIN);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    for (unsigned i = 0; i < SESSION_FOLLOWS; i++) follow("tcp://other:7700");
}

/* ERROR to the question of an admin, by a broker that led until now. */
static unsigned send_question_on(const char *leader)
{
    msg_t m = {.type = MSG_ERROR,
               .error = {.of = MSG_QUERY,
                         .req = 1,
                         .retriable = true,
                         .retry_ms = 300,
                         .code = "unavailable",
                         .leader = leader,
                         .leader_key = "its key"}};
    return frame(&m);
}

static void to_admin(void)
{
    start_as(ROLE_ADMIN);
    step(SE_CONNECTED);
    cr_assert_eq(hello_ok(1), SO_JOINED);
}

Test(session, a_question_is_taken_to_the_broker_that_leads_now)
{
    to_admin();
    cr_assert_eq(send_question_on(""), SO_DELIVER, "it is the answer");
    cr_assert_eq(s.state, SESSION_READY);
    cr_assert_eq(send_question_on("tcp://other:7700"), SO_REFUSED | SO_REDIAL);
    cr_assert_str_eq(s.leader, "tcp://other:7700");
    cr_assert_str_eq(s.leader_key, "its key");
    cr_assert_eq(step(SE_DISCONNECTED), 0);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    cr_assert_eq(hello_ok(1), SO_JOINED);
}

/* The wire does not go there: the same broker is asked again, after a pause. */
Test(session, a_question_that_goes_nowhere_is_asked_again)
{
    to_admin();
    cr_assert_eq(send_question_on("tcp://other:7700"), SO_REFUSED | SO_REDIAL);
    is_jittered(session_deadline(&s), 300 * MS);
    comes_at(session_deadline(&s), SO_HELLO);
    cr_assert_eq(hello_ok(1), SO_JOINED);
}

Test(session, brokers_that_send_a_question_in_a_circle_are_not_followed_without_a_pause)
{
    to_admin();
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < SESSION_FOLLOWS; i++) {
            cr_assert_eq(send_question_on("tcp://other:7700"), SO_REFUSED | SO_REDIAL);
            cr_assert_eq(step(SE_DISCONNECTED), 0);
            cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
            cr_assert_eq(hello_ok(1), SO_JOINED);
        }
        cr_assert_eq(send_question_on("tcp://other:7700"), SO_REFUSED);
        comes_at(session_deadline(&s), SO_HELLO);
        cr_assert_eq(hello_ok(1), SO_JOINED);
    }
    cr_assert_eq(send_question_on("tcp://other:7700"), SO_REFUSED | SO_REDIAL);
    step(SE_DISCONNECTED);
    step(SE_CONNECTED);
    hello_ok(1);
    msg_t answer = {.type = MSG_REPORT, .report = {.req = 1}};
    cr_assert_eq(frame(&answer), SO_DELIVER);
    cr_assert_eq(s.follow_count, 0, "an answer ends the circle");
}

/* A publisher's session says where it goes. */
Test(session, a_publisher_takes_no_question_elsewhere)
{
    start_as(ROLE_PUBLISHER);
    step(SE_CONNECTED);
    hello_ok(1);
    cr_assert_eq(welcome(s.req, TOKEN, LEASE_MS), SO_JOINED);
    cr_assert_eq(send_question_on("tcp://other:7700"), SO_DELIVER);
    cr_assert_eq(s.state, SESSION_READY);
}

/* It may have lost its etcd.  A takeover is over before. */
Test(session, a_standby_that_names_no_leader_for_long_is_left_for_the_next_broker)
{
    to_greeting();
    for (int round = 0; round < 2; round++) {
        uint64_t began_us = now;
        unsigned out;
        while ((out = standby("")) == SO_REFUSED) {
            cr_assert_lt(now, began_us + SESSION_UNLED_US);
            now = session_deadline(&s);
            cr_assert_eq(step(SE_TICK), SO_HELLO);
        }
        cr_assert_eq(out, SO_REFUSED | SO_REDIAL);
        cr_assert_geq(now, began_us + SESSION_UNLED_US);
        cr_assert_str_eq(s.leader, "");
        cr_assert_eq(step(SE_DISCONNECTED), 0);
        now += SECOND;
        cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    }
    cr_assert_eq(hello_ok(1), SO_JOIN);
}

/* No other broker can help there. */
Test(session, one_that_refuses_a_client_for_good_is_not_left)
{
    to_greeting();
    cr_assert_eq(refusal(MSG_HELLO, 0, false, 0), SO_REFUSED);
    now += SESSION_UNLED_US;
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    cr_assert_eq(refusal(MSG_HELLO, 0, false, 0), SO_REFUSED);
    cr_assert(session_is_barred(&s));
}

Test(session, a_standby_says_which_key_the_leader_has)
{
    to_greeting();
    msg_t m = {.type = MSG_ERROR,
               .error = {.of = MSG_HELLO,
                         .code = "unavailable",
                         .retriable = true,
                         .leader = "tcp://other:7700",
                         .leader_key = "its key"}};
    cr_assert_eq(frame(&m), SO_REFUSED | SO_REDIAL);
    cr_assert_str_eq(s.leader_key, "its key");
    comes_at(session_deadline(&s), SO_HELLO);
    cr_assert_str_eq(s.leader_key, "");
    m.error.leader_key = "01234567890123456789012345678901234567890";
    cr_assert_eq(frame(&m), SO_REFUSED | SO_REDIAL);
    cr_assert_str_eq(s.leader_key, "", "it would be cut");
}

Test(session, the_brokers_are_told_by_the_cluster_that_was_joined_alone)
{
    msg_broker_t brokers[] = {{"tcp://a:1", ""}, {"tcp://b:1", "key"}};
    msg_t m = {
        .type = MSG_HELLO_OK,
        .hello_ok =
            {.wire = 1, .epoch = 3, .lease_ms = 1000, .cluster = "c", .brokers = brokers, .broker_count = 2}};
    start_as(ROLE_ADMIN);
    step(SE_CONNECTED);
    cr_assert_eq(frame(&m), SO_JOINED | SO_TOLD);
    to_greeting();
    cr_assert_eq(frame(&m), SO_JOIN | SO_TOLD);
    memcpy(s.joined, "other", 6);
    s.state = SESSION_GREETING;
    cr_assert_eq(frame(&m), SO_ELSEWHERE);
    to_ready();
    step(SE_TICK);
    now = session_deadline(&s);
    cr_assert_eq(step(SE_TICK), SO_HEARTBEAT);
    msg_t beat = {
        .type = MSG_HEARTBEAT_OK,
        .heartbeat_ok = {.token = s.token, .seq = s.heartbeat_seq, .brokers = brokers, .broker_count = 2}};
    cr_assert_eq(frame(&beat), SO_TOLD);
    beat.heartbeat_ok.token++;
    cr_assert_eq(frame(&beat), 0, "it is of another session");
}

Test(session, an_admin_is_ready_after_hello_ok)
{
    start_as(ROLE_ADMIN);
    step(SE_CONNECTED);
    cr_assert_eq(hello_ok(1), SO_JOINED);
    cr_assert_eq(s.state, SESSION_READY);
    cr_assert_eq(s.epoch, 3);
    cr_assert_eq(session_deadline(&s), CLOCK_NEVER);
    now += 3600 * SECOND;
    cr_assert_eq(step(SE_TICK), 0);
    msg_t m = {.type = MSG_REPORT};
    cr_assert_eq(frame(&m), SO_DELIVER);
    cr_assert_not(is_live(now));
    cr_assert_eq(step(SE_DISCONNECTED), 0);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    cr_assert_eq(hello_ok(1), SO_JOINED);
    cr_assert_eq(step(SE_LEAVE), SO_LEFT);
}

Test(session, three_unanswered_hellos_lead_to_a_redial)
{
    to_greeting();
    for (unsigned i = 1; i < SESSION_HELLOS; i++) {
        is_jittered(session_deadline(&s), SESSION_HELLO_US);
        comes_at(session_deadline(&s), SO_HELLO);
    }
    comes_at(session_deadline(&s), SO_REDIAL);
    cr_assert_eq(s.state, SESSION_DOWN);
    cr_assert_eq(step(SE_DISCONNECTED), 0); /* what the wire says of it */
    cr_assert_eq(session_deadline(&s), CLOCK_NEVER);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    comes_at(session_deadline(&s), SO_HELLO);
}

static void use_up_hellos(void)
{
    for (unsigned i = 1; i < SESSION_HELLOS; i++) comes_at(session_deadline(&s), SO_HELLO);
    comes_at(session_deadline(&s), SO_REDIAL);
    is_jittered(session_deadline(&s), SESSION_RETRY_US);
}

/* No descriptor is left for another connection: the old one stays up, and the wire has nothing to tell. */
Test(session, a_redial_that_changes_nothing_is_tried_again)
{
    to_greeting();
    for (int i = 0; i < 5; i++) {
        use_up_hellos();
        comes_at(session_deadline(&s), SO_HELLO);
    }
    cr_assert_eq(hello_ok(1), SO_JOIN);
    cr_assert_eq(welcome(s.req, TOKEN, LEASE_MS), SO_JOINED);
    comes_at(session_deadline(&s), SO_HEARTBEAT);
}

Test(session, a_line_event_takes_the_place_of_the_retry)
{
    to_greeting();
    use_up_hellos();
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    is_jittered(session_deadline(&s), SESSION_HELLO_US);
    to_greeting();
    use_up_hellos();
    cr_assert_eq(step(SE_LEAVE), SO_LEFT);
    cr_assert_eq(session_deadline(&s), CLOCK_NEVER);
}

Test(session, waits_differ_between_seeds_and_stay_in_bounds)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (uint64_t seed = 0; seed < 500; seed++) {
        session_opts_t opts = {.role = ROLE_WORKER, .host = "h", .seed = seed};
        session_init(&s, &opts);
        now = 0;
        step(SE_CONNECTED);
        uint64_t us = session_deadline(&s);
        is_jittered(us, SESSION_HELLO_US);
        if (us < least) least = us;
        if (us > most) most = us;
    }
    cr_assert_lt(least, SESSION_HELLO_US * 8 / 10);
    cr_assert_gt(most, SESSION_HELLO_US * 12 / 10);
}

/* -- JOINING ---------------------------------------------------------------------------------- */

Test(session, welcome_makes_ready_and_the_lease_counts_from_when_join_was_sent)
{
    to_joining();
    uint64_t sent = now;
    now += 700 * MS;
    cr_assert_eq(welcome(s.req, TOKEN, LEASE_MS), SO_JOINED);
    cr_assert_eq(s.state, SESSION_READY);
    cr_assert_eq(s.token, TOKEN);
    cr_assert_eq(s.epoch, 3);
    cr_assert_eq(s.lease_end_us, sent + LEASE_MS * MS);
    cr_assert(is_live(s.lease_end_us - 1));
    cr_assert_not(is_live(s.lease_end_us));
}

Test(session, welcome_of_another_request_or_without_a_lease_is_ignored)
{
    to_joining();
    cr_assert_eq(welcome(s.req - 1, TOKEN, LEASE_MS), 0);
    cr_assert_eq(welcome(s.req + 1, TOKEN, LEASE_MS), 0);
    cr_assert_eq(welcome(s.req, 0, LEASE_MS), 0);
    cr_assert_eq(welcome(s.req, TOKEN, 0), 0);
    cr_assert_eq(commit(TOKEN), 0);
    cr_assert_eq(s.state, SESSION_JOINING);
    cr_assert_eq(welcome(s.req, TOKEN, UINT64_MAX), SO_JOINED, "a lease without end is cut, not wrapped");
    cr_assert_gt(s.lease_end_us, now);
}

Test(session, a_join_that_is_not_answered_begins_again_and_its_late_welcome_is_void)
{
    to_joining();
    uint64_t first = s.req;
    comes_at(session_deadline(&s), SO_HELLO);
    cr_assert_eq(welcome(first, TOKEN, LEASE_MS), 0);
    cr_assert_eq(hello_ok(1), SO_JOIN);
    cr_assert_neq(s.req, first);
    cr_assert_eq(welcome(first, TOKEN, LEASE_MS), 0);
    cr_assert_eq(welcome(s.req, TOKEN + 1, LEASE_MS), SO_JOINED);
    cr_assert_eq(s.token, TOKEN + 1);
}

Test(session, hellos_that_are_answered_and_joins_that_are_not_lead_to_a_redial)
{
    to_joining();
    for (unsigned i = 1; i < SESSION_HELLOS; i++) {
        comes_at(session_deadline(&s), SO_HELLO);
        hello_ok(1);
    }
    comes_at(session_deadline(&s), SO_REDIAL);
}

Test(session, join_may_be_refused)
{
    to_joining();
    cr_assert_eq(refusal(MSG_JOIN, s.req + 1, true, 0), 0);
    cr_assert_eq(refusal(MSG_PUBLISH, s.req, true, 0), 0);
    cr_assert_eq(refusal(MSG_OPEN, s.req, true, 0), SO_REFUSED);
    is_jittered(session_deadline(&s), SESSION_RETRY_US);
    to_joining();
    cr_assert_eq(refusal(MSG_JOIN, s.req, true, UINT64_MAX), SO_REFUSED);
    cr_assert_gt(session_deadline(&s), now);
    cr_assert_neq(session_deadline(&s), CLOCK_NEVER);
}

/* -- REFUSED, and the line under the three ---------------------------------------------------- */

Test(session, refused_is_tried_again_when_that_can_help)
{
    to_refused(true);
    cr_assert_eq(welcome(s.req, TOKEN, LEASE_MS), 0);
    cr_assert_eq(commit(0), 0);
    comes_at(session_deadline(&s), SO_HELLO);
    to_refused(false);
    cr_assert_eq(session_deadline(&s), CLOCK_NEVER);
    now += 3600 * SECOND;
    cr_assert_eq(step(SE_TICK), 0);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO, "another broker may think otherwise");
}

/* What it serves it goes on serving, and the broker may be mended: started with fewer slots to ask for, say. */
Test(session, a_worker_that_was_in_is_barred_by_nothing)
{
    to_refused(false);
    cr_assert(session_is_barred(&s));
    for (int of_hello = 0; of_hello < 2; of_hello++) {
        to_ready();
        cr_assert_eq(step(SE_DISCONNECTED), 0);
        cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
        if (!of_hello) cr_assert_eq(hello_ok(1), SO_JOIN);
        cr_assert_eq(refusal(of_hello ? MSG_HELLO : MSG_JOIN, of_hello ? 0 : s.req, false, 0), SO_REFUSED);
        cr_assert(!session_is_barred(&s));
        uint64_t again = session_deadline(&s) < s.next_us ? s.next_us : session_deadline(&s);
        is_jittered(again, SESSION_RETRY_US);
        comes_at(again, SO_HELLO);
    }
    start_as(ROLE_PUBLISHER); /* another may have its place: its application is told, and decides */
    step(SE_CONNECTED);
    hello_ok(1);
    cr_assert_eq(welcome(s.req, TOKEN, LEASE_MS), SO_JOINED);
    step(SE_DISCONNECTED);
    step(SE_CONNECTED);
    hello_ok(1);
    cr_assert_eq(refusal(MSG_OPEN, s.req, false, 0), SO_REFUSED);
    cr_assert(session_is_barred(&s));
}

Test(session, the_line_goes_down_and_up_under_greeting_joining_refused)
{
    for (int state = 0; state < 3; state++) {
        if (state == 0) to_greeting();
        if (state == 1) to_joining();
        if (state == 2) to_refused(true);
        cr_assert_eq(step(SE_DISCONNECTED), 0);
        cr_assert_eq(s.state, SESSION_DOWN);
        cr_assert_eq(session_deadline(&s), CLOCK_NEVER);
        cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
        cr_assert_eq(step(SE_CONNECTED), SO_HELLO, "a second connection is greeted too");
        cr_assert_eq(s.hello_count, 1);
    }
}

/* -- READY ------------------------------------------------------------------------------------ */

Test(session, heartbeats_every_quarter_of_a_lease_hold_the_lease)
{
    to_ready();
    for (uint64_t seq = 1; seq <= 100; seq++) {
        comes_at(session_deadline(&s), SO_HEARTBEAT);
        cr_assert_eq(s.heartbeat_seq, seq);
        uint64_t sent = now;
        now += 300 * MS;
        cr_assert_eq(heartbeat_ok(TOKEN, seq), 0);
        cr_assert_eq(s.lease_end_us, sent + LEASE_MS * MS);
        cr_assert_eq(session_deadline(&s), sent + LEASE_MS * MS / 4);
    }
}

Test(session, only_answers_to_heartbeats_of_this_token_hold_the_lease)
{
    to_ready();
    uint64_t end = s.lease_end_us;
    now += SECOND;
    cr_assert_eq(step(SE_TICK), SO_HEARTBEAT);
    heartbeat_ok(TOKEN - 1, 1);
    heartbeat_ok(TOKEN, 0);
    heartbeat_ok(TOKEN, 2);
    heartbeat_ok(TOKEN, 1 + SESSION_BEATS);
    cr_assert_eq(s.lease_end_us, end);
    heartbeat_ok(TOKEN, 1);
    cr_assert_eq(s.lease_end_us, now + LEASE_MS * MS);
}

Test(session, the_broker_says_how_far_a_drain_is)
{
    to_ready();
    comes_at(session_deadline(&s), SO_HEARTBEAT);
    msg_t m = {.type = MSG_HEARTBEAT_OK, .heartbeat_ok = {TOKEN - 1, 1, DRAIN_DONE}};
    session_step(&s, &(session_event_t){SE_FRAME, &m}, now);
    cr_assert_eq(s.drain, DRAIN_NONE, "of another session");
    m.heartbeat_ok = (msg_heartbeat_ok_t){TOKEN, 1, DRAIN_BEGUN};
    session_step(&s, &(session_event_t){SE_FRAME, &m}, now);
    cr_assert_eq(s.drain, DRAIN_BEGUN);
}

Test(session, a_beat_may_be_due_at_once)
{
    to_ready();
    session_beat_soon(&s, now);
    cr_assert_eq(session_deadline(&s), now);
    cr_assert_eq(step(SE_TICK), SO_HEARTBEAT);
    cr_assert_eq(session_deadline(&s), now + LEASE_MS * MS / 4);
}

Test(session, answers_out_of_order_never_shorten_the_lease)
{
    to_ready();
    now += SECOND;
    step(SE_TICK);
    now += SECOND;
    step(SE_TICK);
    heartbeat_ok(TOKEN, 2);
    uint64_t end = s.lease_end_us;
    heartbeat_ok(TOKEN, 1);
    cr_assert_eq(s.lease_end_us, end);
}

Test(session, a_tiny_lease_makes_no_storm)
{
    to_joining();
    cr_assert_eq(welcome(s.req, TOKEN, 1), SO_JOINED);
    cr_assert_geq(s.next_us, now + 10 * MS);
}

Test(session, a_lease_that_is_over_lapses_and_greets)
{
    to_ready();
    while (session_deadline(&s) < s.lease_end_us) {
        now = session_deadline(&s);
        cr_assert_eq(step(SE_TICK), SO_HEARTBEAT);
    }
    comes_at(s.lease_end_us, SO_LAPSED | SO_HELLO);
    cr_assert_eq(s.state, SESSION_GREETING);
    cr_assert_eq(s.token, TOKEN, "for prev_token");
    cr_assert_not(is_live(now));
    cr_assert_eq(hello_ok(1), SO_JOIN);
    cr_assert_eq(welcome(s.req, TOKEN + 1, LEASE_MS), SO_JOINED);
    cr_assert_eq(s.fenced_count, 0, "it is the broker that stood still, and that ended no session");
}

static void joins_again(uint64_t token)
{
    step(SE_CONNECTED);
    cr_assert_eq(hello_ok(1), SO_JOIN);
    cr_assert_eq(welcome(s.req, token, LEASE_MS), SO_JOINED);
}

/* Others may have it under the last token of each: newer ones come first. */
Test(session, the_last_token_of_each_start_of_the_broker_is_kept)
{
    to_ready();
    joins_again(TOKEN + 1);
    cr_assert_eq(s.former_count, 0, "of the same start");
    for (uint64_t i = 1; i <= LIMIT_FORMER_TOKENS + 2; i++) {
        joins_again(TOKEN + (i << 32) + 8);
        joins_again(TOKEN + (i << 32) + 9);
        cr_assert_eq(s.former_count, i < LIMIT_FORMER_TOKENS ? i : LIMIT_FORMER_TOKENS);
        cr_assert_eq(s.former_tokens[0], i == 1 ? TOKEN + 1 : TOKEN + ((i - 1) << 32) + 9);
    }
    cr_assert_eq(s.former_tokens[LIMIT_FORMER_TOKENS - 1], TOKEN + (2ull << 32) + 9);
}

Test(session, a_process_that_stood_still_past_its_lease_was_fenced)
{
    to_ready();
    now = s.lease_end_us + SECOND;
    cr_assert_eq(step(SE_TICK), SO_LAPSED | SO_HELLO);
    cr_assert_eq(hello_ok(1), SO_JOIN);
    cr_assert_eq(s.fenced_count, 0);
    cr_assert_eq(welcome(s.req, TOKEN + 1, LEASE_MS), SO_JOINED);
    cr_assert_eq(s.fenced_count, 1, "another one took its place");
}

/* The worker waits for its next try here, and sends no heartbeats. */
Test(session, a_process_that_was_refused_until_its_lease_ended_did_not_stand_still)
{
    to_ready();
    step(SE_DISCONNECTED);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    refusal(MSG_HELLO, 0, true, 20000);
    cr_assert_eq(s.state, SESSION_REFUSED);
    comes_at(s.lease_end_us, SO_LAPSED);
    cr_assert_not(s.has_lapsed, "its next try is not due yet");
}

Test(session, nor_did_one_whose_hello_was_not_answered)
{
    to_ready();
    now = s.lease_end_us - MS;
    step(SE_DISCONNECTED);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    comes_at(s.lease_end_us, SO_LAPSED);
    cr_assert_not(s.has_lapsed, "the answer is not late yet");
}

Test(session, nothing_that_was_queued_is_delivered_after_the_lease)
{
    to_ready();
    now = s.lease_end_us; /* stopped and continued: no tick in between */
    cr_assert_eq(commit(TOKEN), SO_LAPSED | SO_HELLO);
    cr_assert_eq(commit(TOKEN), 0);
    cr_assert_eq(heartbeat_ok(TOKEN, 1), 0);
    hello_ok(1);
    cr_assert_eq(commit(TOKEN), 0);
    welcome(s.req, TOKEN + 1, LEASE_MS);
    cr_assert_eq(commit(TOKEN), 0);
    cr_assert_eq(commit(TOKEN + 1), SO_DELIVER);
}

Test(session, the_line_may_be_down_for_a_lease)
{
    to_ready();
    cr_assert_eq(step(SE_DISCONNECTED), 0);
    cr_assert_eq(s.state, SESSION_READY);
    cr_assert(is_live(now));
    cr_assert_eq(session_deadline(&s), s.lease_end_us, "no heartbeat into nothing");
    now += 2 * SECOND;
    cr_assert_eq(step(SE_TICK), 0);
    comes_at(s.lease_end_us, SO_LAPSED);
    cr_assert_eq(s.state, SESSION_DOWN);
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
}

Test(session, a_new_connection_is_greeted_at_once_and_the_lease_runs_on)
{
    to_ready();
    step(SE_DISCONNECTED);
    now += SECOND;
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    cr_assert_eq(s.token, TOKEN);
    cr_assert(is_live(now));
    cr_assert_eq(commit(TOKEN), 0, "not before WELCOME");
    hello_ok(1);
    cr_assert_eq(welcome(s.req, TOKEN + 1, LEASE_MS), SO_JOINED);
    cr_assert_eq(s.fenced_count, 0);
}

Test(session, a_lease_that_ends_while_greeting_lapses_once)
{
    to_ready();
    step(SE_DISCONNECTED);
    now = s.lease_end_us - 1;
    cr_assert_eq(step(SE_CONNECTED), SO_HELLO);
    uint64_t retry = s.next_us;
    cr_assert_eq(session_deadline(&s), s.lease_end_us);
    now++;
    cr_assert_eq(step(SE_TICK), SO_LAPSED);
    cr_assert_eq(s.state, SESSION_GREETING);
    cr_assert_eq(session_deadline(&s), retry);
    comes_at(retry, SO_HELLO);
}

Test(session, a_lease_that_ends_with_the_event_is_said_with_it)
{
    to_ready();
    now = s.lease_end_us;
    cr_assert_eq(step(SE_DISCONNECTED), SO_LAPSED);
    cr_assert_eq(s.state, SESSION_DOWN);
    to_ready();
    now = s.lease_end_us;
    cr_assert_eq(step(SE_CONNECTED), SO_LAPSED | SO_HELLO);
    cr_assert_eq(s.hello_count, 1);
    to_ready();
    now = s.lease_end_us;
    cr_assert_eq(step(SE_LEAVE), SO_LAPSED | SO_LEFT);
}

Test(session, called_to_join_again_is_no_fence)
{
    to_ready();
    cr_assert_eq(token_error(TOKEN, 0, "not_found"), SO_LAPSED | SO_HELLO);
    cr_assert_eq(hello_ok(1), SO_JOIN);
    cr_assert_eq(welcome(s.req, TOKEN + 1, LEASE_MS), SO_JOINED);
    cr_assert_eq(s.fenced_count, 0);
    to_ready();
    cr_assert_eq(token_error(TOKEN, 0, "fenced"), SO_LAPSED | SO_HELLO);
    cr_assert_eq(hello_ok(1), SO_JOIN);
    cr_assert_eq(welcome(s.req, TOKEN + 1, LEASE_MS), SO_JOINED);
    cr_assert_eq(s.fenced_count, 1);
}

/* Broker restarts fence nobody, whoever notices first. */
Test(session, another_broker_is_no_fence)
{
    for (int i = 0; i < 2; i++) {
        to_ready();
        if (i) cr_assert_eq(token_error(TOKEN, 0, "fenced"), SO_LAPSED | SO_HELLO);
        else {
            now = s.lease_end_us;
            cr_assert_eq(step(SE_CONNECTED), SO_LAPSED | SO_HELLO);
        }
        cr_assert_eq(hello_ok(1), SO_JOIN);
        cr_assert_eq(welcome(s.req, TOKEN + (1ull << 32), LEASE_MS), SO_JOINED);
        cr_assert_eq(s.fenced_count, 0);
    }
}

Test(session, the_broker_may_void_the_token)
{
    static const char *const codes[] = {"fenced", "denied", "not_found"};
    for (int i = 0; i < 3; i++) {
        to_ready();
        cr_assert_eq(token_error(TOKEN, 0, codes[i]), SO_LAPSED | SO_HELLO);
        cr_assert_not(is_live(now));
    }
    to_ready();
    cr_assert_eq(token_error(TOKEN, 7, "not_found"), SO_DELIVER, "of a version");
    cr_assert_eq(token_error(TOKEN, 0, "no_space"), SO_DELIVER);
    cr_assert_eq(token_error(0, 0, "not_found"), SO_DELIVER, "of a question");
    cr_assert_eq(token_error(TOKEN - 1, 0, "fenced"), 0, "of a session that is over");
    cr_assert_eq(s.state, SESSION_READY);
}

Test(session, only_frames_of_the_token_are_delivered)
{
    to_ready();
    for (int type = 0; type < 40; type++) {
        msg_t ours = {.type = (msg_type_t)type}, theirs = ours;
        switch (type) {
        case MSG_ANNOUNCE:
            ours.announce.token = TOKEN;
            theirs.announce.token = TOKEN - 1;
            break;
        case MSG_SOURCES:
            ours.sources.token = TOKEN;
            theirs.sources.token = TOKEN - 1;
            break;
        case MSG_COMMIT:
            ours.commit.token = TOKEN;
            theirs.commit.token = TOKEN + 1;
            break;
        case MSG_ABORT: ours.abort.token = TOKEN; break;
        case MSG_RETIRE: ours.retire.token = TOKEN; break;
        case MSG_RELEASE: ours.release.token = TOKEN; break;
        case MSG_ROLLOUT: ours.rollout.token = TOKEN; break;
        case MSG_VERIFY: ours.verify.token = TOKEN; break;
        case MSG_PUBLISHED:
        case MSG_REPORT: cr_assert_eq(frame(&ours), SO_DELIVER); continue;
        default:
            if (type != MSG_ERROR) cr_assert_eq(frame(&ours), 0, "%s", msg_name(type));
            continue;
        }
        cr_assert_eq(frame(&ours), SO_DELIVER, "%s", msg_name(type));
        cr_assert_eq(frame(&theirs), 0, "%s", msg_name(type));
    }
    cr_assert_eq(s.state, SESSION_READY);
}

/* -- LEAVE ------------------------------------------------------------------------------------ */

Test(session, leave_waits_for_bye)
{
    to_leaving();
    cr_assert_eq(s.state, SESSION_LEAVING);
    cr_assert_eq(step(SE_LEAVE), 0);
    cr_assert_eq(commit(TOKEN), 0);
    cr_assert_eq(bye(TOKEN - 1), 0);
    cr_assert_eq(bye(TOKEN), SO_LEFT);
    cr_assert_eq(s.state, SESSION_LEFT);
}

Test(session, leave_does_not_wait_for_ever)
{
    to_leaving();
    cr_assert_eq(session_deadline(&s), now + SESSION_LEAVE_US);
    comes_at(now + SESSION_LEAVE_US, SO_LEFT);
    to_leaving();
    cr_assert_eq(step(SE_DISCONNECTED), SO_LEFT);
    to_leaving();
    cr_assert_eq(step(SE_CONNECTED), SO_LEFT);
    to_joining();
    welcome(s.req, TOKEN, 200);
    step(SE_LEAVE);
    comes_at(now + SESSION_LEAVE_US, SO_LEFT); /* a short lease does not lapse meanwhile */
}

Test(session, leave_in_every_other_state_is_at_once)
{
    start();
    cr_assert_eq(step(SE_LEAVE), SO_LEFT);
    to_greeting();
    cr_assert_eq(step(SE_LEAVE), SO_LEFT);
    to_joining();
    cr_assert_eq(step(SE_LEAVE), SO_LEFT);
    to_refused(true);
    cr_assert_eq(step(SE_LEAVE), SO_LEFT);
    to_ready();
    step(SE_DISCONNECTED);
    cr_assert_eq(step(SE_LEAVE), SO_LEFT);
}

Test(session, left_is_the_end)
{
    to_leaving();
    bye(TOKEN);
    cr_assert_eq(step(SE_CONNECTED), 0);
    cr_assert_eq(step(SE_DISCONNECTED), 0);
    cr_assert_eq(step(SE_LEAVE), 0);
    cr_assert_eq(hello_ok(1), 0);
    cr_assert_eq(commit(TOKEN), 0);
    now += 3600 * SECOND;
    cr_assert_eq(step(SE_TICK), 0);
    cr_assert_eq(session_deadline(&s), CLOCK_NEVER);
}
