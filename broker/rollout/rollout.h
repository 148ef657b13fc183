/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/rollout.h (PURE): versions are rolled out: begun, decided, ended.
 *
 *   track.h     versions: the soft state
 *   copy.h      one version on one worker: the states
 *   tally.h     how many copies are in which state
 *   rule.h      tally -> wait, commit, fail
 *   aim.h       which version a decision by hand names
 *   keep.h      which decided versions stay, and where
 *   fetches.h   fetches that other workers wait for
 *   trust.h     which processes others fetch from last
 *   drain.h     what a worker that is to leave keeps until others have it
 *   next.h      which version a worker is sent next
 *   messages.h  what workers and publishers are sent
 *   presence.h  what sessions that begin and end mean for versions
 *   summary.h   what users are shown; took.h, costs.h: how long it took, and what it cost
 *
 * After a start, which workers were eligible is not known any more: those that are there when settling ends
 * are.
 *
 * One version of an adapter is rolled out at a time.  A newer one waits for it while workers are on their
 * way to it, so that publications faster than the link do not starve activation: it begins when that one is
 * decided or has ended.  Of those that wait the newest stays.  Where nothing more comes of the one before
 * (no worker fetches it, or it is staged and waits for an operator), it is superseded at once.
 *
 * What becomes of a version:
 *   - decided: its rule is met (rule.h), and the broker is not settling.
 *   - failed: at its deadline, with `no_workers` where no worker was there to take it, else with `deadline`,
 *     which names where each worker was.  Before that with `version_lost`: it had no source for a lease, and
 *     no worker ever staged it.
 *   - lost: a worker staged it, or it was committed, and for a lease no process has had its bytes.  A worker
 *     that loads them counts for the version's deadline.  Lost is derived, and reported once.
 *   - back: a process has the bytes of a lost version again.
 *
 * Nothing here blocks; one thread. */
#ifndef BROKER_ROLLOUT_H
#define BROKER_ROLLOUT_H

#include "broker/rollout/step.h"
#include "broker/rollout/summary.h"

/* How long the broker still settles; 0: it does not.  The end is that of the members' grace. */
uint64_t rollout_settling_us(const rollout_t *ro, const membership_t *members, uint64_t now_us);

/* Start-up, after membership_start: a track for each live version that was loaded.  An empty registry has
 * nothing to settle.  NO_MEMORY. */
int rollout_start(rollout_t *ro, view_t v);

/* ---- deciding ---- */

/* What changed is in one queue of adapters: track_touch puts it there (a report, a session, a record), and so
 * does time.  The two calls go over the queue after each event, and messages_flush empties it at the end of
 * the turn (messages.h).
 *
 * The first updates state that is not recorded: deadlines, versions that are lost or found, sources for
 * workers that wait for one. */
void rollout_look_at_touched(step_t *s);
/* The second adds records: DECISION, STATE failed, STATE retired.  Sends follow in rollout_apply.  Call both
 * again after each apply until no record is added. */
void rollout_decide_touched(const rollout_t *ro, view_t v, outbox_t *out);
/* A record was committed and applied to the registry.  All that follows from it for the rollouts follows
 * here: ANNOUNCE, COMMIT, ABORT and RETIRE are sent, copies change their states, events are added.  A new
 * version gets its track, with the session of the adapter's writer as its publisher.  Without memory the
 * rollout is incomplete. */
void rollout_apply(step_t *s, const record_t *record);
/* When rollout_look_at_touched is due: 0 while the queue has one. */
uint64_t rollout_deadline(const rollout_t *ro);

/* ---- while the store refuses records ---- */

/* Everything is to be looked at again: a commit had failed. */
void rollout_look_again(rollout_t *ro);
/* The publisher of these versions came back with their bytes, and could not be admitted because the store
 * refused records.  When the store accepts records again these versions have a lease for the publisher to
 * come once more (rollout_resume). */
void rollout_note_refused(rollout_t *ro, const char *adapter, const uint64_t *served, uint32_t count);
void rollout_resume(rollout_t *ro, uint64_t now_us);

#endif
