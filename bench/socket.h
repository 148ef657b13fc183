/* SPDX-License-Identifier: Apache-2.0 */
/* bench/socket.h: the other end of the references socket and socket+digest (bench/reference.h).
 *
 * A receiver dials PORT of 127.0.0.1.  It is sent, again and again, a header and as many bytes; it
 * reads them into memory that was touched before, digests them where the header says so, and answers
 * one byte. */
#ifndef BENCH_SOCKET_H
#define BENCH_SOCKET_H

#include <stdint.h>

typedef struct {
    uint64_t bytes, is_digested;
} socket_head_t;

/* argv[0]: the port. */
int receiver_main(int argc, char **argv);

#endif
