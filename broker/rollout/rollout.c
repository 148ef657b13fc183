/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/rollout.h"

#include "broker/registry/decision.h"
#include "broker/registry/active.h"
#include "broker/rollout/fetches.h"
#include "broker/rollout/keep.h"
#include "broker/rollout/messages.h"
#include "broker/rollout/rule.h"
#include "broker/rollout/trust.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/listing.h"
#include "core/units.h"

#define RECORDS_AT_ONCE (REGISTRY_END_RECORDS * (2 + (int)RETIRE_AT_ONCE) + 2)

uint64_t rollout_settling_us(const rollout_t *ro, const membership_t *members, uint64_t now_us)
{
    bool has_end_ahead = !ro->is_settled && now_us < members->grace_end_us;
    return has_end_ahead ? members->grace_end_us - now_us : 0;
}

uint64_t rollout_deadline(const rollout_t *ro) { return ro->touched ? 0 : ro->due_us; }

/* ---- start ---- */

/* After a start no worker has joined yet, so the bytes count as missing.  They count as lost only when a
 * lease has passed after settling ended. */
static int start_track(rollout_t *ro, view_t v, const adapter_row_t *a, const version_row_t *row)
{
    uint64_t settle_end_us = v.members->grace_end_us;
    track_t *t = track_add(ro, a, row->version, v.now.us);
    if (!t) return HEDDLE_ERR_NO_MEMORY;
    t->bytes = BYTES_MISSING;
    t->sourceless_us = settle_end_us > v.now.us ? settle_end_us : v.now.us;
    t->is_restored = t->awaits_fetchers = true;
    if (row->lost_ms || row->staged_ms) t->staged_by = STAGED_BY_UNIT;
    if (row->lost_ms) { /* said before the start */
        t->bytes = BYTES_LOST;
        t->held_until_ms = row->lost_ms;
    }
    t->phase = row == registry_waiting(a) ? TRACK_WAITING : TRACK_BEGUN;
    if (t->phase == TRACK_BEGUN) plan_resume(&t->plan);
    if (row->state != VERSION_STAGING) return HEDDLE_OK;
    /* How much is left of its deadline is known by wall clock only, which may have jumped.  So it is never
     * more than the whole deadline. */
    uint64_t end_ms = row->created_ms + row->deadline_ms;
    uint64_t left_ms = end_ms > v.now.wall_ms ? end_ms - v.now.wall_ms : 0;
    if (left_ms > row->deadline_ms) left_ms = row->deadline_ms;
    t->deadline_us = v.now.us + left_ms * 1000;
    if (t->deadline_us < settle_end_us) t->deadline_us = settle_end_us;
    return HEDDLE_OK;
}

int rollout_start(rollout_t *ro, view_t v)
{
    ro->is_settled = !v.registry->adapter_count;
    ro->settled_us = v.now.us;
    ro->due_us = 0;
    for (size_t i = 0; i < v.registry->adapter_count; i++) {
        const adapter_row_t *row = v.registry->adapters[i];
        if (!row->version_count) continue; /* its row may go */
        adapter_rollout_t *a = tracks_need_adapter(ro, row);
        if (!a) return HEDDLE_ERR_NO_MEMORY;
        if (row->held) a->hold = (adapter_hold_t){.version = active_latest(row), .since_ms = row->decided_ms};
        for (size_t k = 0; k < row->version_count; k++) {
            const version_row_t *version = row->versions[k];
            int rc = registry_is_live(version) ? start_track(ro, v, row, version) : HEDDLE_OK;
            if (rc) return rc;
        }
    }
    return HEDDLE_OK;
}

/* ---- time ---- */

/* While the broker settles, members may be missing that were there before it stopped.  So the workers that
 * a rollout waits for are chosen when settling ends: all READY subscribers.  Of a decided version only
 * copies that exist count.  No copy was put away till then, so that workers without a slot try again now. */
static void end_settling(step_t *s)
{
    s->ro->is_settled = true;
    s->ro->settled_us = s->v.now.us;
    for (size_t i = 0; i < s->ro->adapter_count; i++) {
        const adapter_rollout_t *a = s->ro->adapters[i];
        bool lacked_slot = false;
        for (size_t k = 0; k < a->track_count; k++) {
            track_t *t = a->tracks[k];
            if (t->bytes > BYTES_GROWING && t->sourceless_us < s->v.now.us) t->sourceless_us = s->v.now.us;
            for (size_t j = 0; j < t->copy_count; j++) {
                copy_row_t *c = track_walk(t, j);
                const member_t *m = membership_by_token(s->v.members, c->token);
                if (m && !member_is_draining(m)) copy_expected(t, c);
                lacked_slot |= copy_try_again(t, c, s->v.now.us);
            }
            if (t == track_staging(a)) {
                track_expect(t, s->v.members);
                track_changed(t); /* its counts are known from now on */
            }
            if (t->phase != TRACK_WAITING) plan_begin(&t->plan);
            track_touch(t);
        }
        if (lacked_slot || summary_lost_active(s->ro, a->row))
            messages_wake_adapter(s, a); /* workers that wait for a lost version are sent ABORT */
    }
}

static void become_lost(step_t *s, track_t *t)
{
    heddle_error_t why;
    const adapter_row_t *a = t->of->row;
    if (t->bytes == BYTES_LOADING) t->held_until_ms = s->v.now.wall_ms;
    t->bytes = BYTES_LOST;
    track_changed(t);
    summary_lost_reason(t, &why);
    event_row_t *e = events_add(s->ev, EVENT_VERSION_LOST, t->adapter, t->version, NULL, s->v.now);
    /* As in `heddle status`: that an earlier version is gone, as when a job ends, is no failure. */
    bool is_failure = active_latest(a) == t->version || t->row == registry_newest(a);
    events_message(e, is_failure ? why.code : HEDDLE_OK, "%s", why.message);
    if (active_latest(a) == t->version) messages_wake_adapter(s, t->of); /* the same */
    if (!a->held || active_latest(a) != t->version) return;
    e = events_add(s->ev, EVENT_ADAPTER_HELD, t->adapter, t->version, NULL, s->v.now);
    events_message(e, why.code,
                   "held at a version that is lost: later ones stay staged until one is activated "
                   "by hand");
}

/* A committed version has neither publisher nor holder.  A worker at which its bytes arrived may still load
 * them; where none does, the version is lost. */
static void look_for_loader(step_t *s, track_t *t)
{
    uint64_t loaded_until_us = keep_loaded_until(s->v, t);
    if (!loaded_until_us) {
        become_lost(s, t);
        return;
    }
    t->bytes = BYTES_LOADING;
    error_text(t->last_holder, sizeof t->last_holder, keep_loader(s->v, t));
    track_sooner(t, loaded_until_us);
}

/* No process has all bytes.  Workers that fetch from each other may have all of them together, as long as
 * their parts grow: the lease in which the publisher may come back counts from the last growth. */
static void look_for_parts(step_t *s, track_t *t)
{
    uint64_t now_us = s->v.now.us;
    if (t->bytes == BYTES_THERE) {
        t->bytes = BYTES_MISSING;
        t->sourceless_us = now_us;
        t->held_until_ms = s->v.now.wall_ms;
    }
    if (t->bytes > BYTES_MISSING) return; /* its loss was said; only a holder ends that */
    /* When a worker last got further than any before it, if two or more have a part; 0: they have not.
     * One alone has nothing to fetch from, and others that come as far as the first was bring nothing new. */
    uint32_t count = 0;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        count += c->token && copy_is_sent(c) && c->bytes_done;
    }
    uint64_t grown_us = count > 1 ? t->grown_us : 0;
    if (!grown_us || now_us >= grown_us + s->ro->lease_us) {
        t->bytes = BYTES_MISSING;
        return;
    }
    t->bytes = BYTES_GROWING;
    if (grown_us > t->sourceless_us) t->sourceless_us = grown_us;
    track_sooner(t, grown_us + s->ro->lease_us);
}

/* A publisher that left does not come back.  One whose session was lost has a lease to come back with the
 * bytes. */
static bool has_lost_its_source(const track_t *t, instant_t now)
{
    bool is_gone_for_good =
        t->plan.publisher.state == PUBLISHER_LEFT || now.us >= t->sourceless_us + t->of->ro->lease_us;
    return t->bytes > BYTES_GROWING && is_gone_for_good;
}

/* A worker that had staged the version may come back with the bytes, as after a cut of the network.  So the
 * version is lost until then, and fails only where no worker ever had it. */
static bool fails_without_source(const track_t *t, instant_t now)
{
    return t->staged_by == STAGED_NOWHERE && has_lost_its_source(t, now);
}

static ruling_t ruling_of(const track_t *t, instant_t now)
{
    rule_t rule = {.activation = t->row->activation,
                   .is_adapter_held = t->of->row->held,
                   .is_late = t->is_late,
                   .was_staged = t->staged_by == STAGED_BY_UNIT,
                   .has_lost_source = fails_without_source(t, now)};
    return rule_apply(&rule, &t->tally);
}

/* The deadline of a version that was decided has passed.  The version goes on, so it does not fail.  But its
 * publisher ends with `deadline`, so each worker that it misses gets an event.  A worker that reported why it
 * does not serve the version has one already.  Of an operator's decision the publisher awaits no switch. */
static void note_late(step_t *s, const track_t *t)
{
    const version_row_t *row = t->row;
    if (row->state != VERSION_COMMITTED || rule_is_by_operator(row->activation)) return;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        if (!c->is_eligible || !c->token || c->has_reached || c->code) continue;
        bool is_switching = copy_holds(c);
        event_row_t *e = events_add(s->ev, is_switching ? EVENT_ACTIVATE_FAILED : EVENT_STAGE_FAILED,
                                    t->adapter, t->version, c->worker, s->v.now);
        e->decision = row->decision;
        events_message(e, HEDDLE_ERR_DEADLINE, "%s: has not %s within %llu ms, and goes on", copy_phase(c),
                       is_switching ? "said that it switched" : "staged it",
                       (unsigned long long)row->asked_ms);
    }
}

/* Workers at which the active version failed for a passing reason try again, when their time has come.  One
 * that cannot be sent it then, as it fetches another one first, is looked at again a little later. */
static void look_at_failed(step_t *s, track_t *t)
{
    uint64_t now_us = s->v.now.us, next_us = CLOCK_NEVER;
    bool is_active = active_latest(t->of->row) == t->version;
    if (!is_active || t->retry_us == CLOCK_NEVER || !track_has_source(t)) return;
    for (size_t i = 0; t->retry_us <= now_us && i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        if (c->state != COPY_FAILED || !c->retry_us) continue;
        member_t *m = membership_by_token(s->v.members, c->token);
        if (m && active_for(t->of->row, m) != t->version) continue;
        if (m && c->retry_us <= now_us) messages_wake_worker(s, t->of, m);
        if (m && c->state == COPY_FAILED) next_us = clock_earlier(next_us, c->retry_us);
    }
    if (t->retry_us <= now_us) t->retry_us = CLOCK_NEVER;
    if (next_us != CLOCK_NEVER) track_retry(t, next_us, now_us);
    track_sooner(t, t->retry_us);
}

/* The workers of before the broker's start have come back, as far as it remembers them.  Each is looked at
 * once. */
static bool workers_are_back(step_t *s)
{
    const registry_t *r = s->v.registry;
    if (!r->worker_count || s->ro->is_roster_short) return false;
    for (; !s->ro->is_settled && s->ro->back_count < r->worker_count; s->ro->back_count++)
        if (!member_is_ready(membership_worker(s->v.members, r->workers[s->ro->back_count]->name)))
            return false;
    return true;
}

/* After a start: waits until workers had the time to say that they fetch the version.  If none does, the
 * rollout begins anew. */
static void await_fetchers(step_t *s, track_t *t)
{
    uint64_t end_us = s->ro->settled_us + s->ro->lease_us / 2;
    bool are_back = track_is_whole(t) && workers_are_back(s);
    if (!s->ro->is_settled && s->v.now.us < end_us && !are_back) {
        track_sooner(t, end_us);
        return;
    }
    t->awaits_fetchers = false;
    bool is_anew = t == track_staging(t->of) && t->phase == TRACK_BEGUN && plan_is_idle(&t->plan);
    if (is_anew) plan_begin_anew(&t->plan);
    if (is_anew && track_begin(t, s->v.members)) messages_announce(s, t);
    messages_wake_adapter(s, t->of);
}

/* One version is looked at, because something of it changed or its time has come.  Notes when it must be
 * looked at next without any event. */
static void look_at(step_t *s, track_t *t)
{
    uint64_t now_us = s->v.now.us;
    bool is_staging = t->row && t->row->state == VERSION_STAGING;
    if (track_is_ended(t)) return;
    if (t->awaits_fetchers) await_fetchers(s, t);

    /* Its bytes: there, in parts, missing, still being loaded by a worker, or lost. */
    if (track_is_served(t) || track_holder_count(t)) {
        if (!track_holder_count(t)) error_text(t->last_holder, sizeof t->last_holder, t->row->writer);
        if (t->bytes != BYTES_THERE) {
            t->bytes = BYTES_THERE;
            track_changed(t);
            messages_wake_adapter(s, t->of); /* those that waited for a source */
        }
    } else {
        look_for_parts(s, t);
        bool may_be_lost = t->bytes > BYTES_GROWING && t->bytes != BYTES_LOST && s->ro->is_settled;
        if (may_be_lost && !is_staging) look_for_loader(s, t);
        else if (may_be_lost && t->staged_by && has_lost_its_source(t, s->v.now)) become_lost(s, t);
    }
    if (t->tally.units && t->staged_by != STAGED_BY_UNIT) took_staged(t, s->v.members);
    if (t->tally.units) t->staged_by = STAGED_BY_UNIT;
    else if (!t->staged_by && track_holder_count(t)) t->staged_by = STAGED_BY_WORKER;

    /* Its deadline, and whether all that its rule waits for has happened. */
    if (!t->is_late && now_us >= t->deadline_us) {
        t->is_late = true;
        track_changed(t);
        if (is_staging) trust_late(s, t);
        note_late(s, t);
    }
    bool is_begun = is_staging && s->ro->is_settled && t->phase == TRACK_BEGUN;
    if (is_begun && ruling_of(t, s->v.now).is_staged) {
        t->phase = TRACK_STAGED;
        events_add(s->ev, EVENT_VERSION_STAGED, t->adapter, t->version, NULL, s->v.now);
    }

    look_at_failed(s, t);
    fetches_look(s, t);
    if (!t->is_late) track_sooner(t, t->deadline_us);
    if (is_staging && t->bytes == BYTES_MISSING) {
        uint64_t end_us = t->sourceless_us + s->ro->lease_us;
        if (end_us > now_us) track_sooner(t, end_us);
    }
}

/* Only adapters of which something changed, or that are due, are looked at.  So a turn of the loop costs as
 * much as has changed, not as much as there is; nothing, when nothing changed and nothing is due. */
void rollout_look_at_touched(step_t *s)
{
    rollout_t *ro = s->ro;
    uint64_t now_us = s->v.now.us;
    if (now_us < rollout_deadline(ro)) return;
    if (!ro->is_settled && now_us >= s->v.members->grace_end_us) end_settling(s);
    for (size_t i = 0; i < ro->adapter_count; i++)
        if (ro->adapters[i]->due_us <= now_us) tracks_touch(ro->adapters[i]);
    for (adapter_rollout_t *a = ro->touched; a; a = a->next) {
        a->due_us = CLOCK_NEVER;
        for (size_t i = 0; i < a->track_count; i++) look_at(s, a->tracks[i]);
        keep_look(s, a);
    }
    ro->due_us = ro->is_settled ? CLOCK_NEVER : s->v.members->grace_end_us;
    for (size_t i = 0; i < ro->adapter_count; i++)
        ro->due_us = clock_earlier(ro->due_us, ro->adapters[i]->due_us);
}

/* ---- deciding ---- */

/* The error names the first worker that failed, because one rejection fails the version. */
static void fail_rejected(const track_t *t, instant_t now, outbox_t *out)
{
    const adapter_row_t *a = t->of->row;
    const copy_row_t *bad = NULL;
    for (size_t i = 0; !bad && i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        if (rule_counts(&t->tally, c->is_eligible, c->token != 0) && c->state == COPY_FAILED) bad = c;
    }
    heddle_error_t e;
    error_fail(&e, bad->code, "%s@%llu failed at %s in phase %s: %s", a->name, (unsigned long long)t->version,
               bad->worker, bad->phase, copy_message(bad));
    error_where(&e, a->name, t->version, bad->worker, bad->phase);
    decision_end_version(a, t->row, VERSION_FAILED, &e, now, out);
}

/* "w2 in phase fetch, w5 in phase announce (no message for 2.9 s) and 3 others; w2 got nothing from w5 for
 * 2.1 s" */
static void name_late(const track_t *t, view_t v, buf_t *missing)
{
    char text[700], time[16];
    listing_t list = {.text = text, .size = sizeof text, .most = 3};
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        if (!rule_counts(&t->tally, c->is_eligible, c->token != 0) || copy_holds(c)) continue;
        char queued[HEDDLE_NAME_MAX + 48] = "", silent[48] = "";
        const member_t *m = membership_by_token(v.members, c->token);
        if (c->behind && c->state == COPY_ANNOUNCED)
            text_printf(queued, sizeof queued, " (queued behind %s@%llu)", t->adapter,
                        (unsigned long long)c->behind);
        if (m && member_is_silent(v.members, m, v.now.us)) {
            units_ms_text((double)member_silent_ms(m, v.now.us), time);
            text_printf(silent, sizeof silent, " (no message for %s)", time);
        }
        listing_add(&list, "%s in phase %s%s%s", c->worker, copy_phase(c), queued, silent);
    }
    buf_add_text(missing, listing_text(&list));
    standstill_t still;
    if (!trust_standstill(t, v.members, v.now, &still)) return;
    units_ms_text((double)(v.now.us - still.worker->moved_us) / 1000, time);
    buf_printf(missing, "; %s got nothing from %s for %s", still.worker->worker, still.source->name, time);
}

static void fail_late(const track_t *t, view_t v, outbox_t *out)
{
    const adapter_row_t *a = t->of->row;
    heddle_error_t e;
    buf_t missing = {0};
    name_late(t, v, &missing);
    unsigned long long ms = t->row->asked_ms;
    uint32_t present = tally_present(&t->tally, false), eligible = tally_present(&t->tally, true);
    if (!present)
        error_fail(&e, HEDDLE_ERR_NO_WORKERS, "no worker took %s@%llu within %llu ms", a->name,
                   (unsigned long long)t->version, ms);
    else
        error_fail(&e, HEDDLE_ERR_DEADLINE, "%u of %u workers staged %s@%llu within %llu ms; missing: %s",
                   tally_holders(&t->tally, eligible > 0), eligible ? eligible : present, a->name,
                   (unsigned long long)t->version, ms, missing.bytes ? buf_text(&missing) : "every worker");
    buf_fini(&missing);
    error_where(&e, a->name, t->version, NULL, "stage");
    decision_end_version(a, t->row, VERSION_FAILED, &e, v.now, out);
}

static void fail_lost(const track_t *t, instant_t now, outbox_t *out)
{
    const adapter_row_t *a = t->of->row;
    heddle_error_t e;
    /* Where its link was cut, the publisher may be well, and have the bytes. */
    bool has_left = t->plan.publisher.state == PUBLISHER_LEFT;
    error_fail(&e, HEDDLE_ERR_VERSION_LOST, "the publisher of %s@%llu %s, and no worker has staged it",
               a->name, (unsigned long long)t->version, has_left ? "has left" : "is not connected any more");
    error_where(&e, a->name, t->version, NULL, "fetch");
    decision_end_version(a, t->row, VERSION_FAILED, &e, now, out);
}

/* Commits, fails, or supersedes the version that is being rolled out; or leaves it, if its rule still
 * waits. */
static void decide_staging(const track_t *t, view_t v, outbox_t *out)
{
    instant_t now = v.now;
    const adapter_row_t *a = t->of->row;
    ruling_t ruling = ruling_of(t, now);
    switch (ruling.verdict) {
    case RULE_DECIDE: decision_by_rule(a, t->row, ruling.scope, now, out); break;
    case RULE_FAIL:
        if (ruling.reason == RULE_REJECTED) fail_rejected(t, now, out);
        else if (ruling.reason == RULE_LATE) fail_late(t, v, out);
        else fail_lost(t, now, out);
        break;
    case RULE_WAIT:
        /* A broker that starts again has forgotten its holders, and must not fail it for their absence. */
        if (ruling.awaits_operator && !t->row->staged_ms) decision_note_staged(a, t->row, now, out);
        if (!registry_waiting(a)) break;
        /* A newer version waits for this one while a worker is fetching it, and there is a source. */
        if (!t->is_late && track_has_source(t) && t->tally.out) return;
        decision_supersede(a, t->row, registry_waiting(a)->version, now, out);
        break;
    }
}

/* A version that waits fails as if it were being rolled out: at its deadline, or without its bytes. */
static void decide_waiting(const track_t *t, instant_t now, outbox_t *out)
{
    const adapter_row_t *a = t->of->row;
    heddle_error_t e;
    if (!t->is_late) {
        if (fails_without_source(t, now)) fail_lost(t, now, out);
        return;
    }
    error_fail(&e, HEDDLE_ERR_DEADLINE, "%s@%llu waited for %s@%llu, which was not decided within %llu ms",
               a->name, (unsigned long long)t->version, a->name,
               (unsigned long long)registry_staging(a)->version, (unsigned long long)t->row->asked_ms);
    error_where(&e, a->name, t->version, NULL, "announce");
    decision_end_version(a, t->row, VERSION_FAILED, &e, now, out);
}

/* A loss is recorded, so that no restart says it again or gives another reason; so is its end. */
static void note_losses(const adapter_rollout_t *a, instant_t now, outbox_t *out)
{
    for (size_t i = 0; i < a->track_count; i++) {
        const track_t *t = a->tracks[i];
        heddle_error_t why;
        if (track_is_ended(t)) continue;
        bool is_news = t->bytes == BYTES_LOST && !t->row->lost_ms;
        if (is_news) summary_lost_reason(t, &why);
        if (is_news || (t->bytes == BYTES_THERE && t->row->lost_ms))
            decision_note_loss(a->row, t->row, is_news ? why.message : "", now, out);
    }
}

/* Adds records only for adapters that changed, and as long as the outbox has room.  The caller repeats
 * this after each commit. */
void rollout_decide_touched(const rollout_t *ro, view_t v, outbox_t *out)
{
    if (!ro->is_settled) return;
    for (const adapter_rollout_t *a = ro->touched; a && outbox_has_room(out, RECORDS_AT_ONCE); a = a->next) {
        const track_t *staging = track_staging(a), *waiting = track_waiting(a);
        if (staging) decide_staging(staging, v, out);
        if (waiting) decide_waiting(waiting, v.now, out);
        /* A commit in this same turn made the decision that would be repeated here. */
        bool has_decided = !decision_is_behind(a->row);
        for (int k = 0; !has_decided && k < out->record_count; k++)
            has_decided =
                out->records[k].kind == RECORD_DECISION && !strcmp(out->records[k].adapter, a->row->name);
        if (!has_decided) decision_renew(a->row, v.now, out);
        note_losses(a, v.now, out);
        keep_decide(a, v, out);
    }
}

/* ---- after a record is durable ---- */

/* A VERSION record was applied.  The adapter's writer has the bytes, unless its session ended while the
 * record was written. */
static void follow_version(step_t *s, const adapter_row_t *a, const version_row_t *row,
                           const msg_region_t *region)
{
    event_row_t *e = events_add(s->ev, EVENT_VERSION_PUBLISHED, a->name, row->version, row->writer, s->v.now);
    e->bytes = (int64_t)row->data_bytes;
    const member_t *publisher = membership_by_token(s->v.members, a->writer.token);
    track_t *t = track_add(s->ro, a, row->version, s->v.now.us);
    if (!t) {
        s->ro->is_incomplete = true;
        return;
    }
    /* A publisher has few regions.  Those that it may reuse by an earlier RELEASE count as overwritten
     * from now on: the new version needs one of them. */
    for (size_t i = 0; t->of->tracks[i] != t; i++) {
        track_t *earlier = t->of->tracks[i];
        if (earlier->plan.publisher.state == PUBLISHER_RELEASED)
            track_set_publisher(earlier, earlier->plan.publisher.token, PUBLISHER_WITHOUT);
    }
    track_set_publisher(t, publisher ? publisher->token : 0, publisher ? PUBLISHER_SERVES : PUBLISHER_LOST);
    if (publisher) track_offer(t, publisher, region);
    else t->former_publisher = a->writer.token;
    t->deadline_us = s->v.now.us + row->deadline_ms * 1000;
}

/* A hold that ends is noted at each version that waited meanwhile, for `heddle versions`.  One that moves to
 * another version goes on. */
static void follow_hold(adapter_rollout_t *a)
{
    const adapter_row_t *row = a->row;
    adapter_hold_t *hold = &a->hold;
    if (row->held) {
        if (!hold->version) hold->since_ms = row->decided_ms;
        hold->version = active_latest(row);
        return;
    }
    hold->until_ms = row->decided_ms;
    for (size_t i = 0; hold->version && i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        uint64_t until_ms = t->row ? registry_until_ms(t->row) : 0;
        if (!until_ms || until_ms > hold->since_ms) t->hold = *hold;
    }
    *hold = (adapter_hold_t){0};
}

/* All copies follow the decision before any COMMIT is sent, because what a worker is sent depends on the
 * states of its copies. */
static void follow_decision(step_t *s, const adapter_row_t *row)
{
    track_t *active = track_add(s->ro, row, active_latest(row), s->v.now.us);
    if (!active) {
        s->ro->is_incomplete = true;
        return;
    }
    const adapter_rollout_t *a = active->of;
    bool was_held = a->hold.version != 0;
    follow_hold(active->of);
    took_decided(active, s->v.members);

    /* Operators see three things in the events: which version is active, that it is held now, or that a
     * hold has ended. */
    event_row_t *e = events_add(s->ev, EVENT_VERSION_ACTIVATED, row->name, active->version, NULL, s->v.now);
    e->decision = row->decision;
    if (row->held) {
        e = events_add(s->ev, EVENT_ADAPTER_HELD, row->name, active->version, NULL, s->v.now);
        events_message(e, HEDDLE_OK, "held by %s", row->held_by);
    } else if (was_held) {
        events_add(s->ev, EVENT_ADAPTER_RESUMED, row->name, active->version, NULL, s->v.now);
    }

    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        for (size_t k = 0; k < t->copy_count; k++) {
            copy_row_t *c = track_walk(t, k);
            /* Copies that were overtaken before they were switched to are kept like those that were
             * served. */
            if (t == active && c->has_reached) copy_reached(t, c, false);
            else if (c->state == COPY_COMMITTED) copy_kept(t, c, s->v.now);
        }
        if (!track_is_ended(t)) track_changed(t); /* another one is active, or the hold is another */
    }

    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        member_t *m = s->v.members->workers[i];
        if (!member_subscribes(m, row->name) || active_for(row, m) != active->version) continue;
        member_sub_t *sub = member_sub(m, row->name);
        serving_fell_behind(&sub->serving, row->decided_ms);
        messages_decided(s, active, m);
    }
}

/* A version has ended: every worker with a copy drops it, by RETIRE if it was decided and by ABORT if it
 * was not. */
static void follow_state(step_t *s, const adapter_row_t *row, const record_t *record)
{
    event_type_t type = record->state == VERSION_FAILED    ? EVENT_VERSION_FAILED
                        : record->state == VERSION_RETIRED ? EVENT_VERSION_RETIRED
                                                           : EVENT_VERSION_SUPERSEDED;
    event_row_t *e = events_add(s->ev, type, row->name, record->version, record->worker, s->v.now);
    events_message(e, record->code, "%s", record->message);
    track_t *t = track_find(s->ro, row->name, record->version);
    if (!t) return;
    adapter_rollout_t *a = t->of;
    for (size_t i = 0; t->row && i < t->copy_count; i++) {
        member_t *m = membership_by_token(s->v.members, track_walk(t, i)->token);
        if (!m) continue;
        member_clear_fetch(m, t->adapter, t->version);
        copies_go_on(a, m, t->version, s->v.now.us);
        if (t->row->state == VERSION_RETIRED) messages_send_retire(s, t->adapter, t->version, m);
        else messages_send_abort(s, t->adapter, t->row, m);
    }
    track_changed(t);
    if (record->state == VERSION_FAILED)
        messages_wake_adapter(s, a); /* workers that left the active version for this one go back to it */
}

/* A version begins when no other one of its adapter is in the rollout: at its own record, or at the one that
 * decided or ended the version before it. */
static void begin_next(step_t *s, const adapter_row_t *row)
{
    const adapter_rollout_t *a = tracks_adapter(s->ro, row->name);
    track_t *t = a ? track_staging(a) : NULL;
    if (t && t->phase == TRACK_WAITING && track_begin(t, s->v.members)) messages_announce(s, t);
}

void rollout_apply(step_t *s, const record_t *record)
{
    const adapter_row_t *row = record->adapter ? registry_adapter(s->v.registry, record->adapter) : NULL;
    if (!row) return;
    track_t *t;
    switch (record->kind) {
    case RECORD_VERSION:
        follow_version(s, row, registry_version(row, record->version), &record->region);
        begin_next(s, row);
        break;
    case RECORD_DECISION:
        follow_decision(s, row);
        begin_next(s, row);
        break;
    case RECORD_STATE:
        follow_state(s, row, record);
        begin_next(s, row);
        break;
    case RECORD_FLOOR: /* the latest decision may have to be made anew */
        if ((t = track_find(s->ro, row->name, active_latest(row))) != NULL) track_touch(t);
        break;
    case RECORD_FORGET:
        if ((t = track_find(s->ro, row->name, record->version)) != NULL) t->row = NULL;
        break;
    default: break;
    }
}

/* ---- while the store refuses records ---- */

void rollout_look_again(rollout_t *ro)
{
    for (size_t i = 0; i < ro->adapter_count; i++) tracks_touch(ro->adapters[i]);
}

/* Only noted here: the store still refuses records, so nothing can be decided about these versions. */
void rollout_note_refused(rollout_t *ro, const char *adapter, const uint64_t *served, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        track_t *t = track_find(ro, adapter, served[i]);
        if (t) t->is_publisher_refused = true;
    }
}

/* A publisher that came back while the store refused records could not be admitted.  Its versions get one
 * more lease from now on, so that the publisher can come again. */
void rollout_resume(rollout_t *ro, uint64_t now_us)
{
    for (size_t i = 0; i < ro->adapter_count; i++)
        for (size_t k = 0; k < ro->adapters[i]->track_count; k++) {
            track_t *t = ro->adapters[i]->tracks[k];
            if (!t->is_publisher_refused) continue;
            if (t->bytes > BYTES_GROWING && t->sourceless_us < now_us) t->sourceless_us = now_us;
            t->is_publisher_refused = false;
            track_touch(t);
        }
}
