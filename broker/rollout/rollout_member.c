/* SPDX-License-Identifier: Apache-2.0 */
/* Versions begin, members come and go: who is told of what, and which copies there are. */
#include "broker/rollout/rollout_part.h"

#include "core/clock.h"
#include "core/errors.h"

#include <stdlib.h>

/* ---- sending what is lacking ---- */

copy_row_t *copy_need(track_t *t, const member_t *member, outbox_t *out)
{
    copy_row_t *c = copy_add(t, member);
    if (!c) out->failed = true;
    return c;
}

static bool is_waiting(const copy_row_t *c, uint64_t now_us)
{
    return !c || c->state == COPY_NONE || (copy_in_flight(c) && !c->announced_us) ||
           (c->state == COPY_FAILED && c->retry_us && c->retry_us <= now_us);
}

static void announce(step_t *s, track_t *t, const version_row_t *row, const member_t *member)
{
    copy_row_t *c = copy_need(t, member, s->out);
    if (!c) return;
    send_announce(s, t, row, c, member);
    track_touch(s->ro, t);
}

static void commit_copy(step_t *s, track_t *t, const adapter_row_t *a, copy_row_t *c,
                        const member_t *member)
{
    if (c->state != COPY_ACTIVE) copy_move(c, COPY_COMMITTED, s->v.now);
    send_commit(s, a, member);
    track_touch(s->ro, t);
}

/* The active version first.  True: it is there, or cannot be had now. */
static bool wake_active(step_t *s, const adapter_row_t *a, const member_t *member, bool newer_in_flight)
{
    const version_row_t *row = registry_active(a);
    track_t *t = row ? rollout_track(s->ro, a->name, row->version) : NULL;
    if (!t) return true;
    copy_row_t *c = copy_of(t, member);
    if (copy_holds(c)) {
        bool is_told = c->state == COPY_COMMITTED || c->state == COPY_ACTIVE;
        if (!is_told) commit_copy(s, t, a, c, member);
        return true;
    }
    if (newer_in_flight || !track_has_source(t)) return true;
    if (is_waiting(c, s->v.now.us)) announce(s, t, row, member);
    else if (!copy_in_flight(c)) return true; /* failed here: stale, by name */
    return false;
}

static void wake_newest(step_t *s, const adapter_row_t *a, const member_t *member)
{
    const version_row_t *row = registry_staging(a);
    track_t *t = row ? rollout_track(s->ro, a->name, row->version) : NULL;
    copy_row_t *c = t ? copy_of(t, member) : NULL;
    if (!t || !track_has_source(t)) return;
    if (is_waiting(c, s->v.now.us)) announce(s, t, row, member);
}

void wake_member(step_t *s, member_t *member, const adapter_row_t *a)
{
    const version_row_t *row = registry_staging(a);
    const track_t *t = row ? rollout_track(s->ro, a->name, row->version) : NULL;
    const copy_row_t *c = t ? copy_of(t, member) : NULL;
    bool is_awaited = c && c->is_eligible; /* a rollout waits for it: the newest first */
    if (is_awaited) wake_newest(s, a, member);
    bool newer_in_flight = c && copy_in_flight(c) && c->announced_us;
    bool has_active = wake_active(s, a, member, newer_in_flight);
    if (has_active && !is_awaited) wake_newest(s, a, member);
}

void wake_adapter(step_t *s, const adapter_row_t *a)
{
    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        member_t *m = s->v.members->workers[i];
        if (member_is_ready(m) && member_sub(m, a->name)) wake_member(s, m, a);
    }
}

void rollout_wake(rollout_t *ro, view_t v, member_t *member, events_t *ev, outbox_t *out)
{
    step_t s = {ro, v, ev, out};
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_row_t *a = registry_adapter(v.registry, member->subs[i].adapter);
        if (a) wake_member(&s, member, a);
    }
}

/* ---- a version begins ---- */

/* A publisher has few regions: what it was told it may reuse is in use again by now. */
static void end_serving(rollout_t *ro, const char *adapter, uint64_t before)
{
    for (size_t i = track_first(ro, adapter);
         i < ro->track_count && !strcmp(ro->tracks[i]->adapter, adapter); i++) {
        track_t *t = ro->tracks[i];
        if (t->version >= before || !t->is_served || !t->is_released) continue;
        t->is_served = false;
        track_touch(ro, t);
    }
}

/* The newest wanted wins at the worker: an active version that it was still fetching is announced again
 * when this one is done. */
static void forget_announced(rollout_t *ro, const adapter_row_t *a, const member_t *member)
{
    const track_t *t = rollout_track(ro, a->name, a->active);
    copy_row_t *c = t ? copy_of(t, member) : NULL;
    if (!c || !copy_in_flight(c)) return;
    c->announced_us = 0;
    c->code = 0;
}

static void begin(step_t *s, const adapter_row_t *a, const version_row_t *row, track_t *t)
{
    t->is_begun = true;
    track_touch(s->ro, t);
    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        member_t *m = s->v.members->workers[i];
        if (!member_is_ready(m) || !member_sub(m, a->name)) continue;
        copy_row_t *c = copy_add(t, m);
        if (!c) {
            s->ro->is_incomplete = true;
            return;
        }
        c->is_eligible = true;
        forget_announced(s->ro, a, m);
        announce(s, t, row, m);
    }
}

void begin_next(step_t *s, const adapter_row_t *a)
{
    const version_row_t *row = registry_staging(a);
    track_t *t = row ? rollout_track(s->ro, a->name, row->version) : NULL;
    if (t && !t->is_begun) begin(s, a, row, t);
}

/* A VERSION record was applied.  Its bytes are at the adapter's writer, unless that session ended while the
 * record was on its way to the store. */
void begin_published(step_t *s, const adapter_row_t *a, uint64_t version)
{
    const version_row_t *row = registry_version(a, version);
    const member_t *publisher = membership_by_token(s->v.members, a->writer.token);
    end_serving(s->ro, a->name, version);
    track_t *t = track_add(s->ro, a->name, version, s->v.now.us);
    if (!t) {
        s->ro->is_incomplete = true;
        return;
    }
    t->publisher = publisher ? publisher->token : 0;
    t->former_publisher = publisher ? 0 : a->writer.token;
    t->has_left = false;
    t->is_served = publisher != NULL;
    t->deadline_us = s->v.now.us + row->deadline_ms * 1000;
    event_row_t *e = events_add(s->ev, EVENT_VERSION_PUBLISHED, a->name, version, row->writer, s->v.now);
    e->bytes = (int64_t)row->data_bytes;
    begin_next(s, a);
}

/* What is left of a deadline that was set before the broker started: wall clock, so never more than it
 * was. */
static uint64_t left_us(const version_row_t *row, uint64_t wall_ms)
{
    uint64_t end_ms = row->created_ms + row->deadline_ms;
    uint64_t left_ms = end_ms > wall_ms ? end_ms - wall_ms : 0;
    return (left_ms < row->deadline_ms ? left_ms : row->deadline_ms) * 1000;
}

static int start_track(rollout_t *ro, view_t v, const adapter_row_t *a, const version_row_t *row)
{
    track_t *t = track_add(ro, a->name, row->version, v.now.us);
    if (!t) return HEDDLE_ERR_NO_MEMORY;
    t->sourceless_us = ro->settle_end_us > v.now.us ? ro->settle_end_us : v.now.us;
    t->is_restored = true;
    t->is_begun = row != registry_waiting(a);
    if (row->state != VERSION_STAGING) return HEDDLE_OK;
    t->deadline_us = v.now.us + left_us(row, v.now.wall_ms);
    if (t->deadline_us < ro->settle_end_us) t->deadline_us = ro->settle_end_us;
    return HEDDLE_OK;
}

int rollout_start(rollout_t *ro, view_t v, uint64_t settle_end_us)
{
    ro->settle_end_us = settle_end_us;
    for (size_t i = 0; i < v.registry->adapter_count; i++) {
        const adapter_row_t *a = v.registry->adapters[i];
        for (size_t k = 0; k < a->version_count; k++) {
            int rc = registry_is_live(a->versions[k]) ? start_track(ro, v, a, a->versions[k]) : HEDDLE_OK;
            if (rc) return rc;
        }
    }
    ro->is_dirty = true;
    return HEDDLE_OK;
}

/* ---- members come ---- */

/* What it says that it applied last: only if the registry knows that decision (it may have been restored
 * from an older copy). */
static void check_sub(const adapter_row_t *a, member_sub_t *sub)
{
    if (a && sub->decision <= a->decision && sub->version <= a->last_version) return;
    sub->decision = sub->version = 0;
}

static copy_state_t restated_state(const adapter_row_t *a, const msg_held_t *held,
                                   const member_sub_t *sub)
{
    bool is_active = a->active == held->version;
    switch ((held_state_t)held->state) {
    case HELD_SEALED: return COPY_ARRIVED;
    case HELD_ACTIVE: return COPY_ACTIVE;
    case HELD_STAGED: return is_active ? COPY_COMMITTED : COPY_STAGED;
    case HELD_KEPT: return is_active && sub->decision < a->decision ? COPY_COMMITTED : COPY_KEPT;
    }
    return COPY_NONE;
}

/* The version that a restated row is believed to be; NULL: to be dropped there. */
static const version_row_t *believed(const view_t *v, const msg_held_t *held, const member_t *member)
{
    const adapter_row_t *a = registry_adapter(v->registry, held->adapter);
    const version_row_t *row = a ? registry_version(a, held->version) : NULL;
    bool is_known = row && registry_is_live(row) && member_sub(member, held->adapter);
    return is_known && held->state >= HELD_SEALED && held->state <= HELD_KEPT &&
                   digest_equal(&row->digest, &held->digest)
               ? row
               : NULL;
}

static int restate(rollout_t *ro, const view_t *v, const msg_held_t *held, const version_row_t *row,
                   member_t *member)
{
    const adapter_row_t *a = registry_adapter(v->registry, held->adapter);
    track_t *t = rollout_track(ro, held->adapter, held->version);
    copy_row_t *c = t ? copy_add(t, member) : NULL;
    if (!c) return HEDDLE_ERR_NO_MEMORY;
    const member_sub_t *sub = member_sub(member, held->adapter);
    copy_move(c, restated_state(a, held, sub), v->now);
    c->bytes_done = row->data_bytes;
    c->connect_us = held->connect_us;
    c->fetch_us = held->fetch_us;
    c->verify_us = held->verify_us;
    c->stage_us = held->stage_us;
    c->activate_us = held->activate_us;
    uint64_t told_us = c->told_us ? c->told_us : v->now.us; /* of a session before, if that is known */
    c->announced_us = c->told_us = c->state == COPY_ARRIVED ? told_us : 0;
    c->has_reached = row->decision && sub->decision >= row->decision && sub->version >= row->version;
    track_touch(ro, t);
    return HEDDLE_OK;
}

static bool is_wanted(const adapter_row_t *a, uint64_t version)
{
    const version_row_t *staging = registry_staging(a);
    return a->active == version || (staging && staging->version == version);
}

/* It was told of the version before others overtook it, and fetches it on: not what was taken back since. */
static bool is_fetched_on(const adapter_row_t *a, const track_t *t, const copy_row_t *c)
{
    const version_row_t *row = a ? registry_version(a, t->version) : NULL;
    return row && row->state == VERSION_COMMITTED && copy_in_flight(c) && c->told_us &&
           !registry_is_taken_back(a, row);
}

/* One row, under the new session's token.  What it said last of its fetch counts until its next heartbeat:
 * a session that has said nothing yet is not one that has stopped. */
static void fetch_on(track_t *t, const version_row_t *row, const copy_row_t *before, const member_t *member)
{
    copy_row_t was = *before;
    copy_row_t *c = copy_add(t, member);
    member_sub_t *sub = member_sub(member, t->adapter);
    c->state = was.state;
    c->since_ms = was.since_ms;
    c->announced_us = was.announced_us;
    c->told_us = was.told_us;
    c->switch_us = was.switch_us; /* WELCOME names it again */
    c->moved_us = was.moved_us;
    c->bytes_done = was.bytes_done;
    if (c->state != COPY_FETCHING && c->state != COPY_ARRIVED) return;
    sub->fetching = t->version;
    sub->bytes_done = was.bytes_done;
    sub->data_bytes = row->part.region_bytes;
}

/* Copies of the name's former session: what the rollout waits for at this process it goes on waiting for,
 * and what it fetches of the versions that were overtaken it fetches on; the rest is what JOIN restates. */
static void renew_copies(rollout_t *ro, const view_t *v, const member_t *member)
{
    for (size_t i = 0; i < ro->track_count; i++) {
        track_t *t = ro->tracks[i];
        copy_row_t *c = t->is_ended ? NULL : track_copy(t, member->name);
        if (!c || c->token == member->token) continue;
        const adapter_row_t *a = registry_adapter(v->registry, t->adapter);
        bool is_same = c->token && !memcmp(&c->life, &member->life, sizeof c->life);
        is_same = is_same && member_sub(member, t->adapter);
        if (is_same && is_wanted(a, t->version) && c->is_eligible) copy_add(t, member);
        else if (is_same && !is_wanted(a, t->version) && is_fetched_on(a, t, c))
            fetch_on(t, registry_version(a, t->version), c, member);
        else copy_drop(t, member->name);
        track_touch(ro, t);
    }
}

/* What it is to serve: what was decided last, or, while it still fetches what was decided before that, this
 * first: a worker slower than its trainer would come to nothing, if each new session began with the
 * newest. */
static const version_row_t *welcomed(const rollout_t *ro, const adapter_row_t *a, const member_t *member)
{
    for (size_t i = track_first(ro, a->name);
         i < ro->track_count && !strcmp(ro->tracks[i]->adapter, a->name); i++) {
        const track_t *t = ro->tracks[i];
        const copy_row_t *c = t->is_ended ? NULL : copy_of(t, member);
        const version_row_t *row = registry_version(a, t->version);
        bool is_next = row && row->decision > member_sub(member, a->name)->decision;
        if (c && is_next && is_fetched_on(a, t, c)) return row;
    }
    return registry_active(a);
}

static void fill_decision(const rollout_t *ro, const adapter_row_t *a, const member_t *member,
                          const char *adapter, msg_decision_t *d)
{
    const version_row_t *row = a ? welcomed(ro, a, member) : NULL;
    *d = (msg_decision_t){.adapter = adapter};
    if (!row) return;
    d->decision = row->version == a->active ? a->decision : row->decision;
    d->version = row->version;
    d->digest = row->digest;
}

int rollout_joined(rollout_t *ro, view_t v, member_t *member, const msg_join_t *join, arena_t *arena,
                   msg_welcome_t *welcome)
{
    welcome->adapters = arena_alloc(arena, (member->sub_count + 1) * sizeof *welcome->adapters);
    welcome->keep = arena_alloc(arena, (join->held_count + 1) * sizeof *welcome->keep);
    if (!welcome->adapters || !welcome->keep) return HEDDLE_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_row_t *a = registry_adapter(v.registry, member->subs[i].adapter);
        check_sub(a, &member->subs[i]);
    }
    renew_copies(ro, &v, member);
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_row_t *a = registry_adapter(v.registry, member->subs[i].adapter);
        msg_decision_t *d = &welcome->adapters[welcome->adapter_count++];
        fill_decision(ro, a, member, member->subs[i].adapter, d);
    }
    for (uint32_t i = 0; i < join->held_count; i++) {
        const version_row_t *row = believed(&v, &join->held[i], member);
        if (!row) continue;
        int rc = restate(ro, &v, &join->held[i], row, member);
        if (rc) return rc;
        welcome->keep[welcome->keep_count++] =
            (msg_keep_t){join->held[i].adapter, row->version, row->share_key};
    }
    return HEDDLE_OK;
}

static bool has_number(const uint64_t *numbers, uint32_t count, uint64_t number)
{
    for (uint32_t i = 0; i < count; i++)
        if (numbers[i] == number) return true;
    return false;
}

void rollout_opened(rollout_t *ro, view_t v, const member_t *publisher, const uint64_t *served,
                    uint32_t count)
{
    const char *adapter = publisher->subs[0].adapter;
    const adapter_row_t *a = registry_adapter(v.registry, adapter);
    for (size_t i = track_first(ro, adapter);
         i < ro->track_count && !strcmp(ro->tracks[i]->adapter, adapter); i++) {
        track_t *t = ro->tracks[i];
        const version_row_t *row = registry_version(a, t->version);
        bool serves = has_number(served, count, t->version) && row && registry_is_live(row);
        if (t->publisher == publisher->token || (!t->publisher && !serves)) continue;
        t->publisher = serves ? publisher->token : 0;
        if (serves) t->has_left = false;
        t->is_served = serves;
        if (serves) t->is_released = false;
        track_touch(ro, t);
    }
}

void rollout_republished(rollout_t *ro, view_t v, const member_t *publisher, uint64_t version,
                         outbox_t *out)
{
    const char *adapter = publisher->subs[0].adapter;
    const adapter_row_t *a = registry_adapter(v.registry, adapter);
    const version_row_t *row = registry_version(a, version);
    track_t *t = rollout_track(ro, adapter, version);
    if (!t || !row || !registry_is_live(row)) {
        rollout_tell(ro, v, adapter, version, publisher, out);
        return;
    }
    t->publisher = publisher->token;
    if (registry_is_wanted(a, row) && !t->is_served) {
        t->is_served = true;
        t->is_released = t->has_left = false;
    }
    t->pushed = t->pushed_state = 0;
    track_touch(ro, t);
}

/* ---- members go ---- */

static void worker_gone(rollout_t *ro, const view_t *v, track_t *t, const member_t *member, bool left)
{
    copy_row_t *c = copy_of(t, member);
    if (!c) return;
    track_touch(ro, t);
    if (!c->is_eligible || c->has_reached) { /* nobody waits for it: there is nothing to tell of it */
        copy_drop(t, member->name);
        return;
    }
    const char *phase = copy_phase(c);
    uint64_t since_us = c->announced_us ? v->now.us - c->announced_us : 0;
    char text[256];
    text_printf(text, sizeof text, "%s in phase %s, %llu ms after the announcement",
                left ? "left" : "lost, its lease ended", phase, (unsigned long long)(since_us / 1000));
    if (!c->code || copy_in_flight(c)) copy_blame(c, HEDDLE_ERR_UNAVAILABLE, phase, text);
    c->token = 0;
}

void rollout_gone(rollout_t *ro, view_t v, const member_t *member, bool left)
{
    for (size_t i = 0; i < ro->track_count; i++) {
        track_t *t = ro->tracks[i];
        if (member->role == ROLE_WORKER) {
            if (!t->is_ended) worker_gone(ro, &v, t, member, left);
        } else if (t->publisher == member->token) {
            t->former_publisher = t->publisher;
            t->publisher = 0;
            t->is_served = false;
            t->has_left = left;
            track_touch(ro, t);
        }
    }
}
