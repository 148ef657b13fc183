/* SPDX-License-Identifier: Apache-2.0 */
/* core/crew.h: a few threads that take pieces of one thread's work while it does them too, and sleep between.
 *
 *   crew_do(n pieces)  ->  the caller and whoever is awake take piece after piece  ->  all are done
 *
 * Who is woken too late takes fewer, or none: nobody is waited for but for the piece that he is at: a moment
 * in a loop, then asleep, for his core may have been taken from him.  Those who help keep off the core of who
 * calls, as far as there are others that he may use. */
#ifndef CORE_CREW_H
#define CORE_CREW_H

#include <stdint.h>

typedef struct crew crew_t;

/* Cores that this process may use. */
uint32_t crew_cores(void);
/* NULL when there is no thread to be had, or none was asked for: crew_do(NULL, ...) is done by the caller.
 * All signals are blocked in them; the application's are its own threads'. */
crew_t *crew_new(uint32_t threads);
/* Calls piece(self, i) once for each i below `count`, some on other threads, and returns when all have
 * returned.  One thread at a time calls it; `piece` calls nothing here. */
void crew_do(crew_t *c, uint32_t count, void (*piece)(void *self, uint32_t i), void *self);
/* Their threads have ended when it returns. */
void crew_end(crew_t **crew);

#endif
