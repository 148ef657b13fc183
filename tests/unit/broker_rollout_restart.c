/* SPDX-License-Identifier: Apache-2.0 */
/* What members restate after a crash of the broker, a lost message or a replay. */
#include "broker_rig.h"

TestSuite(restart, .init = rig_start, .fini = rig_stop);

/* ---- restart ---- */

static void rejoin(uint64_t peer, const char *name, uint64_t decision, uint64_t version, msg_held_t *held,
                   uint32_t count)
{
    msg_subscription_t sub = {.adapter = "policy", .decision = decision, .version = version};
    rig_hello(peer, ROLE_WORKER);
    rig_join_with(peer, name, &sub, 1, held, count);
}

Test(restart, nothing_is_decided_while_settling)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_restart();
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_STAGED, .digest = rig_digest(1)};
    rejoin(W1, "w1", 0, 0, &held, 1);
    cr_assert_eq(rig_last(W1, MSG_WELCOME)->welcome.keep_count, 1);
    cr_assert_str_eq(rig_copy_state(1, "w1"), "staged");
    cr_assert_eq(rig_adapter()->decision, 0, "w2 may be on its way");
    rig_pass(2000);
    rejoin(W2, "w2", 0, 0, NULL, 0);
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.sources[0].token, R.tokens[W1]);
    rig_pass(2500);
    cr_assert_eq(rig_adapter()->decision, 0, "w2 came back in time: it is waited for");
    rig_staged(W2, 1, 1);
    cr_assert_eq(rig_adapter()->decision, 1);
    cr_assert_eq(rig_count(MSG_COMMIT), 2);
}

/* Which workers the version waits for is known only when settling ends. */
Test(restart, nothing_is_called_staged_while_settling)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 1, 1);
    rig_restart();
    rig_open(T, "policy", "trainer", 1, false);
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_STAGED, .digest = rig_digest(1)};
    rejoin(W1, "w1", 0, 0, &held, 1);
    rejoin(W2, "w2", 0, 0, NULL, 0);
    rig_pass(2000);
    cr_assert_str_eq(rig_state(1), "staging");
    cr_assert_eq(rig_event_count(EVENT_VERSION_STAGED), 0);
    rig_pass(LEASE_MS);
    cr_assert_str_eq(rig_state(1), "staging", "it waits for w2");
    cr_assert_eq(rig_event_count(EVENT_VERSION_STAGED), 0);
    rig_staged(W2, 1, 1);
    cr_assert_str_eq(rig_state(1), "staged");
    rig_pass(1000);
    cr_assert_eq(rig_event_count(EVENT_VERSION_STAGED), 1);
}

Test(restart, how_long_a_copy_took_is_restated)
{
    publish_to(1, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_restart();
    msg_held_t held = {.adapter = "policy",
                       .version = 1,
                       .state = HELD_STAGED,
                       .digest = rig_digest(1),
                       .connect_us = 1,
                       .fetch_us = 2,
                       .verify_us = 3,
                       .stage_us = 4,
                       .activate_us = 5};
    rejoin(W1, "w1", 0, 0, &held, 1);
    const copy_row_t *c = copy_find(track_find(&R.b->rollout, "policy", 1), "w1");
    cr_assert(c->connect_us == 1 && c->fetch_us == 2 && c->verify_us == 3);
    cr_assert(c->stage_us == 4 && c->activate_us == 5);
}

Test(restart, the_age_of_what_is_held_is_restated)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2, .activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 2, 2);
    rig_restart();
    rig_pass(1000);
    msg_held_t held[] = {
        {.adapter = "policy", .version = 1, .state = HELD_ACTIVE, .digest = rig_digest(1), .age_us = 700000},
        {.adapter = "policy", .version = 2, .state = HELD_STAGED, .digest = rig_digest(2), .age_us = 300000}};
    rejoin(W1, "w1", 1, 1, held, 2);
    cr_assert_eq(copy_find(track_find(&R.b->rollout, "policy", 1), "w1")->since_ms, R.now.wall_ms - 700);
    cr_assert_eq(copy_find(track_find(&R.b->rollout, "policy", 2), "w1")->since_ms, R.now.wall_ms - 300);
    held[0].state = HELD_KEPT;
    rejoin(W1, "w1", 1, 1, held, 1);
    cr_assert_str_eq(rig_copy_state(1, "w1"), "committed");
    cr_assert_eq(copy_find(track_find(&R.b->rollout, "policy", 1), "w1")->since_ms, R.now.wall_ms,
                 "it was kept, and is to be switched to now");
}

Test(restart, after_settling_who_is_there_counts)
{
    publish_to(2, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_staged(W2, 1, 1); /* decided */
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_restart();
    msg_held_t held[] = {{.adapter = "policy", .version = 1, .state = HELD_ACTIVE, .digest = rig_digest(1)},
                         {.adapter = "policy", .version = 2, .state = HELD_STAGED, .digest = rig_digest(2)}};
    rejoin(W1, "w1", 1, 1, held, 2);
    cr_assert_eq(rig_adapter()->decision, 1);
    rig_pass(4500);
    cr_assert_eq(rig_adapter()->decision, 2, "w2 did not come back");
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.decision, 2);
}

Test(restart, a_commit_lost_in_a_crash_arrives_with_welcome)
{
    publish_to(1, (rig_publish_t){0});
    rig_staged(W1, 1, 1);
    rig_restart();
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_STAGED, .digest = rig_digest(1)};
    rejoin(W1, "w1", 0, 0, &held, 1);
    const msg_welcome_t *w = &rig_last(W1, MSG_WELCOME)->welcome;
    cr_assert(w->adapters[0].decision == 1 && w->adapters[0].version == 1);
    cr_assert(!rig_has(W1, MSG_COMMIT) && !rig_has(W1, MSG_ANNOUNCE), "WELCOME says it");
    cr_assert_str_eq(rig_copy_state(1, "w1"), "committed");
    rig_active(W1, 1, 1, 1);
    cr_assert_str_eq(rig_copy_state(1, "w1"), "active");
}

Test(restart, who_went_back_past_a_version_has_not_reached_it)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2); /* decided */
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1});
    rig_restart();
    msg_held_t held[] = {{.adapter = "policy", .version = 1, .state = HELD_ACTIVE, .digest = rig_digest(1)},
                         {.adapter = "policy", .version = 2, .state = HELD_KEPT, .digest = rig_digest(2)}};
    rejoin(W1, "w1", 3, 1, held, 2);
    cr_assert(copy_find(track_find(&R.b->rollout, "policy", 1), "w1")->has_reached);
    cr_assert(!copy_find(track_find(&R.b->rollout, "policy", 2), "w1")->has_reached);
}

Test(restart, restated_bytes_are_believed_by_digest_only)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_nack(W1, 2, 0, "stage", "version_failed");
    rig_restart();
    msg_held_t held[] = {
        {.adapter = "policy", .version = 1, .state = HELD_KEPT, .digest = rig_digest(9)},   /* other bytes */
        {.adapter = "policy", .version = 2, .state = HELD_STAGED, .digest = rig_digest(2)}, /* failed */
        {.adapter = "policy",
         .version = 7,
         .state = HELD_STAGED,
         .digest = rig_digest(2)}, /* never assigned */
        {.adapter = "critic",
         .version = 1,
         .state = HELD_STAGED,
         .digest = rig_digest(2)},                                                /* not subscribed */
        {.adapter = "policy", .version = 1, .state = 0, .digest = rig_digest(1)}, /* no state */
    };
    rejoin(W1, "w1", 0, 0, held, 5);
    cr_assert_eq(rig_last(W1, MSG_WELCOME)->welcome.keep_count, 0);
    held[0].digest = rig_digest(1);
    rejoin(W1, "w1", 0, 0, held, 5);
    const msg_welcome_t *w = &rig_last(W1, MSG_WELCOME)->welcome;
    cr_assert_eq(w->keep_count, 1);
    cr_assert_eq(w->keep[0].version, 1);
    cr_assert(!memcmp(&w->keep[0].key, &rig_version(1)->share_key, sizeof(key16_t)));
}

Test(restart, restated_states)
{
    const struct {
        uint64_t held_state, decision;
        const char *state;
    } ROWS[] = {{HELD_SEALED, 0, "arrived"},
                {HELD_STAGED, 0, "committed"},
                {HELD_ACTIVE, 1, "active"},
                {HELD_KEPT, 0, "committed"},
                {HELD_KEPT, 1, "kept"}};
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        msg_held_t held = {.adapter = "policy",
                           .version = 1,
                           .state = ROWS[i].held_state,
                           .digest = rig_digest(1)};
        rejoin(W1, "w1", ROWS[i].decision, ROWS[i].decision, &held, 1);
        cr_assert_str_eq(rig_copy_state(1, "w1"), i == 4 ? "committed" : ROWS[i].state, "row %zu: %s", i,
                         rig_copy_state(1, "w1"));
    }
}

Test(restart, a_decision_that_the_registry_does_not_know_is_not_believed)
{
    publish_to(0, (rig_publish_t){0});
    rejoin(W1, "w1", 40, 9, NULL, 0);
    const member_sub_t *sub = member_sub(membership_worker(&R.b->members, "w1"), "policy");
    cr_assert(sub->serving.decision == 0 && sub->serving.version == 0);
}

Test(restart, a_deadline_goes_on_over_a_restart)
{
    publish_to(1, (rig_publish_t){.deadline_ms = 10000});
    rig_pass(3000);
    rig_restart();
    rig_pass(6500);
    cr_assert_str_eq(rig_state(1), "staging");
    rig_pass(1000);
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_NO_WORKERS);
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 2, .deadline_ms = 10000});
    rig_restart();
    rig_open(T, "policy", "trainer", 2, false);
    rejoin(W1, "w1", 0, 0, NULL, 0);
    rig_pass(9500);
    cr_assert_str_eq(rig_state(2), "staging");
    rig_pass(1000);
    cr_assert_str_eq(rig_state(2), "failed");
    cr_assert_eq(rig_version(2)->code, HEDDLE_ERR_DEADLINE);
}

Test(restart, committed_versions_that_nobody_brings_back_are_lost_after_settling)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_restart();
    rig_pass(3000);
    cr_assert_str_eq(rig_state(1), "active");
    rig_pass(1500);
    cr_assert_str_eq(rig_state(1), "lost");
}

/* ---- resync, replay ---- */

Test(restart, a_worker_whose_queue_was_full_is_called_again)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    R.is_slow[W1] = true;
    rig_publish(T, (rig_publish_t){.digest = 2});
    cr_assert(membership_worker(&R.b->members, "w1")->needs_resync);
    rig_pass(1100);
    cr_assert(membership_worker(&R.b->members, "w1")->needs_resync, "nor could it be called");
    R.is_slow[W1] = false;
    rig_drop_letters();
    rig_pass(1100);
    const msg_error_t *e = rig_error(W1, "not_found");
    cr_assert(e->token == R.tokens[W1] && e->version == 0 && e->req == 0);
    rig_drop_letters();
    rig_pass(1100);
    cr_assert_eq(rig_count(MSG_ERROR), 0, "once");
    rig_worker(W1, "w1");
    cr_assert_eq(rig_last(W1, MSG_ANNOUNCE)->announce.version, 2);
}

Test(restart, a_publisher_whose_queue_was_full_is_called_again)
{
    workers(1);
    rig_open(T, "policy", "first", 0, false);
    R.is_slow[T] = true;
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    R.is_slow[T] = false;
    rig_pass(1100);
    cr_assert_eq(rig_error(T, "not_found")->token, R.tokens[T]);
}

Test(restart, a_replay_hears_where_the_version_is)
{
    publish_to(1, (rig_publish_t){.request_id = "same"});
    rig_staged(W1, 1, 1);
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    cr_assert_str_eq(rig_last(T, MSG_PUBLISHED)->published.reason, "replayed");
    cr_assert_str_eq(rig_last(T, MSG_ROLLOUT)->rollout.state, "active");
}

Test(restart, ended_tracks_are_bounded)
{
    publish_to(1, (rig_publish_t){0});
    for (uint64_t v = 2; v < 40; v++) rig_publish(T, (rig_publish_t){.digest = v});
    cr_assert_leq(rig_track_count(), ROLLOUT_ENDED_TRACKS + 2); /* one staging, one waits */
    cr_assert_not_null(track_find(&R.b->rollout, "policy", 39));
    cr_assert_null(track_find(&R.b->rollout, "policy", 2));
    cr_assert_str_eq(rig_state(2), "superseded");
}

Test(restart, names)
{
    cr_assert_str_eq(copy_state_name(COPY_STALE), "stale");
    cr_assert_str_eq(copy_state_name(COPY_FAILED), "failed");
    cr_assert_str_eq(copy_state_name((copy_state_t)77), "unknown");
}

Test(restart, past_the_deadline_an_announcement_has_none)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL, .deadline_ms = 3000});
    rig_staged(W1, 1, 1);
    rig_pass(3500);
    rig_worker(W2, "w2"); /* a new session of a process that is waited for */
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.deadline_ms, 0);
    cr_assert_str_eq(rig_state(1), "staged");
}

/* Version 1 active at two workers, and a broker that has just started; the writer has the same bytes again. */
static void replay_after_a_start(void)
{
    publish_to(2, (rig_publish_t){.request_id = "same"});
    roll_out(2, 1, 1, 1);
    rig_restart();
    rig_drop_letters();
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    cr_assert_str_eq(rig_last(T, MSG_PUBLISHED)->published.reason, "replayed");
}

static void brings_back(uint64_t peer, const char *name)
{
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_ACTIVE, .digest = rig_digest(1)};
    rejoin(peer, name, 1, 1, &held, 1);
}

Test(restart, a_replay_hears_of_the_workers_that_come_back)
{
    replay_after_a_start();
    brings_back(W1, "w1");
    rig_pass(1000);
    cr_assert(!rig_has(T, MSG_ROLLOUT) && !rig_has(T, MSG_RELEASE), "w2 may come back too");
    brings_back(W2, "w2");
    rig_pass(LEASE_MS);
    const msg_rollout_t *r = &rig_last(T, MSG_ROLLOUT)->rollout;
    cr_assert_str_eq(r->state, "active");
    cr_assert(r->eligible_count == 2 && r->staged_count == 2 && r->active_count == 2 && !r->missing_count);
    cr_assert_eq(rig_last(T, MSG_RELEASE)->release.version, 1);
}

Test(restart, a_replay_serves_the_active_version_to_those_that_lost_it)
{
    replay_after_a_start();
    rejoin(W1, "w1", 0, 0, NULL, 0); /* a new process */
    const msg_announce_t *a = &rig_last(W1, MSG_ANNOUNCE)->announce;
    cr_assert(a->version == 1 && a->source_count == 1 && a->sources[0].token == R.tokens[T]);
    rig_pass(LEASE_MS + 500);
    cr_assert_str_eq(rig_state(1), "active", "its publisher has it");
    rig_staged(W1, 1, 1);
    rig_active(W1, 1, 1, 1);
    const msg_rollout_t *r = told();
    cr_assert(r->eligible_count == 1 && r->active_count == 1 && !strcmp(r->state, "active"));
}

Test(restart, a_replay_of_a_kept_version_hears_of_its_holders)
{
    publish_to(1, (rig_publish_t){.request_id = "same"});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_restart();
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    msg_held_t held[] = {{.adapter = "policy", .version = 1, .state = HELD_KEPT, .digest = rig_digest(1)},
                         {.adapter = "policy", .version = 2, .state = HELD_ACTIVE, .digest = rig_digest(2)}};
    rejoin(W1, "w1", 2, 2, held, 2);
    rig_pass(LEASE_MS + 500);
    const msg_rollout_t *r = &rig_last(T, MSG_ROLLOUT)->rollout;
    cr_assert(r->version == 1 && r->eligible_count == 1 && r->staged_count == 1 && r->active_count == 1);
    cr_assert_str_eq(r->state, "kept");
}

Test(restart, a_replay_of_what_was_lost_serves_it_again)
{
    publish_to(1, (rig_publish_t){.request_id = "same"});
    roll_out(1, 1, 1, 1);
    rig_leave(T);
    R.tokens[T] = 0;
    rig_leave(W1);
    R.tokens[W1] = 0;
    cr_assert_str_eq(rig_state(1), "lost");
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    cr_assert_str_eq(told()->state, "active");
    rig_worker(W2, "w2");
    cr_assert_eq(rig_last(W2, MSG_ANNOUNCE)->announce.sources[0].token, R.tokens[T]);
    rig_leave(T);
    R.tokens[T] = 0;
    cr_assert_str_eq(rig_state(1), "lost", "w2 had not got it yet");
}

/* It is not the version to serve: no worker would fetch it. */
Test(restart, a_replay_of_a_lost_version_that_is_not_active_says_so)
{
    static const key16_t NONE;
    publish_to(1, (rig_publish_t){.request_id = "same"});
    roll_out(1, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_leave(T);
    R.tokens[T] = 0;
    rig_leave(W1);
    R.tokens[W1] = 0;
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    cr_assert(!memcmp(&rig_last(T, MSG_PUBLISHED)->published.key, &NONE, sizeof NONE));
    const msg_rollout_t *r = &rig_last(T, MSG_ROLLOUT)->rollout;
    cr_assert_str_eq(r->state, "lost");
    cr_assert_str_eq(r->code, "version_lost");
    cr_assert_str_eq(r->message, "no process holds its bytes");
}

/* ---- a publisher that serves two ---- */

static void reopen(uint64_t *served, uint32_t count)
{
    msg_t m = {.type = MSG_OPEN};
    rig_hello(T, ROLE_PUBLISHER);
    m.open = (msg_open_t){.req = ++R.req,
                          .adapter = "policy",
                          .writer = "trainer",
                          .serving = 2,
                          .served = served,
                          .served_count = count,
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("pub", 3)};
    rig_frame(T, &m);
}

Test(restart, what_is_on_its_way_is_still_served_with_what_waits)
{
    uint64_t served[] = {2, 1, 2};
    publish_to(1, (rig_publish_t){0});
    rig_publish(T, (rig_publish_t){.digest = 2}); /* waits */
    rig_restart();
    rig_worker(W1, "w1");
    reopen(served, 3);
    const msg_welcome_t *welcome = &rig_last(T, MSG_WELCOME)->welcome;
    cr_assert(welcome->keep_count == 2 && welcome->keep[0].version == 2 && welcome->keep[1].version == 1);
    rig_pass(3 * LEASE_MS);
    cr_assert_str_eq(rig_state(1), "staging", "its publisher has it");
    rig_staged(W1, 1, 1);
    rig_active(W1, 1, 1, 1);
    rig_staged(W1, 2, 2);
    cr_assert(rig_adapter()->active == 2 && rig_adapter()->decision == 2);
}

Test(restart, of_all_that_is_served_what_ended_is_told)
{
    uint64_t served[] = {2, 1, 77};
    publish_to(1, (rig_publish_t){0});
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_nack(W1, 1, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(1), "failed");
    rig_drop_letters();
    reopen(served, 2);
    cr_assert_eq(rig_last(T, MSG_WELCOME)->welcome.keep_count, 1);
    const letter_t *first = rig_find(T, MSG_ROLLOUT);
    cr_assert(first && first->m.rollout.version == 1 && !strcmp(first->m.rollout.state, "failed"));
    reopen(served, 3);
    cr_assert_eq(rig_adapter()->last_version, 77, "one that is not known was given before");
}

/* The code alone says nothing: it is the worker's word about its own copy. */
Test(restart, a_request_that_a_worker_rejected_as_lost_has_its_answer)
{
    publish_to(1, (rig_publish_t){.request_id = "same"});
    rig_nack(W1, 1, 0, "fetch", "version_lost");
    cr_assert_str_eq(rig_state(1), "failed");
    cr_assert_eq(rig_version(1)->code, HEDDLE_ERR_VERSION_LOST);
    rig_drop_letters();
    rig_publish(T, (rig_publish_t){.digest = 1, .request_id = "same"});
    const msg_published_t *p = &rig_last(T, MSG_PUBLISHED)->published;
    cr_assert(p->version == 1 && !p->created);
}

/* ---- a broker that stands still ---- */

/* As after SIGSTOP or a suspend: the loop ticks first, and then finds what its members sent meanwhile. */
static void stands_still_for(uint32_t ms)
{
    R.now.us += ms * 1000ull;
    R.now.wall_ms += ms;
    broker_tick(R.b, R.now);
    rig_flush();
}

Test(restart, time_in_which_the_broker_stands_still_does_not_count)
{
    publish_to(1, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    rig_staged(W1, 1, 1);
    rig_leave(T);
    R.tokens[T] = 0;
    rig_pass(3000); /* w1 is remembered */
    rig_restart();
    rig_pass(500);
    stands_still_for(3 * LEASE_MS);
    cr_assert(!R.b->rollout.is_settled);
    cr_assert_str_eq(rig_state(1), "staging");
    msg_held_t held = {.adapter = "policy", .version = 1, .state = HELD_STAGED, .digest = rig_digest(1)};
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &sub, 1, &held, 1);
    rig_pass(LEASE_MS);
    cr_assert(R.b->rollout.is_settled);
    cr_assert_str_eq(rig_state(1), "staged");
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 0);
    cr_assert_eq(rig_event_count(EVENT_VERSION_FAILED), 0);
}

/* Less than a lease, and over the end of the grace period. */
Test(restart, nor_is_a_short_one_at_its_end)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_pass(5000);
    rig_restart();
    rig_pass(LEASE_MS / 4 + 100);
    stands_still_for(LEASE_MS * 3 / 4);
    cr_assert(!R.b->rollout.is_settled);
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 0);
    rig_worker(W1, "w1");
    rig_pass(LEASE_MS);
    cr_assert(R.b->rollout.is_settled);
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 0);
}

/* A member that does not return ends the grace all the same, and is lost once. */
Test(restart, a_broker_that_stood_still_settles)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_pass(5000);
    rig_restart();
    stands_still_for(3 * LEASE_MS);
    cr_assert_leq(broker_flush(R.b, R.now), R.now.us + LEASE_MS * 1000 / 4, "it looks whether it is late");
    rig_pass(LEASE_MS);
    cr_assert(R.b->rollout.is_settled);
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 1);
}
