/* SPDX-License-Identifier: Apache-2.0 */
/* broker/registry/decision.h (PURE): which version is active, and how versions end: the records DECISION,
 * STATE, LOSS, FORGET and FLOOR.  The rollout's rule (rollout/rule.h) says when a version is decided or has
 * failed; rollout/aim.h finds the version that an operator means.
 *
 * Numbers of decisions only grow: each is greater than all that were recorded, and than all that members know
 * of.  Reads the registry, and adds records to an outbox.  One thread, nothing blocks. */
#ifndef BROKER_DECISION_H
#define BROKER_DECISION_H

#include "broker/registry/registry.h"

/* ACTIVATE by hand: NOT_FOUND, NOT_ACTIVATABLE with the reason, or OK and a DECISION record unless
 * nothing changes. `lost`: the reason, where the version is lost; NULL. `has_source`: a process has the
 * bytes; `has_staged`: a worker has staged them; `has_stale`: a worker could not switch to it: naming it
 * again has them try again.  These are soft state of the rollout. */
typedef struct {
    uint64_t version;
    const char *by, *lost;
    bool has_source, has_staged, has_stale, dry_run;
    bool ends_hold; /* also where a newer version is on its way */
} activate_by_t;
typedef struct {
    uint64_t from, decision;
    bool changed, held;
    bool same_bytes; /* changed, and the two versions have one digest */
} activated_t;
int decision_by_hand(const registry_t *r, const char *adapter, const activate_by_t *by, instant_t now,
                     outbox_t *out, activated_t *ret_activated, heddle_error_t *error);
uint64_t decision_next(const adapter_row_t *a);
/* A member has a version or a decision of this adapter that is greater than those here: an older copy of
 * the store was put back.  Adds FLOOR (and ADAPTER), so that neither number is given again; false: the
 * outbox is full. */
bool decision_raise_floor(const registry_t *r, const char *adapter, uint64_t version, uint64_t decision,
                          instant_t now, outbox_t *out);
/* Members follow a decision beyond the latest: it is made anew under a greater number. */
bool decision_is_behind(const adapter_row_t *a);
void decision_renew(const adapter_row_t *a, instant_t now, outbox_t *out);
/* The rollout's rule is met, for the workers of this scope. */
void decision_by_rule(const adapter_row_t *a, const version_row_t *v, scope_t scope, instant_t now,
                      outbox_t *out);
/* A version ends: failed with a reason (error may be NULL for the other states).  Adds at most
 * REGISTRY_END_RECORDS: STATE, and FORGET for what is history no more. */
#define REGISTRY_END_RECORDS 3
void decision_end_version(const adapter_row_t *a, const version_row_t *v, version_state_t state,
                          const heddle_error_t *error, instant_t now, outbox_t *out);
/* The same, superseded by the version of that number. */
void decision_supersede(const adapter_row_t *a, const version_row_t *v, uint64_t by, instant_t now,
                        outbox_t *out);
/* No process has the bytes of this version, for the reason given; "": one does again. */
void decision_note_loss(const adapter_row_t *a, const version_row_t *v, const char *why, instant_t now,
                        outbox_t *out);
/* A worker, or a whole group, has staged it, and an operator decides on it: it outlives its deadline, and the
 * absence of its holders after a restart of the broker. */
void decision_note_staged(const adapter_row_t *a, const version_row_t *v, instant_t now, outbox_t *out);

/* Fills the error object of a version that ended (docs/json.md: "reason"); false and a zero object when it
 * did not. */
bool decision_end_reason(const adapter_row_t *a, const version_row_t *v, heddle_error_t *ret_error);

#endif
