/* SPDX-License-Identifier: Apache-2.0 */
/* broker/inbox/report.h (PURE): what a worker reports of one version: STAGED, ACTIVE, NACK, VERIFIED,
 * NEED_SOURCES.
 *
 * A report changes the soft state of tracks and copies (broker/rollout/track.h, copy.h), and may add sends
 * (to be let go at once) and events.  It decides nothing: it touches the tracks, and broker_decide goes over
 * what was touched (broker/rollout/rollout.h).  It is checked against the registry here; a report that does
 * not fit is refused with an error, and changes nothing but the copy that it is about.  One thread, nothing
 * blocks. */
#ifndef BROKER_REPORT_H
#define BROKER_REPORT_H

#include "broker/rollout/step.h"

/* Each returns OK, or the error that the worker is sent. */
int on_staged(step_t *s, member_t *member, const msg_staged_t *m, heddle_error_t *error);
int on_active(step_t *s, member_t *member, const msg_active_t *m, heddle_error_t *error);
int on_nack(step_t *s, member_t *member, const msg_nack_t *m, heddle_error_t *error);
int on_need_sources(step_t *s, member_t *member, const msg_need_sources_t *m, heddle_error_t *error);
/* Bytes that a worker found bad in its memory make it no source any more, whatever the question was. */
void on_verified(step_t *s, const member_t *member, const msg_verified_t *m);

/* ---- for their files ---- */

/* What a report is about: by name, and as it was found. */
typedef struct {
    member_t *member;
    const char *adapter;
    uint64_t version;
    const adapter_rollout_t *a;
    track_t *t;
    copy_row_t *c;
} about_t;

/* Finds what the report is about; x->c NULL: the report is answered, and what is returned is the answer.  A
 * version that ended before this report was received is ended at the worker again. */
int report_find(step_t *s, about_t *x, heddle_error_t *error);
/* The errors of a version that the worker cannot have, and of one that has other bytes there. */
int report_unknown(const char *adapter, uint64_t version, const member_t *member, heddle_error_t *error);
int report_wrong_digest(const char *adapter, const version_row_t *row, const digest_t *found,
                        const member_t *member, const char *phase, heddle_error_t *error);
void report_stage_failed(step_t *s, track_t *t, copy_row_t *c, copy_why_t why);

#endif
