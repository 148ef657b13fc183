/* SPDX-License-Identifier: Apache-2.0 */
/* The versions of one worker in a world that obeys them: slots, one fetch, an application, a broker that comes and
 * goes.  Who includes this says where the numbers come from: a seed (worker_versions.c) or a fuzzer's bytes
 * (tests/fuzz/worker_core.c).
 *
 * What must hold after each step: a slot has one version, and one that is wanted back is not given away
 * before it was drained; one version is active, one at most is coming; a decision is never applied after
 * a greater one (I13); nothing is said while the session is down; the active version is never dropped;
 * an application is said to serve what it last said that it switched to; all is bounded (I9). */
#ifndef TESTS_UNIT_WORKER_WALK_H
#define TESTS_UNIT_WORKER_WALK_H

#include "core/errors.h"
#include "worker/versions.h"

#include <criterion/criterion.h>

/* 0 .. n-1 */
static uint64_t roll(uint64_t n);

typedef struct {
    versions_t s;
    uint64_t now_us, next_version, next_decision, highest_applied, active;
    uint64_t in_slot[LIMIT_SLOTS]; /* version whose memory a slot holds; 0: free */
    bool leaving[LIMIT_SLOTS];     /* the slot was dropped and is not drained: a reader, a send or an ask is
                                  in it */
    unsigned announced;            /* announcements that versions_t was given, and has not given back */
    bool is_unreserved; /* the event fails what is coming before its slot had memory: it is free already */
    uint64_t coming;    /* version that gets memory or bytes; 0: none */
    uint64_t
        asked; /* the COMMIT that the application heard last, and has not answered by a switch; 0: none */
    int slot;  /* that an event DRAINED is about */
    const versions_event_t *event;
} world_t;

/* What is said for the first time follows from the application's word, unless it is known to be there. */
static void check_served(const world_t *w, const versions_action_t *active)
{
    bool is_new = active->decision > w->highest_applied;
    bool is_told = w->event->kind == VE_APP_ACTIVATE && w->event->version == active->version;
    cr_assert(!w->s.app || !is_new || is_told || !w->asked, "active %d is said, %d was asked for",
              (int)active->version, (int)w->asked);
}

static void obey(world_t *w, const versions_action_t *out, int count)
{
    cr_assert_leq(count, (int)VERSIONS_ACTIONS_MAX);
    for (int i = 0; i < count; i++) {
        const versions_action_t *a = &out[i];
        switch (a->kind) {
        case VA_BRING:
            cr_assert_lt(a->slot, (int)w->s.slot_count);
            cr_assert(w->in_slot[a->slot] == 0 && !w->leaving[a->slot], "slot %d is not free", a->slot);
            cr_assert_eq(w->coming, 0, "two versions come at a time");
            w->in_slot[a->slot] = w->coming = a->version;
            break;
        case VA_DROP:
            if (w->is_unreserved && a->version == w->event->version) break; /* nothing was ever in it */
            cr_assert_eq(w->in_slot[a->slot], a->version);
            cr_assert_neq(w->active, a->version, "the active version was dropped");
            if (w->coming == a->version) w->coming = 0;
            w->leaving[a->slot] = true;
            break;
        case VA_FLIP:
            cr_assert(w->s.up);
            cr_assert(w->in_slot[a->slot] == a->version && !w->leaving[a->slot] && w->coming != a->version);
            cr_assert_gt(a->decision, w->highest_applied, "decision %d after %d", (int)a->decision,
                         (int)w->highest_applied);
            w->active = a->version;
            break;
        case VA_SEND_ACTIVE:
            cr_assert(w->s.up && a->version == w->active && a->decision >= w->highest_applied);
            check_served(w, a);
            w->highest_applied = a->decision;
            break;
        case VA_SEND_STAGED:
        case VA_SEND_NACK: cr_assert(w->s.up); break;
        case VA_TELL_APP:
            if (a->event == HEDDLE_EVENT_COMMIT) w->asked = a->version;
            break;
        case VA_FORGET:
            cr_assert(a->what);
            w->announced--;
            break;
        default: break;
        }
    }
    const versions_entry_t *e = versions_coming(&w->s);
    cr_assert_eq(w->coming, e ? e->version : 0, "what is to be fetched has an action");
}

static void check(world_t *w)
{
    unsigned active = 0, coming = 0, waiting = 0, entries = 0;
    uint64_t used = 0;
    for (unsigned i = 0; i < VERSIONS_ENTRIES; i++) {
        const versions_entry_t *e = &w->s.entries[i];
        active += e->state == VERSIONS_ACTIVE;
        coming += e->state == VERSIONS_COMING;
        waiting += e->state == VERSIONS_WAITING;
        entries += e->state != VERSIONS_ABSENT;
        cr_assert_eq(e->state != VERSIONS_ABSENT, e->what != NULL);
        bool owns = e->state >= VERSIONS_COMING;
        cr_assert_eq(owns, e->slot >= 0);
        if (!owns) continue;
        cr_assert(!(used >> e->slot & 1), "two versions in slot %d", e->slot);
        used |= 1ull << e->slot;
        cr_assert_eq(w->in_slot[e->slot], e->version);
        cr_assert(!w->leaving[e->slot], "version %d is in a slot that was dropped", (int)e->version);
    }
    cr_assert(active <= 1 && coming <= 1 && waiting <= VERSIONS_WAITING_MAX + 2);
    cr_assert_eq(entries, w->announced, "an announcement is lost");
    cr_assert_eq(coming == 1, w->coming != 0);
    cr_assert_eq(active == 1, w->active != 0);
    cr_assert_leq(w->s.applied.decision, w->s.decided.decision);
}

/* Mostly one that is here: of all that there were, few are. */
static uint64_t known(const world_t *w, uint64_t any)
{
    uint64_t skip = roll(4);
    for (const versions_entry_t *e = w->s.entries; e < w->s.entries + VERSIONS_ENTRIES; e++)
        if (e->state != VERSIONS_ABSENT && skip-- == 0) return e->version;
    return any;
}

/* One random event that the world allows, with now and then one that it does not. */
static versions_event_t any_event(world_t *w)
{
    uint64_t version = 1 + roll(w->next_version);
    w->slot = (int)roll(4);
    versions_event_t ev = {.version = version, .deadline_us = roll(2) ? 3000000 : 0, .slot_count = 3};
    w->is_unreserved = false;
    switch (roll(16)) {
    case 0:
    case 1:
        ev.kind = VE_ANNOUNCE;
        ev.version = ++w->next_version;
        break;
    case 2: ev.kind = VE_ANNOUNCE; break;
    case 3:
    case 4:
    case 5:
        ev.kind = VE_COMMIT;
        ev.decision = roll(4) ? ++w->next_decision : 1 + roll(w->next_decision + 1);
        ev.version = known(w, ev.version);
        break;
    case 6: ev.kind = roll(2) ? VE_ABORT : VE_RETIRE; break;
    case 7:
        ev.kind = w->s.up ? VE_DOWN : VE_UP;
        ev.decision = roll(w->next_decision + 1);
        break;
    case 8:
    case 9:
        ev.kind = w->coming && !roll(8) ? VE_BRING_FAILED : VE_TICK;
        ev.version = w->coming;
        w->is_unreserved = ev.kind == VE_BRING_FAILED;
        break;
    case 10:
    case 11:
        ev.kind = w->coming ? (roll(6) ? VE_ARRIVED : VE_BRING_FAILED) : VE_TICK;
        ev.version = w->coming;
        break;
    case 12:
        ev.kind = w->coming ? VE_HOLDABLE : VE_TICK;
        ev.version = w->coming;
        break;
    case 13:
        ev.kind = (versions_event_kind_t)(VE_APP_STAGED + roll(3));
        ev.version = known(w, ev.version);
        break;
    case 14:
        ev.kind = VE_APP_STAGED;
        ev.version = known(w, ev.version);
        break;
    default: ev.kind = VE_DRAINED; break;
    }
    return ev;
}

static digest_t walk_digest(uint64_t version)
{
    digest_t d = {{1}};
    memcpy(d.b + 8, &version, sizeof version);
    return d;
}

static void take_event(world_t *w, versions_event_t ev)
{
    versions_action_t out[VERSIONS_ACTIONS_MAX + 1];
    heddle_error_t why;
    error_fail(&why, HEDDLE_ERR_INTERNAL, "why");
    if (ev.kind == VE_BRING_FAILED || ev.kind == VE_APP_REJECT) ev.error = &why;
    ev.digest = walk_digest(ev.version);
    if (ev.kind == VE_ANNOUNCE) {
        ev.what = (struct announced *)w; /* any address: versions_step does not look at it */
        if (w->s.up && !versions_find(&w->s, ev.version)) w->announced++;
    }
    versions_slots_t slots = {.next = -1};
    for (int slot = (int)LIMIT_SLOTS; slot-- > 0;) {
        if (!w->in_slot[slot] && !w->leaving[slot]) slots.next = slot;
        if (w->leaving[slot]) slots.leaving[slots.leaving_count++] = w->in_slot[slot];
    }
    int n = versions_step(&w->s, &ev, &slots, w->now_us, out);
    w->event = &ev;
    if (n >= 0) obey(w, out, n);
    if (n >= 0 && ev.kind == VE_APP_ACTIVATE && ev.version == w->asked && w->active == ev.version)
        w->asked = 0;
    check(w);
}

/* A slot is free again, or nobody asked for that. */
static bool drain_slot(world_t *w, int slot)
{
    if (!w->leaving[slot]) return false;
    w->in_slot[slot] = 0;
    w->leaving[slot] = false;
    return true;
}

static void walk_begin(world_t *w, bool app)
{
    *w = (world_t){.now_us = 1, .next_version = 1};
    versions_init(&w->s, app);
}

static void walk_step(world_t *w)
{
    w->now_us += roll(300000);
    if (!w->s.up && roll(3) == 0) versions_restate(&w->s);
    versions_event_t ev = any_event(w);
    uint64_t keep[4] = {roll(w->next_version), roll(w->next_version), w->next_version, 1};
    if (ev.kind == VE_UP) ev.keep = keep, ev.keep_count = 4;
    if (ev.kind == VE_DRAINED && !drain_slot(w, w->slot)) return;
    for (int slot = 0; w->is_unreserved && slot < 4; slot++)
        if (w->in_slot[slot] == w->coming && !w->leaving[slot]) w->in_slot[slot] = 0;
    if (ev.kind == VE_ARRIVED || ev.kind == VE_BRING_FAILED) w->coming = 0;
    take_event(w, ev);
}

#endif
