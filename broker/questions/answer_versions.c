/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/answer_versions.h"
#include "broker/questions/timing.h"
#include "broker/questions/why.h"

#include "broker/registry/decision.h"
#include "broker/registry/active.h"
#include "core/errors.h"
#include "core/limits.h"
#include "formats/kind.h"
#include "proto/value.h"

#include <stdlib.h>
#include <string.h>

enum { MISSING_ROWS = 256, CONFIG_DEPTH = 10 };
#define FORMER_BYTES (64u << 10) /* beside the workers, in each page */

/* ---- one version ----------------------------------------------------------------------------- */

/* On how many hosts its holders are. */
typedef struct {
    json_t *count;    /* owned; NULL: no memory */
    const char *only; /* where they are all on one; NULL */
} holder_hosts_t;

static holder_hosts_t holder_hosts(const answer_view_t *b, const track_t *t)
{
    texts_t hosts = {0};
    size_t copies = track_holder_count(t) ? t->copy_count : 0;
    for (size_t i = 0; i < copies; i++) {
        const copy_row_t *c = t->copies[i];
        const member_t *m = copy_holds(c) ? membership_by_token(b->members, c->token) : NULL;
        if (m) texts_add(&hosts, m->host);
    }
    texts_sort(&hosts);
    holder_hosts_t found = {hosts.failed ? NULL : cell_count(hosts.count),
                            hosts.count == 1 ? hosts.list[0] : NULL};
    texts_fini(&hosts);
    return found;
}

static json_t *version_json(const answer_view_t *b, const adapter_row_t *a, const version_row_t *v)
{
    const track_t *t = track_find(b->rollout, a->name, v->version);
    char note[SUMMARY_NOTE_TEXT];
    summary_note(b->rollout, a, v, rollout_settling_us(b->rollout, b->members, b->now.us), note);
    heddle_error_t reason;
    bool has_reason = registry_is_live(v) && t && t->bytes == BYTES_LOST;
    if (has_reason) summary_lost_reason(t, &reason);
    else if (v->state != VERSION_RETIRED && v->state != VERSION_SUPERSEDED) /* those are no failures */
        has_reason = decision_end_reason(a, v, &reason);
    char nearest[SUMMARY_QUEUED_TEXT];
    /* Of an adapter that was never served, and of its newest version: that is where a user looks. */
    bool is_alone = has_reason && reason.code == HEDDLE_ERR_NO_WORKERS && !active_latest(a) &&
                    v->version == a->last_version;
    if (is_alone && summary_nearest_text(b->members, a->name, nearest))
        error_hint(&reason, "%s; `heddle forget %.64s` removes it", nearest, a->name);
    json_t *meta = *v->meta ? json_loads(v->meta, 0, NULL) : NULL;
    if (!json_is_object(meta)) {
        json_decref(meta);
        meta = json_object();
    }
    json_t *took = v->first_ms ? cell_ms(timing_whole_us(v)) : json_null();
    holder_hosts_t hosts = holder_hosts(b, t);
    return json_pack("{s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
                     "s:o, s:o, s:s}",
                     "version", cell_count(v->version), "tag", cell_tag(a->name, v->version, &v->digest),
                     "digest", cell_digest(&v->digest), "state", summary_state(b->rollout, a, v), "reason",
                     has_reason ? value_from_error(&reason) : json_null(), "note", cell_text(note), "step",
                     v->step < 0 ? json_null() : cell_count((uint64_t)v->step), "created_at",
                     cell_time(v->created_ms), "activated_at", cell_time(v->first_ms), "took_ms", took,
                     "data_bytes", cell_count(v->data_bytes), "payload_bytes",
                     cell_count(record_payload_bytes(&v->parts)), "tensor_count", cell_count(v->tensor_count),
                     "features", cell_words(v->features), "holder_count", cell_count(track_holder_count(t)),
                     "holder_host_count", hosts.count, "holder_host", cell_text(hosts.only), "active_count",
                     cell_count(t ? track_active_count(t) : 0), "meta", meta, "kind", kind_name(v->kind));
}

/* ---- what NAME@V adds ------------------------------------------------------------------------ */

static bool is_flatter_than(const json_t *value, unsigned depth)
{
    void *at = json_object_iter(
        (json_t *)(uintptr_t)value); /* jansson has no const iterator; NULL for what is no object */
    bool ok = depth > 0;
    for (; ok && at; at = json_object_iter_next((json_t *)(uintptr_t)value, at))
        ok = is_flatter_than(json_object_iter_value(at), depth - 1);
    for (size_t i = 0; ok && i < json_array_size(value); i++)
        ok = is_flatter_than(json_array_get(value, i), depth - 1);
    return ok;
}

/* null where it is not at hand, too large or too deep for a frame, or not what jansson can hold (an integer
 * of 70 digits). */
static json_t *config_json(const answer_view_t *b, const adapter_row_t *a, const version_row_t *v)
{
    buf_t stored = {0};
    bytes_t bytes = bytes_of(v->config, v->config_bytes);
    if (!bytes.bytes && b->config && b->config(b->self, a->name, v->version, &stored) == HEDDLE_OK)
        bytes = buf_view(&stored);
    bool fits = bytes.bytes > 0 && bytes.bytes <= ANSWER_CONFIG_BYTES;
    json_t *config = fits ? json_loadb(bytes.data, bytes.bytes, 0, NULL) : NULL;
    buf_fini(&stored);
    if (config && is_flatter_than(config, CONFIG_DEPTH)) return config;
    json_decref(config);
    return json_null();
}

/* How far the rollout is, and which workers it still waits for.  At most MISSING_ROWS of them are named: the
 * counts are of all. */
static json_t *rollout_json(const answer_view_t *b, const adapter_row_t *a, const version_row_t *v)
{
    static const char *const ACTIVATIONS[] = {"all", "as-ready", "manual"};
    missing_row_t missing[MISSING_ROWS];
    const membership_t *members = registry_is_live(v) ? b->members : NULL;
    missing_list_t list = {missing, MISSING_ROWS, members, b->now.us};
    summary_t sum = summary_of(b->rollout, a, v, &list);
    rows_t rows;
    rows_init(&rows, 0, MISSING_ROWS);
    for (uint32_t i = 0; i < sum.missing_count && i < MISSING_ROWS; i++) {
        const missing_row_t *m = &missing[i];
        json_t *part = json_pack("{s:s, s:o, s:o, s:o}", "worker", m->worker, "phase", cell_text(m->phase),
                                 "code", cell_code(m->code), "message", cell_text(m->message));
        if (!rows_add(&rows, part)) break;
    }
    bool is_known = timing_knows_awaited(b, v);
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o}", "activation", ACTIVATIONS[sum.activation < 3 ? sum.activation : 0],
        "deadline_ms", cell_count(v->asked_ms), "eligible_count",
        is_known ? cell_count(sum.eligible) : json_null(), "staged_count", cell_count(sum.staged),
        "active_count", cell_count(sum.active), "missing", rows_end(&rows));
}

static json_t *moved_json(const msg_moved_t *moved)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "late", cell_count(moved->late), "gone",
                     cell_count(moved->gone), "refused", cell_count(moved->refused), "bad",
                     cell_count(moved->bad), "slow", cell_count(moved->slow));
}

/* Which processes the bytes of a copy came from, as the worker counted them. */
static json_t *served_json(const copy_served_t *served, uint32_t count, bool holds_region)
{
    json_t *list = json_array();
    bool ok = list;
    for (uint32_t i = 0; ok && i < count; i++) {
        const copy_served_t *s = &served[i];
        json_t *part = json_pack("{s:s, s:s, s:s, s:o, s:o}", "name", s->name, "kind",
                                 s->kind == SOURCE_PUBLISHER ? "publisher" : "worker", "way",
                                 holds_region ? "host" : "network", "bytes", cell_count(s->bytes), "moved",
                                 moved_json(&s->moved));
        ok = json_array_append_new(list, part) == 0;
    }
    if (ok) return list;
    json_decref(list);
    return NULL;
}

/* The fetches of processes whose rows are gone, the oldest first, as far as they fit; their number is of
 * all. */
static json_t *former_json(const track_t *t)
{
    rows_t rows;
    rows_init(&rows, 0, LIMIT_FORMER);
    rows.bytes = ANSWER_PAGE_BYTES - FORMER_BYTES;
    for (uint32_t i = 0; t && i < t->former_rows; i++) {
        const former_row_t *f = &t->former[i];
        json_t *part = json_pack("{s:s, s:o, s:o}", "worker", f->worker, "sources",
                                 served_json(f->served, f->served_count, f->held_region), "fetch_ms",
                                 cell_span(f->fetch_us));
        if (!rows_add(&rows, part)) break;
    }
    return json_pack("{s:o, s:o}", "former", rows_end(&rows), "former_count",
                     cell_count(t ? t->former_count : 0));
}

/* The worker that compared the bytes: where it was another one of the host, the one whose copy is the same
 * region and was verified there. NULL: not known, or not any more. */
static const char *verifier_of(const track_t *t, const copy_row_t *c)
{
    if (c->verified != VERIFIED_ON_HOST) return c->verified == VERIFIED_HERE ? c->worker : NULL;
    const char *gone = NULL;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *other = t->copies[i];
        bool is_same = c->region.generation == other->region.generation &&
                       !memcmp(&c->region.identity, &other->region.identity, sizeof c->region.identity);
        if (!is_same || other->verified != VERIFIED_HERE) continue;
        if (other->state != COPY_GONE) return other->worker;
        gone = other->worker;
    }
    return gone;
}

/* One worker's copy, with the time of each phase.  A phase that has not begun is null, and not 0. */
static json_t *copy_json(const answer_view_t *b, const track_t *t, const copy_row_t *c,
                         const adapter_row_t *a)
{
    /* Announced in the turn it was published in: 0 ms, not unknown. */
    bool is_reported = c->state > COPY_ANNOUNCED && (c->sent_us || c->announce_us);
    json_t *announced = is_reported ? cell_ms(c->announce_us) : json_null();
    json_t *timing = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "announce_ms", announced,
                               "queued_ms", cell_span(c->queued_us), "waiting_ms", cell_span(c->wait_us),
                               "connect_ms", cell_span(c->connect_us), "fetch_ms", cell_span(c->fetch_us),
                               "verify_ms", cell_span(c->verify_us), "stage_ms", cell_span(c->stage_us),
                               "activate_ms", cell_span(c->activate_us));
    const member_t *m = membership_by_token(b->members, c->token);
    const member_sub_t *sub = m ? member_sub(m, a->name) : NULL;
    /* A stale copy is what it is since the version that it serves was overtaken. */
    uint64_t active = m ? active_for(a, m) : active_latest(a);
    bool is_overtaken =
        sub && c->state == COPY_ACTIVE && summary_copy_state(c, active, t->version) == COPY_STALE;
    const char *state = summary_copy_name(t, c, active);
    if (state && sub && why_copy_is_fetching(t, c, sub)) state = copy_state_name(COPY_FETCHING);
    bool is_served = sub && c->state == COPY_ACTIVE && sub->serving.version == t->version;
    uint64_t since_ms = is_overtaken         ? active_stale_ms(a, sub)
                        : is_served          ? sub->serving.since_ms
                        : !state && c->token ? t->row->ended_ms
                                             : c->since_ms;
    why_copy_t p = why_copy(b, t, c);
    bool is_known = t->row && timing_knows_awaited(b, t->row);
    json_t *awaited = is_known ? json_boolean(c->is_eligible) : json_null();
    static const char *const VERIFIED[] = {[VERIFIED_HERE] = "here", [VERIFIED_ON_HOST] = "host"};
    json_t *held = c->verified ? json_boolean(c->holds_region) : json_null();
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "worker", c->worker, "awaited", awaited, "state", cell_text(state), "code", cell_code(c->code),
        "message", cell_text(c->code ? c->message : NULL), "since_at", cell_time(since_ms), "bytes_done",
        cell_count(c->bytes_done), "verified", cell_text(VERIFIED[c->verified]), "verified_by",
        cell_text(verifier_of(t, c)), "held", held, "sources",
        served_json(c->served, c->served_count, c->holds_region), "max_rate_bytes",
        cell_number(m ? m->max_rate_bytes : 0), "rate_bytes", cell_number(p.rate_bytes), "source",
        cell_text(p.source), "waits_for", cell_text(p.waits_for), "note", cell_text(p.note), "queued_behind",
        cell_number(c->behind), "timing", timing);
}

/* What all workers have together while some are on their way to it; null: none is. */
static json_t *progress_json(const answer_view_t *b, const adapter_row_t *a, const version_row_t *v)
{
    const track_t *t = track_find(b->rollout, a->name, v->version);
    summary_bytes_t bytes = summary_bytes(b->rollout, a, v);
    uint64_t rate = 0;
    if (!t || track_is_ended(t) || bytes.done >= bytes.all) return json_null();
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        const member_t *m = membership_by_token(b->members, c->token);
        const member_sub_t *sub = m ? member_sub(m, t->adapter) : NULL;
        bool is_fetching = sub && copy_in_flight(c) && why_copy_is_fetching(t, c, sub) && !c->cut_off_us;
        if (is_fetching) rate += copy_rate(c, m, sub);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "bytes_done", cell_count(bytes.done), "all_bytes",
                     cell_count(bytes.all), "worker_count", cell_count(bytes.workers), "rate_bytes",
                     cell_number(rate));
}

/* Copies are sorted by the worker's name, so the page goes on after the last name of the one before. */
static json_t *copies_list(const answer_view_t *b, const adapter_row_t *a, const msg_query_t *q,
                           answer_page_t *page)
{
    const track_t *t = track_find(b->rollout, a->name, q->version);
    rows_t rows;
    rows_init(&rows, q->limit, ANSWER_PAGE_ROWS);
    for (size_t i = 0; t && i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        if (c->state == COPY_NONE || (q->after_name && strcmp(c->worker, q->after_name) <= 0)) continue;
        if (!rows_add(&rows, copy_json(b, t, c, a))) break;
        memcpy(page->next_name, c->worker, sizeof page->next_name);
    }
    page->more = rows.full;
    return rows_end(&rows);
}

/* What is asked for by NAME@V is the row of the list, and much more.  It is a list of one, so that readers of
 * `versions` need no second form. */
static json_t *one_version(const answer_view_t *b, const adapter_row_t *a, const version_row_t *v,
                           const msg_query_t *q, answer_page_t *page)
{
    json_t *row = version_json(b, a, v);
    json_t *more =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "config", config_json(b, a, v), "request_id",
                  cell_text(v->request_id), "writer", cell_text(v->writer), "rollout", rollout_json(b, a, v),
                  "progress", progress_json(b, a, v), "workers", copies_list(b, a, q, page));
    json_t *took = timing_json(b, a, v), *former = former_json(track_find(b->rollout, a->name, v->version));
    bool ok = row && more && took && former && json_object_update(row, took) == 0 &&
              json_object_update(row, more) == 0 && json_object_update(row, former) == 0;
    json_decref(took);
    json_decref(former);
    json_decref(more);
    if (ok) return json_pack("[o]", row);
    json_decref(row);
    return NULL;
}

/* ---- the page -------------------------------------------------------------------------------- */

/* The three reasons lead to three different next steps, so each has a text of its own. */
static int refuse_unknown(const answer_view_t *b, const adapter_row_t *a, const msg_query_t *q,
                          heddle_error_t *error)
{
    const char *name = q->name ? q->name : "";
    if (a && q->version > a->last_version) return registry_fail_unpublished(a, q->version, NULL, error);
    if (a) return registry_fail_unremembered(HEDDLE_ERR_NOT_FOUND, name, q->version, NULL, error);
    registry_fail_unknown(b->registry, name, q->version, NULL, error);
    if (membership_worker(b->members, name))
        error_hint(error, "that is a worker: `heddle workers %.128s`", name);
    return HEDDLE_ERR_NOT_FOUND;
}

int answer_versions(const answer_view_t *b, const msg_query_t *q, answer_page_t *page, heddle_error_t *error)
{
    const adapter_row_t *a = registry_adapter(b->registry, q->name ? q->name : "");
    const version_row_t *v = a && q->version ? registry_version(a, q->version) : NULL;
    if (!a || registry_is_vacant(a)) return refuse_unknown(b, NULL, q, error);
    if (q->version && !v) return refuse_unknown(b, a, q, error);
    json_t *list = v ? one_version(b, a, v, q, page) : NULL;
    if (!v) {
        rows_t rows;
        rows_init(&rows, q->limit, ANSWER_PAGE_ROWS);
        for (size_t i = 0; i < a->version_count; i++) {
            const version_row_t *row = a->versions[i];
            if (row->version <= q->after) continue;
            if (!rows_add(&rows, version_json(b, a, row))) break;
            page->next = row->version;
        }
        page->more = rows.full;
        list = rows_end(&rows);
    }
    page->body = cell_body("versions", true, json_pack("{s:s, s:o}", "adapter", a->name, "versions", list));
    return page->body ? HEDDLE_OK : cell_no_memory(error);
}

int answer_pull(const answer_view_t *b, const adapter_row_t *a, const version_row_t *v, json_t **ret_body)
{
    json_t *fields = json_pack(
        "{s:s, s:o, s:o, s:o, s:s, s:o, s:o, s:o}", "adapter", a->name, "version", cell_count(v->version),
        "tag", cell_tag(a->name, v->version, &v->digest), "digest", cell_digest(&v->digest), "state",
        summary_state(b->rollout, a, v), "step", v->step < 0 ? json_null() : cell_count((uint64_t)v->step),
        "data_bytes", cell_count(v->data_bytes), "tensor_count", cell_count(v->tensor_count));
    *ret_body = cell_body("pull", true, fields);
    return *ret_body ? HEDDLE_OK : HEDDLE_ERR_NO_MEMORY;
}
