/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/device.h: the network interface of the data plane: whether it may be used, and its addresses.
 * UCX's TCP does not protect memory, so that the interface is the guard.  Without state.  Any thread. */
#ifndef TRANSFER_DEVICE_H
#define TRANSFER_DEVICE_H

#include <heddle/error.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr;

typedef enum {
    DEVICE_LOOPBACK, /* loopback alone */
    DEVICE_PRIVATE,  /* and interfaces without a public address: programs there have keys */
    DEVICE_ANY       /* --insecure: the user trusts every host that can reach it */
} device_reach_t;

/* NULL device is "lo".  INSECURE_ADDRESS: others can reach it than `reach` allows.  INTERNAL, retriable,
 * where it is not there, is down, or has no carrier or address; INTERNAL where /sys does not show it: UCX
 * would not find it. */
int device_check(const char *device, device_reach_t reach, heddle_error_t *error);
/* False too where there is no such interface.  NULL is "lo". */
bool device_is_loopback(const char *device);
/* Of AF_INET or AF_INET6: of loopback, of the link, or of the ranges that are not routed on the internet
 * (RFC 1918, RFC 6598, RFC 4193). */
bool device_address_is_private(const struct sockaddr *address);

/* One address of each family: the first of the interface, which is the one that UCX takes.  Of a loopback
 * interface, one in all. */
typedef enum { DEVICE_INET, DEVICE_INET6, DEVICE_FAMILIES } device_family_t;
typedef struct {
    int family;           /* AF_INET, AF_INET6; 0: none */
    uint32_t prefix_bits; /* of its network; 0: not known */
    uint8_t bytes[16];
} device_address_t;
typedef struct {
    device_address_t of[DEVICE_FAMILIES];
} device_addresses_t;
/* Those that a program can listen on now: none while an IPv6 address is still checked for duplicates, or
 * the interface is down. */
void device_addresses(const char *device, device_addresses_t *ret_addresses);
/* True when `had` is not what to offer any more: one of them is gone from the interface, or a family came
 * that was not there.  *ret_now keeps those of `had` that are still there.  False while the interface is
 * absent, down or without a carrier: what it will have then is not known. */
bool device_moved(const char *device, const device_addresses_t *had, device_addresses_t *ret_now);

#define DEVICE_ADDRESS_TEXT INET6_ADDRSTRLEN
#define DEVICE_ADDRESSES_TEXT (DEVICE_FAMILIES * (DEVICE_ADDRESS_TEXT + 1))
/* "10.0.0.5"; "" for none. */
void device_address_text(const device_address_t *address, char ret_text[DEVICE_ADDRESS_TEXT]);
/* "10.0.0.5,fd00::5". */
void device_addresses_text(const device_addresses_t *addresses, char ret_text[DEVICE_ADDRESSES_TEXT]);
bool device_address_is_loopback(const device_address_t *address);
typedef enum { DEVICE_NO_ROUTE, DEVICE_ROUTED, DEVICE_ON_LINK } device_route_t;
/* How the kernel would send from one to the other: not at all, perhaps through a router, or within the
 * network of `from`. */
device_route_t device_route(const device_address_t *from, const device_address_t *to);
/* Equal in processes that share a network namespace of one boot of one host: there, and nowhere else, they
 * reach each other's loopback.  0: it cannot be told. */
uint64_t device_network(void);

/* The interface whose address this machine uses when it speaks to `host`, a name or an address; for one of
 * the machine's own addresses, the interface that has it.  UNAVAILABLE, retriable: the name cannot be
 * resolved, or there is no route.  INSECURE_ADDRESS: that address is public; the error lists the interfaces.
 * Blocks for the resolver. */
int device_towards(const char *host, char ret_device[IF_NAMESIZE], heddle_error_t *error);

#endif
