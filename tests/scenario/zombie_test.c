/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that were stopped, cut off or replaced, and what they do with what waited for them. */
#include "tests/scenario/world.h"

#define LEASE_US (4 * SECOND)

static world_t *w;
static actor_t *workers[3], *trainer;

static void setup(void)
{
    w = world_new((world_opts_t){.seed = 11, .keep = 1});
    trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, 3, (worker_conf_t){0}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer));
}
static void teardown(void)
{
    world_destroy(&w);
    content_forget_all();
}
TestSuite(zombie, .init = setup, .fini = teardown);

/* Stops w3 when version 2 is staged everywhere, before it reads the COMMIT. */
static void stop_before_the_commit(void)
{
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    trainer_publish(trainer, (publish_t){.shape = {.seed = 2}});
    UNTIL(w, 2 * SECOND, world_adapter(w)->decision == 2);
    MUST(w, worker_active(workers[2]) == 1 && worker_holds(workers[2], 2));
    actor_stop(workers[2], true);
    UNTIL(w, SECOND, worker_active(workers[0]) == 2 && worker_active(workers[1]) == 2);
    MUST(w, workers[2]->inbox_count > 0);
}

/* The broker stands still.  A publication that was given up meanwhile is read when it goes on, and must not
 * become active after its call has failed.  One whose call still waits does. */
static void publish_while_the_broker_stands_still(uint64_t stop_us)
{
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    actor_stop(w->host, true);
    trainer_publish(trainer, (publish_t){.shape = {.seed = 2}});
    world_run(w, stop_us - SECOND);
    trainer_gives_up(trainer);
    world_run(w, SECOND);
    MUST(w, w->host->inbox_count > 0);
    actor_stop(w->host, false);
    world_run(w, 2 * LEASE_US);
    MUST(w, world_adapter(w)->last_version == 1 && world_all_active(w, 1));
    actor_stop(w->host, true);
    trainer_publish(trainer, (publish_t){.shape = {.seed = 3}});
    world_run(w, stop_us);
    actor_stop(w->host, false);
    UNTIL(w, LEASE_US, world_all_active(w, 2));
    check_settled(w);
}
Test(zombie, a_publication_that_was_given_up_is_not_recorded_past_a_lease)
{
    publish_while_the_broker_stands_still(2 * LEASE_US);
}
Test(zombie, a_publication_that_was_given_up_is_not_recorded_within_a_lease)
{
    publish_while_the_broker_stands_still(3 * SECOND);
}

/* Longer than its lease: what waits under the old token is nothing any more. */
Test(zombie, a_queued_commit_is_not_applied)
{
    stop_before_the_commit();
    uint64_t token = worker_node_core(workers[2]->worker)->member.session.token;
    world_run(w, 2 * LEASE_US);
    MUST(w, membership_worker(&w->broker->members, "w3")->state == MEMBER_LOST);
    actor_stop(workers[2], false);
    uint64_t commits = w->sent[MSG_COMMIT];
    UNTIL(w, SECOND, !workers[2]->inbox_count || worker_is_ready(workers[2]) == false);
    while (!worker_is_ready(workers[2]) ||
           worker_node_core(workers[2]->worker)->member.session.token == token) {
        MUST(w, worker_active(workers[2]) == 1); /* until WELCOME says so itself */
        MUST(w, world_step(w, w->now_us + SECOND));
    }
    UNTIL(w, SECOND, worker_active(workers[2]) == 2);
    MUST(w, w->sent[MSG_COMMIT] == commits); /* it was WELCOME that said it */
    MUST(w,
         worker_fenced(workers[2]) > 0 && worker_node_core(workers[2]->worker)->member.session.token > token);
    MUST(w, actor_counters(workers[2]).bytes_in == actor_counters(workers[0]).bytes_in);
    world_run(w, LEASE_US);
    check_settled(w);
}

static void send_commit(actor_t *to, uint64_t token, uint64_t version, uint64_t decision)
{
    msg_t m = {.type = MSG_COMMIT};
    m.commit = (msg_commit_t){.token = token,
                              .version = version,
                              .decision = decision,
                              .adapter = ADAPTER,
                              .digest = world_version(w, version)->digest};
    buf_t frame = {0};
    cr_assert_eq(msg_encode(&m, &frame), HEDDLE_OK);
    actor_deliver(to, 0, buf_view(&frame), &to->in_us);
    buf_fini(&frame);
}

/* A COMMIT that took a long way round: an older decision, or the token of an older session. */
Test(zombie, an_older_commit_changes_nothing)
{
    for (uint64_t v = 1; v <= 3; v++) {
        trainer_publishes(trainer, (publish_t){.shape = {.seed = v}});
        UNTIL(w, 2 * SECOND, world_all_active(w, v));
    }
    MUST(w, worker_holds(workers[0], 2));
    uint64_t token = worker_node_core(workers[0]->worker)->member.session.token;
    send_commit(workers[0], token, 2, 2);
    send_commit(workers[0], token, 2, 3);
    send_commit(workers[0], token - 1, 2, 4);
    world_run(w, SECOND);
    MUST(w, worker_active(workers[0]) == 3 &&
                worker_node_adapter(workers[0]->worker, 0)->versions.applied.decision == 3);
    check_settled(w);
}

/* Shorter than its lease: nothing happened. */
Test(zombie, a_short_stop_is_nothing)
{
    stop_before_the_commit();
    uint64_t token = worker_node_core(workers[2]->worker)->member.session.token;
    world_run(w, LEASE_US / 2);
    actor_stop(workers[2], false);
    UNTIL(w, SECOND, world_all_active(w, 2));
    MUST(w, worker_node_core(workers[2]->worker)->member.session.token == token &&
                worker_fenced(workers[2]) == 0);
    world_run(w, LEASE_US);
    MUST(w, worker_node_core(workers[2]->worker)->member.session.token == token);
    check_settled(w);
}

/* Cut off for long: it serves on, and comes back by itself. */
Test(zombie, cut_off_and_healed)
{
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    actor_cut(workers[2], true);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}});
    UNTIL(w, 2 * LEASE_US, worker_active(workers[0]) == 2 && worker_active(workers[1]) == 2);
    world_run(w, 2 * LEASE_US);
    MUST(w, worker_active(workers[2]) == 1 && !worker_is_ready(workers[2]));
    actor_cut(workers[2], false);
    UNTIL(w, LEASE_US, world_all_active(w, 2));
    check_settled(w);
}

/* A short break of the line costs a new session, and no bytes. */
Test(zombie, a_broken_line_costs_no_bytes)
{
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    uint64_t bytes = actor_counters(workers[1]).bytes_in,
             token = worker_node_core(workers[1]->worker)->member.session.token;
    actor_break(workers[1]);
    UNTIL(w, SECOND,
          worker_is_ready(workers[1]) && worker_node_core(workers[1]->worker)->member.session.token != token);
    world_run(w, 2 * LEASE_US);
    MUST(w, actor_counters(workers[1]).bytes_in == bytes);
    MUST(w, w->broker->members.worker_count == 3);
    check_settled(w);
}

/* Another process under a name that is alive waits; under one that went silent it takes over, and the old
 * one hears it. */
Test(zombie, one_name_twice)
{
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    actor_t *other = world_worker(w, "w1", (worker_conf_t){0});
    world_run(w, 2 * LEASE_US);
    MUST(w, !worker_is_ready(other) && worker_is_ready(workers[0]));
    MUST(w, other->events_by_type[HEDDLE_EVENT_REFUSED] > 0);
    actor_stop(workers[0], true);
    UNTIL(w, 2 * LEASE_US, worker_is_ready(other));
    actor_stop(workers[0], false);
    world_run(w, 2 * SECOND);
    MUST(w, !worker_is_ready(workers[0]) && worker_is_ready(other));
    MUST(w, worker_active(workers[0]) == 1); /* it serves what it has, and counts nowhere */
    actor_kill(workers[0]);
    world_run(w, LEASE_US);
    check_settled(w);
}

/* A publisher that was stopped for long, and nobody took its place: it goes on as the writer. */
Test(zombie, a_stopped_publisher)
{
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    actor_stop(trainer, true);
    world_run(w, 2 * LEASE_US);
    MUST(w, world_adapter(w)->writer.token == 0);
    actor_stop(trainer, false);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}}) == 2);
    UNTIL(w, 2 * SECOND, world_all_active(w, 2));
    check_settled(w);
}

/* The same, and somebody did: what it says is refused, also what was on its way. */
Test(zombie, a_replaced_publisher)
{
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    actor_stop(trainer, true);
    actor_t *bob = world_trainer(w, "bob", (trainer_conf_t){.takeover = true});
    UNTIL(w, SECOND, trainer_is_ready(bob));
    actor_stop(trainer, false);
    trainer_publish(trainer, (publish_t){.shape = {.seed = 2}});
    UNTIL(w, 2 * LEASE_US, trainer->published.is_answered);
    MUST(w, trainer->published.code == HEDDLE_ERR_FENCED);
    MUST(w, world_adapter(w)->last_version == 1);
    MUST(w, trainer_publishes(bob, (publish_t){.shape = {.seed = 3}}) == 2);
    UNTIL(w, 2 * SECOND, world_all_active(w, 2));
    world_run(w, LEASE_US);
    MUST(w, trainer_standing(trainer) == HEDDLE_ERR_FENCED && trainer_is_ready(bob));
    check_settled(w);
}
