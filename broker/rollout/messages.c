/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/messages.h"

#include "broker/registry/active.h"
#include "broker/rollout/next.h"
#include "broker/rollout/summary.h"
#include "core/clock.h"
#include "core/errors.h"
#include "formats/kind.h"

#include <stdlib.h>

/* As many as a publisher keeps (HEDDLE_MISSING_MAX); the counts tell of the others. */
#define MISSING_ROWS 64u

/* ---- messages to workers ---- */

/* The region in which this member has the version, if the receiver, at `place`, can hold it.  generation 0:
 * it cannot. */
static msg_region_t region_for(const track_t *t, const member_t *source, uint64_t place)
{
    bool is_near = place && source->place == place;
    const copy_row_t *c = is_near && source->role == ROLE_WORKER ? copy_of(t, source) : NULL;
    if (copy_holds(c) || (c && c->state == COPY_ARRIVED)) return c->region;
    return is_near && source->token == t->plan.publisher.token ? t->region : (msg_region_t){.generation = 0};
}

/* Of one host, and yet neither can hold what the other one has: another network namespace, directory or user
 * lies between them. */
static bool is_apart(uint64_t place, uint64_t other)
{
    return place != other && place >> 32 && place >> 32 == other >> 32;
}

/* Sources that have ended since the plan was made are left out: they are found by their token no longer.
 * `place`: of the receiver.  Returns how many are there. */
static uint32_t to_sources(const membership_t *members, const track_t *t, uint64_t place, uint32_t count,
                           const uint64_t tokens[PLAN_SOURCES], msg_source_t ret_sources[PLAN_SOURCES])
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        const member_t *m = membership_by_token(members, tokens[i]);
        if (!m) continue;
        const plan_row_t *row = plan_row(&t->plan, m->token);
        msg_source_t *s = &ret_sources[used++];
        *s = (msg_source_t){.token = m->token,
                            .kind = m->role == ROLE_WORKER ? SOURCE_WORKER : SOURCE_PUBLISHER,
                            .name = m->name,
                            .address = bytes_of(m->address, m->address_bytes),
                            .region = region_for(t, m, place),
                            .apart = is_apart(place, m->place),
                            .partial = row && row->has != PLAN_WHOLE};
        if (s->region.generation) s->life = m->life;
    }
    return used;
}

/* By the member's own plan.  Of a version that is lost there is nothing to be got from another one that waits
 * for it: without a source the worker goes on with the next version.  With a list for each half of the
 * chunks, the one that the member serves others comes first: the manifest is fetched along it. */
static uint32_t sources_of(const step_t *s, const track_t *t, const member_t *member,
                           msg_source_t ret_sources[2 * PLAN_SOURCES])
{
    const plan_row_t *plan = plan_row(&t->plan, member->token);
    if (!plan || t->bytes == BYTES_LOST) return 0;
    uint32_t own = to_sources(s->v.members, t, member->place, plan->source_count, plan->sources, ret_sources);
    uint32_t all =
        own + to_sources(s->v.members, t, member->place, plan->other_count, plan->others, ret_sources + own);
    for (uint32_t i = 0; i < all && plan->half; i++)
        ret_sources[i].half = i < own ? plan->half : 3 - plan->half;
    return all;
}

/* A client that pulls is no member, so it has no row in the plan and puts no load on it. */
uint32_t messages_sources(const membership_t *members, track_t *t, const plan_asker_t *asker,
                          msg_source_t ret_sources[PLAN_SOURCES])
{
    uint64_t tokens[PLAN_SOURCES];
    uint32_t count = plan_sources_choose(&t->plan, asker, tokens);
    return to_sources(members, t, asker->place, count, tokens, ret_sources);
}

/* ANNOUNCE with the sources of the member's plan.  Without one nothing is sent, and the next source wakes the
 * worker. */
static void send_announce(step_t *s, track_t *t, copy_row_t *c, const member_t *member)
{
    uint64_t now_us = s->v.now.us;
    const version_row_t *row = t->row;
    msg_source_t sources[2 * PLAN_SOURCES];
    record_parts_t parts = row->parts;
    bool is_first = !copy_is_out(c);
    uint32_t count = sources_of(s, t, member, sources);
    if (!count) {
        copy_not_announced(t, c, s->v.now);
        return;
    }
    copy_announced(t, c, s->v.now);
    copy_named(c, sources, count);
    msg_t m = {.type = MSG_ANNOUNCE};
    m.announce = (msg_announce_t){.token = member->token,
                                  .version = row->version,
                                  .adapter = t->adapter,
                                  .digest = row->digest,
                                  .parts = parts.part,
                                  .part_count = parts.count,
                                  .key = row->share_key,
                                  .sources = sources,
                                  .source_count = count,
                                  .step = row->step,
                                  .data_bytes = row->data_bytes,
                                  .kind = kind_said(kind_name(row->kind)),
                                  .kept = track_is_overtaken(t)};
    /* A worker that the rollout waits for gives up at the same time as the broker. */
    if (c->is_eligible && t->deadline_us != CLOCK_NEVER && !t->is_late)
        m.announce.deadline_ms = t->deadline_us > now_us ? (t->deadline_us - now_us + 999) / 1000 : 1;
    outbox_send(s->out, member->peer, &m);
    if (is_first) events_add(s->ev, EVENT_STAGE_STARTED, t->adapter, t->version, member->name, s->v.now);
}

/* An empty list is sent too: it tells the worker to wait until a source is there. */
void messages_send_sources(step_t *s, track_t *t, copy_row_t *c, const member_t *member)
{
    msg_source_t sources[2 * PLAN_SOURCES];
    uint32_t count = sources_of(s, t, member, sources);
    copy_named(c, sources, count);
    msg_t m = {.type = MSG_SOURCES};
    m.sources = (msg_sources_t){.token = member->token,
                                .version = t->version,
                                .adapter = t->adapter,
                                .sources = sources,
                                .source_count = count};
    outbox_send(s->out, member->peer, &m);
    if (!count) copy_owe(t, c);
}

/* COMMIT of the version of `t`, which is the active one for this member.  A copy that has it is COMMITTED
 * from now on, and the time in which the worker counts as switching begins. */
static void send_commit(step_t *s, track_t *t, const member_t *member)
{
    copy_row_t *c = copy_of(t, member);
    if (c) copy_ordered(t, c, s->v.now);
    msg_t m = {.type = MSG_COMMIT};
    m.commit = (msg_commit_t){.token = member->token,
                              .version = t->version,
                              .decision = t->of->row->decision,
                              .adapter = t->adapter,
                              .digest = t->row->digest};
    outbox_send(s->out, member->peer, &m);
}

/* ABORT says why the version ended. */
void messages_send_abort(step_t *s, const char *adapter, const version_row_t *row, const member_t *member)
{
    bool is_superseded = row->state == VERSION_SUPERSEDED;
    const char *message = row->message[0] ? row->message
                          : is_superseded ? "a newer version came"
                                          : "the version ended";
    msg_t m = {.type = MSG_ABORT};
    m.abort = (msg_abort_t){.token = member->token,
                            .version = row->version,
                            .adapter = adapter,
                            .code = row->code       ? heddle_err_name(row->code)
                                    : is_superseded ? "superseded"
                                                    : "version_failed",
                            .message = message};
    outbox_send(s->out, member->peer, &m);
}

void messages_send_retire(step_t *s, const char *adapter, uint64_t version, const member_t *member)
{
    msg_t m = {.type = MSG_RETIRE};
    m.retire = (msg_retire_t){.token = member->token, .version = version, .adapter = adapter};
    outbox_send(s->out, member->peer, &m);
    member_sub_t *sub = member_sub(member, adapter);
    if (sub) sub->lacks_slot = false; /* until it says so again */
}

void messages_ping(step_t *s, const member_t *member)
{
    msg_t ping = {.type = MSG_PING};
    ping.ping.nonce = member->token;
    outbox_send(s->out, member->peer, &ping);
}

void messages_verify(step_t *s, track_t *t)
{
    if (t->checked_us && s->v.now.us < t->checked_us + s->ro->lease_us) return;
    t->checked_us = s->v.now.us;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        const member_t *m = copy_holds(c) ? membership_by_token(s->v.members, c->token) : NULL;
        if (!m) continue;
        msg_t msg = {.type = MSG_VERIFY};
        msg.verify = (msg_verify_t){.token = m->token, .version = t->version, .adapter = t->adapter};
        outbox_send(s->out, m->peer, &msg);
    }
}

/* ---- what a worker lacks ---- */

/* Without memory the outbox fails: the broker then calls each member to join again (broker_send_outbox). */
copy_row_t *messages_need_copy(step_t *s, track_t *t, const member_t *member)
{
    copy_row_t *c = copy_add(t, member);
    if (!c) s->out->failed = true;
    return c;
}

static void announce_to(step_t *s, track_t *t, const member_t *member)
{
    copy_row_t *c = messages_need_copy(s, t, member);
    if (!c) return;
    plan_make(&t->plan, member->token, NULL, 0);
    track_touch(t); /* it may wait, or others no longer need to */
    send_announce(s, t, c, member);
}

/* After a start of the broker those that fetch the version have not all come back: one that does not fetch it
 * waits for them.  Else its publisher would send all bytes again, or a second copy go into its host. */
static bool waits_for_fetchers(const track_t *t, const member_t *member)
{
    bool may_fetch = t->row->state == VERSION_STAGING || (member->place && member->former_count);
    return t->awaits_fetchers && may_fetch && !plan_is_at_place(&t->plan, member->place);
}

void messages_announce_to(step_t *s, track_t *t, const member_t *member)
{
    if (!track_has_source(t)) return;
    if (!copy_needs_announce(copy_of(t, member), s->v.now.us)) return;
    if (waits_for_fetchers(t, member)) track_touch(t);
    else announce_to(s, t, member);
}

/* A worker that waits for the active version would wait in silence where its bytes are lost.  It is not sent
 * while a next version is on its way to it. */
static void send_lost(step_t *s, const adapter_rollout_t *a, const track_t *active, const member_t *member)
{
    member_sub_t *sub = member_sub(member, a->row->name);
    bool is_lost = active && active->bytes == BYTES_LOST && s->ro->is_settled;
    if (!is_lost) sub->sent_lost = 0;
    if (!is_lost || sub->sent_lost == active->version || copy_holds(copy_of(active, member))) return;
    if (!a->row->held && track_has_source(track_staging(a))) return;
    char text[SUMMARY_TEXT];
    summary_lost_text(s->ro, a->row, text, sizeof text);
    msg_t m = {.type = MSG_ABORT};
    m.abort = (msg_abort_t){.token = member->token,
                            .version = active->version,
                            .adapter = a->row->name,
                            .code = heddle_err_name(HEDDLE_ERR_VERSION_LOST),
                            .message = text};
    outbox_send(s->out, member->peer, &m);
    sub->sent_lost = active->version;
}

/* Each message changes the copies that the next question looks at. */
void messages_wake_worker(step_t *s, const adapter_rollout_t *a, member_t *member)
{
    track_t *newest = track_staging(a), *active = track_of(a, active_for(a->row, member));
    next_first_t first = next_first(newest, active, member, s->v.now.us, s->ro->lease_us);
    if (first != NEXT_ACTIVE) messages_announce_to(s, newest, member);
    next_send_t sent = next_of_active(first, newest, active, member);
    if (sent == NEXT_COMMIT) send_commit(s, active, member);
    if (sent == NEXT_ANNOUNCE) messages_announce_to(s, active, member);
    if (next_newest_follows(first, sent, active, member)) messages_announce_to(s, newest, member);
    send_lost(s, a, active, member);
}

/* A worker finishes a decided version even if a later one is decided meanwhile.  The exception is a version
 * that was taken back: the worker must not switch to it any more.  So COMMIT of the earlier version is sent
 * at once, even if the worker does not have that yet.  A worker that serves nothing may give up an obsolete
 * fetch, so COMMIT is sent to it together with the announcement. */
void messages_decided(step_t *s, track_t *active, member_t *member)
{
    const copy_row_t *c = copy_of(active, member);
    bool holds = copy_holds(c);
    bool is_at_once = holds || copy_is_sent(c) || registry_is_step_back(active->of->row);
    if (is_at_once) send_commit(s, active, member);
    if (!holds) messages_wake_worker(s, active->of, member);
    bool serves_nothing = !member_sub(member, active->adapter)->serving.version;
    if (!is_at_once && serves_nothing && copy_is_sent(copy_of(active, member)))
        send_commit(s, active, member);
}

void messages_wake_waiting(step_t *s, track_t *t)
{
    uint64_t token;
    while ((token = plan_next_woken(&t->plan)) != 0) {
        member_t *m = membership_by_token(s->v.members, token);
        if (m) messages_wake_worker(s, t->of, m);
    }
}

/* A fetch whose announcement is owed again may be going on. */
void messages_mend_lists(step_t *s, track_t *t, const member_t *but)
{
    uint64_t token;
    while ((token = plan_next_torn(&t->plan)) != 0) {
        const member_t *m = membership_by_token(s->v.members, token);
        copy_row_t *c = m ? copy_of(t, m) : NULL;
        plan_mend(&t->plan, token);
        if (m != but && copy_takes_list(c)) messages_send_sources(s, t, c, m);
    }
}

/* Those that have more bytes get their lists first: one that begins anew would take what has room for
 * them. */
void messages_settle(step_t *s, track_t *t)
{
    messages_mend_lists(s, t, NULL);
    messages_wake_waiting(s, t);
    messages_mend_lists(s, t, NULL);
}

void messages_wake_adapter(step_t *s, const adapter_rollout_t *a)
{
    for (size_t i = 0; i < s->v.members->worker_count; i++) {
        member_t *m = s->v.members->workers[i];
        if (member_subscribes(m, a->row->name)) messages_wake_worker(s, a, m);
    }
}

/* It goes behind all others.  Those that its former session has woken begin anew before it: else it would
 * take the same source as one of them. */
void messages_wake(step_t *s, member_t *member)
{
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_rollout_t *a = tracks_adapter(s->ro, member->subs[i].adapter);
        if (!a) continue;
        for (size_t k = 0; k < a->track_count; k++) messages_settle(s, a->tracks[k]);
        messages_wake_worker(s, a, member);
    }
}

/* A worker fetches the newest version first.  If it was still fetching the active one, that one is owed: it
 * is announced again when the newest is staged.  Until another worker of its place has brought the newest, it
 * goes on. */
void messages_announce(step_t *s, track_t *t)
{
    for (size_t i = 0; i < t->copy_count; i++) {
        copy_row_t *c = track_walk(t, i);
        const member_t *m = membership_by_token(s->v.members, c->token);
        if (!m || copy_holds(c) || c->state == COPY_ARRIVED) continue;
        track_t *active = track_of(t->of, active_for(t->of->row, m));
        copy_row_t *put_off = copy_of(active, m);
        if (copy_in_flight(put_off) && !plan_waits_for(&t->plan, m->token)) copy_put_off(active, put_off);
        send_announce(s, t, c, m);
    }
}

/* ---- publishers ---- */

static void send_rollout(step_t *s, const adapter_row_t *a, const version_row_t *row, const rollout_to_t *to)
{
    missing_row_t rows[MISSING_ROWS];
    msg_missing_t missing[MISSING_ROWS];
    char held[512] = "", queued[SUMMARY_QUEUED_TEXT];
    missing_list_t list = {rows, MISSING_ROWS, s->v.members, s->v.now.us};
    summary_t sum = summary_of(s->ro, a, row, &list);
    summary_bytes_t bytes = summary_bytes(s->ro, a, row);
    if (sum.code == HEDDLE_ERR_HELD) summary_held_text(s->ro, a, held, sizeof held);
    bool is_queued = summary_queued_text(s->ro, a, row, queued);
    bool is_alone = !is_queued && row->state == VERSION_STAGING && !sum.eligible && !sum.missing_count;
    if (is_alone && summary_nearest_text(s->v.members, a->name, queued)) sum.code = HEDDLE_ERR_NO_WORKERS;
    uint32_t count = sum.missing_count < MISSING_ROWS ? sum.missing_count : MISSING_ROWS;
    for (uint32_t i = 0; i < count; i++)
        missing[i] = (msg_missing_t){.worker = rows[i].worker,
                                     .phase = rows[i].phase,
                                     .message = rows[i].message,
                                     .code = rows[i].code ? heddle_err_name(rows[i].code) : ""};
    /* Held, lost and queued are derived states, which the version's row has no message for. */
    const char *message = sum.code == HEDDLE_ERR_HELD                         ? held
                          : queued[0]                                         ? queued
                          : sum.code == HEDDLE_ERR_VERSION_LOST && !row->code ? "no process holds its bytes"
                                                                              : row->message;
    msg_t m = {.type = MSG_ROLLOUT};
    m.rollout = (msg_rollout_t){.token = to->token,
                                .req = to->req,
                                .version = row->version,
                                .decision = sum.decision,
                                .activation = sum.activation,
                                .deadline_ms = sum.deadline_ms,
                                .eligible_count = sum.eligible,
                                .staged_count = sum.staged,
                                .active_count = sum.active,
                                .bytes_done = bytes.done,
                                .data_bytes = bytes.all,
                                .adapter = a->name,
                                .state = sum.state,
                                .code = sum.code ? heddle_err_name(sum.code) : "",
                                .message = message,
                                .missing = missing,
                                .missing_count = count};
    outbox_send(s->out, to->peer, &m);
}

void messages_send_rollout(step_t *s, const char *adapter, uint64_t version, const rollout_to_t *to)
{
    const adapter_row_t *a = registry_adapter(s->v.registry, adapter);
    const version_row_t *row = a ? registry_version(a, version) : NULL;
    if (row) {
        send_rollout(s, a, row, to);
        return;
    }
    msg_t m = {.type = MSG_ROLLOUT};
    m.rollout = (msg_rollout_t){.token = to->token,
                                .req = to->req,
                                .version = version,
                                .adapter = adapter,
                                .state = "lost",
                                .code = heddle_err_name(HEDDLE_ERR_VERSION_LOST),
                                .message = "the broker does not know it, or not any more"};
    outbox_send(s->out, to->peer, &m);
}

static bool urgent_equal(const urgent_t *a, const urgent_t *b)
{
    return a->state && b->state && !strcmp(a->state, b->state) && a->code == b->code &&
           a->is_first_staged == b->is_first_staged && a->is_all_staged == b->is_all_staged &&
           a->is_all_active == b->is_all_active;
}

/* One list for each of those that were put last, however many were blamed in this turn.  One that asked by
 * itself meanwhile has its list. */
static void make_last_lists(step_t *s, track_t *t)
{
    size_t at = 0;
    if (t->owes_last) messages_mend_lists(s, t, NULL); /* those that they served have their place first */
    for (uint64_t token; t->owes_last && (token = plan_put_last(&t->plan, &at)) != 0;) {
        const member_t *m = membership_by_token(s->v.members, token);
        copy_row_t *c = m ? copy_of(t, m) : NULL;
        plan_make(&t->plan, token, NULL, 0);
        if (copy_takes_list(c)) messages_send_sources(s, t, c, m);
    }
    t->owes_last = false;
}

/* Lists that are owed, and what the track's publisher has to be sent.  What can wait makes the track due when
 * its time has come. */
static void flush_track(step_t *s, track_t *t)
{
    make_last_lists(s, t);
    const member_t *publisher =
        t->plan.publisher.token ? membership_by_token(s->v.members, t->plan.publisher.token) : NULL;
    bool is_ended = track_is_ended(t);
    if (!publisher || !t->row) return;
    if (t->is_restored && !is_ended && !s->ro->is_settled) return; /* end_settling touches it */

    /* RELEASE: the trainer may use its region again, although it still has the bytes until it does.
     * Another process has them, and no worker that the rollout waits for is under way. */
    if (t->plan.publisher.state == PUBLISHER_SERVES && (is_ended || tally_is_complete(&t->tally))) {
        msg_t m = {.type = MSG_RELEASE};
        m.release = (msg_release_t){.token = publisher->token, .version = t->version, .adapter = t->adapter};
        outbox_send(s->out, publisher->peer, &m);
        track_set_publisher(t, t->plan.publisher.token, PUBLISHER_RELEASED);
        events_add(s->ev, EVENT_VERSION_RELEASED, t->adapter, t->version, publisher->name, s->v.now);
    }
    if (is_ended) track_set_publisher(t, t->plan.publisher.token, PUBLISHER_WITHOUT);

    /* ROLLOUT, if something changed since the last one.  It is sent without delay when what is urgent
     * changes. Mere counts are collected for ROLLOUT_PUSH_US. */
    if (t->pushed_changes == t->changes) return;
    summary_t sum = summary_of(s->ro, t->of->row, t->row, NULL);
    urgent_t urgent = {.state = sum.state,
                       .code = sum.code,
                       .is_first_staged = sum.staged > 0,
                       .is_all_staged = sum.eligible && sum.staged >= sum.eligible,
                       .is_all_active = sum.eligible ? sum.active >= sum.eligible : sum.active > 0};
    bool is_fresh = /* PUBLISHED said as much */
        !t->pushed_changes && !sum.staged && !strcmp(sum.state, "staging");
    bool is_urgent = !urgent_equal(&urgent, &t->pushed) && !is_fresh;
    if (!is_urgent && s->v.now.us < t->push_us + ROLLOUT_PUSH_US) {
        track_sooner(t, t->push_us + ROLLOUT_PUSH_US);
        return;
    }
    send_rollout(s, t->of->row, t->row, &(rollout_to_t){publisher->peer, publisher->token, 0});
    t->pushed_changes = t->changes;
    t->pushed = urgent;
    t->push_us = s->v.now.us;
}

void messages_flush(step_t *s)
{
    for (adapter_rollout_t *a; (a = s->ro->touched) != NULL; tracks_untouch(a)) {
        /* ROLLOUT of a version that waits says how far the version before it is. */
        const track_t *first = track_staging(a);
        track_t *waiting = first ? track_waiting(a) : NULL;
        if (waiting && waiting->earlier_changes != first->changes) {
            waiting->earlier_changes = first->changes;
            track_changed(waiting);
        }
        for (size_t i = 0; i < a->track_count; i++) flush_track(s, a->tracks[i]);
        track_forget_ended(a); /* their publishers were sent the end */
    }
}
