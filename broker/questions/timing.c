/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/timing.h"
#include "broker/questions/why.h"

#include "broker/registry/active.h"
#include "broker/rollout/rule.h"
#include "core/errors.h"
#include "core/limits.h"

#include <string.h>

/* What is in no phase of the slowest worker is mentioned from this part of the whole on, and this time. */
#define REST_PART 0.2
#define REST_US 100000u
#define REST_TEXT (LIMIT_GONE * (HEDDLE_NAME_MAX + 48u) + 96u)

/* ---- which worker was the slowest ---- */

/* The rollout waited for a worker, which may be gone by now. */
static bool has_awaited(const track_t *t)
{
    return tally_present(&t->tally, true) + tally_gone(&t->tally) > 0;
}

/* The phase in which the copy is, or has failed.  A fetch is connecting until a source has answered. */
static const char *phase_now(const copy_row_t *c)
{
    const char *phase = copy_phase(c);
    bool has_answer = c->is_connected || c->connect_us;
    if (!strcmp(phase, "verify")) return "fetch"; /* which it is within */
    return !strcmp(phase, "fetch") && !has_answer ? "connect" : phase;
}

/* What the others wait for, from the least to the most: a worker that has nothing yet beside another one of
 * its host; one that is on its way; one that has no source, or whose source is the publisher, which sends
 * nothing. */
typedef enum { REASON_FOLLOWS, REASON_BEHIND, REASON_CUT_OFF } reason_t;

static reason_t reason_of(const answer_view_t *b, const track_t *t, const copy_row_t *c)
{
    const member_t *m = membership_by_token(b->members, c->token);
    const member_sub_t *sub = m ? member_sub(m, t->adapter) : NULL;
    if (why_place_has_bytes(b, t, c)) return REASON_FOLLOWS;
    bool is_from_publisher = sub && why_copy_is_fetching(t, c, sub) && t->plan.publisher.token &&
                             sub->source == t->plan.publisher.token;
    bool is_still = c->moved_us && b->now.us - c->moved_us > b->members->lease_us / 2;
    return c->cut_off_us || (is_from_publisher && is_still) ? REASON_CUT_OFF : REASON_BEHIND;
}

/* Of a version that is on its way: of those that are the reason why it is not there, the worker that is
 * furthest behind. */
static const copy_row_t *awaited_copy(const answer_view_t *b, const track_t *t)
{
    const copy_row_t *last = NULL;
    reason_t most = REASON_FOLLOWS;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        if (!copy_in_flight(c) || !(c->is_eligible || !has_awaited(t))) continue;
        reason_t reason = reason_of(b, t, c);
        bool is_behind =
            !last || c->state < last->state || (c->state == last->state && c->bytes_done < last->bytes_done);
        if (last && (reason < most || (reason == most && !is_behind))) continue;
        most = reason;
        last = c;
    }
    return last;
}

/* ---- what else took time ---- */

/* Wall clock in ms; 0 if it was set back meanwhile. */
static uint64_t span_us(uint64_t from_ms, uint64_t to_ms)
{
    return to_ms > from_ms ? (to_ms - from_ms) * 1000 : 0;
}

/* "2.9 s waiting for w2, lost when its lease ended; 27.4 s without a worker", of the `rest_us` from
 * `ready_ms` to `until_ms`. */
static void write_missed(const track_t *t, uint64_t rest_us, uint64_t ready_ms, uint64_t until_ms,
                         char text[REST_TEXT])
{
    char gone[REST_TEXT] = "";
    uint64_t deserted_us = t->deserted_ms ? span_us(t->deserted_ms, until_ms) : 0;
    /* "waiting for w2, lost when its lease ended; for w5, which left; and for 3 others".  One that was
     * gone before the slowest worker was ready took no time of the rest. */
    static const char *const HOW[] = {[GONE_LEFT] = "which left",
                                      [GONE_LOST] = "lost when its lease ended",
                                      [GONE_SHUT_OUT] = "whose key was revoked",
                                      [GONE_STARTED_AGAIN] = "which was started again"};
    size_t used = 0;
    uint32_t others = t->gone_count > LIMIT_GONE ? t->gone_count - LIMIT_GONE : 0;
    for (uint32_t i = others; i < t->gone_count; i++) {
        const gone_row_t *g = &t->gone[i % LIMIT_GONE];
        if (g->until_ms <= ready_ms) continue;
        text_printf(gone + used, REST_TEXT - used, "%sfor %s, %s", used ? "; " : "waiting ", g->worker,
                    HOW[g->how]);
        used += strlen(gone + used);
    }
    if (used && others)
        text_printf(gone + used, REST_TEXT - used, "; and for %u other%s", others, others > 1 ? "s" : "");
    if (!gone[0] || deserted_us < REST_US || deserted_us >= rest_us) text_printf(text, REST_TEXT, "%s", gone);
    else
        text_printf(text, REST_TEXT, "%.1f s %s; %.1f s without a worker",
                    (double)(rest_us - deserted_us) / 1e6, gone, (double)deserted_us / 1e6);
}

/* What both times have in common. */
static uint64_t common_us(uint64_t from_ms, uint64_t to_ms, uint64_t other_from_ms, uint64_t other_to_ms)
{
    return span_us(from_ms > other_from_ms ? from_ms : other_from_ms,
                   to_ms < other_to_ms ? to_ms : other_to_ms);
}

/* The part of the time that is in no phase of the slowest worker.  A hold or settling is named where most of
 * the rest was spent under it. */
static json_t *rest_json(const answer_view_t *b, const track_t *t, const version_row_t *v, uint64_t took_us,
                         const slowest_t *s)
{
    char text[REST_TEXT];
    uint64_t rest_us = took_us > s->sum_us ? took_us - s->sum_us : 0;
    if (!t || rest_us < REST_US || (double)rest_us < REST_PART * (double)took_us) return json_null();
    uint64_t until_ms = registry_until_ms(v), ready_ms = v->created_ms + s->sum_us / 1000;
    const adapter_hold_t *hold = t->hold.version ? &t->hold : &t->of->hold;
    uint64_t held_until_ms = hold->until_ms ? hold->until_ms : until_ms;
    uint64_t held_us = !hold->version ? 0 : common_us(ready_ms, until_ms, hold->since_ms, held_until_ms);
    uint64_t settle_end_us = b->rollout->is_settled ? b->rollout->settled_us : b->now.us;
    uint64_t settled_ms =
        b->started_ms + (settle_end_us > b->started_us ? (settle_end_us - b->started_us) / 1000 : 0);
    bool is_started_between = b->started_ms > v->created_ms && b->started_ms <= until_ms;
    bool is_settling = common_us(v->created_ms, until_ms, b->started_ms, settled_ms) > rest_us / 2;
    bool is_publisher_gone =
        t->plan.publisher.state == PUBLISHER_LOST || t->plan.publisher.state == PUBLISHER_LEFT;
    bool was_publisher_gone = is_publisher_gone && t->publisher_end_ms < until_ms;
    bool is_operator = rule_is_by_operator(v->activation) && (v->first_ms || t->phase == TRACK_STAGED);
    text[0] = 0;
    if (held_us > rest_us / 2)
        text_printf(text, sizeof text, "held at %s@%llu", t->adapter, (unsigned long long)hold->version);
    else if (is_started_between) text_printf(text, sizeof text, "the broker was away or settling");
    else if (is_settling) text_printf(text, sizeof text, "the broker was settling");
    else if (s->sourceless_us > rest_us / 2 && was_publisher_gone)
        text_printf(text, sizeof text, "no source (its publisher %s was gone)", v->writer);
    else if (s->sourceless_us > rest_us / 2)
        text_printf(text, sizeof text, "no source answered %s", s->worker);
    else if (is_operator) text_printf(text, sizeof text, "waiting for heddle activate");
    else write_missed(t, rest_us, ready_ms, until_ms, text);
    bool is_busy = !text[0] && s->busy_us > rest_us / 2;
    if (is_busy && s->busy_with)
        text_printf(text, sizeof text, "%s was busy with its switch to %s@%llu", s->worker, t->adapter,
                    (unsigned long long)s->busy_with);
    else if (is_busy) text_printf(text, sizeof text, "%s was busy with another version", s->worker);
    if (!text[0] && s->announce_us > rest_us / 2)
        text_printf(text, sizeof text, "before it was announced to %s", s->worker);
    if (!text[0] && s->queued_us > rest_us / 2)
        text_printf(text, sizeof text, "%s was queued behind %s@%llu", s->worker, t->adapter,
                    (unsigned long long)s->behind);
    if (!text[0] && s->waited_us > rest_us / 2)
        text_printf(text, sizeof text, "%s waited, in none of its phases", s->waited);
    if (!text[0] && !t->copy_count && !v->first_ms)
        text_printf(text, sizeof text,
                    t->phase == TRACK_WAITING ? "behind another version of the adapter"
                                              : "waiting for a worker");
    return json_pack("{s:o, s:o}", "ms", cell_ms(rest_us), "message", cell_text(text));
}

/* ---- all of it ---- */

/* The workers that are there after a start may have joined when the version had long been active. */
bool timing_knows_awaited(const answer_view_t *b, const version_row_t *v)
{
    return !v->first_ms || v->first_ms >= b->started_ms;
}

/* It comes after the time until the version was active. */
static json_t *switch_json(const took_t *took)
{
    if (!took->switch_us) return json_null();
    return json_pack("{s:s, s:o}", "worker", took->switched, "ms", cell_ms(took->switch_us));
}

/* How long before the end of the version the copy had no source: since its worker reported that, or else
 * since the broker lost the last one, and no more bytes came.  0: it had one, or all bytes. */
static uint64_t sourceless_us(const track_t *t, const copy_row_t *c, const version_row_t *v, instant_t now)
{
    uint64_t since_us = c->cut_off_us;
    if (!since_us && t->bytes > BYTES_GROWING)
        since_us = t->sourceless_us > c->moved_us ? t->sourceless_us : c->moved_us;
    if (!since_us || c->state > COPY_FETCHING) return 0;
    uint64_t ended_us = now.us - span_us(v->ended_ms, now.wall_ms);
    return ended_us > since_us ? ended_us - since_us : 0;
}

/* Of a version that ended and was never active: the worker that it failed at, or that was furthest behind.
 * The time that this worker has not measured belongs to the phase in which it failed, or was at the end.  A
 * worker that was loading then has measured no fetch: that lasted until all bytes were there.  A fetch ends
 * with its last source.  The time in which its application was busy with another version is in no phase. */
static slowest_t slowest_at_end(const answer_view_t *b, const track_t *t, const version_row_t *v)
{
    const copy_row_t *c = v->worker[0] ? copy_find(t, v->worker) : awaited_copy(b, t);
    if (!c || (c->state != COPY_FAILED && !copy_in_flight(c)))
        return t->took.is_final ? t->took.slowest : took_slowest(t, b->members);
    bool is_failed = c->state == COPY_FAILED;
    const member_t *m = membership_by_token(b->members, c->token);
    slowest_t s = took_measured(t, c, m);
    if (is_failed && c->stage_us) return s; /* all of them */
    uint64_t begun_us = s.queued_us ? s.queued_us : s.announce_us;
    uint64_t all_us = span_us(v->created_ms, is_failed ? c->since_ms : v->ended_ms);
    s.sourceless_us = sourceless_us(t, c, v, b->now);
    s.busy_us = c->busy_with ? span_us(c->since_ms, v->ended_ms) : 0;
    s.busy_with = c->busy_with;
    uint64_t idle_us = s.sourceless_us + s.busy_us;
    all_us -= idle_us < all_us ? idle_us : all_us;
    uint64_t left_us = all_us > begun_us + s.sum_us ? all_us - begun_us - s.sum_us : 0;
    uint64_t last_us = is_failed || s.sum_us || idle_us ? left_us : span_us(c->since_ms, v->ended_ms);
    s.sum_us += left_us;
    if (last_us >= s.us) took_set_phase(&s, c->busy_with ? "fetch" : phase_now(c), last_us, c, m);
    if (c->state == COPY_ARRIVED && left_us > last_us + s.us)
        took_set_phase(&s, "fetch", left_us - last_us, c, m);
    return s;
}

/* Of a version that is on its way. */
static slowest_t slowest_so_far(const answer_view_t *b, const track_t *t)
{
    const copy_row_t *c = awaited_copy(b, t), *first = c ? why_awaited(b, t, c) : NULL;
    slowest_t s = {.worker = ""};
    if (first) c = first;
    if (!c) return s;
    error_text(s.worker, sizeof s.worker, c->worker);
    s.phase = phase_now(c);
    s.us = span_us(c->since_ms, b->now.wall_ms);
    return s;
}

/* The version is active, and workers of those that it waited for have not switched yet: the one that is
 * furthest behind, and how many there are. */
static json_t *unfinished_json(const answer_view_t *b, const track_t *t, const version_row_t *v)
{
    const copy_row_t *last = NULL;
    uint32_t count = 0;
    bool is_on = active_latest(t->of->row) == v->version && v->decision == v->first_decision;
    for (size_t i = 0; is_on && i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        bool is_behind = c->token && !c->has_reached && (copy_in_flight(c) || copy_is_switching(c));
        if (!is_behind || (t->took.is_of_eligible && !c->is_eligible)) continue;
        count++;
        bool is_further = last && copy_is_switching(c) && copy_is_switching(last)
                              ? c->switch_us < last->switch_us
                              : !last || c->state < last->state;
        if (is_further) last = c;
    }
    if (!last) return json_null();
    bool is_switching = copy_is_switching(last);
    uint64_t us = is_switching ? b->now.us - last->switch_us : span_us(last->since_ms, b->now.wall_ms);
    return json_pack("{s:s, s:s, s:o, s:o}", "worker", last->worker, "phase",
                     is_switching ? "activate" : phase_now(last), "ms", cell_ms(us), "count",
                     cell_count(count));
}

static json_t *slowest_json(const slowest_t *s)
{
    if (!s->worker[0]) return json_null();
    return json_pack("{s:s, s:o, s:o, s:o, s:o}", "worker", s->worker, "phase", cell_text(s->phase), "ms",
                     cell_ms(s->us), "rate_bytes", cell_number(s->rate_bytes), "max_rate_bytes",
                     cell_number(s->max_rate_bytes));
}

uint64_t timing_whole_us(const version_row_t *v) { return span_us(v->created_ms, registry_until_ms(v)); }

json_t *timing_json(const answer_view_t *b, const adapter_row_t *a, const version_row_t *v)
{
    const track_t *t = timing_knows_awaited(b, v) ? track_find(b->rollout, a->name, v->version) : NULL;
    bool is_on_its_way = v->state == VERSION_STAGING;
    uint64_t took_us = timing_whole_us(v), so_far_us = span_us(v->created_ms, b->now.wall_ms);
    slowest_t s = !t              ? (slowest_t){.worker = ""}
                  : is_on_its_way ? slowest_so_far(b, t)
                  : v->first_ms   ? t->took.slowest
                                  : slowest_at_end(b, t, v);
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "took_ms", v->first_ms ? cell_ms(took_us) : json_null(),
        "so_far_ms", is_on_its_way ? cell_ms(so_far_us) : json_null(), "ended_after_ms",
        v->first_ms || is_on_its_way ? json_null() : cell_ms(took_us), "slowest", slowest_json(&s), "rest",
        is_on_its_way ? json_null() : rest_json(b, t, v, took_us, &s), "switch",
        t ? switch_json(&t->took) : json_null(), "unfinished", t ? unfinished_json(b, t, v) : json_null());
}
