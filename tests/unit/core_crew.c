/* SPDX-License-Identifier: Apache-2.0 */
/* A crew: each piece once, none after the call, whatever the threads are doing. */
#include "core/crew.h"

#include "core/failpoint.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum { JOBS = 20000, PIECES = 24 };

typedef struct {
    uint32_t job, count, done[PIECES], by_job[PIECES];
} work_t;

/* Not atomic: a piece that two take, or that is still at work when the next job is set, is a race. */
static void note(void *self, uint32_t i)
{
    work_t *w = self;
    if (i >= PIECES) abort();
    w->done[i]++;
    w->by_job[i] = w->job;
}

static void do_jobs(crew_t *crew)
{
    work_t w;
    for (w.job = 1; w.job <= JOBS; w.job++) {
        /* What a late thread took for the next piece is below the count of the next job. */
        w.count = w.job % 2 ? 2 : w.job % (PIECES + 1);
        for (uint32_t i = 0; i < PIECES; i++) w.done[i] = w.by_job[i] = 0;
        crew_do(crew, w.count, note, &w);
        for (uint32_t i = 0; i < PIECES; i++) {
            cr_assert_eq(w.done[i], i < w.count, "job %u, piece %u", w.job, i);
            cr_assert_eq(w.by_job[i], i < w.count ? w.job : 0);
        }
    }
}

Test(crew, does_each_piece_once)
{
    for (uint32_t threads = 0; threads <= 4; threads++) {
        crew_t *crew = crew_new(threads);
        cr_assert_eq(crew == NULL, threads == 0);
        do_jobs(crew);
        crew_end(&crew);
        cr_assert_null(crew);
    }
}

/* Each waits for all others: so many threads take pieces. */
typedef struct {
    uint32_t all;
    _Atomic uint32_t here;
} meeting_t;
static void meet(void *self, uint32_t i)
{
    meeting_t *m = self;
    (void)i;
    m->here++;
    while (m->here < m->all) {}
}

Test(crew, is_as_many_as_can_be_started, .timeout = 60)
{
    for (unsigned fails = 1; fails <= 3; fails++) {
        failpoint_arm("crew.thread", fails);
        crew_t *crew = crew_new(3);
        cr_assert(failpoint_has_failed());
        failpoint_disarm();
        cr_assert_eq(crew == NULL, fails == 1);
        meeting_t m = {.all = fails};
        crew_do(crew, fails, meet, &m);
        do_jobs(crew);
        crew_end(&crew);
    }
}

/* As long as a piece that the caller waits for asleep. */
static void be_late(void *self, uint32_t i)
{
    _Atomic uint32_t *here = self;
    (*here)++;
    while (*here < 2) {}
    if (i == 1) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    (*here)++;
}

Test(crew, is_waited_for_until_its_last_piece_is_done, .timeout = 60)
{
    crew_t *crew = crew_new(1);
    for (int i = 0; i < 20; i++) {
        _Atomic uint32_t here = 0;
        crew_do(crew, 2, be_late, &here);
        cr_assert_eq(here, 4);
    }
    crew_end(&crew);
}

/* All that this test may use, two at least. */
static cpu_set_t two_cores(void)
{
    cpu_set_t mine;
    cr_assert_eq(sched_getaffinity(0, sizeof mine, &mine), 0);
    if (CPU_COUNT(&mine) < 2) cr_skip_test("there is one core");
    return mine;
}

/* As long as the helper may not use every core that the caller may: so it is where other work keeps the ones
 * busy that it may use. */
typedef struct {
    pthread_t caller;
    cpu_set_t all;
    _Atomic uint32_t here;
} starving_t;
static void starve(void *self, uint32_t i)
{
    starving_t *s = self;
    cpu_set_t now;
    (void)i;
    s->here++;
    while (s->here < 2) {}
    if (pthread_equal(pthread_self(), s->caller)) return;
    do sched_getaffinity(0, sizeof now, &now);
    while (!CPU_EQUAL(&s->all, &now));
}

Test(crew, gets_every_core_while_it_is_waited_for, .timeout = 60)
{
    starving_t s = {.caller = pthread_self(), .all = two_cores()};
    crew_t *crew = crew_new(1);
    crew_do(crew, 2, starve, &s);
    do_jobs(crew);
    crew_end(&crew);
}

typedef struct {
    pthread_t caller;
    cpu_set_t helper;
    _Atomic uint32_t here;
} seen_t;
static void look(void *self, uint32_t i)
{
    seen_t *s = self;
    (void)i;
    if (!pthread_equal(pthread_self(), s->caller)) sched_getaffinity(0, sizeof s->helper, &s->helper);
    s->here++;
    while (s->here < 2) {}
}

Test(crew, keeps_off_the_core_of_who_calls, .timeout = 60)
{
    enum { ROUNDS = 50 };
    cpu_set_t mine = two_cores();
    crew_t *crew = crew_new(1);
    int kept_off = 0;
    for (int i = 0; i < ROUNDS; i++) {
        seen_t s = {.caller = pthread_self()};
        int core = sched_getcpu();
        crew_do(crew, 2, look, &s);
        cr_assert_eq(CPU_COUNT(&s.helper), CPU_COUNT(&mine) - 1);
        kept_off += !CPU_ISSET(core, &s.helper);
    }
    cr_assert_gt(kept_off, ROUNDS / 2, "but for the moments in which it was moved");
    crew_end(&crew);
}

/* A caller that is bound to its core, and free again, on the same core all the time. */
Test(crew, goes_where_the_caller_may, .timeout = 60)
{
    enum { ROUNDS = 20 };
    cpu_set_t mine = two_cores();
    crew_t *crew = crew_new(1);
    int kept_off = 0;
    for (int i = 0; i < ROUNDS; i++) {
        seen_t bound = {.caller = pthread_self()}, free = {.caller = pthread_self()};
        cpu_set_t one;
        int core = sched_getcpu();
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
        crew_do(crew, 2, look, &bound);
        cr_assert(CPU_EQUAL(&bound.helper, &one));
        cr_assert_eq(sched_setaffinity(0, sizeof mine, &mine), 0);
        crew_do(crew, 2, look, &free);
        cr_assert_eq(CPU_COUNT(&free.helper), CPU_COUNT(&mine) - 1);
        kept_off += !CPU_ISSET(core, &free.helper);
    }
    cr_assert_gt(kept_off, ROUNDS / 2, "but for the moments in which it was moved");
    crew_end(&crew);
}

Test(crew, keeps_off_again_after_it_had_every_core, .timeout = 60)
{
    enum { ROUNDS = 50 }; /* a caller that wakes on another core would have it bound anew in any case */
    cpu_set_t mine = two_cores();
    crew_t *crew = crew_new(1);
    for (int i = 0; i < ROUNDS; i++) {
        starving_t s = {.caller = pthread_self(), .all = mine};
        seen_t next = {.caller = pthread_self()};
        crew_do(crew, 2, starve, &s);
        crew_do(crew, 2, look, &next);
        cr_assert_eq(CPU_COUNT(&next.helper), CPU_COUNT(&mine) - 1);
    }
    crew_end(&crew);
}

Test(crew, works_where_there_is_one_core, .timeout = 60)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    crew_t *crew = crew_new(1);
    do_jobs(crew);
    crew_end(&crew);
}
