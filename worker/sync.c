/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/sync.h"

#include "core/errors.h"

/* One step in progress: the event, and the actions written so far. */
typedef struct {
    sync_t *s;
    const sync_event_t *ev;
    int free_slot;
    uint64_t now;
    sync_action_t *out;
    int count;
} step_t;

#define EACH(s, e) (sync_entry_t *e = (s)->entries; e < (s)->entries + SYNC_ENTRIES; e++)

/* --- entries ------------------------------------------------------------------------------------ */

/* A decision that is not applied yet chose this version, and no later decision went back behind it. */
static bool is_named(const sync_t *s, const sync_entry_t *e)
{
    return e->decision > s->applied.decision;
}

/* A named version has the first claim to a slot, unless no source has its bytes: then it must not block
 * versions that can be fetched. */
static bool is_firm(const sync_t *s, const sync_entry_t *e)
{
    return is_named(s, e) && !e->starved;
}

/* The cluster has decided for a later version. A fetch of this one would end in a version that is retired
 * at once. */
static bool is_overtaken(const sync_t *s, const sync_entry_t *e)
{
    return e->version < s->decided.version;
}

/* One entry at a time is in one of these states, so that it has the whole bandwidth. */
static bool is_fetching(const sync_entry_t *e)
{
    return e->state == SYNC_RESERVING || e->state == SYNC_FETCHING;
}

/* These versions can be made active without further work of the application. */
static bool is_ready(const sync_entry_t *e)
{
    return e->state == SYNC_STAGED || e->state == SYNC_ACTIVE || e->state == SYNC_KEPT;
}

/* A LEAVING entry does not count: the same version may have been announced anew and have a second entry. */
static sync_entry_t *find_version(sync_t *s, uint64_t version)
{
    for EACH(s, e)
        if (e->state != SYNC_ABSENT && e->state != SYNC_LEAVING && e->version == version) return e;
    return NULL;
}

static sync_entry_t *find_in(sync_t *s, sync_state_t state)
{
    for EACH(s, e)
        if (e->state == state) return e;
    return NULL;
}

static sync_entry_t *find_coming(sync_t *s)
{
    for EACH(s, e)
        if (is_fetching(e)) return e;
    return NULL;
}

static void forget(sync_entry_t *e) { *e = (sync_entry_t){.state = SYNC_ABSENT, .slot = -1}; }

/* There is always a free entry: bound_waiting limits the entries without a slot, and the slots limit the
 * others (SYNC_ENTRIES). */
static sync_entry_t *add(sync_t *s, uint64_t version, const digest_t *digest)
{
    sync_entry_t *e = find_in(s, SYNC_ABSENT);
    *e = (sync_entry_t){.state = SYNC_WAITING,
                        .slot = -1,
                        .version = version,
                        .digest = *digest,
                        .deadline_us = CLOCK_NEVER,
                        .patience_us = SYNC_SLOT_WAIT_US};
    return e;
}

/* --- failures ----------------------------------------------------------------------------------- */

/* The latest failure that fits: a version may fail several times, and the last reason is the one to
 * report. */
sync_nack_t *sync_nack(sync_t *s, uint64_t version, uint64_t decision)
{
    sync_nack_t *last = NULL;
    for (sync_nack_t *k = s->nacks; k < s->nacks + SYNC_NACKS; k++) {
        bool fits = k->order && k->version == version &&
                    (k->decision == decision || decision == SYNC_ANY_DECISION);
        if (fits && (!last || k->order > last->order)) last = k;
    }
    return last;
}

/* --- actions ------------------------------------------------------------------------------------ */

static sync_action_t *act(step_t *st, sync_action_kind_t kind, const sync_entry_t *e)
{
    sync_action_t *a = &st->out[st->count++];
    *a = (sync_action_t){
        .kind = kind, .version = e->version, .decision = e->decision, .slot = e->slot, .digest = e->digest};
    return a;
}

/* An OFFER is an event of the application. */
static void offer(step_t *st, const sync_entry_t *e, int event, int err)
{
    sync_action_t *a = act(st, SA_OFFER, e);
    a->event = event;
    a->err = err;
}

/* While the session is down nothing is sent; `reported` then stays false, and on_up sends it, unless the
 * JOIN restated it. */
static void send_staged(step_t *st, sync_entry_t *e)
{
    e->reported = st->s->up;
    if (st->s->up) act(st, SA_SEND_STAGED, e);
}

/* As send_staged, for the version that is served. It names the decision that was applied last. */
static void send_active(step_t *st, const sync_entry_t *e)
{
    st->s->active_reported = st->s->up;
    if (st->s->up) act(st, SA_SEND_ACTIVE, e)->decision = st->s->applied.decision;
}

/* The failure is remembered, because the message may have to wait for the session, and because later
 * events of the version repeat its reason. A full table forgets the oldest failure, one that was sent
 * before one that was not. */
static void send_nack(step_t *st, const sync_entry_t *e, uint64_t decision, const heddle_error_t *error)
{
    sync_t *s = st->s;
    sync_nack_t *known = sync_nack(s, e->version, decision), *oldest = s->nacks;
    for (sync_nack_t *k = s->nacks; k < s->nacks + SYNC_NACKS; k++) {
        bool is_older = k->pending == oldest->pending && k->order < oldest->order;
        if (k->pending < oldest->pending || is_older) oldest = k;
    }
    *(known ? known : oldest) = (sync_nack_t){.order = ++s->nack_order,
                                              .version = e->version,
                                              .decision = decision,
                                              .pending = !s->up,
                                              .error = *error};
    if (s->up) act(st, SA_SEND_NACK, e)->decision = decision;
    offer(st, e, decision ? HEDDLE_EVENT_STALE : HEDDLE_EVENT_FAILED, error->code);
}

/* Sends what failed while the session was down, in the order in which it happened: a later failure of a
 * version may correct an earlier one. */
static void send_pending_nacks(step_t *st)
{
    sync_t *s = st->s;
    for (;;) {
        sync_nack_t *first = NULL;
        for (sync_nack_t *k = s->nacks; k < s->nacks + SYNC_NACKS; k++)
            if (k->pending && (!first || k->order < first->order)) first = k;
        if (!first) return;
        first->pending = false;
        if (first->decision && first->decision == s->applied.decision) s->active_reported = false;
        sync_entry_t about = {.version = first->version, .decision = first->decision, .slot = -1};
        act(st, SA_SEND_NACK, &about);
    }
}

/* --- changes that more than one event makes ----------------------------------------------------- */

/* Gives up a version. One without a slot is gone at once; one with a slot stays LEAVING until its memory
 * is unused. */
static void leave(step_t *st, sync_entry_t *e)
{
    if (e->slot < 0) {
        forget(e);
        return;
    }
    if (e->state == SYNC_FETCHING) act(st, SA_CANCEL, e);
    e->state = SYNC_LEAVING;
    act(st, SA_DROP, e);
}

/* A slot may still be written into after its fetch was stopped, so it cannot be used at once for the same
 * version. The slot leaves on its own, and a new entry waits in place of the old one. */
static sync_entry_t *wait_again(step_t *st, sync_entry_t *e)
{
    sync_entry_t *again = add(st->s, e->version, &e->digest);
    int slot = again->slot;
    *again = *e;
    again->state = SYNC_WAITING;
    again->slot = slot;
    leave(st, e);
    return again;
}

/* A version that is named, or that has no deadline, must get here in the end: it waits again, with
 * growing pauses. Any other one is given up, and the broker decides without this worker. */
static void fail(step_t *st, sync_entry_t *e, const heddle_error_t *error)
{
    send_nack(st, e, 0, error);
    if (!is_named(st->s, e) && e->deadline_us != CLOCK_NEVER) {
        leave(st, e);
        return;
    }
    sync_entry_t *again = wait_again(st, e);
    again->start_us = st->now + (SYNC_RETRY_US << (again->tries < 4 ? again->tries : 4));
    again->tries++;
}

/* Makes a version the active one. The version before stays as KEPT, so that a rollback needs no fetch,
 * unless the broker has retired it meanwhile. */
static void flip(step_t *st, sync_entry_t *e)
{
    sync_t *s = st->s;
    sync_entry_t *before = find_in(s, SYNC_ACTIVE);
    s->applied = (decision_t){e->decision, e->version, e->digest};
    if (before != e) act(st, SA_FLIP, e);
    if (before && before != e) {
        before->state = SYNC_KEPT;
        if (before->retired) leave(st, before);
        else act(st, SA_KEEP, before);
    }
    e->state = SYNC_ACTIVE;
    e->retired = false;
    send_active(st, e);
    offer(st, e, HEDDLE_EVENT_ACTIVE, 0);
}

/* Applies the latest decision whose version is ready. AUTO switches at once; an application is asked,
 * once for each decision, and switches when it answers. */
static void apply(step_t *st)
{
    sync_entry_t *best = NULL;
    for EACH(st->s, e)
        if (is_ready(e) && is_named(st->s, e) && (!best || e->decision > best->decision))
            best = e;
    if (!best) return;
    if (!st->s->app || (best->state == SYNC_ACTIVE && !st->s->asked)) {
        flip(st, best);
    } else if (best->offered != best->decision) {
        best->offered = best->decision;
        st->s->asked = best->version;
        offer(st, best, HEDDLE_EVENT_COMMIT, 0);
    }
}

/* The version that gets the next slot: a firm one first, then the latest announced. A version whose
 * former slot is still leaving cannot start: its share key is in use until then. */
static sync_entry_t *waiting_head(sync_t *s)
{
    sync_entry_t *head = NULL;
    for EACH(s, e) {
        bool may_start = e->state == SYNC_WAITING && !e->start_us;
        for EACH(s, other)    /* its share key is in use while another copy of it is leaving */
            may_start &= other->state != SYNC_LEAVING || other->version != e->version;
        if (!may_start) continue;
        bool firm = is_firm(s, e), head_firm = head && is_firm(s, head);
        if (!head || firm > head_firm || (firm == head_firm && e->order > head->order)) head = e;
    }
    return head;
}

/* Reserves the next free slot for the head of the waiting versions. A newer announcement may preempt a
 * fetch, but never one that is firm: else a worker slower than its trainer would fetch for ever and
 * finish nothing. */
static void start(step_t *st)
{
    sync_t *s = st->s;
    for EACH(s, e)
        if (e->start_us <= st->now) e->start_us = 0;
    sync_entry_t *head = waiting_head(s), *fetching = find_coming(s);
    bool preempts = s->up && head && fetching && (is_firm(s, head) || head->order > fetching->order);
    if (preempts && !is_firm(s, fetching)) {
        sync_entry_t *again = wait_again(st, fetching);
        if (is_overtaken(s, again)) forget(again);
        fetching = NULL;
    }
    int slot = head && !fetching && st->free_slot < (int)s->slot_count ? st->free_slot : -1;
    bool blocked = head && !fetching && slot < 0 && !head->complained;
    if (!blocked) s->give_up_us = CLOCK_NEVER;
    else if (s->give_up_us == CLOCK_NEVER) s->give_up_us = st->now + head->patience_us;
    if (slot < 0) return;
    head->slot = slot;
    head->state = SYNC_RESERVING;
    act(st, SA_RESERVE, head);
}

/* --- events of the broker ----------------------------------------------------------------------- */

/* A version number stands for the same bytes for ever. Another digest means that the registry was
 * restored or mixed up, and no guess which one is right can be made here. */
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
    send_nack(st, e, decision, &error);
}

/* The number of waiting versions is limited, since a trainer can publish without end while every slot is
 * held by readers. The oldest one is refused, as the newest is the one worth having. */
static void bound_waiting(step_t *st)
{
    sync_entry_t *oldest = NULL;
    uint32_t count = 0;
    for EACH(st->s, e) {
        if (e->state != SYNC_WAITING) continue;
        count++;
        if (!is_named(st->s, e) && (!oldest || e->order < oldest->order)) oldest = e;
    }
    if (count <= SYNC_WAITING_MAX || !oldest) return;
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_LIMIT, "more than %u versions wait for a slot; this is the oldest",
               SYNC_WAITING_MAX);
    error_where(&error, NULL, oldest->version, NULL, "announce");
    send_nack(st, oldest, 0, &error);
    forget(oldest);
}

/* The broker repeats an announcement when it does not know how far this worker is: the answer is then
 * STAGED or ACTIVE once more. */
static void on_announce(step_t *st, sync_entry_t *e)
{
    sync_t *s = st->s;
    if (e && !digest_equal(&e->digest, &st->ev->digest)) {
        refuse_digest(st, e, 0, &st->ev->digest, "announce");
        return;
    }
    if (!e) {
        e = add(s, st->ev->version, &st->ev->digest);
        e->order = ++s->order;
        if (s->decided.version == e->version) e->decision = s->decided.decision;
        bound_waiting(st);
    }
    uint64_t left = st->ev->deadline_us;
    e->deadline_us = left ? st->now + left + SYNC_GRACE_US : CLOCK_NEVER;
    e->patience_us = left && left / 4 < SYNC_SLOT_WAIT_US ? left / 4 : SYNC_SLOT_WAIT_US;
    e->starved = false;
    if (e->state == SYNC_FETCHING) act(st, SA_RESOURCE, e);
    else if (e->state == SYNC_STAGED || e->state == SYNC_KEPT) send_staged(st, e);
    else if (e->state == SYNC_ACTIVE) send_active(st, e);
}

/* A decision greater than all before.  What is remembered is applied when its version is ready. */
static void decide(step_t *st, const decision_t *d)
{
    sync_t *s = st->s;
    s->decided = *d;
    sync_entry_t *named = find_version(s, d->version), *active = find_in(s, SYNC_ACTIVE);
    for EACH(s, e) {
        /* A step back: what lies ahead of it is not to be served.  But an application that was offered a
         * COMMIT may have switched already: its answer is true, and counts. */
        bool is_switching = is_named(s, e) && e->offered == e->decision;
        if (e->version > d->version && !is_switching) e->decision = 0;
        /* Of what a later decision overtook, only a fetch that gets somewhere goes on. */
        if (e == named || !is_overtaken(s, e)) continue;
        if (e->state == SYNC_WAITING) forget(e);
        else if (e->state == SYNC_FETCHING && e->starved) leave(st, e);
    }
    if (named && !digest_equal(&named->digest, &d->digest))
        refuse_digest(st, named, d->decision, &d->digest, "activate");
    else if (named) named->decision = d->decision;
    if (active && active != named && !(named && is_ready(named))) {
        sync_entry_t missing = {
            .version = d->version, .digest = d->digest, .decision = d->decision, .slot = -1};
        offer(st, &missing, HEDDLE_EVENT_STALE, 0);
    }
}

/* An equal decision is a repetition: the answer to the first one was lost, so ACTIVE is sent again. An
 * application that was asked to switch back has to answer first. */
static void on_commit(step_t *st, sync_entry_t *e)
{
    sync_t *s = st->s;
    const sync_event_t *ev = st->ev;
    if (ev->decision > s->decided.decision && ev->decision > s->applied.decision)
        decide(st, &(decision_t){ev->decision, ev->version, ev->digest});
    else if (ev->decision == s->applied.decision && e && e->state == SYNC_ACTIVE) {
        bool is_asked = s->asked == e->version; /* to go back to it: its application is to say so */
        if (!is_asked) send_active(st, e);
        else if (!s->active_reported) offer(st, e, HEDDLE_EVENT_COMMIT, 0); /* it refused */
    }
}

/* A named version is retired like any other: the broker never retires what its latest decision chose. So
 * a later decision exists that has not arrived here, and no other worker keeps these bytes. */
static void on_retire(step_t *st, sync_entry_t *e)
{
    if (e->state == SYNC_ACTIVE) {
        e->retired = true;
        return;
    }
    offer(st, e, HEDDLE_EVENT_RETIRED, 0);
    leave(st, e);
}

/* WELCOME is the truth after a pause: it names the decision in force and the versions to keep. A broker
 * with older data may not know the version that the application was asked to switch to; the application
 * is then asked to go back to the one that stays active. */
static void on_up(step_t *st)
{
    sync_t *s = st->s;
    const sync_event_t *ev = st->ev;
    s->up = true;
    s->slot_count = ev->slot_count;
    s->give_up_us = CLOCK_NEVER;
    if (ev->decision > s->applied.decision) decide(st, &(decision_t){ev->decision, ev->version, ev->digest});
    for EACH(s, e) {
        bool is_kept = ev->decision && ev->version == e->version;
        for (uint32_t i = 0; i < ev->keep_count; i++) is_kept |= ev->keep[i] == e->version;
        if (sync_is_held(e) && is_kept) e->retired = false;
        else if (sync_is_held(e) && e->restated) on_retire(st, e);
        if (e->state == SYNC_STAGED && !e->reported) send_staged(st, e);
        if (e->deadline_us < st->now + SYNC_GRACE_US) e->deadline_us = st->now + SYNC_GRACE_US;
    }
    const sync_entry_t *active = sync_active(s);
    if (active && !s->active_reported) send_active(st, active);
    if (active && s->asked && s->decided.decision <= s->applied.decision) {
        s->asked = active->version;
        offer(st, active, HEDDLE_EVENT_COMMIT, 0);
    }
    send_pending_nacks(st);
}

/* --- events of the fetch and of the application ------------------------------------------------- */

/* A version that failed before and is staged now has no failure to report any more. */
static void become_staged(step_t *st, sync_entry_t *e)
{
    sync_nack_t *nack = sync_nack(st->s, e->version, 0);
    if (nack) nack->pending = false;    /* it was tried again, and went well */
    e->state = SYNC_STAGED;
    send_staged(st, e);
    if (!st->s->app) offer(st, e, HEDDLE_EVENT_STAGED, 0);
}

/* The application says that it serves this version. Without a session a new switch is refused: the broker
 * may have decided otherwise meanwhile. */
static int on_app_activate(step_t *st, sync_entry_t *e)
{
    if (e->state == SYNC_ACTIVE && !is_named(st->s, e)) {
        if (st->s->asked == e->version) {
            sync_nack_t *nack = sync_nack(st->s, e->version, st->s->applied.decision);
            if (nack) nack->pending = false;    /* it was refused, and went well then */
            st->s->asked = 0;
            if (!st->s->active_reported) send_active(st, e); /* it was refused before */
        }
        return HEDDLE_OK;
    }
    if (!is_ready(e)) return HEDDLE_ERR_NOT_FOUND;
    if (!st->s->up) return HEDDLE_ERR_FENCED;
    if (!is_named(st->s, e)) return HEDDLE_ERR_NOT_FOUND;
    if (st->s->asked == e->version) st->s->asked = 0;
    flip(st, e);
    return HEDDLE_OK;
}

/* The cases differ in what the broker has to learn: a named version failed to become active (NACK with
 * the decision), the active one cannot be returned to (NACK with the applied decision), or a version
 * could not be staged (NACK without a decision). */
static int on_app_reject(step_t *st, sync_entry_t *e)
{
    if (is_ready(e) && is_named(st->s, e)) {
        uint64_t decision = e->decision;
        e->decision = e->offered = 0;    /* a WELCOME that names it again offers it again */
        send_nack(st, e, decision, st->ev->error);
        return HEDDLE_OK;
    }
    if (e->state == SYNC_ACTIVE && st->s->asked == e->version) { /* to go back to it */
        send_nack(st, e, st->s->applied.decision, st->ev->error);
        st->s->active_reported = false;
        return HEDDLE_OK;
    }
    if (e->state != SYNC_ARRIVED && e->state != SYNC_STAGED) return HEDDLE_ERR_NOT_FOUND;
    send_nack(st, e, 0, st->ev->error);
    leave(st, e);
    return HEDDLE_OK;
}

/* --- time --------------------------------------------------------------------------------------- */

/* A named version does not expire: the cluster serves it, and this worker should too, however late. */
static bool can_expire(const sync_t *s, const sync_entry_t *e)
{
    bool is_open = e->state == SYNC_WAITING || is_fetching(e) || e->state == SYNC_ARRIVED;
    return s->up && is_open && !is_named(s, e);
}

/* The broker ends a rollout at its deadline and sends ABORT. This is for an ABORT that was lost: it comes
 * SYNC_GRACE_US later, by the worker's own clock. */
static bool expire_one(step_t *st)
{
    for EACH(st->s, e) {
        if (!can_expire(st->s, e) || st->now < e->deadline_us) continue;
        heddle_error_t error;
        error_fail(&error, HEDDLE_ERR_DEADLINE,
                   "the deadline ran out on the worker, and no word came from the broker");
        error_where(&error, NULL, e->version, NULL, e->state == SYNC_ARRIVED ? "stage" : "fetch");
        send_nack(st, e, 0, &error);
        leave(st, e);
        return true;
    }
    return false;
}

/* A version that was decided and refused is still counted as held by the broker. */
static void say_dropped(step_t *st, const sync_entry_t *e, uint64_t newer)
{
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_NO_SLOT, "its slot was needed for version %llu", (unsigned long long)newer);
    error_where(&error, NULL, e->version, NULL, "activate");
    send_nack(st, e, 0, &error);
}

/* No slot came free for long enough. A staged version that was overtaken before any decision gives up its
 * slot; otherwise the waiting version fails with NO_SLOT, once, and a named one goes on waiting. */
static void give_up_waiting(step_t *st)
{
    sync_t *s = st->s;
    sync_entry_t *head = waiting_head(s);
    if (!s->up || !head || st->now < s->give_up_us) return;
    s->give_up_us = CLOCK_NEVER;
    for EACH(s, e) {    /* a staged version that an announcement overtook before any decision for it */
        bool is_older = e->version < head->version && e->order < head->order;
        if (e->state != SYNC_STAGED || is_named(s, e) || !is_older) continue;
        if (sync_nack(s, e->version, SYNC_ANY_DECISION)) say_dropped(st, e, head->version);
        leave(st, e);
        return;
    }
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_NO_SLOT, "all %u slots are in use", s->slot_count);
    error_where(&error, NULL, head->version, NULL, "announce");
    send_nack(st, head, 0, &error);
    head->complained = true;
    if (!is_named(s, head) && head->deadline_us != CLOCK_NEVER) forget(head);
}

/* While the session is down no version fails for lack of a slot: the broker could not be informed. */
uint64_t sync_deadline(const sync_t *s)
{
    uint64_t next = s->up ? s->give_up_us : CLOCK_NEVER;
    for EACH((sync_t *)s, e) {
        if (can_expire(s, e) && e->deadline_us < next) next = e->deadline_us;
        if (e->state == SYNC_WAITING && e->start_us && e->start_us < next) next = e->start_us;
    }
    return next;
}

bool sync_lacks_slot(const sync_t *s, int free_slot)
{
    bool is_full = free_slot < 0 || free_slot >= (int)s->slot_count;
    return s->up && is_full && waiting_head((sync_t *)s) && !sync_coming(s);
}

/* --- the table ---------------------------------------------------------------------------------- */

/* One row of the table in sync.h each. A state that is not named here refuses the event: nothing changes. */
static int dispatch(step_t *st)
{
    sync_t *s = st->s;
    sync_entry_t *e = find_version(s, st->ev->version);
    switch (st->ev->kind) {
    case SY_UP: on_up(st); return HEDDLE_OK;
    case SY_DOWN:
        s->up = s->active_reported = false;
        s->decided = s->applied;
        for EACH(s, each) {
            if (is_named(s, each)) each->decision = each->offered = 0;
            each->reported = each->restated = false;
        }
        return HEDDLE_OK;
    case SY_TICK:
        if (!expire_one(st)) give_up_waiting(st);
        return HEDDLE_OK;
    case SY_DRAINED:
        for EACH(s, each)
            if (each->state == SYNC_LEAVING && each->slot == st->ev->slot) forget(each);
        return HEDDLE_OK;
    case SY_ANNOUNCE:
        if (s->up) on_announce(st, e);
        return HEDDLE_OK;
    case SY_COMMIT:
        if (s->up) on_commit(st, e);
        return HEDDLE_OK;
    case SY_APP_STAGED:
        if (e && e->state == SYNC_ARRIVED) become_staged(st, e);
        return e && is_ready(e) ? HEDDLE_OK : HEDDLE_ERR_NOT_FOUND;
    case SY_APP_ACTIVATE: return e ? on_app_activate(st, e) : HEDDLE_ERR_NOT_FOUND;
    case SY_APP_REJECT: return e ? on_app_reject(st, e) : HEDDLE_ERR_NOT_FOUND;
    default: break;
    }
    if (!e) return HEDDLE_OK;
    switch (st->ev->kind) {
    case SY_ABORT: {
        int err = st->ev->error ? st->ev->error->code : HEDDLE_ERR_VERSION_FAILED;
        if (e->state == SYNC_ACTIVE || e->state == SYNC_KEPT || is_named(s, e)) break;
        offer(st, e, HEDDLE_EVENT_FAILED, err);
        st->out[st->count - 1].why = st->ev->error;
        leave(st, e);
        break;
    }
    case SY_RETIRE: on_retire(st, e); break;
    case SY_SOURCES:
        if (e->state != SYNC_FETCHING) break;
        e->starved = st->ev->source_count == 0;
        if (e->starved && is_overtaken(s, e) && !is_named(s, e)) leave(st, e);
        break;
    case SY_SLOT:
        if (e->state != SYNC_RESERVING) break;
        e->state = SYNC_FETCHING;
        e->starved = false;
        act(st, SA_FETCH, e);
        break;
    case SY_NO_SLOT:
        if (e->state != SYNC_RESERVING) break;
        e->slot = -1;    /* given back at once: nothing was ever in it */
        e->state = SYNC_WAITING;
        fail(st, e, st->ev->error);
        break;
    case SY_FETCHED:
        if (e->state != SYNC_FETCHING) break;
        if (s->app) {
            e->state = SYNC_ARRIVED;
            offer(st, e, HEDDLE_EVENT_ARRIVED, 0);
        } else {
            become_staged(st, e);
        }
        break;
    case SY_FETCH_FAILED:
        if (e->state != SYNC_FETCHING) break;
        e->state = SYNC_RESERVING;    /* the fetch has ended: nothing to cancel */
        fail(st, e, st->ev->error);
        break;
    default: break;
    }
    return HEDDLE_OK;
}

/* After every event a decision may be applicable and a slot may have a new use; both are looked at here,
 * and not in each handler. */
int sync_step(sync_t *s, const sync_event_t *event, int free_slot, uint64_t now_us, sync_action_t out[])
{
    step_t st = {.s = s, .ev = event, .free_slot = free_slot, .now = now_us, .out = out};
    int rc = dispatch(&st);
    if (rc) return rc;
    if (s->up) apply(&st);
    start(&st);
    return st.count;
}

/* --- for the node ------------------------------------------------------------------------------- */

const sync_entry_t *sync_find(const sync_t *s, uint64_t version)
{
    return find_version((sync_t *)s, version);
}

const sync_entry_t *sync_coming(const sync_t *s) { return find_coming((sync_t *)s); }
const sync_entry_t *sync_active(const sync_t *s) { return find_in((sync_t *)s, SYNC_ACTIVE); }

/* An application may load several versions at a time; the first one is the one that heartbeats name. */
const sync_entry_t *sync_loading(const sync_t *s)
{
    const sync_entry_t *first = NULL;
    for EACH((sync_t *)s, e)
        if (e->state == SYNC_ARRIVED && (!first || e->order < first->order)) first = e;
    return first;
}

void sync_init(sync_t *s, bool app)
{
    *s = (sync_t){.app = app, .give_up_us = CLOCK_NEVER};
    for EACH(s, e) forget(e);
}

void sync_restate(sync_t *s)
{
    s->active_reported = true;
    for EACH(s, e) {
        e->restated = sync_is_held(e);
        e->reported = e->state == SYNC_STAGED;
    }
}
