/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/track.h"

#include "broker/registry/active.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/sorted.h"

#include <stdlib.h>
#include <utlist.h>

#define RATE_BYTES 4194304u /* of a smaller version the time to fetch it is latency for the most part */

/* ---- rows ---- */

static void free_track(track_t *t)
{
    for (size_t i = 0; i < t->copy_count; i++) copy_free(t->copies[i]);
    for (size_t i = 0; i < t->group_count; i++) copy_free_group(t->groups[i]);
    for (uint32_t i = 0; i < t->former_rows; i++) free(t->former[i].served);
    free(t->former);
    free(t->copies);
    free(t->groups);
    plan_fini(&t->plan);
    free(t);
}

void tracks_init(rollout_t *ro, uint64_t lease_us, uint64_t keep, plan_shape_t shape, uint64_t seed)
{
    *ro =
        (rollout_t){.lease_us = lease_us, .keep = keep, .shape = shape, .seed = seed, .due_us = CLOCK_NEVER};
}

static void free_adapter(adapter_rollout_t *a)
{
    for (size_t i = 0; i < a->track_count; i++) free_track(a->tracks[i]);
    free(a->tracks);
    free(a);
}

/* Rows of the registry are only borrowed, and stay. */
void tracks_fini(rollout_t *ro)
{
    for (size_t i = 0; i < ro->adapter_count; i++) free_adapter(ro->adapters[i]);
    free(ro->adapters);
    *ro = (rollout_t){0};
}

/* ---- tracks ---- */

static int order_adapter(const void *row, const void *name)
{
    return strcmp(((const adapter_rollout_t *)row)->row->name, name);
}

static int order_track(const void *row, const void *version)
{
    uint64_t a = ((const track_t *)row)->version, b = *(const uint64_t *)version;
    return (a > b) - (a < b);
}

adapter_rollout_t *tracks_adapter(const rollout_t *ro, const char *name)
{
    return sorted_find(ro->adapters, ro->adapter_count, name, order_adapter);
}

adapter_rollout_t *tracks_need_adapter(rollout_t *ro, const adapter_row_t *row)
{
    bool found;
    size_t at = sorted_place(ro->adapters, ro->adapter_count, row->name, order_adapter, &found);
    if (found) return ro->adapters[at];
    adapter_rollout_t *a = calloc(1, sizeof *a);
    if (!a || !sorted_grow(&ro->adapters, ro->adapter_count, &ro->adapter_capacity)) {
        free(a);
        return NULL;
    }
    *a = (adapter_rollout_t){.ro = ro, .row = row, .due_us = CLOCK_NEVER};
    sorted_insert(ro->adapters, &ro->adapter_count, at, a);
    return a;
}

void tracks_forget(rollout_t *ro, const char *adapter)
{
    bool found;
    size_t at = sorted_place(ro->adapters, ro->adapter_count, adapter, order_adapter, &found);
    if (!found) return;
    tracks_untouch(ro->adapters[at]);
    free_adapter(ro->adapters[at]);
    sorted_remove(ro->adapters, &ro->adapter_count, at);
}

track_t *track_of(const adapter_rollout_t *a, uint64_t version)
{
    return sorted_find(a->tracks, a->track_count, &version, order_track);
}

track_t *track_find(const rollout_t *ro, const char *adapter, uint64_t version)
{
    const adapter_rollout_t *a = tracks_adapter(ro, adapter);
    return a ? track_of(a, version) : NULL;
}

track_t *track_staging(const adapter_rollout_t *a)
{
    const version_row_t *row = registry_staging(a->row);
    return row ? track_of(a, row->version) : NULL;
}

track_t *track_waiting(const adapter_rollout_t *a)
{
    const version_row_t *row = registry_waiting(a->row);
    return row ? track_of(a, row->version) : NULL;
}

track_t *track_add(rollout_t *ro, const adapter_row_t *row, uint64_t version, uint64_t now_us)
{
    adapter_rollout_t *a = tracks_need_adapter(ro, row);
    bool found;
    if (!a) return NULL;
    size_t at = sorted_place(a->tracks, a->track_count, &version, order_track, &found);
    if (found) return a->tracks[at];
    track_t *t = calloc(1, sizeof *t);
    if (!t || !sorted_grow(&a->tracks, a->track_count, &a->track_capacity)) {
        free(t);
        return NULL;
    }
    *t = (track_t){.of = a,
                   .adapter = row->name,
                   .version = version,
                   .row = registry_version(row, version),
                   .phase = TRACK_WAITING, /* until the rollout begins it (track_begin) */
                   .created_us = now_us,
                   .push_us = now_us,
                   .deadline_us = CLOCK_NEVER,
                   .retry_us = CLOCK_NEVER};
    plan_init(&t->plan, ro->seed ^ version, ro->shape, t->row ? record_payload_bytes(&t->row->parts) : 0);
    sorted_insert(a->tracks, &a->track_count, at, t);
    track_changed(t);
    return t;
}

void track_forget_ended(adapter_rollout_t *a)
{
    size_t ended = 0;
    for (size_t i = a->track_count; i-- > 0;) {
        if (!track_is_ended(a->tracks[i]) || ++ended <= ROLLOUT_ENDED_TRACKS) continue;
        free_track(a->tracks[i]);
        sorted_remove(a->tracks, &a->track_count, i);
    }
}

void tracks_touch(adapter_rollout_t *a)
{
    if (a->is_touched) return;
    a->is_touched = true;
    DL_APPEND(a->ro->touched, a);
}

void tracks_untouch(adapter_rollout_t *a)
{
    if (!a->is_touched) return;
    a->is_touched = false;
    DL_DELETE(a->ro->touched, a);
}

void track_touch(track_t *t) { tracks_touch(t->of); }

void track_changed(track_t *t)
{
    t->changes++;
    track_touch(t);
}

void track_sooner(track_t *t, uint64_t at_us)
{
    t->of->due_us = clock_earlier(t->of->due_us, at_us);
    t->of->ro->due_us = clock_earlier(t->of->ro->due_us, at_us);
}

void track_retry(track_t *t, uint64_t at_us, uint64_t now_us)
{
    t->retry_us = clock_earlier(t->retry_us, at_us > now_us ? at_us : now_us + ROLLOUT_RETRY_US);
}

void track_set_publisher(track_t *t, uint64_t token, publisher_state_t state)
{
    plan_publisher(&t->plan, token, state, t->plan.publisher.place);
    track_touch(t);
}

void track_offer(track_t *t, const member_t *publisher, const msg_region_t *region)
{
    t->region = region ? *region : (msg_region_t){.generation = 0};
    plan_publisher(&t->plan, t->plan.publisher.token, t->plan.publisher.state, publisher->place);
    plan_uplink(&t->plan, publisher->max_rate_bytes);
    track_touch(t);
}

void track_note_gone(track_t *t, const copy_row_t *c, gone_how_t how, instant_t now)
{
    bool is_awaited = c->token && c->is_eligible && state_in_flight(c->state);
    if (!is_awaited || !t->row || t->row->state != VERSION_STAGING) return;
    gone_row_t *row = &t->gone[t->gone_count++ % LIMIT_GONE];
    row->how = how;
    row->until_ms = now.wall_ms;
    if (tally_present(&t->tally, false) == 1) t->deserted_ms = now.wall_ms;
    error_text(row->worker, sizeof row->worker, c->worker);
}

bool track_is_ended(const track_t *t) { return !t->row || !registry_is_live(t->row); }

bool track_is_overtaken(const track_t *t)
{
    return t->row && t->row->state == VERSION_COMMITTED && t->version != active_latest(t->of->row);
}

bool track_is_served(const track_t *t) { return publisher_serves(t->plan.publisher.state); }

uint32_t track_holder_count(const track_t *t)
{
    return t && !track_is_ended(t) ? tally_holders(&t->tally, false) : 0;
}

uint32_t track_active_count(const track_t *t) { return t ? tally_in(&t->tally, COPY_ACTIVE) : 0; }

uint64_t track_moved_bytes(const track_t *t)
{
    uint64_t bytes = t ? t->bytes_moved : 0;
    for (size_t i = 0; t && i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        if (copy_in_flight(c)) bytes += c->bytes_done;
    }
    return bytes;
}

bool track_is_whole(const track_t *t) { return t && (track_is_served(t) || track_holder_count(t) > 0); }

bool track_has_source(const track_t *t) { return track_is_whole(t) || (t && t->bytes == BYTES_GROWING); }

bool track_has_refused(const track_t *t) { return t && tally_in(&t->tally, COPY_REFUSED) > 0; }

/* The newest version that is not lost: a publication is compared with this one. */
const version_row_t *track_newest_live(const rollout_t *ro, const adapter_row_t *a)
{
    for (size_t i = a->version_count; i-- > 0;) {
        const version_row_t *v = a->versions[i];
        const track_t *t = track_find(ro, a->name, v->version);
        if (v->state == VERSION_STAGING && !(t && t->bytes == BYTES_LOST)) return v;
        if (v->state == VERSION_COMMITTED && track_has_source(t)) return v;
    }
    return NULL;
}

/* After a start the same bytes may be at a worker that has not come back yet.  Until it is known, they
 * cannot be called unchanged or new. */
const version_row_t *track_uncertain(const rollout_t *ro, const adapter_row_t *a, const digest_t *digest)
{
    bool is_newer_uncertain = false;
    for (size_t i = ro->is_settled ? 0 : a->version_count; i-- > 0;) {
        const version_row_t *v = a->versions[i];
        if (!registry_is_live(v)) continue;
        bool is_same = digest_equal(&v->digest, digest);
        bool is_back = v->state == VERSION_STAGING || track_has_source(track_find(ro, a->name, v->version));
        if (is_back) return is_same && is_newer_uncertain ? v : NULL;
        if (is_same) return v;
        is_newer_uncertain = true;
    }
    return NULL;
}

/* ---- the rollout begins ---- */

/* False: no memory for one of them, and the rollout may not be decided any more. */
bool track_expect(track_t *t, const membership_t *members)
{
    for (size_t i = 0; i < members->worker_count; i++) {
        const member_t *m = members->workers[i];
        if (!member_subscribes(m, t->adapter)) continue;
        copy_row_t *c = copy_add(t, m);
        if (!c) {
            t->of->ro->is_incomplete = true;
            return false;
        }
        if (!member_is_draining(m)) copy_expected(t, c);
    }
    return true;
}

/* All lists are made before the first ANNOUNCE is sent, because each names members that are to fetch, too. */
bool track_begin(track_t *t, const membership_t *members)
{
    t->phase = TRACK_BEGUN;
    track_touch(t);
    if (!track_expect(t, members)) return false;
    plan_begin(&t->plan);
    /* The shape of the plan is chosen by the rate at which the active version came, where that was large
     * enough to show one. */
    const track_t *active = track_of(t->of, active_latest(t->of->row));
    bool shows_rate = active && active->row && record_payload_bytes(&active->row->parts) >= RATE_BYTES;
    if (shows_rate) plan_uplink(&t->plan, active->plan.best_rate);
    plan_make_all(&t->plan);
    return true;
}
