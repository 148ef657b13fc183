/* SPDX-License-Identifier: Apache-2.0 */
/* What the registry decides: answers and records, from a registry that is only looked at. */
#include "broker/registry/registry.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"

#include <heddle/publisher.h>
#include <stdlib.h>

#define DEADLINE_DEFAULT_MS 60000u

/* ---- texts of a record ---- */

static void add_json_text(buf_t *b, const char *text)
{
    buf_add_text(b, "\"");
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\') buf_printf(b, "\\%c", *p);
        else if (*p < 0x20) buf_printf(b, "\\u%04x", *p);
        else buf_add(b, p, 1);
    }
    buf_add_text(b, "\"");
}

static const char *keep_text(outbox_t *out, buf_t *b)
{
    const char *text = arena_text(&out->texts, buf_text(b), b->bytes);
    if (b->failed || !text) out->failed = true;
    buf_fini(b);
    return text ? text : "";
}

/* The record has JSON text and not a tree, so that neither registry nor store depends on a JSON library. */
static const char *meta_text(const msg_publish_t *m, outbox_t *out)
{
    if (!m->meta_count) return "";
    buf_t b = {0};
    for (uint32_t i = 0; i < m->meta_count; i++) {
        buf_add_text(&b, i ? "," : "{");
        add_json_text(&b, m->meta[i].key);
        buf_add_text(&b, ":");
        add_json_text(&b, m->meta[i].value);
    }
    buf_add_text(&b, "}");
    return keep_text(out, &b);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorted, so that the same features give the same text whatever the order of the message. */
static const char *features_text(const msg_publish_t *m, outbox_t *out)
{
    const char *sorted[LIMIT_FEATURES];
    uint32_t count = m->feature_count < LIMIT_FEATURES ? m->feature_count : LIMIT_FEATURES;
    if (!count) return "";
    memcpy(sorted, m->features, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_texts);
    buf_t b = {0};
    for (uint32_t i = 0; i < count; i++) buf_printf(&b, "%s%s", i ? "," : "", sorted[i]);
    return keep_text(out, &b);
}

/* ---- publish ---- */

/* The first key that comes twice; NULL: none does. */
static const char *meta_twice(const msg_publish_t *m)
{
    for (uint32_t i = 0; i < m->meta_count; i++)
        for (uint32_t k = 0; k < i; k++)
            if (!strcmp(m->meta[i].key, m->meta[k].key)) return m->meta[i].key;
    return NULL;
}

static int check_publish(const msg_publish_t *m, heddle_error_t *error)
{
    int rc = HEDDLE_OK;
    const msg_part_t *part = &m->parts[0];
    if (!m->request_id || !*m->request_id) {
        rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH of %s has no request id", m->adapter);
    } else if (m->part_count != 1) {
        rc = error_fail(error, HEDDLE_ERR_UNSUPPORTED_FEATURE, "PUBLISH of %s in %u parts", m->adapter,
                        m->part_count);
        error_contrast(error, "1 part", NULL);
        error_found(error, "%u parts", m->part_count);
        error_hint(error, "gather the shards in one rank and publish there");
    } else if (meta_twice(m)) {
        rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH of %s has meta \"%s\" twice", m->adapter,
                        meta_twice(m));
    } else if (m->step < -1) {
        rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH of %s has step %lld", m->adapter,
                        (long long)m->step);
        error_expected(error, "a step of 0 or more, or -1 for none");
    } else if (!part->region_bytes || !part->manifest_bytes) {
        rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH of %s has an empty region or manifest",
                        m->adapter);
    } else if (part->region_bytes % LIMIT_PAGE_BYTES) { /* a worker lays its memory out by these numbers */
        rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH of %s has a region of %llu bytes", m->adapter,
                        (unsigned long long)part->region_bytes);
        error_expected(error, "whole pages of %u bytes", LIMIT_PAGE_BYTES);
    } else if (m->data_bytes > part->region_bytes) {
        rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH of %s has %llu bytes of tensors", m->adapter,
                        (unsigned long long)m->data_bytes);
        error_expected(error, "at most the %llu of its region", (unsigned long long)part->region_bytes);
    }
    error_where(error, m->adapter, 0, NULL, "commit");
    return rc;
}

/* A publisher repeats PUBLISH with the same request id when it got no answer.  NULL: the id stands for no
 * version, and makes a new one.  The walk starts at the newest version, which is nearly always the one. */
static const version_row_t *version_of_request(const adapter_row_t *a, const char *request_id)
{
    const version_row_t *v = NULL;
    for (size_t i = a->version_count; i-- > 0 && !v;)
        if (!strcmp(a->versions[i]->request_id, request_id)) v = a->versions[i];
    /* The version was never on a worker, because its publisher ended first.  That says nothing of its bytes
     * or of the workers: the request was interrupted, and to repeat it is how it goes on.  All other ends
     * are answers, which a repetition gets again: a worker refused it, the deadline passed, a newer version
     * overtook it. */
    bool is_interrupted =
        v && v->state == VERSION_FAILED && v->code == HEDDLE_ERR_VERSION_LOST && !v->worker[0];
    return is_interrupted ? NULL : v;
}

/* The caller took the id from another publication, by mistake or from an old script.  To answer with that
 * publication's version would say that the new bytes are stored. */
static int conflict(const msg_publish_t *m, const version_row_t *v, heddle_error_t *error)
{
    char stored[HEDDLE_DIGEST_TEXT], asked[HEDDLE_DIGEST_TEXT];
    digest_text(&v->digest, stored);
    digest_text(&m->digest, asked);
    int rc = error_fail(error, HEDDLE_ERR_REQUEST_CONFLICT, "request id %s stands for other bytes: %s@%llu",
                        m->request_id, m->adapter, (unsigned long long)v->version);
    error_where(error, m->adapter, v->version, NULL, "commit");
    error_contrast(error, stored, asked);
    error_hint(error, "give new bytes a new request id");
    return rc;
}

/* As a rule a trainer that was restarted from an old checkpoint, by mistake: its workers would go back
 * unasked. */
static int stepped_back(const msg_publish_t *m, const version_row_t *newest, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_STEP_BACK, "step %lld of %s is lower than that of version %llu",
                        (long long)m->step, m->adapter, (unsigned long long)newest->version);
    error_where(error, m->adapter, newest->version, NULL, "commit");
    error_expected(error, "step %lld or more", (long long)newest->step);
    error_found(error, "step %lld", (long long)m->step);
    error_hint(error, "after going back to an older checkpoint on purpose: --allow-step-back");
    return rc;
}

/* Without this check the version would wait for its whole deadline, and then fail at each worker for a
 * network error that does not name the cause. */
static int cut_off(const msg_publish_t *m, const publish_by_t *by, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_UNAVAILABLE,
               "no worker can reach the publisher %s: its data plane is on loopback (%s), and that of each "
               "of the %zu workers of %s is elsewhere",
               by->writer, by->addresses, by->cut_off_count, m->adapter);
    error_where(error, m->adapter, 0, NULL, "commit");
    error_expected(error, "a publisher on a network of the workers");
    error_found(error, "%s, on %s", by->writer, by->addresses);
    error_hint(error, "start the publisher with --data-device and the interface that the workers reach");
    error->retriable = 0;
    return HEDDLE_ERR_UNAVAILABLE;
}

/* Most often a training loop that stopped learning, or that publishes the wrong object. */
static int unchanged(const msg_publish_t *m, const version_row_t *live, heddle_error_t *error)
{
    char digest[HEDDLE_DIGEST_TEXT];
    digest_text(&live->digest, digest);
    int rc = error_fail(error, HEDDLE_ERR_UNCHANGED, "the bytes equal those of %s@%llu, the newest version",
                        m->adapter, (unsigned long long)live->version);
    error_where(error, m->adapter, live->version, NULL, "commit");
    error_contrast(error, "other bytes", digest);
    error_hint(error, "--if-unchanged skip takes that version, publish makes a new one");
    return rc;
}

static int not_writer(const msg_publish_t *m, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_FENCED, "the session that publishes to %s is not its writer",
                        m->adapter);
    error_where(error, m->adapter, 0, NULL, "commit");
    error_hint(error, "open the adapter again");
    return rc;
}

/* To publish now could store the same bytes twice; the answer is known one lease after the start. */
static int not_known_yet(const msg_publish_t *m, const version_row_t *awaited, heddle_error_t *error)
{
    int rc = error_fail(
        error, HEDDLE_ERR_UNAVAILABLE,
        "the broker has just started: whether %s@%llu, of the same bytes, is the newest that is held "
        "is not known yet",
        m->adapter, (unsigned long long)awaited->version);
    error_where(error, m->adapter, awaited->version, NULL, "commit");
    error_hint(error, "ask again when it has settled: one lease after its start");
    error->retriable = 1;
    return rc;
}

/* The order of the checks matters.  A repeated request is answered before the writer is checked, because
 * the first attempt may have been recorded by a session that has ended since. */
int registry_decide_publish(const msg_publish_t *m, const publish_by_t *by, outbox_t *out,
                            publish_answer_t *ret_published, heddle_error_t *error)
{
    const adapter_row_t *a = by->adapter;
    const version_row_t *stands_for = NULL; /* an existing version, which stands for this PUBLISH */
    const char *reason = "";
    int rc = check_publish(m, error);
    if (rc) return rc;
    const version_row_t *same = a ? version_of_request(a, m->request_id) : NULL;
    if (same) {
        if (!digest_equal(&same->digest, &m->digest)) return conflict(m, same, error);
        stands_for = same;
        reason = "replayed";
    } else {
        if (!a || !by->writer) return not_writer(m, error);
        const version_row_t *newest = registry_newest(a), *live = by->live;
        if (newest && m->step >= 0 && newest->step > m->step && !m->allow_step_back)
            return stepped_back(m, newest, error);
        if (by->awaited && m->if_unchanged != HEDDLE_UNCHANGED_PUBLISH)
            return not_known_yet(m, by->awaited, error);
        bool is_same = live && digest_equal(&live->digest, &m->digest);
        if (is_same && m->if_unchanged == HEDDLE_UNCHANGED_FAIL) return unchanged(m, live, error);
        if (is_same && m->if_unchanged == HEDDLE_UNCHANGED_SKIP) {
            stands_for = live;
            reason = "unchanged";
        } else if (by->cut_off_count) {
            return cut_off(m, by, error);
        }
    }

    msg_t answer = {.type = MSG_PUBLISHED};
    msg_published_t *said = &answer.published;
    *said = (msg_published_t){.req = m->req, .adapter = m->adapter, .reason = reason, .digest = m->digest};
    if (stands_for) {
        said->version = stands_for->version;
        /* The answer has the share key only where the publisher's bytes count as a source
         * (rollout_republished): otherwise no RELEASE would ever follow, and the region could not be used
         * again. */
        if (registry_is_wanted(a, stands_for)) said->key = stands_for->share_key;
    } else {
        const char *features = features_text(m, out), *meta = meta_text(m, out);
        record_t *rec = outbox_record(out, RECORD_VERSION, m->adapter, by->now);
        rec->version = a->last_version + 1;
        rec->digest = m->digest;
        rec->part = m->parts[0];
        rec->share_key = by->share_key;
        rec->request_id = m->request_id;
        rec->writer = by->writer;
        rec->base_model = m->base_model;
        rec->kind_text = m->kind;
        rec->features = features;
        rec->step = m->step;
        rec->data_bytes = m->data_bytes;
        rec->tensor_count = m->tensor_count;
        rec->chunk_count = m->chunk_count;
        rec->activation = m->activation;
        rec->deadline_ms = m->deadline_ms ? m->deadline_ms : DEADLINE_DEFAULT_MS;
        rec->asked_ms = m->asked_ms;
        rec->config = m->config;
        rec->meta = meta;
        /* Of the versions that wait for the one in the rollout, the newest stays. */
        const version_row_t *waiting = registry_waiting(a);
        if (waiting) registry_decide_superseded(a, waiting, rec->version, by->now, out);
        said->version = rec->version;
        said->key = by->share_key;
        said->created = true;
    }
    said->held = by->held && said->version > by->held_version ? by->held : "";
    outbox_send(out, by->peer, &answer);
    *ret_published = (publish_answer_t){.version = said->version, .is_new = !stands_for};
    return HEDDLE_OK;
}

/* ---- writers ---- */

/* A live writer keeps its adapter, except against its own process and --takeover.  A second trainer that
 * is started by mistake then cannot take versions over. */
int registry_check_open(const registry_t *r, const msg_open_t *m, const open_by_t *by, heddle_error_t *error)
{
    const adapter_row_t *a = registry_adapter(r, m->adapter);
    if (!a && r->adapter_count >= LIMIT_ADAPTERS) {
        int rc = error_fail(error, HEDDLE_ERR_LIMIT, "%s would be one adapter too many", m->adapter);
        error_expected(error, "at most %u adapters at one broker", LIMIT_ADAPTERS);
        return rc;
    }
    bool is_held = a && a->writer.token && by->holder_is_live &&
                   memcmp(&a->writer.life, &by->life, sizeof by->life) != 0;
    if (!is_held || m->takeover) return HEDDLE_OK;
    char since[25];
    clock_text(a->writer.since_ms, since);
    int rc = error_fail(error, HEDDLE_ERR_WRITER_HELD, "%s has a writer: %s on %s, pid %llu, since %s",
                        a->name, a->writer.name, a->writer.host, (unsigned long long)a->writer.pid, since);
    error_where(error, a->name, 0, NULL, NULL);
    error_expected(error, "no live writer");
    const char *heard = by->is_of_before ? "not heard of since the broker's start" : "heard of";
    error_found(error, "%s, %s %llu ms ago", a->writer.name, heard, (unsigned long long)by->heartbeat_age_ms);
    error_hint(error, "it ends with its session; --takeover fences it now");
    return rc;
}

int registry_decide_open(const registry_t *r, const msg_open_t *m, const open_by_t *by, instant_t now,
                         outbox_t *out, heddle_error_t *error)
{
    int rc = registry_check_open(r, m, by, error);
    if (rc) return rc;
    if (!registry_adapter(r, m->adapter)) outbox_record(out, RECORD_ADAPTER, m->adapter, now);
    record_t *rec = outbox_record(out, RECORD_WRITER, m->adapter, now);
    rec->token = by->token;
    rec->writer = m->writer;
    rec->pid = by->pid;
    rec->host = by->host;
    rec->life = by->life;
    return HEDDLE_OK;
}

void registry_decide_close(const adapter_row_t *a, instant_t now, outbox_t *out)
{
    outbox_record(out, RECORD_WRITER, a->name, now);
}

/* ---- decisions ---- */

uint64_t registry_next_decision(const adapter_row_t *a)
{
    return (a->decision > a->floor_decision ? a->decision : a->floor_decision) + 1;
}

/* The scope is everyone, unless the caller changes it. */
static record_t *add_decision(const adapter_row_t *a, uint64_t version, bool held, const char *by,
                              instant_t now, outbox_t *out)
{
    record_t *rec = outbox_record(out, RECORD_DECISION, a->name, now);
    rec->decision = registry_next_decision(a);
    rec->version = version;
    rec->held = held;
    rec->by = by ? by : "";
    rec->scope = SCOPE_EVERYONE;
    return rec;
}

void registry_decide_active(const adapter_row_t *a, const version_row_t *v, scope_t scope, instant_t now,
                            outbox_t *out)
{
    add_decision(a, v->version, false, "", now, out)->scope = scope;
}

/* Members know greater decisions than the one that is active here.  Workers ignore it until it is made
 * again with a greater number. */
bool registry_is_behind(const adapter_row_t *a) { return a->active && a->floor_decision > a->decision; }

void registry_decide_again(const adapter_row_t *a, instant_t now, outbox_t *out)
{
    add_decision(a, a->active, a->held, a->held_by, now, out)->scope = a->scope;
}

/* One transaction has one FLOOR for each adapter, which takes the greatest numbers, and one ADAPTER. */
bool registry_decide_floor(const registry_t *r, const char *adapter, uint64_t version, uint64_t decision,
                           instant_t now, outbox_t *out)
{
    bool is_known = registry_adapter(r, adapter) != NULL;
    record_t *rec = NULL;
    if (!outbox_has_room(out, 2)) return false;
    for (int i = 0; i < out->record_count; i++) {
        record_t *other = &out->records[i];
        if (strcmp(other->adapter, adapter) != 0) continue;
        is_known |= other->kind == RECORD_ADAPTER;
        if (other->kind == RECORD_FLOOR && !rec) rec = other;
    }
    if (!is_known) outbox_record(out, RECORD_ADAPTER, adapter, now);
    if (!rec) rec = outbox_record(out, RECORD_FLOOR, adapter, now);
    if (version > rec->version) rec->version = version;
    if (decision > rec->decision) rec->decision = decision;
    return true;
}

static int not_activatable(const adapter_row_t *a, uint64_t version, const char *why, const char *found,
                           const char *hint, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_NOT_ACTIVATABLE, "%s@%llu cannot be activated: %s", a->name,
                        (unsigned long long)version, why);
    error_where(error, a->name, version, NULL, "activate");
    error_contrast(error, "a staged, active or kept version", found);
    error_hint(error, "%s", hint);
    return rc;
}

/* The names are those that rollout_state shows. */
static const char *ended_name(version_state_t state)
{
    return state == VERSION_FAILED ? "failed" : state == VERSION_SUPERSEDED ? "superseded" : "retired";
}

static int check_activate(const adapter_row_t *a, const version_row_t *v, const activate_by_t *by,
                          heddle_error_t *error)
{
    if (!v)
        return not_activatable(a, by->version, "it ended long ago", "retired", "publish its bytes again",
                               error);
    if (!registry_is_live(v)) {
        heddle_error_t reason;
        registry_reason(a, v, &reason);
        return not_activatable(a, by->version, reason.message, ended_name(v->state),
                               "publish its bytes again", error);
    }
    if (by->lost || !by->has_source)
        return not_activatable(a, by->version, by->lost ? by->lost : "no process holds its bytes", "lost",
                               "publish its bytes again", error);
    if (v->state == VERSION_STAGING && !by->has_staged)
        return not_activatable(a, by->version, "no worker has staged it yet", "staging",
                               "`heddle wait --phase staged` waits until it is", error);
    return HEDDLE_OK;
}

int registry_decide_activate(const registry_t *r, const char *adapter, const activate_by_t *by, instant_t now,
                             outbox_t *out, activated_t *ret_activated, heddle_error_t *error)
{
    adapter_row_t *a = registry_adapter(r, adapter);
    if (!a || !by->version || by->version > a->last_version) {
        int rc = a ? error_fail(error, HEDDLE_ERR_NOT_FOUND, "%s@%llu was never published", adapter,
                                (unsigned long long)by->version)
                   : error_fail(error, HEDDLE_ERR_NOT_FOUND, "nothing was ever published to %s", adapter);
        error_where(error, adapter, by->version, NULL, "activate");
        if (a) error_expected(error, "a version up to %llu", (unsigned long long)a->last_version);
        error_hint(error, "`heddle versions %s` lists them", adapter);
        return rc;
    }
    const version_row_t *v = registry_version(a, by->version), *newest = registry_newest_live(a);
    bool is_active = a->active == by->version;
    bool is_free = by->ends_hold || (v && v == newest); /* leaves no hold behind */
    if (!is_active || by->lost) {
        int rc = check_activate(a, v, by, error);
        if (rc) return rc;
    }
    /* To activate the newest version again ends a hold.  To activate one that some workers could not
     * switch to makes them try again. */
    bool decides = !is_active || (a->held && is_free) || by->has_stale;
    *ret_activated =
        (activated_t){.from = a->active,
                      .decision = decides && !by->dry_run ? registry_next_decision(a) : a->decision,
                      .changed = !is_active,
                      .held = decides ? !is_free : a->held};
    if (decides && !by->dry_run) add_decision(a, by->version, !is_free, is_free ? "" : by->by, now, out);
    return HEDDLE_OK;
}

/* ---- ends ---- */

static bool has_record(const outbox_t *out, record_kind_t kind, const adapter_row_t *a, uint64_t version)
{
    for (int i = 0; i < out->record_count; i++) {
        const record_t *rec = &out->records[i];
        if (rec->kind == kind && rec->version == version && !strcmp(rec->adapter, a->name)) return true;
    }
    return false;
}

/* Forgets ended versions with the smallest numbers, whenever they ended.  As a rule one for the one that
 * ends now; a second one shortens the longer history of an older file. */
static void forget_oldest(const adapter_row_t *a, instant_t now, outbox_t *out)
{
    size_t excess = a->ended_count; /* once the records of this turn are applied */
    for (int i = 0; i < out->record_count; i++) {
        const record_t *rec = &out->records[i];
        if (strcmp(rec->adapter, a->name)) continue;
        excess += rec->kind == RECORD_STATE;
        excess -= rec->kind == RECORD_FORGET;
    }
    excess = excess > LIMIT_HISTORY ? excess - LIMIT_HISTORY : 0;
    if (excess > REGISTRY_END_RECORDS - 1) excess = REGISTRY_END_RECORDS - 1;
    for (size_t i = 0; i < a->version_count && excess; i++) {
        /* Once the records of this turn have happened: ended, and still history. */
        const version_row_t *v = a->versions[i];
        bool has_ended = !registry_is_live(v) || has_record(out, RECORD_STATE, a, v->version);
        if (!has_ended || has_record(out, RECORD_FORGET, a, v->version)) continue;
        record_t *rec = outbox_record(out, RECORD_FORGET, a->name, now);
        if (!rec) return; /* the next end takes it */
        rec->version = v->version;
        excess--;
    }
}

void registry_decide_end(const adapter_row_t *a, const version_row_t *v, version_state_t state,
                         const heddle_error_t *error, instant_t now, outbox_t *out)
{
    record_t *rec = outbox_record(out, RECORD_STATE, a->name, now);
    if (!rec) return;
    rec->version = v->version;
    rec->state = state;
    if (error) {
        rec->code = error->code;
        rec->message = outbox_text(out, error->message);
        rec->worker = outbox_text(out, error->worker);
        rec->phase = outbox_text(out, error->phase);
    }
    forget_oldest(a, now, out);
}

/* It is no failure, so it has a message and no code. */
void registry_decide_superseded(const adapter_row_t *a, const version_row_t *v, uint64_t by, instant_t now,
                                outbox_t *out)
{
    heddle_error_t e = {0};
    text_printf(e.message, sizeof e.message, "%s@%llu came before it was active", a->name,
                (unsigned long long)by);
    registry_decide_end(a, v, VERSION_SUPERSEDED, &e, now, out);
}

void registry_decide_loss(const adapter_row_t *a, const version_row_t *v, const char *why, instant_t now,
                          outbox_t *out)
{
    record_t *rec = outbox_record(out, RECORD_LOSS, a->name, now);
    if (!rec) return;
    rec->version = v->version;
    rec->message = outbox_text(out, why);
}

/* Why a version ended, as an error that names where.  False: it has not ended. */
bool registry_reason(const adapter_row_t *a, const version_row_t *v, heddle_error_t *ret_error)
{
    *ret_error = (heddle_error_t){0};
    if (registry_is_live(v)) return false;
    int code = v->code ? v->code : HEDDLE_ERR_VERSION_FAILED;
    if (v->message[0]) error_fail(ret_error, code, "%s", v->message);
    else if (v->state == VERSION_SUPERSEDED)
        error_fail(ret_error, code, "a newer version came before it was active");
    else error_fail(ret_error, code, "it was %s", ended_name(v->state));
    error_where(ret_error, a->name, v->version, v->worker[0] ? v->worker : NULL,
                v->phase[0] ? v->phase : NULL);
    ret_error->retriable = 0;
    return true;
}
