/* SPDX-License-Identifier: Apache-2.0 */
/* The question `reach`: where each worker is, a page at a time. */
#include "broker_rig.h"

TestSuite(reach, .init = rig_start, .fini = rig_stop);

enum { COUNT = LIMIT_SOURCES + 2 };

static const msg_report_t *ask(const char *after)
{
    rig_drop_letters();
    rig_query(ADMIN, (msg_query_t){.op = "reach", .after_name = after});
    return &rig_last(ADMIN, MSG_REPORT)->report;
}

static json_t *rows_of(const msg_report_t *r)
{
    json_t *body = NULL;
    heddle_error_t e;
    cr_assert_eq(value_decode(r->body, &body, &e), HEDDLE_OK);
    json_t *rows = json_incref(json_object_get(body, "workers"));
    json_decref(body);
    return rows;
}

static void start_workers(void)
{
    static char names[COUNT][8];
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "w%02d", i);
        rig_worker((uint64_t)(W1 + i), names[i]);
    }
    rig_hello(ADMIN, ROLE_ADMIN);
}

Test(reach, has_each_worker_once_with_its_address)
{
    start_workers();
    const msg_report_t *r = ask("");
    cr_assert(r->more && r->source_count == LIMIT_SOURCES);
    cr_assert_str_eq(r->next_name, "w07");
    json_t *rows = rows_of(r);
    cr_assert_eq(json_array_size(rows), LIMIT_SOURCES, "a row for each source");
    cr_assert_str_eq(json_string_value(json_object_get(json_array_get(rows, 7), "name")), "w07");
    json_decref(rows);
    for (uint32_t i = 0; i < LIMIT_SOURCES; i++)
        cr_assert(r->sources[i].token == R.tokens[W1 + i] && r->sources[i].kind == SOURCE_WORKER &&
                  r->sources[i].address.bytes > 0);
    r = ask("w07");
    cr_assert(!r->more && r->source_count == COUNT - LIMIT_SOURCES);
    cr_assert_str_eq(r->sources[1].name, "w09");
    r = ask("w09");
    cr_assert(!r->more && r->source_count == 0);
}

Test(reach, a_worker_that_has_left_is_at_no_address)
{
    rig_worker(W1, "w1");
    rig_worker(W2, "w2");
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_leave(W1);
    R.tokens[W1] = 0;
    const msg_report_t *r = ask("");
    cr_assert(r->source_count == 1 && r->sources[0].token == R.tokens[W2]);
    rig_query(ADMIN, (msg_query_t){.op = "drain", .name = "w2"});
    cr_assert_eq(ask("")->source_count, 1, "one that drains serves on");
}
