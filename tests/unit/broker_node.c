/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions and frames: who may say what, fencing, a disk that refuses, bounds. */
#include "broker_rig.h"
#include "tests/unit/other_thread.h"

#include <signal.h>

static char logged[256];
static void keep_warning(void *self, const char *id, const char *text)
{
    (void)self;
    snprintf(logged, sizeof logged, "%s: %s", id, text);
}

TestSuite(node, .init = rig_start, .fini = rig_stop);

static void raw(uint64_t peer, const void *data, size_t bytes)
{
    broker_tick(R.b, R.now);
    broker_frame(R.b, peer, bytes_of(data, bytes), R.now);
    rig_flush();
}

/* ---- life ---- */

Test(node, options_are_checked)
{
    broker_io_t io = {0};
    broker_t *b = NULL;
    heddle_error_t e;
    broker_opts_t opts = {.keep = REGISTRY_KEEP_MAX + 1};
    cr_assert_eq(broker_new(&opts, &io, &b, &e), HEDDLE_ERR_USAGE);
    cr_assert_null(b);
    opts.keep = 2;
    cr_assert_eq(broker_new(&opts, &io, &b, &e), HEDDLE_OK);
    cr_assert_eq(b->opts.lease_ms, 4000);
    cr_assert_eq(broker_start(b, R.now), HEDDLE_ERR_INTERNAL, "no epoch was loaded");
    broker_destroy(&b);
    broker_destroy(&b);
}

Test(node, a_broker_that_takes_over_says_from_which)
{
    cr_assert_eq(rig_event_count(EVENT_LEADER_CHANGED), 0);
    R.former = "tcp://a:7700";
    rig_restart();
    cr_assert_str_eq(rig_event(EVENT_LEADER_CHANGED)->message,
                     "tcp://127.0.0.1:1 leads, in place of tcp://a:7700");
    static const char *const NONE[] = {"", "tcp://127.0.0.1:1"}; /* it was this one */
    for (int i = 0; i < 2; i++) {
        R.former = NONE[i];
        rig_restart();
        cr_assert_eq(rig_event_count(EVENT_LEADER_CHANGED), 0);
    }
}

Test(node, an_empty_registry_does_not_settle)
{
    cr_assert(R.b->rollout.is_settled);
    cr_assert_eq(rig_event_count(EVENT_BROKER_STARTED), 1);
    rig_open(T, "policy", "trainer", 0, false);
    rig_restart();
    cr_assert(!R.b->rollout.is_settled);
    rig_pass(4000);
    cr_assert(R.b->rollout.is_settled);
}

Test(node, an_idle_broker_asks_for_no_tick)
{
    cr_assert_eq(broker_flush(R.b, R.now), CLOCK_NEVER);
    workers(1);
    cr_assert_eq(broker_flush(R.b, R.now), R.now.us + 1000000);
}

/* ---- frames ---- */

Test(node, garbage_is_answered_and_counted)
{
    raw(5, "garbage", 7);
    rig_error(5, "protocol");
    raw(5, "", 0);
    broker_bad_frame(R.b, 5, "2 parts");
    cr_assert_not_null(strstr(rig_error(5, "protocol")->message, "2 parts"));
    cr_assert_eq(R.b->bad_frames, 3);
    cr_assert_eq(R.b->peer_count, 0);
}

Test(node, hello_negotiates)
{
    msg_t m = {.type = MSG_HELLO};
    m.hello = (msg_hello_t){.wire_min = WIRE_VERSION_MAX + 1,
                            .wire_max = WIRE_VERSION_MAX + 3,
                            .role = ROLE_WORKER};
    rig_frame(5, &m);
    const msg_error_t *e = rig_error(5, "wire_version");
    cr_assert_str_eq(e->found, "2 to 4");
    cr_assert_str_eq(e->hint, "upgrade the broker");
    cr_assert_eq(e->of, MSG_HELLO);
    m.hello.wire_min = m.hello.wire_max = 0;
    rig_frame(5, &m);
    cr_assert_str_eq(rig_error(5, "wire_version")->hint, "upgrade the peer");
    m.hello.wire_max = 9;
    m.hello.role = 0;
    rig_frame(5, &m);
    rig_error(5, "protocol");
    cr_assert_eq(R.b->peer_count, 0);
    m.hello.role = ROLE_ADMIN;
    rig_frame(5, &m);
    const msg_hello_ok_t *ok = &rig_last(5, MSG_HELLO_OK)->hello_ok;
    cr_assert(ok->wire == WIRE_VERSION_MAX && ok->epoch == 1 && ok->lease_ms == LEASE_MS && ok->keep == 1 &&
              ok->pid == 1);
    cr_assert_str_eq(ok->cluster, "test");
}

Test(node, nothing_before_hello)
{
    const msg_type_t TYPES[] = {MSG_JOIN,      MSG_OPEN,  MSG_QUERY, MSG_PUBLISH,
                                MSG_HEARTBEAT, MSG_LEAVE, MSG_STAGED};
    msg_subscription_t sub = {.adapter = "policy"};
    msg_part_t part = {.payload_bytes = 1, .manifest_bytes = 1};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        msg_t m = {.type = TYPES[i]};
        switch (TYPES[i]) {
        case MSG_JOIN: m.join = (msg_join_t){.name = "w1", .adapters = &sub, .adapter_count = 1}; break;
        case MSG_OPEN: m.open = (msg_open_t){.adapter = "policy", .writer = "t"}; break;
        case MSG_QUERY: m.query = (msg_query_t){.op = "status"}; break;
        case MSG_PUBLISH:
            m.publish =
                (msg_publish_t){.adapter = "policy", .request_id = "a", .parts = &part, .part_count = 1};
            break;
        case MSG_STAGED: m.staged = (msg_staged_t){.adapter = "policy", .version = 1}; break;
        default: break;
        }
        rig_frame(5, &m);
        const msg_error_t *e = rig_error(5, "protocol");
        cr_assert_eq(e->of, TYPES[i]);
        cr_assert_not_null(strstr(e->message, "before HELLO"));
        rig_drop_letters();
    }
    cr_assert_eq(R.commits, 1, "the epoch alone");
}

Test(node, what_the_broker_says_is_not_said_to_it)
{
    rig_hello(5, ROLE_WORKER);
    msg_t m = {.type = MSG_RETIRE};
    m.retire = (msg_retire_t){.token = 1, .version = 1, .adapter = "policy"};
    rig_frame(5, &m);
    cr_assert_not_null(strstr(rig_error(5, "protocol")->message, "RETIRE is not for the broker"));
    rig_drop_letters();
    msg_t ping = {.type = MSG_PING};
    rig_frame(5, &ping);
    cr_assert_eq(R.letter_count, 0);
}

Test(node, roles_are_kept)
{
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello(5, ROLE_ADMIN);
    rig_join_with(5, "w1", &sub, 1, NULL, 0);
    rig_error(5, "denied");
    rig_hello(5, ROLE_WORKER);
    msg_t m = {.type = MSG_OPEN};
    m.open = (msg_open_t){.adapter = "policy", .writer = "t"};
    rig_frame(5, &m);
    rig_error(5, "denied");
    rig_open(T, "policy", "trainer", 0, false);
    rig_staged(T, 1, 1);
    cr_assert_not_null(strstr(rig_error(T, "protocol")->message, "not for publishers"));
}

/* ---- fencing: I4, I11 ---- */

Test(node, a_stale_token_changes_nothing)
{
    workers(2);
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    uint64_t stale = R.tokens[W1];
    rig_worker(W1, "w1"); /* a new session of the same life */
    uint64_t fresh = R.tokens[W1];
    cr_assert_gt(fresh, stale);
    uint64_t seq = R.b->events.last_seq;
    for (int round = 0; round < 3; round++) {
        R.tokens[W1] = stale;
        rig_drop_letters();
        rig_staged(W1, 1, 1);
        const msg_error_t *e = rig_error(W1, "fenced");
        cr_assert_eq(e->token, stale);
        cr_assert_eq(e->of, MSG_STAGED);
        cr_assert_eq(e->version, 0, "a version would make it a word about the version");
        rig_beat(W1);
        rig_leave(W1);
        rig_nack(W1, 1, 0, "fetch", "gone");
        cr_assert_eq(rig_count(MSG_ERROR), 4);
        cr_assert_eq(R.letter_count, 4);
    }
    R.tokens[W1] = fresh;
    cr_assert_str_eq(rig_copy_state(1, "w1"), "announced");
    cr_assert(member_is_ready(membership_worker(&R.b->members, "w1")));
    cr_assert_eq(R.b->members.fenced_count, 12);
    cr_assert_eq(membership_worker(&R.b->members, "w1")->counts.fenced, 0, "no other process took the name");
    cr_assert_eq(R.b->events.last_seq, seq + 1, "events say each stale token once");
    cr_assert_eq(events_at(&R.b->events, seq + 1)->type, EVENT_WORKER_FENCED);
}

/* No more than one event a minute for one connection, whatever it sends. */
Test(node, stale_tokens_do_not_crowd_events_out)
{
    workers(1);
    uint64_t tokens[3];
    for (int i = 0; i < 3; i++) {
        tokens[i] = R.tokens[W1];
        rig_worker(W1, "w1");
    }
    uint64_t fresh = R.tokens[W1], seq = R.b->events.last_seq;
    for (int i = 0; i < 300; i++) {
        R.tokens[W1] = tokens[i % 3];
        rig_beat(W1);
    }
    cr_assert_eq(R.b->events.last_seq, seq + 1);
    R.tokens[W1] = fresh;
    rig_pass(61000);
    R.tokens[W1] = tokens[1];
    rig_beat(W1);
    cr_assert_eq(R.b->events.last_seq, seq + 2);
    const event_row_t *e = events_at(&R.b->events, seq + 2);
    cr_assert(strstr(e->message, "200 more"), "%s", e->message);
}

Test(node, a_token_that_was_never_given_is_no_event)
{
    workers(1);
    uint64_t fresh = R.tokens[W1], seq = R.b->events.last_seq;
    const uint64_t NEVER[] = {1, fresh + 1, fresh + (1ull << 32), UINT64_MAX, fresh & ~0xffffffffull};
    for (size_t i = 0; i < sizeof NEVER / sizeof *NEVER; i++) {
        R.tokens[W1] = NEVER[i];
        rig_drop_letters();
        rig_beat(W1);
        rig_error(W1, "fenced");
    }
    cr_assert_eq(R.b->events.last_seq, seq);
}

Test(node, a_token_is_good_on_its_own_connection_only)
{
    workers(2);
    R.tokens[W2] = R.tokens[W1];
    rig_beat(W2);
    rig_error(W2, "fenced");
}

Test(node, tokens_of_a_former_epoch_are_stale)
{
    workers(1);
    uint64_t old = R.tokens[W1];
    rig_restart();
    rig_worker(W1, "w1");
    cr_assert_eq(R.tokens[W1] >> 32, 2);
    R.tokens[W1] = old;
    rig_beat(W1);
    rig_error(W1, "fenced");
    cr_assert_eq(membership_worker(&R.b->members, "w1")->counts.fenced, 0, "a restart fences nobody");
}

Test(node, a_lapsed_session_is_lost_and_comes_back_under_a_new_token)
{
    workers(1);
    uint64_t old = R.tokens[W1];
    R.is_quiet[W1] = true;
    rig_pass(5000);
    cr_assert_eq(membership_worker(&R.b->members, "w1")->state, MEMBER_LOST);
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 1);
    cr_assert_eq(rig_event(EVENT_WORKER_LOST)->code, HEDDLE_ERR_UNAVAILABLE);
    rig_beat(W1);
    rig_error(W1, "fenced");
    rig_worker(W1, "w1");
    cr_assert_gt(R.tokens[W1], old);
    const member_t *m = membership_worker(&R.b->members, "w1");
    cr_assert(member_is_ready(m));
    cr_assert_eq(m->counts.fenced, 1, "one session, however many messages came under its token");
}

Test(node, a_live_name_is_refused_and_an_abandoned_one_free_at_once)
{
    workers(1);
    msg_subscription_t sub = {.adapter = "policy"};
    uint64_t old = R.tokens[W1];
    rig_hello_as(W2, ROLE_WORKER, 77);
    rig_join_with(W2, "w1", &sub, 1, NULL, 0);
    const msg_error_t *e = rig_error(W2, "worker_alive");
    cr_assert(e->retriable);
    cr_assert_eq(e->retry_ms, 1000);
    cr_assert_not_null(strstr(e->message, "host, pid 111"), "%s", e->message);
    cr_assert(rig_has(W1, MSG_PING), "it was probed");
    R.is_gone[W1] = true; /* killed: its connection is gone */
    rig_join_with(W2, "w1", &sub, 1, NULL, 0);
    cr_assert_neq(R.tokens[W2], 0);
    cr_assert_eq(rig_event_count(EVENT_WORKER_FENCED), 0, "a restart takes nothing over");
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 1);
    const event_row_t *lost = rig_event(EVENT_WORKER_LOST);
    cr_assert(lost->token == old && lost->code == HEDDLE_ERR_UNAVAILABLE, "%s", lost->message);
    cr_assert_null(membership_by_token(&R.b->members, old));
    R.is_gone[W1] = false;
    rig_beat(W1);
    cr_assert_eq(rig_error(W1, "fenced")->token, old);
    cr_assert_eq(rig_event_count(EVENT_WORKER_FENCED), 1, "it was no restart");
}

static const msg_counts_t *counts_of_w1(void) { return &membership_worker(&R.b->members, "w1")->counts; }

/* The first one's connection broke, the second one took the name, and the first one is still there. */
static void two_processes_are_w1(void)
{
    msg_subscription_t sub = {.adapter = "policy"};
    workers(1);
    R.is_gone[W1] = true;
    rig_hello_as(W2, ROLE_WORKER, 77);
    rig_join_with(W2, "w1", &sub, 1, NULL, 0);
    R.is_gone[W1] = false;
    cr_assert_eq(counts_of_w1()->fenced, 0, "the first one may have been killed");
}

Test(node, two_processes_under_one_name_are_counted_when_the_first_sends_on)
{
    two_processes_are_w1();
    for (int i = 0; i < 3; i++) rig_beat(W1);
    cr_assert_eq(counts_of_w1()->fenced, 1, "one session, however many messages");
}

Test(node, two_processes_under_one_name_are_counted_when_the_first_joins_again)
{
    two_processes_are_w1();
    msg_subscription_t sub = {.adapter = "policy"};
    msg_t join = {.type = MSG_JOIN};
    join.join = (msg_join_t){.name = "w1",
                             .adapters = &sub,
                             .adapter_count = 1,
                             .epoch = R.tokens[W1] >> 32,
                             .prev_token = R.tokens[W1],
                             .backend = "ucx",
                             .ucx = "1.13.1",
                             .export_dir = ""};
    for (int i = 0; i < 3; i++) {
        rig_hello(W1, ROLE_WORKER);
        join.join.req = ++R.req;
        rig_frame(W1, &join);
        rig_error(W1, "worker_alive");
    }
    cr_assert_eq(counts_of_w1()->fenced, 1);
    cr_assert_eq(rig_event_count(EVENT_WORKER_FENCED), 1);
    cr_assert_eq(rig_event(EVENT_WORKER_FENCED)->token, R.tokens[W1]);
}

/* The same where the first one's lease had ended before. */
Test(node, two_processes_under_one_name_are_counted_after_a_lease)
{
    msg_subscription_t sub = {.adapter = "policy"};
    workers(1);
    R.is_quiet[W1] = true;
    rig_pass(5000);
    rig_hello_as(W2, ROLE_WORKER, 77);
    rig_join_with(W2, "w1", &sub, 1, NULL, 0);
    cr_assert_eq(counts_of_w1()->fenced, 0);
    rig_beat(W1);
    cr_assert_eq(counts_of_w1()->fenced, 1);
}

Test(node, a_name_that_has_become_free_begins_its_count_anew)
{
    msg_subscription_t sub = {.adapter = "policy"};
    workers(1);
    R.is_quiet[W1] = true;
    rig_pass(5000);
    rig_worker(W1, "w1");
    cr_assert_eq(counts_of_w1()->fenced, 1);
    rig_leave(W1);
    rig_hello_as(W2, ROLE_WORKER, 77);
    rig_join_with(W2, "w1", &sub, 1, NULL, 0);
    cr_assert_eq(counts_of_w1()->fenced, 0, "that was another process, which has left");
}

Test(node, the_fenced_one_hears_of_it)
{
    workers(1);
    msg_subscription_t sub = {.adapter = "policy"};
    R.is_quiet[W1] = true;
    rig_pass(2500); /* two heartbeats */
    rig_hello_as(W2, ROLE_WORKER, 77);
    rig_join_with(W2, "w1", &sub, 1, NULL, 0);
    cr_assert_eq(rig_error(W1, "fenced")->token, R.tokens[W1]);
    cr_assert_eq(rig_event_count(EVENT_WORKER_FENCED), 1);
}

Test(node, refused_joins_leave_no_trace)
{
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello(W1, ROLE_WORKER);
    msg_t m = {.type = MSG_JOIN};
    m.join = (msg_join_t){.req = 9, .name = "w1", .slots = 1, .adapters = &sub, .adapter_count = 1};
    rig_frame(W1, &m);
    const msg_error_t *e = rig_error(W1, "too_few_slots");
    cr_assert(e->req == 9 && e->of == MSG_JOIN && !e->retriable);
    cr_assert_eq(R.b->members.worker_count, 0);
}

Test(node, one_connection_is_one_session)
{
    msg_subscription_t sub = {.adapter = "policy"};
    workers(1);
    rig_join_with(W1, "other", &sub, 1, NULL, 0);
    cr_assert_eq(membership_worker(&R.b->members, "w1")->state, MEMBER_LEFT);
    cr_assert(member_is_ready(membership_worker(&R.b->members, "other")));
}

/* ---- writers ---- */

Test(node, one_writer_and_takeover)
{
    rig_open(T, "policy", "first", 0, false);
    rig_open(5, "policy", "second", 0, false);
    const msg_error_t *e = rig_error(5, "writer_held");
    cr_assert(e->of == MSG_OPEN && e->retriable && e->retry_ms > 0);
    cr_assert_not_null(strstr(e->message, "first on host, pid 101"), "%s", e->message);
    cr_assert_eq(R.tokens[5], 0);
    rig_open(5, "policy", "second", 0, true);
    cr_assert_neq(R.tokens[5], 0);
    cr_assert_eq(rig_error(T, "fenced")->token, R.tokens[T]);
    cr_assert_eq(rig_event_count(EVENT_WRITER_FENCED), 1);
    const event_row_t *fenced = rig_event(EVENT_WRITER_FENCED);
    cr_assert_str_eq(fenced->worker, "first", "who was fenced");
    cr_assert_str_eq(fenced->other, "second", "who took over");
    cr_assert_eq(fenced->token, R.tokens[T]);
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 1});
    e = rig_error(T, "fenced");
    cr_assert_eq(e->token, R.tokens[T]);
    cr_assert_eq(e->req, R.req, "the publication hears it too");
    cr_assert_eq(rig_adapter()->version_count, 0);
    rig_publish(5, (rig_publish_t){.digest = 1});
    cr_assert_eq(rig_adapter()->version_count, 1);
}

/* A command that is started again under its request id would end its own first try by a takeover. */
Test(node, a_writer_that_is_publishing_is_to_be_followed)
{
    publish_to(1, (rig_publish_t){0});
    rig_open(5, "policy", "second", 0, false);
    const char *hint = rig_error(5, "writer_held")->hint;
    char whole[256];
    snprintf(whole, sizeof whole, "`heddle wait policy@1` follows what it publishes (request id %s); ",
             registry_adapter(&R.b->registry, "policy")->versions[0]->request_id);
    cr_assert(strstr(hint, whole), "%s", hint);
    roll_out(1, 1, 1, 1);
    rig_open(5, "policy", "second", 0, false);
    hint = rig_error(5, "writer_held")->hint;
    cr_assert_null(strstr(hint, "publishes"), "%s", hint);
}

/* A part of an id is of no use: it is whole, or left out where the hint has no room for it. */
Test(node, a_request_id_in_a_hint_is_whole)
{
    char id[HEDDLE_NAME_MAX + 1] = "r-1c0b674db7d95a4f4d3c3605069c0ea5";
    rig_worker(W1, "w1");
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = id});
    rig_open(5, "policy", "second", 0, false);
    const char *hint = rig_error(5, "writer_held")->hint;
    cr_assert(strstr(hint, "(request id r-1c0b674db7d95a4f4d3c3605069c0ea5); "), "%s", hint);
    char name[HEDDLE_NAME_MAX + 1];
    memset(id, 'i', HEDDLE_NAME_MAX);
    memset(name, 'n', HEDDLE_NAME_MAX);
    id[HEDDLE_NAME_MAX] = name[HEDDLE_NAME_MAX] = 0;
    rig_open(6, name, "third", 0, false);
    rig_publish(6, (rig_publish_t){.adapter = name, .digest = 1, .request_id = id});
    rig_open(7, name, "fourth", 0, false);
    hint = rig_error(7, "writer_held")->hint;
    cr_assert(strstr(hint, "@1` follows what it publishes; opts.takeover ends its session"), "%s", hint);
}

Test(node, an_abandoned_writer_ends_with_its_lease)
{
    rig_open(T, "policy", "first", 0, false);
    R.is_quiet[T] = true;
    rig_pass(3500);
    rig_open(5, "policy", "second", 0, false);
    rig_error(5, "writer_held");
    rig_pass(1000);
    cr_assert_eq(rig_writer(), 0, "closed on disk");
    cr_assert_eq(rig_event_count(EVENT_WRITER_CLOSED), 1);
    rig_open(5, "policy", "second", 0, false);
    cr_assert_neq(R.tokens[5], 0);
}

Test(node, a_stored_writer_counts_as_alive_until_settling_ends)
{
    rig_open(T, "policy", "first", 0, false);
    rig_restart();
    rig_open(5, "policy", "second", 0, false);
    rig_error(5, "writer_held");
    rig_pass(4100);
    cr_assert_eq(rig_writer(), 0);
    cr_assert_eq(rig_event_count(EVENT_WRITER_CLOSED), 1);
    rig_open(5, "policy", "second", 0, false);
    cr_assert_neq(R.tokens[5], 0);
}

/* Who left does not come back: nobody waits for it, though the broker does not know yet who else is there. */
Test(node, a_writer_that_left_while_the_broker_settles_is_closed)
{
    rig_open(T, "policy", "first", 0, false);
    rig_restart();
    rig_open(5, "policy", "second", 0, false);
    const msg_error_t *e = rig_error(5, "writer_held");
    cr_assert(strstr(e->found, "no message since the broker's start"), "%s", e->found);
    rig_open(T, "policy", "first", 0, false);
    cr_assert_eq(rig_writer(), R.tokens[T], "it is back");
    rig_leave(T);
    cr_assert_eq(rig_writer(), 0, "closed on disk");
    rig_restart();
    rig_open(5, "policy", "second", 0, false);
    cr_assert_neq(R.tokens[5], 0);
}

/* The disk refuses to close it, second after second: it is said when it is so, and once. */
Test(node, a_stored_writer_is_closed_before_it_is_said)
{
    rig_open(T, "policy", "first", 0, false);
    rig_restart();
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    rig_pass(9000);
    cr_assert_neq(rig_writer(), 0);
    cr_assert_eq(rig_event_count(EVENT_WRITER_CLOSED), 0);
    R.commit_error = 0;
    rig_pass(1100);
    cr_assert_eq(rig_writer(), 0);
    cr_assert_eq(rig_event_count(EVENT_WRITER_CLOSED), 1);
    rig_pass(3000);
    cr_assert_eq(rig_event_count(EVENT_WRITER_CLOSED), 1);
}

Test(node, the_same_life_opens_again_at_once)
{
    rig_open(T, "policy", "first", 0, false);
    rig_restart();
    rig_open(T, "policy", "first", 0, false);
    cr_assert_neq(R.tokens[T], 0);
    rig_open(T, "policy", "first", 0, false);
    cr_assert_eq(rig_event_count(EVENT_WRITER_CLOSED), 0);
    cr_assert_eq(rig_event_count(EVENT_WRITER_FENCED), 0);
    rig_pass(9000);
    cr_assert_eq(rig_writer(), R.tokens[T]);
}

Test(node, leaving_says_bye_and_closes)
{
    rig_open(T, "policy", "first", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    rig_leave(T);
    cr_assert_eq(rig_last(T, MSG_BYE)->bye.token, R.tokens[T]);
    cr_assert_eq(rig_adapter()->writer.token, 0);
    cr_assert_eq(R.forgotten, 1);
    workers(1);
    rig_leave(W1);
    cr_assert_eq(membership_worker(&R.b->members, "w1")->state, MEMBER_LEFT);
    cr_assert_eq(rig_event_count(EVENT_WORKER_LEFT), 1);
    cr_assert_eq(R.b->peer_count, 0);
    cr_assert_eq(R.b->idle_count, 0);
}

/* ---- names that nothing was published to ---- */

/* A mistyped name would otherwise be listed for ever, and count for LIMIT_ADAPTERS. */
Test(node, a_name_that_was_only_opened_is_forgotten_when_its_writer_leaves)
{
    rig_open(T, "polciy", "trainer", 0, false);
    cr_assert_eq(R.b->registry.adapter_count, 1);
    rig_leave(T);
    cr_assert_eq(R.b->registry.adapter_count, 0);
    cr_assert_eq(rig_event_count(EVENT_WRITER_CLOSED), 1);
    rig_restart();
    cr_assert_eq(R.b->registry.adapter_count, 0);
    rig_open(T, "polciy", "trainer", 0, false);
    cr_assert_eq(R.b->registry.adapter_count, 1, "it may be opened again");
}

Test(node, a_name_that_was_only_opened_is_forgotten_when_its_writer_is_lost)
{
    rig_open(T, "polciy", "trainer", 0, false);
    rig_restart();
    rig_pass(3 * LEASE_MS);
    cr_assert_eq(R.b->registry.adapter_count, 0);
}

/* Its numbers must not be given again. */
Test(node, a_name_of_which_members_know_versions_is_kept)
{
    rig_open(T, "policy", "trainer", 7, false);
    cr_assert_eq(rig_adapter()->last_version, 7);
    rig_leave(T);
    cr_assert_eq(rig_adapter()->last_version, 7);
}

/* Of an adapter without any version, and of a number that none has. */
Test(node, a_report_of_a_version_that_was_never_announced_is_refused)
{
    workers(1);
    for (uint64_t version = 1; version < 3; version++) {
        rig_staged(W1, version, 1);
        cr_assert_eq(rig_error(W1, "not_found")->of, MSG_STAGED);
        rig_nack(W1, version, 0, "", "gone");
        cr_assert_eq(rig_error(W1, "not_found")->of, MSG_NACK);
        rig_active(W1, version, 1, 1);
        cr_assert_eq(rig_error(W1, "not_found")->of, MSG_ACTIVE);
        rig_drop_letters();
        msg_t m = {.type = MSG_VERIFIED};
        m.verified = (msg_verified_t){.token = R.tokens[W1], .version = version, .adapter = "policy"};
        rig_frame(W1, &m);
        cr_assert(!rig_has(W1, MSG_ERROR), "it may have dropped the version meanwhile");
        rig_open(T, "policy", "trainer", 0, false);
        if (version == 1) rig_publish(T, (rig_publish_t){.digest = 1});
    }
    cr_assert_eq(track_find(&R.b->rollout, "policy", 1)->tally.units, 0);
}

Test(node, a_session_publishes_to_its_own_adapter)
{
    rig_open(T, "policy", "first", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1, .adapter = "critic"});
    cr_assert_eq(rig_error(T, "protocol")->token, 0, "its session is as good as before");
    cr_assert_eq(R.b->members.fenced_count, 0);
}

Test(node, a_replay_is_answered_under_a_stale_token_too)
{
    rig_open(T, "policy", "first", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    rig_open(5, "policy", "second", 0, true);
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    cr_assert_str_eq(rig_last(T, MSG_PUBLISHED)->published.reason, "replayed");
    cr_assert(!rig_has(T, MSG_ROLLOUT));
}

/* A publisher that was away, or is replaced, asks how its version stands: no session is needed for that. */
Test(node, the_rollout_of_a_version_answers_a_question)
{
    workers(1);
    rig_open(T, "policy", "first", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    rig_hello(5, ROLE_PUBLISHER);
    rig_query(5, (msg_query_t){.op = "rollout", .name = "policy", .version = 1});
    const msg_rollout_t *m = &rig_last(5, MSG_ROLLOUT)->rollout;
    cr_assert(m->req == R.req && !m->token && m->version == 1 && m->eligible_count == 1);
    cr_assert_str_eq(m->state, "staging");
    rig_query(5, (msg_query_t){.op = "rollout", .name = "policy", .version = 2});
    m = &rig_last(5, MSG_ROLLOUT)->rollout;
    cr_assert(m->req == R.req && m->version == 2);
    cr_assert_str_eq(m->state, "lost", "one that the broker does not know");
    rig_query(5, (msg_query_t){.op = "rollout", .name = "policy"});
    cr_assert_eq(rig_error(5, "usage")->req, R.req);
}

/* Its call may have ended meanwhile: one that still runs sends it again, with what is left of its deadline. */
Test(node, a_publication_that_may_have_waited_on_its_way_is_put_off)
{
    workers(1);
    rig_open(T, "policy", "first", 0, false);
    R.is_quiet[T] = true;
    rig_pass(3000);
    rig_beat(T); /* what was sent before it comes before it */
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 1, .deadline_ms = 1000, .request_id = "same"});
    const msg_error_t *e = rig_error(T, "unavailable");
    cr_assert(e->retriable && e->retry_ms && e->of == MSG_PUBLISH && e->req == R.req);
    cr_assert_eq(rig_adapter()->version_count, 0);
    R.is_quiet[T] = false;
    rig_pass(e->retry_ms);
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    cr_assert_eq(rig_last(T, MSG_PUBLISHED)->published.version, 1);
}

/* The token of the new session was received before it was sent. */
Test(node, a_publication_of_a_session_that_joined_again_is_new)
{
    rig_open(T, "policy", "first", 0, false);
    R.is_quiet[T] = true;
    rig_pass(3000);
    rig_open(T, "policy", "first", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    cr_assert_eq(rig_last(T, MSG_PUBLISHED)->published.version, 1);
}

/* ---- I1: on disk before it is said ---- */

Test(node, a_disk_that_refuses_a_publication)
{
    workers(1);
    rig_open(T, "policy", "first", 0, false);
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 1});
    const msg_error_t *e = rig_error(T, "no_space");
    cr_assert(e->retriable && e->req == R.req && e->of == MSG_PUBLISH);
    cr_assert(!rig_has(T, MSG_PUBLISHED) && !rig_has(W1, MSG_ANNOUNCE));
    cr_assert_eq(rig_adapter()->version_count, 0);
    cr_assert(R.b->state == BROKER_READ_ONLY);
    R.commit_error = 0;
    rig_publish(T, (rig_publish_t){.digest = 1});
    cr_assert_eq(rig_last(T, MSG_PUBLISHED)->published.version, 1, "the number was not spent");
    cr_assert(R.b->state == BROKER_READY);
    cr_assert_eq(R.fatals, 0);
}

Test(node, a_disk_that_takes_records_again_is_noticed)
{
    rig_open(T, "policy", "first", 0, false);
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    rig_publish(T, (rig_publish_t){.digest = 1});
    rig_pass(2500);
    cr_assert(R.b->state == BROKER_READ_ONLY);
    const event_row_t *e = rig_event(EVENT_STORE_REFUSED);
    cr_assert_eq(e->code, HEDDLE_ERR_NO_SPACE);
    cr_assert_eq(strncmp(e->message, "the broker takes no records: ", 29), 0, "%s", e->message);
    cr_assert_eq(rig_event_count(EVENT_STORE_REFUSED), 1, "once, though it was tried again");
    cr_assert_eq(rig_event_count(EVENT_STORE_RECOVERED), 0);
    size_t records = R.record_count;
    R.commit_error = 0;
    rig_pass(1100);
    cr_assert(R.b->state == BROKER_READY, "though no publisher writes");
    cr_assert_eq(rig_event_count(EVENT_STORE_RECOVERED), 1);
    cr_assert_eq(rig_event(EVENT_STORE_RECOVERED)->code, HEDDLE_OK, "it is no failure");
    rig_pass(2000);
    cr_assert_leq(R.record_count, records + 1, "and then it is left alone");
}

Test(node, a_disk_that_refuses_a_decision_is_asked_again)
{
    workers(1);
    rig_open(T, "policy", "first", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    rig_staged(W1, 1, 1);
    cr_assert_eq(rig_count(MSG_COMMIT), 0);
    cr_assert_str_eq(rig_copy_state(1, "w1"), "staged");
    rig_pass(3000);
    cr_assert_eq(rig_count(MSG_COMMIT), 0);
    R.commit_error = 0;
    rig_pass(1100);
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.decision, 1);
}

Test(node, a_disk_that_refuses_to_open_or_close_a_writer)
{
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    rig_open(T, "policy", "first", 0, false);
    rig_error(T, "no_space");
    cr_assert_eq(R.tokens[T], 0);
    cr_assert_null(membership_publisher(&R.b->members, "policy"));
    R.commit_error = 0;
    rig_open(T, "policy", "first", 0, false);
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    rig_leave(T);
    cr_assert(rig_has(T, MSG_BYE), "it may go");
    R.tokens[T] = 0;
    cr_assert_neq(rig_writer(), 0);
    R.commit_error = 0;
    rig_pass(1500);
    cr_assert_eq(rig_writer(), 0, "closed when the disk takes it");
}

Test(node, a_disk_that_failed_under_us_ends_the_process)
{
    rig_open(T, "policy", "first", 0, false);
    R.commit_error = HEDDLE_ERR_DATA_DIR;
    rig_publish(T, (rig_publish_t){.digest = 1});
    cr_assert_eq(R.fatals, 1);
    rig_drop_letters();
    R.commit_error = 0;
    rig_publish(T, (rig_publish_t){.digest = 1});
    cr_assert_eq(R.letter_count, 0, "nothing is said any more");
    cr_assert_eq(broker_flush(R.b, R.now), CLOCK_NEVER);
    broker_tick(R.b, R.now);
}

/* ---- the brokers of one registry ---- */

static brokers_t listed;
static const brokers_t *io_listed(void *self) { return (void)self, &listed; }

static uint32_t told_by_beat(uint64_t peer)
{
    rig_drop_letters();
    rig_beat(peer);
    return rig_last(peer, MSG_HEARTBEAT_OK)->heartbeat_ok.broker_count;
}

Test(node, a_member_is_told_of_the_brokers_and_again_when_they_have_changed)
{
    workers(1);
    cr_assert_eq(told_by_beat(W1), 0, "with SQLite there is the one");
    listed = (brokers_t){.own = {.endpoint = "tcp://a:1", .key = "ka"}};
    R.b->io.brokers = io_listed;
    cr_assert_eq(told_by_beat(W1), 0, "they are not known yet");
    listed.seen_us = 1;
    cr_assert_eq(told_by_beat(W1), 1);
    cr_assert_eq(told_by_beat(W1), 0);
    listed.rows[listed.count++] = (brokers_row_t){.endpoint = "tcp://b:1", .key = "kb"};
    cr_assert_eq(told_by_beat(W1), 2);
    const msg_heartbeat_ok_t *ok = &rig_last(W1, MSG_HEARTBEAT_OK)->heartbeat_ok;
    cr_assert_str_eq(ok->brokers[0].endpoint, "tcp://a:1");
    cr_assert_str_eq(ok->brokers[1].key, "kb");
    cr_assert_eq(told_by_beat(W1), 0);
    rig_hello(ADMIN, ROLE_ADMIN);
    const msg_hello_ok_t *hello = &rig_last(ADMIN, MSG_HELLO_OK)->hello_ok;
    cr_assert_eq(hello->broker_count, 2);
    cr_assert_str_eq(hello->brokers[0].key, "ka");
    cr_assert_str_eq(hello->brokers[1].endpoint, "tcp://b:1");
}

/* ---- bounds: I9 ---- */

static int send_nowhere(void *self, uint64_t peer, bytes_t frame)
{
    return (void)self, (void)peer, (void)frame, HEDDLE_OK;
}

Test(node, silent_connections_make_place_for_new_ones)
{
    workers(1);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "events", .wait_ms = 1000000, .name = "nobody"});
    int (*send)(void *, uint64_t, bytes_t) = R.b->io.send;
    R.b->io.send = send_nowhere;
    for (uint64_t peer = 1000; peer < 1000 + BROKER_IDLE_PEERS + 50; peer++) {
        R.now.us += 1;
        rig_hello_as(peer, ROLE_ADMIN, 1);
    }
    R.b->io.send = send;
    cr_assert_eq(R.b->idle_count, BROKER_IDLE_PEERS);
    cr_assert_eq(R.b->peer_count, BROKER_IDLE_PEERS + 1);
    cr_assert_eq(R.forgotten, 51);
    rig_drop_letters();
    rig_beat(W1);
    cr_assert(rig_has(W1, MSG_HEARTBEAT_OK), "sessions stay");
    rig_query(ADMIN, (msg_query_t){.op = "status"});
    cr_assert(rig_has(ADMIN, MSG_REPORT), "and who waits for an answer");
    rig_query(1000 % PEERS, (msg_query_t){.op = "status"});
    rig_error(1000 % PEERS, "protocol");
}

Test(node, a_forgotten_connection_may_say_hello_again)
{
    workers(1);
    rig_leave(W1);
    rig_worker(W1, "w1");
    cr_assert(member_is_ready(membership_worker(&R.b->members, "w1")));
}

Test(node, a_broker_that_was_stopped_expires_nobody_at_once)
{
    workers(2);
    R.now.us += 60000000;
    R.now.wall_ms += 60000;
    broker_tick(R.b, R.now);
    rig_flush();
    cr_assert(member_is_ready(membership_worker(&R.b->members, "w1")));
    rig_pass(8000);
    cr_assert(member_is_ready(membership_worker(&R.b->members, "w1")));
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 0);
}

/* ---- what cannot be said ---- */

Test(node, an_answer_out_of_its_limits_is_no_want_of_memory)
{
    rig_open(T, "policy", "trainer", 0, false);
    R.b->io.warn = keep_warning;
    registry_adapter(&R.b->registry, "policy")->last_version = LIMIT_EXACT;
    size_t records = R.record_count;
    rig_publish(T, (rig_publish_t){.digest = 1});
    cr_assert(!rig_error(T, "internal")->retriable);
    cr_assert_eq(R.record_count, records, "nothing was changed");
    cr_assert(strstr(logged, "broker.unsendable: PUBLISHED"), "%s", logged);
    cr_assert(R.fatals == 0 && !R.b->members.tokens[0]->needs_resync, "a new session would not help");
}

Test(node, a_broker_that_cannot_greet_ends)
{
    R.b->registry.epoch = 1ull << 32;
    rig_hello(W1, ROLE_WORKER);
    cr_assert(R.fatals == 1 && R.b->state == BROKER_BROKEN);
}

/* ---- whose it is ---- */

static void tick_once(void *b) { broker_tick(b, R.now); }

Test(node, another_thread_may_not_tick_it, ENDS_THE_PROCESS) { on_another_thread(tick_once, R.b); }
