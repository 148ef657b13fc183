/* SPDX-License-Identifier: Apache-2.0 */
/* bench/tap.h: a process between a broker and its clients that passes every byte on and counts ZMTP
 * messages. Counting needs no key, because the headers of frames are not encrypted. Commands of ZMTP
 * (handshakes) do not count as messages, but their bytes count. The cluster owns the process; one thread. */
#ifndef BENCH_TAP_H
#define BENCH_TAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One direction of one connection.  Zeroed: at its beginning. */
typedef struct {
    uint64_t seen;   /* bytes of the greeting so far */
    uint64_t left;   /* of the frame's body */
    uint8_t head[9]; /* flags, length */
    uint8_t head_bytes;
    uint64_t messages, bytes;
} tap_count_t;

/* PURE: takes the next bytes of a connection, in any pieces. */
void tap_count(tap_count_t *c, const void *data, size_t bytes);

/* The process: argv[0] is the broker's HOST:PORT.  Prints its own port; then, for each line that it
 * reads, the messages to the broker, those from it, and the bytes both ways, since the line before.
 * Ends with stdin. */
int tap_main(int argc, char **argv);

#endif
