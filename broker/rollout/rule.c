/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/rule.h"

#include <heddle/publisher.h>

bool rule_counts(const tally_t *tally, bool is_eligible, bool is_present)
{
    return is_eligible || (is_present && !tally_present(tally, true));
}

bool rule_is_by_operator(uint64_t activation) { return activation == HEDDLE_ACTIVATION_MANUAL; }

bool rule_takes_first(uint64_t activation) { return activation == HEDDLE_ACTIVATION_AS_READY; }

/* Each worker that is there, eligible or not. */
static bool is_refused_by_all(const tally_t *t)
{
    uint32_t present = tally_present(t, false);
    return present && tally_in(t, COPY_FAILED) == present;
}

/* One eligible worker is enough.  Where no eligible one is left, as when none was there at the beginning,
 * joiners take its place: then each that is there must have refused, because the next one may stage it. */
static bool is_refused(const tally_t *t)
{
    return tally_failed(t) || (!tally_present(t, true) && is_refused_by_all(t));
}

ruling_t rule_apply(const rule_t *rule, const tally_t *tally)
{
    bool is_all = rule->activation == HEDDLE_ACTIVATION_ALL, is_met = false;
    bool is_rejected = is_all && is_refused(tally);
    ruling_t ruling = {.is_staged = tally_is_complete(tally) && !is_rejected, .scope = SCOPE_EVERYONE};
    switch ((heddle_activation_t)rule->activation) {
    case HEDDLE_ACTIVATION_ALL: is_met = ruling.is_staged; break;
    case HEDDLE_ACTIVATION_AS_READY: is_met = tally->units > 0; break;
    case HEDDLE_ACTIVATION_MANUAL: break;
    }
    /* What a unit has staged waits for an operator, even past its deadline, and while that unit is away. */
    bool was_staged = tally->units > 0 || rule->was_staged;
    ruling.awaits_operator = was_staged && (rule->is_adapter_held || !is_all);
    bool is_late = rule->is_late && !ruling.awaits_operator;
    if (!is_rejected && is_met && !rule->is_adapter_held) {
        ruling.verdict = RULE_DECIDE;
    } else if (is_rejected || is_late || rule->has_lost_source) {
        ruling.verdict = RULE_FAIL;
        /* Without a source, what the workers said is the better reason, if all of them refused it. */
        bool is_answered = is_rejected || (!is_late && is_refused_by_all(tally));
        ruling.reason = is_answered ? RULE_REJECTED : is_late ? RULE_LATE : RULE_SOURCELESS;
    }
    return ruling;
}
