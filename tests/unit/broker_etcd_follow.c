/* SPDX-License-Identifier: Apache-2.0 */
/* What a standby has of the registry: pages, then events.  What it makes of them when it takes the lead:
 * broker_etcd_leader.c. */
#include "broker/store/etcd_follow.h"
#include "broker/store/rows_value.h"

#include <criterion/criterion.h>

#define PREFIX "heddle/test"

static etcd_follow_t T;
static buf_t floor_value, request;

static void start(void)
{
    record_t r = {.kind = RECORD_FLOOR, .adapter = "a", .version = 3, .decision = 1};
    etcd_follow_init(&T);
    rows_value_put(&floor_value, &r);
}
static void stop(void)
{
    etcd_follow_fini(&T);
    buf_fini(&floor_value);
    buf_fini(&request);
}
TestSuite(etcd_follow, .init = start, .fini = stop);

static bytes_t text_of(const char *text) { return bytes_of(text, strlen(text)); }

static etcd_kv_t kv_of(const char *key, bytes_t value, uint64_t revision)
{
    return (etcd_kv_t){.key = text_of(key), .value = value, .mod_revision = revision};
}
static etcd_kv_t last_of(const char *marker, uint64_t revision)
{
    return kv_of(PREFIX "/last", text_of(marker), revision);
}
static etcd_kv_t floor_of(uint64_t revision)
{
    return kv_of(PREFIX "/f/a", buf_view(&floor_value), revision);
}

static bool answer(etcd_answer_t a, etcd_kv_t *kvs, size_t count)
{
    a.kvs = kvs;
    a.kv_count = count;
    return etcd_follow_answer(&T, PREFIX, &a);
}
static bool answer_one(etcd_answer_t a, etcd_kv_t kv) { return answer(a, &kv, 1); }

static void has_asked(bool is_watch, const char *text)
{
    buf_clear(&request);
    cr_assert_eq(etcd_follow_request(&T, PREFIX, &request), is_watch);
    cr_assert_not_null(strstr(buf_text(&request), text), "%s", buf_text(&request));
}

static void follows(void)
{
    etcd_kv_t kvs[] = {floor_of(5), last_of("run.4", 7), kv_of(PREFIX "/leader", text_of("x"), 6)};
    cr_assert(answer((etcd_answer_t){.revision = 9}, kvs, 3));
    cr_assert_eq(T.state, ETCD_FOLLOWING);
}

Test(etcd_follow, pages_are_of_one_revision_and_the_watch_begins_behind_it)
{
    has_asked(false, "\"limit\":\"400\"}");
    etcd_page_failed(&T.page);
    has_asked(false, "\"limit\":\"200\"}");
    cr_assert(answer_one((etcd_answer_t){.revision = 9, .has_more = true}, floor_of(5)));
    has_asked(false, "\"revision\":\"9\"}");
    cr_assert_eq(T.state, ETCD_FOLLOW_READING);
    cr_assert(!etcd_follow_has(&T, 7, "run.4"));
    cr_assert(answer_one((etcd_answer_t){.revision = 12}, last_of("run.4", 7)));
    has_asked(true, "\"start_revision\":\"10\"}}");
    cr_assert(etcd_follow_has(&T, 7, "run.4"));
    cr_assert(!etcd_follow_has(&T, 0, "run.4"));
    cr_assert(!etcd_follow_has(&T, 8, "run.4"));
    cr_assert(!etcd_follow_has(&T, 7, "other.4"), "as after a snapshot was restored");
}

Test(etcd_follow, a_page_without_rows_is_not_the_last_one)
{
    cr_assert(answer_one((etcd_answer_t){.revision = 9, .has_more = true}, last_of("run.4", 7)));
    cr_assert(!answer((etcd_answer_t){.revision = 9}, NULL, 0));
    cr_assert_eq(T.state, ETCD_UNREAD, "a registry of which a part is missing is not followed");
    cr_assert(!answer((etcd_answer_t){.revision = 9, .has_more = true}, NULL, 0));
    cr_assert_eq(T.state, ETCD_UNREAD);
}

Test(etcd_follow, keys_that_are_no_rows_are_passed_over)
{
    follows();
    etcd_kv_t kvs[] = {kv_of(PREFIX "/import", text_of("x"), 10), kv_of(PREFIX "/meta", text_of("x"), 10),
                       kv_of(PREFIX "/b/run7", text_of("x"), 10), last_of("run.5", 10)};
    cr_assert(answer((etcd_answer_t){0}, kvs, 4));
    cr_assert(etcd_follow_has(&T, 10, "run.5"));
}

Test(etcd_follow, a_row_that_is_deleted_is_gone)
{
    follows();
    uint64_t bytes = rows_bytes(T.rows);
    cr_assert_gt(bytes, 0);
    etcd_kv_t kvs[] = {kv_of(PREFIX "/f/a", bytes_of("", 0), 10), last_of("run.5", 10)};
    kvs[0].is_gone = true;
    cr_assert(answer((etcd_answer_t){0}, kvs, 2));
    cr_assert_eq(rows_bytes(T.rows), 0);
    cr_assert(etcd_follow_has(&T, 10, "run.5"));
    has_asked(true, "\"start_revision\":\"11\"}}");
    store_rows_t *rows = etcd_follow_take(&T);
    cr_assert_not_null(rows);
    cr_assert_eq(T.state, ETCD_UNREAD);
    rows_destroy(&rows);
}

/* A run counts from 0 on: the first transaction of the next one takes the lead, and says which one it follows. */
Test(etcd_follow, markers_come_one_behind_the_other)
{
    static const struct {
        const char *marker;
        bool is_next;
    } OF[] = {{"run.5", true},           {"run.6", false},
              {"run.4", false},          {"next.0", false},
              {"next.0<run.4", true},    {"next.0<run.3", false},
              {"next.0<other.4", false}, {"next.0<", false},
              {"next.0<run.44", false},  {"run.0", false},
              {"next.1", false},         {"ru.5", false},
              {"none", false},           {"", false}};
    for (size_t i = 0; i < sizeof OF / sizeof *OF; i++) {
        follows();
        cr_assert_eq(answer_one((etcd_answer_t){0}, last_of(OF[i].marker, 10)), OF[i].is_next, "%s",
                     OF[i].marker);
        cr_assert_eq(T.state, OF[i].is_next ? ETCD_FOLLOWING : ETCD_UNREAD);
        etcd_follow_fini(&T);
    }
}

Test(etcd_follow, the_first_transaction_of_all_comes_behind_none)
{
    cr_assert(answer_one((etcd_answer_t){.revision = 9}, floor_of(5)));
    cr_assert(answer_one((etcd_answer_t){0}, last_of("run.0", 10)));
    cr_assert(etcd_follow_has(&T, 10, "run.0"));
    cr_assert(answer_one((etcd_answer_t){0}, last_of("next.0<run.0", 11)));
    cr_assert(answer_one((etcd_answer_t){0}, last_of("next.1", 12)),
              "the one before is named without its own");
    cr_assert(answer_one((etcd_answer_t){0}, last_of("third.0<next.1", 13)));
    cr_assert(answer_one((etcd_answer_t){0}, last_of("fourth.0<third.0", 14)));
}

Test(etcd_follow, what_ends_it)
{
    static char LONG[ETCD_MARKER_BYTES + 1];
    memset(LONG, 'x', sizeof LONG - 1);
    for (int i = 0; i < 6; i++) {
        if (i < 5) follows();
        etcd_kv_t bad = i == 0   ? kv_of(PREFIX "/f/a", text_of("cut off"), 10)
                        : i == 1 ? kv_of(PREFIX "/pods/x", text_of("y"), 10)
                                 : last_of(i == 2 ? LONG : "run.5", 10);
        etcd_answer_t a = {.is_canceled = i == 3, .code = i > 3 ? ETCD_OUT_OF_RANGE : 0};
        cr_assert(!answer_one(a, bad), "%d", i);
        cr_assert_eq(T.state, ETCD_UNREAD);
        cr_assert_null(T.rows);
        has_asked(false, "\"limit\":\"400\"}");
    }
}
