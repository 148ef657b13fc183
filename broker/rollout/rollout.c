/* SPDX-License-Identifier: Apache-2.0 */
/* Tracks and copies: where they are kept, and what can be read of them. */
#include "broker/rollout/rollout_part.h"

#include "core/clock.h"
#include "core/errors.h"

#include <stdlib.h>

/* ---- rows ---- */

static void free_copy(copy_row_t *c)
{
    free(c->served);
    free(c);
}

static void free_track(track_t *t)
{
    for (size_t i = 0; i < t->copy_count; i++) free_copy(t->copies[i]);
    free(t->copies);
    free(t);
}

void rollout_init(rollout_t *ro, uint64_t lease_us, uint64_t keep, uint64_t seed)
{
    *ro = (rollout_t){.lease_us = lease_us, .keep = keep, .seed = seed, .due_us = CLOCK_NEVER};
}

void rollout_fini(rollout_t *ro)
{
    for (size_t i = 0; i < ro->track_count; i++) free_track(ro->tracks[i]);
    free(ro->tracks);
    *ro = (rollout_t){0};
}

bool rollout_is_settling(const rollout_t *ro, uint64_t now_us) { return now_us < ro->settle_end_us; }

uint64_t rollout_settling_us(const rollout_t *ro, uint64_t now_us)
{
    return rollout_is_settling(ro, now_us) ? ro->settle_end_us - now_us : 0;
}

uint64_t rollout_deadline(const rollout_t *ro) { return ro->due_us; }

/* Room for one more pointer. */
static bool grow(void *array, size_t count, size_t *capacity)
{
    if (count < *capacity) return true;
    size_t more = *capacity ? *capacity * 2 : 8;
    void **rows = realloc(*(void **)array, more * sizeof *rows);
    if (!rows) return false;
    *(void **)array = rows;
    *capacity = more;
    return true;
}

/* ---- tracks ---- */

static int compare_track(const track_t *t, const char *adapter, uint64_t version)
{
    int order = strcmp(t->adapter, adapter);
    return order ? order : t->version < version ? -1 : t->version > version;
}

static size_t track_place(const rollout_t *ro, const char *adapter, uint64_t version)
{
    size_t low = 0, high = ro->track_count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (compare_track(ro->tracks[mid], adapter, version) < 0) low = mid + 1;
        else high = mid;
    }
    return low;
}

size_t track_first(const rollout_t *ro, const char *adapter) { return track_place(ro, adapter, 0); }

track_t *rollout_track(const rollout_t *ro, const char *adapter, uint64_t version)
{
    size_t at = track_place(ro, adapter, version);
    return at < ro->track_count && !compare_track(ro->tracks[at], adapter, version) ? ro->tracks[at]
                                                                                    : NULL;
}

track_t *track_add(rollout_t *ro, const char *adapter, uint64_t version, uint64_t now_us)
{
    size_t at = track_place(ro, adapter, version);
    if (at < ro->track_count && !compare_track(ro->tracks[at], adapter, version)) return ro->tracks[at];
    track_t *t = calloc(1, sizeof *t);
    if (!t || !grow(&ro->tracks, ro->track_count, &ro->track_capacity)) {
        free(t);
        return NULL;
    }
    error_text(t->adapter, sizeof t->adapter, adapter);
    t->version = version;
    t->created_us = t->push_us = now_us;
    t->deadline_us = t->due_us = CLOCK_NEVER;
    memmove(ro->tracks + at + 1, ro->tracks + at, (ro->track_count++ - at) * sizeof *ro->tracks);
    ro->tracks[at] = t;
    track_touch(ro, t);
    return t;
}

void track_forget_ended(rollout_t *ro, const char *adapter)
{
    size_t first = track_first(ro, adapter), ended = 0, end = first;
    for (; end < ro->track_count && !strcmp(ro->tracks[end]->adapter, adapter); end++)
        ended += ro->tracks[end]->is_ended;
    for (size_t i = first; i < ro->track_count && ended > ROLLOUT_ENDED_TRACKS;) {
        bool is_told = !ro->tracks[i]->is_dirty; /* its publisher; else rollout_flush comes back to it */
        if (!ro->tracks[i]->is_ended || !is_told) {
            ro->is_crowded |= !is_told;
            i++;
            continue;
        }
        free_track(ro->tracks[i]);
        memmove(ro->tracks + i, ro->tracks + i + 1, (--ro->track_count - i) * sizeof *ro->tracks);
        ended--;
    }
}

void track_touch(rollout_t *ro, track_t *t) { ro->is_dirty = t->is_dirty = true; }

void rollout_stir(rollout_t *ro)
{
    for (size_t i = 0; i < ro->track_count; i++) track_touch(ro, ro->tracks[i]);
}

void rollout_knocked(rollout_t *ro, const char *adapter, const uint64_t *served, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        track_t *t = rollout_track(ro, adapter, served[i]);
        if (t) t->has_knocked = true;
    }
}

void rollout_resume(rollout_t *ro, uint64_t now_us)
{
    for (size_t i = 0; i < ro->track_count; i++) {
        track_t *t = ro->tracks[i];
        if (t->has_knocked && t->sourceless_us && t->sourceless_us < now_us) t->sourceless_us = now_us;
        if (t->has_knocked) track_touch(ro, t);
        t->has_knocked = false;
    }
}

/* ---- copies ---- */

static size_t copy_place(const track_t *t, const char *worker, bool *ret_found)
{
    size_t low = 0, high = t->copy_count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (strcmp(t->copies[mid]->worker, worker) < 0) low = mid + 1;
        else high = mid;
    }
    *ret_found = low < t->copy_count && !strcmp(t->copies[low]->worker, worker);
    return low;
}

copy_row_t *track_copy(const track_t *t, const char *worker)
{
    bool found;
    size_t at = copy_place(t, worker, &found);
    return found ? t->copies[at] : NULL;
}

copy_row_t *copy_of(const track_t *t, const member_t *member)
{
    copy_row_t *c = t ? track_copy(t, member->name) : NULL;
    return c && c->token == member->token ? c : NULL;
}

/* What a process keeps of a copy over a new session: that it is waited for, and that it is under way. */
static void renew(copy_row_t *c, const member_t *member)
{
    bool is_eligible = c->token && c->is_eligible && !memcmp(&c->life, &member->life, sizeof c->life);
    free(c->served);
    *c = (copy_row_t){.token = member->token, .life = member->life, .is_eligible = is_eligible};
    error_text(c->worker, sizeof c->worker, member->name);
}

copy_row_t *copy_add(track_t *t, const member_t *member)
{
    bool found;
    size_t at = copy_place(t, member->name, &found);
    if (found && t->copies[at]->token != member->token) renew(t->copies[at], member);
    if (found) return t->copies[at];
    copy_row_t *c = calloc(1, sizeof *c);
    if (!c || !grow(&t->copies, t->copy_count, &t->copy_capacity)) {
        free(c);
        return NULL;
    }
    renew(c, member);
    memmove(t->copies + at + 1, t->copies + at, (t->copy_count++ - at) * sizeof *t->copies);
    t->copies[at] = c;
    return c;
}

void copy_drop(track_t *t, const char *worker)
{
    bool found;
    size_t at = copy_place(t, worker, &found);
    if (!found) return;
    free_copy(t->copies[at]);
    memmove(t->copies + at, t->copies + at + 1, (--t->copy_count - at) * sizeof *t->copies);
}

void copy_move(copy_row_t *c, copy_state_t state, instant_t now)
{
    if (c->state != state) c->since_ms = now.wall_ms;
    c->state = state;
}

void copy_fail(copy_row_t *c, int code, const char *phase, const char *message, instant_t now)
{
    copy_move(c, COPY_FAILED, now);
    copy_blame(c, code, phase, message);
}

void copy_blame(copy_row_t *c, int code, const char *phase, const char *message)
{
    c->code = code;
    error_text(c->phase, sizeof c->phase, phase);
    error_text(c->message, sizeof c->message, message);
}

bool track_has_stale(const track_t *t)
{
    for (size_t i = 0; t && i < t->copy_count; i++)
        if (t->copies[i]->token && t->copies[i]->state == COPY_STALE) return true;
    return false;
}

bool copy_in_flight(const copy_row_t *c) { return c->token && c->state <= COPY_ARRIVED; }

bool copy_holds(const copy_row_t *c)
{
    return c && c->token && c->state >= COPY_STAGED && c->state <= COPY_STALE;
}

const char *copy_phase(const copy_row_t *c)
{
    switch (c->state) {
    case COPY_FETCHING: return "fetch";
    case COPY_ARRIVED: return "stage";
    case COPY_STAGED:
    case COPY_COMMITTED:
    case COPY_ACTIVE:
    case COPY_KEPT:
    case COPY_STALE: return "activate";
    case COPY_FAILED: return c->phase;
    case COPY_NONE:
    case COPY_ANNOUNCED: break;
    }
    return "announce";
}

/* ---- reading ---- */

uint32_t track_present(const track_t *t, bool eligible_only)
{
    uint32_t count = 0;
    for (size_t i = 0; i < t->copy_count; i++)
        count += t->copies[i]->token && (t->copies[i]->is_eligible || !eligible_only);
    return count;
}

uint32_t track_holder_count(const track_t *t)
{
    uint32_t count = 0;
    for (size_t i = 0; t && !t->is_ended && i < t->copy_count; i++) count += copy_holds(t->copies[i]);
    return count;
}

uint32_t track_active_count(const track_t *t)
{
    uint32_t count = 0;
    for (size_t i = 0; t && i < t->copy_count; i++)
        count += t->copies[i]->token && t->copies[i]->state == COPY_ACTIVE;
    return count;
}

bool track_has_source(const track_t *t) { return t && (t->is_served || track_holder_count(t) > 0); }

bool track_is_complete(const track_t *t)
{
    for (size_t i = 0; i < t->copy_count; i++)
        if (t->copies[i]->is_eligible && copy_in_flight(t->copies[i])) return false;
    return track_holder_count(t) > 0;
}

const char *copy_state_name(copy_state_t state)
{
    static const char *const NAMES[] = {"announced", "announced", "fetching", "arrived", "staged",
                                        "committed", "active",    "kept",     "stale",   "failed"};
    return state >= COPY_NONE && state <= COPY_FAILED ? NAMES[state] : "unknown";
}

copy_state_t copy_shown(const copy_row_t *c, const adapter_row_t *a, uint64_t version)
{
    return c->state == COPY_ACTIVE && a->active != version ? COPY_STALE : c->state;
}

const char *copy_shown_name(const track_t *t, const copy_row_t *c, const adapter_row_t *a)
{
    bool had_bytes = c->state >= COPY_STAGED && c->state <= COPY_STALE;
    bool is_served = c->token && c->state == COPY_ACTIVE; /* also of a version that ended */
    if (had_bytes && !is_served && (!c->token || t->is_ended)) return NULL;
    return copy_state_name(copy_shown(c, a, t->version));
}

const char *rollout_state(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v)
{
    const track_t *t = rollout_track(ro, a->name, v->version);
    switch (v->state) {
    case VERSION_SUPERSEDED: return "superseded";
    case VERSION_FAILED: return "failed";
    case VERSION_RETIRED: return "retired";
    case VERSION_STAGING:
        return t && (track_is_complete(t) || (t->is_late && track_holder_count(t))) ? "staged"
                                                                                    : "staging";
    case VERSION_COMMITTED: break;
    }
    if (t && t->is_lost) return "lost";
    return a->active == v->version ? "active" : "kept";
}

bool rollout_is_held(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v)
{
    if (!a->held || v->version < a->active) return false;
    const char *state = rollout_state(ro, a, v);
    return !strcmp(state, "staged") || !strcmp(state, "kept");
}

const version_row_t *rollout_newest_live(const rollout_t *ro, const adapter_row_t *a)
{
    for (size_t i = a->version_count; i-- > 0;) {
        const version_row_t *v = a->versions[i];
        if (v->state == VERSION_STAGING) return v;
        if (v->state == VERSION_COMMITTED && track_has_source(rollout_track(ro, a->name, v->version)))
            return v;
    }
    return NULL;
}

const version_row_t *rollout_awaited(const rollout_t *ro, const adapter_row_t *a, const digest_t *digest)
{
    bool is_newer_awaited = false;
    for (size_t i = ro->is_settled ? 0 : a->version_count; i-- > 0;) {
        const version_row_t *v = a->versions[i];
        if (!registry_is_live(v)) continue;
        bool is_same = digest_equal(&v->digest, digest);
        bool is_back =
            v->state == VERSION_STAGING || track_has_source(rollout_track(ro, a->name, v->version));
        if (is_back) return is_same && is_newer_awaited ? v : NULL;
        if (is_same) return v;
        is_newer_awaited = true;
    }
    return NULL;
}

void rollout_lost_reason(const track_t *t, heddle_error_t *ret_error)
{
    char until[25];
    clock_text(t->lost_ms, until);
    if (t->last_holder[0])
        error_fail(ret_error, HEDDLE_ERR_VERSION_LOST,
                   "nobody holds the bytes of %s@%llu: %s had them last, until %s", t->adapter,
                   (unsigned long long)t->version, t->last_holder, until);
    else
        error_fail(
            ret_error, HEDDLE_ERR_VERSION_LOST,
            "nobody holds the bytes of %s@%llu: no worker brought them back after the broker was started",
            t->adapter, (unsigned long long)t->version);
    error_where(ret_error, t->adapter, t->version, NULL, NULL);
    error_hint(ret_error, "publish it again");
    ret_error->retriable = 0;
}

const track_t *rollout_lost_active(const rollout_t *ro, const adapter_row_t *a)
{
    const track_t *t = a->active ? rollout_track(ro, a->name, a->active) : NULL;
    return t && t->is_lost ? t : NULL;
}

void rollout_held_text(const rollout_t *ro, const adapter_row_t *a, char *ret_text, size_t size)
{
    char since[25];
    clock_text(a->decided_ms, since);
    text_printf(ret_text, size, "%s is held at %s@%llu by %s since %s%s", a->name, a->name,
                (unsigned long long)a->active, a->held_by, since,
                rollout_lost_active(ro, a) ? ", and that version is lost" : "");
}

/* 0: no worker holds any */
static uint64_t newest_on_workers(const rollout_t *ro, const adapter_row_t *a)
{
    for (size_t i = a->version_count; i-- > 0;) {
        const version_row_t *v = a->versions[i];
        if (registry_is_live(v) && track_holder_count(rollout_track(ro, a->name, v->version)))
            return v->version;
    }
    return 0;
}

void rollout_lost_text(const rollout_t *ro, const adapter_row_t *a, char *ret_text, size_t size)
{
    unsigned long long newest = newest_on_workers(ro, a);
    if (a->held) rollout_held_text(ro, a, ret_text, size);
    else
        text_printf(ret_text, size, "no process holds the bytes of %s@%llu, the active version", a->name,
                    (unsigned long long)a->active);
    size_t used = strlen(ret_text);
    char *rest = ret_text + used;
    size -= used;
    if (newest)
        text_printf(rest, size, ": `heddle activate %s@%llu` serves the newest that is there", a->name,
                    newest);
    else if (a->held) text_printf(rest, size, ": publish again, then activate the new version");
    else text_printf(rest, size, ": publish again");
}

/* Does this copy count for the version's rollout, and did it get there? */
static bool counts(const copy_row_t *c, bool any_eligible)
{
    return c->is_eligible || (!any_eligible && c->token);
}

static bool is_there(const copy_row_t *c, const version_row_t *v)
{
    return v->decision ? c->has_reached : copy_holds(c);
}

/* Why one that said nothing itself is missing: its time was over, or the version ended for another reason. */
static int missing_code(const track_t *t, const version_row_t *v)
{
    bool is_its_own = v->code == HEDDLE_ERR_DEADLINE || v->code == HEDDLE_ERR_NO_WORKERS ||
                      v->code == HEDDLE_ERR_VERSION_LOST;
    if (t->is_ended) return is_its_own ? v->code : HEDDLE_ERR_VERSION_FAILED;
    return t->is_late ? HEDDLE_ERR_DEADLINE : HEDDLE_OK;
}

static void say_where(const copy_row_t *c, const version_row_t *v, char *text, size_t size)
{
    switch (c->state) {
    case COPY_NONE:
    case COPY_ANNOUNCED: text_printf(text, size, "has not begun to fetch"); break;
    case COPY_FETCHING:
        text_printf(text, size, "%llu of %llu bytes fetched", (unsigned long long)c->bytes_done,
                    (unsigned long long)v->data_bytes);
        break;
    case COPY_ARRIVED: text_printf(text, size, "has all bytes, and has not said that it loaded them"); break;
    case COPY_COMMITTED: text_printf(text, size, "has not said that it switched"); break;
    default: text_printf(text, size, "is %s", copy_state_name(c->state)); break;
    }
}

static void tell_missing(const track_t *t, const copy_row_t *c, const version_row_t *v,
                         missing_row_t *row)
{
    *row = (missing_row_t){.worker = c->worker,
                           .phase = c->token ? copy_phase(c) : c->phase,
                           .code = c->code ? c->code : missing_code(t, v)};
    if (c->code) {
        text_printf(row->message, sizeof row->message, "%s", c->message);
        return;
    }
    say_where(c, v, row->message, sizeof row->message);
    size_t used = strlen(row->message);
    if (row->code == HEDDLE_ERR_DEADLINE)
        text_printf(row->message + used, sizeof row->message - used, " within %llu ms",
                    (unsigned long long)v->asked_ms);
    else if (row->code)
        text_printf(row->message + used, sizeof row->message - used, " when the version ended");
}

rollout_sum_t rollout_sum(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v,
                          missing_row_t *rows, uint32_t cap)
{
    rollout_sum_t sum = {.state = rollout_state(ro, a, v),
                         .decision = v->decision,
                         .activation = v->activation,
                         .deadline_ms = v->asked_ms,
                         .code = v->code};
    const track_t *t = rollout_track(ro, a->name, v->version);
    if (!t) return sum;
    if (rollout_is_held(ro, a, v)) sum.code = HEDDLE_ERR_HELD;
    if (t->is_lost) sum.code = HEDDLE_ERR_VERSION_LOST;
    bool any_eligible = track_present(t, true) > 0;
    sum.eligible = track_present(t, true);
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        if (!counts(c, any_eligible)) continue;
        sum.staged += copy_holds(c) || (c->token && c->has_reached);
        sum.active += c->token && c->has_reached;
        if (is_there(c, v)) continue;
        if (sum.missing_count < cap) tell_missing(t, c, v, &rows[sum.missing_count]);
        sum.missing_count++;
    }
    return sum;
}
