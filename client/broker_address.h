/* SPDX-License-Identifier: Apache-2.0 */
/* client/broker_address.h: the list of brokers that a client connects to, and why none of them answered.
 * Without state; any thread.  Only broker_address_unreached blocks. */
#ifndef CLIENT_BROKER_ADDRESS_H
#define CLIENT_BROKER_ADDRESS_H

#include "proto/msg.h"
#include "wire/wire.h"
#include <heddle/types.h>
#include <stdbool.h>

#define BROKER_ADDRESS_ENV "HEDDLE_BROKER"
#define BROKER_ADDRESS_DEFAULT "tcp://127.0.0.1:7700"

/* The list that was given; where it is NULL or empty, that of the environment; else the default.  Borrowed.
 */
const char *broker_address(const char *given);
/* Gives the wire the brokers that HELLO_OK or HEARTBEAT_OK has: it tries them after its list.  The wire's
 * loop thread. */
void broker_address_told(wire_t *w, const msg_t *m);
/* Fills `found` and the hint of an error about brokers that did not answer, which tells silence from no
 * connection and from a host without an address, because the remedies differ.  `untried`: of a list, what was
 * not tried; NULL: all was.  `hint`: where there was no connection.  Asks the resolver, for a second at
 * most. */
void broker_address_unreached(const char *endpoints, const char *untried, bool is_reached, const char *hint,
                              heddle_error_t *error);

#endif
