/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/report.h"

#include "broker/rollout/fetches.h"
#include "broker/rollout/messages.h"
#include "broker/rollout/trust.h"
#include "core/errors.h"

/* A worker repeats NEED_SOURCES until it has a source.  The event is written once for each source. */
static void add_source_lost(step_t *s, const about_t *x, uint64_t token)
{
    if (!copy_lost_source(x->c, token)) return;
    /* A lost worker is still listed, so its name is known.  A publisher is not listed after its end: the
     * version's writer stands for it. */
    const member_t *source = membership_by_token(s->v.members, token);
    for (size_t i = 0; !source && i < s->v.members->worker_count; i++)
        if (s->v.members->workers[i]->token == token) source = s->v.members->workers[i];
    const char *name = source ? source->name : token == x->t->former_publisher ? x->t->row->writer : "";
    event_row_t *e =
        events_add(s->ev, EVENT_SOURCE_LOST, x->t->adapter, x->t->version, x->c->worker, s->v.now);
    e->token = token;
    error_text(e->other, sizeof e->other, name);
    events_message(e, HEDDLE_ERR_GONE, "%s could not go on fetching from %s", x->c->worker,
                   *name ? name : "a member that is gone");
}

/* None of the workers that it was named, and that are there, has ever answered it: their ports are closed to
 * it, as a rule.  The publisher serves it then, though it would be named to the first ones alone. */
static bool reaches_no_worker(const step_t *s, const about_t *x, const msg_need_sources_t *m)
{
    uint32_t unmet_count = 0;
    for (uint32_t i = 0; i < m->lost_count; i++) {
        const member_t *source = membership_by_token(s->v.members, m->lost[i]);
        bool is_there = source && !member_is_silent(s->v.members, source, s->v.now.us);
        if (!is_there || source->role != ROLE_WORKER) continue;
        if (!has_number(m->unmet, m->unmet_count, m->lost[i])) return false;
        unmet_count++;
    }
    return unmet_count > 1 && !x->c->bytes_done && !x->c->is_connected;
}

/* One that fetches since before the broker's start has its sources under the tokens that they had then. */
static void to_present(const step_t *s, uint64_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const member_t *source = membership_source(s->v.members, tokens[i]);
        if (source && source->token >> 32 != tokens[i] >> 32) tokens[i] = source->token;
    }
}

int on_need_sources(step_t *s, member_t *member, const msg_need_sources_t *m, heddle_error_t *error)
{
    about_t x = {.member = member, .adapter = m->adapter, .version = m->version};
    int rc = report_find(s, &x, error);
    if (rc || !x.c) return rc;
    bool has_lost = false;
    to_present(s, m->lost, m->lost_count);
    to_present(s, m->unmet, m->unmet_count);
    to_present(s, m->bad, m->bad_count);
    to_present(s, m->slow, m->slow_count);
    bool is_fetching = copy_in_flight(x.c), was_fetching = plan_fetches(&x.t->plan, member->token);
    for (uint32_t i = 0; i < m->bad_count && is_fetching; i++) trust_bad(s, x.t, member, m->bad[i]);
    for (uint32_t i = 0; i < m->slow_count && is_fetching; i++) trust_slow(s, x.t, member, m->slow[i]);
    for (uint32_t i = 0; i < m->lost_count; i++) {
        /* Unmet: it never answered this worker, or is late.  Nothing was lost, and its heartbeat reports
         * that. */
        bool is_unmet = has_number(m->unmet, m->unmet_count, m->lost[i]);
        bool is_bad = has_number(m->bad, m->bad_count, m->lost[i]); /* that was said */
        if (!is_unmet && !is_bad) add_source_lost(s, &x, m->lost[i]);
        if (!is_unmet) fetches_missed(s, x.t, m->lost[i]);
        has_lost |= !is_unmet;
        bool is_publisher = !is_unmet && m->lost[i] == x.t->plan.publisher.token;
        /* Its region is in use again. */
        if (is_publisher && x.t->plan.publisher.state == PUBLISHER_RELEASED)
            track_set_publisher(x.t, x.t->plan.publisher.token, PUBLISHER_WITHOUT);
    }
    if (reaches_no_worker(s, &x, m)) {
        x.member->trust.cut_off_ms = s->v.now.wall_ms;
        plan_cut_off(&x.t->plan, x.member->token);
        for (uint32_t i = 0; i < m->unmet_count; i++) {
            member_t *source = membership_by_token(s->v.members, m->unmet[i]);
            if (source && source->role == ROLE_WORKER) source->trust.is_unmet = true;
        }
    }
    /* A publisher that is late is so for all, as a rule, and comes back within half a lease. */
    bool is_late = has_number(m->unmet, m->unmet_count, x.t->plan.publisher.token) &&
                   s->v.now.us < x.c->moved_us + s->ro->lease_us / 2;
    if (has_number(m->lost, m->lost_count, x.t->plan.publisher.token) && !is_late) {
        plan_give_way(&x.t->plan, member->token);
        messages_mend_lists(s, x.t,
                            member); /* those that it served may serve it when they have other sources */
    }
    if (!plan_leave_publisher(&x.t->plan, member->token))
        plan_make(&x.t->plan, member->token, m->lost, m->lost_count);
    if (has_lost) copy_looked_for_sources(x.t, x.c, s->v.now);
    if (!was_fetching && plan_fetches(&x.t->plan, member->token)) copy_begun_anew(x.c, s->v.now);
    /* It failed there, and the worker tries again by itself: no source is charged for that. */
    if (!copy_in_flight(x.c)) plan_done(&x.t->plan, member->token);
    messages_send_sources(s, x.t, x.c, member);
    track_touch(x.t);
    return HEDDLE_OK;
}
