/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/summary.h"

#include "broker/registry/active.h"
#include "broker/rollout/rule.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/option.h"
#include "core/units.h"

#include <stdlib.h>

/* ---- copies ---- */

copy_state_t summary_copy_state(const copy_row_t *c, uint64_t active, uint64_t version)
{
    copy_state_t state = c->state == COPY_GONE ? c->last_state : c->state;
    if (state == COPY_REFUSED) return COPY_STALE;
    return state == COPY_ACTIVE && active != version ? COPY_STALE : state;
}

const char *summary_copy_name(const track_t *t, const copy_row_t *c, uint64_t active)
{
    bool is_gone = c->state == COPY_GONE;
    copy_state_t state = is_gone ? c->last_state : c->state;
    if (state == COPY_FAILED || c->state == COPY_ACTIVE) /* also of a version that ended */
        return copy_state_name(summary_copy_state(c, active, t->version));
    if (track_is_ended(t) || (is_gone && state_holds(state))) return NULL;
    return copy_state_name(summary_copy_state(c, active, t->version));
}

/* ---- versions ---- */

/* The workers that are waited for have staged it.  While the broker settles these are not known. */
static bool is_staged(const track_t *t)
{
    if (!t || !t->of->ro->is_settled) return false;
    return tally_is_complete(&t->tally) || (t->is_late && t->tally.units);
}

/* The state that users see.  It follows from the row and from the copies, so that it is never stored
 * beside them. */
static const char *state_of(const track_t *t, const adapter_row_t *a, const version_row_t *v)
{
    switch (v->state) {
    case VERSION_SUPERSEDED: return "superseded";
    case VERSION_FAILED: return "failed";
    case VERSION_RETIRED: return "retired";
    case VERSION_STAGING:
        if (t && t->bytes == BYTES_LOST) return "lost";
        return is_staged(t) ? "staged" : "staging";
    case VERSION_COMMITTED: break;
    }
    if (t && t->bytes == BYTES_LOST) return "lost";
    return active_latest(a) == v->version ? "active" : "kept";
}

const char *summary_state(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v)
{
    return state_of(track_find(ro, a->name, v->version), a, v);
}

static bool is_held_back(const char *state, const adapter_row_t *a, const version_row_t *v)
{
    return a->held && v->version >= active_latest(a) && (!strcmp(state, "staged") || !strcmp(state, "kept"));
}

bool summary_is_held_back(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v)
{
    return is_held_back(summary_state(ro, a, v), a, v);
}

void summary_lost_reason(const track_t *t, heddle_error_t *ret_error)
{
    char until[25];
    clock_text(t->held_until_ms, until);
    if (t->row && t->row->lost_why[0]) error_fail(ret_error, HEDDLE_ERR_VERSION_LOST, "%s", t->row->lost_why);
    else if (t->last_holder[0])
        error_fail(ret_error, HEDDLE_ERR_VERSION_LOST,
                   "no connected process holds the bytes of %s@%llu: %s had them last, until %s", t->adapter,
                   (unsigned long long)t->version, t->last_holder, until);
    else
        error_fail(ret_error, HEDDLE_ERR_VERSION_LOST,
                   "no connected process holds the bytes of %s@%llu: no worker brought them back after the "
                   "broker was started",
                   t->adapter, (unsigned long long)t->version);
    error_where(ret_error, t->adapter, t->version, NULL, NULL);
    if (t->row && t->row->step >= 0)
        error_hint(ret_error, "publish it again, with opts.step %lld", (long long)t->row->step);
    else error_hint(ret_error, "publish it again");
    ret_error->retriable = 0;
}

const track_t *summary_lost_active(const rollout_t *ro, const adapter_row_t *a)
{
    const track_t *t = active_latest(a) ? track_find(ro, a->name, active_latest(a)) : NULL;
    return t && t->bytes == BYTES_LOST ? t : NULL;
}

void summary_held_text(const rollout_t *ro, const adapter_row_t *a, char *ret_text, size_t size)
{
    char since[25];
    clock_text(a->decided_ms, since);
    text_printf(ret_text, size, "%s is held at %s@%llu by %s since %s%s", a->name, a->name,
                (unsigned long long)active_latest(a), a->held_by, since,
                summary_lost_active(ro, a) ? ", and that version is lost" : "");
}

void summary_lost_text(const rollout_t *ro, const adapter_row_t *a, char *ret_text, size_t size)
{
    unsigned long long newest = 0; /* that a worker has */
    for (size_t i = a->version_count; !newest && i-- > 0;) {
        const version_row_t *v = a->versions[i];
        if (registry_is_live(v) && track_holder_count(track_find(ro, a->name, v->version)))
            newest = v->version;
    }
    if (a->held) summary_held_text(ro, a, ret_text, size);
    else
        text_printf(ret_text, size, "no connected process holds the bytes of %s@%llu, the active version",
                    a->name, (unsigned long long)active_latest(a));
    size_t used = strlen(ret_text);
    char *rest = ret_text + used;
    size -= used;
    if (newest)
        text_printf(rest, size, ": `heddle activate %s@%llu` serves the newest that is there", a->name,
                    newest);
    else if (a->held) text_printf(rest, size, ": publish again, then activate the new version");
    else text_printf(rest, size, ": publish again");
}

/* Says how far the worker has come, and what ended the wait for it. */
static void put_missing(const track_t *t, const copy_row_t *c, const version_row_t *v,
                        const missing_list_t *missing, missing_row_t *row)
{
    const member_t *m = missing->members ? membership_by_token(missing->members, c->token) : NULL;
    /* Why one that said nothing itself is missing: its time was over, or the version ended for another
     * reason. */
    bool is_its_own = v->code == HEDDLE_ERR_DEADLINE || v->code == HEDDLE_ERR_NO_WORKERS ||
                      v->code == HEDDLE_ERR_VERSION_LOST;
    int code = c->code             ? c->code
               : track_is_ended(t) ? (is_its_own ? v->code : HEDDLE_ERR_VERSION_FAILED)
               : t->is_late        ? HEDDLE_ERR_DEADLINE
                                   : HEDDLE_OK;
    *row = (missing_row_t){.worker = c->worker, .phase = copy_phase(c), .code = code};
    row->message = c->code ? copy_message(c) : row->text;
    if (c->code) return;
    char *text = row->text;
    size_t size = sizeof row->text;
    switch (c->state) {
    case COPY_NONE:
    case COPY_WAITING:
    case COPY_ANNOUNCED:
        if (c->waits_for)
            text_printf(text, size, "%s, which %s it for their host, %s not got it", copy_awaited(t, c),
                        row->code ? "fetched" : "fetches", row->code ? "had" : "has");
        else text_printf(text, size, "has not begun to fetch");
        break;
    case COPY_FETCHING:
        text_printf(text, size, "%llu of %llu bytes fetched", (unsigned long long)c->bytes_done,
                    (unsigned long long)v->data_bytes);
        break;
    case COPY_ARRIVED: text_printf(text, size, "has all bytes, and has not said that it loaded them"); break;
    case COPY_COMMITTED: text_printf(text, size, "has not said that it switched"); break;
    default: text_printf(text, size, "is %s", copy_state_name(c->state)); break;
    }
    size_t used = strlen(text);
    const char *as_of = c->state == COPY_FETCHING ? " (as of its last heartbeat)" : "";
    if (row->code == HEDDLE_ERR_DEADLINE)
        text_printf(text + used, size - used, " within %llu ms%s", (unsigned long long)v->asked_ms, as_of);
    else if (row->code) text_printf(text + used, size - used, " when the version ended%s", as_of);
    used = strlen(text);
    if (c->behind && c->state <= COPY_ANNOUNCED)
        text_printf(text + used, size - used, ", queued behind version %llu", (unsigned long long)c->behind);
    if (c->busy_with)
        text_printf(text + used, size - used, ", busy with its switch to version %llu",
                    (unsigned long long)c->busy_with);
    used = strlen(text);
    if (!m || !member_is_silent(missing->members, m, missing->now_us)) return;
    char time[16];
    units_ms_text((double)member_silent_ms(m, missing->now_us), time);
    text_printf(text + used, size - used, ", and sent no message for %s", time);
}

/* Eligible workers count, also those that are gone.  Where there is none, as after a start, all workers
 * with a copy count. */
summary_t summary_of(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v,
                     const missing_list_t *missing)
{
    const track_t *t = track_find(ro, a->name, v->version);
    summary_t sum = {.state = state_of(t, a, v),
                     .decision = v->decision,
                     .activation = v->activation,
                     .deadline_ms = v->asked_ms,
                     .code = v->code};
    if (!t) return sum;
    const tally_t *tally = &t->tally;
    if (is_held_back(sum.state, a, v)) sum.code = HEDDLE_ERR_HELD;
    if (t->bytes == BYTES_LOST) sum.code = HEDDLE_ERR_VERSION_LOST;
    sum.eligible = tally_present(tally, true);
    bool is_eligible = sum.eligible > 0;
    sum.staged = tally->done[is_eligible];
    sum.active = tally->reached[is_eligible];
    uint32_t there = v->decision ? sum.active : tally_holders(tally, is_eligible);
    sum.missing_count = tally_present(tally, is_eligible) + tally_gone(tally) - there;
    uint32_t listed = 0, cap = missing ? missing->cap : 0;
    uint32_t most = sum.missing_count < cap ? sum.missing_count : cap;
    for (size_t i = 0; i < t->copy_count && listed < most; i++) {
        const copy_row_t *c = track_walk(t, i);
        bool counts = c->is_eligible || (!is_eligible && c->token);
        bool is_there = v->decision ? c->has_reached : copy_holds(c);
        if (counts && !is_there) put_missing(t, c, v, missing, &missing->rows[listed++]);
    }
    return sum;
}

/* What was fetched is known from heartbeats. A copy that is held whole has fewer bytes without padding. */
summary_bytes_t summary_bytes(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v)
{
    const track_t *t = track_find(ro, a->name, v->version);
    summary_bytes_t bytes = {0};
    bool is_eligible = t && tally_present(&t->tally, true) > 0;
    for (size_t i = 0; t && i < t->copy_count; i++) {
        const copy_row_t *c = track_walk(t, i);
        if (!c->token || (is_eligible && !c->is_eligible)) continue;
        bool is_whole = copy_holds(c) || c->bytes_done > record_payload_bytes(&v->parts);
        bytes.done += is_whole ? record_payload_bytes(&v->parts) : c->bytes_done;
        bytes.all += record_payload_bytes(&v->parts);
        bytes.workers++;
    }
    return bytes;
}

bool summary_queued_text(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v,
                         char ret_text[SUMMARY_QUEUED_TEXT])
{
    const track_t *t = track_find(ro, a->name, v->version);
    bool is_queued = t && t->phase == TRACK_WAITING && v == registry_waiting(a);
    ret_text[0] = 0;
    if (!is_queued) return false;
    const version_row_t *first = registry_staging(a);
    summary_t sum = summary_of(ro, a, first, NULL);
    text_printf(ret_text, SUMMARY_QUEUED_TEXT, "waits for %s@%llu", a->name,
                (unsigned long long)first->version);
    /* Of how many workers is known when the members are back after a restart. */
    size_t used = strlen(ret_text);
    if (ro->is_settled && sum.eligible)
        text_printf(ret_text + used, SUMMARY_QUEUED_TEXT - used, " (staged on %u of %u)", sum.staged,
                    sum.eligible);
    return true;
}

bool summary_nearest_text(const membership_t *members, const char *adapter,
                          char ret_text[SUMMARY_QUEUED_TEXT])
{
    bool has_workers = false;
    size_t count = 0, most = 1;
    for (size_t i = 0; i < members->worker_count; i++) most += members->workers[i]->sub_count;
    const char **names = calloc(most, sizeof *names);
    for (size_t i = 0; names && i < members->worker_count; i++) {
        const member_t *m = members->workers[i];
        for (uint32_t k = 0; member_is_ready(m) && k < m->sub_count; k++) {
            names[count++] = m->subs[k].adapter;
            has_workers = has_workers || !strcmp(m->subs[k].adapter, adapter);
        }
    }
    const char *nearest = names && !has_workers ? option_nearest(adapter, names) : NULL;
    if (nearest)
        text_printf(ret_text, SUMMARY_QUEUED_TEXT,
                    "did you mean %.64s? workers subscribe to it, and none to %.64s", nearest, adapter);
    free(names);
    return nearest != NULL;
}

bool summary_awaits_operator(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v)
{
    bool is_manual = v->state == VERSION_STAGING && rule_is_by_operator(v->activation) && !a->held;
    return is_manual && !strcmp(summary_state(ro, a, v), "staged");
}

bool summary_note(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v, uint64_t settling_us,
                  char ret_text[SUMMARY_NOTE_TEXT])
{
    size_t size = SUMMARY_NOTE_TEXT;
    unsigned long long version = v->version;
    bool is_settling = v->state == VERSION_STAGING && settling_us;
    ret_text[0] = 0;
    if (v->state == VERSION_SUPERSEDED) {
        text_printf(ret_text, size, "%s", v->message);
    } else if (is_settling) {
        char left[16];
        units_ms_text((double)settling_us / 1000, left);
        text_printf(ret_text, size, "the broker is settling, and decides nothing for %s", left);
    } else if (summary_is_held_back(ro, a, v)) {
        summary_held_text(ro, a, ret_text, size);
        size_t used = strlen(ret_text);
        text_printf(ret_text + used, size - used,
                    ": `heddle resume %s` ends the hold, `heddle activate %s@%llu` serves this version",
                    a->name, a->name, version);
    } else if (summary_awaits_operator(ro, a, v)) {
        text_printf(ret_text, size, "waiting for `heddle activate %s@%llu`", a->name, version);
    } else {
        char queued[SUMMARY_QUEUED_TEXT];
        if (summary_queued_text(ro, a, v, queued)) text_printf(ret_text, size, "%s", queued);
    }
    return ret_text[0] != 0;
}
