/* SPDX-License-Identifier: Apache-2.0 */
/* proto/msg.h: the control messages.  One frame is one message: a msgpack array [type, {key: value, ...}].
 *
 * Each message is a struct here, and a table of fields in msg_table.c that encoding and decoding follow.
 * docs/protocol.md describes the same in prose; a test compares the two.  Unknown keys are skipped, so that
 * later releases can add some; unknown types are refused.  An absent key leaves the zero value ("" for texts,
 * never NULL) unless the table says "required".
 *
 * Decoding begins with a scan (proto/scan.h); nothing is allocated before it has passed.  Texts are
 * NUL-terminated copies in the message's arena; `bytes_t` fields borrow from the frame.
 * The caller owns a msg_t (msg_fini frees the arena); one thread at a time.  Nothing blocks. */
#ifndef PROTO_MSG_H
#define PROTO_MSG_H

#include "core/bytes.h"
#include "core/names.h"

#define WIRE_VERSION_MIN 1u
#define WIRE_VERSION_MAX 1u

/* X(NAME, number, struct, who sends it).  Numbers never change and are never reused. */
/* clang-format off */
#define MSG_TYPES(X)                                                                                         \
    X(HELLO, 1, hello, "any -> broker")                                                                      \
    X(HELLO_OK, 2, hello_ok, "broker -> any")                                                                \
    X(JOIN, 3, join, "worker -> broker")                                                                     \
    X(OPEN, 4, open, "publisher -> broker")                                                                  \
    X(WELCOME, 5, welcome, "broker -> worker, publisher")                                                    \
    X(HEARTBEAT, 6, heartbeat, "worker, publisher -> broker")                                                \
    X(HEARTBEAT_OK, 7, heartbeat_ok, "broker -> worker, publisher")                                          \
    X(LEAVE, 8, leave, "worker, publisher -> broker")                                                        \
    X(BYE, 9, bye, "broker -> worker, publisher")                                                            \
    X(PUBLISH, 10, publish, "publisher -> broker")                                                           \
    X(PUBLISHED, 11, published, "broker -> publisher")                                                       \
    X(ANNOUNCE, 12, announce, "broker -> worker")                                                            \
    X(SOURCES, 13, sources, "broker -> worker")                                                              \
    X(NEED_SOURCES, 14, need_sources, "worker -> broker")                                                    \
    X(STAGED, 15, staged, "worker -> broker")                                                                \
    X(COMMIT, 16, commit, "broker -> worker")                                                                \
    X(ACTIVE, 17, active, "worker -> broker")                                                                \
    X(NACK, 18, nack, "worker -> broker")                                                                    \
    X(ABORT, 19, abort, "broker -> worker")                                                                  \
    X(RETIRE, 20, retire, "broker -> worker")                                                                \
    X(RELEASE, 21, release, "broker -> publisher")                                                           \
    X(ROLLOUT, 22, rollout, "broker -> publisher")                                                           \
    X(QUERY, 23, query, "any -> broker")                                                                     \
    X(REPORT, 24, report, "broker -> any")                                                                   \
    X(VERIFY, 25, verify, "broker -> worker")                                                                \
    X(VERIFIED, 26, verified, "worker -> broker")                                                            \
    X(ERROR, 27, error, "broker -> any")                                                                     \
    X(PING, 28, ping, "broker -> any; needs no answer")                                                      \
    X(PEERS, 29, peers, "broker -> worker")
/* clang-format on */

typedef enum {
#define X(NAME, number, name, who) MSG_##NAME = number,
    MSG_TYPES(X)
#undef X
} msg_type_t;

typedef enum { ROLE_WORKER = 1, ROLE_PUBLISHER = 2, ROLE_ADMIN = 3 } role_t;
typedef struct {
    uint8_t b[16];
} key16_t; /* share keys, life ids, identities of regions */

/* Shared memory in which a member has a version, for other members of its place to hold instead of a copy:
 * the region's identity, and its generation with the version.  generation 0: none. */
typedef struct {
    key16_t identity;
    uint64_t generation;
} msg_region_t;

/* First on every connection, again after every reconnect. */
typedef struct {
    uint64_t wire_min, wire_max, role, pid;
    key16_t life;
    const char *heddle, *host;
    bytes_t auth;
    const char *cluster; /* that it joined before, "" none: another one is not for it */
} msg_hello_t;
/* A broker of the cluster: its address, and the public key that it proves; "": the same as the one that says
 * this, or none. */
typedef struct {
    const char *endpoint, *key;
} msg_broker_t;
typedef struct {
    uint64_t wire, epoch, lease_ms, keep, pid;
    const char *cluster, *heddle;
    msg_broker_t *brokers; /* all of them, so that one known address is enough; none: they are not known */
    uint32_t broker_count;
} msg_hello_ok_t;

/* What a worker holds of a version, restated at each join, with how long it took (as in STAGED and ACTIVE; 0:
 * not known).  state: held_state_t. */
typedef enum { HELD_SEALED = 1, HELD_STAGED = 2, HELD_ACTIVE = 3, HELD_KEPT = 4 } held_state_t;
typedef struct {
    const char *adapter;
    uint64_t version, state;
    digest_t digest;
    uint64_t connect_us, fetch_us, verify_us, stage_us, activate_us;
    msg_region_t region;
    uint64_t verified; /* these two as in STAGED */
    bool held;
    uint64_t age_us; /* in this state, by the worker's clock; 0: not known */
} msg_held_t;
/* A version that a worker fetches, restated at each join: its sources, the one that it asks first.
 * half: of the chunks that `sources` are for, and `others` are for the other one; 0: for all. */
typedef struct {
    const char *adapter;
    uint64_t version, half;
    uint64_t *sources;
    uint32_t source_count;
    uint64_t *others;
    uint32_t other_count; /* tokens */
} msg_fetched_t;
/* One subscription: the last decision applied here, and the version that it named (0, 0: none yet). */
typedef struct {
    const char *adapter;
    uint64_t decision, version;
} msg_subscription_t;
/* What a worker counts: in JOIN and HEARTBEAT. */
typedef struct {
    uint64_t slots_total, slots_free, slots_held; /* of all adapters; used by no version; with readers */
    uint64_t bytes_in, bytes_out, chunks_bad, retries, fenced; /* since the process began */
    uint64_t own_bytes, held_bytes; /* of regions: its own; of others, mapped here */
} msg_counts_t;

typedef struct {
    uint64_t req, epoch, slots, prev_token; /* epoch, prev_token: of the last WELCOME, 0 at first; slots
                                             * 0: broker's default */
    const char *name;
    const char **labels;
    uint32_t label_count;
    msg_subscription_t *adapters;
    uint32_t adapter_count;
    msg_held_t *held;
    uint32_t held_count;
    msg_fetched_t *fetched;
    uint32_t fetched_count;
    const char *backend, *ucx; /* "ucx" and its version "1.13.1"; "mem" and "" */
    const char **devices;
    uint32_t device_count;
    bytes_t address;         /* of the data plane, opaque */
    const char *export_dir;  /* "" : none */
    msg_counts_t counts;     /* all 0 at the first JOIN */
    uint64_t max_rate_bytes; /* a second at most, that it serves, and that it fetches; 0: no limit */
    const char **addresses;
    uint32_t address_count; /* of `address`, for people: "10.0.0.5" */
    uint64_t network;       /* equal where two members reach each other's loopback; 0: it is
                             * not known */
    const char *group;
    uint64_t rank, ranks; /* of workers that serve as one; "", 0, 0: none */
    /* equal where two members can hold each other's regions; the upper 32 bits are those of the host.  0: it
     * holds none, and offers none */
    uint64_t place;
    const char *unheld;     /* as in HEARTBEAT */
    const char *host_share; /* directory of its sockets for shared memory; "": they are abstract */
    bool no_relay;          /* others fetch from it only where no other process has the version */
    bool draining;          /* it is about to leave, and restates that */
    bool own_wish;          /* of `draining`: its application's, which no operator takes back */
    /* the last one of each earlier start of the broker, newest first: others may still name this one so */
    uint64_t *former_tokens;
    uint32_t former_count;
} msg_join_t;

/* A version that a publisher still serves, in a region that others of its place may hold. */
typedef struct {
    uint64_t version;
    msg_region_t region;
} msg_offered_t;

typedef struct {
    uint64_t req, epoch, prev_token;
    bool takeover;
    const char *adapter, *writer, *backend, *ucx;
    bytes_t address;
    uint64_t serving; /* newest version whose region is still served, restated; 0:
                       * none */
    uint64_t *served;
    uint32_t served_count; /* all of them */
    const char **addresses;
    uint32_t address_count; /* these three as in JOIN */
    uint64_t network, place;
    msg_offered_t *offered;
    uint32_t offered_count;  /* of `served`, those that may be held */
    uint64_t max_rate_bytes; /* a second at most, that it serves; 0: no limit */
    const char *kind;        /* of what it will publish; "": lora */
    uint64_t *former_tokens; /* as in JOIN */
    uint32_t former_count;
} msg_open_t;

/* What the broker knows of a subscription.  version 0: nothing was activated yet. */
typedef struct {
    const char *adapter;
    uint64_t decision, version;
    digest_t digest;
} msg_decision_t;
/* A version that the member holds or serves and may go on holding: its share key.  What was restated and is
 * not listed is dropped. */
typedef struct {
    const char *adapter;
    uint64_t version;
    key16_t key;
} msg_keep_t;
typedef struct {
    uint64_t req, token, epoch, lease_ms, slots;
    msg_decision_t *adapters;
    uint32_t adapter_count;
    msg_keep_t *keep;
    uint32_t keep_count;
    uint64_t settling_ms; /* the broker decides nothing for so long yet; 0: it does */
    uint64_t
        content_bytes; /* publisher: of its adapter's newest version, manifest included; 0: there is none */
} msg_welcome_t;

/* Progress of one subscription.  message: why no byte of `fetching` has come; "" where bytes come.
 * spare: while an announced version waits for a slot: the kept versions that no reader holds. */
typedef struct {
    const char *adapter;
    uint64_t fetching, bytes_done, data_bytes, source, held_count;
    const char *message;
    uint64_t *spare;
    uint32_t spare_count;
    msg_region_t region; /* that has `fetching`, whole and verified */
} msg_progress_t;
typedef struct {
    uint64_t token, seq;
    msg_progress_t *adapters;
    uint32_t adapter_count;
    msg_counts_t counts;
    const char *unheld;      /* why versions of its host are copied, though not by --own-memory; "": they are
                              * held where they are */
    bool draining, own_wish; /* as in JOIN */
} msg_heartbeat_t;
/* How far a worker is that is about to leave. */
typedef enum {
    DRAIN_NONE,  /* it stays */
    DRAIN_BEGUN, /* no rollout waits for it, and others fetch what only it holds */
    DRAIN_DONE   /* others hold all that is needed of what it holds: it leaves */
} drain_t;
typedef struct {
    uint64_t token, seq, drain; /* drain_t */
    bool stays;                 /* what it restates was taken back: it drains no more */
    msg_broker_t *brokers;      /* as in HELLO_OK, where they have changed; none: they have not */
    uint32_t broker_count;
} msg_heartbeat_ok_t;
typedef struct {
    uint64_t token, req;
} msg_leave_t;
typedef struct {
    uint64_t token, req;
} msg_bye_t;

/* The content of a version, or one part of it: the payload, then its manifest at the next 4 KiB boundary. */
typedef struct {
    uint64_t payload_bytes, manifest_bytes; /* manifest at offset round_up(payload_bytes, 4096) */
    digest_t manifest_digest;               /* BLAKE2b-256 of the manifest's bytes */
} msg_part_t;
typedef struct {
    const char *key, *value;
} msg_pair_t;

typedef struct {
    uint64_t token, req, deadline_ms, activation, if_unchanged; /* heddle_activation_t, heddle_unchanged_t */
    bool allow_step_back;
    const char *adapter, *request_id;
    digest_t digest; /* h1 */
    msg_part_t *parts;
    uint32_t part_count; /* 1 in this release */
    int64_t step;        /* -1: none */
    uint64_t data_bytes, tensor_count, chunk_count;
    const char *kind, *base_model;
    const char **features;
    uint32_t feature_count;
    bytes_t config; /* adapter_config.json as published, shown by `versions REF` */
    msg_pair_t *meta;
    uint32_t meta_count;
    uint64_t asked_ms; /* of which deadline_ms is what is left; 0: the same */
    msg_region_t region;
} msg_publish_t;
typedef struct {
    uint64_t req, version;
    bool created;
    const char *adapter, *reason; /* "replayed" | "unchanged" | "" */
    digest_t digest;
    key16_t key;
    const char *held; /* why the version will not be activated; "": it may be */
} msg_published_t;

typedef enum { SOURCE_PUBLISHER = 1, SOURCE_WORKER = 2 } source_kind_t;
typedef struct {
    uint64_t token, kind;
    const char *name;
    bytes_t address;
    /* only of the receiver's own place, where it has the version in a region: under its life it is asked for
     * that */
    key16_t life;
    msg_region_t region;
    bool apart;    /* of the receiver's host, but of another place */
    bool partial;  /* it still fetches the version itself */
    uint64_t half; /* of the chunks, that it is a source for: 1, 2; 0: for all */
} msg_source_t;
typedef struct {
    uint64_t token, version, deadline_ms; /* deadline_ms: left of the rollout's; 0: a late joiner, no
                                           * deadline */
    const char *adapter;
    digest_t digest;
    msg_part_t *parts;
    uint32_t part_count;
    key16_t key;
    msg_source_t *sources;
    uint32_t source_count; /* in the order to be tried */
    int64_t step;
    uint64_t data_bytes;
    const char *kind; /* "": lora */
    bool kept;        /* another version is active: this one is to go back to, and stays until RETIRE */
} msg_announce_t;
typedef struct {
    uint64_t token, version;
    const char *adapter;
    msg_source_t *sources;
    uint32_t source_count;
} msg_sources_t;
/* Every source known is gone, late, refused or bad; or one is to be blamed, and the fetch goes on.  `lost`:
 * tokens of those that were; `unmet`: of these, those that never answered, or are late and may still answer.
 * `bad`: sent bytes that have another digest; `slow`: was left for another source, which was faster. */
typedef struct {
    uint64_t token, version;
    const char *adapter;
    uint64_t *lost;
    uint32_t lost_count;
    uint64_t *unmet;
    uint32_t unmet_count;
    uint64_t *bad;
    uint32_t bad_count;
    uint64_t *slow;
    uint32_t slow_count;
} msg_need_sources_t;

/* Which process compared the bytes with the manifest: this one, or another one of the host, for all that hold
 * the region. */
typedef enum { VERIFIED_UNKNOWN = 0, VERIFIED_HERE = 1, VERIFIED_ON_HOST = 2 } verified_where_t;
/* Read requests that were taken back from a source, by the reason: it did not answer in time, is gone,
 * refused, sent wrong bytes, or another one had the bytes sooner. */
typedef struct {
    uint64_t late, gone, refused, bad, slow;
} msg_moved_t;
typedef struct {
    uint64_t token, kind, bytes;
    const char *name;
    msg_moved_t moved;
} msg_served_t;
typedef struct {
    uint64_t token, version;
    const char *adapter;
    digest_t digest;
    uint64_t connect_us, fetch_us, verify_us, stage_us;
    uint64_t busy_us; /* between fetch and stage: the application was busy with another version */
    msg_served_t *sources;
    uint32_t source_count;                             /* who served how many bytes */
    uint64_t bytes_in, bytes_out, chunks_bad, retries; /* as in HEARTBEAT */
    msg_region_t region;
    uint64_t verified; /* verified_where_t */
    bool held;         /* the region is another process's */
} msg_staged_t;
typedef struct {
    uint64_t token, version, decision;
    const char *adapter;
    digest_t digest;
} msg_commit_t;
typedef struct {
    uint64_t token, version, decision, activate_us;
    const char *adapter;
    digest_t digest;
} msg_active_t;
typedef struct {
    uint64_t token, version, decision; /* decision 0: failed before the commit */
    const char *adapter, *phase, *code, *message, *expected, *found, *hint;
    /* as in STAGED, where the bytes were whole: the application refused them */
    uint64_t connect_us, fetch_us, verify_us, stage_us;
} msg_nack_t;
typedef struct {
    uint64_t token, version;
    const char *adapter, *code, *message;
} msg_abort_t;
typedef struct {
    uint64_t token, version;
    const char *adapter;
} msg_retire_t;
typedef struct {
    uint64_t token, version;
    const char *adapter;
} msg_release_t;

typedef struct {
    const char *worker, *phase, *code, *message;
} msg_missing_t;
typedef struct {
    uint64_t token, version, decision, activation, deadline_ms, eligible_count, staged_count, active_count;
    uint64_t bytes_done, data_bytes; /* that the eligible workers have together, and are to have */
    const char *adapter, *state, *code, *message; /* code: why it failed, or "held"; "" */
    msg_missing_t *missing;
    uint32_t missing_count;
    uint64_t req; /* of the QUERY that it answers, and token is 0; 0: it answers none */
} msg_rollout_t;

/* op: status adapters versions workers events wait activate rollback resume forget pull verify keys
 * key_add key_revoke invite enter.  Unused fields are zero. */
typedef struct {
    uint64_t req;
    const char *op, *name;          /* name: adapter (or worker for `workers`, "" = all) */
    uint64_t version, after, limit; /* version 0: the name alone; after: page cursor (versions,
                                     * events) */
    const char *after_name;         /* page cursor (adapters, workers) */
    const char *worker;             /* events: filter */
    uint64_t epoch, wait_ms, deadline_ms, phase, quorum_kind, quorum_n, min;
    bool exact, dry_run;
    const char **workers;
    uint32_t worker_count;
    const char *by, *expected; /* activate; verify */
    const char *key;           /* key_add, key_revoke, invite, enter: a public key; key_revoke "":
                                * the one of that name */
    const char **roles;
    uint32_t role_count;     /* key_add, invite */
    const char *digest_head; /* of the version, as a tag has it; "": not compared */
    uint64_t place;          /* pull: as in JOIN */
    uint64_t asked_ms;       /* of which deadline_ms is what is left; 0: the same */
    uint64_t uses, ttl_ms;   /* invite */
} msg_query_t;
/* body: one msgpack value, the object of the command (proto/value.h).  more: ask again with after = next. */
typedef struct {
    uint64_t req, next;
    bool more;
    const char *next_name;
    bytes_t body;
    const char *code;
    key16_t key; /* pull: as in ANNOUNCE, with the two lists */
    msg_part_t *parts;
    uint32_t part_count;
    msg_source_t *sources;
    uint32_t source_count;
} msg_report_t;

typedef struct {
    uint64_t token, req, version;
    const char *adapter;
} msg_verify_t;
typedef enum { EXPORTED_UNKNOWN = 0, EXPORTED_MATCH = 1, EXPORTED_DIFFERS = 2 } exported_t;
typedef struct {
    uint64_t token, req, version, hash_us, exported;
    const char *adapter, *code;
    digest_t digest;
} msg_verified_t;

/* token: the session it is about, 0 if none; of: type of the message it answers, 0 if none; leader: of a
 * standby, or of a broker that led: the address of the one that leads, or may, and leader_key: its public
 * key, "" where that is not known. */
typedef struct {
    uint64_t req, of, token, version, retry_ms;
    bool retriable;
    const char *code, *message, *adapter, *worker, *phase, *expected, *found, *hint, *leader, *leader_key;
} msg_error_t;
typedef struct {
    uint64_t nonce;
} msg_ping_t;

typedef struct {
    key16_t life;
} msg_peer_t;
/* All publishers of the worker's place that write one of its adapters: it maps their regions in advance. */
typedef struct {
    uint64_t token;
    msg_peer_t *peers;
    uint32_t peer_count;
} msg_peers_t;

#define MSG_ROOM_BYTES 1024u /* texts and lists of most messages of a version */
typedef struct msg {
    msg_type_t type;
    union {
#define X(NAME, number, name, who) msg_##name##_t name;
        MSG_TYPES(X)
#undef X
    };
    arena_t arena; /* of a decoded message, which is not copied: its texts may be in `room` */
    _Alignas(16) uint8_t room[MSG_ROOM_BYTES];
} msg_t;

/* Appends the frame to `out`.  Text fields that are NULL go as "", bytes in them that are not UTF-8 as '?'.
 * What is encoded can be decoded: LIMIT when a field or the frame (LIMIT_FRAME_BYTES) is too large, PROTOCOL
 * when a required text is empty, a name is none or the type is unknown; NO_MEMORY.  `out` is then as it was.
 */
int msg_encode(const msg_t *m, buf_t *out);
/* PROTOCOL or LIMIT with what is wrong and where; *ret_msg is then zero.  On OK the caller calls msg_fini. */
int msg_decode(bytes_t frame, msg_t *ret_msg, heddle_error_t *error);
void msg_fini(msg_t *m);
/* "PUBLISH"; "?" for a number that is no type. */
const char *msg_name(int type);
/* The fields of a type (proto/field.h); NULL for a number that is no type.  For tests and tools that walk
 * them. */
const struct table *msg_table(int type);

/* Fills an ERROR message from an error object (borrows its texts), and back. */
void msg_from_error(const heddle_error_t *error, uint64_t req, msg_type_t of, msg_t *ret_msg);
void msg_to_error(const msg_error_t *m, heddle_error_t *ret_error);

#endif
