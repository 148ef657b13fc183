/* SPDX-License-Identifier: Apache-2.0 */
/* The question `pull`: who is told where a version is, and that nothing follows from asking. */
#include "broker_rig.h"

TestSuite(pull, .init = rig_start, .fini = rig_stop);

static void ask(uint64_t version)
{
    rig_drop_letters();
    rig_query(ADMIN, (msg_query_t){.op = "pull", .name = "policy", .version = version});
}

static const msg_report_t *answered(uint64_t version)
{
    ask(version);
    return &rig_last(ADMIN, MSG_REPORT)->report;
}

static uint64_t version_of(const msg_report_t *r)
{
    json_t *body = NULL;
    heddle_error_t e;
    cr_assert_eq(value_decode(r->body, &body, &e), HEDDLE_OK);
    uint64_t version = (uint64_t)json_integer_value(json_object_get(body, "version"));
    json_decref(body);
    return version;
}

static const msg_error_t *refused(uint64_t version, const char *code)
{
    ask(version);
    return rig_error(ADMIN, code);
}

/* Version 1 is kept and 2 active, on w1 and w2; the publisher has ended. */
static void two_versions(void)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    roll_out(2, 2, 2, 2);
    rig_leave(T);
    R.tokens[T] = 0;
    rig_hello(ADMIN, ROLE_ADMIN);
}

Test(pull, names_the_holders_the_parts_and_the_key)
{
    two_versions();
    const msg_report_t *r = answered(1);
    cr_assert_eq(version_of(r), 1);
    cr_assert_eq(memcmp(&r->key, &rig_version(1)->share_key, sizeof r->key), 0);
    cr_assert(r->part_count == 1 && r->parts[0].payload_bytes == 8192);
    digest_t manifest = rig_digest(1001);
    cr_assert(digest_equal(&r->parts[0].manifest_digest, &manifest));
    cr_assert_eq(r->source_count, 2);
    for (uint32_t i = 0; i < 2; i++)
        cr_assert(r->sources[i].kind == SOURCE_WORKER &&
                  (r->sources[i].token == R.tokens[W1] || r->sources[i].token == R.tokens[W2]));
}

static void verified(uint64_t peer, uint64_t version, uint64_t digest, const char *code)
{
    msg_t m = {.type = MSG_VERIFIED};
    m.verified = (msg_verified_t){.token = R.tokens[peer],
                                  .version = version,
                                  .adapter = "policy",
                                  .code = code,
                                  .digest = rig_digest(digest)};
    rig_frame(peer, &m);
}

/* A verify found that, whichever question it was for. */
Test(pull, a_worker_whose_bytes_are_bad_is_no_source)
{
    static const struct {
        uint64_t digest;
        const char *code;
        bool is_bad;
    } CASES[] = {{2, "", false},
                 {2, "not_found", false},
                 {3, "", true},
                 {2, "digest_mismatch", true} /* the manifest alone */};
    for (size_t i = 0; i < 4; i++) {
        two_versions();
        verified(W1, 2, CASES[i].digest, CASES[i].code);
        const msg_report_t *r = answered(2);
        cr_assert_eq(r->source_count, CASES[i].is_bad ? 1 : 2, "case %zu", i);
        cr_assert_eq(answered(1)->source_count, 2);
        if (CASES[i].is_bad) {
            cr_assert_eq(answered(2)->sources[0].token, R.tokens[W2]);
            rig_worker(W1, "w1"); /* its former session has ended, and this one begins with nothing */
            cr_assert(rig_has(W1, MSG_ANNOUNCE));
            rig_staged(W1, 2, 2);
            cr_assert_eq(answered(2)->source_count, 2, "it has them anew");
        }
        rig_stop();
        rig_start();
    }
}

/* No operator has to ask.  Those that have the version look once a lease, however many newcomers fail. */
Test(pull, bad_bytes_that_a_newcomer_got_make_the_holders_look)
{
    two_versions();
    rig_worker(W3, "w3");
    rig_nack(W3, 2, 0, "stage", "digest_mismatch");
    rig_nack(W3, 2, 0, "verify", "no_memory");
    cr_assert(!rig_has(W1, MSG_VERIFY));
    rig_nack(W3, 2, 0, "verify", "digest_mismatch");
    cr_assert_eq(rig_last(W1, MSG_VERIFY)->verify.version, 2);
    cr_assert(rig_has(W2, MSG_VERIFY) && !rig_has(W3, MSG_VERIFY));
    rig_drop_letters();
    rig_nack(W3, 2, 0, "verify", "digest_mismatch");
    cr_assert(!rig_has(W1, MSG_VERIFY));
    rig_pass(R.b->rollout.lease_us / 1000);
    rig_nack(W3, 2, 0, "verify", "digest_mismatch");
    cr_assert(rig_has(W1, MSG_VERIFY));
    verified(W1, 2, 3, "");
    cr_assert_eq(answered(2)->source_count, 1);
}

Test(pull, the_name_alone_is_what_is_active)
{
    two_versions();
    cr_assert_eq(version_of(answered(0)), 2);
    rig_query(ADMIN, (msg_query_t){.op = "activate", .name = "policy", .version = 1});
    cr_assert_eq(version_of(answered(0)), 1, "also while the adapter is held");
}

Test(pull, or_the_newest_where_nothing_is_active)
{
    publish_to(1, (rig_publish_t){.activation = HEDDLE_ACTIVATION_MANUAL});
    rig_hello(ADMIN, ROLE_ADMIN);
    const msg_report_t *r = answered(0);
    cr_assert_eq(version_of(r), 1);
    cr_assert(r->source_count == 1 && r->sources[0].kind == SOURCE_PUBLISHER);
}

/* No worker, no subscriber, no quorum, and a rollout that begins meanwhile does not know of it. */
Test(pull, nothing_follows_from_it)
{
    two_versions();
    int commits = R.commits;
    size_t members = R.b->members.token_count;
    uint64_t events = R.b->events.last_seq;
    answered(0);
    cr_assert(R.commits == commits && R.b->members.token_count == members);
    cr_assert_eq(R.b->events.last_seq, events);
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 3});
    cr_assert_eq(rig_count(MSG_ANNOUNCE), 2);
    cr_assert(!rig_has(ADMIN, MSG_ANNOUNCE));
    roll_out(2, 3, 3, 3);
    cr_assert_str_eq(rig_state(3), "active");
}

Test(pull, what_there_is_not)
{
    two_versions();
    cr_assert(strstr(refused(9, "not_found")->message, "policy@9 was never published"));
    rig_drop_letters();
    rig_query(ADMIN, (msg_query_t){.op = "pull", .name = "nothing"});
    rig_error(ADMIN, "not_found");
    rig_drop_letters();
    rig_query(ADMIN, (msg_query_t){.op = "pull"});
    rig_error(ADMIN, "bad_name");
}

Test(pull, what_ended_and_what_is_lost)
{
    two_versions();
    rig_open(T, "policy", "trainer", 0, false);
    rig_publish(T, (rig_publish_t){.digest = 3});
    rig_nack(W1, 3, 0, "stage", "version_failed");
    cr_assert_str_eq(rig_state(3), "failed");
    cr_assert_str_eq(refused(3, "version_failed")->found, "failed");
    rig_publish(T, (rig_publish_t){.digest = 4});
    roll_out(2, 4, 3, 4);
    cr_assert_str_eq(rig_state(1), "retired");
    cr_assert_str_eq(refused(1, "version_lost")->found, "retired");
    rig_leave(W1);
    rig_leave(W2);
    R.tokens[W1] = R.tokens[W2] = 0;
    cr_assert_str_eq(refused(2, "version_lost")->found, "lost");
}

/* Holders may be on their way back: no source is known, and that is said; it is asked again. */
Test(pull, without_a_source_while_the_broker_settles)
{
    two_versions();
    rig_restart();
    rig_hello(ADMIN, ROLE_ADMIN);
    cr_assert_eq(answered(2)->source_count, 0);
    rig_pass(LEASE_MS + 500);
    refused(2, "version_lost");
}
