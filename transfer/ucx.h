/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/ucx.h: the UCX backend: its planes, links and addresses.  Included by ucx.c and ucx_address.c
 * only.  Loop thread only; the transfer owns all of it.
 *
 * Active messages and nothing else: no remote keys, no listener.  One AM id; the frame is the AM header,
 * DATA's body the AM data.  See transfer/exchange_state.h for everything that is not carrying.
 *
 *   plane: one for each address family of the interface, for UCX gives an interface one address
 *     in  <- frames of peers                 address() names these workers
 *     out -> an endpoint for each peer       in PEER error mode, closed by force
 *
 * A peer is reached over a family that both have and the kernel has a route for: the one over which it came
 * to us, the other one after a try without an answer, else one within our own network, else IPv4.
 *
 * When an address goes from the interface, its plane is retired, another one is opened, and what is shared
 * and mapped stays.
 *
 * There are two workers, so that no TCP connection carries both directions.  UCX 1.13 closes such a
 * connection by half.  The other end does not notice, and the rest of a message that was cut is read as the
 * next message.  A process aborts when it answers on a connection whose other end has just died (tcp_ep.c).
 * With one direction a close is complete.  Frames are sent at once or not at all: a send that UCX has to keep
 * makes it connect back by itself.
 *
 * With rendezvous, UCX connects back anyway: one worker is both, a link is never cut while it
 * sends, and DATA go out from a copy, so that a stopped receiver keeps no region. */
#ifndef TRANSFER_UCX_H
#define TRANSFER_UCX_H

#include "transfer/device.h"
#include "transfer/exchange.h"

#include <ucp/api/ucp.h>

typedef struct {
    struct ucx *ucx;
    uint64_t ask;
} receive_t; /* an open receive of a rendezvous */

/* On the heap: UCX's handlers keep a pointer to it. */
typedef struct plane {
    struct plane *next; /* of those that were retired */
    struct ucx *ucx;
    device_address_t at;
    ucp_worker_h in, out; /* the same with rendezvous */
} plane_t;

/* What an address offers: one worker address for each family. */
typedef struct {
    struct {
        device_address_t at;
        const ucp_address_t *worker;
    } of[DEVICE_FAMILIES];
} offers_t;

/* ucx_address.c's envelope. */
typedef struct {
    uint8_t data[LIMIT_ADDRESS_BYTES];
    size_t bytes;
} envelope_t;

#define UCX_WAYS 64u /* peers whose family is remembered; the oldest goes first */
typedef struct {
    uint64_t token;
    device_family_t family;
} way_t;

/* Of a peer. */
typedef struct link {
    ucp_ep_h endpoint;
    const plane_t *plane;
    uint8_t *staging; /* of a rendezvous */
} link_t;

typedef struct ucx {
    transfer_t base;
    ucp_config_t *config; /* of all contexts: what the user had set when this was opened, and SETTINGS */
    int config_family;    /* device_family_t that it names alone; -1: none yet */
    ucp_context_h contexts[DEVICE_FAMILIES]; /* NULL until a plane of the family was wanted; kept since */
    device_family_t registrar;               /* the context that regions are registered with */
    plane_t *planes[DEVICE_FAMILIES];        /* NULL: the interface has no such address */
    plane_t *retired;                        /* their address went; until their links have ended */
    way_t ways[UCX_WAYS];
    uint32_t way_next;
    envelope_t address;
    int fd; /* an epoll of both workers' */
    bool rendezvous;
    uint32_t close_ms; /* for sends in flight, when closing */
    char device[64];
    char families[32];   /* UCX_TCP_AF_PRIO as it was when this was opened; "": not set */
    receive_t *receives; /* by index of the ask */
} ucx_t;

static inline ucx_t *ucx_of(transfer_t *t) { return (ucx_t *)t; }

/* ucx_address.c: worker addresses in an envelope: "UCX" version major minor, XXH64, the offers.  UCX asserts
 * on addresses that it did not make, so those of others (garbage, another release, another backend) must not
 * reach it. */
ucs_status_t ucx_address_make(plane_t *const planes[DEVICE_FAMILIES], envelope_t *ret);
/* False when it is none of this release's. */
bool ucx_address_open(bytes_t envelope, offers_t *ret_offers);
/* Why no plane of ours can connect to what it offers; "" where one may. */
void ucx_address_explain(const ucx_t *u, bytes_t envelope, char *ret_text, size_t size);

void ucx_addresses(const ucx_t *u, device_addresses_t *ret_addresses);

#endif
