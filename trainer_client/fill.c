/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/fill.h"

#include "core/failpoint.h"
#include "core/limits.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

/* Less is copied sooner than another thread wakes. */
#define SHARE_BYTES (4u << 20)

/* Taken one after the other by who is free: a thread that starts late, or shares its core, takes fewer. */
#define PIECE_BYTES (1u << 20)

typedef struct {
    const pack_t *pack;
    const void *const *sources;
    _Atomic uint64_t next;             /* byte of the region that nobody has taken */
} work_t;

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

static void *write_pieces(void *self)
{
    work_t *w = self;
    uint64_t end = w->pack->layout.region_bytes, from;
    while ((from = atomic_fetch_add(&w->next, PIECE_BYTES)) < end)
        pack_write(w->pack, w->sources, from, from + PIECE_BYTES);
    return NULL;
}

static bool start(work_t *w, pthread_t *ret_thread)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the application's signals are its own threads' */
    bool is_started =
        !FAILPOINT("publisher.fill.thread") && pthread_create(ret_thread, NULL, write_pieces, w) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return is_started;
}

void fill(pack_t *p, const void *const *sources, uint32_t threads)
{
    work_t work = {.pack = p, .sources = sources};
    pthread_t others[FILL_THREADS_MAX];
    uint32_t started = 0;
    assert(threads >= 1 && threads <= FILL_THREADS_MAX);
    pack_write_begin(p, sources);
    while (started + 1 < threads && start(&work, &others[started])) started++;
    write_pieces(&work);
    for (uint32_t i = 0; i < started; i++) pthread_join(others[i], NULL);
}
