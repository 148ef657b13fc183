/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/copy.h"

#include "broker/rollout/track.h"
#include "core/errors.h"
#include "core/sorted.h"

#include <stdlib.h>
#include <string.h>

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
    plan_hold(&t->plan, c->token, now.state == COPY_ARRIVED && c->region.epoch);
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
    uint64_t all_us = now_us - t->created_us;
    uint64_t own_us = c->connect_us + c->fetch_us + c->busy_us + c->stage_us;
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

void copy_loaded_from(track_t *t, copy_row_t *c, const msg_region_t *region)
{
    c->region = region ? *region : (msg_region_t){.epoch = 0};
    plan_hold(&t->plan, c->token, c->state == COPY_ARRIVED && c->region.epoch);
    if (t->plan.woken_count) track_touch(t);
}

void copy_in_region(copy_row_t *c, const msg_region_t *region, uint64_t verified, bool is_held)
{
    c->region = *region;
    c->verified = (verified_where_t)verified;
    c->is_held = is_held;
}

void copy_staged(track_t *t, copy_row_t *c, const msg_staged_t *m, instant_t now)
{
    note_served(c, t, m);
    copy_in_region(c, &m->region, m->verified, m->held);
    c->retry_us = 0;
    c->bytes_done = t->row->data_bytes;
    c->connect_us = m->connect_us;
    c->fetch_us = m->fetch_us;
    c->verify_us = m->verify_us;
    c->busy_us = m->busy_us;
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
        track_touch(t); /* it may be lost now, or another one of its place fetches it */
        plan_stuck(&t->plan, c->token);
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
    if (!ok || !plan_add(&t->plan, member->token, member->place)) return NULL;
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

void copy_free(copy_row_t *c)
{
    free(c->served);
    free(c->message);
    free(c);
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
    copy_free(c);
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
