/* SPDX-License-Identifier: Apache-2.0 */
/* A broker with keys: who is heard, whose name is whose, and what a revocation ends. */
#include "broker_rig.h"

#include "broker/questions/query.h"
#include "broker/questions/answer.h"

enum { BOSS = 1, WORKER = 2, OTHER = 3, WRITER = 4, READER = 5, STRANGER = 6 };
static const char *const KEY[] = {[BOSS] = "1aaaaaaaaaabbbbbbbbbbccccccccccddddddddd",
                                  [WORKER] = "2aaaaaaaaaabbbbbbbbbbccccccccccddddddddd",
                                  [OTHER] = "3aaaaaaaaaabbbbbbbbbbccccccccccddddddddd",
                                  [WRITER] = "4aaaaaaaaaabbbbbbbbbbccccccccccddddddddd",
                                  [READER] = "5aaaaaaaaaabbbbbbbbbbccccccccccddddddddd",
                                  [STRANGER] = "6aaaaaaaaaabbbbbbbbbbccccccccccddddddddd"};

static void add(int who, const char *name, const char *role)
{
    const char *roles[] = {role};
    rig_query(BOSS,
              (msg_query_t){.op = "key_add", .key = KEY[who], .name = name, .roles = roles, .role_count = 1});
}
static void revoke(const char *name) { rig_query(BOSS, (msg_query_t){.op = "key_revoke", .name = name}); }
static json_t *body_for(uint64_t peer)
{
    json_t *body = NULL;
    heddle_error_t e;
    cr_assert_eq(value_decode(rig_last(peer, MSG_REPORT)->report.body, &body, &e), HEDDLE_OK);
    return body;
}
static int64_t number(uint64_t peer, const char *field)
{
    json_t *body = body_for(peer);
    int64_t n = (int64_t)json_integer_value(json_object_get(body, field));
    json_decref(body);
    return n;
}

static void start(void)
{
    heddle_error_t e;
    rig_start();
    rig_stop();
    R = (struct rig){.now = {.us = 1000000000, .wall_ms = 1780000000000}, .keep = 1, .has_keys = true};
    for (int i = BOSS; i <= STRANGER; i++) R.keys[i] = KEY[i];
    rig_boot();
    cr_assert_eq(broker_admit_admin(R.b, KEY[BOSS], "local", R.now, &e), HEDDLE_OK, "%s", e.message);
    rig_hello(BOSS, ROLE_ADMIN);
    add(WORKER, "w", "worker:policy");
    add(OTHER, "other", "worker:policy");
    add(WRITER, "trainer", "publisher:policy");
    add(READER, "reader", "reader");
}
TestSuite(keys, .init = start, .fini = rig_stop);

static void say_staged(uint64_t peer, uint64_t token)
{
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = token, .version = 1, .adapter = "policy", .digest = rig_digest(1)};
    rig_frame(peer, &m);
}

/* ---- who is heard ---- */

Test(keys, a_stranger_is_told_once_he_says_hello_and_else_not_heard)
{
    size_t before = R.letter_count;
    rig_query(STRANGER, (msg_query_t){.op = "status"});
    rig_beat(STRANGER);
    cr_assert_eq(R.letter_count, before, "dropped");
    cr_assert_eq(R.b->denied, 2);
    rig_hello(STRANGER, ROLE_ADMIN);
    cr_assert(!rig_error(STRANGER, "denied")->retriable, "a command ends");
    rig_hello(STRANGER, ROLE_WORKER);
    cr_assert(rig_error(STRANGER, "denied")->retriable && rig_error(STRANGER, "denied")->retry_ms,
              "a worker tries again");
    cr_assert(!broker_lets_in(R.b, KEY[STRANGER], R.now) && broker_lets_in(R.b, KEY[READER], R.now));
}

static const json_t *warnings(json_t **ret_body)
{
    heddle_error_t e;
    answer_page_t page = {0};
    answer_view_t view = query_view(R.b, R.now);
    cr_assert_eq(answer_page(&view, &(msg_query_t){.op = "status"}, &page, &e), HEDDLE_OK);
    *ret_body = page.body;
    return json_object_get(page.body, "warnings");
}

static bool is_logged_refusal(const char *key)
{
    R.warned[0] = 0;
    broker_refused_key(R.b, key, R.now);
    return !strncmp(R.warned, "keys.refused the key ", 21);
}

Test(keys, a_refused_key_is_named_to_the_operator)
{
    json_t *body;
    char want[sizeof((stranger_t *)0)->text];
    int lines = 0;
    for (int i = 0; i < 12; i++) lines += is_logged_refusal(KEY[STRANGER]);
    cr_assert_eq(lines, 1, "the log has it once");
    snprintf(want, sizeof want, "the key %s was refused 12 times: ", KEY[STRANGER]);
    const json_t *list = warnings(&body);
    cr_assert_eq(json_array_size(list), 1);
    const char *said = json_string_value(json_object_get(json_array_get(list, 0), "message"));
    cr_assert(said && !strncmp(said, want, strlen(want)) &&
                  strstr(said, "not in the table of keys; `heddle keys add '"),
              "%s", said);
    json_decref(body);
    R.now.us += STRANGERS_US;
    cr_assert_eq(json_array_size(warnings(&body)), 0, "it is over after 10 minutes");
    json_decref(body);
    broker_refused_key(R.b, KEY[READER], R.now);
    cr_assert_eq(json_array_size(warnings(&body)), 0, "it was admitted since");
    json_decref(body);
}

static bool is_reason(const char *name)
{
    json_t *body;
    (void)warnings(&body);
    const json_t *list = json_object_get(body, "reasons");
    bool found = false;
    for (size_t i = 0; i < json_array_size(list); i++)
        found |= !strcmp(json_string_value(json_object_get(json_array_get(list, i), "name")), name);
    json_decref(body);
    return found;
}

/* The broker's data are another cluster's: its workers' keys are unknown, and nothing else tells of it. */
Test(keys, a_broker_that_refuses_all_its_workers_is_not_well)
{
    for (int i = 0; i < 2; i++) (void)is_logged_refusal(KEY[STRANGER]);
    cr_assert(!is_reason("keys.refused"), "a mistyped command");
    (void)is_logged_refusal(KEY[STRANGER]);
    cr_assert(is_reason("keys.refused"));
    rig_worker(WORKER, "w1");
    cr_assert(!is_reason("keys.refused"), "its own workers are here");
}

/* A worker or publisher whose key lacks the role is as absent as one whose key is unknown. */
Test(keys, a_key_without_the_role_is_named_to_the_operator)
{
    json_t *body;
    msg_subscription_t sub = {.adapter = "polcy"};
    rig_hello(WORKER, ROLE_WORKER);
    R.warned[0] = 0;
    for (int i = 0; i < 3; i++) rig_join_with(WORKER, "w1", &sub, 1, NULL, 0);
    rig_error(WORKER, "denied");
    static const char WANT[] = "keys.refused the key w may not be a worker: it needs the role worker:polcy; "
                               "it has worker:policy (refused 1 time)";
    cr_assert_str_eq(R.warned, WANT);
    const json_t *list = warnings(&body);
    cr_assert_eq(json_array_size(list), 1);
    const char *said = json_string_value(json_object_get(json_array_get(list, 0), "message"));
    cr_assert(said && strstr(said, "worker:polcy") && strstr(said, "(refused 3 times)"), "%s", said);
    json_decref(body);
    R.now.us += 2000000;
    rig_hello(READER, ROLE_PUBLISHER); /* a publisher: refused at HELLO */
    cr_assert(strstr(R.warned, "the key reader may not publish") != NULL, "%s", R.warned);
    rig_query(READER, (msg_query_t){.op = "key_add"}); /* a command ends with its error */
    cr_assert_eq(json_array_size(warnings(&body)), 2);
    json_decref(body);
    revoke("w");
    add(WORKER, "w", "worker:polcy");
    cr_assert_eq(json_array_size(warnings(&body)), 1, "it has the role now");
    json_decref(body);
}

/* However many try: the last ones are listed, and the log gets a line a second. */
Test(keys, refused_keys_are_bounded)
{
    json_t *body;
    int lines = 0;
    char key[HEDDLE_KEY_TEXT];
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "%040d", i);
        R.now.us += 20000;
        R.now.wall_ms += 20;
        lines += is_logged_refusal(key);
    }
    cr_assert_eq(lines, 2);
    const json_t *list = warnings(&body);
    cr_assert_eq(json_array_size(list), STRANGERS_MAX);
    cr_assert_not_null(
        strstr(json_string_value(json_object_get(json_array_get(list, 0), "message")), "068 was"));
    json_decref(body);
}

Test(keys, each_role_does_its_own_and_no_more)
{
    msg_subscription_t critic = {.adapter = "critic"};
    rig_worker(WORKER, "w1");
    rig_hello(OTHER, ROLE_WORKER);
    rig_join_with(OTHER, "w2", &critic, 1, NULL, 0);
    cr_assert_str_eq(rig_error(OTHER, "denied")->adapter, "critic");
    cr_assert_eq(R.tokens[OTHER], 0);
    rig_open(OTHER, "policy", "t", 0, false);
    rig_error(OTHER, "denied");
    rig_open(WRITER, "policy", "trainer", 0, false);
    cr_assert_neq(R.tokens[WRITER], 0);
    rig_publish(WRITER, (rig_publish_t){.digest = 1});
    cr_assert(rig_has(WRITER, MSG_PUBLISHED));
    rig_publish(WORKER, (rig_publish_t){.digest = 2});
    rig_error(WORKER, "denied");
    rig_hello(READER, ROLE_ADMIN);
    rig_query(READER, (msg_query_t){.op = "adapters"});
    cr_assert(rig_has(READER, MSG_REPORT));
    rig_query(READER, (msg_query_t){.op = "activate", .name = "policy", .version = 1});
    rig_error(READER, "denied");
    rig_query(READER, (msg_query_t){.op = "keys"});
    cr_assert(strstr(rig_error(READER, "denied")->message, "admin"));
    cr_assert_eq(registry_adapter(&R.b->registry, "policy")->decision, 0, "nobody decided");
}

Test(keys, a_name_is_its_keys_while_it_lives)
{
    rig_worker(WORKER, "w1");
    R.is_quiet[WORKER] = true;
    rig_pass(2500); /* silent for two heartbeats: its own key would get the name now */
    R.is_gone[WORKER] = true;
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello(OTHER, ROLE_WORKER);
    rig_join_with(OTHER, "w1", &sub, 1, NULL, 0);
    rig_error(OTHER, "worker_alive");
    cr_assert_eq(R.tokens[OTHER], 0);
    R.keys[7] = KEY[WORKER];
    rig_hello(7, ROLE_WORKER);
    rig_join_with(7, "w1", &sub, 1, NULL, 0);
    cr_assert_neq(R.tokens[7], 0, "the same key");
    R.is_quiet[7] = true;
    rig_pass(2500);
    R.is_gone[7] = true;
    R.keys[8] = KEY[BOSS];
    rig_hello(8, ROLE_WORKER);
    rig_join_with(8, "w1", &sub, 1, NULL, 0);
    cr_assert_neq(R.tokens[8], 0, "an admin");
    R.is_quiet[8] = true;
    rig_pass(LEASE_MS + 500);
    rig_join_with(OTHER, "w1", &sub, 1, NULL, 0);
    cr_assert_neq(R.tokens[OTHER], 0, "nobody has it any more");
}

/* ---- revocation ---- */

Test(keys, revocation_ends_a_worker_at_once)
{
    rig_worker(WORKER, "w1");
    rig_worker(OTHER, "w2");
    rig_open(WRITER, "policy", "trainer", 0, false);
    rig_publish(WRITER, (rig_publish_t){.digest = 1});
    rig_staged(OTHER, 1, 1);
    uint64_t token = R.tokens[WORKER];
    rig_drop_letters();
    revoke("w");
    cr_assert_eq(number(BOSS, "session_count"), 1);
    const msg_error_t *told = rig_error(WORKER, "denied");
    cr_assert(told->token == token && told->of == 0);
    static const char AGAIN[] = "`heddle keys add '2aaaaaaaaaabbbbbbbbbbccccccccccddddddddd' --name w "
                                "--role worker:policy` admits it";
    cr_assert(!strncmp(told->hint, AGAIN, sizeof AGAIN - 1), "%s", told->hint);
    const member_t *lost = membership_worker(&R.b->members, "w1");
    cr_assert(lost->state == MEMBER_LOST && lost->end_code == HEDDLE_ERR_DENIED);
    cr_assert_str_eq(lost->end_message, "its key was revoked");
    cr_assert(rig_has(OTHER, MSG_COMMIT), "nobody waits for it: the rollout goes on with the others");
    cr_assert_eq(rig_event_count(EVENT_WORKER_LOST), 1);
    cr_assert_eq(rig_event_count(EVENT_KEY_REVOKED), 1);
    rig_drop_letters();
    say_staged(WORKER, token);
    rig_beat(WORKER);
    cr_assert(!rig_has(WORKER, MSG_ERROR) && !rig_has(WORKER, MSG_HEARTBEAT_OK), "dropped");
    cr_assert(!broker_lets_in(R.b, KEY[WORKER], R.now));
    R.warned[0] = 0;
    rig_hello(WORKER, ROLE_WORKER);
    rig_error(WORKER, "denied");
    cr_assert(!strncmp(R.warned, "keys.refused the key ", 21), "%s", R.warned);
    cr_assert(strstr(R.warned, ": it was revoked; ") && strstr(R.warned, AGAIN), "%s", R.warned);
    cr_assert(!strncmp(rig_error(WORKER, "denied")->hint, AGAIN, sizeof AGAIN - 1));
    rig_drop_letters();
    rig_beat(OTHER);
    cr_assert(rig_has(OTHER, MSG_HEARTBEAT_OK), "who has another key notices nothing");
    add(WORKER, "w", "worker:policy");
    rig_worker(WORKER, "w1");
}

static const char *text_of(const json_t *part, const char *field)
{
    const char *text = json_string_value(json_object_get(part, field));
    return text ? text : "-";
}

/* Its lease had most of its time left: what `versions` says is why the session ended. */
Test(keys, a_copy_of_a_revoked_worker_says_so)
{
    rig_worker(WORKER, "w1");
    rig_worker(OTHER, "w2");
    rig_open(WRITER, "policy", "trainer", 0, false);
    rig_publish(WRITER, (rig_publish_t){.digest = 1});
    rig_pass(1500);
    revoke("w");
    rig_query(BOSS, (msg_query_t){.op = "versions", .name = "policy", .version = 1});
    json_t *body = body_for(BOSS);
    const json_t *version = json_array_get(json_object_get(body, "versions"), 0);
    const json_t *missing = json_object_get(json_object_get(version, "rollout"), "missing");
    const json_t *rows[] = {json_array_get(json_object_get(version, "workers"), 0),
                            json_array_get(missing, 0)};
    for (size_t i = 0; i < 2; i++) {
        cr_assert_str_eq(text_of(rows[i], "worker"), "w1");
        cr_assert_str_eq(text_of(rows[i], "code"), "denied");
        cr_assert_str_eq(text_of(rows[i], "message"),
                         "its key was revoked in phase announce, 1500 ms after the announcement");
    }
    json_decref(body);
}

Test(keys, a_live_key_gets_more_roles_and_its_sessions_go_on)
{
    rig_worker(WORKER, "w1");
    uint64_t token = R.tokens[WORKER];
    rig_drop_letters();
    add(WORKER, "w", "worker:critic");
    json_t *body = body_for(BOSS), *key = json_object_get(body, "key"), *added;
    cr_assert(json_is_true(json_object_get(body, "changed")));
    cr_assert_eq(json_array_size(json_object_get(key, "roles")), 2);
    added = json_object_get(body, "added_roles");
    cr_assert_eq(json_array_size(added), 1);
    cr_assert_str_eq(json_string_value(json_array_get(added, 0)), "worker:critic");
    json_decref(body);
    cr_assert(!rig_has(WORKER, MSG_ERROR));
    rig_beat(WORKER);
    cr_assert(rig_has(WORKER, MSG_HEARTBEAT_OK) && R.tokens[WORKER] == token);
    msg_subscription_t both[] = {{.adapter = "critic"}, {.adapter = "policy"}};
    rig_join_with(WORKER, "w1", both, 2, NULL, 0);
    cr_assert(R.tokens[WORKER] != token, "it may join for both now");
    rig_drop_letters();
    add(WORKER, "w", "worker:critic");
    body = body_for(BOSS);
    cr_assert(json_is_false(json_object_get(body, "changed")));
    cr_assert_eq(json_array_size(json_object_get(body, "added_roles")), 0);
    json_decref(body);
}

Test(keys, revocation_ends_a_writer_and_gives_its_adapter_back)
{
    rig_open(WRITER, "policy", "trainer", 0, false);
    revoke("trainer");
    rig_error(WRITER, "denied");
    cr_assert_eq(rig_writer(), 0);
    add(STRANGER, "second", "publisher:*");
    rig_open(STRANGER, "policy", "another", 0, false);
    cr_assert_neq(R.tokens[STRANGER], 0);
}

Test(keys, revocation_ends_waiting_questions)
{
    rig_open(WRITER, "policy", "trainer", 0, false);
    rig_hello(READER, ROLE_ADMIN);
    rig_query(READER, (msg_query_t){.op = "wait", .name = "policy", .version = 1, .deadline_ms = 60000});
    rig_query(READER, (msg_query_t){.op = "events", .after = 1000, .wait_ms = 60000});
    size_t waiting = R.b->pending.count;
    cr_assert_gt(waiting, 0);
    revoke("reader");
    cr_assert_eq(R.b->pending.count, 0);
}

/* From `peer` on, of one key: as many as it may have waiting. */
static uint64_t ask_all_it_may(uint64_t peer, int who)
{
    for (unsigned i = 0; i <= PENDING_PER_KEY; i++) {
        if (i && i % PENDING_PER_PEER == 0) peer++;
        R.keys[peer] = KEY[who];
        if (i % PENDING_PER_PEER == 0) rig_hello(peer, ROLE_ADMIN);
        rig_query(peer,
                  (msg_query_t){.op = "wait", .name = "policy", .version = 2, .deadline_ms = UINT32_MAX});
    }
    cr_assert(strstr(rig_error(peer, "limit")->message, "under this key"));
    return peer + 1;
}

Test(keys, no_key_keeps_others_from_asking_nor_all_of_them_an_admin_from_going_back)
{
    rig_worker(WORKER, "w1");
    rig_open(WRITER, "policy", "trainer", 0, false);
    rig_publish(WRITER, (rig_publish_t){.digest = 1});
    rig_staged(WORKER, 1, 1);
    rig_active(WORKER, 1, 1, 1);
    rig_publish(WRITER, (rig_publish_t){.digest = 2, .activation = HEDDLE_ACTIVATION_MANUAL});
    uint64_t peer = ask_all_it_may(20, READER);
    cr_assert_eq(R.b->pending.count, PENDING_PER_KEY);
    peer = ask_all_it_may(peer, OTHER); /* another key has its own */
    peer = ask_all_it_may(peer, WRITER);
    add(STRANGER, "s", "reader");
    R.keys[peer] = KEY[STRANGER];
    for (unsigned i = 0; i < PENDING_PER_KEY; i++) {
        if (i % PENDING_PER_PEER == 0) R.keys[++peer] = KEY[STRANGER], rig_hello(peer, ROLE_ADMIN);
        rig_query(peer, (msg_query_t){.op = "events", .after = 1000, .wait_ms = UINT32_MAX});
    }
    cr_assert_eq(R.b->pending.count, LIMIT_PENDING_QUERIES - PENDING_FOR_ADMINS);
    cr_assert(strstr(rig_error(peer, "limit")->message, "without the role admin"));
    rig_drop_letters();
    rig_query(
        BOSS,
        (msg_query_t){.op = "activate", .name = "policy", .version = 1, .quorum_kind = HEDDLE_QUORUM_NONE});
    cr_assert(rig_has(BOSS, MSG_REPORT));
    rig_query(BOSS, (msg_query_t){.op = "wait", .name = "policy", .version = 2, .deadline_ms = 1000});
    cr_assert_eq(R.b->pending.count, LIMIT_PENDING_QUERIES - PENDING_FOR_ADMINS + 1);
}

Test(keys, an_admin_may_revoke_itself_and_hears_so)
{
    R.keys[7] = KEY[STRANGER];
    revoke("local");
    rig_error(BOSS, "denied");
    add(STRANGER, "second", "admin");
    rig_drop_letters();
    revoke("local");
    cr_assert(rig_has(BOSS, MSG_REPORT));
    rig_drop_letters();
    rig_query(BOSS, (msg_query_t){.op = "keys"});
    cr_assert_eq(R.letter_count, 0);
    rig_hello(7, ROLE_ADMIN);
    rig_query(7, (msg_query_t){.op = "keys"});
    cr_assert(rig_has(7, MSG_REPORT));
}

/* ---- what is known ---- */

Test(keys, list_is_by_name_with_sessions)
{
    rig_worker(WORKER, "w1");
    rig_query(BOSS, (msg_query_t){.op = "keys"});
    json_t *body = body_for(BOSS), *list = json_object_get(body, "keys");
    static const char *const NAMES[] = {"local", "other", "reader", "trainer", "w"};
    cr_assert_eq(json_array_size(list), 5);
    for (size_t i = 0; i < 5; i++) {
        const json_t *row = json_array_get(list, i);
        cr_assert_str_eq(json_string_value(json_object_get(row, "name")), NAMES[i]);
        cr_assert_eq(json_integer_value(json_object_get(row, "session_count")), i == 4);
        cr_assert(json_is_null(json_object_get(row, "revoked_at")) &&
                  json_is_string(json_object_get(row, "added_at")));
    }
    cr_assert_str_eq(json_string_value(json_array_get(json_object_get(json_array_get(list, 4), "roles"), 0)),
                     "worker:policy");
    json_decref(body);
    rig_query(BOSS, (msg_query_t){.op = "keys", .after = 3, .limit = 1});
    const msg_report_t *page = &rig_last(BOSS, MSG_REPORT)->report;
    cr_assert(page->more && page->next == 4);
    cr_assert_eq(number(BOSS, "nothing"), 0);
}

Test(keys, table_survives_a_restart)
{
    heddle_error_t e;
    revoke("other");
    rig_restart();
    cr_assert(broker_lets_in(R.b, KEY[WORKER], R.now) && !broker_lets_in(R.b, KEY[OTHER], R.now));
    cr_assert_eq(broker_admit_admin(R.b, KEY[BOSS], "local", R.now, &e), HEDDLE_OK);
    cr_assert_eq(HASH_COUNT(R.b->auth.keys), 5, "it was there");
    rig_worker(WORKER, "w1");
}

Test(keys, the_option_lets_in_whom_the_table_does_not_know)
{
    heddle_error_t e;
    add(STRANGER, "second", "admin");
    revoke("local");
    cr_assert_eq(broker_admit_admin(R.b, KEY[BOSS], "", R.now, &e), HEDDLE_OK);
    cr_assert(!broker_lets_in(R.b, KEY[BOSS], R.now), "revoked, and the options of the unit still name it");
    cr_assert(strstr(R.warned, "broker.admin_key") && strstr(R.warned, "local, revoked"), "%s", R.warned);
    cr_assert_eq(broker_admit_admin(R.b, KEY[READER], "", R.now, &e), HEDDLE_OK);
    cr_assert(!auth_is_admin(auth_key(&R.b->auth, KEY[READER])));
    cr_assert(strstr(R.warned, "reader, with the roles reader") && strstr(R.warned, "keygen"), "%s",
              R.warned);
    R.warned[0] = 0;
    static const char NEW[] = "7aaaaaaaaaabbbbbbbbbbccccccccccddddddddd";
    for (int i = 0; i < 2; i++) cr_assert_eq(broker_admit_admin(R.b, NEW, "", R.now, &e), HEDDLE_OK);
    cr_assert(auth_is_admin(auth_key(&R.b->auth, NEW)) && !R.warned[0], "%s", R.warned);
}

Test(keys, what_is_not_on_disk_did_not_happen)
{
    R.commit_error = HEDDLE_ERR_NO_SPACE;
    add(STRANGER, "s", "reader");
    rig_error(BOSS, "no_space");
    cr_assert(!broker_lets_in(R.b, KEY[STRANGER], R.now));
    rig_worker(WORKER, "w1");
    revoke("w");
    rig_error(BOSS, "no_space");
    cr_assert(broker_lets_in(R.b, KEY[WORKER], R.now));
    cr_assert(member_is_ready(membership_worker(&R.b->members, "w1")));
}

Test(plain, there_are_no_keys, .init = rig_start, .fini = rig_stop)
{
    rig_hello(1, ROLE_ADMIN);
    static const char *const OPS[] = {"keys", "key_add", "key_revoke"};
    for (int i = 0; i < 3; i++) {
        rig_drop_letters();
        rig_query(1, (msg_query_t){.op = OPS[i], .key = KEY[1], .name = "n"});
        cr_assert(strstr(rig_error(1, "denied")->hint, "--insecure"));
    }
    rig_worker(2, "w1");
}

/* ---- invitations ---- */

static void invite(int who, uint64_t uses)
{
    const char *roles[] = {"worker:policy"};
    rig_query(BOSS, (msg_query_t){.op = "invite",
                                  .key = KEY[who],
                                  .name = "train",
                                  .roles = roles,
                                  .role_count = 1,
                                  .uses = uses,
                                  .ttl_ms = 60000});
}
static void enter(const char *key) { rig_query(STRANGER, (msg_query_t){.op = "enter", .key = key}); }
static const char *const NEW[] = {"7aaaaaaaaaabbbbbbbbbbccccccccccddddddddd",
                                  "8aaaaaaaaaabbbbbbbbbbccccccccccddddddddd",
                                  "9aaaaaaaaaabbbbbbbbbbccccccccccddddddddd"};

Test(keys, an_invitation_asks_how_it_is_with_it)
{
    invite(STRANGER, 1);
    rig_hello(STRANGER, ROLE_ADMIN);
    size_t records = R.record_count;
    rig_query(STRANGER, (msg_query_t){.op = "invitation"});
    json_t *body = body_for(STRANGER);
    const json_t *key = json_object_get(body, "key");
    cr_assert_str_eq(json_string_value(json_object_get(json_object_get(key, "invitation"), "state")), "open");
    json_decref(body);
    cr_assert_eq(R.record_count, records, "nothing is written for it");
    enter(NEW[0]);
    rig_query(STRANGER, (msg_query_t){.op = "invitation"});
    cr_assert(strstr(rig_error(STRANGER, "denied")->message, "used up"));
}

Test(keys, the_last_use_enters_one_of_those_that_race_for_it)
{
    invite(STRANGER, 2);
    cr_assert(broker_lets_in(R.b, KEY[STRANGER], R.now) && !broker_lets_in(R.b, NEW[0], R.now));
    rig_hello(STRANGER, ROLE_ADMIN);
    for (int i = 0; i < 3; i++) enter(NEW[i]);
    cr_assert(broker_lets_in(R.b, NEW[0], R.now) && broker_lets_in(R.b, NEW[1], R.now) &&
              !broker_lets_in(R.b, NEW[2], R.now));
    cr_assert_str_eq(rig_error(STRANGER, "denied")->message, "the invitation train is used up");
    enter(NEW[1]);
    cr_assert_eq(number(STRANGER, "changed"), 0);
    cr_assert_eq(auth_key(&R.b->auth, KEY[STRANGER])->invitation.used, 2);
}

Test(keys, the_count_of_uses_outlives_the_broker)
{
    invite(STRANGER, 2);
    rig_hello(STRANGER, ROLE_ADMIN);
    enter(NEW[0]);
    rig_restart();
    rig_hello(STRANGER, ROLE_ADMIN);
    enter(NEW[1]);
    enter(NEW[2]);
    cr_assert(broker_lets_in(R.b, NEW[0], R.now) && broker_lets_in(R.b, NEW[1], R.now) &&
              !broker_lets_in(R.b, NEW[2], R.now));
}

Test(keys, the_connection_of_an_invitation_reads_nothing)
{
    invite(STRANGER, 2);
    rig_hello(STRANGER, ROLE_ADMIN);
    rig_query(STRANGER, (msg_query_t){.op = "status"});
    cr_assert(strstr(rig_error(STRANGER, "denied")->message, "is the invitation train"));
    rig_hello(STRANGER, ROLE_WORKER);
    cr_assert(rig_error(STRANGER, "denied"));
    revoke("train");
    cr_assert(!broker_lets_in(R.b, KEY[STRANGER], R.now));
    enter(NEW[0]);
    cr_assert(!broker_lets_in(R.b, NEW[0], R.now), "of a revoked one nothing is heard");
}

/* A key that it entered is let in, and one that was not is refused as if it had never been asked for. */
Test(keys, an_invitation_that_has_ended_does_not_connect)
{
    invite(STRANGER, 1);
    rig_hello(STRANGER, ROLE_ADMIN);
    enter(NEW[0]);
    cr_assert(broker_lets_in(R.b, KEY[STRANGER], R.now), "one that is used up gets an answer that says so");
    instant_t end = R.now;
    end.wall_ms = auth_key(&R.b->auth, KEY[STRANGER])->invitation.ends_ms;
    cr_assert(!broker_lets_in(R.b, KEY[STRANGER], end));
    cr_assert(broker_lets_in(R.b, NEW[0], end) && !broker_lets_in(R.b, NEW[1], end));
    end.wall_ms--;
    cr_assert(broker_lets_in(R.b, KEY[STRANGER], end));
    cr_assert(!is_logged_refusal(KEY[STRANGER]), "workers present it at each start");
    revoke("train");
    cr_assert(is_logged_refusal(KEY[STRANGER]));
}

Test(keys, events_have_the_name_of_the_invitation)
{
    invite(STRANGER, 2);
    rig_hello(STRANGER, ROLE_ADMIN);
    enter(NEW[0]);
    cr_assert_eq(R.b->events.counts[EVENT_INVITATION_MADE], 1);
    cr_assert_eq(R.b->events.counts[EVENT_INVITATION_USED], 1);
    const event_row_t *last = events_at(&R.b->events, R.b->events.last_seq);
    cr_assert(last->type == EVENT_INVITATION_USED &&
                  strstr(last->message, "train: worker:policy, used 1 of 2"),
              "%s", last->message);
}

Test(keys, an_invitation_that_is_asked_too_often_says_when_again)
{
    invite(STRANGER, 2);
    rig_hello(STRANGER, ROLE_ADMIN);
    enter(NEW[0]);
    for (unsigned i = 0; i < INVITATION_BURST; i++) enter(NEW[0]);
    cr_assert(rig_error(STRANGER, "unavailable")->retriable && rig_error(STRANGER, "unavailable")->retry_ms);
}

static void revoke_entered(const char *name)
{
    rig_query(BOSS, (msg_query_t){.op = "key_revoke_entered", .name = name});
}

/* What was decided is one record, so that a crash leaves none of them live. */
Test(keys, all_that_an_invitation_entered_is_ended_by_one_record)
{
    rig_worker(OTHER, "w2");
    invite(STRANGER, 3);
    rig_hello(STRANGER, ROLE_ADMIN);
    for (int i = 0; i < 2; i++) enter(NEW[i]);
    enter(KEY[READER]);
    R.keys[7] = NEW[0];
    rig_worker(7, "w7");
    rig_query(BOSS, (msg_query_t){.op = "keys"});
    json_t *body = body_for(BOSS), *row;
    size_t i, of_train = 0;
    json_array_foreach(json_object_get(body, "keys"), i, row) of_train +=
        !strcmp(text_of(row, "entered_by"), "train");
    cr_assert_eq(of_train, 2, "one was there before");
    json_decref(body);
    size_t records = R.record_count;
    rig_drop_letters();
    revoke_entered("train");
    cr_assert_eq(R.record_count, records + 1);
    cr_assert(number(BOSS, "session_count") == 1 && number(BOSS, "entered_count") == 2);
    cr_assert(rig_error(7, "denied") && !rig_has(OTHER, MSG_ERROR));
    cr_assert_eq(rig_event_count(EVENT_KEY_REVOKED), 1);
    rig_restart();
    cr_assert(!broker_lets_in(R.b, KEY[STRANGER], R.now) && !broker_lets_in(R.b, NEW[0], R.now) &&
              !broker_lets_in(R.b, NEW[1], R.now));
    cr_assert(broker_lets_in(R.b, KEY[OTHER], R.now) && broker_lets_in(R.b, KEY[READER], R.now));
    rig_hello(BOSS, ROLE_ADMIN);
    revoke_entered("train");
    cr_assert(number(BOSS, "changed") == 0 && number(BOSS, "entered_count") == 0);
    revoke_entered("w");
    rig_error(BOSS, "usage");
}

/* The address of a worker leads into its process. */
Test(keys, reach_names_the_workers_of_ones_own_adapters)
{
    static const struct {
        int who;
        uint32_t count;
    } ROWS[] = {{BOSS, 1}, {OTHER, 1}, {WRITER, 1}, {STRANGER, 0}};
    rig_worker(WORKER, "w1");
    add(STRANGER, "stranger", "worker:critic");
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        uint64_t peer = (uint64_t)ROWS[i].who;
        if (peer != BOSS) rig_hello(peer, ROLE_ADMIN);
        rig_query(peer, (msg_query_t){.op = "reach", .after_name = ""});
        cr_assert_eq(rig_last(peer, MSG_REPORT)->report.source_count, ROWS[i].count, "%d", ROWS[i].who);
    }
}
