/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/ucx.h: the UCX backend's own struct.  Included by transfer/ucx*.c only.
 *
 * Active messages and nothing else: no remote keys, no listener.  One AM id; the frame is the AM
 * header, DATA's payload the AM data.  See transfer/exchange.h for everything that is not
 * carrying.
 *
 *   in  <- frames of all peers          address() names this worker
 *   out -> one endpoint for each peer   in PEER error mode, closed by force
 *
 * Two workers, so that no TCP connection carries both directions.  In UCX 1.13 one that does is
 * closed half: the other end is not told, a message cut in the middle leaves its rest to be read
 * as the next one, and a process aborts that answers on a connection whose maker has just died
 * (tcp_ep.c, seen and read).  One way, a close is a close.  Frames are sent at once or not at
 * all: whatever UCX has to keep makes it connect back by itself.
 *
 * Between processes of one host that may read each other's memory (transfer/near.h), DATA do not travel: LENT
 * says where the bytes lie, the receiver copies them into their place, and TAKEN ends the send.
 *
 * With rendezvous, UCX connects back anyway: one worker is both, a link is never cut while it
 * sends, and DATA go out from a copy, so that a stopped receiver keeps no region. */
#ifndef TRANSFER_UCX_H
#define TRANSFER_UCX_H

#include "transfer/exchange.h"
#include "transfer/near.h"

#include <ucp/api/ucp.h>

typedef struct { struct ucx *ucx; uint64_t ask; } receive_t;   /* an open receive of a rendezvous */

/* Of a peer. */
typedef struct link {
    ucp_ep_h endpoint;
    uint8_t *staging;                      /* of a rendezvous */
    peer_t *peer;
    /* As source: what was lent and not taken yet. */
    send_t *lent[EXCHANGE_DATA_SENDS];
    frame_t lending;                       /* LENT that grows until the turn ends */
    uint32_t unsaid;                       /* its slots */
    uint32_t pin;                          /* on our board; 0: nothing is lent */
    /* As receiver. */
    near_view_t *view;                     /* of the peer's memory; NULL: it cannot be read */
    bool near_due;                         /* NEAR is to be said */
    uint32_t taken_due;                    /* slots that TAKEN is to be said for */
    bool due;                              /* on the list below */
    struct link *due_prev, *due_next;
} link_t;

typedef struct ucx {
    transfer_t base;
    ucp_context_h context;
    ucp_worker_h in, out;
    uint8_t address[LIMIT_ADDRESS_BYTES];  /* ucx_address.c's envelope */
    size_t address_bytes;
    int fd;                                /* an epoll of both workers' */
    bool rendezvous;
    crew_t *crew;                          /* helps to copy what was lent to us; NULL: nobody does */
    bool has_crew;                         /* was asked for, once */
    near_board_t board;                    /* open: memory is lent and read, where it may be */
    link_t *due;                           /* links with NEAR, TAKEN or LENT to be said */
    uint32_t close_ms;                     /* for sends in flight, when closing */
    char device[64];
    receive_t *receives;                   /* by index of the ask */
} ucx_t;

static inline ucx_t *ucx_of(transfer_t *t) { return (ucx_t *)t; }

/* ucx_address.c: a worker address in an envelope: "UCX" version major minor, XXH64, and what it takes to
 * read our memory.  UCX asserts on addresses that it did not make, so those of others (garbage, another
 * release, another backend) must not reach it. */
ucs_status_t ucx_address_make(ucx_t *u);
/* The worker address inside; NULL when it is none of this release's.  near: all zero where it has none. */
const ucp_address_t *ucx_address_open(bytes_t envelope, near_id_t *ret_near);

/* ucx_link.c */
extern const carrier_ops_t ucx_eager_carrier, ucx_rendezvous_carrier;
/* Before sleeping: says what gathered since the last turn. */
bool ucx_flush(ucx_t *u);
ucs_status_t ucx_listen(ucx_t *u);         /* messages come to the exchange from now on */

#endif
