/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher's node: which memory a version is written to, and how long it is served. */
#include "trainer_client_rig.h"

#include "core/failpoint.h"

TestSuite(joined, .init = open_and_join, .fini = close_world);

static uint64_t maps(void)
{
    tr_counters_t c;
    transfer_mem_ops.counters(w.t, &c);
    return c.maps;
}

/* Until what is done in the background is done. */
static void rest(void)
{
    w.now += REGIONS_REST_US;
    work();
}

/* One is served, one is written, and one is kept ahead. */
Test(joined, three_regions_take_turns_and_stay_warm)
{
    publish_result_t r;
    region_t *seen[5];
    for (uint64_t v = 1; v <= 9; v++) {
        item_t *it = make(3000);
        cr_assert_eq(take(it), HEDDLE_OK);
        fill(it, (uint8_t)v);
        publish(it, "id");
        published_as(v, "");
        cr_assert_eq(result(&r), HEDDLE_OK);
        if (v > 1) cr_assert_eq(fetch(v - 1, 4096), TR_ARRIVED, "the one before is served on");
        if (v > 2) cr_assert_eq(fetch(v - 2, 4096), TR_REFUSED);
        if (v > 1) release(v - 1);
        rest();
        if (v <= 5) seen[v - 1] = it->region;
        bool is_warm = false;
        for (uint64_t k = 0; v > 5 && k < 5; k++) is_warm |= it->region == seen[k];
        cr_assert(is_warm || v <= 5);
    }
    cr_assert_leq(maps(), 3);
}

/* What is written waits for no reader, and a reader gets what it asked for. */
Test(joined, a_region_is_reused_while_its_bytes_are_on_their_way)
{
    tr_event_t e;
    item_t *a = serve(1, 1), *c = make(3000);
    region_t *first = a->region;
    serve(2, 2);
    release(1);
    ask_and_send(1, 4096);
    cr_assert_eq(take(c), HEDDLE_OK, "at once");
    cr_assert_eq(c->region, first);
    fill(c, 3);
    cr_assert_eq(drive(&e), TR_ARRIVED);
    cr_assert_leq(((const uint8_t *)w.worker_region->base)[0], 2, "bytes of the first version");
    item_t third = {.pack = c->pack};
    cr_assert_eq(take(&third), HEDDLE_OK);
    item_t more = {.pack = c->pack};
    cr_assert_eq(take(&more), HEDDLE_ERR_AGAIN, "the other is served, and needed");
    release(2);
    cr_assert_eq(take(&more), HEDDLE_OK);
    heddle_error_t error;
    command_t t = {.kind = COMMAND_TAKE, .take = {.bytes = pack_bytes(c->pack)}, .error = &error};
    cr_assert_eq(command(t), HEDDLE_ERR_NO_SLOT);
    cr_assert_not_null(strstr(error.message, "every version of the publisher is being written"));
}

Test(joined, a_released_region_goes_before_one_that_is_needed)
{
    serve(1, 1);
    item_t *b = serve(2, 2);
    release(2);
    release(8);
    cr_assert_eq(count_events(HEDDLE_EVENT_RELEASED), 1);
    cr_assert_eq(event(HEDDLE_EVENT_RELEASED)->version, 2);
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED, "its memory stays, so it is served on");
    item_t *c = make(3000);
    cr_assert_eq(take(c), HEDDLE_OK);
    cr_assert_eq(c->region, b->region);
    cr_assert_eq(fetch(1, 4096), TR_ARRIVED);
}

/* The first is on its way to workers, the last comes next: what lies between was superseded by it. */
Test(joined, a_third_version_where_both_are_needed_and_no_fourth)
{
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    item_t *it = make(3000);
    for (uint64_t v = 4; v <= 9; v++) {
        cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
        release(v - 2);
        item_t *next = serve(v, (uint8_t)v);
        cr_assert_not_null(next->region);
        cr_assert_eq(fetch(1, 4096), TR_ARRIVED, "version 1 is on its way still");
        cr_assert_eq(fetch(v - 2, 4096), TR_REFUSED);
        cr_assert_eq(fetch(v - 1, 4096), TR_ARRIVED);
        rest();
    }
    cr_assert_leq(maps(), 4, "three, and one ahead");
}

/* Version 1 was decided a moment ago and 2 announced: what is given up is for the broker to say. */
Test(joined, no_version_goes_that_may_be_on_its_way)
{
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    item_t *it = make(3000);
    cr_assert_eq(take(it), HEDDLE_ERR_AGAIN);
    for (uint64_t v = 1; v <= 3; v++) cr_assert_eq(fetch(v, 4096), TR_ARRIVED, "version %d", (int)v);
    uint64_t changes = w.changes;
    rollout(1, "active", 0, 2, 2, 2);
    cr_assert_gt(w.changes, changes, "who waits is woken");
    cr_assert_eq(take(it), HEDDLE_OK);
    cr_assert_eq(fetch(1, 4096), TR_REFUSED);
    for (uint64_t v = 2; v <= 3; v++) cr_assert_eq(fetch(v, 4096), TR_ARRIVED, "version %d", (int)v);
}

Test(joined, a_word_that_does_not_come_is_waited_for_no_longer_than_a_second)
{
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    rest();
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
/* A publisher that was restarted: the broker knows how large its versions are. */
Test(opened, the_region_of_the_first_version_is_made_before_it, .init = open_world, .fini = close_world)
{
    item_t *it = make(300000);
    line(true);
    hello_ok();
    welcome_with(0, pack_bytes(it->pack));
    cr_assert_eq(maps(), 0, "joining comes first");
    rest();
    command_t c = {.kind = COMMAND_TAKE, .take = {.bytes = pack_bytes(it->pack)}};
    publisher_node_do(w.node, &c, w.now);
    cr_assert_eq(c.rc, HEDDLE_OK, "at once");
}

/* An application may ask ten times a second what has become of its version. */
Test(joined, a_look_does_not_delay_the_background)
{
    for (uint64_t v = 1; v <= 2; v++) serve(v, (uint8_t)v);
    w.now += REGIONS_REST_US - 1;
    cr_assert_not(publisher_node_ops.work(w.node, w.now), "a version may follow");
    cr_assert_not_null(report(2));
    w.now++;
    cr_assert(publisher_node_ops.work(w.node, w.now));
}

Test(joined, a_take_that_was_given_up_leaves_no_word_behind) { give_up_after(0); }
Test(joined, nor_one_that_is_late_already) { give_up_after(TAKE_WAIT_US); }

Test(joined, a_version_that_was_released_needs_no_word)
{
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    release(2);
    cr_assert_eq(take(make(3000)), HEDDLE_OK);
    uint64_t changes = w.changes;
    w.now += 2 * TAKE_WAIT_US;
    tick();
    cr_assert_eq(w.changes, changes);
}

Test(joined, nor_is_that_of_a_broker_that_is_away)
{
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    line(false);
    cr_assert_eq(take(make(3000)), HEDDLE_OK);
}

Test(joined, a_decided_version_goes_before_one_that_is_on_its_way)
{
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
    cr_assert_eq(take(make(3000)), HEDDLE_OK);
    cr_assert_eq(fetch(1, 4096), TR_REFUSED, "as-ready: others have it");
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED);
}

Test(joined, a_larger_adapter_gets_a_larger_region)
{
    serve(1, 1);
    item_t *b = make(30000);
    cr_assert_eq(take(b), HEDDLE_OK);
    fill(b, 2);
    give_back(b);
    b = make(60000);
    cr_assert_eq(take(b), HEDDLE_OK);
    cr_assert_geq(b->region->bytes, 4 * 60000 * 6);
    fill(b, 3);
    give_back(b);
    b = make(20000);
    cr_assert_eq(take(b), HEDDLE_OK);
    fill(b, 9);
    const uint8_t *at = b->region->base;
    for (uint32_t i = 0; i < 2; i++)
        for (uint64_t k = b->pack->layout.sizes[i]; k % 4096; k++)
            cr_assert_eq(at[b->pack->layout.places[i] + k], 0, "padding is zero again");
    cr_assert_eq(maps(), 3, "a smaller adapter uses what is there");
}

/* One MiB a step, between which the loop does other things; the call is woken once, when all is there. */
Test(joined, a_region_is_made_piece_by_piece)
{
    item_t *it = make(300000);
    command_t c = {.kind = COMMAND_TAKE, .take = {.bytes = pack_bytes(it->pack)}};
    publisher_node_do(w.node, &c, w.now);
    cr_assert(command_is_making(&c) && !c.take.region);
    uint64_t changes = w.changes;
    int steps = 0;
    while (w.changes == changes) cr_assert(publisher_node_ops.work(w.node, w.now) && ++steps < 100);
    cr_assert_geq(steps, (int)(c.take.bytes >> 20));
    publisher_node_do(w.node, &c, w.now);
    cr_assert(c.rc == HEDDLE_OK && c.take.region->bytes >= c.take.bytes);
    cr_assert_eq(w.changes, changes + 1);
}

Test(joined, a_take_that_was_given_up_leaves_its_region_to_the_next_one)
{
    item_t *it = make(300000), *next = make(290000);
    command_t c = {.kind = COMMAND_TAKE, .take = {.bytes = pack_bytes(it->pack)}};
    publisher_node_do(w.node, &c, w.now);
    while (publisher_node_ops.work(w.node, w.now)) {}
    command((command_t){.kind = COMMAND_GIVE_UP});
    cr_assert_eq(take(next), HEDDLE_OK);
    cr_assert_geq(next->region->bytes, c.take.bytes);
    cr_assert_eq(maps(), 1);
}

/* A take of another size without giving the first one up, whose region was made meanwhile. */
Test(joined, a_take_of_another_size_is_another_one)
{
    item_t *large = make(300000);
    command_t c = {.kind = COMMAND_TAKE, .take = {.bytes = 3 << 20}};
    cr_assert_lt(c.take.bytes, pack_bytes(large->pack));
    publisher_node_do(w.node, &c, w.now);
    cr_assert(command_is_making(&c));
    work();
    cr_assert_eq(take(large), HEDDLE_OK);
    cr_assert_geq(large->region->bytes, pack_bytes(large->pack));
}

Test(joined, without_memory_the_take_says_so_and_the_next_one_may_do)
{
    heddle_error_t error = {0};
    item_t *it = make(3000);
    command_t c = {.kind = COMMAND_TAKE, .take = {.bytes = pack_bytes(it->pack)}, .error = &error};
    failpoint_arm("region.memory", 1);
    publisher_node_do(w.node, &c, w.now);
    cr_assert_eq(c.rc, HEDDLE_ERR_NO_MEMORY);
    cr_assert_not_null(strstr(error.message, "of shared memory could not be reserved"), "%s", error.message);
    failpoint_disarm();
    cr_assert_eq(take(it), HEDDLE_OK);
}

/* A call may end with its deadline while the memory is made, and a worker may join meanwhile. */
Test(joined, a_version_is_served_until_the_region_of_the_next_one_is_there)
{
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    rollout(1, "active", 0, 2, 2, 2);
    item_t *it = make(300000);
    command_t c = {.kind = COMMAND_TAKE, .take = {.bytes = pack_bytes(it->pack)}};
    for (int i = 0; i < 3; i++) {
        publisher_node_do(w.node, &c, w.now);
        cr_assert(command_is_making(&c));
        cr_assert_eq(fetch(1, 4096), TR_ARRIVED);
    }
    command((command_t){.kind = COMMAND_GIVE_UP});
    cr_assert_eq(fetch(1, 4096), TR_ARRIVED);
    cr_assert_eq(take(it), HEDDLE_OK);
    cr_assert_eq(fetch(1, 4096), TR_REFUSED);
    for (uint64_t v = 2; v <= 3; v++) cr_assert_eq(fetch(v, 4096), TR_ARRIVED);
}

/* Its publisher alone has it, and without it there would be no memory for the larger one either. */
Test(joined, without_memory_for_a_larger_one_no_version_is_lost)
{
    for (uint64_t v = 1; v <= 3; v++) serve(v, (uint8_t)v);
    line(false);
    failpoint_arm("region.memory", 1);
    cr_assert_eq(take(make(30000)), HEDDLE_ERR_NO_MEMORY);
    failpoint_disarm();
    for (uint64_t v = 1; v <= 3; v++) cr_assert_eq(fetch(v, 4096), TR_ARRIVED, "version %d", (int)v);
}

Test(joined, without_memory_for_one_more_the_version_that_may_go_gives_its_own)
{
    region_t *region = NULL;
    for (uint64_t v = 1; v <= 3; v++) {
        const item_t *it = serve(v, (uint8_t)v);
        if (v == 2) region = it->region;
    }
    line(false);
    item_t *it = make(3000);
    failpoint_arm("region.memory", 1);
    cr_assert_eq(take(it), HEDDLE_OK);
    failpoint_disarm();
    cr_assert_eq(it->region, region, "what lies between goes");
    cr_assert_eq(fetch(2, 4096), TR_REFUSED);
}

static memory_region_t *make_elsewhere(uint64_t bytes)
{
    memory_region_t *own;
    cr_assert_eq(memory_region_new(bytes, &own, NULL), HEDDLE_OK);
    while (memory_region_grow(own, NULL) == HEDDLE_ERR_AGAIN) {}
    cr_assert_eq(memory_region_begin(own, NULL), HEDDLE_OK);
    return own;
}

/* As one that was read ahead. */
Test(joined, a_region_that_was_made_elsewhere_is_taken_over)
{
    heddle_error_t error;
    item_t *it = make(3000);
    memory_region_t *own = make_elsewhere(pack_bytes(it->pack)), *more;
    command_t c = {.kind = COMMAND_TAKE, .take = {.bytes = own->bytes, .own = own}};
    publisher_node_do(w.node, &c, w.now);
    cr_assert(c.rc == HEDDLE_OK && c.take.region->own == own && !c.take.own);
    it->slot = c.take.slot;
    it->region = c.take.region;
    give_back(it);
    cr_assert_eq(take(it), HEDDLE_OK);
    cr_assert_eq(it->region->own, own, "it is one of the pool's");
    for (int i = 0; i < 2; i++) cr_assert_eq(take(make(3000)), HEDDLE_OK);
    more = make_elsewhere(pack_bytes(it->pack));
    c = (command_t){.kind = COMMAND_TAKE, .take = {.bytes = more->bytes, .own = more}, .error = &error};
    publisher_node_do(w.node, &c, w.now);
    cr_assert(c.rc == HEDDLE_ERR_NO_SLOT && c.take.own == more, "it stays the caller's");
    memory_region_destroy(&more);
}
