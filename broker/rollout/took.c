/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/took.h"

#include "broker/rollout/rule.h"
#include "broker/rollout/track.h"
#include "core/errors.h"

#include <string.h>

/* ---- one worker ---- */

void took_set_phase(slowest_t *s, const char *phase, uint64_t us, const copy_row_t *c, const member_t *m)
{
    bool has_rate = us && !c->holds_region && !strcmp(phase, "fetch");
    s->phase = phase;
    s->us = us;
    s->rate_bytes = has_rate ? member_paced(m, (uint64_t)((double)c->bytes_done * 1e6 / (double)us)) : 0;
    s->max_rate_bytes = member_limits(m, s->rate_bytes) ? m->max_rate_bytes : 0;
}

slowest_t took_measured(const track_t *t, const copy_row_t *c, const member_t *m)
{
    struct {
        const char *name;
        uint64_t us;
    } phases[] = {{"connect", c->connect_us}, {"fetch", c->fetch_us}, {"stage", c->stage_us}};
    bool was_queued = c->behind && c->begun_us;
    slowest_t s = {.announce_us = c->from_us - t->created_us + c->announce_us,
                   .behind = c->behind,
                   .queued_us = was_queued ? c->begun_us - t->created_us : 0,
                   .busy_us = c->busy_us};
    error_text(s.worker, sizeof s.worker, c->worker);
    for (size_t k = 0; k < sizeof phases / sizeof *phases; k++) {
        s.sum_us += phases[k].us;
        if (phases[k].us > s.us) took_set_phase(&s, phases[k].name, phases[k].us, c, m);
    }
    return s;
}

/* ---- all of them ---- */

static bool is_as_ready(const track_t *t) { return t->row && rule_takes_first(t->row->activation); }

static bool is_staged_by_unit(const copy_row_t *c)
{
    return copy_holds(c) && (!c->group || c->group->staged_ranks == c->group->ranks);
}

slowest_t took_slowest(const track_t *t, const membership_t *members)
{
    slowest_t slowest = {.worker = ""};
    const copy_row_t *waited = NULL;
    uint64_t waited_us = 0;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        bool counts =
            is_as_ready(t) ? is_staged_by_unit(c) : rule_counts(&t->tally, c->is_eligible, copy_holds(c));
        if (!counts) continue;
        slowest_t s = took_measured(t, c, membership_by_token(members, c->token));
        if (s.sum_us > slowest.sum_us) slowest = s;
        uint64_t idle_us = c->wait_us - c->busy_us;
        if (idle_us <= waited_us) continue;
        waited = c;
        waited_us = idle_us;
    }
    slowest.waited_us = waited_us;
    if (waited) error_text(slowest.waited, sizeof slowest.waited, waited->worker);
    return slowest;
}

/* ---- the version ---- */

static void become_final(track_t *t, const membership_t *members)
{
    if (t->took.is_final) return;
    t->took.is_final = true;
    t->took.slowest = took_slowest(t, members);
}

void took_staged(track_t *t, const membership_t *members)
{
    if (is_as_ready(t) && t->row->state == VERSION_STAGING) become_final(t, members);
}

static bool is_first_decision(const track_t *t)
{
    return t->row && t->row->decision == t->row->first_decision;
}

void took_decided(track_t *t, const membership_t *members)
{
    if (!is_first_decision(t)) return;
    become_final(t, members);
    t->took.is_of_eligible = tally_present(&t->tally, true) > 0;
}

/* The activation waited for this worker; as-ready, for the first unit that staged it. */
static bool was_waited_for(const track_t *t, const copy_row_t *c)
{
    if (!is_as_ready(t)) return c->is_eligible || !t->took.is_of_eligible;
    const copy_row_t *first = copy_find(t, t->took.slowest.worker);
    return first && (c == first || (c->group && c->group == first->group));
}

/* A worker that goes back to it later took no part in its way. */
void took_switched(track_t *t, const copy_row_t *c)
{
    bool is_counted = is_first_decision(t) && was_waited_for(t, c);
    if (!t->took.is_final || !is_counted || c->activate_us <= t->took.switch_us) return;
    t->took.switch_us = c->activate_us;
    error_text(t->took.switched, sizeof t->took.switched, c->worker);
}
