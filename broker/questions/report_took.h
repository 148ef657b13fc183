/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/report_took.h (PURE): where the time of a version went, and how a copy in progress gets
 * on.  One thread; nothing blocks. */
#ifndef BROKER_REPORT_TOOK_H
#define BROKER_REPORT_TOOK_H

#include "broker/questions/json_parts.h"

/* Which workers the decision waited for is known.  It is soft state, and a start loses it. */
bool took_knows_awaited(const report_view_t *b, const version_row_t *v);
/* From its record until it was first active, or ended without that. */
uint64_t took_whole_us(const version_row_t *v);
/* {"took_ms", "so_far_ms", "ended_after_ms", "slowest", "rest", "switch"} of a version.  Only workers that
 * the decision waited for count: one that joined later changes nothing.  Where none was there at the
 * announcement, each worker counts whose phases fit into the time.  After a restart it is not known any more
 * which ones those were: then no worker is named for a version that was active before. */
json_t *took_part(const report_view_t *b, const adapter_row_t *a, const version_row_t *v);

/* How a copy in flight gets on. */
typedef struct {
    uint64_t rate_bytes;                  /* a second; 0: none came, or it is not known */
    const char *source;                   /* borrowed; NULL: none */
    bool is_silent;                       /* heartbeats are missing */
    char note[192 + 2 * HEDDLE_NAME_MAX]; /* for people; "": nothing, or copy_row_t.message says it */
} copy_progress_t;
copy_progress_t copy_progress(const report_view_t *b, const track_t *t, const copy_row_t *c);

/* The worker fetches this version now. */
bool copy_is_fetching(const track_t *t, const copy_row_t *c, const member_sub_t *sub);

#endif
