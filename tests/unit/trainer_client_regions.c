/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher's node: which memory a version is written to, and how long it is served. */
#include "trainer_client_rig.h"

TestSuite(joined, .init = open_and_join, .fini = close_world);

Test(joined, two_regions_take_turns_and_stay_warm)
{
    item_t *it[5];
    tr_counters_t c;
    tr_event_t e;
    for (uint64_t v = 1; v <= 5; v++) {
        item_t *i = it[v - 1] = make(3000);
        publish_result_t r;
        int rc = take(i);
        if (rc == HEDDLE_ERR_AGAIN) {
            cr_assert_geq(v, 3);
            drive(&e);
            rc = take(i);
        }
        cr_assert_eq(rc, HEDDLE_OK);
        fill(i, (uint8_t)v);
        publish(i, "id");
        published_as(v, "");
        cr_assert_eq(result(&r), HEDDLE_OK);
        if (v > 1) cr_assert_eq(fetch(v - 1, 4096), TR_ARRIVED, "the one before is served on");
        if (v > 2) cr_assert_eq(fetch(v - 2, 4096), TR_REFUSED);
        if (v > 2) cr_assert_eq(i->region, it[v - 3]->region);
        if (v > 1) release(v - 1);
    }
    transfer_mem_ops.counters(w.t, &c);
    cr_assert_eq(c.maps, 2);
}

Test(joined, a_region_is_not_reused_while_its_bytes_are_on_their_way)
{
    tr_event_t e;
    item_t *a = serve(1, 1);
    serve(2, 2);
    release(1);
    ask(1, 4096);
    tr_event_t none[4];
    transfer_mem_ops.events(w.worker_t, w.now, none, 4); /* the ask leaves */
    transfer_mem_ops.events(w.t, w.now, none, 4);        /* the bytes leave: not there yet */
    item_t *c = make(3000);
    cr_assert_eq(take(c), HEDDLE_ERR_AGAIN);
    uint64_t changes = w.changes;
    cr_assert_eq(drive(&e), TR_ARRIVED);
    cr_assert_gt(w.changes, changes, "who waits is woken");
    cr_assert_eq(take(c), HEDDLE_OK);
    cr_assert_eq(c->region, a->region);
    item_t third = {.pack = c->pack}, more = {.pack = c->pack};
    cr_assert_eq(take(&third), HEDDLE_OK);
    cr_assert_null(third.region, "the other is needed: memory for one more");
    cr_assert_eq(take(&more), HEDDLE_ERR_AGAIN, "the other is served, and needed");
    release(2);
    cr_assert_eq(take(&more), HEDDLE_ERR_AGAIN);
    drive(&e);
    cr_assert_eq(take(&more), HEDDLE_OK);
    cr_assert_eq(take(&more), HEDDLE_ERR_NO_SLOT);
}

Test(joined, a_released_region_goes_before_one_that_is_needed)
{
    tr_event_t e;
    serve(1, 1);
    item_t *b = serve(2, 2);
    release(2);
    release(8);
    cr_assert_eq(count_events(HEDDLE_EVENT_RELEASED), 1);
    cr_assert_eq(event(HEDDLE_EVENT_RELEASED)->version, 2);
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED, "its memory stays, so it is served on");
    item_t *c = make(3000);
    cr_assert_eq(take(c), HEDDLE_ERR_AGAIN);
    drive(&e);
    cr_assert_eq(take(c), HEDDLE_OK);
    cr_assert_eq(c->region, b->region);
    cr_assert_eq(fetch(1, 4096), TR_ARRIVED);
}

/* The first is on its way to workers, the last comes next: what lies between was superseded by it. */
Test(joined, a_third_region_where_both_are_needed_and_no_fourth)
{
    tr_event_t e;
    tr_counters_t c;
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    item_t *it = make(3000);
    for (uint64_t v = 4; v <= 9; v++) {
        cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
        release(v - 2);
        cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
        drive(&e);
        cr_assert_eq(fetch(1, 4096), TR_ARRIVED, "version 1 is on its way still");
        cr_assert_eq(fetch(v - 2, 4096), TR_REFUSED);
        cr_assert_eq(fetch(v - 1, 4096), TR_ARRIVED);
        serve(v, (uint8_t)v);
    }
    transfer_mem_ops.counters(w.t, &c);
    cr_assert_eq(c.maps, 3);
}

/* Version 1 was decided a moment ago and 2 announced: what is given up is for the broker to say. */
Test(joined, no_version_goes_that_may_be_on_its_way)
{
    tr_event_t e;
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    item_t *it = make(3000);
    cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
    for (uint64_t v = 1; v <= 3; v++) cr_assert_eq(fetch(v, 4096), TR_ARRIVED, "version %d", (int)v);
    uint64_t changes = w.changes;
    rollout(1, "active", 0, 2, 2, 2);
    cr_assert_gt(w.changes, changes, "who waits is woken");
    cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
    drive(&e);
    cr_assert_eq(take(it), HEDDLE_OK);
    cr_assert_eq(fetch(1, 4096), TR_REFUSED);
    for (uint64_t v = 2; v <= 3; v++) cr_assert_eq(fetch(v, 4096), TR_ARRIVED, "version %d", (int)v);
}

Test(joined, a_word_that_does_not_come_is_waited_for_no_longer_than_a_second)
{
    tr_event_t e;
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    item_t *it = make(3000);
    cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
    uint64_t end = w.now + TAKE_WAIT_US, changes = w.changes;
    cr_assert_leq(tick(), end);
    w.now = end - 1;
    tick();
    cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
    cr_assert_eq(w.changes, changes);
    w.now = end;
    cr_assert_gt(tick(), end);
    cr_assert_gt(w.changes, changes, "who waits is woken");
    cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
    drive(&e);
    cr_assert_eq(take(it), HEDDLE_OK);
    cr_assert_eq(fetch(2, 4096), TR_REFUSED, "what lies between went");
}

/* It ended with its deadline, or Ctrl-C: what it waited for says nothing to one that comes much later. */
static void give_up_after(uint64_t waited_us)
{
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    item_t *it = make(3000);
    cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
    w.now += waited_us;
    tick();
    command((command_t){.kind = COMMAND_GIVE_UP});
    w.now += TAKE_WAIT_US;
    tick();
    cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
    for (uint64_t v = 1; v <= 3; v++) cr_assert_eq(fetch(v, 4096), TR_ARRIVED, "version %d", (int)v);
}
Test(joined, a_take_that_was_given_up_leaves_no_word_behind) { give_up_after(0); }
Test(joined, nor_one_that_is_late_already) { give_up_after(TAKE_WAIT_US); }

Test(joined, a_region_that_comes_free_needs_no_word)
{
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    item_t *it = make(3000);
    release(2);
    cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
    uint64_t changes = w.changes;
    w.now += 2 * TAKE_WAIT_US;
    tick();
    cr_assert_eq(w.changes, changes);
}

Test(joined, nor_is_that_of_a_broker_that_is_away)
{
    tr_event_t e;
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    line(false);
    item_t *it = make(3000);
    cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
    drive(&e);
    cr_assert_eq(take(it), HEDDLE_OK);
}

Test(joined, a_decided_version_goes_before_one_that_is_on_its_way)
{
    tr_event_t e;
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    msg_t m = {.type = MSG_ROLLOUT};
    m.rollout = (msg_rollout_t){.token = w.token,
                                .adapter = "policy",
                                .version = 1,
                                .state = "active",
                                .decision = 1,
                                .eligible_count = 2,
                                .staged_count = 1};
    say(&m);
    cr_assert_eq(take(make(3000)), HEDDLE_ERR_AGAIN);
    drive(&e);
    cr_assert_eq(fetch(1, 4096), TR_REFUSED, "as-ready: others have it");
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED);
}

Test(joined, a_larger_adapter_gets_a_larger_region)
{
    tr_event_t e;
    serve(1, 1);
    item_t *b = make(30000);
    cr_assert_eq(take(b), HEDDLE_OK);
    cr_assert_null(b->region);
    fill(b, 2);
    give_back(b);
    b = make(60000);
    cr_assert_eq(take(b), HEDDLE_OK);
    cr_assert_null(b->region, "the smaller one is gone before the larger one is made");
    fill(b, 3);
    give_back(b);
    b = make(100);
    cr_assert_eq(take(b), HEDDLE_OK);
    cr_assert_geq(b->region->bytes, 4 * 60000 * 6, "a smaller adapter uses what is there");
    fill(b, 9);
    const uint8_t *at = b->region->base;
    for (uint32_t i = 0; i < 2; i++)
        for (uint64_t k = b->pack->layout.sizes[i]; k % 4096; k++)
            cr_assert_eq(at[b->pack->layout.places[i] + k], 0, "padding is zero again");
    drive(&e);
}
