/* SPDX-License-Identifier: Apache-2.0 */
/* wire/handshake.h: turns a failed handshake into an error that says what to do; inside wire/. Without
 * state; any thread. It may read or make client.key, and so may block on the file system. */
#ifndef WIRE_HANDSHAKE_H
#define WIRE_HANDSHAKE_H

#include "wire/wire.h"

#include <stdint.h>

/* `event` and `value` come from libzmq's monitor of the dialling side, which used `keys`. broker_key "": it
 * dialled without keys. own "": client.key of the ring is read, or made where it is missing, so that the
 * error can name the key to register.
 *
 * DENIED: the broker does not accept our key (not retriable); or one side has keys and the other has none
 * (retriable, since either may be restarted). UNAVAILABLE: everything else, such as a broker with another
 * key than the expected one. */
int handshake_explain(uint16_t event, uint32_t value, const char *endpoint, const wire_keys_t *keys,
                      heddle_error_t *ret_error);

#endif
