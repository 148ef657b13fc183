/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that come ahead of their announcement: nothing is believed of them but by their digests, and nothing
 * follows from them where none comes. */
#include "tests/contract/region_new.h"
#include "tests/unit/worker_world.h"

enum { EARLY_US = 5000, EARLY = 9001 }; /* no version: the key of what comes early */

static test_arena_t first, second;

static test_arena_t arena(uint64_t seed) { return arena_make(seed, 6, 3000); } /* 1.1 MB, 18 chunks */

static void make_arenas(void)
{
    first = arena(1);
    second = arena(2);
}

static void end(void)
{
    world_end();
    free(first.bytes);
    free(second.bytes);
}

TestSuite(early, .init = make_arenas, .fini = end);

static tr_counters_t counters(const worker_t *w)
{
    tr_counters_t c;
    transfer_mem_ops.counters(w->io.t, &c);
    return c;
}

/* A worker at version 1, and its publisher, whose memory it reads in place. */
static worker_t *at_first(origin_t **ret_origin, tr_mode_t mode)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = *ret_origin = origin_start(0, mode);
    mem_near(o->t);
    test_arena_t before = arena_make(9, 6, first.region_bytes > 4000000 ? 40000 : 3000);
    bring_version(w, o, &before, 1, 1);
    bring_version(w, o, &first, 2, 2); /* and a region of another slot is warm */
    free(before.bytes);
    tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, 1, "policy"}});
    run_for(1000);
    cr_assert(serves(w, &first, 2));
    return w;
}

/* Puts the arena where the origin's was. */
static void put_region(origin_t *o, const test_arena_t *a)
{
    transfer_mem_ops.unmap(o->t, o->region);
    region_unref(&o->region);
    cr_assert_eq(region_new(a->arena_bytes, &o->region, NULL), HEDDLE_OK);
    memcpy(o->region->base, a->bytes, a->arena_bytes);
    transfer_mem_ops.map(o->t, o->region);
}

/* As a publisher before it asks the broker, but `bytes` alone; true: the worker was told. */
static bool share_early(origin_t *o, const test_arena_t *a, uint64_t bytes)
{
    put_region(o, a);
    return transfer_mem_ops.early(o->t, o->region, key_of(EARLY), bytes, 1) > 0;
}

/* The same, and the worker's asks are on their way. */
static void begin_early(worker_t *w, origin_t *o, const test_arena_t *a)
{
    uint64_t asks = counters(w).asks_out;
    cr_assert(share_early(o, a, a->arena_bytes));
    mem_stop(o->t, true);
    run_for(1000);
    cr_assert_gt(counters(w).asks_out, asks);
}

/* The same region, under the version's key. */
static void announce_third(worker_t *w, origin_t *o, const test_arena_t *a)
{
    msg_source_t source = source_of(o);
    if (transfer_mem_ops.share(o->t, o->region, key_of(3)) == HEDDLE_OK)
        transfer_mem_ops.extend(o->t, key_of(3), 0, a->arena_bytes);
    announce_to(w, a, 3, &source, 1);
    run_for(100000);
    commit_to(w, a, 3, 3);
    run_for(1000);
    cr_assert(serves(w, a, 3));
}

Test(early, what_came_is_not_fetched_again)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    tr_counters_t before = counters(w);
    uint32_t said = w->said_count;
    cr_assert(share_early(o, &second, second.arena_bytes));
    mem_delay(o->t, world_now_us + EARLY_US);
    run_for(2 * EARLY_US);
    tr_counters_t early = counters(w);
    cr_assert_eq(early.bytes_in - before.bytes_in, second.arena_bytes);
    cr_assert(serves(w, &first, 2) && w->said_count == said, "nothing has happened");
    announce_third(w, o, &second);
    cr_assert_eq(counters(w).asks_out, early.asks_out, "nothing is asked for");
    const msg_t *staged = last_said(w, MSG_STAGED);
    cr_assert(staged->staged.version == 3 && digest_equal(&staged->staged.digest, &second.h1));
    cr_assert(staged->staged.source_count == 1 && staged->staged.sources[0].bytes == second.region_bytes,
              "and who sent it is said");
    cr_assert_geq(staged->staged.fetch_us, EARLY_US, "how fast it comes here is what the broker plans with");
}

/* More than is asked for at once. */
static void make_large(void)
{
    free(first.bytes);
    free(second.bytes);
    first = arena_make(1, 6, 40000);
    second = arena_make(2, 6, 40000);
    cr_assert_gt(second.arena_bytes, EARLY_OPEN_MAX * EARLY_PIECE_BYTES);
}

Test(early, a_large_one_comes_frame_by_frame)
{
    make_large();
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    uint64_t before = counters(w).bytes_in;
    cr_assert(share_early(o, &second, second.arena_bytes));
    run_for(1000);
    cr_assert_eq(counters(w).bytes_in - before, second.arena_bytes);
    announce_third(w, o, &second);
    cr_assert_eq(counters(w).bytes_in - before, second.arena_bytes);
}

Test(early, where_none_is_announced_nothing_has_happened)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    cr_assert(share_early(o, &second, second.arena_bytes));
    run_for(60000000);
    cr_assert(serves(w, &first, 2));
    bring_version(w, o, &first, 3, 3);
    cr_assert(serves(w, &first, 3), "its slot is used for what is announced");
}

Test(early, other_bytes_than_the_announced_ones_are_fetched)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    cr_assert(share_early(o, &first, first.arena_bytes));
    mem_delay(o->t, world_now_us + EARLY_US);
    run_for(2 * EARLY_US);
    origin_serve(o, &second, 3);
    tr_counters_t early = counters(w);
    announce_third(w, o, &second);
    cr_assert_eq(counters(w).bytes_in - early.bytes_in, second.arena_bytes);
    cr_assert_eq(worker_node_core(w->node)->counters.chunks_bad, 0, "nobody sent anything bad");
    cr_assert_lt(last_said(w, MSG_STAGED)->staged.fetch_us, EARLY_US,
                 "that took long is nothing of this fetch");
}

/* The region of a publisher that was given up meanwhile, or of one that lies. */
Test(early, a_chunk_that_is_another_is_fetched_alone)
{
    const uint64_t chunk = manifest_chunk_bytes(second.region_bytes);
    const uint64_t WRONG[] = {5 * chunk + 77, 0, second.region_bytes - 1};
    for (int i = 0; i < 3; i++) {
        origin_t *o;
        worker_t *w = at_first(&o, TR_MODE_EAGER);
        second.bytes[WRONG[i]] ^= 1;
        cr_assert(share_early(o, &second, second.arena_bytes));
        run_for(1000);
        second.bytes[WRONG[i]] ^= 1;
        tr_counters_t early = counters(w);
        origin_serve(o, &second, 3);
        announce_third(w, o, &second);
        uint64_t left = second.region_bytes % chunk, last = left ? left : chunk;
        cr_assert_eq(counters(w).bytes_in - early.bytes_in, i == 2 ? last : chunk, "%d", i);
        world_end();
    }
}

/* Also one of whose bytes fewer were told than are announced. */
Test(early, what_did_not_come_is_fetched)
{
    /* the last 512 bytes of the region are zero, as the missing bytes of a page count for its leaf */
    const uint64_t HERE[] = {1, EARLY_PIECE_BYTES, 3 * EARLY_PIECE_BYTES, second.region_bytes,
                             second.region_bytes - 100};
    const uint64_t chunk = manifest_chunk_bytes(second.region_bytes);
    for (int i = 0; i < 5; i++) {
        origin_t *o;
        worker_t *w = at_first(&o, TR_MODE_EAGER);
        cr_assert(share_early(o, &second, HERE[i]));
        run_for(1000);
        uint64_t came = counters(w).bytes_in;
        announce_third(w, o, &second);
        uint64_t fetched = counters(w).bytes_in - came, there = i == 3 ? HERE[i] : HERE[i] / chunk * chunk;
        cr_assert_eq(fetched, second.arena_bytes - there, "%d", i);
        world_end();
    }
}

Test(early, a_key_that_ends_leaves_what_came)
{
    make_large();
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    uint64_t before = counters(w).bytes_in, due = 0;
    cr_assert(share_early(o, &second, second.arena_bytes));
    for (int turns = 0; counters(w).bytes_in == before; turns++) {
        cr_assert_lt(turns, 100);
        world_turn(&due);
    }
    transfer_mem_ops.unshare(o->t, key_of(EARLY));
    run_for(1000);
    uint64_t came = counters(w).bytes_in - before;
    cr_assert_lt(came, second.region_bytes, "it has ended before");
    announce_third(w, o, &second);
    cr_assert_eq(counters(w).bytes_in - before, second.arena_bytes, "no byte twice");
}

Test(early, only_the_last_publisher_is_heard)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    origin_t *next = origin_start(1, TR_MODE_EAGER);
    bring_version(w, next, &second, 3, 3);
    tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, 2, "policy"}});
    run_for(1000);
    uint64_t asks = counters(w).asks_out;
    cr_assert_not_null(
        slots_at(worker_node_slots(w->node), 0, (uint32_t)slots_next_free(worker_node_slots(w->node), 0))
            ->region,
        "there is memory");
    cr_assert(share_early(o, &first, first.arena_bytes), "it is told, and");
    run_for(1000);
    cr_assert_eq(counters(w).asks_out, asks);
}

Test(early, who_was_not_served_or_does_not_read_in_place_is_not_told)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *far = origin_start(0, TR_MODE_EAGER), *near = origin_start(1, TR_MODE_EAGER);
    mem_near(near->t);
    origin_serve(far, &first, 1);
    msg_source_t sources[] = {source_of(far), source_of(near)};
    announce_to(w, &first, 1, sources, 2); /* it says HI to both */
    run_for(100000);
    commit_to(w, &first, 1, 1);
    run_for(1000);
    cr_assert(serves(w, &first, 1));
    origin_serve(near, &second, EARLY + 1);
    cr_assert_not(share_early(far, &second, second.arena_bytes));
    cr_assert_not(share_early(near, &second, second.arena_bytes));
    tr_event_t events[4];
    cr_assert_eq(transfer_mem_ops.events(near->t, world_now_us, events, 4), 0, "and nothing was shared");
}

/* More than fits where the next version would lie: memory is not made for it. */
Test(early, what_is_larger_than_the_memory_there_is_left)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    test_arena_t large = arena_make(3, 6, 30000);
    tr_counters_t before = counters(w);
    cr_assert(share_early(o, &large, large.arena_bytes));
    run_for(1000);
    cr_assert_eq(counters(w).asks_out, before.asks_out);
    cr_assert_eq(counters(w).maps, before.maps);
    announce_third(w, o, &large);
    free(large.bytes);
}

/* While it is asked for, the memory that it comes to is exchanged for a larger one. */
Test(early, memory_goes_while_it_is_asked_for)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    test_arena_t large = arena_make(3, 6, 30000);
    begin_early(w, o, &second);
    origin_t *other = origin_start(1, TR_MODE_EAGER);
    origin_serve(other, &large, 3);
    msg_source_t source = source_of(other);
    announce_to(w, &large, 3, &source, 1);
    mem_stop(o->t, false);
    run_for(100000);
    commit_to(w, &large, 3, 3);
    run_for(1000);
    cr_assert(serves(w, &large, 3));
    free(large.bytes);
}

/* A slot before it comes free: memory is given back, but not this. */
Test(early, memory_stays_while_it_is_asked_for)
{
    origin_t *o;
    worker_t *w = worker_joined(0, NULL);
    o = origin_start(0, TR_MODE_EAGER);
    mem_near(o->t);
    for (uint64_t v = 1; v <= 3; v++) {
        test_arena_t a = arena(10 + v);
        bring_version(w, o, &a, v, v);
        free(a.bytes);
    }
    tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, 2, "policy"}});
    run_for(1000);
    begin_early(w, o, &second);
    cr_assert_eq(adapter_of(w)->early.slot, slots_at(worker_node_slots(w->node), 0, 1));
    tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, 1, "policy"}});
    run_for(1000);
    mem_stop(o->t, false);
    run_for(1000);
    bring_version(w, o, &second, 4, 4);
    cr_assert(serves(w, &second, 4));
}

/* What is announced goes before what is not. */
Test(early, nothing_is_asked_for_while_a_version_comes)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    bring_version(w, o, &second, 3, 3);
    origin_t *other = origin_start(1, TR_MODE_EAGER);
    test_arena_t fourth = arena(4);
    origin_serve(other, &fourth, 4);
    mem_stop(other->t, true);
    msg_source_t source = source_of(other);
    announce_to(w, &fourth, 4, &source, 1);
    tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, 2, "policy"}});
    run_for(1000);
    uint64_t asks = counters(w).asks_out;
    cr_assert(adapter_of(w)->download && slots_at(worker_node_slots(w->node), 0,
                                                  (uint32_t)slots_next_free(worker_node_slots(w->node), 0))
                                             ->region,
              "there is memory");
    cr_assert(share_early(o, &second, second.arena_bytes));
    run_for(1000);
    cr_assert_eq(counters(w).asks_out, asks);
    mem_stop(other->t, false);
    run_for(100000);
    commit_to(w, &fourth, 4, 4);
    run_for(1000);
    cr_assert(serves(w, &fourth, 4));
    free(fourth.bytes);
}

/* The plan of the fetches may name others than who was early. */
Test(early, who_sent_it_is_said_by_name)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    cr_assert(share_early(o, &second, 2 * EARLY_PIECE_BYTES));
    run_for(1000);
    origin_t *other = origin_start(1, TR_MODE_EAGER);
    origin_serve(other, &second, 3);
    msg_source_t source = source_of(other);
    announce_to(w, &second, 3, &source, 1);
    run_for(100000);
    const msg_t *staged = last_said(w, MSG_STAGED);
    cr_assert(staged->staged.version == 3 && staged->staged.source_count == 2);
    for (int i = 0; i < 2; i++) {
        const msg_served_t *row = &staged->staged.sources[i];
        cr_assert(row->kind == SOURCE_PUBLISHER && !strcmp(row->name, "trainer"), "%d", i);
    }
}

/* A transport that writes when it likes must not write there: that memory is another version's next. */
Test(early, what_the_transport_would_place_is_fetched)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_RENDEZVOUS);
    test_arena_t bad = arena(3);
    mem_hold(o->t, world_now_us + 50000);
    cr_assert(share_early(o, &bad, bad.arena_bytes));
    run_for(1000);
    cr_assert(transfer_mem_ops.idle(w->io.t, adapter_of(w)->early.slot->region));
    origin_t *other = origin_start(1, TR_MODE_EAGER);
    origin_serve(other, &second, 3);
    msg_source_t source = source_of(other);
    announce_to(w, &second, 3, &source, 1);
    run_for(100000);
    commit_to(w, &second, 3, 3);
    run_for(1000);
    cr_assert(serves(w, &second, 3));
    cr_assert_eq(worker_node_core(w->node)->counters.chunks_bad, 0);
    free(bad.bytes);
}

/* Of a fetch that follows in the same memory the transport places what it likes. */
Test(early, a_fetch_is_placed_as_before)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_RENDEZVOUS);
    cr_assert(share_early(o, &second, second.arena_bytes));
    run_for(1000);
    announce_third(w, o, &second);
}

Test(early, a_worker_ends_while_it_comes)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    begin_early(w, o, &second);
    worker_stop(0);
}

/* The version that is announced has content that is here already: what came early is of no use. */
Test(early, content_that_is_here_is_taken_from_there)
{
    origin_t *o;
    worker_t *w = at_first(&o, TR_MODE_EAGER);
    begin_early(w, o, &first);
    mem_stop(o->t, false);
    run_for(2 * EARLY_US);
    tr_counters_t before = counters(w);
    announce_third(w, o, &first);
    cr_assert_eq(counters(w).bytes_in, before.bytes_in);
    cr_assert_eq(last_said(w, MSG_STAGED)->staged.source_count, 0);
    cr_assert_null(adapter_of(w)->early.slot);
    bring_version(w, o, &second, 4, 4);
    cr_assert(serves(w, &second, 4));
    commit_to(w, &first, 3, 5);
    cr_assert(serves(w, &first, 3));
}
