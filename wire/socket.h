/* SPDX-License-Identifier: Apache-2.0 */
/* wire/socket.h: creates ZeroMQ sockets with an error in place of an abort. CZMQ's own constructor ends the
 * process when there is no memory or descriptor. The sockets belong to CZMQ's context, which closes at exit
 * what the application left open. The caller owns the socket; it is used by one thread. */
#ifndef WIRE_SOCKET_H
#define WIRE_SOCKET_H

/* NULL: there is no memory, no descriptor, or libzmq's limit of sockets is reached. */
void *socket_new(int type);
/* Sets *socket to NULL. Accepts a pointer to NULL. */
void socket_close(void **socket);

#endif
