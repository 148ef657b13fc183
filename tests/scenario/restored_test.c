/* SPDX-License-Identifier: Apache-2.0 */
/* An operator puts an older copy of the broker's data back.  What was acknowledged since is gone; no number of it is
 * given again, and all follow the broker again. */
#include "tests/scenario/world.h"

#define LEASE_US (4 * SECOND)
enum { WORKERS = 3 };

static world_t *w;
static actor_t *workers[WORKERS], *trainer;

static void publish(uint64_t first, uint64_t last)
{
    for (uint64_t v = first; v <= last; v++) {
        MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = v}}) == v);
        UNTIL(w, 2 * SECOND, world_all_active(w, v));
    }
    world_run(w, SECOND);
}

static void open_world(void)
{
    w = world_new((world_opts_t){.seed = 11, .keep = 3});
    trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, WORKERS, (worker_conf_t){0}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer));
}

/* The broker is back; all notice that it was away, and come again. */
static void come_back(void)
{
    world_run(w, 500 * MS);
    UNTIL(w, LEASE_US, world_all_ready(w, WORKERS) && trainer_is_ready(trainer));
}

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(restored, .init = open_world, .fini = close_world);

static void expect_told(const char *from)
{
    actor_t *admin = world_admin(w);
    admin_ask(admin, (msg_query_t){.op = "status"});
    UNTIL(w, SECOND, admin->is_replied);
    const json_t *broker = json_object_get(admin->reply, "broker");
    const json_t *restored = json_object_get(broker, "restored");
    MUST(w, json_is_object(restored));
    if (from) MUST(w, !strcmp(json_string_value(json_object_get(restored, "from")), from));
    MUST(w, (uint64_t)json_integer_value(json_object_get(broker, "epoch")) == w->broker->registry.epoch);
}

/* Versions and decisions 3 to 5 are gone.  Everybody serves 5, and comes to serve 2 again, by a decision greater than
 * all that they know; the next version is 6. */
Test(restored, all_go_on_above_what_they_know)
{
    publish(1, 2);
    struct stored *backup = world_backup(w);
    publish(3, 5);
    uint64_t epoch = w->epoch;
    world_broker_kill(w);
    world_restore(w, backup);
    world_broker_start(w);
    MUST(w, w->epoch == epoch + 1);
    come_back();
    expect_told(NULL);
    MUST(w, worker_active(workers[0]) == 5); /* it settles: nothing is decided yet, and serving goes on */
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 2));
    MUST(w, world_adapter(w)->decision == 6 && world_adapter(w)->active == 2);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 6}}) == 6);
    UNTIL(w, 2 * SECOND, world_all_active(w, 6));
    world_run(w, LEASE_US);
    check_settled(w);
    world_broker_kill(w);
    world_broker_start(w); /* what was heard is on disk */
    come_back();
    UNTIL(w, LEASE_US, world_all_active(w, 6));
    MUST(w, !w->broker->restored.at_ms);
    check_settled(w);
}

/* Nobody has the bytes any more that the copy calls active: all serve what they have, and follow the next version. */
Test(restored, what_was_active_is_lost)
{
    publish(1, 1);
    struct stored *backup = world_backup(w);
    publish(2, 7);
    world_broker_kill(w);
    world_restore(w, backup);
    world_broker_start(w);
    come_back();
    world_run(w, 2 * LEASE_US);
    MUST(w, world_adapter(w)->decision == 8 && !strcmp(world_state(w, 1), "lost"));
    for (int i = 0; i < WORKERS; i++) MUST(w, worker_active(workers[i]) == 7);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 8}}) == 8);
    UNTIL(w, 2 * SECOND, world_all_active(w, 8));
    check_settled(w);
}

/* The broker was started more often since than the copy knows: no token may come twice. */
Test(restored, epochs_go_on_above)
{
    publish(1, 1);
    struct stored *backup = world_backup(w);
    for (int i = 0; i < 5; i++) {
        world_broker_kill(w);
        world_broker_start(w);
        come_back();
        world_run(w, LEASE_US);
    }
    uint64_t epoch = w->epoch, greatest = 0;
    for (int i = 0; i < WORKERS; i++)
        if (worker_node_core(workers[i]->worker)->member.session.token > greatest)
            greatest = worker_node_core(workers[i]->worker)->member.session.token;
    world_broker_kill(w);
    world_restore(w, backup);
    world_broker_start(w);
    MUST(w, w->epoch < epoch);
    come_back();
    MUST(w, w->broker->registry.epoch == epoch + 1 && w->shadow.epoch == epoch + 1);
    MUST(w, w->broker->events.epoch == epoch + 1);
    world_run(w, 2 * LEASE_US);
    for (int i = 0; i < WORKERS; i++)
        MUST(w, worker_node_core(workers[i]->worker)->member.session.token > greatest);
    expect_told(NULL);
    check_settled(w);
}

/* The very epoch that was lost is given again: the first token that it never gave tells. */
Test(restored, the_same_epoch_is_noticed)
{
    publish(1, 1);
    struct stored *backup = world_backup(w);
    world_broker_kill(w);
    world_broker_start(w);
    come_back();
    uint64_t epoch = w->epoch;
    world_broker_kill(w);
    world_restore(w, backup);
    world_broker_start(w);
    MUST(w, w->epoch == epoch);
    come_back();
    MUST(w, w->broker->registry.epoch == epoch + 1);
    world_run(w, LEASE_US);
    publish(2, 2);
    check_settled(w);
}

/* The copy is from before the first publication: the adapter itself is unknown, and nothing can be decided anew. */
Test(restored, to_nothing)
{
    struct stored *backup = world_backup(w);
    publish(1, 3);
    world_broker_kill(w);
    world_restore(w, backup);
    world_broker_start(w);
    come_back();
    world_run(w, 2 * LEASE_US);
    for (int i = 0; i < WORKERS; i++) MUST(w, worker_active(workers[i]) == 3); /* nobody told it otherwise */
    expect_told(NULL);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 4}}) == 4);
    UNTIL(w, 2 * SECOND, world_all_active(w, 4));
    MUST(w, world_adapter(w)->decision == 4);
    check_settled(w);
}

/* A worker that was away comes much later. */
Test(restored, one_comes_late)
{
    publish(1, 1);
    struct stored *backup = world_backup(w);
    publish(2, 3);
    actor_cut(workers[0], true);
    for (int i = 1; i < WORKERS; i++) actor_kill(workers[i]);
    actor_kill(trainer);
    world_broker_kill(w);
    world_restore(w, backup);
    world_broker_start(w);
    for (int i = 1; i < WORKERS; i++) actor_start(workers[i]);
    actor_start(trainer);
    UNTIL(w, 2 * LEASE_US, trainer_is_ready(trainer));
    world_run(w, 2 * LEASE_US);
    MUST(w, !w->broker->restored.at_ms); /* nobody who is here knows */
    actor_cut(workers[0], false);
    UNTIL(w, LEASE_US, worker_is_ready(workers[0]));
    expect_told("w1");
    MUST(w, world_adapter(w)->decision == 4 && world_adapter(w)->active == 1);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 9}}) == 4);
    UNTIL(w, 2 * SECOND, world_all_active(w, 4));
    check_settled(w);
}

/* Another --data behind the same address: numbers mean nothing there.  Workers serve on and wait; a publisher ends. */
Test(restored, another_cluster)
{
    publish(1, 3);
    world_broker_kill(w);
    world_run(w, 100 * MS);
    trainer_publish(trainer, (publish_t){.shape = {.seed = 4}});
    struct stored *mine = world_backup(w);
    world_restore(w, NULL);
    w->cluster = "another";
    world_broker_start(w);
    UNTIL(w, 2 * SECOND, trainer->published.is_answered);
    MUST(w, trainer->published.code == HEDDLE_ERR_REQUEST_CONFLICT &&
                strstr(trainer->published.message, "another"));
    MUST(w, trainer_standing(trainer) == HEDDLE_ERR_REQUEST_CONFLICT);
    world_run(w, 5 * LEASE_US);
    for (int i = 0; i < WORKERS; i++) MUST(w, worker_active(workers[i]) == 3 && !worker_is_ready(workers[i]));
    MUST(w, !w->broker->members.worker_count && !world_adapter(w));
    /* Each process once, however often it asks; the publisher ends, and its one HELLO may fall into the pause
     * after the line of another. */
    MUST(w, w->warnings == WORKERS || w->warnings == WORKERS + 1);
    world_broker_kill(w);
    world_restore(w, mine);
    w->cluster = "scenario";
    world_broker_start(w);
    UNTIL(w, 5 * SECOND, world_all_active(w, 3));
    world_run(w, LEASE_US);
    check_settled(w);
}

/* It waits for a version that is gone with the data. */
Test(restored, a_publisher_hears_that_its_version_is_gone)
{
    publish(1, 1);
    struct stored *backup = world_backup(w);
    for (int i = 0; i < WORKERS; i++) actor_cut(workers[i], true);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}}) == 2);
    world_broker_kill(w);
    world_restore(w, backup);
    trainer->rolled = (rolled_t){0};
    world_broker_start(w);
    UNTIL(w, 2 * SECOND, !strcmp(trainer->rolled.state, "lost"));
    MUST(w, !strcmp(trainer->rolled.code, "version_lost"));
    for (int i = 0; i < WORKERS; i++) actor_cut(workers[i], false);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 3}}) == 3);
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 3));
    check_settled(w);
}
