/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/aim.h"

#include "broker/registry/active.h"
#include "core/errors.h"
#include "core/listing.h"

#include <string.h>

static const char *const NAMES[] = {
    [AIM_VERSION] = "activate", [AIM_BACK] = "rollback", [AIM_RESUME] = "resume"};

bool aim_of_op(const char *op, aim_t *ret_aim)
{
    for (aim_t aim = AIM_VERSION; aim <= AIM_RESUME; aim++) {
        if (strcmp(op, NAMES[aim]) != 0) continue;
        *ret_aim = aim;
        return true;
    }
    return false;
}

const char *aim_name(aim_t aim) { return NAMES[aim]; }

static bool has_source(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v)
{
    return track_has_source(track_find(ro, a->name, v->version));
}

/* Without any version that has a source the active one is named, because its workers may serve it still.
 * Where its bytes are lost too, the newest is named: that is the version to publish again. */
static uint64_t aim_resume(const rollout_t *ro, const adapter_row_t *a)
{
    uint64_t newest = 0;
    for (size_t i = a->held ? a->version_count : 0; i-- > 0;) {
        const version_row_t *v = a->versions[i];
        bool is_staged = v->state == VERSION_STAGING && !strcmp(summary_state(ro, a, v), "staged");
        if (!is_staged && v->state != VERSION_COMMITTED) continue;
        if (has_source(ro, a, v)) return v->version;
        if (!newest) newest = v->version;
    }
    return newest && summary_lost_active(ro, a) ? newest : active_latest(a);
}

static bool was_active(const version_row_t *v) { return v->state == VERSION_COMMITTED && v->decision; }

static int nothing_earlier(const rollout_t *ro, const adapter_row_t *a, heddle_error_t *error)
{
    /* "policy@3 with the same bytes, policy@2 lost, policy@1 retired": what there is below the active one. */
    char names[sizeof error->found];
    uint64_t active = active_latest(a);
    listing_t list = {.text = names, .size = sizeof names};
    const version_row_t *same = NULL;
    for (size_t i = a->version_count; i-- > 0;) {
        const version_row_t *v = a->versions[i];
        if (v->version >= active) continue;
        bool is_same = was_active(v) && registry_has_active_bytes(a, v) && has_source(ro, a, v);
        if (is_same && !same) same = v;
        listing_add(&list, "%s@%llu %s", a->name, (unsigned long long)v->version,
                    is_same                               ? "with the same bytes"
                    : v->decision || !registry_is_live(v) ? summary_state(ro, a, v)
                                                          : "never active");
    }
    uint32_t count = list.shown + list.others;
    int rc = error_fail(error, HEDDLE_ERR_NOT_ACTIVATABLE, "%s has no version to roll back to from %s@%llu%s",
                        a->name, a->name, (unsigned long long)active,
                        same ? ": the earlier ones that are held have the same bytes" : "");
    error_where(error, a->name, active, NULL, "activate");
    error_expected(error,
                   "a version below %llu that was active, has other bytes, and is held by a worker or its "
                   "publisher",
                   (unsigned long long)active);
    bool is_first = active == 1;
    error_found(error, "%s",
                count      ? listing_text(&list)
                : is_first ? "no earlier version"
                           : "no earlier version is remembered");
    /* The user's way out of a hold at lost bytes is a newer version, if one is there. */
    const version_row_t *next = registry_version(a, aim_resume(ro, a));
    if (a->held && summary_lost_active(ro, a) && next && has_source(ro, a, next))
        error_hint(error, "`heddle resume %s` ends the hold and activates %s@%llu", a->name, a->name,
                   (unsigned long long)next->version);
    else if (!count)
        error_hint(error, "%s`heddle versions %s` lists what there is",
                   is_first ? "it is the first one: " : "", a->name);
    else if (same)
        error_hint(error,
                   "%s@%llu has the bytes of %s@%llu, so going back to it would change no answer of the "
                   "model: publish earlier bytes again",
                   a->name, (unsigned long long)same->version, a->name, (unsigned long long)active);
    else
        error_hint(error, "publish the earlier bytes again; `heddle broker --keep` sets how many earlier "
                          "versions are kept");
    return rc;
}

int aim_version(const rollout_t *ro, const adapter_row_t *a, aim_t aim, uint64_t named, uint64_t *ret_version,
                heddle_error_t *error)
{
    uint64_t active = active_latest(a);
    if (aim != AIM_BACK) {
        *ret_version = aim == AIM_RESUME ? aim_resume(ro, a) : named;
        return HEDDLE_OK;
    }
    /* Back is the latest decision before the active version's, and never the greatest number below it: that
     * one may never have been active. */
    if (!active) {
        int rc = error_fail(error, HEDDLE_ERR_NOT_ACTIVATABLE,
                            "no version of %s is active, so there is none to roll back from", a->name);
        error_where(error, a->name, 0, NULL, "activate");
        error_hint(error, "`heddle versions %s` lists what there is", a->name);
        return rc;
    }
    if (named > active) {
        int rc = error_fail(error, HEDDLE_ERR_NOT_ACTIVATABLE, "%s@%llu is newer than the active %s@%llu",
                            a->name, (unsigned long long)named, a->name, (unsigned long long)active);
        error_where(error, a->name, named, NULL, "activate");
        error_expected(error, "a version up to %llu", (unsigned long long)active);
        error_found(error, "%llu", (unsigned long long)named);
        error_hint(error, "to go forward: `heddle activate %s@%llu`", a->name, (unsigned long long)named);
        return rc;
    }
    /* A checkpoint that was published twice is one step: the answers of the model are to change. */
    const version_row_t *best = NULL;
    for (size_t i = 0; i < a->version_count && !named; i++) {
        const version_row_t *v = a->versions[i];
        bool is_earlier = v->version < active && was_active(v) && !registry_has_active_bytes(a, v);
        if (is_earlier && (!best || v->decision > best->decision) && has_source(ro, a, v)) best = v;
    }
    if (!named && !best) return nothing_earlier(ro, a, error);
    *ret_version = named ? named : best->version;
    return HEDDLE_OK;
}
