/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/status_reasons.h"

#include "broker/questions/why.h"
#include "broker/registry/decision.h"
#include "broker/registry/active.h"
#include "core/errors.h"
#include "core/units.h"

#include <string.h>

typedef struct {
    json_t *list; /* NULL: memory ran out, or there is none */
    size_t count; /* of all, also those that are not listed */
    uint64_t counts[REASON_COUNT];
} reasons_t;

typedef struct {
    status_reason_t reason;
    const char *adapter, *worker;
    uint64_t since_ms; /* 0: not known */
} subject_t;

const char *status_reason_name(status_reason_t reason)
{
    static const char *const NAMES[REASON_COUNT] = {
#define X(NAME, name) [REASON_##NAME] = name,
        STATUS_REASONS(X)
#undef X
            [REASON_MORE] = "more"};
    return NAMES[reason];
}

static void add(reasons_t *r, const subject_t *about, const char *message)
{
    r->counts[about->reason]++;
    if (!r->list || ++r->count > STATUS_REASONS_MAX) return;
    json_t *row = json_pack("{s:s, s:o, s:o, s:o, s:o}", "name", status_reason_name(about->reason), "adapter",
                            cell_text(about->adapter), "worker", cell_text(about->worker), "since_at",
                            cell_time(about->since_ms), "message", cell_text(message));
    if (json_array_append_new(r->list, row) == 0) return;
    json_decref(r->list);
    r->list = NULL;
}

/* A mistyped command is refused as well, and says nothing of the broker.  Where no worker is here, nor was in
 * the last 10 minutes, a key that comes again and again is a worker's or a publisher's. */
static void of_keys(const answer_view_t *b, reasons_t *r)
{
    char text[SUMMARY_TEXT];
    const stranger_t *first = NULL;
    uint64_t count = 0;
    for (size_t i = 0; i < STRANGERS_MAX && !b->members->worker_count; i++) {
        const stranger_t *key = &b->refused->rows[i];
        bool is_known = auth_key(b->auth, key->id) != NULL;
        if (is_known || !stranger_is_listed(key, b->now.us) || key->count < STATUS_REFUSED_AGAIN) continue;
        count++;
        if (!first || key->received_ms > first->received_ms) first = key;
    }
    if (!first) return;
    text_printf(text, sizeof text,
                "no worker is here, and %llu key%s that %s not in the table of keys came again and again; is "
                "this the right --data? This is cluster %.64s in %.200s",
                (unsigned long long)count, count == 1 ? "" : "s", count == 1 ? "is" : "are", b->cluster,
                b->data_dir);
    add(r, &(subject_t){REASON_KEYS_REFUSED, NULL, NULL, first->received_ms}, text);
}

static void of_broker(const answer_view_t *b, reasons_t *r)
{
    char text[SUMMARY_TEXT], time[16];
    uint64_t settling_us = rollout_settling_us(b->rollout, b->members, b->now.us);
    bool is_silent = b->brokers && !b->brokers->is_answered;
    if (is_silent) {
        uint64_t seen_ms = b->brokers->seen_us ? b->now.wall_ms - (b->now.us - b->brokers->seen_us) / 1000
                                               : 0; /* the last answer */
        add(r, &(subject_t){REASON_STORE_UNANSWERED, NULL, NULL, seen_ms}, BROKERS_UNANSWERED);
    } else if (b->is_read_only) {
        text_printf(text, sizeof text, "the broker takes no records: %s", b->read_only_why);
        add(r, &(subject_t){REASON_READ_ONLY, NULL, NULL, b->read_only_ms}, text);
    }
    if (settling_us) {
        units_ms_text((double)settling_us / 1000, time);
        text_printf(text, sizeof text, "the broker has just started, and decides nothing for %s", time);
        add(r, &(subject_t){REASON_SETTLING, NULL, NULL, b->started_ms}, text);
    }
    if (b->restored.at_ms)
        add(r, &(subject_t){REASON_RESTORED, NULL, NULL, b->restored.at_ms}, b->restored.message);
    for (size_t i = 0; i < STRANGERS_MAX; i++) {
        const stranger_t *s = &b->foreign->rows[i];
        if (stranger_is_listed(s, b->now.us))
            add(r, &(subject_t){REASON_OTHER_CLUSTER, NULL, NULL, s->received_ms}, s->text);
    }
    of_keys(b, r);
}

/* A lost active version says that the adapter is held, if it is. */
static void of_adapter(const answer_view_t *b, const adapter_row_t *a, reasons_t *r)
{
    char text[SUMMARY_TEXT];
    heddle_error_t why;
    const track_t *lost = summary_lost_active(b->rollout, a);
    if (lost) {
        summary_lost_text(b->rollout, a, text, sizeof text);
        add(r,
            &(subject_t){REASON_VERSION_LOST, a->name, NULL,
                         lost->held_until_ms ? lost->held_until_ms : b->started_ms},
            text);
    } else if (a->held) {
        summary_held_text(b->rollout, a, text, sizeof text);
        add(r, &(subject_t){REASON_ADAPTER_HELD, a->name, NULL, a->decided_ms}, text);
    }
    const version_row_t *v = registry_newest(a);
    const track_t *t =
        v && v->version != active_latest(a) ? track_find(b->rollout, a->name, v->version) : NULL;
    if (v && v->state == VERSION_FAILED && decision_end_reason(a, v, &why)) {
        text_printf(text, sizeof text, "%s@%llu, the newest version, has failed: %s: %s", a->name,
                    (unsigned long long)v->version, heddle_err_name(why.code), why.message);
        add(r, &(subject_t){REASON_VERSION_FAILED, a->name, NULL, v->ended_ms}, text);
    } else if (t && registry_is_live(v) && t->bytes == BYTES_LOST) {
        summary_lost_reason(t, &why);
        add(r,
            &(subject_t){REASON_VERSION_LOST, a->name, NULL,
                         t->held_until_ms ? t->held_until_ms : b->started_ms},
            why.message);
    }
}

/* The worker does not serve the active version, and had the time to serve one of those that were active.  A
 * later decision does not begin that time anew: a worker that refuses each version would never be listed.
 * Where the bytes are lost, the adapter has that as its reason. */
static void of_subscription(const answer_view_t *b, const member_t *m, const member_sub_t *sub, reasons_t *r)
{
    const adapter_row_t *a = registry_adapter(b->registry, sub->adapter);
    uint64_t active = a ? active_for(a, m) : 0;
    if (!active || !sub->serving.behind_ms || summary_lost_active(b->rollout, a)) return;
    uint64_t late_us =
        b->now.wall_ms > sub->serving.behind_ms ? (b->now.wall_ms - sub->serving.behind_ms) * 1000 : 0;
    if (late_us <= STATUS_REASON_LATE_US) return;
    char text[SUMMARY_TEXT], time[16];
    units_ms_text((double)late_us / 1000, time);
    text_printf(text, sizeof text, "%s has not served the active version of %s, now %s@%llu, for %s", m->name,
                a->name, a->name, (unsigned long long)active, time);
    /* Why, in the words of `workers`. */
    why_sub_t why;
    why_sub(b, m, sub, &why);
    const char *code = why.code ? heddle_err_name(why.code) : "",
               *message = why.code ? why.message : why.note;
    if (!message) message = "";
    size_t used = strlen(text);
    if (*code || *message)
        text_printf(text + used, sizeof text - used, ": %s%s%s", code, *code && *message ? ": " : "",
                    message);
    add(r, &(subject_t){REASON_WORKER_BEHIND, a->name, m->name, sub->serving.behind_ms}, text);
}

/* What it serves has gone bad in its memory.  It serves on, for there is nothing better. */
static void of_damage(const answer_view_t *b, const member_t *m, const member_sub_t *sub, reasons_t *r)
{
    char text[SUMMARY_TEXT];
    const copy_row_t *c = copy_of(track_find(b->rollout, sub->adapter, sub->serving.version), m);
    if (!c || !c->bad_ms) return;
    text_printf(text, sizeof text, "%s serves %s@%llu: %s", m->name, sub->adapter,
                (unsigned long long)sub->serving.version, copy_message(c));
    add(r, &(subject_t){REASON_WORKER_DAMAGED, sub->adapter, m->name, c->bad_ms}, text);
}

/* It is to leave, and cannot: no process that stays has taken over what it has. */
static void of_drain(const answer_view_t *b, const member_t *m, const member_sub_t *sub, reasons_t *r)
{
    char text[SUMMARY_TEXT], why[WHY_NOTE_TEXT], time[16];
    uint64_t drain_us = b->now.wall_ms > m->drain_ms ? (b->now.wall_ms - m->drain_ms) * 1000 : 0;
    if (drain_us <= STATUS_REASON_DRAIN_US || !why_drains(b, m, sub->adapter, why)) return;
    units_ms_text((double)drain_us / 1000, time);
    text_printf(text, sizeof text, "%s has been draining for %s: %s", m->name, time, why);
    add(r, &(subject_t){REASON_WORKER_DRAINING, sub->adapter, m->name, m->drain_ms}, text);
}

static void of_worker(const answer_view_t *b, const member_t *m, reasons_t *r)
{
    char text[SUMMARY_TEXT];
    if (m->state == MEMBER_LOST) {
        text_printf(text, sizeof text, "%s is lost: %s", m->name, m->end_message);
        add(r, &(subject_t){REASON_WORKER_LOST, NULL, m->name, m->ended_ms}, text);
    }
    for (uint32_t i = 0; member_is_ready(m) && i < m->sub_count; i++) {
        of_subscription(b, m, &m->subs[i], r);
        of_damage(b, m, &m->subs[i], r);
        of_drain(b, m, &m->subs[i], r);
    }
}

static void all(const answer_view_t *b, reasons_t *r)
{
    of_broker(b, r);
    for (size_t i = 0; i < b->registry->adapter_count; i++) of_adapter(b, b->registry->adapters[i], r);
    for (size_t i = 0; i < b->members->worker_count; i++) of_worker(b, b->members->workers[i], r);
}

void status_reasons_count(const answer_view_t *b, uint64_t ret_counts[REASON_COUNT])
{
    reasons_t r = {.list = NULL};
    all(b, &r);
    memcpy(ret_counts, r.counts, sizeof r.counts);
}

json_t *status_reasons_json(const answer_view_t *b)
{
    reasons_t r = {.list = json_array()};
    char text[64];
    all(b, &r);
    if (!r.list || r.count <= STATUS_REASONS_MAX) return r.list;
    text_printf(text, sizeof text, "%zu more reasons are not listed", r.count - STATUS_REASONS_MAX);
    r.count = 0; /* the list has room for this one */
    add(&r, &(subject_t){.reason = REASON_MORE}, text);
    return r.list;
}
