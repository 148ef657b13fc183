/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/sync_step.h"

/* --- saying ----------------------------------------------------------------------------------- */

sync_action_t *step_act(step_t *st, sync_action_kind_t kind, const sync_entry_t *e)
{
    sync_action_t *a = &st->out[st->count++];
    *a = (sync_action_t){
        .kind = kind, .version = e->version, .decision = e->decision, .slot = e->slot, .digest = e->digest};
    return a;
}

void step_offer(step_t *st, const sync_entry_t *e, int event, int err)
{
    sync_action_t *a = step_act(st, SA_OFFER, e);
    a->event = event;
    a->err = err;
}

void step_say_staged(step_t *st, sync_entry_t *e)
{
    e->reported = st->s->up;
    if (st->s->up) step_act(st, SA_SEND_STAGED, e);
}

void step_say_active(step_t *st, const sync_entry_t *e)
{
    st->s->active_reported = st->s->up;
    if (st->s->up) step_act(st, SA_SEND_ACTIVE, e)->decision = st->s->applied.decision;
}

void step_say_nack(step_t *st, const sync_entry_t *e, uint64_t decision, const heddle_error_t *error)
{
    sync_t *s = st->s;
    *nacks_room(s, e->version, decision) = (sync_nack_t){.order = ++s->nack_order,
                                                        .version = e->version,
                                                        .decision = decision,
                                                        .pending = !s->up,
                                                        .error = *error};
    if (s->up) step_act(st, SA_SEND_NACK, e)->decision = decision;
    step_offer(st, e, decision ? HEDDLE_EVENT_STALE : HEDDLE_EVENT_FAILED, error->code);
}

void step_say_pending(step_t *st)
{
    for (sync_nack_t *first; (first = nacks_pending(st->s));) {
        first->pending = false;
        if (first->decision && first->decision == st->s->applied.decision) st->s->active_reported = false;
        sync_entry_t about = {.version = first->version, .decision = first->decision, .slot = -1};
        step_act(st, SA_SEND_NACK, &about);
    }
}

/* --- changing --------------------------------------------------------------------------------- */

void step_leave(step_t *st, sync_entry_t *e)
{
    if (e->slot < 0) {
        entry_forget(e);
        return;
    }
    if (e->state == SYNC_FETCHING) step_act(st, SA_CANCEL, e);
    e->state = SYNC_LEAVING;
    step_act(st, SA_DROP, e);
}

/* The slot of a coming version is given back; the version waits again. */
static sync_entry_t *wait_again(step_t *st, sync_entry_t *e)
{
    sync_entry_t *again = entries_add(st->s, e->version, &e->digest);
    int slot = again->slot;
    *again = *e;
    again->state = SYNC_WAITING;
    again->slot = slot;
    step_leave(st, e);
    return again;
}

void step_fail(step_t *st, sync_entry_t *e, const heddle_error_t *error)
{
    step_say_nack(st, e, 0, error);
    if (!entry_is_named(st->s, e) && e->deadline_us != CLOCK_NEVER) {
        step_leave(st, e);
        return;
    }
    sync_entry_t *again = wait_again(st, e);
    again->start_us = st->now + (SYNC_RETRY_US << (again->tries < 4 ? again->tries : 4));
    again->tries++;
}

void step_flip(step_t *st, sync_entry_t *e)
{
    sync_t *s = st->s;
    sync_entry_t *before = entries_in(s, SYNC_ACTIVE);
    s->applied = (decision_t){e->decision, e->version, e->digest};
    if (before != e) step_act(st, SA_FLIP, e);
    if (before && before != e) {
        before->state = SYNC_KEPT;
        if (before->retired) step_leave(st, before);
        else step_act(st, SA_KEEP, before);
    }
    e->state = SYNC_ACTIVE;
    e->retired = false;
    step_say_active(st, e);
    step_offer(st, e, HEDDLE_EVENT_ACTIVE, 0);
}

void step_apply(step_t *st)
{
    sync_entry_t *best = NULL;
    for EACH(st->s, e)
        if (entry_is_ready(e) && entry_is_named(st->s, e) && (!best || e->decision > best->decision))
            best = e;
    if (!best) return;
    if (!st->s->app || (best->state == SYNC_ACTIVE && !st->s->asked)) {
        step_flip(st, best);
    } else if (best->offered != best->decision) {
        best->offered = best->decision;
        st->s->asked = best->version;
        step_offer(st, best, HEDDLE_EVENT_COMMIT, 0);
    }
}

/* --- what comes next -------------------------------------------------------------------------- */

sync_entry_t *step_head(step_t *st)
{
    sync_entry_t *head = NULL;
    for EACH(st->s, e) {
        if (e->state != SYNC_WAITING || e->start_us || entries_leaving(st->s, e->version)) continue;
        bool firm = entry_is_firm(st->s, e), head_firm = head && entry_is_firm(st->s, head);
        if (!head || firm > head_firm || (firm == head_firm && e->order > head->order)) head = e;
    }
    return head;
}

void step_start(step_t *st)
{
    sync_t *s = st->s;
    for EACH(s, e)
        if (e->start_us <= st->now) e->start_us = 0;
    sync_entry_t *head = step_head(st), *coming = entries_coming(s);
    bool preempts = s->up && head && coming && (entry_is_firm(s, head) || head->order > coming->order);
    if (preempts && !entry_is_firm(s, coming)) {
        sync_entry_t *again = wait_again(st, coming);
        if (entry_is_overtaken(s, again)) entry_forget(again);
        coming = NULL;
    }
    int slot = head && !coming ? entries_free_slot(s) : -1;
    bool blocked = head && !coming && slot < 0 && !head->complained;
    if (!blocked) s->give_up_us = CLOCK_NEVER;
    else if (s->give_up_us == CLOCK_NEVER) s->give_up_us = st->now + head->patience_us;
    if (slot < 0) return;
    head->slot = slot;
    head->state = SYNC_RESERVING;
    step_act(st, SA_RESERVE, head);
}
