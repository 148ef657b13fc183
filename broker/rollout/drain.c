/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/drain.h"

#include "broker/rollout/messages.h"

void drain_begin(step_t *s, const member_t *member)
{
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_rollout_t *a = tracks_adapter(s->ro, member->subs[i].adapter);
        for (size_t k = 0; a && k < a->track_count; k++) {
            track_t *t = a->tracks[k];
            copy_row_t *c = track_is_ended(t) ? NULL : copy_of(t, member);
            if (c) copy_excused(t, c);
        }
    }
}

/* It stays, and answers as far as is known: a process that was killed has its lease for a while. */
static bool is_staying(view_t v, const member_t *m)
{
    return m && m->state == MEMBER_READY && !m->is_gone && !member_is_silent(v.members, m, v.now.us);
}

static bool is_needed(const track_t *t, const copy_row_t *c)
{
    if (track_is_ended(t) || !copy_holds(c) || c->bad_ms) return false;
    return !registry_is_excess(t->of->row, t->row, t->of->ro->keep);
}

/* A publisher that was sent RELEASE may overwrite the bytes at any time. */
static bool is_elsewhere(view_t v, const track_t *t, const member_t *member)
{
    bool is_served = t->plan.publisher.state == PUBLISHER_SERVES;
    if (is_served && is_staying(v, membership_by_token(v.members, t->plan.publisher.token))) return true;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        if (c->token == member->token || !copy_holds(c) || c->bad_ms) continue;
        if (is_staying(v, membership_by_token(v.members, c->token))) return true;
    }
    return false;
}

static bool is_only_here(view_t v, const track_t *t, const member_t *member)
{
    return is_needed(t, copy_of(t, member)) && !is_elsewhere(v, t, member);
}

size_t drain_only_here(const rollout_t *ro, view_t v, const member_t *member, const track_t **ret_tracks,
                       size_t most)
{
    size_t count = 0;
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_rollout_t *a = tracks_adapter(ro, member->subs[i].adapter);
        for (size_t k = 0; a && k < a->track_count; k++) {
            if (!is_only_here(v, a->tracks[k], member)) continue;
            if (count < most) ret_tracks[count] = a->tracks[k];
            count++;
        }
    }
    return count;
}

/* What is announced last is fetched first, so a kept version must not delay one that a rollout waits for, or
 * that is to become active there. */
static bool is_fetching(const adapter_rollout_t *a, const member_t *m)
{
    for (size_t i = 0; i < a->track_count; i++) {
        const copy_row_t *c = track_is_ended(a->tracks[i]) ? NULL : copy_of(a->tracks[i], m);
        if (copy_in_flight(c) && copy_is_sent(c)) return true;
    }
    return false;
}

/* One worker at a time is asked for a version.  One that gets no byte for a lease is not waited for. */
static void hand_over(step_t *s, track_t *t)
{
    const member_t *taker = NULL;
    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        const member_t *m = s->v.members->workers[i];
        if (!member_subscribes(m, t->adapter) || !is_staying(s->v, m)) continue;
        const copy_row_t *c = copy_of(t, m);
        if (copy_is_out(c) && s->v.now.us < c->moved_us + s->ro->lease_us) return;
        bool can_take = copy_needs_announce(c, s->v.now.us) && !is_fetching(t->of, m);
        if (can_take && !taker) taker = m;
    }
    if (taker) messages_announce_to(s, t, taker);
}

/* While the broker settles, which others hold a version is not known, and a publisher that comes back counts
 * as serving what it was sent RELEASE for. */
drain_t drain_look(step_t *s, const member_t *member)
{
    if (!s->ro->is_settled) return DRAIN_BEGUN;
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_rollout_t *a = tracks_adapter(s->ro, member->subs[i].adapter);
        for (size_t k = 0; a && k < a->track_count; k++) {
            track_t *t = a->tracks[k];
            if (!is_needed(t, copy_of(t, member))) continue;
            if (!is_elsewhere(s->v, t, member)) hand_over(s, t);
        }
    }
    return drain_only_here(s->ro, s->v, member, NULL, 0) ? DRAIN_BEGUN : DRAIN_DONE;
}
