/* SPDX-License-Identifier: Apache-2.0 */
/* A registry as a file: the same rows come back, the same rows are the same bytes, and nothing is taken of a
 * file that was cut or changed. */
#include "core/digest.h"
#include "tests/lib/rows_rig.h"

#include <stdio.h>
#include <stdlib.h>

static struct {
    store_rows_t *rows, *taken;
    buf_t file;
    rows_file_t put, took;
    heddle_error_t error;
} T;

static bytes_t text_of(const char *text) { return bytes_of(text, strlen(text)); }

enum { EPOCH = 4 };

static void start(void) { T.rows = rows_rig_new(EPOCH); }
static void stop(void)
{
    rows_destroy(&T.rows);
    rows_destroy(&T.taken);
    buf_fini(&T.file);
}
TestSuite(rows_file, .init = start, .fini = stop);

static void change(store_rows_t *rows, const record_t *records, int count)
{
    rows_ops_t ops;
    cr_assert_eq(rows_change(rows, records, count, &ops, &T.error), HEDDLE_OK, "%s", T.error.message);
    rows_keep(rows);
}

static void put(store_rows_t *rows, buf_t *file)
{
    buf_clear(file);
    cr_assert_eq(rows_file_put(rows, SIZE_MAX, file, &T.put, &T.error), HEDDLE_OK, "%s", T.error.message);
}

static int take(bytes_t file)
{
    rows_destroy(&T.taken);
    T.error = (heddle_error_t){0};
    return rows_file_take(file, &T.taken, &T.took, &T.error);
}

/* The digest is that of the bytes, whatever they are. */
static void sign(buf_t *file)
{
    digest_t digest = digest_blake2b(file->data, file->bytes - 32);
    memcpy(file->data + file->bytes - 32, digest.b, 32);
}

Test(rows_file, a_file_of_no_rows_has_the_cluster_and_the_epoch)
{
    put(T.rows, &T.file);
    cr_assert_eq(take(buf_view(&T.file)), HEDDLE_OK);
    cr_assert_str_eq(rows_cluster(T.taken), "0123456789abcdef");
    cr_assert_eq(rows_epoch(T.taken), 4);
    cr_assert_eq(T.took.rows, 0);
}

Test(rows_file, the_same_rows_come_back)
{
    buf_t again = {0};
    rows_rig_fill(T.rows, false);
    put(T.rows, &T.file);
    cr_assert_eq(take(buf_view(&T.file)), HEDDLE_OK, "%s: %s", T.error.message, T.error.found);
    cr_assert_eq(T.took.rows, T.put.rows);
    cr_assert_eq(memcmp(&T.took.digest, &T.put.digest, sizeof T.put.digest), 0);
    put(T.taken, &again);
    cr_assert_eq(again.bytes, T.file.bytes);
    cr_assert_eq(memcmp(again.data, T.file.data, again.bytes), 0);
    buf_fini(&again);
}

Test(rows_file, rows_that_say_the_same_are_the_same_bytes)
{
    store_rows_t *other = rows_rig_new(EPOCH);
    buf_t file = {0};
    rows_rig_fill(T.rows, false);
    rows_rig_fill(other, true);
    put(T.rows, &T.file);
    put(other, &file);
    cr_assert_eq(file.bytes, T.file.bytes);
    cr_assert_eq(memcmp(file.data, T.file.data, file.bytes), 0);
    buf_fini(&file);
    rows_destroy(&other);
}

Test(rows_file, nothing_is_taken_of_a_file_that_was_cut)
{
    rows_rig_fill(T.rows, false);
    put(T.rows, &T.file);
    for (size_t bytes = 0; bytes < T.file.bytes; bytes++) {
        void *exact = malloc(bytes + 1); /* so that a read behind its end is seen */
        memcpy(exact, T.file.data, bytes);
        cr_assert_eq(take(bytes_of(exact, bytes)), HEDDLE_ERR_DATA_DIR, "%zu bytes", bytes);
        cr_assert_null(T.taken);
        free(exact);
    }
    buf_add_text(&T.file, "x");
    cr_assert_eq(take(buf_view(&T.file)), HEDDLE_ERR_DATA_DIR);
}

Test(rows_file, nothing_is_taken_of_a_file_in_which_a_bit_changed)
{
    rows_rig_fill(T.rows, false);
    put(T.rows, &T.file);
    for (size_t at = 0; at < T.file.bytes; at++) {
        T.file.data[at] ^= 4;
        int rc = take(buf_view(&T.file));
        cr_assert(rc == HEDDLE_ERR_DATA_DIR || rc == HEDDLE_ERR_DATA_NEWER, "byte %zu", at);
        cr_assert_null(T.taken);
        T.file.data[at] ^= 4;
    }
}

/* Under a digest that fits, as a hostile file has it. */
Test(rows_file, nothing_is_taken_of_a_file_that_was_cut_and_signed_again)
{
    rows_rig_fill(T.rows, false);
    put(T.rows, &T.file);
    for (size_t bytes = 32; bytes < T.file.bytes; bytes++) {
        buf_t cut = {0};
        buf_add(&cut, T.file.data, bytes);
        sign(&cut);
        cr_assert_eq(take(buf_view(&cut)), HEDDLE_ERR_DATA_DIR, "%zu bytes", bytes);
        buf_fini(&cut);
    }
}

Test(rows_file, any_change_under_its_own_digest_is_taken_whole_or_refused)
{
    rows_rig_fill(T.rows, false);
    put(T.rows, &T.file);
    for (size_t at = 0; at + 32 < T.file.bytes; at++)
        for (int bit = 0; bit < 8; bit++) {
            T.file.data[at] ^= (uint8_t)(1 << bit);
            sign(&T.file);
            int rc = take(buf_view(&T.file));
            cr_assert(rc == HEDDLE_OK || rc == HEDDLE_ERR_DATA_DIR || rc == HEDDLE_ERR_DATA_NEWER, "byte %zu",
                      at);
            cr_assert_eq(rc == HEDDLE_OK, T.taken != NULL);
            T.file.data[at] ^= (uint8_t)(1 << bit);
        }
}

/* Lines and rows by hand; `count`: what the end says. */
static int take_of(const char *lines, const char *const *keys, int key_count, uint64_t count)
{
    uint8_t number[8] = {0};
    buf_clear(&T.file);
    buf_add_text(&T.file, lines);
    for (int i = 0; i < key_count; i++) {
        le32_put(number, (uint32_t)strlen(keys[i]));
        buf_add(&T.file, number, 4);
        buf_add_text(&T.file, keys[i]);
        le32_put(number, 1);
        buf_add(&T.file, number, 4);
        buf_add_text(&T.file, "x");
    }
    le64_put(number, 0);
    buf_add(&T.file, number, 4);
    le64_put(number, count);
    buf_add(&T.file, number, 8);
    buf_grow(&T.file, 32);
    sign(&T.file);
    return take(buf_view(&T.file));
}

#define FORMAT "heddle registry export 1\n"
#define META "heddle registry 9 0123456789abcdef 4\n"

Test(rows_file, what_is_refused_says_what_was_found)
{
    static const struct {
        const char *lines, *keys[2];
        int key_count;
        uint64_t count;
        int code;
        const char *found;
    } OF[] = {
        {FORMAT META, {0}, 0, 0, HEDDLE_OK, ""},
        {"heddle registry export 2\n" META, {0}, 0, 0, HEDDLE_ERR_DATA_NEWER, "format 2"},
        {"heddle registry export 0\n" META, {0}, 0, 0, HEDDLE_ERR_DATA_DIR, "another format"},
        {"heddle registry export 1x\n" META, {0}, 0, 0, HEDDLE_ERR_DATA_DIR, "another file"},
        {"heddle registry\n" META, {0}, 0, 0, HEDDLE_ERR_DATA_DIR, "another file"},
        {"SQLite format 3", {0}, 0, 0, HEDDLE_ERR_DATA_DIR, "another file"},
        {FORMAT "heddle registry 99 0123456789abcdef 4\n", {0}, 0, 0, HEDDLE_ERR_DATA_NEWER, "schema 99"},
        {FORMAT "something else\n", {0}, 0, 0, HEDDLE_ERR_DATA_DIR, "did not write"},
        {FORMAT META, {0}, 0, 1, HEDDLE_ERR_DATA_DIR, "another number of rows"},
        {FORMAT META, {"x/y"}, 1, 1, HEDDLE_ERR_DATA_DIR, "did not write"},
        {FORMAT META, {"a/y"}, 1, 1, HEDDLE_ERR_DATA_DIR, "damaged"},
        {FORMAT "heddle registry 9 0123456789abcdef 4294967295\n",
         {0},
         0,
         0,
         HEDDLE_ERR_DATA_DIR,
         "an epoch"},
        {FORMAT "heddle registry 9 0123456789abcdef 0\n", {0}, 0, 0, HEDDLE_ERR_DATA_DIR, "no epoch"},
        {FORMAT META, {"meta"}, 1, 1, HEDDLE_ERR_DATA_DIR, "out of order"},
    };
    for (size_t i = 0; i < sizeof OF / sizeof *OF; i++) {
        int rc = take_of(OF[i].lines, OF[i].keys, OF[i].key_count, OF[i].count);
        cr_assert_eq(rc, OF[i].code, "row %zu: %s", i, heddle_err_name(rc));
        cr_assert(strstr(T.error.found, OF[i].found), "row %zu: %s", i, T.error.found);
    }
}

/* A row that says of a version that it failed, without the version. */
static void lone_row(store_rows_t **ret_rows, char key[ROWS_KEY_BYTES], buf_t *value)
{
    record_t records[] = {{.kind = RECORD_ADAPTER, .adapter = "a"},
                          {.kind = RECORD_VERSION, .adapter = "a", .version = 1, .config = {"{}", 2}}};
    record_t state = {.kind = RECORD_STATE, .adapter = "a", .version = 1, .state = VERSION_FAILED};
    store_rows_t *whole = rows_rig_new(EPOCH);
    rows_ops_t ops;
    change(whole, records, 2);
    cr_assert_eq(rows_change(whole, &state, 1, &ops, &T.error), HEDDLE_OK, "%s", T.error.message);
    cr_assert_eq(ops.count, 1);
    snprintf(key, ROWS_KEY_BYTES, "%s", ops.op[0].key);
    buf_add(value, ops.op[0].value.data, ops.op[0].value.bytes);
    rows_destroy(&whole);
    *ret_rows = rows_rig_new(EPOCH);
    cr_assert_eq(rows_read(*ret_rows, text_of(key), buf_view(value), &T.error), HEDDLE_OK);
}

Test(rows_file, rows_that_contradict_each_other_are_no_export)
{
    store_rows_t *rows = NULL;
    char key[ROWS_KEY_BYTES];
    buf_t value = {0};
    uint8_t number[8];
    lone_row(&rows, key, &value);
    T.error = (heddle_error_t){0};
    cr_assert_eq(rows_file_put(rows, SIZE_MAX, &T.file, &T.put, &T.error), HEDDLE_ERR_INTERNAL);
    cr_assert(strstr(T.error.message, "contradict"), "%s", T.error.message);
    buf_clear(&T.file);
    buf_add_text(&T.file, FORMAT META);
    le32_put(number, (uint32_t)strlen(key));
    buf_add(&T.file, number, 4);
    buf_add_text(&T.file, key);
    le32_put(number, (uint32_t)value.bytes);
    buf_add(&T.file, number, 4);
    buf_add(&T.file, value.data, value.bytes);
    buf_add(&T.file, "\0\0\0\0\1\0\0\0\0\0\0\0", 12);
    buf_grow(&T.file, 32);
    sign(&T.file);
    cr_assert_eq(take(buf_view(&T.file)), HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(T.error.found, "has no version"), "%s", T.error.found);
    rows_destroy(&rows);
    buf_fini(&value);
}

/* ---- rows of which each one is good ---- */

static int copy_row(void *to, bytes_t key, bytes_t value)
{
    heddle_error_t is_there;
    (void)rows_read(to, key, value, &is_there);
    return HEDDLE_OK;
}

static int write_row(void *self, bytes_t key, bytes_t value)
{
    uint64_t *count = self;
    uint8_t number[4];
    le32_put(number, (uint32_t)key.bytes);
    buf_add(&T.file, number, 4);
    buf_add(&T.file, key.data, key.bytes);
    le32_put(number, (uint32_t)value.bytes);
    buf_add(&T.file, number, 4);
    buf_add(&T.file, value.data, value.bytes);
    ++*count;
    return HEDDLE_OK;
}

/* As they are, and not as their records say them. */
static int take_rows_of(store_rows_t *rows)
{
    uint8_t number[12] = {0};
    uint64_t count = 0;
    buf_clear(&T.file);
    buf_add_text(&T.file, FORMAT META);
    cr_assert_eq(rows_each(rows, write_row, &count, &T.error), HEDDLE_OK);
    le64_put(number + 4, count);
    buf_add(&T.file, number, sizeof number);
    buf_grow(&T.file, 32);
    sign(&T.file);
    return take(buf_view(&T.file));
}

enum { OF_ONE = 4 };

/* The rows of two registries, of which the first one's count where both have the key. */
static int take_both(const record_t *one, const record_t *other)
{
    store_rows_t *both = rows_rig_new(EPOCH);
    for (int i = 0; i < 2; i++) {
        const record_t *records = i ? other : one;
        store_rows_t *rows = rows_rig_new(EPOCH);
        size_t count = 0;
        while (count < OF_ONE && records[count].kind) count++;
        rows_rig_add(rows, records, count);
        cr_assert_eq(rows_each(rows, copy_row, both, &T.error), HEDDLE_OK);
        rows_destroy(&rows);
    }
    int rc = take_rows_of(both);
    rows_destroy(&both);
    return rc;
}

#define A_NAME                                                                                               \
    {                                                                                                        \
        .kind = RECORD_ADAPTER, .adapter = "a"                                                               \
    }
#define A_VERSION(number)                                                                                    \
    {                                                                                                        \
        .kind = RECORD_VERSION, .adapter = "a", .version = number, .config = { "{}", 2 }                     \
    }
#define A_DECISION(of)                                                                                       \
    {                                                                                                        \
        .kind = RECORD_DECISION, .adapter = "a", .version = of, .decision = 1, .by = "ann"                   \
    }

Test(rows_file, rows_of_which_one_takes_the_place_of_others_are_no_export)
{
    static const struct {
        record_t one[OF_ONE], other[OF_ONE];
        const char *found;
    } OF[] = {
        {{A_NAME, A_VERSION(1)}, {{.kind = RECORD_FLOOR, .adapter = "a", .version = 3}}, ""},
        {{A_NAME, A_VERSION(1)}, {{.kind = RECORD_WRITER, .adapter = "a"}}, "contradict"},
        {{A_NAME, A_VERSION(1), A_VERSION(2), A_DECISION(1)},
         {A_NAME, A_VERSION(1), A_VERSION(2), A_DECISION(2)},
         "contradict"},
        {{A_NAME, A_VERSION(1), {.kind = RECORD_STAGED, .adapter = "a", .version = 1}},
         {A_NAME,
          A_VERSION(1),
          {.kind = RECORD_STATE, .adapter = "a", .version = 1, .state = VERSION_FAILED}},
         "contradict"},
        {{{.kind = RECORD_FLOOR, .adapter = "a b", .version = 1}}, {{0}}, "\"a b\""},
        {{{.kind = RECORD_WORKER, .worker = "../w", .serves = "a@1"}}, {{0}}, "\"../w\""},
    };
    for (size_t i = 0; i < sizeof OF / sizeof *OF; i++) {
        int rc = take_both(OF[i].one, OF[i].other);
        cr_assert_eq(rc, *OF[i].found ? HEDDLE_ERR_DATA_DIR : HEDDLE_OK, "row %zu: %s", i,
                     heddle_err_name(rc));
        cr_assert(strstr(T.error.found, OF[i].found), "row %zu: %s", i, T.error.found);
        cr_assert_eq(T.taken == NULL, rc != HEDDLE_OK, "row %zu", i);
    }
}

Test(rows_file, a_file_is_as_large_as_its_limit_and_no_larger)
{
    rows_file_t sum;
    rows_rig_fill(T.rows, false);
    put(T.rows, &T.file);
    size_t bytes = T.file.bytes;
    buf_clear(&T.file);
    cr_assert_eq(rows_file_put(T.rows, bytes, &T.file, &T.put, &T.error), HEDDLE_OK);
    cr_assert_eq(T.file.bytes, bytes);
    cr_assert_eq(rows_file_put(T.rows, bytes - 1, &T.file, &T.put, &T.error), HEDDLE_ERR_LIMIT);
    cr_assert(strstr(T.error.message, "larger than an export can be"), "%s", T.error.message);
    cr_assert_eq(rows_file_sum(T.rows, &sum, &T.error), HEDDLE_OK);
    cr_assert_eq(sum.rows, T.put.rows);
    cr_assert(digest_equal(&sum.digest, &T.put.digest));
}

Test(rows_file, a_record_that_contradicts_the_rows_changes_nothing)
{
    record_t decision = {.kind = RECORD_DECISION, .adapter = "a", .version = 1, .decision = 1, .by = "ann"};
    rows_rig_fill(T.rows, false);
    cr_assert_eq(rows_adopt(T.rows, &decision, &T.error), HEDDLE_ERR_INTERNAL);
    put(T.rows, &T.file); /* and the rows are as they were */
    cr_assert_eq(take(buf_view(&T.file)), HEDDLE_OK);
}

Test(rows_file, without_memory_there_is_no_export)
{
    rows_rig_fill(T.rows, false);
    T.file.failed = true;
    cr_assert_eq(rows_file_put(T.rows, SIZE_MAX, &T.file, &T.put, &T.error), HEDDLE_ERR_NO_MEMORY);
}
