/* SPDX-License-Identifier: Apache-2.0 */
/* tests/lib/mem.h: the memory backend of transfer, a test double, with its fault knobs.
 *
 * transfer_mem_ops moves bytes between the transfers of one process, for tests: one thread, no
 * system call, and nothing arrives outside events().  With a virtual clock (the `now_us` given to
 * events) a run is deterministic.  It shares all of its behaviour but the carrying itself with
 * the UCX backend (transfer/exchange_state.h).
 *
 * A transfer with mail reports it in deadline(): drive every transfer until all deadlines lie ahead of now,
 * then move the clock to the earliest.  Knobs act on one transfer, which does not notice them. */
#ifndef TESTS_LIB_MEM_H
#define TESTS_LIB_MEM_H

#include "transfer/transfer.h"

extern const transfer_ops_t transfer_mem_ops;

/* The link of one end, each way by itself: its uplink sends one message after another, and its downlink
 * receives one after another, in the order of their first bytes.  Frames and bodies count; nothing else. */
typedef struct {
    uint64_t bytes_per_s; /* 0: no limit */
    uint64_t latency_us;  /* from its uplink to any downlink: once a message */
} mem_link_t;
/* For what it sends and receives from now on.  A new transfer has no limit and no latency. */
void mem_set_link(transfer_t *t, mem_link_t link);

/* As SIGKILL: its links break (peers see TR_PEER_GONE), what it sent and was not received yet is lost, and
 * every later call on it does nothing.  It must still be closed. */
void mem_kill(transfer_t *t);
/* As SIGSTOP and SIGCONT: while stopped, events() does nothing and what is sent to it waits. */
void mem_stop(transfer_t *t, bool stopped);
/* The next `count` DATA that it sends vanish: sent, never received. */
void mem_drop_data(transfer_t *t, uint32_t count);
/* The `nth` DATA that it sends from now on (1 = the next) arrives with the byte at `byte` (modulo
 * its length) flipped. */
void mem_corrupt_data(transfer_t *t, uint32_t nth, uint32_t byte);
/* Rendezvous: the receive of the next DATA that it sends fails, and its connection stays, as where a NIC drops
 * one operation. */
void mem_fail_receive(transfer_t *t);
/* What it sends from now on arrives at `until_us` or later, in order.  0 ends it; order is kept. */
void mem_delay(transfer_t *t, uint64_t until_us);
/* Its link is cut: what it sends and what is sent to it from now on arrives at `until_us` or later. */
void mem_cut(transfer_t *t, uint64_t until_us);
/* Rendezvous: the receives of what it sends from now on open as ever, and their bytes land at
 * `until_us` or later. 0 ends it for what comes then. */
void mem_hold(transfer_t *t, uint64_t until_us);
/* Refuses every ask it gets from now on with `err` (NOT_FOUND, LIMIT or AGAIN).  0 ends it. */
void mem_refuse(transfer_t *t, int err);

#endif
