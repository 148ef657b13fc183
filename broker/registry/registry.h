/* SPDX-License-Identifier: Apache-2.0 */
/* broker/registry/registry.h (PURE): what is durable: adapters, their versions, decisions and writers; and
 * which workers were ready (roster.h).
 *
 * State of a version (version_state_t of record.h; terminal ones in the last column):
 *
 *   event                           staging        committed        superseded · failed · retired
 *   VERSION record (PUBLISH)        -> (new row)
 *   DECISION that names it          committed      committed        - (never decided: not_activatable)
 *   STATE superseded (overtaken)    superseded     -                -
 *   STATE failed                    failed         - (forward only) -
 *   STATE retired                   -              retired          -
 *   FORGET                          -              -                (no row: never the greatest number)
 *
 * At most two versions of an adapter are staging: the *staging* one, which is rolled out, and behind it
 * the *waiting* one, the newest.  A publication supersedes the one that waits; the rollout supersedes the
 * staging one where nothing more comes of it (rollout.h).
 *
 * decide functions change nothing: they add records and answers to an outbox, or return an error to be
 * sent. registry_apply is the only way in, for records just committed and for rows read at start-up,
 * whose order within a kind and between kinds does not matter (a deep compare after a restart shows the
 * same registry).
 *
 * Memory: config, base model, meta and texts of a version live while it is staging or committed; of an
 * ended one only what `versions` lists and what request ids need.  The LIMIT_HISTORY newest ended
 * versions of an adapter are history, here and on disk: with each that ends, FORGET takes the oldest
 * away.  The greatest number and the version of the latest decision always stay, so that no number of
 * either is used again after a restart.  Nothing blocks; one thread.  Pointers returned stay valid
 * until the next registry_apply. */
#ifndef BROKER_REGISTRY_H
#define BROKER_REGISTRY_H

#include "broker/outbox.h"

#define REGISTRY_KEEP_MAX 61u /* slots 2 + keep <= LIMIT_SLOTS - 1 */

typedef struct version_row {
    uint64_t version, created_ms; /* wall clock */
    version_state_t state;
    uint64_t decision, activated_ms;   /* the greatest decision that named it; 0: none */
    uint64_t first_decision, first_ms; /* the first that named it, and when; 0: none */
    uint64_t ended_ms;
    digest_t digest;
    msg_part_t part;
    key16_t share_key;
    int64_t step; /* -1: none */
    uint64_t data_bytes, tensor_count, chunk_count, activation, deadline_ms;
    uint64_t asked_ms; /* of which deadline_ms is what packing left */
    /* never NULL; features: comma-separated; meta: JSON text, "" none */
    char *request_id, *writer, *base_model, *kind, *features, *meta;
    /* 0 when ended: only the store has it then */
    uint8_t *config;
    size_t config_bytes;
    int code;                       /* why it ended (heddle_err_t), 0 */
    char *message, *worker, *phase; /* of the failure; never NULL */
    /* live, and no process has its bytes: since when, and the reason that was given; 0, "": one does */
    uint64_t lost_ms;
    char *lost_why;
} version_row_t;

typedef struct writer_row {
    uint64_t token; /* 0: closed */
    uint64_t pid, since_ms;
    key16_t life;
    char name[HEDDLE_NAME_MAX + 1], host[HEDDLE_NAME_MAX + 1];
} writer_row_t;

typedef struct adapter_row {
    char name[HEDDLE_NAME_MAX + 1];
    version_row_t **versions; /* ascending by number */
    size_t version_count, version_capacity, ended_count;
    /* greatest number ever assigned, also of versions that were forgotten, or that only members know of */
    uint64_t last_version;
    /* greatest decision that members know of; the next one is greater */
    uint64_t floor_decision;
    /* the lowest and the greatest number that is staging; 0: none */
    uint64_t first_staging, last_staging;
    /* the latest decision and the version that it names; 0, 0: none yet */
    uint64_t decision, active, decided_ms;
    scope_t scope; /* of the latest decision: the workers for which `active` is active */
    bool held;
    char held_by[HEDDLE_NAME_MAX + 1]; /* of the latest decision, when held */
    writer_row_t writer;
} adapter_row_t;

/* A worker that was ready when this was written. */
typedef struct worker_row {
    char name[HEDDLE_NAME_MAX + 1], host[HEDDLE_NAME_MAX + 1];
    uint64_t pid, joined_ms;
    char *serves; /* as in the record */
} worker_row_t;

typedef struct registry {
    uint64_t epoch;
    adapter_row_t **adapters; /* ascending by name */
    size_t adapter_count, adapter_capacity;
    worker_row_t **workers; /* ascending by name */
    size_t worker_count, worker_capacity;
} registry_t;

void registry_init(registry_t *r);
void registry_fini(registry_t *r);
/* OK · NO_MEMORY · INTERNAL: a row that cannot be (unknown kind, a name that is none, version of no adapter,
 * second digest of a version). */
int registry_apply(registry_t *r, const record_t *record);

/* ---- reading ---- */
/* NULL: never published to */
adapter_row_t *registry_adapter(const registry_t *r, const char *name);
/* NULL: it was not ready */
const worker_row_t *registry_worker(const registry_t *r, const char *name);
/* NULL: never assigned, or forgotten */
version_row_t *registry_version(const adapter_row_t *a, uint64_t version);
/* NULL: nothing decided */
version_row_t *registry_active(const adapter_row_t *a);
/* greatest number in memory; NULL: none */
version_row_t *registry_newest(const adapter_row_t *a);
/* staging or committed */
version_row_t *registry_newest_live(const adapter_row_t *a);
/* the one that is rolled out; NULL */
version_row_t *registry_staging(const adapter_row_t *a);
/* the one that comes after it; NULL */
version_row_t *registry_waiting(const adapter_row_t *a);
bool registry_is_live(const version_row_t *v);
/* staging, or the active one: workers may still have to fetch it */
bool registry_is_wanted(const adapter_row_t *a, const version_row_t *v);
/* Index of the earliest live version, at most the end.  Before it are only ended versions, up to a
 * thousand of a busy adapter, which no message has to look at. */
size_t registry_live_from(const adapter_row_t *a);
/* The decision from which on `version` counts as reached or overtaken; 0: none yet. */
uint64_t registry_reached_at(const adapter_row_t *a, const version_row_t *v);

/* ---- deciding ---- */

/* PUBLISH by the adapter's open writer, with the newest live version (rollout_newest_live, because which
 * processes have its bytes is soft state).  Answered first: an exact replay of a request id (created=false
 * "replayed"), then the same id with other bytes (REQUEST_CONFLICT); the id is free where its version
 * failed because its publisher ended (VERSION_LOST).  Then STEP_BACK, UNCHANGED (UNAVAILABLE, retriable,
 * while it is not known yet whether the same bytes are lost), and UNAVAILABLE, not retriable, where no
 * worker can reach the writer.  On OK: records VERSION STATE(superseded, of what waited)? and PUBLISHED to
 * `peer`; *ret_published: the version that stands for it, and whether it is new. */
typedef struct {
    instant_t now;
    const adapter_row_t *adapter; /* NULL: never opened */
    uint64_t peer;
    const char *writer;
    key16_t share_key;
    const version_row_t *live;    /* what UNCHANGED compares with; NULL: nothing, each is new */
    const version_row_t *awaited; /* after a start: of the same bytes (rollout_awaited); NULL: none */
    const char *held;             /* rollout_held_text; NULL: the adapter is not held */
    uint64_t held_version;        /* at which it is */
    size_t cut_off_count;         /* membership_cut_off: a new version would reach none of them */
    const char *addresses;        /* the writer's, for the refusal */
} publish_by_t;
typedef struct {
    uint64_t version;
    bool is_new;
} publish_answer_t;
int registry_decide_publish(const msg_publish_t *m, const publish_by_t *by, outbox_t *out,
                            publish_answer_t *ret_published, heddle_error_t *error);

/* OPEN: which process asks, and how the present writer stands (soft state that membership knows). */
typedef struct {
    uint64_t token, pid;
    const char *host;
    key16_t life;
    bool holder_is_live;
    bool is_of_before;         /* it opened before the broker's start, and was not heard of since */
    uint64_t heartbeat_age_ms; /* or of that start */
} open_by_t;
/* May it?  LIMIT · WRITER_HELD; by->token is not looked at. */
int registry_check_open(const registry_t *r, const msg_open_t *m, const open_by_t *by, heddle_error_t *error);
/* The same, and records ADAPTER? WRITER. */
int registry_decide_open(const registry_t *r, const msg_open_t *m, const open_by_t *by, instant_t now,
                         outbox_t *out, heddle_error_t *error);
/* Closes the adapter's writer: record WRITER with token 0. */
void registry_decide_close(const adapter_row_t *a, instant_t now, outbox_t *out);

/* ACTIVATE by hand: NOT_FOUND, NOT_ACTIVATABLE with the reason, or OK and a DECISION record unless
 * nothing changes. `lost`: the reason, where the version is lost; NULL. `has_source`: a process has the
 * bytes; `has_staged`: a worker has staged them; `has_stale`: a worker could not switch to it: naming it
 * again has them try again.  These are soft state of the rollout. */
typedef struct {
    uint64_t version;
    const char *by, *lost;
    bool has_source, has_staged, has_stale, dry_run;
    bool ends_hold; /* also where a newer version is on its way */
} activate_by_t;
typedef struct {
    uint64_t from, decision;
    bool changed, held;
} activated_t;
int registry_decide_activate(const registry_t *r, const char *adapter, const activate_by_t *by, instant_t now,
                             outbox_t *out, activated_t *ret_activated, heddle_error_t *error);
uint64_t registry_next_decision(const adapter_row_t *a);
/* A member has a version or a decision of this adapter that is greater than those here: an older copy of
 * the store was put back.  Adds FLOOR (and ADAPTER), so that neither number is given again; false: the
 * outbox is full. */
bool registry_decide_floor(const registry_t *r, const char *adapter, uint64_t version, uint64_t decision,
                           instant_t now, outbox_t *out);
/* Members follow a decision beyond the latest: it is made anew under a greater number. */
bool registry_is_behind(const adapter_row_t *a);
void registry_decide_again(const adapter_row_t *a, instant_t now, outbox_t *out);
/* The rollout's rule is met, for the workers of this scope. */
void registry_decide_active(const adapter_row_t *a, const version_row_t *v, scope_t scope, instant_t now,
                            outbox_t *out);
/* A version ends: failed with a reason (error may be NULL for the other states).  Adds at most
 * REGISTRY_END_RECORDS: STATE, and FORGET for what is history no more. */
#define REGISTRY_END_RECORDS 3
void registry_decide_end(const adapter_row_t *a, const version_row_t *v, version_state_t state,
                         const heddle_error_t *error, instant_t now, outbox_t *out);
/* The same, superseded by the version of that number. */
void registry_decide_superseded(const adapter_row_t *a, const version_row_t *v, uint64_t by, instant_t now,
                                outbox_t *out);
/* No process has the bytes of this version, for the reason given; "": one does again. */
void registry_decide_loss(const adapter_row_t *a, const version_row_t *v, const char *why, instant_t now,
                          outbox_t *out);
/* A committed version, and at least `keep` others besides the active one were decided later. */
bool registry_is_excess(const adapter_row_t *a, const version_row_t *v, uint64_t keep);
/* It was decided, and a later decision went back behind it. */
bool registry_is_taken_back(const adapter_row_t *a, const version_row_t *v);
/* Versions that were decided lie ahead of the active one. */
bool registry_is_step_back(const adapter_row_t *a);

/* Fills the error object of a version that ended (contract.md: "reason"); false and a zero object when it
 * did not. */
bool registry_reason(const adapter_row_t *a, const version_row_t *v, heddle_error_t *ret_error);

#endif
