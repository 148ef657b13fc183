/* SPDX-License-Identifier: Apache-2.0 */
/* What a standby says: broker/standby.h. */
#include "broker/standby.h"
#include "proto/msg.h"

#include <criterion/criterion.h>
#include <heddle/error.h>
#include <heddle/publisher.h>
#include <limits.h>
#include <stdio.h>

/* Whether the standby has all rows. */
static bool follows = true;

/* Its ERROR to a message; the caller ends it. */
static void answer_to(const msg_t *m, const char *leader, msg_t *ret_got)
{
    standby_t s = {.leader_key = "the key", .is_answered = true, .is_following = follows};
    snprintf(s.leader, sizeof s.leader, "%s", leader);
    buf_t frame = {0}, out = {0};
    heddle_error_t error;
    cr_assert_eq(msg_encode(m, &frame), 0);
    cr_assert(standby_answer(buf_view(&frame), &s, &out));
    cr_assert_eq(msg_decode(buf_view(&out), ret_got, &error), 0);
    cr_assert_eq(ret_got->type, MSG_ERROR);
    buf_fini(&frame);
    buf_fini(&out);
}

static msg_t hello(void)
{
    return (msg_t){.type = MSG_HELLO,
                   .hello = {.wire_min = 1, .wire_max = 1, .role = ROLE_WORKER, .life = {{1}}, .host = "h"}};
}

Test(standby, names_the_leader_to_a_hello)
{
    msg_t m = hello(), got;
    answer_to(&m, "tcp://10.0.0.1:7700", &got);
    cr_assert_eq(got.error.of, MSG_HELLO);
    cr_assert_str_eq(got.error.code, "unavailable");
    cr_assert_str_eq(got.error.leader, "tcp://10.0.0.1:7700");
    cr_assert_str_eq(got.error.leader_key, "the key");
    cr_assert(got.error.retriable && got.error.retry_ms == STANDBY_RETRY_MS);
    cr_assert(strstr(got.error.message, "10.0.0.1:7700"), "%s", got.error.message);
    msg_fini(&got);
}

Test(standby, says_that_none_leads)
{
    msg_t m = hello(), got;
    answer_to(&m, "", &got);
    cr_assert_str_eq(got.error.leader, "");
    cr_assert_eq(got.error.retry_ms, STANDBY_SOON_MS);
    cr_assert(strstr(got.error.message, "none leads"), "%s", got.error.message);
    msg_fini(&got);
}

/* Else the two brokers send a person from one to the other, and none names what is wrong.  Where the address is
 * that of one that leads yet, the client finds it. */
Test(standby, says_that_etcd_does_not_answer_it)
{
    const standby_t s = {.leader = "tcp://a:1"};
    msg_t m = hello(), got;
    buf_t frame = {0}, out = {0};
    heddle_error_t error;
    cr_assert_eq(msg_encode(&m, &frame), 0);
    cr_assert(standby_answer(buf_view(&frame), &s, &out));
    cr_assert_eq(msg_decode(buf_view(&out), &got, &error), 0);
    cr_assert(strstr(got.error.message, "etcd does not answer it: no broker is known to lead; before it was"),
              "%s", got.error.message);
    cr_assert(strstr(got.error.hint, "see that etcd runs"), "%s", got.error.hint);
    cr_assert_str_eq(got.error.leader, "tcp://a:1");
    msg_fini(&got);
    buf_fini(&frame);
    buf_fini(&out);
}

/* Where another one leads, the client goes there, and what is wrong here is no answer. */
Test(standby, says_why_none_leads_where_it_could_not)
{
    for (int leads = 0; leads < 2; leads++) {
        standby_t s = {.is_answered = true};
        msg_t m = hello(), got;
        buf_t frame = {0}, out = {0};
        heddle_error_t error;
        snprintf(s.leader, sizeof s.leader, "%s", leads ? "tcp://a:1" : "");
        s.refusal.code = HEDDLE_ERR_DATA_DIR;
        snprintf(s.refusal.message, sizeof s.refusal.message, "the prefix is empty");
        snprintf(s.refusal.hint, sizeof s.refusal.hint, "restore a snapshot");
        cr_assert_eq(msg_encode(&m, &frame), 0);
        cr_assert(standby_answer(buf_view(&frame), &s, &out));
        cr_assert_eq(msg_decode(buf_view(&out), &got, &error), 0);
        cr_assert(got.error.retriable);
        cr_assert_eq(!strstr(got.error.message, "none leads: the prefix is empty"), leads, "%s",
                     got.error.message);
        cr_assert_eq(strcmp(got.error.hint, "restore a snapshot") != 0, leads, "%s", got.error.hint);
        msg_fini(&got);
        buf_fini(&frame);
        buf_fini(&out);
    }
}

Test(standby, one_that_etcd_refuses_is_not_ready_and_says_why)
{
    standby_t s = {.leader = "tcp://a:1", .is_answered = true};
    heddle_error_t error;
    s.refusal.code = HEDDLE_ERR_DENIED;
    snprintf(s.refusal.message, sizeof s.refusal.message, "permission denied");
    snprintf(s.refusal.hint, sizeof s.refusal.hint, "name a user");
    cr_assert_eq(standby_check_ready(&s, &error), HEDDLE_ERR_UNAVAILABLE);
    cr_assert(strstr(error.message, "could not take over: permission denied"), "%s", error.message);
    cr_assert_str_eq(error.hint, "name a user");
}

/* A thousand members that ask ten times a second would take the CPU that it reads with. */
Test(standby, is_asked_less_often_while_it_reads)
{
    msg_t m = hello(), got;
    follows = false;
    answer_to(&m, "", &got);
    cr_assert_eq(got.error.retry_ms, STANDBY_RETRY_MS);
    msg_fini(&got);
}

Test(standby, takes_no_message_of_a_member)
{
    msg_t m = {.type = MSG_HEARTBEAT, .heartbeat = {.token = 7, .seq = 1}}, got;
    answer_to(&m, "tcp://a:1", &got);
    cr_assert_eq(got.error.of, MSG_HEARTBEAT);
    cr_assert_str_eq(got.error.code, "unavailable");
    cr_assert_eq(got.error.token, 0, "the session is the leader's to end");
    msg_fini(&got);
}

Test(standby, a_ping_needs_no_answer_and_a_bad_frame_gets_one)
{
    msg_t ping = {.type = MSG_PING, .ping = {.nonce = 1}}, got;
    heddle_error_t error;
    buf_t frame = {0}, out = {0};
    cr_assert_eq(msg_encode(&ping, &frame), 0);
    const standby_t s = {.leader = "tcp://a:1"};
    cr_assert_not(standby_answer(buf_view(&frame), &s, &out));
    cr_assert_eq(out.bytes, 0);
    cr_assert(standby_answer(bytes_of("\xc1", 1), &s, &out));
    cr_assert_eq(msg_decode(buf_view(&out), &got, &error), 0);
    cr_assert(got.type == MSG_ERROR && got.error.of == 0);
    cr_assert_str_eq(got.error.code, "protocol");
    msg_fini(&got);
    buf_fini(&frame);
    buf_fini(&out);
}

/* ---- of a broker that led ---- */

static const brokers_row_t NEXT = {.endpoint = "tcp://b:1", .key = "its key"};
static const key16_t LIFE = {{7}};

/* Its ERROR to a member; the caller ends it. */
static void turn_away(const msg_t *m, const brokers_row_t *to, msg_t *ret_got)
{
    buf_t frame = {0}, out = {0};
    heddle_error_t error;
    cr_assert_eq(msg_encode(m, &frame), 0);
    cr_assert(standby_turn_away(buf_view(&frame), &(standby_way_t){.to = to}, &(standby_sent_t){0}, &out));
    cr_assert_eq(msg_decode(buf_view(&out), ret_got, &error), 0);
    cr_assert_eq(ret_got->type, MSG_ERROR);
    cr_assert_eq(ret_got->error.of, m->type);
    buf_fini(&frame);
    buf_fini(&out);
}

Test(standby, one_that_yields_sends_a_member_to_another)
{
    msg_t m = hello(), got;
    turn_away(&m, &NEXT, &got);
    cr_assert_str_eq(got.error.code, "unavailable");
    cr_assert_str_eq(got.error.leader, "tcp://b:1");
    cr_assert_str_eq(got.error.leader_key, "its key");
    cr_assert(got.error.retriable && got.error.retry_ms == STANDBY_RETRY_MS);
    cr_assert(strstr(got.error.message, "tcp://b:1"), "%s", got.error.message);
    msg_fini(&got);
    turn_away(&m, NULL, &got);
    cr_assert_str_eq(got.error.leader, "");
    msg_fini(&got);
}

Test(standby, one_that_yields_ends_sessions_so_that_members_ask)
{
    msg_t beat = {.type = MSG_HEARTBEAT, .heartbeat = {.token = 7, .seq = 1}}, got;
    turn_away(&beat, &NEXT, &got);
    cr_assert_str_eq(got.error.code, "not_found");
    cr_assert_eq(got.error.token, 7);
    cr_assert_eq(got.error.version, 0);
    msg_fini(&got);
    msg_part_t part = {.payload_bytes = 65536, .manifest_bytes = 500};
    msg_t publish = {.type = MSG_PUBLISH,
                     .publish = {.token = 8,
                                 .req = 9,
                                 .deadline_ms = 60000,
                                 .activation = HEDDLE_ACTIVATION_ALL,
                                 .adapter = "policy",
                                 .request_id = "r1",
                                 .parts = &part,
                                 .part_count = 1,
                                 .data_bytes = 60000,
                                 .tensor_count = 8,
                                 .chunk_count = 1,
                                 .kind = "lora"}};
    turn_away(&publish, &NEXT, &got);
    cr_assert_eq(got.error.token, 8);
    cr_assert_eq(got.error.req, 9);
    msg_fini(&got);
}

/* Its HELLO was answered before. */
Test(standby, one_that_yields_admits_none)
{
    msg_subscription_t sub = {.adapter = "policy"};
    msg_t join = {.type = MSG_JOIN,
                  .join = {.req = 3,
                           .slots = 3,
                           .name = "w1",
                           .adapters = &sub,
                           .adapter_count = 1,
                           .backend = "ucx",
                           .ucx = "1.13.1",
                           .address = {"addr", 4}}};
    msg_t open = {.type = MSG_OPEN,
                  .open = {.req = 4,
                           .adapter = "policy",
                           .writer = "trainer-0",
                           .backend = "ucx",
                           .ucx = "1.13.1",
                           .address = {"addr", 4}}};
    msg_t got;
    turn_away(&join, &NEXT, &got);
    cr_assert(got.error.req == 3 && got.error.token == 0 && got.error.retriable);
    cr_assert_str_eq(got.error.code, "unavailable");
    msg_fini(&got);
    turn_away(&open, NULL, &got);
    cr_assert(got.error.req == 4 && got.error.token == 0 && got.error.retriable);
    msg_fini(&got);
}

Test(standby, one_that_yields_leaves_other_messages_to_the_broker)
{
    msg_t leave = {.type = MSG_LEAVE, .leave = {.token = 7, .req = 1}};
    standby_sent_t sent = {0};
    buf_t frame = {0}, out = {0};
    cr_assert_eq(msg_encode(&leave, &frame), 0);
    standby_way_t way = {.admin = &LIFE, .to = &NEXT};
    cr_assert_not(standby_turn_away(buf_view(&frame), &way, &sent, &out));
    cr_assert_not(standby_turn_away(bytes_of("\xc1", 1), &way, &sent, &out));
    cr_assert_eq(out.bytes, 0);
    buf_fini(&frame);
}

/* Whether the admin is sent on that says HELLO in that life. */
static bool greets(uint32_t life, const brokers_row_t *to, uint64_t now_us, standby_sent_t *sent)
{
    msg_t m = hello();
    buf_t frame = {0}, out = {0};
    m.hello.role = ROLE_ADMIN;
    memcpy(m.hello.life.b, &life, sizeof life);
    cr_assert_eq(msg_encode(&m, &frame), 0);
    bool is_sent =
        standby_turn_away(buf_view(&frame), &(standby_way_t){.to = to, .now_us = now_us}, sent, &out);
    cr_assert_eq(out.bytes > 0, is_sent);
    buf_fini(&frame);
    buf_fini(&out);
    return is_sent;
}

/* Where another broker leads it knows more.  Where none does, as without any etcd, this one has the answer. */
Test(standby, one_that_yields_sends_an_admin_on_once)
{
    standby_sent_t sent = {0};
    for (int round = 0; round < 3; round++)
        for (uint32_t of = 1; of <= STANDBY_SENT; of++) {
            cr_assert_not(greets(of, NULL, 0, &sent), "there is no other one");
            cr_assert_eq(greets(of, &NEXT, 0, &sent), round == 0, "%u", of);
        }
}

/* Another one may lead that did not when this one sent its admins there. */
Test(standby, one_that_yields_sends_an_admin_on_again_after_a_while)
{
    standby_sent_t sent = {0};
    for (uint64_t now_us = 1000; now_us < 4 * STANDBY_STAY_US; now_us += STANDBY_STAY_US) {
        cr_assert(greets(1, &NEXT, now_us, &sent));
        cr_assert_not(greets(1, &NEXT, now_us + STANDBY_STAY_US - 1, &sent));
        cr_assert_eq(sent.count, 1, "it has one place");
    }
}

/* Its connection was greeted before this broker yielded, and asks no leader without that. */
Test(standby, one_that_yields_sends_a_question_on)
{
    standby_sent_t sent = {0};
    msg_t query = {.type = MSG_QUERY, .query = {.req = 5, .op = "status"}}, got;
    buf_t frame = {0}, out = {0};
    heddle_error_t error;
    standby_way_t way = {.to = &NEXT, .now_us = 1000};
    cr_assert_eq(msg_encode(&query, &frame), 0);
    cr_assert_not(standby_turn_away(buf_view(&frame), &way, &sent, &out), "a publisher's");
    way.admin = &LIFE;
    cr_assert(standby_turn_away(buf_view(&frame), &way, &sent, &out));
    cr_assert_eq(msg_decode(buf_view(&out), &got, &error), 0);
    cr_assert(got.error.of == MSG_QUERY && got.error.req == 5 && got.error.retriable);
    cr_assert_str_eq(got.error.code, "unavailable");
    cr_assert_str_eq(got.error.leader, "tcp://b:1");
    cr_assert_str_eq(got.error.leader_key, "its key");
    msg_fini(&got);
    cr_assert_not(standby_turn_away(buf_view(&frame), &way, &sent, &out), "it came back");
    cr_assert_not(standby_send_on(5, &way, &sent, &out), "and waits here");
    buf_fini(&frame);
    buf_fini(&out);
}

/* It waits since before this broker yielded, or for a while. */
Test(standby, one_that_yields_sends_a_question_on_that_waits)
{
    standby_sent_t sent = {0};
    msg_t got;
    buf_t out = {0};
    heddle_error_t error;
    standby_way_t way = {.admin = &LIFE, .to = &NEXT, .now_us = 1000};
    cr_assert(standby_send_on(6, &way, &sent, &out));
    cr_assert_eq(msg_decode(buf_view(&out), &got, &error), 0);
    cr_assert(got.error.of == MSG_QUERY && got.error.req == 6 && got.error.token == 0);
    cr_assert_str_eq(got.error.code, "unavailable");
    cr_assert_str_eq(got.error.leader, "tcp://b:1");
    msg_fini(&got);
    buf_clear(&out);
    cr_assert_not(greets(7, &NEXT, 1000, &sent), "it has been there");
    cr_assert_not(standby_send_on(7, &way, &sent, &out));
    way.now_us += STANDBY_STAY_US;
    cr_assert(standby_send_on(7, &way, &sent, &out));
    way.to = NULL;
    way.now_us += STANDBY_STAY_US;
    cr_assert_not(standby_send_on(8, &way, &sent, &out), "there is no other one");
    buf_fini(&out);
}

Test(standby, is_ready_where_it_could_take_over)
{
    standby_t s = {.leader = "tcp://a:1", .is_answered = true, .is_following = true, .behind = 1};
    heddle_error_t error;
    cr_assert_eq(standby_check_ready(&s, &error), HEDDLE_OK);
    s.is_following = false;
    cr_assert_eq(standby_check_ready(&s, &error), HEDDLE_ERR_UNAVAILABLE);
    cr_assert(strstr(error.message, "does not follow") && strstr(error.message, "tcp://a:1"), "%s",
              error.message);
    s.is_answered = false;
    cr_assert_eq(standby_check_ready(&s, &error), HEDDLE_ERR_UNAVAILABLE);
    cr_assert(strstr(error.message, "etcd does not answer"), "%s", error.message);
}

Test(standby, is_not_ready_while_etcd_has_no_room)
{
    standby_t s = {.is_following = true, .is_answered = true, .is_full = true};
    heddle_error_t error = {0};
    cr_assert_eq(standby_check_ready(&s, &error), HEDDLE_ERR_NO_SPACE);
    cr_assert_eq(error.code, HEDDLE_ERR_NO_SPACE);
    cr_assert(strstr(error.message, "has no room") && strstr(error.hint, "compact"), "%s", error.message);
}

Test(standby, refuses_what_only_the_leader_answers)
{
    standby_t s = {.is_answered = true, .is_following = true};
    heddle_error_t error;
    cr_assert_eq(standby_refuse(&s, &error), HEDDLE_ERR_UNAVAILABLE);
    cr_assert(strstr(error.message, "none leads"), "%s", error.message);
}

Test(standby, reads_the_address_of_a_leader)
{
    char to[STANDBY_ADDRESS_BYTES], longer[400], key[HEDDLE_KEY_TEXT];
    standby_leader("tcp://10.0.0.1:7700 of pid 7 on h", to, key);
    cr_assert_str_eq(to, "tcp://10.0.0.1:7700");
    standby_leader("tcp://[::1]:7700", to, key);
    cr_assert_str_eq(to, "tcp://[::1]:7700");
    standby_leader("contract of pid 7 on h", to, key);
    cr_assert_str_eq(to, "");
    standby_leader("", to, key);
    cr_assert_str_eq(to, "");
    memset(longer, 'a', sizeof longer - 1);
    memcpy(longer, "tcp://", 6);
    longer[sizeof longer - 1] = 0;
    standby_leader(longer, to, key);
    cr_assert_str_eq(to, "");
    cr_assert_str_eq(key, "");
    standby_leader("tcp://a:1 of pid 7 on h, key 0123456789012345678901234567890123456789", to, key);
    cr_assert_str_eq(to, "tcp://a:1");
    cr_assert_str_eq(key, "0123456789012345678901234567890123456789");
    standby_leader("tcp://a:1 of pid 7 on h, key 012345678901234567890123456789012345678", to, key);
    cr_assert_str_eq(key, "", "it would be cut");
}

/* --advertise takes 255 bytes: an address that was cut would name no broker, or another one. */
Test(standby, the_longest_address_of_a_leader_is_named_whole)
{
    static const char KEY[] = "0123456789012345678901234567890123456789";
    char to[STANDBY_ADDRESS_BYTES], key[HEDDLE_KEY_TEXT], holder[STANDBY_HOLDER_BYTES];
    char address[STANDBY_ADDRESS_BYTES], host[128 + 1];
    memset(address, 'a', sizeof address);
    memcpy(address, "tcp://", 6);
    memcpy(address + sizeof address - 6, ":7700", 6);
    memset(host, 'h', sizeof host);
    host[sizeof host - 1] = 0;
    standby_holder(address, INT_MIN, host, KEY, holder);
    standby_leader(holder, to, key);
    cr_assert_str_eq(to, address);
    cr_assert_str_eq(key, KEY);
    standby_holder(address, 7, "h", "", holder);
    standby_leader(holder, to, key);
    cr_assert_str_eq(to, address);
    cr_assert_str_eq(key, "");
}

Test(standby, an_address_for_all_becomes_that_of_the_host)
{
    char to[STANDBY_ADDRESS_BYTES];
    standby_reachable("tcp://0.0.0.0:7700", "h1", to);
    cr_assert_str_eq(to, "tcp://h1:7700");
    standby_reachable("tcp://[::]:7700", "h1", to);
    cr_assert_str_eq(to, "tcp://h1:7700");
    standby_reachable("tcp://*:7700", "h1", to);
    cr_assert_str_eq(to, "tcp://h1:7700");
    standby_reachable("tcp://10.0.0.1:7700", "h1", to);
    cr_assert_str_eq(to, "tcp://10.0.0.1:7700");
    standby_reachable("tcp://0.0.0.0:7700", "", to);
    cr_assert_str_eq(to, "tcp://0.0.0.0:7700");
    standby_reachable("ipc:///run/heddle", "h1", to);
    cr_assert_str_eq(to, "ipc:///run/heddle");
}
