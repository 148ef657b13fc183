/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the decided versions stay, where, and for how long. */
#include "broker_rig.h"

TestSuite(keep, .init = rig_start, .fini = rig_stop);

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

/* As-ready: w1 alone stages version v, and is the first and the last to be active. */
static void w1_goes_on_to(uint64_t v)
{
    rig_publish(T, (rig_publish_t){.digest = (uint8_t)v, .activation = HEDDLE_ACTIVATION_AS_READY});
    rig_staged(W1, v, v);
    cr_assert_eq(rig_adapter()->active, v);
    rig_active(W1, v, v, v);
}

static void w2_is_slower_from_2_on(void)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    roll_out(2, 1, 1, 1);
    w1_goes_on_to(2);
    w1_goes_on_to(3);
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
    rig_publish(T, (rig_publish_t){.digest = 5, .activation = HEDDLE_ACTIVATION_AS_READY});
    cr_assert_str_eq(rig_state(3), "retired", "w1 has three slots, and nobody fetches it");
    cr_assert_eq(rig_last(W1, MSG_RETIRE)->retire.version, 3);
    cr_assert_str_eq(rig_state(2), "kept");
}

static void both_have(uint64_t peer_a, uint64_t peer_b, uint64_t v)
{
    rig_publish(T, (rig_publish_t){.digest = (uint8_t)v, .activation = HEDDLE_ACTIVATION_AS_READY});
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
        rig_publish(T, (rig_publish_t){.digest = (uint8_t)v, .activation = HEDDLE_ACTIVATION_AS_READY});
        cr_assert_str_eq(rig_state(2), "kept", "w3 fetches it");
        cr_assert_str_eq(rig_state(v - 2), "kept", "to go back to");
        const track_t *extra = rollout_track(&R.b->rollout, "policy", 2);
        const track_t *previous = rollout_track(&R.b->rollout, "policy", v - 2);
        cr_assert(track_holder_count(extra) == 1 && track_holder_count(previous) >= 1);
        for (uint64_t peer = W1; peer <= W2; peer++) {
            rig_staged(peer, v, v);
            rig_active(peer, v, v, v);
        }
        cr_assert_str_eq(rig_state(v - 1), "kept");
    }
}

static void says_it_fetches(uint64_t peer, uint64_t v, uint64_t done)
{
    msg_progress_t p = {.adapter = "policy", .fetching = v, .bytes_done = done, .data_bytes = 5000};
    msg_t hb = {.type = MSG_HEARTBEAT};
    hb.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(peer, &hb);
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
    rig_publish(T, (rig_publish_t){.digest = 5, .activation = HEDDLE_ACTIVATION_AS_READY});
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

/* With --keep 0 a worker has two slots: one for what it serves, one for what arrives. */
Test(keep, without_a_slot_for_it_nothing_stays)
{
    rig_stop();
    R = (struct rig){.now = {.us = 1000000000, .wall_ms = 1780000000000}, .keep = 0};
    rig_boot();
    w2_is_slower_from_2_on();
    cr_assert_str_eq(rig_state(2), "kept", "nothing arrives");
    rig_publish(T, (rig_publish_t){.digest = 4, .activation = HEDDLE_ACTIVATION_AS_READY});
    cr_assert_str_eq(rig_state(2), "retired");
    cr_assert_str_eq(rig_state(3), "active");
}

Test(keep, keep_0_waits_until_nobody_serves_it)
{
    rig_stop();
    R = (struct rig){.now = {.us = 1000000000, .wall_ms = 1780000000000}, .keep = 0};
    rig_boot();
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    rig_staged(W2, 2, 2);
    rig_active(W1, 2, 2, 2);
    cr_assert_str_eq(rig_state(1), "kept", "w2 has nothing else yet");
    cr_assert_eq(rig_last(W1, MSG_RETIRE)->retire.version, 1, "and takes no slot of w1");
    cr_assert(!rig_has(W2, MSG_RETIRE));
    rig_active(W2, 2, 2, 2);
    cr_assert_str_eq(rig_state(1), "retired");
    cr_assert_eq(rig_last(W2, MSG_RETIRE)->retire.version, 1);
    cr_assert_eq(rig_count(MSG_RETIRE), 2);
}
