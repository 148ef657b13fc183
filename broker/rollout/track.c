/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/track.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/sorted.h"

#include <stdlib.h>

/* ---- rows ---- */

static void free_copy(copy_row_t *c)
{
    free(c->served);
    free(c->message);
    free(c);
}

static void free_track(track_t *t)
{
    for (size_t i = 0; i < t->copy_count; i++) free_copy(t->copies[i]);
    for (size_t i = 0; i < t->group_count; i++) {
        free(t->groups[i]->holders);
        free(t->groups[i]);
    }
    free(t->copies);
    free(t->groups);
    plan_fini(&t->plan);
    free(t);
}

void rollout_init(rollout_t *ro, uint64_t lease_us, uint64_t keep, uint64_t seed)
{
    *ro = (rollout_t){.lease_us = lease_us, .keep = keep, .seed = seed, .due_us = CLOCK_NEVER};
}

/* Rows of the registry are only borrowed, and stay. */
void rollout_fini(rollout_t *ro)
{
    for (size_t i = 0; i < ro->adapter_count; i++) {
        adapter_rollout_t *a = ro->adapters[i];
        for (size_t k = 0; k < a->track_count; k++) free_track(a->tracks[k]);
        free(a->tracks);
        free(a);
    }
    free(ro->adapters);
    *ro = (rollout_t){0};
}

/* A decision may come to have a narrower scope than all workers.  So every question after the active
 * version names the worker. */
uint64_t active_for(const adapter_row_t *a, const member_t *member)
{
    (void)member;
    switch (a->scope) {
    case SCOPE_EVERYONE: return a->active;
    }
    return 0;
}

bool member_is_current(const adapter_row_t *a, const member_t *member, const member_sub_t *sub)
{
    uint64_t active = a ? active_for(a, member) : 0;
    return active && sub->version == active && sub->decision >= a->decision && !sub->is_refused;
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

adapter_rollout_t *rollout_adapter(const rollout_t *ro, const char *name)
{
    return sorted_find(ro->adapters, ro->adapter_count, name, order_adapter);
}

adapter_rollout_t *rollout_need_adapter(rollout_t *ro, const adapter_row_t *row)
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

track_t *adapter_track(const adapter_rollout_t *a, uint64_t version)
{
    return sorted_find(a->tracks, a->track_count, &version, order_track);
}

track_t *rollout_track(const rollout_t *ro, const char *adapter, uint64_t version)
{
    const adapter_rollout_t *a = rollout_adapter(ro, adapter);
    return a ? adapter_track(a, version) : NULL;
}

track_t *adapter_staging(const adapter_rollout_t *a)
{
    const version_row_t *row = registry_staging(a->row);
    return row ? adapter_track(a, row->version) : NULL;
}

track_t *adapter_waiting(const adapter_rollout_t *a)
{
    const version_row_t *row = registry_waiting(a->row);
    return row ? adapter_track(a, row->version) : NULL;
}

track_t *track_add(rollout_t *ro, const adapter_row_t *row, uint64_t version, uint64_t now_us)
{
    adapter_rollout_t *a = rollout_need_adapter(ro, row);
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
                   .due_us = CLOCK_NEVER};
    plan_init(&t->plan, ro->seed ^ version, PLAN_ALL);
    sorted_insert(a->tracks, &a->track_count, at, t);
    track_changed(t);
    return t;
}

/* An ended version is listed until its publisher has the final ROLLOUT, and then the latest
 * ROLLOUT_ENDED_TRACKS are. */
void track_forget_ended(adapter_rollout_t *a)
{
    size_t ended = 0;
    for (size_t i = 0; i < a->track_count; i++) ended += track_is_ended(a->tracks[i]);
    for (size_t i = 0; i < a->track_count && ended > ROLLOUT_ENDED_TRACKS;) {
        bool is_told = !a->tracks[i]->is_dirty; /* its publisher; else rollout_flush comes back to it */
        if (!track_is_ended(a->tracks[i]) || !is_told) {
            a->ro->is_crowded |= !is_told;
            i++;
            continue;
        }
        free_track(a->tracks[i]);
        sorted_remove(a->tracks, &a->track_count, i);
        ended--;
    }
}

void track_touch(track_t *t) { t->of->ro->is_dirty = t->of->is_dirty = t->is_dirty = true; }

void track_changed(track_t *t)
{
    t->generation++;
    track_touch(t);
}

void track_sooner(track_t *t, uint64_t at_us)
{
    if (at_us < t->due_us) t->due_us = at_us;
}

void track_set_publisher(track_t *t, uint64_t token, publisher_state_t state)
{
    t->publisher = token;
    t->publisher_state = state;
    t->plan.publisher = track_is_served(t) ? token : 0;
    track_touch(t);
}

void track_note_gone(track_t *t, const copy_row_t *c, gone_how_t how, instant_t now)
{
    bool is_awaited = c->token && c->is_eligible && state_in_flight(c->state);
    if (!is_awaited || !t->row || t->row->state != VERSION_STAGING) return;
    gone_row_t *row = &t->gone[t->gone_count++ % LIMIT_GONE];
    row->how = how;
    row->until_ms = now.wall_ms;
    error_text(row->worker, sizeof row->worker, c->worker);
}

bool track_is_ended(const track_t *t) { return !t->row || !registry_is_live(t->row); }

bool track_is_overtaken(const track_t *t)
{
    return t->row && t->row->state == VERSION_COMMITTED && t->version != t->of->row->active;
}

uint64_t version_until_ms(const version_row_t *v) { return v->first_ms ? v->first_ms : v->ended_ms; }

bool track_is_served(const track_t *t)
{
    return t->publisher_state == PUBLISHER_SERVES || t->publisher_state == PUBLISHER_RELEASED;
}

uint32_t track_holder_count(const track_t *t)
{
    return t && !track_is_ended(t) ? tally_holders(&t->tally, false) : 0;
}

uint32_t track_active_count(const track_t *t) { return t ? tally_in(&t->tally, COPY_ACTIVE) : 0; }

bool track_has_source(const track_t *t) { return t && (track_is_served(t) || track_holder_count(t) > 0); }

bool track_has_refused(const track_t *t) { return t && tally_in(&t->tally, COPY_REFUSED) > 0; }

/* ---- the tally ---- */

/* One copy more, or one less.  Several workers may have one rank of a group, for a while or by mistake: the
 * rank counts once. */
static void count(tally_t *t, const tallied_t *what, bool more)
{
    uint32_t one = more ? 1 : UINT32_MAX; /* unsigned: wraps to one less */
    bool holds = state_holds(what->state), is_present = what->state != COPY_GONE;
    group_t *g = what->group;
    t->in[what->is_eligible][what->state] += one;
    if (is_present && what->has_reached) t->reached[what->is_eligible] += one;
    if (is_present && (holds || what->has_reached)) t->done[what->is_eligible] += one;
    if (what->state == COPY_KEPT && what->is_spare) t->spare += one;
    if (holds && what->state != COPY_REFUSED && what->is_ordered && !what->has_reached) t->switching += one;
    if (holds && !g) t->units += one;
    if (!holds || !g) return;
    uint32_t before = g->staged_ranks;
    if (more) g->staged_ranks += g->holders[what->rank]++ == 0;
    else g->staged_ranks -= --g->holders[what->rank] == 0;
    if (before < g->ranks && g->staged_ranks == g->ranks) t->units++;
    if (before == g->ranks && g->staged_ranks < g->ranks) t->units--;
}

void tally_move(tally_t *t, const tallied_t *was, const tallied_t *now)
{
    if (was) count(t, was, false);
    if (now) count(t, now, true);
}

/* ---- the plan: rows ---- */

void plan_init(plan_t *p, uint64_t seed, plan_have_t least) { *p = (plan_t){.seed = seed, .least = least}; }

void plan_fini(plan_t *p)
{
    for (size_t i = 0; i < p->count; i++) free(p->rows[i]);
    free(p->rows);
    free(p->sources);
    *p = (plan_t){0};
}

static int order_plan(const void *row, const void *token)
{
    uint64_t a = ((const plan_row_t *)row)->token, b = *(const uint64_t *)token;
    return (a > b) - (a < b);
}

plan_row_t *plan_row(const plan_t *p, uint64_t token)
{
    return sorted_find(p->rows, p->count, &token, order_plan);
}

bool plan_add(plan_t *p, uint64_t token)
{
    bool found;
    size_t at = sorted_place(p->rows, p->count, &token, order_plan, &found);
    if (found) return true;
    plan_row_t *row = calloc(1, sizeof *row);
    /* Each row may become a source: there is room for that from now on, so that plan_have cannot fail. */
    if (!row || !sorted_grow(&p->rows, p->count, &p->capacity) ||
        !sorted_grow(&p->sources, p->count, &p->source_capacity)) {
        free(row);
        return false;
    }
    row->token = token;
    sorted_insert(p->rows, &p->count, at, row);
    return true;
}

/* A source must have at least `least` of the bytes. */
static bool may_serve(const plan_t *p, const plan_row_t *row) { return row->have && row->have >= p->least; }

/* Sources are an array in no order, and each row knows its place there.  So a source is added and removed
 * in constant time: the last one takes the place of the removed one. */
static void set_have(plan_t *p, plan_row_t *row, plan_have_t have)
{
    bool was_source = may_serve(p, row);
    row->have = have;
    if (may_serve(p, row) == was_source) return;
    if (!was_source) {
        row->place = (uint32_t)p->source_count;
        p->sources[p->source_count++] = row;
        return;
    }
    plan_row_t *last = p->sources[--p->source_count];
    p->sources[row->place] = last;
    last->place = row->place;
}

/* Only the first source of a fetch is charged with it, because the worker reads from that one first. */
static void count_load(plan_t *p, plan_row_t *row, bool is_fetching)
{
    if (row->is_fetching == is_fetching) return;
    row->is_fetching = is_fetching;
    plan_row_t *first = row->source_count ? plan_row(p, row->sources[0]) : NULL;
    if (!first) return; /* the publisher, or it is gone */
    if (is_fetching) first->load++;
    else if (first->load) first->load--; /* 0: it was taken out meanwhile, and takes part again */
}

void plan_done(plan_t *p, uint64_t token)
{
    plan_row_t *row = plan_row(p, token);
    if (row) count_load(p, row, false);
}

/* A member that has all of the bytes, or has lost them, fetches no more. */
void plan_have(plan_t *p, uint64_t token, plan_have_t have, uint64_t rate)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return;
    row->rate = rate;
    if (have != PLAN_PART) count_load(p, row, false);
    set_have(p, row, have);
}

void plan_remove(plan_t *p, uint64_t token)
{
    bool found;
    size_t at = sorted_place(p->rows, p->count, &token, order_plan, &found);
    if (!found) return;
    plan_row_t *row = p->rows[at];
    count_load(p, row, false);
    set_have(p, row, PLAN_NOTHING);
    sorted_remove(p->rows, &p->count, at);
    free(row);
}

bool plan_is_first(const plan_t *p, uint64_t token)
{
    const plan_row_t *row = plan_row(p, token);
    return row && row->load > 0;
}

/* ---- the plan: the choice ---- */

/* splitmix64: spreads equals over the members that ask. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* What a candidate is ordered by, the most important first. */
typedef struct {
    bool is_slow;
    uint32_t load;
    uint64_t draw;
    const plan_row_t *row;
} candidate_t;

/* Fast sources come first, then those with fewer fetches; equal ones are ordered at random for each asker,
 * so that not all workers read from the same one. */
static bool is_before(const candidate_t *a, const candidate_t *b)
{
    if (a->is_slow != b->is_slow) return b->is_slow;
    if (a->load != b->load) return a->load < b->load;
    return a->draw < b->draw;
}

static bool is_among(uint64_t token, const uint64_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] == token) return true;
    return false;
}

uint32_t plan_choose(const plan_t *p, uint64_t asker, const uint64_t *lost, uint32_t lost_count,
                     uint64_t ret_sources[PLAN_SOURCES])
{
    candidate_t found[PLAN_CANDIDATES];
    uint32_t count = 0, used = 0;
    uint64_t best_rate = 0;
    bool has_publisher = p->publisher && !is_among(p->publisher, lost, lost_count);

    /* Candidates are all sources except the asker and those that it lost.  The walk starts at a place of the
     * ring that depends on the asker, because only the first PLAN_CANDIDATES are compared. */
    for (size_t k = 0; k < p->source_count && count < PLAN_CANDIDATES; k++) {
        const plan_row_t *row = p->sources[(k + asker) % p->source_count];
        if (row->token == asker || is_among(row->token, lost, lost_count)) continue;
        uint64_t draw = mix(p->seed ^ mix(asker) ^ mix(row->token * 3));
        found[count++] = (candidate_t){.load = row->load, .draw = draw, .row = row};
        if (row->rate > best_rate) best_rate = row->rate;
    }
    for (uint32_t i = 0; i < count; i++)
        found[i].is_slow = found[i].row->rate && found[i].row->rate < best_rate / PLAN_SLOW_FACTOR;

    /* The publisher always has the bytes, so it has the last place: a worker whose other sources all fail
     * ends there.  Only the first places matter, so they are filled one by one. */
    uint32_t most = has_publisher ? PLAN_SOURCES - 1 : PLAN_SOURCES;
    for (; used < count && used < most; used++) {
        uint32_t best = used;
        for (uint32_t i = used + 1; i < count; i++)
            if (is_before(&found[i], &found[best])) best = i;
        candidate_t chosen = found[best];
        found[best] = found[used];
        ret_sources[used] = chosen.row->token;
    }
    if (has_publisher) ret_sources[used++] = p->publisher;
    return used;
}

/* The member's former fetch ends here: its load is taken off before sources are chosen again. */
uint32_t plan_make(plan_t *p, uint64_t token, const uint64_t *lost, uint32_t lost_count)
{
    plan_row_t *row = plan_row(p, token);
    if (!row) return 0;
    count_load(p, row, false);
    row->source_count = plan_choose(p, token, lost, lost_count, row->sources);
    if (!row->source_count && lost_count) /* better one that failed once than none */
        row->source_count = plan_choose(p, token, NULL, 0, row->sources);
    count_load(p, row, row->source_count > 0);
    return row->source_count;
}

/* ---- one copy changes ---- */

/* What the tally counts of a copy. */
static tallied_t tallied(const copy_row_t *c)
{
    return (tallied_t){.state = c->state,
                       .is_eligible = c->is_eligible,
                       .has_reached = c->has_reached,
                       .is_spare = c->is_spare,
                       .is_ordered = c->switch_us != 0,
                       .group = c->group,
                       .rank = c->rank};
}

/* The copy was counted as `was`, and has changed: tally, plan, last holder and generation follow.  Every
 * change of a copy goes through here, so none of them can be forgotten. */
static void follow(track_t *t, const copy_row_t *c, const tallied_t *was)
{
    tallied_t now = tallied(c);
    bool held = state_holds(was->state), holds = state_holds(now.state);
    tally_move(&t->tally, was, &now);
    /* The rate is the bytes per second that it was seen to fetch at. */
    if (holds != held)
        plan_have(&t->plan, c->token, holds ? PLAN_ALL : PLAN_NOTHING,
                  c->fetch_us ? c->bytes_done * 1000000 / c->fetch_us : 0);
    else if (!state_in_flight(now.state)) plan_done(&t->plan, c->token);
    if (held && !holds && !tally_holders(&t->tally, false))
        error_text(t->last_holder, sizeof t->last_holder, c->worker);
    bool is_shown =
        was->state != now.state || was->is_eligible != now.is_eligible || was->has_reached != now.has_reached;
    t->generation += is_shown;
    track_touch(t);
}

/* A copy that changes its state is not spare any more: the next heartbeat lists it again if it is. */
void copy_move(track_t *t, copy_row_t *c, copy_state_t state, instant_t now)
{
    if (c->state == state) return;
    tallied_t was = tallied(c);
    c->since_ms = now.wall_ms;
    c->state = state;
    c->is_spare = false;
    follow(t, c, &was);
}

void copy_gone(track_t *t, copy_row_t *c)
{
    tallied_t was = tallied(c);
    c->last_state = c->state;
    c->state = COPY_GONE;
    follow(t, c, &was);
    plan_remove(&t->plan, c->token);
    c->token = 0;
}

void copy_expect(track_t *t, copy_row_t *c)
{
    tallied_t was = tallied(c);
    if (c->is_eligible) return;
    c->is_eligible = true;
    follow(t, c, &was);
}

void copy_reach(track_t *t, copy_row_t *c, bool has_reached)
{
    tallied_t was = tallied(c);
    if (c->has_reached == has_reached) return;
    c->has_reached = has_reached;
    follow(t, c, &was);
}

void copy_order(track_t *t, copy_row_t *c, instant_t at)
{
    tallied_t was = tallied(c);
    c->switch_us = at.us;
    if (state_holds(c->state) && c->state != COPY_ACTIVE && c->state != COPY_COMMITTED) {
        c->state = COPY_COMMITTED;
        c->since_ms = at.wall_ms;
        c->is_spare = false;
    }
    follow(t, c, &was);
}

void copy_spare(track_t *t, copy_row_t *c, bool is_spare)
{
    tallied_t was = tallied(c);
    if (c->is_spare == is_spare) return;
    c->is_spare = is_spare;
    follow(t, c, &was);
}

/* Most copies have no message, so only those that have one take memory for it.  Without memory users see the
 * code and the phase alone. */
void copy_blame(track_t *t, copy_row_t *c, int code, const char *phase, const char *message)
{
    if (c->code != code) track_changed(t);
    c->code = code;
    error_text(c->phase, sizeof c->phase, phase);
    size_t bytes = strlen(message) + 1;
    if (bytes > COPY_MESSAGE_BYTES) bytes = COPY_MESSAGE_BYTES;
    char *copy = bytes > 1 ? malloc(bytes) : NULL;
    if (copy) error_text(copy, bytes, message);
    free(c->message);
    c->message = copy;
}

void copy_fail(track_t *t, copy_row_t *c, int code, const char *phase, const char *message, instant_t now)
{
    copy_move(t, c, COPY_FAILED, now);
    copy_blame(t, c, code, phase, message);
}

/* Without a source nothing was sent: the copy waits, or is owed an ANNOUNCE if it had one before, because the
 * worker may be fetching it, and lacks only the sources. */
void copy_announced(track_t *t, copy_row_t *c, bool is_sent, instant_t now)
{
    c->is_owed = !is_sent && copy_is_told(c);
    copy_move(t, c, is_sent || c->is_owed ? COPY_ANNOUNCED : COPY_WAITING, now);
    copy_blame(t, c, HEDDLE_OK, "", "");
    c->retry_us = 0;
    if (!is_sent) return;
    c->told_us = c->moved_us = now.us;
    if (!c->begun_us && !c->behind) c->begun_us = now.us;
    if (c->first_told_us) return;
    c->first_told_us = now.us;
    c->announce_us = now.us - t->created_us;
}

/* The worker's own phases are measured by its clock, and may begin before the announcement (bytes that were
 * offered early).  So they come first, and the phases of the broker's clock get what is left. */
void copy_timed(const track_t *t, copy_row_t *c, uint64_t now_us)
{
    uint64_t all_us = now_us - t->created_us, own_us = c->connect_us + c->fetch_us + c->stage_us;
    uint64_t left_us = all_us > own_us ? all_us - own_us : 0;
    if (c->announce_us > left_us) c->announce_us = left_us;
    c->queued_us = c->behind ? left_us - c->announce_us : 0;
}

/* The row of this source, by name and kind: a source that joined again while it served has one row.  The
 * caller has made room. */
static copy_served_t *served_row(copy_row_t *c, const char *name, source_kind_t kind)
{
    uint32_t at = 0;
    for (; at < c->served_count; at++) {
        int order = strcmp(c->served[at].name, name);
        if (order == 0 && c->served[at].kind == kind) return &c->served[at];
        if (order > 0) break;
    }
    memmove(&c->served[at + 1], &c->served[at], (c->served_count - at) * sizeof *c->served);
    c->served_count++;
    c->served[at] = (copy_served_t){.kind = kind};
    error_text(c->served[at].name, sizeof c->served[at].name, name);
    return &c->served[at];
}

/* Which process served how many bytes is kept for `heddle versions` only.  Without memory that output
 * shows less. */
static void note_served(copy_row_t *c, track_t *t, const msg_staged_t *m)
{
    uint32_t count = m->source_count < LIMIT_SOURCES ? m->source_count : LIMIT_SOURCES;
    for (uint32_t i = 0; i < m->source_count; i++) t->bytes_moved += m->sources[i].bytes;
    free(c->served);
    c->served = count ? calloc(count, sizeof *c->served) : NULL;
    c->served_count = 0;
    for (uint32_t i = 0; c->served && i < count; i++) { /* without memory only `versions` shows less */
        const msg_served_t *s = &m->sources[i];
        source_kind_t kind = s->kind == SOURCE_WORKER ? SOURCE_WORKER : SOURCE_PUBLISHER;
        served_row(c, s->name ? s->name : "", kind)->bytes += s->bytes;
    }
}

void copy_staged(track_t *t, copy_row_t *c, const msg_staged_t *m, instant_t now)
{
    note_served(c, t, m);
    c->retry_us = 0;
    c->bytes_done = t->row->data_bytes;
    c->connect_us = m->connect_us;
    c->fetch_us = m->fetch_us;
    c->verify_us = m->verify_us;
    c->stage_us = m->stage_us;
    copy_timed(t, c, now.us);
    if (c->switch_us) copy_order(t, c, now); /* loaded: the time to switch begins */
    copy_blame(t, c, HEDDLE_OK, "", "");
    copy_move(t, c, COPY_STAGED, now);
}

/* ---- versions of one worker, one after the other ---- */

/* The worker may have dropped these versions when it turned to the other one.  A version that is wanted again
 * is announced again. */
void copies_left(const adapter_rollout_t *a, const member_t *member, uint64_t but, instant_t now)
{
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        copy_row_t *c = track_is_overtaken(t) && t->version != but ? copy_of(t, member) : NULL;
        if (!copy_in_flight(c)) continue;
        if (c->told_us) track_touch(t); /* it may be lost now */
        c->told_us = 0;
        c->is_owed = true;
        copy_move(t, c, COPY_WAITING, now);
    }
}

void copies_wait_behind(const adapter_rollout_t *a, const member_t *member, uint64_t version, instant_t now)
{
    copies_left(a, member, version, now);
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        copy_row_t *c = track_is_ended(t) ? NULL : copy_of(t, member);
        if (!copy_is_told(c) || c->state != COPY_ANNOUNCED || t->version == version) continue;
        c->behind = version;
        c->begun_us = 0;
    }
}

void copies_go_on(const adapter_rollout_t *a, const member_t *member, uint64_t version, uint64_t now_us)
{
    for (size_t i = 0; i < a->track_count; i++) {
        copy_row_t *c = copy_of(a->tracks[i], member);
        if (c && c->behind == version && !c->begun_us) c->begun_us = now_us;
    }
}

/* ---- copies come and go ---- */

static int order_copy(const void *row, const void *worker)
{
    return strcmp(((const copy_row_t *)row)->worker, worker);
}

copy_row_t *track_copy(const track_t *t, const char *worker)
{
    return sorted_find(t->copies, t->copy_count, worker, order_copy);
}

copy_row_t *copy_of(const track_t *t, const member_t *member)
{
    copy_row_t *c = t ? track_copy(t, member->name) : NULL;
    return c && c->token == member->token ? c : NULL;
}

/* Groups of one name with different numbers of ranks are different groups: a group may be restarted with
 * another number. */
static int order_group(const void *row, const void *key)
{
    const group_t *g = row;
    const member_t *member = key;
    int order = strcmp(g->name, member->group);
    return order ? order : g->ranks < member->ranks ? -1 : g->ranks > member->ranks;
}

/* The member's group, found or new; *ret_ok false: no memory. */
static group_t *need_group(track_t *t, const member_t *member, bool *ret_ok)
{
    *ret_ok = true;
    if (!member->group[0]) return NULL;
    bool found;
    size_t at = sorted_place(t->groups, t->group_count, member, order_group, &found);
    if (found) return t->groups[at];
    group_t *g = calloc(1, sizeof *g);
    uint32_t *holders = calloc(member->ranks, sizeof *holders);
    if (!g || !holders || !sorted_grow(&t->groups, t->group_count, &t->group_capacity)) {
        free(holders);
        free(g);
        *ret_ok = false;
        return NULL;
    }
    *g = (group_t){.ranks = member->ranks, .holders = holders};
    error_text(g->name, sizeof g->name, member->group);
    sorted_insert(t->groups, &t->group_count, at, g);
    return g;
}

/* Takes the copy out of tally and plan, before its row is freed or belongs to another session. */
static void take_out(track_t *t, copy_row_t *c)
{
    if (c->token) copy_gone(t, c);
    tallied_t was = tallied(c);
    tally_move(&t->tally, &was, NULL);
    track_changed(t);
}

/* The row is reserved in the plan first, so that nothing has changed where memory runs out. */
copy_row_t *copy_add(track_t *t, const member_t *member)
{
    bool found, ok;
    size_t at = sorted_place(t->copies, t->copy_count, member->name, order_copy, &found);
    copy_row_t *c = found ? t->copies[at] : NULL;
    if (c && c->token == member->token) return c;
    group_t *group = need_group(t, member, &ok);
    if (!ok || !plan_add(&t->plan, member->token)) return NULL;
    bool is_eligible = false;
    copy_row_t before = {0}; /* of the same process */
    if (c) {
        if (!memcmp(&c->life, &member->life, sizeof c->life)) before = *c;
        is_eligible = c->token && c->is_eligible && !memcmp(&c->life, &member->life, sizeof c->life);
        take_out(t, c);
        free(c->served);
        free(c->message);
    } else {
        c = calloc(1, sizeof *c);
        if (!c || !sorted_grow(&t->copies, t->copy_count, &t->copy_capacity)) {
            free(c);
            return NULL;
        }
        sorted_insert(t->copies, &t->copy_count, at, c);
    }
    *c = (copy_row_t){.token = member->token,
                      .life = member->life,
                      .is_eligible = is_eligible,
                      .first_told_us = before.first_told_us,
                      .announce_us = before.announce_us,
                      .is_resumed = before.is_resumed || before.bytes_done > 0,
                      .group = group,
                      .rank = member->rank};
    error_text(c->worker, sizeof c->worker, member->name);
    tallied_t now = tallied(c);
    tally_move(&t->tally, NULL, &now);
    track_changed(t);
    return c;
}

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
        copy_expect(t, c);
    }
    return true;
}

/* All plans are made before the first ANNOUNCE is sent, so that each plan counts the load of all the
 * others. */
bool track_begin(track_t *t, const membership_t *members)
{
    t->phase = TRACK_BEGUN;
    track_touch(t);
    if (!track_expect(t, members)) return false;
    for (size_t i = 0; i < t->copy_count; i++)
        if (t->copies[i]->token) plan_make(&t->plan, t->copies[i]->token, NULL, 0);
    return true;
}

/* Used where the worker does not have the version any more, and no rollout waits for it. */
void copy_drop(track_t *t, const char *worker)
{
    bool found;
    size_t at = sorted_place(t->copies, t->copy_count, worker, order_copy, &found);
    if (!found) return;
    copy_row_t *c = t->copies[at];
    take_out(t, c);
    sorted_remove(t->copies, &t->copy_count, at);
    free_copy(c);
}

/* ---- reading ---- */

bool copy_in_flight(const copy_row_t *c) { return c && state_in_flight(c->state); }

bool copy_holds(const copy_row_t *c) { return c && state_holds(c->state); }

bool copy_is_told(const copy_row_t *c)
{
    return c && c->state >= COPY_ANNOUNCED && c->state <= COPY_ARRIVED && c->told_us;
}

/* The phase in which a copy is or has failed, by the names that errors and `heddle versions` use. */
const char *copy_phase(const copy_row_t *c)
{
    switch (c->state) {
    case COPY_FETCHING: return "fetch";
    case COPY_ARRIVED: return "stage";
    case COPY_STAGED:
    case COPY_COMMITTED:
    case COPY_ACTIVE:
    case COPY_KEPT:
    case COPY_REFUSED: return "activate";
    case COPY_FAILED:
    case COPY_GONE: return c->phase;
    default: return "announce";
    }
}
