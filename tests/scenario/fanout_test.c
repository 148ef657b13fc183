/* SPDX-License-Identifier: Apache-2.0 */
/* How long a version takes to come to many workers, on links with a rate, in virtual time. */
#include "tests/scenario/wave.h"

#include <heddle/publisher.h>
#include <stdio.h>
#include <string.h>
TestSuite(fanout, .fini = close_world);

/* ---- a star ---- */

/* Each worker fetches from the publisher. */
static void check_star(wave_t wave)
{
    wave.shape = PLAN_STAR;
    wave_begin(wave);
    figures_t f = wave_end("star");
    cr_assert_float_eq(f.active, wave.workers, 0.1 + 0.01 * wave.workers);
    cr_assert_float_eq(f.egress, wave.workers, 0.001);
    cr_assert_float_eq(f.ingress, wave.workers, 0.001, "nothing comes twice");
}

Test(fanout, a_star_takes_the_time_of_each)
{
    check_star((wave_t){.workers = 1, .tensors = 256, .seed = 1});
    check_star((wave_t){.workers = 4, .tensors = 128, .seed = 2});
    check_star((wave_t){.workers = 16, .tensors = 128, .seed = 3});
    check_star((wave_t){.workers = 64, .tensors = 32, .seed = 4});
}

/* ---- a chain ---- */

/* Within 3 % of (n + N - 1) τ + N α; the uplink of each member carries the bytes once.  A store that confirms
 * late does so for the version and for the decision. */
static void check_chain(wave_t wave)
{
    wave.shape = PLAN_CHAIN;
    wave_begin(wave);
    uint64_t store_us = w->store_is_late ? 10 * MS : 0;
    figures_t f = wave_end("chain");
    double chunk_us = (double)CHUNK / RATE * 1e6, n = wave_bytes / CHUNK;
    double hops_us = wave.workers * (double)LATENCY_US;
    double estimate = ((n + wave.workers - 1) * chunk_us + hops_us + (double)store_us) / unit_us;
    cr_assert(f.active >= 1 && f.active <= 1.03 * estimate, "%.3f, and the estimate is %.3f", f.active,
              estimate);
    cr_assert_float_eq(f.egress, 1, 0.001);
    cr_assert_float_eq(f.ingress, wave.workers, 0.001, "nothing comes twice");
}

Test(fanout, a_chain_takes_the_time_of_its_estimate)
{
    check_chain((wave_t){.workers = 1, .tensors = 256, .seed = 11});
    check_chain((wave_t){.workers = 2, .tensors = 256, .seed = 12});
    check_chain((wave_t){.workers = 4, .tensors = 256, .seed = 13});
    check_chain((wave_t){.workers = 8, .tensors = 256, .seed = 14});
    check_chain((wave_t){.workers = 16, .tensors = 256, .seed = 15});
    check_chain((wave_t){.workers = 64, .tensors = 128, .seed = 16});
    check_chain((wave_t){.workers = 128, .tensors = 128, .seed = 18});
}

Test(fanout, what_is_no_longer_than_a_hop_goes_to_each_from_the_publisher)
{
    wave_begin((wave_t){.workers = 4, .tensors = 4, .seed = 17});
    figures_t f = wave_end("short");
    cr_assert_float_eq(f.egress, 4, 0.001);
}

/* Its bytes take longer than a hop. */
Test(fanout, what_is_short_goes_along_the_chain_behind_a_limited_publisher)
{
    wave_begin((wave_t){.workers = 4, .tensors = 4, .seed = 18, .max_rate = 4000000});
    figures_t f = wave_end("short, of a limited publisher");
    cr_assert_float_eq(f.egress, 1, 0.001);
}

Test(fanout, the_same_seed_gives_the_same_time)
{
    wave_t wave = {.workers = 8, .tensors = 32, .seed = 6};
    wave_begin(wave);
    uint64_t first_us = wave_end("once").active_us;
    wave_begin(wave);
    uint64_t again_us = wave_end("again").active_us;
    wave.seed++;
    wave_begin(wave);
    uint64_t other_us = wave_end("other").active_us;
    cr_assert(again_us == first_us && other_us != first_us);
}

/* ---- members go and come ---- */

Test(fanout, each_relay_that_is_killed_costs_next_to_nothing)
{
    figures_t before = undisturbed(HALF_WAY);
    for (uint32_t dead = 0; dead < RELAYS; dead++) {
        char what[32];
        snprintf(what, sizeof what, "w%02u killed", dead + 1);
        wave_begin(HALF_WAY);
        publisher_sends(0.5);
        actor_kill(workers[dead]);
        figures_t f = wave_end(what);
        cr_assert(f.staged <= before.staged + 0.05, "%.3f, and %.3f before: %s", f.staged, before.staged,
                  what);
        check_twice(f, RELAYS - 1);
    }
}

Test(fanout, several_relays_that_are_killed_cost_little)
{
    figures_t before = undisturbed(HALF_WAY);
    wave_begin(HALF_WAY);
    publisher_sends(0.5);
    for (uint32_t dead = 3; dead < 7; dead++) actor_kill(workers[dead]);
    figures_t f = wave_end("four killed");
    cr_assert(f.staged <= before.staged + 0.2, "%.3f", f.staged);
    check_twice(f, RELAYS - 4 + 3);
}

/* It stands still, and does not go: those behind it turn to the one before it when its time is over. */
Test(fanout, a_relay_that_stands_still_is_passed_over)
{
    figures_t before = undisturbed(HALF_WAY);
    wave_begin(HALF_WAY);
    publisher_sends(0.5);
    actor_stop(workers[5], true);
    UNTIL(w, 10 * SECOND,
          worker_holds(workers[4], 1) && worker_holds(workers[6], 1) && worker_holds(workers[8], 1));
    cr_assert(took() <= before.active + SECOND / unit_us, "%.3f", took());
    const copy_row_t *behind = copy_find(world_track(w, 1), workers[6]->name);
    uint64_t late = 0;
    for (uint32_t i = 0; i < behind->served_count; i++)
        if (!strcmp(behind->served[i].name, workers[5]->name)) late = behind->served[i].moved.late;
    cr_assert_gt(late, 0, "the one behind it says why its asks moved");
    actor_stop(workers[5], false);
    check_twice(wave_end("one stopped"), RELAYS + 1);
}

/* Those behind it have asked the publisher meanwhile, and come back: its uplink carries for them what the time
 * without the relay gives, and a window. */
Test(fanout, a_relay_that_stood_still_once_has_its_place_again)
{
    enum { STOP_US = 500000, LEAST_DEADLINE_US = 200000 };
    wave_begin((wave_t){.workers = 4, .tensors = 1024, .seed = 24, .shape = PLAN_CHAIN});
    publisher_sends(0.05);
    actor_stop(workers[0], true);
    world_run(w, STOP_US);
    actor_stop(workers[0], false);
    figures_t f = wave_end("the first stopped");
    double without = (STOP_US - LEAST_DEADLINE_US) / unit_us;
    cr_assert(f.egress <= 1.05 + without + LIMIT_WINDOW_BYTES / wave_bytes, "%.3f", f.egress);
    cr_assert(f.active <= 1.1 + STOP_US / unit_us, "%.3f", f.active);
}

/* The first of the chain still fetches the version before, as its link is slow: those behind it do not wait for
 * that. */
Test(fanout, one_that_fetches_an_older_version_first_is_passed_over)
{
    wave_begin((wave_t){.workers = 3, .tensors = 256, .seed = 26});
    UNTIL(w, 10 * SECOND, all_hold(1));
    actor_t *slow = world_worker(w, "a-slow-one", (worker_conf_t){.link = {RATE / 20, LATENCY_US}});
    UNTIL(w, SECOND, slow->is_up);
    world_run(w, SECOND);
    start_us = w->now_us;
    trainer_publish(trainer, (publish_t){.shape = {.seed = 27, .count = 256, .rows = 1024},
                                         .activation = HEDDLE_ACTIVATION_AS_READY});
    UNTIL(w, 20 * SECOND, all_hold(2));
    cr_assert(!worker_holds(slow, 1) || !worker_holds(slow, 2));
    cr_assert(took() <= 1.2 + 2 * HEARTBEAT_US / unit_us, "%.3f", took());
    UNTIL(w, 40 * SECOND, worker_holds(slow, 2));
}

Test(fanout, one_that_joins_at_half_way_fetches_from_the_tail)
{
    wave_begin(HALF_WAY);
    publisher_sends(0.5);
    uint64_t joined_us = w->now_us;
    workers[RELAYS] = world_worker(w, "a-late-one", (worker_conf_t){.link = LINK});
    UNTIL(w, 10 * SECOND, worker_holds(workers[RELAYS], 1));
    double own = (double)(w->now_us - joined_us) / unit_us;
    cr_assert(own <= 1.15, "%.3f", own);
    figures_t f = wave_end("one more");
    cr_assert_float_eq(f.egress, 1, 0.05);
    cr_assert_float_eq(f.ingress, RELAYS + 1, 0.001, "nothing comes twice");
}

Test(fanout, one_with_a_limited_rate_holds_up_no_other)
{
    wave_t wave = HALF_WAY;
    wave.workers = RELAYS - 1;
    wave_begin(wave);
    actor_t *slow = world_worker(w, "a-slow-one", (worker_conf_t){.link = LINK, .max_rate_bytes = RATE / 10});
    UNTIL(w, 10 * SECOND, all_hold(1));
    UNTIL(w, 10 * SECOND, worker_holds(slow, 1));
    workers[RELAYS - 1] = slow;
    start_us = w->now_us;
    trainer_publish(trainer, (publish_t){.shape = {.seed = 22, .count = 256, .rows = 1024}});
    workers[RELAYS - 1] = NULL;
    UNTIL(w, 10 * SECOND, all_hold(2));
    cr_assert(took() <= 1.1, "%.3f", took());
    UNTIL(w, 10 * SECOND, worker_holds(slow, 2));
}

/* All chunks are somewhere, and no process has all of them yet, but for the first one. */
Test(fanout, the_publisher_may_go_when_all_chunks_are_out)
{
    wave_begin(HALF_WAY);
    publisher_sends(1);
    actor_kill(trainer);
    UNTIL(w, 10 * SECOND, all_hold(1));
    cr_assert(took() <= 1.2, "%.3f", took());
    UNTIL(w, SECOND, world_all_active(w, 1));
}

/* Each has half of it, and gets no more. */
Test(fanout, the_version_fails_a_lease_after_the_last_chunk)
{
    wave_begin(HALF_WAY);
    publisher_sends(0.5);
    actor_kill(trainer);
    UNTIL(w, LEASE_US + 2 * SECOND + LEASE_US, !strcmp(world_state(w, 1), "failed"));
    MUST(w, world_version(w, 1)->code == HEDDLE_ERR_VERSION_LOST);
    MUST(w, w->now_us - start_us >= LEASE_US);
}

/* They wait for what comes, and fetch on where they were. */
Test(fanout, a_restart_of_the_broker_moves_no_transfer)
{
    figures_t before = undisturbed(HALF_WAY);
    wave_begin(HALF_WAY);
    publisher_sends(0.5);
    world_broker_kill(w);
    world_broker_start(w);
    UNTIL(w, 10 * SECOND, all_hold(1));
    cr_assert(took() <= before.active + 0.05, "%.3f", took());
    figures_t f = {.egress = (double)actor_counters(trainer).bytes_out / wave_bytes};
    cr_assert(f.egress <= 1.01, "%.3f", f.egress);
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 1));
}

/* ---- hosts ---- */

Test(fanout, one_copy_goes_into_each_host)
{
    wave_begin(ON_HOSTS);
    figures_t f = wave_end("16 hosts");
    cr_assert(f.active <= 1.2, "%.3f", f.active);
    cr_assert(f.egress <= 1.05, "%.3f", f.egress);
    for (uint32_t i = 0; i < HOSTS; i++)
        cr_assert_float_eq(f.into[i], 1, 0.001, "%.3f M into host %u", f.into[i], i);
}

static bool others_hold(uint32_t host)
{
    for (uint32_t i = 0; workers[i]; i++)
        if (i % host_count != host && !worker_holds(workers[i], 1)) return false;
    return true;
}

/* Its region dies with it: the next one of the host fetches the version from the start.  No other host waits
 * for that. */
static void check_head_killed(plan_shape_t shape, double cost)
{
    enum { PROBE_US = 250000 };
    wave_t wave = ON_HOSTS;
    wave.shape = shape;
    wave_begin(wave);
    figures_t before = wave_end("16 hosts");
    for (uint32_t host = 0; host < HOSTS; host += 5) {
        wave_begin(wave);
        publisher_sends(0.5);
        uint32_t head = head_of(host);
        kill_of_host(head);
        UNTIL(w, 10 * SECOND, others_hold(host));
        cr_assert(took() <= before.staged + cost, "%.3f: other hosts than %u", took(), host);
        figures_t f = wave_end("a head killed");
        double limit = 0.5 + before.staged + PROBE_US / unit_us;
        cr_assert(f.staged <= limit, "%.3f, and the limit is %.3f", f.staged, limit);
        cr_assert(f.egress <= 1.05, "%.3f", f.egress);
        for (uint32_t i = 0; i < HOSTS; i++)
            cr_assert(f.into[i] <= (i == host ? 2 : 1) + LIMIT_WINDOW_BYTES / wave_bytes,
                      "%.3f M into host %u", f.into[i], i);
    }
}

Test(fanout, where_the_head_of_a_host_is_killed_the_next_one_fetches) { check_head_killed(PLAN_CHAIN, 0.05); }

/* The publisher is on the first host, whose workers hold what it published. */
Test(fanout, on_the_host_of_the_publisher_nothing_crosses_a_network)
{
    wave_t wave = {.workers = 8, .tensors = 256, .seed = 32, .hosts = 2, .publisher = "h00"};
    wave_begin(wave);
    figures_t f = wave_end("the publisher's host and another");
    cr_assert_float_eq(f.into[0], 0, 1e-9, "%.3f", f.into[0]);
    cr_assert_float_eq(f.into[1], 1, 0.001, "%.3f", f.into[1]);
    cr_assert_float_eq(f.egress, 1, 0.001, "%.3f", f.egress);
}

/* Heartbeats come meanwhile, and all on the publisher's host have the version by then. */
Test(fanout, none_on_the_host_of_the_publisher_serves_in_its_place)
{
    wave_t wave = {.workers = 4, .tensors = 256, .seed = 32, .hosts = 2, .publisher = "h00", .slower = 8};
    wave_begin(wave);
    figures_t f = wave_end("a slow link of the publisher's host");
    cr_assert_float_eq(f.into[1], 1, 0.001, "%.3f", f.into[1]);
    cr_assert_float_eq(f.egress, 1, 0.001, "%.3f", f.egress);
}

/* ---- slow ones, and ones that lie ---- */

/* It would be the first of the chain, by its name. */
Test(fanout, one_that_is_no_relay_sends_nothing)
{
    wave_t wave = {.workers = 4, .tensors = 128, .seed = 23, .shape = PLAN_CHAIN};
    wave_begin(wave);
    UNTIL(w, 10 * SECOND, world_all_active(w, 1));
    actor_t *last = world_worker(w, "a-last", (worker_conf_t){.link = LINK, .no_relay = true});
    UNTIL(w, 10 * SECOND, world_all_active(w, 1) && worker_is_ready(last));
    publish_next(wave);
    UNTIL(w, 10 * SECOND, world_all_active(w, 2));
    cr_assert_eq(actor_counters(last).bytes_out, 0);
    cr_assert((double)actor_counters(trainer).bytes_out <= 2.01 * wave_bytes);
}

/* Where it is not known to be slow it is where its name puts it, and is left; then it is at the end.  At the
 * head of the chain it is left for the publisher, by the one behind it alone. */
static void check_slow(uint32_t which)
{
    wave_t wave = {.workers = RELAYS, .tensors = 512, .seed = 41, .shape = PLAN_CHAIN, .slow = which};
    wave_begin(wave);
    const actor_t *slow = workers[wave.slow - 1];
    UNTIL(w, 20 * SECOND, all_hold_but(1, slow));
    printf("beside a slow one, w%02u: %.3f M/B\n", which, took());
    cr_assert(took() <= 1.35, "%.3f", took());
    cr_assert_eq(published(EVENT_SOURCE_SLOW, slow->name), 1);
    UNTIL(w, 20 * SECOND, world_all_active(w, 1));
    double first = (double)actor_counters(trainer).bytes_out / wave_bytes;
    publish_next(wave);
    UNTIL(w, 20 * SECOND, all_hold_but(2, slow));
    printf("the next version: %.3f M/B\n", took());
    cr_assert(took() <= 1.2, "%.3f", took());
    UNTIL(w, 20 * SECOND, world_all_active(w, 2));
    for (uint32_t i = 0; workers[i]; i++)
        cr_assert_eq(published(EVENT_SOURCE_SLOW, workers[i]->name), workers[i] == slow, "%s",
                     workers[i]->name);
    double both = (double)actor_counters(trainer).bytes_out / wave_bytes;
    printf("out of the publisher: %.3f M, then %.3f M\n", first, both - first);
    cr_assert(first <= 1.05, "%.3f M out of the publisher", first);
    cr_assert(both <= 2 * 1.05, "%.3f M out of the publisher", both);
    world_destroy(&w);
}

Test(fanout, a_slow_worker_holds_up_others_for_a_moment_and_once)
{
    for (uint32_t which = 1; which <= 4; which++) check_slow(which);
    check_slow(8);
}

/* Its link gets slow in the middle of a version.  What is behind it gets little for a moment, so that two are
 * blamed: the second one does not wait for the first. */
Test(fanout, one_that_is_blamed_beside_a_slow_one_does_not_wait_for_it)
{
    wave_t wave = {.workers = RELAYS, .tensors = 610, .seed = 46, .shape = PLAN_CHAIN};
    wave_begin(wave);
    UNTIL(w, 10 * SECOND, world_all_active(w, 1));
    actor_t *slow = workers[4];
    publish_next(wave);
    world_run(w, 200 * MS);
    mem_set_link(slow->t, (mem_link_t){RATE / 10, LATENCY_US});
    UNTIL(w, 20 * SECOND, all_hold_but(2, slow));
    uint32_t blamed = 0;
    for (uint32_t i = 0; workers[i]; i++) blamed += published(EVENT_SOURCE_SLOW, workers[i]->name);
    cr_assert_eq(blamed, 2);
    cr_assert(took() <= 1.75, "%.3f", took());
}

/* Each has a tenth of the rate for two versions, and its own again: those that were slow before come last in the
 * second one, and none of them waits for the one that is slow. */
Test(fanout, those_that_were_slow_wait_for_none_that_is)
{
    enum { SLOW_ONES = 6 };
    wave_t wave = {.workers = RELAYS, .tensors = 512, .seed = 45, .shape = PLAN_CHAIN};
    wave_begin(wave);
    UNTIL(w, 10 * SECOND, world_all_active(w, 1));
    for (uint32_t i = 0; i < 2 * SLOW_ONES; i++) {
        bool is_known = i % 2;
        actor_t *slow = workers[(5 + 7 * (i / 2)) % RELAYS];
        uint64_t version = 2 + i;
        mem_set_link(slow->t, (mem_link_t){RATE / 10, LATENCY_US});
        wave.seed++;
        publish_next(wave);
        UNTIL(w, 40 * SECOND, all_hold_but(version, slow));
        printf("%s is slow%s: %.3f M/B\n", slow->name, is_known ? ", as before" : "", took());
        cr_assert(took() <= (is_known ? 1.2 : 1.35), "%.3f beside %s", took(), slow->name);
        mem_set_link(slow->t, LINK);
        UNTIL(w, 20 * SECOND, world_all_active(w, version));
    }
}

/* Of a large version a window has few chunks. */
Test(fanout, a_slow_worker_is_left_where_chunks_are_large)
{
    wave_t wave = {.workers = 3, .tensors = 4096, .seed = 42, .shape = PLAN_CHAIN, .slow = 2};
    wave_begin(wave);
    const actor_t *slow = workers[wave.slow - 1];
    UNTIL(w, 60 * SECOND, all_hold_but(1, slow));
    printf("beside a slow one, large chunks: %.3f M/B\n", took());
    cr_assert(took() <= 1.2, "%.3f", took());
    for (uint32_t i = 0; workers[i]; i++)
        cr_assert_eq(published(EVENT_SOURCE_SLOW, workers[i]->name), workers[i] == slow, "%s",
                     workers[i]->name);
    cr_assert((double)actor_counters(trainer).bytes_out <= 1.05 * wave_bytes);
}

/* The link of a holder gets slow when it has the bytes: what fetches from it leaves it for another holder. */
Test(fanout, those_that_join_wait_for_no_slow_holder)
{
    enum { HOLDERS = 3 };
    for (uint32_t which = 0; which < HOLDERS; which++) {
        wave_begin((wave_t){.workers = HOLDERS, .tensors = 512, .seed = 43, .shape = PLAN_CHAIN});
        UNTIL(w, 10 * SECOND, world_all_active(w, 1));
        double sent = (double)actor_counters(trainer).bytes_out;
        mem_set_link(workers[which]->t, (mem_link_t){RATE / 100, LATENCY_US});
        for (uint32_t i = HOLDERS; i < 2 * HOLDERS; i++) {
            char name[16];
            snprintf(name, sizeof name, "z%02u", i);
            start_us = w->now_us;
            workers[i] = world_worker(w, name, (worker_conf_t){.link = LINK});
            UNTIL(w, 100 * SECOND, worker_holds(workers[i], 1));
            cr_assert(took() <= 2, "%.3f for %s beside w%02u", took(), name, which + 1);
        }
        sent = ((double)actor_counters(trainer).bytes_out - sent) / wave_bytes;
        cr_assert(sent <= 0.05, "%.3f M more out of the publisher", sent);
        world_destroy(&w);
    }
}

/* It takes longer than a second: the publisher is lent a piece a second by those next to it, and no more. */
Test(fanout, a_long_transfer_along_a_good_chain_costs_the_publisher_no_more)
{
    wave_begin((wave_t){.workers = 4, .tensors = 2048, .seed = 44, .shape = PLAN_CHAIN});
    figures_t f = wave_end("a long one");
    cr_assert(f.active <= 1.03, "%.3f", f.active);
    cr_assert(f.egress <= 1.01, "%.3f M out of the publisher", f.egress);
    cr_assert_float_eq(f.ingress, 4, 0.001, "nothing comes twice");
}

/* In a chain that is well no worker leaves another one, and nothing comes twice: check_chain has the bytes. */
Test(fanout, no_worker_of_a_good_chain_is_called_slow)
{
    wave_begin(HALF_WAY);
    UNTIL(w, 10 * SECOND, world_all_active(w, 1));
    for (uint32_t i = 0; workers[i]; i++) cr_assert_eq(published(EVENT_SOURCE_SLOW, workers[i]->name), 0);
}

/* Its child asks another one at once, says so, and in the next version no other fetches from it. */
Test(fanout, a_relay_that_sends_wrong_bytes_is_a_last_resort_from_then_on)
{
    wave_begin(HALF_WAY);
    actor_t *liar = workers[5];
    mem_corrupt_data(liar->t, 100, 17);
    UNTIL(w, 10 * SECOND, world_all_active(w, 1));
    cr_assert(took() <= 1.2, "%.3f", took());
    cr_assert_eq(published(EVENT_SOURCE_BAD, liar->name), 1);
    cr_assert((double)actor_counters(trainer).bytes_out <= 1.05 * wave_bytes);
    uint64_t sent = actor_counters(liar).bytes_out;
    publish_next(HALF_WAY);
    UNTIL(w, 10 * SECOND, world_all_active(w, 2));
    cr_assert(took() <= 1.2, "%.3f", took());
    cr_assert_eq(actor_counters(liar).bytes_out, sent, "it is a last resort");
    cr_assert((double)actor_counters(trainer).bytes_out <= 2 * 1.05 * wave_bytes);
}

/* ---- two trees ---- */

/* (n + 2 d) τ + (d + 1) α with d = log2 N: each half of the chunks goes down a tree of its own.  A store that
 * confirms late does so for the version and for the decision. */
static double trees_estimate(uint32_t count)
{
    uint64_t store_us = w->store_is_late ? 10 * MS : 0;
    double chunk_us = (double)CHUNK / RATE * 1e6, n = wave_bytes / CHUNK;
    uint32_t d = 0;
    while (count >> (d + 1)) d++;
    return ((n + 2 * d) * chunk_us + (d + 1) * (double)LATENCY_US + (double)store_us) / unit_us;
}

/* Within 3 % of the estimate, and the uplink of each member carries the bytes once. */
static void check_trees(wave_t wave)
{
    wave_begin(wave);
    double estimate = trees_estimate(wave.workers);
    figures_t f = wave_end("two trees");
    cr_assert(f.active >= 1 && f.active <= 1.03 * estimate, "%.3f, and the estimate is %.3f", f.active,
              estimate);
    cr_assert_float_eq(f.egress, 1, 0.01, "%.3f: the bytes, and a manifest more", f.egress);
    cr_assert_float_eq(f.ingress, wave.workers, 0.001, "nothing comes twice");
}

Test(fanout, two_trees_take_the_time_of_their_estimate)
{
    check_trees((wave_t){.workers = 2, .tensors = 256, .seed = 31, .shape = PLAN_TWO_TREE});
    check_trees((wave_t){.workers = 5, .tensors = 256, .seed = 32, .shape = PLAN_TWO_TREE});
    check_trees((wave_t){.workers = 16, .tensors = 269, .seed = 33, .shape = PLAN_TWO_TREE});
    check_trees((wave_t){.workers = 64, .tensors = 269, .seed = 34, .shape = PLAN_TWO_TREE});
    check_trees((wave_t){.workers = 128, .tensors = 269, .seed = 35, .shape = PLAN_TWO_TREE});
}

/* 40 MB.  Those behind it turn to two others, of which neither has to send all bytes more. */
Test(fanout, each_of_the_trees_may_be_killed)
{
    wave_t wave = IN_TREES;
    wave.tensors = 610;
    figures_t before = undisturbed(wave);
    for (uint32_t dead = 0; dead < RELAYS; dead++) {
        wave_begin(wave);
        publisher_sends(0.5);
        actor_kill(workers[dead]);
        figures_t f = wave_end("one of the trees killed");
        cr_assert(f.staged <= before.staged + 0.05, "%.3f without worker %u", f.staged, dead);
        check_twice(f, RELAYS - 1);
    }
}

/* It stands still, and does not go: those behind it turn to two others when its time is over. */
Test(fanout, one_of_the_trees_that_stands_still_is_passed_over)
{
    figures_t before = undisturbed(IN_TREES);
    for (uint32_t stopped = 0; stopped < RELAYS; stopped += 5) {
        wave_begin(IN_TREES);
        publisher_sends(0.5);
        actor_stop(workers[stopped], true);
        for (uint32_t i = 0; i < RELAYS; i++)
            if (i != stopped) UNTIL(w, 10 * SECOND, worker_holds(workers[i], 1));
        cr_assert(took() <= before.active + SECOND / unit_us, "%.3f without worker %u", took(), stopped);
        actor_stop(workers[stopped], false);
        check_twice(wave_end("one of the trees stopped"), RELAYS + 1);
    }
}

Test(fanout, one_that_joins_the_trees_fetches_from_those_with_room)
{
    wave_begin(IN_TREES);
    publisher_sends(0.5);
    uint64_t joined_us = w->now_us;
    workers[RELAYS] = world_worker(w, "a-late-one", (worker_conf_t){.link = LINK});
    UNTIL(w, 10 * SECOND, worker_holds(workers[RELAYS], 1));
    double own = (double)(w->now_us - joined_us) / unit_us;
    cr_assert(own <= 1.15, "%.3f", own);
    figures_t f = wave_end("one more in the trees");
    cr_assert_float_eq(f.egress, 1, 0.05);
    cr_assert_float_eq(f.ingress, RELAYS + 1, 0.001, "nothing comes twice");
}

/* No process has all chunks yet; each of the two roots got a manifest. */
Test(fanout, the_publisher_of_trees_may_go_when_all_chunks_are_out)
{
    wave_begin(IN_TREES);
    content_shape_t shape = {.seed = IN_TREES.seed, .count = IN_TREES.tensors, .rows = 1024};
    publisher_sends(1 + ((double)content_get(shape)->manifest.bytes - 1) / wave_bytes);
    actor_kill(trainer);
    UNTIL(w, 10 * SECOND, all_hold(1));
    cr_assert(took() <= 1.2, "%.3f", took());
    UNTIL(w, SECOND, world_all_active(w, 1));
}

Test(fanout, a_restart_of_the_broker_moves_no_transfer_of_trees)
{
    figures_t before = undisturbed(IN_TREES);
    wave_begin(IN_TREES);
    publisher_sends(0.5);
    world_broker_kill(w);
    world_broker_start(w);
    UNTIL(w, 10 * SECOND, all_hold(1));
    cr_assert(took() <= before.active + 0.05, "%.3f", took());
    figures_t f = {.egress = (double)actor_counters(trainer).bytes_out / wave_bytes};
    cr_assert(f.egress <= 1.01, "%.3f", f.egress);
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 1));
}

/* What takes the least time by the estimate: for so many that is two trees.  A chain takes 1.12. */
Test(fanout, many_workers_fetch_along_trees_where_none_says_how)
{
    check_trees((wave_t){.workers = 32, .tensors = 269, .seed = 37});
}

/* Of the first version the rate is not known, and on fast links a chain's many hops take long.  On these they do
 * not. */
Test(fanout, the_rate_that_a_version_came_at_counts_for_the_next_one)
{
    wave_t wave = {.workers = 20, .tensors = 269, .seed = 38};
    wave_begin(wave);
    UNTIL(w, 10 * SECOND, world_all_active(w, 1));
    cr_assert_eq(world_track(w, 1)->plan.shape, PLAN_TWO_TREE);
    publish_next(wave);
    UNTIL(w, 10 * SECOND, world_all_active(w, 2));
    cr_assert_eq(world_track(w, 2)->plan.shape, PLAN_CHAIN);
    cr_assert(took() <= 1.03 * (269 + 19) / 269, "%.3f", took());
}

/* Where it was a root, half of its tree is two levels deeper then, and the next one of the host fetches from
 * those that serve it. */
Test(fanout, where_the_head_of_a_host_in_trees_is_killed_the_next_one_fetches)
{
    check_head_killed(PLAN_TWO_TREE, 0.08);
}
