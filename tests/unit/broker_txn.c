/* SPDX-License-Identifier: Apache-2.0 */
/* A store that confirms later, or never: nothing is said, applied or decided from before it has, and all that
 * needs no record goes on (broker/txn.h). */
#include "tests/unit/broker_rig.h"

TestSuite(txn, .init = rig_start, .fini = rig_stop);

enum { OTHER = 5, THIRD = 6 };

static void opened(int workers_count)
{
    workers(workers_count);
    rig_open(T, "policy", "trainer", 0, false);
    R.is_late = true;
    rig_drop_letters();
}

static void publish(uint64_t digest) { rig_publish(T, (rig_publish_t){.digest = digest}); }

/* ---- confirmed ---- */

Test(txn, nothing_is_said_or_applied_before_the_store_has_confirmed)
{
    opened(1);
    publish(1);
    cr_assert(rig_is_committing());
    cr_assert(!rig_has(T, MSG_PUBLISHED) && !rig_has(W1, MSG_ANNOUNCE));
    cr_assert_eq(rig_adapter()->version_count, 0);
    rig_pass(500);
    cr_assert(!rig_has(T, MSG_PUBLISHED) && !rig_has(W1, MSG_ANNOUNCE));
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_last(T, MSG_PUBLISHED)->published.version, 1);
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.version, 1);
}

Test(txn, what_the_store_refuses_later_did_not_happen)
{
    opened(1);
    publish(1);
    uint64_t req = R.req;
    rig_confirm(HEDDLE_ERR_NO_SPACE);
    const msg_error_t *e = rig_error(T, "no_space");
    cr_assert(e->req == req && e->of == MSG_PUBLISH);
    cr_assert(!rig_has(T, MSG_PUBLISHED) && !rig_has(W1, MSG_ANNOUNCE));
    cr_assert(rig_adapter()->version_count == 0 && R.b->state == BROKER_READ_ONLY);
    cr_assert_str_eq(R.b->read_only_why, "the store says no", "for `status`");
    cr_assert_eq(R.b->read_only_code, HEDDLE_ERR_NO_SPACE, "and for /readyz, which has the hint, too");
    cr_assert_str_eq(R.b->read_only_hint, "make room");
    cr_assert_eq(R.b->read_only_ms, R.now.wall_ms);
    publish(1);
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_last(T, MSG_PUBLISHED)->published.version, 1, "the number was not spent");
    cr_assert(R.b->state == BROKER_READY);
}

Test(txn, a_store_that_cannot_tell_ends_the_process)
{
    opened(1);
    publish(1);
    rig_confirm(HEDDLE_ERR_DATA_DIR);
    cr_assert_eq(R.fatals, 1);
    cr_assert_eq(R.letter_count, 0);
}

Test(txn, a_decision_is_said_when_it_is_confirmed)
{
    opened(1);
    publish(1);
    rig_confirm(HEDDLE_OK);
    rig_staged(W1, 1, 1);
    cr_assert(rig_is_committing() && !rig_has(W1, MSG_COMMIT));
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.decision, 1);
}

/* ---- what goes on ---- */

Test(txn, heartbeats_questions_and_joins_are_answered)
{
    opened(1);
    publish(1);
    rig_beat(W1);
    cr_assert(rig_has(W1, MSG_HEARTBEAT_OK));
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "status"});
    rig_query(ADMIN, (msg_query_t){.op = "versions", .name = "policy"});
    cr_assert_eq(rig_count(MSG_REPORT), 2);
    rig_worker(W2, "w2");
    rig_confirm(HEDDLE_OK);
    cr_assert(rig_has(W1, MSG_ANNOUNCE) && rig_has(W2, MSG_ANNOUNCE), "who came meanwhile counts");
}

Test(txn, leases_are_kept_however_long_the_store_takes)
{
    opened(2);
    publish(1);
    R.is_quiet[W2] = true;
    rig_pass(5 * LEASE_MS);
    cr_assert(member_is_ready(membership_worker(&R.b->members, "w1")));
    cr_assert_not_null(membership_publisher(&R.b->members, "policy"));
    cr_assert_eq(membership_worker(&R.b->members, "w2")->state, MEMBER_LOST, "the silent one lapses");
}

Test(txn, what_was_staged_meanwhile_is_decided_afterwards)
{
    opened(1);
    publish(1);
    rig_confirm(HEDDLE_OK);
    rig_open(OTHER, "another", "writer", 0, false);
    cr_assert(rig_is_committing());
    rig_staged(W1, 1, 1);
    cr_assert_str_eq(rig_copy_state(1, "w1"), "staged");
    rig_pass(100);
    rig_confirm(HEDDLE_OK);
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.decision, 1);
}

/* ---- what waits ---- */

Test(txn, two_publications_of_one_turn_are_two_versions_in_their_order)
{
    opened(1);
    publish(1);
    publish(2);
    cr_assert_eq(R.b->waiting_count, 1);
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_last(T, MSG_PUBLISHED)->published.version, 1);
    cr_assert(rig_is_committing(), "the second one");
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_last(T, MSG_PUBLISHED)->published.version, 2);
    digest_t second = rig_digest(2);
    cr_assert(digest_equal(&rig_version(2)->digest, &second));
}

Test(txn, a_request_said_again_meanwhile_is_the_same_version)
{
    opened(1);
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    rig_confirm(HEDDLE_OK);
    cr_assert_str_eq(rig_last(T, MSG_PUBLISHED)->published.reason, "replayed");
    cr_assert(rig_last(T, MSG_PUBLISHED)->published.version == 1 && !rig_is_committing());
}

Test(txn, an_open_that_is_said_again_is_answered_once_under_its_latest_number)
{
    R.is_late = true;
    rig_open(T, "policy", "trainer", 0, false);
    rig_open(T, "policy", "trainer", 0, false);
    cr_assert_eq(R.b->waiting_count, 0);
    rig_confirm(HEDDLE_OK);
    cr_assert(rig_count(MSG_WELCOME) == 1 && rig_last(T, MSG_WELCOME)->welcome.req == R.req);
    cr_assert(!rig_is_committing() && rig_adapter()->writer.token == R.tokens[T]);
}

Test(txn, an_activation_waits_and_is_decided_on_what_was_recorded)
{
    publish_to(1, (rig_publish_t){.digest = 1, .activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 1, 1);
    rig_hello(ADMIN, ROLE_ADMIN);
    R.is_late = true;
    rig_open(OTHER, "another", "writer", 0, false);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1, .min = 1});
    cr_assert(R.b->pending.count == 1 && !rig_has(W1, MSG_COMMIT));
    rig_confirm(HEDDLE_OK);
    cr_assert(rig_is_committing() && !rig_has(W1, MSG_COMMIT));
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.version, 1);
    rig_active(W1, 1, 1, 1);
    cr_assert(rig_has(ADMIN, MSG_REPORT));
}

Test(txn, a_refused_activation_is_answered)
{
    publish_to(1, (rig_publish_t){.digest = 1, .activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 1, 1);
    rig_hello(ADMIN, ROLE_ADMIN);
    R.is_late = true;
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1, .min = 1});
    rig_confirm(HEDDLE_ERR_NO_SPACE);
    rig_error(ADMIN, "no_space");
    cr_assert(R.b->pending.count == 0 && rig_adapter()->decision == 0);
}

static void join_with_numbers(uint64_t peer, const char *name, uint64_t version)
{
    msg_subscription_t sub = {.adapter = "policy", .version = version, .decision = version};
    rig_hello(peer, ROLE_WORKER);
    rig_join_with(peer, name, &sub, 1, NULL, 0);
}

Test(txn, a_join_with_greater_numbers_waits_and_is_handled_when_they_are_recorded)
{
    opened(1);
    publish(1);
    join_with_numbers(W2, "w2", 7);
    cr_assert(R.tokens[W2] == 0 && R.b->waiting_count == 1);
    rig_confirm(HEDDLE_OK);
    cr_assert(R.tokens[W2] == 0 && rig_is_committing(), "its numbers");
    rig_confirm(HEDDLE_OK);
    cr_assert_neq(R.tokens[W2], 0);
    cr_assert_eq(rig_adapter()->last_version, 7);
}

Test(txn, requests_that_wait_are_bounded)
{
    opened(1);
    for (uint32_t i = 0; i <= TXN_REQUESTS + 1; i++) publish(i + 1);
    cr_assert_eq(R.b->waiting_count, TXN_REQUESTS);
    const msg_error_t *e = rig_error(T, "unavailable");
    cr_assert(e->retriable && e->retry_ms && e->req == R.req);
}

/* ---- a store that never confirms ---- */

static const brokers_t *refused_list(void *self)
{
    static const heddle_error_t WHY = {.code = HEDDLE_ERR_NO_SPACE,
                                       .message = "etcd has no room",
                                       .hint = "raise its quota"};
    static const brokers_t LIST = {.is_answered = true, .refusal = &WHY};
    (void)self;
    return &LIST;
}

Test(txn, a_deadline_has_the_reason_why_an_etcd_confirms_nothing)
{
    opened(1);
    R.b->io.brokers = refused_list;
    rig_publish(T, (rig_publish_t){.digest = 1, .deadline_ms = 1000});
    rig_publish(T, (rig_publish_t){.digest = 2, .deadline_ms = 2000});
    rig_pass(1100);
    const char *said = rig_error(T, "deadline")->message;
    cr_assert(strstr(said, "has not confirmed") && strstr(said, "ms: etcd has no room"), "%s", said);
    rig_pass(1000);
    said = rig_error(T, "deadline")->message;
    cr_assert(strstr(said, "was not started") && strstr(said, "store: etcd has no room"), "%s", said);
}

/* It repeats its request, so that a deadline of its own never comes. */
Test(txn, a_publisher_that_opens_has_the_reason_at_once)
{
    opened(1);
    publish(1);
    rig_open(OTHER, "another", "writer", 0, false);
    rig_pass(1);
    cr_assert(!rig_has(OTHER, MSG_ERROR) && R.b->waiting_count == 1, "there is none yet");
    R.b->io.brokers = refused_list;
    cr_assert_eq(broker_flush(R.b, R.now), 0, "at the next tick");
    rig_pass(1);
    const msg_error_t *e = rig_error(OTHER, "no_space");
    cr_assert(e->of == MSG_OPEN && e->retriable && e->retry_ms);
    cr_assert(strstr(e->message, "OPEN was not started") && strstr(e->message, "store: etcd has no room"),
              "%s", e->message);
    cr_assert_str_eq(e->hint, "raise its quota");
    cr_assert(R.b->waiting_count == 0 && !rig_has(T, MSG_ERROR), "a publication has its deadline");
}

/* The WELCOME would be none to it: it has ended, or opens anew. */
Test(txn, an_open_that_got_the_reason_begins_no_session)
{
    opened(1);
    size_t begun = rig_event_count(EVENT_WRITER_OPENED);
    R.b->io.brokers = refused_list;
    for (size_t asked = 1; asked <= 2; asked++) {
        rig_open(OTHER, "another", "writer", 0, false);
        cr_assert(rig_is_committing() && R.b->waiting_count == 0);
        rig_pass(1);
        const msg_error_t *e = rig_error(OTHER, "no_space");
        cr_assert(strstr(e->message, "has not confirmed this OPEN: etcd has no room"), "%s", e->message);
        cr_assert_eq(rig_count(MSG_ERROR), asked, "each time that it asks");
    }
    R.b->io.brokers = NULL;
    rig_confirm(HEDDLE_OK);
    cr_assert(!rig_has(OTHER, MSG_WELCOME) && rig_event_count(EVENT_WRITER_OPENED) == begun);
    rig_confirm(HEDDLE_OK); /* its record is closed */
    rig_open(OTHER, "another", "writer", 0, false);
    rig_confirm(HEDDLE_OK);
    cr_assert(rig_has(OTHER, MSG_WELCOME));
    cr_assert_eq(rig_event_count(EVENT_WRITER_OPENED), begun + 1);
}

Test(txn, an_open_that_got_the_reason_is_not_handled_again)
{
    opened(1);
    rig_hello(OTHER, ROLE_PUBLISHER);
    msg_t m = {.type = MSG_OPEN};
    m.open = (msg_open_t){.req = ++R.req,
                          .adapter = "another",
                          .writer = "writer",
                          .epoch = R.b->registry.epoch + 3,
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("pub", 3)};
    R.b->io.brokers = refused_list;
    rig_frame(OTHER, &m);
    cr_assert(rig_is_committing(), "the epoch, before its writer");
    rig_pass(1);
    rig_error(OTHER, "no_space");
    rig_confirm(HEDDLE_OK);
    cr_assert(!rig_is_committing() && !rig_has(OTHER, MSG_WELCOME));
}

Test(txn, the_versions_of_a_publisher_that_got_the_reason_wait_a_lease_for_it)
{
    rig_open(OTHER, "another", "writer", 0, false);
    publish_to(1, (rig_publish_t){.digest = 1, .deadline_ms = 3600000});
    R.is_late = true;
    rig_publish(OTHER, (rig_publish_t){.digest = 50, .adapter = "another"});
    R.is_quiet[T] = true;
    rig_pass(5 * LEASE_MS);
    R.is_quiet[T] = false;
    R.tokens[T] = 0;
    rig_drop_letters();
    R.b->io.brokers = refused_list;
    rig_open(T, "policy", "trainer", 1, false);
    rig_pass(1);
    rig_error(T, "no_space");
    R.b->io.brokers = NULL;
    R.is_late = false;
    rig_confirm(HEDDLE_OK);
    rig_pass(100);
    cr_assert_str_eq(rig_state(1), "staging");
    rig_open(T, "policy", "trainer", 1, false);
    rig_pass(5 * LEASE_MS);
    cr_assert_str_eq(rig_state(1), "staging", "it is there, and serves it");
}

Test(txn, a_publication_ends_by_its_deadline_and_says_so)
{
    opened(1);
    rig_publish(T, (rig_publish_t){.digest = 1, .deadline_ms = 1000});
    uint64_t first = R.req;
    rig_publish(T, (rig_publish_t){.digest = 2, .deadline_ms = 2000});
    rig_pass(900);
    cr_assert_eq(rig_count(MSG_ERROR), 0);
    rig_pass(200);
    const msg_error_t *e = rig_error(T, "deadline");
    cr_assert(e->req == first && strstr(e->message, "store has not confirmed this PUBLISH"), "%s",
              e->message);
    cr_assert(strstr(e->hint, "may still be recorded"), "%s", e->hint);
    rig_pass(1000);
    e = rig_error(T, "deadline");
    cr_assert(e->req == R.req && strstr(e->message, "was not started"), "%s", e->message);
    cr_assert(R.b->waiting_count == 0 && rig_count(MSG_ERROR) == 2);
    cr_assert(rig_adapter()->version_count == 0 && !rig_has(W1, MSG_ANNOUNCE));
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_last(T, MSG_PUBLISHED)->published.version, 1, "at last; its asker may find it so");
    cr_assert_eq(rig_adapter()->version_count, 1);
}

Test(txn, a_session_that_cannot_begin_is_told_to_try_again)
{
    opened(1);
    publish(1);
    rig_open(OTHER, "another", "writer", 0, false);
    rig_pass(LEASE_MS + 300);
    const msg_error_t *e = rig_error(OTHER, "unavailable");
    cr_assert(e->of == MSG_OPEN && e->retriable && e->retry_ms);
    cr_assert_null(registry_adapter(&R.b->registry, "another"));
}

Test(txn, an_activation_ends_by_its_deadline_and_says_so)
{
    publish_to(1, (rig_publish_t){.digest = 1, .activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 1, 1);
    rig_hello(ADMIN, ROLE_ADMIN);
    R.is_late = true;
    rig_query(ADMIN,
              (msg_query_t){.op = "activate", .name = "policy", .version = 1, .min = 1, .deadline_ms = 1000});
    rig_pass(1100);
    cr_assert_eq(R.b->pending.count, 0);
    cr_assert(!rig_has(W1, MSG_COMMIT) && rig_adapter()->decision == 0);
    cr_assert_str_eq(rig_last(ADMIN, MSG_REPORT)->report.code, "deadline");
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.decision, 1, "nobody waits for it, and it stands");
}

/* ---- who goes meanwhile ---- */

Test(txn, a_broker_that_dies_before_the_confirmation_knows_what_the_store_took)
{
    opened(1);
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    rig_take();
    R.is_late = false;
    rig_restart();
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    cr_assert_str_eq(rig_last(T, MSG_PUBLISHED)->published.reason, "replayed");
    cr_assert_eq(rig_adapter()->version_count, 1);
}

Test(txn, a_broker_that_dies_before_the_store_has_it_gives_the_number_to_the_next)
{
    opened(1);
    publish(1);
    R.is_late = false;
    rig_restart();
    rig_open(T, "policy", "trainer", 0, false);
    publish(2);
    cr_assert_eq(rig_last(T, MSG_PUBLISHED)->published.version, 1);
}

Test(txn, a_publisher_that_leaves_while_its_open_is_under_way_is_closed_again)
{
    opened(1);
    rig_open(T, "policy", "trainer", 0, false);
    cr_assert(rig_is_committing());
    rig_leave(T);
    cr_assert(rig_has(T, MSG_BYE) && !rig_has(T, MSG_WELCOME));
    rig_drop_letters();
    rig_confirm(HEDDLE_OK);
    cr_assert(!rig_has(T, MSG_WELCOME));
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_writer(), 0, "closed");
    cr_assert_eq(R.b->peer_count, 1, "w1");
}

Test(txn, of_a_publisher_that_is_lost_while_its_version_is_recorded_it_has_no_source)
{
    opened(1);
    publish(1);
    R.is_quiet[T] = true;
    rig_pass(LEASE_MS + 500);
    cr_assert_null(membership_publisher(&R.b->members, "policy"));
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_adapter()->version_count, 1);
    while (rig_is_committing()) rig_confirm(HEDDLE_OK);
    for (int i = 0; i < 8; i++) {
        rig_pass(LEASE_MS / 4);
        if (rig_is_committing()) rig_confirm(HEDDLE_OK);
    }
    cr_assert_str_eq(rig_state(1), "failed");
}

Test(txn, bye_follows_when_the_writer_is_closed)
{
    opened(1);
    rig_leave(T);
    cr_assert(rig_is_committing() && !rig_has(T, MSG_BYE));
    rig_confirm(HEDDLE_OK);
    cr_assert(rig_has(T, MSG_BYE) && !rig_writer());
    cr_assert_eq(R.b->peer_count, 1);
}

/* ---- keys ---- */

static char keys[2][HEDDLE_KEY_TEXT];

static void with_keys(void)
{
    rig_stop();
    R = (struct rig){.now = {.us = 1000000000, .wall_ms = 1780000000000}, .keep = 1};
    const char *roles[] = {"admin", "publisher:*"}, *names[] = {"ann", "tom"};
    for (int i = 0; i < 2; i++) {
        snprintf(keys[i], sizeof keys[i], "%0*d", HEDDLE_KEY_TEXT - 1, i);
        record_t rec = {.kind = RECORD_KEY, .public_key = keys[i], .name = names[i], .roles = roles[i]};
        rig_commit(NULL, &rec, 1, NULL);
    }
    R.keys[ADMIN] = keys[0];
    R.keys[T] = keys[1];
    R.has_keys = true;
    rig_boot();
    rig_open(T, "policy", "trainer", 0, false);
    rig_hello(ADMIN, ROLE_ADMIN);
    R.is_late = true;
}

Test(txn, a_key_that_is_revoked_while_its_command_is_open_hears_of_it_first)
{
    with_keys();
    publish(1);
    rig_query(ADMIN, (msg_query_t){.op = "key_revoke", .name = "tom"});
    publish(2);
    cr_assert_eq(R.b->waiting_count, 2);
    rig_confirm(HEDDLE_OK);
    cr_assert(rig_has(T, MSG_PUBLISHED), "it was let do that");
    cr_assert_not_null(membership_publisher(&R.b->members, "policy"), "nothing is revoked yet");
    rig_confirm(HEDDLE_OK);
    cr_assert_eq(rig_error(T, "denied")->token, R.tokens[T]);
    cr_assert(rig_has(ADMIN, MSG_REPORT) && rig_count(MSG_PUBLISHED) == 1);
    cr_assert_null(membership_publisher(&R.b->members, "policy"));
    cr_assert_eq(rig_adapter()->version_count, 1, "the second one was not let in any more");
    cr_assert_eq(R.b->waiting_count, 0);
}

Test(txn, a_refused_revocation_changes_nothing)
{
    with_keys();
    rig_query(ADMIN, (msg_query_t){.op = "key_revoke", .name = "tom"});
    rig_confirm(HEDDLE_ERR_NO_SPACE);
    rig_error(ADMIN, "no_space");
    cr_assert_not_null(membership_publisher(&R.b->members, "policy"));
}

/* ---- what is applied ---- */

/* The registry frees the row of a version that is forgotten, and a track of it may stay for a while. */
Test(txn, a_version_that_is_forgotten_has_no_row_in_its_track)
{
    heddle_error_t error;
    opened(0);
    R.is_late = false;
    publish(1);
    publish(2);
    const track_t *t = track_of(tracks_adapter(&R.b->rollout, "policy"), 1);
    cr_assert(t && t->row && t->row->state == VERSION_SUPERSEDED);
    outbox_record(R.b->out, RECORD_FORGET, "policy", R.now)->version = 1;
    cr_assert_eq(txn_commit(R.b, &(txn_t){.kind = TXN_OWN}, R.now, &error), HEDDLE_OK);
    t = track_of(tracks_adapter(&R.b->rollout, "policy"), 1);
    cr_assert(!t || !t->row);
    rig_pass(100);
}
