/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/inquiry.h: a status query to the broker: how a version's rollout went on while this
 * publisher was away.
 *
 *   state   event                               -> next
 *   idle    inquiry_begin                       -> open    due at once
 *   open    due                                 -> open    inquiry_ask: a QUERY, due again a while later
 *           inquiry_answer: updated             -> open    due a while later
 *           inquiry_end                         -> idle
 *
 * ROLLOUT goes to the session that the broker has as the version's publisher.  A publisher that was stopped
 * past its lease, or replaced, has missed some, and may get no more.
 * No clock, no I/O.  Loop thread only; the node owns it. */
#ifndef TRAINER_CLIENT_INQUIRY_H
#define TRAINER_CLIENT_INQUIRY_H

#include "trainer_client/reports.h"

#define INQUIRY_US 1000000u            /* between two questions; what an answer may take */

typedef struct inquiry {
    uint64_t version;                  /* 0: idle */
    uint64_t req, due_us;
} inquiry_t;

void inquiry_begin(inquiry_t *q, uint64_t version, uint64_t now_us);
void inquiry_end(inquiry_t *q);
bool inquiry_is_due(const inquiry_t *q, uint64_t now_us);
uint64_t inquiry_deadline(const inquiry_t *q);   /* CLOCK_NEVER: idle */
/* The QUERY to send now; borrows `adapter`. */
void inquiry_ask(inquiry_t *q, const char *adapter, uint64_t now_us, msg_t *ret_msg);
/* True when the REPORT is the answer, and the row was brought up to date. */
bool inquiry_answer(const inquiry_t *q, const msg_report_t *m, report_row_t *row, uint64_t now_us);

#endif
