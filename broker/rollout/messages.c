/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/messages.h"

#include "core/clock.h"
#include "core/errors.h"

/* ---- to workers ---- */

/* Sources that have ended since the plan was made are left out: they are found by their token no longer. */
static uint32_t to_sources(const membership_t *members, const uint64_t *tokens, uint32_t count,
                           msg_source_t ret_sources[PLAN_SOURCES])
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        const member_t *m = membership_by_token(members, tokens[i]);
        if (!m) continue;
        ret_sources[used++] =
            (msg_source_t){.token = m->token,
                           .kind = m->role == ROLE_WORKER ? SOURCE_WORKER : SOURCE_PUBLISHER,
                           .name = m->name,
                           .address = bytes_of(m->address, m->address_bytes)};
    }
    return used;
}

static uint32_t planned(const step_t *s, const track_t *t, const member_t *member,
                        msg_source_t ret_sources[PLAN_SOURCES])
{
    const plan_row_t *row = plan_row(&t->plan, member->token);
    return row ? to_sources(s->v.members, row->sources, row->source_count, ret_sources) : 0;
}

/* A client that pulls is no member, so it has no row in the plan and puts no load on it. */
uint32_t rollout_sources(const membership_t *members, const track_t *t, uint64_t asker,
                         msg_source_t ret_sources[PLAN_SOURCES])
{
    uint64_t tokens[PLAN_SOURCES];
    return to_sources(members, tokens, plan_choose(&t->plan, asker, tokens), ret_sources);
}

/* How much of the version's deadline is left: the worker gives up at the same time as the broker. */
static uint64_t left_ms(const track_t *t, const copy_row_t *c, uint64_t now_us)
{
    if (!c->is_eligible || t->deadline_us == CLOCK_NEVER || t->is_late) return 0;
    return t->deadline_us > now_us ? (t->deadline_us - now_us + 999) / 1000 : 1;
}

/* Without a source nothing is sent.  The copy waits, or is owed an ANNOUNCE if it had one before, and the
 * next source wakes it. */
void send_announce(step_t *s, track_t *t, copy_row_t *c, const member_t *member)
{
    const version_row_t *row = t->row;
    msg_source_t sources[PLAN_SOURCES];
    msg_part_t part = row->part;
    bool is_first = !copy_is_told(c) || c->is_owed;
    uint32_t count = planned(s, t, member, sources);
    c->is_owed = !count && copy_is_told(c); /* it may be fetching it: only the sources are missing */
    copy_move(t, c, count || c->is_owed ? COPY_ANNOUNCED : COPY_WAITING, s->v.now);
    copy_blame(t, c, HEDDLE_OK, "", "");
    c->retry_us = 0;
    if (!count) return;
    c->told_us = c->moved_us = s->v.now.us;
    c->announce_us = s->v.now.us - t->created_us;
    msg_t m = {.type = MSG_ANNOUNCE};
    m.announce = (msg_announce_t){.token = member->token,
                                  .version = row->version,
                                  .deadline_ms = left_ms(t, c, s->v.now.us),
                                  .adapter = t->adapter,
                                  .digest = row->digest,
                                  .parts = &part,
                                  .part_count = 1,
                                  .key = row->share_key,
                                  .sources = sources,
                                  .source_count = count,
                                  .step = row->step,
                                  .data_bytes = row->data_bytes};
    outbox_send(s->out, member->peer, &m);
    if (is_first) events_add(s->ev, EVENT_STAGE_STARTED, t->adapter, t->version, member->name, s->v.now);
}

/* An empty list is sent too: it tells the worker to wait until a source is there. */
bool send_sources(step_t *s, const track_t *t, copy_row_t *c, const member_t *member)
{
    msg_source_t sources[PLAN_SOURCES];
    uint32_t count = planned(s, t, member, sources);
    msg_t m = {.type = MSG_SOURCES};
    m.sources = (msg_sources_t){.token = member->token,
                                .version = t->version,
                                .adapter = t->adapter,
                                .sources = sources,
                                .source_count = count};
    outbox_send(s->out, member->peer, &m);
    if (!count) c->is_owed = copy_is_told(c);
    return count > 0;
}

/* COMMIT starts the time in which the worker counts as switching (copy_order). */
void send_commit(step_t *s, const adapter_rollout_t *a, const member_t *member)
{
    uint64_t version = active_for(a->row, member);
    const version_row_t *row = registry_version(a->row, version);
    track_t *t = adapter_track(a, version);
    copy_row_t *c = copy_of(t, member);
    if (c) copy_order(t, c, s->v.now.us);
    msg_t m = {.type = MSG_COMMIT};
    m.commit = (msg_commit_t){.token = member->token,
                              .version = version,
                              .decision = a->row->decision,
                              .adapter = a->row->name,
                              .digest = row->digest};
    outbox_send(s->out, member->peer, &m);
}

/* ABORT says why the version ended. */
void send_abort(step_t *s, const char *adapter, const version_row_t *row, const member_t *member)
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

void send_retire(step_t *s, const char *adapter, uint64_t version, const member_t *member)
{
    msg_t m = {.type = MSG_RETIRE};
    m.retire = (msg_retire_t){.token = member->token, .version = version, .adapter = adapter};
    outbox_send(s->out, member->peer, &m);
    member_sub_t *sub = member_sub(member, adapter);
    if (sub) sub->lacks_slot = false; /* until it says so again */
}

/* ---- to publishers ---- */

/* From now on the publisher may overwrite its region, although it still has the bytes until it does. */
void send_release(step_t *s, track_t *t, const member_t *publisher)
{
    msg_t m = {.type = MSG_RELEASE};
    m.release = (msg_release_t){.token = publisher->token, .version = t->version, .adapter = t->adapter};
    outbox_send(s->out, publisher->peer, &m);
    track_set_publisher(t, t->publisher, PUBLISHER_RELEASED);
    events_add(s->ev, EVENT_VERSION_RELEASED, t->adapter, t->version, publisher->name, s->v.now);
}

#define MISSING_ROWS                                                                                         \
    64u /* as many as a publisher keeps (HEDDLE_MISSING_MAX); the counts tell of the others */

/* Held, lost and queued are derived states, which the version's row has no message for. */
static const char *sum_message(const version_row_t *row, const rollout_sum_t *sum, const char *held,
                               const char *queued)
{
    if (sum->code == HEDDLE_ERR_HELD) return held;
    if (queued[0]) return queued;
    if (sum->code == HEDDLE_ERR_VERSION_LOST && !row->code) return "no process holds its bytes";
    return row->message;
}

void send_rollout(const rollout_t *ro, const adapter_row_t *a, const version_row_t *row,
                  const member_t *publisher, outbox_t *out)
{
    missing_row_t rows[MISSING_ROWS];
    msg_missing_t missing[MISSING_ROWS];
    char held[512] = "", queued[ROLLOUT_QUEUED_TEXT];
    rollout_sum_t sum = rollout_sum(ro, a, row, rows, MISSING_ROWS);
    if (sum.code == HEDDLE_ERR_HELD) rollout_held_text(ro, a, held, sizeof held);
    rollout_queued_text(ro, a, row, queued);
    uint32_t count = sum.missing_count < MISSING_ROWS ? sum.missing_count : MISSING_ROWS;
    for (uint32_t i = 0; i < count; i++)
        missing[i] = (msg_missing_t){.worker = rows[i].worker,
                                     .phase = rows[i].phase,
                                     .message = rows[i].message,
                                     .code = rows[i].code ? heddle_err_name(rows[i].code) : ""};
    msg_t m = {.type = MSG_ROLLOUT};
    m.rollout = (msg_rollout_t){.token = publisher->token,
                                .version = row->version,
                                .decision = sum.decision,
                                .activation = sum.activation,
                                .deadline_ms = sum.deadline_ms,
                                .eligible_count = sum.eligible,
                                .staged_count = sum.staged,
                                .active_count = sum.active,
                                .adapter = a->name,
                                .state = sum.state,
                                .code = sum.code ? heddle_err_name(sum.code) : "",
                                .message = sum_message(row, &sum, held, queued),
                                .missing = missing,
                                .missing_count = count};
    outbox_send(out, publisher->peer, &m);
}
