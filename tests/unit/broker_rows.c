/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as keys and values: what is none of ours, what is damaged, and changes that contradict the rows.  What
 * a store keeps, and how one record takes the place of another: tests/contract/store.c. */
#include "broker/outbox.h"
#include "broker/store/rows.h"
#include "broker/store/rows_value.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define GOOD_META "heddle registry 8 0123456789abcdef 4"
#define LONG_NAME /* one byte too long */                                                                    \
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"   \
    "01234567890123456789012345678"

static struct {
    store_rows_t *rows;
    rows_ops_t ops;
    buf_t value;
    heddle_error_t error;
} T;

static void start(void) { cr_assert_eq(rows_new(&T.rows, &T.error), HEDDLE_OK); }
static void stop(void)
{
    rows_destroy(&T.rows);
    rows_destroy(&T.rows);
    buf_fini(&T.value);
}
TestSuite(rows, .init = start, .fini = stop);

static bytes_t text_of(const char *text) { return bytes_of(text, strlen(text)); }

static record_t adapter_record(const char *name)
{
    return (record_t){.kind = RECORD_ADAPTER, .adapter = name, .at_ms = 5};
}

static record_t version_record(const char *name, uint64_t version)
{
    return (record_t){.kind = RECORD_VERSION, .adapter = name, .version = version, .config = text_of("{}")};
}

static bytes_t value_of(record_t r)
{
    buf_clear(&T.value);
    rows_value_put(&T.value, &r);
    cr_assert(!T.value.failed);
    return buf_view(&T.value);
}

static int read_row(const char *key, record_t r)
{
    return rows_read(T.rows, text_of(key), value_of(r), &T.error);
}

static int read_meta(const char *line) { return rows_read(T.rows, text_of("meta"), text_of(line), &T.error); }

static int change(const record_t *records, int count)
{
    return rows_change(T.rows, records, count, &T.ops, &T.error);
}
static void change_and_keep(const record_t *records, int count)
{
    cr_assert_eq(change(records, count), HEDDLE_OK, "%s", T.error.message);
    rows_keep(T.rows);
}
#define KEEP(...)                                                                                            \
    change_and_keep((record_t[]){__VA_ARGS__}, (int)(sizeof((record_t[]){__VA_ARGS__}) / sizeof(record_t)))

static int count_record(void *self, const record_t *r)
{
    (void)r;
    ++*(int *)self;
    return HEDDLE_OK;
}
static int count_rows(void)
{
    int count = 0;
    cr_assert_eq(rows_walk(T.rows, count_record, &count, &T.error), HEDDLE_OK);
    return count;
}

/* ---- keys ---- */

Test(rows, keys_that_are_none_of_ours_are_refused)
{
    static const char *const KEYS[] = {"",
                                       "a",
                                       "a/",
                                       "a-x",
                                       "z/name",
                                       "a/" LONG_NAME,
                                       "a/" LONG_NAME LONG_NAME LONG_NAME,
                                       "v/a",
                                       "v/a/0000000000000001-v",
                                       "v/a-0000000000000001/v",
                                       "v/a/000000000000000g/v",
                                       "v/a/000000000000000A/v",
                                       "v/a/0000000000000000/v",
                                       "v/a/0000000000000001/z",
                                       "v/" LONG_NAME "/0000000000000001/v"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        cr_assert_eq(read_row(KEYS[i], adapter_record("name")), HEDDLE_ERR_DATA_DIR, "%s", KEYS[i]);
        cr_assert_not_null(strstr(T.error.message, "did not write"), "%s: %s", KEYS[i], T.error.message);
    }
    cr_assert_eq(rows_read(T.rows, bytes_of("a/x\0y", 5), value_of(adapter_record("x")), &T.error),
                 HEDDLE_ERR_DATA_DIR);
    cr_assert_eq(rows_bytes(T.rows), 0);
}

Test(rows, a_key_comes_once)
{
    cr_assert_eq(read_row("a/x", adapter_record("x")), HEDDLE_OK);
    cr_assert_eq(read_row("a/x", adapter_record("x")), HEDDLE_ERR_DATA_DIR);
    cr_assert_eq(count_rows(), 1);
}

Test(rows, a_row_is_of_what_its_key_says)
{
    cr_assert_eq(read_row("a/x", adapter_record("y")), HEDDLE_ERR_DATA_DIR);
    cr_assert_str_eq(T.error.message, "the row a/x is damaged");
    cr_assert_eq(read_row("v/x/0000000000000002/v", version_record("x", 3)), HEDDLE_ERR_DATA_DIR);
    cr_assert_eq(read_row("n/x", adapter_record("x")), HEDDLE_ERR_DATA_DIR);
    cr_assert_eq(rows_read(T.rows, text_of("a/x"), bytes_of("", 0), &T.error), HEDDLE_ERR_DATA_DIR);
    cr_assert_eq(rows_bytes(T.rows), 0);
}

Test(rows, the_greatest_numbers_are_known_whatever_the_order)
{
    record_t last = {.kind = RECORD_DECISION, .adapter = "x", .decision = 9, .version = 2}, first = last;
    first.decision = 4;
    cr_assert_eq(read_meta(GOOD_META), HEDDLE_OK);
    cr_assert_eq(read_row("a/x", adapter_record("x")), HEDDLE_OK);
    cr_assert_eq(read_row("v/x/0000000000000002/v", version_record("x", 2)), HEDDLE_OK);
    cr_assert_eq(read_row("v/x/0000000000000001/v", version_record("x", 1)), HEDDLE_OK);
    cr_assert_eq(read_row("v/x/0000000000000002/g", last), HEDDLE_OK);
    cr_assert_eq(read_row("v/x/0000000000000002/f", first), HEDDLE_OK);
    cr_assert_eq(rows_end_read(T.rows, &T.error), HEDDLE_OK);
    record_t decision = last, forget = {.kind = RECORD_FORGET, .adapter = "x", .version = 2};
    cr_assert_eq(change(&decision, 1), HEDDLE_ERR_INTERNAL, "the number was given");
    decision.decision = 10;
    change_and_keep(&decision, 1);
    KEEP({.kind = RECORD_STATE, .adapter = "x", .version = 2, .state = VERSION_RETIRED});
    cr_assert_eq(change(&forget, 1), HEDDLE_ERR_INTERNAL, "the greatest number");
}

/* ---- meta ---- */

Test(rows, a_meta_line_that_is_none_is_refused)
{
    static const char *const LINES[] = {"",
                                        "something else",
                                        "heddle registry ",
                                        "heddle registry x 0123456789abcdef 4",
                                        "heddle registry 8",
                                        "heddle registry 8 0123456789abcdef",
                                        "heddle registry 8 0123456789abcdef ",
                                        "heddle registry 8 0123456789abcdeg 4",
                                        "heddle registry 8 0123456789abcdef-4",
                                        "heddle registry 8 0123456789abcdef 4x",
                                        "heddle registry 8 0123456789abcdef 4294967296",
                                        "heddle registry 8 0123456789abcdef 18446744073709551616",
                                        "heddle registry 18446744073709551617 0123456789abcdef 4",
                                        GOOD_META " " LONG_NAME};
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
        cr_assert_eq(read_meta(LINES[i]), HEDDLE_ERR_DATA_DIR, "%s", LINES[i]);
        cr_assert_str_eq(rows_cluster(T.rows), "", "%s", LINES[i]);
    }
    cr_assert_eq(read_meta("heddle registry 9999 0123456789abcdef 4"), HEDDLE_ERR_DATA_NEWER);
    cr_assert_eq(read_meta(GOOD_META), HEDDLE_OK);
    cr_assert_eq(rows_epoch(T.rows), 4);
    cr_assert_str_eq(rows_cluster(T.rows), "0123456789abcdef");
}

Test(rows, rows_without_meta_are_refused)
{
    cr_assert_eq(rows_end_read(T.rows, &T.error), HEDDLE_OK, "there are none");
    cr_assert_eq(count_rows(), 0);
    cr_assert_eq(read_row("a/x", adapter_record("x")), HEDDLE_OK);
    cr_assert_eq(rows_end_read(T.rows, &T.error), HEDDLE_ERR_DATA_DIR);
}

Test(rows, a_row_of_a_version_that_is_missing_is_refused)
{
    record_t loss = {.kind = RECORD_LOSS, .adapter = "x", .version = 3, .message = "w1 had it"};
    cr_assert_eq(read_meta(GOOD_META), HEDDLE_OK);
    cr_assert_eq(read_row("v/x/0000000000000003/l", loss), HEDDLE_OK);
    cr_assert_eq(rows_end_read(T.rows, &T.error), HEDDLE_ERR_DATA_DIR);
    cr_assert_str_eq(T.error.message, "the row v/x/0000000000000003/l has no version");
}

/* ---- values ---- */

/* A row of an older release ends behind a column; all other ends are damage. */
Test(rows, a_value_ends_behind_a_column_or_it_is_damaged)
{
    record_t whole = {.kind = RECORD_FLOOR, .adapter = "policy", .version = 7, .decision = 3}, r;
    bytes_t value = value_of(whole);
    size_t ends[] = {4 + 7, 4 + 7 + 8, 4 + 7 + 8 + 8};
    cr_assert_eq(value.bytes, ends[2]);
    for (size_t bytes = 0, k = 0; bytes <= value.bytes; bytes++) {
        bool is_end = k < 3 && bytes == ends[k];
        r = (record_t){.kind = RECORD_FLOOR};
        cr_assert_eq(rows_value_take(bytes_of(value.data, bytes), &r), is_end, "%zu bytes", bytes);
        if (!is_end) continue;
        cr_assert_str_eq(r.adapter, "policy");
        cr_assert_eq(r.version, k > 0 ? 7 : 0);
        cr_assert_eq(r.decision, k > 1 ? 3 : 0);
        k++;
    }
    buf_add(&T.value, "x", 1);
    cr_assert(!rows_value_take(buf_view(&T.value), &r), "one byte more");
}

Test(rows, a_text_has_its_end_where_its_length_says)
{
    record_t r = {.kind = RECORD_ADAPTER};
    static const struct {
        const char *bytes;
        size_t count;
    } TEXTS[] = {{"\2\0\0\0a\0\0", 7}, /* a NUL in it */
                 {"\1\0\0\0ab", 6},    /* none behind it */
                 {"\1\0\0\0a", 5},     /* cut off */
                 {"\xff\xff\xff\xff"
                  "a",
                  5}};
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++)
        cr_assert(!rows_value_take(bytes_of(TEXTS[i].bytes, TEXTS[i].count), &r), "text %zu", i);
}

Test(rows, a_version_is_damaged_by_any_cut_of_its_digests)
{
    record_t r = {.kind = RECORD_VERSION};
    bytes_t value = value_of(version_record("x", 1));
    size_t digest = 4 + 2 + 8 + 8;
    for (size_t bytes = 0; bytes < digest + 4 + 32; bytes++)
        cr_assert(!rows_value_take(bytes_of(value.data, bytes), &r), "%zu bytes", bytes);
    T.value.data[digest] = 31;
    cr_assert(!rows_value_take(buf_view(&T.value), &r));
}

Test(rows, a_state_that_no_record_has_is_damage)
{
    record_t r = {.kind = RECORD_STATE};
    for (int state = -1; state <= VERSION_RETIRED + 1; state++) {
        record_t s = {.kind = RECORD_STATE, .adapter = "x", .version = 1, .state = (version_state_t)state};
        bool is_one = state >= VERSION_STAGING && state <= VERSION_RETIRED;
        cr_assert_eq(rows_value_take(value_of(s), &r), is_one, "%d", state);
    }
}

Test(rows, without_memory_a_value_is_not_written)
{
    record_t r = version_record("x", 1);
    T.value.failed = true;
    rows_value_put(&T.value, &r);
    cr_assert_eq(T.value.bytes, 0);
    T.value.failed = false;
    KEEP(adapter_record("x"), r);
    buf_t out = {.failed = true};
    cr_assert_eq(rows_config(T.rows, "x", 1, &out, &T.error), HEDDLE_ERR_NO_MEMORY);
    cr_assert_eq(rows_config(T.rows, "x", 2, &out, &T.error), HEDDLE_ERR_NOT_FOUND);
}

/* ---- changes ---- */

static void refuses(const record_t *records, int count, const char *what)
{
    uint64_t bytes = rows_bytes(T.rows), epoch = rows_epoch(T.rows);
    int rows = count_rows();
    cr_assert_eq(change(records, count), HEDDLE_ERR_INTERNAL, "%s", what);
    cr_assert_eq(rows_bytes(T.rows), bytes, "%s", what);
    cr_assert_eq(rows_epoch(T.rows), epoch, "%s", what);
    cr_assert_eq(count_rows(), rows, "%s", what);
}
#define REFUSES(what, ...)                                                                                   \
    refuses((record_t[]){__VA_ARGS__}, (int)(sizeof((record_t[]){__VA_ARGS__}) / sizeof(record_t)), what)

Test(rows, records_that_contradict_the_rows_change_nothing)
{
    KEEP(adapter_record("x"), version_record("x", 1));
    REFUSES("a version without a number", version_record("x", 0));
    REFUSES("a name that is too long", adapter_record(LONG_NAME));
    REFUSES("an epoch, and then what may not be", {.kind = RECORD_EPOCH, .epoch = 9}, adapter_record("x"));
    REFUSES("a version of a name that is not there", adapter_record("y"), version_record("z", 1));
    REFUSES("a row below what is forgotten in the same turn", {.kind = RECORD_ADAPTER_FORGET, .adapter = "x"},
            version_record("x", 2));
}

Test(rows, a_name_with_a_floor_is_not_dropped)
{
    KEEP(adapter_record("x"), {.kind = RECORD_FLOOR, .adapter = "x", .version = 4});
    REFUSES("its numbers were given", {.kind = RECORD_ADAPTER_DROP, .adapter = "x"});
}

Test(rows, a_transaction_has_no_more_operations_than_etcd_takes)
{
    enum { MANY = ROWS_OPS + 1 };
    record_t records[MANY];
    char names[MANY][16];
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "w%d", i);
        records[i] = (record_t){.kind = RECORD_WORKER, .worker = names[i], .serves = "x@1"};
    }
    refuses(records, MANY, "one too many");
    change_and_keep(records, ROWS_OPS);
    cr_assert_eq(T.ops.count, ROWS_OPS);
    for (int i = 0; i < MANY; i++) {
        change_and_keep((record_t[]){adapter_record(names[i]), version_record(names[i], 1)}, 2);
        records[i] = (record_t){.kind = RECORD_ADAPTER_FORGET, .adapter = names[i]};
    }
    refuses(records, MANY, "too many ranges");
}

/* Their ranges and writers, or their rows and those of their invitations, and the marker that is put with
 * them. */
Test(rows, an_outbox_of_the_largest_records_fits_with_its_marker)
{
    enum { ETCD_TAKES = 128, MARKER = 1 };
    record_t records[OUTBOX_RECORDS];
    char names[OUTBOX_RECORDS][16], keys[OUTBOX_RECORDS][16];
    for (int i = 0; i < OUTBOX_RECORDS; i++) {
        snprintf(names[i], sizeof names[i], "x%d", i);
        snprintf(keys[i], sizeof keys[i], "k%d", i);
        record_t key = {.kind = RECORD_KEY, .public_key = keys[i], .roles = "", .entered_by = names[i]};
        KEEP(adapter_record(names[i]), version_record(names[i], 1), key);
        KEEP({.kind = RECORD_KEYS_REVOKE, .public_key = names[i], .revoked_ms = 7});
        records[i] = (record_t){.kind = RECORD_ADAPTER_FORGET, .adapter = names[i]};
    }
    change_and_keep(records, OUTBOX_RECORDS);
    cr_assert_eq(T.ops.count, 2 * OUTBOX_RECORDS);
    cr_assert_leq(T.ops.count + MARKER, ETCD_TAKES);
    for (int i = 0; i < OUTBOX_RECORDS; i++)
        records[i] = (record_t){.kind = RECORD_KEY_DROP, .public_key = keys[i]};
    change_and_keep(records, OUTBOX_RECORDS);
    cr_assert_eq(T.ops.count, 2 * OUTBOX_RECORDS);
    cr_assert_leq(T.ops.count + MARKER, ETCD_TAKES);
}

/* An import has many of them in one transaction, and looks through no rows for each. */
Test(rows, a_name_without_versions_is_forgotten_by_one_operation)
{
    KEEP({.kind = RECORD_ADAPTER_FORGET, .adapter = "x"}, {.kind = RECORD_ADAPTER_FORGET, .adapter = "y"});
    cr_assert_eq(T.ops.count, 2);
    KEEP(adapter_record("z"), version_record("z", 1));
    KEEP({.kind = RECORD_ADAPTER_FORGET, .adapter = "z"});
    cr_assert_eq(T.ops.count, 2, "its range, and its writer");
}

Test(rows, what_is_said_of_a_version_that_is_gone_changes_nothing)
{
    record_t of_none[] = {{.kind = RECORD_LOSS, .adapter = "x", .version = 1, .message = "w1 had it"},
                          {.kind = RECORD_STAGED, .adapter = "x", .version = 1}};
    change_and_keep(of_none, 2);
    cr_assert_eq(T.ops.count, 0);
    KEEP(adapter_record("x"), version_record("x", 1));
    KEEP({.kind = RECORD_LOSS, .adapter = "x", .version = 1, .message = ""});
    cr_assert_eq(T.ops.count, 0, "there is no loss to end");
    KEEP({.kind = RECORD_LOSS, .adapter = "x", .version = 1});
    cr_assert_eq(T.ops.count, 0);
}

Test(rows, a_row_that_came_and_went_in_a_turn_is_not_there)
{
    record_t w = {.kind = RECORD_WRITER, .adapter = "x", .token = 5}, closed = w;
    closed.token = 0;
    KEEP(w, closed);
    cr_assert_eq(T.ops.count, 1);
    cr_assert_eq(T.ops.op[0].kind, ROWS_DELETE);
    cr_assert_eq(count_rows(), 0);
    REFUSES("and is not there when the turn is undone", w, closed, version_record("x", 0));
}

Test(rows, an_undone_change_leaves_all_as_it_was)
{
    record_t more[] = {{.kind = RECORD_EPOCH, .epoch = 7},
                       adapter_record("y"),
                       {.kind = RECORD_FORGET, .adapter = "x", .version = 1}};
    KEEP(adapter_record("x"), version_record("x", 1), version_record("x", 2),
         {.kind = RECORD_STATE, .adapter = "x", .version = 1, .state = VERSION_FAILED});
    uint64_t bytes = rows_bytes(T.rows);
    for (int again = 0; again < 2; again++) {
        cr_assert_eq(change(more, 3), HEDDLE_OK);
        cr_assert_neq(rows_bytes(T.rows), bytes);
        rows_undo(T.rows);
        rows_undo(T.rows);
        cr_assert_eq(rows_bytes(T.rows), bytes);
        cr_assert_eq(rows_epoch(T.rows), 0);
    }
    cr_assert_eq(change(more, 3), HEDDLE_OK);
}

Test(rows, only_keys_that_are_not_revoked_live)
{
    record_t key = {.kind = RECORD_KEY, .public_key = "k1"}, revoked = key;
    revoked.public_key = "k2";
    revoked.revoked_ms = 9;
    KEEP(key, revoked, adapter_record("x"));
    cr_assert_eq(rows_live_keys(T.rows), 1);
}

Test(rows, of_two_floors_each_greater_number_counts)
{
    KEEP({.kind = RECORD_FLOOR, .adapter = "x", .version = 4, .decision = 9});
    KEEP({.kind = RECORD_FLOOR, .adapter = "x", .version = 5, .decision = 3});
    record_t r = {.kind = RECORD_FLOOR};
    cr_assert_eq(T.ops.count, 1);
    cr_assert(rows_value_take(
        value_of((record_t){.kind = RECORD_FLOOR, .adapter = "x", .version = 5, .decision = 9}), &r));
    cr_assert_eq(rows_bytes(T.rows), strlen("f/x") + T.value.bytes);
}

/* ---- what a watch says ---- */

Test(rows, what_follows_takes_the_place_of_what_was_read)
{
    record_t r = {.kind = RECORD_FLOOR, .adapter = "x", .version = 1, .decision = 1};
    cr_assert_eq(read_meta(GOOD_META), HEDDLE_OK);
    cr_assert_eq(read_row("f/x", r), HEDDLE_OK);
    r.version = 8;
    cr_assert_eq(rows_follow(T.rows, text_of("f/x"), value_of(r), false, &T.error), HEDDLE_OK);
    uint64_t bytes = rows_bytes(T.rows);
    cr_assert_eq(rows_follow(T.rows, text_of("f/y"), bytes_of("", 0), true, &T.error), HEDDLE_OK);
    cr_assert_eq(rows_bytes(T.rows), bytes);
    cr_assert_eq(rows_follow(T.rows, text_of("f/x"), bytes_of("", 0), true, &T.error), HEDDLE_OK);
    cr_assert_eq(rows_bytes(T.rows), 0);
    cr_assert_eq(rows_follow(T.rows, text_of("f/x"), text_of("cut off"), false, &T.error),
                 HEDDLE_ERR_DATA_DIR);
    char long_key[ROWS_KEY_BYTES + 1];
    memset(long_key, 'f', sizeof long_key);
    bytes_t key = bytes_of(long_key, sizeof long_key);
    cr_assert_eq(rows_follow(T.rows, key, text_of("x"), false, &T.error), HEDDLE_ERR_DATA_DIR);
}

/* A version that came and went while it was followed leaves no count of it. */
Test(rows, numbers_are_counted_when_all_was_read)
{
    record_t adapter = adapter_record("x"), version = version_record("x", 7);
    cr_assert_eq(read_meta(GOOD_META), HEDDLE_OK);
    cr_assert_eq(rows_follow(T.rows, text_of("a/x"), value_of(adapter), false, &T.error), HEDDLE_OK);
    const char *key = "v/x/0000000000000007/v";
    cr_assert_eq(rows_follow(T.rows, text_of(key), value_of(version), false, &T.error), HEDDLE_OK);
    cr_assert_eq(rows_follow(T.rows, text_of(key), bytes_of("", 0), true, &T.error), HEDDLE_OK);
    cr_assert_eq(rows_end_read(T.rows, &T.error), HEDDLE_OK);
    cr_assert_eq(rows_bytes(T.rows), 0, "the name has no version");
}
