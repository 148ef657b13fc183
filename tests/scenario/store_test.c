/* SPDX-License-Identifier: Apache-2.0 */
/* A store that is slow, refuses late, never confirms, or is asked by a broker that dies meanwhile: what was said
 * is recorded, what was not recorded was not said, and nobody loses a session by it. */
#include "tests/scenario/world.h"

enum { WORKERS = 3 };

static world_t *w;
static actor_t *workers[WORKERS], *trainer;

static void open_world(uint64_t seed, uint64_t store_takes_us)
{
    w = world_new((world_opts_t){.seed = seed, .keep = 1});
    w->store_is_late = true;
    w->store_takes_us = store_takes_us;
    trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, WORKERS, (worker_conf_t){0}, workers);
    UNTIL(w, 20 * SECOND, trainer_is_ready(trainer));
}

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(store, .fini = close_world);

static void publish(uint64_t seed, uint32_t deadline_ms)
{
    trainer_publish(trainer, (publish_t){.shape = {.seed = seed}, .deadline_ms = deadline_ms});
}

Test(store, a_publication_ends_by_its_deadline_where_the_store_never_confirms)
{
    open_world(1, 0);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}}) == 1);
    UNTIL(w, 2 * SECOND, world_all_active(w, 1) && !w->committing);
    uint64_t announced = w->sent[MSG_ANNOUNCE], welcomed = w->sent[MSG_WELCOME];
    w->store_never = true;
    publish(2, 3000);
    UNTIL(w, 4 * SECOND, trainer->published.is_answered);
    MUST(w, trainer->published.code == HEDDLE_ERR_DEADLINE);
    if (!strstr(trainer->published.message, "store has not confirmed"))
        world_fail(w, "it says: %s", trainer->published.message);
    world_run(w, 20 * SECOND);
    MUST(w, w->sent[MSG_ANNOUNCE] == announced && w->sent[MSG_WELCOME] == welcomed);
    MUST(w, world_all_ready(w, WORKERS) && world_all_active(w, 1));
    MUST(w, !registry_version(registry_adapter(&w->broker->registry, ADAPTER), 2));
    world_broker_kill(w);
    w->store_never = false;
    world_broker_start(w);
    UNTIL(w, 10 * SECOND, trainer_is_ready(trainer));
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 3}}) == 2);
    UNTIL(w, 10 * SECOND, world_all_active(w, 2));
    check_settled(w);
}

/* An operator starts the broker again where its store stays silent: each publication ends as one version,
 * whether the store had taken its record or not. */
Test(store, versions_become_active_where_some_confirmations_never_come)
{
    open_world(4, 0);
    w->store_fails_to_confirm = true;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        publish(seed, 60000);
        UNTIL(w, 30 * SECOND, trainer->published.is_answered && w->broker);
        MUST(w, !trainer->published.code);
        MUST(w, trainer->published.version == seed);
        UNTIL(w, 60 * SECOND, world_all_active(w, seed));
    }
    MUST(w, w->silent_count > 3);
    w->store_fails_to_confirm = false;
    world_run(w, 20 * SECOND);
    MUST(w, world_all_ready(w, WORKERS) && world_all_active(w, 12));
    check_settled(w);
}

Test(store, versions_become_active_and_no_session_ends_where_each_record_takes_a_second_and_a_half)
{
    open_world(2, 1500 * MS);
    uint64_t welcomed = w->sent[MSG_WELCOME];
    for (uint64_t v = 1; v <= 5; v++)
        MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = v}}) == v);
    UNTIL(w, 20 * SECOND, world_all_active(w, 5));
    MUST(w, w->sent[MSG_WELCOME] == welcomed);
    world_run(w, 10 * SECOND);
    check_settled(w);
}

Test(store, what_it_refuses_late_did_not_happen)
{
    open_world(3, 300 * MS);
    publish(1, 5000);
    UNTIL(w, SECOND, w->committing);
    w->commit_code = HEDDLE_ERR_NO_SPACE;
    UNTIL(w, SECOND, trainer->published.is_answered);
    MUST(w, trainer->published.code == HEDDLE_ERR_NO_SPACE);
    MUST(w, !w->sent[MSG_ANNOUNCE]);
    w->commit_code = 0;
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}}) == 1);
    UNTIL(w, 10 * SECOND, world_all_active(w, 1));
    check_settled(w);
}

/* The publisher asks again when the broker is back: its version is there once, whether or not the store had it. */
Test(store, a_broker_that_dies_before_the_confirmation_records_the_version_once)
{
    int taken = 0, lost = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        open_world(seed, 300 * MS);
        publish(1, 30000);
        UNTIL(w, SECOND, w->committing);
        world_broker_kill(w);
        bool was_taken = world_version(w, 1) != NULL;
        taken += was_taken;
        lost += !was_taken;
        world_broker_start(w);
        UNTIL(w, 20 * SECOND, trainer->published.is_answered);
        MUST(w, !trainer->published.code && trainer->published.version == 1);
        UNTIL(w, 20 * SECOND, world_all_active(w, 1));
        MUST(w, world_adapter(w)->version_count == 1);
        check_settled(w);
        world_destroy(&w);
    }
    cr_assert(taken && lost);
}
