/* SPDX-License-Identifier: Apache-2.0 */
/* wire/handshake.h: what a handshake that failed means, in words; inside wire/.  Any thread; may make
 * client.key. */
#ifndef WIRE_HANDSHAKE_H
#define WIRE_HANDSHAKE_H

#include "wire/wire.h"

#include <stdint.h>

/* An event of libzmq's monitor and its value, at a dialler with `keys` (broker_key "": it dialled plain; own
 * "": client.key of the ring is read, and made where it is missing, so that the error names it).
 * DENIED: our key is not known there (not retriable), plain against keys and the reverse (retriable: either
 * side may be restarted) · UNAVAILABLE: the rest, such as another key of the broker. */
int handshake_explain(uint16_t event, uint32_t value, const char *endpoint, const wire_keys_t *keys,
                      heddle_error_t *ret_error);

#endif
