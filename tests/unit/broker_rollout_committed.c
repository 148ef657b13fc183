/* SPDX-License-Identifier: Apache-2.0 */
/* After the commit: forward only; late joiners, sources, lost and held. */
#include "broker_rig.h"

TestSuite(committed, .init = rig_start, .fini = rig_stop);

/* ---- after the commit: forward only ---- */

/* The worker joined a moment before the decision, and was sent the version that was active then.  It is told of
 * the decision before it has the version: only so can it give up the obsolete one. */
Test(committed, a_worker_that_serves_nothing_is_sent_the_decision_with_the_announcement)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_pass(100); /* it takes longer than version 1 did */
    rig_worker(W2, "w2");
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 1);
    rig_drop_letters();
    rig_staged(W1, 2, 2);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 2);
    cr_assert(rig_has(W2, MSG_COMMIT));
    cr_assert_eq(rig_last(W2, MSG_COMMIT)->commit.version, 2);
}

Test(committed, an_activation_that_fails_is_stale_by_name)
{
    one_of_two_switches();
    rig_nack(W2, 2, 2, "activate", "internal");
    cr_assert_str_eq(rig_state(2), "active");
    cr_assert_str_eq(rig_copy_state(2, "w2"), "stale");
    cr_assert_str_eq(rig_copy_state(1, "w2"), "stale");
    cr_assert_str_eq(rig_copy_state(1, "w1"), "kept");
    cr_assert_eq(rig_event_count(EVENT_ACTIVATE_FAILED), 1);
    const msg_rollout_t *r = told();
    cr_assert_eq(r->active_count, 1);
    cr_assert_eq(r->missing_count, 1);
    cr_assert_str_eq(r->missing[0].worker, "w2");
    cr_assert_str_eq(r->missing[0].phase, "activate");
    rig_pass(70000);
    cr_assert_eq(rig_adapter()->active, 2, "nobody is turned back");
    cr_assert_eq(rig_count(MSG_ABORT), 0);
}

static void late_event_is(event_type_t type, const char *message)
{
    const event_row_t *e = rig_event(type);
    cr_assert(e->code == HEDDLE_ERR_DEADLINE && e->version == 1 && e->decision == 1);
    cr_assert_str_eq(e->worker, "w2");
    cr_assert_str_eq(e->message, message);
}

/* Its publisher ends with `deadline` then, and the version does not fail. */
Test(committed, a_worker_that_has_not_switched_at_the_deadline_has_an_event)
{
    publish_to(3, (rig_publish_t){.deadline_ms = 2000});
    for (uint64_t peer = W1; peer <= W3; peer++) rig_staged(peer, 1, 1);
    rig_active(W1, 1, 1, 1);
    rig_nack(W3, 1, 1, "activate", "internal");
    rig_pass(1500);
    cr_assert_eq(rig_event_count(EVENT_ACTIVATE_FAILED), 1, "of w3");
    rig_pass(60000);
    cr_assert_eq(rig_event_count(EVENT_ACTIVATE_FAILED), 2, "once, and w3 has said why");
    late_event_is(EVENT_ACTIVATE_FAILED,
                  "activate: has not said that it switched within 2000 ms, and goes on");
    cr_assert_eq(rig_event_count(EVENT_VERSION_FAILED), 0);
    rig_active(W2, 1, 1, 1);
    cr_assert_str_eq(rig_copy_state(1, "w2"), "active");
}

Test(committed, a_worker_that_has_not_staged_at_the_deadline_has_an_event)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 2000, .activation = HEDDLE_ACTIVATION_AS_READY});
    rig_staged(W1, 1, 1);
    rig_active(W1, 1, 1, 1);
    rig_pass(2500);
    late_event_is(EVENT_STAGE_FAILED, "announce: has not staged it within 2000 ms, and goes on");
    cr_assert_eq(rig_event_count(EVENT_STAGE_FAILED), 1);
}

Test(committed, an_operator_who_activates_has_no_deadline_of_the_version)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 2000, .activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 1, 1);
    rig_staged(W2, 1, 1);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1});
    rig_pass(2500);
    cr_assert_eq(rig_adapter()->active, 1);
    cr_assert_eq(rig_event_count(EVENT_ACTIVATE_FAILED), 0);
}

Test(committed, what_failed_to_stage_for_a_passing_reason_is_announced_again)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_staged(W1, 1, 1);
    rig_nack(W2, 1, 0, "fetch", "no_slot");
    rig_drop_letters();
    rig_pass(3900);
    cr_assert(!rig_has(W2, MSG_ANNOUNCE));
    rig_pass(300);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 1, "after a lease");
    rig_nack(W2, 1, 0, "fetch", "no_slot");
    rig_drop_letters();
    rig_pass(7500);
    cr_assert(!rig_has(W2, MSG_ANNOUNCE), "later and later");
    rig_pass(1000);
    cr_assert(rig_has(W2, MSG_ANNOUNCE));
    rig_nack(W2, 1, 0, "stage", "version_failed");
    rig_drop_letters();
    rig_pass(100000);
    cr_assert(!rig_has(W2, MSG_ANNOUNCE), "not when it would be the same again");
}

Test(committed, acks_said_twice_or_late_change_nothing)
{
    publish_to(1, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_staged(W1, 1, 1);
    cr_assert_eq(rig_count(MSG_COMMIT), 1);
    rig_active(W1, 1, 1, 1);
    rig_active(W1, 1, 1, 1);
    cr_assert_eq(rig_event_count(EVENT_ACTIVATE_DONE), 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    rig_active(W1, 2, 2, 2);
    rig_active(W1, 1, 1, 1); /* I13 */
    cr_assert_str_eq(rig_copy_state(2, "w1"), "active");
    cr_assert_eq(member_sub(membership_worker(&R.b->members, "w1"), "policy")->serving.decision, 2);
}

Test(committed, impossible_acks_are_refused)
{
    publish_to(1, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_active(W1, 1, 2, 1);
    rig_error(W1, "protocol");
    rig_active(W1, 1, 0, 1);
    rig_error(W1, "protocol");
    rig_active(W1, 9, 1, 1);
    rig_error(W1, "not_found");
    rig_staged(W1, 9, 1);
    rig_error(W1, "not_found");
    rig_nack(W1, 9, 0, "fetch", "gone");
    rig_error(W1, "not_found");
    cr_assert_str_eq(rig_copy_state(1, "w1"), "committed");
    rig_active(W1, 1, 1, 55);
    rig_error(W1, "digest_mismatch");
    cr_assert_str_eq(rig_copy_state(1, "w1"), "failed");
}

Test(committed, a_worker_answers_only_for_what_it_subscribed_to)
{
    publish_to(1, (rig_publish_t){0});
    msg_subscription_t other = {.adapter = "critic"};
    rig_hello(W4, ROLE_WORKER);
    rig_join_with(W4, "w4", &other, 1, NULL, 0);
    rig_staged(W4, 1, 1);
    rig_error(W4, "not_found");
    rig_active(W4, 1, 1, 1);
    rig_error(W4, "not_found");
    cr_assert_str_eq(rig_copy_state(1, "w4"), "");
}

/* ---- late joiners, sources ---- */

Test(committed, a_late_joiner_fetches_from_holders)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_leave(T);
    R.tokens[T] = 0;
    rig_worker(W3, "w3");
    const msg_welcome_t *w = &rig_last(W3, MSG_WELCOME)->welcome;
    cr_assert_eq(w->adapter_count, 1);
    cr_assert(w->adapters[0].decision == 1 && w->adapters[0].version == 1 && w->slots == 3 &&
              w->lease_ms == LEASE_MS);
    const msg_announce_t *a = &rig_last(W3, MSG_ANNOUNCE)->announce;
    cr_assert_eq(a->source_count, 2);
    cr_assert(a->sources[0].kind == SOURCE_WORKER && a->sources[1].kind == SOURCE_WORKER);
    rig_staged(W3, 1, 1);
    cr_assert_eq(rig_last(W3, MSG_COMMIT)->commit.decision, 1);
    rig_active(W3, 1, 1, 1);
    const copy_row_t *c = copy_find(track_find(&R.b->rollout, "policy", 1), "w3");
    cr_assert_eq(c->served_count, 1);
    cr_assert_str_eq(c->served[0].name, "trainer");
    cr_assert_eq(c->served[0].bytes, 5000);
}

Test(committed, the_publisher_is_last_once_there_are_holders)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_worker(W3, "w3");
    const msg_announce_t *a = &rig_last(W3, MSG_ANNOUNCE)->announce;
    cr_assert_eq(a->source_count, 2);
    cr_assert_eq(a->sources[0].token, R.tokens[W1]);
    cr_assert_eq(a->sources[1].token, R.tokens[T]);
}

Test(committed, joiners_are_spread_over_holders_by_load)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    unsigned first_w1 = 0;
    for (int i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof name, "j%d", i);
        rig_worker((uint64_t)(20 + i), name);
        first_w1 += rig_last((uint64_t)(20 + i), MSG_ANNOUNCE)->announce.sources[0].token == R.tokens[W1];
    }
    cr_assert_eq(first_w1, 5);
}

Test(committed, need_sources_gives_others)
{
    publish_to(3, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    uint64_t lost[] = {R.tokens[T], R.tokens[W1]};
    rig_need_sources(W2, 1, (msg_need_sources_t){.lost = lost, .lost_count = 1});
    const msg_sources_t *s = &rig_last(W2, MSG_SOURCES)->sources;
    cr_assert_eq(s->source_count, 1);
    cr_assert_eq(s->sources[0].token, R.tokens[W1]);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_LOST), 1);
    rig_need_sources(W2, 1, (msg_need_sources_t){.lost = lost, .lost_count = 2});
    cr_assert_eq(rig_last(W2, MSG_SOURCES)->sources.source_count, 2, "better one that failed once than none");
}

/* It asks twice a second for as long as it has none. */
Test(committed, a_source_is_lost_once_and_by_name)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    uint64_t lost[] = {R.tokens[W1], R.tokens[T]};
    for (int i = 0; i < 5; i++) rig_need_sources(W2, 1, (msg_need_sources_t){.lost = lost, .lost_count = 1});
    cr_assert_eq(rig_event_count(EVENT_SOURCE_LOST), 1);
    cr_assert_str_eq(rig_event(EVENT_SOURCE_LOST)->worker, "w2");
    cr_assert_str_eq(rig_event(EVENT_SOURCE_LOST)->other, "w1");
    R.is_quiet[T] = true;
    rig_pass(3 * LEASE_MS);
    cr_assert_null(membership_publisher(&R.b->members, "policy"));
    for (int i = 0; i < 5; i++) rig_need_sources(W2, 1, (msg_need_sources_t){.lost = lost, .lost_count = 2});
    cr_assert_eq(rig_event_count(EVENT_SOURCE_LOST), 2);
    cr_assert_str_eq(rig_event(EVENT_SOURCE_LOST)->other, "trainer", "a publisher that is gone");
}

Test(committed, a_source_that_never_answered_is_not_lost)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    uint64_t lost[] = {R.tokens[T], R.tokens[W1]}, unmet[] = {R.tokens[T]};
    rig_need_sources(W2, 1,
                     (msg_need_sources_t){.lost = lost, .lost_count = 2, .unmet = unmet, .unmet_count = 1});
    cr_assert_eq(rig_event_count(EVENT_SOURCE_LOST), 1);
    cr_assert_str_eq(rig_event(EVENT_SOURCE_LOST)->other, "w1");
    cr_assert_eq(rig_last(W2, MSG_SOURCES)->sources.source_count, 2, "it is given again all the same");
}

Test(committed, who_has_no_source_gets_one_when_it_comes)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_staged(W1, 1, 1);
    rig_leave(T);
    R.tokens[T] = 0;
    rig_leave(W1);
    R.tokens[W1] = 0;
    cr_assert_str_eq(rig_state(1), "lost");
    rig_need_sources(W2, 1, (msg_need_sources_t){0});
    cr_assert_eq(rig_last(W2, MSG_SOURCES)->sources.source_count, 0);
    rig_drop_letters();
    msg_subscription_t sub = {.adapter = "policy", .decision = 1, .version = 1};
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_ACTIVE, .digest = rig_digest(1)};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    cr_assert_str_eq(rig_state(1), "active", "it is back");
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.sources[0].token, R.tokens[W1]);
}

Test(committed, a_released_region_that_refuses_is_no_source_any_more)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    cr_assert(rig_has(T, MSG_RELEASE));
    rig_leave(W1);
    R.tokens[W1] = 0;
    cr_assert_str_eq(rig_state(1), "active", "the publisher is still here, and may have it");
    rig_worker(W2, "w2");
    uint64_t lost[] = {R.tokens[T]};
    rig_need_sources(W2, 1,
                     (msg_need_sources_t){.lost = lost, .lost_count = 1, .unmet = lost, .unmet_count = 1});
    cr_assert_str_eq(rig_state(1), "active", "one that is late may have it");
    rig_need_sources(W2, 1, (msg_need_sources_t){.lost = lost, .lost_count = 1});
    cr_assert_str_eq(rig_state(1), "lost");
    cr_assert_eq(rig_event_count(EVENT_VERSION_LOST), 1);
}

/* It has few regions: the one that it may reuse is in use again by then. */
Test(committed, a_released_version_is_no_source_once_its_publisher_goes_on)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    cr_assert_eq(rig_last(T, MSG_RELEASE)->release.version, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    cr_assert_str_eq(rig_state(1), "active", "w1 has it");
    rig_drop_letters();
    R.is_quiet[W1] = true;
    rig_pass(5000);
    R.tokens[W1] = 0;
    cr_assert_str_eq(rig_state(1), "lost");
    rig_worker(W2, "w2");
    rig_need_sources(W2, 1, (msg_need_sources_t){0});
    for (size_t i = 0; i < R.letter_count; i++) {
        const msg_t *said = &R.letters[i].m;
        cr_assert(said->type != MSG_ANNOUNCE || said->announce.version == 2);
        cr_assert(said->type != MSG_SOURCES || said->sources.source_count == 0, "nobody has it");
    }
}

Test(committed, a_worker_busy_with_the_active_version_gets_the_newest_after_it)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_pass(100); /* it takes longer than version 1 did */
    rig_drop_letters();
    rig_worker(W2, "w2"); /* joins while 2 is staging */
    cr_assert_eq(rig_count(MSG_ANNOUNCE), 1);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 1, "first what is served");
    rig_drop_letters();
    rig_staged(W2, 1, 1);
    cr_assert_eq(rig_last(W2, MSG_COMMIT)->commit.version, 1);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 2);
}

/* It serves nothing yet, and will have version 2 as soon as it would have version 1. */
static void joins_beside_two(void)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_drop_letters();
    rig_worker(W2, "w2");
    cr_assert_eq(rig_count(MSG_ANNOUNCE), 1);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 2);
    rig_drop_letters();
}

Test(committed, a_worker_that_joins_gets_what_comes_as_soon_as_the_active_version)
{
    joins_beside_two();
    rig_staged(W2, 2, 2);
    cr_assert(!rig_has(W2, MSG_ANNOUNCE), "it is decided in a moment");
    rig_staged(W1, 2, 2);
    cr_assert_eq(rig_last(W2, MSG_COMMIT)->commit.version, 2);
    cr_assert(!rig_has(W2, MSG_ANNOUNCE));
}

/* Also where it has version 2, and that is not decided. */
Test(committed, where_that_is_held_up_it_gets_the_active_version)
{
    for (int is_staged = 0; is_staged < 2; is_staged++) {
        rig_stop();
        rig_start();
        joins_beside_two();
        if (is_staged) rig_staged(W2, 2, 2);
        rig_pass(2000);
        cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 1);
        rig_staged(W2, 1, 1);
        cr_assert_eq(rig_last(W2, MSG_COMMIT)->commit.version, 1);
    }
}

/* Version 2 takes a second: one that joins as late as that has twice that time, too. */
Test(committed, one_that_joins_late_fetches_one_version)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    uint64_t rate = track_find(&R.b->rollout, "policy", 1)->plan.best_rate;
    cr_assert_gt(rate, 0);
    rig_publish(T, (rig_publish_t){.digest = 2, .payload_bytes = rate / 4096 * 4096});
    rig_pass(1900);
    rig_drop_letters();
    rig_worker(W2, "w2");
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 2);
    rig_pass(1900);
    cr_assert_eq(rig_count(MSG_ANNOUNCE), 1);
    rig_pass(1000);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 1, "it is held up");
}

Test(committed, a_worker_that_joins_gets_the_active_version_where_that_takes_long)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2, .payload_bytes = 1 << 30});
    rig_worker(W2, "w2");
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 1, "version 2 takes longer than a lease");
}

Test(committed, who_left_the_active_version_for_a_newest_that_fails_goes_back_to_it)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_worker(W2, "w2"); /* fetching 1 */
    rig_publish(T, (rig_publish_t){.digest = 2});
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 2);
    rig_drop_letters();
    rig_nack(W1, 2, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(2), "failed");
    cr_assert_eq(rig_last(W2, MSG_ABORT)->abort.version, 2);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 1);
}

/* ---- lost, held ---- */

Test(committed, a_committed_version_without_holders_is_lost_at_once)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_leave(T);
    R.tokens[T] = 0;
    R.is_quiet[W1] = true;
    rig_pass(5000);
    cr_assert_str_eq(rig_state(1), "lost");
    cr_assert_eq(rig_event_count(EVENT_VERSION_LOST), 1);
    rig_pass(20000);
    cr_assert_eq(rig_event_count(EVENT_VERSION_LOST), 1, "said once");
    R.tokens[W1] = 0;
    rig_drop_letters();
    rig_worker(W2, "w2");
    cr_assert(!rig_has(W2, MSG_ANNOUNCE), "nobody could serve it");
}

Test(committed, a_held_adapter_stages_and_does_not_activate)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann@host"});
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.version, 1);
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.decision, 3);
    rig_active(W1, 1, 3, 1);
    cr_assert_str_eq(rig_copy_state(1, "w1"), "active");
    cr_assert_str_eq(rig_copy_state(2, "w1"), "kept");
    cr_assert_eq(rig_event_count(EVENT_ADAPTER_HELD), 1);
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 3, .deadline_ms = 6000});
    rig_pass(100);
    if (rig_has(T, MSG_ROLLOUT))
        cr_assert_str_eq(rig_last(T, MSG_ROLLOUT)->rollout.code, "", "not before it is staged");
    rig_staged(W1, 3, 3);
    cr_assert_eq(rig_count(MSG_COMMIT), 0);
    const msg_rollout_t *r = told();
    cr_assert_str_eq(r->state, "staged");
    cr_assert_str_eq(r->code, "held");
    cr_assert_not_null(strstr(r->message, "ann@host"), "%s", r->message);
    cr_assert_not_null(strstr(r->message, "policy@1"));
    rig_pass(10000);
    cr_assert_str_eq(rig_state(3), "staged", "past its deadline too");
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 3, .by = "ann"});
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.version, 3);
    cr_assert(!rig_adapter()->held);
    cr_assert_eq(rig_event_count(EVENT_ADAPTER_RESUMED), 1);
}

static const msg_rollout_t *told_of(uint64_t version)
{
    const msg_rollout_t *last = NULL;
    for (size_t i = 0; i < R.letter_count; i++) {
        const msg_t *m = &R.letters[i].m;
        if (m->type == MSG_ROLLOUT && m->rollout.version == version) last = &m->rollout;
    }
    cr_assert_not_null(last);
    return last;
}

Test(committed, what_was_taken_back_before_it_was_served_is_held_for_its_publisher)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    rig_staged(W2, 2, 2);
    rig_active(W1, 2, 2, 2); /* w2 switches yet */
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann@host"});
    rig_pass(50);
    const msg_rollout_t *r = told_of(2);
    cr_assert(!strcmp(r->state, "kept") && !strcmp(r->code, "held"), "%s, %s", r->state, r->code);
    cr_assert(strstr(r->message, "policy@1 by ann@host"), "%s", r->message);
    rig_active(W1, 1, 3, 1);
    rig_active(W2, 1, 3, 1);
    rig_pass(1000);
    r = told_of(2);
    cr_assert_eq(r->active_count, 1, "w1 had switched to it before; w2 never did");
    cr_assert(r->missing_count == 1 && !strcmp(r->missing[0].worker, "w2"));
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 2});
    rig_active(W1, 2, 4, 2);
    rig_active(W2, 2, 4, 2);
    rig_pass(1000);
    r = told_of(2);
    cr_assert(r->active_count == 2 && !r->code[0]);
}

Test(committed, a_later_version_reaches_what_it_overtook)
{
    publish_to(1, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2); /* decided before w1 switched to 1 */
    rig_active(W1, 2, 2, 2);
    const track_t *t = track_find(&R.b->rollout, "policy", 1);
    cr_assert(copy_find(t, "w1")->has_reached);
}

Test(committed, a_rollback_moves_no_bytes_and_fetches_where_they_are_missing)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_worker(W2, "w2"); /* gets version 2 alone */
    rig_staged(W2, 2, 2);
    rig_active(W2, 2, 2, 2);
    rig_drop_letters();
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1});
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.version, 1);
    cr_assert(!rig_has(W1, MSG_ANNOUNCE));
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 1);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.sources[0].token, R.tokens[W1]);
    rig_staged(W2, 1, 1);
    cr_assert_eq(rig_last(W2, MSG_COMMIT)->commit.decision, 3);
    cr_assert_str_eq(rig_copy_state(2, "w2"), "stale");
}

Test(committed, what_was_overtaken_before_the_switch_is_kept)
{
    publish_to(1, (rig_publish_t){0});
    rig_staged(W1, 1, 1); /* COMMIT 1 is on its way */
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    cr_assert_str_eq(rig_copy_state(1, "w1"), "kept");
    cr_assert_str_eq(rig_copy_state(2, "w1"), "committed");
    rig_active(W1, 2, 2, 2);
    cr_assert_str_eq(rig_copy_state(1, "w1"), "kept");
}

/* ---- answers in unusual shapes ---- */

Test(committed, staged_without_sources_or_names)
{
    publish_to(2, (rig_publish_t){0});
    msg_served_t from[] = {{.token = 1, .kind = SOURCE_WORKER, .bytes = 7},
                           {.token = 2, .kind = SOURCE_PUBLISHER, .bytes = 8, .name = "t"}};
    msg_t m = {.type = MSG_STAGED};
    m.staged =
        (msg_staged_t){.token = R.tokens[W1], .version = 1, .adapter = "policy", .digest = rig_digest(1)};
    rig_frame(W1, &m);
    m.staged.token = R.tokens[W2];
    m.staged.sources = from;
    m.staged.source_count = 2;
    rig_frame(W2, &m);
    const track_t *t = track_find(&R.b->rollout, "policy", 1);
    cr_assert_eq(copy_find(t, "w1")->served_count, 0);
    cr_assert_eq(copy_find(t, "w2")->served_count, 2);
    cr_assert_eq(copy_find(t, "w2")->served[0].kind, SOURCE_WORKER);
    cr_assert_eq(t->bytes_moved, 15);
}

Test(committed, sources_are_told_by_name_and_once)
{
    publish_to(1, (rig_publish_t){0});
    msg_served_t from[] = {{.token = 4, .kind = SOURCE_WORKER, .bytes = 30, .name = "w9"},
                           {.token = 1, .kind = SOURCE_PUBLISHER, .bytes = 5, .name = "trainer"},
                           {.token = 7, .kind = SOURCE_WORKER, .bytes = 1, .name = "trainer"},
                           {.token = 3, .kind = SOURCE_PUBLISHER, .bytes = 6, .name = "trainer"},
                           {.token = 2, .kind = SOURCE_WORKER, .bytes = 20, .name = "w2"}};
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = R.tokens[W1],
                              .version = 1,
                              .adapter = "policy",
                              .digest = rig_digest(1),
                              .sources = from,
                              .source_count = 5};
    rig_frame(W1, &m);
    const copy_row_t *c = copy_find(track_find(&R.b->rollout, "policy", 1), "w1");
    static const struct {
        const char *name;
        source_kind_t kind;
        uint64_t bytes;
    } EXPECTED[] = {{"trainer", SOURCE_PUBLISHER, 11},
                    {"trainer", SOURCE_WORKER, 1},
                    {"w2", SOURCE_WORKER, 20},
                    {"w9", SOURCE_WORKER, 30}};
    cr_assert_eq(c->served_count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_str_eq(c->served[i].name, EXPECTED[i].name);
        cr_assert_eq(c->served[i].kind, EXPECTED[i].kind, "row %u", i);
        cr_assert_eq(c->served[i].bytes, EXPECTED[i].bytes, "row %u", i);
    }
}

Test(committed, only_so_many_sources_are_remembered)
{
    publish_to(1, (rig_publish_t){0});
    msg_served_t from[LIMIT_SOURCES + 4];
    char names[LIMIT_SOURCES + 4][24];
    for (size_t i = 0; i < LIMIT_SOURCES + 4; i++) {
        snprintf(names[i], sizeof names[i], "w%zu", i);
        from[i] = (msg_served_t){.token = i + 1, .kind = SOURCE_WORKER, .bytes = 1, .name = names[i]};
    }
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = R.tokens[W1],
                              .version = 1,
                              .adapter = "policy",
                              .digest = rig_digest(1),
                              .sources = from,
                              .source_count = LIMIT_SOURCES + 4};
    rig_frame(W1, &m);
    const track_t *t = track_find(&R.b->rollout, "policy", 1);
    cr_assert_eq(copy_find(t, "w1")->served_count, LIMIT_SOURCES);
    cr_assert_eq(t->bytes_moved, LIMIT_SOURCES + 4, "all bytes are counted");
}

Test(committed, a_worker_that_fell_behind_says_so_late)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_worker(W2, "w2");
    rig_staged(W2, 1, 1); /* COMMIT d1 is on its way to w2 */
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    rig_staged(W2, 2, 2); /* d2 */
    rig_active(W2, 1, 1, 1);
    cr_assert_str_eq(rig_copy_state(1, "w2"), "stale");
    cr_assert_eq(member_sub(membership_worker(&R.b->members, "w2"), "policy")->serving.decision, 1);
    rig_active(W2, 1, 2, 1); /* d2 named version 2 */
    rig_error(W2, "protocol");
    rig_active(W2, 2, 2, 2);
    cr_assert_str_eq(rig_copy_state(2, "w2"), "active");
}

Test(committed, a_wrong_digest_of_a_version_that_it_never_held)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_drop_letters();
    track_t *t = track_find(&R.b->rollout, "policy", 1);
    track_set_publisher(t, t->plan.publisher.token,
                        PUBLISHER_WITHOUT); /* a source less: w2 is announced nothing */
    rig_leave(W1);
    R.tokens[W1] = 0;
    rig_worker(W2, "w2");
    rig_active(W2, 1, 1, 9);
    rig_error(W2, "digest_mismatch");
    cr_assert_str_eq(rig_copy_state(1, "w2"), "");
}

Test(committed, an_ended_version_may_still_be_served_somewhere)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    for (uint64_t v = 2; v <= 3; v++) {
        rig_publish(T, (rig_publish_t){.digest = v});
        roll_out(1, v, v, v);
    }
    cr_assert_str_eq(rig_state(1), "retired");
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello(W2, ROLE_WORKER);
    rig_join_with(W2, "w2", &sub, 1, NULL, 0);
    rig_active(W2, 1, 1, 1); /* it served it all the time, and says so late */
    cr_assert_eq(member_sub(membership_worker(&R.b->members, "w2"), "policy")->serving.version, 1);
    cr_assert_str_eq(rig_copy_state(3, "w1"), "active");
    rig_active(W2, 1, 1, 77);
    rig_error(W2, "digest_mismatch");
}

Test(committed, sources_of_what_never_was)
{
    publish_to(1, (rig_publish_t){0});
    rig_need_sources(W1, 9, (msg_need_sources_t){0});
    rig_error(W1, "not_found");
    uint64_t absent = 12345;
    rig_need_sources(W1, 1, (msg_need_sources_t){.lost = &absent, .lost_count = 1});
    cr_assert_eq(rig_last(W1, MSG_SOURCES)->sources.source_count, 1);
    cr_assert_not_null(
        strstr(events_at(&R.b->events, R.b->events.last_seq)->message, "a member that is gone"));
}

Test(committed, more_holders_than_a_plan_looks_at)
{
    rig_open(T, "policy", "trainer", 0, false);
    for (uint64_t i = 0; i < 70; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%02u", (unsigned)i);
        rig_worker(15 + i, name);
    }
    rig_publish(T, (rig_publish_t){.digest = 1});
    for (uint64_t i = 0; i < 70; i++) rig_staged(15 + i, 1, 1);
    rig_worker(W1, "late");
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.source_count, PLAN_SOURCES);
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.sources[2].kind, SOURCE_PUBLISHER);
}

/* While another version waits to be activated, too. */
Test(committed, one_that_refused_is_not_asked_again_and_again)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_staged(W2, 1, 1);
    rig_active(W1, 1, 1, 1);
    rig_nack(W2, 1, 1, "activate", "internal");
    cr_assert_str_eq(rig_copy_state(1, "w2"), "stale");
    rig_publish(T, (rig_publish_t){.digest = 2, .activation = HEDDLE_ACTIVATION_MANUAL});
    rig_drop_letters();
    for (int i = 0; i < 20; i++) {
        rig_pass(750);
        cr_assert_not(rig_has(W2, MSG_COMMIT), "heartbeat %d", i);
        rig_drop_letters();
    }
}
