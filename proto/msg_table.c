/* SPDX-License-Identifier: Apache-2.0 */
/* The fields of every message, in the order in which they are written.  Appending a row that is not required
 * is a compatible change; anything else is a new wire version.  docs/protocol.md has the same rows with their
 * meaning. */
#include "core/limits.h"
#include "proto/field.h"
#include "proto/msg.h"

/* The compiler refuses a row whose kind does not fit the type of its member. */
#define TYPED(s, m, type, kind) _Generic(((s *)0)->m, type : FIELD_##kind)
#define ROW(s, m, type, kind_, max_, ...)                                                                    \
    {                                                                                                        \
        .key = #m, .kind = TYPED(s, m, type, kind_), .offset = offsetof(s, m), .max = max_, __VA_ARGS__      \
    }
#define COUNTED(s, n) .count_offset = offsetof(s, n) + 0 * sizeof(char[_Generic(((s *)0)->n, uint32_t : 1)])

#define REQUIRED .required = true
#define OPTIONAL .required = false
#define U64(s, m, max, need) ROW(s, m, uint64_t, U64, max, need)
#define I64(s, m, max, need) ROW(s, m, int64_t, I64, max, need)
#define COUNT(s, m)                                                                                          \
    {                                                                                                        \
        .key = #m, .kind = FIELD_U64, .offset = offsetof(s, counts.m), .max = LIMIT_EXACT                    \
    }
#define COUNTS(s)                                                                                            \
    COUNT(s, slots_total), COUNT(s, slots_free), COUNT(s, slots_held), COUNT(s, bytes_in),                   \
        COUNT(s, bytes_out), COUNT(s, chunks_bad), COUNT(s, retries), COUNT(s, fenced), COUNT(s, own_bytes), \
        COUNT(s, held_bytes)
#define MOVED(m)                                                                                             \
    {                                                                                                        \
        .key = #m, .kind = FIELD_U64, .offset = offsetof(msg_served_t, moved.m), .max = LIMIT_EXACT          \
    }
#define REGION(s)                                                                                            \
    {.key = "region", .kind = FIELD_KEY16, .offset = offsetof(s, region.identity), .max = 16},               \
    {                                                                                                        \
        .key = "region_generation", .kind = FIELD_U64, .offset = offsetof(s, region.generation),             \
        .max = LIMIT_EXACT                                                                                   \
    }
#define BOOL(s, m) ROW(s, m, bool, BOOL, 1, OPTIONAL)
#define TEXT(s, m, max, need) ROW(s, m, const char *, TEXT, max, need)
#define NAME(s, m, need) ROW(s, m, const char *, NAME, HEDDLE_NAME_MAX, need)
#define BIN(s, m, max, need) ROW(s, m, bytes_t, BIN, max, need)
#define KEY16(s, m, need) ROW(s, m, key16_t, KEY16, 16, need)
#define DIGEST(s, m, need) ROW(s, m, digest_t, DIGEST, 32, need)
#define LIST(s, m, n, type, max, need, table)                                                                \
    ROW(s, m, type *, LIST, max, need, COUNTED(s, n), .rows = &(table))
#define TEXTS(s, m, n, max, each)                                                                            \
    ROW(s, m, const char **, TEXTS, max, OPTIONAL, COUNTED(s, n), .text_max = each)
#define U64S(s, m, n, max) ROW(s, m, uint64_t *, U64S, max, OPTIONAL, COUNTED(s, n))

#define ANY UINT64_MAX   /* tokens, request ids: opaque to who gets them */
#define EPOCH UINT32_MAX /* the upper half of a token */
#define LABEL_BYTES (2 * HEDDLE_NAME_MAX + 1)
#define CODE_BYTES LIMIT_WORD_BYTES
#define ENDPOINT_TEXT 255u /* as libzmq takes them */

#define TABLE(var, name_, struct_, fields_)                                                                  \
    static const table_t var = {name_, fields_, sizeof fields_ / sizeof *fields_, sizeof(struct_)}

/* --- rows of lists --- */

/* Restated at each JOIN, since the broker's store has versions and decisions, and not which worker holds
 * which. */
static const field_t HELD_FIELDS[] = {
    NAME(msg_held_t, adapter, REQUIRED),
    U64(msg_held_t, version, LIMIT_EXACT, REQUIRED),
    U64(msg_held_t, state, HELD_KEPT, REQUIRED),
    DIGEST(msg_held_t, digest, REQUIRED),
    U64(msg_held_t, connect_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_held_t, fetch_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_held_t, verify_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_held_t, stage_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_held_t, activate_us, LIMIT_EXACT, OPTIONAL),
    REGION(msg_held_t),
    U64(msg_held_t, verified, VERIFIED_ON_HOST, OPTIONAL),
    BOOL(msg_held_t, held),
    U64(msg_held_t, age_us, LIMIT_EXACT, OPTIONAL),
};
TABLE(HELD, "held", msg_held_t, HELD_FIELDS);

/* A broker that was started again plans by these. */
static const field_t FETCHED_FIELDS[] = {
    NAME(msg_fetched_t, adapter, REQUIRED),
    U64(msg_fetched_t, version, LIMIT_EXACT, REQUIRED),
    U64(msg_fetched_t, half, 2, OPTIONAL),
    U64S(msg_fetched_t, sources, source_count, LIMIT_SOURCES),
    U64S(msg_fetched_t, others, other_count, LIMIT_SOURCES),
};
TABLE(FETCHED, "fetched", msg_fetched_t, FETCHED_FIELDS);

/* 0, 0 where nothing was applied yet, so neither number is required. */
static const field_t SUBSCRIPTION_FIELDS[] = {
    NAME(msg_subscription_t, adapter, REQUIRED),
    U64(msg_subscription_t, decision, LIMIT_EXACT, OPTIONAL),
    U64(msg_subscription_t, version, LIMIT_EXACT, OPTIONAL),
};
TABLE(SUBSCRIPTION, "subscription", msg_subscription_t, SUBSCRIPTION_FIELDS);

static const field_t DECISION_FIELDS[] = {
    NAME(msg_decision_t, adapter, REQUIRED),
    U64(msg_decision_t, decision, LIMIT_EXACT, OPTIONAL),
    U64(msg_decision_t, version, LIMIT_EXACT, OPTIONAL),
    DIGEST(msg_decision_t, digest, OPTIONAL),
};
TABLE(DECISION, "decision", msg_decision_t, DECISION_FIELDS);

/* The key is required: without it a version that is kept could not be served. */
static const field_t KEEP_FIELDS[] = {
    NAME(msg_keep_t, adapter, REQUIRED),
    U64(msg_keep_t, version, LIMIT_EXACT, REQUIRED),
    KEY16(msg_keep_t, key, REQUIRED),
};
TABLE(KEEP, "keep", msg_keep_t, KEEP_FIELDS);

/* A worker that does nothing sends the name alone, and the heartbeats of a large cluster stay short. */
static const field_t PROGRESS_FIELDS[] = {
    NAME(msg_progress_t, adapter, REQUIRED),
    U64(msg_progress_t, fetching, LIMIT_EXACT, OPTIONAL),
    U64(msg_progress_t, bytes_done, LIMIT_PAYLOAD_BYTES, OPTIONAL),
    U64(msg_progress_t, data_bytes, LIMIT_PAYLOAD_BYTES, OPTIONAL),
    U64(msg_progress_t, source, ANY, OPTIONAL),
    U64(msg_progress_t, held_count, LIMIT_EXACT, OPTIONAL),
    TEXT(msg_progress_t, message, LIMIT_TEXT_BYTES, OPTIONAL),
    U64S(msg_progress_t, spare, spare_count, LIMIT_SLOTS),
    REGION(msg_progress_t),
};
TABLE(PROGRESS, "progress", msg_progress_t, PROGRESS_FIELDS);

/* Both lengths and the digest are needed before the first read request. */
static const field_t PART_FIELDS[] = {
    U64(msg_part_t, payload_bytes, LIMIT_PAYLOAD_BYTES, REQUIRED),
    U64(msg_part_t, manifest_bytes, LIMIT_MANIFEST_BYTES, REQUIRED),
    DIGEST(msg_part_t, manifest_digest, REQUIRED),
};
TABLE(PART, "part", msg_part_t, PART_FIELDS);

static const field_t PAIR_FIELDS[] = {
    TEXT(msg_pair_t, key, HEDDLE_NAME_MAX, REQUIRED),
    TEXT(msg_pair_t, value, LIMIT_TEXT_BYTES, OPTIONAL),
};
TABLE(PAIR, "pair", msg_pair_t, PAIR_FIELDS);

/* Names are for people: a source is reached by its address, and told apart by its token. */
static const field_t SOURCE_FIELDS[] = {
    U64(msg_source_t, token, ANY, REQUIRED),
    U64(msg_source_t, kind, SOURCE_WORKER, REQUIRED),
    NAME(msg_source_t, name, OPTIONAL),
    BIN(msg_source_t, address, LIMIT_ADDRESS_BYTES, REQUIRED),
    /* Its region is reached by the socket that its life names. */
    KEY16(msg_source_t, life, OPTIONAL),
    REGION(msg_source_t),
    BOOL(msg_source_t, apart),
    BOOL(msg_source_t, partial),
    U64(msg_source_t, half, 2, OPTIONAL),
};
TABLE(SOURCE, "source", msg_source_t, SOURCE_FIELDS);

/* Restated by a publisher that opens again: only what it had may be held again. */
static const field_t OFFERED_FIELDS[] = {
    U64(msg_offered_t, version, LIMIT_EXACT, REQUIRED),
    REGION(msg_offered_t),
};
TABLE(OFFERED, "offered", msg_offered_t, OFFERED_FIELDS);

static const field_t PEER_FIELDS[] = {
    KEY16(msg_peer_t, life, REQUIRED),
};
TABLE(PEER, "peer", msg_peer_t, PEER_FIELDS);

static const field_t SERVED_FIELDS[] = {
    U64(msg_served_t, token, ANY, REQUIRED),
    U64(msg_served_t, kind, SOURCE_WORKER, OPTIONAL),
    U64(msg_served_t, bytes, LIMIT_EXACT, OPTIONAL),
    NAME(msg_served_t, name, OPTIONAL),
    MOVED(late),
    MOVED(gone),
    MOVED(refused),
    MOVED(bad),
    MOVED(slow),
};
TABLE(SERVED, "served", msg_served_t, SERVED_FIELDS);

/* Only the name is required: of a worker that was lost nothing more may be known. */
static const field_t MISSING_FIELDS[] = {
    NAME(msg_missing_t, worker, REQUIRED),
    TEXT(msg_missing_t, phase, LIMIT_WORD_BYTES, OPTIONAL),
    TEXT(msg_missing_t, code, CODE_BYTES, OPTIONAL),
    TEXT(msg_missing_t, message, LIMIT_TEXT_BYTES, OPTIONAL),
};
TABLE(MISSING, "missing", msg_missing_t, MISSING_FIELDS);

/* A key is of the same length always; a member checks it before it is used. */
static const field_t BROKER_FIELDS[] = {
    TEXT(msg_broker_t, endpoint, ENDPOINT_TEXT, REQUIRED),
    TEXT(msg_broker_t, key, LIMIT_WORD_BYTES, OPTIONAL),
};
TABLE(BROKER, "broker", msg_broker_t, BROKER_FIELDS);

/* --- session --- */

/* The life tells a process that reconnects from one that was started again, which has lost what it held. */
static const field_t HELLO_FIELDS[] = {
    U64(msg_hello_t, wire_min, UINT32_MAX, REQUIRED),
    U64(msg_hello_t, wire_max, UINT32_MAX, REQUIRED),
    U64(msg_hello_t, role, ROLE_ADMIN, REQUIRED),
    U64(msg_hello_t, pid, LIMIT_EXACT, OPTIONAL),
    KEY16(msg_hello_t, life, REQUIRED),
    TEXT(msg_hello_t, heddle, LIMIT_WORD_BYTES, OPTIONAL),
    TEXT(msg_hello_t, host, HEDDLE_NAME_MAX, OPTIONAL),
    BIN(msg_hello_t, auth, LIMIT_AUTH_BYTES, OPTIONAL),
    TEXT(msg_hello_t, cluster, HEDDLE_NAME_MAX, OPTIONAL),
};
/* It comes before any session, so that it says what a member needs to decide whether to join at all. */
static const field_t HELLO_OK_FIELDS[] = {
    U64(msg_hello_ok_t, wire, UINT32_MAX, REQUIRED),
    U64(msg_hello_ok_t, epoch, EPOCH, REQUIRED),
    U64(msg_hello_ok_t, lease_ms, LIMIT_DURATION_MS, REQUIRED),
    U64(msg_hello_ok_t, keep, LIMIT_EXACT, OPTIONAL),
    U64(msg_hello_ok_t, pid, LIMIT_EXACT, OPTIONAL),
    TEXT(msg_hello_ok_t, cluster, HEDDLE_NAME_MAX, OPTIONAL),
    TEXT(msg_hello_ok_t, heddle, LIMIT_WORD_BYTES, OPTIONAL),
    LIST(msg_hello_ok_t, brokers, broker_count, msg_broker_t, LIMIT_BROKERS, OPTIONAL, BROKER),
};
/* Almost all is optional: the first JOIN of a process has nothing to restate. */
static const field_t JOIN_FIELDS[] = {
    U64(msg_join_t, req, ANY, OPTIONAL),
    U64(msg_join_t, epoch, EPOCH, OPTIONAL),
    U64(msg_join_t, slots, LIMIT_SLOTS, OPTIONAL),
    U64(msg_join_t, prev_token, ANY, OPTIONAL),
    NAME(msg_join_t, name, REQUIRED),
    TEXTS(msg_join_t, labels, label_count, LIMIT_LABELS, LABEL_BYTES),
    LIST(msg_join_t, adapters, adapter_count, msg_subscription_t, LIMIT_ADAPTERS_PER_WORKER, OPTIONAL,
         SUBSCRIPTION),
    LIST(msg_join_t, held, held_count, msg_held_t, LIMIT_HELD, OPTIONAL, HELD),
    TEXT(msg_join_t, backend, LIMIT_WORD_BYTES, OPTIONAL),
    TEXT(msg_join_t, ucx, LIMIT_WORD_BYTES, OPTIONAL),
    TEXTS(msg_join_t, devices, device_count, LIMIT_DEVICES, HEDDLE_NAME_MAX),
    BIN(msg_join_t, address, LIMIT_ADDRESS_BYTES, OPTIONAL),
    TEXT(msg_join_t, export_dir, LIMIT_TEXT_BYTES, OPTIONAL),
    COUNTS(msg_join_t),
    U64(msg_join_t, max_rate_bytes, LIMIT_EXACT, OPTIONAL),
    TEXTS(msg_join_t, addresses, address_count, LIMIT_ADDRESSES, LIMIT_WORD_BYTES),
    U64(msg_join_t, network, ANY, OPTIONAL),
    TEXT(msg_join_t, group, HEDDLE_NAME_MAX, OPTIONAL),
    U64(msg_join_t, rank, LIMIT_RANKS, OPTIONAL),
    U64(msg_join_t, ranks, LIMIT_RANKS, OPTIONAL),
    U64(msg_join_t, place, ANY, OPTIONAL),
    TEXT(msg_join_t, unheld, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXT(msg_join_t, host_share, LIMIT_TEXT_BYTES, OPTIONAL),
    BOOL(msg_join_t, no_relay),
    BOOL(msg_join_t, draining),
    BOOL(msg_join_t, own_wish),
    LIST(msg_join_t, fetched, fetched_count, msg_fetched_t, LIMIT_ADAPTERS_PER_WORKER, OPTIONAL, FETCHED),
    U64S(msg_join_t, former_tokens, former_count, LIMIT_FORMER_TOKENS),
};
static const field_t OPEN_FIELDS[] = {
    U64(msg_open_t, req, ANY, OPTIONAL),
    U64(msg_open_t, epoch, EPOCH, OPTIONAL),
    U64(msg_open_t, prev_token, ANY, OPTIONAL),
    BOOL(msg_open_t, takeover),
    NAME(msg_open_t, adapter, REQUIRED),
    NAME(msg_open_t, writer, REQUIRED),
    TEXT(msg_open_t, backend, LIMIT_WORD_BYTES, OPTIONAL),
    TEXT(msg_open_t, ucx, LIMIT_WORD_BYTES, OPTIONAL),
    BIN(msg_open_t, address, LIMIT_ADDRESS_BYTES, OPTIONAL),
    U64(msg_open_t, serving, LIMIT_EXACT, OPTIONAL),
    U64S(msg_open_t, served, served_count, LIMIT_OPEN_SERVED),
    TEXTS(msg_open_t, addresses, address_count, LIMIT_ADDRESSES, LIMIT_WORD_BYTES),
    U64(msg_open_t, network, ANY, OPTIONAL),
    U64(msg_open_t, place, ANY, OPTIONAL),
    LIST(msg_open_t, offered, offered_count, msg_offered_t, LIMIT_OPEN_SERVED, OPTIONAL, OFFERED),
    U64(msg_open_t, max_rate_bytes, LIMIT_EXACT, OPTIONAL),
    TEXT(msg_open_t, kind, LIMIT_WORD_BYTES, OPTIONAL),
    U64S(msg_open_t, former_tokens, former_count, LIMIT_FORMER_TOKENS),
};
static const field_t WELCOME_FIELDS[] = {
    U64(msg_welcome_t, req, ANY, OPTIONAL),
    U64(msg_welcome_t, token, ANY, REQUIRED),
    U64(msg_welcome_t, epoch, EPOCH, REQUIRED),
    U64(msg_welcome_t, lease_ms, LIMIT_DURATION_MS, REQUIRED),
    U64(msg_welcome_t, slots, LIMIT_SLOTS, OPTIONAL),
    LIST(msg_welcome_t, adapters, adapter_count, msg_decision_t, LIMIT_ADAPTERS_PER_WORKER, OPTIONAL,
         DECISION),
    LIST(msg_welcome_t, keep, keep_count, msg_keep_t, LIMIT_HELD, OPTIONAL, KEEP),
    U64(msg_welcome_t, settling_ms, LIMIT_DURATION_MS, OPTIONAL),
    U64(msg_welcome_t, content_bytes, LIMIT_CONTENT_BYTES, OPTIONAL),
};
/* The number pairs a heartbeat with its answer: a member counts its lease from when that heartbeat was
 * sent, and not from when the answer came. */
static const field_t HEARTBEAT_FIELDS[] = {
    U64(msg_heartbeat_t, token, ANY, REQUIRED),
    U64(msg_heartbeat_t, seq, ANY, REQUIRED),
    LIST(msg_heartbeat_t, adapters, adapter_count, msg_progress_t, LIMIT_ADAPTERS_PER_WORKER, OPTIONAL,
         PROGRESS),
    COUNTS(msg_heartbeat_t),
    TEXT(msg_heartbeat_t, unheld, LIMIT_TEXT_BYTES, OPTIONAL),
    BOOL(msg_heartbeat_t, draining),
    BOOL(msg_heartbeat_t, own_wish),
};
static const field_t HEARTBEAT_OK_FIELDS[] = {
    U64(msg_heartbeat_ok_t, token, ANY, REQUIRED),
    U64(msg_heartbeat_ok_t, seq, ANY, REQUIRED),
    U64(msg_heartbeat_ok_t, drain, DRAIN_DONE, OPTIONAL),
    BOOL(msg_heartbeat_ok_t, stays),
    LIST(msg_heartbeat_ok_t, brokers, broker_count, msg_broker_t, LIMIT_BROKERS, OPTIONAL, BROKER),
};
static const field_t LEAVE_FIELDS[] = {
    U64(msg_leave_t, token, ANY, REQUIRED),
    U64(msg_leave_t, req, ANY, OPTIONAL),
};
static const field_t BYE_FIELDS[] = {
    U64(msg_bye_t, token, ANY, REQUIRED),
    U64(msg_bye_t, req, ANY, OPTIONAL),
};

/* --- the path of a version --- */

/* `step` is required because -1 is its empty value; what only describes a version is optional. */
static const field_t PUBLISH_FIELDS[] = {
    U64(msg_publish_t, token, ANY, REQUIRED),
    U64(msg_publish_t, req, ANY, OPTIONAL),
    U64(msg_publish_t, deadline_ms, LIMIT_DURATION_MS, OPTIONAL),
    U64(msg_publish_t, activation, 2, OPTIONAL),
    U64(msg_publish_t, if_unchanged, 2, OPTIONAL),
    BOOL(msg_publish_t, allow_step_back),
    NAME(msg_publish_t, adapter, REQUIRED),
    NAME(msg_publish_t, request_id, OPTIONAL),
    DIGEST(msg_publish_t, digest, REQUIRED),
    LIST(msg_publish_t, parts, part_count, msg_part_t, LIMIT_PARTS, REQUIRED, PART),
    I64(msg_publish_t, step, LIMIT_EXACT, REQUIRED),
    U64(msg_publish_t, data_bytes, LIMIT_PAYLOAD_BYTES, OPTIONAL),
    U64(msg_publish_t, tensor_count, LIMIT_TENSORS, OPTIONAL),
    U64(msg_publish_t, chunk_count, LIMIT_CHUNKS, OPTIONAL),
    TEXT(msg_publish_t, kind, LIMIT_WORD_BYTES, OPTIONAL),
    TEXT(msg_publish_t, base_model, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXTS(msg_publish_t, features, feature_count, LIMIT_FEATURES, LIMIT_WORD_BYTES),
    BIN(msg_publish_t, config, LIMIT_CONFIG_BYTES, OPTIONAL),
    LIST(msg_publish_t, meta, meta_count, msg_pair_t, LIMIT_META, OPTIONAL, PAIR),
    U64(msg_publish_t, asked_ms, LIMIT_DURATION_MS, OPTIONAL),
    REGION(msg_publish_t),
};
/* The digest is required: it shows to which content the number was given, also for a request that was
 * repeated. */
static const field_t PUBLISHED_FIELDS[] = {
    U64(msg_published_t, req, ANY, OPTIONAL),
    U64(msg_published_t, version, LIMIT_EXACT, REQUIRED),
    BOOL(msg_published_t, created),
    NAME(msg_published_t, adapter, REQUIRED),
    TEXT(msg_published_t, reason, LIMIT_WORD_BYTES, OPTIONAL),
    DIGEST(msg_published_t, digest, REQUIRED),
    KEY16(msg_published_t, key, OPTIONAL),
    TEXT(msg_published_t, held, LIMIT_TEXT_BYTES, OPTIONAL),
};
/* Sources may be missing: a worker without any asks for them (NEED_SOURCES). */
static const field_t ANNOUNCE_FIELDS[] = {
    U64(msg_announce_t, token, ANY, REQUIRED),
    U64(msg_announce_t, version, LIMIT_EXACT, REQUIRED),
    U64(msg_announce_t, deadline_ms, LIMIT_DURATION_MS, OPTIONAL),
    NAME(msg_announce_t, adapter, REQUIRED),
    DIGEST(msg_announce_t, digest, REQUIRED),
    LIST(msg_announce_t, parts, part_count, msg_part_t, LIMIT_PARTS, REQUIRED, PART),
    KEY16(msg_announce_t, key, REQUIRED),
    LIST(msg_announce_t, sources, source_count, msg_source_t, LIMIT_SOURCES, OPTIONAL, SOURCE),
    I64(msg_announce_t, step, LIMIT_EXACT, REQUIRED),
    U64(msg_announce_t, data_bytes, LIMIT_PAYLOAD_BYTES, OPTIONAL),
    TEXT(msg_announce_t, kind, LIMIT_WORD_BYTES, OPTIONAL),
    BOOL(msg_announce_t, kept),
};
static const field_t SOURCES_FIELDS[] = {
    U64(msg_sources_t, token, ANY, REQUIRED),
    U64(msg_sources_t, version, LIMIT_EXACT, REQUIRED),
    NAME(msg_sources_t, adapter, REQUIRED),
    LIST(msg_sources_t, sources, source_count, msg_source_t, LIMIT_SOURCES, OPTIONAL, SOURCE),
};
/* The tokens let the broker see whether its list is old, or its sources are. */
static const field_t NEED_SOURCES_FIELDS[] = {
    U64(msg_need_sources_t, token, ANY, REQUIRED),
    U64(msg_need_sources_t, version, LIMIT_EXACT, REQUIRED),
    NAME(msg_need_sources_t, adapter, REQUIRED),
    U64S(msg_need_sources_t, lost, lost_count, LIMIT_SERVED),
    U64S(msg_need_sources_t, unmet, unmet_count, LIMIT_SERVED),
    U64S(msg_need_sources_t, bad, bad_count, LIMIT_SERVED),
    U64S(msg_need_sources_t, slow, slow_count, LIMIT_SERVED),
};
/* The digest is what the worker attests; counts and times are for reports. */
static const field_t STAGED_FIELDS[] = {
    U64(msg_staged_t, token, ANY, REQUIRED),
    U64(msg_staged_t, version, LIMIT_EXACT, REQUIRED),
    NAME(msg_staged_t, adapter, REQUIRED),
    DIGEST(msg_staged_t, digest, REQUIRED),
    U64(msg_staged_t, connect_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_staged_t, fetch_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_staged_t, verify_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_staged_t, stage_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_staged_t, busy_us, LIMIT_EXACT, OPTIONAL),
    LIST(msg_staged_t, sources, source_count, msg_served_t, LIMIT_SERVED, OPTIONAL, SERVED),
    U64(msg_staged_t, bytes_in, LIMIT_EXACT, OPTIONAL),
    U64(msg_staged_t, bytes_out, LIMIT_EXACT, OPTIONAL),
    U64(msg_staged_t, chunks_bad, LIMIT_EXACT, OPTIONAL),
    U64(msg_staged_t, retries, LIMIT_EXACT, OPTIONAL),
    REGION(msg_staged_t),
    U64(msg_staged_t, verified, VERIFIED_ON_HOST, OPTIONAL),
    BOOL(msg_staged_t, held),
};
/* All is required: a worker switches by this message alone. */
static const field_t COMMIT_FIELDS[] = {
    U64(msg_commit_t, token, ANY, REQUIRED),
    U64(msg_commit_t, version, LIMIT_EXACT, REQUIRED),
    U64(msg_commit_t, decision, LIMIT_EXACT, REQUIRED),
    NAME(msg_commit_t, adapter, REQUIRED),
    DIGEST(msg_commit_t, digest, REQUIRED),
};
static const field_t ACTIVE_FIELDS[] = {
    U64(msg_active_t, token, ANY, REQUIRED),
    U64(msg_active_t, version, LIMIT_EXACT, REQUIRED),
    U64(msg_active_t, decision, LIMIT_EXACT, REQUIRED),
    U64(msg_active_t, activate_us, LIMIT_EXACT, OPTIONAL),
    NAME(msg_active_t, adapter, REQUIRED),
    DIGEST(msg_active_t, digest, REQUIRED),
};
/* The error's fields are those of ERROR, without what the session says already. */
static const field_t NACK_FIELDS[] = {
    U64(msg_nack_t, token, ANY, REQUIRED),
    U64(msg_nack_t, version, LIMIT_EXACT, REQUIRED),
    U64(msg_nack_t, decision, LIMIT_EXACT, OPTIONAL),
    NAME(msg_nack_t, adapter, REQUIRED),
    TEXT(msg_nack_t, phase, LIMIT_WORD_BYTES, OPTIONAL),
    TEXT(msg_nack_t, code, CODE_BYTES, REQUIRED),
    TEXT(msg_nack_t, message, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXT(msg_nack_t, expected, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXT(msg_nack_t, found, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXT(msg_nack_t, hint, LIMIT_TEXT_BYTES, OPTIONAL),
    U64(msg_nack_t, connect_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_nack_t, fetch_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_nack_t, verify_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_nack_t, stage_us, LIMIT_EXACT, OPTIONAL),
};
static const field_t ABORT_FIELDS[] = {
    U64(msg_abort_t, token, ANY, REQUIRED),
    U64(msg_abort_t, version, LIMIT_EXACT, REQUIRED),
    NAME(msg_abort_t, adapter, REQUIRED),
    TEXT(msg_abort_t, code, CODE_BYTES, OPTIONAL),
    TEXT(msg_abort_t, message, LIMIT_TEXT_BYTES, OPTIONAL),
};
static const field_t RETIRE_FIELDS[] = {
    U64(msg_retire_t, token, ANY, REQUIRED),
    U64(msg_retire_t, version, LIMIT_EXACT, REQUIRED),
    NAME(msg_retire_t, adapter, REQUIRED),
};
static const field_t RELEASE_FIELDS[] = {
    U64(msg_release_t, token, ANY, REQUIRED),
    U64(msg_release_t, version, LIMIT_EXACT, REQUIRED),
    NAME(msg_release_t, adapter, REQUIRED),
};
/* Counts may be zero, and a zero is left out; names of missing workers are limited, since their count is
 * there. */
static const field_t ROLLOUT_FIELDS[] = {
    U64(msg_rollout_t, token, ANY, REQUIRED),
    U64(msg_rollout_t, version, LIMIT_EXACT, REQUIRED),
    U64(msg_rollout_t, decision, LIMIT_EXACT, OPTIONAL),
    U64(msg_rollout_t, activation, 2, OPTIONAL),
    U64(msg_rollout_t, deadline_ms, LIMIT_DURATION_MS, OPTIONAL),
    U64(msg_rollout_t, eligible_count, LIMIT_PEERS, OPTIONAL),
    U64(msg_rollout_t, staged_count, LIMIT_PEERS, OPTIONAL),
    U64(msg_rollout_t, active_count, LIMIT_PEERS, OPTIONAL),
    U64(msg_rollout_t, bytes_done, ANY, OPTIONAL),
    U64(msg_rollout_t, data_bytes, ANY, OPTIONAL),
    NAME(msg_rollout_t, adapter, REQUIRED),
    TEXT(msg_rollout_t, state, LIMIT_WORD_BYTES, OPTIONAL),
    TEXT(msg_rollout_t, code, CODE_BYTES, OPTIONAL),
    TEXT(msg_rollout_t, message, LIMIT_TEXT_BYTES, OPTIONAL),
    LIST(msg_rollout_t, missing, missing_count, msg_missing_t, LIMIT_MISSING, OPTIONAL, MISSING),
    U64(msg_rollout_t, req, ANY, OPTIONAL),
};

/* --- questions --- */

/* One message for all questions: `op` names the question, and which fields count. */
static const field_t QUERY_FIELDS[] = {
    U64(msg_query_t, req, ANY, OPTIONAL),
    TEXT(msg_query_t, op, LIMIT_WORD_BYTES, REQUIRED),
    NAME(msg_query_t, name, OPTIONAL),
    U64(msg_query_t, version, LIMIT_EXACT, OPTIONAL),
    U64(msg_query_t, after, LIMIT_EXACT, OPTIONAL),
    U64(msg_query_t, limit, LIMIT_EXACT, OPTIONAL),
    NAME(msg_query_t, after_name, OPTIONAL),
    NAME(msg_query_t, worker, OPTIONAL),
    U64(msg_query_t, epoch, EPOCH, OPTIONAL),
    U64(msg_query_t, wait_ms, LIMIT_DURATION_MS, OPTIONAL),
    U64(msg_query_t, deadline_ms, LIMIT_DURATION_MS, OPTIONAL),
    U64(msg_query_t, phase, HEDDLE_PHASE_ACTIVE, OPTIONAL),
    U64(msg_query_t, quorum_kind, HEDDLE_QUORUM_NONE, OPTIONAL),
    U64(msg_query_t, quorum_n, UINT32_MAX, OPTIONAL),
    U64(msg_query_t, min, UINT32_MAX, OPTIONAL),
    BOOL(msg_query_t, exact),
    BOOL(msg_query_t, dry_run),
    TEXTS(msg_query_t, workers, worker_count, LIMIT_NAMED_WORKERS, HEDDLE_NAME_MAX),
    TEXT(msg_query_t, by, LABEL_BYTES, OPTIONAL),
    TEXT(msg_query_t, expected, HEDDLE_DIGEST_TEXT - 1, OPTIONAL),
    TEXT(msg_query_t, key, LIMIT_WORD_BYTES, OPTIONAL),
    TEXTS(msg_query_t, roles, role_count, LIMIT_ROLES, LABEL_BYTES),
    TEXT(msg_query_t, digest_head, LIMIT_WORD_BYTES, OPTIONAL),
    U64(msg_query_t, place, ANY, OPTIONAL),
    U64(msg_query_t, asked_ms, LIMIT_DURATION_MS, OPTIONAL),
    U64(msg_query_t, uses, LIMIT_INVITATION_USES, OPTIONAL),
    U64(msg_query_t, ttl_ms, LIMIT_DURATION_MS, OPTIONAL),
};
/* The body is a tree of its own (proto/value.h), so that an answer may grow without a new table. */
static const field_t REPORT_FIELDS[] = {
    U64(msg_report_t, req, ANY, OPTIONAL),
    U64(msg_report_t, next, LIMIT_EXACT, OPTIONAL),
    BOOL(msg_report_t, more),
    NAME(msg_report_t, next_name, OPTIONAL),
    BIN(msg_report_t, body, LIMIT_FRAME_BYTES, OPTIONAL),
    TEXT(msg_report_t, code, CODE_BYTES, OPTIONAL),
    KEY16(msg_report_t, key, OPTIONAL),
    LIST(msg_report_t, parts, part_count, msg_part_t, LIMIT_PARTS, OPTIONAL, PART),
    LIST(msg_report_t, sources, source_count, msg_source_t, LIMIT_SOURCES, OPTIONAL, SOURCE),
};
static const field_t VERIFY_FIELDS[] = {
    U64(msg_verify_t, token, ANY, REQUIRED),
    U64(msg_verify_t, req, ANY, OPTIONAL),
    U64(msg_verify_t, version, LIMIT_EXACT, REQUIRED),
    NAME(msg_verify_t, adapter, REQUIRED),
};
static const field_t VERIFIED_FIELDS[] = {
    U64(msg_verified_t, token, ANY, REQUIRED),
    U64(msg_verified_t, req, ANY, OPTIONAL),
    U64(msg_verified_t, version, LIMIT_EXACT, REQUIRED),
    U64(msg_verified_t, hash_us, LIMIT_EXACT, OPTIONAL),
    U64(msg_verified_t, exported, EXPORTED_DIFFERS, OPTIONAL),
    NAME(msg_verified_t, adapter, REQUIRED),
    TEXT(msg_verified_t, code, CODE_BYTES, OPTIONAL),
    DIGEST(msg_verified_t, digest, OPTIONAL),
};

/* --- failures and probes --- */

/* Only the code is required: programs act on it, and texts are for people. */
static const field_t ERROR_FIELDS[] = {
    U64(msg_error_t, req, ANY, OPTIONAL),
    U64(msg_error_t, of, UINT32_MAX, OPTIONAL),
    U64(msg_error_t, token, ANY, OPTIONAL),
    U64(msg_error_t, version, LIMIT_EXACT, OPTIONAL),
    U64(msg_error_t, retry_ms, LIMIT_DURATION_MS, OPTIONAL),
    BOOL(msg_error_t, retriable),
    TEXT(msg_error_t, code, CODE_BYTES, REQUIRED),
    TEXT(msg_error_t, message, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXT(msg_error_t, adapter, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXT(msg_error_t, worker, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXT(msg_error_t, phase, LIMIT_WORD_BYTES, OPTIONAL),
    TEXT(msg_error_t, expected, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXT(msg_error_t, found, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXT(msg_error_t, hint, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXT(msg_error_t, leader, LIMIT_TEXT_BYTES, OPTIONAL),
    TEXT(msg_error_t, leader_key, LIMIT_WORD_BYTES, OPTIONAL),
};
static const field_t PING_FIELDS[] = {
    U64(msg_ping_t, nonce, ANY, OPTIONAL),
};
/* An empty list ends what an earlier one began, so the list is not required. */
static const field_t PEERS_FIELDS[] = {
    U64(msg_peers_t, token, ANY, REQUIRED),
    LIST(msg_peers_t, peers, peer_count, msg_peer_t, LIMIT_ADAPTERS_PER_WORKER, OPTIONAL, PEER),
};

#define LONGEST(fields)                                                                                      \
    _Static_assert(sizeof(fields) / sizeof *(fields) <= 64, "the decoder's mask of seen keys")
#define X(NAME, number, name, who) LONGEST(NAME##_FIELDS);
MSG_TYPES(X)
#undef X

static const table_t TABLES[] = {
#define X(NAME, number, name, who)                                                                           \
    [number] = {#NAME, NAME##_FIELDS, sizeof NAME##_FIELDS / sizeof *NAME##_FIELDS, sizeof(msg_##name##_t)},
    MSG_TYPES(X)
#undef X
};

const table_t *msg_table(int type)
{
    bool known = type > 0 && type < (int)(sizeof TABLES / sizeof *TABLES) && TABLES[type].name;
    return known ? &TABLES[type] : NULL;
}
