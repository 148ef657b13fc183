/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of adapters, and the adapter in a trainer's memory. */
#include "bench/model.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static const struct {
    const char *name;
    uint32_t rank, count;
    uint64_t bytes;
} KNOWN[] = {{"qwen2.5-0.5b", 16, 336, 17596416},
             {"llama-3.1-8b", 16, 448, 83886080},
             {"qwen3-8b", 16, 504, 87293952},
             {"llama-3.1-70b", 16, 1120, 414187520}};

Test(shape, sizes_are_those_of_the_models)
{
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        shape_table_t t;
        cr_assert_eq(shape_table(shape_find(KNOWN[i].name), KNOWN[i].rank, 1, &t), HEDDLE_OK);
        cr_assert_eq(t.count, KNOWN[i].count, "%s: %u tensors", KNOWN[i].name, t.count);
        cr_assert_eq(t.data_bytes, KNOWN[i].bytes, "%s: %llu bytes", KNOWN[i].name,
                     (unsigned long long)t.data_bytes);
        shape_table_fini(&t);
    }
    cr_assert_eq(shape_find("no such model"), -1);
}

Test(shape, the_same_seed_gives_the_same_numbers)
{
    uint16_t a[64], b[64], c[64];
    uint64_t one = shape_seed(1), again = shape_seed(1), two = shape_seed(2);
    shape_fill(a, sizeof a, &one);
    shape_fill(b, sizeof b, &again);
    shape_fill(c, sizeof c, &two);
    cr_assert_arr_eq(a, b, sizeof a);
    cr_assert(memcmp(a, c, sizeof a));
}

Test(model, a_change_reaches_every_page_and_no_byte_past_the_end)
{
    model_t *m = NULL;
    cr_assert_eq(model_new("qwen2.5-0.5b", 2, &m, NULL), HEDDLE_OK);
    char *before = malloc(m->table.data_bytes), *after = malloc(m->table.data_bytes);
    model_copy(m, before);
    model_change(m);
    model_copy(m, after);
    uint64_t at = 0;
    for (uint32_t i = 0; i < m->table.count; at += m->table.rows[i].data_bytes, i++)
        for (uint64_t page = 0; page < m->table.rows[i].data_bytes; page += 4096)
            cr_assert(memcmp(before + at + page, after + at + page, 8), "tensor %u, page at %llu", i,
                      (unsigned long long)page);
    cr_assert_eq(at, m->table.data_bytes);
    free(before);
    free(after);
    model_destroy(&m);
    cr_assert_null(m);
}
