/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/sync.h"

#include "core/errors.h"
#include "worker/sync_broker.h"

/* --- the fetch's and the application's words -------------------------------------------------- */

/* Gives the slot back at once: nothing was ever in it. */
static void on_no_slot(step_t *st, sync_entry_t *e)
{
    e->slot = -1;
    e->state = SYNC_WAITING;
    step_fail(st, e, st->ev->error);
}

static void become_staged(step_t *st, sync_entry_t *e)
{
    sync_nack_t *nack = sync_nack(st->s, e->version, 0);
    if (nack) nack->pending = false;    /* it was tried again, and went well */
    e->state = SYNC_STAGED;
    step_say_staged(st, e);
    if (!st->s->app) step_offer(st, e, HEDDLE_EVENT_STAGED, 0);
}

static void on_fetched(step_t *st, sync_entry_t *e)
{
    if (!st->s->app) {
        become_staged(st, e);
        return;
    }
    e->state = SYNC_ARRIVED;
    step_offer(st, e, HEDDLE_EVENT_ARRIVED, 0);
}

static int on_app_staged(step_t *st, sync_entry_t *e)
{
    if (e->state == SYNC_ARRIVED) become_staged(st, e);
    return entry_is_ready(e) ? HEDDLE_OK : HEDDLE_ERR_NOT_FOUND;
}

static int on_app_activate(step_t *st, sync_entry_t *e)
{
    if (e->state == SYNC_ACTIVE && !entry_is_named(st->s, e)) {
        if (st->s->asked == e->version) {
            sync_nack_t *nack = sync_nack(st->s, e->version, st->s->applied.decision);
            if (nack) nack->pending = false;    /* it was refused, and went well then */
            st->s->asked = 0;
            if (!st->s->active_reported) step_say_active(st, e); /* it was refused before */
        }
        return HEDDLE_OK;
    }
    if (!entry_is_ready(e)) return HEDDLE_ERR_NOT_FOUND;
    if (!st->s->up) return HEDDLE_ERR_FENCED;
    if (!entry_is_named(st->s, e)) return HEDDLE_ERR_NOT_FOUND;
    if (st->s->asked == e->version) st->s->asked = 0;
    step_flip(st, e);
    return HEDDLE_OK;
}

static int on_app_reject(step_t *st, sync_entry_t *e)
{
    if (entry_is_ready(e) && entry_is_named(st->s, e)) {
        uint64_t decision = e->decision;
        e->decision = e->offered = 0;    /* a WELCOME that names it again offers it again */
        step_say_nack(st, e, decision, st->ev->error);
        return HEDDLE_OK;
    }
    if (e->state == SYNC_ACTIVE && st->s->asked == e->version) { /* to go back to it */
        step_say_nack(st, e, st->s->applied.decision, st->ev->error);
        st->s->active_reported = false;
        return HEDDLE_OK;
    }
    if (e->state != SYNC_ARRIVED && e->state != SYNC_STAGED) return HEDDLE_ERR_NOT_FOUND;
    step_say_nack(st, e, 0, st->ev->error);
    step_leave(st, e);
    return HEDDLE_OK;
}

static void on_drained(step_t *st)
{
    for EACH(st->s, e)
        if (e->state == SYNC_LEAVING && e->slot == st->ev->slot) entry_forget(e);
}

/* --- time ------------------------------------------------------------------------------------- */

static bool can_expire(const sync_t *s, const sync_entry_t *e)
{
    bool is_open = e->state == SYNC_WAITING || entry_is_coming(e) || e->state == SYNC_ARRIVED;
    return s->up && is_open && !entry_is_named(s, e);
}

static bool expire_one(step_t *st)
{
    for EACH(st->s, e) {
        if (!can_expire(st->s, e) || st->now < e->deadline_us) continue;
        heddle_error_t error;
        error_fail(&error, HEDDLE_ERR_DEADLINE,
                   "the deadline ran out on the worker, and no word came from the broker");
        error_where(&error, NULL, e->version, NULL, e->state == SYNC_ARRIVED ? "stage" : "fetch");
        step_say_nack(st, e, 0, &error);
        step_leave(st, e);
        return true;
    }
    return false;
}

/* A staged version that an announcement overtook before anybody decided for it. */
static bool drop_overtaken(step_t *st, const sync_entry_t *head)
{
    for EACH(st->s, e) {
        bool is_older = e->version < head->version && e->order < head->order;
        if (e->state != SYNC_STAGED || entry_is_named(st->s, e) || !is_older) continue;
        step_leave(st, e);
        return true;
    }
    return false;
}

static void give_up_waiting(step_t *st)
{
    sync_t *s = st->s;
    sync_entry_t *head = step_head(st);
    if (!s->up || !head || st->now < s->give_up_us) return;
    s->give_up_us = CLOCK_NEVER;
    if (drop_overtaken(st, head)) return;
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_NO_SLOT, "all %u slots are in use", s->slot_count);
    error_where(&error, NULL, head->version, NULL, "announce");
    step_say_nack(st, head, 0, &error);
    head->complained = true;
    if (!entry_is_named(s, head) && head->deadline_us != CLOCK_NEVER) entry_forget(head);
}

static void on_tick(step_t *st)
{
    if (!expire_one(st)) give_up_waiting(st);
}

uint64_t sync_deadline(const sync_t *s)
{
    uint64_t next = s->up ? s->give_up_us : CLOCK_NEVER;
    for EACH((sync_t *)s, e) {
        if (can_expire(s, e) && e->deadline_us < next) next = e->deadline_us;
        if (e->state == SYNC_WAITING && e->start_us && e->start_us < next) next = e->start_us;
    }
    return next;
}

bool sync_lacks_slot(const sync_t *s)
{
    step_t st = {.s = (sync_t *)s};
    return s->up && step_head(&st) && !entries_coming(st.s) && entries_free_slot(st.s) < 0;
}

/* --- the table -------------------------------------------------------------------------------- */

/* Events about one version; a state that is not named here refuses the event. */
static int on_version(step_t *st, sync_entry_t *e)
{
    switch (st->ev->kind) {
    case SY_ABORT: heard_abort(st, e); break;
    case SY_RETIRE: heard_retire(st, e); break;
    case SY_SOURCES:
        if (e->state == SYNC_FETCHING) heard_sources(st, e);
        break;
    case SY_SLOT:
        if (e->state != SYNC_RESERVING) break;
        e->state = SYNC_FETCHING;
        e->starved = false;
        step_act(st, SA_FETCH, e);
        break;
    case SY_NO_SLOT:
        if (e->state == SYNC_RESERVING) on_no_slot(st, e);
        break;
    case SY_FETCHED:
        if (e->state == SYNC_FETCHING) on_fetched(st, e);
        break;
    case SY_FETCH_FAILED:
        if (e->state != SYNC_FETCHING) break;
        e->state = SYNC_RESERVING;    /* the fetch has ended: nothing to cancel */
        step_fail(st, e, st->ev->error);
        break;
    case SY_APP_STAGED: return on_app_staged(st, e);
    case SY_APP_ACTIVATE: return on_app_activate(st, e);
    case SY_APP_REJECT: return on_app_reject(st, e);
    default: break;
    }
    return HEDDLE_OK;
}

static bool is_from_application(sync_event_kind_t kind)
{
    return kind >= SY_APP_STAGED && kind <= SY_APP_REJECT;
}

static int dispatch(step_t *st)
{
    sync_t *s = st->s;
    sync_entry_t *e = entries_find(s, st->ev->version);
    switch (st->ev->kind) {
    case SY_UP: heard_up(st); return HEDDLE_OK;
    case SY_DOWN: heard_down(st); return HEDDLE_OK;
    case SY_TICK: on_tick(st); return HEDDLE_OK;
    case SY_DRAINED: on_drained(st); return HEDDLE_OK;
    case SY_ANNOUNCE:
        if (s->up) heard_announce(st, e);
        return HEDDLE_OK;
    case SY_COMMIT:
        if (s->up) heard_commit(st, e);
        return HEDDLE_OK;
    default: break;
    }
    if (!e) return is_from_application(st->ev->kind) ? HEDDLE_ERR_NOT_FOUND : HEDDLE_OK;
    return on_version(st, e);
}

int sync_step(sync_t *s, const sync_event_t *event, uint64_t now_us, sync_action_t out[])
{
    step_t st = {.s = s, .ev = event, .now = now_us, .out = out};
    int rc = dispatch(&st);
    if (rc) return rc;
    if (s->up) step_apply(&st);
    step_start(&st);
    return st.count;
}
