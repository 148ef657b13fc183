/* SPDX-License-Identifier: Apache-2.0 */
/* Reports: to JSON and back, refused where they are none, compared, and as people read them. */
#include "bench/compare.h"
#include "bench/machine.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Two rows; `active` of the first is `factor` times 10 ms, its memcpy 2 ms times `machine`. */
static result_t sample(double factor, double machine)
{
    result_t r = {.machine = json_pack("{s:s, s:i}", "cpu", "a \"quoted\" one", "core_count", 2)};
    result_row_t *row = result_add(&r, "publish/17.6MB/4");
    row->data_bytes = 17596416;
    row->tensor_count = 336;
    row->workers = 4;
    row->keep = 1;
    for (int i = 0; i < 11; i++) {
        double noise = 1 + 0.01 * ((i * 7) % 5 - 2);
        cr_assert_eq(result_note(row, "active", "ms", 10 * factor * machine * noise), HEDDLE_OK);
        cr_assert_eq(result_note(row, "publisher_out", "bytes", 17596416), HEDDLE_OK);
        cr_assert_eq(result_refer(row, "memcpy", "ms", 2 * machine), HEDDLE_OK);
    }
    snprintf(result_series(row, "safetensors", "ms", true)->skipped, 160,
             "python3 cannot run safetensors and numpy");
    snprintf(result_add(&r, "publish/414MB/16")->skipped, 160, "needs 15.1 GB of memory, 9.0 GB is free");
    return r;
}

static void equal(const result_t *a, const result_t *b)
{
    cr_assert(json_equal(a->machine, b->machine));
    cr_assert_eq(a->count, b->count);
    for (uint32_t i = 0; i < a->count; i++) {
        const result_row_t *x = &a->rows[i], *y = &b->rows[i];
        cr_assert_str_eq(x->name, y->name);
        cr_assert_str_eq(x->skipped, y->skipped);
        cr_assert(x->data_bytes == y->data_bytes && x->tensor_count == y->tensor_count &&
                  x->workers == y->workers && x->keep == y->keep);
        cr_assert_eq(x->count, y->count);
        for (uint32_t k = 0; k < x->count; k++) {
            const result_series_t *s = &x->series[k], *t = result_row_find(y, s->name);
            cr_assert(t && !strcmp(s->unit, t->unit) && !strcmp(s->skipped, t->skipped) &&
                      s->is_reference == t->is_reference);
            cr_assert_eq(s->series.count, t->series.count);
            for (uint32_t n = 0; n < s->series.count; n++) cr_assert_eq(s->series.at[n], t->series.at[n]);
        }
    }
}

Test(result, json_and_back_is_the_same_report)
{
    result_t r = sample(1, 1), back;
    json_t *json = result_encode(&r, NULL);
    char *text = json_dumps(json, JSON_COMPACT);
    json_t *read = json_loads(text, 0, NULL);
    cr_assert_eq(result_decode(read, "sample", &back, NULL), HEDDLE_OK);
    equal(&r, &back);
    json_decref(json);
    json_decref(read);
    free(text);
    result_fini(&r);
    result_fini(&back);
}

Test(result, a_figure_has_its_ratio_to_each_reference_of_its_unit)
{
    result_t r = sample(1, 3);
    json_t *json = result_encode(&r, NULL), *figure, *rows = json_object_get(json, "rows");
    figure = json_array_get(json_object_get(json_array_get(rows, 0), "figures"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(figure, "name")), "active");
    cr_assert_float_eq(json_number_value(json_object_get(figure, "median")), 30, 1e-9);
    cr_assert_float_eq(json_number_value(json_object_get(figure, "worst")), 30.6, 1e-9);
    cr_assert_float_eq(json_number_value(json_object_get(json_object_get(figure, "ratio"), "memcpy")), 5,
                       1e-9);
    cr_assert_eq(json_object_size(json_object_get(figure, "ratio")),
                 1); /* safetensors was skipped, bytes are not ms */
    cr_assert(json_is_true(json_object_get(json, "ok")));
    cr_assert(json_is_null(json_object_get(json, "error")));
    json_decref(json);
    result_fini(&r);
}

#define ROW(figures) "{\"name\":\"a\",\"figures\":[" figures "],\"references\":[]}"
#define REPORT(rows) "{\"kind\":\"bench\",\"rows\":[" rows "]}"
static const char *const FOREIGN[] = {
    "[]",
    "{}",
    "{\"kind\":\"publish\",\"rows\":[]}",
    "{\"kind\":\"bench\"}",
    "{\"kind\":\"bench\",\"rows\":{}}",
    REPORT("1"),
    REPORT("{\"name\":\"a\"}"),
    REPORT(ROW("") "," ROW("")),
    REPORT(ROW("{}")),
    "{\"kind\":\"bench\",\"ok\":false,\"rows\":[]}",
    REPORT(ROW("{\"name\":\"x\",\"unit\":\"ms\"}")),
    REPORT(ROW("{\"name\":\"x\",\"unit\":\"ms\",\"samples\":[\"1\"]}")),
    REPORT(ROW("{\"name\":\"x\",\"samples\":[1]},{\"name\":\"x\",\"samples\":[1]}")),
    REPORT(
        "{\"name\":\"0123456789012345678901234567890123456789012345678\",\"figures\":[],\"references\":[]}"),
};

Test(result, what_is_no_report_is_refused)
{
    for (size_t i = 0; i < sizeof FOREIGN / sizeof *FOREIGN; i++) {
        heddle_error_t error = {0};
        result_t r = {0};
        json_t *json = json_loads(FOREIGN[i], 0, NULL);
        cr_assert(json, "row %zu is no JSON", i);
        cr_assert_eq(result_decode(json, "that file", &r, &error), HEDDLE_ERR_PROTOCOL, "row %zu", i);
        cr_assert_eq(strncmp(error.message, "that file ", 10), 0);
        cr_assert_eq(r.count, 0);
        json_decref(json);
    }
}

Test(result, series_of_a_row_have_a_limit)
{
    result_t r = {0};
    result_row_t *row = result_add(&r, "a");
    for (uint32_t i = 0; i < RESULT_SERIES_MAX; i++)
        cr_assert(result_series(row, (char[]){(char)('a' + i), 0}, "ms", false));
    cr_assert_null(result_series(row, "another", "ms", false));
    cr_assert(result_series(row, "a", "ms", false));
    result_fini(&r);
}

static const compare_row_t *row_of(const compare_t *c, const char *figure)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (!strcmp(c->rows[i].figure, figure)) return &c->rows[i];
    return NULL;
}

Test(compare, a_slower_machine_is_no_slower_program)
{
    result_t a = sample(1, 1), b = sample(1, 7);
    compare_t c;
    cr_assert_eq(compare_make(&a, &b, &c, NULL), HEDDLE_OK);
    cr_assert_eq(c.count, 2);
    cr_assert_eq(c.worse + c.better, 0);
    cr_assert_str_eq(row_of(&c, "active")->reference, "memcpy");
    cr_assert_str_eq(row_of(&c, "publisher_out")->reference, "");
    compare_fini(&c);
    result_fini(&a);
    result_fini(&b);
}

Test(compare, a_slower_program_is_worse_and_the_other_way_round_better)
{
    result_t a = sample(1, 1), b = sample(1.2, 1);
    compare_t c;
    cr_assert_eq(compare_make(&a, &b, &c, NULL), HEDDLE_OK);
    cr_assert_eq(c.worse, 1);
    cr_assert_eq(row_of(&c, "active")->change.verdict, STATS_WORSE);
    cr_assert_float_eq(row_of(&c, "active")->change.change, 0.2, 1e-9);
    json_t *json = compare_encode(&c);
    cr_assert(json_is_false(json_object_get(json, "ok")));
    json_decref(json);
    compare_fini(&c);
    cr_assert_eq(compare_make(&b, &a, &c, NULL), HEDDLE_OK);
    cr_assert_eq(c.worse, 0);
    cr_assert_eq(c.better, 1);
    compare_fini(&c);
    result_fini(&a);
    result_fini(&b);
}

Test(compare, figures_that_the_second_report_lacks_are_counted)
{
    result_t a = sample(1, 1), b = {0};
    compare_t c;
    cr_assert_eq(compare_make(&a, &b, &c, NULL), HEDDLE_OK);
    cr_assert_eq(c.missing, 2);
    cr_assert_eq(c.count, 0);
    cr_assert_not(compare_is_ok(&c));
    compare_fini(&c);
    result_fini(&a);
}

/* A check that is green because nothing was measured guards nothing. */
Test(compare, nothing_judged_is_not_well)
{
    result_t a = {0}, b = sample(1, 1);
    compare_t c;
    cr_assert_eq(compare_make(&a, &b, &c, NULL), HEDDLE_OK);
    cr_assert_not(compare_is_ok(&c));
    compare_fini(&c);
    cr_assert_eq(compare_make(&b, &b, &c, NULL), HEDDLE_OK);
    cr_assert(compare_is_ok(&c));
    compare_fini(&c);
    for (uint32_t i = 0; i < b.rows[0].count; i++)
        if (b.rows[0].series[i].series.count) b.rows[0].series[i].series.count = 3;
    cr_assert_eq(compare_make(&b, &b, &c, NULL), HEDDLE_OK);
    cr_assert(c.too_few == c.count && c.count && !compare_is_ok(&c));
    compare_fini(&c);
    result_fini(&b);
}

Test(compare, another_machine_is_told)
{
    result_t a = sample(1, 1), b = sample(1, 1);
    compare_t c;
    cr_assert_eq(compare_make(&a, &b, &c, NULL), HEDDLE_OK);
    cr_assert_str_eq(c.warnings[0], "");
    compare_fini(&c);
    json_object_set_new(b.machine, "core_count", json_integer(64));
    cr_assert_eq(compare_make(&a, &b, &c, NULL), HEDDLE_OK);
    cr_assert_str_eq(c.warnings[0], "core_count differs: 2 before, 64 after");
    cr_assert_str_eq(c.warnings[1], "");
    cr_assert(compare_is_ok(&c));
    compare_fini(&c);
    result_fini(&a);
    result_fini(&b);
}

Test(compare, another_way_of_the_bytes_is_told)
{
    result_t a = sample(1, 1), b = sample(1, 1);
    compare_t c;
    json_decref(a.machine);
    json_decref(b.machine);
    a.machine = machine_facts("/tmp");
    setenv("HEDDLE_TRANSFER_MODE", "rendezvous", 1);
    b.machine = machine_facts("/tmp");
    cr_assert_eq(compare_make(&a, &b, &c, NULL), HEDDLE_OK);
    cr_assert(strstr(c.warnings[0], "transfer_mode differs") && strstr(c.warnings[0], "rendezvous"), "%s",
              c.warnings[0]);
    compare_fini(&c);
    result_fini(&a);
    result_fini(&b);
}

Test(compare, nothing_is_divided_by_0)
{
    heddle_error_t error = {0};
    result_t a = sample(1, 1), b = sample(1, 1);
    compare_t c;
    ((result_series_t *)(uintptr_t)result_row_find(&b.rows[0], "memcpy"))->series.at[3] = 0;
    cr_assert_eq(compare_make(&a, &b, &c, &error), HEDDLE_ERR_PROTOCOL);
    cr_assert(strstr(error.message, "publish/17.6MB/4") && strstr(error.message, "memcpy"), "%s",
              error.message);
    result_fini(&a);
    result_fini(&b);
}

Test(result, text_has_every_figure_and_says_what_was_skipped)
{
    result_t r = sample(1, 1);
    buf_t text = {0};
    result_row_text(&r.rows[0], &text);
    result_row_text(&r.rows[1], &text);
    const char *const wanted[] = {
        "publish/17.6MB/4: 17.6 MB in 336 tensors, 4 workers, keep 1, 11 repetitions",
        "× memcpy",
        "10.0 ms",
        "5.00",
        "17596416 bytes",
        "skipped: python3 cannot run",
        "skipped: needs 15.1 GB"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        cr_assert(strstr(buf_text(&text), wanted[i]), "%s in %s", wanted[i], buf_text(&text));
    buf_fini(&text);
    result_fini(&r);
}
