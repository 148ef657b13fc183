/* SPDX-License-Identifier: Apache-2.0 */
/* The rollout's table, cell by cell, through the messages that the broker gets and sends. */
#include "broker_rig.h"
#include "formats/manifest.h"

TestSuite(rollout, .init = rig_start, .fini = rig_stop);

/* ---- the steady path ---- */

Test(rollout, announce_goes_to_every_ready_subscriber)
{
    msg_subscription_t other = {.adapter = "critic"};
    rig_hello(W4, ROLE_WORKER);
    rig_join_with(W4, "w4", &other, 1, NULL, 0);
    publish_to(2, (rig_publish_t){.step = 7, .deadline_ms = 9000});
    const msg_announce_t *a = &rig_last(W1, MSG_ANNOUNCE)->announce;
    cr_assert_eq(a->token, R.tokens[W1]);
    cr_assert_eq(a->version, 1);
    cr_assert_eq(a->deadline_ms, 9000);
    cr_assert_eq(a->step, 7);
    cr_assert_eq(a->data_bytes, 5000);
    cr_assert_eq(a->part_count, 1);
    cr_assert_eq(a->parts[0].payload_bytes, 8192);
    cr_assert_eq(a->source_count, 1);
    cr_assert_eq(a->sources[0].kind, SOURCE_PUBLISHER);
    cr_assert_eq(a->sources[0].token, R.tokens[T]);
    cr_assert_eq(a->sources[0].address.bytes, 3);
    cr_assert(!memcmp(&a->key, &rig_last(T, MSG_PUBLISHED)->published.key, sizeof a->key));
    cr_assert(rig_has(W2, MSG_ANNOUNCE) && !rig_has(W4, MSG_ANNOUNCE));
    cr_assert_str_eq(rig_copy_state(1, "w1"), "announced");
    cr_assert_str_eq(rig_state(1), "staging");
}

Test(rollout, all_waits_for_all_then_commits_then_releases)
{
    publish_to(3, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_staged(W2, 1, 1);
    cr_assert_eq(rig_count(MSG_COMMIT), 0);
    cr_assert_eq(rig_count(MSG_RELEASE), 0);
    cr_assert_eq(rig_adapter()->decision, 0);
    rig_staged(W3, 1, 1);
    cr_assert_eq(rig_adapter()->decision, 1);
    cr_assert_eq(rig_adapter()->active, 1);
    cr_assert_eq(rig_count(MSG_COMMIT), 3);
    const msg_commit_t *c = &rig_last(W2, MSG_COMMIT)->commit;
    cr_assert(c->decision == 1 && c->version == 1 && c->token == R.tokens[W2] &&
              digest_equal(&c->digest, &rig_version(1)->digest));
    cr_assert_eq(rig_last(T, MSG_RELEASE)->release.version, 1);
    cr_assert_str_eq(rig_copy_state(1, "w1"), "committed");
    rig_active(W1, 1, 1, 1);
    cr_assert_str_eq(rig_copy_state(1, "w1"), "active");
    cr_assert_eq(member_sub(membership_worker(&R.b->members, "w1"), "policy")->serving.decision, 1);
    rig_active(W2, 1, 1, 1);
    rig_active(W3, 1, 1, 1);
    const msg_rollout_t *r = told();
    cr_assert_str_eq(r->state, "active");
    cr_assert(r->eligible_count == 3 && r->staged_count == 3 && r->active_count == 3 &&
              r->missing_count == 0 && r->decision == 1);
    cr_assert_eq(rig_event_count(EVENT_VERSION_STAGED), 1);
    cr_assert_eq(rig_event_count(EVENT_VERSION_ACTIVATED), 1);
    cr_assert_eq(rig_event_count(EVENT_VERSION_RELEASED), 1);
    cr_assert_eq(rig_event_count(EVENT_STAGE_DONE), 3);
    cr_assert_eq(rig_event_count(EVENT_ACTIVATE_DONE), 3);
}

Test(rollout, messages_of_a_version_do_not_grow_faster_than_four_a_worker)
{
    for (int n = 1; n <= 4; n++) {
        rig_stop();
        rig_start();
        publish_to(n, (rig_publish_t){0});
        roll_out(n, 1, 1, 1);
        uint64_t path = R.sent[MSG_ANNOUNCE] + R.sent[MSG_COMMIT] + R.sent[MSG_PUBLISHED] +
                        R.sent[MSG_RELEASE] + R.b->received[MSG_STAGED] + R.b->received[MSG_ACTIVE] +
                        R.b->received[MSG_PUBLISH];
        cr_assert_eq(path, 4u * (unsigned)n + 3, "%d workers: %llu", n, (unsigned long long)path);
        cr_assert_leq(R.sent[MSG_ROLLOUT], 4, "%llu", (unsigned long long)R.sent[MSG_ROLLOUT]);
        cr_assert_eq(R.sent[MSG_ABORT] + R.sent[MSG_RETIRE] + R.sent[MSG_SOURCES] + R.sent[MSG_ERROR], 0);
    }
}

static void beat_with_bytes(uint64_t peer, uint64_t bytes)
{
    msg_progress_t p = {.adapter = "policy", .fetching = 1, .bytes_done = bytes, .data_bytes = 8192};
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(peer, &m);
}

static bool tells_bytes(uint64_t done, uint64_t all)
{
    const msg_rollout_t *r = told();
    return r->bytes_done == done && r->data_bytes == all;
}

/* Of a region of 8,192 bytes, whoever they came from. */
Test(rollout, the_publisher_hears_how_many_bytes_the_workers_have)
{
    publish_to(3, (rig_publish_t){0});
    rig_pass(300);
    beat_with_bytes(W1, 4096);
    beat_with_bytes(W2, 100);
    cr_assert(tells_bytes(4196, 3 * 8192));
    beat_with_bytes(W1, 6000);
    cr_assert(tells_bytes(4196, 3 * 8192), "not for each heartbeat");
    rig_pass(300);
    beat_with_bytes(W2, 8192);
    cr_assert(tells_bytes(6000 + 8192, 3 * 8192));
    rig_staged(W1, 1, 1);
    cr_assert(tells_bytes(8192 + 8192, 3 * 8192), "one that holds it has all, with the padding");
    rig_leave(W2);
    cr_assert(tells_bytes(8192, 2 * 8192));
    rig_staged(W3, 1, 1);
    cr_assert(tells_bytes(2 * 8192, 2 * 8192));
    rig_worker(W4, "w4");
    rig_pass(300);
    beat_with_bytes(W4, 4096);
    cr_assert(tells_bytes(2 * 8192, 2 * 8192), "no rollout waits for one that joined late");
}

Test(rollout, as_ready_commits_with_the_first)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_staged(W2, 1, 1);
    cr_assert_eq(rig_adapter()->decision, 1);
    cr_assert(rig_has(W2, MSG_COMMIT));
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.decision, 1, "so that it finishes what it fetches");
    cr_assert(!rig_has(T, MSG_RELEASE), "w1 is still under way");
    rig_drop_letters();
    rig_staged(W1, 1, 1);
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.decision, 1, "and again when it has staged");
    cr_assert(rig_has(T, MSG_RELEASE));
}

Test(rollout, manual_never_commits_by_itself)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL, .deadline_ms = 5000});
    rig_staged(W1, 1, 1);
    cr_assert_str_eq(rig_state(1), "staging");
    rig_staged(W2, 1, 1);
    cr_assert_str_eq(rig_state(1), "staged");
    rig_pass(20000);
    cr_assert_str_eq(rig_state(1), "staged", "its deadline was for staging");
    cr_assert_eq(rig_adapter()->decision, 0);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1, .by = "ann"});
    cr_assert_eq(rig_adapter()->active, 1);
    cr_assert_eq(rig_count(MSG_COMMIT), 2);
}

Test(rollout, manual_with_one_missing_stays_staged_past_its_deadline)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL, .deadline_ms = 5000});
    rig_staged(W1, 1, 1);
    rig_pass(6000);
    cr_assert_str_eq(rig_state(1), "staged");
    const msg_rollout_t *r = told();
    cr_assert_eq(r->missing_count, 1);
    cr_assert_str_eq(r->missing[0].worker, "w2");
    cr_assert_str_eq(r->missing[0].code, "deadline");
    cr_assert_str_eq(r->missing[0].phase, "announce");
}

/* ---- who counts ---- */

Test(rollout, joiners_never_block_a_rollout)
{
    publish_to(1, (rig_publish_t){0});
    rig_worker(W2, "w2");
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.deadline_ms, 0, "late, without a deadline");
    rig_staged(W1, 1, 1);
    cr_assert_eq(rig_adapter()->decision, 1);
    rig_staged(W2, 1, 1);
    cr_assert(rig_has(W2, MSG_COMMIT));
}

Test(rollout, with_nobody_the_first_holder_decides)
{
    publish_to(0, (rig_publish_t){0});
    cr_assert_str_eq(rig_state(1), "staging");
    rig_worker(W1, "w1");
    rig_staged(W1, 1, 1);
    cr_assert_eq(rig_adapter()->decision, 1);
    const msg_rollout_t *r = told();
    cr_assert_eq(r->eligible_count, 0);
    cr_assert_eq(r->staged_count, 1);
}

Test(rollout, without_a_worker_at_the_publication_those_that_join_are_enough_to_fail_it)
{
    publish_to(0, (rig_publish_t){0});
    rig_worker(W1, "w1");
    rig_worker(W2, "w2");
    rig_nack(W1, 1, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(1), "staging", "w2 may still take it");
    rig_nack(W2, 1, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_VERSION_FAILED);
    cr_assert_str_eq(rig_version(1)->worker, "w1");
    cr_assert_not_null(strstr(rig_version(1)->message, "exit status 3"), "%s", rig_version(1)->message);
    cr_assert_str_eq(told()->code, "version_failed");
}

Test(rollout, a_joiner_that_refuses_fails_nothing_that_another_holds)
{
    publish_to(0, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    rig_worker(W1, "w1");
    rig_worker(W2, "w2");
    rig_staged(W1, 1, 1);
    rig_nack(W2, 1, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(1), "staged");
}

Test(rollout, the_deadline_names_joiners_that_refused)
{
    publish_to(0, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY, .deadline_ms = 5000});
    rig_worker(W1, "w1");
    rig_nack(W1, 1, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(1), "staging", "another worker may be enough");
    rig_pass(5100);
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_DEADLINE);
    cr_assert_not_null(strstr(rig_version(1)->message, "missing: w1 in phase stage"), "%s",
                       rig_version(1)->message);
}

Test(rollout, one_that_dies_leaves_the_count_and_is_named)
{
    publish_to(3, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_staged(W2, 1, 1);
    msg_progress_t p = {.adapter = "policy", .fetching = 1, .bytes_done = 2000, .data_bytes = 5000};
    msg_t hb = {.type = MSG_HEARTBEAT};
    hb.heartbeat = (msg_heartbeat_t){.token = R.tokens[W3], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(W3, &hb);
    cr_assert_str_eq(rig_copy_state(1, "w3"), "fetching");
    R.is_quiet[W3] = true;
    rig_pass(3500);
    cr_assert_eq(rig_adapter()->decision, 0);
    rig_pass(1000);
    cr_assert_eq(rig_adapter()->decision, 1, "its lease ended");
    rig_active(W1, 1, 1, 1);
    rig_active(W2, 1, 1, 1);
    const msg_rollout_t *r = told();
    cr_assert(r->eligible_count == 2 && r->active_count == 2);
    cr_assert_eq(r->missing_count, 1);
    cr_assert_str_eq(r->missing[0].worker, "w3");
    cr_assert_str_eq(r->missing[0].phase, "fetch");
    cr_assert_str_eq(r->missing[0].code, "unavailable");
    cr_assert_not_null(strstr(r->missing[0].message, "lost"));
    cr_assert_not_null(strstr(r->missing[0].message, "ms"));
}

Test(rollout, one_that_leaves_leaves_the_count)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_leave(W2);
    cr_assert_eq(rig_adapter()->decision, 1);
    R.tokens[W2] = 0;
    rig_active(W1, 1, 1, 1);
    const msg_rollout_t *r = told();
    cr_assert_eq(r->missing_count, 1);
    cr_assert_str_eq(r->missing[0].worker, "w2");
    cr_assert_not_null(strstr(r->missing[0].message, "left"), "%s", r->missing[0].message);
}

Test(rollout, a_new_session_of_the_same_process_is_waited_for_on)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_worker(W2, "w2"); /* the same life over a new connection would be the same */
    cr_assert_eq(rig_adapter()->decision, 0);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.token, R.tokens[W2],
                 "announced anew, under the new token");
    rig_staged(W2, 1, 1);
    cr_assert_eq(rig_adapter()->decision, 1);
}

Test(rollout, a_new_process_under_the_name_is_a_joiner)
{
    publish_to(2, (rig_publish_t){0});
    R.is_gone[W2] = true;
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello_as(W3, ROLE_WORKER, 99);
    rig_join_with(W3, "w2", &sub, 1, NULL, 0);
    cr_assert_neq(R.tokens[W3], 0);
    rig_staged(W1, 1, 1);
    cr_assert_eq(rig_adapter()->decision, 1);
}

/* ---- failures before the commit ---- */

Test(rollout, a_reject_fails_the_version_before_anybody_switched)
{
    publish_to(3, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_nack(W2, 1, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_VERSION_FAILED);
    cr_assert_str_eq(rig_version(1)->worker, "w2");
    cr_assert_str_eq(rig_version(1)->phase, "stage");
    cr_assert_not_null(strstr(rig_version(1)->message, "exit status 3"), "%s", rig_version(1)->message);
    cr_assert_eq(rig_count(MSG_ABORT), 3);
    cr_assert_eq(rig_count(MSG_COMMIT), 0);
    cr_assert(rig_has(T, MSG_RELEASE), "an ended version needs no region");
    const msg_rollout_t *r = told();
    cr_assert_str_eq(r->state, "failed");
    cr_assert_str_eq(r->code, "version_failed");
    cr_assert_eq(r->staged_count, 1);
    cr_assert_eq(r->missing_count, 2);
    cr_assert_eq(rig_event_count(EVENT_STAGE_FAILED), 1);
    cr_assert_eq(rig_event_count(EVENT_VERSION_FAILED), 1);
    rig_staged(W3, 1, 1);
    cr_assert_eq(rig_count(MSG_ABORT), 4, "who comes late hears it again");
    cr_assert_eq(rig_adapter()->decision, 0);
}

Test(rollout, a_reject_under_as_ready_is_only_that_worker)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_nack(W1, 1, 0, "fetch", "no_slot");
    cr_assert_str_eq(rig_state(1), "staging");
    cr_assert_str_eq(rig_copy_state(1, "w1"), "failed");
    rig_staged(W2, 1, 1);
    cr_assert_eq(rig_adapter()->decision, 1);
    const msg_rollout_t *r = told();
    cr_assert_eq(r->missing_count, 2);
    cr_assert_str_eq(r->missing[0].code, "no_slot");
}

Test(rollout, a_wrong_digest_is_a_failure_and_is_answered)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 77);
    const msg_error_t *e = rig_error(W1, "digest_mismatch");
    cr_assert_eq(e->of, MSG_STAGED);
    cr_assert_eq(e->version, 1);
    cr_assert(e->expected[0] && e->found[0] && strcmp(e->expected, e->found));
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_DIGEST_MISMATCH);
}

/* Under as-ready the version goes on.  The fetch has ended, as after NACK: what it put off begins again. */
Test(rollout, after_a_wrong_digest_what_was_put_off_is_announced_again)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    rig_staged(W2, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2, .activation = HEDDLE_ACTIVATION_AS_READY});
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.version, 2);
    rig_drop_letters();
    rig_staged(W1, 2, 77);
    rig_error(W1, "digest_mismatch");
    cr_assert(rig_has(W1, MSG_ANNOUNCE));
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.version, 1);
}

Test(rollout, the_deadline_names_who_was_where)
{
    publish_to(3, (rig_publish_t){.deadline_ms = 5000});
    rig_staged(W1, 1, 1);
    rig_pass(4900);
    cr_assert_str_eq(rig_state(1), "staging");
    rig_pass(200);
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_DEADLINE);
    cr_assert_not_null(strstr(rig_version(1)->message, "1 of 3 workers"), "%s", rig_version(1)->message);
    cr_assert_not_null(strstr(rig_version(1)->message, "w2 in phase announce, w3 in phase announce"));
    const msg_rollout_t *r = told();
    cr_assert_str_eq(r->code, "deadline");
    cr_assert_eq(r->missing_count, 2);
    cr_assert_str_eq(r->missing[1].worker, "w3");
}

Test(rollout, many_missing_ones_are_counted)
{
    for (int i = 0; i < 6; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        rig_worker((uint64_t)(20 + i), name);
    }
    publish_to(0, (rig_publish_t){.deadline_ms = 5000});
    rig_pass(5100);
    cr_assert_not_null(strstr(rig_version(1)->message, "and 3 others"), "%s", rig_version(1)->message);
}

Test(rollout, no_workers_is_said_when_there_was_nobody)
{
    publish_to(0, (rig_publish_t){.deadline_ms = 5000});
    rig_pass(5100);
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_NO_WORKERS);
    cr_assert_str_eq(told()->code, "no_workers");
}

static void publisher_falls_silent(void)
{
    R.is_quiet[T] = true;
    rig_pass(4500); /* its lease ends */
    R.is_quiet[T] = false;
    R.tokens[T] = 0;
}

Test(rollout, a_version_without_a_source_for_a_lease_is_lost)
{
    publish_to(1, (rig_publish_t){0});
    publisher_falls_silent();
    rig_pass(3000);
    cr_assert_str_eq(rig_state(1), "staging");
    rig_pass(1500);
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_VERSION_LOST);
    cr_assert(rig_has(W1, MSG_ABORT));
}

Test(rollout, a_version_whose_publisher_said_goodbye_is_lost_at_once)
{
    publish_to(1, (rig_publish_t){0});
    rig_leave(T);
    R.tokens[T] = 0;
    rig_pass(50);
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_VERSION_LOST);
}

Test(rollout, a_publisher_that_comes_back_in_time_saves_it)
{
    publish_to(1, (rig_publish_t){0});
    publisher_falls_silent();
    rig_pass(3000);
    rig_open(T, "policy", "trainer", 1, false);
    const msg_welcome_t *w = &rig_last(T, MSG_WELCOME)->welcome;
    cr_assert_eq(w->keep_count, 1);
    cr_assert_eq(w->keep[0].version, 1);
    cr_assert_eq(w->content_bytes, manifest_offset(rig_version(1)->parts.part[0].payload_bytes) +
                                       rig_version(1)->parts.part[0].manifest_bytes);
    rig_pass(5000);
    cr_assert_str_eq(rig_state(1), "staging");
    rig_staged(W1, 1, 1);
    cr_assert_eq(rig_adapter()->decision, 1);
    cr_assert_str_eq(told()->state, "active", "the new session hears of it");
}

/* Those that overtook it have ended long before it fails: it is the oldest of those whose end is kept. */
Test(rollout, a_version_that_ends_behind_many_newer_ones_gives_its_region_back)
{
    publish_to(2, (rig_publish_t){0});
    for (uint64_t v = 2; v <= ROLLOUT_ENDED_TRACKS + 4; v++) rig_publish(T, (rig_publish_t){.digest = v});
    rig_nack(W1, 1, 0, "announce", "no_slot");
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_last(T, MSG_RELEASE)->release.version, 1);
    cr_assert_eq(R.sent[MSG_RELEASE], ROLLOUT_ENDED_TRACKS + 3);
    rig_pass(1000);
    for (uint64_t d = 20; d <= 22; d++) rig_publish(T, (rig_publish_t){.digest = d});
    cr_assert_null(track_find(&R.b->rollout, "policy", 1), "and is forgotten then");
}

Test(rollout, of_many_versions_few_are_tracked)
{
    publish_to(2, (rig_publish_t){0});
    for (uint64_t v = 1; v <= 100; v++) {
        if (v > 1) rig_publish(T, (rig_publish_t){.digest = v});
        roll_out(2, v, v, v);
        cr_assert_leq(rig_track_count(), ROLLOUT_ENDED_TRACKS + 3);
    }
}

/* When the disk takes records again every track is looked at and told, those that have ended before they
 * go: but they go. */
Test(rollout, few_are_tracked_after_a_disk_that_was_full)
{
    publish_to(2, (rig_publish_t){0});
    for (uint64_t v = 1; v <= 20; v++) {
        if (v > 1) rig_publish(T, (rig_publish_t){.digest = v});
        roll_out(2, v, v, v);
    }
    rig_publish(T, (rig_publish_t){.digest = 21});
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    for (int i = 0; i < 2; i++) rig_staged((uint64_t)(W1 + i), 21, 21);
    cr_assert_eq(rig_adapter()->active, 20);
    R.commit_error = 0;
    rig_pass(2000);
    cr_assert_eq(rig_adapter()->active, 21);
    for (int i = 0; i < 2; i++) rig_active((uint64_t)(W1 + i), 21, 21, 21);
    cr_assert_eq(rig_track_count(), ROLLOUT_ENDED_TRACKS + 2, "active, kept, and those that ended");
}

/* Its publisher shares what it has a key for, and would wait for a RELEASE. */
Test(rollout, who_asks_again_for_what_has_ended_is_given_no_key)
{
    static const key16_t NONE;
    publish_to(2, (rig_publish_t){.request_id = "again"});
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "again"});
    cr_assert_str_eq(rig_last(T, MSG_PUBLISHED)->published.reason, "replayed");
    cr_assert(memcmp(&rig_last(T, MSG_PUBLISHED)->published.key, &NONE, sizeof NONE), "it is on its way");
    rig_nack(W1, 1, 0, "stage", "version_failed");
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "again"});
    const msg_published_t *m = &rig_last(T, MSG_PUBLISHED)->published;
    cr_assert(!strcmp(m->reason, "replayed") && m->version == 1 && !m->created);
    cr_assert(!memcmp(&m->key, &NONE, sizeof NONE));
}

Test(rollout, a_newer_version_waits_for_one_that_is_on_its_way)
{
    publish_to(2, (rig_publish_t){0});
    for (uint64_t v = 2; v <= 4; v++) rig_publish(T, (rig_publish_t){.digest = v});
    cr_assert_str_eq(rig_state(1), "staging");
    cr_assert_str_eq(rig_state(2), "superseded");
    cr_assert_str_eq(rig_state(3), "superseded");
    cr_assert_str_eq(rig_state(4), "staging");
    cr_assert(rig_last(T, MSG_RELEASE)->release.version == 3, "its region is needed no more");
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.version, 1);
    cr_assert(!rig_has(W1, MSG_ABORT) && !rig_copy_state(2, "w1")[0]);
    rig_staged(W1, 1, 1);
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.version, 1, "w2 is on its way still");
    rig_staged(W2, 1, 1);
    cr_assert_eq(rig_adapter()->active, 1);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(rig_last((uint64_t)(W1 + i), MSG_COMMIT)->commit.version, 1);
        cr_assert_eq(rig_last((uint64_t)(W1 + i), MSG_ANNOUNCE)->announce.version, 4);
    }
    roll_out(2, 4, 2, 4);
    cr_assert_eq(rig_adapter()->active, 4);
    cr_assert_str_eq(told()->state, "active");
    cr_assert_eq(rig_event_count(EVENT_VERSION_SUPERSEDED), 2);
}

/* What fails makes way too, and what waits has its own deadline. */
Test(rollout, who_waits_comes_when_the_other_failed)
{
    publish_to(2, (rig_publish_t){.deadline_ms = 3000});
    rig_publish(T, (rig_publish_t){.digest = 2, .deadline_ms = 5000});
    rig_publish(T, (rig_publish_t){.digest = 3, .deadline_ms = 9000});
    rig_pass(3100);
    cr_assert_str_eq(rig_state(1), "failed");
    const msg_announce_t *a = &rig_last(W2, MSG_ANNOUNCE)->announce;
    cr_assert_eq(a->version, 3);
    cr_assert_leq(a->deadline_ms, 6000, "counted from its publication");
    rig_publish(T, (rig_publish_t){.digest = 4, .deadline_ms = 1000});
    rig_pass(1100);
    cr_assert_str_eq(rig_state(4), "failed");
    cr_assert_eq(rig_version(4)->code, HEDDLE_ERR_DEADLINE);
    cr_assert_not_null(strstr(rig_version(4)->message, "waited for policy@3"));
    cr_assert_str_eq(rig_state(3), "staging");
    rig_publish(T, (rig_publish_t){.digest = 5});
    rig_nack(W1, 3, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(3), "failed");
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.version, 5);
}

static void expect_overtaken(const char *why)
{
    rig_publish(T, (rig_publish_t){.digest = 2});
    cr_assert_str_eq(rig_state(1), "superseded", "%s", why);
    cr_assert_eq(rig_event_count(EVENT_VERSION_SUPERSEDED), 1, "%s", why);
}

Test(rollout, nobody_waits_for_what_nobody_fetches)
{
    publish_to(0, (rig_publish_t){0});
    expect_overtaken("there is no worker");
    rig_worker(W1, "w1");
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.version, 2);
}

Test(rollout, nobody_waits_for_what_somebody_has_to_activate)
{
    publish_to(1, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 1, 1);
    expect_overtaken("it is staged, and waits for a hand");
    cr_assert_eq(rig_last(W1, MSG_ABORT)->abort.version, 1);
    cr_assert_str_eq(rig_last(W1, MSG_ABORT)->abort.code, "superseded");
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.version, 2);
}

Test(rollout, nobody_waits_for_what_has_no_source)
{
    publish_to(1, (rig_publish_t){0});
    rig_open(5, "policy", "other", 0, true);
    rig_publish(5, (rig_publish_t){.digest = 2});
    cr_assert_str_eq(rig_state(1), "superseded");
    rig_staged(W1, 2, 2);
    cr_assert_eq(rig_adapter()->active, 2);
}

/* What waits is lost with its publisher, as what is on its way. */
Test(rollout, who_waits_needs_a_source)
{
    publish_to(1, (rig_publish_t){0});
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_leave(T);
    R.tokens[T] = 0;
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_str_eq(rig_state(2), "failed");
    cr_assert_eq(rig_version(2)->code, HEDDLE_ERR_VERSION_LOST);
}

Test(rollout, who_waits_waits_over_a_restart)
{
    publish_to(1, (rig_publish_t){0});
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_restart();
    rig_open(T, "policy", "trainer", 2, false);
    msg_subscription_t sub = {.adapter = "policy"};
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_STAGED, .digest = rig_digest(1)};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    cr_assert(!rig_has(W1, MSG_ANNOUNCE));
    rig_pass(LEASE_MS + 500);
    cr_assert_eq(rig_adapter()->active, 1);
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.version, 2);
    roll_out(1, 2, 2, 2);
    cr_assert_eq(rig_adapter()->active, 2);
}

/* ---- heartbeats tell how far a fetch is ---- */

static void progress(uint64_t peer, const char *adapter, uint64_t version, uint64_t done, uint64_t all)
{
    msg_progress_t p = {.adapter = adapter, .fetching = version, .bytes_done = done, .data_bytes = all};
    msg_t hb = {.type = MSG_HEARTBEAT};
    hb.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(peer, &hb);
}

Test(rollout, progress)
{
    publish_to(1, (rig_publish_t){0});
    const copy_row_t *c = copy_find(track_find(&R.b->rollout, "policy", 1), "w1");
    progress(W1, "policy", 1, 0, 0);
    cr_assert_eq(c->state, COPY_FETCHING);
    progress(W1, "policy", 1, 100, 5000);
    progress(W1, "policy", 1, 100, 5000);
    cr_assert_eq(c->bytes_done, 100);
    progress(W1, "policy", 9, 700, 5000);
    progress(W1, "critic", 1, 700, 5000);
    progress(W1, "policy", 0, 700, 5000);
    cr_assert_eq(c->bytes_done, 100, "of another version, another adapter, none");
    const msg_rollout_t *r = told();
    cr_assert_str_eq(r->missing[0].phase, "fetch");
    cr_assert_str_eq(r->missing[0].message, "100 of 5000 bytes fetched");
    progress(W1, "policy", 1, 5000, 5000);
    cr_assert_eq(c->state, COPY_ARRIVED);
    cr_assert_str_eq(told()->missing[0].phase, "stage");
    rig_staged(W1, 1, 1);
    progress(W1, "policy", 1, 10, 5000);
    cr_assert_eq(c->state, COPY_COMMITTED, "a late heartbeat takes nothing back");
}

Test(rollout, a_reject_without_words_has_some)
{
    publish_to(1, (rig_publish_t){0});
    msg_t m = {.type = MSG_NACK};
    m.nack = (msg_nack_t){.token = R.tokens[W1], .version = 1, .adapter = "policy", .code = "ok"};
    rig_frame(W1, &m);
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_INTERNAL, "ok is no reason");
    cr_assert_str_eq(rig_version(1)->phase, "stage");
    cr_assert_neq(rig_version(1)->message[0], 0);
}

/* A registry of an earlier release may have such a row. */
Test(rollout, a_stored_failure_without_a_code_has_one_in_abort)
{
    publish_to(1, (rig_publish_t){0});
    msg_t m = {.type = MSG_NACK};
    m.nack = (msg_nack_t){.token = R.tokens[W1], .version = 1, .adapter = "policy", .code = "no_space"};
    rig_frame(W1, &m);
    cr_assert_eq(rig_version(1)->state, VERSION_FAILED);
    version_row_t *row = (version_row_t *)rig_version(1);
    row->code = HEDDLE_OK;
    row->message[0] = 0;
    rig_drop_letters();
    rig_staged(W1, 1, 1);
    const msg_abort_t *abort = &rig_last(W1, MSG_ABORT)->abort;
    cr_assert_str_eq(abort->code, "version_failed");
    cr_assert_str_eq(abort->message, "the version ended");
}

/* ---- groups ---- */

/* A worker that comes with a new name of its group each time, as a scheduler may name them. */
Test(rollout, groups_that_are_gone_take_no_memory)
{
    msg_subscription_t sub = {.adapter = "policy"};
    publish_to(1, (rig_publish_t){0});
    const track_t *t = track_find(&R.b->rollout, "policy", 1);
    for (uint64_t session = 1; session <= 20; session++) {
        char group[16];
        snprintf(group, sizeof group, "job%llu", (unsigned long long)session);
        msg_t m = {.type = MSG_JOIN};
        m.join = (msg_join_t){.req = ++R.req,
                              .name = "w2",
                              .adapters = &sub,
                              .adapter_count = 1,
                              .group = group,
                              .rank = 1,
                              .ranks = 1024,
                              .backend = "ucx",
                              .ucx = "1.13.1",
                              .address = bytes_of("addr", 4),
                              .export_dir = ""};
        rig_hello(W2, ROLE_WORKER);
        rig_frame(W2, &m);
        rig_staged(W2, 1, 1);
        cr_assert_eq(tally_holders(&t->tally, false), 1, "session %llu", (unsigned long long)session);
        cr_assert_eq(t->group_count, 1, "session %llu: %zu", (unsigned long long)session, t->group_count);
        cr_assert_str_eq(t->groups[0]->name, group);
    }
    cr_assert_eq(t->tally.units, 0, "one rank of many");
    rig_leave(W2);
    cr_assert_eq(t->group_count, 0);
}
