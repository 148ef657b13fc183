/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/types.h: what publishers, workers and tools share: tensors, manifests, events.
 *
 * Every public struct that a caller fills begins with its own size, so that later releases can append
 * fields: set it with sizeof, zero the rest.  So does every one that a call fills: it is given as much as
 * its size has room for.  Options of a newer release are USAGE where a field beyond those known here is not
 * 0.  heddle_tensor_t alone, whose rows stand in tables, stays as it is.  Sizes are bytes, times
 * milliseconds since the epoch (UTC) unless the name says otherwise. */
#ifndef HEDDLE_TYPES_H
#define HEDDLE_TYPES_H

#include <heddle/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEDDLE_DIGEST_TEXT 68u /* "h1:" + 64 hex + NUL */
#define HEDDLE_TAG_TEXT 168u   /* "policy@3:3f9a1c20d4e1" + NUL, for the longest name and version */

/* The library's version, e.g. "0.1.0". */
HEDDLE_API const char *heddle_version(void);

/* Loads the data plane (the plugin and UCX) into this process, as opening a worker or publisher would, and
 * tells what it runs on: JSON {"backend","ucx","plugin","library"}: UCX's version, and the files of plugin
 * and UCX.  `ucx_dir`: a directory with UCX's libraries that the dynamic linker does not know of; NULL: its
 * own.  Once loaded it stays, whatever a later call names.  INTERNAL (no plugin, no UCX: the message says
 * how to install it), NO_MEMORY.  Any thread; UCX_* variables are set meanwhile, as when a handle is
 * opened.  Free with heddle_free. */
HEDDLE_API int heddle_transport_load(const char *ucx_dir, char **ret_json);

/* Element types, as safetensors names them: all pass through untouched.  X(NAME, bits per element), in
 * upstream's order (writers sort by it, descending). */
/* clang-format off */
#define HEDDLE_DTYPES(X)                                                                               \
    X(BOOL, 8) X(F4, 4) X(F6_E2M3, 6) X(F6_E3M2, 6) X(U8, 8) X(I8, 8) X(F8_E5M2, 8) X(F8_E4M3, 8)      \
    X(F8_E8M0, 8) X(F8_E4M3FNUZ, 8) X(F8_E5M2FNUZ, 8) X(I16, 16) X(U16, 16) X(F16, 16) X(BF16, 16)     \
    X(I32, 32) X(U32, 32) X(F32, 32) X(C64, 64) X(F64, 64) X(I64, 64) X(U64, 64)
/* clang-format on */
typedef enum {
#define X(NAME, bits) HEDDLE_DTYPE_##NAME,
    HEDDLE_DTYPES(X)
#undef X
        HEDDLE_DTYPE_COUNT
} heddle_dtype_t;

/* "BF16" and so on; NULL when out of range. */
HEDDLE_API const char *heddle_dtype_name(int dtype);
/* -1 when there is no such type. */
HEDDLE_API int heddle_dtype_from_name(const char *name);
/* Bits in one element; 0 when out of range. */
HEDDLE_API uint32_t heddle_dtype_bits(int dtype);

/* Where a tensor's memory is.  Only HOST is accepted in this release. */
typedef enum { HEDDLE_MEMORY_HOST = 0, HEDDLE_MEMORY_PINNED = 1, HEDDLE_MEMORY_CUDA = 2 } heddle_memory_t;

/* One row of a tensor table.  Dense, row-major, little-endian. */
typedef struct heddle_tensor {
    size_t size;          /* sizeof(heddle_tensor_t) */
    const char *name;     /* PEFT's on-disk key, UTF-8, 1..1024 bytes, unique in the adapter */
    int dtype;            /* heddle_dtype_t */
    int memory;           /* heddle_memory_t */
    int device;           /* device id for CUDA, else 0 */
    uint32_t ndim;        /* 0 (a scalar) .. 16 */
    const uint64_t *dims; /* ndim extents; the product times the element's bits must be whole bytes */
    uint64_t data_bytes;  /* set by Heddle; ignored on input */
    const void *data;     /* set by Heddle where the bytes are at hand; ignored on input */
} heddle_tensor_t;

/* One sealed version, as a reader sees it.  Borrowed from a snapshot: valid until that is released. */
typedef struct heddle_manifest {
    size_t size;
    const char *adapter;
    uint64_t version;
    const char *digest; /* "h1:<64 hex>" */
    const char *tag;    /* "policy@3:3f9a1c20d4e1" */
    const void *config; /* the bytes of adapter_config.json as published; not
                         * NUL-terminated; "{}" for kind tensors */
    size_t config_bytes;
    uint32_t tensor_count, chunk_count;
    uint64_t data_bytes;  /* sum of the tensors' bytes, without padding */
    int64_t step;         /* the trainer's step; -1 where none was given */
    const char *features; /* comma-separated, sorted, as in heddle_published_t; "" for a
                           * plain LoRA */
    const char *kind;     /* "lora", "tensors" */
} heddle_manifest_t;

typedef enum { HEDDLE_PHASE_STAGED = 1, HEDDLE_PHASE_ACTIVE = 2 } heddle_phase_t;

/* How many of the workers that count: all of them, a number, or a share. */
typedef struct {
    enum { HEDDLE_QUORUM_ALL = 0, HEDDLE_QUORUM_COUNT, HEDDLE_QUORUM_PERCENT, HEDDLE_QUORUM_NONE } kind;
    uint32_t n;
} heddle_quorum_t;

/* What happened.  Worker: JOINED LOST_BROKER ARRIVED STAGED COMMIT ACTIVE STALE FAILED RETIRED VERIFY LEFT
 * FENCED DRAINING STAYING.  Publisher: JOINED LOST_BROKER PROGRESS ROLLOUT RELEASED FENCED. */
typedef enum {
    HEDDLE_EVENT_JOINED = 1,  /* admitted by the broker: token, epoch */
    HEDDLE_EVENT_LOST_BROKER, /* the broker did not renew the lease; serving goes on */
    HEDDLE_EVENT_REFUSED,     /* the broker refused the join for now: code and message; it is tried
                               * again if retriable.  A reason that repeats comes once a minute, with
                               * repeat_count */
    HEDDLE_EVENT_FETCHING,    /* a version was announced and its bytes are being fetched */
    HEDDLE_EVENT_ARRIVED,     /* APPLY_APP: verified, in a slot: load it beside the old one, then
                               * staged() or reject() */
    HEDDLE_EVENT_STAGED,      /* APPLY_AUTO: verified and staged */
    HEDDLE_EVENT_COMMIT,      /* APPLY_APP: decided: switch, then activate(); it may name the version that
                               * is active, where another was to be switched to meanwhile: switch back */
    HEDDLE_EVENT_ACTIVE,      /* acquire() of the active version gives this one from now on */
    HEDDLE_EVENT_STALE,       /* the broker's decision is newer than what is served here, or for a version
                               * that no process holds any more (VERSION_LOST) where nothing is served */
    HEDDLE_EVENT_FAILED,      /* this version failed on this worker, or the whole version: code and
                               * message */
    HEDDLE_EVENT_RETIRED,     /* no longer kept; its slot is free when the last reader is gone */
    HEDDLE_EVENT_VERIFY,      /* answers_verify: hash your copy again, then verified() */
    HEDDLE_EVENT_FENCED,      /* another session took the name, or the lease lapsed; a new token follows
                               * with JOINED */
    HEDDLE_EVENT_LEFT,        /* closed cleanly */
    HEDDLE_EVENT_PROGRESS,    /* publisher: bytes that the workers have so far, together */
    HEDDLE_EVENT_ROLLOUT,     /* publisher: the rollout moved; heddle_publisher_report() tells all */
    HEDDLE_EVENT_RELEASED,    /* publisher: the region of this version is no longer needed by anyone */
    HEDDLE_EVENT_DRAINING,    /* the worker is to leave, by heddle_worker_drain() or by an operator: no new
                               * rollout waits for it.  It serves on, and LEFT follows when other processes
                               * hold the versions that only it has */
    HEDDLE_EVENT_STAYING      /* an operator's drain was taken back before the worker had left: rollouts
                               * wait for it again */
} heddle_event_type_t;

typedef struct heddle_event {
    size_t size;
    int type;              /* heddle_event_type_t */
    uint64_t at_ms;        /* wall clock */
    uint64_t token, epoch; /* JOINED */
    uint64_t version, decision;
    uint64_t bytes_done, data_bytes; /* FETCHING, PROGRESS */
    int64_t step;
    int code; /* heddle_err_t of FAILED, STALE, REFUSED, FENCED */
    int retriable;
    char adapter[HEDDLE_NAME_MAX + 1];
    char digest[HEDDLE_DIGEST_TEXT];
    char tag[HEDDLE_TAG_TEXT];
    char message[512];
    char cluster[HEDDLE_NAME_MAX + 1]; /* JOINED: which broker's registry this is */
    uint64_t repeat_count;             /* REFUSED: how often since the last event of this reason */
} heddle_event_t;

/* Stable name of an event type, e.g. "version.arrived"; "unknown" out of range.  What happens on the way in
 * a program has names here that `heddle events` does not know. */
HEDDLE_API const char *heddle_event_name(int type);

/* Frees a text that a call of this library returned.  NULL is allowed. */
HEDDLE_API void heddle_free(void *text);

#ifdef __cplusplus
}
#endif
#endif
