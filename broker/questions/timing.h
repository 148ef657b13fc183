/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/timing.h (PURE): where the time of a version went.  One thread; nothing blocks. */
#ifndef BROKER_TIMING_H
#define BROKER_TIMING_H

#include "broker/questions/cell.h"

/* Which workers the decision waited for is known.  It is soft state, and a start loses it. */
bool timing_knows_awaited(const answer_view_t *b, const version_row_t *v);
/* From its record until it was first active, or ended without that. */
uint64_t timing_whole_us(const version_row_t *v);
/* {"took_ms", "so_far_ms", "ended_after_ms", "slowest", "rest", "switch", "unfinished"} of a version.  Only
 * workers that the decision waited for count (broker/rollout/took.h): one that joined or staged it later
 * changes nothing, nor does one that leaves.  After a restart it is not known any more which ones those were:
 * then no worker is named for a version that was active before. */
json_t *timing_json(const answer_view_t *b, const adapter_row_t *a, const version_row_t *v);

#endif
