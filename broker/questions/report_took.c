/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/report_took.h"

#include "core/errors.h"
#include "core/limits.h"
#include "core/units.h"

#include <heddle/publisher.h>
#include <string.h>

/* A fetch at more than this part of a --max-rate is limited by it. */
#define RATE_IS_LIMITED 0.8
/* The clocks of workers and broker differ: so much more may be in the phases than in the whole. */
#define FITS_US 50000u
/* What is in no phase of the slowest worker is mentioned from this part of the whole on, and this time. */
#define REST_PART 0.2
#define REST_US 100000u
#define REST_TEXT (LIMIT_GONE * (HEDDLE_NAME_MAX + 48u) + 48u)

static bool is_limit(uint64_t rate_bytes, const member_t *m)
{
    return m && m->max_rate_bytes && (double)rate_bytes > RATE_IS_LIMITED * (double)m->max_rate_bytes;
}

/* ---- a copy in progress ---- */

/* Also where it was announced again, and the next heartbeat has not come yet.  A copy with a trouble, such as
 * a former slot that is still read, has not begun. */
bool copy_is_fetching(const track_t *t, const copy_row_t *c, const member_sub_t *sub)
{
    return sub->fetching == t->version && c->state <= COPY_FETCHING && !c->code;
}

/* What the worker does with a version that was announced to it, and that has no trouble. */
static void write_progress(const report_view_t *b, const track_t *t, const copy_row_t *c, const member_t *m,
                           copy_progress_t *p)
{
    char time[16];
    const member_sub_t *sub = member_sub(m, t->adapter);
    uint64_t still_us = b->now.us - (c->moved_us > c->begun_us ? c->moved_us : c->begun_us);
    bool is_still = still_us > b->members->lease_us / 2;
    bool is_fetching = copy_is_fetching(t, c, sub);
    if (is_fetching) p->rate_bytes = sub->rate_bytes;
    /* Without a rate of its own, bytes a second since it began.  A session that goes on with bytes of an
     * earlier one has none. */
    bool has_mean = !is_still && !c->is_resumed && c->begun_us && sub->beat_us > c->begun_us;
    if (is_fetching && !p->rate_bytes && has_mean)
        p->rate_bytes = c->bytes_done * 1000000 / (sub->beat_us - c->begun_us);
    units_ms_text((double)still_us / 1000, time);
    if (c->state == COPY_ARRIVED) {
        units_ms_text((double)(b->now.wall_ms - c->since_ms), time);
        text_printf(p->note, sizeof p->note, "loading for %s", time);
    } else if (sub->fetching && sub->fetching != t->version) {
        text_printf(p->note, sizeof p->note, "queued behind %s@%llu", t->adapter,
                    (unsigned long long)sub->fetching);
    } else if (p->rate_bytes) {
        char rate[16];
        const member_t *source = membership_by_token(b->members, sub->source);
        units_bytes_text(p->rate_bytes, rate);
        if (is_limit(p->rate_bytes, m))
            text_printf(p->note, sizeof p->note, "%s/s, its own --max-rate", rate);
        else if (is_limit(p->rate_bytes, source))
            text_printf(p->note, sizeof p->note, "%s/s, the --max-rate of %s", rate, source->name);
        else text_printf(p->note, sizeof p->note, "%s/s", rate);
    } else if (is_still) {
        text_printf(p->note, sizeof p->note, is_fetching ? "no bytes for %s" : "has not begun for %s", time);
    }
}

/* How far the worker was when the version ended. */
static void write_end(const track_t *t, const copy_row_t *c, copy_progress_t *p)
{
    const version_row_t *v = t->row;
    char done[16], all[16];
    const char *why = v->state == VERSION_FAILED       ? heddle_err_name(v->code)
                      : v->state == VERSION_SUPERSEDED ? "superseded"
                                                       : "retired";
    units_bytes_text(c->bytes_done, done);
    units_bytes_text(v->data_bytes, all);
    if (copy_holds(c)) text_printf(p->note, sizeof p->note, "had all of it, and dropped it: %s", why);
    else if (c->state == COPY_ARRIVED)
        text_printf(p->note, sizeof p->note, "given up with all bytes, while loading: %s", why);
    else if (c->state == COPY_FETCHING || c->bytes_done)
        text_printf(p->note, sizeof p->note, "given up at %s of %s: %s", done, all, why);
    else if (c->behind)
        text_printf(p->note, sizeof p->note, "given up before it began, queued behind %s@%llu: %s",
                    t->adapter, (unsigned long long)c->behind, why);
    else text_printf(p->note, sizeof p->note, "given up before it began: %s", why);
}

copy_progress_t copy_progress(const report_view_t *b, const track_t *t, const copy_row_t *c)
{
    copy_progress_t p = {0};
    bool has_its_own = c->state == COPY_ACTIVE || c->state == COPY_FAILED || c->state == COPY_GONE;
    if (track_is_ended(t)) {
        if (t->row && !has_its_own) write_end(t, c, &p);
        return p;
    }
    bool had_trouble = copy_holds(c) && (c->lost_count || c->is_trouble_said);
    if (had_trouble)
        text_printf(p.note, sizeof p.note,
                    "a source was lost, or did not answer for a time, while it fetched");
    const member_t *m = copy_in_flight(c) ? membership_by_token(b->members, c->token) : NULL;
    const member_sub_t *sub = m ? member_sub(m, t->adapter) : NULL;
    const member_t *first = sub ? membership_by_token(b->members, plan_waits_for(&t->plan, c->token)) : NULL;
    if (first)
        text_printf(p.note, sizeof p.note, "waits for %s, which fetches it for their host", first->name);
    if (!sub || !c->told_us) return p;
    char time[16], lease[16];
    uint64_t lease_us = b->members->lease_us, silent_us = member_silent_ms(m, b->now.us) * 1000;
    bool is_fetching = copy_is_fetching(t, c, sub);
    const member_t *source = is_fetching ? membership_source(b->members, sub->source) : NULL;
    p.source = source ? source->name : NULL;
    p.is_silent = silent_us > lease_us / 2; /* two heartbeats are missing */
    if (p.is_silent) {
        units_ms_text((double)silent_us / 1000, time);
        units_ms_text((double)lease_us / 1000, lease);
        text_printf(p.note, sizeof p.note, "no message for %s (lease %s)", time, lease);
    } else if (!c->code) {
        write_progress(b, t, c, m, &p);
    }
    return p;
}

/* ---- which worker was the slowest ---- */

/* copy NULL: none is known */
typedef struct {
    const copy_row_t *copy;
    const char *phase;
    uint64_t us, sum_us;
} slowest_t;

/* The rollout waited for a worker, which may be gone by now. */
static bool has_awaited(const track_t *t)
{
    return tally_present(&t->tally, true) + tally_gone(&t->tally) > 0;
}

/* Of a version that was decided. */
static slowest_t slowest_of(const track_t *t, uint64_t took_us)
{
    slowest_t slowest = {0};
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        struct {
            const char *name;
            uint64_t us;
        } phases[] = {{"connect", c->connect_us}, {"fetch", c->fetch_us}, {"stage", c->stage_us}};
        slowest_t s = {.copy = c};
        for (size_t k = 0; k < sizeof phases / sizeof *phases; k++) {
            s.sum_us += phases[k].us;
            if (phases[k].us > s.us) s.us = phases[k].us, s.phase = phases[k].name;
        }
        bool counts = has_awaited(t) ? c->is_eligible : copy_holds(c) && s.sum_us <= took_us + FITS_US;
        if (counts && s.sum_us > slowest.sum_us) slowest = s;
    }
    return slowest;
}

/* Of a version that is on its way: the worker that is furthest behind. */
static const copy_row_t *awaited_copy(const track_t *t)
{
    const copy_row_t *last = NULL;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        bool counts = copy_in_flight(c) && (c->is_eligible || !has_awaited(t));
        bool is_behind =
            counts && last &&
            (c->state < last->state || (c->state == last->state && c->bytes_done < last->bytes_done));
        if (counts && (!last || is_behind)) last = c;
    }
    return last;
}

/* ---- what else took time ---- */

/* "waiting for w2, lost when its lease ended; for w5, which left; and for 3 others".  One that was gone
 * before the slowest worker was ready took no time of the rest. */
static void write_gone(const track_t *t, uint64_t ready_ms, char text[REST_TEXT])
{
    static const char *const HOW[] = {[GONE_LEFT] = "which left",
                                      [GONE_LOST] = "lost when its lease ended",
                                      [GONE_SHUT_OUT] = "whose key was revoked",
                                      [GONE_STARTED_AGAIN] = "which was started again"};
    size_t used = 0;
    uint32_t others = t->gone_count > LIMIT_GONE ? t->gone_count - LIMIT_GONE : 0;
    for (uint32_t i = others; i < t->gone_count; i++) {
        const gone_row_t *g = &t->gone[i % LIMIT_GONE];
        if (g->until_ms <= ready_ms) continue;
        text_printf(text + used, REST_TEXT - used, "%sfor %s, %s", used ? "; " : "waiting ", g->worker,
                    HOW[g->how]);
        used += strlen(text + used);
    }
    if (used && others)
        text_printf(text + used, REST_TEXT - used, "; and for %u other%s", others, others > 1 ? "s" : "");
}

/* Wall clock in ms; 0 if it was set back meanwhile. */
static uint64_t span_us(uint64_t from_ms, uint64_t to_ms)
{
    return to_ms > from_ms ? (to_ms - from_ms) * 1000 : 0;
}

/* What both times have in common. */
static uint64_t common_us(uint64_t from_ms, uint64_t to_ms, uint64_t other_from_ms, uint64_t other_to_ms)
{
    return span_us(from_ms > other_from_ms ? from_ms : other_from_ms,
                   to_ms < other_to_ms ? to_ms : other_to_ms);
}

/* The part of the time that is in no phase of the slowest worker.  A hold or settling is named where most of
 * the rest was spent under it. */
static json_t *rest_part(const report_view_t *b, const track_t *t, const version_row_t *v, uint64_t took_us,
                         const slowest_t *s)
{
    char text[REST_TEXT];
    uint64_t rest_us = took_us > s->sum_us ? took_us - s->sum_us : 0;
    if (!t || rest_us < REST_US || (double)rest_us < REST_PART * (double)took_us) return json_null();
    uint64_t until_ms = version_until_ms(v), ready_ms = v->created_ms + s->sum_us / 1000;
    const hold_t *hold = t->hold.version ? &t->hold : &t->of->hold;
    uint64_t held_until_ms = hold->until_ms ? hold->until_ms : until_ms;
    uint64_t held_us = !hold->version ? 0 : common_us(ready_ms, until_ms, hold->since_ms, held_until_ms);
    uint64_t settle_end_us = b->rollout->is_settled ? b->rollout->settled_us : b->now.us;
    uint64_t settled_ms =
        b->started_ms + (settle_end_us > b->started_us ? (settle_end_us - b->started_us) / 1000 : 0);
    bool is_started_between = b->started_ms > v->created_ms && b->started_ms <= until_ms;
    bool is_settling = common_us(v->created_ms, until_ms, b->started_ms, settled_ms) > rest_us / 2;
    bool is_operator = v->activation == HEDDLE_ACTIVATION_MANUAL && (v->first_ms || t->phase == TRACK_STAGED);
    text[0] = 0;
    if (held_us > rest_us / 2)
        text_printf(text, sizeof text, "held at %s@%llu", t->adapter, (unsigned long long)hold->version);
    else if (is_started_between) text_printf(text, sizeof text, "the broker was away or settling");
    else if (is_settling) text_printf(text, sizeof text, "the broker was settling");
    else if (is_operator) text_printf(text, sizeof text, "waiting for heddle activate");
    else write_gone(t, ready_ms, text);
    if (!text[0] && s->copy && s->copy->busy_us > rest_us / 2)
        text_printf(text, sizeof text, "%s was busy with another version", s->copy->worker);
    if (!text[0] && s->copy && s->copy->announce_us > rest_us / 2)
        text_printf(text, sizeof text, "before it was announced to %s", s->copy->worker);
    if (!text[0] && !t->copy_count && !v->first_ms)
        text_printf(text, sizeof text,
                    t->phase == TRACK_WAITING ? "behind another version of the adapter"
                                              : "waiting for a worker");
    return json_pack("{s:o, s:o}", "ms", part_ms(rest_us), "message", part_text(text));
}

/* ---- all of it ---- */

/* The workers that are there after a start may have joined when the version had long been active. */
bool took_knows_awaited(const report_view_t *b, const version_row_t *v)
{
    return !v->first_ms || v->first_ms >= b->started_ms;
}

/* After it was active: the slowest switch of the workers that it waited for. */
static json_t *switch_part(const track_t *t)
{
    const copy_row_t *last = NULL;
    for (size_t i = 0; t && i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        bool counts = c->activate_us && (c->is_eligible || !has_awaited(t));
        if (counts && (!last || c->activate_us > last->activate_us)) last = c;
    }
    return last ? json_pack("{s:s, s:o}", "worker", last->worker, "ms", part_ms(last->activate_us))
                : json_null();
}

/* Of a version that ended and was never active: the worker that it failed at, or that was furthest behind.
 * Its phase began where its state did, or, of one that failed, at the announcement. */
static slowest_t slowest_at_end(const track_t *t, const version_row_t *v, uint64_t took_us)
{
    const copy_row_t *c = v->worker[0] ? track_copy(t, v->worker) : awaited_copy(t);
    if (!c || (c->state != COPY_FAILED && !copy_in_flight(c))) return slowest_of(t, took_us);
    bool is_failed = c->state == COPY_FAILED;
    uint64_t all_us = span_us(v->created_ms, is_failed ? c->since_ms : v->ended_ms);
    uint64_t sum_us = all_us > c->announce_us ? all_us - c->announce_us : 0;
    const char *phase = is_failed ? c->phase : copy_phase(c);
    if (!strcmp(phase, "verify")) phase = "fetch"; /* which it is within */
    return (slowest_t){c, phase, is_failed ? sum_us : span_us(c->since_ms, v->ended_ms), sum_us};
}

uint64_t took_whole_us(const version_row_t *v) { return span_us(v->created_ms, version_until_ms(v)); }

json_t *took_part(const report_view_t *b, const adapter_row_t *a, const version_row_t *v)
{
    const track_t *t = took_knows_awaited(b, v) ? rollout_track(b->rollout, a->name, v->version) : NULL;
    bool is_on_its_way = v->state == VERSION_STAGING;
    uint64_t took_us = took_whole_us(v);
    slowest_t s = {0};
    if (t && v->first_ms) s = slowest_of(t, took_us);
    else if (t && !is_on_its_way) s = slowest_at_end(t, v, took_us);
    const copy_row_t *c = is_on_its_way && t ? awaited_copy(t) : NULL;
    if (c) s = (slowest_t){c, copy_phase(c), span_us(c->since_ms, b->now.wall_ms), 0};
    json_t *slowest = !s.copy ? json_null()
                              : json_pack("{s:s, s:o, s:o}", "worker", s.copy->worker, "phase",
                                          part_text(s.phase), "ms", part_ms(s.us));
    uint64_t so_far_us = span_us(v->created_ms, b->now.wall_ms);
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o}", "took_ms", v->first_ms ? part_ms(took_us) : json_null(),
        "so_far_ms", is_on_its_way ? part_ms(so_far_us) : json_null(), "ended_after_ms",
        v->first_ms || is_on_its_way ? json_null() : part_ms(took_us), "slowest", slowest, "rest",
        is_on_its_way ? json_null() : rest_part(b, t, v, took_us, &s), "switch", switch_part(t));
}
