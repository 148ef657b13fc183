/* SPDX-License-Identifier: Apache-2.0 */
/* client/descriptors.h: a reserve of file descriptors.  UCX and libzmq abort the process when they find none
 * left.
 *
 * Code that will need descriptors checks first.  A few are held back for needs that cannot be checked:
 * connections that UCX accepts from others.
 *
 *   HELD --fewer than DESCRIPTORS_LOW are left--> LENT: closed, so that others can be opened
 *   LENT --they are free again--> HELD
 *
 * A keep belongs to one thread; the shell owns its own. */
#ifndef CLIENT_DESCRIPTORS_H
#define CLIENT_DESCRIPTORS_H

#include "core/repeat.h"

#include <heddle/error.h>
#include <stdint.h>

/* Loop, connection, a transfer of two address families, a keep and a first version; what is shared with the
 * host: a socket, two polls, a directory, and a connection to a first source. */
#define DESCRIPTORS_START 62
/* A memfd, connections to sources, and what the application opens about a version.  Or a transfer's sockets,
 * opened anew. */
#define DESCRIPTORS_VERSION 16
#define DESCRIPTORS_KEPT 12
#define DESCRIPTORS_LOW 8

/* NO_MEMORY when fewer than `wanted` (at most DESCRIPTORS_START) can be opened now. */
int descriptors_check(int wanted, heddle_error_t *error);

typedef struct {
    int fds[DESCRIPTORS_KEPT], count;
    uint64_t look_us;
    repeat_t low;
} descriptors_keep_t;

/* Lends or takes back; looks ten times a second at most, and costs nothing between.  Zeroed to begin with. */
void descriptors_look(descriptors_keep_t *k, uint64_t now_us);
void descriptors_fini(descriptors_keep_t *k);

#endif
