/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/report.h"

#include "broker/rollout/messages.h"
#include "core/errors.h"

int report_unknown(const char *adapter, uint64_t version, const member_t *member, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "%s@%llu was never announced to %s", adapter,
                        (unsigned long long)version, member->name);
    error_where(error, adapter, version, member->name, NULL);
    return rc;
}

int report_wrong_digest(const char *adapter, const version_row_t *row, const digest_t *found,
                        const member_t *member, const char *phase, heddle_error_t *error)
{
    char expected[HEDDLE_DIGEST_TEXT], text[HEDDLE_DIGEST_TEXT];
    digest_text(&row->digest, expected);
    digest_text(found, text);
    int rc = error_fail(error, HEDDLE_ERR_DIGEST_MISMATCH, "%s holds different bytes for %s@%llu",
                        member->name, adapter, (unsigned long long)row->version);
    error_where(error, adapter, row->version, member->name, phase);
    error_contrast(error, expected, text);
    error_hint(error, "its memory or its sources are damaged; `heddle verify` asks every holder");
    return rc;
}

void report_stage_failed(step_t *s, track_t *t, copy_row_t *c, copy_why_t why)
{
    copy_failed(t, c, why, s->v.now);
    event_row_t *e = events_add(s->ev, EVENT_STAGE_FAILED, t->adapter, t->version, c->worker, s->v.now);
    events_message(e, why.code, "%s: %s", why.phase, why.message);
}

int report_find(step_t *s, about_t *x, heddle_error_t *error)
{
    const member_sub_t *sub = member_sub(x->member, x->adapter);
    x->a = tracks_adapter(s->ro, x->adapter);
    const version_row_t *row = x->a ? registry_version(x->a->row, x->version) : NULL;
    if (!row || !sub) return report_unknown(x->adapter, x->version, x->member, error);
    x->t = track_of(x->a, x->version);
    if (!registry_is_live(row)) {
        if (row->state == VERSION_RETIRED) messages_send_retire(s, x->adapter, x->version, x->member);
        else messages_send_abort(s, x->adapter, row, x->member);
        return HEDDLE_OK;
    }
    x->c = messages_need_copy(s, x->t, x->member); /* a live version has a track */
    if (x->c) return HEDDLE_OK;
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a copy of %s@%llu", x->adapter,
                      (unsigned long long)x->version);
}
