/* SPDX-License-Identifier: Apache-2.0 */
/* core/thread.h: starts the library's threads. Their stack has a fixed size, whatever limit the process has
 * (ulimit -s), and all signals are blocked in them: signals belong to the application's own threads. Any
 * thread; the caller joins the new one. */
#ifndef CORE_THREAD_H
#define CORE_THREAD_H

#include <pthread.h>

/* The deepest call of the library needs less than 256 KiB; the rest is for UCX and libc. */
#define THREAD_STACK_BYTES (2u << 20)

/* `name` has at most 15 characters.  0, or an errno: no thread was started. */
int thread_start(const char *name, void *(*run)(void *self), void *self, pthread_t *ret_thread);

#endif
