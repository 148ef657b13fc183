/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/registry/active.h"

uint64_t active_latest(const adapter_row_t *a) { return a->active; }

uint64_t active_for(const adapter_row_t *a, const member_t *member)
{
    (void)member;
    switch (a->scope) {
    case SCOPE_EVERYONE: return a->active;
    }
    return 0;
}

bool active_is_served(const adapter_row_t *a, const member_t *member, const member_sub_t *sub)
{
    uint64_t active = a ? active_for(a, member) : 0;
    return active && sub->serving.version == active && sub->serving.decision >= a->decision &&
           !sub->serving.is_refused;
}

/* How many versions were chosen after the one that it serves, each once.  At least 1 where it does not serve
 * the active one. */
uint64_t active_lag(const adapter_row_t *a, const member_t *m, const member_sub_t *sub)
{
    uint64_t active = a ? active_for(a, m) : 0;
    if (!active || sub->serving.version == active) return 0;
    /* Of a worker that did not return after a start only the version is known, and not its decision. */
    const version_row_t *served = sub->serving.decision ? NULL : registry_version(a, sub->serving.version);
    uint64_t decision = served ? served->decision : sub->serving.decision, later = 0;
    /* The newest first, and no further than there are later decisions: each names one version. */
    uint64_t most = sub->serving.version && a->decision > decision ? a->decision - decision : 0;
    for (size_t i = a->version_count; later < most && i-- > 0;)
        later += a->versions[i]->version != sub->serving.version && a->versions[i]->decision > decision;
    return later ? later : 1;
}

uint64_t active_stale_ms(const adapter_row_t *a, const member_sub_t *sub)
{
    uint64_t first_ms = a->decided_ms, decision = sub->serving.decision;
    /* A roll-back may have named what it serves again, before a later decision named another. */
    const version_row_t *served = registry_version(a, sub->serving.version);
    if (served && served->decision > decision) decision = served->decision;
    for (size_t i = 0; i < a->version_count; i++) {
        const version_row_t *v = a->versions[i];
        if (v->decision > decision && v->activated_ms < first_ms) first_ms = v->activated_ms;
    }
    return first_ms;
}
