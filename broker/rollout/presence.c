/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/presence.h"

#include "broker/registry/active.h"
#include "broker/rollout/keep.h"
#include "broker/rollout/messages.h"
#include "core/errors.h"
#include "core/limits.h"

/* ---- members come ---- */

/* The worker is still fetching a decided version that newer ones have overtaken, and that was not taken
 * back. */
static bool is_fetched_on(const track_t *t, const copy_row_t *c)
{
    return !track_is_ended(t) && t->row->state == VERSION_COMMITTED && copy_is_sent(c) &&
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
    sub->data_bytes = record_payload_bytes(&t->row->parts);
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
        if (!c || !is_fetched_on(t, c) || t->row->decision <= sub->serving.decision) continue;
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

/* Under the tokens that its sources have now, as far as they are back. */
static void restate_list(const membership_t *members, const uint64_t *tokens, uint32_t count,
                         uint64_t ret_tokens[PLAN_SOURCES], uint32_t *ret_count)
{
    *ret_count = count < PLAN_SOURCES ? count : PLAN_SOURCES;
    for (uint32_t i = 0; i < *ret_count; i++) {
        const member_t *source = membership_source(members, tokens[i]);
        ret_tokens[i] = source ? source->token : tokens[i];
    }
}

/* The lists of others may be older than the broker's last start, or than the publisher's session. */
static void came_back(track_t *t, const member_t *member)
{
    for (uint32_t i = 0; i < member->former_count; i++)
        plan_came_back(&t->plan, member->former[i].token, member->token);
}

/* After a start of the broker: what the worker fetches since before, and from where, has its place in the
 * plan, and moves nowhere. */
static int restate_fetches(const step_t *s, const member_t *member, const msg_join_t *join)
{
    bool is_of_former_broker = member->former_count && member->former[0].token >> 32 != member->token >> 32;
    s->ro->is_roster_short |= is_of_former_broker && !registry_worker(s->v.registry, member->name);
    for (uint32_t i = 0; is_of_former_broker && i < join->fetched_count; i++) {
        const msg_fetched_t *f = &join->fetched[i];
        track_t *t = track_find(s->ro, f->adapter, f->version);
        bool is_known = t && !track_is_ended(t) && t->is_restored && member_sub(member, f->adapter);
        bool is_wanted =
            is_known && (t == track_staging(t->of) || active_for(t->of->row, member) == t->version);
        if (!is_wanted || copy_of(t, member) || (!f->half && f->other_count)) continue;
        copy_row_t *c = copy_add(t, member);
        if (!c) return HEDDLE_ERR_NO_MEMORY;
        plan_lists_t lists = {.half = (uint32_t)f->half};
        restate_list(s->v.members, f->sources, f->source_count, lists.sources, &lists.source_count);
        restate_list(s->v.members, f->others, f->other_count, lists.others, &lists.other_count);
        copy_fetched(t, c, &lists, s->v.now);
    }
    for (uint32_t i = 0; is_of_former_broker && i < member->sub_count; i++) {
        const adapter_rollout_t *a = tracks_adapter(s->ro, member->subs[i].adapter);
        for (size_t k = 0; a && k < a->track_count; k++) came_back(a->tracks[k], member);
    }
    return HEDDLE_OK;
}

int presence_joined(step_t *s, member_t *member, const msg_join_t *join, arena_t *arena,
                    msg_welcome_t *welcome)
{
    welcome->adapters = arena_alloc(arena, (member->sub_count + 1) * sizeof *welcome->adapters);
    welcome->keep = arena_alloc(arena, (join->held_count + 1) * sizeof *welcome->keep);
    if (!welcome->adapters || !welcome->keep) return HEDDLE_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < member->sub_count; i++) {
        /* What a worker restates that it applied last: only if the registry has that decision (it may have
         * been restored from an older copy). */
        const adapter_row_t *a = registry_adapter(s->v.registry, member->subs[i].adapter);
        member_sub_t *sub = &member->subs[i];
        if (!(a && sub->serving.decision <= a->decision && sub->serving.version <= a->last_version)) {
            serving_forgotten(&sub->serving);
        }
        if (!a || !active_for(a, member) || active_is_served(a, member, sub))
            serving_caught_up(&sub->serving);
        else serving_fell_behind(&sub->serving, member->joined_ms);
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
        bool is_active = active_for(a, member) == held->version,
             is_behind = sub->serving.decision < a->decision;
        copy_state_t state = COPY_NONE;
        switch ((held_state_t)held->state) {
        case HELD_SEALED: state = COPY_ARRIVED; break;
        case HELD_ACTIVE: state = COPY_ACTIVE; break;
        case HELD_STAGED: state = is_active ? COPY_COMMITTED : COPY_STAGED; break;
        case HELD_KEPT: state = is_active && is_behind ? COPY_COMMITTED : COPY_KEPT; break;
        }
        copy_restated(t, c, held, state, s->v.now);
        if (state == COPY_ACTIVE && sub->serving.version == t->version)
            serving_dated(&sub->serving, c->since_ms);
        copy_reached(t, c,
                     t->row->decision && sub->serving.decision >= t->row->decision &&
                         sub->serving.version >= t->version);
        welcome->keep[welcome->keep_count++] = (msg_keep_t){held->adapter, t->version, t->row->share_key};
    }
    return restate_fetches(s, member, join);
}

/* A new session of the publisher serves what it restates.  Versions of the former session that it does not
 * restate have lost this source. */
void presence_opened(step_t *s, const member_t *publisher, const uint64_t *served, uint32_t count)
{
    const adapter_rollout_t *a = tracks_adapter(s->ro, publisher->subs[0].adapter);
    for (size_t i = 0; a && i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        bool serves = has_number(served, count, t->version) && !track_is_ended(t);
        if (t->plan.publisher.token == publisher->token || (!t->plan.publisher.token && !serves)) continue;
        if (serves) track_offer(t, publisher, NULL); /* its place first: those that wait there are woken */
        track_set_publisher(t, serves ? publisher->token : 0, serves ? PUBLISHER_SERVES : PUBLISHER_LOST);
        if (serves) came_back(t, publisher);
    }
}

void presence_offered(step_t *s, const member_t *publisher, uint64_t version, const msg_region_t *region)
{
    track_t *t = track_find(s->ro, publisher->subs[0].adapter, version);
    if (t && t->plan.publisher.token == publisher->token) track_offer(t, publisher, region);
}

void presence_republished(step_t *s, const member_t *publisher, uint64_t version)
{
    const char *adapter = publisher->subs[0].adapter;
    track_t *t = track_find(s->ro, adapter, version);
    if (!t || track_is_ended(t)) {
        messages_send_rollout(s, adapter, version, &(rollout_to_t){publisher->peer, publisher->token, 0});
        return;
    }
    publisher_state_t state = track_is_served(t)                       ? t->plan.publisher.state
                              : registry_is_wanted(t->of->row, t->row) ? PUBLISHER_SERVES
                                                                       : PUBLISHER_WITHOUT;
    bool is_another = t->plan.publisher.token != publisher->token;
    track_set_publisher(t, publisher->token, state);
    if (is_another) came_back(t, publisher); /* it did not name the version as it opened */
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
    uint64_t since_us = c->sent_us ? v.now.us - c->sent_us : 0;
    char text[256];
    text_printf(text, sizeof text, "%s in phase %s, %llu ms after the announcement",
                left          ? "left"
                : is_shut_out ? "its key was revoked"
                              : "lost, its lease ended",
                copy_phase(c), (unsigned long long)(since_us / 1000));
    int code = is_shut_out ? HEDDLE_ERR_DENIED : HEDDLE_ERR_UNAVAILABLE;
    copy_gone(t, c, code, text);
}

void presence_gone(step_t *s, const member_t *member, bool left)
{
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_rollout_t *a = tracks_adapter(s->ro, member->subs[i].adapter);
        for (size_t k = 0; a && k < a->track_count; k++) {
            track_t *t = a->tracks[k];
            if (member->role == ROLE_WORKER && !track_is_ended(t)) worker_gone(s->v, t, member, left);
            if (t->plan.publisher.token == member->token) {
                t->former_publisher = t->plan.publisher.token;
                t->publisher_end_ms = s->v.now.wall_ms;
                track_set_publisher(t, 0, left ? PUBLISHER_LEFT : PUBLISHER_LOST);
            }
        }
    }
}
