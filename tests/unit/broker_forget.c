/* SPDX-License-Identifier: Apache-2.0 */
/* An operator forgets an adapter: when that is refused, and what goes. */
#include "broker_rig.h"

#include "broker/questions/query.h"
#include "broker/questions/answer.h"

TestSuite(forget, .init = rig_start, .fini = rig_stop);

enum { WAITER = 3 };

static void forget(const char *name)
{
    rig_drop_letters();
    rig_query(ADMIN, (msg_query_t){.op = "forget", .name = name, .by = "ann"});
}

/* Nothing was taken away. */
static const msg_error_t *refused(const char *code)
{
    const adapter_row_t before = *rig_adapter();
    forget("policy");
    cr_assert_eq(rig_event_count(EVENT_ADAPTER_FORGOTTEN), 0);
    cr_assert_eq(rig_adapter()->version_count, before.version_count);
    return rig_error(ADMIN, code);
}

/* No list shows it, and no question finds it. */
static bool is_forgotten(void)
{
    msg_query_t q = {.op = "versions", .name = "policy"};
    answer_view_t view = query_view(R.b, R.now);
    answer_page_t page = {0};
    heddle_error_t e;
    int rc = answer_page(&view, &q, &page, &e);
    json_decref(page.body);
    return rc == HEDDLE_ERR_NOT_FOUND && !rig_adapter()->version_count && !rig_adapter()->decision;
}

static int64_t answered(const char *field)
{
    json_t *body = NULL;
    heddle_error_t e;
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, &e), HEDDLE_OK);
    cr_assert_str_eq(json_string_value(json_object_get(body, "kind")), "forget");
    const json_t *value = json_object_get(body, field);
    int64_t n = json_is_boolean(value) ? json_is_true(value) : json_integer_value(value);
    json_decref(body);
    return n;
}

/* Published to, and nobody took it: as after a mistyped name. */
static void a_name_that_was_mistyped(void)
{
    publish_to(0, (rig_publish_t){.deadline_ms = 1000});
    rig_pass(1500);
    cr_assert_str_eq(rig_state(1), "failed");
    rig_leave(T);
    rig_hello(ADMIN, ROLE_ADMIN);
}

static void one_that_was_served(void)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_leave(T);
    rig_hello(ADMIN, ROLE_ADMIN);
}

Test(forget, a_mistyped_name_is_free_again)
{
    a_name_that_was_mistyped();
    forget("policy");
    cr_assert_eq(answered("version_count"), 1);
    cr_assert_eq(answered("dry_run"), 0);
    cr_assert(is_forgotten());
    cr_assert_eq(rig_track_count(), 0);
    cr_assert_str_eq(rig_event(EVENT_ADAPTER_FORGOTTEN)->adapter, "policy");
    cr_assert_str_eq(rig_event(EVENT_ADAPTER_FORGOTTEN)->message, "forgotten by ann, with 1 version");
    forget("policy");
    rig_error(ADMIN, "not_found");
    rig_restart();
    cr_assert(is_forgotten());
    cr_assert_str_eq(rig_event(EVENT_BROKER_STARTED)->message, "epoch 2, 0 adapters");
    rig_pass(2 * LEASE_MS); /* it settles */
    publish_to(1, (rig_publish_t){.digest = 5});
    roll_out(1, 2, 1, 5);
    cr_assert_str_eq(rig_state(2), "active", "its number was not used before");
}

Test(forget, a_trial_takes_nothing_away)
{
    a_name_that_was_mistyped();
    int commits = R.commits;
    rig_query(ADMIN, (msg_query_t){.op = "forget", .name = "policy", .dry_run = true});
    cr_assert_eq(answered("version_count"), 1);
    cr_assert_eq(answered("dry_run"), 1);
    cr_assert(rig_version(1) && R.commits == commits);
}

Test(forget, not_while_it_has_a_writer)
{
    publish_to(0, (rig_publish_t){0});
    rig_hello(ADMIN, ROLE_ADMIN);
    const msg_error_t *e = refused("writer_held");
    cr_assert(strstr(e->message, "policy has a writer: trainer on host, pid "), "%s", e->message);
}

Test(forget, not_while_a_worker_subscribes_to_it)
{
    one_that_was_served();
    const msg_error_t *e = refused("worker_alive");
    cr_assert_str_eq(e->found, "w1");
    cr_assert_str_eq(e->hint, "end w1, or start it without this adapter; `heddle workers` shows it");
    rig_worker(W2, "w2");
    cr_assert_str_eq(refused("worker_alive")->hint,
                     "end w1, w2, or start them without this adapter; `heddle workers` shows them");
}

/* What it restates is not taken for a newer registry, nor for what is published later. */
Test(forget, a_worker_that_was_lost_returns_to_an_empty_name)
{
    one_that_was_served();
    R.is_quiet[W1] = true;
    rig_pass(2 * LEASE_MS);
    forget("policy");
    cr_assert(is_forgotten());
    msg_subscription_t sub = {.adapter = "policy", .decision = 2, .version = 2};
    msg_held_t held = {.adapter = "policy", .version = 2, .state = HELD_ACTIVE, .digest = rig_digest(2)};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    R.is_quiet[W1] = false;
    cr_assert_eq(R.b->restored.at_ms, 0, "%s", R.b->restored.message);
    cr_assert_eq(rig_last(W1, MSG_WELCOME)->welcome.keep_count, 0);
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 3});
    rig_staged(W1, 3, 3);
    rig_active(W1, 3, 3, 3);
    cr_assert_str_eq(rig_state(3), "active");
    cr_assert_eq(rig_adapter()->decision, 3);
}

Test(forget, one_that_was_served_goes_when_its_workers_have_left)
{
    one_that_was_served();
    rig_leave(W1);
    forget("policy");
    cr_assert_eq(answered("version_count"), 2);
    cr_assert(is_forgotten());
    rig_pass(2 * LEASE_MS);
    rig_restart();
    cr_assert(is_forgotten());
}

/* The broker does not remember which of the two it was. */
static const char NOT_REMEMBERED[] = "policy@1 is not remembered: it ended long ago, or was forgotten";

/* What the next question says of version 1; a wait and an activation give it in an answer. */
static void is_not_remembered(const char *op, const char *code)
{
    rig_drop_letters();
    rig_query(ADMIN, (msg_query_t){.op = op, .name = "policy", .version = 1});
    if (!strcmp(op, "wait")) {
        const msg_report_t *r = &rig_last(ADMIN, MSG_REPORT)->report;
        json_t *body;
        heddle_error_t e;
        cr_assert_str_eq(r->code, code);
        cr_assert_eq(value_decode(r->body, &body, &e), HEDDLE_OK);
        const json_t *error = json_object_get(body, "error");
        cr_assert_str_eq(json_string_value(json_object_get(error, "message")), NOT_REMEMBERED);
        cr_assert_not(json_is_string(json_object_get(error, "found")));
        json_decref(body);
        return;
    }
    const msg_error_t *e = rig_error(ADMIN, code);
    cr_assert_str_eq(e->message, NOT_REMEMBERED, "%s: %s", op, e->message);
    cr_assert(!*e->found && !strstr(e->hint, "--keep"), "%s: %s", e->found, e->hint);
}

/* What was published and forgotten is not said to have been never published to. */
Test(forget, all_questions_about_a_forgotten_adapter_have_one_text)
{
    static const char *const OPS[] = {"versions", "wait", "verify", "pull", "rollback", "resume", "forget"};
    a_name_that_was_mistyped();
    forget("policy");
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++) {
        rig_drop_letters();
        rig_query(ADMIN, (msg_query_t){.op = OPS[i], .name = "policy"});
        const msg_error_t *e = rig_error(ADMIN, "not_found");
        cr_assert_str_eq(e->message, "there is no adapter \"policy\"", "%s: %s", OPS[i], e->message);
        cr_assert_str_eq(e->expected, "nothing: there is none", "%s: %s", OPS[i], e->expected);
        cr_assert_str_eq(e->found, "policy", "%s: %s", OPS[i], e->found);
        cr_assert_str_eq(e->hint, "`heddle adapters` lists what there is", "%s: %s", OPS[i], e->hint);
    }
}

Test(forget, what_is_said_of_a_version_that_was_forgotten)
{
    one_that_was_served();
    rig_leave(W1);
    forget("policy");
    publish_to(1, (rig_publish_t){.digest = 3});
    roll_out(1, 3, 3, 3);
    is_not_remembered("wait", "version_lost");
    is_not_remembered("verify", "version_lost");
    is_not_remembered("pull", "version_lost");
    is_not_remembered("versions", "not_found");
    is_not_remembered("activate", "not_activatable");
    is_not_remembered("rollback", "not_activatable");
    rig_drop_letters();
    rig_query(ADMIN, (msg_query_t){.op = "rollback", .name = "policy"});
    const msg_error_t *e = rig_error(ADMIN, "not_activatable");
    cr_assert_str_eq(e->found, "no earlier version is remembered");
    cr_assert_str_eq(e->hint, "`heddle versions policy` lists what there is", "3 is not the first one");
}

Test(forget, a_wait_for_it_ends_and_other_adapters_stay)
{
    a_name_that_was_mistyped();
    rig_open(T, "critic", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 3, .adapter = "critic"});
    rig_hello(WAITER, ROLE_ADMIN);
    rig_query(WAITER, (msg_query_t){.op = "wait", .name = "critic", .deadline_ms = 60000});
    rig_query(WAITER, (msg_query_t){.op = "events", .name = "policy", .after = 1000, .wait_ms = 60000});
    size_t waiting = R.b->pending.count;
    forget("policy");
    cr_assert_eq(R.b->pending.count, waiting, "questions about others, and for events");
    cr_assert_not_null(registry_adapter(&R.b->registry, "critic"));
    cr_assert_eq(rig_track_count(), 1);
    R.is_quiet[T] = true; /* its version fails a lease after its session has ended */
    while (registry_adapter(&R.b->registry, "critic")->writer.token) rig_pass(250);
    cr_assert_eq(R.b->pending.count, waiting);
    forget("critic");
    rig_error(WAITER, "not_found");
}

Test(forget, not_before_members_had_time_to_return)
{
    a_name_that_was_mistyped();
    rig_restart();
    rig_hello(ADMIN, ROLE_ADMIN);
    const msg_error_t *e = refused("unavailable");
    cr_assert(strstr(e->hint, "try again in "), "%s", e->hint);
    rig_pass(2 * LEASE_MS);
    forget("policy");
    cr_assert(is_forgotten());
}

Test(forget, not_where_the_store_refuses)
{
    a_name_that_was_mistyped();
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    refused("no_space");
    cr_assert_not_null(track_find(&R.b->rollout, "policy", 1));
    R.commit_error = 0;
    forget("policy");
    cr_assert(is_forgotten());
}

Test(forget, waits_for_the_transaction_before_it)
{
    a_name_that_was_mistyped();
    R.is_late = true;
    rig_open(T, "critic", "trainer", 0, false);
    cr_assert(rig_is_committing());
    forget("policy");
    cr_assert(!is_forgotten());
    rig_confirm(HEDDLE_OK);
    cr_assert(!is_forgotten(), "its own record is not confirmed");
    cr_assert(!rig_has(ADMIN, MSG_REPORT));
    rig_confirm(HEDDLE_OK);
    cr_assert(is_forgotten());
    cr_assert(rig_has(ADMIN, MSG_REPORT));
}

/* Its rows are gone when the worker would be told what it is to serve. */
Test(forget, a_worker_that_joins_meanwhile_waits_for_its_end)
{
    a_name_that_was_mistyped();
    R.is_late = true;
    forget("policy");
    cr_assert(rig_is_committing());
    msg_subscription_t its = {.adapter = "policy"}, another = {.adapter = "critic"};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &its, 1, NULL, 0);
    rig_hello(W2, ROLE_WORKER);
    rig_join_with(W2, "w2", &another, 1, NULL, 0);
    cr_assert_eq(R.tokens[W1], 0);
    cr_assert_neq(R.tokens[W2], 0, "it has nothing to do with it");
    rig_confirm(HEDDLE_OK);
    cr_assert(is_forgotten());
    cr_assert_neq(R.tokens[W1], 0);
    cr_assert_eq(rig_last(W1, MSG_WELCOME)->welcome.adapter_count, 1);
}
