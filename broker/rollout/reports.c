/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/reports.h"

#include "broker/rollout/active.h"
#include "broker/rollout/keep.h"
#include "broker/rollout/messages.h"
#include "core/errors.h"
#include "core/limits.h"

/* ---- members come ---- */

/* The worker is still fetching a decided version that newer ones have overtaken, and that was not taken
 * back. */
static bool is_fetched_on(const track_t *t, const copy_row_t *c)
{
    return !track_is_ended(t) && t->row->state == VERSION_COMMITTED && copy_is_told(c) &&
           !registry_is_taken_back(t->of->row, t->row);
}

/* The new session is what counts as fetching it. */
static void fetch_on(view_t v, track_t *t, const copy_row_t *before, const member_t *member)
{
    const copy_row_t *c = copy_fetched_on(t, before, member, v.now);
    member_sub_t *sub = member_sub(member, t->adapter);
    if (!c || (c->state != COPY_FETCHING && c->state != COPY_ARRIVED)) return;
    sub->fetching = t->version;
    sub->bytes_done = c->bytes_done;
    sub->data_bytes = t->row->part.payload_bytes;
}

/* Copies of the former session under this name.  Where the process is the same, a version that a rollout
 * waits for goes on, and so does a fetch of an overtaken one.  All other copies are dropped: JOIN restates
 * what the worker really has. */
static void renew_copies(const adapter_rollout_t *a, view_t v, const member_t *member)
{
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        const copy_row_t *c = track_is_ended(t) ? NULL : copy_find(t, member->name);
        if (!c || c->token == member->token) continue;
        bool is_same = c->token && !memcmp(&c->life, &member->life, sizeof c->life);
        is_same = is_same && member_sub(member, t->adapter);
        bool is_wanted = active_for(a->row, member) == t->version || t == track_staging(a);
        if (is_same && is_wanted && c->is_eligible) copy_add(t, member);
        else if (is_same && !is_wanted && is_fetched_on(t, c)) fetch_on(v, t, c, member);
        else {
            track_note_gone(t, c, GONE_STARTED_AGAIN, v.now);
            copy_drop(t, member->name);
        }
    }
}

/* The decision that WELCOME names: the latest one, unless the worker is still fetching an earlier decided
 * version.  Then it is that one.  If each new session began with the newest version, a worker slower than
 * its trainer would never finish one. */
static msg_decision_t welcomed(const adapter_rollout_t *a, const member_t *member, const char *adapter)
{
    const member_sub_t *sub = member_sub(member, adapter);
    uint64_t active = a ? active_for(a->row, member) : 0;
    const version_row_t *row = active ? registry_version(a->row, active) : NULL;
    for (size_t i = 0; a && i < a->track_count; i++) {
        const track_t *t = a->tracks[i];
        const copy_row_t *c = copy_of(t, member);
        if (!c || !is_fetched_on(t, c) || t->row->decision <= sub->decision) continue;
        row = t->row;
        break;
    }
    msg_decision_t d = {.adapter = adapter};
    if (!row) return d;
    d.decision = row->version == active ? a->row->decision : row->decision;
    d.version = row->version;
    d.digest = row->digest;
    return d;
}

int report_joined(step_t *s, member_t *member, const msg_join_t *join, arena_t *arena, msg_welcome_t *welcome)
{
    welcome->adapters = arena_alloc(arena, (member->sub_count + 1) * sizeof *welcome->adapters);
    welcome->keep = arena_alloc(arena, (join->held_count + 1) * sizeof *welcome->keep);
    if (!welcome->adapters || !welcome->keep) return HEDDLE_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < member->sub_count; i++) {
        /* What a worker restates that it applied last: only if the registry has that decision (it may have
         * been restored from an older copy). */
        const adapter_row_t *a = registry_adapter(s->v.registry, member->subs[i].adapter);
        member_sub_t *sub = &member->subs[i];
        if (!(a && sub->decision <= a->decision && sub->version <= a->last_version)) {
            sub->decision = sub->version = 0;
        }
        if (!a || !active_for(a, member) || active_is_served(a, member, sub)) sub->behind_ms = 0;
        else if (!sub->behind_ms) sub->behind_ms = member->joined_ms;
    }
    for (size_t i = 0; i < s->ro->adapter_count; i++) /* its former session may have had other adapters */
        renew_copies(s->ro->adapters[i], s->v, member);
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const char *adapter = member->subs[i].adapter;
        welcome->adapters[welcome->adapter_count++] =
            welcomed(tracks_adapter(s->ro, adapter), member, adapter);
    }
    for (uint32_t i = 0; i < join->held_count; i++) {
        const msg_held_t *held = &join->held[i];
        member_sub_t *sub = member_sub(member, held->adapter);
        track_t *t = track_find(s->ro, held->adapter, held->version);
        /* What the worker restates is believed where the registry agrees: the version is live, the worker
         * subscribes to it and the digest is equal.  Else WELCOME does not name it, and the worker drops
         * it. */
        bool is_known = t && !track_is_ended(t) && sub;
        if (!(is_known && held->state >= HELD_SEALED && held->state <= HELD_KEPT &&
              digest_equal(&t->row->digest, &held->digest)))
            continue;
        copy_row_t *c = copy_add(t, member);
        if (!c) return HEDDLE_ERR_NO_MEMORY;
        const adapter_row_t *a = t->of->row;
        bool is_active = active_for(a, member) == held->version, is_behind = sub->decision < a->decision;
        copy_state_t state = COPY_NONE;
        switch ((held_state_t)held->state) {
        case HELD_SEALED: state = COPY_ARRIVED; break;
        case HELD_ACTIVE: state = COPY_ACTIVE; break;
        case HELD_STAGED: state = is_active ? COPY_COMMITTED : COPY_STAGED; break;
        case HELD_KEPT: state = is_active && is_behind ? COPY_COMMITTED : COPY_KEPT; break;
        }
        copy_restated(t, c, held, state, s->v.now);
        /* The broker's own time, of ACTIVE or a former session, comes first. */
        if (state == COPY_ACTIVE && sub->version == t->version && !sub->since_ms) sub->since_ms = c->since_ms;
        copy_reached(t, c,
                     t->row->decision && sub->decision >= t->row->decision && sub->version >= t->version);
        welcome->keep[welcome->keep_count++] = (msg_keep_t){held->adapter, t->version, t->row->share_key};
    }
    return HEDDLE_OK;
}

/* A new session of the publisher serves what it restates.  Versions of the former session that it does not
 * restate have lost this source. */
void report_opened(step_t *s, const member_t *publisher, const uint64_t *served, uint32_t count)
{
    const adapter_rollout_t *a = tracks_adapter(s->ro, publisher->subs[0].adapter);
    for (size_t i = 0; a && i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        bool serves = has_number(served, count, t->version) && !track_is_ended(t);
        if (t->publisher == publisher->token || (!t->publisher && !serves)) continue;
        if (serves) track_offer(t, publisher, NULL); /* its place first: those that wait there are woken */
        track_set_publisher(t, serves ? publisher->token : 0, serves ? PUBLISHER_SERVES : PUBLISHER_LOST);
    }
}

void report_offered(step_t *s, const member_t *publisher, uint64_t version, const msg_region_t *region)
{
    track_t *t = track_find(s->ro, publisher->subs[0].adapter, version);
    if (t && t->publisher == publisher->token) track_offer(t, publisher, region);
}

void report_republished(step_t *s, const member_t *publisher, uint64_t version)
{
    const char *adapter = publisher->subs[0].adapter;
    track_t *t = track_find(s->ro, adapter, version);
    if (!t || track_is_ended(t)) {
        messages_send_rollout(s, adapter, version, publisher);
        return;
    }
    publisher_state_t state = track_is_served(t)                       ? t->publisher_state
                              : registry_is_wanted(t->of->row, t->row) ? PUBLISHER_SERVES
                                                                       : PUBLISHER_WITHOUT;
    track_set_publisher(t, publisher->token, state);
    t->pushed_changes = 0;
    t->pushed = (urgent_t){0};
}

/* ---- members go ---- */

/* A copy that the rollout waits for stays as GONE, with the reason, so that the error at the deadline can
 * name the worker.  Other copies are dropped. */
static void worker_gone(view_t v, track_t *t, const member_t *member, bool left)
{
    copy_row_t *c = copy_of(t, member);
    if (!c) return;
    if (!c->is_eligible || c->has_reached) { /* nothing waits for it */
        copy_drop(t, member->name);
        return;
    }
    bool is_shut_out = member->end_code == HEDDLE_ERR_DENIED;
    track_note_gone(t, c, left ? GONE_LEFT : is_shut_out ? GONE_SHUT_OUT : GONE_LOST, v.now);
    uint64_t since_us = c->told_us ? v.now.us - c->told_us : 0;
    char text[256];
    text_printf(text, sizeof text, "%s in phase %s, %llu ms after the announcement",
                left          ? "left"
                : is_shut_out ? "its key was revoked"
                              : "lost, its lease ended",
                copy_phase(c), (unsigned long long)(since_us / 1000));
    int code = is_shut_out ? HEDDLE_ERR_DENIED : HEDDLE_ERR_UNAVAILABLE;
    copy_gone(t, c, code, text);
}

void report_gone(step_t *s, const member_t *member, bool left)
{
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_rollout_t *a = tracks_adapter(s->ro, member->subs[i].adapter);
        for (size_t k = 0; a && k < a->track_count; k++) {
            track_t *t = a->tracks[k];
            if (member->role == ROLE_WORKER && !track_is_ended(t)) worker_gone(s->v, t, member, left);
            if (t->publisher == member->token) {
                t->former_publisher = t->publisher;
                t->publisher_end_ms = s->v.now.wall_ms;
                track_set_publisher(t, 0, left ? PUBLISHER_LEFT : PUBLISHER_LOST);
            }
        }
    }
}

/* ---- what workers report: progress ---- */

/* A version waits for a slot at this worker, which lists the kept versions that could go (spare).  If one
 * of them is no copy any more, its RETIRE is under way already and may free enough: nothing else is put
 * away until the next heartbeat. */
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

/* The worker has begun and got nothing for the time of a heartbeat, or nothing of one half of the chunks,
 * because one that it is to fetch from fetches an older version first.  That one is no source of this
 * version any more: it may begin long after the others are done. */
static void pass_over_queued(step_t *s, track_t *t, const copy_row_t *c)
{
    const plan_row_t *row = plan_row(&t->plan, c->token);
    uint64_t since_us = row && row->half ? c->told_us : c->moved_us;
    bool is_still = since_us + s->ro->lease_us / 4 <= s->v.now.us;
    const copy_row_t *source = is_still ? copy_queued_source(t, c) : NULL;
    if (!source) return;
    plan_stuck(&t->plan, source->token);
    messages_wake_waiting(s, t);
    messages_mend_lists(s, t);
}

void report_progress(step_t *s, const member_t *member, const msg_heartbeat_t *hb)
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
        bool is_trouble = copy_heard_progress(t, c, p, s->v.now);
        copies_follow_switch(a, member, s->v.now);
        pass_over_queued(s, t, c);
        if (!is_trouble) continue;
        event_row_t *e = events_add(s->ev, EVENT_SOURCE_LOST, t->adapter, t->version, c->worker, s->v.now);
        events_message(e, c->code, "%s", p->message);
    }
}

/* ---- what workers report: staged, active, refused ---- */

static int unknown_version(const char *adapter, uint64_t version, const member_t *member,
                           heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "%s@%llu was never announced to %s", adapter,
                        (unsigned long long)version, member->name);
    error_where(error, adapter, version, member->name, NULL);
    return rc;
}

static int wrong_digest(const char *adapter, const version_row_t *row, const digest_t *found,
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

static void stage_failed(step_t *s, track_t *t, copy_row_t *c, copy_why_t why)
{
    copy_failed(t, c, why, s->v.now);
    event_row_t *e = events_add(s->ev, EVENT_STAGE_FAILED, t->adapter, t->version, c->worker, s->v.now);
    events_message(e, why.code, "%s: %s", why.phase, why.message);
}

/* What a worker's report is about: by name, and as it was found. */
typedef struct {
    member_t *member;
    const char *adapter;
    uint64_t version;
    const adapter_rollout_t *a;
    track_t *t;
    copy_row_t *c;
} about_t;

/* Finds what the report is about; x->c NULL: the report is answered, and what is returned is the answer.  A
 * version that ended before this report was received is ended at the worker again. */
static int look_up(step_t *s, about_t *x, heddle_error_t *error)
{
    const member_sub_t *sub = member_sub(x->member, x->adapter);
    x->a = tracks_adapter(s->ro, x->adapter);
    x->t = x->a ? track_of(x->a, x->version) : NULL;
    const version_row_t *row = x->t ? x->t->row : x->a ? registry_version(x->a->row, x->version) : NULL;
    if (!row || !sub) return unknown_version(x->adapter, x->version, x->member, error);
    if (!registry_is_live(row)) {
        if (row->state == VERSION_RETIRED) messages_send_retire(s, x->adapter, x->version, x->member);
        else messages_send_abort(s, x->adapter, row, x->member);
        return HEDDLE_OK;
    }
    if (x->t) x->c = messages_need_copy(s, x->t, x->member);
    if (x->c) return HEDDLE_OK;
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a copy of %s@%llu", x->adapter,
                      (unsigned long long)x->version);
}

int report_staged(step_t *s, member_t *member, const msg_staged_t *m, heddle_error_t *error)
{
    about_t x = {.member = member, .adapter = m->adapter, .version = m->version};
    int rc = look_up(s, &x, error);
    if (!rc && !x.c) copy_crossed_end(x.t, copy_of(x.t, member), s->v.now);
    if (rc || !x.c) return rc;
    track_t *t = x.t;
    copy_row_t *c = x.c;
    copies_go_on(x.a, member, t->version, s->v.now.us);
    if (!digest_equal(&m->digest, &t->row->digest)) {
        rc = wrong_digest(m->adapter, t->row, &m->digest, member, "verify", error);
        stage_failed(s, t, c, (copy_why_t){rc, "verify", error->message});
        messages_wake_worker(s, x.a, member);
        return rc;
    }
    if (copy_holds(c)) return HEDDLE_OK; /* said twice */
    copy_staged(t, c, m, s->v.now);
    copies_turned_away(x.a, member, 0, s->v.now); /* it goes on with the latest */
    event_row_t *e = events_add(s->ev, EVENT_STAGE_DONE, t->adapter, t->version, c->worker, s->v.now);
    e->bytes = (int64_t)c->bytes_done;
    e->duration_ms = c->told_us ? (int64_t)((s->v.now.us - c->told_us) / 1000) : -1;
    /* COMMIT, when it is the active version; then the newest, when that waited.  Whether the version can be
     * decided now is looked at after this message (rollout_tick, rollout_decide): its track is dirty. */
    messages_wake_worker(s, x.a, member);
    return HEDDLE_OK;
}

int report_active(step_t *s, member_t *member, const msg_active_t *m, heddle_error_t *error)
{
    const adapter_rollout_t *a = tracks_adapter(s->ro, m->adapter);
    const version_row_t *row = a ? registry_version(a->row, m->version) : NULL;
    member_sub_t *sub = member_sub(member, m->adapter);
    if (!row || !sub) return unknown_version(m->adapter, m->version, member, error);
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
        int rc = wrong_digest(m->adapter, row, &m->digest, member, "activate", error);
        track_t *t = track_of(a, m->version);
        copy_row_t *c = copy_of(t, member);
        if (c) copy_failed(t, c, (copy_why_t){rc, "activate", error->message}, s->v.now);
        event_row_t *e =
            events_add(s->ev, EVENT_ACTIVATE_FAILED, m->adapter, m->version, member->name, s->v.now);
        events_message(e, rc, "%s", error->message);
        return rc;
    }
    bool is_old = m->decision < sub->decision || (m->decision == sub->decision && !sub->is_refused);
    if (is_old) return HEDDLE_OK; /* said twice, or overtaken by a later one */

    /* The worker serves this version by this decision.  Only this function notes that. */
    sub->decision = m->decision;
    sub->version = m->version;
    sub->since_ms = s->v.now.wall_ms;
    sub->is_refused = false;
    sub->was_behind_ms = sub->behind_ms;
    sub->behind_ms = active_is_served(a->row, member, sub) ? 0 : sub->since_ms;

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

static const char *text_or(const char *text, const char *otherwise)
{
    return text && *text ? text : otherwise;
}

/* What a worker says of a failure is kept as one line: tables, events and errors show it as it is. */
static void add_part(char *text, size_t size, const char *name, const char *value)
{
    size_t used = strlen(text);
    if (value && *value) text_printf(text + used, size - used, "; %s %s", name, value);
}

int report_nack(step_t *s, member_t *member, const msg_nack_t *m, heddle_error_t *error)
{
    about_t x = {.member = member, .adapter = m->adapter, .version = m->version};
    int code = heddle_err_from_name(m->code), rc = look_up(s, &x, error);
    if (rc || !x.c) return rc;
    if (code == HEDDLE_OK) code = HEDDLE_ERR_INTERNAL;
    /* All that the worker says, in one line: it is shown in tables, events and errors as it is. */
    char message[COPY_MESSAGE_BYTES];
    error_text(message, sizeof message, text_or(m->message, heddle_err_text(code)));
    add_part(message, sizeof message, "expected", m->expected);
    add_part(message, sizeof message, "found", m->found);
    add_part(message, sizeof message, "hint:", m->hint);
    if (!m->decision) {
        member_clear_fetch(member, m->adapter, m->version);
        copies_go_on(x.a, member, m->version, s->v.now.us);
        copy_tried(x.t, x.c, m, s->v.now);
        /* Its sources sent bad bytes, all that it tried: it tries again, when those have looked. */
        bool has_got_bad =
            !copy_holds(x.c) && code == HEDDLE_ERR_DIGEST_MISMATCH && !strcmp(m->phase, "verify");
        if (has_got_bad) messages_verify(s, x.t);
        stage_failed(s, x.t, x.c, (copy_why_t){code, text_or(m->phase, "stage"), message});
        messages_wake_worker(s, x.a, member);
        return HEDDLE_OK;
    }
    member_sub_t *sub = member_sub(member, m->adapter);
    /* It reported that it serves this, and its application does not. */
    if (sub->version == m->version && sub->decision == m->decision && !sub->is_refused) {
        sub->is_refused = true;
        sub->behind_ms = sub->was_behind_ms ? sub->was_behind_ms : s->v.now.wall_ms;
    }
    copy_refused(x.t, x.c, (copy_why_t){code, text_or(m->phase, "activate"), message}, s->v.now);
    copies_follow_switch(x.a, member, s->v.now);
    event_row_t *e = events_add(s->ev, EVENT_ACTIVATE_FAILED, m->adapter, m->version, member->name, s->v.now);
    events_message(e, code, "%s", message);
    e->decision = m->decision;
    return HEDDLE_OK;
}

/* ---- what workers report: what they hold has gone bad ---- */

/* A code stands for the reason why there is no digest, but beside EXPORTED_DIFFERS: that is of the directory.
 * digest_mismatch: the tensors have theirs, and the manifest behind them has not. */
static bool is_bad(const msg_verified_t *m, const digest_t *expected)
{
    bool has_digest = !m->code || !*m->code || m->exported == EXPORTED_DIFFERS;
    return has_digest ? !digest_equal(&m->digest, expected)
                      : heddle_err_from_name(m->code) == HEDDLE_ERR_DIGEST_MISMATCH;
}

void report_verified(step_t *s, const member_t *member, const msg_verified_t *m)
{
    track_t *t = track_find(s->ro, m->adapter, m->version);
    copy_row_t *c = copy_of(t, member);
    if (c && t->row && is_bad(m, &t->row->digest)) copy_found_bad(t, c, s->v.now);
}

/* ---- what workers report: sources that do not answer ---- */

/* A worker repeats NEED_SOURCES until it has a source.  The event is written once for each source. */
static void add_source_lost(step_t *s, const about_t *x, uint64_t token)
{
    if (!copy_lost_source(x->c, token)) return;
    /* A lost worker is still listed, so its name is known.  A publisher is not listed after its end: the
     * version's writer stands for it. */
    const member_t *source = membership_by_token(s->v.members, token);
    for (size_t i = 0; !source && i < s->v.members->worker_count; i++)
        if (s->v.members->workers[i]->token == token) source = s->v.members->workers[i];
    const char *name = source ? source->name : token == x->t->former_publisher ? x->t->row->writer : "";
    event_row_t *e =
        events_add(s->ev, EVENT_SOURCE_LOST, x->t->adapter, x->t->version, x->c->worker, s->v.now);
    e->token = token;
    error_text(e->other, sizeof e->other, name);
    events_message(e, HEDDLE_ERR_GONE, "%s could not go on fetching from %s", x->c->worker,
                   *name ? name : "a member that is gone");
}

/* Its own fetch goes on behind all others, so that its source has its whole rate for those that went on
 * there. */
static void put_last(step_t *s, track_t *t, const member_t *member)
{
    copy_row_t *c = copy_of(t, member);
    if (!c || !copy_is_told(c) || !plan_fetches(&t->plan, member->token)) return;
    plan_demote(&t->plan, member->token);
    plan_make(&t->plan, member->token, NULL, 0);
    messages_send_sources(s, t, c, member);
}

static event_row_t *add_blame(step_t *s, const about_t *x, event_type_t type, const member_t *of)
{
    event_row_t *e = events_add(s->ev, type, x->t->adapter, x->t->version, x->c->worker, s->v.now);
    e->token = of->token;
    error_text(e->other, sizeof e->other, of->name);
    return e;
}

/* One that gets wrong bytes from two processes for one version has a bad memory or link itself, or is not
 * honest.  What it alone said of others is taken back, and
 * it is a leaf. */
static void suspect(step_t *s, const about_t *x)
{
    const membership_t *all = s->v.members;
    x->member->is_suspect = true;
    for (size_t i = 0; i < all->worker_count; i++)
        if (!all->workers[i]->sends_bad && !strcmp(all->workers[i]->blamed_by, x->member->name))
            all->workers[i]->blamed_ms = 0;
    put_last(s, x->t, x->member);
    events_message(
        add_blame(s, x, EVENT_SOURCE_BAD, x->member), HEDDLE_ERR_DIGEST_MISMATCH,
        "%s reported wrong bytes from two sources: its own memory or link may be bad, and no other "
        "worker fetches from it from now on",
        x->member->name);
}

/* The word of one worker: of a source that it was named, and of one for a version. */
static member_t *heard_of(step_t *s, const about_t *x, uint64_t token, bool is_bad)
{
    static const key16_t NONE;
    member_t *source = membership_by_token(s->v.members, token);
    bool is_heard = source && source != x->member && !x->member->is_suspect && !x->member->sends_bad;
    is_heard = is_heard && copy_in_flight(x->c) && has_number(x->c->word.named, COPY_NAMED_MAX, token);
    if (!is_heard) return NULL;
    key16_t *said = is_bad ? &x->c->word.bad : &x->c->word.slow;
    if (!memcmp(said, &source->life, sizeof *said)) return NULL;
    if (!memcmp(said, &NONE, sizeof *said)) {
        *said = source->life;
        return source;
    }
    if (is_bad) suspect(s, x);
    return NULL;
}

static void hear_slow(step_t *s, const about_t *x, uint64_t token)
{
    member_t *source = heard_of(s, x, token, false);
    if (!source) return;
    bool is_news = !member_is_slow(source, s->v.now.wall_ms);
    source->slow_ms = s->v.now.wall_ms;
    put_last(s, x->t, source);
    if (is_news)
        events_message(add_blame(s, x, EVENT_SOURCE_SLOW, source), HEDDLE_OK,
                       "%s was slower than another source of %s, and comes last for a while", source->name,
                       x->c->worker);
}

/* One worker alone may be wrong, so it takes two to make a leaf of another one. */
static void hear_bad(step_t *s, const about_t *x, uint64_t token)
{
    member_t *source = heard_of(s, x, token, true);
    if (!source || source->sends_bad) return;
    bool is_first = !member_is_blamed(source, s->v.now.wall_ms);
    bool is_same = !is_first && !strcmp(source->blamed_by, x->member->name);
    source->sends_bad = !is_first && !is_same;
    source->blamed_ms = s->v.now.wall_ms;
    error_text(source->blamed_by, sizeof source->blamed_by, x->member->name);
    put_last(s, x->t, source);
    if (!is_same)
        events_message(add_blame(s, x, EVENT_SOURCE_BAD, source), HEDDLE_ERR_DIGEST_MISMATCH,
                       "%s sent bytes with another digest to %s", source->name, x->c->worker);
}

/* None of the workers that it was named has ever answered it: their ports are closed to it, as a rule.  The
 * publisher serves it then, though it would be named to the first ones alone. */
static bool reaches_no_worker(const step_t *s, const about_t *x, const msg_need_sources_t *m)
{
    uint32_t unmet_count = 0;
    for (uint32_t i = 0; i < m->lost_count; i++) {
        const member_t *source = membership_by_token(s->v.members, m->lost[i]);
        if (!source || source->role != ROLE_WORKER) continue;
        if (!has_number(m->unmet, m->unmet_count, m->lost[i])) return false;
        unmet_count++;
    }
    return unmet_count > 1 && !x->c->bytes_done && !x->c->is_connected;
}

int report_need_sources(step_t *s, member_t *member, const msg_need_sources_t *m, heddle_error_t *error)
{
    about_t x = {.member = member, .adapter = m->adapter, .version = m->version};
    int rc = look_up(s, &x, error);
    if (rc || !x.c) return rc;
    bool has_lost = false;
    for (uint32_t i = 0; i < m->bad_count; i++) hear_bad(s, &x, m->bad[i]);
    for (uint32_t i = 0; i < m->slow_count; i++) hear_slow(s, &x, m->slow[i]);
    for (uint32_t i = 0; i < m->lost_count; i++) {
        /* Unmet: it never answered this worker, or is late.  Nothing was lost, and its heartbeat reports
         * that. */
        bool is_unmet = has_number(m->unmet, m->unmet_count, m->lost[i]);
        bool is_bad = has_number(m->bad, m->bad_count, m->lost[i]); /* that was said */
        if (!is_unmet && !is_bad) add_source_lost(s, &x, m->lost[i]);
        has_lost |= !is_unmet;
        bool is_publisher = !is_unmet && m->lost[i] == x.t->publisher;
        if (is_publisher && x.t->publisher_state == PUBLISHER_RELEASED)
            track_set_publisher(x.t, x.t->publisher, PUBLISHER_WITHOUT); /* its region is in use again */
    }
    if (reaches_no_worker(s, &x, m)) {
        member->cut_off_ms = s->v.now.wall_ms;
        plan_cut_off(&x.t->plan, member->token);
    }
    bool was_fetching = plan_fetches(&x.t->plan, member->token);
    if (has_number(m->lost, m->lost_count, x.t->publisher)) plan_give_way(&x.t->plan, member->token);
    plan_make(&x.t->plan, member->token, m->lost, m->lost_count);
    if (has_lost) copy_looked_for_sources(x.t, x.c, s->v.now);
    if (!was_fetching && plan_fetches(&x.t->plan, member->token)) copy_begun_anew(x.c, s->v.now);
    /* It failed there, and the worker tries again by itself: no source is charged for that. */
    if (!copy_in_flight(x.c)) plan_done(&x.t->plan, member->token);
    messages_send_sources(s, x.t, x.c, member);
    track_touch(x.t);
    return HEDDLE_OK;
}
