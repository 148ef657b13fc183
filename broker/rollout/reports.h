/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/reports.h (PURE): what members report about versions: a worker joins and restates its
 * copies, makes progress, has staged or activated a version, refuses one, or asks for other sources; a
 * publisher comes with what it serves; a member goes.
 *
 * A report changes the soft state of tracks and copies (track.h, copy.h), and may add sends (to be let go at
 * once) and events.  It decides nothing: rollout_tick and rollout_decide look at what changed.  What a peer
 * reports is checked against the registry here; a report that does not fit is refused with an error, and
 * changes nothing but the copy that it is about.  One thread, nothing blocks. */
#ifndef BROKER_REPORTS_H
#define BROKER_REPORTS_H

#include "broker/rollout/step.h"

/* A worker was admitted: takes what it restated (only bytes that equal the registry's), fills the
 * WELCOME's decisions and keep list (arrays in `arena`).  Announcing is messages_wake's, after WELCOME was
 * queued.  NO_MEMORY. */
int report_joined(step_t *s, member_t *member, const msg_join_t *join, arena_t *arena,
                  msg_welcome_t *welcome);
/* A publisher was admitted; `served`: the versions whose regions it still has. */
void report_opened(step_t *s, const member_t *publisher, const uint64_t *served, uint32_t count);
/* In which region it has a version, of those that it serves. */
void report_offered(step_t *s, const member_t *publisher, uint64_t version, const msg_region_t *region);
/* The writer published again what is there as `version`.  A version that is wanted has one more source: the
 * writer got its share key.  ROLLOUT tells the writer where the version is, and each time that changes. */
void report_republished(step_t *s, const member_t *publisher, uint64_t version);
void report_gone(step_t *s, const member_t *member, bool left);
void report_progress(step_t *s, const member_t *member, const msg_heartbeat_t *hb);
int report_staged(step_t *s, member_t *member, const msg_staged_t *m, heddle_error_t *error);
int report_active(step_t *s, member_t *member, const msg_active_t *m, heddle_error_t *error);
int report_nack(step_t *s, member_t *member, const msg_nack_t *m, heddle_error_t *error);
/* Bytes that a worker found bad in its memory make it no source any more, whatever the question was. */
void report_verified(step_t *s, const member_t *member, const msg_verified_t *m);
int report_need_sources(step_t *s, member_t *member, const msg_need_sources_t *m, heddle_error_t *error);

#endif
