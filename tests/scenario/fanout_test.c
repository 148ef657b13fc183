/* SPDX-License-Identifier: Apache-2.0 */
/* How long a version takes to come to many workers, on links with a rate, in virtual time: in multiples of
 * M/B, the time that its bytes take on one link.  No system can take less than 1. */
#include "tests/scenario/world.h"

#include <stdio.h>

#define RATE 37500000u /* 300 Mbit/s */

static world_t *w;

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(fanout, .fini = close_world);

typedef struct {
    uint32_t workers, tensors; /* of 64 KiB each */
    uint64_t seed;
} wave_t;
typedef struct {
    double staged, active;  /* from the call of publish to the last worker, in M/B */
    double egress, ingress; /* bytes out of the publisher, and into all workers, in M */
    uint64_t active_us;
} figures_t;

static bool all_hold(actor_t *const workers[], uint32_t count, uint64_t version)
{
    for (uint32_t i = 0; i < count; i++)
        if (!worker_holds(workers[i], version)) return false;
    return true;
}

/* One publisher, and workers that are all there before; each has a link of the same rate. */
static figures_t measure(wave_t wave)
{
    static const mem_link_t LINK = {.bytes_per_s = RATE, .latency_us = 100};
    actor_t *workers[ACTORS_MAX];
    w = world_new((world_opts_t){.seed = wave.seed, .keep = 1});
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){.link = LINK});
    world_workers(w, wave.workers, (worker_conf_t){.link = LINK}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer));

    content_shape_t shape = {.seed = wave.seed, .count = wave.tensors, .rows = 1024};
    double bytes = (double)content_arena_bytes(content_get(shape)), unit_us = bytes / RATE * 1e6;
    uint64_t start_us = w->now_us, limit_us = (uint64_t)unit_us * (wave.workers + 2) + SECOND;
    trainer_publish(trainer, (publish_t){.shape = shape});
    UNTIL(w, limit_us, all_hold(workers, wave.workers, 1));
    figures_t f = {.staged = (double)(w->now_us - start_us) / unit_us};
    UNTIL(w, SECOND, world_all_active(w, 1));
    f.active_us = w->now_us - start_us;
    f.active = (double)f.active_us / unit_us;
    f.egress = (double)actor_counters(trainer).bytes_out / bytes;
    for (uint32_t i = 0; i < wave.workers; i++)
        f.ingress += (double)actor_counters(workers[i]).bytes_in / bytes;
    printf("%3u workers, %.1f MB, seed %llu: staged %.3f, active %.3f M/B, %.3f M out of the publisher, "
           "%llu steps\n",
           wave.workers, bytes / 1e6, (unsigned long long)wave.seed, f.staged, f.active, f.egress,
           (unsigned long long)w->steps);
    check_settled(w);
    world_destroy(&w);
    return f;
}

/* Each worker fetches from the publisher. */
static void check_star(wave_t wave)
{
    figures_t f = measure(wave);
    cr_assert_float_eq(f.active, wave.workers, 0.1 + 0.01 * wave.workers);
    cr_assert_float_eq(f.egress, wave.workers, 0.001);
    cr_assert_float_eq(f.ingress, wave.workers, 0.001, "nothing comes twice");
}

Test(fanout, one_worker_takes_the_time_of_the_link)
{
    check_star((wave_t){.workers = 1, .tensors = 256, .seed = 1});
}

Test(fanout, a_star_takes_the_time_of_each)
{
    check_star((wave_t){.workers = 4, .tensors = 128, .seed = 2});
    check_star((wave_t){.workers = 16, .tensors = 128, .seed = 3});
}

Test(fanout, waves_of_many_workers_run_in_virtual_time)
{
    check_star((wave_t){.workers = 64, .tensors = 32, .seed = 4});
    check_star((wave_t){.workers = 128, .tensors = 32, .seed = 5});
}

Test(fanout, the_same_seed_gives_the_same_time)
{
    wave_t wave = {.workers = 8, .tensors = 32, .seed = 6};
    uint64_t first_us = measure(wave).active_us;
    cr_assert_eq(measure(wave).active_us, first_us);
    wave.seed++;
    cr_assert_neq(measure(wave).active_us, first_us);
}
