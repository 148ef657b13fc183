/* SPDX-License-Identifier: Apache-2.0 */
/* A table of entries, rebuilt into a poll set when it has changed, and a lock-free list of posts. */
#include "wire/loop.h"

#include <errno.h>
#include <heddle/error.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

/* Either a socket or descriptor with a `ready` hook, or a source with a `work` hook. */
typedef struct {
    void *socket;
    int fd;
    int item;  /* place in the poll set; -1: not in it */
    bool dead; /* removed, but a hook may run while the table is walked: the entry
                * leaves the table before the next poll */
    void (*ready)(void *self);
    bool (*work)(void *self);
    bool (*arm)(void *self);
    void *self;
    uint64_t due_us; /* of a source: when its work hook must run at the latest */
} entry_t;

struct loop {
    owner_t owner;
    const clock_ops_t *clock;
    uint64_t now_us;
    uint64_t (*tick)(void *self, uint64_t now_us);
    void *tick_self;
    void (*flush)(void *self);
    void *flush_self;
    entry_t *entries; /* and items: both have room for `capacity` */
    zmq_pollitem_t *items;
    int entry_count, item_count, capacity;
    bool changed; /* the poll set no longer matches the entries */
    int wake_fd;
    atomic_bool stopped;
    _Atomic(loop_post_t *) posts; /* last posted first; ENDED once posts are refused */
};

static loop_post_t ended_mark;
#define ENDED (&ended_mark)

static void drain_wake(void *self)
{
    loop_t *l = self;
    uint64_t count;
    while (read(l->wake_fd, &count, sizeof count) < 0 && errno == EINTR) {}
}

int loop_new(const clock_ops_t *clock, loop_t **ret_loop)
{
    loop_t *l = calloc(1, sizeof *l);
    if (!l) return HEDDLE_ERR_NO_MEMORY;
    l->clock = clock;
    l->now_us = clock_now(clock);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake_fd < 0 || loop_add_fd(l, l->wake_fd, drain_wake, l)) goto fail;
    *ret_loop = l;
    return HEDDLE_OK;
fail:
    loop_destroy(&l);
    return HEDDLE_ERR_NO_MEMORY;
}

void loop_destroy(loop_t **loop)
{
    loop_t *l = loop ? *loop : NULL;
    if (!l) return;
    *loop = NULL;
    owner_check(&l->owner);
    if (l->wake_fd >= 0) close(l->wake_fd);
    free(l->entries);
    free(l->items);
    free(l);
}

const owner_t *loop_owner(const loop_t *l) { return &l->owner; }
void loop_hand_over(loop_t *l) { owner_hand_over(&l->owner); }

uint64_t loop_now(const loop_t *l)
{
    owner_check(&l->owner);
    return l->now_us;
}

static int add(loop_t *l, entry_t entry)
{
    owner_check(&l->owner);
    if (l->entry_count == l->capacity) {
        /* Both tables grow here, so that building the poll set in the middle of a turn cannot fail. */
        int capacity = l->capacity ? 2 * l->capacity : 8;
        entry_t *entries = realloc(l->entries, (size_t)capacity * sizeof *entries);
        if (entries) l->entries = entries;
        zmq_pollitem_t *items = entries ? realloc(l->items, (size_t)capacity * sizeof *items) : NULL;
        if (!items) return HEDDLE_ERR_NO_MEMORY;
        l->items = items;
        l->capacity = capacity;
    }
    entry.item = -1;
    l->entries[l->entry_count++] = entry;
    l->changed = true;
    return HEDDLE_OK;
}

/* Removing only marks: the caller may be a hook of the very entry, and the walk holds its index. */
static void bury(loop_t *l, entry_t *entry)
{
    entry->dead = true;
    l->changed = true;
}

int loop_add_fd(loop_t *l, int fd, void (*on_ready)(void *self), void *self)
{
    return add(l, (entry_t){.fd = fd, .ready = on_ready, .self = self});
}

void loop_remove_fd(loop_t *l, int fd)
{
    owner_check(&l->owner);
    for (int i = 0; i < l->entry_count; i++)
        if (l->entries[i].ready && !l->entries[i].socket && l->entries[i].fd == fd) bury(l, &l->entries[i]);
}

int loop_add_source(loop_t *l, int fd, bool (*work)(void *self), bool (*arm)(void *self), void *self)
{
    return add(l, (entry_t){.fd = fd, .work = work, .arm = arm, .self = self, .due_us = CLOCK_NEVER});
}

void loop_set_due(loop_t *l, void *self, uint64_t due_us)
{
    owner_check(&l->owner);
    for (int i = 0; i < l->entry_count; i++)
        if (l->entries[i].work && l->entries[i].self == self) l->entries[i].due_us = due_us;
}

void loop_remove_source(loop_t *l, void *self)
{
    owner_check(&l->owner);
    for (int i = 0; i < l->entry_count; i++)
        if (l->entries[i].work && l->entries[i].self == self) bury(l, &l->entries[i]);
}

int loop_add_socket(loop_t *l, void *socket, void (*on_ready)(void *self), void *self)
{
    return add(l, (entry_t){.socket = socket, .fd = -1, .ready = on_ready, .self = self});
}

void loop_remove_socket(loop_t *l, void *socket)
{
    owner_check(&l->owner);
    for (int i = 0; i < l->entry_count; i++)
        if (l->entries[i].socket == socket) bury(l, &l->entries[i]);
}

void loop_set_tick(loop_t *l, uint64_t (*tick)(void *self, uint64_t now_us), void *self)
{
    owner_check(&l->owner);
    l->tick = tick;
    l->tick_self = self;
}

void loop_set_flush(loop_t *l, void (*flush)(void *self), void *self)
{
    owner_check(&l->owner);
    l->flush = flush;
    l->flush_self = self;
}

void loop_wake(loop_t *l)
{
    int saved = errno;
    uint64_t one = 1;
    while (write(l->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    } /* EAGAIN means that the counter is full, so the loop will wake anyway */
    errno = saved;
}

void loop_stop(loop_t *l)
{
    atomic_store(&l->stopped, true);
    loop_wake(l);
}

int loop_post(loop_t *l, loop_post_t *post)
{
    loop_post_t *head = atomic_load(&l->posts);
    do {
        if (head == ENDED) return HEDDLE_ERR_CLOSED;
        post->next = head;
    } while (!atomic_compare_exchange_weak(&l->posts, &head, post));
    if (!head) loop_wake(l); /* with posts in the list, the first of them has woken the loop already */
    return HEDDLE_OK;
}

/* Takes all posts, leaves `mark` in their place, and runs them in the order of posting. With ENDED as the
 * mark, each later post is refused, so none is accepted and then forgotten. */
static bool run_posts(loop_t *l, loop_post_t *mark)
{
    loop_post_t *taken = atomic_exchange(&l->posts, mark), *p = NULL;
    if (taken == ENDED) return false;
    while (taken) {
        loop_post_t *next = taken->next;
        taken->next = p;
        p = taken;
        taken = next;
    }
    bool any = p != NULL;
    while (p) {
        loop_post_t *next = p->next; /* read first: fn may reuse or free the post */
        sem_t *done = p->done;
        p->fn(p->self, p->arg, l->now_us);
        if (done) sem_post(done);
        p = next;
    }
    return any;
}

/* Entries are copied before the call, because a hook may add entries and so move the table. A source's
 * descriptor does not count as ready here: its work hook runs in every turn anyway, and some descriptors
 * stay readable until the arm hook runs. */
static bool run_ready(loop_t *l)
{
    bool any = false;
    for (int i = 0, n = l->entry_count; i < n; i++) {
        entry_t e = l->entries[i];
        if (e.dead || !e.ready || e.item < 0 || !l->items[e.item].revents) continue;
        e.ready(e.self);
        any = true;
    }
    return any;
}

static void build_items(loop_t *l)
{
    int kept = 0;
    l->item_count = 0;
    for (int i = 0; i < l->entry_count; i++) {
        entry_t e = l->entries[i];
        if (e.dead) continue;
        e.item = e.socket || e.fd >= 0 ? l->item_count++ : -1;
        if (e.item >= 0)
            l->items[e.item] = (zmq_pollitem_t){.socket = e.socket, .fd = e.fd, .events = ZMQ_POLLIN};
        l->entries[kept++] = e;
    }
    l->entry_count = kept;
    l->changed = false;
}

/* Read from the clock anew, because the turn itself took time. Rounded up: a sleep that ends early would
 * spin until the deadline. */
static long sleep_ms(const loop_t *l, uint64_t until_us)
{
    for (int i = 0; i < l->entry_count; i++) {
        const entry_t *e = &l->entries[i];
        if (!e->dead && e->work && e->due_us < until_us) until_us = e->due_us;
    }
    uint64_t now = clock_now(l->clock), left_ms = until_us > now ? (until_us - now - 1) / 1000 + 1 : 0;
    for (int i = 0; i < l->entry_count; i++)
        if (l->entries[i].work && l->entries[i].fd >= 0 && left_ms > LOOP_SOURCE_SLEEP_MS)
            left_ms = LOOP_SOURCE_SLEEP_MS;
    return left_ms < INT_MAX ? (long)left_ms : INT_MAX;
}

void loop_turn(loop_t *l, uint64_t until_us)
{
    owner_check(&l->owner);
    l->now_us = clock_now(l->clock);
    uint64_t deadline = l->tick ? l->tick(l->tick_self, l->now_us) : CLOCK_NEVER;
    if (deadline > until_us) deadline = until_us;
    bool busy = atomic_load(&l->posts) && run_posts(l, NULL);
    busy |= run_ready(l);
    bool more = true;
    for (int n = 0; more && n < LOOP_TURN_WORK; n++) {
        more = false;
        for (int i = 0, count = l->entry_count; i < count; i++) {
            entry_t e = l->entries[i];
            if (!e.dead && e.work) more |= e.work(e.self);
        }
        busy |= more;
    }
    if (l->flush) l->flush(l->flush_self);
    /* Every arm hook runs, even after one has refused: arming is also what makes a source's descriptor wake
     * us. */
    bool may_sleep = !busy;
    for (int i = 0; !busy && i < l->entry_count; i++) {
        entry_t e = l->entries[i];
        if (!e.dead && e.work && e.arm) may_sleep &= e.arm(e.self);
    }
    long timeout_ms = may_sleep ? sleep_ms(l, deadline) : 0;
    if (l->changed) build_items(l);
    if (zmq_poll(l->items, l->item_count, timeout_ms) >= 0) return;
    /* The results are undefined after an error, and the next turn must not take old ones for new. */
    for (int i = 0; i < l->item_count; i++) l->items[i].revents = 0;
    if (errno == ETERM) atomic_store(&l->stopped, true); /* the ZeroMQ context is being closed */
}

void loop_run(loop_t *l)
{
    while (!atomic_load(&l->stopped)) loop_turn(l, CLOCK_NEVER);
    run_posts(l, ENDED);
    if (l->flush) l->flush(l->flush_self);
    owner_hand_over(&l->owner);
}
