/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/outcomes.h: how the rollout of each version stands, by the broker's latest report, and
 * whether a wait for it is over.
 *
 * A row has the state that the broker named: staging, staged, active, kept; failed, lost, superseded,
 * retired.  The newest OUTCOMES_MAX versions of this publisher have one.  No clock, no I/O.  Loop thread
 * only; the node owns them. */
#ifndef TRAINER_CLIENT_OUTCOMES_H
#define TRAINER_CLIENT_OUTCOMES_H

#include "proto/msg.h"
#include <heddle/publisher.h>

#define OUTCOMES_MAX 16u

typedef struct outcome_row {
    heddle_report_t report;            /* version 0: a free row; its times are those of all eligible */
    double staged_ms, active_ms;       /* when a smaller quorum that was asked for was there; -1 */
    uint32_t staged_most, active_most; /* the most that were reported staged, active at one time */
    uint32_t staged_of;                /* the workers that report.staged_ms is of */
    uint64_t start_us, received_us;    /* when commit was called; when the last ROLLOUT came */
    uint64_t back_us;                  /* when the last session after the first one began; 0: none did */
    bool is_unreported;                /* and the broker has not reported since */
    bool was_decided_unreported;       /* a decision fell while the broker was away, or before */
    /* which version goes first, as the last ROLLOUT in `staging` had it; "": none */
    char queued[HEDDLE_NAME_MAX + 96];
    /* in `staging`, when no worker subscribes: the adapter that may be meant; "": none */
    char nearest[HEDDLE_NAME_MAX + 96];
} outcome_row_t;
typedef struct outcomes {
    char adapter[HEDDLE_NAME_MAX + 1];
    outcome_row_t *rows;
} outcomes_t;

/* NO_MEMORY. */
int outcomes_init(outcomes_t *r, const char *adapter);
void outcomes_fini(outcomes_t *r);

/* A version was made, or found again, by a commit that was called at start_us.  Its row. */
outcome_row_t *outcomes_begin(outcomes_t *r, uint64_t version, const heddle_publish_opts_t *opts,
                              uint64_t start_us);
/* NULL: not of this publisher, or forgotten. */
outcome_row_t *outcomes_find(const outcomes_t *r, uint64_t version);
/* A session began after an earlier one: what was staged or activated meanwhile has no time. */
void outcomes_missed(outcomes_t *r, uint64_t now_us);
/* The newest version of all; NULL: there is none. */
outcome_row_t *outcomes_newest(const outcomes_t *r);
void outcomes_update(outcome_row_t *row, const msg_rollout_t *m, uint64_t now_us);
/* It was active once, whatever it is now. */
void outcomes_was_active(outcome_row_t *row);

/* As the application sees it: where not all are there yet, the times are those of the quorum it asked for; -1
 * also where it happened and the time is not known. */
void outcomes_copy(const outcome_row_t *row, heddle_report_t *ret_report);

/* No worker is awaited any more, as far as staging goes. */
bool outcome_is_staging_over(const outcome_row_t *row);

/* The version can do without this publisher: another process has, or had, its bytes, or a later version
 * stands for it. */
bool outcome_is_elsewhere(const outcome_row_t *row);

/* The version will be nothing else any more, or all that was wanted of it is there. */
bool outcome_is_over(const outcome_row_t *row);

/* OK: reached · AGAIN: not yet · DEADLINE NO_WORKERS VERSION_FAILED VERSION_LOST HELD: it will not
 * be: the version ended, or so many workers refused it that too few are left (VERSION_FAILED; it may be
 * the active version nevertheless).  The quorum is of the eligible workers, at least one; a
 * count of active ones stays reached when they leave, and when the version retires: another count is not.
 * HEDDLE_QUORUM_NONE is always reached. */
typedef struct {
    heddle_phase_t phase;
    heddle_quorum_t quorum;
} wait_for_t;
int outcomes_judge(const outcomes_t *r, outcome_row_t *row, const wait_for_t *want, heddle_error_t *error);
/* The wait's own time ran out: what outcomes_judge says now, and where that is AGAIN, NO_WORKERS where there
 * is no worker, else DEADLINE, with what the first of those that are missing said. */
int outcomes_late(const outcomes_t *r, outcome_row_t *row, const wait_for_t *want, uint32_t waited_ms,
                  heddle_error_t *error);

#endif
