/* SPDX-License-Identifier: Apache-2.0 */
/* A call from a thread that owns nothing here: where it is not allowed, core/owner.h ends the test with SIGABRT. */
#ifndef TESTS_UNIT_OTHER_THREAD_H
#define TESTS_UNIT_OTHER_THREAD_H

#include <pthread.h>
#include <stdlib.h>

typedef struct { void (*call)(void *arg); void *arg; } other_call_t;

static void *make_other_call(void *self)
{
    const other_call_t *call = self;
    call->call(call->arg);
    return NULL;
}

static void on_another_thread(void (*call)(void *arg), void *arg)
{
    other_call_t other = {call, arg};
    pthread_t thread;
    if (pthread_create(&thread, NULL, make_other_call, &other)) exit(3);
    pthread_join(thread, NULL);
}

#endif
