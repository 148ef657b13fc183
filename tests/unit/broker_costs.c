/* SPDX-License-Identifier: Apache-2.0 */
/* What versions cost on their way, as /metrics adds it up. */
#include "broker_rig.h"

TestSuite(costs, .init = rig_start, .fini = rig_stop);

static const costs_t *costs(void) { return &R.b->rollout.costs; }

static uint64_t count_of(const histogram_t *h)
{
    uint64_t count = 0;
    for (size_t i = 0; i <= HISTOGRAM_BOUNDS; i++) count += h->counts[i];
    return count;
}

static uint64_t seconds_ms(const histogram_t *h) { return (uint64_t)(h->sum * 1000 + 0.5); }

static void stage(uint64_t peer, bool is_held, msg_served_t *sources, uint32_t count)
{
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = R.tokens[peer],
                              .version = 1,
                              .adapter = "policy",
                              .digest = rig_digest(1),
                              .connect_us = 2000,
                              .fetch_us = 30000,
                              .verify_us = 4000,
                              .stage_us = 500000,
                              .held = is_held,
                              .sources = sources,
                              .source_count = count};
    rig_frame(peer, &m);
}

static void publish(void)
{
    rig_pass(S); /* the workers were there before */
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
}

Test(costs, a_phase_has_each_worker_once)
{
    workers(2);
    publish();
    stage(W1, false, NULL, 0);
    stage(W2, false, NULL, 0);
    stage(W2, false, NULL, 0); /* said twice */
    rig_active(W1, 1, 1, 1);
    static const struct {
        cost_phase_t phase;
        uint64_t count, ms;
    } EXPECTED[] = {{COST_ANNOUNCE, 2, 0}, {COST_CONNECT, 2, 4},  {COST_FETCH, 2, 60},
                    {COST_VERIFY, 2, 8},   {COST_STAGE, 2, 1000}, {COST_ACTIVATE, 1, 0}};
    for (size_t i = 0; i < sizeof EXPECTED / sizeof *EXPECTED; i++) {
        const histogram_t *h = &costs()->phases[EXPECTED[i].phase];
        const char *name = cost_phase_name(EXPECTED[i].phase);
        cr_expect_eq(count_of(h), EXPECTED[i].count, "%s: %llu", name, (unsigned long long)count_of(h));
        cr_expect_eq(seconds_ms(h), EXPECTED[i].ms, "%s: %f", name, h->sum);
    }
    cr_expect_eq(count_of(&costs()->joins), 0, "they followed a rollout");
}

/* Whatever a worker says: it is there for three seconds. */
Test(costs, no_phase_takes_longer_than_the_worker_is_there)
{
    workers(1);
    publish();
    rig_pass(2 * S);
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = R.tokens[W1],
                              .version = 1,
                              .adapter = "policy",
                              .digest = rig_digest(1),
                              .fetch_us = 1ull << 52};
    rig_frame(W1, &m);
    cr_expect_eq(seconds_ms(&costs()->phases[COST_FETCH]), 3000);
}

Test(costs, bytes_by_the_way_that_they_came)
{
    workers(2);
    publish();
    msg_served_t network[] = {{.token = 1, .kind = SOURCE_PUBLISHER, .bytes = 3000, .name = "trainer"},
                              {.token = 2, .kind = SOURCE_WORKER, .bytes = 2000, .name = "w2"}},
                 host = {.token = 1, .kind = SOURCE_PUBLISHER, .name = "trainer"}; /* nothing moved */
    stage(W1, false, network, 2);
    stage(W2, true, &host, 1);
    cr_expect_eq(costs()->bytes[COST_FROM_PUBLISHER], 3000);
    cr_expect_eq(costs()->bytes[COST_FROM_WORKER], 2000);
    cr_expect_eq(costs()->bytes[COST_FROM_HOST], 5000);
    cr_expect_str_eq(cost_way_name(COST_FROM_HOST), "host");
}

/* More sources than `heddle versions` lists. */
Test(costs, bytes_of_all_sources)
{
    enum { COUNT = LIMIT_SOURCES + 3 };
    msg_served_t from[COUNT];
    char names[COUNT][8];
    workers(1);
    publish();
    for (uint32_t i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "w%u", i + 2);
        from[i] = (msg_served_t){.token = i + 1, .kind = SOURCE_WORKER, .bytes = 100, .name = names[i]};
    }
    from[COUNT - 1].kind = SOURCE_PUBLISHER;
    stage(W1, false, from, COUNT);
    cr_expect_eq(costs()->bytes[COST_FROM_WORKER], (COUNT - 1) * 100);
    cr_expect_eq(costs()->bytes[COST_FROM_PUBLISHER], 100);
}

/* One that comes when a version is active; that it was idle before a first one is no time of its joining. */
Test(costs, a_worker_that_joins_late)
{
    workers(1);
    publish();
    roll_out(1, 1, 1, 1);
    cr_expect_eq(count_of(&costs()->joins), 0);
    rig_pass(S);
    rig_worker(W2, "w2");
    rig_pass(3 * S);
    rig_staged(W2, 1, 1);
    rig_active(W2, 1, 1, 1);
    cr_expect_eq(count_of(&costs()->joins), 1);
    cr_expect_eq(seconds_ms(&costs()->joins), 3000);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(2, 2, 2, 2);
    cr_expect_eq(count_of(&costs()->joins), 1, "its next version is no joining");
}

/* Its session is renewed meanwhile, as after a loss of the connection: it goes on with what it fetches. */
Test(costs, a_worker_that_joins_late_and_again)
{
    workers(1);
    publish();
    roll_out(1, 1, 1, 1);
    rig_pass(S);
    rig_worker(W2, "w2");
    rig_pass(2 * S);
    rig_worker(W2, "w2");
    rig_pass(S);
    rig_staged(W2, 1, 1);
    rig_active(W2, 1, 1, 1);
    cr_expect_eq(count_of(&costs()->joins), 1);
    cr_expect_eq(seconds_ms(&costs()->joins), 3000);
}

/* It waits for a rollout, or for the next version where the active one is lost: that is no time of its joining,
 * however long it takes. */
Test(costs, a_worker_that_joins_before_the_decision)
{
    workers(1);
    publish();
    roll_out(1, 1, 1, 1);
    rig_pass(S);
    rig_worker(W2, "w2"); /* and fetches nothing of version 1 */
    rig_pass(60 * S);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2), rig_staged(W2, 2, 2);
    rig_pass(S);
    rig_worker(W2, "w2"); /* a renewed session is no joining */
    roll_out(2, 2, 2, 2);
    cr_expect_eq(count_of(&costs()->joins), 0);
}
