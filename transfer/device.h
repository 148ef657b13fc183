/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/device.h: may the data plane use this network interface?  UCX's TCP does not protect memory, so
 * the interface is the guard.  Any thread. */
#ifndef TRANSFER_DEVICE_H
#define TRANSFER_DEVICE_H

#include <heddle/error.h>
#include <stdbool.h>

struct sockaddr;

typedef enum {
    DEVICE_LOOPBACK,   /* loopback alone */
    DEVICE_PRIVATE,    /* and interfaces without a public address: programs of the network prove themselves */
    DEVICE_ANY         /* somebody said that he trusts who can reach it */
} device_reach_t;

/* NULL device is "lo".  INSECURE_ADDRESS: others can reach it than `reach` allows.  INTERNAL, retriable,
 * where it is not there, is down, or has no carrier or address; INTERNAL where /sys does not show it: UCX
 * would not find it. */
int device_check(const char *device, device_reach_t reach, heddle_error_t *error);
/* False too where there is no such interface.  NULL is "lo". */
bool device_is_loopback(const char *device);
/* Of AF_INET or AF_INET6: of loopback, of the link, or of the ranges that nobody routes to the world
 * (RFC 1918, RFC 6598, RFC 4193). */
bool device_address_is_private(const struct sockaddr *address);

#endif
