/* SPDX-License-Identifier: Apache-2.0 */
/* heddle_admin_fetch: a version that is kept and not active, in the memory of a process that is no worker: a
 * real broker, a worker and a publisher of this process, UCX between them. */
#include "tests/api/broker.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static heddle_publisher_t *publisher;
static heddle_worker_t *worker;
static heddle_admin_t *admin;

/* Versions 1 to 3, each with its number in every byte: 3 is active, and the worker keeps the others. */
static void start(void)
{
    static const char *const ADAPTERS[] = {"policy", NULL};
    static heddle_report_t report;
    heddle_event_t e = {.size = sizeof e};
    make_dir();
    start_broker("tcp://127.0.0.1:*");
    heddle_publisher_opts_t of_publisher = {.size = sizeof of_publisher,
                                            .broker = endpoint,
                                            .adapter = "policy",
                                            .writer = "trainer"};
    OK(heddle_publisher_open(&of_publisher, &publisher));
    heddle_worker_opts_t of_worker = {.size = sizeof of_worker,
                                      .broker = endpoint,
                                      .name = "w1",
                                      .adapters = ADAPTERS};
    OK(heddle_worker_open(&of_worker, &worker));
    do OK(heddle_worker_next_event(worker, PATIENCE_MS, &e));
    while (e.type != HEDDLE_EVENT_JOINED);
    for (int value = 1; value <= 3; value++) {
        heddle_publish_opts_t of_version = {.size = sizeof of_version};
        heddle_published_t v;
        OK(publish_values(publisher, (int[]){value, value}, &of_version, &v));
        cr_assert_eq(v.version, (uint64_t)value);
        OK(wait_active(publisher, v.version, PATIENCE_MS, &report));
    }
    heddle_admin_opts_t of_admin = {.size = sizeof of_admin, .broker = endpoint};
    OK(heddle_admin_open(&of_admin, &admin));
}

static void stop(void)
{
    heddle_admin_close(&admin);
    heddle_worker_close(&worker);
    heddle_publisher_close(&publisher);
    end_broker();
}

TestSuite(fetch, .init = start, .timeout = 120);

static void expect_version(const heddle_snapshot_t *s, uint64_t version)
{
    const heddle_manifest_t *m = heddle_snapshot_manifest(s);
    char found[HEDDLE_DIGEST_TEXT];
    cr_assert(m->version == version && !strcmp(m->adapter, "policy") && m->tensor_count == 2);
    cr_assert(m->config_bytes == sizeof CONFIG - 1 && !memcmp(m->config, CONFIG, m->config_bytes));
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        heddle_tensor_t t = {.size = sizeof t};
        OK(heddle_snapshot_tensor(s, i, &t));
        for (uint64_t at = 0; at < t.data_bytes; at++)
            cr_assert_eq(((const uint8_t *)t.data)[at], (uint8_t)version, "byte %llu",
                         (unsigned long long)at);
    }
    OK(heddle_snapshot_digest(s, found));
    cr_assert_str_eq(found, m->digest);
}

/* In the memory of the process that has it, and, where there is no way to that, in the caller's. */
Test(fetch, a_kept_version_outlives_the_handle_and_its_holders)
{
    char apart[96];
    snprintf(apart, sizeof apart, "%s/apart", dir);
    cr_assert_eq(mkdir(apart, 0700), 0);
    heddle_pull_opts_t own = {.size = sizeof own, .host_share = apart};
    heddle_snapshot_t *held = NULL, *fetched = NULL, *active = NULL, *now = NULL;
    OK(heddle_admin_fetch(admin, "policy@1", NULL, &held));
    OK(heddle_admin_fetch(admin, "policy@2", &own, &fetched));
    OK(heddle_admin_fetch(admin, "policy", NULL, &active));
    OK(heddle_worker_acquire(worker, "policy", 0, &now));
    cr_assert_eq(heddle_snapshot_manifest(now)->version, 3, "nothing becomes active by it");
    heddle_snapshot_release(&now);
    stop();
    expect_version(held, 1);
    expect_version(fetched, 2);
    expect_version(active, 3);
    heddle_snapshot_release(&held);
    heddle_snapshot_release(&fetched);
    heddle_snapshot_release(&active);
}

/* The file that is mapped there has a mapping through which this process can write. */
static bool has_writable(const void *at)
{
    char line[512];
    unsigned long inode = 0, first, end;
    bool is_one = false;
    for (int turn = 0; turn < 2; turn++) {
        FILE *f = fopen("/proc/self/maps", "re");
        cr_assert_not_null(f);
        while (fgets(line, sizeof line, f)) {
            char rights[5];
            unsigned long file;
            if (sscanf(line, "%lx-%lx %4s %*s %*s %lu", &first, &end, rights, &file) != 4) continue;
            if (turn == 0 && (uintptr_t)at >= first && (uintptr_t)at < end) inode = file;
            if (turn == 1 && inode && file == inode && rights[1] == 'w') is_one = true;
        }
        (void)fclose(f);
        cr_assert_neq(inode, 0);
    }
    return is_one;
}

/* The caller's own memory too: a stray write into a version faults. */
Test(fetch, what_was_fetched_cannot_be_written)
{
    char apart[96];
    snprintf(apart, sizeof apart, "%s/apart", dir);
    cr_assert_eq(mkdir(apart, 0700), 0);
    heddle_pull_opts_t own = {.size = sizeof own, .host_share = apart};
    for (int is_ended = 0; is_ended < 2; is_ended++) {
        heddle_snapshot_t *s = NULL;
        if (is_ended) cr_assert_eq(setenv("HEDDLE_GUARD", "0", 1), 0);
        OK(heddle_admin_fetch(admin, "policy@2", &own, &s));
        heddle_tensor_t t = {.size = sizeof t};
        OK(heddle_snapshot_tensor(s, 0, &t));
        cr_assert_eq(has_writable(t.data), is_ended);
        heddle_snapshot_release(&s);
    }
    stop();
}

static void expect_shared(const heddle_snapshot_t *s, uint8_t value)
{
    heddle_shared_t shared = {.size = sizeof shared};
    OK(heddle_snapshot_fd(s, &shared));
    size_t bytes = shared.mark_offset + HEDDLE_MARK_BYTES;
    const uint8_t *base = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, shared.fd, 0);
    cr_assert_neq(base, MAP_FAILED);
    close(shared.fd);
    cr_assert_eq(memcmp(base + shared.mark_offset, shared.mark, HEDDLE_MARK_BYTES), 0);
    cr_assert_eq(base[shared.offset], value);
    cr_assert_eq(munmap((void *)(uintptr_t)base, bytes), 0);
}

/* So the ranks of an engine get it, as any version that a worker has. */
Test(fetch, its_memory_is_given_to_other_processes)
{
    char apart[96];
    snprintf(apart, sizeof apart, "%s/apart", dir);
    cr_assert_eq(mkdir(apart, 0700), 0);
    const heddle_pull_opts_t ways[] = {{.size = sizeof *ways}, {.size = sizeof *ways, .host_share = apart}};
    for (int i = 0; i < 2; i++) {
        heddle_snapshot_t *s = NULL;
        OK(heddle_admin_fetch(admin, "policy@2", &ways[i], &s));
        expect_shared(s, 2);
        heddle_snapshot_release(&s);
    }
    stop();
}

Test(fetch, what_cannot_be_had_is_not_written)
{
    heddle_snapshot_t *s = NULL;
    FAILS(HEDDLE_ERR_NOT_FOUND, heddle_admin_fetch(admin, "policy@9", NULL, &s));
    FAILS(HEDDLE_ERR_NOT_FOUND, heddle_admin_fetch(admin, "nothing", NULL, &s));
    FAILS(HEDDLE_ERR_NOT_FOUND, heddle_admin_fetch(admin, "policy@1:000000000000", NULL, &s));
    FAILS(HEDDLE_ERR_USAGE, heddle_admin_fetch(admin, "policy@x", NULL, &s));
    FAILS(HEDDLE_ERR_USAGE, heddle_admin_fetch(admin, NULL, NULL, &s));
    FAILS(HEDDLE_ERR_USAGE, heddle_admin_fetch(admin, "policy@1", NULL, NULL));
    FAILS(HEDDLE_ERR_USAGE, heddle_admin_fetch(NULL, "policy@1", NULL, &s));
    heddle_admin_interrupt(admin);
    FAILS(HEDDLE_ERR_INTERRUPTED, heddle_admin_fetch(admin, "policy@1", NULL, &s));
    cr_assert_null(s);
    OK(heddle_admin_fetch(admin, "policy@1", NULL, &s));
    expect_version(s, 1);
    heddle_snapshot_release(&s);
    stop();
}
