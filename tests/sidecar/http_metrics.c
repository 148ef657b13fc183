/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's metrics, and whether it is ready, from a report of the library. */
#include "sidecar/http_metrics.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const char *const ADAPTERS[] = {"a", "b", NULL};

static json_t *report(const char *session, int version, int lag)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"bytes_in\":5,\"bytes_out\":6,\"own_bytes\":7,\"held_bytes\":8,\"fenced\":1,"
             "\"slots\":{\"total\":8,\"free\":5,\"held\":1},"
             "\"session\":{\"state\":\"%s\",\"joined_count\":2},\"adapters\":["
             "{\"name\":\"a\",\"version\":3,\"decided_version\":3,\"lag\":0,\"versions\":{\"active\":1,"
             "\"kept\":2},"
             "\"counts\":{\"staged\":3,\"activated\":3,\"failed\":0}},"
             "{\"name\":\"b\",\"version\":%d,\"decided_version\":9,\"lag\":%d,\"versions\":{\"active\":1},"
             "\"counts\":{\"staged\":4,\"activated\":3,\"failed\":1}}]}",
             session, version, lag);
    json_t *stats = json_loads(text, 0, NULL);
    cr_assert_not_null(stats);
    return stats;
}

Test(http_metrics, who_is_ready)
{
    static const struct {
        const char *session;
        int version, lag;
        uint64_t allowed;
        const char *why; /* NULL: ready */
    } ROWS[] = {{"ready", 9, 0, 0, NULL},
                {"ready", 7, 2, 2, NULL},
                {"ready", 7, 2, 1, "behind the latest decision"},
                {"ready", 7, 1, 0, "behind the latest decision"},
                {"ready", 0, 0, 0, "no version"},
                {"ready", 0, 1, 5, "behind the latest decision"},
                {"greeting", 9, 0, 0, "no session"},
                {"refused", 9, 0, 0, "no session"},
                {"draining", 9, 0, 0, "about to leave"}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        heddle_error_t error = {0};
        json_t *stats = report(ROWS[i].session, ROWS[i].version, ROWS[i].lag);
        int rc = http_metrics_ready(stats, ROWS[i].allowed, &error);
        cr_expect_eq(error.hint[0] != 0, ROWS[i].why != NULL, "row %zu: what to do", i);
        cr_expect_eq(rc, ROWS[i].why ? HEDDLE_ERR_UNAVAILABLE : HEDDLE_OK, "row %zu", i);
        cr_expect(!ROWS[i].why || strstr(error.message, ROWS[i].why), "row %zu: %s", i, error.message);
        json_decref(stats);
    }
    heddle_error_t error;
    cr_expect_eq(http_metrics_ready(NULL, 0, &error), HEDDLE_ERR_UNAVAILABLE, "it is not opened yet");
}

Test(http_metrics, what_is_counted)
{
    static samples_t s;
    buf_t out = {0};
    json_t *stats = report("ready", 7, 2);
    http_metrics_gather(stats, ADAPTERS, 1795774207125, false, &s);
    metrics_text(&s, false, &out);
    static const char *const LINES[] = {"heddle_worker_start_time_seconds 1795774207.125\n",
                                        "heddle_worker_ready 0\n",
                                        "heddle_worker_session 1\n",
                                        "heddle_worker_joins_total 2\n",
                                        "heddle_worker_fenced_total 1\n",
                                        "heddle_worker_served_version{adapter=\"a\"} 3\n",
                                        "heddle_worker_served_version{adapter=\"b\"} 7\n",
                                        "heddle_worker_decided_version{adapter=\"b\"} 9\n",
                                        "heddle_worker_lag_versions{adapter=\"b\"} 2\n",
                                        "heddle_worker_versions{state=\"active\"} 2\n",
                                        "heddle_worker_versions{state=\"kept\"} 2\n",
                                        "heddle_worker_version_changes_total{change=\"staged\"} 7\n",
                                        "heddle_worker_version_changes_total{change=\"failed\"} 1\n",
                                        "heddle_worker_memory_bytes{memory=\"own\"} 7\n",
                                        "heddle_worker_memory_bytes{memory=\"held\"} 8\n",
                                        "heddle_worker_slots{state=\"free\"} 5\n",
                                        "heddle_worker_slots{state=\"used\"} 3\n",
                                        "heddle_worker_slots_held 1\n",
                                        "heddle_worker_data_bytes_total{way=\"in\"} 5\n",
                                        "heddle_worker_data_bytes_total{way=\"out\"} 6\n",
                                        "heddle_worker_chunks_bad_total 0\n"};
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++)
        cr_expect(strstr(buf_text(&out), LINES[i]), "%s in:\n%s", LINES[i], buf_text(&out));
    buf_fini(&out);
    json_decref(stats);
}

/* Decisions may have been missed: the library then goes by what it has applied, and a worker that was behind
 * would look current. */
Test(http_metrics, without_a_session_lag_is_not_known)
{
    static samples_t s;
    buf_t out = {0};
    json_t *stats = report("greeting", 7, 0);
    http_metrics_gather(stats, ADAPTERS, 1000, false, &s);
    metrics_text(&s, false, &out);
    cr_expect(strstr(buf_text(&out), "heddle_worker_served_version{adapter=\"b\"} 7\n"));
    cr_expect_not(strstr(buf_text(&out), "heddle_worker_decided_version{"));
    cr_expect_not(strstr(buf_text(&out), "heddle_worker_lag_versions{"));
    buf_fini(&out);
    json_decref(stats);
}

/* Before the worker is opened there are none of its adapters, and all others are 0. */
Test(http_metrics, without_a_report)
{
    static samples_t s;
    http_metrics_gather(NULL, ADAPTERS, 1000, false, &s);
    for (size_t i = 0; i < s.count; i++) cr_expect_not(s.rows[i].value && !strcmp(s.rows[i].value, "a"));
    cr_expect(s.count > 15);
}
