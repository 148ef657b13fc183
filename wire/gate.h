/* SPDX-License-Identifier: Apache-2.0 */
/* wire/gate.h: a listener that runs out of descriptors says so, takes nobody in for a while, and sleeps.
 *
 *   state   event                                          -> next
 *   OPEN    a connection found no descriptor               -> SHUT   said; the queue has the reserve
 *   SHUT    each GATE_LOOK_US: GATE_FREE can be had again  -> OPEN   said
 *
 * libzmq accepts on its own thread; at the limit it tries again at once, for ever, as long as somebody
 * waits in the queue.  So the limit that it meets is a soft one, below the hard one by more than the queue
 * holds: when it is met, the kernel drops new connections before they come into the queue (a socket filter,
 * or a least time to live that no packet has; who dials tries again), and the limit is raised for those who
 * are in it.  Logged as core/repeat.h has it.
 *
 * TCP alone: for ipc there is no such filter, and only the word is said.
 * Loop thread.  Nothing blocks. */
#ifndef WIRE_GATE_H
#define WIRE_GATE_H

#include "wire/loop.h"

#define GATE_FREE 32
#define GATE_LOOK_US 500000ull

typedef struct gate gate_t;

/* How long the queue of a listener may be, under the limit of this process: at most `wanted`. */
int  gate_backlog(int wanted);
/* Before the socket is bound; `socket` is borrowed.  NO_MEMORY. */
int  gate_new(loop_t *loop, void *socket, int backlog, gate_t **ret_gate);
/* Before the socket is closed.  Accepts NULL and pointers to NULL. */
void gate_destroy(gate_t **gate);

#endif
