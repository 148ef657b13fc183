/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/trust.h (PURE): what workers report of the processes that they fetch from, and what the
 * broker sees of them itself: which of these come last in the plans of the next versions, and which serve no
 * other any more.
 *
 *   of a source                          who says so            then
 *   ------------------------------------------------------------------------------------------------------
 *   it was slower than another one       one worker             last for BLAME_MS, and in this version
 *   it had bytes, and gave none          one worker's STAGED,   the same
 *                                        or the deadline      (then from the next version on)
 *   it sent wrong bytes                  one worker             the same
 *                                        two, in BLAME_MS       a last resort until its process ends
 *   it reported two for wrong bytes of   itself                 the same; its reports count no more, and
 *   one version                                                 what it alone reported is taken back
 *
 * A worker's report counts of sources that it was named, and of one for each version.  A publisher serves
 * whatever is reported of it.  One thread, nothing blocks. */
#ifndef BROKER_TRUST_H
#define BROKER_TRUST_H

#include "broker/rollout/step.h"

/* The worker got wrong bytes from the source, or left it for a faster one.  It fetches the version, and is
 * sent SOURCES afterwards: its list may be another one now. */
void trust_bad(step_t *s, track_t *t, member_t *worker, uint64_t token);
void trust_slow(step_t *s, track_t *t, member_t *worker, uint64_t token);
/* The worker has all bytes, and its copy is STAGED. */
void trust_staged(step_t *s, track_t *t, member_t *worker, const msg_staged_t *m);
/* The deadline of the version passes before it is staged. */
void trust_late(step_t *s, track_t *t);
/* Where the bytes of a version stand still that is late: between a worker and the process that it is to get
 * them from.  False: that is not known. */
typedef struct {
    const copy_row_t *worker;
    const member_t *source;
} standstill_t;
bool trust_standstill(const track_t *t, const membership_t *members, instant_t now, standstill_t *ret);

#endif
