/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/reports.h: the latest report of the broker on each version's rollout, and whether a wait for
 * it is over.
 *
 * A row has the state that the broker named: staging, staged, active, kept; failed, lost, superseded,
 * retired.  The newest REPORTS_MAX versions of this publisher have one.  No clock, no I/O.  Loop thread only;
 * the node owns them. */
#ifndef TRAINER_CLIENT_REPORTS_H
#define TRAINER_CLIENT_REPORTS_H

#include "proto/msg.h"
#include <heddle/publisher.h>

#define REPORTS_MAX 16u

typedef struct report_row {
    heddle_report_t report;            /* version 0: a free row; its times are those of all eligible */
    double staged_ms, active_ms;       /* when a smaller quorum that was asked for was there; -1 */
    uint32_t staged_most, active_most; /* the most that were reported staged, active at one time */
    uint64_t start_us, heard_us;       /* when commit was called; when the last ROLLOUT came */
    /* which version goes first, as the last ROLLOUT in `staging` had it; "": none */
    char queued[HEDDLE_NAME_MAX + 96];
    /* in `staging`, when no worker subscribes: the adapter that may be meant; "": none */
    char nearest[HEDDLE_NAME_MAX + 96];
} report_row_t;
typedef struct reports {
    char adapter[HEDDLE_NAME_MAX + 1];
    report_row_t *rows;
} reports_t;

/* NO_MEMORY. */
int reports_init(reports_t *r, const char *adapter);
void reports_fini(reports_t *r);

/* A version was made, or found again, by a commit that was called at start_us.  Its row. */
report_row_t *reports_begin(reports_t *r, uint64_t version, const heddle_publish_opts_t *opts,
                            uint64_t start_us);
/* NULL: not of this publisher, or forgotten. */
report_row_t *reports_find(const reports_t *r, uint64_t version);
/* The newest version of all; NULL: there is none. */
report_row_t *reports_newest(const reports_t *r);
void reports_update(report_row_t *row, const msg_rollout_t *m, uint64_t now_us);
/* The same from the body of the answer to a status query ("versions"); false: it is not about that
 * version. */
bool reports_answer(report_row_t *row, bytes_t body, uint64_t now_us);
/* It was active once, whatever it is now. */
void reports_was_active(report_row_t *row);

/* As the application sees it: where not all are there yet, the times are those of the quorum it asked for. */
void reports_copy(const report_row_t *row, heddle_report_t *ret_report);

/* No worker is awaited any more, as far as staging goes. */
bool report_is_settled(const report_row_t *row);

/* Another process has, or had, its bytes; or a later version stands for it. */
bool report_is_held(const report_row_t *row);

/* The version will be nothing else any more, or all that was wanted of it is there. */
bool report_is_over(const report_row_t *row);

/* OK: reached · AGAIN: not yet · DEADLINE NO_WORKERS VERSION_FAILED VERSION_LOST HELD: it will not
 * be: the version ended, or so many workers refused it that too few are left (VERSION_FAILED; it may be
 * the active version nevertheless).  The quorum is of the eligible workers, at least one; a
 * count of active ones stays reached when they leave, and when the version retires: another count is not.
 * HEDDLE_QUORUM_NONE is always reached. */
typedef struct {
    heddle_phase_t phase;
    heddle_quorum_t quorum;
} wait_for_t;
int reports_judge(const reports_t *r, report_row_t *row, const wait_for_t *want, heddle_error_t *error);
/* The wait's own time ran out: what reports_judge says now, and where that is AGAIN, NO_WORKERS where there
 * is no worker, else DEADLINE, with what the first of those that are missing said. */
int reports_late(const reports_t *r, report_row_t *row, const wait_for_t *want, uint32_t waited_ms,
                 heddle_error_t *error);

#endif
