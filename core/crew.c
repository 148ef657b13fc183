/* SPDX-License-Identifier: Apache-2.0 */
#include "core/crew.h"

#include "core/failpoint.h"
#include "core/thread.h"

#include <sched.h>
#include <semaphore.h>
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

typedef struct {
    struct crew *crew;
    pthread_t thread;
    sem_t call; /* a job is open, or the pool ends; of each thread its own, as one that gets no core must not
                 * hold up the others, nor the caller (glibc's pthread_cond_broadcast waits for it) */
} helper_t;

/* No lock: a thread may lose its core at any point for as long as other work likes to keep it. */
struct crew {
    crew_job_t job;        /* is written while no thread can read it: `is_open` is false, `busy` 0 */
    _Atomic bool is_open;  /* threads may begin to work on the job */
    _Atomic uint32_t next; /* the first piece that no thread has taken */
    _Atomic uint32_t busy; /* the pool's threads that may be at work on the job */
    sem_t done;            /* `busy` has become 0, perhaps for an earlier job */
    _Atomic bool ends;
    cpu_set_t allowed; /* what the caller may use, and */
    int avoided;       /* which of these cores the threads stay off; -1: none */
    uint32_t threads;
    helper_t helper[];
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

/* In this order: the caller closes the job, then looks at `busy`. */
static void *help(void *self)
{
    helper_t *h = self;
    crew_t *c = h->crew;
    for (;;) {
        while (sem_wait(&h->call)) {}
        while (!sem_trywait(&h->call)) {} /* of jobs that are over */
        if (atomic_load(&c->ends)) return NULL;
        atomic_fetch_add(&c->busy, 1);
        if (atomic_load(&c->is_open)) take_pieces(c, &c->job);
        if (atomic_fetch_sub(&c->busy, 1) == 1) sem_post(&c->done);
    }
}

crew_t *crew_new(uint32_t threads)
{
    crew_t *c = threads ? calloc(1, sizeof *c + threads * sizeof *c->helper) : NULL;
    if (!c) return NULL;
    c->avoided = -1;
    sem_init(&c->done, 0, 0);
    for (; c->threads < threads; c->threads++) {
        helper_t *h = &c->helper[c->threads];
        h->crew = c;
        sem_init(&h->call, 0, 0);
        if (FAILPOINT("crew.thread") || thread_start("heddle-crew", help, h, &h->thread)) {
            sem_destroy(&h->call);
            break;
        }
    }
    if (c->threads == 0) crew_end(&c);
    return c;
}

/* A thread that is woken may be put on the core of the thread that wakes it while another core is idle:
 * kernels of virtual machines keep threads together, so that other machines can use the cores.  Both threads
 * would then take turns on one core. */
static void keep_off(crew_t *c)
{
    cpu_set_t allowed, others;
    int core = sched_getcpu();
    if (core < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    if (core == c->avoided && CPU_EQUAL(&allowed, &c->allowed)) return;
    others = allowed;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) == 0) CPU_SET(core, &others); /* the caller may use no other core */
    for (uint32_t i = 0; i < c->threads; i++)
        pthread_setaffinity_np(c->helper[i].thread, sizeof others, &others);
    c->allowed = allowed;
    c->avoided = core;
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
        pthread_setaffinity_np(c->helper[i].thread, sizeof mine, &mine);
        pthread_setaffinity_np(c->helper[i].thread, sizeof all, &all);
    }
    c->avoided = -1;
}

/* Each thread of the pool is at its last piece at most. That ends sooner than a sleeping thread wakes, unless
 * its core runs other work. */
static void wait_done(crew_t *c)
{
    for (uint32_t i = 0; i < SPINS && atomic_load(&c->busy); i++) relax();
    if (atomic_load(&c->busy)) {
        struct timespec end;
        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_nsec += PATIENCE_NS;
        if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
        while (atomic_load(&c->busy) && !sem_clockwait(&c->done, CLOCK_MONOTONIC, &end)) {}
        if (atomic_load(&c->busy)) give_core(c);
    }
    while (atomic_load(&c->busy)) sem_wait(&c->done);
}

void crew_do(crew_t *c, uint32_t count, void (*piece)(void *self, uint32_t i), void *self)
{
    if (!c || count < 2) {
        for (uint32_t i = 0; i < count; i++) piece(self, i);
        return;
    }
    while (!sem_trywait(&c->done)) {} /* what no earlier job waited for */
    keep_off(c);
    c->job = (crew_job_t){piece, self, count};
    atomic_store(&c->next, 0);
    atomic_store(&c->is_open, true);
    for (uint32_t i = 0; i < c->threads; i++) sem_post(&c->helper[i].call);
    take_pieces(c, &c->job);
    atomic_store(&c->is_open, false);
    wait_done(c);
}

void crew_end(crew_t **crew)
{
    crew_t *c = crew ? *crew : NULL;
    if (!c) return;
    *crew = NULL;
    atomic_store(&c->ends, true);
    for (uint32_t i = 0; i < c->threads; i++) sem_post(&c->helper[i].call);
    give_core(c);
    for (uint32_t i = 0; i < c->threads; i++) {
        pthread_join(c->helper[i].thread, NULL);
        sem_destroy(&c->helper[i].call);
    }
    sem_destroy(&c->done);
    free(c);
}
