/* SPDX-License-Identifier: Apache-2.0 */
/* client/data_device.h: the network interface of a client's data plane.
 *
 *   named                         that one
 *   the broker is on loopback     lo
 *   it is elsewhere               the interface that reaches it, if all its addresses are private; else none,
 *                                 and the client is refused
 *
 * Any thread; waits for the resolver where the broker is named, and not by address. */
#ifndef CLIENT_DATA_DEVICE_H
#define CLIENT_DATA_DEVICE_H

#include "transfer/device.h"

#define DATA_DEVICE_BYTES 64

/* `named`: NULL or "", none.  Codes of device_check and device_towards. */
int data_device_choose(const char *named, const char *broker, device_reach_t reach,
                       char ret_device[DATA_DEVICE_BYTES], heddle_error_t *error);

#endif
