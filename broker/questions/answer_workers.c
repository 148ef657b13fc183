/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/answer_workers.h"
#include "broker/questions/why.h"

#include "broker/registry/active.h"
#include "broker/rollout/drain.h"
#include "core/errors.h"
#include "core/option.h"

#include <stdlib.h>
#include <string.h>

/* ---- one subscription ------------------------------------------------------------------------ */

/* The earlier versions that the worker keeps, to go back to without another fetch. */
static json_t *kept_json(const answer_view_t *b, const member_t *m, const adapter_row_t *a)
{
    json_t *list = json_array();
    bool ok = list;
    for (size_t i = 0; ok && a && i < a->version_count; i++) {
        const version_row_t *v = a->versions[i];
        const track_t *t = registry_is_live(v) ? track_find(b->rollout, a->name, v->version) : NULL;
        const copy_row_t *c = t ? copy_find(t, m->name) : NULL;
        if (c && c->state == COPY_KEPT) ok = json_array_append_new(list, cell_count(v->version)) == 0;
    }
    if (ok) return list;
    json_decref(list);
    return NULL;
}

/* What a worker has of an adapter, and what is wrong with it. */
static json_t *subscription_json(const answer_view_t *b, const member_t *m, const member_sub_t *sub)
{
    const adapter_row_t *a = registry_adapter(b->registry, sub->adapter);
    const version_row_t *v = a && sub->serving.version ? registry_version(a, sub->serving.version) : NULL;
    const digest_t *digest = v ? &v->digest : NULL;
    const track_t *next = sub->fetching ? track_find(b->rollout, sub->adapter, sub->fetching) : NULL;
    const copy_row_t *c = next ? copy_find(next, m->name) : NULL;
    why_sub_t why;
    why_sub(b, m, sub, &why);
    bool is_cut_off = c && c->cut_off_us;
    const member_t *source = is_cut_off ? NULL : membership_source(b->members, sub->source);
    json_t *fetching =
        !sub->fetching
            ? json_null()
            : json_pack("{s:o, s:o, s:o, s:o, s:o}", "version", cell_count(sub->fetching), "bytes_done",
                        cell_count(sub->bytes_done), "data_bytes", cell_count(sub->data_bytes), "source",
                        cell_text(source ? source->name : NULL), "rate_bytes", cell_number(why.rate_bytes));
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name",
                     sub->adapter, "version", cell_number(sub->serving.version), "decision",
                     cell_number(sub->serving.decision), "tag",
                     cell_tag(sub->adapter, sub->serving.version, digest), "digest", cell_digest(digest),
                     "state", cell_text(why.state), "code", cell_code(why.code), "message",
                     cell_text(why.code ? why.message : NULL), "lag", cell_count(active_lag(a, m, sub)),
                     "since_at", cell_time(why.since_ms), "held_count", cell_count(sub->held_count),
                     "fetching", fetching, "note", cell_text(why.note), "kept", kept_json(b, m, a));
}

/* By name: a worker lists its subscriptions in the order of its command line. */
static json_t *subs_json(const answer_view_t *b, const member_t *m)
{
    json_t *list = json_array();
    bool ok = list;
    for (uint32_t i = 0; ok && i < m->sub_count; i++) {
        size_t at = json_array_size(list);
        while (at > 0 && strcmp(json_string_value(json_object_get(json_array_get(list, at - 1), "name")),
                                m->subs[i].adapter) > 0)
            at--;
        ok = json_array_insert_new(list, at, subscription_json(b, m, &m->subs[i])) == 0;
    }
    if (ok) return list;
    json_decref(list);
    return NULL;
}

enum { DRAIN_NAMED = 64 };

/* ---- one worker ------------------------------------------------------------------------------ */

/* Labels were checked by JOIN, so each has a "=". */
static json_t *labels_json(const member_t *m)
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

static json_t *texts_json(char *const *texts, uint32_t count)
{
    json_t *list = json_array();
    bool ok = list;
    for (uint32_t i = 0; ok && i < count; i++) ok = json_array_append_new(list, json_string(texts[i])) == 0;
    if (ok) return list;
    json_decref(list);
    return NULL;
}

/* Why other workers do not fetch from it, or do so last. */
static const char *relay_why(const answer_view_t *b, const member_t *m)
{
    if (m->trust.sends_bad) return "it sent bytes with another digest to two other workers";
    if (m->trust.is_suspect) return "it got wrong bytes from two sources: its own memory or link may be bad";
    if (m->no_relay) return "it was started so";
    if (member_is_cut_off(m, b->now.wall_ms))
        return "it reaches no other worker, and the publisher serves it: are ports closed between them?";
    if (member_is_blamed(m, b->now.wall_ms)) return "it sent bytes with another digest to another worker";
    return member_is_slow(m, b->now.wall_ms) ? "another source was faster" : "";
}

/* "policy@3": what is only at the worker, which waits until it is elsewhere too. */
static json_t *only_here_json(const answer_view_t *b, const member_t *m)
{
    const track_t *tracks[DRAIN_NAMED];
    view_t v = {b->registry, b->members, b->now};
    size_t count = drain_only_here(b->rollout, v, m, tracks, DRAIN_NAMED);
    json_t *list = json_array();
    for (size_t i = 0; i < count && i < DRAIN_NAMED; i++)
        json_array_append_new(
            list, json_sprintf("%s@%llu", tracks[i]->adapter, (unsigned long long)tracks[i]->version));
    return json_pack("{s:o, s:o, s:o}", "since_at", cell_time(m->drain_ms), "only_here_count",
                     cell_count(count), "only_here", list);
}

static json_t *worker_json(const answer_view_t *b, const member_t *m)
{
    /* Current: it serves the active version of every adapter that it subscribed to. */
    bool is_current = member_is_ready(m);
    for (uint32_t i = 0; is_current && i < m->sub_count; i++)
        is_current = active_is_served(registry_adapter(b->registry, m->subs[i].adapter), m, &m->subs[i]);
    json_t *group = !m->group[0] ? json_null()
                                 : json_pack("{s:s, s:o, s:o}", "name", m->group, "rank", cell_count(m->rank),
                                             "ranks", cell_count(m->ranks));
    json_t *transport =
        json_pack("{s:o, s:o, s:o, s:o, s:s, s:o, s:o}", "backend", cell_text(m->backend), "ucx",
                  cell_text(m->ucx), "devices", texts_json(m->devices, m->device_count), "addresses",
                  texts_json(m->addresses, m->address_count), "memory", m->place ? "shared" : "own",
                  "memory_why", cell_text(m->unheld), "host_share", cell_text(m->host_share));
    /* Before the first heartbeat only the number of slots that JOIN asked for is known. */
    const msg_counts_t *c = &m->counts;
    bool is_reported = c->slots_total > 0;
    uint64_t total = is_reported ? c->slots_total : m->slots * m->sub_count;
    json_t *slots = json_pack("{s:o, s:o, s:o}", "total", cell_count(total), "free",
                              is_reported ? cell_count(c->slots_free) : json_null(), "held",
                              is_reported ? cell_count(c->slots_held) : json_null());
    json_t *counters =
        json_pack("{s:o, s:o, s:o, s:o, s:o}", "bytes_in", cell_count(c->bytes_in), "bytes_out",
                  cell_count(c->bytes_out), "chunks_bad", cell_count(c->chunks_bad), "retries",
                  cell_count(c->retries), "fenced", cell_count(c->fenced));
    bool has_memory = c->own_bytes || c->held_bytes;
    json_t *memory = json_pack("{s:o, s:o}", "own_bytes", has_memory ? cell_count(c->own_bytes) : json_null(),
                               "held_bytes", has_memory ? cell_count(c->held_bytes) : json_null());
    json_t *drain = member_is_draining(m) ? only_here_json(b, m) : json_null();
    return json_pack("{s:s, s:o, s:s, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "name", m->name, "token", cell_count(m->token), "state", member_state_name(m->state),
                     "drain", drain, "current", (int)is_current, "host", cell_text(m->host), "pid",
                     cell_number(m->pid), "labels", labels_json(m), "group", group, "joined_at",
                     cell_time(m->joined_ms), "heartbeat_age_ms", cell_count(member_silent_ms(m, b->now.us)),
                     "transport", transport, "slots", slots, "memory", memory, "relay_why",
                     cell_text(relay_why(b, m)), "adapters", subs_json(b, m), "counters", counters);
}

/* ---- the page -------------------------------------------------------------------------------- */

int answer_workers(const answer_view_t *b, const msg_query_t *q, answer_page_t *page, heddle_error_t *error)
{
    const char *name = q->name && *q->name ? q->name : NULL;
    if (name && !membership_worker(b->members, name)) {
        error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no worker \"%s\"", name);
        error_where(error, NULL, 0, name, NULL);
        const char **names = calloc(b->members->worker_count + 1, sizeof *names);
        for (size_t i = 0; names && i < b->members->worker_count; i++)
            names[i] = b->members->workers[i]->name;
        option_unknown_name(name, names, "`heddle workers` lists them; lost and left ones for 10 minutes",
                            error);
        if (registry_adapter(b->registry, name))
            error_hint(error, "that is an adapter: `heddle versions %.128s` lists its versions", name);
        free(names);
        return HEDDLE_ERR_NOT_FOUND;
    }
    rows_t rows;
    rows_init(&rows, q->limit, ANSWER_PAGE_ROWS);
    for (size_t i = 0; i < b->members->worker_count; i++) {
        const member_t *m = b->members->workers[i];
        if (name ? strcmp(m->name, name) != 0 : q->after_name && strcmp(m->name, q->after_name) <= 0)
            continue;
        if (!rows_add(&rows, worker_json(b, m))) break;
        memcpy(page->next_name, m->name, sizeof page->next_name);
    }
    page->more = rows.full;
    page->body = cell_body(
        q->op, true, json_pack("{s:o, s:o}", "settling_ms", cell_settling(b), "workers", rows_end(&rows)));
    return page->body ? HEDDLE_OK : cell_no_memory(error);
}
