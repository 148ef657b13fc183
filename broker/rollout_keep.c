/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the decided versions stay: `keep` of them besides the active one, and what somebody has nothing
 * else than. */
#include "broker/rollout_part.h"

/* It said so, or was told of the version less than half a lease ago: two of its heartbeats. */
static bool is_fetching(const rollout_t *ro, view_t v, const copy_row_t *c, const track_t *t)
{
    if (!copy_in_flight(c) || !c->told_us) return false;
    const member_t *m = membership_by_token(v.members, c->token);
    const member_sub_t *sub = m ? member_sub((member_t *)m, t->adapter) : NULL;
    return sub && (sub->fetching == t->version || v.now.us < c->told_us + ro->lease_us / 2);
}

static bool is_wanted(const rollout_t *ro, view_t v, const track_t *t)
{
    for (size_t i = 0; i < t->copy_count; i++)
        if (is_fetching(ro, v, t->copies[i], t)) return true;
    return false;
}

/* The earliest decided version that was overtaken while a worker fetches it: slower than its trainer, that
 * one would come to none at all if each were put away under its hands.  It takes the place of a later one,
 * so that nobody needs more slots; NULL: none, or no place. */
static const version_row_t *awaited(const rollout_t *ro, view_t v, const adapter_row_t *a)
{
    const version_row_t *first = NULL;
    for (size_t i = track_first(ro, a->name); ro->keep && i < ro->track_count; i++) {
        const track_t *t = ro->tracks[i];
        if (strcmp(t->adapter, a->name) != 0) break;
        const version_row_t *row = registry_version(a, t->version);
        bool is_kept = row && row->state == VERSION_COMMITTED && t->version != a->active;
        if (is_kept && (!first || row->decision < first->decision) && is_wanted(ro, v, t)) first = row;
    }
    return first;
}

/* A worker that still serves it pins it: it has nothing else. */
static bool is_served(const rollout_t *ro, const adapter_row_t *a, const version_row_t *row)
{
    return track_active_count(rollout_track(ro, a->name, row->version)) > 0;
}

static bool is_excess(const rollout_t *ro, const adapter_row_t *a, const version_row_t *row,
                      const version_row_t *waited_for)
{
    bool has_place = waited_for && registry_is_excess(a, waited_for, ro->keep);
    return row != waited_for && registry_is_excess(a, row, ro->keep - has_place);
}

void keep_moved_on(const rollout_t *ro, const adapter_row_t *a, const member_t *member, uint64_t version)
{
    for (size_t i = track_first(ro, a->name); i < ro->track_count && !strcmp(ro->tracks[i]->adapter, a->name);
         i++) {
        const version_row_t *row = registry_version(a, ro->tracks[i]->version);
        copy_row_t *c = copy_of(ro->tracks[i], member);
        bool is_overtaken = row && row->state == VERSION_COMMITTED && row->version != a->active;
        if (c && is_overtaken && row->version != version) c->told_us = 0;
    }
}

void keep_thin_out(step_t *s, const adapter_row_t *a, const version_row_t *row, track_t *t)
{
    if (!s->ro->is_settled || !registry_is_excess(a, row, s->ro->keep) || !is_served(s->ro, a, row)) return;
    if (awaited(s->ro, s->v, a) == row) return; /* they are its sources */
    for (size_t i = t->copy_count; i-- > 0;) {
        const copy_row_t *c = t->copies[i];
        const member_t *m = c->token ? membership_by_token(s->v.members, c->token) : NULL;
        if (c->state != COPY_KEPT || !m) continue;
        send_retire(s, t->adapter, t->version, m);
        copy_drop(t, c->worker);
    }
}

void keep_decide(const rollout_t *ro, view_t v, const adapter_row_t *a, outbox_t *out)
{
    size_t count = 0;
    const version_row_t *waited_for = awaited(ro, v, a);
    for (size_t i = registry_live_from(a); i < a->version_count && count < RETIRE_AT_ONCE; i++) {
        const version_row_t *row = a->versions[i];
        if (!is_excess(ro, a, row, waited_for) || is_served(ro, a, row)) continue;
        registry_decide_end(a, row, VERSION_RETIRED, NULL, v.now, out);
        count++;
    }
}
