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
                       .is_out = c->announce == ANNOUNCE_OUT,
                       .is_bad = c->bad_ms != 0,
                       .group = c->group,
                       .rank = c->rank};
}

/* Bytes per second that it was seen to fetch at; 0: it did not fetch. */
static uint64_t rate_of(const copy_row_t *c)
{
    return c->fetch_us && !c->holds_region ? c->bytes_done * 1000000 / c->fetch_us : 0;
}

/* The copy is no more what it was counted as: tally, plan, last holder and changes follow.  Every change
 * of what is counted ends here, so none of them can be forgotten. */
static void follow(track_t *t, copy_row_t *c)
{
    tallied_t was = c->counted, now = tallied(c);
    bool held = state_holds(was.state), holds = state_holds(now.state);
    bool is_source = holds && !now.is_bad;
    tally_move(&t->tally, &was, &now);
    c->counted = now;
    if (is_source != (held && !was.is_bad)) plan_have(&t->plan, c->token, is_source, rate_of(c));
    else if (!state_in_flight(now.state)) plan_done(&t->plan, c->token);
    plan_loads(&t->plan, c->token, now.state == COPY_ARRIVED && c->region.generation);
    if (held && !holds && !tally_holders(&t->tally, false))
        error_text(t->last_holder, sizeof t->last_holder, c->worker);
    bool is_shown =
        was.state != now.state || was.is_eligible != now.is_eligible || was.has_reached != now.has_reached;
    t->changes += is_shown;
    track_touch(t);
}

/* What the worker goes by changes, and nothing else that is counted: no plan follows from it. */
static void set_announce(track_t *t, copy_row_t *c, announce_t announce)
{
    tallied_t now = c->counted;
    c->announce = announce;
    now.is_out = announce == ANNOUNCE_OUT;
    tally_move(&t->tally, &c->counted, &now);
    c->counted = now;
}

/* A copy that changes its state is not spare any more: the next heartbeat lists it again if it is.  The last
 * heartbeat of its fetch had fewer bytes than a copy that is held. */
static void move(track_t *t, copy_row_t *c, copy_state_t state, instant_t now)
{
    if (c->state == state) return;
    if (state_holds(state)) c->bytes_done = t->row->data_bytes;
    else c->bad_ms = 0; /* it is to have them anew */
    c->since_ms = now.wall_ms;
    c->state = state;
    c->is_spare = false;
    if (state != COPY_ARRIVED) c->busy_with = c->free_ms = 0;
    if (!state_in_flight(state)) c->announce = ANNOUNCE_NONE;
    follow(t, c);
}

static void set(track_t *t, copy_row_t *c, bool *flag, bool value)
{
    if (*flag == value) return;
    *flag = value;
    follow(t, c);
}

/* Most copies have no message, so only those that have one take memory for it.  Without memory users see the
 * code and the phase alone. */
static void blame(track_t *t, copy_row_t *c, copy_why_t why)
{
    if (c->code != why.code) track_changed(t);
    c->code = why.code;
    error_text(c->phase, sizeof c->phase, why.phase);
    size_t bytes = strlen(why.message) + 1;
    if (bytes > COPY_MESSAGE_BYTES) bytes = COPY_MESSAGE_BYTES;
    char *copy = bytes > 1 ? malloc(bytes) : NULL;
    if (copy) error_text(copy, bytes, why.message);
    free(c->message);
    c->message = copy;
}

static const copy_why_t NO_TROUBLE = {HEDDLE_OK, "", ""};

/* ---- announced ---- */

void copy_expected(track_t *t, copy_row_t *c) { set(t, c, &c->is_eligible, true); }

void copy_excused(track_t *t, copy_row_t *c) { set(t, c, &c->is_eligible, false); }

void copy_announced(track_t *t, copy_row_t *c, instant_t now)
{
    if (!c->first_sent_us) {
        c->first_sent_us = now.us;
        c->announce_us = now.us - c->from_us;
    }
    if (!c->begun_us && !c->behind) c->begun_us = now.us;
    c->sent_us = c->moved_us = now.us;
    c->waits_for = 0;
    c->cut_off_us = 0;
    c->retry_us = 0;
    move(t, c, COPY_ANNOUNCED, now);
    set_announce(t, c, ANNOUNCE_OUT);
    blame(t, c, NO_TROUBLE);
}

/* The worker may be fetching it, and lacks only the sources, where it was announced before. */
void copy_not_announced(track_t *t, copy_row_t *c, instant_t now)
{
    copy_owe(t, c);
    c->waits_for = plan_waits_for(&t->plan, c->token);
    c->retry_us = 0;
    move(t, c, copy_is_sent(c) ? COPY_ANNOUNCED : COPY_WAITING, now);
    blame(t, c, NO_TROUBLE);
}

void copy_owe(track_t *t, copy_row_t *c)
{
    if (c->announce == ANNOUNCE_OUT) set_announce(t, c, ANNOUNCE_OWED);
}

void copy_put_off(track_t *t, copy_row_t *c)
{
    copy_owe(t, c);
    blame(t, c, NO_TROUBLE);
}

/* ---- fetched ---- */

/* Those of former lists count: what came from one of them may be looked at only now. */
void copy_named(copy_row_t *c, const msg_source_t *sources, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!has_number(c->word.named, COPY_NAMED_MAX, sources[i].token))
            c->word.named[c->word.named_count++ % COPY_NAMED_MAX] = sources[i].token;
}

void copy_fetched(track_t *t, copy_row_t *c, const plan_lists_t *lists, instant_t now)
{
    plan_restore(&t->plan, c->token, lists);
    c->is_former = c->is_connected = true;
    c->first_sent_us = c->sent_us = c->begun_us = c->moved_us = now.us;
    move(t, c, COPY_FETCHING, now);
    set_announce(t, c, ANNOUNCE_OUT);
}

bool copy_lost_source(copy_row_t *c, uint64_t token)
{
    if (has_number(c->lost, c->lost_count, token) || c->lost_count == COPY_LOST_MAX) return false;
    c->lost[c->lost_count++] = token;
    return true;
}

void copy_missed(copy_row_t *c) { c->is_missed = true; }

/* One that waits for another worker of its host is not cut off: the bytes come by that one. */
void copy_looked_for_sources(track_t *t, copy_row_t *c, instant_t now)
{
    const plan_row_t *row = plan_row(&t->plan, c->token);
    bool has_source = row && row->fetch == PLAN_WAITING;
    for (uint32_t i = 0; row && i < row->source_count; i++)
        has_source |= !has_number(c->lost, c->lost_count, row->sources[i]);
    for (uint32_t i = 0; row && i < row->other_count; i++)
        has_source |= !has_number(c->lost, c->lost_count, row->others[i]);
    if (has_source) c->cut_off_us = 0;
    else if (!c->cut_off_us) c->cut_off_us = now.us;
}

void copy_begun_anew(copy_row_t *c, instant_t now) { c->moved_us = now.us; }

/* A session that goes on with bytes of an earlier one has no rate since it began. */
uint64_t copy_rate(const copy_row_t *c, const member_t *member, const member_sub_t *sub)
{
    uint64_t rate = sub->rate_bytes;
    bool has_mean = !c->is_resumed && c->begun_us && sub->beat_us > c->begun_us;
    if (!rate && has_mean) rate = c->bytes_done * 1000000 / (sub->beat_us - c->begun_us);
    return member_paced(member, rate);
}

const char *copy_awaited(const track_t *t, const copy_row_t *c)
{
    for (size_t i = 0; i < t->copy_count; i++)
        if (track_walk(t, i)->token == c->waits_for) return t->copies[i]->worker;
    return "another worker";
}

const copy_row_t *copy_queued_source(const track_t *t, const copy_row_t *c, const membership_t *members)
{
    const plan_row_t *row = plan_row(&t->plan, c->token);
    uint64_t first[2] = {row && row->source_count ? row->sources[0] : 0,
                         row && row->other_count ? row->others[0] : 0};
    for (int i = 0; i < 2; i++) {
        const member_t *member = first[i] ? membership_by_token(members, first[i]) : NULL;
        const copy_row_t *source = member ? copy_of(t, member) : NULL;
        if (copy_in_flight(source) && source->behind && !source->begun_us) return source;
    }
    return NULL;
}

/* The worker reports why it does not begin, or why its fetch makes no progress, or nothing when it does. */
bool copy_progressed(track_t *t, copy_row_t *c, const msg_progress_t *p, instant_t now)
{
    bool has_all = p->data_bytes && p->bytes_done >= p->data_bytes;
    bool has_trouble = p->message && *p->message, has_begun = p->data_bytes || !has_trouble;
    if (!c->begun_us) c->begun_us = now.us;
    /* Bytes of the first heartbeat after the loss of a source may have come before it. */
    if (p->bytes_done > c->bytes_done) {
        c->moved_us = now.us;
        if (c->received_us > c->cut_off_us) c->cut_off_us = 0;
    }
    if (p->bytes_done > t->furthest_bytes) {
        t->furthest_bytes = p->bytes_done;
        t->grown_us = now.us;
    }
    c->received_us = now.us;
    bool is_shown = now.us >= t->push_us + ROLLOUT_BYTES_US;
    if (c->bytes_done != p->bytes_done && is_shown) track_changed(t);
    else if (c->bytes_done != p->bytes_done) track_touch(t);
    c->bytes_done = p->bytes_done;
    c->is_connected |= p->source || p->bytes_done;
    c->region = has_all ? p->region : (msg_region_t){.generation = 0};
    plan_loads(&t->plan, c->token, c->state == COPY_ARRIVED && c->region.generation);
    if (t->plan.woken_count) track_touch(t);
    if (has_begun) move(t, c, has_all ? COPY_ARRIVED : COPY_FETCHING, now);

    int code = !has_trouble ? HEDDLE_OK : has_begun ? HEDDLE_ERR_UNAVAILABLE : HEDDLE_ERR_NO_SLOT;
    bool is_news = code == HEDDLE_ERR_UNAVAILABLE && code != c->code && !c->is_trouble_said;
    c->is_trouble_said |= is_news;
    blame(t, c, (copy_why_t){code, has_begun ? "fetch" : "announce", has_trouble ? p->message : ""});
    if (code && (plan_is_awaited(&t->plan, c->token) || plan_is_first(&t->plan, c->token))) {
        plan_stuck(&t->plan, c->token);
        track_touch(t);
    }
    return is_news;
}

/* ---- staged ---- */

/* How long its phases took by the worker's clock, as STAGED, NACK and JOIN report. */
static void measured(copy_row_t *c, uint64_t connect_us, uint64_t fetch_us, uint64_t verify_us,
                     uint64_t stage_us)
{
    c->connect_us = connect_us;
    c->fetch_us = fetch_us;
    c->verify_us = verify_us;
    c->stage_us = stage_us;
}

/* The bytes are there: the time since the version's record, or since the worker joined, that it did not
 * measure is split between announcement, queue and wait.  The worker's own phases may begin before the
 * announcement (bytes that were offered early).  So they come first, and the phases of the broker's clock get
 * what is left. */
static void measured_rest(copy_row_t *c, uint64_t now_us)
{
    uint64_t all_us = now_us - c->from_us;
    uint64_t own_us = c->connect_us + c->fetch_us + c->busy_us + c->stage_us;
    uint64_t left_us = all_us > own_us ? all_us - own_us : 0;
    if (c->announce_us > left_us) c->announce_us = left_us;
    left_us -= c->announce_us;
    c->queued_us = c->behind ? left_us : 0;
    c->wait_us = c->busy_us + (c->behind ? 0 : left_us);
}

static void add_moved(msg_moved_t *to, const msg_moved_t *moved)
{
    to->late += moved->late;
    to->gone += moved->gone;
    to->refused += moved->refused;
    to->bad += moved->bad;
    to->slow += moved->slow;
}

/* Which process served how many bytes is kept for `heddle versions` only: one row, by name and kind, for a
 * source that joined again while it served.  Without memory that output shows less. */
static void note_served(copy_row_t *c, track_t *t, const msg_staged_t *m)
{
    uint32_t count = m->source_count < LIMIT_SOURCES ? m->source_count : LIMIT_SOURCES;
    for (uint32_t i = 0; i < m->source_count; i++) t->bytes_moved += m->sources[i].bytes;
    free(c->served);
    c->served = count ? calloc(count, sizeof *c->served) : NULL;
    c->served_count = 0;
    for (uint32_t i = 0; c->served && i < count; i++) {
        const msg_served_t *s = &m->sources[i];
        copy_served_t one = {.kind = s->kind == SOURCE_WORKER ? SOURCE_WORKER : SOURCE_PUBLISHER};
        error_text(one.name, sizeof one.name, s->name ? s->name : "");
        uint32_t at = 0;
        int order = 1;
        for (; at < c->served_count; at++) {
            order = strcmp(c->served[at].name, one.name);
            if (order > 0 || (order == 0 && c->served[at].kind == one.kind)) break;
        }
        if (at == c->served_count || order > 0) {
            memmove(&c->served[at + 1], &c->served[at], (c->served_count - at) * sizeof one);
            c->served[at] = one;
            c->served_count++;
        }
        c->served[at].bytes += s->bytes;
        add_moved(&c->served[at].moved, &s->moved);
    }
}

/* The row is about to go.  Without memory the fetch is counted alone. */
static void keep_fetch(track_t *t, copy_row_t *c)
{
    if (!c->served_count) return;
    t->former_count++;
    former_row_t *rows =
        t->former_rows < LIMIT_FORMER ? realloc(t->former, (t->former_rows + 1) * sizeof *rows) : NULL;
    if (!rows) return;
    t->former = rows;
    former_row_t *row = &rows[t->former_rows++];
    *row = (former_row_t){.life = c->life,
                          .held_region = c->holds_region,
                          .fetch_us = c->fetch_us,
                          .served = c->served,
                          .served_count = c->served_count};
    error_text(row->worker, sizeof row->worker, c->worker);
    c->served = NULL;
    c->served_count = 0;
}

/* A switch that was ordered before begins now. */
void copy_staged(track_t *t, copy_row_t *c, const msg_staged_t *m, instant_t now)
{
    note_served(c, t, m);
    c->region = m->region;
    c->verified = (verified_where_t)m->verified;
    c->holds_region = m->held;
    c->retry_us = 0;
    c->busy_us = m->busy_us;
    measured(c, m->connect_us, m->fetch_us, m->verify_us, m->stage_us);
    measured_rest(c, now.us);
    if (c->switch_us) c->switch_us = now.us;
    blame(t, c, NO_TROUBLE);
    move(t, c, COPY_STAGED, now);
}

void copy_crossed_end(track_t *t, copy_row_t *c, instant_t now)
{
    if (!copy_in_flight(c)) return;
    c->bytes_done = t->row->data_bytes;
    move(t, c, COPY_ARRIVED, now);
}

/* Bytes that are being loaded were announced by a session before. */
void copy_restated(track_t *t, copy_row_t *c, const msg_held_t *held, copy_state_t state, instant_t now)
{
    bool is_loading = state == COPY_ARRIVED;
    c->bytes_done = t->row->data_bytes;
    c->activate_us = held->activate_us;
    measured(c, held->connect_us, held->fetch_us, held->verify_us, held->stage_us);
    c->region = held->region;
    c->verified = (verified_where_t)held->verified;
    c->holds_region = held->held;
    /* The process of a fetch that was kept is back with its bytes. */
    for (uint32_t i = t->former_rows; i-- > 0 && !c->served_count;) {
        former_row_t *row = &t->former[i];
        if (memcmp(&row->life, &c->life, sizeof c->life) != 0 || strcmp(row->worker, c->worker) != 0)
            continue;
        c->served = row->served;
        c->served_count = row->served_count;
        t->former_count--;
        memmove(row, row + 1, (--t->former_rows - i) * sizeof *row);
    }
    move(t, c, state, now);
    bool is_as_held = state == COPY_STAGED || state == COPY_ACTIVE || state == COPY_KEPT;
    if (is_as_held) {
        /* JOIN says how long it has been in its state, since the worker's clock may differ from the
         * broker's.  No state is older than the version's record: an age that would be is cut. */
        uint64_t created_ms = t->row->created_ms, age_ms = held->age_us / 1000;
        uint64_t most_ms = now.wall_ms > created_ms ? now.wall_ms - created_ms : 0;
        c->since_ms = held->age_us ? now.wall_ms - (age_ms < most_ms ? age_ms : most_ms) : 0;
    }
    if (state == COPY_ACTIVE) took_switched(t, c);
    set_announce(t, c, is_loading ? ANNOUNCE_OUT : ANNOUNCE_NONE);
    c->sent_us = !is_loading ? 0 : c->sent_us ? c->sent_us : now.us;
}

/* ---- switched ---- */

void copy_ordered(track_t *t, copy_row_t *c, instant_t now)
{
    c->switch_us = now.us;
    if (copy_holds(c) && c->state != COPY_ACTIVE) move(t, c, COPY_COMMITTED, now);
    follow(t, c); /* it may be switching without another state */
}

void copy_switched(track_t *t, copy_row_t *c, uint64_t activate_us, instant_t now)
{
    c->activate_us = activate_us;
    move(t, c, COPY_ACTIVE, now);
    took_switched(t, c);
    if (!c->bad_ms) blame(t, c, NO_TROUBLE);
}

void copy_reached(track_t *t, copy_row_t *c, bool has_reached) { set(t, c, &c->has_reached, has_reached); }

void copy_kept(track_t *t, copy_row_t *c, instant_t now) { move(t, c, COPY_KEPT, now); }

void copy_spared(track_t *t, copy_row_t *c, bool is_spare) { set(t, c, &c->is_spare, is_spare); }

/* ---- found bad ---- */

void copy_found_bad(track_t *t, copy_row_t *c, instant_t now)
{
    if (!copy_holds(c) || c->bad_ms) return;
    c->bad_ms = now.wall_ms;
    blame(
        t, c,
        (copy_why_t){HEDDLE_ERR_DIGEST_MISMATCH, "verify",
                     "its bytes in memory have gone bad; restart this worker to fetch them from another one, "
                     "or publish them again if no other worker has them"});
    follow(t, c);
}

/* ---- failed ---- */

void copy_tried(track_t *t, copy_row_t *c, const msg_nack_t *m, instant_t now)
{
    c->connect_us = m->connect_us;
    if (!m->fetch_us) return;
    c->bytes_done = t->row->data_bytes;
    measured(c, m->connect_us, m->fetch_us, m->verify_us, m->stage_us);
    measured_rest(c, now.us);
}

/* After a retriable error the same attempt may succeed later.  The active version is then announced again,
 * each time after twice the delay, up to 16 leases.  What has gone bad in memory is fetched anew at once, if
 * it is wanted. */
void copy_failed(track_t *t, copy_row_t *c, copy_why_t why, instant_t now)
{
    heddle_error_t e;
    error_fail(&e, why.code, " ");
    uint32_t doublings = c->failed_count < 4 ? c->failed_count : 4;
    c->failed_count++;
    bool has_gone_bad =
        copy_holds(c) && why.code == HEDDLE_ERR_DIGEST_MISMATCH && !strcmp(why.phase, "verify");
    c->retry_us = has_gone_bad ? now.us : e.retriable ? now.us + (t->of->ro->lease_us << doublings) : 0;
    if (c->retry_us) track_retry(t, c->retry_us, now.us);
    move(t, c, COPY_FAILED, now);
    blame(t, c, why);
}

bool copy_try_again(track_t *t, copy_row_t *c, uint64_t now_us)
{
    bool lacked_slot = c->state == COPY_FAILED && c->code == HEDDLE_ERR_NO_SLOT;
    if (!lacked_slot) return false;
    c->retry_us = now_us;
    track_retry(t, now_us, now_us);
    return true;
}

void copy_refused(track_t *t, copy_row_t *c, copy_why_t why, instant_t now)
{
    move(t, c, copy_holds(c) ? COPY_REFUSED : COPY_FAILED, now);
    blame(t, c, why);
}

/* ---- gone ---- */

static void leave(track_t *t, copy_row_t *c)
{
    c->last_state = c->state;
    c->state = COPY_GONE;
    c->announce = ANNOUNCE_NONE;
    follow(t, c);
    plan_remove(&t->plan, c->token);
    c->token = 0;
}

/* What was wrong before it left says more. */
void copy_gone(track_t *t, copy_row_t *c, int code, const char *message)
{
    if (!c->code || copy_in_flight(c)) blame(t, c, (copy_why_t){code, copy_phase(c), message});
    leave(t, c);
}

/* ---- versions of one worker, one after the other ---- */

void copy_turned_away(track_t *t, copy_row_t *c, instant_t now)
{
    if (!copy_in_flight(c)) return;
    track_touch(t); /* it may be lost now, or another one of its place fetches it */
    plan_stuck(&t->plan, c->token);
    c->sent_us = 0;
    set_announce(t, c, ANNOUNCE_NONE);
    move(t, c, COPY_WAITING, now);
}

/* The worker may have dropped these versions when it turned to the other one.  A version that is wanted again
 * is announced again. */
void copies_turned_away(const adapter_rollout_t *a, const member_t *member, uint64_t but, instant_t now)
{
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        if (track_is_overtaken(t) && t->version != but) copy_turned_away(t, copy_of(t, member), now);
    }
}

void copies_wait_behind(const adapter_rollout_t *a, const member_t *member, uint64_t version, instant_t now)
{
    copies_turned_away(a, member, version, now);
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        copy_row_t *c = track_is_ended(t) ? NULL : copy_of(t, member);
        if (!copy_is_sent(c) || c->state != COPY_ANNOUNCED || t->version == version) continue;
        c->behind = version;
        c->begun_us = 0;
    }
}

/* A version that has ended keeps what it was at its end. */
void copies_follow_switch(const adapter_rollout_t *a, const member_t *member, instant_t now)
{
    const track_t *first = NULL;
    uint64_t version = copies_first_switch(a, member, &first) ? first->version : 0;
    for (size_t i = 0; i < a->track_count; i++) {
        track_t *t = a->tracks[i];
        copy_row_t *c = track_is_ended(t) ? NULL : copy_of(t, member);
        uint64_t busy_with = c && c->state == COPY_ARRIVED ? version : 0;
        if (!c || c->busy_with == busy_with) continue;
        c->busy_with = busy_with;
        c->free_ms = busy_with || c->state != COPY_ARRIVED ? 0 : now.wall_ms;
        track_changed(t);
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

copy_row_t *copy_find(const track_t *t, const char *worker)
{
    return sorted_find(t->copies, t->copy_count, worker, order_copy);
}

copy_row_t *copy_of(const track_t *t, const member_t *member)
{
    const plan_row_t *row = t ? plan_row(&t->plan, member->token) : NULL;
    return row ? row->copy : NULL;
}

/* Groups of one name with different numbers of ranks are different groups: a group may be restarted with
 * another number. */
typedef struct {
    const char *name;
    uint32_t ranks;
} group_key_t;

static int order_group(const void *row, const void *key)
{
    const group_t *g = row;
    const group_key_t *k = key;
    int order = strcmp(g->name, k->name);
    return order ? order : g->ranks < k->ranks ? -1 : g->ranks > k->ranks;
}

/* One copy more of the member's group, found or new; *ret_ok false: no memory. */
static group_t *group_take(track_t *t, const member_t *member, bool *ret_ok)
{
    *ret_ok = true;
    if (!member->group[0]) return NULL;
    bool found;
    group_key_t key = {member->group, member->ranks};
    size_t at = sorted_place(t->groups, t->group_count, &key, order_group, &found);
    if (found) {
        t->groups[at]->copies++;
        return t->groups[at];
    }
    group_t *g = calloc(1, sizeof *g);
    uint32_t *holders = calloc(member->ranks, sizeof *holders);
    if (!g || !holders || !sorted_grow(&t->groups, t->group_count, &t->group_capacity)) {
        free(holders);
        free(g);
        *ret_ok = false;
        return NULL;
    }
    *g = (group_t){.copies = 1, .ranks = member->ranks, .holders = holders};
    error_text(g->name, sizeof g->name, member->group);
    sorted_insert(t->groups, &t->group_count, at, g);
    return g;
}

void copy_free_group(group_t *g)
{
    free(g->holders);
    free(g);
}

/* One copy less, which the tally counts no more: workers may come with ever new names of groups.  g may be
 * NULL. */
static void group_give(track_t *t, group_t *g)
{
    if (!g || --g->copies > 0) return;
    bool found;
    group_key_t key = {g->name, g->ranks};
    sorted_remove(t->groups, &t->group_count,
                  sorted_place(t->groups, t->group_count, &key, order_group, &found));
    copy_free_group(g);
}

/* A worker that was admitted before goes on with what it fetches.  The broker does not know how much that is
 * where the earlier session ended with its lease, or before the broker's start. */
static bool may_have_begun(const track_t *t, const member_t *member)
{
    return member->former_count && t->row->created_ms <= member->joined_ms;
}

/* A new session of the process that `before` is of goes on where that was; NULL: none. */
static bool take_part(track_t *t, const member_t *member, const copy_row_t *before)
{
    bool is_same = before && before->token && !memcmp(&before->life, &member->life, sizeof member->life);
    if (is_same && plan_renew(&t->plan, before->token, member->token)) return true;
    uint64_t created_ms = t->row->created_ms;
    bool is_last = member_is_blamed(member, created_ms) || member_is_slow(member, created_ms);
    plan_member_t who = {.token = member->token,
                         .place = member->place,
                         .name = member->name,
                         .zone = member_label(member, "zone"),
                         .is_limited = member->max_rate_bytes > 0 || is_last,
                         .is_last_resort = member_is_last_resort(member, created_ms),
                         .is_cut_off = member_is_cut_off(member, created_ms)};
    const member_trust_t *trust = &member->trust;
    if (is_last) who.blamed_ms = trust->order_ms;
    return plan_add(&t->plan, &who);
}

/* All memory is taken first, so that nothing has changed where it runs out. */
copy_row_t *copy_add(track_t *t, const member_t *member)
{
    copy_row_t *c = copy_of(t, member);
    if (c) return c;
    bool found, ok;
    size_t at = sorted_place(t->copies, t->copy_count, member->name, order_copy, &found);
    group_t *group = group_take(t, member, &ok);
    c = ok ? calloc(1, sizeof *c) : NULL;
    if (!c || !sorted_grow(&t->copies, t->copy_count, &t->copy_capacity) ||
        !take_part(t, member, found ? t->copies[at] : NULL)) {
        group_give(t, group);
        free(c);
        return NULL;
    }
    copy_row_t before = {0}; /* of the same process */
    if (found) {
        if (!memcmp(&t->copies[at]->life, &member->life, sizeof member->life)) before = *t->copies[at];
        copy_drop(t, member->name);
    }
    uint64_t from_us = member->joined_us > t->created_us ? member->joined_us : t->created_us;
    *c = (copy_row_t){.token = member->token,
                      .life = member->life,
                      .from_us = before.from_us ? before.from_us : from_us,
                      .is_eligible = before.token && before.is_eligible,
                      .first_sent_us = before.first_sent_us,
                      .announce_us = before.announce_us,
                      .word = before.word,
                      .is_resumed = before.is_resumed || before.bytes_done > 0 || may_have_begun(t, member),
                      .is_former = before.is_former,
                      .group = group,
                      .rank = member->rank};
    error_text(c->worker, sizeof c->worker, member->name);
    c->counted = tallied(c);
    tally_move(&t->tally, NULL, &c->counted);
    plan_row(&t->plan, c->token)->copy = c;
    sorted_insert(t->copies, &t->copy_count, at, c);
    if (!track_is_ended(t)) t->deserted_ms = 0;
    track_changed(t);
    return c;
}

copy_row_t *copy_fetched_on(track_t *t, const copy_row_t *before, const member_t *member, instant_t now)
{
    copy_row_t was = *before; /* its row becomes the new session's */
    copy_row_t *c = copy_add(t, member);
    if (!c) return NULL;
    c->switch_us = was.switch_us; /* WELCOME names it again */
    c->sent_us = was.sent_us;
    c->moved_us = was.moved_us;
    c->bytes_done = was.bytes_done;
    c->is_connected = was.is_connected;
    move(t, c, was.state, now);
    set_announce(t, c, was.announce);
    c->since_ms = was.since_ms;
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
    keep_fetch(t, c);
    if (c->token) leave(t, c);
    tally_move(&t->tally, &c->counted, NULL);
    track_changed(t);
    group_give(t, c->group);
    sorted_remove(t->copies, &t->copy_count, at);
    copy_free(c);
}

/* ---- reading ---- */

bool copy_in_flight(const copy_row_t *c) { return c && state_in_flight(c->state); }

bool copy_holds(const copy_row_t *c) { return c && state_holds(c->state); }

/* A worker that serves by a later decision has answered all earlier ones: a version that was taken back stays
 * ordered, and is switched to no more. */
const copy_row_t *copies_first_switch(const adapter_rollout_t *a, const member_t *member,
                                      const track_t **ret_track)
{
    const copy_row_t *first = NULL;
    for (size_t i = 0; i < a->track_count; i++) {
        const track_t *t = a->tracks[i];
        const copy_row_t *c = track_is_ended(t) ? NULL : copy_of(t, member);
        if (!c || !copy_is_switching(c) || (first && first->switch_us <= c->switch_us)) continue;
        if (member_sub(member, t->adapter)->serving.decision >= t->row->decision) continue;
        first = c;
        *ret_track = t;
    }
    return first;
}

bool copy_is_sent(const copy_row_t *c) { return c && c->announce != ANNOUNCE_NONE; }

bool copy_is_out(const copy_row_t *c) { return c && c->announce == ANNOUNCE_OUT; }

bool copy_takes_list(const copy_row_t *c) { return copy_is_sent(c) && copy_in_flight(c); }

bool copy_needs_announce(const copy_row_t *c, uint64_t now_us)
{
    if (!c) return true;
    if (c->state == COPY_FAILED) return c->retry_us && c->retry_us <= now_us;
    return state_in_flight(c->state) && c->announce != ANNOUNCE_OUT;
}

const char *copy_state_name(copy_state_t state)
{
    static const char *const NAMES[] = {
        [COPY_NONE] = "announced",      [COPY_WAITING] = "announced", [COPY_ANNOUNCED] = "announced",
        [COPY_FETCHING] = "fetching",   [COPY_ARRIVED] = "arrived",   [COPY_STAGED] = "staged",
        [COPY_COMMITTED] = "committed", [COPY_ACTIVE] = "active",     [COPY_KEPT] = "kept",
        [COPY_REFUSED] = "stale",       [COPY_FAILED] = "failed",     [COPY_GONE] = "gone",
        [COPY_STALE] = "stale"};
    return state >= COPY_NONE && state <= COPY_STALE ? NAMES[state] : "unknown";
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
