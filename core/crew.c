/* SPDX-License-Identifier: Apache-2.0 */
#include "core/crew.h"

#include "core/failpoint.h"
#include "core/thread.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#define SPINS 2000u /* some 50 us on x86-64 */
#define PATIENCE_NS 1000000

typedef struct {
    void (*piece)(void *self, uint32_t i);
    void *self;
    uint32_t count;
} crew_job_t;

struct crew {
    pthread_mutex_t lock; /* protects what is not atomic */
    pthread_cond_t work, done;
    crew_job_t job;        /* count 0: it is over, for a thread that wakes now */
    uint64_t number;       /* of the job */
    _Atomic uint32_t next; /* the first piece that no thread has taken */
    _Atomic uint32_t busy; /* the pool's threads that work on the job; changed under the
                            * lock */
    bool ends;
    int avoided; /* the core that the threads stay off; -1: none */
    uint32_t threads;
    pthread_t thread[];
};

uint32_t crew_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

/* Leaves the core to its other hardware thread for a moment. */
static void relax(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static void take_pieces(crew_t *c, const crew_job_t *job)
{
    for (uint32_t i; (i = atomic_fetch_add(&c->next, 1)) < job->count;) job->piece(job->self, i);
}

static void *help(void *self)
{
    crew_t *c = self;
    uint64_t seen = 0;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->ends && (c->job.count == 0 || c->number == seen)) pthread_cond_wait(&c->work, &c->lock);
        if (c->ends) break;
        crew_job_t job = c->job;
        seen = c->number;
        atomic_fetch_add(&c->busy, 1);
        pthread_mutex_unlock(&c->lock);
        take_pieces(c, &job);
        pthread_mutex_lock(&c->lock);
        if (atomic_fetch_sub(&c->busy, 1) == 1) pthread_cond_signal(&c->done);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

crew_t *crew_new(uint32_t threads)
{
    crew_t *c = threads ? calloc(1, sizeof *c + threads * sizeof *c->thread) : NULL;
    if (!c) return NULL;
    c->avoided = -1;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    while (c->threads < threads && !FAILPOINT("crew.thread") &&
           thread_start("heddle-crew", help, c, &c->thread[c->threads]) == 0)
        c->threads++;
    if (c->threads == 0) crew_end(&c);
    return c;
}

/* A thread that is woken may be put on the core of the thread that wakes it while another core is idle:
 * kernels of virtual machines keep threads together, so that other machines can use the cores.  Both threads
 * would then take turns on one core. */
static void keep_off(crew_t *c, int core)
{
    cpu_set_t others;
    if (core < 0 || core == c->avoided || sched_getaffinity(0, sizeof others, &others) != 0) return;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) == 0) CPU_SET(core, &others); /* the process may use no other core */
    for (uint32_t i = 0; i < c->threads; i++) pthread_setaffinity_np(c->thread[i], sizeof others, &others);
    c->avoided = core;
}

static void set_job(crew_t *c, crew_job_t job)
{
    pthread_mutex_lock(&c->lock);
    c->job = job;
    if (job.count) {
        c->number++;
        atomic_store(&c->next, 0);
    }
    pthread_mutex_unlock(&c->lock);
}

/* The caller is about to leave its core, and the threads' own may be one that an engine keeps busy for
 * minutes.  So each is moved to the caller's core at once, and may then go to any, as that one may be busy as
 * well. */
static void give_core(crew_t *c)
{
    cpu_set_t mine, all;
    int core = sched_getcpu();
    if (core < 0 || sched_getaffinity(0, sizeof all, &all) != 0) return;
    CPU_ZERO(&mine);
    CPU_SET(core, &mine);
    for (uint32_t i = 0; i < c->threads; i++) {
        pthread_setaffinity_np(c->thread[i], sizeof mine, &mine);
        pthread_setaffinity_np(c->thread[i], sizeof all, &all);
    }
    c->avoided = -1;
}

/* Each thread of the pool is at its last piece at most. That ends sooner than a sleeping thread wakes, unless
 * its core runs other work. */
static void wait_done(crew_t *c)
{
    for (uint32_t i = 0; i < SPINS && atomic_load(&c->busy); i++) relax();
    pthread_mutex_lock(&c->lock);
    if (atomic_load(&c->busy)) {
        struct timespec end;
        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_nsec += PATIENCE_NS;
        if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
        while (atomic_load(&c->busy) && !pthread_cond_timedwait(&c->done, &c->lock, &end)) {}
        if (atomic_load(&c->busy)) give_core(c);
    }
    while (atomic_load(&c->busy)) pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

void crew_do(crew_t *c, uint32_t count, void (*piece)(void *self, uint32_t i), void *self)
{
    crew_job_t job = {piece, self, count};
    if (!c || count < 2) {
        for (uint32_t i = 0; i < count; i++) piece(self, i);
        return;
    }
    keep_off(c, sched_getcpu());
    set_job(c, job);
    pthread_cond_broadcast(&c->work);
    take_pieces(c, &job);
    set_job(c, (crew_job_t){0});
    wait_done(c);
}

void crew_end(crew_t **crew)
{
    crew_t *c = crew ? *crew : NULL;
    if (!c) return;
    *crew = NULL;
    pthread_mutex_lock(&c->lock);
    c->ends = true;
    pthread_mutex_unlock(&c->lock);
    pthread_cond_broadcast(&c->work);
    give_core(c);
    for (uint32_t i = 0; i < c->threads; i++) pthread_join(c->thread[i], NULL);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->done);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
