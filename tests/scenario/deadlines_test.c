/* SPDX-License-Identifier: Apache-2.0 */
/* Questions whose own deadline ends them, while a worker stands still and its lease has not run out yet. */
#include "tests/scenario/world.h"

#include <heddle/types.h>

#define LEASE_US (4 * SECOND)

static world_t *w;
static actor_t *workers[2], *admin;

/* Two workers, versions 1 and 2 active in turn, then w2 stands still. */
static void open_world(uint64_t seed)
{
    w = world_new((world_opts_t){.seed = seed, .keep = 1});
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    admin = world_admin(w);
    world_workers(w, 2, (worker_conf_t){0}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer) && world_all_ready(w, 2));
    for (uint64_t v = 1; v <= 2; v++) {
        MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = v}}) == v);
        UNTIL(w, 5 * SECOND, world_all_active(w, v));
    }
    world_run(w, 50 * MS);
    actor_stop(workers[1], true);
}

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(deadlines, .fini = close_world);

/* The answer comes by its deadline, not before it. */
static void ask_until_its_deadline(msg_query_t query)
{
    query.name = ADAPTER;
    query.deadline_ms = 1000;
    uint64_t asked_us = w->now_us;
    admin_ask(admin, query);
    UNTIL(w, 2 * SECOND, admin->is_replied);
    MUST(w, admin->reply_code == HEDDLE_ERR_DEADLINE);
    MUST(w, w->now_us - asked_us >= SECOND && w->now_us - asked_us < SECOND + 100 * MS);
}

static void go_on_with(uint64_t version)
{
    actor_stop(workers[1], false);
    UNTIL(w, LEASE_US, world_all_active(w, version));
    world_run(w, LEASE_US);
    check_settled(w);
}

Test(deadlines, wait)
{
    open_world(1);
    admin_ask(admin, (msg_query_t){.op = "activate",
                                   .name = ADAPTER,
                                   .version = 1,
                                   .quorum_kind = HEDDLE_QUORUM_NONE,
                                   .by = "ann"});
    UNTIL(w, SECOND, admin->is_replied);
    MUST(w, admin->reply_code == HEDDLE_OK);
    ask_until_its_deadline((msg_query_t){.op = "wait", .version = 1});
    json_t *missing = json_object_get(admin->reply, "missing");
    MUST(w, json_array_size(missing) == 1);
    MUST(w, !strcmp(json_string_value(json_object_get(json_array_get(missing, 0), "worker")), "w2"));
    go_on_with(1);
}

/* Its lease runs on, but its connection tells. */
Test(deadlines, wait_does_not_count_who_was_killed)
{
    open_world(4);
    actor_kill(workers[1]);
    ask_until_its_deadline((msg_query_t){.op = "wait", .version = 2, .min = 2});
    actor_start(workers[1]);
    go_on_with(2);
}

/* Nobody is asked to go back: who stood still follows when it can. */
Test(deadlines, activate_leaves_its_decision)
{
    open_world(2);
    ask_until_its_deadline((msg_query_t){.op = "activate", .version = 1, .by = "ann"});
    MUST(w, world_adapter(w)->active == 1 && world_adapter(w)->decision == 3);
    MUST(w, worker_active(workers[0]) == 1 && worker_active(workers[1]) == 2);
    go_on_with(1);
}

Test(deadlines, verify)
{
    open_world(3);
    ask_until_its_deadline((msg_query_t){.op = "verify", .version = 2});
    json_t *rows = json_object_get(admin->reply, "workers");
    MUST(w, json_array_size(rows) == 2);
    MUST(w, json_is_true(json_object_get(json_array_get(rows, 0), "match")));
    MUST(w, json_is_null(json_object_get(json_array_get(rows, 1), "digest")));
    go_on_with(2);
}
