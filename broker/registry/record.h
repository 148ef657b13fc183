/* SPDX-License-Identifier: Apache-2.0 */
/* broker/registry/record.h (PURE): what the broker makes durable.  decide() writes records, the store commits
 * those of one turn in one transaction, apply() takes them into memory; start-up is apply() over the
 * stored rows in the order of their kinds.
 *
 *   EPOCH       a start of the broker                     (epoch)
 *   ADAPTER     a name that was published to              (adapter)
 *   VERSION     a number was assigned to bytes            (all of version_t); PUBLISHED is sent only after
 *                                                         it is on disk
 *   DECISION    the version to serve                      (adapter, decision, version, held, by, scope, at)
 *   STATE       a version ended or was put away           (adapter, version, state, code, message,
 *                                                         activated_at)
 *   WRITER      which session may publish to an adapter; token 0: closed
 *   FLOOR       numbers up to these were given before an older copy of this store was put back
 *               (adapter, version, decision)
 *   WORKER      a worker that was ready (worker, host, pid, at, serves); serves "": it is not any more
 *   LOSS        no process has the bytes of a decided version any more (adapter, version, at, message);
 *               message "": one does again
 *   STAGED      workers have staged a version that an operator decides on (adapter, version, at)
 *   FORGET      an ended version is history no more       (adapter, version); takes its rows away, and is
 *                                                         none itself
 *   KEY         a key was added or revoked                (public_key, name, roles, at, revoked)
 *   KEYS_REVOKE an invitation, and all keys that it entered, are revoked (public_key, revoked); changes
 *               their rows, and is none itself
 *   KEY_DROP    a revoked key makes room for another      (public_key); takes its row away, and is none
 *                                                         itself
 *   ADAPTER_DROP  a name that was opened and never published to is free again (adapter); takes its row
 *                 away, and is none itself
 *   ADAPTER_FORGET  an operator forgets the versions of an adapter (adapter, by, at); takes their rows away,
 *                 and leaves a closed WRITER: it is not one that only members know; a FLOOR goes before it,
 *                 so that no number is given again
 *
 * Loop thread; nothing blocks. */
#ifndef BROKER_RECORD_H
#define BROKER_RECORD_H

#include "core/limits.h"
#include "proto/msg.h"

#define EPOCH_MAX UINT32_MAX /* the upper half of a token */
/* members' word raises it no further: the rest is for starts */
#define EPOCH_REPORTED_MAX (EPOCH_MAX - (1u << 24))

typedef enum {
    RECORD_EPOCH = 1,
    RECORD_ADAPTER,
    RECORD_VERSION,
    RECORD_DECISION,
    RECORD_STATE,
    RECORD_WRITER,
    RECORD_FLOOR,
    RECORD_WORKER,
    RECORD_LOSS,
    RECORD_STAGED,
    RECORD_FORGET,
    RECORD_KEY,
    RECORD_KEY_DROP,
    RECORD_KEYS_REVOKE,
    RECORD_ADAPTER_DROP,
    RECORD_ADAPTER_FORGET
} record_kind_t;

/* Version states (enum of docs/json.md).  ACTIVE and LOST are derived: the version that the latest decision
 * names; a committed version without a holder. Durable: STAGING, COMMITTED (a decision named it once),
 * SUPERSEDED, FAILED, RETIRED. */
typedef enum {
    VERSION_STAGING = 1,
    VERSION_COMMITTED,
    VERSION_SUPERSEDED,
    VERSION_FAILED,
    VERSION_RETIRED
} version_state_t;

/* The workers that a decision is for. */
typedef enum { SCOPE_EVERYONE = 0 } scope_t;

/* What a version consists of.  A row on disk has one part, as each version of this release. */
typedef struct {
    msg_part_t part[LIMIT_VERSION_PARTS];
    uint32_t count;
} record_parts_t;

static inline uint64_t record_payload_bytes(const record_parts_t *parts)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < parts->count; i++) bytes += parts->part[i].payload_bytes;
    return bytes;
}

/* Text fields borrow: from the message during decide and apply, from the row during load; apply() copies. */
typedef struct record {
    record_kind_t kind;
    const char *adapter;
    uint64_t epoch, version, decision, at_ms; /* at_ms: wall clock */
    /* VERSION */
    digest_t digest;
    record_parts_t parts;
    key16_t share_key;
    const char *request_id, *writer, *base_model, *kind_text, *features; /* features: comma-separated,
                                                                          * sorted */
    int64_t step;
    uint64_t data_bytes, tensor_count, chunk_count, activation, deadline_ms;
    bytes_t config;
    const char *meta;    /* JSON object text */
    uint64_t asked_ms;   /* of which deadline_ms is what was left; 0: the same */
    msg_region_t region; /* of its publisher's process: soft, and not stored */
    /* STATE */
    version_state_t state;
    int code; /* heddle_err_t, 0 */
    const char *message;
    const char *worker, *phase; /* of the failure; "" */
    /* DECISION */
    bool held;
    const char *by; /* ADAPTER_FORGET, too */
    scope_t scope;
    /* WRITER */
    uint64_t token, pid;
    const char *host;
    key16_t life;
    /* WORKER: its adapters and the versions that it served: "policy@7,other@0" */
    const char *serves;
    /* KEY */
    const char *public_key, *name, *roles; /* roles: comma-separated */
    uint64_t revoked_ms;                   /* 0: live */
    uint64_t uses, used, ends_ms;          /* of an invitation; uses 0: it is none */
    const char *entered_by;                /* public key of the invitation that entered it; "", NULL: none */
} record_t;

#endif
