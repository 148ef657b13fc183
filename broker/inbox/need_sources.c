/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/report.h"

#include "broker/rollout/messages.h"
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

/* Its own fetch goes on behind all others, so that its source has its whole rate for those that went on
 * there. */
static void put_last(step_t *s, track_t *t, const member_t *member)
{
    copy_row_t *c = copy_of(t, member);
    if (!c || !copy_is_told(c) || !plan_fetches(&t->plan, member->token)) return;
    plan_demote(&t->plan, member->token);
    plan_make(&t->plan, member->token, NULL, 0);
    messages_send_sources(s, t, c, member);
}

static event_row_t *add_blame(step_t *s, const about_t *x, event_type_t type, const member_t *of)
{
    event_row_t *e = events_add(s->ev, type, x->t->adapter, x->t->version, x->c->worker, s->v.now);
    e->token = of->token;
    error_text(e->other, sizeof e->other, of->name);
    return e;
}

/* One that gets wrong bytes from two processes for one version has a bad memory or link itself, or is not
 * honest.  What it alone said of others is taken back, and
 * it is a leaf. */
static void suspect(step_t *s, const about_t *x)
{
    const membership_t *all = s->v.members;
    x->member->is_suspect = true;
    for (size_t i = 0; i < all->worker_count; i++)
        if (!all->workers[i]->sends_bad && !strcmp(all->workers[i]->blamed_by, x->member->name))
            all->workers[i]->blamed_ms = 0;
    put_last(s, x->t, x->member);
    events_message(
        add_blame(s, x, EVENT_SOURCE_BAD, x->member), HEDDLE_ERR_DIGEST_MISMATCH,
        "%s reported wrong bytes from two sources: its own memory or link may be bad, and no other "
        "worker fetches from it from now on",
        x->member->name);
}

/* The word of one worker: of a source that it was named, and of one for a version. */
static member_t *heard_of(step_t *s, const about_t *x, uint64_t token, bool is_bad)
{
    static const key16_t NONE;
    member_t *source = membership_by_token(s->v.members, token);
    bool is_heard = source && source != x->member && !x->member->is_suspect && !x->member->sends_bad;
    is_heard = is_heard && copy_in_flight(x->c) && has_number(x->c->word.named, COPY_NAMED_MAX, token);
    if (!is_heard) return NULL;
    key16_t *said = is_bad ? &x->c->word.bad : &x->c->word.slow;
    if (!memcmp(said, &source->life, sizeof *said)) return NULL;
    if (!memcmp(said, &NONE, sizeof *said)) {
        *said = source->life;
        return source;
    }
    if (is_bad) suspect(s, x);
    return NULL;
}

static void hear_slow(step_t *s, const about_t *x, uint64_t token)
{
    member_t *source = heard_of(s, x, token, false);
    if (!source) return;
    bool is_news = !member_is_slow(source, s->v.now.wall_ms);
    source->slow_ms = s->v.now.wall_ms;
    put_last(s, x->t, source);
    if (is_news)
        events_message(add_blame(s, x, EVENT_SOURCE_SLOW, source), HEDDLE_OK,
                       "%s was slower than another source of %s, and comes last for a while", source->name,
                       x->c->worker);
}

/* One worker alone may be wrong, so it takes two to make a leaf of another one. */
static void hear_bad(step_t *s, const about_t *x, uint64_t token)
{
    member_t *source = heard_of(s, x, token, true);
    if (!source || source->sends_bad) return;
    bool is_first = !member_is_blamed(source, s->v.now.wall_ms);
    bool is_same = !is_first && !strcmp(source->blamed_by, x->member->name);
    source->sends_bad = !is_first && !is_same;
    source->blamed_ms = s->v.now.wall_ms;
    error_text(source->blamed_by, sizeof source->blamed_by, x->member->name);
    put_last(s, x->t, source);
    if (!is_same)
        events_message(add_blame(s, x, EVENT_SOURCE_BAD, source), HEDDLE_ERR_DIGEST_MISMATCH,
                       "%s sent bytes with another digest to %s", source->name, x->c->worker);
}

/* None of the workers that it was named has ever answered it: their ports are closed to it, as a rule.  The
 * publisher serves it then, though it would be named to the first ones alone. */
static bool reaches_no_worker(const step_t *s, const about_t *x, const msg_need_sources_t *m)
{
    uint32_t unmet_count = 0;
    for (uint32_t i = 0; i < m->lost_count; i++) {
        const member_t *source = membership_by_token(s->v.members, m->lost[i]);
        if (!source || source->role != ROLE_WORKER) continue;
        if (!has_number(m->unmet, m->unmet_count, m->lost[i])) return false;
        unmet_count++;
    }
    return unmet_count > 1 && !x->c->bytes_done && !x->c->is_connected;
}

int on_need_sources(step_t *s, member_t *member, const msg_need_sources_t *m, heddle_error_t *error)
{
    about_t x = {.member = member, .adapter = m->adapter, .version = m->version};
    int rc = report_find(s, &x, error);
    if (rc || !x.c) return rc;
    bool has_lost = false;
    for (uint32_t i = 0; i < m->bad_count; i++) hear_bad(s, &x, m->bad[i]);
    for (uint32_t i = 0; i < m->slow_count; i++) hear_slow(s, &x, m->slow[i]);
    for (uint32_t i = 0; i < m->lost_count; i++) {
        /* Unmet: it never answered this worker, or is late.  Nothing was lost, and its heartbeat reports
         * that. */
        bool is_unmet = has_number(m->unmet, m->unmet_count, m->lost[i]);
        bool is_bad = has_number(m->bad, m->bad_count, m->lost[i]); /* that was said */
        if (!is_unmet && !is_bad) add_source_lost(s, &x, m->lost[i]);
        has_lost |= !is_unmet;
        bool is_publisher = !is_unmet && m->lost[i] == x.t->publisher;
        if (is_publisher && x.t->publisher_state == PUBLISHER_RELEASED)
            track_set_publisher(x.t, x.t->publisher, PUBLISHER_WITHOUT); /* its region is in use again */
    }
    if (reaches_no_worker(s, &x, m)) {
        member->cut_off_ms = s->v.now.wall_ms;
        plan_cut_off(&x.t->plan, member->token);
    }
    bool was_fetching = plan_fetches(&x.t->plan, member->token);
    if (has_number(m->lost, m->lost_count, x.t->publisher)) plan_give_way(&x.t->plan, member->token);
    plan_make(&x.t->plan, member->token, m->lost, m->lost_count);
    if (has_lost) copy_looked_for_sources(x.t, x.c, s->v.now);
    if (!was_fetching && plan_fetches(&x.t->plan, member->token)) copy_begun_anew(x.c, s->v.now);
    /* It failed there, and the worker tries again by itself: no source is charged for that. */
    if (!copy_in_flight(x.c)) plan_done(&x.t->plan, member->token);
    messages_send_sources(s, x.t, x.c, member);
    track_touch(x.t);
    return HEDDLE_OK;
}
