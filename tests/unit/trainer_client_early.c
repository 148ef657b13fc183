/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher's node lends what it wrote before the broker has recorded it: to whom, for how long, and what
 * becomes of the memory. */
#include "tests/contract/ask.h"
#include "trainer_client_rig.h"
#include "tests/lib/mem.h"

static void open_near_of(uint32_t early_most)
{
    open_world_as((how_t){.early_most = early_most});
    join();
    mem_near(w.t);
}
static void open_near(void) { open_near_of(1); }

TestSuite(early, .init = open_near, .fini = close_world);

static void ask_key(share_key_t key)
{
    uint64_t id;
    bytes_t address;
    transfer_mem_ops.address(w.t, &address);
    peer_ref_t from = {w.token, address};
    cr_assert_eq(ask_into(&transfer_mem_ops, w.worker_t, &from, key, 0, 4096, w.worker_region, 0, &id),
                 HEDDLE_OK);
}

static int fetch_key(share_key_t key)
{
    tr_event_t e = {0};
    ask_key(key);
    return drive(&e);
}

/* What the worker sent comes, and the node hears of it; nothing comes to the worker. */
static void turn_node(void)
{
    tr_event_t e[4];
    int n = transfer_mem_ops.events(w.t, w.now, e, 4);
    for (int i = 0; i < n; i++) publisher_node_ops.transfer(w.node, &e[i], w.now);
}

static void begin_reading(share_key_t key)
{
    tr_event_t none[4];
    ask_key(key);
    cr_assert_eq(transfer_mem_ops.events(w.worker_t, w.now, none, 4), 0);
    turn_node();
}

/* Serves version 1 to a worker; then a publication that the broker has not answered, of which it heard. */
static share_key_t publish_early(item_t **ret_item)
{
    tr_event_t e = {0};
    serve(1, 1);
    cr_assert_eq(fetch(1, 4096), TR_ARRIVED);
    *ret_item = publish_one("id-2");
    cr_assert_eq(drive(&e), TR_EARLY);
    cr_assert_eq(e.bytes, (*ret_item)->sealed.arena_bytes);
    cr_assert_eq(e.token, w.token);
    return e.key;
}

Test(early, who_was_served_may_read_what_is_not_recorded)
{
    item_t *it;
    share_key_t key = publish_early(&it);
    cr_assert_eq(fetch_key(key), TR_ARRIVED);
    cr_assert_eq(memcmp(w.worker_region->base, it->region->base, 4096), 0);
    published_as(2, "");
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED);
    cr_assert_eq(fetch_key(key), TR_REFUSED, "the version has a key of its own");
}

Test(early, who_was_not_served_hears_nothing)
{
    tr_event_t e = {0};
    serve(1, 1);
    cr_assert_eq(fetch(2, 4096), -1, "it is known, and waits for a version to come");
    publish_one("id-2");
    cr_assert_eq(drive(&e), -1);
    published_as(2, "");
    cr_assert_eq(drive(&e), TR_ARRIVED);
}

static uint32_t count_early(transfer_t *t)
{
    tr_event_t e[16];
    uint32_t count = 0;
    for (int n; (n = transfer_mem_ops.events(t, w.now, e, 16)) > 0;)
        for (int i = 0; i < n; i++) count += e[i].kind == TR_EARLY;
    return count;
}

/* How many of two workers that were served get an early offer, where `most` may. */
static uint32_t told_of_two(uint32_t most)
{
    close_world();
    open_near_of(most);
    transfer_t *other = open_transfer(WORKER + 1), *first = w.worker_t;
    serve(1, 1);
    cr_assert_eq(fetch(1, 4096), TR_ARRIVED);
    region_t *region = w.worker_region;
    w.worker_t = other, w.worker_region = NULL;
    cr_assert_eq(fetch(1, 4096), TR_ARRIVED);
    transfer_mem_ops.unmap(other, w.worker_region);
    region_unref(&w.worker_region);
    w.worker_t = first, w.worker_region = region;
    publish_one("id-2");
    uint32_t count = count_early(first) + count_early(other);
    transfer_mem_ops.close(&other);
    return count;
}

/* The cores are those that others need to record the version. */
Test(early, no_more_are_told_than_there_are_cores_for)
{
    cr_assert_eq(told_of_two(1), 0, "one that is early makes the others late");
    cr_assert_eq(told_of_two(2), 2);
}

Test(early, it_is_said_once_a_publication)
{
    item_t *it;
    tr_event_t e = {0};
    share_key_t key = publish_early(&it);
    rejoin(1);
    cr_assert_eq(count_sent(MSG_PUBLISH), 3);
    drive(&e);
    cr_assert_neq((int)e.kind, (int)TR_EARLY);
    published_as(2, "");
    cr_assert_eq(fetch_key(key), TR_REFUSED);
}

static item_t *refused_while_it_is_read(void)
{
    item_t *it;
    publish_result_t r;
    begin_reading(publish_early(&it));
    refuse(MSG_PUBLISH, sent(MSG_PUBLISH)->publish.req, HEDDLE_ERR_UNCHANGED, false);
    cr_assert_eq(result(&r), HEDDLE_ERR_UNCHANGED);
    return it;
}

/* Nobody has the version.  Who reads it still, or stands still, is not waited for: what he has of it differs
 * from what is announced then. */
Test(early, memory_of_what_was_refused_is_free)
{
    tr_event_t e;
    item_t *it = refused_while_it_is_read(), *next = make(3000);
    cr_assert_eq(take(next), HEDDLE_OK);
    cr_assert_eq(next->region, it->region);
    fill(next, 9);
    publish(next, "id-3");
    published_as(2, "");
    cr_assert_eq(drive(&e), TR_ARRIVED);
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED);
    cr_assert_eq(memcmp(w.worker_region->base, next->region->base, 4096), 0);
    rollout(2, "staging", 0, 1, 0, 0);
    w.now += SECOND;
    tick();
    cr_assert_eq(event(HEDDLE_EVENT_PROGRESS)->bytes_done, 2 * 4096, "not what was served before");
}

/* Memory for a larger one is made when that of the smaller one is back. */
Test(early, memory_is_exchanged_when_nobody_reads_it)
{
    tr_event_t e;
    refused_while_it_is_read();
    item_t *next = make(90000);
    cr_assert_eq(take(next), HEDDLE_ERR_AGAIN);
    uint64_t changes = w.changes;
    cr_assert_eq(drive(&e), TR_ARRIVED);
    cr_assert_gt(w.changes, changes, "who waits is woken");
    take_and_fill(next, 3);
    publish(next, "id-3");
    published_as(2, "");
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED);
}

Test(early, memory_of_a_version_waits_for_its_own_readers_alone)
{
    item_t *it;
    tr_event_t e;
    share_key_t key = publish_early(&it);
    begin_reading(key);
    published_as(2, "");
    release(2);
    item_t *next = make(3000);
    cr_assert_eq(take(next), HEDDLE_ERR_AGAIN, "it closes");
    turn_node();
    cr_assert_eq(take(next), HEDDLE_OK);
    cr_assert_eq(next->region, it->region);
    cr_assert_eq(drive(&e), TR_ARRIVED);
    cr_assert_eq(fetch_key(key), TR_REFUSED);
}

/* What came early, and what while nobody waited for the broker's answer. */
Test(early, one_in_doubt_knows_what_was_served_of_it)
{
    item_t *it;
    publish_result_t r;
    heddle_error_t error;
    share_key_t key = publish_early(&it);
    cr_assert_eq(fetch_key(key), TR_ARRIVED);
    cr_assert_neq(abandon(&r, &error), HEDDLE_OK);
    published_as(2, "");
    rollout(2, "staging", 0, 1, 0, 0);
    w.now += SECOND;
    tick();
    cr_assert_not_null(event(HEDDLE_EVENT_PROGRESS));
    cr_assert_eq(event(HEDDLE_EVENT_PROGRESS)->bytes_done, 4096);
}

Test(early, what_was_served_before_it_was_recorded_counts)
{
    item_t *it;
    share_key_t key = publish_early(&it);
    cr_assert_eq(fetch_key(key), TR_ARRIVED);
    published_as(2, "");
    rollout(2, "staging", 0, 1, 0, 0);
    w.now += SECOND;
    tick();
    cr_assert_not_null(event(HEDDLE_EVENT_PROGRESS));
    cr_assert_eq(event(HEDDLE_EVENT_PROGRESS)->bytes_done, 4096);
}

/* Workers that hold the content under another number take it from there. */
Test(early, what_workers_hold_already_is_not_sent)
{
    tr_event_t e = {0};
    serve(1, 1);
    cr_assert_eq(fetch(1, 4096), TR_ARRIVED);
    rollout(1, "active", 0, 1, 1, 1);
    item_t *same = publish_one("id-2");
    cr_assert_eq(drive(&e), -1);
    published_as(2, "");
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED, "a worker that does not hold it may fetch it");
    rollout(1, "retired", 0, 1, 1, 1);
    rollout(2, "failed", HEDDLE_ERR_VERSION_FAILED, 1, 0, 0);
    publish_again(same, 1, "id-3");
    cr_assert_eq(drive(&e), TR_EARLY, "no worker holds it any more");
}
