/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of standbys, as they are written and read: broker/brokers.h. */
#include "broker/brokers.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static bool add_text(brokers_t *to, const char *text)
{
    return brokers_add(to, bytes_of(text, strlen(text)));
}

Test(brokers, a_row_is_read_as_it_was_written)
{
    brokers_row_t row = {.endpoint = "tcp://10.0.0.2:7700",
                         .release = "0.1.0",
                         .key = "0123456789012345678901234567890123456789",
                         .pid = 4711,
                         .is_following = true,
                         .behind = 3};
    buf_t bytes = {0};
    brokers_t list = {0};
    brokers_write(&row, &bytes);
    cr_assert(!bytes.failed && bytes.bytes < BROKERS_ROW_BYTES);
    cr_assert(brokers_add(&list, buf_view(&bytes)));
    cr_assert_eq(list.count, 1);
    cr_assert_str_eq(list.rows[0].endpoint, row.endpoint);
    cr_assert_str_eq(list.rows[0].release, row.release);
    cr_assert_str_eq(list.rows[0].key, row.key);
    cr_assert_eq(list.rows[0].pid, row.pid);
    cr_assert(list.rows[0].is_following);
    cr_assert_eq(list.rows[0].behind, row.behind);
    buf_fini(&bytes);
}

Test(brokers, rows_are_in_the_order_of_their_endpoints)
{
    brokers_t list = {0};
    for (const char *at = "cab"; *at; at++) {
        char text[64];
        snprintf(text, sizeof text, "{\"endpoint\":\"tcp://%c:1\"}", *at);
        cr_assert(add_text(&list, text));
    }
    cr_assert_str_eq(list.rows[0].endpoint, "tcp://a:1");
    cr_assert_str_eq(list.rows[1].endpoint, "tcp://b:1");
    cr_assert_str_eq(list.rows[2].endpoint, "tcp://c:1");
}

Test(brokers, of_a_row_of_another_release_what_is_missing_is_empty_and_what_is_new_is_ignored)
{
    brokers_t list = {0};
    cr_assert(add_text(&list, "{\"endpoint\":\"tcp://a:1\",\"behind\":-1,\"pid\":\"x\",\"colour\":[1]}"));
    cr_assert_str_eq(list.rows[0].release, "");
    cr_assert(!list.rows[0].is_following && !list.rows[0].behind && !list.rows[0].pid);
}

Test(brokers, what_is_no_row_is_left_out)
{
    static const char *const BAD[] = {"",
                                      "x",
                                      "7",
                                      "[]",
                                      "{}",
                                      "{\"endpoint\":7}",
                                      "{\"endpoint\":\"\"}",
                                      "{\"endpoint\":\"tcp://a:1\"} x"};
    char large[BROKERS_ROW_BYTES + 64];
    brokers_t list = {0};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) cr_assert(!add_text(&list, BAD[i]), "%s", BAD[i]);
    memset(large, ' ', sizeof large);
    memcpy(large, "{\"endpoint\":\"tcp://a:1\"}", 24);
    cr_assert(!brokers_add(&list, bytes_of(large, sizeof large)), "it is too large");
    cr_assert(brokers_add(&list, bytes_of(large, BROKERS_ROW_BYTES)));
    cr_assert_eq(list.count, 1);
}

Test(brokers, texts_are_made_printable_and_cut)
{
    char text[1024], name[600];
    brokers_t list = {0};
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    snprintf(text, sizeof text, "{\"endpoint\":\"%s\",\"heddle\":\"1\\n2\"}", name);
    cr_assert(add_text(&list, text));
    cr_assert_lt(strlen(list.rows[0].endpoint), sizeof list.rows[0].endpoint);
    cr_assert_null(strchr(list.rows[0].release, '\n'));
}

Test(brokers, there_is_room_for_so_many)
{
    brokers_t list = {0};
    for (unsigned i = 0; i <= BROKERS_MAX; i++)
        cr_assert_eq(add_text(&list, "{\"endpoint\":\"tcp://a:1\"}"), i < BROKERS_MAX);
    cr_assert_eq(list.count, BROKERS_MAX);
}

Test(brokers, a_key_that_would_be_cut_is_none)
{
    brokers_t list = {0};
    cr_assert(add_text(&list,
                       "{\"endpoint\":\"tcp://a:1\",\"key\":\"01234567890123456789012345678901234567890\"}"));
    cr_assert_str_eq(list.rows[0].key, "");
}

Test(brokers, a_member_is_told_of_the_leader_first_and_of_all_standbys)
{
    msg_broker_t told[LIMIT_BROKERS];
    brokers_t list = {.own = {.endpoint = "tcp://z:1", .key = "kz"}};
    cr_assert_eq(brokers_tell(NULL, told), 0);
    cr_assert_eq(brokers_tell(&list, told), 0, "they are not known yet");
    cr_assert_eq(brokers_mark(NULL), 0);
    cr_assert_eq(brokers_mark(&list), 0);
    list.seen_us = 1;
    uint64_t alone = brokers_mark(&list);
    cr_assert(alone != 0);
    cr_assert(add_text(&list, "{\"endpoint\":\"tcp://b:1\",\"key\":\"kb\",\"behind\":3}"));
    cr_assert(add_text(&list, "{\"endpoint\":\"tcp://a:1\"}"));
    uint64_t three = brokers_mark(&list);
    cr_assert(three != alone && three != 0);
    cr_assert_eq(brokers_tell(&list, told), 3);
    static const char *const EXPECTED[] = {"tcp://z:1", "kz", "tcp://a:1", "", "tcp://b:1", "kb"};
    for (int i = 0; i < 6; i++) cr_assert_str_eq(i % 2 ? told[i / 2].key : told[i / 2].endpoint, EXPECTED[i]);
    list.rows[1].behind = 4;
    list.seen_us = 2;
    cr_assert_eq(brokers_mark(&list), three, "members need not be told of that");
    list.rows[1].key[1] = 'c';
    cr_assert_neq(brokers_mark(&list), three);
}
