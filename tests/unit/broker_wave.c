/* SPDX-License-Identifier: Apache-2.0 */
/* Two thousand workers: what one message costs does not grow with them.  Walks over all copies of a version
 * are counted by the copies that they read (track_walk); as many messages come as there are workers, so that
 * one walk a message would read four million. */
#define PEERS 2200
#include "broker_rig.h"

enum { COUNT = 2000, FIRST = 100, LAST = FIRST + COUNT - 1 };
#define WALKS 40ull /* over all copies, that the messages of all workers may make together */

TestSuite(wave, .init = rig_start, .fini = rig_stop);

static uint64_t walked(void) { return R.b->rollout.walked; }

static void is_cheap(uint64_t before, const char *what)
{
    cr_assert_leq(walked() - before, WALKS * COUNT, "%s read %llu copies", what,
                  (unsigned long long)(walked() - before));
    rig_drop_letters();
}

/* Of `per_place` workers each on one host; 0: each on one of its own. */
static void join_all(uint64_t per_place)
{
    for (uint64_t peer = FIRST; peer <= LAST; peer++) {
        char name[16];
        snprintf(name, sizeof name, "w%05u", (unsigned)peer);
        R.places[peer] = per_place ? 1 + (peer - FIRST) / per_place : 0;
        rig_worker(peer, name);
    }
    rig_open(T, "policy", "trainer", 0, false);
    rig_drop_letters();
}

static void stage_all_from(uint64_t first, uint64_t v)
{
    for (uint64_t peer = first; peer <= LAST; peer++) rig_staged(peer, v, v);
    rig_drop_letters();
}

static void publish(uint64_t v, heddle_activation_t activation)
{
    rig_publish(T, (rig_publish_t){.digest = v, .activation = activation});
    rig_drop_letters();
}

Test(wave, a_message_reads_no_other_copies)
{
    join_all(0);
    publish(1, HEDDLE_ACTIVATION_ALL);
    uint64_t before = walked();
    stage_all_from(FIRST, 1);
    is_cheap(before, "STAGED");
    cr_assert_eq(rig_adapter()->active, 1);
    before = walked();
    for (uint64_t peer = FIRST; peer <= LAST; peer++) rig_active(peer, 1, 1, 1);
    is_cheap(before, "ACTIVE");
}

Test(wave, one_that_failed_is_not_looked_for_at_each_message)
{
    join_all(0);
    publish(1, HEDDLE_ACTIVATION_AS_READY);
    rig_staged(FIRST, 1, 1);
    cr_assert_eq(rig_adapter()->active, 1);
    rig_nack(FIRST + 1, 1, 0, "fetch", "unavailable");
    cr_assert_str_eq(rig_copy_state(1, "w00101"), "failed");
    uint64_t before = walked();
    stage_all_from(FIRST + 2, 1);
    is_cheap(before, "STAGED beside one that failed");
    before = walked();
    for (uint64_t peer = FIRST + 2; peer <= LAST; peer++) rig_active(peer, 1, 1, 1);
    is_cheap(before, "ACTIVE beside one that failed");
    for (int i = 0; i < 20 && strcmp(rig_copy_state(1, "w00101"), "announced") != 0; i++) {
        R.now.us += LEASE_MS * 100; /* no worker sends a heartbeat, and none lapses within a lease */
        R.now.wall_ms += LEASE_MS / 10;
        for (uint64_t peer = FIRST; peer <= LAST; peer++)
            if (i % 2 == 0) rig_beat(peer);
        rig_drop_letters();
    }
    cr_assert_str_eq(rig_copy_state(1, "w00101"), "announced", "its time has come");
}

Test(wave, one_whose_time_has_come_is_not_looked_for_at_each_message)
{
    join_all(0);
    publish(1, HEDDLE_ACTIVATION_AS_READY);
    stage_all_from(FIRST + 1, 1);
    for (uint64_t peer = FIRST + 1; peer <= LAST; peer++) rig_active(peer, 1, 1, 1);
    publish(2, HEDDLE_ACTIVATION_ALL); /* the first one fetches that, and could not take version 1 */
    rig_nack(FIRST, 1, 0, "fetch", "unavailable");
    R.now.us += LEASE_MS * 900;
    for (uint64_t peer = FIRST; peer <= LAST; peer++) rig_beat(peer);
    R.now.us += LEASE_MS * 900;
    uint64_t before = walked();
    stage_all_from(FIRST + 1, 2);
    is_cheap(before, "STAGED beside one that waits for its slot");
}

Test(wave, one_that_still_fetches_is_not_looked_for_at_each_message)
{
    join_all(0);
    publish(1, HEDDLE_ACTIVATION_ALL);
    publish(2, HEDDLE_ACTIVATION_ALL); /* waits while a worker fetches version 1 */
    uint64_t before = walked();
    stage_all_from(FIRST, 1);
    is_cheap(before, "STAGED before a version that waits");
    cr_assert_eq(rig_adapter()->active, 1);
}

Test(wave, those_that_wait_for_their_host_are_not_looked_at_at_each_message)
{
    join_all(8);
    publish(1, HEDDLE_ACTIVATION_ALL);
    cr_assert_gt(track_find(&R.b->rollout, "policy", 1)->plan.waiting_count, 0);
    uint64_t before = walked();
    for (uint64_t peer = FIRST; peer <= LAST; peer += 8) rig_staged(peer, 1, 1);
    is_cheap(before, "STAGED before the others of its host");
}

Test(wave, workers_that_stand_still_are_not_looked_for_at_each_heartbeat)
{
    join_all(0);
    publish(1, HEDDLE_ACTIVATION_ALL);
    for (uint64_t peer = FIRST; peer <= LAST; peer++) says_it_fetches(peer, 1, 100);
    R.now.us += LEASE_MS * 500;
    R.now.wall_ms += LEASE_MS / 2;
    uint64_t before = walked();
    for (uint64_t peer = FIRST; peer <= LAST; peer++) says_it_fetches(peer, 1, 100);
    is_cheap(before, "a beat without a byte");
}

/* The last worker could not switch to version 1, nor to the next one, and its time for that has passed. */
Test(wave, one_that_never_switched_is_not_looked_for_at_each_message)
{
    join_all(0);
    for (uint64_t v = 1; v <= 3; v++) {
        rig_publish(T, (rig_publish_t){.digest = v, .deadline_ms = LEASE_MS});
        uint64_t before = walked();
        stage_all_from(FIRST, v);
        is_cheap(before, "STAGED beside one that never switched");
        cr_assert_eq(rig_adapter()->active, v);
        before = walked();
        for (uint64_t peer = FIRST; peer < LAST; peer++) rig_active(peer, v, v, v);
        is_cheap(before, "ACTIVE beside one that never switched");
        rig_nack(LAST, v, v, "activate", "rejected");
        for (int i = 0; i < 6; i++) {
            R.now.us += LEASE_MS * 250ull;
            R.now.wall_ms += LEASE_MS / 4;
            rig_beat(T);
            before = walked();
            for (uint64_t peer = FIRST; peer <= LAST; peer++) rig_beat(peer);
            is_cheap(before, "a heartbeat beside one that never switched");
        }
    }
}
