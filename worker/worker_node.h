/* SPDX-License-Identifier: Apache-2.0 */
/* worker/worker_node.h: a worker as a node, without thread and sockets: its membership, its adapters, and the
 * checks that VERIFY asks for.
 *
 *   frame -> member (client/member.h) -> adapter (worker/adapter.h) -> versions (worker/versions.h)
 *   transfer event, tick, work        -> adapter
 *
 * The node passes each message and event to the adapters that it is for.  An adapter does what versions_step
 * decides.  The node has no states but those of its session (session_t) and of the versions (versions_t).
 *
 * Loop thread only: the public calls (worker.c) come here through shell_call.  The handle (worker.c), or a
 * test, owns a node, and the node owns its adapters and the table of slots. */
#ifndef WORKER_WORKER_NODE_H
#define WORKER_WORKER_NODE_H

#include "client/node.h"
#include "client/session.h"
#include "proto/msg.h"
#include "worker/hashing.h"
#include "worker/slots.h"
#include "worker/versions.h"

/* A worker that no broker admits says so on stderr after this: see `broker` below. */
#define WORKER_UNJOINED_US 5000000u

/* Texts are borrowed for the node's life and valid already (names, labels). */
typedef struct {
    const char *name, *host, *export_dir; /* export_dir NULL: none */
    const char *broker;                   /* named on stderr when it does not admit this worker; NULL:
                                           * nothing is written there */
    uint64_t max_rate_bytes;              /* for the broker's reports; 0: no limit */
    const char *const *adapters;
    uint32_t adapter_count;
    const char *const *labels;
    uint32_t label_count;
    const char *const *kinds; /* that it takes, ends with NULL; NULL: lora alone */
    uint32_t slots;           /* per adapter; 0: the broker's default */
    const char *group;
    uint32_t rank, ranks; /* as in heddle/worker.h */
    bool app, answers_verify, omits_staging;
    bool is_sharing;          /* versions are held in other processes of the host, and offered to them */
    bool no_relay;            /* as in JOIN */
    bool verifies_each;       /* what is held is digested here, whatever others have found */
    const char *host_share;   /* as sharing_opts_t.directory */
    bool is_guarded;          /* as in regions_opts_t */
    uint64_t join_timeout_us; /* 0: never */
    uint64_t pid, seed;
    key16_t life;
    hashing_t *hashing; /* borrowed, as in bulk_t */
    void (*wake)(void *self);
    void *wake_self; /* [any thread] makes the node tick soon */
    /* Called before a version is fetched: OK where the process has what that takes.  NULL: always OK. */
    int (*check)(heddle_error_t *error);
} worker_opts_t;

typedef struct worker_node worker_node_t;
extern const node_ops_t worker_node_ops;

/* `opts` is copied; `io` is borrowed for the node's life, and its transfer is open.  NO_MEMORY; as
 * sharing_new where opts->host_share is named. */
int worker_node_new(const worker_opts_t *opts, const node_io_t *io, worker_node_t **ret_node,
                    heddle_error_t *error);
/* Slots with readers outlive it. */
void worker_node_destroy(worker_node_t **node);
void worker_node_leave(worker_node_t *n, uint64_t now_us);
/* It leaves when other processes hold what is needed of what it holds, as the broker says. */
void worker_node_drain(worker_node_t *n, uint64_t now_us);
/* That was asked for, here or of the broker. */
bool worker_node_drains(const worker_node_t *n);

/* What the application answers about a version that it was sent. */
typedef enum { APP_STAGED, APP_ACTIVATE, APP_REJECT, APP_VERIFIED, APP_COPY_MISSING } app_answer_kind_t;
typedef struct {
    app_answer_kind_t kind;
    uint32_t adapter; /* its number, as in slots_find */
    uint64_t version;
    const heddle_error_t *why; /* REJECT: code and message are set; phase "": stage, or
                                * activate where the version is named */
    const digest_t *digest;    /* VERIFIED: of its copy; NULL: it cannot say */
} app_answer_t;
/* OK; NOT_FOUND and FENCED as in heddle/worker.h. */
int worker_node_answer(worker_node_t *n, const app_answer_t *answer, uint64_t now_us);

/* Descriptors of which one is readable when the node's tick is due; -1: none. */
#define WORKER_FDS 2
void worker_node_fds(const worker_node_t *n, int ret_fds[WORKER_FDS]);
/* The table of slots, for its functions that may be called on any thread. */
slots_t *worker_node_slots(const worker_node_t *n);
/* The reason why the broker does not admit it; code 0: no refusal since it was admitted last. */
const heddle_error_t *worker_node_refusal(const worker_node_t *n);
/* False: it copies every version.  `ret_why`: as HEARTBEAT's unheld; borrowed until the next turn. */
bool worker_node_shares(const worker_node_t *n, const char **ret_why);
msg_counts_t worker_node_counts(const worker_node_t *n);
/* For reports; borrowed until the next turn. */
const session_t *worker_node_session(const worker_node_t *n);
const versions_t *worker_node_versions(const worker_node_t *n, uint32_t adapter);

#endif
