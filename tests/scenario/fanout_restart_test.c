/* SPDX-License-Identifier: Apache-2.0 */
/* What a broker that is started again costs a version on its way, and faults and members after it. */
#include "tests/scenario/wave.h"

#include <stdio.h>
TestSuite(fanout, .fini = close_world);

static const wave_t *const PLANS[] = {&HALF_WAY, &IN_TREES};
enum { PLAN_COUNT = sizeof PLANS / sizeof *PLANS };

/* ---- a broker that was started again ---- */

static void gets_slow(actor_t *a) { mem_set_link(a->t, (mem_link_t){RATE / 10, LATENCY_US}); }
static void flips_a_bit(actor_t *a) { mem_corrupt_data(a->t, 1, 17); }

/* Long enough that the broker has recorded its workers. */
enum { STANDS_US = 10 * SECOND };

static void restart(uint32_t count)
{
    world_broker_kill(w);
    world_broker_start(w);
    UNTIL(w, LEASE_US, w->broker->members.token_count == count + 1); /* all are back */
}

/* Its workers say from where they fetch.  A fault costs what it costs at any time, and the publisher's uplink
 * carries the bytes once. */
static void check_fault_after(uint32_t restarts, const wave_t *plan, uint32_t which, void (*fault)(actor_t *),
                              double most)
{
    wave_t wave = *plan;
    wave.tensors = 610;
    wave_begin(wave);
    for (uint32_t i = 1; i <= restarts; i++) {
        publisher_sends(0.3 * i / restarts);
        restart(RELAYS);
    }
    actor_t *relay = workers[which];
    fault(relay);
    UNTIL(w, 20 * SECOND, all_hold_but(1, relay));
    double others = took();
    UNTIL(w, 20 * SECOND, !relay->alive || worker_holds(relay, 1));
    double egress = (double)actor_counters(trainer).bytes_out / wave_bytes;
    printf("a fault at number %u after %u restarts: %.3f M/B, %.3f M out of the publisher\n", which, restarts,
           others, egress);
    cr_assert(egress <= 1.05, "%.3f M out of the publisher", egress);
    cr_assert(others <= most, "%.3f", others);
    UNTIL(w, 3 * LEASE_US, world_all_active(w, 1));
    check_settled(w);
    world_destroy(&w);
}

Test(fanout, after_a_restart_of_the_broker_a_fault_costs_what_it_does_at_any_time)
{
    static const uint32_t WHICH[] = {0, 2, 5, 6, 12, 15};
    for (int i = 0; i < PLAN_COUNT * 6; i++) {
        const wave_t *plan = PLANS[i / 6];
        check_fault_after(1, plan, WHICH[i % 6], gets_slow, 1.6);
        check_fault_after(1, plan, WHICH[i % 6], flips_a_bit, 1.1);
        check_fault_after(1, plan, WHICH[i % 6], actor_kill, 1.1);
    }
}

/* The lists of the workers are as old as the transfer. */
Test(fanout, after_several_restarts_of_the_broker_a_fault_costs_what_it_does_at_any_time)
{
    for (int i = 0; i < PLAN_COUNT * 2; i++) {
        uint32_t restarts = 2 + i % 2;
        check_fault_after(restarts, PLANS[i / 2], 5, gets_slow, 1.6);
        check_fault_after(restarts, PLANS[i / 2], 5, flips_a_bit, 1.1);
        check_fault_after(restarts, PLANS[i / 2], 5, actor_kill, 1.1);
    }
}

static const plan_shape_t SHAPES[] = {PLAN_AUTO, PLAN_CHAIN, PLAN_TWO_TREE};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof *SHAPES };

/* The version's record is there, and no worker has had a list. */
Test(fanout, after_a_restart_of_the_broker_those_that_have_not_begun_fetch_as_at_any_time)
{
    for (int i = 0; i < SHAPE_COUNT; i++) {
        wave_t wave = HALF_WAY;
        wave.before_us = STANDS_US;
        wave.shape = SHAPES[i];
        wave_begin(wave);
        UNTIL(w, 10 * SECOND, world_version(w, 1) != NULL);
        restart(RELAYS);
        UNTIL(w, 20 * SECOND, all_hold(1));
        check_uplinks("none had begun", 1.05, 1.05);
        UNTIL(w, 3 * LEASE_US, world_all_active(w, 1));
        check_settled(w);
        world_destroy(&w);
    }
}

static void join_more(uint32_t from, uint32_t count)
{
    for (uint32_t i = from; i < from + count; i++) {
        char name[24];
        snprintf(name, sizeof name, "a-late-%02u", i);
        workers[i] = world_worker(w, name, (worker_conf_t){.link = LINK});
    }
}

/* Four workers fetch the version, or have it, when the broker is started again. */
static void check_joined_after_restart(plan_shape_t shape, bool is_there)
{
    enum { FORMER = 4 };
    wave_t wave = HALF_WAY;
    wave.before_us = STANDS_US;
    wave.shape = shape;
    wave.workers = FORMER;
    wave_begin(wave);
    if (is_there) UNTIL(w, 10 * SECOND, world_all_active(w, 1));
    else publisher_sends(0.5);
    restart(FORMER);
    if (is_there) world_run(w, 3 * LEASE_US);
    start_us = w->now_us;
    join_more(FORMER, RELAYS);
    UNTIL(w, 60 * SECOND, all_hold(1));
    check_uplinks(is_there ? "16 join later" : "16 join", 1.05, 2.1);
    /* By when they join, those that have it already serve one after the other, with or without a restart. */
    cr_assert(took() <= (is_there ? 3 : 1.15), "%.3f", took());
    world_destroy(&w);
}

Test(fanout, after_a_restart_of_the_broker_those_that_join_fetch_from_those_that_were_there)
{
    for (int i = 0; i < SHAPE_COUNT * 2; i++) check_joined_after_restart(SHAPES[i / 2], i % 2);
}

/* With three or more, some are next to each other. */
Test(fanout, after_a_restart_of_the_broker_some_that_are_killed_are_replaced)
{
    for (uint32_t i = 0; i < 8 * SHAPE_COUNT; i++) {
        uint32_t count = 1 + i % 4, joiners = i / 4 % 2 ? count : 0;
        wave_t wave = HALF_WAY;
        wave.before_us = STANDS_US;
        wave.shape = SHAPES[i / 8];
        wave.tensors = 610;
        wave_begin(wave);
        publisher_sends(0.3);
        restart(RELAYS);
        for (uint32_t k = 4; k < 4 + count; k++) actor_kill(workers[k]);
        join_more(RELAYS, joiners);
        UNTIL(w, 20 * SECOND, all_hold(1));
        check_uplinks(joiners ? "some are replaced" : "some are killed", 1.05, 1.6);
        cr_assert(took() <= 1.6, "%.3f", took());
        world_destroy(&w);
    }
}

/* They end while there is no broker: those behind them turn to others by themselves. */
Test(fanout, three_next_to_each_other_that_end_with_the_broker_are_passed_over)
{
    for (int i = 0; i < SHAPE_COUNT; i++) {
        wave_t wave = HALF_WAY;
        wave.before_us = STANDS_US;
        wave.shape = SHAPES[i];
        wave.tensors = 610;
        wave_begin(wave);
        publisher_sends(0.3);
        world_broker_kill(w);
        for (uint32_t k = 4; k < 7; k++) actor_kill(workers[k]);
        world_broker_start(w);
        UNTIL(w, 20 * SECOND, all_hold(1));
        check_uplinks("three end with the broker", 1.05, 1.05);
        cr_assert(took() <= 1.6, "%.3f", took());
        UNTIL(w, 3 * LEASE_US, world_all_active(w, 1));
        check_settled(w);
        world_destroy(&w);
    }
}

/* The late one comes first by its name, and fetches from the tail of the plan before the restart: it is named to
 * no other one. */
Test(fanout, after_a_restart_of_the_broker_none_waits_in_a_circle)
{
    for (int i = 0; i < SHAPE_COUNT * 2; i++) {
        wave_t wave = HALF_WAY;
        wave.before_us = STANDS_US;
        wave.tensors = 610;
        wave.shape = SHAPES[i / 2];
        wave_begin(wave);
        publisher_sends(0.1);
        join_more(RELAYS, 1);
        publisher_sends(0.2);
        restart(RELAYS + 1);
        publisher_sends(0.3);
        if (i % 2) restart(RELAYS + 1);
        cut_link(trainer, 400 * MS);
        world_run(w, 400 * MS);
        actor_cut(trainer, false);
        UNTIL(w, 20 * SECOND, all_hold(1));
        check_uplinks("the publisher is cut off", 1.05, 1.1);
        cr_assert(took() <= 1.5, "%.3f", took());
        world_destroy(&w);
    }
}

/* Those of a host that wait for its head come back in any order. */
Test(fanout, after_a_restart_of_the_broker_one_copy_goes_into_each_host)
{
    for (int i = 0; i < PLAN_COUNT; i++) {
        wave_t wave = ON_HOSTS;
        wave.shape = PLANS[i]->shape;
        wave_begin(wave);
        publisher_sends(0.5);
        world_broker_kill(w);
        world_broker_start(w);
        figures_t f = wave_end("16 hosts, the broker started again");
        cr_assert(f.egress <= 1.05, "%.3f", f.egress);
        for (uint32_t k = 0; k < HOSTS; k++)
            cr_assert_float_eq(f.into[k], 1, 0.001, "%.3f M into host %u", f.into[k], k);
    }
}
