/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of transfer/transfer.h, the same for every backend. */
#include "tests/contract/ask.h"
#include "tests/contract/region_new.h"
#include "core/digest.h"
#include "core/limits.h"
#include "tests/contract/rig.h"
#include "transfer/exchange_state.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE 65536u
#define LONG_US 20000000u /* a limit, never waited out */

static const share_key_t KEY = {{1, 2, 3, 4}}, OTHER = {{5, 6, 7, 8}};

TestSuite(transfer, .timeout = 60);

Test(transfer, ranges_arrive_with_their_bytes)
{
    rig_t *r = rig_open(2, 1u << 20, NULL);
    rig_share_all(r, 0, KEY);
    const struct {
        uint64_t offset;
        uint32_t bytes;
    } ranges[] = {{0, 1},           {4096, 4096},     {10001, 77},        {65536, 65536},
                  {131072, 131072}, {262144, 262144}, {(1u << 20) - 5, 5}};
    const int count = sizeof ranges / sizeof *ranges;
    uint64_t asks[sizeof ranges / sizeof *ranges];
    for (int i = 0; i < count; i++) asks[i] = rig_ask(r, 1, 0, KEY, ranges[i].offset, ranges[i].bytes);
    cr_assert(rig_until(r, rig_has_arrived, 1, count, LONG_US));
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++) {
        const tr_event_t *e = rig_ended(r, 1, asks[i]);
        cr_assert(e && e->kind == TR_ARRIVED && e->token == r->nodes[0].ref.token && e->err == HEDDLE_OK);
        cr_assert(rig_is_pattern(r, 1, ranges[i].offset, ranges[i].bytes), "range %d", i);
        bytes += ranges[i].bytes;
    }
    cr_assert(rig_is_all(r, 1, 0, 1, 4095), "nothing lands beside a range");
    tr_counters_t in = rig_counters(r, 1);
    cr_assert_eq(in.bytes_in, bytes);
    cr_assert_eq(in.data_in, (uint64_t)count);
    cr_assert_eq(in.asks_out, (uint64_t)count);
    cr_assert_eq(in.maps, 1);
    cr_assert_eq(in.late, 0);
    rig_close(r);
}

Test(transfer, a_range_may_land_elsewhere)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    rig_share_all(r, 0, KEY);
    node_t *n = &r->nodes[1];
    uint64_t ask;
    cr_assert_eq(ask_into(r->ops, n->t, &r->nodes[0].ref, KEY, 0, PIECE, n->region, 3 * PIECE, &ask),
                 HEDDLE_OK);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US) && rig_until(r, rig_has_sent, 0, 1, LONG_US));
    cr_assert(rig_is_all(r, 1, 0, 0, 3 * PIECE));
    cr_assert_eq(memcmp((uint8_t *)n->region->base + 3 * PIECE, r->nodes[0].region->base, PIECE), 0);
    cr_assert_eq(rig_counters(r, 0).bytes_out, PIECE);
    rig_close(r);
}

/* An event of an ask says what the caller said of it; memory of another kind is refused. */
Test(transfer, the_cookie_of_an_ask_comes_back)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    rig_share_all(r, 0, KEY);
    uint64_t first = rig_ask(r, 1, 0, KEY, PIECE, PIECE), beyond = rig_ask(r, 1, 0, KEY, 2 * PIECE, PIECE),
             unknown = rig_ask(r, 1, 0, (share_key_t){{9, 9}}, 0, PIECE);
    cr_assert(rig_until(r, rig_has_events, 1, 3, LONG_US));
    cr_assert_eq(rig_ended(r, 1, first)->cookie, ~(uint64_t)PIECE);
    cr_assert_eq(rig_ended(r, 1, beyond)->cookie, ~(uint64_t)(2 * PIECE));
    cr_assert_eq(rig_ended(r, 1, unknown)->kind, TR_REFUSED);
    cr_assert_eq(rig_ended(r, 1, unknown)->cookie, ~0ull);
    node_t *n = &r->nodes[1];
    uint64_t ask;
    sink_t sink = sink_of(n->region, NULL);
    sink.memory = HEDDLE_MEMORY_CUDA;
    tr_read_t read = {.key = KEY, .bytes = PIECE, .sink = &sink};
    cr_assert_eq(r->ops->ask(n->t, &r->nodes[0].ref, &read, &ask), HEDDLE_ERR_USAGE);
    rig_close(r);
}

/* Where the sink has leaves, a range that is copied is digested on its way; the digest of what the transport places
 * is left to the caller.  A range that begins within a page has no leaves of its own. */
Test(transfer, what_is_copied_is_digested_on_the_way)
{
    enum { PAGES = 1 << 20 >> 12 };
    rig_t *r = rig_open(2, 1u << 20, NULL);
    uint64_t leaves[PAGES] = {0}, expected[PAGES];
    digest_leaves(r->nodes[0].region->base, 1u << 20, expected);
    rig_connect(r, KEY);
    r->nodes[1].leaves = leaves;
    uint64_t whole = rig_ask(r, 1, 0, KEY, PIECE, PIECE);
    uint64_t within = rig_ask(r, 1, 0, KEY, 4 * PIECE + 512, 4096);
    cr_assert(rig_until(r, rig_has_arrived, 1, 2, LONG_US));
    r->nodes[1].leaves = NULL;
    uint64_t without = rig_ask(r, 1, 0, KEY, 8 * PIECE, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 3, LONG_US));
    cr_assert_eq(rig_ended(r, 1, whole)->is_digested, !rig_is_rendezvous());
    cr_assert_not(rig_ended(r, 1, within)->is_digested);
    cr_assert_not(rig_ended(r, 1, without)->is_digested);
    for (size_t i = 0; i < PAGES; i++) {
        bool is_inside = i >= PIECE / 4096 && i < 2 * PIECE / 4096 && !rig_is_rendezvous();
        cr_assert_eq(leaves[i], is_inside ? expected[i] : 0, "leaf %zu", i);
    }
    cr_assert(rig_is_pattern(r, 1, PIECE, PIECE) && rig_is_pattern(r, 1, 8 * PIECE, PIECE));
    rig_close(r);
}

Test(transfer, what_cannot_be_right_is_refused_by_ask)
{
    rig_t *r = rig_open(2, 1u << 19, NULL);
    node_t *n = &r->nodes[1];
    const peer_ref_t *from = &r->nodes[0].ref;
    uint64_t ask = 77;
    cr_assert_eq(ask_into(r->ops, n->t, from, KEY, 0, 0, n->region, 0, &ask), HEDDLE_ERR_LIMIT);
    cr_assert_eq(ask_into(r->ops, n->t, from, KEY, 0, LIMIT_CHUNK_MAX_BYTES + 1, n->region, 0, &ask),
                 HEDDLE_ERR_LIMIT);
    cr_assert_eq(ask_into(r->ops, n->t, from, KEY, 0, PIECE, n->region, (1u << 19) - PIECE + 1, &ask),
                 HEDDLE_ERR_LIMIT);
    cr_assert_eq(ask_into(r->ops, n->t, from, KEY, 0, PIECE, n->region, UINT64_MAX, &ask), HEDDLE_ERR_LIMIT);
    cr_assert_eq(ask, 77, "written only on success");
    peer_ref_t nobody = {999, {"nobody there", 12}}, empty = {998, {NULL, 0}};
    cr_assert_eq(ask_into(r->ops, n->t, &nobody, KEY, 0, PIECE, n->region, 0, &ask), HEDDLE_ERR_GONE);
    cr_assert_eq(r->ops->greet(n->t, &empty), HEDDLE_ERR_GONE);
    cr_assert_eq(r->ops->extend(n->t, KEY, 0, 1), HEDDLE_ERR_NOT_FOUND);
    rig_share_all(r, 1, KEY);
    cr_assert_eq(r->ops->share(n->t, n->region, KEY), HEDDLE_ERR_USAGE);
    cr_assert_eq(r->ops->extend(n->t, KEY, 1u << 19, 1), HEDDLE_ERR_LIMIT);
    cr_assert_eq(r->ops->extend(n->t, KEY, UINT64_MAX, 2), HEDDLE_ERR_LIMIT);
    rig_close(r);
}

Test(transfer, an_ask_before_its_share_waits)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    uint64_t ask = rig_ask(r, 1, 0, KEY, PIECE, PIECE);
    rig_pass(r, 100000);
    cr_assert_null(rig_ended(r, 1, ask));
    rig_share_all(r, 0, KEY);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    cr_assert(rig_is_pattern(r, 1, PIECE, PIECE));
    rig_close(r);
}

Test(transfer, a_standing_ask_is_answered_when_its_bytes_are_there)
{
    rig_t *r = rig_open(2, 1u << 18, &(transfer_opts_t){.beat_ms = 50});
    node_t *source = &r->nodes[0];
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    uint64_t first = rig_ask(r, 1, 0, KEY, 0, PIECE), second = rig_ask(r, 1, 0, KEY, PIECE, PIECE);
    r->ops->extend(source->t, KEY, PIECE / 2, PIECE / 2);
    rig_pass(r, 20000);
    r->ops->extend(source->t, KEY, 0, PIECE / 2);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    cr_assert_eq(rig_ended(r, 1, first)->kind, TR_ARRIVED);
    rig_pass(r, 20000);
    cr_assert_null(rig_ended(r, 1, second));
    r->ops->extend(source->t, KEY, PIECE, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 2, LONG_US));
    cr_assert(rig_is_pattern(r, 1, 0, 2 * PIECE));
    rig_close(r);
}

static bool has_beats(rig_t *r, int node, int count) { return rig_events(r, node, TR_BEAT) >= count; }

Test(transfer, a_source_with_nothing_to_send_says_that_it_is_alive)
{
    rig_t *r = rig_open(2, 1u << 18, &(transfer_opts_t){.beat_ms = 40});
    node_t *source = &r->nodes[0];
    cr_assert_eq(r->ops->greet(r->nodes[1].t, &source->ref), HEDDLE_OK);
    rig_pass(r, 200000);
    cr_assert_eq(rig_events(r, 1, TR_BEAT), 0, "nothing asked, nothing said");
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, has_beats, 1, 4, LONG_US));
    cr_assert_eq(r->nodes[1].events[0].token, source->ref.token);
    r->ops->extend(source->t, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    int beats = rig_events(r, 1, TR_BEAT);
    rig_pass(r, 200000);
    cr_assert_leq(rig_events(r, 1, TR_BEAT), beats + 1, "and nothing after");
    cr_assert_geq(rig_counters(r, 0).beats_out, 4);
    cr_assert_geq(rig_counters(r, 1).beats_in, 4);
    rig_close(r);
}

Test(transfer, ranges_beyond_the_region_are_refused)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    node_t *n = &r->nodes[1];
    rig_share_all(r, 0, KEY);
    const uint64_t offsets[] = {(1u << 18) - PIECE + 1, 1u << 18, UINT64_MAX - 10, UINT64_MAX - PIECE + 1};
    for (int i = 0; i < 4; i++) {
        uint64_t ask;
        cr_assert_eq(ask_into(r->ops, n->t, &r->nodes[0].ref, KEY, offsets[i], PIECE, n->region, 0, &ask),
                     HEDDLE_OK);
        cr_assert(rig_until(r, rig_has_events, 1, i + 1, LONG_US));
        const tr_event_t *e = rig_ended(r, 1, ask);
        cr_assert(e->kind == TR_REFUSED && e->err == HEDDLE_ERR_LIMIT);
    }
    cr_assert_eq(rig_counters(r, 0).refused_out, 4);
    cr_assert_eq(rig_counters(r, 1).refused_in, 4);
    rig_close(r);
}

Test(transfer, an_unknown_key_is_held_then_refused)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    rig_share_all(r, 0, KEY);
    uint64_t ask = rig_ask(r, 1, 0, OTHER, 0, PIECE);
    rig_pass(r, 1500000);
    cr_assert_null(rig_ended(r, 1, ask), "held: the source may hear of it after its receivers");
    cr_assert(rig_until(r, rig_has_events, 1, 1, LONG_US));
    cr_assert(rig_ended(r, 1, ask)->kind == TR_REFUSED && rig_ended(r, 1, ask)->err == HEDDLE_ERR_NOT_FOUND);
    rig_close(r);
}

/* The version is announced, and its memory takes longer than an unknown key would be held. */
Test(transfer, an_expected_key_waits_for_its_memory)
{
    rig_t *r = rig_open(2, 1u << 18, &(transfer_opts_t){.beat_ms = 50});
    node_t *source = &r->nodes[0];
    uint64_t early = rig_ask(r, 1, 0, KEY, 0, PIECE); /* before the announcement */
    rig_pass(r, 100000);
    cr_assert_eq(r->ops->expect(source->t, KEY), HEDDLE_OK);
    uint64_t asked = rig_ask(r, 1, 0, KEY, PIECE, PIECE), beyond = 0;
    node_t *receiver = &r->nodes[1];
    cr_assert_eq(
        ask_into(r->ops, receiver->t, &source->ref, KEY, 1u << 18, PIECE, receiver->region, 0, &beyond),
        HEDDLE_OK);
    cr_assert_eq(r->ops->extend(source->t, KEY, 0, PIECE), HEDDLE_ERR_NOT_FOUND, "there is no memory");
    rig_pass(r, EXCHANGE_HOLD_US + 500000);
    cr_assert_not(rig_has_events(r, 1, 1), "all are pending");
    cr_assert_geq(rig_events(r, 1, TR_BEAT), 20, "and the receiver knows it");
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_ERR_USAGE);
    cr_assert_eq(r->ops->extend(source->t, KEY, 0, 2 * PIECE), HEDDLE_OK);
    cr_assert_eq(r->ops->expect(source->t, KEY), HEDDLE_OK, "which changes nothing");
    cr_assert(rig_until(r, rig_has_events, 1, 3, LONG_US));
    cr_assert_eq(rig_ended(r, 1, early)->kind, TR_ARRIVED);
    cr_assert_eq(rig_ended(r, 1, asked)->kind, TR_ARRIVED);
    cr_assert(rig_is_pattern(r, 1, 0, 2 * PIECE));
    cr_assert_eq(rig_ended(r, 1, beyond)->err, HEDDLE_ERR_LIMIT, "its size is known now");
    rig_close(r);
}

/* The version was given up: its receivers ask another source, and not at the end of a deadline. */
Test(transfer, a_key_that_is_expected_no_more_is_refused_at_once)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    rig_connect(r, OTHER);
    cr_assert_eq(r->ops->expect(r->nodes[0].t, KEY), HEDDLE_OK);
    uint64_t asked = rig_ask(r, 1, 0, KEY, 0, PIECE);
    rig_pass(r, 50000);
    cr_assert_null(rig_ended(r, 1, asked));
    r->ops->unshare(r->nodes[0].t, KEY);
    uint64_t late = rig_ask(r, 1, 0, KEY, 0, PIECE), before = clock_now(&r->clock);
    cr_assert(rig_until(r, rig_has_events, 1, 2, LONG_US));
    cr_assert(!r->is_mem || r->now_us - before < 100000);
    cr_assert_eq(rig_ended(r, 1, asked)->err, HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(rig_ended(r, 1, late)->err, HEDDLE_ERR_NOT_FOUND);
    rig_close(r);
}

/* Memory in the making is progress, as bytes are. */
Test(transfer, a_source_that_gets_no_further_with_its_memory_says_so)
{
    rig_t *r = rig_open(2, 1u << 18, &(transfer_opts_t){.serve_deadline_ms = 300, .beat_ms = 50});
    node_t *source = &r->nodes[0];
    cr_assert_eq(r->ops->expect(source->t, KEY), HEDDLE_OK);
    uint64_t ask = rig_ask(r, 1, 0, KEY, 0, PIECE);
    for (int i = 0; i < 6; i++) {
        rig_pass(r, 100000);
        cr_assert_eq(r->ops->expect(source->t, KEY), HEDDLE_OK);
    }
    cr_assert_null(rig_ended(r, 1, ask));
    cr_assert(rig_until(r, rig_has_events, 1, 1, LONG_US));
    cr_assert(rig_ended(r, 1, ask)->kind == TR_REFUSED && rig_ended(r, 1, ask)->err == HEDDLE_ERR_AGAIN);
    rig_close(r);
}

static share_key_t numbered_key(uint32_t i)
{
    share_key_t key = {{9}};
    memcpy(key.b + 1, &i, sizeof i);
    return key;
}

Test(transfer, so_many_keys_can_be_expected)
{
    rig_t *r = rig_open(1, 4096, NULL);
    node_t *n = &r->nodes[0];
    for (uint32_t i = 0; i < EXCHANGE_EXPECTED_MAX; i++)
        cr_assert_eq(r->ops->expect(n->t, numbered_key(i)), HEDDLE_OK);
    cr_assert_eq(r->ops->expect(n->t, numbered_key(0)), HEDDLE_OK, "again");
    cr_assert_eq(r->ops->expect(n->t, KEY), HEDDLE_ERR_LIMIT);
    cr_assert_eq(r->ops->share(n->t, n->region, KEY), HEDDLE_OK, "what has memory is served all the same");
    cr_assert_eq(r->ops->share(n->t, n->region, numbered_key(0)), HEDDLE_OK);
    cr_assert_eq(r->ops->expect(n->t, OTHER), HEDDLE_OK, "one came to be shared");
    cr_assert_eq(r->ops->expect(n->t, numbered_key(UINT32_MAX)), HEDDLE_ERR_LIMIT);
    r->ops->unshare(n->t, numbered_key(1));
    cr_assert_eq(r->ops->expect(n->t, numbered_key(UINT32_MAX)), HEDDLE_OK, "one has ended");
    rig_close(r);
}

Test(transfer, unshare_refuses_what_stands_and_what_comes)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    node_t *source = &r->nodes[0];
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    uint64_t standing = rig_ask(r, 1, 0, KEY, 0, PIECE);
    rig_pass(r, 50000);
    r->ops->unshare(source->t, KEY);
    r->ops->unshare(source->t, KEY);
    cr_assert(rig_until(r, rig_has_events, 1, 1, LONG_US));
    cr_assert_eq(rig_ended(r, 1, standing)->err, HEDDLE_ERR_NOT_FOUND);
    uint64_t held = rig_ask(r, 1, 0, OTHER, PIECE, PIECE), late = rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_events, 1, 2, LONG_US));
    const tr_event_t *of_held = rig_ended(r, 1, held), *of_late = rig_ended(r, 1, late);
    cr_assert(of_late && (!of_held || of_late < of_held), "a key that was unshared here is not held");
    cr_assert_eq(of_late->err, HEDDLE_ERR_NOT_FOUND);
    /* The same key again: a slot that got the same version back. */
    rig_share_all(r, 0, OTHER);
    rig_share_all(r, 0, KEY);
    uint64_t again = rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_events, 1, 4, LONG_US));
    cr_assert_eq(rig_ended(r, 1, again)->kind, TR_ARRIVED);
    rig_close(r);
}

static bool has_stuck(rig_t *r, int node, int unused)
{
    (void)unused;
    uint64_t before = rig_counters(r, node).data_out;
    rig_pass(r, 30000);
    return rig_counters(r, node).data_out == before;
}

#define BIG (32u << 20) /* more than the sockets between two processes take */
#define BIG_ASKS (BIG / LIMIT_CHUNK_MAX_BYTES)

/* Node 1 asks for all of node 0's region and is then still: the carrier fills up, sends stay in flight. */
static void fill_up(rig_t *r, uint64_t asks[BIG_ASKS])
{
    rig_connect(r, KEY);
    r->nodes[1].still = true; /* every 16 asks are a frame, sent when the last was asked */
    for (uint32_t i = 0; i < BIG_ASKS; i++)
        asks[i] = rig_ask(r, 1, 0, KEY, (uint64_t)i * LIMIT_CHUNK_MAX_BYTES, LIMIT_CHUNK_MAX_BYTES);
    cr_assert(rig_until(r, rig_was_asked, 0, 1 + BIG_ASKS, LONG_US));
    cr_assert(rig_until(r, has_stuck, 0, 0, LONG_US));
    cr_assert_lt(rig_counters(r, 0).bytes_out, BIG, "the test needs sends in flight");
}

/* What unshare promises: whatever happens to the region after it, no peer gets a byte of that. */
Test(transfer, after_unshare_the_region_may_be_written)
{
    static uint64_t asks[BIG_ASKS];
    rig_t *r = rig_open(2, BIG, NULL);
    fill_up(r, asks);
    r->ops->unshare(r->nodes[0].t, KEY);
    memset(r->nodes[0].region->base, 0, BIG);
    r->nodes[1].still = false;
    cr_assert(rig_until(r, rig_has_events, 1, BIG_ASKS, LONG_US), "each ask ends: arrived or refused");
    int arrived = 0;
    for (uint32_t i = 0; i < BIG_ASKS; i++) {
        if (rig_ended(r, 1, asks[i])->kind != TR_ARRIVED) continue;
        cr_assert(rig_is_pattern(r, 1, (uint64_t)i * LIMIT_CHUNK_MAX_BYTES, LIMIT_CHUNK_MAX_BYTES), "ask %u",
                  i);
        arrived++;
    }
    cr_assert(arrived > 0 && arrived < (int)BIG_ASKS, "%d arrived", arrived);
    rig_close(r);
}

Test(transfer, a_receiver_that_takes_nothing_is_dropped_by_the_source)
{
    static uint64_t asks[BIG_ASKS];
    rig_t *r = rig_open(2, BIG, &(transfer_opts_t){.serve_deadline_ms = 3000});
    fill_up(r, asks);
    r->ops->unshare(r->nodes[0].t, KEY);
    cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US));
    /* The receiver may see no sign of that.  What it requests then is not answered, and it finds out by its
     * own deadline, though it has taken its requests back. */
    r->nodes[1].still = false;
    for (uint32_t i = 0; i < BIG_ASKS; i++) r->ops->drop_ask(r->nodes[1].t, asks[i]);
    cr_assert(rig_until(r, rig_has_gone, 1, 1, LONG_US));
    rig_pass(r, 1000); /* and that was seen */
    r->nodes[0].count = r->nodes[1].count = 0;
    rig_share_all(r, 0, OTHER);
    rig_ask(r, 1, 0, OTHER, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    rig_close(r);
}

/* The source has no room to send more, and need not any more.  A node that stood still for longer than the
 * deadline would give the other one up itself: so a slow machine gets a longer one. */
Test(transfer, a_receiver_that_takes_back_what_it_requested_stays)
{
    static uint64_t asks[BIG_ASKS];
    uint32_t deadline_ms = 500;
    int gone;
    rig_t *r = NULL;
    do {
        if (r) rig_close(r);
        deadline_ms *= 2;
        r = rig_open(2, BIG, &(transfer_opts_t){.serve_deadline_ms = deadline_ms});
        fill_up(r, asks);
        r->nodes[1].still = false;
        for (uint32_t i = 0; i < BIG_ASKS; i++) r->ops->drop_ask(r->nodes[1].t, asks[i]);
        rig_pass(r, deadline_ms * 2000ull);
        gone = rig_events(r, 0, TR_PEER_GONE) + rig_events(r, 1, TR_PEER_GONE);
    } while (gone && deadline_ms < 8000);
    cr_assert_eq(gone, 0);
    r->nodes[0].count = r->nodes[1].count = 0;
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    rig_close(r);
}

/* All that was requested has come, or was refused. */
Test(transfer, a_connection_that_owes_nothing_stays)
{
    rig_t *r = rig_open(2, 1u << 20, &(transfer_opts_t){.serve_deadline_ms = 300});
    rig_connect(r, KEY);
    rig_pass(r, 1000000);
    cr_assert_eq(rig_events(r, 0, TR_PEER_GONE) + rig_events(r, 1, TR_PEER_GONE), 0);
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    rig_pass(r, 1000000);
    r->ops->unshare(r->nodes[0].t, KEY);
    uint64_t refused = rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_events, 1, 2, LONG_US));
    cr_assert_eq(rig_ended(r, 1, refused)->kind, TR_REFUSED);
    rig_pass(r, 1000000);
    cr_assert_eq(rig_events(r, 0, TR_PEER_GONE) + rig_events(r, 1, TR_PEER_GONE), 0);
    rig_close(r);
}

/* As a process that was stopped, or whose loop had nothing to do. */
Test(transfer, who_did_nothing_for_long_blames_nobody_for_what_it_sends_then)
{
    rig_t *r = rig_open(2, LIMIT_ASK_RANGES * PIECE, &(transfer_opts_t){.serve_deadline_ms = 1500});
    rig_stand_still(r, 2000000);
    rig_connect(r, KEY);
    rig_stand_still(r, 2000000);
    for (uint32_t i = 0; i < LIMIT_ASK_RANGES; i++) /* so many are sent at once */
        rig_ask(r, 1, 0, KEY, i * PIECE, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, LIMIT_ASK_RANGES, LONG_US));
    cr_assert_eq(rig_events(r, 1, TR_PEER_GONE), 0);
    rig_close(r);
}

Test(transfer, a_source_that_gets_no_further_says_so)
{
    rig_t *r = rig_open(2, 1u << 18, &(transfer_opts_t){.serve_deadline_ms = 300, .beat_ms = 50});
    node_t *source = &r->nodes[0];
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    uint64_t ask = rig_ask(r, 1, 0, KEY, PIECE, PIECE);
    for (int i = 0; i < 4; i++) {
        rig_pass(r, 100000);
        r->ops->extend(source->t, KEY, (uint64_t)i * 4096, 4096); /* it gets on: no reason to refuse */
    }
    cr_assert_null(rig_ended(r, 1, ask));
    cr_assert(rig_until(r, rig_has_events, 1, 1, LONG_US));
    cr_assert(rig_ended(r, 1, ask)->kind == TR_REFUSED && rig_ended(r, 1, ask)->err == HEDDLE_ERR_AGAIN);
    rig_close(r);
}

Test(transfer, a_dropped_ask_that_stood_is_taken_back)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    node_t *source = &r->nodes[0], *receiver = &r->nodes[1];
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    uint64_t dropped = rig_ask(r, 1, 0, KEY, 0, PIECE), kept = rig_ask(r, 1, 0, KEY, PIECE, PIECE);
    rig_pass(r, 50000);
    r->ops->drop_ask(receiver->t, dropped);
    r->ops->drop_ask(receiver->t, dropped);
    rig_pass(r, 50000);
    r->ops->extend(source->t, KEY, 0, 2 * PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    cr_assert_eq(rig_ended(r, 1, kept)->kind, TR_ARRIVED);
    cr_assert_null(rig_ended(r, 1, dropped), "no event follows");
    cr_assert_eq(rig_counters(r, 1).data_in, 1);
    cr_assert_eq(rig_counters(r, 1).late, 0);
    cr_assert(rig_is_all(r, 1, 0, 0, PIECE));
    rig_close(r);
}

static bool is_idle(rig_t *r, int node, int unused)
{
    (void)unused;
    return r->ops->idle(r->nodes[node].t, r->nodes[node].region);
}

static bool has_late(rig_t *r, int node, int count) { return rig_counters(r, node).late >= (uint64_t)count; }

Test(transfer, a_reused_destination_sees_no_late_write)
{
    const int count = 16;
    rig_t *r = rig_open(2, 1u << 20, NULL);
    node_t *receiver = &r->nodes[1];
    rig_connect(r, KEY);
    uint64_t asks[16];
    for (int i = 0; i < count; i++) asks[i] = rig_ask(r, 1, 0, KEY, (uint64_t)i * PIECE, PIECE);
    receiver->still = true;
    cr_assert(rig_until(r, rig_was_asked, 0, 1 + count, LONG_US));
    cr_assert(rig_until(r, has_stuck, 0, 0, LONG_US));
    for (int i = 0; i < count; i++) r->ops->drop_ask(receiver->t, asks[i]);
    cr_assert(is_idle(r, 1, 0), "nothing was open yet");
    memset(receiver->region->base, 0xee, receiver->region->bytes);
    receiver->still = false;
    cr_assert(rig_until(r, has_late, 1, count, LONG_US));
    cr_assert(rig_is_all(r, 1, 0xee, 0, 1u << 20));
    cr_assert_eq(rig_events(r, 1, TR_ARRIVED), 0);
    cr_assert(rig_until(r, rig_has_sent, 0, 1 + count, LONG_US), "the source's sends end too");
    rig_close(r);
}

Test(transfer, asks_dropped_at_any_moment_leave_an_idle_region)
{
    rig_t *r = rig_open(2, 4u << 20, NULL);
    node_t *receiver = &r->nodes[1];
    rig_share_all(r, 0, KEY);
    for (int round = 0; round < 30; round++) {
        uint64_t asks[16];
        for (int i = 0; i < 16; i++)
            asks[i] = rig_ask(r, 1, 0, KEY, (uint64_t)i * LIMIT_CHUNK_MAX_BYTES, LIMIT_CHUNK_MAX_BYTES);
        for (int i = 0; i < round % 10; i++) rig_turn(r);
        for (int i = 0; i < 16; i++) r->ops->drop_ask(receiver->t, asks[i]);
        cr_assert(rig_until(r, is_idle, 1, 0, LONG_US));
        memset(receiver->region->base, round, receiver->region->bytes);
        rig_pass(r, 3000);
        cr_assert(rig_is_all(r, 1, (uint8_t)round, 0, 4u << 20), "round %d", round);
        receiver->count = 0;
    }
    rig_close(r);
}

/* Every ask ends before TR_PEER_GONE, and nothing of that peer comes after it. */
static void assert_ended_in_order(const rig_t *r, int node, uint64_t token, int asks)
{
    const node_t *n = &r->nodes[node];
    int ended = 0, gone = 0;
    for (int i = 0; i < n->count; i++) {
        const tr_event_t *e = &n->events[i];
        if (e->token != token || e->kind == TR_BEAT) continue;
        cr_assert_eq(gone, 0, "an event after TR_PEER_GONE");
        if (e->kind == TR_PEER_GONE) gone++;
        else ended++;
        if (e->kind == TR_REFUSED) cr_assert_eq(e->err, HEDDLE_ERR_GONE);
    }
    cr_assert_eq(gone, 1);
    cr_assert_eq(ended, asks);
}

Test(transfer, a_dropped_peer_ends_its_asks_and_may_come_back)
{
    rig_t *r = rig_open(2, 1u << 20, NULL);
    node_t *source = &r->nodes[0], *receiver = &r->nodes[1];
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    for (int i = 0; i < 16; i++) rig_ask(r, 1, 0, KEY, (uint64_t)i * PIECE, PIECE);
    rig_pass(r, 50000);
    r->ops->drop_peer(receiver->t, source->ref.token);
    r->ops->drop_peer(receiver->t, source->ref.token);
    uint64_t ask;
    cr_assert_eq(ask_into(r->ops, receiver->t, &source->ref, KEY, 0, PIECE, receiver->region, 0, &ask),
                 HEDDLE_ERR_GONE, "not before the events were seen");
    r->ops->extend(source->t, KEY, 0, 1u << 20);
    cr_assert(rig_until(r, rig_has_gone, 1, 1, LONG_US));
    assert_ended_in_order(r, 1, source->ref.token, 16);
    cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US), "the other end sees it too");
    cr_assert(rig_until(r, is_idle, 1, 0, LONG_US));
    cr_assert(rig_is_all(r, 1, 0, 0, 1u << 20));
    receiver->count = source->count = 0;
    for (int i = 0; i < 16; i++) rig_ask(r, 1, 0, KEY, (uint64_t)i * PIECE, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 16, LONG_US));
    cr_assert(rig_is_pattern(r, 1, 0, 1u << 20));
    rig_close(r);
}

Test(transfer, a_peer_that_comes_back_before_its_end_was_seen_is_served)
{
    rig_t *r = rig_open(2, 1u << 20, NULL);
    node_t *source = &r->nodes[0], *receiver = &r->nodes[1];
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    r->ops->extend(source->t, KEY, 0, PIECE);
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US), "they are connected");
    source->still = true;
    r->ops->drop_peer(receiver->t, source->ref.token);
    cr_assert(rig_until(r, rig_has_gone, 1, 1, LONG_US));
    rig_pass(r, 1000); /* and that was seen */
    receiver->count = 0;
    for (int i = 0; i < 16; i++) rig_ask(r, 1, 0, KEY, (uint64_t)i * PIECE, PIECE);
    rig_pass(r, 20000);
    source->still = false;
    r->ops->extend(source->t, KEY, 0, 1u << 20);
    cr_assert(rig_until(r, rig_has_arrived, 1, 16, LONG_US));
    cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US), "the old connection's end");
    cr_assert(rig_is_pattern(r, 1, 0, 1u << 20));
    rig_close(r);
}

Test(transfer, a_stopped_source_is_no_event_and_can_be_dropped)
{
    rig_t *r = rig_open(2, 1u << 20, NULL);
    node_t *source = &r->nodes[0], *receiver = &r->nodes[1];
    rig_connect(r, KEY);
    source->still = true;
    for (int i = 0; i < 16; i++) rig_ask(r, 1, 0, KEY, (uint64_t)i * PIECE, PIECE);
    rig_pass(r, 300000);
    cr_assert_eq(receiver->count, 0, "nobody but the caller's deadline tells");
    r->ops->drop_peer(receiver->t, source->ref.token);
    cr_assert(rig_until(r, rig_has_gone, 1, 1, LONG_US));
    assert_ended_in_order(r, 1, source->ref.token, 16);
    cr_assert(rig_until(r, is_idle, 1, 0, LONG_US));
    memset(receiver->region->base, 0xee, receiver->region->bytes);
    source->still = false;
    cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US));
    rig_pass(r, 50000);
    cr_assert(rig_is_all(r, 1, 0xee, 0, 1u << 20), "no byte after the drop");
    rig_close(r);
}

Test(transfer, a_closed_transfer_is_gone_for_its_peers)
{
    rig_t *r = rig_open(3, 1u << 20, NULL);
    cr_assert_eq(r->ops->share(r->nodes[0].t, r->nodes[0].region, KEY), HEDDLE_OK);
    for (int i = 0; i < 8; i++) {
        rig_ask(r, 1, 0, KEY, (uint64_t)i * PIECE, PIECE);
        rig_ask(r, 2, 0, KEY, (uint64_t)i * PIECE, PIECE);
    }
    rig_pass(r, 50000);
    rig_close_node(r, 0);
    for (int i = 1; i <= 2; i++) {
        cr_assert(rig_until(r, rig_has_gone, i, 1, LONG_US));
        assert_ended_in_order(r, i, r->nodes[0].ref.token, 8);
    }
    rig_close(r);
}

Test(transfer, both_ends_ask_each_other)
{
    rig_t *r = rig_open(2, 1u << 20, NULL);
    memcpy(r->nodes[1].region->base, r->nodes[0].region->base, 1u << 19); /* each has one half */
    memset(r->nodes[0].region->base, 0, 1u << 19);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(r->ops->share(r->nodes[i].t, r->nodes[i].region, KEY), HEDDLE_OK);
    cr_assert_eq(r->ops->extend(r->nodes[0].t, KEY, 1u << 19, 1u << 19), HEDDLE_OK);
    cr_assert_eq(r->ops->extend(r->nodes[1].t, KEY, 0, 1u << 19), HEDDLE_OK);
    for (int i = 0; i < 8; i++) {
        rig_ask(r, 0, 1, KEY, (uint64_t)i * PIECE, PIECE);
        rig_ask(r, 1, 0, KEY, (1u << 19) + (uint64_t)i * PIECE, PIECE);
    }
    cr_assert(rig_until(r, rig_has_arrived, 0, 8, LONG_US));
    cr_assert(rig_until(r, rig_has_arrived, 1, 8, LONG_US));
    for (int i = 0; i < 2; i++) cr_assert(rig_is_pattern(r, i, 0, 1u << 20));
    r->ops->drop_peer(r->nodes[0].t, r->nodes[1].ref.token);
    cr_assert(rig_until(r, rig_has_gone, 1, 1, LONG_US));
    rig_close(r);
}

Test(transfer, greetings_at_once_and_twice_make_one_connection)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(r->ops->greet(r->nodes[0].t, &r->nodes[1].ref), HEDDLE_OK);
        cr_assert_eq(r->ops->greet(r->nodes[1].t, &r->nodes[0].ref), HEDDLE_OK);
    }
    rig_pass(r, 50000);
    rig_share_all(r, 0, KEY);
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    r->ops->drop_peer(r->nodes[1].t, r->nodes[0].ref.token);
    cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US) && rig_until(r, rig_has_gone, 1, 1, LONG_US));
    rig_pass(r, 50000);
    cr_assert_eq(rig_events(r, 0, TR_PEER_GONE) + rig_events(r, 1, TR_PEER_GONE), 2);
    rig_close(r);
}

Test(transfer, one_source_serves_many)
{
    rig_t *r = rig_open(5, 1u << 20, NULL);
    rig_share_all(r, 0, KEY);
    for (int by = 1; by < 5; by++)
        for (int i = 0; i < 16; i++) rig_ask(r, by, 0, KEY, (uint64_t)i * PIECE, PIECE);
    for (int by = 1; by < 5; by++) {
        cr_assert(rig_until(r, rig_has_arrived, by, 16, LONG_US));
        cr_assert(rig_is_pattern(r, by, 0, 1u << 20));
    }
    cr_assert(rig_until(r, rig_has_sent, 0, 64, LONG_US));
    rig_close(r);
}

/* Each node extends its own share by what arrived. */
Test(transfer, a_chain_relays_while_it_receives)
{
    rig_t *r = rig_open(4, 1u << 20, NULL);
    uint64_t asks[4][16];
    int seen[4] = {0};
    rig_share_all(r, 0, KEY);
    for (int by = 1; by < 4; by++) {
        cr_assert_eq(r->ops->share(r->nodes[by].t, r->nodes[by].region, KEY), HEDDLE_OK);
        for (int i = 0; i < 16; i++) asks[by][i] = rig_ask(r, by, by - 1, KEY, (uint64_t)i * PIECE, PIECE);
    }
    while (!rig_has_arrived(r, 3, 16)) {
        rig_turn(r);
        for (int by = 1; by < 4; by++) {
            for (; seen[by] < r->nodes[by].count; seen[by]++) {
                const tr_event_t *e = &r->nodes[by].events[seen[by]];
                for (int i = 0; e->kind == TR_ARRIVED && i < 16; i++)
                    if (asks[by][i] == e->ask)
                        r->ops->extend(r->nodes[by].t, KEY, (uint64_t)i * PIECE, PIECE);
            }
        }
    }
    for (int by = 1; by < 4; by++) cr_assert(rig_is_pattern(r, by, 0, 1u << 20));
    rig_close(r);
}

Test(transfer, more_asks_than_the_window_all_arrive)
{
    const int count = LIMIT_ASKS_PER_PEER;
    rig_t *r = rig_open(2, (size_t)count * 4096, NULL);
    node_t *n = &r->nodes[1];
    rig_share_all(r, 0, KEY);
    for (int i = 0; i < count; i++) rig_ask(r, 1, 0, KEY, (uint64_t)i * 4096, 4096);
    uint64_t ask;
    cr_assert_eq(ask_into(r->ops, n->t, &r->nodes[0].ref, KEY, 0, 4096, n->region, 0, &ask), HEDDLE_ERR_SLOW);
    cr_assert(rig_until(r, rig_has_arrived, 1, count, LONG_US));
    cr_assert(rig_is_pattern(r, 1, 0, (uint64_t)count * 4096));
    rig_ask(r, 1, 0, KEY, 0, 4096);
    cr_assert(rig_until(r, rig_has_arrived, 1, count + 1, LONG_US));
    rig_close(r);
}

/* A receiver that has lost count, or does not care: what it asks beyond the limit is refused by name, or not
 * answered when it is far beyond; what it asked before stands. */
Test(transfer, a_receiver_that_asks_too_much_is_refused)
{
    rig_t *r = rig_open(2, 2u << 20, &(transfer_opts_t){.serve_deadline_ms = 15000});
    node_t *source = &r->nodes[0];
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    const int limit = LIMIT_ASKS_PER_PEER, beyond = 64, silent = 40;
    for (int i = 0; i < limit; i++) rig_ask(r, 1, 0, KEY, (uint64_t)i * 1024, 1024);
    cr_assert(rig_until(r, rig_was_asked, 0, limit, LONG_US));
    conn_t *p = r->nodes[1].t->x->conns;
    p->asks_open -= (uint32_t)limit;
    uint64_t refused[64 + 40];
    for (int i = 0; i < beyond + silent; i++) refused[i] = rig_ask(r, 1, 0, KEY, 0, 1024);
    p->asks_open += (uint32_t)limit;
    source->still = true; /* all of them are there before it answers the first */
    rig_pass(r, 50000);
    source->still = false;
    cr_assert(rig_until(r, rig_has_events, 1, beyond, LONG_US));
    rig_pass(r, 50000);
    for (int i = 0; i < beyond + silent; i++) {
        const tr_event_t *e = rig_ended(r, 1, refused[i]);
        cr_assert(e ? e->kind == TR_REFUSED && e->err == HEDDLE_ERR_LIMIT : i >= beyond, "ask %d", i);
    }
    cr_assert_eq(rig_events(r, 1, TR_ARRIVED), 0);
    r->ops->extend(source->t, KEY, 0, 2u << 20);
    cr_assert(rig_until(r, rig_has_arrived, 1, limit, LONG_US), "what was within the limit stands");
    rig_close(r);
}

/* The source gives up a receiver that stands still, and writes something else where the bytes were: what
 * still arrives there is what it was, or nothing does. */
Test(transfer, what_arrives_late_is_what_was_asked_for)
{
    rig_t *r = rig_open(2, 1u << 20, NULL);
    rig_share_all(r, 0, KEY);
    rig_ask(r, 1, 0, KEY, 0, 1);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    node_t *source = &r->nodes[0], *receiver = &r->nodes[1];
    uint64_t asks[16];
    source->still = true;
    for (int i = 0; i < 16; i++) asks[i] = rig_ask(r, 1, 0, KEY, (uint64_t)i * PIECE, PIECE);
    rig_pass(r, 20000);
    receiver->still = true, source->still = false;
    rig_pass(r, 50000);
    r->ops->drop_peer(source->t, receiver->ref.token);
    r->ops->unshare(source->t, KEY);
    memset(source->region->base, 0xdd, 1u << 20);
    receiver->still = false;
    cr_assert(rig_until(r, rig_has_events, 1, 1 + 16 + 1, LONG_US));
    for (int i = 0; i < 16; i++) {
        const tr_event_t *e = rig_ended(r, 1, asks[i]);
        cr_assert_not_null(e);
        if (e->kind == TR_ARRIVED) cr_assert(rig_is_pattern(r, 1, (uint64_t)i * PIECE, PIECE), "piece %d", i);
        else cr_assert(e->kind == TR_REFUSED && e->err == HEDDLE_ERR_GONE);
    }
    cr_assert(rig_until(r, is_idle, 1, 0, LONG_US));
    rig_close(r);
}

/* 4 MB at 10 MB/s take at least 0.3 s, whoever of the two is limited: a bucket of 50 ms goes at once, and
 * may be full again soon. */
static void assert_rate(uint64_t source_rate, uint64_t receiver_rate)
{
    rig_t *r = rig_open(2, 4u << 20, &(transfer_opts_t){.beat_ms = 20});
    r->ops->set_rate(r->nodes[0].t, source_rate);
    r->ops->set_rate(r->nodes[1].t, receiver_rate);
    rig_share_all(r, 0, KEY);
    uint64_t begun = r->is_mem ? r->now_us : clock_now(clock_system());
    for (int i = 0; i < 64; i++) rig_ask(r, 1, 0, KEY, (uint64_t)i * PIECE, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 64, LONG_US));
    uint64_t took = (r->is_mem ? r->now_us : clock_now(clock_system())) - begun;
    cr_assert_geq(took, 300000, "%llu us", (unsigned long long)took);
    if (r->is_mem) cr_assert_leq(took, 425000, "%llu us", (unsigned long long)took);
    cr_assert_geq(rig_events(r, 1, TR_ARRIVED), 64);
    cr_assert(rig_is_pattern(r, 1, 0, 4u << 20));
    rig_close(r);
}

Test(transfer, a_limited_source_keeps_its_rate) { assert_rate(10000000, 0); }
Test(transfer, a_limited_receiver_keeps_its_rate) { assert_rate(0, 10000000); }

static bool have_arrived(rig_t *r, int count, int unused)
{
    (void)unused;
    return rig_has_arrived(r, 0, count) && rig_has_arrived(r, 1, count);
}

/* What a limited node serves does not slow down what it fetches, as of a relay.  4 MB each way at 10 MB/s. */
Test(transfer, a_rate_counts_each_way_by_itself)
{
    rig_t *r = rig_open(2, 8u << 20, &(transfer_opts_t){.beat_ms = 20});
    rig_connect(r, KEY);
    rig_share_all(r, 1, OTHER);
    r->ops->set_rate(r->nodes[1].t, 10000000);
    uint64_t begun = r->is_mem ? r->now_us : clock_now(clock_system());
    for (int i = 0; i < 64; i++) {
        rig_ask(r, 1, 0, KEY, (uint64_t)i * PIECE, PIECE);
        rig_ask(r, 0, 1, OTHER, (uint64_t)(64 + i) * PIECE, PIECE);
    }
    cr_assert(rig_until(r, have_arrived, 64, 0, LONG_US));
    uint64_t took = (r->is_mem ? r->now_us : clock_now(clock_system())) - begun;
    cr_assert_geq(took, 300000, "%llu us", (unsigned long long)took);
    if (r->is_mem) cr_assert_leq(took, 425000, "%llu us", (unsigned long long)took);
    rig_close(r);
}

Test(transfer, who_waits_for_a_rate_is_alive)
{
    for (int limited = 0; limited < 2; limited++) {
        rig_t *r = rig_open(2, 1u << 20, &(transfer_opts_t){.beat_ms = 20});
        r->ops->set_rate(r->nodes[limited].t, 200000); /* a piece in 330 ms */
        rig_share_all(r, 0, KEY);
        for (int i = 0; i < 4; i++) rig_ask(r, 1, 0, KEY, (uint64_t)i * PIECE, PIECE);
        cr_assert(rig_until(r, has_beats, 1, 8, LONG_US), "limited: node %d", limited);
        cr_assert_lt(rig_events(r, 1, TR_ARRIVED), 4);
        rig_close(r);
    }
}

Test(transfer, a_new_token_lets_transfers_finish_and_then_counts)
{
    rig_t *r = rig_open(2, 1u << 20, NULL);
    node_t *source = &r->nodes[0], *receiver = &r->nodes[1];
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    rig_pass(r, 50000);
    r->ops->set_token(receiver->t, 900);
    r->ops->set_token(source->t, 901);
    rig_pass(r, 1500000);
    cr_assert_eq(receiver->count - rig_events(r, 1, TR_BEAT), 0, "an open ask keeps its connection");
    r->ops->extend(source->t, KEY, 0, 1u << 20);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    cr_assert(rig_until(r, rig_has_gone, 1, 1, LONG_US) && rig_until(r, rig_has_gone, 0, 1, LONG_US),
              "then it goes");
    cr_assert_eq(source->events[source->count - 1].token, 102);
    source->ref.token = 901;
    rig_ask(r, 1, 0, KEY, PIECE, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 2, LONG_US));
    receiver->ref.token = 900;
    cr_assert_eq(r->ops->greet(source->t, &receiver->ref), HEDDLE_OK);
    r->ops->drop_peer(source->t, 900);
    cr_assert(rig_until(r, rig_has_gone, 1, 2, LONG_US));
    cr_assert_eq(receiver->events[receiver->count - 1].token, 901);
    rig_close(r);
}

Test(transfer, without_a_token_nobody_is_asked)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    r->ops->set_token(r->nodes[1].t, 0);
    uint64_t ask;
    cr_assert_eq(
        ask_into(r->ops, r->nodes[1].t, &r->nodes[0].ref, KEY, 0, PIECE, r->nodes[1].region, 0, &ask),
        HEDDLE_ERR_AGAIN);
    rig_close(r);
}

Test(transfer, it_sleeps_when_nothing_is_to_be_done)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    rig_share_all(r, 0, KEY);
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    rig_pass(r, 50000);
    int armed = 0;
    for (int i = 0; i < 50; i++) {
        rig_turn(r);
        armed += r->ops->arm(r->nodes[0].t) && r->ops->arm(r->nodes[1].t);
    }
    cr_assert_gt(armed, 40, "armed %d times in 50", armed);
    char list[64];
    r->ops->devices(r->nodes[0].t, list, sizeof list);
    cr_assert_gt(strlen(list), 0);
    rig_close(r);
}

Test(transfer, a_region_is_seen_through_its_view)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    rig_share_all(r, 0, KEY);
    region_t *to = r->nodes[1].region;
    cr_assert_eq(memory_region_view(to->own, NULL), HEDDLE_OK);
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    cr_assert_eq(memcmp(to->own->view, r->nodes[0].region->base, PIECE), 0);
    rig_close(r);
}

/* One turn of the source; what it sent is on its way and, by itself, it does nothing more. */
Test(transfer, what_a_turn_sends_last_is_on_its_way_before_the_sleep)
{
    if (rig_is_rendezvous()) cr_skip_test("an answer takes more than one turn");
    rig_t *r = rig_open(2, 1u << 18, NULL);
    node_t *source = &r->nodes[0], *receiver = &r->nodes[1];
    rig_share_all(r, 1, OTHER);
    rig_connect(r, KEY);
    rig_pass(r, 20000);
    source->still = true;
    uint64_t own = rig_ask(r, 0, 1, OTHER, PIECE, PIECE); /* its event fills the turn below */
    tr_event_t e;
    cr_assert_eq(r->ops->events(source->t, clock_now(clock_system()), &e, 1), 0);
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    rig_pass(r, 20000); /* both the answer and the ask lie there */
    for (int turns = 0; r->ops->events(source->t, clock_now(clock_system()), &e, 1) == 0; turns++)
        cr_assert_lt(turns, 1000);
    cr_assert(e.kind == TR_ARRIVED && e.ask == own);
    (void)r->ops->arm(source->t);
    cr_assert(r->is_mem || rig_until(r, rig_has_arrived, 1, 1, LONG_US), "it sleeps on what it owes");
    source->still = false;
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    cr_assert_eq(receiver->events[0].kind, TR_ARRIVED);
    rig_close(r);
}

Test(transfer, two_regions_asked_for_in_turns)
{
    rig_t *r = rig_open(2, 1u << 20, NULL);
    node_t *source = &r->nodes[0];
    heddle_error_t error;
    region_t *other = NULL;
    rig_connect(r, KEY);
    cr_assert_eq(region_new(1u << 20, &other, &error), HEDDLE_OK);
    memset(other->base, 0xa5, other->bytes);
    cr_assert_eq(r->ops->map(source->t, other), HEDDLE_OK);
    cr_assert_eq(r->ops->share(source->t, other, OTHER), HEDDLE_OK);
    cr_assert_eq(r->ops->extend(source->t, OTHER, 0, other->bytes), HEDDLE_OK);
    source->still = true; /* answers them all in one turn */
    for (uint64_t i = 0; i < 16; i++) rig_ask(r, 1, 0, i % 2 ? OTHER : KEY, i * PIECE, PIECE);
    rig_pass(r, 20000);
    source->still = false;
    cr_assert(rig_until(r, rig_has_arrived, 1, 16, LONG_US));
    for (uint64_t i = 0; i < 16; i++)
        cr_assert(i % 2 ? rig_is_all(r, 1, 0xa5, i * PIECE, PIECE) : rig_is_pattern(r, 1, i * PIECE, PIECE),
                  "piece %llu", (unsigned long long)i);
    r->ops->unshare(source->t, OTHER);
    r->ops->unmap(source->t, other);
    region_unref(&other);
    rig_close(r);
}

#ifdef HEDDLE_TEST_BUILD
/* The network has no room for one frame, which goes out later.  Failpoints are read when the plugin is
 * loaded. */
Test(transfer, a_frame_without_room_is_said_later)
{
    char point[32];
    for (unsigned nth = 1; nth <= 8; nth++) {
        pid_t child = fork();
        if (child == 0) {
            rig_in_child = true;
            snprintf(point, sizeof point, "transfer.room=error:%u", nth);
            setenv("HEDDLE_FAILPOINTS", point, 1);
            rig_t *r = rig_open(2, 1u << 20, NULL);
            rig_share_all(r, 0, KEY);
            for (int round = 1; round <= 2; round++) {
                for (uint64_t i = 0; i < 8; i++) rig_ask(r, 1, 0, KEY, i * PIECE, PIECE);
                RIG_CHECK(rig_until(r, rig_has_arrived, 1, 8 * round, 3000000), "frame %u is lost", nth);
            }
            RIG_CHECK(rig_is_pattern(r, 1, 0, 8 * PIECE), "frame %u", nth);
            RIG_CHECK(rig_events(r, 0, TR_PEER_GONE) + rig_events(r, 1, TR_PEER_GONE) == 0, "gone");
            rig_close(r);
            _exit(0);
        }
        int status;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0, "frame %u", nth);
    }
}
#endif
