/* SPDX-License-Identifier: Apache-2.0 */
/* bench/tap.h: stands between a broker and its clients, passes every byte on, and counts ZMTP's messages.
 *
 * Counting needs no key: frames are told apart by their headers alone.  Commands of ZMTP (handshakes)
 * are not counted as messages, their bytes are. */
#ifndef BENCH_TAP_H
#define BENCH_TAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One direction of one connection.  Zeroed: nothing was seen yet. */
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
