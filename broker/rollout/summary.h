/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/summary.h (PURE): where versions are, in the words that users see: `versions`, `workers`,
 * `wait`, and the ROLLOUT message.  Reads tracks and registry, changes nothing.  One thread. */
#ifndef BROKER_SUMMARY_H
#define BROKER_SUMMARY_H

#include "broker/rollout/track.h"

/* ---- copies ---- */

/* The copy's state for people: COPY_STALE where it is active and the decision is a later one, or it
 * refused.  `active`: the version that is active for its worker (active.h). */
copy_state_t summary_copy_state(const copy_row_t *c, uint64_t active, uint64_t version);
/* The same in a word; NULL: it has no bytes and is on its way to none (the worker is gone, or the version
 * ended). */
const char *summary_copy_name(const track_t *t, const copy_row_t *c, uint64_t active);

/* ---- versions ---- */

/* "staging" "staged" "active" "kept" "superseded" "failed" "retired" "lost" */
const char *summary_state(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v);
/* Nothing but the hold keeps it from being active: it is staged, or was taken back. */
bool summary_is_held_back(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v);

/* "waits for policy@14 (staged on 1 of 2)": it is announced when that version is decided.  The counts are
 * left out while the broker settles, and where no worker is waited for.  False, and "": it waits for no other
 * version. */
#define SUMMARY_QUEUED_TEXT (HEDDLE_NAME_MAX + 96u)
bool summary_queued_text(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v,
                         char ret_text[SUMMARY_QUEUED_TEXT]);

/* No worker subscribes to the adapter, whose name may be mistyped: "did you mean policy? ...".  False:
 * workers do, or no name that is near has any. */
bool summary_nearest_text(const membership_t *members, const char *adapter,
                          char ret_text[SUMMARY_QUEUED_TEXT]);

#define SUMMARY_TEXT 768u /* room for the longest names */
/* Staged, of activation manual, and not held: it is decided by `heddle activate`. */
bool summary_awaits_operator(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v);
/* What the version waits for, or which one superseded it, for people.  False, and "": nothing of these.
 * `settling_us`: how long the broker still settles. */
#define SUMMARY_NOTE_TEXT (SUMMARY_TEXT + 2 * HEDDLE_NAME_MAX)
bool summary_note(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v, uint64_t settling_us,
                  char ret_text[SUMMARY_NOTE_TEXT]);

typedef struct {
    const char *worker, *phase;
    int code;
    const char *message; /* the copy's, or `text`; valid as long as the row and the copy */
    char text[192];
} missing_row_t;
/* Where the workers that are missing go, at most `cap` of them. */
typedef struct {
    missing_row_t *rows;
    uint32_t cap;
    const membership_t *members; /* says which of them are silent now; NULL: that would explain nothing */
    uint64_t now_us;
} missing_list_t;
typedef struct {
    const char *state;
    uint64_t decision, activation, deadline_ms;
    /* eligible: still there; staged, active: of those (of all, with none eligible) */
    uint32_t eligible, staged, active;
    /* why it failed; HELD when only the hold keeps it from being active; 0 */
    int code;
    uint32_t missing_count; /* all of them; at most `cap` rows were written */
} summary_t;
/* `missing` NULL: only how many. */
summary_t summary_of(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v,
                     const missing_list_t *missing);
/* How many bytes of its payload those workers have together, and are to have: the eligible ones, or all where
 * none is eligible. */
typedef struct {
    uint64_t done, all;
    uint32_t workers;
} summary_bytes_t;
summary_bytes_t summary_bytes(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v);
/* The error object of a lost version: which process had its bytes last, and until when. */
void summary_lost_reason(const track_t *t, heddle_error_t *ret_error);
/* The hold, for people: "policy is held at policy@2 by ann since 2026-...", and whether that version is
 * lost. */
void summary_held_text(const rollout_t *ro, const adapter_row_t *a, char *ret_text, size_t size);
/* The track of the active version, where that is lost: no worker can serve what was decided; NULL. */
const track_t *summary_lost_active(const rollout_t *ro, const adapter_row_t *a);
/* That, for people, and what to do about it. */
void summary_lost_text(const rollout_t *ro, const adapter_row_t *a, char *ret_text, size_t size);

#endif
