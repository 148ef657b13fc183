/* SPDX-License-Identifier: Apache-2.0 */
/* The broker dies at each of its own steps while a version is published, and comes back; its disk
 * refuses; all come back to it. */
#include "tests/scenario/world.h"

#include <stdio.h>

#define LEASE_US (4 * SECOND)
enum { WORKERS = 3 };

static world_t *w;
static actor_t *workers[WORKERS], *trainer;

static void open_world(uint64_t seed)
{
    w = world_new((world_opts_t){.seed = seed, .keep = 1});
    trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, WORKERS, (worker_conf_t){0}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer));
}

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(restart, .fini = close_world);

/* Version 1 is served; 2 is published, and the broker dies at step `point` of it.  Returns whether it
 * came so far. */
static bool dies_at(uint64_t point, int kind)
{
    open_world(point + 1);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    world_run(w, 50 * MS);
    w->points = 0;
    w->die_at = point;
    w->die_kind = kind;
    trainer_publish(trainer, (publish_t){.shape = {.seed = 2}});
    uint64_t end_us = w->now_us + 500 * MS;
    while (w->broker && world_step(w, end_us)) continue;
    bool died = !w->broker;
    w->die_at = 0;
    if (died) {
        world_run(w, 300 * MS); /* serving goes on meanwhile */
        for (int i = 0; i < WORKERS; i++) MUST(w, worker_active(workers[i]) >= 1);
        world_broker_start(w);
    }
    UNTIL(w, 3 * LEASE_US, world_all_active(w, 2));
    MUST(w, trainer->published.is_answered && !trainer->published.code && trainer->published.version == 2);
    UNTIL(w, LEASE_US, !strcmp(trainer->rolled.state, "active"));
    world_run(w, LEASE_US);
    uint64_t both =
        content_bytes(content_get((content_shape_t){1, 8, 1024})) + content_bytes(trainer->published.content);
    for (int i = 0; i < WORKERS; i++)
        MUST(w, actor_counters(workers[i]).bytes_in == both); /* nothing is fetched again */
    check_settled(w);
    world_destroy(&w);
    return died;
}

Test(restart, at_every_step_of_a_publication)
{
    uint64_t point = 1;
    while (dies_at(point, -1)) point++;
    printf("%llu steps\n", (unsigned long long)(point - 1));
    cr_assert_gt(point, 12);
}

/* It comes back and dies again, in the middle of the return. */
Test(restart, again_and_again)
{
    open_world(99);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    trainer_publish(trainer, (publish_t){.shape = {.seed = 2}});
    for (uint64_t point = 1; point < 12; point++) {
        w->points = 0;
        w->die_at = point;
        uint64_t end_us = w->now_us + 2 * SECOND;
        while (w->broker && world_step(w, end_us)) continue;
        w->die_at = 0;
        if (!w->broker) world_broker_start(w);
    }
    UNTIL(w, 4 * LEASE_US, world_all_active(w, 2));
    world_run(w, LEASE_US);
    check_settled(w);
}

/* Away for much longer than a lease: everybody serves what he has, and comes back with what he has. */
Test(restart, after_a_long_time)
{
    open_world(3);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    world_broker_kill(w);
    world_run(w, 10 * LEASE_US);
    for (int i = 0; i < WORKERS; i++) MUST(w, worker_active(workers[i]) == 1 && !worker_is_ready(workers[i]));
    world_broker_start(w);
    UNTIL(w, LEASE_US, world_all_active(w, 1) && trainer_is_ready(trainer));
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}}) == 2);
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 2));
    check_settled(w);
}

/* Settling: nobody is expired and nothing decided for a lease, however soon all are back. */
Test(restart, settles_for_a_lease)
{
    open_world(4);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    world_broker_kill(w);
    world_broker_start(w);
    uint64_t start_us = w->now_us;
    UNTIL(w, SECOND, trainer_is_ready(trainer) && world_all_ready(w, WORKERS));
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}});
    UNTIL(w, SECOND,
          worker_holds(workers[0], 2) && worker_holds(workers[1], 2) && worker_holds(workers[2], 2));
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 2));
    MUST(w, w->now_us >= start_us + LEASE_US && w->now_us < start_us + LEASE_US + 500 * MS);
    check_settled(w);
}

/* A worker that does not come back counts no more once the broker has settled. */
Test(restart, without_one_worker)
{
    open_world(5);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    world_broker_kill(w);
    actor_kill(workers[2]);
    world_broker_start(w);
    UNTIL(w, SECOND, trainer_is_ready(trainer));
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}});
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 2));
    check_settled(w);
}

/* A stopped broker is late itself: nobody loses his lease to that. */
Test(restart, stopped_and_resumed)
{
    open_world(6);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    actor_stop(w->host, true);
    world_run(w, 3 * LEASE_US);
    actor_stop(w->host, false);
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 1) && trainer_is_ready(trainer));
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}}) == 2);
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 2));
    check_settled(w);
}

/* The disk is full: nothing happened, and it is said; with room again the same publication goes through.
 */
Test(restart, no_space)
{
    open_world(7);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    w->commit_code = HEDDLE_ERR_NO_SPACE;
    trainer_publish(trainer, (publish_t){.shape = {.seed = 2}, .request_id = "two"});
    UNTIL(w, SECOND, trainer->published.is_answered);
    MUST(w, trainer->published.code == HEDDLE_ERR_NO_SPACE);
    MUST(w, world_adapter(w)->last_version == 1);
    w->commit_code = 0;
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}, .request_id = "two"}) == 2);
    /* and full again before the decision */
    UNTIL(w, 2 * SECOND, world_all_active(w, 2));
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 3}});
    w->commit_code = HEDDLE_ERR_NO_SPACE;
    world_run(w, 3 * SECOND);
    MUST(w, world_all_active(w, 2));
    w->commit_code = 0;
    UNTIL(w, 3 * SECOND, world_all_active(w, 3));
    check_settled(w);
}

/* The disk fails in a way that leaves it open what is on it: the broker ends rather than guess. */
Test(restart, broken_disk)
{
    open_world(8);
    w->commit_code = HEDDLE_ERR_DATA_DIR;
    trainer_publish(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, SECOND, !w->broker);
    MUST(w, w->fatal != NULL);
    w->commit_code = 0;
    world_broker_start(w);
    UNTIL(w, 3 * LEASE_US, world_all_active(w, 1));
    check_settled(w);
}

/* The same request twice is one version, also over a restart; the same id for other bytes is refused. */
Test(restart, one_request_one_version)
{
    open_world(9);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}, .request_id = "one"});
    world_broker_kill(w);
    world_broker_start(w);
    UNTIL(w, LEASE_US, trainer_is_ready(trainer));
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}, .request_id = "one"}) == 1);
    MUST(w, !trainer->published.created);
    trainer_publish(trainer, (publish_t){.shape = {.seed = 2}, .request_id = "one"});
    UNTIL(w, SECOND, trainer->published.is_answered);
    MUST(w, trainer->published.code == HEDDLE_ERR_REQUEST_CONFLICT);
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 1));
    MUST(w, world_adapter(w)->last_version == 1);
    check_settled(w);
}

/* ---- a worker starts again, or joins late, in the middle of a rollout ---- */

/* The share of the version that the worker is fetching which has arrived, in percent; -1: it fetches another
 * one, or none. */
static int fetched_percent(const actor_t *a, uint64_t version)
{
    const download_t *p = a->worker ? worker_node_adapter(a->worker, 0)->intake.download : NULL;
    if (!p || p->what->version != version) return -1;
    return (int)(p->bytes_done * 100 / p->part->payload_bytes);
}

/* Version 1 is served, and all workers have 64 KiB/s each way, so that a version takes longer than a lease.  w3
 * starts again when the others have so much of version 2.  Returns the share of version 1 that w3 has when
 * version 2 is decided. */
static int starts_again_at(int percent, uint64_t keep)
{
    w = world_new((world_opts_t){.seed = 10, .keep = keep});
    trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, WORKERS, (worker_conf_t){.max_rate_bytes = 1 << 16}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer));
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 80 * SECOND, world_all_active(w, 1));
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}});
    UNTIL(w, 80 * SECOND, fetched_percent(workers[0], 2) >= percent);
    actor_kill(workers[2]);
    actor_start(workers[2]);
    UNTIL(w, SECOND, fetched_percent(workers[2], 1) >= 0);
    UNTIL(w, 80 * SECOND, world_adapter(w)->active == 2);
    int share = fetched_percent(workers[2], 1);
    printf("%d %% of version 1 had arrived\n", share);
    return share;
}

/* Version 1 would be obsolete when it arrives: the worker fetches version 2 alone.  The broker learns that at
 * once, and keeps version 1 for no fetch. */
Test(restart, a_worker_that_starts_again_in_a_rollout_fetches_what_is_decided_meanwhile)
{
    MUST(w, starts_again_at(80, 0) < 50);
    UNTIL(w, 10 * MS, !strcmp(world_state(w, 1), "retired"));
    MUST(w, !worker_active(workers[2]));
    UNTIL(w, 80 * SECOND, worker_active(workers[2]));
    MUST(w, worker_active(workers[2]) == 2);
    MUST(w, actor_counters(workers[2]).bytes_in < content_bytes(trainer->published.content) * 3 / 2);
    world_run(w, SECOND);
    check_settled(w);
}

/* What it has given up is not shown as fetched on. */
Test(restart, what_a_worker_gave_up_is_not_shown_as_fetched)
{
    MUST(w, starts_again_at(80, 1) < 50);
    UNTIL(w, 10 * MS, fetched_percent(workers[2], 2) >= 0);
    world_run(w, 10 * MS);
    MUST(w, !strcmp(world_state(w, 1), "kept"));
    MUST(w, copy_find(world_track(w, 1), "w3")->state == COPY_WAITING);
    UNTIL(w, 80 * SECOND, world_all_active(w, 2));
    check_settled(w);
}

/* Version 1 has arrived almost: the worker serves it until it has version 2. */
Test(restart, a_worker_that_starts_again_early_in_a_rollout_serves_the_version_before)
{
    MUST(w, starts_again_at(40, 0) >= 50);
    UNTIL(w, 20 * SECOND, worker_active(workers[2]));
    MUST(w, worker_active(workers[2]) == 1);
    UNTIL(w, 80 * SECOND, world_all_active(w, 2));
    world_run(w, SECOND);
    check_settled(w);
}
