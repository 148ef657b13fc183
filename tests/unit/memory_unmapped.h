/* SPDX-License-Identifier: Apache-2.0 */
/* Which thread unmaps the first page of a range, whether the thread that watches waits for that, and what another
 * thread is like, for the programs that include this. A region and a hold are unmapped from the end, so that this is the last munmap of
 * the file in this process. Another thread is held in it until the one that watches goes on. */
#ifndef TESTS_UNIT_MEMORY_UNMAPPED_H
#define TESTS_UNIT_MEMORY_UNMAPPED_H

#include "tests/unit/memory_rig.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static _Atomic(const void *) unmapped_at;
static _Atomic pid_t unmapped_by, unmapped_watcher;
static atomic_bool unmapped_goes_on, unmapped_is_waited_for;
static bool unmapped_takes_signals, unmapped_is_to_be_joined; /* of another thread */

/* One that is waited for ends after RIG_PATIENCE_US, so that its test fails and does not hang. */
static void unmapped_hold_up(void)
{
    uint64_t end_us = clock_now(clock_system()) + RIG_PATIENCE_US;
    while (!atomic_load(&unmapped_goes_on) && clock_now(clock_system()) < end_us) sched_yield();
    if (!atomic_load(&unmapped_goes_on)) atomic_store(&unmapped_is_waited_for, true);
}

static void unmapped_look_at_thread(void)
{
    pthread_attr_t attributes;
    sigset_t blocked;
    int state = PTHREAD_CREATE_JOINABLE;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    for (int s = 1; s <= SIGSYS; s++)
        if (s != SIGKILL && s != SIGSTOP) unmapped_takes_signals |= !sigismember(&blocked, s);
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getdetachstate(&attributes, &state);
        pthread_attr_destroy(&attributes);
    }
    unmapped_is_to_be_joined = state != PTHREAD_CREATE_DETACHED;
}

int munmap(void *at, size_t bytes)
{
    if (at && at == atomic_load(&unmapped_at)) {
        if (gettid() != atomic_load(&unmapped_watcher)) {
            unmapped_look_at_thread();
            unmapped_hold_up();
        }
        atomic_store(&unmapped_by, gettid());
    }
    return (int)syscall(SYS_munmap, at, bytes);
}

static inline void unmapped_watch(const void *at)
{
    atomic_store(&unmapped_by, 0);
    atomic_store(&unmapped_watcher, gettid());
    atomic_store(&unmapped_goes_on, false);
    atomic_store(&unmapped_at, at);
}

/* By the thread that watches, which goes on. Waits until the page is gone. */
static inline pid_t unmapped_by_thread(void)
{
    void *at = (void *)(uintptr_t)atomic_load(&unmapped_at);
    unsigned char v;
    atomic_store(&unmapped_goes_on, true);
    cr_assert(!atomic_load(&unmapped_is_waited_for), "the munmap is waited for");
    uint64_t end_us = clock_now(clock_system()) + RIG_PATIENCE_US;
    while (mincore(at, 1, &v) == 0 && clock_now(clock_system()) < end_us) sched_yield();
    cr_assert(mincore(at, 1, &v) < 0 && errno == ENOMEM, "unmapped");
    return atomic_load(&unmapped_by);
}

#endif
