/* SPDX-License-Identifier: Apache-2.0 */
/* client/event_queue.h: events on their way from the loop's thread to the application, in order and
 * bounded.
 *
 * An application that does not read must cost neither memory nor the loop's time: when the queue is
 * full, the oldest event that a later one of its kind repeats (PROGRESS, FETCHING, ROLLOUT) makes
 * room, else the oldest of all.
 *
 * Threads: init and fini by the owner, the rest by any.  A mutex is held for the copy of one event,
 * of a full queue at most; nothing else blocks. */
#ifndef CLIENT_EVENT_QUEUE_H
#define CLIENT_EVENT_QUEUE_H

#include <heddle/types.h>
#include <pthread.h>
#include <stdbool.h>

#define EVENT_QUEUE_CAPACITY 256u

typedef struct {
    pthread_mutex_t lock;
    heddle_event_t *events;            /* a ring; pages that were never used take no memory */
    uint32_t first, count;
    uint64_t dropped_count;
    int fd;                            /* readable while count > 0 */
} event_queue_t;

/* NO_MEMORY, also without a descriptor. */
int  event_queue_init(event_queue_t *q);
/* A zeroed queue is allowed. */
void event_queue_fini(event_queue_t *q);
void event_queue_push(event_queue_t *q, const heddle_event_t *event);
/* False when it is empty. */
bool event_queue_pop(event_queue_t *q, heddle_event_t *ret_event);

#endif
