/* SPDX-License-Identifier: Apache-2.0 */
/* Versions whose bytes nobody has: published again they are new ones. */
#include "broker_rig.h"

TestSuite(lost, .init = rig_start, .fini = rig_stop);

static void go(uint64_t peer)
{
    rig_leave(peer);
    R.tokens[peer] = 0;
}

/* Version 1 was active on w1; its publisher has ended. */
static void served_by_w1(void)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    go(T);
}

/* The same bytes, by a publisher of today. */
static const msg_published_t *publish_again(heddle_unchanged_t if_unchanged)
{
    rig_open(T, "policy", "trainer", 0, false);
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 1, .if_unchanged = if_unchanged});
    return &rig_last(T, MSG_PUBLISHED)->published;
}

static void is_new(heddle_unchanged_t if_unchanged)
{
    const msg_published_t *p = publish_again(if_unchanged);
    cr_assert(p->created && p->version == 2, "version %llu", (unsigned long long)p->version);
    cr_assert_str_eq(p->reason, "");
    rig_pass(LEASE_MS + 500); /* a broker that settles decides then */
    rig_staged(W1, 2, 1);
    rig_active(W1, 2, 2, 1);
    cr_assert_str_eq(rig_state(2), "active");
}

Test(lost, the_same_bytes_again_are_a_new_version)
{
    served_by_w1();
    rig_worker(W1, "w1"); /* another process: the bytes are gone */
    is_new(HEDDLE_UNCHANGED_FAIL);
}

static const brokers_t *yielded(void *self)
{
    static const brokers_t LIST = {.has_yielded = true};
    return (void)self, &LIST;
}

/* It sent its members to a standby, and they serve: it is not to say that bytes are gone. */
Test(lost, not_by_a_broker_that_yields)
{
    served_by_w1();
    R.b->io.brokers = yielded;
    R.is_quiet[W1] = true;
    rig_pass(3 * LEASE_MS);
    cr_assert_gt(membership_deadline(&R.b->members), R.now.us, "the loop has nothing to do meanwhile");
    cr_assert_eq(membership_worker(&R.b->members, "w1")->state, MEMBER_READY);
    R.b->io.brokers = NULL;
    rig_pass(LEASE_MS + 500);
    cr_assert_eq(membership_worker(&R.b->members, "w1")->state, MEMBER_LOST);
}

Test(lost, also_where_unchanged_ones_are_skipped)
{
    served_by_w1();
    rig_worker(W1, "w1");
    is_new(HEDDLE_UNCHANGED_SKIP);
}

/* After a restart the holders may be on their way: nobody is told before that is known.  When to ask again, in ms. */
static uint64_t is_told_to_wait(void)
{
    rig_open(T, "policy", "trainer", 0, false);
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 1, .if_unchanged = HEDDLE_UNCHANGED_SKIP});
    const msg_error_t *e = &rig_last(T, MSG_ERROR)->error;
    cr_assert(e->retriable && e->retry_ms > 0 && e->retry_ms <= LEASE_MS + 1);
    return e->retry_ms;
}

Test(lost, also_after_a_restart_when_nobody_brought_them_back)
{
    served_by_w1();
    rig_restart();
    rig_worker(W1, "w1");
    rig_pass((uint32_t)is_told_to_wait());
    is_new(HEDDLE_UNCHANGED_SKIP);
}

/* A loss is said once, with its first reason, however often the broker is started; a new one is news. */
Test(lost, is_said_once_over_restarts)
{
    served_by_w1();
    go(W1);
    rig_pass(1000);
    cr_assert_eq(rig_event_count(EVENT_VERSION_LOST), 1);
    char why[512];
    snprintf(why, sizeof why, "%s", rig_event(EVENT_VERSION_LOST)->message);
    for (int i = 0; i < 2; i++) {
        rig_restart();
        cr_assert_str_eq(rig_state(1), "lost");
        rig_pass(2 * LEASE_MS);
        cr_assert_str_eq(rig_state(1), "lost");
        cr_assert_eq(rig_event_count(EVENT_VERSION_LOST), 0);
        heddle_error_t reason;
        summary_lost_reason(track_find(&R.b->rollout, "policy", 1), &reason);
        cr_assert(!strncmp(reason.message, why, 100), "%s, not %s", reason.message,
                  why); /* an event's is cut */
    }
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_ACTIVE, .digest = rig_digest(1)};
    msg_subscription_t sub = {.adapter = "policy", .version = 1, .decision = 1};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    rig_pass(500);
    cr_assert_str_eq(rig_state(1), "active");
    cr_assert_eq(registry_version(registry_adapter(&R.b->registry, "policy"), 1)->lost_ms, 0);
    go(W1);
    rig_pass(500);
    cr_assert_eq(rig_event_count(EVENT_VERSION_LOST), 1);
}

Test(lost, and_not_when_their_holder_was_only_late)
{
    served_by_w1();
    rig_restart();
    is_told_to_wait();
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_ACTIVE, .digest = rig_digest(1)};
    msg_subscription_t sub = {.adapter = "policy", .decision = 1, .version = 1};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    const msg_published_t *p = publish_again(HEDDLE_UNCHANGED_SKIP);
    cr_assert(!p->created && p->version == 1);
}

static void back_with(uint64_t peer, const char *name, uint64_t version, held_state_t state)
{
    msg_held_t held = {.adapter = "policy",
                       .version = version,
                       .state = state,
                       .digest = rig_digest(version)};
    msg_subscription_t sub = {.adapter = "policy",
                              .decision = state == HELD_ACTIVE ? version : 0,
                              .version = state == HELD_ACTIVE ? version : 0};
    rig_hello(peer, ROLE_WORKER);
    rig_join_with(peer, name, &sub, 1, &held, 1);
}

/* Version 1 is kept and 2 active; after a restart a holder of 1 is back, and none of 2 yet. */
static void only_the_kept_one_is_back(void)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    go(T);
    rig_restart();
    back_with(W2, "w2", 1, HELD_KEPT);
}

Test(lost, an_older_one_that_is_back_first_is_not_taken_for_the_newest)
{
    only_the_kept_one_is_back();
    is_told_to_wait();
    back_with(W1, "w1", 2, HELD_ACTIVE);
    const msg_published_t *p = publish_again(HEDDLE_UNCHANGED_SKIP);
    cr_assert(p->created && p->version == 3, "version %llu", (unsigned long long)p->version);
}

Test(lost, nor_is_it_new_before_it_is_known_that_the_newest_is_lost)
{
    only_the_kept_one_is_back();
    rig_pass((uint32_t)is_told_to_wait());
    const msg_published_t *p = publish_again(HEDDLE_UNCHANGED_SKIP);
    cr_assert(!p->created && p->version == 1, "version %llu", (unsigned long long)p->version);
}

Test(lost, other_bytes_do_not_wait)
{
    only_the_kept_one_is_back();
    rig_open(T, "policy", "trainer", 0, false);
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 3, .if_unchanged = HEDDLE_UNCHANGED_SKIP});
    cr_assert_eq(rig_last(T, MSG_PUBLISHED)->published.version, 3);
}

Test(lost, an_older_one_that_is_kept_is_what_they_are_compared_with)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    go(T);
    track_t *t = track_find(&R.b->rollout, "policy", 2);
    copy_drop(t, "w1"); /* it lost them */
    const msg_published_t *p = publish_again(HEDDLE_UNCHANGED_SKIP);
    cr_assert(!p->created && p->version == 1);
}

Test(lost, bytes_that_somebody_holds_are_not)
{
    served_by_w1();
    const msg_published_t *p = publish_again(HEDDLE_UNCHANGED_SKIP);
    cr_assert(!p->created && p->version == 1);
    cr_assert_str_eq(p->reason, "unchanged");
}

Test(lost, a_version_that_is_on_its_way_is_not)
{
    publish_to(1, (rig_publish_t){0});
    go(T); /* at once: nobody has them, and the version has not ended for want of them */
    rig_open(T, "policy", "trainer", 0, false);
    cr_assert_str_eq(rig_state(1), "failed");
    rig_publish(T, (rig_publish_t){.digest = 1});
    R.is_quiet[T] = true;
    const msg_published_t *p = publish_again(HEDDLE_UNCHANGED_SKIP);
    cr_assert(!p->created && p->version == 2);
}

/* ---- who loads them has them ---- */

/* w2 has all bytes of 2, and nobody else has one. */
static void only_w2_loads_2(void)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 2, 5000);
    go(T);
    go(W1);
    cr_assert_eq(track_holder_count(track_find(&R.b->rollout, "policy", 2)), 0);
    cr_assert_str_eq(rig_state(2), "kept");
    cr_assert_str_eq(rig_state(3), "lost");
    rig_drop_letters();
}

/* 3 is the active one, and the newest: of an earlier version it is no failure. */
static void is_lost(uint64_t v)
{
    cr_assert_str_eq(rig_state(v), "lost");
    const event_row_t *e = rig_event(EVENT_VERSION_LOST);
    cr_assert_eq(e->version, v);
    cr_assert_eq(e->code, v < 3 ? HEDDLE_OK : HEDDLE_ERR_VERSION_LOST);
}

Test(lost, when_the_one_that_loads_them_leaves)
{
    only_w2_loads_2();
    is_lost(3);
    go(W2);
    is_lost(2);
}

Test(lost, when_the_one_that_loads_them_is_lost)
{
    only_w2_loads_2();
    R.is_quiet[W2] = true;
    rig_pass(LEASE_MS + 500);
    is_lost(2);
}

/* The last that had the bytes is not the last that held them. */
Test(lost, then_it_and_the_time_are_named)
{
    only_w2_loads_2();
    rig_pass(10000);
    char until[25], words[64];
    clock_text(R.now.wall_ms, until);
    snprintf(words, sizeof words, "w2 had them last, until %s", until);
    go(W2);
    is_lost(2);
    cr_assert(strstr(rig_event(EVENT_VERSION_LOST)->message, words), "%s: %s", words,
              rig_event(EVENT_VERSION_LOST)->message);
}

Test(lost, when_the_one_that_loads_them_fetches_another)
{
    only_w2_loads_2();
    rig_open(T, "policy", "trainer", 0, false);
    as_ready(4);
    cr_assert_str_eq(rig_state(2), "kept");
    says_it_fetches(W2, 4, 100);
    is_lost(2);
}

Test(lost, when_the_one_that_loads_them_does_so_longer_than_the_deadline)
{
    only_w2_loads_2();
    for (int i = 0; i < 59; i++) {
        says_it_fetches(W2, 2, 5000);
        rig_pass(1000);
    }
    cr_assert_str_eq(rig_state(2), "kept");
    rig_pass(1000);
    is_lost(2);
    rig_staged(W2, 2, 2);
    cr_assert_str_eq(rig_state(2), "kept", "and is found again, when he is done");
}

static void wait_for_2(void)
{
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "wait",
                                   .name = "policy",
                                   .version = 2,
                                   .exact = true,
                                   .min = 1,
                                   .quorum_kind = HEDDLE_QUORUM_ALL,
                                   .deadline_ms = 60000});
}

Test(lost, when_the_one_that_loads_them_cannot_and_nobody_waits_on)
{
    only_w2_loads_2();
    wait_for_2();
    cr_assert(!rig_has(ADMIN, MSG_REPORT));
    rig_nack(W2, 2, 0, "stage", "version_failed");
    is_lost(2);
    cr_assert(rig_has(ADMIN, MSG_REPORT));
}

/* Each worker refused it, and the publisher leaves at once: the workers' reason counts, not the missing
 * source. */
static void is_refused_when_the_publisher_has_left(int activation)
{
    publish_to(2, (rig_publish_t){.activation = activation});
    rig_nack(W1, 1, 0, "stage", "version_failed");
    rig_nack(W2, 1, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(1), "staging", "a worker that joins may take it");
    rig_leave(T);
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_VERSION_FAILED);
    cr_assert_str_eq(rig_version(1)->message, "policy@1 failed at w1 in phase stage: exit status 3; found 3");
}

Test(lost, a_version_that_all_refused_fails_with_their_reason)
{
    is_refused_when_the_publisher_has_left(HEDDLE_ACTIVATION_AS_READY);
}

Test(lost, a_version_that_waits_for_an_operator_and_that_all_refused_fails_with_their_reason)
{
    is_refused_when_the_publisher_has_left(HEDDLE_ACTIVATION_MANUAL);
}

Test(lost, a_version_that_one_worker_was_still_fetching_fails_for_want_of_a_source)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_nack(W1, 1, 0, "stage", "version_failed");
    says_it_fetches(W2, 1, 2500);
    rig_leave(T);
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_VERSION_LOST);
}

/* As another, so the active one. */
Test(lost, the_active_version_is_not_while_somebody_loads_it)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    roll_out(2, 1, 1, 1);
    w1_goes_on_to(2);
    says_it_fetches(W2, 2, 5000);
    wait_for_2();
    go(T);
    go(W1);
    rig_pass(1000);
    cr_assert_eq(rig_event_count(EVENT_VERSION_LOST), 0);
    cr_assert_str_eq(rig_state(2), "active");
    cr_assert(!rig_has(ADMIN, MSG_REPORT));
    rig_staged(W2, 2, 2);
    rig_active(W2, 2, 2, 2);
    cr_assert(rig_has(ADMIN, MSG_REPORT));
}

/* Not decided, it fails: all that is said then is that nobody has staged it. */
Test(lost, a_version_on_its_way_says_that_nobody_has_staged_it)
{
    publish_to(1, (rig_publish_t){0});
    says_it_fetches(W1, 1, 5000);
    go(T);
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_VERSION_LOST);
    cr_assert_str_eq(rig_version(1)->message,
                     "the publisher of policy@1 has left, and no worker has staged it");
}

/* Its link was cut, for one: it may be well. */
Test(lost, a_publisher_that_is_not_connected_may_have_it_still)
{
    publish_to(1, (rig_publish_t){0});
    R.is_quiet[T] = true;
    for (uint64_t ms = 0; ms < 3 * LEASE_MS && !strcmp(rig_state(1), "staging"); ms += 500) rig_pass(500);
    cr_assert_str_eq(rig_version(1)->message,
                     "the publisher of policy@1 is not connected any more, and no worker has staged it");
}

/* ---- a version that waits for an operator ---- */

/* Version 1 is staged on w1 and waits for an operator; its publisher has left. */
static void staged_on_w1(void)
{
    publish_to(1, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL, .deadline_ms = 60000});
    rig_staged(W1, 1, 1);
    go(T);
    cr_assert_str_eq(rig_state(1), "staged");
}

/* As after a cut of the network: the worker's lease ends, and it still has the bytes. */
static void w1_is_silent_for(uint32_t ms)
{
    R.is_quiet[W1] = true;
    rig_pass(ms);
    R.is_quiet[W1] = false;
    R.tokens[W1] = 0;
}

static void w1_is_back(void)
{
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_STAGED, .digest = rig_digest(1)};
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    rig_pass(100);
}

Test(lost, a_staged_version_is_until_its_holder_comes_back)
{
    staged_on_w1();
    w1_is_silent_for(3 * LEASE_MS);
    cr_assert_str_eq(rig_state(1), "lost");
    cr_assert_eq(rig_event_count(EVENT_VERSION_LOST), 1);
    cr_assert(rig_version(1)->lost_ms && strstr(rig_version(1)->lost_why, "w1 had them last"));
    rig_drop_letters();
    w1_is_back();
    cr_assert(!rig_has(W1, MSG_ABORT));
    cr_assert_str_eq(rig_state(1), "staged");
    cr_assert_eq(rig_version(1)->lost_ms, 0);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann"});
    cr_assert_eq(rig_adapter()->active, 1);
    cr_assert(rig_has(W1, MSG_COMMIT));
}

Test(lost, a_staged_version_also_past_its_deadline)
{
    staged_on_w1();
    rig_pass(70000);
    w1_is_silent_for(3 * LEASE_MS);
    cr_assert_str_eq(rig_state(1), "lost");
    w1_is_back();
    cr_assert_str_eq(rig_state(1), "staged");
}

Test(lost, a_staged_version_also_over_a_restart)
{
    staged_on_w1();
    w1_is_silent_for(3 * LEASE_MS);
    rig_restart();
    cr_assert_str_eq(rig_state(1), "lost");
    rig_pass(70000);
    cr_assert_str_eq(rig_state(1), "lost");
    cr_assert_eq(rig_event_count(EVENT_VERSION_LOST), 0);
    w1_is_back();
    cr_assert_str_eq(rig_state(1), "staged");
}

/* The broker was gone before it could see the holder go: without its record of the staging, such a version
 * looks like one that no worker ever had. */
Test(lost, a_staged_version_also_where_the_holder_goes_with_the_broker)
{
    staged_on_w1();
    rig_restart();
    rig_pass(5 * LEASE_MS);
    cr_assert_str_eq(rig_state(1), "lost");
    rig_pass(70000);
    cr_assert_str_eq(rig_state(1), "lost", "its deadline does not end it, because an operator decides on it");
    rig_restart();
    rig_pass(5 * LEASE_MS);
    cr_assert_eq(rig_event_count(EVENT_VERSION_LOST), 0, "it was said by the broker before");
    w1_is_back();
    cr_assert_str_eq(rig_state(1), "staged");
}

/* Only where it counts: a version that is decided by its rule costs no second commit. */
Test(lost, a_version_that_waits_for_no_operator_has_no_record_of_its_staging)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 30000});
    rig_staged(W1, 1, 1);
    go(T);
    cr_assert_eq(rig_version(1)->staged_ms, 0);
    rig_staged(W2, 1, 1);
    cr_assert_str_eq(rig_state(1), "active");
    cr_assert_eq(rig_version(1)->staged_ms, 0);
}

Test(lost, a_staged_version_gives_way_to_the_next)
{
    staged_on_w1();
    w1_is_silent_for(3 * LEASE_MS);
    const msg_published_t *p = publish_again(HEDDLE_UNCHANGED_SKIP);
    cr_assert(p->created && p->version == 2);
    cr_assert_str_eq(rig_state(1), "superseded");
}

/* It had not been staged on every worker that it waited for: no operator decides on it. */
Test(lost, a_version_that_is_staged_in_part_fails_at_its_deadline)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 30000});
    rig_staged(W1, 1, 1);
    go(T);
    w1_is_silent_for(3 * LEASE_MS);
    cr_assert_str_eq(rig_state(1), "lost");
    rig_pass(20000);
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_DEADLINE);
}
