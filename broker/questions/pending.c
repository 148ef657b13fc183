/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/pending.h"

#include "broker/registry/active.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/listing.h"
#include "core/units.h"

#include <stdlib.h>
#include <utlist.h>

#define WAIT_DEADLINE_MS 30000u /* of a wait or a verification that names none */
#define ACTIVATE_DEADLINE_MS 10000u

/* ---- rows ---- */

void pending_init(pending_t *p) { *p = (pending_t){0}; }

void pending_drop(pending_t *p, pending_row_t *row)
{
    DL_DELETE(p->rows, row);
    p->count--;
    free(row->workers);
    free(row->rows);
    free(row);
}

void pending_fini(pending_t *p)
{
    while (p->rows) pending_drop(p, p->rows);
}

static size_t count_of_peer(const pending_t *p, uint64_t peer)
{
    size_t count = 0;
    for (const pending_row_t *row = p->rows; row; row = row->next) count += row->peer == peer;
    return count;
}

/* Of one key, or (key NULL) of all that are no admin's. */
static size_t count_of_key(const pending_t *p, const char *key)
{
    size_t count = 0;
    for (const pending_row_t *row = p->rows; row; row = row->next)
        count += row->key[0] && (!key || !strcmp(row->key, key));
    return count;
}

/* Whose places are all taken, and how many those are; NULL: there is one. */
static const char *refused_by(const pending_t *p, const pending_asker_t *asker, uint32_t *ret_most)
{
    *ret_most = PENDING_PER_PEER;
    if (count_of_peer(p, asker->peer) >= *ret_most) return " on this connection";
    *ret_most = PENDING_PER_KEY;
    if (asker->key && count_of_key(p, asker->key) >= *ret_most) return " under this key";
    *ret_most = LIMIT_PENDING_QUERIES - PENDING_FOR_ADMINS;
    if (asker->key && count_of_key(p, NULL) >= *ret_most) return " under keys without the role admin";
    *ret_most = LIMIT_PENDING_QUERIES;
    return p->count >= *ret_most ? "" : NULL;
}

/* True only for limits that connections share: there a connection that has ended may hold a place. */
bool pending_is_full(const pending_t *p, const pending_asker_t *asker)
{
    uint32_t most;
    return refused_by(p, asker, &most) && most != PENDING_PER_PEER;
}

int pending_add(pending_t *p, pending_kind_t kind, const pending_asker_t *asker, pending_row_t **ret_row,
                heddle_error_t *error)
{
    uint32_t most;
    const char *whose = refused_by(p, asker, &most);
    if (whose) {
        int rc = error_fail(error, HEDDLE_ERR_LIMIT, "too many questions wait for an answer%s", whose);
        error_expected(error, "at most %u", most);
        error_hint(error, "try again when other questions have been answered");
        if (error) error->retriable = 1;
        return rc;
    }
    pending_row_t *row = calloc(1, sizeof *row);
    if (!row) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for another question");
    row->kind = kind;
    row->id = ++p->last_id;
    row->peer = asker->peer;
    row->req = asker->req;
    error_text(row->key, sizeof row->key, asker->key ? asker->key : "");
    DL_APPEND(p->rows, row);
    p->count++;
    *ret_row = row;
    return HEDDLE_OK;
}

void pending_drop_peer(pending_t *p, uint64_t peer)
{
    pending_row_t *row, *next;
    DL_FOREACH_SAFE(p->rows, row, next)
    if (row->peer == peer) pending_drop(p, row);
}

/* Questions of one connection are nearly always neighbours, so each connection is probed about once. */
void pending_drop_gone(pending_t *p, bool (*is_gone)(void *self, uint64_t peer), void *self)
{
    bool is_last_gone = false, is_first = true;
    uint64_t last = 0;
    pending_row_t *row, *next;
    DL_FOREACH_SAFE(p->rows, row, next)
    {
        if (is_first || row->peer != last) is_last_gone = is_gone(self, row->peer);
        is_first = false;
        last = row->peer;
        if (is_last_gone) pending_drop(p, row);
    }
}

bool pending_has_peer(const pending_t *p, uint64_t peer) { return count_of_peer(p, peer) > 0; }

/* A question may end while its transaction is open, so it is found by its number and not by a pointer. */
pending_row_t *pending_by_id(const pending_t *p, uint64_t id)
{
    for (pending_row_t *row = p->rows; row; row = row->next)
        if (row->id == id) return row;
    return NULL;
}

uint64_t pending_deadline(const pending_t *p)
{
    uint64_t first = CLOCK_NEVER;
    for (const pending_row_t *row = p->rows; row; row = row->next)
        if (row->deadline_us < first) first = row->deadline_us;
    return first;
}

/* ---- the question ---- */

int pending_set_wait(pending_row_t *row, const msg_query_t *q, view_t v, heddle_error_t *error)
{
    int rc = name_check("adapter", q->name, error);
    if (rc) return rc;

    /* A question may name only an adapter.  Then it is about the newest version, or about the active one
     * where what is served matters. */
    const adapter_row_t *a = registry_adapter(v.registry, q->name);
    const version_row_t *newest = a ? registry_newest(a) : NULL;
    error_text(row->adapter, sizeof row->adapter, q->name);
    uint64_t meant = newest ? newest->version : 0;
    bool means_active = row->kind == PENDING_VERIFY || row->aim != AIM_VERSION;
    if (means_active && a && active_latest(a)) meant = active_latest(a);
    row->named = q->version;
    row->version = q->version ? q->version : meant;
    if (!newest) return registry_fail_unknown(v.registry, q->name, row->version, NULL, error);
    if (row->version > a->last_version) return registry_fail_unpublished(a, row->version, NULL, error);

    /* Names are sorted, and each is kept once: a worker that is named twice counts once. */
    if (q->worker_count) row->workers = calloc(q->worker_count, sizeof *row->workers);
    if (q->worker_count && !row->workers)
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the names of %u workers",
                          q->worker_count);
    for (uint32_t i = 0; i < q->worker_count; i++) {
        rc = name_check("worker", q->workers[i], error);
        if (rc) return rc;
        error_text(row->workers[i], sizeof row->workers[i], q->workers[i]);
    }
    if (q->worker_count)
        qsort(row->workers, q->worker_count, sizeof *row->workers,
              (int (*)(const void *, const void *))strcmp);
    for (uint32_t i = 0; i < q->worker_count; i++)
        if (!row->worker_count || strcmp(row->workers[row->worker_count - 1], row->workers[i]))
            memmove(row->workers[row->worker_count++], row->workers[i], sizeof *row->workers);

    uint64_t default_ms = row->kind == PENDING_ACTIVATE ? ACTIVATE_DEADLINE_MS : WAIT_DEADLINE_MS;
    uint64_t deadline_ms = q->deadline_ms ? q->deadline_ms : default_ms;
    row->asked_us = v.now.us;
    row->deadline_us = row->asked_us + deadline_ms * 1000;
    row->asked_ms = q->asked_ms ? q->asked_ms : deadline_ms;
    row->phase = q->phase == HEDDLE_PHASE_STAGED && row->kind == PENDING_WAIT ? HEDDLE_PHASE_STAGED
                                                                              : HEDDLE_PHASE_ACTIVE;
    row->quorum.kind = q->quorum_kind; /* a decoder refuses what is above HEDDLE_QUORUM_NONE */
    row->quorum.n = (uint32_t)q->quorum_n;
    row->min = q->min ? (uint32_t)q->min : 1;
    row->exact = q->exact;
    row->dry_run = q->dry_run;
    error_text(row->by, sizeof row->by, q->by && *q->by ? q->by : "unknown");
    return HEDDLE_OK;
}

/* ---- which workers count ---- */

/* What a question looks at to see how far the workers are. */
typedef struct {
    const pending_row_t *row;
    const rollout_t *ro;
    const adapter_row_t *a;
    const track_t *t; /* of the version asked for; NULL: none */
    view_t v;
    uint64_t reached_at; /* the decision by which the version is reached or overtaken; 0: none yet */
} wait_scope_t;

/* What one worker serves, and whether that answers the question: it is the version asked for, or the
 * worker went on to a later decision. */
static void see_worker(const wait_scope_t *w, const member_t *m, wait_row_t *ret)
{
    const pending_row_t *row = w->row;
    const adapter_row_t *a = w->a;
    const member_sub_t *sub = member_sub(m, row->adapter);
    const copy_row_t *c = copy_of(w->t, m), *shown = c;
    /* A version that has ended is on its way to no worker. What a copy was at the end outlives its
     * session. */
    bool has_ended = w->t && track_is_ended(w->t);
    if (has_ended && !shown) shown = copy_find(w->t, m->name);
    bool overtaken = !row->exact && !row->dry_run && w->reached_at && sub->serving.decision >= w->reached_at;
    overtaken = overtaken && !sub->serving.is_refused;
    /* A version that is activated again counts as served only after the worker reported that decision:
     * before, it may have been switching to another one. */
    uint64_t active = active_for(a, m);
    bool is_served = sub->serving.version == row->version && !sub->serving.is_refused &&
                     (sub->serving.version != active || sub->serving.decision >= a->decision);
    bool is_staged_phase = row->phase == HEDDLE_PHASE_STAGED;
    const copy_row_t *served =
        sub->serving.version ? copy_of(track_find(w->ro, a->name, sub->serving.version), m) : NULL;
    /* The worker refused the version, and will not try again without another decision. */
    *ret = (wait_row_t){
        .member = m,
        .copy = shown,
        .worker = m->name,
        .version = sub->serving.version,
        .decision = sub->serving.decision,
        .since_ms = sub->serving.since_ms,
        .state = served ? summary_copy_state(served, active, sub->serving.version) : COPY_NONE,
        .phase = shown       ? copy_phase(shown)
                 : has_ended ? ""
                             : "announce",
        .code = shown ? shown->code : 0,
        .message = shown && shown->code ? copy_message(shown) : "",
        .is_refused = (c && c->code && !c->retry_us && (c->state == COPY_REFUSED || c->state == COPY_FAILED)),
        .heartbeat_age_ms = member_silent_ms(m, w->v.now.us)};
    ret->is_reached = !m->is_gone && (overtaken || (is_staged_phase ? copy_holds(c) : is_served));
    if (!is_staged_phase || !copy_holds(c)) return;
    ret->version = row->version;
    ret->since_ms = c->since_ms;
    ret->state = summary_copy_state(c, active, row->version);
}

/* Looks at the workers that the question names, or at all READY subscribers. */
int wait_view(const pending_row_t *row, const rollout_t *ro, view_t v, wait_view_t *ret_view)
{
    const adapter_row_t *a = registry_adapter(v.registry, row->adapter);
    const version_row_t *version = a ? registry_version(a, row->version) : NULL;
    const track_t *t = track_find(ro, row->adapter, row->version);
    size_t most = row->worker_count ? row->worker_count : v.members->worker_count;
    wait_row_t *rows = calloc(most + 1, sizeof *rows);
    if (!rows) return HEDDLE_ERR_NO_MEMORY;
    wait_scope_t scope = {row, ro, a, t, v, version ? registry_reached_at(a, version) : 0};
    uint32_t count = row->worker_count, have = 0, draining = 0;
    for (uint32_t i = 0; i < row->worker_count; i++) {
        const member_t *m = membership_worker(v.members, row->workers[i]);
        if (member_subscribes(m, row->adapter)) see_worker(&scope, m, &rows[i]);
        else
            rows[i] = (wait_row_t){.member = m, /* lost, leaving, or of another adapter: known for all that */
                                   .worker = row->workers[i],
                                   .phase = "announce",
                                   .code = HEDDLE_ERR_NOT_FOUND,
                                   .heartbeat_age_ms = m ? member_silent_ms(m, v.now.us) : 0};
    }
    for (size_t i = 0; !row->worker_count && i < v.members->worker_count; i++) {
        const member_t *m = v.members->workers[i];
        bool counts = member_subscribes(m, row->adapter) && !member_is_draining(m);
        if (counts) see_worker(&scope, m, &rows[count++]);
        else draining += member_is_draining(m) && member_subscribes(m, row->adapter);
    }
    for (uint32_t i = 0; i < count; i++) have += rows[i].is_reached;
    bool is_none = row->quorum.kind == HEDDLE_QUORUM_NONE;
    *ret_view = (wait_view_t){.rows = rows,
                              .count = count,
                              .have = have,
                              .eligible = count,
                              .draining = draining,
                              .need = is_none ? 0 : units_quorum_need(row->quorum, count, row->min)};
    return HEDDLE_OK;
}

void wait_view_fini(wait_view_t *w)
{
    free(w->rows);
    *w = (wait_view_t){0};
}

/* ---- how it ends ---- */

/* The version failed, or it ended without an error: retired or superseded.  NULL: it is not remembered. */
static int version_ended(const pending_row_t *row, const rollout_t *ro, const adapter_row_t *a,
                         const version_row_t *v, heddle_error_t *error)
{
    if (!v)
        return registry_fail_unremembered(HEDDLE_ERR_VERSION_LOST, row->adapter, row->version, NULL, error);
    if (v->state == VERSION_FAILED) {
        heddle_error_t reason;
        char name[HEDDLE_NAME_MAX + 24];
        decision_end_reason(a, v, &reason);
        text_printf(name, sizeof name, "%s@%llu", row->adapter, (unsigned long long)row->version);
        bool names_itself = strstr(reason.message, name) != NULL;
        int rc = error_fail(error, HEDDLE_ERR_VERSION_FAILED, "%s%s%s", names_itself ? "" : name,
                            names_itself ? "" : " failed: ", reason.message);
        error_where(error, row->adapter, row->version, reason.worker[0] ? reason.worker : NULL,
                    reason.phase[0] ? reason.phase : NULL);
        bool is_newest_meant =
            !row->named && active_latest(a); /* the caller did not know that one had failed */
        if (is_newest_meant && summary_lost_active(ro, a))
            error_hint(error, "`heddle versions %s` shows where it ended; publish again", name);
        else if (is_newest_meant)
            error_hint(error,
                       "`heddle versions %s` shows where it ended; `heddle wait %s@%llu` waits for the "
                       "active version",
                       name, row->adapter, (unsigned long long)active_latest(a));
        else error_hint(error, "`heddle versions %s` shows where it ended", name);
        return rc;
    }
    bool is_superseded = v->state == VERSION_SUPERSEDED;
    int rc = is_superseded ? error_fail(error, HEDDLE_ERR_VERSION_FAILED, "%s@%llu ended: %s", row->adapter,
                                        (unsigned long long)row->version,
                                        v->message[0] ? v->message : "superseded by a newer version")
                           : error_fail(error, HEDDLE_ERR_VERSION_LOST,
                                        "%s@%llu was retired: no process holds its bytes any more",
                                        row->adapter, (unsigned long long)row->version);
    error_where(error, row->adapter, row->version, NULL, NULL);
    error_contrast(error, "a version that is staged, active or kept",
                   is_superseded ? "superseded" : "retired");
    error_hint(error, "publish its bytes again to serve them");
    return rc;
}

/* The hint depends on what is missing: any worker at all, enough workers, or their switch. */
static void ran_out(const pending_row_t *row, const rollout_t *ro, const adapter_row_t *a,
                    const wait_view_t *w, heddle_error_t *error)
{
    error_fail(error, w->eligible ? HEDDLE_ERR_DEADLINE : HEDDLE_ERR_NO_WORKERS,
               "%u of %u needed worker%s %s %s@%llu in time", w->have, w->need, w->need == 1 ? "" : "s",
               row->phase == HEDDLE_PHASE_STAGED ? "staged" : "activated", row->adapter,
               (unsigned long long)row->version);
    error_where(error, row->adapter, row->version, NULL,
                row->phase == HEDDLE_PHASE_STAGED ? "stage" : "activate");
    error_expected(error, "%u worker%s within %llu ms", w->need, w->need == 1 ? "" : "s",
                   (unsigned long long)row->asked_ms);
    error_found(error, "%u", w->have);
    if (w->eligible == 0 && w->draining)
        error_hint(error,
                   "%u worker%s of it drain%s, and count%s no more: start another one (`heddle worker "
                   "--adapter %.128s`)",
                   w->draining, w->draining == 1 ? "" : "s", w->draining == 1 ? "s" : "",
                   w->draining == 1 ? "s" : "", row->adapter);
    else if (w->eligible == 0)
        error_hint(error,
                   "no worker subscribes to it: start `heddle worker --adapter %.128s`, or the engine plug "
                   "(python -m heddle.engine)",
                   row->adapter);
    else if (w->eligible < w->need)
        error_hint(
            error,
            "%u ready worker%s subscribe%s to it: start more (`heddle worker --adapter %.128s`), or ask for "
            "fewer",
            w->eligible, w->eligible == 1 ? "" : "s", w->eligible == 1 ? "s" : "", row->adapter);
    else
        error_hint(error,
                   "`heddle workers` and `heddle versions %.128s@%llu` show which workers lag, and why",
                   row->adapter, (unsigned long long)row->version);
    /* Where no worker lags, the version was not announced yet, because another one goes first. */
    char text[SUMMARY_NOTE_TEXT];
    const version_row_t *v = registry_version(a, row->version);
    if (!w->eligible || !v) return;
    if (summary_queued_text(ro, a, v, text)) {
        error_found(error, "%u; %s", w->have, text);
        error_hint(error, "`heddle versions %.128s@%llu` shows how far that one is", row->adapter,
                   (unsigned long long)registry_staging(a)->version);
    } else if (row->phase == HEDDLE_PHASE_ACTIVE && v->state == VERSION_STAGING && a->held) {
        summary_held_text(ro, a, text, sizeof text);
        error_found(error, "%u; %s", w->have, text);
        error_hint(error, "`heddle resume %.128s` ends the hold", row->adapter);
    } else if (row->phase == HEDDLE_PHASE_ACTIVE && summary_awaits_operator(ro, a, v)) {
        error_found(error, "%u; it is staged, and its activation is manual", w->have);
        error_hint(error, "`heddle activate %.128s@%llu` makes it the one to serve", row->adapter,
                   (unsigned long long)row->version);
    } else if (active_latest(a) != v->version && summary_lost_active(ro, a)) {
        heddle_error_t lost;
        summary_lost_reason(summary_lost_active(ro, a), &lost);
        error_found(error, "%u; %s", w->have, lost.message);
    }
}

/* While the broker settles, its members and their copies are not known yet. */
static int too_early(const pending_row_t *row, const char *done, const char *phase, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_DEADLINE,
               "%s@%llu was not %s: the broker started a moment ago and waits for its members", row->adapter,
               (unsigned long long)row->version, done);
    error_where(error, row->adapter, row->version, NULL, phase);
    error_hint(error, "ask again, with an opts.deadline_ms longer than the lease");
    return error->code;
}

/* True when the version can never be reached: it has ended, it is lost, or the adapter is held.  The
 * question is answered at once, and not at its deadline. */
static bool is_hopeless(const pending_row_t *row, const rollout_t *ro, const adapter_row_t *a,
                        heddle_error_t *ret_verdict)
{
    const version_row_t *v = registry_version(a, row->version);
    /* A later decision counts in its place, unless its bytes are lost: then no worker reaches that one. */
    bool is_overtaken = v && !row->exact && (v->decision || v->state == VERSION_SUPERSEDED) &&
                        active_latest(a) != v->version && !summary_lost_active(ro, a);
    bool is_ended = !v || !registry_is_live(v);
    if (is_ended && !is_overtaken) {
        version_ended(row, ro, a, v, ret_verdict);
        return true;
    }
    const track_t *t = track_find(ro, row->adapter, row->version);
    if (t && t->bytes == BYTES_LOST && !is_overtaken) {
        summary_lost_reason(t, ret_verdict);
        return true;
    }
    bool is_held_back = row->phase == HEDDLE_PHASE_ACTIVE && v && summary_is_held_back(ro, a, v);
    if (!is_held_back || is_overtaken) return false;
    /* The hint names the command that ends this wait.  `resume` activates the newest version, so it helps
     * unless exactly another version is asked for. */
    char text[512];
    const char *state = summary_state(ro, a, v);
    summary_held_text(ro, a, text, sizeof text);
    error_fail(ret_verdict, HEDDLE_ERR_HELD, "%s@%llu is %s, but %s", row->adapter,
               (unsigned long long)row->version, state, text);
    error_where(ret_verdict, row->adapter, row->version, NULL, "activate");
    bool is_newest = row->version == a->last_version;
    if (is_newest || !row->exact)
        error_hint(ret_verdict, "`heddle resume %.128s` ends the hold", row->adapter);
    else
        error_hint(ret_verdict, "`heddle activate %.128s@%llu` makes it the one to serve", row->adapter,
                   (unsigned long long)row->version);
    return true;
}

/* True when every worker has answered, and so many refused the version that too few are left. */
static bool is_refused_by_all(const pending_row_t *row, const wait_view_t *w, const adapter_row_t *a,
                              heddle_error_t *ret_verdict)
{
    uint32_t refused = 0;
    const wait_row_t *first = NULL;
    for (uint32_t i = 0; i < w->count; i++) {
        const wait_row_t *r = &w->rows[i];
        if (r->is_reached) continue;
        if (!r->is_refused) return false;
        if (!first) first = r;
        refused++;
    }
    if (!refused || active_latest(a) != row->version || w->have + refused < w->need) return false;
    error_fail(ret_verdict, HEDDLE_ERR_VERSION_FAILED, "%s@%llu was refused by %s: %s", row->adapter,
               (unsigned long long)row->version, first->worker, first->message);
    error_where(ret_verdict, row->adapter, row->version, first->worker, first->phase);
    error_expected(ret_verdict, "%u worker%s", w->need, w->need == 1 ? "" : "s");
    error_found(ret_verdict, "%u, and %u that refused", w->have, refused);
    error_hint(ret_verdict, "fix the reported problem, then `heddle activate %.128s@%llu` makes them retry",
               row->adapter, (unsigned long long)row->version);
    return true;
}

/* While the broker settles a question is never answered before its deadline, because workers that have the
 * version may still come back. */
static bool wait_is_over(const pending_row_t *row, const rollout_t *ro, view_t v, heddle_error_t *ret_verdict)
{
    const adapter_row_t *a = registry_adapter(v.registry, row->adapter);
    const version_row_t *version = registry_version(a, row->version);
    wait_view_t w;
    if (version && version->state == VERSION_FAILED) { /* also when enough had staged it */
        version_ended(row, ro, a, version, ret_verdict);
        return true;
    }
    if (wait_view(row, ro, v, &w)) {
        error_fail(ret_verdict, HEDDLE_ERR_NO_MEMORY, "no memory to look at the workers");
        return true;
    }
    bool is_reached = ro->is_settled && w.have >= w.need;
    bool is_over = is_reached || (ro->is_settled && is_hopeless(row, ro, a, ret_verdict));
    is_over = is_over || (ro->is_settled && is_refused_by_all(row, &w, a, ret_verdict));
    if (!is_over && v.now.us >= row->deadline_us) {
        bool is_staging = row->phase == HEDDLE_PHASE_STAGED;
        if (ro->is_settled) ran_out(row, ro, a, &w, ret_verdict);
        else
            too_early(row, is_staging ? "found staged" : "found active", is_staging ? "stage" : "activate",
                      ret_verdict);
        is_over = true;
    }
    wait_view_fini(&w);
    return is_over;
}

/* An activation that is decided waits like a wait does.  Before, only its deadline can end it. */
static bool activate_is_over(const pending_row_t *row, const rollout_t *ro, view_t v,
                             heddle_error_t *ret_verdict)
{
    if (row->is_decided) return row->dry_run || !row->version || wait_is_over(row, ro, v, ret_verdict);
    if (v.now.us < row->deadline_us) return false;
    if (ro->is_settled) {
        /* The store has not confirmed its record, or that of another transaction before it. */
        error_fail(ret_verdict, HEDDLE_ERR_DEADLINE,
                   "%s@%llu was not activated: the registry's store has not confirmed it within %llu ms",
                   row->adapter, (unsigned long long)row->version, (unsigned long long)row->asked_ms);
        error_where(ret_verdict, row->adapter, row->version, NULL, "commit");
        error_hint(ret_verdict, "`heddle versions %.128s` shows whether it was recorded later", row->adapter);
    } else too_early(row, "activated", "activate", ret_verdict);
    return true;
}

/* What is wrong at one holder, the worst last. */
typedef enum {
    FOUND_NOTHING,
    FOUND_SILENT,
    FOUND_NOT_WHOLE,
    FOUND_OTHER_FILES,
    FOUND_MANIFEST,
    FOUND_MEMORY
} found_t;

static found_t found_at(const verify_row_t *r)
{
    if (!verify_row_has_digest(r))
        return r->code == HEDDLE_ERR_DIGEST_MISMATCH ? FOUND_MANIFEST : FOUND_SILENT;
    if (!r->is_match) return FOUND_MEMORY;
    if (r->exported != EXPORTED_DIFFERS) return FOUND_NOTHING;
    return r->code ? FOUND_NOT_WHOLE : FOUND_OTHER_FILES;
}

/* "w3, in its memory; w1, in its exported directory": the worst first, and within a kind in the order of the
 * answer. */
static const char *name_findings(const pending_row_t *row, char *ret_text, size_t size)
{
    static const char *const WHERE[] = {[FOUND_NOT_WHOLE] = "exported directory, which is incomplete",
                                        [FOUND_OTHER_FILES] = "exported directory",
                                        [FOUND_MANIFEST] = "memory (the manifest alone)",
                                        [FOUND_MEMORY] = "memory"};
    listing_t list = {.text = ret_text, .size = size, .most = 4, .between = "; "};
    for (int kind = FOUND_MEMORY; kind >= FOUND_NOT_WHOLE; kind--)
        for (uint32_t i = 0; i < row->row_count; i++)
            if ((int)found_at(&row->rows[i]) == kind)
                listing_add(&list, "%s, in its %s", row->rows[i].worker, WHERE[kind]);
    return listing_text(&list);
}

static bool verify_is_over(const pending_row_t *row, uint64_t now_us, heddle_error_t *ret_verdict)
{
    if (!row->verify_req) {
        if (now_us < row->deadline_us) return false;
        too_early(row, "verified", "verify", ret_verdict);
        return true;
    }
    uint32_t silent = 0, differ = 0;
    const verify_row_t *worst = NULL; /* the error is about it; of several as bad, the first */
    for (uint32_t i = 0; i < row->row_count; i++) {
        const verify_row_t *r = &row->rows[i];
        found_t found = found_at(r);
        silent += found == FOUND_SILENT;
        differ += found > FOUND_SILENT;
        if (found && (!worst || found > found_at(worst))) worst = r;
        if (!r->is_answered && now_us < row->deadline_us) return false;
    }
    if (!worst) return true;
    char expected[HEDDLE_DIGEST_TEXT], found[HEDDLE_DIGEST_TEXT];
    digest_text(&row->expected, expected);
    digest_text(&worst->digest, found);
    if (differ) {
        char findings[sizeof ret_verdict->message];
        error_fail(ret_verdict, HEDDLE_ERR_DIGEST_MISMATCH,
                   "%u of %u holders have other bytes as %s@%llu: %s", differ, row->row_count, row->adapter,
                   (unsigned long long)row->version, name_findings(row, findings, sizeof findings));
    } else {
        error_fail(ret_verdict, HEDDLE_ERR_DEADLINE, "%u of %u holders of %s@%llu gave no digest", silent,
                   row->row_count, row->adapter, (unsigned long long)row->version);
    }
    error_where(ret_verdict, row->adapter, row->version, worst->worker, "verify");
    const char *shown = NULL, *hint = NULL;
    switch (found_at(worst)) {
    case FOUND_MEMORY:
    case FOUND_MANIFEST:
        shown = found_at(worst) == FOUND_MEMORY ? found : "tensors with that digest, and another manifest";
        hint = "%.128s: end that worker; it fetches the version again when it is back";
        break;
    case FOUND_OTHER_FILES:
    case FOUND_NOT_WHOLE:
        shown = worst->code ? "no directory that can be read as an adapter"
                            : "other files in the exported directory";
        hint = "%.128s tries now to write its directory again; verify once more, and where it stays see "
               "export.damaged in its log";
        break;
    case FOUND_SILENT:
    case FOUND_NOTHING:
        shown = worst->code ? heddle_err_name(worst->code) : "no answer";
        hint = "`heddle workers %.128s` shows its state";
        break;
    }
    error_contrast(ret_verdict, expected, shown);
    bool is_none_good = found_at(worst) >= FOUND_MANIFEST && differ == row->row_count && differ > 1;
    if (is_none_good)
        error_hint(ret_verdict,
                   "no worker has good bytes of it: `heddle rollback %.128s` serves the version before, and "
                   "publishing it again makes a new one",
                   row->adapter);
    else error_hint(ret_verdict, hint, worst->worker);
    return true;
}

bool pending_is_over(const pending_row_t *row, const rollout_t *ro, view_t v, const events_t *ev,
                     heddle_error_t *ret_verdict)
{
    *ret_verdict = (heddle_error_t){0};
    switch (row->kind) {
    case PENDING_WAIT: return wait_is_over(row, ro, v, ret_verdict);
    case PENDING_ACTIVATE: return activate_is_over(row, ro, v, ret_verdict);
    case PENDING_VERIFY: return verify_is_over(row, v.now.us, ret_verdict);
    case PENDING_EVENTS: {
        events_filter_t f = {.epoch = row->epoch,
                             .after = row->after,
                             .adapter = row->adapter,
                             .worker = row->worker};
        return v.now.us >= row->deadline_us || events_ready(ev, &f);
    }
    }
    return true;
}

/* ---- verify ---- */

int pending_ask_verify(pending_t *p, pending_row_t *row, const rollout_t *ro, view_t v, outbox_t *out,
                       heddle_error_t *error)
{
    const track_t *t = track_find(ro, row->adapter, row->version);
    if (!track_holder_count(t)) {
        int rc = error_fail(error, HEDDLE_ERR_VERSION_LOST, "no worker holds the bytes of %s@%llu",
                            row->adapter, (unsigned long long)row->version);
        error_where(error, row->adapter, row->version, NULL, NULL);
        error_hint(error, "publish it again");
        return rc;
    }
    row->rows = calloc(t->copy_count, sizeof *row->rows);
    if (!row->rows)
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for %zu answers", t->copy_count);
    row->verify_req = ++p->verify_req;
    for (size_t i = 0; i < t->copy_count; i++) {
        const copy_row_t *c = t->copies[i];
        const member_t *m = copy_holds(c) ? membership_by_token(v.members, c->token) : NULL;
        if (!m) continue;
        verify_row_t *answer = &row->rows[row->row_count++];
        *answer = (verify_row_t){.token = m->token};
        error_text(answer->worker, sizeof answer->worker, c->worker);
        msg_t msg = {.type = MSG_VERIFY};
        msg.verify = (msg_verify_t){.token = m->token,
                                    .req = row->verify_req,
                                    .version = row->version,
                                    .adapter = row->adapter};
        outbox_send(out, m->peer, &msg);
    }
    return HEDDLE_OK;
}

static verify_row_t *row_of(const pending_row_t *row, uint64_t token)
{
    for (uint32_t i = 0; i < row->row_count; i++)
        if (row->rows[i].token == token && !row->rows[i].is_answered) return &row->rows[i];
    return NULL;
}

/* A worker sends a code also where only its exported directory differs; its bytes then have a digest all
 * the same. */
bool verify_row_has_digest(const verify_row_t *r)
{
    return r->is_answered && (!r->code || r->exported == EXPORTED_DIFFERS);
}

void pending_verified(pending_t *p, const member_t *member, const msg_verified_t *m)
{
    pending_row_t *row = p->rows;
    while (row && !(row->kind == PENDING_VERIFY && row->verify_req == m->req)) row = row->next;
    verify_row_t *r = row ? row_of(row, member->token) : NULL;
    if (!r) return; /* it came too late */
    r->is_answered = true;
    r->code = m->code && *m->code ? heddle_err_from_name(m->code) : HEDDLE_OK;
    r->digest = m->digest;
    r->hash_us = m->hash_us;
    r->exported = (exported_t)m->exported;
    r->is_match = verify_row_has_digest(r) && digest_equal(&m->digest, &row->expected);
}

/* A holder that is gone counts as one that gave no digest, so that the question does not wait for its
 * deadline. */
void pending_member_gone(pending_t *p, uint64_t token)
{
    for (pending_row_t *row = p->rows; row; row = row->next) {
        verify_row_t *r = row_of(row, token);
        if (!r) continue;
        r->is_answered = true;
        r->code = HEDDLE_ERR_UNAVAILABLE;
    }
}
