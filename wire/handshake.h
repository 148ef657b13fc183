/* SPDX-License-Identifier: Apache-2.0 */
/* wire/handshake.h: what a handshake that failed means, in words; inside wire/.  Any thread; nothing
 * blocks. */
#ifndef WIRE_HANDSHAKE_H
#define WIRE_HANDSHAKE_H

#include "wire/keys.h"

#include <stdint.h>

/* An event of libzmq's monitor and its value, at a dialler with `own` and `broker_key` ("": it dialled
 * plain). DENIED: our key is not known there (not retriable), plain against keys and the reverse
 * (retriable: either side may be restarted) · UNAVAILABLE: the rest, such as another key of the broker. */
int handshake_explain(uint16_t event, uint32_t value, const char *endpoint, const key_pair_t *own,
                      const char *broker_key, heddle_error_t *ret_error);

#endif
