/* SPDX-License-Identifier: Apache-2.0 */
/* wire/loop.h: the event loop of a process, over zmq_poll: control sockets, plain descriptors, transfer
 * progress, one deadline.
 *
 *  A turn:  1 tick(now)       time before frames: a lapsed lease is seen before a queued COMMIT is read
 *           2 posts           those that were there at the start, in order;
 *             frames          at most LOOP_TURN_FRAMES of each socket; readable descriptors
 *           3 work hooks      transfer progress, bounded; true while there is more
 *           4 flush           what the turn decided is made durable and sent
 *           5 zmq_poll        sleeps only after a turn in which nothing happened (so that tick has seen all
 *                             of it) and when every arm hook agrees; else it polls and goes on
 *
 * A sleep ends at the tick's deadline, and at the latest after LOOP_SOURCE_SLEEP_MS if a source has a
 * descriptor.
 *
 * Threads: loop_post, loop_wake and loop_stop are safe on any thread (loop_wake and loop_stop in signal
 * handlers too). Everything else is called on the thread that owns the loop. That is the thread that made
 * it, until loop_hand_over; then the first one that calls, usually by loop_run. When loop_run has ended,
 * the thread that joined it owns the loop. Nothing but loop_run and loop_turn blocks. The caller owns the
 * loop. */
#ifndef WIRE_LOOP_H
#define WIRE_LOOP_H

#include "core/clock.h"
#include "core/owner.h"
#include <semaphore.h>
#include <stdbool.h>

/* Bounds one socket's share of a turn, so that a flood on one cannot starve the others or the tick. */
#define LOOP_TURN_FRAMES 64
/* Rounds of work hooks between two polls: a poll costs as much as the copy of a small chunk. */
#define LOOP_TURN_WORK 8
/* UCX misses a wake-up now and then, so a sleep with a UCX descriptor is never longer. */
#define LOOP_SOURCE_SLEEP_MS 100

typedef struct loop loop_t;

/* NO_MEMORY, also when the process has no descriptor left.  `clock` is borrowed for the loop's life. */
int loop_new(const clock_ops_t *clock, loop_t **ret_loop);
/* After everything that was added is gone and the last loop_run or loop_turn returned.  Posts that
 * never ran are dropped.  Accepts NULL and pointers to NULL. */
void loop_destroy(loop_t **loop);
uint64_t loop_now(const loop_t *l); /* read once a turn */
/* The owner of the loop, also for everything that is used on the loop's thread only (core/owner.h). */
const owner_t *loop_owner(const loop_t *l);
/* The next thread that calls becomes the owner. Call this before that thread is created or allowed to go
 * on. */
void loop_hand_over(loop_t *l);

/* Level-triggered: on_ready is called each turn while fd is readable.  The fd stays the caller's.
 * NO_MEMORY. */
int loop_add_fd(loop_t *l, int fd, void (*on_ready)(void *self), void *self);
void loop_remove_fd(loop_t *l, int fd);
/* A source of work with its own wake-up descriptor (fd < 0: none): `work` is called each turn and
 * returns true while there is more, `arm` true when it is safe to sleep on fd (NULL: always).  The
 * fd is polled, never read.  NO_MEMORY. */
int loop_add_source(loop_t *l, int fd, bool (*work)(void *self), bool (*arm)(void *self), void *self);
void loop_remove_source(loop_t *l, void *self);
/* No sleep goes past `due_us` (loop time; CLOCK_NEVER: no deadline) while it is set, so that the source's
 * work hook runs in time. */
void loop_set_due(loop_t *l, void *self, uint64_t due_us);
/* Called first in each turn; returns the next deadline in loop time, CLOCK_NEVER for none. */
void loop_set_tick(loop_t *l, uint64_t (*tick)(void *self, uint64_t now_us), void *self);
/* Called last in each turn, before the poll. */
void loop_set_flush(loop_t *l, void (*flush)(void *self), void *self);

/* One call to be made on the loop's thread. The poster provides the memory, so that posting cannot fail for
 * want of it. The loop owns it from loop_post until fn begins. */
typedef struct loop_post {
    void (*fn)(void *self, void *arg, uint64_t now_us);
    void *self, *arg;
    sem_t *done;            /* raised after fn, for a poster that waits; NULL: none */
    struct loop_post *next; /* the loop's */
} loop_post_t;
/* [any thread] Runs post->fn on the loop's thread, in the order of posting.  OK: fn will run, before
 * loop_run returns at the latest.  CLOSED when loop_run has ended. */
int loop_post(loop_t *l, loop_post_t *post);
void loop_wake(loop_t *l); /* [any thread, signal handlers] ends a sleep, or the next */
void loop_run(loop_t *l);  /* until loop_stop; then the loop is handed over */
void loop_stop(loop_t *l); /* [any thread, signal handlers] for good */
/* For a caller that is its own loop: one turn, which sleeps until `until_us` (loop time) at the latest. */
void loop_turn(loop_t *l, uint64_t until_us);

/* For wire.c alone: a ZeroMQ socket instead of a descriptor. */
int loop_add_socket(loop_t *l, void *socket, void (*on_ready)(void *self), void *self);
void loop_remove_socket(loop_t *l, void *socket);

#endif
