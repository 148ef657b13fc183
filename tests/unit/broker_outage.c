/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that refuses for a while: who asks again and again holds up nobody else, and who could not be let in
 * meanwhile finds his version when it takes records again. */
#include "tests/unit/broker_rig.h"

TestSuite(outage, .init = rig_start, .fini = rig_stop);

enum { OTHER = 5 };

/* A disk that has room for small records alone. */
static int only_small(void *self, const record_t *records, int count, heddle_error_t *error)
{
    for (int i = 0; i < count; i++)
        if (records[i].kind == RECORD_VERSION && !strcmp(records[i].adapter, "big"))
            return error_fail(error, HEDDLE_ERR_NO_SPACE, "no room for it");
    return rig_commit(self, records, count, error);
}

Test(outage, one_who_is_refused_again_and_again_holds_up_no_decision)
{
    rig_open(OTHER, "big", "another", 0, false);
    publish_to(1, (rig_publish_t){.digest = 1, .deadline_ms = 3600000});
    R.b->io.commit = only_small;
    rig_publish(OTHER, (rig_publish_t){.digest = 50, .adapter = "big"});
    rig_staged(W1, 1, 1);
    for (int i = 0; i < 20; i++) {
        rig_pass(500);
        rig_publish(OTHER, (rig_publish_t){.digest = 50, .adapter = "big"});
        rig_drop_letters();
    }
    cr_assert_eq(rig_adapter()->decision, 1);
}

/* Its answer would be beyond the limits of the protocol, so the store is not asked. */
Test(outage, a_request_that_did_not_reach_the_store_holds_up_no_decision)
{
    rig_open(OTHER, "big", "another", 0, false);
    publish_to(1, (rig_publish_t){.digest = 1, .deadline_ms = 3600000});
    registry_adapter(&R.b->registry, "big")->last_version = LIMIT_EXACT;
    rig_publish(OTHER, (rig_publish_t){.digest = 50, .adapter = "big"});
    rig_error(OTHER, "internal");
    rig_staged(W1, 1, 1);
    cr_assert_eq(rig_adapter()->decision, 1);
    cr_assert(R.b->state == BROKER_READY);
}

/* The publisher of version 1 was away for five leases of an outage that lasts still, and is about to open. */
static void come_back_in_an_outage(void)
{
    publish_to(1, (rig_publish_t){.digest = 1, .deadline_ms = 3600000});
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    rig_publish(T, (rig_publish_t){.digest = 2});
    R.is_quiet[T] = true;
    rig_pass(5 * LEASE_MS);
    R.is_quiet[T] = false;
    R.tokens[T] = 0;
}

Test(outage, a_publisher_that_could_not_come_back_meanwhile_has_a_lease_to_do_so)
{
    come_back_in_an_outage();
    rig_open(T, "policy", "trainer", 1, false);
    cr_assert_str_eq(rig_last(T, MSG_ERROR)->error.code, "no_space");
    R.commit_error = 0;
    rig_pass(1100);
    cr_assert(R.b->state == BROKER_READY);
    cr_assert_str_eq(rig_state(1), "staging");
    rig_open(T, "policy", "trainer", 1, false);
    rig_pass(5 * LEASE_MS);
    cr_assert_str_eq(rig_state(1), "staging", "it is there, and serves it");
}

/* Nor does one who is refused again and again keep the versions of those who are gone. */
Test(outage, a_publisher_that_stays_away_is_told_of_in_time)
{
    rig_open(OTHER, "big", "another", 0, false);
    publish_to(1, (rig_publish_t){.digest = 1, .deadline_ms = 3600000});
    R.b->io.commit = only_small;
    R.is_quiet[T] = true;
    for (int i = 0; i < 24; i++) {
        rig_publish(OTHER, (rig_publish_t){.digest = 50, .adapter = "big"});
        rig_pass(500);
        rig_drop_letters();
    }
    cr_assert_str_eq(rig_state(1), "failed");
}

Test(outage, of_a_publisher_that_stays_away_it_is_failed_a_lease_after)
{
    publish_to(1, (rig_publish_t){.digest = 1, .deadline_ms = 3600000});
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    rig_publish(T, (rig_publish_t){.digest = 2});
    R.is_quiet[T] = true;
    rig_pass(5 * LEASE_MS);
    R.commit_error = 0;
    rig_pass(1100);
    rig_pass(2 * LEASE_MS);
    cr_assert_str_eq(rig_state(1), "failed");
}

/* What it said before is no word for the next outage. */
Test(outage, one_refusal_counts_once)
{
    rig_open(OTHER, "big", "another", 0, false);
    come_back_in_an_outage();
    rig_open(T, "policy", "trainer", 1, false);
    R.is_quiet[T] = true;
    for (int i = 0; i < 4; i++) { /* a disk that has room, and has none, within each lease */
        R.commit_error = 0;
        rig_pass(1500);
        cr_assert(R.b->state == BROKER_READY);
        R.commit_error = HEDDLE_ERR_NO_SPACE;
        rig_publish(OTHER, (rig_publish_t){.digest = 51 + i, .adapter = "big"});
        rig_pass(1100);
    }
    R.commit_error = 0;
    rig_pass(1100);
    cr_assert_str_eq(rig_state(1), "failed");
}

/* Frames have their own time: what one changes is decided after the disk was tried, and after a refused
 * publisher has come back. */
Test(outage, nothing_is_decided_before_the_disk_was_tried)
{
    come_back_in_an_outage();
    rig_open(T, "policy", "trainer", 1, false);
    R.commit_error = 0;
    buf_t frame = {0};
    msg_t m = {.type = MSG_NEED_SOURCES};
    m.need_sources = (msg_need_sources_t){.token = R.tokens[W1], .adapter = "policy", .version = 1};
    cr_assert_eq(msg_encode(&m, &frame), HEDDLE_OK);
    R.now.us = R.b->retry_us + 1;
    broker_frame(R.b, W1, buf_view(&frame), R.now);
    rig_flush();
    buf_fini(&frame);
    cr_assert_str_eq(rig_state(1), "staging");
    broker_tick(R.b, R.now);
    rig_flush();
    cr_assert(R.b->state == BROKER_READY);
    cr_assert_str_eq(rig_state(1), "staging");
}

/* Also where it knows more than these data. */
Test(outage, a_publisher_whose_numbers_could_not_be_kept_counts_as_refused)
{
    come_back_in_an_outage();
    rig_hello(T, ROLE_PUBLISHER);
    msg_t m = {.type = MSG_OPEN};
    m.open = (msg_open_t){.req = ++R.req,
                          .adapter = "policy",
                          .writer = "trainer",
                          .serving = 1,
                          .epoch = R.b->registry.epoch + 3,
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("pub", 3)};
    rig_frame(T, &m);
    cr_assert_str_eq(rig_last(T, MSG_ERROR)->error.code, "no_space");
    R.commit_error = 0;
    rig_pass(1100);
    cr_assert(R.b->state == BROKER_READY);
    cr_assert_str_eq(rig_state(1), "staging");
}
