/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/sync_broker.h"

#include "core/errors.h"

/* --- announced -------------------------------------------------------------------------------- */

static void refuse_digest(step_t *st, const sync_entry_t *e, uint64_t decision, const digest_t *named,
                          const char *phase)
{
    char here[HEDDLE_DIGEST_TEXT], there[HEDDLE_DIGEST_TEXT];
    digest_text(&e->digest, here);
    digest_text(named, there);
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_DIGEST_MISMATCH,
               "the broker names version %llu with another digest than the one known here",
               (unsigned long long)e->version);
    error_where(&error, NULL, e->version, NULL, phase);
    error_contrast(&error, there, here);
    step_say_nack(st, e, decision, &error);
}

/* Only the newest few wait: the oldest of too many is refused. */
static void bound_waiting(step_t *st)
{
    sync_entry_t *oldest = NULL;
    uint32_t count = 0;
    for EACH(st->s, e) {
        if (e->state != SYNC_WAITING) continue;
        count++;
        if (!entry_is_named(st->s, e) && (!oldest || e->order < oldest->order)) oldest = e;
    }
    if (count <= SYNC_WAITING_MAX || !oldest) return;
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_LIMIT, "more than %u versions wait for a slot; this is the oldest",
               SYNC_WAITING_MAX);
    error_where(&error, NULL, oldest->version, NULL, "announce");
    step_say_nack(st, oldest, 0, &error);
    entry_forget(oldest);
}

static void take_deadline(step_t *st, sync_entry_t *e)
{
    uint64_t left = st->ev->deadline_us;
    e->deadline_us = left ? st->now + left + SYNC_GRACE_US : CLOCK_NEVER;
    e->patience_us = left && left / 4 < SYNC_SLOT_WAIT_US ? left / 4 : SYNC_SLOT_WAIT_US;
}

void heard_announce(step_t *st, sync_entry_t *e)
{
    sync_t *s = st->s;
    if (e && !digest_equal(&e->digest, &st->ev->digest)) {
        refuse_digest(st, e, 0, &st->ev->digest, "announce");
        return;
    }
    if (!e) {
        e = entries_add(s, st->ev->version, &st->ev->digest);
        e->order = ++s->order;
        if (s->decided.version == e->version) e->decision = s->decided.decision;
        bound_waiting(st);
    }
    take_deadline(st, e);
    e->starved = false;
    if (e->state == SYNC_FETCHING) step_act(st, SA_RESOURCE, e);
    else if (e->state == SYNC_STAGED || e->state == SYNC_KEPT) step_say_staged(st, e);
    else if (e->state == SYNC_ACTIVE) step_say_active(st, e);
}

/* --- decided ---------------------------------------------------------------------------------- */

/* A step back: what lies ahead of it is not to be served.  But an application that was offered a COMMIT may
 * have switched already: what it says of that is true, and heard. */
static void unname_ahead(sync_t *s, uint64_t version)
{
    for EACH(s, e)
        if (e->version > version && !entry_is_switching(s, e)) e->decision = 0;
}

/* Of what a later decision overtook, only a fetch that gets somewhere goes on. */
static void drop_unworthy(step_t *st, const sync_entry_t *named)
{
    for EACH(st->s, e) {
        if (e == named || !entry_is_overtaken(st->s, e)) continue;
        if (e->state == SYNC_WAITING) entry_forget(e);
        else if (e->state == SYNC_FETCHING && e->starved) step_leave(st, e);
    }
}

/* A decision greater than all before.  What is remembered is applied when its version is ready. */
static void decide(step_t *st, const decision_t *d)
{
    sync_t *s = st->s;
    s->decided = *d;
    sync_entry_t *named = entries_find(s, d->version), *active = entries_in(s, SYNC_ACTIVE);
    unname_ahead(s, d->version);
    drop_unworthy(st, named);
    if (named && !digest_equal(&named->digest, &d->digest))
        refuse_digest(st, named, d->decision, &d->digest, "activate");
    else if (named) named->decision = d->decision;
    if (active && active != named && !(named && entry_is_ready(named))) {
        sync_entry_t missing = {
            .version = d->version, .digest = d->digest, .decision = d->decision, .slot = -1};
        step_offer(st, &missing, HEDDLE_EVENT_STALE, 0);
    }
}

void heard_commit(step_t *st, sync_entry_t *e)
{
    sync_t *s = st->s;
    const sync_event_t *ev = st->ev;
    if (ev->decision > s->decided.decision && ev->decision > s->applied.decision)
        decide(st, &(decision_t){ev->decision, ev->version, ev->digest});
    else if (ev->decision == s->applied.decision && e && e->state == SYNC_ACTIVE) {
        bool is_asked = s->asked == e->version; /* to go back to it: its application is to say so */
        if (!is_asked) step_say_active(st, e);
        else if (!s->active_reported) step_offer(st, e, HEDDLE_EVENT_COMMIT, 0); /* it refused */
    }
}

/* --- given up --------------------------------------------------------------------------------- */

void heard_sources(step_t *st, sync_entry_t *e)
{
    e->starved = st->ev->source_count == 0;
    if (e->starved && entry_is_overtaken(st->s, e) && !entry_is_named(st->s, e)) step_leave(st, e);
}

void heard_abort(step_t *st, sync_entry_t *e)
{
    if (e->state == SYNC_ACTIVE || e->state == SYNC_KEPT || entry_is_named(st->s, e)) return;
    step_offer(st, e, HEDDLE_EVENT_FAILED, st->ev->error ? st->ev->error->code : HEDDLE_ERR_VERSION_FAILED);
    step_leave(st, e);
}

/* Also what is named: the broker never retires what its latest decision chose, so there is a later one that
 * did not come here yet, and nobody else keeps the bytes. */
void heard_retire(step_t *st, sync_entry_t *e)
{
    if (e->state == SYNC_ACTIVE) {
        e->retired = true;
        return;
    }
    step_offer(st, e, HEDDLE_EVENT_RETIRED, 0);
    step_leave(st, e);
}

/* --- the session ------------------------------------------------------------------------------ */

static bool is_kept(const sync_event_t *ev, uint64_t version)
{
    for (uint32_t i = 0; i < ev->keep_count; i++)
        if (ev->keep[i] == version) return true;
    return ev->decision && ev->version == version;
}

void heard_down(step_t *st)
{
    sync_t *s = st->s;
    s->up = s->active_reported = false;
    s->decided = s->applied;
    for EACH(s, e) {
        if (entry_is_named(s, e)) e->decision = e->offered = 0;
        e->reported = e->restated = false;
    }
}

/* A broker with older data may know nothing of what the application was asked to switch to: it is asked to go
 * back to what stays active. */
void heard_up(step_t *st)
{
    sync_t *s = st->s;
    const sync_event_t *ev = st->ev;
    s->up = true;
    s->slot_count = ev->slot_count;
    s->give_up_us = CLOCK_NEVER;
    if (ev->decision > s->applied.decision) decide(st, &(decision_t){ev->decision, ev->version, ev->digest});
    for EACH(s, e) {
        if (sync_is_held(e) && is_kept(ev, e->version)) e->retired = false;
        else if (sync_is_held(e) && e->restated) heard_retire(st, e);
        if (e->state == SYNC_STAGED && !e->reported) step_say_staged(st, e);
        if (e->deadline_us < st->now + SYNC_GRACE_US) e->deadline_us = st->now + SYNC_GRACE_US;
    }
    const sync_entry_t *active = sync_active(s);
    if (active && !s->active_reported) step_say_active(st, active);
    if (active && s->asked && s->decided.decision <= s->applied.decision) {
        s->asked = active->version;
        step_offer(st, active, HEDDLE_EVENT_COMMIT, 0);
    }
    step_say_pending(st);
}
