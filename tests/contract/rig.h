/* SPDX-License-Identifier: Apache-2.0 */
/* Some transfers of one backend on one thread, their events kept, and time: virtual for mem, real for ucx.
 * HEDDLE_CONTRACT names the backend: mem, mem-rendezvous, ucx, ucx-rendezvous. */
#ifndef TESTS_CONTRACT_RIG_H
#define TESTS_CONTRACT_RIG_H

#include "transfer/transfer.h"

#define RIG_NODES 6
#define RIG_EVENTS 8192

typedef struct {
    transfer_t *t;
    peer_ref_t ref; /* token and address, as others name it */
    region_t *region;
    bool still; /* not driven: as good as stopped */
    int count;
    uint64_t *leaves; /* of the region, for rig_ask; NULL: not wanted */
    tr_event_t events[RIG_EVENTS];
} node_t;

typedef struct {
    const transfer_ops_t *ops;
    bool is_mem;
    uint64_t now_us;
    clock_ops_t clock; /* shows it */
    int count;
    node_t nodes[RIG_NODES];
} rig_t;

/* Set in a forked child: what fails there ends the child and does not talk to the test runner. */
extern bool rig_in_child;
#define RIG_CHECK(condition, ...)                                                                            \
    do {                                                                                                     \
        if (!(condition)) rig_fail(__FILE__, __LINE__, __VA_ARGS__);                                         \
    } while (0)
void rig_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

bool rig_is_rendezvous(void);
/* Nodes with tokens 101, 102, ... and a mapped region of `region_bytes` each; node 0's is filled
 * by rig_byte. */
rig_t *rig_open(int nodes, size_t region_bytes, const transfer_opts_t *opts);
void rig_close(rig_t *r);
void rig_close_node(rig_t *r, int node);
uint8_t rig_byte(uint64_t offset);
/* One turn of every node that is not still; when nothing happened, time passes. */
void rig_turn(rig_t *r);
/* Turns until `done` or `limit_us` have passed; true when done.  Limits for real time are
 * generous, never waited out. */
bool rig_until(rig_t *r, bool (*done)(rig_t *r, int a, int b), int a, int b, uint64_t limit_us);
/* Turns for so long. */
void rig_pass(rig_t *r, uint64_t us);
/* Nobody takes a turn for so long. */
void rig_stand_still(rig_t *r, uint64_t us);
int rig_events(const rig_t *r, int node, tr_kind_t kind);
/* The event that ended an ask; NULL: it has not. */
const tr_event_t *rig_ended(const rig_t *r, int node, uint64_t ask);
/* ask() of node `by` from node `from` at the same offset; asserts that it is taken. */
uint64_t rig_ask(rig_t *r, int by, int from, share_key_t key, uint64_t offset, uint32_t bytes);
void rig_share_all(rig_t *r, int node, share_key_t key);
/* Shares node 0's region and moves a byte of it to node 1: they are connected then. */
void rig_connect(rig_t *r, share_key_t key);
tr_counters_t rig_counters(const rig_t *r, int node);
/* True when node's bytes there are node 0's pattern, or all `value`. */
bool rig_is_pattern(const rig_t *r, int node, uint64_t offset, uint64_t bytes);
bool rig_is_all(const rig_t *r, int node, uint8_t value, uint64_t offset, uint64_t bytes);

/* Conditions for rig_until. */
bool rig_has_events(rig_t *r, int node, int count); /* of any kind but BEAT */
bool rig_has_arrived(rig_t *r, int node, int count);
bool rig_has_gone(rig_t *r, int node, int count);
bool rig_was_asked(rig_t *r, int node, int count);
/* The source's counters move when its sends complete, which may be after the arrival. */
bool rig_has_sent(rig_t *r, int node, int count);

#endif
