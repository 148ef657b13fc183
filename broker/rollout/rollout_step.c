/* SPDX-License-Identifier: Apache-2.0 */
/* What workers said of a version, and what that makes of their copies. */
#include "broker/rollout/rollout_part.h"

#include "core/errors.h"
#include "core/limits.h"

#include <stdlib.h>

/* ---- a copy moves on ---- */

/* Why no byte comes to a copy that goes on trying; "": they do. */
static void note_trouble(step_t *s, track_t *t, copy_row_t *c, const char *message)
{
    int code = *message ? HEDDLE_ERR_UNAVAILABLE : HEDDLE_OK;
    bool is_news = code != c->code;
    copy_blame(c, code, "fetch", message);
    if (!is_news) return;
    track_touch(s->ro, t);
    if (!code || c->is_trouble_said) return;
    c->is_trouble_said = true;
    event_row_t *e = events_add(s->ev, EVENT_SOURCE_LOST, t->adapter, t->version, c->worker, s->v.now);
    events_say(e, code, "%s", c->message);
}

/* A version waits for a slot at a worker, which lists the kept ones that may go.  One that is no copy there
 * any more was retired: that answer is on its way, and may be all that it takes. */
static void note_spare(rollout_t *ro, const member_t *member, const msg_progress_t *p)
{
    member_sub_t *sub = member_sub(member, p->adapter);
    if (!sub) return;
    sub->lacks_slot = false;
    for (uint32_t i = 0; i < p->spare_count; i++) {
        const track_t *t = rollout_track(ro, p->adapter, p->spare[i]);
        if (!t || t->is_ended || !copy_of(t, member)) return;
    }
    for (size_t i = track_first(ro, p->adapter);
         p->spare_count && i < ro->track_count && !strcmp(ro->tracks[i]->adapter, p->adapter); i++) {
        copy_row_t *c = copy_of(ro->tracks[i], member);
        if (c) c->is_spare = false;
    }
    for (uint32_t i = 0; i < p->spare_count; i++) {
        track_t *t = rollout_track(ro, p->adapter, p->spare[i]);
        copy_of(t, member)->is_spare = true;
        track_touch(ro, t);
        sub->lacks_slot = true;
    }
}

void rollout_progress(rollout_t *ro, view_t v, const member_t *member, const msg_heartbeat_t *hb,
                      events_t *ev)
{
    step_t s = {ro, v, ev, NULL};
    for (uint32_t i = 0; i < hb->adapter_count; i++) {
        const msg_progress_t *p = &hb->adapters[i];
        note_spare(ro, member, p);
        track_t *t = p->fetching ? rollout_track(ro, p->adapter, p->fetching) : NULL;
        copy_row_t *c = t ? copy_of(t, member) : NULL;
        if (!c || !copy_in_flight(c)) continue;
        keep_moved_on(ro, registry_adapter(v.registry, p->adapter), member, p->fetching);
        copy_state_t state =
            p->data_bytes && p->bytes_done >= p->data_bytes ? COPY_ARRIVED : COPY_FETCHING;
        if (state != c->state || c->bytes_done != p->bytes_done) track_touch(ro, t);
        if (p->bytes_done > c->bytes_done) c->moved_us = v.now.us;
        copy_move(c, state, v.now);
        c->bytes_done = p->bytes_done;
        note_trouble(&s, t, c, p->message ? p->message : "");
    }
}

static int unknown_version(const char *adapter, uint64_t version, const member_t *member,
                           heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "%s@%llu is not a version that %s was told of",
                        adapter, (unsigned long long)version, member->name);
    error_where(error, adapter, version, member->name, NULL);
    return rc;
}

static int wrong_digest(const char *adapter, const version_row_t *row, const digest_t *found,
                        const member_t *member, const char *phase, heddle_error_t *error)
{
    char expected[HEDDLE_DIGEST_TEXT], text[HEDDLE_DIGEST_TEXT];
    digest_text(&row->digest, expected);
    digest_text(found, text);
    int rc = error_fail(error, HEDDLE_ERR_DIGEST_MISMATCH, "%s has other bytes as %s@%llu", member->name,
                        adapter, (unsigned long long)row->version);
    error_where(error, adapter, row->version, member->name, phase);
    error_contrast(error, expected, text);
    error_hint(error, "its memory or its sources are damaged; `heddle verify` asks every holder");
    return rc;
}

/* Codes after which the same attempt may succeed: the broker announces the active version again, later
 * and later. */
static void plan_retry(const rollout_t *ro, copy_row_t *c, uint64_t now_us)
{
    heddle_error_t e;
    error_fail(&e, c->code, " ");
    uint32_t doublings = c->failed_count < 4 ? c->failed_count : 4;
    c->failed_count++;
    c->retry_us = e.retriable ? now_us + (ro->lease_us << doublings) : 0;
}

static void stage_failed(step_t *s, track_t *t, copy_row_t *c, int code, const char *phase,
                         const char *message)
{
    copy_fail(c, code, phase, message, s->v.now);
    plan_retry(s->ro, c, s->v.now.us);
    event_row_t *e = events_add(s->ev, EVENT_STAGE_FAILED, t->adapter, t->version, c->worker, s->v.now);
    events_say(e, code, "%s: %s", phase, message);
    track_touch(s->ro, t);
}

/* An answer of a worker about a version: the track and row that it is about; false: *ret_rc is what to
 * return. */
typedef struct {
    const adapter_row_t *a;
    const version_row_t *row;
    track_t *t;
    copy_row_t *c;
} about_t;

static bool look_up(step_t *s, const char *adapter, uint64_t version, member_t *member, about_t *ret,
                    int *ret_rc, heddle_error_t *error)
{
    const adapter_row_t *a = registry_adapter(s->v.registry, adapter);
    const version_row_t *row = a ? registry_version(a, version) : NULL;
    if (!row || !member_sub(member, adapter)) {
        *ret_rc = unknown_version(adapter, version, member, error);
        return false;
    }
    if (!registry_is_live(row)) { /* it ended before the worker heard of it: say so again */
        if (row->state == VERSION_RETIRED) send_retire(s, adapter, version, member);
        else send_abort(s, adapter, row, member);
        *ret_rc = HEDDLE_OK;
        return false;
    }
    track_t *t = rollout_track(s->ro, adapter, version);
    copy_row_t *c = t ? copy_need(t, member, s->out) : NULL;
    *ret = (about_t){a, row, t, c};
    *ret_rc = c ? HEDDLE_OK
                : error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a copy of %s@%llu", adapter,
                             (unsigned long long)version);
    return c != NULL;
}

/* The row of this source, by name: one that joined again while it served counts once.  The caller has
 * made room. */
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

static void note_served(copy_row_t *c, track_t *t, const msg_staged_t *m)
{
    uint32_t count = m->source_count < LIMIT_SOURCES ? m->source_count : LIMIT_SOURCES;
    for (uint32_t i = 0; i < m->source_count; i++) t->bytes_moved += m->sources[i].bytes;
    free(c->served);
    c->served = count ? calloc(count, sizeof *c->served) : NULL;
    c->served_count = 0;
    for (uint32_t i = 0; c->served && i < count; i++) { /* without memory only `versions` knows less */
        const msg_served_t *s = &m->sources[i];
        source_kind_t kind = s->kind == SOURCE_WORKER ? SOURCE_WORKER : SOURCE_PUBLISHER;
        served_row(c, s->name ? s->name : "", kind)->bytes += s->bytes;
    }
}

static void note_staged(step_t *s, about_t *x, const msg_staged_t *m)
{
    copy_row_t *c = x->c;
    c->code = 0;
    c->retry_us = 0;
    if (c->switch_us) c->switch_us = s->v.now.us; /* loaded: the time to switch begins */
    c->bytes_done = x->row->data_bytes;
    c->connect_us = m->connect_us;
    c->fetch_us = m->fetch_us;
    c->verify_us = m->verify_us;
    c->stage_us = m->stage_us;
    note_served(c, x->t, m);
    event_row_t *e =
        events_add(s->ev, EVENT_STAGE_DONE, x->t->adapter, x->t->version, c->worker, s->v.now);
    e->bytes = (int64_t)c->bytes_done;
    e->duration_ms = c->announced_us ? (int64_t)((s->v.now.us - c->announced_us) / 1000) : -1;
}

int rollout_staged(rollout_t *ro, view_t v, member_t *member, const msg_staged_t *m, events_t *ev,
                   outbox_t *out, heddle_error_t *error)
{
    step_t s = {ro, v, ev, out};
    about_t x;
    int rc;
    if (!look_up(&s, m->adapter, m->version, member, &x, &rc, error)) return rc;
    if (!digest_equal(&m->digest, &x.row->digest)) {
        rc = wrong_digest(m->adapter, x.row, &m->digest, member, "verify", error);
        stage_failed(&s, x.t, x.c, rc, "verify", error->message);
        return rc;
    }
    member_fetched(member, m->adapter, m->version);
    if (copy_holds(x.c)) return HEDDLE_OK; /* said twice */
    note_staged(&s, &x, m);
    membership_counted(member, m);
    copy_move(x.c, COPY_STAGED, v.now);
    keep_moved_on(ro, x.a, member, 0);
    track_touch(ro, x.t);
    /* COMMIT, when it is the active version; then the newest, when that waited */
    wake_member(&s, member, x.a);
    return HEDDLE_OK;
}

/* To have gone back past a version is not to have reached it. */
static void reached(step_t *s, const adapter_row_t *a, const member_t *member, uint64_t version,
                    uint64_t decision)
{
    for (size_t i = track_first(s->ro, a->name);
         i < s->ro->track_count && !strcmp(s->ro->tracks[i]->adapter, a->name); i++) {
        track_t *t = s->ro->tracks[i];
        const version_row_t *row = registry_version(a, t->version);
        copy_row_t *c = copy_of(t, member);
        if (!c || !row || t->is_ended) continue;
        if (row->decision && row->decision <= decision && t->version <= version) c->has_reached = true;
        if (t->version == version) {
            copy_move(c, COPY_ACTIVE, s->v.now);
            c->code = 0;
        } else if (c->state == COPY_ACTIVE || c->state == COPY_STALE) {
            copy_move(c, COPY_KEPT, s->v.now);
        }
        track_touch(s->ro, t);
    }
}

static int wrong_decision(const msg_active_t *m, const adapter_row_t *a, const member_t *member,
                          heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_PROTOCOL,
                        "%s says it applied decision %llu of %s, naming version %llu", member->name,
                        (unsigned long long)m->decision, m->adapter, (unsigned long long)m->version);
    error_where(error, m->adapter, m->version, member->name, "activate");
    error_expected(error, "decision %llu, naming version %llu, or an earlier one",
                   (unsigned long long)a->decision, (unsigned long long)a->active);
    return rc;
}

/* It says that it serves other bytes under the version's name. */
static int serves_other_bytes(step_t *s, const msg_active_t *m, const version_row_t *row,
                              const member_t *member, heddle_error_t *error)
{
    int rc = wrong_digest(m->adapter, row, &m->digest, member, "activate", error);
    track_t *t = rollout_track(s->ro, m->adapter, m->version);
    copy_row_t *c = t ? copy_of(t, member) : NULL;
    if (c) copy_fail(c, rc, "activate", error->message, s->v.now);
    if (t) track_touch(s->ro, t);
    event_row_t *e =
        events_add(s->ev, EVENT_ACTIVATE_FAILED, m->adapter, m->version, member->name, s->v.now);
    events_say(e, rc, "%s", error->message);
    return rc;
}

static void note_active(step_t *s, const adapter_row_t *a, const msg_active_t *m, const member_t *member,
                        member_sub_t *sub)
{
    sub->decision = m->decision;
    sub->version = m->version;
    sub->since_ms = s->v.now.wall_ms;
    track_t *t = rollout_track(s->ro, m->adapter, m->version);
    copy_row_t *c = t && !t->is_ended ? copy_need(t, member, s->out) : NULL;
    if (c) c->activate_us = m->activate_us;
    reached(s, a, member, m->version, m->decision);
    event_row_t *e =
        events_add(s->ev, EVENT_ACTIVATE_DONE, m->adapter, m->version, member->name, s->v.now);
    e->decision = m->decision;
}

int rollout_active(rollout_t *ro, view_t v, member_t *member, const msg_active_t *m, events_t *ev,
                   outbox_t *out, heddle_error_t *error)
{
    step_t s = {ro, v, ev, out};
    const adapter_row_t *a = registry_adapter(v.registry, m->adapter);
    const version_row_t *row = a ? registry_version(a, m->version) : NULL;
    member_sub_t *sub = member_sub(member, m->adapter);
    if (!row || !sub) return unknown_version(m->adapter, m->version, member, error);
    bool is_possible = m->decision && m->decision <= row->decision &&
                       (m->decision != a->decision || m->version == a->active);
    if (!is_possible) return wrong_decision(m, a, member, error);
    if (!digest_equal(&m->digest, &row->digest)) return serves_other_bytes(&s, m, row, member, error);
    if (m->decision <= sub->decision) return HEDDLE_OK; /* said twice, or overtaken by a later one */
    note_active(&s, a, m, member, sub);
    wake_member(&s, member, a);
    return HEDDLE_OK;
}

static const char *text_or(const char *text, const char *otherwise)
{
    return text && *text ? text : otherwise;
}

/* Its application refused bytes that were whole: how long they took is known all the same. */
static void note_refused(about_t *x, const msg_nack_t *m)
{
    if (!m->fetch_us) return;
    x->c->bytes_done = x->row->data_bytes;
    x->c->connect_us = m->connect_us;
    x->c->fetch_us = m->fetch_us;
    x->c->verify_us = m->verify_us;
    x->c->stage_us = m->stage_us;
}

int rollout_nack(rollout_t *ro, view_t v, member_t *member, const msg_nack_t *m, events_t *ev,
                 outbox_t *out, heddle_error_t *error)
{
    step_t s = {ro, v, ev, out};
    about_t x;
    int rc, code = heddle_err_from_name(m->code);
    if (!look_up(&s, m->adapter, m->version, member, &x, &rc, error)) return rc;
    if (code == HEDDLE_OK) code = HEDDLE_ERR_INTERNAL;
    char message[512];
    text_printf(message, sizeof message, "%s%s%s", text_or(m->message, heddle_err_text(code)),
                m->found && *m->found ? "; found " : "", text_or(m->found, ""));
    if (!m->decision) {
        member_fetched(member, m->adapter, m->version);
        note_refused(&x, m);
        stage_failed(&s, x.t, x.c, code, text_or(m->phase, "stage"), message);
        wake_member(&s, member, x.a);
        return HEDDLE_OK;
    }
    member_sub_t *sub = member_sub(member, m->adapter);
    if (sub && sub->version == m->version && sub->decision == m->decision)
        sub->decision--; /* it said that it serves this, and its application does not: to be said again */
    if (copy_holds(x.c)) copy_move(x.c, COPY_STALE, v.now); /* it has the bytes, and serves the old version */
    else copy_move(x.c, COPY_FAILED, v.now);
    copy_blame(x.c, code, text_or(m->phase, "activate"), message);
    event_row_t *e = events_add(ev, EVENT_ACTIVATE_FAILED, m->adapter, m->version, member->name, v.now);
    events_say(e, code, "%s", message);
    e->decision = m->decision;
    track_touch(ro, x.t);
    return HEDDLE_OK;
}

/* A worker that was lost is in its row still; a publisher is not. */
static const char *name_of_source(const step_t *s, const about_t *x, uint64_t token)
{
    const member_t *source = membership_by_token(s->v.members, token);
    for (size_t i = 0; !source && i < s->v.members->worker_count; i++)
        if (s->v.members->workers[i]->token == token) source = s->v.members->workers[i];
    if (source) return source->name;
    return token == x->t->former_publisher ? x->row->writer : "";
}

/* It never answered this worker: nothing was lost, and its heartbeat says that it is out of reach. */
static bool is_unmet(const msg_need_sources_t *m, uint64_t token)
{
    for (uint32_t i = 0; i < m->unmet_count; i++)
        if (m->unmet[i] == token) return true;
    return false;
}

/* It asks again and again until it has one; what it lost is news once. */
static void say_source_lost(step_t *s, const about_t *x, uint64_t token)
{
    copy_row_t *c = x->c;
    for (uint32_t i = 0; i < c->lost_count; i++)
        if (c->lost[i] == token) return;
    if (c->lost_count == COPY_LOST_MAX) return;
    c->lost[c->lost_count++] = token;
    const char *name = name_of_source(s, x, token);
    event_row_t *e = events_add(s->ev, EVENT_SOURCE_LOST, x->t->adapter, x->t->version, c->worker, s->v.now);
    e->token = token;
    error_text(e->other, sizeof e->other, name);
    events_say(e, HEDDLE_ERR_GONE, "%s could not go on fetching from %s", c->worker,
               *name ? name : "a member that is gone");
}

int rollout_need_sources(rollout_t *ro, view_t v, member_t *member, const msg_need_sources_t *m,
                         events_t *ev, outbox_t *out, heddle_error_t *error)
{
    step_t s = {ro, v, ev, out};
    about_t x;
    int rc;
    if (!look_up(&s, m->adapter, m->version, member, &x, &rc, error)) return rc;
    for (uint32_t i = 0; i < m->lost_count; i++) {
        if (!is_unmet(m, m->lost[i])) say_source_lost(&s, &x, m->lost[i]);
        if (m->lost[i] == x.t->publisher && x.t->is_released)
            x.t->is_served = false; /* its region is in use again */
    }
    if (!send_sources(&s, x.t, x.c, member, m->lost, m->lost_count))
        x.c->announced_us = 0; /* told when there is one */
    track_touch(ro, x.t);
    return HEDDLE_OK;
}
