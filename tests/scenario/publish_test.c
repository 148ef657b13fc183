/* SPDX-License-Identifier: Apache-2.0 */
/* A version goes to 1, 4 and 16 workers, and to one that comes late. */
#include "tests/scenario/world.h"

#include <stdio.h>

static world_t *w;
static void setup(void) { w = world_new((world_opts_t){.seed = 7, .keep = 1}); }
static void teardown(void)
{
    world_destroy(&w);
    content_forget_all();
}
TestSuite(publish, .init = setup, .fini = teardown);

Test(publish, one_worker)
{
    actor_t *workers[1];
    world_workers(w, 1, (worker_conf_t){0}, workers);
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    uint64_t version = trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    cr_assert_eq(version, 1);
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    world_run(w, SECOND);
    check_settled(w);
}
