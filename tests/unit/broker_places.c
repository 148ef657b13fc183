/* SPDX-License-Identifier: Apache-2.0 */
/* Members of one host: which sources they are named, that one of them fetches for the others, and which
 * publishers they may map in advance. */
#include "broker_rig.h"

#define HERE 500u
#define THERE 600u

TestSuite(places, .init = rig_start, .fini = rig_stop);

static void place(uint64_t peer, uint64_t number, uint64_t generation)
{
    R.places[peer] = number;
    R.generations[peer] = generation;
}

/* The trainer is on one host, the workers are on another one. */
static void far_publisher(int count, heddle_activation_t activation)
{
    place(T, HERE, 3);
    for (int i = 0; i < count; i++) place((uint64_t)(W1 + i), THERE, 1);
    publish_to(count, (rig_publish_t){.activation = activation});
}

static bool is_source(const msg_source_t *s, uint64_t peer, uint64_t generation)
{
    key16_t life = generation ? rig_life(peer) : rig_life(0),
            region = generation ? rig_life(peer + 7000) : rig_life(0);
    return s->token == R.tokens[peer] && s->region.generation == generation &&
           !memcmp(&s->life, &life, sizeof life) && !memcmp(&s->region.identity, &region, sizeof region);
}

static const msg_announce_t *announced(uint64_t peer) { return &rig_last(peer, MSG_ANNOUNCE)->announce; }

/* ---- sources ---- */

Test(places, a_source_of_the_same_host_comes_with_its_life_and_region)
{
    place(T, HERE, 3);
    place(W1, HERE, 1), place(W2, THERE, 1);
    publish_to(3, (rig_publish_t){0});
    cr_assert(is_source(&announced(W1)->sources[0], T, 3));
    cr_assert(is_source(&announced(W2)->sources[0], T, 0), "another host");
    cr_assert(is_source(&announced(W3)->sources[0], T, 0), "it holds no memory of others");
}

/* Of the worker's host, by the upper half of the place, and out of its reach. */
Test(places, a_source_of_the_same_host_and_another_place_is_apart)
{
    const uint64_t host = 7ull << 32;
    place(T, host + 1, 3);
    place(W1, host + 1, 1), place(W2, host + 2, 1), place(W3, (8ull << 32) + 1, 1), place(W4, 0, 0);
    publish_to(4, (rig_publish_t){0});
    cr_assert(is_source(&announced(W1)->sources[0], T, 3) && !announced(W1)->sources[0].apart);
    cr_assert(is_source(&announced(W2)->sources[0], T, 0) && announced(W2)->sources[0].apart);
    cr_assert_not(announced(W3)->sources[0].apart, "another host");
    cr_assert_not(announced(W4)->sources[0].apart, "it holds no memory of others");
}

Test(places, workers_that_have_it_hand_it_on_behind_the_publisher)
{
    place(T, HERE, 3);
    for (int i = 0; i < 3; i++) place((uint64_t)(W1 + i), HERE, 1 + (uint64_t)i);
    place(W4, HERE, 1);
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_worker(W2, "w2");
    const msg_announce_t *a = announced(W2);
    cr_assert(a->source_count == 2 && is_source(&a->sources[0], T, 3) && is_source(&a->sources[1], W1, 1));
    rig_staged(W2, 1, 1);
    rig_leave(T);
    rig_worker(W3, "w3");
    a = announced(W3);
    cr_assert_eq(a->source_count, 2);
    const msg_source_t *of_w2 = &a->sources[a->sources[0].token == R.tokens[W1]];
    cr_assert(is_source(of_w2, W2, 2), "each by its own region");
    place(W1, 0, 0);
}

Test(places, a_worker_with_memory_of_its_own_has_no_region)
{
    place(T, HERE, 0);
    place(W1, HERE, 0), place(W2, HERE, 1);
    publish_to(2, (rig_publish_t){0});
    cr_assert(is_source(&announced(W2)->sources[0], T, 0));
    rig_staged(W1, 1, 1);
    rig_staged(W2, 1, 1);
    place(W3, HERE, 1);
    rig_worker(W3, "w3");
    for (uint32_t i = 0; i < 3; i++) {
        const msg_source_t *s = &announced(W3)->sources[i];
        cr_assert(is_source(s, W2, 1) || is_source(s, W1, 0) || is_source(s, T, 0));
    }
}

Test(places, regions_are_restated_after_a_restart)
{
    place(T, HERE, 3);
    place(W1, HERE, 1);
    publish_to(1, (rig_publish_t){0});
    rig_restart();
    rig_open(T, "policy", "trainer", 1, true);
    place(W2, HERE, 1);
    rig_worker(W2, "w2");
    rig_pass(2 * LEASE_MS);
    cr_assert(is_source(&announced(W2)->sources[0], T, 3));
    msg_subscription_t sub = {.adapter = "policy"};
    msg_held_t held = {.adapter = "policy",
                       .version = 1,
                       .state = HELD_STAGED,
                       .digest = rig_digest(1),
                       .region = rig_region(W1),
                       .verified = VERIFIED_ON_HOST,
                       .held = true};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    place(W3, HERE, 1);
    rig_worker(W3, "w3");
    cr_assert(is_source(&announced(W3)->sources[1], W1, 1));
    const copy_row_t *c = copy_find(track_find(&R.b->rollout, "policy", 1), "w1");
    cr_assert(c->verified == VERIFIED_ON_HOST && c->holds_region);
}

Test(places, the_same_bytes_published_again_are_in_the_new_region)
{
    place(T, HERE, 3);
    place(W1, HERE, 1), place(W2, HERE, 1);
    publish_to(1, (rig_publish_t){.request_id = "one", .activation = HEDDLE_ACTIVATION_MANUAL});
    place(T, HERE, 4);
    rig_publish(T, (rig_publish_t){.request_id = "one", .digest = 1});
    rig_worker(W2, "w2");
    cr_assert(is_source(&announced(W2)->sources[0], T, 4));
}

/* The source of that token in the worker's list. */
static const msg_source_t *source_of(uint64_t worker, uint64_t token)
{
    const msg_announce_t *a = announced(worker);
    for (uint32_t i = 0; i < a->source_count; i++)
        if (a->sources[i].token == token) return &a->sources[i];
    cr_assert_fail("it is no source");
    return NULL;
}

Test(places, the_region_of_a_session_ends_with_it)
{
    place(T, HERE, 3);
    place(W1, HERE, 1), place(W2, HERE, 1), place(W3, HERE, 1);
    publish_to(1, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 1, 1);
    R.generations[T] = 0; /* the process restates that it serves the version, and no region */
    rig_open(T, "policy", "trainer", 1, true);
    rig_worker(W2, "w2");
    cr_assert(is_source(source_of(W2, R.tokens[T]), T, 0));
    place(T, THERE, 4);
    rig_open(T, "policy", "trainer", 1, true);
    rig_worker(W3, "w3");
    cr_assert(is_source(source_of(W3, R.tokens[T]), T, 0), "it is on another host now");
}

Test(places, pull_names_the_regions_of_its_host)
{
    far_publisher(1, HEDDLE_ACTIVATION_ALL);
    roll_out(1, 1, 1, 1);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "pull", .name = "policy", .place = THERE});
    const msg_report_t *r = &rig_last(ADMIN, MSG_REPORT)->report;
    cr_assert(r->source_count == 2 && is_source(&r->sources[0], W1, 1) && is_source(&r->sources[1], T, 0));
    rig_query(ADMIN, (msg_query_t){.op = "pull", .name = "policy", .place = HERE});
    r = &rig_last(ADMIN, MSG_REPORT)->report;
    cr_assert(r->source_count == 2 && is_source(&r->sources[0], T, 3) && is_source(&r->sources[1], W1, 0));
}

/* ---- one fetches for its host ---- */

/* Of the first `count` workers these have an ANNOUNCE, and no other: "101". */
static void assert_announced(const char *which)
{
    for (uint64_t i = 0; which[i]; i++)
        cr_assert_eq(rig_has(W1 + i, MSG_ANNOUNCE), which[i] == '1', "w%u: %s", (unsigned)i + 1, which);
}

static const char *note_of(uint64_t version, const char *worker)
{
    static char note[256];
    msg_query_t q = {.op = "versions", .name = "policy", .version = version};
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, q);
    json_t *body = NULL;
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, NULL), HEDDLE_OK);
    json_t *list = json_object_get(json_array_get(json_object_get(body, "versions"), 0), "workers"), *row;
    size_t i;
    note[0] = 0;
    json_array_foreach(list, i, row)
    {
        const char *text = json_string_value(json_object_get(row, "note"));
        bool is_it = !strcmp(json_string_value(json_object_get(row, "worker")), worker);
        if (is_it && text) snprintf(note, sizeof note, "%s", text);
    }
    json_decref(body);
    return note;
}

Test(places, the_others_get_it_when_the_first_one_has_it)
{
    far_publisher(3, HEDDLE_ACTIVATION_ALL);
    assert_announced("100");
    cr_assert_str_eq(note_of(1, "w2"), "waits for w1, which fetches it for their host");
    rig_staged(W1, 1, 1);
    assert_announced("111");
    for (uint64_t w = W2; w <= W3; w++) {
        const msg_announce_t *a = announced(w);
        cr_assert(a->source_count == 2 && is_source(&a->sources[0], W1, 1) &&
                  is_source(&a->sources[1], T, 0));
    }
    rig_staged(W2, 1, 1), rig_staged(W3, 1, 1);
    cr_assert_str_eq(rig_state(1), "active");
}

Test(places, each_host_has_one_of_its_own)
{
    place(T, HERE, 3);
    place(W1, THERE, 1), place(W2, THERE, 1), place(W3, THERE + 1, 1), place(W4, THERE + 1, 1);
    publish_to(4, (rig_publish_t){0});
    assert_announced("1010");
}

Test(places, workers_that_cannot_hold_do_not_wait)
{
    place(T, HERE, 3);
    publish_to(4, (rig_publish_t){0});
    assert_announced("1111");
}

Test(places, with_the_publisher_on_their_host_none_waits)
{
    place(T, HERE, 3);
    for (uint64_t w = W1; w <= W4; w++) place(w, HERE, 1);
    publish_to(4, (rig_publish_t){0});
    assert_announced("1111");
}

Test(places, the_next_one_fetches_where_the_first_one_fails)
{
    far_publisher(3, HEDDLE_ACTIVATION_AS_READY);
    rig_nack(W1, 1, 0, "fetch", "no_slot");
    assert_announced("110");
    rig_leave(W2);
    R.tokens[W2] = 0;
    assert_announced("111");
}

Test(places, the_next_one_fetches_where_the_first_one_is_lost)
{
    far_publisher(2, HEDDLE_ACTIVATION_AS_READY);
    R.is_quiet[W1] = true;
    rig_pass(LEASE_MS / 4);
    assert_announced("10");
    rig_pass(LEASE_MS);
    assert_announced("11");
}

/* It was killed: its session has not ended yet, and its connection has. */
Test(places, the_next_one_fetches_when_the_connection_of_the_first_one_is_gone)
{
    far_publisher(3, HEDDLE_ACTIVATION_AS_READY);
    rig_pass(300);
    cr_assert_eq(R.b->sent[MSG_PING], 1);
    assert_announced("100");
    R.is_gone[W1] = R.is_quiet[W1] = true;
    rig_pass(300);
    assert_announced("110");
    rig_staged(W2, 1, 1);
    assert_announced("111");
    uint64_t pings = R.b->sent[MSG_PING];
    rig_pass(1000);
    cr_assert_eq(R.b->sent[MSG_PING], pings, "none waits any more");
}

Test(places, the_next_one_fetches_where_the_first_one_has_trouble)
{
    far_publisher(3, HEDDLE_ACTIVATION_ALL);
    msg_progress_t p = {.adapter = "policy", .fetching = 1, .message = "all slots are held"};
    msg_t hb = {.type = MSG_HEARTBEAT};
    hb.heartbeat = (msg_heartbeat_t){.token = R.tokens[W1], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(W1, &hb);
    assert_announced("110");
}

/* Heartbeats of the first one only, and each says how far it is. */
static void fetch_on(uint64_t ms, uint64_t done)
{
    for (uint64_t end = R.now.us + ms * 1000; R.now.us < end; R.now.us += 250000) {
        broker_tick(R.b, R.now);
        rig_flush();
        says_it_fetches(W1, 1, done);
        rig_beat(W2), rig_beat(T);
    }
}

Test(places, they_wait_while_bytes_come_and_half_a_lease_more)
{
    far_publisher(2, HEDDLE_ACTIVATION_ALL);
    for (uint64_t done = 500; done < 5000; done += 500) fetch_on(LEASE_MS / 4, done);
    assert_announced("10");
    fetch_on(LEASE_MS / 2 - 1000, 4500);
    assert_announced("10");
    fetch_on(1000, 4500);
    assert_announced("11");
    cr_assert(is_source(&announced(W2)->sources[0], T, 0));
}

static const char *slowest(void)
{
    static char name[HEDDLE_NAME_MAX + 1];
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "versions", .name = "policy", .version = 1});
    json_t *answer = NULL;
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &answer, NULL), HEDDLE_OK);
    const json_t *v = json_array_get(json_object_get(answer, "versions"), 0);
    const char *worker = json_string_value(json_object_get(json_object_get(v, "slowest"), "worker"));
    snprintf(name, sizeof name, "%s", worker ? worker : "-");
    json_decref(answer);
    return name;
}

static void fetches_from(uint64_t peer, uint64_t source, uint64_t done)
{
    msg_progress_t p = {.adapter = "policy",
                        .fetching = 1,
                        .source = R.tokens[source],
                        .bytes_done = done,
                        .data_bytes = 5000};
    msg_t hb = {.type = MSG_HEARTBEAT};
    hb.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(peer, &hb);
}

/* w1 and w2 are of one host, and w3 of another one, which fetches from w1.  The publisher sends nothing any
 * more, and the broker has w2 fetch beside w1. */
static void publisher_stands_still(void)
{
    place(T, HERE, 3);
    place(W1, THERE, 1), place(W2, THERE, 1), place(W3, THERE + 1, 1);
    publish_to(3, (rig_publish_t){0});
    assert_announced("101");
    for (uint64_t ms = 0; ms <= LEASE_MS * 3 / 4; ms += 250) {
        broker_tick(R.b, R.now);
        rig_flush();
        fetches_from(W1, T, 2000), fetches_from(W3, W1, 1900);
        rig_beat(W2), rig_beat(T);
        R.now.us += 250000;
    }
    assert_announced("111");
}

Test(places, one_that_was_woken_is_not_the_reason)
{
    publisher_stands_still();
    cr_assert_str_eq(slowest(), "w1");
    cr_assert(!strncmp(note_of(1, "w1"), "no bytes for ", 13), "%s", note_of(1, "w1"));
    /* w1 asks for other sources, and is to wait for the one of its host that has none either. */
    uint64_t lost[] = {R.tokens[T]};
    rig_need_sources(W1, 1, (msg_need_sources_t){.lost = lost, .lost_count = 1});
    fetches_from(W1, T, 2000), fetches_from(W3, W1, 1900);
    cr_assert_str_eq(slowest(), "w1");
    cr_assert_null(strstr(note_of(1, "w1"), "w2"), "%s", note_of(1, "w1"));
    cr_assert_null(strstr(note_of(1, "w3"), "w2"), "%s", note_of(1, "w3"));
}

/* w3 has the least, and its source has no source. */
Test(places, one_without_a_source_is_the_reason)
{
    publish_to(3, (rig_publish_t){.payload_bytes = 20 << 20});
    fetches_from(W1, T, 3000), fetches_from(W2, T, 2000), fetches_from(W3, W2, 100);
    uint64_t lost[] = {R.tokens[T], R.tokens[W2], R.tokens[W3]};
    rig_need_sources(W1, 1, (msg_need_sources_t){.lost = lost, .lost_count = 3});
    cr_assert_str_eq(note_of(1, "w1"), "no source");
    cr_assert_str_eq(slowest(), "w1");
}

/* `worker` gets so many bytes a second, each heartbeat of the others comes. */
static uint64_t done_of[8], source_of_crawl;
static void crawl(uint64_t worker, uint64_t ms, uint64_t rate)
{
    for (uint64_t end = R.now.us + ms * 1000; R.now.us < end;) {
        R.now.us += 250000;
        broker_tick(R.b, R.now);
        rig_flush();
        for (uint64_t w = W1; w <= W4; w++)
            if (w != worker && R.tokens[w]) rig_beat(w);
        msg_progress_t p = {.adapter = "policy",
                            .fetching = 1,
                            .source = source_of_crawl,
                            .bytes_done = done_of[worker - W1] += rate / 4,
                            .data_bytes = 5000};
        msg_t hb = {.type = MSG_HEARTBEAT};
        hb.heartbeat =
            (msg_heartbeat_t){.token = R.tokens[worker], .seq = 1, .adapters = &p, .adapter_count = 1};
        rig_frame(worker, &hb);
        if (R.tokens[T]) rig_beat(T);
    }
}

/* It would need 100 of the 60 seconds that are left. */
Test(places, beside_one_that_is_too_slow_one_more_fetches_and_no_third)
{
    far_publisher(4, HEDDLE_ACTIVATION_AS_READY);
    crawl(W1, LEASE_MS / 4, 48);
    assert_announced("1000");
    crawl(W1, LEASE_MS / 2, 48);
    assert_announced("1100");
    cr_assert_str_eq(note_of(1, "w3"), "waits for w2, which fetches it for their host");
    crawl(W2, 2 * LEASE_MS, 48);
    assert_announced("1100");
    cr_assert_str_eq(note_of(1, "w3"), "waits for w2, which fetches it for their host, at 48 B/s");
    rig_staged(W2, 1, 1);
    assert_announced("1111");
}

Test(places, one_that_waited_says_for_which_when_the_version_has_failed)
{
    place(T, HERE, 3);
    for (uint64_t w = W1; w <= W2; w++) place(w, THERE, 1);
    publish_to(3, (rig_publish_t){0});
    says_it_fetches(W1, 1, 100);
    rig_nack(W3, 1, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_str_eq(note_of(1, "w2"), "given up, while w1 fetched it for their host: version_failed");
    const msg_rollout_t *r = &rig_last(T, MSG_ROLLOUT)->rollout;
    cr_assert_eq(r->missing_count, 3);
    cr_assert_str_eq(r->missing[1].worker, "w2");
    cr_assert_str_eq(r->missing[1].message,
                     "w1, which fetched it for their host, had not got it when the version ended");
}

/* Of 60 seconds: it needs 14, a quarter; 25, and 50 if the second one took half of its rate; 17; and 25 again,
 * by its own --max-rate, of which a second one takes nothing. */
Test(places, one_that_comes_in_time_is_waited_for_where_a_second_one_could_make_it_late)
{
    static const struct {
        uint64_t rate, max_rate;
        const char *which;
    } CASES[] = {{360, 0, "10"}, {200, 0, "10"}, {300, 0, "11"}, {200, 200, "11"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        if (i) rig_stop(), rig_start();
        memset(done_of, 0, sizeof done_of);
        R.max_rates[W1] = R.max_rates[W2] = CASES[i].max_rate;
        far_publisher(2, HEDDLE_ACTIVATION_AS_READY);
        crawl(W1, LEASE_MS, CASES[i].rate);
        assert_announced(CASES[i].which);
    }
}

/* w1 of another host, which has it, fetched at 40 times the rate of w2. */
Test(places, one_that_is_far_behind_others_is_not_waited_for)
{
    for (int w = 0; w < 3; w++) place((uint64_t)(W1 + w), w ? THERE : THERE + 1, 1);
    place(T, HERE, 3);
    publish_to(3, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    rig_pass(500);
    rig_staged(W1, 1, 1);
    crawl(W2, LEASE_MS, 200);
    assert_announced("111");
}

/* The version is active long since, and a whole holder serves nothing: w2 needs 25 s, by its own --max-rate. */
Test(places, an_engine_that_starts_beside_a_limited_one_does_not_wait_for_it)
{
    R.max_rates[W2] = 200;
    place(T, HERE, 3), place(W1, HERE, 1), place(W2, THERE, 1), place(W3, THERE, 1);
    publish_to(1, (rig_publish_t){.deadline_ms = 10000});
    roll_out(1, 1, 1, 1);
    rig_pass(10500);
    rig_worker(W2, "w2");
    memset(done_of, 0, sizeof done_of);
    crawl(W2, LEASE_MS / 2, 200);
    rig_worker(W3, "w3");
    crawl(W2, LEASE_MS / 2, 200);
    assert_announced("111");
}

/* What is slow is before it. */
Test(places, one_whose_source_is_slow_is_waited_for)
{
    R.max_rates[W4] = 50;
    place(T, HERE, 3), place(W4, HERE, 0);
    for (int w = 0; w < 2; w++) place((uint64_t)(W1 + w), THERE, 1);
    publish_to(0, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    rig_worker(W4, "w4");
    rig_staged(W4, 1, 1);
    rig_leave(T);
    rig_worker(W1, "w1"), rig_worker(W2, "w2");
    assert_announced("10");
    source_of_crawl = R.tokens[W4];
    crawl(W1, LEASE_MS, 48);
    assert_announced("10");
    source_of_crawl = 0;
    crawl(W1, LEASE_MS, 48);
    assert_announced("11");
}

/* One heartbeat: w1 has all bytes, in that region, and loads them. */
static void loads(uint64_t generation)
{
    R.generations[W1] = generation;
    msg_progress_t p = {.adapter = "policy",
                        .fetching = 1,
                        .bytes_done = 5000,
                        .data_bytes = 5000,
                        .region = rig_region(W1)};
    msg_t hb = {.type = MSG_HEARTBEAT};
    hb.heartbeat = (msg_heartbeat_t){.token = R.tokens[W1], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(W1, &hb);
}

Test(places, the_others_do_not_wait_until_it_is_loaded)
{
    far_publisher(3, HEDDLE_ACTIVATION_AS_READY);
    loads(0);
    assert_announced("100");
    loads(6);
    assert_announced("111");
    cr_assert(is_source(&announced(W2)->sources[0], W1, 6) && is_source(&announced(W2)->sources[1], T, 0));
    rig_nack(W1, 1, 0, "stage", "version_failed"); /* its application refuses it: the region goes */
    place(W4, THERE, 1);
    rig_staged(W2, 1, 1);
    rig_worker(W4, "w4");
    cr_assert(is_source(&announced(W4)->sources[0], W2, 1));
    for (uint32_t i = 0; i < announced(W4)->source_count; i++)
        cr_assert_neq(announced(W4)->sources[i].token, R.tokens[W1]);
}

Test(places, with_a_short_deadline_they_wait_a_quarter_of_it)
{
    place(T, HERE, 3);
    place(W1, THERE, 1), place(W2, THERE, 1);
    publish_to(2, (rig_publish_t){.deadline_ms = 2000});
    R.now.us += 490000;
    broker_tick(R.b, R.now), rig_flush();
    assert_announced("10");
    R.now.us += 20000;
    broker_tick(R.b, R.now), rig_flush();
    assert_announced("11");
}

/* The first one has fetched nothing for long; then it gets other sources. */
Test(places, they_wait_for_a_fetch_that_begins_anew)
{
    far_publisher(2, HEDDLE_ACTIVATION_ALL);
    msg_progress_t p = {.adapter = "policy",
                        .fetching = 1,
                        .message = "no source answers",
                        .data_bytes = 5000};
    msg_t hb = {.type = MSG_HEARTBEAT};
    hb.heartbeat = (msg_heartbeat_t){.token = R.tokens[W1], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(W1, &hb);
    assert_announced("11");
    rig_leave(W2);
    R.tokens[W2] = 0;
    rig_pass(LEASE_MS);
    rig_need_sources(W1, 1, (msg_need_sources_t){0});
    place(W3, THERE, 1);
    rig_worker(W3, "w3");
    rig_pass(LEASE_MS / 2 - 300);
    assert_announced("110");
    rig_pass(600);
    assert_announced("111");
}

Test(places, late_joiners_wait_too)
{
    far_publisher(2, HEDDLE_ACTIVATION_AS_READY);
    rig_nack(W1, 1, 0, "fetch", "no_slot");
    assert_announced("11");
    place(W3, THERE, 1);
    rig_worker(W3, "w3");
    assert_announced("110");
    place(W4, THERE, 1);
    rig_worker(W4, "w4");
    rig_staged(W2, 1, 1);
    assert_announced("1111");
}

Test(places, what_a_worker_fetches_goes_on_until_the_newest_is_announced)
{
    place(T, HERE, 3);
    place(W1, THERE, 1), place(W2, THERE, 1);
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_staged(W1, 1, 1);
    rig_active(W1, 1, 1, 1);
    says_it_fetches(W2, 1, 100);
    as_ready(2);
    const track_t *t = track_find(&R.b->rollout, "policy", 1);
    cr_assert(copy_is_out(copy_find(t, "w2")), "the newest is not announced to it yet");
    rig_staged(W1, 2, 2);
    cr_assert_eq(announced(W2)->version, 2);
}

/* ---- peers ---- */

/* The last list, by its connections; 0: none. */
static void assert_peers(uint64_t worker, uint64_t a, uint64_t b)
{
    const msg_peers_t *m = &rig_last(worker, MSG_PEERS)->peers;
    uint64_t want[] = {a, b};
    cr_assert_eq(m->token, R.tokens[worker]);
    cr_assert_eq(m->peer_count, (uint32_t)((a != 0) + (b != 0)));
    for (uint32_t i = 0; i < m->peer_count; i++) {
        key16_t life = rig_life(want[i]);
        cr_assert(!memcmp(&m->peers[i].life, &life, sizeof life));
    }
}

Test(places, a_worker_is_named_the_publishers_of_its_host)
{
    msg_subscription_t subs[] = {{.adapter = "policy"}, {.adapter = "other"}};
    enum { T2 = 3, T3 = 4 };
    place(T, HERE, 1), place(T2, HERE, 1), place(T3, THERE, 1), place(W1, HERE, 1), place(W2, THERE, 1);
    rig_open(T, "policy", "trainer", 0, false);
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", subs, 2, NULL, 0);
    rig_worker(W2, "w2");
    rig_worker(W3, "w3");
    assert_peers(W1, T, 0);
    assert_peers(W2, 0, 0);
    cr_assert(!rig_has(W3, MSG_PEERS), "it has no place");
    rig_open(T2, "other", "second", 0, false);
    assert_peers(W1, T, T2);
    cr_assert_eq(rig_count(MSG_PEERS), 3, "only those that it concerns");
    rig_open(T3, "policy", "third", 0, true); /* takes it over, on another host */
    assert_peers(W1, T2, 0);
    assert_peers(W2, T3, 0);
    rig_leave(T2);
    assert_peers(W1, 0, 0);
    R.is_quiet[T3] = true;
    rig_pass(2 * LEASE_MS);
    assert_peers(W2, 0, 0);
}

/* ---- what is shown ---- */

static json_t *asked(const char *op, uint64_t version, const char *list)
{
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = op, .name = version ? "policy" : "", .version = version});
    json_t *body = NULL;
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, NULL), HEDDLE_OK);
    json_t *rows = json_incref(json_object_get(body, list));
    json_decref(body);
    return rows;
}

Test(places, what_is_held_and_who_verified_is_shown_once_it_is_known)
{
    place(W1, HERE, 1), place(T, HERE, 3);
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1), rig_staged(W2, 1, 1);
    msg_t hb = {.type = MSG_HEARTBEAT};
    hb.heartbeat = (msg_heartbeat_t){.token = R.tokens[W1], .seq = 1, .counts = {.held_bytes = 8192}};
    rig_frame(W1, &hb);
    json_t *versions = asked("versions", 1, "versions"), *workers = asked("workers", 0, "workers");
    json_t *w1 = json_array_get(json_object_get(json_array_get(versions, 0), "workers"), 0);
    json_t *w2 = json_array_get(json_object_get(json_array_get(versions, 0), "workers"), 1);
    cr_assert_str_eq(json_string_value(json_object_get(w1, "verified")), "here");
    cr_assert(json_is_false(json_object_get(w1, "held")));
    cr_assert(json_is_null(json_object_get(w2, "verified")) && json_is_null(json_object_get(w2, "held")));
    json_t *m1 = json_object_get(json_array_get(workers, 0), "memory");
    json_t *m2 = json_object_get(json_array_get(workers, 1), "memory");
    cr_assert_eq(json_integer_value(json_object_get(m1, "held_bytes")), 8192);
    cr_assert(json_is_integer(json_object_get(m1, "own_bytes")));
    cr_assert(json_is_null(json_object_get(m2, "own_bytes")) &&
              json_is_null(json_object_get(m2, "held_bytes")));
    json_decref(versions);
    json_decref(workers);
}
