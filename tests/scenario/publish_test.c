/* SPDX-License-Identifier: Apache-2.0 */
/* A version goes to 1, 4 and 16 workers: counted messages, counted bytes.  Then ten in a row, late
 * joiners, many more than can be carried. */
#include "tests/scenario/world.h"

#include <heddle/publisher.h>
#include <stdio.h>

enum { KEEP = 1, SLOTS = 3 };

static world_t *w;
static void setup(void) { w = world_new((world_opts_t){.seed = 7, .keep = KEEP}); }
static void teardown(void)
{
    world_destroy(&w);
    content_forget_all();
}
TestSuite(publish, .init = setup, .fini = teardown);

/* A step until end_us, and after it until the publication is answered. */
static bool goes_on(const actor_t *trainer, uint64_t end_us)
{
    return world_step(w, end_us) || (trainer_is_busy(trainer) && world_step(w, w->now_us + SECOND));
}

/* Control messages that a rollout takes, without what time alone brings (heartbeats), and without the
 * publisher's own. */
static uint64_t rollout_messages(void)
{
    return w->sent[MSG_ANNOUNCE] + w->sent[MSG_SOURCES] + w->sent[MSG_NEED_SOURCES] + w->sent[MSG_STAGED] +
           w->sent[MSG_COMMIT] + w->sent[MSG_ACTIVE] + w->sent[MSG_NACK] + w->sent[MSG_ABORT] +
           w->sent[MSG_RETIRE] + w->sent[MSG_PUBLISH] + w->sent[MSG_PUBLISHED] + w->sent[MSG_RELEASE] +
           w->sent[MSG_ROLLOUT] + w->sent[MSG_ERROR] + w->sent[MSG_PING];
}

typedef struct {
    uint64_t messages, maps, bytes, content;
} cost_t;

static cost_t cost_of(uint32_t worker_count, content_shape_t shape)
{
    world_t *old = w;
    w = world_new((world_opts_t){.seed = 3, .keep = KEEP});
    actor_t *workers[16], *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, worker_count, (worker_conf_t){0}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer));
    uint64_t before = rollout_messages();
    uint64_t version = trainer_publishes(trainer, (publish_t){.shape = shape});
    UNTIL(w, 5 * SECOND, world_all_active(w, version));
    world_run(w, SECOND);
    check_settled(w);
    cost_t cost = {.messages = rollout_messages() - before,
                   .content = content_bytes(trainer->published.content)};
    for (uint32_t i = 0; i < worker_count; i++) {
        tr_counters_t c = actor_counters(workers[i]);
        MUST(w, c.bytes_in == cost.content);
        cost.maps += c.maps;
        cost.bytes += c.bytes_in;
    }
    cost.maps += actor_counters(trainer).maps;
    world_destroy(&w);
    w = old;
    return cost;
}

/* However many tensors: the same messages, the same registrations; every worker gets every byte once. */
static void check_cost(uint32_t worker_count, uint32_t tensor_count)
{
    cost_t few = cost_of(worker_count, (content_shape_t){.seed = 1, .count = 336, .rows = 64});
    cost_t many = cost_of(worker_count, (content_shape_t){.seed = 2, .count = tensor_count, .rows = 1});
    printf("%u workers: %llu messages, %llu registrations\n", worker_count, (unsigned long long)few.messages,
           (unsigned long long)few.maps);
    cr_assert_leq(few.messages, 4 * worker_count + 16);
    cr_assert_eq(few.messages, many.messages, "%llu and %llu", (unsigned long long)few.messages,
                 (unsigned long long)many.messages);
    cr_assert_eq(few.maps, many.maps);
    cr_assert_eq(few.maps, worker_count + 1);
    cr_assert_eq(few.bytes, worker_count * few.content);
    cr_assert_eq(many.bytes, worker_count * many.content);
}

Test(publish, to_one) { check_cost(1, 18040); }
Test(publish, to_four) { check_cost(4, 18040); }
Test(publish, to_sixteen) { check_cost(16, 2255); }

/* Published again under another number: workers take it from their own memory, and serve it to others. */
Test(publish, content_that_workers_hold_moves_no_bytes)
{
    actor_t *workers[3], *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, 3, (worker_conf_t){0}, workers);
    UNTIL(w, SECOND, trainer_is_ready(trainer));
    for (uint64_t v = 1; v <= 2; v++) {
        trainer_publishes(trainer, (publish_t){.shape = {.seed = v}});
        UNTIL(w, SECOND, world_all_active(w, v));
    }
    uint64_t bytes_in[3], sent = actor_counters(trainer).bytes_out;
    for (int i = 0; i < 3; i++) bytes_in[i] = actor_counters(workers[i]).bytes_in;
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, SECOND, world_all_active(w, 3));
    for (int i = 0; i < 3; i++) MUST(w, actor_counters(workers[i]).bytes_in == bytes_in[i]);
    MUST(w, actor_counters(trainer).bytes_out == sent);
    actor_t *late = world_worker(w, "w9", (worker_conf_t){0});
    UNTIL(w, 5 * SECOND, worker_active(late) == 3);
    MUST(w, actor_counters(late).bytes_in == bytes_in[0] / 2);
    for (uint64_t v = 4; v <= 6; v++) { /* 1 is retired, then 3 */
        trainer_publishes(trainer, (publish_t){.shape = {.seed = v}});
        UNTIL(w, SECOND, world_all_active(w, v));
    }
    world_run(w, SECOND);
    check_settled(w);
}

/* The publisher hears of it all, in the end. */
Test(publish, the_publisher_hears)
{
    actor_t *workers[4], *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, 4, (worker_conf_t){0}, workers);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, !strcmp(trainer->rolled.state, "active") && trainer->rolled.active == 4);
    MUST(w, trainer->rolled.eligible == 4 && trainer->rolled.staged == 4);
    MUST(w, trainer->events_by_type[HEDDLE_EVENT_RELEASED] == 1);
}

Test(publish, ten_in_a_row)
{
    actor_t *workers[4], *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, 4, (worker_conf_t){0}, workers);
    for (uint64_t v = 1; v <= 10; v++) {
        MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = v}}) == v);
        UNTIL(w, 2 * SECOND, world_all_active(w, v));
        world_run(w, 100 * MS);
        for (uint64_t old = 1; old + KEEP < v; old++) MUST(w, !strcmp(world_state(w, old), "retired"));
        if (v > 1) MUST(w, !strcmp(world_state(w, v - 1), "kept"));
    }
    for (int i = 0; i < 4; i++) {
        MUST(w, worker_slots_used(workers[i]) == 1 + KEEP);
        MUST(w, actor_counters(workers[i]).maps <= SLOTS); /* slots are used again, not made again */
        MUST(w, worker_holds(workers[i], 9) && !worker_holds(workers[i], 8));
    }
    MUST(w, actor_counters(trainer).maps <= 3); /* one served, one written, one ahead */
    check_settled(w);
}

/* The publisher is gone: the late ones get all from those who have it. */
Test(publish, late_joiners_are_served_by_workers)
{
    actor_t *workers[2], *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, 2, (worker_conf_t){0}, workers);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    uint64_t served = actor_counters(trainer).bytes_out;
    actor_leave(trainer);
    UNTIL(w, 2 * SECOND, trainer_has_left(trainer));
    MUST(w, actor_counters(trainer).bytes_out == served);
    actor_kill(trainer);
    actor_t *late = world_worker(w, "w9", (worker_conf_t){0});
    UNTIL(w, 2 * SECOND, worker_active(late) == 1);
    MUST(w, actor_counters(late).bytes_in == content_bytes(trainer->published.content));
    world_run(w, SECOND);
    const copy_row_t *copy = copy_find(world_track(w, 1), "w9");
    MUST(w, copy->served_count == 1 && copy->served[0].kind == SOURCE_WORKER);
    check_settled(w);
}

/* While the publisher is still there it is asked last. */
Test(publish, late_joiners_spare_the_publisher)
{
    actor_t *workers[4], *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, 4, (worker_conf_t){0}, workers);
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}});
    UNTIL(w, 2 * SECOND, world_all_active(w, 1));
    uint64_t served = actor_counters(trainer).bytes_out;
    actor_t *late = world_worker(w, "w9", (worker_conf_t){0});
    UNTIL(w, 2 * SECOND, worker_active(late) == 1);
    MUST(w, actor_counters(trainer).bytes_out == served);
    check_settled(w);
}

/* Fifty versions, one every few milliseconds, and a link that carries one in a quarter of a second. */
Test(publish, faster_than_the_link)
{
    enum { VERSIONS = 50 };
    actor_t *workers[2], *trainer = world_trainer(w, "ann", (trainer_conf_t){.max_rate_bytes = 4 << 20});
    world_workers(w, 2, (worker_conf_t){0}, workers);
    uint64_t activations = 0, last[2] = {0};
    for (uint64_t v = 1; v <= VERSIONS; v++) {
        MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = v},
                                                       .activation = HEDDLE_ACTIVATION_AS_READY}) == v);
        uint64_t end_us = w->now_us + 30 * MS;
        while (world_step(w, end_us))
            for (int i = 0; i < 2; i++) {
                activations += worker_active(workers[i]) != last[i];
                last[i] = worker_active(workers[i]);
            }
    }
    UNTIL(w, 10 * SECOND, world_all_active(w, VERSIONS));
    world_run(w, SECOND);
    printf("%llu activations of %d versions on 2 workers\n", (unsigned long long)activations, VERSIONS);
    for (uint64_t v = 1; v < VERSIONS; v++) {
        const char *state = world_state(w, v);
        MUST(w, !strcmp(state, "superseded") || !strcmp(state, "retired") || !strcmp(state, "kept"));
    }
    check_settled(w);
}

/* A version every 10 ms, and a link that takes 60 ms and more for one: what is on its way arrives, what
 * waits is the newest, and nothing starves.  Memory at the publisher is three regions. */
Test(publish, every_ten_ms_over_a_slow_link)
{
    enum { VERSIONS = 120 };
    actor_t *workers[2], *trainer = world_trainer(w, "ann", (trainer_conf_t){.max_rate_bytes = 16 << 20});
    world_workers(w, 2, (worker_conf_t){0}, workers);
    uint64_t activated = 0, last = 0, last_us = w->now_us, longest_us = 0;
    for (uint64_t v = 1; v <= VERSIONS; v++) {
        trainer_publish(trainer, (publish_t){.shape = {.seed = v}});
        for (uint64_t end_us = w->now_us + 10 * MS; goes_on(trainer, end_us);) {
            if (worker_active(workers[0]) == last || worker_active(workers[1]) == last) continue;
            last = worker_active(workers[0]);
            if (w->now_us - last_us > longest_us) longest_us = w->now_us - last_us;
            last_us = w->now_us;
            activated++;
        }
        MUST(w, !trainer->published.code && trainer->published.version == v);
    }
    UNTIL(w, SECOND, world_all_active(w, VERSIONS));
    printf("%llu of %d versions became active, %.0f ms apart at most\n", (unsigned long long)activated,
           VERSIONS, (double)longest_us / 1e3);
    MUST(w, activated >= 8);
    MUST(w, longest_us <= 200 * MS);
    for (uint64_t v = 1; v <= VERSIONS; v++) MUST(w, strcmp(world_state(w, v), "failed") != 0);
    MUST(w, actor_counters(trainer).maps <= 4); /* three are wanted, and one is ahead */
    world_run(w, SECOND);
    check_settled(w);
}

/* As-ready, and one worker that takes 60 ms for what comes every 10: it gets each version that it begins,
 * though all others have gone on, and neither publisher nor worker keeps more for it. */
Test(publish, a_worker_slower_than_its_trainer_gets_somewhere)
{
    enum { VERSIONS = 150 };
    actor_t *fast[2], *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    world_workers(w, 2, (worker_conf_t){0}, fast);
    actor_t *slow = world_worker(w, "w9", (worker_conf_t){.max_rate_bytes = 16 << 20});
    UNTIL(w, SECOND, slow->is_up);
    uint64_t activated = 0, last = 0, last_us = w->now_us, longest_us = 0;
    for (uint64_t v = 1; v <= VERSIONS; v++) {
        trainer_publish(trainer, (publish_t){.shape = {.seed = v}, .activation = HEDDLE_ACTIVATION_AS_READY});
        for (uint64_t end_us = w->now_us + 10 * MS; goes_on(trainer, end_us);) {
            if (worker_active(slow) == last) continue;
            MUST(w, worker_active(slow) > last);
            last = worker_active(slow);
            if (w->now_us - last_us > longest_us) longest_us = w->now_us - last_us;
            last_us = w->now_us;
            activated++;
        }
        MUST(w, !trainer->published.code && trainer->published.version == v);
    }
    UNTIL(w, SECOND, world_all_active(w, VERSIONS));
    printf("%llu of %d versions became active on the slow one, %.0f ms apart at most\n",
           (unsigned long long)activated, VERSIONS, (double)longest_us / 1e3);
    MUST(w, activated >= 15);
    MUST(w, longest_us <= 300 * MS);
    MUST(w, actor_counters(trainer).maps <= 4);
    MUST(w, actor_counters(fast[0]).maps <= 3);
    world_run(w, SECOND);
    check_settled(w);
}

/* One whose engine takes 2.5 s to load what comes every 100 ms, more than half a lease, and as long to
 * switch: what it loads is not retired under its hands, nor what it was told to switch to. */
Test(publish, a_worker_that_loads_slowly_gets_somewhere)
{
    enum { VERSIONS = 300, PACE = 25 };
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    actor_t *fast = world_worker(w, "w1", (worker_conf_t){0});
    actor_t *slow = world_worker(w, "w9", (worker_conf_t){.app = APP_SILENT});
    UNTIL(w, SECOND, fast->is_up && slow->is_up);
    uint64_t doing = 0, activated = 0, last = 0;
    for (uint64_t v = 1; v <= VERSIONS; v++) {
        trainer_publish(trainer, (publish_t){.shape = {.seed = v}, .activation = HEDDLE_ACTIVATION_AS_READY});
        world_run(w, 100 * MS);
        UNTIL(w, SECOND, !trainer_is_busy(trainer));
        if (v % PACE) continue;
        worker_answers(slow, doing);
        world_run(w, MS);
        doing = worker_takes_up(slow);
        activated += worker_active(slow) != last;
        last = worker_active(slow);
    }
    printf("%llu of %d versions became active on the slow one\n", (unsigned long long)activated, VERSIONS);
    MUST(w, activated >= VERSIONS / PACE / 2 - 1);
    for (int i = 0; i < 10 && !world_all_active(w, VERSIONS); i++) {
        world_run(w, 100 * MS);
        worker_answers_late(slow);
    }
    UNTIL(w, SECOND, world_all_active(w, VERSIONS));
    check_settled(w);
}

/* The slow one's connection to the broker breaks before each of its fetches is through, and the broker is
 * started anew now and then: neither takes from it what it fetches. */
Test(publish, a_slow_worker_whose_connection_breaks_gets_somewhere)
{
    enum { VERSIONS = 300 };
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    actor_t *fast[2], *slow;
    world_workers(w, 2, (worker_conf_t){0}, fast);
    slow = world_worker(w, "w9", (worker_conf_t){.max_rate_bytes = 1 << 19});
    UNTIL(w, SECOND, slow->is_up);
    uint64_t activated = 0, last = 0;
    for (uint64_t v = 1; v <= VERSIONS; v++) {
        trainer_publish(trainer, (publish_t){.shape = {.seed = v}, .activation = HEDDLE_ACTIVATION_AS_READY});
        world_run(w, 50 * MS);
        UNTIL(w, SECOND, !trainer_is_busy(trainer));
        if (v % 8 == 0) actor_break(slow);
        if (v % 100 == 0) {
            world_broker_kill(w);
            world_broker_start(w);
        }
        activated += worker_active(slow) != last;
        last = worker_active(slow);
    }
    printf("%llu of %d versions became active on the slow one\n", (unsigned long long)activated, VERSIONS);
    MUST(w, activated >= 8);
    UNTIL(w, 10 * SECOND, world_all_active(w, VERSIONS));
    world_run(w, SECOND);
    check_settled(w);
}

/* Whoever stops waiting for the answer goes on publishing: what was recorded all the same bars nobody. */
Test(publish, an_interrupted_one_bars_nobody)
{
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){0}), *workers[2];
    world_workers(w, 2, (worker_conf_t){0}, workers);
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}}) == 1);
    for (uint64_t seed = 2; seed < 30; seed++) {
        uint64_t sent = w->sent[MSG_PUBLISH];
        trainer_publish(trainer, (publish_t){.shape = {.seed = seed}});
        UNTIL(w, SECOND, w->sent[MSG_PUBLISH] > sent);
        trainer_gives_up(trainer);
        if (seed % 3 == 0) world_run(w, MS);
    }
    uint64_t last = trainer_publishes(trainer, (publish_t){.shape = {.seed = 99}});
    MUST(w, last > 2);
    UNTIL(w, 2 * SECOND, world_all_active(w, last));
    check_settled(w);
}

/* Nobody there: the version fails at its deadline, and says why; the next one finds the one that came. */
Test(publish, to_nobody)
{
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}, .deadline_ms = 3000});
    uint64_t start_us = w->now_us;
    UNTIL(w, 4 * SECOND, !strcmp(trainer->rolled.state, "failed"));
    MUST(w, !strcmp(trainer->rolled.code, "no_workers"));
    MUST(w, w->now_us - start_us >= 2900 * MS && w->now_us - start_us <= 3200 * MS);
    actor_t *late = world_worker(w, "w1", (worker_conf_t){0});
    world_run(w, SECOND);
    MUST(w, worker_is_ready(late) && !worker_active(late));
    MUST(w, trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}}) ==
                2); /* the failed number is not used again */
    UNTIL(w, 2 * SECOND, worker_active(late) == 2);
    check_settled(w);
}

/* A publication into the void finds its first holder before the deadline. */
Test(publish, the_first_holder_comes_in_time)
{
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){0});
    trainer_publishes(trainer, (publish_t){.shape = {.seed = 1}, .deadline_ms = 10000});
    world_run(w, 2 * SECOND);
    actor_t *late = world_worker(w, "w1", (worker_conf_t){0});
    UNTIL(w, 2 * SECOND, worker_active(late) == 1);
    UNTIL(w, SECOND, !strcmp(trainer->rolled.state, "active"));
    check_settled(w);
}

/* The same with two of different rates: neither has the other's version retired under its hands for ever. 
 * w1 alone holds all of it, with the slots that a worker has by default. */
Test(publish, two_workers_slower_than_their_trainer_get_somewhere)
{
    enum { VERSIONS = 300 };
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){0}), *slow[2];
    actor_t *fast = world_worker(w, "w1", (worker_conf_t){0});
    slow[0] = world_worker(w, "w8", (worker_conf_t){.max_rate_bytes = 32 << 20});
    slow[1] = world_worker(w, "w9", (worker_conf_t){.max_rate_bytes = 1 << 20});
    UNTIL(w, SECOND, fast->is_up && slow[0]->is_up && slow[1]->is_up);
    uint64_t activated[2] = {0}, last[2] = {0}, with_previous = 0;
    for (uint64_t v = 1; v <= VERSIONS; v++) {
        trainer_publish(trainer, (publish_t){.shape = {.seed = v}, .activation = HEDDLE_ACTIVATION_AS_READY});
        for (uint64_t end_us = w->now_us + 10 * MS; goes_on(trainer, end_us);)
            for (int i = 0; i < 2; i++) {
                activated[i] += worker_active(slow[i]) != last[i];
                last[i] = worker_active(slow[i]);
            }
        uint64_t active = worker_active(fast);
        with_previous += active > 1 && !strcmp(world_state(w, active - 1), "kept");
    }
    UNTIL(w, 2 * SECOND, world_all_active(w, VERSIONS));
    printf(
        "%llu and %llu of %d versions became active on the slow ones; %llu times there was the one before\n",
        (unsigned long long)activated[0], (unsigned long long)activated[1], VERSIONS,
        (unsigned long long)with_previous);
    MUST(w, activated[0] >= 30 && activated[1] >= 5);
    MUST(w, with_previous >= VERSIONS * (w->store_is_late ? 7u : 8u) / 10); /* some are under way longer */
    MUST(w, actor_counters(fast).maps <= 3);
    world_run(w, SECOND);
    check_settled(w);
}

/* A worker joins while versions are decided faster than its link carries one.  It turns to a later decision
 * once, and then finishes what it fetches. */
Test(publish, a_slow_worker_that_joins_late_gets_somewhere)
{
    enum { VERSIONS = 300, BEFORE = 20 };
    actor_t *trainer = world_trainer(w, "ann", (trainer_conf_t){0}), *fast[2], *slow = NULL;
    world_workers(w, 2, (worker_conf_t){0}, fast);
    UNTIL(w, SECOND, fast[0]->is_up && fast[1]->is_up);
    uint64_t activated = 0, last = 0, joined_us = 0, first_us = 0;
    for (uint64_t v = 1; v <= VERSIONS; v++) {
        if (v == BEFORE) {
            slow = world_worker(w, "w9", (worker_conf_t){.max_rate_bytes = 2 << 20}); /* 250 ms for one */
            joined_us = w->now_us;
        }
        trainer_publish(trainer, (publish_t){.shape = {.seed = v}, .activation = HEDDLE_ACTIVATION_AS_READY});
        for (uint64_t end_us = w->now_us + 10 * MS; goes_on(trainer, end_us);) {
            if (!slow || worker_active(slow) == last) continue;
            MUST(w, worker_active(slow) > last);
            last = worker_active(slow);
            if (!activated++) first_us = w->now_us;
        }
    }
    UNTIL(w, 2 * SECOND, world_all_active(w, VERSIONS));
    printf("%llu of %d versions became active on the late one, the first after %.0f ms\n",
           (unsigned long long)activated, VERSIONS - BEFORE, (double)(first_us - joined_us) / 1e3);
    MUST(w, activated >= 8);
    MUST(w, first_us - joined_us <= 500 * MS);
    world_run(w, SECOND);
    check_settled(w);
}
