/* SPDX-License-Identifier: Apache-2.0 */
/* wire/endpoint.h: lists of endpoints, inside wire/.  Any thread; nothing blocks. */
#ifndef WIRE_ENDPOINT_H
#define WIRE_ENDPOINT_H

#include <stdbool.h>

#define ENDPOINT_BYTES 256

/* Takes the first of a comma-separated list (*list NULL: at its end).  Cut to ENDPOINT_BYTES - 1
 * bytes, which is refused as an endpoint. */
bool endpoint_next(const char **list, char ret_endpoint[ENDPOINT_BYTES]);

#endif
