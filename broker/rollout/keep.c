/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/keep.h"

#include "broker/registry/decision.h"
#include "broker/rollout/messages.h"

/* A fetch without a new byte for so long has stalled.  The slowest fetch that counts as alive reads a
 * chunk of 256 KiB at 9 kB/s, which a worker's --max-rate may allow. */
#define STALL_US 30000000ull

/* ---- which workers fetch it, and which load it ---- */

/* Workers fetch versions in the order in which these were announced.  So the worker can be fetching this
 * one only if no version that was announced earlier is still pending there. */
static bool is_sent_first(const track_t *t, const copy_row_t *c, const member_t *m)
{
    for (size_t i = 0; t->of->tracks[i] != t; i++) {
        const track_t *earlier = t->of->tracks[i];
        const copy_row_t *other = track_is_ended(earlier) ? NULL : copy_of(earlier, m);
        if (copy_is_sent(other) && other->sent_us <= c->sent_us) return false;
    }
    return true;
}

/* Until when the worker counts as fetching the version, unless it reports more.  Either bytes came lately,
 * or ANNOUNCE was sent less than half a lease ago (two heartbeats) and no heartbeat has reported yet.
 * Never longer than the version's deadline.  0: the worker does not fetch it. */
static uint64_t fetching_until(view_t v, const track_t *t, const copy_row_t *c)
{
    if (!copy_is_sent(c) || c->state == COPY_ARRIVED) return 0;
    const member_t *m = membership_by_token(v.members, c->token);
    const member_sub_t *sub = m ? member_sub(m, t->adapter) : NULL;
    if (!sub || (sub->fetching && sub->fetching != t->version)) return 0;
    if (!sub->fetching && !is_sent_first(t, c, m)) return 0;
    uint64_t end_us = c->sent_us + t->row->deadline_ms * 1000;
    uint64_t quiet_us = sub->fetching ? c->moved_us + STALL_US : c->sent_us + t->of->ro->lease_us / 2;
    return quiet_us < end_us ? quiet_us : end_us;
}

static bool is_switching(const track_t *t, const copy_row_t *c)
{
    return copy_is_switching(c) && !registry_is_taken_back(t->of->row, t->row);
}

/* Until when its application counts as loading the version, or switching to it: for the version's
 * deadline. */
static uint64_t loading_until(view_t v, const track_t *t, const copy_row_t *c)
{
    const member_t *m = membership_by_token(v.members, c->token);
    const member_sub_t *sub = m ? member_sub(m, t->adapter) : NULL;
    if (!sub) return 0;
    bool has_arrived = c->state == COPY_ARRIVED && copy_is_sent(c);
    bool is_loading = has_arrived && (sub->fetching ? sub->fetching == t->version : is_sent_first(t, c, m));
    uint64_t since_us = is_loading ? c->sent_us : is_switching(t, c) ? c->switch_us : 0;
    return since_us ? since_us + t->row->deadline_ms * 1000 : 0;
}

typedef uint64_t until_fn(view_t, const track_t *, const copy_row_t *);

/* The end of one copy of which it is still in the future; 0: there is none.  One is enough, as the version
 * is looked at again at that time.  The walk begins at the copy that was found last (`at`), so that a worker
 * that takes long is found at once.  A version that was taken back is not kept for any worker, so it has
 * none. */
static uint64_t some_until(until_fn *until, view_t v, const track_t *t, size_t *at)
{
    if (registry_is_taken_back(t->of->row, t->row)) return 0;
    for (size_t i = 0; i < t->copy_count; i++) {
        size_t k = (*at + i) % t->copy_count;
        uint64_t end_us = until(v, t, track_walk(t, k));
        if (end_us <= v.now.us) continue;
        *at = k;
        return end_us;
    }
    return 0;
}

/* The tally rules out most versions, so that the copies are only read where one may be loading. */
uint64_t keep_loaded_until(view_t v, track_t *t)
{
    bool is_possible = t->tally.switching || tally_in(&t->tally, COPY_ARRIVED);
    return is_possible ? some_until(loading_until, v, t, &t->loading_at) : 0;
}

const char *keep_loader(view_t v, track_t *t)
{
    return keep_loaded_until(v, t) ? t->copies[t->loading_at]->worker : "";
}

/* ---- where room is needed ---- */

/* More than `keep`, and kept for the workers that fetch it. */
static bool is_extra(const track_t *t)
{
    return !track_is_ended(t) && t->fetched_until_us &&
           registry_is_excess(t->of->row, t->row, t->of->ro->keep);
}

/* The worker has more versions than slots: those that it has, and one that is on its way, however many were
 * announced.  A worker that is about to switch has room as soon as it has: what it serves now goes first. */
static bool is_full(const adapter_rollout_t *a, const member_t *m, uint64_t now_us)
{
    uint64_t used = 0;
    bool is_coming = false;
    for (size_t i = 0; i < a->track_count; i++) {
        const track_t *t = a->tracks[i];
        const copy_row_t *c = track_is_ended(t) ? NULL : copy_of(t, m);
        if (!c) continue;
        if (is_switching(t, c) && now_us < c->switch_us + t->row->deadline_ms * 1000) return false;
        used += copy_holds(c);
        is_coming |= copy_is_sent(c);
    }
    return used + is_coming > m->slots;
}

/* The worker of this copy, where more room there depends on what is kept: the copy is kept, and it is spare
 * or kept for workers that fetch it (`extra`).  NULL: it does not. */
static const member_t *keeper_of(view_t v, const copy_row_t *c, bool extra)
{
    return c->state == COPY_KEPT && (extra || c->is_spare) ? membership_by_token(v.members, c->token) : NULL;
}

/* A worker reports itself that a version waits for a slot.  Otherwise slots are only counted for extra
 * versions: the others have a slot by the rules of keep.h. */
static bool needs_room(const adapter_rollout_t *a, const member_t *m, bool extra, uint64_t now_us)
{
    const member_sub_t *sub = member_sub(m, a->row->name);
    return sub && (sub->lacks_slot || (extra && is_full(a, m, now_us)));
}

/* No other worker has the version.  One that was ordered to leave has it no more: it may be gone by now,
 * since others had what it has. */
static bool is_last(view_t v, const track_t *t, const member_t *m)
{
    for (size_t i = 0; track_holder_count(t) > 1 && i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        const member_t *other =
            copy_holds(c) && c->token != m->token ? membership_by_token(v.members, c->token) : NULL;
        if (other && other->drain != DRAIN_DONE) return false;
    }
    return true;
}

/* How soon the member's copy goes when it needs room, by the order in keep.h; 0: it stays.  `last`: copies
 * that no other worker has are looked at, else only the others. */
static int rank_to_go(view_t v, const track_t *t, const member_t *m, bool last)
{
    const copy_row_t *c = track_is_ended(t) ? NULL : copy_of(t, m);
    if (!c || c->state != COPY_KEPT || !track_is_overtaken(t)) return 0;
    if (member_sub(m, t->adapter)->lacks_slot && !c->is_spare) return 0; /* its slot would not be free */
    if (is_last(v, t, m) != last) return 0;
    if (last && t->loaded_until_us) return 0;
    if (last) return t->fetched_until_us ? 1 : 2;
    if (!is_extra(t)) return 2;
    return plan_is_first(&t->plan, m->token) ? 1 : 3;
}

/* The copy that goes from this member next; NULL: none. */
static track_t *next_to_go(view_t v, const adapter_rollout_t *a, const member_t *m, bool last)
{
    track_t *best = NULL;
    int best_rank = 0;
    uint64_t best_decision = 0;
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        int rank = rank_to_go(v, t, m, last);
        uint64_t decision = rank ? t->row->decision : 0;
        bool is_better = t->fetched_until_us ? decision > best_decision : decision < best_decision;
        if (rank < best_rank || !rank || (rank == best_rank && !is_better)) continue;
        best = t;
        best_rank = rank;
        best_decision = decision;
    }
    return best;
}

/* ---- what goes ---- */

/* Rule 3 of keep.h: the version stays where it is served, loaded or switched to. */
static bool is_pinned(const track_t *t) { return t && (track_active_count(t) > 0 || t->loaded_until_us); }

/* RETIRE for this worker alone: others keep their copies, and the version stays live. */
static void put_away(step_t *s, track_t *t, const member_t *m)
{
    messages_send_retire(s, t->adapter, t->version, m);
    copy_drop(t, m->name);
}

/* A pinned version beyond `keep` stays only on the workers that serve it or switch to it.  All other
 * workers drop their copies, which frees their slots. */
static void thin_out(step_t *s, track_t *t)
{
    bool is_beyond = registry_is_excess(t->of->row, t->row, s->ro->keep) && is_pinned(t);
    if (!is_beyond || !tally_in(&t->tally, COPY_KEPT)) return;
    for (size_t i = t->copy_count; i-- > 0;) {
        const copy_row_t *c = track_walk(t, i);
        const member_t *m =
            c->state == COPY_KEPT && !is_switching(t, c) ? membership_by_token(s->v.members, c->token) : NULL;
        if (m) put_away(s, t, m);
    }
}

/* False for most versions, by the tally alone.  That saves the walk over the copies. */
static bool may_need_room(const track_t *t, bool extra)
{
    return t->tally.spare > 0 || (extra && tally_in(&t->tally, COPY_KEPT) > 0);
}

/* Whether an overtaken version is needed, and until when at least: it is looked at again then, because it may
 * be retired. */
static void look_for_use(step_t *s, track_t *t)
{
    bool is_possible = tally_in(&t->tally, COPY_ANNOUNCED) || tally_in(&t->tally, COPY_FETCHING);
    t->fetched_until_us = is_possible ? some_until(fetching_until, s->v, t, &t->fetching_at) : 0;
    t->loaded_until_us = keep_loaded_until(s->v, t);
    if (t->fetched_until_us) track_sooner(t, t->fetched_until_us);
    if (t->loaded_until_us) track_sooner(t, t->loaded_until_us);
}

/* Of a version that `keep` covers the use counts only where room is needed.  Else it is not looked for, as in
 * vain would mean a walk over all copies, at each message of a worker. */
static void look_for_uses(step_t *s, const adapter_rollout_t *a)
{
    bool is_scarce = false;
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        t->fetched_until_us = t->loaded_until_us = 0;
        if (!track_is_overtaken(t)) continue;
        if (registry_is_excess(a->row, t->row, s->ro->keep)) look_for_use(s, t);
        is_scarce |= may_need_room(t, is_extra(t));
    }
    for (size_t i = 0; is_scarce && i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        if (track_is_overtaken(t) && !registry_is_excess(a->row, t->row, s->ro->keep)) look_for_use(s, t);
    }
}

void keep_look(step_t *s, const adapter_rollout_t *a)
{
    look_for_uses(s, a);
    for (size_t i = 0; s->ro->is_settled && i < a->track_count; i++) { /* before, fetches are not known */
        track_t *t = a->tracks[i];
        if (track_is_ended(t)) continue;
        bool extra = is_extra(t);
        /* Puts away copies, one by one, until each worker that keeps this version has enough room. */
        for (size_t k = may_need_room(t, extra) ? t->copy_count : 0; k-- > 0;) {
            const member_t *m = keeper_of(s->v, track_walk(t, k), extra);
            for (track_t *other; m && needs_room(t->of, m, extra, s->v.now.us) &&
                                 (other = next_to_go(s->v, t->of, m, false));)
                put_away(s, other, m);
        }
        if (!extra) thin_out(s, t);
    }
}

/* Where only last copies are left, one version is retired for good.  Only one a time: its RETIRE makes
 * room, and whether another has to go is known only after that.  NULL: none has to go. */
static const track_t *last_to_go(const adapter_rollout_t *a, view_t v)
{
    for (size_t i = 0; i < a->track_count; i++) {
        const track_t *t = a->tracks[i];
        bool extra = is_extra(t);
        for (size_t k = 0; !track_is_ended(t) && may_need_room(t, extra) && k < t->copy_count; k++) {
            const member_t *m = keeper_of(v, track_walk(t, k), extra);
            if (!m || !needs_room(a, m, extra, v.now.us)) continue;
            const track_t *last = next_to_go(v, a, m, true);
            if (last) return last;
        }
    }
    return NULL;
}

/* Retires at most RETIRE_AT_ONCE versions, so that the records of one transaction stay bounded. */
void keep_decide(const adapter_rollout_t *a, view_t v, outbox_t *out)
{
    size_t count = 0;
    for (size_t i = registry_live_from(a->row); i < a->row->version_count && count < RETIRE_AT_ONCE; i++) {
        const version_row_t *row = a->row->versions[i];
        const track_t *t = track_of(a, row->version);
        if (!registry_is_excess(a->row, row, a->ro->keep) || is_pinned(t)) continue;
        if (t && t->fetched_until_us) continue;
        decision_end_version(a->row, row, VERSION_RETIRED, NULL, v.now, out);
        count++;
    }
    const track_t *last = count ? NULL : last_to_go(a, v);
    if (last) decision_end_version(a->row, last->row, VERSION_RETIRED, NULL, v.now, out);
}
