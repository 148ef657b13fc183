/* SPDX-License-Identifier: Apache-2.0 */
/* Workers and sources that die, stop and come back, and bytes that arrive wrong. */
#include "tests/scenario/world.h"

#include <heddle/publisher.h>
#include <stdio.h>

#define LEASE_US (4 * SECOND)
#define RATE (8u << 20) /* so that the 2 MiB below take a quarter of a second for one worker */

static const content_shape_t WIDE = {.seed = 1, .count = 32, .rows = 1024};

static world_t *w;
static actor_t *workers[4], *trainer;

static void open_world(uint64_t seed, uint32_t count, trainer_conf_t conf)
{
    w = world_new((world_opts_t){.seed = seed, .keep = 1});
    trainer = world_trainer(w, "ann", conf);
    world_workers(w, count, (worker_conf_t){0}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer));
}

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(kills, .fini = close_world);

static uint64_t bytes_in(const actor_t *a) { return actor_counters(a).bytes_in; }

/* ---- a worker dies while it fetches
 * ----------------------------------------------------------------------------- */

static void worker_dies_at(uint32_t percent)
{
    open_world(percent + 1, 3, (trainer_conf_t){.max_rate_bytes = RATE});
    trainer_publish(trainer, (publish_t){.shape = WIDE});
    uint64_t content = content_bytes(content_get(WIDE));
    UNTIL(w, 5 * SECOND,
          bytes_in(workers[2]) * 100 >= content * percent && (percent > 0 || worker_is_ready(workers[2])));
    actor_kill(workers[2]);
    uint64_t killed_us = w->now_us;
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 1));
    MUST(w, w->now_us - killed_us <= LEASE_US + 500 * MS); /* nobody waits longer for it than its lease */
    UNTIL(w, 2 * LEASE_US, !member_is_ready(membership_worker(&w->broker->members, "w3")));
    MUST(w, bytes_in(workers[0]) == content && bytes_in(workers[1]) == content);
    UNTIL(w, SECOND, !strcmp(trainer->rolled.state, "active"));
    actor_start(workers[2]);
    UNTIL(w, 3 * SECOND, worker_active(workers[2]) == 1);
    world_run(w, SECOND);
    check_settled(w);
    world_destroy(&w);
}

Test(kills, worker_in_mid_fetch)
{
    for (uint32_t percent = 0; percent < 100; percent += 10) worker_dies_at(percent);
}

/* ---- a source dies while it serves
 * ------------------------------------------------------------------------------ */

/* Two holders and a late joiner that is slow: the one that serves it dies, the other goes on where it
 * was. */
static void source_dies_at(uint32_t percent)
{
    open_world(percent + 100, 2, (trainer_conf_t){0});
    trainer_publishes(trainer, (publish_t){.shape = WIDE});
    UNTIL(w, 5 * SECOND, world_all_active(w, 1));
    actor_leave(trainer);
    UNTIL(w, SECOND, trainer_has_left(trainer));
    actor_kill(trainer);
    actor_t *late = world_worker(w, "w9", (worker_conf_t){.max_rate_bytes = RATE});
    uint64_t content = content_bytes(content_get(WIDE)),
             out[2] = {actor_counters(workers[0]).bytes_out, actor_counters(workers[1]).bytes_out};
    UNTIL(w, 5 * SECOND, bytes_in(late) * 100 >= content * percent && bytes_in(late) > 0);
    int serving = actor_counters(workers[0]).bytes_out > out[0] ? 0 : 1;
    actor_kill(workers[serving]);
    uint64_t killed_us = w->now_us;
    UNTIL(w, 10 * SECOND, worker_active(late) == 1);
    MUST(w, w->now_us - killed_us < 2 * SECOND); /* a death is noticed, not waited for */
    MUST(w, bytes_in(late) >= content && bytes_in(late) - content <= LIMIT_WINDOW_BYTES);
    MUST(w, actor_counters(workers[1 - serving]).bytes_out > out[1 - serving]);
    world_run(w, 2 * LEASE_US);
    check_settled(w);
    world_destroy(&w);
}

Test(kills, source_in_mid_fetch)
{
    for (uint32_t percent = 10; percent < 100; percent += 20) source_dies_at(percent);
}

/* A source that stops is not noticed by its connection: the deadline of the fetch does it. */
Test(kills, source_stops)
{
    open_world(5, 2, (trainer_conf_t){0});
    trainer_publishes(trainer, (publish_t){.shape = WIDE});
    UNTIL(w, 5 * SECOND, world_all_active(w, 1));
    actor_kill(trainer);
    actor_t *late = world_worker(w, "w9", (worker_conf_t){.max_rate_bytes = RATE});
    uint64_t content = content_bytes(content_get(WIDE)), out = actor_counters(workers[0]).bytes_out;
    UNTIL(w, 5 * SECOND, bytes_in(late) * 2 >= content);
    actor_t *source = workers[actor_counters(workers[0]).bytes_out > out ? 0 : 1];
    actor_stop(source, true);
    UNTIL(w, 30 * SECOND, worker_active(late) == 1);
    MUST(w, bytes_in(late) - content <= LIMIT_WINDOW_BYTES);
    actor_stop(source, false);
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 1));
    world_run(w, LEASE_US);
    check_settled(w);
}

/* The publisher dies in the middle, before anybody has it all: the version is lost, and its number with
 * it; it comes again with the same request, and becomes the next one. */
Test(kills, publisher_in_mid_fetch)
{
    open_world(6, 3, (trainer_conf_t){.max_rate_bytes = RATE});
    trainer_publish(trainer, (publish_t){.shape = WIDE});
    uint64_t content = content_bytes(content_get(WIDE));
    UNTIL(w, 5 * SECOND, bytes_in(workers[0]) * 2 >= content);
    actor_kill(trainer);
    UNTIL(w, 3 * LEASE_US, !strcmp(world_state(w, 1), "failed"));
    MUST(w, world_version(w, 1)->code == HEDDLE_ERR_VERSION_LOST);
    world_run(w, SECOND);
    for (int i = 0; i < 3; i++) MUST(w, worker_slots_used(workers[i]) == 0); /* half of it is nothing */
    actor_start(trainer);
    UNTIL(w, LEASE_US, trainer_is_ready(trainer));
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = WIDE}) == 2);
    UNTIL(w, 5 * SECOND, world_all_active(w, 2));
    world_run(w, LEASE_US);
    check_settled(w);
}

/* The publisher's line breaks: the session ends on neither side, and what it serves goes on. */
Test(kills, publisher_is_cut_off)
{
    open_world(7, 3, (trainer_conf_t){.max_rate_bytes = RATE});
    trainer_publish(trainer, (publish_t){.shape = WIDE});
    uint64_t content = content_bytes(content_get(WIDE));
    UNTIL(w, 5 * SECOND, bytes_in(workers[0]) * 4 >= content);
    actor_cut(trainer, true);
    UNTIL(w, 5 * SECOND, world_all_active(w, 1));
    world_run(w, 2 * LEASE_US);
    actor_cut(trainer, false);
    UNTIL(w, LEASE_US, trainer_is_ready(trainer));
    UNTIL(w, SECOND, trainer->published.is_answered && !trainer->published.code);
    for (int i = 0; i < 3; i++) MUST(w, bytes_in(workers[i]) == content);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}}) == 2);
    UNTIL(w, 5 * SECOND, world_all_active(w, 2));
    check_settled(w);
}

/* ---- bytes that arrive wrong
 * ------------------------------------------------------------------------------------ */

Test(kills, one_wrong_chunk)
{
    open_world(8, 1, (trainer_conf_t){0});
    trainer_publishes(trainer, (publish_t){.shape = WIDE});
    UNTIL(w, 5 * SECOND, world_all_active(w, 1));
    mem_corrupt_data(workers[0]->t, 20, 77);
    actor_t *late = world_worker(w, "w9", (worker_conf_t){0});
    UNTIL(w, 30 * SECOND, worker_active(late) == 1); /* the rest came from the publisher */
    MUST(w, worker_node_core(late->worker)->bulk.chunks_bad == 1);
    MUST(w, actor_counters(late).bytes_in - content_bytes(content_get(WIDE)) <= LIMIT_WINDOW_BYTES);
    world_run(w, SECOND);
    check_settled(w);
}

static void corrupt_all(void *self)
{
    (void)self;
    mem_corrupt_data(trainer->t, 1, 3);
}

/* The only source is always wrong: nobody serves it, the one before goes on. */
Test(kills, always_wrong)
{
    open_world(9, 2, (trainer_conf_t){0});
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 4}});
    UNTIL(w, 5 * SECOND, world_all_active(w, 1));
    trainer_publish(trainer, (publish_t){.shape = WIDE, .deadline_ms = 20000});
    uint64_t end_us = w->now_us + 25 * SECOND;
    do corrupt_all(NULL);
    while (world_step(w, end_us) && strcmp(trainer->rolled.state, "failed") != 0);
    printf("failed: %s: %s %s\n", trainer->rolled.code, trainer->rolled.missing_code,
           trainer->rolled.message);
    MUST(w, !strcmp(trainer->rolled.state, "failed"));
    MUST(w, !strcmp(trainer->rolled.code, "digest_mismatch") ||
                !strcmp(trainer->rolled.missing_code, "digest_mismatch"));
    MUST(w, world_all_active(w, 1) && !worker_holds(workers[0], 2) && !worker_holds(workers[1], 2));
    mem_corrupt_data(trainer->t, 0, 0);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 5}}) == 3);
    UNTIL(w, 10 * SECOND, world_all_active(w, 3));
    check_settled(w);
}

/* ---- all holders die
 * -------------------------------------------------------------------------------------------- */

Test(kills, lost_and_found)
{
    open_world(10, 2, (trainer_conf_t){0});
    trainer_publishes(trainer, (publish_t){.shape = WIDE});
    UNTIL(w, 5 * SECOND, world_all_active(w, 1));
    actor_leave(trainer);
    UNTIL(w, SECOND, trainer_has_left(trainer));
    actor_kill(trainer);
    actor_t *admin = world_admin(w);
    actor_kill(workers[0]);
    actor_stop(workers[1], true);
    uint64_t gone_us = w->now_us;
    MUST(w, admin_waits_for(admin, 1, 3, 60000) == HEDDLE_ERR_VERSION_LOST);
    MUST(w, w->now_us - gone_us <= LEASE_US + SECOND);
    MUST(w, !strcmp(world_state(w, 1), "lost"));
    actor_stop(workers[1], false); /* its lease is over, its bytes are there */
    UNTIL(w, LEASE_US, worker_is_ready(workers[1]) && !strcmp(world_state(w, 1), "active"));
    MUST(w, bytes_in(workers[1]) == content_bytes(content_get(WIDE)));
    actor_start(workers[0]);
    UNTIL(w, LEASE_US, world_all_active(w, 1));
    world_run(w, SECOND);
    check_settled(w);
}
