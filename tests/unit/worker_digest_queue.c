/* SPDX-License-Identifier: Apache-2.0 */
/* worker/digest_queue.h: what is submitted completes, once, with its leaves. */
#include "worker/digest_queue.h"

#include "core/digest.h"

#include <criterion/criterion.h>
#include <string.h>

enum { PAGES = 6, PAGE = 4096 };
static uint8_t memory[PAGES * PAGE];
static uint64_t leaves[PAGES], expected[PAGES];

static void fill(void)
{
    for (size_t i = 0; i < sizeof memory; i++) memory[i] = (uint8_t)(i * 31 + i / PAGE);
    memset(leaves, 0, sizeof leaves);
    digest_leaves(memory, sizeof memory, expected);
}

static digest_job_t job_of(uint64_t cookie, size_t page, size_t pages)
{
    return (digest_job_t){.cookie = cookie,
                          .data = memory + page * PAGE,
                          .bytes = pages * PAGE,
                          .leaves = leaves + page};
}

Test(digest_queue, each_job_completes_once_with_its_leaves_and_writes_no_others)
{
    digest_queue_t *queue = digest_queue_new(4, NULL);
    digest_job_t first = job_of(70, 0, 2), second = job_of(71, 4, 1);
    digest_job_t done;
    uint64_t seen = 0;
    fill();
    cr_assert_not(digest_queue_completed(queue, &done));
    cr_assert(digest_queue_submit(queue, &first) && digest_queue_submit(queue, &second));
    cr_assert(digest_queue_is_pending(queue));
    while (digest_queue_completed(queue, &done)) seen += done.cookie;
    cr_assert_eq(seen, 70 + 71);
    cr_assert_not(digest_queue_is_pending(queue));
    for (size_t i = 0; i < PAGES; i++)
        cr_assert_eq(leaves[i], i == 2 || i == 3 || i == 5 ? 0 : expected[i], "leaf %zu", i);
    digest_queue_destroy(&queue);
    cr_assert_null(queue);
    digest_queue_destroy(&queue);
    digest_queue_destroy(NULL);
}

/* Of a job whose leaves are there nothing is read. */
Test(digest_queue, a_job_without_memory_completes_with_the_leaves_that_it_has)
{
    digest_queue_t *queue = digest_queue_new(1, NULL);
    digest_job_t job = {.cookie = 9, .bytes = PAGE, .leaves = leaves}, done;
    leaves[0] = 77;
    cr_assert(digest_queue_submit(queue, &job));
    cr_assert(digest_queue_completed(queue, &done));
    cr_assert(done.cookie == 9 && done.leaves == leaves && leaves[0] == 77);
    digest_queue_destroy(&queue);
}

Test(digest_queue, a_full_queue_takes_no_more_until_a_job_has_completed)
{
    digest_queue_t *queue = digest_queue_new(2, NULL);
    digest_job_t done;
    fill();
    for (uint64_t i = 0; i < 10; i++) {
        digest_job_t job = job_of(i, i % PAGES, 1);
        if (i >= 2) {
            cr_assert_not(digest_queue_submit(queue, &job), "job %llu", (unsigned long long)i);
            cr_assert(digest_queue_completed(queue, &done));
        }
        cr_assert(digest_queue_submit(queue, &job));
    }
    digest_queue_destroy(&queue); /* with two pending */
}
