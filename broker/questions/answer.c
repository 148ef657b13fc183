/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/answer_brokers.h"
#include "broker/questions/answer_events.h"
#include "broker/questions/answer_keys.h"
#include "broker/questions/answer_versions.h"
#include "broker/questions/answer_workers.h"
#include "broker/questions/status_reasons.h"

#include "broker/registry/active.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/units.h"

#include <stdlib.h>
#include <string.h>

/* ---- adapters -------------------------------------------------------------------------------- */

static json_t *adapter_row(const answer_view_t *b, const adapter_row_t *a)
{
    uint64_t subscribers = 0, current = 0, max_lag = 0;
    for (size_t i = 0; i < b->members->worker_count; i++) {
        const member_t *m = b->members->workers[i];
        const member_sub_t *sub = member_is_ready(m) ? member_sub(m, a->name) : NULL;
        if (!sub) continue;
        uint64_t lag = active_lag(a, m, sub);
        bool stays = m->state == MEMBER_READY; /* one that drains serves on, and is not counted as ready */
        subscribers += stays;
        current += stays && active_is_served(a, m, sub);
        if (lag > max_lag) max_lag = lag;
    }
    const version_row_t *served = registry_active(a), *newest = registry_newest(a);
    const digest_t *digest = served ? &served->digest : NULL;
    json_t *active_json = !active_latest(a)
                              ? json_null()
                              : json_pack("{s:o, s:o, s:s, s:o, s:o, s:o}", "version",
                                          cell_count(active_latest(a)), "decision", cell_count(a->decision),
                                          "state", summary_lost_active(b->rollout, a) ? "lost" : "active",
                                          "tag", cell_tag(a->name, active_latest(a), digest), "digest",
                                          cell_digest(digest), "since_at", cell_time(a->decided_ms));
    json_t *newest_json =
        !newest ? json_null()
                : json_pack("{s:o, s:s, s:o}", "version", cell_count(newest->version), "state",
                            summary_state(b->rollout, a, newest), "digest", cell_digest(&newest->digest));
    json_t *held_json = !a->held
                            ? json_null()
                            : json_pack("{s:o, s:o, s:o}", "by", cell_text(a->held_by), "at",
                                        cell_time(a->decided_ms), "version", cell_count(active_latest(a)));
    const writer_row_t *w = &a->writer;
    json_t *writer_json = !w->token
                              ? json_null()
                              : json_pack("{s:s, s:o, s:o, s:o}", "name", w->name, "host", cell_text(w->host),
                                          "pid", cell_number(w->pid), "since_at", cell_time(w->since_ms));
    /* The base model that matters is that of the version that is served, or of the newest one. */
    const version_row_t *model = served ? served : registry_newest_live(a);
    if (!model) model = newest;
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", a->name, "active",
                     active_json, "newest", newest_json, "held", held_json, "writer", writer_json,
                     "base_model", cell_text(model ? model->base_model : NULL), "version_count",
                     cell_count(a->version_count), "subscriber_count", cell_count(subscribers),
                     "current_count", cell_count(current), "max_lag", cell_count(max_lag));
}

/* The adapters after q->after_name that fit, each once: those that were published to, and those that READY
 * workers only subscribe to.  The latter show a name that was mistyped.  A page begins after the last name of
 * the page before, so no cursor is kept here. */
static json_t *adapters_list(const answer_view_t *b, const msg_query_t *q, answer_page_t *page)
{
    const registry_t *r = b->registry;
    const char *after = q->after_name ? q->after_name : "";
    texts_t names = {0};
    for (size_t i = 0; i < r->adapter_count; i++)
        if (strcmp(r->adapters[i]->name, after) > 0 && !registry_is_vacant(r->adapters[i]))
            texts_add(&names, r->adapters[i]->name);
    for (size_t i = 0; i < b->members->worker_count; i++) {
        const member_t *m = b->members->workers[i];
        for (uint32_t k = 0; member_is_ready(m) && k < m->sub_count; k++)
            if (strcmp(m->subs[k].adapter, after) > 0) texts_add(&names, m->subs[k].adapter);
    }
    texts_sort(&names);

    rows_t rows;
    rows_init(&rows, q->limit, ANSWER_PAGE_ROWS);
    rows.failed |= names.failed;
    for (size_t i = 0; i < names.count; i++) {
        const adapter_row_t *a = registry_adapter(r, names.list[i]);
        adapter_row_t nothing = {0}; /* only subscribed to: it has a name, and no more */
        error_text(nothing.name, sizeof nothing.name, names.list[i]);
        if (!rows_add(&rows, adapter_row(b, a ? a : &nothing))) break;
        error_text(page->next_name, sizeof page->next_name, names.list[i]);
    }
    texts_fini(&names);
    page->more = rows.full;
    return rows_end(&rows);
}

static int answer_adapters(const answer_view_t *b, const msg_query_t *q, answer_page_t *page,
                           heddle_error_t *error)
{
    page->body = cell_body("adapters", true, json_pack("{s:o}", "adapters", adapters_list(b, q, page)));
    return page->body ? HEDDLE_OK : cell_no_memory(error);
}

/* ---- status ---------------------------------------------------------------------------------- */

#define WARNINGS_LOST 32u /* adapters that are warned of by name */

/* Warnings are listed by time, the oldest first. */
static bool warn(json_t *list, uint64_t at_ms, const char *name, const char *message)
{
    char time[25];
    clock_text(at_ms, time);
    size_t at = json_array_size(list);
    while (at && strcmp(json_string_value(json_object_get(json_array_get(list, at - 1), "at")), time) > 0)
        at--;
    return json_array_insert_new(
               list, at,
               json_pack("{s:s, s:s, s:o}", "at", time, "name", name, "message", cell_text(message))) == 0;
}

/* Warns of a disk that takes no records, of processes that belong to another cluster, of keys that were
 * refused, and of adapters whose active version is lost. */
static json_t *warnings_json(const answer_view_t *b)
{
    json_t *list = json_array();
    bool ok = list;
    char text[SUMMARY_TEXT];
    if (ok && b->is_read_only) {
        text_printf(text, sizeof text, "the broker takes no records: %s", b->read_only_why);
        ok = warn(list, b->read_only_ms, "broker.read_only", text);
    }
    for (size_t i = 0; ok && i < STRANGERS_MAX; i++) {
        const stranger_t *s = &b->foreign->rows[i], *key = &b->refused->rows[i];
        if (stranger_is_listed(s, b->now.us))
            ok = warn(list, s->received_ms, "broker.other_cluster", s->text);
        bool is_refused = key->lacks_role || !auth_is_live(auth_key(b->auth, key->id));
        if (ok && is_refused && stranger_is_listed(key, b->now.us))
            ok = warn(list, key->received_ms, "keys.refused", key->text);
    }
    /* Only WARNINGS_LOST adapters are named, because the answer must fit into one message; the others are
     * counted. */
    size_t count = 0;
    for (size_t i = 0; ok && i < b->registry->adapter_count; i++) {
        const adapter_row_t *a = b->registry->adapters[i];
        const track_t *t = summary_lost_active(b->rollout, a);
        if (!t || ++count > WARNINGS_LOST) continue;
        summary_lost_text(b->rollout, a, text, sizeof text);
        ok = warn(list, t->held_until_ms ? t->held_until_ms : b->started_ms, "version.lost", text);
    }
    if (ok && count > WARNINGS_LOST) {
        text_printf(text, sizeof text, "%zu more adapters have lost their active version: `heddle adapters`",
                    count - WARNINGS_LOST);
        ok = warn(list, b->now.wall_ms, "version.lost", text);
    }
    if (ok) return list;
    json_decref(list);
    return NULL;
}

static int answer_status(const answer_view_t *b, const msg_query_t *q, answer_page_t *page,
                         heddle_error_t *error)
{
    /* Null, unless members reported greater numbers than the registry had: then it is an older copy. */
    json_t *restored = !b->restored.at_ms ? json_null()
                                          : json_pack("{s:o, s:o, s:o}", "from", cell_text(b->restored.from),
                                                      "at", cell_time(b->restored.at_ms), "message",
                                                      cell_text(b->restored.message));
    json_t *broker = json_pack(
        "{s:s, s:s?, s:s, s:o, s:o, s:s, s:{s:i, s:i}, s:o, s:o, s:s, s:s, s:o, s:o, s:o}", "endpoint",
        b->endpoint, "public_key", b->public_key, "cluster", b->cluster, "epoch",
        cell_count(b->registry->epoch), "pid", cell_count(b->pid), "heddle", heddle_version(), "wire", "min",
        (int)WIRE_VERSION_MIN, "max", (int)WIRE_VERSION_MAX, "uptime_ms", cell_ms(b->now.us - b->started_us),
        "now_at", cell_time(b->now.wall_ms), "state", b->is_read_only ? "read_only" : "ready", "data_dir",
        b->data_dir, "registry_bytes", cell_count(b->registry_bytes(b->self)), "restored", restored,
        "settling_ms", cell_settling(b));
    uint64_t adapters = 0, versions = 0, ready = 0, lost = 0, writers = 0;
    for (size_t i = 0; i < b->registry->adapter_count; i++) {
        adapters += !registry_is_vacant(b->registry->adapters[i]);
        versions += b->registry->adapters[i]->version_count;
        writers += b->registry->adapters[i]->writer.token != 0;
    }
    for (size_t i = 0; i < b->members->worker_count; i++) {
        ready += b->members->workers[i]->state == MEMBER_READY;
        lost += b->members->workers[i]->state == MEMBER_LOST;
    }
    json_t *count = json_pack("{s:o, s:o, s:o, s:o, s:o}", "adapters", cell_count(adapters), "versions",
                              cell_count(versions), "workers_ready", cell_count(ready), "workers_lost",
                              cell_count(lost), "writers", cell_count(writers));
    page->body = cell_body("status", true,
                           json_pack("{s:o, s:o, s:o, s:o, s:o}", "broker", broker, "warnings",
                                     warnings_json(b), "reasons", status_reasons_json(b), "count", count,
                                     "adapters", adapters_list(b, q, page)));
    return page->body ? HEDDLE_OK : cell_no_memory(error);
}

/* ---- which ----------------------------------------------------------------------------------- */

int answer_check_tag(const registry_t *registry, const msg_query_t *q, heddle_error_t *error)
{
    const adapter_row_t *a = q->version && q->name ? registry_adapter(registry, q->name) : NULL;
    const version_row_t *v = a ? registry_version(a, q->version) : NULL;
    char head[DIGEST_HEAD + 1], tag[HEDDLE_TAG_TEXT];
    if (!v || !q->digest_head || !*q->digest_head) return HEDDLE_OK;
    digest_head(&v->digest, head);
    if (!strcmp(head, q->digest_head)) return HEDDLE_OK;
    tag_text(a->name, v->version, &v->digest, tag);
    error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no version %s@%llu:%s: %s@%llu has another digest",
               a->name, (unsigned long long)v->version, q->digest_head, a->name,
               (unsigned long long)v->version);
    error_where(error, a->name, v->version, NULL, NULL);
    error_expected(error, "%s@%llu:%s", a->name, (unsigned long long)v->version, q->digest_head);
    error_found(error, "%s", tag);
    error_hint(error,
               "the tag is of another broker's data, or mistyped: `heddle versions %.128s` has the digests",
               a->name);
    return HEDDLE_ERR_NOT_FOUND;
}

int answer_check_ready(const answer_view_t *b, heddle_error_t *error)
{
    char time[16];
    uint64_t settling_us = rollout_settling_us(b->rollout, b->members, b->now.us);
    int rc = HEDDLE_OK;
    if (b->brokers && !b->brokers->is_answered) {
        rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE, BROKERS_UNANSWERED);
        error_hint(error, BROKERS_UNANSWERED_HINT);
    } else if (b->is_read_only) {
        rc = error_fail(error, b->read_only_code, "the broker takes no records: %s", b->read_only_why);
        error_hint(error, "%s%sthe broker tries again each second", b->read_only_hint,
                   *b->read_only_hint ? "; " : "");
    } else if (settling_us) {
        units_ms_text((double)settling_us / 1000, time);
        rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE,
                        "the broker has just started, and decides nothing for %s", time);
        error_hint(error, "members come back meanwhile; it is ready then");
    }
    return rc;
}

/* The table of answers.  Questions that wait are answered in query.c. */
int answer_page(const answer_view_t *b, const msg_query_t *q, answer_page_t *ret_page, heddle_error_t *error)
{
    static const struct {
        const char *op;
        int (*page)(const answer_view_t *b, const msg_query_t *q, answer_page_t *page, heddle_error_t *error);
    } PAGES[] = {{"status", answer_status},   {"adapters", answer_adapters},    {"versions", answer_versions},
                 {"workers", answer_workers}, {"events", answer_events},        {"keys", answer_keys},
                 {"drain", answer_workers},   {"drain_cancel", answer_workers}, {"brokers", answer_brokers}};
    answer_page_t page = {0};
    if (answer_check_tag(b->registry, q, error)) return error->code;
    for (size_t i = 0; i < sizeof PAGES / sizeof *PAGES; i++) {
        if (!q->op || strcmp(q->op, PAGES[i].op) != 0) continue;
        int rc = PAGES[i].page(b, q, &page, error);
        if (rc == HEDDLE_OK) *ret_page = page;
        return rc;
    }
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "the broker has no answer to \"%.64s\"", q->op ? q->op : "");
    error_contrast(error, "status, brokers, adapters, versions, workers, events, wait, activate or verify",
                   q->op);
    return rc;
}
