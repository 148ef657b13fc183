/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/answer_pending.h (PURE): how a wait, an activation or a VERIFY ended.  See answer.h. */
#ifndef BROKER_ANSWER_PENDING_H
#define BROKER_ANSWER_PENDING_H

#include "broker/questions/cell.h"

/* How a wait or an activation ended (verdict->code 0: as asked), with the workers that count as they are
 * now.  On OK the caller owns *ret_body.  NO_MEMORY. */
int answer_wait(const answer_view_t *b, const pending_row_t *row, const heddle_error_t *verdict,
                json_t **ret_body);
int answer_verify(const answer_view_t *b, const pending_row_t *row, const heddle_error_t *verdict,
                  json_t **ret_body);

#endif
