/* SPDX-License-Identifier: Apache-2.0 */
/* What `heddle status --check` ends with 1 for. */
#include "broker_rig.h"

#include "broker/questions/query.h"
#include "broker/questions/status_reasons.h"

static json_t *body;
static void stop(void)
{
    json_decref(body);
    body = NULL;
    rig_stop();
}
TestSuite(status_reasons, .init = rig_start, .fini = stop);

static const char *text_of(const json_t *part, const char *field)
{
    const char *text = json_string_value(json_object_get(part, field));
    return text ? text : "-";
}

static const json_t *reasons(void)
{
    heddle_error_t error;
    json_decref(body);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "status"});
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, &error), HEDDLE_OK);
    return json_object_get(body, "reasons");
}

/* "version.failed policy -; worker.lost - w2" */
static const char *names(void)
{
    static char text[1024];
    const json_t *list = reasons();
    cr_assert(json_is_array(list));
    text[0] = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *r = json_array_get(list, i);
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s %s %s", used ? "; " : "", text_of(r, "name"),
                 text_of(r, "adapter"), text_of(r, "worker"));
    }
    return text;
}

static const char *message_of(size_t i) { return text_of(json_array_get(reasons(), i), "message"); }

static void serve(uint64_t count)
{
    workers(count);
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 1});
    roll_out(count, 1, 1, 1);
}

Test(status_reasons, none_where_all_is_well)
{
    cr_assert_str_eq(names(), "", "nothing was published yet");
    serve(2);
    cr_assert_str_eq(names(), "");
    rig_leave(W2);
    cr_assert_str_eq(names(), "", "one that left was ended on purpose");
}

Test(status_reasons, the_newest_version_has_failed)
{
    serve(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    cr_assert_str_eq(names(), "", "it is on its way");
    rig_nack(W1, 2, 0, "stage", "version_failed");
    cr_assert_str_eq(names(), "version.failed policy -");
    cr_assert(strstr(message_of(0), "policy@2, the newest version, has failed: version_failed: "), "%s",
              message_of(0));
    rig_publish(T, (rig_publish_t){.digest = 3});
    roll_out(1, 3, 2, 3);
    cr_assert_str_eq(names(), "", "a newer one is served");
}

Test(status_reasons, a_lost_worker_and_then_a_lost_version)
{
    serve(2);
    rig_leave(T);
    R.tokens[T] = 0;
    R.is_quiet[W2] = true;
    rig_pass(LEASE_MS + 1000);
    cr_assert_str_eq(names(), "worker.lost - w2");
    cr_assert(strstr(message_of(0), "w2 is lost: its lease ended"), "%s", message_of(0));
    R.is_quiet[W1] = true;
    rig_pass(LEASE_MS + 1000);
    cr_assert_str_eq(names(), "version.lost policy -; worker.lost - w1; worker.lost - w2");
    R.now.us += MEMBER_LISTED_US;
    R.now.wall_ms += MEMBER_LISTED_US / 1000;
    rig_pass(1000);
    cr_assert_str_eq(names(), "version.lost policy -", "lost workers are listed for 10 minutes");
}

Test(status_reasons, a_held_adapter)
{
    serve(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "rollback", .name = "policy", .by = "ann"});
    cr_assert_str_eq(names(), "adapter.held policy -");
    cr_assert(strstr(message_of(0), "policy is held at policy@1 by ann since "), "%s", message_of(0));
}

Test(status_reasons, a_worker_that_lacks_the_active_version_for_longer_than_a_deadline)
{
    serve(1);
    rig_worker(W2, "w2");
    rig_pass(STATUS_REASON_LATE_US / 1000 - 1000);
    cr_assert_str_eq(names(), "", "it may still be fetching");
    rig_pass(2000);
    cr_assert_str_eq(names(), "worker.behind policy w2");
    cr_assert(strstr(message_of(0), "w2 has not served the active version of policy, now policy@1, for 1 m"),
              "%s", message_of(0));
    rig_staged(W2, 1, 1);
    rig_active(W2, 1, 1, 1);
    cr_assert_str_eq(names(), "");
}

/* Version `v` is staged and decided, as decision `v`; w2 could not switch to it. */
static void refused_by_w2(uint64_t v)
{
    rig_publish(T, (rig_publish_t){.digest = v});
    rig_staged(W1, v, v);
    rig_staged(W2, v, v);
    cr_assert_eq(rig_adapter()->active, v);
    rig_active(W1, v, v, v);
    rig_nack(W2, v, v, "activate", "version_failed");
}

/* Each new version would begin another minute, if it were counted from the decision. */
Test(status_reasons, a_worker_that_refuses_each_version_is_behind_since_the_first)
{
    char since[32];
    serve(2);
    rig_pass(5 * STATUS_REASON_LATE_US / 1000);
    clock_text(R.now.wall_ms, since);
    for (uint64_t v = 2; v <= 4; v++) {
        refused_by_w2(v);
        cr_assert_str_eq(names(), "", "policy@%llu: the minute is not over", (unsigned long long)v);
        rig_pass(22000);
    }
    cr_assert_str_eq(names(), "worker.behind policy w2");
    refused_by_w2(5);
    cr_assert_str_eq(names(), "worker.behind policy w2", "another version excuses nothing");
    cr_assert(strstr(message_of(0), "w2 has not served the active version of policy, now policy@5, for 1 m"),
              "%s", message_of(0));
    cr_assert(strstr(message_of(0), ": version_failed: "), "%s", message_of(0));
    cr_assert(!strncmp(text_of(json_array_get(reasons(), 0), "since_at"), since, 19), "%s, not %s",
              text_of(json_array_get(reasons(), 0), "since_at"), since);
    rig_publish(T, (rig_publish_t){.digest = 6});
    roll_out(2, 6, 6, 6);
    cr_assert_str_eq(names(), "");
    rig_pass(22000);
    refused_by_w2(7);
    cr_assert_str_eq(names(), "", "it served the version before");
}

/* It reports that it serves each version, and then that its application does not. */
Test(status_reasons, a_version_that_was_served_and_then_refused_was_not_served)
{
    serve(2);
    for (uint64_t v = 2; v <= 4; v++) {
        rig_publish(T, (rig_publish_t){.digest = v});
        roll_out(2, v, v, v);
        rig_nack(W2, v, v, "activate", "version_failed");
        cr_assert_str_eq(names(), "");
        rig_pass(22000);
    }
    cr_assert_str_eq(names(), "worker.behind policy w2");
}

Test(status_reasons, a_worker_whose_application_never_says_that_it_switched)
{
    serve(2);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    rig_staged(W2, 2, 2);
    rig_active(W1, 2, 2, 2);
    rig_pass(STATUS_REASON_LATE_US / 1000 + 3000);
    cr_assert_str_eq(names(), "worker.behind policy w2");
    cr_assert_str_eq(message_of(0), "w2 has not served the active version of policy, now policy@2, for "
                                    "1 m 3 s: switching for 1 m 3 s: its application has not said that it "
                                    "switched");
}

Test(status_reasons, a_worker_that_never_served_is_behind_since_it_joined)
{
    serve(1);
    rig_worker(W2, "w2");
    for (uint64_t v = 2; v <= 4; v++) {
        rig_pass(22000);
        cr_assert_str_eq(names(), v == 4 ? "worker.behind policy w2" : "");
        refused_by_w2(v);
    }
    cr_assert_str_eq(names(), "worker.behind policy w2");
}

/* Versions come faster than it fetches: each one that it serves is not the active one any more. */
Test(status_reasons, a_worker_that_serves_some_version_within_the_time)
{
    serve(2);
    for (uint64_t v = 2; v <= 6; v++) {
        rig_publish(T, (rig_publish_t){.digest = v});
        rig_staged(W1, v, v);
        rig_staged(W2, v, v);
        rig_active(W1, v, v, v);
        if (v > 2) rig_active(W2, v - 1, v - 1, v - 1);
        cr_assert_str_eq(names(), "", "policy@%llu", (unsigned long long)v);
        rig_pass(22000);
    }
    cr_assert_str_eq(names(), "");
    rig_pass(STATUS_REASON_LATE_US / 1000 - 23000);
    cr_assert_str_eq(names(), "", "the last one was served a minute ago");
    rig_pass(3000);
    cr_assert_str_eq(names(), "worker.behind policy w2", "it serves no other one any more");
}

/* A new session of the process changes nothing. */
Test(status_reasons, a_worker_that_refuses_and_joins_again)
{
    serve(2);
    refused_by_w2(2);
    rig_pass(40000);
    rig_hello(W2, ROLE_WORKER);
    msg_subscription_t sub = {.adapter = "policy", .decision = 1, .version = 1};
    msg_held_t held[] = {{.adapter = "policy", .version = 1, .state = HELD_ACTIVE, .digest = rig_digest(1)},
                         {.adapter = "policy", .version = 2, .state = HELD_STAGED, .digest = rig_digest(2)}};
    rig_join_with(W2, "w2", &sub, 1, held, 2);
    cr_assert_str_eq(names(), "");
    rig_pass(22000);
    cr_assert_str_eq(names(), "worker.behind policy w2");
}

/* Until it has them anew. */
Test(status_reasons, a_worker_that_serves_bytes_which_have_gone_bad)
{
    serve(2);
    msg_t m = {.type = MSG_VERIFIED};
    m.verified =
        (msg_verified_t){.token = R.tokens[W2], .version = 1, .adapter = "policy", .digest = rig_digest(2)};
    rig_frame(W2, &m);
    cr_assert_str_eq(names(), "worker.damaged policy w2");
    cr_assert(strstr(message_of(0), "w2 serves policy@1: its bytes in memory have gone bad"));
    m.verified.digest = rig_digest(1);
    rig_frame(W2, &m);
    cr_assert_str_eq(names(), "worker.damaged policy w2", "what is bad at times is bad");
    rig_worker(W2, "w2");
    rig_staged(W2, 1, 1);
    rig_active(W2, 1, 1, 1);
    cr_assert_str_eq(names(), "");
}

/* One that is to leave has three minutes in which another one takes over what it has. */
Test(status_reasons, a_worker_that_drains_and_is_the_last_one)
{
    serve(2);
    rig_leave(T);
    R.tokens[T] = 0;
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "drain", .name = "w1"});
    rig_query(ADMIN, (msg_query_t){.op = "drain", .name = "w2"});
    rig_pass(179000);
    cr_assert_str_eq(names(), "");
    rig_pass(2000);
    cr_assert_str_eq(names(), "worker.draining policy w1; worker.draining policy w2");
    cr_assert_str_eq(message_of(1), "w2 has been draining for 3 m 1 s: no process that stays has policy@1");
}

Test(status_reasons, a_broker_that_has_just_started)
{
    serve(1);
    rig_restart();
    cr_assert_str_eq(names(), "broker.settling - -");
}

Test(status_reasons, a_broker_that_takes_no_records)
{
    serve(1);
    R.b->state = BROKER_READ_ONLY;
    R.b->read_only_ms = R.now.wall_ms;
    snprintf(R.b->read_only_why, sizeof R.b->read_only_why, "the disk is full");
    cr_assert_str_eq(names(), "broker.read_only - -");
}

static brokers_t told_brokers;
static const brokers_t *io_list(void *self) { return (void)self, &told_brokers; }

/* It takes no records for that, and is read-only for it once one was tried: that is one reason. */
Test(status_reasons, an_etcd_that_does_not_answer)
{
    serve(1);
    R.b->io.brokers = io_list;
    told_brokers.is_answered = true;
    cr_assert_str_eq(names(), "");
    told_brokers.is_answered = false;
    cr_assert_str_eq(names(), "store.unanswered - -");
    cr_assert(strstr(message_of(0), "no endpoint of the etcd"), "%s", message_of(0));
    cr_assert(json_is_null(json_object_get(json_array_get(reasons(), 0), "since_at")), "it never answered");
    told_brokers.seen_us = R.now.us - 2000;
    R.b->state = BROKER_READ_ONLY;
    cr_assert_str_eq(names(), "store.unanswered - -");
}

/* However many there are: the answer has to fit into a message. */
Test(status_reasons, more_than_are_listed)
{
    char name[16];
    for (uint64_t i = 0; i < STATUS_REASONS_MAX + 3; i++) {
        snprintf(name, sizeof name, "x%03llu", (unsigned long long)i);
        rig_worker(20 + i, name);
        R.is_quiet[20 + i] = true;
    }
    rig_pass(LEASE_MS + 1000);
    cr_assert_eq(json_array_size(reasons()), STATUS_REASONS_MAX + 1);
    cr_assert_str_eq(message_of(STATUS_REASONS_MAX), "3 more reasons are not listed");
    uint64_t counts[REASON_COUNT];
    answer_view_t view = query_view(R.b, R.now);
    status_reasons_count(&view, counts);
    cr_assert_eq(counts[REASON_WORKER_LOST], STATUS_REASONS_MAX + 3, "counted all the same");
    cr_assert_eq(counts[REASON_MORE], 0);
}
