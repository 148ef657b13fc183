/* SPDX-License-Identifier: Apache-2.0 */
/* Everything at random: kills, stops, cuts, joins, leaves, publications, activations, readers, wrong and
 * lost bytes, a full disk, and a broker that dies at any of its steps.  What must always hold is checked
 * after every event; when all is healed, everybody comes to serve one version within a bounded time.
 *
 * HEDDLE_TEST_SEED: the first seed; HEDDLE_TEST_RUNS: how many.  A failure prints its seed. */
#include "tests/scenario/world.h"

#include <heddle/publisher.h>
#include <stdio.h>
#include <stdlib.h>

enum { RUNS = 240, STEPS = 60, WORKERS_MAX = 6, TRAINERS = 2 };

typedef struct {
    world_t *w;
    actor_t *workers[WORKERS_MAX], *trainers[TRAINERS], *admin;
    uint32_t worker_count;
    uint64_t lease_us;
} play_t;

static uint64_t pick(play_t *p, uint64_t below) { return world_random(p->w, below); }
static actor_t *any_worker(play_t *p) { return p->workers[pick(p, p->worker_count)]; }
static actor_t *any_trainer(play_t *p) { return p->trainers[pick(p, TRAINERS)]; }
static actor_t *any_client(play_t *p) { return pick(p, 4) ? any_worker(p) : any_trainer(p); }

/* ---- what can happen
 * -------------------------------------------------------------------------------------------- */

static void do_publish(play_t *p)
{
    actor_t *t = any_trainer(p);
    if (!t->alive || trainer_is_busy(t)) return;
    publish_t what = {
        .shape = {.seed = 1 + pick(p, 40), .count = 1 + (uint32_t)pick(p, 6), .rows = 1 + pick(p, 2048)},
        .deadline_ms = 2000 + (uint32_t)pick(p, 20000)};
    what.activation = pick(p, 4) ? HEDDLE_ACTIVATION_ALL : (int)pick(p, 3);
    what.if_unchanged = (int)pick(p, 3);
    trainer_publish(t, what);
}

static void do_kill(play_t *p) { actor_kill(any_client(p)); }

static void do_start(play_t *p)
{
    actor_t *a = any_client(p);
    if (a->kind == ACTOR_TRAINER) a->trainer.takeover = pick(p, 2);
    if (!a->alive) actor_start(a);
}

static void do_stop(play_t *p) { actor_stop(any_client(p), true); }

static void do_resume(play_t *p)
{
    for (uint32_t i = 0; i < p->w->actor_count; i++)
        if (pick(p, 2)) actor_stop(p->w->actors[i], false);
}

static void do_cut(play_t *p) { actor_cut(any_client(p), true); }

static void do_heal(play_t *p)
{
    for (uint32_t i = 0; i < p->w->actor_count; i++)
        if (pick(p, 2)) actor_cut(p->w->actors[i], false);
}

static void do_break(play_t *p) { actor_break(any_client(p)); }

static void do_join(play_t *p)
{
    if (p->worker_count == WORKERS_MAX) return;
    char name[16];
    snprintf(name, sizeof name, "w%u", p->worker_count + 1);
    worker_conf_t conf = {.slots = pick(p, 2) ? 0 : (uint32_t)(2 + p->w->opts.keep + pick(p, 3)),
                          .app = pick(p, 3) ? APP_NONE : APP_ACCEPTS,
                          .max_rate_bytes = pick(p, 3) ? 0 : 1 << 20};
    p->workers[p->worker_count++] = world_worker(p->w, name, conf);
}

static void do_leave(play_t *p)
{
    actor_t *a = any_client(p);
    if (!a->alive || a->stopped) return;
    actor_leave(a);
    world_run(p->w, pick(p, 1500) * MS);
    actor_kill(a);
}

static void do_broker_kill(play_t *p) { world_broker_kill(p->w); }
static void do_broker_stop(play_t *p) { actor_stop(p->w->host, true); }

static void do_broker_start(play_t *p)
{
    if (!p->w->broker) world_broker_start(p->w);
    actor_stop(p->w->host, false);
}

static void do_broker_die(play_t *p)
{
    p->w->points = 0;
    p->w->die_kind = (int)pick(p, 4) - 1;
    p->w->die_at = 1 + pick(p, 20);
}

static void do_full_disk(play_t *p) { p->w->commit_code = pick(p, 2) ? HEDDLE_ERR_NO_SPACE : 0; }

static void ask_to_activate(play_t *p, uint64_t version, const char *by)
{
    admin_ask(p->admin, (msg_query_t){.op = "activate",
                                      .name = ADAPTER,
                                      .version = version,
                                      .phase = HEDDLE_PHASE_ACTIVE,
                                      .min = 1,
                                      .deadline_ms = 5000,
                                      .by = by});
}

static void do_activate(play_t *p)
{
    const adapter_row_t *a = world_adapter(p->w);
    if (a && a->last_version) ask_to_activate(p, 1 + pick(p, a->last_version), "eve");
}

static void do_read(play_t *p)
{
    actor_t *a = any_worker(p);
    if (a->worker) worker_hold(a, pick(p, 2) ? 0 : worker_active(a));
}

static void do_release(play_t *p)
{
    actor_t *a = any_worker(p);
    for (int i = 0; i < HOLDS_MAX; i++)
        if (a->holds[i] && pick(p, 2)) worker_unhold(a, a->holds[i]);
}

static void do_corrupt(play_t *p)
{
    actor_t *a = any_client(p);
    if (a->t) mem_corrupt_data(a->t, 1 + (uint32_t)pick(p, 4), (uint32_t)pick(p, 65536));
}

static void do_lose(play_t *p)
{
    actor_t *a = any_client(p);
    if (a->t) mem_drop_data(a->t, 1 + (uint32_t)pick(p, 4));
}

static void do_moody(play_t *p)
{
    actor_t *a = any_worker(p);
    if (a->conf.app != APP_NONE) a->conf.app = APP_ACCEPTS + (app_t)pick(p, 4);
}

typedef struct {
    void (*happen)(play_t *p);
    uint32_t weight;
} chance_t;
static const chance_t CHANCES[] = {
    {do_publish, 30},    {do_kill, 5},       {do_start, 8},        {do_stop, 5},        {do_resume, 6},
    {do_cut, 4},         {do_heal, 6},       {do_break, 5},        {do_join, 4},        {do_leave, 3},
    {do_broker_kill, 2}, {do_broker_die, 3}, {do_broker_start, 8}, {do_broker_stop, 1}, {do_activate, 5},
    {do_full_disk, 3},   {do_read, 6},       {do_release, 6},      {do_corrupt, 3},     {do_lose, 2},
    {do_moody, 3}};

static void something(play_t *p)
{
    uint32_t total = 0;
    for (size_t i = 0; i < sizeof CHANCES / sizeof *CHANCES; i++) total += CHANCES[i].weight;
    uint64_t at = pick(p, total);
    size_t i = 0;
    for (; at >= CHANCES[i].weight; i++) at -= CHANCES[i].weight;
    CHANCES[i].happen(p);
}

/* ---- and then all is well
 * --------------------------------------------------------------------------------------- */

static void heal_worker(actor_t *a)
{
    if (a->conf.app != APP_NONE) a->conf.app = APP_ACCEPTS;
    worker_answers_late(a);
    for (int i = 0; i < HOLDS_MAX; i++)
        if (a->holds[i]) worker_unhold(a, a->holds[i]);
    if (!a->alive) actor_start(a);
    mem_corrupt_data(a->t, 0, 0);
    mem_drop_data(a->t, 0);
}

static void heal(play_t *p)
{
    world_t *w = p->w;
    world_note(w, "all is healed");
    w->die_at = 0;
    w->commit_code = 0;
    w->store_fails_to_confirm = false;
    do_broker_start(p);
    for (uint32_t i = 0; i < w->actor_count; i++) {
        actor_stop(w->actors[i], false);
        actor_cut(w->actors[i], false);
    }
    for (uint32_t i = 0; i < p->worker_count; i++) heal_worker(p->workers[i]);
    for (int i = 0; i < TRAINERS; i++) actor_kill(p->trainers[i]);
    actor_kill(p->admin);
    world_run(w, p->lease_us + SECOND); /* what was asked before is answered, or over */
    actor_start(p->admin);
}

/* Whatever happened before: a version that is published now is served by everybody soon. */
static void all_comes_right(play_t *p)
{
    world_t *w = p->w;
    heal(p);
    actor_t *zoe = world_trainer(w, "zoe", (trainer_conf_t){.takeover = true});
    UNTIL(w, 3 * p->lease_us + 5 * SECOND, trainer_is_ready(zoe) && world_all_ready(w, p->worker_count));
    uint64_t version = trainer_publishes(
        zoe, (publish_t){.shape = {.seed = 1000}, .if_unchanged = HEDDLE_UNCHANGED_PUBLISH});
    uint64_t end_us = w->now_us + 3 * p->lease_us + 20 * SECOND;
    while (!world_all_active(w, version) && w->now_us < end_us) {
        if (world_adapter(w)->held) ask_to_activate(p, version, "zoe");
        world_run(w, SECOND);
    }
    UNTIL(w, 1, world_all_active(w, version));
    world_run(w, 2 * p->lease_us + 5 * SECOND);
    check_settled(w);
    for (uint32_t i = 0; i < p->worker_count; i++)
        MUST(w, worker_slots_used(p->workers[i]) <= 1 + w->opts.keep);
}

static void play(uint64_t seed)
{
    play_t p = {
        .w = world_new((world_opts_t){.seed = seed, .keep = seed % 3, .lease_ms = 500 + seed % 4 * 1000})};
    p.lease_us = p.w->opts.lease_ms * MS;
    p.admin = world_admin(p.w);
    for (int i = 0; i < TRAINERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i + 1);
        p.trainers[i] =
            world_trainer(p.w, name, (trainer_conf_t){.max_rate_bytes = pick(&p, 2) ? 0 : 2 << 20});
    }
    do_join(&p);
    do_join(&p);
    for (int i = 0; i < STEPS; i++) {
        something(&p);
        world_run(p.w, pick(&p, 8) ? pick(&p, 300 * MS) : pick(&p, 2 * p.lease_us));
    }
    all_comes_right(&p);
    world_destroy(&p.w);
    content_forget_all();
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

Test(torture, random)
{
    uint64_t first = from_environment("HEDDLE_TEST_SEED", 1),
             runs = from_environment("HEDDLE_TEST_RUNS", RUNS);
    for (uint64_t i = 0; i < runs; i++) play(first + i);
    printf("seeds %llu to %llu\n", (unsigned long long)first, (unsigned long long)(first + runs - 1));
}
