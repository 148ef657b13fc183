/* SPDX-License-Identifier: Apache-2.0 */
/* What faults of workers, links and publishers cost a version on its way, in a chain and in two trees. */
#include "tests/scenario/wave.h"

#include <stdio.h>
#include <string.h>
TestSuite(fanout, .fini = close_world);

static const wave_t *const PLANS[] = {&HALF_WAY, &IN_TREES};
enum { PLAN_COUNT = sizeof PLANS / sizeof *PLANS };

/* ---- the same faults in both plans ---- */

/* The version before is active: the one that comes meanwhile takes about as long, and there is none to fetch
 * then. */
Test(fanout, one_that_joins_at_half_way_fetches_what_is_on_its_way_first)
{
    for (int i = 0; i < PLAN_COUNT; i++) {
        wave_t wave = *PLANS[i];
        wave.tensors = 610;
        figures_t before = undisturbed(wave);
        wave_begin(wave);
        UNTIL(w, 10 * SECOND, world_all_active(w, 1));
        double sent = (double)actor_counters(trainer).bytes_out;
        publish_next(wave);
        UNTIL(w, 10 * SECOND, (double)actor_counters(trainer).bytes_out >= sent + 0.5 * wave_bytes);
        uint64_t joined_us = w->now_us;
        workers[RELAYS] = world_worker(w, "a-late-one", (worker_conf_t){.link = LINK});
        UNTIL(w, 10 * SECOND, all_hold_but(2, workers[RELAYS]));
        double others = took();
        UNTIL(w, 10 * SECOND, worker_active(workers[RELAYS]) == 2);
        double own = (double)(w->now_us - joined_us) / unit_us;
        sent = ((double)actor_counters(trainer).bytes_out - sent) / wave_bytes;
        printf("one that joins: %.3f M/B, the others %.3f, %.3f M out of the publisher\n", own, others, sent);
        cr_assert(own <= 1.15, "%.3f", own);
        cr_assert(others <= before.staged + 0.05, "%.3f, and %.3f before", others, before.staged);
        cr_assert(sent <= 1.05, "%.3f M out of the publisher", sent);
        cr_assert(bytes_into(workers[RELAYS]) <= 1.001, "nothing comes twice");
        world_destroy(&w);
    }
}

static void check_none_is_called_slow(void)
{
    for (uint32_t i = 0; workers[i]; i++) cr_assert_eq(published(EVENT_SOURCE_SLOW, workers[i]->name), 0);
}

/* What it sends is lost: its children wait for the manifest until their first deadline, and for the first chunk
 * again. */
Test(fanout, a_relay_that_never_answers_is_passed_over)
{
    enum { FIRST_DEADLINE_US = 800000 };
    for (int i = 0; i < PLAN_COUNT; i++) {
        figures_t before = undisturbed(*PLANS[i]);
        wave_begin(*PLANS[i]);
        mem_drop_data(workers[5]->t, UINT32_MAX);
        figures_t f = wave_end("one never answers");
        cr_assert(f.staged <= before.staged + (2 * FIRST_DEADLINE_US + 100 * MS) / unit_us, "%.3f", f.staged);
        check_twice(f, RELAYS);
    }
}

static void sends_nothing(actor_t *a) { mem_drop_data(a->t, UINT32_MAX); }
static void refuses_each(actor_t *a) { mem_refuse(a->t, HEDDLE_ERR_AGAIN); }

/* It gets all bytes, and those behind it get none from it: from the next version on none waits for it. */
Test(fanout, a_relay_that_gives_nothing_is_asked_in_one_version_alone)
{
    static void (*const FAULTS[])(actor_t *) = {sends_nothing, refuses_each};
    for (int i = 0; i < PLAN_COUNT * 2; i++) {
        wave_t wave = *PLANS[i / 2];
        wave_begin(wave);
        actor_t *useless = workers[0];
        FAULTS[i % 2](useless);
        UNTIL(w, 10 * SECOND, world_all_active(w, 1));
        for (uint64_t version = 2; version <= 3; version++) {
            double before = (double)actor_counters(trainer).bytes_out;
            wave.seed++;
            publish_next(wave);
            UNTIL(w, 10 * SECOND, all_hold_but(version, useless));
            double others = took();
            UNTIL(w, 10 * SECOND, world_all_active(w, version));
            double egress = ((double)actor_counters(trainer).bytes_out - before) / wave_bytes;
            printf("beside one that gives nothing: %.3f M/B, %.3f M out of the publisher\n", others, egress);
            cr_assert(egress <= 1.05, "%.3f M out of the publisher", egress);
            cr_assert(others <= 1.15, "%.3f", others);
        }
        cr_assert_eq(published(EVENT_SOURCE_SLOW, useless->name), 1);
        check_settled(w);
        world_destroy(&w);
    }
}

/* One chunk has another digest: the one behind it asks another source, and reports it. */
Test(fanout, a_bit_that_one_of_the_trees_flips_costs_next_to_nothing)
{
    figures_t before = undisturbed(IN_TREES);
    wave_begin(IN_TREES);
    actor_t *liar = workers[5];
    mem_corrupt_data(liar->t, 50, 17);
    UNTIL(w, 10 * SECOND, published(EVENT_SOURCE_BAD, liar->name) == 1);
    figures_t f = wave_end("one of the trees flips a bit");
    cr_assert(f.staged <= before.staged + 0.1, "%.3f", f.staged);
    check_twice(f, RELAYS);
}

static bool others_are_active(const actor_t *one)
{
    for (uint32_t i = 0; workers[i]; i++)
        if (workers[i] != one && worker_active(workers[i]) != 1) return false;
    return true;
}

/* The others go on without it; it comes back under another token, and fetches what it lacks. */
Test(fanout, a_relay_that_is_stopped_past_its_lease_fetches_on)
{
    for (int i = 0; i < PLAN_COUNT; i++) {
        wave_begin(*PLANS[i]);
        publisher_sends(0.5);
        actor_t *stopped = workers[5];
        actor_stop(stopped, true);
        UNTIL(w, 3 * LEASE_US, others_are_active(stopped));
        check_none_is_called_slow();
        world_run(w, 2 * LEASE_US);
        cr_assert_not(member_is_ready(membership_worker(&w->broker->members, stopped->name)));
        actor_stop(stopped, false);
        check_twice(wave_end("stopped past its lease"), RELAYS + 1);
    }
}

/* Those behind it turn to others when its time is over, and it fetches on. */
Test(fanout, a_relay_whose_link_is_cut_for_1_to_60_s_fetches_on)
{
    static const uint64_t CUT_US[] = {SECOND, 10 * SECOND, 60 * SECOND};
    for (int i = 0; i < PLAN_COUNT * 3; i++) {
        figures_t before = undisturbed(*PLANS[i / 3]);
        wave_begin(*PLANS[i / 3]);
        publisher_sends(0.5);
        actor_t *cut = workers[5];
        uint64_t back_us = w->now_us + CUT_US[i % 3];
        cut_link(cut, CUT_US[i % 3]);
        UNTIL(w, 10 * SECOND, all_hold_but(1, cut));
        cr_assert(took() <= before.staged + 500 * MS / unit_us, "%.3f", took());
        check_none_is_called_slow();
        if (w->now_us < back_us) world_run(w, back_us - w->now_us);
        actor_cut(cut, false);
        check_twice(wave_end("the link of one cut"), RELAYS + 1);
    }
}

/* All wait for it, and go on when it is back. */
Test(fanout, a_publisher_whose_link_is_cut_for_a_second_goes_on)
{
    for (int i = 0; i < PLAN_COUNT; i++) {
        figures_t before = undisturbed(*PLANS[i]);
        wave_begin(*PLANS[i]);
        publisher_sends(0.5);
        cut_link(trainer, SECOND);
        world_run(w, SECOND);
        actor_cut(trainer, false);
        figures_t f = wave_end("the link of the publisher cut");
        cr_assert(f.staged <= before.staged + (SECOND + 100 * MS) / unit_us, "%.3f", f.staged);
        /* What was on its way is late, and asked for again: a window of each half. */
        double twice = LIMIT_WINDOW_BYTES / wave_bytes * (PLANS[i]->shape == PLAN_TWO_TREE ? 2 : 1);
        cr_assert(f.egress <= 1.01 + twice, "%.3f", f.egress);
        cr_assert(f.ingress <= RELAYS + twice + 0.01, "%.3f", f.ingress);
    }
}

/* It has another token then, and the same bytes: those that fetch from it go on.  One of them is killed, or another
 * worker joins, and the publisher still sends the bytes once. */
Test(fanout, a_publisher_that_loses_the_broker_goes_on)
{
    static const char *const WHAT[] = {"the publisher lost the broker", "and a child of it was killed",
                                       "and one joined"};
    for (int i = 0; i < PLAN_COUNT * 3; i++) {
        wave_t wave = *PLANS[i / 3];
        wave.tensors = 610;
        figures_t before = undisturbed(wave);
        wave_begin(wave);
        publisher_sends(0.5);
        uint64_t token = world_track(w, 1)->plan.publisher.token;
        actor_break(trainer);
        UNTIL(w, SECOND, trainer_is_ready(trainer) && plan_server(&world_track(w, 1)->plan) > token);
        if (i % 3 == 1) actor_kill(workers[0]);
        if (i % 3 == 2) workers[RELAYS] = world_worker(w, "a-late-one", (worker_conf_t){.link = LINK});
        const actor_t *but = i % 3 == 1 ? workers[0] : workers[RELAYS];
        UNTIL(w, 10 * SECOND, all_hold_but(1, but));
        cr_assert(took() <= before.staged + 0.05, "%.3f", took());
        figures_t f = wave_end(WHAT[i % 3]);
        cr_assert(f.egress <= 1.05, "%.3f M out of the publisher", f.egress);
        double more = i % 3 == 1 ? -1 + LIMIT_WINDOW_BYTES / wave_bytes : i % 3 == 2;
        cr_assert(f.ingress <= RELAYS + more + 0.001, "%.3f", f.ingress);
    }
}

/* The first place of the chain, or a root of the trees.  Those behind it have turned to the publisher meanwhile, and
 * it fetches on there, too: of a short version what had not left yet is sent twice. */
Test(fanout, a_first_place_that_is_cut_off_for_half_a_second_fetches_on)
{
    static const struct {
        const wave_t *plan;
        uint32_t number;
        double most, most_of_short; /* M out of the publisher */
    } FIRST[] = {{&HALF_WAY, 0, 1.45, 1.96}, {&IN_TREES, 0, 1.32, 1.5}, {&IN_TREES, RELAYS - 1, 1.32, 1.5}};
    enum { MOMENTS = 4, SIZES = 2 };
    for (size_t i = 0; i < MOMENTS * SIZES * (sizeof FIRST / sizeof *FIRST); i++) {
        size_t which = i / (MOMENTS * SIZES);
        bool is_short = i % SIZES;
        wave_t wave = *FIRST[which].plan;
        if (!is_short) wave.tensors = 610;
        wave_begin(wave);
        publisher_sends(0.05 + 0.2 * (double)(i / SIZES % MOMENTS));
        cut_link(workers[FIRST[which].number], 500 * MS);
        world_run(w, 500 * MS);
        actor_cut(workers[FIRST[which].number], false);
        figures_t f = wave_end("a first place cut off");
        double most = is_short ? FIRST[which].most_of_short : FIRST[which].most;
        cr_assert(f.egress <= most, "%.3f M out of the publisher", f.egress);
    }
}

/* No process has all chunks: the version fails, and the next one comes to all. */
Test(fanout, a_version_whose_publisher_is_cut_off_past_a_lease_fails)
{
    static const uint64_t CUT_US[] = {10 * SECOND, 60 * SECOND};
    for (int i = 0; i < PLAN_COUNT * 2; i++) {
        wave_t wave = *PLANS[i / 2];
        wave_begin(wave);
        publisher_sends(0.5);
        uint64_t back_us = w->now_us + CUT_US[i % 2];
        cut_link(trainer, CUT_US[i % 2]);
        UNTIL(w, 3 * LEASE_US, !strcmp(world_state(w, 1), "failed"));
        MUST(w, world_version(w, 1)->code == HEDDLE_ERR_VERSION_LOST);
        if (w->now_us < back_us) world_run(w, back_us - w->now_us);
        actor_cut(trainer, false);
        UNTIL(w, LEASE_US, trainer_is_ready(trainer) && !trainer_is_busy(trainer));
        publish_next(wave);
        UNTIL(w, 10 * SECOND, world_all_active(w, 2));
        check_settled(w);
        world_destroy(&w);
    }
}

Test(fanout, a_version_in_trees_fails_a_lease_after_the_last_chunk)
{
    wave_begin(IN_TREES);
    publisher_sends(0.5);
    actor_kill(trainer);
    UNTIL(w, LEASE_US + 2 * SECOND + LEASE_US, !strcmp(world_state(w, 1), "failed"));
    MUST(w, world_version(w, 1)->code == HEDDLE_ERR_VERSION_LOST);
    MUST(w, w->now_us - start_us >= LEASE_US);
}

/* Bytes move without it; what is decided waits for it. */
Test(fanout, a_broker_that_is_away_for_long_holds_up_no_bytes)
{
    for (int i = 0; i < PLAN_COUNT; i++) {
        figures_t before = undisturbed(*PLANS[i]);
        wave_begin(*PLANS[i]);
        publisher_sends(0.5);
        world_broker_kill(w);
        UNTIL(w, 10 * SECOND, all_hold(1));
        cr_assert(took() <= before.staged + 0.05, "%.3f", took());
        world_run(w, 10 * SECOND);
        world_broker_start(w);
        figures_t f = wave_end("the broker was away");
        check_twice(f, RELAYS);
    }
}

/* One wrong byte, and it is well: it takes as much as any, and gives nothing.  One that joins then gets half of the
 * bytes from each of two others. */
Test(fanout, one_that_joins_behind_one_that_was_blamed_costs_no_place_all_bytes_twice)
{
    for (int i = 0; i < PLAN_COUNT; i++) {
        wave_t wave = *PLANS[i];
        wave.tensors = 610;
        wave_begin(wave);
        actor_t *liar = workers[5];
        mem_corrupt_data(liar->t, 1, 17);
        UNTIL(w, 10 * SECOND, published(EVENT_SOURCE_BAD, liar->name) == 1);
        uint64_t joined_us = w->now_us;
        workers[RELAYS] = world_worker(w, "a-late-one", (worker_conf_t){.link = LINK});
        UNTIL(w, 10 * SECOND, worker_holds(workers[RELAYS], 1));
        double own = (double)(w->now_us - joined_us) / unit_us, most = 0;
        UNTIL(w, 10 * SECOND, world_all_active(w, 1));
        for (uint32_t k = 0; k <= RELAYS; k++) {
            double out = (double)actor_counters(workers[k]).bytes_out / wave_bytes;
            if (out > most) most = out;
        }
        double egress = (double)actor_counters(trainer).bytes_out / wave_bytes;
        printf("one joins behind one that was blamed: %.3f M/B, %.3f M out of one place, %.3f of the "
               "publisher\n",
               own, most, egress);
        cr_assert(most <= 1.5 + LIMIT_WINDOW_BYTES / wave_bytes, "%.3f M out of one place", most);
        cr_assert(egress <= 1.05, "%.3f M out of the publisher", egress);
        cr_assert(own <= 1.6, "%.3f", own);
        world_destroy(&w);
    }
}

/* It has bytes, says that it is well, and what it sends is lost.  Each version comes to the others meanwhile, and to
 * it. */
Test(fanout, a_relay_that_is_mute_for_10_to_30_s_holds_up_no_other)
{
    enum { FIRST_DEADLINE_US = 800000 };
    static const uint64_t MUTE_US[] = {10 * SECOND, 30 * SECOND};
    for (int i = 0; i < PLAN_COUNT * 2; i++) {
        figures_t before = undisturbed(*PLANS[i / 2]);
        wave_t wave = *PLANS[i / 2];
        wave_begin(wave);
        publisher_sends(0.5);
        actor_t *mute = workers[5];
        uint64_t until_us = w->now_us + MUTE_US[i % 2], version = 1;
        double sent = 0;
        mem_drop_data(mute->t, UINT32_MAX);
        for (bool is_mute = true; is_mute; version++) {
            is_mute = w->now_us < until_us;
            if (!is_mute) mem_drop_data(mute->t, 0);
            UNTIL(w, 10 * SECOND, all_hold_but(version, mute));
            double others = took();
            cr_assert(others <= before.staged + (2 * FIRST_DEADLINE_US + 100 * MS) / unit_us, "%.3f", others);
            UNTIL(w, 10 * SECOND, world_all_active(w, version));
            double all = (double)actor_counters(trainer).bytes_out / wave_bytes;
            printf("beside a mute one: %.3f M/B, %.3f M out of the publisher\n", others, all - sent);
            cr_assert(all - sent <= 1.05, "%.3f M out of the publisher", all - sent);
            sent = all;
            world_run(w, 3 * SECOND);
            wave.seed++;
            if (is_mute) publish_next(wave);
        }
        check_settled(w);
        world_destroy(&w);
    }
}

/* ---- a head that stands still ---- */

/* Its link takes some seconds for the version, so that the broker hears of the standstill: that host takes a
 * second copy at most, and no other host does. */
Test(fanout, a_head_that_stands_still_costs_its_own_host_alone)
{
    enum { LINKED_HOSTS = 8, STOPPED_HOST = 1 };
    static const uint32_t SLOWER[] = {8, 20};
    static const uint64_t STOP_US[] = {SECOND, 2 * SECOND, 6 * SECOND};
    for (int i = 0; i < PLAN_COUNT * 6; i++) {
        wave_t wave = {.workers = 3 * LINKED_HOSTS,
                       .tensors = 256,
                       .seed = 31,
                       .hosts = LINKED_HOSTS,
                       .shape = PLANS[i / 6]->shape,
                       .slower = SLOWER[i / 3 % 2]};
        wave_begin(wave);
        publisher_sends(0.3);
        actor_t *head = workers[head_of(STOPPED_HOST)];
        actor_stop(head, true);
        world_run(w, STOP_US[i % 3]);
        actor_stop(head, false);
        figures_t f = wave_end("a head stood still");
        cr_assert(f.egress <= 1.05, "%.3f", f.egress);
        for (uint32_t k = 0; k < LINKED_HOSTS; k++) {
            double copies = k == STOPPED_HOST ? 2 : 1;
            cr_assert(f.into[k] <= copies + LIMIT_WINDOW_BYTES / wave_bytes, "%.3f M into host %u", f.into[k],
                      k);
        }
    }
}
