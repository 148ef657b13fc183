/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher's node: what it says of a version, and what it takes for an answer. */
#include "trainer_client_rig.h"

TestSuite(node, .init = open_world, .fini = close_world);
TestSuite(joined, .init = open_and_join, .fini = close_world);

Test(joined, publish_says_all_of_it)
{
    item_t *it = serve(3, 1);
    const msg_publish_t *p = &sent(MSG_PUBLISH)->publish;
    cr_assert_eq(p->token, TOKEN);
    cr_assert_str_eq(p->request_id, "id-1");
    cr_assert_str_eq(p->adapter, "policy");
    cr_assert_str_eq(p->kind, "lora");
    cr_assert_str_eq(p->base_model, "base");
    cr_assert_eq(p->step, 12);
    cr_assert_eq(p->deadline_ms, 60000);
    cr_assert_eq(p->feature_count, 1);
    cr_assert_str_eq(p->features[0], "rslora");
    cr_assert_eq(p->meta_count, 2);
    cr_assert_str_eq(p->meta[0].key, "lr");
    cr_assert_str_eq(p->meta[0].value, "3e-4");
    cr_assert_eq(p->tensor_count, 2);
    cr_assert_eq(p->data_bytes, 4 * 3000 * 6);
    cr_assert_eq(p->chunk_count, it->sealed.chunk_count);
    cr_assert_eq(p->config.bytes, sizeof CONFIG - 1);
    cr_assert_eq(p->part_count, 1);
    cr_assert(digest_equal(&p->digest, &it->sealed.digest));
}

Test(joined, what_is_served_is_the_content_that_was_published)
{
    heddle_error_t error;
    manifest_t m;
    item_t *it = serve(3, 1);
    cr_assert_eq(fetch(3, it->sealed.content_bytes), TR_ARRIVED);
    const uint8_t *got = w.worker_region->base;
    bytes_t encoded =
        bytes_of(got + manifest_offset(it->sealed.part.payload_bytes), it->sealed.part.manifest_bytes);
    digest_t digest = digest_blake2b(encoded.data, encoded.bytes);
    cr_assert(digest_equal(&digest, &it->sealed.part.manifest_digest));
    cr_assert_eq(manifest_decode(encoded, &m, &error), HEDDLE_OK, "%s", error.message);
    cr_assert_eq(m.tensor_count, 2);
    cr_assert_eq(m.chunk_count, it->sealed.chunk_count);
    h1_t h1;
    manifest_h1_begin(&m, &h1);
    for (uint64_t at = 0; at < m.payload_bytes; at += 4096) {
        uint64_t leaf;
        digest_leaves(got + at, 4096, &leaf);
        h1_add_leaves(&h1, &leaf, 1);
    }
    digest_t h = h1_final(&h1);
    cr_assert(digest_equal(&h, &it->sealed.digest));
    manifest_fini(&m);
}

Test(joined, an_ask_that_comes_before_published_stands)
{
    tr_event_t e;
    publish_result_t r;
    publish_one("id-1");
    ask(3, 4096);
    cr_assert_neq(drive(&e), TR_ARRIVED);
    published_as(3, "");
    cr_assert_eq(drive(&e), TR_ARRIVED);
    cr_assert_eq(result(&r), HEDDLE_OK);
}

Test(node, publish_waits_for_the_broker_and_is_said_again_until_it_is_answered)
{
    publish_result_t r;
    publish_one("id-1");
    cr_assert_null(sent(MSG_PUBLISH));
    join();
    cr_assert_eq(count_sent(MSG_PUBLISH), 1);
    uint64_t first = sent(MSG_PUBLISH)->publish.req;
    rejoin(0);
    cr_assert_eq(count_sent(MSG_PUBLISH), 2);
    const msg_publish_t *again = &sent(MSG_PUBLISH)->publish;
    cr_assert_str_eq(again->request_id, "id-1");
    cr_assert_eq(again->token, w.token);
    msg_t late = {.type = MSG_PUBLISHED, .published = answer(3, "")};
    late.published.req = first;
    say(&late);
    cr_assert_eq(result(&r), HEDDLE_ERR_AGAIN, "an answer to a request that is over");
    published_as(3, "replayed");
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert(r.replayed && !r.unchanged);
    cr_assert_eq(fetch(3, 4096), TR_ARRIVED, "the broker may still be staging it");
    rejoin(3);
    cr_assert_eq(count_sent(MSG_PUBLISH), 2, "what was answered is not said again");
}

Test(joined, a_replay_of_our_own_random_id_is_a_creation)
{
    publish_result_t r;
    publish_one(NULL);
    rejoin(0);
    published_as(3, "replayed");
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert_not(r.replayed);
}

Test(joined, unchanged_is_served_where_the_broker_gives_its_key)
{
    publish_result_t r;
    item_t *it = publish_one("id-1");
    msg_t m = {.type = MSG_PUBLISHED, .published = answer(2, "unchanged")};
    m.published.key = (key16_t){{0}};
    say(&m);
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert(r.unchanged && !r.replayed);
    cr_assert_eq(r.version, 2);
    rejoin(0);
    cr_assert_eq(sent(MSG_OPEN)->open.serving, 0);
    region_t *before = it->region;
    cr_assert_eq(take(it), HEDDLE_OK);
    cr_assert_eq(it->region, before, "warm");
    fill(it, 1);
    publish(it, "id-2");
    published_as(2, "unchanged");
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED, "its publisher may have died before anybody had it");
}

Test(joined, a_version_that_is_served_already_keeps_its_region)
{
    publish_result_t r;
    serve(3, 1);
    item_t *b = publish_one("id-1");
    published_as(3, "replayed");
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert_eq(fetch(3, 4096), TR_ARRIVED);
    cr_assert_eq(take(b), HEDDLE_OK, "the second region is free");
}

Test(joined, a_full_queue_is_tried_again_soon)
{
    publish_result_t r;
    item_t *it = filled(1);
    w.line_is_full = true;
    publish(it, "id-1");
    cr_assert_null(sent(MSG_PUBLISH));
    uint64_t due = tick();
    cr_assert_leq(due, w.now + 20 * MS);
    w.line_is_full = false;
    w.now = due;
    tick();
    cr_assert_eq(count_sent(MSG_PUBLISH), 1);
    published_as(3, "");
    cr_assert_eq(result(&r), HEDDLE_OK);
}

Test(joined, an_error_of_the_broker_ends_the_request)
{
    publish_result_t r;
    item_t *it = publish_one("id-1");
    refuse(MSG_PUBLISH, sent(MSG_PUBLISH)->publish.req + 1, HEDDLE_ERR_UNCHANGED, false);
    refuse(MSG_HEARTBEAT, sent(MSG_PUBLISH)->publish.req, HEDDLE_ERR_UNCHANGED, false);
    cr_assert_eq(result(&r), HEDDLE_ERR_AGAIN);
    refuse(MSG_PUBLISH, sent(MSG_PUBLISH)->publish.req, HEDDLE_ERR_UNCHANGED, false);
    cr_assert_eq(result(&r), HEDDLE_ERR_UNCHANGED);
    region_t *before = it->region;
    cr_assert_eq(take(it), HEDDLE_OK);
    cr_assert_eq(it->region, before);
    fill(it, 2);
    publish(it, "id-2");
    refuse(MSG_PUBLISH, 0, HEDDLE_ERR_LIMIT, false);
    cr_assert_eq(result(&r), HEDDLE_ERR_LIMIT, "the broker could not read our req");
}

Test(joined, published_for_other_bytes_is_refused)
{
    publish_result_t r;
    item_t *it = publish_one("id-1");
    msg_t m = {.type = MSG_PUBLISHED, .published = answer(3, "")};
    m.published.digest.b[0] ^= 1;
    say(&m);
    cr_assert_eq(result(&r), HEDDLE_ERR_PROTOCOL);
    cr_assert_eq(fetch(3, 4096), -1, "nothing is served under that key");
    cr_assert_eq(take(it), HEDDLE_OK);
}

Test(joined, a_refusal_for_good_ends_the_request)
{
    publish_result_t r;
    item_t *it = filled(1);
    line(false);
    publish(it, "id-1");
    line(true);
    refuse(MSG_HELLO, 0, HEDDLE_ERR_WIRE_VERSION, false);
    cr_assert_eq(result(&r), HEDDLE_ERR_WIRE_VERSION);
}

/* The wire goes on to the next endpoint, and looks at this one again: a key that cannot be had now ends nothing. */
Test(joined, a_line_that_may_come_yet_ends_no_request)
{
    publish_result_t r;
    heddle_error_t why, error;
    item_t *it = filled(1);
    line(false);
    publish(it, "id-1");
    error_fail(&why, HEDDLE_ERR_DATA_DIR, "brokers/tcp_.pub: cannot be read");
    why.retriable = 1;
    publisher_node_ops.refused(w.node, &why, w.now);
    cr_assert_eq(result(&r), HEDDLE_ERR_AGAIN);
    cr_assert_eq(abandon(&r, &error), HEDDLE_ERR_DATA_DIR, "at its deadline it is told");
    cr_assert(strstr(error.message, "tcp_.pub"));
    cr_assert_eq(take(it), HEDDLE_OK);
    fill(it, 2);
    publish(it, "id-2");
    why.retriable = 0;
    publisher_node_ops.refused(w.node, &why, w.now);
    cr_assert_eq(result(&r), HEDDLE_ERR_DATA_DIR);
}

Test(node, abandoning_tells_what_it_waited_for)
{
    publish_result_t r;
    heddle_error_t error;
    item_t *it = publish_one("id-1");
    cr_assert_eq(abandon(&r, &error), HEDDLE_ERR_UNAVAILABLE);
    cr_assert_str_eq(error.phase, "commit");
    join();
    cr_assert_null(sent(MSG_PUBLISH), "given up");
    publish_again(it, 1, "id-1");
    cr_assert_eq(abandon(&r, &error), HEDDLE_ERR_DEADLINE);
    published_as(3, "");
    cr_assert_not_null(report(3), "recorded after all");
    cr_assert_eq(fetch(3, it->sealed.content_bytes), TR_ARRIVED, "no other process has its bytes");
    publish_again(it, 1, "id-1");
    published_as(3, "replayed");
    cr_assert_eq(abandon(&r, &error), HEDDLE_OK, "just in time");
    cr_assert_eq(r.version, 3);
}

/* A random id is not known to the caller, which therefore cannot repeat the request under it. */
Test(joined, what_is_given_up_says_how_to_repeat_it)
{
    publish_result_t r;
    heddle_error_t error;
    publish_one("id-1");
    cr_assert_eq(abandon(&r, &error), HEDDLE_ERR_DEADLINE);
    cr_assert_str_eq(error.hint, "publish again under the same request id: it becomes one version at most");
    publish_one(NULL);
    cr_assert_eq(abandon(&r, &error), HEDDLE_ERR_DEADLINE);
    cr_assert_null(strstr(error.hint, "the same"), "%s", error.hint);
    cr_assert_not_null(strstr(error.hint, "`heddle versions policy` shows"), "%s", error.hint);
    cr_assert_not_null(strstr(error.hint, "opts.request_id"), "%s", error.hint);
}

Test(joined, what_was_denied_says_first_what_lets_it_in_again)
{
    publish_result_t r;
    heddle_error_t error, why;
    error_fail(&why, HEDDLE_ERR_DENIED, "the key K is not admitted any more");
    error_hint(&why, "`heddle keys add 'K' --role ...` admits it again");
    why.retriable = 1; /* it may be added at any time */
    publish_one("id-1");
    line(false);
    publisher_node_ops.refused(w.node, &why, w.now);
    cr_assert_eq(abandon(&r, &error), HEDDLE_ERR_DENIED);
    cr_assert_str_eq(error.hint, "`heddle keys add 'K' --role ...` admits it again; then publish again under "
                                 "the same request id");
    publish_one(NULL);
    publisher_node_ops.refused(w.node, &why, w.now);
    cr_assert_eq(abandon(&r, &error), HEDDLE_ERR_DENIED);
    cr_assert_str_eq(error.hint, "`heddle keys add 'K' --role ...` admits it again; then `heddle versions "
                                 "policy` shows whether it was recorded");
}

static void settles(uint64_t retry_ms)
{
    msg_t m = {.type = MSG_ERROR,
               .error = {.of = MSG_PUBLISH,
                         .req = sent(MSG_PUBLISH)->publish.req,
                         .code = "unavailable",
                         .message = "the broker has just started",
                         .retriable = true,
                         .retry_ms = retry_ms}};
    say(&m);
    w.now += retry_ms * 1000;
}

Test(joined, what_is_put_off_takes_its_time_from_the_deadline)
{
    publish_result_t r;
    heddle_error_t error;
    publish_one("id-1");
    settles(1000);
    cr_assert_eq(result(&r), HEDDLE_ERR_AGAIN);
    forget_sent();
    tick();
    const msg_publish_t *p = &sent(MSG_PUBLISH)->publish;
    cr_assert_eq(p->deadline_ms, 59000);
    cr_assert_eq(p->asked_ms, 60000);
    settles(60000);
    cr_assert_eq(abandon(&r, &error), HEDDLE_ERR_DEADLINE);
    cr_assert_not_null(strstr(error.message, "the broker has just started"), "%s", error.message);
}

/* The time at which it would be sent again comes while there is no session to send it in. */
Test(joined, what_is_put_off_wakes_no_loop_that_cannot_send_it)
{
    publish_one("id-1");
    settles(100);
    leave();
    cr_assert_gt(tick(), w.now);
}

/* The broker said that it has not recorded it: no region waits for its word. */
Test(joined, what_is_put_off_and_given_up_holds_no_region)
{
    publish_result_t r;
    heddle_error_t error;
    for (int i = 0; i < PUBLICATIONS_WANTED; i++) {
        publish_one("id-1");
        settles(1000);
        cr_assert_eq(abandon(&r, &error), HEDDLE_ERR_DEADLINE);
        forget_sent();
    }
    cr_assert_eq(take(make(3000)), HEDDLE_OK);
}
