/* SPDX-License-Identifier: Apache-2.0 */
/* wire/zap.h: decides which CURVE clients may connect, as libzmq's authentication handler (ZAP, RFC 27).
 *
 * libzmq asks at one fixed in-process address, and accepts every key while no handler is bound there. So it
 * must be made before a listener is bound, and destroyed after it. There is one in a process, because there
 * is one address.
 *
 * An accepted key becomes the User-Id of the connection. All other keys, and all other mechanisms, get
 * status 400. The loop's thread; nothing blocks. The listening wire owns it. */
#ifndef WIRE_ZAP_H
#define WIRE_ZAP_H

#include "wire/loop.h"

typedef struct zap zap_t;

/* `allow` is called for each new connection with the client's public key. NO_MEMORY: also when no
 * descriptor is left. UNAVAILABLE: the process has a handler already. */
int zap_new(loop_t *loop, bool (*allow)(void *self, const char *public_key), void *self, zap_t **ret_zap);
/* Accepts NULL and pointers to NULL. */
void zap_destroy(zap_t **zap);

#endif
