/* SPDX-License-Identifier: Apache-2.0 */
/* The links of the memory backend (tests/lib/mem.h): what arrives when, on a virtual clock.  Scenarios
 * measure by them, so that their figures are as true as these. */
#include "tests/contract/rig.h"
#include "tests/lib/mem.h"

#include <criterion/criterion.h>

#define PIECE 65536u
#define PIECES 32u
#define BYTES (PIECES * PIECE)
#define RATE 37500000u /* 300 Mbit/s */
#define LONG_US 60000000u

static const share_key_t KEY = {{1, 2, 3, 4}};
static const mem_link_t LINK = {.bytes_per_s = RATE};

static rig_t *r;

/* Nodes that are connected to node 0, on links without a limit so far. */
static void open_nodes(int count)
{
    r = rig_open(count, BYTES, NULL);
    rig_share_all(r, 0, KEY);
    for (int i = 1; i < count; i++) {
        rig_ask(r, i, 0, KEY, 0, 1);
        cr_assert(rig_until(r, rig_has_arrived, i, 1, LONG_US));
        r->nodes[i].count = 0;
    }
}

static void close_nodes(void)
{
    if (r) rig_close(r);
}

TestSuite(links, .fini = close_nodes, .timeout = 60);

static void set_link(int node, mem_link_t link) { mem_set_link(r->nodes[node].t, link); }

static void ask_all(int by, int from)
{
    for (uint64_t i = 0; i < PIECES; i++) rig_ask(r, by, from, KEY, i * PIECE, PIECE);
}

static uint64_t until_all_arrived(int node)
{
    uint64_t start_us = r->now_us;
    cr_assert(rig_until(r, rig_has_arrived, node, PIECES, LONG_US));
    return r->now_us - start_us;
}

/* In multiples of the time that the bytes take on one link. */
static double multiple(uint64_t us) { return (double)us * RATE / 1e6 / BYTES; }

#define CHECK_MULTIPLE(us, expected, slack)                                                                  \
    cr_assert_float_eq(multiple(us), expected, slack, "%.4f times the link's time", multiple(us))
#define FRAMES 0.003 /* frames are carried too; times are whole microseconds */

Test(links, without_a_limit_nothing_takes_time)
{
    open_nodes(2);
    ask_all(1, 0);
    cr_assert_eq(until_all_arrived(1), 0);
}

Test(links, bytes_take_the_time_of_the_rate)
{
    open_nodes(2);
    set_link(0, LINK);
    ask_all(1, 0);
    CHECK_MULTIPLE(until_all_arrived(1), 1.0, FRAMES);
}

Test(links, a_downlink_is_a_limit_too)
{
    open_nodes(2);
    set_link(1, LINK);
    ask_all(1, 0);
    CHECK_MULTIPLE(until_all_arrived(1), 1.0, FRAMES);
}

/* The downlink begins with the first byte of a message. */
Test(links, two_equal_links_in_a_row_take_the_time_of_one)
{
    open_nodes(2);
    set_link(0, LINK);
    set_link(1, LINK);
    ask_all(1, 0);
    CHECK_MULTIPLE(until_all_arrived(1), 1.0, FRAMES);
}

Test(links, the_slower_link_decides)
{
    open_nodes(2);
    set_link(0, (mem_link_t){.bytes_per_s = RATE / 4});
    set_link(1, LINK);
    ask_all(1, 0);
    CHECK_MULTIPLE(until_all_arrived(1), 4.0, 4 * FRAMES);
}

Test(links, two_receivers_share_an_uplink)
{
    open_nodes(3);
    for (int i = 0; i < 3; i++) set_link(i, LINK);
    ask_all(1, 0);
    ask_all(2, 0);
    uint64_t start_us = r->now_us;
    cr_assert(rig_until(r, rig_has_arrived, 1, PIECES / 2, LONG_US));
    cr_assert_geq(rig_events(r, 2, TR_ARRIVED), (int)PIECES / 4, "in turns: %d",
                  rig_events(r, 2, TR_ARRIVED));
    until_all_arrived(1);
    until_all_arrived(2);
    CHECK_MULTIPLE(r->now_us - start_us, 2.0, 2 * FRAMES);
}

Test(links, two_sources_share_a_downlink)
{
    open_nodes(3);
    for (int i = 0; i < 3; i++) set_link(i, LINK);
    rig_share_all(r, 1, KEY);
    ask_all(2, 0);
    for (uint64_t i = 0; i < PIECES; i++) rig_ask(r, 2, 1, KEY, i * PIECE, PIECE);
    uint64_t start_us = r->now_us;
    cr_assert(rig_until(r, rig_has_arrived, 2, 2 * PIECES, LONG_US));
    CHECK_MULTIPLE(r->now_us - start_us, 2.0, 2 * FRAMES);
}

Test(links, each_way_is_a_link_by_itself)
{
    open_nodes(2);
    set_link(0, LINK);
    set_link(1, LINK);
    rig_share_all(r, 1, KEY);
    ask_all(1, 0);
    ask_all(0, 1);
    uint64_t start_us = r->now_us;
    until_all_arrived(1);
    until_all_arrived(0);
    CHECK_MULTIPLE(r->now_us - start_us, 1.0, 2 * FRAMES);
}

/* What the slow one has not taken waits in its own connection, and not on the link. */
Test(links, a_slow_receiver_does_not_hold_up_another)
{
    open_nodes(3);
    set_link(0, LINK);
    set_link(1, (mem_link_t){.bytes_per_s = RATE / 10});
    set_link(2, LINK);
    ask_all(1, 0);
    ask_all(2, 0);
    cr_assert_leq(multiple(until_all_arrived(2)), 1.3);
}

Test(links, latency_is_added_once_a_message)
{
    open_nodes(2);
    set_link(0, (mem_link_t){.latency_us = 700});
    ask_all(1, 0);
    cr_assert_eq(until_all_arrived(1), 700, "all are on the way at the same time");
    set_link(0, (mem_link_t){.bytes_per_s = RATE, .latency_us = 700});
    set_link(1, (mem_link_t){.bytes_per_s = RATE, .latency_us = 5000});
    r->nodes[1].count = 0;
    ask_all(1, 0);
    uint64_t takes_us = until_all_arrived(1) - 5000 - 700;
    CHECK_MULTIPLE(takes_us, 1.0, FRAMES);
}

/* What a stopped process was sent has come by its link when it goes on. */
Test(links, a_link_receives_for_a_process_that_does_not_run)
{
    open_nodes(2);
    set_link(1, LINK);
    ask_all(1, 0);
    rig_turn(r);
    r->nodes[1].still = true;
    rig_pass(r, 1000000ull * 2 * BYTES / RATE);
    r->nodes[1].still = false;
    cr_assert_leq(multiple(until_all_arrived(1)), 0.6, "half was sent before the process had to ask again");
}

Test(links, a_relay_costs_one_piece_a_hop)
{
    enum { HOPS = RIG_NODES };
    open_nodes(HOPS);
    for (int i = 0; i < HOPS; i++) set_link(i, LINK);
    for (int i = 1; i < HOPS; i++) {
        cr_assert_eq(r->ops->share(r->nodes[i].t, r->nodes[i].region, KEY), HEDDLE_OK);
        ask_all(i, i - 1);
    }
    uint64_t start_us = r->now_us;
    int relayed[HOPS] = {0};
    while (rig_events(r, HOPS - 1, TR_ARRIVED) < (int)PIECES) {
        rig_turn(r);
        for (int i = 1; i < HOPS; i++)
            for (; relayed[i] < r->nodes[i].count; relayed[i]++) {
                const tr_event_t *e = &r->nodes[i].events[relayed[i]];
                if (e->kind == TR_ARRIVED) r->ops->extend(r->nodes[i].t, KEY, ~e->cookie, PIECE);
            }
    }
    CHECK_MULTIPLE(r->now_us - start_us, 1.0 + (HOPS - 2.0) / PIECES, 2 * FRAMES);
}
