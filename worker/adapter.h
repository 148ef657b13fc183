/* SPDX-License-Identifier: Apache-2.0 */
/* worker/adapter.h: one adapter of a worker: the versions that were announced, what versions_t decides of
 * them, their slots, the intake of one of them, and the version that is served.
 *
 *   a message, a transfer event, an answer of the application, time
 *     -> adapter_* -> versions_step -> actions, which are obeyed here
 *
 * The states are those of the entries of versions_t.  The bytes of the version that is COMING are brought by
 * the intake, which is between NONE and its end exactly as long.
 *
 * Loop thread only.  The node owns adapters and what they share; an adapter owns its announcements and its
 * intake; the memory of slots is the table's. */
#ifndef WORKER_ADAPTER_H
#define WORKER_ADAPTER_H

#include "client/member.h"
#include "worker/intake.h"
#include "worker/worker_node.h"

/* How long a slot that no reader holds may take to be free, and how often the broker is asked for one. */
#define ROOM_AGAIN_US 100000u

/* What the adapters of a worker share; the node's. */
typedef struct {
    worker_opts_t opts;
    const node_io_t *io;
    client_member_t member;
    bulk_t bulk;
    bool has_unsent; /* a message that is sent once was lost: with the next heartbeat the worker
                      * joins again, which repeats all of it */
    void (*heartbeat)(void *self);
    void *self; /* sends one now */
} worker_core_t;

typedef struct adapter {
    worker_core_t *core;
    uint32_t index;
    const char *name;
    versions_t versions;
    intake_t intake;       /* of the version that is COMING */
    char barred[96];       /* of the last heartbeat: why a version waits for its former slot */
    uint64_t lost_version; /* the active version, if the broker reported it lost since it was announced */
    uint64_t room_us;      /* the broker is not asked to make room before */
    uint64_t commit_us;    /* when the last COMMIT came */
    uint64_t answered_us;  /* when the application answered last: until then it was busy with that; 0 */
} adapter_t;

void adapter_init(adapter_t *a, worker_core_t *core, uint32_t index);
/* Ends the fetch and all sharing; announcements stay for adapter_drop_sources. */
void adapter_end(adapter_t *a);
void adapter_free(adapter_t *a);

/* The session: joined, or not any more. */
void adapter_up(adapter_t *a, const msg_welcome_t *m, uint64_t now_us);
void adapter_down(adapter_t *a, uint64_t now_us);
/* ANNOUNCE, SOURCES, COMMIT, ABORT, RETIRE for it. */
void adapter_receive(adapter_t *a, const msg_t *m, uint64_t now_us);
/* STAGED, ACTIVATE, REJECT. */
int adapter_answer(adapter_t *a, const app_answer_t *answer, uint64_t now_us);
void adapter_receive_transfer(adapter_t *a, const tr_event_t *event, uint64_t now_us);
/* Returns the next deadline. */
uint64_t adapter_tick(adapter_t *a, uint64_t now_us);
/* One piece: of memory, of a digest, or of memory that is given back.  False: there is nothing to do. */
bool adapter_work(adapter_t *a, uint64_t now_us);
/* A version is coming. */
bool adapter_is_fetching(const adapter_t *a);

/* An event for the application; only event, version, decision, what, digest, err and why of `action`
 * count. */
void adapter_tell(adapter_t *a, const versions_action_t *action);

/* For JOIN: the versions held here, at most `cap`.  Returns how many. */
uint32_t adapter_join_rows(const adapter_t *a, uint64_t now_us, msg_held_t *ret_rows, uint32_t cap);
/* The same: what is fetched, and from where; the row borrows both lists.  False: nothing is. */
bool adapter_join_fetched(const adapter_t *a, uint64_t ret_sources[LIMIT_SOURCES],
                          uint64_t ret_others[LIMIT_SOURCES], msg_fetched_t *ret_row);
/* For HEARTBEAT.  `ret_spare`: where a version waits for a slot, and none is about to be free, the kept
 * versions that may make room for it, for no reader holds them. */
msg_progress_t adapter_progress(adapter_t *a, uint64_t now_us, uint64_t ret_spare[LIMIT_SLOTS]);

/* At the end: where the transfer still reads or writes a slot, drops the connections to all sources, and
 * returns true. */
bool adapter_drop_sources(adapter_t *a);

/* For tests: what the adapters of a node (worker/worker_node.h) share, and each of them. */
worker_core_t *worker_node_core(worker_node_t *n);
adapter_t *worker_node_adapter(worker_node_t *n, uint32_t index);

#endif
