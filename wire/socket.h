/* SPDX-License-Identifier: Apache-2.0 */
/* wire/socket.h: a ZeroMQ socket that may fail to be made: CZMQ's own constructor aborts the process then.
 * Of CZMQ's context, which closes at exit what the application left open.  One thread a socket. */
#ifndef WIRE_SOCKET_H
#define WIRE_SOCKET_H

/* NULL: no memory, descriptor or place for one more. */
void *socket_new(int type);
/* Accepts NULL, and leaves it. */
void socket_close(void **socket);

#endif
