/* SPDX-License-Identifier: Apache-2.0 */
/* client/broker_address.h: the list of brokers that a client connects to.  Without state; any thread; nothing
 * blocks. */
#ifndef CLIENT_BROKER_ADDRESS_H
#define CLIENT_BROKER_ADDRESS_H

#define BROKER_ADDRESS_ENV "HEDDLE_BROKER"
#define BROKER_ADDRESS_DEFAULT "tcp://127.0.0.1:7700"

/* The list that was given; where it is NULL or empty, that of the environment; else the default.  Borrowed.
 */
const char *broker_address(const char *given);

#endif
