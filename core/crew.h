/* SPDX-License-Identifier: Apache-2.0 */
/* core/crew.h: a small thread pool that shares a job with the thread that calls it, and sleeps otherwise.
 *
 *   crew_do(n pieces)  ->  the caller and the pool's threads take piece after piece  ->  all are done
 *
 * A thread that wakes late takes fewer pieces, or none.  The caller waits for pieces under way, and for a
 * thread that is just looking for one: it spins briefly, then sleeps, because the core of such a thread may
 * be busy with other work.  The pool's threads stay off the caller's core where it may use others, until it
 * has slept for a millisecond, or was woken by a signal: then they may use that one, and all others that it
 * may use.
 *
 * The caller owns the pool.  One thread at a time may call it; crew_cores: any thread. */
#ifndef CORE_CREW_H
#define CORE_CREW_H

#include <stdint.h>

typedef struct crew crew_t;

/* Cores that the calling thread may use. */
uint32_t crew_cores(void);
/* Starts up to `threads` threads.  NULL when none was asked for or none can be started: crew_do(NULL, ...)
 * runs every piece on the calling thread.  All signals are blocked in the pool's threads, so that the
 * application's handlers run on its own threads. */
crew_t *crew_new(uint32_t threads);
/* Calls piece(self, i) once for each i below `count`, some on other threads, and returns when all have
 * returned.  `piece` must not call the pool. */
void crew_do(crew_t *c, uint32_t count, void (*piece)(void *self, uint32_t i), void *self);
/* The pool's threads have ended when it returns.  Accepts NULL and pointers to NULL. */
void crew_end(crew_t **crew);

#endif
