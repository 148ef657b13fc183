/* SPDX-License-Identifier: Apache-2.0 */
#include "client/event_queue.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

int event_queue_init(event_queue_t *q)
{
    heddle_event_t *events = calloc(EVENT_QUEUE_CAPACITY, sizeof *events);
    int fd = events ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (fd < 0) {
        free(events);
        return HEDDLE_ERR_NO_MEMORY;
    }
    *q = (event_queue_t){.events = events, .fd = fd};
    pthread_mutex_init(&q->lock, NULL);
    return HEDDLE_OK;
}

void event_queue_fini(event_queue_t *q)
{
    if (!q->events) return;
    pthread_mutex_destroy(&q->lock);
    close(q->fd);
    free(q->events);
    *q = (event_queue_t){0};
}

static heddle_event_t *at(event_queue_t *q, uint32_t index)
{
    return &q->events[(q->first + index) % EVENT_QUEUE_CAPACITY];
}

static bool is_repeated(int type)
{
    return type == HEDDLE_EVENT_PROGRESS || type == HEDDLE_EVENT_FETCHING || type == HEDDLE_EVENT_ROLLOUT;
}

/* Those before the one that goes move up by one. */
static void make_room(event_queue_t *q)
{
    uint32_t gone = 0;
    while (gone < q->count && !is_repeated(at(q, gone)->type)) gone++;
    if (gone == q->count) gone = 0;
    for (uint32_t i = gone; i > 0; i--) *at(q, i) = *at(q, i - 1);
    q->first = (q->first + 1) % EVENT_QUEUE_CAPACITY;
    q->count--;
    q->dropped_count++;
}

void event_queue_push(event_queue_t *q, const heddle_event_t *event)
{
    pthread_mutex_lock(&q->lock);
    if (q->count == EVENT_QUEUE_CAPACITY) make_room(q);
    *at(q, q->count++) = *event;
    if (q->count == 1) eventfd_write(q->fd, 1);
    pthread_mutex_unlock(&q->lock);
}

bool event_queue_pop(event_queue_t *q, heddle_event_t *ret_event)
{
    pthread_mutex_lock(&q->lock);
    bool any = q->count > 0;
    if (any) {
        *ret_event = *at(q, 0);
        q->first = (q->first + 1) % EVENT_QUEUE_CAPACITY;
        q->count--;
        if (q->count == 0) eventfd_read(q->fd, &(eventfd_t){0});
    }
    pthread_mutex_unlock(&q->lock);
    return any;
}
