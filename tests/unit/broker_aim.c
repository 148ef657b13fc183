/* SPDX-License-Identifier: Apache-2.0 */
/* rollback and resume: which version they name, and what becomes of the hold. */
#include "broker_rig.h"

static json_t *body;

static void init(void)
{
    rig_start();
    body = NULL;
}
static void fini(void)
{
    json_decref(body);
    rig_stop();
}
TestSuite(aim, .init = init, .fini = fini);

/* Versions 1..count were active one after the other on w1, with a broker that keeps all of them. */
static void active_one_after_the_other(uint64_t count)
{
    R.keep = R.b->rollout.keep = R.b->opts.keep = 8;
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    for (uint64_t v = 2; v <= count; v++) {
        rig_publish(T, (rig_publish_t){.digest = v});
        roll_out(1, v, v, v);
    }
    rig_hello(ADMIN, ROLE_ADMIN);
}

static const json_t *ask(const char *op, uint64_t version)
{
    rig_drop_letters();
    rig_query(ADMIN, (msg_query_t){.op = op,
                                   .name = "policy",
                                   .version = version,
                                   .by = "ann",
                                   .quorum_kind = HEDDLE_QUORUM_NONE});
    heddle_error_t e;
    json_decref(body);
    body = NULL;
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, &e), HEDDLE_OK);
    cr_assert_str_eq(json_string_value(json_object_get(body, "kind")), op);
    return body;
}

static uint64_t number(const char *key) { return (uint64_t)json_integer_value(json_object_get(body, key)); }
static bool is(const char *key) { return json_is_true(json_object_get(body, key)); }

static void goes(const char *op, uint64_t from, uint64_t to)
{
    ask(op, 0);
    cr_assert_eq(number("from"), from);
    cr_assert_eq(number("to"), to, "to %llu", (unsigned long long)number("to"));
    cr_assert(is("ok") && is("changed"));
    cr_assert_eq(rig_adapter()->active, to);
    cr_assert_eq(rig_adapter()->held, is("held"));
}

static const msg_error_t *refused(const char *op, uint64_t version)
{
    rig_drop_letters();
    rig_query(ADMIN, (msg_query_t){.op = op, .name = "policy", .version = version});
    return rig_error(ADMIN, "not_activatable");
}

Test(aim, back_goes_one_step_at_a_time)
{
    active_one_after_the_other(3);
    goes("rollback", 3, 2);
    cr_assert(is("held"));
    cr_assert_str_eq(rig_adapter()->held_by, "ann");
    goes("rollback", 2, 1);
    const msg_error_t *e = refused("rollback", 0);
    cr_assert_str_eq(e->found, "no earlier version");
    cr_assert_eq(rig_adapter()->active, 1);
}

/* 2 has the greater number, but what was active before 3 is 1. */
Test(aim, back_is_by_decision_and_not_by_number)
{
    active_one_after_the_other(3);
    ask("activate", 1);
    goes("resume", 1, 3);
    goes("rollback", 3, 1);
}

Test(aim, back_passes_over_what_was_never_active)
{
    active_one_after_the_other(1);
    rig_publish(T, (rig_publish_t){.digest = 2, .activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 2, 2);
    rig_publish(T, (rig_publish_t){.digest = 3});
    roll_out(1, 3, 2, 3);
    goes("rollback", 3, 1);
}

/* Bytes of the active version under another number: the model would answer as before. */
Test(aim, back_passes_over_the_same_bytes)
{
    active_one_after_the_other(2);
    rig_publish(T, (rig_publish_t){.digest = 2, .if_unchanged = HEDDLE_UNCHANGED_PUBLISH});
    roll_out(1, 3, 3, 2);
    goes("rollback", 3, 1);
    cr_assert(!is("same_bytes"));
}

Test(aim, back_is_refused_where_only_the_same_bytes_are_left)
{
    active_one_after_the_other(1);
    rig_publish(T, (rig_publish_t){.digest = 1, .if_unchanged = HEDDLE_UNCHANGED_PUBLISH});
    roll_out(1, 2, 2, 1);
    for (int dry_run = 0; dry_run < 2; dry_run++) {
        rig_drop_letters();
        rig_query(ADMIN, (msg_query_t){.op = "rollback", .name = "policy", .dry_run = dry_run});
        const msg_error_t *e = rig_error(ADMIN, "not_activatable");
        cr_assert(strstr(e->message, "have the same bytes"), "%s", e->message);
        cr_assert_str_eq(e->found, "policy@1 with the same bytes");
        cr_assert(strstr(e->hint, "policy@1 has the bytes of policy@2"), "%s", e->hint);
    }
    cr_assert(rig_adapter()->active == 2 && !rig_adapter()->held);
}

/* An operator may mean that number.  The answer says that nothing changes with it. */
Test(aim, back_to_a_named_one_says_that_its_bytes_are_the_same)
{
    active_one_after_the_other(1);
    rig_publish(T, (rig_publish_t){.digest = 1, .if_unchanged = HEDDLE_UNCHANGED_PUBLISH});
    roll_out(1, 2, 2, 1);
    ask("rollback", 1);
    cr_assert(is("ok") && is("changed") && is("same_bytes") && rig_adapter()->active == 1);
    ask("activate", 1); /* to itself is no change */
    cr_assert(is("ok") && !is("changed") && !is("same_bytes"));
}

/* The worker comes back with 3 alone: 1 and 2 have no holder. */
Test(aim, back_needs_a_holder)
{
    active_one_after_the_other(3);
    rig_leave(T);
    rig_restart();
    rig_hello(W1, ROLE_WORKER);
    msg_subscription_t sub = {.adapter = "policy", .decision = 3, .version = 3};
    msg_held_t held = {.adapter = "policy", .version = 3, .state = HELD_ACTIVE, .digest = rig_digest(3)};
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    rig_pass(LEASE_MS + 500);
    rig_hello(ADMIN, ROLE_ADMIN);
    const msg_error_t *e = refused("rollback", 0);
    cr_assert_str_eq(e->found, "policy@2 lost, policy@1 lost");
    cr_assert_eq(rig_adapter()->active, 3);
}

/* The broker starts again, and w1 comes back with `held` alone: what it had of the others is lost. */
static void come_back_with(msg_held_t *held, uint32_t count)
{
    msg_subscription_t sub = {.adapter = "policy"};
    rig_leave(T);
    rig_restart();
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, held, count);
    rig_pass(LEASE_MS + 500);
    rig_hello(ADMIN, ROLE_ADMIN);
}

/* Held at 2, which is lost: 4 is staged, and resume is the way out. */
Test(aim, back_from_a_lost_version_suggests_resume_where_a_newer_one_is_staged)
{
    active_one_after_the_other(3);
    goes("rollback", 3, 2);
    rig_publish(T, (rig_publish_t){.digest = 4});
    rig_staged(W1, 4, 4);
    msg_held_t held = {.adapter = "policy", .version = 4, .state = HELD_STAGED, .digest = rig_digest(4)};
    come_back_with(&held, 1);
    const msg_error_t *e = refused("rollback", 0);
    cr_assert(strstr(e->hint, "heddle resume policy") && strstr(e->hint, "policy@4"), "%s", e->hint);
    goes("resume", 2, 4);
}

Test(aim, back_from_a_lost_version_asks_for_the_bytes_where_none_is_left)
{
    active_one_after_the_other(3);
    goes("rollback", 3, 2);
    come_back_with(NULL, 0);
    const msg_error_t *e = refused("rollback", 0);
    cr_assert(strstr(e->hint, "publish") && !strstr(e->hint, "resume"), "%s", e->hint);
}

/* Every version is lost: what resume would have activated is the newest, and its bytes are to be published. */
Test(aim, resume_names_the_newest_where_all_are_lost)
{
    active_one_after_the_other(3);
    goes("rollback", 3, 2);
    come_back_with(NULL, 0);
    const msg_error_t *e = refused("resume", 0);
    cr_assert_eq(e->version, 3, "%s", e->message);
    cr_assert_str_eq(e->found, "lost");
}

/* Which workers are back is not known while the broker settles: the question waits for the end of that. */
Test(aim, back_waits_while_the_broker_settles)
{
    active_one_after_the_other(2);
    rig_leave(T);
    rig_restart();
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "rollback", .name = "policy", .quorum_kind = HEDDLE_QUORUM_NONE});
    cr_assert(!rig_has(ADMIN, MSG_REPORT) && !rig_has(ADMIN, MSG_ERROR));
    rig_hello(W1, ROLE_WORKER);
    msg_subscription_t sub = {.adapter = "policy", .decision = 2, .version = 2};
    msg_held_t held[] = {{.adapter = "policy", .version = 1, .state = HELD_KEPT, .digest = rig_digest(1)},
                         {.adapter = "policy", .version = 2, .state = HELD_ACTIVE, .digest = rig_digest(2)}};
    rig_join_with(W1, "w1", &sub, 1, held, 2);
    rig_pass(LEASE_MS + 500);
    cr_assert(rig_has(ADMIN, MSG_REPORT));
    cr_assert_eq(rig_adapter()->active, 1);
}

Test(aim, back_to_a_named_one_is_never_forward)
{
    active_one_after_the_other(3);
    ask("rollback", 1);
    cr_assert(is("changed") && is("held") && number("to") == 1);
    const msg_error_t *e = refused("rollback", 2);
    cr_assert(strstr(e->hint, "heddle activate policy@2"), "%s", e->hint);
    int commits = R.commits;
    ask("rollback", 1); /* said again it changes nothing */
    cr_assert(is("ok") && !is("changed") && R.commits == commits);
}

Test(aim, back_from_nothing_is_refused)
{
    publish_to(1, (rig_publish_t){0});
    rig_hello(ADMIN, ROLE_ADMIN);
    refused("rollback", 0);
}

/* An adapter that no worker subscribes to may be a mistyped name. */
Test(aim, back_of_a_mistyped_adapter_names_the_one_that_was_meant)
{
    rig_worker(W1, "w1");
    rig_open(T, "polcy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.adapter = "polcy", .digest = 1, .deadline_ms = 1000});
    rig_pass(1500);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "rollback", .name = "polcy"});
    const msg_error_t *e = rig_error(ADMIN, "not_activatable");
    cr_assert(!strncmp(e->hint, "did you mean policy? ", 21), "%s", e->hint);
    rig_drop_letters();
    rig_query(ADMIN, (msg_query_t){.op = "versions", .name = "polcy"});
    heddle_error_t error;
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, &error), HEDDLE_OK);
    const json_t *v = json_array_get(json_object_get(body, "versions"), 0);
    const char *hint = json_string_value(json_object_get(json_object_get(v, "reason"), "hint"));
    cr_assert(hint && !strncmp(hint, "did you mean policy? ", 21), "%s", hint ? hint : "none");
}

Test(aim, a_trial_decides_nothing)
{
    active_one_after_the_other(2);
    int commits = R.commits;
    rig_query(ADMIN, (msg_query_t){.op = "rollback", .name = "policy", .dry_run = true});
    cr_assert(rig_has(ADMIN, MSG_REPORT));
    cr_assert(R.commits == commits && rig_adapter()->active == 2 && !rig_adapter()->held);
}

Test(aim, resume_activates_the_newest_and_ends_the_hold)
{
    active_one_after_the_other(3);
    goes("rollback", 3, 2);
    rig_publish(T, (rig_publish_t){.digest = 4});
    rig_staged(W1, 4, 4);
    cr_assert_eq(rig_adapter()->active, 2);
    goes("resume", 2, 4);
    cr_assert(!is("held"));
    cr_assert_eq(rig_event_count(EVENT_ADAPTER_RESUMED), 1);
}

/* One that is still being fetched does not keep the hold: it activates by itself when it is there. */
Test(aim, resume_does_not_wait_for_what_is_on_its_way)
{
    active_one_after_the_other(3);
    goes("rollback", 3, 2);
    rig_publish(T, (rig_publish_t){.digest = 4});
    goes("resume", 2, 3);
    cr_assert(!rig_adapter()->held);
    rig_active(W1, 3, rig_adapter()->decision, 3);
    rig_staged(W1, 4, 4);
    cr_assert_eq(rig_adapter()->active, 4);
}

Test(aim, resume_of_what_is_not_held_changes_nothing)
{
    active_one_after_the_other(2);
    int commits = R.commits;
    ask("resume", 0);
    cr_assert(is("ok") && !is("changed") && !is("held") && number("from") == 2 && number("to") == 2);
    cr_assert_eq(R.commits, commits);
}

/* A version that waits for a hand is not activated by it. */
Test(aim, resume_leaves_a_manual_one_alone_where_nothing_is_held)
{
    active_one_after_the_other(1);
    rig_publish(T, (rig_publish_t){.digest = 2, .activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 2, 2);
    ask("resume", 0);
    cr_assert(!is("changed") && rig_adapter()->active == 1);
}

Test(aim, resume_where_nothing_was_ever_active)
{
    publish_to(1, (rig_publish_t){0});
    rig_hello(ADMIN, ROLE_ADMIN);
    ask("resume", 0);
    cr_assert(is("ok") && !is("changed") && !is("held"));
    cr_assert(json_is_null(json_object_get(body, "from")) && json_is_null(json_object_get(body, "to")));
}
