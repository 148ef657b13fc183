/* SPDX-License-Identifier: Apache-2.0 */
/* wire/loop.h: the one loop of a process, over zmq_poll: control sockets, plain descriptors, transfer progress, a deadline.
 *
 * A turn:  1 tick(now)                       time before frames: a lapsed lease is seen before a queued COMMIT is read
 *          2 frames, descriptors, posts      at most LOOP_TURN_FRAMES of each socket
 *          3 work hooks                      transfer progress, bounded; true while there is more
 *          4 every arm hook says "asleep"    -> zmq_poll(min(next deadline, 100 ms)); else zmq_poll(0)
 *
 * Threads: loop_post and loop_stop are safe on any thread (loop_stop also in signal handlers); everything else on the thread that
 * runs the loop, or before loop_run.  Nothing but loop_run blocks. */
#ifndef WIRE_LOOP_H
#define WIRE_LOOP_H

#include "core/clock.h"
#include <stdbool.h>

#define LOOP_TURN_FRAMES 64

typedef struct loop loop_t;

int  loop_new(const clock_ops_t *clock, loop_t **ret_loop);
void loop_destroy(loop_t **loop);
uint64_t loop_now(const loop_t *loop);          /* read once a turn */
/* Level-triggered: on_ready is called each turn while fd is readable. */
int  loop_add_fd(loop_t *l, int fd, void (*on_ready)(void *self), void *self);
void loop_remove_fd(loop_t *l, int fd);
/* A source of work with its own wake-up descriptor (fd < 0: none): `work` returns true while there is more, `arm` true when
 * it is safe to sleep on fd.  Transfer plugs in here. */
int  loop_add_source(loop_t *l, int fd, bool (*work)(void *self), bool (*arm)(void *self), void *self);
/* Called first in each turn; returns the next deadline in loop time, CLOCK_NEVER for none. */
void loop_set_tick(loop_t *l, uint64_t (*tick)(void *self, uint64_t now_us), void *self);
/* Called last in each turn, before the poll: where a turn's outcome is made durable and sent. */
void loop_set_flush(loop_t *l, void (*flush)(void *self), void *self);
/* [any thread] Runs fn on the loop's thread, in the order of posting. NO_MEMORY, or CLOSED when the loop has ended. */
int  loop_post(loop_t *l, void (*fn)(void *self, void *arg), void *self, void *arg);
void loop_run(loop_t *l);
void loop_stop(loop_t *l);                      /* [any thread, signal handlers] */

#endif
