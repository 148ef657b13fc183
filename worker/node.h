/* SPDX-License-Identifier: Apache-2.0 */
/* worker/node.h: a worker without thread and sockets: session, and for each adapter sync, one pull,
 * and slots, wired together.  It decides nothing: sync does.
 *
 *   frame -> session (node_session.c) -> sync -> actions: reserve, pull, send, flip, drop ...
 *   transfer -> pull -> sync                                        messages out: node_say.c
 *
 * One thread.  worker_node_* below node_ops are called on it too (through shell_call). */
#ifndef WORKER_NODE_H
#define WORKER_NODE_H

#include "client/node.h"
#include "client/session.h"
#include "core/repeat.h"
#include "worker/check.h"
#include "worker/early.h"
#include "worker/pull.h"
#include "worker/slots.h"
#include "worker/sync.h"
#include "worker/unreached.h"

/* A worker that no broker admits says so on stderr after this: see `broker` below. */
#define WORKER_UNJOINED_US 5000000u
/* How long a slot that no reader holds may take to be free, and how often the broker is asked for one. */
#define ROOM_AGAIN_US 100000u

/* Texts are borrowed for the node's life and valid already (names, labels). */
typedef struct {
    const char *name, *host, *export_dir;        /* export_dir NULL: none */
    const char *broker;                          /* named on stderr when it does not admit this worker; NULL:
                                                  * nothing is written there */
    uint64_t max_rate_bytes;                     /* told to the broker; 0: no limit */
    const char *const *adapters; uint32_t adapter_count;
    const char *const *labels; uint32_t label_count;
    uint32_t slots;                              /* per adapter; 0: the broker's default */
    bool app, answers_verify, omits_staging;
    uint64_t join_timeout_us;                    /* 0: never */
    uint64_t pid, seed;
    key16_t life;
    void (*wake)(void *self); void *wake_self;   /* [any thread] makes the node tick soon */
    /* Asked before a version is fetched: has the process what that takes?  NULL: always. */
    int  (*check)(heddle_error_t *error);
} worker_opts_t;

typedef struct {
    uint32_t index;
    const char *name;
    sync_t sync;
    announced_t *announced;                      /* versions that sync knows and were announced here */
    pull_t *pull;                                /* of the version that is FETCHING */
    early_t early;                               /* what comes ahead of its announcement */
    sync_action_t making;                        /* RESERVE whose memory is being made; version 0: none */
    check_t equal;                               /* of the slot whose region it adopts; version 0: none */
    struct { share_key_t key; bool shared; } shares[LIMIT_SLOTS];
    unreached_t unreached;                       /* of `pull` */
    bool has_surplus;                            /* free slots may have memory to give back */
    uint64_t room_us;                            /* the broker is not asked to make room before */
    uint64_t commit_us;                          /* when the last COMMIT came */
    /* to RESERVE or FETCH, fed when the step's actions are done */
    bool has_answer;
    sync_event_t answer;
    heddle_error_t error;                        /* of `answer`, or of the last ABORT */
} adapter_t;

typedef struct worker_node {
    worker_opts_t opts;
    node_io_t io;
    session_t session;
    slots_t *slots;
    checks_t checks;
    pull_counters_t counters;
    buf_t frame;                                 /* being sent */
    uint32_t turn;                               /* whose piece of work is next */
    bool up;
    bool has_unsaid;                             /* what is said once could not be: with the next heartbeat it
                                                  * joins again, which tells all of it anew */
    repeat_t bad_frames;                         /* dropped */
    repeat_t refusals;                           /* by code, since it was admitted last */
    repeat_t unjoined;                           /* written on stderr: no broker admits this worker */
    uint64_t unjoined_us;                        /* when that is looked at; 0: the next tick counts from now;
                                                  * CLOCK_NEVER: admitted, or not wanted */
    uint32_t unjoined_reason;                    /* written last, since it was admitted last; 0: none */
    /* of the first WELCOME: a registry of another cluster is refused */
    char cluster[HEDDLE_NAME_MAX + 1];
    /* when the name has been alive for too long; CLOCK_NEVER */
    uint64_t join_end_us;
    heddle_error_t join_error;                   /* the last refusal */
    uint32_t adapter_count;
    adapter_t adapters[];
} worker_node_t;

extern const node_ops_t worker_node_ops;

/* `io` is copied; its transfer is open. NO_MEMORY. */
int  worker_node_new(const worker_opts_t *opts, const node_io_t *io, worker_node_t **ret_node);
/* Slots with readers outlive it. */
void worker_node_destroy(worker_node_t **node);

/* What the application says; NOT_FOUND and FENCED as in heddle/worker.h. */
int  worker_node_staged(worker_node_t *n, uint32_t adapter, uint64_t version, uint64_t now_us);
int  worker_node_activate(worker_node_t *n, uint32_t adapter, uint64_t version, uint64_t now_us);
int  worker_node_reject(worker_node_t *n, uint32_t adapter, uint64_t version, const char *reason,
                        uint64_t now_us);
/* `why`: code and message are set; phase "": stage, or activate where the version is named. */
int  worker_node_reject_error(worker_node_t *n, uint32_t adapter, uint64_t version,
                              const heddle_error_t *why, uint64_t now_us);
int  worker_node_verified(worker_node_t *n, uint32_t adapter, uint64_t version,
                          const digest_t *digest, uint64_t now_us);
/* It should have a copy of its own, and has none. */
int  worker_node_copy_missing(worker_node_t *n, uint32_t adapter, uint64_t version, uint64_t now_us);
void worker_node_leave(worker_node_t *n, uint64_t now_us);

/* Between node.c and node_session.c. */
int  worker_node_check(const worker_node_t *n, heddle_error_t *error);
void worker_node_tell(worker_node_t *n, heddle_event_t *event);
void worker_node_tell_error(worker_node_t *n, int type, const heddle_error_t *error, int retriable);
/* REFUSED, for n->join_error: at once, then once a minute while the same is repeated. */
void worker_node_tell_refusal(worker_node_t *n, int retriable, uint64_t now_us);
/* Feeds sync and does what it says. */
void worker_node_feed(worker_node_t *n, adapter_t *a, const sync_event_t *event, uint64_t now_us);
/* Frees slots that were dropped and that nobody uses any more. */
void worker_node_drain(worker_node_t *n, adapter_t *a, uint64_t now_us);
/* Steps the session and does what it says; `m` only for SE_FRAME. */
void worker_node_step(worker_node_t *n, session_event_kind_t kind, const msg_t *m, uint64_t now_us);
/* Writes on stderr that no broker admits this worker, when that is due.  Returns when it will be. */
uint64_t worker_node_report_unjoined(worker_node_t *n, uint64_t now_us);

/* node_say.c: messages of this worker. */
int  say(worker_node_t *n, const msg_t *m);      /* OK, or what io.send said */
void say_join(worker_node_t *n);
void say_heartbeat(worker_node_t *n);
/* Where a version waits for a slot, and none is about to be free: the kept versions that may make room for
 * it, for no reader holds them. */
uint32_t list_spare(const worker_node_t *n, const adapter_t *a, uint64_t now_us,
                    uint64_t ret_spare[LIMIT_SLOTS]);
void say_staged(worker_node_t *n, const adapter_t *a, const sync_action_t *action, uint64_t now_us);
void say_active(worker_node_t *n, const adapter_t *a, const sync_action_t *action, uint64_t now_us);
int  say_nack(worker_node_t *n, const adapter_t *a, uint64_t version, uint64_t decision,
              const heddle_error_t *error);
void say_need_sources(worker_node_t *n, const adapter_t *a, uint64_t version, uint64_t *lost,
                      uint32_t count);
void say_verified(worker_node_t *n, uint32_t adapter, const msg_verified_t *result);
const announced_t *announced_find(const adapter_t *a, uint64_t version);
/* NO_SLOT made clear: which versions sit in the slots, who reads them, for how long. */
void describe_slots(const worker_node_t *n, const adapter_t *a, uint64_t version, heddle_error_t *error,
                    uint64_t now_us);

#endif
