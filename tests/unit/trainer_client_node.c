/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher's node: opening, its session, what it was not told, leaving. */
#include "tests/unit/other_thread.h"
#include "client/session.h"
#include "tests/unit/captured.h"
#include "trainer_client_rig.h"

#include <signal.h>

TestSuite(node, .init = open_world, .fini = close_world);
TestSuite(joined, .init = open_and_join, .fini = close_world);

/* -- opening ---------------------------------------------------------------------------------- */

Test(node, hello_open_welcome)
{
    heddle_error_t error;
    cr_assert_eq(opened(&error), HEDDLE_ERR_AGAIN);
    cr_assert_eq(error.code, 0);
    join();
    const msg_t *hello = sent(MSG_HELLO), *open = sent(MSG_OPEN);
    cr_assert_eq(hello->hello.role, ROLE_PUBLISHER);
    cr_assert_str_eq(hello->hello.host, "host-1");
    cr_assert_str_eq(open->open.adapter, "policy");
    cr_assert_str_eq(open->open.writer, "trainer-1");
    cr_assert_str_eq(open->open.backend, "mem");
    cr_assert_gt(open->open.address.bytes, 0);
    cr_assert_eq(open->open.serving, 0);
    cr_assert_eq(open->open.prev_token, 0);
    cr_assert_not(open->open.takeover);
    cr_assert_eq(opened(&error), HEDDLE_OK);
    cr_assert_eq(event(HEDDLE_EVENT_JOINED)->token, TOKEN);
    cr_assert_gt(w.changes, 0);
}

Test(unopened, another_writer_is_named_and_takeover_is_said_once, .fini = close_world)
{
    open_world_as((how_t){.takeover = true});
    heddle_error_t error;
    line(true);
    hello_ok();
    cr_assert(sent(MSG_OPEN)->open.takeover);
    refuse(MSG_OPEN, sent(MSG_OPEN)->open.req, HEDDLE_ERR_WRITER_HELD, true);
    cr_assert_eq(opened(&error), HEDDLE_ERR_WRITER_HELD);
    cr_assert(strstr(error.message, "ann"));
    cr_assert_eq(event(HEDDLE_EVENT_REFUSED)->code, HEDDLE_ERR_WRITER_HELD);
    w.now += 2 * SECOND;
    tick();
    hello_ok();
    welcome(0);
    cr_assert_eq(opened(&error), HEDDLE_OK);
    rejoin(0);
    cr_assert_not(sent(MSG_OPEN)->open.takeover);
    cr_assert_eq(sent(MSG_OPEN)->open.prev_token, TOKEN);
    uint64_t first = w.token;
    w.token += 1ull << 32; /* the broker is started again, twice */
    rejoin(0);
    rejoin(0);
    cr_assert_eq(sent(MSG_OPEN)->open.former_count, 1);
    cr_assert_eq(sent(MSG_OPEN)->open.former_tokens[0], first);
}

Test(node, a_refusal_that_may_pass_is_told_and_tried_again)
{
    heddle_error_t error;
    line(true);
    hello_ok();
    refuse(MSG_OPEN, sent(MSG_OPEN)->open.req, HEDDLE_ERR_NO_MEMORY, true);
    cr_assert_eq(opened(&error), HEDDLE_ERR_AGAIN);
    cr_assert_eq(error.code, HEDDLE_ERR_NO_MEMORY);
    refuse(MSG_OPEN, 99, HEDDLE_ERR_DENIED, false);
    cr_assert_eq(opened(&error), HEDDLE_ERR_AGAIN, "not of our OPEN");
}

Test(node, a_full_disk_of_the_broker_is_said_at_once)
{
    heddle_error_t error;
    line(true);
    hello_ok();
    refuse(MSG_OPEN, sent(MSG_OPEN)->open.req, HEDDLE_ERR_NO_SPACE, true);
    cr_assert_eq(opened(&error), HEDDLE_ERR_NO_SPACE);
    cr_assert(error.retriable);
    w.now += 2 * SECOND;
    tick();
    hello_ok();
    welcome(0);
    cr_assert_eq(opened(&error), HEDDLE_OK, "it tries again nevertheless");
}

Test(node, nobody_answers_leads_to_a_redial)
{
    line(true);
    for (int i = 0; i < 10 && !w.redialled; i++) {
        w.now = tick();
        tick();
    }
    cr_assert(w.redialled);
    cr_assert_eq(count_sent(MSG_HELLO), SESSION_HELLOS);
}

Test(joined, garbage_changes_nothing)
{
    give_frame(bytes_of("\xc1garbage", 8));
    give_frame(bytes_of("", 0));
    msg_t commit = {.type = MSG_COMMIT,
                    .commit = {.token = w.token, .version = 1, .decision = 1, .adapter = "policy"}};
    say(&commit);
    heddle_error_t error;
    cr_assert_eq(opened(&error), HEDDLE_OK);
}

/* -- sessions --------------------------------------------------------------------------------- */

Test(joined, heartbeats_hold_the_lease)
{
    for (int i = 1; i <= 20; i++) {
        w.now = tick();
        tick();
        cr_assert_eq(count_sent(MSG_HEARTBEAT), i);
        const msg_heartbeat_t *hb = &sent(MSG_HEARTBEAT)->heartbeat;
        cr_assert_eq(hb->token, TOKEN);
        msg_t ok = {.type = MSG_HEARTBEAT_OK, .heartbeat_ok = {hb->token, hb->seq}};
        say(&ok);
    }
    cr_assert_null(event(HEDDLE_EVENT_LOST_BROKER));
}

/* A broker that dies ends the connection; one that stands still leaves it up, and its heartbeats open. */
Test(joined, a_broker_without_a_message_is_reported_as_silent)
{
    serve(3, 1);
    for (int i = 0; i < 6; i++) {
        w.now += LEASE_MS / 4 * MS;
        tick();
        const msg_heartbeat_t *hb = &sent(MSG_HEARTBEAT)->heartbeat;
        say(&(msg_t){.type = MSG_HEARTBEAT_OK, .heartbeat_ok = {hb->token, hb->seq}});
    }
    for (int i = 0; i < 2; i++) {
        w.now += LEASE_MS / 4 * MS;
        tick();
    }
    w.now += 999 * MS;
    cr_assert_eq(report(3)->silent_ms, 0);
    w.now += MS;
    cr_assert_eq(report(3)->silent_ms, 3000, "%u", report(3)->silent_ms);
    rollout(3, "staging", 0, 2, 0, 0);
    cr_assert_eq(report(3)->silent_ms, 0);
    line(false);
    w.now += 7 * SECOND;
    tick();
    cr_assert_eq(report(3)->silent_ms, 7000);
    line(true);
    hello_ok();
    cr_assert_eq(report(3)->silent_ms, 0);
    leave();
    w.now += 7 * SECOND;
    tick();
    cr_assert_eq(report(3)->silent_ms, 0, "it was left");
}

/* In that time it asked for no answer. */
Test(joined, a_publisher_that_stood_still_does_not_say_that_the_broker_was_silent)
{
    serve(3, 1);
    tick();
    w.now += 5 * SECOND;
    cr_assert_eq(report(3)->silent_ms, 0, "before its loop ran again: %u", report(3)->silent_ms);
    tick();
    cr_assert_eq(report(3)->silent_ms, 0, "after it: %u", report(3)->silent_ms);
    for (int i = 0; i < 3; i++) {
        w.now += LEASE_MS / 4 * MS;
        tick();
    }
    cr_assert_geq(report(3)->silent_ms, 3000, "a broker that does not answer since is silent");
}

Test(joined, a_lapsed_session_rejoins_and_restates_what_it_serves)
{
    serve(3, 1);
    w.now += LEASE_MS * MS;
    tick();
    cr_assert_not_null(event(HEDDLE_EVENT_LOST_BROKER));
    hello_ok();
    const msg_open_t *open = &sent(MSG_OPEN)->open;
    cr_assert_eq(open->prev_token, TOKEN);
    cr_assert_eq(open->epoch, 2);
    cr_assert_eq(open->serving, 3);
    w.token++;
    welcome(3);
    cr_assert_eq(count_events(HEDDLE_EVENT_JOINED), 2);
    cr_assert_eq(fetch(3, 4096), TR_ARRIVED);
    rollout(3, "active", 0, 1, 1, 1);
    cr_assert_eq(report(3)->active_count, 1);
}

Test(joined, all_that_is_served_is_restated)
{
    serve(3, 1);
    serve(4, 2);
    line(false);
    line(true);
    hello_ok();
    const msg_open_t *open = &sent(MSG_OPEN)->open;
    cr_assert(open->serving == 4 && open->served_count == 2 && open->served[0] == 4 && open->served[1] == 3);
    w.token++;
    welcome(3);
    cr_assert_eq(fetch(3, 4096), TR_ARRIVED);
    cr_assert_eq(fetch(4, 4096), TR_REFUSED, "each that is not listed is dropped");
}

Test(joined, what_welcome_does_not_list_is_served_no_longer)
{
    serve(3, 1);
    rejoin(0);
    cr_assert_eq(fetch(3, 4096), TR_REFUSED);
    rejoin(0);
    cr_assert_eq(sent(MSG_OPEN)->open.serving, 0);
}

Test(joined, a_token_that_the_broker_forgot_is_rejoined)
{
    heddle_error_t error;
    msg_t m = {.type = MSG_ERROR,
               .error = {.token = TOKEN, .of = MSG_HEARTBEAT, .code = "not_found", .message = "unknown"}};
    say(&m);
    hello_ok();
    w.token++;
    welcome(0);
    cr_assert_eq(opened(&error), HEDDLE_OK);
    cr_assert_null(event(HEDDLE_EVENT_FENCED));
}

/* Every way to be fenced ends the same. */
static void is_fenced(void)
{
    heddle_error_t error;
    publish_result_t r;
    cr_assert_eq(opened(&error), HEDDLE_ERR_FENCED);
    cr_assert_eq(count_events(HEDDLE_EVENT_FENCED), 1);
    cr_assert(strstr(error.message, "ann"), "%s", error.message);
    forget_sent();
    line(false);
    line(true);
    w.now += 60 * SECOND;
    tick();
    cr_assert_eq(w.sent_count, 0, "it does not come back");
    item_t *it = make(3000);
    int rc = take(it);
    if (rc == HEDDLE_ERR_AGAIN) {
        tr_event_t e;
        drive(&e);
        rc = take(it);
    }
    cr_assert_eq(rc, HEDDLE_OK);
    fill(it, 1);
    publish(it, "id-9");
    cr_assert_eq(result(&r), HEDDLE_ERR_FENCED);
}

Test(joined, a_takeover_fences)
{
    heddle_error_t error;
    serve(3, 1);
    rollout(3, "staging", 0, 2, 1, 0);
    fencing_error((msg_type_t)0);
    cr_assert_eq(judge(3, HEDDLE_PHASE_STAGED, HEDDLE_QUORUM_COUNT, 1, &error), HEDDLE_OK,
                 "what was reached stays so");
    cr_assert_eq(sent(MSG_QUERY)->query.version, 3, "and the rest is asked");
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    w.now += INQUIRY_US;
    tick();
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_FENCED);
    is_fenced();
}

/* The same broker with other data, or with none: nothing of what is served here is known there. */
static void greeted_by_another_registry(void)
{
    line(false);
    line(true);
    msg_t m = {.type = MSG_HELLO_OK};
    m.hello_ok =
        (msg_hello_ok_t){.wire = 1, .epoch = 1, .lease_ms = LEASE_MS, .cluster = "barn", .heddle = "0"};
    say(&m);
}

Test(joined, a_broker_with_another_registry_ends_it)
{
    heddle_error_t error;
    captured_t log = captured_begin();
    greeted_by_another_registry();
    cr_assert_str_eq(captured_end(&log), "", "the application reads the event");
    const heddle_event_t *e = event(HEDDLE_EVENT_REFUSED);
    cr_assert(e && e->code == HEDDLE_ERR_REQUEST_CONFLICT && !e->retriable);
    cr_assert_str_eq(e->message, "the broker at tcp://10.0.0.1:7700 came back with another registry (cluster "
                                 "barn, before lab): the versions of policy are not known there");
    cr_assert_eq(opened(&error), HEDDLE_ERR_REQUEST_CONFLICT);
    cr_assert(strstr(error.hint, "publish there again"), "%s", error.hint);
    cr_assert(!strcmp(error.expected, "lab") && !strcmp(error.found, "barn"));
}

Test(unread, what_ends_it_is_logged, .fini = close_world)
{
    open_world_as((how_t){.is_unread = true});
    join();
    captured_t log = captured_begin();
    greeted_by_another_registry();
    const char *text = captured_end(&log);
    cr_assert(strstr(text, "warn  publisher.ended: the broker at tcp://10.0.0.1:7700 came back with another"),
              "%s", text);
    cr_assert(strstr(text, "publish there again"), "%s", text);
}

Test(unread, that_another_writer_took_over_is_logged, .fini = close_world)
{
    open_world_as((how_t){.is_unread = true});
    join();
    captured_t log = captured_begin();
    fencing_error((msg_type_t)0);
    const char *text = captured_end(&log);
    cr_assert(strstr(text, "publisher.ended: this publisher of policy was replaced"), "%s", text);
}

Test(joined, a_publish_that_is_told_fenced_fences)
{
    publish_result_t r;
    publish_one("id-1");
    fencing_error(MSG_PUBLISH);
    cr_assert_eq(result(&r), HEDDLE_ERR_FENCED);
    is_fenced();
}

Test(joined, a_rejoin_that_finds_another_writer_fences)
{
    publish_result_t r;
    item_t *it = filled(1);
    line(false);
    publish(it, "id-1");
    w.now += 2 * LEASE_MS * MS;
    line(true);
    hello_ok();
    refuse(MSG_OPEN, sent(MSG_OPEN)->open.req, HEDDLE_ERR_WRITER_HELD, true);
    cr_assert_eq(result(&r), HEDDLE_ERR_FENCED);
    is_fenced();
}

Test(joined, fenced_said_after_our_own_lease_is_only_old_news)
{
    heddle_error_t error;
    w.now += LEASE_MS * MS;
    fencing_error(MSG_HEARTBEAT);
    cr_assert_null(event(HEDDLE_EVENT_FENCED));
    hello_ok();
    w.token++;
    welcome(0);
    cr_assert_eq(opened(&error), HEDDLE_OK);
}

/* -- what it was not told --------------------------------------------------------------------- */

/* The broker's answer; it is of no session. */
static void tell_version(msg_rollout_t m)
{
    m.req = sent(MSG_QUERY)->query.req;
    m.adapter = "policy";
    m.deadline_ms = 60000;
    if (!m.code) m.code = m.message = "";
    say(&(msg_t){.type = MSG_ROLLOUT, .rollout = m});
}
#define ACTIVE_3                                                                                             \
    (msg_rollout_t)                                                                                          \
    {                                                                                                        \
        .version = 3, .state = "active", .decision = 1, .eligible_count = 2, .staged_count = 2,              \
        .active_count = 2                                                                                    \
    }

Test(joined, who_comes_back_asks_what_became_of_its_version)
{
    heddle_error_t error;
    serve(3, 1);
    cr_assert_null(sent(MSG_QUERY), "a first WELCOME leaves nothing to ask");
    rejoin(3);
    const msg_query_t *q = &sent(MSG_QUERY)->query;
    cr_assert_str_eq(q->op, "rollout");
    cr_assert_str_eq(q->name, "policy");
    cr_assert_eq(q->version, 3);
    msg_missing_t missing = {"w1", "fetch", "no_slot", "held"};
    tell_version((msg_rollout_t){.version = 3,
                                 .state = "failed",
                                 .code = "no_slot",
                                 .message = "held",
                                 .eligible_count = 1,
                                 .missing = &missing,
                                 .missing_count = 1});
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_VERSION_FAILED);
    cr_assert_str_eq(error.message, "policy@3 failed: held");
    cr_assert_str_eq(error.worker, "w1");
    cr_assert_not_null(event(HEDDLE_EVENT_ROLLOUT));
    rejoin(3);
    cr_assert_eq(count_sent(MSG_QUERY), 1, "what is over is not asked for");
}

/* `heddle keys revoke` in mid-rollout: the session is ended, and the handshake of the next line is refused. */
Test(joined, a_wait_ends_when_its_key_is_revoked)
{
    heddle_error_t error, why;
    serve(3, 1);
    rollout(3, "staging", 0, 2, 1, 0);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    msg_t m = {.type = MSG_ERROR, .error = {.token = TOKEN, .code = "denied", .message = "it was revoked"}};
    say(&m);
    line(false);
    error_fail(&why, HEDDLE_ERR_DENIED, "the broker has another key");
    why.retriable = 1; /* as from a broker that was met without its key, which may be starting */
    publisher_node_ops.refused(w.node, &why, w.now);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    error_fail(&why, HEDDLE_ERR_DENIED, "the broker does not let in the key");
    uint64_t changes = w.changes;
    publisher_node_ops.refused(w.node, &why, w.now);
    cr_assert_gt(w.changes, changes, "the call that waits looks again");
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_DENIED);
    cr_assert(strstr(error.message,
                     "the broker does not let in the key; this publisher was in its cluster lab before"),
              "%s", error.message);
    cr_assert_eq(error.version, 3);
    rejoin(3); /* it was added again, and the wait can be made anew */
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
}

/* A worker under such a key tries again.  The call of a publisher has ended with the error, and the same call
 * ends so again. */
Test(joined, a_missing_role_is_not_to_be_tried_again)
{
    heddle_error_t error;
    line(false);
    line(true);
    hello_ok();
    refuse(MSG_OPEN, sent(MSG_OPEN)->open.req, HEDDLE_ERR_DENIED, true);
    cr_assert_eq(opened(&error), HEDDLE_ERR_DENIED);
    cr_assert_eq(error.retriable, 0);
}

Test(joined, a_wait_ends_when_its_key_lost_the_role)
{
    heddle_error_t error;
    serve(3, 1);
    rollout(3, "staging", 0, 2, 1, 0);
    line(false);
    line(true);
    hello_ok();
    refuse(MSG_OPEN, sent(MSG_OPEN)->open.req, HEDDLE_ERR_DENIED, true);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_DENIED);
}

Test(joined, a_version_that_is_served_no_longer_is_asked_for_until_it_is_over)
{
    heddle_error_t error;
    serve(3, 1);
    rejoin(0);
    tell_version((msg_rollout_t){.version = 4, .state = "active"});
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN,
                 "of another version");
    tell_version((msg_rollout_t){.version = 3, .state = "staging", .eligible_count = 2});
    for (int i = 2; i < 4; i++) {
        w.now += INQUIRY_US;
        cr_assert_leq(tick(), w.now + INQUIRY_US);
        cr_assert_eq(count_sent(MSG_QUERY), i);
    }
    tell_version(ACTIVE_3);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_OK);
    w.now += 2 * INQUIRY_US;
    tick();
    cr_assert_eq(count_sent(MSG_QUERY), 3, "and then no more");
}

Test(joined, nor_for_ever)
{
    serve(3, 1);
    rejoin(0);
    refuse(MSG_QUERY, sent(MSG_QUERY)->query.req, HEDDLE_ERR_NOT_FOUND, false);
    w.now += 2 * INQUIRY_US;
    tick();
    cr_assert_eq(count_sent(MSG_QUERY), 1, "the broker knows nothing of it");
    rejoin(0);
    cr_assert_eq(count_sent(MSG_QUERY), 2);
    w.now += 61 * SECOND;
    tell_version((msg_rollout_t){.version = 3, .state = "active", .eligible_count = 2, .active_count = 1});
    w.now += 2 * INQUIRY_US;
    tick();
    cr_assert_eq(count_sent(MSG_QUERY), 2, "its deadline is over");
}

Test(joined, who_was_replaced_hears_what_became_of_its_version)
{
    heddle_error_t error;
    serve(3, 1);
    fencing_error((msg_type_t)0);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    tell_version(ACTIVE_3);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_OK);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_COUNT, 3, &error), HEDDLE_ERR_FENCED);
    w.now += 2 * INQUIRY_US;
    tick();
    cr_assert_eq(count_sent(MSG_QUERY), 1, "it asks once");
}

Test(joined, a_version_that_was_active_and_put_away_was_active)
{
    heddle_error_t error;
    serve(3, 1);
    rejoin(0);
    tell_version((msg_rollout_t){.version = 3, .state = "retired", .decision = 1});
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_OK);
}

/* -- reports, progress, leaving --------------------------------------------------------------- */

Test(joined, rollout_fills_the_report_and_its_times)
{
    heddle_error_t error;
    serve(3, 1);
    cr_assert_str_eq(report(3)->state, "staging");
    cr_assert_eq(judge(3, HEDDLE_PHASE_STAGED, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    w.now += 7 * MS;
    rollout(3, "staging", 0, 2, 1, 0);
    cr_assert_eq(report(3)->missing_count, 1);
    cr_assert_str_eq(report(3)->missing[0].worker, "w2");
    cr_assert_eq(report(3)->missing[0].code, HEDDLE_ERR_GONE);
    cr_assert_eq(judge(3, HEDDLE_PHASE_STAGED, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    cr_assert_eq(report(3)->staged_ms, -1);
    w.now += 5 * MS;
    rollout(3, "staged", 0, 2, 2, 0);
    cr_assert_float_eq(report(3)->staged_ms, 12.0, 1e-6);
    cr_assert_eq(judge(3, HEDDLE_PHASE_STAGED, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_OK);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    w.now += 1 * MS;
    rollout(3, "active", 0, 2, 2, 2);
    w.now += SECOND;
    rollout(3, "kept", 0, 2, 2, 2);
    cr_assert_float_eq(report(3)->active_ms, 13.0, 1e-6);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_OK);
    cr_assert_eq(count_events(HEDDLE_EVENT_ROLLOUT), 4);
    rollout(99, "active", 0, 1, 1, 1);
    cr_assert_eq(count_events(HEDDLE_EVENT_ROLLOUT), 4, "of a version that is not ours");
    cr_assert_eq(judge(99, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_NOT_FOUND);
}

Test(joined, a_broker_that_was_away_gives_no_times)
{
    serve(3, 1);
    rollout(3, "staging", 0, 2, 1, 0);
    rejoin(3);
    rollout(3, "staged", 0, 2, 2, 0);
    cr_assert_eq(report(3)->staged_count, 2);
    cr_assert_eq(report(3)->staged_ms, -1);
}

static void rollout_with_bytes(const char *state, uint32_t staged, uint64_t done, uint64_t all)
{
    rollout_done = done, rollout_all = all;
    rollout(3, state, 0, 2, staged, 0);
    rollout_done = rollout_all = 0;
}

static bool tells_progress(int count, uint64_t done, uint64_t all)
{
    const heddle_event_t *e = event(HEDDLE_EVENT_PROGRESS);
    return count_events(HEDDLE_EVENT_PROGRESS) == count && e->version == 3 && e->bytes_done == done &&
           e->data_bytes == all;
}

/* What this process sent is something else: workers serve each other, or copy nothing. */
Test(joined, progress_is_what_the_workers_have)
{
    serve(3, 1);
    rollout_with_bytes("staging", 0, 0, 20000);
    for (int i = 0; i < 10; i++) {
        cr_assert_eq(fetch(3, 4096), TR_ARRIVED);
        w.now += 10 * MS;
        tick();
    }
    cr_assert_null(event(HEDDLE_EVENT_PROGRESS), "they have said nothing of it");
    rollout_with_bytes("staging", 0, 4096, 20000);
    cr_assert(tells_progress(1, 4096, 20000));
    rollout_with_bytes("staging", 0, 4096, 20000);
    cr_assert(tells_progress(1, 4096, 20000), "once");
    rollout_with_bytes("staging", 1, 12000, 20000);
    cr_assert(tells_progress(2, 12000, 20000));
    rollout_with_bytes("staging", 1, 2000, 10000);
    cr_assert(tells_progress(3, 2000, 10000), "one left, with its bytes");
    rollout(99, "staging", 0, 2, 1, 0);
    rollout(3, "staging", 0, 2, 1, 0);
    cr_assert(tells_progress(3, 2000, 10000), "a broker that says nothing of bytes");
}

Test(joined, progress_is_all_only_when_all_are_staged)
{
    serve(3, 1);
    rollout_with_bytes("staging", 1, 20000, 20000);
    cr_assert(tells_progress(1, 19999, 20000), "one of them loads it still");
    rollout_with_bytes("staged", 2, 20000, 20000);
    cr_assert(tells_progress(2, 20000, 20000));
    rollout_with_bytes("active", 2, 20000, 30000);
    cr_assert(tells_progress(2, 20000, 20000), "and no more of those that join later");
}

static int is_elsewhere(bool *ret_wanted)
{
    heddle_error_t e = {0};
    command_t c = {.kind = COMMAND_IS_ELSEWHERE, .error = &e};
    publisher_node_do(w.node, &c, w.now);
    *ret_wanted = c.elsewhere.is_wanted;
    int rc = c.rc;
    cr_assert_eq(e.code, rc ? HEDDLE_ERR_VERSION_FAILED : 0);
    return rc;
}

Test(joined, the_last_version_is_held_when_another_has_its_bytes)
{
    bool is_wanted;
    cr_assert_eq(is_elsewhere(&is_wanted), HEDDLE_OK, "there is none");
    serve(3, 1);
    cr_assert_eq(is_elsewhere(&is_wanted), HEDDLE_ERR_AGAIN);
    cr_assert_not(is_wanted, "nobody is known to fetch it");
    rollout(3, "staging", 0, 2, 0, 0);
    cr_assert_eq(is_elsewhere(&is_wanted), HEDDLE_ERR_AGAIN);
    cr_assert(is_wanted);
    serve(4, 2);
    cr_assert_eq(is_elsewhere(&is_wanted), HEDDLE_ERR_AGAIN);
    cr_assert(is_wanted, "the one before it is on its way");
    rollout(3, "staging", 0, 2, 2, 0);
    cr_assert_eq(is_elsewhere(&is_wanted), HEDDLE_ERR_AGAIN, "no process has anything of version 4");
    cr_assert_not(is_wanted);
    rollout(4, "staging", 0, 2, 1, 0);
    cr_assert_eq(is_elsewhere(&is_wanted), HEDDLE_OK);
}

Test(joined, a_version_that_ended_is_waited_for_no_longer)
{
    bool is_wanted;
    serve(3, 1);
    rollout(3, "failed", HEDDLE_ERR_VERSION_FAILED, 2, 0, 0);
    cr_assert_eq(is_elsewhere(&is_wanted), HEDDLE_ERR_VERSION_FAILED);
    rollout(3, "superseded", 0, 2, 0, 0);
    cr_assert_eq(is_elsewhere(&is_wanted), HEDDLE_OK);
    serve(4, 2);
    rollout(4, "staging", 0, 1, 0, 0);
    release(4);
    cr_assert_eq(is_elsewhere(&is_wanted), HEDDLE_OK, "the broker lets go of us");
}

Test(joined, leaving_says_so_and_ends_serving)
{
    serve(3, 1);
    leave();
    cr_assert_eq(sent(MSG_LEAVE)->leave.token, TOKEN);
    cr_assert_not(has_left());
    msg_t bye = {.type = MSG_BYE, .bye = {.token = TOKEN, .req = sent(MSG_LEAVE)->leave.req}};
    say(&bye);
    cr_assert(has_left());
    cr_assert_eq(fetch(3, 4096), TR_REFUSED);
}

Test(node, leaving_without_a_broker_is_at_once)
{
    leave();
    cr_assert(has_left());
}

Test(joined, leaving_is_bounded)
{
    leave();
    w.now += SECOND;
    tick();
    cr_assert(has_left());
}

/* -- whose it is ------------------------------------------------------------------------------ */

static void leave_it(void *n) { publisher_node_do(n, &(command_t){.kind = COMMAND_LEAVE}, w.now); }

Test(joined, another_thread_may_not_make_it_leave, ENDS_THE_PROCESS)
{
    owner_t owner = {0};
    w.io.owner = &owner;
    owner_check(&owner);
    on_another_thread(leave_it, w.node);
}
