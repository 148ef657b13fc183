/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/fill.h"

#include "core/failpoint.h"
#include "core/limits.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

/* Less is copied sooner than another thread wakes. */
#define SHARE_BYTES (4u << 20)

typedef struct {
    const pack_t *pack;
    const void *const *sources;
    uint64_t from, to;
    pthread_t thread;
} part_t;

uint32_t fill_threads(uint64_t region_bytes, uint32_t most)
{
    uint64_t shares = region_bytes / SHARE_BYTES;
    if (most > FILL_THREADS_MAX) most = FILL_THREADS_MAX;
    if (shares < most) most = (uint32_t)shares;
    return most ? most : 1;
}

uint32_t fill_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

static void *write_part(void *self)
{
    const part_t *part = self;
    pack_write(part->pack, part->sources, part->from, part->to);
    return NULL;
}

static bool start(part_t *part)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the application's signals are its own threads' */
    bool is_started = !FAILPOINT("publisher.fill.thread") &&
                      pthread_create(&part->thread, NULL, write_part, part) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return is_started;
}

void fill(pack_t *p, const void *const *sources, uint32_t threads)
{
    part_t parts[FILL_THREADS_MAX];
    uint64_t pages = p->layout.region_bytes / LIMIT_PAGE_BYTES;
    uint32_t started = 0;
    assert(threads >= 1 && threads <= FILL_THREADS_MAX);
    pack_write_begin(p, sources);
    for (uint32_t i = 0; i < threads; i++)
        parts[i] = (part_t){p, sources, pages * i / threads * LIMIT_PAGE_BYTES,
                            pages * (i + 1) / threads * LIMIT_PAGE_BYTES, 0};
    while (started + 1 < threads && start(&parts[started])) started++;
    for (uint32_t i = started; i < threads; i++) write_part(&parts[i]);
    for (uint32_t i = 0; i < started; i++) pthread_join(parts[i].thread, NULL);
}
