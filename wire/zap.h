/* SPDX-License-Identifier: Apache-2.0 */
/* wire/zap.h: who may connect: answers libzmq's questions (ZAP, RFC 27) about the keys of CURVE clients.
 *
 * libzmq lets every key in while nobody answers at its fixed address: it must be there before a listener
 * is bound, and go after it.  One a process, as the address is.  A key that is allowed is the
 * connection's User-Id; every other, and every other mechanism, gets 400.  The loop's thread; nothing
 * blocks. */
#ifndef WIRE_ZAP_H
#define WIRE_ZAP_H

#include "wire/loop.h"

typedef struct zap zap_t;

/* `allow` is asked for each new connection with the client's public key.  NO_MEMORY: also no descriptor ·
 * UNAVAILABLE: there is one already. */
int zap_new(loop_t *loop, bool (*allow)(void *self, const char *public_key), void *self, zap_t **ret_zap);
/* Accepts NULL and pointers to NULL. */
void zap_destroy(zap_t **zap);

#endif
