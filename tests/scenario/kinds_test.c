/* SPDX-License-Identifier: Apache-2.0 */
/* Full weights take the path of every version; workers get the kinds that they take, and a name keeps its
 * kind. */
#include "tests/scenario/world.h"

#include <heddle/publisher.h>

enum { KEEP = 1 };
static const char *const WEIGHTS[] = {"tensors", NULL}, *const BOTH[] = {"lora", "tensors", NULL};

static world_t *w;
static void setup(void) { w = world_new((world_opts_t){.seed = 11, .keep = KEEP}); }
static void teardown(void)
{
    world_destroy(&w);
    content_forget_all();
}
TestSuite(kinds, .init = setup, .fini = teardown);

static publish_t weights(uint64_t seed) { return (publish_t){.shape = {.seed = seed, .is_weights = true}}; }

static actor_t *trainer_of(bool is_of_weights)
{
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){.is_of_weights = is_of_weights});
    UNTIL(w, SECOND, trainer_standing(trainer) != HEDDLE_ERR_AGAIN);
    return trainer;
}

Test(kinds, weights_are_served_and_rolled_back)
{
    actor_t *workers[2];
    world_workers(w, 2, (worker_conf_t){.kinds = WEIGHTS}, workers);
    actor_t *trainer = trainer_of(true);
    uint64_t first = trainer_publishes(trainer, weights(1));
    UNTIL(w, 5 * SECOND, world_all_active(w, first));
    uint64_t second = trainer_publishes(trainer, weights(2));
    UNTIL(w, 5 * SECOND, world_all_active(w, second));
    MUST(w, admin_activates(world_admin(w), first) == HEDDLE_OK);
    UNTIL(w, 5 * SECOND, world_all_active(w, first));
    world_run(w, SECOND);
    check_settled(w);
}

Test(kinds, a_worker_refuses_what_it_does_not_take)
{
    actor_t *worker = world_worker(w, "w1", (worker_conf_t){0});
    actor_t *trainer = trainer_of(true);
    uint64_t version = trainer_publishes(trainer, weights(1));
    UNTIL(w, 5 * SECOND, !strcmp(trainer->rolled.state, "failed"));
    MUST(w, trainer->rolled.version == version);
    MUST(w, !strcmp(trainer->rolled.missing_code, "unsupported_feature"));
    MUST(w, actor_counters(worker).bytes_in == 0); /* not even the manifest */
}

Test(kinds, a_worker_of_weights_refuses_an_adapter)
{
    world_worker(w, "w1", (worker_conf_t){.kinds = WEIGHTS});
    actor_t *trainer = trainer_of(false);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 5 * SECOND, !strcmp(trainer->rolled.state, "failed"));
    MUST(w, !strcmp(trainer->rolled.missing_code, "unsupported_feature"));
}

Test(kinds, a_worker_may_take_both)
{
    world_worker(w, "w1", (worker_conf_t){.kinds = BOTH});
    uint64_t version = trainer_publishes(trainer_of(true), weights(1));
    UNTIL(w, 5 * SECOND, world_all_active(w, version));
}

/* By OPEN, before anything is read, and by PUBLISH, of a publisher that did not say. */
Test(kinds, a_name_keeps_its_kind)
{
    world_worker(w, "w1", (worker_conf_t){.kinds = BOTH});
    actor_t *trainer = trainer_of(true);
    uint64_t version = trainer_publishes(trainer, weights(1));
    UNTIL(w, 5 * SECOND, world_all_active(w, version));
    trainer_publish(trainer, (publish_t){.shape = {.seed = 2}});
    UNTIL(w, 5 * SECOND, trainer->published.is_answered);
    MUST(w, trainer->published.code == HEDDLE_ERR_UNSUPPORTED_FEATURE);
    MUST(w, strstr(trainer->published.message, "kind tensors"));
    trainer_leave(trainer);
    UNTIL(w, 5 * SECOND, trainer_has_left(trainer));
    MUST(w, trainer_standing(world_trainer(w, "bob", (trainer_conf_t){0})) == HEDDLE_ERR_AGAIN);
    UNTIL(w, SECOND, trainer_standing(world_find(w, "bob")) == HEDDLE_ERR_UNSUPPORTED_FEATURE);
}

/* What decides is on disk. */
Test(kinds, a_broker_that_was_restarted_knows_the_kind)
{
    world_worker(w, "w1", (worker_conf_t){.kinds = WEIGHTS});
    uint64_t version = trainer_publishes(trainer_of(true), weights(1));
    UNTIL(w, 5 * SECOND, world_all_active(w, version));
    world_broker_kill(w);
    world_broker_start(w);
    actor_t *late = world_worker(w, "w2", (worker_conf_t){.kinds = WEIGHTS}),
            *other = world_worker(w, "w3", (worker_conf_t){0});
    UNTIL(w, 20 * SECOND, worker_active(late) == version);
    world_run(w, SECOND);
    MUST(w, worker_active(other) == 0 && !worker_holds(other, version));
}
