/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that the kernel gives memory to slowly. */
#include "tests/scenario/world.h"

static world_t *w;

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(memory, .fini = close_world);

/* 11 MB: a dozen pieces, 5 s.  Its name is the first, so that others may be behind it. */
Test(memory, a_worker_whose_memory_takes_long_is_no_lost_source)
{
    static const mem_link_t LINK = {.bytes_per_s = 37500000, .latency_us = 100};
    content_shape_t shape = {.seed = 1, .count = 172, .rows = 1024};
    actor_t *workers[4];
    w = world_new((world_opts_t){.seed = 1, .keep = 1});
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){.link = LINK});
    actor_t *slow = world_worker(w, "a", (worker_conf_t){.link = LINK, .piece_us = 450 * MS});
    world_workers(w, 3, (worker_conf_t){.link = LINK}, workers);
    workers[3] = slow;
    UNTIL(w, SECOND, trainer_is_ready(trainer) && world_all_ready(w, 4));
    uint64_t bytes = content_bytes(content_get(shape));
    trainer_publish(trainer, (publish_t){.shape = shape});
    world_run(w, 4 * SECOND);
    MUST(w, !worker_holds(slow, 1) && actor_counters(slow).bytes_in == 0);
    UNTIL(w, 4 * SECOND, world_all_active(w, 1));
    MUST(w, w->broker->received[MSG_NEED_SOURCES] == 0);
    for (int i = 0; i < 4; i++) {
        tr_counters_t c = actor_counters(workers[i]);
        MUST(w, c.bytes_in >= bytes && c.bytes_in < bytes + 4096 && c.refused_in == 0);
    }
    check_settled(w);
}
