/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/socket.h"

#include "core/failpoint.h"

#include <czmq.h>

/* CZMQ prints this name when a process exits with an open socket; __FILE__ would show a path of the build
 * machine. */
static const char HERE[] = "heddle/wire/socket.c";

void *socket_new(int type) { return FAILPOINT("wire.socket") ? NULL : zsys_socket(type, HERE, __LINE__); }

void socket_close(void **socket)
{
    if (*socket) zsys_close(*socket, HERE, __LINE__);
    *socket = NULL;
}
