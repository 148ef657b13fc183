/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/rule.h"

#include <heddle/publisher.h>

bool rule_is_staged(const rule_t *rule, const tally_t *tally)
{
    bool is_complete = tally_is_complete(tally);
    return rule->activation == HEDDLE_ACTIVATION_ALL ? is_complete && !tally_failed(tally) : is_complete;
}

ruling_t rule_apply(const rule_t *rule, const tally_t *tally)
{
    bool is_all = rule->activation == HEDDLE_ACTIVATION_ALL, is_met = false;
    switch ((heddle_activation_t)rule->activation) {
    case HEDDLE_ACTIVATION_ALL: is_met = rule_is_staged(rule, tally); break;
    case HEDDLE_ACTIVATION_AS_READY: is_met = tally->units > 0; break;
    case HEDDLE_ACTIVATION_MANUAL: break;
    }
    bool may_stay = tally->units > 0 && (rule->is_held || !is_all);
    if (is_all && tally_failed(tally)) return (ruling_t){.verdict = RULE_FAIL, .reason = RULE_REJECTED};
    if (is_met && !rule->is_held) return (ruling_t){.verdict = RULE_COMMIT, .scope = SCOPE_EVERYONE};
    if (rule->is_late && !may_stay) return (ruling_t){.verdict = RULE_FAIL, .reason = RULE_LATE};
    if (rule->has_lost_source) return (ruling_t){.verdict = RULE_FAIL, .reason = RULE_SOURCELESS};
    return (ruling_t){.verdict = RULE_WAIT};
}
