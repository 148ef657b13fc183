/* SPDX-License-Identifier: Apache-2.0 */
/* The active version goes with its last holder while a worker is in the middle of fetching it: it is lost, and nothing that comes
 * later may wait for it. */
#include "tests/scenario/world.h"

#include <heddle/publisher.h>

#define LEASE_US (4 * SECOND)

static const content_shape_t WIDE = {.seed = 1, .count = 32, .rows = 1024};

static world_t *w;
static actor_t *trainer, *holder, *late;

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(sourceless, .fini = close_world);

/* Version 1 is active on w1, its publisher is gone, and w9 has half of it when w1 is killed. */
static void lose_version_1(uint64_t seed)
{
    w = world_new((world_opts_t){.seed = seed, .keep = 1});
    trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    holder = world_worker(w, "w1", (worker_conf_t){0});
    UNTIL(w, SECOND, trainer_is_ready(trainer) && world_all_ready(w, 1));
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = WIDE}) == 1);
    UNTIL(w, 5 * SECOND, world_all_active(w, 1));
    actor_kill(trainer);
    late = world_worker(w, "w9", (worker_conf_t){.max_rate_bytes = 8u << 20});
    UNTIL(w, 5 * SECOND, actor_counters(late).bytes_in * 2 >= content_bytes(content_get(WIDE)));
    actor_kill(holder);
    actor_start(trainer);
    UNTIL(w, 2 * LEASE_US, trainer_is_ready(trainer));
}

/* A publisher is killed before any worker has all of its version, and the same publication is made again. */
Test(sourceless, the_same_bytes_complete_what_a_killed_publisher_began)
{
    w = world_new((world_opts_t){.seed = 4, .keep = 1});
    trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    late = world_worker(w, "w1", (worker_conf_t){.max_rate_bytes = 8u << 20});
    UNTIL(w, SECOND, trainer_is_ready(trainer) && world_all_ready(w, 1));
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = WIDE}) == 1);
    UNTIL(w, 5 * SECOND, actor_counters(late).bytes_in * 2 >= content_bytes(content_get(WIDE)));
    actor_kill(trainer);
    actor_start(trainer);
    UNTIL(w, 2 * LEASE_US, trainer_is_ready(trainer));
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = WIDE}) == 1);
    MUST(w, !trainer->published.created);
    UNTIL(w, 5 * SECOND, world_all_active(w, 1));
    check_settled(w);
}

static void publish_2(void)
{
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}}) == 2);
    UNTIL(w, LEASE_US, world_all_active(w, 2));
    world_run(w, 2 * LEASE_US);
    check_settled(w);
}

Test(sourceless, the_next_version_comes_at_once)
{
    lose_version_1(1);
    publish_2();
}

Test(sourceless, the_next_version_comes_after_the_holder_was_given_up)
{
    lose_version_1(2);
    UNTIL(w, 2 * LEASE_US, !strcmp(world_state(w, 1), "lost"));
    publish_2();
}

/* The killed one comes back first, with nothing. */
Test(sourceless, the_holder_comes_back_empty)
{
    lose_version_1(3);
    actor_start(holder);
    UNTIL(w, LEASE_US, worker_is_ready(holder));
    publish_2();
}
