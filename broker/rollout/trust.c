/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/trust.h"

#include "broker/rollout/messages.h"
#include "core/errors.h"
#include "core/limits.h"

#include <string.h>

/* Of those that are blamed in one version, the first one comes last of all: what was behind it got little,
 * and looked slow for a moment. */
static void note_order(const step_t *s, track_t *t, member_t *member)
{
    if (t->blamed_ms && member->trust.order_ms >= t->blamed_ms) return;
    t->blamed_ms = t->blamed_ms ? t->blamed_ms - 1 : s->v.now.wall_ms;
    member->trust.order_ms = t->blamed_ms;
}

/* Its own fetch goes on behind all others, so that its source has its whole rate for those that went on
 * there.  It gets its list at the end of the turn (messages_flush), and so do those that it served, and those
 * that were put last before it.  Where it has all bytes, those that name it get other lists. */
static void put_last(step_t *s, track_t *t, member_t *member)
{
    copy_row_t *c = copy_of(t, member);
    note_order(s, t, member);
    bool is_fetching = c && copy_is_sent(c) && plan_fetches(&t->plan, member->token);
    if (!is_fetching && !copy_holds(c)) return;
    if (!plan_demote(&t->plan, member->token)) return;
    track_touch(t);
    t->owes_last = true;
}

static event_row_t *add_event(step_t *s, const track_t *t, event_type_t type, const member_t *worker,
                              const member_t *of)
{
    event_row_t *e = events_add(s->ev, type, t->adapter, t->version, worker->name, s->v.now);
    e->token = of->token;
    error_text(e->other, sizeof e->other, of->name);
    return e;
}

/* One that gets wrong bytes from two processes for one version has a bad memory or link itself, or is not
 * honest.  What it alone said of others is taken back, and it is a last resort. */
static void suspect(step_t *s, track_t *t, member_t *worker)
{
    const membership_t *all = s->v.members;
    worker->trust.is_suspect = true;
    for (size_t i = 0; i < all->worker_count; i++)
        if (!all->workers[i]->trust.sends_bad && !strcmp(all->workers[i]->trust.blamed_by, worker->name))
            all->workers[i]->trust.blamed_ms = 0;
    put_last(s, t, worker);
    events_message(
        add_event(s, t, EVENT_SOURCE_BAD, worker, worker), HEDDLE_ERR_DIGEST_MISMATCH,
        "%s reported wrong bytes from two sources: its own memory or link may be bad, and no other "
        "worker fetches from it from now on",
        worker->name);
}

/* The word of one worker: of a source that it was named, and of one for a version.  Which sources a broker
 * named before this one was started is not known; these have other tokens since. */
static member_t *believed_source(step_t *s, track_t *t, member_t *worker, uint64_t token, bool is_bad)
{
    static const key16_t NONE;
    copy_row_t *c = copy_of(t, worker);
    const member_t *known = c && c->is_former ? membership_source(s->v.members, token) : NULL;
    member_t *source = membership_by_token(s->v.members, known ? known->token : token);
    bool is_believed = source && source != worker && !worker->trust.is_suspect && !worker->trust.sends_bad;
    is_believed = is_believed && c && (known || has_number(c->word.named, COPY_NAMED_MAX, token));
    if (!is_believed) return NULL;
    key16_t *said = is_bad ? &c->word.bad : &c->word.slow;
    if (!memcmp(said, &source->life, sizeof *said)) return NULL;
    if (!memcmp(said, &NONE, sizeof *said)) {
        *said = source->life;
        return source;
    }
    if (is_bad) suspect(s, t, worker);
    return NULL;
}

/* One worker alone may be wrong, so it takes two to make a last resort of another. */
void trust_bad(step_t *s, track_t *t, member_t *worker, uint64_t token)
{
    member_t *source = believed_source(s, t, worker, token, true);
    if (!source || source->trust.sends_bad) return;
    bool is_first = !member_is_blamed(source, s->v.now.wall_ms);
    bool is_same = !is_first && !strcmp(source->trust.blamed_by, worker->name);
    source->trust.sends_bad = !is_first && !is_same;
    source->trust.blamed_ms = s->v.now.wall_ms;
    error_text(source->trust.blamed_by, sizeof source->trust.blamed_by, worker->name);
    put_last(s, t, source);
    if (!is_same)
        events_message(add_event(s, t, EVENT_SOURCE_BAD, worker, source), HEDDLE_ERR_DIGEST_MISMATCH,
                       "%s sent bytes with another digest to %s", source->name, worker->name);
}

/* The event that the source comes last for a while; NULL: that was said. */
static event_row_t *note_slow(step_t *s, track_t *t, const member_t *worker, member_t *source)
{
    bool is_news = !member_is_slow(source, s->v.now.wall_ms);
    source->trust.slow_ms = s->v.now.wall_ms;
    return is_news ? add_event(s, t, EVENT_SOURCE_SLOW, worker, source) : NULL;
}

void trust_slow(step_t *s, track_t *t, member_t *worker, uint64_t token)
{
    member_t *source = believed_source(s, t, worker, token, false);
    event_row_t *e = source ? note_slow(s, t, worker, source) : NULL;
    if (source) put_last(s, t, source);
    if (e)
        events_message(e, HEDDLE_OK, "%s was slower than another source of %s, and comes last for a while",
                       source->name, worker->name);
}

/* It gave the worker nothing, which asked it and has the bytes from others. */
static void blame_mute(step_t *s, track_t *t, member_t *worker, uint64_t token)
{
    member_t *source = believed_source(s, t, worker, token, false);
    event_row_t *e = source ? note_slow(s, t, worker, source) : NULL;
    if (source) put_last(s, t, source);
    if (e)
        events_message(
            e, HEDDLE_OK,
            "%s sent nothing to %s, which has the bytes from another source, and comes last for a while",
            source->name, worker->name);
}

/* One that has bytes, and gives none, would hold up the next worker in the next version.  A worker that is
 * the reason itself, by its own link, has another source then: at last it is next to the publisher, or known
 * to reach no other worker. */
void trust_staged(step_t *s, track_t *t, member_t *worker, const msg_staged_t *m)
{
    for (uint32_t i = 0; i < m->source_count; i++) {
        const msg_served_t *from = &m->sources[i];
        const member_t *source = membership_by_token(s->v.members, from->token);
        const copy_row_t *its = source && source->role == ROLE_WORKER ? copy_of(t, source) : NULL;
        bool was_asked = from->moved.late || from->moved.refused;
        if (its && its->bytes_done && was_asked && !from->bytes) blame_mute(s, t, worker, from->token);
    }
}

/* The process that the worker gets bytes from, or is to get the first ones from. */
static const member_t *source_of(const track_t *t, const membership_t *members, const copy_row_t *c)
{
    const member_t *m = membership_by_token(members, c->token);
    const member_sub_t *sub = m ? member_sub(m, t->adapter) : NULL;
    const plan_row_t *row = plan_row(&t->plan, c->token);
    uint64_t token = sub && sub->fetching == t->version ? sub->source : 0;
    if (!token && row && row->source_count) token = row->sources[0];
    return membership_by_token(members, token);
}

/* The first worker that says that it fetches, and has got nothing for half a lease from one that has all
 * bytes, or clearly more. */
bool trust_standstill(const track_t *t, const membership_t *members, instant_t now, standstill_t *ret)
{
    uint64_t half_us = members->lease_us / 2;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        bool is_still = copy_is_sent(c) && c->state <= COPY_FETCHING && !c->code &&
                        c->received_us + half_us > now.us && c->moved_us + half_us <= now.us;
        const member_t *source = is_still ? source_of(t, members, c) : NULL;
        const copy_row_t *its = source ? copy_of(t, source) : NULL;
        bool has_more = its ? copy_holds(its) || its->bytes_done > c->bytes_done + LIMIT_WINDOW_BYTES
                            : source && source->token == t->plan.publisher.token;
        if (!has_more) continue;
        *ret = (standstill_t){c, source};
        return true;
    }
    return false;
}

void trust_late(step_t *s, track_t *t)
{
    standstill_t still;
    if (!trust_standstill(t, s->v.members, s->v.now, &still) || still.source->role != ROLE_WORKER) return;
    const member_t *worker = membership_by_token(s->v.members, still.worker->token);
    member_t *source = membership_by_token(s->v.members, still.source->token);
    event_row_t *e = note_slow(s, t, worker, source);
    note_order(s, t, source);
    if (e)
        events_message(e, HEDDLE_OK, "%s sent nothing to %s, and comes last for a while", source->name,
                       worker->name);
}
