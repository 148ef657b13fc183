/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that serve each other, their publisher and the broker are killed at any moment while a version is on its
 * way, along each plan, and with bytes that are sent in each way.  What they serve is compared with what was
 * published after every event (check.c).  At the end of each cluster a version comes to all.
 *
 * HEDDLE_TEST_SEED: the first seed.  A failure prints its seed. */
#include "tests/scenario/world.h"

#include <stdio.h>
#include <stdlib.h>

enum { KILLS = 250, WORKERS = 6, VERSIONS = 6, CHUNKS = 24 };

#define LEASE_US (4 * SECOND)
#define RATE 37500000u                                              /* 300 Mbit/s */
#define WAY_US (1000000ull * CHUNKS * LIMIT_CHUNK_MIN_BYTES / RATE) /* of a version over one link */

static const mem_link_t LINK = {.bytes_per_s = RATE, .latency_us = 100};

static world_t *w;
static actor_t *trainer, *workers[WORKERS];
static uint32_t kills_of[ACTOR_ADMIN];

static void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}
TestSuite(relays, .fini = close_world);

static publish_t next_content(uint64_t seed, uint32_t number)
{
    return (publish_t){.shape = {.seed = seed * 100 + number, .count = CHUNKS, .rows = 1024}};
}

static void begin(uint64_t seed, plan_shape_t shape, tr_mode_t mode)
{
    w = world_new((world_opts_t){.seed = seed, .keep = 1, .shape = shape, .mode = mode});
    trainer = world_trainer(w, "ann", (trainer_conf_t){.link = LINK, .takeover = true});
    world_workers(w, WORKERS, (worker_conf_t){.link = LINK}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer) && world_all_ready(w, WORKERS));
}

/* A worker, as a rule. */
static actor_t *any_victim(void)
{
    uint64_t at = world_random(w, WORKERS + 2);
    return at < WORKERS ? workers[at] : at == WORKERS ? trainer : w->host;
}

static void start_again(actor_t *a)
{
    if (a->kind == ACTOR_BROKER) world_broker_start(w);
    else actor_start(a);
}

/* It is active on all, or has failed. */
static bool has_ended(uint64_t version)
{
    return !w->committing && (world_all_active(w, version) || !strcmp(world_state(w, version), "failed"));
}

/* A version, and one that is killed on its way: up to a lease later, or more, it is there again.  A version fails
 * only where its publisher was killed. */
static void publish_and_kill(publish_t content)
{
    trainer_publish(trainer, content);
    world_run(w, world_random(w, 2 * WAY_US));
    actor_t *victim = any_victim();
    bool is_answered = trainer->published.is_answered;
    actor_kill(victim);
    kills_of[victim->kind]++;
    world_run(w, world_random(w, 2) ? world_random(w, 2 * WAY_US) : world_random(w, 2 * LEASE_US));
    start_again(victim);
    UNTIL(w, 3 * LEASE_US, trainer_is_ready(trainer) && world_all_ready(w, WORKERS));
    if (victim == trainer && !is_answered) return;
    UNTIL(w, 3 * LEASE_US, victim == trainer || trainer->published.is_answered);
    uint64_t version = world_adapter(w)->last_version;
    UNTIL(w, 4 * LEASE_US, has_ended(version));
    MUST(w, victim == trainer || world_all_active(w, version));
}

static uint32_t killed(void)
{
    uint32_t count = 0;
    for (int i = 0; i < ACTOR_ADMIN; i++) count += kills_of[i];
    return count;
}

static void kill_many(const char *how, plan_shape_t shape, tr_mode_t mode)
{
    const char *text = getenv("HEDDLE_TEST_SEED");
    for (uint64_t seed = text ? strtoull(text, NULL, 0) : 1; killed() < KILLS; seed++) {
        begin(seed, shape, mode);
        for (uint32_t i = 0; i < VERSIONS; i++) publish_and_kill(next_content(seed, i));
        uint64_t version = trainer_publishes(trainer, next_content(seed, VERSIONS));
        UNTIL(w, 4 * LEASE_US, world_all_active(w, version));
        world_run(w, LEASE_US);
        check_settled(w);
        close_world();
    }
    printf("%s: %u workers, %u publishers and %u brokers killed\n", how, kills_of[ACTOR_WORKER],
           kills_of[ACTOR_TRAINER], kills_of[ACTOR_BROKER]);
}

Test(relays, of_a_chain_are_killed) { kill_many("chain", PLAN_CHAIN, TR_MODE_EAGER); }

Test(relays, of_a_chain_are_killed_with_rendezvous)
{
    kill_many("chain, rendezvous", PLAN_CHAIN, TR_MODE_RENDEZVOUS);
}

Test(relays, of_two_trees_are_killed) { kill_many("two trees", PLAN_TWO_TREE, TR_MODE_EAGER); }

Test(relays, of_two_trees_are_killed_with_rendezvous)
{
    kill_many("two trees, rendezvous", PLAN_TWO_TREE, TR_MODE_RENDEZVOUS);
}
