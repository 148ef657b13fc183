/* SPDX-License-Identifier: Apache-2.0 */
/* Why something is not there: what missing workers, waits and activations are told. */
#include "broker_rig.h"

#include <jansson.h>

static json_t *body;
static void stop(void)
{
    json_decref(body);
    body = NULL;
    rig_stop();
}
TestSuite(why, .init = rig_start, .fini = stop);

static const msg_missing_t *missing(const char *worker)
{
    const msg_rollout_t *r = told();
    for (uint32_t i = 0; i < r->missing_count; i++)
        if (!strcmp(r->missing[i].worker, worker)) return &r->missing[i];
    cr_assert_fail("%s is not missing", worker);
    return NULL;
}

static void is_missing(const char *worker, const char *phase, const char *code, const char *message)
{
    const msg_missing_t *m = missing(worker);
    cr_assert_str_eq(m->phase, phase);
    cr_assert_str_eq(m->code, code);
    cr_assert_str_eq(m->message, message);
}

static void fetching(uint64_t peer, uint64_t version, uint64_t bytes_done)
{
    msg_progress_t p = {.adapter = "policy", .fetching = version, .bytes_done = bytes_done, .data_bytes = 5000};
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(peer, &m);
}

/* ---- missing ---- */

Test(why, a_deadline_is_a_deadline_wherever_it_met_a_worker)
{
    publish_to(4, (rig_publish_t){.deadline_ms = 1000});
    fetching(W2, 1, 1200);
    fetching(W3, 1, 5000);
    rig_staged(W4, 1, 1);
    rig_pass(1500);
    cr_assert_str_eq(rig_state(1), "failed");
    is_missing("w1", "announce", "deadline", "has not begun to fetch within 1000 ms");
    is_missing("w2", "fetch", "deadline", "1200 of 5000 bytes fetched within 1000 ms");
    is_missing("w3", "stage", "deadline", "has all bytes, and has not said that it loaded them within 1000 ms");
    cr_assert_eq(told()->missing_count, 3);
}

/* Connecting and packing took four of its five seconds. */
Test(why, the_deadline_that_is_told_is_the_one_that_was_asked_for)
{
    publish_to(1, (rig_publish_t){.deadline_ms = 1000, .asked_ms = 5000});
    rig_publish(T, (rig_publish_t){.digest = 2, .deadline_ms = 500, .asked_ms = 4000});
    rig_pass(750);
    cr_assert_str_eq(rig_version(2)->message,
                     "policy@2 waited for policy@1, which was not decided within 4000 ms");
    rig_pass(750);
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_str_eq(rig_version(1)->message,
                     "0 of 1 workers staged policy@1 within 5000 ms; missing: w1 in phase announce");
    is_missing("w1", "announce", "deadline", "has not begun to fetch within 5000 ms");
    cr_assert_eq(told()->deadline_ms, 5000);
}

Test(why, each_has_its_own_reason)
{
    publish_to(2, (rig_publish_t){0});
    fetching(W1, 1, 1200);
    rig_nack(W2, 1, 0, "verify", "digest_mismatch");
    is_missing("w1", "fetch", "version_failed", "1200 of 5000 bytes fetched when the version ended");
    is_missing("w2", "verify", "digest_mismatch", "exit status 3; found 3");
}

Test(why, who_was_told_to_switch_and_says_nothing)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_staged(W2, 1, 1);
    rig_active(W1, 1, 1, 1);
    is_missing("w2", "activate", "", "has not said that it switched");
}

/* ---- staged, said ---- */

Test(why, one_of_two_is_not_staged)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_nack(W2, 1, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_event_count(EVENT_VERSION_STAGED), 0);
}

Test(why, two_of_two_are)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    cr_assert_eq(rig_event_count(EVENT_VERSION_STAGED), 0);
    rig_staged(W2, 1, 1);
    cr_assert_eq(rig_event_count(EVENT_VERSION_STAGED), 1);
}

/* ---- wait, activate ---- */

static const char *ask(msg_query_t q)
{
    rig_drop_letters();
    if (!R.tokens[ADMIN]) rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, q);
    rig_flush();
    if (!rig_has(ADMIN, MSG_REPORT)) return NULL;
    const msg_report_t *r = &rig_last(ADMIN, MSG_REPORT)->report;
    heddle_error_t e;
    json_decref(body);
    cr_assert_eq(value_decode(r->body, &body, &e), HEDDLE_OK);
    return r->code;
}

static const json_t *worker(size_t i) { return json_array_get(json_object_get(body, "workers"), i); }
static const char *text(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }
static long long number(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static void two_versions(void)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
}

Test(why, a_state_is_of_the_version_beside_it)
{
    two_versions();
    cr_assert_null(ask((msg_query_t){.op = "wait", .name = "policy", .version = 1, .exact = true, .deadline_ms = 100}));
    rig_pass(200);
    json_decref(body);
    heddle_error_t e;
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, &e), HEDDLE_OK);
    cr_assert_eq(number(worker(0), "version"), 2);
    cr_assert_str_eq(text(worker(0), "state"), "active");
}

Test(why, what_is_tried_out_has_not_happened)
{
    two_versions();
    cr_assert_str_eq(ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .dry_run = true}), "");
    cr_assert_eq(number(body, "have_count"), 0);
    cr_assert_eq(number(body, "decision"), 2, "the one that stands");
    cr_assert_eq(number(worker(0), "version"), 2);
    cr_assert_str_eq(text(worker(0), "state"), "active");
    cr_assert_str_eq(ask((msg_query_t){.op = "activate", .name = "policy", .version = 2, .dry_run = true}), "");
    cr_assert_eq(number(body, "have_count"), 1);
}

Test(why, retired_is_not_failed)
{
    two_versions();
    rig_publish(T, (rig_publish_t){.digest = 3});
    roll_out(1, 3, 3, 3);
    cr_assert_str_eq(rig_state(1), "retired");
    const char *code = ask((msg_query_t){.op = "wait", .name = "policy", .version = 1, .exact = true});
    cr_assert_str_eq(code, "version_lost");
    const json_t *error = json_object_get(body, "error");
    cr_assert_str_eq(text(error, "message"), "policy@1 was retired: nobody holds its bytes any more");
    cr_assert_str_eq(text(error, "found"), "retired");
}

Test(why, a_failure_is_told_once)
{
    publish_to(1, (rig_publish_t){0});
    rig_nack(W1, 1, 0, "stage", "version_failed");
    cr_assert_str_eq(ask((msg_query_t){.op = "wait", .name = "policy", .version = 1}), "version_failed");
    const json_t *error = json_object_get(body, "error");
    cr_assert_str_eq(text(error, "message"), "policy@1 failed at w1 in phase stage: exit status 3; found 3");
    cr_assert_null(text(error, "found"));
}

Test(why, once_all_have_said_no_nothing_is_waited_for)
{
    two_versions();
    cr_assert_null(ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann"}));
    rig_nack(W1, 1, 3, "activate", "version_failed");
    const msg_report_t *r = &rig_last(ADMIN, MSG_REPORT)->report;
    cr_assert_str_eq(r->code, "version_failed");
    cr_assert_str_eq(ask((msg_query_t){.op = "wait", .name = "policy", .version = 1}), "version_failed");
    const json_t *error = json_object_get(body, "error");
    cr_assert_str_eq(text(error, "message"), "policy@1 was refused by w1: exit status 3; found 3");
    cr_assert_str_eq(text(error, "worker"), "w1");
    cr_assert_null(ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann"}),
                   "named again it tries again");
    rig_active(W1, 1, 4, 1);
    cr_assert_str_eq(rig_last(ADMIN, MSG_REPORT)->report.code, "");
}

Test(why, who_has_not_answered_is_waited_for)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_staged(W2, 1, 1);
    rig_nack(W1, 1, 1, "activate", "version_failed");
    cr_assert_null(ask((msg_query_t){.op = "wait", .name = "policy", .version = 1}));
    cr_assert_null(ask((msg_query_t){.op = "wait", .name = "policy", .version = 1, .quorum_kind = HEDDLE_QUORUM_COUNT, .quorum_n = 1}));
    rig_active(W2, 1, 1, 1);
    cr_assert_eq(rig_count(MSG_REPORT), 2, "all have answered; one is enough for the second question");
    cr_assert_str_eq(rig_last(ADMIN, MSG_REPORT)->report.code, "");
    cr_assert_str_eq(ask((msg_query_t){.op = "wait", .name = "policy", .version = 1}), "version_failed");
}
