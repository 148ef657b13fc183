/* SPDX-License-Identifier: Apache-2.0 */
/* broker/registry/active.h (PURE): which version is active, of an adapter and for a worker, and how far the
 * worker is from it: current, lag, and since when it serves an earlier choice.  Follows from the adapter's
 * registry row and the worker's subscription; no state, one thread.
 *
 * A decision may come to have a narrower scope than all workers.  So whatever is about one worker asks for
 * that worker (active_for), and only what is about the adapter itself asks for the latest decision
 * (active_latest).  Files other than this one and the registry's own do not read the row's field
 * (tests/style/rooms.py). */
#ifndef BROKER_ACTIVE_H
#define BROKER_ACTIVE_H

#include "broker/members/membership.h"
#include "broker/registry/registry.h"

/* The version that the latest decision names, whichever workers it is for; 0: none yet. */
uint64_t active_latest(const adapter_row_t *a);
/* The same, if its scope has the worker; 0: it has not. */
uint64_t active_for(const adapter_row_t *a, const member_t *member);
/* The worker serves it, and reported so after it was chosen: an earlier report does not count, because the
 * worker may have been switching to another one since.  False where there is no active version (a may be
 * NULL: never published to). */
bool active_is_served(const adapter_row_t *a, const member_t *member, const member_sub_t *sub);
/* How many versions it is behind: 0 where it serves the active one or nothing is active; 1 where it serves
 * nothing.  Else the versions that were chosen after the one it serves, each counted once however often it
 * was named. */
uint64_t active_lag(const adapter_row_t *a, const member_t *m, const member_sub_t *sub);
/* Since when what it serves is not the active version: the first later choice. */
uint64_t active_stale_ms(const adapter_row_t *a, const member_sub_t *sub);

#endif
