/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/wake.h"

/* Without memory the outbox fails: the broker then calls each member to join again (broker_send_outbox). */
copy_row_t *copy_need(step_t *s, track_t *t, const member_t *member)
{
    copy_row_t *c = copy_add(t, member);
    if (!c) s->out->failed = true;
    return c;
}

/* True where ANNOUNCE has to be sent as soon as there is a source: it was never sent, it is owed, or the
 * time of a retry has come. */
static bool is_waiting(const copy_row_t *c, uint64_t now_us)
{
    if (!c) return true;
    if (c->state == COPY_FAILED) return c->retry_us && c->retry_us <= now_us;
    return copy_in_flight(c) && (!copy_is_told(c) || c->is_owed);
}

static void announce(step_t *s, track_t *t, const member_t *member)
{
    copy_row_t *c = copy_need(s, t, member);
    if (!c) return;
    plan_make(&t->plan, member->token, NULL, 0);
    send_announce(s, t, c, member);
}

/* Sends what the worker lacks of the active version.  True: the worker has it, or cannot get it now, so
 * the newest version may follow. */
static bool wake_active(step_t *s, const adapter_rollout_t *a, const member_t *member, bool newer_in_flight)
{
    uint64_t active = active_for(a->row, member);
    track_t *t = active ? adapter_track(a, active) : NULL;
    if (!t || !t->row) return true;
    copy_row_t *c = copy_of(t, member);
    if (copy_holds(c)) {
        if (c->state == COPY_COMMITTED || c->state == COPY_ACTIVE) return true; /* COMMIT was sent */
        copy_move(t, c, COPY_COMMITTED, s->v.now);
        send_commit(s, a, member);
        return true;
    }
    if (newer_in_flight || !track_has_source(t)) return true;
    if (is_waiting(c, s->v.now.us)) announce(s, t, member);
    else if (!copy_in_flight(c)) return true; /* failed here: stale, by name */
    return false;
}

static void wake_newest(step_t *s, track_t *t, const member_t *member)
{
    if (t && track_has_source(t) && is_waiting(copy_of(t, member), s->v.now.us)) announce(s, t, member);
}

/* The active version goes first, because the worker serves an older one until it has it.  A worker that a
 * rollout waits for fetches the newest first: otherwise the rollout would wait for two fetches. */
void wake_member(step_t *s, const adapter_rollout_t *a, member_t *member)
{
    track_t *t = adapter_staging(a);
    const copy_row_t *c = copy_of(t, member);
    bool is_awaited = c && c->is_eligible;
    if (is_awaited) wake_newest(s, t, member);
    bool newer_in_flight = copy_is_told(c) && !c->is_owed;
    bool has_active = wake_active(s, a, member, newer_in_flight);
    if (has_active && !is_awaited) wake_newest(s, t, member);
}

bool member_is_subscriber(const member_t *m, const adapter_rollout_t *a)
{
    return member_is_ready(m) && member_sub(m, a->row->name);
}

void wake_adapter(step_t *s, const adapter_rollout_t *a)
{
    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        member_t *m = s->v.members->workers[i];
        if (member_is_subscriber(m, a)) wake_member(s, a, m);
    }
}

void rollout_wake(rollout_t *ro, view_t v, member_t *member, events_t *ev, outbox_t *out)
{
    step_t s = {ro, v, ev, out};
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_rollout_t *a = rollout_adapter(ro, member->subs[i].adapter);
        if (a) wake_member(&s, a, member);
    }
}
