/* SPDX-License-Identifier: Apache-2.0 */
/* core/thread.h: threads of the library.  The size of their stack is ours, whatever limit the process has
 * (ulimit -s), and all signals are blocked: those are the application's, on its own threads. */
#ifndef CORE_THREAD_H
#define CORE_THREAD_H

#include <pthread.h>

/* The deepest call of ours needs less than 256 KiB; UCX and libc have the rest. */
#define THREAD_STACK_BYTES (2u << 20)

/* `name` has at most 15 characters.  0, or an errno: no thread was started. */
int thread_start(const char *name, void *(*run)(void *self), void *self, pthread_t *ret_thread);

#endif
