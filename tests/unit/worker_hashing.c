/* SPDX-License-Identifier: Apache-2.0 */
/* worker/hashing.h: the same digests with a helper and without, and damage is found wherever it is. */
#include "worker/hashing.h"

#include "core/crew.h"
#include "core/digest.h"
#include "core/failpoint.h"
#include "tests/unit/worker_content.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = LIMIT_PAGE_BYTES, MIB = 1 << 20 };

static size_t helpers(void)
{
    size_t count = 0;
    char path[300], name[32];
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", d->d_name);
        FILE *f = d->d_name[0] == '.' ? NULL : fopen(path, "re");
        count += f && fgets(name, sizeof name, f) && !strcmp(name, "heddle-crew\n");
        if (f) fclose(f);
    }
    if (tasks) closedir(tasks);
    return count;
}

/* How many calls it takes is part of what a loop relies on. */
static digest_t digest_of(hashing_t *s, const manifest_t *m, const void *payload, int *ret_calls)
{
    hashing_job_t job;
    digest_t found;
    hashing_begin(&job, m, payload);
    for (*ret_calls = 1; !hashing_work(s, &job, &found); (*ret_calls)++)
        cr_assert(job.at > 0 && job.at < m->payload_bytes);
    cr_assert_eq(job.at, m->payload_bytes);
    return found;
}

static manifest_t manifest_of(const test_content_t *a)
{
    manifest_t m;
    heddle_error_t error;
    bytes_t encoded = {a->bytes + manifest_offset(a->payload_bytes), a->manifest_bytes};
    cr_assert_eq(manifest_read(encoded, &a->manifest_digest, &m, &error), HEDDLE_OK, "%s", error.message);
    return m;
}

/* Below and above the size from which on a helper is worth it; the last slice and the last page are parts. */
Test(hashing, two_threads_find_the_digest_that_one_finds)
{
    static const uint32_t ROWS[] = {2, 800, 1700, 7001};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        test_content_t a = content_make(i + 1, 20, ROWS[i]);
        manifest_t m = manifest_of(&a);
        hashing_t *s = hashing_new();
        int calls, alone;
        digest_t found = digest_of(s, &m, a.bytes, &calls), by_one = digest_of(NULL, &m, a.bytes, &alone);
        cr_assert(digest_equal(&found, &a.h1) && digest_equal(&by_one, &a.h1), "%zu", i);
        bool has_help = m.payload_bytes >= HASHING_SHARED_BYTES && crew_cores() > 1;
        size_t slice = has_help ? HASHING_SLICE_BYTES : HASHING_ALONE_BYTES;
        cr_assert_eq(calls, (int)((m.payload_bytes + slice - 1) / slice), "%zu", i);
        cr_assert_eq(alone, (int)((m.payload_bytes + HASHING_ALONE_BYTES - 1) / HASHING_ALONE_BYTES));
        cr_assert_eq(helpers(), has_help);
        hashing_destroy(&s);
        cr_assert_eq(helpers(), 0);
        manifest_fini(&m);
        free(a.bytes);
    }
}

/* In each piece that a thread takes, and in the last byte. */
Test(hashing, damage_is_found_wherever_it_is)
{
    test_content_t a = content_make(7, 20, 1700);
    manifest_t m = manifest_of(&a);
    hashing_t *s = hashing_new();
    int calls;
    for (uint64_t at = 0; at < m.payload_bytes; at += LIMIT_CHUNK_MAX_BYTES + 7) {
        a.bytes[at] ^= 1;
        digest_t found = digest_of(s, &m, a.bytes, &calls);
        cr_assert_not(digest_equal(&found, &a.h1), "byte %llu", (unsigned long long)at);
        a.bytes[at] ^= 1;
    }
    a.bytes[m.payload_bytes - 1] ^= 1;
    digest_t found = digest_of(s, &m, a.bytes, &calls);
    cr_assert_not(digest_equal(&found, &a.h1));
    a.bytes[m.payload_bytes - 1] ^= 1;
    found = digest_of(s, &m, a.bytes, &calls);
    cr_assert(digest_equal(&found, &a.h1));
    hashing_destroy(&s);
    manifest_fini(&m);
    free(a.bytes);
}

/* Its memory may be unmapped after any call: no thread reads it then. */
Test(hashing, a_job_is_dropped_between_two_slices)
{
    test_content_t a = content_make(8, 20, 7001);
    manifest_t m = manifest_of(&a);
    hashing_t *s = hashing_new();
    for (int i = 0; i < 5; i++) {
        uint8_t *copy = malloc(a.payload_bytes);
        hashing_job_t job;
        digest_t found;
        memcpy(copy, a.bytes, a.payload_bytes);
        hashing_begin(&job, &m, copy);
        cr_assert_not(hashing_work(s, &job, &found));
        memset(copy, 0, a.payload_bytes);
        free(copy);
    }
    hashing_destroy(&s);
    manifest_fini(&m);
    free(a.bytes);
}

/* Where there is one core, or no thread is to be had, it takes longer. */
Test(hashing, without_a_helper_the_caller_does_all)
{
    test_content_t a = content_make(9, 20, 1700);
    manifest_t m = manifest_of(&a);
    int calls;
    cpu_set_t mine, one;
    cr_assert_eq(sched_getaffinity(0, sizeof mine, &mine), 0);
    for (int i = 0; i < 2; i++) {
        hashing_t *s = hashing_new();
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        if (i == 0) failpoint_arm("crew.thread", 1);
        else cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
        digest_t found = digest_of(s, &m, a.bytes, &calls);
        if (i == 0) failpoint_disarm();
        cr_assert_eq(helpers(), 0);
        found = digest_of(s, &m, a.bytes, &calls);
        cr_assert(digest_equal(&found, &a.h1) && helpers() == 0, "it is tried once");
        cr_assert_eq(calls, (int)((m.payload_bytes + HASHING_ALONE_BYTES - 1) / HASHING_ALONE_BYTES));
        hashing_destroy(&s);
    }
    cr_assert_eq(sched_setaffinity(0, sizeof mine, &mine), 0);
    hashing_destroy(NULL);
    manifest_fini(&m);
    free(a.bytes);
}

/* As pieces of a transfer come: here and there, and of no equal size. */
Test(hashing, extents_have_the_leaves_of_their_own_pages)
{
    enum { BYTES = 5 * MIB + 100 };
    uint8_t *memory = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) memory[i] = (uint8_t)(i * 31 + i / PAGE);
    static uint64_t leaves[BYTES / PAGE + 1], expected[BYTES / PAGE + 1];
    digest_leaves(memory, BYTES, expected);
    static const size_t FROM[] = {0, 3 * PAGE, MIB, 4 * MIB, 5 * MIB},
                        TO[] = {PAGE, MIB, 3 * MIB + PAGE, 5 * MIB, BYTES};
    enum { EXTENTS = sizeof FROM / sizeof *FROM };
    hashing_t *s = hashing_new();
    for (uint32_t count = 0; count <= EXTENTS; count++) {
        hashing_extent_t extents[EXTENTS];
        memset(leaves, 0, sizeof leaves);
        for (uint32_t i = 0; i < count; i++)
            extents[i] = (hashing_extent_t){memory + FROM[i], TO[i] - FROM[i], leaves + FROM[i] / PAGE};
        hashing_leaves(s, extents, count);
        for (size_t page = 0; page <= BYTES / PAGE; page++) {
            bool is_in = false;
            for (uint32_t i = 0; i < count; i++) is_in |= page * PAGE >= FROM[i] && page * PAGE < TO[i];
            cr_assert_eq(leaves[page], is_in ? expected[page] : 0, "%u extents, page %zu", count, page);
        }
    }
    hashing_destroy(&s);
    free(memory);
}
