/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/etcd_json.h (PURE): requests to etcd and its answers, by the JSON gateway of its API v3 (etcd
 * 3.4 and later): POST /v3/..., a JSON object each way.  Keys and values are base64, and 64-bit numbers are
 * texts; a field that is 0 or false is missing.
 *
 * A request is written into a buffer of the caller: check out->failed at the end.  An answer comes from
 * outside: any bytes are allowed, and its memory is bounded by the caller's arena.  Nothing blocks; any
 * thread. */
#ifndef BROKER_ETCD_JSON_H
#define BROKER_ETCD_JSON_H

#include "core/bytes.h"

/* ---- requests ---- */

/* Keys are those below the prefix: "meta" is PREFIX "/meta". */
typedef struct {
    buf_t *out;
    const char *prefix;
    int section, count; /* in which list, and how many are in it */
} etcd_txn_t;

/* In this order: begin, compare..., then puts, deletes and ranges of the success; etcd_txn_else; ranges of
 * the failure; end.  No comparison: it always succeeds. */
void etcd_txn_begin(etcd_txn_t *t, buf_t *out, const char *prefix);
void etcd_txn_compare_created(etcd_txn_t *t, const char *key, uint64_t revision); /* 0: there is none */
void etcd_txn_compare_changed(etcd_txn_t *t, const char *key, uint64_t revision); /* 0: there is none */
void etcd_txn_compare_value(etcd_txn_t *t, const char *key, const char *value);
void etcd_txn_put(etcd_txn_t *t, const char *key, bytes_t value, uint64_t lease); /* lease 0: none */
void etcd_txn_delete(etcd_txn_t *t, const char *key);
void etcd_txn_delete_below(etcd_txn_t *t, const char *begin); /* all keys that begin with it */
void etcd_txn_get(etcd_txn_t *t, const char *key);
/* The first keys that begin with it, which ends with '/'. */
void etcd_txn_get_below(etcd_txn_t *t, const char *begin, uint32_t limit);
void etcd_txn_get_any(etcd_txn_t *t, uint32_t limit); /* the first keys of the prefix */
void etcd_txn_else(etcd_txn_t *t);
void etcd_txn_end(etcd_txn_t *t);

/* A page of all keys of the prefix: from the one behind `after` (a key below the prefix; empty: from the
 * first), as they were at the revision (0: now). */
void etcd_json_range(buf_t *out, const char *prefix, bytes_t after, uint32_t limit, uint64_t revision);
/* All that happens to keys of the prefix from the revision on: a stream of answers. */
void etcd_json_watch(buf_t *out, const char *prefix, uint64_t revision);
void etcd_json_grant(buf_t *out, uint64_t ttl_s);
void etcd_json_lease(buf_t *out, uint64_t lease); /* keepalive, and revoke */
void etcd_json_login(buf_t *out, const char *user, const char *password);

/* ---- answers ---- */

/* A key as an answer has it, below the prefix; empty: it is not. */
bytes_t etcd_json_below(const char *prefix, bytes_t key);

typedef struct {
    bytes_t key, value; /* the key as it is, prefix and all; in the arena */
    uint64_t create_revision, mod_revision, lease;
    bool is_gone; /* of a watch: the key was deleted in mod_revision */
} etcd_kv_t;

/* gRPC's codes, as far as they lead to different things. */
typedef enum {
    ETCD_OK = 0,
    ETCD_CANCELLED = 1,
    ETCD_INVALID = 3,
    ETCD_NOT_FOUND = 5,
    ETCD_DENIED = 7,
    ETCD_EXHAUSTED = 8,
    ETCD_PRECONDITION = 9,
    ETCD_OUT_OF_RANGE = 11,
    ETCD_UNIMPLEMENTED = 12,
    ETCD_UNAVAILABLE = 14,
    ETCD_UNAUTHENTICATED = 16
} etcd_code_t;

typedef struct {
    int code; /* etcd_code_t, or another one of gRPC */
    char message[256];
    const char *token; /* of a login, in the arena; NULL: none */
    uint64_t revision, lease, ttl_s;
    bool succeeded, has_more;
    bool is_canceled; /* a watch ends with it */
    etcd_kv_t *kvs;   /* of all ranges of a transaction, one behind the other; of the events of a watch */
    size_t kv_count;
} etcd_answer_t;

/* False: no answer of etcd, or one that is not whole, or no memory in the arena, of which all borrows. */
bool etcd_answer_read(bytes_t body, arena_t *arena, etcd_answer_t *ret_answer);

#endif
