/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of etcd's gateway as they come, and what is none.  What requests do: broker_etcd_leader.c. */
#include "broker/store/etcd_json.h"

#include <criterion/criterion.h>

static arena_t arena;
static void stop(void) { arena_fini(&arena); }
TestSuite(etcd_json, .fini = stop);

static bool take(const char *text, etcd_answer_t *ret_answer)
{
    return etcd_answer_read(bytes_of(text, strlen(text)), &arena, ret_answer);
}

static etcd_answer_t answer_of(const char *text)
{
    etcd_answer_t a;
    cr_assert(take(text, &a), "%s", text);
    return a;
}

#define HEADER "\"header\":{\"revision\":\"12\"}"

Test(etcd_json, what_is_no_answer_is_refused)
{
    static const char *const TEXTS[] = {"",
                                        "<html>",
                                        "[]",
                                        "7",
                                        "{" HEADER ",\"kvs\":[{\"key\":7}]}",
                                        "{" HEADER ",\"kvs\":[{\"key\":\"YQ=\"}]}",
                                        "{" HEADER ",\"kvs\":[{\"key\":\"YQ*=\"}]}",
                                        "{" HEADER ",\"kvs\":[{\"key\":\"Y\\u0000==\"}]}",
                                        "{" HEADER ",\"kvs\":[{\"key\":\"YQ==\",\"value\":false}]}",
                                        "{" HEADER
                                        ",\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":\"a\"}]}}]}"};
    etcd_answer_t a = {.code = 77};
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) cr_assert(!take(TEXTS[i], &a), "%s", TEXTS[i]);
    cr_assert_eq(a.code, 77);
}

/* A gateway in front of etcd answers with objects of its own, and one may lose a part of an answer. */
Test(etcd_json, an_answer_without_a_revision_or_with_a_part_missing_is_none)
{
    static const char *const TEXTS[] = {"{}",
                                        "{\"message\":\"no healthy upstream\"}",
                                        "{\"kvs\":[{\"key\":\"YQ==\"}]}",
                                        "{\"header\":{},\"succeeded\":true}",
                                        "{\"header\":{\"revision\":\"0\"}}",
                                        "{" HEADER ",\"result\":{\"TTL\":\"5\"}}",
                                        "{" HEADER ",\"count\":\"2\"}",
                                        "{" HEADER ",\"kvs\":[{\"key\":\"YQ==\"}],\"count\":\"2\"}",
                                        "{" HEADER
                                        ",\"responses\":[{\"response_range\":{\"count\":\"1\"}}]}"};
    etcd_answer_t a;
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) cr_assert(!take(TEXTS[i], &a), "%s", TEXTS[i]);
    a = answer_of("{" HEADER ",\"kvs\":[{\"key\":\"YQ==\"}],\"more\":true,\"count\":\"2\"}");
    cr_assert(a.has_more && a.revision == 12);
}

Test(etcd_json, keys_and_values_are_as_they_were_put)
{
    etcd_answer_t a = answer_of(
        "{" HEADER
        ",\"kvs\":[{\"key\":\"YQ==\",\"value\":\"YWI=\",\"lease\":\"9\"},{\"key\":\"YWJj\",\"value\":\"\"},"
        "{\"create_revision\":\"4\",\"mod_revision\":5}],\"more\":true}");
    cr_assert_eq(a.kv_count, 3);
    cr_assert(a.has_more);
    cr_assert(a.kvs[0].key.bytes == 1 && !memcmp(a.kvs[0].key.data, "a", 1));
    cr_assert(a.kvs[0].value.bytes == 2 && !memcmp(a.kvs[0].value.data, "ab", 2));
    cr_assert(a.kvs[1].key.bytes == 3 && !memcmp(a.kvs[1].key.data, "abc", 3));
    cr_assert(a.kvs[1].value.bytes == 0 && a.kvs[2].key.bytes == 0);
    cr_assert(a.kvs[0].lease == 9 && a.kvs[2].create_revision == 4 && a.kvs[2].mod_revision == 5);
}

Test(etcd_json, the_ranges_of_a_transaction_come_one_behind_the_other)
{
    etcd_answer_t a =
        answer_of("{" HEADER
                  ",\"succeeded\":true,\"responses\":[{},{\"response_range\":{\"kvs\":[{\"key\":\"YQ==\"}]}},"
                  "{\"response_range\":{}},{\"response_range\":{\"kvs\":[{\"key\":\"Yg==\"}]}}]}");
    cr_assert(a.succeeded && a.kv_count == 2 && !a.has_more);
    cr_assert(!memcmp(a.kvs[1].key.data, "b", 1));
    cr_assert(!answer_of("{" HEADER ",\"succeeded\":false}").succeeded);
}

/* 64 bits as text, a number where a release writes one, and 0 for all that is none. */
Test(etcd_json, numbers)
{
    static const struct {
        const char *text;
        uint64_t ttl;
    } OF[] = {{"{" HEADER ",\"TTL\":\"5\"}", 5},
              {"{" HEADER ",\"TTL\":7}", 7},
              {"{" HEADER ",\"TTL\":-1}", 0},
              {"{" HEADER ",\"TTL\":\"-1\"}", 0},
              {"{" HEADER ",\"TTL\":\"5x\"}", 0},
              {"{" HEADER ",\"TTL\":\"5 \"}", 0},
              {"{" HEADER ",\"TTL\":\"\"}", 0},
              {"{" HEADER ",\"TTL\":null}", 0},
              {"{" HEADER ",\"TTL\":\"18446744073709551610\"}", 0},
              {"{" HEADER ",\"TTL\":\"18446744073709551609\"}", 18446744073709551609ull},
              {"{" HEADER ",\"TTL\":\"99999999999999999999\"}", 0},
              {"{\"result\":{" HEADER ",\"TTL\":\"4\"},\"TTL\":\"3\"}", 4},
              {"{" HEADER ",\"result\":1,\"TTL\":\"3\"}", 3},
              {"{" HEADER "}", 0}};
    for (size_t i = 0; i < sizeof OF / sizeof *OF; i++)
        cr_assert_eq(answer_of(OF[i].text).ttl_s, OF[i].ttl, "%s", OF[i].text);
}

Test(etcd_json, a_watch_and_what_it_says)
{
    buf_t out = {0};
    etcd_json_watch(&out, "p", 9);
    cr_assert_str_eq(
        buf_text(&out),
        "{\"create_request\":{\"key\":\"cC8=\",\"range_end\":\"cDA=\",\"start_revision\":\"9\"}}");
    buf_fini(&out);
    etcd_answer_t a = answer_of("{\"result\":{" HEADER ",\"events\":["
                                "{\"kv\":{\"key\":\"cC9h\",\"value\":\"eA==\",\"mod_revision\":\"11\"}},"
                                "{\"type\":\"DELETE\",\"kv\":{\"key\":\"cC9i\",\"mod_revision\":\"12\"}},"
                                "{\"type\":7,\"kv\":1}]}}");
    cr_assert_eq(a.kv_count, 3);
    cr_assert(!a.kvs[0].is_gone && a.kvs[1].is_gone && !a.kvs[2].is_gone);
    cr_assert_eq(a.kvs[1].mod_revision, 12);
    bytes_t key = etcd_json_below("p", a.kvs[1].key);
    cr_assert(key.bytes == 1 && *(const char *)key.data == 'b');
    cr_assert_eq(etcd_json_below("p/x", a.kvs[1].key).bytes, 0);
    cr_assert(!a.is_canceled);
    cr_assert(answer_of("{\"result\":{\"canceled\":true,\"compact_revision\":\"12\"}}").is_canceled);
}

/* etcd 3.4 and later ones write an error in different places; behind it may be a trailer. */
Test(etcd_json, errors)
{
    static const struct {
        const char *text;
        int code;
        const char *message;
    } OF[] = {{"{\"error\":\"denied\",\"message\":\"denied!\",\"code\":7}", 7, "denied!"},
              {"{\"error\":\"denied\",\"code\":7}", 7, "denied"},
              {"{\"error\":{\"grpc_code\":5,\"message\":\"not found\"}}\r\nTrailer: x", 5, "not found"},
              {"{\"error\":{\"grpc_code\":5}}", 5, "an error without a text"},
              {"{\"error\":\"x\"}", ETCD_UNAVAILABLE, "x"},
              {"{\"error\":7,\"code\":-1}", ETCD_UNAVAILABLE, "an error without a text"},
              {"{\"error\":\"x\",\"code\":4294967295}", ETCD_UNAVAILABLE, "x"}};
    for (size_t i = 0; i < sizeof OF / sizeof *OF; i++) {
        etcd_answer_t a = answer_of(OF[i].text);
        cr_assert_eq(a.code, OF[i].code, "%s", OF[i].text);
        cr_assert_str_eq(a.message, OF[i].message, "%s", OF[i].text);
    }
}

Test(etcd_json, an_answer_takes_no_more_memory_than_it_may)
{
    etcd_answer_t a;
    arena.limit = 64;
    cr_assert(!take("{" HEADER ",\"kvs\":[{},{},{},{}]}", &a));
    arena_fini(&arena);
    arena = (arena_t){.limit = 256};
    cr_assert(!take(
        "{" HEADER
        ",\"kvs\":[{\"value\":\"QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVpBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZWkFCQ0RF"
        "RkdISUpLTE1OT1BRUlNUVVZXWFlaQUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVpBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZWkFB"
        "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB"
        "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB"
        "\"}]}",
        &a));
}

Test(etcd_json, without_memory_a_request_is_not_written)
{
    buf_t out = {.failed = true};
    etcd_txn_t t;
    etcd_txn_begin(&t, &out, "prefix");
    etcd_txn_put(&t, "key", bytes_of("value", 5), 0);
    etcd_txn_end(&t);
    etcd_json_range(&out, "prefix", bytes_of("a", 1), 3, 4);
    cr_assert(out.failed && !out.bytes);
}
