/* SPDX-License-Identifier: Apache-2.0 */
/* What members said, and what that makes of copies. */
#include "broker/rollout_part.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- sending what is lacking ---- */

static copy_row_t *copy_with(track_t *t, const member_t *member, outbox_t *out)
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
    copy_row_t *c = copy_with(t, member, s->out);
    if (!c) return;
    send_announce(s, t, row, c, member);
    track_touch(s->ro, t);
}

static void commit_copy(step_t *s, track_t *t, const adapter_row_t *a, copy_row_t *c, const member_t *member)
{
    if (c->state != COPY_ACTIVE) copy_move(c, COPY_COMMITTED, s->v.now);
    send_commit(s, a, member);
    track_touch(s->ro, t);
}

/* The active version first.  True: it is there, or cannot be had now. */
static bool wake_active(step_t *s, const adapter_row_t *a, const member_t *member, bool newer_in_flight, bool again)
{
    const version_row_t *row = registry_active(a);
    track_t *t = row ? rollout_track(s->ro, a->name, row->version) : NULL;
    if (!t) return true;
    copy_row_t *c = copy_of(t, member);
    if (copy_holds(c)) {
        bool is_told = c->state == COPY_COMMITTED || c->state == COPY_ACTIVE;
        bool is_done = c->state == COPY_ACTIVE && member_sub(member, a->name)->decision >= a->decision;
        if (!is_told || (again && !is_done)) commit_copy(s, t, a, c, member);
        return true;
    }
    if (newer_in_flight || !track_has_source(t)) return true;
    if (is_waiting(c, s->v.now.us) || (again && copy_in_flight(c))) announce(s, t, row, member);
    else if (!copy_in_flight(c)) return true;   /* failed here: stale, by name */
    return false;
}

static void wake_newest(step_t *s, const adapter_row_t *a, const member_t *member, bool again)
{
    const version_row_t *row = registry_staging(a);
    track_t *t = row ? rollout_track(s->ro, a->name, row->version) : NULL;
    copy_row_t *c = t ? copy_of(t, member) : NULL;
    if (!t || !track_has_source(t)) return;
    if (is_waiting(c, s->v.now.us) || (again && copy_in_flight(c))) announce(s, t, row, member);
}

void wake_member(step_t *s, member_t *member, const adapter_row_t *a, bool again)
{
    const version_row_t *row = registry_staging(a);
    const track_t *t = row ? rollout_track(s->ro, a->name, row->version) : NULL;
    const copy_row_t *c = t ? copy_of(t, member) : NULL;
    bool is_awaited = c && c->is_eligible;   /* a rollout waits for it: the newest first */
    if (is_awaited) wake_newest(s, a, member, again);
    bool newer_in_flight = c && copy_in_flight(c) && c->announced_us;
    bool has_active = wake_active(s, a, member, newer_in_flight, again);
    if (has_active && !is_awaited) wake_newest(s, a, member, again);
}

void wake_adapter(step_t *s, const adapter_row_t *a, bool again)
{
    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        member_t *m = s->v.members->workers[i];
        if (member_is_ready(m) && member_sub(m, a->name)) wake_member(s, m, a, again);
    }
}

void rollout_wake(rollout_t *ro, view_t v, member_t *member, const char *adapter, bool again, events_t *ev, outbox_t *out)
{
    step_t s = {ro, v, ev, out};
    for (uint32_t i = 0; i < member->sub_count; i++) {
        if (adapter && strcmp(member->subs[i].adapter, adapter)) continue;
        const adapter_row_t *a = registry_adapter(v.registry, member->subs[i].adapter);
        if (a) wake_member(&s, member, a, again);
    }
}

/* ---- a version begins ---- */

/* A publisher has two regions: what it was told it may reuse is in use again by now. */
static void end_serving(rollout_t *ro, const char *adapter, uint64_t before)
{
    for (size_t i = track_first(ro, adapter); i < ro->track_count && !strcmp(ro->tracks[i]->adapter, adapter); i++) {
        track_t *t = ro->tracks[i];
        if (t->version >= before || !t->is_served || !t->is_released) continue;
        t->is_served = false;
        track_touch(ro, t);
    }
}

/* The newest wanted wins at the worker: an active version that it was still fetching is announced again when this one is done. */
static void forget_announced(rollout_t *ro, const adapter_row_t *a, const member_t *member)
{
    const track_t *t = rollout_track(ro, a->name, a->active);
    copy_row_t *c = t ? copy_of(t, member) : NULL;
    if (c && copy_in_flight(c)) c->announced_us = 0;
}

int rollout_published(rollout_t *ro, view_t v, const char *adapter, uint64_t version, uint64_t publisher, events_t *ev, outbox_t *out)
{
    step_t s = {ro, v, ev, out};
    const adapter_row_t *a = registry_adapter(v.registry, adapter);
    const version_row_t *row = registry_version(a, version);
    end_serving(ro, adapter, version);
    track_t *t = track_add(ro, adapter, version, v.now.us);
    if (!t) return HEDDLE_ERR_NO_MEMORY;
    t->publisher = publisher;
    t->is_served = true;
    t->deadline_us = v.now.us + row->deadline_ms * 1000;
    event_row_t *e = events_add(ev, EVENT_VERSION_PUBLISHED, adapter, version, row->writer, v.now);
    e->bytes = (int64_t)row->data_bytes;
    for (size_t i = 0; i < v.members->worker_count; i++) {
        member_t *m = v.members->workers[i];
        if (!member_is_ready(m) || !member_sub(m, adapter)) continue;
        copy_row_t *c = copy_with(t, m, out);
        if (!c) return HEDDLE_ERR_NO_MEMORY;
        c->is_eligible = true;
        forget_announced(ro, a, m);
        announce(&s, t, row, m);
    }
    return HEDDLE_OK;
}

/* What is left of a deadline that was set before the broker started: wall clock, so never more than it was. */
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

/* What it says that it applied last: only if the registry knows that decision (it may have been restored from an older copy). */
static void check_sub(const adapter_row_t *a, member_sub_t *sub)
{
    if (a && sub->decision <= a->decision && sub->version <= a->last_version) return;
    sub->decision = sub->version = 0;
}

static copy_state_t restated_state(const adapter_row_t *a, const msg_held_t *held, const member_sub_t *sub)
{
    bool is_active = a->active == held->version;
    switch ((held_state_t)held->state) {
    case HELD_SEALED: return COPY_ARRIVED;
    case HELD_ACTIVE: return COPY_ACTIVE;
    case HELD_STAGED: return is_active ? COPY_COMMITTED : COPY_STAGED;
    case HELD_KEPT:   return is_active && sub->decision < a->decision ? COPY_COMMITTED : COPY_KEPT;
    }
    return COPY_NONE;
}

/* The version that a restated row is believed to be; NULL: to be dropped there. */
static const version_row_t *believed(const view_t *v, const msg_held_t *held, const member_t *member)
{
    const adapter_row_t *a = registry_adapter(v->registry, held->adapter);
    const version_row_t *row = a ? registry_version(a, held->version) : NULL;
    bool is_known = row && registry_is_live(row) && member_sub(member, held->adapter);
    return is_known && held->state >= HELD_SEALED && held->state <= HELD_KEPT && digest_equal(&row->digest, &held->digest) ? row : NULL;
}

static int restate(rollout_t *ro, const view_t *v, const msg_held_t *held, const version_row_t *row, member_t *member)
{
    const adapter_row_t *a = registry_adapter(v->registry, held->adapter);
    track_t *t = rollout_track(ro, held->adapter, held->version);
    copy_row_t *c = t ? copy_add(t, member) : NULL;
    if (!c) return HEDDLE_ERR_NO_MEMORY;
    const member_sub_t *sub = member_sub(member, held->adapter);
    copy_move(c, restated_state(a, held, sub), v->now);
    c->bytes_done = row->data_bytes;
    c->announced_us = c->state == COPY_ARRIVED ? v->now.us : 0;
    c->has_reached = row->decision && sub->decision >= row->decision;
    track_touch(ro, t);
    return HEDDLE_OK;
}

static bool is_wanted(const adapter_row_t *a, uint64_t version)
{
    const version_row_t *staging = registry_staging(a);
    return a->active == version || (staging && staging->version == version);
}

/* Copies of the name's former session: what the rollout waits for at this process it goes on waiting for; the rest is what JOIN
 * restates. */
static void renew_copies(rollout_t *ro, const view_t *v, const member_t *member)
{
    for (size_t i = 0; i < ro->track_count; i++) {
        track_t *t = ro->tracks[i];
        copy_row_t *c = t->is_ended ? NULL : track_copy(t, member->name);
        if (!c || c->token == member->token) continue;
        bool is_same = c->token && c->is_eligible && !memcmp(&c->life, &member->life, sizeof c->life);
        if (is_same && member_sub(member, t->adapter) && is_wanted(registry_adapter(v->registry, t->adapter), t->version))
            copy_add(t, member);
        else copy_drop(t, member->name);
        track_touch(ro, t);
    }
}

static void fill_decision(const adapter_row_t *a, const char *adapter, msg_decision_t *d)
{
    const version_row_t *row = a ? registry_active(a) : NULL;
    *d = (msg_decision_t){.adapter = adapter};
    if (!row) return;
    d->decision = a->decision;
    d->version = row->version;
    d->digest = row->digest;
}

int rollout_joined(rollout_t *ro, view_t v, member_t *member, const msg_join_t *join, arena_t *arena, msg_welcome_t *welcome)
{
    welcome->adapters = arena_alloc(arena, (member->sub_count + 1) * sizeof *welcome->adapters);
    welcome->keep = arena_alloc(arena, (join->held_count + 1) * sizeof *welcome->keep);
    if (!welcome->adapters || !welcome->keep) return HEDDLE_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_row_t *a = registry_adapter(v.registry, member->subs[i].adapter);
        check_sub(a, &member->subs[i]);
        fill_decision(a, member->subs[i].adapter, &welcome->adapters[welcome->adapter_count++]);
    }
    renew_copies(ro, &v, member);
    for (uint32_t i = 0; i < join->held_count; i++) {
        const version_row_t *row = believed(&v, &join->held[i], member);
        if (!row) continue;
        int rc = restate(ro, &v, &join->held[i], row, member);
        if (rc) return rc;
        welcome->keep[welcome->keep_count++] = (msg_keep_t){join->held[i].adapter, row->version, row->share_key};
    }
    return HEDDLE_OK;
}

void rollout_opened(rollout_t *ro, view_t v, const member_t *publisher, uint64_t serving)
{
    const char *adapter = publisher->subs[0].adapter;
    const adapter_row_t *a = registry_adapter(v.registry, adapter);
    for (size_t i = track_first(ro, adapter); i < ro->track_count && !strcmp(ro->tracks[i]->adapter, adapter); i++) {
        track_t *t = ro->tracks[i];
        const version_row_t *row = registry_version(a, t->version);
        bool serves = serving == t->version && row && registry_is_live(row);
        if (t->publisher == publisher->token || (!t->publisher && !serves)) continue;
        t->publisher = serves ? publisher->token : 0;
        t->is_served = serves;
        if (serves) t->is_released = false;
        track_touch(ro, t);
    }
}

/* ---- members go ---- */

static void worker_gone(rollout_t *ro, const view_t *v, track_t *t, const member_t *member, bool left)
{
    copy_row_t *c = copy_of(t, member);
    if (!c) return;
    track_touch(ro, t);
    if (!c->is_eligible || c->has_reached) {   /* nobody waits for it: there is nothing to tell of it */
        copy_drop(t, member->name);
        return;
    }
    const char *phase = copy_phase(c);
    uint64_t since_us = c->announced_us ? v->now.us - c->announced_us : 0;
    char text[256];
    snprintf(text, sizeof text, "%s in phase %s, %llu ms after the announcement", left ? "left" : "lost, its lease ended", phase,
             (unsigned long long)(since_us / 1000));
    if (!c->code) {
        c->code = HEDDLE_ERR_UNAVAILABLE;
        error_text(c->phase, sizeof c->phase, phase);
        error_text(c->message, sizeof c->message, text);
    }
    c->token = 0;
}

void rollout_gone(rollout_t *ro, view_t v, const member_t *member, bool left)
{
    for (size_t i = 0; i < ro->track_count; i++) {
        track_t *t = ro->tracks[i];
        if (member->role == ROLE_WORKER) {
            if (!t->is_ended) worker_gone(ro, &v, t, member, left);
        } else if (t->publisher == member->token) {
            t->publisher = 0;
            t->is_served = false;
            track_touch(ro, t);
        }
    }
}

/* ---- a copy moves on ---- */

void rollout_progress(rollout_t *ro, view_t v, const member_t *member, const msg_heartbeat_t *hb)
{
    for (uint32_t i = 0; i < hb->adapter_count; i++) {
        const msg_progress_t *p = &hb->adapters[i];
        track_t *t = p->fetching ? rollout_track(ro, p->adapter, p->fetching) : NULL;
        copy_row_t *c = t ? copy_of(t, member) : NULL;
        if (!c || !copy_in_flight(c)) continue;
        copy_state_t state = p->data_bytes && p->bytes_done >= p->data_bytes ? COPY_ARRIVED : COPY_FETCHING;
        if (state != c->state || c->bytes_done != p->bytes_done) track_touch(ro, t);
        copy_move(c, state, v.now);
        c->bytes_done = p->bytes_done;
    }
}

static int unknown_version(const char *adapter, uint64_t version, const member_t *member, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "%s@%llu is not a version that %s was told of", adapter,
                        (unsigned long long)version, member->name);
    error_where(error, adapter, version, member->name, NULL);
    return rc;
}

static int wrong_digest(const char *adapter, const version_row_t *row, const digest_t *found, const member_t *member,
                        const char *phase, heddle_error_t *error)
{
    char expected[HEDDLE_DIGEST_TEXT], text[HEDDLE_DIGEST_TEXT];
    digest_text(&row->digest, expected);
    digest_text(found, text);
    int rc = error_fail(error, HEDDLE_ERR_DIGEST_MISMATCH, "%s has other bytes as %s@%llu", member->name, adapter,
                        (unsigned long long)row->version);
    error_where(error, adapter, row->version, member->name, phase);
    error_contrast(error, expected, text);
    error_hint(error, "its memory or its sources are damaged; `heddle verify` asks every holder");
    return rc;
}

/* Codes after which the same attempt may succeed: the broker announces the active version again, later and later. */
static void plan_retry(const rollout_t *ro, copy_row_t *c, uint64_t now_us)
{
    heddle_error_t e;
    error_fail(&e, c->code, " ");
    uint32_t doublings = c->failed_count < 4 ? c->failed_count : 4;
    c->failed_count++;
    c->retry_us = e.retriable ? now_us + (ro->lease_us << doublings) : 0;
}

static void stage_failed(step_t *s, track_t *t, copy_row_t *c, int code, const char *phase, const char *message)
{
    copy_fail(c, code, phase, message, s->v.now);
    plan_retry(s->ro, c, s->v.now.us);
    event_row_t *e = events_add(s->ev, EVENT_STAGE_FAILED, t->adapter, t->version, c->worker, s->v.now);
    events_say(e, code, "%s: %s", phase, message);
    track_touch(s->ro, t);
}

/* An answer of a worker about a version: the track and row that it is about; false: *ret_rc is what to return. */
typedef struct { const adapter_row_t *a; const version_row_t *row; track_t *t; copy_row_t *c; } about_t;

static bool look_up(step_t *s, const char *adapter, uint64_t version, member_t *member, about_t *ret, int *ret_rc,
                    heddle_error_t *error)
{
    const adapter_row_t *a = registry_adapter(s->v.registry, adapter);
    const version_row_t *row = a ? registry_version(a, version) : NULL;
    if (!row || !member_sub(member, adapter)) {
        *ret_rc = unknown_version(adapter, version, member, error);
        return false;
    }
    if (!registry_is_live(row)) {   /* it ended before the worker heard of it: say so again */
        if (row->state == VERSION_RETIRED) send_retire(s, adapter, version, member);
        else send_abort(s, adapter, row, member);
        *ret_rc = HEDDLE_OK;
        return false;
    }
    track_t *t = rollout_track(s->ro, adapter, version);
    copy_row_t *c = t ? copy_with(t, member, s->out) : NULL;
    *ret = (about_t){a, row, t, c};
    *ret_rc = c ? HEDDLE_OK : error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a copy of %s@%llu", adapter, (unsigned long long)version);
    return c != NULL;
}

static void note_served(copy_row_t *c, track_t *t, const msg_staged_t *m)
{
    uint32_t count = m->source_count < LIMIT_SOURCES ? m->source_count : LIMIT_SOURCES;
    for (uint32_t i = 0; i < m->source_count; i++) t->bytes_moved += m->sources[i].bytes;
    free(c->served);
    c->served = count ? calloc(count, sizeof *c->served) : NULL;
    c->served_count = c->served ? count : 0;   /* without memory only `versions` knows less */
    for (uint32_t i = 0; i < c->served_count; i++) {
        c->served[i] = (copy_served_t){.kind = m->sources[i].kind == SOURCE_WORKER ? SOURCE_WORKER : SOURCE_PUBLISHER,
                                       .bytes = m->sources[i].bytes};
        error_text(c->served[i].name, sizeof c->served[i].name, m->sources[i].name ? m->sources[i].name : "");
    }
}

static void note_staged(step_t *s, about_t *x, const msg_staged_t *m)
{
    copy_row_t *c = x->c;
    c->code = 0;
    c->retry_us = 0;
    c->bytes_done = x->row->data_bytes;
    c->connect_us = m->connect_us;
    c->fetch_us = m->fetch_us;
    c->verify_us = m->verify_us;
    c->stage_us = m->stage_us;
    note_served(c, x->t, m);
    event_row_t *e = events_add(s->ev, EVENT_STAGE_DONE, x->t->adapter, x->t->version, c->worker, s->v.now);
    e->bytes = (int64_t)c->bytes_done;
    e->duration_ms = c->announced_us ? (int64_t)((s->v.now.us - c->announced_us) / 1000) : -1;
}

int rollout_staged(rollout_t *ro, view_t v, member_t *member, const msg_staged_t *m, events_t *ev, outbox_t *out, heddle_error_t *error)
{
    step_t s = {ro, v, ev, out};
    about_t x;
    int rc;
    if (!look_up(&s, m->adapter, m->version, member, &x, &rc, error)) return rc;
    if (!digest_equal(&m->digest, &x.row->digest)) {
        rc = wrong_digest(m->adapter, x.row, &m->digest, member, "verify", error);
        stage_failed(&s, x.t, x.c, rc, "verify", error->message);
        return rc;
    }
    if (copy_holds(x.c)) return HEDDLE_OK;   /* said twice */
    note_staged(&s, &x, m);
    copy_move(x.c, COPY_STAGED, v.now);
    track_touch(ro, x.t);
    wake_member(&s, member, x.a, false);     /* COMMIT, when it is the active version; then the newest, when that waited */
    return HEDDLE_OK;
}

static void reached(step_t *s, const adapter_row_t *a, const member_t *member, uint64_t version, uint64_t decision)
{
    for (size_t i = track_first(s->ro, a->name); i < s->ro->track_count && !strcmp(s->ro->tracks[i]->adapter, a->name); i++) {
        track_t *t = s->ro->tracks[i];
        const version_row_t *row = registry_version(a, t->version);
        copy_row_t *c = copy_of(t, member);
        if (!c || !row || t->is_ended) continue;
        if (row->decision && row->decision <= decision) c->has_reached = true;
        if (t->version == version) copy_move(c, COPY_ACTIVE, s->v.now);
        else if (c->state == COPY_ACTIVE) copy_move(c, COPY_KEPT, s->v.now);
        track_touch(s->ro, t);
    }
}

static int wrong_decision(const msg_active_t *m, const adapter_row_t *a, const member_t *member, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "%s says it applied decision %llu of %s, naming version %llu", member->name,
                        (unsigned long long)m->decision, m->adapter, (unsigned long long)m->version);
    error_where(error, m->adapter, m->version, member->name, "activate");
    error_expected(error, "decision %llu, naming version %llu, or an earlier one", (unsigned long long)a->decision,
                   (unsigned long long)a->active);
    return rc;
}

int rollout_active(rollout_t *ro, view_t v, member_t *member, const msg_active_t *m, events_t *ev, outbox_t *out, heddle_error_t *error)
{
    step_t s = {ro, v, ev, out};
    const adapter_row_t *a = registry_adapter(v.registry, m->adapter);
    const version_row_t *row = a ? registry_version(a, m->version) : NULL;
    member_sub_t *sub = member_sub(member, m->adapter);
    if (!row || !sub) return unknown_version(m->adapter, m->version, member, error);
    bool is_possible = m->decision && m->decision <= row->decision && (m->decision != a->decision || m->version == a->active);
    if (!is_possible) return wrong_decision(m, a, member, error);
    if (!digest_equal(&m->digest, &row->digest)) {
        int rc = wrong_digest(m->adapter, row, &m->digest, member, "activate", error);
        track_t *t = rollout_track(ro, m->adapter, m->version);
        copy_row_t *c = t ? copy_of(t, member) : NULL;
        if (c) copy_fail(c, rc, "activate", error->message, v.now);
        event_row_t *e = events_add(ev, EVENT_ACTIVATE_FAILED, m->adapter, m->version, member->name, v.now);
        events_say(e, rc, "%s", error->message);
        if (t) track_touch(ro, t);
        return rc;
    }
    if (m->decision <= sub->decision) return HEDDLE_OK;   /* said twice, or overtaken by a later one */
    sub->decision = m->decision;
    sub->version = m->version;
    sub->since_ms = v.now.wall_ms;
    track_t *t = rollout_track(ro, m->adapter, m->version);
    copy_row_t *c = t && !t->is_ended ? copy_with(t, member, out) : NULL;
    if (c) c->activate_us = m->activate_us;
    reached(&s, a, member, m->version, m->decision);
    event_row_t *e = events_add(ev, EVENT_ACTIVATE_DONE, m->adapter, m->version, member->name, v.now);
    e->decision = m->decision;
    wake_member(&s, member, a, false);
    return HEDDLE_OK;
}

static const char *text_or(const char *text, const char *otherwise) { return text && *text ? text : otherwise; }

int rollout_nack(rollout_t *ro, view_t v, member_t *member, const msg_nack_t *m, events_t *ev, outbox_t *out, heddle_error_t *error)
{
    step_t s = {ro, v, ev, out};
    about_t x;
    int rc, code = heddle_err_from_name(m->code);
    if (!look_up(&s, m->adapter, m->version, member, &x, &rc, error)) return rc;
    if (code == HEDDLE_OK) code = HEDDLE_ERR_INTERNAL;
    char message[512];
    snprintf(message, sizeof message, "%s%s%s", text_or(m->message, heddle_err_text(code)), m->found && *m->found ? "; found " : "",
             text_or(m->found, ""));
    if (!m->decision) {
        stage_failed(&s, x.t, x.c, code, text_or(m->phase, "stage"), message);
        wake_member(&s, member, x.a, false);
        return HEDDLE_OK;
    }
    copy_fail(x.c, code, text_or(m->phase, "activate"), message, v.now);
    event_row_t *e = events_add(ev, EVENT_ACTIVATE_FAILED, m->adapter, m->version, member->name, v.now);
    events_say(e, code, "%s", message);
    e->decision = m->decision;
    track_touch(ro, x.t);
    return HEDDLE_OK;
}

int rollout_need_sources(rollout_t *ro, view_t v, member_t *member, const msg_need_sources_t *m, events_t *ev, outbox_t *out,
                         heddle_error_t *error)
{
    step_t s = {ro, v, ev, out};
    about_t x;
    int rc;
    if (!look_up(&s, m->adapter, m->version, member, &x, &rc, error)) return rc;
    for (uint32_t i = 0; i < m->lost_count; i++) {
        const member_t *source = membership_by_token(v.members, m->lost[i]);
        event_row_t *e = events_add(ev, EVENT_SOURCE_LOST, m->adapter, m->version, member->name, v.now);
        e->token = m->lost[i];
        events_say(e, HEDDLE_ERR_GONE, "%s could not go on fetching from %s", member->name, source ? source->name : "a member that is gone");
        if (m->lost[i] == x.t->publisher && x.t->is_released) x.t->is_served = false;   /* its region is in use again */
    }
    if (!send_sources(&s, x.t, x.c, member, m->lost, m->lost_count)) x.c->announced_us = 0;   /* told when there is one */
    track_touch(ro, x.t);
    return HEDDLE_OK;
}
