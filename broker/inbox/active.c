/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/report.h"

#include "broker/registry/active.h"
#include "broker/rollout/messages.h"
#include "core/errors.h"

int on_active(step_t *s, member_t *member, const msg_active_t *m, heddle_error_t *error)
{
    const adapter_rollout_t *a = tracks_adapter(s->ro, m->adapter);
    const version_row_t *row = a ? registry_version(a->row, m->version) : NULL;
    member_sub_t *sub = member_sub(member, m->adapter);
    if (!row || !sub) return report_unknown(m->adapter, m->version, member, error);
    bool is_possible = m->decision && m->decision <= row->decision &&
                       (m->decision != a->row->decision || m->version == active_for(a->row, member));
    if (!is_possible) {
        int rc = error_fail(error, HEDDLE_ERR_PROTOCOL,
                            "%s says it applied decision %llu of %s, naming version %llu", member->name,
                            (unsigned long long)m->decision, m->adapter, (unsigned long long)m->version);
        error_where(error, m->adapter, m->version, member->name, "activate");
        error_expected(error, "decision %llu, naming version %llu, or an earlier one",
                       (unsigned long long)a->row->decision, (unsigned long long)active_for(a->row, member));
        return rc;
    }
    if (!digest_equal(&m->digest, &row->digest)) {
        /* The worker serves bytes under this version's name that are not the version's.  That is an error of
         * the worker, and it is not believed. */
        int rc = report_wrong_digest(m->adapter, row, &m->digest, member, "activate", error);
        track_t *t = track_of(a, m->version);
        copy_row_t *c = copy_of(t, member);
        if (c) copy_failed(t, c, (copy_why_t){rc, "activate", error->message}, s->v.now);
        event_row_t *e =
            events_add(s->ev, EVENT_ACTIVATE_FAILED, m->adapter, m->version, member->name, s->v.now);
        events_message(e, rc, "%s", error->message);
        return rc;
    }
    bool is_old = m->decision < sub->serving.decision ||
                  (m->decision == sub->serving.decision && !sub->serving.is_refused);
    if (is_old) return HEDDLE_OK; /* said twice, or overtaken by a later one */

    /* It came when this version was active already: what it did is no part of a rollout. */
    if (!sub->serving.version && row->activated_ms <= member->came.wall_ms)
        costs_note_joined(&s->ro->costs, member, s->v.now.us);

    /* The worker serves this version by this decision.  Only this function notes that. */
    serving_switched(&sub->serving, m->decision, m->version, s->v.now.wall_ms);
    if (active_is_served(a->row, member, sub)) serving_caught_up(&sub->serving);

    /* Its copies follow: a worker that went back to an earlier version has not reached the later ones. */
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        if (track_is_ended(t)) continue;
        copy_row_t *c = t->version == m->version ? messages_need_copy(s, t, member) : copy_of(t, member);
        if (!c) continue;
        bool has_reached = t->row->decision && t->row->decision <= m->decision && t->version <= m->version;
        if (has_reached) copy_reached(t, c, true);
        if (t->version == m->version) {
            copy_switched(t, c, m->activate_us, s->v.now);
            costs_note_switched(&s->ro->costs, c, member, s->v.now.us);
        } else if (c->state == COPY_ACTIVE || c->state == COPY_REFUSED) {
            copy_kept(t, c, s->v.now);
        } else if (has_reached) {
            copy_turned_away(t, c, s->v.now);
        }
    }
    copies_follow_switch(a, member, s->v.now);
    event_row_t *e = events_add(s->ev, EVENT_ACTIVATE_DONE, m->adapter, m->version, member->name, s->v.now);
    e->decision = m->decision;
    messages_wake_worker(s, a, member);
    return HEDDLE_OK;
}
