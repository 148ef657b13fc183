/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/worker.h: a worker receives versions of adapters into its own memory.
 *
 * A worker subscribes to adapters.  It fetches each announced version into a free slot beside the active
 * one, verifies it, and switches when the broker has decided.  A thread of the library does this work.  The
 * application polls heddle_worker_fd() or calls heddle_worker_next_event().
 *
 * Threads: calls marked [any] may be made on any thread.  They take no lock and make no system call, except
 * that the last release of a slot that is needed again wakes the library.  All other calls: one thread at a
 * time.  No call blocks past its timeout.
 * A forked child has neither the library's thread nor the memory of versions.  heddle_snapshot_release() and
 * heddle_worker_close() end nothing of the parent's there.  _digest, _fd and _export of a snapshot are USAGE,
 * next_event and the answers to it CLOSED.  Reading a tensor is SIGSEGV.
 * While a handle is being opened, UCX_* variables are set for UCX to read, and removed again.  Open it
 * before starting threads that read or change the environment (getenv, setenv).
 *
 * Stderr: if no broker admits the worker for 5 s, it writes one line: worker.waiting (no broker answers) or
 * worker.refused (code, message and hint).  When it is admitted later, it writes worker.joined.  Each
 * reason is written once.  This tells the user of an application that ignores REFUSED why it waits.  An
 * application that reports REFUSED and LOST_BROKER itself sets `quiet`. */
#ifndef HEDDLE_WORKER_H
#define HEDDLE_WORKER_H

#include <heddle/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_worker heddle_worker_t;
typedef struct heddle_snapshot heddle_snapshot_t; /* a counted hold on one sealed version; its memory is
                                                   * read-only */

typedef enum {
    HEDDLE_APPLY_AUTO = 0, /* staged when verified, active when decided */
    HEDDLE_APPLY_APP = 1   /* the application loads (ARRIVED -> staged/reject) and switches (COMMIT ->
                            * activate/reject) */
} heddle_apply_t;

typedef struct heddle_worker_opts {
    size_t size;
    const char *broker;          /* as for publishers */
    const char *name;            /* NULL: <host>-<pid> */
    const char *const *adapters; /* NULL-terminated, at least one, at most 256 */
    /* "key=value", NULL-terminated, up to 32 with those of the environment; NULL: none.
     * HEDDLE_LABEL_POD=p0 is the label pod=p0, unless one with that key is here */
    const char *const *labels;
    uint32_t slots;               /* per adapter; 0: 2 + the broker's keep */
    int apply;                    /* heddle_apply_t */
    uint64_t max_rate_bytes;      /* per second, each way by itself; 0: no limit */
    const char *data_device;      /* network interface of the data plane; NULL: as for publishers */
    int insecure;                 /* as for publishers */
    int join_timeout_ms;          /* stop retrying a name in use after so long; 0: never */
    const char *export_dir;       /* reported in `workers` and the ready line; NULL: none */
    int answers_verify;           /* 1: VERIFY events are sent and answered with heddle_worker_verified */
    const char *broker_key, *key; /* as for publishers */
    int omits_staging;            /* 1: the events FETCHING and STAGED are not delivered */
    int quiet;                    /* 1: writes nothing to stderr while no broker admits the worker, for an
                                   * application that shows REFUSED and LOST_BROKER itself */
    /* Workers that serve as one (the ranks of one tensor-parallel engine) name their group.  A group has
     * staged a version when each of its ranks has.  `as-ready` decides when the first group, or worker
     * without a group, has staged it.  `all` decides when every worker that was ready at the announcement
     * has staged it, among them at least one whole group or one worker without a group.  NULL: none. */
    const char *group;
    uint32_t rank, ranks; /* with a group: 0 to ranks - 1, of 1 to 4096; without: 0, 0 */
    int own_memory;       /* 1: every version is copied into memory of this worker, as between hosts.  0: a
                           * version that another process of this host has is used there, read-only, if that
                           * process runs as the same user */
    int verify_each;      /* 1: compares the digest of what it uses there itself.  0: one process of the host
                           * does it for all that use it */
    /* Directory in which processes of this host find each other for that, in place of the network namespace:
     * the same one for all, as seen from each container.  Mode 0700, and this user's; else DENIED.  Not with
     * own_memory.  NULL: processes of one network namespace find each other. */
    const char *host_share;
    /* 1: this worker is a source for other hosts only where no other process has the version.  Workers of its
     * host still use what it has in memory */
    int no_relay;
    /* Which kinds of versions the application takes, ends with NULL: "lora", adapters of PEFT; "tensors",
     * full weights.  One of another kind is refused before its bytes are fetched (UNSUPPORTED_FEATURE).
     * NULL: lora alone */
    const char *const *kinds;
    /* An invitation, as `heddle invite` prints it, or "@FILE" with one.  It names broker and broker_key,
     * and has this worker's own key (`key`, made where it is missing) entered; a key that is in already
     * uses none up. Not with broker or broker_key.  NULL: $HEDDLE_JOIN, where those two are not given
     * either */
    const char *join;
} heddle_worker_opts_t;

/* Returns before the broker answers; the answer comes as an event (JOINED, REFUSED, LOST_BROKER).
 * Errors: USAGE, BAD_NAME, INSECURE_ADDRESS, DENIED (host_share), NO_MEMORY, INTERNAL (no UCX: the message
 * says how to install it). */
HEDDLE_API int heddle_worker_open(const heddle_worker_opts_t *opts, heddle_worker_t **ret_worker);
/* Readable while next_event has something.  Owned by the worker: poll it, never read or close it. */
HEDDLE_API int heddle_worker_fd(const heddle_worker_t *w);
/* Waits at most timeout_ms (-1: without limit) for the next event.  Set ret_event->size first; no more is
 * written.  AGAIN when no event came; CLOSED after LEFT was delivered.  After REFUSED, heddle_last_error()
 * has the whole error: expected, found and hint. */
HEDDLE_API int heddle_worker_next_event(heddle_worker_t *w, int timeout_ms, heddle_event_t *ret_event);
/* APPLY_APP: loaded beside the old one.  NOT_FOUND when the version is no longer wanted: drop what was
 * loaded. */
HEDDLE_API int heddle_worker_staged(heddle_worker_t *w, const char *adapter, uint64_t version);
/* APPLY_APP: makes the version active; call it between two steps.  When it returns OK, acquire(adapter, 0)
 * gives this version.  NOT_FOUND or FENCED: another decision followed, or the broker is not reachable; keep
 * serving the previous version until the next COMMIT.  OK for a version that is active already. */
HEDDLE_API int heddle_worker_activate(heddle_worker_t *w, const char *adapter, uint64_t version);
/* APPLY_APP: refuses an ARRIVED version, or says that a COMMIT could not be carried out.  `reason`: up to
 * 640 bytes, cut beyond.  The library refuses no version for its features (DoRA and others, listed in the
 * manifest): an application that cannot load one calls this.  The Python package does: Worker(accepts=) and
 * the engine plug. */
HEDDLE_API int heddle_worker_reject(heddle_worker_t *w, const char *adapter, uint64_t version,
                                    const char *reason);
/* The same with a whole error: code, message, phase, expected, found and hint of `why` (for example of
 * heddle_last_error()) are reported to the publisher and to waiting commands.  `why` may be NULL.  Code 0
 * means VERSION_FAILED; phase "" means stage, or activate after a COMMIT.  USAGE when code or phase is not
 * in the lists of heddle/error.h. */
HEDDLE_API int heddle_worker_reject_error(heddle_worker_t *w, const char *adapter, uint64_t version,
                                          const heddle_error_t *why);
/* Answers VERIFY with the digest of the application's own copy.  NULL: it has no copy.  "": its copy is
 * missing or cannot be read. */
HEDDLE_API int heddle_worker_verified(heddle_worker_t *w, const char *adapter, uint64_t version,
                                      const char *digest);

/* [any] A hold on the active version (version 0), or on a given one if it is resident.  NOT_FOUND otherwise.
 * The caller owns the hold and releases it; its memory stays valid and unchanged until then. */
HEDDLE_API int heddle_worker_acquire(heddle_worker_t *w, const char *adapter, uint64_t version,
                                     heddle_snapshot_t **ret_snapshot);
/* [any] Accepts NULL and pointers to NULL. */
HEDDLE_API void heddle_snapshot_release(heddle_snapshot_t **snapshot);
/* [any] Borrowed from the snapshot. */
HEDDLE_API const heddle_manifest_t *heddle_snapshot_manifest(const heddle_snapshot_t *s);
/* [any] Row `index` (in order of name), with its bytes, as far as ret_tensor->size has room: set it.  USAGE
 * when out of range.  name and dims point into memory of the snapshot. */
HEDDLE_API int heddle_snapshot_tensor(const heddle_snapshot_t *s, uint32_t index,
                                      heddle_tensor_t *ret_tensor);
/* [any] BLAKE2b-256 of names, types and shapes of all tensors.  If two versions have the same table digest,
 * every tensor has the same offset in both; offsets may be reused. */
HEDDLE_API void heddle_snapshot_table_digest(const heddle_snapshot_t *s, uint8_t ret_digest[32]);
/* [any] Hashes the slot's bytes again, from 2 MiB on with a second thread that ends with the call; writes the
 * digest found. */
HEDDLE_API int heddle_snapshot_digest(const heddle_snapshot_t *s, char ret_digest[HEDDLE_DIGEST_TEXT]);
/* DLPack's "dltensor": its header (github.com/dmlc/dlpack) has it. */
struct DLManagedTensor;
/* The tensors of a version for libraries that speak DLPack, one view for each, in order of name. */
typedef struct heddle_views heddle_views_t;
/* [any; allocates] Views of all tensors, for libraries that speak DLPack: torch's C++ (at::fromDLPack),
 * and in Python, as a capsule "dltensor", whatever takes arrays of the CPU.  Nothing is copied: each lies
 * in the slot, dense and row-major, in memory that is read-only, which DLPack before 1.0 cannot say:
 * writing to it is SIGSEGV.  The views hold the version only once they are taken.  The caller owns them.
 * NO_MEMORY. */
HEDDLE_API int heddle_snapshot_views(const heddle_snapshot_t *s, heddle_views_t **ret_views);
/* [any] Takes the views of `count` tensors, while the caller holds the snapshot (a view that was taken
 * does not count as that).  The caller owns each of ret_tensors[count] until it hands it to a library, which
 * then calls its deleter, on any thread, or gives it back.  Until then it holds the version, after
 * heddle_snapshot_release() and heddle_worker_close() too; not in a forked child, whose memory is the
 * parent's.  All or none.  USAGE: an index out of range; a view that was taken before, also where it was
 * given back; a type of less than a byte (heddle_dtype_bits), which has no DLPack type that is laid out as
 * in safetensors. */
HEDDLE_API int heddle_views_take(heddle_views_t *v, const uint32_t *indexes, uint32_t count,
                                 struct DLManagedTensor **ret_tensors);
/* [any; may free memory] Gives back a view that no library took over (for example of an unknown type): calls
 * its deleter.  Accepts NULL. */
HEDDLE_API void heddle_views_put(struct DLManagedTensor *tensor);
/* [any] How many were taken and not deleted yet. */
HEDDLE_API uint32_t heddle_views_held(const heddle_views_t *v);
/* [any] Whether the view of one tensor was taken and not deleted yet: 1 or 0. */
HEDDLE_API int heddle_views_is_held(const heddle_views_t *v, uint32_t index);
/* [any; may free memory] Gives up the views; those that were taken go on holding.  Accepts NULL and
 * pointers to NULL. */
HEDDLE_API void heddle_views_release(heddle_views_t **views);
/* The memory of a version for another process of this host, which needs neither this library nor a broker: a
 * file with all tensors, and behind them a mark that tells whether they are still in it. */
#define HEDDLE_MARK_BYTES 72
typedef struct heddle_shared {
    size_t size;
    int fd;                          /* can only be read; close-on-exec; the caller owns it */
    const void *base;                /* what is at `offset`, here: a tensor is `data - base` behind it */
    uint64_t offset, bytes;          /* a multiple of 4096; of all tensors */
    uint64_t mark_offset;            /* a multiple of 4096 */
    uint8_t mark[HEDDLE_MARK_BYTES]; /* what the file has there as long as this version is in it */
} heddle_shared_t;
/* [any] A new descriptor of the memory of this version, for other processes: send it over a unix socket
 * (SCM_RIGHTS).  Set ret_shared->size first.  The descriptor is a hold of its own: the memory does not
 * change, and is not given back, before all of its copies are closed and all of its mappings are gone, in
 * every process, whatever becomes of the snapshot, the worker and this process.  The kernel then releases the
 * hold.  Do not call F_OFD_SETLK on the descriptor: that would release the hold while the memory is in use.
 *
 * A process that gets it maps it, compares the mark, and takes nothing from a file in which the mark differs.
 * It may map it private and writable (MAP_PRIVATE, PROT_WRITE): what it writes is its own, in pages of its
 * own.  A shared mapping is read-only.  A child inherits the descriptor by fork, as any other one, and holds
 * the version with it until it closes it.
 *
 * NO_MEMORY: no descriptor is left.  INTERNAL: the kernel cannot open or seal it (before 5.1, or without
 * /proc). */
HEDDLE_API int heddle_snapshot_fd(const heddle_snapshot_t *s, heddle_shared_t *ret_shared);
/* [any] Writes a complete PEFT directory (of kind tensors: one with model.safetensors), files and directory
 * synced, under a temporary name in the parent
 * of `dir` and renamed to `dir`, which must not exist or be empty (USAGE).  Nothing is left on failure.
 * Errors: NO_SPACE, INTERNAL (errno in message). */
HEDDLE_API int heddle_snapshot_export(const heddle_snapshot_t *s, const char *dir);

/* What the data plane runs on, for ready lines: JSON {"backend","ucx","devices":[...]}.  Free with
 * heddle_free. */
HEDDLE_API int heddle_worker_transport(heddle_worker_t *w, char **ret_json);
/* [any; waits for a turn of the library's thread at most] Counters of this process as JSON
 * {"bytes_in","bytes_out","chunks_bad","retries","fenced"}: bytes fetched and served, chunks whose digest was
 * wrong, chunks asked for again, and sessions that a later one replaced (a restart of the broker does not
 * count).  And what it is at: "own_bytes" and "held_bytes" of memory, "slots" {"total","free","held"},
 * "session" {"state" ("ready": the broker counts this worker; "draining": it is about to leave),
 * "joined_count"}, and for each of "adapters" {"name", "version" that is served (0: none), "decision",
 * "decided_version" (the latest decision that came here), "lag" (versions that it is behind: the number of
 * later decisions, or the difference of the version numbers where that is less; the broker, which knows each
 * decision, may count more after a roll-back), "versions" (how many, by state), "counts" {"staged",
 * "activated", "failed"}}.  Free with heddle_free. */
HEDDLE_API int heddle_worker_stats(heddle_worker_t *w, char **ret_json);
/* [any thread, signal handlers too] Makes next_event return INTERRUPTED once. */
HEDDLE_API void heddle_worker_interrupt(heddle_worker_t *w);
/* Asks to leave: no new rollout waits for this worker, and other workers fetch the versions that only it
 * has.  It serves on meanwhile; DRAINING follows, and LEFT when they have them.  That may never be, as where
 * no other worker subscribes: heddle_worker_close() leaves at any time.  A worker that was never admitted
 * leaves at once.  It cannot be taken back: a worker that is opened later begins anew. */
HEDDLE_API int heddle_worker_drain(heddle_worker_t *w);
/* Leaves and frees.  Holds still out stay valid until released.  Accepts NULL and pointers to NULL. */
HEDDLE_API void heddle_worker_close(heddle_worker_t **w);

#ifdef __cplusplus
}
#endif
#endif
