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
    msg_held_t held = {.adapter = "policy", .version = version, .state = state, .digest = rig_digest(version)};
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
    track_t *t = rollout_track(&R.b->rollout, "policy", 2);
    track_copy(t, "w1")->state = COPY_NONE; /* it lost them */
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
