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

Test(outage, a_publisher_that_could_not_come_back_meanwhile_has_a_lease_to_do_so)
{
    publish_to(1, (rig_publish_t){.digest = 1, .deadline_ms = 3600000});
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    rig_publish(T, (rig_publish_t){.digest = 2});
    R.is_quiet[T] = true;
    rig_pass(5 * LEASE_MS);
    R.is_quiet[T] = false;
    R.tokens[T] = 0;
    rig_open(T, "policy", "trainer", 1, false);
    cr_assert_str_eq(rig_last(T, MSG_ERROR)->error.code, "no_space");
    R.commit_error = 0;
    rig_pass(1100);
    cr_assert(!R.b->is_read_only);
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
