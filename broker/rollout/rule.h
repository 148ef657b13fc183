/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/rule.h (PURE): when a version that is being rolled out is decided, and when it fails.
 *
 *   activation   commits when                                            a rejection
 *   all          no eligible worker is missing, and a unit has staged    fails the version
 *   as-ready     the first unit has staged                               is passed over
 *   manual       never by itself                                         is passed over
 *
 * Workers that join later are not eligible: none of them is waited for.  Where no eligible worker is there,
 * `all` is met by the first joiner that has staged, and fails when each joiner that is there has refused.
 * A version of any activation that lost its source fails as rejected, if each worker that is there has
 * refused it.
 *
 * A unit is a worker without a group, or a group with all of its ranks (tally.h).  While the adapter is
 * held nothing is committed.  Past its deadline a version fails, unless a unit has staged it once and the
 * decision is left to an operator (held, or not `all`).  No state, nothing blocks. */
#ifndef BROKER_RULE_H
#define BROKER_RULE_H

#include "broker/registry/record.h"
#include "broker/rollout/tally.h"

typedef struct {
    uint64_t activation;  /* heddle_activation_t */
    bool is_adapter_held; /* by an operator, or a roll-back */
    bool is_late;         /* the deadline has passed */
    bool was_staged;      /* by a unit, which may be away now */
    bool has_lost_source; /* no process has had the bytes for too long */
} rule_t;

typedef enum { RULE_WAIT, RULE_DECIDE, RULE_FAIL } rule_verdict_t;

/* Why it fails; counts in RULE_FAIL. */
typedef enum { RULE_REJECTED, RULE_LATE, RULE_SOURCELESS } rule_reason_t;

typedef struct {
    rule_verdict_t verdict;
    bool is_staged;       /* all that the rule waits for has happened, committed or not */
    bool awaits_operator; /* a unit has staged it, and only an operator decides on it */
    scope_t scope;        /* RULE_DECIDE: the workers that the decision is for */
    rule_reason_t reason; /* RULE_FAIL */
} ruling_t;

/* What this worker does decides over the version: an eligible one does, and one that is there where no
 * eligible one is. */
bool rule_counts(const tally_t *tally, bool is_eligible, bool is_present);
ruling_t rule_apply(const rule_t *rule, const tally_t *tally);

/* The shape of the rule, where more than the decision depends on it.  Other files ask here, and compare no
 * activation: a rule that is added later is added in this file alone. */
bool rule_is_by_operator(uint64_t activation); /* only an operator decides: manual */
bool rule_takes_first(uint64_t activation);    /* the first unit decides, others are not awaited: as-ready */

#endif
