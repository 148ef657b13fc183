/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/report.h"

#include "broker/rollout/messages.h"
#include "broker/rollout/trust.h"

int on_staged(step_t *s, member_t *member, const msg_staged_t *m, heddle_error_t *error)
{
    about_t x = {.member = member, .adapter = m->adapter, .version = m->version};
    membership_staged(member, m);
    int rc = report_find(s, &x, error);
    if (!rc && !x.c) copy_crossed_end(x.t, copy_of(x.t, member), s->v.now);
    if (rc || !x.c) return rc;
    track_t *t = x.t;
    copy_row_t *c = x.c;
    copies_go_on(x.a, member, t->version, s->v.now.us);
    if (!digest_equal(&m->digest, &t->row->digest)) {
        rc = report_wrong_digest(m->adapter, t->row, &m->digest, member, "verify", error);
        report_stage_failed(s, t, c, (copy_why_t){rc, "verify", error->message});
        messages_wake_worker(s, x.a, member);
        return rc;
    }
    if (copy_holds(c)) return HEDDLE_OK; /* said twice */
    copy_staged(t, c, m, s->v.now);
    trust_staged(s, t, member, m);
    costs_note_staged(&s->ro->costs, t, c, m, member, s->v.now.us);
    copies_turned_away(x.a, member, 0, s->v.now); /* it goes on with the latest */
    event_row_t *e = events_add(s->ev, EVENT_STAGE_DONE, t->adapter, t->version, c->worker, s->v.now);
    e->bytes = (int64_t)c->bytes_done;
    e->duration_ms = c->sent_us ? (int64_t)((s->v.now.us - c->sent_us) / 1000) : -1;
    if (track_is_overtaken(t) && !copy_is_switching(c)) copy_kept(t, c, s->v.now); /* to go back to */
    /* COMMIT, when it is the active version; then the newest, when that waited.  Whether the version can be
     * decided now is looked at after this message, because copy_staged touched its track: broker_decide calls
     * rollout_look_at_touched and rollout_decide_touched. */
    messages_wake_worker(s, x.a, member);
    return HEDDLE_OK;
}
