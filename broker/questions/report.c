/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/json_parts.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

/* ---- adapters -------------------------------------------------------------------------------- */

static json_t *active_part(const report_view_t *b, const adapter_row_t *a)
{
    const version_row_t *v = registry_active(a);
    if (!a->active) return json_null();
    return json_pack("{s:o, s:o, s:s, s:o, s:o, s:o}", "version", part_count(a->active), "decision",
                     part_count(a->decision), "state",
                     rollout_lost_active(b->rollout, a) ? "lost" : "active", "tag",
                     part_tag(a->name, a->active, v ? &v->digest : NULL), "digest",
                     part_digest(v ? &v->digest : NULL), "since_at", part_time(a->decided_ms));
}

static json_t *newest_part(const report_view_t *b, const adapter_row_t *a)
{
    const version_row_t *v = registry_newest(a);
    if (!v) return json_null();
    return json_pack("{s:o, s:s, s:o}", "version", part_count(v->version), "state",
                     rollout_state(b->rollout, a, v), "digest", part_digest(&v->digest));
}

static json_t *held_part(const adapter_row_t *a)
{
    if (!a->held) return json_null();
    return json_pack("{s:o, s:o, s:o}", "by", part_text(a->held_by), "at", part_time(a->decided_ms),
                     "version", part_count(a->active));
}

static json_t *writer_part(const writer_row_t *w)
{
    if (!w->token) return json_null();
    return json_pack("{s:s, s:o, s:o, s:o}", "name", w->name, "host", part_text(w->host), "pid",
                     part_number(w->pid), "since_at", part_time(w->since_ms));
}

/* The base model that matters is that of the version that is served, or of the newest one. */
static const char *base_model(const adapter_row_t *a)
{
    const version_row_t *v = registry_active(a);
    if (!v) v = registry_newest_live(a);
    if (!v) v = registry_newest(a);
    return v ? v->base_model : NULL;
}

typedef struct { uint64_t subscribers, current, max_lag; } following_t;

json_t *report_adapter_row(const report_view_t *b, const adapter_row_t *a)
{
    following_t f = {0};
    for (size_t i = 0; i < b->members->worker_count; i++) {
        const member_t *m = b->members->workers[i];
        const member_sub_t *sub = member_is_ready(m) ? member_sub(m, a->name) : NULL;
        if (!sub) continue;
        uint64_t lag = sub_lag(a, m, sub);
        f.subscribers++;
        f.current += member_is_current(a, m, sub);
        if (lag > f.max_lag) f.max_lag = lag;
    }
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", a->name, "active",
                     active_part(b, a), "newest", newest_part(b, a), "held", held_part(a), "writer",
                     writer_part(&a->writer), "base_model", part_text(base_model(a)), "version_count",
                     part_count(a->version_count), "subscriber_count", part_count(f.subscribers),
                     "current_count", part_count(f.current), "max_lag", part_count(f.max_lag));
}

/* Names after a given one, each of them once: adapters that were published to, and those that READY
 * workers only subscribe to.  The latter show a name that was mistyped. */
typedef struct { const char **rows; size_t count; } names_t;

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void keep_once(names_t *names)
{
    size_t count = 0;
    if (names->count) qsort(names->rows, names->count, sizeof *names->rows, by_text);
    for (size_t i = 0; i < names->count; i++)
        if (!count || strcmp(names->rows[count - 1], names->rows[i])) names->rows[count++] = names->rows[i];
    names->count = count;
}

/* A page begins after the last name of the page before, so no cursor is kept here. */
static bool find_names(const report_view_t *b, const char *after, names_t *ret)
{
    const registry_t *r = b->registry;
    size_t most = r->adapter_count, count = 0;
    for (size_t i = 0; i < b->members->worker_count; i++) most += b->members->workers[i]->sub_count;
    const char **rows = calloc(most + 1, sizeof *rows);
    if (!rows) return false;
    for (size_t i = 0; i < r->adapter_count; i++)
        if (strcmp(r->adapters[i]->name, after) > 0) rows[count++] = r->adapters[i]->name;
    for (size_t i = 0; i < b->members->worker_count; i++) {
        const member_t *m = b->members->workers[i];
        for (uint32_t k = 0; member_is_ready(m) && k < m->sub_count; k++)
            if (strcmp(m->subs[k].adapter, after) > 0) rows[count++] = m->subs[k].adapter;
    }
    *ret = (names_t){rows, count};
    keep_once(ret);
    return true;
}

static json_t *adapter_of_name(const report_view_t *b, const char *name)
{
    const adapter_row_t *a = registry_adapter(b->registry, name);
    adapter_row_t nothing = {0};
    error_text(nothing.name, sizeof nothing.name, name);
    return report_adapter_row(b, a ? a : &nothing);
}

/* The adapters after q->after_name that fit; sets the page's cursor. */
static json_t *adapters_list(const report_view_t *b, const msg_query_t *q, report_page_t *page)
{
    names_t names;
    rows_t rows;
    if (!find_names(b, q->after_name ? q->after_name : "", &names)) return NULL;
    rows_init(&rows, q->limit, REPORT_PAGE_ROWS);
    for (size_t i = 0; i < names.count && rows_add(&rows, adapter_of_name(b, names.rows[i])); i++)
        error_text(page->next_name, sizeof page->next_name, names.rows[i]);
    free(names.rows);
    page->more = rows.full;
    return rows_end(&rows);
}

static int report_adapters(const report_view_t *b, const msg_query_t *q, report_page_t *page,
                           heddle_error_t *error)
{
    page->body = part_body("adapters", true, json_pack("{s:o}", "adapters", adapters_list(b, q, page)));
    return page->body ? HEDDLE_OK : part_no_memory(error);
}

/* ---- status ---------------------------------------------------------------------------------- */

/* Null, unless members know more than the registry: then it is an older copy. */
static json_t *restored_part(const report_view_t *b)
{
    if (!b->restored.at_ms) return json_null();
    return json_pack("{s:o, s:o, s:o}", "from", part_text(b->restored.from), "at",
                     part_time(b->restored.at_ms), "message", part_text(b->restored.message));
}

static json_t *broker_part(const report_view_t *b)
{
    return json_pack("{s:s, s:s?, s:s, s:o, s:o, s:s, s:{s:i, s:i}, s:o, s:o, s:s, s:s, s:o, s:o, s:o}",
                     "endpoint", b->endpoint, "public_key", b->public_key, "cluster",
                     b->cluster, "epoch", part_count(b->registry->epoch), "pid",
                     part_count(b->pid), "heddle", heddle_version(), "wire", "min",
                     (int)WIRE_VERSION_MIN, "max", (int)WIRE_VERSION_MAX, "uptime_ms",
                     part_ms(b->now.us - b->started_us), "now_at", part_time(b->now.wall_ms), "state",
                     b->is_read_only ? "read_only" : "ready", "data_dir", b->data_dir,
                     "registry_bytes", part_count(b->registry_bytes), "restored", restored_part(b),
                     "settling_ms", part_settling(b));
}

static json_t *count_part(const report_view_t *b)
{
    uint64_t versions = 0, ready = 0, lost = 0, writers = 0;
    for (size_t i = 0; i < b->registry->adapter_count; i++) {
        versions += b->registry->adapters[i]->version_count;
        writers += b->registry->adapters[i]->writer.token != 0;
    }
    for (size_t i = 0; i < b->members->worker_count; i++) {
        ready += b->members->workers[i]->state == MEMBER_READY;
        lost += b->members->workers[i]->state == MEMBER_LOST;
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "adapters", part_count(b->registry->adapter_count),
                     "versions", part_count(versions), "workers_ready", part_count(ready), "workers_lost",
                     part_count(lost), "writers", part_count(writers));
}

#define WARNINGS_LOST 32u /* adapters that are warned of by name */

static const char *text_of(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}

/* Warnings are listed by time, the oldest first. */
static bool warn(json_t *list, uint64_t at_ms, const char *name, const char *message)
{
    char time[25];
    clock_text(at_ms, time);
    size_t at = json_array_size(list);
    while (at && strcmp(text_of(json_array_get(list, at - 1), "at"), time) > 0) at--;
    return json_array_insert_new(list, at, json_pack("{s:s, s:s, s:o}", "at", time, "name", name, "message",
                                                     part_text(message))) == 0;
}

/* Only WARNINGS_LOST adapters are named, because the answer must fit into one message; the others are
 * counted. */
static bool warn_of_lost(const report_view_t *b, json_t *list)
{
    char text[ROLLOUT_TEXT];
    size_t count = 0;
    bool ok = true;
    for (size_t i = 0; ok && i < b->registry->adapter_count; i++) {
        const adapter_row_t *a = b->registry->adapters[i];
        const track_t *t = rollout_lost_active(b->rollout, a);
        if (!t || ++count > WARNINGS_LOST) continue;
        rollout_lost_text(b->rollout, a, text, sizeof text);
        ok = warn(list, t->lost_ms ? t->lost_ms : b->started_ms, "version.lost", text);
    }
    if (!ok || count <= WARNINGS_LOST) return ok;
    text_printf(text, sizeof text, "%zu more adapters have lost their active version: `heddle adapters`",
                count - WARNINGS_LOST);
    return warn(list, b->now.wall_ms, "version.lost", text);
}

static bool warn_of_refused(const report_view_t *b, json_t *list)
{
    char text[REFUSED_TEXT];
    bool ok = true;
    for (const refused_key_t *r = b->refused->rows; ok && r < b->refused->rows + REFUSED_MAX; r++) {
        if (!refused_is_listed(r, b->now.us) || auth_is_live(auth_key(b->auth, r->public_key))) continue;
        refused_text(r, text);
        ok = warn(list, r->heard_ms, "keys.refused", text);
    }
    return ok;
}

/* Warns of processes that belong to another cluster, of keys that were refused, and of adapters whose active
 * version is lost. */
static json_t *warnings_part(const report_view_t *b)
{
    json_t *list = json_array();
    bool ok = list;
    for (const foreign_member_t *s = b->foreign->rows; ok && s < b->foreign->rows + FOREIGN_MAX; s++)
        if (foreign_is_listed(s, b->now.us)) ok = warn(list, s->heard_ms, "broker.other_cluster", s->text);
    if (ok && warn_of_refused(b, list) && warn_of_lost(b, list)) return list;
    json_decref(list);
    return NULL;
}

static int report_status(const report_view_t *b, const msg_query_t *q, report_page_t *page,
                         heddle_error_t *error)
{
    page->body = part_body("status", true,
                           json_pack("{s:o, s:o, s:o, s:o}", "broker", broker_part(b), "warnings",
                                     warnings_part(b), "count", count_part(b), "adapters",
                                     adapters_list(b, q, page)));
    return page->body ? HEDDLE_OK : part_no_memory(error);
}

/* ---- events ---------------------------------------------------------------------------------- */

static json_t *event_data(const event_row_t *e)
{
    json_t *data = json_object();
    bool ok = data;
    if (ok && e->decision) ok = json_object_set_new(data, "decision", part_count(e->decision)) == 0;
    if (ok && e->token) ok = json_object_set_new(data, "token", part_count(e->token)) == 0;
    const char *key = e->type == EVENT_SOURCE_LOST ? "source" : "by";
    if (ok && e->other[0]) ok = json_object_set_new(data, key, part_text(e->other)) == 0;
    if (ok && e->bytes >= 0) ok = json_object_set_new(data, "bytes", part_count((uint64_t)e->bytes)) == 0;
    if (ok && e->duration_ms >= 0)
        ok = json_object_set_new(data, "duration_ms", part_count((uint64_t)e->duration_ms)) == 0;
    if (ok) return data;
    json_decref(data);
    return NULL;
}

static json_t *event_part(const event_row_t *e, uint64_t epoch)
{
    return part_body("event", true,
                     json_pack("{s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "seq",
                               part_count(e->seq), "epoch", part_count(epoch), "at", part_time(e->at_ms),
                               "type", events_name(e->type), "adapter", part_text(e->adapter), "version",
                               part_number(e->version), "worker", part_text(e->worker), "code",
                               part_code(e->code), "message", part_text(e->message), "data", event_data(e)));
}

/* Stands for the events that are gone.  It has the number before the first event that is kept, so that
 * numbers still rise. */
static json_t *gap_part(const report_view_t *b, const msg_query_t *q, uint64_t begin)
{
    event_row_t gap = {
        .seq = begin - 1, .at_ms = b->now.wall_ms, .type = EVENT_GAP, .bytes = -1, .duration_ms = -1};
    if (q->epoch && q->epoch != b->events->epoch)
        events_say(&gap, 0, "the broker was started again: what epoch %llu had after %llu is gone",
                   (unsigned long long)q->epoch, (unsigned long long)q->after);
    else
        events_say(&gap, 0, "events %llu to %llu are no longer kept", (unsigned long long)q->after,
                   (unsigned long long)(begin - 1));
    return event_part(&gap, b->events->epoch);
}

static int report_events(const report_view_t *b, const msg_query_t *q, report_page_t *page,
                         heddle_error_t *error)
{
    const events_t *ev = b->events;
    events_filter_t filter = {.epoch = q->epoch, .after = q->after, .adapter = q->name, .worker = q->worker};
    bool has_gap = false;
    uint64_t seq = events_begin(ev, &filter, &has_gap);
    rows_t rows;
    rows_init(&rows, q->limit, REPORT_PAGE_EVENTS);
    if (has_gap) rows_add(&rows, gap_part(b, q, seq));
    for (; seq <= ev->last_seq; seq++) {
        const event_row_t *e = events_at(ev, seq);
        if (e && events_match(e, &filter) && !rows_add(&rows, event_part(e, ev->epoch))) break;
    }
    page->more = rows.full;
    page->next = seq;
    /* The oldest event that is kept, whatever was asked for: a reader that asks by time sees the gap. */
    const event_row_t *first = events_at(ev, events_first(ev));
    page->body =
        part_body("events", true,
                  json_pack("{s:o, s:o, s:o, s:o, s:o, s:b}", "events", rows_end(&rows), "first_seq",
                            part_count(events_first(ev)), "first_at", part_time(first ? first->at_ms : 0),
                            "next", part_count(seq), "epoch", part_count(ev->epoch), "more",
                            (int)page->more));
    return page->body ? HEDDLE_OK : part_no_memory(error);
}

/* ---- which ----------------------------------------------------------------------------------- */

/* The table of answers.  Questions that wait are answered in query.c. */
int report_page(const report_view_t *b, const msg_query_t *q, report_page_t *ret_page,
                heddle_error_t *error)
{
    static const struct {
        const char *op;
        int (*page)(const report_view_t *b, const msg_query_t *q, report_page_t *page,
                    heddle_error_t *error);
    } PAGES[] = {{"status", report_status}, {"adapters", report_adapters}, {"versions", report_versions},
                 {"workers", report_workers}, {"events", report_events}, {"keys", report_keys}};
    report_page_t page = {0};
    for (size_t i = 0; i < sizeof PAGES / sizeof *PAGES; i++) {
        if (!q->op || strcmp(q->op, PAGES[i].op) != 0) continue;
        int rc = PAGES[i].page(b, q, &page, error);
        if (rc == HEDDLE_OK) *ret_page = page;
        return rc;
    }
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "the broker has no answer to \"%.64s\"", q->op ? q->op : "");
    error_contrast(error, "status, adapters, versions, workers, events, wait, activate or verify", q->op);
    return rc;
}
