/* SPDX-License-Identifier: Apache-2.0 */
#include "core/thread.h"

#include <signal.h>

int thread_start(const char *name, void *(*run)(void *self), void *self, pthread_t *ret_thread)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int rc = pthread_attr_init(&attr);
    if (rc) return rc;
    pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* a thread inherits the mask */
    rc = pthread_create(ret_thread, &attr, run, self);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (!rc) pthread_setname_np(*ret_thread, name);
    return rc;
}
