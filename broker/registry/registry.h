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
 * What becomes a record is decided beside this file: a publication (publish.h), a writer's session
 * (writer.h), the active version and the end of a version (decision.h).  Those functions change nothing: they
 * add records and answers to an outbox, or return an error to be sent.
 *
 * registry_apply is the only way in, for records just committed and for rows read at start-up, whose order
 * within a kind and between kinds does not matter (a deep compare after a restart shows the same registry).
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
    record_parts_t parts;
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
    /* staging, staged by a worker and left to an operator: since when; 0: it is not */
    uint64_t staged_ms;
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
    bool was_opened; /* by a publisher, as far as is known: since the start, or before it was forgotten */
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
/* Fills the error of an adapter that is not there: it was never published to, or was forgotten.  Which of the
 * two is not kept.  The adapters that there are become `expected`, and the hint names the one with the most
 * similar name.  Returns NOT_FOUND. */
int registry_fail_unknown(const registry_t *r, const char *name, uint64_t version, const char *phase,
                          heddle_error_t *error);
/* Fills the error of a number that no version of the adapter ever had.  Returns NOT_FOUND. */
int registry_fail_unpublished(const adapter_row_t *a, uint64_t version, const char *phase,
                              heddle_error_t *error);
/* Fills the error of a version without a row: one of many that ended, or of an adapter that was forgotten.
 * Which of the two is not kept.  Returns `code`. */
int registry_fail_unremembered(int code, const char *adapter, uint64_t version, const char *phase,
                               heddle_error_t *error);
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
/* The kind of its versions, which the first one decides: that which may be published to it.  NULL: there is
 * no version, or none any more (forget), and any kind may come. */
const char *registry_kind(const adapter_row_t *a);
/* OK, or UNSUPPORTED_FEATURE where `kind` (of a message) is not that of the adapter.  `a` may be NULL. */
int registry_check_kind(const adapter_row_t *a, const char *kind, heddle_error_t *error);
/* No version was ever published to it, and no member knows one. */
bool registry_is_blank(const adapter_row_t *a);
/* Of it there are only numbers, as after ADAPTER_FORGET: there is nothing to list. */
bool registry_is_vacant(const adapter_row_t *a);
/* For one more adapter: those that are vacant do not count for LIMIT_ADAPTERS. */
bool registry_has_room(const registry_t *r);
bool registry_is_live(const version_row_t *v);
/* When it was first active, or ended without that; 0: it is on its way. */
uint64_t registry_until_ms(const version_row_t *v);
/* staging, or the active one: workers may still have to fetch it */
bool registry_is_wanted(const adapter_row_t *a, const version_row_t *v);
/* Index of the earliest live version, at most the end.  Before it are only ended versions, up to a
 * thousand of a busy adapter, which no message has to look at. */
size_t registry_live_from(const adapter_row_t *a);
/* The decision from which on `version` counts as reached or overtaken; 0: none yet. */
uint64_t registry_reached_at(const adapter_row_t *a, const version_row_t *v);
/* A committed version, and at least `keep` others besides the active one were decided later. */
bool registry_is_excess(const adapter_row_t *a, const version_row_t *v, uint64_t keep);
/* It was decided, and a later decision went back behind it. */
bool registry_is_taken_back(const adapter_row_t *a, const version_row_t *v);
/* It has the digest of the active one: to go from one to the other changes nothing that is served. */
bool registry_has_active_bytes(const adapter_row_t *a, const version_row_t *v);
/* Versions that were decided lie ahead of the active one. */
bool registry_is_step_back(const adapter_row_t *a);

#endif
