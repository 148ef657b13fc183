/* SPDX-License-Identifier: Apache-2.0 */
/* The registry's rows, and how records change them. */
#include "broker/registry/registry.h"

#include "core/errors.h"
#include "core/limits.h"
#include "core/option.h"
#include "core/sorted.h"
#include "formats/kind.h"

#include <stdlib.h>

/* ---- rows ---- */

/* What a version needs only while it is live.  It is freed when the version ends, because many ended ones
 * are listed. */
static void free_content(version_row_t *v)
{
    free(v->base_model);
    free(v->meta);
    free(v->config);
    v->base_model = v->meta = NULL;
    v->config = NULL;
    v->config_bytes = 0;
}

static void free_version(version_row_t *v)
{
    if (!v) return;
    free_content(v);
    free(v->request_id);
    free(v->writer);
    free(v->kind);
    free(v->features);
    free(v->message);
    free(v->worker);
    free(v->phase);
    free(v->lost_why);
    free(v);
}

static void free_adapter(adapter_row_t *a)
{
    for (size_t i = 0; i < a->version_count; i++) free_version(a->versions[i]);
    free(a->versions);
    free(a);
}

static void free_worker(worker_row_t *w)
{
    free(w->serves);
    free(w);
}

void registry_init(registry_t *r) { *r = (registry_t){0}; }

void registry_fini(registry_t *r)
{
    for (size_t i = 0; i < r->adapter_count; i++) free_adapter(r->adapters[i]);
    free(r->adapters);
    for (size_t i = 0; i < r->worker_count; i++) free_worker(r->workers[i]);
    free(r->workers);
    *r = (registry_t){0};
}

/* ---- looking up ---- */

static int order_adapter(const void *row, const void *name)
{
    return strcmp(((const adapter_row_t *)row)->name, name);
}

static int order_worker(const void *row, const void *name)
{
    return strcmp(((const worker_row_t *)row)->name, name);
}

static int order_version(const void *row, const void *version)
{
    uint64_t a = ((const version_row_t *)row)->version, b = *(const uint64_t *)version;
    return (a > b) - (a < b);
}

/* Index of the version, or where it belongs. */
static size_t version_place(const adapter_row_t *a, uint64_t version, bool *ret_found)
{
    return sorted_place(a->versions, a->version_count, &version, order_version, ret_found);
}

int registry_fail_unknown(const registry_t *r, const char *name, uint64_t version, const char *phase,
                          heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no adapter \"%s\"", name);
    error_where(error, name, version, NULL, phase);
    const char **names = calloc(r->adapter_count + 1, sizeof *names);
    for (size_t i = 0, n = 0; names && i < r->adapter_count; i++)
        if (!registry_is_vacant(r->adapters[i])) names[n++] = r->adapters[i]->name;
    option_unknown_name(name, names, "`heddle adapters` lists what there is", error);
    free(names);
    return rc;
}

int registry_fail_unpublished(const adapter_row_t *a, uint64_t version, const char *phase,
                              heddle_error_t *error)
{
    unsigned long long number = version, last = a->last_version;
    int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "%s@%llu was never published", a->name, number);
    error_where(error, a->name, version, NULL, phase);
    error_expected(error, "a version up to %llu", last);
    error_found(error, "%s@%llu", a->name, number);
    error_hint(error, "`heddle versions %.128s` lists what there is", a->name);
    return rc;
}

const worker_row_t *registry_worker(const registry_t *r, const char *name)
{
    return sorted_find(r->workers, r->worker_count, name, order_worker);
}

adapter_row_t *registry_adapter(const registry_t *r, const char *name)
{
    return sorted_find(r->adapters, r->adapter_count, name, order_adapter);
}

version_row_t *registry_version(const adapter_row_t *a, uint64_t version)
{
    return sorted_find(a->versions, a->version_count, &version, order_version);
}

version_row_t *registry_active(const adapter_row_t *a)
{
    return a->active ? registry_version(a, a->active) : NULL;
}

version_row_t *registry_newest(const adapter_row_t *a)
{
    return a->version_count ? a->versions[a->version_count - 1] : NULL;
}

const char *registry_kind(const adapter_row_t *a)
{
    const version_row_t *newest = a ? registry_newest(a) : NULL;
    return newest ? kind_name(newest->kind) : NULL;
}

/* Workers subscribe to a name for what it is: an adapter that became weights would stop all of them. */
int registry_check_kind(const adapter_row_t *a, const char *kind, heddle_error_t *error)
{
    const char *its = registry_kind(a), *asked = kind_name(kind);
    if (!its || !strcmp(its, asked)) return HEDDLE_OK;
    int rc =
        error_fail(error, HEDDLE_ERR_UNSUPPORTED_FEATURE,
                   "%s is of kind %s, and what is to be published is of kind %.64s", a->name, its, asked);
    error_where(error, a->name, 0, NULL, NULL);
    error_contrast(error, its, asked);
    error_hint(error, "an adapter has one kind for life: publish under another name, or with opts.kind %s",
               its);
    return rc;
}

bool registry_is_blank(const adapter_row_t *a)
{
    return !a->version_count && !a->last_version && !a->floor_decision;
}

int registry_fail_unremembered(int code, const char *adapter, uint64_t version, const char *phase,
                               heddle_error_t *error)
{
    error_fail(error, code, "%s@%llu is not remembered: it ended long ago, or was forgotten", adapter,
               (unsigned long long)version);
    error_where(error, adapter, version, NULL, phase);
    error_hint(error,
               "`heddle versions %.128s` lists those that are; publish the bytes again to have this one",
               adapter);
    return code;
}

bool registry_is_vacant(const adapter_row_t *a)
{
    return !a->version_count && !a->writer.token && !registry_is_blank(a);
}

bool registry_has_room(const registry_t *r)
{
    size_t listed = r->adapter_count;
    if (listed < LIMIT_ADAPTERS) return true;
    for (size_t i = 0; i < r->adapter_count; i++) listed -= registry_is_vacant(r->adapters[i]);
    return listed < LIMIT_ADAPTERS && r->adapter_count < LIMIT_ADAPTER_ROWS;
}

bool registry_is_live(const version_row_t *v)
{
    return v->state == VERSION_STAGING || v->state == VERSION_COMMITTED;
}

uint64_t registry_until_ms(const version_row_t *v) { return v->first_ms ? v->first_ms : v->ended_ms; }

bool registry_is_wanted(const adapter_row_t *a, const version_row_t *v)
{
    return v->state == VERSION_STAGING || a->active == v->version;
}

version_row_t *registry_newest_live(const adapter_row_t *a)
{
    for (size_t i = a->version_count; i-- > 0;)
        if (registry_is_live(a->versions[i])) return a->versions[i];
    return NULL;
}

/* The first and the last staging version are kept as numbers, so that neither of these two has to search. */
version_row_t *registry_staging(const adapter_row_t *a)
{
    return a->first_staging ? registry_version(a, a->first_staging) : NULL;
}

version_row_t *registry_waiting(const adapter_row_t *a)
{
    return a->last_staging != a->first_staging ? registry_version(a, a->last_staging) : NULL;
}

/* A version that was never decided itself is overtaken by the first decision for a later one. */
uint64_t registry_reached_at(const adapter_row_t *a, const version_row_t *v)
{
    if (v->decision) return v->decision;
    uint64_t first = 0;
    for (size_t i = a->version_count; i-- > 0 && a->versions[i]->version > v->version;) {
        uint64_t decision = a->versions[i]->decision;
        if (decision && (!first || decision < first)) first = decision;
    }
    return first;
}

/* Live versions are nearly always the newest, so the walk from the end stops soon. */
size_t registry_live_from(const adapter_row_t *a)
{
    size_t at = a->version_count, left = a->version_count - a->ended_count;
    while (left && at) left -= registry_is_live(a->versions[--at]);
    return at;
}

/* Beyond the `keep` versions that were decided latest, besides the active one. */
bool registry_is_excess(const adapter_row_t *a, const version_row_t *v, uint64_t keep)
{
    if (v->state != VERSION_COMMITTED || v->version == a->active) return false;
    uint64_t later = 0;
    for (size_t i = registry_live_from(a); i < a->version_count; i++) {
        const version_row_t *w = a->versions[i];
        later += w->state == VERSION_COMMITTED && w->version != a->active && w->decision > v->decision;
    }
    return later >= keep;
}

/* A later decision for an earlier version takes this one back. */
bool registry_is_taken_back(const adapter_row_t *a, const version_row_t *v)
{
    if (!v->decision) return false;
    for (size_t i = 0; i < a->version_count && a->versions[i]->version < v->version; i++)
        if (a->versions[i]->decision > v->decision) return true;
    return false;
}

bool registry_has_active_bytes(const adapter_row_t *a, const version_row_t *v)
{
    const version_row_t *active = registry_active(a);
    return active && v && digest_equal(&active->digest, &v->digest);
}

/* True where a later version than the active one was decided: the active one was gone back to. */
bool registry_is_step_back(const adapter_row_t *a)
{
    if (!registry_active(a)) return false; /* of a damaged registry: there is nothing to go back to */
    for (size_t i = a->version_count; i-- > 0 && a->versions[i]->version > a->active;)
        if (a->versions[i]->decision) return true;
    return false;
}

/* ---- applying ---- */

/* NULL counts as "", so that no text of a row is ever NULL. */
static char *copy_text(const char *text) { return strdup(text ? text : ""); }

/* Found or new.  A name that is not valid is refused, because no message could ever name that adapter. */
static int add_adapter(registry_t *r, const char *name, adapter_row_t **ret_adapter)
{
    bool found;
    if (!name_is_valid(name)) return HEDDLE_ERR_INTERNAL; /* it could not be found again */
    size_t at = sorted_place(r->adapters, r->adapter_count, name, order_adapter, &found);
    if (!found) {
        adapter_row_t *a = calloc(1, sizeof *a);
        if (!a || !sorted_grow(&r->adapters, r->adapter_count, &r->adapter_capacity)) {
            free(a);
            return HEDDLE_ERR_NO_MEMORY;
        }
        error_text(a->name, sizeof a->name, name);
        sorted_insert(r->adapters, &r->adapter_count, at, a);
    }
    *ret_adapter = r->adapters[at];
    return HEDDLE_OK;
}

static version_row_t *new_version(const record_t *rec)
{
    version_row_t *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    *v = (version_row_t){.version = rec->version,
                         .created_ms = rec->at_ms,
                         .state = VERSION_STAGING,
                         .digest = rec->digest,
                         .parts = rec->parts,
                         .share_key = rec->share_key,
                         .step = rec->step,
                         .data_bytes = rec->data_bytes,
                         .tensor_count = rec->tensor_count,
                         .chunk_count = rec->chunk_count,
                         .activation = rec->activation,
                         .deadline_ms = rec->deadline_ms,
                         .asked_ms = rec->asked_ms ? rec->asked_ms : rec->deadline_ms};
    /* Every text is a copy of its own, and never NULL, so that readers need no check. */
    v->request_id = copy_text(rec->request_id);
    v->writer = copy_text(rec->writer);
    v->base_model = copy_text(rec->base_model);
    v->kind = copy_text(rec->kind_text);
    v->features = copy_text(rec->features);
    v->meta = copy_text(rec->meta);
    v->message = copy_text("");
    v->worker = copy_text("");
    v->phase = copy_text("");
    v->lost_why = copy_text("");
    v->config_bytes = rec->config.bytes;
    v->config = malloc(rec->config.bytes + 1);
    if (v->config && rec->config.bytes) memcpy(v->config, rec->config.data, rec->config.bytes);
    if (v->request_id && v->writer && v->base_model && v->kind && v->features && v->meta && v->message &&
        v->worker && v->phase && v->lost_why && v->config)
        return v;
    free_version(v);
    return NULL;
}

/* A version number is assigned once.  The same record again must have the same digest; that happens when
 * the store is read after a crash. */
static int apply_version(registry_t *r, const record_t *rec)
{
    adapter_row_t *a;
    if (!rec->version) return HEDDLE_ERR_INTERNAL;
    int err = add_adapter(r, rec->adapter, &a);
    if (err) return err;
    bool found;
    size_t at = version_place(a, rec->version, &found);
    if (found) return digest_equal(&a->versions[at]->digest, &rec->digest) ? HEDDLE_OK : HEDDLE_ERR_INTERNAL;
    version_row_t *v = new_version(rec);
    if (!v || !sorted_grow(&a->versions, a->version_count, &a->version_capacity)) {
        free_version(v);
        return HEDDLE_ERR_NO_MEMORY;
    }
    sorted_insert(a->versions, &a->version_count, at, v);
    if (rec->version > a->last_version) a->last_version = rec->version;
    if (rec->version > a->last_staging) a->last_staging = rec->version;
    if (!a->first_staging || rec->version < a->first_staging) a->first_staging = rec->version;
    return HEDDLE_OK;
}

/* The next staging version from a row on, upwards (1) or downwards (-1).  0: there is none. */
static uint64_t next_staging(const adapter_row_t *a, size_t at, int step)
{
    for (at += (size_t)step; at < a->version_count; at += (size_t)step) /* below 0 is beyond the end */
        if (a->versions[at]->state == VERSION_STAGING) return a->versions[at]->version;
    return 0;
}

/* Keeps the numbers of the first and the last staging version right. */
static void leave_staging(adapter_row_t *a, version_row_t *v, version_state_t state)
{
    bool found;
    size_t at = version_place(a, v->version, &found);
    if (v->version == a->first_staging) a->first_staging = next_staging(a, at, 1);
    if (v->version == a->last_staging) a->last_staging = next_staging(a, at, -1);
    v->state = state;
}

/* The store reads rows in any order, so the greatest decision counts, and each version keeps the greatest
 * that named it. */
static int apply_decision(registry_t *r, const record_t *rec)
{
    adapter_row_t *a = registry_adapter(r, rec->adapter);
    if (!a || !rec->decision || rec->version > a->last_version) return HEDDLE_ERR_INTERNAL;
    if (rec->scope != SCOPE_EVERYONE) return HEDDLE_ERR_INTERNAL; /* of a broker that knows more */
    version_row_t *v = registry_version(a, rec->version);
    if (v && v->state == VERSION_STAGING) leave_staging(a, v, VERSION_COMMITTED);
    if (v && rec->decision > v->decision) {
        v->decision = rec->decision;
        v->activated_ms = rec->at_ms;
    }
    if (v && (!v->first_decision || rec->decision < v->first_decision)) {
        v->first_decision = rec->decision;
        v->first_ms = rec->at_ms;
    }
    if (rec->decision <= a->decision) return HEDDLE_OK; /* rows may come in any order: the greatest counts */
    a->decision = rec->decision;
    a->active = rec->version;
    a->decided_ms = rec->at_ms;
    a->scope = rec->scope;
    a->held = rec->held;
    error_text(a->held_by, sizeof a->held_by, rec->held && rec->by ? rec->by : "");
    return HEDDLE_OK;
}

static int replace_text(char **text, const char *by)
{
    char *copy = copy_text(by);
    if (!copy) return HEDDLE_ERR_NO_MEMORY;
    free(*text);
    *text = copy;
    return HEDDLE_OK;
}

/* How a version ended.  The first end counts: later records about the version change nothing. */
static int apply_state(registry_t *r, const record_t *rec)
{
    adapter_row_t *a = registry_adapter(r, rec->adapter);
    if (!a || rec->version > a->last_version) return HEDDLE_ERR_INTERNAL;
    if (rec->state != VERSION_SUPERSEDED && rec->state != VERSION_FAILED && rec->state != VERSION_RETIRED)
        return HEDDLE_ERR_INTERNAL;
    version_row_t *v = registry_version(a, rec->version);
    if (!v || !registry_is_live(v)) return HEDDLE_OK; /* the first end is the end */
    if (replace_text(&v->message, rec->message) || replace_text(&v->worker, rec->worker) ||
        replace_text(&v->phase, rec->phase) || replace_text(&v->lost_why, ""))
        return HEDDLE_ERR_NO_MEMORY;
    v->lost_ms = v->staged_ms = 0;
    if (v->state == VERSION_STAGING) leave_staging(a, v, rec->state);
    v->state = rec->state;
    v->code = rec->code;
    v->ended_ms = rec->at_ms;
    free_content(v);
    if (!(v->base_model = copy_text("")) || !(v->meta = copy_text(""))) return HEDDLE_ERR_NO_MEMORY;
    a->ended_count++;
    return HEDDLE_OK;
}

/* The latest record of a worker counts. */
static int apply_worker(registry_t *r, const record_t *rec)
{
    bool found;
    if (!name_is_valid(rec->worker)) return HEDDLE_ERR_INTERNAL;
    size_t at = sorted_place(r->workers, r->worker_count, rec->worker, order_worker, &found);
    if (!rec->serves || !*rec->serves) {
        if (!found) return HEDDLE_OK;
        free_worker(r->workers[at]);
        sorted_remove(r->workers, &r->worker_count, at);
        return HEDDLE_OK;
    }
    worker_row_t *w = calloc(1, sizeof *w);
    char *serves = copy_text(rec->serves);
    if (!w || !serves || !sorted_grow(&r->workers, r->worker_count, &r->worker_capacity)) {
        free(serves);
        free(w);
        return HEDDLE_ERR_NO_MEMORY;
    }
    *w = (worker_row_t){.pid = rec->pid, .joined_ms = rec->at_ms, .serves = serves};
    error_text(w->name, sizeof w->name, rec->worker);
    error_text(w->host, sizeof w->host, rec->host ? rec->host : "");
    if (found) free_worker(r->workers[at]);
    else sorted_insert(r->workers, &r->worker_count, at, w);
    r->workers[at] = w;
    return HEDDLE_OK;
}

/* The name stays, with the greatest numbers: a worker or a sample may still carry them. */
static void forget_versions(adapter_row_t *a)
{
    for (size_t i = 0; i < a->version_count; i++) free_version(a->versions[i]);
    a->version_count = a->ended_count = 0;
    a->first_staging = a->last_staging = 0;
    a->decision = a->active = a->decided_ms = 0;
    a->held = false;
    a->held_by[0] = 0;
}

int registry_apply(registry_t *r, const record_t *rec)
{
    adapter_row_t *a;
    int rc;
    switch (rec->kind) {
    case RECORD_EPOCH:
        if (rec->epoch > r->epoch) r->epoch = rec->epoch;
        return HEDDLE_OK;
    case RECORD_ADAPTER: return add_adapter(r, rec->adapter, &a);
    case RECORD_VERSION: return apply_version(r, rec);
    case RECORD_DECISION: return apply_decision(r, rec);
    case RECORD_STATE: return apply_state(r, rec);
    case RECORD_WRITER:
        if ((rc = add_adapter(r, rec->adapter, &a)) != HEDDLE_OK) return rc;
        a->writer = (writer_row_t){0};
        a->was_opened = true;
        if (!rec->token) return HEDDLE_OK; /* closed: the adapter has no writer */
        a->writer =
            (writer_row_t){.token = rec->token, .pid = rec->pid, .since_ms = rec->at_ms, .life = rec->life};
        error_text(a->writer.name, sizeof a->writer.name, rec->writer ? rec->writer : "");
        error_text(a->writer.host, sizeof a->writer.host, rec->host ? rec->host : "");
        return HEDDLE_OK;
    case RECORD_FLOOR: /* members reported greater numbers than the store has: numbers go on above those */
        if ((rc = add_adapter(r, rec->adapter, &a)) != HEDDLE_OK) return rc;
        if (rec->version > a->last_version) a->last_version = rec->version;
        if (rec->decision > a->floor_decision) a->floor_decision = rec->decision;
        return HEDDLE_OK;
    case RECORD_WORKER: return apply_worker(r, rec);
    case RECORD_LOSS: { /* the latest record counts, while the version is live */
        a = registry_adapter(r, rec->adapter);
        if (!a || rec->version > a->last_version) return HEDDLE_ERR_INTERNAL;
        version_row_t *v = registry_version(a, rec->version);
        if (!v || !registry_is_live(v)) return HEDDLE_OK;
        if (replace_text(&v->lost_why, rec->message)) return HEDDLE_ERR_NO_MEMORY;
        v->lost_ms = v->lost_why[0] ? rec->at_ms : 0;
        return HEDDLE_OK;
    }
    case RECORD_STAGED: {
        a = registry_adapter(r, rec->adapter);
        if (!a || rec->version > a->last_version) return HEDDLE_ERR_INTERNAL;
        version_row_t *v = registry_version(a, rec->version);
        if (v && registry_is_live(v)) v->staged_ms = rec->at_ms;
        return HEDDLE_OK;
    }
    case RECORD_FORGET: {
        /* Live versions must stay.  So must the greatest number, because it would be assigned again after a
         * restart. */
        bool found = false;
        a = registry_adapter(r, rec->adapter);
        size_t at = a ? version_place(a, rec->version, &found) : 0;
        if (!found || registry_is_live(a->versions[at]) || at + 1 == a->version_count)
            return HEDDLE_ERR_INTERNAL;
        free_version(a->versions[at]);
        sorted_remove(a->versions, &a->version_count, at);
        a->ended_count--;
        return HEDDLE_OK;
    }
    case RECORD_ADAPTER_FORGET:
        a = registry_adapter(r, rec->adapter);
        if (!a || a->writer.token) return HEDDLE_ERR_INTERNAL;
        forget_versions(a);
        return HEDDLE_OK;
    case RECORD_ADAPTER_DROP: {
        bool found;
        size_t at = sorted_place(r->adapters, r->adapter_count, rec->adapter, order_adapter, &found);
        if (!found || !registry_is_blank(r->adapters[at])) return HEDDLE_ERR_INTERNAL;
        free_adapter(r->adapters[at]);
        sorted_remove(r->adapters, &r->adapter_count, at);
        return HEDDLE_OK;
    }
    case RECORD_KEY:
    case RECORD_KEY_DROP:
    case RECORD_KEYS_REVOKE: break; /* auth.h takes them */
    }
    return HEDDLE_ERR_INTERNAL;
}
