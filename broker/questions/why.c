/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/why.h"

#include "broker/registry/active.h"
#include "broker/rollout/drain.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/listing.h"
#include "core/units.h"

#include <string.h>

/* ---- a copy in progress ---- */

/* Also where it was announced again, and the next heartbeat has not come yet.  A copy with a trouble, such as
 * a former slot that is still read, has not begun. */
bool why_copy_is_fetching(const track_t *t, const copy_row_t *c, const member_sub_t *sub)
{
    return sub->fetching == t->version && c->state <= COPY_FETCHING && !c->code;
}

/* What it has by now, if it goes on as at its last heartbeat. */
static uint64_t bytes_by_now(const track_t *t, const copy_row_t *c, const member_sub_t *sub, uint64_t now_us)
{
    uint64_t most = record_payload_bytes(&t->row->parts);
    uint64_t since_us = c->received_us && now_us > c->received_us ? now_us - c->received_us : 0;
    uint64_t bytes = c->bytes_done + (uint64_t)((double)sub->rate_bytes * (double)since_us / 1e6);
    return bytes < most ? bytes : most;
}

bool why_place_has_bytes(const answer_view_t *b, const track_t *t, const copy_row_t *c)
{
    uint64_t token;
    if (!c || c->bytes_done) return false;
    for (size_t i = 0; (token = plan_in_place(&t->plan, c->token, i)) != 0; i++) {
        const member_t *m = membership_by_token(b->members, token);
        const copy_row_t *other = m ? copy_of(t, m) : NULL;
        if (copy_in_flight(other) && other->bytes_done) return true;
    }
    return false;
}

/* The worker that fetches the version for this one's host.  NULL: none does, or it was woken because this
 * one's own fetch gets no further, and has nothing: what holds up this one is the reason then. */
static const member_t *fetcher_for(const answer_view_t *b, const track_t *t, const copy_row_t *c)
{
    const member_t *first = membership_by_token(b->members, plan_waits_for(&t->plan, c->token));
    return first && c->bytes_done && why_place_has_bytes(b, t, copy_of(t, first)) ? NULL : first;
}

/* A source has nothing that the copy lacks, but for what is on its way between the two: the window, and what
 * comes in a quarter of a second, for heartbeats are not of one moment. */
static const copy_row_t *next_awaited(const answer_view_t *b, const track_t *t, const copy_row_t *c)
{
    const member_t *m = membership_by_token(b->members, c->token);
    const member_sub_t *sub = m ? member_sub(m, t->adapter) : NULL;
    if (!sub || !copy_in_flight(c) || c->code || member_is_silent(b->members, m, b->now.us)) return NULL;
    const member_t *first = fetcher_for(b, t, c);
    if (first) return copy_of(t, first);
    const member_t *source = membership_by_token(b->members, sub->source);
    const copy_row_t *its = source ? copy_of(t, source) : NULL;
    if (!why_copy_is_fetching(t, c, sub) || c->cut_off_us || !copy_in_flight(its)) return NULL;
    const member_sub_t *its_sub = member_sub(source, t->adapter);
    uint64_t lead = LIMIT_WINDOW_BYTES + its_sub->rate_bytes / 4;
    bool has_more = bytes_by_now(t, its, its_sub, b->now.us) > bytes_by_now(t, c, sub, b->now.us) + lead;
    return has_more || its->bytes_done >= record_payload_bytes(&t->row->parts) ? NULL : its;
}

/* Two sources that take turns, as with two trees, may lead in a circle: then it is not known, nor where the
 * way is longer. */
#define AWAITED_HOPS 256u
const copy_row_t *why_awaited(const answer_view_t *b, const track_t *t, const copy_row_t *c)
{
    const copy_row_t *at = c, *next = NULL;
    for (size_t steps = 0; t->row && steps < AWAITED_HOPS; steps++) {
        next = next_awaited(b, t, at);
        if (!next) return at == c ? NULL : at;
        at = next;
    }
    return NULL;
}

/* A switch that was ordered just now says nothing, because most take next to no time. */
#define SWITCH_QUIET_US 250000u

/* The version is active for the member, which was ordered to switch to it, or to one before, a quarter of a
 * second ago and has not answered.  False, and "": it is not so; t may be NULL then, and m.
 *
 * A worker that is to go back to what it serves has an active copy meanwhile: its application is in the midst
 * of another switch. */
static bool write_late_switch(const answer_view_t *b, const track_t *t, const member_t *m,
                              char ret_note[WHY_NOTE_TEXT])
{
    const track_t *first = NULL;
    const copy_row_t *c = m ? copy_of(t, m) : NULL, *busy = NULL;
    ret_note[0] = 0;
    if (c && copy_is_switching(c) && active_for(t->of->row, m) == t->version)
        busy = copies_first_switch(t->of, m, &first);
    uint64_t late_us = busy ? b->now.us - busy->switch_us : 0;
    if (late_us <= SWITCH_QUIET_US) return false;
    char time[16];
    units_ms_text((double)late_us / 1000, time);
    if (first == t)
        text_printf(ret_note, WHY_NOTE_TEXT,
                    "switching for %s: its application has not said that it switched", time);
    else
        text_printf(ret_note, WHY_NOTE_TEXT,
                    "switching to %s@%llu for %s, then to %s@%llu: its application has not said that it "
                    "switched",
                    t->adapter, (unsigned long long)first->version, time, t->adapter,
                    (unsigned long long)t->version);
    return true;
}

/* What the worker does with a version that was announced to it, and that has no trouble. */
static void write_progress(const answer_view_t *b, const track_t *t, const copy_row_t *c, const member_t *m,
                           why_copy_t *p)
{
    char time[16];
    const member_sub_t *sub = member_sub(m, t->adapter);
    uint64_t still_us = b->now.us - (c->moved_us > c->begun_us ? c->moved_us : c->begun_us);
    bool is_still = still_us > b->members->lease_us / 2;
    bool is_fetching = why_copy_is_fetching(t, c, sub);
    /* A process that was killed is a member for another lease: its workers lose it at once.  Parts that grow
     * are a source for others, and not for one whose own source has ended. */
    bool has_others = track_has_source(t) && !(is_fetching && t->bytes == BYTES_GROWING);
    bool is_cut_off = c->cut_off_us || (!p->source && !has_others);
    if (is_fetching && !is_cut_off && (sub->rate_bytes || !is_still)) p->rate_bytes = copy_rate(c, m, sub);
    units_ms_text((double)still_us / 1000, time);
    const track_t *first = NULL;
    const copy_row_t *busy = c->busy_with ? copies_first_switch(t->of, m, &first) : NULL, *queued;
    if (busy) {
        units_ms_text((double)(b->now.us - busy->switch_us) / 1000, time);
        text_printf(p->note, sizeof p->note, "busy: switching to %s@%llu for %s", t->adapter,
                    (unsigned long long)first->version, time);
    } else if (c->state == COPY_ARRIVED) {
        units_ms_text((double)(b->now.wall_ms - (c->free_ms ? c->free_ms : c->since_ms)), time);
        text_printf(p->note, sizeof p->note, "loading for %s", time);
    } else if (sub->fetching && sub->fetching != t->version) {
        text_printf(p->note, sizeof p->note, "queued behind %s@%llu", t->adapter,
                    (unsigned long long)sub->fetching);
    } else if (p->rate_bytes) {
        char rate[16];
        const member_t *source = membership_by_token(b->members, sub->source);
        units_bytes_text(p->rate_bytes, rate);
        if (member_limits(m, p->rate_bytes))
            text_printf(p->note, sizeof p->note, "%s/s, its own --max-rate", rate);
        else if (member_limits(source, p->rate_bytes))
            text_printf(p->note, sizeof p->note, "%s/s, the --max-rate of %s", rate, source->name);
        else text_printf(p->note, sizeof p->note, "%s/s", rate);
    } else if (is_cut_off) {
        text_printf(p->note, sizeof p->note, "no source");
    } else if (is_fetching && (queued = copy_queued_source(t, c, b->members)) != NULL) {
        text_printf(p->note, sizeof p->note, "waits for %s, which fetches %s@%llu first", queued->worker,
                    t->adapter, (unsigned long long)queued->behind);
    } else if (is_still) {
        text_printf(p->note, sizeof p->note, is_fetching ? "no bytes for %s" : "has not begun for %s", time);
    }
}

/* How far the worker was when the version ended. */
static void write_end(const track_t *t, const copy_row_t *c, why_copy_t *p)
{
    const version_row_t *v = t->row;
    char done[16], all[16];
    const char *why = v->state == VERSION_FAILED       ? heddle_err_name(v->code)
                      : v->state == VERSION_SUPERSEDED ? "superseded"
                                                       : "retired";
    units_bytes_text(c->bytes_done, done);
    units_bytes_text(v->data_bytes, all);
    if (copy_holds(c)) text_printf(p->note, sizeof p->note, "had all of it, and dropped it: %s", why);
    else if (c->busy_with)
        text_printf(p->note, sizeof p->note, "given up with all bytes, busy with its switch to %s@%llu: %s",
                    t->adapter, (unsigned long long)c->busy_with, why);
    else if (c->state == COPY_ARRIVED)
        text_printf(p->note, sizeof p->note, "given up with all bytes, while loading: %s", why);
    else if (c->state == COPY_FETCHING || c->bytes_done)
        text_printf(p->note, sizeof p->note, "given up, with %s of %s at its last heartbeat: %s", done, all,
                    why);
    else if (c->behind)
        text_printf(p->note, sizeof p->note, "given up before it began, queued behind %s@%llu: %s",
                    t->adapter, (unsigned long long)c->behind, why);
    else if (c->waits_for)
        text_printf(p->note, sizeof p->note, "given up, while %s fetched it for their host: %s",
                    copy_awaited(t, c), why);
    else text_printf(p->note, sizeof p->note, "given up before it began: %s", why);
}

why_copy_t why_copy(const answer_view_t *b, const track_t *t, const copy_row_t *c)
{
    why_copy_t p = {0};
    bool has_its_own = c->state == COPY_ACTIVE || c->state == COPY_FAILED || c->state == COPY_GONE;
    if (track_is_ended(t)) {
        if (t->row && !has_its_own) write_end(t, c, &p);
        return p;
    }
    if (c->state == COPY_GONE && c->bytes_done && t->row && c->bytes_done < t->row->data_bytes) {
        char done[16];
        units_bytes_text(c->bytes_done, done);
        text_printf(p.note, sizeof p.note, "it had %s at its last heartbeat", done);
    }
    bool had_trouble = copy_holds(c) && (c->lost_count || c->is_trouble_said);
    if (had_trouble)
        text_printf(p.note, sizeof p.note,
                    "a source was lost, or did not answer for a time, while it fetched");
    const member_t *m = membership_by_token(b->members, c->token);
    char late[WHY_NOTE_TEXT];
    bool is_switching = write_late_switch(b, t, m, late);
    if (!copy_in_flight(c) && !is_switching) m = NULL;
    const member_sub_t *sub = m ? member_sub(m, t->adapter) : NULL;
    const copy_row_t *awaited = sub ? why_awaited(b, t, c) : NULL;
    if (awaited) p.waits_for = awaited->worker;
    const member_t *first = sub ? fetcher_for(b, t, c) : NULL;
    if (first) {
        const member_sub_t *its = member_sub(first, t->adapter);
        uint64_t rate_bytes = its->fetching == t->version ? copy_rate(copy_of(t, first), first, its) : 0;
        char rate[16], at[32] = "";
        units_bytes_text(rate_bytes, rate);
        if (rate_bytes) text_printf(at, sizeof at, ", at %s/s", rate);
        text_printf(p.note, sizeof p.note, "waits for %s, which fetches it for their host%s", first->name,
                    at);
    }
    if (!sub || !(c->sent_us || is_switching)) return p;
    char time[16], lease[16];
    uint64_t lease_us = b->members->lease_us;
    bool is_fetching = why_copy_is_fetching(t, c, sub);
    bool has_source = is_fetching && !c->cut_off_us;
    const member_t *source = has_source ? membership_source(b->members, sub->source) : NULL;
    p.source = source ? source->name : NULL;
    p.is_silent = member_is_silent(b->members, m, b->now.us);
    if (p.is_silent) {
        units_ms_text((double)member_silent_ms(m, b->now.us), time);
        units_ms_text((double)lease_us / 1000, lease);
        text_printf(p.note, sizeof p.note, "no message for %s (lease %s)", time, lease);
    } else if (is_switching) {
        error_text(p.note, sizeof p.note, late);
    } else if (!c->code) {
        write_progress(b, t, c, m, &p);
        size_t used = strlen(p.note);
        bool is_said = source && !strcmp(source->name, awaited ? awaited->worker : "") &&
                       member_limits(source, p.rate_bytes);
        if (is_fetching && awaited && !is_said)
            text_printf(p.note + used, sizeof p.note - used, "%swaits for %s", used ? ", " : "", p.waits_for);
    }
    return p;
}

/* ---- a drain ---- */

enum { DRAIN_LOOKED_AT = 64 };

bool why_drains(const answer_view_t *b, const member_t *m, const char *adapter, char ret_text[WHY_NOTE_TEXT])
{
    const track_t *tracks[DRAIN_LOOKED_AT];
    view_t v = {b->registry, b->members, b->now};
    ret_text[0] = 0;
    if (!member_is_draining(m)) return false;
    size_t count = drain_only_here(b->rollout, v, m, tracks, DRAIN_LOOKED_AT);
    text_printf(ret_text, WHY_NOTE_TEXT, "no process that stays has ");
    size_t used = strlen(ret_text);
    listing_t names = {.text = ret_text + used, .size = WHY_NOTE_TEXT - used, .most = 8};
    bool has_any = false;
    for (size_t i = 0; i < count && i < DRAIN_LOOKED_AT; i++) {
        if (strcmp(tracks[i]->adapter, adapter) != 0) continue;
        listing_add(&names, "%s@%llu", adapter, (unsigned long long)tracks[i]->version);
        has_any = true;
    }
    listing_text(&names);
    if (!has_any) ret_text[0] = 0;
    return has_any;
}

/* ---- a subscription ---- */

/* The copy that shows the worker's state: that of the version it serves, or that it fetches, or of the newest
 * version that it has anything of. */
static const copy_row_t *telling_copy(const answer_view_t *b, const member_t *m, const adapter_row_t *a,
                                      const member_sub_t *sub, const track_t **ret_track)
{
    uint64_t only = sub->serving.version ? sub->serving.version : sub->fetching;
    for (size_t i = a->version_count; i-- > 0;) {
        uint64_t version = a->versions[i]->version;
        if (only && version != only) continue;
        const track_t *t = track_find(b->rollout, a->name, version);
        const copy_row_t *c =
            t && (sub->serving.version || !track_is_ended(t)) ? copy_find(t, m->name) : NULL;
        if (!c || c->state == COPY_NONE) continue;
        *ret_track = t;
        return c;
    }
    return NULL;
}

/* The state of a subscription, since when, and what is wrong with it.  message NULL: summary_lost_text has
 * it. */
typedef struct {
    const char *state, *message;
    int code;
    uint64_t since_ms;
} sub_state_t;

/* A worker has the version, and no process has it whole: what each holds has gone bad in its memory. */
static bool is_bad_everywhere(const track_t *t)
{
    return t && track_holder_count(t) && !t->plan.source_count && !track_is_served(t);
}

/* A stale worker shows why it does not have the active version, and not how its old one is. */
static sub_state_t sub_state_of(const answer_view_t *b, const member_t *m, const adapter_row_t *a,
                                const member_sub_t *sub)
{
    if (!a) return (sub_state_t){0};
    uint64_t active = active_for(a, m);
    const track_t *t = NULL, *wanted = track_find(b->rollout, a->name, active);
    const copy_row_t *c = telling_copy(b, m, a, sub, &t);
    if (!c || (t == wanted && c->state == COPY_WAITING)) {
        /* A worker that serves and fetches nothing has failed where the active version is lost, and just
         * begins otherwise. */
        if (sub->serving.version) return (sub_state_t){.since_ms = sub->serving.since_ms};
        if (is_bad_everywhere(wanted))
            return (sub_state_t){"failed",
                                 "no source: at each worker that has it, its bytes in memory have gone bad; "
                                 "publish them again",
                                 HEDDLE_ERR_VERSION_LOST, 0};
        if (!wanted || wanted->bytes != BYTES_LOST) return (sub_state_t){0};
        return (sub_state_t){"failed", NULL, HEDDLE_ERR_VERSION_LOST, wanted->held_until_ms};
    }
    sub_state_t s = {summary_copy_name(t, c, active), c->message, c->code,
                     sub->serving.version ? sub->serving.since_ms : c->since_ms};
    if (s.state && why_copy_is_fetching(t, c, sub)) s.state = copy_state_name(COPY_FETCHING);
    if (summary_copy_state(c, active, t->version) != COPY_STALE) return s;
    if (c->state == COPY_REFUSED) s.since_ms = c->since_ms;
    else s.since_ms = active_stale_ms(a, sub);
    const copy_row_t *lacking = wanted ? copy_find(wanted, m->name) : NULL;
    if (lacking && lacking->code) s.message = lacking->message, s.code = lacking->code;
    else if (wanted && wanted->bytes == BYTES_LOST) s.message = NULL, s.code = HEDDLE_ERR_VERSION_LOST;
    return s;
}

/* Progress of the version that the worker fetches, then the one that comes after it. */
static why_copy_t progress_of(const answer_view_t *b, const member_t *m, const member_sub_t *sub)
{
    /* The newest version that was announced to the worker, and that it has neither staged nor refused. */
    const track_t *next = NULL;
    const adapter_rollout_t *a = tracks_adapter(b->rollout, sub->adapter);
    for (size_t i = a ? a->track_count : 0; !next && i-- > 0;)
        if (copy_is_sent(copy_of(a->tracks[i], m)) && !track_is_ended(a->tracks[i])) next = a->tracks[i];
    const track_t *t = sub->fetching ? track_find(b->rollout, sub->adapter, sub->fetching) : NULL;
    const copy_row_t *c = copy_of(t, m);
    if (!copy_in_flight(c) || track_is_ended(t))
        return next ? why_copy(b, next, copy_of(next, m)) : (why_copy_t){0};
    why_copy_t p = why_copy(b, t, c);
    if (!next || next == t || p.is_silent || c->code) return p;
    why_copy_t both = p;
    bool is_loading = c->state == COPY_ARRIVED;
    text_printf(both.note, sizeof both.note, "%s%s@%llu%s%s; then %s@%llu", is_loading ? "" : "fetching ",
                t->adapter, (unsigned long long)t->version,
                !p.note[0]   ? ""
                : is_loading ? " "
                             : ", ",
                p.note, next->adapter, (unsigned long long)next->version);
    return both;
}

void why_sub(const answer_view_t *b, const member_t *m, const member_sub_t *sub, why_sub_t *ret_why)
{
    const adapter_row_t *a = registry_adapter(b->registry, sub->adapter);
    const track_t *next = sub->fetching ? track_find(b->rollout, sub->adapter, sub->fetching) : NULL;
    const copy_row_t *c = next ? copy_find(next, m->name) : NULL;
    sub_state_t s = sub_state_of(b, m, a, sub);
    /* It serves nothing, and cannot fetch the active version.  What it fetches instead is served only where
     * the adapter is not held. */
    bool is_lost = a && member_is_ready(m) && summary_lost_active(b->rollout, a);
    bool is_in_vain = is_lost && (!sub->fetching || sub->fetching == active_for(a, m) || a->held);
    bool is_stuck = c && !copy_holds(c) && c->code;
    if (is_in_vain && (!s.code || (is_stuck && s.code == c->code)))
        s.message = NULL, s.code = HEDDLE_ERR_VERSION_LOST;
    /* The worker is fine so far, but the fetch of its next version makes no progress. */
    if (!s.code && is_stuck) s.message = c->message, s.code = c->code;
    if (s.code == HEDDLE_ERR_VERSION_LOST && !s.message) {
        summary_lost_text(b->rollout, a, ret_why->lost, sizeof ret_why->lost);
        s.message = ret_why->lost;
    }
    if (m->end_code) s.message = m->end_message, s.code = m->end_code;
    if (!member_is_ready(m)) s.since_ms = m->ended_ms;
    why_copy_t p = progress_of(b, m, sub);
    /* The version that it is ordered to serve comes before one that it fetches meanwhile. */
    const track_t *active = a ? track_find(b->rollout, a->name, active_for(a, m)) : NULL;
    char late[WHY_NOTE_TEXT];
    if (write_late_switch(b, active, m, late))
        error_text(p.note, sizeof p.note, why_copy(b, active, copy_of(active, m)).note);
    /* The next version will find no slot here: that is no error yet, and explains why it will fail. */
    const msg_counts_t *counts = &m->counts;
    if (!p.note[0] && counts->slots_total && counts->slots_held >= counts->slots_total)
        text_printf(p.note, sizeof p.note, "all %llu slots are held by readers",
                    (unsigned long long)counts->slots_total);
    /* What keeps one that is to leave comes before what it does meanwhile. */
    char drains[WHY_NOTE_TEXT];
    if (why_drains(b, m, sub->adapter, drains)) text_printf(p.note, sizeof p.note, "draining: %s", drains);
    ret_why->state = s.state;
    ret_why->message = s.message;
    ret_why->code = s.code;
    ret_why->since_ms = s.since_ms;
    ret_why->rate_bytes = p.rate_bytes;
    error_text(ret_why->note, sizeof ret_why->note, p.note);
}
