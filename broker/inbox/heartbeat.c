/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/inbox.h"

#include "broker/members/sessions.h"
#include "broker/registry/active.h"
#include "broker/rollout/drain.h"
#include "broker/rollout/messages.h"
#include "core/errors.h"

/* A version waits for a slot at this worker, which lists the kept versions that could go (spare).  If the
 * broker has no copy of one of them, its RETIRE is on its way and may free enough: nothing else is retired
 * until the next heartbeat. */
static void note_spare(const adapter_rollout_t *a, const member_t *member, const msg_progress_t *p)
{
    member_sub_t *sub = member_sub(member, p->adapter);
    if (!sub) return;
    sub->lacks_slot = false;
    for (uint32_t i = 0; i < p->spare_count; i++) {
        const track_t *t = track_of(a, p->spare[i]);
        if (!t || track_is_ended(t) || !copy_of(t, member)) return;
    }
    for (size_t i = 0; p->spare_count && i < a->track_count; i++) {
        copy_row_t *c = copy_of(a->tracks[i], member);
        if (c) copy_spared(a->tracks[i], c, has_number(p->spare, p->spare_count, a->tracks[i]->version));
    }
    sub->lacks_slot = p->spare_count > 0;
    for (uint32_t i = 0; i < p->spare_count; i++) track_touch(track_of(a, p->spare[i]));
}

/* The worker has got nothing for the time of a heartbeat, or nothing of one half of the chunks, because a
 * source of its list fetches an older version first.  That one is a source of this version no more, as it
 * may begin long after the others are done. */
static void pass_over_queued(step_t *s, track_t *t, const copy_row_t *c)
{
    const plan_row_t *row = plan_row(&t->plan, c->token);
    uint64_t since_us = row && row->half ? c->sent_us : c->moved_us;
    bool is_still = since_us + s->ro->lease_us / 4 <= s->v.now.us;
    const copy_row_t *source = is_still ? copy_queued_source(t, c, s->v.members) : NULL;
    if (!source) return;
    plan_stuck(&t->plan, source->token);
    messages_wake_waiting(s, t);
    messages_mend_lists(s, t, NULL);
}

/* A worker that fetches from the publisher, though others have all bytes by now, because it stood still for
 * example: it gets the rest from them, so that the publisher's uplink carries the bytes once. */
static void leave_publisher(step_t *s, track_t *t, copy_row_t *c, const member_t *member)
{
    if (!plan_leave_publisher(&t->plan, c->token)) return;
    messages_send_sources(s, t, c, member);
    messages_mend_lists(s, t, NULL);
}

static void take_progress(step_t *s, const member_t *member, const msg_heartbeat_t *hb)
{
    for (uint32_t i = 0; i < hb->adapter_count; i++) {
        const msg_progress_t *p = &hb->adapters[i];
        const adapter_rollout_t *a = tracks_adapter(s->ro, p->adapter);
        if (!a) continue;
        note_spare(a, member, p);
        track_t *t = p->fetching ? track_of(a, p->fetching) : NULL;
        copy_row_t *c = copy_of(t, member);
        if (!copy_in_flight(c) || track_is_ended(t)) continue;
        copies_wait_behind(a, member, p->fetching, s->v.now);
        bool is_trouble = copy_progressed(t, c, p, s->v.now);
        copies_follow_switch(a, member, s->v.now);
        pass_over_queued(s, t, c);
        leave_publisher(s, t, c, member);
        if (!is_trouble) continue;
        event_row_t *e = events_add(s->ev, EVENT_SOURCE_LOST, t->adapter, t->version, c->worker, s->v.now);
        events_message(e, c->code, "%s", p->message);
    }
}

/* A worker that serves nothing may wait for a version that is held up by now, and the active one is there.
 * One that has the active one was ordered to switch to it, and may have refused. */
static void look_for_active(step_t *s, member_t *member)
{
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_rollout_t *a = tracks_adapter(s->ro, member->subs[i].adapter);
        if (!a || member->subs[i].serving.version || !track_staging(a)) continue;
        const track_t *active = track_of(a, active_for(a->row, member));
        if (!copy_holds(copy_of(active, member))) messages_wake_worker(s, a, member);
    }
}

/* A message to this member was not sent, and it is not known which.  The member joins again, restates what
 * it has, and WELCOME brings it up to date.  If this error cannot be sent either, broker_send_outbox asks
 * for it again. */
static void ask_to_join_again(const call_t *c)
{
    heddle_error_t error;
    uint64_t token = c->member->token;
    error_fail(&error, HEDDLE_ERR_NOT_FOUND, "a message to token %llu of %s was dropped: its queue is full",
               (unsigned long long)token, c->member->name);
    error_hint(&error, "the member joins again by itself");
    msg_t m;
    msg_from_error(&error, 0, c->m->type, &m);
    m.error.token = token;
    c->member->needs_resync = false;
    outbox_send(c->b->out, c->from, &m);
}

/* How far the worker is that drains, by what others hold now. */
static drain_t look_at_drain(step_t *s, const call_t *c)
{
    if (c->member->role != ROLE_WORKER) return DRAIN_NONE;
    const msg_heartbeat_t *hb = &c->m->heartbeat;
    if (membership_hear_drain(c->member, hb->draining, hb->own_wish)) sessions_drain(c->b, c->member, c->now);
    c->member->drain = member_is_draining(c->member) ? drain_look(s, c->member) : DRAIN_NONE;
    return c->member->drain;
}

/* One that joined before a standby was started must find that one, too. */
static void tell_brokers(const call_t *c, msg_heartbeat_ok_t *ok, msg_broker_t rows[LIMIT_BROKERS])
{
    const broker_t *b = c->b;
    const brokers_t *known = b->io.brokers ? b->io.brokers(b->io.self) : NULL;
    uint64_t mark = brokers_mark(known);
    if (!mark || mark == c->peer->told_brokers) return;
    c->peer->told_brokers = mark;
    ok->brokers = rows;
    ok->broker_count = brokers_tell(known, rows);
}

/* The answer renews the member's own view of its lease, so it is sent before all else that goes to it. */
void on_heartbeat(const call_t *c)
{
    broker_t *b = c->b;
    const msg_heartbeat_t *hb = &c->m->heartbeat;
    membership_heartbeat(&b->members, c->member, hb, c->now.us);
    step_t step = broker_step(b, c->now);
    msg_t m = {.type = MSG_HEARTBEAT_OK};
    m.heartbeat_ok =
        (msg_heartbeat_ok_t){.token = hb->token, .seq = hb->seq, .drain = look_at_drain(&step, c)};
    m.heartbeat_ok.stays = hb->draining && m.heartbeat_ok.drain == DRAIN_NONE;
    msg_broker_t brokers[LIMIT_BROKERS];
    tell_brokers(c, &m.heartbeat_ok, brokers);
    outbox_send(b->out, c->from, &m);
    if (c->member->role == ROLE_WORKER) take_progress(&step, c->member, hb);
    if (c->member->role == ROLE_WORKER) look_for_active(&step, c->member);
    if (c->member->needs_resync) ask_to_join_again(c);
}
