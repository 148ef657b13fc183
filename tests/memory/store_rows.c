/* SPDX-License-Identifier: Apache-2.0 */
/* From the Nth allocation on all fail, for every N: a change of the rows of a registry is made, or it is
 * refused and the rows are as before, to the last byte.  Going back takes no memory. */
#include "broker/store/rows.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    bool is_on;
    uint64_t count, fail_from;
} alloc;

static bool refuse(void) { return alloc.is_on && ++alloc.count >= alloc.fail_from; }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes) { return refuse() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return refuse() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return refuse() ? NULL : __real_realloc(old, bytes); }

typedef struct {
    char text[8192];
    size_t at;
} said_t;

/* What the rows say, one line a record. */
static int say(void *self, const record_t *r)
{
    said_t *s = self;
    bool has_code = r->kind == RECORD_STATE;
    s->at += (size_t)snprintf(s->text + s->at, sizeof s->text - s->at, "%d %s@%llu d%llu %s %d %llu\n",
                              (int)r->kind, r->adapter ? r->adapter : "", (unsigned long long)r->version,
                              (unsigned long long)r->decision, has_code ? r->message : "", r->code,
                              (unsigned long long)r->revoked_ms);
    cr_assert_lt(s->at, sizeof s->text);
    return HEDDLE_OK;
}

static void read_all(store_rows_t *rows, said_t *ret_said)
{
    ret_said->at = 0;
    cr_assert_eq(rows_walk(rows, say, ret_said, NULL), HEDDLE_OK);
}

static void make(store_rows_t *rows, const record_t *records, int count)
{
    rows_ops_t ops;
    cr_assert_eq(rows_change(rows, records, count, &ops, NULL), HEDDLE_OK);
    rows_keep(rows);
}

/* The allocations that the change takes. */
static void every_one_fails(const record_t *before, int before_count, const record_t *records, int count)
{
    static said_t was, is;
    heddle_error_t error;
    rows_ops_t ops;
    int rc = HEDDLE_ERR_NO_MEMORY;
    for (uint64_t n = 1; rc; n++) {
        store_rows_t *rows = NULL;
        cr_assert_eq(rows_new(&rows, NULL), HEDDLE_OK);
        if (before_count) make(rows, before, before_count);
        uint64_t bytes = rows_bytes(rows), keys = rows_live_keys(rows), epoch = rows_epoch(rows);
        read_all(rows, &was);
        alloc.count = 0;
        alloc.fail_from = n;
        alloc.is_on = true;
        rc = rows_change(rows, records, count, &ops, &error);
        if (!rc) rows_undo(rows);
        alloc.is_on = false;
        cr_assert(!rc || rc == HEDDLE_ERR_NO_MEMORY, "allocation %d: %d", (int)n, rc);
        read_all(rows, &is);
        cr_assert_str_eq(was.text, is.text, "allocation %d of %d", (int)n, (int)alloc.count);
        cr_assert_eq(rows_bytes(rows), bytes, "allocation %d", (int)n);
        cr_assert_eq(rows_live_keys(rows), keys, "allocation %d", (int)n);
        cr_assert_eq(rows_epoch(rows), epoch, "allocation %d", (int)n);
        make(rows, records, count);
        rows_destroy(&rows);
    }
}

Test(store_rows, the_only_row_is_replaced)
{
    record_t first = {.kind = RECORD_FLOOR, .adapter = "x", .version = 2, .decision = 3};
    record_t second = {.kind = RECORD_FLOOR, .adapter = "x", .version = 4, .decision = 1};
    every_one_fails(&first, 1, &second, 1);
}

Test(store_rows, the_only_row_is_dropped_and_made_again)
{
    record_t first = {.kind = RECORD_WRITER, .adapter = "x", .token = 2};
    record_t then[] = {{.kind = RECORD_WRITER, .adapter = "x"},
                       {.kind = RECORD_WRITER, .adapter = "x", .token = 7}};
    every_one_fails(&first, 1, then, 2);
}

Test(store_rows, one_of_every_kind)
{
    enum { COUNT = 40 };
    static char keys[COUNT][16];
    record_t before[8 + COUNT] = {
        {.kind = RECORD_EPOCH, .epoch = 3},
        {.kind = RECORD_ADAPTER, .adapter = "a"},
        {.kind = RECORD_ADAPTER, .adapter = "b"},
        {.kind = RECORD_VERSION, .adapter = "a", .version = 1},
        {.kind = RECORD_VERSION, .adapter = "a", .version = 2},
        {.kind = RECORD_DECISION, .adapter = "a", .version = 2, .decision = 1},
        {.kind = RECORD_STATE, .adapter = "a", .version = 1, .state = VERSION_FAILED, .message = "old"},
        {.kind = RECORD_VERSION, .adapter = "b", .version = 1},
    };
    for (int i = 0; i < COUNT; i++) {
        snprintf(keys[i], sizeof keys[i], "key-%d", i);
        before[8 + i] = (record_t){.kind = RECORD_KEY, .public_key = keys[i], .entered_by = "key-0"};
    }
    record_t then[] = {
        {.kind = RECORD_EPOCH, .epoch = 4},
        {.kind = RECORD_STATE, .adapter = "a", .version = 1, .state = VERSION_FAILED, .message = "new"},
        {.kind = RECORD_FORGET, .adapter = "a", .version = 1},
        {.kind = RECORD_ADAPTER_FORGET, .adapter = "b"},
        {.kind = RECORD_VERSION, .adapter = "a", .version = 3},
        {.kind = RECORD_DECISION, .adapter = "a", .version = 3, .decision = 2},
        {.kind = RECORD_LOSS, .adapter = "a", .version = 3, .message = "gone"},
        {.kind = RECORD_LOSS, .adapter = "a", .version = 3},
        {.kind = RECORD_STAGED, .adapter = "a", .version = 3},
        {.kind = RECORD_WORKER, .worker = "w", .serves = "a@2"},
        {.kind = RECORD_KEYS_REVOKE, .public_key = keys[0], .revoked_ms = 5},
        {.kind = RECORD_KEY_DROP, .public_key = keys[1]},
        {.kind = RECORD_FLOOR, .adapter = "c", .version = 9},
    };
    every_one_fails(before, sizeof before / sizeof *before, then, sizeof then / sizeof *then);
}
