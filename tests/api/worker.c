/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/worker.h as an engine uses it: a real broker, workers and a publisher of this process, UCX between
 * them. */
#include "tests/api/broker.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

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

static void open_worker_of(const char *name, bool has_own_memory, heddle_worker_t **ret)
{
    heddle_worker_opts_t opts = {.size = sizeof opts,
                                 .broker = endpoint,
                                 .name = name,
                                 .adapters = ADAPTERS,
                                 .own_memory = has_own_memory};
    heddle_event_t e = {.size = sizeof e};
    OK(heddle_worker_open(&opts, ret));
    do OK(heddle_worker_next_event(*ret, PATIENCE_MS, &e));
    while (e.type != HEDDLE_EVENT_JOINED);
}

static void open_worker(const char *name, heddle_worker_t **ret) { open_worker_of(name, false, ret); }

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

/* ---- the memory of a version for another process ---- */

typedef struct {
    uint8_t *base;
    size_t bytes;
    uint64_t offset;
} mapped_t;

/* As a process maps it that was sent the descriptor. */
static mapped_t map_first_tensor(const heddle_snapshot_t *s)
{
    heddle_shared_t shared = {.size = sizeof shared};
    OK(heddle_snapshot_fd(s, &shared));
    mapped_t m = {.bytes = shared.mark_offset + HEDDLE_MARK_BYTES,
                  .offset = shared.offset + (uint64_t)((const uint8_t *)first_tensor(s)->data -
                                                       (const uint8_t *)shared.base)};
    m.base = mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, shared.fd, 0);
    cr_assert_neq(m.base, MAP_FAILED);
    close(shared.fd);
    cr_assert_eq(memcmp(m.base + shared.mark_offset, shared.mark, HEDDLE_MARK_BYTES), 0);
    return m;
}

/* What destructors and atexit handlers call, and what would wait for a thread, or read memory, that a child has
 * not. */
static int end_in_child(heddle_worker_t *w, heddle_snapshot_t *s, heddle_admin_t *admin)
{
    char digest[HEDDLE_DIGEST_TEXT], *json;
    heddle_shared_t shared = {.size = sizeof shared};
    heddle_event_t e = {.size = sizeof e};
    alarm(PATIENCE_MS / 1000);
    if (heddle_snapshot_digest(s, digest) != HEDDLE_ERR_USAGE) return 1;
    if (heddle_snapshot_fd(s, &shared) != HEDDLE_ERR_USAGE) return 2;
    if (heddle_snapshot_export(s, "out-of-a-child") != HEDDLE_ERR_USAGE) return 3;
    if (heddle_worker_next_event(w, -1, &e) != HEDDLE_ERR_CLOSED) return 4;
    if (heddle_worker_stats(w, &json) != HEDDLE_ERR_CLOSED) return 5;
    heddle_snapshot_release(&s);
    heddle_worker_close(&w);
    heddle_publisher_close(&publisher);
    heddle_admin_close(&admin);
    return w || publisher || admin ? 6 : 0;
}

Test(worker, a_forked_child_ends_nothing_of_its_parents)
{
    heddle_worker_t *w;
    heddle_snapshot_t *s;
    heddle_admin_t *admin;
    char digest[HEDDLE_DIGEST_TEXT], *json;
    int status;
    open_worker("w1", &w);
    OK(heddle_admin_open(&(heddle_admin_opts_t){.size = sizeof(heddle_admin_opts_t), .broker = endpoint},
                         &admin));
    publish(1);
    OK(heddle_worker_acquire(w, "policy", 0, &s));
    OK(heddle_admin_status(admin, &json));
    heddle_free(json);
    pid_t child = fork();
    if (child == 0) _exit(end_in_child(w, s, admin));
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "%d", status);
    OK(heddle_snapshot_digest(s, digest));
    cr_assert_str_eq(digest, heddle_snapshot_manifest(s)->digest);
    heddle_snapshot_release(&s);
    cr_assert_eq(publish(2), 2);
    OK(heddle_admin_status(admin, &json));
    heddle_free(json);
    heddle_admin_close(&admin);
    heddle_worker_close(&w);
    stop();
}

/* In the memory of the publisher, and in that of the worker. */
Test(worker, what_a_process_has_mapped_outlives_worker_and_publisher)
{
    heddle_worker_t *w[2];
    heddle_snapshot_t *s;
    mapped_t mapped[2];
    open_worker_of("holds", false, &w[0]);
    open_worker_of("copies", true, &w[1]);
    publish(1);
    for (int i = 0; i < 2; i++) {
        OK(heddle_worker_acquire(w[i], "policy", 0, &s));
        mapped[i] = map_first_tensor(s);
        heddle_snapshot_release(&s);
    }
    for (int v = 2; v <= 16; v++) publish(v);
    for (int i = 0; i < 2; i++) heddle_worker_close(&w[i]);
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < 8 * 4096 * 4; k++) cr_assert_eq(mapped[i].base[mapped[i].offset + k], 1);
    stop();
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(mapped[i].base[mapped[i].offset], 1, "it was mapped, and not only looked at");
        munmap(mapped[i].base, mapped[i].bytes);
    }
}
