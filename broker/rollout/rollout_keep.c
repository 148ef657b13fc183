/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the decided versions stay, and where: `keep` of them besides the active one, what somebody has
 * nothing else than, and what somebody fetches, loads or switches to still.
 *
 * A worker has a slot for what it serves, one for what arrives and `keep` more.  What is kept for those who
 * fetch it is one more, and so it need not be everywhere: who has no room for all of it puts away what others
 * have too.  Only what the last holder has no room for is retired: first a version that nobody fetches, then
 * the latest that somebody does, so that whoever began first comes to its end.
 *
 * Readers take slots too, also of versions that were retired long ago: the broker cannot count those.
 * A worker says in its heartbeat that a version waits there for a slot, and which kept versions no reader
 * holds.  One of these goes, in the same order. */
#include "broker/rollout/rollout_part.h"

/* Longer than any chunk takes that a worker's --max-rate lets through in good faith (256 KiB at 9 kB/s). */
#define STALL_US 30000000ull

/* ---- who fetches what, and who loads it ---- */

/* Nothing that it was told of before is still to come: that it fetches first. */
static bool is_told_first(const rollout_t *ro, const track_t *t, const copy_row_t *c, const member_t *m)
{
    for (size_t i = track_first(ro, t->adapter); ro->tracks[i] != t; i++) {
        const copy_row_t *other = ro->tracks[i]->is_ended ? NULL : copy_of(ro->tracks[i], m);
        if (other && copy_in_flight(other) && other->told_us && other->told_us <= c->told_us) return false;
    }
    return true;
}

static const member_sub_t *sub_of(view_t v, const track_t *t, const copy_row_t *c,
                                  const member_t **ret_member)
{
    *ret_member = c->token ? membership_by_token(v.members, c->token) : NULL;
    return *ret_member ? member_sub(*ret_member, t->adapter) : NULL;
}

/* Until when, unless it says more: it said so and bytes come, or it was told of the version less than half a
 * lease ago (two of its heartbeats) and has said nothing; in no case longer than the version's deadline is.
 * 0: it does not. */
static uint64_t fetching_until(const rollout_t *ro, view_t v, const version_row_t *row, const track_t *t,
                               const copy_row_t *c)
{
    if (!copy_in_flight(c) || !c->told_us || c->state == COPY_ARRIVED) return 0;
    const member_t *m;
    const member_sub_t *sub = sub_of(v, t, c, &m);
    if (!sub || (sub->fetching && sub->fetching != t->version)) return 0;
    if (!sub->fetching && !is_told_first(ro, t, c, m)) return 0;
    uint64_t end_us = c->told_us + row->deadline_ms * 1000, quiet_us = c->told_us + ro->lease_us / 2;
    if (sub->fetching) quiet_us = c->moved_us + STALL_US;
    return quiet_us < end_us ? quiet_us : end_us;
}

/* It was told to switch to the version, has its bytes, and has switched neither to it nor to a later one. */
static bool is_switching(const adapter_row_t *a, const version_row_t *row, const copy_row_t *c,
                         const member_sub_t *sub)
{
    bool is_told = c->switch_us && sub && sub->decision < row->decision && !registry_is_taken_back(a, row);
    return is_told && copy_holds(c) && c->state != COPY_STALE;
}

/* Its application loads the version, or switches to it: neither longer than the version's deadline is. */
static uint64_t loading_until(const rollout_t *ro, view_t v, const version_row_t *row, const track_t *t,
                              const copy_row_t *c)
{
    const member_t *m;
    const member_sub_t *sub = sub_of(v, t, c, &m);
    const adapter_row_t *a = registry_adapter(v.registry, t->adapter);
    bool is_loading = sub && c->state == COPY_ARRIVED && c->told_us &&
                      (sub->fetching ? sub->fetching == t->version : is_told_first(ro, t, c, m));
    uint64_t since_us = is_loading ? c->told_us : is_switching(a, row, c, sub) ? c->switch_us : 0;
    return since_us ? since_us + row->deadline_ms * 1000 : 0;
}

typedef uint64_t until_fn(const rollout_t *, view_t, const version_row_t *, const track_t *,
                          const copy_row_t *);

/* Of those whose time is not over; nobody waits for what was taken back. */
static uint64_t latest(until_fn *until, const rollout_t *ro, view_t v, const version_row_t *row,
                       const track_t *t)
{
    uint64_t end_us = 0;
    bool is_dead = registry_is_taken_back(registry_adapter(v.registry, t->adapter), row);
    for (size_t i = 0; i < t->copy_count && !is_dead; i++) {
        uint64_t one_us = until(ro, v, row, t, t->copies[i]);
        if (one_us > v.now.us && one_us > end_us) end_us = one_us;
    }
    return end_us;
}

uint64_t keep_loaded_until(const rollout_t *ro, view_t v, const version_row_t *row, const track_t *t)
{
    return latest(loading_until, ro, v, row, t);
}

const char *keep_loader(const rollout_t *ro, view_t v, const version_row_t *row, const track_t *t)
{
    for (size_t i = 0; i < t->copy_count; i++)
        if (loading_until(ro, v, row, t, t->copies[i]) > v.now.us) return t->copies[i]->worker;
    return "";
}

static void note_needed(step_t *s, const version_row_t *row, track_t *t)
{
    uint64_t awaited_us = latest(fetching_until, s->ro, s->v, row, t);
    uint64_t loaded_us = keep_loaded_until(s->ro, s->v, row, t);
    if ((t->awaited_until_us && !awaited_us) || (t->loaded_until_us && !loaded_us)) track_touch(s->ro, t);
    t->awaited_until_us = awaited_us;
    t->loaded_until_us = loaded_us;
    if (awaited_us && awaited_us < t->due_us) t->due_us = awaited_us;
    if (loaded_us && loaded_us < t->due_us) t->due_us = loaded_us;
}

void keep_moved_on(rollout_t *ro, const adapter_row_t *a, const member_t *member, uint64_t version)
{
    for (size_t i = track_first(ro, a->name); i < ro->track_count && !strcmp(ro->tracks[i]->adapter, a->name);
         i++) {
        const version_row_t *row = registry_version(a, ro->tracks[i]->version);
        copy_row_t *c = copy_of(ro->tracks[i], member);
        bool is_overtaken = row && row->state == VERSION_COMMITTED && row->version != a->active;
        if (!c || !is_overtaken || row->version == version) continue;
        if (c->told_us) track_touch(ro, ro->tracks[i]); /* it may be lost now */
        c->told_us = 0;
        if (copy_in_flight(c)) c->announced_us = 0; /* it may have forgotten it: told anew, if wanted again */
    }
}

/* ---- where there is room ---- */

/* More than `keep`, and kept for those who fetch it. */
static bool is_extra(const rollout_t *ro, const adapter_row_t *a, const version_row_t *row, const track_t *t)
{
    return row && !t->is_ended && t->awaited_until_us && registry_is_excess(a, row, ro->keep);
}

static bool lacks_room(const rollout_t *ro, const adapter_row_t *a, const member_t *m, uint64_t now_us)
{
    uint64_t used = 0;
    bool is_coming = false; /* one at a time, however many it was told of */
    for (size_t i = track_first(ro, a->name); i < ro->track_count && !strcmp(ro->tracks[i]->adapter, a->name);
         i++) {
        const track_t *t = ro->tracks[i];
        const copy_row_t *c = copy_of(t, m);
        if (!c || t->is_ended) continue;
        const version_row_t *row = registry_version(a, t->version);
        bool is_next = is_switching(a, row, c, member_sub(m, a->name));
        if (is_next && now_us < c->switch_us + row->deadline_ms * 1000)
            return false; /* what it serves now goes first, as soon as it has switched */
        used += copy_holds(c);
        is_coming |= copy_in_flight(c) && (c->announced_us || c->told_us);
    }
    return used + is_coming > m->slots;
}

/* The worker of this copy, where more room there depends on what is kept: a version waits for a slot, or the
 * copy is kept for those who fetch it (`extra`).  NULL: it does not. */
static const member_t *keeper_of(view_t v, const copy_row_t *c, bool extra)
{
    if (c->state != COPY_KEPT || !(extra || c->is_spare)) return NULL;
    return c->token ? membership_by_token(v.members, c->token) : NULL;
}

static bool wants_room(const rollout_t *ro, const adapter_row_t *a, const member_t *m, bool extra,
                       uint64_t now_us)
{
    const member_sub_t *sub = member_sub(m, a->name);
    return sub && (sub->lacks_slot || (extra && lacks_room(ro, a, m, now_us)));
}

static bool is_first_source(const track_t *t, const member_t *m)
{
    for (size_t i = 0; i < t->copy_count; i++)
        if (copy_in_flight(t->copies[i]) && t->copies[i]->planned[0] == m->token) return true;
    return false;
}

/* How easily a member that lacks room does without it; 0: it cannot. */
static int ease(const rollout_t *ro, const adapter_row_t *a, const track_t *t, const member_t *m,
                bool is_last)
{
    const version_row_t *row = registry_version(a, t->version);
    const copy_row_t *c = copy_of(t, m);
    if (!c || !row || t->is_ended || c->state != COPY_KEPT || t->version == a->active) return 0;
    if (member_sub(m, a->name)->lacks_slot && !c->is_spare) return 0; /* its slot would not be free */
    if (row->state != VERSION_COMMITTED || (track_holder_count(t) == 1) != is_last) return 0;
    if (is_last && t->loaded_until_us) return 0;
    if (is_last) return t->awaited_until_us ? 1 : 2;
    if (!is_extra(ro, a, row, t)) return 2;
    return is_first_source(t, m) ? 1 : 3;
}

/* What it puts away for one that arrives: of what others have too, or (is_last) of what nobody else has.
 * NULL: none. */
static track_t *spared(const rollout_t *ro, const adapter_row_t *a, const member_t *m, bool is_last)
{
    track_t *best = NULL;
    int best_ease = 0;
    uint64_t best_decision = 0;
    for (size_t i = track_first(ro, a->name); i < ro->track_count && !strcmp(ro->tracks[i]->adapter, a->name);
         i++) {
        track_t *t = ro->tracks[i];
        int found = ease(ro, a, t, m, is_last);
        uint64_t decision = found ? registry_version(a, t->version)->decision : 0;
        bool is_better = t->awaited_until_us ? decision > best_decision : decision < best_decision;
        if (found < best_ease || !found || (found == best_ease && !is_better)) continue;
        best = t;
        best_ease = found;
        best_decision = decision;
    }
    return best;
}

/* ---- what goes ---- */

/* A worker that serves it still pins it, for it has nothing else, and one that is about to. */
static bool is_pinned(const rollout_t *ro, const adapter_row_t *a, const version_row_t *row)
{
    const track_t *t = rollout_track(ro, a->name, row->version);
    return track_active_count(t) > 0 || (t && t->loaded_until_us);
}

static void put_away(step_t *s, track_t *t, const member_t *m)
{
    send_retire(s, t->adapter, t->version, m);
    copy_drop(t, m->name);
    track_touch(s->ro, t);
}

/* Beyond what is kept, and pinned: it goes from the slots of all others, or who stays behind would take
 * everybody's room. */
static void thin_out(step_t *s, const adapter_row_t *a, const version_row_t *row, track_t *t)
{
    if (!registry_is_excess(a, row, s->ro->keep) || !is_pinned(s->ro, a, row)) return;
    for (size_t i = t->copy_count; i-- > 0;) {
        const copy_row_t *c = t->copies[i];
        const member_t *m;
        const member_sub_t *sub = sub_of(s->v, t, c, &m);
        if (c->state == COPY_KEPT && m && !is_switching(a, row, c, sub)) put_away(s, t, m);
    }
}

/* Every worker that keeps `t` and wants room has it, or has nothing that others have too. */
static void make_room(step_t *s, const adapter_row_t *a, track_t *t, bool extra)
{
    for (size_t i = t->copy_count; i-- > 0;) {
        const member_t *m = keeper_of(s->v, t->copies[i], extra);
        for (track_t *other; m && wants_room(s->ro, a, m, extra, s->v.now.us) &&
                             (other = spared(s->ro, a, m, false));)
            put_away(s, other, m);
    }
}

void keep_look(step_t *s, const adapter_row_t *a)
{
    const rollout_t *ro = s->ro;
    size_t first = track_first(ro, a->name), end = first;
    for (; end < ro->track_count && !strcmp(ro->tracks[end]->adapter, a->name); end++) {
        const version_row_t *row = registry_version(a, ro->tracks[end]->version);
        bool is_overtaken = row && row->state == VERSION_COMMITTED && row->version != a->active;
        if (is_overtaken && !ro->tracks[end]->is_ended) note_needed(s, row, ro->tracks[end]);
    }
    for (size_t i = first; ro->is_settled && i < end; i++) { /* before, who fetches what is not known */
        track_t *t = ro->tracks[i];
        const version_row_t *row = registry_version(a, t->version);
        if (!row || t->is_ended) continue;
        bool extra = is_extra(ro, a, row, t);
        make_room(s, a, t, extra);
        if (!extra) thin_out(s, a, row, t);
    }
}

/* Of what only one worker has, and has no room for. */
static const version_row_t *without_room(const rollout_t *ro, view_t v, const adapter_row_t *a,
                                         const track_t *t)
{
    bool extra = is_extra(ro, a, registry_version(a, t->version), t);
    for (size_t i = 0; i < t->copy_count; i++) {
        const member_t *m = keeper_of(v, t->copies[i], extra);
        if (!m || !wants_room(ro, a, m, extra, v.now.us)) continue;
        const track_t *last = spared(ro, a, m, true);
        if (last) return registry_version(a, last->version);
    }
    return NULL;
}

/* One: who has room then is seen when it is gone. */
static void make_last_room(const rollout_t *ro, view_t v, const adapter_row_t *a, outbox_t *out)
{
    for (size_t i = track_first(ro, a->name); i < ro->track_count && !strcmp(ro->tracks[i]->adapter, a->name);
         i++) {
        const track_t *t = ro->tracks[i];
        const version_row_t *row = t->is_ended ? NULL : without_room(ro, v, a, t);
        if (!row) continue;
        registry_decide_end(a, row, VERSION_RETIRED, NULL, v.now, out);
        return;
    }
}

void keep_decide(const rollout_t *ro, view_t v, const adapter_row_t *a, outbox_t *out)
{
    size_t count = 0;
    for (size_t i = registry_live_from(a); i < a->version_count && count < RETIRE_AT_ONCE; i++) {
        const version_row_t *row = a->versions[i];
        if (!registry_is_excess(a, row, ro->keep) || is_pinned(ro, a, row)) continue;
        const track_t *t = rollout_track(ro, a->name, row->version);
        if (t && t->awaited_until_us) continue;
        registry_decide_end(a, row, VERSION_RETIRED, NULL, v.now, out);
        count++;
    }
    if (!count) make_last_room(ro, v, a, out);
}
