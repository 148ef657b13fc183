/* SPDX-License-Identifier: Apache-2.0 */
/* Which workers the broker remembers over a restart, and what it says of those that do not return. */
#include "broker/registry/active.h"
#include "broker_rig.h"

TestSuite(roster, .init = rig_start, .fini = rig_stop);

static const member_t *member(const char *name) { return membership_worker(&R.b->members, name); }

static size_t written(void)
{
    size_t count = 0;
    for (size_t i = 0; i < R.record_count; i++) count += R.records[i].kind == RECORD_WORKER;
    return count;
}

Test(roster, a_worker_that_does_not_return_is_lost)
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
    cr_assert_eq(member_sub(m, "policy")->serving.version, 1);
    cr_assert_str_eq(m->end_message, "did not return after the broker's restart");
    cr_assert(!strcmp(m->host, "host") && m->pid == 100 + W2 && !m->token);
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 1);
    cr_assert_str_eq(rig_event(EVENT_WORKER_LOST)->worker, "w2");
    cr_assert_eq(rig_event(EVENT_WORKER_LOST)->code, HEDDLE_ERR_UNAVAILABLE);
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

/* A worker that switched a moment before the end is remembered without the version. */
Test(roster, a_version_that_is_not_known_is_not_named)
{
    msg_subscription_t subs[] = {{.adapter = "policy"}, {.adapter = "critic"}};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", subs, 2, NULL, 0);
    publish_to(0, (rig_publish_t){0});
    rig_pass(3000);
    rig_restart();
    rig_pass(LEASE_MS + 1000);
    cr_assert_str_eq(rig_event(EVENT_WORKER_LOST)->message,
                     "did not return after the broker's restart; the version that it served is not known");
}

Test(roster, of_two_adapters_one_version_is_known)
{
    msg_subscription_t subs[] = {{.adapter = "policy"}, {.adapter = "critic"}};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", subs, 2, NULL, 0);
    publish_to(0, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_pass(ROSTER_LATE_US / 1000 + 1000);
    rig_restart();
    rig_pass(LEASE_MS + 1000);
    cr_assert_str_eq(rig_event(EVENT_WORKER_LOST)->message,
                     "did not return after the broker's restart; it served policy@1");
}

/* Its decision is not remembered: that of the version counts.  Versions that failed were not chosen. */
Test(roster, how_far_behind_a_lost_one_is)
{
    publish_to(2, (rig_publish_t){0});
    for (uint64_t v = 1; v <= 3; v++) {
        if (v > 1) rig_publish(T, (rig_publish_t){.digest = v});
        roll_out(2, v, v, v);
    }
    rig_pass(ROSTER_LATE_US / 1000 + 1000);
    rig_publish(T, (rig_publish_t){.digest = 4});
    rig_nack(W1, 4, 0, "stage", "version_failed");
    rig_publish(T, (rig_publish_t){.digest = 5});
    roll_out(2, 5, 4, 5);
    rig_restart();
    msg_held_t held = {.adapter = "policy", .version = 5, .state = HELD_ACTIVE, .digest = rig_digest(5)};
    msg_subscription_t sub = {.adapter = "policy", .decision = 4, .version = 5};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    rig_pass(LEASE_MS + 1000);
    const member_t *m = member("w2");
    const adapter_row_t *a = rig_adapter();
    cr_assert(m && m->state == MEMBER_LOST && m->subs[0].serving.version == 3);
    cr_assert_eq(active_lag(a, m, &m->subs[0]), 1, "%llu", (unsigned long long)active_lag(a, m, &m->subs[0]));
}

/* A refusal of the store would put off the decision with the records of workers. */
Test(roster, is_not_written_with_a_decision)
{
    publish_to(2, (rig_publish_t){0});
    R.is_late = true;
    rig_publish(T, (rig_publish_t){.digest = 2}); /* opens a transaction */
    rig_pass(3000);
    rig_staged(W1, 1, 1);
    rig_staged(W2, 1, 1);
    rig_confirm(HEDDLE_OK);
    cr_assert(rig_is_committing());
    for (int i = 0; i < R.committing_count; i++) cr_assert_neq(R.committing[i].kind, RECORD_WORKER);
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_adapter()->decision, 1);
    cr_assert(rig_is_committing() && R.committing[0].kind == RECORD_WORKER && R.committing_count == 2);
    rig_confirm(HEDDLE_OK);
    R.is_late = false;
    cr_assert_eq(written(), 2);
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

/* In any order of names. */
static void eighty_workers(void)
{
    char name[16];
    for (uint64_t i = 0; i < 80; i++) {
        snprintf(name, sizeof name, "x%llu", (unsigned long long)i);
        rig_worker(20 + i, name);
    }
}

Test(roster, more_than_one_transaction_takes)
{
    eighty_workers();
    rig_pass(5000);
    cr_assert_eq(written(), 80);
    cr_assert_eq(R.b->registry.worker_count, 80);
    cr_assert_leq(R.b->roster.compared, 80u + 1, "a transaction goes on where the one before it ended");
}

Test(roster, what_changes_during_a_round_is_for_the_next)
{
    eighty_workers();
    R.is_late = true;
    rig_pass(3000);
    cr_assert(rig_is_committing() && R.committing_count == OUTBOX_RECORDS);
    rig_worker(W1, "w1"); /* before those of which the records are under way, by its name */
    rig_leave(20);        /* x0, which is among them */
    rig_confirm(HEDDLE_OK);
    cr_assert(rig_is_committing() && R.committing_count == 80 - OUTBOX_RECORDS);
    rig_confirm(HEDDLE_OK);
    cr_assert(!rig_is_committing() && !R.b->roster.is_on);
    R.is_late = false;
    R.tokens[20] = 0;
    rig_pass(3000);
    cr_assert_eq(written(), 82);
    cr_assert_eq(R.b->registry.worker_count, 80);
    cr_assert(registry_worker(&R.b->registry, "w1") && !registry_worker(&R.b->registry, "x0"));
}

Test(roster, what_is_refused_of_a_round_is_recorded_by_the_next)
{
    eighty_workers();
    R.is_late = true;
    rig_pass(3000);
    rig_confirm(HEDDLE_ERR_NO_SPACE);
    R.is_late = false;
    rig_pass(3000);
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

/* ---- a clean end ---- */

Test(roster, who_left_just_before_a_clean_end_is_not_lost_after_it)
{
    workers(2);
    rig_pass(5000);
    rig_leave(W1);
    R.tokens[W1] = 0;
    broker_end(R.b, R.now);
    cr_assert_eq(R.b->registry.worker_count, 1);
    int commits = R.commits;
    broker_end(R.b, R.now);
    cr_assert_eq(R.commits, commits, "nothing is due");
    rig_restart();
    rig_worker(W2, "w2");
    rig_pass(LEASE_MS + 1000);
    cr_assert_null(member("w1"));
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 0);
}

/* Those that may still return stay remembered. */
Test(roster, a_clean_end_while_settling_forgets_none)
{
    workers(2);
    rig_pass(5000);
    rig_restart();
    rig_worker(W1, "w1");
    broker_end(R.b, R.now);
    cr_assert_eq(R.b->registry.worker_count, 2);
}

/* ---- a damaged row ---- */

Test(roster, a_damaged_row_is_passed_over_with_a_warning)
{
    static const struct {
        const char *worker, *host, *serves, *names;
    } ROWS[] = {
        {"bad name!", "host", "policy@1", "bad name!"},
        {"wx", "host", "A\xff@1", "wx"},
        {"wx", "A\xff", "policy@1", "wx"},
        {"wx", "host", "../../etc@1", "wx"},
        {"wx", "host", "policy", "wx"},
        {"", "host", "policy@1", "workers"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        record_t rec = {.kind = RECORD_WORKER,
                        .worker = ROWS[i].worker,
                        .host = ROWS[i].host,
                        .serves = ROWS[i].serves};
        R.warned[0] = 0;
        cr_assert_eq(broker_apply(R.b, &rec), HEDDLE_OK, "row %zu", i);
        cr_assert(strstr(R.warned, "table workers") && strstr(R.warned, ROWS[i].names), "%zu: %s", i,
                  R.warned);
    }
    cr_assert_eq(R.b->registry.worker_count, 0);
    record_t good = {.kind = RECORD_WORKER, .worker = "w9", .host = "host", .serves = "policy@0,critic@17"};
    R.warned[0] = 0;
    cr_assert_eq(broker_apply(R.b, &good), HEDDLE_OK);
    cr_assert(!R.warned[0] && R.b->registry.worker_count == 1);
}
