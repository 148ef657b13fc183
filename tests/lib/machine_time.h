/* SPDX-License-Identifier: Apache-2.0 */
/* A clock of the time that the machine gives to a thread that wants little.  Every 5 ms it is 5 ms later.
 * While the machine stands still, so does the clock; on a busy machine it is slow.  Tests bound what they time by
 * it: a bound in seconds of the wall fails on a machine that stops for a moment.  (tests/lib/machine_time is
 * the same for shells and Python.) */
#ifndef TESTS_LIB_MACHINE_TIME_H
#define TESTS_LIB_MACHINE_TIME_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

typedef struct {
    pthread_t thread;
    atomic_int ms;
    atomic_bool is_over;
} machine_time_t;

static void *machine_time_tick(void *self)
{
    machine_time_t *t = self;
    while (!atomic_load(&t->is_over)) {
        usleep(5000);
        atomic_fetch_add(&t->ms, 5);
    }
    return NULL;
}

static inline void machine_time_start(machine_time_t *t)
{
    atomic_init(&t->ms, 0);
    atomic_init(&t->is_over, false);
    if (pthread_create(&t->thread, NULL, machine_time_tick, t)) _exit(1);
}

/* -> ms since it was started */
static inline int machine_time_stop(machine_time_t *t)
{
    atomic_store(&t->is_over, true);
    pthread_join(t->thread, NULL);
    return atomic_load(&t->ms);
}

#endif
