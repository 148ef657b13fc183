/* SPDX-License-Identifier: Apache-2.0 */
/* wire/accept_limit.h: keeps a listener usable when the process runs out of descriptors.
 *
 *    state   event                                            -> next
 *    OPEN    an accept failed for want of a descriptor        -> SHUT   logged; the queue gets the reserve
 *    SHUT    each ACCEPT_LOOK_US: ACCEPT_FREE are free again  -> OPEN   logged
 *
 * libzmq accepts connections on its own I/O thread. When accept() fails for want of a descriptor, it tries
 * again at once, and so spins at full load as long as one connection waits in the queue.
 *
 * Therefore the process runs below its hard limit of descriptors, by more than the queue can hold. When
 * that soft limit is met, the kernel is made to drop new connections before they enter the queue (by a
 * socket filter, or by a minimum TTL that no packet has; the dialling side retries). Then the limit is
 * raised, and the connections in the queue are accepted.
 *
 * TCP only: ipc sockets have no such filter, so for them the limit is logged and nothing else happens.
 * Repeated events are logged as core/repeat.h describes. Everything runs on the loop's thread; nothing
 * blocks. The listener owns it. */
#ifndef WIRE_ACCEPT_LIMIT_H
#define WIRE_ACCEPT_LIMIT_H

#include "wire/loop.h"

/* Descriptors that must be free before new connections are accepted again, and how often that is looked at.
 * Fewer would let the state flip with every connection. */
#define ACCEPT_FREE 32
#define ACCEPT_LOOK_US 500000ull

typedef struct accept_limit accept_limit_t;

/* The length for a listener's queue: `wanted`, or less where the limit of this process is low, so that the
 * reserve for the queue does not use up the limit. */
int accept_limit_backlog(int wanted);
/* Call it before the socket is bound: the number of the listening descriptor comes as an event of the bind.
 * `socket` is borrowed until accept_limit_destroy. NO_MEMORY. */
int accept_limit_new(loop_t *loop, void *socket, int backlog, accept_limit_t **ret_limit);
/* Call it before the socket is closed. Accepts NULL and pointers to NULL. */
void accept_limit_destroy(accept_limit_t **limit);

#endif
