/* SPDX-License-Identifier: Apache-2.0 */
/* The question `pull`: where a process that is no member fetches a version from.  Nothing is remembered of
 * it: no session, no copy, no duty of a rollout. */
#include "broker/questions/query.h"

#include "broker/questions/answer_versions.h"
#include "broker/registry/active.h"
#include "broker/rollout/messages.h"
#include "core/errors.h"
#include "proto/value.h"

/* Three cases with one error: no such adapter, no such version, or nothing active or staging. */
static int fail_unknown(const registry_t *r, const adapter_row_t *a, const char *name, uint64_t version,
                        heddle_error_t *error)
{
    if (!a || registry_is_vacant(a)) return registry_fail_unknown(r, name, version, "fetch", error);
    if (version) return registry_fail_unpublished(a, version, "fetch", error);
    int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "no version of %s is active or staging", name);
    error_where(error, name, 0, NULL, "fetch");
    error_hint(error, "`heddle versions %.128s` lists what there is", name);
    return rc;
}

static int fail_gone(const broker_t *b, const adapter_row_t *a, const version_row_t *v, uint64_t version,
                     heddle_error_t *error)
{
    if (!v) return registry_fail_unremembered(HEDDLE_ERR_VERSION_LOST, a->name, version, "fetch", error);
    bool has_failed = v->state == VERSION_FAILED;
    const char *state = registry_is_live(v) ? "lost" : summary_state(&b->rollout, a, v);
    int rc = error_fail(error, has_failed ? HEDDLE_ERR_VERSION_FAILED : HEDDLE_ERR_VERSION_LOST,
                        "%s@%llu is %s: no worker or publisher holds its bytes", a->name,
                        (unsigned long long)version, state);
    error_where(error, a->name, version, NULL, "fetch");
    error_contrast(error, "a version that is staging, staged, active or kept", state);
    error_hint(error, "`heddle versions %.128s` lists those; publish the bytes again to have this one",
               a->name);
    return rc;
}

/* A client that pulls is no member and is not remembered: it gets the sources once, and asks again when
 * they fail. */
static int answer(const call_t *c, const adapter_row_t *a, uint64_t version, heddle_error_t *error)
{
    broker_t *b = c->b;
    const version_row_t *v = registry_version(a, version);
    track_t *t = track_find(&b->rollout, a->name, version);
    msg_source_t sources[PLAN_SOURCES];
    plan_asker_t asker = {.token = c->from, .place = c->m->query.place}; /* any number: it spreads several */
    uint32_t count = t ? messages_sources(&b->members, t, &asker, sources) : 0;
    /* A version without a source is not gone while it may get one back: from its publisher while it is
     * staging, from a worker while the broker settles. */
    bool is_without = !count && v && v->state == VERSION_COMMITTED && b->rollout.is_settled;
    if (!v || !registry_is_live(v) || is_without) return fail_gone(b, a, v, version, error);
    json_t *body = NULL;
    buf_t bytes = {0};
    record_parts_t parts = v->parts;
    answer_view_t view = query_view(b, c->now);
    int rc = answer_pull(&view, a, v, &body);
    if (!rc) rc = value_encode(body, &bytes);
    if (rc) error_fail(error, rc, "no memory for the answer");
    msg_t m = {.type = MSG_REPORT};
    m.report = (msg_report_t){.req = c->m->query.req,
                              .body = buf_view(&bytes),
                              .key = v->share_key,
                              .parts = parts.part,
                              .part_count = parts.count,
                              .sources = sources,
                              .source_count = count};
    if (!rc) outbox_send(b->out, c->from, &m);
    buf_fini(&bytes);
    json_decref(body);
    return rc;
}

void on_pull(const call_t *c)
{
    const msg_query_t *q = &c->m->query;
    heddle_error_t error;
    const char *name = q->name ? q->name : "";
    const adapter_row_t *a = registry_adapter(&c->b->registry, name);
    int rc = name_check("adapter", name, &error);
    /* An adapter's name alone means the active version, or the newest on its way where none is active. */
    uint64_t version = q->version;
    if (!version && a) {
        const version_row_t *newest = active_latest(a) ? NULL : track_newest_live(&c->b->rollout, a);
        version = newest ? newest->version : active_latest(a);
    }
    if (!rc && (!a || !version || version > a->last_version))
        rc = fail_unknown(&c->b->registry, a, name, version, &error);
    if (!rc) rc = answer(c, a, version, &error);
    if (rc) broker_refuse(c, &error, 0);
}
