/* SPDX-License-Identifier: Apache-2.0 */
#include "client/event_queue.h"

#include "core/clock.h"
#include "core/failpoint.h"
#include "core/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef enum { REPEATED, OPTIONAL, NEEDED } worth_t;

/* What a search looks at lies together; the event itself is large, and rarely looked at. */
struct queued {
    heddle_event_t *event;
    uint64_t version;
    uint32_t adapter; /* hash of its name */
    uint16_t type;
    uint16_t worth;
};

/* --- life ------------------------------------------------------------------------------------- */

/* Events come back to the reserve first, which are there for the time without memory.  One more is kept for
 * the next push, so that an application that reads costs no allocation. */
static void give_back(event_queue_t *q, heddle_event_t *event)
{
    if (event && q->reserve_count < EVENT_QUEUE_RESERVE) q->reserve[q->reserve_count++] = event;
    else if (event) free(atomic_exchange(&q->kept, event));
}

static void drop_reserve(event_queue_t *q)
{
    while (q->reserve_count) free(q->reserve[--q->reserve_count]);
}

/* The events of the reserve are allocated now: later there may be no memory for them. */
int event_queue_init(event_queue_t *q)
{
    *q = (event_queue_t){.capacity = EVENT_QUEUE_CAPACITY, .fd = -1};
    queued_t *ring = calloc(EVENT_QUEUE_CAPACITY, sizeof *ring);
    while (ring && q->reserve_count < EVENT_QUEUE_RESERVE) {
        heddle_event_t *event = malloc(sizeof *event);
        if (!event) break;
        q->reserve[q->reserve_count++] = event;
    }
    if (q->reserve_count == EVENT_QUEUE_RESERVE) q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->fd < 0) {
        drop_reserve(q);
        free(ring);
        return HEDDLE_ERR_NO_MEMORY;
    }
    q->ring = ring;
    pthread_mutex_init(&q->lock, NULL);
    return HEDDLE_OK;
}

static queued_t *at(event_queue_t *q, uint32_t index) { return &q->ring[(q->first + index) % q->capacity]; }

void event_queue_fini(event_queue_t *q)
{
    if (!q->ring) return;
    for (uint32_t i = 0; i < q->count; i++) free(at(q, i)->event);
    drop_reserve(q);
    free(atomic_load(&q->kept));
    pthread_mutex_destroy(&q->lock);
    close(q->fd);
    free(q->ring);
    *q = (event_queue_t){0};
}

/* --- what an event is worth ------------------------------------------------------------------- */

/* An unknown type counts as OPTIONAL: it may be dropped, but is reported. */
static worth_t worth_of(int type)
{
    switch (type) {
    case HEDDLE_EVENT_PROGRESS:
    case HEDDLE_EVENT_FETCHING:
    case HEDDLE_EVENT_ROLLOUT: return REPEATED;
    case HEDDLE_EVENT_ARRIVED:
    case HEDDLE_EVENT_COMMIT:
    case HEDDLE_EVENT_VERIFY:
    case HEDDLE_EVENT_ACTIVE:
    case HEDDLE_EVENT_JOINED:
    case HEDDLE_EVENT_LOST_BROKER:
    case HEDDLE_EVENT_REFUSED:
    case HEDDLE_EVENT_FENCED:
    case HEDDLE_EVENT_DRAINING:
    case HEDDLE_EVENT_STAYING:
    case HEDDLE_EVENT_LEFT: return NEEDED;
    default: return OPTIONAL;
    }
}

/* What an event makes unnecessary becomes OPTIONAL and is not removed: the application may still read it, in
 * order.  An ACTIVE replaces the earlier ones of its adapter, the end of a version what was ordered for it,
 * any other needed event those of its type and version. */
static void mark_replaced(event_queue_t *q, const queued_t *later)
{
    /* After these events no other event of the version needs an answer. */
    bool ends = later->type == HEDDLE_EVENT_FAILED || later->type == HEDDLE_EVENT_RETIRED,
         is_active = later->type == HEDDLE_EVENT_ACTIVE;
    if (later->worth != NEEDED && !ends) return;
    for (uint32_t i = 0; i < q->count; i++) {
        queued_t *e = at(q, i);
        bool is_order = e->type == HEDDLE_EVENT_ARRIVED || e->type == HEDDLE_EVENT_COMMIT ||
                        e->type == HEDDLE_EVENT_VERIFY;
        bool is_of_it = is_active || e->version == later->version;
        bool is_replaced = is_of_it && (ends ? is_order : e->type == later->type);
        if (is_replaced && e->worth == NEEDED && e->adapter == later->adapter &&
            !strcmp(e->event->adapter, later->event->adapter))
            e->worth = OPTIONAL;
    }
}

/* --- room ------------------------------------------------------------------------------------- */

/* Those before the one that goes move up by one.  The caller owns the event. */
static heddle_event_t *take_out(event_queue_t *q, uint32_t gone)
{
    heddle_event_t *event = at(q, gone)->event;
    for (uint32_t i = gone; i > 0; i--) *at(q, i) = *at(q, i - 1);
    q->first = (q->first + 1) % q->capacity;
    q->count--;
    return event;
}

/* The oldest event of that worth; `count` when there is none. */
static uint32_t find_worth(event_queue_t *q, worth_t worth)
{
    uint32_t i = 0;
    while (i < q->count && at(q, i)->worth != worth) i++;
    return i;
}

/* Drops what is worth least. Returns the event that went and should be logged; NULL: none. */
static heddle_event_t *make_room(event_queue_t *q)
{
    uint32_t gone = find_worth(q, REPEATED);
    if (gone < q->count) {
        q->dropped_count++;
        give_back(q, take_out(q, gone));
        return NULL;
    }
    gone = find_worth(q, OPTIONAL);
    if (gone < q->count) {
        q->dropped_count++;
        return take_out(q, gone);
    }
    /* Only needed events make the queue grow, up to its largest size and while there is memory. */
    uint32_t capacity = q->capacity < EVENT_QUEUE_MAX / 2 ? q->capacity * 2 : EVENT_QUEUE_MAX;
    queued_t *ring = capacity > q->capacity ? calloc(capacity, sizeof *ring) : NULL;
    if (ring) {
        for (uint32_t i = 0; i < q->count; i++) ring[i] = *at(q, i);
        free(q->ring);
        q->ring = ring;
        q->capacity = capacity;
        q->first = 0;
        return NULL;
    }
    q->lost_count++;
    return take_out(q, 0);
}

/* --- in and out ------------------------------------------------------------------------------- */

/* Memory for a needed event where malloc gave none: one of the reserve, else that of an event that may be
 * dropped. */
static heddle_event_t *find_memory(event_queue_t *q)
{
    if (q->reserve_count) return q->reserve[--q->reserve_count];
    uint32_t gone = find_worth(q, REPEATED);
    if (gone == q->count) gone = find_worth(q, OPTIONAL);
    if (gone == q->count) return NULL;
    q->dropped_count++;
    return take_out(q, gone);
}

static heddle_event_t *take_copy(event_queue_t *q)
{
    heddle_event_t *kept = atomic_exchange(&q->kept, NULL);
    return kept ? kept : malloc(sizeof *kept);
}

/* The copy is allocated before the lock is taken, and logs are written after it: the application's thread
 * must not wait for either. */
void event_queue_push(event_queue_t *q, const heddle_event_t *event)
{
    worth_t worth = worth_of(event->type);
    heddle_event_t *copy = FAILPOINT("client.event") ? NULL : take_copy(q), *gone = NULL;
    pthread_mutex_lock(&q->lock);
    uint64_t lost_before = q->lost_count;
    if (!copy && worth == NEEDED) copy = find_memory(q);
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *c = event->adapter; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    queued_t entry = {copy, event->version, hash, (uint16_t)event->type, (uint16_t)worth};
    if (copy) {
        *copy = *event;
        mark_replaced(q, &entry);
        if (q->count == q->capacity) gone = make_room(q);
        *at(q, q->count++) = entry;
        if (q->count == 1) eventfd_write(q->fd, 1);
    } else if (worth == NEEDED) q->lost_count++;
    else q->dropped_count++;
    bool is_lost = q->lost_count > lost_before;
    bool is_logged = is_lost || ((gone || !copy) && q->has_reader && !q->is_quiet);
    uint64_t times = is_logged ? repeat_note(&q->drops, is_lost, clock_now(clock_system())) : 0;
    pthread_mutex_unlock(&q->lock);
    if (times) {
        const heddle_event_t *e = gone ? gone : event;
        char scratch[REPEAT_TEXT];
        const char *name = heddle_event_name(e->type);
        repeat_text(times, scratch);
        if (is_lost)
            log_emit(LOG_ERROR, "events.lost",
                     "%s %s is lost: the application reads no events, or no memory is left%s", name, e->tag,
                     scratch);
        else
            log_emit(LOG_WARN, "events.dropped", "%s %s and maybe more: the application reads no events%s",
                     name, e->tag, scratch);
    }
    free(gone);
}

/* The descriptor is readable exactly while there are events, so that it can be polled. */
bool event_queue_pop(event_queue_t *q, heddle_event_t *ret_event)
{
    heddle_event_t *event = NULL;
    bool is_over = false;
    pthread_mutex_lock(&q->lock);
    q->has_reader = true;
    if (q->count > 0) event = take_out(q, 0);
    if (event && q->count == 0) {
        is_over = repeat_over(&q->drops);
        eventfd_read(q->fd, &(eventfd_t){0});
    }
    if (event) *ret_event = *event;
    give_back(q, event);
    pthread_mutex_unlock(&q->lock);
    if (is_over) log_emit(LOG_WARN, "events.read", "the application has read all events");
    return event;
}
