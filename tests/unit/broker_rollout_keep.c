/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the decided versions stay, where, and for how long. */
#include "broker_rig.h"

TestSuite(keep, .init = rig_start, .fini = rig_stop);

/* ---- how many, and for how long ---- */

Test(keep, keep_retires_what_is_more)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    cr_assert_str_eq(rig_state(1), "kept");
    cr_assert_eq(rig_count(MSG_RETIRE), 0);
    rig_publish(T, (rig_publish_t){.digest = 3});
    roll_out(1, 3, 3, 3);
    cr_assert_str_eq(rig_state(1), "retired");
    cr_assert_eq(rig_last(W1, MSG_RETIRE)->retire.version, 1);
    cr_assert_eq(rig_event_count(EVENT_VERSION_RETIRED), 1);
    cr_assert_str_eq(rig_copy_state(2, "w1"), "kept");
    rig_staged(W1, 1, 1);
    cr_assert_eq(rig_count(MSG_RETIRE), 2, "said again");
}

Test(keep, what_a_slow_worker_fetches_stays_beside_the_previous)
{
    w2_is_slower_from_2_on();
    w1_goes_on_to(4);
    cr_assert_str_eq(rig_state(2), "kept", "w2 would come to none at all");
    cr_assert_str_eq(rig_state(3), "kept", "there is a slot for it");
    w1_goes_on_to(5);
    cr_assert_str_eq(rig_state(2), "kept");
    cr_assert_str_eq(rig_state(3), "retired");
    cr_assert_str_eq(rig_state(4), "kept");
    rig_staged(W2, 2, 2);
    rig_active(W2, 2, 2, 2);
    cr_assert_str_eq(rig_state(1), "retired", "nobody serves it any more");
    w1_goes_on_to(6);
    w1_goes_on_to(7);
    cr_assert_str_eq(rig_state(5), "kept", "where it went on");
    cr_assert_str_eq(rig_state(6), "kept");
}

Test(keep, the_last_holder_makes_room_for_what_arrives)
{
    w2_is_slower_from_2_on();
    w1_goes_on_to(4);
    rig_drop_letters();
    as_ready(5);
    cr_assert_str_eq(rig_state(3), "retired", "w1 has three slots, and nobody fetches it");
    cr_assert_eq(rig_last(W1, MSG_RETIRE)->retire.version, 3);
    cr_assert_str_eq(rig_state(2), "kept");
}

static void both_have(uint64_t peer_a, uint64_t peer_b, uint64_t v)
{
    as_ready(v);
    rig_staged(peer_a, v, v);
    rig_staged(peer_b, v, v);
    rig_active(peer_a, v, v, v);
    rig_active(peer_b, v, v, v);
}

/* Two holders: one keeps what w3 fetches, the other the previous too, and nothing is retired that is wanted. */
Test(keep, holders_share_what_is_kept)
{
    publish_to(3, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    roll_out(3, 1, 1, 1);
    for (uint64_t v = 2; v <= 4; v++) both_have(W1, W2, v);
    for (uint64_t v = 5; v <= 8; v++) {
        as_ready(v);
        cr_assert_str_eq(rig_state(2), "kept", "w3 fetches it");
        cr_assert_str_eq(rig_state(v - 2), "kept", "to go back to");
        const track_t *extra = track_find(&R.b->rollout, "policy", 2);
        const track_t *previous = track_find(&R.b->rollout, "policy", v - 2);
        cr_assert(track_holder_count(extra) == 1 && track_holder_count(previous) >= 1);
        for (uint64_t peer = W1; peer <= W2; peer++) {
            rig_staged(peer, v, v);
            rig_active(peer, v, v, v);
        }
        cr_assert_str_eq(rig_state(v - 1), "kept");
    }
}

Test(keep, what_it_says_that_it_fetches_stays)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 3, 100);
    w1_goes_on_to(4);
    w1_goes_on_to(5);
    cr_assert_str_eq(rig_state(2), "retired");
    cr_assert_str_eq(rig_state(3), "kept");
    rig_pass(3000);
    w1_goes_on_to(6);
    cr_assert_str_eq(rig_state(3), "kept");
    cr_assert_str_eq(rig_state(4), "retired");
    cr_assert_str_eq(rig_state(5), "kept");
}

Test(keep, without_a_byte_more_it_stays_for_half_a_minute)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 2, 100);
    w1_goes_on_to(4);
    rig_pass(20000);
    says_it_fetches(W2, 2, 200);
    rig_pass(20000);
    cr_assert_str_eq(rig_state(2), "kept");
    rig_pass(11000);
    cr_assert_str_eq(rig_state(2), "retired", "though it says that it fetches it");
    cr_assert_str_eq(rig_state(3), "kept");
}

Test(keep, what_has_arrived_needs_no_more_bytes)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 2, 5000); /* all of it */
    w1_goes_on_to(4);
    for (int i = 0; i < 5; i++) {
        rig_pass(10000);
        says_it_fetches(W2, 2, 5000);
        cr_assert_str_eq(rig_state(2), "kept", "its engine loads it");
    }
    rig_pass(11000);
    cr_assert_str_eq(rig_state(2), "retired", "but no longer than its deadline");
}

/* The tracks lie side by side, by adapter. */
Test(keep, another_adapter_is_nothing_to_it)
{
    enum { OTHER = 3 };
    rig_open(OTHER, "zeta", "zoe", 0, false);
    rig_publish(OTHER, (rig_publish_t){.digest = 9, .adapter = "zeta"});
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 2, 100);
    w1_goes_on_to(4);
    as_ready(5);
    cr_assert_str_eq(rig_state(2), "kept");
    cr_assert_str_eq(rig_state(3), "retired");
    cr_assert(registry_is_live(registry_version(registry_adapter(&R.b->registry, "zeta"), 1)));
}

Test(keep, with_bytes_it_stays_as_long_as_its_deadline)
{
    w2_is_slower_from_2_on();
    w1_goes_on_to(4);
    for (uint64_t done = 100; done <= 500; done += 100) {
        says_it_fetches(W2, 2, done);
        rig_pass(11000);
        cr_assert_str_eq(rig_state(2), "kept");
    }
    says_it_fetches(W2, 2, 600);
    rig_pass(6000);
    cr_assert_str_eq(rig_state(2), "retired");
}

Test(keep, without_a_word_it_stays_for_half_a_lease)
{
    w2_is_slower_from_2_on();
    rig_pass(1500);
    w1_goes_on_to(4);
    cr_assert_str_eq(rig_state(2), "kept");
    rig_pass(1000);
    cr_assert_str_eq(rig_state(2), "retired");
}

static void start_with_keep(uint64_t keep)
{
    rig_stop();
    R = (struct rig){.now = {.us = 1000000000, .wall_ms = 1780000000000}, .keep = keep};
    rig_boot();
}

/* With --keep 0 a worker has two slots: one for what it serves, one for what arrives. */
Test(keep, without_a_slot_for_it_nothing_stays)
{
    start_with_keep(0);
    w2_is_slower_from_2_on();
    cr_assert_str_eq(rig_state(2), "kept", "nothing arrives");
    as_ready(4);
    cr_assert_str_eq(rig_state(2), "retired");
    cr_assert_str_eq(rig_state(3), "active");
}

Test(keep, keep_0_waits_until_nobody_serves_it)
{
    start_with_keep(0);
    one_of_two_switches();
    cr_assert_str_eq(rig_state(1), "kept", "w2 has nothing else yet");
    cr_assert_eq(rig_last(W1, MSG_RETIRE)->retire.version, 1, "and takes no slot of w1");
    cr_assert(!rig_has(W2, MSG_RETIRE));
    rig_active(W2, 2, 2, 2);
    cr_assert_str_eq(rig_state(1), "retired");
    cr_assert_eq(rig_last(W2, MSG_RETIRE)->retire.version, 1);
    cr_assert_eq(rig_count(MSG_RETIRE), 2);
}

/* ---- who has no room ---- */

/* A worker asks again: of those that are left there is one. */
static void fetches_from(uint64_t peer, uint64_t v, uint64_t source, uint64_t *lost, uint32_t lost_count)
{
    rig_need_sources(peer, v, (msg_need_sources_t){.lost = lost, .lost_count = lost_count});
    cr_assert_eq(rig_last(peer, MSG_SOURCES)->sources.sources[0].token, R.tokens[source]);
}

static bool has_copy(const char *worker, uint64_t v) { return !strcmp(rig_copy_state(v, worker), "kept"); }

/* w1 and w2 have versions up to `last`, the latest active; w3 serves 1, and was told of all of them. */
static void two_have_up_to(uint64_t last)
{
    publish_to(3, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    roll_out(3, 1, 1, 1);
    for (uint64_t v = 2; v <= last; v++) both_have(W1, W2, v);
}

Test(keep, who_serves_the_fetch_keeps_what_is_fetched)
{
    uint64_t other[] = {W2, W1};
    for (uint64_t first = W1; first <= W2; first++) {
        rig_stop();
        rig_start();
        two_have_up_to(4);
        uint64_t lost[] = {R.tokens[T], R.tokens[other[first - W1]]};
        fetches_from(W3, 2, first, lost, 2);
        as_ready(5);
        cr_assert(has_copy("w1", 2) == (first == W1) && has_copy("w2", 2) == (first == W2));
        cr_assert(has_copy("w1", 3) == (first == W2) && has_copy("w2", 3) == (first == W1));
    }
}

Test(keep, of_what_nobody_fetches_the_oldest_goes)
{
    start_with_keep(2);
    two_have_up_to(5);
    as_ready(6);
    cr_assert(has_copy("w1", 2) != has_copy("w2", 2), "one is enough");
    const char *has = has_copy("w1", 2) ? "w1" : "w2", *other = has_copy("w1", 2) ? "w2" : "w1";
    cr_assert(!has_copy(has, 3) && has_copy(has, 4));
    cr_assert(has_copy(other, 3) && has_copy(other, 4));
}

Test(keep, who_switches_puts_away_what_it_served_till_then)
{
    two_have_up_to(3);
    as_ready(4);
    rig_staged(W1, 4, 4);
    rig_staged(W2, 4, 4);
    rig_active(W1, 4, 4, 4);
    rig_drop_letters();
    as_ready(5);
    cr_assert(!rig_has(W2, MSG_RETIRE), "it serves 3 still, and has 2, which w3 fetches");
    cr_assert(has_copy("w2", 2) && !has_copy("w1", 2));
    rig_active(W2, 4, 4, 4);
    cr_assert(has_copy("w2", 2));
    cr_assert_eq(rig_last(W2, MSG_RETIRE)->retire.version, 3);
}

/* Nobody waits longer for him than the version's deadline is. */
Test(keep, who_never_switches_has_no_room_for_that)
{
    publish_to(3, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    roll_out(3, 1, 1, 1);
    for (uint64_t v = 2; v <= 4; v++) {
        rig_publish_t o = {.digest = v, .activation = HEDDLE_ACTIVATION_AS_READY};
        o.deadline_ms = v == 4 ? 10000 : 60000;
        rig_publish(T, o);
        rig_staged(W1, v, v);
        rig_staged(W2, v, v);
        rig_active(W1, v, v, v);
        if (v < 4) rig_active(W2, v, v, v);
    }
    says_it_fetches(W3, 2, 100);
    rig_drop_letters();
    as_ready(5);
    rig_pass(9500);
    cr_assert(!rig_has(W2, MSG_RETIRE), "what it serves now goes first");
    says_it_fetches(W3, 2, 200);
    rig_pass(1000);
    says_it_fetches(W3, 2, 300);
    cr_assert(rig_has(W2, MSG_RETIRE));
}

Test(keep, what_somebody_loads_is_not_what_goes_for_room)
{
    publish_to(3, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    roll_out(3, 1, 1, 1);
    w1_goes_on_to(2);
    says_it_fetches(W3, 2, 100);
    w1_goes_on_to(3);
    says_it_fetches(W2, 3, 5000); /* all of it */
    w1_goes_on_to(4);
    as_ready(5);
    cr_assert_str_eq(rig_state(2), "retired", "though w3 fetches it");
    cr_assert_str_eq(rig_state(3), "kept");
}

/* Its publisher has left, and the others have put it away: who loads it has it still. */
Test(keep, what_somebody_loads_is_not_lost)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 2, 5000);
    for (uint64_t v = 4; v <= 6; v++) w1_goes_on_to(v);
    cr_assert_eq(track_holder_count(track_find(&R.b->rollout, "policy", 2)), 0);
    rig_leave(T);
    for (int i = 0; i < 8; i++) {
        says_it_fetches(W2, 2, 5000);
        rig_pass(1000);
    }
    cr_assert_eq(rig_event_count(EVENT_VERSION_LOST), 0);
    cr_assert_str_eq(rig_state(2), "kept");
    rig_staged(W2, 2, 2);
    rig_active(W2, 2, 2, 2);
    cr_assert_str_eq(rig_copy_state(2, "w2"), "stale", "it serves it, and is behind");
}

Test(keep, what_somebody_loads_may_go_where_others_have_it_too)
{
    rig_worker(W4, "w4");
    two_have_up_to(2);
    says_it_fetches(W3, 2, 100);
    both_have(W1, W2, 3);
    says_it_fetches(W4, 3, 5000); /* all of it */
    both_have(W1, W2, 4);
    as_ready(5);
    for (uint64_t v = 2; v <= 3; v++) cr_assert(has_copy("w1", v) != has_copy("w2", v));
}

Test(keep, of_what_is_fetched_the_latest_goes)
{
    publish_to(3, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    roll_out(3, 1, 1, 1);
    w1_goes_on_to(2);
    says_it_fetches(W2, 2, 100);
    w1_goes_on_to(3);
    says_it_fetches(W3, 3, 100);
    w1_goes_on_to(4);
    as_ready(5);
    cr_assert_str_eq(rig_state(2), "kept", "who began first comes to its end");
    cr_assert_str_eq(rig_state(3), "retired");
}

/* ---- who switches ---- */

Test(keep, what_it_switches_to_stays_with_it_and_goes_elsewhere)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    roll_out(2, 1, 1, 1);
    w1_goes_on_to(2);
    rig_staged(W2, 2, 2);
    cr_assert_eq(rig_last(W2, MSG_COMMIT)->commit.version, 2);
    rig_drop_letters();
    w1_goes_on_to(3);
    w1_goes_on_to(4);
    cr_assert_str_eq(rig_state(2), "kept");
    cr_assert_eq(rig_last(W1, MSG_RETIRE)->retire.version, 2);
    cr_assert(!rig_has(W2, MSG_RETIRE));
    rig_active(W2, 2, 2, 2);
    cr_assert_str_eq(rig_copy_state(2, "w2"), "stale", "it serves it, and is behind");
}

/* ---- a step back ---- */

static void activate(uint64_t v)
{
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = v, .by = "ann"});
    cr_assert_eq(rig_adapter()->active, v);
}

/* w1 is at 4 by way of 2; nothing is kept for what w2 was told of 3. */
static void go_back_and_on(void)
{
    activate(2);
    rig_active(W1, 2, 4, 2);
    cr_assert_str_eq(rig_state(3), "kept");
    as_ready(4);
    rig_staged(W1, 4, 4);
    activate(4);
    rig_active(W1, 4, 5, 4);
    cr_assert_str_eq(rig_state(3), "retired");
    cr_assert_str_eq(rig_state(2), "kept");
}

Test(keep, after_a_step_back_no_fetch_of_what_lies_ahead_is_waited_for)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 3, 100);
    go_back_and_on();
}

Test(keep, after_a_step_back_nobody_switches_to_what_lies_ahead)
{
    w2_is_slower_from_2_on();
    rig_staged(W2, 3, 3);
    cr_assert_eq(rig_last(W2, MSG_COMMIT)->commit.version, 3);
    go_back_and_on();
}

/* w2 was to switch to 3, which was taken back; w1 serves it still, and has more of its own than is kept. */
Test(keep, after_a_step_back_what_lies_ahead_goes_from_who_did_not_switch_to_it)
{
    w2_is_slower_from_2_on();
    rig_staged(W2, 3, 3);
    cr_assert_eq(rig_last(W2, MSG_COMMIT)->commit.version, 3);
    activate(2);
    rig_nack(W1, 2, 4, "activate", "version_failed");
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 4, .activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 4, 4);
    activate(4);
    cr_assert_str_eq(rig_copy_state(3, "w1"), "stale");
    cr_assert_eq(rig_last(W2, MSG_RETIRE)->retire.version, 3);
    cr_assert_str_eq(rig_copy_state(3, "w2"), "");
}

/* 2 is kept for w3, w2 serves 3 and was to switch to 5, which was taken back: 4 has to find room instead. */
Test(keep, after_a_step_back_who_was_to_switch_ahead_makes_room)
{
    two_have_up_to(3);
    w1_goes_on_to(4);
    as_ready(5);
    rig_staged(W1, 5, 5);
    rig_staged(W2, 5, 5);
    rig_active(W1, 5, 5, 5);
    says_it_fetches(W3, 2, 100);
    rig_drop_letters();
    activate(4);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 4);
    cr_assert_eq(rig_last(W2, MSG_RETIRE)->retire.version, 5);
    cr_assert(has_copy("w2", 2));
}

/* It was told of 4 before anything was decided of it: that lies ahead, and is on its way. */
Test(keep, a_step_back_does_not_forget_who_fetches_what_is_not_decided)
{
    w2_is_slower_from_2_on();
    as_ready(4);
    says_it_fetches(W2, 4, 100);
    activate(2);
    rig_staged(W1, 4, 4);
    rig_drop_letters();
    activate(4);
    cr_assert_eq(rig_last(W2, MSG_COMMIT)->commit.version, 4);
}

/* ---- a new session, a new broker ---- */

static void rejoin(uint64_t peer, const char *name, uint64_t v, msg_held_t *held, uint32_t held_count)
{
    msg_subscription_t sub = {.adapter = "policy", .decision = v, .version = v};
    rig_hello(peer, ROLE_WORKER);
    rig_join_with(peer, name, &sub, 1, held, held_count);
}

static msg_held_t held(uint64_t v, held_state_t state)
{
    return (msg_held_t){.adapter = "policy", .version = v, .state = state, .digest = rig_digest(v)};
}

Test(keep, back_and_forth_and_back_is_told_each_time)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 3, 100);
    rig_drop_letters();
    activate(2);
    cr_assert_eq(rig_last(W2, MSG_COMMIT)->commit.version, 2, "though it has nothing of it");
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 2);
    activate(3);
    says_it_fetches(W2, 3, 200);
    rig_staged(W2, 3, 3);
    rig_active(W2, 3, 5, 3);
    rig_drop_letters();
    activate(2);
    cr_assert_eq(rig_last(W2, MSG_COMMIT)->commit.version, 2);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.version, 2, "it may have forgotten it");
}

Test(keep, after_a_step_back_a_new_session_is_not_sent_ahead)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 3, 100);
    activate(2);
    msg_held_t served = held(1, HELD_ACTIVE);
    rejoin(W2, "w2", 1, &served, 1);
    cr_assert_eq(rig_last(W2, MSG_WELCOME)->welcome.adapters[0].version, 2);
    cr_assert_eq(rig_last(W2, MSG_WELCOME)->welcome.adapters[0].decision, 4);
}

/* Nor once others have gone on: 3 lies behind them, and was taken back all the same. */
Test(keep, what_was_taken_back_is_named_to_no_new_session)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 3, 5000);
    activate(2);
    rig_nack(W2, 2, 0, "fetch", "no_slot");
    rig_publish(T, (rig_publish_t){.digest = 4});
    rig_staged(W1, 4, 4);
    activate(4);
    msg_held_t w2[] = {held(1, HELD_ACTIVE), held(3, HELD_SEALED)};
    for (int i = 0; i < 3; i++) {
        rejoin(W2, "w2", 1, w2, 2);
        cr_assert_eq(rig_last(W2, MSG_WELCOME)->welcome.adapters[0].version, 4);
    }
}

Test(keep, a_new_session_fetches_on_and_has_no_more_time_for_it)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 2, 100);
    w1_goes_on_to(4);
    rig_pass(20000);
    msg_held_t served = held(1, HELD_ACTIVE);
    rejoin(W2, "w2", 1, &served, 1);
    cr_assert_str_eq(rig_state(2), "kept", "before its first word too");
    says_it_fetches(W2, 2, 100);
    cr_assert_str_eq(rig_state(2), "kept");
    rig_pass(9000);
    cr_assert_str_eq(rig_state(2), "kept");
    rig_pass(2000);
    cr_assert_str_eq(rig_state(2), "retired", "not a byte more for half a minute");
}

/* It was announced 2 once more at the step back. */
Test(keep, the_time_of_a_fetch_is_counted_over_a_new_session)
{
    w2_is_slower_from_2_on();
    activate(2);
    says_it_fetches(W2, 2, 100);
    rig_pass(3000);
    activate(3);
    msg_held_t served = held(1, HELD_ACTIVE);
    rejoin(W2, "w2", 1, &served, 1);
    rig_staged(W2, 2, 2);
    cr_assert_eq(rig_event(EVENT_STAGE_DONE)->duration_ms, 3000);
}

/* WELCOME names it, and so it is not retired before the switch to it either. */
Test(keep, a_new_session_loads_on_and_switches)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 2, 5000); /* all of it */
    w1_goes_on_to(4);
    rig_pass(20000);
    msg_held_t w2[] = {held(1, HELD_ACTIVE), held(2, HELD_SEALED)};
    rig_drop_letters();
    rejoin(W2, "w2", 1, w2, 2);
    cr_assert_eq(rig_last(W2, MSG_WELCOME)->welcome.adapters[0].version, 2);
    cr_assert_str_eq(rig_state(2), "kept");
    rig_staged(W2, 2, 2);
    rig_pass(20000);
    cr_assert_str_eq(rig_state(2), "kept");
    cr_assert(!rig_has(W2, MSG_RETIRE));
    rig_active(W2, 2, 2, 2);
    cr_assert_str_eq(rig_copy_state(2, "w2"), "stale", "it serves it, and is behind");
}

Test(keep, a_new_session_loads_on_and_has_no_more_time_for_it)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 2, 5000);
    w1_goes_on_to(4);
    rig_pass(40000);
    msg_held_t w2[] = {held(1, HELD_ACTIVE), held(2, HELD_SEALED)};
    rejoin(W2, "w2", 1, w2, 2);
    says_it_fetches(W2, 2, 5000);
    rig_pass(19500);
    says_it_fetches(W2, 2, 5000);
    cr_assert_str_eq(rig_state(2), "kept");
    rig_pass(1000);
    cr_assert_str_eq(rig_state(2), "retired", "its deadline counts from when it was told of it first");
}

/* The broker knows nothing of it but what JOIN says. */
Test(keep, what_was_loaded_when_the_broker_was_started_anew_is_loaded_to_the_end)
{
    w2_is_slower_from_2_on();
    says_it_fetches(W2, 2, 5000);
    w1_goes_on_to(4);
    rig_restart();
    msg_held_t w1[] = {held(4, HELD_ACTIVE), held(3, HELD_KEPT)};
    msg_held_t w2[] = {held(1, HELD_ACTIVE), held(2, HELD_SEALED)};
    rejoin(W1, "w1", 4, w1, 2);
    rejoin(W2, "w2", 1, w2, 2);
    rig_pass(LEASE_MS + 1000);
    cr_assert(R.b->rollout.is_settled);
    cr_assert(registry_is_live(rig_version(2)) && !rig_has(W2, MSG_RETIRE));
}

/* w1 serves 2 still, w2 has it for w3, of which a broker that was started anew does not know. */
Test(keep, while_half_of_them_are_not_back_nothing_is_put_away)
{
    publish_to(3, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    roll_out(3, 1, 1, 1);
    both_have(W1, W2, 2);
    for (uint64_t v = 3; v <= 4; v++) {
        as_ready(v);
        rig_staged(W2, v, v);
        rig_active(W2, v, v, v);
    }
    cr_assert(has_copy("w2", 2));
    rig_restart();
    msg_held_t w1 = held(2, HELD_ACTIVE);
    msg_held_t w2[] = {held(4, HELD_ACTIVE), held(3, HELD_KEPT), held(2, HELD_KEPT)};
    rejoin(W2, "w2", 4, w2, 3);
    rejoin(W1, "w1", 2, &w1, 1);
    rig_pass(1000);
    cr_assert(has_copy("w2", 2) && !rig_has(W2, MSG_RETIRE));
    rig_pass(LEASE_MS);
    cr_assert(!has_copy("w2", 2));
    cr_assert_eq(rig_last(W2, MSG_RETIRE)->retire.version, 2);
}

/* ---- readers take slots too ---- */

/* Its heartbeat: a version waits for a slot there, and no reader holds these. */
static void wants_a_slot(uint64_t peer, uint64_t *spare, uint32_t count)
{
    msg_progress_t p = {.adapter = "policy", .spare = spare, .spare_count = count};
    msg_t hb = {.type = MSG_HEARTBEAT};
    hb.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(peer, &hb);
}

static void everybody_has_up_to(int count, uint64_t last)
{
    publish_to(count, (rig_publish_t){0});
    roll_out(count, 1, 1, 1);
    for (uint64_t v = 2; v <= last; v++) {
        rig_publish(T, (rig_publish_t){.digest = (uint8_t)v});
        roll_out(count, v, v, (uint8_t)v);
    }
    rig_drop_letters();
}

Test(keep, who_lacks_a_slot_puts_away_the_oldest_that_others_have)
{
    start_with_keep(3);
    everybody_has_up_to(2, 4);
    wants_a_slot(W1, (uint64_t[]){3, 2, 1}, 3);
    cr_assert_eq(rig_last(W1, MSG_RETIRE)->retire.version, 1);
    cr_assert_eq(rig_count(MSG_RETIRE), 1, "one slot is enough, and w2 keeps it");
    cr_assert(has_copy("w2", 1) && !has_copy("w1", 1));
    cr_assert_str_eq(rig_state(1), "kept");
    wants_a_slot(W1, (uint64_t[]){3, 2, 1}, 3);
    cr_assert_eq(rig_count(MSG_RETIRE), 1, "said before the answer came");
    wants_a_slot(W1, (uint64_t[]){3, 2}, 2);
    cr_assert_eq(rig_last(W1, MSG_RETIRE)->retire.version, 2, "that was not enough");
}

Test(keep, what_a_reader_holds_is_not_put_away)
{
    start_with_keep(3);
    everybody_has_up_to(2, 4);
    wants_a_slot(W1, (uint64_t[]){3}, 1);
    cr_assert_eq(rig_last(W1, MSG_RETIRE)->retire.version, 3);
    cr_assert(has_copy("w1", 1) && has_copy("w1", 2));
}

Test(keep, the_last_holder_that_lacks_a_slot_retires)
{
    start_with_keep(3);
    everybody_has_up_to(1, 4);
    wants_a_slot(W1, (uint64_t[]){2, 3}, 2);
    cr_assert_str_eq(rig_state(2), "retired");
    cr_assert_str_eq(rig_state(1), "kept", "a reader holds it");
    cr_assert_str_eq(rig_state(3), "kept");
    cr_assert_eq(rig_count(MSG_RETIRE), 1);
    wants_a_slot(W1, (uint64_t[]){2, 3}, 2);
    cr_assert_eq(rig_count(MSG_RETIRE), 1);
}

/* The worker has given up before the broker has anything put away. */
Test(keep, what_lacked_a_slot_while_the_broker_settled_is_announced_again)
{
    start_with_keep(3);
    everybody_has_up_to(1, 4);
    rig_restart();
    msg_held_t w1[] = {held(4, HELD_ACTIVE), held(3, HELD_KEPT), held(2, HELD_KEPT), held(1, HELD_KEPT)};
    rejoin(W1, "w1", 4, w1, 4);
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 5});
    wants_a_slot(W1, (uint64_t[]){2, 3}, 2);
    rig_pass(1000);
    rig_nack(W1, 5, 0, "announce", "no_slot");
    rig_drop_letters();
    rig_pass(LEASE_MS + 1000);
    cr_assert(R.b->rollout.is_settled);
    cr_assert_str_eq(rig_state(5), "staging");
    cr_assert_eq(rig_count(MSG_ANNOUNCE), 1);
    wants_a_slot(W1, (uint64_t[]){2, 3}, 2);
    cr_assert_str_eq(rig_state(2), "retired");
    rig_nack(W1, 5, 0, "announce", "no_slot");
    cr_assert_str_eq(rig_state(5), "failed", "the broker has settled: it fails as ever");
}

/* Versions that are active there, on their way there, or that it never had. */
Test(keep, what_is_not_kept_there_is_not_put_away)
{
    start_with_keep(3);
    everybody_has_up_to(2, 3);
    wants_a_slot(W1, (uint64_t[]){3}, 1);
    wants_a_slot(W1, (uint64_t[]){77, 1}, 2);
    rig_publish(T, (rig_publish_t){.digest = 4});
    wants_a_slot(W1, (uint64_t[]){4}, 1);
    cr_assert_eq(rig_count(MSG_RETIRE), 0);
    cr_assert(has_copy("w1", 1) && has_copy("w1", 2));
}
