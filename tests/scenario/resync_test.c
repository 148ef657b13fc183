/* SPDX-License-Identifier: Apache-2.0 */
/* A frame of the broker finds a full queue and is lost: of whatever kind it was, all is well after the
 * next heartbeat. */
#include "core/failpoint.h"
#include "tests/scenario/world.h"

#include <stdio.h>

#define LEASE_US (4 * SECOND)
enum { WORKERS = 2, KEEP = 1 };

static world_t *w;
static actor_t *workers[WORKERS], *trainer;

static void open_world(void)
{
    w = world_new((world_opts_t){.seed = 1, .keep = KEEP});
    trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, WORKERS, (worker_conf_t){0}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer));
}

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(resync, .init = open_world, .fini = close_world);

static void loses(actor_t *a, msg_type_t type)
{
    w->slow = a;
    w->slow_type = type;
}

static void publish_and_settle(uint64_t version)
{
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = version}}) == version);
    UNTIL(w, LEASE_US, world_all_active(w, version));
    UNTIL(w, LEASE_US, !strcmp(trainer->rolled.state, "active") && trainer->rolled.version == version);
}

/* The bytes of a version that is put away go, and with them the slot that the next one needs. */
Test(resync, a_version_that_is_put_away)
{
    for (uint64_t v = 1; v <= 2; v++) publish_and_settle(v);
    loses(workers[0], MSG_RETIRE);
    publish_and_settle(3);
    UNTIL(w, SECOND, !w->slow);
    MUST(w, worker_holds(workers[0], 1));
    UNTIL(w, LEASE_US, !worker_holds(workers[0], 1));
    MUST(w, worker_active(workers[0]) == 3 && worker_slots_used(workers[0]) == 1 + KEEP);
    for (uint64_t v = 4; v <= 8; v++) publish_and_settle(v);
    check_settled(w);
}

/* One frame of each kind that goes by itself, to whom it goes; five versions, one of them in the way of
 * the loss. */
static void loses_one(actor_t *a, msg_type_t type)
{
    for (uint64_t v = 1; v <= 2; v++) publish_and_settle(v);
    loses(a, type);
    for (uint64_t v = 3; v <= 5; v++) publish_and_settle(v);
    world_run(w, LEASE_US);
    MUST(w, !w->slow);
    for (int i = 0; i < WORKERS; i++) MUST(w, worker_slots_used(workers[i]) == 1 + KEEP);
    check_settled(w);
}

Test(resync, an_announcement) { loses_one(workers[0], MSG_ANNOUNCE); }
Test(resync, a_decision) { loses_one(workers[0], MSG_COMMIT); }
Test(resync, a_heartbeats_answer) { loses_one(workers[0], MSG_HEARTBEAT_OK); }
Test(resync, what_a_publisher_may_use_again) { loses_one(trainer, MSG_RELEASE); }
Test(resync, how_a_version_fares) { loses_one(trainer, MSG_ROLLOUT); }
Test(resync, the_answer_to_a_publish) { loses_one(trainer, MSG_PUBLISHED); }

/* What a worker cannot say for want of memory it says anew: the broker, and who waits there, comes to know it
 * well before the deadline. */
static void says_in_vain(const char *point)
{
    for (uint64_t v = 1; v <= 2; v++) publish_and_settle(v);
    failpoint_arm(point, 1);
    publish_and_settle(3);
    UNTIL(w, LEASE_US, trainer->rolled.staged == WORKERS && trainer->rolled.active == WORKERS);
    MUST(w, failpoint_has_failed());
    failpoint_disarm();
    publish_and_settle(4);
    check_settled(w);
}

Test(resync, a_workers_word_that_it_has_staged) { says_in_vain("worker.send.STAGED"); }
Test(resync, a_workers_word_that_it_has_switched) { says_in_vain("worker.send.ACTIVE"); }

Test(resync, a_workers_word_that_it_refuses)
{
    actor_t *wary = world_worker(w, "wary", (worker_conf_t){.app = APP_ACCEPTS});
    publish_and_settle(1);
    wary->conf.app = APP_REJECTS_STAGE;
    failpoint_arm("worker.send.NACK", 1);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 2}}) == 2);
    UNTIL(w, LEASE_US, !strcmp(trainer->rolled.state, "failed"));
    MUST(w, failpoint_has_failed());
    failpoint_disarm();
    MUST(w, strstr(trainer->rolled.message, "wary"));
    MUST(w, strstr(trainer->rolled.message, "the engine cannot load it"));
    UNTIL(w, LEASE_US,
          !worker_node_adapter(wary->worker, 0)
               ->intake.download); /* it was announced again, and hears of the end */
    check_settled(w);
}

/* A word that cannot be said either is said again. */
Test(resync, the_call_to_come_again)
{
    for (uint64_t v = 1; v <= 2; v++) publish_and_settle(v);
    loses(workers[0], MSG_RETIRE);
    publish_and_settle(3);
    UNTIL(w, SECOND, !w->slow);
    loses(workers[0], MSG_ERROR);
    UNTIL(w, LEASE_US, !worker_holds(workers[0], 1));
    MUST(w, !w->slow);
    check_settled(w);
}
