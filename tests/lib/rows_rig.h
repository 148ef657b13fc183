/* SPDX-License-Identifier: Apache-2.0 */
/* tests/lib/rows_rig.h: rows of a registry, of every kind, for the tests of what is exported and imported. */
#ifndef TESTS_ROWS_RIG_H
#define TESTS_ROWS_RIG_H

#include "broker/store/rows_file.h"

#include <criterion/criterion.h>

#define ROWS_RIG_CLUSTER "0123456789abcdef"
#define ROWS_RIG_INVITATION "iiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiii"
#define ROWS_RIG_ENTERED "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk" /* by that invitation */

static inline store_rows_t *rows_rig_new(uint64_t epoch)
{
    store_rows_t *rows = NULL;
    char meta[ROWS_META_BYTES];
    rows_meta(ROWS_RIG_CLUSTER, epoch, meta);
    cr_assert_eq(rows_new(&rows, NULL), HEDDLE_OK);
    cr_assert_eq(rows_read(rows, bytes_of("meta", 4), bytes_of(meta, strlen(meta)), NULL), HEDDLE_OK);
    return rows;
}

static inline int rows_rig_adopt(void *rows, const record_t *r) { return rows_adopt(rows, r, NULL); }

static inline void rows_rig_add(store_rows_t *rows, const record_t *records, size_t count)
{
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(rows_rig_adopt(rows, &records[i]), HEDDLE_OK, "record %zu", i);
}

/* `is_folded`: as a store has them that changes each key of an invitation. */
static inline void rows_rig_fill(store_rows_t *rows, bool is_folded)
{
    record_t records[] = {
        {.kind = RECORD_ADAPTER, .adapter = "a", .at_ms = 5},
        {.kind = RECORD_ADAPTER, .adapter = "gone", .at_ms = 6},
        {.kind = RECORD_VERSION, .adapter = "a", .version = 1, .config = {"{}\0\xff", 4}, .meta = "{}"},
        {.kind = RECORD_VERSION, .adapter = "a", .version = 2, .config = {"{}", 2}},
        {.kind = RECORD_VERSION, .adapter = "gone", .version = 1, .config = {"{}", 2}},
        {.kind = RECORD_DECISION, .adapter = "a", .version = 1, .decision = 1, .by = "ann"},
        {.kind = RECORD_DECISION, .adapter = "a", .version = 2, .decision = 2, .by = "ann"},
        {.kind = RECORD_DECISION, .adapter = "a", .version = 1, .decision = 3, .by = "ann"},
        {.kind = RECORD_STATE, .adapter = "a", .version = 2, .state = VERSION_RETIRED, .at_ms = 7},
        {.kind = RECORD_LOSS, .adapter = "a", .version = 1, .message = "w1 had it"},
        {.kind = RECORD_STAGED, .adapter = "a", .version = 1, .at_ms = 8},
        {.kind = RECORD_WRITER, .adapter = "a", .token = 9, .writer = "t", .host = "h"},
        {.kind = RECORD_WORKER, .worker = "w1", .host = "h", .serves = "a@1"},
        {.kind = RECORD_FLOOR, .adapter = "gone", .version = 1, .decision = 1},
        {.kind = RECORD_WRITER, .adapter = "gone"}, /* forgotten */
    };
    uint64_t revoked_ms = is_folded ? 9 : 0;
    record_t keys[] = {{.kind = RECORD_KEY,
                        .public_key = ROWS_RIG_ENTERED,
                        .name = "w",
                        .roles = "worker:*",
                        .entered_by = ROWS_RIG_INVITATION,
                        .revoked_ms = revoked_ms},
                       {.kind = RECORD_KEY,
                        .public_key = ROWS_RIG_INVITATION,
                        .name = "n",
                        .roles = "worker:*",
                        .uses = 2,
                        .used = 1,
                        .ends_ms = 8,
                        .revoked_ms = revoked_ms},
                       {.kind = RECORD_KEYS_REVOKE, .public_key = ROWS_RIG_INVITATION, .revoked_ms = 9}};
    rows_rig_add(rows, records, sizeof records / sizeof *records);
    rows_rig_add(rows, keys, is_folded ? 2 : 3);
}

#endif
