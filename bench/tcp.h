/* SPDX-License-Identifier: Apache-2.0 */
/* bench/tcp.h: TCP on loopback, without any layer above. Sockets are close-on-exec and have Nagle's delay
 * off; -1 and errno on failure. The caller owns the descriptors; any thread. */
#ifndef BENCH_TCP_H
#define BENCH_TCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int tcp_listen(uint16_t *ret_port); /* 127.0.0.1, any free port */
int tcp_accept(int listener);
int tcp_dial(const char *host, uint16_t port);
/* All of it; blocks.  False: the connection ended. */
bool tcp_write(int fd, const void *data, size_t bytes);

#endif
