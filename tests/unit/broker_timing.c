/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a version went. */
#include "timing_rig.h"

TestSuite(timing, .init = rig_start, .fini = stop);

static void operate(const char *op, uint64_t number)
{
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN,
              (msg_query_t){.op = op, .name = "policy", .version = number, .by = "ann", .deadline_ms = 100});
}

static void switch_to(uint64_t peer, uint64_t number, uint64_t decision, uint64_t switch_us)
{
    msg_t m = {.type = MSG_ACTIVE};
    m.active = (msg_active_t){.token = R.tokens[peer],
                              .version = number,
                              .decision = decision,
                              .adapter = "policy",
                              .digest = rig_digest(number),
                              .activate_us = switch_us};
    rig_frame(peer, &m);
}

/* ---- when it is active ---- */

Test(timing, from_its_record_to_the_decision_and_what_was_slowest)
{
    publish_to(2, (rig_publish_t){0});
    rig_pass(250);
    stage(W1, 100, 20);
    rig_pass(250);
    stage(W2, 300, 190);
    const json_t *v = version();
    is(v, "took_ms", "500.0");
    is(v, "so_far_ms", "null");
    is_slowest(v, "w2", "fetch", "300.0");
    is(v, "rest", "null");
}

Test(timing, a_worker_that_joins_later_changes_nothing)
{
    publish_to(1, (rig_publish_t){0});
    rig_pass(250);
    stage(W1, 200, 20);
    rig_active(W1, 1, 1, 1);
    rig_worker(W2, "w2");
    rig_pass(2000);
    stage(W2, 1900, 20);
    msg_t m = {.type = MSG_ACTIVE};
    m.active = (msg_active_t){.token = R.tokens[W2],
                              .version = 1,
                              .decision = 1,
                              .adapter = "policy",
                              .digest = rig_digest(1),
                              .activate_us = 9000};
    rig_frame(W2, &m);
    const json_t *v = version();
    is(v, "switch", "{\"worker\":\"w1\",\"ms\":0.0050000000000000001}");
    is(v, "took_ms", "250.0");
    is_slowest(v, "w1", "fetch", "200.0");
    is(copy(0), "awaited", "true");
    is(copy(1), "awaited", "false");
}

Test(timing, a_worker_that_was_waited_for_until_it_was_lost)
{
    publish_to(2, (rig_publish_t){0});
    stage(W1, 70, 0);
    R.is_quiet[W2] = true;
    rig_pass(LEASE_MS + 1000);
    const json_t *v = version(), *rest = json_object_get(v, "rest");
    double took_ms = json_number_value(json_object_get(v, "took_ms"));
    cr_assert(took_ms >= LEASE_MS && took_ms <= LEASE_MS + 1000, "%f", took_ms);
    is_slowest(v, "w1", "fetch", "70.0");
    is(rest, "message", "\"waiting for w2, lost when its lease ended\"");
    cr_assert_float_eq(json_number_value(json_object_get(rest, "ms")), took_ms - 71, 0.1);
}

/* Its application loaded the version before, for 6 s, and then this one. */
Test(timing, an_application_that_was_busy_with_another_version)
{
    publish_to(1, (rig_publish_t){0});
    rig_pass(9000);
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = R.tokens[W1],
                              .version = 1,
                              .adapter = "policy",
                              .digest = rig_digest(1),
                              .connect_us = 1000,
                              .fetch_us = 99000,
                              .busy_us = 6000000,
                              .stage_us = 2900000};
    rig_frame(W1, &m);
    const json_t *v = version();
    is_slowest(v, "w1", "stage", "2900.0");
    is(json_object_get(v, "rest"), "message", "\"w1 was busy with another version\"");
    is(json_object_get(v, "rest"), "ms", "6000.0");
}

Test(timing, a_fetch_that_lost_a_source_says_so)
{
    publish_to(1, (rig_publish_t){0});
    uint64_t lost[] = {R.tokens[T]};
    rig_need_sources(W1, 1, (msg_need_sources_t){.lost = lost, .lost_count = 1});
    rig_pass(8000);
    stage(W1, 7900, 0);
    version();
    is(copy(0), "state", "\"committed\"");
    is(copy(0), "note", "\"a source was lost, or did not answer for a time, while it fetched\"");
}

/* w2 took longest, to fetch and to switch. */
static void w2_takes_longest(void)
{
    publish_to(2, (rig_publish_t){0});
    stage(W1, 70, 0);
    rig_pass(3000);
    stage(W2, 2900, 0);
    switch_to(W1, 1, 1, 5000);
    switch_to(W2, 1, 1, 900000);
    is_slowest(version(), "w2", "fetch", "2900.0");
    is(version(), "switch", "{\"worker\":\"w2\",\"ms\":900.0}");
}

Test(timing, the_slowest_worker_is_named_when_it_has_left)
{
    w2_takes_longest();
    rig_leave(W2);
    is_slowest(version(), "w2", "fetch", "2900.0");
    is(version(), "rest", "null");
    is(version(), "switch", "{\"worker\":\"w2\",\"ms\":900.0}");
    rig_leave(W1);
    rig_worker(W3, "w3"); /* of those that were waited for none is left */
    stage(W3, 2950, 0);
    switch_to(W3, 1, 1, 990000);
    is_slowest(version(), "w2", "fetch", "2900.0");
    is(version(), "switch", "{\"worker\":\"w2\",\"ms\":900.0}");
}

Test(timing, the_slowest_worker_is_named_when_it_was_started_again)
{
    w2_takes_longest();
    R.is_gone[W2] = true;
    rig_hello_as(W3, ROLE_WORKER, W3);
    msg_subscription_t sub = {.adapter = "policy"};
    rig_join_with(W3, "w2", &sub, 1, NULL, 0);
    stage(W3, 30, 0);
    is_slowest(version(), "w2", "fetch", "2900.0");
    is(version(), "rest", "null");
}

static void staged_from(uint64_t peer, const char *source, source_kind_t kind)
{
    msg_served_t from = {.kind = kind, .bytes = 8192, .name = source};
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = R.tokens[peer],
                              .version = 1,
                              .adapter = "policy",
                              .digest = rig_digest(1),
                              .fetch_us = 70000,
                              .sources = &from,
                              .source_count = 1};
    rig_frame(peer, &m);
}

/* From which sources a worker fetched: the first one, of the row that is there, or of a former process. */
static void is_from(const char *list, size_t i, const char *worker, const char *source)
{
    const json_t *row = json_array_get(json_object_get(version(), list), i);
    const json_t *from = json_array_get(json_object_get(row, "sources"), 0);
    cr_assert(json_is_object(from), "%s of %s has no source", list, worker);
    cr_assert_str_eq(json_string_value(json_object_get(row, "worker")), worker);
    cr_assert_str_eq(json_string_value(json_object_get(from, "name")), source);
}

static void w2_fetches_from_w1(void)
{
    publish_to(2, (rig_publish_t){0});
    staged_from(W1, "trainer", SOURCE_PUBLISHER);
    staged_from(W2, "w1", SOURCE_WORKER);
    switch_to(W1, 1, 1, 5000);
    switch_to(W2, 1, 1, 5000);
    is(version(), "former", "[]");
    is(version(), "former_count", "0");
}

Test(timing, what_a_worker_fetched_before_it_was_started_again)
{
    w2_fetches_from_w1();
    R.is_gone[W1] = true;
    rig_hello_as(W3, ROLE_WORKER, W3);
    msg_subscription_t sub = {.adapter = "policy"};
    rig_join_with(W3, "w1", &sub, 1, NULL, 0);
    staged_from(W3, "w2", SOURCE_WORKER);
    is_from("workers", 0, "w1", "w2");
    is_from("workers", 1, "w2", "w1");
    is_from("former", 0, "w1", "trainer");
    is(json_array_get(json_object_get(version(), "former"), 0), "fetch_ms", "70.0");
    is(version(), "former_count", "1");
}

Test(timing, what_a_worker_fetched_that_has_left)
{
    w2_fetches_from_w1();
    rig_leave(W1);
    is_from("workers", 0, "w2", "w1");
    is_from("former", 0, "w1", "trainer");
}

/* Its session ended, and its process and its bytes did not. */
Test(timing, what_a_worker_fetched_that_comes_back)
{
    w2_fetches_from_w1();
    R.is_quiet[W1] = true;
    rig_pass(LEASE_MS + 1000);
    is_from("former", 0, "w1", "trainer");
    R.is_quiet[W1] = false;
    rig_hello(W1, ROLE_WORKER);
    msg_subscription_t sub = {.adapter = "policy", .decision = 1, .version = 1};
    msg_held_t held = {.adapter = "policy", .version = 1, .digest = rig_digest(1), .state = HELD_ACTIVE};
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    is_from("workers", 0, "w1", "trainer");
    is(version(), "former", "[]");
    is(version(), "former_count", "0");
}

/* A worker that is started again and again leaves so many, and the others are counted. */
Test(timing, former_processes_are_limited)
{
    w2_fetches_from_w1();
    uint64_t former = W1, next = W3;
    for (uint64_t life = 0; life < LIMIT_FORMER + 5; life++) {
        R.is_gone[former] = true;
        R.is_gone[next] = false;
        rig_hello_as(next, ROLE_WORKER, 1000 + life);
        msg_subscription_t sub = {.adapter = "policy"};
        rig_join_with(next, "w1", &sub, 1, NULL, 0);
        staged_from(next, "w2", SOURCE_WORKER);
        next = former;
        former = next == W1 ? W3 : W1;
    }
    const json_t *v = version();
    is(v, "former_count", "133");
    cr_assert_eq(json_array_size(json_object_get(v, "former")), LIMIT_FORMER, "%zu",
                 json_array_size(json_object_get(v, "former")));
    is_from("former", 0, "w1", "trainer");
}

/* What it does at a later decision is no part of the way to the first one. */
Test(timing, a_switch_back_to_a_version_is_no_part_of_what_it_took)
{
    publish_to(1, (rig_publish_t){0});
    stage(W1, 70, 0);
    switch_to(W1, 1, 1, 5000);
    rig_publish(T, (rig_publish_t){.digest = 2});
    stage_version(W1, 2, 70, 0);
    switch_to(W1, 2, 2, 5000);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1, .deadline_ms = 100});
    switch_to(W1, 1, 3, 990000);
    is(json_object_get(copy(0), "timing"), "activate_ms", "990.0");
    is(version(), "switch", "{\"worker\":\"w1\",\"ms\":5.0}");
}

Test(timing, workers_that_still_switch_are_named)
{
    publish_to(3, (rig_publish_t){0});
    stage(W1, 70, 0);
    stage(W2, 70, 0);
    is(version(), "unfinished", "null");
    rig_pass(1000);
    stage(W3, 990, 0);
    switch_to(W1, 1, 1, 5000);
    rig_pass(2000);
    is(version(), "unfinished", "{\"worker\":\"w2\",\"phase\":\"activate\",\"ms\":2000.0,\"count\":2}");
    is(version(), "took_ms", "1000.0");
    switch_to(W2, 1, 1, 1900000);
    is(json_object_get(version(), "unfinished"), "worker", "\"w3\"");
    switch_to(W3, 1, 1, 2000000);
    is(version(), "unfinished", "null");
}

Test(timing, workers_that_still_fetch_an_active_version_are_named)
{
    publish_to(3, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    stage(W1, 1, 0);
    rig_worker(W4, "w4"); /* a joiner is not awaited */
    rig_pass(1000);
    beat(W2, 1, 1000);
    rig_pass(500);
    is(version(), "unfinished", "{\"worker\":\"w3\",\"phase\":\"announce\",\"ms\":1500.0,\"count\":3}");
    rig_nack(W3, 1, 0, "verify", "digest_mismatch");
    is(version(), "unfinished", "{\"worker\":\"w2\",\"phase\":\"fetch\",\"ms\":500.0,\"count\":2}");
    rig_publish(T, (rig_publish_t){.digest = 2, .activation = HEDDLE_ACTIVATION_AS_READY});
    stage_version(W1, 2, 1, 0);
    is(version(), "unfinished", "null"); /* another one is active */
}

Test(timing, of_a_version_that_is_active_as_ready_the_first_worker_counts)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_pass(500);
    stage(W1, 490, 0);
    rig_pass(3000);
    switch_to(W1, 1, 1, 5000);
    stage(W2, 3400, 0);
    switch_to(W2, 1, 1, 900000);
    is(version(), "took_ms", "500.0");
    is_slowest(version(), "w1", "fetch", "490.0");
    is(version(), "rest", "null");
    is(version(), "switch", "{\"worker\":\"w1\",\"ms\":5.0}");
}

/* Also one that was not there at the announcement, and where a hold comes between. */
Test(timing, a_joiner_may_be_the_first_of_a_version_as_ready)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    operate("activate", 1);
    switch_to(W1, 1, 3, 5);
    rig_publish(T, (rig_publish_t){.digest = 3, .activation = HEDDLE_ACTIVATION_AS_READY});
    rig_worker(W2, "w2");
    rig_pass(500);
    stage_version(W2, 3, 450, 0);
    rig_pass(5000);
    stage_version(W1, 3, 5400, 0);
    operate("resume", 0);
    is(newest(3), "took_ms", "5500.0");
    is(json_object_get(newest(3), "slowest"), "worker", "\"w2\"");
    is(json_object_get(newest(3), "rest"), "message", "\"held at policy@1\"");
}

Test(timing, how_fast_the_slowest_fetched_is_said_when_it_has_left)
{
    join_with_rate(W2, "w2", 5100);
    publish_to(1, (rig_publish_t){0});
    stage(W1, 70, 0);
    rig_pass(1000);
    stage(W2, 1000, 0);
    switch_to(W2, 1, 1, 5);
    rig_leave(W2);
    const json_t *slowest = json_object_get(version(), "slowest");
    is(slowest, "rate_bytes", "5000");
    is(slowest, "max_rate_bytes", "5100");
}

/* Its new session has another row, and the version keeps what it waited for. */
Test(timing, a_lost_worker_that_came_back_is_still_named)
{
    publish_to(2, (rig_publish_t){0});
    stage(W1, 70, 0);
    R.is_quiet[W2] = true;
    rig_pass(LEASE_MS + 1000);
    cr_assert_eq(membership_worker(&R.b->members, "w2")->state, MEMBER_LOST);
    rig_worker(W2, "w2");
    cr_assert_eq(membership_worker(&R.b->members, "w2")->state, MEMBER_READY);
    is(json_object_get(version(), "rest"), "message", "\"waiting for w2, lost when its lease ended\"");
    rig_leave(W2);
    is(json_object_get(version(), "rest"), "message", "\"waiting for w2, lost when its lease ended\"");
}

Test(timing, a_worker_that_was_started_again)
{
    publish_to(2, (rig_publish_t){0});
    stage(W1, 70, 0);
    rig_pass(1500);
    R.is_gone[W2] = true;
    rig_hello_as(W3, ROLE_WORKER, W3);
    msg_subscription_t sub = {.adapter = "policy"};
    rig_join_with(W3, "w2", &sub, 1, NULL, 0);
    rig_pass(2000);
    const json_t *v = version();
    is(v, "took_ms", "1500.0");
    is(json_object_get(v, "rest"), "message", "\"waiting for w2, which was started again\"");
}

/* One that was gone before the slowest had it cost nothing. */
Test(timing, several_workers_that_were_waited_for)
{
    publish_to(4, (rig_publish_t){0});
    rig_pass(500);
    rig_leave(W4);
    rig_pass(500);
    stage(W1, 900, 0);
    rig_pass(1000);
    rig_leave(W2);
    R.is_quiet[W3] = true;
    rig_pass(LEASE_MS + 1000);
    is(json_object_get(version(), "rest"), "message",
       "\"waiting for w2, which left; for w3, lost when its lease ended\"");
}

/* The last ones are kept, the others are counted. */
Test(timing, more_workers_than_are_remembered)
{
    char name[16];
    for (uint64_t i = 0; i < LIMIT_GONE + 3; i++) {
        snprintf(name, sizeof name, "x%llu", (unsigned long long)i);
        rig_worker(20 + i, name);
    }
    publish_to(1, (rig_publish_t){0});
    stage(W1, 70, 0);
    rig_pass(1000);
    for (uint64_t i = 0; i < LIMIT_GONE + 3; i++) rig_leave(20 + i);
    const char *message = json_string_value(json_object_get(json_object_get(version(), "rest"), "message"));
    cr_assert_not_null(message);
    cr_assert_not_null(strstr(message, "waiting for x3, which left; for x4"), "%s", message);
    cr_assert_not_null(strstr(message, "; and for 3 others"), "%s", message);
}

Test(timing, a_worker_that_was_lost_afterwards_took_no_time)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_pass(2000);
    stage(W1, 70, 0);
    R.is_quiet[W2] = true;
    rig_pass(LEASE_MS + 1000);
    const json_t *v = version();
    is(v, "took_ms", "2000.0");
    is(json_object_get(v, "rest"), "message", "\"w1 waited, in none of its phases\"");
}

Test(timing, a_broker_that_was_away)
{
    publish_to(1, (rig_publish_t){0});
    rig_pass(1000);
    rig_restart();
    rig_pass(LEASE_MS / 2);
    msg_held_t none[1];
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, none, 0);
    rig_open(T, "policy", "trainer", 1, false);
    rig_pass(LEASE_MS);
    stage(W1, 900, 0);
    const json_t *v = version();
    is(v, "state", "\"active\"");
    is_slowest(v, "w1", "fetch", "900.0");
    is(json_object_get(v, "rest"), "message", "\"the broker was away or settling\"");
    double took_ms = json_number_value(json_object_get(v, "took_ms"));
    cr_assert(took_ms >= 1000 + LEASE_MS, "%f", took_ms);
}

Test(timing, an_operator_that_was_waited_for)
{
    publish_to(1, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    stage(W1, 70, 0);
    rig_pass(3000);
    is(version(), "slowest", "null");
    is(version(), "so_far_ms", "3000.0");
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1, .deadline_ms = 100});
    is(json_object_get(version(), "rest"), "message", "\"waiting for heddle activate\"");
}

/* Also after a restart, which knows no more who was waited for. */
Test(timing, a_version_that_is_named_again_took_what_it_took)
{
    publish_to(1, (rig_publish_t){0});
    rig_pass(500);
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_pass(5000);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1, .deadline_ms = 100});
    cr_assert_eq(registry_adapter(&R.b->registry, "policy")->active, 1);
    is(version(), "took_ms", "500.0");
    rig_restart();
    is(version(), "took_ms", "500.0");
}

/* The worker joins again with version 1 active, which it took so long to fetch. */
static void restate(uint64_t peer, const char *name, uint64_t fetch_ms)
{
    msg_held_t held = {.adapter = "policy",
                       .version = 1,
                       .state = HELD_ACTIVE,
                       .digest = rig_digest(1),
                       .fetch_us = fetch_ms * 1000,
                       .activate_us = 5};
    msg_subscription_t sub = {.adapter = "policy", .decision = 1, .version = 1};
    rig_hello(peer, ROLE_WORKER);
    rig_join_with(peer, name, &sub, 1, &held, 1);
}

/* Which workers the decision waited for is not known after a start.  A guess could name a worker that joined
 * when the version had long been active. */
Test(timing, a_restarted_broker_blames_no_worker_for_an_earlier_decision)
{
    publish_to(1, (rig_publish_t){0});
    rig_pass(250);
    stage(W1, 70, 0);
    rig_active(W1, 1, 1, 1);
    rig_pass(1000);
    is_slowest(version(), "w1", "fetch", "70.0");
    rig_restart();
    restate(W1, "w1", 70);
    restate(W2, "w2", 8800);
    rig_pass(2 * LEASE_MS);
    const json_t *v = version();
    is(v, "took_ms", "250.0");
    is(v, "slowest", "null");
    is(v, "rest", "null");
    is(v, "switch", "null");
    is(json_object_get(v, "rollout"), "eligible_count", "null");
    is(json_object_get(v, "rollout"), "active_count", "2");
    is(copy(0), "awaited", "null");
    is(copy(1), "awaited", "null");
}

Test(timing, the_list_of_versions_has_the_time_too)
{
    publish_to(1, (rig_publish_t){0});
    rig_pass(250);
    stage(W1, 100, 20);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_hello(ADMIN, ROLE_ADMIN);
    json_decref(body);
    heddle_error_t error;
    rig_query(ADMIN, (msg_query_t){.op = "versions", .name = "policy"});
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, &error), HEDDLE_OK);
    is(json_array_get(json_object_get(body, "versions"), 0), "took_ms", "250.0");
    is(json_array_get(json_object_get(body, "versions"), 1), "took_ms", "null");
}

/* ---- a version that was never active ---- */

Test(timing, a_version_that_failed_shows_where_its_workers_were)
{
    publish_to(3, (rig_publish_t){.deadline_ms = 2500});
    stage(W1, 10, 0);
    rig_pass(1000);
    beat(W2, 1, 2000);
    rig_pass(2000);
    is(version(), "state", "\"failed\"");
    is(copy(0), "state", "null");
    is(copy(0), "note", "\"had all of it, and dropped it: deadline\"");
    is(copy(1), "state", "null");
    is(copy(1), "note", "\"given up, with 2.0 kB of 5.0 kB at its last heartbeat: deadline\"");
    is(copy(2), "note", "\"given up before it began: deadline\"");
    char *then = json_dumps(json_object_get(version(), "workers"), JSON_COMPACT);
    rig_pass(60000);
    beat(W2, 1, 3000); /* it has not received ABORT yet */
    char *now = json_dumps(json_object_get(version(), "workers"), JSON_COMPACT);
    cr_assert_str_eq(now, then, "nothing goes on after the end");
    free(then);
    free(now);
}

/* Bytes come between two heartbeats, and all of them may be there before the next. */
Test(timing, a_copy_that_was_complete_when_its_version_failed_has_all_bytes)
{
    publish_to(2, (rig_publish_t){0});
    rig_pass(1000);
    beat(W1, 1, 2000);
    rig_nack(W2, 1, 0, "verify", "digest_mismatch");
    is(version(), "state", "\"failed\"");
    is(copy(0), "bytes_done", "2000");
    stage(W1, 900, 20);
    is(copy(0), "bytes_done", "5000");
    is(copy(0), "note", "\"given up with all bytes, while loading: digest_mismatch\"");
}

Test(timing, a_copy_that_is_active_has_all_bytes)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    stage(W1, 10, 0);
    rig_pass(1000);
    beat(W2, 1, 2000);
    rig_active(W2, 1, 1, 1);
    is(copy(1), "state", "\"active\"");
    is(copy(1), "bytes_done", "5000");
}

Test(timing, what_is_in_no_phase_of_a_worker_is_waiting)
{
    publish_to(1, (rig_publish_t){0});
    rig_pass(3000);
    stage(W1, 70, 29);
    is(json_object_get(copy(0), "timing"), "waiting_ms", "2900.0");
}

/* It was stopped, say, and is not the one with the longest phases. */
Test(timing, the_worker_that_waited_in_none_of_its_phases_is_named)
{
    publish_to(2, (rig_publish_t){0});
    rig_pass(100);
    stage(W2, 60, 30);
    rig_pass(1900);
    stage(W1, 20, 9);
    const json_t *v = version();
    is_slowest(v, "w2", "fetch", "60.0");
    is(json_object_get(v, "rest"), "message", "\"w1 waited, in none of its phases\"");
}

Test(timing, a_version_that_failed_took_its_time_until_then)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 2500});
    stage(W1, 10, 0);
    rig_pass(1000);
    beat(W2, 1, 1000);
    rig_pass(60000);
    const json_t *v = version();
    is(v, "took_ms", "null");
    is(v, "so_far_ms", "null");
    is(v, "ended_after_ms", "2500.0");
    is_slowest(v, "w2", "fetch", "1500.0");
    is(v, "rest", "null");
}

Test(timing, a_version_that_a_worker_could_not_verify)
{
    publish_to(2, (rig_publish_t){0});
    rig_pass(1000);
    rig_nack(W2, 1, 0, "verify", "digest_mismatch");
    rig_pass(1000);
    const json_t *v = version();
    is(v, "ended_after_ms", "1000.0");
    is_slowest(v, "w2", "fetch", "1000.0");
    is(copy(1), "state", "\"failed\"");
    is(copy(1), "code", "\"digest_mismatch\"");
}

/* Its network reaches no source: no byte has come, and the worker knows none that it comes from. */
static void beat_unconnected(uint64_t peer)
{
    msg_progress_t p = {.adapter = "policy",
                        .fetching = 1,
                        .data_bytes = 5000,
                        .message = "cannot reach trainer over tcp: no answer there"};
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(peer, &m);
}

Test(timing, a_worker_that_never_reached_a_source_is_slow_in_connect)
{
    publish_to(2, (rig_publish_t){0});
    stage(W1, 10, 0);
    rig_pass(1000);
    beat_unconnected(W2);
    rig_pass(2000);
    beat_unconnected(W2);
    is_slowest(version(), "w2", "connect", "2000.0");
    rig_nack(W2, 1, 0, "fetch", "unavailable");
    const json_t *v = version();
    is(v, "ended_after_ms", "3000.0");
    is_slowest(v, "w2", "connect", "3000.0");
    is(v, "rest", "null");
}

Test(timing, a_worker_that_was_connecting_at_the_deadline_is_slow_in_connect)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 2500});
    stage(W1, 10, 0);
    beat_unconnected(W2);
    rig_pass(3000);
    is_slowest(version(), "w2", "connect", "2500.0");
}

/* It had a source after 2 s, and its fetch failed 1 s later. */
Test(timing, a_worker_that_connected_late_has_both_phases)
{
    publish_to(2, (rig_publish_t){0});
    rig_pass(3000);
    msg_t m = {.type = MSG_NACK};
    m.nack = (msg_nack_t){.token = R.tokens[W2],
                          .version = 1,
                          .adapter = "policy",
                          .phase = "fetch",
                          .code = "gone",
                          .message = "every source is gone",
                          .connect_us = 2000000};
    rig_frame(W2, &m);
    is_slowest(version(), "w2", "connect", "2000.0");
    is(json_object_get(copy(1), "timing"), "connect_ms", "2000.0");
}

/* Its application refused bytes that were whole, so the worker has measured every phase. */
static void refuse(uint64_t peer, uint64_t fetch_ms, uint64_t stage_ms)
{
    msg_t m = {.type = MSG_NACK};
    m.nack = (msg_nack_t){.token = R.tokens[peer],
                          .version = 1,
                          .adapter = "policy",
                          .phase = "stage",
                          .code = "rejected",
                          .message = "exit status 3",
                          .connect_us = 40000,
                          .fetch_us = fetch_ms * 1000,
                          .verify_us = 600,
                          .stage_us = stage_ms * 1000};
    rig_frame(peer, &m);
}

Test(timing, a_worker_that_rejects_it_is_slow_in_the_phase_that_took_longest)
{
    publish_to(2, (rig_publish_t){0});
    rig_pass(3000);
    refuse(W2, 2878, 2);
    const json_t *v = version();
    is(v, "ended_after_ms", "3000.0");
    is_slowest(v, "w2", "fetch", "2878.0");
    is(v, "rest", "null");
}

Test(timing, a_worker_that_rejects_it_late_is_slow_in_stage)
{
    publish_to(2, (rig_publish_t){0});
    rig_pass(3000);
    refuse(W2, 70, 800);
    const json_t *v = version();
    is_slowest(v, "w2", "stage", "800.0");
    is(v, "rest", "{\"ms\":2090.0,\"message\":null}");
}

/* The worker tells how long its phases took when it has finished: the broker knows when the bytes were there. */
Test(timing, a_worker_that_was_loading_at_the_deadline_is_slow_in_the_longest_phase)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 2500});
    stage(W1, 10, 0);
    rig_pass(1000);
    beat(W2, 1, 1000);
    rig_pass(1000);
    beat(W2, 1, 5000);
    rig_pass(1000);
    const json_t *v = version();
    is(v, "ended_after_ms", "2500.0");
    is_slowest(v, "w2", "fetch", "2000.0");
    is(v, "rest", "null");
}

Test(timing, a_worker_that_was_loading_for_most_of_the_time_is_slow_in_stage)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 2500});
    stage(W1, 10, 0);
    rig_pass(1000);
    beat(W2, 1, 5000);
    rig_pass(2000);
    is_slowest(version(), "w2", "stage", "1500.0");
}

/* A new session of the process restates how long the bytes took, and not since when it loads them. */
static void load_on(uint64_t fetch_ms)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 2500});
    stage(W1, 10, 0);
    beat(W2, 1, 5000);
    rig_pass(2000);
    msg_held_t held = {.adapter = "policy",
                       .version = 1,
                       .state = HELD_SEALED,
                       .digest = rig_digest(1),
                       .connect_us = 1000,
                       .fetch_us = fetch_ms * 1000};
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello(W2, ROLE_WORKER);
    rig_join_with(W2, "w2", &sub, 1, &held, 1);
    rig_pass(1000);
    is(version(), "ended_after_ms", "2500.0");
}

Test(timing, a_worker_that_loads_in_a_new_session_has_loaded_since_the_bytes_were_there)
{
    load_on(700);
    is_slowest(version(), "w2", "stage", "1799.0");
}

Test(timing, a_worker_that_loads_in_a_new_session_keeps_what_its_fetch_took)
{
    load_on(1600);
    is_slowest(version(), "w2", "fetch", "1600.0");
}

Test(timing, a_version_that_failed_names_the_workers_that_it_waited_for)
{
    publish_to(2, (rig_publish_t){.deadline_ms = LEASE_MS + 2000});
    rig_pass(500);
    rig_leave(W1);
    R.is_quiet[W2] = true;
    rig_pass(LEASE_MS + 3000);
    const json_t *v = version();
    is(v, "state", "\"failed\"");
    is(v, "slowest", "null");
    is(json_object_get(v, "rest"), "message",
       "\"4.5 s waiting for w1, which left; for w2, lost when its lease ended; 1.5 s without a worker\"");
}

/* The wait for a worker ends when that is lost; what comes after is no part of it. */
Test(timing, the_time_after_the_last_worker_was_lost)
{
    publish_to(1, (rig_publish_t){.deadline_ms = LEASE_MS + 20000});
    uint64_t begun_ms = R.now.wall_ms;
    R.is_quiet[W1] = true;
    while (membership_worker(&R.b->members, "w1")->state != MEMBER_LOST) rig_pass(10);
    uint64_t lost_ms = R.now.wall_ms - begun_ms;
    rig_pass(21000);
    const json_t *v = version(), *rest = json_object_get(v, "rest");
    char want[128];
    snprintf(want, sizeof want,
             "\"%.1f s waiting for w1, lost when its lease ended; %.1f s without a worker\"",
             (double)lost_ms / 1e3, (double)(LEASE_MS + 20000 - lost_ms) / 1e3);
    is(rest, "message", want);
}

/* Another one came, and did not take it either. */
Test(timing, a_worker_that_came_after_the_last_was_lost)
{
    publish_to(1, (rig_publish_t){.deadline_ms = LEASE_MS + 20000});
    R.is_quiet[W1] = true;
    rig_pass(LEASE_MS + 1000);
    rig_worker(W2, "w2");
    rig_pass(20000);
    is(version(), "state", "\"failed\"");
    const char *message = json_string_value(json_object_get(json_object_get(version(), "rest"), "message"));
    cr_assert(!message || !strstr(message, "without a worker"), "%s", message);
}

Test(timing, a_version_without_a_worker)
{
    publish_to(0, (rig_publish_t){.deadline_ms = 1000});
    rig_pass(2000);
    is(version(), "ended_after_ms", "1000.0");
    is(version(), "rest", "{\"ms\":1000.0,\"message\":\"waiting for a worker\"}");
}

/* ---- a hold, and settling ---- */

/* Held at version 1, of two; version 3 is staged by 70 ms of fetch. */
static void held_at_1(void)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    operate("activate", 1);
    rig_active(W1, 1, 3, 1);
    rig_publish(T, (rig_publish_t){.digest = 3});
    stage_version(W1, 3, 70, 0);
}

static bool ends_with(const char *text, const char *end)
{
    size_t bytes = strlen(text), tail = strlen(end);
    return bytes >= tail && !strcmp(text + bytes - tail, end);
}

Test(timing, a_version_under_a_hold_says_so)
{
    held_at_1();
    const json_t *v = newest(3);
    is(v, "state", "\"staged\"");
    is(v, "reason", "null");
    const char *note = json_string_value(json_object_get(v, "note"));
    cr_assert(note && !strncmp(note, "policy is held at policy@1 by ann since ", 40), "%s", note);
    cr_assert(ends_with(note, ": `heddle resume policy` ends the hold, "
                              "`heddle activate policy@3` serves this version"),
              "%s", note);
    rig_pass(20000);
    operate("resume", 0);
    is(newest(3), "took_ms", "20000.0");
    is(newest(3), "note", "null");
    is(json_object_get(newest(3), "rest"), "message", "\"held at policy@1\"");
    rig_publish(T, (rig_publish_t){.digest = 4});
    rig_pass(1000);
    stage_version(W1, 4, 70, 0);
    is(newest(4), "state", "\"active\"");
    is(json_object_get(newest(4), "rest"), "message", "\"w1 waited, in none of its phases\"");
    operate("activate", 3); /* another hold does not change what the earlier version took */
    is(json_object_get(newest(3), "rest"), "message", "\"held at policy@1\"");
}

Test(timing, a_hold_that_moves_to_another_version_goes_on)
{
    held_at_1();
    rig_pass(8000);
    operate("activate", 2);
    rig_pass(2000);
    operate("resume", 0);
    is(newest(3), "took_ms", "10000.0");
    is(json_object_get(newest(3), "rest"), "message", "\"held at policy@2\"");
}

Test(timing, a_version_that_waits_for_an_operator_says_so)
{
    publish_to(1, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    is(version(), "note", "null");
    stage(W1, 70, 0);
    is(version(), "note", "\"waiting for `heddle activate policy@1`\"");
    rig_pass(1000);
    rig_publish(T, (rig_publish_t){.digest = 2});
    is(version(), "state", "\"superseded\"");
    is(version(), "note", "\"superseded by policy@2 before it became active\"");
    is(version(), "ended_after_ms", "1000.0");
    is(json_object_get(version(), "rest"), "message", "\"waiting for heddle activate\"");
    is(copy(0), "note", "\"had all of it, and dropped it: superseded\"");
    cr_assert_str_eq(rig_event(EVENT_VERSION_SUPERSEDED)->message,
                     "superseded by policy@2 before it became active");
    cr_assert_eq(rig_event(EVENT_VERSION_SUPERSEDED)->code, HEDDLE_OK);
}

Test(timing, a_broker_that_was_settling)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_restart();
    rig_worker(W1, "w1");
    rig_open(T, "policy", "trainer", 1, false);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_pass(1000);
    is(newest(2), "note", "\"the broker is settling, and decides nothing for 3.0 s\"");
    rig_pass(LEASE_MS);
    stage_version(W1, 2, 70, 0);
    is(newest(2), "state", "\"active\"");
    is(json_object_get(newest(2), "rest"), "message", "\"the broker was settling\"");
}

/* ---- one version after the other ---- */

/* w1 serves version 1, which w2 still fetches when version 2 is announced. */
static void one_is_behind(void)
{
    one_is_ahead();
    as_ready(2);
    rig_pass(1000);
    beat(W2, 1, 2000), beat(W1, 0, 0);
    rig_pass(1000);
    beat(W2, 1, 3000), beat(W1, 0, 0);
}

Test(timing, a_worker_that_fetches_one_version_before_another)
{
    one_is_behind();
    is(standing(1), "state", "\"fetching\"");
    is(standing(1), "note", "\"fetching policy@1, 1.0 kB/s; then policy@2\"");
    is(json_object_get(standing(1), "fetching"), "rate_bytes", "1000");
    is(copy_in(2, 1), "note", "\"queued behind policy@1\"");
    is(copy_in(1, 1), "note", "\"1.0 kB/s\"");
    beat(W2, 1, 5000);
    is(standing(1), "note", "\"policy@1 loading for 0.0 ms; then policy@2\"");
    stage_version(W2, 1, 3000, 0);
    rig_active(W2, 1, 1, 1);
    rig_pass(1000);
    beat(W2, 2, 800), beat(W1, 0, 0);
    is(standing(1), "note", "\"800 B/s\"");
    is(copy_in(2, 1), "note", "\"800 B/s\"");
}

/* In a chain w2 fetches from w1, which has not begun with version 2. */
Test(timing, a_worker_behind_one_that_fetches_an_older_version_first)
{
    R.shape = PLAN_CHAIN;
    rig_restart();
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    R.is_quiet[W1] = R.is_quiet[W2] = true;
    stage(W2, 1, 0);
    rig_active(W2, 1, 1, 1);
    beat(W1, 1, 1000);
    as_ready(2);
    rig_pass(500);
    beat(W1, 1, 2000), beat(W2, 2, 0);
    is(copy_in(2, 1), "note", "\"waits for w1, which fetches policy@1 first\"");
    rig_drop_letters();
    rig_pass(499);
    beat(W1, 1, 2000), beat(W2, 2, 0);
    cr_assert(!rig_has(W2, MSG_SOURCES), "a heartbeat may be late");
    rig_pass(1);
    beat(W2, 2, 0);
    const msg_sources_t *m = &rig_last(W2, MSG_SOURCES)->sources;
    cr_assert_eq(m->source_count, 1);
    cr_assert_str_eq(m->sources[0].name, "trainer");
    is(copy_in(2, 1), "note", "null");
}

Test(timing, the_phases_of_a_worker_add_up)
{
    one_is_behind();
    stage_version(W2, 1, 3000, 0);
    rig_pass(1000);
    stage_version(W2, 2, 900, 0); /* 3 s after its publication: 1 ms to connect */
    const json_t *c = copy_in(2, 1), *timing = json_object_get(c, "timing");
    is(timing, "announce_ms", "0.0");
    is(timing, "queued_ms", "2099.0");
    is(timing, "fetch_ms", "900.0");
    is(c, "queued_behind", "1");
    is(json_object_get(copy_in(1, 1), "timing"), "queued_ms", "null");
}

/* The fetch goes on in a new session of the process: it began with the first announcement. */
Test(timing, a_link_that_was_cut_is_in_the_fetch_alone)
{
    publish_to(1, (rig_publish_t){0});
    rig_pass(1000);
    beat(W1, 1, 2000);
    R.is_quiet[W1] = true;
    rig_pass(1500);
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, NULL, 0);
    rig_pass(1000);
    stage(W1, 3400, 50);
    is(json_object_get(copy(0), "timing"), "announce_ms", "0.0");
    is(json_object_get(copy(0), "timing"), "fetch_ms", "3400.0");
}
