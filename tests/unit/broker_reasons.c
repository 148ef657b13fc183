/* SPDX-License-Identifier: Apache-2.0 */
/* What `heddle status --check` ends with 1 for. */
#include "broker_rig.h"

#include "broker/questions/report_reasons.h"

static json_t *body;
static void stop(void)
{
    json_decref(body);
    body = NULL;
    rig_stop();
}
TestSuite(reasons, .init = rig_start, .fini = stop);

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

Test(reasons, none_where_all_is_well)
{
    cr_assert_str_eq(names(), "", "nothing was published yet");
    serve(2);
    cr_assert_str_eq(names(), "");
    rig_leave(W2);
    cr_assert_str_eq(names(), "", "one that left was ended on purpose");
}

Test(reasons, the_newest_version_has_failed)
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

Test(reasons, a_lost_worker_and_then_a_lost_version)
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

Test(reasons, a_held_adapter)
{
    serve(1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(1, 2, 2, 2);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = "rollback", .name = "policy", .by = "ann"});
    cr_assert_str_eq(names(), "adapter.held policy -");
    cr_assert(strstr(message_of(0), "policy is held at policy@1 by ann since "), "%s", message_of(0));
}

Test(reasons, a_worker_that_lacks_the_active_version_for_longer_than_a_deadline)
{
    serve(1);
    rig_worker(W2, "w2");
    rig_pass(REASON_LATE_US / 1000 - 1000);
    cr_assert_str_eq(names(), "", "it may still be fetching");
    rig_pass(2000);
    cr_assert_str_eq(names(), "worker.behind policy w2");
    cr_assert(strstr(message_of(0), "w2 has not had policy@1, the active version, for 1 m"), "%s",
              message_of(0));
    rig_staged(W2, 1, 1);
    rig_active(W2, 1, 1, 1);
    cr_assert_str_eq(names(), "");
}

Test(reasons, a_broker_that_has_just_started)
{
    serve(1);
    rig_restart();
    cr_assert_str_eq(names(), "broker.settling - -");
}

Test(reasons, a_broker_that_takes_no_records)
{
    serve(1);
    R.b->state = BROKER_READ_ONLY;
    R.b->read_only_ms = R.now.wall_ms;
    snprintf(R.b->read_only_why, sizeof R.b->read_only_why, "the disk is full");
    cr_assert_str_eq(names(), "broker.read_only - -");
}

/* However many there are: the answer has to fit into a message. */
Test(reasons, more_than_are_listed)
{
    char name[16];
    for (uint64_t i = 0; i < REASONS_MAX + 3; i++) {
        snprintf(name, sizeof name, "x%03llu", (unsigned long long)i);
        rig_worker(20 + i, name);
        R.is_quiet[20 + i] = true;
    }
    rig_pass(LEASE_MS + 1000);
    cr_assert_eq(json_array_size(reasons()), REASONS_MAX + 1);
    cr_assert_str_eq(message_of(REASONS_MAX), "3 more reasons are not listed");
}
