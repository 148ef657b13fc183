/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/torture/plays.h"

#include "core/errors.h"

#include <heddle/publisher.h>
#include <stdio.h>

enum { LEASE_MS = 1000, DEADLINE_MS = 4000, LAST_DEADLINE_MS = 30000 };
#define LEASE_US (LEASE_MS * MS)

/* ---- time ---- */

static bool step(play_t *p, uint64_t end_us)
{
    bool more = world_step(p->w, end_us);
    if (!p->w->broker) {
        p->restarts++;
        if (p->start) p->start(p->w);
        else world_broker_start(p->w);
        return true;
    }
    return more;
}

static void pass(play_t *p, uint64_t us)
{
    uint64_t end_us = p->w->now_us + us;
    while (step(p, end_us)) continue;
}

/* Goes on until it holds, or not: nothing is demanded. */
#define SOON(p, limit_us, condition)                                                                         \
    do {                                                                                                     \
        uint64_t end_ = (p)->w->now_us + (limit_us);                                                         \
        while (!(condition) && step((p), end_)) continue;                                                    \
    } while (0)
/* The same, demanded. */
#define DEMAND(p, limit_us, condition)                                                                       \
    do {                                                                                                     \
        SOON(p, limit_us, condition);                                                                        \
        if (!(condition))                                                                                    \
            world_fail((p)->w, "%s:%d: not within %.3f s: %s", __FILE__, __LINE__, (double)(limit_us) / 1e6, \
                       #condition);                                                                          \
    } while (0)

/* ---- actors ---- */

static void join(play_t *p, app_t app)
{
    char name[8];
    snprintf(name, sizeof name, "w%u", p->worker_count + 1);
    p->workers[p->worker_count++] = world_worker(p->w, name, (worker_conf_t){.app = app});
}

static bool all_are_ready(const play_t *p) { return world_all_ready(p->w, p->worker_count); }

/* Ten chunks, and a last one that is none; one where the bytes are not what it is about. */
static publish_t content(const play_t *p, uint64_t seed)
{
    uint32_t rows = p->is_small ? 20 : 2000;
    return (publish_t){.shape = {.seed = seed, .count = 5, .rows = rows + (uint32_t)seed},
                       .deadline_ms = DEADLINE_MS,
                       .if_unchanged = HEDDLE_UNCHANGED_PUBLISH};
}

static void publish_again(play_t *p)
{
    publish_t what = content(p, p->asked);
    what.request_id = p->request_id;
    if (p->is_last) what.deadline_ms = LAST_DEADLINE_MS;
    trainer_publish(p->trainer, what);
    SOON(p, DEADLINE_MS * MS, p->trainer->published.is_answered);
    if (!p->trainer->published.is_answered) trainer_gives_up(p->trainer);
}

static void publish(play_t *p)
{
    snprintf(p->request_id, sizeof p->request_id, "torture-%llu", (unsigned long long)++p->asked);
    publish_again(p);
    p->first_code = p->trainer->published.code;
    p->first_version = p->trainer->published.version;
}

static bool all_hold(const play_t *p, uint64_t version)
{
    for (uint32_t i = 0; i < p->worker_count; i++)
        if (!worker_holds(p->workers[i], version)) return false;
    return true;
}

static void ask(play_t *p, msg_query_t query)
{
    query.name = ADAPTER;
    query.deadline_ms = 2000;
    admin_ask(p->admin, query);
    SOON(p, 3 * SECOND, p->admin->is_replied);
}

/* ---- before ---- */

static void with_workers(play_t *p)
{
    join(p, APP_NONE);
    join(p, APP_ACCEPTS);
    p->trainer = world_trainer(p->w, "trainer", (trainer_conf_t){0});
    DEMAND(p, 5 * SECOND, all_are_ready(p) && trainer_is_ready(p->trainer));
}

static void with_version(play_t *p)
{
    with_workers(p);
    publish(p);
    DEMAND(p, 5 * SECOND, world_all_active(p->w, 1));
    pass(p, SECOND);
}

static void with_versions(play_t *p)
{
    with_version(p);
    publish(p);
    DEMAND(p, 5 * SECOND, world_all_active(p->w, 2));
    pass(p, SECOND);
}

static void with_announced(play_t *p)
{
    with_version(p);
    publish(p);
}

static void with_staged(play_t *p)
{
    with_announced(p);
    DEMAND(p, 5 * SECOND, worker_holds(p->workers[0], 2));
}

static void with_broker_dead(play_t *p)
{
    with_versions(p);
    world_broker_kill(p->w);
}

static void with_admin(play_t *p)
{
    with_versions(p);
    p->admin = world_admin(p->w);
    pass(p, 100 * MS);
}

static void with_trainer_dying(play_t *p)
{
    with_version(p);
    p->trainer->trainer.max_rate_bytes = 1 << 20;
    actor_kill(p->trainer);
    actor_start(p->trainer);
    DEMAND(p, 5 * SECOND, trainer_is_ready(p->trainer));
    publish(p);
}

static void with_refusing(play_t *p)
{
    with_version(p);
    p->workers[1]->conf.app = APP_REJECTS_STAGE;
}

/* ---- what may fail ---- */

static void act_join(play_t *p)
{
    join(p, APP_NONE);
    join(p, APP_ACCEPTS);
    SOON(p, 5 * SECOND, all_are_ready(p) && world_all_active(p->w, 1));
}

static void act_open(play_t *p)
{
    actor_kill(p->trainer);
    actor_start(p->trainer);
    SOON(p, 3 * SECOND, trainer_is_ready(p->trainer));
}

static void act_publish(play_t *p) { publish(p); }

/* One of them refuses it: the version fails. */
static void act_publish_and_wait(play_t *p)
{
    publish(p);
    pass(p, SECOND);
    p->workers[1]->conf.app = APP_ACCEPTS;
}

static void act_fetch(play_t *p) { SOON(p, 5 * SECOND, all_hold(p, 2)); }

static void act_commit(play_t *p)
{
    SOON(p, 5 * SECOND, world_all_active(p->w, 2));
    pass(p, 500 * MS);
}

/* The places of the first are given to the third. */
static void act_versions(play_t *p)
{
    for (int i = 0; i < 3; i++) {
        publish(p);
        SOON(p, 3 * SECOND, world_all_active(p->w, p->first_version));
    }
}

static void act_restart(play_t *p)
{
    world_broker_start(p->w);
    SOON(p, 3 * SECOND, all_are_ready(p) && trainer_is_ready(p->trainer));
    pass(p, 2 * LEASE_US);
}

static void act_questions(play_t *p)
{
    static const char *const OPS[] = {"status", "workers", "versions", "adapters",
                                      "verify", "events",  "report"};
    const char *names[] = {"w1"};
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++)
        ask(p, (msg_query_t){.op = OPS[i], .version = 2, .phase = HEDDLE_PHASE_ACTIVE});
    ask(p, (msg_query_t){.op = "wait",
                         .version = 2,
                         .phase = HEDDLE_PHASE_ACTIVE,
                         .workers = names,
                         .worker_count = 1});
    ask(p, (msg_query_t){.op = "wait", .version = 3, .phase = HEDDLE_PHASE_ACTIVE, .min = 1});
}

static void act_rollback(play_t *p)
{
    ask(p,
        (msg_query_t){.op = "activate", .version = 1, .phase = HEDDLE_PHASE_ACTIVE, .min = 1, .by = "ann"});
    pass(p, 500 * MS);
}

static void act_leave(play_t *p)
{
    actor_leave(p->workers[0]);
    actor_leave(p->trainer);
    pass(p, 500 * MS);
    actor_kill(p->workers[0]); /* who leaves does not wait for ever */
    actor_kill(p->trainer);
}

/* Halfway through: those who have most of it give it to the others, who ask the broker for them. */
static void act_source_dies(play_t *p)
{
    pass(p, 200 * MS);
    actor_kill(p->trainer);
    pass(p, 2 * LEASE_US);
}

const play_row_t PLAYS[] = {
    {"join", with_version, act_join, false},
    {"open", with_version, act_open, true},
    {"publish", with_version, act_publish, true},
    {"fetch", with_announced, act_fetch, false},
    {"commit", with_staged, act_commit, false},
    {"versions", with_version, act_versions, true},
    {"restart", with_broker_dead, act_restart, true},
    {"questions", with_admin, act_questions, true},
    {"rollback", with_admin, act_rollback, true},
    {"leave", with_version, act_leave, true},
    {"source_dies", with_trainer_dying, act_source_dies, false},
    {"refused", with_refusing, act_publish_and_wait, true},
};
const size_t PLAY_COUNT = sizeof PLAYS / sizeof *PLAYS;

/* ---- and then ---- */

void play_begin(play_t *p, const play_row_t *row, uint64_t seed)
{
    *p = (play_t){.w = world_new((world_opts_t){.seed = seed, .keep = 1, .lease_ms = LEASE_MS}),
                  .is_small = row->is_small};
    row->prepare(p);
}

void play_begin_with(play_t *p, void (*start)(world_t *w), uint64_t seed)
{
    *p = (play_t){.w = world_new_down((world_opts_t){.seed = seed, .keep = 1, .lease_ms = LEASE_MS}),
                  .start = start,
                  .is_small = true};
}

void play_open(play_t *p)
{
    pass(p, MS);
    join(p, APP_NONE);
    join(p, APP_ACCEPTS);
    p->admin = world_admin(p->w);
    p->trainer = world_trainer(p->w, "trainer", (trainer_conf_t){0});
    SOON(p, 5 * SECOND, all_are_ready(p) && trainer_is_ready(p->trainer));
}

void play_publish(play_t *p)
{
    publish(p);
    if (!p->first_code) SOON(p, 3 * SECOND, world_all_active(p->w, p->first_version));
}

void play_rollback(play_t *p) { act_rollback(p); }

static void bring_back(play_t *p)
{
    for (uint32_t i = 0; i < p->worker_count; i++) {
        actor_t *a = p->workers[i];
        if (!a->alive) actor_start(a);
    }
    if (!p->trainer->alive) actor_start(p->trainer);
    DEMAND(p, 5 * LEASE_US + 5 * SECOND, all_are_ready(p) && trainer_is_ready(p->trainer));
}

/* Its publisher was gone before any worker had it. */
static bool was_interrupted(const play_t *p, uint64_t version)
{
    const version_row_t *row = world_version(p->w, version);
    return row && row->state == VERSION_FAILED && row->code == HEDDLE_ERR_VERSION_LOST;
}

/* Asked again under its id it is done, and it is the version that was acknowledged, if one was and could go
 * on. */
static void ask_again(play_t *p)
{
    if (!p->asked) return;
    publish_again(p);
    const published_t *now = &p->trainer->published;
    if (now->code && now->code != HEDDLE_ERR_VERSION_FAILED)
        world_fail(p->w, "asked again, publish says %s: %s", heddle_err_name(now->code), now->message);
    bool is_another = now->version != p->first_version && !was_interrupted(p, p->first_version);
    if (!p->first_code && !now->code && is_another)
        world_fail(p->w, "v%llu was acknowledged, and is v%llu now", (unsigned long long)p->first_version,
                   (unsigned long long)now->version);
}

/* What is held by hand waits for that hand. */
static bool is_decided(const play_t *p)
{
    const adapter_row_t *a = world_adapter(p->w);
    for (size_t i = 0; a && !a->held && i < a->version_count; i++)
        if (a->versions[i]->state == VERSION_STAGING) return false;
    return true;
}

void play_converge(play_t *p)
{
    bring_back(p);
    ask_again(p);
    DEMAND(p, DEADLINE_MS * MS + 3 * LEASE_US, is_decided(p));
    if (world_adapter(p->w) &&
        world_adapter(p->w)->active) /* a source that is silent is given up after a while */
        DEMAND(p, LAST_DEADLINE_MS * MS, world_all_active(p->w, world_adapter(p->w)->active));
    p->is_last = true;
    publish(p);
    if (p->first_code)
        world_fail(p->w, "at last, publish says %s: %s", heddle_err_name(p->first_code),
                   p->trainer->published.message);
    if (world_adapter(p->w)->held) {
        if (!p->admin) p->admin = world_admin(p->w);
        DEMAND(p, 5 * SECOND, all_hold(p, p->first_version));
        pass(p, 100 * MS);
        ask(p, (msg_query_t){.op = "activate",
                             .version = p->first_version,
                             .phase = HEDDLE_PHASE_ACTIVE,
                             .min = 1,
                             .by = "ann"});
    }
    DEMAND(p, LAST_DEADLINE_MS * MS, world_all_active(p->w, p->first_version));
    pass(p, 2 * LEASE_US + SECOND);
    check_settled(p->w);
    for (uint32_t i = 0; i < p->worker_count; i++) MUST(p->w, worker_slots_used(p->workers[i]) <= 2);
}

void play_end(play_t *p)
{
    world_destroy(&p->w);
    content_forget_all();
}
