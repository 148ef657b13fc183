/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/registry/decision.h"

#include "broker/registry/active.h"
#include "core/errors.h"
#include "core/limits.h"

/* ---- decisions ---- */

uint64_t decision_next(const adapter_row_t *a)
{
    return (a->decision > a->floor_decision ? a->decision : a->floor_decision) + 1;
}

/* The scope is everyone, unless the caller changes it. */
static record_t *add_decision(const adapter_row_t *a, uint64_t version, bool held, const char *by,
                              instant_t now, outbox_t *out)
{
    record_t *rec = outbox_record(out, RECORD_DECISION, a->name, now);
    rec->decision = decision_next(a);
    rec->version = version;
    rec->held = held;
    rec->by = by ? by : "";
    rec->scope = SCOPE_EVERYONE;
    return rec;
}

void decision_by_rule(const adapter_row_t *a, const version_row_t *v, scope_t scope, instant_t now,
                      outbox_t *out)
{
    add_decision(a, v->version, false, "", now, out)->scope = scope;
}

/* Members know greater decisions than the one that is active here.  Workers ignore it until it is made
 * again with a greater number. */
bool decision_is_behind(const adapter_row_t *a)
{
    return active_latest(a) && a->floor_decision > a->decision;
}

void decision_renew(const adapter_row_t *a, instant_t now, outbox_t *out)
{
    add_decision(a, active_latest(a), a->held, a->held_by, now, out)->scope = a->scope;
}

/* One transaction has one FLOOR for each adapter, which takes the greatest numbers, and one ADAPTER. */
bool decision_raise_floor(const registry_t *r, const char *adapter, uint64_t version, uint64_t decision,
                          instant_t now, outbox_t *out)
{
    bool is_known = registry_adapter(r, adapter) != NULL;
    record_t *rec = NULL;
    if (!outbox_has_room(out, 2)) return false;
    for (int i = 0; i < out->record_count; i++) {
        record_t *other = &out->records[i];
        if (strcmp(other->adapter, adapter) != 0) continue;
        is_known |= other->kind == RECORD_ADAPTER;
        if (other->kind == RECORD_FLOOR && !rec) rec = other;
    }
    if (!is_known) outbox_record(out, RECORD_ADAPTER, adapter, now);
    if (!rec) rec = outbox_record(out, RECORD_FLOOR, adapter, now);
    if (version > rec->version) rec->version = version;
    if (decision > rec->decision) rec->decision = decision;
    return true;
}

static int not_activatable(const adapter_row_t *a, uint64_t version, const char *why, const char *found,
                           const char *hint, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_NOT_ACTIVATABLE, "%s@%llu cannot be activated: %s", a->name,
                        (unsigned long long)version, why);
    error_where(error, a->name, version, NULL, "activate");
    error_contrast(error, "a staged, active or kept version", found);
    error_hint(error, "%s", hint);
    return rc;
}

/* The names are those that summary_state shows. */
static const char *ended_name(version_state_t state)
{
    return state == VERSION_FAILED ? "failed" : state == VERSION_SUPERSEDED ? "superseded" : "retired";
}

static int check_activate(const adapter_row_t *a, const version_row_t *v, const activate_by_t *by,
                          heddle_error_t *error)
{
    if (!v)
        return registry_fail_unremembered(HEDDLE_ERR_NOT_ACTIVATABLE, a->name, by->version, "activate",
                                          error);
    if (!registry_is_live(v)) {
        heddle_error_t reason;
        decision_end_reason(a, v, &reason);
        return not_activatable(a, by->version, reason.message, ended_name(v->state),
                               "publish its bytes again", error);
    }
    if (by->lost || !by->has_source)
        return not_activatable(a, by->version, by->lost ? by->lost : "no process holds its bytes", "lost",
                               "publish its bytes again", error);
    if (v->state == VERSION_STAGING && !by->has_staged)
        return not_activatable(a, by->version, "no worker has staged it yet", "staging",
                               "`heddle wait --phase staged` waits until it is", error);
    return HEDDLE_OK;
}

int decision_by_hand(const registry_t *r, const char *adapter, const activate_by_t *by, instant_t now,
                     outbox_t *out, activated_t *ret_activated, heddle_error_t *error)
{
    adapter_row_t *a = registry_adapter(r, adapter);
    if (!a) return registry_fail_unknown(r, adapter, by->version, "activate", error);
    if (!by->version || by->version > a->last_version)
        return registry_fail_unpublished(a, by->version, "activate", error);
    const version_row_t *v = registry_version(a, by->version), *newest = registry_newest_live(a);
    bool is_active = active_latest(a) == by->version;
    bool is_free = by->ends_hold || (v && v == newest); /* leaves no hold behind */
    if (!is_active || by->lost) {
        int rc = check_activate(a, v, by, error);
        if (rc) return rc;
    }
    /* To activate the newest version again ends a hold.  To activate one that some workers could not
     * switch to makes them try again. */
    bool decides = !is_active || (a->held && is_free) || by->has_stale;
    *ret_activated = (activated_t){.from = active_latest(a),
                                   .decision = decides && !by->dry_run ? decision_next(a) : a->decision,
                                   .changed = !is_active,
                                   .same_bytes = !is_active && registry_has_active_bytes(a, v),
                                   .held = decides ? !is_free : a->held};
    if (decides && !by->dry_run) add_decision(a, by->version, !is_free, is_free ? "" : by->by, now, out);
    return HEDDLE_OK;
}

/* ---- ends ---- */

static bool has_record(const outbox_t *out, record_kind_t kind, const adapter_row_t *a, uint64_t version)
{
    for (int i = 0; i < out->record_count; i++) {
        const record_t *rec = &out->records[i];
        if (rec->kind == kind && rec->version == version && !strcmp(rec->adapter, a->name)) return true;
    }
    return false;
}

/* Forgets ended versions with the smallest numbers, whenever they ended.  As a rule one for the one that
 * ends now; a second one shortens the longer history of an older file. */
static void forget_oldest(const adapter_row_t *a, instant_t now, outbox_t *out)
{
    size_t excess = a->ended_count; /* once the records of this turn are applied */
    for (int i = 0; i < out->record_count; i++) {
        const record_t *rec = &out->records[i];
        if (strcmp(rec->adapter, a->name)) continue;
        excess += rec->kind == RECORD_STATE;
        excess -= rec->kind == RECORD_FORGET;
    }
    excess = excess > LIMIT_HISTORY ? excess - LIMIT_HISTORY : 0;
    if (excess > REGISTRY_END_RECORDS - 1) excess = REGISTRY_END_RECORDS - 1;
    for (size_t i = 0; i < a->version_count && excess; i++) {
        /* Once the records of this turn have happened: ended, and still history. */
        const version_row_t *v = a->versions[i];
        bool has_ended = !registry_is_live(v) || has_record(out, RECORD_STATE, a, v->version);
        if (!has_ended || has_record(out, RECORD_FORGET, a, v->version)) continue;
        record_t *rec = outbox_record(out, RECORD_FORGET, a->name, now);
        if (!rec) return; /* the next end takes it */
        rec->version = v->version;
        excess--;
    }
}

void decision_end_version(const adapter_row_t *a, const version_row_t *v, version_state_t state,
                          const heddle_error_t *error, instant_t now, outbox_t *out)
{
    record_t *rec = outbox_record(out, RECORD_STATE, a->name, now);
    if (!rec) return;
    rec->version = v->version;
    rec->state = state;
    if (error) {
        rec->code = error->code;
        rec->message = outbox_text(out, error->message);
        rec->worker = outbox_text(out, error->worker);
        rec->phase = outbox_text(out, error->phase);
    }
    forget_oldest(a, now, out);
}

/* It is no failure, so it has a message and no code. */
void decision_supersede(const adapter_row_t *a, const version_row_t *v, uint64_t by, instant_t now,
                        outbox_t *out)
{
    heddle_error_t e = {0};
    text_printf(e.message, sizeof e.message, "superseded by %s@%llu before it became active", a->name,
                (unsigned long long)by);
    decision_end_version(a, v, VERSION_SUPERSEDED, &e, now, out);
}

void decision_note_loss(const adapter_row_t *a, const version_row_t *v, const char *why, instant_t now,
                        outbox_t *out)
{
    record_t *rec = outbox_record(out, RECORD_LOSS, a->name, now);
    if (!rec) return;
    rec->version = v->version;
    rec->message = outbox_text(out, why);
}

void decision_note_staged(const adapter_row_t *a, const version_row_t *v, instant_t now, outbox_t *out)
{
    record_t *rec = outbox_record(out, RECORD_STAGED, a->name, now);
    if (rec) rec->version = v->version;
}

/* Why a version ended, as an error that names where.  False: it has not ended. */
bool decision_end_reason(const adapter_row_t *a, const version_row_t *v, heddle_error_t *ret_error)
{
    *ret_error = (heddle_error_t){0};
    if (registry_is_live(v)) return false;
    int code = v->code ? v->code : HEDDLE_ERR_VERSION_FAILED;
    if (v->message[0]) error_fail(ret_error, code, "%s", v->message);
    else if (v->state == VERSION_SUPERSEDED)
        error_fail(ret_error, code, "superseded by a newer version before it became active");
    else error_fail(ret_error, code, "it was %s", ended_name(v->state));
    error_where(ret_error, a->name, v->version, v->worker[0] ? v->worker : NULL,
                v->phase[0] ? v->phase : NULL);
    ret_error->retriable = 0;
    return true;
}
