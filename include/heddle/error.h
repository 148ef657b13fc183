/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/error.h: the one list of errors, and the object that describes one failure.
 *
 * Every call returns HEDDLE_OK (0) or a negative heddle_err_t.  The call that failed also leaves a
 * heddle_error_t for its thread: heddle_last_error().  The same object travels from the broker and is
 * printed by the tools, so a failure reads the same everywhere.  No call here blocks; all are safe on any
 * thread. */
#ifndef HEDDLE_ERROR_H
#define HEDDLE_ERROR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Marks what a shared libheddle exports; everything else is hidden. */
#define HEDDLE_API __attribute__((visibility("default")))

/* X(NAME, value, stable name, exit code, what is broken, retriable, text) "What is broken" says what to
 * throw away: the message, the version, the session with a peer, a transfer from one source, or the whole
 * process. */
/* clang-format off */
#define HEDDLE_ERRORS(X)                                                                                 \
    X(USAGE, 1, "usage", 2, MESSAGE, 0, "the command or call is wrong")                                  \
    X(BAD_NAME, 2, "bad_name", 2, MESSAGE, 0, "the name is not allowed")                                 \
    X(INSECURE_ADDRESS, 3, "insecure_address", 2, MESSAGE, 0, "the address is not loopback")             \
    X(NOT_FOUND, 4, "not_found", 3, MESSAGE, 0, "there is no such thing")                                \
    X(REQUEST_CONFLICT, 5, "request_conflict", 4, VERSION, 0, "the request id was used for other bytes") \
    X(WRITER_HELD, 6, "writer_held", 4, SESSION, 1, "another writer has the adapter")                    \
    X(FENCED, 7, "fenced", 4, SESSION, 1, "a newer session replaced this one")                           \
    X(WORKER_ALIVE, 8, "worker_alive", 4, SESSION, 1, "a live worker has this name")                     \
    X(UNCHANGED, 9, "unchanged", 4, VERSION, 0, "the bytes equal the newest version's")                  \
    X(STEP_BACK, 10, "step_back", 4, VERSION, 0, "the step is lower than the newest version's")          \
    X(HELD, 11, "held", 4, VERSION, 0, "the adapter is held at an older version")                        \
    X(NOT_ACTIVATABLE, 12, "not_activatable", 4, VERSION, 0, "the version cannot be activated")          \
    X(TOO_FEW_SLOTS, 13, "too_few_slots", 4, SESSION, 0, "the worker has too few slots")                 \
    X(UCX_VERSION, 14, "ucx_version", 4, SESSION, 0, "the UCX versions differ")                          \
    X(WIRE_VERSION, 15, "wire_version", 4, SESSION, 0, "no common wire version")                         \
    X(DATA_LOCKED, 16, "data_locked", 4, PROCESS, 0, "another broker has the data directory")            \
    X(DEADLINE, 17, "deadline", 5, VERSION, 1, "the deadline ran out")                                   \
    X(NO_WORKERS, 18, "no_workers", 5, VERSION, 1, "no worker took the version")                         \
    X(DENIED, 19, "denied", 6, SESSION, 0, "not allowed")                                                \
    X(UNAVAILABLE, 20, "unavailable", 7, SESSION, 1, "the broker does not answer")                       \
    X(BAD_ADAPTER, 21, "bad_adapter", 8, VERSION, 0, "the adapter's files are wrong")                    \
    X(NO_LORA, 22, "no_lora", 8, VERSION, 0, "there is no LoRA tensor")                                  \
    X(UNSUPPORTED_PEFT_TYPE, 23, "unsupported_peft_type", 8, VERSION, 0, "the adapter is not a LoRA")    \
    X(UNSUPPORTED_FEATURE, 24, "unsupported_feature", 8, VERSION, 0,                                     \
      "the adapter has a feature that is refused")                                                       \
    X(LIMIT, 25, "limit", 8, MESSAGE, 0, "a limit was passed")                                           \
    X(PROTOCOL, 26, "protocol", 8, MESSAGE, 0, "a message is malformed or out of order")                 \
    X(VERSION_FAILED, 27, "version_failed", 1, VERSION, 0, "the version failed")                         \
    X(VERSION_LOST, 28, "version_lost", 1, VERSION, 0, "no process holds the version's bytes")           \
    X(DIGEST_MISMATCH, 29, "digest_mismatch", 1, VERSION, 0, "the digest differs")                       \
    X(DATA_DIR, 30, "data_dir", 9, PROCESS, 0, "the data directory cannot be used")                      \
    X(DATA_NEWER, 31, "data_newer", 9, PROCESS, 0, "the data are from a newer Heddle")                   \
    X(NO_SPACE, 32, "no_space", 9, MESSAGE, 1, "the disk is full")                                       \
    X(ADDRESS_IN_USE, 33, "address_in_use", 9, PROCESS, 0, "the address is taken")                       \
    X(NO_MEMORY, 34, "no_memory", 9, MESSAGE, 1, "memory ran out")                                       \
    X(NO_SLOT, 35, "no_slot", 9, VERSION, 1, "every slot is held by a reader")                           \
    X(INTERNAL, 36, "internal", 9, PROCESS, 0, "a bug in Heddle or an unexpected system error")          \
    X(UNHEALTHY, 42, "unhealthy", 1, MESSAGE, 0, "something needs an operator")                          \
    /* Inside the library and between rooms; they reach a user only through one of the above. */         \
    X(AGAIN, 37, "again", 5, MESSAGE, 1, "nothing yet")                                                  \
    X(SLOW, 38, "slow", 7, SESSION, 1, "the peer's queue is full")                                       \
    X(GONE, 39, "gone", 7, SESSION, 1, "the peer is gone")                                               \
    X(CLOSED, 40, "closed", 2, SESSION, 0, "the handle is closed")                                       \
    X(INTERRUPTED, 41, "interrupted", 130, MESSAGE, 1, "interrupted")
/* clang-format on */

typedef enum {
    HEDDLE_OK = 0,
#define X(NAME, value, name, exit, group, retriable, text) HEDDLE_ERR_##NAME = -(value),
    HEDDLE_ERRORS(X)
#undef X
} heddle_err_t;

/* What is broken, from small to large. */
typedef enum {
    HEDDLE_BROKEN_NOTHING,
    HEDDLE_BROKEN_MESSAGE,
    HEDDLE_BROKEN_VERSION,
    HEDDLE_BROKEN_TRANSFER,
    HEDDLE_BROKEN_SESSION,
    HEDDLE_BROKEN_PROCESS
} heddle_broken_t;

#define HEDDLE_NAME_MAX 128u /* bytes in a name, without the NUL */

/* One failure.  Strings are NUL-terminated, "" where unknown; version 0 where unknown. */
typedef struct heddle_error {
    int code;      /* heddle_err_t */
    int retriable; /* 1: the same call may succeed later without a change */
    uint64_t version;
    char adapter[HEDDLE_NAME_MAX + 1];
    char worker[HEDDLE_NAME_MAX + 1];
    char phase[16];    /* pack commit announce fetch verify stage activate export */
    char message[768]; /* one line: what, and where */
    char expected[192], found[192];
    char hint[256]; /* what to do about it */
} heddle_error_t;

/* Stable lower-case name of a code, e.g. "no_slot"; "ok" for 0, "unknown" for a number that is not in the
 * list. */
HEDDLE_API const char *heddle_err_name(int code);
/* One short sentence for a code. */
HEDDLE_API const char *heddle_err_text(int code);
/* The exit status of a tool that ends with this code: 0..9, or 130. */
HEDDLE_API int heddle_err_exit(int code);
/* The code of a stable name; HEDDLE_ERR_INTERNAL when the name is unknown. */
HEDDLE_API int heddle_err_from_name(const char *name);
/* What a code breaks, and so what to throw away. */
HEDDLE_API heddle_broken_t heddle_err_broken(int code);

/* The description of the last call that failed on this thread.  Never NULL; valid until the next failing
 * call on the same thread; not cleared by success. */
HEDDLE_API const heddle_error_t *heddle_last_error(void);

/* The object as JSON text, the same everywhere:
 * {"code","exit","message","adapter","version","worker","phase","expected","found", "hint","retriable"};
 * null where unknown.  NO_MEMORY.  The caller frees it with heddle_free. */
HEDDLE_API int heddle_error_json(const heddle_error_t *error, char **ret_json);

#ifdef __cplusplus
}
#endif
#endif
