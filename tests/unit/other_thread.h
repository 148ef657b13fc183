/* SPDX-License-Identifier: Apache-2.0 */
/* A call from a thread that owns nothing here: where it is not allowed, core/owner.h ends the test with SIGABRT. */
#ifndef TESTS_UNIT_OTHER_THREAD_H
#define TESTS_UNIT_OTHER_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

/* In place of `.signal`.  Where the checks are compiled out, nobody ends anything, and such a test does not run. */
#ifdef NDEBUG
#define OWNERS_ARE_CHECKED 0
#define ENDS_THE_PROCESS .disabled = true
#else
#define OWNERS_ARE_CHECKED 1
#define ENDS_THE_PROCESS .signal = SIGABRT
#endif

typedef struct {
    void (*call)(void *arg);
    void *arg;
} other_call_t;

static inline void *make_other_call(void *self)
{
    const other_call_t *call = self;
    call->call(call->arg);
    return NULL;
}

static inline void on_another_thread(void (*call)(void *arg), void *arg)
{
    other_call_t other = {call, arg};
    pthread_t thread;
    if (pthread_create(&thread, NULL, make_other_call, &other)) exit(3);
    pthread_join(thread, NULL);
}

#endif
