/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of a rollout, and the plan of sources in them. */
#include "broker/rollout/rollout_part.h"

#include "core/clock.h"
#include "core/errors.h"

/* ---- sources ---- */

typedef struct {
    planner_candidate_t rows[ROLLOUT_CANDIDATES + 1];
    size_t count;
} candidates_t;

static bool is_among(uint64_t token, const uint64_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] == token) return true;
    return false;
}

/* How many fetch from it first: what was planned and is still under way. */
static uint32_t load_of(const track_t *t, uint64_t token)
{
    uint32_t load = 0;
    for (size_t i = 0; i < t->copy_count; i++)
        load += copy_in_flight(t->copies[i]) && t->copies[i]->planned[0] == token;
    return load;
}

static uint64_t rate_of(const copy_row_t *c)
{
    return c->fetch_us ? c->bytes_done * 1000000 / c->fetch_us : 0;
}

/* Holders but the asker and those in `but`, from a place of the ring that the asker's token gives; then
 * the publisher. */
static void gather(const membership_t *members, const track_t *t, uint64_t asker, const uint64_t *but,
                   uint32_t but_count, candidates_t *ret)
{
    ret->count = 0;
    for (size_t k = 0; k < t->copy_count && ret->count < ROLLOUT_CANDIDATES; k++) {
        const copy_row_t *c = t->copies[(k + asker) % t->copy_count];
        if (!copy_holds(c) || c->token == asker || is_among(c->token, but, but_count)) continue;
        if (!membership_by_token(members, c->token)) continue;
        ret->rows[ret->count++] =
            (planner_candidate_t){.token = c->token, .load = load_of(t, c->token), .rate = rate_of(c)};
    }
    if (t->is_served && membership_by_token(members, t->publisher) &&
        !is_among(t->publisher, but, but_count))
        ret->rows[ret->count++] = (planner_candidate_t){.token = t->publisher, .is_publisher = true};
}

static uint32_t to_sources(const membership_t *members, const candidates_t *plan, size_t use,
                           msg_source_t *ret_sources)
{
    for (size_t i = 0; i < use; i++) {
        const member_t *m = membership_by_token(members, plan->rows[i].token);
        ret_sources[i] = (msg_source_t){.token = m->token,
                                        .kind = m->role == ROLE_WORKER ? SOURCE_WORKER : SOURCE_PUBLISHER,
                                        .name = m->name,
                                        .address = bytes_of(m->address, m->address_bytes)};
    }
    return (uint32_t)use;
}

/* Plans for one copy, and remembers it there. */
static uint32_t plan(const step_t *s, const track_t *t, copy_row_t *c, const uint64_t *but,
                     uint32_t but_count, msg_source_t *ret_sources)
{
    const membership_t *members = s->v.members;
    candidates_t found;
    gather(members, t, c->token, but, but_count, &found);
    if (!found.count && but_count)
        gather(members, t, c->token, NULL, 0, &found); /* better one that failed once than none */
    memset(c->planned, 0, sizeof c->planned);
    size_t use = planner_plan(found.rows, found.count, c->token, s->ro->seed ^ t->version);
    for (size_t i = 0; i < use; i++) c->planned[i] = found.rows[i].token;
    return to_sources(members, &found, use, ret_sources);
}

uint32_t rollout_sources(const rollout_t *ro, const membership_t *members, const track_t *t, uint64_t asker,
                         msg_source_t ret_sources[PLANNER_SOURCES])
{
    candidates_t found;
    gather(members, t, asker, NULL, 0, &found);
    size_t use = planner_plan(found.rows, found.count, asker, ro->seed ^ t->version);
    return to_sources(members, &found, use, ret_sources);
}

/* ---- to workers ---- */

static uint64_t left_ms(const track_t *t, const copy_row_t *c, uint64_t now_us)
{
    if (!c->is_eligible || t->deadline_us == CLOCK_NEVER || t->is_late) return 0;
    return t->deadline_us > now_us ? (t->deadline_us - now_us + 999) / 1000 : 1;
}

bool send_announce(step_t *s, track_t *t, const version_row_t *row, copy_row_t *c, const member_t *member)
{
    msg_source_t sources[PLANNER_SOURCES];
    msg_part_t part = row->part;
    uint32_t count = plan(s, t, c, NULL, 0, sources);
    copy_move(c, COPY_ANNOUNCED, s->v.now);
    c->code = 0;
    c->retry_us = 0;
    if (!count) return false;
    bool is_first = !c->announced_us;
    c->announced_us = c->told_us = c->moved_us = s->v.now.us;
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
    return true;
}

bool send_sources(step_t *s, track_t *t, copy_row_t *c, const member_t *member, const uint64_t *lost,
                  uint32_t lost_count)
{
    msg_source_t sources[PLANNER_SOURCES];
    uint32_t count = plan(s, t, c, lost, lost_count, sources);
    msg_t m = {.type = MSG_SOURCES};
    m.sources = (msg_sources_t){.token = member->token,
                                .version = t->version,
                                .adapter = t->adapter,
                                .sources = sources,
                                .source_count = count};
    outbox_send(s->out, member->peer, &m);
    return count > 0;
}

void send_commit(step_t *s, const adapter_row_t *a, const member_t *member)
{
    const version_row_t *row = registry_active(a);
    const track_t *t = rollout_track(s->ro, a->name, a->active);
    copy_row_t *c = t ? copy_of(t, member) : NULL;
    if (c) c->switch_us = s->v.now.us;
    msg_t m = {.type = MSG_COMMIT};
    m.commit = (msg_commit_t){.token = member->token,
                              .version = a->active,
                              .decision = a->decision,
                              .adapter = a->name,
                              .digest = row->digest};
    outbox_send(s->out, member->peer, &m);
}

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

void send_release(step_t *s, track_t *t, const member_t *publisher)
{
    msg_t m = {.type = MSG_RELEASE};
    m.release = (msg_release_t){.token = publisher->token, .version = t->version, .adapter = t->adapter};
    outbox_send(s->out, publisher->peer, &m);
    t->is_released = true;
    events_add(s->ev, EVENT_VERSION_RELEASED, t->adapter, t->version, publisher->name, s->v.now);
}

#define MISSING_ROWS                                                                                     \
    64u /* as many as a publisher keeps (HEDDLE_MISSING_MAX); the counts tell of the others */

static const char *sum_message(const version_row_t *row, const rollout_sum_t *sum, const char *held)
{
    if (sum->code == HEDDLE_ERR_HELD) return held;
    if (sum->code == HEDDLE_ERR_VERSION_LOST && !row->code) return "nobody holds its bytes";
    return row->message;
}

void send_rollout(const rollout_t *ro, const adapter_row_t *a, const version_row_t *row,
                  const member_t *publisher, outbox_t *out)
{
    missing_row_t rows[MISSING_ROWS];
    msg_missing_t missing[MISSING_ROWS];
    char held[512] = "";
    rollout_sum_t sum = rollout_sum(ro, a, row, rows, MISSING_ROWS);
    if (sum.code == HEDDLE_ERR_HELD) rollout_held_text(ro, a, held, sizeof held);
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
                                .message = sum_message(row, &sum, held),
                                .missing = missing,
                                .missing_count = count};
    outbox_send(out, publisher->peer, &m);
}
