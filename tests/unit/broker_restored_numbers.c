/* SPDX-License-Identifier: Apache-2.0 */
/* Members that know more than the store (broker/restored_numbers.h); the whole of it is in
 * tests/scenario/restored_test.c. */
#include "broker_rig.h"

TestSuite(restored_numbers, .init = rig_start, .fini = rig_stop);

enum { MANY = 100 };

static void join(uint64_t peer, const char *name, msg_join_t m)
{
    msg_t frame = {.type = MSG_JOIN, .join = m};
    rig_hello(peer, ROLE_WORKER);
    frame.join.req = ++R.req;
    frame.join.name = name;
    frame.join.backend = "ucx";
    frame.join.ucx = "1.13.1";
    frame.join.address = bytes_of("addr", 4);
    rig_frame(peer, &frame);
}

static void join_at(uint64_t peer, uint64_t version, uint64_t decision)
{
    msg_subscription_t sub = {.adapter = "policy", .version = version, .decision = decision};
    join(peer, peer == W3 ? "w3" : "w1", (msg_join_t){.adapters = &sub, .adapter_count = 1});
}

Test(restored_numbers, nothing_new_is_nothing_done)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    size_t records = R.record_count;
    uint64_t epoch = R.b->registry.epoch;
    msg_subscription_t sub = {.adapter = "policy", .version = 1, .decision = 1};
    join(W1, "w1",
         (msg_join_t){.adapters = &sub, .adapter_count = 1, .epoch = epoch, .prev_token = R.tokens[W1]});
    rig_restart();
    join(W1, "w1",
         (msg_join_t){.adapters = &sub, .adapter_count = 1, .epoch = epoch, .prev_token = epoch << 32 | 9});
    rig_open(T, "policy", "trainer", 1, false);
    cr_assert_eq(R.b->registry.epoch, epoch + 1);
    cr_assert_eq(R.record_count, records + 2, "the epoch of the start, and the writer");
    cr_assert_eq(R.b->restored.at_ms, 0);
}

Test(restored_numbers, numbers_go_on_above)
{
    join_at(W1, 7, 9);
    cr_assert_neq(R.tokens[W1], 0);
    cr_assert_eq(rig_adapter()->last_version, 7);
    cr_assert_str_eq(R.b->restored.from, "w1");
    const event_row_t *e = rig_event(EVENT_BROKER_STARTED);
    cr_assert_str_eq(e->worker, "w1");
    cr_assert_eq(e->code, HEDDLE_ERR_DATA_DIR);
    cr_assert_str_eq(e->message, "older data were put back: it knows policy@7 and decision 9 (here 0 and 0); "
                                 "publish the newest checkpoint again");
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    rig_staged(W1, 8, 1);
    cr_assert_eq(rig_adapter()->active, 8);
    cr_assert_eq(rig_adapter()->decision, 10);
    rig_restart();
    cr_assert(rig_adapter()->last_version == 8 && rig_adapter()->floor_decision == 9);
}

/* Each adapter once, whatever of it is held; and what happens to those that follow a later version. */
Test(restored_numbers, an_operator_reads_what_happens_and_what_to_do)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_restart();
    uint64_t epoch = R.b->registry.epoch;
    msg_subscription_t sub = {.adapter = "policy", .version = 3, .decision = 3};
    msg_held_t held[] = {{.adapter = "policy", .version = 1, .state = HELD_KEPT, .digest = rig_digest(1)},
                         {.adapter = "policy", .version = 3, .state = HELD_ACTIVE},
                         {.adapter = "policy", .version = 4, .state = HELD_STAGED}};
    join(W1, "w1",
         (msg_join_t){.adapters = &sub,
                      .adapter_count = 1,
                      .held = held,
                      .held_count = 3,
                      .epoch = epoch,
                      .prev_token = epoch << 32 | 9});
    cr_assert_str_eq(
        R.b->restored.message,
        "older data were put back: w1 knows policy@4 and decision 3 (here 1 and 1), its epoch's "
        "token 9 (here 0); once settling has ended workers go back to policy@1 if one still has it; "
        "publish the newest checkpoint again; the next start of the broker ends this message");
    rig_pass(2 * LEASE_MS);
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.version, 1);
}

/* No item is cut: those that do not fit are counted. */
Test(restored_numbers, of_many_adapters_some_are_named)
{
    char names[40][HEDDLE_NAME_MAX + 1];
    msg_subscription_t subs[40];
    for (size_t i = 0; i < 40; i++) {
        snprintf(names[i], sizeof names[i], "adapter-%zu", 10 + i);
        subs[i] = (msg_subscription_t){.adapter = names[i], .version = 5};
    }
    join(W1, "w1", (msg_join_t){.adapters = subs, .adapter_count = 40});
    cr_assert_eq(rig_event_count(EVENT_BROKER_STARTED), 2, "that of the start, and one for all of these");
    const event_row_t *e = rig_event(EVENT_BROKER_STARTED);
    cr_assert_str_eq(e->message,
                     "older data were put back: it knows adapter-10@5 (here 0), adapter-11@5 (here "
                     "0) and 38 more; publish the newest checkpoint again");
    const char *message = R.b->restored.message, *more = strstr(message, " (here 0) and ");
    cr_assert_not_null(more, "%s", message);
    size_t named = 0;
    for (const char *at = message; (at = strstr(at, "@5 (here 0)")) != NULL; at++) named++;
    cr_assert_gt(named, 2);
    cr_assert_eq(strtoul(more + 14, NULL, 10), 40 - named, "%s", message);
    cr_assert_not_null(strstr(message, " more; publish the newest checkpoint again"), "%s", message);
}

Test(restored_numbers, a_publisher_knows_its_version)
{
    rig_open(T, "policy", "trainer", 5, false);
    cr_assert_eq(rig_last(T, MSG_WELCOME)->welcome.keep_count, 0);
    rig_publish(T, (rig_publish_t){.digest = 1});
    cr_assert_eq(rig_last(T, MSG_PUBLISHED)->published.version, 6);
}

Test(restored_numbers, an_epoch_and_its_tokens)
{
    publish_to(1, (rig_publish_t){0});
    uint64_t writer = R.tokens[T], epoch = R.b->registry.epoch, seq = R.b->events.last_seq;
    msg_subscription_t sub = {.adapter = "policy"};
    join(W2, "w2", (msg_join_t){.adapters = &sub, .adapter_count = 1, .prev_token = (epoch + 4) << 32 | 3});
    cr_assert_eq(R.b->registry.epoch, epoch + 5);
    cr_assert_eq(R.tokens[W2] >> 32, epoch + 5);
    cr_assert_eq(rig_last(W2, MSG_WELCOME)->welcome.epoch, epoch + 5);
    rig_beat(T);
    cr_assert(!rig_has(T, MSG_ERROR), "sessions that are here go on");
    rig_query(ADMIN, (msg_query_t){.op = "events"});
    rig_leave(T);
    cr_assert_eq(rig_event_count(EVENT_WRITER_CLOSED), 1, "said once, also of a writer of the epoch before");
    cr_assert_lt(writer, R.tokens[W2]);
    events_filter_t f = {.epoch = epoch, .after = seq + 1};
    bool gap;
    events_begin(&R.b->events, &f, &gap);
    cr_assert(gap, "a follower hears that the epoch is another");
}

Test(restored_numbers, a_token_of_this_epoch_that_was_never_given)
{
    workers(2);
    uint64_t epoch = R.b->registry.epoch;
    msg_subscription_t sub = {.adapter = "policy"};
    join(W3, "w3",
         (msg_join_t){.adapters = &sub, .adapter_count = 1, .epoch = epoch, .prev_token = epoch << 32 | 2});
    cr_assert_eq(R.b->registry.epoch, epoch);
    join(W4, "w4",
         (msg_join_t){.adapters = &sub, .adapter_count = 1, .epoch = epoch, .prev_token = epoch << 32 | 4});
    cr_assert_eq(R.b->registry.epoch, epoch + 1);
}

Test(restored_numbers, only_what_it_subscribes_to)
{
    msg_subscription_t sub = {.adapter = "policy"};
    msg_held_t held[] = {{.adapter = "critic", .version = 4, .state = HELD_KEPT},
                         {.adapter = "policy", .version = 3, .state = HELD_KEPT},
                         {.adapter = "policy", .version = 6, .state = HELD_ACTIVE}};
    join(W1, "w1", (msg_join_t){.adapters = &sub, .adapter_count = 1, .held = held, .held_count = 3});
    cr_assert_eq(rig_adapter()->last_version, 6);
    cr_assert_null(registry_adapter(&R.b->registry, "critic"));
    cr_assert_eq(rig_last(W1, MSG_WELCOME)->welcome.keep_count, 0);
}

/* Its application may have been asked to switch to what is not known here. */
Test(restored_numbers, what_was_chosen_is_chosen_anew_above_what_may_have_been_said)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_restart();
    msg_subscription_t sub = {.adapter = "policy", .version = 1, .decision = 1};
    msg_held_t held[] = {{.adapter = "policy", .version = 1, .state = HELD_ACTIVE, .digest = rig_digest(1)},
                         {.adapter = "policy", .version = 2, .state = HELD_STAGED}};
    join(W1, "w1", (msg_join_t){.adapters = &sub, .adapter_count = 1, .held = held, .held_count = 2});
    rig_pass(2 * LEASE_MS);
    cr_assert_eq(rig_adapter()->active, 1);
    cr_assert_gt(rig_adapter()->decision, 2, "2 may have been given to version 2");
    cr_assert_eq(rig_last(W1, MSG_COMMIT)->commit.decision, rig_adapter()->decision);
    uint64_t decision = rig_adapter()->decision;
    sub.decision = decision;
    join(W1, "w1", (msg_join_t){.adapters = &sub, .adapter_count = 1, .held = held, .held_count = 1});
    rig_pass(2 * LEASE_MS);
    cr_assert_eq(rig_adapter()->decision, decision, "once");
}

/* The first that came has raised the epoch; the next one comes of the lost time too. */
Test(restored_numbers, who_comes_second_is_doubted_too)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_restart();
    uint64_t lost = R.b->registry.epoch + 4;
    msg_subscription_t other = {.adapter = "other"}, sub = {.adapter = "policy", .version = 1, .decision = 1};
    join(W3, "w3",
         (msg_join_t){.adapters = &other, .adapter_count = 1, .epoch = lost, .prev_token = lost << 32 | 1});
    cr_assert_eq(R.b->registry.epoch, lost + 1);
    join(W1, "w1",
         (msg_join_t){.adapters = &sub, .adapter_count = 1, .epoch = lost, .prev_token = lost << 32 | 2});
    rig_pass(2 * LEASE_MS);
    cr_assert_eq(rig_adapter()->active, 1);
    cr_assert_gt(rig_adapter()->decision, 2);
}

/* Epochs are counted on from the copy: those of the lost time come again. */
Test(restored_numbers, who_comes_second_is_doubted_where_the_lost_epoch_is_that_of_the_start)
{
    publish_to(1, (rig_publish_t){0});
    roll_out(1, 1, 1, 1);
    rig_restart();
    uint64_t lost = R.b->registry.epoch;
    msg_subscription_t other = {.adapter = "other"}, sub = {.adapter = "policy", .version = 1, .decision = 1};
    msg_join_t m = {.adapters = &other, .adapter_count = 1, .epoch = lost};
    join(W4, "w4", m);
    m.prev_token = lost << 32 | 9;
    join(W3, "w3", m);
    cr_assert_eq(R.b->registry.epoch, lost + 1);
    m.adapters = &sub;
    m.prev_token = lost << 32 | 1;
    join(W2, "w2", m);
    rig_pass(2 * LEASE_MS);
    cr_assert_eq(rig_adapter()->decision, 1, "that token was given since the start");
    m.prev_token = lost << 32 | 2;
    join(W1, "w1", m);
    rig_pass(2 * LEASE_MS);
    cr_assert_eq(rig_adapter()->active, 1);
    cr_assert_gt(rig_adapter()->decision, 2);
}

/* More than one commit can take. */
Test(restored_numbers, many_adapters)
{
    static msg_subscription_t subs[MANY];
    static char names[MANY][16];
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "a%d", i);
        subs[i] = (msg_subscription_t){.adapter = names[i], .version = 5, .decision = 6};
    }
    join(W1, "w1", (msg_join_t){.adapters = subs, .adapter_count = MANY});
    cr_assert_neq(R.tokens[W1], 0);
    for (int i = 0; i < MANY; i++) {
        const adapter_row_t *a = registry_adapter(&R.b->registry, names[i]);
        cr_assert(a && a->last_version == 5 && a->floor_decision == 6);
    }
}

Test(restored_numbers, numbers_that_cannot_be)
{
    const msg_join_t ROWS[] = {{.epoch = 4000000000}, {.prev_token = UINT64_MAX}};
    msg_subscription_t sub = {.adapter = "policy"};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        msg_join_t m = ROWS[i];
        m.adapters = &sub;
        m.adapter_count = 1;
        join(W1, "w1", m);
        cr_assert(!rig_error(W1, "protocol")->retriable, "row %zu", i);
    }
    join_at(W1, LIMIT_EXACT, 0);
    rig_error(W1, "protocol");
    join_at(W1, 0, LIMIT_EXACT);
    rig_error(W1, "protocol");
    cr_assert(R.tokens[W1] == 0 && !rig_adapter() && R.b->registry.epoch == 1);
    rig_open(T, "policy", "trainer", LIMIT_EXACT, false);
    rig_error(T, "protocol");
    cr_assert_eq(R.tokens[T], 0);
}

/* Whatever one member may say, a thousand of them may not use the numbers up. */
Test(restored_numbers, all_raises_have_a_sum)
{
    msg_subscription_t sub = {.adapter = "policy"};
    uint64_t raised = 0, epoch;
    for (int i = 0; i < 300; i++) {
        epoch = R.b->registry.epoch;
        join(W1, "w1", (msg_join_t){.adapters = &sub, .adapter_count = 1, .epoch = epoch + 99});
        raised += R.b->registry.epoch - epoch;
    }
    cr_assert(raised == 1000, "10 raises of 100 are believed, then none");
    rig_error(W1, "protocol");
    epoch = R.b->registry.epoch;
    join(W2, "w2", (msg_join_t){.adapters = &sub, .adapter_count = 1, .epoch = epoch + 23});
    cr_assert_eq(R.b->registry.epoch, epoch + 24, "what fits still fits");
    for (uint64_t i = 1; i <= 300; i++) join_at(W3, i << 24, 0);
    cr_assert_eq(rig_adapter()->last_version, 256ull << 24);
    rig_error(W3, "protocol");
    rig_restart();
    join_at(W3, 257ull << 24, 0);
    cr_assert_eq(rig_adapter()->last_version, 257ull << 24, "the sum is of one start");
}

Test(restored_numbers, no_epoch_beyond_what_starts_need)
{
    record_t *rec = outbox_record(R.b->out, RECORD_EPOCH, "", R.now);
    rec->epoch = EPOCH_REPORTED_MAX - 2;
    rig_commit(NULL, rec, 1, NULL);
    outbox_clear(R.b->out);
    rig_restart();
    msg_subscription_t sub = {.adapter = "policy"};
    join(W1, "w1", (msg_join_t){.adapters = &sub, .adapter_count = 1, .epoch = EPOCH_REPORTED_MAX});
    rig_error(W1, "protocol");
    rig_open(T, "policy", "trainer", 0, false);
    cr_assert_eq(R.tokens[T] >> 32, EPOCH_REPORTED_MAX - 1);
}

enum { CLAIMED = 256 };

static void join_with(uint64_t peer, const char *name, const char *prefix, int count)
{
    static msg_subscription_t subs[CLAIMED];
    static char names[CLAIMED][16];
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "%s%d", prefix, i);
        subs[i] = (msg_subscription_t){.adapter = names[i], .version = 5};
    }
    join(peer, name, (msg_join_t){.adapters = subs, .adapter_count = (uint32_t)count});
}

Test(restored_numbers, adapters_that_only_workers_know_are_few)
{
    join_with(W1, "w1", "a", CLAIMED);
    cr_assert_neq(R.tokens[W1], 0);
    for (int i = 0; i < 3; i++) {
        char prefix[] = {'b', (char)('0' + i), 0};
        join_with(W2, "w2", prefix, CLAIMED);
        rig_error(W2, "limit");
    }
    cr_assert(R.tokens[W2] == 0 && R.b->registry.adapter_count == CLAIMED);
    join_with(W2, "w2", "a", CLAIMED);
    cr_assert_neq(R.tokens[W2], 0, "those that are here are not one more");
    rig_open(T, "policy", "trainer", 5, false);
    cr_assert_eq(rig_adapter()->last_version, 5, "a writer's adapter is made anyway");
    join_at(W3, 9, 0);
    cr_assert_eq(rig_adapter()->last_version, 9);
    rig_restart();
    join_with(W2, "w2", "c", 1);
    rig_error(W2, "limit");
}

/* They have numbers and no versions too, but a publisher had opened them. */
Test(restored_numbers, adapters_that_were_forgotten_are_not_among_them)
{
    for (int i = 0; i < CLAIMED; i++) {
        char name[16];
        snprintf(name, sizeof name, "b%d", i);
        record_t records[] = {{.kind = RECORD_ADAPTER, .adapter = name},
                              {.kind = RECORD_WRITER, .adapter = name},
                              {.kind = RECORD_FLOOR, .adapter = name, .version = 3, .decision = 1},
                              {.kind = RECORD_ADAPTER_FORGET, .adapter = name, .by = "ann"}};
        for (int k = 0; k < 4; k++) cr_assert_eq(registry_apply(&R.b->registry, &records[k]), HEDDLE_OK);
    }
    join_with(W1, "w1", "a", CLAIMED);
    cr_assert_neq(R.tokens[W1], 0);
    join_with(W2, "w2", "c", 1);
    rig_error(W2, "limit");
}

Test(restored_numbers, an_open_that_is_refused_changes_nothing)
{
    publish_to(1, (rig_publish_t){0});
    size_t records = R.record_count;
    uint64_t epoch = R.b->registry.epoch;
    msg_t m = {.type = MSG_OPEN};
    rig_hello(W4, ROLE_PUBLISHER);
    m.open = (msg_open_t){.req = 99,
                          .adapter = "policy",
                          .writer = "other",
                          .serving = 40,
                          .epoch = epoch + 5,
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("pub", 3)};
    rig_frame(W4, &m);
    rig_error(W4, "writer_held");
    m.open.adapter = "critic", m.open.ucx = "1.14.0";
    rig_frame(W4, &m);
    rig_error(W4, "ucx_version");
    cr_assert(R.record_count == records && R.b->registry.epoch == epoch && rig_adapter()->last_version == 1);
    m.open.adapter = "policy", m.open.ucx = "1.13.1", m.open.takeover = true;
    rig_frame(W4, &m);
    cr_assert(R.tokens[W4] >> 32 == epoch + 6 && rig_adapter()->last_version == 40,
              "and one that is not does");
}

Test(restored_numbers, what_is_not_on_disk_is_not_gone_above)
{
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    join_at(W1, 7, 9);
    cr_assert(rig_error(W1, "no_space")->retriable);
    cr_assert(R.tokens[W1] == 0 && !rig_adapter() && !R.b->restored.at_ms);
    R.commit_error = 0;
    join_at(W1, 7, 9);
    cr_assert_neq(R.tokens[W1], 0);
}
