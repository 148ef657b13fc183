/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/presence.h (PURE): what the sessions of members mean for versions: a worker joins and
 * restates its copies; a publisher comes with what it serves; a member goes.
 *
 * It changes the soft state of tracks and copies (track.h, copy.h), and may add sends (to be let go at once).
 * It decides nothing: it touches the tracks (rollout.h).  What a member restates counts where the registry
 * agrees.  One thread, nothing blocks. */
#ifndef BROKER_PRESENCE_H
#define BROKER_PRESENCE_H

#include "broker/rollout/step.h"

/* A worker was admitted: takes what it restated (only bytes that equal the registry's), fills the
 * WELCOME's decisions and keep list (arrays in `arena`).  Announcing is messages_wake's, after WELCOME was
 * queued.  NO_MEMORY. */
int presence_joined(step_t *s, member_t *member, const msg_join_t *join, arena_t *arena,
                    msg_welcome_t *welcome);
/* A publisher was admitted; `served`: the versions whose regions it still has. */
void presence_opened(step_t *s, const member_t *publisher, const uint64_t *served, uint32_t count);
/* In which region it has a version, of those that it serves. */
void presence_offered(step_t *s, const member_t *publisher, uint64_t version, const msg_region_t *region);
/* The writer published again what is there as `version`.  A version that is wanted has one more source: the
 * writer got its share key.  ROLLOUT tells the writer where the version is, and each time that changes. */
void presence_republished(step_t *s, const member_t *publisher, uint64_t version);
/* The member's session has ended. */
void presence_gone(step_t *s, const member_t *member, bool left);

#endif
