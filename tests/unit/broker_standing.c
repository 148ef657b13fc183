/* SPDX-License-Identifier: Apache-2.0 */
/* How workers and versions stand, as reports tell it: current, how far behind, since when, and what is lost. */
#include "broker_rig.h"

#include "broker/questions/query.h"

#include <jansson.h>

static json_t *body;
static void drop_body(void)
{
    json_decref(body);
    body = NULL;
}
static void stop(void)
{
    drop_body();
    rig_stop();
}
TestSuite(standing, .init = rig_start, .fini = stop);

static const answer_view_t *view(void)
{
    static answer_view_t v;
    v = query_view(R.b, R.now);
    return &v;
}

static void ask(const char *op, const char *name, uint64_t version)
{
    answer_page_t page;
    heddle_error_t e;
    msg_query_t q = {.op = op, .name = name, .version = version};
    drop_body();
    cr_assert_eq(answer_page(view(), &q, &page, &e), HEDDLE_OK, "%s", e.message);
    body = page.body;
}

/* "workers.0.adapters.0.state" of the last answer is this JSON. */
static void is(const char *path, const char *want)
{
    const json_t *at = body;
    char key[64];
    for (const char *p = path; *p; p += *p == '.') {
        size_t n = strcspn(p, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, p);
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
        cr_assert_not_null(at, "%s of %s", key, path);
        p += n;
    }
    char *text = json_dumps(at, JSON_ENCODE_ANY | JSON_COMPACT);
    cr_assert_str_eq(text, want, "%s", path);
    free(text);
}

static const char *when(uint64_t wall_ms)
{
    static char text[28];
    text[0] = '"';
    clock_text(wall_ms, text + 1);
    strcat(text, "\"");
    return text;
}

static void go(uint64_t peer)
{
    rig_leave(peer);
    R.tokens[peer] = 0;
}

/* ---- current ---- */

Test(standing, who_serves_nothing_is_not_current)
{
    workers(1);
    ask("workers", "", 0);
    is("workers.0.current", "false");
    is("workers.0.adapters.0.lag", "0");
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    ask("workers", "", 0);
    is("workers.0.current", "false");
    ask("adapters", "", 0);
    is("adapters.0.current_count", "0");
    roll_out(1, 1, 1, 1);
    ask("workers", "", 0);
    is("workers.0.current", "true");
}

/* One that drains serves on, and whatever counts ready workers counts those that stay. */
Test(standing, one_that_drains_is_counted_as_ready_nowhere)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "drain", .name = "w1"});
    ask("status", "", 0);
    is("count.workers_ready", "1");
    is("adapters.0.subscriber_count", "1");
    is("adapters.0.current_count", "1");
    rig_query(ADMIN, (msg_query_t){.op = "drain", .name = "w2"});
    ask("status", "", 0);
    is("count.workers_ready", "0");
    is("adapters.0.subscriber_count", "0");
    is("adapters.0.current_count", "0");
    ask("workers", "w2", 0);
    is("workers.0.current", "true");
}

Test(standing, an_adapter_that_nobody_published_to_is_seen)
{
    publish_to(1, (rig_publish_t){0});
    msg_subscription_t subs[] = {{.adapter = "polcy"}, {.adapter = "zebra"}};
    rig_hello(W2, ROLE_WORKER);
    rig_join_with(W2, "w2", subs, 2, NULL, 0);
    rig_hello(W3, ROLE_WORKER);
    rig_join_with(W3, "w3", subs, 2, NULL, 0);
    ask("adapters", "", 0);
    cr_assert_eq(json_array_size(json_object_get(body, "adapters")), 3);
    is("adapters.0.name", "\"polcy\"");
    is("adapters.0.active", "null");
    is("adapters.0.newest", "null");
    is("adapters.0.subscriber_count", "2");
    is("adapters.0.current_count", "0");
    is("adapters.1.name", "\"policy\"");
    is("adapters.2.name", "\"zebra\"");
    ask("status", "", 0);
    is("adapters.0.name", "\"polcy\"");
    go(W2);
    go(W3);
    ask("adapters", "", 0);
    cr_assert_eq(json_array_size(json_object_get(body, "adapters")), 1);
}

Test(standing, pages_of_adapters_meet)
{
    publish_to(1, (rig_publish_t){0});
    msg_subscription_t subs[] = {{.adapter = "a"}, {.adapter = "zebra"}, {.adapter = "policy"}};
    rig_hello(W2, ROLE_WORKER);
    rig_join_with(W2, "w2", subs, 3, NULL, 0);
    static const char *const NAMES[] = {"a", "policy", "zebra"};
    char after[HEDDLE_NAME_MAX + 1] = "";
    for (int i = 0; i < 3; i++) {
        answer_page_t page;
        heddle_error_t e;
        msg_query_t q = {.op = "adapters", .limit = 1, .after_name = after};
        cr_assert_eq(answer_page(view(), &q, &page, &e), HEDDLE_OK);
        cr_assert_str_eq(page.next_name, NAMES[i]);
        cr_assert_eq(page.more, i < 2);
        strcpy(after, page.next_name);
        json_decref(page.body);
    }
}

/* ---- how far behind ---- */

static void name_again(uint64_t version)
{
    rig_query(ADMIN, (msg_query_t){.op = "activate",
                                   .name = "policy",
                                   .version = version,
                                   .by = "ann",
                                   .deadline_ms = 5000});
}

Test(standing, lag_counts_versions_and_not_decisions)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    rig_staged(W2, 2, 2);
    rig_active(W1, 2, 2, 2);
    rig_nack(W2, 2, 2, "activate", "internal");
    uint64_t stale_ms = R.now.wall_ms;
    for (int i = 0; i < 3; i++) {
        rig_pass(100);
        name_again(2); /* w2 tries again, and cannot */
        ask("workers", "", 0);
        is("workers.0.current", "false"); /* it was asked as well, and has not answered */
        rig_active(W1, 2, rig_adapter()->decision, 2);
        rig_nack(W2, 2, rig_adapter()->decision, "activate", "internal");
    }
    cr_assert_eq(rig_adapter()->decision, 5);
    ask("workers", "", 0);
    is("workers.0.adapters.0.lag", "0");
    is("workers.1.adapters.0.lag", "1");
    is("workers.1.current", "false");
    is("workers.1.adapters.0.state", "\"stale\"");
    is("workers.1.adapters.0.since_at", when(R.now.wall_ms));
    cr_assert_lt(stale_ms, R.now.wall_ms);
    ask("adapters", "", 0);
    is("adapters.0.max_lag", "1");
    is("adapters.0.current_count", "1");
}

/* One that was named twice counts once. */
Test(standing, lag_counts_all_later_versions)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_hello(ADMIN, ROLE_ADMIN);
    for (uint64_t v = 2; v < 5; v++) {
        rig_publish(T, (rig_publish_t){.digest = v});
        rig_staged(W1, v, v);
        rig_staged(W2, v, v);
        rig_active(W1, v, v, v);
        rig_nack(W2, v, v, "activate", "internal");
    }
    name_again(4);
    rig_active(W1, 4, rig_adapter()->decision, 4);
    rig_nack(W2, 4, rig_adapter()->decision, "activate", "internal");
    cr_assert_eq(rig_adapter()->decision, 5);
    ask("workers", "", 0);
    is("workers.0.adapters.0.lag", "0");
    is("workers.1.adapters.0.lag", "3");
}

/* The version is chosen again for w2, which refused it; w1 serves it already, and cannot do so again. */
Test(standing, a_refusal_of_a_later_decision_takes_back_no_earlier_one)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_nack(W2, 1, 1, "activate", "internal");
    name_again(1);
    cr_assert_eq(rig_adapter()->decision, 2);
    rig_nack(W1, 1, 2, "activate", "internal");
    const member_sub_t *sub = member_sub(membership_worker(&R.b->members, "w1"), "policy");
    cr_assert(sub->serving.decision == 1 && !sub->serving.is_refused);
    rig_nack(W1, 1, 1, "activate", "internal");
    cr_assert(sub->serving.is_refused);
}

Test(standing, who_serves_nothing_is_one_behind)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    for (uint64_t v = 2; v < 5; v++) {
        rig_publish(T, (rig_publish_t){.digest = v});
        roll_out(1, v, v, v);
    }
    rig_worker(W2, "w2");
    ask("workers", "w2", 0);
    is("workers.0.adapters.0.lag", "1");
    is("workers.0.adapters.0.version", "null");
}

Test(standing, stale_since_the_other_was_chosen)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_pass(1000);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    rig_staged(W2, 2, 2);
    rig_active(W1, 2, 2, 2);
    uint64_t chosen_ms = R.now.wall_ms;
    rig_pass(1000);
    ask("workers", "w2", 0);
    is("workers.0.adapters.0.state", "\"stale\"");
    is("workers.0.adapters.0.since_at", when(chosen_ms));
    ask("versions", "policy", 1);
    is("versions.0.workers.1.state", "\"stale\"");
    is("versions.0.workers.1.since_at", when(chosen_ms));
}

/* ---- without bytes ---- */

Test(standing, what_was_put_away_is_not_kept)
{
    R.b->rollout.keep = 0;
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    cr_assert_str_eq(rig_state(1), "retired");
    ask("versions", "policy", 1);
    is("versions.0.workers.0.state", "null");
    is("versions.0.holder_count", "0");
}

/* They share one memory, and end together. */
Test(standing, two_holders_of_one_host_are_on_one)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    ask("versions", "policy", 0);
    is("versions.0.holder_count", "2");
    is("versions.0.holder_host_count", "1");
    is("versions.0.holder_host", "\"host\"");
}

Test(standing, a_new_process_has_nothing_of_the_old_one)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_publish(T, (rig_publish_t){.digest = 3});
    roll_out(1, 3, 3, 3);
    cr_assert_str_eq(rig_state(1), "retired");
    go(T);
    go(W1);
    ask("workers", "w1", 0);
    is("workers.0.adapters.0.state", "null");
    rig_worker(W1, "w1");
    ask("workers", "w1", 0);
    is("workers.0.adapters.0.version", "null");
    is("workers.0.adapters.0.state", "\"failed\"");
    is("workers.0.adapters.0.code", "\"version_lost\"");
    is("workers.0.current", "false");
}

Test(standing, who_waits_for_nothing_has_no_state)
{
    workers(1);
    rig_open(T, "policy", "trainer", 0, false);
    ask("workers", "w1", 0);
    is("workers.0.adapters.0.state", "null");
    is("workers.0.adapters.0.since_at", "null");
}

/* ---- settling ---- */

Test(standing, settling_is_seen)
{
    ask("status", "", 0);
    is("broker.settling_ms", "0");
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_restart();
    rig_pass(1000);
    ask("status", "", 0);
    is("broker.settling_ms", "3000");
    ask("workers", "", 0);
    is("settling_ms", "3000");
    rig_pass(3000);
    ask("workers", "", 0);
    is("settling_ms", "0");
}

/* ---- why it is lost ---- */

static const char *reason(const char *key)
{
    const json_t *v = json_array_get(json_object_get(body, "versions"), 0);
    return json_string_value(json_object_get(json_object_get(v, "reason"), key));
}

Test(standing, a_lost_version_says_who_had_it_last)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    go(T);
    ask("versions", "policy", 0);
    is("versions.0.reason", "null");
    go(W2);
    rig_pass(1000);
    go(W1);
    char until[25], want[128];
    clock_text(R.now.wall_ms, until);
    rig_pass(1000);
    ask("versions", "policy", 0);
    is("versions.0.state", "\"lost\"");
    is("versions.0.reason.code", "\"version_lost\"");
    snprintf(want, sizeof want,
             "no connected process holds the bytes of policy@1: w1 had them last, until %s", until);
    cr_assert_str_eq(reason("message"), want);
    cr_assert_str_eq(rig_event(EVENT_VERSION_LOST)->message, want);
    cr_assert_str_eq(reason("hint"), "publish it again");
}

/* w2 serves version 1 throughout, and reports nothing of the roll-back to it. */
Test(standing, stale_since_the_last_decision_that_did_not_name_what_it_serves)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_pass(1000);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    rig_staged(W2, 2, 2);
    rig_active(W1, 2, 2, 2);
    rig_pass(1000);
    name_again(1);
    rig_active(W1, 1, 3, 1);
    rig_pass(1000);
    name_again(2);
    uint64_t chosen_ms = R.now.wall_ms;
    rig_active(W1, 2, 4, 2);
    rig_pass(1000);
    ask("workers", "w2", 0);
    is("workers.0.adapters.0.state", "\"stale\"");
    is("workers.0.adapters.0.since_at", when(chosen_ms));
}

/* Published without it, the next one would be compared with no step at all. */
Test(standing, what_is_lost_is_published_again_with_its_step)
{
    publish_to(1, (rig_publish_t){.step = 70});
    roll_out(1, 1, 1, 1);
    go(T);
    go(W1);
    ask("versions", "policy", 0);
    is("versions.0.state", "\"lost\"");
    cr_assert_str_eq(reason("hint"), "publish it again, with opts.step 70");
}

Test(standing, after_a_restart_nobody_knows_who_had_it)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_restart();
    rig_pass(LEASE_MS + 500);
    ask("versions", "policy", 1);
    is("versions.0.reason.code", "\"version_lost\"");
    cr_assert(strstr(reason("message"), "after the broker was started"));
}

static void serve_again(uint64_t peer, uint64_t life, uint64_t age_us)
{
    msg_held_t held = {.adapter = "policy",
                       .version = 1,
                       .state = HELD_ACTIVE,
                       .digest = rig_digest(1),
                       .activate_us = 5,
                       .age_us = age_us};
    msg_subscription_t sub = {.adapter = "policy", .decision = 1, .version = 1};
    rig_hello_as(peer, ROLE_WORKER, life);
    rig_join_with(peer, "w1", &sub, 1, &held, 1);
}

/* What the worker and the version say of the copy that w1 serves. */
static void serves_since(const char *since)
{
    ask("workers", "w1", 0);
    is("workers.0.adapters.0.state", "\"active\"");
    is("workers.0.adapters.0.since_at", since);
    ask("versions", "policy", 1);
    is("versions.0.workers.0.state", "\"active\"");
    is("versions.0.workers.0.since_at", since);
}

Test(standing, since_when_a_worker_serves_is_not_the_time_of_its_session)
{
    publish_to(1, (rig_publish_t){0});
    rig_pass(250);
    roll_out(1, 1, 1, 1);
    uint64_t created_ms = rig_version(1)->created_ms, switched_ms = R.now.wall_ms;
    serves_since(when(switched_ms));
    rig_pass(1000);
    serve_again(W1, W1, 900000);
    serves_since(when(switched_ms)); /* the broker's own time */
    rig_restart();
    rig_pass(1000);
    serve_again(W1, W1, 2000000);
    rig_pass(1000);
    serves_since(when(switched_ms));
    rig_restart();
    serve_again(W1, W1, LIMIT_EXACT);
    rig_pass(1000);
    serves_since(when(created_ms)); /* no earlier than its record */
    rig_restart();
    serve_again(W1, W1, 0);
    rig_pass(1000);
    serves_since("null"); /* an older release does not say */
}
