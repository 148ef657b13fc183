/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/ucx.h: the UCX backend's own struct.  Included by transfer/ucx*.c only.
 *
 * Active messages and nothing else: no remote keys, no listener.  Every endpoint is in PEER error mode, is made
 * explicitly by both sides (else the passive side leaks a descriptor for each), and is closed by force.  One AM id; the
 * frame is the AM header, DATA's payload the AM data.  See transfer/exchange.h for everything that is not carrying. */
#ifndef TRANSFER_UCX_H
#define TRANSFER_UCX_H

#include "transfer/exchange.h"

#include <ucp/api/ucp.h>

typedef struct { struct ucx *ucx; uint64_t ask; } receive_t;   /* an open receive of a rendezvous */

/* A peer's link.  DATA go out from a copy: UCX keeps a send for as long as a stopped receiver likes, and a region must not
 * be kept with it.  (To cut the connection instead is no way out with TCP in 1.13: both directions share it, it is closed
 * half, in the middle of a message.)  The copy stays in the cache; it costs the source some 0.05 CPU-s per GB. */
typedef struct { ucp_ep_h endpoint; uint8_t *staging; } link_t;

typedef struct ucx {
    transfer_t base;
    ucp_context_h context;
    ucp_worker_h worker;
    uint8_t address[LIMIT_ADDRESS_BYTES];  /* ucx_address.c's envelope */
    size_t address_bytes;
    int fd;
    bool rendezvous;
    uint32_t close_ms;                     /* for sends in flight, when closing */
    char device[64];
    receive_t *receives;                   /* by index of the ask */
} ucx_t;

static inline ucx_t *ucx_of(transfer_t *t) { return (ucx_t *)t; }

/* ucx_address.c: a worker address in an envelope: "UCX" version major minor, XXH64.  UCX asserts on addresses that it did
 * not make, so those of others (garbage, another release, another backend) must not reach it. */
ucs_status_t ucx_address_make(ucx_t *u);
/* The worker address inside; NULL when it is none of this release's. */
const ucp_address_t *ucx_address_open(bytes_t envelope);

/* ucx_link.c */
extern const carrier_ops_t ucx_carrier;
ucs_status_t ucx_listen(ucx_t *u);         /* messages come to the exchange from now on */

#endif
