/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/registry/publish.h"

#include "broker/registry/decision.h"
#include "broker/registry/writer.h"
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

/* Sorted, so that the same features give the same text whatever the order of the message. */
static const char *features_text(const msg_publish_t *m, outbox_t *out)
{
    const char *sorted[LIMIT_FEATURES];
    uint32_t count = m->feature_count < LIMIT_FEATURES ? m->feature_count : LIMIT_FEATURES;
    if (!count) return "";
    memcpy(sorted, m->features, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, text_order);
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

/* A worker lays its memory out by these numbers. */
static int check_part(const msg_publish_t *m, const msg_part_t *part, heddle_error_t *error)
{
    if (!part->payload_bytes || !part->manifest_bytes)
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH of %s has an empty payload or manifest",
                          m->adapter);
    if (part->payload_bytes % LIMIT_PAGE_BYTES == 0) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH of %s has a payload of %llu bytes", m->adapter,
                        (unsigned long long)part->payload_bytes);
    error_expected(error, "whole pages of %u bytes", LIMIT_PAGE_BYTES);
    return rc;
}

static int check_publish(const msg_publish_t *m, heddle_error_t *error)
{
    int rc = HEDDLE_OK;
    uint64_t payload_bytes = 0;
    if (!m->request_id || !*m->request_id) {
        rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH of %s has no request id", m->adapter);
    } else if (!m->part_count || m->part_count > LIMIT_VERSION_PARTS) {
        rc = error_fail(error, HEDDLE_ERR_UNSUPPORTED_FEATURE, "PUBLISH of %s has %u parts", m->adapter,
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
    } else {
        for (uint32_t i = 0; i < m->part_count && !rc; i++) {
            rc = check_part(m, &m->parts[i], error);
            payload_bytes += m->parts[i].payload_bytes;
        }
        if (!rc && m->data_bytes > payload_bytes) {
            rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH of %s has %llu bytes of tensors", m->adapter,
                            (unsigned long long)m->data_bytes);
            error_expected(error, "at most the %llu of its payload", (unsigned long long)payload_bytes);
        }
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
static int conflict(const msg_publish_t *m, const adapter_row_t *a, const version_row_t *v,
                    heddle_error_t *error)
{
    char stored[HEDDLE_DIGEST_TEXT], asked[HEDDLE_DIGEST_TEXT], at[25];
    digest_text(&v->digest, stored);
    digest_text(&m->digest, asked);
    clock_text(v->created_ms, at);
    /* Its first publication was interrupted, which left the id free for these other bytes. */
    const version_row_t *first = NULL;
    for (size_t i = 0; i < a->version_count && !first; i++)
        if (!strcmp(a->versions[i]->request_id, m->request_id) &&
            digest_equal(&a->versions[i]->digest, &m->digest))
            first = a->versions[i];
    char was[96] = "";
    if (first)
        text_printf(was, sizeof was, "; version %llu, of these bytes, was interrupted before",
                    (unsigned long long)first->version);
    int rc = error_fail(error, HEDDLE_ERR_REQUEST_CONFLICT,
                        "request id %s stands for other bytes: %s@%llu, published by %s at %s%s",
                        m->request_id, m->adapter, (unsigned long long)v->version, v->writer, at, was);
    error_where(error, m->adapter, v->version, NULL, "commit");
    error_contrast(error, stored, asked);
    error_hint(
        error,
        "publish these bytes under another request id; `heddle versions %.128s@%llu` shows what has this one",
        m->adapter, (unsigned long long)v->version);
    return rc;
}

/* A version without a step, published by hand for instance, says nothing about the steps of the others. */
static const version_row_t *newest_with_step(const adapter_row_t *a)
{
    for (size_t i = a->version_count; i-- > 0;)
        if (a->versions[i]->step >= 0) return a->versions[i];
    return NULL;
}

/* As a rule a trainer that was restarted from an old checkpoint, by mistake: its workers would go back
 * unasked. */
static int stepped_back(const msg_publish_t *m, const version_row_t *before, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_STEP_BACK, "step %lld of %s is lower than that of version %llu",
                        (long long)m->step, m->adapter, (unsigned long long)before->version);
    error_where(error, m->adapter, before->version, NULL, "commit");
    error_expected(error, "step %lld or more", (long long)before->step);
    error_found(error, "step %lld", (long long)m->step);
    error_hint(error, "after going back to an older checkpoint on purpose: opts.allow_step_back");
    return rc;
}

/* Without this check the version would wait for its whole deadline, and then fail at each worker for a
 * network error that does not name the cause. */
static int cut_off(const msg_publish_t *m, const publish_by_t *by, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_UNAVAILABLE,
               "no worker can reach the publisher %s: its data plane is on loopback (%s), and those of the "
               "workers of %s (%zu) are elsewhere",
               by->writer, by->addresses, m->adapter, by->cut_off_count);
    error_where(error, m->adapter, 0, NULL, "commit");
    error_expected(error, "a publisher on a network of the workers");
    error_found(error, "%s, on %s", by->writer, by->addresses);
    error_hint(error, "start the publisher with opts.data_device and the interface that the workers reach");
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
    error_hint(error, "with opts.if_unchanged skip that version is taken, with publish a new one is made");
    return rc;
}

/* To publish now could store the same bytes twice; the answer is known one lease after the start. */
static int not_known_yet(const msg_publish_t *m, const version_row_t *uncertain, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE,
                        "the broker has just started and cannot tell yet whether these bytes equal %s@%llu",
                        m->adapter, (unsigned long long)uncertain->version);
    error_where(error, m->adapter, uncertain->version, NULL, "commit");
    error_hint(error, "try again one lease after the start of the broker");
    error->retriable = 1;
    return rc;
}

/* The order of the checks matters.  A repeated request is answered before the writer is checked, because
 * the first attempt may have been recorded by a session that has ended since. */
int publish_decide(const msg_publish_t *m, const publish_by_t *by, outbox_t *out,
                   publish_answer_t *ret_published, heddle_error_t *error)
{
    const adapter_row_t *a = by->adapter;
    const version_row_t *stands_for = NULL; /* an existing version, which stands for this PUBLISH */
    const char *reason = "";
    int rc = check_publish(m, error);
    if (rc) return rc;
    const version_row_t *same = a ? version_of_request(a, m->request_id) : NULL;
    if (same) {
        if (!digest_equal(&same->digest, &m->digest)) return conflict(m, a, same, error);
        stands_for = same;
        reason = "replayed";
    } else {
        rc = writer_check_publish(a, by->token, m->adapter, error);
        if (rc) return rc;
        rc = registry_check_kind(a, m->kind, error);
        if (rc) {
            error_where(error, m->adapter, 0, NULL, "commit");
            return rc;
        }
        const version_row_t *before = newest_with_step(a), *live = by->live;
        if (before && m->step >= 0 && before->step > m->step && !m->allow_step_back)
            return stepped_back(m, before, error);
        if (by->uncertain && m->if_unchanged != HEDDLE_UNCHANGED_PUBLISH)
            return not_known_yet(m, by->uncertain, error);
        bool is_same = live && digest_equal(&live->digest, &m->digest);
        /* Its publisher ended in the middle: a refusal would leave it to be lost. */
        bool needs_these = is_same && !by->is_live_whole && registry_is_wanted(a, live);
        if (is_same && !needs_these && m->if_unchanged == HEDDLE_UNCHANGED_FAIL)
            return unchanged(m, live, error);
        if (is_same && m->if_unchanged != HEDDLE_UNCHANGED_PUBLISH) {
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
         * (presence_republished): otherwise no RELEASE would ever follow, and the region could not be used
         * again. */
        if (registry_is_wanted(a, stands_for)) said->key = stands_for->share_key;
    } else {
        const char *features = features_text(m, out), *meta = meta_text(m, out);
        record_t *rec = outbox_record(out, RECORD_VERSION, m->adapter, by->now);
        rec->version = a->last_version + 1;
        rec->digest = m->digest;
        rec->parts.count = m->part_count;
        memcpy(rec->parts.part, m->parts, m->part_count * sizeof *m->parts);
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
        rec->region = m->region;
        rec->config = m->config;
        rec->meta = meta;
        /* Of the versions that wait for the one in the rollout, the newest stays. */
        const version_row_t *waiting = registry_waiting(a);
        if (waiting) decision_supersede(a, waiting, rec->version, by->now, out);
        said->version = rec->version;
        said->key = by->share_key;
        said->created = true;
    }
    said->held = by->held && said->version > by->held_version ? by->held : "";
    outbox_send(out, by->peer, &answer);
    *ret_published = (publish_answer_t){.version = said->version, .is_new = !stands_for};
    return HEDDLE_OK;
}
