/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/publisher.h: publish versions of one adapter from a trainer.
 *
 * A publisher is the only writer of one adapter.  It owns preallocated regions.  A publication gives
 * pointers into one of them, the caller writes its tensors there once, and commit digests and seals them and
 * sends the version to the broker.  The region is served to workers until a later publication needs it (a
 * RELEASED one is reused first), or until close.  Before the program ends, wait for the last version
 * (heddle_publisher_wait, STAGED on one worker).
 *
 * Threads: one thread at a time may use a publisher; a thread of the library does the I/O.  Calls block at
 * most for their timeout.  Only heddle_publisher_wait and heddle_publisher_next_event accept -1, which means
 * no time limit.  A commit blocks at most for the deadline of its rollout, which includes packing and
 * digesting.  Begin blocks at most for timeout_ms, while a region is about to become free or new memory is
 * made.  In a forked child heddle_publisher_close() ends nothing of the parent's, and no other call may be
 * made.
 *
 * Errors: a call returns the first error that it meets, and heddle_last_error describes that one.  Errors of
 * several workers are rows of a report (heddle_report_t.missing); its `code` is why the rollout as a whole
 * failed.  While the broker is away the publisher goes on serving and rejoins by itself; after UNAVAILABLE
 * the call may be repeated.  FENCED is permanent, because another writer has the adapter: close, and open
 * again.
 *
 * Close aborts a publication that is still open, and its handle becomes invalid.
 * While a handle is being opened, UCX_* variables are set for UCX to read, and removed again.  Open it
 * before starting threads that read or change the environment (getenv, setenv). */
#ifndef HEDDLE_PUBLISHER_H
#define HEDDLE_PUBLISHER_H

#include <heddle/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_publisher heddle_publisher_t;
typedef struct heddle_publication heddle_publication_t;

typedef struct heddle_publisher_opts {
    size_t size;
    const char *broker;      /* "tcp://host:port[,...]"; NULL: $HEDDLE_BROKER, else
                              * that of the user's context (`heddle context`: then its keys stand in for
                              * those that are not given), else tcp://127.0.0.1:7700 */
    const char *adapter;     /* required */
    const char *writer;      /* name shown in status and errors; NULL: <host>-<pid> */
    int takeover;            /* 1: fence a live writer of this adapter now */
    uint32_t timeout_ms;     /* connect and reply; 0: 5000 */
    uint64_t max_rate_bytes; /* served per second; 0: no limit */
    const char *data_device; /* network interface of the data plane.  NULL: lo with a broker on
                              * loopback, else the interface that reaches the broker, which must have
                              * a private address there (else INSECURE_ADDRESS; without a route
                              * UNAVAILABLE).  Other than lo: needs keys that were named, or a broker
                              * elsewhere */
    int insecure;            /* 1: other addresses than loopback are allowed, for control and data;
                              * with keys too, for a data device with a public address */
    uint32_t close_ms;       /* limit of each of the two waits of close: for a worker that fetches the
                              * last version, then for the broker and sends in flight; 0: 3000 */
    const char *broker_key;  /* the broker's public key, or a file with it; NULL:
                              * $HEDDLE_BROKER_KEY, else what is known */
    const char *key;         /* file of the caller's own key; NULL: $HEDDLE_KEY, else client.key of
                              * the key ring */
    uint32_t fill_threads;   /* of heddle_publication_write, with the caller's own; at most 4.  0: one
                              * per core, at most 4 */
    int quiet_events;        /* 1: a full queue of events drops them without a line in the log
                              * (events.dropped): for a program that reads events only while it waits.
                              * If the publisher is ended (fenced, for example) while no call waits,
                              * a line of the log says so (publisher.ended) */
    const char *read_dir;    /* a directory that heddle_publisher_publish_dir will be given first: it
                              * is read while the handle opens, on a thread of the library, and again
                              * then if it has changed.  NULL: none */
    const char *host_share;  /* as in heddle_worker_opts_t: the directory in which workers of this host
                              * find this publisher */
    const char *kind;        /* of all that it publishes: "lora" (NULL), adapters of PEFT; "tensors", full
                              * weights.  An adapter has one kind for life, that of its first version */
} heddle_publisher_opts_t;

typedef enum {
    HEDDLE_ACTIVATION_ALL = 0,  /* active once every worker that counts has staged it */
    HEDDLE_ACTIVATION_AS_READY, /* active once one has; each worker switches as soon as it has staged it */
    HEDDLE_ACTIVATION_MANUAL    /* staged; active when an operator says so (heddle_admin_activate) */
} heddle_activation_t;
typedef enum {
    HEDDLE_UNCHANGED_FAIL = 0, /* bytes that are those of the version before are refused: UNCHANGED */
    HEDDLE_UNCHANGED_SKIP,     /* nothing is published, and the outcome says so */
    HEDDLE_UNCHANGED_PUBLISH   /* a version of its own */
} heddle_unchanged_t;

typedef struct heddle_publish_opts {
    size_t size;
    int64_t step;           /* the trainer's step, >= 0; -1: none */
    const char *request_id; /* a name; the same id with the same bytes is one version, unless that
                             * failed because its publisher ended (VERSION_LOST).  NULL: a random
                             * one */
    int activation;         /* heddle_activation_t */
    int if_unchanged;       /* heddle_unchanged_t */
    int allow_step_back;
    uint32_t deadline_ms;    /* counts from the call; the broker gets what is left after packing; 0:
                              * 60000 */
    const char *const *meta; /* "key=value", NULL-terminated, up to 32; NULL: none */
    uint32_t asked_ms;       /* the deadline to report, where a part of it had passed before the
                              * call (connecting); 0: deadline_ms */
} heddle_publish_opts_t;

/* What a commit did. */
typedef struct heddle_published {
    size_t size;
    uint64_t version;
    int created; /* 0: an earlier version stands for it: replayed, or unchanged */
    int replayed, unchanged;
    char digest[HEDDLE_DIGEST_TEXT], tag[HEDDLE_TAG_TEXT];
    char request_id[HEDDLE_NAME_MAX + 1];
    char features[192];
    uint64_t data_bytes;
    uint32_t tensor_count, chunk_count;
    double pack_ms, commit_ms; /* since heddle_publication_commit was called, or the call that reads a
                                * directory: region sealed; record durable at the broker.  What
                                * heddle_publication_begin and _write took is not in them. */
    char held[512];            /* the adapter is held at an older version (at which, by whom, since
                                * when): this one is staged and not activated, until the newest is
                                * activated by hand.  "": it is not held */
} heddle_published_t;

#define HEDDLE_MISSING_MAX 64
typedef struct heddle_missing {
    char worker[HEDDLE_NAME_MAX + 1];
    char phase[16];
    int code;
    char message[256];
} heddle_missing_t;

/* The state of a rollout. */
typedef struct heddle_report {
    size_t size;
    uint64_t version, decision;
    char state[16]; /* staging staged active kept superseded failed retired lost */
    int activation;
    uint32_t deadline_ms; /* as it was asked for */
    uint32_t eligible_count, staged_count, active_count;
    int code;                    /* why it failed, is held (HEDDLE_ERR_HELD), or 0 */
    char message[512];           /* the same for people; with code 0, which version goes first */
    double staged_ms, active_ms; /* since commit was called; -1: it has not happened, or is not known */
    uint32_t missing_count;      /* rows below; more than HEDDLE_MISSING_MAX are cut */
    heddle_missing_t missing[HEDDLE_MISSING_MAX];
    uint32_t settling_ms; /* the broker has just started, and decides nothing for so long yet;
                           * 0: it decides */
    uint32_t silent_ms;   /* the broker does not answer: its last message came so long ago, and the
                           * report is from then; 0: it answers */
} heddle_report_t;

/* Connects and is admitted as the writer.  On OK *ret_publisher is owned by the caller; on failure it is
 * not written.
 * Errors: BAD_NAME, USAGE, INSECURE_ADDRESS, NOT_FOUND and DATA_DIR (a key that was named, or the key ring),
 * UNSUPPORTED_FEATURE (the adapter has versions of another kind),
 * UNAVAILABLE (no broker within timeout_ms), DENIED (the keys do not fit, or this key has no such role at the
 * broker), WRITER_HELD (by whom is in the message), NO_SPACE (the broker's disk is full), UCX_VERSION,
 * WIRE_VERSION, NO_MEMORY, INTERNAL (UCX or the network interface cannot be used). */
HEDDLE_API int heddle_publisher_open(const heddle_publisher_opts_t *opts, heddle_publisher_t **ret_publisher);

/* The two halves of open, for programs that must be able to give up: start makes the handle and begins to
 * connect, opened waits for the broker, at most timeout_ms, and can be interrupted (INTERRUPTED).  Errors
 * as for open, those of the broker from opened; after UNAVAILABLE, NO_SPACE and INTERRUPTED it may be called
 * again.  Whatever opened says, the handle is the caller's to close. */
HEDDLE_API int heddle_publisher_start(const heddle_publisher_opts_t *opts,
                                      heddle_publisher_t **ret_publisher);
/* Waits until the broker has admitted the publisher: see heddle_publisher_start. */
HEDDLE_API int heddle_publisher_opened(heddle_publisher_t *p);
/* Readable while next_event has something.  Owned by the publisher: poll it, never read or close it. */
HEDDLE_API int heddle_publisher_fd(const heddle_publisher_t *p);

/* Lays out a region for these tensors (any order; names unique) and gives writable places for them.
 * `config` is copied: the bytes of adapter_config.json; of no bytes for kind tensors, which has none.
 * `metadata` is the safetensors __metadata__ as a JSON object, or NULL for {"format":"pt"}.  One publication
 * may be open at a time.
 * Errors: the group of exit 8 for a bad table or config, NO_MEMORY, NO_SLOT (every region is still being
 * served), DEADLINE (its memory could not be made within timeout_ms), USAGE, INTERRUPTED. */
HEDDLE_API int heddle_publication_begin(heddle_publisher_t *p, const heddle_tensor_t *tensors, uint32_t count,
                                        const void *config, size_t config_bytes, const char *metadata,
                                        heddle_publication_t **ret_publication);
/* Where tensor `index` of the table given to begin belongs: data_bytes of it, 4 KiB aligned, writable until
 * commit.  A write after commit would change the version for all that use it: soon after commit it is
 * SIGSEGV, unless HEDDLE_GUARD=0 is in the environment when the publisher opens. */
HEDDLE_API void *heddle_publication_tensor(heddle_publication_t *pub, uint32_t index);
/* Copies, for each row i of the table whose sources[i] is not NULL, data_bytes from there to where tensor i
 * belongs, and digests it in the same pass: commit need not read it again (docs/benchmarks.md).  (Rows that
 * heddle_publication_tensor was called for are digested by commit.)  From 8 MiB on it does so with up to
 * three threads of its own beside the caller's (fill_threads of the publisher's options), which sleep
 * otherwise and end with the publisher.  USAGE when a pointer is missing. */
HEDDLE_API int heddle_publication_write(heddle_publication_t *pub, const void *const *sources);
/* Digests, seals, publishes; OK when the record is on the broker's disk.  Takes the publication, also on
 * failure.
 * Errors: USAGE (a tensor that has bytes was neither written nor asked for with heddle_publication_tensor:
 * its place holds an older version's), BAD_NAME (request_id, a key of meta), LIMIT (meta, or the record does
 * not fit into one message), NO_MEMORY, UNAVAILABLE, FENCED, REQUEST_CONFLICT, UNCHANGED, STEP_BACK,
 * NO_SPACE, PROTOCOL (the broker recorded other bytes), DEADLINE and INTERRUPTED (phase pack: nothing was
 * sent; phase commit: the version may be recorded, and the hint says how to find out). */
HEDDLE_API int heddle_publication_commit(heddle_publication_t **pub, const heddle_publish_opts_t *opts,
                                         heddle_published_t *ret_published);
/* Gives the region back unpublished.  NULL and pointers to NULL are allowed. */
HEDDLE_API void heddle_publication_abort(heddle_publication_t **pub);

/* begin + read the directory's files into the region + commit.  BAD_ADAPTER also when a file changed
 * meanwhile, or a process has one of them open for writing. */
HEDDLE_API int heddle_publisher_publish_dir(heddle_publisher_t *p, const char *dir,
                                            const heddle_publish_opts_t *opts,
                                            heddle_published_t *ret_published);

/* The same of safetensors files (a list that ends with NULL), which together are one version of a publisher
 * of kind tensors, and have each tensor once.  publish_dir takes kind lora alone: USAGE. */
HEDDLE_API int heddle_publisher_publish_files(heddle_publisher_t *p, const char *const *files,
                                              const heddle_publish_opts_t *opts,
                                              heddle_published_t *ret_published);

/* Waits until `quorum` of the version's eligible workers (at least one) have reached the phase, at most
 * timeout_ms (-1: no limit).
 * - A worker that leaves is not eligible any more.
 * - A quorum that was reached stays reached, also when the version has been retired since.
 * - If fewer workers remain than a count asks for, the call waits until its timeout.
 * *ret_report is written in every case.
 * Errors: DEADLINE and NO_WORKERS (no worker subscribes), after which the wait may be repeated unless the
 * report's state is "failed"; VERSION_FAILED (also: it was retired before the quorum was reached),
 * VERSION_LOST, HELD, FENCED, INTERRUPTED (heddle_publisher_interrupt). */
HEDDLE_API int heddle_publisher_wait(heddle_publisher_t *p, uint64_t version, int phase,
                                     heddle_quorum_t quorum, int timeout_ms, heddle_report_t *ret_report);
/* Waits for the next event, at most timeout_ms (-1: no limit), and writes ret_event->size bytes of it: set
 * size.  AGAIN when none came; INTERRUPTED after heddle_publisher_interrupt. */
HEDDLE_API int heddle_publisher_next_event(heddle_publisher_t *p, int timeout_ms, heddle_event_t *ret_event);
/* The rollout of a version as last heard; never blocks.  NOT_FOUND for a version that this publisher did
 * not make. */
HEDDLE_API int heddle_publisher_report(heddle_publisher_t *p, uint64_t version, heddle_report_t *ret_report);
/* [any thread, signal handlers too] Makes a call that waits return INTERRUPTED; a close that comes next
 * does not wait for workers. */
HEDDLE_API void heddle_publisher_interrupt(heddle_publisher_t *p);
/* Stops serving, leaves, frees.  Accepts NULL and pointers to NULL.
 * COMMIT MEANS THAT THE RECORD IS DURABLE, NOT THAT A WORKER HAS THE BYTES: until one does, this process is
 * their only source.  While workers fetch the last version, close waits until one of them has it, at most
 * close_ms.  A version that no worker had fails, and is logged as publisher.unheld.  To be sure, call
 * heddle_publisher_wait for STAGED first. */
HEDDLE_API void heddle_publisher_close(heddle_publisher_t **p);

#ifdef __cplusplus
}
#endif
#endif
