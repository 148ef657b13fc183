/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/summary.h (PURE): where versions are, in the words that users see: `versions`, `workers`,
 * `wait`, and the ROLLOUT message.  Reads tracks and registry, changes nothing.  One thread. */
#ifndef BROKER_SUMMARY_H
#define BROKER_SUMMARY_H

#include "broker/rollout/track.h"

/* ---- copies ---- */

const char *copy_state_name(copy_state_t state);
/* The copy's state for people: COPY_STALE where it is active and the decision is a later one, or it
 * refused. */
copy_state_t copy_shown(const copy_row_t *c, const adapter_row_t *a, uint64_t version);
/* The same in a word; NULL: it has no bytes and is on its way to none (the worker is gone, or the version
 * ended). */
const char *copy_shown_name(const track_t *t, const copy_row_t *c, const adapter_row_t *a);

/* ---- versions ---- */

/* "staging" "staged" "active" "kept" "superseded" "failed" "retired" "lost" */
const char *rollout_state(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v);
/* Nothing but the hold keeps it from being active: it is staged, or was taken back. */
bool rollout_is_held(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v);

/* "waits for policy@14 (staged on 1 of 2)": it is announced when that version is decided.  False, and "": it
 * waits for no other version. */
#define ROLLOUT_QUEUED_TEXT (HEDDLE_NAME_MAX + 96u)
bool rollout_queued_text(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v,
                         char ret_text[ROLLOUT_QUEUED_TEXT]);

/* No worker subscribes to the adapter, whose name may be mistyped: "did you mean policy? ...".  False:
 * workers do, or no name that is near has any. */
bool rollout_nearest_text(const membership_t *members, const char *adapter,
                          char ret_text[ROLLOUT_QUEUED_TEXT]);

#define ROLLOUT_TEXT 768u /* room for the longest names */
/* Staged, of activation manual, and not held: it is decided by `heddle activate`. */
bool rollout_awaits_operator(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v);
/* What the version waits for, or which one superseded it, for people.  False, and "": nothing of these.
 * `settling_us`: how long the broker still settles. */
#define ROLLOUT_NOTE_TEXT (ROLLOUT_TEXT + 2 * HEDDLE_NAME_MAX)
bool rollout_note(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v, uint64_t settling_us,
                  char ret_text[ROLLOUT_NOTE_TEXT]);

/* The newest version that counts for a comparison of bytes: on its way, or committed and some process has the
 * bytes.  NULL: none. */
const version_row_t *rollout_newest_live(const rollout_t *ro, const adapter_row_t *a);
/* While it settles: the version of these bytes that may or may not turn out to be the newest live one, by
 * what comes back: its own bytes are not back, or they are and those of a newer one are not.  NULL: none;
 * it is known. */
const version_row_t *rollout_awaited(const rollout_t *ro, const adapter_row_t *a, const digest_t *digest);

typedef struct {
    const char *worker, *phase;
    int code;
    const char *message; /* the copy's, or `text`; valid as long as the row and the copy */
    char text[128];
} missing_row_t;
typedef struct {
    const char *state;
    uint64_t decision, activation, deadline_ms;
    /* eligible: still there; staged, active: of those (of all, with none eligible) */
    uint32_t eligible, staged, active;
    /* why it failed; HELD when only the hold keeps it from being active; 0 */
    int code;
    uint32_t missing_count; /* all of them; at most `cap` rows were written */
} rollout_sum_t;
rollout_sum_t rollout_sum(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v,
                          missing_row_t *rows, uint32_t cap);
/* How many bytes of its payload those workers have together, and are to have: the eligible ones, or all where
 * none is eligible. */
typedef struct {
    uint64_t done, all;
    uint32_t workers;
} rollout_bytes_t;
rollout_bytes_t rollout_bytes(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v);
/* The error object of a lost version: which process had its bytes last, and until when. */
void rollout_lost_reason(const track_t *t, heddle_error_t *ret_error);
/* The hold, for people: "policy is held at policy@2 by ann since 2026-...", and whether that version is
 * lost. */
void rollout_held_text(const rollout_t *ro, const adapter_row_t *a, char *ret_text, size_t size);
/* The track of the active version, where that is lost: no worker can serve what was decided; NULL. */
const track_t *rollout_lost_active(const rollout_t *ro, const adapter_row_t *a);
/* That, for people, and what to do about it. */
void rollout_lost_text(const rollout_t *ro, const adapter_row_t *a, char *ret_text, size_t size);

#endif
