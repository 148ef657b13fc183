/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/versions.h"

#include "core/errors.h"

/* One call of versions_step: the event, and the actions written so far. */
typedef struct {
    versions_t *s;
    const versions_event_t *ev;
    const versions_slots_t *slots;
    uint64_t now;
    versions_action_t *out;
    int count;
} run_t;

#define FOR_EACH(s, e) for (versions_entry_t *e = (s)->entries; e < (s)->entries + VERSIONS_ENTRIES; e++)

/* --- entries ------------------------------------------------------------------------------------ */

/* A chosen version comes first for a slot, unless no source has its bytes: then it must not block
 * versions that can be fetched. */
static bool is_firm(const versions_t *s, const versions_entry_t *e)
{
    return versions_is_chosen(s, e) && !e->starved;
}

/* The cluster has decided for a later version. A fetch of this one would end in a version that is retired
 * at once. */
static bool is_overtaken(const versions_t *s, const versions_entry_t *e)
{
    return e->version < s->decided.version;
}

/* These versions can be made active without further work of the application. */
static bool is_ready(const versions_entry_t *e)
{
    return e->state == VERSIONS_STAGED || e->state == VERSIONS_ACTIVE || e->state == VERSIONS_KEPT;
}

/* The application was asked to switch to this version, and has not. */
static bool is_asked(const versions_t *s, const versions_entry_t *e)
{
    return s->switching != SWITCH_DONE && s->switching_to == e->version;
}

static versions_entry_t *find_version(versions_t *s, uint64_t version)
{
    FOR_EACH(s, e)
        if (e->state != VERSIONS_ABSENT && e->version == version) return e;
    return NULL;
}

static versions_entry_t *find_in(versions_t *s, versions_state_t state)
{
    FOR_EACH(s, e)
        if (e->state == state) return e;
    return NULL;
}

/* --- failures ----------------------------------------------------------------------------------- */

/* The latest failure that fits: a version may fail several times, and the last reason is the one to
 * report. */
versions_nack_t *versions_nack(versions_t *s, uint64_t version, uint64_t decision)
{
    versions_nack_t *last = NULL;
    for (versions_nack_t *k = s->nacks; k < s->nacks + VERSIONS_NACKS; k++) {
        bool fits = k->order && k->version == version &&
                    (k->decision == decision || decision == VERSIONS_ANY_DECISION);
        if (fits && (!last || k->order > last->order)) last = k;
    }
    return last;
}

/* --- actions ------------------------------------------------------------------------------------ */

/* The action has copies of the entry's fields, because the entry may be forgotten within the same step. */
static versions_action_t *act(run_t *run, versions_action_kind_t kind, const versions_entry_t *e)
{
    versions_action_t *a = &run->out[run->count++];
    *a = (versions_action_t){.kind = kind,
                             .version = e->version,
                             .decision = e->decision,
                             .what = e->what,
                             .slot = e->slot,
                             .digest = e->digest};
    return a;
}

/* VA_TELL_APP is an event of the application. */
static versions_action_t *tell_app(run_t *run, const versions_entry_t *e, int event, int err)
{
    versions_action_t *a = act(run, VA_TELL_APP, e);
    a->event = event;
    a->err = err;
    return a;
}

/* While the session is down nothing is sent: on_up sends it, unless the JOIN restated it. */
static void send_staged(run_t *run, const versions_entry_t *e)
{
    if (run->s->up) act(run, VA_SEND_STAGED, e);
}

/* As send_staged, for the version that is served. It names the decision that was applied last. */
static void send_active(run_t *run, const versions_entry_t *e)
{
    if (run->s->up) act(run, VA_SEND_ACTIVE, e)->decision = run->s->applied.decision;
}

/* An application is asked to switch to a version, or to go back to the active one. */
static void ask_to_switch(run_t *run, const versions_entry_t *e)
{
    run->s->switching = SWITCH_ASKED;
    run->s->switching_to = e->version;
    tell_app(run, e, HEDDLE_EVENT_COMMIT, 0);
}

/* The failure is remembered, because the message may have to wait for the session, and because later
 * events of the version repeat its reason. A full table forgets the oldest failure, one that was sent
 * before one that was not. */
static void send_nack(run_t *run, const versions_entry_t *e, uint64_t decision, const heddle_error_t *error)
{
    versions_t *s = run->s;
    versions_nack_t *known = versions_nack(s, e->version, decision), *oldest = s->nacks;
    for (versions_nack_t *k = s->nacks; k < s->nacks + VERSIONS_NACKS; k++) {
        bool is_older = k->pending == oldest->pending && k->order < oldest->order;
        if (k->pending < oldest->pending || is_older) oldest = k;
    }
    *(known ? known : oldest) = (versions_nack_t){.order = ++s->nack_order,
                                                  .version = e->version,
                                                  .decision = decision,
                                                  .pending = !s->up,
                                                  .error = *error};
    s->failed_count++;
    if (s->up) act(run, VA_SEND_NACK, e)->decision = decision;
    tell_app(run, e, decision ? HEDDLE_EVENT_STALE : HEDDLE_EVENT_FAILED, error->code);
}

/* --- changes that more than one event makes ----------------------------------------------------- */

/* The slot number is -1 and not 0, which is a slot. */
static void forget(run_t *run, versions_entry_t *e)
{
    act(run, VA_FORGET, e);
    *e = (versions_entry_t){.state = VERSIONS_ABSENT, .slot = -1};
}

/* A version that is held is restated with its age in a state, so that the broker shows it after a restart. */
static void enter(run_t *run, versions_entry_t *e, versions_state_t state)
{
    e->state = state;
    e->since_us = run->now;
}

/* Gives up a version. Its slot is free when nothing uses the memory any more; that is the slot's state, and
 * no entry is needed for it. */
static void leave(run_t *run, versions_entry_t *e)
{
    if (e->slot >= 0) act(run, VA_DROP, e);
    forget(run, e);
}

/* A slot may still be written into after its fetch was stopped, so it cannot be used at once for the same
 * version. The slot leaves on its own, and the version waits for another one. */
static void wait_again(run_t *run, versions_entry_t *e)
{
    if (e->slot >= 0) act(run, VA_DROP, e);
    e->slot = -1;
    e->state = VERSIONS_WAITING;
    e->is_damaged = false;
}

/* A version that is chosen, or that has no deadline, must get here in the end: it waits again, with
 * growing pauses. Any other one is given up, and the broker decides without this worker. */
static void fail_version(run_t *run, versions_entry_t *e, const heddle_error_t *error)
{
    send_nack(run, e, 0, error);
    if (!versions_is_chosen(run->s, e) && e->deadline_us != CLOCK_NEVER) {
        leave(run, e);
        return;
    }
    wait_again(run, e);
    e->start_us = run->now + (VERSIONS_RETRY_US << (e->tries < 4 ? e->tries : 4));
    e->tries++;
}

/* Bytes that have gone bad in memory are not switched to, and the application keeps no copy of them. */
static void drop_damaged(run_t *run, versions_entry_t *e)
{
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_DIGEST_MISMATCH, "the bytes of version %llu in memory here have gone bad",
               (unsigned long long)e->version);
    error_where(&error, NULL, e->version, NULL, "verify");
    error_hint(&error, "check this host's memory. A version that is activated is fetched again by itself");
    if (versions_is_chosen(run->s, e)) {
        fail_version(run, e, &error);
        return;
    }
    send_nack(run, e, 0, &error);
    if (e->state == VERSIONS_KEPT) tell_app(run, e, HEDDLE_EVENT_RETIRED, 0);
    leave(run, e);
}

/* Makes a version the active one. The version before stays as KEPT, so that a rollback needs no fetch,
 * unless the broker has retired it meanwhile. */
static void flip(run_t *run, versions_entry_t *e)
{
    versions_t *s = run->s;
    versions_entry_t *before = find_in(s, VERSIONS_ACTIVE);
    s->applied = (decision_t){e->decision, e->version, e->digest};
    s->activated_count += before != e;
    if (before != e) act(run, VA_FLIP, e);
    if (before && before != e) {
        enter(run, before, VERSIONS_KEPT);
        if (before->retired) leave(run, before);
    }
    enter(run, e, VERSIONS_ACTIVE);
    e->retired = false;
    send_active(run, e);
    tell_app(run, e, HEDDLE_EVENT_ACTIVE, 0);
    if (before && before->state == VERSIONS_KEPT && before->is_damaged) drop_damaged(run, before);
}

/* Applies the latest decision whose version is ready. AUTO switches at once; an application is asked,
 * once for each decision, and switches when it answers. */
static void apply_decided(run_t *run)
{
    versions_entry_t *best = NULL;
    FOR_EACH(run->s, e)
        if (is_ready(e) && versions_is_chosen(run->s, e) && (!best || e->decision > best->decision)) best = e;
    if (!best) return;
    if (!run->s->app || (best->state == VERSIONS_ACTIVE && run->s->switching == SWITCH_DONE)) {
        flip(run, best);
    } else if (best->asked_decision != best->decision) {
        best->asked_decision = best->decision;
        ask_to_switch(run, best);
    }
}

/* Its former slot is still leaving, and its share key is in use until then. */
static bool is_barred(const versions_entry_t *e, const versions_slots_t *slots)
{
    for (uint32_t i = 0; i < slots->leaving_count; i++)
        if (slots->leaving[i] == e->version) return true;
    return false;
}

/* The first of the waiting versions, of those that are barred or of the others: a firm one, else the one that
 * was announced last. */
static versions_entry_t *waiting_first(versions_t *s, const versions_slots_t *slots, bool barred)
{
    versions_entry_t *head = NULL;
    FOR_EACH(s, e) {
        if (e->state != VERSIONS_WAITING || e->start_us || is_barred(e, slots) != barred) continue;
        bool firm = is_firm(s, e), head_firm = head && is_firm(s, head);
        if (!head || firm > head_firm || (firm == head_firm && e->order > head->order)) head = e;
    }
    return head;
}

/* The version that gets the next slot. */
static versions_entry_t *waiting_head(versions_t *s, const versions_slots_t *slots)
{
    return waiting_first(s, slots, false);
}

/* Gives the next free slot to the head of the waiting versions. A newer announcement may preempt a
 * fetch, but never one that is firm: else a worker slower than its trainer would fetch for ever and
 * finish nothing. */
static void start_next(run_t *run)
{
    versions_t *s = run->s;
    /* Pauses after a failure that are over. */
    FOR_EACH(s, e)
        if (e->start_us <= run->now) e->start_us = 0;
    versions_entry_t *head = waiting_head(s, run->slots), *fetching = find_in(s, VERSIONS_COMING);
    bool preempts = s->up && head && fetching && (is_firm(s, head) || head->order > fetching->order);
    if (preempts && !is_firm(s, fetching)) {
        wait_again(run, fetching);
        if (is_overtaken(s, fetching)) forget(run, fetching);
        fetching = NULL;
    }
    /* A broker may allow fewer slots than the table has. */
    int slot = head && !fetching && run->slots->next < (int)s->slot_count ? run->slots->next : -1;
    bool blocked = head && !fetching && slot < 0 && head->patience_us != CLOCK_NEVER;
    if (!blocked) s->give_up_us = CLOCK_NEVER;
    else if (s->give_up_us == CLOCK_NEVER) s->give_up_us = run->now + head->patience_us;
    if (slot < 0) return;
    /* Its sources get another chance, whatever the last list said. */
    head->slot = slot;
    head->state = VERSIONS_COMING;
    head->starved = false;
    act(run, VA_BRING, head);
}

/* --- what an event asks for, where that is more than a line -------------------------------------- */

/* A version number stands for the same bytes for ever. Another digest means that the registry was
 * restored or mixed up, and no guess which one is right can be made here. */
static void refuse_digest(run_t *run, const versions_entry_t *e, uint64_t decision, const digest_t *decided,
                          const char *phase)
{
    char here[HEDDLE_DIGEST_TEXT], there[HEDDLE_DIGEST_TEXT];
    digest_text(&e->digest, here);
    digest_text(decided, there);
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_DIGEST_MISMATCH,
               "the broker names version %llu with another digest than the one known here",
               (unsigned long long)e->version);
    error_where(&error, NULL, e->version, NULL, phase);
    error_contrast(&error, there, here);
    send_nack(run, e, decision, &error);
}

/* An entry for the announced version. There is always a free one: the waiting versions are limited, since a
 * trainer can publish without end while every slot is held by readers, and the slots limit the others. The
 * oldest waiting one is refused, as the newest is the one worth having. */
static versions_entry_t *add(run_t *run)
{
    versions_t *s = run->s;
    versions_entry_t *e = find_in(s, VERSIONS_ABSENT), *oldest = NULL;
    *e = (versions_entry_t){.state = VERSIONS_WAITING,
                            .slot = -1,
                            .version = run->ev->version,
                            .what = run->ev->what,
                            .digest = run->ev->digest,
                            .order = ++s->order};
    /* Its COMMIT may have come first. */
    if (s->decided.version == e->version) e->decision = s->decided.decision;
    uint32_t count = 0;
    FOR_EACH(s, each) {
        if (each->state != VERSIONS_WAITING) continue;
        count++;
        if (!versions_is_chosen(s, each) && (!oldest || each->order < oldest->order)) oldest = each;
    }
    if (count <= VERSIONS_WAITING_MAX || !oldest) return e;
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_LIMIT, "more than %u versions wait for a slot; this is the oldest",
               VERSIONS_WAITING_MAX);
    error_where(&error, NULL, oldest->version, NULL, "announce");
    send_nack(run, oldest, 0, &error);
    forget(run, oldest);
    return e;
}

/* The worker joined during a rollout, and has only begun to fetch what was active then: no rollout waits for
 * that (no deadline), and nothing was announced before it.  So this happens once in the life of a process.
 * If each decision ended a fetch, a worker slower than its trainer would finish none. */
static bool gives_way(const run_t *run, const versions_entry_t *e, const versions_entry_t *chosen)
{
    bool can_be_fetched =
        chosen && chosen->state == VERSIONS_WAITING && !chosen->starved && !chosen->start_us;
    return can_be_fetched && e->order == 1 && e->deadline_us == CLOCK_NEVER && !run->slots->is_half_fetched;
}

/* A decision greater than all before.  What is remembered is applied when its version is ready. */
static void take_decision(run_t *run, const decision_t *d)
{
    versions_t *s = run->s;
    s->decided = *d;
    versions_entry_t *chosen = find_version(s, d->version), *active = find_in(s, VERSIONS_ACTIVE);
    FOR_EACH(s, e) {
        /* A step back: what lies ahead of it is not to be served.  But an application that was sent a
         * COMMIT may have switched already: its answer is true, and counts. */
        bool is_switching = versions_is_chosen(s, e) && e->asked_decision == e->decision;
        if (e->version > d->version && !is_switching) e->decision = 0;
        /* Of what a later decision overtook, only a fetch that gets somewhere goes on. */
        if (e == chosen || !is_overtaken(s, e)) continue;
        if (e->state == VERSIONS_WAITING) forget(run, e);
        else if (e->state == VERSIONS_COMING && (e->starved || gives_way(run, e, chosen))) leave(run, e);
    }
    if (chosen && !digest_equal(&chosen->digest, &d->digest))
        refuse_digest(run, chosen, d->decision, &d->digest, "activate");
    else if (chosen) chosen->decision = d->decision;
    if (active && active != chosen && !(chosen && is_ready(chosen))) {
        versions_entry_t missing = {.version = d->version,
                                    .what = chosen ? chosen->what : NULL,
                                    .digest = d->digest,
                                    .decision = d->decision,
                                    .slot = -1};
        tell_app(run, &missing, HEDDLE_EVENT_STALE, 0);
    }
}

/* A decided version is retired like any other: the broker never retires what its latest decision chose. So
 * a later decision exists that has not arrived here, and no other worker keeps these bytes. */
static void on_retire(run_t *run, versions_entry_t *e)
{
    if (e->state == VERSIONS_ACTIVE) {
        e->retired = true;
        return;
    }
    tell_app(run, e, HEDDLE_EVENT_RETIRED, 0);
    leave(run, e);
}

/* WELCOME is the truth after a pause: it names the decision in force and the versions to keep. A broker
 * with older data may not know the version that the application was asked to switch to; the application
 * is then asked to go back to the one that stays active. */
static void on_up(run_t *run)
{
    versions_t *s = run->s;
    const versions_event_t *ev = run->ev;
    s->up = true;
    s->slot_count = ev->slot_count;
    s->give_up_us = CLOCK_NEVER;
    if (ev->decision > s->applied.decision)
        take_decision(run, &(decision_t){ev->decision, ev->version, ev->digest});
    FOR_EACH(s, e) {
        bool is_kept = ev->decision && ev->version == e->version;
        for (uint32_t i = 0; i < ev->keep_count; i++) is_kept |= ev->keep[i] == e->version;
        if (versions_is_here(e) && is_kept) e->retired = false;
        else if (versions_is_here(e) && e->restated) on_retire(run, e);
        bool came_as_kept = e->state == VERSIONS_KEPT && e->is_kept;
        if ((e->state == VERSIONS_STAGED || came_as_kept) && e->restated < VERSIONS_STAGED)
            send_staged(run, e);
        if (e->deadline_us < run->now + VERSIONS_GRACE_US) e->deadline_us = run->now + VERSIONS_GRACE_US;
    }
    const versions_entry_t *active = versions_active(s);
    if (active && active->restated != VERSIONS_ACTIVE) send_active(run, active);
    bool is_switching = s->switching != SWITCH_DONE;
    if (is_switching)
        s->switching = SWITCH_ASKED; /* the broker received in JOIN that the version is active */
    if (active && is_switching && s->decided.decision <= s->applied.decision) ask_to_switch(run, active);
    /* What failed meanwhile is sent in the order in which it happened: a later failure of a version may
     * correct an earlier one. */
    for (;;) {
        versions_nack_t *first = NULL;
        for (versions_nack_t *k = s->nacks; k < s->nacks + VERSIONS_NACKS; k++)
            if (k->pending && (!first || k->order < first->order)) first = k;
        if (!first) return;
        first->pending = false;
        if (first->decision && first->decision == s->applied.decision) s->switching = SWITCH_REFUSED;
        const versions_entry_t *e = find_version(s, first->version);
        versions_entry_t about = {.version = first->version,
                                  .what = e ? e->what : NULL,
                                  .decision = first->decision,
                                  .slot = -1};
        act(run, VA_SEND_NACK, &about);
    }
}

/* A version that failed before and is staged now has no failure to report any more. */
static void become_staged(run_t *run, versions_entry_t *e)
{
    versions_nack_t *nack = versions_nack(run->s, e->version, 0);
    if (nack) nack->pending = false; /* it was tried again, and went well */
    enter(run, e, e->is_kept && !versions_is_chosen(run->s, e) ? VERSIONS_KEPT : VERSIONS_STAGED);
    run->s->staged_count++;
    send_staged(run, e);
    if (!run->s->app) tell_app(run, e, HEDDLE_EVENT_STAGED, 0);
}

/* What was decided and not applied may have changed meanwhile: only the next WELCOME says. */
static void on_down(run_t *run)
{
    versions_t *s = run->s;
    s->up = false;
    s->decided = s->applied;
    FOR_EACH(s, e) {
        if (versions_is_chosen(s, e)) e->decision = e->asked_decision = 0;
        e->restated = VERSIONS_ABSENT;
    }
}

/* The broker repeats an announcement when it does not know how far this worker is: what is staged or served
 * is said again.  e NULL: the version is new. */
static void on_announce(run_t *run, versions_entry_t *e)
{
    const versions_event_t *ev = run->ev;
    if (e && !digest_equal(&e->digest, &ev->digest)) {
        refuse_digest(run, e, 0, &ev->digest, "announce");
        return;
    }
    if (!e) e = add(run);
    uint64_t left = ev->deadline_us;
    e->deadline_us = left ? run->now + left + VERSIONS_GRACE_US : CLOCK_NEVER;
    e->is_kept = ev->is_kept;
    if (e->patience_us != CLOCK_NEVER)
        e->patience_us = left && left / 4 < VERSIONS_SLOT_WAIT_US ? left / 4 : VERSIONS_SLOT_WAIT_US;
    e->starved = false;
    if (e->state == VERSIONS_STAGED || e->state == VERSIONS_KEPT) send_staged(run, e);
    else if (e->state == VERSIONS_ACTIVE) send_active(run, e);
}

/* What is or was served, or may be already, is left alone: only RETIRE takes it away. */
static void on_abort(run_t *run, versions_entry_t *e)
{
    if (e->state == VERSIONS_ACTIVE || e->state == VERSIONS_KEPT || versions_is_chosen(run->s, e)) return;
    int err = run->ev->error ? run->ev->error->code : HEDDLE_ERR_VERSION_FAILED;
    tell_app(run, e, HEDDLE_EVENT_FAILED, err)->why = run->ev->error;
    leave(run, e);
}

/* The application says that it serves this version. Without a session a new switch is refused: the broker
 * may have decided otherwise meanwhile. */
static int on_app_activate(run_t *run, versions_entry_t *e)
{
    if (e->state == VERSIONS_ACTIVE && !versions_is_chosen(run->s, e)) {
        if (!is_asked(run->s, e)) return HEDDLE_OK;
        versions_nack_t *nack = versions_nack(run->s, e->version, run->s->applied.decision);
        if (nack) nack->pending = false; /* it was refused, and went well then */
        if (run->s->switching == SWITCH_REFUSED) send_active(run, e);
        run->s->switching = SWITCH_DONE;
        return HEDDLE_OK;
    }
    if (!is_ready(e)) return HEDDLE_ERR_NOT_FOUND;
    if (!run->s->up) return HEDDLE_ERR_FENCED;
    if (!versions_is_chosen(run->s, e)) return HEDDLE_ERR_NOT_FOUND;
    if (is_asked(run->s, e)) run->s->switching = SWITCH_DONE;
    flip(run, e);
    return HEDDLE_OK;
}

/* The cases differ in what the broker has to learn: a chosen version failed to become active (NACK with
 * the decision), the active one cannot be returned to (NACK with the applied decision), or a version
 * could not be staged (NACK without a decision). */
static int on_app_reject(run_t *run, versions_entry_t *e)
{
    if (is_ready(e) && versions_is_chosen(run->s, e)) {
        uint64_t decision = e->decision;
        e->decision = e->asked_decision = 0; /* a WELCOME that names it again asks again */
        send_nack(run, e, decision, run->ev->error);
        return HEDDLE_OK;
    }
    if (e->state == VERSIONS_ACTIVE && is_asked(run->s, e)) { /* to go back to it */
        send_nack(run, e, run->s->applied.decision, run->ev->error);
        run->s->switching = SWITCH_REFUSED;
        return HEDDLE_OK;
    }
    if (e->state != VERSIONS_ARRIVED && e->state != VERSIONS_STAGED) return HEDDLE_ERR_NOT_FOUND;
    send_nack(run, e, 0, run->ev->error);
    leave(run, e);
    return HEDDLE_OK;
}

/* --- time --------------------------------------------------------------------------------------- */

/* A chosen version does not expire: the cluster serves it, and this worker should too, however late. */
static bool can_expire(const versions_t *s, const versions_entry_t *e)
{
    bool is_open =
        e->state == VERSIONS_WAITING || e->state == VERSIONS_COMING || e->state == VERSIONS_ARRIVED;
    return s->up && is_open && !versions_is_chosen(s, e);
}

/* The broker ends a rollout at its deadline and sends ABORT. This is for an ABORT that was lost: it comes
 * VERSIONS_GRACE_US later, by the worker's own clock. */
static bool expire_one(run_t *run)
{
    FOR_EACH(run->s, e) {
        if (!can_expire(run->s, e) || run->now < e->deadline_us) continue;
        heddle_error_t error;
        error_fail(&error, HEDDLE_ERR_DEADLINE,
                   "the deadline ran out on the worker, and no message came from the broker");
        error_where(&error, NULL, e->version, NULL, e->state == VERSIONS_ARRIVED ? "stage" : "fetch");
        send_nack(run, e, 0, &error);
        leave(run, e);
        return true;
    }
    return false;
}

/* No slot came free for long enough. A staged version that was overtaken before any decision gives up its
 * slot; otherwise the waiting version fails with NO_SLOT, once, and a chosen one goes on waiting. */
static void give_up_waiting(run_t *run)
{
    versions_t *s = run->s;
    versions_entry_t *head = waiting_head(s, run->slots);
    if (!s->up || !head || run->now < s->give_up_us) return;
    s->give_up_us = CLOCK_NEVER;
    heddle_error_t error;
    FOR_EACH(s, e) { /* a staged version that an announcement overtook before any decision for it */
        bool is_older = e->version < head->version && e->order < head->order;
        if (e->state != VERSIONS_STAGED || versions_is_chosen(s, e) || !is_older) continue;
        /* One that was decided and refused is still counted as held by the broker. */
        if (versions_nack(s, e->version, VERSIONS_ANY_DECISION)) {
            error_fail(&error, HEDDLE_ERR_NO_SLOT, "its slot was needed for version %llu",
                       (unsigned long long)head->version);
            error_where(&error, NULL, e->version, NULL, "activate");
            send_nack(run, e, 0, &error);
        }
        leave(run, e);
        return;
    }
    error_fail(&error, HEDDLE_ERR_NO_SLOT, "all %u slots are in use", s->slot_count);
    error_where(&error, NULL, head->version, NULL, "announce");
    send_nack(run, head, 0, &error);
    versions_nack(s, head->version, 0)->lacks_occupants = true;
    head->patience_us = CLOCK_NEVER;
    if (!versions_is_chosen(s, head) && head->deadline_us != CLOCK_NEVER) forget(run, head);
}

/* While the session is down no version fails for lack of a slot: the broker could not be informed. */
uint64_t versions_deadline(const versions_t *s)
{
    uint64_t next = s->up ? s->give_up_us : CLOCK_NEVER;
    FOR_EACH((versions_t *)s, e) {
        if (can_expire(s, e) && e->deadline_us < next) next = e->deadline_us;
        if (e->state == VERSIONS_WAITING && e->start_us && e->start_us < next) next = e->start_us;
    }
    return next;
}

const versions_entry_t *versions_barred(const versions_t *s, const versions_slots_t *slots)
{
    return waiting_first((versions_t *)s, slots, true);
}

bool versions_lacks_slot(const versions_t *s, const versions_slots_t *slots)
{
    bool is_full = slots->next < 0 || slots->next >= (int)s->slot_count;
    return s->up && is_full && waiting_head((versions_t *)s, slots) && !versions_coming(s);
}

/* --- the table ---------------------------------------------------------------------------------- */

/* One case is one row of the table in versions.h.  In a state that a case does not name the event changes
 * nothing.  After every event a decision may be applicable and a slot may have a new use; both are looked at
 * once at the end, and not in each case. */
int versions_step(versions_t *s, const versions_event_t *event, const versions_slots_t *slots,
                  uint64_t now_us, versions_action_t out[])
{
    run_t *run = &(run_t){.s = s, .ev = event, .slots = slots, .now = now_us, .out = out};
    versions_entry_t *e = find_version(s, event->version);
    versions_state_t state = e ? e->state : VERSIONS_ABSENT;
    bool is_coming = state == VERSIONS_COMING;
    int rc = HEDDLE_OK;
    switch (event->kind) {
    case VE_UP: on_up(run); break;
    case VE_DOWN: on_down(run); break;
    case VE_TICK:
        if (!expire_one(run)) give_up_waiting(run);
        break;
    case VE_ANNOUNCE:
        if (s->up) on_announce(run, e);
        break;
    case VE_COMMIT:
        if (!s->up) break;
        if (event->decision > s->decided.decision && event->decision > s->applied.decision)
            take_decision(run, &(decision_t){event->decision, event->version, event->digest});
        else if (event->decision == s->applied.decision && state == VERSIONS_ACTIVE) {
            /* ACTIVE, by the decision that was applied: the answer to the first COMMIT was lost.  An
             * application that was asked to switch back has to answer first, and is asked again where it
             * refused. */
            if (!is_asked(run->s, e)) send_active(run, e);
            else if (run->s->switching == SWITCH_REFUSED) tell_app(run, e, HEDDLE_EVENT_COMMIT, 0);
        }
        break;
    case VE_ABORT:
        if (e) on_abort(run, e);
        break;
    case VE_RETIRE:
        if (e) on_retire(run, e);
        break;
    case VE_SOURCES:
        if (is_coming) {
            /* COMING: a version without a source gives way, so that it does not hold up one that has
             * sources. */
            e->starved = run->ev->source_count == 0;
            if (e->starved && is_overtaken(run->s, e) && !versions_is_chosen(run->s, e)) leave(run, e);
        }
        break;
    case VE_HOLDABLE:
        if (is_coming) {
            /* COMING: begins anew.  Its slot is LEAVING by then, if it is not free. */
            wait_again(run, e);
            e->starved = false;
            e->start_us = run->now + 1;
        }
        break;
    case VE_ARRIVED:
        if (!is_coming) break;
        if (s->app) {
            enter(run, e, VERSIONS_ARRIVED);
            tell_app(run, e, HEDDLE_EVENT_ARRIVED, 0);
        } else {
            become_staged(run, e);
        }
        break;
    case VE_BRING_FAILED:
        if (is_coming) fail_version(run, e, event->error);
        break;
    case VE_DAMAGED:
        if (e && versions_is_here(e)) {
            /* Bytes that are served go on being served until another version is. */
            e->is_damaged = true;
            if (e->state == VERSIONS_STAGED || e->state == VERSIONS_KEPT) drop_damaged(run, e);
        }
        break;
    case VE_DRAINED: break; /* a slot is free: see start_next */
    case VE_APP_STAGED:
        if (state == VERSIONS_ARRIVED) become_staged(run, e);
        if (!e || !is_ready(e)) rc = HEDDLE_ERR_NOT_FOUND;
        break;
    case VE_APP_ACTIVATE: rc = e ? on_app_activate(run, e) : HEDDLE_ERR_NOT_FOUND; break;
    case VE_APP_REJECT: rc = e ? on_app_reject(run, e) : HEDDLE_ERR_NOT_FOUND; break;
    }
    if (rc) return rc;
    if (s->up) apply_decided(run);
    start_next(run);
    return run->count;
}

/* --- for the node ------------------------------------------------------------------------------- */

/* For its adapter, which must not change an entry. */
const versions_entry_t *versions_find(const versions_t *s, uint64_t version)
{
    return find_version((versions_t *)s, version);
}

const versions_entry_t *versions_coming(const versions_t *s)
{
    return find_in((versions_t *)s, VERSIONS_COMING);
}
const versions_entry_t *versions_active(const versions_t *s)
{
    return find_in((versions_t *)s, VERSIONS_ACTIVE);
}

uint32_t versions_count(const versions_t *s, versions_state_t state)
{
    uint32_t count = 0;
    FOR_EACH((versions_t *)s, e) count += e->state == state;
    return count;
}

uint64_t versions_lag(const versions_t *s)
{
    const decision_t *to = &s->decided, *at = &s->applied;
    if (to->decision <= at->decision || to->version == at->version) return 0;
    if (!at->version) return 1;
    uint64_t decisions = to->decision - at->decision;
    uint64_t apart = to->version > at->version ? to->version - at->version : at->version - to->version;
    return decisions < apart ? decisions : apart;
}

/* An application may load several versions at a time; the first one is the one that heartbeats name. */
const versions_entry_t *versions_loading(const versions_t *s)
{
    const versions_entry_t *first = NULL;
    FOR_EACH((versions_t *)s, e)
        if (e->state == VERSIONS_ARRIVED && (!first || e->order < first->order)) first = e;
    return first;
}

/* Not up: nothing is sent before the first WELCOME. */
void versions_init(versions_t *s, bool app)
{
    *s = (versions_t){.app = app, .give_up_us = CLOCK_NEVER};
    FOR_EACH(s, e) e->slot = -1;
}

/* What JOIN has said need not be said again after the WELCOME that answers it. */
void versions_restate(versions_t *s)
{
    FOR_EACH(s, e) e->restated = versions_is_here(e) ? e->state : VERSIONS_ABSENT;
}
