/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/admin.h: what the tools read and decide.
 *
 * Answers are JSON texts with the fields of the command of the same name ("schema", "kind", "ok", ...): one
 * object, lists sorted.  On failure of the question itself *ret_json is not written and heddle_last_error()
 * tells; an answer that is "no" (a wait that ended by its deadline, a verify with a mismatch) returns the
 * error code AND writes *ret_json.
 *
 * Threads: one thread at a time; calls run on the caller's thread and block at most timeout_ms of the
 * handle, and where the request has a deadline at most until 2 s after it: it counts from the call,
 * connecting included. */
#ifndef HEDDLE_ADMIN_H
#define HEDDLE_ADMIN_H

#include <heddle/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct heddle_snapshot; /* heddle_snapshot_t of heddle/worker.h */
typedef struct heddle_admin heddle_admin_t;

typedef struct heddle_admin_opts {
    size_t size;
    const char *broker;     /* as for publishers */
    uint32_t timeout_ms;    /* connect and reply; 0: 5000 */
    int insecure;           /* no meaning: connecting to any address is allowed */
    const char *broker_key; /* the broker's public key, or a file with it; NULL: $HEDDLE_BROKER_KEY,
                             * else what is known */
    const char *key;        /* file of the caller's own key; NULL: $HEDDLE_KEY, else client.key of the
                             * key ring */
    int makes_no_file;      /* a client.key that is missing is not made: another key is used, and not kept */
} heddle_admin_opts_t;

/* Checks the address and makes a handle; the first question connects.  On OK *ret_admin is owned by the
 * caller.
 * Errors: USAGE, UNAVAILABLE, NO_MEMORY. */
HEDDLE_API int heddle_admin_open(const heddle_admin_opts_t *opts, heddle_admin_t **ret_admin);
/* Accepts NULL and pointers to NULL. */
HEDDLE_API void heddle_admin_close(heddle_admin_t **admin);
/* [any thread, signal handlers too] Makes a call that waits return INTERRUPTED. */
HEDDLE_API void heddle_admin_interrupt(heddle_admin_t *admin);

/* The broker, how much it knows, and every adapter. */
HEDDLE_API int heddle_admin_status(heddle_admin_t *a, char **ret_json);
/* The broker that leads, its standbys and how far each follows, and how their store is. */
HEDDLE_API int heddle_admin_brokers(heddle_admin_t *a, char **ret_json);
/* Every adapter: what is active, what is newest, who writes it, how many workers are current. */
HEDDLE_API int heddle_admin_adapters(heddle_admin_t *a, char **ret_json);
/* The versions of an adapter, or one version and who has it.  `ref`, here and below: NAME, NAME@V, or a tag
 * (NAME@V:3f9a1c20d4e1, as in heddle_manifest_t): NOT_FOUND where that version has another digest, before
 * anything is done. */
HEDDLE_API int heddle_admin_versions(heddle_admin_t *a, const char *ref, char **ret_json);
/* What each worker serves and fetches.  `name`: NULL for all. */
HEDDLE_API int heddle_admin_workers(heddle_admin_t *a, const char *name, char **ret_json);

typedef struct heddle_wait_opts {
    size_t size;
    int phase; /* heddle_phase_t; 0: ACTIVE */
    heddle_quorum_t quorum;
    uint32_t min;               /* at least so many; 0: 1 */
    const char *const *workers; /* only these; NULL-terminated; NULL: all subscribers */
    int exact;                  /* this version itself, not a later decision */
    uint32_t deadline_ms;       /* 0: 30000 */
    /* Called on the caller's thread, within the call, when the connection was lost 3 s ago: once for each
     * time that it is lost.  The wait goes on.  NULL: not. */
    void (*silent)(void *self, uint32_t silent_ms);
    void *silent_self;
} heddle_wait_opts_t;
/* Until the quorum of its workers has the version, or the deadline.  Errors: DEADLINE, VERSION_FAILED,
 * VERSION_LOST, NOT_FOUND (never assigned), INTERRUPTED. */
HEDDLE_API int heddle_admin_wait(heddle_admin_t *a, const char *ref, const heddle_wait_opts_t *opts,
                                 char **ret_json);

typedef struct heddle_activate_opts {
    size_t size;
    heddle_quorum_t quorum;
    uint32_t deadline_ms; /* 0: 10000 */
    int dry_run;
    const char *by; /* who decides, shown where the adapter is held; NULL: user@host */
} heddle_activate_opts_t;
/* Decides that this version is the one to serve, and waits for the quorum.  A version older than the newest
 * holds the adapter there.  Errors: NOT_ACTIVATABLE (it ended or is lost), NOT_FOUND; after the decision,
 * which stands: VERSION_FAILED (workers refused it), VERSION_LOST (the last holder ended), DEADLINE,
 * INTERRUPTED. */
HEDDLE_API int heddle_admin_activate(heddle_admin_t *a, const char *ref, const heddle_activate_opts_t *opts,
                                     char **ret_json);

/* Back to an earlier version: of those that were active, that a worker or publisher still holds and that have
 * other bytes than the active one, the one that was decided last (`ref`: NAME), or a given one (NAME@V),
 * which must not be newer than the active one.  The adapter is held there.  All else as
 * heddle_admin_activate.  Errors: as there; NOT_ACTIVATABLE names what there is. */
HEDDLE_API int heddle_admin_rollback(heddle_admin_t *a, const char *ref, const heddle_activate_opts_t *opts,
                                     char **ret_json);
/* Ends the hold of an adapter: activates its newest version that is active, kept or staged everywhere; those
 * that come later activate by themselves again.  Not held: nothing changes, and `changed` is false. */
HEDDLE_API int heddle_admin_resume(heddle_admin_t *a, const char *adapter, const heddle_activate_opts_t *opts,
                                   char **ret_json);

/* Forgets an adapter, with all its versions: one whose name was mistyped, or that is not used any more.  A
 * later version of that name goes on above the old numbers.  dry_run: says what would go.
 * Errors: WRITER_HELD, WORKER_ALIVE (a worker subscribes to it), NOT_FOUND, UNAVAILABLE (the broker was
 * started a moment ago; retriable). */
HEDDLE_API int heddle_admin_forget(heddle_admin_t *a, const char *adapter, int dry_run, char **ret_json);

/* Has a worker leave: no new rollout waits for it, other workers fetch the versions that only it has, and
 * then it leaves by itself.  The answer has its row of `workers` as it is at once; heddle_admin_workers()
 * shows how far it is: state draining, then left.  NOT_FOUND: no such worker. */
HEDDLE_API int heddle_admin_drain(heddle_admin_t *a, const char *worker, char **ret_json);
/* Takes a drain back that heddle_admin_drain began and that has not ended: rollouts that begin from now on
 * wait for the worker again.  What other workers fetched of it they keep.  One that does not drain stays as
 * it is.  The answer is as that of heddle_admin_drain.  NOT_FOUND · REQUEST_CONFLICT: it has left or leaves
 * now, or by its own wish. */
HEDDLE_API int heddle_admin_drain_cancel(heddle_admin_t *a, const char *worker, char **ret_json);

typedef struct heddle_pull_opts {
    size_t size;
    uint32_t deadline_ms;    /* from the call until every byte has come; 0: 60000 */
    const char *data_device; /* as in heddle_publisher_opts_t */
    uint64_t max_rate_bytes; /* bytes fetched a second; 0: no limit */
    int insecure;            /* allow other addresses than loopback without keys */
    /* Called on the caller's thread, within the call, as bytes come; NULL: not. */
    void (*progress)(void *self, uint64_t bytes_done, uint64_t bytes);
    void *progress_self;
    const char *host_share; /* as in heddle_worker_opts_t */
} heddle_pull_opts_t;
/* Fetches one version from its holders, compares its digest with the registry's, and writes it to `dir` as
 * a complete PEFT directory, as heddle_snapshot_export does: `dir` does not exist, or is empty.  `ref`:
 * NAME@V, or NAME: the active version, without one the newest.  The caller does not become a worker: no
 * rollout, wait or `workers` counts it.  The version is in memory as a whole meanwhile: in that of a holder
 * of this host and user, where there is one, else in that of the caller.
 * Errors: NOT_FOUND, VERSION_LOST, VERSION_FAILED, DEADLINE, DENIED (needs worker:ADAPTER, or host_share is
 * not the caller's alone), USAGE (`dir`, host_share),
 * INSECURE_ADDRESS, DIGEST_MISMATCH, NO_SPACE, NO_MEMORY, INTERRUPTED, UNAVAILABLE, INTERNAL. */
HEDDLE_API int heddle_admin_pull(heddle_admin_t *a, const char *ref, const char *dir,
                                 const heddle_pull_opts_t *opts, char **ret_json);

/* The same, without a directory: a hold on the version in memory, for the functions of heddle/worker.h that
 * take a snapshot.  The caller owns it and releases it with heddle_snapshot_release().  It outlives the
 * handle, and whatever becomes of the version in the cluster: a version that is no longer kept does not
 * leave this process by itself.  No other process fetches from this one.  `ref` may be a version that is
 * kept and not active: nothing becomes active by it.
 * Errors: as heddle_admin_pull, without those of `dir`. */
HEDDLE_API int heddle_admin_fetch(heddle_admin_t *a, const char *ref, const heddle_pull_opts_t *opts,
                                  struct heddle_snapshot **ret_snapshot);

/* Every holder hashes its bytes again.  `expected`: a digest computed elsewhere ("h1:..."), or NULL to
 * compare with the registry's. */
HEDDLE_API int heddle_admin_verify(heddle_admin_t *a, const char *ref, const char *expected,
                                   uint32_t deadline_ms, char **ret_json);

typedef struct heddle_events_opts {
    size_t size;
    uint64_t since;               /* first sequence number wanted; 0: the oldest kept */
    uint64_t epoch;               /* epoch that `since` belongs to; 0: the broker's */
    const char *adapter, *worker; /* filters; NULL: all */
    uint32_t limit;               /* at most so many; 0: 500 */
    uint32_t wait_ms;             /* for the first one to come; 0: do not wait */
} heddle_events_opts_t;
/* Events that the broker keeps, one page a call: {"events":[...], "next": SEQ, "epoch": E}. */
HEDDLE_API int heddle_admin_events(heddle_admin_t *a, const heddle_events_opts_t *opts, char **ret_json);

/* ---- this host ---- */

typedef struct heddle_host_opts {
    size_t size;
    const char *broker;                   /* these three as in heddle_admin_opts_t */
    const char *broker_key, *key;         /* ... */
    const char *data_device, *host_share; /* these three as in heddle_worker_opts_t */
    int insecure;                         /* ... */
} heddle_host_opts_t;
/* What a worker with these options would run on here: loads UCX, opens the data plane, looks at what would be
 * shared with the host, and closes all of it.  The broker is not asked.  -> {"ucx":{...},"data":{...},
 * "memory":{...}}; each has "error": null, or why a worker would not start for it.  UCX's variables of the
 * environment are set meanwhile, as when a worker is opened.  Any thread.
 * Errors: USAGE (opts), DATA_DIR (the user's contexts), NO_MEMORY. */
HEDDLE_API int heddle_host_probe(const heddle_host_opts_t *opts, char **ret_json);
/* Whether a broker could listen at `endpoint` on this host now (tcp://HOST:PORT, either may be *, or
 * ipc://PATH), decided as a broker does.  A TCP address is bound for it, and released.
 * Errors: USAGE (no such address), ADDRESS_IN_USE, INTERNAL (not allowed, or not of this host), NO_MEMORY. */
HEDDLE_API int heddle_host_listen(const char *endpoint);

typedef struct heddle_reach_opts {
    size_t size;
    const char *data_device;     /* as in heddle_worker_opts_t */
    int insecure;                /* ... */
    uint32_t patience_ms;        /* for the answer of one worker; 0: 5000 */
    uint32_t at_once;            /* workers that are asked at a time; 0: 64, at most 64 */
    const char *const *left_out; /* workers that are not asked, by name, NULL at the end; NULL: none */
    void (*on_ask)(void *self, const char *worker); /* before a worker is asked, on the caller's thread; NULL:
                                                       not called */
    void *self;                                     /* of on_ask */
} heddle_reach_opts_t;
/* Which workers this process reaches: it opens a data plane, asks each of them for bytes that no process has,
 * and waits for a sign of life.  Both directions count, as a worker answers over a connection of its own.
 * UCX ends a process that reads a damaged address, or one that was made to harm it: a program that has to go
 * on calls this in a process of its own, as `heddle doctor` does, and on_ask says which worker it was.
 * -> {"device","workers":[{"name","host","ucx","reach":"yes"|"no"|"untested","reach_ms",
 * "reach_why"}]}; `ok` is true where each of them was reached.
 * Errors: those of a question (DENIED: needs worker:ANY or publisher:ANY), of opening a data plane
 * (INSECURE_ADDRESS, INTERNAL, NO_MEMORY), INTERRUPTED. */
HEDDLE_API int heddle_admin_reach(heddle_admin_t *a, const heddle_reach_opts_t *opts, char **ret_json);

#ifdef __cplusplus
}
#endif
#endif
