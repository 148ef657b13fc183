/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that leave cleanly: no rollout waits for them, and what only they hold is held elsewhere first. */
#include "broker/rollout/drain.h"
#include "tests/scenario/world.h"

#include <heddle/publisher.h>

#include <stdio.h>

#define LEASE_US (4 * SECOND)
#define BEAT_US SECOND
#define MESSAGE_US (SECOND / 1000) /* more than one takes */
#define RATE (1u << 20)            /* so that the 2 MiB below take two seconds */

static world_t *w;
static actor_t *workers[16], *trainer, *admin;

static void open_world(uint64_t seed, uint32_t count)
{
    w = world_new((world_opts_t){.seed = seed, .keep = 1});
    trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    admin = world_admin(w);
    world_workers(w, count, (worker_conf_t){0}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer) && world_all_ready(w, count));
}

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(drain, .fini = close_world);

static void publishes(uint64_t version)
{
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = version, .count = 32, .rows = 1024}}) ==
                version);
}

static const member_t *row(const char *name) { return membership_worker(&w->broker->members, name); }
static bool has_left(const actor_t *a) { return a->events_by_type[HEDDLE_EVENT_LEFT] > 0; }

static void drains(const char *name)
{
    admin_ask(admin, (msg_query_t){.op = "drain", .name = name});
    UNTIL(w, SECOND, admin->is_replied);
    MUST(w, admin->reply_code == HEDDLE_OK);
}

/* w1 has version 1 kept and version 2 active; the publisher has gone, and so has every other holder. */
static void open_last_holder(uint64_t seed)
{
    open_world(seed, 1);
    publishes(1);
    UNTIL(w, SECOND, world_all_active(w, 1));
    publishes(2);
    UNTIL(w, SECOND, world_all_active(w, 2));
    actor_leave(trainer);
    UNTIL(w, SECOND, trainer_has_left(trainer));
    actor_kill(trainer);
}

static void kept_is_at(const actor_t *a)
{
    MUST(w, worker_holds(a, 1));
    MUST(w, admin_activates(admin, 1) == HEDDLE_OK);
    UNTIL(w, SECOND, worker_active(a) == 1);
}

Test(drain, by_command)
{
    open_world(1, 3);
    publishes(1);
    UNTIL(w, SECOND, world_all_active(w, 1));
    drains("w1");
    MUST(w, row("w1")->state == MEMBER_DRAINING);
    UNTIL(w, 3 * BEAT_US, has_left(workers[0]));
    MUST(w, workers[0]->events_by_type[HEDDLE_EVENT_DRAINING] == 1);
    MUST(w, row("w1")->state == MEMBER_LEFT);
    publishes(2);
    UNTIL(w, SECOND, worker_active(workers[1]) == 2 && worker_active(workers[2]) == 2);
    MUST(w, !strcmp(world_state(w, 2), "active"));
}

static void stays(const char *name)
{
    admin_ask(admin, (msg_query_t){.op = "drain_cancel", .name = name});
    UNTIL(w, SECOND, admin->is_replied);
}

/* What it restates until it has the answer begins no other drain. */
Test(drain, is_taken_back)
{
    for (uint64_t told_us = 0; told_us < 3 * BEAT_US; told_us += BEAT_US / 2) {
        open_world(40 + told_us, 1);
        publishes(1);
        UNTIL(w, SECOND, world_all_active(w, 1));
        drains("w1");
        world_run(w, told_us);
        MUST(w, row("w1")->state == MEMBER_DRAINING);
        uint64_t told = workers[0]->events_by_type[HEDDLE_EVENT_DRAINING];
        stays("w1");
        MUST(w, admin->reply_code == HEDDLE_OK && row("w1")->state == MEMBER_READY);
        publishes(2);
        UNTIL(w, SECOND, world_all_active(w, 2));
        MUST(w, copy_find(world_track(w, 2), "w1")->is_eligible);
        world_run(w, 4 * BEAT_US);
        MUST(w, row("w1")->state == MEMBER_READY && !worker_node_drains(workers[0]->worker));
        MUST(w, workers[0]->events_by_type[HEDDLE_EVENT_STAYING] ==
                        workers[0]->events_by_type[HEDDLE_EVENT_DRAINING] &&
                    workers[0]->events_by_type[HEDDLE_EVENT_DRAINING] >= told);
        actor_break(workers[0]);
        UNTIL(w, 2 * SECOND, worker_is_ready(workers[0]));
        world_run(w, 2 * BEAT_US);
        MUST(w, row("w1")->state == MEMBER_READY);
        drains("w1");
        MUST(w, row("w1")->state == MEMBER_DRAINING);
        UNTIL(w, 2 * BEAT_US, worker_node_drains(workers[0]->worker));
        MUST(w, row("w1")->state == MEMBER_DRAINING);
        world_destroy(&w);
    }
}

/* The worker gets its answer at once, and not at its next heartbeat: a broker that is started again meanwhile
 * finds a worker that restates nothing. */
Test(drain, is_taken_back_before_a_start_of_the_broker)
{
    for (uint64_t told_us = BEAT_US; told_us < 3 * BEAT_US; told_us += BEAT_US / 4) {
        open_last_holder(70 + told_us);
        drains("w1");
        UNTIL(w, 2 * BEAT_US, worker_node_drains(workers[0]->worker));
        world_run(w, told_us);
        stays("w1");
        MUST(w, admin->reply_code == HEDDLE_OK);
        world_run(w, MESSAGE_US);
        world_broker_kill(w);
        world_run(w, SECOND);
        world_broker_start(w);
        UNTIL(w, LEASE_US, row("w1") && member_is_ready(row("w1")));
        MUST(w, row("w1")->state == MEMBER_READY && !worker_node_drains(workers[0]->worker));
        MUST(w, workers[0]->events_by_type[HEDDLE_EVENT_STAYING] == 1);
        world_run(w, 2 * LEASE_US);
        MUST(w, row("w1")->state == MEMBER_READY && !has_left(workers[0]));
        world_destroy(&w);
    }
}

/* A new session of before it had the answer restates the drain, too. */
Test(drain, is_taken_back_while_its_line_breaks)
{
    open_last_holder(60);
    drains("w1");
    UNTIL(w, 2 * BEAT_US, worker_node_drains(workers[0]->worker));
    actor_break(workers[0]);
    stays("w1");
    MUST(w, admin->reply_code == HEDDLE_OK);
    UNTIL(w, 2 * SECOND, worker_is_ready(workers[0]));
    world_run(w, 2 * BEAT_US);
    MUST(w, row("w1")->state == MEMBER_READY && !worker_node_drains(workers[0]->worker));
}

/* What went elsewhere stays there. */
Test(drain, is_taken_back_when_others_have_taken_over)
{
    open_last_holder(61);
    drains("w1");
    actor_t *late = world_worker(w, "w2", (worker_conf_t){.max_rate_bytes = RATE});
    UNTIL(w, 10 * SECOND, worker_active(late) == 2 && copy_find(world_track(w, 1), "w2"));
    stays("w1");
    MUST(w, admin->reply_code == HEDDLE_OK);
    UNTIL(w, 10 * SECOND, worker_holds(late, 1));
    world_run(w, 2 * LEASE_US);
    MUST(w, !has_left(workers[0]) && row("w1")->state == MEMBER_READY);
}

/* Neither of one that has left, nor where the application wants to go. */
Test(drain, is_not_taken_back)
{
    open_world(62, 2);
    publishes(1);
    UNTIL(w, SECOND, world_all_active(w, 1));
    drains("w1");
    UNTIL(w, 3 * BEAT_US, has_left(workers[0]));
    stays("w1");
    MUST(w, admin->reply_code == HEDDLE_ERR_REQUEST_CONFLICT);
    worker_node_drain(workers[1]->worker, w->now_us);
    workers[1]->due_us = w->now_us;
    UNTIL(w, BEAT_US, row("w2")->state == MEMBER_DRAINING);
    stays("w2");
    MUST(w, admin->reply_code == HEDDLE_ERR_REQUEST_CONFLICT);
    MUST(w, row("w2")->state == MEMBER_DRAINING);
}

Test(drain, before_there_is_a_version)
{
    open_world(19, 2);
    drains("w1");
    UNTIL(w, 3 * BEAT_US, has_left(workers[0]));
    publishes(1);
    UNTIL(w, SECOND, worker_active(workers[1]) == 1);
}

/* An application that ends asks by itself: the next heartbeat says so, and that is at once. */
Test(drain, by_the_application)
{
    open_world(2, 2);
    publishes(1);
    UNTIL(w, SECOND, world_all_active(w, 1));
    worker_node_drain(workers[0]->worker, w->now_us);
    workers[0]->due_us = w->now_us;
    UNTIL(w, BEAT_US / 4, has_left(workers[0]));
    MUST(w, row("w1")->state == MEMBER_LEFT);
}

/* What a joiner never fetched is the version to go back to: it goes over to the joiner. */
Test(drain, the_last_copy_goes_over)
{
    open_last_holder(3);
    actor_t *late = world_worker(w, "w2", (worker_conf_t){0});
    UNTIL(w, SECOND, worker_active(late) == 2);
    world_run(w, 2 * BEAT_US);
    MUST(w, !worker_holds(late, 1));
    drains("w1");
    UNTIL(w, 4 * BEAT_US, has_left(workers[0]));
    MUST(w, copy_find(world_track(w, 1), "w2")->state == COPY_KEPT);
    MUST(w, worker_active(late) == 2);
    kept_is_at(late);
    actor_kill(workers[0]);
    world_run(w, LEASE_US);
    check_settled(w);
}

/* Of three, the first is retired: it is not handed over, and does not delay the one that is. */
Test(drain, the_last_copy_goes_over_beside_a_retired_one)
{
    open_world(20, 1);
    for (uint64_t version = 1; version <= 3; version++) {
        publishes(version);
        UNTIL(w, SECOND, world_all_active(w, version));
    }
    actor_leave(trainer);
    UNTIL(w, SECOND, trainer_has_left(trainer));
    actor_kill(trainer);
    actor_t *late = world_worker(w, "w2", (worker_conf_t){0});
    UNTIL(w, SECOND, worker_active(late) == 3);
    drains("w1");
    UNTIL(w, 4 * BEAT_US, has_left(workers[0]));
    MUST(w, worker_holds(late, 2) && !worker_holds(late, 1));
    MUST(w, worker_active(late) == 3);
}

static void publishes_by_hand(uint64_t version)
{
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = version, .count = 32, .rows = 1024},
                                                   .activation = HEDDLE_ACTIVATION_MANUAL}) == version);
}

static bool is_retired(uint64_t version) { return !strcmp(world_state(w, version), "retired"); }

/* Of the three slots of w2 one has version 2, which is active, and one version 1, which came from w1.  A reader
 * has version 3, which is superseded, in the last one, and version 4 waits for a slot. */
static actor_t *open_full(uint64_t seed)
{
    open_last_holder(seed);
    actor_t *late = world_worker(w, "w2", (worker_conf_t){0});
    UNTIL(w, SECOND, worker_active(late) == 2);
    actor_start(trainer);
    UNTIL(w, 2 * LEASE_US, trainer_is_ready(trainer));
    publishes_by_hand(3);
    UNTIL(w, SECOND, worker_holds(late, 3) && !strcmp(world_state(w, 3), "staged"));
    (void)worker_hold(late, 3);
    drains("w1");
    return late;
}
static void stays_until_it_is_retired(const actor_t *late)
{
    MUST(w, worker_holds(late, 1));
    publishes_by_hand(4);
    for (uint64_t end_us = w->now_us + 2 * SECOND; !worker_holds(late, 4) && world_step(w, end_us);)
        MUST(w, worker_holds(late, 1) || is_retired(1));
    MUST(w, worker_holds(late, 4) && worker_active(late) == 2 && is_retired(1));
}

Test(drain, what_went_over_stays_until_it_is_retired)
{
    const actor_t *late = open_full(28);
    UNTIL(w, 4 * BEAT_US, has_left(workers[0]));
    actor_kill(workers[0]);
    stays_until_it_is_retired(late);
}

/* The same while w1 was told to leave, and has not: it counts as a holder no more. */
Test(drain, what_was_told_to_leave_holds_nothing)
{
    const actor_t *late = open_full(29);
    UNTIL(w, 4 * BEAT_US, row("w1")->drain == DRAIN_DONE);
    actor_stop(workers[0], true);
    stays_until_it_is_retired(late);
    actor_stop(workers[0], false);
    UNTIL(w, 2 * BEAT_US, has_left(workers[0]));
}

/* A worker that stands still is waited for until its lease ends, unless it drains. */
Test(drain, no_rollout_waits)
{
    open_world(4, 3);
    publishes(1);
    UNTIL(w, SECOND, world_all_active(w, 1));
    drains("w1");
    actor_stop(workers[0], true);
    publishes(2);
    UNTIL(w, BEAT_US, worker_active(workers[1]) == 2 && worker_active(workers[2]) == 2);
    publishes(3);
    UNTIL(w, BEAT_US, worker_active(workers[1]) == 3 && worker_active(workers[2]) == 3);
    MUST(w, row("w1")->state == MEMBER_DRAINING);
}

/* Nor one after a start of the broker, of which the worker restates what it has. */
Test(drain, no_rollout_waits_after_a_start)
{
    open_world(26, 1);
    publishes(1);
    UNTIL(w, SECOND, world_all_active(w, 1));
    drains("w1");
    UNTIL(w, 2 * BEAT_US, workers[0]->events_by_type[HEDDLE_EVENT_DRAINING] == 1);
    world_broker_kill(w);
    world_broker_start(w);
    UNTIL(w, 2 * LEASE_US, w->broker->rollout.is_settled);
    MUST(w, row("w1")->state == MEMBER_DRAINING);
    MUST(w, !copy_find(world_track(w, 1), "w1")->is_eligible);
}

/* Nor does a wait for all of them. */
Test(drain, no_wait_counts_it)
{
    open_last_holder(27);
    actor_t *late = world_worker(w, "w2", (worker_conf_t){.max_rate_bytes = RATE});
    UNTIL(w, 5 * SECOND, worker_active(late) == 2);
    actor_stop(workers[0], true);
    drains("w1");
    MUST(w, admin_activates(admin, 2) == HEDDLE_OK);
    MUST(w, admin_integer(admin, "eligible_count") == 1);
}

/* The same of a rollout that has begun. */
Test(drain, a_rollout_waits_no_more)
{
    open_world(5, 3);
    publishes(1);
    UNTIL(w, SECOND, world_all_active(w, 1));
    actor_stop(workers[0], true);
    publishes(2);
    world_run(w, BEAT_US);
    MUST(w, !strcmp(world_state(w, 2), "staging"));
    drains("w1");
    UNTIL(w, BEAT_US / 4, worker_active(workers[1]) == 2 && worker_active(workers[2]) == 2);
}

/* It says what only it has, and stays; a worker that comes takes that over. */
Test(drain, the_last_worker)
{
    open_last_holder(6);
    drains("w1");
    world_run(w, 4 * LEASE_US);
    MUST(w, !has_left(workers[0]) && worker_active(workers[0]) == 2);
    const track_t *only[4];
    view_t v = {&w->broker->registry, &w->broker->members, {.us = w->now_us}};
    MUST(w, drain_only_here(&w->broker->rollout, v, row("w1"), only, 4) == 2);
    MUST(w, only[0]->version == 1 && only[1]->version == 2);
    actor_t *late = world_worker(w, "w2", (worker_conf_t){0});
    UNTIL(w, 6 * BEAT_US, has_left(workers[0]));
    MUST(w, worker_active(late) == 2);
    kept_is_at(late);
}

/* Its bytes are lost with it, and nothing waits for them. */
Test(drain, the_drained_one_dies)
{
    open_last_holder(7);
    actor_t *late = world_worker(w, "w2", (worker_conf_t){.max_rate_bytes = RATE});
    UNTIL(w, 5 * SECOND, worker_active(late) == 2);
    drains("w1");
    UNTIL(w, 2 * BEAT_US, copy_is_out(copy_find(world_track(w, 1), "w2")));
    world_run(w, SECOND / 2);
    actor_kill(workers[0]);
    UNTIL(w, 3 * LEASE_US, !strcmp(world_state(w, 1), "lost"));
    MUST(w, worker_active(late) == 2 && row("w1")->state == MEMBER_LOST);
    world_run(w, LEASE_US);
    check_settled(w);
}

/* Another one takes its place; one that died holds nothing, though its lease lasts. */
static void taker_dies(uint64_t seed, bool is_done)
{
    open_last_holder(seed);
    actor_t *late[2] = {world_worker(w, "w2", (worker_conf_t){.max_rate_bytes = RATE}),
                        world_worker(w, "w3", (worker_conf_t){.max_rate_bytes = RATE})};
    UNTIL(w, 9 * SECOND, worker_active(late[0]) == 2 && worker_active(late[1]) == 2);
    drains("w1");
    UNTIL(w, 2 * BEAT_US, copy_is_out(copy_find(world_track(w, 1), "w2")));
    if (is_done) {
        actor_cut(workers[0], true); /* it does not hear that it may leave */
        UNTIL(w, LEASE_US - 2 * SECOND, worker_holds(late[0], 1));
    }
    actor_kill(late[0]);
    if (is_done) world_run(w, LEASE_US / 2 + SECOND / 4);
    actor_cut(workers[0], false);
    UNTIL(w, 4 * LEASE_US, has_left(workers[0]));
    kept_is_at(late[1]);
    world_destroy(&w);
}
Test(drain, the_taker_dies) { taker_dies(8, false); }
Test(drain, the_taker_dies_with_all_bytes) { taker_dies(9, true); }

/* The worker restates that it drains, and the broker waits for what others restate. */
Test(drain, the_broker_is_started_again)
{
    for (int step = 0; step < 3; step++) {
        open_last_holder(10 + (uint64_t)step);
        actor_t *late = world_worker(w, "w2", (worker_conf_t){.max_rate_bytes = RATE});
        UNTIL(w, 5 * SECOND, worker_active(late) == 2);
        drains("w1");
        UNTIL(w, 2 * BEAT_US, workers[0]->events_by_type[HEDDLE_EVENT_DRAINING] == 1);
        world_run(w, (uint64_t)step * SECOND / 2);
        world_broker_kill(w);
        world_run(w, SECOND);
        world_broker_start(w);
        UNTIL(w, LEASE_US, row("w1") && member_is_ready(row("w1")));
        MUST(w, row("w1")->state == MEMBER_DRAINING);
        UNTIL(w, 4 * LEASE_US, has_left(workers[0]));
        kept_is_at(late);
        world_destroy(&w);
    }
}

/* A publisher that serves the version is a holder. */
Test(drain, the_publisher_is_the_other_holder)
{
    open_world(20, 2);
    publishes(1);
    UNTIL(w, SECOND, world_all_active(w, 1));
    actor_stop(workers[1], true);
    publishes(2);
    UNTIL(w, SECOND, worker_holds(workers[0], 2));
    world_run(w, LEASE_US / 2);
    drains("w1");
    world_run(w, BEAT_US);
    MUST(w, !has_left(workers[0])); /* version 1 is only here: the other one may be dead */
    actor_stop(workers[1], false);
    UNTIL(w, 2 * BEAT_US, has_left(workers[0]));
    UNTIL(w, 2 * LEASE_US, worker_active(workers[1]) == 2);
    MUST(w, !strcmp(world_state(w, 2), "active"));
}

/* It may write the next version over the bytes at any time. */
Test(drain, a_released_publisher_is_no_holder)
{
    open_world(24, 1);
    publishes(1);
    UNTIL(w, SECOND, world_all_active(w, 1));
    MUST(w, world_track(w, 1)->plan.publisher.state == PUBLISHER_RELEASED);
    drains("w1");
    world_run(w, 2 * LEASE_US);
    MUST(w, !has_left(workers[0]));
}

/* What is announced last is fetched first: a kept version waits until the newest is there. */
Test(drain, a_rollout_comes_first)
{
    open_world(25, 1);
    publishes(1);
    UNTIL(w, SECOND, world_all_active(w, 1));
    publishes(2);
    UNTIL(w, SECOND, world_all_active(w, 2));
    actor_t *late = world_worker(w, "w2", (worker_conf_t){.max_rate_bytes = RATE});
    UNTIL(w, 5 * SECOND, worker_active(late) == 2);
    publishes(3);
    drains("w1");
    UNTIL(w, BEAT_US / 2, copy_is_out(copy_find(world_track(w, 3), "w2")));
    for (uint64_t end_us = w->now_us + 5 * SECOND; worker_active(late) != 3 && world_step(w, end_us);)
        MUST(w, !copy_find(world_track(w, 1), "w2"));
    MUST(w, worker_active(late) == 3);
    UNTIL(w, 4 * BEAT_US, has_left(workers[0]));
}

/* A process that comes under the name of one that left is a worker like any other. */
Test(drain, it_comes_back)
{
    open_world(21, 2);
    publishes(1);
    UNTIL(w, SECOND, world_all_active(w, 1));
    drains("w1");
    UNTIL(w, 3 * BEAT_US, has_left(workers[0]));
    actor_kill(workers[0]);
    actor_start(workers[0]);
    UNTIL(w, 2 * SECOND, worker_active(workers[0]) == 1);
    MUST(w, row("w1")->state == MEMBER_READY);
    publishes(2);
    UNTIL(w, SECOND, world_all_active(w, 2));
    MUST(w, copy_find(world_track(w, 2), "w1")->is_eligible);
}

/* A new session of the same process drains on, whether it had heard of it or not. */
Test(drain, its_line_breaks)
{
    open_last_holder(22);
    drains("w1");
    actor_break(workers[0]);
    UNTIL(w, 2 * SECOND, worker_is_ready(workers[0]));
    MUST(w, row("w1")->state == MEMBER_DRAINING);
    world_run(w, LEASE_US);
    MUST(w, !has_left(workers[0]));
}

/* Half of 16 go while versions come: four are drained, four are killed.  Every version becomes active, and
 * each worker that stays serves it within a heartbeat of its decision. */
Test(drain, half_of_16_during_publishes)
{
    open_world(23, 16);
    uint64_t late_us = 0, decided_us = 0, active = 0;
    for (uint64_t version = 1; version <= 16; version++) {
        publishes(version);
        uint64_t looked_us = w->now_us; /* a decision that is found was made since then */
        if (version >= 4 && version < 8) drains(workers[version - 4]->name);
        if (version >= 8 && version < 12) actor_kill(workers[version - 4]);
        uint64_t end_us = w->now_us + 2 * LEASE_US;
        bool is_done = false;
        while (!is_done && world_step(w, end_us)) {
            if (world_adapter(w) && world_adapter(w)->active != active) {
                active = world_adapter(w)->active;
                decided_us = looked_us;
            }
            looked_us = w->now_us;
            is_done = true;
            for (int i = 8; i < 16; i++) is_done &= worker_active(workers[i]) == version;
            bool is_behind = false;
            for (int i = 8; i < 16; i++) is_behind |= active && worker_active(workers[i]) != active;
            if (is_behind && w->now_us - decided_us > late_us) late_us = w->now_us - decided_us;
        }
        MUST(w, is_done);
        MUST(w, !strcmp(world_state(w, version), "active"));
    }
    MUST(w, late_us <= BEAT_US);
    for (int i = 0; i < 4; i++) {
        MUST(w, has_left(workers[i]));
        actor_kill(workers[i]);
    }
    world_run(w, 2 * LEASE_US);
    check_settled(w);
}
