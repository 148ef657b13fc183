/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/worker.h as an engine uses it: a real broker, workers and a publisher of this process, UCX between
 * them. */
#include "tests/process/child.h"

#include <criterion/criterion.h>
#include <heddle/heddle.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_MS = 20000 };

static char dir[64], endpoint[128];
static child_t broker;
static heddle_publisher_t *publisher;

static const char CONFIG[] = "{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16}";
static const uint64_t DIMS[] = {8, 4096};
static const char *const ADAPTERS[] = {"policy", NULL};

#define OK(call) cr_assert_eq(call, HEDDLE_OK, "%s: %s", #call, heddle_last_error()->message)

static void start(void)
{
    char line[4096], data[80];
    snprintf(dir, sizeof dir, "/tmp/heddle-api-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(data, sizeof data, "%s/data", dir);
    const char *argv[] = {
        "heddle-broker", "--listen", "tcp://127.0.0.1:*", "--lease", "2s", "--data", data, NULL};
    child_start(&broker, argv, NULL);
    if (!child_line(&broker, line, sizeof line, PATIENCE_MS)) {
        child_end(&broker, 0);
        cr_assert_fail("no ready line: %s", broker.err);
    }
    const char *at = strstr(line, "\"endpoint\":\"");
    cr_assert(at && sscanf(at, "\"endpoint\":\"%127[^\"]", endpoint) == 1, "%s", line);
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = endpoint,
                                    .adapter = "policy",
                                    .writer = "trainer"};
    OK(heddle_publisher_open(&opts, &publisher));
}

static void stop(void)
{
    char command[96];
    heddle_publisher_close(&publisher);
    child_signal(&broker, SIGTERM);
    int status = child_end(&broker, PATIENCE_MS);
    cr_assert_eq(status, 0, "the broker ended with %d: %s", status, broker.err);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(worker, .init = start, .timeout = 120);

static void open_worker(const char *name, heddle_worker_t **ret)
{
    heddle_worker_opts_t opts = {.size = sizeof opts, .broker = endpoint, .name = name, .adapters = ADAPTERS};
    heddle_event_t e = {.size = sizeof e};
    OK(heddle_worker_open(&opts, ret));
    do OK(heddle_worker_next_event(*ret, PATIENCE_MS, &e));
    while (e.type != HEDDLE_EVENT_JOINED);
}

/* `value` gives the bytes of every tensor. */
static uint64_t publish(int value)
{
    static heddle_report_t report;
    heddle_tensor_t tensors[] = {{.size = sizeof *tensors,
                                  .name = "l.lora_A.weight",
                                  .dtype = HEDDLE_DTYPE_F32,
                                  .ndim = 2,
                                  .dims = DIMS},
                                 {.size = sizeof *tensors,
                                  .name = "l.lora_B.weight",
                                  .dtype = HEDDLE_DTYPE_F32,
                                  .ndim = 2,
                                  .dims = DIMS}};
    heddle_publication_t *pub;
    OK(heddle_publication_begin(publisher, tensors, 2, CONFIG, sizeof CONFIG - 1, NULL, &pub));
    for (uint32_t i = 0; i < 2; i++) memset(heddle_publication_tensor(pub, i), value, 8 * 4096 * 4);
    heddle_publish_opts_t opts = {.size = sizeof opts, .if_unchanged = HEDDLE_UNCHANGED_PUBLISH};
    heddle_published_t v = {.size = sizeof v};
    OK(heddle_publication_commit(&pub, &opts, &v));
    heddle_quorum_t all = {HEDDLE_QUORUM_ALL, 0};
    report = (heddle_report_t){.size = sizeof report};
    int rc = heddle_publisher_wait(publisher, v.version, HEDDLE_PHASE_ACTIVE, all, PATIENCE_MS, &report);
    cr_assert_eq(rc, HEDDLE_OK, "version %llu: %s", (unsigned long long)v.version,
                 heddle_last_error()->message);
    return v.version;
}

static const heddle_tensor_t *first_tensor(const heddle_snapshot_t *s)
{
    static heddle_tensor_t t;
    t = (heddle_tensor_t){.size = sizeof t};
    OK(heddle_snapshot_tensor(s, 0, &t));
    return &t;
}

/* One reader of one old version stops no publication. */
Test(worker, an_old_version_is_read_while_many_are_published)
{
    heddle_worker_t *w[2];
    heddle_snapshot_t *old, *now;
    open_worker("w1", &w[0]);
    open_worker("w2", &w[1]);
    cr_assert_eq(publish(1), 1);
    OK(heddle_worker_acquire(w[0], "policy", 0, &old));
    for (int v = 2; v <= 12; v++) cr_assert_eq(publish(v), (uint64_t)v);
    for (int i = 0; i < 2; i++) {
        OK(heddle_worker_acquire(w[i], "policy", 0, &now));
        cr_assert_eq(heddle_snapshot_manifest(now)->version, 12);
        heddle_snapshot_release(&now);
    }
    cr_assert_eq(*(const char *)first_tensor(old)->data, 1, "it is what it was");
    heddle_snapshot_release(&old);
    for (int i = 0; i < 2; i++) heddle_worker_close(&w[i]);
    stop();
}

static unsigned long long bytes_in(heddle_worker_t *w)
{
    char *json;
    unsigned long long bytes = 0;
    OK(heddle_worker_stats(w, &json));
    const char *at = strstr(json, "\"bytes_in\":");
    cr_assert(at && sscanf(at, "\"bytes_in\":%llu", &bytes) == 1, "%s", json);
    heddle_free(json);
    return bytes;
}

/* Published again under another number: nothing moves, and readers of both read one memory. */
Test(worker, equal_content_is_not_fetched_again)
{
    heddle_worker_t *w[2];
    heddle_snapshot_t *one, *three;
    unsigned long long before[2];
    open_worker("w1", &w[0]);
    open_worker("w2", &w[1]);
    publish(1);
    publish(2);
    for (int i = 0; i < 2; i++) before[i] = bytes_in(w[i]);
    OK(heddle_worker_acquire(w[0], "policy", 1, &one));
    cr_assert_eq(publish(1), 3);
    for (int i = 0; i < 2; i++) cr_assert_eq(bytes_in(w[i]), before[i]);
    OK(heddle_worker_acquire(w[0], "policy", 0, &three));
    const heddle_manifest_t *a = heddle_snapshot_manifest(one), *b = heddle_snapshot_manifest(three);
    cr_assert(a->version == 1 && b->version == 3);
    cr_assert_str_eq(a->digest, b->digest);
    const void *data = first_tensor(one)->data;
    cr_assert_eq(data, first_tensor(three)->data);
    heddle_snapshot_release(&one);
    for (int v = 4; v <= 12; v++) publish(v);
    cr_assert_eq(*(const char *)first_tensor(three)->data, 1, "it is what it was");
    char found[HEDDLE_DIGEST_TEXT];
    OK(heddle_snapshot_digest(three, found));
    cr_assert_str_eq(found, heddle_snapshot_manifest(three)->digest);
    heddle_snapshot_release(&three);
    for (int i = 0; i < 2; i++) heddle_worker_close(&w[i]);
    stop();
}
