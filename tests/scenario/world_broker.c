/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's shell: its records in memory instead of SQLite, and the points at which it can die. */
#include "tests/scenario/world.h"

#include "core/errors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <utlist.h>

enum { STARTS = 60 /* for want of memory */, LATE_US = 5000, SILENT_US = 1000000, SILENT_ONE_IN = 4 };

/* A record as it lies on disk: with its own copies. */
typedef struct stored {
    record_t record;
    arena_t arena;
    struct stored *prev, *next;
} stored_t;

/* ---- records
 * ---------------------------------------------------------------------------------------------------- */

static const char *keep_text(arena_t *arena, const char *text)
{
    return text ? arena_text(arena, text, strlen(text)) : NULL;
}

static stored_t *copy_record(const record_t *r)
{
    stored_t *s = calloc(1, sizeof *s);
    arena_t *a = &s->arena;
    s->record = *r;
    s->record.adapter = keep_text(a, r->adapter);
    s->record.request_id = keep_text(a, r->request_id);
    s->record.writer = keep_text(a, r->writer);
    s->record.base_model = keep_text(a, r->base_model);
    s->record.kind_text = keep_text(a, r->kind_text);
    s->record.features = keep_text(a, r->features);
    s->record.meta = keep_text(a, r->meta);
    s->record.message = keep_text(a, r->message);
    s->record.worker = keep_text(a, r->worker);
    s->record.phase = keep_text(a, r->phase);
    s->record.by = keep_text(a, r->by);
    s->record.host = keep_text(a, r->host);
    s->record.serves = keep_text(a, r->serves);
    if (r->config.bytes) s->record.config.data = arena_copy(a, r->config.data, r->config.bytes);
    return s;
}

void world_records_add(stored_t **list, const record_t *record)
{
    stored_t *s = copy_record(record);
    DL_APPEND(*list, s);
}

void world_records_forget(stored_t **list)
{
    stored_t *s, *next;
    DL_FOREACH_SAFE(*list, s, next)
    {
        DL_DELETE(*list, s);
        arena_fini(&s->arena);
        free(s);
    }
}

static void drop_record(world_t *w, stored_t *s)
{
    DL_DELETE(w->records, s);
    arena_fini(&s->arena);
    free(s);
}

void store_forget(world_t *w)
{
    while (w->records) drop_record(w, w->records);
}

/* One row takes the place of another, as in the tables of the store. */
static bool replaces(const record_t *r, const record_t *old)
{
    if (r->kind == RECORD_FORGET)
        return old->version == r->version && old->kind != RECORD_WRITER && old->kind != RECORD_FLOOR &&
               old->adapter && !strcmp(r->adapter, old->adapter);
    if (r->kind == RECORD_ADAPTER_FORGET)
        return old->kind != RECORD_ADAPTER && old->kind != RECORD_FLOOR && old->adapter &&
               !strcmp(r->adapter, old->adapter);
    if (r->kind == RECORD_ADAPTER_DROP)
        return (old->kind == RECORD_ADAPTER || old->kind == RECORD_WRITER) &&
               !strcmp(r->adapter, old->adapter);
    if (r->kind != old->kind || r->kind == RECORD_VERSION || r->kind == RECORD_DECISION) return false;
    if (r->kind == RECORD_EPOCH) return true;
    if (r->kind == RECORD_WORKER) return !strcmp(r->worker, old->worker);
    bool is_of_a_version = r->kind == RECORD_STATE || r->kind == RECORD_LOSS || r->kind == RECORD_STAGED;
    return !strcmp(r->adapter, old->adapter) && (!is_of_a_version || r->version == old->version);
}

static void store_record(world_t *w, const record_t *r)
{
    stored_t *old, *next;
    DL_FOREACH_SAFE(w->records, old, next)
    if (replaces(r, &old->record)) drop_record(w, old);
    stored_t *s = copy_record(r);
    DL_APPEND(w->records, s);
    cr_assert_eq(registry_apply(&w->shadow, &s->record), HEDDLE_OK);
    world_note(w, "record kind %d %s v%" PRIu64 " d%" PRIu64 " state %d %s", (int)r->kind,
               r->adapter ? r->adapter : "", r->version, r->decision, (int)r->state,
               r->message ? r->message : "");
}

/* Takes the place of the records: the shadow is made anew of them. */
static void store_replace(world_t *w, stored_t *records)
{
    store_forget(w);
    registry_fini(&w->shadow);
    registry_init(&w->shadow);
    w->records = records;
    for (int kind = RECORD_EPOCH; kind < RECORD_FORGET; kind++) {
        stored_t *s;
        DL_FOREACH(w->records, s)
        if ((int)s->record.kind == kind) cr_assert_eq(registry_apply(&w->shadow, &s->record), HEDDLE_OK);
    }
    w->epoch = w->shadow.epoch;
}

stored_t *world_backup(const world_t *w)
{
    stored_t *copy = NULL;
    const stored_t *s;
    DL_FOREACH(w->records, s)
    {
        stored_t *c = copy_record(&s->record);
        DL_APPEND(copy, c);
    }
    return copy;
}

void world_restore(world_t *w, stored_t *backup)
{
    MUST(w, !w->broker);
    const adapter_row_t *a = world_adapter(w);
    w->lost_to = a ? a->last_version : 0;
    w->lost_decisions = a ? a->decision : 0;
    store_replace(w, backup);
    a = world_adapter(w);
    w->lost_from = a ? a->last_version + 1 : 1;
    for (uint32_t i = 0; i < w->actor_count; i++) w->actors[i]->published.is_answered = false;
    world_note(w, "a backup is restored: v%" PRIu64 " to v%" PRIu64 " are gone", w->lost_from, w->lost_to);
}

void world_load(world_t *w, stored_t *records)
{
    MUST(w, !w->broker);
    store_replace(w, records);
}

bool store_has_decision(const world_t *w, const char *adapter, uint64_t decision, uint64_t version)
{
    const stored_t *s;
    DL_FOREACH(w->records, s)
    if (s->record.kind == RECORD_DECISION && s->record.decision == decision && s->record.version == version &&
        !strcmp(s->record.adapter, adapter))
        return true;
    return false;
}

static int load_all(world_t *w)
{
    for (int kind = RECORD_EPOCH; kind < RECORD_FORGET; kind++) {
        stored_t *s;
        DL_FOREACH(w->records, s)
        if ((int)s->record.kind == kind) {
            int rc = broker_apply(w->broker, &s->record);
            if (rc) return rc;
        }
    }
    return HEDDLE_OK;
}

/* ---- what the broker asks of its shell
 * -------------------------------------------------------------------------- */

/* True when it dies here: nothing that it does from now on reaches anybody. */
static bool dies_at(world_t *w, point_t point)
{
    if (w->is_dying) return true;
    if (w->die_kind >= 0 && w->die_kind != (int)point) return false;
    w->points++;
    if (w->points != w->die_at) return false;
    world_note(w, "the broker dies at point %" PRIu64 " (%s)", w->points,
               point == POINT_BEFORE_COMMIT  ? "before a commit"
               : point == POINT_AFTER_COMMIT ? "after a commit"
                                             : "before a send");
    w->is_dying = true;
    return true;
}

static int take(world_t *w, const record_t *records, int count, heddle_error_t *error)
{
    if (w->commit_code) return error_fail(error, w->commit_code, "the disk says no");
    for (int i = 0; i < count; i++) check_record(w, &records[i]);
    int rc = w->commit ? w->commit(w, records, count, error) : HEDDLE_OK;
    if (rc) return rc;
    for (int i = 0; i < count; i++) store_record(w, &records[i]);
    return HEDDLE_OK;
}

static int commit(world_t *w, const record_t *records, int count, heddle_error_t *error)
{
    if (dies_at(w, POINT_BEFORE_COMMIT)) return error_fail(error, HEDDLE_ERR_INTERNAL, "died");
    MUST(w, !w->committing);
    if (w->store_is_late || w->store_never) {
        w->committing = records;
        w->committing_count = count;
        w->is_silent = w->store_fails_to_confirm && !world_random(w, SILENT_ONE_IN);
        w->silent_count += w->is_silent;
        if (w->is_silent) world_note(w, "the store will not confirm what is under way");
        w->commit_due_us = w->now_us + (w->is_silent        ? SILENT_US
                                        : w->store_takes_us ? w->store_takes_us
                                                            : world_random(w, LATE_US));
        return HEDDLE_ERR_AGAIN;
    }
    int rc = take(w, records, count, error);
    if (!rc) dies_at(w, POINT_AFTER_COMMIT);
    return rc;
}

static bool is_due(const world_t *w)
{
    return w->committing && !w->store_never && w->now_us >= w->commit_due_us;
}

bool store_is_given_up(const world_t *w) { return is_due(w) && w->is_silent; }

void store_confirm(world_t *w)
{
    heddle_error_t error;
    if (!is_due(w)) return;
    const record_t *records = w->committing;
    w->committing = NULL;
    int rc = take(w, records, w->committing_count, &error);
    if (!rc && dies_at(w, POINT_AFTER_COMMIT)) return;
    instant_t now = {w->now_us, clock_wall(&w->clock)};
    PRODUCT(broker_committed(w->broker, rc, rc ? &error : NULL, now));
}

/* The broker ends before it knows: the store has taken the records, or has not. */
static void end_commit(world_t *w)
{
    if (w->committing && !w->store_never && world_random(w, 2)) {
        world_note(w, "the store has taken what was under way");
        take(w, w->committing, w->committing_count, NULL);
    }
    w->committing = NULL;
}

static int io_commit(void *self, const record_t *records, int count, heddle_error_t *error)
{
    bool was = world_product(false);
    int rc = commit(self, records, count, error);
    world_product(was);
    return rc;
}

static actor_t *actor_of_peer(world_t *w, uint64_t peer)
{
    for (uint32_t i = 0; peer && i < w->actor_count; i++)
        if (w->actors[i]->peer == peer) return w->actors[i];
    return NULL;
}

static msg_type_t type_of(bytes_t frame)
{
    msg_t m;
    cr_assert_eq(msg_decode(frame, &m, NULL), HEDDLE_OK);
    msg_type_t type = m.type;
    msg_fini(&m);
    return type;
}

/* Once. */
static bool is_slow(world_t *w, const actor_t *to, bytes_t frame)
{
    if (to != w->slow || type_of(frame) != w->slow_type) return false;
    world_note(w, "%s to %s finds a full queue", msg_name((int)w->slow_type), to->name);
    w->slow = NULL;
    return true;
}

static int send_to(world_t *w, uint64_t peer, bytes_t frame)
{
    if (dies_at(w, POINT_BEFORE_SEND)) return HEDDLE_ERR_GONE;
    actor_t *to = actor_of_peer(w, peer);
    if (!to) return HEDDLE_ERR_GONE;
    if (to->inbox_count >= LIMIT_QUEUE_FRAMES || is_slow(w, to, frame)) return HEDDLE_ERR_SLOW;
    actor_deliver(to, 0, frame, &to->in_us);
    return HEDDLE_OK;
}

static int io_send(void *self, uint64_t peer, bytes_t frame)
{
    bool was = world_product(false);
    int rc = send_to(self, peer, frame);
    world_product(was);
    return rc;
}

static void io_forget(void *self, uint64_t peer)
{
    (void)self;
    (void)peer;
}

static void io_fatal(void *self, const heddle_error_t *error)
{
    world_t *w = self;
    world_note(w, "the broker ends: %s", error->message);
    bool was = world_product(false);
    free(w->fatal);
    w->fatal = strdup(error->message);
    world_product(was);
    w->is_dying = true;
}

static void io_warn(void *self, const char *id, const char *text)
{
    world_t *w = self;
    world_note(w, "%s: %s", id, text);
    w->warnings++;
}

static void io_random(void *self, void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)data)[i] = (uint8_t)world_random(self, 256);
}

/* ---- life
 * -------------------------------------------------------------------------------------------------------
 */

static int start_broker(world_t *w, const broker_opts_t *opts, const broker_io_t *io)
{
    heddle_error_t error;
    int rc = broker_new(opts, io, &w->broker, &error);
    if (!rc) rc = load_all(w);
    if (!rc) rc = broker_start(w->broker, (instant_t){w->now_us, clock_wall(&w->clock)});
    if (rc && w->broker) broker_destroy(&w->broker);
    return rc;
}

/* As the daemon does: one that cannot be made ends, and is started again. */
static int try_start(world_t *w)
{
    record_t epoch = {.kind = RECORD_EPOCH, .epoch = ++w->epoch};
    store_record(w, &epoch);
    broker_io_t io = {.self = w,
                      .send = io_send,
                      .forget = io_forget,
                      .commit = io_commit,
                      .fatal = io_fatal,
                      .random = io_random,
                      .warn = io_warn};
    broker_opts_t opts = {.lease_ms = w->opts.lease_ms,
                          .keep = w->opts.keep,
                          .shape = w->opts.shape,
                          .cluster = w->cluster,
                          .endpoint = "mem",
                          .data_dir = "mem",
                          .pid = 1,
                          .seed = w->opts.seed};
    int rc;
    w->had_records = w->shadow.adapter_count > 0;
    w->started_us = w->now_us;
    PRODUCT(rc = start_broker(w, &opts, &io));
    w->is_dying = false;
    return rc;
}

void world_broker_start(world_t *w)
{
    cr_assert_null(w->broker);
    int rc = try_start(w);
    for (int i = 0; i < STARTS && rc == HEDDLE_ERR_NO_MEMORY; i++) rc = try_start(w);
    if (rc) world_fail(w, "the broker does not start: %s", heddle_err_name(rc));
    check_restart(w);
    w->host->alive = true;
    w->host->stopped = false;
    w->host->due_us = w->now_us;
    world_note(w, "the broker starts, epoch %" PRIu64, w->epoch);
}

void world_broker_kill(world_t *w)
{
    if (!w->broker) return;
    world_note(w, "the broker is killed");
    w->is_dying = false;
    end_commit(w);
    broker_destroy(&w->broker);
    w->host->alive = w->host->stopped = false;
    w->host->due_us = CLOCK_NEVER;
    actor_forget_mail(w->host);
    for (uint32_t i = 0; i < w->actor_count; i++) line_break(w->actors[i]);
}

/* ---- the registry
 * ----------------------------------------------------------------------------------------------- */

adapter_row_t *world_adapter(const world_t *w) { return registry_adapter(&w->shadow, ADAPTER); }

version_row_t *world_version(const world_t *w, uint64_t version)
{
    const adapter_row_t *a = world_adapter(w);
    return a ? registry_version(a, version) : NULL;
}

track_t *world_track(const world_t *w, uint64_t version)
{
    return w->broker ? track_find(&w->broker->rollout, ADAPTER, version) : NULL;
}

const char *world_state(const world_t *w, uint64_t version)
{
    const adapter_row_t *a = w->broker ? registry_adapter(&w->broker->registry, ADAPTER) : NULL;
    const version_row_t *v = a ? registry_version(a, version) : NULL;
    return v ? summary_state(&w->broker->rollout, a, v) : "absent";
}
