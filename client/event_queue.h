/* SPDX-License-Identifier: Apache-2.0 */
/* client/event_queue.h: the queue of events from the loop's thread to the application, in order and bounded.
 *
 * An application that does not read must cost neither much memory nor the loop's time.  When it reads again
 * it must find all that it has to act on: ARRIVED, COMMIT and VERIFY are sent once.  An event is
 *
 *   repeated  PROGRESS, FETCHING, ROLLOUT: a later one says the same
 *   needed    ARRIVED, COMMIT, VERIFY: until the version FAILED or RETIRED, or it is said again
 *             ACTIVE: until the adapter's next; of the session's events: the last of each type
 *   optional  the rest, and what is needed no more
 *
 * A full queue drops its oldest repeated event, else the oldest optional one, which is logged where the
 * application has ever read (a trainer that only commits and waits misses nothing), unless the queue
 * is quiet; where all are needed it grows.
 * EVENT_QUEUE_MAX is what a worker can have open: an ARRIVED or COMMIT and a
 * VERIFY for each slot, an ACTIVE for each adapter.  Without memory a needed event takes one of
 * EVENT_QUEUE_RESERVE places that are kept for that, or the place of one that is repeated or optional.
 * Beyond either it is lost, and logged as an error.
 *
 * Threads: init and fini by the owner, which is the shell; the rest by any.  A mutex is held for a look at
 * each event in the queue at most; nothing else blocks. */
#ifndef CLIENT_EVENT_QUEUE_H
#define CLIENT_EVENT_QUEUE_H

#include "core/limits.h"
#include "core/repeat.h"

#include <heddle/types.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define EVENT_QUEUE_CAPACITY 256u /* at first */
#define EVENT_QUEUE_MAX (LIMIT_ADAPTERS_PER_WORKER * (2u * LIMIT_SLOTS + 1u) + EVENT_QUEUE_CAPACITY)

#define EVENT_QUEUE_RESERVE 32u

typedef struct queued queued_t;

typedef struct {
    pthread_mutex_t lock;
    queued_t *ring;
    uint32_t capacity, first, count;
    heddle_event_t *reserve[EVENT_QUEUE_RESERVE];
    uint32_t reserve_count;
    _Atomic(heddle_event_t *) kept; /* of the last event that was read, for the next one; NULL: none */
    uint64_t dropped_count;         /* repeated and optional ones */
    uint64_t lost_count;            /* needed ones */
    repeat_t drops;                 /* that are logged; key 1: of a needed one */
    bool has_reader;                /* an event was asked for once */
    bool is_quiet;                  /* set after init: nothing is logged of those that are dropped */
    int fd;                         /* readable while count > 0 */
} event_queue_t;

/* NO_MEMORY, also without a descriptor. */
int event_queue_init(event_queue_t *q);
/* A zeroed queue is allowed. */
void event_queue_fini(event_queue_t *q);
/* Takes a copy. */
void event_queue_push(event_queue_t *q, const heddle_event_t *event);
/* False when it is empty. */
bool event_queue_pop(event_queue_t *q, heddle_event_t *ret_event);

#endif
