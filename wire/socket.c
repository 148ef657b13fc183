/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/socket.h"

#include "core/failpoint.h"

#include <czmq.h>

void *socket_new(int type) { return FAILPOINT("wire.socket") ? NULL : zsys_socket(type, __FILE__, __LINE__); }

void socket_close(void **socket)
{
    if (*socket) zsys_close(*socket, __FILE__, __LINE__);
    *socket = NULL;
}
