/* SPDX-License-Identifier: Apache-2.0 */
/* Policy, records and time: when a version is decided, when it fails, and who is told. */
#include "broker/rollout/rollout_part.h"

#include "core/clock.h"
#include "core/errors.h"

#include <heddle/publisher.h>

#define RECORDS_AT_ONCE (REGISTRY_END_RECORDS * (2 + (int)RETIRE_AT_ONCE) + 1)

static bool same_adapter(const track_t *t, const char *adapter) { return !strcmp(t->adapter, adapter); }

/* ---- time ---- */

static void sooner(track_t *t, uint64_t at_us)
{
    if (at_us < t->due_us) t->due_us = at_us;
}

/* Before settling ended some members may have been missing: a rollout waits for the subscribers that are
 * READY now.  Of a decided version, those that have it or are on their way to it count. */
static void settle(step_t *s, const adapter_row_t *a, track_t *t)
{
    for (size_t i = 0; i < t->copy_count; i++) t->copies[i]->is_eligible |= t->copies[i]->token != 0;
    const version_row_t *row = registry_staging(a);
    if (!row || row->version != t->version) return;
    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        const member_t *m = s->v.members->workers[i];
        if (!member_is_ready(m) || !member_sub(m, a->name)) continue;
        copy_row_t *c = copy_add(t, m);
        if (c) c->is_eligible = true;
        else s->ro->is_incomplete = true;
    }
}

static void end_settling(step_t *s)
{
    s->ro->is_settled = true;
    for (size_t i = 0; i < s->ro->track_count; i++) {
        track_t *t = s->ro->tracks[i];
        settle(s, registry_adapter(s->v.registry, t->adapter), t);
        track_touch(s->ro, t);
    }
}

/* One of those who have it; when it has gone it was the last. */
static void note_holder(track_t *t, const version_row_t *row)
{
    const char *name = row->writer;
    t->is_loaded_alone = false;
    for (size_t i = 0; i < t->copy_count; i++)
        if (copy_holds(t->copies[i])) name = t->copies[i]->worker;
    error_text(t->last_holder, sizeof t->last_holder, name);
}

/* Who loads it has its bytes, and is the last that does. */
static void note_loader(step_t *s, const version_row_t *row, track_t *t, uint64_t until_us)
{
    t->is_loaded_alone = true;
    error_text(t->last_holder, sizeof t->last_holder, keep_loader(s->ro, s->v, row, t));
    sooner(t, until_us);
}

static void say_lost(step_t *s, const adapter_row_t *a, track_t *t)
{
    heddle_error_t why;
    t->is_lost = true;
    if (t->is_loaded_alone) t->lost_ms = s->v.now.wall_ms;
    t->is_loaded_alone = false;
    track_touch(s->ro, t);
    rollout_lost_reason(t, &why);
    event_row_t *e = events_add(s->ev, EVENT_VERSION_LOST, t->adapter, t->version, NULL, s->v.now);
    events_say(e, why.code, "%s", why.message);
    if (!a->held || a->active != t->version) return;
    e = events_add(s->ev, EVENT_ADAPTER_HELD, t->adapter, t->version, NULL, s->v.now);
    events_say(e, why.code, "held at a version that is lost: later ones stay staged until one is activated "
                            "by hand");
}

static void look_at_sources(step_t *s, const adapter_row_t *a, const version_row_t *row, track_t *t)
{
    bool has_source = track_has_source(t);
    if (has_source) note_holder(t, row);
    if (has_source && t->sourceless_us) {
        t->sourceless_us = 0;
        t->is_lost = false;
        track_touch(s->ro, t);
        wake_adapter(s, a); /* those that waited for one */
    }
    if (!has_source && !t->sourceless_us) {
        t->sourceless_us = s->v.now.us;
        t->lost_ms = s->v.now.wall_ms;
    }
    if (has_source || t->is_lost || row->state != VERSION_COMMITTED || !s->ro->is_settled) return;
    uint64_t loaded_until_us = keep_loaded_until(s->ro, s->v, row, t);
    if (loaded_until_us) note_loader(s, row, t, loaded_until_us);
    else say_lost(s, a, t);
}

static void retry_failed(step_t *s, const adapter_row_t *a, track_t *t)
{
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        if (!c->token || c->state != COPY_FAILED || !c->retry_us) continue;
        member_t *m = membership_by_token(s->v.members, c->token);
        if (m && c->retry_us <= s->v.now.us) wake_member(s, m, a);
        else sooner(t, c->retry_us);
    }
}

static bool all_staged(const track_t *t)
{
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        if (c->is_eligible && c->token && !copy_holds(c)) return false;
    }
    return track_holder_count(t) > 0;
}

/* With policy `all` one that refused it is not passed over: that version fails. */
static bool is_staged(const version_row_t *row, const track_t *t)
{
    return row->activation == HEDDLE_ACTIVATION_ALL ? all_staged(t) : track_is_complete(t);
}

static void look_at(step_t *s, track_t *t)
{
    const adapter_row_t *a = registry_adapter(s->v.registry, t->adapter);
    const version_row_t *row = registry_version(a, t->version);
    t->due_us = CLOCK_NEVER;
    if (!row || t->is_ended) return;
    look_at_sources(s, a, row, t);
    if (!t->is_late && s->v.now.us >= t->deadline_us) {
        t->is_late = true;
        track_touch(s->ro, t);
    }
    if (!t->is_staged_said && row->state == VERSION_STAGING && is_staged(row, t)) {
        t->is_staged_said = true;
        events_add(s->ev, EVENT_VERSION_STAGED, t->adapter, t->version, NULL, s->v.now);
    }
    if (a->active == t->version) retry_failed(s, a, t);
    if (!t->is_late) sooner(t, t->deadline_us);
    if (row->state == VERSION_STAGING && t->sourceless_us) {
        uint64_t end_us = t->sourceless_us + s->ro->lease_us;
        if (end_us <= s->v.now.us) track_touch(s->ro, t);
        else sooner(t, end_us);
    }
}

static void look_at_all(step_t *s)
{
    const rollout_t *ro = s->ro;
    for (size_t i = 0, first = 0; i < ro->track_count; first = i) {
        const char *adapter = ro->tracks[first]->adapter;
        bool is_looked_at = false;
        for (; i < ro->track_count && same_adapter(ro->tracks[i], adapter); i++) {
            if (!ro->tracks[i]->is_dirty && s->v.now.us < ro->tracks[i]->due_us) continue;
            look_at(s, ro->tracks[i]);
            is_looked_at = true;
        }
        if (is_looked_at) keep_look(s, registry_adapter(s->v.registry, adapter));
    }
}

void rollout_tick(rollout_t *ro, view_t v, events_t *ev, outbox_t *out)
{
    step_t s = {ro, v, ev, out};
    bool is_time = v.now.us >= ro->due_us || (!ro->is_settled && v.now.us >= ro->settle_end_us);
    if (!ro->is_dirty && !is_time) return;
    if (!ro->is_settled && v.now.us >= ro->settle_end_us) end_settling(&s);
    look_at_all(&s);
    ro->due_us = ro->is_settled ? CLOCK_NEVER : ro->settle_end_us;
    for (size_t i = 0; i < ro->track_count; i++)
        if (ro->tracks[i]->due_us < ro->due_us) ro->due_us = ro->tracks[i]->due_us;
}

/* ---- policy ---- */

static const copy_row_t *failed_eligible(const track_t *t)
{
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        if (c->is_eligible && c->token && c->state == COPY_FAILED) return c;
    }
    return NULL;
}

static bool is_met(const version_row_t *row, const track_t *t)
{
    if (row->activation == HEDDLE_ACTIVATION_ALL) return all_staged(t);
    return row->activation == HEDDLE_ACTIVATION_AS_READY && track_holder_count(t) > 0;
}

/* Past its deadline: a version that waits for somebody's hand stays where it was staged. */
static bool may_stay(const adapter_row_t *a, const version_row_t *row, const track_t *t)
{
    return track_holder_count(t) > 0 && (a->held || row->activation != HEDDLE_ACTIVATION_ALL);
}

static void fail_rejected(const adapter_row_t *a, const version_row_t *row, const copy_row_t *bad,
                          instant_t now, outbox_t *out)
{
    heddle_error_t e;
    error_fail(&e, bad->code, "%s@%llu failed at %s in phase %s: %s", a->name,
               (unsigned long long)row->version, bad->worker, bad->phase, bad->message);
    error_where(&e, a->name, row->version, bad->worker, bad->phase);
    registry_decide_end(a, row, VERSION_FAILED, &e, now, out);
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
                    c->token ? copy_phase(c) : c->phase);
        used += strlen(text + used);
        named++;
    }
    if (others) text_printf(text + used, size - used, " and %u others", others);
}

static void fail_late(const adapter_row_t *a, const version_row_t *row, const track_t *t, instant_t now,
                      outbox_t *out)
{
    char missing[600] = "";
    heddle_error_t e;
    name_missing(t, missing, sizeof missing);
    unsigned long long ms = row->asked_ms;
    uint32_t present = track_present(t, false), eligible = track_present(t, true);
    if (!present)
        error_fail(&e, HEDDLE_ERR_NO_WORKERS, "no worker took %s@%llu within %llu ms", a->name,
                   (unsigned long long)row->version, ms);
    else
        error_fail(&e, HEDDLE_ERR_DEADLINE, "%u of %u workers staged %s@%llu within %llu ms; missing: %s",
                   track_holder_count(t), eligible ? eligible : present, a->name,
                   (unsigned long long)row->version, ms, missing[0] ? missing : "every worker");
    error_where(&e, a->name, row->version, NULL, "stage");
    registry_decide_end(a, row, VERSION_FAILED, &e, now, out);
}

static void fail_lost(const adapter_row_t *a, const version_row_t *row, instant_t now, outbox_t *out)
{
    heddle_error_t e;
    error_fail(&e, HEDDLE_ERR_VERSION_LOST,
               "the publisher of %s@%llu is gone and no worker has staged it", a->name,
               (unsigned long long)row->version);
    error_where(&e, a->name, row->version, NULL, "fetch");
    registry_decide_end(a, row, VERSION_FAILED, &e, now, out);
}

/* Somebody is on his way to it, and has where to get it from. */
static bool is_moving(const track_t *t)
{
    for (size_t i = 0; !t->is_late && track_has_source(t) && i < t->copy_count; i++)
        if (copy_in_flight(t->copies[i]) && t->copies[i]->announced_us) return true;
    return false;
}

static bool has_lost_its_source(const rollout_t *ro, const track_t *t, instant_t now)
{
    return t->sourceless_us && (t->has_left || now.us >= t->sourceless_us + ro->lease_us);
}

static void decide_staging(const rollout_t *ro, const adapter_row_t *a, const version_row_t *row,
                           const track_t *t, instant_t now, outbox_t *out)
{
    const copy_row_t *bad = row->activation == HEDDLE_ACTIVATION_ALL ? failed_eligible(t) : NULL;
    if (bad) fail_rejected(a, row, bad, now, out);
    else if (!a->held && is_met(row, t)) registry_decide_commit(a, row, now, out);
    else if (t->is_late && !may_stay(a, row, t)) fail_late(a, row, t, now, out);
    else if (has_lost_its_source(ro, t, now)) fail_lost(a, row, now, out);
    else if (registry_waiting(a) && !is_moving(t))
        registry_decide_end(a, row, VERSION_SUPERSEDED, NULL, now, out);
}

static void fail_waiting(const adapter_row_t *a, const version_row_t *row, instant_t now, outbox_t *out)
{
    unsigned long long first = registry_staging(a)->version;
    heddle_error_t e;
    error_fail(&e, HEDDLE_ERR_DEADLINE, "%s@%llu waited for %s@%llu, which was not decided within %llu ms",
               a->name, (unsigned long long)row->version, a->name, first,
               (unsigned long long)row->asked_ms);
    error_where(&e, a->name, row->version, NULL, "announce");
    registry_decide_end(a, row, VERSION_FAILED, &e, now, out);
}

static void decide_waiting(const rollout_t *ro, const adapter_row_t *a, instant_t now, outbox_t *out)
{
    const version_row_t *row = registry_waiting(a);
    const track_t *t = row ? rollout_track(ro, a->name, row->version) : NULL;
    if (!t) return;
    if (t->is_late) fail_waiting(a, row, now, out);
    else if (has_lost_its_source(ro, t, now)) fail_lost(a, row, now, out);
}

static bool has_decided(const adapter_row_t *a, const outbox_t *out)
{
    for (int i = 0; i < out->record_count; i++)
        if (out->records[i].kind == RECORD_DECISION && !strcmp(out->records[i].adapter, a->name)) return true;
    return false;
}

void rollout_decide(const rollout_t *ro, view_t v, outbox_t *out)
{
    if (!ro->is_settled || !ro->is_dirty) return;
    const char *looked_at = "";
    for (size_t i = 0; i < ro->track_count && outbox_has_room(out, RECORDS_AT_ONCE); i++) {
        const track_t *t = ro->tracks[i];
        if (!t->is_dirty || same_adapter(t, looked_at)) continue;
        looked_at = t->adapter;
        const adapter_row_t *a = registry_adapter(v.registry, t->adapter);
        const version_row_t *row = registry_staging(a);
        const track_t *staging = row ? rollout_track(ro, a->name, row->version) : NULL;
        if (staging) decide_staging(ro, a, row, staging, v.now, out);
        decide_waiting(ro, a, v.now, out);
        if (registry_is_behind(a) && !has_decided(a, out)) registry_decide_again(a, v.now, out);
        keep_decide(ro, v, a, out);
    }
}

/* ---- after a record is durable ---- */

/* Copies of versions that were overtaken before they were switched to are kept like those that were
 * served. */
static void put_back(rollout_t *ro, const adapter_row_t *a, instant_t now)
{
    for (size_t i = track_first(ro, a->name); i < ro->track_count && same_adapter(ro->tracks[i], a->name);
         i++) {
        track_t *t = ro->tracks[i];
        for (size_t k = 0; t->version != a->active && k < t->copy_count; k++)
            if (t->copies[k]->state == COPY_COMMITTED) copy_move(t->copies[k], COPY_KEPT, now);
        track_touch(ro, t);
    }
}

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

static void apply_decision(step_t *s, const adapter_row_t *a, bool was_held)
{
    track_t *t = track_add(s->ro, a->name, a->active, s->v.now.us);
    if (!t) {
        s->ro->is_incomplete = true;
        return;
    }
    say_decision(s, a, was_held);
    put_back(s->ro, a, s->v.now);
    for (size_t i = 0; i < t->copy_count; i++) t->copies[i]->has_reached = false;
    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        member_t *m = s->v.members->workers[i];
        if (!member_is_ready(m) || !member_sub(m, a->name)) continue;
        copy_row_t *c = copy_of(t, m);
        if (!copy_holds(c)) {
            bool is_coming = c && copy_in_flight(c) && c->told_us;
            /* What was decided it finishes, whatever comes after it, but for what was taken back: nobody is
             * to switch to that any more, whether or not he has what it went back to. */
            if (is_coming || registry_is_step_back(a)) send_commit(s, a, m);
            wake_member(s, m, a);
            continue;
        }
        if (c->state != COPY_ACTIVE) copy_move(c, COPY_COMMITTED, s->v.now);
        send_commit(s, a, m);
    }
}

static void end_copies(step_t *s, const track_t *t, const version_row_t *row)
{
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        member_t *m = c->token ? membership_by_token(s->v.members, c->token) : NULL;
        if (!m) continue;
        member_fetched(m, t->adapter, t->version);
        if (row->state == VERSION_RETIRED) send_retire(s, t->adapter, t->version, m);
        else send_abort(s, t->adapter, row, m);
    }
}

static void apply_state(step_t *s, const adapter_row_t *a, const record_t *record)
{
    event_type_t type = record->state == VERSION_FAILED    ? EVENT_VERSION_FAILED
                        : record->state == VERSION_RETIRED ? EVENT_VERSION_RETIRED
                                                           : EVENT_VERSION_SUPERSEDED;
    event_row_t *e = events_add(s->ev, type, a->name, record->version, record->worker, s->v.now);
    events_say(e, record->code, "%s", record->message);
    track_t *t = rollout_track(s->ro, a->name, record->version);
    const version_row_t *row = registry_version(a, record->version);
    if (!t) return;
    if (row) end_copies(s, t, row);
    t->is_ended = true;
    track_touch(s->ro, t);
    track_forget_ended(s->ro, a->name);
    if (record->state == VERSION_FAILED)
        wake_adapter(s, a); /* who left the active version for this one goes back to it */
}

static void touch_active(rollout_t *ro, const adapter_row_t *a)
{
    track_t *t = a->active ? rollout_track(ro, a->name, a->active) : NULL;
    if (t) track_touch(ro, t);
}

void rollout_apply(rollout_t *ro, view_t v, const record_t *record, bool was_held, events_t *ev,
                   outbox_t *out)
{
    step_t s = {ro, v, ev, out};
    const adapter_row_t *a = record->adapter ? registry_adapter(v.registry, record->adapter) : NULL;
    if (record->kind == RECORD_VERSION) begin_published(&s, a, record->version);
    if (record->kind == RECORD_FLOOR) touch_active(ro, a);
    if (record->kind == RECORD_DECISION) apply_decision(&s, a, was_held);
    if (record->kind == RECORD_STATE) apply_state(&s, a, record);
    if (record->kind == RECORD_DECISION || record->kind == RECORD_STATE) begin_next(&s, a);
}

/* ---- publishers ---- */

static uint64_t hash_bytes(uint64_t h, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

static uint64_t hash_number(uint64_t h, uint64_t n) { return hash_bytes(h, &n, sizeof n); }

#define SIGNED_ROWS 64u

/* What a publisher is told at once: the state, why, the first holder, and that everybody is there. */
static uint64_t urgent_signature(const rollout_sum_t *sum)
{
    uint64_t h = hash_bytes(0xcbf29ce484222325ull, sum->state, strlen(sum->state));
    h = hash_number(h, (uint64_t)(int64_t)sum->code);
    h = hash_number(h, sum->staged > 0);
    h = hash_number(h, sum->eligible && sum->staged >= sum->eligible);
    return hash_number(h, sum->eligible ? sum->active >= sum->eligible : sum->active > 0);
}

static uint64_t signature(const rollout_sum_t *sum, const missing_row_t *rows)
{
    uint64_t h = hash_number(urgent_signature(sum), sum->decision);
    h = hash_number(h, (uint64_t)sum->eligible << 32 | sum->staged);
    h = hash_number(h, (uint64_t)sum->active << 32 | sum->missing_count);
    for (uint32_t i = 0; i < sum->missing_count && i < SIGNED_ROWS; i++) {
        h = hash_bytes(h, rows[i].worker, strlen(rows[i].worker));
        h = hash_bytes(h, rows[i].phase, strlen(rows[i].phase));
        h = hash_number(h, (uint64_t)(int64_t)rows[i].code);
    }
    return h | 1; /* never 0: that is "nothing told yet" */
}

/* True: told, or nothing to tell; false: it waits for its time. */
static bool push(step_t *s, const adapter_row_t *a, const version_row_t *row, track_t *t,
                 const member_t *publisher)
{
    missing_row_t rows[SIGNED_ROWS];
    rollout_sum_t sum = rollout_sum(s->ro, a, row, rows, SIGNED_ROWS);
    uint64_t all = signature(&sum, rows), urgent = urgent_signature(&sum);
    if (all == t->pushed) return true;
    bool is_fresh =
        !t->pushed && !sum.staged && !strcmp(sum.state, "staging"); /* PUBLISHED said as much */
    bool is_urgent = urgent != t->pushed_state && !is_fresh;
    if (!is_urgent && s->v.now.us < t->push_us + ROLLOUT_PUSH_US) {
        sooner(t, t->push_us + ROLLOUT_PUSH_US);
        return false;
    }
    send_rollout(s->ro, a, row, publisher, s->out);
    t->pushed = all;
    t->pushed_state = urgent;
    t->push_us = s->v.now.us;
    return true;
}

/* The trainer may use its region again: another process has the bytes, and nobody whom the rollout waits
 * for is under way. */
static bool may_release(const track_t *t)
{
    return t->is_served && !t->is_released && (t->is_ended || track_is_complete(t));
}

static bool flush_track(step_t *s, track_t *t)
{
    const adapter_row_t *a = registry_adapter(s->v.registry, t->adapter);
    const version_row_t *row = registry_version(a, t->version);
    const member_t *publisher = t->publisher ? membership_by_token(s->v.members, t->publisher) : NULL;
    if (!publisher || !row) return true;
    if (t->is_restored && !t->is_ended && !s->ro->is_settled) return true; /* end_settling touches it */
    if (may_release(t)) send_release(s, t, publisher);
    if (t->is_ended) t->is_served = false;
    return push(s, a, row, t, publisher);
}

/* Those whose end was told only now. */
static void forget_told(rollout_t *ro)
{
    ro->is_crowded = false;
    for (size_t i = 0; i < ro->track_count;) {
        char adapter[HEDDLE_NAME_MAX + 1];
        error_text(adapter, sizeof adapter, ro->tracks[i]->adapter);
        track_forget_ended(ro, adapter);
        while (i < ro->track_count && !strcmp(ro->tracks[i]->adapter, adapter)) i++;
    }
}

void rollout_flush(rollout_t *ro, view_t v, events_t *ev, outbox_t *out)
{
    step_t s = {ro, v, ev, out};
    if (!ro->is_dirty) return;
    ro->is_dirty = false;
    for (size_t i = 0; i < ro->track_count; i++) {
        track_t *t = ro->tracks[i];
        if (t->is_dirty) t->is_dirty = !flush_track(&s, t);
        if (t->due_us < ro->due_us) ro->due_us = t->due_us;
        ro->is_dirty |= t->is_dirty;
    }
    if (ro->is_crowded) forget_told(ro);
}

void rollout_tell(const rollout_t *ro, view_t v, const char *adapter, uint64_t version,
                  const member_t *publisher, outbox_t *out)
{
    const adapter_row_t *a = registry_adapter(v.registry, adapter);
    const version_row_t *row = a ? registry_version(a, version) : NULL;
    if (row) send_rollout(ro, a, row, publisher, out);
}
