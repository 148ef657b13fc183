/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that fetch a version from each other: whose sources are whose, and what becomes of those behind a
 * worker that goes. */
#include "broker_rig.h"

static void start(void)
{
    rig_start();
    R.shape = PLAN_CHAIN;
    rig_restart();
}

TestSuite(chain, .init = start, .fini = rig_stop);

/* By the names of the sources: "w2 w1". */
static void assert_sources(const msg_source_t *sources, uint32_t count, const char *expected)
{
    char text[128] = "";
    for (uint32_t i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "", sources[i].name);
    cr_assert_str_eq(text, expected);
}

static void assert_announced(uint64_t peer, const char *expected)
{
    const msg_announce_t *m = &rig_last(peer, MSG_ANNOUNCE)->announce;
    assert_sources(m->sources, m->source_count, expected);
}

/* SOURCES that came since the letters were dropped, once; NULL: none. */
static void assert_told(uint64_t peer, const char *expected)
{
    size_t count = 0;
    for (size_t i = 0; i < R.letter_count; i++)
        count += R.letters[i].peer == peer && R.letters[i].m.type == MSG_SOURCES;
    cr_assert_eq(count, expected != NULL, "%zu lists were sent to peer %llu", count,
                 (unsigned long long)peer);
    if (!expected) return;
    const msg_sources_t *m = &rig_last(peer, MSG_SOURCES)->sources;
    assert_sources(m->sources, m->source_count, expected);
}

static void go(uint64_t peer)
{
    rig_drop_letters();
    rig_leave(peer);
    R.tokens[peer] = 0;
}

static void needs(uint64_t peer, uint64_t lost)
{
    rig_drop_letters();
    rig_need_sources(peer, 1, (msg_need_sources_t){.lost = &lost, .lost_count = lost != 0});
}

/* It fetches on at another source. */
static void blame_of(uint64_t version, uint64_t peer, uint64_t bad, uint64_t slow)
{
    rig_drop_letters();
    rig_need_sources(peer, version,
                     (msg_need_sources_t){.lost = &bad,
                                          .lost_count = bad != 0,
                                          .bad = &bad,
                                          .bad_count = bad != 0,
                                          .slow = &slow,
                                          .slow_count = slow != 0});
}

static void blames(uint64_t peer, uint64_t bad, uint64_t slow) { blame_of(1, peer, bad, slow); }

Test(chain, workers_are_named_before_they_have_a_byte)
{
    publish_to(4, (rig_publish_t){0});
    assert_announced(W1, "trainer");
    assert_announced(W2, "w1 trainer");
    assert_announced(W3, "w2 w1 trainer");
    assert_announced(W4, "w3 w2 w1");
}

/* The version with these bytes is announced, and what was sent before is forgotten. */
static void publish_next(uint64_t digest)
{
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = digest});
}

Test(chain, the_order_is_the_same_for_the_next_version_and_after_a_restart)
{
    publish_to(3, (rig_publish_t){0});
    roll_out(3, 1, 1, 1);
    R.tokens[W1] = R.tokens[W2] = R.tokens[W3] = 0;
    rig_restart();
    for (uint64_t peer = W3; peer >= W1; peer--) {
        char name[] = {'w', (char)('1' + peer - W1), 0};
        rig_worker(peer, name);
    }
    rig_open(T, "policy", "trainer", 0, false);
    rig_pass(LEASE_MS + 500);
    publish_next(2);
    assert_announced(W3, "w2 w1 trainer");
}

Test(chain, those_behind_one_that_goes_are_told_unasked)
{
    publish_to(4, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    go(W2);
    assert_told(W1, NULL);
    assert_told(W3, "w1 trainer");
    assert_told(W4, "w3 w1 trainer");
    go(W1);
    assert_told(W3, "trainer");
}

Test(chain, so_are_those_behind_one_that_is_lost_or_refuses)
{
    publish_to(4, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_drop_letters();
    rig_nack(W3, 1, 0, "fetch", "no_memory");
    assert_told(W4, "w2 w1");
    rig_drop_letters();
    R.is_quiet[W1] = true;
    rig_pass(LEASE_MS + 500);
    assert_told(W2, "trainer");
}

/* All slots of w1 are held: w2 would wait for it. */
Test(chain, one_that_reports_trouble_is_passed_over)
{
    publish_to(3, (rig_publish_t){0});
    msg_progress_t p = {.adapter = "policy", .fetching = 1, .message = "all slots are held"};
    msg_t hb = {.type = MSG_HEARTBEAT};
    hb.heartbeat = (msg_heartbeat_t){.token = R.tokens[W1], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_drop_letters();
    rig_frame(W1, &hb);
    assert_told(W2, "trainer");
    assert_told(W3, "w2 trainer");
}

Test(chain, one_that_asks_is_named_those_before_the_lost_one)
{
    publish_to(4, (rig_publish_t){0});
    needs(W4, R.tokens[W3]);
    assert_told(W4, "w2 w1");
    needs(W1, 0);
    assert_told(W1, "trainer");
}

/* Its session has not ended yet.  A worker whose connection is there is a source of the others, as before. */
Test(chain, one_that_is_missed_and_whose_connection_is_gone_is_a_source_no_more)
{
    publish_to(4, (rig_publish_t){0});
    uint64_t pings = R.b->sent[MSG_PING];
    needs(W3, R.tokens[W2]);
    assert_told(W3, "w1 trainer");
    assert_told(W4, NULL);
    cr_assert_eq(R.b->sent[MSG_PING], pings + 1);
    R.is_gone[W2] = R.is_quiet[W2] = true;
    needs(W3, R.tokens[W2]);
    rig_pass(1);
    assert_told(W4, "w3 w1");
    needs(W4, R.tokens[W2]);
    assert_told(W4, "w3 w1");
}

/* The publisher may be well, and out of reach of that one alone. */
Test(chain, one_that_loses_the_publisher_lets_the_next_one_fetch_from_it)
{
    publish_to(3, (rig_publish_t){0});
    assert_announced(W1, "trainer");
    needs(W1, R.tokens[T]);
    assert_told(W1, "w3 w2");
    assert_told(W2, "trainer");
    assert_told(W3, "w2 trainer");
    needs(W2, R.tokens[T]);
    assert_told(W2, "w1 w3");
    assert_told(W3, "trainer");
    needs(W3, R.tokens[T]);
    needs(W1, R.tokens[T]);
    assert_told(W1, "trainer");
    needs(W1, R.tokens[T]);
    assert_told(W1, "trainer"); /* none reaches it, so that they do not go round */
    assert_told(W2, NULL);
}

/* In trees those that it served get other sources first, and one of these serves it. */
Test(chain, so_does_a_root_of_two_trees)
{
    R.shape = PLAN_TWO_TREE;
    rig_restart();
    publish_to(4, (rig_publish_t){.payload_bytes = 20 << 20});
    needs(W1, R.tokens[T]);
    const msg_sources_t *m = &rig_last(W1, MSG_SOURCES)->sources;
    for (uint32_t i = 0; i < m->source_count; i++) cr_assert_str_neq(m->sources[i].name, "trainer");
    cr_assert(m->source_count);
}

Test(chain, one_alone_that_loses_the_publisher_has_no_other_source)
{
    publish_to(1, (rig_publish_t){0});
    needs(W1, R.tokens[T]);
    assert_told(W1, "trainer");
}

Test(chain, a_source_that_was_bad_is_not_lost)
{
    publish_to(3, (rig_publish_t){0});
    blames(W3, R.tokens[W2], 0);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_BAD), 1);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_LOST), 0);
}

/* Its connections stay, and so do those to it. */
Test(chain, a_new_session_of_a_worker_keeps_its_place)
{
    publish_to(3, (rig_publish_t){0});
    rig_drop_letters();
    rig_worker(W2, "w2");
    assert_announced(W2, "w1 trainer");
    assert_told(W3, NULL);
    needs(W3, 0);
    assert_told(W3, "w2 w1 trainer");
}

Test(chain, one_that_joins_on_the_way_goes_to_the_tail)
{
    workers(3);
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    rig_drop_letters();
    rig_worker(W4, "a-late-one");
    assert_announced(W4, "w3 w2 w1");
    cr_assert_eq(rig_count(MSG_SOURCES), 0);
}

/* w2 fetches for its host, where w3 waits, from w1.  Each says so much for so long. */
static void fetch_on(uint64_t ms, uint64_t w1_done, uint64_t w2_done)
{
    for (uint64_t end = R.now.us + ms * 1000; R.now.us < end; R.now.us += 250000) {
        broker_tick(R.b, R.now);
        rig_flush();
        says_it_fetches(W1, 1, w1_done), says_it_fetches(W2, 1, w2_done);
        rig_beat(W3), rig_beat(T);
    }
}

Test(chain, a_host_waits_for_its_worker_while_that_one_waits_for_another_host)
{
    R.places[T] = 500, R.places[W1] = 501, R.places[W2] = R.places[W3] = 502;
    publish_to(3, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    assert_announced(W2, "w1 trainer");
    fetch_on(2 * LEASE_MS, 1000, 900);
    cr_assert(!rig_has(W3, MSG_ANNOUNCE), "w1 stands still");
    for (uint64_t done = 1100; done < 2000; done += 100) fetch_on(LEASE_MS / 4, done, 900);
    assert_announced(W3, "w1 trainer");
}

/* w2 fetches for its host, where w3 waits, and is started again on another host.  w3 begins anew at the tail, and the
 * one that joined is behind it: else w1 would serve both. */
Test(chain, one_that_is_started_on_another_host_is_behind_the_next_one_of_its_former_host)
{
    R.places[T] = 500, R.places[W1] = 501, R.places[W2] = R.places[W3] = 502, R.places[W4] = 503;
    publish_to(3, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    assert_announced(W2, "w1 trainer");
    R.is_gone[W2] = true;
    rig_worker(W4, "w2");
    assert_announced(W3, "w1 trainer");
    assert_announced(W4, "w3 w1 trainer");
}

/* ---- several begin anew in one turn ---- */

static void name_zones(const char *of_w1)
{
    static const char *const ZONES[] = {"zone=f", "zone=e", "zone=d", "zone=c", "zone=b"};
    R.zones[W1] = of_w1;
    for (uint64_t i = 0; i < 5; i++) R.zones[W2 + i] = ZONES[i];
}

/* w2 to w6 had no memory for version 1, and try again after a lease. */
static void fail_and_try_again(void)
{
    R.is_in_turn = true;
    for (uint64_t peer = W2; peer < W2 + 5; peer++) rig_nack(peer, 1, 0, "fetch", "no_memory");
    rig_end_turn();
    cr_assert_str_eq(rig_state(1), "active");
    rig_drop_letters();
    rig_pass(LEASE_MS + 500);
}

/* Lists of version 1 that were announced since the letters were dropped, and that begin with it. */
static uint32_t served_by(uint64_t peer)
{
    uint32_t count = 0;
    for (size_t i = 0; i < R.letter_count; i++) {
        const msg_t *m = &R.letters[i].m;
        count += m->type == MSG_ANNOUNCE && m->announce.sources[0].token == R.tokens[peer];
    }
    return count;
}

static void assert_chain_of(uint64_t first, uint32_t count)
{
    cr_assert_eq(rig_count(MSG_ANNOUNCE), count);
    cr_assert_eq(served_by(first), 1);
    for (uint64_t peer = T; peer < W2 + 5; peer++)
        if (R.tokens[peer]) cr_assert_leq(served_by(peer), 1, "peer %llu", (unsigned long long)peer);
}

/* Their zones are against the order of their names; the one that has all bytes is the first, or the last. */
Test(chain, those_that_try_again_are_a_chain_again)
{
    for (int is_last = 0; is_last < 2; is_last++) {
        rig_stop();
        start();
        name_zones(is_last ? "zone=z" : "zone=a");
        publish_to(6, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
        rig_staged(W1, 1, 1);
        fail_and_try_again();
        assert_chain_of(W1, 5);
        assert_announced(W2, "w1 trainer");
        assert_announced(W3, "w2 w1");
    }
}

/* The last one came first. */
Test(chain, those_that_joined_and_try_again_are_a_chain_again)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    for (uint64_t peer = W2 + 5; peer-- > W2;) {
        char name[] = {'w', (char)('1' + peer - W1), 0};
        rig_worker(peer, name);
    }
    fail_and_try_again();
    assert_chain_of(W1, 5);
}

/* It fetched nothing, and w3 goes on. */
Test(chain, one_that_tries_again_is_behind_those_that_fetch)
{
    publish_to(4, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_staged(W4, 1, 1);
    rig_nack(W2, 1, 0, "fetch", "no_memory");
    rig_pass(LEASE_MS + 500);
    assert_announced(W2, "w4 trainer");
    rig_nack(W2, 1, 0, "fetch", "no_memory");
    needs(W1, 0);
    assert_told(W1, "w4 trainer");
    rig_drop_letters();
    rig_pass(2 * LEASE_MS + 500);
    assert_announced(W2, "w3 w4 w1");
}

/* Those of the hosts held the region of one that was loading it, which is gone now. */
Test(chain, hosts_whose_first_workers_go_as_they_load_are_a_chain_again)
{
    for (uint64_t i = 0; i < 6; i++) R.places[W1 + i] = 501 + i % 2;
    R.generations[W1] = R.generations[W2] = 1;
    publish_to(6, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    assert_announced(W2, "w1 trainer");
    for (uint64_t peer = W1; peer <= W2; peer++) {
        msg_progress_t p = {.adapter = "policy",
                            .fetching = 1,
                            .bytes_done = 5000,
                            .data_bytes = 5000,
                            .region = rig_region(peer)};
        msg_t hb = {.type = MSG_HEARTBEAT};
        hb.heartbeat =
            (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
        rig_frame(peer, &hb);
    }
    assert_announced(W3, "w1 trainer");
    assert_announced(W4, "w2 w1 trainer");
    rig_drop_letters();
    R.is_quiet[W1] = R.is_quiet[W2] = true;
    rig_pass(LEASE_MS + 500);
    for (uint64_t peer = W3; peer < W1 + 6; peer++) assert_told(peer, "");
    assert_announced(W4, "trainer");
    assert_announced(W3, "w4 trainer");
    assert_chain_of(T, 2);
}

static void opens_from(uint64_t former_token, uint64_t serving)
{
    msg_t m = {.type = MSG_OPEN};
    m.open = (msg_open_t){.req = ++R.req,
                          .adapter = "policy",
                          .writer = "trainer",
                          .serving = serving,
                          .prev_token = former_token,
                          .epoch = former_token >> 32,
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("pub", 3)};
    rig_hello(T, ROLE_PUBLISHER);
    rig_frame(T, &m);
}

/* It went as its version was recorded, and came back. */
Test(chain, those_that_had_no_source_are_a_chain_when_the_publisher_comes_back)
{
    name_zones("zone=g");
    workers(6);
    rig_open(T, "policy", "trainer", 0, false);
    uint64_t former_token = R.tokens[T];
    R.is_late = true;
    rig_publish(T, (rig_publish_t){.digest = 1});
    cr_assert(rig_is_committing());
    R.is_quiet[T] = true;
    rig_pass(LEASE_MS + 500);
    R.is_late = false;
    rig_confirm(HEDDLE_OK);
    rig_drop_letters();
    opens_from(former_token, 1);
    assert_chain_of(T, 6);
}

/* ---- the publisher goes ---- */

static void each_says(uint64_t done)
{
    for (uint64_t peer = W1; peer <= W3; peer++) says_it_fetches(peer, 1, done);
}

Test(chain, workers_that_still_get_bytes_from_each_other_go_on)
{
    publish_to(3, (rig_publish_t){0});
    each_says(1000);
    go(T);
    for (uint64_t done = 1100; done < 2000; done += 100) {
        rig_pass(LEASE_MS / 4);
        each_says(done);
        cr_assert_str_eq(rig_state(1), "staging");
    }
    rig_staged(W1, 1, 1), rig_staged(W2, 1, 1), rig_staged(W3, 1, 1);
    cr_assert_str_eq(rig_state(1), "active");
}

Test(chain, a_lease_after_the_last_byte_the_version_fails)
{
    publish_to(3, (rig_publish_t){0});
    each_says(1000);
    rig_pass(LEASE_MS / 2);
    each_says(1100);
    go(T);
    rig_pass(LEASE_MS - 500);
    cr_assert_str_eq(rig_state(1), "staging");
    for (uint64_t peer = W1; peer <= W3; peer++) needs(peer, 0); /* no source, and no byte */
    rig_pass(1000);
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_VERSION_LOST);
}

/* Two of them begin anew by turns, and come no further than the first was. */
Test(chain, parts_that_others_had_before_are_no_growth)
{
    publish_to(3, (rig_publish_t){0});
    each_says(1000);
    go(T);
    for (uint64_t done = 100; done < 1000; done += 300) {
        rig_pass(LEASE_MS / 4);
        says_it_fetches(W1, 1, 0), says_it_fetches(W2, 1, done), says_it_fetches(W3, 1, done);
    }
    rig_pass(LEASE_MS / 2);
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_VERSION_LOST);
}

/* A part that no other can complete is worth nothing. */
Test(chain, one_alone_is_no_source)
{
    publish_to(1, (rig_publish_t){0});
    says_it_fetches(W1, 1, 1000);
    go(T);
    rig_pass(100);
    cr_assert_str_eq(rig_state(1), "failed");
}

/* They would wait for each other, and the next version behind it. */
Test(chain, of_a_lost_version_none_that_waits_is_a_source)
{
    publish_to(3, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_staged(W1, 1, 1);
    needs(W3, 0);
    assert_told(W3, "w2 w1 trainer");
    go(T);
    go(W1);
    rig_pass(3 * LEASE_MS);
    cr_assert_str_eq(rig_state(1), "lost");
    needs(W3, 0);
    assert_told(W3, "");
}

/* ---- sources that are to be blamed ---- */

static const char *relay_why(const char *worker)
{
    static char why[160];
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_drop_letters();
    rig_query(ADMIN, (msg_query_t){.op = "workers", .worker = "", .name = worker});
    json_t *body = NULL;
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, NULL), HEDDLE_OK);
    const json_t *row = json_array_get(json_object_get(body, "workers"), 0);
    const char *text = json_string_value(json_object_get(row, "relay_why"));
    snprintf(why, sizeof why, "%s", text ? text : "");
    json_decref(body);
    return why;
}

Test(chain, one_that_sent_wrong_bytes_goes_behind_the_others_and_comes_last_for_a_while)
{
    publish_to(4, (rig_publish_t){0});
    blames(W3, R.tokens[W2], 0);
    assert_told(W3, "w1 trainer");
    assert_told(W2, "w4 w3 w1");
    assert_told(W4, "w3 w1 trainer");
    blames(W3, R.tokens[W2], 0);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_BAD), 1, "it is said once");
    assert_told(W2, NULL);
    cr_assert_str_eq(relay_why("w2"), "it sent bytes with another digest to another worker");
    roll_out(4, 1, 1, 1);
    publish_next(2);
    assert_announced(W3, "w1 trainer");
    assert_announced(W4, "w3 w1 trainer");
    assert_announced(W2, "w4 w3 w1");
    roll_out(4, 2, 2, 2);
    rig_pass(BLAME_MS);
    cr_assert_str_eq(relay_why("w2"), "");
    publish_next(3);
    assert_announced(W3, "w2 w1 trainer");
}

Test(chain, one_that_sent_wrong_bytes_to_two_is_a_last_resort_from_then_on)
{
    publish_to(4, (rig_publish_t){0});
    blames(W3, R.tokens[W2], 0);
    blames(W4, R.tokens[W2], 0);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_BAD), 2);
    cr_assert_str_eq(relay_why("w2"), "it sent bytes with another digest to two other workers");
    blames(W1, R.tokens[W2], 0);
    blames(W2, R.tokens[W4], 0);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_BAD), 2,
                 "what is known is not said again, and it is not believed");
    cr_assert_str_eq(relay_why("w4"), "");
    roll_out(4, 1, 1, 1);
    rig_pass(BLAME_MS);
    publish_next(2);
    assert_announced(W3, "w1 trainer");
    assert_announced(W4, "w3 w1 trainer");
    assert_announced(W2, "w4 w3 w1");
}

Test(chain, a_slow_one_goes_behind_the_others_and_comes_last_for_a_while)
{
    publish_to(4, (rig_publish_t){0});
    blames(W3, 0, R.tokens[W2]);
    assert_told(W3, "w1 trainer");
    assert_told(W2, "w4 w3 w1");
    cr_assert_eq(rig_event_count(EVENT_SOURCE_SLOW), 1);
    cr_assert_str_eq(relay_why("w2"), "another source was faster");
    roll_out(4, 1, 1, 1);
    publish_next(2);
    assert_announced(W3, "w1 trainer");
    assert_announced(W2, "w4 w3 w1");
    roll_out(4, 2, 2, 2);
    rig_pass(BLAME_MS);
    cr_assert_str_eq(relay_why("w2"), "");
    publish_next(3);
    assert_announced(W3, "w2 w1 trainer");
}

/* Its place in the trees goes to the one that it served: it has both halves from one that served none. */
Test(chain, a_slow_one_in_two_trees_leaves_its_place_to_those_that_it_served)
{
    R.shape = PLAN_TWO_TREE;
    rig_restart();
    publish_to(4, (rig_publish_t){.payload_bytes = 20 << 20});
    blames(W4, 0, R.tokens[W2]);
    assert_told(W4, "trainer w1 w3 trainer");
    assert_told(W2, "w3 w1 w4 w4 w1 trainer");
}

/* What was behind the first one got little, and looked slow for a moment: it waits for it neither now nor in the
 * next version. */
Test(chain, of_those_that_are_blamed_in_one_version_the_first_one_is_behind_all)
{
    publish_to(4, (rig_publish_t){0});
    blames(W3, 0, R.tokens[W2]);
    rig_pass(30);
    blames(W4, 0, R.tokens[W3]);
    assert_told(W4, "w1 trainer");
    assert_told(W3, "w4 w1 trainer");
    assert_told(W2, "w3 w4 w1");
    roll_out(4, 1, 1, 1);
    publish_next(2);
    assert_announced(W4, "w1 trainer");
    assert_announced(W3, "w4 w1 trainer");
    assert_announced(W2, "w3 w4 w1");
}

/* Each of them gets one list, and not one for each that is blamed after it. */
Test(chain, those_that_are_blamed_in_one_turn_get_a_list_each)
{
    publish_to(8, (rig_publish_t){0});
    rig_drop_letters();
    R.is_in_turn = true;
    for (uint64_t i = 1; i <= 3; i++)
        rig_need_sources(W1 + 2 * i, 1,
                         (msg_need_sources_t){.slow = &R.tokens[W1 + 2 * i - 1], .slow_count = 1});
    rig_end_turn();
    assert_told(W2, "w4 w6 w8");
    const msg_sources_t *m = &rig_last(W4, MSG_SOURCES)->sources;
    assert_sources(m->sources, m->source_count, "w6 w8 w7");
    cr_assert_eq(rig_count(MSG_SOURCES), 3 + 3 + 5, "of those that blame, that were blamed, and beside them");
    blames(W2, 0, R.tokens[W1 + 7]);
    assert_told(W2, "w4 w6 w8");
}

/* One that was blamed before may be well again, and waits for none that is slow now. */
Test(chain, of_those_that_come_last_the_one_that_was_blamed_last_is_behind_all)
{
    publish_to(4, (rig_publish_t){0});
    blames(W4, 0, R.tokens[W3]);
    roll_out(4, 1, 1, 1);
    rig_pass(1);
    publish_next(2);
    assert_announced(W3, "w4 w2 w1");
    blame_of(2, W4, 0, R.tokens[W2]);
    roll_out(4, 2, 2, 2);
    publish_next(3);
    assert_announced(W4, "w1 trainer");
    assert_announced(W3, "w4 w1 trainer");
    assert_announced(W2, "w3 w4 w1");
}

/* Its memory or its link is bad, or it is not honest. */
Test(chain, one_that_blames_two_of_a_version_is_not_believed)
{
    publish_to(4, (rig_publish_t){0});
    blames(W3, R.tokens[W2], 0);
    blames(W3, R.tokens[W1], 0);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_BAD), 2);
    cr_assert_str_eq(relay_why("w1"), "");
    cr_assert_str_eq(relay_why("w2"), "");
    cr_assert_str_eq(relay_why("w3"),
                     "it got wrong bytes from two sources: its own memory or link may be bad");
    roll_out(4, 1, 1, 1);
    publish_next(2);
    assert_announced(W2, "w1 trainer");
    assert_announced(W4, "w2 w1 trainer");
    assert_announced(W3, "w4 w2 w1");
    blame_of(2, W3, R.tokens[W2], 0);
    blame_of(2, W3, 0, R.tokens[W2]);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_BAD) + rig_event_count(EVENT_SOURCE_SLOW), 2);
}

/* Of each version it may be slow to another one. */
Test(chain, of_slow_ones_the_first_of_a_version_counts)
{
    publish_to(4, (rig_publish_t){0});
    blames(W3, 0, R.tokens[W2]);
    blames(W3, 0, R.tokens[W1]);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_SLOW), 1);
    cr_assert_str_eq(relay_why("w1"), "");
    cr_assert_str_eq(relay_why("w3"), "");
}

/* The worker has all bytes, from the publisher, and `count` read requests at `other` were late, or refused. */
static void staged_beside(uint64_t peer, uint64_t version, uint64_t other, msg_moved_t moved)
{
    msg_served_t from[] = {{.token = R.tokens[T], .kind = SOURCE_PUBLISHER, .bytes = 5000, .name = "trainer"},
                           {.token = R.tokens[other], .kind = SOURCE_WORKER, .moved = moved, .name = "w"}};
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = R.tokens[peer],
                              .version = version,
                              .adapter = "policy",
                              .digest = rig_digest(version),
                              .fetch_us = 1000,
                              .sources = from,
                              .source_count = 2};
    rig_frame(peer, &m);
}

Test(chain, one_that_has_bytes_and_gave_none_comes_last_for_a_while)
{
    publish_to(3, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    staged_beside(W2, 1, W1, (msg_moved_t){.late = 1});
    cr_assert_eq(rig_event_count(EVENT_SOURCE_SLOW), 1);
    rig_staged(W3, 1, 1);
    publish_next(2);
    assert_announced(W2, "trainer");
    assert_announced(W1, "w3 w2 trainer");
    rig_staged(W2, 2, 2);
    staged_beside(W3, 2, W2, (msg_moved_t){.refused = 1});
    rig_staged(W1, 2, 2);
    publish_next(3);
    assert_announced(W3, "trainer");
    cr_assert_eq(rig_event_count(EVENT_SOURCE_SLOW), 2);
}

/* They would wait there as long as the one that found it out. */
Test(chain, of_one_that_has_all_bytes_and_gave_none_the_others_are_sent_other_sources)
{
    publish_to(4, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_drop_letters();
    staged_beside(W2, 1, W1, (msg_moved_t){.late = 2});
    assert_told(W3, "w2 trainer");
    assert_told(W4, "w3 w2");
}

/* It still fetches, and the one that found it out has all bytes: that one needs no list, and serves the others. */
Test(chain, of_one_that_fetches_and_gave_none_the_others_fetch_from_the_one_that_has_it)
{
    publish_to(4, (rig_publish_t){0});
    says_it_fetches(W2, 1, 1000);
    rig_drop_letters();
    staged_beside(W3, 1, W2, (msg_moved_t){.late = 2});
    cr_assert_eq(rig_event_count(EVENT_SOURCE_SLOW), 1);
    assert_told(W3, NULL);
    assert_told(W4, "w3 w1 trainer");
}

/* Its sources have room for those, as it needs no bytes any more. */
Test(chain, of_one_in_two_trees_that_gave_none_the_others_fetch_from_the_one_that_has_it)
{
    R.shape = PLAN_TWO_TREE;
    rig_restart();
    publish_to(4, (rig_publish_t){.payload_bytes = 20 << 20});
    says_it_fetches(W2, 1, 1000);
    rig_drop_letters();
    staged_beside(W3, 1, W2, (msg_moved_t){.late = 2});
    assert_told(W3, NULL);
    assert_told(W4, "trainer w3 w1 trainer w3");
    assert_told(W2, "w3 w4 w4 trainer w1");
}

/* It had no byte either, its connection ended, or it gave others some. */
Test(chain, one_that_could_give_none_keeps_its_place)
{
    publish_to(4, (rig_publish_t){0});
    staged_beside(W2, 1, W1, (msg_moved_t){.late = 1});
    rig_staged(W1, 1, 1);
    staged_beside(W3, 1, W1, (msg_moved_t){.gone = 1, .slow = 1});
    rig_staged(W4, 1, 1);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_SLOW), 0);
    publish_next(2);
    assert_announced(W2, "w1 trainer");
}

/* It has all bytes, and w2 says that nothing comes of it: the failure names it, and it comes last. */
Test(chain, at_the_deadline_one_that_gives_nothing_is_named_and_comes_last)
{
    publish_to(3, (rig_publish_t){.deadline_ms = 3 * LEASE_MS});
    rig_staged(W1, 1, 1);
    while (!strcmp(rig_state(1), "staging")) {
        says_it_fetches(W2, 1, 0), says_it_fetches(W3, 1, 0);
        rig_beat(T), rig_beat(W1);
        rig_pass(250);
    }
    cr_assert_str_eq(
        rig_version(1)->message,
        "1 of 3 workers staged policy@1 within 12000 ms; missing: w2 in phase fetch, w3 in phase "
        "fetch; w2 got nothing from w1 for 12.0 s");
    cr_assert_eq(rig_event_count(EVENT_SOURCE_SLOW), 1);
    publish_next(2);
    assert_announced(W2, "trainer");
    assert_announced(W1, "w3 w2 trainer");
}

Test(chain, a_former_session_of_the_process_has_said_it)
{
    publish_to(4, (rig_publish_t){0});
    blames(W3, R.tokens[W2], 0);
    rig_worker(W3, "w3");
    blames(W3, R.tokens[W1], 0);
    cr_assert_str_eq(relay_why("w1"), "");
}

Test(chain, what_a_process_was_blamed_for_ends_with_it)
{
    publish_to(4, (rig_publish_t){0});
    blames(W3, R.tokens[W2], 0);
    blames(W4, R.tokens[W2], 0);
    roll_out(4, 1, 1, 1);
    rig_worker(W2, "w2");
    rig_staged(W2, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    assert_announced(W2, "w4 w3 w1");
    roll_out(4, 2, 2, 2);
    go(W2);
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello_as(W2, ROLE_WORKER, 77);
    rig_join_with(W2, "w2", &sub, 1, NULL, 0);
    rig_publish(T, (rig_publish_t){.digest = 3});
    assert_announced(W3, "w2 w1 trainer");
}

/* Of none that it was not named, of none by itself, and of none that it has nothing more to get from. */
Test(chain, blame_that_cannot_be_is_not_heard)
{
    publish_to(3, (rig_publish_t){0});
    blames(W2, R.tokens[W2], R.tokens[W2]);
    blames(W2, 12345, 12345);
    blames(W2, R.tokens[W3], R.tokens[W3]);
    rig_staged(W2, 1, 1);
    blames(W2, R.tokens[W1], R.tokens[W1]);
    cr_assert_eq(rig_event_count(EVENT_SOURCE_BAD) + rig_event_count(EVENT_SOURCE_SLOW), 0);
}

/* ---- those that others do not fetch from ---- */

Test(chain, a_worker_that_is_no_relay_is_named_to_none)
{
    R.no_relay[W1] = true;
    publish_to(3, (rig_publish_t){0});
    assert_announced(W2, "trainer");
    assert_announced(W3, "w2 trainer");
    assert_announced(W1, "w3 w2 trainer");
    cr_assert_str_eq(relay_why("w1"), "it was started so");
    cr_assert_str_eq(relay_why("w2"), "");
}

/* What the worker was named last, or `but` the last one, never answered it. */
static void reaches_none(uint64_t peer, uint32_t but)
{
    uint64_t lost[3] = {R.tokens[W4], R.tokens[W3], R.tokens[W2]};
    rig_drop_letters();
    rig_need_sources(
        peer, 1, (msg_need_sources_t){.lost = lost, .lost_count = 3, .unmet = lost, .unmet_count = 3 - but});
}

/* They were killed, and the broker did not know yet. */
Test(chain, one_that_did_not_reach_workers_which_had_ended_reaches_others)
{
    const uint64_t w5 = W4 + 1;
    publish_to(4, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    rig_worker(w5, "w5");
    assert_announced(w5, "w4 w3 w2");
    reaches_none(w5, 0);
    assert_told(w5, "trainer");
    rig_leave(W1);
    cr_assert_neq(strstr(relay_why("w5"), "reaches no other worker"), NULL);
    rig_leave(W3);
    cr_assert_str_eq(relay_why("w5"), "");
}

/* They are stopped, or killed, and a lease keeps them. */
Test(chain, one_that_does_not_reach_silent_workers_is_not_cut_off)
{
    const uint64_t w5 = W4 + 1;
    publish_to(4, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    rig_worker(w5, "w5");
    assert_announced(w5, "w4 w3 w2");
    R.is_quiet[W2] = R.is_quiet[W3] = R.is_quiet[W4] = true;
    rig_pass(LEASE_MS * 3 / 4);
    reaches_none(w5, 0);
    cr_assert_str_eq(relay_why("w5"), "");
}

Test(chain, one_that_reaches_no_other_is_served_by_the_publisher)
{
    const uint64_t w5 = W4 + 1;
    publish_to(4, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    rig_worker(w5, "w5");
    assert_announced(w5, "w4 w3 w2");
    reaches_none(w5, 1);
    assert_told(w5, "w1 trainer");
    cr_assert_str_eq(relay_why("w5"), "");
    reaches_none(w5, 0);
    assert_told(w5, "trainer");
    cr_assert_neq(strstr(relay_why("w5"), "reaches no other worker"), NULL);
    for (uint64_t peer = W1; peer <= w5; peer++) rig_staged(peer, 1, 1);
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 2, .activation = HEDDLE_ACTIVATION_MANUAL});
    assert_announced(w5, "trainer");
    for (uint64_t peer = W1; peer <= w5; peer++) rig_staged(peer, 2, 2);
    rig_pass(CUT_OFF_MS);
    cr_assert_str_eq(relay_why("w5"), "");
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 3, .activation = HEDDLE_ACTIVATION_MANUAL});
    assert_announced(w5, "w4 w3 w2");
}

/* ---- a new session of the publisher ---- */

/* The lists of w1 to w3 name it, and what it sends is known. */
static void assert_publisher_is_counted(uint64_t former_token)
{
    const plan_t *p = &track_find(&R.b->rollout, "policy", 1)->plan;
    cr_assert_neq(R.tokens[T], former_token);
    for (uint64_t peer = W1; peer <= W3; peer++) {
        const plan_row_t *row = plan_row(p, R.tokens[peer]);
        cr_assert(has_number(row->sources, row->source_count, R.tokens[T]));
    }
    cr_assert_eq(p->publisher_load, PLAN_HALVES);
}

Test(chain, lists_name_the_publisher_by_its_new_session)
{
    publish_to(4, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    uint64_t former_token = R.tokens[T];
    assert_publisher_is_counted(0);
    opens_from(former_token, 1);
    assert_publisher_is_counted(former_token);
    go(W1);
    assert_told(W2, "trainer");
    assert_told(W3, "w2 trainer");
    cr_assert_eq(track_find(&R.b->rollout, "policy", 1)->plan.publisher_load, PLAN_HALVES);
}

/* It had no answer to PUBLISH, and does not name the version as it opens. */
Test(chain, lists_name_the_publisher_that_publishes_it_again)
{
    publish_to(3, (rig_publish_t){.request_id = "same", .activation = HEDDLE_ACTIVATION_AS_READY});
    uint64_t former_token = R.tokens[T];
    opens_from(former_token, 0);
    cr_assert_eq(track_find(&R.b->rollout, "policy", 1)->plan.publisher_load, 0);
    rig_publish(T,
                (rig_publish_t){.digest = 1, .request_id = "same", .activation = HEDDLE_ACTIVATION_AS_READY});
    assert_publisher_is_counted(former_token);
}

/* ---- after a restart of the broker ---- */

/* Version 1 is published to the workers from w1 on, and the broker is started again. */
static uint64_t former[PEERS];
static void start_again(uint64_t last)
{
    publish_to(last - W1 + 1, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    memcpy(former, R.tokens, sizeof former);
    rig_restart();
}

static void opens_again(void) { rig_open(T, "policy", "trainer", 1, false); }

/* It fetches from these, by the tokens that they had; 0: none. */
static void fetches_on(uint64_t peer, uint64_t first, uint64_t second)
{
    char name[] = {'w', (char)('1' + peer - W1), 0};
    uint64_t sources[] = {former[first], second ? former[second] : 0};
    msg_fetched_t row = {.adapter = "policy",
                         .version = 1,
                         .sources = sources,
                         .source_count = second ? 2 : 1};
    rig_worker_fetches(peer, name, former[peer], &row);
}

static bool is_announced(uint64_t peer)
{
    bool is_so = false;
    for (size_t i = 0; i < R.letter_count; i++)
        is_so |= R.letters[i].peer == peer && R.letters[i].m.type == MSG_ANNOUNCE;
    return is_so;
}

/* The source that it lost, by the token that it had. */
static void lost_one(uint64_t peer, uint64_t lost)
{
    rig_drop_letters();
    rig_need_sources(peer, 1, (msg_need_sources_t){.lost = &former[lost], .lost_count = 1});
}

static void come_back_in_any_order(void)
{
    start_again(W4);
    fetches_on(W3, W2, W1);
    fetches_on(W4, W3, W2);
    opens_again();
    fetches_on(W1, T, 0);
    fetches_on(W2, W1, T);
}

Test(chain, after_a_restart_those_that_fetch_have_their_places)
{
    come_back_in_any_order();
    for (uint64_t peer = W1; peer <= W4; peer++)
        cr_assert_not(is_announced(peer), "it has all that it needs");
    go(W2);
    assert_told(W1, NULL);
    assert_told(W3, "w1 trainer");
    assert_told(W4, "w3 w1 trainer");
}

/* Their lists are older than the broker's last start. */
Test(chain, after_a_second_restart_those_that_fetch_have_their_places)
{
    come_back_in_any_order();
    memcpy(R.older_tokens, former, sizeof former);
    uint64_t between[PEERS];
    memcpy(between, R.tokens, sizeof between);
    rig_restart();
    for (uint64_t peer = W4; peer >= W1; peer--) {
        char name[] = {'w', (char)('1' + peer - W1), 0};
        uint64_t sources[] = {peer == W1 ? former[T] : former[peer - 1]};
        msg_fetched_t row = {.adapter = "policy", .version = 1, .sources = sources, .source_count = 1};
        rig_worker_fetches(peer, name, between[peer], &row);
    }
    opens_again();
    for (uint64_t peer = W1; peer <= W4; peer++)
        cr_assert_not(is_announced(peer), "it has all that it needs");
    lost_one(W4, W3);
    assert_told(W4, "w2 w1");
    go(W2);
    assert_told(W3, "w1 trainer");
}

Test(chain, after_a_restart_one_that_joins_is_behind_those_that_fetch)
{
    come_back_in_any_order();
    rig_worker(W4 + 1, "a");
    cr_assert_not(is_announced(W4 + 1), "the broker remembers none of the others, and waits for more");
    rig_pass(LEASE_MS / 2 + 100);
    assert_announced(W4 + 1, "w4 w3 w2");
    rig_worker(W4 + 2, "b");
    assert_announced(W4 + 2, "a w4 w3");
}

Test(chain, after_a_restart_a_report_names_a_source_by_the_token_that_it_had)
{
    come_back_in_any_order();
    lost_one(W2, W1);
    assert_told(W2, "trainer");
    assert_told(W3, NULL);
}

Test(chain, after_a_restart_one_that_has_not_begun_waits_for_those_that_fetch)
{
    start_again(W3);
    opens_again();
    rig_worker_again(W3, "w3", former[W3]);
    cr_assert_not(is_announced(W3));
    fetches_on(W1, T, 0);
    cr_assert_not(is_announced(W3));
    rig_pass(LEASE_MS / 2 + 100);
    assert_announced(W3, "w1 trainer");
    fetches_on(W2, W1, T);
    go(W1);
    assert_told(W2, "trainer");
}

/* In the shape that all those that are there get, as if it was published now. */
Test(chain, after_a_restart_the_version_begins_anew_where_none_fetches_it)
{
    R.shape = PLAN_TWO_TREE;
    start_again(W3);
    opens_again();
    rig_worker_again(W3, "w3", former[W3]);
    rig_worker_again(W2, "w2", former[W2]);
    rig_worker_again(W1, "w1", former[W1]);
    rig_pass(LEASE_MS / 2 + 100);
    const msg_announce_t *m = &rig_last(W2, MSG_ANNOUNCE)->announce;
    assert_sources(m->sources, m->source_count, "w1 w3 trainer w3 w1 trainer");
    cr_assert(m->sources[0].half == 1 && m->sources[3].half == 2);
}

/* What a session of this broker's says of its lists is not believed: it may have had others since. */
Test(chain, one_that_comes_back_to_this_broker_is_at_the_tail_whatever_it_says)
{
    come_back_in_any_order();
    memcpy(former, R.tokens, sizeof former);
    fetches_on(W2, T, 0);
    rig_drop_letters();
    rig_need_sources(W2, 1, (msg_need_sources_t){0});
    assert_told(W2, "w4 w3 w1");
}
