/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/report_took.h"

#include "core/errors.h"
#include "core/option.h"

#include <stdlib.h>
#include <string.h>

/* ---- one subscription ------------------------------------------------------------------------ */

/* The copy that shows the worker's state: that of the version it serves, or that it fetches, or of the newest
 * version that it has anything of. */
static const copy_row_t *telling_copy(const report_view_t *b, const member_t *m, const adapter_row_t *a,
                                      const member_sub_t *sub, const track_t **ret_track)
{
    uint64_t only = sub->version ? sub->version : sub->fetching;
    for (size_t i = a->version_count; i-- > 0;) {
        uint64_t version = a->versions[i]->version;
        if (only && version != only) continue;
        const track_t *t = rollout_track(b->rollout, a->name, version);
        const copy_row_t *c = t && (sub->version || !track_is_ended(t)) ? track_copy(t, m->name) : NULL;
        if (!c || c->state == COPY_NONE) continue;
        *ret_track = t;
        return c;
    }
    return NULL;
}

/* The state of a subscription, since when, and what is wrong with it.  message NULL: rollout_lost_text has
 * it. */
typedef struct {
    const char *state, *message;
    int code;
    uint64_t since_ms;
} standing_t;

/* A stale worker shows why it does not have the active version, and not how its old one is. */
static standing_t standing_of(const report_view_t *b, const member_t *m, const adapter_row_t *a,
                              const member_sub_t *sub)
{
    if (!a) return (standing_t){0};
    const track_t *t = NULL, *wanted = rollout_track(b->rollout, a->name, active_for(a, m));
    const copy_row_t *c = telling_copy(b, m, a, sub, &t);
    if (!c || (t == wanted && c->state == COPY_WAITING)) {
        /* A worker that serves and fetches nothing has failed where the active version is lost, and just
         * begins otherwise. */
        if (sub->version) return (standing_t){.since_ms = sub->since_ms};
        if (!wanted || wanted->bytes != BYTES_LOST) return (standing_t){0};
        return (standing_t){"failed", NULL, HEDDLE_ERR_VERSION_LOST, wanted->lost_ms};
    }
    standing_t s = {copy_shown_name(t, c, a), c->message, c->code,
                    sub->version ? sub->since_ms : c->since_ms};
    if (s.state && copy_is_fetching(t, c, sub)) s.state = copy_state_name(COPY_FETCHING);
    if (copy_shown(c, a, t->version) != COPY_STALE) return s;
    if (c->state == COPY_REFUSED) s.since_ms = c->since_ms;
    else s.since_ms = sub_stale_ms(a, sub);
    const copy_row_t *lacking = wanted ? track_copy(wanted, m->name) : NULL;
    if (lacking && lacking->code) s.message = lacking->message, s.code = lacking->code;
    else if (wanted && wanted->bytes == BYTES_LOST) s.message = NULL, s.code = HEDDLE_ERR_VERSION_LOST;
    return s;
}

/* The earlier versions that the worker keeps, to go back to without another fetch. */
static json_t *kept_part(const report_view_t *b, const member_t *m, const adapter_row_t *a)
{
    json_t *list = json_array();
    bool ok = list;
    for (size_t i = 0; ok && a && i < a->version_count; i++) {
        const version_row_t *v = a->versions[i];
        const track_t *t = registry_is_live(v) ? rollout_track(b->rollout, a->name, v->version) : NULL;
        const copy_row_t *c = t ? track_copy(t, m->name) : NULL;
        if (c && c->state == COPY_KEPT) ok = json_array_append_new(list, part_count(v->version)) == 0;
    }
    if (ok) return list;
    json_decref(list);
    return NULL;
}

/* Progress of the version that the worker fetches, then the one that comes after it. */
static copy_progress_t progress_of(const report_view_t *b, const member_t *m, const member_sub_t *sub)
{
    /* The newest version that was announced to the worker, and that it has neither staged nor refused. */
    const track_t *next = NULL;
    const adapter_rollout_t *a = rollout_adapter(b->rollout, sub->adapter);
    for (size_t i = a ? a->track_count : 0; !next && i-- > 0;)
        if (copy_is_told(copy_of(a->tracks[i], m)) && !track_is_ended(a->tracks[i])) next = a->tracks[i];
    const track_t *t = sub->fetching ? rollout_track(b->rollout, sub->adapter, sub->fetching) : NULL;
    const copy_row_t *c = copy_of(t, m);
    if (!copy_in_flight(c) || track_is_ended(t))
        return next ? copy_progress(b, next, copy_of(next, m)) : (copy_progress_t){0};
    copy_progress_t p = copy_progress(b, t, c);
    if (!next || next == t || p.is_silent || c->code) return p;
    copy_progress_t both = p;
    bool is_loading = c->state == COPY_ARRIVED;
    text_printf(both.note, sizeof both.note, "%s%s@%llu%s%s; then %s@%llu", is_loading ? "" : "fetching ",
                t->adapter, (unsigned long long)t->version,
                !p.note[0]   ? ""
                : is_loading ? " "
                             : ", ",
                p.note, next->adapter, (unsigned long long)next->version);
    return both;
}

/* Of several problems one is shown: the end of the session before a lost version, and that before a slow
 * fetch. */
json_t *subscription_part(const report_view_t *b, const member_t *m, const member_sub_t *sub)
{
    const adapter_row_t *a = registry_adapter(b->registry, sub->adapter);
    const version_row_t *v = a && sub->version ? registry_version(a, sub->version) : NULL;
    const digest_t *digest = v ? &v->digest : NULL;
    const track_t *next = sub->fetching ? rollout_track(b->rollout, sub->adapter, sub->fetching) : NULL;
    const copy_row_t *c = next ? track_copy(next, m->name) : NULL;
    standing_t s = standing_of(b, m, a, sub);
    /* The worker is fine so far, but the fetch of its next version makes no progress. */
    if (!s.code && c && !copy_holds(c) && c->code) s.message = c->message, s.code = c->code;
    /* It serves nothing, and cannot fetch the active version.  What it fetches instead is served only where
     * the adapter is not held. */
    bool is_lost = a && member_is_ready(m) && rollout_lost_active(b->rollout, a);
    if (!s.code && is_lost && (!sub->fetching || a->held)) s.message = NULL, s.code = HEDDLE_ERR_VERSION_LOST;
    char lost[ROLLOUT_TEXT];
    if (s.code == HEDDLE_ERR_VERSION_LOST && !s.message) {
        rollout_lost_text(b->rollout, a, lost, sizeof lost);
        s.message = lost;
    }
    if (m->end_code) s.message = m->end_message, s.code = m->end_code;
    copy_progress_t p = progress_of(b, m, sub);
    /* The next version will find no slot here: that is no error yet, and explains why it will fail. */
    const msg_counts_t *counts = &m->counts;
    if (!p.note[0] && counts->slots_total && counts->slots_held >= counts->slots_total)
        text_printf(p.note, sizeof p.note, "all %llu slots are held by readers",
                    (unsigned long long)counts->slots_total);
    const member_t *source = membership_source(b->members, sub->source);
    json_t *fetching =
        !sub->fetching
            ? json_null()
            : json_pack("{s:o, s:o, s:o, s:o, s:o}", "version", part_count(sub->fetching), "bytes_done",
                        part_count(sub->bytes_done), "data_bytes", part_count(sub->data_bytes), "source",
                        part_text(source ? source->name : NULL), "rate_bytes", part_number(p.rate_bytes));
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name",
                     sub->adapter, "version", part_number(sub->version), "decision",
                     part_number(sub->decision), "tag", part_tag(sub->adapter, sub->version, digest),
                     "digest", part_digest(digest), "state", part_text(s.state), "code", part_code(s.code),
                     "message", part_text(s.code ? s.message : NULL), "lag", part_count(sub_lag(a, m, sub)),
                     "since_at", part_time(s.since_ms), "held_count", part_count(sub->held_count), "fetching",
                     fetching, "note", part_text(p.note), "kept", kept_part(b, m, a));
}

/* By name: a worker lists its subscriptions in the order of its command line. */
static json_t *subs_part(const report_view_t *b, const member_t *m)
{
    json_t *list = json_array();
    bool ok = list;
    for (uint32_t i = 0; ok && i < m->sub_count; i++) {
        size_t at = json_array_size(list);
        while (at > 0 && strcmp(json_string_value(json_object_get(json_array_get(list, at - 1), "name")),
                                m->subs[i].adapter) > 0)
            at--;
        ok = json_array_insert_new(list, at, subscription_part(b, m, &m->subs[i])) == 0;
    }
    if (ok) return list;
    json_decref(list);
    return NULL;
}

/* ---- one worker ------------------------------------------------------------------------------ */

/* Labels were checked by JOIN, so each has a "=". */
static json_t *labels_part(const member_t *m)
{
    json_t *labels = json_object();
    bool ok = labels;
    for (uint32_t i = 0; ok && i < m->label_count; i++) {
        const char *equals = strchr(m->labels[i], '=');
        if (equals)
            ok = json_object_setn_new(labels, m->labels[i], (size_t)(equals - m->labels[i]),
                                      json_string(equals + 1)) == 0;
    }
    if (ok) return labels;
    json_decref(labels);
    return NULL;
}

static json_t *texts_part(char *const *texts, uint32_t count)
{
    json_t *list = json_array();
    bool ok = list;
    for (uint32_t i = 0; ok && i < count; i++) ok = json_array_append_new(list, json_string(texts[i])) == 0;
    if (ok) return list;
    json_decref(list);
    return NULL;
}

static json_t *worker_part(const report_view_t *b, const member_t *m)
{
    /* Current: it serves the active version of every adapter that it subscribed to. */
    bool is_current = member_is_ready(m);
    for (uint32_t i = 0; is_current && i < m->sub_count; i++)
        is_current = member_is_current(registry_adapter(b->registry, m->subs[i].adapter), m, &m->subs[i]);
    json_t *group = !m->group[0] ? json_null()
                                 : json_pack("{s:s, s:o, s:o}", "name", m->group, "rank", part_count(m->rank),
                                             "ranks", part_count(m->ranks));
    json_t *transport = json_pack("{s:o, s:o, s:o, s:o}", "backend", part_text(m->backend), "ucx",
                                  part_text(m->ucx), "devices", texts_part(m->devices, m->device_count),
                                  "addresses", texts_part(m->addresses, m->address_count));
    /* Before the first heartbeat only the number of slots that JOIN asked for is known. */
    const msg_counts_t *c = &m->counts;
    bool told = c->slots_total > 0;
    uint64_t total = told ? c->slots_total : m->slots * m->sub_count;
    json_t *slots = json_pack("{s:o, s:o, s:o}", "total", part_count(total), "free",
                              told ? part_count(c->slots_free) : json_null(), "held",
                              told ? part_count(c->slots_held) : json_null());
    json_t *counters =
        json_pack("{s:o, s:o, s:o, s:o, s:o}", "bytes_in", part_count(c->bytes_in), "bytes_out",
                  part_count(c->bytes_out), "chunks_bad", part_count(c->chunks_bad), "retries",
                  part_count(c->retries), "fenced", part_count(c->fenced));
    bool has_memory = c->own_bytes || c->held_bytes;
    json_t *memory = json_pack("{s:o, s:o}", "own_bytes", has_memory ? part_count(c->own_bytes) : json_null(),
                               "held_bytes", has_memory ? part_count(c->held_bytes) : json_null());
    return json_pack("{s:s, s:o, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name",
                     m->name, "token", part_count(m->token), "state", member_state_name(m->state), "current",
                     (int)is_current, "host", part_text(m->host), "pid", part_number(m->pid), "labels",
                     labels_part(m), "group", group, "joined_at", part_time(m->joined_ms), "heartbeat_age_ms",
                     part_count(member_silent_ms(m, b->now.us)), "transport", transport, "slots", slots,
                     "memory", memory, "adapters", subs_part(b, m), "counters", counters);
}

/* ---- the page -------------------------------------------------------------------------------- */

int report_workers(const report_view_t *b, const msg_query_t *q, report_page_t *page, heddle_error_t *error)
{
    const char *name = q->name && *q->name ? q->name : NULL;
    if (name && !membership_worker(b->members, name)) {
        error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no worker \"%s\"", name);
        error_where(error, NULL, 0, name, NULL);
        const char **names = calloc(b->members->worker_count + 1, sizeof *names), *nearest = NULL;
        for (size_t i = 0; names && i < b->members->worker_count; i++)
            names[i] = b->members->workers[i]->name;
        if (names) nearest = option_nearest(name, names);
        error_hint(error, "%s%.64s%s`heddle workers` lists them; lost and left ones for 10 minutes",
                   nearest ? "did you mean " : "", nearest ? nearest : "", nearest ? "? " : "");
        free(names);
        return HEDDLE_ERR_NOT_FOUND;
    }
    rows_t rows;
    rows_init(&rows, q->limit, REPORT_PAGE_ROWS);
    for (size_t i = 0; i < b->members->worker_count; i++) {
        const member_t *m = b->members->workers[i];
        if (name ? strcmp(m->name, name) != 0 : q->after_name && strcmp(m->name, q->after_name) <= 0)
            continue;
        if (!rows_add(&rows, worker_part(b, m))) break;
        memcpy(page->next_name, m->name, sizeof page->next_name);
    }
    page->more = rows.full;
    page->body =
        part_body("workers", true,
                  json_pack("{s:o, s:o}", "settling_ms", part_settling(b), "workers", rows_end(&rows)));
    return page->body ? HEDDLE_OK : part_no_memory(error);
}
