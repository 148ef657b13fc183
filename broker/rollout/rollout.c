/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/rollout.h"

#include "broker/rollout/keep.h"
#include "broker/rollout/messages.h"
#include "broker/rollout/rule.h"
#include "broker/rollout/wake.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"

#include <stdlib.h>

#define RECORDS_AT_ONCE (REGISTRY_END_RECORDS * (2 + (int)RETIRE_AT_ONCE) + 1)

bool rollout_is_settling(const rollout_t *ro, uint64_t now_us) { return now_us < ro->settle_end_us; }

uint64_t rollout_settling_us(const rollout_t *ro, uint64_t now_us)
{
    return rollout_is_settling(ro, now_us) ? ro->settle_end_us - now_us : 0;
}

uint64_t rollout_deadline(const rollout_t *ro) { return ro->due_us; }

void rollout_stir(rollout_t *ro)
{
    for (size_t i = 0; i < ro->adapter_count; i++)
        for (size_t k = 0; k < ro->adapters[i]->track_count; k++) track_touch(ro->adapters[i]->tracks[k]);
}

/* Only noted here: the store still refuses records, so nothing can be decided about these versions. */
void rollout_knocked(rollout_t *ro, const char *adapter, const uint64_t *served, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        track_t *t = rollout_track(ro, adapter, served[i]);
        if (t) t->has_knocked = true;
    }
}

/* A publisher that came back while the store refused records could not be admitted.  Its version gets one
 * more lease from now on, so that the publisher can come again. */
static void resume(track_t *t, uint64_t now_us)
{
    if (!t->has_knocked) return;
    if (t->bytes != BYTES_THERE && t->sourceless_us < now_us) t->sourceless_us = now_us;
    t->has_knocked = false;
    track_touch(t);
}

void rollout_resume(rollout_t *ro, uint64_t now_us)
{
    for (size_t i = 0; i < ro->adapter_count; i++)
        for (size_t k = 0; k < ro->adapters[i]->track_count; k++) resume(ro->adapters[i]->tracks[k], now_us);
}

/* ---- a version begins ---- */

/* Every READY subscriber becomes eligible: the rollout waits for it.  False: no memory for one of them,
 * and the rollout may not be decided any more. */
static bool expect_all(step_t *s, track_t *t)
{
    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        const member_t *m = s->v.members->workers[i];
        if (!member_is_subscriber(m, t->of)) continue;
        copy_row_t *c = copy_add(t, m);
        if (!c) {
            s->ro->is_incomplete = true;
            return false;
        }
        copy_expect(t, c);
    }
    return true;
}

/* A worker fetches the newest version first.  If it was still fetching the active one, that one is owed:
 * it is announced again when the newest is staged. */
static void put_off_active(const adapter_rollout_t *a, const member_t *member)
{
    uint64_t active = active_for(a->row, member);
    track_t *t = active ? adapter_track(a, active) : NULL;
    copy_row_t *c = copy_of(t, member);
    if (!copy_in_flight(c)) return;
    c->is_owed = true;
    copy_blame(t, c, HEDDLE_OK, "", "");
}

/* All plans are made before the first ANNOUNCE is sent, so that each plan counts the load of all the
 * others. */
static void begin(step_t *s, track_t *t)
{
    t->phase = TRACK_BEGUN;
    track_touch(t);
    if (!expect_all(s, t)) return;
    for (size_t i = 0; i < t->copy_count; i++)
        if (t->copies[i]->token) plan_make(&t->plan, t->copies[i]->token, NULL, 0);
    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        const member_t *m = s->v.members->workers[i];
        copy_row_t *c = member_is_subscriber(m, t->of) ? copy_of(t, m) : NULL;
        if (!c) continue;
        put_off_active(t->of, m);
        send_announce(s, t, c, m);
    }
}

static void begin_next(step_t *s, const adapter_rollout_t *a)
{
    track_t *t = adapter_staging(a);
    if (t && t->phase == TRACK_WAITING) begin(s, t);
}

/* A VERSION record was applied.  The adapter's writer has the bytes, unless its session ended while the
 * record was written. */
static void apply_version(step_t *s, adapter_rollout_t *a, const version_row_t *row)
{
    const member_t *publisher = membership_by_token(s->v.members, a->row->writer.token);
    /* A publisher has few regions.  Those that it may reuse by an earlier RELEASE count as overwritten
     * from now on: the new version needs one of them. */
    for (size_t i = 0; i < a->track_count && a->tracks[i]->version < row->version; i++) {
        track_t *t = a->tracks[i];
        if (t->publisher_state == PUBLISHER_RELEASED) track_set_publisher(t, t->publisher, PUBLISHER_WITHOUT);
    }
    track_t *t = track_add(a, row->version, s->v.now.us);
    if (!t) {
        s->ro->is_incomplete = true;
        return;
    }
    if (publisher) track_set_publisher(t, publisher->token, PUBLISHER_SERVES);
    else {
        track_set_publisher(t, 0, PUBLISHER_LOST);
        t->former_publisher = a->row->writer.token;
    }
    t->deadline_us = s->v.now.us + row->deadline_ms * 1000;
    event_row_t *e =
        events_add(s->ev, EVENT_VERSION_PUBLISHED, t->adapter, row->version, row->writer, s->v.now);
    e->bytes = (int64_t)row->data_bytes;
    begin_next(s, a);
}

/* How much is left of a deadline that was set before the broker started.  That is known by wall clock
 * only, which may have jumped, so it is never more than the whole deadline. */
static uint64_t left_us(const version_row_t *row, uint64_t wall_ms)
{
    uint64_t end_ms = row->created_ms + row->deadline_ms;
    uint64_t left_ms = end_ms > wall_ms ? end_ms - wall_ms : 0;
    return (left_ms < row->deadline_ms ? left_ms : row->deadline_ms) * 1000;
}

/* After a start no worker has joined yet, so the bytes count as missing.  They count as lost only when a
 * lease has passed after settling ended. */
static int start_track(adapter_rollout_t *a, view_t v, const version_row_t *row)
{
    uint64_t settle_end_us = a->ro->settle_end_us;
    track_t *t = track_add(a, row->version, v.now.us);
    if (!t) return HEDDLE_ERR_NO_MEMORY;
    t->bytes = BYTES_MISSING;
    t->sourceless_us = settle_end_us > v.now.us ? settle_end_us : v.now.us;
    t->is_restored = true;
    t->phase = row == registry_waiting(a->row) ? TRACK_WAITING : TRACK_BEGUN;
    if (row->state != VERSION_STAGING) return HEDDLE_OK;
    t->deadline_us = v.now.us + left_us(row, v.now.wall_ms);
    if (t->deadline_us < settle_end_us) t->deadline_us = settle_end_us;
    return HEDDLE_OK;
}

int rollout_start(rollout_t *ro, view_t v, uint64_t settle_end_us)
{
    ro->settle_end_us = settle_end_us;
    ro->is_dirty = true;
    for (size_t i = 0; i < v.registry->adapter_count; i++) {
        const adapter_row_t *row = v.registry->adapters[i];
        adapter_rollout_t *a = rollout_need_adapter(ro, row);
        if (!a) return HEDDLE_ERR_NO_MEMORY;
        for (size_t k = 0; k < row->version_count; k++) {
            int rc = registry_is_live(row->versions[k]) ? start_track(a, v, row->versions[k]) : HEDDLE_OK;
            if (rc) return rc;
        }
    }
    return HEDDLE_OK;
}

/* ---- time ---- */

/* While the broker settles, members may be missing that were there before it stopped.  So the workers that
 * a rollout waits for are chosen when settling ends: all READY subscribers.  Of a decided version only
 * copies that exist count. */
static void end_settling(step_t *s)
{
    s->ro->is_settled = true;
    for (size_t i = 0; i < s->ro->adapter_count; i++) {
        const adapter_rollout_t *a = s->ro->adapters[i];
        for (size_t k = 0; k < a->track_count; k++) {
            track_t *t = a->tracks[k];
            for (size_t c = 0; c < t->copy_count; c++)
                if (t->copies[c]->token) copy_expect(t, t->copies[c]);
            if (t == adapter_staging(a)) expect_all(s, t);
            track_touch(t);
        }
    }
}

static void say_lost(step_t *s, track_t *t)
{
    heddle_error_t why;
    const adapter_row_t *a = t->of->row;
    if (t->bytes == BYTES_LOADING) t->lost_ms = s->v.now.wall_ms;
    t->bytes = BYTES_LOST;
    track_changed(t);
    rollout_lost_reason(t, &why);
    event_row_t *e = events_add(s->ev, EVENT_VERSION_LOST, t->adapter, t->version, NULL, s->v.now);
    events_say(e, why.code, "%s", why.message);
    if (!a->held || a->active != t->version) return;
    e = events_add(s->ev, EVENT_ADAPTER_HELD, t->adapter, t->version, NULL, s->v.now);
    events_say(e, why.code,
               "held at a version that is lost: later ones stay staged until one is activated "
               "by hand");
}

/* Follows whether the version's bytes are somewhere: there, missing, still being loaded by a worker, or
 * lost. */
static void look_at_sources(step_t *s, track_t *t)
{
    if (track_has_source(t)) {
        if (!track_holder_count(t)) error_text(t->last_holder, sizeof t->last_holder, t->row->writer);
        if (t->bytes == BYTES_THERE) return;
        t->bytes = BYTES_THERE;
        track_changed(t);
        wake_adapter(s, t->of); /* those that waited for a source */
        return;
    }
    if (t->bytes == BYTES_THERE) {
        t->bytes = BYTES_MISSING;
        t->sourceless_us = s->v.now.us;
        t->lost_ms = s->v.now.wall_ms;
    }
    if (t->bytes == BYTES_LOST || t->row->state != VERSION_COMMITTED || !s->ro->is_settled) return;
    uint64_t loaded_until_us = keep_loaded_until(s->v, t);
    if (!loaded_until_us) {
        say_lost(s, t);
        return;
    }
    t->bytes = BYTES_LOADING;
    error_text(t->last_holder, sizeof t->last_holder, keep_loader(s->v, t));
    track_sooner(t, loaded_until_us);
}

/* A publisher that left does not come back.  One whose session was lost has a lease to come back with the
 * bytes. */
static bool has_lost_its_source(const track_t *t, instant_t now)
{
    bool is_gone_for_good =
        t->publisher_state == PUBLISHER_LEFT || now.us >= t->sourceless_us + t->of->ro->lease_us;
    return t->bytes != BYTES_THERE && is_gone_for_good;
}

static rule_t rule_of(const track_t *t, instant_t now)
{
    return (rule_t){.activation = t->row->activation,
                    .is_held = t->of->row->held,
                    .is_late = t->is_late,
                    .has_lost_source = has_lost_its_source(t, now)};
}

/* One version is looked at: whether its bytes have a source, whether its deadline has passed, whether it
 * is staged, and which failed workers try again.  Also notes when it must be looked at next without any
 * event. */
static void look_at(step_t *s, track_t *t)
{
    t->due_us = CLOCK_NEVER;
    if (track_is_ended(t)) return;
    bool is_staging = t->row->state == VERSION_STAGING;
    look_at_sources(s, t);
    if (!t->is_late && s->v.now.us >= t->deadline_us) {
        t->is_late = true;
        track_changed(t);
    }
    rule_t rule = rule_of(t, s->v.now);
    if (is_staging && t->phase == TRACK_BEGUN && rule_is_staged(&rule, &t->tally)) {
        t->phase = TRACK_STAGED;
        events_add(s->ev, EVENT_VERSION_STAGED, t->adapter, t->version, NULL, s->v.now);
    }
    if (t->of->row->active == t->version) {
        for (size_t i = tally_in(&t->tally, COPY_FAILED) ? 0 : t->copy_count; i < t->copy_count; i++) {
            const copy_row_t *c = t->copies[i];
            if (c->state != COPY_FAILED || !c->retry_us) continue;
            member_t *m = membership_by_token(s->v.members, c->token);
            if (m && c->retry_us <= s->v.now.us) wake_member(s, t->of, m);
            else track_sooner(t, c->retry_us);
        }
    }
    if (!t->is_late) track_sooner(t, t->deadline_us);
    if (is_staging && t->bytes != BYTES_THERE) {
        uint64_t end_us = t->sourceless_us + s->ro->lease_us;
        if (end_us <= s->v.now.us) track_touch(t);
        else track_sooner(t, end_us);
    }
}

/* Only tracks that changed or are due are looked at.  So a turn of the loop costs as much as has changed,
 * not as much as there is. */
static void look_at_adapter(step_t *s, adapter_rollout_t *a)
{
    bool is_looked_at = false;
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        if (!t->is_dirty && s->v.now.us < t->due_us) continue;
        look_at(s, t);
        is_looked_at = true;
    }
    if (is_looked_at) keep_look(s, a);
    a->due_us = CLOCK_NEVER;
    for (size_t i = 0; i < a->track_count; i++)
        if (a->tracks[i]->due_us < a->due_us) a->due_us = a->tracks[i]->due_us;
}

/* Costs nothing when nothing changed and nothing is due. */
void rollout_tick(rollout_t *ro, view_t v, events_t *ev, outbox_t *out)
{
    step_t s = {ro, v, ev, out};
    bool is_time = v.now.us >= ro->due_us || (!ro->is_settled && v.now.us >= ro->settle_end_us);
    if (!ro->is_dirty && !is_time) return;
    if (!ro->is_settled && v.now.us >= ro->settle_end_us) end_settling(&s);
    ro->due_us = ro->is_settled ? CLOCK_NEVER : ro->settle_end_us;
    for (size_t i = 0; i < ro->adapter_count; i++) {
        adapter_rollout_t *a = ro->adapters[i];
        if (a->is_dirty || v.now.us >= a->due_us) look_at_adapter(&s, a);
        if (a->due_us < ro->due_us) ro->due_us = a->due_us;
    }
}

/* ---- deciding ---- */

/* The error names the first worker that failed, because one rejection fails the version. */
static void fail_rejected(const track_t *t, instant_t now, outbox_t *out)
{
    const adapter_row_t *a = t->of->row;
    const copy_row_t *bad = NULL;
    for (size_t i = 0; !bad && i < t->copy_count; i++)
        if (t->copies[i]->is_eligible && t->copies[i]->state == COPY_FAILED) bad = t->copies[i];
    heddle_error_t e;
    error_fail(&e, bad->code, "%s@%llu failed at %s in phase %s: %s", a->name, (unsigned long long)t->version,
               bad->worker, bad->phase, bad->message);
    error_where(&e, a->name, t->version, bad->worker, bad->phase);
    registry_decide_end(a, t->row, VERSION_FAILED, &e, now, out);
}

/* "w2 in phase fetch, w5 in phase announce and 3 others" */
static void name_missing(const track_t *t, char *text, size_t size)
{
    size_t used = 0;
    uint32_t named = 0, others = 0;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        if (!c->is_eligible || copy_holds(c)) continue;
        if (named == 3) {
            others++;
            continue;
        }
        text_printf(text + used, size - used, "%s%s in phase %s", named ? ", " : "", c->worker,
                    copy_phase(c));
        used += strlen(text + used);
        named++;
    }
    if (others) text_printf(text + used, size - used, " and %u others", others);
}

static void fail_late(const track_t *t, instant_t now, outbox_t *out)
{
    const adapter_row_t *a = t->of->row;
    char missing[600] = "";
    heddle_error_t e;
    name_missing(t, missing, sizeof missing);
    unsigned long long ms = t->row->asked_ms;
    uint32_t present = tally_present(&t->tally, false), eligible = tally_present(&t->tally, true);
    if (!present)
        error_fail(&e, HEDDLE_ERR_NO_WORKERS, "no worker took %s@%llu within %llu ms", a->name,
                   (unsigned long long)t->version, ms);
    else
        error_fail(&e, HEDDLE_ERR_DEADLINE, "%u of %u workers staged %s@%llu within %llu ms; missing: %s",
                   track_holder_count(t), eligible ? eligible : present, a->name,
                   (unsigned long long)t->version, ms, missing[0] ? missing : "every worker");
    error_where(&e, a->name, t->version, NULL, "stage");
    registry_decide_end(a, t->row, VERSION_FAILED, &e, now, out);
}

static void fail_lost(const track_t *t, instant_t now, outbox_t *out)
{
    const adapter_row_t *a = t->of->row;
    heddle_error_t e;
    error_fail(&e, HEDDLE_ERR_VERSION_LOST, "the publisher of %s@%llu is gone and no worker has staged it",
               a->name, (unsigned long long)t->version);
    error_where(&e, a->name, t->version, NULL, "fetch");
    registry_decide_end(a, t->row, VERSION_FAILED, &e, now, out);
}

/* A worker is fetching the version, and there is a source.  While that is so, a newer version waits for
 * this one. */
static bool is_moving(const track_t *t)
{
    for (size_t i = 0; !t->is_late && track_has_source(t) && i < t->copy_count; i++)
        if (copy_is_told(t->copies[i]) && !t->copies[i]->is_owed) return true;
    return false;
}

/* Commits, fails, or supersedes the version that is being rolled out; or leaves it, if its rule still
 * waits. */
static void decide_staging(const track_t *t, instant_t now, outbox_t *out)
{
    const adapter_row_t *a = t->of->row;
    rule_t rule = rule_of(t, now);
    ruling_t ruling = rule_apply(&rule, &t->tally);
    switch (ruling.verdict) {
    case RULE_COMMIT: registry_decide_commit(a, t->row, ruling.scope, now, out); return;
    case RULE_FAIL:
        if (ruling.reason == RULE_REJECTED) fail_rejected(t, now, out);
        else if (ruling.reason == RULE_LATE) fail_late(t, now, out);
        else fail_lost(t, now, out);
        return;
    case RULE_WAIT: break;
    }
    if (registry_waiting(a) && !is_moving(t))
        registry_decide_end(a, t->row, VERSION_SUPERSEDED, NULL, now, out);
}

static void fail_waiting(const track_t *t, instant_t now, outbox_t *out)
{
    const adapter_row_t *a = t->of->row;
    unsigned long long first = registry_staging(a)->version;
    heddle_error_t e;
    error_fail(&e, HEDDLE_ERR_DEADLINE, "%s@%llu waited for %s@%llu, which was not decided within %llu ms",
               a->name, (unsigned long long)t->version, a->name, first, (unsigned long long)t->row->asked_ms);
    error_where(&e, a->name, t->version, NULL, "announce");
    registry_decide_end(a, t->row, VERSION_FAILED, &e, now, out);
}

/* A commit in this same turn made the decision that registry_decide_again would repeat. */
static bool has_decided(const adapter_rollout_t *a, const outbox_t *out)
{
    for (int i = 0; i < out->record_count; i++)
        if (out->records[i].kind == RECORD_DECISION && !strcmp(out->records[i].adapter, a->row->name))
            return true;
    return false;
}

/* Adds records only for adapters that changed, and as long as the outbox has room.  The caller repeats
 * this after each commit. */
void rollout_decide(const rollout_t *ro, view_t v, outbox_t *out)
{
    if (!ro->is_settled || !ro->is_dirty) return;
    for (size_t i = 0; i < ro->adapter_count && outbox_has_room(out, RECORDS_AT_ONCE); i++) {
        const adapter_rollout_t *a = ro->adapters[i];
        if (!a->is_dirty) continue;
        const track_t *staging = adapter_staging(a);
        if (staging) decide_staging(staging, v.now, out);
        const version_row_t *row = registry_waiting(a->row);
        const track_t *t = row ? adapter_track(a, row->version) : NULL;
        if (t) {
            if (t->is_late) fail_waiting(t, v.now, out);
            else if (has_lost_its_source(t, v.now)) fail_lost(t, v.now, out);
        }
        if (registry_is_behind(a->row) && !has_decided(a, out)) registry_decide_again(a->row, v.now, out);
        keep_decide(a, v, out);
    }
}

/* ---- after a record is durable ---- */

/* Operators see three things in the events: which version is active, that it is held now, or that a hold
 * has ended. */
static void say_decision(step_t *s, const adapter_row_t *a, bool was_held)
{
    event_row_t *e = events_add(s->ev, EVENT_VERSION_ACTIVATED, a->name, a->active, NULL, s->v.now);
    e->decision = a->decision;
    if (a->held) {
        e = events_add(s->ev, EVENT_ADAPTER_HELD, a->name, a->active, NULL, s->v.now);
        events_say(e, HEDDLE_OK, "held by %s", a->held_by);
    } else if (was_held) {
        events_add(s->ev, EVENT_ADAPTER_RESUMED, a->name, a->active, NULL, s->v.now);
    }
}

/* The decision for one worker. */
static void tell_decision(step_t *s, const adapter_rollout_t *a, track_t *t, member_t *m)
{
    copy_row_t *c = copy_of(t, m);
    if (copy_holds(c)) {
        if (c->state != COPY_ACTIVE) copy_move(t, c, COPY_COMMITTED, s->v.now);
        send_commit(s, a, m);
        return;
    }
    /* A worker finishes a decided version even if a later one is decided meanwhile.  The exception is a
     * version that was taken back: the worker must not switch to it any more.  So COMMIT of the earlier
     * version is sent at once, even if the worker does not hold that yet. */
    if (copy_is_told(c) || registry_is_step_back(a->row)) send_commit(s, a, m);
    wake_member(s, a, m);
}

/* All copies follow the decision before any COMMIT is sent, because what a worker is sent depends on the
 * states of its copies. */
static void apply_decision(step_t *s, adapter_rollout_t *a, bool was_held)
{
    track_t *active = track_add(a, a->row->active, s->v.now.us);
    if (!active) {
        s->ro->is_incomplete = true;
        return;
    }
    say_decision(s, a->row, was_held);
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        for (size_t k = 0; k < t->copy_count; k++) {
            copy_row_t *c = t->copies[k];
            if (t == active) copy_reach(t, c, false);
            /* Copies that were overtaken before they were switched to are kept like those that were served.
             * */
            else if (c->state == COPY_COMMITTED) copy_move(t, c, COPY_KEPT, s->v.now);
        }
        if (!track_is_ended(t)) track_changed(t); /* another one is active, or the hold is another */
    }
    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        member_t *m = s->v.members->workers[i];
        if (member_is_subscriber(m, a)) tell_decision(s, a, active, m);
    }
}

/* A version has ended: every worker with a copy drops it, by RETIRE if it was decided and by ABORT if it
 * was not. */
static void apply_state(step_t *s, const adapter_rollout_t *a, const record_t *record)
{
    event_type_t type = record->state == VERSION_FAILED    ? EVENT_VERSION_FAILED
                        : record->state == VERSION_RETIRED ? EVENT_VERSION_RETIRED
                                                           : EVENT_VERSION_SUPERSEDED;
    event_row_t *e = events_add(s->ev, type, a->row->name, record->version, record->worker, s->v.now);
    events_say(e, record->code, "%s", record->message);
    track_t *t = adapter_track(a, record->version);
    if (!t) return;
    for (size_t i = 0; t->row && i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        member_t *m = c->token ? membership_by_token(s->v.members, c->token) : NULL;
        if (!m) continue;
        member_fetched(m, t->adapter, t->version);
        if (t->row->state == VERSION_RETIRED) send_retire(s, t->adapter, t->version, m);
        else send_abort(s, t->adapter, t->row, m);
    }
    track_changed(t);
    track_forget_ended(t->of);
    if (record->state == VERSION_FAILED)
        wake_adapter(s, a); /* workers that left the active version for this one go back to it */
}

void rollout_apply(rollout_t *ro, view_t v, const record_t *record, bool was_held, events_t *ev,
                   outbox_t *out)
{
    step_t s = {ro, v, ev, out};
    const adapter_row_t *row = record->adapter ? registry_adapter(v.registry, record->adapter) : NULL;
    adapter_rollout_t *a = row ? rollout_need_adapter(ro, row) : NULL;
    if (row && !a) ro->is_incomplete = true;
    if (!a) return;
    track_t *t = adapter_track(a, record->version);
    switch (record->kind) {
    case RECORD_VERSION: apply_version(&s, a, registry_version(row, record->version)); break;
    case RECORD_DECISION:
        apply_decision(&s, a, was_held);
        begin_next(&s, a);
        break;
    case RECORD_STATE:
        apply_state(&s, a, record);
        begin_next(&s, a);
        break;
    case RECORD_FLOOR: /* the latest decision may have to be made anew */
        if (row->active && (t = adapter_track(a, row->active))) track_touch(t);
        break;
    case RECORD_FORGET:
        if (t) t->row = NULL;
        break;
    default: break;
    }
}

/* ---- publishers ---- */

/* ROLLOUT is sent without delay when one of these changes.  Mere counts are collected for ROLLOUT_PUSH_US. */
static urgent_t urgent_of(const rollout_sum_t *sum)
{
    return (urgent_t){.state = sum->state,
                      .code = sum->code,
                      .is_first_staged = sum->staged > 0,
                      .is_all_staged = sum->eligible && sum->staged >= sum->eligible,
                      .is_all_active = sum->eligible ? sum->active >= sum->eligible : sum->active > 0};
}

static bool urgent_equal(const urgent_t *a, const urgent_t *b)
{
    return a->state && b->state && !strcmp(a->state, b->state) && a->code == b->code &&
           a->is_first_staged == b->is_first_staged && a->is_all_staged == b->is_all_staged &&
           a->is_all_active == b->is_all_active;
}

/* Sends ROLLOUT if something changed since the last one.  False: the change can wait, and the track is due
 * again when its time has come. */
static bool push(step_t *s, track_t *t, const member_t *publisher)
{
    if (t->pushed_generation == t->generation) return true;
    rollout_sum_t sum = rollout_sum(s->ro, t->of->row, t->row, NULL, 0);
    urgent_t urgent = urgent_of(&sum);
    bool is_fresh =
        !t->pushed_generation && !sum.staged && !strcmp(sum.state, "staging"); /* PUBLISHED said as much */
    bool is_urgent = !urgent_equal(&urgent, &t->pushed) && !is_fresh;
    if (!is_urgent && s->v.now.us < t->push_us + ROLLOUT_PUSH_US) {
        track_sooner(t, t->push_us + ROLLOUT_PUSH_US);
        return false;
    }
    send_rollout(s->ro, t->of->row, t->row, publisher, s->out);
    t->pushed_generation = t->generation;
    t->pushed = urgent;
    t->push_us = s->v.now.us;
    return true;
}

static bool flush_track(step_t *s, track_t *t)
{
    const member_t *publisher = t->publisher ? membership_by_token(s->v.members, t->publisher) : NULL;
    bool is_ended = track_is_ended(t);
    if (!publisher || !t->row) return true;
    if (t->is_restored && !is_ended && !s->ro->is_settled) return true; /* end_settling touches it */
    /* The trainer may use its region again: another process has the bytes, and no worker that the rollout
     * waits for is under way. */
    bool may_release = is_ended || tally_is_complete(&t->tally);
    if (t->publisher_state == PUBLISHER_SERVES && may_release) send_release(s, t, publisher);
    if (is_ended) track_set_publisher(t, t->publisher, PUBLISHER_WITHOUT);
    return push(s, t, publisher);
}

/* ROLLOUT of a version that waits says how far the version before it is. */
static void follow_staging(const adapter_rollout_t *a)
{
    const track_t *first = adapter_staging(a);
    const version_row_t *row = registry_waiting(a->row);
    track_t *t = row ? adapter_track(a, row->version) : NULL;
    if (!first || !t || t->awaited_generation == first->generation) return;
    t->awaited_generation = first->generation;
    track_changed(t);
}

/* A track that has to wait for its time stays dirty, and so does its adapter. */
static void flush_adapter(step_t *s, adapter_rollout_t *a)
{
    bool is_dirty = false;
    follow_staging(a);
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        if (t->is_dirty) t->is_dirty = !flush_track(s, t);
        if (t->due_us < a->due_us) a->due_us = t->due_us;
        is_dirty |= t->is_dirty;
    }
    a->is_dirty = is_dirty;
}

void rollout_flush(rollout_t *ro, view_t v, events_t *ev, outbox_t *out)
{
    step_t s = {ro, v, ev, out};
    bool is_dirty = false;
    if (!ro->is_dirty) return;
    for (size_t i = 0; i < ro->adapter_count; i++) {
        adapter_rollout_t *a = ro->adapters[i];
        if (a->is_dirty) flush_adapter(&s, a);
        if (a->due_us < ro->due_us) ro->due_us = a->due_us;
        is_dirty |= a->is_dirty;
    }
    ro->is_dirty = is_dirty;
    if (!ro->is_crowded) return;
    ro->is_crowded = false;
    for (size_t i = 0; i < ro->adapter_count; i++)
        track_forget_ended(ro->adapters[i]); /* those told only now */
}

void rollout_tell(const rollout_t *ro, view_t v, const char *adapter, uint64_t version,
                  const member_t *publisher, outbox_t *out)
{
    const adapter_row_t *a = registry_adapter(v.registry, adapter);
    const version_row_t *row = a ? registry_version(a, version) : NULL;
    if (row) send_rollout(ro, a, row, publisher, out);
}
