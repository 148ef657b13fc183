/* SPDX-License-Identifier: Apache-2.0 */
/* Which workers the broker remembers over a restart, and what it says of those that do not return. */
#include "broker_rig.h"

TestSuite(roster, .init = rig_start, .fini = rig_stop);

static const member_t *member(const char *name) { return membership_worker(&R.b->members, name); }

static size_t written(void)
{
    size_t count = 0;
    for (size_t i = 0; i < R.record_count; i++) count += R.records[i].kind == RECORD_WORKER;
    return count;
}

Test(roster, who_does_not_return_is_lost)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_pass(ROSTER_LATE_US / 1000 + 1000);
    rig_restart();
    rig_worker(W1, "w1");
    rig_pass(LEASE_MS - 500);
    cr_assert_null(member("w2"), "it may still return");
    rig_pass(1000);
    cr_assert_eq(member("w1")->state, MEMBER_READY);
    const member_t *m = member("w2");
    cr_assert(m && m->state == MEMBER_LOST);
    cr_assert_eq(member_sub(m, "policy")->version, 1);
    cr_assert_str_eq(m->end_message, "did not return after the broker's restart");
    cr_assert(!strcmp(m->host, "host") && m->pid == 100 + W2 && !m->token);
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 1);
    cr_assert_str_eq(rig_event(EVENT_WORKER_LOST)->worker, "w2");
    rig_restart(); /* said once */
    rig_worker(W1, "w1");
    rig_pass(LEASE_MS + 1000);
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 0);
    cr_assert_null(member("w2"));
}

/* Nothing was ever published: the broker has nothing to settle. */
Test(roster, also_without_any_version)
{
    workers(2);
    rig_pass(5000);
    rig_restart();
    rig_worker(W2, "w2");
    rig_pass(LEASE_MS + 500);
    cr_assert(member("w1") && member("w1")->state == MEMBER_LOST && member("w2")->state == MEMBER_READY);
}

Test(roster, who_left_or_was_lost_before_is_not)
{
    workers(3);
    rig_pass(5000);
    rig_leave(W1);
    R.is_quiet[W2] = true;
    rig_pass(LEASE_MS + 5000);
    cr_assert_eq(member("w2")->state, MEMBER_LOST);
    cr_assert_eq(R.b->registry.worker_count, 1);
    rig_restart();
    rig_worker(W3, "w3");
    rig_pass(LEASE_MS + 1000);
    cr_assert(!member("w1") && !member("w2"));
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 0);
}

Test(roster, a_lost_one_may_still_come)
{
    workers(1);
    rig_pass(5000);
    rig_restart();
    rig_pass(LEASE_MS + 1000);
    cr_assert_eq(member("w1")->state, MEMBER_LOST);
    rig_worker(W1, "w1");
    cr_assert_eq(member("w1")->state, MEMBER_READY);
    rig_pass(5000);
    cr_assert_eq(R.b->registry.worker_count, 1);
}

/* JOIN is answered before anything is written; many are one transaction; nothing new, nothing written. */
Test(roster, is_written_in_batches_and_not_on_the_way_of_a_join)
{
    workers(4);
    cr_assert_eq(written(), 0);
    int before = R.commits;
    rig_pass(5000);
    cr_assert_eq(written(), 4);
    cr_assert_eq(R.commits, before + 1);
    rig_hello(W1, ROLE_WORKER);
    msg_subscription_t sub = {.adapter = "policy"};
    rig_join_with(W1, "w1", &sub, 1, NULL, 0);
    rig_pass(5000);
    cr_assert_eq(R.commits, before + 1, "the same process again");
}

Test(roster, more_than_one_transaction_takes)
{
    char name[16];
    for (uint64_t i = 0; i < 80; i++) {
        snprintf(name, sizeof name, "x%llu", (unsigned long long)i);
        rig_worker(20 + i, name);
    }
    rig_pass(5000);
    cr_assert_eq(written(), 80);
    cr_assert_eq(R.b->registry.worker_count, 80);
}

Test(roster, a_disk_that_refuses_is_asked_again)
{
    workers(2);
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    rig_pass(5000);
    cr_assert_eq(written(), 0);
    R.commit_error = 0;
    rig_pass(5000);
    cr_assert_eq(written(), 2);
}
