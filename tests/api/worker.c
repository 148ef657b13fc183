/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/worker.h as an engine uses it: a real broker, workers and a publisher of this process, UCX between
 * them. */
#include "tests/api/broker.h"

static heddle_publisher_t *publisher;

static const char *const ADAPTERS[] = {"policy", NULL};

static void start(void)
{
    make_dir();
    start_broker("tcp://127.0.0.1:*");
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = endpoint,
                                    .adapter = "policy",
                                    .writer = "trainer"};
    OK(heddle_publisher_open(&opts, &publisher));
}

static void stop(void)
{
    heddle_publisher_close(&publisher);
    end_broker();
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
    heddle_publish_opts_t opts = {.size = sizeof opts, .if_unchanged = HEDDLE_UNCHANGED_PUBLISH};
    heddle_published_t v;
    OK(publish_values(publisher, (int[]){value, value}, &opts, &v));
    OK(wait_active(publisher, v.version, PATIENCE_MS, &report));
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
