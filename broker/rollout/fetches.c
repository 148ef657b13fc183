/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/fetches.h"

#include "broker/rollout/messages.h"
#include "core/clock.h"

#define PROBE_US 250000ull /* between two looks at the connections of those that others wait for */
#define SLOW_US 10e6       /* a fetch of a version without a deadline that others wait for may take so long */

/* Workers that fetch from each other stand still together, and each says so with its own heartbeat: a source
 * that has got nothing since, but for the time of a heartbeat, is the reason, and not the one behind it. */
static bool is_behind_still_one(const step_t *s, const track_t *t, const copy_row_t *c)
{
    const plan_row_t *row = plan_row(&t->plan, c->token);
    uint64_t first[2] = {row->source_count ? row->sources[0] : 0, row->other_count ? row->others[0] : 0};
    bool is_behind = false;
    for (int i = 0; i < 2; i++) {
        const member_t *m = first[i] ? membership_by_token(s->v.members, first[i]) : NULL;
        const copy_row_t *source = m ? copy_of(t, m) : NULL;
        is_behind |= copy_in_flight(source) && source->moved_us <= c->moved_us + s->ro->lease_us / 4;
    }
    return is_behind;
}

/* Of a fetch that goes on, bytes a second; 0: there is none, or it is not known.  It is the one of late, or
 * that since the announcement where that is more: a short standstill, of the worker or of one that it fetches
 * from, changes the latter by little. */
static uint64_t rate_of(const step_t *s, const track_t *t, const member_t *m)
{
    const copy_row_t *c = m ? copy_of(t, m) : NULL;
    const member_sub_t *sub = copy_in_flight(c) ? member_sub(m, t->adapter) : NULL;
    uint64_t late = sub && sub->fetching == t->version ? copy_rate(c, m, sub) : 0;
    bool has_mean = late && !c->is_resumed && c->sent_us && sub->beat_us > c->sent_us + s->ro->lease_us / 4;
    uint64_t mean = has_mean ? c->bytes_done * 1000000 / (sub->beat_us - c->sent_us) : 0;
    return late > mean ? late : mean;
}

/* The rate of the fastest fetch of the version, under way or done. */
static uint64_t best_rate(const step_t *s, const track_t *t)
{
    uint64_t best = 0;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        const plan_row_t *row = plan_row(&t->plan, c->token);
        uint64_t rate = rate_of(s, t, membership_by_token(s->v.members, c->token));
        if (row && row->rate > rate) rate = row->rate;
        if (rate > best) best = rate;
    }
    return best;
}

/* Another worker of the place had better fetch the version too, because by this one it comes too late: after
 * a quarter of the time that is left until the deadline, or SLOW_US.  A second fetch costs one copy more, and
 * there is no third for a place. */
static bool is_too_slow(const step_t *s, const track_t *t, const copy_row_t *c, uint64_t best)
{
    const member_t *m = membership_by_token(s->v.members, c->token);
    uint64_t rate = rate_of(s, t, m);
    if (!rate || plan_is_second(&t->plan, c->token)) return false;

    /* Its source is what is slow: another worker would get the bytes no sooner. */
    const member_t *source = membership_source(s->v.members, member_sub(m, t->adapter)->source);
    uint64_t source_rate = rate_of(s, t, source);
    bool is_source_slow = source_rate && source_rate < rate * PLAN_SLOW_FACTOR;
    if (is_source_slow || member_limits(source, rate)) return false;

    double needed_us = (double)(t->row->data_bytes - c->bytes_done) * 1e6 / (double)rate;
    bool has_deadline = !t->is_late && t->deadline_us != CLOCK_NEVER;
    double left_us = has_deadline ? (double)(t->deadline_us - s->v.now.us) : SLOW_US * 4;
    if (needed_us <= left_us / 4) return false;

    /* The worker itself is what is slow: it has a --max-rate, or others are much faster. */
    if (member_limits(m, rate) || best >= rate * PLAN_SLOW_FACTOR) return true;

    /* Where that is not known, both may share what is slow, and each then takes twice as long.  So a second
     * fetch begins only where the version is late anyway, or has the time for it. */
    return has_deadline && (needed_us > left_us || needed_us * 3 <= left_us);
}

/* A worker that is killed says nothing, and its lease lasts; a message finds that its connection is gone.  So
 * the others of its place need not wait for it any longer, and no worker is to fetch from it that another one
 * could not go on with.  If it is alive after all, it comes again under another session. */
static void probe(step_t *s, track_t *t)
{
    uint64_t now_us = s->v.now.us;
    bool is_awaited = t->plan.waiting_count > 0, is_first = is_awaited && !t->probe_us;
    bool is_due = is_awaited && !is_first && now_us >= t->probe_us + PROBE_US;
    bool has_news = is_first || is_due || t->is_unreached;
    t->is_unreached = false;
    if (is_first || is_due) t->probe_us = now_us;
    if (!is_awaited) t->probe_us = 0;
    for (size_t i = 0; has_news && i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        const member_t *m = membership_by_token(s->v.members, c->token);
        bool is_waited_for = m && plan_is_awaited(&t->plan, m->token);
        if (!is_waited_for && !(m && c->is_missed)) continue;
        if (m->is_gone) plan_stuck(&t->plan, m->token);
        else if (is_waited_for && is_due) messages_ping(s, m);
    }
    if (is_awaited) track_sooner(t, t->probe_us + PROBE_US);
}

/* It has got nothing for so long by its last heartbeat, or by now where another one is overdue: that one may
 * say that something came. */
static bool is_still(const copy_row_t *c, uint64_t patience_us, uint64_t now_us)
{
    uint64_t received_us = c->received_us > c->sent_us ? c->received_us : c->sent_us;
    bool is_overdue = now_us > received_us + patience_us / 2 + patience_us / 8;
    return (is_overdue ? now_us : received_us) >= c->moved_us + patience_us;
}

/* Workers wait for the one of their place that fetches the version, while enough comes of its fetch: half a
 * lease without a byte at most, or a quarter of the version's deadline.  A fetch that ends by itself wakes
 * them at once (plan.h).  Of workers that fetch from each other only the first one that gets nothing is not
 * waited for: the others are not the reason. */
void fetches_look(step_t *s, track_t *t)
{
    uint64_t now_us = s->v.now.us, patience_us = s->ro->lease_us / 2;
    if (t->row->deadline_ms && t->row->deadline_ms * 1000 / 4 < patience_us)
        patience_us = t->row->deadline_ms * 1000 / 4;
    probe(s, t);
    if (t->plan.waiting_count && t->fetches_due_us <= now_us) {
        uint64_t best = best_rate(s, t);
        t->fetches_due_us = now_us + patience_us;
        for (size_t i = 0; i < t->copy_count; i++) {
            const copy_row_t *c = track_walk(t, i);
            if (!plan_is_awaited(&t->plan, c->token)) continue;
            bool stands = is_still(c, patience_us, now_us);
            bool is_stuck = stands ? !is_behind_still_one(s, t, c) : is_too_slow(s, t, c, best);
            uint64_t due_us = c->moved_us + patience_us;
            if (is_stuck) plan_stuck(&t->plan, c->token);
            else
                t->fetches_due_us =
                    clock_earlier(t->fetches_due_us, due_us > now_us ? due_us : now_us + patience_us / 8);
        }
    }
    messages_settle(s, t);
    if (t->plan.waiting_count) track_sooner(t, t->fetches_due_us);
}

void fetches_missed(step_t *s, track_t *t, uint64_t token)
{
    const member_t *m = membership_by_token(s->v.members, token);
    copy_row_t *c = m ? copy_of(t, m) : NULL;
    if (!c || !plan_fetches(&t->plan, token)) return;
    copy_missed(c);
    if (m->is_gone) t->is_unreached = true;
    else messages_ping(s, m);
}

void fetches_unreached(rollout_t *ro, const member_t *member)
{
    for (uint32_t i = 0; i < member->sub_count; i++) {
        const adapter_rollout_t *a = tracks_adapter(ro, member->subs[i].adapter);
        for (size_t k = 0; a && k < a->track_count; k++) {
            track_t *t = a->tracks[k];
            const copy_row_t *c = copy_of(t, member);
            if (!plan_is_awaited(&t->plan, member->token) && !(c && c->is_missed)) continue;
            t->is_unreached = true;
            track_sooner(t, 0); /* again, if it was looked at in this turn before the message was sent */
        }
    }
}
