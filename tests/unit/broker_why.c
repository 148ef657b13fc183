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

static void progress(uint64_t peer, msg_progress_t p)
{
    p.adapter = "policy";
    p.data_bytes = 5000;
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(peer, &m);
}

static void fetching(uint64_t peer, uint64_t version, uint64_t bytes_done)
{
    progress(peer, (msg_progress_t){.fetching = version, .bytes_done = bytes_done});
}

static void unreached(uint64_t peer, uint64_t version, const char *message)
{
    progress(peer, (msg_progress_t){.fetching = version, .message = message});
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
    is_missing("w2", "fetch", "deadline",
               "1200 of 5000 bytes fetched within 1000 ms (as of its last heartbeat)");
    is_missing("w3", "stage", "deadline",
               "has all bytes, and has not said that it loaded them within 1000 ms");
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

/* w3 came after the announcement: the rollout does not wait for it, and it stands for no other. */
Test(why, the_deadline_counts_those_that_were_waited_for)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 1000});
    rig_worker(W3, "w3");
    rig_staged(W1, 1, 1);
    rig_staged(W3, 1, 1);
    rig_pass(1500);
    cr_assert_str_eq(rig_version(1)->message,
                     "1 of 2 workers staged policy@1 within 1000 ms; missing: w2 in phase announce");
}

/* Its link may be cut, or the process stands still: that is where an operator begins. */
Test(why, a_silent_worker_is_said_to_be_silent)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 3000});
    R.is_quiet[W2] = true;
    rig_pass(2900);
    fetching(W1, 1, 1200);
    rig_pass(100);
    cr_assert_str_eq(rig_version(1)->message,
                     "0 of 2 workers staged policy@1 within 3000 ms; missing: w1 in phase fetch, w2 in phase "
                     "announce (no message for 3.0 s)");
    is_missing("w1", "fetch", "deadline",
               "1200 of 5000 bytes fetched within 3000 ms (as of its last heartbeat)");
    is_missing("w2", "announce", "deadline",
               "has not begun to fetch within 3000 ms, and sent no message for 3.0 s");
}

Test(why, each_has_its_own_reason)
{
    publish_to(2, (rig_publish_t){0});
    fetching(W1, 1, 1200);
    rig_nack(W2, 1, 0, "verify", "digest_mismatch");
    is_missing("w1", "fetch", "version_failed",
               "1200 of 5000 bytes fetched when the version ended (as of its last heartbeat)");
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

/* ---- behind another version ---- */

static const json_t *version(uint64_t version);
static const char *ask(msg_query_t q);
static const char *text(const json_t *o, const char *key);
static long long number(const json_t *o, const char *key);

Test(why, a_version_that_waits_for_another_names_it)
{
    publish_to(2, (rig_publish_t){0});
    rig_publish(T, (rig_publish_t){.digest = 2, .deadline_ms = 1000});
    rig_pass(100);
    cr_assert_eq(told()->version, 2);
    cr_assert_str_eq(told()->message, "waits for policy@1 (staged on 0 of 2)");
    rig_staged(W1, 1, 1);
    rig_pass(100);
    cr_assert_str_eq(told()->message, "waits for policy@1 (staged on 1 of 2)");
    cr_assert_str_eq(told()->code, "", "it is no failure");
    cr_assert_str_eq(json_string_value(json_object_get(version(2), "note")),
                     "waits for policy@1 (staged on 1 of 2)");
    cr_assert(json_is_null(json_object_get(version(1), "note")));
    rig_staged(W2, 1, 1);
    rig_pass(100);
    cr_assert_str_eq(told()->message, "", "it has begun");
    cr_assert(json_is_null(json_object_get(version(2), "note")));
}

/* Of how many workers is known when they are back.  A version that was published since the start is reported
 * on before. */
Test(why, while_the_broker_settles_the_counts_are_left_out)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_restart();
    rig_open(T, "policy", "trainer", 1, false);
    msg_subscription_t sub = {.adapter = "policy"};
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_STAGED, .digest = rig_digest(1)};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_pass(500);
    cr_assert_eq(told()->version, 2);
    cr_assert_str_eq(told()->message, "waits for policy@1");
    rig_worker(W2, "w2");
    rig_pass(LEASE_MS);
    const msg_rollout_t *last = NULL; /* of version 2 */
    for (size_t i = 0; i < R.letter_count; i++)
        if (R.letters[i].m.type == MSG_ROLLOUT && R.letters[i].m.rollout.version == 2)
            last = &R.letters[i].m.rollout;
    cr_assert_str_eq(last->message, "waits for policy@1 (staged on 1 of 2)");
}

Test(why, a_mistyped_adapter_is_near_one_that_workers_subscribe_to)
{
    rig_worker(W1, "w1");
    rig_open(T, "polcy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.adapter = "polcy", .digest = 1});
    rig_pass(100);
    cr_assert_str_eq(told()->state, "staging");
    cr_assert_str_eq(told()->code, "no_workers");
    cr_assert_str_eq(told()->message, "did you mean policy? workers subscribe to it, and none to polcy");
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

static const json_t *version(uint64_t version)
{
    ask((msg_query_t){.op = "versions", .name = "policy"});
    return json_array_get(json_object_get(body, "versions"), version - 1);
}

static const json_t *worker(size_t i) { return json_array_get(json_object_get(body, "workers"), i); }
static const char *text(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}
static long long number(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

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
    cr_assert_null(
        ask((msg_query_t){.op = "wait", .name = "policy", .version = 1, .exact = true, .deadline_ms = 100}));
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
    cr_assert_str_eq(ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .dry_run = true}),
                     "");
    cr_assert_eq(number(body, "have_count"), 0);
    cr_assert_eq(number(body, "decision"), 2, "the one that stands");
    cr_assert_eq(number(worker(0), "version"), 2);
    cr_assert_str_eq(text(worker(0), "state"), "active");
    cr_assert_str_eq(ask((msg_query_t){.op = "activate", .name = "policy", .version = 2, .dry_run = true}),
                     "");
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
    cr_assert_str_eq(text(error, "message"), "policy@1 was retired: no process holds its bytes any more");
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

/* The error of a wait that ran into its deadline. */
static const json_t *late_error(uint64_t number)
{
    cr_assert_null(ask((msg_query_t){.op = "wait", .name = "policy", .version = number, .deadline_ms = 100}));
    rig_pass(200);
    heddle_error_t e;
    json_decref(body);
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, &e), HEDDLE_OK);
    return json_object_get(body, "error");
}

Test(why, a_wait_for_what_an_operator_activates_names_the_command)
{
    publish_to(1, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    cr_assert_null(strstr(text(late_error(1), "hint"), "heddle activate"), "it is not staged yet");
    rig_staged(W1, 1, 1);
    const json_t *error = late_error(1);
    cr_assert_str_eq(text(error, "code"), "deadline");
    cr_assert_str_eq(text(error, "found"), "0; it is staged, and its activation is manual");
    cr_assert_str_eq(text(error, "hint"), "`heddle activate policy@1` makes it the one to serve");
}

Test(why, a_wait_under_a_hold_names_the_command)
{
    two_versions();
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann"});
    rig_publish(T, (rig_publish_t){.digest = 3});
    const json_t *error = late_error(3);
    cr_assert_str_eq(text(error, "code"), "deadline");
    cr_assert(!strncmp(text(error, "found"), "0; policy is held at policy@1 by ann since ", 43), "%s",
              text(error, "found"));
    cr_assert_str_eq(text(error, "hint"), "`heddle resume policy` ends the hold");
}

Test(why, who_has_not_answered_is_waited_for)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_staged(W2, 1, 1);
    rig_nack(W1, 1, 1, "activate", "version_failed");
    cr_assert_null(ask((msg_query_t){.op = "wait", .name = "policy", .version = 1}));
    cr_assert_null(ask((msg_query_t){.op = "wait",
                                     .name = "policy",
                                     .version = 1,
                                     .quorum_kind = HEDDLE_QUORUM_COUNT,
                                     .quorum_n = 1}));
    rig_active(W2, 1, 1, 1);
    cr_assert_eq(rig_count(MSG_REPORT), 2, "all have answered; one is enough for the second question");
    cr_assert_str_eq(rig_last(ADMIN, MSG_REPORT)->report.code, "");
    cr_assert_str_eq(ask((msg_query_t){.op = "wait", .name = "policy", .version = 1}), "version_failed");
}

/* ---- on its way, and no byte comes ---- */

static const json_t *row(const char *list, const char *worker)
{
    const json_t *rows = json_object_get(body, list);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *r = json_array_get(rows, i);
        const char *name = text(r, "worker") ? text(r, "worker") : text(r, "name");
        if (!strcmp(name, worker)) return r;
    }
    cr_assert_fail("%s has no %s", list, worker);
    return NULL;
}

/* Its row of `workers`. */
static const json_t *standing(const char *name)
{
    ask((msg_query_t){.op = "workers"});
    return json_array_get(json_object_get(row("workers", name), "adapters"), 0);
}

/* Its row of `versions policy@VERSION`. */
static const json_t *copy(uint64_t version, const char *name)
{
    ask((msg_query_t){.op = "versions", .name = "policy", .version = version});
    json_t *found = json_incref(json_array_get(json_object_get(body, "versions"), 0));
    json_decref(body);
    body = found;
    return row("workers", name);
}

static bool is_why(const json_t *r, const char *message)
{
    const char *code = text(r, "code"), *said = text(r, "message");
    if (!message) return !code && !said;
    return code && said && !strcmp(code, "unavailable") && !strcmp(said, message);
}

/* w1 serves policy@1; w2 came late and reaches nobody. */
static void one_reaches_nobody(void)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_worker(W2, "w2");
    fetching(W2, 1, 0);
    cr_assert(is_why(standing("w2"), NULL));
    unreached(W2, 1, "cannot reach trainer");
}

Test(why, who_reaches_nobody_says_so_everywhere)
{
    one_reaches_nobody();
    cr_assert(is_why(standing("w2"), "cannot reach trainer"));
    cr_assert_str_eq(text(standing("w2"), "state"), "fetching");
    cr_assert(is_why(copy(1, "w2"), "cannot reach trainer"));
    cr_assert(is_why(copy(1, "w1"), NULL));
    const event_row_t *e = rig_event(EVENT_SOURCE_LOST);
    cr_assert(!strcmp(e->worker, "w2") && !strcmp(e->message, "cannot reach trainer"));
    cr_assert_eq(e->code, HEDDLE_ERR_UNAVAILABLE);
    unreached(W2, 1, "cannot reach trainer");
    cr_assert_eq(rig_event_count(EVENT_SOURCE_LOST), 1, "once");
    cr_assert_null(ask((msg_query_t){.op = "wait", .name = "policy", .version = 1, .deadline_ms = 100}),
                   "it goes on trying: no refusal");
    R.is_quiet[W2] = true;
    rig_pass(200);
    heddle_error_t error;
    json_decref(body);
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, &error), HEDDLE_OK);
    cr_assert_str_eq(text(row("missing", "w2"), "code"), "unavailable");
    cr_assert_str_eq(text(row("missing", "w2"), "phase"), "fetch");
}

Test(why, it_is_over_when_bytes_come)
{
    one_reaches_nobody();
    fetching(W2, 1, 1200);
    cr_assert(is_why(standing("w2"), NULL));
    cr_assert(is_why(copy(1, "w2"), NULL));
    unreached(W2, 1, "cannot reach trainer");
    rig_staged(W2, 1, 1);
    rig_active(W2, 1, 1, 1);
    cr_assert(is_why(standing("w2"), NULL));
    cr_assert(is_why(copy(1, "w2"), NULL));
}

Test(why, a_publisher_hears_of_who_reaches_nobody)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 2000});
    rig_staged(W1, 1, 1);
    fetching(W2, 1, 0);
    rig_pass(250);
    unreached(W2, 1, "cannot reach trainer");
    rig_pass(250);
    is_missing("w2", "fetch", "unavailable", "cannot reach trainer");
    fetching(W2, 1, 1200);
    rig_pass(250);
    is_missing("w2", "fetch", "", "1200 of 5000 bytes fetched");
    unreached(W2, 1, "cannot reach trainer");
    rig_pass(2000);
    cr_assert_str_eq(rig_state(1), "failed");
    is_missing("w2", "fetch", "unavailable", "cannot reach trainer");
}

/* What it serves is well; what it is on its way to is not. */
Test(why, who_serves_the_active_version_and_reaches_nobody_for_the_next)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    unreached(W2, 2, "cannot reach trainer");
    cr_assert_str_eq(text(standing("w2"), "state"), "active");
    cr_assert(is_why(standing("w2"), "cannot reach trainer"));
    cr_assert(is_why(standing("w1"), NULL));
}

Test(why, who_was_lost_was_lost_whatever_it_said_before)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    unreached(W2, 1, "cannot reach trainer");
    rig_leave(W2);
    R.tokens[W2] = 0;
    rig_pass(250);
    const msg_missing_t *m = missing("w2");
    cr_assert(!strncmp(m->message, "left in phase fetch", 19), "%s", m->message);
}

/* All that the worker says of it is shown, also where it is long: at the copy, to the publisher and as the
 * reason of the version. */
Test(why, a_refusal_is_shown_whole)
{
    char said[420] = "", all[600], failed[700];
    while (strlen(said) < 380) strcat(said, "a line of the engine's log ");
    msg_t m = {.type = MSG_NACK};
    publish_to(1, (rig_publish_t){0});
    m.nack = (msg_nack_t){.token = R.tokens[W1],
                          .version = 1,
                          .adapter = "policy",
                          .phase = "stage",
                          .code = "version_failed",
                          .message = said,
                          .expected = "exit status 0",
                          .found = "exit status 3",
                          .hint = "run the hook by hand"};
    rig_frame(W1, &m);
    snprintf(all, sizeof all, "%s; expected exit status 0; found exit status 3; hint: run the hook by hand",
             said);
    snprintf(failed, sizeof failed, "policy@1 failed at w1 in phase stage: %s", all);
    is_missing("w1", "stage", "version_failed", all);
    cr_assert_str_eq(told()->message, failed);
    cr_assert_str_eq(text(copy(1, "w1"), "message"), all);
}

/* The cluster goes back to a version that was put away there, and a reader still holds its memory. */
Test(why, a_version_that_waits_for_its_former_slot_has_not_begun)
{
    static const char WAITS[] = "its former slot here is not free yet (readers: 1)";
    publish_to(2, (rig_publish_t){0});
    msg_progress_t p = {.adapter = "policy", .fetching = 1, .message = WAITS};
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = R.tokens[W2], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(W2, &m);
    const json_t *r = copy(1, "w2");
    cr_assert_str_eq(text(r, "state"), "announced");
    cr_assert_str_eq(text(r, "code"), "no_slot");
    cr_assert_str_eq(text(r, "message"), WAITS);
    is_missing("w2", "announce", "no_slot", WAITS);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_LOST), 0, "no source is to blame");
    fetching(W2, 1, 100);
    cr_assert_null(text(copy(1, "w2"), "code"));
}

/* The next version is fetched first: what it could not have is announced again after that. */
Test(why, what_is_put_off_is_no_trouble)
{
    one_reaches_nobody();
    rig_publish(T, (rig_publish_t){.digest = 2});
    fetching(W2, 2, 0);
    cr_assert(is_why(standing("w2"), NULL));
    cr_assert(is_why(copy(1, "w2"), NULL));
}

/* ---- a drain ---- */

/* Of two that are to leave neither counts as one that has the version: that it is elsewhere too is said of
 * none.  What another adapter has is no reason. */
Test(why, what_keeps_a_worker_that_is_to_leave)
{
    msg_subscription_t subs[] = {{.adapter = "critic"}, {.adapter = "policy"}};
    publish_to(2, (rig_publish_t){0});
    rig_hello(W3, ROLE_WORKER);
    rig_join_with(W3, "w3", subs, 2, NULL, 0);
    roll_out(3, 1, 1, 1);
    rig_leave(T);
    R.tokens[T] = 0;
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "drain", .name = "w1"});
    cr_assert_null(text(standing("w1"), "note"), "others have it");
    rig_query(ADMIN, (msg_query_t){.op = "drain", .name = "w2"});
    rig_query(ADMIN, (msg_query_t){.op = "drain", .name = "w3"});
    cr_assert_str_eq(text(standing("w1"), "note"), "draining: no process that stays has policy@1");
    cr_assert_str_eq(text(standing("w2"), "note"), "draining: no process that stays has policy@1");
    cr_assert_null(text(standing("w3"), "note"), "of critic there is no version");
}

/* ---- ordered to switch ---- */

static void is_switching(const char *note)
{
    const char *first = text(standing("w2"), "note");
    cr_assert(first && !strcmp(first, note), "%s, not %s", first ? first : "none", note);
    cr_assert_null(text(standing("w2"), "code"));
    cr_assert_str_eq(text(copy(2, "w2"), "state"), "committed");
    const char *second = text(copy(2, "w2"), "note");
    cr_assert(second && !strcmp(second, note), "%s, not %s", second ? second : "none", note);
}

Test(why, an_application_that_does_not_say_that_it_switched)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_pass(1000);
    rig_staged(W1, 2, 2);
    rig_staged(W2, 2, 2);
    rig_active(W1, 2, 2, 2);
    cr_assert_null(text(standing("w1"), "note"));
    rig_pass(250);
    cr_assert_null(text(standing("w2"), "note"), "it was ordered just now");
    rig_pass(150);
    is_switching("switching for 400 ms: its application has not said that it switched");
    rig_pass(2100);
    is_switching("switching for 2.5 s: its application has not said that it switched");
    rig_publish(T, (rig_publish_t){.digest = 3});
    fetching(W2, 3, 100);
    is_switching("switching for 2.5 s: its application has not said that it switched");
    R.is_quiet[W2] = true;
    rig_pass(3000);
    is_switching("no message for 3.0 s (lease 4.0 s)");
    rig_active(W2, 2, 2, 2);
    cr_assert_null(text(copy(2, "w2"), "note"));
}

/* The application of w2 is in the midst of its switch to policy@2 when that is taken back. */
Test(why, an_application_that_is_still_switching_to_what_was_taken_back)
{
    static const char NOTE[] = "switching to policy@2 for 5.5 s, then to policy@1: its application has not "
                               "said that it switched";
    one_of_two_switches();
    rig_pass(2500);
    cr_assert_null(ask(
        (msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann", .deadline_ms = 3000}));
    rig_active(W1, 1, 3, 1);
    rig_pass(3000);
    heddle_error_t e;
    json_decref(body);
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, &e), HEDDLE_OK);
    const json_t *missing = row("missing", "w2");
    cr_assert_str_eq(text(missing, "phase"), "activate");
    cr_assert_str_eq(text(missing, "code"), "deadline");
    cr_assert(text(missing, "note") && !strcmp(text(missing, "note"), NOTE), "%s", text(missing, "note"));
    const char *note = text(standing("w2"), "note");
    cr_assert(note && !strcmp(note, NOTE), "%s", note);
    cr_assert_null(text(standing("w1"), "note"));
    note = text(copy(1, "w2"), "note");
    cr_assert(note && !strcmp(note, NOTE), "%s", note);
    rig_active(W2, 2, 2, 2);
    rig_pass(2500);
    note = text(standing("w2"), "note");
    cr_assert_str_eq(note, "switching for 2.5 s: its application has not said that it switched");
    rig_active(W2, 1, 3, 1);
    cr_assert_null(text(standing("w2"), "note"));
    cr_assert_null(text(copy(1, "w2"), "note"));
    rig_pass(2500);
    cr_assert_null(text(standing("w2"), "note"));
}

/* w2 answered the roll-back alone: it never switched to policy@2, and is not asked to any more. */
Test(why, an_application_that_never_switched_to_what_was_taken_back)
{
    R.keep = R.b->rollout.keep = R.b->opts.keep = 8;
    one_of_two_switches();
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann"});
    rig_active(W1, 1, 3, 1);
    rig_active(W2, 1, 3, 1);
    rig_pass(1000);
    rig_publish(T, (rig_publish_t){.digest = 3});
    rig_staged(W1, 3, 3);
    rig_staged(W2, 3, 3);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 3, .by = "ann"});
    rig_active(W1, 3, 4, 3);
    rig_pass(2500);
    cr_assert_str_eq(text(standing("w2"), "note"),
                     "switching for 2.5 s: its application has not said that it switched");
}

/* w2 has all bytes of policy@3, and its application is in the midst of its switch to policy@2. */
static void all_bytes_while_it_switches(void)
{
    one_of_two_switches();
    rig_pass(1000);
    rig_publish(T, (rig_publish_t){.digest = 3, .deadline_ms = 4000});
    rig_staged(W1, 3, 3);
    fetching(W2, 3, 5000);
}

Test(why, it_loads_since_its_switch_to_the_earlier_version_ended)
{
    all_bytes_while_it_switches();
    rig_pass(2000);
    rig_active(W2, 2, 2, 2);
    rig_pass(100);
    const char *note = text(copy(3, "w2"), "note");
    cr_assert(note && !strcmp(note, "loading for 100 ms"), "%s", note);
}

Test(why, all_bytes_and_an_application_that_switches_to_an_earlier_version)
{
    all_bytes_while_it_switches();
    rig_pass(500);
    is_missing("w2", "stage", "",
               "has all bytes, and has not said that it loaded them, busy with its switch to version 2");
    const char *note = text(copy(3, "w2"), "note");
    cr_assert(note && !strcmp(note, "busy: switching to policy@2 for 1.6 s"), "%s", note);
    rig_pass(3500);
    cr_assert_str_eq(rig_state(3), "failed");
    is_missing("w2", "stage", "deadline",
               "has all bytes, and has not said that it loaded them within 4000 ms, busy with its switch to "
               "version 2");
    rig_active(W2, 2, 2, 2);
    cr_assert_str_eq(text(copy(3, "w2"), "note"),
                     "given up with all bytes, busy with its switch to policy@2: deadline");
    const json_t *slowest = json_object_get(body, "slowest"), *rest = json_object_get(body, "rest");
    cr_assert_str_eq(text(slowest, "phase"), "fetch");
    cr_assert_str_eq(text(rest, "message"), "w2 was busy with its switch to policy@2");
}

Test(why, all_bytes_and_an_application_that_has_switched)
{
    all_bytes_while_it_switches();
    rig_active(W2, 2, 2, 2);
    rig_pass(500);
    is_missing("w2", "stage", "", "has all bytes, and has not said that it loaded them");
    const char *note = text(copy(3, "w2"), "note");
    cr_assert(note && !strncmp(note, "loading for ", 12), "%s", note);
}

/* ---- the active version is lost ---- */

static const char HELD_AND_LOST[] = "policy is held at policy@1 by ann since ";
static const char CURE[] =
    ", and that version is lost: `heddle activate policy@3` serves the newest that is there";

static const json_t *warning(size_t i)
{
    ask((msg_query_t){.op = "status"});
    return json_array_get(json_object_get(body, "warnings"), i);
}

static bool tells_cure(const json_t *r)
{
    const char *said = text(r, "message");
    size_t cure = strlen(CURE), bytes = said ? strlen(said) : 0;
    return bytes > cure && !strncmp(said, HELD_AND_LOST, strlen(HELD_AND_LOST)) &&
           !strcmp(said + bytes - cure, CURE);
}

/* Taken back to version 1, whose only holder ends; version 3 is published, and staged on another worker. */
static void held_at_what_is_lost(void)
{
    two_versions();
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann"});
    rig_active(W1, 1, 3, 1);
    rig_leave(W1);
    R.tokens[W1] = 0;
    cr_assert_str_eq(rig_state(1), "lost");
    rig_worker(W2, "w2");
    rig_publish(T, (rig_publish_t){.digest = 3});
}

Test(why, a_worker_of_an_adapter_that_is_held_at_a_lost_version)
{
    held_at_what_is_lost();
    fetching(W2, 3, 100);
    cr_assert_str_eq(text(standing("w2"), "code"), "version_lost",
                     "also while it fetches what will not be served");
    rig_staged(W2, 3, 3);
    const json_t *s = standing("w2");
    cr_assert_str_eq(text(s, "state"), "staged");
    cr_assert_str_eq(text(s, "code"), "version_lost");
    cr_assert(tells_cure(s), "%s", text(s, "message"));
    cr_assert(tells_cure(warning(0)), "%s", text(warning(0), "message"));
    cr_assert_str_eq(text(warning(0), "name"), "version.lost");
    cr_assert_null(warning(1));
    cr_assert_eq(rig_event_count(EVENT_ADAPTER_HELD), 2, "when it was held, and when that version was lost");
    cr_assert_eq(rig_event(EVENT_ADAPTER_HELD)->code, HEDDLE_ERR_VERSION_LOST);
    ask((msg_query_t){.op = "activate", .name = "policy", .version = 3});
    rig_active(W2, 3, 4, 3);
    cr_assert_null(text(standing("w2"), "code"));
    cr_assert_null(warning(0));
}

Test(why, a_publisher_hears_that_the_version_it_is_held_at_is_lost)
{
    held_at_what_is_lost();
    rig_staged(W2, 3, 3);
    const msg_rollout_t *r = told();
    cr_assert_str_eq(r->code, "held");
    cr_assert(!strncmp(r->message, HELD_AND_LOST, strlen(HELD_AND_LOST)) &&
                  strstr(r->message, ", and that version is lost"),
              "%s", r->message);
}

Test(why, a_lost_version_that_is_not_held_waits_for_the_next)
{
    static const char LOST[] =
        "no connected process holds the bytes of policy@2, the active version: publish again";
    two_versions();
    rig_leave(T);
    rig_leave(W1);
    R.tokens[T] = R.tokens[W1] = 0;
    rig_worker(W2, "w2");
    cr_assert_str_eq(text(standing("w2"), "message"), LOST);
    cr_assert_str_eq(text(warning(0), "message"), LOST);
    cr_assert_eq(rig_event_count(EVENT_ADAPTER_HELD), 0);
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 3});
    fetching(W2, 3, 100);
    cr_assert_null(text(standing("w2"), "code"), "it is on its way to what will be served");
    rig_staged(W2, 3, 3);
    rig_active(W2, 3, 3, 3);
    cr_assert_null(warning(0));
}

/* Why no byte comes is no answer any more: no process has them. */
Test(why, a_worker_that_fetches_what_is_lost_waits_for_lost_bytes)
{
    two_versions();
    rig_leave(T);
    R.tokens[T] = 0;
    rig_worker(W2, "w2");
    unreached(W2, 2, "cannot reach w1 over lo: no answer there");
    cr_assert_str_eq(text(standing("w2"), "code"), "unavailable");
    rig_leave(W1);
    R.tokens[W1] = 0;
    unreached(W2, 2, "cannot reach w1 over lo: no answer there");
    cr_assert_str_eq(text(standing("w2"), "code"), "version_lost");
}

/* It was fetching the active version when the last holder ended, and then another version was published. */
Test(why, a_worker_that_serves_the_next_version_has_left_the_lost_one)
{
    two_versions();
    rig_leave(T);
    R.tokens[T] = 0;
    rig_worker(W2, "w2");
    fetching(W2, 2, 1250);
    rig_leave(W1);
    R.tokens[W1] = 0;
    cr_assert_str_eq(rig_state(2), "lost");
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 3});
    fetching(W2, 3, 100);
    rig_staged(W2, 3, 3);
    rig_active(W2, 3, 3, 3);
    rig_pass(3000);
    const json_t *s = standing("w2");
    cr_assert_str_eq(text(s, "state"), "active");
    cr_assert_null(text(s, "code"));
    cr_assert_null(text(s, "note"), "%s", text(s, "note"));
    cr_assert_null(text(copy(2, "w2"), "note"), "%s", text(copy(2, "w2"), "note"));
}

/* ---- what a worker that waits for a lost version is sent ---- */

static const char IS_LOST[] =
    "no connected process holds the bytes of policy@2, the active version: publish again";

/* The last session of w2 was sent so many; the last one is about policy@2. */
static int sent_lost(void)
{
    int count = 0;
    const msg_abort_t *last = NULL;
    for (size_t i = 0; i < R.letter_count; i++) {
        const msg_t *m = &R.letters[i].m;
        if (R.letters[i].peer != W2 || m->type != MSG_ABORT || m->abort.token != R.tokens[W2]) continue;
        if (m->abort.version != 2) continue;
        last = &m->abort;
        count++;
    }
    if (last) cr_assert_str_eq(last->code, "version_lost");
    if (last) cr_assert_str_eq(last->message, IS_LOST);
    return count;
}

static void all_holders_go(void)
{
    rig_leave(T);
    rig_leave(W1);
    R.tokens[T] = R.tokens[W1] = 0;
}

Test(why, a_late_joiner_hears_that_the_active_version_is_lost_once)
{
    two_versions();
    all_holders_go();
    cr_assert_str_eq(rig_state(2), "lost");
    rig_worker(W2, "w2");
    cr_assert_eq(sent_lost(), 1);
    rig_pass(3 * LEASE_MS);
    cr_assert_eq(sent_lost(), 1);
    rig_worker(W2, "w2");
    cr_assert_eq(sent_lost(), 1, "another session gets it too");
}

Test(why, a_worker_that_waits_hears_it_when_the_last_holder_goes)
{
    two_versions();
    rig_leave(T);
    R.tokens[T] = 0;
    rig_worker(W2, "w2");
    fetching(W2, 2, 100);
    cr_assert_eq(sent_lost(), 0);
    all_holders_go();
    cr_assert_eq(sent_lost(), 1, "also one that has begun to fetch");
}

Test(why, a_worker_hears_of_a_loss_when_the_broker_has_settled)
{
    two_versions();
    all_holders_go();
    rig_restart();
    rig_worker(W2, "w2");
    cr_assert_eq(sent_lost(), 0, "holders may be on their way");
    rig_pass(LEASE_MS + 500);
    cr_assert_eq(sent_lost(), 1);
}

Test(why, while_the_next_version_is_on_its_way_nothing_is_said)
{
    two_versions();
    all_holders_go();
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 3});
    rig_worker(W2, "w2");
    cr_assert_eq(sent_lost(), 0);
    rig_leave(T);
    R.tokens[T] = 0;
    rig_pass(2 * LEASE_MS);
    cr_assert_eq(sent_lost(), 1, "that one has failed");
}

/* As many warnings as an answer has room for, and the number of the others. */
Test(why, lost_versions_of_many_adapters)
{
    enum { MANY = 40, NAMED = 32 };
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    size_t count = R.record_count;
    for (size_t i = 0; i < count * MANY; i++) {
        char name[32];
        record_t rec = R.records[i % count];
        if (rec.kind != RECORD_ADAPTER && rec.kind != RECORD_VERSION && rec.kind != RECORD_DECISION) continue;
        snprintf(name, sizeof name, "a%zu", i / count);
        rec.adapter = name;
        rig_commit(NULL, &rec, 1, NULL);
    }
    rig_restart();
    rig_pass(LEASE_MS + 500);
    msg_hello_t stranger = {.role = ROLE_WORKER,
                            .host = "h2",
                            .pid = 9,
                            .life = {{1}},
                            .cluster = "elsewhere"};
    cr_assert_not_null(strangers_hello(&R.b->foreign, &stranger, "here", R.now));
    rig_pass(1000);
    ask((msg_query_t){.op = "status"});
    const json_t *list = json_object_get(body, "warnings");
    cr_assert_eq(json_array_size(list), NAMED + 2);
    for (size_t i = 1; i < json_array_size(list); i++)
        cr_assert_leq(strcmp(text(json_array_get(list, i - 1), "at"), text(json_array_get(list, i), "at")),
                      0);
    cr_assert_str_eq(text(json_array_get(list, NAMED), "name"), "broker.other_cluster");
    cr_assert(!strncmp(text(json_array_get(list, NAMED + 1), "message"), "9 more adapters ", 16), "%s",
              text(json_array_get(list, NAMED + 1), "message"));
}

/* ---- workers that wait for each other's bytes ---- */

static const json_t *detail(void)
{
    ask((msg_query_t){.op = "versions", .name = "policy", .version = 1});
    return json_array_get(json_object_get(body, "versions"), 0);
}

static const json_t *copy_at(uint64_t peer)
{
    return json_array_get(json_object_get(detail(), "workers"), peer - W1);
}

#define MB 1048576ull

static void fetch_from(uint64_t peer, uint64_t source, uint64_t bytes)
{
    msg_progress_t p = {.adapter = "policy",
                        .fetching = 1,
                        .bytes_done = bytes,
                        .data_bytes = 20 * MB,
                        .source = R.tokens[source]};
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(peer, &m);
}

/* Each worker fetches from the one before it, the first one from the trainer; `bytes`: what each has. */
static void fetch_along(const uint64_t *bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) fetch_from(W1 + i, i ? W1 + i - 1 : T, bytes[i]);
}

static const uint64_t FIRST_IS_SLOW[] = {6 * MB, 6 * MB, 5 * MB, 5 * MB},
                      SECOND_IS_SLOW[] = {16 * MB, 6 * MB, 6 * MB, 5 * MB};

Test(why, those_behind_a_slow_worker_wait_for_it)
{
    publish_to(4, (rig_publish_t){.payload_bytes = 20 * MB});
    fetch_along(SECOND_IS_SLOW, 4);
    cr_assert_null(text(copy_at(W1), "waits_for"));
    cr_assert_null(text(copy_at(W2), "waits_for"), "what it lacks is at w1");
    cr_assert_str_eq(text(copy_at(W3), "waits_for"), "w2");
    cr_assert_str_eq(text(copy_at(W4), "waits_for"), "w2");
    cr_assert(strstr(text(copy_at(W4), "note"), "waits for w2"), "%s", text(copy_at(W4), "note"));
    cr_assert_str_eq(text(json_object_get(detail(), "slowest"), "worker"), "w2", "and not the last one");
}

Test(why, those_behind_the_first_one_wait_for_that)
{
    publish_to(4, (rig_publish_t){.payload_bytes = 20 * MB});
    fetch_along(FIRST_IS_SLOW, 4);
    for (uint64_t peer = W2; peer <= W4; peer++) cr_assert_str_eq(text(copy_at(peer), "waits_for"), "w1");
    cr_assert_null(text(copy_at(W1), "waits_for"), "its source is the publisher");
}

Test(why, a_silent_worker_is_waited_for_whatever_its_source)
{
    publish_to(4, (rig_publish_t){.payload_bytes = 20 * MB});
    fetch_along(FIRST_IS_SLOW, 4);
    R.is_quiet[W3] = true;
    rig_pass(LEASE_MS * 3 / 4);
    fetch_along(FIRST_IS_SLOW, 2);
    cr_assert_str_eq(text(copy_at(W4), "waits_for"), "w3");
    cr_assert_str_eq(text(copy_at(W2), "waits_for"), "w1");
}

Test(why, a_worker_with_all_bytes_is_not_waited_for)
{
    static const uint64_t BYTES[] = {20 * MB, 20 * MB, 19 * MB, 19 * MB};
    publish_to(4, (rig_publish_t){.payload_bytes = 20 * MB});
    fetch_along(BYTES, 4);
    cr_assert_null(text(copy_at(W3), "waits_for"));
    cr_assert_str_eq(text(copy_at(W4), "waits_for"), "w3");
}

Test(why, workers_that_fetch_in_a_circle_wait_for_none)
{
    publish_to(2, (rig_publish_t){.payload_bytes = 20 * MB});
    fetch_along(FIRST_IS_SLOW, 2);
    fetch_from(W1, W2, 6 * MB);
    cr_assert_null(text(copy_at(W1), "waits_for"));
    cr_assert_null(text(copy_at(W2), "waits_for"));
}

Test(why, the_progress_of_all_workers)
{
    publish_to(4, (rig_publish_t){.payload_bytes = 20 * MB});
    fetch_along(SECOND_IS_SLOW, 4);
    const json_t *p = json_object_get(detail(), "progress");
    cr_assert_eq(number(p, "bytes_done"), 33 * MB);
    cr_assert_eq(number(p, "all_bytes"), 80 * MB);
    cr_assert_eq(number(p, "worker_count"), 4);
    rig_pass(1000);
    static const uint64_t LATER[] = {18 * MB, 7 * MB, 7 * MB, 7 * MB};
    fetch_along(LATER, 4);
    p = json_object_get(detail(), "progress");
    cr_assert_eq(number(p, "bytes_done"), 39 * MB);
    long long rate = number(p, "rate_bytes");
    cr_assert(rate > 3 * (long long)MB && rate <= 6 * (long long)MB, "%lld", rate);
    roll_out(4, 1, 1, 1);
    cr_assert(json_is_null(json_object_get(detail(), "progress")));
}
