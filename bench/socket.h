/* SPDX-License-Identifier: Apache-2.0 */
/* bench/socket.h: the receiving process of the references socket and socket+digest (bench/reference.h). It
 * dials PORT of 127.0.0.1. Then it receives, again and again, a header and as many bytes as that says. It
 * reads them into memory that was touched before, digests them if the header asks for it, and answers one
 * byte. */
#ifndef BENCH_SOCKET_H
#define BENCH_SOCKET_H

#include <stdint.h>

typedef struct {
    uint64_t bytes, is_digested;
} socket_head_t;

/* argv[0]: the port. */
int socket_receiver(int argc, char **argv);

#endif
