/* SPDX-License-Identifier: Apache-2.0 */
/* How a worker on its way to a version gets on: what it waits for, how fast, from which source. */
#include "timing_rig.h"

TestSuite(progress, .init = rig_start, .fini = stop);

Test(progress, what_it_waits_for_now)
{
    publish_to(2, (rig_publish_t){0});
    is(json_object_get(version(), "slowest"), "phase", "\"announce\"");
    is(json_object_get(copy(1), "timing"), "announce_ms", "null");
    stage(W1, 49, 0);
    rig_pass(1000);
    beat(W2, 1, 1000);
    is(json_object_get(copy(1), "timing"), "announce_ms", "0.0");
    rig_pass(250);
    const json_t *v = version();
    is(v, "took_ms", "null");
    is(v, "so_far_ms", "1250.0");
    is_slowest(v, "w2", "fetch", "250.0");
}

Test(progress, a_worker_says_how_fast_it_fetches_and_what_limits_it)
{
    join_with_rate(W2, "w2", 1000);
    publish_to(1, (rig_publish_t){0});
    R.is_quiet[W1] = R.is_quiet[W2] = true;
    rig_pass(1000);
    beat(W1, 1, 2000), beat(W2, 1, 1000); /* 1 s after the announcement */
    is(copy(0), "rate_bytes", "2000");
    is(copy(0), "note", "\"2.0 kB/s\"");
    is(copy(1), "rate_bytes", "1000");
    is(copy(1), "note", "\"1.0 kB/s, its own --max-rate\"");
    is(copy(1), "source", "\"trainer\"");
    rig_pass(1000);
    beat(W1, 1, 2500), beat(W2, 1, 1500); /* less than its limit */
    is(copy(1), "note", "\"500 B/s\"");
    is(standing(1), "note", "\"500 B/s\"");
    is(json_object_get(standing(1), "fetching"), "rate_bytes", "500");
    is(standing(1), "code", "null");
}

/* The first range of a fetch comes at once, and is waited for afterwards. */
Test(progress, a_rate_is_never_above_the_limit_of_its_worker)
{
    join_with_rate(W2, "w2", 1000);
    publish_to(1, (rig_publish_t){0});
    R.is_quiet[W1] = R.is_quiet[W2] = true;
    rig_pass(100);
    beat(W1, 1, 600), beat(W2, 1, 600);
    is(copy(0), "rate_bytes", "6000");
    is(copy(1), "rate_bytes", "1000");
    is(copy(1), "note", "\"1.0 kB/s, its own --max-rate\"");
    rig_pass(1000);
    beat(W1, 1, 2600), beat(W2, 1, 1800);
    is(copy(0), "rate_bytes", "2000");
    is(copy(1), "rate_bytes", "1000");
    is(json_object_get(standing(1), "fetching"), "rate_bytes", "1000");
    rig_pass(3000);
    stage(W1, 4000, 0), stage(W2, 4500, 0);
    is(json_object_get(version(), "slowest"), "rate_bytes", "1000");
    is(json_object_get(version(), "slowest"), "max_rate_bytes", "1000");
}

/* It has bytes of the session before: how fast it got them is not known. */
Test(progress, the_first_heartbeat_of_a_session_that_goes_on_fetching_has_no_rate)
{
    publish_to(1, (rig_publish_t){0});
    R.is_quiet[W1] = true;
    rig_pass(1000);
    beat(W1, 1, 2000);
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, NULL, 0);
    rig_pass(500);
    beat(W1, 1, 3000);
    is(copy(0), "rate_bytes", "null");
    rig_pass(1000);
    beat(W1, 1, 3700);
    is(copy(0), "rate_bytes", "700");
}

/* The broker has forgotten that session: after its lease, or after a restart of the broker. */
Test(progress, bytes_of_a_session_that_is_forgotten_are_in_no_rate)
{
    publish_to(1, (rig_publish_t){0});
    R.is_quiet[W1] = true;
    rig_pass(1000);
    beat(W1, 1, 3000);
    rig_pass(LEASE_MS + 1000);
    cr_assert_eq(membership_worker(&R.b->members, "w1")->state, MEMBER_LOST);
    rig_worker_again(W1, "w1", R.tokens[W1]);
    R.is_quiet[W1] = true;
    rig_pass(500);
    beat(W1, 1, 3500);
    is(copy(0), "rate_bytes", "null");
    rig_pass(1000);
    beat(W1, 1, 4000);
    is(copy(0), "rate_bytes", "500");
    is(standing(0), "note", "\"500 B/s\"");
}

/* Of a version that is younger than its session a worker had no bytes before. */
Test(progress, a_session_that_was_renewed_has_a_rate_with_the_first_bytes_of_the_next_version)
{
    rig_worker(W1, "w1");
    rig_worker_again(W1, "w1", R.tokens[W1]);
    rig_pass(1000);
    publish_to(0, (rig_publish_t){0});
    R.is_quiet[W1] = true;
    rig_pass(1000);
    beat(W1, 1, 2000);
    is(copy(0), "rate_bytes", "2000");
}

/* A broker that was stopped, or a link that was cut, gets several heartbeats at once. */
Test(progress, heartbeats_that_come_at_once_are_one_interval)
{
    publish_to(1, (rig_publish_t){0});
    R.is_quiet[W1] = true;
    rig_pass(1000);
    beat(W1, 1, 1000);
    rig_pass(3000);
    beat(W1, 1, 2000);
    rig_pass(1);
    beat(W1, 1, 4000);
    is(copy(0), "rate_bytes", "999");
    rig_pass(1000);
    beat(W1, 1, 4500);
    is(copy(0), "rate_bytes", "500");
}

Test(progress, a_worker_that_joined_later_has_a_rate_with_its_first_bytes)
{
    publish_to(1, (rig_publish_t){0});
    stage(W1, 1, 0);
    rig_pass(1000);
    rig_worker(W2, "w2");
    R.is_quiet[W1] = R.is_quiet[W2] = true;
    rig_pass(1000);
    beat(W2, 1, 2000);
    is(copy(1), "rate_bytes", "2000");
    rig_pass(1000);
    beat(W2, 1, 2000); /* no chunk was whole between these two */
    is(copy(1), "rate_bytes", "1000");
}

/* Not since another version became active. */
Test(progress, a_worker_is_lost_since_its_loss)
{
    char time[32], want[40];
    publish_to(2, (rig_publish_t){0});
    stage(W1, 1, 0), stage(W2, 1, 0);
    rig_active(W1, 1, 1, 1), rig_active(W2, 1, 1, 1);
    rig_pass(60000);
    R.is_quiet[W2] = true;
    rig_pass(LEASE_MS + 500);
    const member_t *w2 = membership_worker(&R.b->members, "w2");
    cr_assert_eq(w2->state, MEMBER_LOST);
    clock_text(w2->ended_ms, time);
    snprintf(want, sizeof want, "\"%s\"", time);
    is(standing(1), "since_at", want);
}

Test(progress, a_lost_worker_has_the_bytes_of_its_last_heartbeat)
{
    publish_to(2, (rig_publish_t){0});
    beat(W2, 1, 4000);
    R.is_quiet[W2] = true;
    rig_pass(LEASE_MS + 500);
    is(copy(1), "code", "\"unavailable\"");
    is(copy(1), "bytes_done", "4000");
    is(copy(1), "note", "\"it had 4.0 kB at its last heartbeat\"");
}

/* The version waited for nothing before that worker was there. */
Test(progress, the_announcement_to_a_late_joiner_counts_from_its_joining)
{
    publish_to(1, (rig_publish_t){0});
    stage(W1, 1, 0);
    rig_active(W1, 1, 1, 1);
    rig_pass(30000);
    rig_worker(W2, "w2");
    rig_pass(300);
    stage(W2, 100, 20);
    const json_t *spent = json_object_get(copy(1), "timing");
    is(spent, "announce_ms", "0.0");
    is(spent, "fetch_ms", "100.0");
}

/* It goes on reading from its source, and names it by the token of the session before. */
Test(progress, the_source_of_a_fetch_that_outlives_the_broker)
{
    publish_to(1, (rig_publish_t){0});
    uint64_t source = R.tokens[T], own = R.tokens[W1];
    beat(W1, 1, 1000);
    is(copy(0), "source", "\"trainer\"");
    rig_restart();
    msg_t open = {.type = MSG_OPEN};
    rig_hello(T, ROLE_PUBLISHER);
    open.open = (msg_open_t){.req = ++R.req,
                             .adapter = "policy",
                             .writer = "trainer",
                             .serving = 1,
                             .backend = "ucx",
                             .ucx = "1.13.1",
                             .address = bytes_of("pub", 3),
                             .prev_token = source,
                             .epoch = source >> 32};
    rig_frame(T, &open);
    msg_fetched_t fetched = {.adapter = "policy", .version = 1, .sources = &source, .source_count = 1};
    rig_worker_fetches(W1, "w1", own, &fetched);
    cr_assert(R.tokens[T] && R.tokens[W1] && R.tokens[T] != source);
    msg_progress_t p = {.adapter = "policy",
                        .fetching = 1,
                        .bytes_done = 2000,
                        .data_bytes = 5000,
                        .source = source};
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = R.tokens[W1], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(W1, &m);
    is(copy(0), "source", "\"trainer\"");
    is(json_object_get(standing(0), "fetching"), "source", "\"trainer\"");
}

Test(progress, a_worker_that_is_silent_or_stands_still)
{
    publish_to(2, (rig_publish_t){0});
    R.is_quiet[W1] = R.is_quiet[W2] = true;
    rig_pass(1000);
    beat(W1, 1, 2000), beat(W2, 1, 1000);
    rig_pass(1250);
    beat(W1, 1, 2000);
    rig_pass(1250);
    beat(W1, 1, 2000);
    is(copy(0), "note", "\"no bytes for 2.5 s\"");
    is(copy(1), "note", "\"no message for 2.5 s (lease 4.0 s)\"");
    is(standing(1), "note", "\"no message for 2.5 s (lease 4.0 s)\"");
    is(copy(1), "rate_bytes", "null");
    is(copy(1), "source", "\"trainer\"");
}

/* Parts that others have are no source for a worker whose own source has ended. */
Test(progress, a_fetch_whose_publisher_was_lost_has_no_source)
{
    publish_to(2, (rig_publish_t){0});
    R.is_quiet[W1] = R.is_quiet[W2] = R.is_quiet[T] = true;
    for (uint64_t i = 1; i <= 4; i++) {
        rig_pass(i < 3 ? 1000 : 1250);
        beat(W1, 1, 1000 * (i < 3 ? i : 2)), beat(W2, 1, 1000 * (i < 3 ? i : 2));
    }
    is(copy(0), "source", "null");
    is(version(), "state", "\"staging\"");
    is(copy(0), "note", "\"no source\"");
}

/* It asks for other sources, again and again, and the broker has none. */
Test(progress, a_fetch_without_a_source_has_no_rate)
{
    publish_to(1, (rig_publish_t){0});
    R.is_quiet[W1] = R.is_quiet[T] = true;
    uint64_t lost[] = {R.tokens[T]};
    rig_pass(1000);
    beat(W1, 1, 2000);
    rig_pass(1250);
    beat(W1, 1, 2000);
    rig_pass(1250);
    beat(W1, 1, 2000);
    is(copy(0), "note", "\"no bytes for 2.5 s\"");
    rig_pass(750);
    rig_need_sources(W1, 1, (msg_need_sources_t){.lost = lost, .lost_count = 1});
    beat(W1, 1, 2000);
    is(copy(0), "note", "\"no source\"");
    rig_pass(500);
    rig_need_sources(W1, 1, (msg_need_sources_t){.lost = lost, .lost_count = 1});
    beat(W1, 1, 2000);
    is(version(), "state", "\"staging\"");
    is(copy(0), "source", "null");
    is(copy(0), "rate_bytes", "null");
    is(copy(0), "note", "\"no source\"");
    is(standing(0), "note", "\"no source\"");
    is(json_object_get(standing(0), "fetching"), "rate_bytes", "null");
}

static void lose(uint64_t peer, uint64_t source)
{
    uint64_t lost[] = {R.tokens[source]};
    rig_need_sources(peer, 1, (msg_need_sources_t){.lost = lost, .lost_count = 1});
}

/* w1 fetches 2000 bytes a second from the trainer, whose process ends; its session lasts a lease longer. */
static void lose_the_trainer(void)
{
    R.is_quiet[W1] = true;
    rig_pass(1000);
    beat(W1, 1, 2000);
    is(copy(0), "note", "\"2.0 kB/s\"");
    rig_pass(500);
    lose(W1, T);
}

static void is_without_a_source(void)
{
    is(copy(0), "note", "\"no source\"");
    is(copy(0), "rate_bytes", "null");
    is(copy(0), "source", "null");
    is(standing(0), "note", "\"no source\"");
    is(json_object_get(standing(0), "fetching"), "rate_bytes", "null");
    is(json_object_get(standing(0), "fetching"), "source", "null");
}

/* The heartbeat after the loss has bytes that came before it. */
Test(progress, a_fetch_whose_source_was_lost_has_no_rate)
{
    publish_to(1, (rig_publish_t){0});
    lose_the_trainer();
    is_without_a_source();
    rig_pass(500);
    beat(W1, 1, 3000);
    is_without_a_source();
    lose(W1, T);
    rig_pass(1000);
    beat(W1, 1, 3000);
    is_without_a_source();
    rig_pass(1000);
    beat(W1, 1, 3500); /* it could be reached after all */
    is(copy(0), "note", "\"500 B/s\"");
    is(copy(0), "source", "\"trainer\"");
}

Test(progress, a_fetch_that_has_another_source_keeps_its_rate)
{
    publish_to(2, (rig_publish_t){0});
    stage(W2, 10, 0);
    lose_the_trainer();
    is(copy(0), "note", "\"2.0 kB/s\"");
    lose(W1, W2);
    is(copy(0), "note", "\"no source\"");
}

/* Its process was killed after 3 s: its session ends a lease later, and the version another lease later. */
static void publisher_is_killed(bool is_said)
{
    publish_to(1, (rig_publish_t){0});
    R.is_quiet[W1] = R.is_quiet[T] = true;
    for (uint64_t n = 1; n <= 3; n++) {
        rig_pass(1000);
        rig_beat(T);
        beat(W1, 1, n * 1000);
    }
    for (uint64_t n = 0; n < 10; n++) {
        if (is_said && rig_version(1)->state == VERSION_STAGING) lose(W1, T);
        rig_pass(1000);
        beat(W1, 1, 3000);
    }
    is(version(), "state", "\"failed\"");
}

Test(progress, a_fetch_ends_with_its_last_source)
{
    publisher_is_killed(true);
    is(version(), "ended_after_ms", "11000.0");
    is_slowest(version(), "w1", "fetch", "3000.0");
    is(version(), "rest", "{\"ms\":8000.0,\"message\":\"no source (its publisher trainer was gone)\"}");
}

/* The broker knows it when the session has ended. */
Test(progress, a_fetch_ends_with_the_session_of_its_publisher)
{
    publisher_is_killed(false);
    is_slowest(version(), "w1", "fetch", "7000.0");
    is(version(), "rest", "{\"ms\":4000.0,\"message\":\"no source (its publisher trainer was gone)\"}");
}

/* The trainer is there, and its link to the worker is cut. */
Test(progress, a_source_that_a_worker_lost_until_the_deadline)
{
    publish_to(1, (rig_publish_t){.deadline_ms = 5000});
    lose_the_trainer();
    rig_pass(5000);
    is(version(), "ended_after_ms", "5000.0");
    is_slowest(version(), "w1", "fetch", "1500.0");
    is(version(), "rest", "{\"ms\":3500.0,\"message\":\"no source answered w1\"}");
    rig_leave(T); /* the version has failed */
    is(version(), "rest", "{\"ms\":3500.0,\"message\":\"no source answered w1\"}");
}

/* Announced, and not begun: the trainer left. */
Test(progress, a_worker_that_has_not_begun_has_no_source)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_staged(W2, 1, 1);
    rig_active(W2, 1, 1, 1);
    rig_leave(T);
    rig_leave(W2);
    R.tokens[T] = R.tokens[W2] = 0;
    rig_pass(2500);
    is(version(), "state", "\"lost\"");
    is(copy(0), "note", "\"no source\"");
}

Test(progress, a_worker_whose_slots_are_all_held)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = R.tokens[W1],
                                    .seq = 2,
                                    .counts = {.slots_total = 3, .slots_free = 0, .slots_held = 2}};
    rig_frame(W1, &m);
    is(standing(0), "note", "null");
    m.heartbeat.counts.slots_held = 3;
    rig_frame(W1, &m);
    is(standing(0), "note", "\"all 3 slots are held by readers\"");
    is(standing(0), "code", "null");
}

Test(progress, a_worker_that_loads_it_or_has_not_begun)
{
    publish_to(2, (rig_publish_t){0});
    beat(W1, 1, 5000);
    rig_pass(2500);
    is(copy(0), "note", "\"loading for 2.5 s\"");
    is(copy(1), "note", "\"has not begun for 2.5 s\"");
    stage(W1, 10, 2500);
    is(copy(0), "note", "null");
    is(copy(0), "source", "null");
}

/* The end of the version does not hide what the worker did instead. */
Test(progress, a_version_that_failed_keeps_what_it_was_queued_behind)
{
    one_is_ahead();
    rig_publish(T, (rig_publish_t){.digest = 2, .deadline_ms = 2500});
    rig_pass(1000);
    beat(W2, 1, 2000), beat(W1, 0, 0);
    stage_version(W1, 2, 1, 0);
    rig_pass(2000);
    beat(W2, 1, 3000), beat(W1, 0, 0);
    is(newest(2), "state", "\"failed\"");
    is(copy_in(2, 1), "note", "\"given up before it began, queued behind policy@1: deadline\"");
    cr_assert(strstr(rig_version(2)->message, "; missing: w2 in phase announce (queued behind policy@1)"),
              "%s", rig_version(2)->message);
    const json_t *rollout = json_object_get(newest(2), "rollout");
    is(json_array_get(json_object_get(rollout, "missing"), 0), "message",
       "\"has not begun to fetch within 2500 ms, queued behind version 1\"");
}

Test(progress, a_worker_that_could_not_verify_it_fetched_since_it_was_queued_no_more)
{
    one_is_ahead();
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_pass(1000);
    beat(W2, 1, 2000), beat(W1, 0, 0);
    rig_pass(1000);
    stage_version(W2, 1, 3000, 0);
    rig_pass(500);
    rig_nack(W2, 2, 0, "verify", "digest_mismatch");
    is(newest(2), "ended_after_ms", "2500.0");
    is_slowest(newest(2), "w2", "fetch", "500.0");
    is(newest(2), "rest", "{\"ms\":2000.0,\"message\":\"w2 was queued behind policy@1\"}");
}

/* The version that the worker had put off is wanted again before its next heartbeat says so. */
Test(progress, a_worker_that_fetches_goes_on_when_what_it_had_put_first_fails)
{
    one_is_ahead();
    rig_publish(T, (rig_publish_t){.digest = 2, .deadline_ms = 2500});
    rig_pass(1000);
    beat(W2, 1, 2000), beat(W1, 0, 0);
    rig_pass(1600);
    is(newest(2), "state", "\"failed\"");
    is(standing(1), "state", "\"fetching\"");
    is(standing(1), "note", "\"1.0 kB/s\"");
    is(copy(1), "state", "\"fetching\"");
    is(copy(1), "note", "\"1.0 kB/s\"");
}
