/* SPDX-License-Identifier: Apache-2.0 */
/* What applications refuse, what people decide by hand, who may write, and slots that readers hold. */
#include "tests/scenario/world.h"

#include <heddle/publisher.h>

#define LEASE_US (4 * SECOND)

static world_t *w;
static actor_t *workers[4], *trainer, *admin;

static void open_world(uint64_t seed, uint32_t count, worker_conf_t conf)
{
    w = world_new((world_opts_t){.seed = seed, .keep = 2});
    trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    admin = world_admin(w);
    world_workers(w, count, conf, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer));
}

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(decide, .fini = close_world);

static void publish_and_activate(uint64_t seed)
{
    uint64_t version = trainer_publishes(trainer, (publish_t){.shape = {.seed = seed}});
    UNTIL(w, 5 * SECOND, world_all_active(w, version));
    world_run(w, 50 * MS);
}

/* ---- applications
 * ----------------------------------------------------------------------------------------------- */

Test(decide, the_application_takes_it)
{
    open_world(1, 3, (worker_conf_t){.app = APP_ACCEPTS});
    for (uint64_t v = 1; v <= 5; v++) publish_and_activate(v);
    for (int i = 0; i < 3; i++)
        MUST(w, workers[i]->events_by_type[HEDDLE_EVENT_ARRIVED] == 5 &&
                    workers[i]->events_by_type[HEDDLE_EVENT_ACTIVE] == 5);
    check_settled(w);
}

/* One cannot load it: it fails, named, before anybody switched. */
Test(decide, one_rejects_before_the_commit)
{
    open_world(2, 3, (worker_conf_t){.app = APP_ACCEPTS});
    publish_and_activate(1);
    workers[1]->conf.app = APP_REJECTS_STAGE;
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}});
    UNTIL(w, 2 * SECOND, !strcmp(trainer->rolled.state, "failed"));
    MUST(w, strstr(trainer->rolled.message, "w2") &&
                strstr(trainer->rolled.message, "the engine cannot load it"));
    world_run(w, SECOND);
    MUST(w, world_all_active(w, 1));
    for (int i = 0; i < 3; i++)
        MUST(w, !worker_holds(workers[i], 2) && workers[i]->events_by_type[HEDDLE_EVENT_COMMIT] == 1);
    workers[1]->conf.app = APP_ACCEPTS;
    publish_and_activate(3);
    check_settled(w);
}

/* One cannot switch: it is stale by name, nobody else is turned back, and the next version finds it
 * again. */
Test(decide, one_rejects_after_the_commit)
{
    open_world(3, 3, (worker_conf_t){.app = APP_ACCEPTS});
    publish_and_activate(1);
    workers[1]->conf.app = APP_REJECTS_COMMIT;
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}});
    UNTIL(w, 2 * SECOND, worker_active(workers[0]) == 2 && worker_active(workers[2]) == 2);
    UNTIL(w, SECOND, workers[1]->events_by_type[HEDDLE_EVENT_STALE] == 1);
    world_run(w, 50 * MS);
    MUST(w, worker_active(workers[1]) == 1);
    const adapter_row_t *a = registry_adapter(&w->broker->registry, ADAPTER);
    MUST(w, summary_copy_state(copy_find(world_track(w, 1), "w2"), a->active, 1) == COPY_STALE);
    MUST(w, !strcmp(world_state(w, 2), "active"));
    workers[1]->conf.app = APP_ACCEPTS;
    world_run(w, 2 * LEASE_US);
    MUST(w, worker_active(workers[1]) == 1); /* until something else is decided */
    publish_and_activate(3);
    check_settled(w);
}

/* One says nothing: the deadline ends it. */
Test(decide, one_is_silent)
{
    open_world(4, 2, (worker_conf_t){.app = APP_ACCEPTS});
    publish_and_activate(1);
    workers[1]->conf.app = APP_SILENT;
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}, .deadline_ms = 5000});
    UNTIL(w, 6 * SECOND, !strcmp(trainer->rolled.state, "failed"));
    MUST(w, !strcmp(trainer->rolled.code, "deadline") && !strcmp(trainer->rolled.missing, "w2"));
    MUST(w, world_all_active(w, 1));
    world_run(w, SECOND);
    check_settled(w);
}

/* As ready: who is staged switches, and nobody waits for the others. */
Test(decide, as_ready)
{
    open_world(5, 3, (worker_conf_t){.app = APP_ACCEPTS});
    publish_and_activate(1);
    workers[2]->conf.app = APP_SILENT;
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}, .activation = HEDDLE_ACTIVATION_AS_READY});
    UNTIL(w, 2 * SECOND, worker_active(workers[0]) == 2 && worker_active(workers[1]) == 2);
    MUST(w, worker_active(workers[2]) == 1);
    UNTIL(w, SECOND, worker_holds(workers[2], 2));
    MUST(w, worker_staged(workers[2], 2) == HEDDLE_OK);
    workers[2]->due_us = w->now_us;
    workers[2]->conf.app = APP_ACCEPTS;
    UNTIL(w, SECOND, worker_active(workers[2]) == 2);
    check_settled(w);
}

/* Two ranks that serve as one, as ready: the first rank that stages it decides nothing. */
Test(decide, a_group_is_ready_when_each_rank_is)
{
    open_world(41, 0, (worker_conf_t){0});
    actor_t *ranks[2];
    for (uint32_t i = 0; i < 2; i++)
        ranks[i] = world_worker(w, i ? "tp1" : "tp0",
                                (worker_conf_t){.app = APP_ACCEPTS, .group = "tp", .rank = i, .ranks = 2});
    publish_and_activate(1);
    ranks[1]->conf.app = APP_SILENT;
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}, .activation = HEDDLE_ACTIVATION_AS_READY});
    UNTIL(w, 2 * SECOND, track_holder_count(world_track(w, 2)) == 1);
    world_run(w, SECOND);
    MUST(w, worker_active(ranks[0]) == 1 && !strcmp(world_state(w, 2), "staging"));
    MUST(w, worker_staged(ranks[1], 2) == HEDDLE_OK);
    ranks[1]->due_us = w->now_us;
    ranks[1]->conf.app = APP_ACCEPTS;
    UNTIL(w, 2 * SECOND, worker_active(ranks[0]) == 2 && worker_active(ranks[1]) == 2);
    check_settled(w);
}

/* One rank of two, with `all`: it does not make a group, and the deadline ends it.  When the other rank has
 * come the group is complete, though it was not waited for. */
Test(decide, a_rank_alone_is_no_group)
{
    open_world(42, 0, (worker_conf_t){0});
    world_worker(w, "tp0", (worker_conf_t){.group = "tp", .ranks = 2});
    world_run(w, SECOND);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}, .deadline_ms = 3000});
    UNTIL(w, 4 * SECOND, !strcmp(trainer->rolled.state, "failed"));
    MUST(w, !strcmp(trainer->rolled.code, "deadline"));
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}, .deadline_ms = 3000});
    UNTIL(w, SECOND, track_holder_count(world_track(w, 2)) == 1);
    world_worker(w, "tp1", (worker_conf_t){.group = "tp", .rank = 1, .ranks = 2});
    UNTIL(w, 2 * SECOND, world_all_active(w, 2));
    check_settled(w);
}

/* w1 serves 3; w9 comes late, and is at 3, whatever that takes it. */
static actor_t *late_one(worker_conf_t conf)
{
    open_world(21, 1, (worker_conf_t){0});
    for (uint64_t v = 1; v <= 3; v++) {
        trainer_publishes(trainer,
                          (publish_t){.shape = {.seed = v}, .activation = HEDDLE_ACTIVATION_AS_READY});
        UNTIL(w, SECOND, worker_active(workers[0]) == v);
    }
    actor_t *late = world_worker(w, "w9", conf);
    UNTIL(w, SECOND, worker_is_ready(late));
    world_run(w, 300 * MS);
    MUST(w, !worker_active(late));
    return late;
}

static void never_serves(actor_t *late, uint64_t bad, uint64_t for_us)
{
    for (uint64_t end_us = w->now_us + for_us; world_step(w, end_us);) MUST(w, worker_active(late) != bad);
}

static void steps_back_to(uint64_t v)
{
    admin_ask(admin, (msg_query_t){.op = "activate",
                                   .name = ADAPTER,
                                   .version = v,
                                   .quorum_kind = HEDDLE_QUORUM_NONE,
                                   .by = "ann"});
    UNTIL(w, SECOND, admin->is_replied);
    MUST(w, admin->reply_code == HEDDLE_OK);
    world_run(w, 10 * MS);
}

/* It has not a byte of 2: it is told of the step back all the same, and never switches to 3. */
Test(decide, a_step_back_while_it_fetches)
{
    actor_t *late = late_one((worker_conf_t){.max_rate_bytes = 1 << 18});
    steps_back_to(2);
    never_serves(late, 3, 6 * SECOND);
    MUST(w, worker_active(late) == 2);
    check_settled(w);
}

/* The same with a worker that serves version 1, and was away when 2 and 3 were decided. */
Test(decide, a_step_back_while_one_that_serves_an_older_version_fetches)
{
    open_world(23, 1, (worker_conf_t){0});
    actor_t *slow = world_worker(w, "w9", (worker_conf_t){.max_rate_bytes = 1 << 18});
    UNTIL(w, SECOND, worker_is_ready(slow));
    publish_and_activate(1);
    actor_cut(slow, true);
    UNTIL(w, 2 * LEASE_US, !worker_is_ready(slow));
    world_run(w, LEASE_US); /* the broker has ended its session too */
    for (uint64_t v = 2; v <= 3; v++) {
        trainer_publishes(trainer,
                          (publish_t){.shape = {.seed = v}, .activation = HEDDLE_ACTIVATION_AS_READY});
        UNTIL(w, 2 * LEASE_US, worker_active(workers[0]) == v);
    }
    actor_cut(slow, false);
    UNTIL(w, 2 * LEASE_US, worker_is_ready(slow));
    world_run(w, 300 * MS);
    MUST(w, worker_active(slow) == 1);
    steps_back_to(2);
    never_serves(slow, 3, 6 * SECOND);
    MUST(w, worker_active(slow) == 2);
    check_settled(w);
}

static void breaks_twice(actor_t *late)
{
    for (int i = 0; i < 2; i++) {
        actor_break(late);
        UNTIL(w, 10 * SECOND, !worker_is_ready(late));
        UNTIL(w, 10 * SECOND, worker_is_ready(late));
        world_run(w, 50 * MS);
    }
}

/* Nor does a new session send it ahead, nor one more, nor one after the trainer went on. */
static void loads_on_after_a_step_back(bool goes_on)
{
    actor_t *late = late_one((worker_conf_t){.app = APP_SILENT});
    steps_back_to(2);
    breaks_twice(late);
    if (goes_on) {
        trainer_publishes(trainer, (publish_t){.shape = {.seed = 4}, .activation = HEDDLE_ACTIVATION_MANUAL});
        UNTIL(w, SECOND, worker_holds(workers[0], 4));
        steps_back_to(4); /* and forward again: 3 stays what it was */
        breaks_twice(late);
    }
    for (int i = 0; i < 2; i++) {
        worker_answers(late, 3);
        never_serves(late, 3, 100 * MS);
    }
    for (int i = 0; i < 4; i++) {
        worker_answers_late(late);
        never_serves(late, 3, SECOND);
    }
    MUST(w, worker_active(late) == (goes_on ? 4 : 2));
}

Test(decide, a_step_back_while_it_loads) { loads_on_after_a_step_back(false); }
Test(decide, a_step_back_and_on_while_it_loads) { loads_on_after_a_step_back(true); }

/* It was told to switch, and did, when the step back came: it says what its engine serves, and goes back when
 * it can. */
Test(decide, a_step_back_while_it_switches)
{
    actor_t *late = late_one((worker_conf_t){.app = APP_SILENT, .max_rate_bytes = 1 << 18});
    UNTIL(w, 20 * SECOND, worker_holds(late, 3));
    worker_answers(late, 3);
    UNTIL(w, SECOND, worker_takes_up(late) == 3);
    steps_back_to(2);
    worker_answers(late, 3);
    MUST(w, worker_active(late) == 3);
    UNTIL(w, 20 * SECOND, worker_holds(late, 2));
    worker_answers(late, 2);
    UNTIL(w, SECOND, worker_takes_up(late) == 2);
    worker_answers(late, 2);
    UNTIL(w, SECOND, worker_active(late) == 2);
    check_settled(w);
}

/* One that never switches serves what it has, and takes no slot from the others. */
Test(decide, one_stays_behind)
{
    open_world(15, 3, (worker_conf_t){.app = APP_ACCEPTS});
    publish_and_activate(1);
    workers[2]->conf.app = APP_SILENT;
    for (uint64_t v = 2; v <= 8; v++) {
        MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = v},
                                                       .activation = HEDDLE_ACTIVATION_AS_READY}) == v);
        UNTIL(w, 5 * SECOND, worker_active(workers[0]) == v && worker_active(workers[1]) == v);
        world_run(w, 50 * MS);
    }
    MUST(w, worker_active(workers[2]) == 1 && !strcmp(world_state(w, 1), "kept"));
    for (int i = 0; i < 2; i++) MUST(w, worker_slots_used(workers[i]) == 3 && !worker_holds(workers[i], 1));
    actor_kill(workers[2]);
    actor_start(workers[2]);
    workers[2]->conf.app = APP_ACCEPTS;
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 8));
    world_run(w, SECOND);
    check_settled(w);
}

/* ---- by hand
 * ---------------------------------------------------------------------------------------------------- */

Test(decide, manual)
{
    open_world(6, 2, (worker_conf_t){0});
    publish_and_activate(1);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}, .activation = HEDDLE_ACTIVATION_MANUAL});
    world_run(w, 5 * SECOND);
    MUST(w, world_all_active(w, 1) && !strcmp(world_state(w, 2), "staged"));
    MUST(w, admin_activates(admin, 2) == HEDDLE_OK);
    UNTIL(w, SECOND, world_all_active(w, 2));
    MUST(w, !world_adapter(w)->held);
    check_settled(w);
}

/* Back to an older one: no byte moves; what is published then waits; activating the newest goes on. */
Test(decide, held)
{
    open_world(7, 3, (worker_conf_t){0});
    for (uint64_t v = 1; v <= 3; v++) publish_and_activate(v);
    uint64_t bytes = actor_counters(workers[0]).bytes_in + actor_counters(workers[1]).bytes_in +
                     actor_counters(workers[2]).bytes_in;
    MUST(w, admin_activates(admin, 2) == HEDDLE_OK);
    MUST(w, world_all_active(w, 2) && admin_integer(admin, "bytes_moved") == 0);
    MUST(w, bytes == actor_counters(workers[0]).bytes_in + actor_counters(workers[1]).bytes_in +
                         actor_counters(workers[2]).bytes_in);
    MUST(w, world_adapter(w)->held && !strcmp(world_adapter(w)->held_by, "ann"));
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 4}});
    UNTIL(w, 2 * SECOND, !strcmp(trainer->rolled.code, "held"));
    world_run(w, 5 * SECOND);
    MUST(w, world_all_active(w, 2) && worker_holds(workers[0], 4));
    MUST(w, admin_activates(admin, 4) == HEDDLE_OK);
    MUST(w, world_all_active(w, 4) && !world_adapter(w)->held);
    publish_and_activate(5);
    check_settled(w);
}

/* What was decided survives the broker; a hold too. */
Test(decide, held_over_a_restart)
{
    open_world(8, 2, (worker_conf_t){0});
    for (uint64_t v = 1; v <= 3; v++) publish_and_activate(v);
    MUST(w, admin_activates(admin, 1) == HEDDLE_OK);
    world_broker_kill(w);
    world_broker_start(w);
    world_run(w, 2 * LEASE_US);
    MUST(w, world_all_active(w, 1) && world_adapter(w)->held);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 4}});
    world_run(w, 2 * SECOND);
    MUST(w, world_all_active(w, 1));
    MUST(w, admin_activates(admin, 4) == HEDDLE_OK && world_all_active(w, 4));
    check_settled(w);
}

/* What is not there cannot be chosen. */
Test(decide, not_activatable)
{
    open_world(9, 1, (worker_conf_t){0});
    for (uint64_t v = 1; v <= 6; v++) publish_and_activate(v);
    MUST(w, admin_activates(admin, 1) == HEDDLE_ERR_NOT_ACTIVATABLE); /* retired */
    MUST(w, admin_activates(admin, 9) == HEDDLE_ERR_NOT_FOUND);
    MUST(w,
         admin_activates(admin, 6) == HEDDLE_OK && json_is_false(json_object_get(admin->reply, "changed")));
    MUST(w, world_adapter(w)->decision == 6);
    check_settled(w);
}

/* A rollback reaches a worker that does not have the bytes any more: it fetches them from one that has.
 */
Test(decide, back_to_what_must_be_fetched)
{
    open_world(10, 2, (worker_conf_t){0});
    publish_and_activate(1);
    publish_and_activate(2);
    actor_t *late = world_worker(w, "w9", (worker_conf_t){0});
    UNTIL(w, SECOND, worker_active(late) == 2);
    MUST(w, !worker_holds(late, 1));
    MUST(w, admin_activates(admin, 1) == HEDDLE_OK);
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    MUST(w, admin_integer(admin, "bytes_moved") > 0);
    world_run(w, SECOND);
    check_settled(w);
}

/* ---- writers
 * ---------------------------------------------------------------------------------------------------- */

Test(decide, two_writers)
{
    open_world(11, 2, (worker_conf_t){0});
    publish_and_activate(1);
    actor_t *bob = world_trainer(w, "bob", (trainer_conf_t){0});
    UNTIL(w, SECOND, trainer_standing(bob) == HEDDLE_ERR_WRITER_HELD);
    actor_kill(bob);
    actor_t *eve = world_trainer(w, "eve", (trainer_conf_t){.takeover = true});
    UNTIL(w, SECOND, trainer_is_ready(eve));
    trainer_publish(trainer, (publish_t){.shape = {.seed = 2}});
    UNTIL(w, LEASE_US, trainer->published.is_answered);
    MUST(w, trainer->published.code == HEDDLE_ERR_FENCED && world_adapter(w)->last_version == 1);
    MUST(w, trainer_publishes(eve, (publish_t){.shape = {.seed = 3}}) == 2);
    UNTIL(w, 2 * SECOND, world_all_active(w, 2));
    check_settled(w);
}

/* A writer that is killed holds the adapter for its lease, no longer. */
Test(decide, a_dead_writer_is_let_go)
{
    open_world(12, 2, (worker_conf_t){0});
    publish_and_activate(1);
    actor_kill(trainer);
    actor_t *bob = world_trainer(w, "bob", (trainer_conf_t){0});
    uint64_t start_us = w->now_us;
    UNTIL(w, 3 * LEASE_US, trainer_is_ready(bob));
    MUST(w, w->now_us - start_us <= LEASE_US + 2 * SECOND);
    MUST(w, trainer_publishes(bob, (publish_t){.shape = {.seed = 2}}) == 2);
    UNTIL(w, 2 * SECOND, world_all_active(w, 2));
    check_settled(w);
}

/* ---- slots that readers hold
 * ------------------------------------------------------------------------------------ */

Test(decide, every_slot_is_held)
{
    open_world(13, 1, (worker_conf_t){.slots = 4});
    slot_t *holds[4];
    for (uint64_t v = 1; v <= 4; v++) {
        publish_and_activate(v);
        holds[v - 1] = worker_hold(workers[0], v);
        MUST(w, holds[v - 1] != NULL);
    }
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 5}});
    UNTIL(w, 20 * SECOND, !strcmp(trainer->rolled.state, "failed"));
    MUST(w, !strcmp(trainer->rolled.missing_code, "no_slot") || !strcmp(trainer->rolled.code, "no_slot"));
    MUST(w, strstr(trainer->rolled.message, "held by 1 reader"));
    MUST(w, worker_active(workers[0]) == 4);
    const content_t *first = content_get((content_shape_t){1, 8, 1024});
    MUST(w, !memcmp(holds[0]->parts[0].region->view, first->payload,
                    first->layout.payload_bytes)); /* still what it was */
    worker_unhold(workers[0], holds[0]);
    publish_and_activate(6);
    for (int i = 1; i < 4; i++) worker_unhold(workers[0], holds[i]);
    world_run(w, SECOND);
    MUST(w, worker_slots_used(workers[0]) == 3);
    check_settled(w);
}

/* A reader of an old version takes a slot.  A kept version that no reader holds gives way to what arrives. */
static void publish_past_a_reader(uint32_t worker_count)
{
    open_world(16, worker_count, (worker_conf_t){0});
    publish_and_activate(1);
    slot_t *hold = worker_hold(workers[0], 1);
    for (uint64_t v = 2; v <= 9; v++) {
        publish_and_activate(v);
        MUST(w, !strcmp(world_state(w, v - 1), "kept")); /* the version before can be activated */
    }
    const content_t *first = content_get((content_shape_t){1, 8, 1024});
    MUST(w, !memcmp(hold->parts[0].region->view, first->payload, first->layout.payload_bytes));
    worker_unhold(workers[0], hold);
    world_run(w, SECOND);
    check_settled(w);
}

Test(decide, a_reader_of_an_old_version_stops_no_publication) { publish_past_a_reader(1); }
Test(decide, a_reader_at_one_worker_of_several_stops_no_publication) { publish_past_a_reader(3); }

/* While the broker settles it has no copy put away, and the worker gives up sooner. */
Test(decide, a_reader_of_an_old_version_stops_no_publication_to_a_broker_that_settles)
{
    open_world(19, 1, (worker_conf_t){0});
    publish_and_activate(1);
    slot_t *hold = worker_hold(workers[0], 1);
    for (uint64_t v = 2; v <= 5; v++) publish_and_activate(v);
    world_broker_kill(w);
    world_broker_start(w);
    UNTIL(w, SECOND, trainer_is_ready(trainer) && world_all_ready(w, 1));
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 6}});
    UNTIL(w, LEASE_US + SECOND, world_all_active(w, 6));
    worker_unhold(workers[0], hold);
    world_run(w, SECOND);
    check_settled(w);
}

/* Four slots: what all others have too goes, and stays there. */
Test(decide, what_gives_way_at_one_worker_stays_at_the_others)
{
    open_world(17, 2, (worker_conf_t){0});
    publish_and_activate(1);
    slot_t *hold = worker_hold(workers[0], 1);
    for (uint64_t v = 2; v <= 4; v++) publish_and_activate(v);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 5}, .activation = HEDDLE_ACTIVATION_MANUAL});
    UNTIL(w, SECOND, !strcmp(world_state(w, 5), "staged") && worker_holds(workers[0], 5));
    MUST(w, !worker_holds(workers[0], 2) && worker_holds(workers[1], 2) && worker_holds(workers[0], 3));
    MUST(w, !strcmp(world_state(w, 2), "kept"));
    worker_unhold(workers[0], hold);
    world_run(w, SECOND);
    check_settled(w);
}

/* All slots are held at first.  A kept version whose last reader leaves in time gives way. */
Test(decide, a_kept_version_whose_reader_leaves_in_time_gives_way)
{
    open_world(18, 1, (worker_conf_t){.slots = 4});
    slot_t *holds[4];
    for (uint64_t v = 1; v <= 4; v++) {
        publish_and_activate(v);
        holds[v - 1] = worker_hold(workers[0], v);
    }
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 5}});
    world_run(w, 500 * MS);
    MUST(w, worker_active(workers[0]) == 4);
    worker_unhold(workers[0], holds[2]); /* 1 was retired, 2 and 3 are kept */
    UNTIL(w, SECOND, world_all_active(w, 5));
    MUST(w, !strcmp(world_state(w, 3), "retired") && worker_holds(workers[0], 2));
    for (int i = 0; i < 4; i++)
        if (i != 2) worker_unhold(workers[0], holds[i]);
    world_run(w, SECOND);
    check_settled(w);
}

/* Released in time: it goes on by itself. */
Test(decide, a_reader_lets_go_in_time)
{
    open_world(14, 1, (worker_conf_t){.slots = 4});
    slot_t *holds[4];
    for (uint64_t v = 1; v <= 4; v++) {
        publish_and_activate(v);
        holds[v - 1] = worker_hold(workers[0], v);
    }
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 5}});
    world_run(w, 500 * MS);
    MUST(w, worker_active(workers[0]) == 4);
    worker_unhold(workers[0], holds[0]);
    UNTIL(w, SECOND, world_all_active(w, 5));
    for (int i = 1; i < 4; i++) worker_unhold(workers[0], holds[i]);
    world_run(w, SECOND);
    check_settled(w);
}
