/* SPDX-License-Identifier: Apache-2.0 */
/* wire/endpoint.h: reads lists of endpoints ("tcp://a:1,ipc:///b"); used inside wire/ only. A function has
 * no state: any thread may call it, and it never blocks. */
#ifndef WIRE_ENDPOINT_H
#define WIRE_ENDPOINT_H

#include <stdbool.h>

/* libzmq takes at most 256 bytes with the NUL for an endpoint. */
#define ENDPOINT_BYTES 256

/* Takes the next endpoint of a comma-separated list and moves *list past it; NULL marks the end. An
 * endpoint that does not fit is cut to ENDPOINT_BYTES - 1 bytes, and wire_check_endpoint refuses that
 * length, so that a cut address is never used. */
bool endpoint_next(const char **list, char ret_endpoint[ENDPOINT_BYTES]);

#endif
